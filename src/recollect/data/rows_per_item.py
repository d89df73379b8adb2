"""How many rows each item of an insert has: one number for all, or one per item."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from recollect.errors import InvalidValue, shown

# The rows of each item, where all have one. Storages ask whether they were given this very array.
ONE_ROW = np.ones(1, np.int32)


def items_of(rows: int, rows_per_item: object) -> tuple[NDArray[np.int32], int]:
    """How many rows each item has (one number where all have the same), and how many items."""
    if type(rows_per_item) is int:
        if rows_per_item == 1:
            return ONE_ROW, rows
        if rows_per_item < 1 or rows % rows_per_item:
            raise InvalidValue(
                f"rows_per_item: {rows} rows do not make items of {rows_per_item} rows; give a "
                "number that divides them, or one number per item"
            )
        return np.array([rows_per_item], np.int32), rows // rows_per_item
    try:
        counts = np.asarray(rows_per_item)
    except ValueError:
        counts = np.zeros(1)
    if counts.dtype.kind not in "iu" or counts.ndim > 1:
        raise InvalidValue(
            f"rows_per_item: expected a whole number, or one per item, got {shown(rows_per_item)}"
        )
    if counts.ndim == 0:
        return items_of(rows, int(counts))
    if (counts < 1).any():
        item = int(np.argmax(counts < 1))
        raise InvalidValue(
            f"rows_per_item: expected numbers above 0, got {counts[item]} for item {item}"
        )
    if int(counts.sum()) != rows:
        raise InvalidValue(
            f"rows_per_item: expected numbers that add up to {rows} rows, got a sum of "
            f"{int(counts.sum())}"
        )
    return np.ascontiguousarray(counts, dtype=np.int32), counts.size
