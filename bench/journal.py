"""What a journal costs: inserts at a quarter of the disk's speed, and as fast as they go.

The disk's speed is that of a plain write and sync of the same bytes, measured in the same round,
because a disk that is shared is not the same disk a second later. Flat out, everything that was
inserted is synced when the clock stops. What the parts take alone is measured in the same round,
too: each of them bounds what a journal can reach.
"""

from __future__ import annotations

import mmap
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

ROWS, COLUMNS = 256, 1024  # of one insert: 1 MiB
MIB = ROWS * COLUMNS * 4 >> 20
KEPT = 96  # inserts that the table holds
FLAT_OUT = 384  # inserts
SECONDS = 2.0  # of inserts at a quarter of the disk's speed
SHARE = 4
ROUNDS = 5
RECORD = 16  # MiB that are written at once, flat out
SMALL_TABLE = 20_000  # transitions
GROUPS = 2_000  # that are put


@dataclass
class Cost:
    """A value per round; speeds in MiB/s."""

    disk: list[float] = field(default_factory=list)  # plain write, one sync
    alone: list[float] = field(default_factory=list)  # offered a quarter, without a journal
    journaled: list[float] = field(default_factory=list)  # the same with one
    flat_out: list[float] = field(default_factory=list)
    parts: dict[str, list[float]] = field(default_factory=dict)
    small: dict[str, list[float]] = field(default_factory=dict)  # inserts per second
    small_alone: dict[str, list[float]] = field(default_factory=dict)  # without a journal

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
            for name, speed in _parts(Path(folder) / "parts"):
                cost.parts.setdefault(name, []).append(speed)
            for name, call in SMALL.items():
                cost.small_alone.setdefault(name, []).append(call(None))
                cost.small.setdefault(name, []).append(call(Path(folder) / "small"))
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
    table.core.journal.writer.flush()
    took = time.perf_counter() - began
    _end(table, path)
    return FLAT_OUT * MIB / took


# -- what the parts take alone, in MiB/s --------------------------------------------------------
def _parts(path: Path) -> Iterator[tuple[str, float]]:
    """The same bytes in the sizes in which a journal has them, without the rest of it."""
    from recollect.durability.files import LocalFile

    table, rows = _table(None), _rows()
    yield "inserts without a journal", _speed(lambda: table.insert(rows), MIB, FLAT_OUT)
    table.close()
    stored = np.random.default_rng(0).random((KEPT * ROWS, COLUMNS), np.float32)
    some = np.random.default_rng(0).permutation(len(stored))[: RECORD // MIB * ROWS]
    memory = np.frombuffer(mmap.mmap(-1, RECORD << 20), np.float32)  # begins with a page
    record = np.take(stored, some, 0, memory.reshape(-1, COLUMNS), "clip")
    count = FLAT_OUT * MIB // RECORD
    yield "gathering rows", _speed(lambda: np.take(stored, some, 0, record, "clip"), RECORD, count)
    data = record.data.cast("B")
    yield "hashing", _speed(lambda: xxhash.xxh3_64_intdigest(data), RECORD, count)
    for name, synced in (("writing whole blocks", False), ("the same, each synced", True)):
        file = LocalFile(path)

        def write(file: LocalFile = file, synced: bool = synced) -> None:
            file.write_all([data], direct=True)
            if synced:
                file.sync()

        yield name, _speed(write, RECORD, count)
        file.close()
        path.unlink()


def _speed(call: Callable[[], object], mib: int, times: int) -> float:
    began = time.perf_counter()
    for _ in range(times):
        call()
    return times * mib / (time.perf_counter() - began)


# -- small inserts, per second --------------------------------------------------------------------
def _transitions(path: Path | None, rows: int = 1) -> float:
    """Transitions of a small control task, `rows` in an insert, into a full table."""
    import recollect as rc

    random = np.random.default_rng(0)
    step = {
        "observation": random.random((rows, 17), np.float32),
        "action": random.random((rows, 6), np.float32),
        "reward": np.zeros(rows, np.float32),
        "done": np.zeros(rows, np.bool_),
    }
    table = rc.Table("bench", capacity=SMALL_TABLE, journal=_journal(path))
    for _ in range(SMALL_TABLE // rows + 500):
        table.insert(step)
    return _inserts(table, table, path, lambda _: table.insert(step), SMALL_TABLE // rows**0.5)


def _groups(path: Path | None) -> float:
    """Groups of eight rollouts, of 512 tokens each."""
    import recollect as rc

    random = np.random.default_rng(0)
    prompt, response = (random.integers(0, 1000, n).astype(np.int32) for n in (128, 512))
    logprobs = random.random(512, np.float32)

    def group() -> rc.Group:
        return rc.Group(
            [
                rc.Rollout(prompt, response, logprobs=logprobs, reward=1.0, finish_reason="stop")
                for _ in range(8)
            ],
            task="bench",
        )

    groups = [group() for _ in range(2 * GROUPS)]
    buffer = rc.RolloutBuffer(capacity=3 * GROUPS, journal=_journal(path))
    for one in groups[GROUPS:]:
        buffer.sync.put(one)
    return _inserts(
        buffer.sync, buffer.core.table, path, lambda n: buffer.sync.put(groups[n]), GROUPS
    )


def _inserts(
    owner: Any, table: Any, path: Path | None, insert: Callable[[int], object], times: float
) -> float:
    flush = (lambda: None) if path is None else table.core.journal.writer.flush
    flush()
    began = time.perf_counter()
    for number in range(int(times)):
        insert(number)
    flush()
    took = time.perf_counter() - began
    _end(owner, path)
    return int(times) / took


SMALL: dict[str, Callable[[Path | None], float]] = {
    "single transitions": _transitions,
    "64 transitions": partial(_transitions, rows=64),
    "groups of 8 rollouts": _groups,
}


def _journal(path: Path | None) -> Any:
    import recollect as rc

    return None if path is None else rc.Journal(path, compact_at=1 << 40)


def _table(path: Path | None) -> Any:
    """A full table, whose memory was touched before."""
    import recollect as rc

    table = rc.Table("bench", capacity=KEPT * ROWS, journal=_journal(path))
    rows = _rows()
    for _ in range(KEPT + 16):
        table.insert(rows)
    if path is not None:
        table.core.journal.writer.flush()  # type: ignore[union-attr]
    return table


def _end(table: Any, path: Path | None) -> None:
    table.close()
    if path is not None:
        shutil.rmtree(path)


def _rows() -> dict[str, Any]:
    return {"x": np.random.default_rng(0).random((ROWS, COLUMNS), np.float32)}
