"""Checkpoints within a process: when they save, what they keep, how ranks agree."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from callers import MOMENT, until

import recollect as rc
from recollect.ranks.exchange import FOLDER, News, ThroughFiles
from recollect.ranks.process_signals import Signals
from recollect.ranks.shard_sets import ShardSet, find_sets


def filled(value: int = 1) -> rc.Table:
    table = rc.Table("t", capacity=1000)
    table.insert({"x": [value]})
    return table


def steps_in(path: Path) -> list[int]:
    return [one.step for one in find_sets(path) if one.committed]


def test_it_saves_on_an_interval_and_keeps_the_last(tmp_path: Path) -> None:
    table = filled()
    with rc.Checkpoints(tmp_path, table, interval=10, keep_last=2, signals=False) as checkpoints:
        saved = [checkpoints.maybe_save(step) for step in range(1, 45)]
    folders = [path for path in saved if path is not None]
    assert [path.name for path in folders] == [f"step-{step:012d}" for step in (10, 20, 30, 40)]
    assert saved[9] == folders[0]
    assert steps_in(tmp_path) == [30, 40]


def test_load_returns_the_step_or_none(tmp_path: Path) -> None:
    fresh = rc.Table("t", capacity=10)
    with rc.Checkpoints(tmp_path, fresh, signals=False) as checkpoints:
        assert checkpoints.load() is None
    table = rc.Table("t", capacity=10)
    with rc.Checkpoints(tmp_path, table, interval=1, signals=False) as checkpoints:
        for step in (411, 412, 413):
            table.insert({"x": [step]})
            checkpoints.maybe_save(step)
    with rc.Checkpoints(tmp_path, fresh, signals=False) as checkpoints:
        assert checkpoints.load(step=412) == 412
        assert len(fresh) == 2
        assert checkpoints.loaded.items == {"t": 2}
    latest = rc.Table("t", capacity=10)
    with rc.Checkpoints(tmp_path, latest, signals=False) as checkpoints:
        assert checkpoints.load() == 413
        with pytest.raises(rc.SnapshotError, match="no checkpoint of step 7; there are 411"):
            checkpoints.load(step=7)


def test_a_request_is_met_at_the_next_step_and_answered_when_committed(tmp_path: Path) -> None:
    with rc.Checkpoints(tmp_path, filled(), signals=False) as checkpoints:
        assert checkpoints.maybe_save(1) is None
        future = checkpoints.request()
        deadline = time.monotonic() + 20
        step, path = 1, None
        while path is None and time.monotonic() < deadline:
            step += 1
            path = checkpoints.maybe_save(step)
            time.sleep(0.001)
        assert future.result(10) == path
        assert checkpoints.maybe_save(step + 1) is None


def test_closing_fails_what_was_requested(tmp_path: Path) -> None:
    checkpoints = rc.Checkpoints(tmp_path, filled(), signals=False)
    future = checkpoints.request()
    checkpoints.close()
    checkpoints.close()
    with pytest.raises(rc.SnapshotError, match="closed before"):
        future.result(1)
    with pytest.raises(rc.SnapshotError, match="were closed"):
        checkpoints.request()


def run_ranks(path: Path, count: int, **options: Any) -> list[rc.Checkpoints]:
    """Checkpoints of several ranks in one process, each made in a thread."""
    made: dict[int, rc.Checkpoints] = {}

    def make(rank: int) -> None:
        made[rank] = rc.Checkpoints(
            path, filled(rank), rank, count, signals=False, **{"timeout": 5.0, **options}
        )

    threads = [threading.Thread(target=make, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [made[rank] for rank in range(count)]


def train(
    ranks: list[rc.Checkpoints], until: Future[Path], leads: list[int]
) -> list[dict[int, Path]]:
    """Let every rank go on by itself, some ahead of others, until a request is answered."""
    saved: list[dict[int, Path]] = [{} for _ in ranks]

    def loop(number: int) -> None:
        step = leads[number]
        while not until.done():
            step += 1
            time.sleep(0.001 * (1 + number))
            path = ranks[number].maybe_save(step)
            if path is not None:
                saved[number][step] = path

    threads = [threading.Thread(target=loop, args=(n,)) for n in range(len(ranks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return saved


class Gathering:
    """An all-gather between threads, as a user's own exchange."""

    def __init__(self, count: int) -> None:
        self._barrier = threading.Barrier(count, timeout=10)
        self._values = [0] * count

    def of(self, rank: int) -> Any:
        def gather(value: int) -> list[int]:
            self._values[rank] = value
            self._barrier.wait()
            found = list(self._values)
            self._barrier.wait()
            return found

        return gather


@pytest.mark.parametrize("how", ["files", "own"])
def test_all_ranks_save_at_the_first_step_that_all_can_reach(how: str, tmp_path: Path) -> None:
    gathering = Gathering(3)
    if how == "own":
        ranks = [
            rc.Checkpoints(
                tmp_path, filled(rank), rank, 3, exchange=gathering.of(rank), signals=False
            )
            for rank in range(3)
        ]
    else:
        ranks = run_ranks(tmp_path, 3)
    future = ranks[1].request()
    saved = train(ranks, future, [0, 40, 20])
    (step,) = saved[0]
    assert saved[0] == saved[1] == saved[2]
    assert step > 40
    assert future.result(1) == saved[0][step]
    assert steps_in(tmp_path) == [step]
    threads = [threading.Thread(target=one.close) for one in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)


def test_two_requests_at_once_are_one_checkpoint_or_two_but_both_are_answered(
    tmp_path: Path,
) -> None:
    ranks = run_ranks(tmp_path, 2)
    first, second = ranks[0].request(), ranks[1].request()
    both: Future[Path] = Future()

    def check(_: Future[Path]) -> None:
        if first.done() and second.done() and not both.done():
            both.set_result(first.result())

    first.add_done_callback(check)
    second.add_done_callback(check)
    saved = train(ranks, both, [0, 3])
    assert set(saved[0]) == set(saved[1])
    assert {first.result().name, second.result().name} <= {p.name for p in saved[0].values()}
    for one in ranks:
        one.close()


def test_files_of_an_earlier_run_are_not_taken_for_this_one(tmp_path: Path) -> None:
    for rank in range(2):
        old = ThroughFiles(tmp_path, rank, 2, 0.1)
        old._sees = {1 - rank: "somebody"}
        old._round = 9
        old._values = {1: 77, 2: 77, 9: 77}
        old._write()
    now = ThroughFiles(tmp_path, 0, 2, 0.2)
    assert not now.look(False).begun
    assert now.run is None
    with pytest.raises(rc.WaitTimeout, match="rank 1 did not answer"):
        now.agree(5)
    peer = ThroughFiles(tmp_path, 1, 2, 5.0)
    peer.look(False)
    now.look(False)
    peer.look(False)
    assert now.run == peer.run
    answers: list[int] = []
    asking = threading.Thread(target=lambda: answers.append(peer.agree(8)))
    now._timeout = 5.0
    asking.start()
    while not now.look(False).begun:
        time.sleep(0.01)
    assert now.agree(5) == 8
    asking.join(10)
    assert answers == [8]
    assert sorted(os.listdir(tmp_path / FOLDER)) == [
        "rank-00000-of-00002.json", "rank-00001-of-00002.json",
    ]  # fmt: skip


def test_shards_of_different_runs_are_never_one_checkpoint(tmp_path: Path) -> None:
    for run, rank in (("old", 0), ("new", 1)):
        from recollect.ranks.shards import write_shard

        write_shard(tmp_path / "step-000000000005", filled(rank), rank, 2, 5, run=run)
    from recollect.ranks.shard_sets import try_commit

    assert not try_commit(tmp_path / "step-000000000005", 2)
    with pytest.raises(rc.SnapshotError, match="different runs"):
        rc.load_shards(tmp_path, rc.Table("t", capacity=9), 0, 1)


def test_leaving_the_block_with_an_error_saves(tmp_path: Path) -> None:
    table = filled()

    def fail() -> None:
        with rc.Checkpoints(tmp_path, table) as checkpoints:
            checkpoints.maybe_save(3)
            table.insert({"x": [2]})
            checkpoints.maybe_save(4)
            raise ValueError("something")

    with pytest.raises(ValueError, match="something"):
        fail()
    assert steps_in(tmp_path) == [4]  # the only rank: nobody is missing
    (found,) = find_sets(tmp_path)
    assert found.path.name.startswith("crash-")
    again = rc.Table("t", capacity=10)
    with rc.Checkpoints(tmp_path, again) as checkpoints:
        assert checkpoints.load() == 4
    assert len(again) == 2


def test_a_rank_that_ends_twice_saves_one_set(tmp_path: Path) -> None:
    """It hears of the other's end, saves, goes on for a step, and is then told to end itself."""
    tables = [filled(), filled()]
    ranks = [rc.Checkpoints(tmp_path, tables[r], r, 2, signals=False, timeout=5) for r in range(2)]
    try:
        for one in ranks:
            one.maybe_save(3)
        ranks[0]._crash("SIGTERM")  # rank 1 hears of it, and completes the set
        (found,) = find_sets(tmp_path)
        assert found.committed
        assert found.steps == {0: 3, 1: 3}
        tables[1].insert({"x": [2]})
        ranks[1].maybe_save(4)
        ranks[1]._crash("SIGTERM")
        (found,) = find_sets(tmp_path)
        assert found.steps == {0: 3, 1: 3}
    finally:
        for one in ranks:
            one.close()


def test_a_crash_before_ranks_have_found_each_other_is_saved_as_one_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from recollect.ranks import checkpoints as module

    look = ThroughFiles.look
    begun: set[int] = set()

    def late(self: ThroughFiles, wants: bool) -> News:
        if id(self) not in begun:
            begun.add(id(self))
            time.sleep(module.PARKING + 0.2)  # longer than a crash waits for the training
        return look(self, wants)

    monkeypatch.setattr(ThroughFiles, "look", late)
    monkeypatch.setattr(module, "FINDING", 20.0)
    ranks = run_ranks(tmp_path, 2, timeout=20.0)
    try:
        ranks[0]._crash("ValueError")
        (found,) = find_sets(tmp_path)
        assert found.committed
        assert found.steps == {0: 0, 1: 0}
    finally:
        for one in ranks:
            one.close()


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_crash_does_not_wait_for_long_where_nobody_is_found(
    world_size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from recollect.ranks import checkpoints as module

    monkeypatch.setattr(module, "FINDING", 0.1 if world_size == 2 else 60.0)
    checkpoints = rc.Checkpoints(tmp_path, filled(), 0, world_size, signals=False, timeout=60)
    begin = time.monotonic()
    checkpoints._write_crash()
    assert time.monotonic() - begin < 30
    (found,) = find_sets(tmp_path)
    assert set(found.steps) == {0}
    checkpoints.close()


def crashed_alone(path: Path, monkeypatch: pytest.MonkeyPatch) -> ShardSet:
    """The set that rank 0 of two leaves when it is told to end; the other one never comes."""
    from recollect.ranks import checkpoints as module

    monkeypatch.setattr(module, "FINDING", 0.1)
    with rc.Checkpoints(path, filled(), 0, 2, signals=False, timeout=5) as checkpoints:
        checkpoints.maybe_save(3)
        checkpoints._crash("SIGTERM")
        (found,) = find_sets(path)
    return found


def test_a_shard_that_arrives_between_two_looks_completes_the_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank that crashed returns only when the set is committed, or nothing more will come."""
    from recollect.ranks import checkpoints as module
    from recollect.ranks.shards import write_shard

    commit = module.try_commit

    def arrive_after(folder: Path, world_size: int) -> bool:
        """Before the look at what is there, whichever comes next."""
        committed = commit(folder, world_size)
        (found,) = find_sets(tmp_path)
        if found.missing:
            run = found.shards[0]["state"]["run"]
            write_shard(folder, filled(1), 1, 2, found.step, run=run)
        return committed

    monkeypatch.setattr(module, "try_commit", arrive_after)
    found = crashed_alone(tmp_path, monkeypatch)
    assert found.committed
    assert not (found.path / "partial.json").exists()


def test_why_a_set_is_not_whole_is_said_of_its_last_shard_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from recollect.ranks import shard_sets as sets
    from recollect.ranks.shards import write_shard

    write = sets.write_whole

    def arrive_first(path: Path, *arguments: Any) -> None:
        if path.name == sets.PARTIAL:  # what is written now does not know of it
            monkeypatch.setattr(sets, "write_whole", write)
            (found,) = find_sets(tmp_path)
            run = found.shards[0]["state"]["run"]
            write_shard(path.parent, filled(1), 1, 2, found.step + 1, run=run)
        write(path, *arguments)

    monkeypatch.setattr(sets, "write_whole", arrive_first)
    found = crashed_alone(tmp_path, monkeypatch)
    assert "steps differ" in json.loads((found.path / sets.PARTIAL).read_text())["why"]


def test_what_is_missing_is_not_written_beside_a_set_that_was_committed_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from recollect.ranks import shard_sets as sets
    from recollect.ranks.shards import write_shard

    folder = tmp_path / "step-000000000003"
    write_shard(folder, filled(), 0, 2, 3)
    write = sets.write_whole

    def commit_first(path: Path, *arguments: Any) -> None:
        monkeypatch.setattr(sets, "write_whole", write)
        write_shard(folder, filled(1), 1, 2, 3)
        assert sets.try_commit(folder, 2)
        write(path, *arguments)

    monkeypatch.setattr(sets, "write_whole", commit_first)
    sets.mark_partial(folder)
    (found,) = find_sets(tmp_path)
    assert found.committed
    assert not (folder / "partial.json").exists()


PROGRAM = """
import sys, recollect as rc
table = rc.Table("t", capacity=10)
table.insert({{"x": [1]}})
checkpoints = rc.Checkpoints({path!r}, table)
checkpoints.maybe_save(8)
{end}
"""


def test_an_uncaught_exception_saves_and_a_normal_end_does_not(tmp_path: Path) -> None:
    for name, end, code in (
        ("failed", "raise RuntimeError('no more')", 1),
        ("done", "pass", 0),
    ):
        program = PROGRAM.format(path=str(tmp_path / name), end=end)
        run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        assert run.returncode == code, run.stderr
        assert ("no more" in run.stderr) == bool(code)
    assert steps_in(tmp_path / "failed") == [8]
    assert steps_in(tmp_path / "done") == []


class SlowSignals(Signals):
    """Its reader does not come to the pipe before it may."""

    def __init__(self, *arguments: Any) -> None:
        self.may_read = threading.Event()
        super().__init__(*arguments)

    def _read(self) -> None:
        self.may_read.wait(30)
        super()._read()


def test_a_signal_is_heard_once_however_late_its_pipe_is_read() -> None:
    heard: list[None] = []
    signals = SlowSignals(lambda: heard.append(None), lambda why: None)
    try:
        os.kill(os.getpid(), signal.SIGUSR2)
        until(lambda: heard)  # the handler looked again, and heard it
        signals.may_read.set()
        os.kill(os.getpid(), signal.SIGUSR2)
        until(lambda: len(heard) > 1)
        time.sleep(MOMENT)
        assert len(heard) == 2
    finally:
        signals.may_read.set()
        signals.close()


def _fail_in_child(path: str) -> None:
    table = filled()
    checkpoints = rc.Checkpoints(path, table)
    checkpoints.maybe_save(6)
    raise KeyError("in a child")


def test_an_exception_in_a_process_of_multiprocessing_saves(tmp_path: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    child = context.Process(target=_fail_in_child, args=(str(tmp_path),))
    child.start()
    child.join(60)
    assert child.exitcode == 1
    assert steps_in(tmp_path) == [6]


def test_saving_that_fails_tells_who_asked_and_the_next_one_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from recollect.ranks import checkpoints as module

    def full(*_: Any, **__: Any) -> None:
        raise rc.SnapshotError("the disk is full")

    with rc.Checkpoints(tmp_path, filled(), interval=5, signals=False) as checkpoints:
        whole = module.write_shard
        monkeypatch.setattr(module, "write_shard", full)
        future = checkpoints.request()
        with pytest.raises(rc.SnapshotError, match="disk is full"):
            checkpoints.maybe_save(5)
        with pytest.raises(rc.SnapshotError, match="rank 0 could not save: the disk is full"):
            future.result(5)
        monkeypatch.setattr(module, "write_shard", whole)
        assert checkpoints.maybe_save(10) is not None
    assert steps_in(tmp_path) == [10]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"interval": 0}, "interval"),
        ({"keep_last": 0}, "keep_last"),
        ({"rank": 3}, "rank: there are 1 ranks"),
        ({"http": "8700"}, "http: expected a port"),
        ({"http": 70_000}, "http"),
        ({"exchange": 3, "world_size": 2}, "exchange: expected a function"),
        ({"timeout": -1}, "timeout"),
        ({"store": object()}, "store: expected an rc.Store"),
        ({"signals": 2}, "signals"),
    ],
)
def test_wrong_arguments_are_named(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    given: dict[str, Any] = {"path": tmp_path, "store": filled(), "signals": False, **options}
    with pytest.raises(rc.InvalidValue, match=message):
        rc.Checkpoints(**given)
    assert json.dumps(os.listdir(tmp_path)) == "[]"  # nothing was begun
