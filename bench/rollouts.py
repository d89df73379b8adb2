"""What the worker asks of implementations that hold rollouts, and the rollouts: the kinds of W4.

What comes out must be the same everywhere: `response_ids`, `logprobs` and `loss_mask` of all
rollouts one after the other, the length, reward and version of each. Where an implementation
returns a list of objects, one concatenate per column makes that of it, inside the clock.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from bench.adapter import Adapter, Call, Unsupported
from bench.workloads import w4
from bench.workloads.base import Operation, Workload

Array = np.ndarray[Any, Any]
TOKEN_COLUMNS = ("response_ids", "logprobs", "loss_mask")
VOCABULARY = 150_000


@dataclass(frozen=True)
class Response:
    """One rollout as an engine returns it; its version comes with its group."""

    response_ids: Array
    logprobs: Array
    loss_mask: Array
    reward: float


Group = list[Response]
Columns = dict[str, Any]


@cache
def make_groups() -> list[Group]:
    """The pool that every stream repeats. Made once in a process, in the rehearsal."""
    random = np.random.default_rng(0)
    rollouts = [
        Response(
            random.integers(0, VOCABULARY, tokens, dtype=np.int32),
            -random.exponential(1.0, tokens).astype(np.float32),
            np.ones(tokens, np.int8),
            float(np.float32(random.random())),
        )
        for tokens in w4.lengths()
    ]
    return [rollouts[i : i + w4.GROUP] for i in range(0, len(rollouts), w4.GROUP)]


def collate(groups: Iterable[tuple[Group, int]]) -> Columns:
    """One ragged batch of responses with their versions: one concatenate per column."""
    pairs = [(rollout, version) for group, version in groups for rollout in group]
    return {
        **{
            name: np.concatenate([getattr(rollout, name) for rollout, _ in pairs])
            for name in TOKEN_COLUMNS
        },
        "lengths": np.array([len(rollout.response_ids) for rollout, _ in pairs]),
        "reward": np.array([rollout.reward for rollout, _ in pairs], np.float32),
        "version": np.array([version for _, version in pairs], np.int32),
    }


class Rollouts(Adapter):
    """Groups go in one by one, collated batches of groups come out.

    The store is full when anything is timed. What `take` removes is put again before the next
    `take`, outside the clock, so that it stays full.
    """

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload)
        self.capacity = max(w4.BATCH * 2, workload.rows // w4.GROUP)  # groups
        self._numbers = itertools.count()
        self._next: Any = None

    @abstractmethod
    def convert(self, group: Group, number: int) -> Any:
        """A group in the container that `put` takes, with its number as version; never timed."""

    @abstractmethod
    def put(self, group: Any) -> object:
        """Store a converted group; a full store lets its oldest one go."""

    @abstractmethod
    def take(self, n: int) -> Columns:
        """The next n groups in order, collated, which leave the store."""

    @abstractmethod
    def sample(self, n: int) -> Columns:
        """n random groups, collated, which stay."""

    def put_back(self, n: int) -> None:
        """Put n groups, after as many were taken."""
        for _ in range(n):
            self.put(self.make())

    def other(self, operation: Operation) -> Call:
        """An operation of this implementation alone."""
        raise Unsupported(f"no operation {operation.name!r}")

    def make(self) -> Any:
        """The next group of the stream, converted."""
        number = next(self._numbers)
        return self.convert(self.pool(number), number)

    def pool(self, number: int) -> Group:
        """The group of that number in the stream."""
        groups = make_groups()
        return groups[number % len(groups)]

    def fill(self) -> None:
        """Put groups until the store is full, and look whether what comes out is what went in.

        Then an eighth is overwritten: a store that replaces memory when it is full has new pages
        to touch once, and puts are timed as they are ever after.
        """
        self.put_back(self.capacity)
        self.check(self.take(w4.BATCH), in_order=True)
        self.put_back(w4.BATCH)
        self.check(self.sample(w4.BATCH))
        self.put_back(self.capacity // 8)

    def churn(self) -> None:
        """Send ten times the capacity through: half overflows, half is taken."""
        self.put_back(self.capacity)
        for number in range(w4.CHURN - 1):
            for _ in range(self.capacity // w4.BATCH):
                if number % 2:
                    self.take(w4.BATCH)
                self.put_back(w4.BATCH)

    def check(self, found: Columns, in_order: bool = False) -> None:
        """A batch has whole groups, each with what its version stands for; or this is an error."""
        versions = np.asarray(found["version"])[:: w4.GROUP].tolist()
        if len(versions) != w4.BATCH or (in_order and versions != list(range(w4.BATCH))):
            raise AssertionError(f"groups {versions}")
        pool = make_groups()
        for name, cells in collate([(pool[v % len(pool)], v) for v in versions]).items():
            given = np.asarray(found[name])
            if given.dtype.kind != cells.dtype.kind or not np.array_equal(given, cells):
                raise AssertionError(f"{name} is not what was put")

    def prepare(self, operation: Operation) -> Call:
        """The call behind an operation of W4."""
        n = operation.size
        if operation.verb == w4.PUT.verb:
            return Call(lambda: self.put(self._next), n, before=self._make_next)
        if operation.verb == w4.TAKE.verb:
            return Call(lambda: self.take(n), n * w4.GROUP, before=self._put_back_before(n))
        if operation.verb == w4.SAMPLE.verb:
            return Call(lambda: self.sample(n), n * w4.GROUP)
        return self.other(operation)

    def _put_back_before(self, n: int) -> Callable[[], None]:
        return lambda: self.put_back(n)

    def _make_next(self) -> None:
        self._next = self.make()
