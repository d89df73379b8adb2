"""An open journal: members are recovered from it, write it, and compact it into snapshots."""

from __future__ import annotations

import logging
import os
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from recollect.durability.files import LOCAL, Files
from recollect.durability.journal.journal import Journal
from recollect.durability.journal.journaled import Journaled
from recollect.durability.journal.log import BASE, Lock, Log, bases, size
from recollect.durability.journal.recovery import Recovery, recover
from recollect.durability.journal.writer import Writer
from recollect.errors import JournalError, RecollectError

log = logging.getLogger("recollect.durability")


class OpenJournal:
    """A journal that some members write; `recovery` says what it held when it was opened."""

    def __init__(
        self,
        options: Journal,
        members: Sequence[Journaled],
        *,
        of_store: bool = False,
        files: Files = LOCAL,
    ) -> None:
        self.options, self.members = options, members
        self.of_store = of_store  # whether it closes with its store, and not with a table
        self._files = files
        self._folder = Path(options.path)
        _make(self._folder, files)
        lock = Lock(self._folder)
        try:
            self.recovery = self._recover()
            described = [member.describe() for member in members]
            synced = options.sync != "off"
            number = self.recovery.number
            self.writer = Writer(
                members,
                Log(self._folder, number, synced, described, files),
                lock,
                sync=options.sync,
                interval=options.interval,
                path=os.fspath(options.path),
                compact=self._compact,
                compact_at=options.compact_at,
                closed=self.recovery.closed,
            )
            self._begin()
        except BaseException:
            lock.release()
            raise
        self._living = len(members)
        for member in members:
            weakref.finalize(member.owner, self._lost)

    def _recover(self) -> Recovery:
        begun = time.monotonic()
        with ExitStack() as locks:
            for member in sorted(self.members, key=lambda each: each.name):
                locks.enter_context(member.transaction())
            self._used = [member.name for member in self.members if member.used()]
            if self._used and (bases(self._folder, self._files) or size(self._folder, self._files)):
                raise JournalError(
                    f"{self._folder} holds a journal, and {self._used[0]!r} is not empty: give the "
                    "journal when the table is made, or choose a new path"
                )
            recovery = recover(self._folder, self.members, self._files)
        if recovery.records or recovery.torn:
            log.info(
                "%s: %d records replayed in %.1f s", self._folder, recovery.records,
                time.monotonic() - begun,
            )  # fmt: skip
        for torn in recovery.torn:
            log.warning(
                "%s: the end of the journal was torn; %d bytes were cut at %d",
                torn.path, torn.bytes, torn.at,
            )  # fmt: skip
        return recovery

    def _begin(self) -> None:
        for member in self.members:
            with member.transaction():
                member.begin()
                if any(member is ended for ended in self.recovery.ended):
                    member.restarted()
                member.trim()
        if self._used:
            self._save(self.writer.log.number)
        self.writer.start()
        if self.recovery.evicted:
            self.writer.start_compacting()

    def _lost(self) -> None:
        """An owner was collected without having been closed; the last one closes the journal."""
        self._living -= 1
        if not self._living:
            try:
                self.close()
            except JournalError as error:  # no caller is left who could catch it
                log.error("%s", error)

    # -- snapshots --------------------------------------------------------------------------------
    def _compact(self, writer: Writer) -> None:
        """Write a snapshot in the place of the records so far; an error leaves all as it was."""
        try:
            with writer.flushing:
                number = writer.log.roll()
            self._save(number)
        except (RecollectError, OSError) as error:
            log.error("%s: the journal could not be compacted: %s", self._folder, error)
            writer.compacted(worked=False)
        else:
            writer.compacted(worked=True)

    def _save(self, number: int) -> None:
        """Write a snapshot of everything before a record, and remove the records that it covers."""
        from recollect.durability.snapshot.saver import save_snapshot

        owners = [member.owner for member in self.members]  # none of them goes meanwhile
        if any(owner is None for owner in owners):
            return

        def state() -> dict[str, Any]:  # while all locks are held
            covered = {
                member.name: {"position": member.mark(), "leased": member.leased()}
                for member in self.members
            }
            return {"journal": {"number": number, "members": covered}}

        target = self._folder / f"{BASE}{number:016x}"
        saved = {member.name: member.saved_as() for member in self.members}
        save_snapshot(target, saved, state=state, progress=False, files=self._files)
        with self.writer.flushing:
            self.writer.log.remove_before(number)

    @contextmanager
    def rewinding(self) -> Iterator[Callable[[], None]]:
        """Bring the members to another state meanwhile, and the journal goes on from that state.

        Nothing is written until a snapshot of the new state has committed, so a crash leaves the
        old state or the new one. The caller gets a call to make once the members are there, while
        it still holds their locks.
        """
        with self.writer.paused():
            before: dict[str, tuple[int, ...]] = {}
            for member in self.members:
                with member.transaction():
                    before[member.name] = member.progress()

            def loaded() -> None:
                for member in self.members:
                    with member.transaction():
                        if member.name in before:
                            member.rewound(before.pop(member.name))

            yield loaded
            loaded()
            self._save(self.writer.log.roll())
            self.writer.compacted(worked=True)

    def close(self) -> None:
        """Write what is queued, and let another process open the journal."""
        self.writer.close()


def _make(folder: Path, files: Files) -> None:
    if folder.exists() and not folder.is_dir():
        raise JournalError(f"{folder} is a file; a journal is a folder of its own")
    folder.mkdir(parents=True, exist_ok=True)
    known = ("journal-", BASE, ".base-", "lock")
    strange = [name for name in files.list(folder) if not name.startswith(known)]
    if strange:
        raise JournalError(
            f"{folder} holds other files, such as {strange[0]!r}; give the journal a folder of its "
            "own"
        )
