"""Rows of steps: a lane per environment, an independent tail of append-only segments.

A lane's segments have the same number of rows, a power of two, so that environment and row give
the place of a record by arithmetic and a row needs no entry of its own. Nothing is written where
something was written before: a segment all of whose rows have left its ring is used again only
when no reader holds it. So what was chosen under the lock is copied without it.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from recollect.base.arrays import Array, Bytes, Ints
from recollect.data.schema import Schema
from recollect.errors import SchemaError
from recollect.kernels import layout
from recollect.kernels import steps_layout as sl
from recollect.storage.buffers import Allocate, BufferPool

LARGEST = 8 << 20  # bytes of a segment
FEWEST = 16  # rows of a segment
SHARE = 32  # segments of a ring: what is kept too long is a thirty-second of it


class Copy(NamedTuple):
    """One column of a result: which column, from which addresses on, and the result's shape."""

    name: str
    column: int
    begin: int
    shape: tuple[int, ...]


class Lanes:
    """The payload of all rings. Its caller holds the lock.

    `block` describes the rings to kernels (`kernels.steps_layout`); this class owns what stands
    there about segments.
    """

    def __init__(self, block: Ints, schema: Schema, kernels: Any) -> None:
        self._block = block
        self._kernels = kernels
        self._envs, ring = int(block[sl.ENVS]), int(block[sl.RING])
        self._lay_out(schema)
        rows = FEWEST
        while rows * SHARE * 2 <= ring and rows * 2 * self.stride <= LARGEST:
            rows *= 2
        self.segment_rows = rows
        places = 4
        while places < ring // rows + 3:
            places *= 2
        self._shift = rows.bit_length() - 1
        self._places = places
        self._bases = np.zeros(self._envs * places, np.int64)
        self._room = np.zeros(self._envs, np.int64)
        self._lowest = [0] * self._envs  # the first segment of each lane, by number
        self._buffers: list[Bytes | None] = [None] * (self._envs * places)
        self._pool = BufferPool(0)  # it makes buffers; those of one size are kept here
        self._spare: deque[Bytes] = deque()
        self._unused = _references_of_unused()
        self._held: tuple[Bytes, ...] | None = None
        self.allocated = 0
        for place, value in (
            (sl.STRIDE, self.stride), (sl.SHIFT, self._shift), (sl.SEGMENTS, places),
            (sl.A_ROOM, self._room.ctypes.data), (sl.A_BASES, self._bases.ctypes.data),
        ):  # fmt: skip
            block[place] = value

    def _lay_out(self, schema: Schema) -> None:
        self.schema = schema
        self.names = list(schema.columns)
        self.columns = list(schema.columns.values())
        self.table = np.zeros((len(self.columns), layout.COLUMN_BLOCK), np.int64)
        offset = 0
        for place, column in enumerate(self.columns):
            if column.ragged or column.optional or column.shared:
                kind = "ragged" if column.ragged else "optional" if column.optional else "shared"
                raise SchemaError(
                    f"column {self.names[place]!r}: a step's cells have one shape, and this column "
                    f"is {kind}; give arrays of one shape (padded, with their length as another "
                    "column), or use an rc.Table"
                )
            self.table[place] = layout.FIXED, offset, column.size
            offset += column.size
        self.stride = max((offset + 3) & ~3, 4)
        self.row_bytes = offset

    # -- segments -------------------------------------------------------------------------------
    def open_segment(self, env: int, oldest: int) -> None:
        """Give a lane its next segment; `oldest` is the first row that its ring holds."""
        self.drop_before(env, oldest)
        number = int(self._room[env]) >> self._shift
        place = env * self._places + (number & (self._places - 1))
        buffer = self._fresh()
        self._buffers[place] = buffer
        self._bases[place] = buffer.ctypes.data
        self._room[env] += self.segment_rows
        self.allocated += buffer.size
        self._held = None

    def drop_before(self, env: int, oldest: int) -> None:
        """Give up the segments of a lane whose rows have all left."""
        last = int(self._room[env]) >> self._shift
        live = min(oldest >> self._shift, last)
        for number in range(self._lowest[env], live):
            place = env * self._places + (number & (self._places - 1))
            buffer = self._buffers[place]
            assert buffer is not None
            self._buffers[place] = None
            self._bases[place] = 0
            self.allocated -= buffer.size
            self._held = None
            if len(self._spare) <= self._envs:
                self._spare.append(buffer)
        self._lowest[env] = live

    def _fresh(self) -> Bytes:
        """A segment: one that was given up and that no reader holds, or a new one."""
        for _ in range(min(len(self._spare), 4)):
            if sys.getrefcount(self._spare[0]) == self._unused:
                return self._spare.popleft()
            self._spare.rotate(-1)
        return self._pool.bytes(self.segment_rows * self.stride)

    def begin_at(self, env: int, row: int) -> None:
        """A lane without rows begins with this one."""
        self._lowest[env] = row >> self._shift
        self._room[env] = self._lowest[env] << self._shift

    def open_up_to(self, env: int, oldest: int, row: int) -> None:
        """Give a lane segments for all rows before this one."""
        while self._room[env] < row:
            self.open_segment(env, oldest)

    def write_runs(self, keys: Ints, oldest: Ints, columns: list[Array]) -> None:
        """Copy rows to where their keys say, those that are older than `oldest` left out.

        Consecutive rows of a segment go in one piece. The segments must be there, and unread.
        """
        rows = keys & sl.ROW_MASK
        same = (np.diff(keys) == 1) & (np.diff(rows >> self._shift) == 0)
        bounds = np.concatenate([[0], np.flatnonzero(~same) + 1, [keys.size]]).tolist()
        for begin, end in pairwise(bounds):
            env, first = int(keys[begin]) >> sl.ROW_BITS, int(rows[begin])
            skipped = min(max(int(oldest[env]) - first, 0), end - begin)
            if skipped == end - begin:
                continue
            row = first + skipped
            place = env * self._places + ((row >> self._shift) & (self._places - 1))
            self._kernels.rows.append_fixed(
                int(self._bases[place]), self.stride, row & (self.segment_rows - 1),
                begin + skipped, end, self.table, id(columns),
            )  # fmt: skip

    # -- reading --------------------------------------------------------------------------------
    def hold(self) -> tuple[Bytes, ...]:
        """Under the lock: all segments as they are now. They stay as long as this is kept."""
        if self._held is None:
            self._held = tuple(b for b in self._buffers if b is not None)
        return self._held

    def frozen(self) -> Ints:
        """Under the lock: where segments stand now, for `addresses` without the lock."""
        return self._bases.copy()

    def addresses(self, bases: Ints, envs: Ints | int, rows: Ints) -> Ints:
        """Where the records of rows stand, of one environment or of one for each."""
        places = envs * self._places + ((rows >> self._shift) & (self._places - 1))
        found: Ints = bases[places] + (rows & (self.segment_rows - 1)) * self.stride
        return found

    def gather(self, addresses: Ints, copies: Copies, allocate: Allocate) -> dict[str, Array]:
        """Copy cells of records, an array per copy; 0 is a record of zeros.

        Needs no lock, but what `hold` returned when the addresses were made.
        """
        arrays = [allocate(shape, dtype) for shape, dtype in copies.shapes]
        jobs = copies.jobs.copy()
        jobs[:, sl.JOB_TARGET] = [id(array) for array in arrays]
        self._kernels.reading.gather(addresses, jobs)
        return dict(zip(copies.names, arrays, strict=True))


class Copies:
    """What a gather copies, worked out once for results of one size."""

    __slots__ = ("jobs", "names", "shapes")

    def __init__(self, lanes: Lanes, copies: Sequence[Copy]) -> None:
        self.names = [copy.name for copy in copies]
        self.shapes: list[tuple[tuple[int, ...], Any]] = []
        self.jobs = np.zeros((len(copies), sl.JOB), np.int64)
        for place, (_, number, begin, shape) in enumerate(copies):
            column, entry = lanes.columns[number], lanes.table[number]
            self.shapes.append(((*shape, *column.shape), column.dtype))
            count = int(np.prod(shape, dtype=np.int64))
            self.jobs[place, : sl.JOB_TARGET] = (
                begin, count, entry[layout.OFFSET], entry[layout.SIZE],
            )  # fmt: skip


def _references_of_unused() -> int:
    """What getrefcount says of a buffer that only a queue refers to, asked in the same way."""
    spare = deque([np.empty(0, np.uint8)])
    return sys.getrefcount(spare[0])
