"""How databases execute our statements: in their own words, and by what they touch."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from postgres_server import PostgresServer, plain_driver

import recollect as rc

SMALL, LARGE, TAKE = 1_000, 100_000, 64
MATH = {"task": "math", "status": "done"}
ORDERS = [rc.Fifo(), rc.Lifo(), rc.StalestFirst(), rc.FreshestFirst(), rc.Largest("score")]


@contextmanager
def explained(how: str, what: str) -> Iterator[list[Any]]:
    """The plans of the statements in which a pattern is found, before they are executed."""
    plans: list[Any] = []

    def explain(c: Any, _cursor: Any, statement: str, parameters: Any, *_more: Any) -> None:
        if re.search(what, statement, re.DOTALL):
            cursor = c.connection.driver_connection.cursor()
            rows = cursor.execute(f"{how} {statement}", parameters).fetchall()
            plans.append([row[-1] for row in rows])

    sa.event.listen(sa.Engine, "before_cursor_execute", explain)
    try:
        yield plans
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", explain)


# -- PostgreSQL ------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def addresses(postgres: PostgresServer) -> dict[int, str]:
    """Tables of 1,000 groups, and of 100,000: those, and 99 copies of each with their own keys."""
    return {size: filled(postgres.schema(), size) for size in (SMALL, LARGE)}


def filled(url: str, size: int) -> str:
    with opened(url) as table:
        rng = np.random.default_rng(0)
        table.insert(
            {"x": np.arange(4 * SMALL)},
            rows_per_item=4,
            version=rng.integers(0, 50, SMALL),
            score=rng.random(SMALL),
            task=rng.choice(["math", "code"], SMALL).tolist(),
            status="done",
        )
    engine = sa.create_engine(plain_driver(url), poolclass=sa.NullPool)
    with engine.begin() as connection:
        names = sa.inspect(connection).get_columns("recollect_items_1")
        listed = ", ".join(f'"{one["name"]}"' for one in names if one["name"] != "key")
        connection.exec_driver_sql(
            f"INSERT INTO recollect_items_1 (key, {listed}) SELECT key + {SMALL} * copy, {listed} "
            f"FROM recollect_items_1, generate_series(1, {size // SMALL - 1}) AS copies (copy)"
        )
        connection.exec_driver_sql(
            f"UPDATE recollect_tables SET items = {size}, counter = {size}, inserts = {size}"
        )
    return url


def opened(url: str, by: tuple[str, ...] = (), **options: Any) -> rc.Table:
    rules: dict[str, Any] = {"capacity": 2 * LARGE, "sampler": rc.Fifo(), **options}
    storage, tags = rc.SqlStorage(url), {"score": float}
    return rc.Table("groups", partition_by=by, tags=tags, storage=storage, **rules)


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", []):
        yield from nodes(part)


def taken_by(table: rc.Table, where: Any) -> list[dict[str, Any]]:
    """The steps in which a take chose its groups, from the last to the first."""
    how = "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON)"
    with explained(how, "ORDER BY.*LIMIT.*SKIP LOCKED") as plans:
        table.give_back(table.take(TAKE, where=where, lease=60).info.lease)
    (said,) = plans[0]
    return list(nodes((json.loads(said) if isinstance(said, str) else said)[0]["Plan"]))


def is_walked(steps: list[dict[str, Any]]) -> None:
    """No sort, no scan of the table, and no look at an item that is not taken."""
    assert [step["Node Type"] for step in steps] == ["Limit", "LockRows", "Index Scan"]
    assert steps[-1]["Actual Rows"] == TAKE
    assert steps[-1].get("Rows Removed by Filter", 0) == 0


CASES = [
    pytest.param(sampler, where, id=f"{sampler}-{'all' if where is None else 'partition'}")
    for sampler in ORDERS
    for where in (None, MATH)
]


@pytest.mark.parametrize(("sampler", "where"), CASES)
def test_a_take_walks_an_index_of_a_table_that_the_database_does_not_know_yet(
    addresses: dict[int, str], sampler: rc.Selector, where: Any
) -> None:
    with opened(addresses[LARGE], tuple(where or ()), sampler=sampler) as table:
        is_walked(taken_by(table, where))


@pytest.fixture(scope="module")
def known(addresses: dict[int, str]) -> dict[int, str]:
    """The same after what a server does by itself from time to time."""
    for url in addresses.values():
        engine = sa.create_engine(plain_driver(url), poolclass=sa.NullPool)
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql("VACUUM ANALYZE recollect_items_1")
    return addresses


@pytest.mark.parametrize(("sampler", "where"), CASES)
def test_a_take_among_100000_does_what_one_among_1000_does(
    known: dict[int, str], sampler: rc.Selector, where: Any
) -> None:
    """Of 64 groups: the same steps through the same index, and at most twice the blocks."""
    blocks, indexes = {}, {}
    for size, url in known.items():
        with opened(url, tuple(where or ()), sampler=sampler) as table:
            taken_by(table, where)  # steps over what earlier tests left behind, and marks it
            steps = taken_by(table, where)
            is_walked(steps)
            blocks[size] = steps[0]["Shared Hit Blocks"] + steps[0]["Shared Read Blocks"]
            indexes[size] = steps[-1]["Index Name"]
    assert indexes[LARGE] == indexes[SMALL]
    assert blocks[LARGE] <= 2 * blocks[SMALL]


def test_expiry_finds_what_is_due_through_an_index(addresses: dict[int, str]) -> None:
    """`UPDATE ... WHERE version <= bound`, in the database, at the cost of what it hides."""
    with opened(addresses[LARGE]) as table:
        with table.core.transaction():
            assert table.core.storage.hide_up_to("version", -1).size == 0  # makes the index
        with explained("EXPLAIN", "^UPDATE recollect_items") as plans, table.core.transaction():
            assert table.core.storage.hide_up_to("version", -1).size == 0
        said = "\n".join(plans[0])
        assert "Index" in said
        assert "Seq Scan" not in said


def test_a_take_of_what_has_a_tag_looks_only_there(addresses: dict[int, str]) -> None:
    """`score > 0.999` is a condition of the database, on a column with an index."""
    where = rc.field("score") > 0.999
    with opened(addresses[LARGE], sampler=rc.Largest("score")) as table:
        (*_, last) = taken_by(table, where)
        assert last["Node Type"] in ("Index Scan", "Bitmap Index Scan")
        assert "tag_score > " in last["Index Cond"]
        assert TAKE <= last["Actual Rows"] < LARGE / 500


# -- SQLite ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("sampler", ORDERS, ids=str)
def test_a_take_from_sqlite_walks_an_index(tmp_path: Path, sampler: rc.Selector) -> None:
    for by, where in ((), None), (tuple(MATH), MATH):
        with opened(f"sqlite:///{tmp_path}/{len(by)}.db", by, sampler=sampler) as table:
            x = np.arange(5000)
            table.insert({"x": x}, version=x % 7, score=x / 5000, **MATH)
            with explained("EXPLAIN QUERY PLAN", "ORDER BY.*LIMIT") as plans:
                table.give_back(table.take(TAKE, where=where, lease=60).info.lease)
            said = "\n".join(plans[0])
            assert "TEMP B-TREE" not in said, "it sorts"
            by_key = isinstance(sampler, rc.Fifo | rc.Lifo) and not by
            assert "USING INDEX" in said or by_key, said
