"""Where SQLite and PostgreSQL differ: how many rows go in one statement, locks, a few functions."""

from __future__ import annotations

import json
import math
import os
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.pool import NullPool

from recollect.base.optional import optional
from recollect.errors import StorageError

Values = Mapping[str, list[Any]]

BUSY = 1.0  # seconds that SQLite itself waits for another process, before we look again
PAGE = 16_384  # bytes: payload is large, and a page is what SQLite checks and copies
CACHE = 64 << 20  # bytes of a database that a connection keeps: draws by weight read it whole
LOG = 32 << 20  # bytes of its write-ahead log, before it is copied into the database
OLDEST_SQLITE = (3, 35)  # RETURNING
PREFIX = 128  # characters of a text that PostgreSQL indexes: an entry has at most 2700 bytes
IDLE = 120  # seconds after which PostgreSQL gives up a transaction in which nothing happens
ALIVE = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}  # seconds, times
DEFINING = 0x5EC011EC7  # the advisory lock of PostgreSQL under which tables are defined
MASK = (1 << 64) - 1


@dataclass(frozen=True)
class File:
    """A file, to see whether it is still the same one."""

    path: str
    device: int
    number: int

    @classmethod
    def at(cls, path: str) -> File:
        found = os.stat(path)
        return cls(path, found.st_dev, found.st_ino)

    def is_there(self) -> bool:
        try:
            return File.at(self.path) == self
        except OSError:
            return False


class Dialect(ABC):
    """What both have in common."""

    shares = False  # whether rows can be locked one by one

    @abstractmethod
    def engine(self, url: sa.URL) -> sa.Engine: ...

    @abstractmethod
    def among(self, column: Any, values: Sequence[Any]) -> Any:
        """`column in values`, in a statement that reads the same for any number of them."""

    @abstractmethod
    def keyed(self, column: Any, name: str) -> Any:
        """The same for whole numbers that a parameter gives, as `numbers` makes it."""

    @abstractmethod
    def listed(self, name: str, kind: Any) -> Any:
        """A table of (place, value) to join with, of what a parameter gives."""

    @abstractmethod
    def numbers(self, values: Sequence[Any]) -> Any:
        """What a parameter of `keyed` or `listed` gets."""

    @abstractmethod
    def insert(self, connection: sa.Connection, table: sa.Table, values: Values) -> None:
        """Insert many rows, given by column."""

    @abstractmethod
    def update(
        self, connection: sa.Connection, table: sa.Table, keys: list[int], values: Values
    ) -> None:
        """Give each of many rows its own values."""

    @abstractmethod
    def unit(self, number: Any, salt: Any) -> Any:
        """A random number in (0, 1) for each row, the same whenever number and salt are."""

    @abstractmethod
    def largest(self, one: Any, other: Any) -> Any:
        """The larger of two values."""

    def equals(self, column: Any, value: Any) -> Any:
        return column == value

    def indexed(self, column: Any) -> Any:
        """A column as an index has it."""
        return column

    def descending(self, column: Any) -> Any:
        """A column in an index for an order from the largest value, absent ones last."""
        return column.desc()

    @abstractmethod
    def indexes(self, connection: sa.Connection, table: sa.Table) -> set[str]:
        """The names of a table's indexes that are there. To make one waits for all who write."""

    def now(self) -> Any:
        """The server's time, None where it is this machine's."""
        return None

    def told(self) -> Any:
        """An expression that tells a `:message` on a `:channel`, None where nobody can listen."""
        return None

    def file(self, connection: sa.Connection) -> File | None:
        """The file that a connection has open, None where there is none on this machine."""
        return None

    @abstractmethod
    def make_apart(self, connection: sa.Connection) -> None:
        """Let nobody else define tables until this transaction ends."""


class Sqlite(Dialect):
    def engine(self, url: sa.URL) -> sa.Engine:
        if sqlite3.sqlite_version_info < OLDEST_SQLITE:
            raise StorageError(
                f"SQLite {sqlite3.sqlite_version} is too old: version 3.35 or later is needed"
            )
        if url.database not in (None, "", ":memory:") and not url.query.get("uri"):
            url = url.set(database=os.path.abspath(url.database))  # wherever a process goes later
        engine = sa.create_engine(
            url,
            poolclass=NullPool,
            connect_args={"check_same_thread": False, "timeout": BUSY},
        )
        sa.event.listen(engine, "connect", self._connected)
        sa.event.listen(engine, "begin", self._begun)
        return engine

    @staticmethod
    def _connected(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # we say BEGIN ourselves
        connection.create_function("recollect_unit", 2, unit, deterministic=True)
        try:
            connection.execute("SELECT exp(0.0), ln(1.0)")
        except sqlite3.OperationalError:  # built without its functions of mathematics
            connection.create_function("exp", 1, math.exp, deterministic=True)
            connection.create_function("ln", 1, math.log, deterministic=True)
        connection.execute(f"PRAGMA page_size={PAGE}")  # of a database that is new
        connection.execute(f"PRAGMA cache_size=-{CACHE >> 10}")
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")  # the database is the journal
        connection.execute(f"PRAGMA wal_autocheckpoint={LOG // PAGE}")

    @staticmethod
    def _begun(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    def file(self, connection: sa.Connection) -> File | None:
        driver: Any = connection.connection.driver_connection
        path = driver.execute("PRAGMA database_list").fetchone()[2]
        return File.at(path) if path else None

    def among(self, column: Any, values: Sequence[Any]) -> Any:
        if any(isinstance(value, float | bool) for value in values):
            return column.in_(list(values))  # as text a float may lose its last bit
        given = sa.func.json_each(json.dumps(list(values))).table_valued("value")
        return column.in_(sa.select(given.c.value))

    def keyed(self, column: Any, name: str) -> Any:
        given = sa.func.json_each(sa.bindparam(name, type_=sa.Text())).table_valued("value")
        return column.in_(sa.select(given.c.value))

    def numbers(self, values: Sequence[Any]) -> Any:
        return json.dumps(values)

    def listed(self, name: str, kind: Any) -> Any:
        parameter = sa.bindparam(name, type_=sa.Text())
        given = sa.func.json_each(parameter).table_valued("key", "value")
        return sa.select(
            given.c.key.label("place"), sa.type_coerce(given.c.value, kind).label("value")
        ).subquery("listed")

    def insert(self, connection: sa.Connection, table: sa.Table, values: Values) -> None:
        names = ", ".join(f'"{name}"' for name in values)
        marks = ", ".join("?" * len(values))
        connection.exec_driver_sql(
            f'INSERT INTO "{table.name}" ({names}) VALUES ({marks})',
            list(zip(*values.values(), strict=True)),
        )

    def update(
        self, connection: sa.Connection, table: sa.Table, keys: list[int], values: Values
    ) -> None:
        names = ", ".join(f'"{name}" = ?' for name in values)
        connection.exec_driver_sql(
            f'UPDATE "{table.name}" SET {names} WHERE key = ?',
            list(zip(*values.values(), keys, strict=True)),
        )

    def make_apart(self, connection: sa.Connection) -> None:
        """Every transaction has the file for itself."""

    def indexes(self, connection: sa.Connection, table: sa.Table) -> set[str]:
        query = sa.text("SELECT name FROM sqlite_master WHERE type = 'index' AND tbl_name = :name")
        return set(connection.execute(query, {"name": table.name}).scalars())

    def unit(self, number: Any, salt: Any) -> Any:
        return sa.func.recollect_unit(number, salt, type_=sa.Double())

    def largest(self, one: Any, other: Any) -> Any:
        return sa.func.max(one, other)


def unit(number: int, salt: int) -> float:
    """A random number in (0, 1) that depends on two others: a round of splitmix64."""
    z = (number * 0x9E3779B97F4A7C15 + salt * 0xD1B54A32D192ED03) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return (((z ^ (z >> 31)) >> 11) + 0.5) / (1 << 53)


class Postgres(Dialect):
    shares = True

    def __init__(self) -> None:
        self._made: dict[tuple[str, tuple[str, ...]], Any] = {}  # of the one table that uses it

    def engine(self, url: sa.URL) -> sa.Engine:
        psycopg = optional("psycopg", "sql")

        class BinaryCursor(psycopg.Cursor):  # type: ignore[name-defined, misc]
            """Has bytes sent as bytes, where text would double them."""

            def __init__(self, *given: Any, **more: Any) -> None:
                super().__init__(*given, **more)
                self.format = psycopg.pq.Format.BINARY

        engine = sa.create_engine(
            url, poolclass=NullPool, connect_args={"cursor_factory": BinaryCursor, **ALIVE}
        )
        sa.event.listen(engine, "connect", self._connected)
        return engine

    @staticmethod
    def _connected(connection: Any, _record: Any) -> None:
        # A machine that is gone in the middle of a transaction must not hold its locks for long.
        connection.autocommit = True
        connection.execute(f"SET idle_in_transaction_session_timeout = {1000 * IDLE}")
        connection.autocommit = False

    def among(self, column: Any, values: Sequence[Any]) -> Any:
        array = sa.bindparam(None, list(values), type_=postgresql.ARRAY(column.type))
        return column == sa.any_(array)

    def keyed(self, column: Any, name: str) -> Any:
        return column == sa.any_(sa.bindparam(name, type_=postgresql.ARRAY(sa.BigInteger)))

    def numbers(self, values: Sequence[Any]) -> Any:
        return values

    def listed(self, name: str, kind: Any) -> Any:
        array = sa.bindparam(name, type_=postgresql.ARRAY(kind))
        return (
            sa.func.unnest(array)
            .table_valued(sa.column("value", kind), with_ordinality="place")
            .render_derived(name="listed")
        )

    def _given(self, table: sa.Table, names: tuple[str, ...]) -> Any:
        arrays = [
            sa.bindparam(f"of_{name}", type_=postgresql.ARRAY(table.c[name].type)) for name in names
        ]
        columns = [sa.column(name, table.c[name].type) for name in names]
        return sa.func.unnest(*arrays).table_valued(*columns).render_derived(name="given")

    def insert(self, connection: sa.Connection, table: sa.Table, values: Values) -> None:
        names = tuple(values)
        statement = self._made.get(("insert", names))
        if statement is None:
            given = self._given(table, names)
            rows = sa.select(*(given.c[name] for name in names))
            statement = sa.insert(table).from_select(names, rows)
            self._made["insert", names] = statement
        connection.execute(statement, {f"of_{name}": column for name, column in values.items()})

    def update(
        self, connection: sa.Connection, table: sa.Table, keys: list[int], values: Values
    ) -> None:
        names = tuple(values)
        statement = self._made.get(("update", names))
        if statement is None:
            given = self._given(table, ("key", *names))
            changed = {name: given.c[name] for name in names}
            statement = sa.update(table).values(changed).where(table.c.key == given.c.key)
            self._made["update", names] = statement
        columns = {f"of_{name}": column for name, column in values.items()}
        connection.execute(statement, {"of_key": keys, **columns})

    def indexes(self, connection: sa.Connection, table: sa.Table) -> set[str]:
        query = sa.text(
            "SELECT indexname FROM pg_indexes "
            "WHERE schemaname = current_schema() AND tablename = :name"
        )
        return set(connection.execute(query, {"name": table.name}).scalars())

    def unit(self, number: Any, salt: Any) -> Any:
        bits = sa.func.hashint8extended(number, salt, type_=sa.BigInteger())
        whole: Any = sa.cast(bits.bitwise_and((1 << 53) - 1), sa.Double())
        return (whole + 0.5) / float(1 << 53)

    def largest(self, one: Any, other: Any) -> Any:
        return sa.func.greatest(one, other)

    def equals(self, column: Any, value: Any) -> Any:
        if not isinstance(value, str):
            return column == value
        return sa.and_(sa.func.left(column, PREFIX) == value[:PREFIX], column == value)

    def indexed(self, column: Any) -> Any:
        return sa.func.left(column, PREFIX) if isinstance(column.type, sa.Text) else column

    def descending(self, column: Any) -> Any:
        return column.desc().nulls_last()

    def now(self) -> Any:
        return sa.cast(sa.extract("epoch", sa.func.clock_timestamp()), sa.Double())

    def told(self) -> Any:
        channel, message = (sa.bindparam(n, type_=sa.Text()) for n in ("channel", "message"))
        return sa.func.pg_notify(channel, message)

    def make_apart(self, connection: sa.Connection) -> None:
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(DEFINING)))
