"""Cells that become a ragged column, or are refused with the row that is wrong."""

from __future__ import annotations

import numpy as np
import pytest

from recollect.data.ragged import Ragged
from recollect.errors import SchemaError


def test_numbers_of_lists_adapt_to_the_dtype_of_arrays():
    column = Ragged.from_list([[1, 2], np.array([3], np.float32), []])
    assert column.dtype == np.float32
    assert column.lengths.tolist() == [2, 1, 0]
    assert Ragged.from_list([[1], [0.5]]).dtype == np.float64
    assert Ragged.from_list([[], [[1, 2]]]).inner_shape == (2,)


BAD = {
    "str and bytes": (lambda: Ragged.from_list(["a", b"b"]), "row 1 of 'cells' is bytes"),
    "bytes and numbers": (lambda: Ragged.from_list([b"a", [1]]), "row 1 of 'cells' is list"),
    "surrogates": (lambda: Ragged.from_list(["\ud800"]), "UTF-8"),
    "mixed dtypes": (
        lambda: Ragged.from_list([np.zeros(1, np.int32), np.zeros(2, np.int64)]),
        "row 0 is int32, row 1 is int64",
    ),
    "mixed inner shapes": (
        lambda: Ragged.from_list([np.zeros((1, 2)), np.zeros((1, 3))]),
        r"row 0 has shape \[1, 2\], row 1 has \[1, 3\]",
    ),
    "scalars": (lambda: Ragged.from_list([1, 2]), "a single int"),
    "None": (lambda: Ragged.from_list([[1], None]), "row 1 of 'cells' is None"),
    "no dtype": (lambda: Ragged.from_list([]), "pass dtype="),
    "empty lists without dtype": (lambda: Ragged.from_list([[], []]), "pass dtype="),
    "floats to int": (lambda: Ragged.from_list([[0.5]], dtype=int), "does not convert to int64"),
    "float array to int": (lambda: Ragged.from_list([np.ones(1)], dtype=int), "does not convert"),
    "too large for int8": (lambda: Ragged.from_list([[300]], dtype=np.int8), "does not convert"),
    "lists of str": (lambda: Ragged.from_list([["a"], ["b", "c"]]), "cannot be stored"),
    "uneven inside": (lambda: Ragged.from_list([[[1], [2, 3]]]), "row 0 of 'cells'"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_with_a_sentence(case):
    build, message = BAD[case]
    with pytest.raises(SchemaError, match=message):
        build()
