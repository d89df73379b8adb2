"""The order of items: which one comes first.

Items go by (times_sampled, value, arrival). Those that arrive in order are linked in a list; those
that come out of order, as after a lease, go to a heap, whose entries hold all that is compared.

An order is one row `x` of the index table (`layout`). All is called under the table's lock, after
the caller has made room.
"""

from __future__ import annotations

import numpy as np

from recollect.kernels.layout import (
    A_HEAP,
    A_HEAP_PLACE,
    A_NBYTES,
    A_NEXT,
    A_PARTITION,
    A_PREVIOUS,
    A_RECORD,
    A_ROWS,
    A_SEQ,
    A_SORT,
    A_VALUE,
    A_VERSION,
    ABSENT,
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
    LEVELED,
    PRIORITY,
    ROW_BYTES,
    TAIL,
    TIMES,
    VALUE_TYPE,
    VISITS,
)
from recollect.kernels.machine.compile import inner
from recollect.kernels.machine.memory import (
    float64_at,
    int8_at,
    int32_at,
    int64_at,
    prefetch,
    uint64_at,
)
from recollect.kernels.machine.vectors import bits_of, entry_before, first_entry

LAST = np.int64(0x7FFFFFFFFFFFFFFF)
SIGN = np.uint64(0x8000000000000000)
SLOT_BITS = np.int64(0xFFFFFFFF)
SIGN_BIT = np.int64(-0x8000000000000000)
OUTSIDE = np.int64(-1)  # the place of an entry that is in no heap, or not yet
BOTTOM = np.int64(0x7FFFFFFFFFFFFFFF)  # marks a hole at the bottom of a heap


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
# reads the three cache lines in which eight entries lie, and no other memory. Its words, each
# compared as a number without sign: times_sampled (where it counts) above the slot, of which only
# the former is compared; the value; the arrival.
@inner("int64(int64, int64)", hot=True)
def _entry(heap, place):
    """The address of the entry at a place."""
    return heap + ENTRY * (place + FIRST_ENTRY)


@inner("void(ints, ints, int64, int64)")
def _write_entry(items, x, slot, place):
    """Write an item's entry to a place; the item is not there yet."""
    entry = int64_at(_entry(x[A_HEAP], place))
    entry[0] = slot
    if x[LEVELED]:
        entry[0] |= np.int64(int32_at(items[A_RECORD])[8 * slot + TIMES]) << 32
    seq = seq_of(items, slot)
    if x[A_SORT] != 0:
        entry[1], entry[2] = int64_at(x[A_SORT])[slot] ^ SIGN_BIT, seq
    else:
        entry[1], entry[2] = 0, ~seq if x[DESCENDING] else seq


@inner("void(ints, int64, int64)", hot=True)
def _move_entry(x, place, target):
    source, entry = int64_at(_entry(x[A_HEAP], place)), int64_at(_entry(x[A_HEAP], target))
    entry[0], entry[1], entry[2] = source[0], source[1], source[2]
    int32_at(x[A_HEAP_PLACE])[source[0] & SLOT_BITS] = target + 1


@inner("boolean(int64, int64, int64)", hot=True)
def _place_before(heap, place, other):
    return entry_before(_entry(heap, place), _entry(heap, other))


@inner("int64(int64, int64, int64)", hot=True)
def _first_child(heap, count, place):
    """The place of the first among a place's children, of which there is at least one."""
    child = _entry(heap, 8 * place + 1)
    first = child
    if 8 * place + 8 < count:  # all eight, as nearly always: in pairs, independent of each other
        first = first_entry(
            first_entry(
                first_entry(child, child + ENTRY),
                first_entry(child + 2 * ENTRY, child + 3 * ENTRY),
            ),
            first_entry(
                first_entry(child + 4 * ENTRY, child + 5 * ENTRY),
                first_entry(child + 6 * ENTRY, child + 7 * ENTRY),
            ),
        )
    else:
        while child < _entry(heap, count - 1):
            child += ENTRY
            first = first_entry(first, child)
    return np.int64(np.uint64(first - heap) // np.uint64(ENTRY)) - FIRST_ENTRY


@inner("int64(ints, ints, int64, int64)")
def _heap_rise(items, x, place, moved):
    """Move an entry to a place, or above it where it comes before its parents."""
    while place > 0:
        items[VISITS] += 1
        parent = (place - 1) >> 3
        if not _place_before(x[A_HEAP], moved, parent):
            break
        _move_entry(x, parent, place)
        place = parent
    _move_entry(x, moved, place)
    return place


@inner("void(ints, ints, int64, int64)")
def _heap_sink(items, x, place, moved):
    """Move an entry to a place, or below it where its children come before it."""
    while 8 * place + 1 < x[HEAPED]:
        items[VISITS] += 1
        child = _first_child(x[A_HEAP], x[HEAPED], place)
        if not _place_before(x[A_HEAP], child, moved):
            break
        _move_entry(x, child, place)
        place = child
    _move_entry(x, moved, place)


@inner("void(ints, ints, int64)")
def _heap_add(items, x, slot):
    x[HEAPED] += 1
    _write_entry(items, x, slot, OUTSIDE)
    _heap_rise(items, x, x[HEAPED] - 1, OUTSIDE)


@inner("void(ints, ints, int64)")
def _heap_remove(items, x, slot):
    """Remove an entry; the last one takes its place."""
    places = int32_at(x[A_HEAP_PLACE])
    place = np.int64(places[slot] - 1)
    places[slot] = 0
    x[HEAPED] -= 1
    last = x[HEAPED]
    if place != last and _heap_rise(items, x, place, last) == place:
        _heap_sink(items, x, place, last)


@inner("void(ints, ints, int64)")
def order_add(items, x, slot):
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
def order_add_many(items, x, slots, n):
    """Link the items that continue the list one to the next; add the others one by one."""
    following = int32_at(x[A_NEXT])
    previous = int32_at(x[A_PREVIOUS])
    done = 0
    if x[TAIL] < 0 or x[A_SORT] != 0:
        order_add(items, x, slots[0])
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
        order_add(items, x, slots[i])


@inner("void(ints, ints, int64)")
def order_remove(items, x, slot):
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
        slot = int64_at(_entry(x[A_HEAP], 0))[0] & SLOT_BITS
        prefetch(items[A_RECORD] + 32 * slot)
        if head < 0:
            return slot
        _write_entry(items, x, head, OUTSIDE)
        if _place_before(x[A_HEAP], 0, OUTSIDE):
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


# Popping the first entry of a heap leaves a hole, which sinks to the bottom: its first child takes
# its place, and so on. Each step waits for memory. So while items are popped, a hole is lowered
# only where it is in the way of the next item, near the top. Then all holes sink side by side:
# while memory brings the children of one, others move. Last, entries from the end fill the holes.
#
# The first word of hole i is ~i, and BOTTOM once it is at the bottom; by either it comes after all
# entries. Among siblings at most one is a hole that is not at the bottom.
@inner("int64(int64, int64, int64)", hot=True)
def _hole_below(heap, count, place):
    """The hole among the children of a place, -1 where there is none."""
    for child in range(8 * place + 1, min(8 * place + 9, count)):
        if int64_at(_entry(heap, child))[0] < 0:
            return child
    return np.int64(-1)


@inner("int64(ints, int64, int64)", hot=True)
def _lower_hole(x, hole, mark):
    """Let the first child take a hole's place; no hole is among the children but at the bottom."""
    heap, count = x[A_HEAP], x[HEAPED]
    if 8 * hole + 1 < count:
        child = _first_child(heap, count, hole)
        entry = int64_at(_entry(heap, child))
        if entry[0] != BOTTOM:
            if 8 * child + 1 < count:
                below = _entry(heap, 8 * child + 1)
                prefetch(below)
                prefetch(below + 64)
                prefetch(below + 128)
            _move_entry(x, child, hole)
            entry[0] = mark
            return child
    int64_at(_entry(heap, hole))[0] = BOTTOM
    return hole


@inner("void(ints, ints, ints, int64)")
def _pop_top(items, x, holes, popped):
    """Make a hole of the top, and lower it and those in its way by a level."""
    heap, count = x[A_HEAP], x[HEAPED]
    int64_at(_entry(heap, 0))[0] = ~popped
    holes[popped] = 0
    deepest, below = np.int64(0), np.int64(0)
    while below >= 0:
        deepest = below
        below = _hole_below(heap, count, deepest)
    while deepest >= 0:
        items[VISITS] += 1
        mark = int64_at(_entry(heap, deepest))[0]
        holes[~mark] = _lower_hole(x, deepest, mark)
        deepest = (deepest - 1) >> 3


@inner("void(ints, ints, ints, int64)")
def _lower_holes(items, x, holes, n):
    """Lower all holes to the bottom, by a level in each round. Holes further down are older and
    come first, so that a hole finds the entries below it where they stay.
    """
    sinking = n
    while sinking > 0:
        items[VISITS] += sinking
        sinking = 0
        for i in range(n):
            mark = int64_at(_entry(x[A_HEAP], holes[i]))[0]
            if mark != BOTTOM:
                holes[i] = _lower_hole(x, holes[i], mark)
                sinking += 1


@inner("void(ints, ints, ints, int64)")
def _fill_holes(items, x, holes, n):
    """Move the last entries to the holes; a hole above another comes after it in `holes`."""
    x[HEAPED] -= n
    last = x[HEAPED]
    for i in range(n - 1, -1, -1):
        if holes[i] < x[HEAPED]:
            while int64_at(_entry(x[A_HEAP], last))[0] == BOTTOM:
                last += 1
            _heap_rise(items, x, holes[i], last)
            last += 1


@inner("void(ints, ints, int64, ints, ints)")
def pop_many(items, x, n, chosen, work):
    """Remove the first n items of an order, from its list and its heap."""
    following = int32_at(x[A_NEXT])
    places = int32_at(x[A_HEAP_PLACE])
    top = int64_at(_entry(x[A_HEAP], 0))
    head = x[HEAD]
    if head >= 0:
        _write_entry(items, x, head, OUTSIDE)
    popped = np.int64(0)
    for i in range(n):
        if head < 0 or _place_before(x[A_HEAP], 0, OUTSIDE):
            slot = top[0] & SLOT_BITS
            places[slot] = 0
            _pop_top(items, x, work, popped)
            popped += 1
        else:
            slot = head
            head = np.int64(following[head])
            if head >= 0:
                _write_entry(items, x, head, OUTSIDE)
        prefetch(items[A_RECORD] + 32 * slot)
        if items[A_PARTITION] != 0:
            prefetch(items[A_PARTITION] + 4 * slot)
        if items[A_VERSION] != 0:
            prefetch(items[A_VERSION] + 8 * slot)
        chosen[i] = slot
    _lower_holes(items, x, work, popped)
    _fill_holes(items, x, work, popped)
    x[HEAD] = head
    if head >= 0:
        int32_at(x[A_PREVIOUS])[head] = -1
    else:
        x[TAIL] = -1
    x[COUNT] -= n
    items[VISITS] += n
