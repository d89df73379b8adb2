"""What is particular to `rc.FrameStorage`: the frame to look into, its growth and its shrinking."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

import recollect as rc
from recollect.storage import rows
from recollect.storage.base import Layout
from recollect.storage.frame import items as frame_items
from recollect.testing.lives import live

TAGS = {"score": float, "level": int, "hard": bool, "kind": str}


def made(**options: object) -> tuple[rc.Table, rc.FrameStorage]:
    storage = rc.FrameStorage()
    return rc.Table("t", **{"capacity": 1000, "storage": storage, **options}), storage


# -- the frame ------------------------------------------------------------------------------------
def test_the_frame_shows_every_field_of_every_item_by_key() -> None:
    clock = rc.ManualClock(5.0)
    table, storage = made(tags=TAGS, sampler=rc.Fifo(), clock=clock)
    keys = table.insert(
        {"x": np.arange(5.0)},
        rows_per_item=[1, 1, 3],
        task=["math", None, "code"],
        version=[3, None, 4],
        score=[0.5, None, 1.0],
        level=[None, 7, 8],
        hard=[True, None, False],
        kind=["a", "", None],
        priority=[1.0, 2.0, 3.0],
    )
    table.take(1, lease=60)
    table.give_back(table.take(1, lease=60).info.lease)
    frame = storage.frame
    assert frame.index.name == "key"
    assert frame.index.tolist() == keys.tolist()
    assert frame["task"].tolist() == ["math", None, "code"]
    assert frame["status"].tolist() == [None] * 3
    assert frame["version"].dtype == "Int64"
    assert frame["version"].isna().tolist() == [False, True, False]
    assert frame["level"].sum() == 15
    assert frame["hard"].dtype == "boolean"
    assert frame["kind"].tolist() == ["a", "", None]
    assert frame["score"].mean() == 0.75
    assert frame["rows"].tolist() == [1, 1, 3]
    assert frame["nbytes"].tolist() == [8, 8, 24]
    assert frame["inserted_at"].tolist() == [5.0] * 3
    assert frame["hidden"].tolist() == [True, False, False]
    assert frame["times_sampled"].tolist() == [1, 0, 0]
    assert frame["deliveries"].tolist() == [1, 2, 1]
    assert frame["seq"].is_monotonic_increasing
    assert set(frame.columns) == {*table.fields, "deliveries", "hidden"} - {"key"}


def test_the_frame_is_a_copy() -> None:
    table, storage = made(tags=TAGS)
    keys = table.insert({"x": [1, 2]}, score=[0.1, 0.2], task="math")
    frame = storage.frame
    frame["score"] = 9.0
    frame.loc[:, "task"] = "code"
    table.update(keys, score=0.5)
    assert table.get(keys).info.score.tolist() == [0.5, 0.5]
    assert table.counts("task") == {"math": 2}
    assert frame["score"].tolist() == [9.0, 9.0]


def test_an_empty_table_has_an_empty_frame_and_no_table_none() -> None:
    assert made()[1].frame.empty
    with pytest.raises(rc.InvalidValue, match="belongs to no table yet"):
        _ = rc.FrameStorage().frame


def test_a_storage_serves_one_table() -> None:
    _, storage = made()
    with pytest.raises(rc.InvalidValue, match="make one per table"):
        rc.Table("other", capacity=3, storage=storage)


def test_a_journal_is_refused() -> None:
    with pytest.raises(rc.InvalidValue, match=r"journal: .* use rc.MemoryStorage"):
        rc.FrameStorage().open(Layout("t", 10, {}, journaled=True))


def test_configuration_names_it() -> None:
    table = rc.Table.from_config({"name": "t", "capacity": 3, "storage": "frame"})
    assert isinstance(table.core.storage, rc.FrameStorage)


def test_without_pandas_it_says_what_to_install() -> None:
    script = (
        "import sys; sys.modules['pandas'] = None\n"
        "import recollect as rc\n"
        "try:\n    rc.FrameStorage()\n"
        "except ImportError as error:\n    print(error)"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "pip install 'recollect[pandas]'" in run.stdout


# -- growing and shrinking ------------------------------------------------------------------------
@pytest.mark.parametrize("block", range(3))
def test_growth_and_compaction_change_nothing(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random lives with a tiny frame and tiny segments, so that every call meets their ends."""
    monkeypatch.setattr(frame_items, "FEWEST", 2)
    monkeypatch.setattr(rows, "SMALLEST", 256)
    monkeypatch.setattr(rows, "LARGEST", 1024)
    monkeypatch.setattr(rows, "SLACK", 0)
    for seed in range(3000 + 6 * block, 3006 + 6 * block):
        live(seed, 50, rc.FrameStorage())


@pytest.mark.soak
def test_a_long_life_is_no_different() -> None:
    for seed in range(20_000, 20_100):
        live(seed, 400, rc.FrameStorage())


def test_appending_is_amortised(monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame doubles: ten times as many inserts copy it three or four times more often."""
    copies = 0
    concat = pd.concat

    def counted(*args: object, **options: object) -> pd.DataFrame:
        nonlocal copies
        copies += 1
        return concat(*args, **options)

    monkeypatch.setattr(pd, "concat", counted)
    table, storage = made(capacity=100_000)
    for _ in range(50):
        table.insert({"x": np.zeros(32)})
    few = copies
    for _ in range(450):
        table.insert({"x": np.zeros(32)})
    assert copies - few <= 4
    assert len(storage.frame) == 16_000


def test_a_full_table_drops_the_rows_of_those_that_left_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drops = 0
    drop = frame_items.ItemFrame._drop_gone

    def counted(self: frame_items.ItemFrame) -> None:
        nonlocal drops
        drops += 1
        drop(self)

    monkeypatch.setattr(frame_items.ItemFrame, "_drop_gone", counted)
    monkeypatch.setattr(frame_items, "FEWEST", 16)
    table, storage = made(capacity=40)
    for number in range(400):
        table.insert({"x": [number]})
    assert len(storage._items.frame) <= 160
    assert drops <= 400 / 40
    assert sorted(table.sample(40, replace=False)["x"].tolist()) == list(range(360, 400))


def test_an_emptied_table_gives_its_memory_back() -> None:
    table, storage = made(capacity=20_000, tags=TAGS, partition_by=("task",))
    names = [f"task {number}" for number in range(20_000)]
    table.insert({"x": np.zeros((20_000, 64))}, task=names, kind=names)
    table.delete(where=rc.field("seq") >= 100)
    assert len(table) == 100
    assert len(storage._items.frame) < 2000
    assert len(storage._items.texts["task"].names) == 100
    assert len(storage._partitions._members) == 100
    assert storage._rows.allocated < 2 * table.nbytes + rows.SLACK
    assert table.count(rc.field("task") == "task 99") == 1
    assert table.count(rc.field("task") == "task 100") == 0


def test_a_partition_forgets_those_that_left() -> None:
    table, storage = made(capacity=10, partition_by=("task",))
    for number in range(400):
        table.insert({"x": [number]}, task="math" if number % 2 else "code")
        table.count((rc.field("task") == "math") & (rc.field("seq") >= 0))
    math, code = (storage._partitions._number((task,)) for task in ("math", "code"))
    assert storage._partitions._members[math].count < 40
    assert storage._partitions._members[code].count > 40, "nobody has asked for it"
    assert table.counts("task") == {"math": 5, "code": 5}


def test_an_item_may_leave_a_partition_and_come_back() -> None:
    table, _ = made(partition_by=("task",), sampler=rc.Fifo())
    keys = table.insert({"x": [0, 1, 2]}, task="a")
    for _ in range(50):
        table.update(keys[:1], task="b")
        table.update(keys[:1], task="a")
    assert table.count(rc.field("task") == "a") == 3
    assert table.take(3, where=rc.field("task") == "a")["x"].tolist() == [0, 1, 2]
    assert table.count(rc.field("task") == "b") == 0


# -- weights that a float hardly holds ------------------------------------------------------------
def test_ages_of_thousands_of_half_lives_keep_their_order() -> None:
    table, _ = made(sampler=rc.Prioritized(alpha=1.0, half_life=1.0), seed=0)
    table.insert({"x": [0, 1, 2]}, version=[0, 5000, 9000])
    batch = table.sample(3, replace=False)
    assert batch["x"].tolist() == [2, 1, 0]
    assert np.isfinite(batch.info.weights).all()


def test_priorities_from_the_least_to_the_largest_are_weighed() -> None:
    table, _ = made(sampler=rc.Prioritized(alpha=1.0), seed=0)
    table.insert({"x": [0, 1, 2]}, priority=[1e-300, 1e150, 0.0])
    assert set(table.sample(200)["x"].tolist()) == {1}
    assert table.sample(3, replace=False)["x"].tolist() == [1, 0, 2]
