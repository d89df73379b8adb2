"""TorchRL: TensorDict storage, a segment tree in C++.

The wheels of TorchRL 0.14 are built against another torch than 2.13.0, and their extension names
one autograd symbol that this torch spells differently. The sampler never calls it, so binding
symbols lazily lets the extension load as shipped; its sum tree is checked before it is used.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from bench.adapter import Call, Transitions
from bench.data import Rows, make_priorities
from bench.steps import Environments, Sequences
from bench.torch_threads import TorchThreads
from bench.workloads.base import Operation, Workload
from bench.workloads.w5 import CACHED, LENGTH
from bench.workloads.w5_environments import ENVIRONMENTS

sys.setdlopenflags(sys.getdlopenflags() & ~os.RTLD_NOW | os.RTLD_LAZY)

from tensordict import TensorDict  # noqa: E402
from torchrl.data import LazyTensorStorage, ReplayBuffer  # noqa: E402
from torchrl.data.replay_buffers.samplers import (  # noqa: E402
    PrioritizedSampler,
    RandomSampler,
    SliceSampler,
    SumSegmentTreeFp32,
)

from bench.peers.torchrl_rollouts import TorchRLChurn, TorchRLRollouts  # noqa: E402

DISTRIBUTIONS = ("torchrl", "tensordict", "torch", "numpy")


class TorchRL(TorchThreads, Transitions):
    """`ReplayBuffer` over a `LazyTensorStorage`, without prefetching threads."""

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload)
        if workload.prioritized:
            sampler: Any = PrioritizedSampler(workload.rows, workload.alpha, workload.beta)
            _check_tree()
        else:
            sampler = RandomSampler()
        storage = LazyTensorStorage(workload.rows)
        self.buffer = ReplayBuffer(storage=storage, sampler=sampler)

    def note(self) -> str:
        """How its extension was loaded."""
        return (
            "TorchRL: compiled extension loaded with lazy symbol binding (built for another torch)"
        )

    def insert(self, rows: Rows, n: int) -> Callable[[], object]:
        """`extend` with a TensorDict, `add` for one row."""
        columns = {name: torch.from_numpy(cells) for name, cells in rows.items()}
        many = TensorDict(columns, batch_size=[n])
        if n == 1:
            one = many[0]
            return lambda: self.buffer.add(one)
        return lambda: self.buffer.extend(many)

    def sample(self, n: int) -> Callable[[], object]:
        """A TensorDict, and a dict with index and weight."""
        return lambda: self.buffer.sample(n, return_info=True)

    def update(self, n: int, priorities: Iterator[np.ndarray[Any, Any]]) -> Callable[[], object]:
        """`update_priority` at random indices."""
        indices = itertools.cycle([torch.from_numpy(some) for some in self.random_indices(n)])
        return lambda: self.buffer.update_priority(
            next(indices), torch.from_numpy(next(priorities))
        )

    def sample_and_update(
        self, n: int, priorities: Iterator[np.ndarray[Any, Any]]
    ) -> Callable[[], object]:
        """Draw, and set the priorities of what was drawn."""

        def run() -> None:
            _, info = self.buffer.sample(n, return_info=True)
            self.buffer.update_priority(info["index"], torch.from_numpy(next(priorities)))

        return run

    def spread(self) -> None:
        """One update over all rows."""
        rows = self.workload.rows
        self.buffer.update_priority(torch.arange(rows), torch.from_numpy(make_priorities(rows)))


class TorchRLSequences(TorchThreads, Sequences):
    """`SliceSampler` over the same storage, without and with its cache of where episodes end.

    It draws an episode first and a start in it second, so starts in short episodes are likelier.
    """

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload)
        storage = LazyTensorStorage(workload.rows)
        self.buffer = ReplayBuffer(storage=storage, sampler=self._sampler(cached=False))
        self.cached = ReplayBuffer(storage=storage, sampler=self._sampler(cached=True))

    def note(self) -> str:
        """How its sampler is set up."""
        return (
            "TorchRL: `SliceSampler` by end marks, strict lengths; any insert empties its cache, "
            "which is off but in the line that says so; episodes are drawn with equal chances"
        )

    def convert(self, steps: Rows) -> Any:
        """A TensorDict."""
        return _tensors(steps, [len(steps["done"])])

    def insert(self, stretch: Any) -> object:
        """`extend`."""
        return self.buffer.extend(stretch)

    def draw(self, n: int) -> object:
        """A TensorDict of n * 64 steps, and a dict with indices and marks."""
        return self.buffer.sample(n * LENGTH, return_info=True)

    def other(self, operation: Operation) -> Call:
        """Draws between which nothing is inserted, so that its cache stays."""
        if operation.verb != CACHED:
            return super().other(operation)
        steps = operation.size * LENGTH
        return Call(lambda: self.cached.sample(steps, return_info=True), steps)

    def _sampler(self, *, cached: bool) -> Any:
        return SliceSampler(slice_len=LENGTH, end_key="done", cache_values=cached)


class TorchRLEnvironments(TorchThreads, Environments):
    """A storage of two dimensions, time and environments."""

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload)
        storage = LazyTensorStorage(workload.rows, ndim=2)
        self.buffer = ReplayBuffer(storage=storage, sampler=RandomSampler())

    def convert(self, steps: Rows) -> Any:
        """A TensorDict of one time and all environments."""
        whole = {name: cells[None] for name, cells in steps.items()}
        return _tensors(whole, [1, ENVIRONMENTS])

    def insert(self, steps: Any) -> object:
        """`extend`."""
        return self.buffer.extend(steps)


def _tensors(rows: Rows, size: list[int]) -> Any:
    return TensorDict({name: torch.from_numpy(cells) for name, cells in rows.items()}, size)


def _check_tree() -> None:
    """The extension computes what it should, although it was built for another torch."""
    tree = SumSegmentTreeFp32(1000)
    values = torch.arange(1.0, 1001.0)
    tree[torch.arange(1000)] = values
    masses = torch.tensor([0.5, 1234.5, 499_000.5])
    expected = torch.searchsorted(values.cumsum(0), masses)
    if not torch.equal(tree.scan_lower_bound(masses), expected):
        raise RuntimeError("TorchRL's compiled sum tree gives wrong answers with this torch")


ADAPTERS = {
    "transitions": TorchRL,
    "sequences": TorchRLSequences,
    "environments": TorchRLEnvironments,
    "rollouts": TorchRLRollouts,
    "rollout churn": TorchRLChurn,
}
