"""The row of a table: its lock between processes, and all that is counted.

Every transaction begins by reading the row. One that has the table for itself locks it FOR
UPDATE; those that only take in an order lock it FOR KEY SHARE, and run side by side. Both end by
adding to it what has changed, in one statement, which in PostgreSQL also tells who listens. Once in
many thousand times PostgreSQL finds a deadlock between the two locks (`failures.is_deadlocked`);
nothing has happened by then, and the one that it undid begins again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

import sqlalchemy as sa

from recollect.errors import StorageError
from recollect.storage.base import Tallies
from recollect.storage.sql.dialects import Dialect
from recollect.storage.sql.tables import COUNTS, tables


@dataclass
class TableState:
    """A table's row, as this transaction sees and changes it."""

    columns_version: int = 0
    counter: int = 0
    items: int = 0
    hidden: int = 0
    nbytes: int = 0
    hidden_nbytes: int = 0
    inserts: int = 0
    samples: int = 0
    removals: int = 0
    taken: int = 0
    sample_calls: int = 0
    removed: dict[str, int] = field(default_factory=dict)  # 'taken' is counted by itself
    prioritized: bool = False  # whether any item ever had another priority than 1
    next_deadline: float | None = None  # nothing lapses before; a lower bound
    server_time: float | None = None

    def copy(self) -> TableState:
        return replace(self, removed=dict(self.removed))

    def tallies(self) -> Tallies:
        removed = dict(self.removed)
        if self.taken:
            removed["taken"] = self.taken
        return Tallies(self.inserts, self.samples, self.removals, self.sample_calls, removed)

    def count(self, tallies: Tallies) -> None:
        """Take over what the table counted."""
        self.inserts, self.samples = tallies.inserts, tallies.samples
        self.removals, self.sample_calls = tallies.removals, tallies.sample_calls
        self.removed = {why: n for why, n in tallies.removed.items() if why != "taken"}
        self.taken = tallies.removed.get("taken", 0)


_READ = (
    "columns_version", *COUNTS, "removed", "prioritized", "next_deadline",
)  # fmt: skip


def reading(dialect: Dialect, *, alone: bool) -> Any:
    """The query that locks the row of the table `:number` and reads it; made once."""
    query = sa.select(*(tables.c[name] for name in _READ))
    query = query.where(tables.c.id == sa.bindparam("number"))
    now = dialect.now()
    if now is not None:
        query = query.add_columns(now.label("server_time"))
    # FOR KEY SHARE lets others update the row at their end, and only keeps FOR UPDATE waiting.
    return query.with_for_update() if alone else query.with_for_update(read=True, key_share=True)


def read(connection: sa.Connection, query: Any, number: int) -> TableState:
    row = connection.execute(query, {"number": number}).mappings().one_or_none()
    if row is None:
        raise StorageError("the table was removed from its database; make it anew")
    return TableState(**{**row, "removed": json.loads(row["removed"])})


def writing(dialect: Dialect, *, alone: bool, telling: bool) -> Any:
    """The statement that adds to the row of the table `:number`; made once."""
    values: dict[str, Any] = {
        name: tables.c[name] + sa.bindparam(f"more_{name}", type_=sa.BigInteger())
        for name in COUNTS
    }
    deadline: Any = sa.bindparam("deadline", type_=sa.Double())
    values["next_deadline"] = deadline
    if alone:  # what cannot be added up
        values["removed"] = sa.bindparam("why_removed", type_=sa.Text())
        values["prioritized"] = sa.bindparam("by_priority", type_=sa.Boolean())
    else:  # others may have set an earlier one; LEAST leaves out what is absent
        values["next_deadline"] = sa.func.least(tables.c.next_deadline, deadline)
    statement = sa.update(tables).where(tables.c.id == sa.bindparam("number")).values(values)
    return statement.returning(dialect.told()) if telling else statement


def write(
    connection: sa.Connection,
    statement: Any,
    number: int,
    before: TableState,
    after: TableState,
    message: dict[str, str],
) -> None:
    """Add what has changed to the row, and tell who listens."""
    more = {f"more_{name}": getattr(after, name) - getattr(before, name) for name in COUNTS}
    connection.execute(
        statement,
        {
            "number": number,
            "deadline": after.next_deadline,
            "why_removed": json.dumps(after.removed),
            "by_priority": after.prioritized,
            **more,
            **message,
        },
    )
