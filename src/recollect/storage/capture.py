"""The whole state of a memory storage, as numbers, arrays and rows, and back.

A capture holds everything that decides what later calls return: which slot each item stands
in, the order of free slots and of the members of dense sets, random numbers, shares of
mixtures. So a restored storage draws what the captured one would have drawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recollect.batch import Batch
from recollect.kernels import layout
from recollect.schema import Rows, Schema
from recollect.storage.chosen import MemoryChosen, named
from recollect.storage.fields import absent_of
from recollect.storage.indexes import Index, IndexKind
from recollect.storage.indexing import SHOW
from recollect.storage.memory import MemoryStorage

Ints = NDArray[np.int64]
Array = NDArray[Any]

NO_INDEX = 1 << 60  # a dependency that no index has
CHUNK = 32 << 20  # bytes of payload that are read at once
OPTIONAL = {  # arrays by slot that not every table has, under their name in a capture
    "rows": layout.A_ROWS,
    "nbytes": layout.A_NBYTES,
    "shared_nbytes": layout.A_SHARED_NBYTES,
    "seq": layout.A_SEQ,
    "deliveries": layout.A_DELIVERIES,
}


@dataclass
class Capture:
    """What was captured: `numbers` can be JSON, `items` has an entry per item, by slot."""

    numbers: dict[str, Any]
    items: dict[str, Array]
    arrays: dict[str, Array]  # of other lengths: free slots, members of dense sets
    payload: list[MemoryChosen]  # pinned; read outside the lock

    def read(self) -> Iterator[Batch]:
        """The rows and shared cells of all items, in the order of `items`, some at a time."""
        for chosen in self.payload:
            yield chosen.read(np.empty)


def capture(storage: MemoryStorage) -> Capture:
    """Copy the state, under the lock. Leases are over: what is leased is saved as given back."""
    items, indexing = storage._items, storage._indexing
    slots = items.stored()
    leased = items.state[slots] == layout.LEASED
    fields = {name: field.array[slots] for name, field in items.fields.items()}
    columns: dict[str, Array] = {
        "slot": slots,
        "key": items.key[slots],
        "times_sampled": items.times[slots] - leased.astype(np.int32),
        "priority": items.priority[slots],
        "inserted_at": items.owned[layout.A_INSERTED][slots],
        **{f"field.{name}": array for name, array in fields.items()},
    }
    for name, position in OPTIONAL.items():
        if position in items.owned:
            columns[name] = items.owned[position][slots]
    if leased.any():
        deliveries = columns.get("deliveries", np.zeros(slots.size, np.int32))
        columns["deliveries"] = deliveries + leased.astype(np.int32)
    numbers = {
        "slots": items.now[layout.SLOTS],
        "counter": items.now[layout.COUNTER],
        "origin": int(np.int64(items.now[layout.ORIGIN]).view(np.uint64)) >> layout.COUNTER_BITS,
        "leased": int(leased.sum()),
        "texts": {n: f.names for n, f in items.fields.items() if f.kind == "str"},
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
    arrays = {"free": _free_slots(storage)}
    for row, index in enumerate(indexing.indexes):
        if layout.A_MEMBERS in index.arrays:
            arrays[f"members.{row}"] = index.arrays[layout.A_MEMBERS][: index.count].copy()
    return Capture(numbers, columns, arrays, _payload(storage, slots))


def _described(index: Index) -> dict[str, Any]:
    return {"kind": asdict(index.kind), "reference": index.reference}


def _free_slots(storage: MemoryStorage) -> Ints:
    """The free slots, in the order in which they will be used."""
    items = storage._items
    links = items.key.view(np.int64)
    free = np.empty(items.now[layout.SLOTS] - items.now[layout.LIVE], np.int64)
    slot = items.now[layout.FREE_HEAD]
    for place in range(free.size):
        free[place] = slot
        slot = int(links[slot]) & 0xFFFFFFFF
    return free


def _payload(storage: MemoryStorage, slots: Ints) -> list[MemoryChosen]:
    if not slots.size:
        return []
    sizes = np.cumsum(storage._items.nbytes(slots))
    chunks = np.split(slots, np.flatnonzero(np.diff(sizes // CHUNK)) + 1)
    return [storage._pin(named(storage._items, chunk)) for chunk in chunks if chunk.size]


def restore(
    storage: MemoryStorage, captured: Capture, batches: Iterable[Batch], mixtures: dict[str, Any]
) -> None:
    """Put a captured state into an empty storage whose columns are set, under the lock.

    `mixtures` finds the mixed selectors of the table by their repr.
    """
    items, indexing = storage._items, storage._indexing
    numbers, columns = captured.numbers, captured.items
    slots = columns["slot"]
    indexing.forget()  # a call on the empty table may have made some, which come again below
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
    _restore_items(storage, captured)
    _restore_rows(storage, slots, batches)
    _restore_indexes(storage, captured)
    storage._random[:] = np.array(numbers["random"], np.uint64)
    for name, evicting, credit in numbers["credits"]:
        if name in mixtures:
            storage._credits[mixtures[name], evicting] = np.array(credit)


def _restore_items(storage: MemoryStorage, captured: Capture) -> None:
    items, columns = storage._items, captured.items
    slots = columns["slot"]
    for name, position in OPTIONAL.items():
        if name in columns:
            items.keep(position)
            items.owned[position][slots] = columns[name]
    items.key[slots] = columns["key"]
    items.times[slots] = columns["times_sampled"]
    items.priority[slots] = columns["priority"]
    items.state[slots] = layout.VISIBLE
    items.owned[layout.A_INSERTED][slots] = columns["inserted_at"]
    _link_free(storage, captured.arrays["free"])
    block = items.block
    block[layout.LIVE] = slots.size
    block[layout.COUNTER] = captured.numbers["counter"]
    origin = np.uint64(captured.numbers["origin"] << layout.COUNTER_BITS)
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
    assert rows is not None
    done = 0
    for batch in batches:
        count = _items_in(batch, items.rows(slots[done:]))
        here = slots[done : done + count]
        per_item = items.rows(here)
        locations, _ = rows.append(_rows_of(batch, rows.schema), per_item, count)
        items.location[here] = _spread(locations, per_item)
        if shared is not None:
            cells = _rows_of(batch.shared, shared.schema)
            ones = np.ones(count, np.int32)
            items.owned[layout.A_SHARED][here] = _spread(shared.append(cells, ones, count)[0], ones)
        done += count
    storage._show_segments()


def _items_in(batch: Batch, per_item: NDArray[np.int32]) -> int:
    return int(np.searchsorted(np.cumsum(per_item), batch.rows, side="right"))


def _rows_of(columns: Any, schema: Schema) -> Rows:
    present = columns.present
    arrays = [columns.columns[name] for name in schema.columns]
    count = len(arrays[0]) if arrays else 0
    return Rows(count, arrays, [present.get(name) for name in schema.columns])


def _spread(locations: Ints, per_item: NDArray[np.int32]) -> Ints:
    if locations.size == per_item.size:
        return locations
    starts: Ints = locations[0] + np.cumsum(per_item, dtype=np.int64) - per_item
    return starts


def _restore_indexes(storage: MemoryStorage, captured: Capture) -> None:
    """Make the same indexes again, dense ones with their members in the same order."""
    items, indexing, numbers = storage._items, storage._indexing, captured.numbers
    slots = captured.items["slot"]
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
        if f"members.{row}" in captured.arrays:
            # those that were leased are in no index when it is captured, and come last
            kept = captured.arrays[f"members.{row}"].astype(np.int64)
            members = np.concatenate([kept, members[~np.isin(members, kept)]])
        indexing.fill(row, members)
    indexing.arrange(slots, SHOW, depends=NO_INDEX)
