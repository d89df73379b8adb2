"""Limiters: pure decisions, compared with the formula of the spec as it is written there."""

from __future__ import annotations

import math
import warnings
from dataclasses import FrozenInstanceError
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import recollect as rc
from recollect.rules.limiters import Counts

counts = st.builds(
    lambda inserts, samples, removed: Counts(inserts, samples, int(removed * inserts)),
    st.integers(0, 200),
    st.integers(0, 400),
    st.floats(0, 1),
)
sizes = st.integers(1, 40)
ratios = st.sampled_from([0.125, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 8.0])
buffers = st.sampled_from([8.0, 12.5, 20.0, 64.0])


def may_sample(c: Counts, k: int, min_size: int, spi: float, min_diff: float) -> bool:
    """The first line of the spec, word for word, in exact numbers."""
    exact = Fraction(c.inserts) * Fraction(spi) - c.samples - k
    return c.inserts - c.removals >= min_size and exact >= Fraction(min_diff)


def may_insert(c: Counts, k: int, min_size: int, spi: float, max_diff: float) -> bool:
    """The second line."""
    exact = Fraction(c.inserts + k) * Fraction(spi) - c.samples
    return c.inserts + k - c.removals <= min_size or exact <= Fraction(max_diff)


def after(c: Counts, inserts: int = 0, samples: int = 0, removals: int = 0) -> Counts:
    return Counts(c.inserts + inserts, c.samples + samples, c.removals + removals)


@given(counts, sizes, ratios, st.integers(1, 50), buffers)
def test_ratio_decides_by_the_formula(c, k, ratio, min_size, buffer):
    limiter = rc.SampleToInsertRatio(ratio, min_size, buffer)
    low, high = limiter.bounds
    assert (low, high) == (ratio * min_size - buffer, ratio * min_size + buffer)
    assert (limiter.inserts_needed(c, k) == 0) == may_sample(c, k, min_size, ratio, low)
    assert (limiter.departures_needed(c, k) == 0) == may_insert(c, k, min_size, ratio, high)


@given(counts, sizes, ratios, st.integers(1, 50), st.integers(-50, 50), st.integers(8, 60))
def test_ratio_with_a_pair_decides_by_the_formula(c, k, ratio, min_size, low, width):
    limiter = rc.SampleToInsertRatio(ratio, min_size, (low, low + width))
    assert limiter.bounds == (low, low + width)
    assert (limiter.inserts_needed(c, k) == 0) == may_sample(c, k, min_size, ratio, low)
    assert (limiter.departures_needed(c, k) == 0) == may_insert(c, k, min_size, ratio, low + width)


@given(counts, sizes, st.integers(0, 50))
def test_min_size_decides_by_the_formula(c, k, min_size):
    limiter = rc.MinSize(min_size)
    assert (limiter.inserts_needed(c, k) == 0) == (c.inserts - c.removals >= min_size)
    assert limiter.departures_needed(c, k) == 0


@given(counts, sizes, sizes, st.sampled_from([rc.Queue, rc.Stack]))
def test_queue_and_stack_bound_the_size(c, k, n, kind):
    limiter = kind(n)
    assert (limiter.departures_needed(c, k) == 0) == (c.inserts + k - c.removals <= n)
    assert (limiter.inserts_needed(c, k) == 0) == (c.inserts - c.removals >= k)


LIMITERS = st.one_of(
    st.builds(rc.MinSize, st.integers(0, 50)),
    st.builds(rc.Queue, sizes),
    st.builds(rc.SampleToInsertRatio, ratios, st.integers(1, 50), buffers),
)


@given(LIMITERS, counts, sizes)
def test_a_sample_goes_after_as_many_inserts_as_it_needs_and_not_before(limiter, c, k):
    needed = limiter.inserts_needed(c, k)
    assert needed >= 0
    if needed:
        assert limiter.inserts_needed(after(c, inserts=needed), k) == 0
        assert limiter.inserts_needed(after(c, inserts=needed - 1), k) > 0


@given(LIMITERS, counts, sizes)
def test_an_insert_needs_at_least_the_departures_it_says(limiter, c, k):
    """A waiter sleeps through fewer departures, so the number must never be too large."""
    needed = limiter.departures_needed(c, k)
    assert needed >= 0
    for left in range(needed):
        for fewer in (after(c, samples=left), after(c, removals=left), after(c, 0, left, left)):
            assert limiter.departures_needed(fewer, k) > 0
    if needed:  # as many that are sampled and removed do let it go
        assert limiter.departures_needed(after(c, 0, needed, needed), k) == 0


@given(LIMITERS, counts)
def test_samples_allowed_is_the_largest_sample_that_may_go(limiter, c):
    allowed = limiter.samples_allowed(c)
    if allowed == math.inf:
        assert limiter.inserts_needed(c, 10**6) == 0
        return
    assert allowed >= 0
    assert limiter.inserts_needed(c, int(allowed) + 1) > 0
    if allowed:
        assert limiter.inserts_needed(c, int(allowed)) == 0


@given(ratios, st.integers(1, 20), buffers, st.integers(1, 60))
def test_what_the_range_could_never_admit_is_refused_with_the_buffer_it_needs(r, size, buffer, k):
    limiter = rc.SampleToInsertRatio(r, size, buffer)
    low, high = limiter.bounds
    if k > high - low:
        with pytest.raises(rc.NeverPossible, match=f"error_buffer={k / 2:g}"):
            limiter.check_sample(k)
        rc.SampleToInsertRatio(r, size, max(k / 2, 8.0)).check_sample(k)
    else:
        limiter.check_sample(k)
    if k * r > high - low:
        with pytest.raises(rc.NeverPossible, match=f"error_buffer={k * r / 2:g}"):
            limiter.check_insert(k)
        rc.SampleToInsertRatio(r, size, max(k * r / 2, 8.0)).check_insert(k)
    else:
        limiter.check_insert(k)


@given(ratios, st.integers(1, 10), buffers, st.data())
def test_single_inserts_and_samples_never_deadlock(ratio, min_size, buffer, data):
    """Whatever happened before, an insert of one or a sample of one may go."""
    limiter = rc.SampleToInsertRatio(ratio, min_size, buffer)
    c = Counts(0, 0, 0)
    for _ in range(60):
        insert = limiter.departures_needed(c, 1) == 0
        sample = limiter.inserts_needed(c, 1) == 0
        assert insert or sample
        if insert and (not sample or data.draw(st.booleans())):
            c = after(c, inserts=1)
        else:
            c = after(c, samples=1)


def goes(limiter, c, verb, k):
    """Whether a call may go now, must wait, or is refused with an error."""
    check, needed, waiting = {
        "insert": (limiter.check_insert, limiter.departures_needed, limiter.check_waiting_insert),
        "sample": (limiter.check_sample, limiter.inserts_needed, limiter.check_waiting_sample),
    }[verb]
    try:
        check(k)
        if needed(c, k) == 0:
            return "goes"
        waiting(c, k, 0)
    except rc.NeverPossible:
        return "refused"
    return "waits"


tight = st.sampled_from([0.5, 1.0, 1.5, 2.0, 3.0, 4.5, 8.0, 12.5, 20.0, 64.0])


@given(ratios, st.integers(1, 40), tight, sizes, st.integers(0, 50), st.data())
def test_batches_never_deadlock_with_single_calls_of_the_other_side(r, size, buffer, k, gone, data):
    """Whatever happened before: one of the two goes, or the batch is refused."""
    try:
        limiter = rc.SampleToInsertRatio(r, size, buffer)
    except rc.NeverPossible:
        return
    inserts, samples = data.draw(st.sampled_from([(k, 1), (1, k)]))
    c = Counts(0, 0, 0)
    for _ in range(60):
        outcomes = goes(limiter, c, "insert", inserts), goes(limiter, c, "sample", samples)
        assert outcomes != ("waits", "waits"), c
        if "goes" not in outcomes:
            return
        insert = outcomes[0] == "goes"
        if insert and (outcomes[1] != "goes" or data.draw(st.booleans())):
            c = after(c, inserts=inserts)
        else:
            c = after(c, samples=samples)
        if gone and c.inserts - c.removals > gone:  # what is taken leaves
            c = after(c, removals=data.draw(st.integers(0, c.inserts - c.removals)))


def stops(ratio, low, high):
    """Whether single inserts and samples ever stop each other, by trying, in exact numbers."""
    ratio, low, high = Fraction(ratio), Fraction(low), Fraction(high)
    states, difference = set(), -(-low // ratio) * ratio
    while difference > high:
        difference -= 1
    todo = [difference]
    while todo:
        now = todo.pop()
        if now in states:
            continue
        states.add(now)
        moves = [
            m for m, ok in ((now + ratio, now + ratio <= high), (now - 1, now - 1 >= low)) if ok
        ]
        if not moves:
            return True
        todo += moves
    return False


@given(
    st.builds(Fraction, st.integers(1, 12), st.sampled_from([1, 2, 4, 8])),
    st.builds(Fraction, st.integers(-40, 40), st.just(8)),
    st.builds(Fraction, st.integers(0, 120), st.just(8)),
)
def test_a_range_that_stops_both_sides_is_refused_when_it_is_made(ratio, low, width):
    bounds = float(low), float(low + width)
    if low + width < low + max(1, ratio) or stops(ratio, low, low + width):
        with pytest.raises(rc.NeverPossible, match="error_buffer=") as refused:
            rc.SampleToInsertRatio(float(ratio), 1, bounds)
        wider = float(str(refused.value).split("error_buffer=")[1].rstrip(")"))
        rc.SampleToInsertRatio(float(ratio), 1, wider)
    else:
        rc.SampleToInsertRatio(float(ratio), 1, bounds)


def test_a_ratio_means_the_fraction_that_is_written():
    rc.SampleToInsertRatio(0.1, 3, (0.0, 1.0))  # ten inserts, one sample, for ever
    with pytest.raises(rc.NeverPossible, match=r"error_buffer=0\.5"):
        rc.SampleToInsertRatio(0.1, 3, (0.0, 0.9))
    rc.SampleToInsertRatio(0.1, 3, 0.5)


def test_min_size_is_the_ratio_without_bounds():
    assert rc.SampleToInsertRatio(1.0, 5).bounds == (-math.inf, math.inf)
    c = Counts(5, 1000, 0)
    assert rc.SampleToInsertRatio(1.0, 5).inserts_needed(c, 99) == 0


def test_limiters_are_frozen_values():
    limiter = rc.SampleToInsertRatio(2.0, 3, [0, 50])
    assert limiter == rc.SampleToInsertRatio(2.0, 3, (0, 50))
    assert hash(limiter) == hash(rc.SampleToInsertRatio(2.0, 3, (0, 50)))
    with pytest.raises(FrozenInstanceError):
        limiter.ratio = 3.0
    assert rc.Queue(3) != rc.Stack(3)


def test_messages_write_a_limiter_as_one_makes_it():
    assert [str(rc.MinSize(1000)), str(rc.Queue(3)), str(rc.Stack(3))] == [
        "MinSize(1000)", "Queue(3)", "Stack(3)",
    ]  # fmt: skip
    assert repr(rc.MinSize(1000)) == "MinSize(min_size=1000)"  # what snapshots note


@pytest.mark.parametrize("kind", [np.float32, np.float16, np.float64, np.int8])
def test_numbers_of_numpy_are_numbers(kind):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert rc.Linear(kind(3), kind(5), 2).at(1) == 4.0
        assert rc.Prioritized(alpha=kind(1), beta=kind(1), half_life=kind(2)).half_life == 2
        assert rc.Mixed([(rc.Fifo(), kind(1)), (rc.Lifo(), kind(3))]).selectors[1][1] == 0.75
        assert rc.SampleToInsertRatio(kind(2), 3, kind(4)).bounds == (2.0, 10.0)
        with pytest.raises(rc.InvalidValue, match="at least 0"):
            rc.Prioritized(alpha=kind(-1))


# -- what a table counts


def table(limiter, **options):
    return rc.Table("t", **{"capacity": 100, "limiter": limiter, "sampler": rc.Fifo(), **options})


def numbers(t):
    stats = t.stats()
    return stats["inserts"], stats["samples"], stats["removals"]


def test_take_counts_as_a_sample_and_as_a_removal():
    t = table(rc.MinSize(1))
    t.insert({"x": np.arange(5)})
    t.take(2)
    assert numbers(t) == (5, 2, 2)


def test_evicting_and_deleting_count_as_removals():
    t = table(rc.MinSize(1), capacity=3)
    keys = t.insert({"x": np.arange(3)})
    t.insert({"x": np.arange(2)})
    t.delete(keys[2:])
    assert numbers(t) == (5, 0, 3)


def test_items_that_wore_out_count_as_removals():
    t = table(rc.MinSize(1), max_times_sampled=2)
    t.insert({"x": np.arange(2)})
    t.sample(2)
    t.sample(2)
    assert numbers(t) == (2, 4, 2)


def test_clearing_counts_as_removals():
    t = table(rc.MinSize(1))
    t.insert({"x": np.arange(3)})
    t.take(1, lease=60)
    t.clear()
    assert numbers(t) == (3, 1, 3)


def test_removing_below_min_size_closes_sampling_again():
    t = table(rc.MinSize(3))
    keys = t.insert({"x": np.arange(3)})
    t.sample(1, timeout=0)
    t.delete(keys[:1])
    with pytest.raises(TimeoutError):
        t.sample(1, timeout=0)


def test_a_batch_beyond_the_range_raises_at_once_and_names_the_buffer_it_needs():
    t = table(rc.SampleToInsertRatio(1.0, 2, 4.0))
    with pytest.raises(rc.NeverPossible, match=r"error_buffer=4\.5"):
        t.sample(9)
    with pytest.raises(rc.NeverPossible, match=r"error_buffer=4\.5"):
        t.insert({"x": np.arange(9)})
    with pytest.raises(rc.NeverPossible, match=r"error_buffer=4\.5"):
        t.take(9)


def test_a_batch_below_min_size_is_refused_too_where_the_next_one_would_wait_for_ever():
    t = table(rc.SampleToInsertRatio(4, 100, 40), capacity=1000)
    with pytest.raises(rc.NeverPossible, match=r"error_buffer=128\b"):
        t.insert({"x": np.arange(64)}, timeout=0)
    assert len(t) == 0


def test_an_insert_that_keeps_the_table_below_min_size_raises_instead_of_waiting():
    t = table(rc.SampleToInsertRatio(4, 100, 40), capacity=1000)
    for _ in range(5):
        t.insert({"x": np.arange(19)})
    with pytest.raises(rc.NeverPossible, match=r"95 items.*insert at most 15 now"):
        t.insert({"x": np.arange(19)}, timeout=0)
    t.insert({"x": np.arange(15)}, timeout=0)
    t.sample(80, timeout=0)
    t.insert({"x": np.arange(19)}, timeout=0)


def test_a_sample_that_waits_for_inserts_which_wait_for_it_raises():
    t = table(rc.SampleToInsertRatio(4.0, 1, (0.0, 8.0)), sampler=rc.Uniform())
    t.insert({"x": [1, 2]}, timeout=0)
    t.sample(7, timeout=0)
    t.insert({"x": [3]}, timeout=0)  # 4 * 3 - 7 = 5: one more insert would make it 9
    with pytest.raises(rc.NeverPossible, match=r"error_buffer=5\.5 .*at most 5 now"):
        t.sample(7, timeout=0)
    t.sample(1, timeout=0)
    t.insert({"x": [1]}, timeout=0)
    t.sample(7, timeout=0)


def test_leases_that_may_end_are_waited_for():
    t = table(rc.SampleToInsertRatio(1.0, 10, 4.0))  # between 6 and 14
    t.insert({"x": np.arange(8)})
    t.insert({"x": np.arange(2)})
    lease = t.take(4, lease=60).info.lease
    with pytest.raises(rc.WaitTimeout):
        t.sample(1, timeout=0)
    t.insert({"x": np.arange(8)}, timeout=0)
    with pytest.raises(rc.WaitTimeout):
        t.insert({"x": np.arange(8)}, timeout=0)
    t.confirm(lease)


def test_ratio_holds_over_time():
    t = table(rc.SampleToInsertRatio(4.0, 5, 8.0), sampler=rc.Uniform())
    rng = np.random.default_rng(0)
    inserts = samples = 0
    for _ in range(2000):
        try:
            if rng.random() < 0.5:
                t.insert({"x": [1]}, timeout=0)
                inserts += 1
            else:
                t.sample(1, timeout=0)
                samples += 1
        except TimeoutError:
            pass
        if inserts > 10:
            assert -8 <= 4 * inserts - samples - 20 <= 8
    assert samples > 100


def test_assigning_a_limiter_keeps_the_counts():
    t = table(rc.MinSize(1))
    t.insert({"x": np.arange(5)})
    t.sample(3)
    t.limiter = rc.SampleToInsertRatio(1.0, 1, (0.0, 10.0))
    assert numbers(t) == (5, 3, 0)
    t.sample(2, timeout=0)
    with pytest.raises(TimeoutError, match="1 more insert"):
        t.sample(1, timeout=0)
