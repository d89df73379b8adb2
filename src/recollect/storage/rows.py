"""Where payload lives: rows in append-only segments, each row written once.

A segment is a page (see `kernels.rows`): records from its front, varying cells from its back.
A location is a segment's number and a row in it. Segments are never written where they were
written before, so a reader needs no lock: it holds the segments it reads. A segment without
live rows is dropped, and its memory is used again when its last reader is gone. Segments that
lost most of their rows are emptied by moving whole items to the end (`compact`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from recollect.data.ragged import Ragged
from recollect.data.rows_per_item import ONE_ROW
from recollect.data.schema import Column, Rows, Schema
from recollect.kernels import layout
from recollect.storage.buffers import BufferPool
from recollect.storage.copy_thread import SharedCopy

Ints = NDArray[np.int64]
Array = NDArray[Any]
Allocate = Callable[[tuple[int, ...], Any], Array]

LARGEST = 8 << 20
SMALLEST = 64 << 10
HUGE = 2 << 20  # bytes of a huge page
SLACK = 16 << 20  # bytes of dead rows that are never worth moving anything for
SHORT_RUN = 64  # rows side by side, on average, below which each is copied by itself
NO_SOURCE = (0, 0, 0)  # what kernels get for a column that is absent
MANY_CELLS = 2 << 20  # bytes of cells that are worth a second thread
MANY_ROWS = 256 << 10  # of rows, which lie anywhere: each waits for memory
DEAD_SHARE = 0.2  # beyond the slack: dead bytes per live byte


class Segment:
    """One page of rows."""

    __slots__ = ("base", "buffer", "most", "number", "origin", "owners", "rows", "serial",
                 "stride", "tail")  # fmt: skip

    def __init__(
        self, buffer: NDArray[np.uint8], base: int, number: int, serial: int, stride: int
    ) -> None:
        self.buffer = buffer
        self.stride = stride
        self.most = buffer.size // stride  # rows
        self.base = base  # its address
        self.number = number
        self.origin = number << 32  # the location of its first row
        self.serial = serial  # how many were opened before it, and it
        self.rows = 0
        self.tail = buffer.size & ~7
        self.owners: NDArray[np.int32] | None = None

    @property
    def used(self) -> int:
        """Bytes that were written: records and varying cells."""
        return self.rows * self.stride + self.buffer.size - self.tail

    def owned_by(self) -> Ints:
        """Slots whose items had rows here: some may have gone, or moved away."""
        if self.owners is None:
            return np.zeros(0, np.int64)
        owners = np.unique(self.owners[: self.rows])
        return owners[owners >= 0].astype(np.int64)


class Stretch(NamedTuple):
    """Some of the rows that come together, and where they go."""

    segment: Segment
    first: int  # row of the segment
    begin: int  # of the rows that come,
    end: int  # up to here


class Directory(NamedTuple):
    """What a reader needs of all segments at one moment; it stays as it is."""

    entries: Ints  # [segment, (base, stride, columns)]
    buffers: tuple[NDArray[np.uint8] | None, ...]


class Cell:
    """What a reader must know of one varying column, looked up once."""

    __slots__ = ("element", "kind", "name", "nothing", "optional", "place", "ragged", "shape",
                 "size")  # fmt: skip

    def __init__(self, name: str, place: int, column: Column) -> None:
        self.name = name
        self.place = place  # among the columns that are read
        self.ragged, self.optional = column.ragged, column.optional
        self.kind: Any = column.kind
        self.shape, self.element, self.size = column.shape, column.element, column.size
        self.nothing = np.empty((0, *self.shape), self.element)  # the values where no row has any


class Reading:
    """Which columns are read, worked out once for all readers: the columns of a store, or some."""

    __slots__ = ("fixed", "names", "numbers", "table", "varying", "whole", "width")

    def __init__(
        self, names: Sequence[str], columns: Sequence[Column], whole: Ints, places: Sequence[int]
    ) -> None:
        self.names = names
        self.whole = whole  # the table of all columns, by which kernels know them
        self.table = whole if list(places) == list(range(len(whole))) else whole[list(places)]
        self.fixed = [
            (place, column.shape, column.dtype)
            for place, column in enumerate(columns)
            if not column.ragged and not column.optional
        ]
        self.varying = [
            Cell(names[place], place, column)
            for place, column in enumerate(columns)
            if column.ragged or column.optional
        ]
        self.width = sum(columns[place].size for place, _, _ in self.fixed)
        self.numbers = np.array([places[cell.place] for cell in self.varying], np.int64)


class RowStore:
    """All rows of one kind (rows, or shared cells) of a table. Its caller holds the lock."""

    def __init__(self, schema: Schema, kernels: Any, pool: BufferPool) -> None:
        self._kernels = kernels
        self._pool = pool
        self._next_size = SMALLEST
        self._limit = LARGEST
        self._segments: list[Segment | None] = []
        self._buffers: list[NDArray[np.uint8] | None] = []  # by number, as the directory has them
        self._free: list[int] = []  # numbers of segments that were dropped
        self._open: Segment | None = None
        self.allocated = 0
        self.opened = 0
        self.live_rows = np.zeros(16, np.int64)
        self._live = self.live_rows.data  # the same numbers, quicker to change one by one
        self.sealed = np.zeros(16, np.int8)
        self.entries = np.zeros((16, layout.DIRECTORY_BLOCK), np.int64)  # of segments as they are
        self._directory: Directory | None = None  # for those who read now
        self.tracking = False
        self.set_schema(schema)
        self.beside = (
            self.stride - self.fixed_bytes
        )  # of a record, at least: columns are only added

    # -- schema ---------------------------------------------------------------------------------
    def set_schema(self, schema: Schema) -> None:
        """Lay out a record. Columns keep their places; new ones come at the end."""
        self.schema = schema
        self.names = list(schema.columns)
        self.columns = list(schema.columns.values())
        table = np.zeros((len(self.columns), layout.COLUMN_BLOCK), np.int64)
        offset = 0
        for place, column in enumerate(self.columns):
            cell = _cell_of(column)
            if cell != layout.FIXED:
                offset = (offset + 3) & ~3
            table[place, :3] = cell, offset, column.size
            offset += column.size if cell == layout.FIXED else 8
        self.table = table
        self.varying = [p for p in range(len(table)) if table[p, layout.CELL] != layout.FIXED]
        self.stride = (offset + 3) & ~3 if self.varying else max(offset, 1)
        self.fixed_bytes = sum(c.size for c in self.columns if _cell_of(c) == layout.FIXED)
        self._sources = np.zeros(3 * len(table), np.int64)
        self.reading = Reading(self.names, self.columns, table, range(len(table)))
        self.row_bytes = np.array([self.fixed_bytes], np.int64)
        self._location = np.zeros(1, np.int64)  # what append returns for a single stretch,
        self._stretch = np.zeros((1, layout.STRETCH_BLOCK), np.int64)  # and claim
        self._one = self._stretch[0].data  # quicker to change one by one
        self._seal()

    def expect(self, size: int) -> None:
        """A full table will take so many bytes of records: small tables want small segments."""
        share = size // 64
        if share >= HUGE:  # whole huge pages
            share &= -HUGE
        self._limit = min(LARGEST, max(SMALLEST, share))
        self._pool.most = self._limit

    # -- writing --------------------------------------------------------------------------------
    def append(self, rows: Rows, per_item: NDArray[np.int32], items: int) -> tuple[Ints, Ints]:
        """Store rows; returns the location of each item's first row and each item's payload.

        `per_item` holds the rows of each item, or one number for all. So do the results: one
        location stands for items that follow each other.
        """
        if self.varying:
            return self._append_varying(rows, per_item, items)
        segment = self._open
        need = rows.count * self.stride
        if segment is None or segment.tail - segment.rows * self.stride < need:
            if per_item is ONE_ROW:
                return self._append_rows(rows), self.row_bytes
            return self._append_split(rows, per_item, items, None)
        location = segment.origin | segment.rows
        self._write(segment, rows, 0, rows.count)
        if per_item is ONE_ROW:
            self._location[0] = location
            return self._location, self.row_bytes
        payload = per_item * np.int64(self.fixed_bytes)
        if per_item.size > 1:
            return self._locations(location, per_item), payload
        return np.array([location], np.int64), payload

    def claim(self, count: int) -> Ints:
        """Room for rows of one size, each an item, that a kernel fills: its stretches."""
        segment = self._open
        if segment is not None and segment.tail - segment.rows * self.stride >= count * self.stride:
            one, first = self._one, segment.rows
            one[0], one[1], one[2] = segment.base, segment.origin | first, count
            segment.rows = first + count
            self._live[segment.number] += count
            return self._stretch
        found: list[int] = []
        for segment, first, _, end in self._claim(count):
            found += segment.base, segment.origin | first, end
        return np.array(found, np.int64).reshape(-1, layout.STRETCH_BLOCK)

    def _claim(self, count: int) -> list[Stretch]:
        """Room for rows of one size, each an item, in as many segments as it takes.

        Where there is no memory for all of them, none counts.
        """
        before = self.live_rows.copy()
        stretches = []
        done, stride = 0, self.stride
        try:
            while done < count:
                segment = self._segment_with_room(stride)
                first = segment.rows
                upto = min(done + (segment.tail - first * stride) // stride, count)
                stretches.append(Stretch(segment, first, done, upto))
                segment.rows += upto - done
                self._live[segment.number] += upto - done
                done = upto
        except BaseException:
            self._count_as(before)
            raise
        return stretches

    def _count_as(self, before: Ints) -> None:
        """There was no memory for all rows of a batch: those that were stored do not count."""
        self.live_rows[: before.size] = before
        self.live_rows[before.size :] = 0
        self.drop_dead()

    def _append_varying(
        self, rows: Rows, per_item: NDArray[np.int32], items: int
    ) -> tuple[Ints, Ints]:
        payload = np.empty(items, np.int64)
        stored = np.empty(items, np.int64)
        self._fill_sources(rows)
        self._kernels.rows.measure_input(
            self.table, self._sources, per_item, items, payload, stored
        )
        segment = self._open
        need = rows.count * self.stride + int(stored.sum())
        if segment is None or segment.tail - segment.rows * self.stride < need:
            return self._append_split(rows, per_item, items, stored)[0], payload
        location = segment.origin | segment.rows
        self._write_varying(segment, 0, rows.count)
        if items > 1:
            return self._locations(location, np.broadcast_to(per_item, items)), payload
        return np.array([location], np.int64), payload

    def _append_rows(self, rows: Rows) -> Ints:
        """Store rows of one size, each an item, over several segments."""
        locations = np.empty(rows.count, np.int64)
        for segment, first, begin, end in self.reserve(locations):
            self._kernels.rows.append_fixed(
                segment.base, self.stride, first, begin, end, self.table, id(rows.columns)
            )
        return locations

    def reserve(self, locations: Ints) -> list[Stretch]:
        """Room for rows of one size, each an item: `place` fills it later, without the lock.

        Writes the location of each, and returns where they go; until then nobody may read them.
        """
        stretches = self._claim(locations.size)
        for segment, first, begin, end in stretches:
            self._kernels.rows.count_up(locations, begin, end, segment.origin | first)
        return stretches

    def place(self, stretches: Sequence[Stretch], before: int, rows: Rows) -> None:
        """Copy rows, of which so many came before, to where there is room for them."""
        upto = before + rows.count
        for segment, first, begin, end in stretches:
            low, high = max(begin, before), min(end, upto)
            if low < high:
                self._kernels.rows.place_fixed(
                    segment.base, self.stride, first + low - begin, low - before, high - before,
                    self.table, id(rows.columns),
                )  # fmt: skip

    def _append_split(
        self, rows: Rows, per_item: NDArray[np.int32], items: int, stored: Ints | None
    ) -> tuple[Ints, Ints]:
        """Store items over several segments, each item whole; all, or none counts."""
        counts = np.broadcast_to(per_item, items).astype(np.int64)
        sizes = counts * self.stride if stored is None else counts * self.stride + stored
        ends = np.cumsum(sizes)
        row_ends = np.cumsum(counts)
        locations = np.empty(items, np.int64)
        before = self.live_rows.copy()
        done = 0
        try:
            while done < items:
                stored_before = int(ends[done - 1]) if done else 0
                first_row = int(row_ends[done - 1]) if done else 0
                segment = self._segment_with_room(int(sizes[done]))
                room = segment.tail - segment.rows * self.stride
                upto = int(np.searchsorted(ends, stored_before + room, side="right"))
                starts = row_ends[done:upto] - counts[done:upto] - first_row + segment.rows
                locations[done:upto] = segment.origin | starts
                self._write(segment, rows, first_row, int(row_ends[upto - 1]))
                done = upto
        except BaseException:
            self._count_as(before)
            raise
        return locations, counts * self.fixed_bytes

    def _segment_with_room(self, size: int) -> Segment:
        segment = self._open
        if segment is None or segment.tail - segment.rows * self.stride < size:
            segment = self._open_segment(size)
        return segment

    def _write(self, segment: Segment, rows: Rows, begin: int, end: int) -> None:
        """Copy rows [begin, end) to the end of a segment. Kernels find the arrays by their ids."""
        if self.varying:
            self._fill_sources(rows)
            self._write_varying(segment, begin, end)
            return
        self._kernels.rows.append_fixed(
            segment.base, self.stride, segment.rows, begin, end, self.table, id(rows.columns)
        )
        segment.rows += end - begin
        self._live[segment.number] += end - begin

    def _write_varying(self, segment: Segment, begin: int, end: int) -> None:
        """Copy rows [begin, end) of the sources, which the kernel replaces by their addresses."""
        segment.tail = self._kernels.rows.append_varying(
            segment.base, self.stride, segment.tail, segment.rows, begin, end, self.table,
            self._sources,
        )  # fmt: skip
        segment.rows += end - begin
        self._live[segment.number] += end - begin

    def _fill_sources(self, rows: Rows) -> None:
        """Ids in a list first: an array takes them all at once in the time of a few."""
        sources: list[int] = []
        present = rows.present or [None] * len(rows.columns)
        for column, flags in zip(rows.columns, present, strict=True):
            if column is None:
                sources += NO_SOURCE
            elif isinstance(column, Ragged):
                offsets = id(column.offsets)
                sources += (id(column.values), offsets, 0 if flags is None else id(flags))
            else:
                sources += (id(column), 0, 0 if flags is None else id(flags))
        self._sources[:] = sources

    def _locations(self, first: int, per_item: NDArray[np.int32]) -> Ints:
        locations = np.cumsum(per_item, dtype=np.int64)
        locations -= per_item
        locations += first
        return locations

    # -- segments -------------------------------------------------------------------------------
    def _open_segment(self, at_least: int) -> Segment:
        """Seal the open segment and begin another, large enough for one whole item."""
        self._seal()
        # what takes memory comes first: where there is none, nothing has changed
        buffer = self._pool.bytes(max(self._next_size, at_least + 64))
        base = self._kernels.rows.data_address(id(buffer))
        number = self._free[-1] if self._free else len(self._segments)
        segment = Segment(buffer, base, number, self.opened + 1, self.stride)
        if self.tracking:
            segment.owners = np.full(segment.most, -1, np.int32)
        self._next_size = min(2 * self._next_size, self._limit)
        if self._free:
            self._free.pop()
        else:
            self._grow(number + 1)
            self._segments.append(None)
            self._buffers.append(None)
        self._segments[number], self._buffers[number] = segment, buffer
        entry = self.entries[number].data  # quicker to change one by one
        entry[0], entry[1], entry[2] = base, self.stride, len(self.columns)
        self._directory = None
        self.live_rows[number] = self.sealed[number] = 0
        self.allocated += segment.buffer.size
        self.opened += 1
        self._open = segment
        return segment

    def _grow(self, numbers: int) -> None:
        """Have room for what is kept by number; kernels are to be shown where it is now."""
        if numbers > self.live_rows.size:
            grown = [
                np.concatenate([array, np.zeros_like(array)])
                for array in (self.live_rows, self.sealed, self.entries)
            ]
            self.live_rows, self.sealed, self.entries = grown
            self._live = self.live_rows.data

    @property
    def directory(self) -> Directory:
        """The segments as they are now; made anew for the first reader after they changed."""
        if self._directory is None:
            entries = self.entries[: len(self._buffers)].copy()
            self._directory = Directory(entries, tuple(self._buffers))
        return self._directory

    def _seal(self) -> None:
        if self._open is not None:
            segment, self._open = self._open, None
            self.sealed[segment.number] = 1
            if self._live[segment.number] == 0:
                self._drop(segment)

    def _drop(self, segment: Segment) -> None:
        number = segment.number
        self._segments[number] = self._buffers[number] = self._directory = None
        self._free.append(number)
        self._pool.keep(segment.buffer)
        self.sealed[number] = 0
        self.allocated -= segment.buffer.size

    def drop_dead(self) -> None:
        """Drop sealed segments without live rows."""
        for number in np.flatnonzero((self.sealed == 1) & (self.live_rows == 0)).tolist():
            self.drop(number)

    def drop(self, number: int) -> None:
        """Drop a segment if it is sealed and without live rows: it may be another one by now."""
        segment = self._segments[number]
        if segment is not None and self.sealed[number] and not self._live[number]:
            self._drop(segment)

    # -- compaction -----------------------------------------------------------------------------
    def emptiest(self, before: int, payload: NDArray[np.float64] | None) -> Segment | None:
        """The sealed segment with the least live bytes, if memory is worth getting back.

        Only those opened before the `before`-th count. `payload` holds the live bytes of each
        where rows differ in size.
        """
        records = int(self.live_rows.sum()) * self.stride
        if payload is None and self.allocated - records <= SLACK + DEAD_SHARE * records:
            return None
        best, best_share = None, 0.95
        dead, live = 0.0, 0.0
        for segment in self._segments:
            if segment is None or segment.serial > before:
                continue
            if self.sealed[segment.number]:
                share = self.live_rows[segment.number] / segment.rows
                if payload is not None:
                    records = self.live_rows[segment.number] * segment.stride
                    share = min(1.0, (payload[segment.number] + records) / segment.used)
                live += share * segment.buffer.size
                dead += (1 - share) * segment.buffer.size
                if share < best_share:
                    best, best_share = segment, share
        return best if dead > SLACK + DEAD_SHARE * live else None

    def track(self, locations: Ints, slots: Ints) -> None:
        """Remember which slot owns the rows at each location, for `compact`."""
        for number in np.unique(locations >> 32):
            segment = self._segments[number]
            if segment is None:
                continue
            if segment.owners is None:
                segment.owners = np.full(segment.most, -1, np.int32)
            here = (locations >> 32) == number
            segment.owners[locations[here] & 0xFFFFFFFF] = slots[here]

    # -- reading --------------------------------------------------------------------------------
    def move(self, locations: Ints, per_item: NDArray[np.int32]) -> Ints:
        """Store whole items again at the end, and give up their old rows; returns where."""
        columns, present = self.pin(locations, per_item).gather(np.empty)
        flags = [(present or {}).get(name) for name in self.names]
        rows = Rows(int(per_item.sum()), [columns[name] for name in self.names], flags)
        moved, _ = self.append(rows, per_item, locations.size)
        if moved.size != locations.size:
            moved = self._locations(int(moved[0]), per_item)
        self.give_up(locations, per_item)
        return moved

    def give_up(self, locations: Ints, per_item: NDArray[np.int32]) -> None:
        """The rows of items are needed no more."""
        np.subtract.at(self.live_rows, locations >> 32, per_item)

    def pin(self, locations: Ints, per_item: NDArray[np.int32] | None) -> Reader:
        """Under the lock: fix what is to be read, so that it can be read without the lock."""
        return Reader(self, self.directory, locations, per_item)


class Reader:
    """Rows that were chosen, and the segments that hold them."""

    __slots__ = ("_columns", "_directory", "_kernels", "_locations", "_reading", "_rows")

    def __init__(
        self,
        store: RowStore,
        directory: Directory,
        locations: Ints,
        per_item: NDArray[np.int32] | None,
    ) -> None:
        self._directory = directory
        self._locations = locations
        self._rows = per_item
        self._kernels = store._kernels
        self._columns = store.columns
        self._reading = store.reading

    def at(self, locations: Ints, per_item: NDArray[np.int32] | None) -> Reader:
        """A reader of other rows, as of the same moment."""
        other = copy(self)
        other._locations, other._rows = locations, per_item
        return other

    def narrow(self) -> None:
        """Hold only the segments that are needed: for readers that are kept for long."""
        needed = set(np.unique(self._locations >> 32).tolist())
        buffers = self._directory.buffers
        kept = tuple(b if n in needed else None for n, b in enumerate(buffers))
        self._directory = Directory(self._directory.entries, kept)

    def gather(
        self, allocate: Allocate, names: Sequence[str] | None = None
    ) -> tuple[dict[str, Any], dict[str, NDArray[np.bool_]] | None]:
        """Copy the rows into new columns; also, for optional columns, which cells are present."""
        gathering = self.begin(allocate, names)
        gathered = gathering.columns()
        gathering.finish()
        return gathered

    def begin(self, allocate: Allocate, names: Sequence[str] | None = None) -> Gathering:
        """Find out what `gather` copies, and have another thread begin with it if it is much."""
        reading = self._reading if names is None else self._only(names)
        locations = self._locations
        if self._rows is not None:
            locations = np.empty(int(self._rows.sum()), np.int64)
            self._kernels.rows.expand(self._locations, self._rows, locations)
        gathering = Gathering(self._kernels, self._directory, reading, locations, allocate)
        if reading.varying:
            gathering.begin(*self._measure(reading, locations))
        elif locations.size * reading.width >= MANY_ROWS:
            gathering.begin_rows()
        return gathering

    def collect(
        self, allocate: Allocate
    ) -> tuple[dict[str, Any], dict[str, NDArray[np.bool_]] | None]:
        """`gather`, for rows that lie side by side for the most part: column by column."""
        reading, locations = self._reading, self._locations
        cuts = np.flatnonzero(np.diff(locations) != 1) + 1
        if reading.varying or self._rows is not None or cuts.size * SHORT_RUN > locations.size:
            return self.gather(allocate)
        arrays = [allocate((len(locations), *shape), dtype) for _, shape, dtype in reading.fixed]
        for begin, end in pairwise([0, *cuts.tolist(), len(locations)]):
            segment, row = int(locations[begin]) >> 32, int(locations[begin]) & 0xFFFFFFFF
            base, stride, _ = self._directory.entries[segment].tolist()
            self._kernels.rows.take_fixed(base, stride, row, begin, end, reading.table, id(arrays))
        return dict(zip(reading.names, arrays, strict=True)), None

    def _only(self, names: Sequence[str]) -> Reading:
        places = [self._reading.names.index(name) for name in names]
        columns = [self._columns[place] for place in places]
        return Reading(list(names), columns, self._reading.whole, places)

    def payload(self) -> Ints:
        """Bytes of payload of each row."""
        reading = self._reading
        fixed = sum(self._columns[place].size for place, _, _ in reading.fixed)
        if not reading.varying:
            return np.full(len(self._locations), fixed, np.int64)
        sizes = np.array([cell.size for cell in reading.varying], np.int64)
        offsets, _ = self._measure(reading, self._locations)
        total: Ints = fixed + sizes @ np.diff(offsets)
        return total

    def _measure(self, reading: Reading, locations: Ints) -> tuple[Ints, NDArray[np.int8]]:
        """Offsets and presence of the varying columns."""
        offsets = np.empty((len(reading.varying), len(locations) + 1), np.int64)
        flags = np.empty((len(reading.varying), len(locations)), np.int8)
        self._kernels.rows.measure(
            self._directory.entries, locations, reading.whole, reading.numbers, offsets, flags
        )
        return offsets, flags


class Gathering:
    """Rows that are being copied."""

    __slots__ = (
        "_allocate", "_arrays", "_copying", "_directory", "_kernels", "_locations", "_present",
        "_reading",
    )  # fmt: skip

    def __init__(
        self,
        kernels: Any,
        directory: Directory,
        reading: Reading,
        locations: Ints,
        allocate: Allocate,
    ) -> None:
        self._kernels = kernels
        self._directory = directory
        self._reading = reading
        self._locations = locations
        self._allocate = allocate
        self._arrays: list[Any] = [None] * len(reading.names)
        self._present: dict[str, NDArray[np.bool_]] = {}
        self._copying: SharedCopy | None = None

    def begin(self, offsets: Ints, flags: NDArray[np.int8]) -> None:
        """Make the varying columns; somebody begins to copy their cells."""
        reading, locations, allocate = self._reading, self._locations, self._allocate
        values: list[Array] = []
        nbytes = 0
        for cell, length in zip(reading.varying, offsets[:, -1].tolist(), strict=True):
            if not cell.ragged:
                array = allocate((len(locations), *cell.shape), cell.element)
                array.fill(0)
            elif length:
                array = allocate((length, *cell.shape), cell.element)
            else:
                array = cell.nothing
            nbytes += array.nbytes
            values.append(array)
        arguments = (self._directory.entries, locations, reading.whole, reading.numbers, offsets)
        self._copying = SharedCopy(
            self._kernels, arguments, values, self._directory, worth=nbytes >= MANY_CELLS
        )
        arrays, present = self._arrays, self._present
        flags_of = flags.view(np.bool_)
        for number, cell in enumerate(reading.varying):
            column: Any = values[number]
            if cell.ragged:
                column = Ragged._make(column, offsets[number], cell.kind)
            arrays[cell.place] = column
            if cell.optional:
                present[cell.name] = flags_of[number]

    def begin_rows(self) -> None:
        """Make columns that are all fixed; somebody begins to copy them."""
        arguments = self._make_fixed()
        self._copying = SharedCopy(
            self._kernels, arguments, self._arrays, self._directory, worth=True, cells=False
        )

    def _make_fixed(self) -> tuple[Ints, Ints, Ints]:
        """Make the fixed columns; returns what `gather` takes to fill them."""
        arrays, count = self._arrays, len(self._locations)
        for place, shape, dtype in self._reading.fixed:
            arrays[place] = self._allocate((count, *shape), dtype)
        return self._directory.entries, self._locations, self._reading.table

    def columns(self) -> tuple[dict[str, Any], dict[str, NDArray[np.bool_]] | None]:
        """What `Reader.gather` returns, complete after `finish`."""
        reading, arrays = self._reading, self._arrays
        if reading.fixed and arrays[reading.fixed[0][0]] is None:
            self._kernels.rows.gather(*self._make_fixed(), id(arrays))
        return dict(zip(reading.names, arrays, strict=True)), self._present or None

    @property
    def shared(self) -> bool:
        """Whether another thread copies, so that it is worth to do something else meanwhile."""
        return self._copying is not None and self._copying.shared

    def finish(self) -> None:
        """Copy what is left to copy."""
        if self._copying is not None:
            self._copying.finish()


def stretches_of(locations: Ints, count: int) -> Ints:
    """How a kernel sees rows that are stored: one location stands for rows side by side."""
    if locations.size == 1:
        return np.array([[0, locations[0], count]])
    begins = np.flatnonzero(np.diff(locations, prepend=locations[0] - 2) != 1)
    ends = np.append(begins[1:], count)
    return np.stack([np.zeros_like(begins), locations[begins], ends], axis=1)


def _cell_of(column: Column) -> int:
    if column.ragged:
        return layout.RAGGED
    return layout.OPTIONAL if column.optional else layout.FIXED
