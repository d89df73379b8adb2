"""Columns by name: the mapping that users read, and how names and values become columns.

A column is an array `[rows, ...]` or a `Ragged`. Nested dicts are columns with dotted names, and a
mask of bools, `present`, marks the absent cells of a column.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from recollect.data.cells import Array
from recollect.data.dtypes import check_dtype
from recollect.data.ragged import Ragged, arrays_equal, describe_ragged, offsets_of
from recollect.errors import SchemaError

if TYPE_CHECKING:
    import pandas as pd

ColumnData: TypeAlias = Array | Ragged
Mask: TypeAlias = NDArray[np.bool_]


class Columns(Mapping[str, Any]):
    """A read-only mapping of named columns of one length; `batch.shared` is one.

    Nested names come back nested: `columns["obs"]` is a dict where there is an `obs.image`, and
    `columns["obs.image"]` is that column. `columns.columns` is the flat dict, by dotted name.

    >>> import recollect as rc
    >>> batch = rc.Batch({"reward": [1.0]}, shared={"prompt": {"text": ["2+2?"], "id": [7]}})
    >>> list(batch.shared), list(batch.shared.columns)
    (['prompt'], ['prompt.text', 'prompt.id'])
    >>> batch.shared["prompt"]["id"]
    array([7])
    """

    __slots__ = ("_present", "columns")

    columns: dict[str, ColumnData]
    _present: dict[str, Mask] | None

    @classmethod
    def _of(cls, columns: dict[str, ColumnData], present: dict[str, Mask] | None) -> Columns:
        self = object.__new__(cls)
        self.columns = columns
        self._present = present
        return self

    @property
    def present(self) -> dict[str, Mask]:
        """By dotted name, which cells are there: only for columns whose cells may be absent.

        An absent cell is zeros in an array and empty in a Ragged.
        """
        return self._present or {}

    def __getitem__(self, name: str) -> Any:
        column = self.columns.get(name)
        return self._nested(name) if column is None else column

    def _nested(self, name: str) -> dict[str, Any]:
        prefix = f"{name}."
        inside = [key for key in self.columns if key.startswith(prefix)]
        if not inside:
            raise KeyError(f"no column {name!r}; there are {', '.join(self.columns) or 'none'}")
        return nest({key[len(prefix) :]: self.columns[key] for key in inside})

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(name.partition(".")[0] for name in self.columns))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _count(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def equals(self, other: object) -> bool:
        """Whether the other has the same columns and absent cells (NaN equals NaN).

        >>> import recollect as rc
        >>> rc.Batch({"a": [1, 2]}).equals(rc.Batch({"a": [1.0, 2.0]}))
        False
        """
        return (
            isinstance(other, Columns)
            and _same_columns(self.columns, other.columns)
            and _same_columns(self.present, other.present)
        )

    def __eq__(self, other: object) -> bool:
        return self.equals(other)

    __hash__ = None  # type: ignore[assignment]

    def to_pandas(self) -> pd.DataFrame:
        """Return a DataFrame of one row per row, with dotted names.

        Shaped and ragged cells are arrays in an object column, an absent cell is None, and the
        small floats of `ml_dtypes` become float32.

        >>> import recollect as rc
        >>> rc.Batch({"reward": [0.5, 1.0], "tokens": [[1, 2], [3]]}).to_pandas()
           reward  tokens
        0     0.5  [1, 2]
        1     1.0     [3]
        """
        from recollect.data.conversions import to_pandas

        return to_pandas(self)

    def to_torch(self, device: Any = None, pin_memory: bool = False) -> dict[str, Any]:
        """Return the columns as a nested dict of tensors.

        A ragged column becomes a `RaggedTensor`, text and bytes stay lists, datetimes become their
        int64 counts. On the CPU a tensor shares the column's memory where that is writable.

        >>> import recollect as rc
        >>> rc.Batch({"obs": {"speed": [0.5, 1.0]}}).to_torch()["obs"]["speed"]
        tensor([0.5000, 1.0000], dtype=torch.float64)
        """
        from recollect.data.conversions import to_torch

        return to_torch(self, device, pin_memory)

    def __repr__(self) -> str:
        return "\n".join([f"Columns({self._count()} rows)", *described(self.columns)])


def described(columns: Mapping[str, ColumnData], indent: str = "  ") -> list[str]:
    """Return a line per column, for a repr."""
    width = max(map(len, columns), default=0)
    return [f"{indent}{name:{width}}  {_describe(column)}" for name, column in columns.items()]


def _describe(column: ColumnData) -> str:
    if isinstance(column, Ragged):
        return describe_ragged(column)
    return f"{column.dtype} {list(column.shape)}"


# Names


def flatten(columns: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of nested dicts by dotted name.

    >>> from recollect.data.columns import flatten
    >>> flatten({"obs": {"image": 1, "state": 2}, "reward": 3})
    {'obs.image': 1, 'obs.state': 2, 'reward': 3}
    """
    if not isinstance(columns, Mapping):
        raise SchemaError(f"columns must be a dict, got {type(columns).__name__}")
    flat: dict[str, Any] = {}
    for name, value in columns.items():
        if not isinstance(name, str) or not name or "." in name:
            raise SchemaError(
                f"{name!r} cannot name a column: a name is a non-empty str without a dot "
                "(a dict inside the dict makes dotted names)"
            )
        if not isinstance(value, Mapping):
            flat[prefix + name] = value
        elif value:
            flat.update(flatten(value, f"{prefix}{name}."))
        else:
            raise SchemaError(f"{prefix + name!r} is an empty dict: leave it out")
    return flat


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by dotted name as nested dicts: `flatten` undone.

    >>> from recollect.data.columns import nest
    >>> nest({"obs.image": 1, "obs.state": 2, "reward": 3})
    {'obs': {'image': 1, 'state': 2}, 'reward': 3}
    """
    nested: dict[str, Any] = {}
    for name, value in flat.items():
        *outer, last = name.split(".")
        inside = nested
        for part in outer:
            inside = inside.setdefault(part, {})
        inside[last] = value
    return nested


def check_flat_names(names: Mapping[str, Any]) -> None:
    """Raise `SchemaError` unless these dotted names could have come from nested dicts."""
    for name in names:
        if not isinstance(name, str) or not all(name.split(".")):
            raise SchemaError(f"{name!r} cannot name a column: a name is a non-empty str")
        parts = name.split(".")
        for end in range(1, len(parts)):
            if (outer := ".".join(parts[:end])) in names:
                raise SchemaError(f"{outer!r} cannot be a column and also hold the column {name!r}")


# Values


def as_columns(columns: Mapping[str, Any]) -> dict[str, ColumnData]:
    """Return the values of nested dicts as columns, by dotted name."""
    return {name: as_column(name, value) for name, value in flatten(columns).items()}


def as_column(name: str, value: Any, rows: int | None = None) -> ColumnData:
    """Return the value as a column, an array or a Ragged, or raise `SchemaError`.

    A list of numbers, or of arrays of one shape, becomes an array; of arrays that differ in
    length, of str or of bytes, a Ragged. `rows` is how many rows it must have.

    >>> from recollect.data.columns import as_column
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
        return Ragged._from_cells(name, array.tolist(), bytes if array.dtype.kind == "S" else str)
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
            return Ragged._from_cells(name, cells)
        if issubclass(kind, Mapping):
            raise SchemaError(f"column {name!r} is a list of dicts: pass a dict of lists")
    if len({cell.dtype for cell in cells if isinstance(cell, np.ndarray)}) > 1:
        return Ragged._from_cells(name, cells)  # which refuses them, and names the rows
    try:
        array = np.asarray(cells)
    except ValueError:  # they differ in shape
        return Ragged._from_cells(name, cells)
    check_dtype(name, array.dtype)
    return array


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


def _same_columns(one: Mapping[str, ColumnData], other: Mapping[str, ColumnData]) -> bool:
    return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)


def _same(one: ColumnData, other: ColumnData) -> bool:
    if isinstance(one, Ragged):
        return one.equals(other)
    return isinstance(other, np.ndarray) and arrays_equal(one, other)


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
