"""A table in memory as a member of snapshots."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from recollect.data.batch import Batch
from recollect.durability.journal.open_journal import OpenJournal
from recollect.durability.snapshot.ledger import Ledger
from recollect.durability.snapshot.members import Captured, Member, check_kind
from recollect.errors import SnapshotError
from recollect.storage.memory.capture import Pages, finish
from recollect.storage.memory.saved_items import Saved
from recollect.table.core import TableCore
from recollect.table.counts import TableCounts
from recollect.table.state import capture_table, check_alike, in_memory, reset_table, restore_table


class TableMember:
    """A table in memory, as a snapshot holds it."""

    kind = "items"

    def __init__(self, core: TableCore) -> None:
        self.core = core
        self._pages = Pages()

    @property
    def checkpoint(self) -> bool:
        return self.core.checkpoint

    @property
    def saving(self) -> threading.Lock:
        return in_memory(self.core).saving

    @property
    def ledger(self) -> Ledger | None:
        storage = in_memory(self.core)
        if callable(storage.ledger):  # of a load, which left it to whoever needs it
            storage.ledger = storage.ledger()
        ledger: Ledger | None = storage.ledger
        return ledger

    @ledger.setter
    def ledger(self, ledger: Ledger | None) -> None:
        in_memory(self.core).ledger = ledger

    def ledger_later(self, make: Callable[[], Ledger]) -> None:
        in_memory(self.core).ledger = make

    @property
    def journal(self) -> OpenJournal | None:
        return self.core.journal

    def untouched(self) -> Callable[[], None] | None:
        core = self.core
        if self.kind != "items" or self.journal is not None:
            return None
        if core.effects.number or core.counts != TableCounts():
            return None
        schemas = core.schemas

        def back() -> None:
            core.schemas = schemas
            self.reset()

        return back

    def transaction(self) -> AbstractContextManager[Any]:
        return self.core.transaction()

    def touch(self) -> None:
        if self.ledger is not None and self.ledger.torn:
            self.ledger = None
        before = None if self.ledger is None else self.ledger.records
        self._pages.touch(in_memory(self.core), before)

    def capture(self) -> Captured:
        entry, items = capture_table(self.core, self._pages)
        return Captured({"kind": self.kind, **entry}, items)

    def finish(self, captured: Captured) -> None:
        ledger = in_memory(self.core).ledger
        if captured.items.changed is not None and ledger is not None:
            ledger.torn = True
        finish(captured.items)

    def undo(self, captured: Captured) -> None:
        captured.items.undo()
        ledger = in_memory(self.core).ledger
        if ledger is not None:
            ledger.torn = False

    def check(self, entry: Mapping[str, Any], where: str) -> None:
        check_kind(self.kind, entry, f"{where}: table {self.core.name!r}")
        if len(in_memory(self.core)) and self.journal is None:
            raise SnapshotError(
                f"table {self.core.name!r} is not empty; load {where} into a new store"
            )
        check_alike(self.core, entry, where)

    def restore(
        self,
        entry: Mapping[str, Any],
        saved: Saved,
        batches: Iterable[Batch],
        blobs: Mapping[str, bytes],
    ) -> int:
        return restore_table(self.core, entry, saved, batches)

    def reset(self) -> None:
        reset_table(self.core)


def member_of(core: TableCore) -> Member:
    """What a snapshot saves of a table: the table, or what is built on it."""
    return TableMember(core) if core.owner is None else core.owner.member()
