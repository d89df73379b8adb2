"""Records that are written and synced behind the one that makes them; and what fails there."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faulty_files import Faulty

import recollect as rc
from recollect.durability import direct_io as direct
from recollect.durability.files import Files
from recollect.durability.journal.disk import Disk
from recollect.durability.journal.log import Log, Torn, records
from recollect.durability.journal.records import STATE, Entry, decode, encode

RECORDS = 5


def told(number: int) -> list[Entry]:
    return [Entry(STATE, 0, number, about={"number": number, "some": "x" * 100 * number})]


def found(folder: Path, torn: list[Torn]) -> list[int]:
    """The numbers that the whole records of a folder tell of."""
    numbers = []
    for record in records(folder, 0, torn):
        number, sections = decode(record.payload)
        (effect,) = sections[0].effects
        assert effect.about["number"] == number
        numbers.append(number)
    return numbers


class Writing:
    """Some records, written one behind the other; what fails is written again."""

    def __init__(self, folder: Path, files: Files) -> None:
        folder.mkdir()
        self.folder, self.acknowledged, self.failures = folder, list[int](), 0
        self.log = Log(folder, 0, True, [{"name": "t"}], files)
        self.disk = Disk(self.log, self._synced, threading.Event())

    def _synced(self, entries: list[Entry]) -> None:
        (entry,) = entries
        assert entry.about is not None
        self.acknowledged.append(entry.about["number"])
        assert entry.about["number"] in found(self.folder, [])

    def _tried(self, call: Any, *arguments: Any) -> None:
        try:
            call(*arguments)
        except OSError:
            self.failures += 1
            self.disk.give_up()
            self.disk.write_again()

    def run(self) -> None:
        for number in range(RECORDS):
            entries = told(number)
            self._tried(self.disk.start, encode(entries), entries)
        self._tried(self.disk.finish)
        self.disk.close()


def test_records_follow_each_other(tmp_path: Path) -> None:
    writing = Writing(tmp_path / "j", Faulty())
    writing.run()
    torn: list[Torn] = []
    assert found(tmp_path / "j", torn) == writing.acknowledged == list(range(RECORDS))
    assert not torn
    assert writing.log.safe == writing.log.number == RECORDS
    assert writing.log.bytes == sum(p.stat().st_size for p in (tmp_path / "j").iterdir())


@pytest.mark.parametrize("mode", ["fail", "truncate"])
def test_a_failure_at_any_call_loses_no_record_and_acknowledges_each_once(
    mode: str, tmp_path: Path
) -> None:
    files = Faulty()
    Writing(tmp_path / "whole", files).run()
    failures = 0
    for k in range(1, len(files.log) + 1):
        writing = Writing(tmp_path / f"{k}", Faulty(k, mode))
        writing.run()
        failures += writing.failures
        assert writing.acknowledged == list(range(RECORDS)), k
        assert found(tmp_path / f"{k}", []) == list(range(RECORDS)), k
    assert failures >= len(files.log) - 1  # the file that is removed before may be that of nobody


class Slow(Faulty):
    """Syncs of records fail when they are let go, and not before the next record is written."""

    def __init__(self) -> None:
        super().__init__()
        self.syncs = 0
        self.go_on = threading.Event()

    def called(self, what: str, path: Any = "") -> bool:
        if what == "sync" and threading.current_thread() is not threading.main_thread():
            self.syncs += 1
            if self.syncs == 2:  # the first one is that of the header
                assert self.go_on.wait(60)
                raise OSError(5, "this sync fails")
        elif what == "write" and self.log.count("write journal-0000000000000000.rcj") == 2:
            self.go_on.set()  # header, record 0, and now record 1
        return super().called(what, path)


def test_a_sync_that_fails_while_more_is_written_has_both_records_written_again(
    tmp_path: Path,
) -> None:
    files = Slow()
    writing = Writing(tmp_path / "j", files)
    writing.run()
    assert writing.failures == 1
    assert writing.acknowledged == list(range(RECORDS))
    torn: list[Torn] = []
    assert found(tmp_path / "j", torn) == list(range(RECORDS))
    assert not torn


# -- what a crash of the machine may leave: a later record, and not the one before


def pair(folder: Path, *, synced: bool) -> tuple[Path, int]:
    """Two records, the second written before or after the first was synced; where that begins."""
    folder.mkdir()
    log = Log(folder, 0, True, [{"name": "t"}])
    log.write(encode(told(0)))
    (path,) = folder.iterdir()
    if synced:
        log.begin_sync()()
    at = path.stat().st_size
    log.write(encode(told(1)))
    log.begin_sync()()
    log.roll()
    return path, at


def damaged(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_a_torn_record_that_was_not_safe_is_cut_with_the_one_behind_it(tmp_path: Path) -> None:
    path, at = pair(tmp_path / "j", synced=False)
    assert found(tmp_path / "j", []) == [0, 1]
    size = path.stat().st_size
    damaged(path, at - 20)
    torn: list[Torn] = []
    assert found(tmp_path / "j", torn) == []
    assert [each.at + each.bytes for each in torn] == [size]


def test_a_torn_record_that_was_safe_is_damage(tmp_path: Path) -> None:
    path, at = pair(tmp_path / "j", synced=True)
    damaged(path, at - 20)
    with pytest.raises(rc.JournalError, match="whole records follow"):
        found(tmp_path / "j", [])


# -- large records


def test_large_records_come_back_and_are_torn_like_small_ones(tmp_path: Path) -> None:
    columns = 300_000
    for sync in ("interval", "off"):
        path = tmp_path / sync
        with rc.Table("t", capacity=9, journal=rc.Journal(path, sync=sync, interval=1e9)) as table:
            writer = table.core.journal.writer  # type: ignore[union-attr]
            ends = []
            for k in range(4):
                table.insert({"x": np.full((1, columns), k, np.float32), "text": ["word" * k]})
                assert writer.flush()
                (file,) = path.glob("journal-*")
                ends.append(file.stat().st_size)
        assert min(np.diff(ends)) > direct.WORTH_IT
        os.truncate(file, ends[3] - 5000)
        with rc.Table("t", capacity=9, journal=path) as again:
            (torn,) = again.core.journal.recovery.torn  # type: ignore[union-attr]
            assert (torn.at, torn.bytes) == (ends[2], ends[3] - 5000 - ends[2])
            stored = again.get(list(again.counts("key")))
            assert sorted(stored["x"][:, -1].tolist()) == [0, 1, 2]
            assert sorted(stored["text"]) == ["", "word", "wordword"]
