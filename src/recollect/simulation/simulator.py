"""Running a scenario: the real managers, strategies and buffer on a simulated engine.

Only what takes time is simulated. What is produced, stored, expired and taken is decided by the
code that decides it in a real run, on a loop whose time jumps.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import numpy as np

from recollect.errors import InvalidValue, shown
from recollect.production import (
    AsyncStrategy,
    ColocatedManager,
    DisaggregatedManager,
    State,
    SyncStrategy,
    Task,
    Times,
)
from recollect.production.results import BatchResult
from recollect.rollouts.buffer import RolloutBuffer
from recollect.simulation.answers import EndlessPrompts, SimulatedGenerator, cells_of
from recollect.simulation.engine import Engine
from recollect.simulation.report import Report, TaskReport, jain, mean_of
from recollect.simulation.scenario import Scenario
from recollect.simulation.virtual_loop import LONGEST, VirtualClock, run


def simulate(scenario: Scenario) -> Report:
    """Simulate a training run; the same scenario gives the same report.

    >>> from recollect.simulation import Scenario, simulate
    >>> report = simulate(Scenario(batch_size=8, slots=64, steps=20))
    >>> report.steps, report.trained <= report.generated
    (20, True)
    """

    if not isinstance(scenario, Scenario):
        raise InvalidValue(
            "scenario: expected a Scenario, which Scenario.from_config makes of a mapping or a "
            f"file, got {shown(scenario)}"
        )

    async def main() -> Report:
        return await Simulation(scenario).run()

    return run(main(), limit=LONGEST)


class Simulation:
    """One run, and what it counts."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._loop = asyncio.get_running_loop()
        cell_seconds = scenario.tokens_per_cell / scenario.tokens_per_second
        self._engine = Engine(scenario.slots, cell_seconds)
        self._generator = SimulatedGenerator(scenario, self._engine)
        self.buffer = RolloutBuffer(
            staleness=scenario.staleness, clock=VirtualClock(), seed=scenario.seed
        )
        self._spent = {"training": 0.0, "waiting": 0.0, "syncing": 0.0}  # seconds of the trainer
        self._lags: dict[str, Counter[int]] = {task: Counter() for task in scenario.tasks}
        self._group_lags: Counter[int] = Counter()
        self._groups: Counter[str] = Counter()
        self._waited_for = dict.fromkeys(scenario.tasks, 0.0)
        self._outdated = 0

    async def run(self) -> Report:
        """Train to the end; what it was like."""
        tasks, timeout = self._tasks(), self._scenario.drain_timeout
        manager: ColocatedManager | DisaggregatedManager
        if self._scenario.arrangement == "colocated":
            manager = ColocatedManager(tasks, self.buffer, drain_timeout=timeout)
            await self._colocated(manager)
        else:
            manager = DisaggregatedManager(tasks, self.buffer, drain_timeout=timeout)
            await self._disaggregated(manager)
        self._seconds = self._loop.time()
        self._busy = self._engine.busy()
        self._generator.is_over = True
        await manager.pause()
        await manager.shutdown()
        return self._report()

    # -- the two arrangements --------------------------------------------------------------------
    async def _colocated(self, manager: ColocatedManager) -> None:
        scenario, version = self._scenario, 0
        for step in range(1, scenario.steps + 1):
            begin = self._loop.time()
            result = await manager.produce_batch(scenario.batch_size, step, version=version)
            self._waited(begin)
            await self._train(manager, result, step)
            if step % scenario.staleness.sync_interval == 0:
                await self._spend("syncing", scenario.sync_seconds)
                version = step

    async def _disaggregated(self, manager: DisaggregatedManager) -> None:
        scenario = self._scenario
        manager.start(scenario.batch_size)
        for step in range(1, scenario.steps + 1):
            while True:
                begin = self._loop.time()
                result = await manager.get_batch(scenario.batch_size, step)
                self._waited(begin)
                if result:
                    break
                assert result.status is State.OUTDATED
                self._outdated += 1
                await self._sync(manager, step - 1)
            await self._train(manager, result, step)
            if step % scenario.staleness.sync_interval == 0:
                await self._sync(manager, step)

    async def _sync(self, manager: DisaggregatedManager, version: int) -> None:
        """Send weights; generation stops meanwhile, or goes on."""
        begin = self._loop.time()
        if self._scenario.sync == "pause":
            await manager.pause()
            await asyncio.sleep(self._scenario.sync_seconds)
            await manager.continue_(version)
        else:
            await asyncio.sleep(self._scenario.sync_seconds)
            hopeless = self._scenario.abort_hopeless
            await manager.set_version(version, abort_hopeless=hopeless)
        self._spent["syncing"] += self._loop.time() - begin

    def _tasks(self) -> list[Task]:
        scenario, generator = self._scenario, self._generator
        return [
            Task(
                name,
                EndlessPrompts(name, scenario.group_size),
                generator,
                strategy=SyncStrategy()
                if scenario.strategy == "sync"
                else AsyncStrategy(
                    scenario.over_sample, scenario.keep_partial, scenario.retry_trigger
                ),
                valid=generator.valid if model.filtered else None,
                weight=model.weight,
            )
            for name, model in scenario.tasks.items()
        ]

    # -- the trainer -----------------------------------------------------------------------------
    async def _train(
        self, manager: ColocatedManager | DisaggregatedManager, result: BatchResult, step: int
    ) -> None:
        for task, groups in result.groups.items():
            self._groups[task] += len(groups)
            versions = groups.batch["versions"]
            lags, counts = np.unique(step - 1 - versions.values, return_counts=True)
            self._lags[task].update(dict(zip(lags.tolist(), counts.tolist(), strict=True)))
            oldest = np.minimum.reduceat(versions.values, versions.offsets[:-1])
            of_groups = np.minimum.reduceat(oldest, groups.info.row_offsets[:-1])
            self._group_lags.update((step - 1 - of_groups).tolist())
        await self._spend("training", self._scenario.train_seconds)
        await manager.confirm(result)

    async def _spend(self, on: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._spent[on] += seconds

    def _waited(self, begin: float) -> None:
        """The trainer has its batch: whose group came last is whom it waited for."""
        seconds = self._loop.time() - begin
        self._spent["waiting"] += seconds
        if seconds:
            tallies = self._generator.tallies
            self._waited_for[max(tallies, key=lambda task: tallies[task].completed_at)] += seconds

    # -- afterwards ------------------------------------------------------------------------------
    def _report(self) -> Report:
        scenario, tallies = self._scenario, self._generator.tallies
        per_cell = scenario.tokens_per_cell
        trained = {task: sum(lags.values()) for task, lags in self._lags.items()}
        left_over = self._left_over()
        waste: Counter[str] = Counter()
        for task, tally in tallies.items():
            waste.update(tally.lost)
            lost = sum(tally.lost.values())
            waste["left_over"] += left_over[task]
            waste["expired"] += tally.generated - lost - trained[task] - left_over[task]
        total = sum((lags for lags in self._lags.values()), Counter())
        weights = {task: model.weight for task, model in scenario.tasks.items()}
        groups = sum(self._groups.values())
        tasks = {
            task: TaskReport(
                weight=weights[task] / sum(weights.values()),
                groups=self._groups[task],
                share=self._groups[task] / groups,
                tokens=trained[task] * per_cell,
                generated=tally.generated * per_cell,
                useful=trained[task] / max(tally.generated, 1),
                waited_for=self._waited_for[task],
                mean_lag=mean_of(self._lags[task]),
                seconds={"p50": times.p50, "p99": times.p99} if times.count else {},
            )
            for task, tally in tallies.items()
            for times in [Times.of(tally.seconds)]
        }
        accounts = self.buffer.accounts()
        return Report(
            steps=scenario.steps,
            seconds=self._seconds,
            training=self._spent["training"] / self._seconds,
            waiting=self._spent["waiting"] / self._seconds,
            syncing=self._spent["syncing"] / self._seconds,
            slots_busy=self._busy / (self._seconds * scenario.slots),
            generated=sum(tally.generated for tally in tallies.values()) * per_cell,
            trained=sum(trained.values()) * per_cell,
            lags={lag: total[lag] * per_cell for lag in sorted(total)},
            group_lags={lag: self._group_lags[lag] for lag in sorted(self._group_lags)},
            waste={reason: cells * per_cell for reason, cells in sorted(waste.items()) if cells},
            expired=sum(account["expired"] for account in accounts.values()),
            outdated=self._outdated,
            tasks=tasks,
            fairness=jain([self._groups[task] / w for task, w in weights.items() if w]),
        )

    def _left_over(self) -> Counter[str]:
        """Cells that are stored when all is over."""
        found: Counter[str] = Counter()
        keys = sorted(map(int, self.buffer.table.counts("key")))
        for group in self.buffer.get(keys) if keys else ():
            found[group.task] += cells_of(group)
        return found
