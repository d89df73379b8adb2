"""SQL storages beyond what every storage must do: a database is kept, shared, and checked."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import sqlalchemy as sa
from postgres_server import plain_driver

import recollect as rc
from recollect.storage.sql import dialects, tables
from recollect.storage.sql.escapes import from_text, to_text

HOSTILE = [
    "'; DROP TABLE recollect_tables; --",
    '"; DELETE FROM recollect_items_1; --',
    "' OR '1'='1",
    "%s %(x)s :key ? $1",
    "null\x00byte",
    "half a pair \ud800",
    "\uf8ff0000",
    "\\x27",
    "ünïcödé 🦊",
    "x" * 5000,
    "",
]


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres").schema())
    return f"sqlite:///{tmp_path}/t.db"


def opened(url: str, name: str = "t", **options: Any) -> rc.Table:
    rules: dict[str, Any] = {"capacity": 1000, "sampler": rc.Fifo(), **options}
    return rc.Table(name, storage=rc.SqlStorage(url), **rules)


@pytest.fixture
def statements() -> Iterator[list[str]]:
    """Every statement that is sent to a database meanwhile, as often as it is sent."""
    sent: list[str] = []

    def seen(_c: Any, _cursor: Any, statement: str, _p: Any, _context: Any, _many: bool) -> None:
        sent.append(statement)

    sa.event.listen(sa.Engine, "before_cursor_execute", seen)
    yield sent
    sa.event.remove(sa.Engine, "before_cursor_execute", seen)


# -- a database is kept ---------------------------------------------------------------------------
def test_a_table_is_there_again_when_it_is_opened_again(url: str) -> None:
    with opened(url, tags={"score": float}) as table:
        keys = table.insert(
            {"x": [1, 2, 3], "s": ["a", "b", "c"]},
            shared={"prompt": [b"p", b"q", b"r"]},
            task="math",
            score=[0.5, None, 1.5],
            request=("actor", 7),
        )
        table.update(keys[:1], priority=4.0)
        lease = table.take(1, lease=3600).info.lease
    with opened(url, tags={"score": float}) as table:
        assert len(table) == 3
        batch = table.get(keys)
        assert batch["s"].to_list() == ["a", "b", "c"]
        assert batch.shared["prompt"].to_list() == [b"p", b"q", b"r"]
        assert batch.info.priority.tolist() == [4.0, 1.0, 1.0]
        assert batch.info.score.tolist()[::2] == [0.5, 1.5]
        assert table.take(1)["x"].tolist() == [2]
        table.give_back(lease)
        assert table.take(1).info.deliveries.tolist() == [2]
        again = {"x": [0], "s": ["z"]}
        assert table.insert(again, shared={"prompt": [b""]}, request=("actor", 7)).tolist() == (
            keys.tolist()
        )
        more = table.insert(again, shared={"prompt": [b""]})
        assert int(more[0]) == int(keys[-1]) + 1
        stats = table.stats()
        assert (stats["inserts"], stats["samples"], stats["removals"]) == (4, 2, 2)
        assert stats["removed"] == {"taken": 2}


def test_tables_of_other_names_are_other_tables(url: str) -> None:
    with opened(url, "one") as one, opened(url, "two; --") as two:
        one.insert({"x": [1]})
        two.insert({"y": [1.5, 2.5]})
        assert (len(one), len(two)) == (1, 2)
        assert set(one.counts("key")).isdisjoint(two.counts("key"))


def test_other_tags_than_stored_are_refused(url: str) -> None:
    opened(url, tags={"score": float}).close()
    with pytest.raises(rc.StorageError, match=r"made with the tags \{'score': 'float'\}"):
        opened(url, tags={"score": int})


def test_a_signature_must_be_what_is_stored(url: str) -> None:
    columns = {"x": rc.Column("int64"), "p": rc.Column("str", shared=True)}
    with opened(url, signature=columns) as table:
        table.add_column("more", "float32")
    opened(url, signature=columns).close()
    with pytest.raises(rc.SchemaError, match="signature= says otherwise"):
        opened(url, signature={"x": rc.Column("float32")})


@pytest.mark.parametrize("name", ["Score", "a" * 200, "größe", "select", "key_", "_x1"[1:]])
def test_a_tag_may_have_any_name(url: str, name: str) -> None:
    with opened(url, tags={name: int, "score": float, name + "2": str}) as table:
        table.insert({"x": [1, 2]}, **{name: [3, 4], name + "2": ["a", "b"]})
        assert table.take(1, where=rc.field(name) == 4).info.keys.size == 1
        assert table.counts(name + "2") == {"a": 1}


def test_another_version_of_the_tables_is_refused(url: str) -> None:
    opened(url).close()
    engine = sa.create_engine(plain_driver(url), poolclass=sa.NullPool)
    with engine.begin() as connection:
        connection.execute(sa.update(tables.meta).values(version=tables.VERSION + 1))
    with pytest.raises(rc.StorageError, match="version 2, and this Recollect works with version 1"):
        opened(url)


def test_a_configuration_names_its_database(url: str) -> None:
    config = {"name": "t", "capacity": 9, "storage": {"type": "sql", "url": url, "patience": 1.0}}
    with rc.Table.from_config(config) as table:
        table.insert({"x": [1]})
    with rc.Table.from_config(config) as table:
        assert len(table) == 1


# -- what is in it --------------------------------------------------------------------------------
def test_fields_and_tags_are_typed_columns_with_an_index_each(url: str) -> None:
    tags = {"score": float, "level": int, "hard": bool, "kind": str}
    with opened(url, tags=tags) as table:
        table.insert(
            {"x": [1]}, task="t", status="s", version=1, score=0.5, level=2, hard=True, kind="k"
        )
    look = sa.inspect(sa.create_engine(plain_driver(url), poolclass=sa.NullPool))
    found = {column["name"]: column["type"] for column in look.get_columns("recollect_items_1")}
    expected = {
        "task": sa.Text, "status": sa.Text, "version": sa.Integer, "priority": sa.Float,
        "tag_score": sa.Float, "tag_level": sa.Integer, "tag_hard": sa.Boolean, "tag_kind": sa.Text,
        "payload": sa.LargeBinary,
    }  # fmt: skip
    for name, kind in expected.items():
        assert isinstance(found[name], kind), name
    indexes = [str(one) for one in look.get_indexes("recollect_items_1")]
    for name in ("task", "status", "version", *(f"tag_{tag}" for tag in tags)):
        assert any(name in one for one in indexes), name


def test_payload_is_arrow(tmp_path: Path) -> None:
    """What somebody reads who has Arrow and a database, and no Recollect."""
    with opened(f"sqlite:///{tmp_path}/t.db") as table:
        table.insert({"x": [1, 2, 3], "text": ["a", "b", "c"]}, rows_per_item=3)
    file = sqlite3.connect(tmp_path / "t.db")
    (payload,) = file.execute("SELECT payload FROM recollect_items_1").fetchone()
    file.close()
    schema = pa.schema([("x", pa.int64()), ("text", pa.large_utf8())])
    rows = pa.ipc.read_record_batch(pa.py_buffer(payload), schema).to_pydict()
    assert rows == {"x": [1, 2, 3], "text": ["a", "b", "c"]}


def test_a_query_becomes_a_where_with_bound_values(url: str, statements: list[str]) -> None:
    with opened(url, tags={"score": float}) as table:
        table.insert({"x": [1, 2]}, score=[0.5, 0.9], task="'; DROP TABLE recollect_tables; --")
        statements.clear()
        assert table.take(1, where=rc.parse("score > 0.8 and task != 'x'"))["x"].tolist() == [2]
        chosen = [one for one in statements if "ORDER BY" in one]
        assert len(chosen) == 1
        assert "tag_score >" in chosen[0]
        assert "0.8" not in chosen[0]
        assert ("SKIP LOCKED" in chosen[0]) == url.startswith("postgresql")


@pytest.mark.parametrize(
    "text",
    ["task = 'a'; DROP TABLE recollect_tables", "task = 'a' -- ", "1 = 1 or task = 'a'", "a' or '"],
)
def test_a_text_that_is_no_query_is_refused(text: str) -> None:
    with pytest.raises(rc.QueryError):
        opened("sqlite://").count(rc.parse(text))


def test_columns_of_any_name_are_data(url: str) -> None:
    """Names of columns are in the payload, and in a text beside it."""
    names = [text for text in HOSTILE if text and "." not in text and "\ud800" not in text]
    with opened(url) as table:
        table.insert({name: [place] for place, name in enumerate(names)})
    with opened(url) as table:
        batch = table.take(1)
        assert [batch[name].tolist() for name in names] == [[p] for p in range(len(names))]


def test_sqlite_writes_ahead(tmp_path: Path) -> None:
    with opened(f"sqlite:///{tmp_path}/t.db"):
        file = sqlite3.connect(tmp_path / "t.db")
        assert file.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        file.close()


# -- what is wrong -------------------------------------------------------------------------------
def test_a_journal_is_refused() -> None:
    with pytest.raises(rc.InvalidValue, match="the database is its journal"):
        rc.Table("t", capacity=1, storage=rc.SqlStorage("sqlite://"), journal="here")


def test_one_storage_serves_one_table() -> None:
    storage = rc.SqlStorage("sqlite://")
    rc.Table("a", capacity=1, storage=storage)
    with pytest.raises(rc.InvalidValue, match="belongs to table 'a'"):
        rc.Table("b", capacity=1, storage=storage)


@pytest.mark.parametrize("wrong", [3, None, "", "nonsense", "mysql://x/y", "sqlite"])
def test_a_wrong_address_says_what_is_expected(wrong: Any) -> None:
    with pytest.raises(rc.InvalidValue, match="url: expected"):
        rc.SqlStorage(wrong)


def test_a_password_is_not_shown(tmp_path: Path) -> None:
    storage = rc.SqlStorage(f"postgresql://me:secret@/db?host={tmp_path}", patience=0)
    assert "secret" not in repr(storage)
    with pytest.raises(rc.StorageUnavailable) as raised:
        rc.Table("t", capacity=1, storage=storage)
    assert "secret" not in str(raised.value)


# -- nothing in a text is SQL ----------------------------------------------------------------------
@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: repr(text[:20]))
def test_whatever_a_text_says_it_is_data(url: str, text: str) -> None:
    table = opened(
        url, text or "empty", tags={"note": str}, partition_by=("task",), sampler=rc.StalestFirst()
    )
    keys = table.insert({"x": [1, 2, 3]}, task=[text, "other", None], note=[None, text, "n"])
    mine, noted = rc.field("task") == text, rc.field("note") == text
    assert table.get(keys).info.task.tolist() == [text, "other", None]
    assert table.count(mine) == table.count(noted) == 1
    assert table.count(~mine) == 2
    assert table.count(rc.field("task").isin([text, "other"])) == 2
    assert table.count(rc.parse(str(mine))) == 1
    assert table.counts("task") == {text: 1, "other": 1, None: 1}
    table.update(keys[2:], status=text)
    assert table.count({"status": text}) == 1
    lease = table.take(1, where=mine, lease=60, owner=text).info.lease
    assert lease.owner == text
    assert table.release(text) == 1
    table.insert({"x": [4]}, request=(text, 1))
    assert table.insert({"x": [5]}, request=(text, 1)).size == 1
    assert table.take(1, where=mine)["x"].tolist() == [1]
    assert table.delete(where=noted) == 1
    assert len(table) == 2
    table.close()


def test_texts_that_a_column_cannot_hold_come_back() -> None:
    for text in HOSTILE:
        stored = to_text(text)
        assert "\x00" not in stored
        assert stored.encode().decode() == stored
        assert from_text(stored) == text
    assert len({to_text(text) for text in HOSTILE}) == len(HOSTILE)


# -- cost ------------------------------------------------------------------------------------------
def test_statements_do_not_grow_with_the_batch(url: str, statements: list[str]) -> None:
    table = opened(url, tags={"score": float}, capacity=300)

    def all_verbs(n: int) -> int:
        before = len(statements)
        keys = table.insert({"x": np.arange(n)}, priority=np.arange(n) + 1.0, score=np.arange(n))
        table.update(keys, priority=np.arange(n) + 2.0, score=np.arange(n) / 2)
        table.sample(n, replace=False)
        table.give_back(table.take(n, lease=60).info.lease)
        table.confirm(table.take(n, lease=60).info.lease)
        keys = table.insert({"x": np.arange(n)})
        table.delete(keys)
        table.insert({"x": np.arange(n)}, rows_per_item=n)
        table.take(1)
        return len(statements) - before

    all_verbs(2)  # makes the indexes
    assert all_verbs(2) == all_verbs(200)
    table.close()


def test_eviction_of_many_is_a_few_statements(url: str, statements: list[str]) -> None:
    table = opened(url, capacity=200, capacity_bytes=1600)
    table.insert({"x": np.arange(200)})
    table.insert({"x": np.arange(2)})
    before = len(statements)
    table.insert({"x": np.arange(150)})
    assert len(statements) - before < 12
    assert len(table) == 200
    table.close()


# -- details ---------------------------------------------------------------------------------------
def test_a_follower_is_told_after_the_commit(tmp_path: Path) -> None:
    table = opened(f"sqlite:///{tmp_path}/t.db")
    seen: list[int] = []

    class Follower:
        def follow(self, effect: rc.Effect) -> None:
            with sqlite3.connect(tmp_path / "t.db") as other:
                seen.append(other.execute("SELECT count(*) FROM recollect_items_1").fetchone()[0])
            other.close()
            if len(seen) == 2:
                raise ZeroDivisionError

        def settle(self, number: int) -> None:
            pass

    table.follow(Follower())
    table.insert({"x": [1, 2]})
    with pytest.raises(ZeroDivisionError):
        table.insert({"x": [3]})
    assert seen == [2, 3]
    assert len(table) == 3
    table.close()


def test_what_breaks_in_the_middle_has_not_happened(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = opened(url, capacity=2)
    keys = table.insert({"x": [1, 2]})

    def fails(*_given: Any) -> None:
        raise MemoryError

    kind = dialects.Sqlite if url.startswith("sqlite") else dialects.Postgres
    with monkeypatch.context() as patched:
        patched.setattr(kind, "insert", fails)
        with pytest.raises(MemoryError):
            table.insert({"x": [3]})
    assert table.get(keys)["x"].tolist() == [1, 2]
    assert table.stats()["removals"] == 0
    assert table.insert({"x": [3]}).tolist() == [int(keys[-1]) + 1]
    assert table.take(2)["x"].tolist() == [2, 3]
    table.close()


def test_a_call_that_is_interrupted_has_not_happened(monkeypatch: pytest.MonkeyPatch) -> None:
    table = opened("sqlite://", capacity=2)
    table.insert({"x": [1, 2]})

    def interrupt(*_given: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(dialects.Sqlite, "insert", interrupt)
        with pytest.raises(KeyboardInterrupt):
            table.insert({"x": [3]})
    assert table.take(2)["x"].tolist() == [1, 2]


def test_a_table_that_was_dropped_says_so(url: str) -> None:
    with opened(url) as table:
        table.insert({"x": [1]})
        engine = sa.create_engine(plain_driver(url), poolclass=sa.NullPool)
        with engine.begin() as connection:
            connection.execute(sa.delete(tables.tables))
        with pytest.raises(rc.StorageError, match="removed from its database"):
            table.count()


def test_columns_that_a_failed_insert_fixed_are_not_fixed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = opened("sqlite://")
    with monkeypatch.context() as patched:
        patched.setattr(dialects.Sqlite, "insert", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            table.insert({"x": [1]})
    assert table.columns == {}
    table.insert({"y": [1.5]})
    assert list(table.columns) == ["y"]


def test_a_copy_of_the_table_is_not_read_into_python(url: str, statements: list[str]) -> None:
    """A weighted draw asks for as many rows as it returns."""
    table = opened(url, sampler=rc.Prioritized(alpha=1.0, half_life=10.0), seed=0)
    rng = np.random.default_rng(0)
    table.insert({"x": np.arange(900)}, priority=rng.random(900), version=rng.integers(9, size=900))
    fetched: list[int] = []

    def count(_c: Any, cursor: Any, *_more: Any) -> None:
        fetched.append(cursor.rowcount)

    sa.event.listen(sa.Engine, "after_cursor_execute", count)
    try:
        for replace in (True, False):
            table.sample(8, replace=replace)
    finally:
        sa.event.remove(sa.Engine, "after_cursor_execute", count)
    assert max(fetched) <= 8
    table.close()
