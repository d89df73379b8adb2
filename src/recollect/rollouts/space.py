"""Room for groups: what is promised to producers, and what a put into a full buffer does."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from recollect.base.arguments import many, text, time_span, whole
from recollect.data.ragged import Ragged
from recollect.data.schema import Rows
from recollect.errors import BufferFull, NeverPossible
from recollect.rollouts.encoding import ARRAYS, Encoded
from recollect.rollouts.expiry import as_rows, expire_due
from recollect.rollouts.group import Group
from recollect.rollouts.rollout import Status
from recollect.rollouts.verbs import Verb
from recollect.rules.selectors import Fifo
from recollect.storage.memory.storage import MemoryStorage
from recollect.table.waiting import Blocked

if TYPE_CHECKING:
    from recollect.rollouts.core import Core

log = logging.getLogger("recollect.rollouts")

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
        """None where there is room now; else why not, or that the group was discarded.

        What was trained makes room first, and nobody leaves for a group that does not come in.
        A reserved group always comes in: where what would give way to it is leased by now, above
        the capacity until something leaves.
        """
        core = self._core
        promises = sum(self.promised.values())
        reserved = self.promised.get(group.task, 0) > 0
        items = nbytes = 0
        if core.capacity is not None:
            items = len(core.storage) + (replaced is None) - core.capacity
        if core.capacity_bytes is not None:
            nbytes = self._missing_bytes(encoded, rows, shared, replaced)
        spared = NO_KEYS if replaced is None else np.array([replaced], np.uint64)
        if reserved:
            if core.overflow != "drop_stalest":
                items, nbytes = self.drop_archived(items, nbytes, spared)
                items = 0  # promises count groups, so only bytes can make others leave
            self.drop_stalest(items, nbytes, spared)
            return None
        if core.overflow == "drop_stalest":
            return self.drop_stalest(items, nbytes, spared)
        if core.capacity is None or not self._crowded(items + promises, spared):
            items, nbytes = self.drop_archived(items, nbytes, spared)
            if items <= 0 and nbytes <= 0:
                return None
        if core.overflow == "drop_newest":
            core.refuse(group, "overflow")
            return "overflow"
        full = f"the buffer is full: {self._fullness(promises)}"
        if core.overflow == "raise":
            raise BufferFull(f"{full}; take groups, or choose another overflow")
        return Blocked(f"{full}, and a group must leave")

    def exceed(self) -> None:
        """Let the storage take one group more than the capacity: a promise is kept."""
        storage = self._core.storage
        if isinstance(storage, MemoryStorage):
            items = storage.items
            items.capacity = max(items.capacity, len(storage) + 1)

    def _crowded(self, items: int, replaced: Keys) -> bool:
        """Whether more groups would stay than there is room for when the archive gives way."""
        if items + replaced.size <= 0:
            return False
        where = self._core.where(None, Status.ARCHIVED, None)
        again = self._core.storage.find(replaced, where, visible=True).size  # it stays from now on
        return items + again > self._archived()

    def _missing_bytes(
        self, encoded: Encoded, rows: Rows, shared: Rows, replaced: int | None
    ) -> int:
        """Bytes that must leave before a group comes, 0 or less where it fits."""
        core, payload = self._core, self._payload(rows, shared)
        if encoded.arrays:  # those of a new name have no column yet
            names = core.table.columns
            new = [c for name, (c, _) in encoded.arrays.items() if ARRAYS + name not in names]
            payload += sum(cells.values.nbytes for cells in new if isinstance(cells, Ragged))
        assert core.capacity_bytes is not None
        coming = payload + sum(map(len, encoded.blobs.values()))
        if coming > core.capacity_bytes:
            raise NeverPossible(
                f"a group of {coming} bytes never fits a buffer of {core.capacity_bytes} bytes; "
                "put smaller groups, or make it with a larger capacity_bytes"
            )
        leaving = 0
        if replaced is not None:
            freed = core.blobs.freed(core.entries[replaced].blobs, encoded.blobs)
            leaving = self._bytes_of(replaced) + freed
        after = core.nbytes + payload + core.blobs.missing(encoded.blobs) - leaving
        return after - core.capacity_bytes

    def is_tight(self) -> bool:
        """Whether a put may find no room."""
        core = self._core
        if core.capacity_bytes is not None:
            return True
        if core.capacity is None:
            return False
        return len(core.storage) + sum(self.promised.values()) >= core.capacity

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
        """The payload of a group, without its blobs."""
        chosen = self._core.storage.get(np.array([key], np.uint64), None)
        batch = chosen.read(np.empty)
        table = self._core.table
        assert table._schema is not None
        assert table._shared_schema is not None
        return table._schema.payload(as_rows(batch)) + table._shared_schema.payload(
            as_rows(batch.shared)
        )

    def drop_archived(self, items: int, nbytes: int, spared: Keys) -> tuple[int, int]:
        """What was trained makes room first, the oldest first; returns what is still missing."""
        if items <= 0 and nbytes <= 0:
            return items, nbytes
        core, storage = self._core, self._core.storage
        where = core.where(None, Status.ARCHIVED, None)
        kept = storage.hide(spared)
        while (items > 0 or nbytes > 0) and storage.available(where)[0]:
            before = core.nbytes
            oldest = storage.take(OLDEST_FIRST, 1, where, hide=True)
            core.remove(oldest.keys, "archived", hidden=True)
            self._let_go()
            items -= 1
            nbytes -= before - core.nbytes
        if kept.size:
            storage.show(kept, returned=False)
        return items, nbytes

    def _let_go(self) -> None:
        """A trained group gave way: where it was kept for a rewind, it will be generated again."""
        core = self._core
        if core.keeping and core.unkept < core.train_step:
            core.unkept = core.train_step
            log.warning(
                "the buffer is full, and trained groups that a checkpoint has not covered yet give "
                "way: a rewind would generate them again; save more often, or raise the capacity"
            )

    def drop_stalest(self, items: int, nbytes: int, spared: Keys) -> Blocked | None:
        """Evict all but some groups, those of the archive first; what is leased cannot leave."""
        if items <= 0 and nbytes <= 0:
            return None
        storage = self._core.storage
        if storage.hidden and self._never_enough(items, nbytes, spared):
            return Blocked(
                f"the buffer is full, and of its {many(len(storage), 'group')} {storage.hidden} "
                "are leased; a lease must be confirmed or given back"
            )
        items, nbytes = self.drop_archived(items, nbytes, spared)
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
        leases = core.table._leases.held()
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

    # -- promises ---------------------------------------------------------------------------------
    def reserve(self, n: int, task: str) -> int:
        n, task = whole("n", n, 0), text("task", task)
        self._core.rules[task]  # raises where a put of the task would
        with self._core.table._transaction():
            self._core.enter()
            return self._promise(min(n, self._free(n)), task)

    def reserve_all(self, n: int, task: str, timeout: float | None) -> Verb[int]:
        """Promise room for n groups, or wait until there is; never for some of them."""
        core = self._core
        n, task = whole("n", n, 0), text("task", task)
        core.rules[task]  # raises where a put of the task would
        if timeout is not None:
            timeout = time_span("timeout", timeout)
        if core.capacity is not None and n > core.capacity:
            raise NeverPossible(
                f"reserve_all: room for {many(n, 'group')} is never there: the capacity is "
                f"{core.capacity}; reserve fewer"
            )

        def attempt() -> int | Blocked:
            expire_due(core)
            free = self._free(n)
            if free < n:
                least = n - free if core.capacity_bytes is None else 1
                fullness = self._fullness(sum(self.promised.values()))
                needs = f"needs room for {many(n, 'group')}, has it for {free}: {fullness}"
                return Blocked(needs, least)
            return self._promise(n, task)

        return Verb(attempt, core.table._gate.departures, timeout, f"reserve_all({n}, {task!r})")

    def _free(self, n: int) -> int:
        """For how many more groups, of n, room can be promised: those that may be dropped give way.

        Nobody knows how large a group will be. So where bytes are bounded, some must be free.
        """
        core = self._core
        staying = len(core.storage) - self._archived()
        if core.overflow == "drop_stalest":
            staying = core.storage.hidden  # what is leased cannot leave
            if core.capacity is not None and staying < core.capacity < len(core.storage):
                self.drop_stalest(len(core.storage) - core.capacity, 0, NO_KEYS)  # what was above
        full = core.capacity_bytes is not None and core.nbytes >= core.capacity_bytes
        if full and staying == len(core.storage):
            return 0
        if core.capacity is None:
            return n
        return max(0, min(n, core.capacity - staying - sum(self.promised.values())))

    def _archived(self) -> int:
        return self._core.storage.available(self._core.where(None, Status.ARCHIVED, None))[0]

    def _promise(self, n: int, task: str) -> int:
        if n:
            self.promised[task] = self.promised.get(task, 0) + n
            self._core.changed()
        return n

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
