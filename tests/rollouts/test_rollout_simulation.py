"""Producers, stages and consumers at once, some of which give back or die; then the accounts.

Every group that was put is in exactly one of stored, leased, confirmed and discarded with its
reason, by the buffer's own accounts, by its events, and by what the workers saw.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Coroutine
from typing import Any, TypeVar

import numpy as np
import pytest

import recollect as rc

Result = TypeVar("Result")

TASKS = ("math", "code")
CELLS = ("reward", "ref_logprobs", "values")
PRODUCERS, CONSUMERS = 32, 4
SHARES = [{"math": 3, "code": 2}, {"math": 2}, {"code": 2}]
PATIENCE = (1, 4, 8)  # turns of the clock: a slow machine has as many steps for them as a fast one
HANGS = 1500  # turns of the clock without a put
LIMIT = 60.0  # seconds without a put, for threads, after which something hangs


class Ledger:
    """What the workers saw. Guarded by its lock, so that threads may share it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.names: set[str] = set()  # the groups that were put
        self.keys: set[int] = set()
        self.puts = 0
        self.trained: Counter[str] = Counter()
        self.given_up: set[str] = set()  # taken for a retry that came to nothing
        self.events: list[rc.Event] = []

    def produced(self, group: rc.Group, key: int | None) -> None:
        with self.lock:
            self.puts += 1
            self.names.add(group.group_id)
            assert key not in self.keys, "a key was used twice"
            self.keys |= {key} - {None}

    def check(self, taken: rc.TakenBatch, sizes: dict[str, int]) -> list[str]:
        """A batch is whole, ready, and of the right tasks; returns its group ids."""
        names = []
        for task, size in sizes.items():
            groups = taken.groups[task]
            assert len(groups) == size
            for group in groups:
                assert (group.task, group.status) == (task, "COMPLETED")
                number = int(group.group_id.split("-")[1])
                for rollout in group:
                    assert rollout.response_ids.tolist() == [number % 1000] * len(
                        rollout.response_ids
                    )
                    assert rollout.reward == number
                    assert rollout.arrays["ref_logprobs"].tolist() == [number % 7] * 2
                    assert rollout.arrays["values"].tolist() == [number % 5]
                names.append(group.group_id)
        assert len(set(names)) == len(names)
        return names


def new_group(producer: int, n: int, rng: random.Random, task: str) -> rc.Group:
    number = producer * 10_000 + n
    rollouts = [
        rc.Rollout(
            [number % 50],
            np.full(rng.randint(1, 6), number % 1000, np.int32),
            rollout_id=f"r-{number}-{k}",
            finish_reason="stop",
        )
        for k in range(rng.randint(1, 4))
    ]
    blobs = {"image": [bytes([number % 3]) * 30]}
    return rc.Group(rollouts, task=task, group_id=f"g-{number}", blobs=blobs)


def cell_of(cell: str, groups: rc.Groups) -> tuple[list[str], list[int], dict]:
    """The annotation that a stage makes for a cell."""
    rollouts = [(r, int(g.group_id.split("-")[1])) for g in groups for r in g]
    ids, attempts = [r.rollout_id for r, _ in rollouts], [r.attempt for r, _ in rollouts]
    if cell == "reward":
        return ids, attempts, {"reward": [float(n) for _, n in rollouts]}
    if cell == "values":
        return ids, attempts, {"arrays": {cell: [np.array([n % 5]) for _, n in rollouts]}}
    return ids, attempts, {"arrays": {cell: [np.array([n % 7] * 2) for _, n in rollouts]}}


def regenerate(group: rc.Group) -> rc.Group:
    """A retried group gets the same response again."""
    number = int(group.group_id.split("-")[1])
    for rollout in group:
        if rollout.status == "EXPIRED":
            rollout.response_ids = np.full(3, number % 1000, np.int32)
            rollout.finish_reason = "stop"
    return group


def settle_accounts(buffer: rc.RolloutBuffer, ledger: Ledger) -> None:
    """Every group is in exactly one place, and every book says the same."""
    accounts = buffer.accounts()
    everywhere: Counter[str] = Counter()
    for task in TASKS:
        account = accounts[task]
        left = sum(account["left"].values())
        assert account["put"] == account["stored"] + account["leased"] + left, (task, account)
        for reason, count in account["left"].items():
            everywhere[reason] += count
    total = sum(accounts[task]["put"] for task in TASKS)
    assert total == ledger.puts
    stored = sum(accounts[task]["stored"] for task in TASKS)
    leased = sum(accounts[task]["leased"] for task in TASKS)
    assert stored + leased == len(buffer)
    assert sum(buffer.counts().values()) == stored
    told = Counter(event.reason for event in ledger.events)
    assert told == everywhere
    assert all(count == 1 for count in ledger.trained.values()), "a group trained twice"
    assert told["trained"] == len(ledger.trained)
    trained_by_events = {e.group_id for e in ledger.events if e.reason == "trained"}
    assert trained_by_events == set(ledger.trained)
    leaving = Counter(e.group_id for e in ledger.events if e.reason not in ("taken", "trained"))
    here = {g.group_id for g in buffer.get(sorted(map(int, buffer.table.counts("key"))))}
    for name in ledger.names:
        places = [name in here, name in ledger.trained, leaving[name] > 0, name in ledger.given_up]
        assert sum(places) == 1, (name, places)
    assert here <= ledger.names
    stats = buffer.stats()
    assert stats["waiting_to_insert"] == stats["waiting_to_sample"] == 0
    assert not stats["promised"]
    for event in ledger.events:
        assert event.group.group_id == event.group_id


# -- asyncio


class Turns:
    """Turns a clock, and lets calls give up after so many turns.

    What a call needs to be woken is some steps of the event loop, however long they take; so each
    turn lasts several of them, and nobody's patience depends on the speed of the machine.
    """

    def __init__(self, clock: rc.ManualClock) -> None:
        self.count = 0
        self._clock = clock
        self._patient: list[tuple[int, asyncio.Future[None]]] = []

    async def run(self) -> None:
        while True:
            await asyncio.sleep(0.01)
            for _ in range(4):
                await asyncio.sleep(0)
            self._clock.advance(5)
            self.count += 1
            for end, over in self._patient:
                if end <= self.count and not over.done():
                    over.set_result(None)
            self._patient = [each for each in self._patient if not each[1].done()]

    async def within(self, turns: int, call: Coroutine[Any, Any, Result]) -> Result:
        """What the call returns; it is cancelled after so many turns."""
        task = asyncio.ensure_future(call)
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._patient.append((self.count + turns, over))
        await asyncio.wait({task, over}, return_when="FIRST_COMPLETED")
        over.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
        if task.cancelled():
            raise TimeoutError
        return task.result()


async def simulate(seed: int, groups: int) -> None:
    clock = rc.ManualClock()
    turns = Turns(clock)
    ledger = Ledger()
    rule = rc.Staleness(max_staleness=6, max_retries=1)
    buffer = rc.RolloutBuffer(
        capacity=40, staleness=rule, needs=CELLS, order=rc.StalestFirst(), seed=seed, clock=clock
    )
    events = buffer.events()

    async def read_events() -> None:
        async for batch in events:
            ledger.events += batch

    async def produce(producer: int) -> None:
        rng = random.Random(seed * 1000 + producer)
        n = 0
        while n < groups:
            await asyncio.sleep(rng.random() * 0.002)
            version = max(0, buffer.train_step - rng.randint(1, 3))
            if producer % 2:
                n += await produce_reserved(rng, producer, n, version)
            else:
                n += await produce_unreserved(rng, producer, n, version)

    async def produce_reserved(rng: random.Random, producer: int, n: int, version: int) -> bool:
        """All producers of math reserve, so no put of math ever waits."""
        again = await buffer.take(1, "math", "EXPIRED")  # first: a buffer may be full of these
        try:
            await turns.within(rng.choice(PATIENCE), buffer.reserve_all(1, "math"))
        except TimeoutError:
            ledger.given_up.update(group.group_id for group in again)
            return False
        await asyncio.sleep(rng.random() * 0.002)
        if rng.random() < 0.05 and not again:
            buffer.unreserve(1, "math")  # the generation was cancelled
            return False
        group = regenerate(again[0]) if again else new_group(producer, n, rng, "math")
        if again:
            version = buffer.train_step - 1
        put = asyncio.ensure_future(buffer.put(group, version=version))
        await asyncio.sleep(0)
        assert put.done(), "the put of a reserved group waits"
        ledger.produced(group, put.result())
        return not again

    async def produce_unreserved(rng: random.Random, producer: int, n: int, version: int) -> bool:
        """Producers of code wait for room, and give up when it takes long."""
        again = await buffer.take(1, "code", "EXPIRED")
        group = regenerate(again[0]) if again else new_group(producer, n, rng, "code")
        if again:
            version = buffer.train_step - 1
        try:
            put = buffer.put(group, version=version)
            key = await turns.within(rng.choice(PATIENCE), put)
        except TimeoutError:
            if again:
                ledger.given_up.add(group.group_id)
            return False
        ledger.produced(group, key)
        return not again

    async def annotate(cell: str, worker: int) -> None:
        rng = random.Random(f"{seed}{cell}{worker}")
        while True:
            claimed = await buffer.claim(rng.randint(1, 4), lacks=cell, lease=20)
            if rng.random() < 0.1:
                continue  # it dies: the deadline brings its claim back
            await asyncio.sleep(rng.random() * 0.002)
            if rng.random() < 0.1:
                with contextlib.suppress(rc.LeaseExpired):
                    await buffer.give_back(claimed.lease)
                continue
            ids, attempts, cells = cell_of(cell, claimed)
            mask = await buffer.annotate(ids, attempts, **cells)
            assert len(mask) == len(ids)

    async def consume(consumer: int) -> None:
        rng = random.Random(f"{seed} consumer {consumer}")
        while True:
            sizes = rng.choice(SHARES)
            if rng.random() < 0.1:  # a wait that is cancelled
                with contextlib.suppress(TimeoutError):
                    huge = buffer.take_batch({"math": 30, "code": 10}, lease=30)
                    await buffer.give_back((await asyncio.wait_for(huge, 0.001)).lease)
                continue
            try:
                taken = await buffer.take_batch(sizes, lease=30, timeout=10)
            except TimeoutError:
                continue
            names = ledger.check(taken, sizes)
            await asyncio.sleep(rng.random() * 0.003)
            fate = rng.random()
            if fate < 0.15:
                with contextlib.suppress(rc.LeaseExpired):
                    await buffer.give_back(taken.lease)
            elif fate > 0.25:  # between the two it dies: nobody confirms
                with contextlib.suppress(rc.LeaseExpired):
                    await buffer.confirm(taken.lease)
                    ledger.trained.update(names)
                    await buffer.advance(buffer.train_step + (rng.random() < 0.3))

    reader = asyncio.create_task(read_events())
    producers = [asyncio.create_task(produce(p)) for p in range(PRODUCERS)]
    workers = [asyncio.create_task(annotate(cell, w)) for cell in CELLS for w in range(2)]
    workers += [asyncio.create_task(consume(c)) for c in range(CONSUMERS)]
    workers.append(asyncio.create_task(turns.run()))
    running: set[asyncio.Task[None]] = {*producers, *workers}
    puts, since = 0, turns.count
    while not all(producer.done() for producer in producers):
        done, running = await asyncio.wait(running, timeout=1, return_when="FIRST_COMPLETED")
        if ledger.puts > puts:  # each group is put twice at most, so this ends
            puts, since = ledger.puts, turns.count
        assert turns.count - since < HANGS, f"hangs with {buffer.counts()} {buffer.stats()}"
        for task in done:
            task.result()  # raises what the worker raised
    await asyncio.sleep(0.05)
    for worker in workers:
        worker.cancel()
    await asyncio.gather(*workers, return_exceptions=True)
    accounts = buffer.accounts()  # exact also while the leases of the dead are held
    assert sum(account["leased"] for account in accounts.values()) == buffer.stats()["leased"]
    for account in accounts.values():
        left = sum(account["left"].values())
        assert account["put"] == account["stored"] + account["leased"] + left
    clock.advance(1000)  # those who died held leases and claims: all of them end
    assert buffer.stats()["leased"] == 0
    buffer.count()
    await events.aclose()
    await asyncio.wait_for(reader, 5)
    assert len(ledger.trained) > 20, "hardly anything was trained"
    settle_accounts(buffer, ledger)


@pytest.mark.parametrize("seed", range(3))
def test_coroutines_lose_and_duplicate_nothing(seed: int) -> None:
    asyncio.run(simulate(seed, groups=12))


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 102))
def test_many_coroutines_lose_and_duplicate_nothing_for_long(seed: int) -> None:
    asyncio.run(simulate(seed, groups=60))


# -- threads


def simulate_threads(seed: int, groups: int) -> None:
    ledger = Ledger()
    rule = rc.Staleness(max_staleness=8, on_expire="discard")
    real = rc.RolloutBuffer(
        capacity=60, staleness=rule, needs=CELLS, order=rc.StalestFirst(), seed=seed
    )
    buffer = real.sync
    failures: list[BaseException] = []
    over = threading.Event()

    def worker(run) -> threading.Thread:
        def guarded() -> None:
            try:
                run()
            except rc.TableClosed:
                pass
            except BaseException as error:
                failures.append(error)
                over.set()

        return threading.Thread(target=guarded, daemon=True)

    def produce(producer: int) -> None:
        rng = random.Random(seed * 1000 + producer)
        for n in range(groups):
            group = new_group(producer, n, rng, rng.choice(TASKS))
            if producer % 2:
                buffer.reserve_all(1, group.task)
            key = buffer.put(group, version=max(0, buffer.train_step - rng.randint(1, 2)))
            ledger.produced(group, key)

    def annotate(cell: str) -> None:
        rng = random.Random(f"{seed}{cell}")
        while not over.is_set():
            try:
                claimed = buffer.claim(3, lacks=cell, lease=0.3, timeout=0.1)
            except TimeoutError:
                continue
            if rng.random() < 0.1:
                continue
            ids, attempts, cells = cell_of(cell, claimed)
            buffer.annotate(ids, attempts, **cells)

    def consume(consumer: int) -> None:
        rng = random.Random(f"{seed} consumer {consumer}")
        while not over.is_set():
            sizes = rng.choice(SHARES)
            try:
                lease = rng.choice([0.2, True])
                owner = f"consumer {consumer}"
                taken = buffer.take_batch(sizes, lease=lease, timeout=0.1, owner=owner)
            except TimeoutError:
                continue
            names = ledger.check(taken, sizes)
            fate = rng.random()
            if fate < 0.15:
                with contextlib.suppress(rc.LeaseExpired):
                    buffer.give_back(taken.lease)
            elif fate < 0.25:
                if lease is True:
                    buffer.release(owner)  # somebody noticed that it died
            else:
                with contextlib.suppress(rc.LeaseExpired):
                    buffer.confirm(taken.lease)
                    with ledger.lock:
                        ledger.trained.update(names)
                    buffer.advance(buffer.train_step + (rng.random() < 0.2))

    events = buffer.events()
    reader = worker(lambda: [ledger.events.extend(batch) for batch in events])
    producers = [worker(lambda p=p: produce(p)) for p in range(PRODUCERS)]
    others = [worker(lambda c=c: annotate(c)) for c in CELLS]
    others += [worker(lambda c=c: consume(c)) for c in range(CONSUMERS)]
    for thread in (reader, *producers, *others):
        thread.start()
    puts, end = 0, time.monotonic() + LIMIT
    for thread in producers:
        while thread.is_alive() and not over.is_set():
            thread.join(0.1)
            if ledger.puts > puts:
                puts, end = ledger.puts, time.monotonic() + LIMIT
            assert time.monotonic() < end, f"hangs with {buffer.counts()} {buffer.stats()}"
    time.sleep(0.3)
    over.set()
    for thread in others:
        thread.join(10)
        assert not thread.is_alive()
    assert not failures, failures
    time.sleep(0.3)  # the last short leases lapse
    for consumer in range(CONSUMERS):
        buffer.release(f"consumer {consumer}")
    buffer.count()
    events.close()
    reader.join(10)
    assert real.stats()["leased"] == 0
    assert len(ledger.trained) > 20, "hardly anything was trained"
    settle_accounts(real, ledger)


@pytest.mark.parametrize("seed", range(2))
def test_threads_lose_and_duplicate_nothing(seed: int) -> None:
    simulate_threads(seed, groups=10)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 102))
def test_many_threads_lose_and_duplicate_nothing_for_long(seed: int) -> None:
    simulate_threads(seed, groups=80)


# -- nothing but producers and consumers


def test_32_producers_and_4_consumers_lose_and_duplicate_nothing() -> None:
    """Half of each are threads, half are coroutines, on one buffer."""
    buffer = rc.RolloutBuffer(capacity=16, order=rc.Fifo())
    groups = 20
    total = PRODUCERS * groups
    got: list[str] = []
    lock = threading.Lock()

    def make(producer: int, n: int) -> rc.Group:
        rollout = rc.Rollout([1], [producer, n], finish_reason="stop")
        return rc.Group([rollout], task="math", group_id=f"{producer}.{n}")

    def produce(producer: int) -> None:
        for n in range(groups):
            buffer.sync.put(make(producer, n), version=0)

    def consume() -> None:
        for _ in range(total // CONSUMERS // 4):
            taken = buffer.sync.take_batch({"math": 4})
            with lock:
                got.extend(g.group_id for g in taken.groups["math"])

    async def produce_async(producer: int) -> None:
        for n in range(groups):
            await buffer.put(make(producer, n), version=0)

    async def consume_async() -> None:
        for _ in range(total // CONSUMERS // 4):
            taken = await buffer.take_batch({"math": 4})
            with lock:
                got.extend(g.group_id for g in taken.groups["math"])

    async def main() -> None:
        half = PRODUCERS // 2
        threads = [threading.Thread(target=produce, args=[p], daemon=True) for p in range(half)]
        threads += [threading.Thread(target=consume, daemon=True) for _ in range(CONSUMERS // 2)]
        for thread in threads:
            thread.start()
        tasks = [produce_async(p) for p in range(half, PRODUCERS)]
        tasks += [consume_async() for _ in range(CONSUMERS // 2)]
        await asyncio.wait_for(asyncio.gather(*tasks), LIMIT)
        for thread in threads:
            await asyncio.to_thread(thread.join, LIMIT)
            assert not thread.is_alive()

    asyncio.run(main())
    assert sorted(got) == sorted(f"{p}.{n}" for p in range(PRODUCERS) for n in range(groups))
    account = buffer.accounts()["math"]
    assert (account["put"], account["stored"], account["left"]) == (total, 0, {"taken": total})
    stats = buffer.stats()
    assert stats["waiting_to_insert"] == stats["waiting_to_sample"] == 0
