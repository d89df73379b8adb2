"""Which items a call gets: draws and orders over one or several indexes of one kind.

`rows` names the indexes that take part, as rows of the index table: one for the whole table,
one per partition that a query admits, or the last row, which holds an index that was made for
this one call. Nothing here waits: the caller has checked that there are enough items.
"""

from __future__ import annotations

import numpy as np

from recollect.kernels.indexes import place_of, set_weight, slot_at, swap_members, unit_of
from recollect.kernels.layout import (
    A_MEMBERS,
    A_RECORD,
    A_TREE,
    A_ZEROS,
    COUNT,
    HEAPED,
    KIND,
    LEVELS,
    ORDER,
    UNIFORM,
    VISITS,
    WEIGHT,
)
from recollect.kernels.machine.compile import inner
from recollect.kernels.machine.memory import float64_at, int32_at, prefetch
from recollect.kernels.orders import comes_before, order_first, order_remove, pop_many, unlink_first
from recollect.kernels.random import next_below, next_unit
from recollect.kernels.sum_tree import BELOW_ONE, descend, find_leaf, total


@inner("float64(ints, boolean)")
def mass_of(x, by_zeros):
    """What one index contributes to a draw over several."""
    if x[KIND] == UNIFORM:
        return np.float64(x[COUNT])
    if by_zeros:
        return total(x, x[A_ZEROS]) if x[A_ZEROS] != 0 else 0.0
    return total(x, x[A_TREE])


@inner("float64(table, ints, boolean)")
def mass_of_all(table, rows, by_zeros):
    mass = 0.0
    for row in rows:
        mass += mass_of(table[row], by_zeros)
    return mass


@inner("boolean(table, ints)")
def only_zeros(table, rows):
    """Whether the indexes weigh items and none of them has a positive weight left."""
    return table[rows[0], KIND] == WEIGHT and mass_of_all(table, rows, False) <= 0.0


@inner("Tuple((int64, float64))(table, ints, boolean, float64)")
def row_under(table, rows, by_zeros, left):
    """The index in which `left`, a number in [0, mass of all), falls; and the rest of it."""
    last = rows[0]
    for row in rows:
        mass = mass_of(table[row], by_zeros)
        if mass > 0.0:
            if left < mass:
                return row, left
            last = row
        left -= mass
    return last, mass_of(table[last], by_zeros) * BELOW_ONE


@inner("int64(table, ints)")
def count_of_all(table, rows):
    count = np.int64(0)
    for row in rows:
        count += table[row, COUNT]
    return count


@inner("int64(ints, table, ints)")
def pop_first(items, table, rows):
    """Remove the first item of several orders from its own, and return its slot."""
    best = np.int64(-1)
    best_row = rows[0]
    for row in rows:
        first = order_first(items, table[row])
        if first >= 0 and (best < 0 or comes_before(items, table[row], first, best)):
            best, best_row = first, row
    order_remove(items, table[best_row], best)
    return best


@inner("void(ints, ints, int64, int64, words, ints, floats)")
def draw_many(items, x, n, stratified, random, chosen, probability):
    """n draws with replacement from one index, level by level."""
    if x[KIND] == UNIFORM:
        members = int32_at(x[A_MEMBERS])
        count = x[COUNT]
        for i in range(n):  # two loops: what the second one reads, the first one asked for
            chosen[i] = next_below(random, count)
            prefetch(x[A_MEMBERS] + 4 * chosen[i])
        for i in range(n):
            chosen[i] = members[chosen[i]]
            prefetch(items[A_RECORD] + 32 * chosen[i])
        probability[:n] = 1.0 / count
        items[VISITS] += n
        return
    address = x[A_TREE]
    mass = total(x, address)
    if mass <= 0.0 and x[A_ZEROS] != 0:
        address = x[A_ZEROS]
        mass = total(x, address)
    for i in range(n):
        probability[i] = unit_of(random, i, n, stratified) * mass
    records = items[A_RECORD] if x[A_MEMBERS] == 0 else np.int64(0)  # by leaf, or by member
    descend(x, address, chosen, probability, n, stratified != 0, records)
    leaves = float64_at(address)
    for i in range(n):
        place = chosen[i]
        probability[i] = leaves[place] / mass
        chosen[i] = slot_at(x, place)
        if records == 0:
            prefetch(items[A_RECORD] + 32 * chosen[i])
    items[VISITS] += n * x[LEVELS]


@inner("Tuple((int64, float64))(ints, table, ints, float64)")
def draw_from_all(items, table, rows, unit):
    """One draw over several indexes; returns slot and probability."""
    by_zeros = only_zeros(table, rows)
    mass = mass_of_all(table, rows, by_zeros)
    row, left = row_under(table, rows, by_zeros, unit * mass)
    x = table[row]
    if x[KIND] == UNIFORM:
        members = int32_at(x[A_MEMBERS])
        return np.int64(members[min(np.int64(left), x[COUNT] - 1)]), 1.0 / mass
    items[VISITS] += x[LEVELS]
    address = x[A_ZEROS] if by_zeros else x[A_TREE]
    place = find_leaf(x, address, left)
    return slot_at(x, place), float64_at(address)[place] / mass


@inner("void(ints, table, ints, int64, words, ints, floats, ints)")
def distinct_uniform(items, table, rows, n, random, chosen, probability, work):
    """A shuffle of the first n: each chosen member is swapped in front of the others."""
    count = count_of_all(table, rows)
    for k in range(rows.size):
        work[k] = 0
    for i in range(n):
        left = next_below(random, count - i)
        for k in range(rows.size):
            x = table[rows[k]]
            here = x[COUNT] - work[k]
            if left < here:
                swap_members(x, work[k], work[k] + left)
                chosen[i] = int32_at(x[A_MEMBERS])[work[k]]
                work[k] += 1
                break
            left -= here
        probability[i] = 1.0 / count
    items[VISITS] += n


@inner("void(ints, table, ints, int64, words, ints, floats, ints, floats)")
def distinct_weighted(items, table, rows, n, random, chosen, probability, work, floats):
    """Draw one after another, each drawn leaf set to zero until all are drawn.

    So the probabilities are exactly those of sequential draws. Items of weight zero come once
    no other is left, each with the same probability.
    """
    by_zeros = only_zeros(table, rows)
    mass_at_first = mass_of_all(table, rows, False)
    zeros_at_first = mass_of_all(table, rows, True)
    for i in range(n):
        if not by_zeros and only_zeros(table, rows):
            by_zeros = True
        mass = mass_of_all(table, rows, by_zeros)
        row, left = row_under(table, rows, by_zeros, next_unit(random) * mass)
        x = table[row]
        address = x[A_ZEROS] if by_zeros else x[A_TREE]
        place = find_leaf(x, address, left)
        weight = float64_at(x[A_TREE])[place]
        chosen[i] = slot_at(x, place)
        probability[i] = 1.0 / zeros_at_first if by_zeros else weight / mass_at_first
        work[i] = row
        floats[i] = weight
        set_weight(x, place, 0.0, 0.0)
        items[VISITS] += 2 * x[LEVELS]
    for i in range(n):
        x = table[work[i]]
        weight = floats[i]
        set_weight(x, place_of(x, chosen[i]), weight, 1.0 if weight == 0.0 else 0.0)


@inner("void(ints, table, ints, int64, words, ints, floats, ints, floats)")
def choose_distinct(items, table, rows, n, random, chosen, probability, work, floats):
    """n different items. Those of an order are popped from it; others stay in their index."""
    kind = table[rows[0], KIND]
    if kind == ORDER:
        if rows.size == 1 and table[rows[0], HEAPED] == 0:
            unlink_first(items, table[rows[0]], n, chosen)
        elif rows.size == 1:
            pop_many(items, table[rows[0]], n, chosen, work)
        else:
            for i in range(n):
                chosen[i] = pop_first(items, table, rows)
        probability[:n] = 1.0
    elif kind == UNIFORM:
        distinct_uniform(items, table, rows, n, random, chosen, probability, work)
    else:
        distinct_weighted(items, table, rows, n, random, chosen, probability, work, floats)
