"""Items as data: what journal, snapshots and shards pass to each other.

`ItemsData` is some items of one table with everything that belongs to them. It is what a
snapshot is read as where exactness to the slot does not matter, and what is put into a table
under given keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recollect.batch import Batch

Array = NDArray[Any]
Keys = NDArray[np.uint64]


@dataclass(frozen=True)
class ItemsData:
    """Items in order of arrival, the earliest first.

    `batch` holds their rows and shared cells (no info), None where only fields were read.
    `fields` has an array with an entry per item for each of: `priority` (float64), `times_sampled`
    (int32), `deliveries` (int32), `inserted_at` (float64), `revision` (int32), and the settable
    fields and tags that anybody set, as a table's `info` shows them: text is an object array with
    None where absent, a version -1, a float NaN.
    """

    keys: Keys
    seq: NDArray[np.int64]  # arrival order: compared within a source, and only there
    per_item: NDArray[np.int32]  # rows of each
    nbytes: NDArray[np.int64]  # payload of each
    fields: Mapping[str, Array]
    batch: Batch | None = None

    def __len__(self) -> int:
        return int(self.keys.size)

    def select(self, which: Array) -> ItemsData:
        """Some of them, by mask or by place, in the order given."""
        raise NotImplementedError


def put_items(table: Any, data: ItemsData, *, at_end: bool = True) -> None:
    """Store items in a memory table under their own keys, fields and all, without evicting.

    Under the table's lock; the caller has made sure that they fit and that no key is there
    already. They arrive after what is stored, in their order (their own `seq` is kept only in a
    table that was empty and whose items are all of one origin). Counters, effects and waiters are
    the caller's.
    """
    raise NotImplementedError


def remove_items(table: Any, keys: Keys) -> int:
    """Remove items by key, visible or leased, without effects or counters; returns how many."""
    raise NotImplementedError


def items_to_arrow(data: ItemsData) -> dict[str, Any]:
    """`rows`, `shared` (or None) and `items` as record batches: the sections of a record."""
    raise NotImplementedError


def items_from_arrow(sections: Mapping[str, Any]) -> ItemsData:
    """Undo `items_to_arrow`."""
    raise NotImplementedError
