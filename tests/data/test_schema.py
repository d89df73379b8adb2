"""Schemas: what a first insert fixes, what later inserts may look like, absent and new columns."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import recollect as rc
from recollect.data.schema import Schema

DTYPES = [
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16",
    "float32", "float64", "datetime64[ns]", "timedelta64[us]",
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (2, 3, 4)])
def test_every_dtype_and_shape_comes_back_as_it_went(dtype, shape):
    rng = np.random.default_rng(0)
    column = rng.integers(0, 100, (5, *shape)).astype(np.int64).astype(dtype)
    table = rc.Table("t", capacity=9)
    keys = table.insert({"x": column})
    got = table.get(keys)["x"]
    assert got.dtype == column.dtype
    assert np.array_equal(got, column)
    assert table.columns["x"] == rc.Column(dtype, shape)


def test_small_floats_come_back_as_they_went():
    column = np.arange(6).astype(ml_dtypes.bfloat16).reshape(3, 2)
    table = rc.Table("t", capacity=9)
    got = table.get(table.insert({"x": column}))["x"]
    assert got.dtype == ml_dtypes.bfloat16
    assert np.array_equal(got, column)


@pytest.mark.parametrize(
    "cells",
    [
        ["", "a", "ä🙂" * 50],
        [b"", b"a\x00b", b"c" * 300],
        [np.arange(0), np.arange(3), np.arange(1)],
        [np.zeros((0, 2), np.float32), np.ones((3, 2), np.float32)],
    ],
)
def test_ragged_cells_come_back_as_they_went(cells):
    table = rc.Table("t", capacity=9)
    keys = table.insert({"r": cells})
    order = list(range(len(cells)))[::-1]
    for got, place in zip(table.get(keys[order])["r"].to_list(), order, strict=True):
        assert np.array_equal(got, cells[place])


def test_many_columns_of_all_kinds_keep_to_their_rows():
    rng = np.random.default_rng(0)
    table = rc.Table("t", capacity=300)
    n = 200
    columns = {
        "a": rng.integers(0, 99, n).astype(np.uint8),
        "b": rng.normal(size=(n, 3)),
        "c": [f"text {i}" for i in range(n)],
        "d": rng.integers(0, 2, n).astype(bool),
        "e": [np.full(i % 7, i, np.int16) for i in range(n)],
        "f": [None if i % 3 else float(i) for i in range(n)],
        "g": [None if i % 5 else f"{i}" for i in range(n)],
    }
    keys = table.insert(columns)
    order = rng.permutation(n)
    got = table.get(keys[order])
    assert np.array_equal(got["a"], columns["a"][order])
    assert np.array_equal(got["b"], columns["b"][order])
    assert got["c"].to_list() == [columns["c"][i] for i in order]
    assert np.array_equal(got["d"], columns["d"][order])
    for cell, i in zip(got["e"].to_list(), order, strict=True):
        assert np.array_equal(cell, columns["e"][i])
    assert got.present["f"].tolist() == [columns["f"][i] is not None for i in order]
    assert got["f"][got.present["f"]].tolist() == [float(i) for i in order if i % 3 == 0]
    assert [t for t, here in zip(got["g"].to_list(), got.present["g"], strict=True) if here] == [
        f"{i}" for i in order if i % 5 == 0
    ]


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x[:, ::-1][:, ::-1],
        lambda x: np.asfortranarray(x),
        lambda x: np.repeat(x, 2, axis=0)[::2],
        lambda x: x.tolist(),
        lambda x: list(x),
        lambda x: np.broadcast_to(x[:1], x.shape) * 0 + x,
    ],
)
def test_layouts_of_the_same_numbers_are_accepted(make):
    x = np.arange(12.0).reshape(4, 3)
    table = rc.Table("t", capacity=9, signature={"x": rc.Column("float64", (3,))})
    keys = table.insert({"x": make(x)})
    assert np.array_equal(table.get(keys)["x"], x)


def test_names_in_another_order_are_accepted():
    table = rc.Table("t", capacity=9)
    table.insert({"a": np.array([1]), "b": np.array([2.0])})
    keys = table.insert({"b": np.array([4.0]), "a": np.array([3])})
    assert table.get(keys)["a"].tolist() == [3]


def test_lists_take_the_dtype_of_the_column():
    table = rc.Table("t", capacity=9, signature={"x": rc.Column("float32"), "n": rc.Column("int8")})
    keys = table.insert({"x": [1, 2], "n": [3, -4]})
    batch = table.get(keys)
    assert batch["x"].dtype == np.float32
    assert batch["n"].tolist() == [3, -4]


@pytest.mark.parametrize("value", [[1.5], [300], [-1], ["1"], [None], [[1]], [1, [2]]])
def test_lists_that_a_column_cannot_keep_are_refused(value):
    table = rc.Table("t", capacity=9, signature={"x": rc.Column("uint8")})
    with pytest.raises(rc.SchemaError, match="'x'"):
        table.insert({"x": value})
    assert len(table) == 0


def test_signature_columns_nest():
    table = rc.Table("t", capacity=9, signature={"obs": {"a": rc.Column("int8")}})
    assert table.columns == {"obs.a": rc.Column("int8")}


def test_plain_names_hold_no_dot():
    with pytest.raises(rc.SchemaError, match=r"'obs\.a'"):
        rc.Table("t", capacity=9, signature={"obs.a": rc.Column("int8")})


def test_signature_declares_shared_and_optional_columns():
    signature = {
        "x": rc.Column("int64"),
        "prompt": rc.Column("str", shared=True),
        "hint": rc.Column("str", shared=True, optional=True),
    }
    table = rc.Table("t", capacity=9, signature=signature)
    keys = table.insert({"x": np.arange(4)}, rows_per_item=2, shared={"prompt": ["a", "b"]})
    more = table.insert({"x": [9]}, shared={"prompt": ["c"], "hint": ["h"]})
    batch = table.get(np.concatenate([keys, more]))
    assert batch.shared["prompt"].to_list() == ["a", "b", "c"]
    assert batch.shared.present["hint"].tolist() == [False, False, True]


def test_only_optional_shared_columns_may_be_left_out_whole():
    signature = {"x": rc.Column("int64"), "hint": rc.Column("str", shared=True, optional=True)}
    table = rc.Table("t", capacity=9, signature=signature)
    keys = table.insert({"x": np.arange(3)})
    assert table.get(keys).shared.present["hint"].tolist() == [False] * 3


def test_a_none_in_the_first_insert_makes_a_column_optional():
    table = rc.Table("t", capacity=9)
    table.insert({"x": [1, None], "y": [1, 2]})
    assert table.columns["x"].optional
    assert not table.columns["y"].optional


def test_a_batch_with_absent_cells_is_inserted_with_them():
    source = rc.Table("s", capacity=9)
    keys = source.insert({"x": [1, None, 3], "t": ["a", None, "c"]})
    target = rc.Table("t", capacity=9)
    target.insert({"x": [7, None], "t": [None, "z"]})
    new = target.insert(source.get(keys))
    assert target.get(new).present["x"].tolist() == [True, False, True]
    assert target.get(new)["t"].to_list()[2] == "c"


def test_columns_describe_themselves():
    assert str(rc.Column("float32", (2, 3))) == "float32[2][3]"
    assert str(rc.Column("int32", ragged=True)) == "ragged int32"
    assert str(rc.Column(str)) == "str"
    assert rc.Column(bytes) == rc.Column("bytes")
    assert rc.Column("f4", 3) == rc.Column(np.float32, (3,))


def test_columns_added_while_running_keep_their_place():
    table = rc.Table("t", capacity=20)
    first = table.insert({"x": [1]})
    table.add_column("a", "float32")
    second = table.insert({"x": [2], "a": [0.5]})
    table.add_column("b", "str")
    table.add_column("c.d", "int64", (2,))
    table.add_column("r", "int16", ragged=True)
    third = table.insert(
        {"x": [3], "b": ["hi"], "c": {"d": [[4, 5]]}, "r": [np.arange(3, dtype=np.int16)]}
    )
    batch = table.get(np.concatenate([first, second, third]))
    assert batch["x"].tolist() == [1, 2, 3]
    assert batch.present["a"].tolist() == [False, True, False]
    assert batch.present["b"].tolist() == [False, False, True]
    assert batch["c"]["d"][2].tolist() == [4, 5]
    assert batch["r"].to_list()[2].tolist() == [0, 1, 2]
    assert table.amend(first, {"a": [0.25], "b": ["late"], "r": [[7]]}).tolist() == [True]
    amended = table.get(first)
    assert (amended["a"].tolist(), amended["b"].to_list()) == ([0.25], ["late"])
    assert amended["x"].tolist() == [1]


def test_nbytes_is_the_payload_of_present_cells():
    table = rc.Table("t", capacity=20)
    table.insert({"x": np.zeros((2, 3), np.float32), "t": ["abc", "d"], "o": [None, 1.5]})
    assert table.nbytes == 2 * 12 + 4 + 8
    table.insert({"x": np.zeros((1, 3), np.float32), "t": [""]})
    assert table.nbytes == 3 * 12 + 4 + 8


def test_a_schema_counts_the_payload_of_rows_before_they_are_stored():
    given = {"x": np.zeros((2, 3), np.float32), "t": ["abc", "d"], "o": [None, 1.5]}
    schema = Schema.infer(given)
    assert schema.payload(schema.check(given)) == 2 * 12 + 4 + 8


def test_rows_of_no_bytes_are_rows():
    table = rc.Table("t", capacity=9)
    keys = table.insert({"x": np.zeros((3, 0), np.float32)})
    assert len(table) == 3
    assert table.nbytes == 0
    assert table.get(keys)["x"].shape == (3, 0)
