"""Ragged columns, compared with plain lists of cells."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recollect.data.ragged import Ragged
from recollect.errors import InvalidValue, SchemaError

cells_of_numbers = st.lists(st.lists(st.integers(-9, 9), max_size=5), max_size=8).map(
    lambda cells: [np.array(cell, np.int32) for cell in cells]
)


def made(cells):
    return Ragged.from_list(cells, dtype=np.int32)


def same_cells(one, other):
    return len(one) == len(other) and all(map(np.array_equal, one, other))


@given(cells_of_numbers)
def test_cells_come_back_as_they_went_in(cells):
    column = made(cells)
    assert same_cells(column.to_list(), cells)
    assert same_cells([column[i] for i in range(len(column))], cells)
    assert column.lengths.tolist() == [len(cell) for cell in cells]
    assert column.dtype == np.int32


@given(cells_of_numbers, st.data())
def test_selecting_rows_is_selecting_cells(cells, data):
    column = made(cells)
    bound = st.none() | st.integers(-10, 10)
    step = data.draw(st.none() | st.sampled_from([-2, -1, 1, 2, 3]))
    rows = slice(data.draw(bound), data.draw(bound), step)
    assert same_cells(column[rows].to_list(), cells[rows])

    mask = np.array(data.draw(st.lists(st.booleans(), min_size=len(cells), max_size=len(cells))))
    mask = mask.astype(bool)
    assert same_cells(
        column[mask].to_list(), [c for c, keep in zip(cells, mask, strict=True) if keep]
    )

    if cells:
        index = data.draw(st.lists(st.integers(-len(cells), len(cells) - 1), max_size=12))
        assert same_cells(column[index].to_list(), [cells[i] for i in index])
        assert column[index].offsets[0] == 0


@given(cells_of_numbers, st.integers(0, 3))
def test_padding_fills_each_row_up(cells, extra):
    column = made(cells)
    longest = max(map(len, cells), default=0)
    padded = column.pad(-1, longest + extra)
    assert padded.shape == (len(cells), longest + extra)
    assert padded.dtype == np.int32
    for row, cell in zip(padded, cells, strict=True):
        assert row.tolist() == cell.tolist() + [-1] * (longest + extra - len(cell))
    assert column.pad(-1).shape == (len(cells), longest)


def test_padding_keeps_the_inner_shape_and_broadcasts_the_value():
    column = Ragged(np.arange(6).reshape(3, 2), [0, 1, 3])
    assert column.inner_shape == (2,)
    assert column.pad([7, 8]).tolist() == [[[0, 1], [7, 8]], [[2, 3], [4, 5]]]


def test_padding_works_on_types_without_a_numpy_name():
    column = Ragged.from_list([np.array([1, 2], ml_dtypes.bfloat16), np.array([3], "bfloat16")])
    padded = column.pad(float("nan"))
    assert padded.dtype == ml_dtypes.bfloat16
    assert np.isnan(padded.astype(float)).tolist() == [[False, False], [False, True]]


@given(st.lists(st.text(max_size=6), max_size=6))
def test_text_round_trips(cells):
    column = Ragged.from_list(cells, dtype=str)
    assert column.to_list() == cells
    assert [column[i] for i in range(len(cells))] == cells
    assert column[::-1].to_list() == cells[::-1]
    checked = Ragged(column.values, column.offsets, "str")
    assert checked == column


@given(st.lists(st.binary(max_size=6), max_size=6))
def test_bytes_round_trip(cells):
    column = Ragged.from_list(cells, dtype=bytes)
    assert column.to_list() == cells
    assert [column[i] for i in range(len(cells))] == cells


def test_a_cell_and_a_run_of_rows_are_views():
    column = Ragged(np.arange(5), [0, 2, 2, 5])
    assert np.shares_memory(column[2], column.values)
    assert np.shares_memory(column[1:].values, column.values)
    assert column[1:].offsets.tolist() == [0, 0, 3]


def test_values_and_offsets_are_not_copied():
    values, offsets = np.arange(3.0), np.array([0, 1, 3])
    column = Ragged(values, offsets)
    assert column.values is values
    assert column.offsets is offsets
    assert column.nbytes == values.nbytes + offsets.nbytes


def test_equality_is_by_content_and_nan_equals_nan():
    nan = Ragged([1.0, np.nan], [0, 2])
    assert nan == Ragged([1.0, np.nan], [0, 2])
    assert nan != Ragged([1.0, np.nan], [0, 1, 2])
    assert nan != Ragged(np.array([1, np.nan], np.float32), [0, 2])
    assert Ragged.from_list(["a"]) != Ragged.from_list([b"a"])
    assert nan != [1.0, np.nan]


def test_repr_is_one_short_line():
    assert repr(Ragged([1, 2], [0, 2])) == "Ragged(int64, 1 rows, 2 values)"
    assert repr(Ragged.from_list(["abc"])) == "Ragged(str, 1 rows, 3 bytes)"
    assert repr(Ragged(np.ones((2, 3)), [0, 2])) == (
        "Ragged(float64, 1 rows, 2 values of shape [3])"
    )


U8 = np.array([0xC3, 0xA4], np.uint8)  # one letter in UTF-8

BAD = {
    "offsets fall": (lambda: Ragged([1, 2], [0, 2, 1, 2]), "never fall"),
    "offsets start above 0": (lambda: Ragged([1, 2], [1, 2]), "start at 0"),
    "offsets end early": (lambda: Ragged([1, 2], [0, 1]), "end at the number of values, 2"),
    "offsets empty": (lambda: Ragged([1, 2], np.empty(0, int)), "one entry more"),
    "offsets of floats": (lambda: Ragged([1, 2], [0.0, 2.0]), "integers"),
    "offsets 2-d": (lambda: Ragged([1, 2], [[0, 2]]), "1-d"),
    "values scalar": (lambda: Ragged(3, [0]), "single value"),
    "values complex": (lambda: Ragged([1j], [0, 1]), "complex128"),
    "unknown kind": (lambda: Ragged(U8, [0, 2], "text"), "'text'"),
    "text of int64": (lambda: Ragged([1], [0, 1], "str"), "uint8"),
    "text not UTF-8": (lambda: Ragged(U8[::-1], [0, 2], "str"), "UTF-8"),
    "row inside a letter": (lambda: Ragged(U8, [0, 1, 2], "str"), "UTF-8"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_with_a_sentence(case):
    build, message = BAD[case]
    with pytest.raises(SchemaError, match=message):
        build()


@pytest.mark.parametrize("value", [300, 0.5, "x", [1, 2], float("nan"), None])
def test_a_pad_value_that_does_not_fit_is_refused(value):
    with pytest.raises(InvalidValue, match="cannot pad a column of uint8"):
        Ragged(np.zeros(1, np.uint8), [0, 1]).pad(value)


def test_padding_too_short_names_row_and_length():
    with pytest.raises(InvalidValue, match="row 1 has length 3, more than the length 2"):
        Ragged([1, 2, 3, 4], [0, 1, 4]).pad(0, length=2)


@pytest.mark.parametrize("rows", [3, -4, [0, 3], np.array([True]), 1.5, [[0]], [0.5]])
def test_rows_that_are_not_there_raise_index_error(rows):
    with pytest.raises(IndexError):
        Ragged([1, 2, 3], [0, 1, 2, 3])[rows]
