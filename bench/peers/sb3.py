"""Stable-Baselines3: NumPy columns, uniform draws, torch tensors out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer

from bench.adapter import Transitions, Unsupported
from bench.data import Rows, make_rows
from bench.workloads.base import Column, Workload

DISTRIBUTIONS = ("stable-baselines3", "torch", "numpy")
DEFAULT_THREADS = torch.get_num_threads()


class StableBaselines(Transitions):
    """`ReplayBuffer`, whose `add` takes one step of each of a fixed number of environments,

    so an insert of n rows uses a buffer of n environments and as many rows in total.
    """

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload)
        if workload.prioritized:
            raise Unsupported("no prioritized buffer")
        self.by_column = {column.name: column for column in workload.columns}
        # Samples come from the buffer that the inserts fill, so that pixels are held only once.
        self.main = 1 if workload.together else 32
        self.buffers: dict[int, ReplayBuffer] = {}

    def thread_counts(self) -> tuple[int, ...]:
        """torch's default and one: waiting for its second thread can cost more than it saves."""
        return tuple(sorted({1, DEFAULT_THREADS}))

    def set_threads(self, count: int) -> None:
        """For the operations inside torch."""
        torch.set_num_threads(count)

    def fill(self) -> None:
        """Fill the buffer that is drawn from; the others wrap while they are timed."""
        rows = self._rows(self.main)
        buffer = self._buffer(self.main)
        for _ in range(buffer.buffer_size):
            buffer.add(*rows)

    def insert(self, rows: Rows, n: int) -> Callable[[], object]:
        """`add` of one step of n environments."""
        buffer = self._buffer(n)
        given = self._arguments(rows)
        if not buffer.full:
            for _ in range(buffer.buffer_size):
                buffer.add(*given)
        return lambda: buffer.add(*given)

    def sample(self, n: int) -> Callable[[], object]:
        """A tuple of torch tensors."""
        buffer = self._buffer(self.main)
        return lambda: buffer.sample(n)

    def _buffer(self, environments: int) -> ReplayBuffer:
        if environments not in self.buffers:
            self.buffers[environments] = ReplayBuffer(
                self.workload.rows,
                _space(self.by_column["obs"]),
                _space(self.by_column["action"]),
                device="cpu",
                n_envs=environments,
                handle_timeout_termination=False,
            )
        return self.buffers[environments]

    def _rows(self, n: int) -> tuple[Any, ...]:
        return self._arguments(make_rows(self.workload, n))

    def _arguments(self, rows: Rows) -> tuple[Any, ...]:
        infos: list[dict[str, Any]] = [{}] * len(rows["reward"])
        names = ("obs", "next_obs", "action", "reward", "done")
        return (*(rows[name] for name in names), infos)


def _space(column: Column) -> spaces.Space[Any]:
    if column.dtype == "int32":
        return spaces.Discrete(6)
    if column.dtype == "uint8":
        return spaces.Box(0, 255, column.shape, np.uint8)
    return spaces.Box(-np.inf, np.inf, column.shape, np.float32)


ADAPTERS = {"transitions": StableBaselines}
