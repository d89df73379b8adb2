"""Indexes of legal starts: which steps may begin a transition, a sequence or an episode.

Starts become legal in the order of rows, so an index has a cursor per environment: every row
before it is decided. A new row moves the cursor on, and a row that leaves takes its start with
it; both cost O(1) per row, amortized. The starts stand in a dense set (uniform) or as leaves of a
sum tree over slots (weights). `judge` alone says what is legal.
"""

from __future__ import annotations

import numpy as np

from recollect.kernels.index_draws import distinct_uniform, distinct_weighted, draw_many
from recollect.kernels.indexes import add_member, remove_member, set_weight
from recollect.kernels.layout import (
    A_MEMBERS,
    A_PARAMETERS,
    A_PLACE,
    A_TREE,
    A_ZEROS,
    ALPHA,
    COUNT,
    KIND,
    LEVELS,
    UNIFORM,
)
from recollect.kernels.machine.compile import inner, kernel
from recollect.kernels.machine.memory import float64_at, int32_at, int64_at
from recollect.kernels.machine.power import power
from recollect.kernels.steps_episodes import (
    episode_of,
    flags_of,
    row_at,
    settled,
    slot_of,
    steps_of,
)
from recollect.kernels.steps_layout import (
    A_AHEAD,
    A_CURSOR,
    A_NEWEST,
    A_OFFSET,
    A_OLDEST,
    A_PMAX,
    A_PRIORITY,
    A_SEEN,
    BURN_IN,
    ENVS,
    EPISODE,
    FINAL,
    FIRST,
    GAP,
    MODE,
    PAD,
    PMAX_TOP,
    RESET,
    REWARD_NEXT,
    RING,
    ROW_BITS,
    ROW_MASK,
    SPAN,
    STACK,
    STOP,
    TRANSITION,
    VISITS,
    WINDOW,
)

SMALLEST_WEIGHT = 1e-300
ILLEGAL, LEGAL, NOT_YET = 0, 1, 2


# -- what is legal --------------------------------------------------------------------------------
@inner("boolean(ints, int64, int64, int64)")
def lacks_history(rings, env, row, oldest):
    """Whether frames of a row's stack are missing, if `oldest` is the first stored row."""
    if rings[STACK] <= 1:
        return False
    offset = int32_at(rings[A_OFFSET])[slot_of(rings, env, row)]
    if row - offset < oldest:
        return row - oldest < rings[STACK] - 1
    return offset < rings[STACK] - 1 and (flags_of(rings, env, row - offset) & FIRST) == 0


@inner("int64(ints, ints, int64, int64)")
def judge(rings, x, env, row):
    """Whether a settled row is a legal start; once it is decided, only leaving ends it."""
    rings[VISITS] += 1
    flags = flags_of(rings, env, row)
    if flags & FINAL or lacks_history(rings, env, row, int64_at(rings[A_OLDEST])[env]):
        return ILLEGAL
    mode = x[MODE]
    if mode == RESET:
        ahead = int64_at(x[A_AHEAD])[env] >= x[SPAN]
        return LEGAL if ahead else NOT_YET
    if mode == EPISODE and not flags & FIRST:
        return ILLEGAL
    first, stop, _ = episode_of(rings, env, row)
    if mode == TRANSITION and row + x[SPAN] < stop:
        return LEGAL
    end, over, terminated = steps_of(rings, env, first, stop)
    if mode in (STOP, PAD) and row + x[SPAN] <= end:
        return LEGAL
    if not over:
        return NOT_YET
    if mode == TRANSITION:  # what is left of the episode, if there is an observation after it
        return LEGAL if terminated or end < stop else ILLEGAL
    if mode == PAD:
        steps = (end - row + x[GAP] - 1) // x[GAP]
        return LEGAL if steps > x[BURN_IN] else ILLEGAL
    return LEGAL if mode == EPISODE and end > row else ILLEGAL


# -- members --------------------------------------------------------------------------------------
@inner("boolean(ints, int64)")
def is_start(x, slot):
    if x[KIND] == UNIFORM:
        place = int32_at(x[A_PLACE])[slot]
        return place < x[COUNT] and int32_at(x[A_MEMBERS])[place] == slot
    if float64_at(x[A_TREE])[slot] > 0.0:
        return True
    return x[A_ZEROS] != 0 and float64_at(x[A_ZEROS])[slot] > 0.0


@inner("float64(ints, float64)")
def weight_of(x, priority):
    if priority <= 0.0:
        return 0.0
    alpha = float64_at(x[A_PARAMETERS])[ALPHA]
    weight = priority if alpha == 1.0 else power(priority, alpha)
    return max(weight, SMALLEST_WEIGHT)


@inner("void(ints, ints, int64)")
def weigh(rings, x, slot):
    """Write the leaf of a start."""
    rings[VISITS] += x[LEVELS]
    weight = weight_of(x, float64_at(rings[A_PRIORITY])[slot])
    set_weight(x, slot, weight, 1.0 if weight == 0.0 else 0.0)


@inner("void(ints, ints, int64)")
def _add(rings, x, slot):
    if x[KIND] == UNIFORM:
        add_member(x, slot)
    else:
        weigh(rings, x, slot)
        x[COUNT] += 1


@inner("void(ints, ints, int64)")
def _remove(rings, x, slot):
    rings[VISITS] += 1
    if not is_start(x, slot):
        return
    if x[KIND] == UNIFORM:
        remove_member(x, slot)
    else:
        rings[VISITS] += x[LEVELS]
        set_weight(x, slot, 0.0, 0.0)
        x[COUNT] -= 1


# -- following the ring ---------------------------------------------------------------------------
@inner("void(ints, ints, int64)")
def advance(rings, x, env):
    """Decide every row that can be decided now."""
    cursors = int64_at(x[A_CURSOR])
    ahead = int64_at(x[A_AHEAD])
    end = settled(rings, env)
    cursor = cursors[env]
    if x[MODE] == RESET:
        seen = int64_at(x[A_SEEN])
        for row in range(seen[env], end):
            ahead[env] += (flags_of(rings, env, row) & FINAL) == 0
        seen[env] = max(seen[env], end)
    while cursor < end:
        verdict = judge(rings, x, env, cursor)
        if verdict == NOT_YET:
            break
        if verdict == LEGAL:
            _add(rings, x, slot_of(rings, env, cursor))
        if x[MODE] == RESET and not flags_of(rings, env, cursor) & FINAL:
            ahead[env] -= 1
        cursor += 1
    cursors[env] = cursor


@inner("void(ints, ints, int64, int64)")
def leave(rings, x, env, row):
    """A row leaves what an index covers: the ring, or the window of the newest rows."""
    cursors = int64_at(x[A_CURSOR])
    if row < cursors[env]:
        _remove(rings, x, slot_of(rings, env, row))
        return
    cursors[env] = row + 1
    if x[MODE] == RESET:
        seen = int64_at(x[A_SEEN])
        if row < seen[env]:
            int64_at(x[A_AHEAD])[env] -= (flags_of(rings, env, row) & FINAL) == 0
        else:
            seen[env] = row + 1


@inner("void(ints, table, int64)")
def before_overwriting(rings, table, env):
    """Remove the starts that go with the oldest row, which is about to leave: its own, and those
    that lose a frame of their stack.
    """
    row = int64_at(rings[A_OLDEST])[env]
    newest = int64_at(rings[A_NEWEST])[env]
    for i in range(table.shape[0]):
        x = table[i]
        if row >= newest - x[WINDOW]:
            leave(rings, x, env, row)
        for other in range(row + 1, min(row + rings[STACK], int64_at(x[A_CURSOR])[env])):
            if lacks_history(rings, env, other, row + 1):
                _remove(rings, x, slot_of(rings, env, other))


@inner("void(ints, table, int64)")
def after_appending(rings, table, env):
    """A row was added: the oldest one of each window that is smaller than the ring leaves it."""
    row = int64_at(rings[A_NEWEST])[env] - 1
    for i in range(table.shape[0]):
        x = table[i]
        if x[WINDOW] < rings[RING] and row - x[WINDOW] >= int64_at(rings[A_OLDEST])[env]:
            leave(rings, x, env, row - x[WINDOW])


@kernel("void(ints, ints)")
def build(rings, x):
    """Fill an empty index by one scan."""
    for env in range(rings[ENVS]):
        low = int64_at(rings[A_NEWEST])[env] - x[WINDOW]
        low = max(low, int64_at(rings[A_OLDEST])[env])
        int64_at(x[A_CURSOR])[env] = low
        int64_at(x[A_SEEN])[env] = low
        int64_at(x[A_AHEAD])[env] = 0
        advance(rings, x, env)


@kernel("int64(ints, ints, ints)")
def list_starts(rings, x, slots):
    """All starts of an index, by environment and row; returns how many."""
    count = 0
    for env in range(rings[ENVS]):
        low = int64_at(rings[A_NEWEST])[env] - x[WINDOW]
        low = max(low, int64_at(rings[A_OLDEST])[env])
        for row in range(low, int64_at(x[A_CURSOR])[env]):
            slot = slot_of(rings, env, row)
            if is_start(x, slot):
                slots[count] = slot
                count += 1
    return count


# -- drawing --------------------------------------------------------------------------------------
@kernel("void(ints, table, int64, int64, int64, int64, int64, words, ints, floats, ints, floats)")
def draw(
    rings, table, number, done, n, replace, stratified, random, slots, probability, work, held
):
    """Draw slots[done:n] from index `number`; without replacement, also none of slots[:done]."""
    x = table[number]
    rest = n - done
    if replace:
        draw_many(rings, x, rest, stratified, random, slots[done:], probability[done:])
        return
    kept = 0
    for i in range(done):  # take these out while the others are drawn
        if is_start(x, slots[i]):
            held[kept] = 0.0
            if x[KIND] == UNIFORM:
                remove_member(x, slots[i])
            else:
                held[kept] = float64_at(x[A_TREE])[slots[i]]
                set_weight(x, slots[i], 0.0, 0.0)
                x[COUNT] -= 1
            work[kept] = slots[i]
            kept += 1
    rows = np.empty(1, np.int64)
    rows[0] = number
    chosen, chances, spare = slots[done:], probability[done:], work[kept:]
    if x[KIND] == UNIFORM:
        distinct_uniform(rings, table, rows, rest, random, chosen, chances, spare)
    else:
        distinct_weighted(rings, table, rows, rest, random, chosen, chances, spare, held[kept:])
    for i in range(kept):
        if x[KIND] == UNIFORM:
            add_member(x, work[i])
        else:
            set_weight(x, work[i], held[i], 1.0 if held[i] == 0.0 else 0.0)
            x[COUNT] += 1


# -- priorities -----------------------------------------------------------------------------------
@inner("void(ints, int64, float64)")
def set_priority(rings, slot, value):
    """Write a priority, and the maxima above it as far as they change."""
    here = float64_at(rings[A_PRIORITY])
    here[slot] = value
    maxima = float64_at(rings[A_PMAX])
    offset = np.int64(0)
    width = (rings[RING] * rings[ENVS] + 15) >> 4
    node = slot >> 4
    while True:
        highest = -1.0
        for child in range(16 * node, 16 * node + 16):
            highest = max(highest, here[child])
        if maxima[offset + node] == highest:
            return
        maxima[offset + node] = highest
        if offset + node == rings[PMAX_TOP]:
            return
        here = float64_at(rings[A_PMAX] + 8 * offset)
        padded = (width + 15) & ~np.int64(15)
        offset += padded
        width = padded >> 4
        node >>= 4


@kernel("void(ints, table, words, floats, int8[::1])")
def write_priorities(rings, table, keys, values, found):
    """Write the priorities of steps that are stored, and say which are; the last one wins."""
    for i in range(keys.size):
        env = np.int64(keys[i] >> np.uint64(ROW_BITS))
        row = np.int64(keys[i] & np.uint64(ROW_MASK))
        found[i] = 0
        if env >= rings[ENVS] or row >= int64_at(rings[A_NEWEST])[env]:
            continue
        if row < int64_at(rings[A_OLDEST])[env]:
            continue
        if flags_of(rings, env, row) & FINAL and not rings[REWARD_NEXT]:
            continue
        found[i] = 1
        slot = slot_of(rings, env, row)
        set_priority(rings, slot, values[i] if values.size > 1 else values[0])
        for k in range(table.shape[0]):
            if table[k, KIND] != UNIFORM and is_start(table[k], slot):
                weigh(rings, table[k], slot)


@kernel("void(ints, ints, table)")
def rows_at(rings, slots, found):
    """Environment, row and flags of slots in use: three rows of a table."""
    for i in range(slots.size):
        env, row = row_at(rings, slots[i])
        found[0, i] = env
        found[1, i] = row
        found[2, i] = flags_of(rings, env, row)
