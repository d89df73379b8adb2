"""Copying many cells of one size, each a column's part of a row.

Which instructions copy a cell depends on its size alone, so it is decided once for many cells: a
loop that decides at every cell takes twice as long. A cell that is no power of two is copied in
pieces of one width, the last of them laid over the end.
"""

from __future__ import annotations

from numba import njit

from recollect.kernels.machine.compile import inner
from recollect.kernels.machine.memory import (
    copy_1,
    copy_2,
    copy_4,
    copy_8,
    copy_16,
    copy_32,
    copy_64,
    copy_bytes,
    prefetch,
)


def _two_of(width, copy):
    @njit
    def two(target, source, size):
        copy(target, source)
        copy(target + size - width, source + size - width)

    return two


_two_of_8, _two_of_16, _two_of_32 = _two_of(8, copy_8), _two_of(16, copy_16), _two_of(32, copy_32)


@njit
def _64_and_8(target, source, size):
    copy_64(target, source)
    copy_8(target + size - 8, source + size - 8)


@njit
def _64_and_32(target, source, size):
    copy_64(target, source)
    copy_32(target + size - 32, source + size - 32)


@inner("void(int64, int64, int64, int64, int64, int64)")
def copy_cells(target, step, source, pitch, size, n):
    """Copy n cells whose targets are a step apart, and whose sources are a pitch apart."""
    if size == 1:
        for i in range(n):
            copy_1(target + i * step, source + i * pitch)
    elif size == 2:
        for i in range(n):
            copy_2(target + i * step, source + i * pitch)
    elif size == 4:
        for i in range(n):
            copy_4(target + i * step, source + i * pitch)
    elif size == 8:
        for i in range(n):
            copy_8(target + i * step, source + i * pitch)
    elif 8 < size < 16:
        for i in range(n):
            _two_of_8(target + i * step, source + i * pitch, size)
    elif 16 <= size <= 32:
        for i in range(n):
            _two_of_16(target + i * step, source + i * pitch, size)
    elif 32 < size <= 64:
        for i in range(n):
            _two_of_32(target + i * step, source + i * pitch, size)
    elif 64 < size <= 72:
        for i in range(n):
            _64_and_8(target + i * step, source + i * pitch, size)
    elif 72 < size <= 96:
        for i in range(n):
            _64_and_32(target + i * step, source + i * pitch, size)
    else:
        for i in range(n):
            copy_bytes(target + i * step, source + i * pitch, size)


@inner("void(int64, ints, int64, int64, int64, ints, int64)")
def collect_cells(target, records, offset, size, n, following, line):
    """Copy the cells of n records, so that they lie side by side.

    Meanwhile a line of each of the following records is asked for, which are copied next.
    """
    if size == 1:
        for i in range(n):
            copy_1(target + i, records[i] + offset)
            prefetch(following[i] + line)
    elif size == 2:
        for i in range(n):
            copy_2(target + 2 * i, records[i] + offset)
            prefetch(following[i] + line)
    elif size == 4:
        for i in range(n):
            copy_4(target + 4 * i, records[i] + offset)
            prefetch(following[i] + line)
    elif size == 8:
        for i in range(n):
            copy_8(target + 8 * i, records[i] + offset)
            prefetch(following[i] + line)
    elif 8 < size < 16:
        for i in range(n):
            _two_of_8(target + i * size, records[i] + offset, size)
            prefetch(following[i] + line)
    elif 16 <= size <= 32:
        for i in range(n):
            _two_of_16(target + i * size, records[i] + offset, size)
            prefetch(following[i] + line)
    elif 32 < size <= 64:
        for i in range(n):
            _two_of_32(target + i * size, records[i] + offset, size)
            prefetch(following[i] + line)
    elif 64 < size <= 72:
        for i in range(n):
            _64_and_8(target + i * size, records[i] + offset, size)
            prefetch(following[i] + line)
    elif 72 < size <= 96:
        for i in range(n):
            _64_and_32(target + i * size, records[i] + offset, size)
            prefetch(following[i] + line)
    else:
        for i in range(n):
            copy_bytes(target + i * size, records[i] + offset, size)
            prefetch(following[i] + line)
