"""The short way into a memory storage: one item, whose rows the caller writes itself.

A table's `insert` checks columns, builds `Rows` of them and looks at each again. Who knows that
its rows fit, as a rollout buffer does of a group that it has just looked at, asks for a place
instead, writes there, and gets a key. Everything else that an insert does, happens here too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recollect.kernels import layout
from recollect.selectors import Ordered
from recollect.storage.chosen import KEY, SLOT
from recollect.storage.indexing import SHOW
from recollect.storage.memory import EVICT, MemoryStorage

Ints = NDArray[np.int64]

ALL_BITS = (1 << 64) - 1  # of a key, which kernels hand over as an int64


class DirectInserts:
    """Items with shared cells, one at a time. Its caller holds the lock of the storage."""

    def __init__(self, storage: MemoryStorage) -> None:
        self._storage = storage
        self._place = np.empty(8, np.int64)  # see `kernels.groups`
        self._location, self._payload = np.empty(1, np.int64), np.empty(1, np.int64)
        self._slot, self._key = np.empty(1, np.int64), np.empty(1, np.uint64)
        self._ints, self._floats = np.empty((5, 1), np.int64), np.empty((3, 1))
        self._rows, self._partition = np.empty(1, np.int32), np.empty(1, np.int32)
        # The same memory: single numbers go in and out of a memoryview faster than of an array.
        self._in_place, self._in_location = self._place.data, self._location.data
        self._in_payload, self._in_rows = self._payload.data, self._rows.data
        self._in_partition = self._partition.data
        self._in_slot, self._in_key = self._slot.data, self._key.data

    @property
    def columns(self) -> tuple[Ints, Ints]:
        """The columns of rows and of shared cells, as kernels see them."""
        rows, shared = self._storage._rows, self._storage._shared
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
        rows, shared, items = storage._rows, storage._shared, storage._items
        assert rows is not None
        assert shared is not None
        indexing = storage._indexing
        if items.make_room(1):
            indexing.resize()
        items.keep(layout.A_ROWS)
        page = rows._segment_with_room(count * rows.stride + stored[0])
        other = shared._segment_with_room(shared.stride + stored[1])
        place = self._in_place
        place[0], place[1], place[2], place[3] = page.base, page.stride, page.tail, page.rows
        place[4], place[5], place[6], place[7] = other.base, other.stride, other.tail, other.rows
        if not write(self._place):
            return None
        self._in_location[0] = (page.number << 32) | page.rows
        shared_location = (other.number << 32) | other.rows
        page.tail, other.tail = place[2], place[6]
        page.rows += count
        other.rows += 1
        rows.live_rows[page.number] += count
        shared.live_rows[other.number] += 1
        self._in_payload[0] = payload[0] + payload[1]
        self._in_rows[0] = count
        self._in_partition[0] = indexing.partition(
            tuple([fields.get(name) for name in storage._partition_by])
        )
        priority = storage._default
        priority[0] = items.highest_priority()
        indexing.expect_versions(fields)
        slots = self._slot
        storage._kernels.items.allocate(
            items.block, 1, self._location, self._rows, self._payload, priority, self._partition,
            now, self._key, slots,
        )  # fmt: skip
        slot = self._in_slot[0]
        items.write_one(slot, fields)
        items.owned[layout.A_SHARED][slot] = shared_location
        items.owned[layout.A_SHARED_NBYTES][slot] = payload[1]
        if rows.tracking or shared.tracking:
            storage._track(slots)
        indexing.reserve(self._partition, 1)
        indexing.make_work(1)
        storage._kernels.items.arrange(
            items.block, indexing.indexes.table, slots, 1, SHOW, 0, indexing.work
        )
        storage._tidy(rows.opened + shared.opened)
        key: int = self._in_key[0]
        return key

    def evict(self, selector: Ordered) -> int:
        """Remove the first item by an order, which nobody reads any more; returns its key."""
        storage, ints = self._storage, self._ints
        indexing = storage._indexing
        plan = indexing.plan(selector, False)
        rows = plan.rows if plan.rows is not None else indexing.rows_over_all(plan)
        storage._choose(
            storage._items.block, indexing.indexes.table, rows, EVICT, 1, False, 0, 0.0, 0,
            storage._random, ints, self._floats, indexing.work,
        )  # fmt: skip
        self._slot[0] = ints[SLOT, 0]
        storage._release(self._slot)
        return int(ints[KEY, 0]) & ALL_BITS
