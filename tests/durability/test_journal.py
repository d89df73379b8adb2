"""A journal: what survives, what is refused, how it is cut, compacted and rewound."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from callers import until
from journal_state import flushed_copy, journal_of, table_state

import recollect as rc
from recollect.durability.format import frame, frames, read_record
from recollect.durability.journal import journaled as journal_member
from recollect.durability.journal import writer as journal_writer
from recollect.durability.journal.log import Torn, records


def make(journal: Any, name: str = "t", **options: Any) -> rc.Table:
    return rc.Table(name, **{"capacity": 100, "seed": 0, "journal": journal, **options})


def reopened(path: Path, **options: Any) -> rc.Table:
    return make(rc.Journal(path, sync="off"), **options)


def left_behind(owner: Any, path: Path, target: Path) -> Path:
    """What a crash would leave now: nothing is flushed for it."""
    with journal_of(owner).writer.paused():
        shutil.copytree(path, target, ignore=shutil.ignore_patterns("lock"))
    return target


# -- what a call promises


@pytest.mark.parametrize(
    "change",
    [
        lambda t, k: t.insert({"x": [9]}),
        lambda t, k: t.update(k[:1], priority=3.0),
        lambda t, k: t.delete(k[:1]),
        lambda t, k: t.take(1),
        lambda t, k: t.confirm(t.take(1, lease=60).info.lease),
        lambda t, k: t.give_back(t.take(1, lease=60).info.lease),
        lambda t, k: t.amend(k[:1], {"y": [5]}),
        lambda t, k: t.add_column("late", "int8"),
        lambda t, k: t.clear(),
        lambda t, k: asyncio.run(t.insert_async({"x": [9]})),
        lambda t, k: asyncio.run(t.take_async(1)),
    ],
)
def test_with_always_a_change_is_on_the_disk_when_its_call_returns(
    change: Any, tmp_path: Path
) -> None:
    columns = {"x": rc.Column("int64"), "y": rc.Column("int8", optional=True)}
    table = make(rc.Journal(tmp_path / "j", sync="always"), signature=columns)
    keys = table.insert({"x": np.arange(5)})
    change(table, keys)
    copy = left_behind(table, tmp_path / "j", tmp_path / "copy")
    again = reopened(copy, signature=columns)
    assert table_state(again, after_restart=False) == table_state(table, after_restart=True)
    again.close()
    table.close()


def test_a_sample_does_not_wait_for_the_disk_unless_it_removes(tmp_path: Path) -> None:
    table = make(rc.Journal(tmp_path / "j", sync="always"), max_times_sampled=2)
    table.insert({"x": [1]})
    written = table.core.journal.writer.log.number  # type: ignore[union-attr]
    with table.core.journal.writer.flushing:  # type: ignore[union-attr]
        table.sample(1)
    assert table.core.journal.writer.log.number == written  # type: ignore[union-attr]
    table.sample(1)
    copy = left_behind(table, tmp_path / "j", tmp_path / "copy")
    assert len(reopened(copy)) == 0
    table.close()


def test_with_interval_a_call_returns_before_it_is_written(tmp_path: Path) -> None:
    table = make(rc.Journal(tmp_path / "j", interval=1e9))
    table.insert({"x": [1]})
    assert not list((tmp_path / "j").glob("journal-*"))
    table.close()
    assert len(reopened(tmp_path / "j")) == 1


def test_with_interval_the_disk_follows_by_itself(tmp_path: Path) -> None:
    table = make(rc.Journal(tmp_path / "j", interval=0.01))
    table.insert({"x": [1, 2]})
    writer = table.core.journal.writer  # type: ignore[union-attr]
    with writer._changed:
        assert writer._changed.wait_for(lambda: writer.log.number > 0, 30)
    copy = left_behind(table, tmp_path / "j", tmp_path / "copy")
    assert len(reopened(copy)) == 2
    table.close()


def test_eight_mebibytes_do_not_wait_for_the_interval(tmp_path: Path) -> None:
    table = make(rc.Journal(tmp_path / "j", sync="off", interval=1e9), capacity=10)
    writer = table.core.journal.writer  # type: ignore[union-attr]
    writer._last = time.monotonic()
    table.insert({"x": np.zeros((1, 9 << 20), np.uint8)})
    with writer._changed:
        assert writer._changed.wait_for(lambda: writer.log.number > 0, 30)
    table.close()


def test_callers_that_wait_together_share_a_sync(tmp_path: Path) -> None:
    table = make(rc.Journal(tmp_path / "j", sync="always"))
    table.insert({"x": [0]})
    writer = table.core.journal.writer  # type: ignore[union-attr]
    before = writer.log.number
    with writer.flushing:  # the disk is busy
        threads = [threading.Thread(target=table.insert, args=[{"x": [k]}]) for k in range(20)]
        for thread in threads:
            thread.start()
        while table.stats()["inserts"] < 21:
            threading.Event().wait(0.001)
    for thread in threads:
        thread.join()
    assert writer.log.number - before <= 3
    table.close()


def test_a_coroutine_that_waits_for_the_disk_lets_the_loop_go_on(tmp_path: Path) -> None:
    table = make(rc.Journal(tmp_path / "j", sync="always"))
    writer = table.core.journal.writer  # type: ignore[union-attr]

    async def main() -> list[str]:
        order = []
        writer.flushing.acquire()
        released = False

        async def insert() -> None:
            await table.insert_async({"x": [1]})
            order.append("inserted")

        task = asyncio.create_task(insert())
        try:
            for _ in range(20):
                await asyncio.sleep(0.001)
            order.append("the loop went on")
            assert len(table) == 1
            writer.flushing.release()
            released = True
            await task
        finally:
            if not released:
                writer.flushing.release()
        return order

    threads = set(threading.enumerate())
    assert asyncio.run(main()) == ["the loop went on", "inserted"]
    assert set(threading.enumerate()) <= threads
    table.close()


def test_rollouts_wait_for_the_disk_in_both_faces(tmp_path: Path) -> None:
    buffer = rc.RolloutBuffer(journal=rc.Journal(tmp_path / "j", sync="always"))
    group = rc.Group([rc.Rollout([1], [2], finish_reason="stop")], task="math", group_id="a")
    buffer.sync.put(group, version=0)
    asyncio.run(buffer.advance(3))
    copy = left_behind(buffer.core, tmp_path / "j", tmp_path / "copy")
    again = rc.RolloutBuffer(journal=rc.Journal(copy, sync="off"))
    assert (again.find("a"), again.train_step) == (buffer.find("a"), 3)
    again.close()
    buffer.close()


def test_steps_wait_for_the_disk_in_both_faces(tmp_path: Path) -> None:
    buffer = rc.ReplayBuffer(10, journal=rc.Journal(tmp_path / "j", sync="always"))
    buffer.add(obs=[0.0], reward=1.0)
    asyncio.run(buffer.add_async(obs=[1.0], reward=1.0, terminated=True))
    copy = left_behind(buffer, tmp_path / "j", tmp_path / "copy")
    again = rc.ReplayBuffer(10, journal=rc.Journal(copy, sync="off"))
    assert again.to_arrow().equals(buffer.to_arrow())
    again.close()
    buffer.close()


def test_callers_wait_when_too_much_is_queued(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(journal_writer, "MOST_QUEUED", 1000)
    monkeypatch.setattr(journal_member, "MOST_QUEUED", 1000)
    table = make(rc.Journal(tmp_path / "j", sync="off", interval=1e9))
    writer = table.core.journal.writer  # type: ignore[union-attr]
    done = threading.Event()

    def work() -> None:
        for _ in range(3):
            table.insert({"x": [0] * 99})
        done.set()

    thread = threading.Thread(target=work)
    with writer.flushing:
        thread.start()
        until(lambda: writer.queued > 1000, 30)
        assert not done.wait(0.2)
    assert done.wait(30)
    thread.join()
    assert len(table) == 100
    table.close()


def test_what_comes_faster_than_it_is_written_becomes_several_records(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(journal_writer, "FLUSH_AT", 1)
    table = make(rc.Journal(tmp_path / "j", sync="off", interval=1e9))
    writer = table.core.journal.writer  # type: ignore[union-attr]
    plain = writer._tell_waiters
    more = iter(range(1, 5))

    def insert_more() -> None:  # while a record is made, something else happens
        plain()
        if threading.current_thread() is threading.main_thread():
            for number in more:
                table.insert({"x": [number]})
                break

    monkeypatch.setattr(writer, "_tell_waiters", insert_more)
    table.insert({"x": [0]})
    assert writer.flush()
    assert writer.log.number > 2
    again = reopened(left_behind(table, tmp_path / "j", tmp_path / "copy"))
    assert sorted(again.get(list(again.counts("key")))["x"].tolist()) == [0, 1, 2, 3, 4]
    again.close()
    table.close()


# -- what is refused


def test_a_second_process_and_a_forked_child_are_refused(tmp_path: Path) -> None:
    table = make(tmp_path / "j")
    program = f"""
import os
import recollect as rc
try:
    rc.Table("t", capacity=9, journal={str(tmp_path / "j")!r})
except rc.JournalError as error:
    print(error)
own = {str(tmp_path / "own")!r}
table = rc.Table("t", capacity=9, journal=rc.Journal(own, sync="always"))
table.insert({{"x": [1]}})
child = os.fork()
if not child:
    try:
        table.insert({{"x": [2]}})
    except rc.JournalError as error:
        os._exit(7 if "forked" in str(error) else 8)
    os._exit(9)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
table.insert({{"x": [3]}})
table.close()
print(rc.Table("t", capacity=9, journal=own).sample(2, replace=False)["x"].sum())
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    refused, total = found.stdout.splitlines()
    assert f"is in use by process {os.getpid()}" in refused, found.stderr
    assert total == "4", found.stderr
    with pytest.raises(rc.JournalError, match="in use by process"):
        make(tmp_path / "j")
    table.close()
    make(tmp_path / "j").close()


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.pt").touch()
    with pytest.raises(rc.JournalError, match=r"other files, such as 'model\.pt'"):
        make(tmp_path)
    with pytest.raises(rc.JournalError, match="is a file"):
        make(tmp_path / "model.pt")


def test_a_table_made_otherwise_is_refused_and_the_journal_stays(tmp_path: Path) -> None:
    table = make(tmp_path / "j", tags={"score": float})
    table.insert({"x": [1]}, score=1.0)
    table.close()
    with pytest.raises(rc.JournalError, match="fields"):
        make(tmp_path / "j")
    with pytest.raises(rc.JournalError, match="a table 't' that is not here"):
        make(tmp_path / "j", "other", tags={"score": float})
    with pytest.raises(rc.JournalError, match="no column 'y'"):
        make(tmp_path / "j", tags={"score": float}, signature={"y": rc.Column("int8")})
    assert len(make(tmp_path / "j", tags={"score": float})) == 1


def test_a_store_and_its_table_cannot_both_have_one(tmp_path: Path) -> None:
    table = make(tmp_path / "one")
    with pytest.raises(rc.InvalidValue, match="'t' has a journal of its own"):
        rc.Store([table], journal=tmp_path / "two")
    table.close()


def test_loading_into_a_table_that_is_not_empty_needs_a_journal(tmp_path: Path) -> None:
    table = rc.Table("t", capacity=10)
    table.insert({"x": [1]})
    store = rc.Store([table])
    store.save(tmp_path / "s")
    with pytest.raises(rc.SnapshotError, match="not empty"):
        store.load(tmp_path / "s")


# -- keys, requests, leases


def test_keys_that_a_crash_may_have_lost_are_not_given_again(tmp_path: Path) -> None:
    table = make(rc.Journal(tmp_path / "j", interval=1e9))
    kept = table.insert({"x": [1, 2]})
    copy = flushed_copy(table, tmp_path / "copy")
    lost = table.insert({"x": [3, 4]})
    again = reopened(copy)
    new = again.insert({"x": [5, 6]})
    assert not set(new.tolist()) & {*kept.tolist(), *lost.tolist()}
    assert again.take(4)["x"].size == 4
    again.close()
    table.close()


def test_keys_go_on_after_an_orderly_end(tmp_path: Path) -> None:
    table = make(tmp_path / "j")
    first = table.insert({"x": [1]})
    table.close()
    table = make(tmp_path / "j")
    assert table.insert({"x": [2]})[0] == first[0] + 1
    table.close()


def test_a_request_that_was_answered_before_a_crash_is_answered_alike(tmp_path: Path) -> None:
    table = make(rc.Journal(tmp_path / "j", sync="always"))
    keys = table.insert({"x": [1, 2]}, request=("actor", 7))
    copy = left_behind(table, tmp_path / "j", tmp_path / "copy")
    again = reopened(copy)
    assert again.insert({"x": [1, 2]}, request=("actor", 7)).tolist() == keys.tolist()
    assert len(again) == 2
    again.close()
    table.close()


def test_leases_end_at_every_restart_and_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "j"
    table = make(path, sampler=rc.Fifo())
    table.insert({"x": [1, 2, 3]})
    for restart in range(4):
        batch = table.take(2, lease=600)
        assert batch["x"].tolist() == [1, 2]
        assert batch.info.deliveries.tolist() == [restart + 1] * 2
        table.close()
        table = make(path, sampler=rc.Fifo())
    assert table.stats()["samples"] == 0
    assert table.take(3).info.deliveries.tolist() == [5, 5, 1]
    table.close()


def test_a_table_that_is_dropped_without_close_loses_nothing(tmp_path: Path) -> None:
    table = make(rc.Journal(tmp_path / "j", interval=1e9))
    table.insert({"x": [1, 2]})
    del table
    gc.collect()
    assert len(reopened(tmp_path / "j")) == 2


def test_a_smaller_table_evicts_and_that_is_journaled(tmp_path: Path, caplog: Any) -> None:
    table = make(tmp_path / "j", capacity=10)
    table.insert({"x": np.arange(10)})
    table.close()
    table = make(tmp_path / "j", capacity=4, remover=rc.Uniform())
    assert "6 items were evicted" in caplog.text
    left = sorted(table.get(list(table.counts("key")))["x"].tolist())
    table.close()
    table = make(tmp_path / "j", capacity=10)
    assert sorted(table.get(list(table.counts("key")))["x"].tolist()) == left
    table.close()


# -- snapshots


def test_a_journal_is_compacted_and_stays_bounded(tmp_path: Path) -> None:
    path = tmp_path / "j"
    options = {"sync": "off", "interval": 1e9, "compact_at": 50_000}
    table = make(rc.Journal(path, **options), sampler=rc.Fifo())  # type: ignore[arg-type]
    writer = table.core.journal.writer  # type: ignore[union-attr]
    held = None
    for k in range(60):
        table.insert({"x": np.full((4, 500), k)}, task="math", request=("a", k))
        if k == 20:
            held = table.take(2, lease=600)
        table.sample(3)
        writer.flush()
        writer.wait_for_snapshot()
        assert writer.log.bytes < 4 * 50_000 + table.nbytes
    assert len(list(path.glob("base-*"))) == 1
    assert int(next(path.glob("base-*")).name[5:], 16) > 10
    copy = flushed_copy(table, tmp_path / "copy")
    again = reopened(copy, sampler=rc.Fifo())
    assert table_state(again, after_restart=False) == table_state(table, after_restart=True)
    again.close()
    assert held is not None
    table.confirm(held.info.lease)
    copy = flushed_copy(table, tmp_path / "later")
    again = reopened(copy, sampler=rc.Fifo())
    assert table_state(again, after_restart=False) == table_state(table, after_restart=True)
    again.close()
    table.close()


def test_a_snapshot_that_cannot_be_written_leaves_the_journal_as_it_was(
    tmp_path: Path, monkeypatch: Any
) -> None:
    from recollect.durability.snapshot import saver as snapshot

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(snapshot, "save_snapshot", full)
    table = make(rc.Journal(tmp_path / "j", sync="off", compact_at=1000))
    writer = table.core.journal.writer  # type: ignore[union-attr]
    for k in range(30):
        table.insert({"x": np.full((1, 100), k)})
        writer.flush()
        writer.wait_for_snapshot()
    assert len(reopened(flushed_copy(table, tmp_path / "copy"))) == 30
    table.close()


@pytest.mark.parametrize("kind", ["store", "rollouts", "steps"])
def test_loading_a_snapshot_rewinds_a_journaled_store(kind: str, tmp_path: Path) -> None:
    owner, add, count, save, load = MEMBERS[kind](rc.Journal(tmp_path / "j", sync="always"))
    add(3)
    save(tmp_path / "step-3")
    add(4)
    assert count() == 7
    load(tmp_path / "step-3")
    assert count() == 3
    copy = left_behind(owner, tmp_path / "j", tmp_path / "copy")
    _, _, count_again, _, _ = MEMBERS[kind](rc.Journal(copy, sync="off"))
    assert count_again() == 3
    add(2)
    copy = left_behind(owner, tmp_path / "j", tmp_path / "later")
    assert MEMBERS[kind](rc.Journal(copy, sync="off"))[2]() == 5


def store_member(journal: Any) -> Any:
    store = rc.Store([rc.Table("a", capacity=99), rc.Table("b", capacity=9)], journal=journal)

    def add(n: int) -> None:
        store["a"].insert({"x": np.arange(n)})

    return store, add, lambda: len(store["a"]), store.save, store.load


def rollouts_member(journal: Any) -> Any:
    buffer = rc.RolloutBuffer(journal=journal)

    def add(n: int) -> None:
        for _ in range(n):
            rollouts = [rc.Rollout([1], [2], finish_reason="stop", blobs={"i": [b"cat"]})]
            buffer.sync.put(rc.Group(rollouts, task="math"))

    return buffer.core, add, lambda: len(buffer), buffer.save, buffer.load


def steps_member(journal: Any) -> Any:
    buffer = rc.ReplayBuffer(99, journal=journal)

    def add(n: int) -> None:
        buffer.extend(env_ids=0, obs=np.zeros((n, 2)), reward=np.ones(n))

    return buffer, add, lambda: len(buffer), buffer.save, buffer.load


MEMBERS = {"store": store_member, "rollouts": rollouts_member, "steps": steps_member}


def test_keys_given_after_a_snapshot_are_not_given_again_after_a_rewind(tmp_path: Path) -> None:
    store = rc.Store([make(None)], journal=tmp_path / "j")
    store.save(tmp_path / "s")
    first = store["t"].insert({"x": [1, 2]})
    store.load(tmp_path / "s")
    assert len(store["t"]) == 0
    assert not set(store["t"].insert({"x": [3, 4]}).tolist()) & set(first.tolist())
    store.close()


def test_a_store_keeps_the_order_between_its_tables(tmp_path: Path) -> None:
    tables = [rc.Table("a", capacity=99, sampler=rc.Fifo()), rc.Table("b", capacity=99)]
    store = rc.Store(
        [*tables, rc.Table("scratch", capacity=9, checkpoint=False)],
        journal=rc.Journal(tmp_path / "j", sync="always"),
    )
    store["a"].insert({"x": np.arange(20)})
    store["scratch"].insert({"x": [1]})
    for _ in range(10):
        moved = store["a"].take(1)
        store["b"].insert({"x": moved["x"]})
    copy = left_behind(store, tmp_path / "j", tmp_path / "copy")
    tables = [rc.Table("a", capacity=99, sampler=rc.Fifo()), rc.Table("b", capacity=99)]
    again = rc.Store([*tables, rc.Table("scratch", capacity=9, checkpoint=False)], journal=copy)
    assert [len(again[name]) for name in ("a", "b", "scratch")] == [10, 10, 0]
    again.close()
    store.close()


def test_a_store_journals_a_buffer_whole(tmp_path: Path) -> None:
    def made(path: Path) -> tuple[rc.Store, rc.RolloutBuffer]:
        buffer = rc.RolloutBuffer(name="groups")
        tables = [buffer.table, rc.Table("eval", capacity=9)]
        return rc.Store(tables, journal=rc.Journal(path, sync="always")), buffer

    store, buffer = made(tmp_path / "j")
    rollouts = [rc.Rollout([1], [2], finish_reason="stop", blobs={"image": [b"cat"]})]
    buffer.sync.put(rc.Group(rollouts, task="math", group_id="a"))
    buffer.sync.advance(4)
    store["eval"].insert({"x": [1]})
    copy = left_behind(store, tmp_path / "j", tmp_path / "copy")
    again, other = made(copy)
    key = other.find("a")
    assert key is not None
    assert other.get([key])[0][0].blobs == {"image": [b"cat"]}
    assert other.accounts()["math"]["put"] == 1
    assert (other.train_step, len(again["eval"])) == (4, 1)
    again.close()
    store.close()


# -- torn tails and damage


def written(path: Path, calls: int = 4) -> list[int]:
    """A journal of some records in one file; returns how long it was after each."""
    table = make(rc.Journal(path, sync="always"))
    sizes = []
    for k in range(calls):
        table.insert({"x": [k], "text": ["word" * k]})
        sizes.append(os.path.getsize(next(path.glob("journal-*"))))
    copy = path.parent / "copied"
    left_behind(table, path, copy)
    table.close()
    shutil.rmtree(path)
    copy.rename(path)
    return sizes


def test_a_tail_torn_at_any_byte_gives_the_records_before_it(tmp_path: Path) -> None:
    sizes = written(tmp_path / "j", 2)
    file = next((tmp_path / "j").glob("journal-*"))
    data = file.read_bytes()
    for length in range(len(data) + 1):
        file.write_bytes(data[:length])
        torn: list[Torn] = []
        found = [record.number for record in records(tmp_path / "j", 0, torn)]
        assert found == list(range(sum(size <= length for size in sizes)))
        assert length in sizes or length == 0 or torn or length == header_size(data)
        assert all(t.at in (0, header_size(data), *sizes) for t in torn)
        assert [t.at + t.bytes for t in torn] in ([], [length])


def header_size(data: bytes) -> int:
    return next(frames(memoryview(data))).next


@pytest.mark.parametrize("lost", [1, 8, 16, 17, 100, 300])
def test_a_torn_tail_is_cut_and_told(lost: int, tmp_path: Path, caplog: Any) -> None:
    sizes = written(tmp_path / "j")
    file = next((tmp_path / "j").glob("journal-*"))
    with open(file, "r+b") as data:
        data.truncate(sizes[-1] - lost)
    table = reopened(tmp_path / "j")
    assert sorted(table.get(list(table.counts("key")))["x"].tolist()) == [0, 1, 2]
    assert f"bytes were cut at {sizes[-2]}" in caplog.text
    assert os.path.getsize(file) == sizes[-2]
    (torn,) = table.core.journal.recovery.torn  # type: ignore[union-attr]
    assert (torn.at, torn.bytes) == (sizes[-2], sizes[-1] - sizes[-2] - lost)
    table.close()


def test_what_was_cut_stays_cut_and_the_journal_goes_on(tmp_path: Path) -> None:
    written(tmp_path / "j")
    file = next((tmp_path / "j").glob("journal-*"))
    with open(file, "r+b") as data:
        data.truncate(os.path.getsize(file) - 3)
    table = reopened(tmp_path / "j")
    table.insert({"x": [99], "text": [""]})
    table.close()
    table = reopened(tmp_path / "j")
    assert sorted(table.get(list(table.counts("key")))["x"].tolist()) == [0, 1, 2, 99]
    table.close()


def test_damage_in_the_middle_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    sizes = written(tmp_path / "j")
    file = next((tmp_path / "j").glob("journal-*"))
    data = bytearray(file.read_bytes())
    for place in (sizes[0] + 20, sizes[1] + 3, sizes[1] - 30):
        hurt = bytearray(data)
        hurt[place] ^= 1
        file.write_bytes(hurt)
        with pytest.raises(rc.JournalError, match=rf"{file.name} is damaged at byte \d+"):
            reopened(tmp_path / "j")
    file.write_bytes(data)
    assert len(reopened(tmp_path / "j")) == 4


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    for k in range(3):
        table = make(tmp_path / "j")
        table.insert({"x": [k]})
        table.close()
    first, second, _ = sorted((tmp_path / "j").glob("journal-*"))
    kept = second.read_bytes()
    second.unlink()
    with pytest.raises(rc.JournalError, match="is missing before"):
        make(tmp_path / "j")
    second.write_bytes(kept)
    first.unlink()
    with pytest.raises(rc.JournalError, match="record 0 is missing"):
        make(tmp_path / "j")


def test_a_journal_from_the_future_is_refused(tmp_path: Path) -> None:
    (tmp_path / "j").mkdir()
    header = json.dumps({"format": 99, "first": 0, "synced": True, "members": []}).encode()
    file = tmp_path / "j" / f"journal-{0:016x}.rcj"
    file.write_bytes(b"".join(frame([header], 0)))
    with pytest.raises(rc.JournalError, match="format 99"):
        make(tmp_path / "j")


def test_any_arrow_reader_opens_the_rows_of_a_record(tmp_path: Path) -> None:
    written(tmp_path / "j")
    found = []
    for record in records(tmp_path / "j", 0, []):
        _, sections = read_record(record.payload)
        found += [batch.to_pydict() for name, batch in sections.items() if ".rows." in name]
    assert found[2] == {"x": [2], "text": ["wordword"]}
