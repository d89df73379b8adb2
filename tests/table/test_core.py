"""The core of a table: what it offers, and how verbs run over it."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

import recollect as rc
from recollect.table.core import TableCore
from recollect.table.counts import TableCounts
from recollect.table.runner import PlainVerb
from recollect.table.waiting import Blocked


def test_the_core_has_at_most_thirty_public_names():
    core = rc.Table("t", capacity=1).core
    assert isinstance(core, TableCore)
    assert len([name for name in dir(core) if not name.startswith("_")]) <= 30


def test_a_verb_that_is_blocked_runs_again_when_something_arrives():
    table = rc.Table("t", capacity=4)
    tries = []

    def attempt():
        tries.append(len(table))
        return "done" if len(table) else Blocked("needs an item")

    async def main():
        verb = PlainVerb("look", attempt, finish=str.upper)
        call = asyncio.create_task(table.core.run_async(verb))
        while not table.stats()["waiting_to_sample"]:
            await asyncio.sleep(0)
        table.insert({"x": [1]})
        return await call

    assert asyncio.run(main()) == "DONE"
    assert tries == [0, 0, 1]


@pytest.mark.parametrize("face", ["thread", "coroutine"])
def test_what_fails_after_the_attempt_is_undone_under_the_lock(face):
    table = rc.Table("t", capacity=4)
    undone = []

    def finish(tried):
        raise ValueError("no memory for the result")

    verb = PlainVerb("try", lambda: 7, finish=finish, undo=undone.append)
    core = table.core
    call = core.run if face == "thread" else lambda verb: asyncio.run(core.run_async(verb))
    with pytest.raises(ValueError, match="no memory"):
        call(verb)
    assert undone == [7]


def test_a_follower_that_raises_leaves_a_blocked_verb_alone():
    table = rc.Table("t", capacity=4, sampler=rc.Fifo())
    table.insert({"x": [1]})
    undone = []

    class Raises:
        def follow(self, effect):
            raise RuntimeError("not today")

        def settle(self, number):
            return

    table.follow(Raises())

    def attempt():
        table.core.left(0, "deleted", np.zeros(0, np.uint64))
        return 3

    with pytest.raises(RuntimeError, match="not today"):
        table.core.run(PlainVerb("try", attempt, undo=undone.append))
    assert undone == [3]


def test_a_verb_that_waits_too_long_names_its_call():
    table = rc.Table("t", capacity=4)
    verb = PlainVerb("look(3)", lambda: Blocked("needs a miracle")).within(0)
    with pytest.raises(rc.WaitTimeout, match=r"look\(3\) on table 't' timed out .* a miracle"):
        table.core.run(verb)


def test_counts_go_and_come_back_as_plain_data():
    counts = TableCounts(3, 2, 1)
    counts.left(4, "evicted")
    other = TableCounts()
    other.restore({**counts.capture(), "effects": 9})
    assert other == counts
    other.left(1, "taken")
    assert counts.removed == {"evicted": 4}, "what was captured is not shared"
    other.reset()
    assert other == TableCounts()
