"""Stable-Baselines3: NumPy columns, uniform draws, torch tensors out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer

from bench.adapter import Call, Transitions, Unsupported
from bench.data import Rows, make_rows
from bench.episodes import make_stacks
from bench.steps import Environments
from bench.torch_threads import TorchThreads
from bench.workloads.base import Column, Operation, Workload
from bench.workloads.w5_environments import ENVIRONMENTS

DISTRIBUTIONS = ("stable-baselines3", "torch", "numpy")


class StableBaselines(TorchThreads, Transitions):
    """`ReplayBuffer`, whose `add` takes one step of each of a fixed number of environments,

    so an insert of n rows uses a buffer of n environments and as many rows in total.
    """

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload)
        if workload.prioritized:
            raise Unsupported("no prioritized buffer")
        # Samples come from the buffer that the inserts fill, so that pixels are held only once.
        self.main = 1 if workload.together else 32
        self.buffers: dict[int, ReplayBuffer] = {}

    def fill(self) -> None:
        """Fill the buffer that is drawn from; the others wrap while they are timed."""
        rows = self._rows(self.main)
        buffer = self._buffer(self.main)
        for _ in range(buffer.buffer_size):
            buffer.add(*rows)

    def insert(self, rows: Rows, n: int) -> Callable[[], object]:
        """`add` of one step of n environments."""
        buffer = self._buffer(n)
        given = _arguments(rows)
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
            self.buffers[environments] = _replay_buffer(
                self.workload, self.workload.rows, environments
            )
        return self.buffers[environments]

    def _rows(self, n: int) -> tuple[Any, ...]:
        return _arguments(make_rows(self.workload.columns, n))


class StableBaselinesEnvironments(TorchThreads, Environments):
    """`ReplayBuffer` with a column for each environment."""

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload)
        self.buffer = _replay_buffer(workload, workload.rows, ENVIRONMENTS)

    def convert(self, steps: Rows) -> Any:
        """The arguments of `add`."""
        return _arguments(steps)

    def insert(self, steps: Any) -> object:
        """`add` of one step of every environment; it returns nothing."""
        self.buffer.add(*steps)
        return None


class StableBaselinesFrames(TorchThreads):
    """`ReplayBuffer` of stacks, as a frame-stacking wrapper hands them to it."""

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload)
        self.buffer = _replay_buffer(workload, workload.rows, 1)

    def note(self) -> str:
        """What its other layout takes."""
        half = _replay_buffer(self.workload, 1000, 1, optimize_memory_usage=True)
        arrays = (half.observations, half.actions, half.rewards, half.dones)
        size = sum(array.nbytes for array in arrays) / 1000
        return (
            f"SB3 with `optimize_memory_usage` holds `obs` once, {size:,.0f} B per step in its "
            "arrays, and has the next episode's first stack in place of an episode's last"
        )

    def fill(self) -> None:
        """Add stacks until it is full."""
        stacked = make_stacks()
        steps = len(stacked["done"])
        given = [
            _arguments({name: cells[i : i + 1] for name, cells in stacked.items()})
            for i in range(steps)
        ]
        for i in range(self.workload.rows):
            self.buffer.add(*given[i % steps])

    def prepare(self, operation: Operation) -> Call:
        """Transitions as torch tensors."""
        return Call(lambda: self.buffer.sample(operation.size), operation.size)


def _replay_buffer(workload: Workload, rows: int, environments: int, **how: bool) -> ReplayBuffer:
    by_column = {column.name: column for column in workload.columns}
    return ReplayBuffer(
        rows,
        _space(by_column["obs"]),
        _space(by_column["action"]),
        device="cpu",
        n_envs=environments,
        handle_timeout_termination=False,
        **how,
    )


def _arguments(rows: Rows) -> tuple[Any, ...]:
    infos: list[dict[str, Any]] = [{}] * len(rows["reward"])
    names = ("obs", "next_obs", "action", "reward", "done")
    return (*(rows[name] for name in names), infos)


def _space(column: Column) -> spaces.Space[Any]:
    if column.dtype == "int32":
        return spaces.Discrete(6)
    if column.dtype == "uint8":
        return spaces.Box(0, 255, column.shape, np.uint8)
    return spaces.Box(-np.inf, np.inf, column.shape, np.float32)


ADAPTERS = {
    "transitions": StableBaselines,
    "environments": StableBaselinesEnvironments,
    "frames": StableBaselinesFrames,
}
