"""Queries against a slow, obvious oracle; their text and mapping forms; their errors."""

from __future__ import annotations

import enum
import json
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recollect.errors import QueryError
from recollect.rules.query import (
    And,
    Compare,
    FieldType,
    FieldValues,
    IsIn,
    Not,
    Or,
    Query,
    allowed_partitions,
    as_query,
    bind,
    field,
    fields_of,
    from_mapping,
    mask,
    parse,
)

Row = dict[str, Any]

FIELDS: dict[str, FieldType] = {
    "key": "int",
    "version": "int",
    "rows": "int",
    "priority": "float",
    "score": "float",
    "done": "bool",
    "task": "str",
}

# --- the oracle: one row, plain Python, None for an absent value ---------------------------

ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def holds(query: Query, row: Row) -> bool:
    match query:
        case And(parts):
            return all(holds(part, row) for part in parts)
        case Or(parts):
            return any(holds(part, row) for part in parts)
        case Not(part):
            return not holds(part, row)
        case Compare(name, "!=", value):
            return not holds(Compare(name, "==", value), row)
        case Compare(name, _, None):
            return row[name] is None
        case Compare(name, op, value):
            return row[name] is not None and ORDER[op](row[name], value)
        case IsIn(name, values):
            return row[name] is not None and any(row[name] == value for value in values)
    raise AssertionError(query)


# --- data and queries -----------------------------------------------------------------------

EDGES = [0, 1, 2, 3, 2**31, 2**53, 2**63, 2**64]
INTS = sorted({sign * edge + step for edge in EDGES for sign in (1, -1) for step in (-1, 0, 1)})
FLOATS = [0.0, -0.0, 0.1, 0.5, 2.5, -2.5, 2.0**53, 2.0**63, 2.0**64, 1e300, math.inf, -math.inf]
TEXTS = ["", "math", "code", "it's", "''", '"', "`", "ü 🎲", "a\nb", "'; DROP TABLE t; --", "None"]

ints, floats, texts = st.sampled_from(INTS), st.sampled_from(FLOATS), st.sampled_from(TEXTS)
numbers = st.one_of(ints, floats, st.sampled_from([10**400, -(10**400), 3.0, 2.0**53 + 2]))
ops = st.sampled_from(["==", "!=", "<", "<=", ">", ">="])
equalities = st.sampled_from(["==", "!="])


def within(dtype: type[np.integer[Any]]) -> st.SearchStrategy[int]:
    info = np.iinfo(dtype)
    return st.sampled_from([value for value in INTS if info.min <= value <= info.max])


def of_float32() -> st.SearchStrategy[float]:
    with np.errstate(over="ignore"):
        return st.sampled_from([float(np.float32(value)) for value in FLOATS])


rows = st.fixed_dictionaries(
    {
        "key": within(np.uint64),
        "version": st.none() | within(np.int64),
        "rows": within(np.int32),
        "priority": st.none() | floats,
        "score": st.none() | of_float32(),
        "done": st.none() | st.booleans(),
        "task": st.none() | texts,
    }
)


def leaves(names: list[str]) -> st.SearchStrategy[Query]:
    def of(name: str) -> st.SearchStrategy[Query]:
        kind = FIELDS[name]
        values = {"bool": st.booleans(), "str": texts | st.just("unseen")}.get(kind, numbers)
        order = ops if kind in ("int", "float") else equalities
        return st.one_of(
            st.builds(Compare, st.just(name), order, values),
            st.builds(Compare, st.just(name), equalities, st.none()),
            st.builds(IsIn, st.just(name), st.lists(values, max_size=4).map(tuple)),
        )

    return st.sampled_from(names).flatmap(of)


def trees(leaf: st.SearchStrategy[Query]) -> st.SearchStrategy[Query]:
    def grow(part: st.SearchStrategy[Query]) -> st.SearchStrategy[Query]:
        several = st.lists(part, min_size=2, max_size=3).map(tuple)
        return part.map(Not) | several.map(And) | several.map(Or)

    return st.recursive(leaf, grow, max_leaves=8)


queries = trees(leaves(list(FIELDS)))
some_rows = st.lists(rows, max_size=12)


def columns(table: list[Row]) -> dict[str, FieldValues]:
    def cells(name: str, dtype: Any, marker: Any) -> np.ndarray[Any, Any]:
        return np.array([marker if r[name] is None else r[name] for r in table], dtype=dtype)

    def absent(name: str) -> np.ndarray[Any, Any]:
        return np.array([r[name] is None for r in table], dtype=bool)

    categories = {text: code for code, text in enumerate(TEXTS)}
    codes = [-1 if r["task"] is None else categories[r["task"]] for r in table]
    return {
        "key": FieldValues(cells("key", np.uint64, None)),
        "version": FieldValues(cells("version", np.int64, -1), absent("version")),
        "rows": FieldValues(cells("rows", np.int32, None)),
        "priority": FieldValues(cells("priority", np.float64, np.nan)),
        "score": FieldValues(cells("score", np.float32, np.nan)),
        "done": FieldValues(cells("done", np.bool_, True), absent("done")),
        "task": FieldValues(np.array(codes, dtype=np.int32), categories=categories),
    }


def masked(query: Query, table: list[Row]) -> list[bool]:
    result = mask(query, columns(table).__getitem__, len(table))
    assert result.dtype == bool
    return list(result)


# --- meaning --------------------------------------------------------------------------------


@given(queries, some_rows)
def test_mask_agrees_with_the_oracle_bound_or_not(query: Query, table: list[Row]) -> None:
    expected = [holds(query, row) for row in table]
    bound = bind(query, FIELDS)
    assert masked(query, table) == expected
    assert masked(bound, table) == expected
    assert [holds(bound, row) for row in table] == expected
    assert bind(bound, FIELDS) == bound


@given(queries, some_rows)
def test_split_keeps_the_meaning(query: Query, table: list[Row]) -> None:
    bound = bind(query, FIELDS)
    allowed, rest = allowed_partitions(bound, ["task", "version", "done"])
    inside = [all(row[name] in values for name, values in allowed.items()) for row in table]
    kept = [rest is None or holds(rest, row) for row in table]
    assert [a and b for a, b in zip(inside, kept, strict=True)] == masked(bound, table)


def test_absent_values_equal_nothing_and_have_no_order() -> None:
    table: list[Row] = [{"version": 3}, {"version": None}]

    def matches(query: Query) -> list[bool]:
        versions = FieldValues(np.array([3, -1]), np.array([False, True]))
        found = list(mask(query, {"version": versions}.__getitem__, 2))
        assert found == [holds(query, row) for row in table]
        return found

    version = field("version")
    assert matches(version == None) == [False, True]  # noqa: E711
    assert matches(version != None) == [True, False]  # noqa: E711
    assert matches(version == -1) == [False, False]
    assert matches(version != 3) == [False, True]
    assert matches(version < 100) == [True, False]
    assert matches(~(version < 100)) == [False, True]
    assert matches(version.isin([3, -1])) == [True, False]
    assert matches(version.between(-5, 5)) == [True, False]


def test_each_field_is_resolved_once() -> None:
    asked: list[str] = []

    def resolve(name: str) -> FieldValues:
        asked.append(name)
        return FieldValues(np.arange(3))

    assert list(mask(parse("a > 0 and a < 2 or b = 5 or a = 0"), resolve, 3)) == [True, True, False]
    assert sorted(asked) == ["a", "b"]


def test_comparisons_are_not_rounded_to_the_array() -> None:
    columns = {
        "score": FieldValues(np.array([0.8], np.float32)),  # a little more than 0.8
        "key": FieldValues(np.array([2**64 - 1], np.uint64)),
        "version": FieldValues(np.array([2**53 + 1], np.int64)),
    }

    def matches(text: str) -> bool:
        return bool(mask(parse(text), columns.__getitem__, 1)[0])

    assert matches("score > 0.8 and score != 0.8 and score not in (0.8)")
    assert matches("score < 1e300 and score not in (1e300)")
    assert matches("key > -1 and key < 18446744073709551616.0 and key != 18446744073709551616.0")
    assert matches("version > 9007199254740992.0 and version not in (9007199254740992.0)")


def test_mask_leaves_the_columns_alone() -> None:
    column = FieldValues(np.array([1, 2]), np.array([False, True]))
    column.values.flags.writeable = column.absent.flags.writeable = False  # type: ignore[union-attr]
    assert list(mask(parse("a is absent and a != 7"), lambda _: column, 2)) == [False, True]


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("version > 2.5", "version > 2"),
        ("version >= 2.5", "version > 2"),
        ("version < 2.5", "version <= 2"),
        ("version <= -2.5", "version <= -3"),
        ("version = 3.0", "version = 3"),
        ("version = 2.5", "version in ()"),
        ("version != 2.5", "version not in ()"),
        ("version in (1.0, 2.5, 3)", "version in (1, 3)"),
        ("key < 1e30", "key <= 18446744073709551615"),
        ("key > inf", "key > 18446744073709551615"),
        ("key >= -inf", "key >= -9223372036854775808"),
        ("key = 18446744073709551616", "key in ()"),
        ("score > 1", "score > 1.0"),
        ("score > 9007199254740993", "score > 9007199254740992.0"),
        ("score <= 9007199254740993", "score <= 9007199254740992.0"),
        ("score = 9007199254740993", "score in ()"),
        (f"score > {10**400}", "score >= inf"),
        (f"score > {-(10**400)}", "score > -inf"),
    ],
)
def test_binding_moves_a_value_into_the_type_of_its_field(text: str, bound: str) -> None:
    assert str(bind(parse(text), FIELDS)) == bound


@pytest.mark.parametrize(
    ("text", "allowed", "rest"),
    [
        ("task = 'a'", {"task": {"a"}}, None),
        ("task = 'a' and score > 1", {"task": {"a"}}, "score > 1"),
        ("task in ('a', 'b') and task in ('b', 'c')", {"task": {"b"}}, None),
        ("task = 'a' and task = 'b'", {"task": set()}, None),
        ("task is absent or task in ('a', 'b')", {"task": {None, "a", "b"}}, None),
        ("task = 'a' or done = true", {}, "task = 'a' or done = true"),
        ("task = 'a' or task != 'b'", {}, "task = 'a' or task != 'b'"),
        ("task != 'a'", {}, "task != 'a'"),
        ("not task = 'a'", {}, "not task = 'a'"),
        ("score = 1 and rows = 2 and done = true", {"done": {True}}, "score = 1 and rows = 2"),
    ],
)
def test_split_pulls_out_what_partitions_answer(
    text: str, allowed: dict[str, set[object]], rest: str | None
) -> None:
    found, left = allowed_partitions(parse(text), ["task", "done"])
    assert found == allowed
    assert (None if left is None else str(left)) == rest


# --- the tree -------------------------------------------------------------------------------


def test_equality_tells_types_apart_and_hashes_by_value() -> None:
    x = field("x")
    assert (x == 1) == Compare("x", "==", 1)
    assert len({hash(x == 1), hash(Compare("x", "==", 1))}) == 1
    assert len({x == 1, x == 1.0, x == True, x == "1", x != 1, x.isin([1])}) == 6  # noqa: E712
    assert (x == 1) != "x = 1"


def test_junctions_are_flat() -> None:
    a, b, c = (field(name) == 1 for name in "abc")
    assert a & (b & c) == (a & b) & c == And((a, b, c)) == parse("a=1 and (b=1 and c=1)")
    assert a | (b | c) == Or((a, b, c))
    assert fields_of(a & ~(b | c)) == {"a", "b", "c"}


def test_values_become_plain_python() -> None:
    class Status(str, enum.Enum):  # noqa: UP042  # its str() is not its content
        DONE = "done"

    query = field("x").isin([np.int32(1), np.float32(0.5), np.bool_(True), Status.DONE])
    assert isinstance(query, IsIn)
    assert [type(value) for value in query.values] == [int, float, bool, str]
    assert str(query) == "x in (1, 0.5, true, 'done')"


def test_nodes_are_immutable() -> None:
    with pytest.raises(AttributeError):
        (field("x") == 1).value = 2  # type: ignore[attr-defined]


x = field("x")


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: bool(x == 1), "& | ~ instead of and, or, not"),
        (lambda: (x == 1) and (x == 2), "& | ~ instead of and, or, not"),
        (lambda: not x.isin([1]), "& | ~ instead of and, or, not"),
        (lambda: 0 < x < 3, "field.between(a, b)"),
        (lambda: x == 1 & field("y"), "'y' alone is no condition"),
        (lambda: bool(x), "'x' alone is no condition"),
        (lambda: (x == 1) & True, "got True: put every comparison in parentheses"),  # type: ignore[operator]
        (lambda: (x == 1) | field("y"), "put every comparison in parentheses"),
        (lambda: x == field("y"), "got Field"),
        (lambda: x == b"1", "got bytes"),
        (lambda: x == [1], "got list"),
        (lambda: x == math.nan, "NaN equals nothing; compare with None"),
        (lambda: x.isin([np.float32("nan")]), "NaN equals nothing"),
        (lambda: x < None, "None has no order; use == or != in place of <"),
        (lambda: x.isin([1, None]), "add `| (field == None)`"),
        (lambda: x.isin("abc"), "isin takes a list of values, got 'abc'"),
        (lambda: x.isin(3), "isin takes a list of values, got 3"),  # type: ignore[arg-type]
        (lambda: x > 10**600, "at most 600 digits"),
        (lambda: field(""), "a str that is not empty, got ''"),
        (lambda: field(3), "a str that is not empty, got 3"),  # type: ignore[arg-type]
        (lambda: And((x == 1,)), "And needs two parts"),
        (lambda: as_query("x = 1"), "'x = 1' as a query; use rc.parse(text)"),
        (lambda: as_query(False), "a mapping or None, got False"),
        (lambda: as_query(x), "a mapping or None, got Field"),
    ],
)
def test_wrong_use_is_explained(build: Any, message: str) -> None:
    with pytest.raises(QueryError) as error:
        build()
    assert message in str(error.value)


def test_as_query_takes_a_query_a_mapping_or_none() -> None:
    assert as_query(None) is None
    assert as_query(x == 1) == as_query({"x": 1}) == (x == 1)


def test_nesting_is_bounded_however_it_is_built() -> None:
    query, mapping = x == 1, {"x": 1}
    for _ in range(64):
        query, mapping = ~query, {"not": mapping}  # type: ignore[dict-item]
    assert parse(str(query)) == from_mapping(mapping) == query
    with pytest.raises(QueryError, match="64 levels"):
        Not(query)
    for _ in range(10_000):
        mapping = {"not": mapping}  # type: ignore[dict-item]
    with pytest.raises(QueryError, match="64 levels"):
        from_mapping(mapping)
    nested: list[object] = []
    for _ in range(10_000):
        nested = [nested]
    with pytest.raises(QueryError, match="a: a field compares with"):
        from_mapping({"a": nested})
    for opening in ("(", "not ", "not("):
        with pytest.raises(QueryError, match="64 levels"):
            parse(opening * 10_000)


# --- binding --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (x == 1, "unknown field 'x'; there are key, version, rows, priority, score, done, task"),
        (parse("done = true and (score > 1 or taks = 'a')"), "unknown field 'taks'"),
        (field("x") == None, "unknown field 'x'"),  # noqa: E711
        (field("version") == "3", "version: expected int, got '3' (str)"),
        (field("version") == True, "version: expected int, got True (bool)"),  # noqa: E712
        (field("score") > False, "score: expected float, got False (bool)"),
        (field("done") == 1, "done: expected bool, got 1 (int)"),
        (field("done") > True, "done: a bool field has no order; use == != or isin, not >"),
        (field("task") == 3, "task: expected str, got 3 (int)"),
        (field("task") >= "m", "task: a str field has no order; use == != or isin, not >="),
        (field("task").isin(["a", 1]), "task: expected str, got 1 (int)"),
        (~(field("key").isin(["a"])), "key: expected int, got 'a' (str)"),
    ],
)
def test_binding_refuses_what_does_not_fit_the_fields(query: Query, message: str) -> None:
    with pytest.raises(QueryError) as error:
        bind(query, FIELDS)
    assert message in str(error.value)


def test_binding_against_no_fields_says_so() -> None:
    with pytest.raises(QueryError, match="there are none"):
        bind(x == 1, {})


# --- text and mapping -----------------------------------------------------------------------

names = st.sampled_from(["a", "a.b_2", "not", "any", "field", "In", "é", "2x", "`", "a b", "inf"])
scalars = st.one_of(
    st.integers(), st.floats(allow_nan=False), st.booleans(), st.text(), st.sampled_from(TEXTS)
)
any_query = trees(
    st.builds(Compare, names, ops, scalars)
    | st.builds(Compare, names, equalities, st.none())
    | st.builds(IsIn, names, st.lists(scalars, max_size=3).map(tuple))
)


@given(any_query)
def test_text_and_mapping_read_back_to_an_equal_query(query: Query) -> None:
    assert repr(parse(str(query))) == repr(query)
    assert repr(from_mapping(query.to_mapping())) == repr(query)
    assert repr(from_mapping(json.loads(json.dumps(query.to_mapping())))) == repr(query)


words = st.sampled_from(
    ["x ", "=", "1 ", "'", "and ", "or ", "not ", "in ", "(", ")", ",", "is ", "<"]
)


@given(st.text() | st.lists(words).map("".join))
def test_any_text_gives_a_query_or_a_query_error(text: str) -> None:
    try:
        query = parse(text)
    except QueryError:
        return
    assert parse(str(query)) == query


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("x = 1", x == 1),
        ("x==1", x == 1),
        ("x <> -1", x != -1),
        ("x!=+1", x != 1),
        ("x >= .5", x >= 0.5),
        ("x < 5.", x < 5.0),
        ("x <= -1E-3", x <= -0.001),
        ("x > -inf", x > -math.inf),
        ("x = 18446744073709551615", x == 2**64 - 1),
        ("x = 'it''s'", x == "it's"),
        ('x = "say ""hi"" it\'s"', x == 'say "hi" it\'s'),
        ("x = ''", x == ""),
        ("x = TRUE", x == True),  # noqa: E712
        ("x IN (1, 'a', false)", x.isin([1, "a", False])),
        ("x not in (1)", ~x.isin([1])),
        ("not x in (1)", ~x.isin([1])),
        ("x in ()", x.isin([])),
        ("x between 1 and 2 and x != 3", x.between(1, 2) & (x != 3)),
        ("x is absent", x == None),  # noqa: E711
        ("x Is Not Null", x != None),  # noqa: E711
        ("x = 1 or x = 2 and x = 3", (x == 1) | ((x == 2) & (x == 3))),
        ("(x = 1 or x = 2) and x = 3", ((x == 1) | (x == 2)) & (x == 3)),
        ("not x = 1 and x = 2", ~(x == 1) & (x == 2)),
        ("not not (x = 1)", ~~(x == 1)),
        ("\n meta.level_2\t=\n1 ", field("meta.level_2") == 1),
        ("`any ``name``` = 1", field("any `name`") == 1),
        ("`and` = 1", field("and") == 1),
    ],
)
def test_grammar(text: str, query: Query) -> None:
    assert parse(text) == query
    assert parse(str(query)) == query


@pytest.mark.parametrize(
    ("text", "position", "message"),
    [
        ("", 1, "expected a field's name, `not` or `(` at position 1, found the end"),
        ("x", 2, "expected an operator"),
        ("x and y", 3, "expected an operator (= != < <= > >=, in, not in, between, is)"),
        ("x = ", 5, "expected a value at position 5, found the end"),
        ("x = math", 5, "text needs quotes"),
        ("x = null", 5, "write `is absent`"),
        ("'x' = 1", 1, "expected a field's name"),
        ("and = 1", 1, "expected a field's name"),
        ("x = 1 y = 2", 7, "expected `and`, `or` or the end at position 7, found 'y'"),
        ("(x = 1", 7, "`and`, `or` or `)`"),
        ("x = 1)", 6, "`and`, `or` or the end"),
        ("x in 1", 6, "`(` and a list of values"),
        ("x in (1 2)", 9, "`,` or `)`"),
        ("x in (1,)", 9, "expected a value"),
        ("x not 1", 7, "expected `in`"),
        ("x between 1, 2", 12, "`and` and the upper bound"),
        ("x is 1", 6, "`absent` or `null`"),
        ("x = 'abc", 5, "a closing quote"),
        ("x = 'it''s", 5, "a closing quote"),
        ("x = 1 & y = 2", 7, "found '&'"),
        ("x = 1abc", 5, "expected a name, a value or an operator"),
        ("x = 1e999", 5, "the range of a float"),
        ("x = " + "9" * 5000, 5, "at most 600 digits"),
        ("x = 1 and\n\ty ! 2", 14, "found '!'"),
        ("x = 1 and " * 50 + "x ? 2", 503, "found '?'"),
    ],
)
def test_unreadable_text_points_at_the_place(text: str, position: int, message: str) -> None:
    with pytest.raises(QueryError) as error:
        parse(text)
    sentence, shown, caret = str(error.value).split("\n")
    assert message in sentence
    assert f"at position {position}, found" in sentence
    assert caret.strip() == "^"
    assert shown[len(caret) - 1 :][:1] == text[position - 1 : position]


def test_text_is_a_str_of_bounded_length() -> None:
    with pytest.raises(QueryError, match="reads a str, got NoneType"):
        parse(None)  # type: ignore[arg-type]
    with pytest.raises(QueryError, match="100000 characters, this has 100001"):
        parse(" " * 100_001)


@pytest.mark.parametrize(
    ("mapping", "text"),
    [
        ({"task": "math", "score": {"gt": 0.8}}, "task = 'math' and score > 0.8"),
        ({"x": {"ge": 1, "lt": 3, "ne": 2}}, "x >= 1 and x < 3 and x != 2"),
        ({"x": {"eq": 1}}, "x = 1"),
        ({"x": {"le": True}}, "x <= true"),
        ({"x": [1, 2]}, "x in (1, 2)"),
        ({"x": {"in": (1,)}}, "x in (1)"),
        ({"x": {"between": [1, 2]}}, "x between 1 and 2"),
        ({"x": None}, "x is absent"),
        ({"x": {"absent": False}}, "x is not absent"),
        ({"any": [{"x": 1}, {"y": 2, "z": 3}]}, "x = 1 or (y = 2 and z = 3)"),
        ({"all": [{"x": 1}, {"x": {"ne": 2}}]}, "x = 1 and x != 2"),
        ({"not": {"x": 1, "y": 2}}, "not (x = 1 and y = 2)"),
        ({"any": [{"x": 1}]}, "x = 1"),
        ({"field": "not", "gt": 1, "lt": 3}, "`not` > 1 and `not` < 3"),
        ({"all": [{"field": "field", "eq": 1}, {"x": 2}]}, "field = 1 and x = 2"),
    ],
)
def test_mapping_form(mapping: dict[str, Any], text: str) -> None:
    assert from_mapping(mapping) == parse(text)


OPERATORS = "eq, ne, lt, le, gt, ge, in, between, absent"


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"score": {"gtt": 1}}, f"score.gtt: unknown operator 'gtt'; expected one of {OPERATORS}"),
        ({"score": {}}, f"score: expected an operator, one of {OPERATORS}"),
        ({"any": [{"a": 1}, {"b": {"in": 3}}]}, "any[1].b.in: expected a list of values, got 3"),
        ({"x": {"between": [1]}}, "x.between: expected a list of two bounds, got [1]"),
        ({"x": {"between": "ab"}}, "x.between: expected a list of two bounds, got 'ab'"),
        ({"x": {"absent": 1}}, "x.absent: expected true or false, got 1"),
        ({"x": {"gt": None}}, "x.gt: None has no order"),
        ({"x": {"gt": [1]}}, "x.gt: a field compares with"),
        ({"x": math.nan}, "x: NaN equals nothing"),
        ({"x": [1, None]}, "x: None is no value to be in"),
        ({"not": {"all": [{"x": {"y": 1}}]}}, "not.all[0].x.y: unknown operator 'y'"),
        ({"not": 3}, "not: expected a mapping with a condition"),
        ({"any": {"x": 1}}, "any: expected a list of mappings (or {'field': 'any', ...})"),
        ({"all": []}, "all: expected a list of mappings"),
        ({"any": [{}]}, "any[0]: expected a mapping with a condition"),
        ({3: 1}, "3: a field has a name"),
        ({"any": [{"field": 3, "eq": 1}]}, "any[0]: a field has a name"),
        ({"field": "x", "gtt": 1}, "gtt: unknown operator 'gtt'"),
        ({"field": "x"}, "expected an operator"),
        ({}, "expected a mapping with a condition such as {'task': 'math'}, got {}"),
    ],
)
def test_wrong_mappings_name_the_path(mapping: dict[str, Any], message: str) -> None:
    with pytest.raises(QueryError) as error:
        from_mapping(mapping)
    assert str(error.value).startswith(message)
