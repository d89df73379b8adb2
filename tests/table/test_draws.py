"""How often items are drawn: chi-square tests with fixed seeds, and what must be exact."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from scipy import stats

import recollect as rc

UNLIKELY = 1e-4  # seeds are fixed, so a right table never fails; a wrong one is far below
DRAWS = 20_000


def table_of(
    sampler: rc.Selector, priorities: list[float], *, partition: bool = False, **options: object
) -> rc.Table:
    """One item per priority; x is its place, and odd ones have the task 'odd'."""
    table = rc.Table(
        "t",
        capacity=len(priorities),
        sampler=sampler,
        partition_by=("task",) if partition else (),
        seed=11,
        **options,
    )
    places = np.arange(len(priorities))
    tasks = [("even", "odd")[place % 2] for place in places]
    table.insert({"x": places}, priority=priorities, task=tasks, version=places.tolist())
    return table


def draw(table: rc.Table, n: int, batch: int = 200, **options: object) -> np.ndarray:
    drawn = [table.sample(batch, **options)["x"] for _ in range(n // batch)]
    return np.concatenate(drawn)


def check_frequencies(drawn: np.ndarray, weights: np.ndarray) -> None:
    """The draws have frequencies in proportion to the weights, and none of weight zero."""
    weights = np.asarray(weights, float)
    counts = np.bincount(drawn, minlength=len(weights))
    assert not counts[weights == 0].any(), "an item of weight zero was drawn"
    here = weights > 0
    if here.sum() == 1:
        return
    expected = len(drawn) * weights[here] / weights.sum()
    assert stats.chisquare(counts[here], expected).pvalue > UNLIKELY, (counts, expected)


PRIORITIES = [0.5, 3.0, 0.0, 1.0, 2.0, 0.0, 0.1, 7.0, 1.5, 0.3, 4.0]
WHERES = {
    "all": (None, lambda x: np.ones_like(x, bool)),
    "partition": (rc.field("task") == "odd", lambda x: x % 2 == 1),
    "both": (rc.field("task").isin(["odd", "even"]), lambda x: np.ones_like(x, bool)),
    "scan": (rc.field("version") >= 4, lambda x: x >= 4),
    "partition and scan": (
        (rc.field("task") == "even") & (rc.field("version") > 0),
        lambda x: (x % 2 == 0) & (x > 0),
    ),
}


@pytest.mark.parametrize("where", WHERES)
@pytest.mark.parametrize("partition", [False, True], ids=["whole", "partitions"])
@pytest.mark.parametrize("max_times", [0, 10**6], ids=["", "counted"])
def test_uniform_draws_every_item_equally(where: str, partition: bool, max_times: int) -> None:
    query, admits = WHERES[where]
    table = table_of(rc.Uniform(), PRIORITIES, partition=partition, max_times_sampled=max_times)
    drawn = draw(table, DRAWS, where=query)
    check_frequencies(drawn, admits(np.arange(len(PRIORITIES))))


@pytest.mark.parametrize("where", WHERES)
@pytest.mark.parametrize("partition", [False, True], ids=["whole", "partitions"])
@pytest.mark.parametrize("stratified", [False, True], ids=["free", "stratified"])
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_prioritized_draws_in_proportion(
    where: str, partition: bool, stratified: bool, alpha: float
) -> None:
    query, admits = WHERES[where]
    sampler = rc.Prioritized(alpha=alpha, stratified=stratified)
    table = table_of(sampler, PRIORITIES, partition=partition)
    priorities = np.array(PRIORITIES)
    weights = np.where(priorities > 0, priorities**alpha, 0.0)
    drawn = draw(table, DRAWS, where=query)
    check_frequencies(drawn, weights * admits(np.arange(len(PRIORITIES))))


def test_prioritized_draws_in_proportion_one_at_a_time() -> None:
    table = table_of(rc.Prioritized(alpha=1.0), PRIORITIES)
    check_frequencies(draw(table, 5000, batch=1), np.array(PRIORITIES))


def test_priorities_one_tenth_and_zero() -> None:
    table = table_of(rc.Prioritized(alpha=1.0, stratified=False), [1.0, 0.1, 0.0])
    counts = np.bincount(draw(table, 100_000), minlength=3) / 100_000
    assert counts[0] == pytest.approx(10 / 11, abs=0.005)
    assert counts[1] == pytest.approx(1 / 11, abs=0.005)
    assert counts[2] == 0


def test_stratified_draws_are_exact_where_shares_are_whole() -> None:
    table = table_of(rc.Prioritized(alpha=1.0), [0.5, 1.5])
    for _ in range(20):
        assert np.bincount(table.sample(1000)["x"]).tolist() == [250, 750]


def test_stratified_draws_differ_by_less_than_one_stratum_from_their_share() -> None:
    priorities = np.random.default_rng(3).random(300)
    table = table_of(rc.Prioritized(alpha=1.0), priorities.tolist())
    counts = np.bincount(table.sample(5000)["x"], minlength=300)
    assert (np.abs(counts - 5000 * priorities / priorities.sum()) < 2.0).all()


@pytest.mark.parametrize("partition", [False, True], ids=["whole", "partitions"])
def test_only_zeros_are_drawn_uniformly(partition: bool) -> None:
    table = table_of(rc.Prioritized(alpha=1.0), [0.0] * 7, partition=partition)
    check_frequencies(draw(table, DRAWS), np.ones(7))
    drawn = draw(table, DRAWS, where=rc.field("task") == "odd")
    check_frequencies(drawn, np.arange(7) % 2)


# -- without replacement --------------------------------------------------------------------------
def sequences(weights: list[float], n: int) -> dict[tuple[int, ...], float]:
    """The probability of every sequence of n different items, drawn one after another."""
    chances = {}
    for sequence in itertools.permutations(range(len(weights)), n):
        chance, left = 1.0, dict(enumerate(weights))
        for place in sequence:
            total = sum(left.values())
            chance *= left[place] / total if total > 0 else 1 / len(left)
            del left[place]
        chances[sequence] = chance
    assert sum(chances.values()) == pytest.approx(1.0)
    return chances


def check_sequences(table: rc.Table, weights: list[float], n: int, **options: object) -> None:
    trials = 12_000
    seen = Counter(
        tuple(table.sample(n, replace=False, **options)["x"].tolist()) for _ in range(trials)
    )
    chances = sequences(weights, n)
    possible = [sequence for sequence, chance in chances.items() if chance > 0]
    assert set(seen) <= set(possible)
    expected = [trials * chances[sequence] for sequence in possible]
    counts = [seen[sequence] for sequence in possible]
    assert stats.chisquare(counts, expected).pvalue > UNLIKELY


@pytest.mark.parametrize("partition", [False, True], ids=["whole", "partitions"])
@pytest.mark.parametrize(
    ("priorities", "n"),
    [([1.0, 2.0, 3.0, 4.0], 1), ([1.0, 2.0, 3.0, 4.0], 2), ([1.0, 2.0, 3.0, 4.0], 4)],
)
def test_different_items_come_with_sequential_probabilities(
    priorities: list[float], n: int, partition: bool
) -> None:
    table = table_of(rc.Prioritized(alpha=1.0), priorities, partition=partition)
    where = rc.field("task").isin(["odd", "even"]) if partition else None
    check_sequences(table, priorities, n, where=where)


def test_zeros_come_uniformly_once_no_positive_one_is_left() -> None:
    priorities = [0.0, 2.0, 0.0, 1.0, 0.0]
    check_sequences(table_of(rc.Prioritized(alpha=1.0), priorities), priorities, 4)


@pytest.mark.parametrize("partition", [False, True], ids=["whole", "partitions"])
def test_different_items_are_uniform_without_weights(partition: bool) -> None:
    table = table_of(rc.Uniform(), [1.0] * 5, partition=partition)
    where = rc.field("task").isin(["odd", "even"]) if partition else None
    check_sequences(table, [1.0] * 5, 3, where=where)


@pytest.mark.parametrize("sampler", [rc.Uniform(), rc.Prioritized(alpha=1.0)], ids=str)
def test_take_draws_as_sampling_different_items_does(sampler: rc.Selector) -> None:
    priorities = [1.0, 2.0, 4.0] if isinstance(sampler, rc.Prioritized) else [1.0] * 3
    table = rc.Table("t", capacity=3, sampler=sampler, seed=5)
    seen: Counter[tuple[int, ...]] = Counter()
    trials = 6000
    for _ in range(trials):
        table.insert({"x": np.arange(3)}, priority=priorities)
        seen[tuple(table.take(2)["x"].tolist())] += 1
        table.clear()
    chances = sequences(priorities, 2)
    expected = [trials * chance for chance in chances.values()]
    counts = [seen[sequence] for sequence in chances]
    assert stats.chisquare(counts, expected).pvalue > UNLIKELY


def test_random_eviction_is_uniform() -> None:
    gone: Counter[int] = Counter()
    table = rc.Table("t", capacity=8, remover=rc.Uniform(), seed=2)
    for _ in range(4000):
        table.insert({"x": np.arange(8)})
        table.insert({"x": np.array([100])})
        left = set(table.get(sorted(table.counts("key")))["x"].tolist())
        gone.update(set(range(8)) - left)
        table.clear()
    assert stats.chisquare([gone[place] for place in range(8)]).pvalue > UNLIKELY


# -- weights that age -----------------------------------------------------------------------------
@pytest.mark.parametrize("where", ["all", "both", "scan"])
def test_a_half_life_halves_weights(where: str) -> None:
    query, admits = WHERES[where]
    sampler = rc.Prioritized(alpha=1.0, half_life=2.0, stratified=False)
    table = table_of(sampler, PRIORITIES, partition=True)
    ages = np.arange(len(PRIORITIES))
    weights = np.array(PRIORITIES) * 2.0 ** (ages / 2.0)
    check_frequencies(draw(table, DRAWS, where=query), weights * admits(ages))


@pytest.mark.parametrize("partition", [False, True], ids=["whole", "partitions"])
def test_ratios_hold_however_far_versions_advance(partition: bool) -> None:
    """The same three ages at every version; the newest is taken, so that old ones are left."""
    sampler = rc.Prioritized(alpha=1.0, half_life=1.0, stratified=False)
    table = rc.Table(
        "t", capacity=9, sampler=sampler, partition_by=("task",) if partition else (), seed=1
    )
    where = rc.field("task").isin(["a", "b"]) if partition else None
    for newest in (0, 10, 500, 5_000, 1_000_000):
        table.insert({"x": [9]}, version=newest + 3000, task="b")  # far ahead of the others
        table.sample(1, where=where)
        table.insert(
            {"x": [0, 1, 2]}, version=[newest, newest + 1, newest + 2], task=["a", "b", "a"]
        )
        table.delete(where=rc.field("version") == newest + 3000)
        check_frequencies(draw(table, 7000, where=where), np.array([1.0, 2.0, 4.0]))
        drawn = draw(table, 7000, where=rc.field("version") <= newest + 1)
        check_frequencies(drawn, np.array([1.0, 2.0, 0.0]))
        table.clear()


# -- mixtures -------------------------------------------------------------------------------------
@pytest.mark.parametrize("batch", [1, 2, 3, 7, 10])
def test_shares_of_a_mixture_hold_exactly_over_time(batch: int) -> None:
    """Items of priority 0 come from the order alone, so they show which part drew."""
    mixed = rc.Mixed([(rc.Smallest("priority"), 0.3), (rc.Prioritized(alpha=1.0), 0.7)])
    table = table_of(mixed, [0.0] * 500 + [1.0] * 10)
    from_order = total = 0
    for _ in range(150):
        drawn = table.sample(batch)["x"]
        from_order += int((drawn < 500).sum())
        total += batch
        assert abs(from_order - 0.3 * total) <= 1.0


def test_the_random_part_of_a_mixture_keeps_its_distribution() -> None:
    mixed = rc.Mixed([(rc.Largest("version"), 0.5), (rc.Prioritized(alpha=1.0), 0.5)])
    priorities = [*PRIORITIES, *([0.0] * 500)]  # orders walk through the zeros first
    table = table_of(mixed, priorities)
    drawn = np.concatenate([table.sample(20)["x"] for _ in range(45)])
    check_frequencies(drawn[drawn < len(PRIORITIES)], np.array(PRIORITIES))


# -- seeds ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "sampler",
    [
        rc.Uniform(),
        rc.Prioritized(),
        rc.Prioritized(half_life=3.0),
        rc.Mixed([(rc.Fifo(), 0.4), (rc.Uniform(), 0.6)]),
    ],
    ids=str,
)
def test_the_same_seed_and_calls_draw_the_same(sampler: rc.Selector) -> None:
    def play(seed: int) -> list[list[int]]:
        table = rc.Table("t", capacity=50, sampler=sampler, remover=rc.Uniform(), seed=seed)
        log = []
        for step in range(40):
            table.insert({"x": np.arange(5) + 5 * step}, version=step, priority=0.5 + step % 3)
            batch = table.sample(8, replace=step % 2 == 0 or len(table) < 8)
            table.update(batch.info.keys, priority=batch["x"] % 7 + 0.1)
            log.append(batch["x"].tolist())
            log.append(table.take(2)["x"].tolist())
            log.append(table.sample(3, where=rc.field("priority") > 0.3)["x"].tolist())
        return log

    assert play(7) == play(7)
    assert play(7) != play(8)
