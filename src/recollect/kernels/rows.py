"""Copying rows into segments and out of them, whatever their columns are.

A segment is a page with two ends: row records, all of one stride, grow from its front, and the
cells whose size varies grow from its back. A record holds every fixed column in place and, for
each ragged or optional column, a descriptor of two int32: where the cell begins, in words of 8
bytes from the segment's base, and its length in elements, -1 for an absent cell. So a row is
one place in memory, copied in one pass, and a kernel needs no types.
"""

from __future__ import annotations

import numpy as np

from recollect.kernels.layout import (
    CELL,
    DIRECTORY_BASE,
    DIRECTORY_COLUMNS,
    DIRECTORY_STRIDE,
    FIXED,
    OFFSET,
    RAGGED,
    SIZE,
)
from recollect.kernels.machine.cell_copies import collect_cells, copy_cells
from recollect.kernels.machine.compile import inner, kernel
from recollect.kernels.machine.memory import (
    STREAMED_CELL,
    copy_bytes,
    fence,
    int8_at,
    int32_at,
    int64_at,
    prefetch,
    prefetch_far,
    store_bytes,
    stream_bytes,
    word_at,
)
from recollect.kernels.machine.objects import (
    ARRAY_DIMENSIONS,
    ARRAY_DTYPE,
    ARRAY_FLAGS,
    ARRAY_SHAPE,
    CONTIGUOUS,
    OBJECT_TYPE,
    data_of,
    data_of_all,
    items_of_list,
)

BLOCK = 64  # rows that are written column by column
MANY = 1 << 16  # bytes that are written past the caches
NARROW = 512  # bytes of a row of which a block stays in the nearest cache
GATHERED = 16  # rows that are read so: fewer, because they come from anywhere
STREAMED = 8 << 20  # bytes of an output that are more than a cache keeps


@kernel("int64(int64)")
def data_address(array_id):
    return data_of(array_id)


@kernel("int64(int64, table)")
def rows_that_fit(list_id, expected):
    """How many rows the arrays in a list have, -1 where one is not what is expected of it.

    Expected are, by array: id of its type, id of its dtype, dimensions, then its shape from the
    second one on; and that it is contiguous.
    """
    objects = items_of_list(list_id)
    rows = np.int64(-1)
    for c in range(expected.shape[0]):
        array = objects[c]
        if word_at(array + OBJECT_TYPE) != expected[c, 0]:
            return np.int64(-1)
        shape = int64_at(word_at(array + ARRAY_SHAPE))
        dimensions = np.int64(int32_at(array + ARRAY_DIMENSIONS)[0])
        if (
            word_at(array + ARRAY_DTYPE) != expected[c, 1]
            or dimensions != expected[c, 2]
            or int32_at(array + ARRAY_FLAGS)[0] & CONTIGUOUS == 0
            or (c > 0 and shape[0] != rows)
        ):
            return np.int64(-1)
        rows = shape[0]
        for d in range(1, dimensions):
            if shape[d] != expected[c, 2 + d]:
                return np.int64(-1)
    return rows


@inner("int64(ints, int64, int64, int64, int64)")
def _cell_length(x, source, offsets, present, row):
    """Elements of a row's cell in what is to be stored, -1 where it is absent."""
    if source == 0 or (present != 0 and int8_at(present)[row] == 0):
        return np.int64(-1)
    if x[CELL] == RAGGED:
        return int64_at(offsets)[row + 1] - int64_at(offsets)[row]
    return np.int64(1)


@inner("int64(int64)")
def round_up(size):
    """Bytes that cells take in a segment: whole words."""
    return (size + 7) & ~np.int64(7)


@inner("void(int64, int64, int64, int64, table, int64, boolean)")
def _lay(record, stride, begin, n, columns, list_id, streams):
    """Copy n rows of the arrays in a list, from row `begin` on, to records side by side.

    By blocks, so that records stay in the cache until all columns came.
    """
    objects = items_of_list(list_id)
    block = BLOCK if stride <= NARROW else 1
    for done in range(0, n, block):
        some = min(block, n - done)
        for c in range(columns.shape[0]):
            size = columns[c, SIZE]
            target = record + done * stride + columns[c, OFFSET]
            source = data_of(objects[c]) + (begin + done) * size
            if streams and size >= STREAMED_CELL:
                for i in range(some):
                    stream_bytes(target + i * stride, source + i * size, size)
            else:
                copy_cells(target, stride, source, size, size, some)


@inner("void(uint8[::1], int64, int64, int64, int64, int64, table, int64, int64, int64, int64)")
def _lay_by_lines(
    block, base, stride, first, begin, end, columns, list_id, records, inserted, links
):
    """Copy many narrow rows past the caches.

    Only whole cache lines can go that way, so a block of rows is put together elsewhere first. A
    block begins with a row whose number is a multiple of its size, and so, in a large segment, with
    a cache line. `records`, `inserted` and `links` are those of `lay_rows`.

    `block` is an argument because Numba frees an array after the last use of its name, whoever
    still has its address: the caller's lives until this returns.
    """
    objects = items_of_list(list_id)
    staged = (np.int64(block.ctypes.data) + 63) & ~np.int64(63)
    record = base + first * stride
    some = BLOCK - first % BLOCK
    while begin < end:
        some = min(some, end - begin)
        place = staged + (record & 63)
        if records != 0:
            for at in range(0, 32 * some, 64):
                prefetch_far(records + 32 * begin + at)
            for at in range(0, 8 * some, 64):
                prefetch_far(inserted + 8 * begin + at)
            for at in range(0, 4 * some, 64):
                prefetch_far(links + 4 * begin + at)
        for c in range(columns.shape[0]):
            size = columns[c, SIZE]
            source = data_of(objects[c]) + begin * size
            copy_cells(place + columns[c, OFFSET], stride, source, size, size, some)
        stream_bytes(record, place, some * stride)
        record += some * stride
        begin += some
        some = np.int64(BLOCK)


@inner("void(int64, int64, int64, int64, int64, table, int64, int64, int64, int64)")
def lay_rows(base, stride, first, begin, end, columns, list_id, records, inserted, links):
    """Copy rows [begin, end) of the arrays in a list to records `first`, ...

    Many rows go past the caches: nobody reads them soon, and what they replace need not be read
    before. Meanwhile the cache is filled with what is read next: `records`, `inserted` and `links`
    are the addresses of what belongs to the slot of the first row, or 0.
    """
    n = end - begin
    many = n * stride >= MANY
    if many and stride <= NARROW:
        block = np.empty(BLOCK * stride + 128, np.uint8)
        _lay_by_lines(
            block, base, stride, first, begin, end, columns, list_id, records, inserted, links
        )
    else:
        _lay(base + first * stride, stride, begin, n, columns, list_id, many)
    if many:
        fence()


@kernel("void(int64, int64, int64, int64, int64, table, int64)")
def append_fixed(base, stride, first, begin, end, columns, list_id):
    """`lay_rows`, under the GIL: for the rows of an insert."""
    lay_rows(base, stride, first, begin, end, columns, list_id, 0, 0, 0)


@kernel("void(int64, int64, int64, int64, int64, table, int64)", nogil=True)
def place_fixed(base, stride, first, begin, end, columns, list_id):
    """`append_fixed` without the GIL, so that two threads can load a snapshot."""
    lay_rows(base, stride, first, begin, end, columns, list_id, 0, 0, 0)


@kernel("void(int64, int64, int64, int64, int64, table, int64)", nogil=True)
def take_fixed(base, stride, first, begin, end, columns, list_id):
    """The other way: copy records `first`, ... to the rows [begin, end) of the arrays in a list.

    A snapshot reads rows that mostly lie side by side, so each column is copied by itself.
    """
    objects = items_of_list(list_id)
    for start in range(begin, end, BLOCK):
        stop = min(start + BLOCK, end)
        record = base + (first + start - begin) * stride
        for c in range(columns.shape[0]):
            size = columns[c, SIZE]
            target = data_of(objects[c]) + start * size
            copy_cells(target, size, record + columns[c, OFFSET], stride, size, stop - start)


@kernel("int64(int64, int64, int64, int64, int64, int64, table, ints)")
def append_varying(base, stride, tail, first, begin, end, columns, sources):
    """`append_fixed` where a column is ragged or optional; returns where varying cells begin now.

    `sources` holds three entries a column: the ids of its data, its offsets and its presence
    flags, 0 where there is none. They are replaced by the addresses of the data.
    """
    count = columns.shape[0]
    for k in range(3 * count):
        sources[k] = data_of(sources[k])
    for row in range(begin, end):
        record = base + (first + row - begin) * stride
        for c in range(count):
            x = columns[c]
            size = x[SIZE]
            source = sources[3 * c]
            if x[CELL] == FIXED:
                copy_bytes(record + x[OFFSET], source + row * size, size)
                continue
            offsets = sources[3 * c + 1]
            length = _cell_length(x, source, offsets, sources[3 * c + 2], row)
            descriptor = int32_at(record + x[OFFSET])
            descriptor[1] = length
            if length > 0:
                start = int64_at(offsets)[row] if x[CELL] == RAGGED else row
                tail -= round_up(length * size)
                store_bytes(base + tail, source + start * size, length * size)
            descriptor[0] = tail >> 3
    fence()
    return tail


@kernel("void(table, ints, int32[::1], int64, ints, ints)")
def measure_input(columns, sources, rows, n, payload, stored):
    """Bytes of each of n items: its payload, and what its varying cells take in a segment."""
    count = columns.shape[0]
    row = np.int64(0)
    for i in range(n):
        payload[i] = 0
        stored[i] = 0
        for _ in range(rows[i] if rows.size > 1 else rows[0]):
            for c in range(count):
                x = columns[c]
                if x[CELL] == FIXED:
                    payload[i] += x[SIZE]
                    continue
                length = _cell_length(
                    x,
                    data_of(sources[3 * c]),
                    data_of(sources[3 * c + 1]),
                    data_of(sources[3 * c + 2]),
                    row,
                )
                if length > 0:
                    payload[i] += length * x[SIZE]
                    stored[i] += round_up(length * x[SIZE])
            row += 1


@kernel("void(ints, int64, int64, int64)")
def count_up(locations, begin, end, first):
    """Locations of rows side by side, for those from `begin` to `end`."""
    for i in range(begin, end):
        locations[i] = first + i - begin


@kernel("void(ints, int32[::1], ints)", nogil=True)
def expand(locations, rows, expanded):
    """The location of every row of items, from the locations of their first rows."""
    at = 0
    for i in range(locations.size):
        for k in range(rows[i]):
            expanded[at] = locations[i] + k
            at += 1


@inner("int64(table, int64)")
def _record(directory, location):
    segment = location >> 32
    row = location & np.int64(0xFFFFFFFF)
    return directory[segment, DIRECTORY_BASE] + row * directory[segment, DIRECTORY_STRIDE]


@inner("int64(table, ints, int64, int64, int64)")
def _ask(directory, locations, i, first, width):
    """Find the record of a row, and ask for its lines from the first one given on, up to four."""
    record = _record(directory, locations[i])
    for line in range(64 * first, min(width + 63, np.int64(256)), 64):
        prefetch(record + min(line, width - 1))
    return record


@inner("void(table, ints, table, ints, int64, int64, int64)")
def _gather_narrow(directory, locations, columns, targets, width, begin, end):
    """Copy block by block and column by column, while memory brings the next block.

    A line of each of its records is asked for with each column, because a processor that is asked
    for many at once waits. Behind the last block lines are asked for that nobody reads.
    """
    count = columns.shape[0]
    records = np.empty(GATHERED, np.int64)
    following = np.empty(GATHERED, np.int64)
    for i in range(min(GATHERED, end - begin)):
        following[i] = _ask(directory, locations, begin + i, 0, width)
    for start in range(begin, end, GATHERED):
        stop = start + GATHERED
        records, following = following, records
        for i in range(stop, min(stop + GATHERED, end)):
            following[i - stop] = _ask(directory, locations, i, count, width)
        for c in range(count):
            if columns[c, CELL] == FIXED:
                offset, size = columns[c, OFFSET], columns[c, SIZE]
                target = targets[c] + start * size
                line = min(64 * c, width - 1)
                some = min(GATHERED, end - start)
                collect_cells(target, records, offset, size, some, following, line)


@inner("void(table, ints, table, ints, int64, int64, int64)")
def _gather_wide(directory, locations, columns, targets, width, begin, end):
    """Copy row by row; an output that no cache could hold goes past the caches."""
    streams = locations.size * width >= STREAMED
    for i in range(begin, end):
        if i + GATHERED < end:
            _ask(directory, locations, i + GATHERED, 0, width)
        record = _record(directory, locations[i])
        for c in range(columns.shape[0]):
            if columns[c, CELL] == FIXED:
                size = columns[c, SIZE]
                target = targets[c] + i * size
                if streams:
                    store_bytes(target, record + columns[c, OFFSET], size)
                else:
                    copy_bytes(target, record + columns[c, OFFSET], size)
    if streams:
        fence()


@inner("void(table, ints, table, ints, int64, int64)")
def copy_fixed(directory, locations, columns, targets, begin, end):
    """Copy the fixed columns of the rows [begin, end), each to its target."""
    width = np.int64(0)
    for c in range(columns.shape[0]):
        if columns[c, CELL] == FIXED:
            width = max(width, columns[c, OFFSET] + columns[c, SIZE])
    if width <= NARROW:
        _gather_narrow(directory, locations, columns, targets, width, begin, end)
    else:
        _gather_wide(directory, locations, columns, targets, width, begin, end)


@kernel("void(table, ints, table, int64)", nogil=True)
def gather(directory, locations, columns, list_id):
    """Copy the fixed columns of rows, each into the array at its place in a list."""
    targets = np.empty(columns.shape[0], np.int64)
    data_of_all(list_id, targets)
    copy_fixed(directory, locations, columns, targets, 0, locations.size)


@kernel("void(table, ints, table, ints, table, int8[:, ::1])", nogil=True)
def measure(directory, locations, columns, varying, offsets, present):
    """Offsets and presence of varying columns over rows: `varying` says which columns.

    By blocks, column by column, as rows are gathered.
    """
    n = locations.size
    records = np.empty(GATHERED, np.int64)
    known = np.empty(GATHERED, np.int64)  # columns that there were when a row was written
    offsets[:, 0] = 0
    for start in range(0, n, GATHERED):
        some = min(GATHERED, n - start)
        fewest = columns.shape[0]
        for i in range(some):
            location = locations[start + i]
            records[i] = _record(directory, location)
            known[i] = directory[location >> 32, DIRECTORY_COLUMNS]
            fewest = min(fewest, known[i])
            if start + i + GATHERED < n:
                prefetch(_record(directory, locations[start + i + GATHERED]))
        for k in range(varying.size):
            place = columns[varying[k], OFFSET] + 4
            ends = int64_at(offsets[k].ctypes.data + 8 * start)
            flags = int8_at(present[k].ctypes.data + start)
            total = ends[0]
            for i in range(some):
                length = np.int64(-1)
                if varying[k] < fewest or varying[k] < known[i]:
                    length = np.int64(int32_at(records[i] + place)[0])
                flags[i] = length >= 0
                total += max(length, np.int64(0))
                ends[i + 1] = total


@inner("void(table, ints, table, ints, table, ints, int64, int64)")
def copy_varying(directory, locations, columns, varying, offsets, targets, begin, end):
    """Copy varying columns of the rows [begin, end), each to its target.

    Ragged cells are put end to end, optional ones each at its row. Cells grow from the back of a
    segment, so the last one is read first: then addresses rise, and the processor fetches the next
    cell while one is copied. An output that no cache could hold goes past the caches.
    """
    count = varying.size
    total = np.int64(0)
    for k in range(count):
        total += offsets[k, locations.size] * columns[varying[k], SIZE]
    streams = total >= STREAMED
    for i in range(end - 1, begin - 1, -1):
        base = directory[locations[i] >> 32, DIRECTORY_BASE]
        record = _record(directory, locations[i])
        for k in range(count - 1, -1, -1):
            length = offsets[k, i + 1] - offsets[k, i]
            if length == 0:
                continue
            x = columns[varying[k]]
            size = length * x[SIZE]
            source = base + (np.int64(int32_at(record + x[OFFSET])[0]) << 3)
            start = offsets[k, i] if x[CELL] == RAGGED else np.int64(i)
            target = targets[k] + start * x[SIZE]
            if streams:
                store_bytes(target, source, size)
            else:
                copy_bytes(target, source, size)
    if streams:
        fence()


@kernel("void(table, ints, table, ints, table, int64)", nogil=True)
def gather_cells(directory, locations, columns, varying, offsets, list_id):
    """Copy varying columns of rows, each into the array at its place in a list."""
    targets = np.empty(varying.size, np.int64)
    data_of_all(list_id, targets)
    copy_varying(directory, locations, columns, varying, offsets, targets, 0, locations.size)
