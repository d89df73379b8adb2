"""Records on their way to the disk: written by one thread and synced by another, or by the caller.

A record is *unsafe* until it is synced. What it tells is kept until then, and if writing or syncing
fails, all unsafe records are written again, under their numbers and to another file.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

from recollect.durability.journal.log import Log, Sections
from recollect.durability.journal.records import Entry, encode


class Disk:
    """Used by one thread at a time.

    `synced` is told what each record held once it is safe; `moved` is set when something that was
    started has ended.
    """

    def __init__(
        self, log: Log, synced: Callable[[list[Entry]], None], moved: threading.Event
    ) -> None:
        self._log, self._synced, self._moved = log, synced, moved
        self._unsafe: deque[list[Entry]] = deque()  # in order
        self._writer: ThreadPoolExecutor | None = None
        self._syncer: ThreadPoolExecutor | None = None
        self._writing: Future[None] | None = None
        self._syncing: Future[None] | None = None

    def write(self, sections: Sections, entries: list[Entry]) -> None:
        """Write and sync a record."""
        self._unsafe.append(entries)
        self.finish()
        self._log.write(sections)
        self._sync(self._log.begin_sync())

    def start(self, sections: Sections, entries: list[Entry]) -> None:
        """Have a record written and synced, and return when the one before it is written."""
        self._unsafe.append(entries)
        if self._writer is None:
            self._writer = ThreadPoolExecutor(1, "recollect-journal-write")
            self._syncer = ThreadPoolExecutor(1, "recollect-journal-sync")
        if self._writing is not None:
            self._writing.result()
        self._writing = self._writer.submit(self._write_and_sync, sections)
        self._writing.add_done_callback(self._ended)

    @property
    def idle(self) -> bool:
        """Whether nothing that was started is under way."""
        # Who writes says what syncs before it ends.
        return all(each is None or each.done() for each in (self._writing, self._syncing))

    def finish(self) -> None:
        """Return when all that was started is safe; raises where that failed."""
        if self._writing is not None:
            self._writing.result()
        if self._syncing is not None:
            self._syncing.result()
        self._writing = self._syncing = None

    def write_again(self) -> None:
        """What failed the last time."""
        if self._unsafe:
            for entries in self._unsafe:
                self._log.write(encode(entries))
            self._log.begin_sync()()
            while self._unsafe:
                self._synced(self._unsafe.popleft())

    def give_up(self) -> None:
        """Something failed: what is not synced when all have stopped will be written again."""
        if self._writing is not None:
            wait([self._writing])
        if self._syncing is not None:
            wait([self._syncing])
        self._writing = self._syncing = None
        self._log.give_up()

    def forget(self) -> None:
        """Nothing will be written any more."""
        self._unsafe.clear()

    def close(self) -> None:
        for threads in (self._writer, self._syncer):
            if threads is not None:
                threads.shutdown()

    def _write_and_sync(self, sections: Sections) -> None:
        """In the thread that writes."""
        self._log.write(sections)
        if self._syncing is not None:
            self._syncing.result()
        assert self._syncer is not None
        self._syncing = self._syncer.submit(self._sync, self._log.begin_sync())
        self._syncing.add_done_callback(self._ended)

    def _sync(self, sync: Callable[[], None]) -> None:
        sync()
        self._synced(self._unsafe.popleft())

    def _ended(self, _: Future[None]) -> None:
        self._moved.set()
