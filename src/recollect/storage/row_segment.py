"""Segments: pages of rows, and where in them the rows of one call go.

A page has records from its front and varying cells from its back (see `kernels.rows`). A location
is a segment's number and a row in it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from recollect.base.arrays import Ints


class Segment:
    """One page of rows."""

    __slots__ = ("base", "buffer", "most", "number", "origin", "owners", "rows", "serial",
                 "stride", "tail")  # fmt: skip

    def __init__(
        self, buffer: NDArray[np.uint8], base: int, number: int, serial: int, stride: int
    ) -> None:
        self.buffer = buffer
        self.stride = stride
        self.most = buffer.size // stride  # rows
        self.base = base  # its address
        self.number = number
        self.origin = number << 32  # the location of its first row
        self.serial = serial  # how many were opened before it, and it
        self.rows = 0
        self.tail = buffer.size & ~7
        self.owners: NDArray[np.int32] | None = None

    @property
    def used(self) -> int:
        """Bytes that were written: records and varying cells."""
        return self.rows * self.stride + self.buffer.size - self.tail

    def owned_by(self) -> Ints:
        """Slots whose items had rows here: some may have gone, or moved away."""
        if self.owners is None:
            return np.zeros(0, np.int64)
        owners = np.unique(self.owners[: self.rows])
        return owners[owners >= 0].astype(np.int64)


class Stretch(NamedTuple):
    """Some of the rows that come together, and where they go."""

    segment: Segment
    first: int  # row of the segment
    begin: int  # of the rows that come,
    end: int  # up to here


def spread(locations: Ints, per_item: NDArray[np.int32], count: int) -> Ints:
    """The location of each item, where one may stand for all that follow each other."""
    if locations.size == count:
        return locations
    rows = np.broadcast_to(per_item, count)
    starts: Ints = locations[0] + np.cumsum(rows, dtype=np.int64) - rows
    return starts


def stretches_of(locations: Ints, count: int) -> Ints:
    """How a kernel sees rows that are stored: one location stands for rows side by side."""
    if locations.size == 1:
        return np.array([[0, locations[0], count]])
    begins = np.flatnonzero(np.diff(locations, prepend=locations[0] - 2) != 1)
    ends = np.append(begins[1:], count)
    return np.stack([np.zeros_like(begins), locations[begins], ends], axis=1)
