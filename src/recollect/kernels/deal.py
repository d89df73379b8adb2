"""Deals units of saved shards out to new ones: whole, evenly, and the same on every machine.

A unit is what must stay together: an item, a group, an episode. `ranks/redistribution.py`
says what is wanted and why this gives it.
"""

from __future__ import annotations

import numpy as np

from recollect.kernels.machine.compile import kernel


@kernel("void(ints, ints, int64, ints)", nogil=True)
def deal(sizes, bounds, shards, targets):
    """Write the new shard of each unit; source s has the units bounds[s] to bounds[s + 1].

    Sources and shards lie along one line of rows. A source's units go to the shards that it lies
    beside, each time to the one that is furthest behind its part of the source, as long as that
    stays within an equal share; units that fit nowhere go to the smallest shard at the end.
    """
    total = np.int64(0)
    for unit in range(sizes.size):
        total += sizes[unit]
    load = np.zeros(shards, np.int64)
    given = np.zeros(shards, np.int64)
    begin = np.int64(0)  # where a source begins on the line, in parts of a row: 1 / shards
    for source in range(bounds.size - 1):
        end = begin
        for unit in range(bounds[source], bounds[source + 1]):
            end += shards * sizes[unit]
        if end == begin:
            continue
        first, last = begin // total, (end - 1) // total
        given[first : last + 1] = 0
        for unit in range(bounds[source], bounds[source + 1]):
            size = sizes[unit]
            best, least = -1, np.inf
            for shard in range(first, last + 1):
                if shards * (load[shard] + size) > total:
                    continue
                part = min(end, (shard + 1) * total) - max(begin, shard * total)
                behind = (2 * given[shard] + size) / part
                if behind < least:
                    best, least = shard, behind
            targets[unit] = best
            if best >= 0:
                load[best] += size
                given[best] += size
        begin = end
    for unit in range(sizes.size):
        if targets[unit] < 0:
            smallest = np.argmin(load)
            targets[unit] = smallest
            load[smallest] += sizes[unit]
