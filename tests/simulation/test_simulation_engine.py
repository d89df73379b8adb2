"""The simulated engine beside an obvious oracle, and the fates of its responses."""

from __future__ import annotations

import asyncio
import random

import numpy as np
import pytest

import recollect as rc
from recollect.simulation import Scenario, TaskModel, run
from recollect.simulation.answers import EndlessPrompts, Fate, SimulatedGenerator
from recollect.simulation.engine import Engine, EngineRequest


def request(cells, ended=lambda request: None, slowness=1.0, ends="stop"):
    return EngineRequest(cells, ends, slowness, ended)


def versions(done):
    return [version for version, cells in done.pieces for _ in range(cells)]


def test_requests_start_in_order_as_slots_become_free():
    async def main():
        engine = Engine(2, cell_seconds=1.0)
        asked = [request(cells) for cells in (5, 3, 4, 1)]
        for each in asked:
            engine.submit(each)
        await asyncio.sleep(100)
        return [(each.started, each.finished) for each in asked], engine.busy()

    assert run(main()) == ([(0, 5), (0, 3), (3, 7), (5, 6)], 13)


class Oracle:
    """Each slot's end, each cell's moment; no events."""

    def __init__(self, slots, pace, loads):
        self.free = [0.0] * slots
        self.pace = pace
        self.loads = loads  # (time, version), in order

    def answer(self, at, cells, slowness):
        slot = min(range(len(self.free)), key=lambda s: (self.free[s], s))
        started = max(at, self.free[slot])
        pace = self.pace * slowness
        self.free[slot] = started + cells * pace
        written = []
        for cell in range(cells):
            moment = started + (cell + 1) * pace
            known = [v for t, v in self.loads if t <= started or t < moment - 1e-7]
            written.append(known[-1])
        return started, written


@pytest.mark.parametrize("seed", range(30))
def test_the_engine_does_what_the_oracle_does(seed):
    rng = random.Random(seed)
    slots, pace = rng.randint(1, 5), rng.choice([0.25, 1.0, 1.5])
    jobs = sorted(
        (rng.uniform(0, 40), rng.randint(1, 12), rng.choice([1.0, 1.0, 3.0])) for _ in range(40)
    )
    loads = [(0.0, 0)]
    loads += [(t, n + 1) for n, t in enumerate(sorted(rng.uniform(0, 80) for _ in range(8)))]

    async def main():
        engine = Engine(slots, pace)
        loop = asyncio.get_running_loop()
        for time, version in loads[1:]:
            loop.call_at(time, engine.load, version)
        asked = [request(cells, slowness=slow) for _, cells, slow in jobs]
        for (at, *_), each in zip(jobs, asked, strict=True):
            loop.call_at(at, engine.submit, each)
        await asyncio.sleep(10_000)
        return asked, engine.cells

    asked, cells = run(main())
    oracle = Oracle(slots, pace, loads)
    for (at, size, slow), each in zip(jobs, asked, strict=True):
        started, written = oracle.answer(at, size, slow)
        assert each.started == pytest.approx(started)
        assert versions(each) == written
        assert each.reason == "stop"
    assert cells == sum(size for _, size, _ in jobs)


def test_a_pause_aborts_what_runs_and_what_waits_and_keeps_what_was_written():
    async def main():
        engine = Engine(1, cell_seconds=1.0, version=3)
        told = []
        first, second = request(10, told.append), request(10, told.append)
        engine.submit(first)
        engine.submit(second)
        await asyncio.sleep(4.5)
        engine.pause()
        assert told == [first, second]
        third = request(10, told.append)
        engine.submit(third)  # while paused
        await asyncio.sleep(0)
        assert [(each.reason, versions(each)) for each in told] == [
            ("abort", [3, 3, 3, 3]), ("abort", []), ("abort", []),
        ]  # fmt: skip
        engine.load(4)
        engine.go_on()
        fourth = request(2)
        engine.submit(fourth)
        await asyncio.sleep(2)
        return versions(fourth), engine.cells, engine.busy()

    assert run(main()) == ([4, 4], 6, 6.5)


def test_cancelling_frees_the_slot_and_tells_nobody():
    async def main():
        engine = Engine(1, cell_seconds=1.0)
        told = []
        running, waiting, last = (request(10, told.append) for _ in range(3))
        for each in (running, waiting, last):
            engine.submit(each)
        await asyncio.sleep(3)
        engine.cancel(waiting)
        engine.cancel(running)
        engine.cancel(running)
        await asyncio.sleep(20)
        assert told == [last]
        return last.started, running.written, waiting.written

    assert run(main()) == (3, 3, 0)


# -- fates


def lengths(model, groups=2000, **options):
    scenario = Scenario(tasks={"t": model}, group_size=4, tokens_per_cell=1, **options)
    fates = [Fate(scenario, model, 0, number, 0) for number in range(groups)]
    return np.array([fate.cells for fate in fates]).ravel(), fates


def test_lengths_are_lognormal_and_cut():
    model = TaskModel(median_tokens=1000, sigma=0.8, max_tokens=4000)
    cells, fates = lengths(model)
    assert np.median(cells) == pytest.approx(1000, rel=0.05)
    uncut = np.log(cells[cells < 4000])
    assert np.quantile(uncut, 0.2) == pytest.approx(np.log(1000) - 0.8416 * 0.8, abs=0.06)
    assert cells.max() == 4000
    cut = np.array([fate.is_cut for fate in fates]).mean()
    assert cut == pytest.approx(0.0416, abs=0.008)  # ln 4 / 0.8 = 1.733 standard deviations


def test_shares_are_those_of_the_model():
    model = TaskModel(failure=0.1, abort=0.2, straggler=0.3, filtered=0.4)
    _, fates = lengths(model)
    for name, share in (("fails", 0.1), ("drops", 0.2), ("slow", 0.3)):
        found = np.array([getattr(fate, name) for fate in fates]).mean()
        assert found == pytest.approx(share, abs=0.02)
    assert np.mean([fate.is_filtered for fate in fates]) == pytest.approx(0.4, abs=0.04)
    assert not any(a and b for fate in fates for a, b in zip(fate.fails, fate.drops, strict=True))


def test_a_fate_follows_from_seed_task_number_and_attempt():
    model = TaskModel()
    scenario = Scenario(tasks={"t": model})
    one = Fate(scenario, model, 0, 5, 0)
    assert Fate(scenario, model, 0, 5, 0).cells == one.cells
    others = [
        Fate(scenario, model, 1, 5, 0),
        Fate(scenario, model, 0, 6, 0),
        Fate(scenario, model, 0, 5, 1),
        Fate(Scenario(tasks={"t": model}, seed=1), model, 0, 5, 0),
    ]
    assert all(other.cells != one.cells for other in others)


# -- generating


def test_a_continued_response_keeps_its_length_and_its_first_versions():
    async def main():
        scenario = Scenario(tasks={"t": TaskModel(sigma=0)}, group_size=2, tokens_per_cell=100)
        engine = Engine(2, cell_seconds=1.0)  # responses of 10 cells
        generator = SimulatedGenerator(scenario, engine)
        prompts = EndlessPrompts("t", 2)
        running = asyncio.create_task(generator.generate(prompts.next(), keep_partial=True))
        await asyncio.sleep(4)
        await generator.pause()
        group = await running
        assert group.status == rc.Status.ABORTED
        assert [r.versions.tolist() for r in group] == [[0] * 4] * 2
        await generator.continue_(7)
        group = await generator.generate(group, keep_partial=True)
        assert group.status == rc.Status.COMPLETED
        assert [r.versions.tolist() for r in group] == [[0] * 4 + [7] * 6] * 2
        assert [r.dispatch_version for r in group] == [0, 0]
        assert generator.tallies["t"].generated == 20
        assert not generator.tallies["t"].lost
        return asyncio.get_running_loop().time()

    assert run(main()) == 10.0


def test_what_is_not_kept_is_counted_as_lost():
    async def main():
        scenario = Scenario(tasks={"t": TaskModel(sigma=0)}, group_size=2, tokens_per_cell=100)
        generator = SimulatedGenerator(scenario, Engine(2, cell_seconds=1.0))
        prompts = EndlessPrompts("t", 2)
        running = asyncio.create_task(generator.generate(prompts.next(), keep_partial=False))
        await asyncio.sleep(4)
        await generator.pause()
        group = await running
        assert [r.num_tokens for r in group] == [0, 0]
        await generator.continue_(1)
        running = asyncio.create_task(generator.generate(prompts.next(), keep_partial=True))
        await asyncio.sleep(3)
        running.cancel()
        await asyncio.wait([running])
        tally = generator.tallies["t"]
        return tally.generated, dict(tally.lost)

    assert run(main()) == (14, {"aborted": 8, "cancelled": 6})


def test_finished_members_are_not_generated_again():
    async def main():
        scenario = Scenario(tasks={"t": TaskModel(sigma=0)}, group_size=3, tokens_per_cell=100)
        generator = SimulatedGenerator(scenario, Engine(8, cell_seconds=1.0))
        group = await generator.generate(EndlessPrompts("t", 3).next(), keep_partial=True)
        group[1].reset()
        await generator.set_version(2)
        group = await generator.generate(group, keep_partial=True)
        return [sorted(set(r.versions.tolist())) for r in group], generator.tallies["t"].generated

    assert run(main()) == ([[0], [2], [0]], 40)


def test_prompts_given_back_come_first_with_their_ids():
    prompts = EndlessPrompts("t", 2)
    groups = [prompts.next() for _ in range(3)]
    prompts.give_back(groups[1])
    saved = prompts.state()
    assert [prompts.next().group_id for _ in range(2)] == ["t-1", "t-3"]
    prompts.restore(saved)
    assert [prompts.next().group_id for _ in range(2)] == ["t-1", "t-3"]
