"""Where episodes begin and end in a ring: the marks of its rows, and the function that reads them.

A row number rises from 0 in each environment and is never reused; row r stands at slot
env * ring + r % ring. A row is marked by flags and by its `offset`, the rows since its episode
began. The first surviving row of an episode also knows `remaining`, the rows that the episode
has from there. Appending a row adds one to it; overwriting that row hands it, less one, to the
next. So nothing is ever searched, and everything that asks about episodes asks `episode_of`.

An episode whose head went elsewhere, before it was put between others (a shard that was put
together anew), counts its offsets from its first surviving row, which is not marked as a first one.
"""

from __future__ import annotations

import numpy as np

from recollect.kernels.machine.compile import inner, kernel
from recollect.kernels.machine.memory import int8_at, int32_at, int64_at
from recollect.kernels.steps_layout import (
    A_FLAGS,
    A_HEAD,
    A_NEWEST,
    A_OFFSET,
    A_OLDEST,
    A_REMAINING,
    ENDED,
    ENVS,
    FINAL,
    FIRST,
    REWARD_NEXT,
    RING,
    TERMINATED,
)

LONGEST = 0x7FFFFFFF  # an offset counts so far, which is beyond every ring


@inner("int64(ints, int64, int64)")
def slot_of(rings, env, row):
    """Where a row stands that is stored, or that comes next; counted back from the write position,
    because a division would be most of the work."""
    place = int64_at(rings[A_HEAD])[env] - (int64_at(rings[A_NEWEST])[env] - row)
    return env * rings[RING] + (place if place >= 0 else place + rings[RING])


@inner("Tuple((int64, int64))(ints, int64)")
def row_at(rings, slot):
    """The environment and the row that stand at a slot in use."""
    env = slot // rings[RING] if rings[ENVS] > 1 else np.int64(0)
    age = int64_at(rings[A_HEAD])[env] - (slot - env * rings[RING])
    return env, int64_at(rings[A_NEWEST])[env] - (age if age > 0 else age + rings[RING])


@inner("int64(ints, int64, int64)")
def flags_of(rings, env, row):
    return np.int64(int8_at(rings[A_FLAGS])[slot_of(rings, env, row)])


@inner("Tuple((int64, int64, boolean))(ints, int64, int64)")
def episode_of(rings, env, row):
    """The episode of a stored row: its first surviving row, the row after its last, and whether
    its head is cut.

    Its rows are [first, stop), the final observation included. A head is cut where the row that
    began the episode has been overwritten, or never was in this ring: `first` is then no beginning.
    """
    begun = row - int32_at(rings[A_OFFSET])[slot_of(rings, env, row)]
    oldest = int64_at(rings[A_OLDEST])[env]
    first = max(oldest, begun)
    stop = first + int32_at(rings[A_REMAINING])[slot_of(rings, env, first)]
    cut = begun < oldest or (int8_at(rings[A_FLAGS])[slot_of(rings, env, first)] & FIRST) == 0
    return first, stop, cut


@inner("Tuple((int64, boolean, boolean))(ints, int64, int64, int64)")
def steps_of(rings, env, first, stop):
    """Of an episode: the row after its last complete step, whether it is over, and terminated."""
    last = flags_of(rings, env, stop - 1)
    over = (last & ENDED) != 0
    end = stop - 1 if rings[REWARD_NEXT] or (last & FINAL) else stop
    terminated = over and end > first and (flags_of(rings, env, end - 1) & TERMINATED) != 0
    return end, over, terminated


@inner("boolean(ints, int64)")
def is_open(rings, env):
    """Whether an environment is in the middle of an episode, as far as its ring tells."""
    newest = int64_at(rings[A_NEWEST])[env]
    return (
        newest > int64_at(rings[A_OLDEST])[env] and (flags_of(rings, env, newest - 1) & ENDED) == 0
    )


@inner("int64(ints, int64)")
def settled(rings, env):
    """The first row of a ring that is not yet known as a complete step or a final observation."""
    newest = int64_at(rings[A_NEWEST])[env]
    return newest - 1 if rings[REWARD_NEXT] and is_open(rings, env) else newest


@inner("void(ints, int64)")
def forget_oldest(rings, env):
    """Take the oldest row out of its ring."""
    oldest = int64_at(rings[A_OLDEST])
    remaining = int32_at(rings[A_REMAINING])
    row = oldest[env]
    left = remaining[slot_of(rings, env, row)]
    if left > 1:
        remaining[slot_of(rings, env, row + 1)] = left - 1
    oldest[env] = row + 1


@inner("void(ints, int64, int64, int64)")
def mark_row(rings, env, flags, offset):
    """Put the marks of a new row at the end of a ring that has room for it."""
    newest = int64_at(rings[A_NEWEST])
    row = newest[env]
    slot = slot_of(rings, env, row)
    int8_at(rings[A_FLAGS])[slot] = flags
    int32_at(rings[A_OFFSET])[slot] = min(offset, LONGEST)
    first = max(int64_at(rings[A_OLDEST])[env], row - offset)
    remaining = int32_at(rings[A_REMAINING])
    if first == row:
        remaining[slot] = 1
    else:
        remaining[slot_of(rings, env, first)] += 1
    newest[env] = row + 1
    heads = int64_at(rings[A_HEAD])
    heads[env] = heads[env] + 1 if heads[env] + 1 < rings[RING] else 0


@kernel("void(ints, ints, ints, table)")
def episodes_of(rings, envs, rows, found):
    """`episode_of` for many rows: first, stop, cut, the end of its steps, over, terminated."""
    for i in range(rows.size):
        first, stop, cut = episode_of(rings, envs[i], rows[i])
        end, over, terminated = steps_of(rings, envs[i], first, stop)
        found[i, 0] = first
        found[i, 1] = stop
        found[i, 2] = cut
        found[i, 3] = end
        found[i, 4] = over
        found[i, 5] = terminated


@kernel("int64(ints, int64, table)")
def list_episodes(rings, most, found):
    """Every episode that has a step, at most `most`: env and the numbers of `episodes_of`."""
    count = 0
    for env in range(rings[ENVS]):
        row = int64_at(rings[A_OLDEST])[env]
        while row < int64_at(rings[A_NEWEST])[env]:
            first, stop, cut = episode_of(rings, env, row)
            end, over, terminated = steps_of(rings, env, first, stop)
            if end > first:
                if count < most:
                    found[count, 0] = env
                    found[count, 1] = first
                    found[count, 2] = stop
                    found[count, 3] = cut
                    found[count, 4] = end
                    found[count, 5] = over
                    found[count, 6] = terminated
                count += 1
            row = stop
    return count
