"""What is in the database: a few tables that all share, and one with the items of each table.

recollect_meta       the version of this layout
recollect_tables     a row per `rc.Table`: its fields and columns, its counts; also its lock
recollect_leases     who holds what, until when
recollect_requests   which keys a producer's requests got
recollect_blobs      bytes that items refer to by name
recollect_items_N    the items of table N: typed columns for fields and tags, Arrow bytes
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from recollect.errors import StorageError
from recollect.rules.query import FieldType
from recollect.storage.fields import BUILT_IN
from recollect.storage.sql.dialects import Dialect

VERSION = 1  # of what is described here

Big = sa.BigInteger
KEY = Big().with_variant(sa.Integer(), "sqlite")  # INTEGER is what SQLite keeps rows by
shared = sa.MetaData()

meta = sa.Table("recollect_meta", shared, sa.Column("version", Big, nullable=False))

COUNTS = (
    "counter", "items", "hidden", "nbytes", "hidden_nbytes", "inserts", "samples", "removals",
    "taken", "sample_calls",
)  # fmt: skip
tables = sa.Table(
    "recollect_tables",
    shared,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("name", sa.Text, nullable=False, unique=True),
    sa.Column("fields", sa.Text, nullable=False),  # JSON: name -> [type, column]
    sa.Column("columns", sa.Text),  # JSON: what signature= says
    sa.Column("columns_version", Big, nullable=False, default=0),
    sa.Column("origin", Big, nullable=False),  # keys are origin + counter
    *(sa.Column(name, Big, nullable=False, default=0) for name in COUNTS),
    sa.Column("removed", sa.Text, nullable=False, default="{}"),  # JSON: reason -> count
    sa.Column("prioritized", sa.Boolean, nullable=False, default=False),
    sa.Column("next_deadline", sa.Double),
)
leases = sa.Table(
    "recollect_leases",
    shared,
    sa.Column("id", Big, primary_key=True, autoincrement=False),
    sa.Column("table_id", sa.Integer, nullable=False, index=True),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("deadline", sa.Double),  # seconds since 1970; absent: none
)
requests = sa.Table(
    "recollect_requests",
    shared,
    sa.Column("table_id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("producer", sa.Text, primary_key=True),
    sa.Column("number", sa.Text, primary_key=True),
    sa.Column("first", Big, nullable=False),
    sa.Column("count", Big, nullable=False),
    sa.Index("recollect_requests_first", "table_id", "producer", "first"),
)
blobs = sa.Table(
    "recollect_blobs",
    shared,
    sa.Column("table_id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("data", sa.LargeBinary, nullable=False),
)

TYPES: dict[FieldType, Any] = {
    "int": sa.BigInteger,
    "float": sa.Double,
    "bool": sa.Boolean,
    "str": sa.Text,
}
NEVER_ABSENT = ("key", "priority", "times_sampled", "inserted_at", "rows", "nbytes")


def column_names(fields: Mapping[str, FieldType]) -> dict[str, list[str]]:
    """The type of each field that users set, and the column it is in.

    A tag may have any name, of any length and case; a column is named after it where it can be.
    """
    named: dict[str, list[str]] = {}
    for place, (name, kind) in enumerate(fields.items()):
        if name in BUILT_IN:
            continue
        plain = re.fullmatch(r"[a-z][a-z0-9_]{0,40}", name) is not None
        named[name] = [kind, f"tag_{name}" if plain else f"tag{place}"]
    return named


def items_table(number: int, tags: Mapping[str, list[str]]) -> sa.Table:
    """The table that holds the items; `lease` is absent for an item that is visible."""
    return sa.Table(
        f"recollect_items_{number}",
        sa.MetaData(),
        sa.Column("key", KEY, primary_key=True, autoincrement=False),
        sa.Column("priority", sa.Double, nullable=False),
        sa.Column("times_sampled", Big, nullable=False),
        sa.Column("task", sa.Text),
        sa.Column("status", sa.Text),
        sa.Column("version", Big),
        sa.Column("inserted_at", sa.Double, nullable=False),
        sa.Column("rows", Big, nullable=False),
        sa.Column("nbytes", Big, nullable=False),
        sa.Column("deliveries", Big, nullable=False),
        sa.Column("lease", Big),
        *(sa.Column(column, TYPES[kind]) for kind, column in tags.values()),  # type: ignore[index]
        sa.Column("width", Big, nullable=False),  # columns that the payload has
        sa.Column("payload", sa.LargeBinary, nullable=False),
        sa.Column("shared", sa.LargeBinary),
    )


def index_on(
    dialect: Dialect, items: sa.Table, columns: list[Any], *, visible: bool = True
) -> sa.Index:
    """An index over items, over the visible ones as a rule; its name says what it is over."""
    words = " ".join(str(c.compile(dialect=dialect_of(dialect))) for c in columns)
    digest = hashlib.sha256(f"{words} {visible}".encode()).hexdigest()[:10]
    only = items.c.lease.is_(None) if visible else None
    return sa.Index(
        f"{items.name}_{digest}", *columns, sqlite_where=only, postgresql_where=only, _table=items
    )


def dialect_of(dialect: Dialect) -> Any:
    """The same for SQLAlchemy, to write an expression as text."""
    from sqlalchemy.dialects import postgresql, sqlite

    made: Any = postgresql if dialect.shares else sqlite
    return made.dialect()


def prepare(connection: sa.Connection, dialect: Dialect, where: str) -> bool:
    """Make the tables that all share, and check their version; returns whether they are new."""
    dialect.make_apart(connection)
    fresh = not sa.inspect(connection).has_table(meta.name)
    if fresh:
        shared.create_all(connection, checkfirst=True)
        connection.execute(sa.insert(meta), {"version": VERSION})
    found = connection.execute(sa.select(meta.c.version)).scalars().all()
    if found != [VERSION]:
        said = ", ".join(map(str, found)) or "none"
        hint = "use a newer Recollect" if max(found, default=0) > VERSION else "use a new database"
        raise StorageError(
            f"{where} has tables of version {said}, and this Recollect works with version "
            f"{VERSION}; {hint}"
        )
    if not fresh:  # it was not there from the beginning; who does not know it does without
        blobs.create(connection, checkfirst=True)
    return fresh
