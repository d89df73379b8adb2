"""Items in and out of the indexes: visible ones are in all of them, leased ones in none."""

from __future__ import annotations

import numpy as np

from recollect.kernels.indexes import change_index
from recollect.kernels.layout import (
    A_PARTITION,
    A_PARTITION_SAMPLED,
    A_PARTITION_VISIBLE,
    A_RECORD,
    A_TREE,
    A_ZEROS,
    ADD,
    CHANGE,
    DEPENDS,
    FAMILIES,
    FILL,
    GLOBALS,
    HIDDEN,
    HIDDEN_BYTES,
    HIDE,
    LEASED,
    REMOVE,
    SAMPLED,
    SHOW,
    STATE,
    TIMES,
    VISIBLE,
)
from recollect.kernels.machine.compile import inner, kernel
from recollect.kernels.machine.memory import int8_at, int32_at, int64_at
from recollect.kernels.orders import nbytes_of
from recollect.kernels.sum_tree import refresh


@inner("void(ints, ints, int64, int64)")
def count_visible(items, slots, n, sign):
    """Items become visible (1) or invisible (-1): count them, and how often they were sampled."""
    times = int32_at(items[A_RECORD])
    for i in range(n):
        slot = slots[i]
        sampled = sign * times[8 * slot + TIMES]
        items[SAMPLED] += sampled
        if items[A_PARTITION] != 0:
            partition = int32_at(items[A_PARTITION])[slot]
            int64_at(items[A_PARTITION_SAMPLED])[partition] += sampled
            int64_at(items[A_PARTITION_VISIBLE])[partition] += sign


@inner("void(ints, ints, int64, int64)")
def set_state(items, slots, n, state):
    states = int8_at(items[A_RECORD])
    for i in range(n):
        place = 32 * slots[i] + STATE
        change = np.int64(state == LEASED) - np.int64(states[place] == LEASED)
        items[HIDDEN] += change
        items[HIDDEN_BYTES] += change * nbytes_of(items, slots[i])
        states[place] = state


@inner("boolean(ints, ints, int64)")
def _same_partition(items, slots, n):
    partitions = int32_at(items[A_PARTITION])
    same = 1
    while same < n and partitions[slots[same]] == partitions[slots[0]]:
        same += 1
    return same >= n


@inner("void(ints, table, ints, int64, int64, int64, int64, ints)")
def each_index(items, table, slots, n, change, mask, skip, work):
    """Change every index but `skip` that depends on `mask`; a mask of 0 means every index.

    `skip` is a row of the table; where it is a partition's, its whole family is skipped.
    """
    if n == 0:
        return
    every = items[GLOBALS]
    families = items[FAMILIES]
    skipped = skip
    step = n
    partitions = int32_at(items[A_PARTITION])
    if families > 0:
        if every <= skip < table.shape[0] - 1:
            skipped = every + (skip - every) % families
        if not _same_partition(items, slots, n):
            step = 1
    for i in range(0, n, step):
        for k in range(every + families):
            if k == skipped or (k < every and i > 0):
                continue
            row = k
            count = n
            if k >= every:
                row += np.int64(partitions[slots[i]]) * families
                count = step
            if mask == 0 or table[row, DEPENDS] & mask:
                change_index(items, table[row], slots[i:], count, change, work)


@kernel("void(ints, table, ints, int64, int64, int64, ints)", indexes=True)
def arrange(items, table, slots, n, verb, mask, work):
    """Make items visible or invisible, or change the indexes that depend on `mask`.

    A verb of FILL + row changes that one index alone, and `mask` is then the change.
    """
    if verb >= FILL:
        change_index(items, table[verb - FILL], slots, n, mask, work)
        return
    if verb == HIDE:
        count_visible(items, slots, n, -1)
    change = verb if verb <= CHANGE else (ADD if verb == SHOW else REMOVE)
    each_index(items, table, slots, n, change, mask, -1, work)
    if verb == SHOW:
        count_visible(items, slots, n, 1)
    if verb in (SHOW, HIDE):
        set_state(items, slots, n, VISIBLE if verb == SHOW else LEASED)


@kernel("void(ints)", indexes=True)
def rebuild_trees(x):
    """Compute every parent anew, after the leaves moved or changed all at once."""
    everything = np.int64(1) << 60
    refresh(x, x[A_TREE], x, everything)
    if x[A_ZEROS] != 0:
        refresh(x, x[A_ZEROS], x, everything)
