"""The storage in a database meets every rule: SQLite in memory and in a file, PostgreSQL.

A call costs milliseconds there, so a part of all combinations is tried in each; `make soak` tries
all of them.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from postgres_server import PostgresServer

import recollect as rc
from recollect.testing import StorageConformance

SERIAL = itertools.count(1)


class SqlConformance(StorageConformance):
    lives = 4
    steps = 30
    draws = 1000
    every = 12

    def dispose(self, storage: Any) -> None:
        storage.close()


class TestSqliteInMemory(SqlConformance):
    def make_storage(self) -> rc.SqlStorage:
        return rc.SqlStorage("sqlite://")


class TestSqliteFile(SqlConformance):
    def make_storage(self) -> rc.SqlStorage:
        return rc.SqlStorage(f"sqlite:///{self.folder}/items-{next(SERIAL)}.db")


class TestPostgres(SqlConformance):
    @pytest.fixture(autouse=True)
    def _server(self, postgres: PostgresServer) -> None:
        self.server = postgres

    def make_storage(self) -> rc.SqlStorage:
        return rc.SqlStorage(self.server.schema())


@pytest.mark.soak
class TestSqliteThoroughly(TestSqliteFile):
    lives, steps, draws, every = 40, 50, 4000, 1


@pytest.mark.soak
class TestPostgresThoroughly(TestPostgres):
    lives, steps, draws, every = 40, 50, 4000, 1
