"""The virtual loop: time that jumps, tasks in a random order, and standing still with a reason."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections import Counter

import pytest

import recollect as rc
from recollect.simulation import (
    ShufflingLoop,
    Standstill,
    VirtualClock,
    VirtualLoop,
    in_thread,
    run,
)

HOUR = 3600.0


def group(name, task="math"):
    rollout = rc.Rollout([1], [2, 3], finish_reason="stop")
    return rc.Group([rollout], task=task, group_id=name)


# -- time


def test_time_jumps_to_the_next_timer_and_takes_none():
    async def main():
        loop = asyncio.get_running_loop()
        seen = []

        async def tick(name, every, times):
            for _ in range(times):
                await asyncio.sleep(every)
                seen.append((loop.time(), name))

        await asyncio.gather(tick("a", HOUR, 3), tick("b", 1.5 * HOUR, 2))
        return seen

    begin = time.perf_counter()
    assert run(main()) == [
        (HOUR, "a"), (1.5 * HOUR, "b"), (2 * HOUR, "a"), (3 * HOUR, "b"), (3 * HOUR, "a"),
    ]  # fmt: skip
    assert time.perf_counter() - begin < 60


def test_a_day_of_seconds_is_exact():
    async def main():
        for _ in range(20_000):
            await asyncio.sleep(0.1)
        return asyncio.get_running_loop().time()

    assert run(main()) == pytest.approx(2000, abs=1e-6)


def test_time_begins_where_told():
    async def main():
        await asyncio.sleep(1)
        return asyncio.get_running_loop().time()

    assert run(main(), start=500.0) == 501.0


def test_timers_fire_late_in_a_long_run():
    async def main():
        await asyncio.sleep(3.9e6)  # asyncio jumps a day at a time
        for _ in range(1000):
            await asyncio.sleep(0.001)
        return asyncio.get_running_loop().time()

    assert run(main(), limit=4e6) == pytest.approx(3.9e6 + 1)


def test_timeouts_are_virtual():
    async def main():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(HOUR):
                await asyncio.sleep(2 * HOUR)
        return asyncio.get_running_loop().time()

    assert run(main()) == HOUR


def test_work_takes_no_virtual_time():
    async def main():
        sum(range(100_000))
        for _ in range(100):
            await asyncio.sleep(0)
        return asyncio.get_running_loop().time()

    assert run(main()) == 0.0


def test_limits_that_make_no_sense_are_refused():
    with pytest.raises(rc.InvalidValue, match="start, limit"):
        VirtualLoop(start=5, limit=4)
    with pytest.raises(rc.InvalidValue, match="start, limit"):
        VirtualLoop(limit=1e12)


# -- standing still


def test_a_deadlock_says_where_every_task_waits():
    async def inner():
        await asyncio.Event().wait()

    async def main():
        waits = asyncio.create_task(inner(), name="producer")
        await waits

    with pytest.raises(Standstill, match=r"(?s)no timer.*producer: inner \(test_virtual_loop") as e:
        run(main())
    assert "wait (locks.py" in str(e.value)


def test_what_would_go_on_for_ever_ends_at_the_limit():
    async def main():
        while True:
            await asyncio.sleep(5)

    with pytest.raises(Standstill, match="over at 1000 s"):
        run(main(), limit=1000)


# -- threads


def test_time_goes_on_while_a_thread_works():
    async def main():
        loop = asyncio.get_running_loop()
        over = threading.Event()
        blocked = asyncio.create_task(in_thread(over.wait, 20))
        await asyncio.sleep(HOUR)
        over.set()
        assert await blocked
        return loop.time()

    assert run(main()) == HOUR


def test_a_call_in_a_worker_thread_takes_no_time():
    async def main():
        timer = asyncio.create_task(asyncio.sleep(HOUR))
        await asyncio.sleep(0)
        assert await asyncio.to_thread(sum, [1, 2]) == 3
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(divmod, 1, 0)
        assert not timer.done()
        timer.cancel()
        return asyncio.get_running_loop().time()

    assert run(main()) == 0.0


def test_time_stands_still_while_it_is_held():
    async def main():
        loop = asyncio.get_running_loop()
        timer = asyncio.create_task(asyncio.sleep(HOUR))
        with loop.hold():
            await in_thread(time.sleep, 0.01)
            assert loop.time() == 0.0
            assert not timer.done()
        await timer
        return loop.time()

    assert run(main()) == HOUR


def test_a_thread_may_call_into_an_idle_loop():
    async def answer():
        return asyncio.get_running_loop().time()

    async def main():
        loop = asyncio.get_running_loop()
        done = asyncio.Event()

        def call():
            time.sleep(0.05)
            asyncio.run_coroutine_threadsafe(answer(), loop).result(20)
            loop.call_soon_threadsafe(done.set)

        thread = threading.Thread(target=call)
        thread.start()
        await done.wait()
        thread.join()

    run(main())


# -- clocks


def test_leases_lapse_by_the_loops_time():
    async def main():
        buffer = rc.RolloutBuffer(clock=VirtualClock())
        await buffer.put(group("a"), version=0)
        await buffer.take(1, lease=60)
        taken = await buffer.take_batch({"math": 1})
        return asyncio.get_running_loop().time(), taken.groups["math"][0].deliveries

    assert run(main()) == (60.0, 2)


def test_a_wait_on_a_buffer_times_out_by_the_loops_time():
    async def main():
        buffer = rc.RolloutBuffer(clock=VirtualClock())
        with pytest.raises(TimeoutError, match="timed out after 600 s"):
            await buffer.take_batch({"math": 1}, timeout=600)
        return asyncio.get_running_loop().time()

    assert run(main()) == 600.0


def test_a_thread_waits_for_a_lease_by_the_loops_time():
    async def main():
        buffer = rc.RolloutBuffer(clock=VirtualClock())
        await buffer.put(group("a"), version=0)
        await buffer.take(1, lease=HOUR)
        taken = await in_thread(buffer.sync.take_batch, {"math": 1})
        return asyncio.get_running_loop().time(), taken.groups["math"][0].deliveries

    assert run(main()) == (HOUR, 2)


def test_a_clock_needs_a_virtual_loop():
    async def main():
        VirtualClock()

    with pytest.raises(rc.InvalidValue, match="expected a VirtualLoop"):
        asyncio.run(main())


# -- shuffling


def orders(seeds, names="abc"):
    async def main():
        order = []

        async def step(name):
            order.append(name)
            await asyncio.sleep(0)
            order.append(name)

        await asyncio.gather(*map(step, names))
        return "".join(order)

    return [run(main(), seed=seed) for seed in seeds]


def test_every_interleaving_comes_and_a_seed_repeats_its_own():
    assert orders(range(50)) == orders(range(50))
    counts = Counter(orders(range(2000)))
    expected = {"".join(p) for p in itertools.permutations("aabbcc")}
    assert set(counts) == expected  # 90 orders of two steps of three tasks
    assert min(counts.values()) >= 2


def test_plain_callbacks_keep_their_order():
    async def main():
        loop = asyncio.get_running_loop()
        seen = []
        for n in range(50):
            loop.call_soon(seen.append, n)
        while len(seen) < 50:
            await asyncio.sleep(0)
        return seen

    for seed in range(20):
        assert run(main(), seed=seed) == list(range(50))


def test_a_task_does_not_overtake_a_callback_that_was_ready_before_it():
    async def main():
        loop = asyncio.get_running_loop()
        future, order = loop.create_future(), []
        future.add_done_callback(lambda _: order.append("callback"))

        async def wait():
            await future
            order.append("task")

        waiting = asyncio.create_task(wait())
        while not future._callbacks or len(future._callbacks) < 2:
            await asyncio.sleep(0)
        future.set_result(None)
        await waiting
        return order

    for seed in range(50):
        assert run(main(), seed=seed) == ["callback", "task"]


def test_a_lost_update_that_the_plain_loop_never_shows_is_found():
    async def main():
        count = 0

        async def add():
            nonlocal count
            seen = count
            await asyncio.sleep(0)
            count = seen + 1

        async def later():
            for _ in range(3):
                await asyncio.sleep(0)
            await add()

        await asyncio.gather(add(), later())
        return count

    assert run(main()) == 2
    assert {run(main(), seed=seed) for seed in range(100)} == {1, 2}


def test_shuffled_time_jumps_too():
    async def main():
        await asyncio.gather(*(asyncio.sleep(n) for n in range(100)))
        return asyncio.get_running_loop().time()

    assert run(main(), seed=3) == 99.0


def test_sockets_work_on_a_shuffling_loop():
    async def main():
        wrong = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, told: wrong.append(told))

        async def echo(reader, writer):
            writer.write(await reader.readline())
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        address = server.sockets[0].getsockname()[:2]

        async def ask(n):
            reader, writer = await asyncio.open_connection(*address)
            writer.write(f"{n}\n".encode())
            answer = await reader.read()
            writer.close()
            await writer.wait_closed()
            return int(answer)

        answers = await asyncio.gather(*map(ask, range(8)))
        server.close()
        await server.wait_closed()
        assert not wrong
        return answers

    for seed in range(20):
        assert run(main(), seed=seed) == list(range(8))


def test_a_closed_shuffling_loop_forgets_what_was_ready():
    loop = ShufflingLoop(1)
    loop.call_soon(loop.stop)
    loop.call_soon(print, "never")
    loop.run_forever()
    loop.close()
    assert loop.is_closed()
