"""Columns by name: nested names, values that become columns, and absent cells."""

from __future__ import annotations

from collections import namedtuple

import ml_dtypes
import numpy as np
import pytest

from recollect.data.batch import Batch
from recollect.data.column_data import as_column, cleared, spread
from recollect.data.dotted_names import flatten, nest
from recollect.data.ragged import Ragged
from recollect.errors import SchemaError


def test_flatten_and_nest_undo_each_other():
    nested = {"a": {"b": {"c": 1}, "d": 2}, "e": 3}
    assert nest(flatten(nested)) == nested


def test_a_missing_column_is_a_key_error_that_lists_the_columns():
    with pytest.raises(KeyError, match=r"no column 'c'; there are a, b\.x"):
        Batch({"a": [1], "b": {"x": [2]}})["c"]
    assert Batch({"a": [1]}).get("c") is None


def test_lists_become_the_columns_that_they_look_like():
    a = np.zeros(2, np.int8)
    point = np.array([("x" * 3)], dtype="U5")
    assert as_column("c", [1, 2]).dtype == np.int64
    assert as_column("c", (True, False)).dtype == np.bool_
    assert as_column("c", [a, a]).shape == (2, 2)
    assert as_column("c", [[1, 2], [3, 4]]).shape == (2, 2)
    assert as_column("c", [a, a[:1]]) == Ragged.from_list([a, a[:1]])
    assert as_column("c", ["a", "bc"]) == Ragged.from_list(["a", "bc"])
    assert as_column("c", [b"a", bytearray(b"bc")]).to_list() == [b"a", b"bc"]
    assert as_column("c", point).to_list() == ["xxx"]
    assert as_column("c", np.array([b"a", b"bc"])).to_list() == [b"a", b"bc"]
    assert as_column("c", np.empty(0, "U1")).kind == "str"
    assert as_column("c", np.array(["a", "bc"], object)).to_list() == ["a", "bc"]
    assert as_column("c", np.array(["a"], np.dtypes.StringDType())).to_list() == ["a"]


@pytest.mark.parametrize("column", [np.arange(6).reshape(3, 2), Ragged([1, 2, 3], [0, 1, 1, 3])])
def test_spreading_a_column_puts_its_cells_where_they_are_present(column):
    present = np.array([True, False, True, True, False])
    rows = spread(column, present)
    assert np.array_equal(rows[present], column) or rows[present] == column
    assert cleared(rows, present) is rows


Point = namedtuple("Point", "x y")
BAD = {
    "not a dict": (lambda: Batch([1, 2]), "must be a dict, got list"),
    "dotted name": (lambda: Batch({"a.b": [1]}), "'a.b' cannot name a column"),
    "empty name": (lambda: Batch({"a": {"": [1]}}), "'' cannot name a column"),
    "name not a str": (lambda: Batch({1: [1]}), "1 cannot name a column"),
    "empty nested dict": (lambda: Batch({"a": {"b": {}}}), "'a.b' is an empty dict"),
    "rows asked for": (lambda: as_column("a", [1, 2], rows=3), "'a' has 2 rows, expected 3"),
    "single number": (lambda: Batch({"a": 3}), "'a' is int"),
    "single str": (lambda: Batch({"a": "abc"}), "'a' is str"),
    "0-d": (lambda: Batch({"a": np.array(1)}), "single value"),
    "empty list": (lambda: Batch({"a": []}), "empty list"),
    "None": (lambda: Batch({"a": [1, None]}), "mark absent cells with present="),
    "list of dicts": (lambda: Batch({"a": [{"x": 1}]}), "dict of lists"),
    "named tuple": (lambda: Batch({"a": Point([1], [2])}), "'a' is Point"),
    "str and number": (lambda: Batch({"a": ["x", 1]}), "row 1 of 'a' is int"),
    "str and bytes": (lambda: Batch({"a": ["x", b"y"]}), "row 1 of 'a' is bytes"),
    "arrays of two dtypes": (
        lambda: Batch({"a": [np.zeros(1, np.int8), np.zeros(1)]}),
        "row 0 is int8, row 1 is float64",
    ),
    "arrays of two ranks": (lambda: Batch({"a": [np.zeros(1), np.zeros((1, 1))]}), "row 1 has"),
    "lists of str": (lambda: Batch({"a": [["x"], ["y"]]}), "cannot be stored"),
    "huge int": (lambda: Batch({"a": [2**70]}), "dtype object"),
    "masked": (lambda: Batch({"a": np.ma.masked_array([1], [True])}), "masked array"),
    "complex": (lambda: Batch({"a": np.zeros(1, complex)}), "'a' has dtype complex128"),
    "small complex": (
        lambda: Batch({"a": np.zeros(1, ml_dtypes.complex32)}),
        "'a' has dtype complex32, which cannot be stored: store the real",
    ),
    "longdouble": (lambda: Batch({"a": np.zeros(1, np.longdouble)}), "astype.np.float64"),
    "foreign order": (lambda: Batch({"a": np.zeros(1, ">f4")}), ">f4.*astype.np.float32"),
    "object": (lambda: Batch({"a": np.array([[object()]])}), "dtype object"),
    "structured": (lambda: Batch({"a": np.zeros(1, "i4,f4")}), "dict with one array per field"),
    "void": (lambda: Batch({"a": np.zeros(1, "V4")}), "'a' has dtype void32"),
    "datetime without unit": (lambda: Batch({"a": np.zeros(1, "M8")}), "give it a unit"),
    "timedelta without unit": (lambda: Batch({"a": np.zeros(1, "m8")}), "give it a unit"),
    "2-d text": (lambda: Batch({"a": np.array([["x"]])}), "pass a list of str"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_with_a_sentence(case):
    build, message = BAD[case]
    with pytest.raises(SchemaError, match=message):
        build()
