"""What a snapshot can hold under one name: a table, or what is built on tables.

A member knows its lock, how its state is captured and put back, and the ledger of what is on
disk. Tables, `RolloutBuffer` and `ReplayBuffer` each have a member of their own.
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
from recollect.storage.memory.capture import Capture, Saved

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
        """While members are brought to another state; gives what to call when they are there."""
        ...


class Member(Protocol):
    """Something that a snapshot holds under a name. What it does, it does under its lock."""

    ledger: Ledger | None

    def ledger_later(self, make: Callable[[], Ledger]) -> None:
        """Have the ledger made when it is first asked for: a load need not wait for it."""
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
        """Where nothing has happened to it yet, a call that brings this back; else None.

        A load may then find out half-way that a file is damaged.
        """
        ...

    def transaction(self) -> AbstractContextManager[Any]: ...

    def touch(self) -> None:
        """Without the lock: have memory ready for `capture`."""
        ...

    def capture(self) -> Captured: ...

    def finish(self, captured: Captured) -> None:
        """Without the lock: what of a capture can wait."""
        ...

    def undo(self, captured: Captured) -> None:
        """What was captured has not come to be on disk: the ledger is true as it was."""
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
        """Back to what was just made."""
        ...


def check_kind(kind: str, entry: Mapping[str, Any], where: str) -> None:
    """Raise unless something was saved from what it is loaded into."""
    if entry["kind"] != kind:
        saved = KINDS.get(entry["kind"], repr(entry["kind"]))
        raise SnapshotError(
            f"{where} was saved as {saved} and this is {KINDS[kind]}; load it into what it was "
            "saved from"
        )
