"""The numbers behind prioritized draws: sums that do not drift, and zeros that never come."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest

import recollect as rc
from recollect.kernels import layout
from recollect.storage.memory.indexes import Index

TINY, HUGE = 1e-15, 1e6
SIZES = [1, 2, 15, 16, 17, 31, 32, 33, 255, 256, 257, 271, 272, 273, 1000, 4095, 4096, 4097, 5000]


def trees_of(table: rc.Table) -> list[Index]:
    """Every index of weights that the table keeps."""
    indexes = table.core.storage.index_set.indexes
    return [index for index in indexes if index.kind.kind == layout.WEIGHT]


def check_sums(index: Index, weights: np.ndarray) -> None:
    """The root is the sum of the leaves, and the leaves are the weights of the items."""
    leaves = index.arrays[layout.A_TREE][: int(index.row[layout.LEAVES])]
    assert index.total == pytest.approx(math.fsum(leaves), rel=1e-9, abs=0.0)
    assert index.total == pytest.approx(math.fsum(weights), rel=1e-9, abs=0.0)
    assert np.array_equal(np.sort(leaves[leaves > 0]), np.sort(weights[weights > 0]))


def mixed_priorities(rng: np.random.Generator, n: int, zeros: float = 0.1) -> np.ndarray:
    """Priorities around 1e-15, around 1e6, and some zeros."""
    priorities = np.where(rng.random(n) < 0.5, TINY, HUGE) * (0.5 + rng.random(n))
    priorities[rng.random(n) < zeros] = 0.0
    return priorities


@pytest.mark.parametrize("partition", [False, True], ids=["whole", "partitions"])
def test_ten_million_updates_leave_no_error(partition: bool) -> None:
    items, batch, updates = 50_000, 8192, 10_000_000
    rng = np.random.default_rng(0)
    table = rc.Table(
        "t",
        capacity=items,
        sampler=rc.Prioritized(alpha=1.0),
        partition_by=("task",) if partition else (),
        seed=0,
    )
    tasks = [("a", "b")[place % 2] for place in range(items)]
    keys = table.insert({"x": np.arange(items)}, task=tasks, priority=1.0)
    table.sample(1)
    if partition:
        updates //= 5
        table.sample(1, where=rc.field("task") == "a")
    stored = np.ones(items)
    pools = [(rng.integers(0, items, batch), mixed_priorities(rng, batch)) for _ in range(50)]
    deadline = time.monotonic() + 40.0  # a slow machine does what it can
    for step in range(updates // batch + 1):
        places, _ = pools[step % 50]
        _, values = pools[(7 * step + step // 50) % 50]
        assert table.update(keys[places], priority=values).all()
        stored[places] = values
        if step % 20 == 0:
            drawn = table.sample(256)
            assert (drawn.info.priority > 0).all(), "a zero was drawn"
            assert (stored[drawn["x"]] == drawn.info.priority).all()
        if time.monotonic() >= deadline:
            break
    whole, *parts = trees_of(table)
    check_sums(whole, stored)
    for number, index in enumerate(parts):
        check_sums(index, stored[number::2])
    # What is left when everything huge has gone is as exact as if it had never been there.
    table.update(keys, priority=np.where(stored > 1.0, 0.0, stored))
    left = np.where(stored > 1.0, 0.0, stored)
    check_sums(whole, left)
    drawn = table.sample(4096)
    assert (drawn.info.priority > 0).all()
    np.testing.assert_allclose(
        drawn.info.probability, left[drawn["x"]] / math.fsum(left), rtol=1e-9
    )


@pytest.mark.parametrize("size", SIZES)
def test_every_size_draws_what_it_weighs(size: int) -> None:
    rng = np.random.default_rng(size)
    priorities = rng.random(size)
    priorities[rng.random(size) < 0.3] = 0.0
    priorities[rng.integers(size)] = 1.0
    table = rc.Table("t", capacity=size, sampler=rc.Prioritized(alpha=1.0), seed=size)
    keys = table.insert({"x": np.arange(size)}, priority=priorities)
    total = math.fsum(priorities)
    for _ in range(2):
        n = 4 * size
        drawn = table.sample(n)
        counts = np.bincount(drawn["x"], minlength=size)
        # Stratified: every item gets its share, to the strata that it touches at its two ends.
        assert (np.abs(counts - n * priorities / total) < 2.0 + 1e-6).all()
        assert not counts[priorities == 0].any()
        np.testing.assert_allclose(drawn.info.probability, priorities[drawn["x"]] / total, 1e-9)
        (index,) = trees_of(table)
        check_sums(index, priorities)
        order = rng.permutation(size)
        priorities = priorities[order]
        assert table.update(keys, priority=priorities).all()


@pytest.mark.parametrize("kind", ["alike", "skewed", "steep", "few"])
@pytest.mark.parametrize(("size", "n"), [(300, 64), (300, 4096), (5000, 300), (70_000, 2500)])
def test_every_draw_lies_in_its_stratum(size: int, n: int, kind: str) -> None:
    """The i-th draw is of an item whose weight lies, in part, in the i-th of n parts of all."""
    rng = np.random.default_rng(size + n)
    priorities = 0.5 + rng.random(size)
    if kind == "skewed":
        priorities = rng.pareto(0.5, size)
    elif kind == "steep":
        priorities = 0.9 ** np.arange(size, dtype=float)
    elif kind == "few":
        priorities[rng.random(size) < 0.999] = 0.0
        priorities[size // 2] = 1.0
    table = rc.Table("t", capacity=size, sampler=rc.Prioritized(alpha=1.0), seed=size)
    table.insert({"x": np.arange(size)}, priority=priorities)
    weights = np.maximum(priorities, np.where(priorities > 0, np.finfo(float).tiny, 0.0))
    ends = np.cumsum(weights)
    rounding = 1e-9 * ends[-1]
    for _ in range(3):
        drawn = table.sample(n)["x"]
        assert (weights[drawn] > 0).all()
        assert (ends[drawn] + rounding >= np.arange(n) / n * ends[-1]).all()
        begins = ends[drawn] - weights[drawn]
        assert (begins - rounding <= np.arange(1, n + 1) / n * ends[-1]).all()


@pytest.mark.parametrize("size", [1, 16, 17, 256, 257, 5000])
def test_the_last_and_the_first_leaf_alone_are_found(size: int) -> None:
    """All weight on one leaf, at the ends of the tree and of its nodes."""
    table = rc.Table("t", capacity=size, sampler=rc.Prioritized(alpha=1.0), seed=1)
    keys = table.insert({"x": np.arange(size)}, priority=0.0)
    for place in {0, 15 % size, 16 % size, 17 % size, size // 2, size - 1}:
        for weight in (TINY, 1.0, HUGE):
            table.update(keys[[place]], priority=weight)
            assert (table.sample(64)["x"] == place).all()
            assert (table.sample(1, replace=False)["x"] == place).all()
        table.update(keys[[place]], priority=0.0)


def test_a_tiny_weight_beside_a_huge_one_is_never_a_zero_leaf() -> None:
    """Rounding may carry a search past the last positive leaf; it must come back."""
    rng = np.random.default_rng(5)
    for size in (17, 300, 4097):
        priorities = mixed_priorities(rng, size, zeros=0.6)
        priorities[-1] = 0.0
        table = rc.Table("t", capacity=size, sampler=rc.Prioritized(alpha=1.0), seed=size)
        table.insert({"x": np.arange(size)}, priority=priorities)
        positive = int((priorities > 0).sum())
        for _ in range(20):
            assert (table.sample(2000).info.priority > 0).all()
            assert (table.sample(positive, replace=False).info.priority > 0).all()


def test_growth_keeps_draws_right() -> None:
    """Items come a few at a time; whenever arrays grow, sums and draws stay exact."""
    rng = np.random.default_rng(9)
    table = rc.Table("t", capacity=6000, sampler=rc.Prioritized(alpha=1.0), seed=0)
    stored = np.zeros(0)
    while len(stored) + 300 < 6000:
        new = mixed_priorities(rng, int(rng.integers(1, 300)), zeros=0.2)
        new[0] = HUGE
        table.insert({"x": np.arange(len(stored), len(stored) + len(new))}, priority=new)
        stored = np.concatenate([stored, new])
        drawn = table.sample(500)
        assert (stored[drawn["x"]] == drawn.info.priority).all()
        assert (drawn.info.priority > 0).all()
        np.testing.assert_allclose(
            drawn.info.probability, stored[drawn["x"]] / math.fsum(stored), rtol=1e-9
        )
        (index,) = trees_of(table)
        check_sums(index, stored)


@pytest.mark.parametrize("partition", [False, True], ids=["whole", "partitions"])
def test_removal_keeps_sums_right(partition: bool) -> None:
    rng = np.random.default_rng(2)
    table = rc.Table(
        "t",
        capacity=3000,
        sampler=rc.Prioritized(alpha=1.0, normalize="table", beta=1.0),
        partition_by=("task",) if partition else (),
        seed=0,
    )
    stored: dict[int, float] = {}
    tasks: dict[int, str] = {}
    for _ in range(60):
        count = int(rng.integers(1, 200))
        new = mixed_priorities(rng, count)
        named = [str(task) for task in rng.choice(["a", "b", "c"], count)]
        full = len(table) + count > 3000
        keys = table.insert({"x": np.arange(count)}, priority=new, task=named).tolist()
        stored.update(zip(keys, new.tolist(), strict=True))
        tasks.update(zip(keys, named, strict=True))
        if full:
            here = set(table.counts("key"))
            stored = {key: value for key, value in stored.items() if key in here}
        if rng.random() < 0.5:
            gone = rng.choice(list(stored), int(rng.integers(1, len(stored))), replace=False)
            table.delete(gone)
            for key in gone.tolist():
                del stored[key]
        if not any(stored.values()):
            continue
        batch = table.sample(100)
        assert [stored[key] for key in batch.info.keys.tolist()] == batch.info.priority.tolist()
        smallest = min(value for value in stored.values() if value > 0)
        np.testing.assert_allclose(batch.info.weights, smallest / batch.info.priority, rtol=1e-9)
        whole, *_ = trees_of(table)
        check_sums(whole, np.array(list(stored.values())))
        if partition:
            inside = np.array([value for key, value in stored.items() if tasks[key] == "b"])
            if inside.any():
                drawn = table.sample(50, where=rc.field("task") == "b")
                np.testing.assert_allclose(
                    drawn.info.probability, drawn.info.priority / math.fsum(inside), rtol=1e-9
                )
