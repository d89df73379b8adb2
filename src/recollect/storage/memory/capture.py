"""The whole state of a memory storage, copied as numbers, arrays and rows.

A capture holds everything that decides what later calls return: which slot each item stands
in, the order of free slots and of the members of dense sets, random numbers, shares of
mixtures. So a restored storage draws what the captured one would have drawn.

Whoever uses the table waits while records are compared with those that are on disk and other
arrays are copied, and for nothing else: `Pages` has their memory ready, with every page touched;
rows are read later, from segments that the capture holds.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recollect.base.arrays import Array, Ints, Keys
from recollect.data.batch import Batch
from recollect.kernels import layout
from recollect.kernels.load import load
from recollect.storage.buffers import Allocate
from recollect.storage.copy_thread import in_parts
from recollect.storage.memory.indexes import Index
from recollect.storage.memory.items import WORDS
from recollect.storage.memory.saved_items import FIXED, RECORDED, Saved, recorded
from recollect.storage.memory.storage import MemoryStorage
from recollect.storage.row_reader import Reader

DIFFERING_PARTS = 8  # that two threads share


class Pages:
    """Memory for the next capture. `touch` is called without the lock."""

    def __init__(self) -> None:
        self._free: dict[int, list[NDArray[np.uint8]]] = {}
        self.before: Ints | None = None

    def touch(self, storage: MemoryStorage, before: Ints | None) -> None:
        """Have memory for every array as large as it is now, with all of its pages mapped.

        `before` are the records that are on disk: what a capture then copies are the others.
        """
        self.before = before
        for array in _copied(storage):
            if array is storage.items.records and before is not None:
                continue
            memory = np.empty(array.nbytes, np.uint8)
            memory[::1024] = 0
            self._free.setdefault(array.nbytes, []).append(memory)

    def copy(self, array: Array) -> Array:
        """A copy, in pages that are there where `touch` saw the array."""
        ready = self._free.get(array.nbytes)
        if not ready:
            return array.copy()
        copy: Array = ready.pop().view(array.dtype).reshape(array.shape)
        copy[...] = array
        return copy


def _copied(storage: MemoryStorage) -> list[Array]:
    """The large arrays that a capture copies."""
    items = storage.items
    arrays = [items.records, items.owned[layout.A_INSERTED]]
    arrays += [items.owned[p] for p in (*FIXED.values(), layout.A_DELIVERIES) if p in items.owned]
    arrays += [items.owned[p] for p in (layout.A_SHARED,) if p in items.owned]
    arrays += [field.array for field in list(items.fields.values())]
    for index in list(storage.index_set.indexes):
        if layout.A_MEMBERS in index.arrays:
            arrays.append(index.arrays[layout.A_MEMBERS][: index.count])
    return arrays


@dataclass
class Capture:
    """What was captured. Arrays by slot mean nothing in slots that are not in `slots`."""

    numbers: dict[str, Any]  # can be JSON
    count: int  # of stored items
    key: Keys  # by slot
    fixed: dict[str, Array]  # by slot; they stay as they are while key and revision do
    changing: dict[str, Array]  # by slot
    arrays: dict[str, Array] = field(default_factory=dict)  # free slots, members of dense sets
    row_bytes: int = 0  # of an item's row, where `fixed` has no nbytes
    records: Ints | None = None  # by slot, of a table: key, location, priority, times and state
    changed: Ints | None = None  # slots whose records are not what they were, rising
    old: Ints | None = None  # and what those were
    leased: Ints | None = None  # slots
    reader: tuple[Reader, Ints] | None = None  # of rows, and where each slot's are
    shared_reader: tuple[Reader, Ints] | None = None  # the same of shared cells
    _slots: Ints | None = None
    _applied: bool = False

    @property
    def slots(self) -> Ints:
        """Those of the stored items, rising."""
        if self._slots is None:
            assert self.records is not None
            states = self.records.view(np.int8)[: self.key.size, layout.STATE]
            self._slots = np.flatnonzero(states != layout.FREE)
        return self._slots

    @slots.setter
    def slots(self, slots: Ints) -> None:
        self._slots = slots
        self.count = slots.size

    def before(self, name: str, slots: Ints) -> Array:
        """What priority or times_sampled was on disk, where the record changed."""
        assert self.changed is not None
        assert self.old is not None
        places = np.searchsorted(self.changed, slots)
        return recorded(self.old, name)[places]

    def undo(self) -> None:
        """What was captured is not on disk: let `records` be again what is."""
        if self._applied:
            assert self.records is not None
            assert self.old is not None
            self.records[self.changed] = self.old
            self._applied = False

    def seq(self, slots: Ints) -> Ints:
        """Arrival order."""
        if "seq" in self.fixed:
            return self.fixed["seq"][slots]
        return (self.key[slots] & np.uint64(layout.COUNTER_MASK)).astype(np.int64)

    def arranged(self, slots: Ints) -> Ints:
        """The order in which items are written to a segment: that of arrival."""
        return slots

    def rows(self, slots: Ints) -> NDArray[np.int32] | None:
        """How many rows items have; None where each has one."""
        return self.fixed["rows"][slots] if "rows" in self.fixed else None

    @property
    def sizes_differ(self) -> bool:
        """Whether items may differ in payload."""
        return "nbytes" in self.fixed or "rows" in self.fixed

    def nbytes(self, slots: Ints) -> Ints:
        """Payload of items."""
        if "nbytes" in self.fixed:
            return self.fixed["nbytes"][slots]
        rows = self.rows(slots)
        if rows is None:
            return np.full(slots.size, self.row_bytes, np.int64)
        return rows.astype(np.int64) * self.row_bytes

    def read(self, slots: Ints, allocate: Allocate = np.empty) -> Batch:
        """The rows and shared cells of items; needs no lock."""
        columns, present = _gather(self.reader, slots, self.rows(slots), allocate)
        shared = shared_present = None
        if self.shared_reader is not None:
            shared, shared_present = _gather(self.shared_reader, slots, None, allocate)
        return Batch._make(columns, None, shared, present, shared_present)


def _gather(
    held: tuple[Reader, Ints] | None,
    slots: Ints,
    rows: NDArray[np.int32] | None,
    allocate: Allocate,
) -> tuple[dict[str, Any], dict[str, NDArray[np.bool_]] | None]:
    assert held is not None
    reader, locations = held
    return reader.at(locations[slots], rows).collect(allocate)


def capture(storage: MemoryStorage, pages: Pages | None = None) -> Capture:
    """Copy the state, under the lock; `finish` makes of it what can be written.

    Leases are over: what is leased is saved as given back.
    """
    items, index_set = storage.items, storage.index_set
    pages = pages or Pages()
    copy = pages.copy
    slots = items.now[layout.SLOTS]
    changed = found = None
    if pages.before is None:
        records = copy(items.records)[:slots]
    else:
        records = pages.before
        if len(records) < slots:
            more = np.zeros((slots - len(records), WORDS), np.int64)
            records = np.concatenate([records, more])
        changed, found = _differing(items.records[:slots], records)
    leased = np.flatnonzero(items.state == layout.LEASED) if storage.hidden else None
    fixed = {"inserted_at": copy(items.owned[layout.A_INSERTED])}
    for name, position in FIXED.items():
        if position in items.owned:
            fixed[name] = copy(items.owned[position])
    changing: dict[str, Array] = {}
    if layout.A_DELIVERIES in items.owned:
        changing["deliveries"] = copy(items.owned[layout.A_DELIVERIES])
    for name, field_ in items.fields.items():
        changing[f"field.{name}"] = copy(field_.array)
    numbers = {
        "slots": slots,
        "counter": items.now[layout.COUNTER],
        "origin": int(np.int64(items.now[layout.ORIGIN]).view(np.uint64)) >> layout.COUNTER_BITS,
        "free_head": items.now[layout.FREE_HEAD],
        "texts": {n: list(f.names) for n, f in items.fields.items() if f.kind == "str"},
        "follows_priorities": layout.A_PMAX in items.owned,
        "counts_zeros": index_set.counts_zeros,
        **storage.executor.capture(),
        "partitions": [list(values) for values in index_set.partitions.all()],
        "whole": [_described(index) for index in index_set.indexes.whole],
        "families": [kind.saved() for kind in index_set.indexes.families],
        "in_partitions": [
            [_described(index) for index in partition] for partition in index_set.indexes.partitions
        ],
    }
    arrays = {}
    for row, index in enumerate(index_set.indexes):
        if layout.A_MEMBERS in index.arrays:
            arrays[f"members.{row}"] = copy(index.arrays[layout.A_MEMBERS][: index.count])
    captured = Capture(
        numbers, items.now[layout.LIVE], records[:, layout.KEY].view(np.uint64), fixed, changing,
        arrays, items.now[layout.ROW_BYTES], records, changed, found, leased,
    )  # fmt: skip
    if storage.stores.rows is not None:
        captured.reader = storage.stores.rows.pin(_NONE, None), records[:, layout.LOCATION]
    if storage.stores.shared is not None:
        shared = copy(items.owned[layout.A_SHARED])
        captured.shared_reader = storage.stores.shared.pin(_NONE, None), shared
    return captured


def _differing(records: Ints, before: Ints) -> tuple[Ints, Ints]:
    """The slots whose records are others than before, and these records; in two threads.

    What is written here takes no pages that nobody needs: most of it is empty, most of the time.
    """
    size = len(records)
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    memory = mmap.mmap(-1, max(1, size * (8 * WORDS + 4)), flags=private)
    found = np.frombuffer(memory, np.int64, size * WORDS).reshape(size, WORDS)
    slots = np.frombuffer(memory, np.int32, size, size * WORDS * 8)
    bounds = np.unique(np.linspace(0, size, DIFFERING_PARTS + 1).astype(np.int64)).tolist()
    counts: dict[int, int] = {}
    differing = load().captures.differing

    def compare(begin: int, end: int) -> None:
        counts[begin] = differing(records, before, begin, end, slots, found)

    in_parts(compare, bounds)
    parts = [slice(begin, begin + count) for begin, count in sorted(counts.items())]
    return (
        np.concatenate([slots[part] for part in parts]).astype(np.int64),
        np.concatenate([found[part] for part in parts]),
    )


def finish(captured: Capture) -> Capture:
    """Make of the copied records what can be written, without the lock."""
    numbers, changing = captured.numbers, captured.changing
    records, leased = captured.records, captured.leased
    assert records is not None
    if captured.changed is not None:
        assert captured.old is not None
        captured.old, found = records[captured.changed], captured.old
        captured._applied = True
        records[captured.changed] = found
    elif leased is not None:
        recorded(records, "times_sampled")[leased] -= 1
        records.view(np.int8)[leased, layout.STATE] = layout.VISIBLE
    numbers["leased"] = 0 if leased is None else leased.size
    if leased is not None and leased.size:
        deliveries = changing.setdefault("deliveries", np.zeros(len(records), np.int32))
        deliveries[leased] += 1
    for name in RECORDED:
        changing[name] = recorded(records, name)
    captured.arrays["free"] = _free_slots(
        records, numbers.pop("free_head"), len(records) - captured.count
    )
    return captured


_NONE = np.zeros(0, np.int64)


def _free_slots(records: Ints, head: int, count: int) -> NDArray[np.int32]:
    """The free slots, in the order in which they will be used."""
    free = np.empty(count, np.int32)
    load().items.list_free(records.reshape(-1), head, free)
    return free


def _described(index: Index) -> dict[str, Any]:
    return {"kind": index.kind.saved(), "reference": index.reference}


def saved_of(captured: Capture) -> Saved:
    """What was captured, in order of arrival, as `restore` takes it."""
    slots = captured.slots[np.argsort(captured.seq(captured.slots), kind="stable")]
    items: dict[str, Array] = {"slot": slots, "key": captured.key[slots]}
    for name, array in (*captured.fixed.items(), *captured.changing.items()):
        items[name] = array[slots]
    return Saved(captured.numbers, items, captured.arrays)
