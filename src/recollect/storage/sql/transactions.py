"""Transactions as the table has them: entered again and again, begun and committed once."""

from __future__ import annotations

import json
import os
import secrets
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from recollect.base.clock import SystemClock
from recollect.errors import RecollectError, StorageError
from recollect.storage.base import Sharing, Tallies
from recollect.storage.sql import table_row
from recollect.storage.sql.database import Database
from recollect.storage.sql.failures import is_lost, translated
from recollect.storage.sql.table_row import TableState


class Transactions:
    """Runs the transactions of one table. The lock is this process's, the row's is everybody's."""

    def __init__(
        self, database: Database, number: int, channel: str, refresh: Callable[[TableState], None]
    ) -> None:
        self.database = database
        self.number = number
        self.lock = threading.RLock()
        self.sharing: Sharing | None = None
        self.state = TableState()
        self.alone = True
        self.whole = _Turn(self, alone=True)
        self.taking = _Turn(self, alone=False)
        self.undone: list[Callable[[], None]] = []  # what to forget if it comes to nothing
        self.name = secrets.token_hex(6)  # of this process, in what it tells others
        self.channel = channel  # on which they are told
        self.offset = 0.0  # of the time that all go by, to this process's own
        self._refresh = refresh
        dialect, both = database.dialect, (True, False)
        self._tells = dialect.told() is not None
        self._reading = {alone: table_row.reading(dialect, alone=alone) for alone in both}
        self._writing = {
            (alone, telling): table_row.writing(dialect, alone=alone, telling=telling)
            for alone in both
            for telling in ((True, False) if self._tells else (False,))
        }
        self._before = TableState()
        self._counted = Tallies()
        self._depth = 0

    @property
    def connection(self) -> sa.Connection:
        return self.database.connection

    def enter(self, alone: bool) -> None:
        self.lock.acquire()
        if self._depth == 0:
            try:
                self._begin(alone)
            except BaseException:
                self.lock.release()
                raise
        self._depth += 1

    def _begin(self, alone: bool) -> None:
        self.alone = alone or not self.database.dialect.shares
        query = self._reading[self.alone]
        self.state = self.database.begin(
            lambda connection: table_row.read(connection, query, self.number)
        )
        if not self.alone and self._is_due():
            self.database.rollback()
            self._begin(True)
            return
        self._before = self.state.copy()
        self.undone.clear()
        try:
            self._refresh(self.state)
            if self.sharing is not None:
                self.offset = self.now() - self.sharing.clock.monotonic()
                self.sharing.load(self.state.tallies())
                self._counted = self.sharing.tallies()
        except DBAPIError as error:
            self.database.rollback(lost=is_lost(error))
            raise translated(error, self.database.where) from error
        except BaseException:
            self.database.rollback()
            raise

    def _is_due(self) -> bool:
        """Whether a lease lapses: what it brings back is no business of those who only take."""
        deadline = self.state.next_deadline
        return deadline is not None and deadline <= self.now()

    def now(self) -> float:
        """Seconds since 1970, by the clock that all who share the database go by."""
        assert self.sharing is not None
        clock = self.sharing.clock
        if self.state.server_time is not None and isinstance(clock, SystemClock):
            return self.state.server_time  # machines disagree, the server does not
        return clock.time()

    def exit(self, error: BaseException | None) -> None:
        self._depth -= 1
        try:
            if self._depth == 0:
                self._end(error)
        finally:
            self.lock.release()

    def _end(self, error: BaseException | None) -> None:
        """Commit, unless it failed. Errors of ours are raised before anything has changed."""
        harmless = isinstance(error, RecollectError) and not isinstance(error, StorageError)
        if error is None or harmless:
            try:
                self._flush()
                self.database.commit()
            except BaseException as failed:
                self._drop(failed)
                raise
            if self.sharing is not None:
                self.sharing.committed()
        else:
            self._drop(error)

    def _drop(self, error: BaseException) -> None:
        """It came to nothing. What the database raised is said in our own words."""
        lost = not isinstance(error, Exception)  # interrupted, who knows where
        if isinstance(error, DBAPIError):
            lost = is_lost(error)
        self.database.rollback(lost=lost)
        for forget in self.undone:
            forget()
        if self.sharing is not None:
            self.sharing.dropped()
        if isinstance(error, DBAPIError):
            raise translated(error, self.database.where) from error

    def _flush(self) -> None:
        if self.sharing is None:
            return
        tallies, before = self.sharing.tallies(), self._counted
        self.state.count(tallies)
        arrivals = tallies.arrivals - before.arrivals
        departures = tallies.departures - before.departures
        alarms = tallies.alarms != before.alarms
        telling = self._tells and bool(arrivals or departures or alarms)
        if telling or self.state != self._before:
            message = {}
            if telling:
                text = json.dumps([self.name, os.getpid(), arrivals, departures, alarms])
                message = {"channel": self.channel, "message": text}
            statement = self._writing[self.alone, telling]
            table_row.write(
                self.connection, statement, self.number, self._before, self.state, message
            )


class _Turn(AbstractContextManager[Any]):
    """What `with storage.transaction():` enters."""

    def __init__(self, transactions: Transactions, *, alone: bool) -> None:
        self._transactions = transactions
        self._alone = alone

    def __enter__(self) -> None:
        self._transactions.enter(self._alone)

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._transactions.exit(error)
