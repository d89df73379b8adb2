"""Where payload lives: rows in append-only segments, each row written once.

A segment is a page (see `kernels.rows`): records from its front, varying cells from its back.
A location is a segment's number and a row in it. Segments are never written where they were
written before, so a reader needs no lock: it holds the segments it reads. A segment without
live rows is dropped, and its memory is used again when its last reader is gone. Segments that
lost most of their rows are emptied by moving whole items to the end (`compact`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recollect.base.arrays import Ints
from recollect.data.ragged import Ragged
from recollect.data.rows_per_item import ONE_ROW
from recollect.data.schema import Column, Rows, Schema
from recollect.kernels import layout
from recollect.storage.buffers import BufferPool
from recollect.storage.row_reader import Directory, Reader, ReadPlan
from recollect.storage.row_segment import Segment, Stretch, spread

LARGEST = 8 << 20
SMALLEST = 64 << 10
HUGE = 2 << 20  # bytes of a huge page
SLACK = 16 << 20  # bytes of dead rows that are never worth moving anything for
NO_SOURCE = (0, 0, 0)  # what kernels get for a column that is absent
DEAD_SHARE = 0.2  # beyond the slack: dead bytes per live byte


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
        self.reading = ReadPlan(self.names, self.columns, table, range(len(table)))
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
                segment = self.segment_with_room(stride)
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
                segment = self.segment_with_room(int(sizes[done]))
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

    def segment_with_room(self, size: int) -> Segment:
        """The open segment if so many bytes fit, else a new one."""
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
        moved = spread(self.append(rows, per_item, locations.size)[0], per_item, locations.size)
        self.give_up(locations, per_item)
        return moved

    def give_up(self, locations: Ints, per_item: NDArray[np.int32]) -> None:
        """The rows of items are needed no more."""
        np.subtract.at(self.live_rows, locations >> 32, per_item)

    def pin(self, locations: Ints, per_item: NDArray[np.int32] | None) -> Reader:
        """Under the lock: fix what is to be read, so that it can be read without the lock."""
        return Reader(
            self._kernels, self.columns, self.reading, self.directory, locations, per_item
        )


def _cell_of(column: Column) -> int:
    if column.ragged:
        return layout.RAGGED
    return layout.OPTIONAL if column.optional else layout.FIXED
