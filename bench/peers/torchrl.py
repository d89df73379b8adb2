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

from bench.adapter import Transitions
from bench.data import Rows, make_priorities
from bench.workloads.base import Workload

sys.setdlopenflags(sys.getdlopenflags() & ~os.RTLD_NOW | os.RTLD_LAZY)

from tensordict import TensorDict  # noqa: E402
from torchrl.data import LazyTensorStorage, ReplayBuffer  # noqa: E402
from torchrl.data.replay_buffers.samplers import (  # noqa: E402
    PrioritizedSampler,
    RandomSampler,
    SumSegmentTreeFp32,
)

DISTRIBUTIONS = ("torchrl", "tensordict", "torch", "numpy")
DEFAULT_THREADS = torch.get_num_threads()


class TorchRL(Transitions):
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

    def thread_counts(self) -> tuple[int, ...]:
        """torch's default and one: waiting for its second thread can cost more than it saves."""
        return tuple(sorted({1, DEFAULT_THREADS}))

    def set_threads(self, count: int) -> None:
        """For the operations inside torch."""
        torch.set_num_threads(count)

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


def _check_tree() -> None:
    """The extension computes what it should, although it was built for another torch."""
    tree = SumSegmentTreeFp32(1000)
    values = torch.arange(1.0, 1001.0)
    tree[torch.arange(1000)] = values
    masses = torch.tensor([0.5, 1234.5, 499_000.5])
    expected = torch.searchsorted(values.cumsum(0), masses)
    if not torch.equal(tree.scan_lower_bound(masses), expected):
        raise RuntimeError("TorchRL's compiled sum tree gives wrong answers with this torch")


ADAPTERS = {"transitions": TorchRL}
