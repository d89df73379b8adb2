"""Which indexes a table has, and how they follow its items.

An index is made when a selector first needs it, over all items or in every partition, and kept
up from then on. This is where items enter and leave all of them at once, where they get room,
and where weights that age are scaled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recollect.base.arrays import Array, Floats, Ints
from recollect.kernels import layout
from recollect.rules.natures import NATURES
from recollect.rules.selectors import Fifo, Linear, Proportional, Selector, parts_of
from recollect.storage.fields import FieldValue
from recollect.storage.memory.indexes import Index, IndexKind, IndexTable
from recollect.storage.memory.items import Items
from recollect.storage.partition_counts import Partitions

ADD, REMOVE, CHANGE, SHOW, HIDE, FILL = 1, 2, 3, 4, 5, 8  # verbs of the kernel `arrange`
NORMALIZE = {None: 0, "batch": 1, "table": 2}
OVERFLOWING = 400.0  # halvings ahead of the reference at which weights are scaled anew
LAST = (1 << 63) - 1  # what absent values sort as
VANISHING = 1e-200  # a sum of weights below which their ratios would be lost


NO_SLOTS = np.zeros(0, np.int64)
FILLED = 1 << 14  # items that enter a new index at a time: scratch memory stays small


class SelectorPlan:
    """How a selector is executed: worked out once."""

    __slots__ = ("aging", "beta", "kind", "normalize", "row", "rows", "selector", "stratified")

    def __init__(self, selector: Selector, staying: bool) -> None:
        self.selector = selector  # keeps the id alive by which the plan is found
        self.kind = IndexKind.of(selector, staying=staying)
        self.row = -1  # of its index over all items, once that is made
        self.rows: Ints | None = None  # the same for kernels that take several
        self.beta: float | Linear = 0.0
        self.stratified = self.normalize = 0
        self.aging = False
        if isinstance(selector, Proportional):
            self.beta = selector.beta
            self.stratified = int(selector.stratified)
            self.normalize = NORMALIZE[selector.normalize]
            self.aging = selector.half_life is not None


class IndexSet:
    """All indexes of a memory storage. Its caller holds the lock."""

    def __init__(self, items: Items, partition_by: tuple[str, ...], kernels: Any) -> None:
        self._items = items
        self._kernels = kernels.items
        self._saving = kernels.captures
        self.partitions = Partitions(partition_by, items.block)
        self.indexes = IndexTable(items.block)
        self.work: Ints = np.zeros(1024, np.int64)
        self._plans: dict[tuple[int, bool], SelectorPlan] = {}
        self.counts_zeros = False  # whether an item of priority 0 ever came
        self._scratch: Index | None = None
        self._ring = (-1, 0, -1)  # what `ring` found out: at which layout, for whom, which row
        self._aging = (-1, False)  # what `_some_age` found out, and for which indexes
        self._bits = {
            "priority": layout.DEPENDS_PRIORITY,
            "times_sampled": layout.DEPENDS_TIMES,
            "version": layout.DEPENDS_VERSION,
        }
        if partition_by:
            items.keep(layout.A_PARTITION)

    # -- finding the indexes for a call -----------------------------------------------------------
    def plan(self, selector: Selector, staying: bool) -> SelectorPlan:
        plan = self._plans.get((id(selector), staying))
        if plan is None:
            plan = self._plans[id(selector), staying] = SelectorPlan(selector, staying)
        return plan

    def rows_over_all(self, plan: SelectorPlan) -> Ints:
        """The index over all items."""
        if plan.rows is None:
            row = self.indexes.find(plan.kind)
            if row is None:
                row = self.add_whole(plan.kind)
                visible = self._items.visible()
                self._refer_to_newest(self.indexes.at(row), visible)
                self.fill(row, self._in_order(visible))
            plan.row = row
            plan.rows = np.array([row], np.int64)
        return plan.rows

    def rows_in(self, plan: SelectorPlan, partitions: list[int]) -> Ints:
        """The indexes of some partitions, those without items left out."""
        family = self.family(plan.kind)
        rows = [self.indexes.row_of(number, family) for number in partitions]
        table = self.indexes.table
        return np.array([row for row in rows if table[row, layout.COUNT]], np.int64)

    def visible_in(self, partitions: list[int]) -> Ints:
        """The slots of the visible items of some partitions, rising.

        Where no index of partitions has its members one after another, one is kept from now on.
        """
        sets = [k for k, kind in enumerate(self.indexes.families) if kind.kind != layout.ORDER]
        family = sets[0] if sets else self.family(IndexKind(layout.UNIFORM))
        kept = [self.indexes.partitions[number][family] for number in partitions]
        members = [index.arrays[layout.A_MEMBERS][: index.count] for index in kept]
        return np.sort(np.concatenate([NO_SLOTS, *members]))

    def rows_of(self, plan: SelectorPlan, slots: Ints) -> Ints:
        """An index of just these items, for one call."""
        if not slots.size:
            return np.zeros(0, np.int64)
        row = self.indexes.scratch
        index = self._make(plan.kind, self.indexes.table[row], dense=True)
        index.row[layout.DEPENDS] = 0
        self._refer_to_newest(index, slots)
        self._give_room(index, None, slots.size)
        self.fill(row, self._in_order(slots))
        self._scratch = index  # its arrays must live as long as the row points to them
        return np.array([row], np.int64)

    def ring(self, remover: Selector, n: int) -> int:
        """The row of the remover's order where n new items may take the slots of its first n.

        That is so where it goes by arrival and nothing else orders items or weighs them by
        version: then a slot can stay in every index while its item is replaced. -1 elsewhere.
        """
        layouts, of, row = self._ring
        if layouts != self.indexes.layouts or of != id(remover):
            row = self._find_ring(remover)
            self._ring = (self.indexes.layouts, id(remover), row)
        if row < 0:
            return -1
        x = self.indexes.whole[row].now
        return row if x[layout.HEAPED] == 0 and x[layout.COUNT] > n else -1

    def _find_ring(self, remover: Selector) -> int:
        if not isinstance(remover, Fifo) or self.partitions.by:
            return -1
        row = int(self.rows_over_all(self.plan(remover, False))[0])
        for other, index in enumerate(self.indexes.whole):
            ordered = index.kind.kind == layout.ORDER and other != row
            if ordered or index.kind.half_life is not None:
                return -1
        return row

    def keep_for(self, selectors: list[Selector]) -> None:
        """Forget the indexes that none of these selectors uses."""
        parts = [part for part in parts_of(*selectors) if isinstance(part, NATURES)]
        kinds = {IndexKind.of(part, staying=staying) for part in parts for staying in (True, False)}
        self.indexes.keep(kinds)
        self._plans.clear()

    # -- making them ------------------------------------------------------------------------------
    def _make(self, kind: IndexKind, row: Ints, *, dense: bool) -> Index:
        depends = 0
        if kind.kind == layout.ORDER:
            depends = self.bit(kind.by) if kind.by != "seq" else 0
            depends |= layout.DEPENDS_TIMES if kind.leveled else 0
        elif kind.kind == layout.WEIGHT:
            depends = self.bit(kind.by)
            if kind.by == "priority":
                self._items.use_priorities()
            if kind.half_life is not None:
                depends |= layout.DEPENDS_VERSION
                self._items.field("version")
        return Index(kind, row, depends, dense)

    def add_whole(self, kind: IndexKind) -> int:
        """Make an index over all items, without any yet."""
        index = self._make(kind, np.zeros(layout.INDEX_BLOCK, np.int64), dense=False)
        row = self.indexes.add_whole(index)
        self._give_room(index, None, self._items.now[layout.SLOTS])
        return row

    def _make_for_partition(self, kind: IndexKind) -> Index:
        index = self._make(kind, np.zeros(layout.INDEX_BLOCK, np.int64), dense=True)
        like = [i for i in self.indexes if i.kind == kind]
        if like:
            index.reference_to(like[0].reference)
        else:
            self._refer_to_newest(index, self._items.visible())
        return index

    def _refer_to_newest(self, index: Index, slots: Ints) -> None:
        """Items are about to enter an index: its weights, if they age, begin with the newest."""
        if index.kind.half_life is not None:
            index.reference = self._items.newest_version(slots, index.kind.by)

    def family(self, kind: IndexKind) -> int:
        """The number of an index that every partition keeps, made when it is first needed."""
        indexes = self.indexes
        if kind in indexes.families:
            return indexes.families.index(kind)
        family = indexes.add_family(kind, self._make_for_partition)
        by_slot: dict[int, Array] = {}
        visible = self._items.visible()
        numbers = self._items.owned[layout.A_PARTITION][visible]
        for number, partition in enumerate(indexes.partitions):
            members = visible[numbers == number]
            self._give_room(partition[family], by_slot, max(16, members.size))
            self.fill(indexes.row_of(number, family), self._in_order(members))
        return family

    def partition(self, values: tuple[Any, ...]) -> int:
        """The number of a partition, made when its first item comes."""
        number = self.partitions.find(values)
        if number is None:
            number = self.indexes.add_partition(self._make_for_partition)
            self.partitions.add(values, number)
            for family, index in enumerate(self.indexes.partitions[number]):
                self._give_room(index, dict(self.indexes.partitions[0][family].arrays), 16)
        return number

    def partitions_for(self, fields: Mapping[str, FieldValue], count: int) -> NDArray[np.int32]:
        """The partition of each new item, or one for all of them."""
        values = [fields.get(name) for name in self.partitions.by]
        if not any(isinstance(value, np.ndarray) for value in values):
            return np.array([self.partition(tuple(values))], np.int32)
        columns = [
            self._items.field(name).plain(value, count)
            for name, value in zip(self.partitions.by, values, strict=True)
        ]
        numbers = [self.partition(key) for key in zip(*columns, strict=True)]
        return np.array(numbers, np.int32)

    def partitions_of(self, slots: Ints) -> NDArray[np.int32]:
        """The partitions that stored items belong in, by their fields."""
        columns = [self._items.seen(name, slots) for name in self.partitions.by]
        numbers = [self.partition(key) for key in zip(*columns, strict=True)]
        return np.array(numbers, np.int32)

    def _give_room(self, index: Index, family: dict[int, Array] | None, members: int) -> None:
        index.resize_slots(self._items.now[layout.SLOTS], family)
        index.reserve(members)
        if self.counts_zeros or index.kind.by != "priority":
            index.count_zeros()
        self._refresh(index)

    def _refresh(self, index: Index) -> None:
        """After arrays were replaced: find its values again, add up its weights again."""
        if index.kind.kind != layout.UNIFORM:
            index.set_value(self._items.indexed_value(index.kind.by))
        if index.kind.kind == layout.WEIGHT:
            self._kernels.rebuild_trees(index.row)

    def fill(self, row: int, slots: Ints) -> None:
        """Add items to a new index."""
        if slots.size:
            index = None if row == self.indexes.scratch else self.indexes.at(row)
            if index is not None and index.reserve(slots.size):
                self._refresh(index)
            self.make_work(min(slots.size, FILLED))
            work = self.work[: 4 * FILLED + 64]
            self._saving.fill_index(self._items.block, self.indexes.table[row], slots, work)

    def _in_order(self, slots: Ints) -> Ints:
        """Items in the order of arrival."""
        return slots[np.argsort(self._items.seq(slots), kind="stable")]

    # -- room -------------------------------------------------------------------------------------
    def resize(self) -> None:
        """The items have more slots now."""
        slots = self._items.now[layout.SLOTS]
        for index in self.indexes.whole:
            index.resize_slots(slots)
            index.reserve(slots)
            self._refresh(index)
        for family in range(len(self.indexes.families)):
            by_slot: dict[int, Array] = {}
            for partition in self.indexes.partitions:
                partition[family].resize_slots(slots, by_slot)
                self._refresh(partition[family])

    def reserve(self, numbers: Array, count: int) -> None:
        """Make room in partitions for `count` items that come, or for one per number."""
        if not self.indexes.families:
            return
        arriving = {int(numbers[0]): count} if numbers.size == 1 else _tally(numbers)
        for number, coming in arriving.items():
            for index in self.indexes.partitions[number]:
                needed = index.count + coming
                if needed > index.room and index.reserve(max(needed, 2 * index.room)):
                    self._refresh(index)

    def reserve_one(self, number: int) -> None:
        """Make room in a partition for one item that comes."""
        for index in self.indexes.partitions[number]:
            if index.count >= index.room and index.reserve(max(16, 2 * index.room)):
                self._refresh(index)

    def make_work(self, items: int) -> None:
        """Have scratch memory for a call about so many items."""
        if 4 * items + 64 > self.work.size:
            self.work = np.zeros(8 * items + 64, np.int64)

    # -- following the items ----------------------------------------------------------------------
    def arrange(self, slots: Ints, verb: int, depends: int = 0) -> None:
        """Let items enter or leave indexes, as the verb says."""
        if verb == SHOW and self.indexes.families:
            self.reserve(self._items.owned[layout.A_PARTITION][slots], slots.size)
        self.make_work(slots.size)
        self._kernels.arrange(
            self._items.block, self.indexes.table, slots, slots.size, verb, depends, self.work
        )

    def bit(self, field: str) -> int:
        """The bit that stands for a field in what an index depends on."""
        if field not in self._bits:
            self._bits[field] = layout.FIRST_FREE_DEPENDENCY << (len(self._bits) - 3)
        return self._bits[field]

    def first_value(self, row: int) -> int:
        """The value of the first item of an order by a field, `LAST` where it is empty."""
        index = self.indexes.at(row)
        x, values, first = index.row, index.arrays[layout.A_SORT], LAST
        if x[layout.HEAD] >= 0:
            first = int(values[x[layout.HEAD]])
        if x[layout.HEAPED]:  # an entry begins with its slot
            top = int(index.arrays[layout.A_HEAP][layout.FIRST_ENTRY * layout.ENTRY // 8])
            first = min(first, int(values[top & 0xFFFFFFFF]))
        return first

    def orders_by(self, field: str) -> bool:
        """Whether an order depends on a field."""
        return any(i.kind.kind == layout.ORDER and i.kind.by == field for i in self.indexes)

    def expect(self, priorities: Floats) -> None:
        """Priorities are about to be written: follow them, and count zeros if there are any."""
        if self.counts_zeros and layout.A_PMAX in self._items.owned:
            return
        low, high = self._kernels.range_of(priorities)
        if low == 0.0 and not self.counts_zeros:
            self.counts_zeros = True
            for index in self.indexes:
                index.count_zeros()
        if low != 1.0 or high != 1.0:
            self._items.use_priorities()

    # -- weights that age -------------------------------------------------------------------------
    def expect_versions(self, fields: Mapping[str, FieldValue]) -> None:
        """Before versions come that are far ahead of a reference, move it there."""
        version = fields.get("version")
        if version is None or not self._some_age():
            return
        newest = float(np.max(version))
        for row, index in enumerate(self.indexes):
            half_life = index.kind.half_life
            if half_life is not None and (newest - index.reference) / half_life > OVERFLOWING:
                self._rescale(row, newest)

    def _some_age(self) -> bool:
        """Whether an index weighs by age; found out once for each set of indexes."""
        if self._aging[0] != self.indexes.layouts:
            ages = any(index.kind.half_life is not None for index in self.indexes)
            self._aging = (self.indexes.layouts, ages)
        return self._aging[1]

    def scale_for_draw(self, rows: Ints) -> None:
        """Give the indexes of one draw one reference, at which their weights do not vanish."""
        drawn = [row for row in rows.tolist() if row < self.indexes.scratch]
        drawn = [row for row in drawn if self.indexes.table[row, layout.POSITIVE]]
        if not drawn:
            return
        references = {self.indexes.at(row).reference for row in drawn}
        total = sum(self.indexes.at(row).total for row in drawn)
        if len(references) == 1 and total > VANISHING:
            return
        by = self.indexes.at(drawn[0]).kind.by
        newest = max(self._items.newest_version(self._members(row), by) for row in drawn)
        for row in drawn:
            if self.indexes.at(row).reference != newest:
                self._rescale(row, newest)

    def _members(self, row: int) -> Ints:
        """The visible items in the index at a row."""
        visible = self._items.visible()
        whole = len(self.indexes.whole)
        if row < whole:
            return visible
        number = (row - whole) // len(self.indexes.families)
        here: Ints = visible[self._items.owned[layout.A_PARTITION][visible] == number]
        return here

    def _rescale(self, row: int, reference: float) -> None:
        self.indexes.at(row).reference = reference
        self.arrange(self._members(row), FILL + row, CHANGE)


def _tally(numbers: Array) -> dict[int, int]:
    values, counts = np.unique(numbers, return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))
