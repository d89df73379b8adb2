"""The items of a table in memory: what the storage asks of them, under the table's lock.

Nothing is validated here: the storage has made room in every array, and knows that enough items
are there.

slots        keys and slots, and which slots are free
priorities   writing priorities, and the highest of all
placement    items that come and go
visibility   in and out of the indexes
replacement  new items in the slots of the oldest
item_draws   sample, take and evict
"""

from __future__ import annotations

from recollect.kernels.items.item_draws import choose, probabilities
from recollect.kernels.items.placement import allocate, release
from recollect.kernels.items.priorities import (
    range_of,
    rebuild_maxima,
    settle_maxima,
    update_priorities,
    write_priorities,
)
from recollect.kernels.items.replacement import recycle
from recollect.kernels.items.slots import add_slots, find_slots, list_free, rebuild_hash
from recollect.kernels.items.visibility import arrange, rebuild_trees

__all__ = [
    "add_slots",
    "allocate",
    "arrange",
    "choose",
    "find_slots",
    "list_free",
    "probabilities",
    "range_of",
    "rebuild_hash",
    "rebuild_maxima",
    "rebuild_trees",
    "recycle",
    "release",
    "settle_maxima",
    "update_priorities",
    "write_priorities",
]
