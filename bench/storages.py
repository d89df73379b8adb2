"""How fast the storages are beside each other: `python -m bench.storages [--postgres URL]`.

Tables of 10,000 groups of 8 rows each; each line is a call that a trainer or a producer makes.
The repeats of all storages are interleaved and the least is shown, because a machine is never
quiet; the factor beside it is how many times longer than in memory the call takes.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import recollect as rc

ITEMS, ROWS, AT_ONCE = 10_000, 8, 64
IN_A_ROW = 4  # calls before the next storage has its turn, and the caches
TASKS = ("math", "code", "chat", "tools")

Storage = Callable[[], Any]


def columns(items: int) -> dict[str, Any]:
    """Rows as a rollout engine makes them: 64 tokens and what belongs to them."""
    rows = items * ROWS
    return {
        "tokens": rc.Ragged(np.zeros(rows * 64, np.int32), np.arange(rows + 1) * 64),
        "reward": np.zeros(rows, np.float32),
    }


class Measured:
    """Two tables on one kind of storage, and the calls that are measured on them."""

    def __init__(self, make: Storage) -> None:
        self._rng = np.random.default_rng(0)
        self._new = columns(AT_ONCE)
        self.table = self._filled("groups", rc.Fifo(), make())
        self.replay = self._filled("replay", rc.Prioritized(), make())
        self._keys = np.array(sorted(self.replay.counts("key"))[-AT_ONCE:], np.uint64)
        self._tasks = [rc.field("task") == task for task in TASKS]
        self._good = rc.field("score") > 0.8

    def _filled(self, name: str, sampler: rc.Selector, storage: Any) -> rc.Table:
        table = rc.Table(
            name,
            capacity=2 * ITEMS,
            sampler=sampler,
            tags={"score": float},
            partition_by=("task",),
            storage=storage,
            seed=0,
        )
        for _ in range(ITEMS // 500):
            self._put(table, 500, columns(500))
        return table

    def _put(self, table: rc.Table, items: int, rows: dict[str, Any]) -> Any:
        return table.insert(
            rows,
            rows_per_item=ROWS,
            task=[TASKS[place % 4] for place in range(items)],
            score=self._rng.random(items),
            version=1,
            priority=self._rng.random(items),
        )

    def put(self) -> None:
        self._put(self.table, AT_ONCE, self._new)

    def take(self) -> None:
        """As many as `put` brings, of one task, so that the table keeps its size."""
        self.table.take(AT_ONCE, where=self._tasks[int(self._rng.integers(4))])

    def lease(self) -> None:
        self.table.give_back(self.table.take(AT_ONCE, lease=60.0).info.lease)

    def sample(self) -> None:
        self.replay.sample(AT_ONCE)

    def update(self) -> None:
        self.replay.update(self._keys, priority=self._rng.random(AT_ONCE))

    def count(self) -> None:
        self.table.count(self._tasks[0])

    def query(self) -> None:
        self.table.count(self._good)


CALLS = {
    "put": f"put {AT_ONCE} groups",
    "take": f"take {AT_ONCE} of one task",
    "lease": f"lease {AT_ONCE} and give them back",
    "sample": f"sample {AT_ONCE} by priority",
    "update": f"update {AT_ONCE} priorities",
    "count": "count one task",
    "query": "count score > 0.8",
}


def measure(storages: dict[str, Storage], repeats: int) -> dict[str, dict[str, float]]:
    """Seconds by call and storage, the least of interleaved repeats."""
    tables = {name: Measured(make) for name, make in storages.items()}
    seconds: dict[str, dict[str, list[float]]] = {
        call: {name: [] for name in tables} for call in CALLS
    }
    for repeat in range(repeats + 1):
        for call in CALLS:
            for name, table in tables.items():
                for _ in range(IN_A_ROW):
                    begin = time.perf_counter()
                    getattr(table, call)()
                    if repeat:  # the first compiles, caches and makes indexes
                        seconds[call][name].append(time.perf_counter() - begin)
    for measured in tables.values():
        measured.table.close()
        measured.replay.close()
    return {
        call: {name: min(times) for name, times in by_name.items()}
        for call, by_name in seconds.items()
    }


def shown(seconds: float) -> str:
    """Two digits are all that a machine with others on it can tell."""
    value, unit = (seconds * 1e3, "ms") if seconds >= 1e-3 else (seconds * 1e6, "µs")
    return f"{float(f'{value:.2g}'):g} {unit}"


def factor(ratio: float) -> str:
    return f"{float(f'{ratio:.2g}'):g}"


def rows(measured: dict[str, dict[str, float]]) -> tuple[list[str], list[list[str]]]:
    """A header and a row for each call."""
    first, *others = next(iter(measured.values()))
    found = [
        [
            CALLS[call],
            shown(by_name[first]),
            *(f"{shown(by_name[n])} ({factor(by_name[n] / by_name[first])} ×)" for n in others),
        ]
        for call, by_name in measured.items()
    ]
    return ["call", first, *others], found


def kinds(folder: str, postgres: str | None) -> dict[str, Storage]:
    """How to make each storage; `postgres` is the address of an empty database, or None."""
    storages: dict[str, Storage] = {
        "memory": rc.MemoryStorage,
        "frame": rc.FrameStorage,
        "SQLite in memory": lambda: rc.SqlStorage("sqlite://"),
        "SQLite file": lambda: rc.SqlStorage(f"sqlite:///{folder}/tables.db"),
    }
    if postgres is not None:
        storages["PostgreSQL"] = lambda: rc.SqlStorage(postgres)
    return storages


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--postgres", metavar="URL", help="an empty database of a running server")
    parser.add_argument("--repeats", type=int, default=30)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        header, found = rows(measure(kinds(folder, options.postgres), options.repeats))
    for line in (header, ["---", *["---:"] * (len(header) - 1)], *found):
        print(f"| {' | '.join(line)} |")


if __name__ == "__main__":
    main()
