"""Room that is promised: `reserve` at once and in part, `reserve_all` with patience and whole."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import recollect as rc

PATIENT = rc.Staleness(max_staleness=99)


def group(name: str | None = None, task: str = "math", tokens: int = 2) -> rc.Group:
    rollout = rc.Rollout([1], list(range(tokens)), finish_reason="stop")
    return rc.Group([rollout], task=task, group_id=name)


def made(**options: Any) -> rc.RolloutBuffer:
    return rc.RolloutBuffer(**{"staleness": PATIENT, "order": rc.Fifo(), **options})


def visible_state(buffer: rc.RolloutBuffer) -> Any:
    stats = buffer.stats()
    return stats, buffer.accounts(), buffer.counts(), len(buffer)


# -- waiting for room


def test_reserve_all_is_immediate_where_there_is_room() -> None:
    buffer = made(capacity=3).sync
    assert buffer.reserve_all(2, "math", timeout=0) == 2
    assert buffer.reserve_all(0, "math", timeout=0) == 0
    assert made().sync.reserve_all(1000, "math") == 1000
    assert buffer.stats()["promised"] == {"math": 2}


FREEING: dict[str, Callable[[rc.RolloutBuffer], Any]] = {
    "take": lambda b: b.take(2),
    "advance": lambda b: b.advance(200),
    "discard": lambda b: b.discard([b.find("c"), b.find("d")]),
    "unreserve": lambda b: asyncio.sleep(0, b.unreserve(2, "code")),
}


@pytest.mark.parametrize("how", [*FREEING, "confirm"])
def test_reserve_all_wakes_on_the_departure_that_makes_room(how: str) -> None:
    async def main() -> None:
        discard = rc.Staleness(max_staleness=99, on_expire="discard")
        buffer = made(capacity=6, staleness=discard, archive=how == "confirm")
        for name in "abcd":
            await buffer.put(group(name), version=0)
        buffer.reserve(2, "code")
        taken = await buffer.take(2, lease=True)
        lease = taken.lease
        assert lease is not None
        waits = asyncio.create_task(buffer.reserve_all(2, "math"))
        await asyncio.sleep(0.01)
        assert not waits.done()
        assert buffer.stats()["promised"] == {"code": 2}, "some of it was promised"
        if how == "confirm":
            await buffer.confirm(lease)  # archived: they stay, and give way to what comes
            assert len(buffer) == 4
        else:
            await FREEING[how](buffer)
        assert await asyncio.wait_for(waits, 5) == 2
        for name in ("x", "y"):  # and the puts of what was promised never wait
            assert await asyncio.wait_for(buffer.put(group(name), version=199), 5) is not None

    asyncio.run(main())


def test_a_thread_waits_for_room_too() -> None:
    buffer = made(capacity=1).sync
    buffer.put(group("a"), version=0)
    got: list[int] = []
    thread = threading.Thread(target=lambda: got.append(buffer.reserve_all(1, "math")), daemon=True)
    thread.start()
    thread.join(0.05)
    assert thread.is_alive()
    assert buffer.reserve(1, "math") == 0
    buffer.take(1)
    thread.join(5)
    assert got == [1]
    assert buffer.put(group("b"), version=0) is not None


def test_a_timeout_says_what_is_missing_and_promises_nothing() -> None:
    buffer = made(capacity=4).sync
    buffer.put(group(), version=0)
    buffer.reserve(2, "code")
    for timeout in (0, 0.01):
        with pytest.raises(rc.WaitTimeout, match="room for 2 groups, has it for 1: 1 of 4 groups"):
            buffer.reserve_all(2, "math", timeout=timeout)
    assert buffer.stats()["promised"] == {"code": 2}
    assert buffer.stats()["waiting_to_insert"] == 0


def test_a_cancelled_wait_leaves_nothing() -> None:
    async def main() -> None:
        buffer = made(capacity=2, clock=rc.ManualClock())
        for name in "ab":
            await buffer.put(group(name), version=0)
        before = visible_state(buffer)
        for _ in range(3):
            waits = asyncio.create_task(buffer.reserve_all(1, "math"))
            await asyncio.sleep(0.01)
            waits.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waits
        assert visible_state(buffer) == before
        waits = asyncio.create_task(buffer.reserve_all(1, "math"))
        await asyncio.sleep(0.01)
        await buffer.take(1)
        waits.cancel()  # it was woken, and has not run yet
        assert isinstance((await asyncio.gather(waits, return_exceptions=True))[0], BaseException)
        assert buffer.stats()["promised"] == {}

    asyncio.run(main())


def test_what_can_never_be_promised_says_so_at_once() -> None:
    buffer = made(capacity=2).sync
    with pytest.raises(rc.NeverPossible, match="room for 3 groups is never there"):
        buffer.reserve_all(3, "math")
    with pytest.raises(rc.InvalidValue, match="timeout"):
        buffer.reserve_all(1, "math", timeout=-1)
    with pytest.raises(rc.InvalidValue, match="n: "):
        buffer.reserve_all(-1, "math")


def test_producers_that_wait_for_room_store_everything_and_never_poll() -> None:
    """More producers than room: each waits once per group, and the trainer lets them go on."""

    async def main() -> None:
        buffer = made(capacity=4)
        producers, each = 8, 5

        async def produce() -> None:
            for _ in range(each):
                await buffer.reserve_all(1, "math")
                await asyncio.sleep(0)  # a generation
                put = asyncio.ensure_future(buffer.put(group(), version=0))
                await asyncio.sleep(0)
                assert put.done(), "the put of a reserved group waits"
                assert put.result() is not None
                assert len(buffer) + sum(buffer.stats()["promised"].values()) <= 4

        async def train() -> None:
            for _ in range(producers * each // 2):
                await buffer.take_batch({"math": 2})

        await asyncio.wait_for(asyncio.gather(train(), *(produce() for _ in range(producers))), 30)
        assert buffer.accounts()["math"]["left"] == {"taken": producers * each}
        assert buffer.stats()["promised"] == {}

    asyncio.run(main())


# -- what gives way


def test_archived_groups_give_way_to_what_is_reserved() -> None:
    buffer = made(capacity=2, archive=True).sync
    for name in "ab":
        buffer.put(group(name), version=0)
    buffer.confirm(buffer.take(2, lease=True).lease)
    assert buffer.reserve(2, "math") == 2
    assert buffer.put(group("c"), version=0) is not None
    assert [g.group_id for g in buffer.trained_at(1)] == ["b"]


def test_leased_groups_do_not_give_way_where_the_stalest_are_dropped() -> None:
    buffer = made(capacity=3, overflow="drop_stalest").sync
    for name in "abc":
        buffer.put(group(name), version=0)
    buffer.take(2, lease=True)
    assert buffer.reserve(3, "math") == 1
    assert buffer.put(group("d"), version=0) is not None


def test_nothing_is_promised_while_no_byte_is_free() -> None:
    buffer = made(capacity_bytes=200).sync
    size = 0
    while buffer.nbytes + size <= 200:
        buffer.put(group(tokens=9), version=0)
        size = buffer.nbytes // len(buffer)
    full = made(capacity_bytes=buffer.nbytes).sync
    for _ in range(len(buffer)):
        full.put(group(tokens=9), version=0)
    assert full.nbytes == buffer.nbytes
    assert full.reserve(1, "math") == 0
    full.take(1)
    assert full.reserve(1, "math") == 1


def test_archived_groups_leave_for_nobody_who_does_not_come_in() -> None:
    for overflow in ("block", "drop_newest", "raise"):
        buffer = made(capacity=2, archive=True, overflow=overflow)
        for name in "ab":
            buffer.sync.put(group(name), version=0)
        buffer.sync.confirm(buffer.sync.take(1, lease=True).lease)
        assert buffer.reserve(1, "code") == 1  # beside b; and a gives way when it comes

        async def put(buffer: rc.RolloutBuffer = buffer) -> int | None:
            return await asyncio.wait_for(buffer.put(group("c"), version=0), 0.01)

        if overflow == "drop_newest":
            assert asyncio.run(put()) is None
        else:
            with pytest.raises(TimeoutError if overflow == "block" else rc.BufferFull):
                asyncio.run(put())
        assert [g.group_id for g in buffer.sync.trained_at(1)] == ["a"]
        assert buffer.sync.put(group("d", task="code"), version=0) is not None
        assert buffer.sync.trained_at(1) == []


def test_a_group_that_comes_again_from_the_archive_takes_no_promised_room() -> None:
    buffer = made(capacity=2, archive=True, overflow="raise").sync
    for name in "ab":
        buffer.put(group(name), version=0)
    buffer.confirm(buffer.take(1, lease=True).lease)
    assert buffer.reserve(1, "code") == 1
    with pytest.raises(rc.BufferFull):
        buffer.put(group("a"), version=0)
    assert buffer.put(group("c", task="code"), version=0) is not None


@pytest.mark.parametrize("call", ["put", "reserve_all"])
def test_a_group_that_comes_back_too_old_makes_room_for_who_waits(call: str) -> None:
    async def main() -> None:
        clock = rc.ManualClock()
        rule = rc.Staleness(on_expire="discard")
        buffer = made(capacity=1, staleness=rule, clock=clock)
        await buffer.put(group("a"), version=0)
        await buffer.take(1, lease=10)
        await buffer.advance(5)
        waiting = buffer.put(group("b"), version=4)
        if call == "reserve_all":
            waiting.close()
            waiting = buffer.reserve_all(1, "math")
        task = asyncio.create_task(waiting)
        await asyncio.sleep(0.01)
        assert not task.done()
        clock.advance(11)  # the lease lapses, and what comes back leaves at once
        assert await asyncio.wait_for(task, 5)
        assert buffer.accounts()["math"]["left"] == {"expired": 1}

    asyncio.run(main())


# -- a promise is kept whatever is leased


def put_now(buffer: rc.RolloutBuffer, new: rc.Group, version: int = 0) -> int | None:
    """Put without waiting."""
    return asyncio.run(asyncio.wait_for(buffer.put(new, version=version), 0.1))


STORAGES: dict[str, Callable[[Path], Any]] = {
    "memory": lambda folder: rc.MemoryStorage(),
    "frame": lambda folder: rc.FrameStorage(),
    "sql": lambda folder: rc.SqlStorage(f"sqlite:///{folder}/groups.db"),
}


@pytest.mark.parametrize("storage", STORAGES)
def test_a_reserved_group_comes_in_though_all_that_might_give_way_is_leased(
    storage: str, tmp_path: Path
) -> None:
    buffer = made(capacity=2, overflow="drop_stalest", storage=STORAGES[storage](tmp_path))
    for name in "ab":
        buffer.sync.put(group(name), version=0)
    assert buffer.reserve(2, "math") == 2
    lease = buffer.sync.take_batch({"math": 2}, lease=True).lease
    for name in "cd":
        assert put_now(buffer, group(name)) is not None
    assert (len(buffer), buffer.stats()["promised"]) == (4, {})
    assert buffer.reserve(1, "math") == 0
    with pytest.raises(TimeoutError):  # nobody promised it room
        put_now(buffer, group("e"))
    buffer.sync.give_back(lease)
    assert put_now(buffer, group("f")) is not None  # and so much leaves as is too much
    assert len(buffer) == 2
    account = buffer.accounts()["math"]
    assert (account["put"], account["left"]) == (5, {"overflow": 3})


def test_no_room_is_promised_again_before_what_is_above_the_capacity_has_left() -> None:
    buffer = made(capacity=2, overflow="drop_stalest")
    for _ in range(3):
        assert buffer.reserve(2, "math") == 2
        assert len(buffer) <= 2
        lease = buffer.sync.take(9, lease=True).lease
        for _ in range(2):
            assert put_now(buffer, group()) is not None
        assert len(buffer) <= 4
        if lease is not None:
            buffer.sync.give_back(lease)


@pytest.mark.parametrize("overflow", ["block", "drop_stalest", "drop_newest", "raise"])
def test_a_reserved_group_comes_in_though_all_other_bytes_are_leased(overflow: str) -> None:
    size = made().sync
    size.put(group("a", tokens=50), version=0)
    buffer = made(capacity_bytes=2 * size.nbytes + size.nbytes // 2, overflow=overflow)
    for name in "ab":
        buffer.sync.put(group(name, tokens=50), version=0)
    assert buffer.reserve(1, "math") == 1
    lease = buffer.sync.take_batch({"math": 2}, lease=True).lease
    assert put_now(buffer, group("c", tokens=50)) is not None
    assert len(buffer) == 3
    assert buffer.stats()["promised"] == {}
    if overflow == "raise":  # what nobody promised room does what overflow says
        with pytest.raises(rc.BufferFull):
            put_now(buffer, group("d", tokens=50))
    elif overflow == "drop_newest":
        assert put_now(buffer, group("d", tokens=50)) is None
    else:
        with pytest.raises(TimeoutError):
            put_now(buffer, group("d", tokens=50))
    assert len(buffer) == 3
    buffer.sync.confirm(lease)
    assert put_now(buffer, group("e", tokens=50)) is not None
    assert buffer.nbytes <= buffer.stats()["capacity_bytes"]


@pytest.mark.parametrize("overflow", ["block", "drop_newest", "raise"])
def test_a_reserved_group_comes_in_though_the_archive_is_leased(overflow: str) -> None:
    buffer = made(capacity=1, overflow=overflow, archive=True)
    buffer.sync.put(group("a"), version=0)
    buffer.sync.confirm(buffer.sync.take(1, lease=True).lease)
    assert buffer.reserve(1, "math") == 1
    assert len(buffer.sync.take(1, status="ARCHIVED", lease=True)) == 1
    assert put_now(buffer, group("b")) is not None
    assert len(buffer) == 2


def test_what_came_in_above_the_capacity_is_saved_and_counted(tmp_path: Path) -> None:
    def opened() -> rc.RolloutBuffer:
        return made(capacity=2, overflow="drop_stalest")

    buffer = opened()
    for n, name in enumerate("ab"):
        buffer.sync.put(group(name), version=n)
    buffer.reserve(1, "math")
    buffer.sync.take_batch({"math": 2}, lease=True)
    assert put_now(buffer, group("c"), version=2) is not None
    buffer.save(tmp_path / "full")
    again = opened()
    again.load(tmp_path / "full")  # where leases count as given back: the stalest leaves
    assert [g.group_id for g in again.sync.take(9, lease=True)] == ["b", "c"]
    account = again.accounts()["math"]
    assert account["put"] == account["stored"] + account["leased"] + sum(account["left"].values())


def test_a_journal_keeps_what_came_in_above_the_capacity(tmp_path: Path) -> None:
    buffer = made(capacity=2, overflow="drop_stalest", journal=tmp_path / "j")
    for name in "ab":
        buffer.sync.put(group(name), version=0)
    buffer.close()
    buffer = made(capacity=2, overflow="drop_stalest", journal=tmp_path / "j")
    assert buffer.reserve(1, "math") == 1
    buffer.sync.take_batch({"math": 2}, lease=True)
    assert put_now(buffer, group("c")) is not None
    assert len(buffer) == 3
    buffer.close()
    buffer = made(capacity=2, overflow="drop_stalest", journal=tmp_path / "j")
    assert len(buffer) == 2
    assert buffer.find("c") is not None
