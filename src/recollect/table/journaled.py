"""A table as a member of a journal: its effects as entries, and how each is done again.

Replaying uses the storage's own verbs. What was removed is removed by key, never by drawing
again; so the rules of the table play no part, and may be others than they were.
"""

from __future__ import annotations

import json
import logging
import threading
import weakref
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recollect.base.arrays import Keys
from recollect.data.rows_per_item import ONE_ROW
from recollect.data.schema import Rows, Schema
from recollect.durability.format import schema_to_json
from recollect.durability.journal.journal import as_journal
from recollect.durability.journal.journaled import PINNED, Journaled
from recollect.durability.journal.open_journal import OpenJournal
from recollect.durability.journal.payload import Pinned
from recollect.durability.journal.records import (
    AMENDED,
    ARCHIVED,
    COLUMNS,
    INSERTED,
    LEASED,
    NO_VALUES,
    REMOVED,
    RETURNED,
    SAMPLED,
    UPDATED,
    Section,
)
from recollect.durability.snapshot.members import Member
from recollect.errors import InvalidValue
from recollect.storage.memory.storage import MemoryStorage
from recollect.table.core import TableCore
from recollect.table.effects import (
    Amended,
    Archived,
    Effect,
    Inserted,
    Leased,
    Removed,
    Returned,
    Updated,
)
from recollect.table.member import member_of
from recollect.table.redo import TableReplay, restore_counts

log = logging.getLogger("recollect.durability")


LOST = 1 << 30  # more items than a crash can lose: so many keys are left out after one
PLAIN = {Leased: LEASED, Returned: RETURNED, Archived: ARCHIVED}


class JournaledTable(Journaled):
    """Follows a core, and makes it again."""

    def __init__(self, core: TableCore, owner: object = None) -> None:
        super().__init__(core.name, core if owner is None else owner)
        if not isinstance(core.storage, MemoryStorage):
            raise InvalidValue(
                "journal: only tables in memory have one; a database keeps what it stored by itself"
            )
        self._core = weakref.ref(core)
        self._lock = core.storage.transaction
        self.replaying = TableReplay(self)
        self._priority = np.zeros(1)

    @property
    def core(self) -> TableCore:
        """The core of the table; only while its owner is there."""
        core = self._core()
        assert core is not None
        return core

    def saved_as(self) -> Member:
        return member_of(self.core)

    def transaction(self) -> threading.RLock:
        return self._lock()

    def describe(self) -> dict[str, Any]:
        core = self.core
        return {
            **super().describe(),
            "fields": core.fields.kinds,
            "partition_by": list(core.fields.partition_by),
        }

    # -- while it runs --------------------------------------------------------------------------
    def begin(self) -> None:
        core = self.core
        core.effects.journal = self
        core.effects.add(self)
        storage = core.storage
        assert isinstance(storage, MemoryStorage)
        storage.stores.lend(PINNED)
        self.number = self.durable_number = core.effects.number
        if core.schemas.rows is not None and not self.position:
            self.columns(core.schemas.rows, core.schemas.shared)

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
            self.tell(REMOVED, number=number, keys=keys, about=_because(effect.reason))
        elif isinstance(effect, Updated):
            fields = dict(effect.fields)
            values = fields.pop("priority", NO_VALUES)
            about = {"fields": fields} if fields else None
            self.tell(UPDATED, number=number, keys=keys, values=np.array(values), about=about)
        elif isinstance(effect, Amended):
            storage = self._storage()
            per_item, size = storage.sizes_of(keys)
            rows = Pinned(*storage.pinned(keys, shared=False))
            self.tell(AMENDED, number=number, keys=keys, per_item=per_item, late=rows, nbytes=size)
        else:
            self.tell(PLAIN[type(effect)], number=number, keys=keys)

    def _inserted(self, effect: Inserted) -> None:
        new, storage = effect.new, self._storage()
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
            priority = self._one(storage.highest_priority() if given < 0.0 else given)
        per_item = new.per_item if new.per_item is ONE_ROW else new.per_item.copy()
        self.tell(
            INSERTED, number=effect.number, keys=effect.keys, values=priority, per_item=per_item,
            at=new.inserted_at, about=about or None,
            payload=Pinned(*storage.pinned(effect.keys, shared=True)),
            nbytes=_size(new.rows) + (0 if new.shared is None else _size(new.shared)),
        )  # fmt: skip

    def _one(self, priority: float) -> NDArray[np.float64]:
        """A priority as an array, which most inserts share."""
        if self._priority[0] != priority:
            self._priority = np.array([priority])
        return self._priority

    def state(self) -> dict[str, Any]:
        return {**self.core.counts.capture(), **self._storage().executor.capture()}

    def used(self) -> bool:
        return self.core.counts.inserts > 0

    def nbytes(self) -> int:
        return self.core.storage.nbytes

    def restore_state(self, state: dict[str, Any]) -> None:
        """What `state` returned."""
        restore_counts(self.core, state)

    # -- doing it again ---------------------------------------------------------------------------
    def replay(self, section: Section) -> None:
        self.replaying.replay(section, self.covered)
        self.position = max(self.position, *(told.position for told in section.effects))

    def leased(self) -> list[int]:
        return [key for held in self.core.leases.held().values() for key in held.keys.tolist()]

    def lease_again(self, keys: list[int]) -> None:
        self.replaying.lease_again(np.array(keys, np.uint64))

    def recovered(self) -> bool:
        return self.replaying.end_leases()

    def trim(self) -> None:
        core, storage = self.core, self.core.storage
        assert isinstance(storage, MemoryStorage)
        excess = max(0, len(storage) - core.capacity)
        excess_bytes = 0
        if core.capacity_bytes is not None:
            excess_bytes = max(0, storage.nbytes - core.capacity_bytes)
        if excess or excess_bytes:
            before = len(storage)
            core.evict(excess, excess_bytes)
            log.warning(
                "table %r has less room than its journal: %d items were evicted",
                core.name, before - len(storage),
            )  # fmt: skip
        storage.items.capacity = core.capacity

    def progress(self) -> tuple[int, ...]:
        return self.core.effects.number, self._storage().items.next_key

    def rewound(self, progress: tuple[int, ...]) -> None:
        """Effects and keys go on counting: those that were given out mean what they meant."""
        number, next_key = progress
        effects = self.core.effects
        effects.number = max(effects.number, number)
        self._storage().items.skip_keys(next_key)
        self.number = effects.number

    def after_loss(self) -> None:
        self._storage().items.next_key += LOST

    def _storage(self) -> MemoryStorage:
        storage = self.core.storage
        assert isinstance(storage, MemoryStorage)
        return storage


def open_journal(core: TableCore, journal: Any) -> None:
    """Open the journal of one table, which is just made."""
    core.journal = OpenJournal(as_journal(journal), [JournaledTable(core)])


def open_journal_of_store(cores: Mapping[str, TableCore], journal: Any) -> OpenJournal:
    """Open the journal that the tables of a store share."""
    options = as_journal(journal)
    kept = [core for core in cores.values() if core.checkpoint]
    for name, core in cores.items():
        if core.journal is not None:
            raise InvalidValue(
                f"journal: table {name!r} has a journal of its own; give one to the store, or one "
                "to each table"
            )
    if not kept:
        raise InvalidValue(
            "journal: this store has no table that is checkpointed; make one with checkpoint=True"
        )
    # a buffer tells more than its table does
    members = [JournaledTable(c) if c.owner is None else c.owner.journaled() for c in kept]
    opened = OpenJournal(options, members, of_store=True)
    for core in kept:
        core.journal = opened
    return opened


@cache
def _because(reason: str) -> bytes:
    """What is said of items that left."""
    return json.dumps({"reason": reason}).encode()


def _size(rows: Rows) -> int:
    """Bytes that wait to be written, about."""
    return sum([0 if column is None else column.nbytes for column in rows.columns])
