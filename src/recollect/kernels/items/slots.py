"""Keys and slots: where an item stands, and which slots are free.

A key's own slot is its counter modulo the slots, so that keys in a row stand in slots in a row. An
item whose own slot is taken gets the first free one, and is entered in a hash.
"""

from __future__ import annotations

import numpy as np

from recollect.kernels.layout import (
    A_HASH,
    A_PMAX,
    A_RECORD,
    COUNTER_MASK,
    DISPLACED,
    FREE,
    FREE_HEAD,
    FREE_TAIL,
    HASH_SIZE,
    KEY,
    LOW,
    SLOTS,
    STATE,
)
from recollect.kernels.machine.compile import inner, kernel
from recollect.kernels.machine.memory import int8_at, int32_at, int64_at, prefetch, uint64_at

AHEAD = 24  # items between a prefetch and its use


@inner("void(ints, int64)")
def link_free(items, slot):
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
def unlink_free(items, slot):
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
def hash_add(items, slot):
    entries = int32_at(items[A_HASH])
    place = _hash_of(items, uint64_at(items[A_RECORD])[4 * slot])
    while entries[place] != 0:
        place = (place + 1) & (items[HASH_SIZE] - 1)
    entries[place] = slot + 1
    items[DISPLACED] += 1


@inner("void(ints, int64)")
def hash_remove(items, slot):
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
def home_of(items, key):
    """The slot that a key takes where it can: keys in a row stand in slots in a row."""
    return np.int64((key & np.uint64(COUNTER_MASK)) % np.uint64(items[SLOTS]))


@inner("int64(ints, uint64)")
def slot_of_key(items, key):
    """The slot of a stored key, -1 where its item has gone."""
    keys = uint64_at(items[A_RECORD])
    states = int8_at(items[A_RECORD])
    slot = home_of(items, key)
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
        link_free(items, slot)


@kernel("void(ints)")
def rebuild_hash(items):
    """Enter every displaced item into a hash that is empty."""
    states = int8_at(items[A_RECORD])
    keys = uint64_at(items[A_RECORD])
    items[DISPLACED] = 0
    for slot in range(items[SLOTS]):
        if states[32 * slot + STATE] != FREE and home_of(items, keys[4 * slot]) != slot:
            hash_add(items, slot)


@kernel("int64(ints, words, ints)")
def find_slots(items, keys, slots):
    """The slot of each key, -1 for those that have gone; returns how many are there."""
    found = 0
    n = keys.size
    states = int8_at(items[A_RECORD])
    words = uint64_at(items[A_RECORD])
    for i in range(n + AHEAD):
        if i < n:  # ask for a record some turns before it is read
            slots[i] = home_of(items, keys[i])
            prefetch(items[A_RECORD] + 32 * slots[i])
            prefetch(items[A_PMAX] + 8 * (slots[i] >> 4))
        if i >= AHEAD:
            slot, key = slots[i - AHEAD], keys[i - AHEAD]
            if states[32 * slot + STATE] == FREE or words[4 * slot] != key:
                slots[i - AHEAD] = slot_of_key(items, key)
            found += slots[i - AHEAD] >= 0
    return found


@kernel("void(ints, int64, int32[::1])", nogil=True)
def list_free(records, first, free):
    """List the free slots in the order of their links, from the words of a copy of the records."""
    slot = first
    for place in range(free.size):
        free[place] = slot
        slot = records[4 * slot + KEY] & 0xFFFFFFFF
