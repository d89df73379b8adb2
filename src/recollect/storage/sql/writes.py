"""Items that come and change: encoded here, and written in one statement for all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from recollect.base.arrays import Ints, Keys
from recollect.data.schema import Rows
from recollect.rules.query import FieldType
from recollect.storage.base import NewItems
from recollect.storage.fields import FieldValue, absent_of
from recollect.storage.sql.escapes import to_text
from recollect.storage.sql.item_bytes import Codec, item_bytes
from recollect.storage.sql.orders import SqlIndexes
from recollect.storage.sql.statements import KEYED, MEASURED, Statements


class ItemWrites:
    """Inserts, updates and amends items. `base` is the key of the arrival 0."""

    def __init__(
        self,
        statements: Statements,
        indexes: SqlIndexes,
        fields: Mapping[str, FieldType],
        base: int,
    ) -> None:
        self._statements = statements
        self._transactions = statements.transactions
        self._dialect = statements.dialect
        self._items = statements.items
        self._columns = statements.columns
        self._indexes = indexes
        self._fields = fields
        self._base = base

    def insert(
        self, new: NewItems, codec: Codec, shared_codec: Codec | None, default: float
    ) -> Keys:
        """Store new items; `default` is the priority of those that were given none."""
        state = self._transactions.state
        count = new.count
        starts, per_item = _starts(new.per_item, count)
        payload = codec.encode(new.rows, starts, per_item)
        nbytes = item_bytes(codec.schema, new.rows, starts)
        shared: list[Any] = [None] * count
        if shared_codec is not None and new.shared is not None:
            places = np.arange(count)
            shared = shared_codec.encode(new.shared, places, np.ones(count, np.int64))
            nbytes = nbytes + item_bytes(shared_codec.schema, new.shared, places)
        keys = np.arange(count) + (self._base + state.counter)
        values: dict[str, list[Any]] = {
            "key": keys.tolist(),
            "priority": self._priorities(new, default),
            "times_sampled": [0] * count,
            "inserted_at": [new.inserted_at] * count,
            "rows": per_item.tolist(),
            "nbytes": nbytes.tolist(),
            "deliveries": [0] * count,
            "width": [codec.width] * count,
            "payload": payload,
            "shared": shared,
        }
        self._indexes.need_fields(self._transactions, new.fields)
        for name, value in new.fields.items():
            values[self._columns[name].name] = self._field(name, value, count)
        self._dialect.insert(self._transactions.connection, self._items, values)
        state.counter += count
        state.items += count
        state.nbytes += int(nbytes.sum())
        return keys.astype(np.uint64)

    def _priorities(self, new: NewItems, default: float) -> list[float]:
        given = new.priority
        if given is None:
            return [default] * new.count
        if (given != 1.0).any():
            self._begin_priorities()
        priorities: list[float] = np.broadcast_to(given, new.count).tolist()
        return priorities

    def _begin_priorities(self) -> None:
        """From now on items differ in priority, and the highest is found through an index."""
        if not self._transactions.state.prioritized:
            self._transactions.state.prioritized = True
            self._indexes.need_priorities(self._transactions)

    def _field(self, name: str, value: FieldValue, count: int) -> list[Any]:
        """A field's values as the database has them, None where absent."""
        kind = self._fields[name]
        if not isinstance(value, np.ndarray):
            return [to_text(value) if isinstance(value, str) else value] * count
        plain = np.broadcast_to(value, count).tolist()
        if kind == "str":
            return [None if text is None else to_text(text) for text in plain]
        absent = absent_of(name, kind)
        if kind == "bool":
            return [None if v == absent else bool(v) for v in plain]
        return [None if v == absent or v != v else v for v in plain]

    def update(self, keys: Keys, found: NDArray[np.bool_], fields: Mapping[str, Any]) -> None:
        """Change fields of the items that were found."""
        priority = fields.get("priority")
        if priority is not None and (priority != 1.0).any():
            self._begin_priorities()
        self._indexes.need_fields(self._transactions, fields)
        _, last = np.unique(keys[::-1], return_index=True)  # where one is named twice, the last
        places = np.sort(keys.size - 1 - last)
        places = places[found[places]]
        same: dict[str, Any] = {}
        own: dict[str, list[Any]] = {}
        for name, value in fields.items():
            column = self._columns[name].name
            if isinstance(value, np.ndarray) and value.size == keys.size and keys.size > 1:
                own[column] = self._plain(name, value[places])
            else:
                same[column] = self._plain(name, value)[0]
        numbers = keys[places].astype(np.int64).tolist()
        if same:
            self._update_alike(numbers, same)
        if own:
            self._dialect.update(self._transactions.connection, self._items, numbers, own)

    def _update_alike(self, numbers: list[int], values: Mapping[str, Any]) -> None:
        """Give all items the same values."""

        def make() -> Any:
            columns = self._items.c
            given = {n: sa.bindparam(f"as_{n}", type_=columns[n].type) for n in values}
            return sa.update(self._items).where(self._statements.condition(KEYED)).values(given)

        given = {f"as_{name}": value for name, value in values.items()}
        keys = self._statements.numbers(numbers)
        self._statements.run(("update", tuple(values)), make, keys=keys, **given)

    def _plain(self, name: str, value: Any) -> list[Any]:
        if name == "priority":
            return [float(one) for one in np.atleast_1d(value)]
        return self._field(name, value, np.size(value))

    def amend(
        self,
        keys: Keys,
        rows: Rows,
        per_item: NDArray[np.int32],
        payload: Ints,
        codec: Codec,
    ) -> None:
        """Store the rows of items again, which brings so much payload to each."""
        state = self._transactions.state
        starts, counts = _starts(per_item, keys.size)
        numbers = keys.astype(np.int64).tolist()

        def make() -> Any:
            columns = [self._items.c[name] for name in MEASURED]
            return sa.select(*columns).where(self._statements.condition(KEYED))

        found = self._statements.run("measure", make, **self._statements.named(keys))
        before = {row.key: row for row in found}
        more = dict(zip(numbers, payload.tolist(), strict=True))
        values = {
            "payload": codec.encode(rows, starts, counts),
            "width": [codec.width] * keys.size,
            "rows": counts.tolist(),
            "nbytes": [before[key].nbytes + more[key] for key in numbers],
        }
        self._dialect.update(self._transactions.connection, self._items, numbers, values)
        state.nbytes += int(payload.sum())
        state.hidden_nbytes += sum(more[key] for key in numbers if before[key].lease is not None)


def _starts(per_item: NDArray[np.int32], count: int) -> tuple[Ints, Ints]:
    """Where the rows of each item begin, and how many they are."""
    counts = np.broadcast_to(per_item, count).astype(np.int64)
    return np.cumsum(counts) - counts, counts
