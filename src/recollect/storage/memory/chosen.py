"""Items that a call got from memory: what the table knew of them, and readers of their payload."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from recollect.base.arrays import Array, Floats, Ints, Keys
from recollect.data.batch import Batch
from recollect.data.info import Info
from recollect.kernels import layout
from recollect.storage.buffers import Allocate
from recollect.storage.fields import FieldArray
from recollect.storage.memory.items import Items
from recollect.storage.row_reader import Gathering, Reader
from recollect.storage.rows import RowStore

# rows of what the kernel `choose` fills
KEY, TIMES, LOCATION, SLOT, LEFT = 0, 1, 2, 3, 4
PROBABILITY, PRIORITY, WEIGHTS = 0, 1, 2

FIRST = np.zeros(1, np.int64)
_ends_of: dict[int, Ints] = {}


class MemoryChosen:
    """Some items, as of the moment they were chosen. `pin` must come before `read`."""

    __slots__ = (
        "_allocate", "_begun", "_later", "_reader", "_rows", "_shared", "columns", "count",
        "floats", "ints", "left", "table_size", "worn",
    )  # fmt: skip

    def __init__(self, ints: Ints, floats: Floats, count: int, left: int = 0) -> None:
        self.ints = ints
        self.floats = floats
        self.count = count
        self.left = left
        self.worn: MemoryChosen | None = None
        self.columns: Sequence[str] | None = None
        self._begun: Gathering | None = None

    @property
    def keys(self) -> Keys:
        keys: Keys = self.ints[KEY].view(np.uint64)
        return keys

    @property
    def slots(self) -> Ints:
        slots: Ints = self.ints[SLOT]
        return slots

    def pin(
        self, items: Items, rows: RowStore, shared: RowStore | None, allocate: Allocate
    ) -> None:
        """Under the lock: hold the segments, and take down every field that somebody set."""
        owned = items.owned
        slots = self.ints[SLOT]
        later: dict[str, Callable[[], Array]] = {}
        for name, field in items.fields.items():
            later[name] = field.later(slots)
        for name, field in items.unset.items():
            later[name] = partial(_repeated, field, slots.size)
        if layout.A_DELIVERIES in owned:
            deliveries = owned[layout.A_DELIVERIES][slots].astype(np.int64) + 1
            later["deliveries"] = lambda: deliveries
        self._later = later
        self._rows = owned[layout.A_ROWS][slots] if layout.A_ROWS in owned else None
        self._reader: Reader = rows.pin(self.ints[LOCATION], self._rows)
        self._shared: Reader | None = None
        if shared is not None:
            self._shared = shared.pin(owned[layout.A_SHARED][slots], None)
        self.table_size: int = items.now[layout.LIVE]
        self._allocate = allocate

    def narrow(self) -> None:
        """Hold only what is needed: for those that are kept for long."""
        self._reader.narrow()
        if self._shared is not None:
            self._shared.narrow()

    def begin(self) -> None:
        """Have another thread begin with what `open` goes on with: for who has more to do first."""
        with suppress(MemoryError):  # `open` says so, when all who must know of the items do
            self._begun = self._reader.begin(self._allocate, self.columns)

    def read(self, allocate: Allocate | None = None, lease: Any = None) -> Batch:
        """Copy the payload; needs no lock."""
        batch, finish = self.open(allocate, lease)
        if finish is not None:
            finish()
        return batch

    def open(
        self, allocate: Allocate | None = None, lease: Any = None
    ) -> tuple[Batch, Callable[[], None] | None]:
        """What `read` returns; and where another thread still copies cells that vary, a call that
        copies with it and waits. Until then nobody may read these cells.
        """
        gathering = None
        if allocate is None:
            gathering, self._begun = self._begun, None
            allocate = self._allocate
        if gathering is None:
            gathering = self._reader.begin(allocate, self.columns)
        shared = shared_present = None
        if self._shared is not None:
            shared, shared_present = self._shared.gather(allocate)
        ints, floats = self.ints, self.floats
        rows = self._rows
        later = self._later | {
            "row_offsets": partial(_ends, self.count) if rows is None else partial(_sums, rows)
        }
        arrays: dict[str, Array] = {
            "keys": ints[KEY].view(np.uint64),
            "priority": floats[PRIORITY],
            "probability": floats[PROBABILITY],
            "weights": floats[WEIGHTS],
            "times_sampled": ints[TIMES],
        }
        info = Info(arrays, self.table_size, lease, later)
        columns, present = gathering.columns()
        batch = Batch._make(columns, info, shared, present, shared_present)
        if gathering.shared:
            return batch, gathering.finish
        gathering.finish()
        return batch, None


def joined(parts: Sequence[MemoryChosen]) -> MemoryChosen:
    """Several choices as one."""
    ints = np.concatenate([part.ints for part in parts], axis=1)
    floats = np.concatenate([part.floats for part in parts], axis=1)
    left = np.concatenate([part.ints[LEFT, : part.left] for part in parts])
    ints[LEFT, : left.size] = left
    return MemoryChosen(ints, floats, ints.shape[1], left.size)


def named(items: Items, slots: Ints) -> MemoryChosen:
    """Items that were named, not drawn."""
    ints = np.zeros((5, slots.size), np.int64)
    floats = np.ones((3, slots.size))
    ints[KEY] = items.key[slots].view(np.int64)
    ints[TIMES] = items.times[slots]
    ints[LOCATION] = items.location[slots]
    ints[SLOT] = slots
    floats[PROBABILITY] = 1.0 / max(1, items.now[layout.LIVE])
    floats[PRIORITY] = items.priority[slots]
    return MemoryChosen(ints, floats, slots.size)


def _repeated(field: FieldArray, count: int) -> Array:
    """A field that no item has."""
    return np.repeat(field.read(FIRST), count)


def _ends(count: int) -> Ints:
    """0, 1, ..., count: where items of one row start. Shared between batches, so read-only."""
    ends = _ends_of.get(count)
    if ends is None:
        ends = np.arange(count + 1)
        ends.setflags(write=False)
        if len(_ends_of) >= 64:
            _ends_of.clear()
        _ends_of[count] = ends
    return ends


def _sums(counts: Array) -> Ints:
    ends = np.zeros(counts.size + 1, np.int64)
    np.cumsum(counts, out=ends[1:])
    return ends
