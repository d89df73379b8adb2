"""Several processes on one table: nothing is lost, and nothing is handed out twice unmarked."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa
from postgres_server import PostgresServer
from sql_workers import LEASE, PUT, Crew, table

import recollect as rc


def drained(jobs: rc.Table) -> list[tuple[int, int]]:
    """Take what is left, with how often it was handed out; leases of the dead lapse first."""
    left: list[tuple[int, int]] = []
    while len(jobs):
        batch = jobs.take(1000, partial=True, timeout=20 * LEASE)
        left += zip(batch["x"].tolist(), batch.info.deliveries.tolist(), strict=True)
    return left


def kill_at_random(url: str, folder: Path, *, workers: int, kills: int) -> None:
    """Let processes put and take while some are killed, and add up what they did."""
    crew = Crew(url, folder)
    rng = random.Random(3)
    try:
        for number in range(workers):
            crew.start(number)
        for _ in range(kills):
            more, began = crew.written() + rng.randrange(100, 1500), time.monotonic()
            while crew.written() < more:  # so that a slow machine does as much
                assert time.monotonic() - began < 60, "nobody puts or takes any more"
                time.sleep(0.002)
            number = rng.randrange(workers)
            crew.kill(number)
            crew.start(number)
    finally:
        crew.close()
    jobs = table(url)
    left = drained(jobs)
    put: set[int] = set()
    doubtful: set[int] = set()  # an insert that was under way when its process was killed
    unsaid: set[int] = set()  # confirmed perhaps, and killed before it said so
    handed: list[tuple[int, int]] = list(left)
    done: Counter[int] = Counter(x for x, _ in left)
    for worker, log in enumerate(crew.logs()):
        got: dict[str, list[tuple[int, int]]] = {}
        confirming: dict[str, set[int]] = {}
        for word, *rest in log:
            assert word != "failed", " ".join(rest)
            if word in ("put", "trying"):
                first = 1_000_000 * worker + PUT * int(rest[0])
                (put if word == "put" else doubtful).update(range(first, first + PUT))
            elif word == "got":
                pairs = [(int(x), int(d)) for x, d in (pair.split(":") for pair in rest[1:])]
                got[rest[0]] = pairs
                handed += pairs
            elif word == "confirming":
                confirming[rest[0]] = {x for x, _ in got[rest[0]]}
            elif word == "late":
                confirming.pop(rest[0], None)
            elif word == "confirmed":
                done.update(confirming.pop(rest[0]))
        unsaid = unsaid.union(*confirming.values())
    again = [x for (x, _), times in Counter(handed).items() if times > 1]
    wrong = {
        "lost": put - set(done) - unsaid,
        "from nowhere": set(done) - put - doubtful,
        "confirmed twice": [x for x, times in done.items() if times > 1],
        "handed out twice with the same number of deliveries": again,
    }
    for what, items in wrong.items():
        assert not items, f"{len(items)} {what}, such as\n{crew.story(min(items))}"
    assert max(often for _, often in handed) > 1, "nobody was killed while it held a lease"
    assert len(put) > 10 * kills
    stats = jobs.stats()
    assert (stats["size"], stats["leases"], stats["leased"]) == (0, 0, 0)
    assert stats["inserts"] == stats["removals"] == stats["samples"]
    assert stats["inserts"] >= len(put)
    jobs.close()


def test_killed_processes_lose_nothing(postgres: PostgresServer, tmp_path: Path) -> None:
    kill_at_random(postgres.schema(), tmp_path, workers=8, kills=12)


@pytest.mark.soak
def test_processes_that_are_killed_for_minutes_lose_nothing(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    kill_at_random(postgres.schema(), tmp_path, workers=8, kills=150)


def test_processes_share_a_sqlite_file(tmp_path: Path) -> None:
    """SQLite's lock is waited for, and never seen."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    kill_at_random(url, tmp_path, workers=4, kills=5)


@contextmanager
def broken_take(jobs: rc.Table) -> Iterator[None]:
    """A take that is interrupted before its end."""
    assert jobs.core.shared is not None
    with suppress(KeyboardInterrupt), jobs.core.shared.taking():
        yield
        raise KeyboardInterrupt


def test_takes_of_several_processes_run_side_by_side(postgres: PostgresServer) -> None:
    """One that is in the middle of a take keeps nobody from taking the next items."""
    url = postgres.schema()
    one, other = table(url), table(url)
    one.insert({"x": np.arange(10)})
    assert one.core.shared is not None
    with one.core.shared.taking():
        first = one.core.storage.take(rc.Fifo(), 3, None, hide=False)
        assert other.take(3)["x"].tolist() == [3, 4, 5]
        assert first.read()["x"].tolist() == [0, 1, 2]
    assert other.take(4)["x"].tolist() == [6, 7, 8, 9]
    assert len(one) == 0
    one.close()
    other.close()


def test_what_a_broken_take_had_is_there_again(postgres: PostgresServer) -> None:
    url = postgres.schema()
    one, other = table(url), table(url)
    one.insert({"x": np.arange(4)})
    with broken_take(one):
        one.core.storage.take(rc.Fifo(), 4, None, hide=False)
    assert other.take(4)["x"].tolist() == [0, 1, 2, 3]
    assert other.stats()["samples"] == 4
    one.close()
    other.close()


def test_a_take_that_others_are_in_the_way_of_waits_for_them(postgres: PostgresServer) -> None:
    url = postgres.schema()
    one, other = table(url), table(url)
    one.insert({"x": np.arange(4)})
    got: list[int] = []
    thread = threading.Thread(target=lambda: got.extend(other.take(4)["x"].tolist()))
    with broken_take(one):
        one.core.storage.take(rc.Fifo(), 2, None, hide=False)
        thread.start()
        thread.join(0.3)
        assert thread.is_alive()
    thread.join(30)
    assert got == [0, 1, 2, 3]
    one.close()
    other.close()


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_waiters_hear_of_other_processes(
    database: str, postgres: PostgresServer, tmp_path: Path
) -> None:
    url = postgres.schema() if database == "postgres" else f"sqlite:///{tmp_path}/t.db"
    queues = [rc.Table.queue("q", 2, storage=rc.SqlStorage(url)) for _ in range(2)]
    moved: list[int] = []

    def consume() -> None:
        for _ in range(6):
            moved.extend(queues[1].take(1, timeout=60)["x"].tolist())

    thread = threading.Thread(target=consume)
    thread.start()
    for x in range(6):  # waits whenever there are two that were not taken
        queues[0].insert({"x": [x]}, timeout=60)
    thread.join(60)
    assert moved == list(range(6))
    for queue in queues:
        queue.close()


def test_who_waits_for_another_process_asks_nothing(postgres: PostgresServer) -> None:
    """PostgreSQL tells: while nothing happens no statement is sent."""
    url = postgres.schema()
    one, other = table(url), table(url)
    got: list[int] = []
    thread = threading.Thread(target=lambda: got.extend(one.take(1)["x"].tolist()))
    thread.start()
    while not one.core.gate.arrivals.waiters:
        time.sleep(0.01)
    sent: list[str] = []

    def seen(_c: object, _cursor: object, statement: str, *_more: object) -> None:
        sent.append(statement)

    sa.event.listen(sa.Engine, "before_cursor_execute", seen)
    try:
        for _ in range(20):  # at first it begins to listen, and looks once more
            sent.clear()
            time.sleep(1.0)
            if not sent:
                break
        assert sent == []
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", seen)
    other.insert({"x": [5]})
    thread.join(60)
    assert got == [5]
    one.close()
    other.close()


def test_a_lease_of_a_process_that_died_lapses_for_the_others(postgres: PostgresServer) -> None:
    url = postgres.schema()
    one, other = table(url), table(url)
    one.insert({"x": [7]})
    one.take(1, lease=0.3)
    one.close()
    batch = other.take(1, timeout=60)
    assert (batch["x"].tolist(), batch.info.deliveries.tolist()) == ([7], [2])
    other.close()


def test_a_lease_that_falls_due_during_takes_is_left_to_the_next_call(
    postgres: PostgresServer,
) -> None:
    """Two takes run side by side, and only one of them could end the lease."""
    url, clock = postgres.schema(), rc.ManualClock(1000.0)
    one, other = table(url, clock=clock), table(url, clock=clock)
    one.insert({"x": np.arange(4)})
    lease = one.take(1, lease=60).info.lease
    assert one.core.shared is not None
    assert other.core.shared is not None
    with one.core.shared.taking(), other.core.shared.taking():
        clock.advance(61)
        for jobs in (one, other):
            jobs.core.enter()
            assert jobs.core.storage.hidden == 1
    batch = other.take(4)
    assert batch["x"].tolist() == [0, 1, 2, 3]
    assert batch.info.deliveries.tolist() == [2, 1, 1, 1]
    with pytest.raises(rc.LeaseExpired):
        one.confirm(lease)
    one.close()
    other.close()


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_a_process_hears_of_columns_that_another_fixed(
    database: str, postgres: PostgresServer, tmp_path: Path
) -> None:
    url = postgres.schema() if database == "postgres" else f"sqlite:///{tmp_path}/t.db"
    one, other = table(url), table(url)
    keys = one.insert({"x": [1]})
    with pytest.raises(rc.SchemaError, match="unknown column 'y'"):
        other.insert({"y": [1]})
    one.add_column("score", "float32", (2,))
    more = other.insert({"x": [2], "score": np.ones((1, 2), np.float32)})
    batch = one.get(np.concatenate([keys, more]))
    assert batch.present["score"].tolist() == [False, True]
    assert batch["score"].tolist() == [[0, 0], [1, 1]]
    one.close()
    other.close()


def test_an_insert_waits_for_room_that_another_process_makes(postgres: PostgresServer) -> None:
    """Capacity and limiter hold over all processes together."""
    url = postgres.schema()
    tables = [
        rc.Table("t", capacity=4, sampler=rc.Fifo(), storage=rc.SqlStorage(url)) for _ in range(2)
    ]
    for place in range(3):
        tables[place % 2].insert({"x": [place, place]})
        assert len(tables[0]) == len(tables[1]) <= 4
    assert tables[0].take(4)["x"].tolist() == [1, 1, 2, 2]
    with pytest.raises(rc.WaitTimeout):
        tables[1].take(1, timeout=0)
    for one in tables:
        one.close()


def test_a_request_is_known_to_every_process(postgres: PostgresServer) -> None:
    url = postgres.schema()
    one, other = table(url), table(url)
    keys = one.insert({"x": [1, 2]}, request=("actor", 0))
    assert other.insert({"x": [3, 4]}, request=("actor", 0)).tolist() == keys.tolist()
    assert other.insert({"x": [3]}, request=("actor", 1)).tolist() != keys.tolist()[:1]
    assert len(one) == 3
    one.close()
    other.close()


FORKED = """
import os, sys
from sql_workers import table

jobs = table(sys.argv[1])
jobs.insert({"x": [1]})
child = os.fork()
jobs.insert({"x": [2 if child else 3]})
if not child:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
jobs.insert({"x": [4]})
assert sorted(jobs.take(4)["x"].tolist()) == [1, 2, 3, 4]
jobs.close()
"""


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_a_child_has_a_connection_of_its_own(
    database: str, postgres: PostgresServer, tmp_path: Path
) -> None:
    url = postgres.schema() if database == "postgres" else f"sqlite:///{tmp_path}/t.db"
    path = os.pathsep.join(
        [str(Path(__file__).parents[1] / "support"), os.environ.get("PYTHONPATH", "")]
    )
    subprocess.run(
        [sys.executable, "-c", FORKED, url], check=True, env={**os.environ, "PYTHONPATH": path}
    )


CONTENDING = """
import os, sys
from sql_workers import rc, table

rc.SqlStorage  # what it needs is loaded before they part
processes, turns = 8, 4
reader, writer = os.pipe()
children = []
for number in range(processes):
    child = os.fork()
    if not child:
        failed = 1
        try:
            os.close(writer)
            os.read(reader, 1)  # until all are there: then they open a new file together
            jobs = table(sys.argv[1])
            for turn in range(turns):
                jobs.insert({"x": [turns * number + turn]})
                print(jobs.take(1)["x"][0], flush=True)
            jobs.close()
            failed = 0
        except BaseException as error:
            print("failed", error, flush=True)
        finally:
            os._exit(failed)
    children.append(child)
os.close(writer)
sys.exit(any([os.waitpid(child, 0)[1] for child in children]))
"""


def test_a_locked_file_is_never_seen(tmp_path: Path) -> None:
    """Eight processes open a new file at one moment and contend; a ninth is in everybody's way."""
    path = os.pathsep.join(
        [str(Path(__file__).parents[1] / "support"), os.environ.get("PYTHONPATH", "")]
    )
    command = [sys.executable, "-c", CONTENDING, f"sqlite:///{tmp_path}/t.db"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
    ) as run:
        assert run.stdout is not None
        said = [run.stdout.readline().strip()]  # by now somebody has made the tables
        other = sqlite3.connect(tmp_path / "t.db", isolation_level=None, timeout=60)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(subprocess.TimeoutExpired):
            run.wait(1.5)  # longer than SQLite itself waits
        other.execute("COMMIT")
        other.close()
        said += run.stdout.read().split("\n")[:-1]
    assert run.returncode == 0, said
    assert sorted(map(int, said)) == list(range(32))
    with table(f"sqlite:///{tmp_path}/t.db") as jobs:
        stats = jobs.stats()
    assert (stats["size"], stats["inserts"], stats["samples"]) == (0, 32, 32)
