"""Items in this process's memory: rows in segments, fields by slot, an index per selector.

Nothing here waits and nothing locks by itself: `transaction()` is the one lock of the table.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recollect.data.rows_per_item import ONE_ROW
from recollect.data.schema import Rows, Schema
from recollect.errors import InvalidValue
from recollect.kernels import layout
from recollect.kernels.load import load
from recollect.rules.query import Query, mask
from recollect.rules.selectors import Linear, Mixed, Ordered, Prioritized, Selector, Smallest
from recollect.storage.base import Keys, Layout, NewItems, Where, unknown_keys
from recollect.storage.buffers import BufferPool
from recollect.storage.fields import FieldValue
from recollect.storage.memory.chosen import (
    LEFT,
    PROBABILITY,
    TIMES,
    WEIGHTS,
    MemoryChosen,
    joined,
    named,
)
from recollect.storage.memory.index_set import ADD, CHANGE, HIDE, REMOVE, SHOW, Indexing, Plan
from recollect.storage.memory.items import Items
from recollect.storage.rows import DEAD_SHARE, LARGEST, SLACK, RowStore, stretches_of
from recollect.storage.shares import Credits, dealt

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Array = NDArray[Any]

SAMPLE, TAKE, EVICT = 0, 1, 2  # verbs of the kernel `choose`
NO_PARTITION = np.zeros(1, np.int32)
OUTPUTS = 12 << 20  # bytes of large outputs that are kept for reuse,
OUTPUT_SHARE = 32  # and one in so many of the payload
SEGMENTS = 16 << 20  # the same for segments: as one is opened, two may just have died
SCANNED, SHARE_SCANNED = 1024, 8  # a scan is as good where few items are beside those wanted
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
        self._choose = self._kernels.items.choose
        self._outputs = BufferPool(OUTPUTS)
        self._segments = BufferPool(SEGMENTS)
        self._items = Items(self._kernels, layout_.capacity, layout_.fields)
        self._indexing = Indexing(self._items, layout_.partition_by, self._kernels)
        self._partition_by = layout_.partition_by
        self._rows: RowStore | None = None
        self._shared: RowStore | None = None
        self._default = np.zeros(1)
        self._slots = np.empty(64, np.int64)  # for kernels that need room for some
        self._random = np.random.SeedSequence(layout_.seed).generate_state(4, np.uint64)
        self._credits: Credits = {}
        self._orders: dict[str, Smallest] = {}  # those that no selector of the table asks for
        self._opened = 0  # segments, when we last looked whether to compact
        self._fewer_rows = self._fewer_bytes = 0  # at which we look again
        self._items.block[layout.MAX_TIMES] = layout_.max_times_sampled

    def set_schema(self, rows: Schema, shared: Schema | None) -> None:
        items = self._items
        if self._rows is None:
            self._rows = RowStore(rows, self._kernels, self._segments)
            if not self._rows.varying:
                assert self._layout is not None
                self._rows.expect(self._layout.capacity * self._rows.stride)
            items.block[layout.ROW_BYTES] = self._rows.fixed_bytes
            if shared is not None:
                self._shared = RowStore(shared, self._kernels, self._segments)
                items.keep(layout.A_SHARED)
                items.keep(layout.A_SHARED_NBYTES)
            if self._rows.varying or shared is not None:
                items.keep(layout.A_NBYTES)
        elif self._rows.schema is not rows:
            items.keep_sizes()
            self._rows.set_schema(rows)
        self._show_segments()

    def _show_segments(self) -> None:
        """Let kernels see the directory, and the counts of the segments, which grow with it."""
        now, address = self._items.now, self._kernels.rows.data_address
        if self._rows is not None:
            now[layout.A_SEGMENT_ROWS] = address(id(self._rows.live_rows))
            now[layout.A_SEGMENT_SEALED] = address(id(self._rows.sealed))
            self._shown = self._rows.entries
            now[layout.A_DIRECTORY] = address(id(self._shown))
        if self._shared is not None:
            now[layout.A_SHARED_ROWS] = address(id(self._shared.live_rows))
            now[layout.A_SHARED_SEALED] = address(id(self._shared.sealed))

    # -- what is there --------------------------------------------------------------------------
    def transaction(self) -> threading.RLock:
        return self._lock

    def __len__(self) -> int:
        return self._items.now[layout.LIVE]

    @property
    def hidden(self) -> int:
        return self._items.now[layout.HIDDEN]

    @property
    def nbytes(self) -> int:
        return self._items.now[layout.PAYLOAD]

    @property
    def hidden_nbytes(self) -> int:
        return self._items.now[layout.HIDDEN_BYTES]

    @property
    def visits(self) -> int:
        """Index entries and tree nodes touched so far: what tests count instead of seconds."""
        return self._items.now[layout.VISITS]

    def highest_priority(self) -> float:
        return self._items.highest_priority()

    def available(self, where: Where | None, most: int | None = None) -> tuple[int, int]:
        if where is None:
            now = self._items.now
            return now[layout.LIVE] - now[layout.HIDDEN], now[layout.SAMPLED]
        if where.rest is None:
            partitions = self._indexing.partitions
            return partitions.available(partitions.admitted(where.partitions))
        slots = self._matching(where, visible=True)
        return slots.size, int(self._items.times[slots].sum())

    def count(self, where: Where | None) -> int:
        if where is None:
            return len(self)
        if where.rest is None:
            partitions = self._indexing.partitions
            return partitions.stored(partitions.admitted(where.partitions))
        return self._matching(where, visible=False).size

    def counts(self, fields: Sequence[str]) -> dict[Any, int]:
        if set(fields) <= set(self._partition_by):
            pairs = self._indexing.partitions.groups(tuple(fields))
        else:
            slots = self._items.stored()
            columns = [self._items.seen(name, slots) for name in fields]
            pairs = [(values, 1) for values in zip(*columns, strict=True)]
        totals: dict[Any, int] = {}
        for values, count in pairs:
            if count:
                key = values[0] if len(fields) == 1 else values
                totals[key] = totals.get(key, 0) + count
        return totals

    def _matching(self, where: Where | None, *, visible: bool) -> Ints:
        """The slots of items that meet a query: a scan over fields, never over payload."""
        if where is None:
            return self._items.visible() if visible else self._items.stored()
        slots = self._admitted(where.partitions, visible=visible)
        return slots if where.rest is None else slots[self._mask(where.rest, slots)]

    def _admitted(self, wanted: Mapping[str, frozenset[Any]], *, visible: bool) -> Ints:
        """The slots of items in the partitions that a query admits, rising."""
        items, partitions = self._items, self._indexing.partitions
        if wanted:
            admitted = partitions.admitted(wanted)
            count, stored = partitions.available(admitted)[0], partitions.stored(admitted)
            few = SCANNED + SHARE_SCANNED * count < len(self)
            if few and (visible or count == stored):  # what is hidden is in no set
                return self._indexing.visible_in(admitted)
        slots = items.visible() if visible else items.stored()
        if wanted:
            numbers = items.owned[layout.A_PARTITION][slots]
            slots = slots[np.isin(numbers, np.array(admitted, np.int32))]
        return slots

    def _mask(self, query: Query, slots: Ints) -> NDArray[np.bool_]:
        return mask(query, lambda name: self._items.values(name, slots), slots.size)

    # -- inserting ------------------------------------------------------------------------------
    def insert(self, new: NewItems) -> Keys:
        rows, items = self._rows, self._items
        assert rows is not None
        count = new.count
        if items.make_room(count):
            self._indexing.resize()
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
            partitions = self._partitions_for(new.fields, count)
        if new.priority is not None:
            self._indexing.expect(priority)
        if new.fields:
            self._indexing.expect_versions(new.fields)
        locations, payload = self._append(rows, new.rows, new.per_item, count)
        shared_locations = shared_payload = None
        if self._shared is not None and new.shared is not None:
            shared_locations, shared_payload = self._append(
                self._shared, new.shared, ONE_ROW, count
            )
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
        if rows.tracking or (self._shared is not None and self._shared.tracking):
            self._track(slots)
        self._indexing.arrange(slots, SHOW)
        self._tidy(rows.opened if self._shared is None else rows.opened + self._shared.opened)
        return keys

    def _append(
        self, store: RowStore, rows: Rows, per_item: NDArray[np.int32], count: int
    ) -> tuple[Ints, Ints]:
        """Store rows; where there is no memory for them, nothing has changed."""
        try:
            return store.append(rows, per_item, count)
        except BaseException:
            self._show_segments()  # their counts may have moved
            raise

    def recycle(self, remover: Selector, new: NewItems, *, tell: bool) -> Keys | None:
        rows, items, indexing, count = self._rows, self._items, self._indexing, new.count
        if not items.plain or rows is None or rows.tracking:
            return None
        if new.per_item is not ONE_ROW or new.fields:
            return None
        order = indexing.ring(remover, count)
        if order < 0:
            return None
        items.reserve_hash(count)
        priority = new.priority
        if priority is None:
            priority = self._default
            priority[0] = items.highest_priority()
        else:
            indexing.expect(priority)
        keys = np.empty(2 * count if tell else count, np.uint64)
        if self._slots.size < count:
            self._slots = np.empty(count, np.int64)
            indexing.make_work(count)
        payload = rows.row_bytes
        try:
            if rows.varying:
                locations, payload = rows.append(new.rows, ONE_ROW, count)
                stretches = stretches_of(locations, count)
            else:
                stretches = rows.claim(count)
        finally:
            if rows.entries is not self._shown:
                self._show_segments()
        self._kernels.items.recycle(
            items.block, indexing.indexes.table, order, count, stretches, payload, priority,
            new.inserted_at, keys, self._slots, indexing.work,
            rows.stride, rows.table, id(new.rows.columns),
        )  # fmt: skip
        if items.now[layout.DEAD_SEGMENTS] or rows.opened != self._opened or rows.varying:
            self._tidy(rows.opened)
        return keys

    def _tidy(self, opened: int) -> None:
        """Drop segments that died, and compact if new ones were opened."""
        now = self._items.now
        dead = now[layout.DEAD_SEGMENTS]
        if dead:
            now[layout.DEAD_SEGMENTS] = 0
            last = int(now[layout.DEAD_LAST])
            if dead > 1:
                for store, _ in self._stores():
                    store.drop_dead()
            elif last >= 0 and self._rows is not None:
                self._rows.drop(last)
            elif self._shared is not None:
                self._shared.drop(~last)
        shrunk = now[layout.ROWS] < self._fewer_rows or now[layout.PAYLOAD] < self._fewer_bytes
        if opened != self._opened or shrunk:
            self._compact()

    def _partitions_for(self, fields: Mapping[str, FieldValue], count: int) -> Array:
        """The partition of each new item, or one for all of them."""
        values = [fields.get(name) for name in self._partition_by]
        if not any(isinstance(value, np.ndarray) for value in values):
            return np.array([self._indexing.partition(tuple(values))], np.int32)
        columns = [
            self._items.field(name).plain(value, count)
            for name, value in zip(self._partition_by, values, strict=True)
        ]
        numbers = [self._indexing.partition(key) for key in zip(*columns, strict=True)]
        return np.array(numbers, np.int32)

    # -- choosing -------------------------------------------------------------------------------
    def _candidates(self, plan: Plan, where: Where | None, slots: Ints | None) -> Ints:
        """The rows of the indexes that a selector draws from; `slots` are what a scan found."""
        if where is None:
            return plan.rows if plan.rows is not None else self._indexing.rows_over_all(plan)
        if slots is not None:
            return self._indexing.rows_of(plan, slots)
        admitted = self._indexing.partitions.admitted(where.partitions)
        return self._indexing.rows_in(plan, admitted)

    def _scan(self, where: Where | None) -> Ints | None:
        """The items that meet a query which no index answers, None for the others."""
        if where is None or where.rest is None:
            return None
        return self._matching(where, visible=True)

    def _run(
        self, plan: Plan, verb: int, n: int, replace: bool, calls: int, rows: Ints
    ) -> MemoryChosen:
        """Let the kernel choose n items and do to them what the verb says."""
        indexing = self._indexing
        beta = plan.beta
        if type(beta) is Linear:
            beta = beta.at(calls)
        if plan.aging:
            indexing.scale_for_draw(rows)
        ints = np.empty((5, n), np.int64)
        floats = np.empty((3, n), np.float64)
        if 4 * n + 64 > indexing.work.size:
            indexing.make_work(n)
        left = self._choose(
            self._items.block, indexing.indexes.table, rows, verb, n, replace, plan.stratified,
            beta, plan.normalize, self._random, ints, floats, indexing.work,
        )  # fmt: skip
        return MemoryChosen(ints, floats, n, left if verb == SAMPLE else 0)

    def _do(
        self, selector: Selector, verb: int, n: int, where: Where | None, replace: bool, calls: int
    ) -> MemoryChosen:
        slots = self._scan(where) if where is not None else None
        if type(selector) is Mixed:
            return self._run_mixed(selector, verb, n, where, replace, calls, slots)
        plan = self._indexing.plan(selector, verb == SAMPLE)
        return self._run(plan, verb, n, replace, calls, self._candidates(plan, where, slots))

    def _pin(self, chosen: MemoryChosen) -> MemoryChosen:
        """Make items readable without the lock."""
        assert self._rows is not None
        chosen.pin(self._items, self._rows, self._shared, self._outputs.array)
        return chosen

    def _pin_for_long(self, chosen: MemoryChosen) -> MemoryChosen:
        """The same for items that leave: a follower may hold them, and only their segments."""
        self._pin(chosen).narrow()
        return chosen

    def sample(
        self, selector: Selector, n: int, where: Where | None, replace: bool, calls: int
    ) -> MemoryChosen:
        chosen = self._pin(self._do(selector, SAMPLE, n, where, replace, calls))
        if chosen.left:
            slots = chosen.ints[LEFT, : chosen.left].copy()
            chosen.worn = self._pin_for_long(named(self._items, slots))
            self._release(slots)
        return chosen

    def take(self, selector: Selector, n: int, where: Where | None, *, hide: bool) -> MemoryChosen:
        chosen = self._pin(self._do(selector, TAKE, n, where, False, 0))
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
            evicted = self._do(selector, EVICT, max(n, 1), None, False, 0)
            kept.append(self._pin_for_long(evicted) if keep else evicted)
            self._release(evicted.slots)
            gone += evicted.count
            n = 0
        return gone, kept

    # -- mixtures -------------------------------------------------------------------------------
    def _run_mixed(
        self,
        selector: Mixed,
        verb: int,
        n: int,
        where: Where | None,
        replace: bool,
        calls: int,
        slots: Ints | None,
    ) -> MemoryChosen:
        """Each selector for its share; what rounding takes from one it gets at a later call."""
        parts: list[MemoryChosen | None] = []
        apart = verb == SAMPLE and not replace
        for part, count in dealt(self._credits, selector, n, evicting=verb == EVICT):
            drawn = None
            if count:
                plan = self._indexing.plan(part, verb == SAMPLE)
                visible = None if slots is None else self._still_visible(slots)
                rows = self._candidates(plan, where, visible)
                drawn = self._run(plan, verb, count, replace, calls, rows)
                if apart:
                    self._indexing.arrange(self._still_visible(np.unique(drawn.slots)), HIDE)
            parts.append(drawn)
        chosen = joined([part for part in parts if part is not None])
        chosen.ints[TIMES] = self._items.times[chosen.slots]  # several parts may have drawn an item
        if apart:
            worn = np.isin(chosen.slots, chosen.ints[LEFT, : chosen.left])
            self._indexing.arrange(chosen.slots[~worn], SHOW)
        if verb == SAMPLE:
            self._weigh(selector, parts, chosen, where, calls, slots)
        return chosen

    def _still_visible(self, slots: Ints) -> Ints:
        visible: Ints = slots[self._items.state[slots] == layout.VISIBLE]
        return visible

    def _weigh(
        self,
        selector: Mixed,
        parts: list[MemoryChosen | None],
        chosen: MemoryChosen,
        where: Where | None,
        calls: int,
        scanned: Ints | None,
    ) -> None:
        """The probability of each item under the whole mixture, and its weight.

        An order chooses and does not draw: to what it chose, it adds its whole share. An item
        that left with this draw keeps the probability under the part that drew it.
        """
        slots = chosen.slots
        here = self._items.state[slots] == layout.VISIBLE
        present = np.ascontiguousarray(slots[here])
        mixture = np.zeros(slots.size)
        start = 0
        for (part, share), drawn in zip(selector.selectors, parts, strict=True):
            own = np.zeros(slots.size, np.bool_)
            own[start : start + (0 if drawn is None else drawn.count)] = True
            start += 0 if drawn is None else drawn.count
            if isinstance(part, Ordered):
                mixture[own] += share
                continue
            under = np.zeros(slots.size)
            if present.size:
                plan = self._indexing.plan(part, True)
                visible = None if scanned is None else self._still_visible(scanned)
                rows = self._candidates(plan, where, visible)
                among = np.empty(present.size)
                self._kernels.items.probabilities(
                    self._items.block, self._indexing.indexes.table, rows, present, among
                )
                under[here] = among
            alone = own & (under == 0.0)  # it has left, or came when only weights of zero were left
            under[alone] = chosen.floats[PROBABILITY][alone]
            mixture += share * under
        chosen.floats[PROBABILITY] = mixture
        weighing = [part for part, _ in selector.selectors if isinstance(part, Prioritized)]
        if weighing:
            first = weighing[0]
            beta = first.beta.at(calls) if isinstance(first.beta, Linear) else first.beta
            size = max(1, self.available(where)[0])
            reference = 1.0 / size if first.normalize is None else mixture.min()
            chosen.floats[WEIGHTS] = (mixture / reference) ** -beta

    # -- removing, hiding, bringing back --------------------------------------------------------
    def _release(self, slots: Ints) -> None:
        self._kernels.items.release(self._items.block, slots, slots.size)
        self._tidy(self._opened)

    def _named(self, keys: Keys, keep: bool) -> MemoryChosen:
        slots = self._items.slots_of(keys)
        chosen = named(self._items, slots[slots >= 0])
        return self._pin_for_long(chosen) if keep else chosen

    def remove(self, keys: Keys, keep: bool) -> MemoryChosen:
        chosen = self._named(keys, keep)
        self._release(chosen.slots)
        return chosen

    def delete(self, keys: Keys, keep: bool) -> MemoryChosen:
        chosen = self._named(keys, keep)
        self._indexing.arrange(chosen.slots, HIDE)
        self._release(chosen.slots)
        return chosen

    def hide(self, keys: Keys) -> Keys:
        slots = self._items.slots_of(keys)
        slots = self._still_visible(slots[slots >= 0])
        self._indexing.arrange(slots, HIDE)
        return self._items.key[slots]

    def hide_up_to(self, field: str, bound: int) -> Keys:
        indexing = self._indexing
        plan = indexing.plan(self._smallest(field), False)
        row = int(indexing.rows_over_all(plan)[0])
        hidden: list[Keys] = []
        chunk = 1
        while indexing.first_value(row) <= bound:
            # More at a time as more turn out to be due; those that are not go back to the front,
            # which are fewer than those that were.
            count = min(chunk, indexing.indexes.at(row).count)
            chosen = self._run(plan, EVICT, count, False, 0, np.array([row], np.int64))
            due = self._items.field(field).array[chosen.slots] <= bound
            due &= self._items.field(field).array[chosen.slots] != self._items.field(field).absent
            hidden.append(chosen.keys[due])
            if not due.all():
                indexing.arrange(np.ascontiguousarray(chosen.slots[~due][::-1]), SHOW)
            chunk = min(2 * chunk, LARGEST_CHUNK)
        return np.concatenate(hidden) if hidden else np.zeros(0, np.uint64)

    def _smallest(self, field: str) -> Selector:
        """The order by a field: one object for each, by which its plan is found again."""
        if field not in self._orders:
            self._orders[field] = Smallest(field)
        return self._orders[field]

    def show(self, keys: Keys, *, returned: bool) -> int:
        items = self._items
        slots = items.slots_of(keys)
        slots = slots[slots >= 0]
        if returned:
            items.times[slots] -= 1
            items.keep(layout.A_DELIVERIES)
            items.owned[layout.A_DELIVERIES][slots] += 1
        self._indexing.arrange(slots, SHOW)
        return slots.size

    def find(self, keys: Keys | None, where: Where | None, *, visible: bool) -> Keys:
        if keys is None:
            slots = self._matching(where, visible=visible)
        else:
            slots = self._items.slots_of(np.unique(keys))
            slots = slots[slots >= 0]
            slots = self._still_visible(slots) if visible else slots
            if where is not None:
                slots = slots[self._mask(where.query, slots)]
        return self._items.key[slots]

    def get(self, keys: Keys, columns: Sequence[str] | None) -> MemoryChosen:
        slots = self._items.slots_of(keys)
        if (slots < 0).any():
            gone = keys[slots < 0]
            raise unknown_keys(gone.tolist(), keys.size)
        chosen = self._pin(named(self._items, slots))
        chosen.columns = columns
        return chosen

    # -- changing -------------------------------------------------------------------------------
    def update(self, keys: Keys, fields: Mapping[str, Any]) -> NDArray[np.bool_]:
        if len(fields) == 1 and "priority" in fields and not self._indexing.orders_by("priority"):
            return self._update_priorities(keys, fields["priority"])
        slots, count = self._items.slots_found(keys)
        found = slots >= 0
        if count < keys.size:
            fields = {name: _selected(value, found, found.size) for name, value in fields.items()}
            slots = slots[found]
        if slots.size:
            self._update_fields(slots, fields)
        return found

    def _update_priorities(self, keys: Keys, values: Floats) -> NDArray[np.bool_]:
        """Nothing moves, and only weights are computed anew."""
        found = np.empty(keys.size, np.bool_)
        if keys.size:
            self._indexing.expect(values)
            slots = np.empty(keys.size, np.int64)
            visible = self._kernels.items.update_priorities(
                self._items.block, keys, values, slots, found
            )
            self._indexing.arrange(slots[:visible], CHANGE, layout.DEPENDS_PRIORITY)
        return found

    def _update_fields(self, slots: Ints, fields: Mapping[str, Any]) -> None:
        """Take items out of the indexes that depend on what changes, change it, add them again."""
        last = _last_of_each(slots)
        fields = {name: _selected(value, last, slots.size) for name, value in fields.items()}
        slots = slots[last]
        moving = any(name in self._partition_by for name in fields)
        depends = 0
        for name in fields:
            depends |= self._indexing.bit(name)
        visible = self._still_visible(slots)
        self._indexing.expect_versions(fields)
        self._indexing.arrange(visible, HIDE if moving else REMOVE, 0 if moving else depends)
        for name, value in fields.items():
            if name == "priority":
                self._indexing.expect(value)
                block = self._items.block
                self._kernels.items.write_priorities(block, slots.copy(), value, slots.size)
            else:
                self._items.field(name).write(slots, value)
        if moving:
            self._move(slots)
        self._indexing.arrange(visible, SHOW if moving else ADD, 0 if moving else depends)

    def _move(self, slots: Ints) -> None:
        """Items have other values now in the fields that partitions go by."""
        numbers = self._partitions_of(slots)
        partition = self._items.owned[layout.A_PARTITION]
        np.subtract.at(self._indexing.partitions.live, partition[slots], 1)
        np.add.at(self._indexing.partitions.live, numbers, 1)
        partition[slots] = numbers

    def _partitions_of(self, slots: Ints) -> NDArray[np.int32]:
        """The partitions that stored items belong in, by their fields."""
        columns = [self._items.seen(name, slots) for name in self._partition_by]
        keys = zip(*columns, strict=True)
        return np.array([self._indexing.partition(key) for key in keys], np.int32)

    def amend(self, keys: Keys, rows: Rows, per_item: NDArray[np.int32], payload: Ints) -> None:
        store, items = self._rows, self._items
        assert store is not None
        slots = items.slots_of(keys)
        visible = self._still_visible(slots)
        depends = self._indexing.bit("nbytes") | self._indexing.bit("rows")
        self._indexing.arrange(visible, REMOVE, depends)
        locations, _ = store.append(rows, per_item, slots.size)
        if locations.size != slots.size:
            locations = locations[0] + np.cumsum(per_item) - per_item
        before = items.rows(slots)
        store.give_up(items.location[slots], before)
        items.location[slots] = locations
        if store.tracking:
            store.track(locations, slots)
        if not np.array_equal(before, per_item):
            items.keep(layout.A_ROWS)
            items.owned[layout.A_ROWS][slots] = per_item
            items.block[layout.ROWS] += int(per_item.sum() - before.sum())
        items.keep(layout.A_REVISION)
        items.owned[layout.A_REVISION][slots] += 1
        items.owned[layout.A_NBYTES][slots] += payload
        items.block[layout.PAYLOAD] += int(payload.sum())
        leased = items.state[slots] == layout.LEASED
        items.block[layout.HIDDEN_BYTES] += int(payload[leased].sum())
        self._indexing.arrange(visible, ADD, depends)
        self._show_segments()
        store.drop_dead()

    def keep_indexes(self, selectors: Sequence[Selector]) -> None:
        self._indexing.keep_for([*selectors, *self._orders.values()])

    # -- compaction -----------------------------------------------------------------------------
    def _stores(self) -> list[tuple[RowStore, Ints]]:
        """The stores of rows and of shared cells, each with the locations of the items in it."""
        stores: list[tuple[RowStore, Ints]] = []
        if self._rows is not None:
            stores.append((self._rows, self._items.location))
        if self._shared is not None:
            stores.append((self._shared, self._items.owned[layout.A_SHARED]))
        return stores

    def _track(self, slots: Ints) -> None:
        for store, locations in self._stores():
            if store.tracking:
                store.track(locations[slots], slots)

    def _live_bytes(self, store: RowStore, locations: Ints) -> Floats | None:
        """Live payload by segment, where rows differ in size; None where counting rows will do."""
        if not store.varying:
            return None
        slots = self._items.stored()
        shared = np.zeros(slots.size, np.int64)
        if layout.A_SHARED_NBYTES in self._items.owned:
            shared = self._items.owned[layout.A_SHARED_NBYTES][slots]
        sizes = self._items.nbytes(slots) - shared if store is self._rows else shared
        live = np.zeros(store.live_rows.size)
        np.add.at(live, locations[slots] >> 32, sizes)
        return live

    def _wastes(self) -> bool:
        """Whether so much memory holds nothing alive that every segment is worth a look."""
        live, allocated = self._items.now[layout.PAYLOAD], 0
        for store in (self._rows, self._shared):
            if store is not None:
                if store.beside:
                    live += int(store.live_rows.sum()) * store.beside
                allocated += store.allocated
        # The dead of all segments together; the two that are open count neither way.
        return allocated - live > SLACK + DEAD_SHARE * max(0, live - 2 * LARGEST)

    def _compact(self) -> None:
        """Move the items of the emptiest segments to the end, until little is wasted."""
        for store, locations in self._stores() if self._wastes() else ():
            before, payload = store.opened, self._live_bytes(store, locations)
            segment = store.emptiest(before, payload)
            if segment is not None and not store.tracking:
                store.tracking = True
                stored = self._items.stored()
                store.track(locations[stored], stored)
            while segment is not None:
                slots = segment.owned_by()
                slots = slots[self._items.state[slots] != layout.FREE]
                slots = slots[(locations[slots] >> 32) == segment.number]
                slots = slots[np.argsort(self._items.seq(slots), kind="stable")]
                counts = np.ones(slots.size, np.int32)
                if store is self._rows:
                    counts = self._items.rows(slots)
                locations[slots] = store.move(locations[slots], counts)
                store.track(locations[slots], slots)
                store.drop_dead()
                segment = store.emptiest(before, payload)
        now, rows, shared = self._items.now, self._rows, self._shared
        self._outputs.most = OUTPUTS + now[layout.PAYLOAD] // OUTPUT_SHARE
        if rows is None or shared is not None or rows.entries is not self._shown:
            self._show_segments()
        self._opened = (rows.opened if rows else 0) + (shared.opened if shared else 0)
        self._fewer_rows = now[layout.ROWS] * 9 // 10
        self._fewer_bytes = now[layout.PAYLOAD] * 9 // 10


def _selected(value: Any, which: Array, count: int) -> Any:
    """The values of some of `count` items, of a field that has one for each or one for all."""
    return value[which] if isinstance(value, np.ndarray) and value.size == count else value


def _last_of_each(slots: Ints) -> Ints:
    """Where an item is named twice, its last place counts."""
    _, last = np.unique(slots[::-1], return_index=True)
    return np.sort(slots.size - 1 - last)
