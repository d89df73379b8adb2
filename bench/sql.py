"""What SQL storages promise of speed: `python bench/sql.py [--postgres URL]`.

Two ratios, over groups of W4's size (8 rollouts with lognormal lengths, median 1,500 tokens):

- SQLite: groups put through a table, beside a plain program that sends one INSERT per rollout.
  Must be 5 times as fast.
- PostgreSQL: a take of 64 groups among 100,000, beside one among 1,000. Must not take more than
  twice as long. Without --postgres a server is started in a temporary folder.

Repeats are interleaved and medians compared, because a machine is never quiet.
"""

from __future__ import annotations

import argparse
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

import recollect as rc  # noqa: E402

ROLLOUTS, TOKENS, SPREAD, LONGEST = 8, 1500, 0.8, 8192
PUT, PUTS, REPEATS = 64, 5, 25
SMALL, LARGE, TAKE = 1_000, 100_000, 64
FASTER, LONGER = 5.0, 2.0


def groups(count: int, rng: np.random.Generator) -> dict[str, Any]:
    """Groups as a rollout engine makes them."""
    lengths = rng.lognormal(np.log(TOKENS), SPREAD, count * ROLLOUTS).astype(np.int64) + 1
    lengths = np.minimum(lengths, LONGEST)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    total = int(offsets[-1])
    return {
        "response_ids": rc.Ragged(rng.integers(0, 50_000, total, dtype=np.int32), offsets),
        "logprobs": rc.Ragged(rng.random(total, dtype=np.float32), offsets),
        "loss_mask": rc.Ragged(np.ones(total, np.int8), offsets),
        "reward": rng.random(count * ROLLOUTS, dtype=np.float32),
    }


def timed(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


class RowPerStatement:
    """What one writes without a library: a row per rollout, and a statement for each.

    Its bytes are as many as ours and its durability is the same: WAL, synced at every commit.
    """

    def __init__(self, path: Path) -> None:
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
        for place, reward in enumerate(columns["reward"].tolist()):
            blobs = [column[place].tobytes() for column in cells]
            self._connection.execute(
                "INSERT INTO rollouts (task, status, version, reward, tokens, logprobs, mask) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                ("math", "done", version, reward, *blobs),
            )


def sqlite_put(folder: Path) -> bool:
    rng = np.random.default_rng(0)
    plain = RowPerStatement(folder / "plain.db")
    storage = rc.SqlStorage(f"sqlite:///{folder}/table.db")
    table = rc.Table("groups", capacity=1_000_000, sampler=rc.StalestFirst(), storage=storage)
    ours, theirs = [], []
    for version in range(PUTS + 2):
        columns = groups(PUT, rng)

        def put(columns: dict[str, Any] = columns, version: int = version) -> Any:
            fields = {"task": "math", "status": "done", "version": version}
            return table.insert(columns, rows_per_item=ROLLOUTS, **fields)

        ours.append(timed(put))
        theirs.append(timed(lambda c=columns, v=version: plain.put(c, v)))
    table.close()
    rates = [PUT * ROLLOUTS / statistics.median(taken[2:]) for taken in (ours, theirs)]
    ratio = rates[0] / rates[1]
    print(f"SQLite: put of {PUT} groups of {ROLLOUTS} rollouts")
    print(f"  a table                 {rates[0]:9.0f} rollouts/s")
    print(f"  a statement per row     {rates[1]:9.0f} rollouts/s")
    return verdict(ratio, ratio >= FASTER, f"times as fast, must be {FASTER:g}")


def postgres_take(urls: dict[int, str]) -> bool:
    rng = np.random.default_rng(0)
    tables, times = {}, {}
    for size, url in urls.items():
        table = rc.Table(
            f"groups {size}",
            capacity=size,
            sampler=rc.StalestFirst(),
            partition_by=("task", "status"),
            storage=rc.SqlStorage(url),
        )
        while len(table) < size:
            put = min(1000, size - len(table))
            fields = {"status": "done", "version": rng.integers(0, 100, put)}
            task = rng.choice(["math", "code"], put).tolist()
            columns = {"reward": rng.random(put * ROLLOUTS)}  # the payload is the same for both
            table.insert(columns, rows_per_item=ROLLOUTS, task=task, **fields)
        tables[size], times[size] = table, []
    where = (rc.field("task") == "math") & (rc.field("status") == "done")
    for _ in range(REPEATS + 5):
        for size, table in tables.items():
            began = time.perf_counter()
            lease = table.take(TAKE, where=where, lease=600).info.lease
            times[size].append(time.perf_counter() - began)
            table.give_back(lease)
    print(f"PostgreSQL: take of {TAKE} groups of a task, the stalest first")
    medians = {size: statistics.median(taken[5:]) for size, taken in times.items()}
    for size, taken in medians.items():
        print(f"  among {size:7,}           {1000 * taken:9.2f} ms")
        tables[size].close()
    ratio = medians[LARGE] / medians[SMALL]
    return verdict(ratio, ratio <= LONGER, f"times as long, must be at most {LONGER:g}")


def verdict(ratio: float, good: bool, words: str) -> bool:
    print(f"  {ratio:.2f} {words}: {'good' if good else 'NOT MET'}")
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--postgres", metavar="URL", help="an empty database of a running server")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        good = [sqlite_put(Path(folder))]
    if given.postgres:
        good.append(postgres_take({SMALL: given.postgres, LARGE: given.postgres}))
    else:
        from postgres_server import PostgresServer

        server = PostgresServer()
        try:
            good.append(postgres_take({SMALL: server.schema(), LARGE: server.schema()}))
        finally:
            server.close()
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
