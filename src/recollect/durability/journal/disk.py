"""Records on their way to the disk: two threads write and sync them, or the caller does both.

A record is *unsafe* until it is synced. Its entries are kept until then: if writing or syncing
fails, all unsafe records are written again, under the same numbers and to another file.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

from recollect.durability.journal.log import Log, Sections
from recollect.durability.journal.records import Entry, encode


class Disk:
    """Writes and syncs records. One thread at a time may call it.

    `synced` is called with the entries of each record that is safe now; `moved` is set when a write
    or a sync has ended.
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
        """Let the threads write and sync a record; returns when the record before it is written."""
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
        """Whether no write and no sync is under way."""
        # A write starts its sync before it ends, so nothing is missed between the two.
        return all(each is None or each.done() for each in (self._writing, self._syncing))

    def finish(self) -> None:
        """Return when every record that was started is safe; raises where one failed."""
        if self._writing is not None:
            self._writing.result()
        if self._syncing is not None:
            self._syncing.result()
        self._writing = self._syncing = None

    def write_again(self) -> None:
        """Write the unsafe records again, and sync them."""
        if self._unsafe:
            for entries in self._unsafe:
                self._log.write(encode(entries))
            self._log.begin_sync()()
            while self._unsafe:
                self._synced(self._unsafe.popleft())

    def give_up(self) -> None:
        """After a failure: wait for the threads, and go on in another file of the log."""
        if self._writing is not None:
            wait([self._writing])
        if self._syncing is not None:
            wait([self._syncing])
        self._writing = self._syncing = None
        self._log.give_up()

    def forget(self) -> None:
        """Drop the unsafe records: the journal has ended."""
        self._unsafe.clear()

    def close(self) -> None:
        for threads in (self._writer, self._syncer):
            if threads is not None:
                threads.shutdown()

    def _write_and_sync(self, sections: Sections) -> None:
        """Run by the thread that writes."""
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
