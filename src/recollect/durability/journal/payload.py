"""Payload that waits for the journal: which rows an effect is about, and how they are read later.

Rows in memory are never overwritten, so an effect holds the segments its rows lie in and nothing
is copied under the table's lock. What many effects hold is read together: those that saw the same
segments are one gather.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from recollect.data.batch import Batch
from recollect.kernels import layout
from recollect.storage.base import Chosen, Storage
from recollect.storage.buffers import BufferPool
from recollect.storage.memory.storage import MemoryStorage
from recollect.storage.rows import Directory, Reader

Array = NDArray[Any]
Keys = NDArray[np.uint64]

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
        rows = _joined([self.rows, *(each.rows for each in others)])
        columns, present = rows.gather(MEMORY.array)
        shared = shared_present = None
        if self.shared is not None:
            readers = [self.shared, *(each.shared for each in others if each.shared is not None)]
            shared, shared_present = _joined(readers).gather(MEMORY.array)
        return Batch._make(columns, None, shared, present, shared_present)


def _alike(one: Reader | None, other: Reader | None) -> bool:
    if one is None or other is None:
        return one is other
    return one._reading is other._reading


def _joined(readers: Sequence[Reader]) -> Reader:
    """One reader for the rows of several, one after another.

    Each has the directory of the moment when it was made, and most of them the same. Different
    ones are laid end to end, and the numbers of their segments count through all of them.
    """
    if len(readers) == 1:
        return readers[0]
    joined = copy(readers[0])
    entries = [joined._directory.entries]
    locations = [joined._locations]
    before = 0  # segments of other directories
    for last, reader in pairwise(readers):
        if reader._directory is not last._directory:
            before += len(entries[-1])
            entries.append(reader._directory.entries)
        locations.append(reader._locations + (before << 32) if before else reader._locations)
    joined._locations = np.concatenate(locations)
    if before:  # `readers` hold the segments, and outlive the reading
        joined._directory = Directory(np.concatenate(entries), ())
    if any(reader._rows is not None for reader in readers):
        joined._rows = np.concatenate(
            [np.ones(r._locations.size, np.int32) if r._rows is None else r._rows for r in readers]
        )
    return joined


class Held:
    """Rows of items in another storage."""

    __slots__ = ("chosen",)

    def __init__(self, chosen: Chosen) -> None:
        self.chosen = chosen

    def alike(self, other: Any) -> bool:
        return False

    def read_with(self, others: Sequence[Any]) -> Batch:
        return self.chosen.read(np.empty)


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


def pinned(storage: Storage, keys: Keys, *, shared: bool = True) -> Payload:
    """Under the lock: the rows that stored items have now, and perhaps their shared cells."""
    if not isinstance(storage, MemoryStorage):
        return Held(storage.get(keys, None))
    items, rows = storage._items, storage._rows
    assert rows is not None
    slots = items.slots_of(keys)
    owned = items.owned
    counts = owned[layout.A_ROWS][slots] if layout.A_ROWS in owned else None
    cells = None
    if shared and storage._shared is not None:
        cells = storage._shared.pin(owned[layout.A_SHARED][slots], None)
    return Pinned(rows.pin(items.location[slots], counts), cells)


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
