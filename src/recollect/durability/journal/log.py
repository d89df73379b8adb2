"""The files of a journal: records one after another, each in a frame with length and checksum.

    PATH/lock                                  held by the process that writes
    PATH/journal-<number of its first record>.rcj
    PATH/base-<number of the next record>/     a snapshot: what the records before it led to

A record that could not be written and synced is written again, under its number, into another
file, because nobody knows what a failed sync left in the old one. A reader goes by the numbers.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from recollect.durability.direct_io import BLOCK, WORTH_IT
from recollect.durability.files import LOCAL, Files, LocalFile
from recollect.durability.format import FORMAT, FRAME, HEADER, Piece, frame, frames
from recollect.errors import JournalError

LARGE = 64 << 10  # bytes of a piece that is written by itself; smaller ones are joined
PREFIX, SUFFIX, BASE = "journal-", ".rcj", "base-"


class Lock:
    """The right to write a journal. One process has it, and loses it when the process ends."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "lock"
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.read(self._descriptor, 32).decode(errors="replace").strip() or "unknown"
            os.close(self._descriptor)
            raise JournalError(
                f"{folder} is in use by process {owner}: a journal has one writer; close the other "
                "one, or give this one a path of its own"
            ) from None
        os.ftruncate(self._descriptor, 0)
        os.write(self._descriptor, f"{os.getpid()}\n".encode())

    def release(self) -> None:
        """Let another process write. In a forked child, the parent keeps the lock."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class Sections:
    """What a record holds, in order: names, and streams of Arrow in pieces."""

    def __init__(self) -> None:
        self.listed: list[tuple[str, int]] = []
        self.pieces: list[Piece] = []
        self.size = 0  # bytes; the next section begins here

    def add(self, name: str, pieces: Sequence[memoryview]) -> None:
        """Add a stream. Its first large piece begins with a block of the file, so that the disk
        can read it where it lies."""
        before = 0
        for piece in pieces:
            if len(piece) >= WORTH_IT:
                self._lengthen(-(self.size + before) % BLOCK)
                break
            before += len(piece)
        size = sum(map(len, pieces))
        self.listed.append((name, size))
        self.pieces += [*pieces, bytes(-size % 8)]
        self.size += size + -size % 8

    def _lengthen(self, count: int) -> None:
        """Lengthen the last section by zeros: a reader stops where the stream in it ends."""
        if self.listed:
            name, size = self.listed[-1]
            self.listed[-1] = name, size + -size % 8 + count
            self.pieces.append(bytes(count))
            self.size += count


class Log:
    """The end of a journal, to which records are added. One thread at a time may call it."""

    def __init__(
        self,
        folder: Path,
        number: int,
        synced: bool,
        members: Sequence[dict[str, Any]],
        files: Files = LOCAL,
    ) -> None:
        self._folder, self._files, self._synced = folder, files, synced
        self._members = members
        self._file: LocalFile | None = None
        self._path = folder
        self._end = 0  # bytes of the file that were written
        self._good = 0  # bytes of these that are whole records and synced
        self.safe = number  # of the first record that may not be on the disk
        self.number = number  # of the next record
        self.bytes = size(folder, files)  # of all files

    def append(self, sections: Sections) -> None:
        """Write the next record, and sync it."""
        try:
            self.write(sections)
            self.begin_sync()()
        except BaseException:
            self.give_up()
            raise

    def write(self, sections: Sections) -> None:
        """Write the next record. Where that fails, the caller must call `give_up`."""
        if self._file is None:
            self._begin()
        assert self._file is not None
        record = _record(self.number, self.safe, sections, self._end + FRAME.size)
        pieces = frame(list(_joined(record)), self._end)
        written = self._file.write_all(pieces, direct=self._synced)
        self._end += written
        self.bytes += written
        self.number += 1

    def begin_sync(self) -> Callable[[], None]:
        """A call that syncs what is written by now; another thread may make it meanwhile.

        Where it fails, the caller must call `give_up` once nobody writes or syncs.
        """
        file, end, number = self._file, self._end, self.number

        def sync() -> None:
            if self._synced and file is not None:
                file.sync()
            self._good, self.safe = end, number

        return sync

    def _begin(self) -> None:
        """Make another file, which begins with a header."""
        self._path = self._folder / f"{PREFIX}{self.number:016x}{SUFFIX}"
        self._files.remove(self._path)  # it holds no record, or the number would be higher
        self._file = self._files.create(self._path)
        self._end = self._good = 0
        header = {"format": FORMAT, "first": self.number, "synced": self._synced}
        text = json.dumps({**header, "members": self._members}).encode()
        self._end = self._file.write_all(frame([text], 0))
        self.bytes += self._end
        if self._synced:
            self._file.sync()
            self._files.sync_folder(self._folder)
        self._good = self._end

    def give_up(self) -> None:
        """Go on in another file, and cut this one to what is known to be good, if that still works.

        The caller writes the records that were cut again, under their numbers.
        """
        file, self._file = self._file, None
        self.bytes -= self._end - self._good
        self._end, self.number = self._good, self.safe
        if file is None:
            return
        try:
            file.close()
            self._files.truncate(self._path, self._good)
        except OSError:
            return  # a reader finds the end of what is good by checksums

    def roll(self) -> int:
        """Let the next record begin another file; returns its number."""
        file, self._file = self._file, None
        if file is not None:
            if not self._synced:
                file.sync()
            file.close()
        return self.number

    def remove_before(self, number: int) -> None:
        """Remove the files and bases whose records all come before a number."""
        numbered = _numbered(self._folder, self._files)
        for place, (first, name) in enumerate(numbered):
            following = numbered[place + 1][0] if place + 1 < len(numbered) else self.number
            if first < number and following <= number:
                self._files.remove(self._folder / name)
        for first, path in bases(self._folder, self._files):
            if first < number:
                self._files.remove_folder(path)
        self.bytes = size(self._folder, self._files)


def _record(number: int, safe: int, sections: Sections, at: int) -> list[Piece]:
    """A record in pieces, for an offset of its file.

    It says which records are synced by now: if a reader finds one of these torn, it was damaged
    later. The sections of a large record begin with a block of the file.
    """
    header = {"number": number, "safe": safe, "sections": sections.listed}
    text = json.dumps(header, separators=(",", ":")).encode()
    if sections.size >= WORTH_IT:
        text += b" " * (-(at + HEADER.size + len(text)) % BLOCK)
    head = HEADER.pack(len(text)) + text
    return [head + bytes(-len(head) % 8), *sections.pieces]


def _joined(pieces: Sequence[Piece]) -> Iterator[Piece]:
    """The same bytes in fewer pieces, because each piece costs a call of the system."""
    small: list[Piece] = []
    for piece in pieces:
        if len(piece) < LARGE:
            small.append(piece)
            continue
        if small:
            yield b"".join(small)
            small = []
        yield piece
    if small:
        yield b"".join(small)


# -- reading --------------------------------------------------------------------------------------
class Record(NamedTuple):
    """A record that was read whole, and the members that the header of its file describes."""

    number: int
    payload: memoryview
    path: Path
    members: list[dict[str, Any]]


@dataclass
class Torn:
    """What was cut off the end of a journal."""

    path: Path
    bytes: int
    at: int


def records(folder: Path, first: int, torn: list[Torn], files: Files = LOCAL) -> Iterator[Record]:
    """Every record from a number on, in order. A torn end of the journal is added to `torn`.

    Raises `JournalError` where a record in the middle is missing or damaged.
    """
    expected = first
    tail: Torn | None = None
    for begins, name in _numbered(folder, files):
        path = folder / name
        if begins > expected:
            raise _missing(path, expected, tail)
        data = files.read(path)
        end, following = 0, begins
        header: dict[str, Any] = {"synced": True}
        for place, each in enumerate(frames(data)):
            end = each.next
            if place == 0:
                header = _checked_header(path, each.payload)
                continue
            number, _ = _number_of(each.payload)
            following = number + 1
            if number > expected:
                raise _missing(path, expected, tail)
            if number == expected:
                tail = None
                expected += 1
                yield Record(number, each.payload, path, header["members"])
        if end < len(data):
            if header["synced"] and _was_safe(data, end, following):
                raise JournalError(
                    f"{path} is damaged at byte {end}, in the middle: whole records follow; "
                    "restore a snapshot, or cut the file there to lose what follows"
                )
            tail = Torn(path, len(data) - end, end)
    if tail is not None:
        torn.append(tail)


def cut(torn: Torn, files: Files = LOCAL) -> None:
    """Cut a torn end off its file, or remove the file where nothing would be left."""
    if torn.at == 0:
        files.remove(torn.path)
    else:
        files.truncate(torn.path, torn.at)


def bases(folder: Path, files: Files = LOCAL) -> list[tuple[int, Path]]:
    """The snapshots of a journal, by the number of the record that follows; the latest last."""
    found = []
    for name in files.list(folder):
        if name.startswith(BASE) and files.exists(folder / name / "manifest.json"):
            found.append((int(name[len(BASE) :], 16), folder / name))
    return sorted(found)


def size(folder: Path, files: Files = LOCAL) -> int:
    """Bytes of all files of records."""
    return sum(files.size(folder / name) for _, name in _numbered(folder, files))


def _numbered(folder: Path, files: Files) -> list[tuple[int, str]]:
    names = [n for n in files.list(folder) if n.startswith(PREFIX) and n.endswith(SUFFIX)]
    return sorted((int(name[len(PREFIX) : -len(SUFFIX)], 16), name) for name in names)


def _checked_header(path: Path, payload: memoryview) -> dict[str, Any]:
    try:
        header: dict[str, Any] = json.loads(bytes(payload))
        known = header["format"] <= FORMAT and header["members"] is not None
    except (ValueError, KeyError, TypeError):
        raise JournalError(f"{path} is no file of a journal: it has no header") from None
    if not known:
        raise JournalError(
            f"{path} has format {header['format']!r} and this version reads {FORMAT}; use a newer "
            "Recollect"
        )
    return header


def _number_of(payload: memoryview) -> tuple[int, int]:
    """The number of a record, and up to which one all were synced when it was written."""
    (length,) = HEADER.unpack_from(payload, 0)
    header = json.loads(bytes(payload[HEADER.size : HEADER.size + length]))
    number: int = header["number"]
    return number, header.get("safe", number)


def _missing(path: Path, expected: int, tail: Torn | None) -> JournalError:
    if tail is not None:
        return JournalError(
            f"{tail.path} is damaged at byte {tail.at}: record {expected} is missing, and "
            f"{path.name} goes on behind it; restore a snapshot"
        )
    return JournalError(
        f"record {expected} is missing before {path}: a file was removed; restore a snapshot"
    )


def _was_safe(data: memoryview, offset: int, number: int) -> bool:
    """Whether a whole record behind a torn one says that the torn one had been synced before."""
    words = np.frombuffer(data, np.uint64, (len(data) - offset) // 8, offset)
    left = len(data) - offset - 8 * np.arange(words.size)
    likely = np.flatnonzero((words >= 8) & (words < left))
    for at in likely[:100_000]:
        found = next(frames(data, offset + 8 * int(at)), None)
        if found is not None and _number_of(found.payload)[1] > number:
            return True
    return False
