"""Compiling a query to NumPy: one bool per item."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from recollect.errors import QueryError
from recollect.rules.query.expression import And, Compare, IsIn, Not, Op, Or, Query, Scalar
from recollect.rules.query.field_types import FieldType, bind

Mask: TypeAlias = NDArray[np.bool_]

_COMPARE: dict[Op, Callable[[Any, Any], Any]] = {
    "==": operator.eq, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_TYPES: dict[str, FieldType] = {"i": "int", "u": "int", "f": "float", "b": "bool"}


@dataclass(frozen=True)
class FieldValues:
    """A field's values, one per item.

    `values` has an integer, float or bool dtype, the type of the field. With `categories` the
    field is text: `values` are codes, and a negative code is absent. `absent` marks absent
    values of the other types; NaN is absent without a mark.
    """

    values: NDArray[Any]
    absent: Mask | None = None
    categories: Mapping[str, int] | None = None

    @property
    def type(self) -> FieldType:
        return "str" if self.categories is not None else _TYPES[self.values.dtype.kind]


def mask(query: Query, resolve: Callable[[str], FieldValues], n: int) -> Mask:
    """Which of `n` items `query` holds for. `resolve` is asked once per field.

    >>> import numpy as np, recollect as rc
    >>> from recollect.rules.query import FieldValues, mask
    >>> columns = {"score": FieldValues(np.array([0.9, np.nan, 0.1]))}
    >>> mask(rc.field("score") > 0.5, columns.__getitem__, 3)
    array([ True, False, False])
    """
    return _mask(query, cache(resolve), n)


def _mask(query: Query, resolve: Callable[[str], FieldValues], n: int) -> Mask:
    match query:
        case Not(part):
            return ~_mask(part, resolve, n)
        case And(parts) | Or(parts):
            merge = np.logical_and if isinstance(query, And) else np.logical_or
            result = _mask(parts[0], resolve, n)
            for part in parts[1:]:
                merge(result, _mask(part, resolve, n), out=result)
            return result
        case Compare(name, "!=", value):
            return ~_mask(Compare(name, "==", value), resolve, n)
        case Compare(name, _, None):
            return _absent(resolve(name))
        case Compare(name) | IsIn(name):
            # Binding again costs microseconds, and makes every comparison below exact.
            column = resolve(name)
            hits = _hits(bind(query, {name: column.type}), column, n)
            return hits if column.absent is None else hits & ~column.absent
    raise QueryError(f"expected a query, got {query!r}")


def _hits(query: Query, column: FieldValues, n: int) -> Mask:
    values = column.values
    if values.dtype.kind == "f":
        values = values.astype(np.float64, copy=False)  # else 0.8 is rounded to float32
    if isinstance(query, Compare):
        operands = _operands((query.value,), column)  # type: ignore[arg-type]  # None is handled
        # NumPy compares a Python int exactly with any integer array, also out of its range.
        return _COMPARE[query.op](values, operands[0]) if operands else np.zeros(n, bool)
    assert isinstance(query, IsIn)
    operands = _operands(query.values, column)
    if values.dtype.kind in "iu":
        range_ = np.iinfo(values.dtype)
        operands = [value for value in operands if range_.min <= value <= range_.max]
    return np.isin(values, np.array(operands, dtype=values.dtype))


def _operands(values: tuple[Scalar, ...], column: FieldValues) -> list[Any]:
    """The values, as codes where the field is text; a text nobody stored has no code."""
    if column.categories is None:
        return list(values)
    codes = column.categories
    return [codes[value] for value in values if value in codes]  # type: ignore[index]


def _absent(column: FieldValues) -> Mask:
    if column.categories is not None:
        absent: Mask = column.values < 0
    elif column.values.dtype.kind == "f":
        absent = np.isnan(column.values)
    else:
        absent = np.zeros(len(column.values), bool)
    return absent if column.absent is None else absent | column.absent
