"""Saving and loading a store: what follows is what would have followed without it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import recollect as rc

SELECTORS: dict[str, Callable[[], rc.Selector]] = {
    "fifo": rc.Fifo,
    "lifo": rc.Lifo,
    "uniform": rc.Uniform,
    "stalest": rc.StalestFirst,
    "freshest": rc.FreshestFirst,
    "smallest": lambda: rc.Smallest("priority"),
    "largest": lambda: rc.Largest("score"),
    "prioritized": lambda: rc.Prioritized(beta=rc.Linear(0.4, 1.0, 30)),
    "table-normalized": lambda: rc.Prioritized(normalize="table", stratified=False),
    "aging": lambda: rc.Prioritized(half_life=2.0),
    "mixed": lambda: rc.Mixed([(rc.Lifo(), 0.3), (rc.Prioritized(), 0.3), (rc.Uniform(), 0.4)]),
    "weighted": lambda: rc.Weighted("score", alpha=0.5, half_life=3.0),
    "often-sampled": lambda: rc.Weighted("times_sampled", normalize="table"),
    "mixed-weights": lambda: rc.Mixed([(rc.Weighted("level"), 0.5), (rc.Weighted("score"), 0.5)]),
}


def make(sampler: rc.Selector, **options: Any) -> rc.Table:
    rules: dict[str, Any] = {"capacity": 60, "remover": rc.Fifo(), "seed": 3, **options}
    return rc.Table(
        "t",
        sampler=sampler,
        tags={"score": float, "kind": str, "level": int, "hard": bool},
        partition_by=("task",),
        **rules,
    )


def use(table: rc.Table, seed: int, calls: int) -> list[Any]:
    """Random calls of every kind; returns what they gave."""
    rng = np.random.default_rng(seed)
    seen: list[Any] = []
    for _ in range(calls):
        n = int(rng.integers(1, 6))
        rows = rng.integers(1, 4, n)
        total = int(rows.sum())
        columns = {
            "x": rng.random((total, 3)),
            "tokens": [rng.integers(0, 9, int(k)) for k in rng.integers(0, 5, total)],
            "ref": [None if rng.random() < 0.5 else float(rng.random()) for _ in range(total)],
        }
        keys = table.insert(
            columns,
            shared={"prompt": [f"p{k}" for k in range(n)]},
            rows_per_item=rows,
            priority=np.where(rng.random(n) < 0.2, 0.0, rng.random(n)),
            version=rng.integers(0, 9, n),
            task=[["math", "code"][k] for k in rng.integers(0, 2, n)],
            score=[None if rng.random() < 0.3 else float(rng.random()) for _ in range(n)],
            kind="a",
            level=[None if rng.random() < 0.3 else 7 for _ in range(n)],
        )
        seen.append(keys.tolist())
        for where in (None, rc.field("task") == "math", rc.field("score") > 0.5):
            if table.count(where) >= 2:
                batch = table.sample(2, where=where)
                seen.append([batch.info.keys.tolist(), batch["x"].tolist(), batch.info.weights])
                seen[-1][-1] = seen[-1][-1].tolist()
                table.update(batch.info.keys, priority=rng.random(2))
        if table.count() > 8:
            batch = table.take(3)
            seen.append([batch.info.keys.tolist(), batch.shared["prompt"].to_list()])
            table.delete(table.sample(1).info.keys)
    seen.append(sorted(table.counts("task", "version").items(), key=repr))
    return seen


@pytest.mark.parametrize("remover", ["fifo", "smallest", "uniform"])
@pytest.mark.parametrize("sampler", SELECTORS)
def test_calls_after_a_load_return_what_they_would_have_returned(
    sampler: str, remover: str, tmp_path: Path
) -> None:
    options = {"remover": SELECTORS[remover](), "max_times_sampled": 4}
    table = make(SELECTORS[sampler](), **options)
    use(table, 1, 25)
    rc.Store([table]).save(tmp_path / "snapshot")
    resumed = make(SELECTORS[sampler](), **options)
    rc.Store([resumed]).load(tmp_path / "snapshot")
    stats, again = table.stats(), resumed.stats()
    assert stats == again
    assert use(table, 2, 25) == use(resumed, 2, 25)


def test_everything_that_was_stored_is_there_again(tmp_path: Path) -> None:
    table = make(rc.Uniform())
    use(table, 5, 20)
    rc.Store([table]).save(tmp_path / "s")
    resumed = make(rc.Uniform())
    rc.Store([resumed]).load(tmp_path / "s")
    keys = sorted(table.counts("key"))
    assert keys == sorted(resumed.counts("key"))
    one, other = table.get(keys), resumed.get(keys)
    assert one.equals(other)
    for name in ("priority", "times_sampled", "version", "task", "score", "kind", "level"):
        np.testing.assert_array_equal(getattr(one.info, name), getattr(other.info, name))
    assert table.nbytes == resumed.nbytes


def test_leased_items_are_available_again_and_marked(tmp_path: Path) -> None:
    table = rc.Table("t", capacity=9, sampler=rc.Fifo())
    table.insert({"x": [1, 2, 3]})
    table.take(2, lease=600)
    rc.Store([table]).save(tmp_path / "s")
    resumed = rc.Table("t", capacity=9, sampler=rc.Fifo())
    rc.Store([resumed]).load(tmp_path / "s")
    batch = resumed.take(3)
    assert batch["x"].tolist() == [1, 2, 3]
    assert batch.info.deliveries.tolist() == [2, 2, 1]
    assert resumed.stats()["samples"] == 3


def test_limiter_counters_and_requests_travel(tmp_path: Path) -> None:
    limiter = rc.SampleToInsertRatio(1.0, min_size=2, error_buffer=4)
    table = rc.Table("t", capacity=9, limiter=limiter)
    keys = table.insert({"x": [1, 2, 3]}, request=("actor", 1))
    table.sample(4)
    rc.Store([table]).save(tmp_path / "s")
    resumed = rc.Table("t", capacity=9, limiter=limiter)
    rc.Store([resumed]).load(tmp_path / "s")
    assert resumed.insert({"x": [1, 2, 3]}, request=("actor", 1)).tolist() == keys.tolist()
    for each in (table, resumed):
        with pytest.raises(rc.WaitTimeout):
            each.sample(2, timeout=0)


def test_keys_go_on_after_a_load(tmp_path: Path) -> None:
    table = rc.Table("t", capacity=4)
    keys = table.insert({"x": [1, 2]})
    rc.Store([table]).save(tmp_path / "s")
    resumed = rc.Table("t", capacity=4)
    rc.Store([resumed]).load(tmp_path / "s")
    assert not set(resumed.insert({"x": [3, 4]}).tolist()) & set(keys.tolist())


def test_empty_tables_and_tables_without_columns_are_saved(tmp_path: Path) -> None:
    used = rc.Table("used", capacity=4)
    used.delete(used.insert({"x": [1, 2]}))
    store = rc.Store([used, rc.Table("new", capacity=4)])
    store.save(tmp_path / "s")
    resumed = rc.Store([rc.Table("used", capacity=4), rc.Table("new", capacity=4)])
    resumed.load(tmp_path / "s")
    assert [len(table) for table in resumed.values()] == [0, 0]
    assert resumed["used"].stats()["inserts"] == 2
    resumed["used"].insert({"x": [5]})
    resumed["new"].insert({"anything": ["goes"]})


def test_a_table_may_be_left_out_and_a_snapshot_is_replaced_whole(tmp_path: Path) -> None:
    scratch = rc.Table("scratch", capacity=4, checkpoint=False)
    table = rc.Table("t", capacity=4)
    table.insert({"x": [1]})
    store = rc.Store([table, scratch])
    store.save(tmp_path / "s")
    table.insert({"x": [2]})
    store.save(tmp_path / "s")
    manifest = json.loads((tmp_path / "s" / "manifest.json").read_text())
    assert manifest["left_out"] == ["scratch"]
    assert list(tmp_path.iterdir()) == [tmp_path / "s"]
    resumed = rc.Table("t", capacity=4)
    rc.Store([resumed]).load(tmp_path / "s")
    assert len(resumed) == 2


def test_any_arrow_reader_opens_the_rows(tmp_path: Path) -> None:
    import pyarrow as pa

    table = rc.Table("t", capacity=4)
    table.insert({"x": [1, 2], "text": ["a", "b"]})
    rc.Store([table]).save(tmp_path / "s")
    (file,) = (tmp_path / "s").glob("t.rows-*.arrow")
    rows = pa.ipc.open_file(file).read_all()
    assert rows.to_pydict() == {"x": [1, 2], "text": ["a", "b"]}


def _saved(tmp_path: Path) -> Path:
    table = rc.Table("t", capacity=4)
    table.insert({"x": [1, 2]})
    rc.Store([table]).save(tmp_path / "s")
    return tmp_path / "s"


@pytest.mark.parametrize("file", ["rows", "items", "arrays"])
@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_a_damaged_file_is_named_and_nothing_is_loaded(
    file: str, damage: str, tmp_path: Path
) -> None:
    (path,) = _saved(tmp_path).glob(f"t.{file}-*.arrow")
    data = bytearray(path.read_bytes())
    if damage == "flip":
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    elif damage == "cut":
        path.write_bytes(data[:-8])
    else:
        path.unlink()
    table = rc.Table("t", capacity=4)
    with pytest.raises(rc.SnapshotError, match=path.name):
        rc.Store([table]).load(tmp_path / "s")
    assert len(table) == 0
    assert table.columns == {}


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (rc.Table("other", capacity=4), "has a table 't'"),
        (rc.Table("t", capacity=4, tags={"score": float}), "same tags"),
        (rc.Table("t", capacity=4, partition_by="task"), "partition_by"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(table: rc.Table, words: str, tmp_path: Path) -> None:
    with pytest.raises(rc.SnapshotError, match=words):
        rc.Store([table]).load(_saved(tmp_path))


def test_loading_needs_an_empty_table_and_a_snapshot_of_a_known_format(tmp_path: Path) -> None:
    path = _saved(tmp_path)
    full = rc.Table("t", capacity=4)
    full.insert({"x": [1]})
    with pytest.raises(rc.SnapshotError, match="not empty"):
        rc.Store([full]).load(path)
    with pytest.raises(rc.SnapshotError, match="does not exist"):
        rc.Store([full]).load(tmp_path / "elsewhere")
    manifest = path / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"format": 2', '"format": 99'))
    with pytest.raises(rc.SnapshotError, match="update Recollect"):
        rc.Store([rc.Table("t", capacity=4)]).load(path)
    with pytest.raises(rc.SnapshotError, match="is no snapshot"):
        rc.Store([full]).save(Path(__file__))


DENSE = {
    "uniform": rc.Uniform,
    "uniform in partitions": rc.Uniform,
    "prioritized": rc.Prioritized,
    "prioritized in partitions": rc.Prioritized,
}


def dense(sampler: str) -> rc.Table:
    by = ("task",) if "partitions" in sampler else ()
    return rc.Table("t", capacity=20, sampler=DENSE[sampler](), seed=1, partition_by=by)


@pytest.mark.parametrize("sampler", DENSE)
def test_items_that_were_leased_are_drawn_and_taken_after_a_load(
    sampler: str, tmp_path: Path
) -> None:
    """They are in no index while they are leased, and in every one when they are loaded."""
    table, where = dense(sampler), rc.field("task") == "a"
    keys = table.insert(
        {"x": np.arange(12)}, task=["a", "b"] * 6, priority=np.arange(1, 13)
    ).tolist()
    in_a = keys[::2]
    leased = table.take(3, where=where, lease=600).info.keys.tolist()  # queries make indexes
    table.sample(20)
    rc.Store([table]).save(tmp_path / "s")
    resumed = dense(sampler)
    rc.Store([resumed]).load(tmp_path / "s")

    assert set(leased) <= set(resumed.sample(2000, where=where).info.keys.tolist()) == set(in_a)
    assert set(resumed.sample(2000).info.keys.tolist()) == set(keys)
    again = resumed.take(6, where=where, lease=600)
    assert sorted(again.info.keys.tolist()) == in_a
    with pytest.raises(rc.WaitTimeout):
        resumed.sample(1, where=where, timeout=0)
    resumed.give_back(again.info.lease)
    assert resumed.delete(leased) == 3
    assert sorted(resumed.take(9).info.keys.tolist()) == sorted(set(keys) - set(leased))
    assert len(resumed) == 0


@pytest.mark.parametrize("before", [1, 12, 19])
@pytest.mark.parametrize("sampler", DENSE)
def test_a_table_that_was_used_and_is_empty_is_loaded_like_a_new_one(
    sampler: str, before: int, tmp_path: Path
) -> None:
    """Calls have made other indexes and partitions, in another order."""
    table = dense(sampler)
    table.insert({"x": np.arange(12)}, task=["a", "b"] * 6, priority=np.arange(1, 13))
    table.sample(2, where=rc.field("task") == "a")
    table.sample(2)
    rc.Store([table]).save(tmp_path / "s")
    new, used = dense(sampler), dense(sampler)
    used.insert({"x": np.arange(before)}, task=(["b", "c", "a"] * 7)[:before])
    used.sample(2)
    used.sample(2, where=rc.field("task") == "b")
    used.take(before)
    for resumed in (new, used):
        rc.Store([resumed]).load(tmp_path / "s")
        assert len(resumed) == 12
    for task in ("b", "a", "c"):
        assert used.count({"task": task}) == new.count({"task": task}) == 6 * (task != "c")
    for where in (rc.field("task") == "b", None, rc.field("task") == "a"):
        drawn = [t.sample(50, where=where).info.keys.tolist() for t in (table, new, used)]
        assert drawn[0] == drawn[1] == drawn[2]
    taken = [t.take(12)["x"].tolist() for t in (table, new, used)]
    assert taken[0] == taken[1] == taken[2]
    assert sorted(taken[0]) == list(range(12))


def test_an_empty_folder_that_is_there_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    table = rc.Table("t", capacity=4)
    table.insert({"x": [1, 2]})
    rc.Store([table]).save(tmp_path / "mine")
    again = rc.Store([rc.Table("t", capacity=4)])
    again.load(tmp_path / "mine")
    assert len(again["t"]) == 2
    (tmp_path / "other").mkdir()
    (tmp_path / "other/notes.txt").write_text("mine")
    with pytest.raises(rc.SnapshotError, match="exists and is no snapshot"):
        rc.Store([table]).save(tmp_path / "other")
