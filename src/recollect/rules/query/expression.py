"""The expression tree of a query, and `field`, which builds it with Python's operators.

There are five nodes: Compare, IsIn, And, Or, Not. Each knows its text and its mapping; `parser.py`
and `mapping.py` read those two forms back. The text is also a node's
identity: two queries are equal when they read the same, which tells 1 from 1.0 and from True.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, NoReturn, TypeAlias

import numpy as np

from recollect.errors import QueryError

Scalar: TypeAlias = bool | int | float | str
Op: TypeAlias = Literal["==", "!=", "<", "<=", ">", ">="]

# Bounds that keep every walk over a tree, and every number's text, within Python's own limits.
MAX_DEPTH = 64
MAX_DIGITS = 600

NAME = re.compile(r"[^\W\d]\w*(?:\.\w+)*")
KEYWORDS = frozenset(
    ("and", "or", "not", "in", "between", "is", "absent", "null", "true", "false", "inf")
)
OPERATOR_NAMES: dict[Op, str] = {
    "==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge",
}  # fmt: skip
RESERVED = frozenset({"any", "all", "not", "field"})  # keys with a meaning in a mapping


def as_scalar(value: object) -> Scalar:
    """The plain Python value of `value`; an error for what no field can hold."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)  # the content, also of an enum's member
    if isinstance(value, int):
        if abs(value) >= 10**MAX_DIGITS:
            raise QueryError(f"a number may have at most {MAX_DIGITS} digits")
        return int(value)
    if isinstance(value, float):
        if math.isnan(value):
            raise QueryError("NaN equals nothing; compare with None to find absent values")
        return float(value)
    raise QueryError(
        f"a field compares with a number, a str, a bool or None, got {type(value).__name__}"
    )


class Query:
    """A condition on items. Combine queries with `&`, `|` and `~`.

    >>> import recollect as rc
    >>> query = (rc.field("task") == "math") & ~(rc.field("score") < 0.8)
    >>> str(query)
    "task = 'math' and not score < 0.8"
    >>> rc.parse(str(query)) == query
    True
    """

    def __and__(self, other: Query) -> Query:
        return And((self, _checked(other)))

    def __or__(self, other: Query) -> Query:
        return Or((self, _checked(other)))

    def __invert__(self) -> Query:
        return Not(self)

    def __bool__(self) -> NoReturn:
        raise QueryError(
            "a query is neither true nor false: combine queries with & | ~ instead of and, or, "
            "not, and write a < field < b as field.between(a, b) or as two comparisons"
        )

    def __eq__(self, other: object) -> bool:
        return str(self) == str(other) if isinstance(other, Query) else NotImplemented

    def __hash__(self) -> int:
        return hash(str(self))

    def __str__(self) -> str:
        return self._text

    @cached_property
    def _text(self) -> str:
        raise NotImplementedError

    @cached_property
    def _depth(self) -> int:
        return 1 + max((part._depth for part in self._parts()), default=-1)

    def _parts(self) -> tuple[Query, ...]:
        return ()

    def _check_depth(self) -> None:
        if self._depth > MAX_DEPTH:
            raise QueryError(f"a query may be nested {MAX_DEPTH} levels deep, not more")

    def to_mapping(self) -> dict[str, Any]:
        """The mapping that `from_mapping` reads back, of plain values only."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Compare(Query):
    """`field op value`. The value None, with `==` and `!=` only, stands for 'absent'."""

    field: str
    op: Op
    value: Scalar | None

    def __post_init__(self) -> None:
        if self.value is not None:
            object.__setattr__(self, "value", as_scalar(self.value))
        elif self.op not in ("==", "!="):
            raise QueryError(f"None has no order; use == or != in place of {self.op}")

    @cached_property
    def _text(self) -> str:
        if self.value is None:
            return f"{_name_text(self.field)} is {'' if self.op == '==' else 'not '}absent"
        op = "=" if self.op == "==" else self.op
        return f"{_name_text(self.field)} {op} {_value_text(self.value)}"

    def to_mapping(self) -> dict[str, Any]:
        if self.value is None:
            return _entry(self.field, "absent", self.op == "==")
        return _entry(self.field, OPERATOR_NAMES[self.op], self.value)


@dataclass(frozen=True, eq=False)
class IsIn(Query):
    """The field equals one of `values`. Without values it never holds."""

    field: str
    values: tuple[Scalar, ...]

    def __post_init__(self) -> None:
        if any(value is None for value in self.values):
            raise QueryError("None is no value to be in; add `| (field == None)` for absent ones")
        object.__setattr__(self, "values", tuple(as_scalar(value) for value in self.values))

    @cached_property
    def _text(self) -> str:
        return self.text_with("in")

    def text_with(self, word: str) -> str:
        return f"{_name_text(self.field)} {word} ({', '.join(map(_value_text, self.values))})"

    def to_mapping(self) -> dict[str, Any]:
        return _entry(self.field, "in", list(self.values))


@dataclass(frozen=True, eq=False)
class Not(Query):
    """Holds where `part` does not."""

    part: Query

    def __post_init__(self) -> None:
        self._check_depth()

    def _parts(self) -> tuple[Query, ...]:
        return (self.part,)

    @cached_property
    def _text(self) -> str:
        if isinstance(self.part, IsIn):
            return self.part.text_with("not in")
        return f"not {_operand_text(self.part)}"

    def to_mapping(self) -> dict[str, Any]:
        return {"not": self.part.to_mapping()}


@dataclass(frozen=True, eq=False)
class _Junction(Query):
    parts: tuple[Query, ...]
    _word: ClassVar[str]

    def __post_init__(self) -> None:
        # `a & (b & c)` and `(a & b) & c` are one query, so a junction never holds its own kind.
        nested = [part.parts if isinstance(part, type(self)) else (part,) for part in self.parts]
        object.__setattr__(self, "parts", tuple(part for parts in nested for part in parts))
        if len(self.parts) < 2:
            raise QueryError(f"{type(self).__name__} needs two parts or more")
        self._check_depth()

    def _parts(self) -> tuple[Query, ...]:
        return self.parts

    @cached_property
    def _text(self) -> str:
        return f" {self._word} ".join(map(_operand_text, self.parts))


class And(_Junction):
    """Holds where every part holds."""

    _word = "and"

    def to_mapping(self) -> dict[str, Any]:
        mappings = [part.to_mapping() for part in self.parts]
        keys = [key for mapping in mappings for key in mapping]
        if "field" in keys or len(set(keys)) < len(keys):
            return {"all": mappings}
        return {key: value for mapping in mappings for key, value in mapping.items()}


class Or(_Junction):
    """Holds where at least one part holds."""

    _word = "or"

    def to_mapping(self) -> dict[str, Any]:
        return {"any": [part.to_mapping() for part in self.parts]}


@dataclass(frozen=True, eq=False)
class Field:
    """A field by name; comparing it with a value gives a query."""

    name: str

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise QueryError(f"a field has a name, a str that is not empty, got {self.name!r}")

    def __eq__(self, other: object) -> Query:  # type: ignore[override]
        return self.compare("==", other)

    def __ne__(self, other: object) -> Query:  # type: ignore[override]
        return self.compare("!=", other)

    def __lt__(self, other: object) -> Query:
        return self.compare("<", other)

    def __le__(self, other: object) -> Query:
        return self.compare("<=", other)

    def __gt__(self, other: object) -> Query:
        return self.compare(">", other)

    def __ge__(self, other: object) -> Query:
        return self.compare(">=", other)

    def isin(self, values: Iterable[object]) -> Query:
        """The field equals one of `values`."""
        if isinstance(values, str | bytes) or not isinstance(values, Iterable):
            raise QueryError(f"isin takes a list of values, got {values!r}")
        return IsIn(self.name, tuple(values))  # type: ignore[arg-type]  # IsIn checks them

    def between(self, low: object, high: object) -> Query:
        """`low <= field <= high`."""
        return (self >= low) & (self <= high)

    def compare(self, op: Op, value: object) -> Query:
        """`field op value`, where the operator is known as text."""
        return Compare(self.name, op, value)  # type: ignore[arg-type]  # Compare checks it

    def _no_condition(self, other: object = None) -> NoReturn:
        raise QueryError(
            f"the field {self.name!r} alone is no condition: compare it with a value, "
            "and put every comparison in parentheses"
        )

    # `field("a") == 1 & field("b") == 2` binds as `1 & field("b")`: say so.
    __and__ = __rand__ = __or__ = __ror__ = __invert__ = __bool__ = _no_condition


def field(name: str) -> Field:
    """The field `name` of an item, to compare with values.

    >>> import recollect as rc
    >>> str(rc.field("version").between(3, 5) | (rc.field("version") == None))
    '(version >= 3 and version <= 5) or version is absent'
    >>> rc.field("task").isin(["math", "code"]).to_mapping()
    {'task': ['math', 'code']}
    """
    return Field(name)


def fields_of(query: Query) -> frozenset[str]:
    """The names of all fields that `query` uses."""
    if isinstance(query, Compare | IsIn):
        return frozenset({query.field})
    return frozenset().union(*map(fields_of, query._parts()))


def combine(node: type[And] | type[Or], parts: Sequence[Query]) -> Query:
    """The junction of one part or more."""
    return parts[0] if len(parts) == 1 else node(tuple(parts))


def _checked(other: object) -> Query:
    if not isinstance(other, Query):
        raise QueryError(
            f"& and | combine queries, got {other!r}: put every comparison in parentheses"
        )
    return other


def _operand_text(part: Query) -> str:
    return f"({part})" if isinstance(part, _Junction) else str(part)


def _name_text(name: str) -> str:
    if NAME.fullmatch(name) and name.lower() not in KEYWORDS:
        return name
    return "`" + name.replace("`", "``") + "`"


def _value_text(value: Scalar) -> str:
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return str(value).lower()


def _entry(name: str, operator: str, value: object) -> dict[str, Any]:
    if name in RESERVED:
        return {"field": name, operator: value}
    return {name: value if operator in ("eq", "in") else {operator: value}}
