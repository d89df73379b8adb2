"""The items of a table in memory: their records and fields, by slot.

Kernels see everything through one block of numbers and addresses (`kernels.layout`). `Items`
owns the arrays behind the addresses and writes an address anew whenever it replaces an array.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recollect.base.arrays import Array, Ints, Keys
from recollect.kernels import layout
from recollect.rules.query import FieldType, FieldValues
from recollect.storage.buffers import aligned_zeros
from recollect.storage.fields import BUILT_IN, FieldArray, FieldValue
from recollect.storage.memory.indexes import IndexedValue

FEWEST_SLOTS = 256
WORDS = 4  # of a record


class Items:
    """Slots, keys and fields. Its caller holds the lock."""

    def __init__(self, kernels: Any, capacity: int, fields: Mapping[str, FieldType]) -> None:
        self._kernels = kernels.items
        self._saving = kernels.captures
        self.capacity = capacity  # items that it makes room for; a promise may exceed the table's
        self.types = fields
        self.block: Ints = np.zeros(layout.ITEMS_BLOCK, np.int64)
        self.now = memoryview(self.block)  # type: ignore[arg-type]  # the same numbers, quicker to read one by one
        self.fields: dict[str, FieldArray] = {}
        self.owned: dict[int, Array] = {}
        self.unset = {n: FieldArray(n, kind, 1) for n, kind in fields.items() if n not in BUILT_IN}
        self.plain = True  # whether an item is one row and has no fields beyond its record
        self.growing = False  # whether slots became more, and indexes do not know it yet
        self._maxima: Any = memoryview(np.zeros(1))  # type: ignore[arg-type]
        origin = np.uint64(secrets.randbits(20) << layout.COUNTER_BITS)
        self.block[layout.ORIGIN] = origin.view(np.int64)
        self.block[layout.FREE_HEAD] = self.block[layout.FREE_TAIL] = -1
        self.records = np.zeros((0, WORDS), np.int64)  # a record by slot, see `kernels.layout`
        self.resize(min(FEWEST_SLOTS, capacity))

    # -- memory ---------------------------------------------------------------------------------
    def _own(self, position: int, array: Array) -> None:
        """Keep an array alive, and let kernels see it."""
        self.owned[position] = array
        self.block[position] = array.ctypes.data

    def keep(self, position: int) -> None:
        """Begin to keep an array by slot that not every table needs."""
        if position not in self.owned:
            dtype, fill = _BY_SLOT[position]
            self._own(position, _grown(None, self.now[layout.SLOTS], dtype, fill))
            self.plain = False

    def make_room(self, more: int) -> bool:
        """Have slots for so many more items; returns whether indexes must grow too, which ends
        `growing`: where there was no memory for them, they are behind until the next call.
        """
        now = self.now
        live, slots = now[layout.LIVE], now[layout.SLOTS]
        if live + more > slots:
            self.growing = True
            self.resize(min(self.capacity, max(2 * slots, live + more)))
        self.reserve_hash(more)
        return self.growing

    def reserve_hash(self, more: int) -> None:
        """Have room for so many more displaced items."""
        displaced = self.now[layout.DISPLACED] + more
        if 2 * displaced > self.now[layout.HASH_SIZE]:
            self._resize_hash(displaced)

    def _resize_hash(self, displaced: int) -> None:
        self._own_hash(displaced)
        self._kernels.rebuild_hash(self.block)

    def _own_hash(self, displaced: int) -> None:
        """An empty hash, with room for so many."""
        size = max(64, 1 << (2 * displaced).bit_length())
        self.block[layout.HASH_SIZE] = size
        self.block[layout.DISPLACED] = 0
        self._own(layout.A_HASH, np.zeros(size, np.int32))

    def resize(self, slots: int) -> None:
        """Give every array by slot so many slots."""
        before = self.now[layout.SLOTS]
        self.have_slots(slots)
        self.records[before:, layout.PRIORITY].view(np.float64)[:] = -1.0
        self._kernels.add_slots(self.block, before)
        self.rebuild()

    def have_slots(self, slots: int) -> None:
        """The same, for a caller that writes the records of new slots itself."""
        # what takes memory comes first: where there is none, nothing has changed
        records = aligned_zeros(((slots + 15) & ~15, WORDS), np.int64)
        by_slot = {}
        for position in [p for p in self.owned if p in _BY_SLOT] or [layout.A_INSERTED]:
            dtype, fill = _BY_SLOT[position]
            by_slot[position] = _grown(self.owned.get(position), slots, dtype, fill)
        fields = [(field, field.resized(slots)) for field in self.fields.values()]
        self.block[layout.SLOTS] = slots
        records[: len(self.records)] = self.records
        self.records = records
        self._own(layout.A_RECORD, records)
        self.key: Keys = records[:slots, layout.KEY].view(np.uint64)
        self.location: Ints = records[:slots, layout.LOCATION]
        self.priority: NDArray[np.float64] = records[:slots, layout.PRIORITY].view(np.float64)
        self.times: NDArray[np.int32] = records.view(np.int32)[:slots, layout.TIMES]
        self.state: NDArray[np.int8] = records.view(np.int8)[:slots, layout.STATE]
        for position, array in by_slot.items():
            self._own(position, array)
        for field, values in fields:
            field.array = values
        self._show_version()

    def rebuild(self) -> None:
        """After records were written from outside: find keys and maxima again."""
        displaced = self._saving.count_displaced(self.block)
        if displaced:
            self._resize_hash(displaced)
        else:
            self._own_hash(0)
        if layout.A_PMAX in self.owned:
            self._own_maxima()

    def _own_maxima(self) -> None:
        size, width = 0, self.now[layout.SLOTS]
        while width > 1 or not size:
            width = (width + 15) >> 4
            size += (width + 15) & ~15
        self._own(layout.A_PMAX, np.empty(size))
        self._own(layout.A_LOOSE, np.empty(size, np.int8))
        self._maxima = memoryview(self.owned[layout.A_PMAX])  # type: ignore[arg-type]
        self._kernels.rebuild_maxima(self.block)

    # -- priorities -----------------------------------------------------------------------------
    def use_priorities(self) -> None:
        """Begin to follow the highest priority: until now every item had 1.0."""
        if layout.A_PMAX not in self.owned:
            self._own_maxima()

    def highest_priority(self) -> float:
        now = self.now
        if not now[layout.A_PMAX] or not now[layout.LIVE]:
            return 1.0
        if now[layout.PMAX_LOOSE]:
            self._kernels.settle_maxima(self.block)
        highest: float = self._maxima[now[layout.PMAX_TOP]]
        return highest

    # -- which items ----------------------------------------------------------------------------
    def visible(self) -> Ints:
        return np.flatnonzero(self.state == layout.VISIBLE)

    def stored(self) -> Ints:
        return np.flatnonzero(self.state != layout.FREE)

    def still_visible(self, slots: Ints) -> Ints:
        """Those of some items that are visible."""
        visible: Ints = slots[self.state[slots] == layout.VISIBLE]
        return visible

    def slots_of(self, keys: Keys) -> Ints:
        """The slot of each key, -1 for those whose items have gone."""
        return self.slots_found(keys)[0]

    def slots_found(self, keys: Keys) -> tuple[Ints, int]:
        """The same, and how many are there."""
        slots = np.empty(keys.size, np.int64)
        return slots, self._kernels.find_slots(self.block, keys, slots)

    @property
    def next_key(self) -> int:
        """The key that the next item gets; those after it follow."""
        origin, counter = self.now[layout.ORIGIN], self.now[layout.COUNTER]
        return int(np.int64(origin | counter).view(np.uint64))

    @next_key.setter
    def next_key(self, key: int) -> None:
        self.block[layout.COUNTER] = key & layout.COUNTER_MASK
        self.block[layout.ORIGIN] = np.uint64(key & ~layout.COUNTER_MASK).view(np.int64)

    def skip_keys(self, upto: int) -> None:
        """Go on with this key at the earliest, where keys have the same origin."""
        same = upto >> layout.COUNTER_BITS == self.next_key >> layout.COUNTER_BITS
        if same and upto > self.next_key:
            self.next_key = upto

    def origins(self) -> list[int]:
        """The origins of all keys: that of new ones, and those of items that were merged in."""
        own = self.next_key >> layout.COUNTER_BITS
        if layout.A_SEQ not in self.owned:  # nothing was merged in
            return [own]
        keys = self.key[self.stored()] >> np.uint64(layout.COUNTER_BITS)
        found = np.flatnonzero(np.bincount(keys.astype(np.int64), minlength=1))
        return sorted({own, *found.tolist()})

    def inserted_at(self, keys: Keys) -> NDArray[np.float64]:
        """When stored items came."""
        return self.owned[layout.A_INSERTED][self.slots_of(keys)]

    def set_inserted_at(self, keys: Keys, times: NDArray[np.float64]) -> None:
        """Stored items came at these times, as a journal tells."""
        self.owned[layout.A_INSERTED][self.slots_of(keys)] = times

    def seq(self, slots: Ints) -> Ints:
        """Arrival order."""
        if layout.A_SEQ in self.owned:
            return self.owned[layout.A_SEQ][slots]
        return (self.key[slots] & np.uint64(layout.COUNTER_MASK)).astype(np.int64)

    def rows(self, slots: Ints) -> NDArray[np.int32]:
        if layout.A_ROWS in self.owned:
            return self.owned[layout.A_ROWS][slots]
        return np.ones(slots.size, np.int32)

    def nbytes(self, slots: Ints) -> Ints:
        if layout.A_NBYTES in self.owned:
            return self.owned[layout.A_NBYTES][slots]
        return self.rows(slots).astype(np.int64) * self.now[layout.ROW_BYTES]

    def keep_sizes(self) -> None:
        """From now on items differ in size: write down what each has."""
        if layout.A_NBYTES not in self.owned:
            sizes = self.nbytes(np.arange(self.now[layout.SLOTS]))
            self._own(layout.A_NBYTES, sizes)

    # -- fields ---------------------------------------------------------------------------------
    def field(self, name: str) -> FieldArray:
        """A settable field's array, made when it is first needed."""
        field = self.fields.get(name)
        if field is None:
            field = FieldArray(name, self.types[name], self.now[layout.SLOTS])
            self.fields[name] = field
            self.unset.pop(name, None)
            self.plain = False
            self._show_version()
        return field

    def _show_version(self) -> None:
        version = self.fields.get("version")
        if version is not None:
            self._own(layout.A_VERSION, version.array)

    def write_new(self, slots: Ints, given: Mapping[str, FieldValue]) -> None:
        """Set the fields of new items: what was given, and absent for the rest."""
        for name in given:
            self.field(name)
        for name, field in self.fields.items():
            field.write(slots, given.get(name))
        for position in (layout.A_DELIVERIES, layout.A_REVISION):
            if position in self.owned:
                self.owned[position][slots] = 0

    def number_new(self, slots: Ints) -> None:
        """Where arrival order stands by slot: new items come after those that were merged in."""
        if layout.A_SEQ in self.owned:
            counters = self.key[slots] & np.uint64(layout.COUNTER_MASK)
            self.owned[layout.A_SEQ][slots] = counters.astype(np.int64)

    def newest_version(self, slots: Ints, by: str) -> float:
        """The highest version among items that a field gives weight, 0 where there is none."""
        version = self.fields.get("version")
        if version is None:
            return 0.0
        positive = self.values(by, slots).values > 0  # no marker of an absent value is
        return float(version.array[slots[positive]].max(initial=0))

    def values(self, name: str, slots: Ints) -> FieldValues:
        """A field of some items, as queries want it."""
        if name in self.fields:
            return self.fields[name].values(slots)
        if name == "key":
            return FieldValues(self.key[slots])
        if name == "seq":
            return FieldValues(self.seq(slots))
        if name == "times_sampled":
            return FieldValues(self.times[slots])
        if name == "inserted_at":
            return FieldValues(self.owned[layout.A_INSERTED][slots])
        if name == "priority":
            return FieldValues(self.priority[slots])
        if name == "rows":
            return FieldValues(self.rows(slots))
        if name == "nbytes":
            return FieldValues(self.nbytes(slots))
        return FieldArray(name, self.types[name], 1).values(np.zeros_like(slots))

    def seen(self, name: str, slots: Ints) -> list[Any]:
        """A field as Python objects, None where absent."""
        if name not in self.fields and name not in ("task", "status", "version"):
            plain: list[Any] = self.values(name, slots).values.tolist()
            if name in ("key", "seq", "times_sampled", "inserted_at", "priority", "rows", "nbytes"):
                return plain
        field = self.field(name)
        absent = field.absent
        return [
            None if v is None or v != v or v == absent else v for v in field.read(slots).tolist()
        ]

    def indexed_value(self, by: str) -> IndexedValue:
        """Where an order or a weight by a field finds its values."""
        if by in _RECORDED:
            return IndexedValue(_RECORDED[by])
        if by == "inserted_at":
            return IndexedValue(layout.BY_FLOAT64, self.owned[layout.A_INSERTED])
        field = self.field(by)
        kinds = {"int": layout.BY_INT64, "float": layout.BY_FLOAT64, "bool": layout.BY_INT8}
        absent = 0 if field.kind == "float" else int(field.absent)
        return IndexedValue(kinds[field.kind], field.array, absent)


_BY_SLOT: dict[int, tuple[Any, Any]] = {
    layout.A_INSERTED: (np.float64, 0),
    layout.A_SHARED: (np.int64, 0),
    layout.A_SHARED_NBYTES: (np.int64, 0),
    layout.A_ROWS: (np.int32, 1),
    layout.A_NBYTES: (np.int64, 0),
    layout.A_SEQ: (np.int64, 0),
    layout.A_DELIVERIES: (np.int32, 0),
    layout.A_REVISION: (np.int32, 0),
    layout.A_PARTITION: (np.int32, 0),
}
_RECORDED = {
    "seq": layout.BY_SEQ,
    "key": layout.BY_KEY,
    "priority": layout.BY_PRIORITY,
    "times_sampled": layout.BY_TIMES,
    "rows": layout.BY_ROWS,
    "nbytes": layout.BY_NBYTES,
}


def _grown(array: Array | None, size: int, dtype: Any, fill: Any) -> Array:
    grown = aligned_zeros((size,), dtype)
    if fill != 0:
        grown[:] = fill
    if array is not None:
        grown[: array.size] = array
    return grown
