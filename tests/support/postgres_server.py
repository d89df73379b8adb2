"""A real PostgreSQL server in a temporary folder, on a unix socket only.

It refuses to run as root, so there it is started as `nobody`.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import sqlalchemy as sa

FAST = {  # nothing here must survive the machine
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "listen_addresses": "",
    "max_connections": "80",
    "shared_buffers": "64MB",
}

GUEST = "guest"  # the one user who must say a password, where a test makes this user


def program(name: str) -> str:
    """Where a program of PostgreSQL is: on the path, or where Debian puts it."""
    debian = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    found = str(debian[-1]) if debian else shutil.which(name)
    assert found is not None, f"{name} is not installed: apt-get install postgresql"
    return found


def plain_driver(url: str) -> str:
    """An address as SQLAlchemy takes it, for tests that look into a database themselves."""
    return url.replace("postgresql:", "postgresql+psycopg:")


class PostgresServer:
    """Starts and stops a server; `schema()` is an empty place for one test."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="rc-pg-", dir="/tmp"))
        self._who: dict[str, Any] = {}
        if os.geteuid() == 0:
            self._who = {"user": "nobody", "group": "nogroup", "extra_groups": []}
            shutil.chown(self.folder, "nobody", "nogroup")
        self._data = self.folder / "data"
        self._numbers = itertools.count(1)
        self._run("initdb", "-U", "recollect", "-A", "trust", "--no-sync", "-E", "UTF8")
        with (self._data / "postgresql.conf").open("a") as file:
            file.write(f"unix_socket_directories = '{self.folder}'\n")
            file.writelines(f"{name} = '{value}'\n" for name, value in FAST.items())
        access = self._data / "pg_hba.conf"
        access.write_text(f"local all {GUEST} scram-sha-256\n{access.read_text()}")
        self.start()

    def _run(self, name: str, *arguments: str) -> None:
        subprocess.run(
            [program(name), "-D", str(self._data), *arguments],
            check=True, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            timeout=60, **self._who,
        )  # fmt: skip

    def start(self) -> None:
        self._run("pg_ctl", "-w", "-s", "-l", str(self.folder / "log"), "start")

    def stop(self, mode: str = "fast") -> None:
        self._run("pg_ctl", "-w", "-s", "-m", mode, "stop")

    def execute(self, statement: str) -> None:
        """Run a statement as the one who may do everything."""
        engine = sa.create_engine(plain_driver(self.url), poolclass=sa.NullPool)
        with engine.begin() as connection:
            connection.exec_driver_sql(statement)

    @property
    def url(self) -> str:
        return f"postgresql://recollect@/postgres?host={self.folder}"

    def schema(self) -> str:
        """The address of a new and empty schema."""
        name = f"case{next(self._numbers)}"
        self.execute(f"CREATE SCHEMA {name}")
        return f"{self.url}&options=-csearch_path%3D{name}"

    def close(self) -> None:
        self.stop("immediate")
        shutil.rmtree(self.folder)
