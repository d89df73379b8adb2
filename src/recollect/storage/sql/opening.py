"""Opening a table in a database: its row and its items table are made, or found and checked."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from recollect.errors import StorageError
from recollect.storage.base import Layout
from recollect.storage.fields import BUILT_IN
from recollect.storage.sql import tables
from recollect.storage.sql.database import Database
from recollect.storage.sql.escapes import to_text

COUNTER_BITS = 44
ORIGIN_BITS = 19  # one less than others have: so a key fits into a signed number


@dataclass
class Opened:
    """A table as it is stored."""

    number: int
    base: int  # the key of the arrival 0
    tags: dict[str, list[str]]  # the type and the column of each tag
    items: sa.Table
    columns: dict[str, Any]  # by the name of a field

    @property
    def channel(self) -> str:
        """Where processes tell each other of changes."""
        return f"recollect_{self.number}_{self.base >> COUNTER_BITS}"


def open_table(connection: sa.Connection, database: Database, layout: Layout) -> Opened:
    """Make what is missing in the database, and check what is there."""
    tables.prepare(connection, database.dialect, database.where)
    stored = tables.tables
    name = to_text(layout.name)
    query = sa.select(stored.c.id, stored.c.origin, stored.c.fields).where(stored.c.name == name)
    row = connection.execute(query).one_or_none()
    if row is None:
        connection.execute(
            sa.insert(stored).values(
                name=name,
                fields=json.dumps(tables.column_names(layout.fields)),
                origin=secrets.randbits(ORIGIN_BITS) << COUNTER_BITS,
            )
        )
        row = connection.execute(query).one()
    tags = json.loads(row.fields)
    found = {tag: kind for tag, (kind, _) in tags.items()}
    wanted = {tag: kind for tag, kind in layout.fields.items() if tag not in BUILT_IN}
    if found != wanted:
        raise StorageError(
            f"table {layout.name!r} of {database.where} was made with the tags {found}, and has "
            f"{wanted} now; make it with the same, or under another name"
        )
    items = tables.items_table(row.id, tags)
    items.create(connection, checkfirst=True)
    columns: dict[str, Any] = {
        field: items.c[tags[field][1] if field in tags else field]
        for field in layout.fields
        if field != "seq"
    }
    columns["seq"] = items.c.key - row.origin
    return Opened(row.id, row.origin, tags, items, columns)
