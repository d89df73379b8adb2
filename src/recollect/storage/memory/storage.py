"""Items in this process's memory: rows in segments, fields by slot, an index per selector.

Nothing here waits and nothing locks by itself: `transaction()` is the one lock of the table.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recollect.base.arrays import Floats, Ints, Keys
from recollect.data.rows_per_item import ONE_ROW
from recollect.data.schema import Rows, Schema
from recollect.errors import InvalidValue
from recollect.kernels import layout
from recollect.kernels.load import load
from recollect.rules.selectors import Mixed, Selector, Smallest
from recollect.storage.base import Layout, NewItems, Where, unknown_keys
from recollect.storage.memory.chosen import LEFT, MemoryChosen, named
from recollect.storage.memory.executor import EVICT, SAMPLE, TAKE, MemoryExecutor
from recollect.storage.memory.index_set import CHANGE, HIDE, SHOW, IndexSet
from recollect.storage.memory.item_changes import ItemChanges, selected
from recollect.storage.memory.items import Items
from recollect.storage.memory.matcher import Matcher
from recollect.storage.memory.row_stores import RowStores
from recollect.storage.row_reader import Reader
from recollect.storage.row_segment import stretches_of

NO_PARTITION = np.zeros(1, np.int32)
LARGEST_CHUNK = 256  # items that `hide_up_to` looks at together


class MemoryStorage:
    """Keeps items in memory: the default, and the fastest.

    >>> import recollect as rc
    >>> table = rc.Table("replay", capacity=1000, storage=rc.MemoryStorage())
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._layout: Layout | None = None
        self.saving = threading.Lock()  # held by whoever writes a snapshot
        self.ledger: Any = None  # what of this storage is in which files (`durability.ledger`)

    def reset(self) -> None:
        """Begin anew, as when it was opened; under the lock."""
        layout_, self._layout, self.ledger = self._layout, None, None
        assert layout_ is not None
        self.open(layout_)

    def open(self, layout_: Layout) -> None:
        if self._layout is not None:
            raise InvalidValue(
                f"storage: this one belongs to table {self._layout.name!r}; make one per table"
            )
        self._layout = layout_
        self._kernels = load()
        # its parts, which snapshots, journals and direct inserts use too
        self.items = Items(self._kernels, layout_.capacity, layout_.fields)
        self.index_set = IndexSet(self.items, layout_.partition_by, self._kernels)
        self.stores = RowStores(self.items, self._kernels)
        self._matcher = Matcher(self.items, self.index_set)
        self.executor = MemoryExecutor(
            self.items, self.index_set, self._matcher, self._kernels, layout_.seed
        )
        self._changes = ItemChanges(self.items, self.index_set, self.stores, self._kernels)
        self._partition_by = layout_.partition_by
        self._default = np.zeros(1)
        self._slots = np.empty(64, np.int64)  # for kernels that need room for some
        self._orders: dict[str, Smallest] = {}  # those that no selector of the table asks for
        self.items.block[layout.MAX_TIMES] = layout_.max_times_sampled

    def set_schema(self, rows: Schema, shared: Schema | None) -> None:
        assert self._layout is not None
        self.stores.set_schema(rows, shared, self._layout.capacity)

    # -- what is there --------------------------------------------------------------------------
    def transaction(self) -> threading.RLock:
        return self._lock

    def __len__(self) -> int:
        return self.items.now[layout.LIVE]

    @property
    def hidden(self) -> int:
        return self.items.now[layout.HIDDEN]

    @property
    def nbytes(self) -> int:
        return self.items.now[layout.PAYLOAD]

    @property
    def hidden_nbytes(self) -> int:
        return self.items.now[layout.HIDDEN_BYTES]

    @property
    def visits(self) -> int:
        """Index entries and tree nodes touched so far: what tests count instead of seconds."""
        return self.items.now[layout.VISITS]

    def highest_priority(self) -> float:
        return self.items.highest_priority()

    def available(self, where: Where | None, most: int | None = None) -> tuple[int, int]:
        if where is None:
            now = self.items.now
            return now[layout.LIVE] - now[layout.HIDDEN], now[layout.SAMPLED]
        return self._matcher.available(where)

    def count(self, where: Where | None) -> int:
        if where is None:
            return len(self)
        return self._matcher.count(where)

    def counts(self, fields: Sequence[str]) -> dict[Any, int]:
        if set(fields) <= set(self._partition_by):
            pairs = self.index_set.partitions.groups(tuple(fields))
        else:
            slots = self.items.stored()
            columns = [self.items.seen(name, slots) for name in fields]
            pairs = [(values, 1) for values in zip(*columns, strict=True)]
        totals: dict[Any, int] = {}
        for values, count in pairs:
            if count:
                key = values[0] if len(fields) == 1 else values
                totals[key] = totals.get(key, 0) + count
        return totals

    # -- inserting ------------------------------------------------------------------------------
    def insert(self, new: NewItems) -> Keys:
        stores, items = self.stores, self.items
        rows, shared, count = stores.rows, stores.shared, new.count
        assert rows is not None
        if items.make_room(count):
            self.index_set.resize()
            items.growing = False
        if new.per_item is not ONE_ROW and (new.per_item.size > 1 or new.per_item[0] != 1):
            items.keep(layout.A_ROWS)
        priority = new.priority
        if priority is None:
            priority = self._default
            given = new.default_priority
            priority[0] = items.highest_priority() if given < 0.0 else given
        partitions = NO_PARTITION
        if self._partition_by:
            partitions = self.index_set.partitions_for(new.fields, count)
        if new.priority is not None:
            self.index_set.expect(priority)
        if new.fields:
            self.index_set.expect_versions(new.fields)
        locations, payload = stores.append(rows, new.rows, new.per_item, count)
        shared_locations = shared_payload = None
        if shared is not None and new.shared is not None:
            shared_locations, shared_payload = stores.append(shared, new.shared, ONE_ROW, count)
            payload = payload + shared_payload
        keys = np.empty(count, np.uint64)
        slots = np.empty(count, np.int64)
        self._kernels.items.allocate(
            items.block, count, locations, new.per_item, payload, priority, partitions,
            new.inserted_at, keys, slots,
        )  # fmt: skip
        if not items.plain or new.fields:
            items.write_new(slots, new.fields)
            items.number_new(slots)
        if shared_locations is not None:
            if shared_locations.size != count:
                shared_locations = shared_locations[0] + np.arange(count)
            items.owned[layout.A_SHARED][slots] = shared_locations
            items.owned[layout.A_SHARED_NBYTES][slots] = shared_payload
        if rows.tracking or (shared is not None and shared.tracking):
            stores.track(slots)
        self.index_set.arrange(slots, SHOW)
        stores.tidy(rows.opened if shared is None else rows.opened + shared.opened)
        return keys

    def recycle(self, remover: Selector, new: NewItems, *, tell: bool) -> Keys | None:
        stores, items, index_set, count = self.stores, self.items, self.index_set, new.count
        rows = stores.rows
        if not items.plain or rows is None or rows.tracking:
            return None
        if new.per_item is not ONE_ROW or new.fields:
            return None
        order = index_set.ring(remover, count)
        if order < 0:
            return None
        items.reserve_hash(count)
        priority = new.priority
        if priority is None:
            priority = self._default
            priority[0] = items.highest_priority()
        else:
            index_set.expect(priority)
        keys = np.empty(2 * count if tell else count, np.uint64)
        if self._slots.size < count:
            self._slots = np.empty(count, np.int64)
            index_set.make_work(count)
        payload = rows.row_bytes
        try:
            if rows.varying:
                locations, payload = rows.append(new.rows, ONE_ROW, count)
                stretches = stretches_of(locations, count)
            else:
                stretches = rows.claim(count)
        finally:
            if rows.entries is not stores.shown:
                stores.show()
        self._kernels.items.recycle(
            items.block, index_set.indexes.table, order, count, stretches, payload, priority,
            new.inserted_at, keys, self._slots, index_set.work,
            rows.stride, rows.table, id(new.rows.columns),
        )  # fmt: skip
        if items.now[layout.DEAD_SEGMENTS] or rows.opened != stores.opened or rows.varying:
            stores.tidy(rows.opened)
        return keys

    # -- choosing -------------------------------------------------------------------------------
    def next_deal(self, mixture: Mixed, n: int) -> list[tuple[Selector, int]]:
        return self.executor.next_deal(mixture, n)

    def _pin(self, chosen: MemoryChosen) -> MemoryChosen:
        """Make items readable without the lock."""
        stores = self.stores
        assert stores.rows is not None
        chosen.pin(self.items, stores.rows, stores.shared, stores.outputs.array)
        return chosen

    def _pin_for_long(self, chosen: MemoryChosen) -> MemoryChosen:
        """The same for items that leave: a follower may hold them, and only their segments."""
        self._pin(chosen).narrow()
        return chosen

    def sample(
        self, selector: Selector, n: int, where: Where | None, replace: bool, calls: int
    ) -> MemoryChosen:
        chosen = self._pin(self.executor.choose(selector, SAMPLE, n, where, replace, calls))
        if chosen.left:
            slots = chosen.ints[LEFT, : chosen.left].copy()
            chosen.worn = self._pin_for_long(named(self.items, slots))
            self._release(slots)
        return chosen

    def take(self, selector: Selector, n: int, where: Where | None, *, hide: bool) -> MemoryChosen:
        chosen = self._pin(self.executor.choose(selector, TAKE, n, where, False, 0))
        if not hide:
            self._release(chosen.slots)
        return chosen

    def evict(
        self, selector: Selector, n: int, nbytes: int, keep: bool
    ) -> tuple[int, list[MemoryChosen]]:
        gone = 0
        kept: list[MemoryChosen] = []
        goal = self.nbytes - nbytes
        while n > 0 or (nbytes > 0 and self.nbytes > goal):
            evicted = self.executor.choose(selector, EVICT, max(n, 1), None, False, 0)
            kept.append(self._pin_for_long(evicted) if keep else evicted)
            self._release(evicted.slots)
            gone += evicted.count
            n = 0
        return gone, kept

    # -- removing, hiding, bringing back --------------------------------------------------------
    def _release(self, slots: Ints) -> None:
        self._kernels.items.release(self.items.block, slots, slots.size)
        stores = self.stores
        stores.tidy(stores.opened)

    def _named(self, keys: Keys, keep: bool) -> MemoryChosen:
        slots = self.items.slots_of(keys)
        chosen = named(self.items, slots[slots >= 0])
        return self._pin_for_long(chosen) if keep else chosen

    def remove(self, keys: Keys, keep: bool) -> MemoryChosen:
        chosen = self._named(keys, keep)
        self._release(chosen.slots)
        return chosen

    def delete(self, keys: Keys, keep: bool) -> MemoryChosen:
        chosen = self._named(keys, keep)
        self.index_set.arrange(chosen.slots, HIDE)
        self._release(chosen.slots)
        return chosen

    def hide(self, keys: Keys) -> Keys:
        slots = self.items.slots_of(keys)
        slots = self.items.still_visible(slots[slots >= 0])
        self.index_set.arrange(slots, HIDE)
        return self.items.key[slots]

    def hide_up_to(self, field: str, bound: int) -> Keys:
        index_set = self.index_set
        plan = index_set.plan(self._smallest(field), False)
        row = int(index_set.rows_over_all(plan)[0])
        hidden: list[Keys] = []
        chunk = 1
        while index_set.first_value(row) <= bound:
            # More at a time as more turn out to be due; those that are not go back to the front,
            # which are fewer than those that were.
            count = min(chunk, index_set.indexes.at(row).count)
            chosen = self.executor.run(plan, EVICT, count, False, 0, np.array([row], np.int64))
            due = self.items.field(field).array[chosen.slots] <= bound
            due &= self.items.field(field).array[chosen.slots] != self.items.field(field).absent
            hidden.append(chosen.keys[due])
            if not due.all():
                index_set.arrange(np.ascontiguousarray(chosen.slots[~due][::-1]), SHOW)
            chunk = min(2 * chunk, LARGEST_CHUNK)
        return np.concatenate(hidden) if hidden else np.zeros(0, np.uint64)

    def _smallest(self, field: str) -> Selector:
        """The order by a field: one object for each, by which its plan is found again."""
        if field not in self._orders:
            self._orders[field] = Smallest(field)
        return self._orders[field]

    def show(self, keys: Keys, *, returned: bool) -> int:
        items = self.items
        slots = items.slots_of(keys)
        slots = slots[slots >= 0]
        if returned:
            items.times[slots] -= 1
            items.keep(layout.A_DELIVERIES)
            items.owned[layout.A_DELIVERIES][slots] += 1
        self.index_set.arrange(slots, SHOW)
        return slots.size

    def find(self, keys: Keys | None, where: Where | None, *, visible: bool) -> Keys:
        if keys is None:
            slots = self._matcher.slots(where, visible=visible)
        else:
            slots = self.items.slots_of(np.unique(keys))
            slots = slots[slots >= 0]
            slots = self.items.still_visible(slots) if visible else slots
            if where is not None:
                slots = slots[self._matcher.holds(where.query, slots)]
        return self.items.key[slots]

    def get(self, keys: Keys, columns: Sequence[str] | None) -> MemoryChosen:
        slots = self.items.slots_of(keys)
        if (slots < 0).any():
            gone = keys[slots < 0]
            raise unknown_keys(gone.tolist(), keys.size)
        chosen = self._pin(named(self.items, slots))
        chosen.columns = columns
        return chosen

    # -- changing -------------------------------------------------------------------------------
    def update(self, keys: Keys, fields: Mapping[str, Any]) -> NDArray[np.bool_]:
        if len(fields) == 1 and "priority" in fields and not self.index_set.orders_by("priority"):
            return self._update_priorities(keys, fields["priority"])
        slots, count = self.items.slots_found(keys)
        found = slots >= 0
        if count < keys.size:
            fields = {name: selected(value, found, found.size) for name, value in fields.items()}
            slots = slots[found]
        if slots.size:
            self._changes.update(slots, fields)
        return found

    def _update_priorities(self, keys: Keys, values: Floats) -> NDArray[np.bool_]:
        """Nothing moves, and only weights are computed anew."""
        found = np.empty(keys.size, np.bool_)
        if keys.size:
            self.index_set.expect(values)
            slots = np.empty(keys.size, np.int64)
            visible = self._kernels.items.update_priorities(
                self.items.block, keys, values, slots, found
            )
            self.index_set.arrange(slots[:visible], CHANGE, layout.DEPENDS_PRIORITY)
        return found

    def amend(self, keys: Keys, rows: Rows, per_item: NDArray[np.int32], payload: Ints) -> None:
        self._changes.amend(self.items.slots_of(keys), rows, per_item, payload)

    def keep_indexes(self, selectors: Sequence[Selector]) -> None:
        self.index_set.keep_for([*selectors, *self._orders.values()])

    # -- what snapshots and journals need beside the verbs of every storage -----------------------
    def pinned(self, keys: Keys, *, shared: bool) -> tuple[Reader, Reader | None]:
        """Readers of the rows that stored items have now, and of their shared cells if wanted."""
        items, stores = self.items, self.stores
        assert stores.rows is not None
        slots = items.slots_of(keys)
        owned = items.owned
        counts = owned[layout.A_ROWS][slots] if layout.A_ROWS in owned else None
        cells = None
        if shared and stores.shared is not None:
            cells = stores.shared.pin(owned[layout.A_SHARED][slots], None)
        return stores.rows.pin(items.location[slots], counts), cells

    def sizes_of(self, keys: Keys) -> tuple[NDArray[np.int32], int]:
        """How many rows each of some stored items has, and the payload of all together."""
        slots = self.items.slots_of(keys)
        return self.items.rows(slots), int(self.items.nbytes(slots).sum())

    def add_times(self, keys: Keys, times: Ints) -> None:
        """Items were sampled so often, as a journal tells; those that have gone are passed over."""
        slots = self.items.slots_of(keys)
        here = slots >= 0
        hidden = self.hide(keys[here])
        self.items.times[slots[here]] += times[here].astype(np.int32)
        self.show(hidden, returned=False)

    def lease_again(self, keys: Keys) -> Keys:
        """Undo that leased items were given back, as a snapshot has them; returns those found."""
        found = self.find(keys, None, visible=True)
        if found.size:
            self.add_times(found, np.ones(found.size, np.int64))
            slots = self.items.slots_of(found)
            self.items.owned[layout.A_DELIVERIES][slots] -= 1
            self.hide(found)
        return found
