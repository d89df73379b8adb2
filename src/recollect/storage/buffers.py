"""Memory that is used again when nobody refers to it any more.

Fresh pages cost more than a copy into old ones, so large buffers are kept and handed out
again. A buffer is free when the pool holds the only reference: every view of it, whoever made
it, keeps the buffer itself alive, so its reference count tells.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

Bytes = NDArray[np.uint8]

LARGE = 1 << 20  # below this the C library's allocator reuses pages by itself


def _references_of_unused() -> int:
    """What getrefcount says of a buffer that only a list refers to, asked in the same way."""
    pool = [np.empty(0, np.uint8)]
    return sys.getrefcount(pool[0])


class BufferPool:
    """Buffers of at least `LARGE` bytes, reused when free; keeps at most `keep` bytes unused."""

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._lock = threading.Lock()
        self._buffers: list[Bytes] = []
        self._unused = _references_of_unused()

    def bytes(self, size: int) -> Bytes:
        """A buffer of at least `size` bytes, at most twice as large."""
        with self._lock:
            free = []
            for place in range(len(self._buffers)):
                if sys.getrefcount(self._buffers[place]) == self._unused:
                    if size <= self._buffers[place].size <= 2 * size:
                        return self._buffers[place]
                    free.append(place)
            self._forget(free, size)
            buffer = np.empty(size, np.uint8)
            self._buffers.append(buffer)
            return buffer

    def _forget(self, free: list[int], wanted: int) -> None:
        """Drop free buffers, the oldest first, until at most `keep` bytes stay beside the new."""
        excess = sum(self._buffers[place].size for place in free) + wanted - self._keep
        dropped = set()
        for place in free:
            if excess <= 0:
                break
            excess -= self._buffers[place].size
            dropped.add(place)
        if dropped:
            self._buffers = [b for i, b in enumerate(self._buffers) if i not in dropped]

    def array(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """An array of any content; a large one in a buffer of the pool."""
        dtype = np.dtype(dtype)
        size = dtype.itemsize
        for length in shape:
            size *= length
        if size < LARGE:
            return np.empty(shape, dtype)
        return np.ndarray(shape, dtype, self.bytes(size))
