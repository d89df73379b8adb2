"""A member of a journal: what a table or a buffer tells it, and how that is done again.

`Journaled` is the base of what follows tables, rollout buffers and replay buffers. An entry is
queued under the owner's own lock, so entries are in order; a caller waits for the disk without it.
"""

from __future__ import annotations

import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Protocol, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from recollect.durability.journal.payload import Payload
from recollect.durability.journal.records import MARK, RESTARTED, Entry, Section
from recollect.durability.snapshot.members import Member
from recollect.errors import JournalError

OVERHEAD = 64  # bytes that an entry takes beside its payload, about
FLUSH_AT = 8 << 20  # bytes that are written without waiting for the interval
MOST_QUEUED = 16 << 20  # bytes of a member that may wait while others are written
PINNED = 4 * MOST_QUEUED  # bytes that are read until they are synced: two records and the queue


class EntryQueue(Protocol):
    """What a member needs of the writer of its journal."""

    failures: int  # how often writing failed
    calm: bool  # whether a call need not even ask

    def put(self, entry: Entry, urgent: bool) -> None:
        """Queue an entry, under the lock of its member."""
        ...

    def settle(self, member: Journaled, number: int) -> None:
        """Return when a member's effects up to a number are as safe as was promised."""
        ...

    async def settle_async(self, member: Journaled, number: int) -> None:
        """The same for a coroutine."""
        ...


class EntryParts(TypedDict, total=False):
    """What an entry says beside its kind; `Entry` explains each of them."""

    number: int
    keys: NDArray[np.uint64]
    values: NDArray[Any]
    per_item: NDArray[np.int32]
    at: float
    about: Mapping[str, Any] | bytes | None
    payload: Payload | None
    late: Payload | None
    blobs: Mapping[str, bytes] | None
    nbytes: int


class Journaled(ABC):
    """What a journal knows of one table or buffer, its owner.

    The owner holds its member, and the member holds a weak reference to the owner: a table that
    nobody uses any more is collected, and its journal is closed then.
    """

    def __init__(self, name: str, owner: object) -> None:
        self.name = name
        self._owner = weakref.ref(owner)
        self.place = 0  # among the members of its journal
        self.writer: EntryQueue | None = None
        self.position = 0  # of what was told last
        self.covered = 0  # up to here the snapshot has it all, when records are replayed
        self.number = 0  # of the effect that was told last
        self.noted = 0  # position of the last change that callers wait for and that is no effect
        self.durable_position = 0
        self.durable_number = 0
        self.failures = 0  # of the writer, when something was told last
        self.told = 0  # bytes, since the beginning
        self.taken = 0  # of them, to be written now
        self.written = 0
        self.stated = 0  # the position at which the state was told last

    @property
    def owner(self) -> object | None:
        """The table or buffer; None once it has been collected."""
        return self._owner()

    # -- while it runs --------------------------------------------------------------------------
    def tell(self, kind: str, **parts: Unpack[EntryParts]) -> None:
        """Under the lock: something happened."""
        self.position += 1
        entry = Entry(kind, self.place, self.position, **parts)
        self.number = entry.number = max(entry.number, self.number)
        entry.nbytes += OVERHEAD + entry.keys.nbytes + entry.values.nbytes
        self.told += entry.nbytes
        writer = self.writer
        assert writer is not None
        self.failures = writer.failures
        writer.put(entry, self.told - self.taken >= FLUSH_AT)

    def note(self) -> None:
        """Under the lock: the state changed, and no effect says so."""
        self.tell(MARK)
        self.noted = self.position

    def mark(self) -> int:
        """Under the lock: a snapshot is captured here; returns what it covers."""
        self.tell(MARK)
        return self.position

    def settle(self, number: int) -> None:
        """Without the lock: return when effects up to a number are as safe as promised.

        A follower changes the table under the table's lock. Its call does not wait, because a
        flush needs that lock, too; the call that it follows waits for both.
        """
        writer = self.writer
        assert writer is not None
        if writer.calm and self.told - self.taken <= MOST_QUEUED:
            return
        if not _held_by_this_thread(self.transaction()):
            writer.settle(self, number)

    async def settle_async(self, number: int) -> None:
        """The same for a coroutine."""
        writer = self.writer
        assert writer is not None
        if not writer.calm or self.told - self.taken > MOST_QUEUED:
            await writer.settle_async(self, number)

    def follow(self, effect: object) -> None:
        """Nothing: `record` told the effect when it was emitted, while its items were there."""
        return

    def restarted(self) -> None:
        """Under the lock: the process is another one, so every lease has ended."""
        self.tell(RESTARTED)

    # -- what each kind of member does ------------------------------------------------------------
    @abstractmethod
    def saved_as(self) -> Member:
        """What snapshots of the owner hold."""

    @abstractmethod
    def transaction(self) -> threading.RLock:
        """The owner's lock."""

    @abstractmethod
    def begin(self) -> None:
        """Under the lock: the owner tells everything from now on."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Under the lock: what effects do not say, as plain data."""

    @abstractmethod
    def replay(self, section: Section) -> None:
        """Under the lock: do again what a record tells, beyond what the snapshot has."""

    @abstractmethod
    def leased(self) -> list[int]:
        """Under the lock: the keys of what is leased now."""

    @abstractmethod
    def lease_again(self, keys: list[int]) -> None:
        """Under the lock: a snapshot, which takes leases as given back, was loaded."""

    @abstractmethod
    def recovered(self) -> bool:
        """Under the lock: all records were replayed; returns whether leases ended by that."""

    def trim(self) -> None:
        """Under the lock, once effects are told: evict what a smaller owner has no room for."""
        return

    @abstractmethod
    def used(self) -> bool:
        """Under the lock: whether the owner is not as it was made."""

    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of payload that are stored now."""

    @abstractmethod
    def after_loss(self) -> None:
        """Under the lock: effects may have been lost; never give their keys again."""

    @abstractmethod
    def progress(self) -> tuple[int, ...]:
        """Under the lock: what must not go back when the owner is rewound."""

    @abstractmethod
    def rewound(self, progress: tuple[int, ...]) -> None:
        """Under the lock: the owner has another state now."""

    def describe(self) -> dict[str, Any]:
        """What must be the same when the journal is opened again."""
        return {"name": self.name, "kind": type(self).__name__}

    def check(self, described: dict[str, Any], where: str) -> None:
        """Raise unless a journal of such a member can be replayed here."""
        mine = self.describe()
        for name, value in described.items():
            if mine.get(name) != value:
                raise JournalError(
                    f"{where}: {self.name!r} was journaled with {name} {value!r} and has "
                    f"{mine.get(name)!r} now; make it as it was, or give it a new journal"
                )


def _held_by_this_thread(lock: threading.RLock) -> bool:
    """Whether this thread holds a lock, which `RLock` does not say in public.

    A condition over the lock does: only who holds it may notify, and here nobody is notified.
    """
    try:
        threading.Condition(lock).notify(0)
    except RuntimeError:
        return False
    return True
