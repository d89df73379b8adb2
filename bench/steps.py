"""What the worker asks of implementations that hold steps of episodes: the kinds of W5."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

from bench.adapter import Adapter, Call, Unsupported
from bench.data import Rows
from bench.episodes import make_steps, make_vector_steps, stretches
from bench.workloads import w5
from bench.workloads.base import Operation, Workload
from bench.workloads.w5_environments import ENVIRONMENTS


class Sequences(Adapter):
    """Stretches of one environment go in, batches of sequences come out.

    A stretch is converted just before its insert, outside the clock, so that what is held beside
    the buffer is small.
    """

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload)
        self._stream = self.stretches()
        self._next: Any = None

    @abstractmethod
    def convert(self, steps: Rows) -> Any:
        """A stretch of steps in the container that `insert` takes; never timed."""

    @abstractmethod
    def insert(self, stretch: Any) -> object:
        """Add a converted stretch."""

    @abstractmethod
    def draw(self, n: int) -> object:
        """n sequences, every column of them there when the call returns."""

    def other(self, operation: Operation) -> Call:
        """An operation of this implementation alone."""
        raise Unsupported(f"no operation {operation.name!r}")

    def stretches(self) -> Iterator[Any]:
        """Converted stretches without end."""
        every = stretches(make_steps(self.workload.columns), w5.STRETCH)
        return map(self.convert, itertools.cycle(every))

    def fill(self) -> None:
        """Insert stretches until the buffer is full; the stream goes on from there.

        The draw at the end makes what an implementation keeps for draws, so it counts as memory.
        """
        for stretch in itertools.islice(self._stream, self.workload.rows // w5.STRETCH):
            self.insert(stretch)
        self.draw(32)

    def prepare(self, operation: Operation) -> Call:
        """The call behind an operation of W5."""
        n = operation.size
        steps = n * w5.LENGTH
        if operation.verb == w5.ALONE:
            return Call(lambda: self.draw(n), steps)
        if operation.verb == w5.AFTER_INSERT:
            return Call(lambda: self.draw(n), steps, before=self.insert_next)
        if operation.verb == w5.WITH_INSERT:
            return Call(lambda: self._insert_and_draw(n), steps, before=self._make_next)
        if operation.verb == w5.INSERT:
            return Call(lambda: self.insert(self._next), n, before=self._make_next)
        return self.other(operation)

    def insert_next(self) -> None:
        """Go on with the stream."""
        self.insert(next(self._stream))

    def _insert_and_draw(self, n: int) -> object:
        self.insert(self._next)
        return self.draw(n)

    def _make_next(self) -> None:
        self._next = next(self._stream)


class Environments(Adapter):
    """One step of every environment goes in at once."""

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload)
        every = make_vector_steps(workload.columns, ENVIRONMENTS)
        self._stream = itertools.cycle([self.convert(some) for some in every])

    @abstractmethod
    def convert(self, steps: Rows) -> Any:
        """One step of every environment in the container that `insert` takes; never timed."""

    @abstractmethod
    def insert(self, steps: Any) -> object:
        """Add converted steps."""

    def fill(self) -> None:
        """Insert until every ring is full."""
        for _ in range(-(-self.workload.rows // ENVIRONMENTS)):
            self.insert(next(self._stream))

    def prepare(self, operation: Operation) -> Call:
        """The insert."""
        if operation.verb != "insert":
            raise Unsupported(f"no operation {operation.name!r}")
        return Call(lambda: self.insert(next(self._stream)), operation.size)
