"""Items that leave: removed for good, or hidden under a lease or for a moment; and come back."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import sqlalchemy as sa

from recollect.base.arrays import Keys
from recollect.storage.sql.books import SqlLeases
from recollect.storage.sql.statements import KEYED, MEASURED, Statements, Wanted
from recollect.storage.sql.table_row import TableState

HIDDEN = 0  # the lease of items that are hidden for a moment, within one transaction


class Departures:
    """Removes, hides and shows items, and keeps the counts of them."""

    def __init__(self, statements: Statements, leases: SqlLeases) -> None:
        self._statements = statements
        self._items = statements.items
        self._leases = leases

    @property
    def _state(self) -> TableState:
        return self._statements.transactions.state

    def forget(self, rows: Sequence[Any]) -> None:
        """Remove items whose rows are here."""
        if rows:
            numbers = self._statements.numbers([row.key for row in rows])
            self._statements.run(
                "forget",
                lambda: sa.delete(self._items).where(self._statements.condition(KEYED)),
                keys=numbers,
            )
            self._uncount(rows)

    def remove(self, keys: Keys) -> Keys:
        """Remove items by key; returns the keys of those that were there."""

        def make() -> Any:
            columns = [self._items.c[name] for name in MEASURED]
            found = self._statements.condition(KEYED)
            return sa.delete(self._items).where(found).returning(*columns)

        gone = self._statements.run("remove", make, **self._statements.named(keys)).all()
        self._uncount(gone)
        return np.array([row.key for row in gone], np.uint64)

    def _uncount(self, rows: Sequence[Any]) -> None:
        """Items have gone, or will in this transaction."""
        state = self._state
        state.items -= len(rows)
        state.nbytes -= sum(row.nbytes for row in rows)
        hidden = [row.nbytes for row in rows if row.lease is not None]
        state.hidden -= len(hidden)
        state.hidden_nbytes -= sum(hidden)

    def hide_taken(self, rows: Sequence[Any], keys: Keys) -> None:
        """Hide items that a take hands out; they carry the id of the lease to come."""
        state = self._state

        def make() -> Any:
            values = {
                "lease": sa.bindparam("as_lease", type_=sa.BigInteger()),
                "times_sampled": self._items.c.times_sampled + 1,
            }
            return sa.update(self._items).where(self._statements.condition(KEYED)).values(values)

        lease = self._leases.hiding(keys)
        self._statements.run("hide", make, as_lease=lease, **self._statements.named(keys))
        state.hidden += len(rows)
        state.hidden_nbytes += sum(row.nbytes for row in rows)

    def hide_keys(self, keys: Keys) -> Keys:
        """Hide those of the keys whose items are visible; returns which."""
        named = self._statements.named(keys)
        return self._hide("hide keys", Wanted(keyed=True), None, **named)

    def hide_up_to(self, field: str, bound: int) -> Keys:
        column = self._statements.columns[field]
        return self._hide(("hide up to", field), Wanted(), column, bound=bound)

    def _hide(self, key: Hashable, wanted: Wanted, bounded: Any, **parameters: Any) -> Keys:
        items, state = self._items, self._state

        def make() -> Any:
            condition = self._statements.condition(wanted)
            if bounded is not None:
                bound = sa.bindparam("bound", type_=sa.BigInteger())
                condition = sa.and_(condition, bounded <= bound)
            update = sa.update(items).where(condition).values(lease=HIDDEN)
            return update.returning(items.c.key, items.c.nbytes)

        hidden = self._statements.run(key, make, **parameters).all()
        state.hidden += len(hidden)
        state.hidden_nbytes += sum(row.nbytes for row in hidden)
        return np.sort(np.array([row.key for row in hidden], np.uint64))

    def show(self, keys: Keys, *, returned: bool) -> int:
        """Make hidden items visible again; returns how many."""
        items, state = self._items, self._state

        def make() -> Any:
            values: dict[str, Any] = {"lease": None}
            if returned:
                values["times_sampled"] = items.c.times_sampled - 1
                values["deliveries"] = items.c.deliveries + 1
            hidden = sa.and_(self._statements.condition(KEYED), items.c.lease.is_not(None))
            return sa.update(items).where(hidden).values(values).returning(items.c.nbytes)

        shown = self._statements.run(("show", returned), make, **self._statements.named(keys)).all()
        state.hidden -= len(shown)
        state.hidden_nbytes -= sum(row.nbytes for row in shown)
        return len(shown)
