"""Items in memory that change: their fields, and rows that are stored again.

An order finds an item by what it has seen of it, so items leave the orders that depend on what
changes, and enter them again when it has changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recollect.base.arrays import Array, Ints
from recollect.data.schema import Rows
from recollect.kernels import layout
from recollect.storage.memory.index_set import ADD, CHANGE, HIDE, REMOVE, SHOW, IndexSet
from recollect.storage.memory.items import Items
from recollect.storage.memory.row_stores import RowStores
from recollect.storage.row_segment import spread


class ItemChanges:
    """Changes stored items. Its caller holds the lock."""

    def __init__(self, items: Items, index_set: IndexSet, stores: RowStores, kernels: Any) -> None:
        self._items = items
        self._index_set = index_set
        self._stores = stores
        self._kernels = kernels

    def update(self, slots: Ints, fields: Mapping[str, Any]) -> None:
        """Change fields: orders find items by them, weights are only computed anew."""
        last = _last_of_each(slots)
        fields = {name: selected(value, last, slots.size) for name, value in fields.items()}
        slots = slots[last]
        moving = any(name in self._index_set.partitions.by for name in fields)
        depends = 0
        for name in fields:
            depends |= self._index_set.bit(name)
        visible = self._items.still_visible(slots)
        self._index_set.expect_versions(fields)
        ordered = any(self._index_set.orders_by(name) for name in fields)
        leave, enter = (HIDE, SHOW) if moving else (REMOVE, ADD) if ordered else (0, CHANGE)
        if leave:
            self._index_set.arrange(visible, leave, 0 if moving else depends)
        for name, value in fields.items():
            if name == "priority":
                self._index_set.expect(value)
                block = self._items.block
                self._kernels.items.write_priorities(block, slots.copy(), value, slots.size)
            else:
                self._items.field(name).write(slots, value)
        if moving:
            self._move(slots)
        self._index_set.arrange(visible, enter, 0 if moving else depends)

    def _move(self, slots: Ints) -> None:
        """Items have other values now in the fields that partitions go by."""
        numbers = self._index_set.partitions_of(slots)
        partition = self._items.owned[layout.A_PARTITION]
        np.subtract.at(self._index_set.partitions.live, partition[slots], 1)
        np.add.at(self._index_set.partitions.live, numbers, 1)
        partition[slots] = numbers

    def amend(self, slots: Ints, rows: Rows, per_item: NDArray[np.int32], payload: Ints) -> None:
        """Store whole items again, with other rows that bring so much more payload each."""
        store, items = self._stores.rows, self._items
        assert store is not None
        visible = self._items.still_visible(slots)
        depends = self._index_set.bit("nbytes") | self._index_set.bit("rows")
        self._index_set.arrange(visible, REMOVE, depends)
        locations = spread(store.append(rows, per_item, slots.size)[0], per_item, slots.size)
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
        self._index_set.arrange(visible, ADD, depends)
        self._stores.show()
        store.drop_dead()


def selected(value: Any, which: Array, count: int) -> Any:
    """The values of some of `count` items, of a field that has one for each or one for all."""
    return value[which] if isinstance(value, np.ndarray) and value.size == count else value


def _last_of_each(slots: Ints) -> Ints:
    """Where an item is named twice, its last place counts."""
    _, last = np.unique(slots[::-1], return_index=True)
    return np.sort(slots.size - 1 - last)
