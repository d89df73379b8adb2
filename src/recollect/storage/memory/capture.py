"""The whole state of a memory storage, as numbers, arrays and rows, and back.

A capture holds everything that decides what later calls return: which slot each item stands
in, the order of free slots and of the members of dense sets, random numbers, shares of
mixtures. So a restored storage draws what the captured one would have drawn.

Whoever uses the table waits while records are compared with those that are on disk and other
arrays are copied, and for nothing else: `Pages` has their memory ready, with every page touched;
rows are read later, from segments that the capture holds.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recollect.data.batch import Batch
from recollect.data.rows_per_item import ONE_ROW
from recollect.data.schema import Rows, Schema
from recollect.errors import SnapshotError
from recollect.kernels import layout
from recollect.kernels.load import load
from recollect.storage.copy_thread import cores, in_parts
from recollect.storage.fields import ABSENT_INT, absent_of
from recollect.storage.memory.index_set import SHOW
from recollect.storage.memory.indexes import Index, IndexKind
from recollect.storage.memory.items import WORDS
from recollect.storage.memory.storage import MemoryStorage
from recollect.storage.rows import Allocate, Reader, RowStore, Stretch

Ints = NDArray[np.int64]
Keys = NDArray[np.uint64]
Array = NDArray[Any]

CHUNK = 1 << 15  # numbers that are looked at together
FEW_RUNS = 64  # places in a run, on average, that make copying runs worth it
NO_INDEX = 1 << 60  # a dependency that no index has
FIXED = {  # arrays by slot that not every table has, and that change only with an item's rows
    "rows": layout.A_ROWS,
    "nbytes": layout.A_NBYTES,
    "shared_nbytes": layout.A_SHARED_NBYTES,
    "seq": layout.A_SEQ,
    "revision": layout.A_REVISION,
}
RECORDED = ("priority", "times_sampled")  # fields that may change and stand in records
DIFFERING_PARTS = 8  # that two threads share
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
        self.before: Ints | None = None

    def touch(self, storage: MemoryStorage, before: Ints | None) -> None:
        """Have memory for every array as large as it is now, with all of its pages mapped.

        `before` are the records that are on disk: what a capture then copies are the others.
        """
        self.before = before
        for array in _copied(storage):
            if array is storage._items._records and before is not None:
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
    _rows: tuple[Reader, Ints] | None = None  # and where each slot's rows are
    _shared: tuple[Reader, Ints] | None = None
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
        return _column(self.old, name)[places]

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
    return reader.at(locations[slots], rows).collect(allocate)


def _column(records: Ints, name: str) -> Array:
    """Priorities or times_sampled of records."""
    if name == "priority":
        return records[:, layout.PRIORITY].view(np.float64)
    return records.view(np.int32)[:, layout.TIMES]


def rises(numbers: Array) -> bool:
    """Whether no number is lower than the one before it."""
    return not any((numbers[s][1:] < numbers[s][:-1]).any() for s in _chunks(numbers.size))


def _chunks(size: int) -> Iterator[slice]:
    """Slices of so many numbers, which overlap by one."""
    for begin in range(0, size, CHUNK):
        yield slice(begin, min(begin + CHUNK, size) + 1)


def records_of(key: Keys, priority: Array, times: Array, stored: Array) -> Ints:
    """Records by slot of items that were saved; nobody knows where their rows are now."""
    records = np.zeros((key.size, WORDS), np.int64)
    records[:, layout.KEY] = key.view(np.int64)
    records[:, layout.LOCATION] = -1
    _column(records, "priority")[:] = priority
    _column(records, "times_sampled")[:] = times
    records.view(np.int8)[:, layout.STATE] = np.where(stored, layout.VISIBLE, layout.FREE)
    return records


def capture(storage: MemoryStorage, pages: Pages | None = None) -> Capture:
    """Copy the state, under the lock; `finish` makes of it what can be written.

    Leases are over: what is leased is saved as given back.
    """
    items, indexing = storage._items, storage._indexing
    pages = pages or Pages()
    copy = pages.copy
    slots = items.now[layout.SLOTS]
    changed = found = None
    if pages.before is None:
        records = copy(items._records)[:slots]
    else:
        records = pages.before
        if len(records) < slots:
            more = np.zeros((slots - len(records), WORDS), np.int64)
            records = np.concatenate([records, more])
        changed, found = _differing(items._records[:slots], records)
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
    captured = Capture(
        numbers, items.now[layout.LIVE], records[:, layout.KEY].view(np.uint64), fixed, changing,
        arrays, items.now[layout.ROW_BYTES], records, changed, found, leased,
    )  # fmt: skip
    if storage._rows is not None:
        captured._rows = storage._rows.pin(_NONE, None), records[:, layout.LOCATION]
    if storage._shared is not None:
        shared = copy(items.owned[layout.A_SHARED])
        captured._shared = storage._shared.pin(_NONE, None), shared
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
        _column(records, "times_sampled")[leased] -= 1
        records.view(np.int8)[leased, layout.STATE] = layout.VISIBLE
    numbers["leased"] = 0 if leased is None else leased.size
    if leased is not None and leased.size:
        deliveries = changing.setdefault("deliveries", np.zeros(len(records), np.int32))
        deliveries[leased] += 1
    for name in RECORDED:
        changing[name] = _column(records, name)
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
    items, indexing = storage._items, storage._indexing
    numbers, columns = saved.numbers, saved.items
    slots = columns["slot"]
    if numbers["slots"] > items.now[layout.SLOTS]:
        items.have_slots(numbers["slots"])
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
    with ThreadPoolExecutor(min(2, cores()), "recollect-load") as threads:
        placed = _begin_rows(storage, saved, batches, threads)
        _restore_items(storage, saved, None if placed is None else placed[0])
        if placed is None:
            _restore_rows(storage, slots, batches)
        _restore_indexes(storage, saved)
        for place in () if placed is None else placed[1]:
            place.result()
    storage._random[:] = np.array(numbers["random"], np.uint64)
    for name, evicting, credit in numbers["credits"]:
        if name in mixtures:
            storage._credits[mixtures[name], evicting] = np.array(credit)


def _begin_rows(
    storage: MemoryStorage, saved: Saved, batches: Iterable[Batch], threads: Executor
) -> tuple[Ints, list[Future[None]]] | None:
    """Have threads read and place rows of one size; returns where each will be, or None."""
    rows, count = storage._rows, saved.items["slot"].size
    if rows is None or rows.varying or storage._shared or "rows" in saved.items:
        return None
    if not isinstance(batches, Pieces) or sum(batches.counts) != count:
        return None
    locations, done = np.empty(count, np.int64), 0
    work = []
    for number, many in enumerate(batches.counts):
        stretches = rows.reserve(locations[done : done + many])
        work.append(threads.submit(_place, rows, stretches, batches, number))
        done += many
    storage._show_segments()
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
    items, columns, numbers = storage._items, saved.items, saved.numbers
    slots = columns["slot"]
    runs = Runs(slots)
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


class Runs:
    """Places of an array, side by side for the most part: slices are quicker to copy."""

    def __init__(self, places: Ints) -> None:
        self._places = places
        self._bounds: list[int] | None = [0] if places.size else None
        for some in _chunks(places.size):  # each of which fits into a cache, as does what it makes
            cuts = np.flatnonzero(places[some][1:] - places[some][:-1] != 1)
            if self._bounds is None or cuts.size * FEW_RUNS > CHUNK:
                self._bounds = None
                return
            self._bounds += (cuts + (some.start + 1)).tolist()
        if self._bounds is not None:
            self._bounds.append(places.size)

    def put(self, array: Array, values: Array) -> None:
        """Write a value to each place."""
        if self._bounds is None:
            array[self._places] = values
            return
        for begin, end in pairwise(self._bounds):
            first = int(self._places[begin])
            array[first : first + end - begin] = values[begin:end]

    def take(self, array: Array) -> Array:
        """The values at the places."""
        if self._bounds is None:
            return array[self._places]
        taken = np.empty((self._places.size, *array.shape[1:]), array.dtype)
        for begin, end in pairwise(self._bounds):
            first = int(self._places[begin])
            taken[begin:end] = array[first : first + end - begin]
        return taken


def _link_free(storage: MemoryStorage, free: Ints) -> None:
    items = storage._items
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
    arrival = saved.items.get("seq")
    if arrival is None:
        arrival = saved.items["key"] & np.uint64(layout.COUNTER_MASK)
    if not rises(arrival):
        slots = slots[np.argsort(arrival, kind="stable")]
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
    if indexing.partitions.by:
        indexing.arrange(slots, SHOW, depends=NO_INDEX)
    else:  # which is all that this would do
        items.block[layout.SAMPLED] = int(saved.items["times_sampled"].sum(dtype=np.int64))
