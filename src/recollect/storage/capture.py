"""The whole state of a memory storage, as numbers, arrays and rows, and back.

A capture holds everything that decides what later calls return: which slot each item stands
in, the order of free slots and of the members of dense sets, random numbers, shares of
mixtures. So a restored storage draws what the captured one would have drawn.

Whoever uses the table waits while arrays are copied, and for nothing else: `Pages` has their
memory ready, with every page touched; rows are read later, from segments that the capture holds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recollect.batch import Batch
from recollect.kernels import layout, load
from recollect.schema import Rows, Schema
from recollect.storage.base import ONE_ROW
from recollect.storage.fields import ABSENT_INT, absent_of
from recollect.storage.indexes import Index, IndexKind
from recollect.storage.indexing import SHOW
from recollect.storage.memory import MemoryStorage
from recollect.storage.rows import Allocate, Reader

Ints = NDArray[np.int64]
Keys = NDArray[np.uint64]
Array = NDArray[Any]

NO_INDEX = 1 << 60  # a dependency that no index has
FIXED = {  # arrays by slot that not every table has, and that change only with an item's rows
    "rows": layout.A_ROWS,
    "nbytes": layout.A_NBYTES,
    "shared_nbytes": layout.A_SHARED_NBYTES,
    "seq": layout.A_SEQ,
    "revision": layout.A_REVISION,
}
DEFAULTS = {"rows": 1, "revision": 0, "deliveries": 0, "shared_nbytes": 0}


def absent_value(name: str, dtype: Any) -> Any:
    """What an item has in a column that nobody had set when it was written."""
    if name in DEFAULTS:
        return DEFAULTS[name]
    if np.dtype(dtype).kind == "f":
        return math.nan
    if name == "field.version" or np.dtype(dtype).itemsize < 8:
        return -1  # of text, a code; of a bool
    return ABSENT_INT


class Pages:
    """Memory for the next capture. `touch` is called without the lock."""

    def __init__(self) -> None:
        self._free: dict[int, list[NDArray[np.uint8]]] = {}

    def touch(self, storage: MemoryStorage) -> None:
        """Have memory for every array as large as it is now, with all of its pages mapped."""
        for array in _copied(storage):
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
    items = storage._items
    arrays = [items._records, items.owned[layout.A_INSERTED]]
    arrays += [items.owned[p] for p in (*FIXED.values(), layout.A_DELIVERIES) if p in items.owned]
    arrays += [items.owned[p] for p in (layout.A_SHARED,) if p in items.owned]
    arrays += [field.array for field in list(items.fields.values())]
    for index in list(storage._indexing.indexes):
        if layout.A_MEMBERS in index.arrays:
            arrays.append(index.arrays[layout.A_MEMBERS][: index.count])
    return arrays


@dataclass
class Capture:
    """What was captured. Arrays by slot mean nothing in slots that are not in `slots`."""

    numbers: dict[str, Any]  # can be JSON
    slots: Ints  # of the stored items, rising
    key: Keys  # by slot
    fixed: dict[str, Array]  # by slot; they stay as they are while key and revision do
    changing: dict[str, Array]  # by slot
    arrays: dict[str, Array] = field(default_factory=dict)  # free slots, members of dense sets
    row_bytes: int = 0  # of an item's row, where `fixed` has no nbytes
    _rows: tuple[Reader, Ints] | None = None  # and where each slot's rows are
    _shared: tuple[Reader, Ints] | None = None

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
        columns, present = _gather(self._rows, slots, self.rows(slots), allocate)
        shared = shared_present = None
        if self._shared is not None:
            shared, shared_present = _gather(self._shared, slots, None, allocate)
        return Batch._make(columns, None, shared, present, shared_present)


def _gather(
    held: tuple[Reader, Ints] | None,
    slots: Ints,
    rows: NDArray[np.int32] | None,
    allocate: Allocate,
) -> tuple[dict[str, Any], dict[str, NDArray[np.bool_]] | None]:
    assert held is not None
    reader, locations = held
    return reader.at(locations[slots], rows).gather(allocate)


def capture(storage: MemoryStorage, pages: Pages | None = None) -> Capture:
    """Copy the state, under the lock; `finish` makes of it what can be written.

    Leases are over: what is leased is saved as given back.
    """
    items, indexing = storage._items, storage._indexing
    copy = (pages or Pages()).copy
    records = copy(items._records)
    slots = items.now[layout.SLOTS]
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
        "counts_zeros": indexing._zeros,
        "random": [int(word) for word in storage._random],
        "credits": [
            [repr(mixed), evicting, credit.tolist()]
            for (mixed, evicting), credit in storage._credits.items()
        ],
        "partitions": [list(values) for values in indexing.partitions.all()],
        "whole": [_described(index) for index in indexing.indexes.whole],
        "families": [asdict(kind) for kind in indexing.indexes.families],
        "in_partitions": [
            [_described(index) for index in partition] for partition in indexing.indexes.partitions
        ],
    }
    arrays = {}
    for row, index in enumerate(indexing.indexes):
        if layout.A_MEMBERS in index.arrays:
            arrays[f"members.{row}"] = copy(index.arrays[layout.A_MEMBERS][: index.count])
    key = records[:slots, layout.KEY].view(np.uint64)
    changing["record"] = records
    captured = Capture(numbers, _NONE, key, fixed, changing, arrays, items.now[layout.ROW_BYTES])
    if storage._rows is not None:
        captured._rows = storage._rows.pin(_NONE, None), records[:slots, layout.LOCATION]
    if storage._shared is not None:
        shared = copy(items.owned[layout.A_SHARED])
        captured._shared = storage._shared.pin(_NONE, None), shared
    return captured


def finish(captured: Capture) -> Capture:
    """Take the copied records apart, without the lock."""
    numbers, changing = captured.numbers, captured.changing
    records, count = changing.pop("record"), numbers["slots"]
    state = records.view(np.int8)[:count, layout.STATE]
    stored = state != layout.FREE
    leased = state == layout.LEASED
    captured.slots = np.flatnonzero(stored)
    captured.key = np.ascontiguousarray(captured.key)
    changing["priority"] = np.ascontiguousarray(records[:count, layout.PRIORITY]).view(np.float64)
    changing["times_sampled"] = np.ascontiguousarray(records.view(np.int32)[:count, layout.TIMES])
    numbers["leased"] = int(leased.sum())
    if numbers["leased"]:
        changing["times_sampled"] = changing["times_sampled"] - leased
        deliveries = changing.get("deliveries", np.zeros(count, np.int32))
        changing["deliveries"] = deliveries + leased.astype(np.int32)
    captured.arrays["free"] = _free_slots(
        captured.key.view(np.int64), numbers.pop("free_head"), count - captured.slots.size
    )
    return captured


_NONE = np.zeros(0, np.int64)


def _free_slots(links: Ints, head: int, count: int) -> NDArray[np.int32]:
    """The free slots, in the order in which they will be used."""
    free = np.empty(count, np.int32)
    load().items.list_free(links, head, free)
    return free


def _described(index: Index) -> dict[str, Any]:
    return {"kind": asdict(index.kind), "reference": index.reference}


@dataclass
class Saved:
    """A state to put back: `items` has an entry per item, in the order in which rows come."""

    numbers: Mapping[str, Any]
    items: dict[str, Array]  # slot, key and every field; what a table has not may be left out
    arrays: Mapping[str, Array]


def saved_of(captured: Capture) -> Saved:
    """What was captured, in order of arrival, as `restore` takes it."""
    slots = captured.slots[np.argsort(captured.seq(captured.slots), kind="stable")]
    items: dict[str, Array] = {"slot": slots, "key": captured.key[slots]}
    for name, array in (*captured.fixed.items(), *captured.changing.items()):
        items[name] = array[slots]
    return Saved(captured.numbers, items, captured.arrays)


def restore(
    storage: MemoryStorage, saved: Saved, batches: Iterable[Batch], mixtures: dict[str, Any]
) -> None:
    """Put a state into a storage that was just opened and whose columns are set, under the lock.

    `mixtures` finds the mixed selectors of the table by their repr.
    """
    items, indexing = storage._items, storage._indexing
    numbers, columns = saved.numbers, saved.items
    slots = columns["slot"]
    if numbers["slots"] > items.now[layout.SLOTS]:
        items.resize(numbers["slots"])
    for name, kind in ((n, f) for n, f in items._types.items() if f"field.{n}" in columns):
        field = items.field(name)
        if kind == "str":
            field.names = list(numbers["texts"][name])
            field.codes = {text: code for code, text in enumerate(field.names)}
        field.array[:] = absent_of(name, kind)
        field.array[slots] = columns[f"field.{name}"]
    if numbers["follows_priorities"]:
        items.use_priorities()
    indexing._zeros = numbers["counts_zeros"]
    _restore_items(storage, saved)
    _restore_rows(storage, slots, batches)
    _restore_indexes(storage, saved)
    storage._random[:] = np.array(numbers["random"], np.uint64)
    for name, evicting, credit in numbers["credits"]:
        if name in mixtures:
            storage._credits[mixtures[name], evicting] = np.array(credit)


def _restore_items(storage: MemoryStorage, saved: Saved) -> None:
    items, columns = storage._items, saved.items
    slots = columns["slot"]
    for name, position in {**FIXED, "deliveries": layout.A_DELIVERIES}.items():
        if name in columns:
            items.keep(position)
            items.owned[position][slots] = columns[name]
    items.key[slots] = columns["key"]
    items.times[slots] = columns["times_sampled"]
    items.priority[slots] = columns["priority"]
    items.state[slots] = layout.VISIBLE
    items.owned[layout.A_INSERTED][slots] = columns["inserted_at"]
    more = np.arange(saved.numbers["slots"], items.now[layout.SLOTS])
    _link_free(storage, np.concatenate([saved.arrays["free"], more]).astype(np.int64))
    block = items.block
    block[layout.LIVE] = slots.size
    block[layout.COUNTER] = saved.numbers["counter"]
    origin = np.uint64(saved.numbers["origin"] << layout.COUNTER_BITS)
    block[layout.ORIGIN] = origin.view(np.int64)
    block[layout.PAYLOAD] = int(items.nbytes(slots).sum())
    block[layout.ROWS] = int(items.rows(slots).sum())
    items.rebuild()


def _link_free(storage: MemoryStorage, free: Ints) -> None:
    items = storage._items
    before = np.concatenate([[-1], free[:-1]])
    after = np.concatenate([free[1:], [-1]])
    if free.size:
        links = (before << 32) | (after & 0xFFFFFFFF)
        items.key.view(np.int64)[free] = links
        items.state[free] = layout.FREE
    items.block[layout.FREE_HEAD] = free[0] if free.size else -1
    items.block[layout.FREE_TAIL] = free[-1] if free.size else -1


def _restore_rows(storage: MemoryStorage, slots: Ints, batches: Iterable[Batch]) -> None:
    """Store the rows again, batch by batch, and note where each item's are."""
    items, rows, shared = storage._items, storage._rows, storage._shared
    if rows is None:
        return
    done, upto = 0, 0
    ends = np.cumsum(items.rows(slots), dtype=np.int64)
    for batch in batches:
        upto += batch.rows
        count = int(np.searchsorted(ends, upto, side="right")) - done
        here = slots[done : done + count]
        per_item = items.rows(here)
        alike = ONE_ROW if layout.A_ROWS not in items.owned else per_item
        locations, _ = rows.append(_rows_of(batch, rows.schema), alike, count)
        items.location[here] = _spread(locations, per_item)
        if shared is not None:
            cells = _rows_of(batch.shared, shared.schema)
            ones = np.ones(count, np.int32)
            items.owned[layout.A_SHARED][here] = _spread(shared.append(cells, ones, count)[0], ones)
        done += count
    storage._show_segments()


def _rows_of(columns: Any, schema: Schema) -> Rows:
    """Columns as a store appends them; those that came after the rows were written are absent."""
    present = columns.present
    arrays = [columns.columns.get(name) for name in schema.columns]
    count = len(next((array for array in arrays if array is not None), ()))
    return Rows(count, arrays, [present.get(name) for name in schema.columns])


def _spread(locations: Ints, per_item: NDArray[np.int32]) -> Ints:
    if locations.size == per_item.size:
        return locations
    starts: Ints = locations[0] + np.cumsum(per_item, dtype=np.int64) - per_item
    return starts


def _restore_indexes(storage: MemoryStorage, saved: Saved) -> None:
    """Make the same indexes again, dense ones with their members in the same order."""
    items, indexing, numbers = storage._items, storage._indexing, saved.numbers
    slots = saved.items["slot"]
    slots = slots[np.argsort(items.seq(slots), kind="stable")]
    for entry in numbers["whole"]:
        indexing.add_whole(IndexKind(**entry["kind"]))
    for kind in numbers["families"]:
        indexing.family(IndexKind(**kind))
    for values in numbers["partitions"]:
        indexing.partition(tuple(values))
    partition = np.zeros(slots.size, np.int32)
    if indexing.partitions.by:
        partition = storage._partitions_of(slots)
        items.owned[layout.A_PARTITION][slots] = partition
        np.add.at(indexing.partitions.live, partition, 1)
    described = [*numbers["whole"], *(d for part in numbers["in_partitions"] for d in part)]
    whole, families = len(numbers["whole"]), len(numbers["families"])
    for row, entry in enumerate(described):
        index = indexing.indexes.at(row)
        index.reference_to(entry["reference"])
        members = slots if row < whole else slots[partition == (row - whole) // families]
        if f"members.{row}" in saved.arrays:
            # those that were leased are in no index when it is captured, and come last
            kept = saved.arrays[f"members.{row}"].astype(np.int64)
            members = np.concatenate([kept, members[~np.isin(members, kept)]])
        indexing.fill(row, members)
    indexing.arrange(slots, SHOW, depends=NO_INDEX)
