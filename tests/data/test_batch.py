"""Batch: its rows, shared columns, absent cells and info together."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

from recollect.data.batch import Batch
from recollect.data.info import Info
from recollect.data.ragged import Ragged
from recollect.errors import SchemaError


def info_of(items, **arrays):
    return Info({"keys": np.arange(items, dtype=np.uint64), **arrays}, table_size=100)


def test_nested_dicts_flatten_and_come_back_nested():
    image, state = np.zeros((2, 3)), np.ones(2)
    batch = Batch({"obs": {"cam": {"left": image}, "state": state}, "reward": [0.5, 1]})
    assert list(batch) == ["obs", "reward"]
    assert len(batch) == 2
    assert list(batch.columns) == ["obs.cam.left", "obs.state", "reward"]
    assert batch["obs"] == {"cam": {"left": image}, "state": state}
    assert batch["obs.cam"]["left"] is batch["obs.cam.left"] is image
    assert "obs.state" in batch
    assert "obs.stat" not in batch
    assert Batch(batch) == batch


def test_an_array_is_taken_as_it_is():
    array = np.zeros((2, 3), ml_dtypes.bfloat16)
    assert Batch({"a": array})["a"] is array


def test_rows_and_items_are_counted():
    assert Batch({}).rows == 0
    assert Batch({"a": np.zeros((0, 3))}).rows == 0
    assert Batch({"a": [1, 2]}).num_items == 2
    assert Batch({"a": [1, 2]}, shared={"p": ["x"]}).num_items == 1
    grouped = Batch({"a": [1, 2, 3]}, info=info_of(2, row_offsets=np.array([0, 2, 3])))
    assert (grouped.rows, grouped.num_items) == (3, 2)
    assert Batch({}, info=info_of(2)).rows == 2


def test_shared_columns_nest_and_mark_absent_cells():
    batch = Batch(
        {"a": [1, 2]},
        shared={"prompt": {"text": ["x", "y"]}},
        shared_present={"prompt.text": [True, False]},
    )
    assert batch.shared["prompt"]["text"].to_list() == ["x", ""]
    assert batch.shared.present["prompt.text"].tolist() == [True, False]
    assert batch.present == {}
    assert Batch({"a": [1]}).shared.columns == {}


def test_absent_cells_are_zeros_or_empty_and_the_callers_arrays_stay():
    array, ragged = np.array([-0.0, 2.0]), Ragged.from_list([[1, 2], [3]])
    mask = np.array([False, True])
    batch = Batch({"a": array, "r": ragged}, present={"a": mask, "r": mask})
    assert not np.signbit(batch["a"][0])
    assert batch["a"].tolist() == [0.0, 2.0]
    assert batch["r"].lengths.tolist() == [0, 1]
    assert np.signbit(array[0])
    clear = Batch({"a": batch["a"], "r": batch["r"]}, present=batch.present)
    assert clear["a"] is batch["a"]
    assert clear["r"] is batch["r"]


def test_equality_covers_rows_shared_columns_and_absent_cells():
    batch = Batch({"a": [1.0, np.nan]}, shared={"b": ["x"]}, present={"a": [True, True]})
    assert batch == Batch({"a": [1.0, np.nan]}, shared={"b": ["x"]}, present={"a": [True, True]})
    assert batch != Batch({"a": [1.0, np.nan]}, shared={"b": ["x"]})
    assert batch != Batch({"a": [1.0, np.nan]}, shared={"b": ["y"]}, present={"a": [True, True]})
    assert batch != {"a": [1.0, np.nan]}
    assert Batch({"a": [[1], [2]]}) != Batch({"a": Ragged([1, 2], [0, 1, 2])})


def test_batches_copy_and_pickle():
    batch = Batch({"a": [1, 2]}, shared={"p": ["x", "y"]}, info=info_of(2, score=np.ones(2)))
    for twin in (copy.copy(batch), copy.deepcopy(batch), pickle.loads(pickle.dumps(batch))):
        assert twin == batch
        assert twin.info.score.tolist() == [1, 1]
        assert twin.info.table_size == 100


def test_the_trusted_constructor_takes_everything_as_it_is():
    columns, info = {"obs.x": np.zeros(2)}, info_of(2)
    batch = Batch._make(columns, info)
    assert batch.columns is columns
    assert batch.info is info
    assert batch["obs"]["x"] is columns["obs.x"]
    assert batch.shared is batch.shared
    assert Batch._make({}, None, {"p": np.ones(1)}, None, None).num_items == 1


def test_reprs_have_one_line_per_column():
    batch = Batch({"obs": {"x": np.zeros((1, 4))}, "t": ["ab"]}, shared={"p": [1]}, info=info_of(1))
    assert repr(batch).splitlines() == [
        "Batch(1 rows, 1 items)",
        "  obs.x  float64 [1, 4]",
        "  t      str, 1 rows, 2 bytes",
        "  shared:",
        "    p  int64 [1]",
        "  info: keys",
    ]
    assert repr(batch.shared) == "Columns(1 rows)\n  p  int64 [1]"


def test_importing_stays_light():
    code = (
        "import sys; import recollect.data.arrow; "
        "print([m for m in ('pandas', 'torch', 'ml_dtypes', 'numba') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


BAD = {
    "different rows": (
        lambda: Batch({"a": [1], "b": {"c": [1, 2]}}),
        r"'a' has 1, 'b\.c' has 2",
    ),
    "different shared": (lambda: Batch({}, shared={"a": [1], "b": [1, 2]}), "items: 'a' has 1"),
    "shared against info": (
        lambda: Batch({}, shared={"p": ["x"]}, info=info_of(2)),
        "2 items, and 'p' has 1 cells",
    ),
    "rows against info": (lambda: Batch({"a": [1]}, info=info_of(2)), "about 2 rows"),
    "present of nothing": (lambda: Batch({"a": [1]}, present={"b": [True]}), "present names 'b'"),
    "present too short": (
        lambda: Batch({"a": [1, 2]}, present={"a": [True]}),
        "present of 'a' must be 2 bools",
    ),
    "present of ints": (lambda: Batch({"a": [1]}, present={"a": [1]}), "got int64"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_with_a_sentence(case):
    build, message = BAD[case]
    with pytest.raises(SchemaError, match=message):
        build()
