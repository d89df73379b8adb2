"""Priorities of items: writing them, and the highest one, which new items get."""

from __future__ import annotations

import numpy as np

from recollect.kernels.indexes import AHEAD
from recollect.kernels.items.slots import home_of, slot_of_key
from recollect.kernels.layout import (
    A_LOOSE,
    A_PMAX,
    A_RECORD,
    FREE,
    PMAX_LOOSE,
    PMAX_TOP,
    PRIORITY,
    SLOTS,
    STATE,
    VISIBLE,
    VISITS,
)
from recollect.kernels.machine.compile import inner, kernel
from recollect.kernels.machine.memory import float64_at, int8_at, prefetch, uint64_at


# -- the highest priority -----------------------------------------------------------------------
# The maximum of every 16 priorities, of every 16 of these, and so on. Where the highest of 16 goes
# down, reading the other 15 would cost as much as all the rest of an update, and samplers prefer
# just those. So the maximum stays as a bound that is marked loose, and the 16 are read when
# somebody asks for the highest of all and they are in the way. A maximum above the lowest level
# is always that of the 16 below it.
@inner("void(ints, int64, float64, float64)")
def follow_priority(items, slot, old, new):
    """An item's priority has changed, or it came or left: -1 stands for no item."""
    if items[A_PMAX] == 0:
        return
    maxima = float64_at(items[A_PMAX])
    loose = int8_at(items[A_LOOSE])
    node = np.int64(slot) >> 4
    current = maxima[node]
    if new < current:
        if old >= current:
            loose[node] = 1
            if current >= maxima[items[PMAX_TOP]]:
                items[PMAX_LOOSE] = 1
        return
    loose[node] = 0
    base = np.int64(0)
    width = (items[SLOTS] + 15) >> 4
    while new > current:
        maxima[base + node] = new
        if base + node == items[PMAX_TOP]:
            return
        node >>= 4
        base += (width + 15) & ~np.int64(15)
        width = (width + 15) >> 4
        current = maxima[base + node]


@inner("Tuple((int64, int64))(ints, int64)")
def _level_of_maxima(items, level):
    """Where a level of the maxima begins, and how many there are."""
    base = np.int64(0)
    width = (items[SLOTS] + 15) >> 4
    for _ in range(level):
        base += (width + 15) & ~np.int64(15)
        width = (width + 15) >> 4
    return base, width


@kernel("void(ints)")
def settle_maxima(items):
    """Make the highest priority of all exact, reading only the loose 16 that claim to hold it."""
    maxima = float64_at(items[A_PMAX])
    loose = int8_at(items[A_LOOSE])
    priorities = float64_at(items[A_RECORD])
    levels = np.int64(1)
    while _level_of_maxima(items, levels - 1)[1] > 1:
        levels += 1
    while True:
        highest = maxima[items[PMAX_TOP]]
        node = np.int64(0)
        for level in range(levels - 2, -1, -1):  # down to 16 that claim it, exact ones if there are
            base, width = _level_of_maxima(items, level)
            first = 16 * node
            node = np.int64(-1)
            for child in range(first, min(first + 16, width)):
                items[VISITS] += 1
                if maxima[base + child] == highest and (
                    node < 0 or (level == 0 and loose[node] and not loose[child])
                ):
                    node = np.int64(child)
        if not loose[node]:
            items[PMAX_LOOSE] = 0
            return
        loose[node] = 0
        changed = -1.0
        for slot in range(16 * node, min(16 * node + 16, items[SLOTS])):
            items[VISITS] += 1
            changed = max(changed, priorities[4 * slot + PRIORITY])
        maxima[node] = changed
        for level in range(1, levels):
            below, width = _level_of_maxima(items, level - 1)
            base, _ = _level_of_maxima(items, level)
            node >>= 4
            changed = -1.0
            for child in range(16 * node, min(16 * node + 16, width)):
                changed = max(changed, maxima[below + child])
            maxima[base + node] = changed


@kernel("void(ints)")
def rebuild_maxima(items):
    """Compute all maxima anew, after the arrays grew."""
    maxima = float64_at(items[A_PMAX])
    priorities = float64_at(items[A_RECORD])
    below_base = np.int64(-1)
    below_width = items[SLOTS]
    base = np.int64(0)
    while True:
        width = (below_width + 15) >> 4
        for node in range((width + 15) & ~np.int64(15)):
            highest = -1.0
            for child in range(16 * node, min(16 * node + 16, below_width)):
                if below_base >= 0:
                    highest = max(highest, maxima[below_base + child])
                else:
                    highest = max(highest, priorities[4 * child + PRIORITY])
            maxima[base + node] = highest
            if below_base < 0:
                int8_at(items[A_LOOSE])[node] = 0
        if width == 1:
            items[PMAX_TOP] = base
            items[PMAX_LOOSE] = 0
            return
        below_base = base
        below_width = width
        base += (width + 15) & ~np.int64(15)


@inner("boolean(ints, int64, float64)", hot=True)
def _write_priority(items, slot, value):
    """Write one; returns whether the item is visible."""
    priorities = float64_at(items[A_RECORD])
    old = priorities[4 * slot + PRIORITY]
    priorities[4 * slot + PRIORITY] = value
    if items[A_PMAX] != 0 and max(old, value) >= float64_at(items[A_PMAX])[slot >> 4]:
        follow_priority(items, slot, old, value)
    return int8_at(items[A_RECORD])[32 * slot + STATE] == VISIBLE


@kernel("int64(ints, ints, floats, int64)")
def write_priorities(items, slots, values, n):
    """Write priorities; the last one wins for a slot named twice. `slots` holds no -1.

    Keeps the visible ones in front of `slots` and returns how many they are: their weights are
    to be computed anew. An array of one value stands for all.
    """
    visible = 0
    for i in range(n):
        slot = slots[i]
        if _write_priority(items, slot, values[i] if values.size > 1 else values[0]):
            slots[visible] = slot
            visible += 1
    return visible


@kernel("int64(ints, words, floats, ints, boolean[::1])")
def update_priorities(items, keys, values, slots, found):
    """The same by keys, in one pass with finding their slots; also says which were found."""
    n, visible = keys.size, 0
    records = items[A_RECORD]
    states, words = int8_at(records), uint64_at(records)
    for i in range(n + AHEAD):
        if i < n:  # ask for a record some turns before it is read
            slots[i] = home_of(items, keys[i])
            prefetch(records + 32 * slots[i])
            prefetch(items[A_PMAX] + 8 * (slots[i] >> 4))
        at = i - AHEAD
        if at >= 0:
            slot = slots[at]
            if states[32 * slot + STATE] == FREE or words[4 * slot] != keys[at]:
                slot = slot_of_key(items, keys[at])
            found[at] = slot >= 0
            if slot >= 0 and _write_priority(
                items, slot, values[at] if values.size > 1 else values[0]
            ):
                slots[visible] = slot
                visible += 1
    return visible


@kernel("Tuple((float64, float64))(floats)")
def range_of(values):
    """The smallest and the largest of some numbers; NaN for both if one is not a number."""
    low, high = np.inf, -np.inf
    for value in values:
        if np.isnan(value):
            return np.nan, np.nan
        low = min(low, value)
        high = max(high, value)
    return low, high
