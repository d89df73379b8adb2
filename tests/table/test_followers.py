"""Those who follow, and calls that fail or are cancelled while they are made safe."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from faulty_files import Faulty

import recollect as rc
from recollect.durability.journal.open_journal import OpenJournal
from recollect.table.journaled import JournaledTable


def group(name: str = "", task: str = "m") -> rc.Group:
    rollouts = [rc.Rollout([1], [2, 3], finish_reason="stop") for _ in range(2)]
    return rc.Group(rollouts, task=task, **({"group_id": name} if name else {}))


class Follower:
    """Does something with each effect; settles when it is let."""

    def __init__(self, then: Callable[[rc.Effect], object] = lambda _: None) -> None:
        self.seen: list[str] = []
        self.settles = threading.Event()
        self.settles.set()
        self._then = then

    def follow(self, effect: rc.Effect) -> None:
        self.seen.append(type(effect).__name__)
        self._then(effect)

    def settle(self, number: int) -> None:
        assert self.settles.wait(30)


def test_a_follower_that_raises_leaves_the_buffer_as_whole_as_before() -> None:
    def raise_at_the_second(_: rc.Effect) -> None:
        if len(follower.seen) == 2:
            raise RuntimeError("a bug in a viewer")

    buffer = rc.RolloutBuffer().sync
    follower = Follower(raise_at_the_second)
    unfollow = buffer.table.follow(follower)
    buffer.put(group("a"), version=0)
    with pytest.raises(RuntimeError, match="a bug in a viewer"):
        buffer.put(group("b"), version=0)  # the change stays, and the caller gets the error
    unfollow()
    assert buffer.find("b") is not None
    assert [g.group_id for g in buffer.take_batch({"m": 2}, timeout=0).groups["m"]] == ["a", "b"]
    assert len(buffer) == 0


def test_a_follower_may_read_the_group_that_came() -> None:
    read: list[str] = []
    buffer = rc.RolloutBuffer().sync

    def read_it(effect: rc.Effect) -> None:
        if isinstance(effect, rc.Inserted):
            read.extend(g.group_id for g in buffer.get(effect.keys))

    buffer.table.follow(Follower(read_it))
    buffer.put(group("a"), version=0)
    buffer.put(group("a"), version=1)  # in place of the first
    buffer.put(group("b"), version=1)
    assert read == ["a", "a", "b"]
    assert len(buffer.take_batch({"m": 2}, timeout=0)) == 2


def test_a_follower_that_raises_at_a_lease_leaves_nothing_leased() -> None:
    def raise_at_a_lease(effect: rc.Effect) -> None:
        if isinstance(effect, rc.Leased):
            raise RuntimeError("a bug in a viewer")

    table = rc.Table("t", capacity=10, sampler=rc.Fifo())
    buffer = rc.RolloutBuffer().sync
    for followed in (table, buffer.table):
        followed.follow(Follower(raise_at_a_lease))
    table.insert({"x": [1]})
    buffer.put(group(), version=0)
    with pytest.raises(RuntimeError, match="a bug in a viewer"):
        table.take(1, lease=60)
    with pytest.raises(RuntimeError, match="a bug in a viewer"):
        buffer.take_batch({"m": 1}, lease=True)
    for stats in (table.stats(), buffer.stats()):
        assert (stats["leases"], stats["leased"]) == (0, 0)
    assert len(table.take(1, timeout=0)) == len(buffer.take_batch({"m": 1}, timeout=0)) == 1


def test_who_follows_while_a_call_waits_is_told_of_it() -> None:
    follower = Follower()

    async def main() -> None:
        buffer = rc.RolloutBuffer()
        waiting = asyncio.create_task(buffer.take_batch({"m": 1}))
        await asyncio.sleep(0)
        buffer.table.follow(follower)
        await buffer.put(group(), version=0)
        await waiting

    asyncio.run(main())
    assert follower.seen == ["Inserted", "Removed"]


async def cancelled(call: Any, follower: Follower) -> None:
    """Let a call go ahead, and cancel it while it is made safe."""
    follower.settles.clear()
    task = asyncio.ensure_future(call)
    await asyncio.sleep(0.05)
    assert not task.done()
    task.cancel()
    follower.settles.set()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_cancelled_take_gives_its_lease_back() -> None:
    async def main() -> None:
        table = rc.Table.queue("q", 10)
        follower = Follower()
        table.follow(follower)
        table.insert({"x": [1, 2]})
        await cancelled(table.take_async(1, lease=60), follower)
        assert table.stats()["leases"] == table.stats()["leased"] == 0
        assert follower.seen == ["Inserted", "Leased", "Returned"]
        assert table.take(2, timeout=0)["x"].tolist() == [1, 2]

    asyncio.run(main())


@pytest.mark.parametrize("verb", ["take", "take_batch", "claim"])
def test_a_cancelled_call_of_a_buffer_gives_its_lease_back(verb: str) -> None:
    async def main() -> None:
        buffer = rc.RolloutBuffer()
        follower = Follower()
        buffer.table.follow(follower)
        await buffer.put(group("a"), version=0)
        call: Any = {
            "take": lambda: buffer.take(1, lease=True),
            "take_batch": lambda: buffer.take_batch({"m": 1}, lease=60),
            "claim": lambda: buffer.claim(1, lacks="reward", lease=True),
        }[verb]
        await cancelled(call(), follower)
        stats = buffer.stats()
        assert (stats["leases"], stats["leased"], stats["claimed"]) == (0, 0, 0)
        assert buffer.core.lease_steps == {}
        assert len(await call()) == 1  # at once, and nobody has to wait for a deadline

    asyncio.run(main())


def test_a_lease_that_could_not_be_made_safe_is_given_back(tmp_path: Path) -> None:
    table = rc.Table("t", capacity=10, sampler=rc.Fifo())
    files = Faulty()
    journal = rc.Journal(tmp_path, sync="always")
    table.core.journal = OpenJournal(journal, [JournaledTable(table.core)], files=files)
    table.insert({"x": [1]})
    files.fail_at = len(files.log) + 1
    with pytest.raises(rc.JournalError, match="cannot be written"):
        table.take(1, lease=60)
    assert table.stats()["leases"] == 0
    assert table.take(1, timeout=0, lease=60)["x"].tolist() == [1]
    table.close()
