"""A disk that fails: callers are told, nothing that was acknowledged is lost, and it goes on."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faulty_files import Faulty

import recollect as rc
from recollect.durability.files import Files
from recollect.durability.journal import writer as journal_writer
from recollect.durability.journal.open_journal import OpenJournal
from recollect.table.journaled import JournaledTable

CALLS = 6


def journaled(path: Path, files: Files, **options: Any) -> rc.Table:
    table = rc.Table("t", capacity=100)
    journal = rc.Journal(path, **{"sync": "always", **options})
    table.core.journal = OpenJournal(journal, [JournaledTable(table.core)], files=files)
    return table


def insert(table: rc.Table, number: int) -> bool:
    """Whether the call said that the item is safe."""
    try:
        table.insert({"x": [number], "data": np.zeros((1, 100))})
    except rc.JournalError:
        return False
    return True


def stored(path: Path, target: Path) -> list[int]:
    """What a crash now would leave."""
    shutil.copytree(path, target, ignore=shutil.ignore_patterns("lock"))
    table = rc.Table("t", capacity=100, journal=rc.Journal(target, sync="off"))
    found = sorted(table.get(list(table.counts("key")))["x"].tolist()) if len(table) else []
    table.close()
    shutil.rmtree(target)
    return found


def script(path: Path, files: Faulty) -> tuple[list[bool], rc.Table]:
    table = journaled(path, files, compact_at=12_000)
    writer = table.core.journal.writer  # type: ignore[union-attr]
    safe = []
    for number in range(CALLS):
        safe.append(insert(table, number))
        writer.wait_for_snapshot()
    return safe, table


def calls_made(tmp_path: Path) -> list[str]:
    files = Faulty()
    safe, table = script(tmp_path / "whole", files)
    assert all(safe)
    made = list(files.log)
    assert any("manifest" in call for call in made)  # it was compacted meanwhile
    table.close()
    return made


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What failed is tried again by the next call, and not while the first is yet to hear of it."""
    monkeypatch.setattr(journal_writer, "RETRY", 60.0)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("mode", ["fail", "truncate", "full"])
def test_a_failure_at_any_call_loses_nothing_acknowledged(mode: str, tmp_path: Path) -> None:
    """And every insert is told of a failure in some case.

    The journal has threads: two records may go to disk in one write, which the fault then misses.
    """
    told: set[int] = set()
    for attempt in range(5):
        told |= fail_everywhere(mode, tmp_path / str(attempt))
        if told == set(range(CALLS)):
            return
    raise AssertionError(f"only the inserts {sorted(told)} of {CALLS} were told of a failure")


def fail_everywhere(mode: str, tmp_path: Path) -> set[int]:
    """Let each call of the script fail in turn; returns the inserts that were told of it."""
    tmp_path.mkdir()
    made = calls_made(tmp_path)
    told: set[int] = set()
    for k, call in enumerate(made, 1):
        if mode != "fail" and (not call.startswith("write") or "arrow" in call):
            continue
        path = tmp_path / f"{mode}-{k}"
        # a snapshot is written by threads: which call comes k-th is not the same every time
        which = k if mode == "fail" else (call, made[:k].count(call))
        safe, table = script(path, Faulty(which, mode))
        found = stored(path, tmp_path / "copy")
        acknowledged = [number for number in range(CALLS) if safe[number]]
        assert found == list(range(len(found)))  # a prefix, in order
        assert set(acknowledged) <= set(found), k
        told |= {number for number in range(CALLS) if not safe[number]}
        if mode == "full":
            with contextlib.suppress(rc.JournalError):
                table.close()
        else:  # the next call wrote what had failed
            assert safe[-1] is False or found == list(range(CALLS))
            table.close()
            assert stored(path, tmp_path / "copy") == list(range(CALLS))
        shutil.rmtree(path, ignore_errors=True)
    return told


def test_with_interval_the_error_reaches_the_next_call_and_goes_away_by_itself(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(journal_writer, "RETRY", 1e6)
    files = Faulty()
    table = journaled(tmp_path / "j", files, sync="interval", interval=1e9)
    writer = table.core.journal.writer  # type: ignore[union-attr]
    assert insert(table, 0)
    files.fail_at = len(files.log) + 1
    assert not writer.flush()
    assert not insert(table, 1)
    with pytest.raises(rc.JournalError, match="cannot be written"):
        asyncio.run(table.insert_async({"x": [2], "data": np.zeros((1, 100))}))
    assert writer.flush()
    assert insert(table, 3)
    table.close()
    assert stored(tmp_path / "j", tmp_path / "copy") == [0, 1, 2, 3]


class Late(threading.Condition):
    """Those who were woken take their time."""

    def wait(self, timeout: float | None = None) -> bool:
        woken = super().wait(timeout)
        time.sleep(0.3)
        return woken


class Slow(Faulty):
    """A disk that fails slowly: whoever waits for it waits by then."""

    def called(self, what: str, path: Any = "") -> bool:
        if self.fail_at == len(self.log) + 1:
            time.sleep(0.3)
        return super().called(what, path)


@pytest.mark.usefixtures("patient")
def test_who_wakes_late_is_told_of_a_failure_before_it_is_tried_again(tmp_path: Path) -> None:
    files = Slow(1)
    table = journaled(tmp_path / "j", files)
    writer = table.core.journal.writer  # type: ignore[union-attr]
    writer._changed = Late()
    assert not insert(table, 0)
    assert insert(table, 1)
    table.close()
    assert stored(tmp_path / "j", tmp_path / "copy") == [0, 1]


@pytest.mark.usefixtures("patient")
def test_a_coroutine_that_waits_is_told(tmp_path: Path) -> None:
    files = Faulty(1)
    table = journaled(tmp_path / "j", files)

    async def main() -> None:
        with pytest.raises(rc.JournalError, match="cannot be written"):
            await table.insert_async({"x": [0], "data": np.zeros((1, 100))})
        await table.insert_async({"x": [1], "data": np.zeros((1, 100))})

    asyncio.run(main())
    table.close()
    assert stored(tmp_path / "j", tmp_path / "copy") == [0, 1]


def test_a_disk_that_stays_broken_ends_the_journal_and_says_so(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(journal_writer, "GIVEN_UP", 10_000)
    files = Faulty(1, "full")
    table = journaled(tmp_path / "j", files)
    for number in range(9):
        assert not insert(table, number)
    for number in range(9, 30):
        assert not insert(table, number)
    with pytest.raises(rc.JournalError, match="was given up"):
        table.insert({"x": [30], "data": np.zeros((1, 100))})
    assert len(table) == 31
    rc.Store([table]).save(tmp_path / "s")
    table.close()


def test_a_journal_that_cannot_be_written_at_its_end_says_so(tmp_path: Path) -> None:
    files = Faulty(1, "full")
    table = journaled(tmp_path / "j", files, sync="interval", interval=1e9)
    insert(table, 0)
    with pytest.raises(rc.JournalError, match="when it was closed"):
        table.close()
