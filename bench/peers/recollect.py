"""Recollect itself, through its public names only."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import recollect as rc
from bench.adapter import POOL, Adapter, Call, Transitions
from bench.data import Rows, make_priorities, make_rows
from bench.peers.recollect_rollouts import (
    RecollectBesideLists,
    RecollectChurn,
    RecollectRolloutGrowth,
    RecollectRollouts,
)
from bench.peers.recollect_steps import (
    RecollectEnvironments,
    RecollectFrames,
    RecollectGrowth,
    RecollectSequences,
)
from bench.workloads.base import Operation, Workload
from bench.workloads.growth import EXPIRING

DISTRIBUTIONS = ("recollect", "numpy", "numba", "pyarrow")


class Recollect(Transitions):
    """A `Table` that evicts its oldest row when it is full."""

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload)
        if workload.prioritized:
            sampler: Any = rc.Prioritized(alpha=workload.alpha, beta=workload.beta)
        else:
            sampler = rc.Uniform()
        self.names = tuple(column.name for column in workload.columns)
        self.table = rc.Table(
            "rows", capacity=workload.rows, sampler=sampler, remover=rc.Fifo(), seed=0
        )

    def insert(self, rows: Rows, n: int) -> Callable[[], object]:
        """`insert` of a dict of arrays; new rows get the highest priority there is."""
        return lambda: self.table.insert(rows)

    def sample(self, n: int) -> Callable[[], object]:
        """Every column, the keys and the weights, each of them asked for."""
        return lambda: self._draw(n)

    def update(self, n: int, priorities: Iterator[np.ndarray[Any, Any]]) -> Callable[[], object]:
        """`update` at keys drawn before and still there."""
        keys = itertools.cycle([self.table.sample(n).info.keys for _ in range(POOL)])
        return lambda: self.table.update(next(keys), priority=next(priorities))

    def sample_and_update(
        self, n: int, priorities: Iterator[np.ndarray[Any, Any]]
    ) -> Callable[[], object]:
        """Draw, and set the priorities of what was drawn."""
        return lambda: self.table.update(self._draw(n)[1], priority=next(priorities))

    def spread(self) -> None:
        """Replace every row once, with priorities that differ."""
        rows, n = self.workload.rows, min(self.workload.rows, 8192)
        some = make_rows(self.workload.columns, n)
        for seed in range(-(-rows // n)):
            self.table.insert(some, priority=make_priorities(n, seed))
        self.table.sample(1)  # indexes are made when they are first needed

    def close(self) -> None:
        """Close the table."""
        self.table.close()

    def _draw(self, n: int) -> tuple[list[Any], Any, Any]:
        batch = self.table.sample(n)
        columns = [batch[name] for name in self.names]
        return columns, batch.info.keys, batch.info.weights


class Growth(Adapter):
    """The same verb over tables of a thousand and of a million items."""

    rehearse = False
    TASKS = ("math", "code", "games", "chat")
    CHUNK = 1000

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload)
        self.tables: dict[tuple[str, int], Any] = {}

    def fill(self) -> None:
        """Nothing yet: a table is made when its size is first asked for."""

    def prepare(self, operation: Operation) -> Call:
        """One call over a table of `operation.size` items."""
        if operation.verb == "count(partition)":
            table = self._table(operation, rc.Uniform())
            where = rc.field("task") == self.TASKS[0]
            return Call(lambda: table.count(where), 1)
        if operation.verb == EXPIRING:
            table = self._table(operation, rc.Fifo())
            if not table.stats()["leases"]:  # one item of a hundred is leased, each by itself
                for _ in range(operation.size // 100):
                    table.take(1, lease=86_400)
            return Call(table.count, 1)
        sampler = rc.StalestFirst() if "Stalest" in operation.verb else rc.Fifo()
        table = self._table(operation, sampler)
        some = make_rows(self.workload.columns, 64)
        rising = itertools.count(operation.size)
        random = np.random.default_rng(1)

        def put_back() -> None:
            versions: Any = next(rising)
            if "any order" in operation.verb:  # what is put back is in any order too
                versions += random.integers(0, operation.size, 64)
            table.insert(some, task=self.TASKS[0], version=versions)

        return Call(lambda: table.take(64), 1, before=put_back)

    def _table(self, operation: Operation, sampler: Any) -> Any:
        key = (operation.verb, operation.size)
        if key not in self.tables:
            table = rc.Table(
                "growth",
                capacity=operation.size + 64,
                sampler=sampler,
                partition_by=("task",),
                seed=0,
            )
            rows = make_rows(self.workload.columns, self.CHUNK)
            random = np.random.default_rng(0)
            for chunk in range(operation.size // self.CHUNK):
                versions: Any = chunk  # weights after step k are version k, so versions rise
                if "any order" in operation.verb:
                    versions = random.integers(0, operation.size, self.CHUNK)
                table.insert(rows, task=self.TASKS[chunk % len(self.TASKS)], version=versions)
            self.tables[key] = table
        return self.tables[key]


ADAPTERS = {
    "transitions": Recollect,
    "growth": Growth,
    "sequences": RecollectSequences,
    "steps growth": RecollectGrowth,
    "environments": RecollectEnvironments,
    "frames": RecollectFrames,
    "rollouts": RecollectRollouts,
    "rollout churn": RecollectChurn,
    "rollout lists": RecollectBesideLists,
    "rollout growth": RecollectRolloutGrowth,
}
