"""Compiling a query to SQL: a condition whose values are bound, never written into its text.

SQL knows three truth values and queries know two, so a negation is pushed down to the
comparisons, and there it says what an absent value means.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import sqlalchemy as sa

from recollect.errors import QueryError
from recollect.rules.query import And, Compare, IsIn, Not, Or, Query
from recollect.storage.sql.dialects import Dialect
from recollect.storage.sql.escapes import to_text

LEAST, MOST = -(1 << 63), (1 << 63) - 1  # of a column of whole numbers

_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_OPPOSITE = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}


def condition(query: Query, columns: Mapping[str, Any], dialect: Dialect) -> Any:
    """The items that a bound query holds for."""
    return _compiled(query, columns, dialect, negated=False)


def _compiled(query: Query, columns: Mapping[str, Any], dialect: Dialect, *, negated: bool) -> Any:
    match query:
        case Not(part):
            return _compiled(part, columns, dialect, negated=not negated)
        case And(parts) | Or(parts):
            conditions = [_compiled(p, columns, dialect, negated=negated) for p in parts]
            both = isinstance(query, And) is not negated
            return sa.and_(*conditions) if both else sa.or_(*conditions)
        case Compare(name, op, None):
            absent = (op == "==") is not negated
            return columns[name].is_(None) if absent else columns[name].is_not(None)
        case Compare(name, "!=", value):
            return _compiled(Compare(name, "==", value), columns, dialect, negated=not negated)
        case Compare(name, op, value):
            return _comparison(columns[name], op, value, dialect, negated)
        case IsIn(name, values):
            return _among(columns[name], values, dialect, negated)
    raise QueryError(f"expected a query, got {query!r}")


def _comparison(column: Any, op: str, value: Any, dialect: Dialect, negated: bool) -> Any:
    if isinstance(value, str):
        value = to_text(value)
    if isinstance(value, int) and not LEAST <= value <= MOST:
        holds = op in ("<", "<=") if value > MOST else op in (">", ">=")
        if not holds:
            return sa.true() if negated else sa.false()
        return column.is_(None) if negated else column.is_not(None)
    if not negated:
        return dialect.equals(column, value) if op == "==" else _COMPARE[op](column, value)
    if op == "==":
        return column.is_distinct_from(value)
    return sa.or_(_COMPARE[_OPPOSITE[op]](column, value), column.is_(None))


def _among(column: Any, values: tuple[Any, ...], dialect: Dialect, negated: bool) -> Any:
    given = [to_text(value) if isinstance(value, str) else value for value in values]
    given = [v for v in given if not isinstance(v, int) or LEAST <= v <= MOST]
    if not given:
        return sa.true() if negated else sa.false()
    if len(given) == 1:
        return _comparison(column, "==", given[0], dialect, negated)
    inside = dialect.among(column, given)
    return sa.or_(sa.not_(inside), column.is_(None)) if negated else inside
