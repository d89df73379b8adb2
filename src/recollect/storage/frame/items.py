"""The items of a table as one pandas DataFrame: a row per item, in the order of arrival.

Rows of the frame are only ever added at its end, so that a row's position tells its place in
the order of arrival, and keys rise with it: an item is found by its key by bisection. An item
that leaves is marked, and its row goes when most rows belong to items that have left. The frame
doubles when it is full; rows beyond `used` hold what a new item has where nobody says otherwise.

Text is kept as codes, and an absent value as the marker of its type (see `fields`): `seen` gives
people what they expect.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from recollect.base.arrays import Array, Ints, Keys
from recollect.base.optional import optional
from recollect.rules.query import FieldType, FieldValues, Query, mask
from recollect.storage.fields import BUILT_IN, DTYPES, FieldValue, Texts, absent_of

if TYPE_CHECKING:
    import pandas as pd


FEWEST = 256  # rows that a frame begins with
GONE, VISIBLE, HIDDEN = 0, 1, 2  # what `state` says
COUNTER_BITS = 44  # of a key; the others are the table's origin

_SEEN = {"int": "Int64", "bool": "boolean", "str": object}  # how people see what may be absent
# What every item has beside the fields that a user may set: dtype, and the value of a new item.
MADE: dict[str, tuple[Any, Any]] = {
    "key": (np.uint64, 0),
    "priority": (np.float64, 1.0),
    "times_sampled": (np.int64, 0),
    "inserted_at": (np.float64, 0.0),
    "rows": (np.int64, 1),
    "nbytes": (np.int64, 0),
    "deliveries": (np.int64, 0),  # the times that it came back
    "state": (np.int8, VISIBLE),
    "partition": (np.int32, 0),
    "location": (np.int64, 0),  # of the first row, in the store of rows
    "shared": (np.int64, 0),  # of the shared cell
    "shared_nbytes": (np.int64, 0),
}


class ItemFrame:
    """The frame, and what is counted of it. Its caller holds the lock."""

    def __init__(self, fields: Mapping[str, FieldType]) -> None:
        self._pandas = optional("pandas")
        self.types = dict(fields)
        self.tags = [name for name in fields if name not in BUILT_IN]
        self.texts = {name: Texts() for name, kind in fields.items() if kind == "str"}
        self._blank = dict(MADE)
        for name, kind in fields.items():
            if name not in self._blank and name != "seq":
                self._blank[name] = (DTYPES[kind], absent_of(name, kind))
        self.frame: pd.DataFrame = self._blanks(FEWEST)
        self._place = {name: place for place, name in enumerate(self.frame.columns)}
        self.used = 0
        self.live = self.hidden = self.nbytes = self.hidden_nbytes = 0
        self._origin = secrets.randbits(64 - COUNTER_BITS) << COUNTER_BITS
        self._counter = 0

    # -- the frame --------------------------------------------------------------------------------
    def _blanks(self, rows: int) -> pd.DataFrame:
        columns = {n: np.full(rows, value, dtype) for n, (dtype, value) in self._blank.items()}
        frame: pd.DataFrame = self._pandas.DataFrame(columns)
        return frame

    def make_room(self, more: int) -> bool:
        """Have room for so many more items; returns whether positions have changed."""
        if self.used + more <= len(self.frame):
            return False
        moved = self.used > self.live
        if moved:
            self._drop_gone()
        missing = self.live + more - len(self.frame)
        grown = max(len(self.frame), missing) if 2 * (self.live + more) > len(self.frame) else 0
        if grown:
            both = [self.frame, self._blanks(grown)]
            self.frame = self._pandas.concat(both, ignore_index=True)
        return moved

    def is_mostly_gone(self) -> bool:
        return self.used - self.live > 2 * self.live + FEWEST

    def shrink(self) -> None:
        """Forget the items that have left, and give their memory back."""
        self._drop_gone()
        rows = max(FEWEST, 2 * self.live)
        if rows < len(self.frame):
            self.frame = self.frame.iloc[:rows].copy()

    def _drop_gone(self) -> None:
        state = self["state"]
        kept = self.frame.iloc[np.flatnonzero(state != GONE)]
        blanks = self._blanks(len(self.frame) - len(kept))
        self.frame = self._pandas.concat([kept, blanks], ignore_index=True)
        self.used = self.live
        for name, texts in self.texts.items():
            self.write(name, np.arange(self.used), texts.keep(self[name]))

    def __getitem__(self, name: str) -> Array:
        """A column of all rows in use: not to be kept, since it changes with the frame."""
        array: Array = self.frame[name].to_numpy()
        return array[: self.used]

    def write(self, name: str, positions: Ints | slice, values: Any) -> None:
        """Set a column of some items."""
        self.frame.iloc[positions, self._place[name]] = values

    # -- which items ------------------------------------------------------------------------------
    def stored(self) -> Ints:
        return np.flatnonzero(self["state"] != GONE)

    def visible(self) -> Ints:
        return np.flatnonzero(self["state"] == VISIBLE)

    def only(self, positions: Ints, state: int) -> Ints:
        """Those of some items that are visible, or hidden."""
        found: Ints = positions[self["state"][positions] == state]
        return found

    def find(self, keys: Keys) -> Ints:
        """The position of each key, -1 for those whose items have gone."""
        known = self["key"]
        if not known.size:
            return np.full(keys.size, -1, np.int64)
        places = np.minimum(np.searchsorted(known, keys), known.size - 1)
        here = (known[places] == keys) & (self["state"][places] != GONE)
        return np.where(here, places, -1)

    # -- coming, hiding and leaving ---------------------------------------------------------------
    def add(self, count: int, columns: Mapping[str, Any]) -> tuple[Ints, Keys]:
        """Append items, for which there is room; returns their positions and keys."""
        keys = np.arange(self._counter, self._counter + count, dtype=np.uint64)
        keys |= np.uint64(self._origin)
        where = slice(self.used, self.used + count)
        self.write("key", where, keys)
        for name, values in columns.items():
            self.write(name, where, values)
        positions = np.arange(self.used, self.used + count)
        self._counter += count
        self.used += count
        self.live += count
        self.nbytes += int(self["nbytes"][positions].sum())
        return positions, keys

    def hide(self, positions: Ints) -> None:
        """Visible items are hidden."""
        self.write("state", positions, HIDDEN)
        self.hidden += positions.size
        self.hidden_nbytes += int(self["nbytes"][positions].sum())

    def show(self, positions: Ints) -> None:
        """Hidden items are visible again."""
        self.write("state", positions, VISIBLE)
        self.hidden -= positions.size
        self.hidden_nbytes -= int(self["nbytes"][positions].sum())

    def remove(self, positions: Ints) -> None:
        """Items leave, visible or hidden."""
        hidden = self.only(positions, HIDDEN)
        self.hidden -= hidden.size
        self.hidden_nbytes -= int(self["nbytes"][hidden].sum())
        self.live -= positions.size
        self.nbytes -= int(self["nbytes"][positions].sum())
        self.write("state", positions, GONE)

    def resize(self, positions: Ints, gained: Ints) -> None:
        """The payload of items has grown, or shrunk, by so many bytes each."""
        self.write("nbytes", positions, self["nbytes"][positions] + gained)
        self.nbytes += int(gained.sum())
        self.hidden_nbytes += int(gained[self["state"][positions] == HIDDEN].sum())

    # -- fields -----------------------------------------------------------------------------------
    def encoded(self, name: str, value: FieldValue) -> Any:
        """A checked value as the frame keeps it: one for all, or one per item."""
        if name in self.texts:
            code = self.texts[name].code
            if isinstance(value, np.ndarray):
                return np.array([code(text) for text in value.tolist()], np.int32)
            return np.int32(code(value))
        dtype, absent = self._blank[name]
        if isinstance(value, np.ndarray):
            return value.astype(dtype)
        return dtype(absent if value is None else value)

    def column(self, name: str, positions: Ints) -> Array:
        """A field of some items, absent values as their markers."""
        if name == "seq":
            counters = self["key"][positions] & np.uint64((1 << COUNTER_BITS) - 1)
            return counters.astype(np.int64)
        return self[name][positions]

    def absent(self, name: str, values: Array) -> NDArray[np.bool_]:
        """Which values of a field are the marker of an absent one."""
        if name == "seq" or name in MADE:
            return np.zeros(values.size, np.bool_)
        if self.types[name] == "float":
            return np.isnan(values)
        absent: NDArray[np.bool_] = values == self._blank[name][1]
        return absent

    def mask(self, query: Query, positions: Ints) -> NDArray[np.bool_]:
        """Which of some items a query holds for: it reads fields, never payload."""
        return mask(query, lambda name: self._values(name, positions), positions.size)

    def _values(self, name: str, positions: Ints) -> FieldValues:
        values = self.column(name, positions)
        if name in self.texts:
            return FieldValues(values, None, self.texts[name].codes)
        if values.dtype.kind == "f":
            return FieldValues(values)
        absent = self.absent(name, values)
        return FieldValues(values == 1 if self.types[name] == "bool" else values, absent)

    def read(self, name: str, positions: Ints) -> Array:
        """A field as batches show it: None or NaN where absent, -1 for a version."""
        values = self.column(name, positions)
        kind = self.types[name]
        if kind == "str":
            names: Array = np.array([*self.texts[name].names, None], object)
            return names[values]
        if kind == "float" or name == "version" or name in MADE or name == "seq":
            return values
        absent = self.absent(name, values)
        present = values == 1 if kind == "bool" else values
        if not absent.any():
            return present
        result = present.astype(object)
        result[absent] = None
        return result

    def plain(self, name: str, positions: Ints) -> list[Any]:
        """A field as Python objects, None where absent."""
        values: list[Any] = self.read(name, positions).tolist()
        absent = self.absent(name, self.column(name, positions)).tolist()
        return [None if gone else value for value, gone in zip(values, absent, strict=True)]

    def seen(self) -> pd.DataFrame:
        """The stored items as people want to see them: a copy, by key."""
        positions = self.stored()
        index = self._pandas.Index(self["key"][positions], name="key")
        columns: dict[str, Any] = {}
        for name, kind in self.types.items():
            if name == "key":
                continue
            if kind in _SEEN and name not in MADE and name != "seq":
                plain = self.plain(name, positions)
                columns[name] = self._pandas.Series(plain, index, dtype=_SEEN[kind])
            else:
                columns[name] = self.read(name, positions)
        columns["deliveries"] = self["deliveries"][positions] + 1
        columns["hidden"] = self["state"][positions] == HIDDEN
        frame: pd.DataFrame = self._pandas.DataFrame(columns, index=index)
        return frame

    def partition_keys(self, by: Sequence[str], positions: Ints) -> list[tuple[Any, ...]]:
        """The values of the fields that partitions go by, of each item."""
        return list(zip(*(self.plain(name, positions) for name in by), strict=True))
