"""Fields: the scalars of an item that rules and queries may use, and their arrays by slot.

A field that nobody set has no array. Text is kept as codes into a list of categories. An
absent value has a marker of its own in each type, and no user ever sees it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recollect.base.arrays import Array
from recollect.errors import InvalidValue, shown
from recollect.kernels.load import load
from recollect.rules.query import FieldType, FieldValues
from recollect.rules.query.expression import KEYWORDS

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
WEIGHTS = ("priority", "times_sampled", "version", "rows", "nbytes")  # may weigh items, and tags
RESERVED = {*BUILT_IN, "keys", "probability", "weights", "row_offsets", "row_starts", "deliveries"}
RESERVED |= {"table_size", "lease", "any", "all", "not", "field"}
# What calls that take fields by name call their own arguments.
RESERVED |= {"self", "columns", "shared", "rows_per_item", "timeout", "request"}

LARGEST_WEIGHT = 150.0  # the power of ten that priority ** alpha may reach
ABSENT_INT = -(1 << 63)
ABSENT_VERSION = -1

DTYPES: dict[FieldType, Any] = {
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
    if tags is not None and not isinstance(tags, Mapping):
        raise InvalidValue(
            f"tags: expected names and types such as {{'score': float}}, got {shown(tags)}"
        )
    parsed: dict[str, FieldType] = {}
    for name, kind in (tags or {}).items():
        if not isinstance(name, str) or not name.isidentifier() or name.startswith("_"):
            raise InvalidValue(f"tags: {name!r} is not a name of letters, digits and underscores")
        if name in RESERVED or name.lower() in KEYWORDS:
            raise InvalidValue(f"tags: the name {name!r} is taken; choose another")
        known = [t for given, t in _TAG_TYPES.items() if given is kind or given == kind]
        if not known:
            raise InvalidValue(f"tags.{name}: expected int, float, bool or str, got {shown(kind)}")
        parsed[name] = known[0]
    return parsed


def check_value(name: str, kind: FieldType, value: Any, items: int) -> FieldValue:
    """A field's value for `items` items: one scalar, or an array of one entry per item.

    With a negative number of items it must be one scalar.
    """
    several = isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim)
    if several and items >= 0:
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
        raise InvalidValue(f"{name}: expected {_said(kind)}, got {shown(value)}")
    if kind == "int":
        _check_range(name, value, value)
    if kind == "float":
        value = float(value)
        return None if math.isnan(value) else value
    result: FieldValue = value
    return result


def _check_array(name: str, kind: FieldType, value: Any, items: int) -> Array:
    if isinstance(value, np.ndarray) and value.dtype.kind not in "OUS":
        array = _check_numbers(name, kind, value)
    else:
        cells = list(value)
        scalars = [check_value(name, kind, cell, -1) for cell in cells]
        if kind == "str":
            array = np.empty(len(scalars), object)
            array[:] = scalars
        else:
            absent = absent_of(name, kind)
            array = np.array([absent if v is None else v for v in scalars], DTYPES[kind])
    if array.shape != (items,):
        raise InvalidValue(
            f"{name}: expected one value, or one for each of {items} items, got "
            + (f"{array.size} values" if array.ndim == 1 else f"an array of shape {array.shape}")
        )
    return array


def _check_numbers(name: str, kind: FieldType, array: Array) -> Array:
    kinds = {"int": "iu", "float": "iuf", "bool": "b", "str": ""}[kind]
    if array.dtype.kind not in kinds:
        raise InvalidValue(
            f"{name}: expected {_said(kind)} per item, got an array of {array.dtype}"
        )
    if kind == "int" and array.size:
        _check_range(name, int(array.min()), int(array.max()))
    return array.astype(DTYPES[kind])


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


class Texts:
    """The codes of one text field."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.codes: dict[str, int] = {}

    def code(self, text: Any) -> int:
        if text is None:
            return -1
        code = self.codes.get(text)
        if code is None:
            code = self.codes[text] = len(self.names)
            self.names.append(text)
        return code

    def keep(self, used: Array) -> Array:
        """Forget the texts that none of these codes stands for; returns the new codes."""
        kept, codes = np.unique(used, return_inverse=True)
        absent = int(kept.size > 0 and kept[0] == -1)
        self.names = [self.names[code] for code in kept[absent:].tolist()]
        self.codes = {text: code for code, text in enumerate(self.names)}
        return (codes - absent).astype(np.int32)


class FieldArray(Texts):
    """One field of all items, by slot."""

    def __init__(self, name: str, kind: FieldType, size: int) -> None:
        super().__init__()
        self.name = name
        self.kind = kind
        self.absent = absent_of(name, kind)
        self.array: Array = np.full(size, self.absent, DTYPES[kind])
        self._texts: tuple[list[str], Array] = ([], np.array([None], object))

    def resized(self, size: int) -> Array:
        """The values by slot, for so many slots."""
        grown = np.full(size, self.absent, self.array.dtype)
        grown[: self.array.size] = self.array[:size]
        return grown

    def write(self, slots: Array, value: FieldValue) -> None:
        """Set the field of items; the caller has checked the value."""
        if self.kind == "str":
            self.make_room(slots.size)
            if isinstance(value, np.ndarray):
                self.array[slots] = [self.code(text) for text in value]
            else:
                self.array[slots] = self.code(value)
        else:
            self.array[slots] = self.absent if value is None else value

    def make_room(self, more: int) -> None:
        """Before texts come: number them anew when most belong to items that have gone."""
        if len(self.names) + more > 2 * self.array.size + 1024:
            self.array = self.keep(self.array)

    def plain(self, value: FieldValue, count: int) -> list[Any]:
        """Checked values as Python objects, one per item, None where absent."""
        if not isinstance(value, np.ndarray):
            return [value] * count
        plain: list[Any] = value.tolist()
        if self.kind == "str":
            return plain
        if self.kind == "bool":
            return [None if v == self.absent else bool(v) for v in plain]
        return [None if v == self.absent or v != v else v for v in plain]

    def read(self, slots: Array) -> Array:
        """The values as users see them: None or NaN where absent, -1 for a version."""
        return self.shown(self.array[slots], self.names)

    def later(self, slots: Array) -> Callable[[], Array]:
        """The same, when somebody asks: what it takes from the field is taken now.

        A list of names is only added to, or replaced by another.
        """
        values, names = self.array[slots], self.names
        return lambda: self.shown(values, names)

    def shown(self, values: Array, names: list[str]) -> Array:
        """Stored values as users see them; texts are codes into the names."""
        if self.kind == "str":
            of, texts = self._texts  # made again when there are other names, or more
            if of is not names or texts.size != len(names) + 1:
                texts = np.array([*names, None], object)
                self._texts = (names, texts)
            return texts[values]
        if self.kind == "bool" or (self.kind == "int" and self.name != "version"):
            absent = values == self.absent
            if np.count_nonzero(absent):
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
    if type(value) is np.ndarray and value.dtype == np.float64 and value.shape == (items,):
        array = np.ascontiguousarray(value)
    else:
        array = _priorities(value, items)
    if array.size == 0:
        return array
    low, high = load().items.range_of(array)
    if not (low >= 0.0 and high < math.inf):
        bad = array[~((array >= 0.0) & (array < math.inf))][0]
        raise InvalidValue(f"priority: expected finite numbers of 0 or more, got {bad:g}")
    if high > 1.0:
        check_weight(high, alpha)
    return array


def check_weight(value: float, alpha: float, name: str = "priority") -> None:
    """Refuse a priority, or a value of another field, whose weight could not be added up."""
    if value > 1.0 and alpha * math.log10(value) > LARGEST_WEIGHT:
        raise InvalidValue(
            f"{name}: {value:g} is too large for alpha {alpha:g}; keep {name} ** alpha "
            f"below 1e{LARGEST_WEIGHT:.0f}"
        )


def check_weighed(role: str, name: str, alpha: float) -> None:
    """Refuse to weigh by a field that only tells items apart, or by too high a power of one."""
    if name in BUILT_IN and name not in WEIGHTS:
        raise InvalidValue(
            f"{role}: {name!r} is no weight; weigh by {', '.join(WEIGHTS)} or a tag, or order by "
            f"it with rc.Smallest({name!r}) or rc.Largest({name!r})"
        )
    if name in BUILT_IN:
        check_weight(2.0**63, alpha, name)


def check_weights(fields: Mapping[str, FieldValue], alphas: Mapping[str, float]) -> None:
    """Refuse checked values that items cannot be weighed by; an absent one weighs nothing.

    `alphas` has the fields that items are weighed by, and the power that each is raised to.
    """
    for name, alpha in alphas.items():
        value = fields.get(name)
        if value is None:
            continue
        values = np.atleast_1d(np.asarray(value))
        kind: FieldType = "bool" if values.dtype.itemsize == 1 else "int"
        absent = math.nan if values.dtype.kind == "f" else absent_of(name, kind)
        wrong = values[((values < 0) & (values != absent)) | (values == math.inf)]
        if wrong.size:
            raise InvalidValue(
                f"{name}: items are weighed by it, so expected finite numbers of 0 or more, got "
                f"{wrong[0]:g}"
            )
        check_weight(float(values[values > 0].max(initial=0)), alpha, name)


def unfit_weights(
    alphas: Mapping[str, float], kinds: Mapping[str, FieldType]
) -> list[dict[str, dict[str, float]]]:
    """Queries that items meet which cannot be weighed by these fields."""
    return [
        {name: {verb: bound}}
        for name, alpha in alphas.items()
        if kinds[name] != "bool"
        for verb, bound in (("lt", 0.0), ("gt", 10.0 ** (LARGEST_WEIGHT / alpha)))
    ]


def _priorities(value: Any, items: int) -> NDArray[np.float64]:
    if isinstance(value, str | bytes) or value is None or isinstance(value, bool):
        raise InvalidValue(f"priority: expected numbers, got {shown(value)}")
    try:
        array = np.asarray(value)
    except ValueError:
        raise InvalidValue(
            f"priority: expected a flat list of numbers, got {shown(value)}"
        ) from None
    if array.dtype.kind not in "fiu" and array.size:
        raise InvalidValue(f"priority: expected numbers, got {shown(value)}")
    if array.ndim == 0:
        return np.array([float(array)])
    if array.shape != (items,):
        raise InvalidValue(
            f"priority: expected one value, or one for each of {items} items, got shape "
            f"{array.shape}"
        )
    return np.ascontiguousarray(array, dtype=np.float64)
