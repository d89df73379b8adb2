"""Rows read from segments: what a reader holds, and how cells come into new columns.

A reader is made under the table's lock and reads without it: it holds the segments that it reads,
and segments are never written where they were written before.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from recollect.base.arrays import Array, Ints
from recollect.data.ragged import Ragged
from recollect.data.schema import Column
from recollect.storage.buffers import Allocate
from recollect.storage.copy_thread import SharedCopy

SHORT_RUN = 64  # rows side by side, on average, below which each is copied by itself
MANY_CELLS = 2 << 20  # bytes of cells that are worth a second thread
MANY_ROWS = 256 << 10  # of rows, which lie anywhere: each waits for memory


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


class ReadPlan:
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


class Reader:
    """Rows that were chosen, and the segments that hold them."""

    __slots__ = ("_columns", "_directory", "_kernels", "_locations", "_reading", "_rows")

    def __init__(
        self,
        kernels: Any,
        columns: Sequence[Column],
        reading: ReadPlan,
        directory: Directory,
        locations: Ints,
        per_item: NDArray[np.int32] | None,
    ) -> None:
        self._kernels = kernels
        self._columns = columns
        self._reading = reading
        self._directory = directory
        self._locations = locations
        self._rows = per_item

    @staticmethod
    def joined(readers: Sequence[Reader]) -> Reader:
        """One reader for the rows of several that are alike, one after another.

        Each has the directory of the moment when it was made, and most of them the same. Different
        ones are laid end to end, and the numbers of their segments count through all of them. The
        readers that were given hold the segments, so they must outlive the reading.
        """
        if len(readers) == 1:
            return readers[0]
        joined = copy(readers[0])
        entries = [joined._directory.entries]
        locations = [joined._locations]
        before = 0  # segments of other directories
        for last, reader in pairwise(readers):
            if reader._directory is not last._directory:
                before += len(entries[-1])
                entries.append(reader._directory.entries)
            locations.append(reader._locations + (before << 32) if before else reader._locations)
        joined._locations = np.concatenate(locations)
        if before:
            joined._directory = Directory(np.concatenate(entries), ())
        if any(reader._rows is not None for reader in readers):
            joined._rows = np.concatenate([reader._per_item() for reader in readers])
        return joined

    def _per_item(self) -> NDArray[np.int32]:
        """The rows of each item."""
        return np.ones(self._locations.size, np.int32) if self._rows is None else self._rows

    def alike(self, other: Reader) -> bool:
        """Whether both read the same columns, so that they can be joined."""
        return self._reading is other._reading

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

    def _only(self, names: Sequence[str]) -> ReadPlan:
        places = [self._reading.names.index(name) for name in names]
        columns = [self._columns[place] for place in places]
        return ReadPlan(list(names), columns, self._reading.whole, places)

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

    def _measure(self, reading: ReadPlan, locations: Ints) -> tuple[Ints, NDArray[np.int8]]:
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
        reading: ReadPlan,
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
