"""Tables, stores and rules from data: what is built, what is refused and where, and back again."""

from __future__ import annotations

import gc
import json
import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import recollect as rc
from recollect.config import rule_from_config, store_from_config, table_from_config, to_config

TABLE: dict[str, Any] = {"name": "t", "capacity": 100}


def table(**entries: Any) -> rc.Table:
    return table_from_config({**TABLE, **entries})


def refusal(config: Any) -> str:
    with pytest.raises(rc.ConfigError) as caught:
        table_from_config(config)
    return str(caught.value)


# -- what is built --------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("entry", "written", "rule"),
    [
        ("sampler", "Fifo", rc.Fifo()),
        ("sampler", {"type": "Fifo"}, rc.Fifo()),
        ("sampler", {"type": "Prioritized", "alpha": 0.7}, rc.Prioritized(alpha=0.7)),
        ("sampler", {"type": "Weighted", "field": "rows"}, rc.Weighted("rows")),
        ("sampler", {"type": "Prioritized", "normalize": None}, rc.Prioritized(normalize=None)),
        ("sampler", {"type": "Prioritized", "alpha": np.float64(0.5)}, rc.Prioritized(alpha=0.5)),
        (
            "sampler",
            {"type": "Prioritized", "beta": {"type": "Linear", "start": 0, "end": 1, "steps": 9}},
            rc.Prioritized(beta=rc.Linear(0, 1, 9)),
        ),
        (
            "sampler",
            {"type": "Mixed", "selectors": [["Lifo", 3], [{"type": "Uniform"}, 1]]},
            rc.Mixed([(rc.Lifo(), 3), (rc.Uniform(), 1)]),
        ),
        ("sampler", None, rc.Uniform()),
        ("remover", {"type": "Smallest", "field": "priority"}, rc.Smallest("priority")),
        ("limiter", "MinSize", rc.MinSize()),
        ("limiter", {"type": "Stack", "size": 10}, rc.Stack(10)),
        (
            "limiter",
            {"type": "SampleToInsertRatio", "ratio": 4, "error_buffer": 40},
            rc.SampleToInsertRatio(4, error_buffer=40),
        ),
        (
            "limiter",
            {"type": "SampleToInsertRatio", "ratio": 4, "error_buffer": [-40, 40]},
            rc.SampleToInsertRatio(4, error_buffer=(-40, 40)),
        ),
    ],
)
def test_a_rule_is_its_name_or_a_mapping_with_its_type(entry: str, written: Any, rule: Any) -> None:
    assert getattr(table(**{entry: written}), entry) == rule


def test_a_table_takes_every_argument_that_data_can_give() -> None:
    made = table(
        capacity_bytes=1000,
        max_times_sampled=2,
        tags={"score": "float", "kind": "str"},
        partition_by=["task", "kind"],
        storage="memory",
        seed=3,
        journal=None,
        checkpoint=False,
        clock=None,
        signature=None,
    )
    assert (made.capacity, made.capacity_bytes, made.max_times_sampled) == (100, 1000, 2)
    assert made.partition_by == ("task", "kind")
    assert made.checkpoint is False
    made.insert({"x": [1.0]}, score=0.5, kind="a")
    assert made.count({"score": 0.5, "kind": "a"}) == 1


def test_a_signature_declares_plain_nested_and_shared_columns() -> None:
    made = table(
        signature={
            "obs": {"image": {"dtype": "uint8", "shape": [2, 2]}, "state": "float32"},
            "tokens": {"dtype": "int32", "ragged": True, "optional": True},
            "prompt": {"dtype": "str", "shared": True},
        }
    )
    rows = {"obs": {"image": np.zeros((1, 2, 2), np.uint8), "state": np.zeros(1, np.float32)}}
    keys = made.insert(rows, shared={"prompt": ["why?"]})
    assert made.get(keys)["obs"]["image"].shape == (1, 2, 2)
    assert not made.get(keys).present["tokens"].any()
    with pytest.raises(rc.SchemaError, match="float32"):
        made.insert({"obs": {**rows["obs"], "state": np.zeros(1)}}, shared={"prompt": ["why?"]})


def test_a_config_is_left_as_it_was() -> None:
    config = {"tables": {"a": {"capacity": 1, "sampler": {"type": "Fifo"}}}}
    before = json.dumps(config)
    store_from_config(config)
    assert json.dumps(config) == before


def test_a_new_rule_can_be_configured_without_being_registered() -> None:
    @dataclass(frozen=True)
    class Oldest(rc.Selector):
        limits: tuple[int, ...]
        part: rc.Selector | None = None

    written = {"type": "Oldest", "limits": [1, 2], "part": "Lifo"}
    with pytest.raises(rc.ConfigError, match=r"^s\.limits\[1\]: expected a whole number, got 'x'$"):
        rule_from_config(rc.Selector, {"type": "Oldest", "limits": [1, "x"]}, "s")
    # `get_type_hints` finds `rc` in this module; the class itself is found through its base.
    assert rule_from_config(rc.Selector, written) == Oldest((1, 2), rc.Lifo())
    del Oldest
    gc.collect()  # a class is part of a cycle; other tests list the selectors that exist


# -- what is refused, and where -------------------------------------------------------------------
PRIORITIZED = "alpha, beta, half_life, stratified, normalize"
SELECTORS = (
    "Fifo, Lifo, Smallest, Largest, StalestFirst, FreshestFirst, Uniform, Prioritized, Weighted, "
    "Mixed"
)


def prioritized(**arguments: Any) -> dict[str, Any]:
    return {"sampler": {"type": "Prioritized", **arguments}}


def mixed(*parts: Any) -> dict[str, Any]:
    return {"sampler": {"type": "Mixed", "selectors": [*parts]}}


def ratio(**arguments: Any) -> dict[str, Any]:
    return {"limiter": {"type": "SampleToInsertRatio", **arguments}}


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        # values of another type
        (prioritized(alpha="high"), "sampler.alpha: expected a number, got 'high'"),
        (prioritized(alpha=True), "sampler.alpha: expected a number, got True"),
        (prioritized(alpha=None), "sampler.alpha: expected a number, got None"),
        (prioritized(stratified=1), "sampler.stratified: expected true or false, got 1"),
        (prioritized(normalize=1), "sampler.normalize: expected text or null, got 1"),
        (
            prioritized(beta="low"),
            "sampler.beta: expected a number or a mapping of type Linear, got 'low'",
        ),
        ({"capacity": "many"}, "capacity: expected a whole number, got 'many'"),
        ({"capacity": 1.5}, "capacity: expected a whole number, got 1.5"),
        ({"name": 3}, "name: expected text, got 3"),
        ({"seed": "x"}, "seed: expected a whole number or null, got 'x'"),
        ({"checkpoint": "no"}, "checkpoint: expected true or false, got 'no'"),
        ({"sampler": 3}, f"sampler: expected one of {SELECTORS} or null, got 3"),
        ({"partition_by": "task"}, "partition_by: expected a list, got 'task'"),
        ({"partition_by": ["task", 3]}, "partition_by[1]: expected text, got 3"),
        ({"tags": ["score"]}, "tags: expected a mapping or null, got ['score']"),
        ({"tags": {"score": ["float"]}}, "tags.score: expected text, got ['float']"),
        ({"clock": "fast"}, "clock: expected null, got 'fast'"),
        (mixed(["Fifo", "half"]), "sampler.selectors[0][1]: expected a number, got 'half'"),
        (mixed(["Fifo"]), "sampler.selectors[0]: expected a list of 2, got ['Fifo']"),
        (mixed("Fifo"), "sampler.selectors[0]: expected a list, got 'Fifo'"),
        (
            mixed([{"type": "Prioritized", "beta": {"type": "Linear", "start": "x"}}, 1]),
            "sampler.selectors[0][0].beta.end: missing",
        ),
        (
            ratio(ratio=4, error_buffer=[1, "x"]),
            "limiter.error_buffer[1]: expected a number, got 'x'",
        ),
        (
            ratio(ratio=4, error_buffer="x"),
            "limiter.error_buffer: expected a number or a list, got 'x'",
        ),
        # unknown and missing names
        (
            prioritized(alhpa=1.0),
            f"sampler.alhpa: unknown; did you mean 'alpha'? expected one of {PRIORITIZED}",
        ),
        (prioritized(zzz=1.0), f"sampler.zzz: unknown; expected one of {PRIORITIZED}"),
        (
            {"sampler": {"type": "Fifo", "alpha": 1}},
            "sampler.alpha: unknown; expected no arguments",
        ),
        (
            {"sampler": "Fifoo"},
            f"sampler: unknown 'Fifoo'; did you mean 'Fifo'? expected one of {SELECTORS}",
        ),
        (
            {"sampler": {"type": "Prioritised"}},
            "sampler.type: unknown 'Prioritised'; did you mean 'Prioritized'? "
            f"expected one of {SELECTORS}",
        ),
        (
            {"sampler": {"type": ["Fifo"]}},
            f"sampler.type: unknown ['Fifo']; did you mean 'Fifo'? expected one of {SELECTORS}",
        ),
        ({"sampler": {"alpha": 1.0}}, "sampler.type: missing"),
        ({"sampler": {"type": "Smallest"}}, "sampler.field: missing"),
        ({"sampler": "Smallest"}, "sampler.field: missing"),
        ({"storage": "tape"}, "storage: unknown 'tape'; expected one of memory, frame, sql"),
        ({"storage": "sql"}, "storage.url: missing"),
        (
            {"storage": {"type": "sql", "url": "x://y"}},
            "storage.url: expected 'sqlite:///replay.db', 'sqlite://' or "
            "'postgresql://user@host/name', and 'x' is another database",
        ),
        (
            {"limiter": "Fifo"},
            "limiter: unknown 'Fifo'; expected one of MinSize, SampleToInsertRatio, Queue, Stack",
        ),
        # what the rules themselves refuse
        (prioritized(alpha=-1), "sampler.alpha: expected a number of at least 0, got -1"),
        (prioritized(alpha=math.nan), "sampler.alpha: expected a finite number, got nan"),
        (
            prioritized(normalize="all"),
            "sampler.normalize: expected 'batch', 'table' or None, got 'all'",
        ),
        (
            prioritized(beta={"type": "Linear", "start": -1, "end": 1, "steps": 9}),
            "sampler.beta.start: expected a number of at least 0, got -1",
        ),
        (
            prioritized(beta={"type": "Linear", "start": 0, "end": 1, "steps": 0}),
            "sampler.beta.steps: expected a whole number above 0, got 0",
        ),
        (mixed(), "sampler.selectors: expected at least one share above 0"),
        (ratio(ratio=0), "limiter.ratio: expected a number above 0, got 0"),
        ({"capacity": 0}, "capacity: expected a whole number of at least 1, got 0"),
        ({"tags": {"score": "flaot"}}, "tags.score: expected int, float, bool or str, got 'flaot'"),
    ],
)
def test_an_error_names_the_path_and_what_was_expected(
    entries: dict[str, Any], message: str
) -> None:
    assert refusal({**TABLE, **entries}) == message


@pytest.mark.parametrize(
    ("entries", "path"),
    [
        (mixed(["Fifo", 1], [mixed(["Fifo", 1])["sampler"], 1]), "sampler.selectors[1]"),
        (ratio(ratio=4, error_buffer=1), "limiter.error_buffer"),
        ({"limiter": {"type": "MinSize", "min_size": 101}}, "limiter"),
        ({"limiter": {"type": "Queue", "size": 101}}, "limiter"),
        ({"sampler": {"type": "Smallest", "field": "scor"}}, "sampler"),
        ({"sampler": {"type": "Smallest", "field": ""}}, "sampler.field"),
        ({"partition_by": ["priority"]}, "partition_by"),
        ({"tags": {"key": "int"}}, "tags"),
        ({"journal": 5}, "journal"),
        ({"journal": {"path": "here", "sync": "often"}}, "journal.sync"),
        ({"signature": {"a.b": "float32"}}, "signature"),
        ({"signature": {"a": {}}}, "signature"),
        ({"signature": {"a": {"b": "flaot32"}}}, "signature.a.b.dtype"),
        ({"signature": {"a": {"dtype": "float32", "shape": [-1]}}}, "signature.a.shape"),
        ({"signature": {"a": "complex64"}}, "signature.a"),
        ({"signature": {"a": {"dtype": "float32", "shape": ["x"]}}}, "signature.a.shape[0]"),
        ({"signature": {"a": {"dtype": "float32", "shap": [1]}}}, "signature.a.shap"),
        ({"signature": {"a": {"dtype": None}}}, "signature.a.dtype"),
        ({"signature": {"a": {"shape": [1]}}}, "signature.a.shape"),
        ({"signature": {"a": None}}, "signature.a"),
        ({"signature": "float32"}, "signature"),
    ],
)
def test_an_error_of_the_table_or_a_rule_gets_its_path_once(
    entries: dict[str, Any], path: str
) -> None:
    message = refusal({**TABLE, **entries})
    assert message.startswith(f"{path}: ")
    assert message.count(f"{path.split('.')[-1]}: ") == 1


def test_missing_and_unknown_entries_of_a_table_are_named() -> None:
    assert refusal({"name": "t"}) == "capacity: missing"
    assert refusal({"capacity": 3}) == "name: missing"
    assert refusal({"name": "t", "capactiy": 3}).startswith(
        "capactiy: unknown; did you mean 'capacity'? expected one of name, capacity, "
    )
    assert refusal({**TABLE, 3: 4}).startswith("3: unknown; expected one of name, ")


def test_what_is_neither_a_mapping_nor_a_path_is_refused() -> None:
    assert refusal(3) == "expected a mapping, got 3"
    assert refusal([TABLE]).startswith("expected a mapping, got [")


def test_a_mapping_that_contains_itself_is_refused() -> None:
    entries: dict[str, Any] = {"type": "Mixed"}
    entries["selectors"] = [[entries, 1]]
    assert refusal({**TABLE, "sampler": entries}) == "an entry contains itself, or too many others"


# -- stores ---------------------------------------------------------------------------------------
def test_a_store_is_a_list_or_a_mapping_of_tables() -> None:
    listed = store_from_config({"tables": [TABLE, {"name": "u", "capacity": 5}]})
    named = store_from_config({"tables": {"t": TABLE, "u": {"capacity": 5}}})
    assert [(t.name, t.capacity) for t in listed.values()] == [("t", 100), ("u", 5)]
    assert [(t.name, t.capacity) for t in named.values()] == [("t", 100), ("u", 5)]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "tables: missing"),
        ({"tabels": []}, "tabels: unknown; did you mean 'tables'? expected one of tables, journal"),
        ({"tables": None}, "tables: expected a list or a mapping, got None"),
        ({"tables": [TABLE, 3]}, "tables[1]: expected a mapping, got 3"),
        ({"tables": {"a": 3}}, "tables.a: expected a mapping, got 3"),
        ({"tables": {"a": {}}}, "tables.a.capacity: missing"),
        ({"tables": {3: {"capacity": 5}}}, "tables.3.name: expected text, got 3"),
        ({"tables": {"a": TABLE}}, "tables.a.name: expected 'a', got 't'"),
        ({"tables": [TABLE, TABLE]}, "tables: two tables are called 't'; rename one"),
        (
            {"tables": [{**TABLE, **prioritized(alpha="high")}]},
            "tables[0].sampler.alpha: expected a number, got 'high'",
        ),
        (
            {"tables": {"t": {**TABLE, **prioritized(alpha=-1)}}},
            "tables.t.sampler.alpha: expected a number of at least 0, got -1",
        ),
        (
            {"tables": [{"name": "t", "capacity": 0}]},
            "tables[0].capacity: expected a whole number of at least 1, got 0",
        ),
    ],
)
def test_an_error_in_a_store_names_the_table(config: Any, message: str) -> None:
    with pytest.raises(rc.ConfigError) as caught:
        store_from_config(config)
    assert str(caught.value) == message


# -- files ----------------------------------------------------------------------------------------
@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "table.yaml"


def test_a_table_comes_from_a_file_at_a_str_or_a_path(file: Path) -> None:
    file.write_text("name: t\ncapacity: 10\nsampler: {type: Prioritized, alpha: 1e-1}\n")
    for path in (file, str(file)):
        made = rc.Table.from_config(path)
        assert (made.name, made.sampler) == ("t", rc.Prioritized(alpha=0.1))


def test_a_file_may_share_and_merge_entries(file: Path) -> None:
    file.write_text(
        "tables:\n"
        "  a: &a {capacity: 10, sampler: Lifo}\n"
        "  b: &b {<<: *a, capacity: 20}\n"
        "  c: {<<: *b, sampler: Fifo}\n"
    )
    made = [(t.name, t.capacity, t.sampler) for t in rc.Store.from_config(file).values()]
    assert made == [("a", 10, rc.Lifo()), ("b", 20, rc.Lifo()), ("c", 20, rc.Fifo())]


def test_infinity_is_a_number_in_a_file(file: Path) -> None:
    limiter = "{type: SampleToInsertRatio, ratio: 1, error_buffer: .inf}"
    file.write_text(f"name: t\ncapacity: 10\nlimiter: {limiter}\n")
    assert rc.Table.from_config(file).limiter == rc.SampleToInsertRatio(1)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "No such file"),
        ("", "expected a mapping, as 'name: value' in lines, got an empty file"),
        ("- name: t", "expected a mapping, as 'name: value' in lines, got \\[{'name': 't'}\\]"),
        ("name: [", "line 1"),
        ("name: t\nname: u", "'name' is there twice .*line 2, column 1"),
        ("name: t\ncapacity: 9\nsampler: {type: Fifo, 'type': Fifo}", "'type' is there twice"),
        ("name: t\n---\nname: u", "line 2"),
        ("name: !!python/object/apply:os.getcwd []", "could not determine a constructor"),
        ("name: !!python/name:os.system", "could not determine a constructor"),
        ("name: 2024-13-45", "month must be in 1..12"),
        ("name: !!int many", "invalid literal"),
        ("? {a: 1}\n: 2", "unhashable"),
        ("name: \x07", "special characters are not allowed"),
        ("name: " + "[" * 5000, "recursion"),
    ],
)
def test_what_is_no_yaml_mapping_is_refused_with_the_files_name(
    file: Path, text: str | None, problem: str
) -> None:
    if text is not None:
        file.write_text(text)
    with pytest.raises(rc.ConfigError, match=problem) as caught:
        table_from_config(file)
    assert str(caught.value).startswith(f"{file}: ")


def test_bytes_that_are_no_text_are_refused_with_the_files_name(file: Path) -> None:
    file.write_bytes(b"name: \xff\xfe\xfa")
    with pytest.raises(rc.ConfigError, match=r"table\.yaml: cannot be read: "):
        table_from_config(file)


def test_an_error_inside_a_file_begins_with_its_path_and_notes_the_file(file: Path) -> None:
    file.write_text("tables: [{name: t, capacity: many}]")
    with pytest.raises(rc.ConfigError) as caught:
        store_from_config(file)
    assert str(caught.value) == "tables[0].capacity: expected a whole number, got 'many'"
    assert caught.value.__notes__ == [f"in the file {file}"]


def test_an_alias_inside_itself_is_refused(file: Path) -> None:
    file.write_text("name: t\ncapacity: 9\nsampler: &s {type: Mixed, selectors: [[*s, 1]]}\n")
    with pytest.raises(rc.ConfigError, match="contains itself"):
        table_from_config(file)


# -- and back -------------------------------------------------------------------------------------
numbers = st.floats(0, 1e6) | st.integers(0, 1000) | st.floats(0, 1e6).map(np.float64)
schedules = st.builds(rc.Linear, numbers, numbers, st.integers(1, 10**9))
weights: dict[str, Any] = {
    "alpha": numbers,
    "beta": numbers | schedules,
    "half_life": st.none() | st.floats(1e-3, 1e6),
    "stratified": st.booleans(),
    "normalize": st.sampled_from([None, "batch", "table"]),
}
plain = (
    st.sampled_from([rc.Fifo(), rc.Lifo(), rc.Uniform(), rc.StalestFirst(), rc.FreshestFirst()])
    | st.builds(rc.Smallest, st.text(min_size=1))
    | st.builds(rc.Largest, st.text(min_size=1))
    | st.builds(rc.Prioritized, **weights)
    | st.builds(rc.Weighted, st.text(min_size=1), **weights)
)
parts = st.tuples(
    plain.filter(lambda rule: getattr(rule, "normalize", None) != "table"), st.floats(0.01, 100)
)
selectors = plain | st.builds(rc.Mixed, st.lists(parts, min_size=1, max_size=4))
buffers = (
    st.just(math.inf)
    | st.floats(1e3, 1e6)
    | st.tuples(st.floats(-1e6, 0), st.floats(1e3, 1e6))
    | st.tuples(st.just(-math.inf), st.integers(0, 1000))
)
limiters = (
    st.builds(rc.MinSize, st.integers(0, 10**6))
    | st.builds(rc.SampleToInsertRatio, st.floats(0.01, 100), st.integers(1, 10**6), buffers)
    | st.builds(rc.Queue, st.integers(1, 10**6))
    | st.builds(rc.Stack, st.integers(1, 10**6))
)


def copies(data: Any) -> Iterator[Any]:
    yield data
    yield json.loads(json.dumps(data))
    yield yaml.safe_load(yaml.safe_dump(data))


@given(selectors | limiters | schedules)
def test_a_rule_written_as_data_is_read_as_the_same_rule(rule: Any) -> None:
    kind = next(kind for kind in (rc.Selector, rc.Limiter, rc.Linear) if isinstance(rule, kind))
    for data in copies(to_config(rule)):
        again = rule_from_config(kind, data)
        assert type(again) is type(rule)
        assert again == rule


# -- anything at all ------------------------------------------------------------------------------
WHOLE: dict[str, Any] = {
    **TABLE,
    **mixed(
        [prioritized(beta={"type": "Linear", "start": 0, "end": 1, "steps": 9})["sampler"], 1],
        [{"type": "Largest", "field": "score"}, 2],
    ),
    **ratio(ratio=4, min_size=2, error_buffer=[-40, 40]),
    "signature": {"obs": {"image": {"dtype": "uint8", "shape": [2, 2]}}, "prompt": "str"},
    "tags": {"score": "float"},
    "partition_by": ["task"],
    "storage": "memory",
}
scalars = st.none() | st.booleans() | st.integers(-9, 2**40) | st.floats() | st.text(max_size=5)
anything = st.recursive(
    scalars | st.sampled_from(["Fifo", "MinSize", "float32", "score"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(scalars, inner, max_size=3),
    max_leaves=5,
)


def places(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    names = data if isinstance(data, dict) else range(len(data)) if isinstance(data, list) else ()
    for name in names:
        yield (*path, name)
        yield from places(data[name], (*path, name))


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(list(places(WHOLE))), anything)
def test_a_wrong_entry_never_raises_anything_but_a_config_error(
    place: tuple[Any, ...], value: Any
) -> None:
    config = json.loads(json.dumps(WHOLE))
    inside = config
    for name in place[:-1]:
        inside = inside[name]
    inside[place[-1]] = value
    with suppress(rc.ConfigError):
        table_from_config(config)
