"""What a journal tells of a core, done again with the storage's own verbs.

What was removed is removed by key, never by drawing again; so the rules of the table play no
part, and may be others than they were. Items that came and left one by one are put and removed
together, as long as nothing else happened in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from recollect.base.arrays import Array, Ints, Keys
from recollect.data.columns import Columns
from recollect.data.ragged import Ragged
from recollect.data.rows_per_item import ONE_ROW
from recollect.data.schema import Rows, Schema
from recollect.durability.format import schema_from_json
from recollect.durability.journal.records import (
    AMENDED,
    ARCHIVED,
    COLUMNS,
    INSERTED,
    LEASED,
    REMOVED,
    RESTARTED,
    RETURNED,
    SAMPLED,
    STATE,
    UPDATED,
    Section,
    Told,
    between,
    rows_of,
)
from recollect.errors import JournalError
from recollect.storage.base import NewItems
from recollect.storage.fields import DTYPES, absent_of
from recollect.storage.memory.storage import MemoryStorage
from recollect.table.core import TableCore

TOGETHER = 1024  # effects, at most


class Replayed(Protocol):
    """Whose table a journal makes again."""

    @property
    def core(self) -> TableCore: ...

    def restore_state(self, state: dict[str, Any]) -> None: ...


class TableReplay:
    """Replays records into one core, under its lock."""

    def __init__(self, whose: Replayed) -> None:
        self._whose = whose
        self._leased: set[int] = set()

    @property
    def core(self) -> TableCore:
        return self._whose.core

    @property
    def _storage(self) -> MemoryStorage:
        storage = self._whose.core.storage
        assert isinstance(storage, MemoryStorage)
        return storage

    def replay(self, section: Section, covered: int) -> None:
        """Do what a record tells; up to position `covered` the table has it already."""
        run = _Run(self, section)
        for told in section.effects:
            if told.position <= covered:
                self._pass_over(told, section)
            elif told.kind in (INSERTED, REMOVED):
                run.add(told)
            else:
                run.end()
                self._do(told, section)
                self.done(told)
        run.end()

    def done(self, told: Told) -> None:
        """An effect has its number again."""
        effects = self.core.effects
        effects.number = max(effects.number, told.number)

    def _pass_over(self, told: Told, section: Section) -> None:
        """The snapshot has it; its rows are not needed."""
        if told.kind == INSERTED:
            section.rows.take(_rows_in(told))
            if self.core.schemas.shared is not None:
                section.shared.take(told.keys.size)
        elif told.kind == AMENDED:
            section.late.take(int(told.per_item.sum()))

    def _do(self, told: Told, section: Section) -> None:
        core, storage, keys = self.core, self._storage, told.keys
        if told.kind == AMENDED:
            assert core.schemas.rows is not None
            columns = section.late.take(int(told.per_item.sum()))
            self._amend(keys, rows_of(columns, core.schemas.rows), told.per_item)
        elif told.kind == UPDATED:
            fields = self._fields(told)
            if told.values.size:
                fields["priority"] = told.values
            storage.update(keys, fields)
        elif told.kind == LEASED:
            storage.add_times(keys, np.ones(keys.size, np.int64))
            storage.hide(keys)
            self._leased.update(keys.tolist())
            core.counts.samples += keys.size
        elif told.kind == RETURNED:
            self._leased.difference_update(keys.tolist())
            core.counts.samples -= storage.show(keys, returned=True)
        elif told.kind == ARCHIVED:
            self._leased.difference_update(keys.tolist())
            storage.show(keys, returned=False)
        elif told.kind == SAMPLED:
            storage.add_times(keys, told.values.astype(np.int64))
            core.counts.samples += int(told.values.sum())
        elif told.kind == COLUMNS:
            self._set_columns(told.about)
        elif told.kind == STATE:
            self._whose.restore_state(told.about)
        elif told.kind == RESTARTED:
            self.end_leases()

    # -- coming and leaving -----------------------------------------------------------------------
    def insert(self, told: Sequence[Told], rows: Columns, shared: Columns | None) -> None:
        """Put items that came one after another, under their keys."""
        core = self.core
        assert core.schemas.rows is not None
        cells = None
        if shared is not None:
            assert core.schemas.shared is not None
            cells = rows_of(shared, core.schemas.shared)
        keys = np.concatenate([each.keys for each in told])
        new = NewItems(
            rows_of(rows, core.schemas.rows),
            cells,
            _per_item(told),
            keys.size,
            _for_each([each.values for each in told], told),
            self._fields_of(told),
            told[-1].at,
        )
        self._put(keys, new, told)
        core.counts.inserts += new.count
        for each in told:
            if "request" in each.about:
                producer, number = each.about["request"]
                core.requests.remember((producer, number), each.keys)

    def _put(self, keys: Keys, new: NewItems, told: Sequence[Told]) -> None:
        storage, items = self._storage, self._storage.items
        items.next_key = int(keys[0])
        room = len(storage) + new.count
        if room > items.capacity:  # a table that is smaller now is trimmed when all is replayed
            items.capacity = room
        if not np.array_equal(storage.insert(new), keys):
            raise JournalError("the journal has keys that do not follow each other")
        if any(each.at != new.inserted_at for each in told):
            times = np.repeat([each.at for each in told], [each.keys.size for each in told])
            items.set_inserted_at(keys, times)

    def by_arrival_time(self) -> bool:
        """Whether somebody orders items by when they came: then each comes by itself."""
        return self._storage.index_set.orders_by("inserted_at")

    def remove(self, keys: Keys, reason: str) -> None:
        """Items left."""
        core, storage = self.core, self._storage
        listed = keys.tolist()
        if reason == "taken":  # what was leased counted when it was handed out
            core.counts.samples += keys.size - len(self._leased.intersection(listed))
        self._leased.difference_update(listed)
        storage.hide(keys)
        storage.remove(keys, False)
        self.left(keys.size, reason)

    def left(self, count: int, reason: str) -> None:
        """Count items that left."""
        self.core.counts.left(count, reason)

    # -- fields -----------------------------------------------------------------------------------
    def _fields(self, told: Told) -> dict[str, Any]:
        """Fields as they were checked: arrays of the type that the field has."""
        given = told.about.get("fields", {})
        return {
            name: self._array(name, value) if isinstance(value, list) else value
            for name, value in given.items()
        }

    def _array(self, name: str, values: list[Any]) -> Array:
        kind = self.core.fields.kinds[name]
        if kind == "str":
            array = np.empty(len(values), object)
            array[:] = values
            return array
        absent = absent_of(name, kind)
        return np.array([absent if v is None else v for v in values], DTYPES[kind])

    def _fields_of(self, told: Sequence[Told]) -> dict[str, Any]:
        if len(told) == 1:
            return self._fields(told[0])
        names = {name: None for each in told for name in each.about.get("fields", ())}
        fields: dict[str, Any] = {}
        for name in names:
            values: list[Any] = []
            for each in told:
                value = each.about.get("fields", {}).get(name)
                values += value if isinstance(value, list) else [value] * each.keys.size
            fields[name] = self._array(name, values)
        return fields

    def _amend(self, keys: Keys, rows: Rows, per_item: NDArray[np.int32]) -> None:
        schema, storage = self.core.schemas.rows, self._storage
        assert schema is not None
        if storage.find(keys, None, visible=False).size < keys.size:
            return  # some were left out when a smaller table was loaded
        stored = storage.get(keys, None).read(np.empty)
        before = rows_of(stored, schema)
        starts = np.concatenate([[0], np.cumsum(per_item)[:-1]])
        gained = np.add.reduceat(_payload(schema, rows), starts)
        gained -= np.add.reduceat(_payload(schema, before), stored.info.row_offsets[:-1])
        storage.amend(keys, rows, per_item, gained)

    def _set_columns(self, about: dict[str, Any]) -> None:
        core = self.core
        rows = schema_from_json(about["columns"], "column")
        shared = schema_from_json(about["shared"], "shared column")
        assert rows is not None
        known = core.schemas.rows
        if known is None:
            core.set_schema(rows, shared)
            return
        for name, column in known.columns.items():
            if rows.columns.get(name) != column:
                raise JournalError(
                    f"table {core.name!r}: its journal has no column {name!r} of {column}; make "
                    "the table with the signature that it had, or give it a new journal"
                )
        if len(rows.columns) > len(known.columns):
            core.set_schema(rows, core.schemas.shared)

    # -- leases -----------------------------------------------------------------------------------
    def lease_again(self, keys: Keys) -> None:
        """A snapshot was loaded, which takes what was leased as given back: undo that."""
        found = self._storage.lease_again(keys)
        self._leased.update(found.tolist())
        self.core.counts.samples += found.size

    def end_leases(self) -> bool:
        """What is leased is available again, and a delivery is counted; whether there was any."""
        leased = np.array(sorted(self._leased), np.uint64)
        self._leased.clear()
        if leased.size:
            self.core.counts.samples -= self._storage.show(leased, returned=True)
        return leased.size > 0


def restore_counts(core: TableCore, state: dict[str, Any]) -> None:
    """Counters and random numbers, as they were at the end of a record."""
    storage = core.storage
    assert isinstance(storage, MemoryStorage)
    core.counts.restore(state)
    selectors = (core.rules.sampler, core.rules.remover)
    storage.executor.restore(state, {repr(each): each for each in selectors})


class _Run:
    """Items that come and leave, and nothing else in between."""

    def __init__(self, replay: TableReplay, section: Section) -> None:
        self._replay, self._section = replay, section
        self._came: list[Told] = []
        self._left: list[Told] = []
        self._rows = self._items = 0

    def add(self, told: Told) -> None:
        if told.kind == REMOVED:
            self._left.append(told)
            return
        rows = _rows_in(told)
        if self._came and not self._fits(rows, told.keys.size):
            self.end()
        self._came.append(told)
        self._rows += rows
        self._items += told.keys.size

    def _fits(self, rows: int, items: int) -> bool:
        if len(self._came) >= TOGETHER or self._replay.by_arrival_time():
            return False
        if self._rows + rows > self._section.rows.left:
            return False
        shared = self._replay.core.schemas.shared is not None
        return not shared or self._items + items <= self._section.shared.left

    def end(self) -> None:
        """Remove what left, and put what came and is still there."""
        came, left, replay = self._came, self._left, self._replay
        self._came, self._left = [], []
        new = np.concatenate([told.keys for told in came]) if came else np.zeros(0, np.uint64)
        gone = np.concatenate([told.keys for told in left]) if left else np.zeros(0, np.uint64)
        alive = ~np.isin(new, gone)
        reasons: dict[str, list[Keys]] = {}
        for told in left:
            reasons.setdefault(told.about["reason"], []).append(told.keys)
        for reason, keys in reasons.items():
            named = np.concatenate(keys)
            stored = named if alive.all() else named[~np.isin(named, new)]
            if stored.size:
                replay.remove(stored, reason)
            if stored.size < named.size:
                replay.left(named.size - stored.size, reason)
        if came:
            self._put(came, alive)
        for told in (*came, *left):
            replay.done(told)
        self._rows = self._items = 0

    def _put(self, came: list[Told], alive: NDArray[np.bool_]) -> None:
        """Put items together whose keys follow each other, and leave out what is gone again."""
        rows = self._section.rows.take(self._rows)
        shared = None
        if self._replay.core.schemas.shared is not None:
            shared = self._section.shared.take(self._items)
        together: list[Told] = []
        row = item = first_row = first_item = 0
        for told in came:
            size = told.keys.size
            here = alive[item : item + size]
            follows = not together or int(told.keys[0]) == int(together[-1].keys[-1]) + 1
            if together and not (follows and here.all()):
                self._insert(together, rows, shared, (first_row, row), (first_item, item))
                together = []
            if not together:
                first_row, first_item = row, item
            row, item = row + _rows_in(told), item + size
            if here.all():
                together.append(told)
            elif here.any():  # put all of the call, and remove some
                self._insert([told], rows, shared, (first_row, row), (first_item, item))
                storage = self._replay._storage
                storage.hide(told.keys[~here])
                storage.remove(told.keys[~here], False)
            else:
                self._skip(told)
        if together:
            self._insert(together, rows, shared, (first_row, row), (first_item, item))

    def _insert(
        self,
        told: list[Told],
        rows: Columns,
        shared: Columns | None,
        some_rows: tuple[int, int],
        items: tuple[int, int],
    ) -> None:
        cells = None if shared is None else between(shared, *items)
        self._replay.insert(told, between(rows, *some_rows), cells)

    def _skip(self, told: Told) -> None:
        """Items came and left: only counts and requests tell of them."""
        core = self._replay.core
        core.counts.inserts += told.keys.size
        if "request" in told.about:
            producer, number = told.about["request"]
            core.requests.remember((producer, number), told.keys)


def _rows_in(told: Told) -> int:
    if told.per_item.size == 1:
        return int(told.per_item[0]) * told.keys.size
    return int(told.per_item.sum())


def _per_item(told: Sequence[Told]) -> NDArray[np.int32]:
    """Rows of each item, or one number for all."""
    if all(each.per_item.size == 1 and each.per_item[0] == 1 for each in told):
        return ONE_ROW
    if len(told) == 1:
        return told[0].per_item
    return _for_each([each.per_item for each in told], told)


def _for_each(values: Sequence[Array], told: Sequence[Told]) -> Array:
    """One value for each item, where calls gave one for each of theirs or one for all."""
    if len(told) == 1:
        return values[0]
    repeats = [1 if v.size > 1 else t.keys.size for v, t in zip(values, told, strict=True)]
    sizes = [value.size for value in values]
    return np.repeat(np.concatenate(values), np.repeat(repeats, sizes))


def _payload(schema: Schema, rows: Rows) -> Ints:
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
