"""Choosing items for a call: sample, take and evict, and the probabilities of draws."""

from __future__ import annotations

import numpy as np

from recollect.kernels.index_draws import (
    choose_distinct,
    count_of_all,
    draw_from_all,
    draw_many,
    mass_of_all,
    only_zeros,
)
from recollect.kernels.indexes import change_index, place_of, unit_of
from recollect.kernels.items.visibility import count_visible, each_index, set_state
from recollect.kernels.layout import (
    A_DIRECTORY,
    A_PARTITION,
    A_PARTITION_SAMPLED,
    A_RECORD,
    A_SMALLEST,
    A_TREE,
    A_ZEROS,
    ADD,
    CHANGE,
    COUNT,
    DEPENDS,
    DEPENDS_TIMES,
    DIRECTORY_BASE,
    DIRECTORY_BLOCK,
    DIRECTORY_STRIDE,
    DRAWN_IMPORTANCE,
    DRAWN_KEY,
    DRAWN_LEFT,
    DRAWN_LOCATION,
    DRAWN_PRIORITY,
    DRAWN_PROBABILITY,
    DRAWN_SLOT,
    DRAWN_TIMES,
    EVICT,
    FAMILIES,
    GLOBALS,
    KEY,
    KIND,
    LEASED,
    LEVELS,
    LOCATION,
    LOW,
    MAX_TIMES,
    OFFSETS,
    ORDER,
    PRIORITY,
    REMOVE,
    SAMPLE,
    SAMPLED,
    STATE,
    TAKE,
    TIMES,
    VISIBLE,
    WEIGHT,
)
from recollect.kernels.machine.compile import inner, kernel
from recollect.kernels.machine.memory import float64_at, int8_at, int32_at, int64_at, prefetch
from recollect.kernels.machine.power import power

ASKED = 512  # items whose rows a cache can hold until they are copied


@inner("boolean(ints, table)")
def _depends_on_times(items, table):
    for row in range(min(items[GLOBALS] + items[FAMILIES], table.shape[0])):
        if table[row, DEPENDS] & DEPENDS_TIMES:
            return True
    return False


@inner("void(ints, table, float_table, int64, int64)")
def _fill(items, ints, floats, n, more):
    """What a batch says of each of its items, after so many more times that each was sampled.

    The rows of a small batch are asked for: they are copied as soon as the lock is free.
    """
    directory = int64_at(items[A_DIRECTORY])
    asked = items[A_DIRECTORY] != 0 and n <= ASKED
    records = int64_at(items[A_RECORD])
    numbers = float64_at(items[A_RECORD])
    times = int32_at(items[A_RECORD])
    for i in range(n):
        slot = ints[DRAWN_SLOT, i]
        ints[DRAWN_KEY, i] = records[4 * slot + KEY]
        location = records[4 * slot + LOCATION]
        ints[DRAWN_LOCATION, i] = location
        if asked:
            entry = DIRECTORY_BLOCK * (location >> 32)
            stride = directory[entry + DIRECTORY_STRIDE]
            row = directory[entry + DIRECTORY_BASE] + (location & LOW) * stride
            for line in range(0, min(stride + 63, np.int64(256)), 64):
                prefetch(row + line)
        times[8 * slot + TIMES] += more
        floats[DRAWN_PRIORITY, i] = numbers[4 * slot + PRIORITY]
    for i in range(n):  # not before: an item may be there twice
        ints[DRAWN_TIMES, i] = times[8 * ints[DRAWN_SLOT, i] + TIMES]


@inner("void(table, ints, int64, float64, int64, int64, float64, float_table)")
def _importance(table, rows, n, beta, normalize, size, smallest, floats):
    """(N · P) ** -beta, divided by the largest of the batch (1), of the table (2), or not (0)."""
    probability = floats[DRAWN_PROBABILITY]
    weights = floats[DRAWN_IMPORTANCE]
    if table[rows[0], KIND] != WEIGHT or beta == 0.0:
        weights[:n] = 1.0
        return
    reference = 1.0 / size
    if normalize == 1:
        reference = np.inf
        for i in range(n):
            reference = min(reference, probability[i])
    elif normalize == 2 and smallest < np.inf:
        reference = smallest
    for i in range(n):
        weights[i] = power(probability[i] / reference, -beta)


@inner("float64(table, ints)")
def _smallest_probability(table, rows):
    smallest = np.inf
    for row in rows:
        x = table[row]
        if x[KIND] != WEIGHT or x[A_SMALLEST] == 0:
            return np.inf
        if x[COUNT] > 0:
            smallest = min(smallest, float64_at(x[A_SMALLEST])[x[OFFSETS + x[LEVELS] - 1]])
    mass = mass_of_all(table, rows, False)
    return smallest / mass if mass > 0.0 else np.inf


@inner("void(ints, table, ints, int64, int64, ints)", hot=True)
def _withdraw(items, table, slots, n, popped, work):
    """Take items out of sight, and out of every index but the one that they were popped from."""
    count_visible(items, slots, n, -1)
    set_state(items, slots, n, LEASED)
    each_index(items, table, slots, n, REMOVE, 0, popped, work)


@inner(
    "int64(ints, table, ints, int64, boolean, int64, boolean, words, table, float_table, ints)",
    hot=True,
)
def _count_each(items, table, rows, n, drawing, stratified, dependents, random, ints, floats, work):
    """Count n samples one after the other, in indexes that depend on it too; returns how many items
    were withdrawn because they reached their limit. They are drawn here too if `drawing`.
    """
    chosen, probability = ints[DRAWN_SLOT], floats[DRAWN_PROBABILITY]
    times = int32_at(items[A_RECORD])
    partitions = int32_at(items[A_PARTITION])
    limit = items[MAX_TIMES]
    popped = rows[0] if table[rows[0], KIND] == ORDER else np.int64(-1)
    temporary = rows[0] == table.shape[0] - 1
    # all draws of a call go by the weights that it began with, also where it changes them
    later = drawing and table[rows[0], DEPENDS] & DEPENDS_TIMES != 0
    left = 0
    for i in range(n):
        if drawing:
            unit = unit_of(random, i, n, stratified)
            chosen[i], probability[i] = draw_from_all(items, table, rows, unit)
        slot, one = chosen[i], chosen[i:]
        if dependents:
            skip = rows[0] if later else popped
            each_index(items, table, one, 1, REMOVE, DEPENDS_TIMES, skip, work)
        times[8 * slot + TIMES] += 1
        if dependents:
            skip = rows[0] if later else np.int64(-1)
            each_index(items, table, one, 1, ADD, DEPENDS_TIMES, skip, work)
        items[SAMPLED] += 1
        if items[A_PARTITION] != 0:
            int64_at(items[A_PARTITION_SAMPLED])[partitions[slot]] += 1
        if limit > 0 and times[8 * slot + TIMES] >= limit:
            ints[DRAWN_LEFT, left] = slot
            left += 1
            _withdraw(items, table, one, 1, -1, work)
            if temporary and drawing:
                change_index(items, table[rows[0]], one, 1, REMOVE, work)
    for i in range(n if later else 0):
        if int8_at(items[A_RECORD])[32 * chosen[i] + STATE] == VISIBLE:
            each_index(items, table, chosen[i:], 1, CHANGE, DEPENDS_TIMES, -1, work)
    return left


@kernel(
    "int64(ints, table, ints, int64, int64, int64, int64, float64, int64, words, table,"
    " float_table, ints)",
    indexes=True,
)
def choose(
    items, table, rows, verb, n, replace, stratified, beta, normalize, random, ints, floats, work
):
    """Choose n items for a call and do to them what it does.

    SAMPLE  they stay and are counted; those that reach max_times_sampled are withdrawn at once,
            before the next draw. Returns how many: they stand in ints[DRAWN_LEFT].
    TAKE    n different items, counted and withdrawn.
    EVICT   the same, not counted.

    What is withdrawn is in no index any more; the caller leases or releases it.
    """
    chosen, probability = ints[DRAWN_SLOT], floats[DRAWN_PROBABILITY]
    size = count_of_all(table, rows)
    smallest = _smallest_probability(table, rows)
    ordered = table[rows[0], KIND] == ORDER
    sampling = verb == SAMPLE
    limited = items[MAX_TIMES] > 0
    one_by_one = sampling and replace and not ordered and (limited or rows.size > 1)
    if ordered or not replace or not sampling:
        choose_distinct(items, table, rows, n, random, chosen, probability, work, floats[1])
    elif not one_by_one:
        draw_many(items, table[rows[0]], n, stratified, random, chosen, probability)

    left, counted = n, verb == TAKE  # whether each item's count is still to be raised
    if sampling:
        left = 0
        dependents = _depends_on_times(items, table)
        counted = not (one_by_one or dependents or limited or items[A_PARTITION] != 0)
        if counted:  # the common case, where nothing but the count changes
            items[SAMPLED] += n
        else:
            left = _count_each(
                items, table, rows, n, one_by_one, stratified, dependents, random, ints, floats,
                work,
            )  # fmt: skip
    else:
        popped = rows[0] if ordered else np.int64(-1)
        _withdraw(items, table, chosen, n, popped, work)
    if verb != EVICT:
        _importance(table, rows, n, beta, normalize, size, smallest, floats)
    # only now: orders compare by what is counted here
    _fill(items, ints, floats, n, np.int64(counted))
    return left


@kernel("void(ints, table, ints, ints, floats)", indexes=True)
def probabilities(items, table, rows, slots, out):
    """The probability of a first draw from indexes that weigh items, or choose uniformly."""
    by_zeros = only_zeros(table, rows)
    mass = mass_of_all(table, rows, by_zeros)
    for i in range(slots.size):
        row = rows[0]
        if items[GLOBALS] <= row < table.shape[0] - 1:
            family = (row - items[GLOBALS]) % items[FAMILIES]
            partition = np.int64(int32_at(items[A_PARTITION])[slots[i]])
            row = items[GLOBALS] + partition * items[FAMILIES] + family
        x = table[row]
        if x[KIND] == WEIGHT:
            address = x[A_ZEROS] if by_zeros else x[A_TREE]
            out[i] = float64_at(address)[place_of(x, slots[i])] / mass
        else:
            out[i] = 1.0 / mass
