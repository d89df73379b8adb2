"""What SQL storages promise of speed, over groups of W4's size (8 rollouts, median 1,500 tokens).

- SQLite: 64 groups put through a table, beside plain programs that send a statement per rollout.
- PostgreSQL: a take of 64 groups among 100,000, beside one among 1,000.

A server is started in a temporary folder. Repeats are interleaved and medians compared, because a
machine is never quiet.
"""

from __future__ import annotations

import itertools
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bench import figures
from bench.figures import NOTHING
from bench.harness import REPOSITORY
from bench.tables import Table

ROLLOUTS, TOKENS, SPREAD, LONGEST = 8, 1500, 0.8, 8192
PUT, SMALL, LARGE, TAKE = 64, 1_000, 100_000, 64
FASTER, LONGER = 5.0, 2.0
WARM_UP = 2  # repeats that are not counted: they make indexes and fill caches

OURS = "a table"
BASELINES = {  # rollouts in one transaction
    "a statement and a commit per rollout": 1,
    "a statement per rollout, a commit per group": ROLLOUTS,
    "a statement per rollout, one commit": PUT * ROLLOUTS,
}


@dataclass
class Found:
    """Rollouts per second that were put into SQLite, and seconds of a take from PostgreSQL."""

    puts: dict[str, list[float]] = field(default_factory=dict)
    takes: dict[int, list[float]] = field(default_factory=dict)  # by the size of the table
    calls: dict[str, dict[str, float]] = field(default_factory=dict)  # of bench/storages.py


def measure(say: Callable[[str], None], *, quick: bool = False) -> Found:
    """All of it; a quick run has smaller tables and leaves out the storages beside each other."""
    from bench import storages

    found = Found()
    with tempfile.TemporaryDirectory(prefix="recollect-bench-") as folder, _server(say) as server:
        say("sql: puts into SQLite")
        found.puts = _puts(Path(folder), 3 if quick else 15)
        if server is not None:
            sizes = (SMALL, LARGE // 10 if quick else LARGE)
            say(f"sql: takes from PostgreSQL, among {sizes[0]:,} and {sizes[1]:,}")
            found.takes = _takes({size: server.schema() for size in sizes}, 5 if quick else 40)
        if not quick:
            say("sql: all storages beside each other")
            schema = None if server is None else server.schema()
            found.calls = storages.measure(storages.kinds(folder, schema), 8)
    return found


def tables(found: Found) -> list[Table]:
    """What was found, for people."""
    made = Table(
        f"SQL: {PUT} groups of {ROLLOUTS} rollouts",
        ["put into SQLite, rollouts/s", "median (range)", "ratio", "must", "verdict"],
    )
    ours = found.puts[OURS]
    made.rows.append([OURS, figures.rate(ours), *[NOTHING] * 3])
    for name, rates in found.puts.items():
        if name != OURS:
            must = FASTER if BASELINES[name] == 1 else None
            ratio = statistics.median(ours) / statistics.median(rates)
            judged = [figures.bound(must), figures.verdict(ratio, must)]
            made.rows.append([name, figures.rate(rates), figures.ratio(ours, rates), *judged])
    made.notes.append(
        "each put is on disk when it returns. The plain programs use Python's sqlite3 with WAL and "
        "synchronous=FULL, as a table does; a row has task, status, version, reward and three "
        "blobs, and an index each on task, status and version. The first sends one INSERT per "
        "rollout, each its own transaction; the second wraps those of a group into BEGIN and "
        "COMMIT, the third all 512. A table inserts an item per group, in one transaction"
    )
    return [made, *_taking(found), *_beside(found)]


def _taking(found: Found) -> list[Table]:
    if not found.takes:
        return []
    (small, few), (large, many) = sorted(found.takes.items())
    title = f"SQL: take {TAKE} groups of one task, the stalest first"
    made = Table(title, ["PostgreSQL", "median (range)", "ratio", "must", "verdict"])
    ratio = statistics.median(many) / statistics.median(few)
    bound = [f"at most {LONGER:g}", figures.limit(ratio, LONGER)]
    made.rows = [
        [f"among {small:,}", figures.seconds(few), *[NOTHING] * 3],
        [f"among {large:,}", figures.seconds(many), figures.ratio(many, few), *bound],
    ]
    made.notes.append(
        "a server on this machine that does not sync; both tables were vacuumed and analysed, as "
        "a server does by itself, and what a take leased is given back outside the clock. "
        "tests/storage/test_sql_plans.py asserts the plan of both and the blocks they touch"
    )
    return [made]


def _beside(found: Found) -> list[Table]:
    if not found.calls:
        return []
    from bench import storages

    header, rows = storages.rows(found.calls)
    note = (
        "the least of interleaved repeats, and how many times longer than in memory; without a "
        "limit, because storages are chosen for what they keep and who sees it"
    )
    return [Table(f"Storages: {storages.ITEMS:,} groups of {storages.ROWS}", header, rows, [note])]


@contextmanager
def _server(say: Callable[[str], None]) -> Iterator[Any]:
    """A PostgreSQL server, None where it is not installed."""
    sys.path.insert(0, str(REPOSITORY / "tests"))
    from postgres_server import PostgresServer

    try:
        server = PostgresServer()
    except AssertionError as missing:
        say(f"sql: {missing}")
        yield None
        return
    try:
        yield server
    finally:
        server.close()


# -- SQLite ----------------------------------------------------------------------------------------
def _groups(count: int, rng: np.random.Generator) -> dict[str, Any]:
    """Groups as a rollout engine makes them."""
    import recollect as rc

    lengths = rng.lognormal(np.log(TOKENS), SPREAD, count * ROLLOUTS).astype(np.int64) + 1
    offsets = np.concatenate([[0], np.cumsum(np.minimum(lengths, LONGEST))])
    total = int(offsets[-1])
    return {
        "response_ids": rc.Ragged(rng.integers(0, 50_000, total, dtype=np.int32), offsets),
        "logprobs": rc.Ragged(rng.random(total, dtype=np.float32), offsets),
        "loss_mask": rc.Ragged(np.ones(total, np.int8), offsets),
        "reward": rng.random(count * ROLLOUTS, dtype=np.float32),
    }


class Plain:
    """What one writes without a library: a row per rollout, and a statement for each."""

    def __init__(self, path: Path, together: int) -> None:
        self._together = together  # rollouts in one transaction
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=FULL")
        self._connection.execute(
            "CREATE TABLE rollouts (id INTEGER PRIMARY KEY, task TEXT, status TEXT, "
            "version INTEGER, reward REAL, tokens BLOB, logprobs BLOB, mask BLOB)"
        )
        for column in ("task", "status", "version"):
            self._connection.execute(f"CREATE INDEX by_{column} ON rollouts ({column})")

    def put(self, columns: dict[str, Any], version: int) -> None:
        cells = [columns[name] for name in ("response_ids", "logprobs", "loss_mask")]
        rewards = columns["reward"].tolist()
        for first in range(0, len(rewards), self._together):
            if self._together > 1:
                self._connection.execute("BEGIN")
            for place in range(first, first + self._together):
                self._connection.execute(
                    "INSERT INTO rollouts (task, status, version, reward, tokens, logprobs, mask) "
                    "VALUES (?, ?, ?, ?, ?, ?, ?)",
                    ("math", "done", version, rewards[place], *(c[place].tobytes() for c in cells)),
                )
            if self._together > 1:
                self._connection.execute("COMMIT")

    def close(self) -> None:
        self._connection.close()


class Ours:
    """The same through a table."""

    def __init__(self, path: Path) -> None:
        import recollect as rc

        storage = rc.SqlStorage(f"sqlite:///{path}")
        sampler = rc.StalestFirst()
        self._table = rc.Table("groups", capacity=1_000_000, sampler=sampler, storage=storage)
        self.close = self._table.close

    def put(self, columns: dict[str, Any], version: int) -> None:
        fields = {"task": "math", "status": "done", "version": version}
        self._table.insert(columns, rows_per_item=ROLLOUTS, **fields)


def _puts(folder: Path, repeats: int) -> dict[str, list[float]]:
    rng = np.random.default_rng(0)
    programs: dict[str, Ours | Plain] = {OURS: Ours(folder / "table.db")}
    for name, together in BASELINES.items():
        programs[name] = Plain(folder / f"plain-{together}.db", together)
    rates: dict[str, list[float]] = {name: [] for name in programs}
    turns = itertools.cycle(programs.items())
    for version in range(repeats + WARM_UP):
        columns = _groups(PUT, rng)
        next(turns)  # another one begins each time
        for name, program in itertools.islice(turns, len(programs)):
            began = time.perf_counter()
            program.put(columns, version)
            taken = time.perf_counter() - began
            if version >= WARM_UP:
                rates[name].append(PUT * ROLLOUTS / taken)
    for program in programs.values():
        program.close()
    return rates


# -- PostgreSQL ------------------------------------------------------------------------------------
def _takes(urls: dict[int, str], repeats: int) -> dict[int, list[float]]:
    import recollect as rc

    filled = {size: _filled(url, size) for size, url in urls.items()}
    seconds: dict[int, list[float]] = {size: [] for size in urls}
    where = (rc.field("task") == "math") & (rc.field("status") == "done")
    for repeat in range(repeats + WARM_UP):
        for size, table in filled.items():
            began = time.perf_counter()
            lease = table.take(TAKE, where=where, lease=600).info.lease
            taken = time.perf_counter() - began
            table.give_back(lease)
            if repeat >= WARM_UP:
                seconds[size].append(taken)
    for table in filled.values():
        table.close()
    return seconds


def _filled(url: str, size: int) -> Any:
    """A table of groups; their payload is small, because it is the same for both sizes."""
    import psycopg

    import recollect as rc

    rng = np.random.default_rng(0)
    table = rc.Table(
        "groups",
        capacity=size,
        sampler=rc.StalestFirst(),
        partition_by=("task", "status"),
        storage=rc.SqlStorage(url),
    )
    for _ in range(size // SMALL):
        table.insert(
            {"reward": rng.random(SMALL * ROLLOUTS)},
            rows_per_item=ROLLOUTS,
            task=rng.choice(["math", "code"], SMALL).tolist(),
            status="done",
            version=rng.integers(0, 100, SMALL),
        )
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE recollect_items_1")
    return table
