"""The short way into a memory storage: one item, whose rows the caller writes itself.

A table's `insert` checks columns, builds `Rows` of them and looks at each again. Who knows that
its rows fit, as a rollout buffer does of a group that it has just looked at, asks for a place
instead, writes there, and gets a key. Everything else that an insert does, happens here too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from recollect.base.arrays import Array, Ints
from recollect.kernels import layout
from recollect.rules.selectors import Ordered
from recollect.storage.fields import FieldArray
from recollect.storage.memory.storage import MemoryStorage


class DirectInserts:
    """Items with shared cells, one at a time. Its caller holds the lock of the storage."""

    def __init__(self, storage: MemoryStorage, kernels: Any) -> None:
        self._storage = storage
        self._enter, self._leave = kernels.enter, kernels.leave
        self._place = np.empty(8, np.int64)  # see `kernels.groups`
        self._in_place = self._place.data  # the same memory: quicker for single numbers
        self._slot = np.empty(1, np.int64)
        self._fields = _Fields(storage)

    @property
    def columns(self) -> tuple[Ints, Ints]:
        """The columns of rows and of shared cells, as kernels see them."""
        rows, shared = self._storage.stores.rows, self._storage.stores.shared
        assert rows is not None
        assert shared is not None
        return rows.table, shared.table

    def insert(
        self,
        count: int,
        stored: tuple[int, int],
        payload: tuple[int, int],
        fields: Mapping[str, Any],
        now: float,
        write: Callable[[Ints], bool],
    ) -> int | None:
        """Store an item of `count` rows; returns its key, None where `write` declined.

        `stored` is what the varying cells take in the segments of rows and of shared cells,
        `payload` what counts as payload. `write` gets the place of both, and moves the tails.
        """
        storage = self._storage
        stores, items, index_set = storage.stores, storage.items, storage.index_set
        rows, shared = stores.rows, stores.shared
        assert rows is not None
        assert shared is not None
        if items.make_room(1):
            index_set.resize()
            items.growing = False
        items.keep(layout.A_ROWS)
        try:
            page = rows.segment_with_room(count * rows.stride + stored[0])
            other = shared.segment_with_room(shared.stride + stored[1])
        finally:
            opened = rows.opened + shared.opened
            if opened != stores.opened:  # their counts may have moved
                stores.show()
        place = self._in_place
        place[0], place[1], place[2], place[3] = page.base, page.stride, page.tail, page.rows
        place[4], place[5], place[6], place[7] = other.base, other.stride, other.tail, other.rows
        if not write(self._place):
            return None
        location = page.origin | page.rows
        shared_location = other.origin | other.rows
        page.tail, other.tail = place[2], place[6]
        page.rows += count
        other.rows += 1
        index_set.expect_versions(fields)
        partition = index_set.partition(tuple(map(fields.get, index_set.partitions.by)))
        index_set.reserve_one(partition)
        described = self._fields.describe(fields)
        key: int = self._enter(
            items.block, index_set.indexes.table, location, count, payload[0] + payload[1],
            shared_location, payload[1], items.highest_priority(), partition, now, described,
            len(items.fields), self._slot, index_set.work,
        )  # fmt: skip
        if rows.tracking or shared.tracking:
            stores.track(self._slot)
        stores.tidy(opened)
        return key

    def ever(self, field: str, text: str) -> bool:
        """Whether an item may have this text in a field: one has had it."""
        found = self._storage.items.fields.get(field)
        return found is not None and text in found.codes

    def evict(self, selector: Ordered) -> int:
        """Remove the first item by an order, which nobody reads any more; returns its key."""
        storage = self._storage
        index_set, stores = storage.index_set, storage.stores
        plan = index_set.plan(selector, False)
        order = plan.row if plan.row >= 0 else int(index_set.rows_over_all(plan)[0])
        key: int = self._leave(
            storage.items.block, index_set.indexes.table, order, self._slot, index_set.work
        )
        stores.tidy(stores.opened)
        return key


class _Fields:
    """The fields of one new item as the kernel wants them, in memory that is used again."""

    def __init__(self, storage: MemoryStorage) -> None:
        self._storage = storage
        self._of: dict[str, FieldArray] = {}
        self._known: list[tuple[str, FieldArray, Array, int, str]] = []
        self._blocks = np.empty(0, np.int64)

    def describe(self, given: Mapping[str, Any]) -> Ints:
        """What was given, and absent for the rest."""
        items = self._storage.items
        fields = items.fields
        for name in given:
            if name not in fields:
                items.field(name)
        if fields is not self._of or len(fields) != len(self._known):
            self._lay_out(fields)
        numbers = self._numbers
        for name, field, array, place, kind in self._known:
            value = given.get(name)
            if kind == "str":
                code = -1 if value is None else field.codes.get(value)
                if code is None:
                    field.make_room(1)
                    code = field.code(value)
                numbers[place] = code
            elif value is None:
                numbers[place] = self._absent[place]
            elif kind == "float":
                self._floats[place] = value
            else:
                numbers[place] = value
            if field.array is not array:
                self._lay_out(fields)
                return self.describe(given)
        return self._blocks

    def _lay_out(self, fields: dict[str, FieldArray]) -> None:
        """Fields were added, or have other arrays."""
        self._of = fields
        blocks = np.empty((len(fields), layout.FIELD_BLOCK), np.int64)
        self._blocks = blocks.reshape(-1)
        self._numbers, self._floats = self._blocks.data, self._blocks.view(np.float64).data
        self._known = []
        for number, (name, field) in enumerate(fields.items()):
            array, place = field.array, number * layout.FIELD_BLOCK + layout.FIELD_VALUE
            blocks[number, layout.FIELD_ARRAY] = array.ctypes.data
            blocks[number, layout.FIELD_BYTES] = array.itemsize
            self._known.append((name, field, array, place, field.kind))
            if field.kind == "float":
                self._floats[place] = field.absent
            else:
                self._numbers[place] = field.absent
        self._absent = self._blocks.tolist()
