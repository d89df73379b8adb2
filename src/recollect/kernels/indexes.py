"""The indexes of a table: which item comes first, which are there, what they weigh.

An index is one row `x` of the index table (`layout`), of one of three kinds:

order    items in the order of (times_sampled, value, arrival); see `orders`.
uniform  a dense set: removing swaps the last member into the hole.
weight   sum trees over the slots, or over the places of a dense set within a partition.

All are called under the table's lock, after the caller has made room.
"""

from __future__ import annotations

import numpy as np

from recollect.kernels.layout import (
    A_MEMBERS,
    A_PARAMETERS,
    A_PLACE,
    A_RECORD,
    A_TREE,
    A_VALUE,
    A_VERSION,
    A_ZEROS,
    ABSENT,
    ADD,
    ALPHA,
    BY_FLOAT64,
    BY_INT8,
    BY_INT64,
    BY_PRIORITY,
    BY_ROWS,
    BY_TIMES,
    CHANGE,
    COUNT,
    KIND,
    ORDER,
    POSITIVE,
    PRIORITY,
    RATE,
    REFERENCE,
    REMOVE,
    TIMES,
    UNIFORM,
    VALUE_TYPE,
    VISITS,
    WEIGHT,
)
from recollect.kernels.machine.compile import inner
from recollect.kernels.machine.memory import (
    float64_at,
    floats_at,
    int8_at,
    int32_at,
    int64_at,
    prefetch,
)
from recollect.kernels.machine.power import exp_2, power
from recollect.kernels.orders import nbytes_of, order_add_many, order_remove, rows_of
from recollect.kernels.random import next_unit
from recollect.kernels.sum_tree import refresh, set_leaf

SMALLEST_WEIGHT = 1e-300
LARGEST_VALUE = 1e150  # of a field; tables refuse what is larger, a file may have it
AHEAD = 16  # items between a prefetch and its use


# -- dense sets ---------------------------------------------------------------------------------
@inner("int64(ints, int64)")
def add_member(x, slot):
    place = x[COUNT]
    int32_at(x[A_MEMBERS])[place] = slot
    int32_at(x[A_PLACE])[slot] = place
    x[COUNT] = place + 1
    return place


@inner("int64(ints, int64)")
def remove_member(x, slot):
    """Returns the hole, which the last member fills."""
    members = int32_at(x[A_MEMBERS])
    places = int32_at(x[A_PLACE])
    hole = places[slot]
    x[COUNT] -= 1
    moved = members[x[COUNT]]
    members[hole] = moved
    places[moved] = hole
    return np.int64(hole)


@inner("void(ints, int64, int64)")
def swap_members(x, a, b):
    members = int32_at(x[A_MEMBERS])
    places = int32_at(x[A_PLACE])
    first, second = members[a], members[b]
    members[a], members[b] = second, first
    places[first], places[second] = b, a


# -- weights ------------------------------------------------------------------------------------
@inner("float64(ints, ints, int64)")
def _value_of(items, x, slot):
    """The value that an item is weighed by, whatever its type; 0 or less where it is absent."""
    kind = x[VALUE_TYPE]
    if kind == BY_FLOAT64:
        number = float64_at(x[A_VALUE])[slot]
        return min(number, LARGEST_VALUE) if number > 0.0 else 0.0  # and not where it is NaN
    if kind == BY_INT64:
        whole = int64_at(x[A_VALUE])[slot]
        return np.float64(whole) if whole != x[ABSENT] else 0.0
    if kind == BY_INT8:
        return np.float64(int8_at(x[A_VALUE])[slot])
    if kind == BY_TIMES:
        return np.float64(int32_at(items[A_RECORD])[8 * slot + TIMES])
    return np.float64(rows_of(items, slot) if kind == BY_ROWS else nbytes_of(items, slot))


@inner("void(ints, ints, ints, int64, floats)")
def weights_of(items, x, slots, n, weights):
    """value ** alpha, halved for every half-life between the reference and the version."""
    parameters = float64_at(x[A_PARAMETERS])
    priorities = float64_at(items[A_RECORD])
    alpha, rate = parameters[ALPHA], parameters[RATE]
    if x[VALUE_TYPE] == BY_PRIORITY:
        for i in range(n):
            weights[i] = priorities[4 * slots[i] + PRIORITY]
    else:
        for i in range(n):
            weights[i] = _value_of(items, x, slots[i])
    for i in range(n):  # a weight that is not zero stays so
        value = weights[i]
        weight = max(power(value, alpha) if alpha != 1.0 else value, SMALLEST_WEIGHT)
        weights[i] = weight if value > 0.0 else 0.0
    if rate != 0.0:
        versions = int64_at(items[A_VERSION])
        for i in range(n):
            weight = weights[i] * exp_2((versions[slots[i]] - parameters[REFERENCE]) * rate)
            weights[i] = max(weight, SMALLEST_WEIGHT) if weights[i] > 0.0 else 0.0


@inner("int64(ints, int64)")
def place_of(x, slot):
    return np.int64(int32_at(x[A_PLACE])[slot]) if x[A_MEMBERS] != 0 else np.int64(slot)


@inner("int64(ints, int64)")
def slot_at(x, place):
    return np.int64(int32_at(x[A_MEMBERS])[place]) if x[A_MEMBERS] != 0 else np.int64(place)


@inner("void(ints, int64, float64, float64)")
def _write_leaf(x, place, weight, zero):
    float64_at(x[A_TREE])[place] = weight
    if x[A_ZEROS] != 0:
        float64_at(x[A_ZEROS])[place] = zero


@inner("void(ints, ints, ints, int64, int64, ints)")
def weight_change(items, x, slots, n, change, work):
    """Write the leaves of items that come, go or weigh something else, then their ancestors.

    Items that only change may be named twice.
    """
    half = work.size >> 1
    tree = float64_at(x[A_TREE])
    touched = 0
    weights = floats_at(work.ctypes.data + 8 * half, half)
    if change != REMOVE:
        weights_of(items, x, slots, n, weights)
    for i in range(n):
        if x[A_MEMBERS] == 0 and i + AHEAD < n:  # both lines of the node that holds the leaf
            node = x[A_TREE] + 8 * (slots[i + AHEAD] & ~np.int64(15))
            prefetch(node)
            prefetch(node + 64)
        slot = slots[i]
        place = np.int64(slot)
        if x[A_MEMBERS] != 0:
            place = add_member(x, slot) if change == ADD else np.int64(int32_at(x[A_PLACE])[slot])
        elif change == ADD:
            x[COUNT] += 1
        if change == REMOVE:
            x[POSITIVE] -= tree[place] > 0.0
            if x[A_MEMBERS] != 0:  # the last member fills the hole, and its weight with it
                last = x[COUNT] - 1
                remove_member(x, slot)
                zero = float64_at(x[A_ZEROS])[last] if x[A_ZEROS] != 0 else 0.0
                _write_leaf(x, place, tree[last], zero)
                _write_leaf(x, last, 0.0, 0.0)
                work[touched] = last
                touched += 1
            else:
                x[COUNT] -= 1
                _write_leaf(x, place, 0.0, 0.0)
        else:
            weight = weights[i]
            old = tree[place] if change == CHANGE else 0.0
            x[POSITIVE] += np.int64(weight > 0.0) - np.int64(old > 0.0)
            _write_leaf(x, place, weight, 1.0 if weight == 0.0 else 0.0)
        work[touched] = place
        touched += 1
        if touched + 2 > half or i == n - 1:  # removals touch two places each
            if x[A_ZEROS] != 0:
                scratch = work[half:]
                for k in range(touched):
                    scratch[k] = work[k]
                items[VISITS] += refresh(x, x[A_ZEROS], scratch, touched)
            items[VISITS] += refresh(x, x[A_TREE], work, touched)
            touched = 0


@inner("void(ints, int64, float64, float64)")
def set_weight(x, place, weight, zero):
    set_leaf(x, x[A_TREE], place, weight)
    if x[A_ZEROS] != 0:
        set_leaf(x, x[A_ZEROS], place, zero)


# -- all kinds ----------------------------------------------------------------------------------
@inner("void(ints, ints, ints, int64, int64, ints)")
def change_index(items, x, slots, n, change, work):
    """Add items to an index, remove them, or weigh them anew (which moves nothing else)."""
    if x[KIND] == WEIGHT:
        weight_change(items, x, slots, n, change, work)
    elif x[KIND] == ORDER:
        if change == ADD:
            order_add_many(items, x, slots, n)
        elif change == REMOVE:
            for i in range(n):
                order_remove(items, x, slots[i])
    elif x[KIND] == UNIFORM:
        for i in range(n):
            if change == ADD:
                add_member(x, slots[i])
            elif change == REMOVE:
                remove_member(x, slots[i])
        items[VISITS] += n


@inner("float64(words, int64, int64, int64)")
def unit_of(random, i, n, stratified):
    return (i + next_unit(random)) / n if stratified else next_unit(random)
