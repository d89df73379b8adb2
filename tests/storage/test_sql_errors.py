"""What can be wrong with a database: one sentence that says what, where and what to do."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
import sqlalchemy as sa
from postgres_server import GUEST, PostgresServer, plain_driver

import recollect as rc
from recollect.storage.sql import database

PASSWORD = "p@s/s:w#%d? ü"


def opened(url: str, **options: Any) -> rc.Table:
    rules: dict[str, Any] = {"capacity": 100, "sampler": rc.Fifo(), **options}
    patience = rules.pop("patience", 60.0)
    return rc.Table("t", storage=rc.SqlStorage(url, patience=patience), **rules)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is tried again."""
    monkeypatch.setattr(database.time, "sleep", lambda _: pytest.fail("tried again in vain"))


# -- addresses -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("sqlite://replay.db", "three slashes stand before a path"),
        ("sqlite:/replay.db", "this is no address"),
        ("replay.db", "this is no address"),
        ("mysql://me@here/db", "'mysql' is another database"),
        ("postgresql://me@here:port/db", "this is no address"),
        ("sqlite:///replay.db?mode=ro", r"mode= only with uri=true"),
        ("postgresql://me:p@ss@here/db", "percent-encoded"),
        ("postgresql://me:p@s/s@here/db", "percent-encoded"),
    ],
)
def test_a_wrong_address_says_what_to_write(url: str, said: str) -> None:
    with pytest.raises(rc.InvalidValue, match=f"^url: .*{said}") as raised:
        rc.SqlStorage(url)
    assert "p@s" not in str(raised.value), "a part of a password was shown"


def test_an_unknown_host_is_named() -> None:
    with pytest.raises(rc.StorageUnavailable, match=r"nowhere\.invalid.* check the host"):
        opened("postgresql://me@nowhere.invalid/db", patience=0)


def test_nothing_that_is_secret_is_shown() -> None:
    storage = rc.SqlStorage("postgresql://me@nowhere.invalid/db?password=hidden", patience=0)
    assert "hidden" not in repr(storage)
    with pytest.raises(rc.StorageUnavailable) as raised:
        rc.Table("t", capacity=1, storage=storage)
    assert "hidden" not in str(raised.value)


def test_a_class_is_no_storage() -> None:
    with pytest.raises(rc.InvalidValue, match="storage: expected one such as"):
        rc.Table("t", capacity=1, storage=rc.SqlStorage)  # type: ignore[arg-type]


def test_a_missing_driver_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ImportError, match=r"needs psycopg, .* pip install 'recollect\[sql\]'"):
        rc.SqlStorage("postgresql://me@here/db")


def test_a_missing_package_says_what_to_install() -> None:
    code = "import sys; sys.modules['sqlalchemy'] = None; import recollect as rc; rc.SqlStorage"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "needs sqlalchemy, which is not installed: pip install 'recollect[sql]'" in run.stderr


# -- files of SQLite -------------------------------------------------------------------------------
@pytest.mark.usefixtures("at_once")
def test_a_folder_that_is_not_there_is_said_at_once(tmp_path: Path) -> None:
    for name in ("no/folder/t.db", "."):
        with pytest.raises(rc.StorageUnavailable, match="check that the folder is there"):
            opened(f"sqlite:///{tmp_path}/{name}")


def test_a_file_that_may_only_be_read_is_refused(tmp_path: Path) -> None:
    with opened(f"sqlite:///{tmp_path}/t.db") as table:
        table.insert({"x": [1]})
    with opened(f"sqlite:///file:{tmp_path}/t.db?mode=ro&uri=true") as table:
        assert len(table) == 1
        with pytest.raises(rc.StorageError, match="let this process write to the file"):
            table.insert({"x": [2]})
        assert len(table) == 1


def test_a_file_that_was_removed_or_replaced_is_noticed(tmp_path: Path) -> None:
    """Else everything that comes would be written to a file that nobody can open any more."""
    path, away = tmp_path / "t.db", tmp_path / "away.db"
    table = opened(f"sqlite:///{path}")
    table.insert({"x": [1]})
    path.rename(away)
    for _ in range(2):
        with pytest.raises(rc.StorageUnavailable, match="was removed or replaced while its table"):
            table.insert({"x": [2]})
    assert not path.exists()
    path.write_bytes(b"")
    with pytest.raises(rc.StorageUnavailable, match="put the file back, or make the table anew"):
        table.insert({"x": [2]})
    away.rename(path)
    table.insert({"x": [3]})
    assert table.take(2)["x"].tolist() == [1, 3]
    table.close()


def test_who_waits_hears_that_the_file_is_gone(tmp_path: Path) -> None:
    table = opened(f"sqlite:///{tmp_path}/t.db")
    with pytest.raises(rc.WaitTimeout):
        table.take(1, timeout=0.01)
    (tmp_path / "t.db").unlink()
    with pytest.raises(rc.StorageUnavailable):
        table.take(1)
    assert not (tmp_path / "t.db").exists(), "an empty file was made in its place"
    table.close()


def test_another_working_folder_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    table = opened("sqlite:///t.db")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    table.core.storage._database.close()  # type: ignore[attr-defined]
    table.insert({"x": [1]})
    with pytest.raises(rc.WaitTimeout):
        table.take(2, timeout=0.01)
    assert not list((tmp_path / "other").iterdir())
    table.close()


def test_a_full_disk_is_said_and_leaves_the_table_as_it_was(tmp_path: Path) -> None:
    table = opened(f"sqlite:///{tmp_path}/t.db")
    table.insert({"x": np.zeros((1, 100))})
    driver = table.core.storage._database._held[0].connection.driver_connection  # type: ignore[attr-defined]
    driver.execute(f"PRAGMA max_page_count={2 + driver.execute('PRAGMA page_count').fetchone()[0]}")
    with pytest.raises(rc.StorageError, match="make room, and call again"):
        table.insert({"x": np.zeros((90, 1000))[:, :100]}, rows_per_item=1)
    assert (len(table), table.stats()["inserts"]) == (1, 1)
    driver.execute("PRAGMA max_page_count=1000000")
    table.insert({"x": np.zeros((90, 100))})
    assert len(table) == 91
    table.close()


def test_a_file_that_is_damaged_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    path.write_bytes(b"this is text and no database" * 100)
    with pytest.raises(rc.StorageError, match="not a database; name another file"):
        opened(f"sqlite:///{path}")


# -- servers ---------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def guest(postgres: PostgresServer) -> Iterator[str]:
    """The rest of an address behind user and password; the guest must say a password."""
    postgres.execute(f"CREATE ROLE {GUEST} LOGIN PASSWORD '{PASSWORD.replace('%', '%%')}'")
    postgres.execute(f"CREATE SCHEMA of_guest AUTHORIZATION {GUEST}")
    yield f"@/postgres?host={postgres.folder}&options=-csearch_path%3Dof_guest"
    postgres.execute(f"DROP OWNED BY {GUEST}")
    postgres.execute(f"DROP ROLE {GUEST}")


def test_a_password_may_have_any_characters(guest: str) -> None:
    url = f"postgresql://{GUEST}:{quote(PASSWORD, safe='')}{guest}"
    with opened(url) as table:
        table.insert({"x": [1]})
        assert PASSWORD not in repr(table.core.storage)
        assert table.take(1)["x"].tolist() == [1]


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(
    ("user", "said"),
    [
        (f"{GUEST}:wrong", "check the user and the password"),
        (GUEST, "check the user and the password"),
        ("unheard_of", "check the user in the address"),
    ],
)
def test_a_user_who_is_not_let_in_is_told_at_once(guest: str, user: str, said: str) -> None:
    with pytest.raises(rc.StorageUnavailable, match=f"{said}.*FATAL|{said}.*no password") as raised:
        opened(f"postgresql://{user}{guest}")
    assert "wrong" not in str(raised.value)


@pytest.mark.usefixtures("at_once")
def test_a_database_that_is_not_there_is_told_at_once(postgres: PostgresServer) -> None:
    with pytest.raises(rc.StorageUnavailable, match=r'make the database .*"nosuch" does not exist'):
        opened(postgres.url.replace("/postgres?", "/nosuch?"))


def test_who_may_not_create_tables_is_told_so(guest: str) -> None:
    url = f"postgresql://{GUEST}:{quote(PASSWORD, safe='')}{guest}"
    with pytest.raises(rc.StorageError, match=r"permission denied .*; let this user create tables"):
        opened(url.replace("of_guest", "public"))
    with pytest.raises(rc.StorageError, match="make the schema that search_path names"):
        opened(url.replace("of_guest", "nowhere"))


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
@pytest.mark.parametrize("gone", ["recollect_items_1", "recollect_tables"])
def test_tables_that_were_dropped_are_missed(
    database: str, gone: str, postgres: PostgresServer, tmp_path: Path
) -> None:
    url = postgres.schema() if database == "postgres" else f"sqlite:///{tmp_path}/t.db"
    with opened(url) as table:
        table.insert({"x": [1]})
        engine = sa.create_engine(plain_driver(url), poolclass=sa.NullPool)
        with engine.begin() as connection:
            connection.exec_driver_sql(f"DROP TABLE {gone}")
        for _ in range(2):
            with pytest.raises(rc.StorageError, match=f"{gone}.*; its tables were removed"):
                table.take(1)
