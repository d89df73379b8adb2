"""Records of items for snapshots: loads fill all of them, saves compare them with the last save."""

from __future__ import annotations

import numpy as np

from recollect.kernels.indexes import change_index
from recollect.kernels.layout import (
    A_RECORD,
    ADD,
    COUNTER_MASK,
    FREE,
    LEASED,
    LOW,
    SLOTS,
    STATE,
    VISIBLE,
)
from recollect.kernels.machine.compile import kernel
from recollect.kernels.machine.memory import int8_at, int32_at, int64_at, uint64_at

WORD_OF_STATE = 8 * (STATE - 24)  # bits of the last word below the state


@kernel("void(ints, int64, int64, int64, int64, int64, int64)", nogil=True)
def fill_records(items, slots, keys, locations, priorities, times, n):
    """Write whole records of n visible items. Their parts are given by address, because arrays that
    are mapped from a file are read-only, and kernels take arrays that can be written.
    """
    records = int64_at(items[A_RECORD])
    visible = np.int64(VISIBLE) << WORD_OF_STATE
    for i in range(n):
        at = 4 * int64_at(slots)[i]
        records[at] = int64_at(keys)[i]
        records[at + 1] = int64_at(locations)[i]
        records[at + 2] = int64_at(priorities)[i]
        records[at + 3] = visible | (np.int64(int32_at(times)[i]) & LOW)


@kernel("void(ints, ints, ints, ints)", nogil=True, indexes=True)
def fill_index(items, x, slots, work):
    """Add many items to an index, some at a time: what they need to work fits into a cache."""
    most = (work.size - 64) >> 2
    for begin in range(0, slots.size, most):
        some = slots[begin : begin + most]
        change_index(items, x, some, some.size, ADD, work)


@kernel("int64(ints)", nogil=True)
def count_displaced(items):
    """How many items do not stand at their key's own slot."""
    states = int8_at(items[A_RECORD])
    keys = uint64_at(items[A_RECORD])
    slots = items[SLOTS]
    first = np.int64(0)  # a multiple of the slots: keys in a row have the same, nearly always
    displaced = 0
    for slot in range(slots):
        if states[32 * slot + STATE] != FREE:
            counter = np.int64(keys[4 * slot] & np.uint64(COUNTER_MASK))
            if counter - first != slot:
                home = counter % slots
                first = counter - home
                displaced += home != slot
    return displaced


@kernel("int64(table, table, int64, int64, int32[::1], table)", nogil=True)
def differing(records, before, begin, end, slots, found):
    """Which records in [begin, end) are not what they were: their slots, and copies of them.

    A leased item counts as one that was given back: visible, and sampled once less. Writes from
    place `begin` on, and returns how many.
    """
    many = np.int64(0)
    for slot in range(begin, end):
        last = records[slot, 3] & ((np.int64(1) << (WORD_OF_STATE + 8)) - 1)
        if last >> WORD_OF_STATE == LEASED:
            visible = np.int64(VISIBLE) << WORD_OF_STATE
            last = visible | ((last - 1) & LOW)
        same = (
            (records[slot, 0] == before[slot, 0])
            & (records[slot, 1] == before[slot, 1])
            & (records[slot, 2] == before[slot, 2])
            & (last == before[slot, 3])
        )
        if not same:
            slots[begin + many] = slot
            found[begin + many, 0] = records[slot, 0]
            found[begin + many, 1] = records[slot, 1]
            found[begin + many, 2] = records[slot, 2]
            found[begin + many, 3] = last
            many += 1
    return many
