"""Races: whatever the order in which tasks take their turns, every prompt is in exactly one place.

Each seed is an interleaving of its own: the loop lets ready tasks go on in a random order, and
generators, rewards, trainers and pauses take random numbers of turns. At random moments, also in
the middle of what a manager does, a picture is taken of where each prompt is: with its source, in
flight, stored, or gone for a reason. That picture is what a checkpoint would save.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest

import recollect as rc
from recollect.errors import OutOfPrompts, ProductionError
from recollect.production import (
    AsyncStrategy,
    BatchResult,
    ColocatedManager,
    DisaggregatedManager,
    Flight,
    Pending,
    State,
    SyncStrategy,
    Task,
)
from recollect.production.prompts.base import prompt_of
from recollect.production.signal import Signal
from recollect.simulation import VirtualClock, run


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Generations that are cancelled are logged, and here there are thousands."""
    log = logging.getLogger("recollect.production")
    log.setLevel(logging.CRITICAL)
    yield
    log.setLevel(logging.NOTSET)


class Source:
    """Prompts p0, p1, ... that knows which of them are out, and refuses what is not."""

    def __init__(self, name: str, count: int, size: int) -> None:
        self.name, self.count, self.size = name, count, size
        self.drawn = self.refused = 0
        self.back: deque[rc.Group] = deque()
        self.out: set[str] = set()

    def next(self) -> rc.Group:
        if self.back:
            group = self.back.popleft()
        elif self.drawn < self.count:
            rollouts = [rc.Rollout() for _ in range(self.size)]
            group = rc.Group(rollouts, group_id=f"{self.name}-{self.drawn}", prompt_ids=[1, 2])
            self.drawn += 1
        else:
            self.refused += 1
            assert self.refused < 1000, "it is asked again and again"
            raise OutOfPrompts(f"{self.name}: all {self.count} are out")
        assert group.group_id not in self.out
        self.out.add(group.group_id)
        return group

    def give_back(self, group: rc.Group) -> None:
        assert group.group_id in self.out, f"{group.group_id} was given back twice"
        self.out.remove(group.group_id)
        self.back.append(prompt_of(group))

    def exclude(self, group: rc.Group) -> None:
        raise AssertionError("nobody asked for that")

    def state(self) -> Mapping[str, Any]:
        return {}

    def restore(self, state: Mapping[str, Any]) -> None: ...

    def has(self, group_id: str) -> bool:
        _, _, number = group_id.rpartition("-")
        return group_id not in self.out and (
            int(number) >= self.drawn or any(g.group_id == group_id for g in self.back)
        )


class Engine:
    """Takes random numbers of turns and instants; fails, aborts and lets itself be cancelled."""

    def __init__(self, rng: random.Random, look: Callable[[], None], trouble: float) -> None:
        self.rng, self.look, self.trouble = rng, look, trouble
        self.paused = asyncio.Event()
        self.version = 0
        self.running: dict[str, list[asyncio.Task[Any]]] = {}

    async def dither(self) -> None:
        """A few turns, or an instant that others share, so that much happens at the same time."""
        for _ in range(self.rng.randrange(3)):
            await asyncio.sleep(0)
        if self.rng.random() < 0.5:
            await asyncio.sleep(self.rng.choice([0.0, 0.25, 0.25, 0.5]))
        if self.rng.random() < 0.2:
            self.look()

    async def generate(self, group: rc.Group, *, keep_partial: bool) -> rc.Group:
        me = asyncio.current_task()
        assert me is not None
        others = self.running.setdefault(group.group_id, [])
        assert all(other.cancelling() for other in others), f"{group.group_id} runs twice"
        others.append(me)
        version = self.version
        try:
            async with asyncio.timeout(self.rng.choice([0.25, 0.5, 1.0])):
                await self.paused.wait()
        except TimeoutError:
            pass
        except asyncio.CancelledError:
            await self.dither()  # an engine needs a moment to let go
            raise
        finally:
            others.remove(me)
        await self.dither()
        chance = self.rng.random()
        for rollout in group:
            if rollout.status is rc.Status.COMPLETED:
                continue
            rollout.response_ids = np.append(rollout.response_ids, 7).astype(np.int32)
            old = [] if rollout.versions is None else rollout.versions.tolist()
            rollout.versions = np.int32([*old, version])
            if chance < self.trouble:
                rollout.finish_reason, rollout.error = "error", "bad luck"
            elif self.paused.is_set() and self.rng.random() < 0.5:
                rollout.finish_reason = "abort"
            else:
                rollout.finish_reason = "stop"
        return group

    async def reward(self, group: rc.Group) -> rc.Group:
        await self.dither()
        for rollout in group:
            rollout.reward = 1.0
        return group

    async def valid(self, group: rc.Group) -> bool:
        await self.dither()
        return self.rng.random() >= self.trouble

    async def pause(self) -> None:
        await self.dither()
        self.paused.set()

    async def continue_(self, version: int) -> None:
        await self.dither()
        self.version = version
        self.paused.clear()

    async def set_version(self, version: int) -> None:
        await self.dither()
        self.version = version


class World:
    """A manager with two tasks, and the books that are kept beside it."""

    def __init__(
        self,
        seed: int,
        kind: type[ColocatedManager] | type[DisaggregatedManager],
        *,
        prompts: int = 5,
        trouble: float = 0.1,
        **options: Any,
    ) -> None:
        self.rng = rng = random.Random(seed)
        self.engine = Engine(rng, self.look, trouble)
        self.sources = {name: Source(name, prompts, rng.choice([1, 2])) for name in ("a", "b")}
        self.buffer = rc.RolloutBuffer(
            staleness=rc.Staleness(max_staleness=rng.choice([0, 1, 3])),
            capacity=rng.choice([None, None, 6, 40]),
            clock=VirtualClock(),
        )
        self.events = self.buffer.events("confirmed", "discarded")
        self.manager = kind(
            [
                Task(
                    name,
                    source,
                    self.engine,
                    strategy=rng.choice(
                        [
                            SyncStrategy(),
                            AsyncStrategy(over_sample=rng.choice([0.0, 1.0])),
                            AsyncStrategy(over_sample=0.5, keep_partial=True),
                            AsyncStrategy(keep_partial=True, retry_trigger=2),
                        ]
                    ),
                    reward=self.engine.reward,
                    valid=self.engine.valid,
                    weight=rng.choice([1.0, 2.0]),
                )
                for name, source in self.sources.items()
            ],
            self.buffer,
            drain_timeout=rng.choice([0.0, 0.25, 60.0]),
            **options,
        )
        self.trained: Counter[str] = Counter()
        self.looks = 0

    def places(self, group_id: str) -> list[str]:
        """Where a prompt is now."""
        source = self.sources[group_id.rpartition("-")[0]]
        flights = [f for fs in self.manager.in_flight.values() for f in fs]
        found = ["source"] * source.has(group_id)
        found += ["flight" for flight in flights if flight.group_id == group_id]
        found += ["stored"] * (self.buffer.find(group_id) is not None)
        return found

    def look(self) -> None:
        """Take the picture that a checkpoint would save; nothing in it awaits."""
        self.looks += 1
        for source in self.sources.values():
            for number in range(source.drawn):
                group_id = f"{source.name}-{number}"
                places = self.places(group_id)
                assert len(places) <= 1, f"{group_id} is in {places}"
                if not places:
                    assert group_id in source.out  # it has left, and settle() asks why

    async def settle(self) -> None:
        """In the end: each prompt was trained once, or is there still, or left for a reason."""
        gone: dict[str, str] = {}
        async with asyncio.timeout(1):
            while set(gone) != self.left():
                async for events in self.events:
                    for event in events:
                        assert event.group_id not in gone, f"{event.group_id} left twice"
                        gone[event.group_id] = event.reason
                    break
        reasons = Counter(gone.values())
        assert set(reasons) <= {"trained", "failed", "filtered"}
        assert {g for g, reason in gone.items() if reason == "trained"} == set(self.trained)
        assert not [g for g, times in self.trained.items() if times != 1]

    def left(self) -> set[str]:
        """Prompts that are nowhere any more."""
        drawn = (f"{s.name}-{n}" for s in self.sources.values() for n in range(s.drawn))
        return {group_id for group_id in drawn if not self.places(group_id)}

    async def turns(self, most: int = 12) -> None:
        await self.engine.dither()
        for _ in range(self.rng.randrange(most)):
            await asyncio.sleep(0)
        self.look()

    def check_paused(self) -> None:
        assert not self.manager.in_flight
        self.look()

    async def finish(self, result: BatchResult) -> None:
        """Train on a batch."""
        await self.turns(3)
        for groups in result.groups.values():
            for group in groups:
                self.trained[group.group_id] += 1
        await self.manager.confirm(result)


# -- disaggregated --------------------------------------------------------------------------------
async def disaggregated(seed: int) -> World:
    """A trainer, somebody who pauses, and new weights, all at once."""
    world = World(seed, DisaggregatedManager)
    manager, rng = world.manager, world.rng
    assert isinstance(manager, DisaggregatedManager)
    step = 1
    size = rng.choice([2, 3])

    async def train() -> None:
        nonlocal step
        while manager.state is not State.FINISHED or world.buffer.count(None, "COMPLETED"):
            call = asyncio.create_task(manager.get_batch(size, step))
            if rng.random() < 0.2:  # somebody loses patience
                await world.turns()
                call.cancel()
            try:
                result = await call
            except asyncio.CancelledError:
                continue
            except ProductionError:
                step += 1  # what was given back is too old by now: that step is skipped
                await manager.set_version(step - 1)
                continue
            if not result and result.status is State.OUTDATED:
                await manager.set_version(step - 1)
            elif not result and result.status is State.FINISHED:
                return
            elif rng.random() < 0.15:
                await world.turns()
                await manager.give_back(result)
            elif result:
                await world.finish(result)
                step += 1
                if rng.random() < 0.6:
                    await manager.set_version(step - 1)

    async def disturb() -> None:
        while True:
            await world.turns()
            await asyncio.sleep(rng.choice([0.25, 0.5, 0.75]))
            if manager.state is State.FINISHED:
                return
            if rng.random() < 0.5:
                await asyncio.gather(*(manager.pause() for _ in range(rng.choice([1, 2]))))
                if manager.state is not State.FINISHED:
                    world.check_paused()
                await world.turns()
                if manager.state is not State.FINISHED:
                    await manager.continue_(max(manager.version, step - 1))
            else:
                world.look()

    manager.start(size)
    async with asyncio.TaskGroup() as group:  # so that what fails in one ends the other
        others = group.create_task(disturb())
        await train()
        others.cancel()
    await manager.shutdown()
    world.check_paused()
    return world


async def one(seed: int, play: Callable[[int], Any]) -> World:
    world: World = await play(seed)
    await world.settle()
    assert world.looks > 1
    return world


BLOCK = 50  # seeds in one test


@pytest.mark.parametrize("block", range(6))
def test_pauses_cancels_and_new_weights_lose_and_double_nothing(block: int) -> None:
    trained = 0
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        world = run(one(seed, disaggregated), seed=seed)
        trained += len(world.trained)
        done = len(world.trained) + sum(len(s.back) for s in world.sources.values())
        assert done <= 10
    assert trained > BLOCK * 4


@pytest.mark.soak
@pytest.mark.parametrize("block", range(4))
def test_many_more_interleavings(block: int) -> None:
    for seed in range(10_000 + block * 500, 10_500 + block * 500):
        run(one(seed, disaggregated), seed=seed)
        run(one(seed, colocated), seed=seed)


# -- colocated ------------------------------------------------------------------------------------
async def colocated(seed: int) -> World:
    """Batch after batch; now and then the caller is cancelled, and starts over."""
    world = World(seed, ColocatedManager)
    manager, rng = world.manager, world.rng
    assert isinstance(manager, ColocatedManager)
    size = rng.choice([2, 3])
    for step in range(1, 40):
        while True:
            call = asyncio.create_task(manager.produce_batch(size, step))
            if rng.random() < 0.2:
                await world.turns()
                call.cancel()
            try:
                result = await call
            except asyncio.CancelledError:
                await manager.pause()
                world.check_paused()
                continue
            break
        world.check_paused()
        if not result:
            break
        await world.finish(result)
        if result.status is State.FINISHED:
            break
    await manager.shutdown()
    world.check_paused()
    return world


@pytest.mark.parametrize("block", range(4))
def test_batch_after_batch_is_produced_from_every_prompt_once(block: int) -> None:
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        run(one(seed, colocated), seed=seed)


# -- one moment -----------------------------------------------------------------------------------
# Small worlds in which everything that matters happens in the same instant, many times over.
class Instant:
    """A generator whose calls all end at the same time, each after some turns of its own."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.version = 0

    async def generate(self, group: rc.Group, *, keep_partial: bool) -> rc.Group:
        await asyncio.sleep(1)
        for _ in range(self.rng.randrange(4)):
            await asyncio.sleep(0)
        for rollout in group:
            rollout.response_ids, rollout.finish_reason = np.int32([7]), "stop"
        return group

    async def pause(self) -> None: ...

    async def continue_(self, version: int) -> None:
        self.version = version

    async def set_version(self, version: int) -> None:
        self.version = version


def small(seed: int, **options: Any) -> tuple[random.Random, Source, DisaggregatedManager]:
    rng = random.Random(seed)
    source = Source("a", 3, 1)
    strategy = rng.choice([SyncStrategy(), AsyncStrategy(), AsyncStrategy(over_sample=1.0)])
    buffer = rc.RolloutBuffer(
        staleness=rc.Staleness(max_staleness=5), clock=VirtualClock(), **options
    )
    task = Task("a", source, Instant(rng), strategy=strategy)
    return (
        rng,
        source,
        DisaggregatedManager(task, buffer, drain_timeout=rng.choice([0.0, 0.0, 9.0])),
    )


def where(source: Source, manager: DisaggregatedManager) -> list[str]:
    """Every prompt's place; fails where one has none, or two."""
    found = []
    for group_id in ("a-0", "a-1", "a-2"):
        flights = [f for fs in manager.in_flight.values() for f in fs if f.group_id == group_id]
        places = ["source"] * source.has(group_id) + ["flight"] * len(flights)
        places += ["stored"] * (manager.buffer.find(group_id) is not None)
        assert len(places) == 1, f"{group_id} is in {places}"
        found += places
    return found


async def turns(rng: random.Random, most: int = 8) -> None:
    for _ in range(rng.randrange(most)):
        await asyncio.sleep(0)


def test_a_pause_in_the_moment_of_finishing_finds_every_result_stored_or_given_back() -> None:
    async def main(seed: int) -> list[str]:
        rng, source, manager = small(seed)
        manager.start(3)
        await asyncio.sleep(1)
        await turns(rng)
        await asyncio.gather(*(manager.pause() for _ in range(rng.choice([1, 2]))))
        found = where(source, manager)
        assert "flight" not in found
        await manager.continue_(0)
        result = await manager.get_batch(3, 1)
        assert sorted(g.group_id for g in result.groups["a"]) == ["a-0", "a-1", "a-2"]
        await manager.shutdown()
        return found

    found = Counter(place for seed in range(600) for place in run(main(seed), seed=seed))
    assert min(found["source"], found["stored"]) > 50  # both happen


def test_a_picture_at_any_turn_has_every_prompt_once_also_while_results_are_stored() -> None:
    async def main(seed: int) -> Counter[str]:
        rng, source, manager = small(seed)
        manager.start(3)
        await asyncio.sleep(1)
        seen: Counter[str] = Counter()
        for _ in range(20):
            seen.update(where(source, manager))
            await asyncio.sleep(0)
            if rng.random() < 0.05:
                await manager.pause()
                assert not manager.in_flight
                await manager.continue_(0)
        await manager.shutdown()
        where(source, manager)
        return seen

    seen: Counter[str] = Counter()
    for seed in range(400):
        seen += run(main(seed), seed=seed)
    assert min(seen["flight"], seen["stored"]) > 1000


@pytest.mark.parametrize("journal", [False, True])
def test_who_stops_waiting_for_a_batch_in_the_moment_it_comes_takes_nothing_along(
    journal: bool, tmp_path: Any
) -> None:
    async def main(seed: int) -> bool:
        options = {"journal": tmp_path / str(seed)} if journal else {}
        rng, _, manager = small(seed, **options)
        manager.start(3)
        call = asyncio.create_task(manager.get_batch(3, 1))
        await asyncio.sleep(1)
        await turns(rng, 16)
        call.cancel()
        await turns(rng, 3)
        call.cancel()
        done = (await asyncio.gather(call, return_exceptions=True))[0]
        if isinstance(done, BatchResult):
            await manager.confirm(done)
        else:
            assert isinstance(done, asyncio.CancelledError)
            again = await manager.get_batch(3, 1)
            assert sorted(g.group_id for g in again.groups["a"]) == ["a-0", "a-1", "a-2"]
            await manager.confirm(again)
        assert set(manager.buffer.counts()) <= {("a", rc.Status.ARCHIVED)}
        assert manager.buffer.accounts()["a"]["leased"] == 0
        await manager.shutdown()
        manager.buffer.close()
        return isinstance(done, BatchResult)

    came = sum(run(main(seed), seed=seed) for seed in range(40 if journal else 500))
    assert came > 0


def test_who_waits_while_production_is_shut_down_gets_an_empty_batch() -> None:
    async def main(seed: int) -> bool:
        rng, source, manager = small(seed)
        manager.start(3)
        call = asyncio.create_task(manager.get_batch(3, 1))
        await asyncio.sleep(1)
        await turns(rng, 16)
        await manager.shutdown()
        result = await call
        assert result.status in (State.RUNNING, State.FINISHED)
        assert bool(result) == bool(result.groups)
        if not result:
            assert result.status is State.FINISHED
            assert "flight" not in where(source, manager)
        return bool(result)

    came = sum(run(main(seed), seed=seed) for seed in range(300))
    assert 0 < came < 300


def test_a_failure_in_the_moment_of_a_pause_is_raised_and_loses_no_prompt() -> None:
    class Failing(Instant):
        async def generate(self, group: rc.Group, *, keep_partial: bool) -> rc.Group:
            done = await super().generate(group, keep_partial=keep_partial)
            if group.group_id == "a-1":
                raise RuntimeError("broken")
            return done

    async def main(seed: int) -> bool:
        rng, source, manager = small(seed)
        task = manager.tasks["a"]
        task.generator = Failing(rng)
        manager.start(3)
        call = asyncio.create_task(manager.get_batch(3, 1))
        await asyncio.sleep(1)
        await turns(rng)
        await manager.pause()
        assert "flight" not in where(source, manager)
        task.generator = Instant(rng)
        await turns(rng)
        await manager.continue_(0)
        result = (await asyncio.gather(call, return_exceptions=True))[0]
        raised = isinstance(result, RuntimeError)
        if raised:
            assert str(result) == "broken"
            result = await manager.get_batch(3, 1)
        assert isinstance(result, BatchResult)
        assert len(result.groups["a"]) == 3
        await manager.shutdown()
        return raised

    raised = sum(run(main(seed), seed=seed) for seed in range(300))
    assert 0 < raised < 300


def test_with_the_prompts_used_up_nobody_waits_for_room_that_would_not_help() -> None:
    async def main(seed: int) -> None:
        _, _, manager = small(seed, capacity=4)
        manager.start(4)
        result = await manager.get_batch(4, 1)
        assert sorted(g.group_id for g in result.groups["a"]) == ["a-0", "a-1", "a-2"]
        assert result.status is State.FINISHED
        await manager.confirm(result)
        assert not await manager.get_batch(4, 2)
        await manager.shutdown()

    for seed in range(100):
        run(main(seed), seed=seed)


def test_what_expires_goes_back_to_the_prompts_of_a_strategy_that_takes_new_ones_only() -> None:
    async def main(seed: int) -> None:
        rng = random.Random(seed)
        source = Source("a", 6, 1)
        buffer = rc.RolloutBuffer(staleness=rc.Staleness(), capacity=3, clock=VirtualClock())
        task = Task("a", source, Instant(rng), strategy=SyncStrategy())
        manager = DisaggregatedManager(task, buffer)
        manager.start(3)
        trained: list[str] = []
        for step in range(1, 5):
            result = await manager.get_batch(3, step)
            while not result and result.status is State.OUTDATED:
                await manager.set_version(step - 1)
                result = await manager.get_batch(3, step)
            if step == 2:  # skipped: its groups are too old for the next step, and come again
                await manager.give_back(result)
            else:
                trained += [group.group_id for group in result.groups.get("a", ())]
                await manager.confirm(result)
            await turns(rng)
            await manager.set_version(step)
        assert sorted(trained) == [f"a-{number}" for number in range(6)]
        await manager.shutdown()

    for seed in range(50):
        run(main(seed), seed=seed)


# -- pending --------------------------------------------------------------------------------------
@pytest.mark.parametrize("block", range(4))
def test_a_flight_is_claimed_or_cancelled_and_never_both(block: int) -> None:
    """Finishing, waiting, limits, stops and cancels of many flights in any order."""

    async def main(seed: int) -> None:
        rng = random.Random(seed)
        stopping = False
        changed = Signal()
        pending = Pending(lambda: stopping, changed)
        ends: Counter[str] = Counter()
        scheduled: list[str] = []

        async def fly(flight: Flight) -> None:
            try:
                await asyncio.sleep(rng.choice([0, 0, 1, 1, 2]))
            except asyncio.CancelledError:
                assert not pending.claim(flight)  # who cancelled has the prompt
                raise
            if pending.claim(flight):
                assert not pending.claim(flight)
                assert flight in pending.in_flight
                for _ in range(rng.randrange(3)):
                    await asyncio.sleep(0)
                assert flight in pending.in_flight  # until it is stored
                ends[flight.group_id] += 1
                pending.done(flight)

        async def schedule() -> None:
            for number in range(12):
                group = rc.Group([rc.Rollout()], group_id=str(number), prompt_ids=[1])
                flight = Flight(group, None, 0, 0.0)
                if pending.schedule(flight, fly, limit=5):
                    assert not stopping
                    assert len(pending) <= 5
                    scheduled.append(flight.group_id)
                else:
                    assert stopping or len(pending) >= 5
                    await asyncio.sleep(rng.choice([0, 1]))

        async def cancel() -> None:
            for _ in range(3):
                await asyncio.sleep(rng.choice([0, 1, 1]))
                chosen = [f for f in pending.in_flight if rng.random() < 0.5]
                for flight in pending.cancel(chosen):
                    ends[flight.group_id] += 1

        async def stop() -> None:
            nonlocal stopping
            await asyncio.sleep(rng.choice([1, 2, 3]))
            stopping = True
            changed.notify()
            before = len(scheduled)
            waiting = asyncio.create_task(pending.drained())
            if rng.random() < 0.5:
                for flight in pending.cancel_all():
                    ends[flight.group_id] += 1
                claimed = pending.in_flight
                assert all(not pending.claim(flight) for flight in claimed)
            if rng.random() < 0.3:
                waiting.cancel()  # one who waits may leave
                await asyncio.gather(waiting, return_exceptions=True)
                waiting = asyncio.create_task(pending.drained())
            await waiting
            assert not pending.in_flight
            assert len(scheduled) == before

        await asyncio.gather(schedule(), cancel(), stop())
        assert ends == Counter(scheduled)

    for seed in range(block * 500, (block + 1) * 500):
        run(main(seed), seed=seed)
