"""Where the time of a call goes: kernels, Python, and what the memory alone would take.

Kernels are timed by wrapping their entry points while calls run. The rest of a call is Python:
checks, the lock, making arrays. The floor is a loop that reads the same cache lines of a tree and
of records at random, and copies the same rows, with nothing else: no draw, no key, no lock; for an
insert it writes as many rows and records, side by side.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.data import make_priorities, make_rows
from bench.workloads import w1, w2
from bench.workloads.base import Workload

CALLS, ROUNDS = 40, 15
LINE = 64
DIFFERENT = 16  # batches that are inserted in turn


@dataclass
class Part:
    """Medians over the same calls, in microseconds."""

    call: str
    total: float
    kernels: dict[str, float]
    floor: float

    @property
    def python(self) -> float:
        return self.total - sum(self.kernels.values())


def measure(say: Callable[[str], None]) -> list[Part]:
    """Every operation of W1 and W2 that has a bound, over a full table."""
    found = []
    for workload in (w1.WORKLOAD, w2.WORKLOAD):
        say(f"{workload.name}: where the time goes")
        found.extend(_measure(workload))
    return found


def _measure(workload: Workload) -> Iterator[Part]:
    import recollect as rc

    sampler: Any = rc.Prioritized(alpha=0.6, beta=0.4) if workload.prioritized else rc.Uniform()
    table = rc.Table("anatomy", capacity=workload.rows, sampler=sampler, seed=0)
    chunk = 8192
    rows = make_rows(workload.columns, chunk)
    for seed in range(2 * workload.rows // chunk):
        priority = make_priorities(chunk, seed) if workload.prioritized else None
        table.insert(rows, priority=priority)
    table.sample(1)
    floors = _Floors(workload)
    for operation in workload.operations:
        if operation.must is not None:
            call = _call(table, workload, operation.verb, operation.size)
            floor = _timed(floors.of(operation.verb, operation.size))
            for _ in range(CALLS):
                call()
            with _watched(table) as spent:
                total, kernels = _timed_with(spent, call)
            yield Part(f"{workload.name} {operation.name}", total, kernels, floor)


def _call(table: Any, workload: Workload, verb: str, n: int) -> Callable[[], object]:
    if verb == "insert":
        some = itertools.cycle([make_rows(workload.columns, n, seed) for seed in range(DIFFERENT)])
        return lambda: table.insert(next(some))
    if verb == "sample":
        return lambda: table.sample(n)
    priorities = itertools.cycle([make_priorities(n, seed) for seed in range(7)])
    if verb == "update":
        keys = itertools.cycle([table.sample(n).info.keys for _ in range(64)])
        return lambda: table.update(next(keys), priority=next(priorities))
    return lambda: table.update(table.sample(n).info.keys, priority=next(priorities))


def _timed(call: Callable[[], object]) -> float:
    """Microseconds of a call in the median."""
    found = []
    for _ in range(ROUNDS * CALLS):
        began = time.perf_counter()
        call()
        found.append(time.perf_counter() - began)
    return statistics.median(found) * 1e6


def _timed_with(
    spent: defaultdict[str, float], call: Callable[[], object]
) -> tuple[float, dict[str, float]]:
    """Microseconds of a call in the median, and of each kernel in it that most calls need."""
    found, parts = [], []
    for _ in range(ROUNDS * CALLS):
        spent.clear()
        began = time.perf_counter()
        call()
        found.append(time.perf_counter() - began)
        parts.append(spent.copy())
    names = dict.fromkeys(name for part in parts for name in part)
    kernels = {name: statistics.median(part[name] for part in parts) * 1e6 for name in names}
    return statistics.median(found) * 1e6, {name: us for name, us in kernels.items() if us}


@contextmanager
def _watched(table: Any) -> Iterator[defaultdict[str, float]]:
    """Time every kernel that the table's storage calls."""
    spent: defaultdict[str, float] = defaultdict(float)
    storage = table.core.storage
    places = [(storage, "_choose", "choose")]
    for name in ("update_priorities", "range_of", "arrange", "recycle"):
        places.append((storage._kernels.items, name, name))
    for name in ("append_fixed", "gather"):
        places.append((storage._kernels.rows, name, name))
    for name in ("begin_rows", "end"):  # a gather that two threads share
        places.append((storage._kernels.shared_copy, name, f"gather: {name}"))
    before = [(owner, attribute, getattr(owner, attribute)) for owner, attribute, _ in places]

    def watch(kernel: Any, name: str) -> Any:
        def timed(*arguments: Any) -> Any:
            began = time.perf_counter()
            result = kernel(*arguments)
            spent[name] += time.perf_counter() - began
            return result

        return timed

    for (owner, attribute, kernel), (_, _, name) in zip(before, places, strict=True):
        setattr(owner, attribute, watch(kernel, name))
    try:
        yield spent
    finally:
        for owner, attribute, kernel in before:
            setattr(owner, attribute, kernel)


class _Floors:
    """Memory of the same size as a table's, read and written in the same pattern."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._random = np.random.default_rng(0)
        self._nodes = np.ones((workload.rows // 16, 16))
        self._records = np.ones((workload.rows, 4))
        self._rows = np.ones((workload.rows, workload.payload), np.uint8)
        self._touch = _touch_loop()
        self._places = [
            self._random.integers(0, workload.rows, 4096).astype(np.int64) for _ in range(97)
        ]
        if workload.prioritized:  # stratified draws rise
            self._places = [np.sort(places) for places in self._places]

    def of(self, verb: str, n: int) -> Callable[[], object]:
        """The bare loop that stands below an operation."""
        chosen = itertools.cycle(
            [np.ascontiguousarray(p[:: len(p) // n][:n]) for p in self._places]
        )
        into = np.empty((n, self._workload.payload), np.uint8)
        given = itertools.cycle([into.copy() for _ in range(DIFFERENT)])
        starts = itertools.cycle(range(0, self._workload.rows - n, n))

        def run() -> None:
            places = next(chosen)
            if verb == "insert":
                start = next(starts)
                self._rows[start : start + n] = next(given)
                self._records[start : start + n] += 1.0
                return
            if self._workload.prioritized:
                self._touch(self._nodes, places >> 4)
            self._touch(self._records, places)
            if verb != "update":
                np.take(self._rows, places, axis=0, out=into, mode="clip")
            if verb == "sample+update":
                self._touch(self._nodes, places >> 4)

        return run


def _touch_loop() -> Any:
    import numba

    @numba.njit(error_model="numpy")
    def touch(memory: Any, places: Any) -> float:
        """Read every cache line of some rows."""
        total = 0.0
        for place in places:
            for word in range(0, memory.shape[1], LINE // 8):
                total += memory[place, word]
        return total

    return touch
