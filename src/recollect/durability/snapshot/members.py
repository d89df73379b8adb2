"""What a snapshot can hold under one name: a table, a rollout buffer or a replay buffer.

A `Member` stands for one of them. It knows its lock, how its state is captured and put back, and
the ledger of what is on disk. The classes are where tables and buffers are.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from recollect.data.batch import Batch
from recollect.durability.snapshot.ledger import Ledger
from recollect.errors import SnapshotError
from recollect.storage.memory.capture import Capture
from recollect.storage.memory.saved_items import Saved

KINDS = {"items": "a table", "rollouts": "a rollout buffer", "steps": "a replay buffer"}


@dataclass
class Captured:
    """A member at one moment: its entry in the manifest, its items, and blobs by name."""

    entry: dict[str, Any]
    items: Capture
    blobs: Mapping[str, bytes] = field(default_factory=dict)


class RewoundJournal(Protocol):
    """What a load asks of the journal of what it loads into."""

    def rewinding(self) -> AbstractContextManager[Callable[[], None]]:
        """Bring members to another state meanwhile; gives a call to make when they are there."""
        ...


class Member(Protocol):
    """What a snapshot holds under a name. Calls expect its lock, unless they say otherwise."""

    ledger: Ledger | None

    def ledger_later(self, make: Callable[[], Ledger]) -> None:
        """Make the ledger when it is first asked for, so that a load need not wait for it."""
        ...

    @property
    def checkpoint(self) -> bool:
        """Whether snapshots include it."""
        ...

    @property
    def saving(self) -> threading.Lock:
        """Held while a snapshot of it is written."""
        ...

    @property
    def journal(self) -> RewoundJournal | None:
        """The journal that a load rewinds; one without must be empty."""
        ...

    def untouched(self) -> Callable[[], None] | None:
        """Where nothing has happened to it yet, a call that makes it so again; else None.

        A load into such members checks files while it reads them, and undoes all if one is damaged.
        """
        ...

    def transaction(self) -> AbstractContextManager[object]: ...

    def touch(self) -> None:
        """Without the lock: make memory ready, so that `capture` is short."""
        ...

    def capture(self) -> Captured: ...

    def finish(self, captured: Captured) -> None:
        """Without the lock: finish a capture with what need not be done under it."""
        ...

    def undo(self, captured: Captured) -> None:
        """A capture was not written to the disk: the ledger is as it was before."""
        ...

    def check(self, entry: Mapping[str, Any], where: str) -> None:
        """Raise unless a saved state fits."""
        ...

    def restore(
        self,
        entry: Mapping[str, Any],
        saved: Saved,
        batches: Iterable[Batch],
        blobs: Mapping[str, bytes],
    ) -> int:
        """Put a saved state in the place of what is there; returns how many items did not fit."""
        ...

    def reset(self) -> None:
        """Make it as it was when it was made."""
        ...


def check_kind(kind: str, entry: Mapping[str, Any], where: str) -> None:
    """Raise unless an entry was saved from a member of this kind."""
    if entry["kind"] != kind:
        saved = KINDS.get(entry["kind"], repr(entry["kind"]))
        raise SnapshotError(
            f"{where} was saved as {saved} and this is {KINDS[kind]}; load it into what it was "
            "saved from"
        )
