"""Where episodes begin and end: the one owner of that question.

Everything that draws steps asks `episode_of` (in `kernels.steps_episodes`, where the rule is
written down): transitions, n-step returns, sequences and their masks, whole episodes, the table
of episodes. Here are the rings whose marks it reads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from recollect.base.arrays import Array, Ints
from recollect.kernels import steps_layout as sl
from recollect.kernels.load import load_steps
from recollect.storage.buffers import aligned_zeros


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

    def episodes(self) -> Ints:
        """All episodes with a complete step, by environment and row: seven numbers each.

        They are env, first, stop, cut, end, over and terminated. Rows [first, stop) are those of
        the episode, its final observation included, and `end` is the row after its last complete
        step. Where it is cut, the row that began it has been overwritten.
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
