"""A table as a member of a journal: its effects as entries, and how each is done again.

Replaying uses the storage's own verbs. What was removed is removed by key, never by drawing
again; so the rules of the table play no part, and may be others than they were.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from recollect.durability.format import schema_from_json, schema_to_json
from recollect.durability.journal import as_journal
from recollect.durability.journal_member import Journaled
from recollect.durability.journal_open import OpenJournal
from recollect.durability.journal_payload import pinned
from recollect.durability.journal_records import (
    AMENDED,
    ARCHIVED,
    COLUMNS,
    INSERTED,
    LEASED,
    NO_VALUES,
    REMOVED,
    RESTARTED,
    RETURNED,
    SAMPLED,
    STATE,
    UPDATED,
    Section,
    Told,
    rows_of,
)
from recollect.effects import (
    Amended,
    Archived,
    Effect,
    Inserted,
    Leased,
    Removed,
    Returned,
    Updated,
)
from recollect.errors import InvalidValue, JournalError
from recollect.kernels import layout
from recollect.limiters import Counts
from recollect.ragged import Ragged
from recollect.schema import Rows, Schema
from recollect.storage.base import ONE_ROW, NewItems
from recollect.storage.fields import _DTYPES
from recollect.storage.memory import MemoryStorage

if TYPE_CHECKING:
    from recollect.table import Table

log = logging.getLogger("recollect.durability")

Keys = NDArray[np.uint64]
Ints = NDArray[np.int64]

LOST = 1 << 30  # more items than a crash can lose: so many keys are left out after one
PLAIN = {Leased: LEASED, Returned: RETURNED, Archived: ARCHIVED}


class JournaledTable(Journaled):
    """Follows a table, and makes it again."""

    def __init__(self, table: Table, owner: Any = None) -> None:
        super().__init__(table.name, table if owner is None else owner)
        if not isinstance(table._storage, MemoryStorage):
            raise InvalidValue(
                "journal: only tables in memory have one; a database keeps what it stored by itself"
            )
        self._lock = table._transaction
        self._leased: set[int] = set()  # while replaying

    @property
    def table(self) -> Table:
        """The table; only while its owner is there."""
        table: Table = self.owner
        return table

    def transaction(self) -> AbstractContextManager[Any]:
        return self._lock()

    def describe(self) -> dict[str, Any]:
        table = self.table
        return {
            **super().describe(),
            "fields": table.fields,
            "partition_by": list(table.partition_by),
        }

    # -- while it runs --------------------------------------------------------------------------
    def begin(self) -> None:
        table = self.table
        table._effects.journal = self
        table._effects.add(self)
        self.number = self.durable_number = table._effects.number
        if table._schema is not None and not self.position:
            self.columns(table._schema, table._shared_schema)

    def columns(self, rows: Schema, shared: Schema | None) -> None:
        """The columns are these from now on; only optional ones may have been added."""
        about = {"columns": schema_to_json(rows), "shared": schema_to_json(shared)}
        self.tell(COLUMNS, about=about)
        self.noted = self.position

    def sampled(self, keys: Keys) -> None:
        """Items were drawn and stay."""
        self.tell(SAMPLED, keys=keys)

    def record(self, effect: Effect) -> None:
        """Under the lock, at the moment of the change: what it is about is still there."""
        number, keys = effect.number, effect.keys
        if isinstance(effect, Inserted):
            self._inserted(effect)
        elif isinstance(effect, Removed):
            self.tell(REMOVED, number=number, keys=keys, about={"reason": effect.reason})
        elif isinstance(effect, Updated):
            fields = dict(effect.fields)
            values = fields.pop("priority", NO_VALUES)
            about = {"fields": fields} if fields else None
            self.tell(UPDATED, number=number, keys=keys, values=np.array(values), about=about)
        elif isinstance(effect, Amended):
            storage = self.table._storage
            assert isinstance(storage, MemoryStorage)
            per_item = storage._items.rows(storage._items.slots_of(keys))
            size = int(storage._items.nbytes(storage._items.slots_of(keys)).sum())
            rows = pinned(storage, keys, shared=False)
            self.tell(AMENDED, number=number, keys=keys, per_item=per_item, late=rows, nbytes=size)
        else:
            self.tell(PLAIN[type(effect)], number=number, keys=keys)

    def _inserted(self, effect: Inserted) -> None:
        new, storage = effect.new, self.table._storage
        about: dict[str, Any] = {}
        if new.fields:
            about["fields"] = dict(new.fields)
        if effect.request is not None:
            about["request"] = effect.request
        if new.priority is not None:
            priority = new.priority.copy()
        else:
            # new items have the highest priority of all, unless that has just been evicted
            given = new.default_priority
            priority = np.array([storage.highest_priority() if given < 0.0 else given])
        per_item = new.per_item if new.per_item is ONE_ROW else new.per_item.copy()
        self.tell(
            INSERTED, number=effect.number, keys=effect.keys, values=priority, per_item=per_item,
            at=new.inserted_at, about=about or None, payload=pinned(storage, effect.keys),
            nbytes=_size(new.rows) + (0 if new.shared is None else _size(new.shared)),
        )  # fmt: skip

    def state(self) -> dict[str, Any]:
        table = self.table
        counts, storage = table._counts, table._storage
        assert isinstance(storage, MemoryStorage)
        return {
            "inserts": counts.inserts,
            "samples": counts.samples,
            "removals": counts.removals,
            "removed": dict(table._removed),
            "sample_calls": table._sample_calls,
            "random": storage._random.tolist(),
            "credits": [
                [repr(mixed), evicting, credit.tolist()]
                for (mixed, evicting), credit in storage._credits.items()
            ],
        }

    def used(self) -> bool:
        return self.table._counts.inserts > 0

    def nbytes(self) -> int:
        return self.table._storage.nbytes

    # -- doing it again ---------------------------------------------------------------------------
    def again(self, told: Told, section: Section, fresh: bool) -> None:
        table = self.table
        kind, keys = told.kind, told.keys
        if kind == INSERTED:
            per_item = np.broadcast_to(told.per_item, keys.size)
            rows = section.rows.take(int(per_item.sum()))
            shared = None
            if table._shared_schema is not None:
                shared = section.shared.take(keys.size)
            if fresh:
                assert table._schema is not None
                cells = None
                if shared is not None and table._shared_schema is not None:
                    cells = rows_of(shared, table._shared_schema)
                self._insert(told, rows_of(rows, table._schema), cells)
        elif kind == AMENDED:
            columns = section.late.take(int(told.per_item.sum()))
            if fresh:
                assert table._schema is not None
                self._amend(keys, rows_of(columns, table._schema), told.per_item)
        elif fresh:
            self._do(told)
        if fresh and told.number > table._effects.number:
            table._effects.number = told.number

    def _insert(self, told: Told, rows: Rows, shared: Rows | None) -> None:
        table = self.table
        storage = table._storage
        assert isinstance(storage, MemoryStorage)
        first = int(told.keys[0])
        block = storage._items.block
        block[layout.COUNTER] = first & layout.COUNTER_MASK
        block[layout.ORIGIN] = np.uint64(first & ~layout.COUNTER_MASK).view(np.int64)
        per_item = told.per_item
        if per_item.size == 1 and per_item[0] == 1:
            per_item = ONE_ROW
        new = NewItems(
            rows, shared, per_item, told.keys.size, told.values, self._fields(told), told.at
        )
        self._widen(len(storage) + new.count)
        keys = storage.insert(new)
        if not np.array_equal(keys, told.keys):
            raise JournalError(f"table {table.name!r}: the journal has keys that do not follow")
        table._counts.inserts += new.count
        if "request" in told.about:
            producer, number = told.about["request"]
            table._requests.remember((producer, number), keys)

    def _widen(self, items: int) -> None:
        """A table that is smaller now holds what it held until all is replayed."""
        storage = self.table._storage
        assert isinstance(storage, MemoryStorage)
        if items > storage._items._capacity:
            storage._items._capacity = items

    def _fields(self, told: Told) -> dict[str, Any]:
        """Fields as they were checked: arrays of the type that the field has."""
        fields: dict[str, Any] = {}
        for name, value in told.about.get("fields", {}).items():
            fields[name] = value
            if isinstance(value, list):
                kind = self.table.fields[name]
                if kind == "str":
                    fields[name] = np.empty(len(value), object)
                    fields[name][:] = value
                else:
                    cells: Any = [np.nan if v is None else v for v in value]
                    fields[name] = np.array(cells, _DTYPES[kind])  # type: ignore[index]
        return fields

    def _amend(self, keys: Keys, rows: Rows, per_item: NDArray[np.int32]) -> None:
        table = self.table
        schema, storage = table._schema, table._storage
        assert schema is not None
        if storage.find(keys, None, visible=False).size < keys.size:
            return  # it was left out when a smaller table was loaded
        stored = storage.get(keys, None).read(np.empty)
        before = rows_of(stored, schema)
        starts = np.concatenate([[0], np.cumsum(per_item)[:-1]])
        gained = np.add.reduceat(payload_by_row(schema, rows), starts)
        gained -= np.add.reduceat(payload_by_row(schema, before), stored.info.row_offsets[:-1])
        storage.amend(keys, rows, per_item, gained)

    def _do(self, told: Told) -> None:
        """What brings no rows."""
        table, keys = self.table, told.keys
        storage = table._storage
        if told.kind == REMOVED:
            self._remove(keys, told.about["reason"])
        elif told.kind == UPDATED:
            fields = self._fields(told)
            if told.values.size:
                fields["priority"] = told.values
            storage.update(keys, fields)
        elif told.kind == LEASED:
            self._add_times(keys, np.ones(keys.size, np.int64))
            storage.hide(keys)
            self._leased.update(keys.tolist())
            table._counts.samples += keys.size
        elif told.kind == RETURNED:
            self._leased.difference_update(keys.tolist())
            table._counts.samples -= storage.show(keys, returned=True)
        elif told.kind == ARCHIVED:
            self._leased.difference_update(keys.tolist())
            storage.show(keys, returned=False)
        elif told.kind == SAMPLED:
            self._add_times(keys, told.values.astype(np.int64))
            table._counts.samples += int(told.values.sum())
        elif told.kind == COLUMNS:
            self._set_columns(told.about)
        elif told.kind == STATE:
            self.restore_state(told.about)
        elif told.kind == RESTARTED:
            self.end_leases()

    def _remove(self, keys: Keys, reason: str) -> None:
        table = self.table
        storage = table._storage
        taken = reason == "taken" and not self._leased.intersection(keys.tolist())
        self._leased.difference_update(keys.tolist())
        storage.hide(keys)
        gone = storage.remove(keys, False).count
        table._counts.removals += gone
        table._removed[reason] = table._removed.get(reason, 0) + gone
        if taken:
            table._counts.samples += gone

    def _add_times(self, keys: Keys, times: Ints) -> None:
        """Items were sampled so often; those that have gone are passed over."""
        storage = self.table._storage
        assert isinstance(storage, MemoryStorage)
        slots = storage._items.slots_of(keys)
        here = slots >= 0
        hidden = storage.hide(keys[here])
        storage._items.times[slots[here]] += times[here].astype(np.int32)
        storage.show(hidden, returned=False)

    def _set_columns(self, about: dict[str, Any]) -> None:
        table = self.table
        rows = schema_from_json(about["columns"], "column")
        shared = schema_from_json(about["shared"], "shared column")
        assert rows is not None
        known = table._schema
        if known is None:
            table._set_schema(rows, shared)
            return
        for name, column in known.columns.items():
            if rows.columns.get(name) != column:
                raise JournalError(
                    f"table {table.name!r}: its journal has no column {name!r} of {column}; make "
                    "the table with the signature that it had, or give it a new journal"
                )
        if len(rows.columns) > len(known.columns):
            table._set_schema(rows, table._shared_schema)

    def restore_state(self, state: dict[str, Any]) -> None:
        """What `state` returned."""
        table = self.table
        storage = table._storage
        assert isinstance(storage, MemoryStorage)
        table._counts = Counts(state["inserts"], state["samples"], state["removals"])
        table._removed = dict(state["removed"])
        table._sample_calls = state["sample_calls"]
        storage._random[:] = np.array(state["random"], np.uint64)
        mixtures = {repr(selector): selector for selector in (table.sampler, table.remover)}
        for name, evicting, credit in state["credits"]:
            if name in mixtures:
                storage._credits[mixtures[name], evicting] = np.array(credit)  # type: ignore[index]

    def leased(self) -> list[int]:
        return [key for held in self.table._leases._held.values() for key in held.keys.tolist()]

    def lease_again(self, keys: list[int]) -> None:
        storage = self.table._storage
        assert isinstance(storage, MemoryStorage)
        found = storage.find(np.array(keys, np.uint64), None, visible=True)
        if found.size:
            self._add_times(found, np.ones(found.size, np.int64))
            slots = storage._items.slots_of(found)
            storage._items.owned[layout.A_DELIVERIES][slots] -= 1
            storage.hide(found)
            self._leased.update(found.tolist())
            self.table._counts.samples += found.size

    def end_leases(self) -> None:
        """What was leased is available again, and a delivery is counted."""
        leased = np.array(sorted(self._leased), np.uint64)
        self._leased.clear()
        if leased.size:
            self.table._counts.samples -= self.table._storage.show(leased, returned=True)

    def recovered(self) -> bool:
        ended = bool(self._leased)
        self.end_leases()
        return ended

    def trim(self) -> None:
        table, storage = self.table, self.table._storage
        assert isinstance(storage, MemoryStorage)
        excess = max(0, len(storage) - table.capacity)
        excess_bytes = 0
        if table.capacity_bytes is not None:
            excess_bytes = max(0, storage.nbytes - table.capacity_bytes)
        if excess or excess_bytes:
            before = len(storage)
            table._evict(excess, excess_bytes)
            log.warning(
                "table %r has less room than its journal: %d items were evicted",
                table.name, before - len(storage),
            )  # fmt: skip
        storage._items._capacity = table.capacity

    def progress(self) -> Any:
        block = self._block()
        return self.table._effects.number, int(block[layout.ORIGIN]), int(block[layout.COUNTER])

    def rewound(self, progress: Any) -> None:
        """Effects and keys go on counting: those that were given out mean what they meant."""
        number, origin, counter = progress
        effects, block = self.table._effects, self._block()
        effects.number = max(effects.number, number)
        if int(block[layout.ORIGIN]) == origin:
            block[layout.COUNTER] = max(int(block[layout.COUNTER]), counter)
        self.number = effects.number

    def _block(self) -> Ints:
        storage = self.table._storage
        assert isinstance(storage, MemoryStorage)
        return storage._items.block

    def after_loss(self) -> None:
        self._block()[layout.COUNTER] += LOST


def open_journal(table: Table, journal: Any) -> OpenJournal:
    """Open the journal of one table, which is just made."""
    return OpenJournal(as_journal(journal), [JournaledTable(table)])


def open_journal_of_store(tables: Mapping[str, Table], journal: Any) -> OpenJournal:
    """Open the journal that the tables of a store share."""
    options = as_journal(journal)
    members = []
    for name, table in tables.items():
        if table._journal is not None:
            raise InvalidValue(
                f"journal: table {name!r} has a journal of its own; give one to the store, or one "
                "to each table"
            )
        if table.checkpoint:
            members.append(JournaledTable(table))
    if not members:
        raise InvalidValue("journal: this store has no table that is checkpointed")
    opened = OpenJournal(options, members, of_store=True)
    for member in members:
        member.table._journal = opened
    return opened


def _size(rows: Rows) -> int:
    """Bytes that wait to be written, about."""
    return sum(0 if column is None else column.nbytes for column in rows.columns)


def payload_by_row(schema: Schema, rows: Rows) -> Ints:
    """Bytes of payload of each row: an absent cell has none."""
    total = np.zeros(rows.count, np.int64)
    for place, column in enumerate(schema.columns.values()):
        cells = rows.columns[place]
        present = None if rows.present is None else rows.present[place]
        if cells is None:
            continue
        sizes = cells.lengths * column.size if isinstance(cells, Ragged) else np.int64(column.size)
        total += sizes if present is None else np.where(present, sizes, 0)
    return total
