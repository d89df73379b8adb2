"""A column with a length per row: one array of all values, and where each row starts.

Text and bytes are ragged columns too, of uint8 values and another `kind`. Nothing here loops over
the rows of a numeric column in Python.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from recollect.data.cells import Array, Kind, join_cells
from recollect.data.dtypes import check_dtype
from recollect.errors import InvalidValue, SchemaError, shown


class Ragged:
    """A column whose rows have different lengths.

    `values` holds the cells one after another, `[total, *inner]`; row i is
    `values[offsets[i]:offsets[i + 1]]`. A `kind` of "str" or "bytes" makes a column of text (UTF-8)
    or of bytes out of uint8 values. Treat a Ragged as read-only: cells are views.

    >>> import recollect as rc
    >>> tokens = rc.Ragged([5, 6, 7, 8], [0, 3, 3, 4])
    >>> tokens.lengths
    array([3, 0, 1])
    >>> tokens[0]
    array([5, 6, 7])
    >>> tokens[[2, 0]].to_list()
    [array([8]), array([5, 6, 7])]
    """

    __slots__ = ("kind", "offsets", "values")

    values: Array
    offsets: NDArray[np.int64]
    kind: Kind

    def __init__(self, values: ArrayLike, offsets: ArrayLike, kind: Kind = "array") -> None:
        self.values = np.asarray(values)
        self.offsets = _checked_offsets(np.asarray(offsets))
        self.kind = kind
        check_ragged("values", self)

    @classmethod
    def _make(cls, values: Array, offsets: NDArray[np.int64], kind: Kind = "array") -> Ragged:
        """For the engine: nothing is checked."""
        self = object.__new__(cls)
        self.values = values
        self.offsets = offsets
        self.kind = kind
        return self

    @classmethod
    def from_list(cls, cells: Sequence[Any], dtype: DTypeLike | None = None) -> Ragged:
        """Make a column of one cell per row: arrays or lists of numbers, str, or bytes.

        `dtype` (which may be `str` or `bytes`) is needed where no cell tells it; with it, numbers
        are converted to it. Arrays must agree on one dtype, lists of numbers adapt to it.

        >>> import recollect as rc
        >>> rc.Ragged.from_list([[1, 2], []], dtype="int32")
        Ragged(int32, 2 rows, 2 values)
        >>> rc.Ragged.from_list(["yes", "no"]).to_list()
        ['yes', 'no']
        """
        if not isinstance(cells, Iterable):
            raise SchemaError(f"'cells': expected a list with a cell per row, got {shown(cells)}")
        return ragged_from_cells("cells", cells, dtype)

    def to_list(self) -> list[Any]:
        """Return one cell per row: arrays (views), str or bytes.

        >>> import recollect as rc
        >>> rc.Ragged([1.0, 2.0], [0, 0, 2]).to_list()
        [array([], dtype=float64), array([1., 2.])]
        """
        spans = pairwise(self.offsets.tolist())
        if self.kind == "array":
            values = self.values
            return [values[start:end] for start, end in spans]
        data = self.values.tobytes()
        if self.kind == "bytes":
            return [data[start:end] for start, end in spans]
        if data.isascii():  # then a character is a byte
            text = data.decode("ascii")
            return [text[start:end] for start, end in spans]
        return [data[start:end].decode("utf-8") for start, end in spans]

    def pad(self, value: Any, length: int | None = None) -> Array:
        """Return `[rows, length, *inner]`, each row filled up with `value`.

        `length=None` is that of the longest row. Text and bytes give their uint8 codes.

        >>> import recollect as rc
        >>> rc.Ragged([5, 6, 7, 8], [0, 3, 4]).pad(-1)
        array([[ 5,  6,  7],
               [ 8, -1, -1]])
        """
        lengths = self.lengths
        longest = int(lengths.max(initial=0))
        if length is None:
            length = longest
        elif length < longest:
            row = int((lengths > length).argmax())
            raise InvalidValue(
                f"row {row} has length {lengths[row]}, more than the length {length} to pad to: "
                "pass a larger length, or None for the longest row"
            )
        padded = np.empty((len(lengths), length, *self.inner_shape), self.dtype)
        padded[...] = self._pad_value(value)
        padded[np.arange(length) < lengths[:, None]] = self.values
        return padded

    def _pad_value(self, value: Any) -> Array:
        try:
            with np.errstate(invalid="ignore"):  # NaN as an integer: compared below
                cell = np.asarray(value).astype(self.dtype)
            fits = self.dtype.kind not in "biu" or bool(np.all(cell == value))
            np.broadcast_to(cell, self.inner_shape)
        except (TypeError, ValueError, OverflowError):
            fits = False
        if not fits:
            raise InvalidValue(
                f"{value!r} cannot pad a column of {self.dtype} {list(self.inner_shape)}: "
                "pass a value of that dtype"
            )
        return cell

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The length of each row, in values."""
        return np.diff(self.offsets)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the values (uint8 for text and bytes)."""
        return self.values.dtype

    @property
    def inner_shape(self) -> tuple[int, ...]:
        """The shape of one value: `()` for a row of scalars."""
        return self.values.shape[1:]

    @property
    def nbytes(self) -> int:
        """Bytes of the values and of the offsets."""
        return self.values.nbytes + self.offsets.nbytes

    def equals(self, other: object) -> bool:
        """Whether the other is a column of the same kind, dtype and cells (NaN equals NaN).

        >>> import recollect as rc
        >>> rc.Ragged([1, 2], [0, 2]).equals(rc.Ragged([1, 2], [0, 1, 2]))
        False
        """
        return (
            isinstance(other, Ragged)
            and self.kind == other.kind
            and np.array_equal(self.offsets, other.offsets)
            and arrays_equal(self.values, other.values)
        )

    def __eq__(self, other: object) -> bool:
        return self.equals(other)

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __iter__(self) -> Iterator[Any]:
        return iter(self.to_list())

    @overload
    def __getitem__(self, rows: int | np.integer[Any]) -> Any: ...
    @overload
    def __getitem__(self, rows: slice | Sequence[int] | Array) -> Ragged: ...
    def __getitem__(self, rows: Any) -> Any:
        if isinstance(rows, int | np.integer) and not isinstance(rows, bool):
            return self._cell(int(rows))
        if isinstance(rows, slice):
            start, stop, step = rows.indices(len(self))
            if step == 1:
                return self._between(start, max(start, stop))
            rows = np.arange(start, stop, step)
        return self._select(self._positions(np.asarray(rows)))

    def _cell(self, row: int) -> Any:
        count = len(self)
        if not -count <= row < count:
            raise IndexError(f"row {row} is out of range for {count} rows")
        cell = self.values[self.offsets[row % count] : self.offsets[row % count + 1]]
        if self.kind == "array":
            return cell
        return cell.tobytes() if self.kind == "bytes" else cell.tobytes().decode("utf-8")

    def _between(self, start: int, stop: int) -> Ragged:
        offsets = self.offsets[start : stop + 1]
        values = self.values[offsets[0] : offsets[-1]]
        return Ragged._make(values, offsets - offsets[0], self.kind)

    def _positions(self, rows: Array) -> Array:
        count = len(self)
        if rows.dtype == np.bool_:
            if rows.shape != (count,):
                raise IndexError(f"a mask for {count} rows needs that shape, got {rows.shape}")
            return np.flatnonzero(rows)
        if rows.ndim != 1 or (rows.size and rows.dtype.kind not in "iu"):
            raise IndexError(
                "rows are chosen by a number, a slice, a list of numbers or a mask, "
                f"got {rows.dtype} of shape {rows.shape}"
            )
        rows = rows.astype(np.int64)
        if rows.size and not (-count <= rows.min() and rows.max() < count):
            raise IndexError(f"rows {rows.min()} to {rows.max()} are out of range for {count} rows")
        return np.where(rows < 0, rows + count, rows)

    def _select(self, rows: Array) -> Ragged:
        offsets = offsets_of(self.lengths[rows])
        shift = self.offsets[rows] - offsets[:-1]
        positions = np.repeat(shift, np.diff(offsets)) + np.arange(offsets[-1])
        return Ragged._make(self.values[positions], offsets, self.kind)

    def __repr__(self) -> str:
        return f"Ragged({describe_ragged(self)})"


def ragged_from_cells(name: str, cells: Sequence[Any], dtype: DTypeLike | None = None) -> Ragged:
    """`Ragged.from_list` for the column of this name, which errors mention."""
    values, lengths, kind = join_cells(name, cells, dtype)
    return Ragged._make(values, offsets_of(lengths), kind)


def describe_ragged(column: Ragged) -> str:
    """Say in a few words what the column holds."""
    rows = f"{len(column)} rows"
    if column.kind != "array":
        return f"{column.kind}, {rows}, {len(column.values)} bytes"
    inner = f" of shape {list(column.inner_shape)}" if column.inner_shape else ""
    return f"{column.dtype}, {rows}, {len(column.values)} values{inner}"


def offsets_of(lengths: ArrayLike) -> NDArray[np.int64]:
    """Return where rows of these lengths start, and last their total.

    >>> from recollect.data.ragged import offsets_of
    >>> offsets_of([3, 0, 1])
    array([0, 3, 3, 4])
    """
    lengths = np.asarray(lengths, dtype=np.int64)
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def arrays_equal(one: Array, other: Array) -> bool:
    """Whether two arrays have the same dtype, shape and values, where NaN equals NaN."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    same = one == other
    if not same.all() and one.dtype.kind != "O":
        same |= (one != one) & (other != other)
    return bool(same.all())


def _checked_offsets(offsets: Array) -> NDArray[np.int64]:
    if offsets.ndim != 1 or offsets.dtype.kind not in "iu" or len(offsets) == 0:
        raise SchemaError(
            "offsets must be a 1-d array of integers with one entry more than there are rows, "
            f"got {offsets.dtype} of shape {list(offsets.shape)}"
        )
    return offsets.astype(np.int64, copy=False)


def check_ragged(name: str, column: Ragged) -> None:
    """Raise `SchemaError` unless offsets, values and kind of the column fit together."""
    values, offsets = column.values, column.offsets
    if values.ndim == 0:
        raise SchemaError(f"{name!r} needs an array of values, got the single value {values}")
    check_dtype(name, values.dtype)
    if offsets[0] != 0 or offsets[-1] != len(values) or (offsets[1:] < offsets[:-1]).any():
        few = np.array2string(offsets, threshold=6, edgeitems=2, separator=", ")
        raise SchemaError(
            f"offsets of {name!r} must start at 0, never fall and end at the number of values, "
            f"{len(values)}; got {few}"
        )
    if column.kind == "array":
        return
    if column.kind not in ("str", "bytes"):
        raise SchemaError(f"kind must be 'array', 'str' or 'bytes', got {column.kind!r}")
    if values.dtype != np.uint8 or values.ndim != 1:
        raise SchemaError(
            f"{name!r} of kind {column.kind!r} needs 1-d values of uint8, "
            f"got {values.dtype} of shape {list(values.shape)}"
        )
    if column.kind == "str" and not _is_text(values, offsets):
        raise SchemaError(f"{name!r} holds bytes that are not UTF-8: pass kind='bytes'")


def _is_text(values: Array, offsets: NDArray[np.int64]) -> bool:
    if values.max(initial=0) < 128:
        return True
    try:
        str(np.ascontiguousarray(values).data, "utf-8")
    except UnicodeDecodeError:
        return False
    # The whole is UTF-8; so is each row, if no row starts inside a character.
    starts = offsets[:-1][offsets[:-1] < len(values)]
    return not ((values[starts] & 0xC0) == 0x80).any()
