"""A disk that fails, at every call that a save makes: the snapshot before it always loads."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faulty_files import Faulty

import recollect as rc
from recollect.durability.snapshot import ledger
from recollect.durability.snapshot.manifest import find_snapshots
from recollect.durability.snapshot.saver import save_snapshot
from recollect.table.member import member_of


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several segments, in tables that take no time."""
    monkeypatch.setattr(ledger, "SMALLEST", 700)
    monkeypatch.setattr("recollect.durability.snapshot.plain_arrays.BLOCK", 8)
    monkeypatch.setattr("recollect.durability.snapshot.table_writer.BLOCK", 8)


def made() -> rc.Table:
    return rc.Table("t", capacity=30, sampler=rc.Uniform(), seed=1, tags={"score": float})


def contents(table: rc.Table) -> Any:
    keys = np.sort(np.array(list(table.counts("key")), np.uint64))
    batch = table.get(keys)
    names = ("priority", "times_sampled", "score")
    infos = [getattr(batch.info, name).tolist() for name in names]
    return keys.tolist(), batch["x"].tolist(), batch["text"].to_list(), infos, table.stats()


def fill(table: rc.Table, n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    keys = table.insert(
        {"x": rng.random((n, 4)), "text": ["word" * int(k) for k in rng.integers(0, 9, n)]},
        score=rng.random(n),
    )
    table.update(keys[:2], priority=[3.0, 0.0])
    table.sample(3)
    table.delete(keys[-1:])


def loaded(path: Path) -> Any:
    table = made()
    rc.Store([table]).load(path)
    return contents(table)


def saves(target: str, mode: str, links: bool, exchanges: bool, folder: Path) -> int:
    """Fail at every call of a second save in turn; returns how many calls there were."""
    number = 0
    while True:
        number += 1
        here = folder / f"{number}"
        here.mkdir()
        table = made()
        fill(table, 20, 1)
        save_snapshot(here / "a", {"t": member_of(table.core)}, step=1, files=Faulty())
        before = contents(table)
        fill(table, 12, 2)
        now = contents(table)
        files = Faulty(number, mode, links=links, exchanges=exchanges)
        failed = False
        try:
            save_snapshot(
                here / target, {"t": member_of(table.core)}, step=2, files=files, others={"m": b"1"}
            )
        except rc.SnapshotError:
            failed = True
        assert contents(table) == now, "a save does not change the table"
        if failed:
            # an error after the rename may leave either snapshot, and both are whole
            assert loaded(here) == before or loaded(here) == now, files.log[-1]
            assert loaded(here / "a") in (before, now)
        else:
            assert loaded(here / target) == now
        table.insert({"x": np.zeros((1, 4)), "text": ["goes on"]}, score=0.5)
        after = contents(table)
        save_snapshot(here / target, {"t": member_of(table.core)}, step=3, files=Faulty())
        assert loaded(here / target) == after
        names = {path.name for path in here.iterdir()}
        assert names == {"a", target}, "nothing partial remains"
        if not failed and len(files.log) < number:
            return number - 1


@pytest.mark.parametrize(
    ("target", "mode", "links", "exchanges"),
    [
        ("a", "fail", True, True),
        ("b", "fail", True, True),
        ("a", "truncate", True, False),
        ("b", "full", False, True),
        ("a", "full", True, True),
    ],
)
def test_whatever_call_fails_a_whole_snapshot_is_there(
    target: str, mode: str, links: bool, exchanges: bool, tmp_path: Path
) -> None:
    assert saves(target, mode, links, exchanges, tmp_path) > 15


@pytest.mark.parametrize("target", ["a", "b"])
def test_a_failed_save_leaves_nothing_behind(target: str, tmp_path: Path) -> None:
    """Where the disk still lets us remove files, they are gone before the error is raised."""
    table = made()
    fill(table, 20, 1)
    save_snapshot(tmp_path / "a", {"t": member_of(table.core)}, files=Faulty())
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    fill(table, 9, 2)
    number = 0
    while True:
        number += 1
        files = Faulty(number, "full")
        try:
            save_snapshot(tmp_path / target, {"t": member_of(table.core)}, files=files)
        except rc.SnapshotError:
            assert [path.name for path in tmp_path.iterdir()] == ["a"], files.log[number - 1]
            assert sorted(path.name for path in (tmp_path / "a").iterdir()) == names
        else:
            break
    assert number > 15


def test_a_save_after_one_that_failed_writes_only_what_changed(tmp_path: Path) -> None:
    table = made()
    fill(table, 20, 1)
    first = save_snapshot(tmp_path / "a", {"t": member_of(table.core)}, files=Faulty())
    table.update(sorted(table.counts("key"))[:1], priority=5.0)
    for number in (3, 6, 9):
        with pytest.raises(rc.SnapshotError):
            save_snapshot(
                tmp_path / "b", {"t": member_of(table.core)}, files=Faulty(number, "full")
            )
    saved = save_snapshot(tmp_path / "b", {"t": member_of(table.core)}, files=Faulty())
    rows = {path.name for path in (tmp_path / "b").glob("t.rows-*")}
    assert rows == {path.name for path in (tmp_path / "a").glob("t.rows-*")}
    assert saved.bytes_written < first.bytes_written
    assert loaded(tmp_path / "b") == contents(table)


def test_a_full_disk_is_said_and_the_table_goes_on(tmp_path: Path) -> None:
    table = made()
    fill(table, 20, 1)
    with pytest.raises(rc.SnapshotError, match="No space left") as caught:
        save_snapshot(tmp_path / "a", {"t": member_of(table.core)}, files=Faulty(5, "full"))
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.ENOSPC
    assert list(tmp_path.iterdir()) == []
    fill(table, 5, 2)
    rc.Store([table]).save(tmp_path / "a")
    assert loaded(tmp_path / "a") == contents(table)


def test_what_a_crash_left_is_never_latest_and_is_cleaned_up(tmp_path: Path) -> None:
    table = made()
    fill(table, 20, 1)
    store = rc.Store([table])
    store.save(tmp_path / "a", step=1)
    half = tmp_path / ".b.tmp-00000000"
    half.mkdir()
    (half / "t.rows-0-0.arrow").write_bytes(b"half")
    (tmp_path / "c").mkdir()  # a folder of somebody without a manifest
    assert [found.path.name for found in find_snapshots(tmp_path)] == ["a"]
    store.save(tmp_path / "b", step=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c"]
    assert find_snapshots(tmp_path)[-1].path.name == "b"


def test_a_crash_between_two_renames_loses_nothing(tmp_path: Path) -> None:
    table = made()
    fill(table, 20, 1)
    store = rc.Store([table])
    store.save(tmp_path / "a")
    before = contents(table)
    (tmp_path / "a").rename(tmp_path / ".a.old-00000000")
    assert loaded(tmp_path / "a") == before
    fill(table, 5, 2)
    store.save(tmp_path / "a")
    assert loaded(tmp_path / "a") == contents(table)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_snapshot_that_was_removed_is_written_whole_again(tmp_path: Path) -> None:
    import shutil

    table = made()
    fill(table, 20, 1)
    store = rc.Store([table])
    store.save(tmp_path / "a")
    shutil.rmtree(tmp_path / "a")
    saved = store.save(tmp_path / "b")
    assert saved.bytes_written == saved.bytes
    assert loaded(tmp_path / "b") == contents(table)
