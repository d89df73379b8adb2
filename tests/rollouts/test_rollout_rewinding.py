"""A buffer that goes back to the weights of a step, in memory and beside a journal."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import recollect as rc
from recollect.rollouts import rewind as rewinding
from recollect.rollouts.core import RolloutCore
from recollect.rollouts.history import History

NOTHING = np.zeros(0, np.uint64)


def group(name: str, version: int = 0, *, n: int = 2, task: str = "math", **more: Any) -> rc.Group:
    rollouts = [
        rc.Rollout(response_ids=[1, 2, 3], versions=[version] * 3, finish_reason="stop", **more)
        for _ in range(n)
    ]
    return rc.Group(rollouts, task=task, group_id=name, prompt_ids=[1])


def keeping(**options: Any) -> rc.RolloutBuffer:
    buffer = rc.RolloutBuffer(**{"staleness": rc.Staleness(max_staleness=1000), **options})
    rewinding.keep_trained(buffer.core)
    return buffer


def train(buffer: rc.RolloutBuffer, step: int, n: int = 1, task: str = "math") -> list[str]:
    taken = buffer.sync.take_batch({task: n}, train_step=step, lease=True, timeout=0)
    buffer.sync.confirm(taken.lease, step)
    return [each.group_id for each in taken.all]


def rewind(
    buffer: rc.RolloutBuffer, step: int, trained: Any = NOTHING, *, keep: bool = False
) -> None:
    core = buffer.core
    with rewinding.alone(core):
        rewinding.rewind(core, step, trained, "checkpoint", keep_future=keep)


def stored(buffer: rc.RolloutBuffer) -> set[str]:
    core: RolloutCore = buffer.core
    return {entry.group_id for entry in core.entries.values() if not entry.trained}


def balanced(buffer: rc.RolloutBuffer) -> None:
    """Every group that was put is stored, leased or left with a reason."""
    for account in buffer.accounts().values():
        left = sum(account["left"].values())
        assert account["put"] == account["stored"] + account["leased"] + left, account
        assert min(account["left"].values(), default=0) >= 0


# -- keeping --------------------------------------------------------------------------------------
def test_trained_groups_are_kept_until_a_checkpoint_of_their_step_or_later_commits() -> None:
    buffer = keeping()
    for step in range(1, 5):
        buffer.sync.put(group(f"g{step}"))
        assert train(buffer, step) == [f"g{step}"]
    assert buffer.count("math", rc.Status.ARCHIVED) == 4
    assert rewinding.forget_trained(buffer.core, 2) == 2
    assert buffer.count("math", rc.Status.ARCHIVED) == 2
    assert rewinding.forget_trained(buffer.core, 9) == 2
    assert len(buffer) == 0
    assert buffer.accounts()["math"]["left"] == {"trained": 4}
    balanced(buffer)


def test_without_keeping_trained_groups_leave_at_once_and_the_buffer_knows() -> None:
    buffer = rc.RolloutBuffer()
    buffer.sync.put(group("a", 6))
    train(buffer, 7)
    assert len(buffer) == 0
    assert buffer.core.unkept == 7


def test_an_archive_is_not_let_go_of() -> None:
    buffer = keeping(archive=True)
    buffer.sync.put(group("a"))
    train(buffer, 3)
    assert rewinding.forget_trained(buffer.core, 5) == 0
    assert [each.group_id for each in buffer.sync.trained_at(3)] == ["a"]


def test_a_full_buffer_lets_go_of_what_it_keeps_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    buffer = keeping(capacity=2)
    for step in range(1, 4):
        buffer.sync.put(group(f"g{step}"))
        train(buffer, step)
    assert len(buffer) == 2
    assert "trained groups that a checkpoint has not covered yet give way" in caplog.text
    assert buffer.core.unkept > 0


# -- going back -----------------------------------------------------------------------------------
def test_what_later_steps_trained_comes_back_first_and_marked_redelivered() -> None:
    buffer = keeping()
    for name in "abcdef":
        buffer.sync.put(group(name))
    assert [train(buffer, step) for step in (1, 2, 3, 4)] == [["a"], ["b"], ["c"], ["d"]]
    rewind(buffer, 2)
    assert stored(buffer) == set("cdef")
    assert buffer.train_step == 3
    balanced(buffer)
    taken = buffer.sync.take_batch({"math": 4}, train_step=3, lease=True, timeout=0)
    assert [each.group_id for each in taken.all] == ["c", "d", "e", "f"]
    assert [each.redelivered for each in taken.all] == [True, True, False, False]
    assert all(each.status is rc.Status.COMPLETED for each in taken.all)
    buffer.sync.confirm(taken.lease)
    balanced(buffer)
    assert buffer.accounts()["math"]["left"]["trained"] == 6


def test_what_was_leased_comes_back_unless_the_weights_have_it() -> None:
    buffer = keeping()
    for name in "abc":
        buffer.sync.put(group(name))
    first = buffer.sync.take_batch({"math": 1}, train_step=5, lease=True)
    buffer.sync.take_batch({"math": 1}, train_step=6, lease=True)
    with buffer.table.core.transaction():
        holding = rewinding.look(buffer.core, 5)
    assert holding.trained == first.keys.tolist()
    assert [name for _, _, name in holding.held] == ["b", "c"]
    assert holding.ahead == {"math": -1}
    rewind(buffer, 5, first.keys)
    assert stored(buffer) == {"b", "c"}
    assert buffer.accounts()["math"]["left"] == {"trained": 1}
    with pytest.raises(rc.LeaseExpired):
        buffer.sync.confirm(first.lease)
    balanced(buffer)


def test_what_a_checkpoint_holds_is_seen_from_its_step() -> None:
    buffer = keeping()
    for name in "abcd":
        buffer.sync.put(group(name))
    for step in (1, 2, 3):
        train(buffer, step)
    for step, held in ((0, "abcd"), (1, "bcd"), (2, "cd"), (3, "d"), (9, "d")):
        with buffer.table.core.transaction():
            holding = rewinding.look(buffer.core, step)
        assert "".join(name for _, _, name in holding.held) == held
        assert sum(holding.ahead.values()) == len(held) - 1


def test_groups_that_later_weights_had_a_part_in_leave_as_rewound() -> None:
    buffer = keeping()
    events = buffer.sync.events("discarded")
    buffer.sync.put(group("old", 3))
    buffer.sync.put(group("new", 5))
    mixed = group("mixed", 3)
    mixed[1].versions = np.array([3, 4, 4], np.int32)
    buffer.sync.put(mixed)
    sent = rc.Group(
        [rc.Rollout(dispatch_version=6, finish_reason="abort")], task="math", group_id="sent"
    )
    buffer.sync.put(sent)
    buffer.sync.put(group("stamped", 3), version=3)
    late = rc.Group(
        [rc.Rollout(response_ids=[1], finish_reason="stop")], task="math", group_id="late"
    )
    buffer.sync.put(late, version=4)
    rewind(buffer, 3)
    assert stored(buffer) == {"old", "stamped"}
    told = next(events)
    assert {event.group_id for event in told} == {"new", "mixed", "sent", "late"}
    assert {event.reason for event in told} == {"rewound"}
    assert {len(event.group) for event in told} == {1, 2}
    events.close()
    balanced(buffer)


def test_groups_of_later_weights_may_be_kept_with_lag_0() -> None:
    buffer = keeping(staleness=rc.Staleness(max_staleness=1))
    tool = group("tool", 7)
    tool[0].versions = np.array([7, -1, 9], np.int32)
    buffer.sync.put(tool)
    late = rc.Group(
        [rc.Rollout(response_ids=[1, 2], finish_reason="stop")], task="math", group_id="late"
    )
    buffer.sync.put(late, version=8)
    buffer.sync.put(group("old", 4))
    nbytes = buffer.nbytes
    rewind(buffer, 5, keep=True)
    assert stored(buffer) == {"tool", "late", "old"}
    assert buffer.nbytes == nbytes
    by_id = {}
    for each in buffer.sync.take_batch({"math": 3}, train_step=6, timeout=0).all:
        by_id[each.group_id] = [rollout.versions.tolist() for rollout in each]
    assert by_id == {
        "tool": [[5, -1, 5], [5, 5, 5]],
        "late": [[5, 5]],
        "old": [[4, 4, 4], [4, 4, 4]],
    }


def test_what_is_kept_from_the_future_expires_as_if_it_were_of_the_step() -> None:
    buffer = keeping(staleness=rc.Staleness(max_staleness=1))  # a threshold of 2 steps
    buffer.sync.put(group("late", 9))
    rewind(buffer, 5, keep=True)
    assert buffer.sync.advance(7) == {}
    assert buffer.sync.advance(8) == {"math": 1}


def test_what_comes_back_expires_when_it_is_too_old() -> None:
    buffer = keeping(staleness=rc.Staleness(max_staleness=1))
    for name in "abc":
        buffer.sync.put(group(name, 4))
    train(buffer, 6, n=2)
    rewind(buffer, 5)
    assert stored(buffer) == set("abc")
    assert buffer.sync.advance(6) == {}
    assert buffer.sync.advance(7) == {"math": 3}


def test_claims_and_promised_room_end() -> None:
    buffer = keeping(needs=("reward",), capacity=4)
    buffer.sync.put(group("a"))
    claimed = buffer.sync.claim(1, "reward")
    assert buffer.reserve(3, "math") == 3
    rewind(buffer, 0)
    assert buffer.reserve(3, "math") == 3
    again = buffer.sync.claim(1, "reward", timeout=0)
    assert again[0].group_id == claimed[0].group_id
    buffer.sync.annotate([r.rollout_id for r in again[0]], 0, reward=[1.0, 0.0])
    assert buffer.is_ready({"math": 1})


def test_a_waiting_trainer_wakes_when_groups_come_back() -> None:
    import asyncio

    async def main() -> list[str]:
        buffer = keeping()
        await buffer.put(group("a"))
        train(buffer, 1)
        waiting = asyncio.create_task(buffer.take_batch({"math": 1}, lease=True))
        await asyncio.sleep(0.01)
        rewind(buffer, 0)
        return [each.group_id for each in (await asyncio.wait_for(waiting, 5)).all]

    assert asyncio.run(main()) == ["a"]


def test_frames_go_back_too() -> None:
    buffer = keeping(storage=rc.FrameStorage())
    for name in "abc":
        buffer.sync.put(group(name))
    train(buffer, 1)
    train(buffer, 2)
    rewind(buffer, 1)
    assert stored(buffer) == {"b", "c"}
    assert train(buffer, 2, n=2) == ["b", "c"]
    balanced(buffer)


# -- an oracle ------------------------------------------------------------------------------------
class Oracle:
    """Groups as a dict: where each is, and which step trained it."""

    def __init__(self) -> None:
        self.waiting: dict[str, int] = {}  # name -> version
        self.trained: dict[str, tuple[int, int]] = {}  # name -> version and step

    def rewind(self, step: int) -> None:
        for name, (version, at) in self.trained.items():
            if at > step:
                self.waiting[name] = version
        self.trained = {}  # the weights have the others, and are safe
        self.waiting = {name: v for name, v in self.waiting.items() if v <= step}


@pytest.mark.parametrize("seed", range(20))
def test_a_life_with_rewinds_agrees_with_the_oracle(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    journal = rc.Journal(tmp_path / "journal", sync="off") if seed % 4 == 0 else None
    buffer, oracle = keeping(journal=journal), Oracle()
    step = floor = made = 0
    for _ in range(60):
        roll = chance.random()
        if roll < 0.5:
            name, version = f"g{made}", chance.randint(max(0, step - 3), step)
            made += 1
            buffer.sync.put(group(name, version))
            oracle.waiting[name] = version
        elif roll < 0.75 and oracle.waiting:
            step += 1
            n = chance.randint(1, min(3, len(oracle.waiting)))
            for name in train(buffer, step, n):
                oracle.trained[name] = (oracle.waiting.pop(name), step)
        elif roll < 0.85:
            floor = chance.randint(floor, step)
            rewinding.forget_trained(buffer.core, floor)
            oracle.trained = {n: t for n, t in oracle.trained.items() if t[1] > floor}
        else:
            back = chance.randint(floor, step)
            rewind(buffer, back)
            oracle.rewind(back)
            step = back
        assert stored(buffer) == set(oracle.waiting)
        assert buffer.count("math", rc.Status.ARCHIVED) == len(oracle.trained)
        balanced(buffer)
    buffer.close()


# -- beside a journal -----------------------------------------------------------------------------
def journaled(path: Path) -> rc.RolloutBuffer:
    return keeping(journal=rc.Journal(path, sync="always"))


def test_what_is_kept_survives_in_the_journal_and_goes_back_after_a_restart(tmp_path: Path) -> None:
    buffer = journaled(tmp_path)
    for name in "abcde":
        buffer.sync.put(group(name))
    for step in (1, 2, 3):
        train(buffer, step)
    buffer.sync.take_batch({"math": 1}, train_step=4, lease=True)
    history = buffer.core.history
    buffer.close()
    again = journaled(tmp_path)
    assert again.core.history == history
    assert again.count("math", rc.Status.ARCHIVED) == 3
    rewind(again, 1)
    assert stored(again) == set("bcde")
    after = again.core.history
    assert after.base == "checkpoint"
    assert after.floor == 1
    assert after.run != history.run
    again.close()
    last = journaled(tmp_path)
    assert last.core.history == after
    assert stored(last) == set("bcde")
    assert last.train_step == 2
    assert train(last, 2, n=4) == list("bcde")
    balanced(last)
    last.close()


def test_a_history_tells_whether_a_journal_came_of_a_checkpoint() -> None:
    history = History("run-2", base="checkpoint-5", floor=5)
    assert history.continues("run-2", "checkpoint-7", 7)
    assert history.continues("run-1", "checkpoint-5", 5)
    assert not history.continues("run-1", "checkpoint-6", 6)
    assert not history.continues("run-2", "checkpoint-4", 4)
    assert History.from_json(history.to_json()) == history
    assert History.from_json(None).floor == 0
