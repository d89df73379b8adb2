"""New items that take the slots of the oldest ones, in a full table that removes by arrival.

Nearly every insert into a full table goes this way. A slot stays a member of every index while its
item is replaced: only its record changes, and its weight where items are weighed.
"""

from __future__ import annotations

import numpy as np

from recollect.kernels.indexes import weight_change
from recollect.kernels.items.placement import leave_segment
from recollect.kernels.items.priorities import follow_priority
from recollect.kernels.items.slots import hash_add, hash_remove, home_of
from recollect.kernels.layout import (
    A_INSERTED,
    A_NBYTES,
    A_NEXT,
    A_PREVIOUS,
    A_RECORD,
    A_SEGMENT_ROWS,
    A_SEGMENT_SEALED,
    CHANGE,
    COUNTER,
    DISPLACED,
    GLOBALS,
    HEAD,
    KEY,
    KIND,
    LOCATION,
    LOW,
    ORIGIN,
    PAYLOAD,
    PRIORITY,
    SAMPLED,
    SLOTS,
    STRETCH_BASE,
    STRETCH_END,
    STRETCH_PLACE,
    TAIL,
    TIMES,
    VISITS,
    WEIGHT,
)
from recollect.kernels.machine.compile import inner, kernel
from recollect.kernels.machine.memory import float64_at, int32_at, int64_at
from recollect.kernels.rows import lay_rows


@inner("void(ints, ints, table, int64, table, int64)", hot=True)
def _copy_rows(items, x, stretches, stride, columns, list_id):
    """Copy rows from the arrays in a list to the stretches that are yet to be filled.

    Meanwhile `lay_rows` asks for the records of the slots, which are read next.
    """
    first = x[HEAD]
    records, inserted = items[A_RECORD] + 32 * first, items[A_INSERTED] + 8 * first
    links = x[A_NEXT] + 4 * first
    begin = np.int64(0)
    for s in range(stretches.shape[0]):
        base, end = stretches[s, STRETCH_BASE], stretches[s, STRETCH_END]
        if base != 0:
            row = stretches[s, STRETCH_PLACE] & LOW
            lay_rows(base, stride, row, begin, end, columns, list_id, records, inserted, links)
        begin = end


@inner("int64(ints, ints, int64, table, floats, float64, words, ints)", hot=True)
def _replace_items(items, x, n, stretches, priorities, now, keys_out, slots):
    """Write n new items over the first n of an order; returns the slot that comes after these."""
    following = int32_at(x[A_NEXT])
    records = int64_at(items[A_RECORD])
    numbers = float64_at(items[A_RECORD])
    times = int32_at(items[A_RECORD])
    inserted = float64_at(items[A_INSERTED])
    key = np.uint64(items[ORIGIN]) | np.uint64(items[COUNTER])
    all_slots, hashed = items[SLOTS], items[DISPLACED] > 0
    home = items[COUNTER] % all_slots
    stretch = place = stop = np.int64(0)
    priority, tell = priorities[0], keys_out.size > n
    slot = x[HEAD]
    left = records[4 * slot + LOCATION] >> 32  # the segment of the last rows that left
    leaving = sampled = np.int64(0)  # how many rows left it; how often all items were sampled
    for i in range(n):
        if i == stop:
            place, stop = stretches[stretch, STRETCH_PLACE], stretches[stretch, STRETCH_END]
            stretch += 1
        record = 4 * slot
        if hashed and home_of(items, np.uint64(records[record + KEY])) != slot:
            hash_remove(items, slot)
        segment = records[record + LOCATION] >> 32
        if segment != left:
            leave_segment(items, A_SEGMENT_ROWS, A_SEGMENT_SEALED, left, leaving)
            left, leaving = segment, np.int64(0)
        leaving += 1
        if tell:
            keys_out[n + i] = np.uint64(records[record + KEY])
        records[record + KEY] = np.int64(key)
        if home != slot:
            hash_add(items, slot)
        home = home + 1 if home + 1 < all_slots else np.int64(0)
        records[record + LOCATION] = place
        place += 1
        sampled += times[2 * record + TIMES]
        times[2 * record + TIMES] = 0
        inserted[slot] = now
        if priorities.size > 1:
            priority = priorities[i]
        old = numbers[record + PRIORITY]
        if priority != old:
            numbers[record + PRIORITY] = priority
            follow_priority(items, slot, old, priority)
        keys_out[i] = key
        key += np.uint64(1)
        slots[i] = slot
        slot = np.int64(following[slot])
    leave_segment(items, A_SEGMENT_ROWS, A_SEGMENT_SEALED, left, leaving)
    items[SAMPLED] -= sampled
    return slot


@kernel(
    "void(ints, table, int64, int64, table, ints, floats, float64, words, ints, ints,"
    " int64, table, int64)",
)
def recycle(
    items, table, order, n, stretches, nbytes, priorities, now, keys_out, slots, work,
    stride, columns, list_id,
):  # fmt: skip
    """Let n new items of one row take the slots of the first n of an order, which has more.

    The same as evicting those and adding these, for a table whose other indexes do not order.
    Where there is room behind the new keys, the keys of those that left go there.

    A stretch says where rows lie side by side. One with the base of its segment is yet to be
    filled: the rows are copied there, from the arrays in a list.
    """
    x = table[order]
    _copy_rows(items, x, stretches, stride, columns, list_id)
    head = _replace_items(items, x, n, stretches, priorities, now, keys_out, slots)
    first, last, tail = slots[0], slots[n - 1], x[TAIL]
    following, previous = int32_at(x[A_NEXT]), int32_at(x[A_PREVIOUS])
    following[tail], previous[first] = first, tail  # they follow the last, linked as they are
    following[last] = previous[head] = -1
    x[HEAD], x[TAIL] = head, last
    if items[A_NBYTES] != 0:  # else every row has the same size
        sizes = int64_at(items[A_NBYTES])
        for i in range(n):
            size = nbytes[i] if nbytes.size > 1 else nbytes[0]
            items[PAYLOAD] += size - sizes[slots[i]]
            sizes[slots[i]] = size
    items[COUNTER] += n
    items[VISITS] += n
    for row in range(items[GLOBALS]):  # beside the order, there are sets and weights alone
        if table[row, KIND] == WEIGHT:
            weight_change(items, table[row], slots, n, CHANGE, work)
