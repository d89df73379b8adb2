"""The core of a replay buffer: what it offers, and how verbs run over it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import recollect as rc
from recollect.replay.batches import buffer_draw
from recollect.replay.core import ReplayCore
from recollect.table.runner import PlainVerb
from recollect.table.waiting import Blocked


def filled(**options: Any) -> rc.ReplayBuffer:
    buffer = rc.ReplayBuffer(100, seed=0, **options)
    buffer.extend(obs=np.zeros((9, 2)), reward=np.arange(9.0))
    return buffer


def test_the_core_has_at_most_thirty_public_names() -> None:
    core = filled().core
    assert isinstance(core, ReplayCore)
    assert len([name for name in dir(core) if not name.startswith("_")]) <= 30


def test_a_verb_that_is_blocked_runs_again_when_steps_arrive() -> None:
    buffer = rc.ReplayBuffer(10)
    tries = []

    def attempt() -> Any:
        tries.append(len(buffer))
        return "done" if len(buffer) else Blocked("needs a step")

    async def main() -> str:
        verb = PlainVerb("look", attempt, finish=str.upper)
        call = asyncio.create_task(buffer.core.run_async(verb))
        while not buffer.stats()["waiting_to_sample"]:
            await asyncio.sleep(0)
        buffer.add(obs=[0.0], reward=0.0)
        return await call

    assert asyncio.run(main()) == "DONE"
    assert tries == [0, 0, 1]


@pytest.mark.parametrize("face", ["thread", "coroutine"])
def test_what_fails_after_the_attempt_is_undone_under_the_lock(face: str) -> None:
    core = filled().core
    undone = []

    def finish(tried: int) -> None:
        raise ValueError("no memory for the result")

    verb = PlainVerb("try", lambda: 7, finish=finish, undo=undone.append)
    call: Callable[[Any], Any] = core.run
    if face == "coroutine":
        call = lambda verb: asyncio.run(core.run_async(verb))  # noqa: E731
    with pytest.raises(ValueError, match="no memory"):
        call(verb)
    assert undone == [7]


@pytest.mark.parametrize("face", ["thread", "coroutine"])
def test_changes_wait_for_the_journal_and_draws_do_not(face: str, tmp_path: Path) -> None:
    buffer = filled(journal=rc.Journal(tmp_path, sync="always"))
    recorder: Any = buffer.core.recorder
    settled = []
    recorder.settle = settled.append

    async def settle_async(number: int) -> None:
        settled.append(number)

    recorder.settle_async = settle_async
    before = recorder.number

    def call(name: str, **arguments: Any) -> Any:
        if face == "thread":
            return getattr(buffer, name)(**arguments)
        return asyncio.run(getattr(buffer, f"{name}_async")(**arguments))

    call("add", obs=[0.0, 0.0], reward=0.0)
    call("sample", n=2)
    call("sample_sequences", n=2, length=3)
    assert settled == [before + 1]
    buffer.update_priorities([0], [2.0])
    buffer.clear()
    assert settled == [before + 1, before + 2, before + 3]
    del recorder.settle, recorder.settle_async
    buffer.close()


def test_a_draw_stays_as_it_was_chosen() -> None:
    buffer, same = filled(), filled()
    draw = buffer_draw(buffer.core, 4, None, None, True)
    draw.choose(None)
    buffer.clear()
    buffer.extend(obs=np.ones((200, 2)), reward=np.ones(200))
    assert draw.read()["reward"].tolist() == same.sample(4)["reward"].tolist()


def test_only_a_timeout_lets_a_draw_wait_for_sequences() -> None:
    buffer = filled()
    draw = buffer_draw(buffer.core, 1, {"length": 20}, None, True)
    with pytest.raises(rc.WaitTimeout):
        draw.choose(0.0)
    with pytest.raises(rc.InvalidValue, match="no sequence of 20"):
        draw.choose(None)
    buffer.extend(obs=np.ones((20, 2)), reward=np.ones(20))
    draw.choose(None)
    assert draw.read()["reward"].shape == (1, 20)


def test_a_closed_core_runs_nothing() -> None:
    buffer = filled()
    buffer.core.close()
    with pytest.raises(rc.TableClosed):
        buffer.core.run(PlainVerb("look", lambda: 1))
    assert "closed" in repr(buffer)
