"""Places of an array that lie side by side for the most part, and numbers that mostly rise."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from recollect.base.arrays import Array, Ints

CHUNK = 1 << 15  # numbers that are looked at together
FEW_RUNS = 64  # places in a run, on average, that make copying runs worth it


def rises(numbers: Array) -> bool:
    """Whether no number is lower than the one before it."""
    return not any((numbers[s][1:] < numbers[s][:-1]).any() for s in _chunks(numbers.size))


def _chunks(size: int) -> Iterator[slice]:
    """Slices of so many numbers, which overlap by one."""
    for begin in range(0, size, CHUNK):
        yield slice(begin, min(begin + CHUNK, size) + 1)


class SlotRuns:
    """Places of an array, side by side for the most part: slices are quicker to copy."""

    def __init__(self, places: Ints) -> None:
        self._places = places
        self._bounds: list[int] | None = [0] if places.size else None
        for some in _chunks(places.size):  # each of which fits into a cache, as does what it makes
            cuts = np.flatnonzero(places[some][1:] - places[some][:-1] != 1)
            if self._bounds is None or cuts.size * FEW_RUNS > CHUNK:
                self._bounds = None
                return
            self._bounds += (cuts + (some.start + 1)).tolist()
        if self._bounds is not None:
            self._bounds.append(places.size)

    def put(self, array: Array, values: Array) -> None:
        """Write a value to each place."""
        if self._bounds is None:
            array[self._places] = values
            return
        for begin, end in pairwise(self._bounds):
            first = int(self._places[begin])
            array[first : first + end - begin] = values[begin:end]

    def take(self, array: Array) -> Array:
        """The values at the places."""
        if self._bounds is None:
            return array[self._places]
        taken = np.empty((self._places.size, *array.shape[1:]), array.dtype)
        for begin, end in pairwise(self._bounds):
            first = int(self._places[begin])
            taken[begin:end] = array[first : first + end - begin]
        return taken
