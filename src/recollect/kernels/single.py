"""One item that comes, and the first of an order that leaves: one call for each.

`enter` does what `allocate`, writing fields and `arrange` do, and `leave` what `choose` and
`release` do: for items that come one by one, several calls would cost more than their work.
"""

from __future__ import annotations

import numpy as np

from recollect.kernels.items.placement import place_item, release
from recollect.kernels.items.visibility import arrange, count_visible, each_index
from recollect.kernels.layout import (
    A_DELIVERIES,
    A_RECORD,
    A_REVISION,
    A_SEGMENT_ROWS,
    A_SEQ,
    A_SHARED,
    A_SHARED_NBYTES,
    A_SHARED_ROWS,
    COUNTER,
    FIELD_ARRAY,
    FIELD_BLOCK,
    FIELD_BYTES,
    FIELD_VALUE,
    KEY,
    LIVE,
    ORIGIN,
    PAYLOAD,
    REMOVE,
    ROWS,
    SHOW,
    SLOTS,
)
from recollect.kernels.machine.compile import kernel
from recollect.kernels.machine.memory import int8_at, int32_at, int64_at
from recollect.kernels.orders import order_first, order_remove


@kernel(
    "uint64(ints, table, int64, int64, int64, int64, int64, float64, int64, float64, ints, int64,"
    " ints, ints)"
)
def enter(
    items, table, location, rows, size, shared, shared_size, priority, partition, now, fields,
    count, slots, work,
):  # fmt: skip
    """Store and show one item of `rows` rows with shared cells, and `count` fields.

    Returns its key; its slot stands in `slots`.
    """
    counter = items[COUNTER]
    key = np.uint64(items[ORIGIN]) | np.uint64(counter)
    slot = place_item(
        items, key, counter % items[SLOTS], location, rows, size, priority, partition, now
    )
    slots[0] = slot
    items[COUNTER] += 1
    items[PAYLOAD] += size
    items[ROWS] += rows
    items[LIVE] += 1
    int64_at(items[A_SHARED])[slot] = shared
    int64_at(items[A_SHARED_NBYTES])[slot] = shared_size
    int64_at(items[A_SEGMENT_ROWS])[location >> 32] += rows
    int64_at(items[A_SHARED_ROWS])[shared >> 32] += 1
    for k in range(count):
        field = fields[FIELD_BLOCK * k :]
        if field[FIELD_BYTES] == 1:
            int8_at(field[FIELD_ARRAY])[slot] = field[FIELD_VALUE]
        elif field[FIELD_BYTES] == 4:
            int32_at(field[FIELD_ARRAY])[slot] = field[FIELD_VALUE]
        else:
            int64_at(field[FIELD_ARRAY])[slot] = field[FIELD_VALUE]
    if items[A_DELIVERIES] != 0:
        int32_at(items[A_DELIVERIES])[slot] = 0
    if items[A_REVISION] != 0:
        int32_at(items[A_REVISION])[slot] = 0
    if items[A_SEQ] != 0:
        int64_at(items[A_SEQ])[slot] = counter
    arrange(items, table, slots, 1, SHOW, 0, work)
    return key


@kernel("uint64(ints, table, int64, ints, ints)")
def leave(items, table, order, slots, work):
    """Free the slot of the first item of an order; returns its key. `slots` has room for one."""
    slot = order_first(items, table[order])
    order_remove(items, table[order], slot)
    slots[0] = slot
    count_visible(items, slots, 1, -1)
    each_index(items, table, slots, 1, REMOVE, 0, order, work)
    key = np.uint64(int64_at(items[A_RECORD])[4 * slot + KEY])
    release(items, slots, 1)
    return key
