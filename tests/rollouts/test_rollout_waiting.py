"""Waiting for groups: who sleeps, what wakes it, and that cancelling leaves no trace."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time

import numpy as np
import pytest
from callers import SOON, Caller

import recollect as rc
from recollect.table.waiting import ThreadWaiter

PATIENT = rc.Staleness(max_staleness=10_000)


def group(name=None, task="math", tokens=2, **options):
    made = rc.Rollout([1], list(range(tokens)), finish_reason="stop", **options)
    return rc.Group([made], task=task, group_id=name)


def made(**options):
    return rc.RolloutBuffer(**{"staleness": PATIENT, "order": rc.Fifo(), **options})


def names(groups):
    return [g.group_id for g in groups]


def waiting(buffer):
    stats = buffer.stats()
    return stats["waiting_to_insert"] + stats["waiting_to_sample"]


def visible_state(buffer):
    """All that a trace could show in."""
    stats = buffer.stats()
    for name in ("effects",):
        stats.pop(name)
    return stats, buffer.accounts(), buffer.counts(), len(buffer), list(buffer.table.columns)


# -- waking


def test_a_waiting_take_batch_wakes_on_the_put_that_completes_it():
    buffer = made().sync
    caller = Caller(lambda: buffer.take_batch({"math": 2, "code": 1}))
    buffer.put(group("a"), version=0)
    buffer.put(group("b", task="code"), version=0)
    assert caller.waits()
    buffer.put(group("c"), version=0)
    assert names(caller.done().groups["math"]) == ["a", "c"]


def test_a_waiting_take_batch_wakes_on_the_annotation_that_completes_it():
    buffer = made(needs=("reward",)).sync
    buffer.put(group("a", rollout_id="r"), version=0)
    caller = Caller(lambda: buffer.take_batch({"math": 1}))
    assert caller.waits()
    buffer.annotate(["r"], 0, reward=[1.0])
    assert names(caller.done().groups["math"]) == ["a"]


@pytest.mark.alone
@pytest.mark.parametrize("kind", ["put", "annotate"])
def test_a_waiter_wakes_within_milliseconds(kind):
    buffer = made(needs=("reward",)).sync
    delays = []
    for n in range(20):
        ready = kind == "put"
        if not ready:
            buffer.put(group(f"g{n}", rollout_id=f"r{n}"), version=0)
        caller = Caller(lambda: (buffer.take_batch({"math": 1}), time.perf_counter())[1])
        while not waiting(buffer):
            time.sleep(0.001)
        begin = time.perf_counter()
        if ready:
            buffer.put(group(f"g{n}", reward=1.0), version=0)
        else:
            buffer.annotate([f"r{n}"], 0, reward=[1.0])
        delays.append(caller.done() - begin)
    assert sorted(delays)[10] < 0.01, delays


def test_a_waiting_take_batch_wakes_when_a_lease_is_given_back_or_lapses():
    clock = rc.ManualClock()
    buffer = made(clock=clock).sync
    buffer.put(group("a"), version=0)
    lease = buffer.take_batch({"math": 1}, lease=True).lease
    caller = Caller(lambda: buffer.take_batch({"math": 1}, lease=10))
    assert caller.waits()
    buffer.give_back(lease)
    caller.done()
    caller = Caller(lambda: buffer.take_batch({"math": 1}))
    assert caller.waits()
    clock.advance(11)
    assert [g.deliveries for g in caller.done().groups["math"]] == [3]


def test_a_waiting_take_batch_wakes_at_a_deadline_of_the_real_clock():
    buffer = made().sync
    buffer.put(group("a"), version=0)
    buffer.take_batch({"math": 1}, lease=0.2)
    assert names(Caller(lambda: buffer.take_batch({"math": 1})).done().groups["math"]) == ["a"]


def test_a_waiting_claim_wakes_on_a_put_and_on_a_lapsed_claim():
    clock = rc.ManualClock()
    buffer = made(needs=("reward",), clock=clock).sync
    caller = Caller(lambda: buffer.claim(1, lacks="reward", lease=10))
    assert caller.waits()
    buffer.put(group("a"), version=0)
    assert names(caller.done()) == ["a"]
    caller = Caller(lambda: buffer.claim(1, lacks="reward"))
    assert caller.waits()
    clock.advance(11)
    assert names(caller.done()) == ["a"]


def test_a_waiting_claim_wakes_at_a_deadline_of_the_real_clock():
    buffer = made(needs=("reward",)).sync
    buffer.put(group("a"), version=0)
    buffer.claim(1, lacks="reward", lease=0.2)
    assert names(Caller(lambda: buffer.claim(1, lacks="reward")).done()) == ["a"]


def test_a_waiting_put_wakes_when_groups_are_taken_confirmed_or_expire():
    leaves = {
        "taken": lambda b: b.take(1),
        "confirmed": lambda b: b.confirm(b.take(1, lease=True).lease),
        "expired": lambda b: b.advance(5),
        "discarded": lambda b: b.discard([b.find("a")]),
        "sampled": lambda b: b.sample(1),
    }
    for name, leave in leaves.items():
        rule = rc.Staleness(on_expire="discard")
        buffer = made(capacity=1, staleness=rule).sync
        buffer.put(group("a"), version=0)
        caller = Caller(lambda buffer=buffer: buffer.put(group("b"), version=9))
        assert caller.waits(), name
        leave(buffer)
        assert caller.done() is not None, name


def test_a_waiting_take_batch_delays_nobody():
    buffer = made().sync
    caller = Caller(lambda: buffer.take_batch({"math": 100}))
    assert caller.waits()
    begin = time.monotonic()
    for n in range(50):
        buffer.put(group(f"c{n}", task="code"), version=0)
        assert names(buffer.take(1, "code")) == [f"c{n}"]
        buffer.put(group(f"m{n}"), version=0)
        assert len(buffer.take_batch({"math": 1}, timeout=0)) == 1
        buffer.advance(n + 2)
    assert time.monotonic() - begin < SOON
    assert caller.waits()
    buffer.close()
    with pytest.raises(rc.TableClosed):
        caller.done()


def test_a_waiter_sleeps_through_what_cannot_complete_its_batch(monkeypatch):
    counts = {"thread": 0}
    sleep = ThreadWaiter.sleep

    def counted(self, seconds):
        sleep(self, seconds)
        counts["thread"] += 1

    monkeypatch.setattr(ThreadWaiter, "sleep", counted)
    buffer = made().sync
    caller = Caller(lambda: buffer.take_batch({"math": 20, "code": 20}))
    while not waiting(buffer):
        time.sleep(0.001)
    for n in range(39):
        buffer.put(group(None, task="math" if n % 2 else "code"), version=0)
    assert counts["thread"] <= 1
    buffer.put(group(None, task="code"), version=0)
    buffer.put(group(None, task="math"), version=0)
    caller.done()
    assert counts["thread"] <= 4


def test_a_timeout_says_what_was_missing():
    buffer = made().sync
    buffer.put(group(), version=0)
    with pytest.raises(
        TimeoutError, match=r"math needs 3 groups, has 1 ready; code needs 2 groups"
    ):
        buffer.take_batch({"math": 3, "code": 2}, timeout=0.01)


# -- asyncio


def test_coroutines_wait_without_threads():
    async def main():
        buffer = made()
        before = set(threading.enumerate())
        takers = [asyncio.create_task(buffer.take_batch({"math": 1})) for _ in range(100)]
        claims = [asyncio.create_task(buffer.claim(1, lacks="x")) for _ in range(10)]
        await asyncio.sleep(0.01)
        assert set(threading.enumerate()) <= before
        for n in range(100):
            await buffer.put(group(str(n)), version=0)
        taken = await asyncio.wait_for(asyncio.gather(*takers), SOON)
        found = sorted(int(g.group_id) for one in taken for g in one.groups["math"])
        assert found == list(range(100))
        for claim in claims:
            claim.cancel()
        await asyncio.gather(*claims, return_exceptions=True)
        assert waiting(buffer) == 0

    asyncio.run(main())


def test_threads_and_coroutines_share_one_buffer():
    async def main():
        buffer = made()
        taker = asyncio.create_task(buffer.take_batch({"math": 2}))
        await asyncio.sleep(0)
        thread = Caller(lambda: [buffer.sync.put(group(n), version=0) for n in "ab"])
        taken = await asyncio.wait_for(taker, SOON)
        thread.done()
        return names(taken.groups["math"])

    assert asyncio.run(main()) == ["a", "b"]


CALLS = {
    "put": lambda b: b.put(group("late"), version=0),
    "replacing put": lambda b: b.put(
        group("late", tokens=5, arrays={"new": np.ones(5)}), version=0
    ),
    "take_batch": lambda b: b.take_batch({"math": 4, "code": 1}, lease=60),
    "sample": lambda b: b.sample(1, task="code"),
    "claim": lambda b: b.claim(1, lacks="logprobs", task="code"),
    "stale put": lambda b: b.put(group("late"), version=0),
}


@pytest.mark.parametrize("name", CALLS)
def test_cancelling_a_waiting_call_leaves_no_trace(name):
    async def main():
        rule = rc.Staleness() if name == "stale put" else PATIENT
        buffer = made(capacity=5, needs=("logprobs",), staleness=rule, clock=rc.ManualClock())
        for n in "abcde":
            await buffer.put(group(n, logprobs=[0, 0]), version=5)
        await buffer.advance(5)
        with pytest.raises(TimeoutError):
            await buffer.claim(1, lacks="logprobs", timeout=0)
        before = visible_state(buffer)
        for _ in range(3):
            task = asyncio.create_task(CALLS[name](buffer))
            await asyncio.sleep(0.01)
            assert not task.done()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert visible_state(buffer) == before
        assert [names(await buffer.take(9)), len(buffer)] == [list("abcde"), 0]
        await buffer.put(group("x"), version=5)

    asyncio.run(main())


def test_cancelling_an_annotation_that_waits_for_bytes_leaves_no_trace():
    async def main():
        buffer = made(capacity_bytes=400, clock=rc.ManualClock())
        await buffer.put(group("a", rollout_id="a", arrays={"x": np.zeros(1)}), version=0)
        await buffer.put(group("b", tokens=20), version=0)
        before = visible_state(buffer)
        room = 400 - buffer.nbytes
        cells = {"x": [np.zeros(room // 8 + 2)]}
        task = asyncio.create_task(buffer.annotate(["a"], 0, arrays=cells))
        await asyncio.sleep(0.01)
        assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert visible_state(buffer) == before
        assert (await buffer.take(1))[0][0].arrays["x"].tolist() == [0]

    asyncio.run(main())


def test_a_put_that_is_refused_adds_no_column():
    """Whoever puts the array first decides its type; who was turned away decides nothing."""
    buffer = made(capacity=1, overflow="raise").sync
    buffer.put(group("a"), version=0)
    before = list(buffer.table.columns)
    with pytest.raises(rc.BufferFull):
        buffer.put(group("b", arrays={"new": np.zeros(2)}), version=0)
    assert list(buffer.table.columns) == before
    buffer.take(1)
    buffer.put(group("c", arrays={"new": np.zeros((2, 3), np.int16)}), version=0)
    assert buffer.take(1)[0][0].arrays["new"].dtype == np.int16


def test_a_wait_that_timed_out_leaves_no_trace():
    buffer = made(clock=None).sync
    buffer.put(group("a"), version=0)
    before = len(buffer), buffer.counts()
    for call in (
        lambda: buffer.take_batch({"math": 2}, timeout=0.01, lease=5),
        lambda: buffer.sample(2, timeout=0.01),
        lambda: buffer.claim(1, lacks="logprobs", task="code", timeout=0.01),
    ):
        with pytest.raises(TimeoutError):
            call()
    assert (len(buffer), buffer.counts()) == before
    assert waiting(buffer) == 0


def test_a_coroutine_that_is_cancelled_as_it_wakes_loses_no_group():
    async def main():
        buffer = made()
        for _ in range(30):
            task = asyncio.create_task(buffer.take_batch({"math": 1}, lease=60))
            await asyncio.sleep(0)
            await buffer.put(group(), version=0)
            task.cancel()  # it was woken, and has not run yet
            outcome = (await asyncio.gather(task, return_exceptions=True))[0]
            if isinstance(outcome, rc.TakenBatch):
                await buffer.confirm(outcome.lease)
            else:
                assert buffer.count("math") == 1
                await buffer.take(1)
            assert len(buffer) == 0

    asyncio.run(main())


def test_both_faces_have_the_same_calls():
    def calls(face):
        return {name for name in dir(face) if not name.startswith("_")} - {"sync"}

    buffer = made()
    assert calls(buffer) == calls(buffer.sync)
    assert len(buffer) == len(buffer.sync) == 0
    for name in calls(buffer):
        both = (getattr(type(buffer), name), getattr(type(buffer.sync), name))
        if callable(both[0]):
            given = [list(inspect.signature(each).parameters.values()) for each in both]
            assert [(p.name, p.kind, p.default) for p in given[0]] == [
                (p.name, p.kind, p.default) for p in given[1]
            ], name


def test_who_waits_in_vain_is_told_of_failed_groups():
    buffer = made().sync
    buffer.put(rc.Group([rc.Rollout([1], [2], finish_reason="done")], task="math"))
    with pytest.raises(rc.WaitTimeout, match="math needs 1 group, has 0 ready and 1 FAILED"):
        buffer.take_batch({"math": 1}, timeout=0)


def test_a_closed_buffer_still_says_how_much_it_has():
    buffer = made().sync
    buffer.put(group())
    buffer.close()
    assert len(buffer) == 1
    with pytest.raises(rc.TableClosed):
        buffer.put(group())
