"""What the worker asks of an implementation: fill a buffer, and hand out calls to time.

Inputs are made ready outside the timed call, in the container the implementation likes best
(dict, Batch, TensorDict, JAX arrays). Results must be real when a call returns: the columns and,
with priorities, weights and indices.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.data import Rows, make_priorities, make_rows
from bench.workloads.base import Operation, Workload

# Updates walk through that many different index sets and priorities. The two have no common
# factor: a tree that is told the value it already holds may stop early.
POOL = 64
PRIORITY_POOL = 61


class Unsupported(Exception):
    """The implementation has no such operation; the report shows the reason."""


@dataclass(frozen=True)
class Call:
    """A timed call that handles `items`; `before` runs ahead of each one, untimed."""

    run: Callable[[], object]
    items: int
    before: Callable[[], object] | None = None


class Adapter(ABC):
    """One implementation under one workload."""

    rehearse = True  # run once at a small size first, so that memory is measured without compiling

    def __init__(self, workload: Workload) -> None:
        self.workload = workload

    @abstractmethod
    def fill(self) -> None:
        """Fill to the workload's rows, with priorities that differ."""

    @abstractmethod
    def prepare(self, operation: Operation) -> Call:
        """A call to time now; called again for every timing."""

    def thread_counts(self) -> tuple[int, ...]:
        """Numbers of threads to try; the best result counts. None to leave them alone."""
        return ()

    def set_threads(self, count: int) -> None:
        """Use that many threads inside an operation."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of threads and servers."""
        return

    def note(self) -> str:
        """What a reader must know about how this one was run."""
        return ""


class Transitions(Adapter):
    """Insert, sample and update single rows: the verbs of W1, W2 and W3."""

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload)
        self._stale_priorities = False

    @abstractmethod
    def insert(self, rows: Rows, n: int) -> Callable[[], object]:
        """A call that inserts these n rows."""

    @abstractmethod
    def sample(self, n: int) -> Callable[[], object]:
        """A call that draws n rows with everything a learner needs."""

    def update(self, n: int, priorities: Iterator[np.ndarray[Any, Any]]) -> Callable[[], object]:
        """A call that sets n priorities at indices that were drawn before."""
        raise Unsupported("no priorities")

    def sample_and_update(
        self, n: int, priorities: Iterator[np.ndarray[Any, Any]]
    ) -> Callable[[], object]:
        """A call that draws n rows and sets their priorities."""
        raise Unsupported("no priorities")

    def spread(self) -> None:
        """Give all stored rows different priorities; inserts level them."""

    def fill(self) -> None:
        """Insert the same few thousand rows until the buffer is full, then spread priorities."""
        self._stale_priorities = True
        for insert in self._chunks():
            insert()
        self._spread()

    def prepare(self, operation: Operation) -> Call:
        """The call behind a verb of W1, W2 or W3."""
        n = operation.size
        if operation.verb == "insert":
            self._stale_priorities = True
            return Call(self.insert(make_rows(self.workload.columns, n), n), n)
        self._spread()
        if operation.verb == "sample":
            return Call(self.sample(n), n)
        pool = itertools.cycle([make_priorities(n, seed) for seed in range(PRIORITY_POOL)])
        if operation.verb == "update":
            return Call(self.update(n, pool), n)
        if operation.verb == "sample+update":
            return Call(self.sample_and_update(n, pool), n)
        raise Unsupported(f"no operation {operation.name!r}")

    def random_indices(self, n: int) -> list[np.ndarray[Any, Any]]:
        """Index sets over the whole buffer, for implementations that address rows by position."""
        random = np.random.default_rng(1)
        return [random.integers(0, self.workload.rows, n) for _ in range(POOL)]

    def _chunks(self) -> Iterator[Callable[[], object]]:
        rows = self.workload.rows
        chunk = max(1, min(rows, 2**23 // self.workload.payload, 8192))
        whole = self.insert(make_rows(self.workload.columns, chunk), chunk)
        yield from itertools.repeat(whole, rows // chunk)
        if rest := rows % chunk:
            yield self.insert(make_rows(self.workload.columns, rest), rest)

    def _spread(self) -> None:
        if self.workload.prioritized and self._stale_priorities:
            self.spread()
        self._stale_priorities = False
