"""The types of fields, and the check of a query against them, which makes its values exact.

A bound query compares a field only with values of the field's own type, so that a storage never
rounds and never overflows: an int field meets ints from -2**63 to 2**64 - 1, a float field meets
floats. A value that the type can't hold moves to its neighbour, and the operator with it:
`version >= 2.5` becomes `version > 2`; `version == 2.5` becomes `version in ()`, which never holds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, TypeAlias

from recollect.errors import QueryError
from recollect.rules.query.expression import And, Compare, IsIn, Not, Op, Or, Query, Scalar

FieldType: TypeAlias = Literal["int", "float", "bool", "str"]

_INT_MIN, _INT_MAX = -(2**63), 2**64 - 1

# The operator after the value moved to the nearest one below, or above, that the type holds.
_FROM_BELOW: dict[Op, Op] = {">": ">", ">=": ">", "<": "<=", "<=": "<="}
_FROM_ABOVE: dict[Op, Op] = {">": ">=", ">=": ">=", "<": "<", "<=": "<"}


def bind(query: Query, fields: Mapping[str, FieldType]) -> Query:
    """`query` with values in the types of `fields`; an error names what does not fit.

    >>> import recollect as rc
    >>> from recollect.rules.query import bind
    >>> str(bind(rc.parse("version > 2.5 and score < 1"), {"version": "int", "score": "float"}))
    'version > 2 and score < 1.0'
    """
    match query:
        case Compare(name, op, value):
            kind = _type_of(name, fields)
            return query if value is None else _bind_compare(name, kind, op, value)
        case IsIn(name, values):
            kind = _type_of(name, fields)
            near = [(value, _nearest(name, kind, value)) for value in values]
            return IsIn(name, tuple(n for value, n in near if n == value))
        case Not(part):
            return Not(bind(part, fields))
        case And(parts) | Or(parts):
            return type(query)(tuple(bind(part, fields) for part in parts))
    raise QueryError(f"expected a query, got {query!r}")


def _bind_compare(name: str, kind: FieldType, op: Op, value: Scalar) -> Query:
    near = _nearest(name, kind, value)
    if kind in ("bool", "str") and op not in ("==", "!="):
        raise QueryError(f"{name}: a {kind} field has no order; use == != or isin, not {op}")
    if near == value:
        return Compare(name, op, near)
    if op == "==":
        return IsIn(name, ())
    if op == "!=":
        return Not(IsIn(name, ()))
    moved_down = near < value  # type: ignore[operator]  # only numbers move
    return Compare(name, (_FROM_BELOW if moved_down else _FROM_ABOVE)[op], near)


def _nearest(name: str, kind: FieldType, value: Scalar) -> Scalar:
    """The value itself, or the closest on one side of it, in the type of the field."""
    got = type(value).__name__
    if kind == "int" and got in ("int", "float"):
        return math.floor(max(_INT_MIN, min(_INT_MAX, value)))  # type: ignore[arg-type]
    if kind == "float" and got == "int":
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf  # type: ignore[operator]
    if kind != got:
        raise QueryError(f"{name}: expected {kind}, got {value!r} ({got})")
    return value


def _type_of(name: str, fields: Mapping[str, FieldType]) -> FieldType:
    if name not in fields:
        raise QueryError(f"unknown field {name!r}; there are {', '.join(fields) or 'none'}")
    return fields[name]
