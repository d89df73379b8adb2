"""The writer of a journal: a queue of entries, and the thread that encodes, writes and syncs them.

Callers queue under their own lock and wait without it. One flush makes one record of all that is
queued, so callers that wait at the same time share a sync. Nothing polls: the thread sleeps until
something is queued.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from recollect.durability.journal.disk import Disk
from recollect.durability.journal.journaled import FLUSH_AT, MOST_QUEUED, Journaled
from recollect.durability.journal.log import Lock, Log, Sections
from recollect.durability.journal.records import MARK, STATE, Entry, encode
from recollect.errors import JournalError

log = logging.getLogger("recollect.durability")

GIVEN_UP = 512 << 20  # bytes that wait for a broken disk at most: then the journal ends
PATIENCE = 0.05  # seconds that a flush waits for a member's lock; then it goes without its state
RETRY = 0.1  # seconds until a failed write is tried again

_open: weakref.WeakSet[Writer] = weakref.WeakSet()


class Writer:
    """The journal of some members while it is open."""

    def __init__(
        self,
        members: Sequence[Journaled],
        log: Log,
        lock: Lock,
        *,
        sync: str,
        interval: float,
        path: str,
        compact: Callable[[Writer], None],
        compact_at: int,
        closed: bool,
    ) -> None:
        self.members, self.log, self.path = members, log, path
        self._lock = lock
        self._always = sync == "always"
        self._interval = interval
        self._compact, self._compact_at = compact, compact_at
        self.compact_at = self._limit()  # bytes of records
        self._queue: deque[Entry] = deque()
        self._something = threading.Event()  # something is queued
        self._urgent = threading.Event()  # it must not wait for the interval
        self.flushing = threading.RLock()  # held while records are made and written
        self._moved = threading.Event()  # an urgent entry came, or a write or a sync has ended
        self._disk = Disk(log, self._wrote, self._moved)
        self._changed = threading.Condition()  # guards what follows, and is notified of changes
        self._failure: Exception | None = None
        self.failures = 0  # how often writing failed
        self._tasks: list[tuple[Callable[[], bool], int, asyncio.Future[None]]] = []
        self._goodbye = log.number if closed else -1  # here the last record says "closed" already
        self._ended: str | None = None  # why nothing is written any more
        self._closing = False
        self.calm = not self._always  # whether a call need not even ask
        self._last = 0.0
        self._compacting: threading.Thread | None = None
        for place, member in enumerate(members):
            member.place, member.writer = place, self
            member.durable_position = member.stated = member.position
        self._thread = threading.Thread(target=self._run, name="recollect-journal", daemon=True)
        _open.add(self)

    def start(self) -> None:
        self._thread.start()

    # -- callers ----------------------------------------------------------------------------------
    def put(self, entry: Entry, urgent: bool) -> None:
        """Queue an entry, under the lock of its member."""
        if self._ended is not None:
            return
        self._queue.append(entry)
        if urgent and not (self._urgent.is_set() and self._moved.is_set()):
            self._urgent.set()
            self._moved.set()
        if not self._something.is_set():
            self._something.set()

    def settle(self, member: Journaled, number: int) -> None:
        """Return when a member's effects up to a number are as safe as was promised."""
        done = self._done(member, number)
        if self._failure is None and self._ended is None and done():
            return
        failures = member.failures
        with self._changed:
            while not done():
                self._raise_if_failed(failures)
                self._urgent.set()
                self._changed.wait()
            self._raise_if_failed(failures)

    async def settle_async(self, member: Journaled, number: int) -> None:
        """The same for a coroutine; the event loop goes on meanwhile."""
        done = self._done(member, number)
        if self._failure is None and self._ended is None and done():
            return
        failures = member.failures
        with self._changed:
            self._raise_if_failed(failures)
            if done():
                return
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._tasks.append((done, failures, future))
        self._urgent.set()
        await future

    def _done(self, member: Journaled, number: int) -> Callable[[], bool]:
        if not self._always:
            return lambda: member.told - member.taken <= MOST_QUEUED
        noted = member.noted
        return lambda: member.durable_number >= number and member.durable_position >= noted

    @property
    def queued(self) -> int:
        """Bytes that wait to be written, about."""
        return sum(member.told - member.written for member in self.members)

    def _raise_if_failed(self, failures: int) -> None:
        """Raise where writing failed since a call began, or the last time where no call waits."""
        if self._ended is not None:
            raise JournalError(self._ended)
        if self._failure is not None and (self.failures > failures or not self._always):
            raise JournalError(
                f"{self.path}: the journal cannot be written ({self._failure}); the change was "
                "made in memory and is not on the disk; it is tried again until it is"
            ) from self._failure

    def _tell_waiters(self) -> None:
        """Let threads and coroutines look whether they may go on."""
        with self._changed:
            self._changed.notify_all()
            waiting: list[tuple[Callable[[], bool], int, asyncio.Future[None]]] = []
            for done, failures, future in self._tasks:
                error: JournalError | None = None
                try:
                    self._raise_if_failed(failures)
                except JournalError as failed:
                    error = failed
                if error is None and not done():
                    waiting.append((done, failures, future))
                    continue
                loop = future.get_loop()
                if not loop.is_closed():
                    loop.call_soon_threadsafe(_finish, future, error)
            self._tasks = waiting

    # -- the thread -------------------------------------------------------------------------------
    def _run(self) -> None:
        while not self._closing:
            self._something.wait()
            if not self._always and not self._closing:
                self._urgent.wait(max(0.0, self._last + self._interval - time.monotonic()))
            self._something.clear()
            self._urgent.clear()
            if self._closing or self._ended is not None:
                return
            if not self.flush():
                self._something.set()
                if not self._closing:
                    self._urgent.wait(RETRY)

    def flush(self) -> bool:
        """Write what is queued; returns whether that worked."""
        with self.flushing:
            self._last = time.monotonic()
            try:
                self._write()
                worked = True
            except Exception as error:  # whatever it is, callers that wait must hear of it
                worked = False
                if not isinstance(error, OSError):
                    self._end(f"{self.path}: the journal failed: {error!r}")
                elif self._failure is None:
                    log.error("%s: the journal cannot be written: %s", self.path, error)
                self._failure = error
                self.failures += 1
                self._urgent.clear()  # who asked for this attempt will hear that it failed
                if self.queued > GIVEN_UP:
                    self._end(
                        f"{self.path}: the journal was given up: its disk failed ({error}) for "
                        f"more than {GIVEN_UP >> 20} MiB; save a snapshot, and begin a new journal"
                    )
            else:
                self._failure = None
            self.calm = worked and not self._always and self._ended is None
        if worked and self.log.bytes >= self.compact_at and not self._closing:
            self.start_compacting()
        self._tell_waiters()
        return worked

    def _write(self) -> None:
        """Write what is queued as one record, or as several while entries come faster than that.

        Then a record is made while the one before is written and the one before that is synced.
        """
        disk = self._disk
        try:
            disk.write_again()  # what failed the last time comes first
            while True:
                entries = self._cut()
                self._tell_waiters()  # there is room again
                if all(entry.kind == MARK for entry in entries):
                    disk.finish()
                    self._wrote(entries)
                    return
                sections = encode(entries)
                if sum(entry.nbytes for entry in entries) < FLUSH_AT and not self._behind():
                    disk.write(sections, entries)
                    return
                disk.start(sections, entries)
                if self._all_safe_before_more_comes():
                    disk.finish()
                    return
        except BaseException:
            disk.give_up()
            raise

    def _all_safe_before_more_comes(self) -> bool:
        """Sleep until what was started is safe, or until enough is queued for another record."""
        while not self._behind():
            self._moved.clear()
            if self._disk.idle:
                return True
            if not self._behind():
                self._moved.wait()
        return False

    def _behind(self) -> bool:
        """Whether enough is queued to make the next record while this one is written."""
        return any(member.told - member.taken >= FLUSH_AT for member in self.members)

    def _wrote(self, entries: list[Entry]) -> None:
        """Tell members that these entries are safe."""
        last: dict[int, Entry] = {}
        size: dict[int, int] = {}
        for entry in entries:
            last[entry.member] = entry
            size[entry.member] = size.get(entry.member, 0) + entry.nbytes
        for place, entry in last.items():
            member = self.members[place]
            member.written += size[place]
            position = entry.position
            if member.noted > member.stated:  # the state was not told: its lock was taken
                position = min(position, member.noted - 1)
                self._something.set()
            member.durable_position = max(member.durable_position, position)
            member.durable_number = max(member.durable_number, entry.number)
        self._tell_waiters()

    def _cut(self) -> list[Entry]:
        """Take from the queue what led to each member's state now, with that state at the end.

        Entries that come after a member's state was taken are left for the next record.
        """
        stated: dict[int, int] = {}
        for member in self.members:
            if member.position > member.stated and member.owner is not None:
                lock = member.transaction()
                # Who holds the lock may wait for this flush: then effects go without the state.
                if lock.acquire(timeout=PATIENCE):
                    try:
                        member.tell(STATE, about=member.state())
                        stated[member.place] = member.stated = member.position
                    finally:
                        lock.release()
        self._something.clear()
        queue = self._queue
        taken: list[Entry] = []
        left: list[Entry] = []
        for _ in range(len(queue)):
            entry = queue.popleft()
            late = entry.position > stated.get(entry.member, entry.position)
            (left if late else taken).append(entry)
            if not late:
                self.members[entry.member].taken += entry.nbytes
        if left:
            queue.extendleft(reversed(left))
            self._something.set()
        return taken

    def _end(self, why: str) -> None:
        log.error("%s", why)
        self._ended = why
        self._queue.clear()
        self._disk.forget()

    # -- snapshots --------------------------------------------------------------------------------
    def start_compacting(self) -> None:
        """Write a snapshot in a thread of its own; the records that it covers are removed then."""
        if self._compacting is not None and self._compacting.is_alive():
            return
        thread = threading.Thread(
            target=self._compact, args=[self], name="recollect-journal-base", daemon=True
        )
        thread.start()
        self._compacting = thread

    def compacted(self, *, worked: bool) -> None:
        """Say how a snapshot went. After a failure, twice as many records come before the next."""
        self.compact_at = max(self._limit(), 0 if worked else 2 * self.log.bytes)

    def _limit(self) -> int:
        """Bytes of records that a snapshot replaces: as many as are stored, or `compact_at`."""
        stored = [member.nbytes() for member in self.members if member.owner is not None]
        return max(self._compact_at, sum(stored))

    def wait_for_snapshot(self) -> None:
        """Return when no snapshot is being written."""
        thread = self._compacting
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Write nothing meanwhile; callers that wait for the disk go on waiting."""
        self.wait_for_snapshot()
        with self.flushing:
            yield

    # -- the end ----------------------------------------------------------------------------------
    def close(self) -> None:
        """Write what is queued, and let others open the journal; raises where that fails."""
        if self._closing:
            return
        self._closing = True
        self._something.set()
        self._urgent.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()
        self.wait_for_snapshot()
        worked = self._ended is not None or self.flush()
        with self.flushing:
            if worked and self._ended is None:
                self._say_goodbye()
            failure = self._failure
            if self._ended is None:
                self._ended = f"{self.path}: the journal is closed"
            self.calm = False
        self._disk.close()
        self._lock.release()
        _open.discard(self)
        self._tell_waiters()
        if not worked and failure is not None:
            raise JournalError(
                f"{self.path}: the journal could not be written when it was closed ({failure}); "
                "what came last may be lost"
            ) from failure

    def _say_goodbye(self) -> None:
        """Write a last record without effects, which says that nothing was lost."""
        try:
            if self.log.number != self._goodbye:
                self.log.append(Sections())
            self.log.roll()
        except OSError as error:
            self._failure = error
            log.error("%s: the journal cannot be closed: %s", self.path, error)

    def forked(self) -> None:
        """In a child process: write nothing, because the journal is the parent's."""
        self._ended = (
            f"{self.path}: the journal belongs to process {os.getppid()}, which this one was "
            "forked from; make tables in the process that uses them"
        )
        self._closing = True
        self.calm = False
        self._queue.clear()
        self._lock.release()


def _finish(future: asyncio.Future[None], error: JournalError | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


def _after_fork() -> None:
    for writer in list(_open):
        writer.forked()


os.register_at_fork(after_in_child=_after_fork)
