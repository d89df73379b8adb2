"""Drives `rc.Table` and a plain list side by side, and compares everything after every step."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import recollect as rc
from recollect.rules.selectors import Ordered
from recollect.storage import rows
from recollect.storage.memory import items
from recollect.testing.cases import ORDERS, PRIORITIES, STATUSES, TAG_VALUES, TAGS, TASKS
from recollect.testing.lives import live


def drive(seed: int, steps: int) -> None:
    live(seed, steps, rc.MemoryStorage())


def shrink(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make segments and arrays tiny, and compaction eager."""
    monkeypatch.setattr(rows, "SMALLEST", 256)
    monkeypatch.setattr(rows, "LARGEST", 1024)
    monkeypatch.setattr(rows, "SLACK", 0)
    monkeypatch.setattr(items, "FEWEST_SLOTS", 2)


@pytest.mark.parametrize("block", range(20))
def test_a_table_does_what_a_plain_list_does(block: int) -> None:
    for seed in range(20 * block, 20 * block + 20):
        drive(seed, 60)


@pytest.mark.parametrize("block", range(10))
def test_growth_splits_and_compaction_change_nothing(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same with tiny segments and tiny arrays, so that every call meets their ends."""
    shrink(monkeypatch)
    for seed in range(1000 + 20 * block, 1000 + 20 * block + 20):
        drive(seed, 60)


@pytest.mark.soak
@pytest.mark.parametrize("tiny", [False, True], ids=["", "tiny"])
@pytest.mark.parametrize("block", range(10))
def test_a_long_life_is_no_different(
    block: int, tiny: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if tiny:
        shrink(monkeypatch)
    for seed in range(10_000 + 20 * block, 10_000 + 20 * block + 20):
        drive(seed, 400)


@pytest.mark.parametrize("sampler", [s for s in ORDERS if isinstance(s, Ordered)], ids=str)
def test_partitions_answer_as_a_scan_does(sampler: rc.Selector) -> None:
    """The same calls with and without partitions hand out the same items."""
    outcomes = []
    for partition_by in ((), ("task",), ("task", "status")):
        rng = random.Random(5)
        table = rc.Table(
            "t", capacity=30, sampler=sampler, tags=TAGS, partition_by=partition_by, seed=0
        )
        log: list[Any] = []
        for step in range(150):
            query = (rc.field("task") == rng.choice(TASKS)) & (
                rc.field("status") == rng.choice(STATUSES)
            )
            if rng.random() < 0.5:
                query = rc.field("task").isin(["math", "chat"])
            match rng.randrange(5):
                case 0 | 1:
                    table.insert(
                        {"x": np.array([step])},
                        task=rng.choice(TASKS),
                        status=rng.choice(STATUSES),
                        priority=rng.choice(PRIORITIES),
                        version=rng.choice([1, 2, None]),
                        score=rng.choice(TAG_VALUES["score"]),
                        level=rng.choice(TAG_VALUES["level"]),
                        hard=rng.choice(TAG_VALUES["hard"]),
                    )
                case 2:
                    n = min(2, table.count(query))
                    log.append(table.sample(n, where=query)["x"].tolist() if n else None)
                case 3:
                    n = min(1, table.count(query))
                    log.append(table.take(n, where=query)["x"].tolist() if n else None)
                case 4:
                    keys = sorted(table.counts("key"))[-5:]
                    if keys:
                        table.update(list(keys), task=rng.choice(TASKS), version=step % 4)
        outcomes.append(log)
    assert outcomes[0] == outcomes[1] == outcomes[2]
    assert len([entry for entry in outcomes[0] if entry]) > 30


# -- found once by the above, and short enough to say by itself ------------------------------------
MATH = rc.field("task") == "math"


def test_one_insert_over_many_segments_keeps_every_row() -> None:
    table = rc.Table("t", capacity=300_000, sampler=rc.Fifo())
    x = np.arange(300_000)
    keys = table.insert({"x": x})
    assert np.array_equal(table.get(keys)["x"], x)
    assert np.array_equal(table.take(1000)["x"], x[:1000])


def test_items_of_several_rows_fit_into_any_segment() -> None:
    table = rc.Table("t", capacity=100_000)
    for _ in range(3):
        table.insert({"x": np.zeros(20_000)})
    keys = table.insert({"x": np.arange(5.0)}, rows_per_item=[2, 3])
    assert table.get(keys)["x"].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("sampler", [rc.Uniform(), rc.Prioritized(), rc.Lifo()], ids=str)
def test_a_partition_has_room_for_whatever_comes_back_or_moves_in(sampler: rc.Selector) -> None:
    table = rc.Table("t", capacity=1000, sampler=sampler, partition_by=("task",))
    table.insert({"x": np.arange(16)}, task="math")
    table.sample(1, where=MATH)
    leased = table.take(8, where=MATH, lease=60)
    table.insert({"x": np.arange(8)}, task="math")
    table.give_back(leased.info.lease)
    for _ in range(60):
        table.update(table.insert({"x": [0]}, task="code"), task="math")
    for index in table.core.storage.index_set.indexes:
        assert index.count <= index.room
    assert table.take(84, where=MATH).num_items == 84


def test_the_first_zero_priority_may_open_a_partition() -> None:
    table = rc.Table("t", capacity=9, sampler=rc.Prioritized(), partition_by=("task",), seed=0)
    table.insert({"x": [0, 1]}, task="code")
    table.sample(1, where=MATH | (rc.field("task") == "code"))
    table.insert({"x": [2, 3, 4, 5]}, task="math", priority=0.0)
    batch = table.sample(40, where=MATH)
    assert set(batch["x"].tolist()) == {2, 3, 4, 5}
    assert (batch.info.probability == 0.25).all()


def test_amending_a_leased_item_leaves_nothing_to_evict() -> None:
    columns = {"x": rc.Column("int64"), "y": rc.Column("str", optional=True)}
    table = rc.Table("t", capacity=10, capacity_bytes=64, sampler=rc.Fifo(), signature=columns)
    keys = table.insert({"x": [1, 2, 3, 4]})
    table.take(3, lease=60)
    table.amend(keys[:1], {"y": ["a" * 30]})
    with pytest.raises(rc.WaitTimeout):
        table.insert({"x": [1, 2, 3, 4]}, timeout=0)
    assert (len(table), table.nbytes) == (4, 62)


def test_a_refused_first_insert_fixes_no_columns() -> None:
    table = rc.Table("t", capacity=10, capacity_bytes=4)
    with pytest.raises(rc.NeverPossible):
        table.insert({"x": [1]})
    assert table.columns == {}
    table.insert({"y": np.zeros(1, np.float32)})


def test_compaction_meets_segments_from_before_a_column_came() -> None:
    table = rc.Table("t", capacity=100_000)
    keys = np.concatenate([table.insert({"x": np.full((1000, 250), i)}) for i in range(40)])
    for place in range(6):
        table.add_column(f"more{place}", "float32")
    order = np.random.default_rng(0).permutation(len(keys))
    table.delete(keys[order[8000:]])
    assert np.array_equal(table.get(keys[order[:8000]])["x"][:, 7], order[:8000] // 1000)
    assert table.core.storage.stores.rows.tracking


def test_growth_finds_every_key_again() -> None:
    table = rc.Table("t", capacity=1000, sampler=rc.Fifo())
    for number in range(200):
        table.insert({"x": [number]})
    table.take(200)
    keys = np.concatenate([table.insert({"x": [number]}) for number in range(400)])
    assert table.get(keys)["x"].tolist() == list(range(400))


def test_taking_leaves_the_order_of_the_others_alone() -> None:
    for seed in range(20):
        priorities = np.random.default_rng(seed).random(20)
        table = rc.Table("t", capacity=20, sampler=rc.Largest("priority"))
        table.insert({"x": np.arange(20)}, priority=priorities)
        table.give_back(table.take(1, lease=1).info.lease)
        best = np.argsort(-priorities)
        table.sample(20)
        assert table.take(8)["x"].tolist() == best[:8].tolist()
        assert table.sample(12)["x"].tolist() == best[8:].tolist()


def test_a_partial_take_is_content_with_what_a_smaller_queue_allows() -> None:
    table = rc.Table("t", capacity=9, sampler=rc.Fifo())
    table.insert({"x": [1, 2, 3, 4, 5]})
    table.limiter = rc.Queue(3)
    assert 1 <= table.take(9, partial=True, timeout=0).num_items <= 5
