"""Transitions: a step, what it led to n steps later, and the return in between.

Rows are stored once. The observation after a step is the next row's, the frames of a stack are
the rows before, and an n-step return adds up the rewards of n rows. It stops where the episode
does: after a terminated step nothing follows (discount 0), after a truncated one the final
observation (discount gamma ** steps that were taken).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from recollect.base.arrays import Array, Ints
from recollect.data.batch import Batch
from recollect.data.info import Info
from recollect.kernels import steps_layout as sl
from recollect.replay.episodes import Rings
from recollect.replay.start_draws import DrawnStarts
from recollect.storage.buffers import Allocate
from recollect.storage.lanes import Copies, Copy, Lanes

REMEMBERED = 64  # batch sizes whose copies are not worked out again


def n_step_returns(rewards: Array, gamma: float) -> Array:
    """The sum of gamma ** k times the k-th reward, for rewards `[n, steps, ...]`.

    Small floats keep their dtype, whole numbers become float64.

    >>> from recollect.replay.returns import n_step_returns
    >>> n_step_returns(np.array([[1.0, 2.0, 4.0]]), gamma=0.5)
    array([3.])
    """
    powers = gamma ** np.arange(rewards.shape[1])
    powers = powers.reshape((1, -1, *(1,) * (rewards.ndim - 2)))
    total: Array = (rewards.astype(np.float64) * powers).sum(axis=1)
    return total.astype(rewards.dtype) if rewards.dtype.kind not in "biu" else total


class ColumnPlan:
    """Which columns a batch has, and from which rows each is read."""

    def __init__(self, lanes: Lanes, next_names: list[str], frames: int, apart: bool) -> None:
        self.lanes = lanes
        self.next_names = next_names
        self.frames = frames
        self.reward = lanes.names.index("reward")
        self.apart = apart  # rewards have addresses of their own
        self.order = [*lanes.names, *(f"next_{name}" for name in next_names)]

    def addresses(self, count: int, rewards: int) -> tuple[Ints, int, int]:
        """Room for addresses; where those of `rewards` rewards and of stacks begin, or -1."""
        at_rewards = at_stacks = -1
        size = 2 * count
        if self.apart:
            at_rewards, size = size, size + rewards
        if self.frames > 1:
            at_stacks, size = size, size + 2 * count * self.frames
        return np.empty(size, np.int64), at_rewards, at_stacks

    def copies(
        self, count: int, shape: tuple[int, ...], reward_shape: tuple[int, ...], rewards: int
    ) -> Copies:
        """What to copy for `count` positions that a result shows in a shape."""
        stacked = self.frames > 1
        names = self.lanes.names
        at_stacks = 2 * count + (rewards if self.apart else 0)
        result: list[Copy] = []
        for number, name in enumerate(names):
            if not (stacked and name in self.next_names) and not (
                self.apart and number == self.reward
            ):
                result.append(Copy(name, number, 0, shape))
        if self.apart:
            result.append(Copy("reward", self.reward, 2 * count, reward_shape))
        if not stacked:
            for name in self.next_names:
                result.append(Copy(f"next_{name}", names.index(name), count, shape))
            return Copies(self.lanes, result)
        tall = (*shape, self.frames)
        for name in self.next_names:
            result.append(Copy(name, names.index(name), at_stacks, tall))
        for name in self.next_names:
            at = at_stacks + count * self.frames
            result.append(Copy(f"next_{name}", names.index(name), at, tall))
        return Copies(self.lanes, result)


def start_info(drawn: DrawnStarts, envs: Ints, rows: Ints, size: int) -> Info:
    """What the buffer knows of each start."""
    arrays: dict[str, Array] = {
        "keys": ((envs << sl.ROW_BITS) | rows).view(np.uint64),
        "probability": drawn.probability,
        "weights": drawn.weights,
        "env_ids": envs,
        "steps": rows,
    }
    if drawn.priority is not None:
        arrays["priority"] = drawn.priority
    return Info(arrays, size)


class Transitions:
    """How transitions are read, for one buffer."""

    def __init__(
        self, rings: Rings, lanes: Lanes, next_names: list[str], n_step: int, gamma: float
    ) -> None:
        self._rings = rings
        self._n_step = n_step
        self._gamma = gamma
        apart = n_step > 1 or bool(rings.block[sl.REWARD_NEXT])
        self.plan = ColumnPlan(lanes, next_names, int(rings.block[sl.STACK]), apart)
        dtype = lanes.columns[self.plan.reward].dtype
        wide = np.float32 if dtype == np.float32 else np.float64
        self._discounts = (gamma ** np.arange(n_step + 1)).astype(wide)
        self._copies: dict[int, Copies] = {}

    def choose(self, drawn: DrawnStarts, size: int, allocate: Allocate) -> ChosenTransitions:
        """Under the lock: fix the rows of transitions that begin at the drawn starts."""
        n = drawn.slots.size
        numbers = np.empty((sl.TRANSITION_NUMBERS, n), np.int64)
        addresses, at_rewards, at_stacks = self.plan.addresses(n, n * self._n_step)
        self._rings.kernels.reading.plan_transitions(
            self._rings.block, drawn.slots, self._n_step, numbers, addresses, at_rewards, at_stacks
        )
        return ChosenTransitions(self, drawn, numbers, addresses, size, allocate)

    def copies(self, n: int) -> Copies:
        known = self._copies.get(n)
        if known is None:
            steps = self._n_step
            shape = (n,) if steps == 1 else (n, steps)
            if len(self._copies) >= REMEMBERED:
                self._copies.clear()
            known = self._copies[n] = self.plan.copies(n, (n,), shape, n * steps)
        return known

    def finish(self, columns: dict[str, Array], numbers: Ints) -> dict[str, Any]:
        """Add up rewards, say how much the next observation counts, and order the columns."""
        if self._n_step > 1:
            columns["reward"] = n_step_returns(columns["reward"], self._gamma)
        ordered = {name: columns[name] for name in self.plan.order}
        discount = self._discounts[numbers[sl.T_TAKEN]]
        discount[numbers[sl.T_TERMINATED] != 0] = 0.0
        ordered["discount"] = discount
        return ordered


class ChosenTransitions:
    """Transitions as of the moment they were chosen; `read` copies them without the lock.

    `numbers` has a row for each of T_ENV, T_ROW, ... of `kernels.steps_layout`.
    """

    __slots__ = ("_addresses", "_allocate", "_by", "_held", "_size", "drawn", "numbers")

    def __init__(
        self,
        by: Transitions,
        drawn: DrawnStarts,
        numbers: Ints,
        addresses: Ints,
        size: int,
        allocate: Allocate,
    ) -> None:
        self._by = by
        self._addresses = addresses
        self._held = by.plan.lanes.hold()
        self._size = size
        self._allocate = allocate
        self.drawn = drawn
        self.numbers = numbers

    @property
    def info(self) -> Info:
        """Keys, weights and more, which are known before anything is copied."""
        return start_info(self.drawn, self.numbers[sl.T_ENV], self.numbers[sl.T_ROW], self._size)

    def read(self) -> Batch:
        """Copy the payload; needs no lock."""
        lanes = self._by.plan.lanes
        copies = self._by.copies(self.drawn.slots.size)
        columns = lanes.gather(self._addresses, copies, self._allocate)
        return Batch._make(self._by.finish(columns, self.numbers), self.info)
