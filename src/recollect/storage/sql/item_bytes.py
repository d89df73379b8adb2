"""The payload of an item as Arrow bytes: one IPC record batch for its rows, one for shared cells.

The message holds no schema: a table's columns are written down once, and an item says with how
many of them it was stored. Columns are only ever added at the end, so a shorter item lacks the
last ones. An optional column of fixed shape is stored as a list, so that an absent cell takes no
room.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from recollect.base.arrays import Ints
from recollect.data.arrow import Parts, arrow_array, decoded, taken_apart
from recollect.data.column_data import ColumnData, Mask, cleared
from recollect.data.dtypes import stored_type
from recollect.data.ragged import Ragged
from recollect.data.schema import Column, Rows, Schema, row_payload
from recollect.errors import SchemaError, StorageError
from recollect.storage.buffers import Allocate

LARGEST = 999_000_000  # bytes: what a cell of SQLite or PostgreSQL holds


class Codec:
    """Encodes and decodes the rows of one schema."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self._columns = list(schema.columns.items())
        self._fields = [pa.field(name, _arrow_type(name, c)) for name, c in self._columns]

    @property
    def width(self) -> int:
        """How many columns there are."""
        return len(self._columns)

    def encode(self, rows: Rows, starts: Ints, counts: Ints) -> list[bytes]:
        """The bytes of each item, whose rows begin at `starts`."""
        arrays = [
            _array(name, column, rows.columns[place], _present(rows, place), rows.count)
            for place, (name, column) in enumerate(self._columns)
        ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=pa.schema(self._fields))
        items = [
            batch.slice(start, count).serialize().to_pybytes()
            for start, count in zip(starts.tolist(), counts.tolist(), strict=True)
        ]
        if items and max(map(len, items)) > LARGEST:
            raise StorageError(
                f"an item of {max(map(len, items))} bytes does not fit into a database, which "
                f"takes {LARGEST}; make items of fewer rows"
            )
        return items

    def decode(
        self,
        items: Sequence[tuple[bytes, int]],
        wanted: Sequence[str] | None,
        allocate: Allocate | None,
    ) -> tuple[dict[str, ColumnData], dict[str, Mask] | None]:
        """The columns of items, one after another, and which cells of optional ones are there."""
        batches = [self._batch(data, width) for data, width in items]
        table = pa.Table.from_batches(batches, schema=pa.schema(self._fields)).combine_chunks()
        columns: dict[str, ColumnData] = {}
        present: dict[str, Mask] = {}
        for place, (name, column) in enumerate(self._columns):
            if wanted is not None and name not in wanted:
                continue
            chunks = table.column(place).chunks
            cells = chunks[0] if chunks else pa.array([], self._fields[place].type)
            data, here = _column(name, column, cells)
            columns[name] = _owned(data, allocate)
            if here is not None:
                present[name] = here
        if wanted is not None:
            columns = {name: columns[name] for name in wanted}
        return columns, present or None

    def _batch(self, data: bytes, width: int) -> Any:
        batch = pa.ipc.read_record_batch(pa.py_buffer(data), pa.schema(self._fields[:width]))
        if width == len(self._fields):
            return batch
        missing = [pa.nulls(batch.num_rows, field.type) for field in self._fields[width:]]
        return pa.RecordBatch.from_arrays(
            [*batch.columns, *missing], schema=pa.schema(self._fields)
        )


def item_bytes(schema: Schema, rows: Rows, starts: Ints) -> Ints:
    """Bytes of payload that each item has."""
    total = row_payload(schema, rows)
    return np.add.reduceat(total, starts) if starts.size else np.zeros(0, np.int64)


def _present(rows: Rows, place: int) -> Mask | None:
    return None if rows.present is None else rows.present[place]


def _as_list(column: Column) -> bool:
    """Whether cells of a fixed shape are stored as lists of numbers."""
    return column.optional and not column.ragged


def _arrow_type(name: str, column: Column) -> Any:
    if column.kind != "array":
        return pa.large_utf8() if column.kind == "str" else pa.large_binary()
    leaf = stored_type(name, column.dtype).arrow
    if _as_list(column):
        return pa.large_list(leaf)
    cell = pa.list_(leaf, int(np.prod(column.shape))) if column.shape else leaf
    return pa.large_list(cell) if column.ragged else cell


def _array(name: str, column: Column, cells: Any, present: Mask | None, count: int) -> Any:
    if cells is None:
        return pa.nulls(count, _arrow_type(name, column))
    if present is not None:
        cells = cleared(cells, present)
    if not _as_list(column):
        return arrow_array(taken_apart(name, cells, present))
    here = np.ones(count, np.bool_) if present is None else present
    size = int(np.prod(column.shape, dtype=np.int64))
    offsets = np.zeros(count + 1, np.int64)
    np.cumsum(here * size, out=offsets[1:])
    stored = stored_type(name, column.dtype)
    values = np.ascontiguousarray(cells[here]).reshape(-1).view(stored.numpy)
    validity = np.packbits(here, bitorder="little")
    return arrow_array(Parts("array", stored, (), count, validity, offsets, values))


def _column(name: str, column: Column, cells: Any) -> tuple[ColumnData, Mask | None]:
    """A column as a batch has it, and which of its cells are there if they may be absent."""
    stored = stored_type(name, column.element)
    marker = stored.name if stored.marked else None
    shape = None if _as_list(column) or not column.shape else column.shape
    data, present = decoded(name, cells, marker, shape)
    if column.optional and present is None:
        present = np.ones(len(cells), np.bool_)
    if _as_list(column):
        assert isinstance(data, Ragged)
        assert present is not None
        spread = np.zeros((len(cells), *column.shape), column.dtype)
        spread[present] = data.values.reshape(-1, *column.shape)
        data = spread
    if isinstance(data, Ragged) != column.ragged:
        raise SchemaError(f"column {name!r} is stored as something that is not {column}")
    return data, present


def _owned(data: ColumnData, allocate: Allocate | None) -> ColumnData:
    """The same in memory of its own: what a caller gets may be written."""
    if isinstance(data, Ragged):
        return Ragged._make(_copied(data.values, allocate), data.offsets.copy(), data.kind)
    return _copied(data, allocate)


def _copied(array: NDArray[Any], allocate: Allocate | None) -> NDArray[Any]:
    if allocate is None and array.flags.writeable and array.flags.owndata:
        return array
    copy = (
        np.empty(array.shape, array.dtype)
        if allocate is None
        else allocate(array.shape, array.dtype)
    )
    copy[...] = array
    return copy
