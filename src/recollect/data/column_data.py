"""The data of one column: an array `[rows, ...]` or a `Ragged`, made of what users give.

A mask of bools, `present`, says which cells of a column are there. An absent cell holds nothing:
zeros in an array, no values in a Ragged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from recollect.data.cells import Array
from recollect.data.dotted_names import flatten
from recollect.data.dtypes import check_dtype
from recollect.data.ragged import Ragged, offsets_of, ragged_from_cells
from recollect.errors import SchemaError

ColumnData: TypeAlias = Array | Ragged
Mask: TypeAlias = NDArray[np.bool_]


def as_columns(columns: Mapping[str, Any]) -> dict[str, ColumnData]:
    """Return the values of nested dicts as columns, by dotted name."""
    return {name: as_column(name, value) for name, value in flatten(columns).items()}


def as_column(name: str, value: Any, rows: int | None = None) -> ColumnData:
    """Return the value as a column, an array or a Ragged, or raise `SchemaError`.

    A list of numbers, or of arrays of one shape, becomes an array; of arrays that differ in
    length, of str or of bytes, a Ragged. `rows` is how many rows it must have.

    >>> from recollect.data.column_data import as_column
    >>> as_column("tokens", [[1, 2], [3]], rows=2)
    Ragged(int64, 2 rows, 3 values)
    """
    if isinstance(value, Ragged):
        column: ColumnData = value
    elif isinstance(value, np.ndarray):
        column = _from_array(name, value)
    elif type(value) in (list, tuple):  # a NamedTuple is one value, not a list of rows
        column = _from_list(name, value)
    elif hasattr(value, "__array__"):
        column = _from_array(name, _to_array(name, value))
    else:
        scalar = isinstance(value, int | float | str | bytes)
        raise SchemaError(
            f"column {name!r} is {type(value).__name__}: expected an array, a Ragged, or a list"
            + (f" with one entry per row, such as [{value!r}]" if scalar else "")
        )
    if rows is not None and len(column) != rows:
        raise SchemaError(f"column {name!r} has {len(column)} rows, expected {rows}")
    return column


def _to_array(name: str, value: Any) -> Array:
    try:
        return np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise SchemaError(f"column {name!r} does not convert to an array: {error}") from None


def _from_array(name: str, array: Array) -> ColumnData:
    if array.ndim == 0:
        raise SchemaError(f"column {name!r} is a single value: expected one entry per row")
    if isinstance(array, np.ma.MaskedArray):
        raise SchemaError(f"column {name!r} is a masked array: pass its data, and present=")
    if array.ndim == 1 and array.dtype.kind in "SUT":
        return ragged_from_cells(name, array.tolist(), bytes if array.dtype.kind == "S" else str)
    if array.ndim == 1 and array.dtype.kind == "O":
        return _from_list(name, array.tolist())
    check_dtype(name, array.dtype)
    return array


def _from_list(name: str, cells: list[Any] | tuple[Any, ...]) -> ColumnData:
    if not cells:
        raise SchemaError(f"column {name!r} is an empty list, without a dtype: pass an array")
    for kind in set(map(type, cells)):
        if kind is type(None):
            raise SchemaError(f"column {name!r} holds None: mark absent cells with present=")
        if issubclass(kind, str | bytes | bytearray | memoryview):
            return ragged_from_cells(name, cells)
        if issubclass(kind, Mapping):
            raise SchemaError(f"column {name!r} is a list of dicts: pass a dict of lists")
    if len({cell.dtype for cell in cells if isinstance(cell, np.ndarray)}) > 1:
        return ragged_from_cells(name, cells)  # which refuses them, and names the rows
    try:
        array = np.asarray(cells)
    except ValueError:  # they differ in shape
        return ragged_from_cells(name, cells)
    check_dtype(name, array.dtype)
    return array


def row_count(columns: Mapping[str, ColumnData]) -> int:
    """The number of rows of columns of one length; 0 where there is no column."""
    return len(next(iter(columns.values()), ()))


def check_lengths(columns: Mapping[str, ColumnData], unit: str) -> None:
    """Raise `SchemaError` unless all columns have one length."""
    first: tuple[str, int] | None = None
    for name, column in columns.items():
        first = first or (name, len(column))
        if len(column) != first[1]:
            raise SchemaError(
                f"columns must have the same number of {unit}: {first[0]!r} has {first[1]}, "
                f"{name!r} has {len(column)}; a column has a leading axis of {unit} (obs[None] "
                "makes one)"
            )


# Absent cells


def checked_present(
    columns: dict[str, ColumnData], present: Mapping[str, Any] | None
) -> dict[str, Mask] | None:
    """Return the masks as arrays, and clear the absent cells in `columns`."""
    if not present:
        return None
    masks: dict[str, Mask] = {}
    for name, value in present.items():
        if name not in columns:
            raise SchemaError(f"present names {name!r}; the columns are {', '.join(columns)}")
        mask = np.asarray(value)
        if mask.dtype != np.bool_ or mask.shape != (len(columns[name]),):
            raise SchemaError(
                f"present of {name!r} must be {len(columns[name])} bools, "
                f"got {mask.dtype} of shape {list(mask.shape)}"
            )
        masks[name] = mask
        columns[name] = cleared(columns[name], mask)
    return masks


def cleared(column: ColumnData, present: Mask) -> ColumnData:
    """Return the column with nothing in its absent cells; itself, where that is so already."""
    absent = ~present
    if isinstance(column, Ragged):
        lengths = column.lengths
        if not lengths[absent].any():
            return column
        values = column.values[np.repeat(present, lengths)]
        return Ragged._make(values, offsets_of(lengths * present), column.kind)
    if not column[absent].reshape(-1).view(np.uint8).any():
        return column
    column = column.copy()
    column[absent] = np.zeros((), column.dtype)
    return column


def spread(column: ColumnData, present: Mask) -> ColumnData:
    """Return a column of `len(present)` rows, whose present cells are those of `column`."""
    if isinstance(column, Ragged):
        lengths = np.zeros(len(present), np.int64)
        lengths[present] = column.lengths
        return Ragged._make(column.values, offsets_of(lengths), column.kind)
    rows = np.zeros((len(present), *column.shape[1:]), column.dtype)
    rows[present] = column
    return rows
