"""Where episodes begin and end: the one owner of that question.

Everything that draws steps asks `episode_of` (in `kernels.steps_episodes`, where the rule is
written down): transitions, n-step returns, sequences and their masks, whole episodes, the table
of episodes. Here are its faces for Python, and the rings whose marks it reads.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from recollect.errors import InvalidValue, shown
from recollect.kernels import steps_layout as sl
from recollect.kernels.load import load_steps
from recollect.storage.buffers import aligned_zeros

Ints = NDArray[np.int64]
Array = NDArray[Any]


class Episode(NamedTuple):
    """Rows [first, stop) of one environment, final observation included.

    `end` is the row after the last complete step. Where `cut`, the row that began the episode has
    been overwritten.
    """

    env: int
    first: int
    stop: int
    cut: bool
    end: int
    over: bool
    terminated: bool


class Rings:
    """The marks of all rows, one ring per environment, and the block that shows them to kernels."""

    def __init__(self, envs: int, ring: int, *, reward_next: bool = False, stack: int = 1) -> None:
        self.kernels = load_steps()
        self.envs, self.ring = envs, ring
        self.slots = envs * ring
        self.block = np.zeros(sl.STEPS_BLOCK, np.int64)
        self.arrays: dict[int, Array] = {}
        self.block[sl.ENVS], self.block[sl.RING] = envs, ring
        self.block[sl.REWARD_NEXT], self.block[sl.STACK] = reward_next, stack
        self.newest = self._own(sl.A_NEWEST, np.zeros(envs, np.int64))
        self.oldest = self._own(sl.A_OLDEST, np.zeros(envs, np.int64))
        self.head = self._own(sl.A_HEAD, np.zeros(envs, np.int64))
        self._own(sl.A_STATE, np.zeros(envs, np.int64))
        self.flags = self._own(sl.A_FLAGS, aligned_zeros((self.slots,), np.int8))
        self._own(sl.A_OFFSET, aligned_zeros((self.slots,), np.int32))
        self._own(sl.A_REMAINING, aligned_zeros((self.slots,), np.int32))
        self.now: Any = memoryview(self.block)  # type: ignore[arg-type]  # reading one number costs less than through the array

    def _own(self, place: int, array: Array) -> Array:
        self.arrays[place] = array
        self.block[place] = array.ctypes.data
        return array

    @property
    def priority(self) -> NDArray[np.float64] | None:
        """By slot, -1 where there is no step; None where nobody weighs steps."""
        return self.arrays.get(sl.A_PRIORITY)

    def weigh(self) -> None:
        """Begin to keep priorities: steps that are there have priority 1."""
        if sl.A_PRIORITY in self.arrays:
            return
        padded = (self.slots + 15) & ~15
        priority = aligned_zeros((padded,), np.float64)
        priority.fill(-1.0)
        for env in range(self.envs):
            rows = np.arange(self.oldest[env], self.newest[env])
            slots = env * self.ring + rows % self.ring
            if not self.block[sl.REWARD_NEXT]:
                slots = slots[(self.flags[slots] & sl.FINAL) == 0]
            priority[slots] = 1.0
        self._own(sl.A_PRIORITY, priority)
        self._add_maxima()

    def _add_maxima(self) -> None:
        """Compute the maxima of priorities anew."""
        levels = [self.arrays[sl.A_PRIORITY].reshape(-1, 16).max(axis=1)]
        while levels[-1].size > 1:
            width = (levels[-1].size + 15) & ~15
            padding = np.full(width - levels[-1].size, -1.0)
            levels[-1] = np.concatenate([levels[-1], padding])
            levels.append(levels[-1].reshape(-1, 16).max(axis=1))
        maxima = np.concatenate(levels)
        self.block[sl.PMAX_TOP] = maxima.size - 1
        self._own(sl.A_PMAX, maxima)

    def write_priorities(self, slots: Ints, values: NDArray[np.float64]) -> None:
        """Set the priorities of rows whose steps nobody draws yet."""
        self.arrays[sl.A_PRIORITY][slots] = values
        self._add_maxima()

    def highest_priority(self) -> float:
        """The highest priority of a stored step, 1 where there is none."""
        maxima = self.arrays.get(sl.A_PMAX)
        highest = -1.0 if maxima is None else float(maxima[-1])
        return highest if highest >= 0.0 else 1.0

    def rows_at(self, slots: Ints) -> tuple[Ints, Ints, Ints]:
        """Environment, row and flags of slots in use."""
        found = np.empty((3, slots.size), np.int64)
        self.kernels.starts.rows_at(self.block, slots, found)
        return found[0], found[1], found[2]

    def episode_of(self, env: int, row: int) -> Episode:
        """The episode that a stored row belongs to."""
        if not 0 <= env < self.envs or not self.oldest[env] <= row < self.newest[env]:
            raise InvalidValue(f"row {row} of environment {env} is not stored")
        found = np.empty((1, 6), np.int64)
        one = np.array([env]), np.array([row])
        self.kernels.episodes.episodes_of(self.block, *one, found)
        first, stop, cut, end, over, terminated = (int(number) for number in found[0])
        return Episode(env, first, stop, bool(cut), end, bool(over), bool(terminated))

    def episodes(self) -> Ints:
        """All episodes with a complete step, by environment and row: a row of numbers each.

        The columns are those of `Episode`.
        """
        guess = 64
        while True:
            found = np.empty((guess, 7), np.int64)
            count = self.kernels.episodes.list_episodes(self.block, guess, found)
            if count <= guess:
                return found[:count]
            guess = count

    def begin_at(self, env: int, row: int) -> None:
        """A ring without rows: its next row has this number, those before have gone."""
        self.newest[env] = self.oldest[env] = row
        self.head[env] = row % self.ring

    def clear(self) -> None:
        """Forget every row; row numbers go on."""
        self.oldest[:] = self.newest
        self.block[sl.STEPS] = self.block[sl.ROWS] = 0
        if sl.A_PRIORITY in self.arrays:
            self.arrays[sl.A_PRIORITY].fill(-1.0)
            self.arrays[sl.A_PMAX].fill(-1.0)

    def reset(self) -> None:
        """Back to rings that never had a row: row numbers begin with 0 again."""
        self.clear()
        for array in (self.newest, self.oldest, self.head):
            array[:] = 0
        for place in (sl.OVERWRITTEN, sl.CUT):
            self.block[place] = 0

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays.values())


def find_episodes(ends: Any, newest: int, full: bool) -> tuple[Ints, Ints]:
    """Where the episodes of a raw ring begin and how long they are, in order of where they end.

    `ends` marks the places whose row is an episode's last, `newest` is the place that was written
    last, and `full` says whether the ring went round: without, places after `newest` are empty.

    >>> import numpy as np
    >>> from recollect.replay.episodes import find_episodes
    >>> ends = np.zeros(10, bool)
    >>> ends[[2, 7]] = True
    >>> find_episodes(ends, newest=4, full=True)
    (array([8, 3, 5]), array([5, 2, 3]))
    """
    marks = np.asarray(ends)
    if marks.dtype != np.bool_ or marks.ndim != 1 or not marks.size:
        raise InvalidValue(f"ends: expected an array of bools, got {shown(ends)}")
    if not 0 <= newest < marks.size:
        raise InvalidValue(f"newest: expected a place from 0 to {marks.size - 1}, got {newest}")
    oldest = (newest + 1) % marks.size if full else 0
    count = marks.size if full else newest + 1
    rings = Rings(1, marks.size)
    rings._own(sl.A_ROOM, np.array([1 << 60]))
    rings._own(sl.A_BASES, np.zeros(1, np.int64))
    rings.block[sl.SEGMENTS] = 1
    rings.newest[0] = rings.oldest[0] = rings.head[0] = oldest  # a row's number is its place
    terminated = np.ascontiguousarray(np.roll(marks, -oldest)[:count])
    inputs = np.zeros(sl.IN_COLUMNS, np.int64)
    inputs[sl.IN_TERMINATED] = id(terminated)
    rings.kernels.steps.append(
        rings.block, np.zeros((0, sl.STARTS_BLOCK), np.int64), np.zeros((0, 3), np.int64),
        inputs, np.zeros(1, np.int64), 0, count, 1.0, np.empty(count, np.uint64),
    )  # fmt: skip
    found = rings.episodes()
    order = np.argsort((found[:, 2] - 1) % marks.size)
    found = found[order]
    return found[:, 1] % marks.size, found[:, 4] - found[:, 1]
