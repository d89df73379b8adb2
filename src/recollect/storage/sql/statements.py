"""Statements that are made once and run often, with other parameters each time.

Making an expression costs ten times what running it does. A statement is kept under what shapes
it; numbers and keys are its parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from recollect.base.arrays import Keys
from recollect.rules.query import Query
from recollect.storage.sql.transactions import Transactions
from recollect.storage.sql.where import condition

KEPT = 512


@dataclass(frozen=True)
class Wanted:
    """Which items a statement is about: those that meet a query, visible ones or all.

    `keyed` limits them to the parameter `:keys`, and `apart` leaves those of `:without` out.
    """

    query: Query | None = None
    visible: bool = True
    keyed: bool = False
    apart: bool = False


KEYED = Wanted(visible=False, keyed=True)
MEASURED = ("key", "nbytes", "lease")  # the columns that counts of items need


class Statements:
    """Runs statements on the items of one table."""

    def __init__(
        self, transactions: Transactions, items: sa.Table, columns: Mapping[str, Any]
    ) -> None:
        self.transactions = transactions
        self.dialect = transactions.database.dialect
        self.items = items
        self.columns = columns
        self._kept: dict[Hashable, Any] = {}

    def run(self, key: Hashable, make: Callable[[], Any], **parameters: Any) -> Any:
        """Run the statement that is kept under a key, made where it is not there yet."""
        statement = self._kept.get(key)
        if statement is None:
            if len(self._kept) >= KEPT:
                self._kept.clear()
            statement = self._kept[key] = make()
        return self.transactions.connection.execute(statement, parameters)

    def condition(self, wanted: Wanted) -> Any:
        """WHERE, for what is wanted."""
        key = self.items.c.key
        conditions = [self.items.c.lease.is_(None)] if wanted.visible else []
        if wanted.query is not None:
            conditions.append(condition(wanted.query, self.columns, self.dialect))
        if wanted.keyed:
            conditions.append(self.dialect.keyed(key, "keys"))
        if wanted.apart:
            conditions.append(sa.not_(self.dialect.keyed(key, "without")))
        return sa.and_(sa.true(), *conditions)

    def numbers(self, values: list[Any]) -> Any:
        """What the parameters `:keys` and `:without` get."""
        return self.dialect.numbers(values)

    def named(self, keys: Keys | None) -> dict[str, Any]:
        """The parameter `:keys`, where there are any."""
        return {} if keys is None else {"keys": self.numbers(numbers_of(keys))}


def numbers_of(keys: Keys) -> list[int]:
    """Keys as a database has them; one that is too large is that of no item."""
    return [key for key in keys.tolist() if key < 1 << 63]
