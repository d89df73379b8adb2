"""The stores of one table in memory: its rows, its shared cells, and when both are compacted.

Kernels find segments by addresses in the block of the items, so whoever lets segments come and go
shows them to kernels again.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from recollect.base.arrays import Floats, Ints
from recollect.data.schema import Rows, Schema
from recollect.kernels import layout
from recollect.storage.buffers import BufferPool
from recollect.storage.memory.items import Items
from recollect.storage.rows import DEAD_SHARE, LARGEST, SLACK, RowStore

OUTPUTS = 12 << 20  # bytes of large outputs that are kept for reuse,
OUTPUT_SHARE = 32  # and one in so many of the payload
SEGMENTS = 16 << 20  # the same for segments: as one is opened, two may just have died


class RowStores:
    """Where the payload of a table in memory is. Its caller holds the lock."""

    def __init__(self, items: Items, kernels: Any) -> None:
        self._items = items
        self._kernels = kernels
        self._pool = BufferPool(SEGMENTS)
        self.outputs = BufferPool(OUTPUTS)  # memory for what is read
        self.rows: RowStore | None = None  # until the columns are set
        self.shared: RowStore | None = None  # where there are shared columns
        self.opened = 0  # segments, when we last looked whether to compact
        self._fewer_rows = self._fewer_bytes = 0  # at which we look again

    def set_schema(self, rows: Schema, shared: Schema | None, capacity: int) -> None:
        """Make the stores, or add columns to that of rows."""
        items = self._items
        if self.rows is None:
            self.rows = RowStore(rows, self._kernels, self._pool)
            if not self.rows.varying:
                self.rows.expect(capacity * self.rows.stride)
            items.block[layout.ROW_BYTES] = self.rows.fixed_bytes
            if shared is not None:
                self.shared = RowStore(shared, self._kernels, self._pool)
                items.keep(layout.A_SHARED)
                items.keep(layout.A_SHARED_NBYTES)
            if self.rows.varying or shared is not None:
                items.keep(layout.A_NBYTES)
        elif self.rows.schema is not rows:
            items.keep_sizes()
            self.rows.set_schema(rows)
        self.show()

    def lend(self, nbytes: int) -> None:
        """Somebody may hold on to so many bytes of segments after they were given up."""
        self._pool.lent = nbytes

    def show(self) -> None:
        """Let kernels see the directory, and the counts of the segments, which grow with it."""
        now, address = self._items.now, self._kernels.rows.data_address
        if self.rows is not None:
            now[layout.A_SEGMENT_ROWS] = address(id(self.rows.live_rows))
            now[layout.A_SEGMENT_SEALED] = address(id(self.rows.sealed))
            self.shown = self.rows.entries  # the directory that kernels see
            now[layout.A_DIRECTORY] = address(id(self.shown))
        if self.shared is not None:
            now[layout.A_SHARED_ROWS] = address(id(self.shared.live_rows))
            now[layout.A_SHARED_SEALED] = address(id(self.shared.sealed))

    def append(
        self, store: RowStore, rows: Rows, per_item: NDArray[np.int32], count: int
    ) -> tuple[Ints, Ints]:
        """Store rows; where there is no memory for them, nothing has changed."""
        try:
            return store.append(rows, per_item, count)
        except BaseException:
            self.show()  # their counts may have moved
            raise

    # -- segments that died, and compaction -------------------------------------------------------
    def _each(self) -> list[tuple[RowStore, Ints]]:
        """The stores of rows and of shared cells, each with the locations of the items in it."""
        stores: list[tuple[RowStore, Ints]] = []
        if self.rows is not None:
            stores.append((self.rows, self._items.location))
        if self.shared is not None:
            stores.append((self.shared, self._items.owned[layout.A_SHARED]))
        return stores

    def track(self, slots: Ints) -> None:
        """New items have these slots: note who owns their rows, where that is noted at all."""
        for store, locations in self._each():
            if store.tracking:
                store.track(locations[slots], slots)

    def tidy(self, opened: int) -> None:
        """Drop segments that died, and compact if new ones were opened."""
        now = self._items.now
        dead = now[layout.DEAD_SEGMENTS]
        if dead:
            now[layout.DEAD_SEGMENTS] = 0
            last = int(now[layout.DEAD_LAST])
            if dead > 1:
                for store, _ in self._each():
                    store.drop_dead()
            elif last >= 0 and self.rows is not None:
                self.rows.drop(last)
            elif self.shared is not None:
                self.shared.drop(~last)
        shrunk = now[layout.ROWS] < self._fewer_rows or now[layout.PAYLOAD] < self._fewer_bytes
        if opened != self.opened or shrunk:
            self._compact()

    def _live_bytes(self, store: RowStore, locations: Ints) -> Floats | None:
        """Live payload by segment, where rows differ in size; None where counting rows will do."""
        if not store.varying:
            return None
        slots = self._items.stored()
        shared = np.zeros(slots.size, np.int64)
        if layout.A_SHARED_NBYTES in self._items.owned:
            shared = self._items.owned[layout.A_SHARED_NBYTES][slots]
        sizes = self._items.nbytes(slots) - shared if store is self.rows else shared
        live = np.zeros(store.live_rows.size)
        np.add.at(live, locations[slots] >> 32, sizes)
        return live

    def _wastes(self) -> bool:
        """Whether so much memory holds nothing alive that every segment is worth a look."""
        live, allocated = self._items.now[layout.PAYLOAD], 0
        for store in (self.rows, self.shared):
            if store is not None:
                if store.beside:
                    live += int(store.live_rows.sum()) * store.beside
                allocated += store.allocated
        # The dead of all segments together; the two that are open count neither way.
        return allocated - live > SLACK + DEAD_SHARE * max(0, live - 2 * LARGEST)

    def _compact(self) -> None:
        """Move the items of the emptiest segments to the end, until little is wasted."""
        for store, locations in self._each() if self._wastes() else ():
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
                if store is self.rows:
                    counts = self._items.rows(slots)
                locations[slots] = store.move(locations[slots], counts)
                store.track(locations[slots], slots)
                store.drop_dead()
                segment = store.emptiest(before, payload)
        now, rows, shared = self._items.now, self.rows, self.shared
        self.outputs.most = OUTPUTS + now[layout.PAYLOAD] // OUTPUT_SHARE
        if rows is None or shared is not None or rows.entries is not self.shown:
            self.show()
        self.opened = (rows.opened if rows else 0) + (shared.opened if shared else 0)
        self._fewer_rows = now[layout.ROWS] * 9 // 10
        self._fewer_bytes = now[layout.PAYLOAD] * 9 // 10
