"""Payload that waits for the journal: which rows an effect is about, and how they are read later.

Rows in memory are never overwritten, so an effect holds the segments its rows lie in and nothing
is copied under the table's lock. What many effects hold is read together: those that saw the same
segments are one gather.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np

from recollect.base.arrays import Array
from recollect.data.batch import Batch
from recollect.storage.buffers import BufferPool
from recollect.storage.row_reader import Reader

CHUNK = 32 << 20  # bytes that are read together, about: memory of one size is used again
MEMORY = BufferPool(64 << 20)


class Payload(Protocol):
    """Rows, and perhaps shared cells, that can be read without a lock."""

    def alike(self, other: Any) -> bool:
        """Whether both can be read at once."""
        ...

    def read_with(self, others: Sequence[Any]) -> Batch:
        """The rows of this one and of others that are alike, one after another."""
        ...


class Pinned:
    """Rows of items in memory."""

    __slots__ = ("rows", "shared")

    def __init__(self, rows: Reader, shared: Reader | None) -> None:
        self.rows = rows
        self.shared = shared

    def alike(self, other: Any) -> bool:
        return isinstance(other, Pinned) and (
            _alike(self.rows, other.rows) and _alike(self.shared, other.shared)
        )

    def read_with(self, others: Sequence[Pinned]) -> Batch:
        rows = Reader.joined([self.rows, *(each.rows for each in others)])
        columns, present = rows.gather(MEMORY.array)
        shared = shared_present = None
        if self.shared is not None:
            readers = [self.shared, *(each.shared for each in others if each.shared is not None)]
            shared, shared_present = Reader.joined(readers).gather(MEMORY.array)
        return Batch._make(columns, None, shared, present, shared_present)


def _alike(one: Reader | None, other: Reader | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.alike(other)


class Copied:
    """Steps as they were given: a buffer of steps copies them, since they are the caller's."""

    __slots__ = ("columns",)

    def __init__(self, columns: dict[str, Array]) -> None:
        self.columns = columns

    def alike(self, other: Any) -> bool:
        return isinstance(other, Copied) and self.columns.keys() == other.columns.keys()

    def read_with(self, others: Sequence[Copied]) -> Batch:
        columns: dict[str, Any] = dict(self.columns)
        if others:
            for name, array in self.columns.items():
                parts = [array, *(each.columns[name] for each in others)]
                rows = sum(len(part) for part in parts)
                columns[name] = MEMORY.array((rows, *array.shape[1:]), array.dtype)
                np.concatenate(parts, out=columns[name])
        return Batch._make(columns, None)


def read_all(payloads: Iterable[tuple[Payload, int]]) -> list[Batch]:
    """The rows of all, given with their sizes, in order and in few batches."""
    batches: list[Batch] = []
    together: list[Payload] = []
    total = 0
    for payload, size in payloads:
        if together and (total + size > CHUNK or not together[0].alike(payload)):
            batches.append(together[0].read_with(together[1:]))
            together, total = [], 0
        together.append(payload)
        total += size
    if together:
        batches.append(together[0].read_with(together[1:]))
    return batches
