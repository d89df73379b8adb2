"""Sequences and whole episodes: runs of steps that begin at a chosen start.

A sequence is a start, not a copy. Its rows are worked out under the lock: they never go across
the write position, a final observation is no step, and where an episode ends the rest is padded
(zeros, `valid` False) or taken from the next episode. Masks say what each position is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recollect.base.arguments import whole
from recollect.base.arrays import Array, Ints
from recollect.data.batch import Batch
from recollect.data.info import Info
from recollect.errors import InvalidValue, NeverPossible, shown
from recollect.kernels import steps_layout as sl
from recollect.replay.episodes import Rings
from recollect.replay.returns import REMEMBERED, ColumnPlan, start_info
from recollect.replay.start_draws import DrawnStarts
from recollect.replay.starts import MODES, StartKind
from recollect.storage.buffers import Allocate
from recollect.storage.lanes import Copies, Copy, Lanes

Flags = NDArray[np.int8]

LONGEST = 1 << 31
ADDED_UP = 1 << 20  # rows whose rewards are added up at a time


def sequence_kind(
    length: Any, burn_in: Any, across: Any, stride: Any, ring: int
) -> tuple[StartKind, int]:
    """The kind of starts that sequences need, and their length; raises where none can be."""
    length = whole("length", length, 1, LONGEST)
    burn_in = whole("burn_in", burn_in, 0)
    stride = whole("stride", stride, 1, LONGEST)
    if burn_in >= length:
        raise InvalidValue(
            f"burn_in: length {length} includes the burn-in, so it must be less, got {burn_in}"
        )
    if not isinstance(across, str) or across not in MODES:
        raise InvalidValue(
            f"across_episodes: expected {', '.join(map(repr, MODES))}, got {shown(across)}"
        )
    span = (length - 1) * stride + 1
    if span > ring and across != "pad":
        raise NeverPossible(
            f"length: {length} steps, {stride} apart, span {span} rows, and a ring has {ring}; use "
            "a larger capacity or across_episodes='pad'"
        )
    pad = across == "pad"  # only there does the burn-in, and the distance, decide what is legal
    kind = StartKind(MODES[across], span, stride if pad else 1, burn_in if pad else 0)
    return kind, length


class StepRuns:
    """How runs of steps are read, for one buffer."""

    def __init__(self, rings: Rings, lanes: Lanes, next_names: list[str]) -> None:
        self._rings = rings
        apart = bool(rings.block[sl.REWARD_NEXT])
        self.plan = ColumnPlan(lanes, next_names, int(rings.block[sl.STACK]), apart)
        self._copies: dict[tuple[int, ...], Copies] = {}
        self._bounds: dict[tuple[int, int], Ints] = {}

    def choose(
        self,
        drawn: DrawnStarts,
        bounds: Ints,
        stride: int,
        across: bool,
        size: int,
        allocate: Allocate,
    ) -> ChosenRuns:
        """Under the lock: fix the rows of runs; run i has bounds[i + 1] - bounds[i] positions."""
        total = int(bounds[-1])
        numbers = np.empty((2, drawn.slots.size), np.int64)
        flags = np.empty((sl.POSITION_FLAGS, total), np.int8)
        addresses, at_rewards, at_stacks = self.plan.addresses(total, total)
        self._rings.kernels.reading.plan_runs(
            self._rings.block, drawn.slots, bounds, stride, across, numbers, flags, addresses,
            at_rewards, at_stacks,
        )  # fmt: skip
        return ChosenRuns(self, drawn, numbers, flags, addresses, size, allocate)

    def bounds(self, n: int, length: int) -> Ints:
        """The bounds of n runs of one length."""
        known = self._bounds.get((n, length))
        if known is None:
            if len(self._bounds) >= REMEMBERED:
                self._bounds.clear()
            known = self._bounds[n, length] = np.arange(n + 1) * length
        return known

    def episode_bounds(self, slots: Ints) -> Ints:
        """The bounds of runs that are whole episodes."""
        envs, rows, _ = self._rings.rows_at(slots)
        found = np.empty((slots.size, 6), np.int64)
        self._rings.kernels.episodes.episodes_of(self._rings.block, envs, rows, found)
        return np.concatenate([[0], np.cumsum(found[:, 3] - found[:, 0])])

    def copies(self, shape: tuple[int, ...]) -> Copies:
        known = self._copies.get(shape)
        if known is None:
            total = int(np.prod(shape))
            if len(self._copies) >= REMEMBERED:
                self._copies.clear()
            known = self._copies[shape] = self.plan.copies(total, shape, shape, total)
        return known


class ChosenRuns:
    """Runs as of the moment they were chosen; they are read without the lock."""

    __slots__ = ("_addresses", "_allocate", "_by", "_held", "_size", "drawn", "flags", "numbers")

    def __init__(
        self,
        by: StepRuns,
        drawn: DrawnStarts,
        numbers: Ints,
        flags: Flags,
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
        self.flags = flags

    def _read(self, shape: tuple[int, ...]) -> dict[str, Any]:
        lanes = self._by.plan.lanes
        columns = lanes.gather(self._addresses, self._by.copies(shape), self._allocate)
        ordered: dict[str, Any] = {name: columns[name] for name in self._by.plan.order}
        for name, place in (("terminated", sl.IS_TERMINATED), ("truncated", sl.IS_TRUNCATED)):
            ordered[name] = self._mask(place, shape)
        return ordered

    def _mask(self, place: int, shape: tuple[int, ...]) -> NDArray[np.bool_]:
        mask: NDArray[np.bool_] = self.flags[place].view(np.bool_).reshape(shape)
        return mask

    def _info(self) -> Info:
        return start_info(self.drawn, self.numbers[0], self.numbers[1], self._size)

    def sequences(self, length: int, burn_in: int) -> Batch:
        """Copy sequences: columns `[n, length, ...]`, and masks."""
        n = self.drawn.slots.size
        shape = (n, length)
        columns = self._read(shape)
        columns["valid"] = self._mask(sl.IS_VALID, shape)
        columns["is_first"] = self._mask(sl.IS_FIRST, shape)
        warm = np.zeros(shape, np.bool_)
        warm[:, :burn_in] = True
        columns["burn_in"] = warm
        columns["bootstrap"] = self._mask(sl.IS_BOOTSTRAP, shape)
        return Batch._make(columns, self._info())

    def episodes(self, bounds: Ints) -> Batch:
        """Copy whole episodes: columns `[rows, ...]`, with `info.row_offsets` between them."""
        shape = (int(bounds[-1]),)
        columns = self._read(shape)
        columns["is_first"] = self._mask(sl.IS_FIRST, shape)
        columns["bootstrap"] = self._mask(sl.IS_BOOTSTRAP, shape)
        info = self._info()
        info.__dict__["row_offsets"] = bounds
        info.__dict__["cut"] = np.zeros(self.drawn.slots.size, np.bool_)
        return Batch._make(columns, info)


class EpisodeTable:
    """The episodes as of one moment; returns are added up without the lock.

    It is made under the lock.
    """

    def __init__(self, rings: Rings, lanes: Lanes | None) -> None:
        self._found = rings.episodes()
        self._lanes = lanes
        self._next = int(rings.block[sl.REWARD_NEXT])
        self._held = None if lanes is None else lanes.hold()
        self._bases = None if lanes is None else lanes.frozen()

    def read(self) -> Batch:
        """A row per episode, by environment and start."""
        found = self._found
        columns: Mapping[str, Any] = {
            "env": found[:, 0].copy(),
            "start": found[:, 1].copy(),
            "length": found[:, 4] - found[:, 1],
            "return": self._returns(),
            "complete": found[:, 5] != 0,
            "cut": found[:, 3] != 0,
        }
        return Batch._make(dict(columns), None)

    def _returns(self) -> Array:
        lanes, found = self._lanes, self._found
        sums = np.zeros(len(found))
        if lanes is None:
            return sums
        number = lanes.names.index("reward")
        lengths = found[:, 4] - found[:, 1]
        done = 0
        while done < len(found):
            upto = done + 1
            rows = int(lengths[done])
            while upto < len(found) and rows + lengths[upto] <= ADDED_UP:
                rows += int(lengths[upto])
                upto += 1
            assert self._bases is not None
            addresses = np.concatenate(
                [
                    lanes.addresses(self._bases, env, np.arange(first, end) + self._next)
                    for env, first, end in found[done:upto, [0, 1, 4]].tolist()
                ]
            )
            copies = Copies(lanes, [Copy("reward", number, 0, (rows,))])
            rewards = lanes.gather(addresses, copies, np.empty)["reward"].astype(np.float64)
            starts = np.cumsum(lengths[done:upto]) - lengths[done:upto]
            sums[done:upto] = np.add.reduceat(rewards, starts)
            done = upto
        return sums
