"""Batches as DataFrames, and back."""

from __future__ import annotations

import sys

import ml_dtypes
import numpy as np
import pytest

import recollect as rc
from recollect.data.batch import Batch
from recollect.data.info import Info
from recollect.data.ragged import Ragged
from recollect.errors import SchemaError

pd = pytest.importorskip("pandas", reason="needs recollect[pandas]")


def test_one_row_per_row_and_arrays_in_object_columns():
    batch = Batch(
        {"obs": {"x": np.ones((2, 3))}, "r": [0.5, 1], "t": [[1, 2], [3]], "s": ["a", "b"]}
    )
    frame = batch.to_pandas()
    assert list(frame.columns) == ["obs.x", "r", "t", "s"]
    assert frame["r"].dtype == np.float64
    assert frame["obs.x"].dtype == object
    assert frame["obs.x"][1].tolist() == [1, 1, 1]
    assert frame["t"][0].tolist() == [1, 2]
    assert frame["s"].tolist() == ["a", "b"]
    assert Batch.from_pandas(frame) == batch


def test_absent_cells_are_none_and_come_back_absent():
    mask = [True, False, True]
    batch = Batch(
        {"r": [1, 2, 3], "s": ["a", "", "c"], "v": np.ones((3, 2)), "t": [[1, 2], [3], [4]]},
        present={"r": mask, "s": mask, "v": mask, "t": mask},
    )
    frame = batch.to_pandas()
    assert [frame[name][1] for name in frame] == [None] * 4
    assert Batch.from_pandas(frame) == batch


@pytest.mark.parametrize(
    "column",
    [
        np.zeros(2, np.int32),
        np.zeros(2, np.uint8),
        np.zeros(2, np.float32),
        np.zeros(2, np.bool_),
        Ragged.from_list(["", ""]),
    ],
)
def test_a_column_without_a_cell_comes_back_where_pandas_has_its_type(column):
    batch = Batch({"r": [1, 2], "y": column}, present={"y": [False, False]})
    frame = batch.to_pandas()
    assert frame["y"].isna().all()
    assert Batch.from_pandas(frame) == batch


@pytest.mark.parametrize(
    "column",
    [
        np.zeros(2, np.float16),
        np.zeros(2, ml_dtypes.bfloat16),
        np.zeros(2, "M8[s]"),
        np.zeros((2, 3)),
        Ragged.from_list([b"", b""]),
        Ragged.from_list([[], []], dtype=np.int32),
    ],
)
def test_a_column_without_a_cell_is_left_out_where_nothing_tells_its_type(column):
    frame = Batch({"r": [1, 2], "y": column}, present={"y": [False, False]}).to_pandas()
    assert frame["y"].isna().all()
    assert Batch.from_pandas(frame) == Batch({"r": [1, 2]})


def test_what_a_table_returned_can_be_inserted_again_without_its_absent_cells():
    columns = {
        "x": rc.Column("int64"),
        "y": rc.Column("float32", optional=True),
        "ids": rc.Column("int32", ragged=True, optional=True),
    }
    table = rc.Table("a", capacity=10, signature=columns)
    keys = table.insert({"x": [1, 2]})
    for chosen in (keys, keys[:0]):
        again = table.insert(Batch.from_pandas(table.get(chosen).to_pandas()))
        assert table.get(again) == table.get(chosen)


def test_the_index_is_the_key_of_the_rows_item():
    info = Info({"keys": np.array([7, 9], np.uint64), "row_offsets": np.array([0, 2, 3])}, 10)
    frame = Batch({"a": [1, 2, 3]}, shared={"p": ["x", "y"]}, info=info).to_pandas()
    assert frame.index.name == "key"
    assert frame.index.tolist() == [7, 7, 9]
    assert list(frame.columns) == ["a"]


def test_nan_is_a_value_and_not_an_absent_cell():
    batch = Batch({"a": [1.0, np.nan]})
    assert Batch.from_pandas(batch.to_pandas()) == batch


def test_small_floats_widen_and_times_keep_their_instant():
    times = np.array([1, 2], "M8[25s]")
    frame = Batch({"b": np.array([1.5, 2], ml_dtypes.bfloat16), "t": times}).to_pandas()
    assert frame["b"].dtype == np.float32
    assert frame["b"].tolist() == [1.5, 2]
    assert (frame["t"].to_numpy() == times).all()


def test_columns_that_pandas_made_are_accepted():
    frame = pd.DataFrame(
        {
            "category": pd.Categorical(["u", "v", "u"]),
            "nullable": pd.array([1, None, 3], dtype="Int32"),
            "text": pd.Series(["x", None, "z"]),
            "flag": [True, False, True],
            "when": pd.to_datetime(["2020-01-01"] * 3),
        }
    )
    batch = Batch.from_pandas(frame)
    assert batch["category"].to_list() == ["u", "v", "u"]
    assert batch["nullable"].tolist() == [1, 0, 3]
    assert batch["nullable"].dtype == np.int32
    assert batch.present["nullable"].tolist() == [True, False, True]
    assert batch["text"].to_list() == ["x", "", "z"]
    assert batch["flag"].dtype == np.bool_
    assert batch["when"][0] == np.datetime64("2020-01-01")


def test_empty_frames_round_trip():
    batch = Batch({"a": np.zeros(0, np.int8), "s": Ragged.from_list([], dtype=str)})
    assert Batch.from_pandas(batch.to_pandas()) == batch
    assert Batch({}).to_pandas().empty


def test_frames_that_hold_no_column_are_refused():
    for frame in (
        pd.DataFrame({"a": [None, None]}),
        pd.DataFrame({0: [1]}),
        pd.DataFrame([[1, 2]], columns=["a", "a"]),
        pd.DataFrame({"a": [object()]}),
        pd.DataFrame({"a": [1], "a.b": [2]}),
    ):
        with pytest.raises(SchemaError):
            Batch.from_pandas(frame)


def test_a_frame_without_any_cell_says_what_to_do():
    frame = pd.DataFrame({"a": [None, None]})
    with pytest.raises(SchemaError, match=r"no column .* tells what it holds.*astype\({'a'"):
        Batch.from_pandas(frame)
    assert Batch.from_pandas(frame.astype({"a": "Float64"})).present["a"].tolist() == [False] * 2


def test_without_pandas_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"recollect\[pandas\]"):
        Batch({"a": [1]}).to_pandas()


def test_what_is_no_frame_is_refused() -> None:
    with pytest.raises(SchemaError, match="frame: expected a pandas DataFrame, got None"):
        Batch.from_pandas(None)  # type: ignore[arg-type]
