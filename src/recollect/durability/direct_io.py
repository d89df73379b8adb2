"""Large writes to the end of a file, past the pages in which the system keeps files.

A journal is read at the next start and not before, so pages would only be in the way: finding and
filling them costs more than everything else that is done for a byte. A disk that reads our memory
itself wants whole blocks, in memory and in the file; what lies otherwise is copied first. The bytes
up to the first whole block, and those after the last one, go through pages, so the file looks no
different. Where a file system cannot write past its pages, all bytes go through them.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from recollect.base.arrays import Bytes

BLOCK = 4096  # bytes; that of a disk is as large or smaller
STAGE = 8 << 20  # bytes that are copied into whole blocks and written at once
WORTH_IT = 1 << 20  # bytes from which on a write is direct
AT_ONCE = 1024  # pieces of one write; systems take no more
DIRECT = getattr(os, "O_DIRECT", 0)  # Linux and FreeBSD


class Direct:
    """Writes to the end of one file; the caller opens and closes the descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        self._stage = np.frombuffer(mmap.mmap(-1, STAGE), np.uint8)  # begins with a page
        self.possible = DIRECT != 0

    def write(self, views: Sequence[memoryview], end: int) -> None:
        """Write at the end of the file, which is at the offset `end`."""
        source = Source(views)
        self._write(source.next_into(self._stage[: min(-end % BLOCK, source.left)]))
        try:
            while self.possible and source.left >= BLOCK:
                self._write_blocks(self._next_blocks(source))
        finally:
            fcntl.fcntl(self._descriptor, fcntl.F_SETFL, self._flags)
        while source.left:
            self._write(source.next_into(self._stage[: source.left]))

    def _next_blocks(self, source: Source) -> list[Bytes]:
        """Whole blocks, aligned in memory: where they lie, or copied into the stage."""
        found: list[Bytes] = []
        used = 0
        while source.left >= BLOCK and len(found) < AT_ONCE:
            blocks = source.blocks()
            if blocks is None:
                count = min(source.before_blocks() & -BLOCK, STAGE - used)
                if not count:
                    break
                blocks = source.next_into(self._stage[used : used + count])
                used += count
            found.append(blocks)
        return found

    def _write_blocks(self, blocks: list[Bytes]) -> None:
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_SETFL, self._flags | DIRECT)
            done = os.writev(self._descriptor, [each.data for each in blocks])
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP):
                raise
            done = 0
        if done < sum(each.size for each in blocks):  # this file system cannot do it
            self.possible = False
            fcntl.fcntl(self._descriptor, fcntl.F_SETFL, self._flags)
            for each in blocks:
                self._write(each[done:])
                done = max(0, done - each.size)

    def _write(self, data: Bytes) -> None:
        view: Any = data.data
        while view:
            view = view[os.write(self._descriptor, view) :]


class Source:
    """Pieces of bytes, one after another."""

    def __init__(self, views: Sequence[memoryview]) -> None:
        self._pieces = deque(np.frombuffer(view, np.uint8) for view in views if len(view))
        self.left = sum(piece.size for piece in self._pieces)

    def next_into(self, target: Bytes) -> Bytes:
        """Fill an array with the bytes that are next; returns it."""
        done = 0
        while done < target.size:
            piece = self._pieces.popleft()
            count = min(piece.size, target.size - done)
            target[done : done + count] = piece[:count]
            if count < piece.size:
                self._pieces.appendleft(piece[count:])
            done += count
        self.left -= done
        return target

    def blocks(self) -> Bytes | None:
        """The whole blocks that are next, if the disk can read them where they lie."""
        if not _in_blocks(self._pieces[0]):
            return None
        piece = self._pieces.popleft()
        count = piece.size & -BLOCK
        if count < piece.size:
            self._pieces.appendleft(piece[count:])
        self.left -= count
        return piece[:count]

    def before_blocks(self) -> int:
        """How many bytes come before the next blocks that the disk can read where they lie."""
        total = 0
        for piece in self._pieces:
            if total and total % BLOCK == 0 and _in_blocks(piece):
                return total
            total += piece.size
        return total


def _in_blocks(piece: Bytes) -> bool:
    return piece.size >= BLOCK and piece.ctypes.data % BLOCK == 0
