"""Items in this process's memory: rows in segments, fields by slot, an index per selector.

Nothing here waits and nothing locks by itself: `transaction()` is the one lock of the table.
Arrays belong to this object; kernels find them by the addresses in `_block` and in the rows
of the index table, which are written anew whenever an array is replaced.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recollect.batch import Batch
from recollect.errors import InvalidValue, UnknownKey
from recollect.info import Info
from recollect.kernels import layout, load
from recollect.query import FieldValues, Query, mask
from recollect.schema import Rows, Schema
from recollect.selectors import Linear, Mixed, Ordered, Prioritized, Selector
from recollect.storage.base import Keys, Layout, NewItems, Where
from recollect.storage.buffers import BufferPool
from recollect.storage.fields import BUILT_IN, FieldArray, FieldValue
from recollect.storage.indexes import Index, Indexes, IndexKind, OrderValue
from recollect.storage.rows import Allocate, Reader, RowStore

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Array = NDArray[Any]

SAMPLE, TAKE, EVICT = 0, 1, 2  # verbs of the kernel `choose`
ADD, REMOVE, CHANGE, SHOW, HIDE, FILL = 1, 2, 3, 4, 5, 8  # verbs of the kernel `arrange`
KEY, TIMES, LOCATION, SLOT, LEFT = 0, 1, 2, 3, 4  # rows of what `choose` fills
PROBABILITY, PRIORITY, WEIGHTS = 0, 1, 2

FEWEST_SLOTS = 256
OVERFLOWING = 400.0  # halvings ahead of the reference at which weights are scaled anew
NORMALIZE = {None: 0, "batch": 1, "table": 2}
NOTHING = np.zeros(1, np.int32)
ONE_ROW = np.ones(1, np.int32)

_item_ends: dict[int, Ints] = {}


class MemoryStorage:
    """Keeps items in memory: the default, and the fastest.

    >>> import recollect as rc
    >>> table = rc.Table("replay", capacity=1000, storage=rc.MemoryStorage())
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._layout: Layout | None = None

    # -- opening --------------------------------------------------------------------------------
    def open(self, layout_: Layout) -> None:
        if self._layout is not None:
            raise InvalidValue(
                f"this storage belongs to table {self._layout.name!r}; make one per table"
            )
        self._kernels = load()
        self._layout = layout_
        self._items = self._kernels.items
        self._choose = self._items.choose
        self._pool = BufferPool(keep=256 << 20)
        self._segments = BufferPool(keep=16 << 20)
        self._block: Ints = np.zeros(layout.ITEMS_BLOCK, np.int64)
        self._owned: dict[int, Array] = {}
        self._fields: dict[str, FieldArray] = {}
        self._indexes = Indexes(self._block)
        self._bits: dict[str, int] = {
            "priority": layout.DEPENDS_PRIORITY,
            "times_sampled": layout.DEPENDS_TIMES,
            "version": layout.DEPENDS_VERSION,
        }
        self._rows: RowStore | None = None
        self._shared: RowStore | None = None
        self._work: Ints = np.zeros(1024, np.int64)
        self._random = np.random.SeedSequence(layout_.seed).generate_state(4, np.uint64)
        self._partition_ids: dict[tuple[Any, ...], int] = {}
        self._credits: dict[Mixed, Floats] = {}
        self._check_below = 0
        self._seen_opened = 0
        block = self._block
        origin = np.uint64(secrets.randbits(20) << layout.COUNTER_BITS)
        block[layout.ORIGIN] = origin.view(np.int64)
        block[layout.FREE_HEAD] = block[layout.FREE_TAIL] = -1
        block[layout.MAX_TIMES] = layout_.max_times_sampled
        if layout_.partition_by:
            for position in _BY_PARTITION:
                self._own(position, np.zeros(16, np.int64))
        self._resize_hash(64)
        self._resize_slots(min(FEWEST_SLOTS, layout_.capacity))

    def _own(self, position: int, array: Array) -> None:
        """Keep an array alive, and let kernels see it."""
        self._owned[position] = array
        self._block[position] = array.ctypes.data

    def set_schema(self, rows: Schema, shared: Schema | None) -> None:
        assert self._layout is not None
        capacity = self._layout.capacity
        if self._rows is None:
            self._rows = RowStore(rows, self._kernels, self._segments)
            if not self._rows.varying:
                self._rows.expect(capacity * self._rows.stride)
            if shared is not None:
                self._shared = RowStore(shared, self._kernels, self._segments)
                self._own_slots(layout.A_SHARED, np.int64, 0)
            if self._rows.varying or shared is not None:
                self._own_slots(layout.A_NBYTES, np.int64, 0)
            self._block[layout.ROW_BYTES] = self._rows.fixed_bytes
        else:
            if self._rows.schema is not rows:
                if layout.A_NBYTES not in self._owned:
                    self._keep_sizes()
                self._rows.set_schema(rows)
            if self._shared is not None and shared is not None:
                self._shared.set_schema(shared)
        self._sync_segments()

    def _keep_sizes(self) -> None:
        """From now on items differ in size: write down what each has."""
        sizes = np.full(self._block[layout.SLOTS], self._block[layout.ROW_BYTES], np.int64)
        if layout.A_ROWS in self._owned:
            sizes *= self._owned[layout.A_ROWS][: sizes.size]
        self._own(layout.A_NBYTES, sizes)

    # -- memory ---------------------------------------------------------------------------------
    def _own_slots(self, position: int, dtype: Any, fill: Any) -> None:
        slots = int(self._block[layout.SLOTS])
        self._own(position, _grown(self._owned.get(position), slots, dtype, fill))

    def _resize_slots(self, slots: int) -> None:
        block = self._block
        before = int(block[layout.SLOTS])
        block[layout.SLOTS] = slots
        for position, dtype, fill in _EVERY_ITEM:
            self._own_slots(position, dtype, fill)
        if self._layout is not None and self._layout.partition_by:
            self._own_slots(layout.A_PARTITION, np.int32, 0)
        for position, dtype, fill in _SOME_ITEMS:
            if position in self._owned:
                self._own_slots(position, dtype, fill)
        if layout.A_PRIORITY in self._owned:
            self._resize_priorities()
        for field in self._fields.values():
            field.resize(slots)
        self._show_fields()
        self._resize_indexes()
        self._items.add_slots(block, before)

    def _resize_priorities(self) -> None:
        slots = int(self._block[layout.SLOTS])
        padded = (slots + 15) & ~15
        self._own(
            layout.A_PRIORITY,
            _grown(self._owned.get(layout.A_PRIORITY), padded, np.float64, -1.0),
        )
        self._own(layout.A_PMAX, np.empty(_maxima_size(slots)))
        self._items.rebuild_maxima(self._block)

    def _resize_indexes(self) -> None:
        slots = int(self._block[layout.SLOTS])
        for index in self._indexes.whole:
            index.resize_slots(slots, None)
            index.reserve(slots)
            self._refresh_index(index)
        for family in range(len(self._indexes.families)):
            shared: dict[int, Array] = {}
            for partition in self._indexes.partitions:
                index = partition[family]
                index.resize_slots(slots, shared)
                self._refresh_index(index)

    def _refresh_index(self, index: Index) -> None:
        """After its arrays were replaced: find its values again, add up its weights again."""
        if index.kind.kind == layout.ORDER:
            index.set_value(self._order_value(index.kind.by))
        elif index.kind.kind == layout.WEIGHT and index.room:
            self._items.rebuild_trees(index.row)

    def _resize_hash(self, size: int) -> None:
        self._own(layout.A_HASH, np.zeros(size, np.int32))
        self._block[layout.HASH_SIZE] = size
        if layout.A_KEY in self._owned:
            self._items.rebuild_hash(self._block)

    def _make_room(self, items: int) -> None:
        """Make every array large enough for so many more items."""
        block = self._block
        live, slots = block.item(layout.LIVE), block.item(layout.SLOTS)
        if live + items > slots:
            assert self._layout is not None
            self._resize_slots(min(self._layout.capacity, max(2 * slots, live + items)))
        if 2 * (block.item(layout.DISPLACED) + items) > block.item(layout.HASH_SIZE):
            self._resize_hash(1 << (2 * (block.item(layout.DISPLACED) + items)).bit_length())
        self._make_work(items)

    def _make_work(self, items: int) -> None:
        if 4 * items + 64 > self._work.size:
            self._work = np.zeros(8 * items + 64, np.int64)

    def _sync_segments(self) -> None:
        """Let kernels see the counts of the segments, which grow with their number."""
        rows, shared = self._rows, self._shared
        if rows is not None and self._owned.get(layout.A_SEGMENT_ROWS) is not rows.live_rows:
            self._own(layout.A_SEGMENT_ROWS, rows.live_rows)
            self._own(layout.A_SEGMENT_SEALED, rows.sealed)
        if shared is not None and self._owned.get(layout.A_SHARED_ROWS) is not shared.live_rows:
            self._own(layout.A_SHARED_ROWS, shared.live_rows)
            self._own(layout.A_SHARED_SEALED, shared.sealed)

    # -- what is there --------------------------------------------------------------------------
    def transaction(self) -> AbstractContextManager[Any]:
        return self._lock

    def __len__(self) -> int:
        return self._block.item(layout.LIVE)

    @property
    def hidden(self) -> int:
        return self._block.item(layout.HIDDEN)

    @property
    def nbytes(self) -> int:
        return self._block.item(layout.PAYLOAD)

    @property
    def visits(self) -> int:
        """Index entries and tree nodes touched so far: what tests count instead of seconds."""
        return self._block.item(layout.VISITS)

    def payload_of(self, new: NewItems) -> int:
        assert self._rows is not None
        payload = self._rows.payload_of(new.rows)
        if new.shared is not None and self._shared is not None:
            payload += self._shared.payload_of(new.shared)
        return payload

    # -- fields ---------------------------------------------------------------------------------
    def _field(self, name: str) -> FieldArray:
        """A settable field's array, made when it is first needed."""
        field = self._fields.get(name)
        if field is None:
            assert self._layout is not None
            field = FieldArray(name, self._layout.fields[name], self._block.item(layout.SLOTS))
            self._fields[name] = field
            self._show_fields()
        return field

    def _show_fields(self) -> None:
        version = self._fields.get("version")
        if version is not None:
            self._own(layout.A_VERSION, version.array)

    def _use_priorities(self) -> None:
        """Begin to keep priorities: until now every item had 1.0."""
        if layout.A_PRIORITY in self._owned:
            return
        self._resize_priorities()
        stored = self._owned[layout.A_STATE] != layout.FREE
        self._owned[layout.A_PRIORITY][: stored.size][stored] = 1.0
        self._items.rebuild_maxima(self._block)

    def highest_priority(self) -> float:
        """The highest priority in the table, 1.0 where it is empty."""
        if layout.A_PRIORITY not in self._owned or not len(self):
            return 1.0
        return float(self._owned[layout.A_PMAX][self._block.item(layout.PMAX_TOP)])

    def _write_fields(self, slots: Ints, given: Mapping[str, FieldValue]) -> None:
        """Set the fields of new items: what was given, and absent for the rest."""
        for name in given:
            self._field(name)
        for name, field in self._fields.items():
            field.write(slots, given.get(name))

    def _values(self, name: str, slots: Ints) -> FieldValues:
        """A field of some items, as queries want it."""
        block, owned = self._block, self._owned
        if name in self._fields:
            return self._fields[name].values(slots)
        if name == "key":
            return FieldValues(owned[layout.A_KEY][slots])
        if name == "seq":
            return FieldValues(self._seq(slots))
        if name == "times_sampled":
            return FieldValues(owned[layout.A_TIMES][slots])
        if name == "inserted_at":
            return FieldValues(owned[layout.A_INSERTED][slots])
        if name == "priority":
            if layout.A_PRIORITY in owned:
                return FieldValues(owned[layout.A_PRIORITY][slots])
            return FieldValues(np.ones(slots.size))
        if name == "rows":
            return FieldValues(self._rows_of(slots))
        if name == "nbytes":
            if layout.A_NBYTES in owned:
                return FieldValues(owned[layout.A_NBYTES][slots])
            return FieldValues(self._rows_of(slots) * block.item(layout.ROW_BYTES))
        assert self._layout is not None
        return FieldArray(name, self._layout.fields[name], 1).values(np.zeros_like(slots))

    def _seq(self, slots: Ints) -> Ints:
        if layout.A_SEQ in self._owned:
            return self._owned[layout.A_SEQ][slots]
        keys = self._owned[layout.A_KEY][slots]
        return (keys & np.uint64(layout.COUNTER_MASK)).astype(np.int64)

    def _rows_of(self, slots: Ints) -> Ints:
        if layout.A_ROWS in self._owned:
            return self._owned[layout.A_ROWS][slots].astype(np.int64)
        return np.ones(slots.size, np.int64)

    def _order_value(self, by: str) -> OrderValue:
        """Where an order by a field finds its values."""
        owned = self._owned
        if by == "seq":
            return OrderValue(layout.BY_SEQ)
        if by == "priority":
            self._use_priorities()
            return OrderValue(layout.BY_FLOAT64, owned[layout.A_PRIORITY])
        if by == "times_sampled":
            return OrderValue(layout.BY_INT32, owned[layout.A_TIMES])
        if by == "inserted_at":
            return OrderValue(layout.BY_FLOAT64, owned[layout.A_INSERTED])
        if by == "key":
            return OrderValue(layout.BY_UINT64, owned[layout.A_KEY])
        if by in ("rows", "nbytes"):
            return OrderValue(layout.BY_ROWS if by == "rows" else layout.BY_NBYTES)
        field = self._field(by)
        kinds = {"int": layout.BY_INT64, "float": layout.BY_FLOAT64, "bool": layout.BY_INT8}
        absent = 0 if field.kind == "float" else int(field.absent)
        return OrderValue(kinds[field.kind], field.array, absent)

    def _bit_of(self, name: str) -> int:
        """The bit that stands for a field in what an index depends on."""
        if name not in self._bits:
            self._bits[name] = layout.FIRST_FREE_DEPENDENCY << len(self._bits)
        return self._bits[name]

    # -- indexes --------------------------------------------------------------------------------
    def _make_index(self, kind: IndexKind, row: Ints, *, dense: bool) -> Index:
        depends = 0
        if kind.kind == layout.ORDER:
            depends = self._bit_of(kind.by) if kind.by != "seq" else 0
            depends |= layout.DEPENDS_TIMES if kind.leveled else 0
        elif kind.kind == layout.WEIGHT:
            self._use_priorities()
            depends = layout.DEPENDS_PRIORITY
            if kind.half_life is not None:
                depends |= layout.DEPENDS_VERSION
                self._field("version")
        index = Index(kind, row, depends, dense or kind.kind == layout.UNIFORM)
        if kind.kind == layout.WEIGHT and kind.half_life is not None:
            index.parameters[layout.REFERENCE] = self._newest_version()
        if kind.kind == layout.ORDER:
            index.set_value(self._order_value(kind.by))
        return index

    def _index(self, kind: IndexKind) -> int:
        """The row of the index over all items, which is made when it is first needed."""
        row = self._indexes.find(kind)
        if row is None:
            index = self._make_index(kind, _new_row(), dense=False)
            slots = self._block.item(layout.SLOTS)
            index.resize_slots(slots, None)
            index.reserve(slots)
            if self._has_zeros():
                self._add_zeros(index)
            row = self._indexes.add_whole(index)
            self._fill(row, self._visible())
        return row

    def _family(self, kind: IndexKind) -> int:
        """The number of an index that every partition keeps, made when it is first needed."""
        indexes = self._indexes
        if kind in indexes.families:
            return indexes.families.index(kind)
        family = indexes.add_family(kind, self._make_partition_index)
        shared: dict[int, Array] = {}
        visible = self._visible()
        partitions = self._owned[layout.A_PARTITION][visible]
        for number, partition in enumerate(indexes.partitions):
            index = partition[family]
            index.resize_slots(self._block.item(layout.SLOTS), shared)
            members = visible[partitions == number]
            index.reserve(max(16, members.size))
            if self._has_zeros():
                self._add_zeros(index)
            self._fill(indexes.row_of(number, family), members)
        return family

    def _make_partition_index(self, kind: IndexKind) -> Index:
        return self._make_index(kind, _new_row(), dense=True)

    def _fill(self, row: int, slots: Ints) -> None:
        """Add items to a new index, in the order of arrival."""
        slots = slots[np.argsort(self._seq(slots), kind="stable")]
        self._make_work(slots.size)
        table = self._indexes.table
        self._items.arrange(self._block, table, slots, slots.size, FILL + row, ADD, self._work)

    def _visible(self) -> Ints:
        return np.flatnonzero(self._owned[layout.A_STATE] == layout.VISIBLE)

    def _has_zeros(self) -> bool:
        priorities = self._owned.get(layout.A_PRIORITY)
        return priorities is not None and bool((priorities == 0.0).any())

    def _add_zeros(self, index: Index) -> None:
        """Let an index count items of weight zero, which it did not until one came."""
        if index.kind.kind == layout.WEIGHT:
            index.add_zeros()

    def _expect_zeros(self, priorities: Floats | None) -> None:
        if priorities is not None and priorities.size and priorities.min() == 0.0:
            for index in self._indexes:
                self._add_zeros(index)

    def keep_indexes(self, selectors: Sequence[Selector]) -> None:
        """Forget the indexes that none of these selectors uses."""
        parts: list[Selector] = []
        for selector in selectors:
            mixed = isinstance(selector, Mixed)
            parts += [part for part, _ in selector.selectors] if mixed else [selector]
        kinds = {IndexKind.of(part, staying=staying) for part in parts for staying in (True, False)}
        self._indexes.keep(kinds)

    # -- partitions -----------------------------------------------------------------------------
    def _partition(self, values: tuple[Any, ...]) -> int:
        """The number of a partition, made when its first item comes."""
        number = self._partition_ids.get(values)
        if number is None:
            number = self._indexes.add_partition(self._make_partition_index)
            self._partition_ids[values] = number
            for position in _BY_PARTITION:
                counts = self._owned[position]
                if number >= counts.size:
                    self._own(position, np.concatenate([counts, np.zeros_like(counts)]))
            for family, index in enumerate(self._indexes.partitions[number]):
                first = self._indexes.partitions[0][family]
                shared = {} if number == 0 else first.arrays
                index.resize_slots(self._block.item(layout.SLOTS), dict(shared))
                index.reserve(16)
                if self._has_zeros():
                    self._add_zeros(index)
        return number

    def _partitions_for(self, fields: Mapping[str, FieldValue], count: int) -> Array:
        """The partition of each new item, or one for all of them."""
        assert self._layout is not None
        values = [fields.get(name) for name in self._layout.partition_by]
        if not any(isinstance(value, np.ndarray) for value in values):
            return np.array([self._partition(tuple(values))], np.int32)
        columns = [
            self._plain(name, value, count)
            for name, value in zip(self._layout.partition_by, values, strict=True)
        ]
        return np.array([self._partition(key) for key in zip(*columns, strict=True)], np.int32)

    def _plain(self, name: str, value: FieldValue, count: int) -> list[Any]:
        """A field's values as Python objects, None where absent."""
        if not isinstance(value, np.ndarray):
            return [value] * count
        assert self._layout is not None
        kind = self._layout.fields[name]
        if kind == "str":
            return list(value)
        field = FieldArray(name, kind, 1)
        plain = value.tolist()
        if kind == "float":
            return [None if v != v else v for v in plain]
        if kind == "bool":
            return [None if v == field.absent else bool(v) for v in plain]
        return [None if v == field.absent else v for v in plain]

    def _partitions_where(self, wanted: Mapping[str, frozenset[Any]]) -> list[int]:
        """The partitions that a query admits, without a look at any item."""
        assert self._layout is not None
        by = self._layout.partition_by
        if set(wanted) == set(by) and all(len(values) == 1 for values in wanted.values()):
            key = tuple(next(iter(wanted[name])) for name in by)
            number = self._partition_ids.get(key)
            return [] if number is None else [number]
        return [
            number
            for key, number in self._partition_ids.items()
            if all(
                value in wanted[name]
                for name, value in zip(by, key, strict=True)
                if name in wanted
            )
        ]

    def _reserve_partitions(self, numbers: Array, count: int) -> None:
        if not self._indexes.families:
            return
        for number, more in zip(*np.unique(numbers, return_counts=True), strict=True):
            coming = count if numbers.size == 1 else int(more)
            for index in self._indexes.partitions[number]:
                needed = int(index.row[layout.COUNT]) + coming
                if needed > index.room:
                    index.reserve(max(needed, 2 * index.room))
                    self._refresh_index(index)

    # -- inserting ------------------------------------------------------------------------------
    def insert(self, new: NewItems) -> Keys:
        assert self._rows is not None
        assert self._layout is not None
        count = new.count
        block = self._block
        self._make_room(count)
        if new.per_item.size > 1 or new.per_item[0] != 1:
            self._use_rows()
        priority = new.priority
        if priority is None:
            priority = np.array([self.highest_priority()])
        elif layout.A_PRIORITY not in self._owned and (priority != 1.0).any():
            self._use_priorities()
        if new.priority is not None:
            self._expect_zeros(priority)
        partitions = NOTHING
        if self._layout.partition_by:
            partitions = self._partitions_for(new.fields, count)
            self._reserve_partitions(partitions, count)
        if self._indexes.whole or self._indexes.families:
            self._scale_for(new.fields)
        locations, payload = self._rows.append(new.rows, new.per_item, count)
        shared_locations = None
        if self._shared is not None and new.shared is not None:
            shared_locations, more = self._shared.append(new.shared, ONE_ROW, count)
            payload = payload + more if payload.size == count else payload[0] + more
        self._sync_segments()
        keys = np.empty(count, np.uint64)
        slots = np.empty(count, np.int64)
        self._items.allocate(
            block, count, locations, new.per_item, payload, priority, partitions,
            new.inserted_at, keys, slots,
        )  # fmt: skip
        if new.fields or self._fields:
            self._write_fields(slots, new.fields)
        if layout.A_DELIVERIES in self._owned:
            self._owned[layout.A_DELIVERIES][slots] = 0
        if shared_locations is not None:
            self._place_shared(slots, shared_locations)
        if self._rows.tracking:
            self._track(slots)
        self._items.arrange(block, self._indexes.table, slots, count, SHOW, 0, self._work)
        if self._rows.opened != self._seen_opened:
            self._seen_opened = self._rows.opened
            self._compact()
        return keys

    def _use_rows(self) -> None:
        """From now on items differ in their number of rows."""
        if layout.A_ROWS not in self._owned:
            self._own_slots(layout.A_ROWS, np.int32, 1)

    def _place_shared(self, slots: Ints, locations: Ints) -> None:
        assert self._shared is not None
        if locations.size != slots.size:
            locations = locations[0] + np.arange(slots.size)
        self._owned[layout.A_SHARED][slots] = locations
        np.add.at(self._shared.live_rows, locations >> 32, 1)

    # -- choosing -------------------------------------------------------------------------------
    def _candidates(self, kind: IndexKind, where: Where | None) -> Ints:
        """The rows of the indexes that a selector draws from."""
        if where is None:
            return _row(self._index(kind))
        if where.rest is None:
            family = self._family(kind)
            numbers = self._partitions_where(where.partitions)
            indexes = self._indexes
            rows = [indexes.row_of(n, family) for n in numbers]
            return np.array([r for r in rows if indexes.table[r, layout.COUNT]], np.int64)
        return self._scan(kind, where)

    def _scan(self, kind: IndexKind, where: Where) -> Ints:
        """Make an index, for this one call, of the items that meet a query."""
        slots = self._matching(where, visible=True)
        if not slots.size:
            return np.zeros(0, np.int64)
        indexes = self._indexes
        index = self._make_index(kind, indexes.table[indexes.scratch], dense=True)
        index.row[layout.DEPENDS] = 0
        index.resize_slots(self._block.item(layout.SLOTS), None)
        index.reserve(slots.size)
        if self._has_zeros():
            self._add_zeros(index)
        self._fill(indexes.scratch, slots)
        self._scratch = index  # its arrays must live as long as the row points to them
        return _row(indexes.scratch)

    def _matching(self, where: Where | None, *, visible: bool) -> Ints:
        """The slots of items that meet a query: a scan over fields, never over payload."""
        states = self._owned[layout.A_STATE]
        admitted = states == layout.VISIBLE if visible else states != layout.FREE
        if where is not None and where.partitions:
            numbers = np.array(self._partitions_where(where.partitions), np.int32)
            admitted &= np.isin(self._owned[layout.A_PARTITION], numbers)
        slots = np.flatnonzero(admitted)
        if where is None or where.rest is None:
            return slots
        return slots[self._mask(where.rest, slots)]

    def _mask(self, query: Query, slots: Ints) -> NDArray[np.bool_]:
        return mask(query, lambda name: self._values(name, slots), slots.size)

    def available(self, where: Where | None) -> tuple[int, int]:
        block = self._block
        if where is None:
            visible = block.item(layout.LIVE) - block.item(layout.HIDDEN)
            return visible, block.item(layout.SAMPLED)
        if where.rest is None:
            numbers = self._partitions_where(where.partitions)
            visible = int(self._owned[layout.A_PARTITION_VISIBLE][numbers].sum()) if numbers else 0
            sampled = int(self._owned[layout.A_PARTITION_SAMPLED][numbers].sum()) if numbers else 0
            return visible, sampled
        slots = self._matching(where, visible=True)
        return slots.size, int(self._owned[layout.A_TIMES][slots].sum())

    def _run(
        self, selector: Selector, verb: int, n: int, where: Where | None, replace: bool, calls: int
    ) -> MemoryChosen:
        """Let the kernel choose n items and do to them what the verb says."""
        kind = IndexKind.of(selector, staying=verb == SAMPLE)
        rows = self._candidates(kind, where)
        beta, stratified, normalize = 0.0, 0, 0
        if type(selector) is Prioritized:
            beta = selector.beta.at(calls) if isinstance(selector.beta, Linear) else selector.beta
            stratified = int(selector.stratified)
            normalize = NORMALIZE[selector.normalize]
            if selector.half_life is not None:
                self._scale_for_draw(rows)
        ints = np.empty((5, n), np.int64)
        floats = np.empty((3, n), np.float64)
        self._make_work(n)
        left = self._choose(
            self._block, self._indexes.table, rows, verb, n, replace, stratified, beta,
            normalize, self._random, ints, floats, self._work,
        )  # fmt: skip
        return MemoryChosen(self, ints, floats, n, left if verb == SAMPLE else 0)

    def sample(
        self, selector: Selector, n: int, where: Where | None, replace: bool, calls: int
    ) -> MemoryChosen:
        if isinstance(selector, Mixed):
            chosen = self._run_mixed(selector, SAMPLE, n, where, replace, calls)
        else:
            chosen = self._run(selector, SAMPLE, n, where, replace, calls)
        chosen.pin()
        if chosen.left:
            worn = chosen.ints[LEFT, : chosen.left].copy()
            chosen.worn = self._owned[layout.A_KEY][worn]
            self._release(worn)
        return chosen

    def take(self, selector: Selector, n: int, where: Where | None, *, hide: bool) -> MemoryChosen:
        if isinstance(selector, Mixed):
            chosen = self._run_mixed(selector, TAKE, n, where, False, 0)
        else:
            chosen = self._run(selector, TAKE, n, where, False, 0)
        chosen.pin()
        if not hide:
            self._release(chosen.ints[SLOT].copy())
        return chosen

    def evict(self, selector: Selector, n: int, nbytes: int, keep: bool) -> list[MemoryChosen]:
        parts = []
        goal = self.nbytes - nbytes
        if n:
            parts.append(self._evict_some(selector, n, keep))
        while nbytes > 0 and self.nbytes > goal:
            parts.append(self._evict_some(selector, 1, keep))
        return parts

    def _evict_some(self, selector: Selector, n: int, keep: bool) -> MemoryChosen:
        if isinstance(selector, Mixed):
            chosen = self._run_mixed(selector, EVICT, n, None, False, 0)
        else:
            chosen = self._run(selector, EVICT, n, None, False, 0)
        if keep:
            chosen.pin()
        self._release(chosen.ints[SLOT])
        return chosen

    def _run_mixed(
        self, selector: Mixed, verb: int, n: int, where: Where | None, replace: bool, calls: int
    ) -> MemoryChosen:
        """Each selector for its share; what rounding takes from one it gets at a later call."""
        shares = np.array([share for _, share in selector.selectors])
        credits = self._credits.setdefault(selector, np.zeros(shares.size))
        credits += shares * n
        counts = np.maximum(np.floor(credits), 0).astype(np.int64)
        while counts.sum() > n:
            counts[np.argmin(credits - counts)] -= 1
        while counts.sum() < n:
            counts[np.argmax(credits - counts)] += 1
        credits -= counts
        parts: list[MemoryChosen | None] = []
        apart = verb == SAMPLE and not replace
        for (part, _), count in zip(selector.selectors, counts.tolist(), strict=True):
            drawn = self._run(part, verb, count, where, replace, calls) if count else None
            parts.append(drawn)
            if drawn is not None and apart:
                self._arrange(self._still_visible(drawn.ints[SLOT]), HIDE)
        joined = _joined(self, [part for part in parts if part is not None])
        if apart:
            worn = set(joined.ints[LEFT, : joined.left].tolist())
            back = [slot for slot in joined.ints[SLOT].tolist() if slot not in worn]
            self._arrange(np.array(back, np.int64), SHOW)
        if verb == SAMPLE:
            self._weigh_mixture(selector, parts, joined, where, calls)
        return joined

    def _still_visible(self, slots: Ints) -> Ints:
        slots = np.unique(slots)
        return slots[self._owned[layout.A_STATE][slots] == layout.VISIBLE]

    def _weigh_mixture(
        self, selector: Mixed, parts: list[MemoryChosen | None], chosen: MemoryChosen,
        where: Where | None, calls: int,
    ) -> None:  # fmt: skip
        """The probability of each item under the whole mixture, and its weight.

        An order chooses and does not draw: to what it chose, it adds its whole share. An item
        that left with this draw keeps the probability under the part that drew it.
        """
        slots = chosen.ints[SLOT]
        here = self._owned[layout.A_STATE][slots] == layout.VISIBLE
        mixture = np.zeros(slots.size)
        start = 0
        for (part, share), drawn in zip(selector.selectors, parts, strict=True):
            end = start + (0 if drawn is None else drawn.count)
            own = np.zeros(slots.size, np.bool_)
            own[start:end] = True
            start = end
            if isinstance(part, Ordered):
                mixture[own] += share
                continue
            rows = self._candidates(IndexKind.of(part, staying=True), where)
            under = np.zeros(slots.size)
            if rows.size and here.any():
                among = np.empty(int(here.sum()))
                self._items.probabilities(
                    self._block, self._indexes.table, rows, slots[here], among
                )
                under[here] = among
            under[own & ~here] = chosen.floats[PROBABILITY][own & ~here]
            mixture += share * under
        chosen.floats[PROBABILITY] = mixture
        weighing = [part for part, _ in selector.selectors if isinstance(part, Prioritized)]
        if weighing:
            first = weighing[0]
            beta = first.beta.at(calls) if isinstance(first.beta, Linear) else first.beta
            size = max(1, self.available(where)[0])
            reference = 1.0 / size if first.normalize is None else mixture.min()
            chosen.floats[WEIGHTS] = (mixture / reference) ** -beta

    def _arrange(self, slots: Ints, verb: int, depends: int = 0) -> None:
        self._make_work(slots.size)
        table = self._indexes.table
        self._items.arrange(self._block, table, slots, slots.size, verb, depends, self._work)

    # -- weights that age -----------------------------------------------------------------------
    def _newest_version(self) -> float:
        field = self._fields.get("version")
        return 0.0 if field is None else max(0.0, float(field.array.max(initial=0)))

    def _scale_for(self, fields: Mapping[str, FieldValue]) -> None:
        """Before items of a version come that is far ahead of the reference, move it there."""
        version = fields.get("version")
        if version is None:
            return
        newest = float(np.max(version))
        for index in self._indexes:
            if index.kind.half_life is not None:
                ahead = (newest - index.parameters[layout.REFERENCE]) / index.kind.half_life
                if ahead > OVERFLOWING:
                    self._rescale(index, newest)

    def _scale_for_draw(self, rows: Ints) -> None:
        """Where only weights near zero are left, scale them up so that their ratios show."""
        indexes = list(self._indexes)
        for row in rows:
            if row < len(indexes):
                index = indexes[row]
                if index.row[layout.POSITIVE] and index.total < 1e-200:
                    slots = self._members(index)
                    versions = self._fields["version"].array[slots]
                    positive = self._owned[layout.A_PRIORITY][slots] > 0
                    newest = float(versions[positive].max())
                    if newest != index.parameters[layout.REFERENCE]:
                        self._rescale(index, newest)

    def _members(self, index: Index) -> Ints:
        visible = self._visible()
        for number, partition in enumerate(self._indexes.partitions):
            if index in partition:
                return visible[self._owned[layout.A_PARTITION][visible] == number]
        return visible

    def _rescale(self, index: Index, reference: float) -> None:
        index.parameters[layout.REFERENCE] = reference
        row = list(self._indexes).index(index)
        slots = self._members(index)
        self._arrange(slots, FILL + row, CHANGE)

    # -- removing, hiding, bringing back --------------------------------------------------------
    def _release(self, slots: Ints) -> None:
        block = self._block
        self._items.release(block, slots, slots.size)
        if block.item(layout.DEAD_SEGMENTS):
            block[layout.DEAD_SEGMENTS] = 0
            assert self._rows is not None
            self._rows.drop_dead()
            if self._shared is not None:
                self._shared.drop_dead()
        if block.item(layout.ROWS) < self._check_below:
            self._compact()

    def _slots(self, keys: Keys) -> Ints:
        slots = np.empty(keys.size, np.int64)
        self._items.find_slots(self._block, keys, slots)
        return slots

    def _at(self, slots: Ints, keep: bool = True) -> MemoryChosen:
        """Items that were named, not drawn."""
        ints = np.zeros((5, slots.size), np.int64)
        floats = np.ones((3, slots.size))
        ints[KEY] = self._owned[layout.A_KEY][slots].view(np.int64)
        ints[TIMES] = self._owned[layout.A_TIMES][slots]
        ints[LOCATION] = self._owned[layout.A_LOCATION][slots]
        ints[SLOT] = slots
        floats[PROBABILITY] = 1.0 / max(1, len(self))
        if layout.A_PRIORITY in self._owned:
            floats[PRIORITY] = self._owned[layout.A_PRIORITY][slots]
        chosen = MemoryChosen(self, ints, floats, slots.size, 0)
        if keep:
            chosen.pin()
        return chosen

    def remove(self, keys: Keys, keep: bool) -> MemoryChosen:
        slots = self._slots(keys)
        chosen = self._at(slots[slots >= 0], keep)
        self._release(chosen.ints[SLOT].copy())
        return chosen

    def show(self, keys: Keys, *, uncount: bool) -> int:
        slots = self._slots(keys)
        slots = slots[slots >= 0]
        if uncount:
            self._owned[layout.A_TIMES][slots] -= 1
        if layout.A_DELIVERIES not in self._owned:
            self._own_slots(layout.A_DELIVERIES, np.int32, 0)
        self._owned[layout.A_DELIVERIES][slots] += 1
        self._arrange(slots, SHOW)
        return slots.size

    def find(self, keys: Keys | None, where: Where | None, *, visible: bool) -> Keys:
        if keys is None:
            slots = self._matching(where, visible=visible)
        else:
            slots = self._slots(np.unique(keys))
            slots = slots[slots >= 0]
            states = self._owned[layout.A_STATE][slots]
            slots = slots[states == layout.VISIBLE] if visible else slots
            if where is not None:
                slots = slots[self._mask(where.query, slots)]
        return self._owned[layout.A_KEY][slots]

    def delete(self, keys: Keys, keep: bool) -> MemoryChosen:
        chosen = self._at(self._slots(keys), keep)
        slots = chosen.ints[SLOT].copy()
        self._arrange(slots, HIDE)
        self._release(slots)
        return chosen

    # -- changing -------------------------------------------------------------------------------
    def update(self, keys: Keys, fields: Mapping[str, Any]) -> NDArray[np.bool_]:
        slots = self._slots(keys)
        found = slots >= 0
        if not found.all():
            slots = slots[found]
            fields = {
                name: value[found] if _per_item(value) and value.size == found.size else value
                for name, value in fields.items()
            }
        if not slots.size:
            return found
        if len(fields) == 1 and "priority" in fields and not self._ordered_by_priority():
            self._update_priorities(slots, fields["priority"])
        else:
            self._update_fields(slots, fields)
        return found

    def _ordered_by_priority(self) -> bool:
        return any(i.kind.kind == layout.ORDER and i.kind.by == "priority" for i in self._indexes)

    def _update_priorities(self, slots: Ints, values: Floats) -> None:
        self._use_priorities()
        self._expect_zeros(values)
        visible = self._items.write_priorities(self._block, slots, values, slots.size)
        self._make_work(visible)
        self._items.arrange(
            self._block, self._indexes.table, slots, visible, CHANGE,
            layout.DEPENDS_PRIORITY, self._work,
        )  # fmt: skip

    def _update_fields(self, slots: Ints, fields: Mapping[str, Any]) -> None:
        """Take items out of the indexes that depend on what changes, change it, add them again."""
        assert self._layout is not None
        slots, fields = _last_of_each(slots, fields)
        moving = any(name in self._layout.partition_by for name in fields)
        depends = 0
        for name in fields:
            depends |= self._bit_of(name)
        visible = slots[self._owned[layout.A_STATE][slots] == layout.VISIBLE]
        self._scale_for(fields)
        self._expect_zeros(fields.get("priority"))
        self._arrange(visible, HIDE if moving else REMOVE, depends if not moving else 0)
        for name, value in fields.items():
            if name == "priority":
                self._use_priorities()
                self._items.write_priorities(self._block, slots.copy(), value, slots.size)
            else:
                self._field(name).write(slots, value)
        self._show_fields()
        if moving:
            self._move_partitions(slots)
        self._arrange(visible, SHOW if moving else ADD, depends if not moving else 0)

    def _move_partitions(self, slots: Ints) -> None:
        assert self._layout is not None
        columns = {name: self._field(name).read(slots) for name in self._layout.partition_by}
        fields: dict[str, Any] = {}
        for name, values in columns.items():
            absent = self._fields[name].absent
            plain = [None if v is None or v == absent or v != v else v for v in values.tolist()]
            fields[name] = plain
        keys = zip(*(fields[name] for name in self._layout.partition_by), strict=True)
        numbers = np.array([self._partition(key) for key in keys], np.int32)
        partition, live = self._owned[layout.A_PARTITION], self._owned[layout.A_PARTITION_LIVE]
        np.subtract.at(live, partition[slots], 1)
        np.add.at(live, numbers, 1)
        partition[slots] = numbers
        self._reserve_partitions(numbers, 0)

    def amend(self, keys: Keys, rows: Rows, per_item: NDArray[np.int32]) -> None:
        """Store whole items again, with cells filled in; the old rows are freed.

        Rows are never overwritten, so a reader that holds the old ones is not disturbed.
        """
        assert self._rows is not None
        slots = self._slots(keys)
        locations, payload = self._rows.append(rows, per_item, slots.size)
        self._sync_segments()
        if locations.size != slots.size:
            locations = locations[0] + np.arange(slots.size) * int(per_item[0])
        payload = np.broadcast_to(payload, slots.size)
        counts = np.broadcast_to(per_item, slots.size)
        self._relocate(slots, locations, counts)
        before = self._values("nbytes", slots).values
        shared = self._shared_bytes(slots)
        self._owned[layout.A_NBYTES][slots] = payload + shared
        self._block[layout.PAYLOAD] += int((payload + shared - before).sum())

    def _shared_bytes(self, slots: Ints) -> Ints:
        """Payload of the shared cells of items."""
        if self._shared is None:
            return np.zeros(slots.size, np.int64)
        reader = self._shared.pin(self._owned[layout.A_SHARED][slots], None)
        return reader.payload()

    def _relocate(self, slots: Ints, locations: Ints, counts: Array) -> None:
        """Items have moved: count their rows where they are now."""
        assert self._rows is not None
        old = self._owned[layout.A_LOCATION][slots]
        np.add.at(self._rows.live_rows, locations >> 32, counts)
        np.subtract.at(self._rows.live_rows, old >> 32, counts)
        self._owned[layout.A_LOCATION][slots] = locations
        if self._rows.tracking:
            self._rows.track(locations, slots)
        self._rows.drop_dead()

    # -- compaction -----------------------------------------------------------------------------
    def _track(self, slots: Ints) -> None:
        assert self._rows is not None
        self._rows.track(self._owned[layout.A_LOCATION][slots], slots)

    def _compact(self) -> None:
        """Move the items of the emptiest segments to the end, until little is wasted."""
        for store, place in ((self._rows, layout.A_LOCATION), (self._shared, layout.A_SHARED)):
            if store is None:
                continue
            segment = store.emptiest()
            if segment is not None and not store.tracking:
                store.tracking = True
                stored = np.flatnonzero(self._owned[layout.A_STATE] != layout.FREE)
                store.track(self._owned[place][stored], stored)
            while segment is not None:
                self._empty(store, segment, place)
                segment = store.emptiest()
        self._check_below = int(self._block.item(layout.ROWS) * 0.9)

    def _empty(self, store: RowStore, segment: Any, place: int) -> None:
        owners = np.unique(segment.owners[: segment.rows])
        owners = owners[owners >= 0].astype(np.int64)
        owners = owners[self._owned[layout.A_STATE][owners] != layout.FREE]
        locations = self._owned[place][owners]
        here = (locations >> 32) == segment.number
        slots = owners[here]
        slots = slots[np.argsort(self._seq(slots), kind="stable")]
        counts = self._rows_of(slots) if store is self._rows else np.ones(slots.size, np.int64)
        reader = store.pin(self._owned[place][slots], counts.astype(np.int32))
        columns, present = reader.gather(np.empty)
        flags = [(present or {}).get(name) for name in store.names]
        rows = Rows(int(counts.sum()), [columns[name] for name in store.names], flags)
        moved, _ = store.append(rows, counts.astype(np.int32), slots.size)
        self._sync_segments()
        if moved.size != slots.size:
            moved = moved[0] + np.arange(slots.size)
        np.add.at(store.live_rows, moved >> 32, counts)
        store.live_rows[segment.number] = 0
        self._owned[place][slots] = moved
        store.track(moved, slots)
        store.drop_dead()

    # -- looking --------------------------------------------------------------------------------
    def get(self, keys: Keys, columns: Sequence[str] | None) -> MemoryChosen:
        slots = self._slots(keys)
        if (slots < 0).any():
            gone = keys[slots < 0]
            raise UnknownKey(
                f"{gone.size} of {keys.size} keys are not in the table, such as {gone[0]}: "
                "their items have gone"
            )
        chosen = self._at(slots)
        chosen.columns = columns
        return chosen

    def count(self, where: Where | None) -> int:
        if where is None:
            return len(self)
        if where.rest is None:
            numbers = self._partitions_where(where.partitions)
            return int(self._owned[layout.A_PARTITION_LIVE][numbers].sum()) if numbers else 0
        return self._matching(where, visible=False).size

    def counts(self, fields: Sequence[str]) -> dict[Any, int]:
        assert self._layout is not None
        by = self._layout.partition_by
        if set(fields) <= set(by):
            live = self._owned[layout.A_PARTITION_LIVE]
            groups = [(key, int(live[number])) for key, number in self._partition_ids.items()]
            places = [by.index(name) for name in fields]
            pairs = [(tuple(key[p] for p in places), count) for key, count in groups]
        else:
            slots = np.flatnonzero(self._owned[layout.A_STATE] != layout.FREE)
            columns = [self._seen(name, slots) for name in fields]
            pairs = [(key, 1) for key in zip(*columns, strict=True)]
        totals: dict[Any, int] = {}
        for key, count in pairs:
            if count:
                totals[key] = totals.get(key, 0) + count
        return {k[0] if len(fields) == 1 else k: count for k, count in totals.items()}

    def _seen(self, name: str, slots: Ints) -> list[Any]:
        """A field as users see it, None where absent."""
        if name in BUILT_IN and name not in ("task", "status", "version"):
            return self._values(name, slots).values.tolist()
        field = self._field(name)
        values = field.read(slots).tolist()
        return [None if v is None or v != v or v == field.absent else v for v in values]


class MemoryChosen:
    """Items that a call got: what the table knew of them, and readers of their payload."""

    __slots__ = (
        "_reader", "_rows", "_shared", "_storage", "columns", "count", "extra", "floats", "ints",
        "left", "table_size", "worn",
    )  # fmt: skip

    def __init__(
        self, storage: MemoryStorage, ints: Ints, floats: Floats, count: int, left: int
    ) -> None:
        self._storage = storage
        self.ints = ints
        self.floats = floats
        self.count = count
        self.left = left
        self.worn: Keys | None = None
        self.columns: Sequence[str] | None = None

    @property
    def keys(self) -> Keys:
        return self.ints[KEY].view(np.uint64)

    @property
    def nbytes(self) -> int:
        """Bytes of payload, while the items are still stored."""
        return int(self._storage._values("nbytes", self.ints[SLOT]).values.sum())

    def pin(self) -> None:
        """Under the lock: hold the segments, and take down every field that somebody set."""
        storage = self._storage
        owned = storage._owned
        slots = self.ints[SLOT]
        self.extra: dict[str, Array] = {}
        for name, field in storage._fields.items():
            self.extra[name] = field.read(slots)
        if layout.A_DELIVERIES in owned:
            self.extra["deliveries"] = owned[layout.A_DELIVERIES][slots].astype(np.int64) + 1
        self._rows = owned[layout.A_ROWS][slots] if layout.A_ROWS in owned else None
        rows = storage._rows
        assert rows is not None
        self._reader: Reader = rows.pin(self.ints[LOCATION], self._rows)
        shared = storage._shared
        self._shared: Reader | None = None
        if shared is not None:
            self._shared = shared.pin(owned[layout.A_SHARED][slots], None)
        self.table_size = storage._block.item(layout.LIVE)

    def narrow(self) -> None:
        """Hold only what is needed: for those that are kept for long."""
        self._reader.narrow()
        if self._shared is not None:
            self._shared.narrow()

    def read(self, allocate: Allocate | None = None, lease: Any = None) -> Batch:
        allocate = self._storage._pool.array if allocate is None else allocate
        columns, present = self._reader.gather(allocate, self.columns)
        shared = shared_present = None
        if self._shared is not None:
            shared, shared_present = self._shared.gather(allocate)
        arrays = self.extra
        ints, floats = self.ints, self.floats
        arrays["keys"] = ints[KEY].view(np.uint64)
        arrays["priority"] = floats[PRIORITY]
        arrays["probability"] = floats[PROBABILITY]
        arrays["weights"] = floats[WEIGHTS]
        arrays["times_sampled"] = ints[TIMES]
        arrays["row_offsets"] = _ends(self.count) if self._rows is None else _sums(self._rows)
        info = Info(arrays, self.table_size, lease)
        return Batch._make(columns, info, shared, present, shared_present)


def _joined(storage: MemoryStorage, parts: list[MemoryChosen]) -> MemoryChosen:
    ints = np.concatenate([part.ints for part in parts], axis=1)
    floats = np.concatenate([part.floats for part in parts], axis=1)
    left = [part.ints[LEFT, : part.left] for part in parts]
    chosen = MemoryChosen(storage, ints, floats, ints.shape[1], sum(part.left for part in parts))
    ints[LEFT, : chosen.left] = np.concatenate(left)
    return chosen


def _last_of_each(slots: Ints, fields: Mapping[str, Any]) -> tuple[Ints, dict[str, Any]]:
    """Where an item is named twice, its last value counts."""
    unique, last = np.unique(slots[::-1], return_index=True)
    if unique.size == slots.size:
        return slots, dict(fields)
    keep = slots.size - 1 - last
    chosen = {
        name: value[keep] if _per_item(value) and value.size == slots.size else value
        for name, value in fields.items()
    }
    return slots[keep], chosen


def _per_item(value: Any) -> bool:
    return isinstance(value, np.ndarray)


def _ends(count: int) -> Ints:
    """0, 1, ..., count: where items of one row start. Shared between batches, so read-only."""
    ends = _item_ends.get(count)
    if ends is None:
        ends = np.arange(count + 1)
        ends.setflags(write=False)
        if len(_item_ends) >= 64:
            _item_ends.clear()
        _item_ends[count] = ends
    return ends


def _sums(counts: Array) -> Ints:
    ends = np.zeros(counts.size + 1, np.int64)
    np.cumsum(counts, out=ends[1:])
    return ends


def _row(number: int) -> Ints:
    return np.array([number], np.int64)


def _new_row() -> Ints:
    return np.zeros(layout.INDEX_BLOCK, np.int64)


def _grown(array: Array | None, size: int, dtype: Any, fill: Any) -> Array:
    grown = np.zeros(size, dtype) if fill == 0 else np.full(size, fill, dtype)
    if array is not None:
        grown[: array.size] = array
    return grown


def _maxima_size(slots: int) -> int:
    size, width = 0, slots
    while True:
        width = (width + 15) >> 4
        size += (width + 15) & ~15
        if width == 1:
            return size


_EVERY_ITEM: tuple[tuple[int, Any, Any], ...] = (
    (layout.A_KEY, np.uint64, 0),
    (layout.A_STATE, np.int8, layout.FREE),
    (layout.A_LOCATION, np.int64, 0),
    (layout.A_TIMES, np.int32, 0),
    (layout.A_INSERTED, np.float64, 0),
)
_BY_PARTITION = (layout.A_PARTITION_LIVE, layout.A_PARTITION_SAMPLED, layout.A_PARTITION_VISIBLE)
_SOME_ITEMS: tuple[tuple[int, Any, Any], ...] = (
    (layout.A_SHARED, np.int64, 0),
    (layout.A_ROWS, np.int32, 1),
    (layout.A_NBYTES, np.int64, 0),
    (layout.A_SEQ, np.int64, 0),
    (layout.A_DELIVERIES, np.int32, 0),
)
