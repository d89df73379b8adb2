"""Cells, one per row, joined into the values of a ragged column."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from recollect.data.dtypes import check_dtype
from recollect.errors import SchemaError

Array: TypeAlias = NDArray[Any]
Kind: TypeAlias = Literal["array", "str", "bytes"]

_BYTES = (bytes, bytearray, memoryview)
_TEXT = (str, *_BYTES)


def join_cells(
    name: str, cells: Sequence[Any], dtype: DTypeLike | None = None
) -> tuple[Array, NDArray[np.int64], Kind]:
    """Return the values of all cells in one array, the length of each cell, and the kind.

    `name` is what errors call the column. See `Ragged.from_list` for what cells may be.

    >>> from recollect.data.cells import join_cells
    >>> join_cells("tokens", [[5, 6], [], [7]])
    (array([5, 6, 7]), array([2, 0, 1]), 'array')
    """
    cells = list(cells)
    if dtype is str or dtype is bytes or any(isinstance(cell, _TEXT) for cell in cells):
        return _join_text(name, cells, dtype)
    arrays = [_as_values(name, row, cell) for row, cell in enumerate(cells)]
    # An empty list knows neither dtype nor inner shape, so it takes both from the others.
    known = [
        (row, array)
        for row, array in enumerate(arrays)
        if isinstance(cells[row], np.ndarray) or array.size or array.ndim > 1
    ]
    if not known and dtype is None:
        raise SchemaError(
            f"{name!r} holds no value that tells its dtype: pass dtype=, such as dtype='int64'"
        )
    _check_inner_shapes(name, known)
    wanted = _common_dtype(name, cells, known) if dtype is None else np.dtype(dtype)
    check_dtype(name, wanted)
    parts = [_converted(name, row, cells[row], array, wanted) for row, array in known]
    values = np.concatenate(parts) if parts else np.empty(0, wanted)
    return values, _lengths(arrays), "array"


def _join_text(
    name: str, cells: list[Any], dtype: DTypeLike | None
) -> tuple[Array, NDArray[np.int64], Kind]:
    first = next(cell for cell in cells if isinstance(cell, _TEXT)) if dtype is None else ""
    is_text = dtype is str or (dtype is None and isinstance(first, str))
    accepted: tuple[type, ...] = (str,) if is_text else _BYTES
    for row, cell in enumerate(cells):
        if not isinstance(cell, accepted):
            raise SchemaError(
                f"row {row} of {name!r} is {type(cell).__name__}, where a column of "
                f"{accepted[0].__name__} was expected: all rows must be of one kind"
            )
    try:
        encoded = [c.encode("utf-8") for c in cells] if is_text else [bytes(c) for c in cells]
    except UnicodeEncodeError as error:
        raise SchemaError(f"{name!r} holds text that UTF-8 cannot express: {error}") from None
    values = np.frombuffer(b"".join(encoded), np.uint8)
    return values, _lengths(encoded), "str" if is_text else "bytes"


def _lengths(cells: Sequence[Any]) -> NDArray[np.int64]:
    return np.fromiter(map(len, cells), np.int64, len(cells))


def _as_values(name: str, row: int, cell: Any) -> Array:
    if cell is None:
        raise SchemaError(f"row {row} of {name!r} is None: mark an absent cell with present=")
    try:
        array = np.asarray(cell)
    except (ValueError, TypeError, OverflowError) as error:
        raise SchemaError(f"row {row} of {name!r} is not an array of numbers: {error}") from None
    if array.ndim == 0:
        raise SchemaError(
            f"row {row} of {name!r} is a single {type(cell).__name__}, where an array with a "
            "length was expected"
        )
    return array


def _check_inner_shapes(name: str, known: list[tuple[int, Array]]) -> None:
    if len({array.shape[1:] for _, array in known}) > 1:
        first_row, first = known[0]
        row, other = next((row, a) for row, a in known if a.shape[1:] != first.shape[1:])
        raise SchemaError(
            f"rows of {name!r} may differ in their first dimension only: row {first_row} has "
            f"shape {list(first.shape)}, row {row} has {list(other.shape)}"
        )


def _common_dtype(name: str, cells: list[Any], known: list[tuple[int, Array]]) -> np.dtype[Any]:
    exact = [(row, array.dtype) for row, array in known if isinstance(cells[row], np.ndarray)]
    if not exact:
        return np.result_type(*{array.dtype for _, array in known})
    first_row, first = exact[0]
    for row, dtype in exact:
        if dtype != first:
            raise SchemaError(
                f"rows of {name!r} must have one dtype: row {first_row} is {first}, row {row} is "
                f"{dtype}; pass dtype= to convert them"
            )
    return first


def _converted(name: str, row: int, cell: Any, array: Array, dtype: np.dtype[Any]) -> Array:
    if array.dtype == dtype:
        return array
    if isinstance(cell, np.ndarray) or array.dtype.kind not in "biuf":
        fits = np.can_cast(array.dtype, dtype, "same_kind")
    else:  # numbers of a list have no dtype of their own: what counts is their values
        fits = array.dtype.kind != "f" or dtype.kind not in "biu"
    try:
        if fits:
            return array.astype(dtype) if isinstance(cell, np.ndarray) else np.array(cell, dtype)
    except (TypeError, ValueError, OverflowError):
        pass
    raise SchemaError(f"row {row} of {name!r} is {array.dtype}, which does not convert to {dtype}")
