"""What a snapshot can hold under one name: a table, or what is built on tables.

A member knows its lock, how its state is captured and put back, and the ledger of what is on
disk. `RolloutBuffer` and `ReplayBuffer` have members of their own, which `member_of` asks them for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from recollect.data.batch import Batch
from recollect.durability.snapshot.ledger import Ledger
from recollect.errors import InvalidValue, SnapshotError, shown
from recollect.rules.limiters import Counts
from recollect.storage.memory.capture import Capture, Pages, finish
from recollect.storage.memory.saved_items import Saved
from recollect.table.state import capture_table, check_alike, in_memory, reset_table, restore_table
from recollect.table.table import Table

KINDS = {"items": "a table", "rollouts": "a rollout buffer", "steps": "a replay buffer"}


@dataclass
class Captured:
    """A member at one moment: its entry in the manifest, its items, and blobs by name."""

    entry: dict[str, Any]
    items: Capture
    blobs: Mapping[str, bytes] = field(default_factory=dict)


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
    def journaled(self) -> bool:
        """Whether a load rewinds it; else it must be empty."""
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


class TableMember:
    """A table in memory."""

    kind = "items"

    def __init__(self, table: Table) -> None:
        self.table = table
        self._pages = Pages()

    @property
    def checkpoint(self) -> bool:
        return self.table.checkpoint

    @property
    def saving(self) -> threading.Lock:
        return in_memory(self.table).saving

    @property
    def ledger(self) -> Ledger | None:
        storage = in_memory(self.table)
        if callable(storage.ledger):  # of a load, which left it to whoever needs it
            storage.ledger = storage.ledger()
        ledger: Ledger | None = storage.ledger
        return ledger

    @ledger.setter
    def ledger(self, ledger: Ledger | None) -> None:
        in_memory(self.table).ledger = ledger

    def ledger_later(self, make: Callable[[], Ledger]) -> None:
        in_memory(self.table).ledger = make

    @property
    def journaled(self) -> bool:
        return getattr(self.table, "_journal", None) is not None

    def untouched(self) -> Callable[[], None] | None:
        table = self.table
        if self.kind != "items" or self.journaled:
            return None
        if table._effects.number or table._counts != Counts():
            return None
        schemas = table._schema, table._shared_schema

        def back() -> None:
            table._schema, table._shared_schema = schemas
            self.reset()

        return back

    def transaction(self) -> AbstractContextManager[Any]:
        return self.table._transaction()

    def touch(self) -> None:
        if self.ledger is not None and self.ledger.torn:
            self.ledger = None
        before = None if self.ledger is None else self.ledger.records
        self._pages.touch(in_memory(self.table), before)

    def capture(self) -> Captured:
        entry, items = capture_table(self.table, self._pages)
        return Captured({"kind": self.kind, **entry}, items)

    def finish(self, captured: Captured) -> None:
        ledger = in_memory(self.table).ledger
        if captured.items.changed is not None and ledger is not None:
            ledger.torn = True
        finish(captured.items)

    def undo(self, captured: Captured) -> None:
        captured.items.undo()
        ledger = in_memory(self.table).ledger
        if ledger is not None:
            ledger.torn = False

    def check(self, entry: Mapping[str, Any], where: str) -> None:
        check_kind(self.kind, entry, f"{where}: table {self.table.name!r}")
        if len(in_memory(self.table)) and not self.journaled:
            raise SnapshotError(
                f"table {self.table.name!r} is not empty; load {where} into a new store"
            )
        check_alike(self.table, entry, where)

    def restore(
        self,
        entry: Mapping[str, Any],
        saved: Saved,
        batches: Iterable[Batch],
        blobs: Mapping[str, bytes],
    ) -> int:
        return restore_table(self.table, entry, saved, batches)

    def reset(self) -> None:
        reset_table(self.table)


def check_kind(kind: str, entry: Mapping[str, Any], where: str) -> None:
    """Raise unless something was saved from what it is loaded into."""
    if entry["kind"] != kind:
        saved = KINDS.get(entry["kind"], repr(entry["kind"]))
        raise SnapshotError(
            f"{where} was saved as {saved} and this is {KINDS[kind]}; load it into what it was "
            "saved from"
        )


def member_of(target: Any) -> Member:
    """The member that a table or a buffer is."""
    if isinstance(target, Table):
        if target._owner is None:
            return TableMember(target)
        target = target._owner
    make = getattr(target, "_member", None)
    if make is None:
        raise InvalidValue(f"expected a table or a buffer to save or load, got {shown(target)}")
    member: Member = make()
    return member
