"""Waiting: who sleeps, what wakes it, what it says when time is over. Nothing polls."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time

import numpy as np
import pytest
from callers import MOMENT, SOON, Caller, until

import recollect as rc
from recollect.table.waiting import TaskWaiter, ThreadWaiter


def waiting(table):
    stats = table.stats()
    return stats["waiting_to_insert"] + stats["waiting_to_sample"]


@pytest.fixture
def wake_ups(monkeypatch):
    """Counts how often sleepers woke up."""
    counts = {"thread": 0, "task": 0}
    sleep, sleep_async = ThreadWaiter.sleep, TaskWaiter.sleep

    def counted(self, seconds):
        sleep(self, seconds)
        counts["thread"] += 1

    async def counted_async(self, seconds):
        await sleep_async(self, seconds)
        counts["task"] += 1

    monkeypatch.setattr(ThreadWaiter, "sleep", counted)
    monkeypatch.setattr(TaskWaiter, "sleep", counted_async)
    return counts


# -- blocking


def test_sampling_blocks_until_the_limiter_opens_and_wakes_on_the_insert_that_opens_it():
    table = rc.Table("t", capacity=10, limiter=rc.MinSize(3))
    caller = Caller(lambda: table.sample(4))
    table.insert({"x": [0]})
    table.insert({"x": [1]})
    assert caller.waits()
    table.insert({"x": [2]})
    assert caller.done().rows == 4
    assert waiting(table) == 0


def test_the_eleventh_insert_into_a_queue_of_ten_blocks_until_one_is_taken():
    queue = rc.Table.queue("q", 10)
    for i in range(10):
        queue.insert({"x": [i]}, timeout=0)
    caller = Caller(lambda: queue.insert({"x": [10]}))
    assert caller.waits()
    assert queue.take(1)["x"].tolist() == [0]
    assert len(caller.done()) == 1
    assert queue.take(10)["x"].tolist() == list(range(1, 11))


def test_a_queue_of_one_hands_over_item_by_item():
    queue = rc.Table.queue("q", 1)
    producer = Caller(lambda: [queue.insert({"x": [i]}) for i in range(200)])
    got = [queue.take(1)["x"][0] for _ in range(200)]
    producer.done()
    assert got == list(range(200))


def test_many_producers_and_consumers_of_a_small_queue_lose_and_repeat_nothing():
    queue = rc.Table.queue("q", 3)

    def produce(first):
        for i in range(first, first + 100):
            queue.insert({"x": [i]})

    producers = [Caller(lambda n=n: produce(100 * n)) for n in range(4)]
    consumers = [
        Caller(lambda: [int(queue.sample(1)["x"][0]) for _ in range(100)]) for _ in range(4)
    ]
    got = [x for consumer in consumers for x in consumer.done(30)]
    for producer in producers:
        producer.done(30)
    assert sorted(got) == list(range(400))


def test_a_waiting_caller_never_delays_another():
    table = rc.Table("t", capacity=10, sampler=rc.Fifo())
    table.insert({"x": np.arange(3)})
    caller = Caller(lambda: table.sample(8))
    assert caller.waits()
    assert table.sample(2)["x"].tolist() == [0, 1]
    assert table.take(1)["x"].tolist() == [0]
    table.insert({"x": np.arange(10, 16)})
    assert caller.done()["x"].tolist() == [2, *range(10, 16), 1]


def test_removing_below_min_size_closes_sampling_again():
    table = rc.Table("t", capacity=10, limiter=rc.MinSize(3))
    keys = table.insert({"x": np.arange(3)})
    table.sample(1, timeout=0)
    table.delete(keys[:1])
    caller = Caller(lambda: table.sample(1))
    assert caller.waits()
    table.insert({"x": [9]})
    caller.done()


def test_an_update_wakes_those_who_wait_for_a_query():
    table = rc.Table("t", capacity=10, partition_by=("status",))
    keys = table.insert({"x": np.arange(3)}, status="new")
    caller = Caller(lambda: table.take(1, where=rc.field("status") == "done"))
    assert caller.waits()
    table.update(keys[1:2], status="done")
    assert caller.done()["x"].tolist() == [1]


def test_an_insert_that_does_not_match_leaves_those_who_wait_for_a_query_asleep():
    table = rc.Table("t", capacity=10)
    caller = Caller(lambda: table.sample(1, where=rc.field("task") == "math"))
    table.insert({"x": [0]}, task="code")
    assert caller.waits()
    table.insert({"x": [1]}, task="math")
    assert caller.done()["x"].tolist() == [1]


def test_assigning_a_limiter_wakes_those_who_wait():
    table = rc.Table("t", capacity=10, limiter=rc.MinSize(5))
    table.insert({"x": [0]})
    sampler = Caller(lambda: table.sample(1))
    assert sampler.waits()
    table.limiter = rc.MinSize(1)
    sampler.done()
    table.limiter = rc.Queue(1)
    inserter = Caller(lambda: table.insert({"x": [1]}))
    assert inserter.waits()
    table.limiter = rc.MinSize(1)
    inserter.done()


def test_a_waiter_that_a_new_rule_can_never_serve_says_so():
    table = rc.Table("t", capacity=10)
    caller = Caller(lambda: table.sample(8, replace=False))
    assert caller.waits()
    table.limiter = rc.Queue(5)
    with pytest.raises(rc.NeverPossible, match="Queue"):
        caller.done()
    assert waiting(table) == 0


def test_samples_ahead_of_inserts_wait_and_the_other_way_round():
    limiter = rc.SampleToInsertRatio(1.0, min_size=1, error_buffer=2.0)
    table = rc.Table("t", capacity=100, limiter=limiter)
    table.insert({"x": np.arange(3)})
    inserter = Caller(lambda: table.insert({"x": [9]}))
    assert inserter.waits()
    table.sample(1)
    inserter.done()
    table.sample(3, timeout=0)
    table.sample(1, timeout=0)
    sampler = Caller(lambda: table.sample(1))
    assert sampler.waits()
    table.insert({"x": [9]})
    sampler.done()


def test_a_partial_take_waits_for_at_least_one():
    queue = rc.Table.queue("q", 10)
    caller = Caller(lambda: queue.take(5, partial=True))
    assert caller.waits()
    queue.insert({"x": [1, 2]})
    assert caller.done()["x"].tolist() == [1, 2]


def test_deleting_makes_room_for_an_insert_that_waits():
    queue = rc.Table.queue("q", 2)
    keys = queue.insert({"x": [0, 1]})
    caller = Caller(lambda: queue.insert({"x": [2]}))
    assert caller.waits()
    queue.delete(keys[:1])
    caller.done()
    assert queue.take(2)["x"].tolist() == [1, 2]


def test_clearing_makes_room_for_an_insert_that_waits():
    queue = rc.Table.queue("q", 2)
    queue.insert({"x": [0, 1]})
    caller = Caller(lambda: queue.insert({"x": [2, 3]}))
    assert caller.waits()
    queue.clear()
    caller.done()


def test_two_first_inserts_that_disagree_leave_the_columns_of_one():
    queue = rc.Table.queue("q", 1)
    queue.insert({"x": [0]})
    caller = Caller(lambda: queue.insert({"x": [1]}))
    assert caller.waits()
    queue.add_column("y", "int8")
    queue.take(1)
    keys = caller.done()
    assert queue.get(keys).present["y"].tolist() == [False]


# -- leases


def test_an_insert_that_could_only_evict_leased_items_waits():
    table = rc.Table("t", capacity=2, sampler=rc.Fifo())
    table.insert({"x": [0, 1]})
    lease = table.take(2, lease=60).info.lease
    caller = Caller(lambda: table.insert({"x": [2]}))
    assert caller.waits()
    table.confirm(lease)
    caller.done()
    assert len(table) == 1


def test_given_back_items_wake_those_who_wait():
    table = rc.Table("t", capacity=2)
    table.insert({"x": [0]})
    lease = table.take(1, lease=60).info.lease
    caller = Caller(lambda: table.sample(1))
    assert caller.waits()
    table.give_back(lease)
    assert caller.done()["x"].tolist() == [0]


def test_a_deadline_wakes_those_who_wait_by_hand():
    clock = rc.ManualClock()
    table = rc.Table("t", capacity=2, clock=clock)
    table.insert({"x": [0]})
    table.take(1, lease=60)
    caller = Caller(lambda: table.take(1))
    clock.advance(59)
    assert caller.waits()
    clock.advance(2)
    assert caller.done().info.deliveries.tolist() == [2]


def test_a_deadline_wakes_those_who_wait_by_the_real_clock():
    table = rc.Table("t", capacity=2)
    table.insert({"x": [0]})
    begin = time.monotonic()
    table.take(1, lease=0.2)
    caller = Caller(lambda: table.take(1))
    assert caller.done()["x"].tolist() == [0]
    assert time.monotonic() - begin >= 0.19


def test_a_lease_taken_while_others_wait_wakes_them_at_its_deadline():
    table = rc.Table("t", capacity=4, sampler=rc.Fifo())
    table.insert({"x": [0, 1]})
    caller = Caller(lambda: table.take(3))
    assert caller.waits()
    table.take(2, lease=0.2)
    table.insert({"x": [2]})
    assert caller.done()["x"].tolist() == [0, 1, 2]


def test_a_deadline_far_away_disturbs_no_other_waiter():
    table = rc.Table("t", capacity=4, sampler=rc.Fifo())
    table.insert({"x": [0]})
    table.take(1, lease=1e12)
    caller = Caller(lambda: table.take(1, timeout=1e12))
    assert caller.waits()
    table.insert({"x": [1]})
    assert caller.done()["x"].tolist() == [1]


def test_renewing_a_lease_moves_the_moment_that_waiters_wait_for():
    clock = rc.ManualClock()
    table = rc.Table("t", capacity=2, clock=clock)
    table.insert({"x": [0]})
    lease = table.take(1, lease=10).info.lease
    caller = Caller(lambda: table.take(1))
    table.renew(lease, 100)
    clock.advance(50)
    assert caller.waits()
    clock.advance(51)
    caller.done()


# -- timeouts


def test_timeout_none_waits_and_zero_tries_once():
    table = rc.Table("t", capacity=10)
    assert Caller(lambda: table.sample(1)).waits()
    begin = time.monotonic()
    with pytest.raises(TimeoutError):
        table.sample(1, timeout=0)
    assert time.monotonic() - begin < SOON
    table.close()


def test_a_number_waits_that_many_seconds():
    table = rc.Table("t", capacity=10)
    begin = time.monotonic()
    with pytest.raises(rc.WaitTimeout):
        table.sample(1, timeout=0.15)
    assert 0.14 < time.monotonic() - begin < SOON


def test_a_timeout_says_what_it_waited_for():
    table = rc.Table("replay", capacity=5000, limiter=rc.MinSize(1000))
    table.insert({"x": np.arange(963)})
    with pytest.raises(TimeoutError) as raised:
        table.sample(64, replace=False, timeout=0.01)
    message = str(raised.value)
    assert "sample(64) on table 'replay' timed out after 0.01 s" in message
    assert "needs 64 items, has 963" in message
    assert "MinSize" in message
    assert "1000" in message
    assert "needs 37 more inserts" in message


def test_a_timeout_of_an_insert_says_what_it_waited_for():
    queue = rc.Table.queue("q", 3)
    queue.insert({"x": [0, 1, 2]})
    with pytest.raises(TimeoutError, match=r"Queue\(3\) needs 1 more sample or removal"):
        queue.insert({"x": [3]}, timeout=0.01)


def test_a_timeout_of_a_query_says_how_many_there_are():
    table = rc.Table("t", capacity=9, sampler=rc.Fifo())
    table.insert({"x": np.arange(3)}, task=["a", "b", "a"])
    with pytest.raises(TimeoutError, match=r"take\(3\).*needs 3 items, has 2"):
        table.take(3, where=rc.field("task") == "a", timeout=0.01)


def test_a_timeout_runs_on_the_tables_clock():
    clock = rc.ManualClock()
    table = rc.Table("t", capacity=10, clock=clock)
    caller = Caller(lambda: table.sample(1, timeout=30))
    until(lambda: waiting(table) == 1)
    clock.advance(29)
    assert caller.waits()
    clock.advance(1)
    with pytest.raises(TimeoutError, match="30 s"):
        caller.done()
    assert waiting(table) == 0


def test_a_timed_out_call_changes_nothing():
    queue = rc.Table.queue("q", 2)
    queue.insert({"x": [0, 1]})
    before = queue.stats()
    with pytest.raises(TimeoutError):
        queue.insert({"x": [2]}, timeout=0.01)
    with pytest.raises(TimeoutError):
        queue.sample(1, where=rc.field("task") == "a", timeout=0.01)
    assert queue.stats() == before


def test_a_timeout_of_any_length_is_accepted():
    table = rc.Table("t", capacity=10)
    callers = [Caller(lambda t=t: table.sample(1, timeout=t)) for t in (1e10, 1e300, float("inf"))]
    assert all(caller.waits() for caller in callers)
    table.insert({"x": [0]})
    for caller in callers:
        caller.done()


# -- closing


def test_close_wakes_every_waiter_with_table_closed():
    table = rc.Table.queue("q", 2)
    table.insert({"x": [0, 1]})
    callers = [Caller(lambda: table.insert({"x": [2]})) for _ in range(3)]
    where = rc.field("task") == "none"
    callers += [Caller(lambda: table.sample(1, where=where)) for _ in range(3)]
    callers += [Caller(lambda: table.take(1, where=where, timeout=60)) for _ in range(3)]
    until(lambda: waiting(table) == 9)
    table.close()
    for caller in callers:
        with pytest.raises(rc.TableClosed, match="'q'"):
            caller.done()


def test_closing_twice_is_fine():
    table = rc.Table("t", capacity=1)
    table.close()
    table.close()


def test_close_wakes_coroutines_from_another_thread():
    async def main():
        table = rc.Table("t", capacity=1)
        threading.Timer(0.05, table.close).start()
        with pytest.raises(rc.TableClosed):
            await asyncio.wait_for(table.sample_async(1), SOON)
        return table

    assert asyncio.run(main()).core.gate.arrivals.waiters == []


# -- async


def test_async_faces_do_the_same_as_the_others():
    async def main():
        table = rc.Table("t", capacity=10, sampler=rc.Fifo(), tags={"score": float})
        keys = await table.insert_async(
            {"x": np.arange(4)}, rows_per_item=2, shared={"p": ["a", "b"]}, priority=[1.0, 2.0],
            task="math", score=[0.1, 0.2], request=("actor", 1), timeout=1,
        )  # fmt: skip
        again = await table.insert_async(
            {"x": np.arange(4)}, rows_per_item=2, shared={"p": ["a", "b"]}, request=("actor", 1)
        )
        assert again.tolist() == keys.tolist()
        sampled = await table.sample_async(1, where=rc.field("score") > 0.15, replace=False)
        assert sampled["x"].tolist() == [2, 3]
        leased = await table.take_async(5, partial=True, lease=60, owner="me")
        assert leased.info.lease.owner == "me"
        assert table.release("me") == 1
        taken = await table.take_async(2, timeout=0)
        assert taken.shared["p"].to_list() == ["a", "b"]

    asyncio.run(main())


def test_hundreds_of_waiting_coroutines_use_no_thread():
    async def main():
        table = rc.Table.queue("q", 500)
        threads = set(threading.enumerate())
        tasks = [asyncio.create_task(table.take_async(1)) for _ in range(300)]
        await asyncio.sleep(MOMENT)
        assert table.stats()["waiting_to_sample"] == 300
        assert set(threading.enumerate()) <= threads
        table.insert({"x": np.arange(300)})
        batches = await asyncio.wait_for(asyncio.gather(*tasks), SOON)
        assert sorted(int(b["x"][0]) for b in batches) == list(range(300))
        assert table.stats()["waiting_to_sample"] == 0

    asyncio.run(main())


def test_inserts_of_coroutines_wait_too():
    async def main():
        queue = rc.Table.queue("q", 1)
        tasks = [asyncio.create_task(queue.insert_async({"x": [i]})) for i in range(50)]
        got = []
        for _ in range(50):
            batch = await asyncio.wait_for(queue.take_async(1), SOON)
            got.append(int(batch["x"][0]))
        await asyncio.gather(*tasks)
        return got

    assert sorted(asyncio.run(main())) == list(range(50))


def test_a_thread_wakes_a_coroutine():
    async def main():
        table = rc.Table("t", capacity=4)
        threading.Timer(0.05, lambda: table.insert({"x": [7]})).start()
        batch = await asyncio.wait_for(table.sample_async(1), SOON)
        return batch["x"].tolist()

    assert asyncio.run(main()) == [7]


def test_a_coroutine_wakes_a_thread():
    table = rc.Table("t", capacity=4)
    caller = Caller(lambda: table.sample(1))

    async def main():
        await table.insert_async({"x": [7]})

    asyncio.run(main())
    assert caller.done()["x"].tolist() == [7]


def test_coroutines_of_several_loops_wait_for_one_table():
    table = rc.Table.queue("q", 10)

    async def take():
        return int((await table.take_async(1))["x"][0])

    callers = [Caller(lambda: asyncio.run(take())) for _ in range(5)]
    until(lambda: waiting(table) == 5)
    table.insert({"x": np.arange(5)})
    assert sorted(caller.done() for caller in callers) == [0, 1, 2, 3, 4]


def test_cancellation_leaves_no_waiter_behind_and_loses_no_item():
    async def main():
        queue = rc.Table.queue("q", 10)
        tasks = [asyncio.create_task(queue.take_async(1)) for _ in range(20)]
        await asyncio.sleep(0.01)
        for task in tasks[:15]:
            task.cancel()
        await asyncio.gather(*tasks[:15], return_exceptions=True)
        assert queue.stats()["waiting_to_sample"] == 5
        queue.insert({"x": np.arange(8)})
        got = await asyncio.wait_for(asyncio.gather(*tasks[15:]), SOON)
        assert len(queue) == 3
        rest = queue.take(3)["x"].tolist()
        assert sorted([*(int(b["x"][0]) for b in got), *rest]) == list(range(8))

    asyncio.run(main())


def test_cancellation_at_the_moment_of_waking_loses_no_item():
    async def main():
        queue = rc.Table.queue("q", 10)
        lost = 0
        for i in range(50):
            task = asyncio.create_task(queue.take_async(1))
            await asyncio.sleep(0)
            queue.insert({"x": [i]})
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
                lost += 1
            lost += len(queue)
            queue.clear()
        assert lost == 50
        assert queue.stats()["waiting_to_sample"] == 0

    asyncio.run(main())


def test_asyncio_timeouts_around_a_call_work():
    async def main():
        table = rc.Table("t", capacity=4)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await table.sample_async(1)
        assert table.stats()["waiting_to_sample"] == 0

    asyncio.run(main())


def test_a_coroutines_own_timeout_says_what_it_waited_for():
    async def main():
        table = rc.Table("t", capacity=4)
        with pytest.raises(rc.WaitTimeout, match=r"take\(2\).*0.02 s.*needs 2 items, has 0"):
            await table.take_async(2, timeout=0.02)
        assert table.stats()["waiting_to_sample"] == 0

    asyncio.run(main())


def test_a_waiting_coroutine_does_not_stop_its_loop():
    async def main():
        table = rc.Table("t", capacity=4)
        task = asyncio.create_task(table.sample_async(1))
        ticks = 0
        for _ in range(20):
            await asyncio.sleep(0.001)
            ticks += 1
        assert not task.done()
        table.insert({"x": [1]})
        await asyncio.wait_for(task, SOON)
        return ticks

    assert asyncio.run(main()) == 20


def test_a_deadline_wakes_coroutines():
    async def main(clock, turn):
        table = rc.Table("t", capacity=4, clock=clock)
        table.insert({"x": [1]})
        table.take(1, lease=0.1)
        task = asyncio.create_task(table.take_async(1))
        await asyncio.sleep(0)
        turn()
        batch = await asyncio.wait_for(task, SOON)
        return batch.info.deliveries.tolist()

    manual = rc.ManualClock()
    assert asyncio.run(main(manual, lambda: manual.advance(1))) == [2]
    assert asyncio.run(main(rc.SystemClock(), lambda: None)) == [2]


def test_a_loop_that_ended_with_a_waiter_does_not_disturb_the_table():
    table = rc.Table("t", capacity=4)
    loop = asyncio.new_event_loop()
    task = loop.create_task(table.sample_async(1))
    loop.run_until_complete(asyncio.sleep(0.01))
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        loop.run_until_complete(task)
    loop.close()
    table.insert({"x": [1]})
    assert table.stats()["waiting_to_sample"] == 0


def test_an_insert_survives_waiters_of_a_closed_loop():
    table = rc.Table("t", capacity=4)
    loop = asyncio.new_event_loop()
    coroutine = table.sample_async(1)
    task = loop.create_task(coroutine)
    loop.run_until_complete(asyncio.sleep(0.01))
    task._log_destroy_pending = False
    loop.close()
    table.insert({"x": [1]})
    assert table.sample(1)["x"].tolist() == [1]


# -- nothing polls


def test_an_idle_waiter_never_wakes(wake_ups):
    table = rc.Table("t", capacity=10, limiter=rc.MinSize(5))
    caller = Caller(lambda: table.sample(1))
    until(lambda: waiting(table) == 1)
    time.sleep(0.5)
    assert wake_ups["thread"] == 0
    table.insert({"x": np.arange(5)})
    caller.done()
    assert wake_ups["thread"] == 1


def test_a_waiter_sleeps_through_changes_that_cannot_help_it(wake_ups):
    table = rc.Table("t", capacity=200, limiter=rc.MinSize(100))
    caller = Caller(lambda: table.sample(1))
    until(lambda: waiting(table) == 1)
    for i in range(99):
        table.insert({"x": [i]})
    assert caller.waits()
    assert wake_ups["thread"] == 0
    table.insert({"x": [99]})
    caller.done()
    assert wake_ups["thread"] == 1


def test_a_change_before_the_first_retry_does_not_wake(wake_ups, monkeypatch):
    """Who has just begun to wait tries once more anyway, and sees what has changed."""
    table = rc.Table("t", capacity=10, limiter=rc.MinSize(5))
    retry = table.core.gate._retry

    def changed_before(*arguments):
        monkeypatch.setattr(table.core.gate, "_retry", retry)
        table.insert({"x": [0]})
        return retry(*arguments)

    monkeypatch.setattr(table.core.gate, "_retry", changed_before)
    caller = Caller(lambda: table.sample(1))
    until(lambda: len(table) == 1)
    assert caller.waits()
    assert wake_ups["thread"] == 0
    table.insert({"x": np.arange(4)})
    caller.done()
    assert wake_ups["thread"] == 1


def test_closing_before_the_first_retry_ends_the_wait(monkeypatch):
    table = rc.Table("t", capacity=10)
    retry = table.core.gate._retry

    def closed_before(*arguments):
        monkeypatch.setattr(table.core.gate, "_retry", retry)
        table.close()
        return retry(*arguments)

    monkeypatch.setattr(table.core.gate, "_retry", closed_before)
    with pytest.raises(rc.TableClosed):
        Caller(lambda: table.sample(1)).done()


def test_an_insert_that_waits_sleeps_until_enough_has_left(wake_ups):
    queue = rc.Table.queue("q", 10)
    queue.insert({"x": np.arange(10)})
    caller = Caller(lambda: queue.insert({"x": np.arange(6)}))
    until(lambda: waiting(queue) == 1)
    for _ in range(5):
        queue.take(1)
    assert caller.waits()
    assert wake_ups["thread"] == 0
    queue.take(1)
    caller.done()
    assert wake_ups["thread"] == 1


def test_an_idle_coroutine_never_wakes(wake_ups):
    async def main():
        table = rc.Table("t", capacity=10)
        tasks = [asyncio.create_task(table.sample_async(1)) for _ in range(50)]
        await asyncio.sleep(0.3)
        assert wake_ups["task"] == 0
        table.insert({"x": [1]})
        await asyncio.wait_for(asyncio.gather(*tasks), SOON)

    asyncio.run(main())
    assert wake_ups["task"] == 50


def test_a_waiter_wakes_once_for_a_deadline(wake_ups):
    table = rc.Table("t", capacity=4)
    table.insert({"x": [0]})
    table.take(1, lease=0.2)
    Caller(lambda: table.take(1)).done()
    assert wake_ups["thread"] <= 2


def test_a_waiter_with_a_timeout_wakes_once(wake_ups):
    table = rc.Table("t", capacity=4)
    with pytest.raises(TimeoutError):
        table.sample(1, timeout=0.2)
    assert wake_ups["thread"] <= 2


# -- deadlines: one waiter of all threads, and one of each loop, watches them


def in_vain(table, **options):
    """A call that waits for an item that never comes."""
    return Caller(lambda: table.take(1, where={"task": "never"}, **options))


def test_a_leased_take_and_its_confirm_wake_one_of_two_hundred_at_most(wake_ups):
    """The first deadline wakes the one that watches; later ones are beyond what it watches."""

    async def main():
        table = rc.Table("t", capacity=99, sampler=rc.Fifo())
        table.insert({"x": np.arange(50)}, task="math")
        call = table.take_async(1, where={"task": "never"})
        waiters = [asyncio.create_task(call)]
        waiters += [
            asyncio.create_task(table.take_async(1, where={"task": "never"})) for _ in range(199)
        ]
        while waiting(table) < 200:
            await asyncio.sleep(0)
        for _ in range(20):
            lease = table.take(1, lease=60, where={"task": "math"}).info.lease
            await asyncio.sleep(0)
            table.renew(lease, 90)
            table.confirm(lease)
            await asyncio.sleep(0)
        assert wake_ups["task"] <= 1
        for waiter in waiters:
            waiter.cancel()
        await asyncio.gather(*waiters, return_exceptions=True)
        assert waiting(table) == 0

    asyncio.run(main())


def test_a_nearer_deadline_wakes_the_one_that_would_sleep_beyond_it():
    table = rc.Table("t", capacity=9, sampler=rc.Fifo())
    table.insert({"x": [0, 1]}, task="math")
    table.take(1, lease=60)
    in_vain(table)
    caller = Caller(lambda: table.take(1, where={"task": "math"}))
    assert caller.done()["x"].tolist() == [1]
    table.insert({"x": [2]}, task="math")
    caller = Caller(lambda: table.take(2, where={"task": "math"}))
    until(lambda: waiting(table) == 2)
    table.take(1, lease=0.2)  # the one that watches sleeps for another minute
    table.insert({"x": [3]}, task="math")
    assert caller.done()["x"].tolist() == [2, 3]
    table.close()


def test_when_the_one_that_watches_leaves_another_does():
    table = rc.Table("t", capacity=9, sampler=rc.Fifo())
    table.insert({"x": [0]}, task="math")
    table.take(1, lease=0.6)
    first = in_vain(table, timeout=0.2)
    until(lambda: waiting(table) == 1)  # it watches
    caller = Caller(lambda: table.take(1, where={"task": "math"}))
    with pytest.raises(rc.WaitTimeout):
        first.done()
    assert caller.done()["x"].tolist() == [0]


def test_a_loop_that_stands_still_keeps_no_thread_from_a_lapsed_lease():
    table = rc.Table("t", capacity=9, sampler=rc.Fifo())
    table.insert({"x": [0]}, task="math")
    stopped, go = threading.Event(), threading.Event()

    async def stands_still():
        call = asyncio.create_task(table.take_async(1, where={"task": "never"}))
        while not waiting(table):
            await asyncio.sleep(0)
        stopped.set()
        go.wait()  # nobody in this loop moves
        call.cancel()

    loop = Caller(lambda: asyncio.run(stands_still()))
    stopped.wait()
    table.take(1, lease=0.2)
    assert Caller(lambda: table.take(1)).done()["x"].tolist() == [0]
    go.set()
    loop.done()


def test_a_returned_lease_wakes_a_sample_that_the_limiter_holds_back():
    """Half a sample an insert: one that is undone lets another go, though nothing comes."""
    limiter = rc.SampleToInsertRatio(0.5, min_size=1, error_buffer=2.0)
    table = rc.Table("t", capacity=9, sampler=rc.Fifo(), limiter=limiter)
    table.insert({"x": np.arange(4)})
    taken = []
    with contextlib.suppress(rc.WaitTimeout):
        for _ in range(9):
            taken.append(table.take(1, lease=60, timeout=0).info.lease)
    caller = Caller(lambda: table.take(1))
    assert caller.waits()
    table.give_back(taken[-1])
    caller.done()
