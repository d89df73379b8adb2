"""The plan by which M saved shards become N, beside a slow one and what it promises."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recollect.ranks.redistribution import (
    ShardPlan,
    Stream,
    apportion,
    by_age,
    deal,
    fresh_origins,
    into_lanes,
    seed_words,
)


def slow_deal(sizes: list[list[int]], shards: int) -> list[list[int]]:
    """The same rule as the kernel, with lists, whole numbers and fractions as they come."""
    total = sum(map(sum, sizes))
    load = [0] * shards
    dealt: list[list[int]] = []
    left: list[tuple[int, int]] = []
    begin = 0
    for source, units in enumerate(sizes):
        end = begin + shards * sum(units)
        parts = {}
        for shard in range(shards):
            part = min(end, (shard + 1) * total) - max(begin, shard * total)
            if part > 0:
                parts[shard] = part
        given_here = dict.fromkeys(parts, 0)
        dealt.append([])
        for place, size in enumerate(units):
            fits = [shard for shard in parts if shards * (load[shard] + size) <= total]
            if not fits:
                dealt[-1].append(-1)
                left.append((source, place))
                continue
            best = min(fits, key=lambda s: ((2 * given_here[s] + size) / parts[s], s))
            load[best] += size
            given_here[best] += size
            dealt[-1].append(best)
        begin = end
    for source, place in left:
        smallest = load.index(min(load))
        dealt[source][place] = smallest
        load[smallest] += sizes[source][place]
    return dealt


def slow_order(sizes: list[list[int]]) -> list[tuple[int, int]]:
    """Units by the share of their stream that came before their middle."""
    aged = []
    for stream, units in enumerate(sizes):
        before = 0
        for place, size in enumerate(units):
            aged.append(((2 * before + size) / (2 * sum(units)), stream, place))
            before += size
    return [(stream, place) for _, stream, place in sorted(aged)]


units = st.lists(st.integers(1, 40), max_size=30)
saved = st.lists(units, min_size=1, max_size=9)
few = settings(max_examples=60, deadline=None)


@few
@given(saved, st.integers(1, 9))
def test_kernel_deals_as_the_slow_rule_does(sizes: list[list[int]], shards: int) -> None:
    flat = np.array([size for units in sizes for size in units], np.int64)
    dealt = deal(flat, np.array([len(units) for units in sizes]), shards)
    assert dealt.tolist() == [shard for units in slow_deal(sizes, shards) for shard in units]


@few
@given(saved)
def test_units_are_merged_by_relative_age_then_stream(sizes: list[list[int]]) -> None:
    merged = by_age([Stream(0, np.array(units, np.int64)) for units in sizes])
    found = list(zip(merged.streams.tolist(), merged.places.tolist(), strict=True))
    assert found == slow_order(sizes)


@few
@given(saved, st.integers(1, 9))
def test_every_unit_is_in_one_shard_and_shards_differ_by_one_unit_at_most(
    sizes: list[list[int]], shards: int
) -> None:
    streams = [Stream(source, np.array(units, np.int64)) for source, units in enumerate(sizes)]
    plan = ShardPlan(streams, len(sizes), shards)
    seen = []
    for shard in range(shards):
        mine = plan.shard(shard)
        pairs = list(zip(mine.streams.tolist(), mine.places.tolist(), strict=True))
        for source in range(len(sizes)):  # arrival order is kept
            places = [place for stream, place in pairs if stream == source]
            assert places == sorted(places)
        seen += pairs
    assert sorted(seen) == [(s, p) for s, units in enumerate(sizes) for p in range(len(units))]
    assert sum(plan.totals()) == sum(map(sum, sizes))
    if shards == len(sizes):
        assert plan.totals() == [sum(units) for units in sizes]
    elif seen:
        largest = max(size for units in sizes for size in units)
        assert max(plan.totals()) - min(plan.totals()) <= largest


def test_a_rank_reads_few_sources_and_all_ages_of_them() -> None:
    streams = [Stream(source, np.ones(1000, np.int64)) for source in range(8)]
    plan = ShardPlan(streams, 8, 2)
    assert sorted(set(plan.shard(0).streams.tolist())) == [0, 1, 2, 3]
    assert sorted(set(plan.shard(1).streams.tolist())) == [4, 5, 6, 7]
    plan = ShardPlan(streams[:1], 1, 4)
    for shard in range(4):  # one source for four: each gets every fourth of its items
        assert np.diff(plan.shard(shard).places).max() <= 5
    plan = ShardPlan(streams[:3], 3, 2)
    middle = plan.shard(0).places[plan.shard(0).streams == 1]
    assert middle.size == 500
    assert middle.min() < 5
    assert middle.max() > 994


@pytest.mark.parametrize("seed", ["77"])
def test_plan_is_the_same_in_every_process_and_with_every_hash_seed(seed: str) -> None:
    program = (
        "import numpy as np\n"
        "from recollect.ranks.redistribution import *\n"
        "r = np.random.default_rng(3)\n"
        "s = [Stream(i // 2, r.integers(1, 90, 200)) for i in range(10)]\n"
        "print(ShardPlan(s, 5, 7).targets.tolist(), fresh_origins({5, 9, 1}, 3),"
        " seed_words([[1, 2], [3, 4]], 3, 1).tolist())\n"
    )
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    run = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    random = np.random.default_rng(3)
    streams = [Stream(i // 2, random.integers(1, 90, 200)) for i in range(10)]
    here = (
        ShardPlan(streams, 5, 7).targets.tolist(),
        fresh_origins({5, 9, 1}, 3),
        seed_words([[1, 2], [3, 4]], 3, 1).tolist(),
    )
    assert run.stdout.strip() == " ".join(map(str, here))


@few
@given(st.integers(0, 10**15), st.lists(st.integers(0, 1000), min_size=1, max_size=9))
def test_counts_are_apportioned_whole_and_in_proportion(total: int, sizes: list[int]) -> None:
    parts = apportion(total, sizes)
    assert sum(parts) == total
    if sum(sizes):
        for part, size in zip(parts, sizes, strict=True):
            assert abs(part - total * size / sum(sizes)) < 1 + 1e-9 * total
    if total >= sum(sizes):  # inserts are never fewer than what is there
        assert all(part >= size for part, size in zip(parts, sizes, strict=True))


def test_new_origins_are_of_nobody_else() -> None:
    used = set(range(0, 1 << 20, 2)) | {1, 3}
    found = fresh_origins(used, 9)
    assert len(set(found)) == 9
    assert not set(found) & used


def test_streams_keep_their_lanes_where_each_has_one() -> None:
    sizes, streams = np.array([3, 5, 4, 1]), np.array([7, 2, 7, 2])
    assert into_lanes(sizes, streams, 2, 7).tolist() == [1, 0, 1, 0]
    assert into_lanes(sizes, streams, 2, 6).tolist() == [0, 1, 0, 1]  # 7 rows do not fit one ring
    assert into_lanes(sizes, streams, 3, 9).tolist() == [0, 1, 2, 0]


def test_random_states_of_shards_differ() -> None:
    states = [seed_words([[1, 2, 3, 4]], 3, shard).tolist() for shard in range(3)]
    assert len({tuple(state) for state in states}) == 3
