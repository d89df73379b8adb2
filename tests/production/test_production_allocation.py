"""How a batch is shared among tasks."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

import recollect as rc
from recollect.production import allocate

WEIGHTS = st.dictionaries(
    st.text("abcdef", min_size=1, max_size=3),
    st.one_of(st.integers(0, 9), st.floats(0, 100)),
    min_size=1,
    max_size=6,
)


def oracle(size, weights):
    """Give seats one after another to whoever is furthest below its share, in exact numbers."""
    total = sum(map(Fraction, weights.values()))
    shares = {task: size * Fraction(weight) / total for task, weight in weights.items()}
    sizes = {task: int(share) for task, share in shares.items()}
    while sum(sizes.values()) < size:
        most = max(shares[task] - sizes[task] for task in weights)
        task = next(task for task in weights if shares[task] - sizes[task] == most)
        sizes[task] += 1
    return sizes


def test_the_weights_2_1_0_share_7_as_5_2_0():
    assert allocate(7, {"a": 2, "b": 1, "c": 0}) == {"a": 5, "b": 2, "c": 0}


def test_ties_go_to_the_task_that_was_declared_first():
    assert allocate(1, {"b": 1, "a": 1}) == {"b": 1, "a": 0}
    assert allocate(5, {"x": 1, "y": 1, "z": 1}) == {"x": 2, "y": 2, "z": 1}


def test_thirds_add_up_although_floats_do_not():
    third = 1 / 3
    assert allocate(3, {"a": third, "b": third, "c": third}) == {"a": 1, "b": 1, "c": 1}


@given(st.integers(0, 500), WEIGHTS)
def test_it_is_the_largest_remainder(size, weights):
    if not any(weights.values()):
        return
    sizes = allocate(size, weights)
    assert sizes == oracle(size, weights)
    assert list(sizes) == list(weights)
    assert sum(sizes.values()) == size
    assert all(sizes[task] == 0 for task, weight in weights.items() if not weight)


def test_nothing_is_shared_by_nobody():
    assert allocate(0, {"a": 0}) == {"a": 0}
    with pytest.raises(rc.InvalidValue, match=r"no task has a weight above 0.*'a': 0"):
        allocate(3, {"a": 0})


@pytest.mark.parametrize("weight", [-1, float("nan"), float("inf"), "2", True, None])
def test_a_weight_is_a_finite_number_of_at_least_0(weight):
    with pytest.raises(rc.InvalidValue, match=r"weight of task 'a': expected a number of 0"):
        allocate(3, {"a": weight})


def test_a_batch_is_a_whole_number():
    with pytest.raises(rc.InvalidValue, match="batch_size: expected a whole number"):
        allocate(2.5, {"a": 1})
