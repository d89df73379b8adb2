"""What a journal costs: inserts at a quarter of the disk's speed, and as fast as they go.

The disk's speed is that of a plain write and sync of the same bytes, measured in the same round,
because a disk that is shared is not the same disk a second later. Flat out, everything that was
inserted is synced when the clock stops.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

ROWS, COLUMNS = 256, 1024  # of one insert: 1 MiB
MIB = ROWS * COLUMNS * 4 >> 20
KEPT = 96  # inserts that the table holds
FLAT_OUT = 384  # inserts
SECONDS = 2.0  # of inserts at a quarter of the disk's speed
SHARE = 4
ROUNDS = 5


@dataclass
class Cost:
    """A value per round; speeds in MiB/s."""

    disk: list[float] = field(default_factory=list)  # plain write, one sync
    alone: list[float] = field(default_factory=list)  # offered a quarter, without a journal
    journaled: list[float] = field(default_factory=list)  # the same with one
    flat_out: list[float] = field(default_factory=list)

    @property
    def loss(self) -> float:
        """The share of the throughput that the default takes; the median over rounds."""
        pairs = zip(self.journaled, self.alone, strict=True)
        return statistics.median(1.0 - with_one / without for with_one, without in pairs)

    @property
    def reached(self) -> float:
        """The share of a plain write and sync that inserts reach."""
        pairs = zip(self.flat_out, self.disk, strict=True)
        return statistics.median(inserts / disk for inserts, disk in pairs)


def measure(say: Callable[[str], None], rounds: int = ROUNDS) -> Cost:
    """All figures, round by round, in a folder where temporary files go."""
    cost = Cost()
    with tempfile.TemporaryDirectory(prefix="recollect-bench-") as folder:
        for number in range(rounds):
            say(f"journal: round {number + 1} of {rounds}")
            cost.disk.append(_plain(Path(folder) / "plain"))
            offered = cost.disk[-1] / SHARE
            cost.alone.append(_offered(offered, None))
            cost.journaled.append(_offered(offered, Path(folder) / "paced"))
            cost.flat_out.append(_flat_out(Path(folder) / "flat"))
    return cost


def _plain(path: Path) -> float:
    """Write the bytes of a flat-out round to a file, and sync it."""
    data = _rows()["x"].tobytes()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    began = time.perf_counter()
    for _ in range(FLAT_OUT):
        os.write(descriptor, data)
    os.fdatasync(descriptor)
    took = time.perf_counter() - began
    os.close(descriptor)
    path.unlink()
    return FLAT_OUT * MIB / took


def _offered(speed: float, path: Path | None) -> float:
    """Insert at a given speed, no faster; returns the speed that was reached."""
    table, rows = _table(path), _rows()
    inserts = max(8, int(speed * SECONDS / MIB))
    apart = MIB / speed
    began = time.perf_counter()
    for number in range(inserts):
        ahead = began + number * apart - time.perf_counter()
        if ahead > 0:
            time.sleep(ahead)
        table.insert(rows)
    took = max(time.perf_counter() - began, inserts * apart)
    _end(table, path)
    return inserts * MIB / took


def _flat_out(path: Path) -> float:
    table, rows = _table(path), _rows()
    began = time.perf_counter()
    for _ in range(FLAT_OUT):
        table.insert(rows)
    table._journal.writer.flush()
    took = time.perf_counter() - began
    _end(table, path)
    return FLAT_OUT * MIB / took


def _table(path: Path | None) -> Any:
    """A full table, whose memory was touched before."""
    import recollect as rc

    journal = None if path is None else rc.Journal(path, compact_at=1 << 40)
    table = rc.Table("bench", capacity=KEPT * ROWS, journal=journal)
    rows = _rows()
    for _ in range(KEPT + 16):
        table.insert(rows)
    if path is not None:
        table._journal.writer.flush()  # type: ignore[union-attr]
    return table


def _end(table: Any, path: Path | None) -> None:
    table.close()
    if path is not None:
        shutil.rmtree(path)


def _rows() -> dict[str, Any]:
    return {"x": np.random.default_rng(0).random((ROWS, COLUMNS), np.float32)}
