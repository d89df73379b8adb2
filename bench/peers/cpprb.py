"""cpprb: a segment tree and copies in C++, columns as NumPy arrays."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import cpprb
import numpy as np

from bench.adapter import Transitions
from bench.data import Rows, make_priorities
from bench.workloads.base import Workload

DISTRIBUTIONS = ("cpprb", "numpy")


class Cpprb(Transitions):
    """`PrioritizedReplayBuffer` or `ReplayBuffer`."""

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload)
        columns = {
            column.name: {"shape": column.shape or 1, "dtype": np.dtype(column.dtype)}
            for column in workload.columns
        }
        if workload.prioritized:
            self.buffer = cpprb.PrioritizedReplayBuffer(
                workload.rows, columns, alpha=workload.alpha
            )
        else:
            self.buffer = cpprb.ReplayBuffer(workload.rows, columns)

    def insert(self, rows: Rows, n: int) -> Callable[[], object]:
        """`add` takes one row without a leading axis, or many with one."""
        given = {name: cells[0] for name, cells in rows.items()} if n == 1 else rows
        return lambda: self.buffer.add(**given)

    def sample(self, n: int) -> Callable[[], object]:
        """A dict with the columns, and weights and indexes where there are priorities."""
        if self.workload.prioritized:
            return lambda: self.buffer.sample(n, beta=self.workload.beta)
        return lambda: self.buffer.sample(n)

    def update(self, n: int, priorities: Iterator[np.ndarray[Any, Any]]) -> Callable[[], object]:
        """`update_priorities` at random indexes."""
        indices = itertools.cycle(self.random_indices(n))
        return lambda: self.buffer.update_priorities(next(indices), next(priorities))

    def sample_and_update(
        self, n: int, priorities: Iterator[np.ndarray[Any, Any]]
    ) -> Callable[[], object]:
        """Draw, and set the priorities of what was drawn."""

        def run() -> None:
            batch = self.buffer.sample(n, beta=self.workload.beta)
            self.buffer.update_priorities(batch["indexes"], next(priorities))

        return run

    def spread(self) -> None:
        """One update over all rows."""
        rows = self.workload.rows
        self.buffer.update_priorities(np.arange(rows), make_priorities(rows))


ADAPTERS = {"transitions": Cpprb}
