"""The items of a table in memory: keys and slots, what is visible, what each verb does to them.

These are the entry points that the storage calls under the table's lock. Each validates
nothing: the storage has made room in every array, and knows that enough items are there.
"""

from __future__ import annotations

import numpy as np

from recollect.kernels.choice import (
    choose_distinct,
    count_of_all,
    draw_from_all,
    draw_many,
    mass_of_all,
    only_zeros,
)
from recollect.kernels.indexes import (
    ADD,
    CHANGE,
    REMOVE,
    change_index,
    place_of,
    unit_of,
    weight_change,
)
from recollect.kernels.layout import (
    A_DIRECTORY,
    A_HASH,
    A_INSERTED,
    A_LOOSE,
    A_NBYTES,
    A_NEXT,
    A_PARTITION,
    A_PARTITION_LIVE,
    A_PARTITION_SAMPLED,
    A_PARTITION_VISIBLE,
    A_PMAX,
    A_PREVIOUS,
    A_RECORD,
    A_ROWS,
    A_SEGMENT_ROWS,
    A_SEGMENT_SEALED,
    A_SHARED,
    A_SHARED_ROWS,
    A_SHARED_SEALED,
    A_SMALLEST,
    A_TREE,
    A_ZEROS,
    COUNT,
    COUNTER,
    COUNTER_MASK,
    DEAD_LAST,
    DEAD_SEGMENTS,
    DEPENDS,
    DEPENDS_TIMES,
    DIRECTORY_BASE,
    DIRECTORY_BLOCK,
    DIRECTORY_STRIDE,
    DISPLACED,
    FAMILIES,
    FREE,
    FREE_HEAD,
    FREE_TAIL,
    GLOBALS,
    HASH_SIZE,
    HEAD,
    HIDDEN,
    HIDDEN_BYTES,
    KEY,
    KIND,
    LEASED,
    LEVELS,
    LIVE,
    LOCATION,
    MAX_TIMES,
    OFFSETS,
    ORDER,
    ORIGIN,
    PAYLOAD,
    PMAX_LOOSE,
    PMAX_TOP,
    PRIORITY,
    ROWS,
    SAMPLED,
    SLOTS,
    STATE,
    STRETCH_BASE,
    STRETCH_END,
    STRETCH_PLACE,
    TAIL,
    TIMES,
    VISIBLE,
    VISITS,
    WEIGHT,
)
from recollect.kernels.machine.compile import inner, kernel
from recollect.kernels.machine.memory import (
    float64_at,
    int8_at,
    int32_at,
    int64_at,
    prefetch,
    uint64_at,
)
from recollect.kernels.machine.power import power
from recollect.kernels.orders import nbytes_of, rows_of
from recollect.kernels.rows import lay_rows
from recollect.kernels.runs import (
    RUN,
    count_from,
    fill_run,
    linked_in_a_row,
    renew_run,
    times_if_alike,
)
from recollect.kernels.sum_tree import refresh

# rows of the int64 and float64 arrays that sample and take fill
IN_KEY, IN_TIMES, IN_LOCATION, IN_SLOT, IN_LEFT = 0, 1, 2, 3, 4
IN_PROBABILITY, IN_PRIORITY, IN_IMPORTANCE = 0, 1, 2

SAMPLE, TAKE, EVICT = 0, 1, 2  # verbs of choose
SHOW, HIDE, FILL = 4, 5, 8  # verbs of arrange, beside ADD, REMOVE and CHANGE

LOW = np.int64(0xFFFFFFFF)
ASKED = 512  # items whose rows a cache can hold until they are copied
AHEAD = 24  # items between a prefetch and its use


# -- slots and keys -----------------------------------------------------------------------------
@inner("void(ints, int64)")
def _link_free(items, slot):
    """Append a slot to the free list; the links of a free slot stand where its key would."""
    links = int64_at(items[A_RECORD])
    tail = items[FREE_TAIL]
    links[4 * slot] = (tail << 32) | LOW
    if tail >= 0:
        links[4 * tail] = (links[4 * tail] & ~LOW) | slot
    else:
        items[FREE_HEAD] = slot
    items[FREE_TAIL] = slot


@inner("int64(int64)")
def _low(word):
    """The low half of a pair of links, -1 where there is none."""
    half = word & LOW
    return np.int64(-1) if half == LOW else half


@inner("void(ints, int64)")
def _unlink_free(items, slot):
    links = int64_at(items[A_RECORD])
    before, after = links[4 * slot] >> 32, _low(links[4 * slot])
    if before >= 0:
        links[4 * before] = (links[4 * before] & ~LOW) | (after & LOW)
    else:
        items[FREE_HEAD] = after
    if after >= 0:
        links[4 * after] = (before << 32) | (links[4 * after] & LOW)
    else:
        items[FREE_TAIL] = before


@inner("int64(ints, uint64)")
def _hash_of(items, key):
    word = key * np.uint64(0x9E3779B97F4A7C15)
    word ^= word >> np.uint64(32)
    return np.int64(word & np.uint64(items[HASH_SIZE] - 1))


@inner("void(ints, int64)")
def _hash_add(items, slot):
    entries = int32_at(items[A_HASH])
    place = _hash_of(items, uint64_at(items[A_RECORD])[4 * slot])
    while entries[place] != 0:
        place = (place + 1) & (items[HASH_SIZE] - 1)
    entries[place] = slot + 1
    items[DISPLACED] += 1


@inner("void(ints, int64)")
def _hash_remove(items, slot):
    """Remove an entry and move back those that its place had pushed on."""
    entries = int32_at(items[A_HASH])
    keys = uint64_at(items[A_RECORD])
    mask = items[HASH_SIZE] - 1
    hole = _hash_of(items, keys[4 * slot])
    while entries[hole] != slot + 1:
        hole = (hole + 1) & mask
    place = hole
    while True:
        place = (place + 1) & mask
        if entries[place] == 0:
            break
        home = _hash_of(items, keys[4 * (np.int64(entries[place]) - 1)])
        if ((place - home) & mask) >= ((place - hole) & mask):
            entries[hole] = entries[place]
            hole = place
    entries[hole] = 0
    items[DISPLACED] -= 1


@inner("int64(ints, uint64)")
def _home(items, key):
    """The slot that a key takes where it can: keys in a row stand in slots in a row."""
    return np.int64((key & np.uint64(COUNTER_MASK)) % np.uint64(items[SLOTS]))


@inner("int64(ints, uint64)")
def _slot_of(items, key):
    """The slot of a stored key, -1 where its item has gone."""
    keys = uint64_at(items[A_RECORD])
    states = int8_at(items[A_RECORD])
    slot = _home(items, key)
    if states[32 * slot + STATE] != FREE and keys[4 * slot] == key:
        return slot
    if items[DISPLACED] > 0:
        entries = int32_at(items[A_HASH])
        place = _hash_of(items, key)
        while entries[place] != 0:
            slot = np.int64(entries[place] - 1)
            if keys[4 * slot] == key:
                return slot
            place = (place + 1) & (items[HASH_SIZE] - 1)
    return np.int64(-1)


@kernel("void(ints, int64)")
def add_slots(items, first):
    """Make the slots from `first` on free."""
    states = int8_at(items[A_RECORD])
    for slot in range(first, items[SLOTS]):
        states[32 * slot + STATE] = FREE
        _link_free(items, slot)


@kernel("void(ints)")
def rebuild_hash(items):
    """Enter every displaced item into a hash that is empty."""
    states = int8_at(items[A_RECORD])
    keys = uint64_at(items[A_RECORD])
    items[DISPLACED] = 0
    for slot in range(items[SLOTS]):
        if states[32 * slot + STATE] != FREE and _home(items, keys[4 * slot]) != slot:
            _hash_add(items, slot)


@kernel("int64(ints, words, ints)")
def find_slots(items, keys, slots):
    """The slot of each key, -1 for those that have gone; returns how many are there."""
    found = 0
    n = keys.size
    states = int8_at(items[A_RECORD])
    words = uint64_at(items[A_RECORD])
    for i in range(n + AHEAD):
        if i < n:  # ask for a record some turns before it is read
            slots[i] = _home(items, keys[i])
            prefetch(items[A_RECORD] + 32 * slots[i])
            prefetch(items[A_PMAX] + 8 * (slots[i] >> 4))
        if i >= AHEAD:
            slot, key = slots[i - AHEAD], keys[i - AHEAD]
            if states[32 * slot + STATE] == FREE or words[4 * slot] != key:
                slots[i - AHEAD] = _slot_of(items, key)
            found += slots[i - AHEAD] >= 0
    return found


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


# -- the highest priority -----------------------------------------------------------------------
# The maximum of every 16 priorities, of every 16 of these, and so on. Where the highest of 16 goes
# down, reading the other 15 would cost as much as all the rest of an update, and samplers prefer
# just those. So the maximum stays as a bound that is marked loose, and the 16 are read when
# somebody asks for the highest of all and they are in the way. A maximum above the lowest level
# is always that of the 16 below it.
@inner("void(ints, int64, float64, float64)")
def _follow_priority(items, slot, old, new):
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


# -- storing and freeing ------------------------------------------------------------------------
@inner("int64(ints, uint64, int64, int64, int64, int64, float64, int64, float64)")
def place_item(items, key, home, location, rows, size, priority, partition, now):
    """Give a new item a slot, its own or the first free one, and write what every item has."""
    states = int8_at(items[A_RECORD])
    slot = home
    displaced = states[32 * slot + STATE] != FREE
    if displaced:
        slot = items[FREE_HEAD]
    _unlink_free(items, slot)
    uint64_at(items[A_RECORD])[4 * slot] = key
    states[32 * slot + STATE] = VISIBLE
    if displaced:
        _hash_add(items, slot)
    int32_at(items[A_RECORD])[8 * slot + TIMES] = 0
    float64_at(items[A_INSERTED])[slot] = now
    float64_at(items[A_RECORD])[4 * slot + PRIORITY] = priority
    _follow_priority(items, slot, -1.0, priority)
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
def _leave_segment(items, live_rows, sealed, segment, rows):
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
        if _home(items, keys[4 * slot]) != slot:
            _hash_remove(items, slot)
        rows, size = rows_of(items, slot), nbytes_of(items, slot)
        segment = int64_at(items[A_RECORD])[4 * slot + LOCATION] >> 32
        _leave_segment(items, A_SEGMENT_ROWS, A_SEGMENT_SEALED, segment, rows)
        if items[A_SHARED] != 0:
            segment = int64_at(items[A_SHARED])[slot] >> 32
            _leave_segment(items, A_SHARED_ROWS, A_SHARED_SEALED, segment, 1)
        priorities = float64_at(items[A_RECORD])
        old = priorities[4 * slot + PRIORITY]
        priorities[4 * slot + PRIORITY] = -1.0
        _follow_priority(items, slot, old, -1.0)
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
        _link_free(items, slot)


# -- in and out of the indexes ------------------------------------------------------------------
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


@kernel("void(ints, int64, int32[::1])", nogil=True)
def list_free(records, first, free):
    """List the free slots in the order of their links, from the words of a copy of the records."""
    slot = first
    for place in range(free.size):
        free[place] = slot
        slot = records[4 * slot + KEY] & 0xFFFFFFFF


@kernel(
    "void(ints, table, int64, int64, table, ints, floats, float64, words, ints, ints,"
    " int64, table, int64)",
)
def recycle(
    items, table, order, n, stretches, nbytes, priorities, now, keys_out, slots, work,
    stride, columns, list_id,
):  # fmt: skip
    """Let n new items of one row take the slots of the first n of an order.

    The same as evicting those and adding these, for a table whose other indexes do not order:
    a slot stays a member, and only its weight is computed anew. Where there is room behind the
    new keys, the keys of those that left go there.

    A stretch says where rows lie side by side. One with the base of its segment is yet to be
    filled: the rows are copied there, from the arrays in a list.
    """
    x = table[order]
    first = slot = last = x[HEAD]
    begin = np.int64(0)
    for s in range(stretches.shape[0]):
        base, end = stretches[s, STRETCH_BASE], stretches[s, STRETCH_END]
        if base != 0:
            row = stretches[s, STRETCH_PLACE] & LOW
            lay_rows(
                base, stride, row, begin, end, columns, list_id,
                items[A_RECORD] + 32 * first, items[A_INSERTED] + 8 * first, x[A_NEXT] + 4 * first,
            )  # fmt: skip
        begin = end
    following = int32_at(x[A_NEXT])
    previous = int32_at(x[A_PREVIOUS])
    records = int64_at(items[A_RECORD])
    numbers = float64_at(items[A_RECORD])
    times = int32_at(items[A_RECORD])
    inserted = float64_at(items[A_INSERTED])
    sizes = int64_at(items[A_NBYTES])
    new_keys, new_slots = np.int64(keys_out.ctypes.data), np.int64(slots.ctypes.data)
    key = np.uint64(items[ORIGIN]) | np.uint64(items[COUNTER])
    all_slots, differ, hashed = items[SLOTS], items[A_NBYTES] != 0, items[DISPLACED] > 0
    home = items[COUNTER] % all_slots
    stretch = place = stop = np.int64(0)
    priority, tell = priorities[0], keys_out.size > n
    left = records[4 * slot + LOCATION] >> 32  # the segment of the last rows that left, how many
    leaving = sampled = i = run = np.int64(0)
    plain = priorities.size == 1 and not (tell or differ or hashed)
    while i < n:
        if i == stop:
            place, stop = stretches[stretch, STRETCH_PLACE], stretches[stretch, STRETCH_END]
            stretch += 1
        record = 4 * slot
        if plain and run <= i <= stop - RUN and home == slot and slot + RUN < all_slots:
            run_of_records = items[A_RECORD] + 32 * slot
            often = np.int64(times_if_alike(run_of_records, left, priority))
            if often >= 0 and linked_in_a_row(x[A_NEXT], slot):
                renew_run(run_of_records, np.int64(key), place, priority)
                fill_run(items[A_INSERTED] + 8 * slot, now)
                count_from(new_keys + 8 * i, np.int64(key))
                count_from(new_slots + 8 * i, slot)
                sampled += often
                i, leaving = i + RUN, leaving + RUN
                key, place, home = key + np.uint64(RUN), place + RUN, home + RUN
                last = slot + RUN - 1
                slot = np.int64(following[last])
                continue
            run = i + RUN  # where the next one may begin
        if hashed and _home(items, np.uint64(records[record + KEY])) != slot:
            _hash_remove(items, slot)
        segment = records[record + LOCATION] >> 32
        if segment != left:
            if leaving > 0:
                _leave_segment(items, A_SEGMENT_ROWS, A_SEGMENT_SEALED, left, leaving)
            left, leaving = segment, np.int64(0)
        leaving += 1
        if tell:
            keys_out[n + i] = np.uint64(records[record + KEY])
        records[record + KEY] = np.int64(key)
        if home != slot:
            _hash_add(items, slot)
            hashed, plain = True, False
        home = home + 1 if home + 1 < all_slots else np.int64(0)
        if differ:  # else every row has the same size
            size = nbytes[i] if nbytes.size > 1 else nbytes[0]
            items[PAYLOAD] += size - sizes[slot]
            sizes[slot] = size
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
            _follow_priority(items, slot, old, priority)
        keys_out[i] = key
        key += np.uint64(1)
        slots[i] = last = slot
        slot = np.int64(following[slot])
        i += 1
    _leave_segment(items, A_SEGMENT_ROWS, A_SEGMENT_SEALED, left, leaving)
    items[COUNTER] += n
    items[SAMPLED] -= sampled
    following[x[TAIL]] = first  # the slots that were first follow the last, linked as they are
    previous[first] = x[TAIL]
    following[last] = -1
    x[TAIL] = last
    x[HEAD] = slot
    previous[slot] = -1
    items[VISITS] += n
    for row in range(items[GLOBALS]):  # beside the order, there are sets and weights alone
        if table[row, KIND] == WEIGHT:
            weight_change(items, table[row], slots, n, CHANGE, work)


# -- sampling -----------------------------------------------------------------------------------
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
        slot = ints[IN_SLOT, i]
        ints[IN_KEY, i] = records[4 * slot + KEY]
        location = records[4 * slot + LOCATION]
        ints[IN_LOCATION, i] = location
        if asked:
            entry = DIRECTORY_BLOCK * (location >> 32)
            stride = directory[entry + DIRECTORY_STRIDE]
            row = directory[entry + DIRECTORY_BASE] + (location & LOW) * stride
            for line in range(0, min(stride + 63, np.int64(256)), 64):
                prefetch(row + line)
        times[8 * slot + TIMES] += more
        floats[IN_PRIORITY, i] = numbers[4 * slot + PRIORITY]
    for i in range(n):  # not before: an item may be there twice
        ints[IN_TIMES, i] = times[8 * ints[IN_SLOT, i] + TIMES]


@inner("void(table, ints, int64, float64, int64, int64, float64, float_table)")
def _importance(table, rows, n, beta, normalize, size, smallest, floats):
    """(N · P) ** -beta, divided by the largest of the batch (1), of the table (2), or not (0)."""
    probability = floats[IN_PROBABILITY]
    weights = floats[IN_IMPORTANCE]
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
            before the next draw. Returns how many: they stand in ints[IN_LEFT].
    TAKE    n different items, counted and withdrawn.
    EVICT   the same, not counted.

    What is withdrawn is in no index any more; the caller leases or releases it.
    """
    chosen = ints[IN_SLOT]
    probability = floats[IN_PROBABILITY]
    size = count_of_all(table, rows)
    smallest = _smallest_probability(table, rows)
    ordered = table[rows[0], KIND] == ORDER
    popped = rows[0] if ordered else np.int64(-1)
    temporary = rows[0] == table.shape[0] - 1
    limit = items[MAX_TIMES] if verb == SAMPLE else np.int64(0)
    one_by_one = verb == SAMPLE and replace and not ordered and (limit > 0 or rows.size > 1)
    left = n if verb != SAMPLE else 0
    if one_by_one:
        pass
    elif ordered or not replace or verb != SAMPLE:
        choose_distinct(items, table, rows, n, random, chosen, probability, work, floats[1])
    else:
        draw_many(items, table[rows[0]], n, stratified, random, chosen, probability)

    times = int32_at(items[A_RECORD])
    partitions = int32_at(items[A_PARTITION])
    dependents = verb == SAMPLE and _depends_on_times(items, table)
    # all draws of a call go by the weights that it began with, also where it changes them
    later = one_by_one and table[rows[0], DEPENDS] & DEPENDS_TIMES != 0
    plain = verb == SAMPLE and not (one_by_one or dependents or limit > 0)
    plain = plain and items[A_PARTITION] == 0
    if plain:  # the common case, where nothing but the count changes
        items[SAMPLED] += n
    for i in range(n if verb == SAMPLE and not plain else 0):
        if one_by_one:
            unit = unit_of(random, i, n, stratified)
            chosen[i], probability[i] = draw_from_all(items, table, rows, unit)
        slot = chosen[i]
        one = chosen[i:]
        for adding in range(2 if dependents else 1):
            if dependents:
                change = ADD if adding else REMOVE
                skip = np.int64(-1) if adding else popped
                if later:
                    skip = rows[0]
                each_index(items, table, one, 1, change, DEPENDS_TIMES, skip, work)
            if not adding:
                times[8 * slot + TIMES] += 1
        items[SAMPLED] += 1
        if items[A_PARTITION] != 0:
            int64_at(items[A_PARTITION_SAMPLED])[partitions[slot]] += 1
        if limit > 0 and times[8 * slot + TIMES] >= limit:
            ints[IN_LEFT, left] = slot
            left += 1
            count_visible(items, one, 1, -1)
            set_state(items, one, 1, LEASED)
            each_index(items, table, one, 1, REMOVE, 0, -1, work)
            if temporary and one_by_one:
                change_index(items, table[rows[0]], one, 1, REMOVE, work)
    for i in range(n if later else 0):
        if int8_at(items[A_RECORD])[32 * chosen[i] + STATE] == VISIBLE:
            each_index(items, table, chosen[i:], 1, CHANGE, DEPENDS_TIMES, -1, work)
    if verb != SAMPLE:
        count_visible(items, chosen, n, -1)
        set_state(items, chosen, n, LEASED)
        each_index(items, table, chosen, n, REMOVE, 0, popped, work)
    if verb != EVICT:
        _importance(table, rows, n, beta, normalize, size, smallest, floats)
    # only now: orders compare by what is counted here
    _fill(items, ints, floats, n, np.int64(plain or verb == TAKE))
    return left


@kernel("void(ints)", indexes=True)
def rebuild_trees(x):
    """Compute every parent anew, after the leaves moved or changed all at once."""
    everything = np.int64(1) << 60
    refresh(x, x[A_TREE], x, everything)
    if x[A_ZEROS] != 0:
        refresh(x, x[A_ZEROS], x, everything)


# -- priorities ---------------------------------------------------------------------------------
@inner("boolean(ints, int64, float64)", hot=True)
def _write_priority(items, slot, value):
    """Write one; returns whether the item is visible."""
    priorities = float64_at(items[A_RECORD])
    old = priorities[4 * slot + PRIORITY]
    priorities[4 * slot + PRIORITY] = value
    if items[A_PMAX] != 0 and max(old, value) >= float64_at(items[A_PMAX])[slot >> 4]:
        _follow_priority(items, slot, old, value)
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
            slots[i] = _home(items, keys[i])
            prefetch(records + 32 * slots[i])
            prefetch(items[A_PMAX] + 8 * (slots[i] >> 4))
        at = i - AHEAD
        if at >= 0:
            slot = slots[at]
            if states[32 * slot + STATE] == FREE or words[4 * slot] != keys[at]:
                slot = _slot_of(items, keys[at])
            found[at] = slot >= 0
            if slot >= 0 and _write_priority(
                items, slot, values[at] if values.size > 1 else values[0]
            ):
                slots[visible] = slot
                visible += 1
    return visible


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
