"""Steps into rings and out of them: append, check, and the copies of what was chosen.

A lane is the tail of segments of one environment, and a record's place in it is arithmetic: row
r stands in segment r >> SHIFT. What is to be read is planned under the lock as addresses of
records, 0 for a cell that is to be zeros; copying them needs no lock, because a segment is never
written twice while somebody holds it.
"""

from __future__ import annotations

import numpy as np

from recollect.kernels.layout import OFFSET, SIZE
from recollect.kernels.machine.compile import inner, kernel
from recollect.kernels.machine.memory import copy_bytes, int8_at, int32_at, int64_at
from recollect.kernels.machine.objects import data_of
from recollect.kernels.steps_episodes import (
    episode_of,
    flags_of,
    forget_oldest,
    is_open,
    mark_row,
    slot_of,
)
from recollect.kernels.steps_layout import (
    A_FLAGS,
    A_NEWEST,
    A_OFFSET,
    A_OLDEST,
    A_PRIORITY,
    A_ROOM,
    A_STATE,
    CALL,
    CUT,
    ENDED,
    ENVS,
    FINAL,
    FINAL_WITHOUT_END,
    FINE,
    FIRST,
    FIRST_AND_LAST,
    IN_COLUMNS,
    IN_FINALS,
    IN_FIRST,
    IN_HAS_FINAL,
    IN_TERMINATED,
    IN_TRUNCATED,
    NO_SUCH_ENVIRONMENT,
    NOT_FIRST_AFTER_END,
    NOT_FIRST_AT_ALL,
    OVERWRITTEN,
    REWARD_NEXT,
    RING,
    ROW_BITS,
    ROWS,
    STEPS,
    TERMINATED,
    TRUNCATED,
)
from recollect.kernels.steps_reading import address_of
from recollect.kernels.steps_starts import (
    advance,
    after_appending,
    before_overwriting,
    set_priority,
)

OVER, OPEN, CLEARED, NEW = 0, 1, 2, 3  # what a check knows of an environment
EMPTY = 0  # flags of a step in the middle of an episode


@inner("int64(int64, int64)")
def _given(address, i):
    """One entry of an array of bools that may be missing: -1 then."""
    return np.int64(int8_at(address)[i] != 0) if address != 0 else np.int64(-1)


@inner("int64(ints, int64)")
def _state_of(rings, env):
    newest = int64_at(rings[A_NEWEST])[env]
    if newest == 0:
        return NEW
    if newest == int64_at(rings[A_OLDEST])[env]:
        return CLEARED
    return OPEN if is_open(rings, env) else OVER


@inner("boolean(ints, int64, boolean)")
def _brings_final(inputs, i, ended):
    """Whether a step comes with the observation after it."""
    if not inputs[IN_FINALS]:
        return False
    flag = _given(data_of(inputs[IN_HAS_FINAL]), i)
    return ended if flag < 0 else flag > 0


@kernel("Tuple((int64, int64))(ints, ints, ints, int64)")
def check(rings, inputs, envs, n):
    """What is wrong with n steps, and with which of them: (0, 0) if nothing is."""
    rings[CALL] += 1
    states = int64_at(rings[A_STATE])
    begins = data_of(inputs[IN_FIRST])
    terminates = data_of(inputs[IN_TERMINATED])
    truncates = data_of(inputs[IN_TRUNCATED])
    for i in range(n):
        env = envs[i] if envs.size > 1 else envs[0]
        if env < 0 or env >= rings[ENVS]:
            return NO_SUCH_ENVIRONMENT, i
        state = states[env] & 3 if states[env] >> 2 == rings[CALL] else _state_of(rings, env)
        first = _given(begins, i)
        if first == 0 and state == OVER:
            return NOT_FIRST_AFTER_END, i
        if first == 0 and state == NEW:
            return NOT_FIRST_AT_ALL, i
        ended = _given(terminates, i) > 0 or _given(truncates, i) > 0
        if rings[REWARD_NEXT] and ended and (first == 1 or (first < 0 and state != OPEN)):
            return FIRST_AND_LAST, i
        if not ended and _brings_final(inputs, i, ended):
            return FINAL_WITHOUT_END, i
        states[env] = (rings[CALL] << 2) | (OVER if ended else OPEN)
    return FINE, 0


@inner("void(ints, int64, int64)")
def _or_flags(rings, slot, flags):
    int8_at(rings[A_FLAGS])[slot] |= flags


@inner("void(ints, int64, int64)")
def _end_before(rings, env, flags):
    """Mark the episode of the newest row as over: only the row that comes now shows that it is."""
    last = int64_at(rings[A_NEWEST])[env] - 1
    slot = slot_of(rings, env, last)
    if not rings[REWARD_NEXT]:
        _or_flags(rings, slot, flags)
        return
    _or_flags(rings, slot, FINAL)
    if int32_at(rings[A_OFFSET])[slot] > 0 and last > int64_at(rings[A_OLDEST])[env]:
        _or_flags(rings, slot_of(rings, env, last - 1), flags)


@inner("void(ints, table, int64)")
def _overwrite(rings, table, env):
    """Let the oldest row of a ring go."""
    row = int64_at(rings[A_OLDEST])[env]
    before_overwriting(rings, table, env)
    flags = flags_of(rings, env, row)
    counted = rings[REWARD_NEXT] or not flags & FINAL
    rings[STEPS] -= counted
    rings[OVERWRITTEN] += counted
    rings[ROWS] -= 1
    if flags & FIRST and is_open(rings, env):
        _, stop, _ = episode_of(rings, env, row)
        rings[CUT] += stop == int64_at(rings[A_NEWEST])[env]
    forget_oldest(rings, env)


@inner("int64(ints, table, int64, int64, int64, float64)")
def _append_row(rings, table, env, flags, offset, priority):
    """Put the marks of a row at the end of its ring; returns the row."""
    newest = int64_at(rings[A_NEWEST])
    row = newest[env]
    if row - int64_at(rings[A_OLDEST])[env] == rings[RING]:
        _overwrite(rings, table, env)
    mark_row(rings, env, flags, offset)
    rings[ROWS] += 1
    if rings[A_PRIORITY] != 0:
        counted = rings[REWARD_NEXT] or not flags & FINAL
        set_priority(rings, slot_of(rings, env, row), priority if counted else -1.0)
    after_appending(rings, table, env)
    return row


@inner("int64(ints, int64, int64)")
def _offset_after(rings, env, first):
    """How far the next row is from its episode's beginning; `first` is -1 where nobody says."""
    newest = int64_at(rings[A_NEWEST])[env]
    if first == 1:
        return np.int64(0)
    if newest > int64_at(rings[A_OLDEST])[env]:
        slot = slot_of(rings, env, newest - 1)
        if int8_at(rings[A_FLAGS])[slot] & ENDED:
            return np.int64(0)
        return np.int64(int32_at(rings[A_OFFSET])[slot]) + 1
    return np.int64(1) if first == 0 else np.int64(0)  # its head was cleared away


@kernel("int64(ints, table, table, ints, ints, int64, int64, float64, words)")
def append(rings, table, columns, inputs, envs, begin, n, priority, keys):
    """Store steps [begin, n) of the inputs, which were checked, with one priority.

    Stops where an environment has no segment for the next rows, and returns how far it came.
    """
    count = columns.shape[0]
    newest = int64_at(rings[A_NEWEST])
    room = int64_at(rings[A_ROOM])
    begins = data_of(inputs[IN_FIRST])
    terminates = data_of(inputs[IN_TERMINATED])
    truncates = data_of(inputs[IN_TRUNCATED])
    for i in range(begin, n):
        env = envs[i] if envs.size > 1 else envs[0]
        terminated = _given(terminates, i) > 0
        truncated = _given(truncates, i) > 0
        final = _brings_final(inputs, i, terminated or truncated)
        if newest[env] + final >= room[env]:
            return i
        first = _given(begins, i)
        if first == 1 and is_open(rings, env):
            _end_before(rings, env, TRUNCATED)
        offset = _offset_after(rings, env, first)
        flags = FIRST if offset == 0 else EMPTY
        if terminated or truncated:
            flags |= (TERMINATED if terminated else 0) | (TRUNCATED if truncated else 0)
            if rings[REWARD_NEXT]:
                marks, flags = flags & ~FIRST, FINAL
                if newest[env] > int64_at(rings[A_OLDEST])[env]:
                    _or_flags(rings, slot_of(rings, env, newest[env] - 1), marks)
        row = _append_row(rings, table, env, flags, offset, priority)
        rings[STEPS] += 1
        keys[i] = np.uint64(env << ROW_BITS | row)
        record = address_of(rings, env, row)
        for c in range(count):
            size = columns[c, SIZE]
            source = data_of(inputs[IN_COLUMNS + c]) + i * size
            copy_bytes(record + columns[c, OFFSET], source, size)
        if final:
            row = _append_row(rings, table, env, FINAL, offset + 1, priority)
            record = address_of(rings, env, row)
            for c in range(count):
                source = data_of(inputs[IN_COLUMNS + count + c])
                if source != 0:
                    size = columns[c, SIZE]
                    copy_bytes(record + columns[c, OFFSET], source + i * size, size)
        for k in range(table.shape[0]):
            advance(rings, table[k], env)
    return n
