"""Which items in memory meet a query: partitions answer what they can, a scan does the rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recollect.base.arrays import Ints
from recollect.kernels import layout
from recollect.rules.query import Query, mask
from recollect.storage.base import Where
from recollect.storage.memory.index_set import IndexSet
from recollect.storage.memory.items import Items

SCANNED, SHARE_SCANNED = 1024, 8  # a scan is as good where few items are beside those wanted


class Matcher:
    """Finds the items that meet queries. Its caller holds the lock."""

    def __init__(self, items: Items, index_set: IndexSet) -> None:
        self._items = items
        self._index_set = index_set

    def available(self, where: Where | None) -> tuple[int, int]:
        """How many visible items meet a query, and how often they were sampled."""
        if where is None:
            now = self._items.now
            return now[layout.LIVE] - now[layout.HIDDEN], now[layout.SAMPLED]
        if where.rest is None:
            partitions = self._index_set.partitions
            return partitions.available(partitions.admitted(where.partitions))
        slots = self.slots(where, visible=True)
        return slots.size, int(self._items.times[slots].sum())

    def count(self, where: Where) -> int:
        """How many stored items meet a query."""
        if where.rest is None:
            partitions = self._index_set.partitions
            return partitions.stored(partitions.admitted(where.partitions))
        return self.slots(where, visible=False).size

    def slots(self, where: Where | None, *, visible: bool) -> Ints:
        """The slots of items that meet a query: a scan over fields, never over payload."""
        if where is None:
            return self._items.visible() if visible else self._items.stored()
        slots = self._admitted(where.partitions, visible=visible)
        return slots if where.rest is None else slots[self.holds(where.rest, slots)]

    def _admitted(self, wanted: Mapping[str, frozenset[Any]], *, visible: bool) -> Ints:
        """The slots of items in the partitions that a query admits, rising."""
        items, partitions = self._items, self._index_set.partitions
        if wanted:
            admitted = partitions.admitted(wanted)
            count, stored = partitions.available(admitted)[0], partitions.stored(admitted)
            few = SCANNED + SHARE_SCANNED * count < items.now[layout.LIVE]
            if few and (visible or count == stored):  # what is hidden is in no set
                return self._index_set.visible_in(admitted)
        slots = items.visible() if visible else items.stored()
        if wanted:
            numbers = items.owned[layout.A_PARTITION][slots]
            slots = slots[np.isin(numbers, np.array(admitted, np.int32))]
        return slots

    def holds(self, query: Query, slots: Ints) -> NDArray[np.bool_]:
        """Which of some items a query holds for."""
        return mask(query, lambda name: self._items.values(name, slots), slots.size)

    def scan(self, where: Where | None) -> Ints | None:
        """The visible items that meet a query which no index answers, None for other queries."""
        if where is None or where.rest is None:
            return None
        return self.slots(where, visible=True)
