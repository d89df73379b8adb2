"""What a table knows of each item of a batch, and the lease that the batch is under."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recollect.base.leases import Lease, LeaseLike
from recollect.data.cells import Array
from recollect.data.column_data import ColumnData, Mask
from recollect.data.columns import Columns, described
from recollect.data.ragged import Ragged
from recollect.errors import SchemaError


class Info:
    """What the table knew of each item at the draw: arrays with one entry per item, by attribute.

    A field that nobody set reads as its constant. `row_offsets` has one entry more: item i owns
    rows `row_offsets[i]` to `row_offsets[i + 1]`. Tags are attributes too.

    >>> import recollect as rc
    >>> info = rc.Info({"keys": np.array([4, 9], np.uint64), "score": np.array([0.1, 0.7])}, 1000)
    >>> info.score, info.version
    (array([0.1, 0.7]), array([-1, -1]))
    """

    keys: NDArray[np.uint64]
    priority: NDArray[np.float64]
    probability: NDArray[np.float64]
    weights: NDArray[np.float64]
    times_sampled: NDArray[np.int64]
    version: NDArray[np.int64]  # -1: none
    task: NDArray[np.object_]  # of str or None
    status: NDArray[np.object_]
    deliveries: NDArray[np.int64]
    row_offsets: NDArray[np.int64]
    table_size: int
    lease: LeaseLike | None

    def __init__(
        self,
        arrays: dict[str, Array],
        table_size: int,
        lease: LeaseLike | None = None,
        later: dict[str, Callable[[], Array]] | None = None,
    ) -> None:
        attributes = self.__dict__
        attributes.update(arrays)
        attributes["table_size"] = table_size
        attributes["lease"] = lease
        if later is not None:  # arrays that are made when somebody asks for them
            attributes["_later"] = later

    def __getattr__(self, name: str) -> Array:
        later: dict[str, Callable[[], Array]] = self.__dict__.get("_later", {})
        if name in later:
            array = self.__dict__[name] = later[name]()
            return array
        arrays = info_arrays(self)
        if name in _UNSET and arrays:
            return self._unset(name)
        if not arrays and not name.startswith("_"):
            raise AttributeError(
                f"info has no {name!r}: this batch has no info, since no table returned it"
            )
        raise AttributeError(f"info has no {name!r}; there are {', '.join({**arrays, **_UNSET})}")

    def _unset(self, name: str) -> Array:
        count = item_count(self)
        if name == "row_offsets":
            return np.arange(count + 1)
        dtype, value = _UNSET[name]
        if name == "probability" and self.table_size:
            value = 1.0 / self.table_size
        return np.full(count, value, dtype)

    def __repr__(self) -> str:
        lease = "" if self.lease is None else f", lease={self.lease.id!r}"
        head = f"Info({item_count(self)} items, table_size={self.table_size}{lease})"
        return "\n".join([head, *described(info_arrays(self))])


def info_arrays(info: Info) -> dict[str, Array]:
    """The arrays that were set, by name.

    This is no method of Info: a tag may have any name, and is read as an attribute.
    """
    made = {name: getattr(info, name) for name in info.__dict__.get("_later", ())}
    hidden = ("table_size", "lease", "_later")
    return made | {k: v for k, v in info.__dict__.items() if k not in hidden}


def item_count(info: Info) -> int:
    """The number of items that info is about."""
    keys = info.__dict__.get("keys")
    if keys is not None:
        return len(keys)
    name, array = next(iter(info_arrays(info).items()), ("", ()))
    return len(array) - (name == "row_offsets")


# The fields that may be left unset: their dtype, and the constant that they then read as.
_UNSET: dict[str, tuple[Any, Any]] = {
    "priority": (np.float64, 1.0),
    "probability": (np.float64, np.nan),  # or 1 / table_size
    "weights": (np.float64, 1.0),
    "times_sampled": (np.int64, 0),
    "version": (np.int64, -1),
    "task": (object, None),
    "status": (object, None),
    "deliveries": (np.int64, 1),
    "row_offsets": (np.int64, None),  # every item owns one row
}
INFO_DTYPES: dict[str, np.dtype[Any]] = {
    "keys": np.dtype(np.uint64),
    **{name: np.dtype(dtype) for name, (dtype, _) in _UNSET.items()},
}


# Info as columns, for the encodings


def info_to_columns(info: Info) -> tuple[Columns, dict[str, Any]]:
    """Return info as columns of one length, and what is not per item as JSON."""
    columns: dict[str, ColumnData] = {}
    present: dict[str, Mask] = {}
    lease = info.lease
    meta: dict[str, Any] = {"table_size": info.table_size, "lease": None}
    if lease is not None:
        meta["lease"] = {"id": lease.id, "owner": lease.owner, "deadline": lease.deadline}
    for name, array in info_arrays(info).items():
        if name == "row_offsets":  # one entry more than there are items: the last goes apart
            meta["rows"] = int(array[-1])
            columns["row_starts"] = array[:-1]
        elif array.dtype.kind == "O":
            columns[name], present[name] = _with_absent(array)
        else:
            columns[name] = array
    return Columns(columns, present), meta


def _with_absent(array: Array) -> tuple[ColumnData, Mask]:
    """Text, or the numbers of a tag that some items do not have, and which have it."""
    here = np.array([cell is not None for cell in array], np.bool_)
    if any(not isinstance(cell, str) for cell in array[here]):
        numbers = np.array([0 if cell is None else cell for cell in array])
        return numbers.astype(np.bool_ if isinstance(array[here][0], bool) else np.int64), here
    return Ragged.from_list(["" if cell is None else cell for cell in array], dtype=str), here


def info_from_columns(columns: Columns, meta: Any) -> Info:
    """Return the Info of what `info_to_columns` returned, or raise `SchemaError`."""
    present = columns.present
    arrays = {n: _info_array(n, column, present.get(n)) for n, column in columns.columns.items()}
    match meta:
        case {"table_size": int(size), "lease": None}:
            lease = None
        case {
            "table_size": int(size),
            "lease": {
                "id": int() | str() as id,
                "owner": int() | str() | None as owner,
                "deadline": int() | float() | None as deadline,
            },
        }:
            lease = Lease(id, owner, deadline)
        case _:
            raise SchemaError(f"info needs a table_size and a lease, got {str(meta)[:80]}")
    if len(set(map(len, arrays.values()))) != 1 or "row_offsets" in arrays:
        raise SchemaError(f"info needs arrays of one length, got {', '.join(arrays) or 'none'}")
    if "row_starts" in arrays:
        arrays["row_offsets"] = _row_offsets(arrays.pop("row_starts"), meta.get("rows"))
    for name, array in arrays.items():
        if array.dtype != INFO_DTYPES.get(name, array.dtype):
            raise SchemaError(f"info {name!r} must be {INFO_DTYPES[name]}, got {array.dtype}")
    return Info(arrays, size, lease)


def _info_array(name: str, column: ColumnData, present: Mask | None) -> Array:
    if isinstance(column, np.ndarray) and column.ndim == 1:
        if present is None:
            return column
        numbers = column.astype(object)
        numbers[~present] = None
        return numbers
    if isinstance(column, Ragged) and column.kind == "str":
        cells = np.empty(len(column), object)
        cells[:] = column.to_list()
        if present is not None:
            cells[~present] = None
        return cells
    raise SchemaError(f"info must have one number or str per item, {name!r} has not")


def _row_offsets(starts: Array, rows: Any) -> Array:
    if starts.dtype == np.int64 and type(rows) is int and 0 <= rows < 2**63:
        offsets = np.append(starts, rows)
        if offsets[0] == 0 and (offsets[1:] >= offsets[:-1]).all():
            return offsets
    raise SchemaError("info says that items own rows which cannot be: row_starts must rise from 0")
