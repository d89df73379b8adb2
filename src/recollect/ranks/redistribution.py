"""Which unit of M saved shards goes to which of N new ones: arithmetic, no files, no tables.

A *unit* is what must stay together: an item of a table, a group, an episode. A *stream* is
units in order of arrival: a saved table, or one environment of a saved replay buffer. Every rank
works the plan out by itself from the sizes alone, so it uses nothing but integers and divisions
of IEEE numbers, and the same sizes give the same plan on every machine.

Why no two shards differ by more than the largest unit: first, units go only where they fit into
an equal share, total / N. Then each of the others goes to the smallest shard. A shard that
got one of those last was the smallest before it, so it is at most one unit above the smallest
shard; and one that got none is not above the average.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from recollect.base.arrays import Ints
from recollect.kernels.load import load_dealing

ORIGINS = 1 << 20  # a key has 20 bits of origin


class Stream(NamedTuple):
    """The sizes of units that came one after another to a saved shard."""

    source: int
    sizes: Ints


class Units(NamedTuple):
    """Some units: the stream of each, and its place in that stream."""

    streams: Ints
    places: Ints


class ShardPlan:
    """Where every unit of the saved shards goes. `shard(n)` lists those of one new shard.

    >>> import numpy as np
    >>> plan = ShardPlan([Stream(0, np.array([3, 2, 2])), Stream(1, np.array([4, 1]))], 2, 3)
    >>> [plan.shard(n).places.tolist() for n in range(3)]
    [[0, 1], [1, 2], [0]]
    """

    def __init__(self, streams: Sequence[Stream], sources: int, shards: int) -> None:
        self.shards = shards
        self.units = by_age(streams)
        self.sizes = _sizes_of(streams, self.units)
        origins = np.array([stream.source for stream in streams], np.int64)[self.units.streams]
        if sources == shards:
            self.targets = origins
        else:
            self.targets = np.empty(origins.size, np.int64)
            order = np.argsort(origins, kind="stable")  # a source's units, in order of arrival
            dealt = deal(self.sizes[order], np.bincount(origins, minlength=sources), shards)
            self.targets[order] = dealt

    def shard(self, number: int) -> Units:
        """The units of a new shard, in the order in which they are to arrive there."""
        mine = self.targets == number
        return Units(self.units.streams[mine], self.units.places[mine])

    def totals(self) -> list[int]:
        """The size of each new shard."""
        sums = np.zeros(self.shards, np.int64)
        np.add.at(sums, self.targets, self.sizes)
        return [int(size) for size in sums]


def by_age(streams: Sequence[Stream]) -> Units:
    """All units, the relatively oldest first; of equally old ones, the lower stream's first.

    How old a unit is relatively is how much of its stream came before its middle. So where
    streams are merged and the oldest leave first, each loses the same share of itself.
    """
    ages, numbers, places = [], [], []
    for number, (_, sizes) in enumerate(streams):
        ends = np.cumsum(sizes)
        middles = 2 * ends - sizes
        ages.append(middles / (2 * max(int(sizes.sum()), 1)))
        numbers.append(np.full(sizes.size, number, np.int64))
        places.append(np.arange(sizes.size))
    if not ages:
        return Units(np.zeros(0, np.int64), np.zeros(0, np.int64))
    of, place = np.concatenate(numbers), np.concatenate(places)
    order = np.lexsort([place, of, np.concatenate(ages)])
    return Units(of[order], place[order])


def deal(sizes: Ints, counts: Ints, shards: int) -> Ints:
    """The new shard of each unit; `counts` says how many units each source has."""
    bounds = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    targets = np.empty(sizes.size, np.int64)
    load_dealing().deal(np.ascontiguousarray(sizes, np.int64), bounds, shards, targets)
    return targets


def into_lanes(sizes: Ints, streams: Ints, lanes: int, ring: int) -> Ints:
    """The lane of each episode of a shard, in order of arrival.

    Where each stream can have a lane of its own and fits it, it keeps to it, and episodes that
    followed each other still do. Otherwise an episode goes to the emptiest lane.
    """
    own = np.unique(streams)
    if own.size == lanes:
        lane = np.searchsorted(own, streams)
        if np.bincount(lane, sizes, lanes).max(initial=0) <= ring:
            return lane.astype(np.int64)
    return deal_to_smallest(sizes, lanes)


def deal_to_smallest(sizes: Ints, lanes: int) -> Ints:
    """Each to the lane that has least so far."""
    chosen = np.empty(sizes.size, np.int64)
    filled = np.zeros(lanes, np.int64)
    for place, size in enumerate(sizes.tolist()):
        lane = int(filled.argmin())
        chosen[place] = lane
        filled[lane] += size
    return chosen


def apportion(total: int, sizes: Sequence[int]) -> list[int]:
    """A count divided in proportion to sizes, in whole numbers that add up to it.

    >>> apportion(10, [1, 1, 1])
    [3, 3, 4]
    """
    weights = list(sizes) if sum(sizes) else [1] * len(sizes)
    whole, done, passed, parts = sum(weights), 0, 0, []
    for weight in weights:
        passed += weight
        upto = total * passed // whole
        parts.append(upto - done)
        done = upto
    return parts


def fresh_origins(used: set[int], shards: int) -> list[int]:
    """An origin for the keys of each new shard that no saved one had.

    They are spread by a hash of those in use, so that shards of shards differ from each other.

    >>> len(set(fresh_origins({1, 2}, 5)) - {1, 2})
    5
    """
    start = xxhash.xxh3_64_intdigest(repr(sorted(used)).encode()) % ORIGINS
    found: list[int] = []
    while len(found) < shards:
        if start not in used:
            found.append(start)
        start = (start + 1) % ORIGINS
    return found


def seed_words(states: Sequence[Sequence[int]], shards: int, shard: int) -> NDArray[np.uint64]:
    """Random state for a new shard: another for each, and made from all that was saved."""
    words = [shards, shard, *(part for state in states for word in state for part in _halves(word))]
    return np.random.SeedSequence(words).generate_state(4, np.uint64).astype(np.uint64)


def _halves(word: int) -> tuple[int, int]:
    return word & 0xFFFFFFFF, word >> 32


def _sizes_of(streams: Sequence[Stream], units: Units) -> Ints:
    if not streams:
        return np.zeros(0, np.int64)
    begins = np.cumsum([0, *(stream.sizes.size for stream in streams)])[:-1]
    sizes = np.concatenate([stream.sizes for stream in streams]).astype(np.int64)
    return sizes[begins[units.streams] + units.places]
