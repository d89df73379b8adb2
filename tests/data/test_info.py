"""Info: what a table set, the constants of the rest, and what it says of what is missing."""

from __future__ import annotations

import numpy as np
import pytest

from recollect.base.leases import Lease
from recollect.data.batch import Batch
from recollect.data.info import Info


def info_of(items, **arrays):
    return Info({"keys": np.arange(items, dtype=np.uint64), **arrays}, table_size=100)


def test_info_gives_the_constants_of_fields_that_nobody_set():
    info = info_of(2, score=np.array([0.5, 1.0]))
    assert info.version.tolist() == [-1, -1]
    assert info.task.tolist() == info.status.tolist() == [None, None]
    assert info.priority.tolist() == info.weights.tolist() == [1.0, 1.0]
    assert info.probability.tolist() == [0.01, 0.01]
    assert info.deliveries.tolist() == [1, 1]
    assert info.times_sampled.tolist() == [0, 0]
    assert info.row_offsets.tolist() == [0, 1, 2]
    assert info.score.tolist() == [0.5, 1.0]
    assert (info.table_size, info.lease) == (100, None)
    assert info.version.dtype == info.row_offsets.dtype == np.int64


def test_an_unknown_attribute_of_info_lists_what_there_is():
    with pytest.raises(AttributeError, match="no 'scores'; there are keys, score, priority"):
        _ = info_of(1, score=np.ones(1)).scores
    with pytest.raises(AttributeError, match="no table returned it"):
        _ = Batch({"a": [1]}).info.keys


def test_the_repr_has_one_line_per_array_and_names_the_lease():
    info = Info({"keys": np.zeros(1, np.uint64)}, 10, Lease(3, "me", 1.5))
    assert repr(info) == "Info(1 items, table_size=10, lease=3)\n  keys  uint64 [1]"
