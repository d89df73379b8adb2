"""The Arrow encoding of a Batch, as record batches.

A column of scalars is a primitive array, one of shape `[k, ...]` a FixedSizeList with the shape in
the field's metadata, a Ragged a LargeList, text LargeUtf8 and bytes LargeBinary; absent cells are
nulls. Numbers are never copied, in either direction, and there is no pickle. What arrives is
checked: foreign Arrow data is brought into this form where it can be, garbage is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from recollect.data.cells import Array
from recollect.data.column_data import ColumnData, Mask, cleared
from recollect.data.columns import Columns
from recollect.data.dotted_names import check_flat_names
from recollect.data.dtypes import DType, StoredType, restored_dtype, stored_type
from recollect.data.info import Info, info_from_columns, info_to_columns
from recollect.data.ragged import Ragged, offsets_of
from recollect.errors import SchemaError

ArrowTable: TypeAlias = Any  # a pyarrow RecordBatch or Table; pyarrow has no types

_DTYPE, _SHAPE, _OPTIONAL = b"recollect.dtype", b"recollect.shape", b"recollect.optional"
_INFO = b"recollect.info"


class ArrowBatch(NamedTuple):
    """A Batch as Arrow record batches; None where there is nothing shared, or no info.

    >>> import recollect as rc
    >>> rc.Batch({"done": [True]}).to_arrow().rows.schema.field("done").type
    DataType(int8)
    """

    rows: ArrowTable
    shared: ArrowTable | None = None
    info: ArrowTable | None = None


def to_arrow(rows: Columns, shared: Columns, info: Info | None) -> ArrowBatch:
    """`Batch.to_arrow`, of the three parts of a batch."""
    cells = record_batch(shared) if shared.columns else None
    known = None
    if info is not None:
        columns, meta = info_to_columns(info)
        known = record_batch(columns).replace_schema_metadata({_INFO: to_json(meta)})
    return ArrowBatch(record_batch(rows), cells, known)


def from_arrow(data: Any) -> tuple[Columns, Columns, Info | None]:
    """Return the rows, shared columns and info that `Batch.from_arrow` makes a Batch of."""
    if not isinstance(data, ArrowBatch):
        data = ArrowBatch(data)
    rows = _columns(data.rows)
    shared = Columns({}) if data.shared is None else _columns(data.shared)
    info = None
    if data.info is not None:
        columns = _columns(data.info)
        meta = (data.info.schema.metadata or {}).get(_INFO, b"{}")
        info = info_from_columns(columns, from_json(meta))
    return rows, shared, info


# A column, taken apart into what Arrow calls buffers


class Parts(NamedTuple):
    """The buffers of a column, and what must be known to put it together again."""

    kind: str  # "fixed", or the kind of a Ragged
    stored: StoredType
    shape: tuple[int, ...]  # of one row, or of one value of a ragged row
    rows: int
    validity: Array | None  # a bit per row
    offsets: Array | None
    values: Array  # flat, of the stored dtype


def taken_apart(name: str, column: ColumnData, present: Mask | None) -> Parts:
    """Return the column as buffers; only what is not contiguous is copied."""
    count, offsets, kind, values = len(column), None, "fixed", column
    if isinstance(column, Ragged):
        kind, values, offsets = column.kind, column.values, np.ascontiguousarray(column.offsets)
    assert isinstance(values, np.ndarray)
    stored = stored_type(name, values.dtype)
    flat = np.ascontiguousarray(values).reshape(-1).view(stored.numpy)
    validity = None if present is None else np.packbits(present, bitorder="little")
    return Parts(kind, stored, values.shape[1:], count, validity, offsets, flat)


def record_batch(columns: Columns) -> ArrowTable:
    """Return the columns as an Arrow record batch over the same memory."""
    fields, arrays = [], []
    for name, column in columns.columns.items():
        parts = taken_apart(name, column, columns.present.get(name))
        arrays.append(arrow_array(parts))
        optional = parts.validity is not None
        metadata = {}
        if parts.stored.marked:
            metadata[_DTYPE] = parts.stored.name
        if parts.shape:
            metadata[_SHAPE] = json.dumps(parts.shape)
        if optional:
            metadata[_OPTIONAL] = "true"
        fields.append(pa.field(name, arrays[-1].type, nullable=optional, metadata=metadata))
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def arrow_array(parts: Parts) -> Any:
    """Return the Arrow array of these buffers; nothing is copied."""
    validity = None if parts.validity is None else pa.py_buffer(parts.validity)
    offsets = None if parts.offsets is None else pa.py_buffer(parts.offsets)
    values = pa.py_buffer(parts.values)
    make = pa.Array.from_buffers
    if parts.kind in ("str", "bytes"):
        kind = pa.large_utf8() if parts.kind == "str" else pa.large_binary()
        return make(kind, parts.rows, [validity, offsets, values])
    leaf, fixed = parts.stored.arrow, parts.kind == "fixed"
    if fixed and not parts.shape:
        return make(leaf, parts.rows, [validity, values])
    cells = make(leaf, len(parts.values), [None, values])
    if parts.shape:
        count = parts.rows if fixed else int(parts.offsets[-1])  # type: ignore[index]
        cell = pa.list_(leaf, prod(parts.shape))
        cells = make(cell, count, [validity if fixed else None], children=[cells])
    if fixed:
        return cells
    return make(pa.large_list(cells.type), parts.rows, [validity, offsets], children=[cells])


# From Arrow, our own or foreign


def numbers_array(array: Array) -> Any:
    """Numbers as an Arrow array over the same memory.

    `pa.array` imports pandas where that is installed, to see whether it was given a Series: a
    first save would wait a second for it.
    """
    flat = np.ascontiguousarray(array)
    values = np.packbits(flat, bitorder="little") if flat.dtype == np.bool_ else flat
    kind = pa.from_numpy_dtype(flat.dtype)
    return pa.Array.from_buffers(kind, flat.size, [None, pa.py_buffer(values)])


def array_numbers(array: Any) -> Array:
    """What `numbers_array` was given; `to_numpy` imports pandas too."""
    buffer = array.buffers()[1]
    if pa.types.is_boolean(array.type):
        bits = np.unpackbits(np.frombuffer(buffer, np.uint8), bitorder="little")
        return bits[array.offset : array.offset + len(array)].view(np.bool_)
    dtype = np.dtype(array.type.to_pandas_dtype())
    if buffer is None:
        return np.zeros(0, dtype)
    return np.frombuffer(buffer, dtype, len(array), array.offset * dtype.itemsize)


def bytes_array(cells: Sequence[bytes], kind: Any) -> Any:
    """Bytes, or texts in UTF-8, as an Arrow array of a kind with 64-bit offsets."""
    offsets = np.zeros(len(cells) + 1, np.int64)
    np.cumsum([len(cell) for cell in cells], out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(cells))]
    return pa.Array.from_buffers(kind, len(cells), buffers)


def _columns(table: ArrowTable) -> Columns:
    if not isinstance(table, pa.RecordBatch | pa.Table):
        if not hasattr(table, "__arrow_c_stream__"):
            raise SchemaError(
                "expected what Batch.to_arrow returns, a pyarrow RecordBatch or a Table, "
                f"got {type(table).__name__}"
            )
        table = pa.table(table)
    columns: dict[str, ColumnData] = {}
    present: dict[str, Mask] = {}
    for field, column in zip(table.schema, table.columns, strict=True):
        try:
            column.validate(full=True)
            for name, array, metadata in _without_structs(field, _one_chunk(column)):
                if name in columns:
                    raise SchemaError(f"there are two columns {name!r}: rename one")
                columns[name], mask = _from_array(name, array, metadata)
                if mask is not None:
                    present[name] = mask
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise SchemaError(f"column {field.name!r} cannot be read: {error}") from error
    check_flat_names(columns)
    return Columns(columns, present or None)


def numbers_of(batch: Any) -> dict[str, ColumnData] | None:
    """The columns of a record batch of our own that holds numbers alone, in cells of one size.

    None where there is anything else in it. The same as `_columns`, without the checks that data
    of others needs.
    """
    columns: dict[str, ColumnData] = {}
    for field, array in zip(batch.schema, batch.columns, strict=True):
        metadata, kind, values = field.metadata or {}, field.type, array
        shape: tuple[int, ...] = ()
        if pa.types.is_fixed_size_list(kind) and _SHAPE in metadata:
            kind, values = kind.value_type, array.values
            shape = checked_shape(field.name, from_json(metadata[_SHAPE]))
        numbers = pa.types.is_integer(kind) or pa.types.is_floating(kind)
        if not numbers or array.offset or _OPTIONAL in metadata:
            return None
        if array.null_count or values.null_count:
            return None
        marker = metadata.get(_DTYPE)
        dtype = restored_dtype(field.name, kind, None if marker is None else marker.decode())
        flat = _viewed(values.buffers()[1], stored_type(field.name, dtype).numpy)
        size = len(array) * prod(shape)
        if flat.size < size:
            raise SchemaError(f"column {field.name!r} cannot be read: it is too short")
        columns[field.name] = restored(field.name, flat[:size], dtype).reshape(len(array), *shape)
    return columns


def _one_chunk(column: Any) -> Any:
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _without_structs(field: Any, array: Any, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """A struct is a nested dict: yield its fields by dotted name."""
    if not pa.types.is_struct(array.type):
        yield prefix + field.name, array, field.metadata or {}
        return
    for inner, values in zip(array.type, array.flatten(), strict=True):
        yield from _without_structs(inner, values, f"{prefix}{field.name}.")


def _from_array(name: str, array: Any, metadata: Mapping[bytes, bytes]) -> tuple[ColumnData, Any]:
    marker, shape = metadata.get(_DTYPE), metadata.get(_SHAPE)
    column, present = decoded(
        name,
        array,
        None if marker is None else marker.decode("utf-8", "replace"),
        None if shape is None else checked_shape(name, from_json(shape)),
    )
    if present is None and _OPTIONAL in metadata:
        present = np.ones(len(column), np.bool_)
    return column, present


def decoded(
    name: str, array: Any, marker: str | None, shape: tuple[int, ...] | None
) -> tuple[ColumnData, Mask | None]:
    """Return an Arrow array as a column, and which of its cells are there if some are null.

    `marker` names the dtype where Arrow's type does not say it, `shape` is that of a cell, or of
    one value of a ragged cell.
    """
    array, marker, shape = _normalised(array, marker, shape)
    array.validate()
    kind, count = array.type, len(array)
    present = None
    if array.null_count:
        present = array_numbers(array.is_valid())
    column: ColumnData
    if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        offsets, values = _span(array, _viewed(array.buffers()[2], np.dtype(np.uint8)))
        column = Ragged._make(values, offsets, "str" if kind == pa.large_utf8() else "bytes")
    elif pa.types.is_large_list(kind):
        offsets, cells = _span(array, array.values)
        values = _inner(name, cells, marker, shape, present, np.diff(offsets))
        column = Ragged._make(values, offsets)
    elif pa.types.is_fixed_size_list(kind):
        size = kind.list_size
        cells = array.values.slice(array.offset * size, count * size)
        values = _inner(name, cells, marker, None, present, size)
        column = values.reshape(count, *_cell_shape(name, (size, *values.shape[1:]), shape))
    else:
        _cell_shape(name, (), shape)
        dtype = restored_dtype(name, kind, marker)
        stored = stored_type(name, dtype).numpy
        flat = _viewed(array.buffers()[1], stored)[array.offset : array.offset + count]
        column = restored(name, flat, dtype)
    return (column if present is None else cleared(column, present)), present


def _normalised(
    array: Any, marker: str | None, shape: tuple[int, ...] | None
) -> tuple[Any, str | None, tuple[int, ...] | None]:
    """Bring the types that others write into the few that we write."""
    types, kind = pa.types, array.type
    if isinstance(kind, pa.BaseExtensionType):
        if isinstance(kind, pa.FixedShapeTensorType):
            axes = list(kind.permutation or ())
            if axes != sorted(axes):
                raise SchemaError(f"Arrow's {kind} has permuted axes: pass it in row-major order")
            shape = tuple(kind.shape)
        return _normalised(array.storage, marker, shape)
    if types.is_dictionary(kind):
        return _normalised(array.dictionary_decode(), marker, shape)
    if types.is_boolean(kind):
        return array.cast(pa.int8()), "bool", shape
    if types.is_date32(kind):
        return array.cast(pa.int32()).cast(pa.int64()), "datetime64[D]", shape
    if types.is_date64(kind):
        return array.cast(pa.timestamp("ms")), None, shape
    if types.is_string(kind) or types.is_string_view(kind):
        return array.cast(pa.large_utf8()), marker, shape
    if types.is_binary(kind) or types.is_binary_view(kind) or types.is_fixed_size_binary(kind):
        return array.cast(pa.large_binary()), marker, shape
    if types.is_list(kind):
        return array.cast(pa.large_list(kind.value_field)), marker, shape
    if types.is_list_view(kind) or types.is_large_list_view(kind):
        # pyarrow 26 casts a list view to a list that lacks its last offset
        lengths = array_numbers(array.value_lengths().fill_null(0))
        offsets, values = pa.array(offsets_of(lengths)), array.flatten()
        lists = pa.LargeListArray.from_arrays(offsets, values, mask=array.is_null())
        return lists, marker, shape
    return array, marker, shape


def _viewed(buffer: Any, dtype: DType) -> Array:
    """The whole buffer as an array; Arrow may leave an empty one out, or round its size up."""
    if buffer is None:
        return np.empty(0, dtype)
    return np.frombuffer(buffer, dtype, buffer.size // dtype.itemsize)


def _span(array: Any, values: Any) -> tuple[Array, Any]:
    """The offsets of the array's rows, from 0, and the values that they span."""
    if len(array) == 0:
        return np.zeros(1, np.int64), values[:0]
    offsets = _viewed(array.buffers()[1], np.dtype(np.int64))
    offsets = offsets[array.offset : array.offset + len(array) + 1]
    values = values[int(offsets[0]) : int(offsets[-1])]
    return (offsets if offsets[0] == 0 else offsets - offsets[0]), values


def _inner(
    name: str,
    cells: Any,
    marker: str | None,
    shape: tuple[int, ...] | None,
    present: Mask | None,
    lengths: Array | int,
) -> Array:
    """The values inside of lists. A null among floats is NaN; pandas writes NaN so."""
    values, known = decoded(name, cells, marker, shape)
    if isinstance(values, Ragged):
        raise SchemaError(f"column {name!r} holds lists of {cells.type}: only numbers fit in lists")
    if known is not None:
        missing = ~known if present is None else ~known & np.repeat(present, lengths)
        if missing.any():
            if values.dtype.kind != "f":
                raise SchemaError(f"column {name!r} has a null inside of a cell of {cells.type}")
            values = values.copy()
            values[missing] = np.nan
    return values


def restored(name: str, flat: Array, dtype: DType) -> Array:
    """Return stored values as the dtype that they stand for."""
    if dtype.kind == "b" and (flat.view(np.uint8) > 1).any():
        raise SchemaError(f"column {name!r} of bool holds bytes other than 0 and 1")
    return flat.view(dtype)


def _cell_shape(name: str, found: tuple[int, ...], said: tuple[int, ...] | None) -> tuple[int, ...]:
    """The shape that the metadata says, which must hold what was found."""
    if said is None:
        return found
    if prod(said) != prod(found) or bool(said) != bool(found):
        raise SchemaError(f"column {name!r} has cells of shape {list(found)}, not {list(said)}")
    return said


def checked_shape(name: str, shape: Any) -> tuple[int, ...]:
    """Return what JSON says is a shape, or raise `SchemaError`."""
    if not isinstance(shape, list) or not all(
        type(size) is int and 0 <= size < 2**31 for size in shape
    ):
        raise SchemaError(
            f"column {name!r} says that its shape is {shape!r}: expected a list of sizes"
        )
    return tuple(shape)


def to_json(value: Any) -> bytes:
    """Return the value as JSON; NumPy's scalars are plain numbers."""

    def plain(scalar: Any) -> Any:
        if isinstance(scalar, np.generic):
            return scalar.item()
        raise SchemaError(f"{scalar!r} cannot be encoded: expected a number or a str")

    return json.dumps(value, default=plain, separators=(",", ":")).encode()


def from_json(text: bytes) -> Any:
    """Return the value of this JSON, or raise `SchemaError`."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise SchemaError(f"metadata: expected JSON, got {text[:40]!r}") from None
