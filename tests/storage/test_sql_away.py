"""A database that goes away: a clear error, nothing half done, and all is well when it is back."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from postgres_server import PostgresServer

import recollect as rc
from recollect.storage.sql import database


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """A server of its own for these tests, which may stop it; they leave it running."""
    server = PostgresServer()
    yield server
    server.close()


def opened(url: str, **options: Any) -> rc.Table:
    rules: dict[str, Any] = {"capacity": 100, "sampler": rc.Fifo(), **options}
    patience = rules.pop("patience", 30.0)
    return rc.Table("t", storage=rc.SqlStorage(url, patience=patience), **rules)


def end_connections(server: PostgresServer) -> None:
    """End every connection to the server, as a restart does; tables notice with their next call."""
    server.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
        "AND backend_type = 'client backend'"
    )


def test_a_server_that_is_away_is_a_clear_error_and_a_restart_is_none(
    server: PostgresServer,
) -> None:
    url = server.schema()
    hasty, patient = opened(url, patience=0), opened(url)
    keys = hasty.insert({"x": [1, 2, 3]})
    lease = patient.take(1, lease=600).info.lease
    waited: list[Any] = []
    waiter = threading.Thread(
        target=lambda: waited.append(patient.take(1, where={"task": "late"}, timeout=120)["x"])
    )
    waiter.start()
    while not patient.core.gate.arrivals.waiters:
        time.sleep(0.01)
    server.stop()
    with pytest.raises(rc.StorageUnavailable, match="cannot be reached, and nothing of the call"):
        hasty.insert({"x": [4]})
    with pytest.raises(ConnectionError):
        len(hasty)
    started = threading.Timer(0.5, server.start)
    started.start()
    assert patient.insert({"x": [5]}, task="late").size == 1  # waits until it is back
    started.join()
    waiter.join(60)
    assert [x.tolist() for x in waited] == [[5]]
    assert hasty.take(1)["x"].tolist() == [2]
    hasty.give_back(lease)
    assert patient.take(2)["x"].tolist() == [1, 3]
    assert patient.stats()["inserts"] == 4
    assert int(keys[0]) not in patient.counts("key")
    hasty.close()
    patient.close()


def test_a_connection_that_breaks_in_the_middle_leaves_nothing_behind(
    server: PostgresServer,
) -> None:
    table = opened(server.schema(), capacity=4)
    table.insert({"x": [1, 2, 3, 4]})

    def breaks() -> None:
        with table.core.transaction():
            table.core.storage.evict(rc.Fifo(), 2, 0, False)
            end_connections(server)
            table.core.storage.count(table.core.fields.where({"task": "x"}))

    with pytest.raises(rc.StorageUnavailable):
        breaks()
    assert table.take(4)["x"].tolist() == [1, 2, 3, 4]
    stats = table.stats()
    assert (stats["removals"], stats["size"], stats["nbytes"]) == (4, 0, 0)
    table.close()


def test_a_connection_that_breaks_between_calls_is_not_noticed(server: PostgresServer) -> None:
    table = opened(server.schema())
    for turn in range(3):
        table.insert({"x": [turn]})
        end_connections(server)
    assert table.take(3)["x"].tolist() == [0, 1, 2]
    table.close()


def test_a_coroutine_hears_of_another_process_after_a_restart(server: PostgresServer) -> None:
    url = server.schema()
    one, other = opened(url), opened(url)

    async def wait() -> list[int]:
        take = asyncio.create_task(one.take_async(2, timeout=60))
        await asyncio.sleep(0.2)
        other.insert({"x": [1]})
        await asyncio.to_thread(end_connections, server)
        await asyncio.sleep(0.2)
        other.insert({"x": [2]})
        x: list[int] = (await take)["x"].tolist()
        return x

    assert asyncio.run(wait()) == [1, 2]
    one.close()
    other.close()


def test_a_closed_table_wakes_its_waiters_also_without_a_server(server: PostgresServer) -> None:
    table = opened(server.schema(), patience=0)
    raised: list[Exception] = []

    def take() -> None:
        try:
            table.take(1)
        except rc.RecollectError as error:
            raised.append(error)

    waiter = threading.Thread(target=take)
    waiter.start()
    while not table.core.gate.arrivals.waiters:
        time.sleep(0.01)
    server.stop()
    waiter.join(60)  # nobody can hear of anything any more, and the waiter is told so
    assert isinstance(raised[0], rc.StorageUnavailable)
    table.close()
    server.start()
    with pytest.raises(rc.TableClosed):
        table.count()


def test_a_sqlite_file_that_another_process_holds_is_waited_for(tmp_path: Path) -> None:
    table = opened(f"sqlite:///{tmp_path}/t.db")
    table.insert({"x": [1]})
    other = sqlite3.connect(tmp_path / "t.db", isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    freed = threading.Timer(1.5, lambda: other.execute("COMMIT"))  # longer than SQLite waits
    freed.start()
    assert table.take(1)["x"].tolist() == [1]
    freed.join()
    other.close()
    table.close()


DEADLOCK = "DO $$ BEGIN RAISE EXCEPTION 'deadlock detected' USING ERRCODE = '40P01'; END $$"


def test_a_deadlock_at_the_beginning_is_begun_again(server: PostgresServer) -> None:
    """Whoever is undone by PostgreSQL before anything has happened does not hear of it."""
    place = database.Database(server.schema())
    begun: list[int] = []

    def first(connection: sa.Connection) -> int:
        begun.append(connection.exec_driver_sql("SELECT txid_current()").scalar_one())
        if len(begun) < 3:
            connection.exec_driver_sql(DEADLOCK)
        return begun[-1]

    assert place.begin(first) == begun[2]
    assert len(set(begun)) == 3, "each time it was another transaction"
    place.commit()
    place.close()


def test_a_deadlock_in_the_middle_has_changed_nothing(server: PostgresServer) -> None:
    table = opened(server.schema())
    table.insert({"x": [1, 2]})

    def deadlocked() -> None:
        with table.core.transaction():
            table.core.storage.evict(rc.Fifo(), 1, 0, False)
            table.core.storage._database.connection.exec_driver_sql(DEADLOCK)  # type: ignore[attr-defined]

    with pytest.raises(rc.StorageError, match="nothing of the call has happened; call again"):
        deadlocked()
    assert table.take(2)["x"].tolist() == [1, 2]
    table.close()


def test_threads_share_a_table(postgres: PostgresServer) -> None:
    """What a table promises to threads holds with one connection for all of them."""
    table = opened(postgres.schema())
    taken: list[int] = []

    def work(number: int) -> None:
        for turn in range(5):
            table.insert({"x": [10 * number + turn]})
            taken.extend(table.take(1)["x"].tolist())

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(taken) == sorted(np.add.outer(10 * np.arange(6), np.arange(5)).ravel().tolist())
    table.close()
