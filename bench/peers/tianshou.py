"""Tianshou: NumPy columns and a segment tree in Numba."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from tianshou.data import Batch, PrioritizedReplayBuffer, ReplayBuffer, VectorReplayBuffer

from bench.adapter import Transitions
from bench.data import Rows, make_priorities
from bench.steps import Environments
from bench.workloads.base import Workload
from bench.workloads.w5_environments import ENVIRONMENTS

DISTRIBUTIONS = ("tianshou", "torch", "numba", "numpy")


class Tianshou(Transitions):
    """`PrioritizedReplayBuffer` or `ReplayBuffer`.

    `add` takes one step, or one step of each of n sub-buffers and then loops over them in Python.
    Moving a buffer made by `from_data` in with `update` was 1.5 to 1.8 times as fast for 64
    rows and 5 times for 1024, so that is what inserts of many rows use.
    """

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload)
        if workload.prioritized:
            self.buffer: Any = PrioritizedReplayBuffer(
                workload.rows, alpha=workload.alpha, beta=workload.beta
            )
        else:
            self.buffer = ReplayBuffer(workload.rows)

    def insert(self, rows: Rows, n: int) -> Callable[[], object]:
        """`add` of one step, `update` from a buffer of many."""
        never = np.zeros(n, bool)
        given = {
            "obs": rows["obs"],
            "act": rows["action"],
            "rew": rows["reward"],
            "terminated": rows["done"],
            "truncated": never,
            "obs_next": rows["next_obs"],
        }
        if n == 1:
            step = Batch(**{name: cells[0] for name, cells in given.items()})
            return lambda: self.buffer.add(step)
        done = rows["done"]
        return lambda: self.buffer.update(ReplayBuffer.from_data(**given, done=done))

    def sample(self, n: int) -> Callable[[], object]:
        """A Batch, with its weight where there are priorities, and the indices."""
        return lambda: self.buffer.sample(n)

    def update(self, n: int, priorities: Iterator[np.ndarray[Any, Any]]) -> Callable[[], object]:
        """`update_weight` at random indices."""
        indices = itertools.cycle(self.random_indices(n))
        return lambda: self.buffer.update_weight(next(indices), next(priorities))

    def sample_and_update(
        self, n: int, priorities: Iterator[np.ndarray[Any, Any]]
    ) -> Callable[[], object]:
        """Draw, and set the priorities of what was drawn."""

        def run() -> None:
            _, indices = self.buffer.sample(n)
            self.buffer.update_weight(indices, next(priorities))

        return run

    def spread(self) -> None:
        """One update over all rows."""
        rows = self.workload.rows
        self.buffer.update_weight(np.arange(rows), make_priorities(rows))


class TianshouEnvironments(Environments):
    """`VectorReplayBuffer`, a buffer for each environment."""

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload)
        self.buffer = VectorReplayBuffer(workload.rows, ENVIRONMENTS)

    def convert(self, steps: Rows) -> Any:
        """A Batch."""
        return Batch(
            obs=steps["obs"],
            act=steps["action"],
            rew=steps["reward"],
            terminated=steps["done"],
            truncated=np.zeros(ENVIRONMENTS, bool),
            obs_next=steps["next_obs"],
        )

    def insert(self, steps: Any) -> object:
        """`add` of one step of every environment."""
        return self.buffer.add(steps)


ADAPTERS = {"transitions": Tianshou, "environments": TianshouEnvironments}
