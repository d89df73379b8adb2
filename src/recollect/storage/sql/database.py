"""One connection to a database, made when it is needed and made again when it was lost.

Threads take turns under the lock of a storage, so one connection serves them all. A transaction
that could not begin is tried again for a while, because nothing has happened yet; one that broke
in the middle has not happened either, and says so.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from recollect.errors import StorageUnavailable
from recollect.storage.sql.addresses import parsed
from recollect.storage.sql.dialects import File
from recollect.storage.sql.failures import (
    LOCKED_PATIENCE,
    is_deadlocked,
    is_locked,
    is_lost,
    may_pass,
    translated,
)

Result = TypeVar("Result")

PATIENCE = 10.0  # seconds in which a server may come back before a call gives up
_INHERITED: list[sa.Connection] = []  # kept, because closing them would end those of the parent
SHORTEST, LONGEST = 0.02, 0.5  # seconds between two attempts


class Database:
    """Where a storage keeps everything. Its caller holds the lock of the storage."""

    def __init__(self, url: Any, patience: float = PATIENCE) -> None:
        self.url, self.dialect = parsed(url)
        self.patience = patience
        self._engine = self.dialect.engine(self.url)
        self._held: list[sa.Connection] = []  # none, or one
        self._process = os.getpid()
        self._file: File | None = None  # that SQLite has open
        self._away = -math.inf  # when we last gave up on the server
        self._end = weakref.finalize(self, _close, self._held, self._process)

    @property
    def where(self) -> str:
        """The address as messages show it, without driver and password."""
        plain = self.url.set(drivername=self.url.drivername.partition("+")[0])
        plain = plain.difference_update_query(["password", "sslpassword"])
        return plain.render_as_string(hide_password=True)

    @property
    def in_memory(self) -> bool:
        return self.url.drivername == "sqlite" and self.url.database in (None, "", ":memory:")

    @property
    def connection(self) -> sa.Connection:
        """The connection, which has begun a transaction."""
        return self._held[0]

    def another(self) -> Any:
        """A driver's connection of its own, for who listens."""
        self._check_file()
        return self._engine.raw_connection()

    @property
    def driver_error(self) -> type[Exception]:
        """What the driver raises."""
        error: type[Exception] = self._engine.dialect.loaded_dbapi.Error
        return error

    def begin(self, first: Callable[[sa.Connection], Result]) -> Result:
        """Begin a transaction with its first statement; both are tried again for a while."""
        began, pause = time.monotonic(), SHORTEST
        while True:
            try:
                connection = self._connect()
                connection.begin()
                result = first(connection)
                self._away = -math.inf
                return result
            except DBAPIError as error:
                locked = is_locked(error) or is_deadlocked(error)
                self.rollback(lost=not locked)
                now = time.monotonic()
                patience = LOCKED_PATIENCE if locked else self.patience
                if not locked and now - self._away < LONGEST:  # somebody waited in vain just now
                    patience = 0.0
                if not may_pass(error) or now - began > patience:
                    if not locked:
                        self._away = now
                    raise translated(error, self.where) from error
            except BaseException:
                self.rollback()
                raise
            time.sleep(pause)
            pause = min(LONGEST, 2 * pause)

    def _connect(self) -> sa.Connection:
        if self._process != os.getpid():  # a child has its parent's connection, and must not use it
            _INHERITED.extend(self._held)
            self._held.clear()
            self._engine.dispose(close=False)
            self._process = os.getpid()
            self._end.detach()
            self._end = weakref.finalize(self, _close, self._held, self._process)
        self._check_file()
        if not self._held:
            self._held.append(self._engine.connect())
            if self._file is None:
                self._file = self.dialect.file(self._held[0])
        return self._held[0]

    def _check_file(self) -> None:
        """A file that was removed or replaced still takes what we write, and nobody reads it."""
        if self._file is not None and not self._file.is_there():
            raise StorageUnavailable(
                f"{self.where} was removed or replaced while its table was open, and nothing of "
                "the call has happened; put the file back, or make the table anew"
            )

    def commit(self) -> None:
        try:
            self.connection.commit()
        except DBAPIError as error:
            self.rollback(lost=is_lost(error))
            if is_lost(error):
                raise StorageUnavailable(
                    f"{self.where} went away during a commit, so it is not known whether the call "
                    "took effect; an insert with request= can be repeated safely"
                ) from error
            raise translated(error, self.where) from error

    def rollback(self, *, lost: bool = False) -> None:
        """Undo what was begun; a lost connection is given up, and the next call makes another."""
        if not self._held:
            return
        connection = self._held[0]
        with contextlib.suppress(Exception):
            if not lost or self.in_memory:
                connection.rollback()
        if (lost or connection.invalidated) and not self.in_memory:
            self.close()

    def close(self) -> None:
        _close(self._held, self._process)


def _close(held: list[sa.Connection], process: int) -> None:
    if held and process == os.getpid():
        connection = held.pop()
        with contextlib.suppress(Exception):
            connection.close()
    held.clear()
