"""Queries from mappings, for configuration: `{"task": "math", "score": {"gt": 0.8}}`.

Several keys mean 'and'. A field's entry is a value, a list (is in), None (is absent), or a
mapping of operators: eq ne lt le gt ge in between absent. `{"any": [...]}`, `{"all": [...]}` and
`{"not": {...}}` combine mappings. A field with one of these names, or named 'field', is reached
by `{"field": "any", "gt": 3}`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from reprlib import repr as brief
from typing import Any, NoReturn, TypeVar

from recollect.errors import QueryError
from recollect.rules.query.expression import (
    MAX_DEPTH,
    OPERATOR_NAMES,
    And,
    Field,
    Not,
    Or,
    Query,
    combine,
)

T = TypeVar("T")

_COMPARISONS = {name: op for op, name in OPERATOR_NAMES.items()}
_SHAPES = {"in": "a list of values", "between": "a list of two bounds", "absent": "true or false"}
_OPERATORS = (*_COMPARISONS, *_SHAPES)


def as_query(value: object) -> Query | None:
    """What a `where=` argument means: a Query, a mapping, or None for every item."""
    if value is None or isinstance(value, Query):
        return value
    if isinstance(value, Mapping):
        return from_mapping(value)
    if isinstance(value, str):
        raise QueryError(f"got the text {value[:60]!r} as a query; use rc.parse(text)")
    raise QueryError(
        "expected a query such as rc.field('task') == 'math', a mapping or None, "
        f"got {brief(value)}"
    )


def from_mapping(mapping: Mapping[str, Any]) -> Query:
    """The query that `mapping` says; a `QueryError` begins with the path of the wrong entry.

    >>> from recollect.rules.query import from_mapping
    >>> str(from_mapping({"task": ["math", "code"], "any": [{"score": {"gt": 0.8}}, {"hard": True}]}))
    "task in ('math', 'code') and (score > 0.8 or hard = true)"
    """  # noqa: E501
    return _conditions(mapping, "", 0)


def _conditions(mapping: object, path: str, depth: int) -> Query:
    if not isinstance(mapping, Mapping) or not mapping:
        _fail(path, "expected a mapping with a condition such as {'task': 'math'}", mapping)
    if depth > MAX_DEPTH:
        _fail("", f"expected at most {MAX_DEPTH} levels of any, all and not")
    if "field" in mapping:
        operators = {key: value for key, value in mapping.items() if key != "field"}
        return _at(path, lambda: _operators(Field(mapping["field"]), operators, path))
    return combine(And, [_condition(key, mapping[key], path, depth) for key in mapping])


def _condition(key: object, value: object, parent: str, depth: int) -> Query:
    path = f"{parent}.{key}" if parent else str(key)
    if key == "not":
        return Not(_conditions(value, path, depth + 1))
    if key in ("any", "all"):
        if not isinstance(value, list | tuple) or not value:
            _fail(path, f"expected a list of mappings (or {{'field': {key!r}, ...}})", value)
        parts = [_conditions(v, f"{path}[{i}]", depth + 1) for i, v in enumerate(value)]
        return combine(Or if key == "any" else And, parts)
    field = _at(path, lambda: Field(key))  # type: ignore[arg-type]  # Field checks it
    if isinstance(value, Mapping):
        return _operators(field, value, path)
    return _operator(field, "in" if isinstance(value, list | tuple) else "eq", value, path)


def _operators(field: Field, operators: Mapping[Any, object], path: str) -> Query:
    if not operators:
        _fail(path, f"expected an operator, one of {', '.join(_OPERATORS)}")
    return combine(And, [
        _operator(field, name, operators[name], f"{path}.{name}" if path else str(name))
        for name in operators
    ])  # fmt: skip


def _operator(field: Field, name: object, value: object, path: str) -> Query:
    if name not in _OPERATORS:
        _fail(path, f"unknown operator {name!r}; expected one of {', '.join(_OPERATORS)}")
    match name, value:
        case "in", list() | tuple():
            return _at(path, lambda: field.isin(value))
        case "between", [low, high]:
            return _at(path, lambda: field.between(low, high))
        case "absent", bool():
            return field.compare("==" if value else "!=", None)
        case (("in" | "between" | "absent"), _):
            _fail(path, f"expected {_SHAPES[name]}", value)
    return _at(path, lambda: field.compare(_COMPARISONS[str(name)], value))


def _at(path: str, build: Callable[[], T]) -> T:
    try:
        return build()
    except QueryError as error:
        _fail(path, str(error))


_MISSING = object()


def _fail(path: str, problem: str, got: object = _MISSING) -> NoReturn:
    prefix = f"{path}: " if path else ""
    suffix = "" if got is _MISSING else f", got {brief(got)}"
    raise QueryError(f"{prefix}{problem}{suffix}") from None
