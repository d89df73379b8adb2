"""Reading steps: plans of where the rows of transitions and sequences stand, and the copies.

A plan is made under the lock, because marks change. It holds addresses of records, and 0 where a
cell is to be filled with zeros. `gather` then copies without the lock and without the GIL.
"""

from __future__ import annotations

import numpy as np

from recollect.kernels.machine.compile import inner, kernel
from recollect.kernels.machine.memory import copy_bytes, int8_at, int32_at, int64_at, prefetch
from recollect.kernels.machine.objects import data_of
from recollect.kernels.steps_episodes import episode_of, flags_of, row_at, slot_of, steps_of
from recollect.kernels.steps_layout import (
    A_BASES,
    A_FLAGS,
    A_OFFSET,
    A_OLDEST,
    A_REMAINING,
    FIRST,
    IS_BOOTSTRAP,
    IS_FIRST,
    IS_TERMINATED,
    IS_TRUNCATED,
    IS_VALID,
    JOB_BEGIN,
    JOB_COUNT,
    JOB_OFFSET,
    JOB_SIZE,
    JOB_TARGET,
    REWARD_NEXT,
    SEGMENTS,
    SHIFT,
    STACK,
    STRIDE,
    T_END,
    T_ENV,
    T_FIRST,
    T_ROW,
    T_TAKEN,
    T_TERMINATED,
    TERMINATED,
    TRUNCATED,
)

AHEAD = 8  # rows between a prefetch and its copy
LINES = 4  # cache lines of a record that are asked for


@inner("int64(ints, int64, int64)")
def address_of(rings, env, row):
    """Where the record of a row stands."""
    segment = (row >> rings[SHIFT]) & (rings[SEGMENTS] - 1)
    base = int64_at(rings[A_BASES])[env * rings[SEGMENTS] + segment]
    return base + (row & ((np.int64(1) << rings[SHIFT]) - 1)) * rings[STRIDE]


@inner("void(ints, int64, int64, ints, int64)")
def _stack(rings, env, row, addresses, at):
    """The frames that end with a row; before an episode's beginning its first one is repeated."""
    frames = rings[STACK]
    begun = row - int32_at(rings[A_OFFSET])[slot_of(rings, env, row)]
    begun = max(begun, int64_at(rings[A_OLDEST])[env])
    for k in range(frames):
        addresses[at + k] = address_of(rings, env, max(row - frames + 1 + k, begun))


@kernel("void(ints, ints, int64, table, ints, int64, int64)")
def plan_transitions(rings, slots, n_step, numbers, addresses, at_rewards, at_stacks):
    """The rows of transitions: where they begin, what comes n steps later, and what is between.

    `addresses` holds n rows and n next rows; from `at_rewards` (-1: not wanted) the n_step rows
    of each whose reward counts; from `at_stacks` the frames of both. Those that fall behind an
    episode's end are 0.
    """
    n = slots.size
    frames = rings[STACK]
    for i in range(n):  # marks are as random as rows: ask for all of them first
        prefetch(rings[A_OFFSET] + 4 * slots[i])
        prefetch(rings[A_FLAGS] + slots[i])
        prefetch(rings[A_REMAINING] + 4 * slots[i])
    for i in range(n):
        env, row = row_at(rings, slots[i])
        first, stop, _ = episode_of(rings, env, row)
        end, _, terminated = steps_of(rings, env, first, stop)
        taken = min(n_step, end - row)
        following = row + taken
        numbers[T_ENV, i] = env
        numbers[T_ROW, i] = row
        numbers[T_TAKEN, i] = taken
        numbers[T_TERMINATED, i] = terminated and following == end
        numbers[T_FIRST, i] = first
        numbers[T_END, i] = end
        addresses[i] = address_of(rings, env, row)
        addresses[n + i] = address_of(rings, env, following) if following < stop else 0
        if at_rewards >= 0:
            for k in range(n_step):
                at = at_rewards + i * n_step + k
                from_row = row + k + rings[REWARD_NEXT]
                addresses[at] = address_of(rings, env, from_row) if k < taken else 0
        if at_stacks >= 0:
            _stack(rings, env, row, addresses, at_stacks + i * frames)
            at = at_stacks + (n + i) * frames
            if following < stop:
                _stack(rings, env, following, addresses, at)
            else:
                addresses[at : at + frames] = 0


@kernel("void(ints, ints, ints, int64, int64, table, int8[:, ::1], ints, int64, int64)")
def plan_runs(rings, slots, bounds, gap, across, numbers, flags, addresses, at_rewards, at_stacks):
    """The rows of sequences: run i takes the positions bounds[i] to bounds[i + 1].

    A run goes on in steps of `gap` rows, final observations not counted; where its episode ends,
    into the next one (`across`) or no further. `flags` has a row for each of IS_VALID, ...
    """
    total = bounds[slots.size]
    frames = rings[STACK]
    for i in range(slots.size):
        env, row = row_at(rings, slots[i])
        numbers[0, i] = env
        numbers[1, i] = row
        first, stop, _ = episode_of(rings, env, row)
        end, _, _ = steps_of(rings, env, first, stop)
        entered = False
        for at in range(bounds[i], bounds[i + 1]):
            while across and row >= end:
                row += stop - end  # a final observation is no step
                first, stop, _ = episode_of(rings, env, stop)
                end, _, _ = steps_of(rings, env, first, stop)
                entered = True
            if row >= end:
                for k in range(flags.shape[0]):
                    flags[k, at] = 0
                addresses[at] = 0
                addresses[total + at] = 0
                if at_rewards >= 0:
                    addresses[at_rewards + at] = 0
                if at_stacks >= 0:
                    for k in range(frames):
                        addresses[at_stacks + at * frames + k] = 0
                        addresses[at_stacks + (total + at) * frames + k] = 0
                continue
            mark = flags_of(rings, env, row)
            there = row + 1 < stop
            flags[IS_VALID, at] = 1
            flags[IS_FIRST, at] = entered or (mark & FIRST) != 0
            flags[IS_TERMINATED, at] = (mark & TERMINATED) != 0
            flags[IS_TRUNCATED, at] = (mark & TRUNCATED) != 0
            flags[IS_BOOTSTRAP, at] = there and (mark & TERMINATED) == 0
            entered = False
            following = address_of(rings, env, row + 1) if there else np.int64(0)
            addresses[at] = address_of(rings, env, row)
            addresses[total + at] = following
            if at_rewards >= 0:
                addresses[at_rewards + at] = following
            if at_stacks >= 0:
                _stack(rings, env, row, addresses, at_stacks + at * frames)
                next_at = at_stacks + (total + at) * frames
                if there:
                    _stack(rings, env, row + 1, addresses, next_at)
                else:
                    addresses[next_at : next_at + frames] = 0
            row += gap


@inner("void(int64, int64)")
def _clear_bytes(target, size):
    words = int64_at(target)
    for k in range(size >> 3):
        words[k] = 0
    for k in range(size & ~np.int64(7), size):
        int8_at(target)[k] = 0


@inner("void(ints, ints, table, int64, int64)")
def _copy_together(addresses, targets, jobs, begin, end):
    """Copy the cells of jobs that read the same records, record by record."""
    start = jobs[begin, JOB_BEGIN]
    count = jobs[begin, JOB_COUNT]
    width = np.int64(0)
    for j in range(begin, end):
        targets[j] = data_of(jobs[j, JOB_TARGET])
        width = max(width, jobs[j, JOB_OFFSET] + jobs[j, JOB_SIZE])
    lines = min((width + 63) >> 6, np.int64(LINES))
    for i in range(count):
        if i + AHEAD < count:
            following = addresses[start + i + AHEAD]
            for line in range(lines):
                prefetch(following + 64 * line)
        record = addresses[start + i]
        for j in range(begin, end):
            size = jobs[j, JOB_SIZE]
            if record != 0:
                copy_bytes(targets[j] + i * size, record + jobs[j, JOB_OFFSET], size)
            else:
                _clear_bytes(targets[j] + i * size, size)


@kernel("void(ints, table)", nogil=True)
def gather(addresses, jobs):
    """Copy cells into the array objects that the jobs name; jobs on the same records follow
    each other and are done in one pass."""
    targets = np.empty(jobs.shape[0], np.int64)
    begin = 0
    while begin < jobs.shape[0]:
        end = begin + 1
        while (
            end < jobs.shape[0]
            and jobs[end, JOB_BEGIN] == jobs[begin, JOB_BEGIN]
            and jobs[end, JOB_COUNT] == jobs[begin, JOB_COUNT]
        ):
            end += 1
        _copy_together(addresses, targets, jobs, begin, end)
        begin = end
