"""Items in a pandas DataFrame, for those who want to look into their table with pandas.

Fields are columns of one frame (`frame.items`), selectors and queries are executed on its columns
(`frame.choice`), and payload lives in the same append-only segments as in memory (`rows`), to
which the frame holds locations.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from recollect.base.arrays import Array, Ints, Keys
from recollect.base.optional import optional
from recollect.data.rows_per_item import ONE_ROW
from recollect.data.schema import Rows, Schema
from recollect.errors import InvalidValue
from recollect.kernels.load import load
from recollect.rules.selectors import Mixed, Selector
from recollect.storage.base import Layout, NewItems, Where, unknown_keys
from recollect.storage.buffers import BufferPool
from recollect.storage.frame.choice import FrameDraw, FrameExecutor
from recollect.storage.frame.chosen import FrameChosen
from recollect.storage.frame.items import HIDDEN, VISIBLE, ItemFrame
from recollect.storage.frame.partitions import FramePartitions
from recollect.storage.row_segment import spread
from recollect.storage.rows import RowStore

if TYPE_CHECKING:
    import pandas as pd


SEGMENTS = 8 << 20  # bytes of segments that are kept for reuse


class FrameStorage:
    """Keeps items in a pandas DataFrame: a row per item, a column per field.

    Slower than `rc.MemoryStorage()`, with the same rules; `frame` shows every item at a glance.

    >>> import recollect as rc
    >>> storage = rc.FrameStorage()
    >>> table = rc.Table("t", capacity=10, storage=storage, tags={"score": float})
    >>> _ = table.insert({"x": [1, 2, 3]}, task=["math", "code", "math"], score=[0.5, 0.9, 0.1])
    >>> storage.frame.groupby("task")["score"].max().to_dict()
    {'code': 0.9, 'math': 0.5}
    """

    def __init__(self) -> None:
        optional("pandas")
        self._lock = threading.RLock()
        self._layout: Layout | None = None

    def open(self, layout: Layout) -> None:
        if self._layout is not None:
            raise InvalidValue(
                f"storage: this one belongs to table {self._layout.name!r}; make one per table"
            )
        if layout.journaled:
            raise InvalidValue("journal: a table in a frame has none; use rc.MemoryStorage()")
        self._layout = layout
        self._kernels = load()
        self._items = ItemFrame(layout.fields)
        self._executor = FrameExecutor(self._items, layout.seed, layout.max_times_sampled)
        self._partitions = FramePartitions(layout.partition_by, self._items)
        self._pool = BufferPool(SEGMENTS)
        self._rows: RowStore | None = None
        self._shared: RowStore | None = None
        self._opened = 0  # segments, when we last looked whether to compact
        self._fewer = 0  # bytes of payload below which we look again

    def set_schema(self, rows: Schema, shared: Schema | None) -> None:
        if self._rows is None:
            self._rows = RowStore(rows, self._kernels, self._pool)
            if shared is not None:
                self._shared = RowStore(shared, self._kernels, self._pool)
        elif self._rows.schema is not rows:
            self._rows.set_schema(rows)

    @property
    def frame(self) -> pd.DataFrame:
        """A copy of the fields of every stored item, by key, in the order of arrival.

        Beside the fields it has `deliveries` (how often an item was handed out, counting the
        next time) and `hidden` (whether it is leased). Changing the copy changes no item.
        """
        if self._layout is None:
            raise InvalidValue("frame: this storage belongs to no table yet; make one with it")
        with self._lock:
            return self._items.seen()

    # -- what is there ----------------------------------------------------------------------------
    def transaction(self) -> AbstractContextManager[Any]:
        return self._lock

    def __len__(self) -> int:
        return self._items.live

    @property
    def hidden(self) -> int:
        return self._items.hidden

    @property
    def nbytes(self) -> int:
        return self._items.nbytes

    @property
    def hidden_nbytes(self) -> int:
        return self._items.hidden_nbytes

    def highest_priority(self) -> float:
        stored = self._items.stored()
        return float(self._items["priority"][stored].max()) if stored.size else 1.0

    def _matching(self, where: Where | None, *, visible: bool) -> Ints:
        """The positions of items that meet a query, in the order of arrival."""
        items = self._items
        if where is None or not where.partitions:
            positions = items.visible() if visible else items.stored()
        else:
            positions = self._partitions.positions(where.partitions)
            positions = items.only(positions, VISIBLE) if visible else positions
        if where is None or where.rest is None:
            return positions
        return positions[items.mask(where.rest, positions)]

    def available(self, where: Where | None, most: int | None = None) -> tuple[int, int]:
        positions = self._matching(where, visible=True)
        return positions.size, int(self._items["times_sampled"][positions].sum())

    def count(self, where: Where | None) -> int:
        if where is None:
            return len(self)
        if where.rest is None:
            return self._partitions.count(where.partitions)
        return self._matching(where, visible=False).size

    def counts(self, fields: Sequence[str]) -> dict[Any, int]:
        totals: Counter[Any] = Counter()
        if set(fields) <= set(self._partitions.by):
            for values, count in self._partitions.groups(fields):
                if count:
                    totals[values] += count
        else:
            totals.update(self._items.partition_keys(fields, self._items.stored()))
        return {key[0] if len(fields) == 1 else key: count for key, count in totals.items()}

    # -- inserting --------------------------------------------------------------------------------
    def insert(self, new: NewItems) -> Keys:
        items = self._items
        assert self._rows is not None
        if items.make_room(new.count) and self._partitions.by:
            self._partitions.rebuild()
        columns: dict[str, Any] = {"inserted_at": new.inserted_at}
        if new.priority is not None:
            columns["priority"] = new.priority
        else:
            given = new.default_priority
            columns["priority"] = self.highest_priority() if given < 0.0 else given
        for name, value in new.fields.items():
            columns[name] = items.encoded(name, value)
        if new.per_item is not ONE_ROW:
            columns["rows"] = new.per_item.astype(np.int64)
        locations, payload = self._rows.append(new.rows, new.per_item, new.count)
        columns["location"] = spread(locations, new.per_item, new.count)
        if self._shared is not None and new.shared is not None:
            locations, more = self._shared.append(new.shared, ONE_ROW, new.count)
            columns["shared"] = spread(locations, ONE_ROW, new.count)
            columns["shared_nbytes"] = np.broadcast_to(more, new.count)
            payload = payload + more
        columns["nbytes"] = payload
        positions, keys = items.add(
            new.count, {n: np.broadcast_to(v, new.count) for n, v in columns.items()}
        )
        if self._partitions.by:
            self._partitions.place(positions)
        self._tidy_rows()
        return keys

    def recycle(self, remover: Selector, new: NewItems, *, tell: bool) -> Keys | None:
        return None

    def keep_indexes(self, selectors: Sequence[Selector]) -> None:
        """There are none to forget: every call looks at the columns."""

    # -- choosing ---------------------------------------------------------------------------------
    def next_deal(self, mixture: Mixed, n: int) -> list[tuple[Selector, int]]:
        return self._executor.next_deal(mixture, n)

    def _chosen(self, draw: FrameDraw) -> FrameChosen:
        """Chosen items with all that is known of them now, readable without the lock."""
        items, positions = self._items, draw.positions
        assert self._rows is not None
        per_item = items["rows"][positions]
        offsets = np.zeros(positions.size + 1, np.int64)
        np.cumsum(per_item, out=offsets[1:])
        fields = ("task", "status", "version", *items.tags)
        arrays: dict[str, Array] = {
            "keys": items["key"][positions],
            "priority": items["priority"][positions],
            "probability": draw.probability,
            "weights": draw.weights,
            "times_sampled": items["times_sampled"][positions],
            "deliveries": items["deliveries"][positions] + 1,
            "row_offsets": offsets,
            **{name: items.read(name, positions) for name in fields},
        }
        rows = self._rows.pin(items["location"][positions], per_item.astype(np.int32))
        rows.narrow()
        shared = None
        if self._shared is not None:
            shared = self._shared.pin(items["shared"][positions], None)
            shared.narrow()
        return FrameChosen(arrays, items.live, rows, shared)

    def _named(self, positions: Ints) -> FrameChosen:
        """Items that were named, not drawn."""
        probability = np.full(positions.size, 1.0 / max(1, self._items.live))
        return self._chosen(
            FrameDraw(positions, probability, np.ones(positions.size), positions[:0])
        )

    def sample(
        self, selector: Selector, n: int, where: Where | None, replace: bool, calls: int
    ) -> FrameChosen:
        candidates = self._matching(where, visible=True)
        draw = self._executor.sample(selector, n, candidates, replace, calls)
        chosen = self._chosen(draw)
        if draw.worn.size:
            chosen.worn = self._named(draw.worn)
            self._release(draw.worn)
        return chosen

    def take(self, selector: Selector, n: int, where: Where | None, *, hide: bool) -> FrameChosen:
        candidates = self._matching(where, visible=True)
        draw = self._executor.withdraw(selector, n, candidates, evicting=False)
        times = self._items["times_sampled"][draw.positions] + 1
        self._items.write("times_sampled", draw.positions, times)
        chosen = self._chosen(draw)
        if hide:
            self._items.hide(draw.positions)
        else:
            self._release(draw.positions)
        return chosen

    def evict(
        self, selector: Selector, n: int, nbytes: int, keep: bool
    ) -> tuple[int, list[FrameChosen]]:
        gone = 0
        kept: list[FrameChosen] = []
        goal = self.nbytes - nbytes
        while n > 0 or (nbytes > 0 and self.nbytes > goal):
            draw = self._executor.withdraw(
                selector, max(n, 1), self._items.visible(), evicting=True
            )
            if keep:
                kept.append(self._chosen(draw))
            self._release(draw.positions)
            gone += draw.positions.size
            n = 0
        return gone, kept

    # -- removing, hiding, bringing back ----------------------------------------------------------
    def _here(self, keys: Keys) -> Ints:
        positions = self._items.find(keys)
        return positions[positions >= 0]

    def _release(self, positions: Ints) -> None:
        """Items leave for good. Positions may change by it, so it comes last."""
        items = self._items
        assert self._rows is not None
        self._rows.give_up(items["location"][positions], items["rows"][positions].astype(np.int32))
        if self._shared is not None:
            ones = np.ones(positions.size, np.int32)
            self._shared.give_up(items["shared"][positions], ones)
        if self._partitions.by:
            self._partitions.leave(positions)
        items.remove(positions)
        if items.is_mostly_gone():
            items.shrink()
            if self._partitions.by:
                self._partitions.rebuild()
        self._tidy_rows()

    def remove(self, keys: Keys, keep: bool) -> FrameChosen:
        positions = self._here(keys)
        chosen = self._named(positions)
        self._release(positions)
        return chosen

    def delete(self, keys: Keys, keep: bool) -> FrameChosen:
        return self.remove(keys, keep)

    def hide(self, keys: Keys) -> Keys:
        positions = self._items.only(self._here(keys), VISIBLE)
        self._items.hide(positions)
        return self._items["key"][positions]

    def hide_up_to(self, field: str, bound: int) -> Keys:
        positions = self._items.visible()
        values = self._items.column(field, positions)
        due = (values <= bound) & ~self._items.absent(field, values)
        order = np.argsort(values[due], kind="stable")
        positions = positions[due][order]
        self._items.hide(positions)
        return self._items["key"][positions]

    def show(self, keys: Keys, *, returned: bool) -> int:
        items = self._items
        positions = items.only(self._here(keys), HIDDEN)
        if returned:
            items.write("times_sampled", positions, items["times_sampled"][positions] - 1)
            items.write("deliveries", positions, items["deliveries"][positions] + 1)
        items.show(positions)
        return positions.size

    def find(self, keys: Keys | None, where: Where | None, *, visible: bool) -> Keys:
        items = self._items
        if keys is None:
            positions = self._matching(where, visible=visible)
        else:
            positions = self._here(np.unique(keys))
            positions = items.only(positions, VISIBLE) if visible else positions
            if where is not None:
                positions = positions[items.mask(where.query, positions)]
        return items["key"][positions]

    def get(self, keys: Keys, columns: Sequence[str] | None) -> FrameChosen:
        positions = self._items.find(keys)
        if (positions < 0).any():
            gone = keys[positions < 0]
            raise unknown_keys(gone.tolist(), keys.size)
        chosen = self._named(positions)
        chosen.columns = columns
        return chosen

    # -- changing ---------------------------------------------------------------------------------
    def update(self, keys: Keys, fields: Mapping[str, Any]) -> NDArray[np.bool_]:
        items = self._items
        positions = items.find(keys)
        found = positions >= 0
        places = np.flatnonzero(found)
        # Where a key is named twice its last value counts.
        _, last = np.unique(positions[places][::-1], return_index=True)
        places = places[places.size - 1 - last]
        changed = positions[places]
        if not changed.size:
            return found
        moving = any(name in self._partitions.by for name in fields)
        if moving:
            self._partitions.leave(changed)
        for name, value in fields.items():
            values = value if name == "priority" else items.encoded(name, value)
            values = np.broadcast_to(values, keys.size)[places]
            items.write(name, changed, values)
        if moving:
            self._partitions.place(changed)
        return found

    def amend(self, keys: Keys, rows: Rows, per_item: NDArray[np.int32], payload: Ints) -> None:
        store, items = self._rows, self._items
        assert store is not None
        positions = items.find(keys)
        locations, _ = store.append(rows, per_item, positions.size)
        store.give_up(items["location"][positions], items["rows"][positions].astype(np.int32))
        items.write("location", positions, spread(locations, per_item, positions.size))
        items.write("rows", positions, per_item.astype(np.int64))
        items.resize(positions, payload)
        self._tidy_rows()

    # -- compaction of payload --------------------------------------------------------------------
    def _tidy_rows(self) -> None:
        """Drop segments without live rows; compact where segments came, or much has gone."""
        stores = [store for store in (self._rows, self._shared) if store is not None]
        for store in stores:
            store.drop_dead()
        opened = sum(store.opened for store in stores)
        if opened != self._opened or self.nbytes < self._fewer:
            for store in stores:
                self._compact(store)
            self._opened = sum(store.opened for store in stores)
            self._fewer = int(self.nbytes * 0.9)

    def _compact(self, store: RowStore) -> None:
        """Move the items of the emptiest segments to the end, until little is wasted."""
        items, before = self._items, store.opened
        column = "location" if store is self._rows else "shared"
        while True:
            positions = items.stored()
            segments = items[column][positions] >> 32
            segment = store.emptiest(before, self._live_bytes(store, positions, segments))
            if segment is None:
                return
            moving = positions[segments == segment.number]
            counts = np.ones(moving.size, np.int32)
            if store is self._rows:
                counts = items["rows"][moving].astype(np.int32)
            items.write(column, moving, store.move(items[column][moving], counts))
            store.drop_dead()

    def _live_bytes(
        self, store: RowStore, positions: Ints, segments: Ints
    ) -> NDArray[np.float64] | None:
        """Live payload by segment, where rows differ in size; None where counting rows will do."""
        if not store.varying:
            return None
        sizes = self._items["shared_nbytes"][positions]
        if store is self._rows:
            sizes = self._items["nbytes"][positions] - sizes
        live = np.zeros(store.live_rows.size)
        np.add.at(live, segments, sizes)
        return live
