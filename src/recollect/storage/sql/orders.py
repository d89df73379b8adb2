"""Orders as ORDER BY, and the indexes that make LIMIT cost what it returns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from recollect.rules.selectors import Ordered, Proportional, Selector, parts_of
from recollect.storage.sql.dialects import Dialect
from recollect.storage.sql.opening import Opened
from recollect.storage.sql.tables import NEVER_ABSENT, index_on
from recollect.storage.sql.transactions import Transactions


def order_by(selector: Ordered, columns: Mapping[str, Any], *, staying: bool) -> list[Any]:
    """ORDER BY of an order: absent values last, ties by arrival.

    Where items stay, those that were sampled less often come first.
    """
    first = [columns["times_sampled"]] if staying else []
    if selector.by in ("seq", "key"):
        key = columns["key"]
        return [*first, key.desc() if selector.descending else key]
    column = columns[selector.by]
    term = column.desc() if selector.descending else column.asc()
    if selector.by not in NEVER_ABSENT:
        term = term.nulls_last()
    if staying and selector.by == "times_sampled":
        first = [] if not selector.descending else first
    return [*first, term, columns["key"]]


def indexes_for(
    selectors: Sequence[Selector],
    partition_by: Sequence[str],
    columns: Mapping[str, Any],
    items: sa.Table,
    dialect: Dialect,
) -> list[sa.Index]:
    """What selectors need so that no call sorts: by order, and by order within partitions."""
    partition = [dialect.indexed(columns[name]) for name in partition_by]
    made = []
    for selector in parts_of(*selectors):
        if isinstance(selector, Ordered):
            for staying in (False, True):
                terms = _terms(selector, columns, dialect, staying)
                # SQLite keeps rows by key; PostgreSQL needs an index that leaves out hidden items,
                # or, while it knows nothing of the table, it fears that most are.
                if len(terms) > 1 or dialect.shares:
                    made.append(index_on(dialect, items, terms))
                if partition:
                    made.append(index_on(dialect, items, [*partition, *terms]))
        elif partition and not isinstance(selector, Proportional):
            made.append(index_on(dialect, items, [*partition, columns["key"]]))
    return made


def _terms(
    selector: Ordered, columns: Mapping[str, Any], dialect: Dialect, staying: bool
) -> list[Any]:
    """The columns of an index in an order's own directions."""
    first = [columns["times_sampled"]] if staying else []
    if selector.by in ("seq", "key"):
        key = columns["key"]
        return [*first, key.desc() if selector.descending and staying else key]
    column = columns[selector.by]
    if selector.descending:
        column = dialect.descending(column) if selector.by not in NEVER_ABSENT else column.desc()
    if staying and selector.by == "times_sampled" and not selector.descending:
        first = []
    return [*first, column, columns["key"]]


class SqlIndexes:
    """The indexes of one table, each made when it is first needed.

    Only a transaction that has the table for itself makes one. What was made by one that comes to
    nothing is forgotten again.
    """

    def __init__(self, opened: Opened, dialect: Dialect, partition_by: Sequence[str]) -> None:
        self._columns = opened.columns
        self._items = opened.items
        self._dialect = dialect
        self._partition_by = partition_by
        self._made: set[str] = set()
        self._fields: set[str] = set()

    def open(self, connection: sa.Connection, selectors: Sequence[Selector]) -> None:
        """Make those that every table has, and those of its selectors."""
        self._made = self._dialect.indexes(connection, self._items)
        lease = self._items.c.lease
        leased = sa.Index(
            f"{self._items.name}_lease",
            lease,
            sqlite_where=lease.is_not(None),
            postgresql_where=lease.is_not(None),
            _table=self._items,
        )
        self._make(connection, [leased, *self._of(selectors)])

    def _of(self, selectors: Sequence[Selector]) -> list[sa.Index]:
        by = self._partition_by
        return indexes_for(selectors, by, self._columns, self._items, self._dialect)

    def _make(self, connection: sa.Connection, indexes: Sequence[sa.Index]) -> None:
        for index in indexes:
            if str(index.name) not in self._made:
                connection.execute(sa.schema.CreateIndex(index, if_not_exists=True))
                self._made.add(str(index.name))

    def _need(self, transactions: Transactions, indexes: Sequence[sa.Index]) -> None:
        if transactions.alone:
            names = {str(index.name) for index in indexes} - self._made
            if names:
                transactions.undone.append(lambda: self._made.difference_update(names))
                self._make(transactions.connection, indexes)

    def need_selectors(self, transactions: Transactions, selectors: Sequence[Selector]) -> None:
        self._need(transactions, self._of(selectors))

    def need_fields(self, transactions: Transactions, fields: Iterable[str]) -> None:
        """For queries about fields that somebody set: equal values in the order of arrival."""
        new = {name for name in fields if name != "priority"} - self._fields
        if new:
            self._fields |= new
            transactions.undone.append(lambda: self._fields.difference_update(new))
            key = self._columns["key"]
            columns = [[self._dialect.indexed(self._columns[n]), key] for n in sorted(new)]
            self._need(transactions, [index_on(self._dialect, self._items, c) for c in columns])

    def need_priorities(self, transactions: Transactions) -> None:
        """For the highest priority, which new items get."""
        priority = [self._columns["priority"]]
        index = index_on(self._dialect, self._items, priority, visible=False)
        self._need(transactions, [index])
