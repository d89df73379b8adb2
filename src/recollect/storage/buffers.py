"""Memory that is used again when nobody refers to it any more.

Fresh pages cost more than a copy into old ones, so some large buffers are kept and handed out
again. A buffer is free when the pool holds the only reference: every view of it, whoever made
it, keeps the buffer itself alive, so its reference count tells.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import threading
from collections.abc import Callable
from sys import getrefcount
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from recollect.base.arrays import Bytes

Allocate = Callable[[tuple[int, ...], Any], NDArray[Any]]  # how arrays get their memory

LINE = 64  # bytes of a cache line
LARGE = 1 << 20  # below this the C library's allocator reuses pages by itself


def aligned_zeros(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Zeros that begin with a cache line: what fits into one line then is in one.

    Pages that nobody writes take no memory, and those of a large array are given back with it.
    """
    dtype = np.dtype(dtype)
    size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    if size >= LARGE:
        return _fresh(size).view(dtype).reshape(shape)
    buffer = np.zeros(size + LINE, np.uint8)
    start = -buffer.ctypes.data % LINE
    return buffer[start : start + size].view(dtype).reshape(shape)


def _fresh(size: int) -> Bytes:
    """New memory. A large one is mapped by itself, so that freeing it gives its pages back."""
    if size < LARGE:
        return np.empty(size, np.uint8)
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"there is no memory for {size:,} bytes more: {error}") from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without huge pages: small ones will do
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)


def _rounded(size: int) -> int:
    """A size that others share: batches of ragged rows differ a little, and their buffers need not.

    It is at most an eighth more, of which pages that nobody writes take no memory.
    """
    step = 1 << max(0, size.bit_length() - 4)
    return -(-size // step) * step


def _references_of_unused() -> int:
    """What getrefcount says of a buffer that only a list refers to, asked in the same way."""
    pool = [np.empty(0, np.uint8)]
    return getrefcount(pool[0])


class BufferPool:
    """Keeps at most `most` bytes of buffers, in use or not, and reuses those that are free.

    `lent` is how much more of large ones somebody may hold on to after they were given up.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.lent = 0
        self._lock = threading.Lock()
        self._buffers: list[Bytes] = []
        self._unused = _references_of_unused()

    def bytes(self, size: int) -> Bytes:
        """A buffer of at least `size` bytes, at most twice as large; new, or one that was kept."""
        with self._lock:
            place = self._free(size)
            if place >= 0:
                return self._buffers.pop(place)
        return _fresh(size)

    def _free(self, size: int) -> int:
        """Where a buffer that fits and is free is, -1 where there is none."""
        buffers, unused = self._buffers, self._unused
        for place in range(len(buffers)):
            if size <= buffers[place].size <= 2 * size and getrefcount(buffers[place]) == unused:
                return place
        return -1

    def keep(self, buffer: Bytes) -> None:
        """Hand a buffer out again once it is free, if there is room for it in the pool."""
        with self._lock:
            total, place = buffer.size, 0
            for kept in range(len(self._buffers)):  # by number: a name for one is a reference to it
                if self._buffers[kept] is buffer:
                    return
                total += self._buffers[kept].size
            most = self.most + (self.lent if buffer.size >= LARGE else 0)
            while total > most and place < len(self._buffers):
                if getrefcount(self._buffers[place]) == self._unused:
                    total -= self._buffers[place].size
                    del self._buffers[place]
                else:
                    place += 1
            if total <= most:
                self._buffers.append(buffer)

    def array(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """An array of any content; a large one in a buffer that is kept."""
        dtype = np.dtype(dtype)
        size = dtype.itemsize * math.prod(shape)
        if size < LARGE:
            return np.empty(shape, dtype)
        size = _rounded(size)
        with self._lock:
            place = self._free(size)
            if place >= 0:
                return np.ndarray(shape, dtype, self._buffers[place])
        buffer = _fresh(size)
        self.keep(buffer)
        return np.ndarray(shape, dtype, buffer)
