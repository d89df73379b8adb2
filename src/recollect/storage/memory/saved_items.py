"""What is saved of each item of a table in memory: which columns, and what stands for absent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from recollect.base.arrays import Array, Ints, Keys
from recollect.kernels import layout
from recollect.storage.fields import ABSENT_INT
from recollect.storage.memory.items import WORDS

FIXED = {  # arrays by slot that not every table has, and that change only with an item's rows
    "rows": layout.A_ROWS,
    "nbytes": layout.A_NBYTES,
    "shared_nbytes": layout.A_SHARED_NBYTES,
    "seq": layout.A_SEQ,
    "revision": layout.A_REVISION,
}
RECORDED = ("priority", "times_sampled")  # fields that may change and stand in records
DEFAULTS = {"rows": 1, "revision": 0, "deliveries": 0, "shared_nbytes": 0}


@dataclass
class Saved:
    """A state to put back: `items` has an entry per item, in the order in which rows come."""

    numbers: Mapping[str, Any]
    items: dict[str, Array]  # slot, key and every field; what a table has not may be left out
    arrays: Mapping[str, Array]


def absent_value(name: str, dtype: Any) -> Any:
    """What an item has in a column that nobody had set when it was written."""
    if name in DEFAULTS:
        return DEFAULTS[name]
    if np.dtype(dtype).kind == "f":
        return math.nan
    if name == "field.version" or np.dtype(dtype).itemsize < 8:
        return -1  # of text, a code; of a bool
    return ABSENT_INT


def recorded(records: Ints, name: str) -> Array:
    """Priorities or times_sampled of records."""
    if name == "priority":
        return records[:, layout.PRIORITY].view(np.float64)
    return records.view(np.int32)[:, layout.TIMES]


def records_of(key: Keys, priority: Array, times: Array, stored: Array) -> Ints:
    """Records by slot of items that were saved; nobody knows where their rows are now."""
    records = np.zeros((key.size, WORDS), np.int64)
    records[:, layout.KEY] = key.view(np.int64)
    records[:, layout.LOCATION] = -1
    recorded(records, "priority")[:] = priority
    recorded(records, "times_sampled")[:] = times
    records.view(np.int8)[:, layout.STATE] = np.where(stored, layout.VISIBLE, layout.FREE)
    return records
