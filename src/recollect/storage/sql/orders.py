"""Orders as ORDER BY, and the indexes that make LIMIT cost what it returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from recollect.selectors import Ordered, Prioritized, Selector, parts_of
from recollect.storage.sql.dialects import Dialect
from recollect.storage.sql.tables import NEVER_ABSENT, index_on


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
                if len(terms) > 1:  # the order of arrival is that of the keys, which has an index
                    made.append(index_on(dialect, items, terms))
                if partition:
                    made.append(index_on(dialect, items, [*partition, *terms]))
        elif partition and not isinstance(selector, Prioritized):
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


def index_of_field(name: str, columns: Mapping[str, Any], items: sa.Table, dialect: Dialect) -> Any:
    """The index of a field that somebody set, for queries: equal values in order of arrival."""
    return index_on(dialect, items, [dialect.indexed(columns[name]), columns["key"]])
