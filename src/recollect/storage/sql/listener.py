"""How a process hears of what others did, while somebody in it waits.

PostgreSQL tells: a thread sleeps on a connection that LISTENs. SQLite cannot, so a thread looks at
its `data_version` a few times a second: the one poll there is, and only while somebody waits.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from recollect.storage.sql.database import LONGEST, SHORTEST, Database

Changed = Callable[[int, int, bool], None]

LOOK = 0.02  # seconds between two looks at SQLite's data_version
LINGER = 1.0  # seconds that it goes on to look after the last one who waited
READY = 10.0  # seconds that a waiter lets the listener have until it listens


class Listener(ABC):
    """A thread that calls `changed(arrivals, departures, everybody)` for changes of others.

    It refers to its owner weakly, and ends with it.
    """

    def __init__(self, database: Database, changed: weakref.WeakMethod[Changed]) -> None:
        self._database = database
        self._changed = changed
        self._ready = threading.Event()
        self._closed = threading.Event()
        self._reader, self._writer = os.pipe()
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._run, name="recollect-listen", daemon=True)
        self._end = weakref.finalize(self, _end, self._writer)
        self._thread.start()

    def wait(self) -> None:
        """Return when it listens; what happens from now on is heard."""
        self._ready.wait(READY)

    @property
    def alive(self) -> bool:
        """Whether it serves this process: a child has none of its parent's threads."""
        return self._process == os.getpid() and self._thread.is_alive()

    def close(self) -> None:
        self._closed.set()
        self._end()
        if self._thread is not threading.current_thread():
            self._thread.join(READY)

    def _run(self) -> None:
        pause = SHORTEST
        try:
            while not self._closed.is_set():
                with contextlib.suppress(SQLAlchemyError, OSError, self._database.driver_error):
                    connection = self._database.another()
                    try:
                        if not self.listen(connection.driver_connection):
                            return
                        pause = SHORTEST
                    finally:
                        connection.close()
                if self._closed.is_set() or not self._tell(0, 0, True):
                    return
                self._closed.wait(pause)  # the server is away: those who wait were told
                pause = min(LONGEST, 2 * pause)
        finally:
            self._ready.set()
            os.close(self._reader)

    @abstractmethod
    def listen(self, connection: Any) -> bool:
        """Tell of changes until the connection is lost (True), or for good."""

    def _tell(self, arrivals: int, departures: int, everybody: bool) -> bool:
        """Tell the owner, and return whether it is still there."""
        changed = self._changed()
        if changed is None:
            return False
        changed(arrivals, departures, everybody)
        return True

    def _sleep(self, other: int | None, seconds: float | None) -> bool:
        """Sleep until something can be read; returns whether to go on."""
        readers = [self._reader] if other is None else [self._reader, other]
        found = select.select(readers, [], [], seconds)[0]
        return self._reader not in found


def _end(writer: int) -> None:
    with contextlib.suppress(OSError):
        os.write(writer, b"\n")  # a child may have the pipe too, and then closing is not seen
    os.close(writer)


class PostgresListener(Listener):
    def __init__(
        self, database: Database, changed: weakref.WeakMethod[Changed], channel: str, name: str
    ) -> None:
        self._channel, self._name = channel, name
        super().__init__(database, changed)

    def listen(self, connection: Any) -> bool:
        connection.autocommit = True
        connection.execute(f'LISTEN "{self._channel}"')
        self._ready.set()
        if not self._tell(0, 0, True):  # what happened while nobody listened
            return False
        while self._sleep(connection.fileno(), None):
            for notice in connection.notifies(timeout=0):
                name, process, arrivals, departures, everybody = json.loads(notice.payload)
                mine = name == self._name and process == os.getpid()
                if not mine and not self._tell(arrivals, departures, everybody):
                    return False
        return False


class SqliteListener(Listener):
    """Ends a while after the last one who waited; `waiting` says whether somebody does."""

    def __init__(
        self,
        database: Database,
        changed: weakref.WeakMethod[Changed],
        waiting: weakref.WeakMethod[Callable[[], bool]],
    ) -> None:
        self._waiting = waiting
        self._asked = time.monotonic()
        super().__init__(database, changed)

    def wait(self) -> None:
        self._asked = time.monotonic()
        super().wait()

    def listen(self, connection: Any) -> bool:
        seen = self._version(connection)
        self._ready.set()
        while self._sleep(None, LOOK):
            version = self._version(connection)
            if version != seen:
                seen = version
                if not self._tell(0, 0, True):
                    return False
            waiting = self._waiting()
            if waiting is None or waiting():
                self._asked = time.monotonic()
            elif time.monotonic() - self._asked > LINGER:
                return False
        return False

    @staticmethod
    def _version(connection: Any) -> int:
        return int(connection.execute("PRAGMA data_version").fetchone()[0])
