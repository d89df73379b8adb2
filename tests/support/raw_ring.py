"""A ring of marks alone, in which episodes are found as a buffer finds them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from recollect.kernels import steps_layout as sl
from recollect.replay.episodes import Rings

Ints = NDArray[np.int64]


def find_episodes(ends: NDArray[np.bool_], newest: int, full: bool) -> tuple[Ints, Ints]:
    """Where the episodes of a raw ring begin and how long they are, in order of where they end.

    `ends` marks the places whose row is an episode's last, `newest` is the place that was written
    last, and `full` says whether the ring went round: without, places after `newest` are empty.
    """
    oldest = (newest + 1) % ends.size if full else 0
    count = ends.size if full else newest + 1
    rings = Rings(1, ends.size)
    room, bases = np.array([1 << 60]), np.zeros(1, np.int64)
    rings.block[sl.A_ROOM], rings.block[sl.A_BASES] = room.ctypes.data, bases.ctypes.data
    rings.block[sl.SEGMENTS] = 1
    rings.begin_at(0, oldest)  # a row's number is its place
    terminated = np.ascontiguousarray(np.roll(ends, -oldest)[:count])
    inputs = np.zeros(sl.IN_COLUMNS, np.int64)
    inputs[sl.IN_TERMINATED] = id(terminated)
    rings.kernels.steps.append(
        rings.block, np.zeros((0, sl.STARTS_BLOCK), np.int64), np.zeros((0, 3), np.int64),
        inputs, np.zeros(1, np.int64), 0, count, 1.0, np.empty(count, np.uint64),
    )  # fmt: skip
    found = rings.episodes()
    found = found[np.argsort((found[:, 2] - 1) % ends.size)]
    return found[:, 1] % ends.size, found[:, 4] - found[:, 1]
