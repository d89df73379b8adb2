"""What the rows of a table look like, and whether an insert fits.

A `Schema` is fixed by the first insert or by `signature=`. It grows only by `add_column`, and
only by optional columns, so a column keeps its place forever.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from recollect.data.cells import Array
from recollect.data.column_data import ColumnData, Mask, as_column, check_lengths, spread
from recollect.data.columns import Columns
from recollect.data.dotted_names import flatten
from recollect.data.dtypes import check_dtype, dtype_named
from recollect.data.ragged import Ragged, ragged_from_cells
from recollect.errors import InvalidValue, SchemaError, shown
from recollect.kernels import load as kernels

if TYPE_CHECKING:
    from recollect.data.batch import Batch

Stored = ColumnData | None  # one column of an insert; None where every cell is absent


@dataclass(frozen=True)
class Column:
    """What one column holds: a dtype and the shape of a cell.

    A ragged column has cells of different lengths, and `shape` is then that of one element.
    The dtypes "str" and "bytes" make ragged columns of text and of bytes. A cell of an optional
    column may be absent. A shared column has one cell per item, not one per row.

    >>> import recollect as rc
    >>> table = rc.Table(
    ...     "rollouts",
    ...     capacity=100,
    ...     signature={
    ...         "prompt": rc.Column("str"),
    ...         "tokens": rc.Column("int32", ragged=True),
    ...         "image": rc.Column("uint8", (32, 32, 3), optional=True),
    ...     },
    ... )
    >>> keys = table.insert({"prompt": ["2+2?"], "tokens": [[7, 9]]})
    >>> table.get(keys).present["image"]
    array([False])
    """

    dtype: Any
    shape: tuple[int, ...] = ()
    _: KW_ONLY
    ragged: bool = False
    optional: bool = False
    shared: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", _checked_sizes(self.shape))
        for name in ("ragged", "optional", "shared"):
            if not isinstance(getattr(self, name), bool):
                raise SchemaError(
                    f"{name}: expected True or False, got {shown(getattr(self, name))}"
                )
        if self.dtype is str or self.dtype is bytes or _is_text(self.dtype):
            name = self.dtype if isinstance(self.dtype, str) else self.dtype.__name__
            if self.shape:
                raise SchemaError(f"a column of {name} has no shape, got {self.shape}")
            object.__setattr__(self, "dtype", name)
            object.__setattr__(self, "ragged", True)
            return
        object.__setattr__(self, "dtype", _checked_dtype(self.dtype))

    @property
    def kind(self) -> str:
        """`"str"`, `"bytes"`, or `"array"` for numbers."""
        return self.dtype if isinstance(self.dtype, str) else "array"

    @property
    def element(self) -> np.dtype[Any]:
        """The dtype of what is stored: text is stored as bytes."""
        return np.dtype(np.uint8) if isinstance(self.dtype, str) else self.dtype

    @property
    def size(self) -> int:
        """Bytes of a cell, or of one element of a ragged cell."""
        return int(self.element.itemsize * np.prod(self.shape, dtype=np.int64))

    def __str__(self) -> str:
        if self.kind != "array":
            return self.kind
        shape = "".join(f"[{size}]" for size in self.shape)
        return f"{'ragged ' if self.ragged else ''}{self.dtype}{shape}"

    @classmethod
    def of(cls, column: ColumnData, *, optional: bool = False) -> Column:
        """The column that stores what was given."""
        if isinstance(column, Ragged):
            dtype: Any = column.dtype if column.kind == "array" else column.kind
            return cls(dtype, column.inner_shape, ragged=True, optional=optional)
        return cls(column.dtype, column.shape[1:], optional=optional)


def _is_text(dtype: Any) -> bool:
    return isinstance(dtype, str) and dtype in ("str", "bytes")


def _checked_sizes(shape: Any) -> tuple[int, ...]:
    sizes = (shape,) if isinstance(shape, int) else shape
    if not isinstance(sizes, tuple | list) or any(
        not isinstance(size, int) or isinstance(size, bool) or size < 0 for size in sizes
    ):
        raise SchemaError(f"shape: expected a tuple of sizes of 0 or more, got {shown(shape)}")
    return tuple(sizes)


def _checked_dtype(given: Any) -> np.dtype[Any]:
    """The NumPy dtype that a user names, by name, type or dtype."""
    wrong = SchemaError(f"dtype: expected a NumPy dtype, 'str' or 'bytes', got {shown(given)}")
    if isinstance(given, str) and given.isprintable():
        try:
            dtype = dtype_named(given)
        except SchemaError:
            try:
                dtype = np.dtype(given)
            except (TypeError, ValueError, SyntaxError):
                raise wrong from None
    elif isinstance(given, np.dtype | type):
        try:
            dtype = np.dtype(given)
        except TypeError:
            raise wrong from None
    else:
        raise wrong
    try:
        check_dtype("dtype", dtype)
    except SchemaError as error:
        raise SchemaError(str(error).replace("column 'dtype' has dtype", "a column of")) from None
    return dtype


@dataclass(slots=True)
class Rows:
    """Checked columns of an insert, in the schema's order, and how many rows they have."""

    count: int
    columns: list[Stored]
    present: Sequence[Mask | None] | None = None
    names: Sequence[str] = ()


class Schema:
    """Named columns in a fixed order, and the check of what is inserted.

    `what` says in messages what a column is one of: "column", or "shared column".
    """

    def __init__(self, columns: Mapping[str, Column], what: str = "column") -> None:
        self.columns = dict(columns)
        self.what = what
        self._names_in_order = list(self.columns)
        self._plain = self._plain_columns()

    def _plain_columns(self) -> NDArray[np.int64] | None:
        """What kernels expect of arrays, where each column is one and no cell may be absent."""
        columns = self.columns.values()
        if not columns or any(column.ragged or column.optional for column in columns):
            return None
        arrays = [kernels.expected_array(column.dtype, column.shape) for column in columns]
        width = max(map(len, arrays))
        return np.array([[*array, *[0] * (width - len(array))] for array in arrays], np.int64)

    @classmethod
    def from_signature(cls, signature: Mapping[str, Any], what: str = "column") -> Schema:
        """Make a schema of `Column`s, given under plain or nested names."""
        if not isinstance(signature, Mapping) or not signature:
            raise SchemaError(
                "signature: expected columns by name, such as {'x': rc.Column('float32', (4,))}, "
                f"got {shown(signature)}"
            )
        columns = {}
        for name, column in flatten(signature).items():
            if not isinstance(column, Column):
                raise SchemaError(
                    f"signature of {name!r}: expected an rc.Column, got {shown(column)}"
                )
            columns[name] = column
        return cls(columns, what)

    @classmethod
    def infer(cls, given: Mapping[str, Any], what: str = "column") -> Schema:
        """Make the schema that a first insert implies."""
        columns: dict[str, Column] = {}
        flat = _flat(given)
        if not flat:
            raise SchemaError(f"name at least one {what}: the first insert fixes what there is")
        for name, value in flat.items():
            present, column = _parse(name, value, None)
            if column is None:
                raise SchemaError(
                    f"{what} {name!r}: no cell of the first insert tells its dtype; "
                    "declare it with signature={...: rc.Column(...)}"
                )
            columns[name] = Column.of(column, optional=present is not None)
        return cls(columns, what)

    def with_column(self, name: str, column: Column) -> Schema:
        """The same schema and one more column at its end."""
        if not isinstance(name, str) or not all(name.split(".")):
            raise SchemaError(
                f"a column's name is text, with dots only between names, got {shown(name)}"
            )
        for other in self.columns:
            if f"{other}.".startswith(f"{name}.") or f"{name}.".startswith(f"{other}."):
                raise SchemaError(f"column {name!r}: there is a column {other!r} already")
        return Schema({**self.columns, name: column}, self.what)

    def expand(self, names: Sequence[str]) -> list[str]:
        """The dotted names of columns that are named, or nested in what is named."""
        if isinstance(names, str):
            names = [names]
        expanded: list[str] = []
        for name in names:
            inside = [c for c in self.columns if c == name or c.startswith(f"{name}.")]
            if not inside:
                raise SchemaError(f"unknown {self.what} {name!r}; this table has {self.listed()}")
            expanded.extend(inside)
        return list(dict.fromkeys(expanded))

    def only(self, given: Mapping[str, Any]) -> Schema:
        """The optional columns that are named: what `amend` may fill."""
        names = self.expand(list(_flat(given)))
        if not names:
            raise SchemaError("amend: name at least one column")
        for name in names:
            if not self.columns[name].optional:
                raise SchemaError(
                    f"amend fills absent cells, and {self.what} {name!r} is not optional"
                )
        return Schema({name: self.columns[name] for name in names}, self.what)

    def filled(self, stored: Batch, filling: Rows, given: Mask) -> tuple[Rows, NDArray[np.int64]]:
        """Stored rows with absent cells filled in, and the payload that each row gains.

        `given` says which rows of `filling` count.
        """
        names = [name for name in self.columns if name in filling.names]
        columns: list[Stored] = []
        present: list[Mask | None] = []
        gained = np.zeros(stored.rows, np.int64)
        for name in self.columns:
            column, here = stored.columns[name], stored.present.get(name)
            if name in names:
                place = filling.names.index(name)
                coming = filling.columns[place]
                flags = None if filling.present is None else filling.present[place]
                mask = np.ones(filling.count, np.bool_) if flags is None else flags
                if coming is not None:
                    column, here = _merged(name, column, here, coming, mask, given)
                    elements = coming.lengths[given] if isinstance(coming, Ragged) else 1
                    gained += np.where(mask[given], elements, 0) * self.columns[name].size
            columns.append(column)
            present.append(_flags(here))
        return Rows(stored.rows, columns, present), gained

    def check(self, given: Mapping[str, Any]) -> Rows:
        """Check columns against the schema; raises `SchemaError`, converts lists."""
        return self.plain_rows(given) or self._check_any(given)

    def plain_rows(self, given: Mapping[str, Any]) -> Rows | None:
        """The common case, arrays that fit as they are; None where there is more to say."""
        if self._plain is None or type(given) is not dict or len(given) != len(self._plain):
            return None
        columns = list(map(given.get, self._names_in_order))
        count = kernels.rows_that_fit(id(columns), self._plain)
        return None if count < 0 else Rows(count, columns)

    def _check_any(self, given: Mapping[str, Any]) -> Rows:
        flat = _flat(given)
        absent = _given_present(given)
        for name in flat:
            if name not in self.columns:
                raise SchemaError(
                    f"unknown {self.what} {name!r}; this table has {self.listed()}"
                    + ("; add_column() adds an optional one" if self.what == "column" else "")
                )
        columns: list[Stored] = []
        presents: list[Mask | None] = []
        counted: dict[str, ColumnData] = {}
        for name, expected in self.columns.items():
            if name not in flat:
                if not expected.optional:
                    raise SchemaError(
                        f"{self.what} {name!r} ({expected}) is missing; got "
                        f"{', '.join(flat) or 'no columns'}"
                    )
                columns.append(None)
                presents.append(None)
                continue
            present, column = _parse(name, flat[name], expected)
            if name in absent:
                present = absent[name] if present is None else present & absent[name]
            if present is not None and not expected.optional and not present.all():
                raise SchemaError(
                    f"{self.what} {name!r} is not optional, and row "
                    f"{int(np.argmin(present))} has no cell"
                )
            if column is not None:
                self._check_column(name, expected, column)
                column = _contiguous(column)
                counted[name] = column
            columns.append(column)
            presents.append(present)
        check_lengths(counted, "rows" if self.what == "column" else "items")
        count = len(next(iter(counted.values()))) if counted else _absent_count(flat)
        columns = [c if c is None or len(c) == count else None for c in columns]
        flags = [_flags(present) for present in presents]
        return Rows(count, columns, flags, list(self.columns))

    def _check_column(self, name: str, expected: Column, column: ColumnData) -> None:
        got = Column.of(column)
        if (got.ragged, got.dtype, got.shape) == (expected.ragged, expected.dtype, expected.shape):
            return
        raise SchemaError(
            f"{self.what} {name!r}: expected {expected} per row, got {got}" + _hint(expected, got)
        )

    def payload(self, rows: Rows) -> int:
        """Bytes of payload in rows: an absent cell has none."""
        payload = 0
        for place, expected in enumerate(self.columns.values()):
            column = rows.columns[place]
            present = None if rows.present is None else rows.present[place]
            if isinstance(column, Ragged):
                lengths = column.lengths
                payload += (
                    int((lengths if present is None else lengths[present]).sum()) * expected.size
                )
            elif column is not None:
                payload += (rows.count if present is None else int(present.sum())) * expected.size
        return payload

    def listed(self) -> str:
        """The columns with what they hold, as a message lists them."""
        listed = (f"{name!r} ({column})" for name, column in self.columns.items())
        return ", ".join(listed) or "none"


def row_payload(schema: Schema, rows: Rows) -> NDArray[np.int64]:
    """Bytes of payload of each row: an absent cell has none."""
    total = np.zeros(rows.count, np.int64)
    for place, column in enumerate(schema.columns.values()):
        cells = rows.columns[place]
        present = None if rows.present is None else rows.present[place]
        if isinstance(cells, Ragged):
            sizes: Any = cells.lengths * column.size
        elif cells is not None:
            sizes = np.int64(column.size)
        else:
            continue
        total += sizes if present is None else np.where(present, sizes, 0)
    return total


def _flat(given: Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(given, Columns):
        return dict(given.columns)
    if not isinstance(given, Mapping):
        raise SchemaError(
            f"columns are a mapping of names to arrays, got {type(given).__name__}; "
            "write table.insert({'obs': obs, 'reward': reward}), or make one with "
            "rc.Batch.from_pandas(frame)"
        )
    return flatten(given)


def _given_present(given: Mapping[str, Any]) -> Mapping[str, Mask]:
    return given.present if isinstance(given, Columns) else {}


def _parse(name: str, value: Any, expected: Column | None) -> tuple[Mask | None, ColumnData | None]:
    """A value as a column; cells that are None become absent, and the mask says which."""
    if isinstance(value, list | tuple) and any(cell is None for cell in value):
        present = np.array([cell is not None for cell in value], dtype=np.bool_)
        if not present.any():
            return present, None
        column = _convert(name, [cell for cell in value if cell is not None], expected)
        return present, spread(column, present)
    return None, _convert(name, value, expected)


def _convert(name: str, value: Any, expected: Column | None) -> ColumnData:
    if expected is not None and isinstance(value, list | tuple):
        if expected.ragged:
            text = {"str": str, "bytes": bytes}
            return ragged_from_cells(name, list(value), text.get(expected.kind, expected.dtype))
        if not any(isinstance(cell, np.ndarray) for cell in value):
            return _from_numbers(name, value, expected)
    return as_column(name, value)


def _from_numbers(name: str, value: Sequence[Any], expected: Column) -> Array:
    """A list of numbers in the dtype of its column, where that changes no number."""
    try:
        plain = np.asarray(value)
        column = np.array(value, dtype=expected.dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise SchemaError(
            f"column {name!r}: expected {expected} per row, and the list does not convert ({error})"
        ) from error
    kinds = {"b": 0, "u": 1, "i": 1, "f": 2}
    narrower = kinds.get(plain.dtype.kind, 3) > kinds.get(column.dtype.kind, 3)
    if narrower and plain.size and not np.array_equal(plain, column):
        raise SchemaError(
            f"column {name!r}: expected {expected} per row, and the list holds {plain.dtype} "
            "numbers that it cannot keep; convert them first"
        )
    return column


def _merged(
    name: str,
    column: ColumnData,
    here: Mask | None,
    coming: ColumnData,
    mask: Mask,
    given: Mask,
) -> tuple[ColumnData, Mask]:
    """A stored column with the given cells in the place of absent ones."""
    assert here is not None
    mask = mask[given]
    if (mask & here).any():
        row = int(np.argmax(mask & here))
        raise InvalidValue(
            f"column {name!r}: row {row} of the items has a cell already, and amend fills absent "
            "ones; give None for that row, or leave the column out"
        )
    present = here | mask
    if isinstance(column, Ragged):
        assert isinstance(coming, Ragged)
        cells = coming[np.flatnonzero(given)]
        lengths = np.where(mask, cells.lengths, column.lengths)
        both = Ragged._make(
            np.concatenate([column.values, cells.values]),
            np.concatenate([column.offsets, cells.offsets[1:] + column.offsets[-1]]),
            column.kind,
        )
        rows = np.arange(len(column))
        merged = both[np.where(mask, rows + len(column), rows)]
        assert int(merged.offsets[-1]) == int(lengths.sum())
        return merged, present
    assert isinstance(coming, np.ndarray)
    shape = (-1, *(1,) * (column.ndim - 1))
    return np.where(mask.reshape(shape), coming[given], column), present


def _contiguous(column: ColumnData) -> ColumnData:
    if isinstance(column, Ragged):
        return Ragged._make(
            np.ascontiguousarray(column.values),
            np.ascontiguousarray(column.offsets, dtype=np.int64),
            column.kind,
        )
    return np.ascontiguousarray(column)


def _flags(present: Mask | None) -> Mask | None:
    return None if present is None or present.all() else np.ascontiguousarray(present)


def _absent_count(flat: Mapping[str, Any]) -> int:
    return max((len(value) for value in flat.values()), default=0)


def _hint(expected: Column, got: Column) -> str:
    if expected.ragged != got.ragged:
        wanted = (
            "rc.Ragged(values, offsets), or a list of arrays" if expected.ragged else "one array"
        )
        return f"; give {wanted}"
    if expected.dtype != got.dtype and expected.kind == got.kind == "array":
        return f"; convert it with .astype({str(expected.dtype)!r})"
    if len(got.shape) == len(expected.shape) - 1:
        return "; a column has a leading axis of rows"
    return ""
