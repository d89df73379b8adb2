"""The indexes of a table: which item comes first, which are there, what they weigh.

An index is one row `x` of the index table (`layout`), of one of three kinds:

order    items in the order of (times_sampled, value, arrival). Those that arrive in order are
         linked in a list; those that come out of order, as after a lease, go to a heap.
uniform  a dense set: removing swaps the last member into the hole.
weight   sum trees over the slots, or over the places of a dense set within a partition.

All are called under the table's lock, after the caller has made room.
"""

from __future__ import annotations

import numpy as np
from numba import carray

from recollect.kernels.compile import inner
from recollect.kernels.layout import (
    A_HEAP,
    A_HEAP_PLACE,
    A_MEMBERS,
    A_NBYTES,
    A_NEXT,
    A_PARAMETERS,
    A_PLACE,
    A_PREVIOUS,
    A_RECORD,
    A_ROWS,
    A_SEQ,
    A_SORT,
    A_TREE,
    A_VALUE,
    A_VERSION,
    A_ZEROS,
    ABSENT,
    ALPHA,
    BY_FLOAT64,
    BY_INT8,
    BY_INT32,
    BY_INT64,
    BY_KEY,
    BY_PRIORITY,
    BY_ROWS,
    BY_TIMES,
    COUNT,
    COUNTER_MASK,
    DESCENDING,
    ENTRY,
    FIRST_ENTRY,
    HEAD,
    HEAPED,
    KEY,
    KIND,
    LEVELED,
    ORDER,
    POSITIVE,
    PRIORITY,
    RATE,
    REFERENCE,
    ROW_BYTES,
    TAIL,
    TIMES,
    UNIFORM,
    VALUE_TYPE,
    VISITS,
    WEIGHT,
)
from recollect.kernels.power import exp_2, power
from recollect.kernels.random import next_unit
from recollect.kernels.raw import (
    bits_of,
    float64_at,
    float64_pointer,
    int8_at,
    int32_at,
    int64_at,
    prefetch,
    prefetch_to_write,
    uint64_at,
)
from recollect.kernels.tree import refresh, set_leaf

LAST = np.int64(0x7FFFFFFFFFFFFFFF)
SIGN = np.uint64(0x8000000000000000)
SMALLEST_WEIGHT = 1e-300
SLOT_BITS = np.int64(0xFFFFFFFF)

AHEAD = 16  # items between a prefetch and its use
ADD, REMOVE, CHANGE = 1, 2, 3  # what happens to items of an index


# -- order --------------------------------------------------------------------------------------
@inner("int64(ints, int64)")
def seq_of(items, slot):
    if items[A_SEQ] != 0:
        return int64_at(items[A_SEQ])[slot]
    return int64_at(items[A_RECORD])[4 * slot + KEY] & COUNTER_MASK


@inner("int64(ints, ints, int64)")
def order_value(items, x, slot):
    """An int64 that sorts as the item's value does; an absent value comes last."""
    kind = x[VALUE_TYPE]
    if kind == BY_INT64:
        value = int64_at(x[A_VALUE])[slot]
        if value == x[ABSENT]:
            return LAST
    elif kind == BY_FLOAT64:
        number = float64_at(x[A_VALUE])[slot] + 0.0
        if np.isnan(number):
            return LAST
        value = bits_of(number)
        value ^= (value >> 63) & LAST
    elif kind == BY_INT32:
        value = np.int64(int32_at(x[A_VALUE])[slot])
        if value == x[ABSENT]:
            return LAST
    elif kind == BY_INT8:
        value = np.int64(int8_at(x[A_VALUE])[slot])
        if value == x[ABSENT]:
            return LAST
    elif kind == BY_KEY:
        value = np.int64(uint64_at(items[A_RECORD])[4 * slot + KEY] ^ SIGN)
    elif kind == BY_PRIORITY:  # never negative, so its bits sort as it does
        value = bits_of(float64_at(items[A_RECORD])[4 * slot + PRIORITY] + 0.0)
    elif kind == BY_TIMES:
        value = np.int64(int32_at(items[A_RECORD])[8 * slot + TIMES])
    elif kind == BY_ROWS:
        value = rows_of(items, slot)
    else:
        value = nbytes_of(items, slot)
    return ~value if x[DESCENDING] else value


@inner("int64(ints, int64)")
def rows_of(items, slot):
    return np.int64(int32_at(items[A_ROWS])[slot]) if items[A_ROWS] != 0 else np.int64(1)


@inner("int64(ints, int64)")
def nbytes_of(items, slot):
    if items[A_NBYTES] != 0:
        return int64_at(items[A_NBYTES])[slot]
    return rows_of(items, slot) * items[ROW_BYTES]


@inner("boolean(ints, ints, int64, int64)")
def comes_before(items, x, a, b):
    items[VISITS] += 1
    if x[LEVELED]:
        times = int32_at(items[A_RECORD])
        if times[8 * a + TIMES] != times[8 * b + TIMES]:
            return times[8 * a + TIMES] < times[8 * b + TIMES]
    if x[A_SORT] != 0:
        sort = int64_at(x[A_SORT])
        if sort[a] != sort[b]:
            return sort[a] < sort[b]
    elif x[DESCENDING]:
        return seq_of(items, a) > seq_of(items, b)
    return seq_of(items, a) < seq_of(items, b)


# The heap has eight children a node. An entry holds all that is compared, so that a step down
# reads the three cache lines in which eight entries lie, and no other memory.
@inner("Tuple((int64, int64, int64))(ints, ints, int64)")
def _heap_entry(items, x, slot):
    """times_sampled (where it counts) and the slot; the value; the arrival."""
    level = np.int64(slot)
    if x[LEVELED]:
        level |= np.int64(int32_at(items[A_RECORD])[8 * slot + TIMES]) << 32
    if x[A_SORT] != 0:
        return level, int64_at(x[A_SORT])[slot], seq_of(items, slot)
    return level, np.int64(0), -seq_of(items, slot) if x[DESCENDING] else seq_of(items, slot)


@inner("boolean(int64, int64, int64, int64, int64, int64)", hot=True)
def _entry_before(level, value, seq, other_level, other_value, other_seq):
    if level >> 32 != other_level >> 32:
        return level >> 32 < other_level >> 32
    if value != other_value:
        return value < other_value
    return seq < other_seq


@inner("void(ints, int64, int64, int64, int64)")
def _heap_put(x, place, level, value, seq):
    entry = int64_at(x[A_HEAP] + ENTRY * (place + FIRST_ENTRY))
    entry[0], entry[1], entry[2] = level, value, seq
    int32_at(x[A_HEAP_PLACE])[level & SLOT_BITS] = place + 1


@inner("int64(ints, ints, int64, int64, int64, int64)")
def _heap_rise(items, x, place, level, value, seq):
    """Put an entry at a place, or above it where it comes before its parents."""
    while place > 0:
        items[VISITS] += 1
        parent = (place - 1) >> 3
        above = int64_at(x[A_HEAP] + ENTRY * (parent + FIRST_ENTRY))
        if not _entry_before(level, value, seq, above[0], above[1], above[2]):
            break
        _heap_put(x, place, above[0], above[1], above[2])
        place = parent
    _heap_put(x, place, level, value, seq)
    return place


@inner("void(ints, ints, int64, int64, int64, int64)")
def _heap_sink(items, x, place, level, value, seq):
    """Put an entry at a place, or below it where its children come before it."""
    count = x[HEAPED]
    while 8 * place + 1 < count:
        items[VISITS] += 1
        first = 8 * place + 1
        below = int64_at(x[A_HEAP] + ENTRY * (first + FIRST_ENTRY))
        best = 0
        for child in range(1, min(np.int64(8), count - first)):
            c, b = 3 * child, 3 * best
            if _entry_before(
                below[c], below[c + 1], below[c + 2], below[b], below[b + 1], below[b + 2]
            ):
                best = child
        b = 3 * best
        if not _entry_before(below[b], below[b + 1], below[b + 2], level, value, seq):
            break
        prefetch_to_write(x[A_HEAP_PLACE] + 4 * (below[b] & SLOT_BITS))
        _heap_put(x, place, below[b], below[b + 1], below[b + 2])
        place = first + best
    _heap_put(x, place, level, value, seq)


@inner("void(ints, ints, int64)")
def _heap_add(items, x, slot):
    x[HEAPED] += 1
    level, value, seq = _heap_entry(items, x, slot)
    _heap_rise(items, x, x[HEAPED] - 1, level, value, seq)


@inner("void(ints, ints, int64)")
def _heap_remove(items, x, slot):
    """Remove an entry; the last one takes its place."""
    places = int32_at(x[A_HEAP_PLACE])
    place = np.int64(places[slot] - 1)
    places[slot] = 0
    x[HEAPED] -= 1
    if place == x[HEAPED]:
        return
    last = int64_at(x[A_HEAP] + ENTRY * (x[HEAPED] + FIRST_ENTRY))
    level, value, seq = last[0], last[1], last[2]
    if _heap_rise(items, x, place, level, value, seq) == place:
        _heap_sink(items, x, place, level, value, seq)


@inner("void(ints, ints, int64)")
def _order_add(items, x, slot):
    following = int32_at(x[A_NEXT])
    previous = int32_at(x[A_PREVIOUS])
    x[COUNT] += 1
    items[VISITS] += 1
    if x[A_SORT] != 0:
        int64_at(x[A_SORT])[slot] = order_value(items, x, slot)
    tail = x[TAIL]
    if tail < 0:
        x[HEAD] = x[TAIL] = slot
        following[slot] = previous[slot] = -1
    elif not comes_before(items, x, slot, tail):
        following[tail] = slot
        previous[slot] = tail
        following[slot] = -1
        x[TAIL] = slot
    elif comes_before(items, x, slot, x[HEAD]):
        previous[x[HEAD]] = slot
        following[slot] = x[HEAD]
        previous[slot] = -1
        x[HEAD] = slot
    else:
        _heap_add(items, x, slot)


@inner("void(ints, ints, ints, int64)")
def _order_add_many(items, x, slots, n):
    """Link the items that continue the list one to the next; add the others one by one."""
    following = int32_at(x[A_NEXT])
    previous = int32_at(x[A_PREVIOUS])
    done = 0
    if x[TAIL] < 0 or x[A_SORT] != 0:
        _order_add(items, x, slots[0])
        done = 1
    tail = x[TAIL]
    if x[A_SORT] == 0:
        first = done
        while done < n and comes_before(items, x, tail, slots[done]):
            slot = slots[done]
            following[tail] = slot
            previous[slot] = tail
            tail = slot
            done += 1
        following[tail] = -1
        x[TAIL] = tail
        x[COUNT] += done - first
    for i in range(done, n):
        _order_add(items, x, slots[i])


@inner("void(ints, ints, int64)")
def _order_remove(items, x, slot):
    x[COUNT] -= 1
    items[VISITS] += 1
    if x[HEAPED] > 0 and int32_at(x[A_HEAP_PLACE])[slot] > 0:
        _heap_remove(items, x, slot)
        return
    following = int32_at(x[A_NEXT])
    previous = int32_at(x[A_PREVIOUS])
    after, before = following[slot], previous[slot]
    if before >= 0:
        following[before] = after
    else:
        x[HEAD] = after
    if after >= 0:
        previous[after] = before
    else:
        x[TAIL] = before


@inner("int64(ints, ints)")
def order_first(items, x):
    """The first item's slot, -1 where the index is empty."""
    head = x[HEAD]
    if x[HEAPED] > 0:
        top = int64_at(x[A_HEAP] + ENTRY * FIRST_ENTRY)
        slot = top[0] & SLOT_BITS
        prefetch(items[A_RECORD] + 32 * slot)
        if head < 0:
            return slot
        level, value, seq = _heap_entry(items, x, head)
        if _entry_before(top[0], top[1], top[2], level, value, seq):
            return slot
    return head


@inner("void(ints, ints, int64, ints)")
def unlink_first(items, x, n, chosen):
    """Remove the first n items of an order whose heap is empty."""
    following = int32_at(x[A_NEXT])
    slot = x[HEAD]
    for i in range(n):
        chosen[i] = slot
        slot = np.int64(following[slot])
    x[HEAD] = slot
    if slot >= 0:
        int32_at(x[A_PREVIOUS])[slot] = -1
    else:
        x[TAIL] = -1
    x[COUNT] -= n
    items[VISITS] += n


# -- dense sets ---------------------------------------------------------------------------------
@inner("int64(ints, int64)")
def _set_add(x, slot):
    place = x[COUNT]
    int32_at(x[A_MEMBERS])[place] = slot
    int32_at(x[A_PLACE])[slot] = place
    x[COUNT] = place + 1
    return place


@inner("int64(ints, int64)")
def _set_remove(x, slot):
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
@inner("void(ints, ints, ints, int64, floats)")
def weights_of(items, x, slots, n, weights):
    """priority ** alpha, halved for every half-life between the reference and the version."""
    parameters = float64_at(x[A_PARAMETERS])
    priorities = float64_at(items[A_RECORD])
    alpha, rate = parameters[ALPHA], parameters[RATE]
    for i in range(n):
        weights[i] = priorities[4 * slots[i] + PRIORITY]
    if alpha != 1.0:
        for i in range(n):
            priority = weights[i]
            weight = power(priority, alpha)
            weights[i] = weight if priority > 0.0 else 0.0
    if rate != 0.0:
        versions = int64_at(items[A_VERSION])
        for i in range(n):
            weights[i] *= exp_2((versions[slots[i]] - parameters[REFERENCE]) * rate)
    for i in range(n):  # a weight that is not zero stays so
        positive = priorities[4 * slots[i] + PRIORITY] > 0.0
        weights[i] = max(weights[i], SMALLEST_WEIGHT) if positive else 0.0


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
def _weight_change(items, x, slots, n, change, work):
    """Write the leaves of items that come, go or weigh something else, then their ancestors.

    Items that only change may be named twice.
    """
    half = work.size >> 1
    tree = float64_at(x[A_TREE])
    touched = 0
    weights = carray(float64_pointer(work.ctypes.data + 8 * half), half)
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
            place = _set_add(x, slot) if change == ADD else np.int64(int32_at(x[A_PLACE])[slot])
        elif change == ADD:
            x[COUNT] += 1
        if change == REMOVE:
            x[POSITIVE] -= tree[place] > 0.0
            if x[A_MEMBERS] != 0:  # the last member fills the hole, and its weight with it
                last = x[COUNT] - 1
                _set_remove(x, slot)
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
        _weight_change(items, x, slots, n, change, work)
    elif x[KIND] == ORDER:
        if change == ADD:
            _order_add_many(items, x, slots, n)
        elif change == REMOVE:
            for i in range(n):
                _order_remove(items, x, slots[i])
    elif x[KIND] == UNIFORM:
        for i in range(n):
            if change == ADD:
                _set_add(x, slots[i])
            elif change == REMOVE:
                _set_remove(x, slots[i])
        items[VISITS] += n


@inner("float64(words, int64, int64, int64)")
def unit_of(random, i, n, stratified):
    return (i + next_unit(random)) / n if stratified else next_unit(random)
