"""Every wrong call, in one table: the error it raises, the words it says, and that nothing changed.

Each call is made on a table that has a twin: same seed, same calls before. Afterwards the two must
agree in everything one can see, also in what they draw next.
"""

# ruff: noqa: E501 - one line per case makes the table readable

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import recollect as rc

OWN_ARGUMENTS = sorted(
    {
        name
        for call in (rc.Table.insert, rc.Table.insert_async, rc.Table.update)
        for name, argument in inspect.signature(call).parameters.items()
        if argument.kind is not argument.VAR_KEYWORD
    }
)
COUNTER = np.uint64((1 << 44) - 1)  # a key without its table's origin

SIGNATURE = {
    "x": rc.Column("int64"),
    "obs": rc.Column("float32", (2,)),
    "text": rc.Column("str"),
    "tokens": rc.Column("int32", ragged=True),
    "note": rc.Column("float32", optional=True),
}


def rows(n: int, **other: Any) -> dict[str, Any]:
    """Columns that fit, or that do not where `other` says so."""
    columns = {
        "x": np.arange(n),
        "obs": np.zeros((n, 2), np.float32),
        "text": ["a"] * n,
        "tokens": [np.arange(2, dtype=np.int32)] * n,
    }
    columns.update(other)
    return {name: column for name, column in columns.items() if column is not None}


def plain() -> rc.Table:
    table = rc.Table(
        "plain",
        capacity=10,
        capacity_bytes=1000,
        sampler=rc.Prioritized(alpha=0.6),
        tags={"score": float, "level": int, "hard": bool, "genre": str},
        partition_by=("task",),
        signature=SIGNATURE,
        seed=7,
        clock=rc.ManualClock(),
    )
    table.insert(
        rows(6),
        priority=[1.0, 2.0, 3.0, 4.0, 5.0, 0.0],
        task=["math", "code"] * 3,
        version=3,
        score=[0.1, 0.2, 0.3, 0.4, 0.5, 0.6],
    )
    table.take(1, where=rc.field("task") == "code", lease=60, owner="me")
    table.sample(3)
    return table


def empty() -> rc.Table:
    return rc.Table("empty", capacity=10, capacity_bytes=100, seed=7)


def noted() -> rc.Table:
    """Without an absent cell."""
    table = rc.Table("noted", capacity=10, signature=SIGNATURE, seed=7)
    table.insert(rows(2, note=np.ones(2, np.float32)))
    return table


def uniform() -> rc.Table:
    table = rc.Table("uniform", capacity=10, seed=7)
    table.insert({"x": np.arange(3)})
    return table


def fifo() -> rc.Table:
    table = rc.Table("fifo", capacity=10, sampler=rc.Fifo(), seed=7)
    table.insert({"x": np.arange(3)})
    return table


def queue() -> rc.Table:
    table = rc.Table.queue("queue", 4, seed=7)
    table.insert({"x": np.arange(3)})
    return table


def worn() -> rc.Table:
    table = rc.Table("worn", capacity=4, max_times_sampled=2, seed=7)
    table.insert({"x": np.arange(3)})
    return table


def ratio() -> rc.Table:
    limiter = rc.SampleToInsertRatio(ratio=2.0, min_size=2, error_buffer=6)
    table = rc.Table("ratio", capacity=100, limiter=limiter, seed=7)
    table.insert({"x": np.arange(3)})
    return table


def ageing() -> rc.Table:
    table = rc.Table("ageing", capacity=10, sampler=rc.Prioritized(half_life=2.0), seed=7)
    table.insert({"x": np.arange(3)}, version=[1, 2, 3])
    return table


def sharing() -> rc.Table:
    table = rc.Table("sharing", capacity=10, seed=7)
    table.insert({"x": np.arange(4)}, rows_per_item=2, shared={"prompt": ["a", "b"]})
    return table


def leased_out() -> rc.Table:
    """Full, and everything is leased."""
    table = rc.Table("leased", capacity=3, seed=7, sampler=rc.Fifo(), clock=rc.ManualClock())
    table.insert({"x": np.arange(3)})
    table.take(3, lease=60)
    return table


def closed() -> rc.Table:
    table = uniform()
    table.close()
    return table


@dataclass(frozen=True)
class Wrong:
    """A wrong call, on which table, and what it must say."""

    name: str
    call: Callable[[rc.Table], Any]
    error: type[Exception]
    words: tuple[str, ...]
    on: Callable[[], rc.Table] = plain


def wrong(
    name: str,
    call: Callable[[rc.Table], Any],
    error: type[Exception],
    *words: str,
    on: Callable[[], rc.Table] = plain,
) -> Any:
    return pytest.param(Wrong(name, call, error, words, on), id=name)


def table(**options: Any) -> rc.Table:
    return rc.Table(**{"name": "new", "capacity": 10, **options})


def keys_of(table: rc.Table) -> Any:
    """Keys of the visible and of the leased items, in order of arrival."""
    return np.sort(table.core.storage.find(None, None, visible=False))


def later(coroutine: Any) -> Any:
    return asyncio.run(coroutine)


INVALID, SCHEMA, NEVER, QUERY = rc.InvalidValue, rc.SchemaError, rc.NeverPossible, rc.QueryError
TIMEOUT, LEASE = rc.WaitTimeout, rc.LeaseExpired
field = rc.field

# fmt: off
CONSTRUCTION = [
    wrong("name is empty", lambda _: table(name=""), INVALID, "name", "text", "''"),
    wrong("name is a number", lambda _: table(name=5), INVALID, "name", "text", "5"),
    wrong("capacity is zero", lambda _: table(capacity=0), INVALID, "capacity", "at least 1", "0"),
    wrong("capacity is negative", lambda _: table(capacity=-3), INVALID, "capacity", "-3"),
    wrong("capacity is a float", lambda _: table(capacity=1e3), INVALID, "capacity", "whole", "1000.0"),
    wrong("capacity is a bool", lambda _: table(capacity=True), INVALID, "capacity", "True"),
    wrong("capacity is text", lambda _: table(capacity="10"), INVALID, "capacity", "'10'"),
    wrong("capacity is beyond all keys", lambda _: table(capacity=10**30), INVALID, "capacity", "at most"),
    wrong("capacity_bytes is zero", lambda _: table(capacity_bytes=0), INVALID, "capacity_bytes", "0"),
    wrong("capacity_bytes is a float", lambda _: table(capacity_bytes=1e6), INVALID, "capacity_bytes"),
    wrong("max_times_sampled is negative", lambda _: table(max_times_sampled=-1), INVALID, "max_times_sampled", "-1"),
    wrong("max_times_sampled is a float", lambda _: table(max_times_sampled=1.5), INVALID, "max_times_sampled", "1.5"),
    wrong("sampler is text", lambda _: table(sampler="Fifo"), INVALID, "sampler", "rc.Fifo()", "'Fifo'"),
    wrong("sampler is a class", lambda _: table(sampler=rc.Fifo), INVALID, "sampler", "rc.Fifo()"),
    wrong("remover is a number", lambda _: table(remover=3), INVALID, "remover", "rc.Fifo()", "3"),
    wrong("sampler by an unknown field", lambda _: table(sampler=rc.Smallest("nope")), INVALID, "sampler", "nope", "priority"),
    wrong("remover by text", lambda _: table(remover=rc.Largest("status")), INVALID, "remover", "status", "text", "use one of"),
    wrong("mixture with an unknown field", lambda _: table(sampler=rc.Mixed([(rc.Fifo(), 1), (rc.Largest("nope"), 1)])), INVALID, "sampler", "nope"),
    wrong("limiter is a number", lambda _: table(limiter=3), INVALID, "limiter", "rc.MinSize(1)", "3"),
    wrong("min_size above the capacity", lambda _: table(limiter=rc.MinSize(11)), NEVER, "min_size 11", "capacity 10"),
    wrong("min_size above what the bytes hold", lambda _: table(capacity=100, capacity_bytes=80, signature={"x": rc.Column("int64")}, limiter=rc.MinSize(11)), NEVER, "min_size 11", "80 bytes", "at most 10"),
    wrong("ratio's min_size above what the bytes hold", lambda _: table(capacity=100, capacity_bytes=80, signature={"x": rc.Column("int64"), "y": rc.Column("float32", (2,), shared=True)}, limiter=rc.SampleToInsertRatio(1.0, 6, 9.0)), NEVER, "min_size 6", "80 bytes", "at most 5"),
    wrong("min_size above what the bytes hold, seen at the first insert", lambda _: table(capacity=100, capacity_bytes=80, limiter=rc.MinSize(11)).insert({"x": [1]}, timeout=0), NEVER, "min_size 11", "80 bytes", "at most 10"),
    wrong("min_size above what the bytes hold, assigned", lambda _: setattr(table(capacity=100, capacity_bytes=80, signature={"x": rc.Column("int64")}), "limiter", rc.MinSize(11)), NEVER, "min_size 11", "80 bytes", "at most 10"),
    wrong("ratio's min_size above the capacity", lambda _: table(limiter=rc.SampleToInsertRatio(1.0, 11, 5.0)), NEVER, "min_size 11", "capacity 10"),
    wrong("queue above the capacity", lambda _: table(limiter=rc.Queue(11)), NEVER, "Queue(11)", "at most 10"),
    wrong("queue without room", lambda _: rc.Table.queue("q", 0), INVALID, "size", "at least 1", "0"),
    wrong("stack of text", lambda _: rc.Table.stack("q", "4"), INVALID, "size", "'4'"),
    wrong("signature is a number", lambda _: table(signature=5), SCHEMA, "signature", "rc.Column", "5"),
    wrong("signature without columns", lambda _: table(signature={"x": "int"}), SCHEMA, "'x'", "rc.Column", "'int'"),
    wrong("signature with a dot and a clash", lambda _: table(signature={"a": rc.Column("int8"), "a.b": rc.Column("int8")}), SCHEMA, "a"),
    wrong("tags are a list", lambda _: table(tags=["a"]), INVALID, "tags", "{'score': float}", "['a']"),
    wrong("tag with a space", lambda _: table(tags={"a b": int}), INVALID, "tags", "'a b'", "letters"),
    wrong("tag that is a field", lambda _: table(tags={"priority": float}), INVALID, "tags", "'priority'", "taken"),
    wrong("tag that info uses", lambda _: table(tags={"weights": float}), INVALID, "tags", "'weights'", "taken"),
    *[wrong(f"tag that insert calls its own {name}", lambda _, name=name: table(tags={name: int}), INVALID, "tags", repr(name), "taken") for name in OWN_ARGUMENTS],
    *[wrong(f"tag that a query reads as {name}", lambda _, name=name: table(tags={name: int}), INVALID, "tags", repr(name), "taken") for name in ("in", "and", "or", "not", "is", "between", "absent", "null", "true", "false", "inf", "IN")],
    wrong("tag of an unknown type", lambda _: table(tags={"a": complex}), INVALID, "tags.a", "int, float, bool or str"),
    wrong("tag of an unhashable type", lambda _: table(tags={"a": []}), INVALID, "tags.a", "int, float, bool or str", "[]"),
    wrong("partition by a number", lambda _: table(partition_by=5), INVALID, "partition_by", "names", "5"),
    wrong("partition by lists", lambda _: table(partition_by=[["a"]]), INVALID, "partition_by", "names"),
    wrong("partition by an unknown field", lambda _: table(partition_by=("nope",)), INVALID, "partition_by", "'nope'", "task"),
    wrong("partition by the key", lambda _: table(partition_by=("key",)), INVALID, "partition_by", "'key'", "task"),
    wrong("partition by a field twice", lambda _: table(partition_by=("task", "task")), INVALID, "partition_by", "twice"),
    wrong("storage is a number", lambda _: table(storage=5), INVALID, "storage", "rc.MemoryStorage()", "5"),
    wrong("storage of another table", lambda t: table(storage=t.core.storage), INVALID, "storage", "'plain'", "one per table"),
    wrong("seed is negative", lambda _: table(seed=-1), INVALID, "seed", "-1"),
    wrong("seed is text", lambda _: table(seed="a"), INVALID, "seed", "'a'"),
    wrong("journal is a number", lambda _: table(journal=5), INVALID, "journal", "rc.Journal", "5"),
    wrong("journal syncs sometimes", lambda _: rc.Journal("x", sync="sometimes"), INVALID, "sync", "'interval'", "'sometimes'"),
    wrong("journal has a negative interval", lambda _: rc.Journal("x", interval=-1), INVALID, "interval", "-1"),
    wrong("checkpoint is text", lambda _: table(checkpoint="no"), INVALID, "checkpoint", "True or False", "'no'"),
    wrong("clock is a number", lambda _: table(clock=5), INVALID, "clock", "rc.ManualClock()", "5"),
]

RULES = [
    wrong("alpha is text", lambda _: rc.Prioritized(alpha="a"), INVALID, "alpha", "number", "'a'"),
    wrong("alpha is negative", lambda _: rc.Prioritized(alpha=-0.1), INVALID, "alpha", "at least 0", "-0.1"),
    wrong("alpha is NaN", lambda _: rc.Prioritized(alpha=math.nan), INVALID, "alpha", "finite", "nan"),
    wrong("alpha is a bool", lambda _: rc.Prioritized(alpha=True), INVALID, "alpha", "True"),
    wrong("beta is negative", lambda _: rc.Prioritized(beta=-1), INVALID, "beta", "at least 0", "-1"),
    wrong("beta is infinite", lambda _: rc.Prioritized(beta=math.inf), INVALID, "beta", "finite", "inf"),
    wrong("beta's schedule begins below 0", lambda _: rc.Prioritized(beta=rc.Linear(-1.0, 1.0, 5)), INVALID, "beta", "-1"),
    wrong("beta's schedule ends below 0", lambda _: rc.Prioritized(beta=rc.Linear(1.0, -1.0, 5)), INVALID, "beta", "-1"),
    wrong("half_life is zero", lambda _: rc.Prioritized(half_life=0), INVALID, "half_life", "above 0", "0"),
    wrong("half_life is text", lambda _: rc.Prioritized(half_life="a"), INVALID, "half_life", "'a'"),
    wrong("stratified is a number", lambda _: rc.Prioritized(stratified=1), INVALID, "stratified", "True or False", "1"),
    wrong("normalize is unknown", lambda _: rc.Prioritized(normalize="max"), INVALID, "normalize", "'batch', 'table' or None", "'max'"),
    wrong("schedule from text", lambda _: rc.Linear("a", 1.0, 1), INVALID, "start", "number", "'a'"),
    wrong("schedule to infinity", lambda _: rc.Linear(0.0, math.inf, 1), INVALID, "end", "finite", "inf"),
    wrong("schedule of no steps", lambda _: rc.Linear(0.0, 1.0, 0), INVALID, "steps", "above 0", "0"),
    wrong("schedule of half a step", lambda _: rc.Linear(0.0, 1.0, 0.5), INVALID, "steps", "whole", "0.5"),
    wrong("order by no name", lambda _: rc.Smallest(""), INVALID, "field", "name", "''"),
    wrong("order by a number", lambda _: rc.Largest(3), INVALID, "field", "name", "3"),
    wrong("mixture of nothing", lambda _: rc.Mixed([]), INVALID, "selectors", "share above 0"),
    wrong("mixture of a number", lambda _: rc.Mixed(5), INVALID, "selectors", "(selector, share)", "5"),
    wrong("mixture without shares", lambda _: rc.Mixed([rc.Fifo()]), INVALID, "(selector, share)", "Fifo()"),
    wrong("mixture with a negative share", lambda _: rc.Mixed([(rc.Fifo(), -1)]), INVALID, "selectors[0]", "at least 0", "-1"),
    wrong("mixture with shares of zero", lambda _: rc.Mixed([(rc.Fifo(), 0)]), INVALID, "share above 0"),
    wrong("mixture of text", lambda _: rc.Mixed([("Fifo", 1)]), INVALID, "selector", "'Fifo'"),
    wrong("mixture of mixtures", lambda _: rc.Mixed([(rc.Mixed([(rc.Fifo(), 1)]), 1)]), INVALID, "selector", "Mixed"),
    wrong("min_size is negative", lambda _: rc.MinSize(-1), INVALID, "min_size", "at least 0", "-1"),
    wrong("min_size is a float", lambda _: rc.MinSize(1.5), INVALID, "min_size", "whole", "1.5"),
    wrong("ratio is zero", lambda _: rc.SampleToInsertRatio(0), INVALID, "ratio", "above 0", "0"),
    wrong("ratio is infinite", lambda _: rc.SampleToInsertRatio(math.inf), INVALID, "ratio", "inf"),
    wrong("ratio is text", lambda _: rc.SampleToInsertRatio("2"), INVALID, "ratio", "'2'"),
    wrong("ratio with min_size zero", lambda _: rc.SampleToInsertRatio(1.0, 0), INVALID, "min_size", "at least 1", "0"),
    wrong("error_buffer is negative", lambda _: rc.SampleToInsertRatio(1.0, 1, -1), INVALID, "error_buffer", "0 or more", "-1"),
    wrong("error_buffer is text", lambda _: rc.SampleToInsertRatio(1.0, 1, "a"), INVALID, "error_buffer", "(min_diff, max_diff)", "'a'"),
    wrong("error_buffer of three", lambda _: rc.SampleToInsertRatio(1.0, 1, (1, 2, 3)), INVALID, "error_buffer", "(min_diff, max_diff)"),
    wrong("error_buffer is NaN", lambda _: rc.SampleToInsertRatio(1.0, 1, math.nan), INVALID, "error_buffer", "nan"),
    wrong("error_buffer too narrow for a sample", lambda _: rc.SampleToInsertRatio(0.5, 1, 0.1), NEVER, "error_buffer", "error_buffer=0.5"),
    wrong("error_buffer too narrow for an insert", lambda _: rc.SampleToInsertRatio(8.0, 1, 3.0), NEVER, "error_buffer", "error_buffer=4"),
    wrong("error_buffer upside down", lambda _: rc.SampleToInsertRatio(1.0, 1, (5, 2)), NEVER, "error_buffer", "min_diff 5", "max_diff 2"),
    wrong("error_buffer at infinity", lambda _: rc.SampleToInsertRatio(1.0, 1, (math.inf, math.inf)), NEVER, "error_buffer", "inf"),
    wrong("queue of size zero", lambda _: rc.Queue(0), INVALID, "size", "at least 1", "0"),
    wrong("stack of size 1.5", lambda _: rc.Stack(1.5), INVALID, "size", "whole", "1.5"),
    wrong("sampler set to a number", lambda t: setattr(t, "sampler", 5), INVALID, "sampler", "rc.Fifo()", "5"),
    wrong("sampler set to an unknown field", lambda t: setattr(t, "sampler", rc.Largest("nope")), INVALID, "sampler", "nope", "score"),
    wrong("sampler set to an alpha that overflows", lambda t: setattr(t, "sampler", rc.Prioritized(alpha=1e3)), INVALID, "priority", "5", "alpha 1000", "1e150"),
    wrong("sampler set to age what has no version", lambda t: setattr(t, "sampler", rc.Prioritized(half_life=2)), INVALID, "half_life", "version", on=uniform),
    wrong("remover set to a class", lambda t: setattr(t, "remover", rc.Fifo), INVALID, "remover", "rc.Fifo()"),
    wrong("limiter set to a number", lambda t: setattr(t, "limiter", 5), INVALID, "limiter", "rc.MinSize(1)", "5"),
    wrong("limiter set above the capacity", lambda t: setattr(t, "limiter", rc.MinSize(50)), NEVER, "min_size 50", "capacity 10"),
]

COLUMNS = [
    wrong("column of no dtype", lambda _: rc.Column("nope"), SCHEMA, "dtype", "'str' or 'bytes'", "'nope'"),
    wrong("column of None", lambda _: rc.Column(None), SCHEMA, "dtype", "None"),
    wrong("column of complex", lambda _: rc.Column("complex64"), SCHEMA, "complex64", "two columns"),
    wrong("column of longdouble", lambda _: rc.Column(np.longdouble), SCHEMA, "cannot be stored"),
    wrong("column of objects", lambda _: rc.Column(object), SCHEMA, "object", "cannot be stored"),
    wrong("column in foreign byte order", lambda _: rc.Column(">f4"), SCHEMA, "foreign order", "astype"),
    wrong("column of negative shape", lambda _: rc.Column("f4", (-1,)), SCHEMA, "shape", "0 or more", "-1"),
    wrong("column of fractional shape", lambda _: rc.Column("f4", 1.5), SCHEMA, "shape", "1.5"),
    wrong("column of text with a shape", lambda _: rc.Column("str", (2,)), SCHEMA, "str", "shape", "(2,)"),
    wrong("column that is optional perhaps", lambda _: rc.Column("f4", optional="x"), SCHEMA, "optional", "True or False", "'x'"),
]

INSERT = [
    wrong("insert a list", lambda t: t.insert([1, 2]), SCHEMA, "mapping", "list", "table.insert({"),
    wrong("insert None", lambda t: t.insert(None), SCHEMA, "mapping", "NoneType"),
    wrong("insert nothing into a new table", lambda t: t.insert({}), SCHEMA, "at least one column", on=empty),
    wrong("insert a scalar", lambda t: t.insert({"x": 5}), SCHEMA, "'x'", "int", "expected an array", on=empty),
    wrong("insert objects", lambda t: t.insert({"x": [object()]}), SCHEMA, "'x'", "object", on=empty),
    wrong("insert complex", lambda t: t.insert({"x": np.zeros(2, complex)}), SCHEMA, "'x'", "complex128", on=empty),
    wrong("insert only absent cells", lambda t: t.insert({"x": [None, None]}), SCHEMA, "'x'", "dtype", "signature", on=empty),
    wrong("insert columns of two lengths", lambda t: t.insert({"x": [1, 2], "y": [1]}), SCHEMA, "'x' has 2", "'y' has 1", on=empty),
    wrong("insert a name that is a number", lambda t: t.insert({1: [2]}), SCHEMA, "1", "name", on=empty),
    wrong("insert an empty name", lambda t: t.insert({"": [2]}), SCHEMA, "''", "name", on=empty),
    wrong("insert a name with a lone dot", lambda t: t.insert({"a.": [2]}), SCHEMA, "'a.'", "name", on=empty),
    wrong("first insert above capacity_bytes", lambda t: t.insert({"x": np.zeros((5, 3))}), NEVER, "120 bytes", "100 bytes", "fewer", on=empty),
    wrong("first insert above the capacity", lambda t: t.insert({"x": np.zeros(11)}), NEVER, "11 items", "capacity 10", "fewer", on=empty),
    wrong("insert an unknown column", lambda t: t.insert(rows(1, y=[1])), SCHEMA, "'y'", "'x'", "add_column"),
    wrong("insert without a column", lambda t: t.insert(rows(1, obs=None)), SCHEMA, "'obs'", "float32[2]", "missing"),
    wrong("insert another dtype", lambda t: t.insert(rows(1, x=np.zeros(1, np.float32))), SCHEMA, "'x'", "expected int64", "got float32", "astype('int64')"),
    wrong("insert another width", lambda t: t.insert(rows(1, x=np.zeros(1, np.int32))), SCHEMA, "'x'", "expected int64", "got int32"),
    wrong("insert unsigned", lambda t: t.insert(rows(1, x=np.zeros(1, np.uint64))), SCHEMA, "'x'", "expected int64", "got uint64"),
    wrong("insert bools", lambda t: t.insert(rows(1, x=np.zeros(1, bool))), SCHEMA, "'x'", "expected int64", "got bool"),
    wrong("insert another shape", lambda t: t.insert(rows(1, obs=np.zeros((1, 3), np.float32))), SCHEMA, "'obs'", "expected float32[2]", "got float32[3]"),
    wrong("insert without the axis of rows", lambda t: t.insert(rows(2, obs=np.zeros(2, np.float32))), SCHEMA, "'obs'", "expected float32[2]", "leading axis"),
    wrong("insert a column that is too short", lambda t: t.insert(rows(2, x=np.arange(1))), SCHEMA, "rows", "'x' has 1"),
    wrong("insert fractions into integers", lambda t: t.insert(rows(1, x=[1.5])), SCHEMA, "'x'", "expected int64", "convert"),
    wrong("insert text into numbers", lambda t: t.insert(rows(1, x=["a"])), SCHEMA, "'x'", "expected int64", "'a'"),
    wrong("insert integers that overflow", lambda t: t.insert(rows(1, x=[2**70])), SCHEMA, "'x'", "expected int64"),
    wrong("insert numbers into text", lambda t: t.insert(rows(1, text=[5])), SCHEMA, "'text'", "str"),
    wrong("insert bytes into text", lambda t: t.insert(rows(1, text=[b"a"])), SCHEMA, "'text'", "str"),
    wrong("insert an array into ragged", lambda t: t.insert(rows(1, tokens=np.zeros((1, 2), np.int32))), SCHEMA, "'tokens'", "ragged int32", "Ragged"),
    wrong("insert ragged of another dtype", lambda t: t.insert(rows(1, tokens=rc.Ragged.from_list([np.zeros(2, np.int64)]))), SCHEMA, "'tokens'", "ragged int32", "ragged int64"),
    wrong("insert ragged into fixed", lambda t: t.insert(rows(1, x=rc.Ragged.from_list([np.arange(2)]))), SCHEMA, "'x'", "expected int64", "ragged"),
    wrong("insert an absent cell", lambda t: t.insert(rows(2, x=[1, None])), SCHEMA, "'x'", "not optional", "row 1"),
    wrong("insert a nested column", lambda t: t.insert(rows(1, x={"y": np.arange(1)})), SCHEMA, "'x.y'"),
    wrong("insert shared into a table without", lambda t: t.insert(rows(1), shared={"p": [1]}), SCHEMA, "shared", "'plain'", "signature"),
    wrong("insert shared of another length", lambda t: t.insert({"x": np.arange(4)}, rows_per_item=2, shared={"prompt": ["a"]}), SCHEMA, "shared", "2 items", "1 cell", on=sharing),
    wrong("insert without shared", lambda t: t.insert({"x": np.arange(2)}, rows_per_item=2), SCHEMA, "shared column", "'prompt'", "missing", on=sharing),
    wrong("insert an unknown shared column", lambda t: t.insert({"x": np.arange(2)}, rows_per_item=2, shared={"prompt": ["a"], "y": [1]}), SCHEMA, "shared column", "'y'", "'prompt'", on=sharing),
    wrong("insert shared that is a number", lambda t: t.insert({"x": np.arange(2)}, rows_per_item=2, shared=5), SCHEMA, "mapping", "int", on=sharing),
    wrong("rows_per_item is zero", lambda t: t.insert(rows(2), rows_per_item=0), INVALID, "rows_per_item", "2 rows", "0"),
    wrong("rows_per_item does not divide", lambda t: t.insert(rows(3), rows_per_item=2), INVALID, "rows_per_item", "3 rows", "2"),
    wrong("rows_per_item is a float", lambda t: t.insert(rows(2), rows_per_item=1.0), INVALID, "rows_per_item", "whole", "1.0"),
    wrong("rows_per_item is text", lambda t: t.insert(rows(2), rows_per_item="2"), INVALID, "rows_per_item", "whole", "'2'"),
    wrong("rows_per_item is a bool", lambda t: t.insert(rows(2), rows_per_item=True), INVALID, "rows_per_item", "whole", "True"),
    wrong("rows_per_item adds up wrongly", lambda t: t.insert(rows(3), rows_per_item=[2, 2]), INVALID, "rows_per_item", "3 rows", "4"),
    wrong("rows_per_item with an empty item", lambda t: t.insert(rows(3), rows_per_item=[3, 0]), INVALID, "rows_per_item", "above 0"),
    wrong("rows_per_item with an empty item first", lambda t: t.insert(rows(3), rows_per_item=[0, 3]), INVALID, "rows_per_item: expected numbers above 0, got 0 for item 0"),
    wrong("rows_per_item below zero", lambda t: t.insert(rows(3), rows_per_item=[4, -1]), INVALID, "rows_per_item", "got -1 for item 1"),
    wrong("rows_per_item is nested", lambda t: t.insert(rows(3), rows_per_item=[[1, 2]]), INVALID, "rows_per_item", "[[1, 2]]"),
    wrong("rows_per_item is ragged", lambda t: t.insert(rows(3), rows_per_item=[[1], [1, 2]]), INVALID, "rows_per_item", "one per item"),
    wrong("priority is negative", lambda t: t.insert(rows(1), priority=-1.0), INVALID, "priority", "0 or more", "-1"),
    wrong("priority is NaN", lambda t: t.insert(rows(2), priority=[1.0, math.nan]), INVALID, "priority", "finite", "nan"),
    wrong("priority is infinite", lambda t: t.insert(rows(1), priority=math.inf), INVALID, "priority", "finite", "inf"),
    wrong("priority is text", lambda t: t.insert(rows(1), priority="high"), INVALID, "priority", "number", "'high'"),
    wrong("priority is a bool", lambda t: t.insert(rows(1), priority=True), INVALID, "priority", "number", "True"),
    wrong("priority is complex", lambda t: t.insert(rows(1), priority=1j), INVALID, "priority", "number", "1j"),
    wrong("priorities for other items", lambda t: t.insert(rows(3), priority=[1.0, 2.0]), INVALID, "priority", "3 items", "(2,)"),
    wrong("one priority in a list", lambda t: t.insert(rows(3), priority=[1.0]), INVALID, "priority", "3 items", "(1,)"),
    wrong("priorities are nested", lambda t: t.insert(rows(2), priority=[[1.0], [2.0]]), INVALID, "priority", "(2, 1)"),
    wrong("priorities are ragged", lambda t: t.insert(rows(2), priority=[[1.0], [2.0, 3.0]]), INVALID, "priority", "flat"),
    wrong("priority that overflows with alpha", lambda t: t.insert(rows(1), priority=1e300), INVALID, "priority", "1e+300", "too large"),
    wrong("task is a number", lambda t: t.insert(rows(1), task=5), INVALID, "task", "text", "5"),
    wrong("tasks for other items", lambda t: t.insert(rows(2), task=["a"]), INVALID, "task", "2 items", "1 value"),
    wrong("tasks are nested", lambda t: t.insert(rows(2), task=[["a"], ["b"]]), INVALID, "task", "text", "['a']"),
    wrong("one task is a number", lambda t: t.insert(rows(2), task=["a", 5]), INVALID, "task", "text", "5"),
    wrong("status is bytes", lambda t: t.insert(rows(1), status=b"done"), INVALID, "status", "text", "b'done'"),
    wrong("version is a float", lambda t: t.insert(rows(1), version=1.0), INVALID, "version", "whole number", "1.0"),
    wrong("version is negative", lambda t: t.insert(rows(1), version=-1), INVALID, "version", "0", "-1"),
    wrong("version is beyond 2**63", lambda t: t.insert(rows(1), version=2**63), INVALID, "version", "2**63 - 1"),
    wrong("version is a bool", lambda t: t.insert(rows(1), version=True), INVALID, "version", "whole number", "True"),
    wrong("versions are floats", lambda t: t.insert(rows(2), version=np.zeros(2)), INVALID, "version", "whole number", "float64"),
    wrong("version for an ageing table", lambda t: t.insert({"x": np.arange(1)}), INVALID, "version", "half_life", "version=", on=ageing),
    wrong("one version is absent for an ageing table", lambda t: t.insert({"x": np.arange(2)}, version=[1, None]), INVALID, "version", "half_life", on=ageing),
    wrong("score is text", lambda t: t.insert(rows(1), score="high"), INVALID, "score", "number", "'high'"),
    wrong("level is a float", lambda t: t.insert(rows(1), level=0.5), INVALID, "level", "whole number", "0.5"),
    wrong("hard is a number", lambda t: t.insert(rows(1), hard=1), INVALID, "hard", "True or False", "1"),
    wrong("genre is a number", lambda t: t.insert(rows(1), genre=1), INVALID, "genre", "text", "1"),
    wrong("unknown field", lambda t: t.insert(rows(1), nope=1), INVALID, "'nope'", "task", "score", "tags={'nope'"),
    wrong("key is given", lambda t: t.insert(rows(1), key=1), INVALID, "key", "the table makes", "task"),
    wrong("times_sampled is given", lambda t: t.insert(rows(1), times_sampled=1), INVALID, "times_sampled", "the table makes"),
    wrong("insert timeout is text", lambda t: t.insert(rows(1), timeout="a"), INVALID, "timeout", "seconds", "'a'"),
    wrong("insert timeout is negative", lambda t: t.insert(rows(1), timeout=-1), INVALID, "timeout", "0 or more", "-1"),
    wrong("insert timeout is NaN", lambda t: t.insert(rows(1), timeout=math.nan), INVALID, "timeout", "nan"),
    wrong("insert timeout is a bool", lambda t: t.insert(rows(1), timeout=True), INVALID, "timeout", "True"),
    wrong("request is a number", lambda t: t.insert(rows(1), request=5), INVALID, "request", "(producer, number)", "5"),
    wrong("request of three", lambda t: t.insert(rows(1), request=("a", 1, 2)), INVALID, "request", "(producer, number)"),
    wrong("request with text for a number", lambda t: t.insert(rows(1), request=("a", "b")), INVALID, "request", "('a', 'b')"),
    wrong("request below zero", lambda t: t.insert(rows(1), request=("a", -1)), INVALID, "request", "-1"),
    wrong("request of a float producer", lambda t: t.insert(rows(1), request=(0.5, 1)), INVALID, "request", "0.5"),
    wrong("insert more than fits", lambda t: t.insert(rows(11)), NEVER, "11 items", "'plain'", "capacity 10"),
    wrong("insert more bytes than fit", lambda t: t.insert(rows(1, text=["a" * 2000])), NEVER, "bytes", "1000 bytes", "fewer"),
    wrong("insert more than a queue holds", lambda t: t.insert({"x": np.arange(5)}), NEVER, "5", "4", on=queue),
    wrong("insert more than the error buffer admits", lambda t: t.insert({"x": np.arange(7)}), NEVER, "insert of 7", "error_buffer=7", on=ratio),
    wrong("insert while all is leased", lambda t: t.insert({"x": np.arange(1)}, timeout=0), TIMEOUT, "'leased'", "3 of its 3 items are leased", "confirmed or given back", on=leased_out),
    *(
        wrong(f"insert with shared={given!r} into {on.__name__}", lambda t, given=given: t.insert({"x": [1]}, shared=given), SCHEMA, "shared", "mapping", type(given).__name__, on=on)
        for on in (worn, sharing)
        for given in (0, [], False, "", np.zeros(1), np.zeros(0), [1], "prompt")
    ),
    wrong("insert with shared=[] into a new table", lambda _: table().insert({"x": [1]}, shared=[]), SCHEMA, "shared", "mapping", "list"),
    wrong("sample before min_size", lambda _: table(limiter=rc.MinSize(3)).sample(1, timeout=0), TIMEOUT, "limiter MinSize(3) needs 3 more inserts"),
    wrong("insert into a full queue", lambda t: t.insert({"x": np.arange(3)}, timeout=0), TIMEOUT, "insert", "'queue'", "0 s", "Queue(4)", "2 more", on=queue),
    wrong("insert_async of another dtype", lambda t: later(t.insert_async(rows(1, x=np.zeros(1)))), SCHEMA, "'x'", "int64", "float64"),
    wrong("insert_async with a wrong timeout", lambda t: later(t.insert_async(rows(1), timeout="a")), INVALID, "timeout", "'a'"),
]

SAMPLE = [
    wrong("sample none", lambda t: t.sample(0), INVALID, "n", "at least 1", "0"),
    wrong("sample a negative number", lambda t: t.sample(-1), INVALID, "n", "-1"),
    wrong("sample 2.0", lambda t: t.sample(2.0), INVALID, "n", "whole", "2.0"),
    wrong("sample text", lambda t: t.sample("2"), INVALID, "n", "'2'"),
    wrong("sample True", lambda t: t.sample(True), INVALID, "n", "True"),
    wrong("replace is text", lambda t: t.sample(2, replace="no"), INVALID, "replace", "True or False", "'no'"),
    wrong("replace is None", lambda t: t.sample(2, replace=None), INVALID, "replace", "None"),
    wrong("sample timeout is text", lambda t: t.sample(1, timeout="a"), INVALID, "timeout", "'a'"),
    wrong("sample timeout is negative", lambda t: t.sample(1, timeout=-0.5), INVALID, "timeout", "-0.5"),
    wrong("sample without replacement beyond the capacity", lambda t: t.sample(11, replace=False), NEVER, "11 different", "'plain'", "10"),
    wrong("sample in order beyond the capacity", lambda t: t.sample(11), NEVER, "11 different", "10", on=fifo),
    wrong("sample more than ever worn", lambda t: t.sample(9), NEVER, "9 samples", "4 items", "2 times", on=worn),
    wrong("sample more than the error buffer admits", lambda t: t.sample(13), NEVER, "sample of 13", "error_buffer=6.5", on=ratio),
    wrong("sample more than a queue holds", lambda t: t.sample(5), NEVER, "5 items", "4", on=queue),
    wrong("sample from nothing", lambda t: t.sample(1, timeout=0), TIMEOUT, "sample(1)", "'empty'", "0 s", "needs 1 item, has 0", "MinSize", "1 more insert", on=empty),
    wrong("sample what is not there in order", lambda t: t.sample(4, timeout=0), TIMEOUT, "sample(4)", "needs 4 items, has 3", on=fifo),
    wrong("sample what nothing matches", lambda t: t.sample(1, where=field("task") == "art", timeout=0), TIMEOUT, "needs 1 item, has 0"),
    wrong("sample what few match", lambda t: t.sample(4, where=field("task") == "math", replace=False, timeout=0), TIMEOUT, "needs 4 items, has 3"),
    wrong("take none", lambda t: t.take(0), INVALID, "n", "at least 1", "0"),
    wrong("take beyond the capacity", lambda t: t.take(11), NEVER, "11 different", "'plain'", "10"),
    wrong("take what is not there", lambda t: t.take(6, timeout=0), TIMEOUT, "take(6)", "needs 6 items, has 5"),
    wrong("take a part of nothing", lambda t: t.take(2, partial=True, timeout=0), TIMEOUT, "take(2)", "needs 1 item, has 0", on=empty),
    wrong("partial is text", lambda t: t.take(1, partial="x"), INVALID, "partial", "True or False", "'x'"),
    wrong("lease is negative", lambda t: t.take(1, lease=-1), INVALID, "lease", "0 or more", "-1"),
    wrong("lease is text", lambda t: t.take(1, lease="60"), INVALID, "lease", "seconds", "'60'"),
    wrong("lease is a bool", lambda t: t.take(1, lease=True), INVALID, "lease", "True"),
    wrong("owner is a number", lambda t: t.take(1, lease=1, owner=5), INVALID, "owner", "text", "5"),
    wrong("take timeout is text", lambda t: t.take(1, timeout="a"), INVALID, "timeout", "'a'"),
    wrong("sample_async none", lambda t: later(t.sample_async(0)), INVALID, "n", "at least 1"),
    wrong("sample_async in vain", lambda t: later(t.sample_async(4, timeout=0)), TIMEOUT, "sample(4)", "needs 4 items, has 3", on=fifo),
    wrong("take_async beyond the capacity", lambda t: later(t.take_async(11)), NEVER, "11 different"),
    wrong("take_async in vain", lambda t: later(t.take_async(4, timeout=0)), TIMEOUT, "take(4)", "needs 4 items, has 3", on=fifo),
]

QUERIES = [
    wrong("query is text", lambda t: t.count("task = 'math'"), QUERY, "rc.parse"),
    wrong("query is a number", lambda t: t.sample(1, where=5), QUERY, "rc.field", "5"),
    wrong("query is empty", lambda t: t.count({}), QUERY, "condition"),
    wrong("query with an unknown field", lambda t: t.count(field("nope") == 1), QUERY, "'nope'", "task", "score"),
    wrong("query with an unknown operator", lambda t: t.take(1, where={"score": {"above": 1}}), QUERY, "score.above", "'above'", "gt"),
    wrong("query compares text with a number", lambda t: t.delete(where=field("task") == 5), QUERY, "task", "str", "5"),
    wrong("query compares a number with text", lambda t: t.count(field("score") > "high"), QUERY, "score", "float", "'high'"),
    wrong("query orders text", lambda t: t.count(field("task") > "a"), QUERY, "task", "no order"),
    wrong("query orders bools", lambda t: t.count(field("hard") > False), QUERY, "hard", "no order"),
    wrong("query with NaN", lambda t: t.count(field("score") == math.nan), QUERY, "NaN", "None"),
    wrong("query for a column", lambda t: t.count(field("x") == 1), QUERY, "'x'", "there are"),
    wrong("query without a comparison", lambda t: t.count(field("task")), QUERY, "query"),
    wrong("query that does not parse", lambda t: t.count(rc.parse("score >")), QUERY, "score >"),
]

KEYS = [
    wrong("keys are text", lambda t: t.update("abc", priority=1.0), INVALID, "keys", "'abc'"),
    wrong("keys are floats", lambda t: t.update([1.0], priority=1.0), INVALID, "keys", "[1.0]"),
    wrong("keys are negative", lambda t: t.delete([-1]), INVALID, "keys", "[-1]"),
    wrong("keys are None", lambda t: t.get(None), INVALID, "keys", "None"),
    wrong("keys are nested", lambda t: t.get([[1], [2]]), INVALID, "keys", "flat"),
    wrong("keys are ragged", lambda t: t.get([[1], [2, 3]]), INVALID, "keys", "flat"),
    wrong("keys are bools", lambda t: t.get([True]), INVALID, "keys", "True"),
    wrong("keys are beyond uint64", lambda t: t.get([2**64]), INVALID, "keys"),
    wrong("get what has gone", lambda t: t.get([12345]), rc.UnknownKey, "1 of 1 keys", "12345", "gone"),
    wrong("get from a table without columns", lambda t: t.get([12345]), SCHEMA, "'empty'", "no columns", on=empty),
    wrong("get unknown columns", lambda t: t.get(keys_of(t), columns=["zz"]), SCHEMA, "'zz'", "'x'"),
    wrong("get columns by number", lambda t: t.get(keys_of(t), columns=5), INVALID, "columns", "names", "5"),
    wrong("counts of nothing", lambda t: t.counts(), INVALID, "counts", "task"),
    wrong("counts of a list", lambda t: t.counts(["task"]), INVALID, 'counts("task", "status")'),
    wrong("counts of an unknown field", lambda t: t.counts("nope"), QUERY, "'nope'", "task", "score"),
    wrong("update nothing", lambda t: t.update(keys_of(t)), INVALID, "update", "priority", "task", "score"),
    wrong("update the key", lambda t: t.update(keys_of(t), key=1), INVALID, "key", "the table makes"),
    wrong("update an unknown field", lambda t: t.update(keys_of(t), nope=1), INVALID, "'nope'", "priority"),
    wrong("update to a negative priority", lambda t: t.update(keys_of(t), priority=[1, 1, 1, 1, 1, -2]), INVALID, "priority", "-2"),
    wrong("update to a NaN priority", lambda t: t.update(keys_of(t), priority=math.nan), INVALID, "priority", "nan"),
    wrong("update priorities of other items", lambda t: t.update(keys_of(t), priority=[1, 2]), INVALID, "priority", "6 items", "(2,)"),
    wrong("update a priority and a wrong task", lambda t: t.update(keys_of(t), priority=9.0, task=5), INVALID, "task", "text"),
    wrong("update to a wrong status", lambda t: t.update(keys_of(t), status=["a", "b"]), INVALID, "status", "6 items"),
    wrong("update away the version of an ageing item", lambda t: t.update(keys_of(t), version=None), INVALID, "version", "half_life", on=ageing),
    wrong("delete nothing in particular", lambda t: t.delete(), INVALID, "delete", "keys or a query", "clear()"),
    wrong("amend an unknown column", lambda t: t.amend(keys_of(t)[:1], {"nope": [1.0]}), SCHEMA, "'nope'", "'note'"),
    wrong("amend gone items with an unknown column", lambda t: t.amend([12345], {"nope": [1.0]}), SCHEMA, "'nope'"),
    wrong("amend a column that is not optional", lambda t: t.amend(keys_of(t)[:1], {"x": [1]}), SCHEMA, "amend", "'x'", "not optional"),
    wrong("amend no column", lambda t: t.amend(keys_of(t), {}), SCHEMA, "amend", "at least one column"),
    wrong("amend with another dtype", lambda t: t.amend(keys_of(t)[:1], {"note": np.zeros(1)}), SCHEMA, "'note'", "float32", "float64"),
    wrong("amend with too few rows", lambda t: t.amend(keys_of(t), {"note": [1.0, 2.0]}), SCHEMA, "amend", "2 rows", "6"),
    wrong("amend what is there", lambda t: t.amend(keys_of(t)[:1], {"note": [1.0]}), INVALID, "'note'", "row 0", "give None for that row, or leave the column out", on=noted),
    wrong("amend a key twice", lambda t: t.amend([1, 1], {"note": [1.0, 2.0]}), INVALID, "keys", "twice"),
    wrong("amend a table without columns", lambda t: t.amend([1], {"note": [1.0]}), SCHEMA, "'empty'", on=empty),
    wrong("add a column twice", lambda t: t.add_column("x", "float32"), SCHEMA, "'x'", "already"),
    wrong("add a column inside a column", lambda t: t.add_column("x.y", "float32"), SCHEMA, "'x.y'", "'x'", "already"),
    wrong("add a column without a name", lambda t: t.add_column("", "float32"), SCHEMA, "name", "''"),
    wrong("add a column of two dots", lambda t: t.add_column("a..b", "float32"), SCHEMA, "name", "'a..b'"),
    wrong("add a column of a number's name", lambda t: t.add_column(5, "float32"), SCHEMA, "name", "5"),
    wrong("add a column of no dtype", lambda t: t.add_column("y", "nope"), SCHEMA, "dtype", "'nope'"),
    wrong("add a column to a table without", lambda t: t.add_column("y", "float32"), SCHEMA, "'empty'", "signature", on=empty),
]

MANY = np.linspace(0.0, 1.0, 5000).reshape(-1, 2)

LARGE = [
    wrong("capacity is a large array", lambda _: table(capacity=MANY), INVALID, "capacity", "whole"),
    wrong("sampler is a large array", lambda _: table(sampler=MANY), INVALID, "sampler", "rc.Fifo()"),
    wrong("limiter is a large array", lambda _: table(limiter=MANY), INVALID, "limiter", "rc.MinSize(1)"),
    wrong("tags are a large array", lambda _: table(tags=MANY), INVALID, "tags"),
    wrong("signature is a large array", lambda _: table(signature={"x": MANY}), SCHEMA, "signature", "'x'", "rc.Column"),
    wrong("alpha is a large array", lambda _: rc.Prioritized(alpha=MANY), INVALID, "alpha", "number"),
    wrong("min_size is a large array", lambda _: rc.MinSize(MANY), INVALID, "min_size", "whole"),
    wrong("dtype is a large array", lambda _: rc.Column(MANY), SCHEMA, "dtype"),
    wrong("keys are a large array", lambda t: t.update(MANY, priority=1.0), INVALID, "keys", "flat"),
    wrong("keys are a batch", lambda t: t.update(t.get(keys_of(t)), priority=1.0), INVALID, "keys"),
    wrong("n is a large array", lambda t: t.sample(MANY), INVALID, "n", "whole"),
    wrong("timeout is a large array", lambda t: t.sample(1, timeout=MANY), INVALID, "timeout", "seconds"),
    wrong("replace is a large array", lambda t: t.sample(1, replace=MANY), INVALID, "replace", "True or False"),
    wrong("where is a large array", lambda t: t.sample(1, where=MANY), QUERY, "rc.field"),
    wrong("rows_per_item is a large array", lambda t: t.insert(rows(2), rows_per_item=MANY), INVALID, "rows_per_item", "whole"),
    wrong("priority is a large list of text", lambda t: t.insert(rows(2), priority=["a"] * 5000), INVALID, "priority", "number"),
    wrong("task is a long text where a number should be", lambda t: t.insert(rows(1), version="a" * 5000), INVALID, "version", "whole"),
    wrong("score is a large array", lambda t: t.insert(rows(2), score=MANY), INVALID, "score", "2 items", "(2500, 2)"),
    wrong("request is a large array", lambda t: t.insert(rows(1), request=MANY), INVALID, "request", "(producer, number)"),
    wrong("owner is a large array", lambda t: t.take(1, lease=1, owner=MANY), INVALID, "owner", "text"),
    wrong("lease is a large array", lambda t: t.take(1, lease=MANY), INVALID, "lease", "seconds"),
    wrong("confirm a batch", lambda t: t.confirm(t.get(keys_of(t))), INVALID, "lease", "batch.info.lease"),
    wrong("follow a large array", lambda t: t.follow(MANY), INVALID, "follow and settle"),
]

LEASES = [
    wrong("confirm nothing", lambda t: t.confirm(None), INVALID, "lease", "batch.info.lease", "None"),
    wrong("confirm a list", lambda t: t.confirm([]), INVALID, "lease", "batch.info.lease", "[]"),
    wrong("confirm True", lambda t: t.confirm(True), INVALID, "lease", "batch.info.lease", "True"),
    wrong("confirm text", lambda t: t.confirm("1"), INVALID, "lease", "'1'"),
    wrong("confirm an unknown lease", lambda t: t.confirm(3), LEASE, "3", "not held", "deadline"),
    wrong("give back a batch", lambda t: t.give_back(t.get([])), INVALID, "lease", "batch.info.lease"),
    wrong("give back an unknown lease", lambda t: t.give_back(3), LEASE, "3", "not held"),
    wrong("renew an unknown lease", lambda t: t.renew(3, 60), LEASE, "3", "not held"),
    wrong("renew by a negative span", lambda t: t.renew(held(t), -1), INVALID, "seconds", "-1"),
    wrong("renew by text", lambda t: t.renew(held(t), "a"), INVALID, "seconds", "'a'"),
    wrong("release a number", lambda t: t.release(5), INVALID, "owner", "text", "5"),
    wrong("follow a number", lambda t: t.follow(5), INVALID, "follow", "settle", "5"),
    wrong("follow half a follower", lambda t: t.follow(asyncio), INVALID, "follow and settle"),
    wrong("time goes back", lambda t: t.core.clock.advance(-1), INVALID, "seconds", "-1"),
    wrong("store of numbers", lambda t: rc.Store([1]), INVALID, "rc.Table", "1"),
    wrong("store of one table", lambda t: rc.Store(t), INVALID, "list of tables"),
    wrong("store of two tables of one name", lambda t: rc.Store([t, t]), INVALID, "'plain'", "rename"),
    wrong("unknown table of a store", lambda t: rc.Store([t])["z"], KeyError, "'z'", "plain"),
]

CLOSED = [
    wrong(f"{name} on a closed table", call, rc.TableClosed, "'uniform'", "closed", on=closed)
    for name, call in {
        "insert": lambda t: t.insert({"x": np.arange(1)}),
        "sample": lambda t: t.sample(1),
        "take": lambda t: t.take(1),
        "update": lambda t: t.update([1], priority=1.0),
        "delete": lambda t: t.delete([1]),
        "amend": lambda t: t.amend([1], {"x": [1]}),
        "add_column": lambda t: t.add_column("y", "int8"),
        "get": lambda t: t.get([1]),
        "count": lambda t: t.count(),
        "counts": lambda t: t.counts("task"),
        "stats": lambda t: t.stats(),
        "clear": lambda t: t.clear(),
        "confirm": lambda t: t.confirm(1),
        "give_back": lambda t: t.give_back(1),
        "renew": lambda t: t.renew(1, 1),
        "release": lambda t: t.release("me"),
        "insert_async": lambda t: later(t.insert_async({"x": np.arange(1)})),
        "sample_async": lambda t: later(t.sample_async(1)),
        "take_async": lambda t: later(t.take_async(1)),
    }.items()
]
# fmt: on

WRONG_CALLS = [
    *CONSTRUCTION,
    *RULES,
    *COLUMNS,
    *INSERT,
    *SAMPLE,
    *QUERIES,
    *KEYS,
    *LARGE,
    *LEASES,
    *CLOSED,
]


def held(table: rc.Table) -> Any:
    (lease,) = table.core.leases.of_owner("me")
    return lease


def as_text(column: Any) -> str:
    return repr(column.to_list() if isinstance(column, rc.Ragged) else column.tolist())


def seen(table: rc.Table) -> dict[str, Any]:
    """Everything that one can see of a table, without changing it."""
    facts: dict[str, Any] = {
        "len": len(table),
        "nbytes": table.nbytes,
        "repr": repr(table),
        "rules": (table.sampler, table.remover, table.limiter),
        "columns": table.columns,
        "fields": table.fields,
    }
    if table.core.closed:
        return facts
    facts["stats"] = table.stats()
    facts["counts"] = table.counts("task", "status", "version", "times_sampled", "priority")
    if table.columns:
        keys = keys_of(table)
        facts["keys"] = (keys & COUNTER).tolist()
        items = table.get(keys)
        facts["items"] = {name: as_text(column) for name, column in items.columns.items()}
        facts["present"] = {name: as_text(mask) for name, mask in items.present.items()}
        facts["deliveries"] = items.info.deliveries.tolist()
    return facts


def what_follows(table: rc.Table) -> list[Any]:
    """What a table does next: draws, and the keys of new items."""
    if table.core.closed:
        return []
    columns = rows(1) if "obs" in table.columns else {"x": np.arange(1)}
    extra = {"shared": {"prompt": ["c"]}} if table.name == "sharing" else {}
    found: list[Any] = []
    for _ in range(3):
        if table.stats()["size"] > table.stats()["leased"]:
            batch = table.sample(1, timeout=0)
            found += [batch["x"].tolist(), batch.info.probability.tolist()]
    if table.name not in ("leased", "worn"):
        keys = table.insert(columns, version=4, timeout=0, **extra)
        found.append((keys & COUNTER).tolist())
    return found


@pytest.mark.parametrize("wrong", WRONG_CALLS)
def test_wrong_call_says_what_is_wrong_and_changes_nothing(wrong: Wrong) -> None:
    table, twin = wrong.on(), wrong.on()
    before = seen(table)

    with pytest.raises(wrong.error) as raised:
        wrong.call(table)

    message = str(raised.value)
    missing = [word for word in wrong.words if word not in message]
    assert not missing, f"{missing} not in: {message}"
    assert "\n" not in message or "^" in message  # one line, or text with a mark below it
    assert len(message) < 400
    assert seen(table) == before == seen(twin)
    assert what_follows(table) == what_follows(twin)


def test_every_error_on_purpose_is_of_one_family() -> None:
    for name in rc.errors.__dict__:
        error = getattr(rc.errors, name)
        if isinstance(error, type) and issubclass(error, Exception):
            assert issubclass(error, rc.RecollectError)
    assert issubclass(rc.InvalidValue, ValueError)
    assert issubclass(rc.WaitTimeout, TimeoutError)
    assert issubclass(rc.UnknownKey, KeyError)


def test_names_of_cases_are_unique() -> None:
    names = [case.id for case in WRONG_CALLS]
    assert len(set(names)) == len(names)
