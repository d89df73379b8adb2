"""Fields: the scalars of an item that rules and queries may use, and their arrays by slot.

A field that nobody set has no array. Text is kept as codes into a list of categories. An
absent value has a marker of its own in each type, and no user ever sees it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from recollect.errors import InvalidValue
from recollect.query import FieldType, FieldValues

Array = NDArray[Any]

BUILT_IN: dict[str, FieldType] = {
    "key": "int",
    "seq": "int",
    "priority": "float",
    "times_sampled": "int",
    "task": "str",
    "status": "str",
    "version": "int",
    "inserted_at": "float",
    "rows": "int",
    "nbytes": "int",
}
SETTABLE = ("priority", "task", "status", "version")  # and tags
RESERVED = {*BUILT_IN, "keys", "probability", "weights", "row_offsets", "row_starts", "deliveries"}
RESERVED |= {"table_size", "lease", "any", "all", "not", "field"}

ABSENT_INT = -(1 << 63)
ABSENT_VERSION = -1

_DTYPES: dict[FieldType, Any] = {
    "int": np.int64,
    "float": np.float64,
    "bool": np.int8,
    "str": np.int32,
}
_TAG_TYPES: dict[Any, FieldType] = {
    int: "int", float: "float", bool: "bool", str: "str",
    "int": "int", "float": "float", "bool": "bool", "str": "str", "int64": "int",
    "float64": "float",
}  # fmt: skip

FieldValue = None | int | float | bool | str | Array  # one for all items, or one per item


def parse_tags(tags: Mapping[str, Any] | None) -> dict[str, FieldType]:
    """The types of the tags that a user declares."""
    parsed: dict[str, FieldType] = {}
    for name, kind in (tags or {}).items():
        if not isinstance(name, str) or not name.isidentifier() or name.startswith("_"):
            raise InvalidValue(f"tags: {name!r} is not a name of letters, digits and underscores")
        if name in RESERVED:
            raise InvalidValue(f"tags: the name {name!r} is taken; choose another")
        if kind not in _TAG_TYPES:
            raise InvalidValue(f"tags.{name}: expected int, float, bool or str, got {kind!r}")
        parsed[name] = _TAG_TYPES[kind]
    return parsed


def check_value(name: str, kind: FieldType, value: Any, items: int) -> FieldValue:
    """A field's value for `items` items: one scalar, or an array of one entry per item."""
    if isinstance(value, list | tuple | np.ndarray) and not (
        isinstance(value, np.ndarray) and value.ndim == 0
    ):
        return _check_array(name, kind, value, items)
    if isinstance(value, np.generic | np.ndarray):
        value = value.item()
    if value is None:
        return None
    fits = {
        "int": isinstance(value, int) and not isinstance(value, bool),
        "float": isinstance(value, int | float) and not isinstance(value, bool),
        "bool": isinstance(value, bool),
        "str": isinstance(value, str),
    }[kind]
    if not fits:
        raise InvalidValue(f"{name}: expected {_said(kind)}, got {value!r}")
    if kind == "int":
        _check_range(name, value, value)
    if kind == "float":
        value = float(value)
        return None if math.isnan(value) else value
    result: FieldValue = value
    return result


def _check_array(name: str, kind: FieldType, value: Any, items: int) -> Array:
    if kind == "str" or (isinstance(value, list | tuple) and any(v is None for v in value)):
        scalars = [check_value(name, kind, v, items) for v in np.asarray(value, object).ravel()]
        array: Array = np.empty(len(scalars), object)
        array[:] = scalars
        if kind != "str":
            absent = absent_of(name, kind)
            array = np.array([absent if v is None else v for v in scalars], _DTYPES[kind])
    else:
        array = np.asarray(value)
        kinds = {"int": "iu", "float": "iuf", "bool": "b"}[kind]
        if array.dtype.kind not in kinds and array.size:
            raise InvalidValue(
                f"{name}: expected {_said(kind)} per item, got an array of {array.dtype}"
            )
        if kind == "int" and array.size:
            _check_range(name, int(array.min()), int(array.max()))
        array = array.astype(_DTYPES[kind])
    if array.shape != (items,):
        raise InvalidValue(
            f"{name}: expected one value, or one for each of {items} items, got shape {array.shape}"
        )
    return array


def _check_range(name: str, low: int, high: int) -> None:
    least = 0 if name == "version" else ABSENT_INT + 1
    if low < least or high >= 1 << 63:
        raise InvalidValue(
            f"{name}: expected whole numbers from {least} to 2**63 - 1, got "
            f"{low if low < least else high}"
        )


def _said(kind: FieldType) -> str:
    return {"int": "a whole number", "float": "a number", "bool": "True or False", "str": "text"}[
        kind
    ]


def absent_of(name: str, kind: FieldType) -> Any:
    """What marks an absent value in a field's array."""
    if kind == "int":
        return ABSENT_VERSION if name == "version" else ABSENT_INT
    return {"float": math.nan, "bool": -1, "str": -1}[kind]


class FieldArray:
    """One field of all items, by slot."""

    def __init__(self, name: str, kind: FieldType, size: int) -> None:
        self.name = name
        self.kind = kind
        self.absent = absent_of(name, kind)
        self.array: Array = np.full(size, self.absent, _DTYPES[kind])
        self.names: list[str] = []
        self.codes: dict[str, int] = {}

    def resize(self, size: int) -> None:
        grown = np.full(size, self.absent, self.array.dtype)
        grown[: self.array.size] = self.array[:size]
        self.array = grown

    def write(self, slots: Array, value: FieldValue) -> None:
        """Set the field of items; the caller has checked the value."""
        if self.kind == "str":
            self._forget_unused(slots.size)
            if isinstance(value, np.ndarray):
                self.array[slots] = [self._code(text) for text in value]
            else:
                self.array[slots] = self._code(value)
        else:
            self.array[slots] = self.absent if value is None else value

    def _code(self, text: Any) -> int:
        if text is None:
            return -1
        code = self.codes.get(text)
        if code is None:
            code = self.codes[text] = len(self.names)
            self.names.append(text)
        return code

    def _forget_unused(self, more: int) -> None:
        """Number the categories anew when most of them belong to items that have gone."""
        if len(self.names) + more <= 2 * self.array.size + 1024:
            return
        used, codes = np.unique(self.array, return_inverse=True)
        first = int(used[0] == -1)
        self.names = [self.names[code] for code in used[first:]]
        self.codes = {text: code for code, text in enumerate(self.names)}
        self.array = (codes - first).astype(np.int32)

    def read(self, slots: Array) -> Array:
        """The values as users see them: None or NaN where absent, -1 for a version."""
        values = self.array[slots]
        if self.kind == "str":
            names: Array = np.array([*self.names, None], object)
            return names[values]
        if self.kind == "bool" or (self.kind == "int" and self.name != "version"):
            absent = values == self.absent
            if absent.any():
                present = values.astype(bool) if self.kind == "bool" else values
                result = present.astype(object)
                result[absent] = None
                return result
            return values.astype(bool) if self.kind == "bool" else values
        return values

    def values(self, slots: Array) -> FieldValues:
        """The values as queries want them."""
        values = self.array[slots]
        if self.kind == "str":
            return FieldValues(values, None, self.codes)
        if self.kind == "float":
            return FieldValues(values)
        absent = values == self.absent
        if self.kind == "bool":
            values = values == 1
        return FieldValues(values, absent)


def check_priority(value: Any, items: int, alpha: float) -> NDArray[np.float64]:
    """Priorities as float64, one for all or one per item; NaN, infinite and negative refused."""
    array = np.asarray(value)
    if array.dtype.kind not in "fiu" and array.size:
        raise InvalidValue(f"priority: expected numbers, got {value!r}")
    array = np.ascontiguousarray(array, dtype=np.float64).reshape(-1 if array.ndim == 0 else array.shape)
    if array.shape not in ((items,), (1,)) or (array.size == 1 and np.ndim(value) and items != 1):
        raise InvalidValue(
            f"priority: expected one value, or one for each of {items} items, got shape "
            f"{np.shape(value)}"
        )
    if array.size == 0:
        return array
    low, high = float(array.min()), float(array.max())
    if not (low >= 0.0 and high < math.inf):
        bad = array[~((array >= 0.0) & (array < math.inf))][0]
        raise InvalidValue(f"priority: expected finite numbers of 0 or more, got {bad!r}")
    if high > 1e100 and high**alpha > 1e150:
        raise InvalidValue(f"priority: {high:g} is too large; keep priority ** alpha below 1e150")
    return array


OrderBy = Literal["seq", "field"]
Names = Sequence[str]
