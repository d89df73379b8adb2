"""Room for groups: what is promised to producers, and what a put into a full buffer does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from recollect.arguments import many, text, whole
from recollect.errors import BufferFull, NeverPossible
from recollect.rollouts.encoding import Encoded
from recollect.rollouts.expiring import as_rows
from recollect.rollouts.group import Group
from recollect.rollouts.rollout import Status
from recollect.schema import Rows
from recollect.selectors import Fifo
from recollect.waiting import Blocked

if TYPE_CHECKING:
    from recollect.rollouts.core import Core

Keys = NDArray[np.uint64]

NO_KEYS = np.zeros(0, np.uint64)
OLDEST_FIRST = Fifo()  # one object: a storage finds its plan by it


class Space:
    """What fits into a buffer. Guarded by the table's lock."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.promised: dict[str, int] = {}  # groups to come, by task
        self._held: dict[int, tuple[int, set[str]]] = {}  # payload and blobs of leases, once asked

    def make(
        self,
        group: Group,
        encoded: Encoded,
        rows: Rows,
        shared: Rows,
        replaced: int | None,
    ) -> Blocked | str | None:
        """None where there is room now; else why not, or that the group was discarded."""
        promises = sum(self.promised.values())
        reserved = self.promised.get(group.task, 0) > 0
        items = nbytes = 0
        if self._core.capacity is not None:
            kept = 0 if self._core.overflow == "drop_stalest" else promises - reserved
            items = len(self._core.storage) + (replaced is None) + kept - self._core.capacity
        if self._core.capacity_bytes is not None:
            coming = self._payload(rows, shared) + sum(map(len, encoded.blobs.values()))
            if coming > self._core.capacity_bytes:
                raise NeverPossible(
                    f"a group of {coming} bytes never fits a buffer of "
                    f"{self._core.capacity_bytes} bytes"
                )
            nbytes = (
                self._core.nbytes
                + self._payload(rows, shared)
                + self._core.blobs.missing(encoded.blobs)
            )
            nbytes -= self._core.capacity_bytes + (
                0 if replaced is None else self._bytes_of(replaced)
            )
        if items > 0 or nbytes > 0:
            items, nbytes = self._drop_archived(items, nbytes)
        if items <= 0 and nbytes <= 0:
            return None
        if self._core.overflow == "drop_stalest" or (reserved and items <= 0):
            spared = NO_KEYS if replaced is None else np.array([replaced], np.uint64)
            return self.drop_stalest(items, nbytes, spared)
        if self._core.overflow == "drop_newest":
            self._core.refuse(group, "overflow")
            return "overflow"
        full = f"the buffer is full: {self._fullness(promises)}"
        if self._core.overflow == "raise":
            raise BufferFull(f"{full}; take groups, or choose another overflow")
        return Blocked(f"{full}, and a group must leave")

    def _fullness(self, promises: int) -> str:
        parts = []
        if self._core.capacity is not None:
            parts.append(f"{len(self._core.storage)} of {many(self._core.capacity, 'group')}")
            if promises:
                parts.append(f"{promises} more promised")
        if self._core.capacity_bytes is not None:
            parts.append(f"{self._core.nbytes} of {self._core.capacity_bytes} bytes")
        return ", ".join(parts)

    def _payload(self, rows: Rows, shared: Rows) -> int:
        table = self._core.table
        assert table._schema is not None
        assert table._shared_schema is not None
        return table._schema.payload(rows) + table._shared_schema.payload(shared)

    def _bytes_of(self, key: int) -> int:
        """The payload that leaves with a group, blobs that others refer to left out."""
        chosen = self._core.storage.get(np.array([key], np.uint64), None)
        batch = chosen.read(np.empty)
        table = self._core.table
        assert table._schema is not None
        assert table._shared_schema is not None
        return table._schema.payload(as_rows(batch)) + table._shared_schema.payload(
            as_rows(batch.shared)
        )

    def _drop_archived(self, items: int, nbytes: int) -> tuple[int, int]:
        """What was trained makes room first, the oldest first; returns what is still missing."""
        where = self._core.where(None, Status.ARCHIVED, None)
        while (items > 0 or nbytes > 0) and self._core.storage.available(where)[0]:
            before = self._core.nbytes
            oldest = self._core.storage.take(OLDEST_FIRST, 1, where, hide=True)
            self._core.remove(oldest.keys, "archived", hidden=True)
            items -= 1
            nbytes -= before - self._core.nbytes
        return items, nbytes

    def drop_stalest(self, items: int, nbytes: int, spared: Keys) -> Blocked | None:
        """Evict all but some groups; what is leased cannot leave."""
        storage = self._core.storage
        if storage.hidden and self._never_enough(items, nbytes, spared):
            return Blocked(
                f"the buffer is full, and of its {many(len(storage), 'group')} {storage.hidden} "
                "are leased; a lease must be confirmed or given back"
            )
        kept = storage.hide(spared)
        blocked = None
        while items > 0 or nbytes > 0:
            if len(storage) == storage.hidden:
                blocked = Blocked(
                    f"the buffer is full and all of its {many(len(storage), 'group')} are leased; "
                    "a lease must be confirmed or given back"
                )
                break
            before = self._core.nbytes
            stalest = storage.take(self._core.table._remover, 1, None, hide=True)
            self._core.remove(stalest.keys, "overflow", hidden=True)
            items -= 1
            nbytes -= before - self._core.nbytes
        if kept.size:
            storage.show(kept, returned=False)
        return blocked

    def _never_enough(self, items: int, nbytes: int, spared: Keys) -> bool:
        """Whether there is no room even when all leave that may: then nobody leaves for nothing."""
        core = self._core
        spared = core.storage.find(spared, None, visible=True)  # a leased one is held already
        if items > len(core.storage) - core.storage.hidden - spared.size:
            return True
        if nbytes <= 0:
            return False
        leases = core.table._leases._held
        self._held = {number: sizes for number, sizes in self._held.items() if number in leases}
        for number, held in leases.items():
            if number not in self._held:
                self._held[number] = self._sizes(held.keys)
        staying = [*self._held.values(), self._sizes(spared)]
        blobs: set[str] = set().union(*(names for _, names in staying))
        kept = sum(payload for payload, _ in staying)
        kept += sum(map(len, core.blobs.get(blobs).values()))
        return nbytes > core.nbytes - kept

    def _sizes(self, keys: Keys) -> tuple[int, set[str]]:
        """The payload of groups, and the names of their blobs."""
        stored = keys.tolist()
        names = {name for key in stored for name in self._core.entries[key].blobs}
        return sum(map(self._bytes_of, stored)), names

    def bytes_of(self, keys: Keys) -> int:
        """The payload of groups, with their blobs."""
        payload, names = self._sizes(keys)
        return payload + sum(map(len, self._core.blobs.get(names).values()))

    def forget_sizes(self) -> None:
        """Groups have other sizes now."""
        self._held.clear()

    def reserve(self, n: int, task: str) -> int:
        n, task = whole("n", n, 0), text("task", task)
        with self._core.table._transaction():
            self._core.table._enter()
            granted = n
            if self._core.capacity is not None:
                taken = 0 if self._core.overflow == "drop_stalest" else len(self._core.storage)
                granted = max(0, min(n, self._core.capacity - taken - sum(self.promised.values())))
            if granted:
                self.promised[task] = self.promised.get(task, 0) + granted
                self._core.changed()
        return granted

    def unreserve(self, n: int, task: str) -> int:
        n, task = whole("n", n, 0), text("task", task)
        with self._core.table._transaction():
            given_back = min(n, self.promised.get(task, 0))
            if given_back:
                self.promised[task] -= given_back
                if not self.promised[task]:
                    del self.promised[task]
                self._core.table._gate.departures.changed(given_back)
                self._core.changed()
        return given_back
