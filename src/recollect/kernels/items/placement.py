"""Items that come and go: a key and a slot for each new one, and slots that become free again."""

from __future__ import annotations

import numpy as np

from recollect.kernels.items.priorities import follow_priority
from recollect.kernels.items.slots import hash_add, hash_remove, home_of, link_free, unlink_free
from recollect.kernels.layout import (
    A_INSERTED,
    A_NBYTES,
    A_PARTITION,
    A_PARTITION_LIVE,
    A_RECORD,
    A_ROWS,
    A_SEGMENT_ROWS,
    A_SEGMENT_SEALED,
    A_SHARED,
    A_SHARED_ROWS,
    A_SHARED_SEALED,
    COUNTER,
    DEAD_LAST,
    DEAD_SEGMENTS,
    FREE,
    FREE_HEAD,
    HIDDEN,
    HIDDEN_BYTES,
    LEASED,
    LIVE,
    LOCATION,
    ORIGIN,
    PAYLOAD,
    PRIORITY,
    ROWS,
    SLOTS,
    STATE,
    TIMES,
    VISIBLE,
)
from recollect.kernels.machine.compile import inner, kernel
from recollect.kernels.machine.memory import float64_at, int8_at, int32_at, int64_at, uint64_at
from recollect.kernels.orders import nbytes_of, rows_of


@inner("int64(ints, uint64, int64, int64, int64, int64, float64, int64, float64)")
def place_item(items, key, home, location, rows, size, priority, partition, now):
    """Give a new item a slot, its own or the first free one, and write what every item has."""
    states = int8_at(items[A_RECORD])
    slot = home
    displaced = states[32 * slot + STATE] != FREE
    if displaced:
        slot = items[FREE_HEAD]
    unlink_free(items, slot)
    uint64_at(items[A_RECORD])[4 * slot] = key
    states[32 * slot + STATE] = VISIBLE
    if displaced:
        hash_add(items, slot)
    int32_at(items[A_RECORD])[8 * slot + TIMES] = 0
    float64_at(items[A_INSERTED])[slot] = now
    float64_at(items[A_RECORD])[4 * slot + PRIORITY] = priority
    follow_priority(items, slot, -1.0, priority)
    int64_at(items[A_RECORD])[4 * slot + LOCATION] = location
    if items[A_ROWS] != 0:
        int32_at(items[A_ROWS])[slot] = rows
    if items[A_NBYTES] != 0:
        int64_at(items[A_NBYTES])[slot] = size
    if items[A_PARTITION] != 0:
        int32_at(items[A_PARTITION])[slot] = partition
        int64_at(items[A_PARTITION_LIVE])[partition] += 1
    return slot


@kernel("void(ints, int64, ints, int32[::1], ints, floats, int32[::1], float64, words, ints)")
def allocate(items, n, locations, rows, nbytes, priorities, partitions, now, keys_out, slots_out):
    """Give n items their keys and slots, and write what every item has.

    An array with one entry stands for all; one location stands for consecutive rows.
    """
    origin = np.uint64(items[ORIGIN])
    counter = items[COUNTER]
    home = counter % items[SLOTS]
    total_bytes = np.int64(0)
    total_rows = np.int64(0)
    for i in range(n):
        own_rows = np.int64(rows[i] if rows.size > 1 else rows[0])
        size = nbytes[i] if nbytes.size > 1 else nbytes[0]
        keys_out[i] = origin | np.uint64(counter)
        slots_out[i] = place_item(
            items, keys_out[i], home,
            locations[i] if locations.size > 1 else locations[0] + i * own_rows, own_rows, size,
            priorities[i] if priorities.size > 1 else priorities[0],
            np.int64(partitions[i] if partitions.size > 1 else partitions[0]), now,
        )  # fmt: skip
        counter += 1
        home = home + 1 if home + 1 < items[SLOTS] else np.int64(0)
        total_bytes += size
        total_rows += own_rows
    items[COUNTER] = counter
    items[PAYLOAD] += total_bytes
    items[ROWS] += total_rows
    items[LIVE] += n


@inner("void(ints, int64, int64, int64, int64)")
def leave_segment(items, live_rows, sealed, segment, rows):
    counts = int64_at(items[live_rows])
    counts[segment] -= rows
    if counts[segment] == 0 and int8_at(items[sealed])[segment]:
        items[DEAD_SEGMENTS] += 1
        items[DEAD_LAST] = segment if live_rows == A_SEGMENT_ROWS else ~segment


@kernel("void(ints, ints, int64)")
def release(items, slots, n):
    """Free the slots of items that are in no index any more."""
    states = int8_at(items[A_RECORD])
    keys = uint64_at(items[A_RECORD])
    for i in range(n):
        slot = slots[i]
        if home_of(items, keys[4 * slot]) != slot:
            hash_remove(items, slot)
        rows, size = rows_of(items, slot), nbytes_of(items, slot)
        segment = int64_at(items[A_RECORD])[4 * slot + LOCATION] >> 32
        leave_segment(items, A_SEGMENT_ROWS, A_SEGMENT_SEALED, segment, rows)
        if items[A_SHARED] != 0:
            segment = int64_at(items[A_SHARED])[slot] >> 32
            leave_segment(items, A_SHARED_ROWS, A_SHARED_SEALED, segment, 1)
        priorities = float64_at(items[A_RECORD])
        old = priorities[4 * slot + PRIORITY]
        priorities[4 * slot + PRIORITY] = -1.0
        follow_priority(items, slot, old, -1.0)
        if items[A_PARTITION] != 0:
            partition = int32_at(items[A_PARTITION])[slot]
            int64_at(items[A_PARTITION_LIVE])[partition] -= 1
        items[PAYLOAD] -= size
        items[ROWS] -= rows
        items[LIVE] -= 1
        if states[32 * slot + STATE] == LEASED:
            items[HIDDEN] -= 1
            items[HIDDEN_BYTES] -= size
        states[32 * slot + STATE] = FREE
        link_free(items, slot)
