"""`SqlStorage`: the verbs of a storage, as batched statements in one transaction."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from recollect.base.arguments import time_span
from recollect.base.arrays import Ints, Keys
from recollect.data.schema import Rows, Schema
from recollect.errors import InvalidValue, StorageError
from recollect.rules.selectors import Mixed, Ordered, Selector, Smallest
from recollect.storage.base import Chosen, Contended, Layout, NewItems, Sharing, Where, unknown_keys
from recollect.storage.sql import tables
from recollect.storage.sql.books import SqlBlobs, SqlLeases, SqlRequests
from recollect.storage.sql.choice import WHOLE, SqlExecutor
from recollect.storage.sql.chosen import Gone, SqlChosen
from recollect.storage.sql.database import PATIENCE, Database
from recollect.storage.sql.departures import Departures
from recollect.storage.sql.escapes import from_text
from recollect.storage.sql.item_bytes import Codec
from recollect.storage.sql.listener import Listener, PostgresListener, SqliteListener
from recollect.storage.sql.opening import Opened, open_table
from recollect.storage.sql.orders import SqlIndexes
from recollect.storage.sql.schema_text import schemas_from_json, schemas_to_json
from recollect.storage.sql.statements import MEASURED, Statements, Wanted, numbers_of
from recollect.storage.sql.table_row import TableState
from recollect.storage.sql.transactions import Transactions
from recollect.storage.sql.writes import ItemWrites

CHUNK = 64  # items that are looked at together, where bytes decide how many must leave


class SqlStorage:
    """Keeps items in a SQL database: SQLite, or PostgreSQL that several processes share.

    An item is a row, with its fields as typed and indexed columns. Tables of one name in one
    database are one table, whichever process opens it, and it is there again after a restart.
    `patience` is how many seconds a call waits for a server that went away.

    >>> import recollect as rc
    >>> storage = rc.SqlStorage("sqlite://")  # in memory; a file is sqlite:///replay.db
    >>> table = rc.Table("replay", capacity=1000, storage=storage)
    >>> keys = table.insert({"x": [1, 2]}, task=["math", "code"])
    >>> table.count({"task": "math"})
    1
    """

    def __init__(self, url: str, *, patience: float = PATIENCE) -> None:
        self._database = Database(url, time_span("patience", patience))
        self._layout: Layout | None = None

    def __repr__(self) -> str:
        return f"SqlStorage({self._database.where!r})"

    # -- opening ----------------------------------------------------------------------------------
    def open(self, layout: Layout) -> SqlStorage:
        if self._layout is not None:
            raise InvalidValue(
                f"storage: this one belongs to table {self._layout.name!r}; make one per table"
            )
        if layout.journaled:
            raise InvalidValue(
                "journal: a table in a database has none, because the database is its journal; "
                "leave it None"
            )
        database = self._database
        opened, self._indexes = database.begin(lambda connection: self._open(connection, layout))
        database.commit()
        self._layout = layout
        self._items, self._columns, self._tags = opened.items, opened.columns, opened.tags
        self._dialect = database.dialect
        self._schema_version = 0
        self._codec: Codec | None = None
        self._shared_codec: Codec | None = None
        self._listener: Listener | None = None
        self._transactions = Transactions(database, opened.number, opened.channel, self._refresh)
        self._statements = Statements(self._transactions, self._items, self._columns)
        self._executor = SqlExecutor(self._statements, opened.base, layout.seed)
        self._writes = ItemWrites(self._statements, self._indexes, layout.fields, opened.base)
        self.leases = SqlLeases(self._statements)
        self._departures = Departures(self._statements, self.leases)
        self.requests = SqlRequests(self._transactions)
        self.blobs = SqlBlobs(self._transactions)
        return self

    def _open(self, connection: sa.Connection, layout: Layout) -> tuple[Opened, SqlIndexes]:
        opened = open_table(connection, self._database, layout)
        indexes = SqlIndexes(opened, self._database.dialect, layout.partition_by)
        indexes.open(connection, layout.selectors)
        return opened, indexes

    def attach(self, sharing: Sharing) -> None:
        self._transactions.sharing = sharing
        with self.transaction():  # the columns that others fixed, and the counts
            pass

    def _refresh(self, state: TableState) -> None:
        """At the beginning of a transaction: others may have fixed the columns."""
        if state.columns_version != self._schema_version:
            stored = tables.tables
            number = self._transactions.number
            query = sa.select(stored.c.columns).where(stored.c.id == number)
            text = self._transactions.connection.execute(query).scalar_one()
            rows, shared = schemas_from_json(text)
            self._set_codecs(rows, shared, state.columns_version)
            if self._transactions.sharing is not None:
                self._transactions.sharing.adopt(rows, shared)

    def _set_codecs(self, rows: Schema, shared: Schema | None, version: int) -> None:
        self._codec = Codec(rows)
        self._shared_codec = None if shared is None else Codec(shared)
        self._schema_version = version

    def set_schema(self, rows: Schema, shared: Schema | None) -> None:
        transactions, stored = self._transactions, tables.tables
        before = (self._codec, self._shared_codec, self._schema_version)
        transactions.undone.append(lambda: self._unset_schema(before))
        version = self._schema_version + 1
        self._set_codecs(rows, shared, version)
        transactions.connection.execute(
            sa.update(stored)
            .where(stored.c.id == transactions.number)
            .values(columns=schemas_to_json(rows, shared), columns_version=version)
        )

    def _unset_schema(self, before: tuple[Codec | None, Codec | None, int]) -> None:
        """The transaction that fixed columns came to nothing."""
        self._codec, self._shared_codec, self._schema_version = before
        sharing = self._transactions.sharing
        if sharing is not None:
            codec, shared = before[:2]
            sharing.adopt(
                None if codec is None else codec.schema,  # type: ignore[arg-type]
                None if shared is None else shared.schema,
            )

    # -- what processes share ----------------------------------------------------------------------
    @property
    def lock(self) -> AbstractContextManager[Any]:
        return self._transactions.lock

    def transaction(self) -> AbstractContextManager[Any]:
        return self._transactions.whole

    def taking(self) -> AbstractContextManager[Any]:
        return self._transactions.taking

    def listen(self) -> None:
        if self._database.in_memory:
            return
        with self.lock:
            if self._listener is None or not self._listener.alive:
                self._listener = self._new_listener()
                weakref.finalize(self, self._listener.close)
            listener = self._listener
        listener.wait()

    def _new_listener(self) -> Listener:
        sharing, transactions = self._transactions.sharing, self._transactions
        assert sharing is not None
        changed: Any = weakref.WeakMethod(sharing.changed)
        if self._dialect.shares:
            return PostgresListener(
                self._database, changed, transactions.channel, transactions.name
            )
        return SqliteListener(self._database, changed, weakref.WeakMethod(sharing.waiting))

    def close(self) -> None:
        with self.lock:
            listener, self._listener = self._listener, None
            if not self._database.in_memory:
                self._database.close()
        if listener is not None:
            listener.close()

    # -- what is there -----------------------------------------------------------------------------
    @property
    def _state(self) -> TableState:
        return self._transactions.state

    def __len__(self) -> int:
        return self._state.items

    @property
    def hidden(self) -> int:
        return self._state.hidden

    @property
    def nbytes(self) -> int:
        return self._state.nbytes

    @property
    def hidden_nbytes(self) -> int:
        return self._state.hidden_nbytes

    def highest_priority(self) -> float:
        if not self._state.prioritized or not self._state.items:
            return 1.0
        highest = self._statements.run(
            "highest priority", lambda: sa.select(sa.func.max(self._items.c.priority))
        )
        return float(highest.scalar_one())

    def available(self, where: Where | None, most: int | None = None) -> tuple[int, int]:
        assert self._layout is not None
        if where is None and not self._layout.max_times_sampled:
            return self._state.items - self._state.hidden, 0
        wanted = _wanted(where)

        def make() -> Any:
            found = sa.select(self._items.c.times_sampled.label("times"))
            found = found.where(self._statements.condition(wanted))
            if most is not None:
                found = found.limit(sa.bindparam("most", type_=sa.BigInteger()))
            counted = found.subquery()
            times = sa.func.coalesce(sa.func.sum(counted.c.times), 0)
            return sa.select(sa.func.count(), times).select_from(counted)

        more = {} if most is None else {"most": most}
        row = self._statements.run(("available", most is None, wanted), make, **more).one()
        return int(row[0]), int(row[1])

    def count(self, where: Where | None) -> int:
        if where is None:
            return self._state.items
        wanted = _wanted(where, visible=False)

        def make() -> Any:
            query = sa.select(sa.func.count()).select_from(self._items)
            return query.where(self._statements.condition(wanted))

        return int(self._statements.run(("count of", wanted), make).scalar_one())

    def counts(self, fields: Sequence[str]) -> dict[Any, int]:
        assert self._layout is not None

        def make() -> Any:
            columns = [self._columns[name] for name in fields]
            first = sa.func.min(self._items.c.key)
            return sa.select(*columns, sa.func.count()).group_by(*columns).order_by(first)

        texts = [self._layout.fields[name] == "str" for name in fields]
        found: dict[Any, int] = {}
        for *values, count in self._statements.run(("counts", tuple(fields)), make):
            seen = [from_text(v) if text else v for v, text in zip(values, texts, strict=True)]
            found[seen[0] if len(fields) == 1 else tuple(seen)] = count
        return found

    def find(self, keys: Keys | None, where: Where | None, *, visible: bool) -> Keys:
        wanted = _wanted(where, visible=visible, keyed=keys is not None)

        def make() -> Any:
            key = self._items.c.key
            return sa.select(key).where(self._statements.condition(wanted)).order_by(key)

        found = self._statements.run(("find", wanted), make, **self._statements.named(keys))
        return np.array(found.scalars().all(), np.uint64)

    def keep_indexes(self, selectors: Sequence[Selector]) -> None:
        self._indexes.need_selectors(self._transactions, selectors)

    # -- inserting ---------------------------------------------------------------------------------
    def insert(self, new: NewItems) -> Keys:
        default = new.default_priority
        if new.priority is None and default < 0.0:
            default = self.highest_priority()
        return self._writes.insert(new, *self._codecs(), default)

    def recycle(self, remover: Selector, new: NewItems, *, tell: bool) -> Keys | None:
        return None

    # -- choosing ----------------------------------------------------------------------------------
    def next_deal(self, mixture: Mixed, n: int) -> list[tuple[Selector, int]]:
        return self._executor.next_deal(mixture, n)

    def _codecs(self) -> tuple[Codec, Codec | None]:
        assert self._codec is not None
        return self._codec, self._shared_codec

    def _chosen(self, rows: Sequence[Any], **more: Any) -> SqlChosen:
        return SqlChosen(rows, self._state.items, self._tags, self._codecs(), **more)

    def sample(
        self, selector: Selector, n: int, where: Where | None, replace: bool, calls: int
    ) -> SqlChosen:
        assert self._layout is not None
        wanted = _wanted(where)
        limit = self._layout.max_times_sampled
        worn: list[int] = []
        if isinstance(selector, Mixed):
            drawn, worn, rows = self._executor.sample_mixed(
                selector, n, wanted, replace, calls, limit
            )
            sampled: Any = 0
        else:
            drawn = self._executor.draw(selector, n, wanted, replace, calls, limit)
            rows = self._executor.fetch(drawn.keys)
            sampled, worn = self._executor.count_samples(drawn.keys, rows, limit)
        chosen = self._chosen(
            [rows[key] for key in drawn.keys],
            probability=drawn.probability,
            weights=drawn.weights,
            sampled=sampled,
        )
        if worn:
            chosen.worn = self._chosen([rows[key] for key in worn])
            self._departures.forget([rows[key] for key in worn])
        return chosen

    def take(self, selector: Selector, n: int, where: Where | None, *, hide: bool) -> SqlChosen:
        wanted = _wanted(where)
        probability = weights = None
        if isinstance(selector, Ordered):
            rows = self._executor.ordered(selector, n, wanted, staying=False)
            probability = np.ones(len(rows))
        else:
            drawn = self._executor.draw_apart(selector, n, wanted)
            by_key = self._executor.fetch(drawn.keys)
            rows = [by_key[key] for key in drawn.keys]
            probability, weights = drawn.probability, drawn.weights
        if len(rows) < n:
            if not self._transactions.alone:
                raise Contended
            raise StorageError(
                f"{self._database.where} has {len(rows)} of {n} items that it has counted: "
                f"{self._items.name} was changed from outside"
            )
        chosen = self._chosen(rows, probability=probability, weights=weights, sampled=1)
        if hide:
            self._departures.hide_taken(rows, chosen.keys)
        else:
            self._departures.forget(rows)
        return chosen

    def evict(
        self, selector: Selector, n: int, nbytes: int, keep: bool
    ) -> tuple[int, Sequence[Chosen]]:
        goal = self._state.nbytes - nbytes
        gone, kept = 0, []
        wanted = _wanted(None)
        while n > 0 or (nbytes > 0 and self._state.nbytes > goal):
            # Each item that leaves for its bytes is chosen by itself; a mixture shares them out.
            look = n if n > 0 else (1 if isinstance(selector, Mixed) else CHUNK)
            rows = self._next_to_evict(selector, look, wanted, keep)
            if n <= 0:
                excess = self._state.nbytes - goal
                sums = np.cumsum([row.nbytes for row in rows])
                rows = rows[: int(np.searchsorted(sums, excess)) + 1]
            if keep:
                kept.append(self._chosen(rows))
            self._departures.forget(rows)
            gone += len(rows)
            n = 0
        return gone, kept

    def _next_to_evict(self, selector: Selector, n: int, wanted: Wanted, keep: bool) -> list[Any]:
        if isinstance(selector, Ordered):
            columns = WHOLE if keep else MEASURED
            return self._executor.ordered(selector, n, wanted, staying=False, columns=columns)
        visible = self._state.items - self._state.hidden
        drawn = self._executor.draw_apart(selector, min(n, visible), wanted, evicting=True)
        keys = drawn.keys
        rows = self._executor.fetch(keys)
        return [rows[key] for key in keys]

    # -- removing, hiding, bringing back -----------------------------------------------------------
    def remove(self, keys: Keys, keep: bool) -> Chosen:
        if keep:
            rows = self._whole(keys)
            chosen = self._chosen(rows)
            self._departures.forget(rows)
            return chosen
        if not keys.size:
            return Gone(keys)
        here = self._departures.remove(keys)
        return Gone(keys if here.size == keys.size else keys[np.isin(keys, here)])

    def delete(self, keys: Keys, keep: bool) -> Chosen:
        return self.remove(keys, keep)

    def _whole(self, keys: Keys) -> list[Any]:
        """The rows of the keys that are there, in their order."""
        numbers = numbers_of(keys)
        rows = self._executor.fetch(numbers) if numbers else {}
        return [rows[key] for key in numbers if key in rows]

    def hide(self, keys: Keys) -> Keys:
        return self._departures.hide_keys(keys) if keys.size else keys

    def hide_up_to(self, field: str, bound: int) -> Keys:
        self._indexes.need_selectors(self._transactions, [Smallest(field)])
        return self._departures.hide_up_to(field, bound)

    def show(self, keys: Keys, *, returned: bool) -> int:
        return self._departures.show(keys, returned=returned) if keys.size else 0

    # -- reading and changing ----------------------------------------------------------------------
    def get(self, keys: Keys, columns: Sequence[str] | None) -> SqlChosen:
        rows = self._executor.fetch(numbers_of(keys)) if keys.size else {}
        gone = [key for key in keys.tolist() if key not in rows]
        if gone:
            raise unknown_keys(gone, keys.size)
        chosen = self._chosen([rows[key] for key in keys.tolist()])
        chosen.columns = columns
        return chosen

    def update(self, keys: Keys, fields: Mapping[str, Any]) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = np.isin(keys, self.find(keys, None, visible=False))
        if found.any():
            self._writes.update(keys, found, fields)
        return found

    def amend(self, keys: Keys, rows: Rows, per_item: NDArray[np.int32], payload: Ints) -> None:
        self._writes.amend(keys, rows, per_item, payload, self._codecs()[0])


def _wanted(where: Where | None, *, visible: bool = True, keyed: bool = False) -> Wanted:
    return Wanted(None if where is None else where.query, visible, keyed)
