"""A member of a journal: a table or a buffer that tells it what happens.

The base of `journal_table.JournaledTable` and of those of rollout and replay buffers. What is told
is queued under the member's own lock and in order; waiting for the disk happens without it.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from recollect.durability.journal.records import MARK, RESTARTED, Entry, Section
from recollect.durability.snapshot.members import Member
from recollect.errors import JournalError

if TYPE_CHECKING:
    from recollect.durability.journal.writer import Writer

OVERHEAD = 64  # bytes that an entry takes beside its payload, about
FLUSH_AT = 8 << 20  # bytes that are written without waiting for the interval
MOST_QUEUED = 16 << 20  # bytes of a member that may wait while others are written
PINNED = 4 * MOST_QUEUED  # bytes that are read until they are synced: two records and the queue


class Journaled(ABC):
    """What a journal knows of one table or buffer. Its owner holds it, and it holds no owner."""

    def __init__(self, name: str, owner: Any) -> None:
        self.name = name
        self._owner = weakref.ref(owner)
        self.place = 0
        self.writer: Writer | None = None
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
    def owner(self) -> Any:
        """The table or buffer, None where it is gone."""
        return self._owner()

    # -- while it runs --------------------------------------------------------------------------
    def tell(self, kind: str, **about: Any) -> None:
        """Under the lock: something happened."""
        self.position += 1
        entry = Entry(kind, self.place, self.position, **about)
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

        A follower that changes the table does so under its lock: the call that it follows waits
        for both.
        """
        writer = self.writer
        assert writer is not None
        if writer.calm and self.told - self.taken <= MOST_QUEUED:
            return
        lock: Any = self.transaction()
        if not lock._is_owned():
            writer.settle(self, number)

    async def settle_async(self, number: int) -> None:
        """The same for a coroutine."""
        writer = self.writer
        assert writer is not None
        if not writer.calm or self.told - self.taken > MOST_QUEUED:
            await writer.settle_async(self, number)

    def follow(self, effect: Any) -> None:
        """An effect is told when it is emitted, while its items are there; not here."""
        return

    def restarted(self) -> None:
        """Under the lock: the process is another one, so every lease has ended."""
        self.tell(RESTARTED)

    # -- what each kind of member does ------------------------------------------------------------
    @abstractmethod
    def saved_as(self) -> Member:
        """What snapshots of the owner hold."""

    @abstractmethod
    def transaction(self) -> AbstractContextManager[Any]:
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
        """Under the lock, when it runs: let go of what a smaller owner has no room for."""
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
    def progress(self) -> Any:
        """Under the lock: what must not go back when the owner is rewound."""

    @abstractmethod
    def rewound(self, progress: Any) -> None:
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
