"""A state that was saved, put back into a memory storage that was just opened."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from recollect.base.arrays import Array, Ints
from recollect.data.batch import Batch
from recollect.data.rows_per_item import ONE_ROW
from recollect.data.schema import Rows, Schema
from recollect.errors import SnapshotError
from recollect.kernels import layout
from recollect.kernels.load import load
from recollect.storage.copy_thread import cores
from recollect.storage.fields import absent_of
from recollect.storage.memory.index_set import SHOW
from recollect.storage.memory.indexes import IndexKind
from recollect.storage.memory.saved_items import FIXED, Saved
from recollect.storage.memory.slot_runs import SlotRuns, rises
from recollect.storage.memory.storage import MemoryStorage
from recollect.storage.row_segment import Stretch, spread
from recollect.storage.rows import RowStore

NO_INDEX = 1 << 60  # a dependency that no index has


class Pieces:
    """Rows that come in pieces, of which two threads may read one each.

    `counts` says how many rows each has, `read` reads one: all of its rows, in a few batches.
    """

    def __init__(self, counts: Sequence[int], read: Callable[[int], Iterable[Batch]]) -> None:
        self.counts = counts
        self.read = read

    def __iter__(self) -> Iterator[Batch]:
        for number in range(len(self.counts)):
            yield from self.read(number)


def restore(
    storage: MemoryStorage, saved: Saved, batches: Iterable[Batch], mixtures: dict[str, Any]
) -> None:
    """Put a state into a storage that was just opened and whose columns are set, under the lock.

    `mixtures` finds the mixed selectors of the table by their repr. Where rows are of one size
    and come in pieces, threads read and place them while this one makes the indexes.
    """
    items, index_set = storage.items, storage.index_set
    numbers, columns = saved.numbers, saved.items
    slots = columns["slot"]
    if numbers["slots"] > items.now[layout.SLOTS]:
        items.have_slots(numbers["slots"])
    for name, kind in ((n, f) for n, f in items.types.items() if f"field.{n}" in columns):
        field = items.field(name)
        if kind == "str":
            field.names = list(numbers["texts"][name])
            field.codes = {text: code for code, text in enumerate(field.names)}
        field.array[:] = absent_of(name, kind)
        field.array[slots] = columns[f"field.{name}"]
    if numbers["follows_priorities"]:
        items.use_priorities()
    index_set.counts_zeros = numbers["counts_zeros"]
    with ThreadPoolExecutor(min(2, cores()), "recollect-load") as threads:
        placed = _begin_rows(storage, saved, batches, threads)
        _restore_items(storage, saved, None if placed is None else placed[0])
        if placed is None:
            _restore_rows(storage, slots, batches)
        _restore_indexes(storage, saved)
        for place in () if placed is None else placed[1]:
            place.result()
    storage.executor.restore(numbers, mixtures)


def _begin_rows(
    storage: MemoryStorage, saved: Saved, batches: Iterable[Batch], threads: Executor
) -> tuple[Ints, list[Future[None]]] | None:
    """Have threads read and place rows of one size; returns where each will be, or None."""
    rows, count = storage.stores.rows, saved.items["slot"].size
    if rows is None or rows.varying or storage.stores.shared or "rows" in saved.items:
        return None
    if not isinstance(batches, Pieces) or sum(batches.counts) != count:
        return None
    locations, done = np.empty(count, np.int64), 0
    work = []
    for number, many in enumerate(batches.counts):
        stretches = rows.reserve(locations[done : done + many])
        work.append(threads.submit(_place, rows, stretches, batches, number))
        done += many
    storage.stores.show()
    return locations, work


def _place(rows: RowStore, stretches: list[Stretch], pieces: Pieces, number: int) -> None:
    done = 0
    for batch in pieces.read(number):
        some = _rows_of(batch, rows.schema)
        for column, given in zip(rows.columns, some.columns, strict=True):
            if (
                not isinstance(given, np.ndarray)
                or given.dtype != column.dtype
                or given.shape[1:] != column.shape
            ):
                raise SnapshotError("a file of rows does not have the columns that were saved")
        rows.place(stretches, done, some)
        done += some.count
    if done != pieces.counts[number]:
        raise SnapshotError(f"a file has {done} rows and {pieces.counts[number]} were saved")


def _restore_items(storage: MemoryStorage, saved: Saved, locations: Ints | None) -> None:
    items, columns, numbers = storage.items, saved.items, saved.numbers
    slots = columns["slot"]
    runs = SlotRuns(slots)
    for name, position in {**FIXED, "deliveries": layout.A_DELIVERIES}.items():
        if name in columns:
            items.keep(position)
            runs.put(items.owned[position], columns[name])
    runs.put(items.owned[layout.A_INSERTED], columns["inserted_at"])
    if locations is None:
        locations = np.zeros(slots.size, np.int64)
    written: list[Array] = [
        np.ascontiguousarray(slots, np.int64),
        np.ascontiguousarray(columns["key"], np.uint64),
        locations,
        np.ascontiguousarray(columns["priority"], np.float64),
        np.ascontiguousarray(columns["times_sampled"], np.int32),
    ]
    addresses = [array.ctypes.data for array in written]
    load().captures.fill_records(items.block, *addresses, slots.size)
    more = np.arange(numbers["slots"], items.now[layout.SLOTS])
    _link_free(storage, np.concatenate([saved.arrays["free"], more]).astype(np.int64))
    block = items.block
    block[layout.LIVE] = slots.size
    block[layout.COUNTER] = numbers["counter"]
    origin = np.uint64(numbers["origin"] << layout.COUNTER_BITS)
    block[layout.ORIGIN] = origin.view(np.int64)
    block[layout.ROWS] = slots.size
    block[layout.PAYLOAD] = slots.size * block[layout.ROW_BYTES]
    if layout.A_ROWS in items.owned or layout.A_NBYTES in items.owned:
        block[layout.ROWS] = int(items.rows(slots).sum())
        block[layout.PAYLOAD] = int(items.nbytes(slots).sum())
    items.rebuild()


def _link_free(storage: MemoryStorage, free: Ints) -> None:
    items = storage.items
    before = np.concatenate([[-1], free[:-1]])
    after = np.concatenate([free[1:], [-1]])
    if free.size:
        links = (before << 32) | (after & 0xFFFFFFFF)
        items.key.view(np.int64)[free] = links
        items.priority[free] = -1.0
        items.times[free] = 0
        items.state[free] = layout.FREE
    items.block[layout.FREE_HEAD] = free[0] if free.size else -1
    items.block[layout.FREE_TAIL] = free[-1] if free.size else -1


def _restore_rows(storage: MemoryStorage, slots: Ints, batches: Iterable[Batch]) -> None:
    """Store the rows again, batch by batch, and note where each item's are."""
    items, rows, shared = storage.items, storage.stores.rows, storage.stores.shared
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
        items.location[here] = spread(locations, per_item, count)
        if shared is not None:
            cells = _rows_of(batch.shared, shared.schema)
            items.owned[layout.A_SHARED][here] = spread(
                shared.append(cells, ONE_ROW, count)[0], ONE_ROW, count
            )
        done += count
    storage.stores.show()


def _rows_of(columns: Any, schema: Schema) -> Rows:
    """Columns as a store appends them; those that came after the rows were written are absent."""
    present = columns.present
    arrays = [columns.columns.get(name) for name in schema.columns]
    count = len(next((array for array in arrays if array is not None), ()))
    return Rows(count, arrays, [present.get(name) for name in schema.columns])


def _restore_indexes(storage: MemoryStorage, saved: Saved) -> None:
    """Make the same indexes again, dense ones with their members in the same order."""
    items, index_set, numbers = storage.items, storage.index_set, saved.numbers
    slots = saved.items["slot"]
    arrival = saved.items.get("seq")
    if arrival is None:
        arrival = saved.items["key"] & np.uint64(layout.COUNTER_MASK)
    if not rises(arrival):
        slots = slots[np.argsort(arrival, kind="stable")]
    for entry in numbers["whole"]:
        index_set.add_whole(IndexKind.of_saved(entry["kind"]))
    for kind in numbers["families"]:
        index_set.family(IndexKind.of_saved(kind))
    for values in numbers["partitions"]:
        index_set.partition(tuple(values))
    partition = np.zeros(slots.size, np.int32)
    if index_set.partitions.by:
        partition = index_set.partitions_of(slots)
        items.owned[layout.A_PARTITION][slots] = partition
        np.add.at(index_set.partitions.live, partition, 1)
    described = [*numbers["whole"], *(d for part in numbers["in_partitions"] for d in part)]
    whole, families = len(numbers["whole"]), len(numbers["families"])
    for row, entry in enumerate(described):
        index = index_set.indexes.at(row)
        index.reference_to(entry["reference"])
        members = slots if row < whole else slots[partition == (row - whole) // families]
        if f"members.{row}" in saved.arrays:
            # those that were leased are in no index when it is captured, and come last
            kept = saved.arrays[f"members.{row}"].astype(np.int64)
            members = np.concatenate([kept, members[~np.isin(members, kept)]])
        index_set.fill(row, members)
    if index_set.partitions.by:
        index_set.arrange(slots, SHOW, depends=NO_INDEX)
    else:  # which is all that this would do
        items.block[layout.SAMPLED] = int(saved.items["times_sampled"].sum(dtype=np.int64))
