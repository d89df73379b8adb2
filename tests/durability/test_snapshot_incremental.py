"""A snapshot writes what changed: by bytes, by files, and loads the same whatever it shares."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_snapshot import make, use

import recollect as rc
from recollect.durability.snapshot import ledger
from recollect.durability.snapshot.manifest import find_snapshots
from recollect.durability.snapshot.reader import open_snapshot

WIDTH = 40  # float32 of a row: 160 bytes


def rows(n: int, seed: int = 0) -> dict[str, Any]:
    return {"x": np.random.default_rng(seed).random((n, WIDTH), np.float32)}


def grown(n: int, **options: Any) -> rc.Table:
    table = rc.Table("t", capacity=n, **options)
    for begin in range(0, n, 10_000):
        table.insert(rows(min(10_000, n - begin), begin))
    return table


def all_of(table: rc.Table) -> Any:
    keys = np.sort(np.array(list(table.counts("key")), np.uint64))
    batch = table.get(keys)
    infos = [batch.info.priority.tolist(), batch.info.times_sampled.tolist()]
    return keys.tolist(), {n: np.asarray(c).tolist() for n, c in batch.columns.items()}, infos


def loaded(path: Path, **options: Any) -> rc.Table:
    table = rc.Table("t", **{"capacity": 200_000, **options})
    rc.Store([table]).load(path)
    return table


REMOVERS: dict[str, Callable[[], rc.Selector]] = {
    "fifo": rc.Fifo,
    "lifo": rc.Lifo,
    "uniform": rc.Uniform,
    "smallest": lambda: rc.Smallest("priority"),
}


@pytest.mark.parametrize(
    ("remover", "sampler"),
    [(name, rc.Uniform) for name in REMOVERS] + [("fifo", rc.Prioritized)],
)
def test_one_percent_of_new_rows_writes_at_most_three(
    sampler: Callable[[], rc.Selector], remover: str, tmp_path: Path
) -> None:
    table = grown(100_000, sampler=sampler(), remover=REMOVERS[remover](), seed=1)
    store = rc.Store([table])
    table.sample(256)  # makes the index
    first = store.save(tmp_path / "0")
    assert first.bytes_written == first.bytes > 100_000 * WIDTH * 4
    for number in range(1, 12):
        table.insert(rows(1_000, number))
        table.sample(256)
        saved = store.save(tmp_path / f"{number}")
        assert saved.bytes_written <= 0.03 * first.bytes_written, number
        assert saved.bytes <= 1.3 * first.bytes
    other = loaded(tmp_path / "11", sampler=sampler(), remover=REMOVERS[remover]())
    keys = np.sort(np.array(list(table.counts("key")), np.uint64))
    assert other.get(keys).equals(table.get(keys))
    assert (table.sample(500).info.keys == other.sample(500).info.keys).all()


def test_nothing_new_writes_next_to_nothing(tmp_path: Path) -> None:
    table = grown(50_000)
    store = rc.Store([table])
    first = store.save(tmp_path / "a")
    again = store.save(tmp_path / "b")
    assert again.bytes_written < 0.01 * first.bytes_written
    assert all_of(loaded(tmp_path / "b")) == all_of(table)


def test_updates_write_the_field_and_not_the_rows(tmp_path: Path) -> None:
    table = grown(50_000, sampler=rc.Prioritized())
    store = rc.Store([table])
    first = store.save(tmp_path / "a")
    keys = np.array(list(table.counts("key")), np.uint64)
    table.update(keys, priority=np.random.default_rng(0).random(keys.size))
    second = store.save(tmp_path / "b")
    assert 50_000 * 4 < second.bytes_written < 0.1 * first.bytes_written
    assert all_of(loaded(tmp_path / "b", sampler=rc.Prioritized())) == all_of(table)


def test_single_values_are_patched_and_patches_do_not_pile_up(tmp_path: Path) -> None:
    table = grown(50_000, sampler=rc.Prioritized())
    store = rc.Store([table])
    first = store.save(tmp_path / "0")
    keys = np.sort(np.array(list(table.counts("key")), np.uint64))
    rng = np.random.default_rng(0)
    for number in range(1, 9):
        table.update(rng.choice(keys, 40, replace=False), priority=rng.random(40) + 0.1)
        if number == 4:  # goes on from what was loaded
            table = loaded(tmp_path / "3", sampler=rc.Prioritized(), capacity=50_000)
            store = rc.Store([table])
        saved = store.save(tmp_path / f"{number}")
        assert saved.bytes_written < 0.004 * first.bytes_written
        entry = json.loads((tmp_path / f"{number}" / "manifest.json").read_text())["tables"]["t"]
        assert all(segment["changed"] == {} for segment in entry["segments"])
        changed = number if number < 4 else number - 1
        assert entry["patches"]["priority"]["places"][3] <= 40 * changed
        other = loaded(tmp_path / f"{number}", sampler=rc.Prioritized())
        assert (other.get(keys).info.priority == table.get(keys).info.priority).all()
    table.update(keys, priority=2.0)
    store.save(tmp_path / "all")
    entry = json.loads((tmp_path / "all" / "manifest.json").read_text())["tables"]["t"]
    assert "priority" not in entry["patches"]
    assert (loaded(tmp_path / "all").get(keys).info.priority == 2.0).all()


def test_segments_are_links_and_folders_do_not_need_each_other(tmp_path: Path) -> None:
    import shutil

    table = grown(30_000)
    store = rc.Store([table])
    store.save(tmp_path / "a")
    table.insert(rows(100))
    store.save(tmp_path / "b")
    shared = {path.name for path in (tmp_path / "a").iterdir()}
    shared &= {path.name for path in (tmp_path / "b").iterdir()} - {"manifest.json"}
    assert len(shared) > 10
    for name in shared:
        assert (tmp_path / "a" / name).samefile(tmp_path / "b" / name)
    shutil.rmtree(tmp_path / "a")
    assert all_of(loaded(tmp_path / "b")) == all_of(table)


def test_segments_that_are_mostly_dead_are_written_again_and_others_removed(tmp_path: Path) -> None:
    table = grown(50_000)
    store = rc.Store([table])
    first = store.save(tmp_path / "s")
    keys = np.sort(np.array(list(table.counts("key")), np.uint64))
    table.delete(keys[(np.arange(keys.size) % 10) < 6])  # of every segment six in ten
    second = store.save(tmp_path / "s")
    assert second.bytes < 0.45 * first.bytes
    table.delete(keys[(np.arange(keys.size) % 10) == 7])  # a quarter of the rest
    third = store.save(tmp_path / "s")
    assert third.bytes_written < 0.05 * second.bytes
    on_disk = sum(path.stat().st_size for path in (tmp_path / "s").iterdir())
    assert on_disk == third.bytes
    assert all_of(loaded(tmp_path / "s")) == all_of(table)
    manifest = json.loads((tmp_path / "s" / "manifest.json").read_text())
    named = {*manifest["files"], "manifest.json"}
    assert {path.name for path in (tmp_path / "s").iterdir()} == named


def test_many_small_saves_keep_few_files_and_waste_little(tmp_path: Path) -> None:
    table = rc.Table("t", capacity=20_000, sampler=rc.Uniform(), seed=0)
    store = rc.Store([table])
    written = 0
    for number in range(60):
        table.insert(rows(300, number))
        keys = table.sample(20).info.keys
        table.update(keys, priority=np.random.default_rng(number).random(20))
        saved = store.save(tmp_path / "s")
        written += saved.bytes_written
    assert len(list((tmp_path / "s").iterdir())) < 50
    assert saved.bytes < 1.5 * table.nbytes
    assert written < 8 * saved.bytes  # of 60 saves that would have written 30 times as much
    assert all_of(loaded(tmp_path / "s")) == all_of(table)


@pytest.mark.parametrize("seed", range(3))
def test_chains_of_saves_and_loads_are_exact(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every kind of call between saves, in segments and blocks of a few items."""
    monkeypatch.setattr(ledger, "SMALLEST", 400)
    for module in ("plain_arrays", "table_writer"):
        monkeypatch.setattr(f"recollect.durability.snapshot.{module}.BLOCK", 8)
    monkeypatch.setattr("recollect.durability.snapshot.table_writer.BATCH", 1000)
    # values are patched always, seldom, or where it is worth it
    monkeypatch.setattr("recollect.durability.snapshot.table_writer.SPARSE", [0, 8, 2][seed])
    sampler = [rc.Prioritized, rc.Uniform, rc.Lifo][seed]()
    remover = [rc.Uniform, rc.Smallest, rc.Fifo][seed](*["priority"] * (seed == 1))
    signature = {
        "x": rc.Column("float64", (3,)),
        "tokens": rc.Column("int64", ragged=True),
        "ref": rc.Column("float64", optional=True),
        "prompt": rc.Column("str", shared=True),
    }
    options: dict[str, Any] = {"remover": remover, "max_times_sampled": 6, "signature": signature}
    table = make(sampler, **options)
    rng = np.random.default_rng(seed)
    for number in range(12):
        use(table, 100 * seed + number, int(rng.integers(1, 5)))
        if number == 5:
            table.add_column("late", "float32", (2,))
        if number > 5:
            keys = np.array(list(table.counts("key")), np.uint64)[:3]
            lacks = [k for k in keys if not table.get([k]).present["late"].any()]
            for key in lacks:
                count = table.get([key]).rows
                table.amend([key], {"late": np.full((count, 2), number, np.float32)})
        leased = table.take(1, lease=600) if number % 4 == 3 else None
        rc.Store([table]).save(tmp_path / f"{number}", step=number)
        if leased is not None:
            table.give_back(leased.info.lease)
        other = make(sampler, **options)
        rc.Store([other]).load(tmp_path, step=number)
        keys = sorted(table.counts("key"))
        assert sorted(other.counts("key")) == keys
        assert table.get(keys).equals(other.get(keys))
        open_snapshot(tmp_path / f"{number}").verify()
        if leased is None:
            assert table.stats() == other.stats()
        if number % 3 == 2:
            table = other  # and goes on from what was loaded
    one, two = (make(sampler, **options) for _ in range(2))
    for resumed in (one, two):
        rc.Store([resumed]).load(tmp_path / "11")
    assert use(one, 7, 10) == use(two, 7, 10)


def test_keep_last_removes_older_snapshots_and_no_others(tmp_path: Path) -> None:
    table = rc.Table("t", capacity=9)
    store, other = rc.Store([table]), rc.Store([rc.Table("other", capacity=9)])
    other.save(tmp_path / "other")
    for step in range(5):
        table.insert({"x": [step]})
        store.save(tmp_path / f"step-{step}", step=step, keep_last=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "step-3", "step-4"]
    with pytest.raises(rc.InvalidValue, match="keep_last"):
        store.save(tmp_path / "x", keep_last=0)


def test_latest_goes_by_manifests_and_a_step_can_be_asked_for(tmp_path: Path) -> None:
    table = rc.Table("t", capacity=9)
    store = rc.Store([table])
    for name, step in (("z", 1), ("y", 3), ("x", 2)):
        table.insert({"x": [step]})
        store.save(tmp_path / name, step=step)
    assert [found.path.name for found in find_snapshots(tmp_path)] == ["z", "x", "y"]
    sizes = {}
    for step in (None, 1, 2, 3):
        resumed = rc.Table("t", capacity=9)
        done = rc.Store([resumed]).load(tmp_path, step=step)
        sizes[done.step] = len(resumed)
    assert sizes == {1: 1, 2: 3, 3: 2}
    with pytest.raises(rc.SnapshotError, match="no snapshot of step 7; there are 1, 2, 3"):
        rc.Store([rc.Table("t", capacity=9)]).load(tmp_path, step=7)


def test_files_of_others_commit_with_the_snapshot(tmp_path: Path) -> None:
    table = rc.Table("t", capacity=9)
    table.insert({"x": [1]})
    (tmp_path / "optimizer.bin").write_bytes(b"adam")

    def folder(path: str) -> None:
        Path(path).mkdir()
        Path(path, "weights").write_bytes(b"0123")

    files = {
        "model.pt": lambda path: Path(path).write_bytes(b"model"),
        "optimizer.bin": tmp_path / "optimizer.bin",
        "notes.txt": b"hello",
        "policy": folder,
    }
    store = rc.Store([table])
    store.save(tmp_path / "s", files=files)
    resumed = rc.Table("t", capacity=9)
    done = rc.Store([resumed]).load(tmp_path / "s")
    contents = {name: path.read_bytes() for name, path in done.others.items()}
    assert contents == {
        "model.pt": b"model", "optimizer.bin": b"adam", "notes.txt": b"hello",
        "policy/weights": b"0123",
    }  # fmt: skip

    def fails(path: str) -> None:
        Path(path).write_bytes(b"half")
        raise RuntimeError("no model today")

    with pytest.raises(RuntimeError, match="no model today"):
        store.save(tmp_path / "s", files={"model.pt": fails})
    assert (tmp_path / "s" / "model.pt").read_bytes() == b"model"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["optimizer.bin", "s"]
    with pytest.raises(rc.InvalidValue, match="plain name"):
        store.save(tmp_path / "s", files={"../model.pt": b""})
    (tmp_path / "s" / "model.pt").unlink()
    with pytest.raises(rc.SnapshotError, match=r"model\.pt is missing"):
        rc.Store([rc.Table("t", capacity=9)]).load(tmp_path / "s")


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_rows_can_be_compressed(compression: str, tmp_path: Path) -> None:
    table = rc.Table("t", capacity=9_000)
    table.insert({"x": np.zeros((9_000, WIDTH))})
    store = rc.Store([table])
    saved = store.save(tmp_path / "s", compression=compression)
    assert saved.bytes < 0.1 * table.nbytes
    assert all_of(loaded(tmp_path / "s")) == all_of(table)
    with pytest.raises(rc.InvalidValue, match="compression"):
        store.save(tmp_path / "s", compression="gzip")


@pytest.mark.parametrize(("remover", "left"), [("fifo", [6, 7, 8, 9]), ("smallest", [0, 1, 2, 3])])
def test_a_smaller_table_evicts_by_its_remover_and_says_how_many(
    remover: str, left: list[int], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = rc.Table("t", capacity=10)
    table.insert({"x": np.arange(10)}, priority=np.arange(10, 0, -1))
    rc.Store([table]).save(tmp_path / "s")
    smaller = rc.Table("t", capacity=4, remover=REMOVERS[remover]())
    done = rc.Store([smaller]).load(tmp_path / "s")
    assert done.evicted == {"t": 6}
    assert "6 of its 10 items were evicted" in caplog.text
    assert sorted(all_of(smaller)[1]["x"]) == left
    assert smaller.stats()["removals"] == 6
    for number in range(9):
        smaller.insert({"x": [number]})
        assert len(smaller) == 4
    rc.Store([smaller]).save(tmp_path / "s")
    assert all_of(loaded(tmp_path / "s", capacity=4)) == all_of(smaller)


def test_bytes_of_payload_and_more_room_count_too(tmp_path: Path) -> None:
    table = rc.Table("t", capacity=300)
    table.insert({"text": ["x" * 100] * 300})
    rc.Store([table]).save(tmp_path / "s")
    smaller = rc.Table("t", capacity=300, capacity_bytes=5_000)
    assert rc.Store([smaller]).load(tmp_path / "s").evicted == {"t": 250}
    assert smaller.nbytes == 5_000
    larger = rc.Table("t", capacity=5_000)
    assert rc.Store([larger]).load(tmp_path / "s").evicted == {}
    larger.insert({"text": ["y"] * 4_700})
    assert len(larger) == 5_000


def test_a_table_smaller_than_one_batch_is_saved_after_every_call(tmp_path: Path) -> None:
    table = rc.Table("t", capacity=3, sampler=rc.Fifo())
    store = rc.Store([table])
    for number in range(8):
        table.insert({"x": [number, number + 100, number + 200]})
        store.save(tmp_path / "s")
        store.save(tmp_path / "s")  # twice in a row
        resumed = loaded(tmp_path / "s", capacity=3, sampler=rc.Fifo())
        assert resumed.sample(3)["x"].tolist() == [number, number + 100, number + 200]


def test_several_tables_are_of_one_moment_while_threads_go_on(tmp_path: Path) -> None:
    """A thread inserts n into one table and then into the other: never apart by more than one."""
    one, two = rc.Table("one", capacity=1 << 20), rc.Table("two", capacity=1 << 20)
    store = rc.Store([one, two])
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            one.insert({"x": [number]})
            two.insert({"x": [number]})
            number += 1

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for number in range(10):
            store.save(tmp_path / f"{number}", step=number)
    finally:
        stop.set()
        thread.join()
    for number in range(10):
        again = rc.Store([rc.Table("one", capacity=1 << 20), rc.Table("two", capacity=1 << 20)])
        again.load(tmp_path, step=number)
        assert len(again["one"]) - len(again["two"]) in (0, 1)
        for table in again.values():
            values = [all_of(table)[1]["x"]] if len(table) else []
            assert all(list(range(len(v))) == v for v in values)


def test_a_signature_is_compared_with_what_was_saved(tmp_path: Path) -> None:
    table = rc.Table("t", capacity=9)
    table.insert({"x": [1.0, 2.0]})
    rc.Store([table]).save(tmp_path / "s")
    signature: dict[str, Any] = {"x": rc.Column("float32")}
    with pytest.raises(rc.SnapshotError, match="'x' was saved as float64"):
        loaded(tmp_path / "s", signature=signature)
    signature = {"x": rc.Column("float64"), "y": rc.Column("float64")}
    with pytest.raises(rc.SnapshotError, match=r"'y'.*optional"):
        loaded(tmp_path / "s", signature=signature)
    signature["y"] = rc.Column("float64", optional=True)
    more = loaded(tmp_path / "s", signature=signature)
    more.insert({"x": [3.0], "y": [4.0]})
    assert more.get(sorted(more.counts("key"))).present["y"].tolist() == [False, False, True]
