"""`Checkpoints`: when every rank saves its shard, and that they do so at the same step.

The training calls `maybe_save(step)` after each step. A thread beside it hears of requests, by
whichever way and on whichever rank, and lets the ranks agree: each names the first step that it
has not completed, and the highest of these is the first step that all can reach. Because the
thread answers and not the training, no rank ever waits for another that waits for it.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recollect.base.arguments import flag, time_span, whole
from recollect.errors import RecollectError, SnapshotError, WaitTimeout
from recollect.ranks.shard_sets import (
    choose_set,
    keep_latest,
    mark_partial,
    read_set,
    step_folder,
    try_commit,
    uncommitted,
)
from recollect.ranks.shards import Redistributed, check_rank, load_set, members_of, write_shard

if TYPE_CHECKING:
    from recollect.ranks.http_requests import RequestServer
    from recollect.ranks.process_signals import Signals

log = logging.getLogger("recollect.checkpoints")

TIMEOUT = 60.0
FINDING = 2.0  # seconds that a crash waits for ranks to find each other, at the very beginning
PARKING = 0.5  # seconds that a crash waits for the training to complete its step
LAST_WORDS = 10.0  # seconds that a crash waits for the shards of other ranks


@dataclass
class _Saved:
    """A shard that was saved, and those who want to know when its set is committed."""

    folder: Path
    step: int
    deadline: float
    waiting: list[Future[Path]]


class Checkpoints:
    """Saves the shards of all ranks at the same step, and loads them again on any number of ranks.

    >>> import tempfile
    >>> import recollect as rc
    >>> folder = tempfile.mkdtemp()
    >>> buffer = rc.ReplayBuffer(100)
    >>> with rc.Checkpoints(folder, buffer, interval=2) as checkpoints:
    ...     for step in range(1, 6):
    ...         _ = buffer.add(obs=[0.0], reward=1.0)
    ...         _ = checkpoints.maybe_save(step)
    >>> resumed = rc.ReplayBuffer(100)
    >>> with rc.Checkpoints(folder, resumed) as checkpoints:
    ...     checkpoints.load(), len(resumed)
    (4, 4)

    Args:
        path: The folder of all checkpoints, the same for every rank.
        store: What this rank saves: an `rc.Store`, `rc.Table`, `rc.ReplayBuffer` or
            `rc.RolloutBuffer`.
        rank: Which rank this is, from 0.
        world_size: How many there are.
        interval: Save at every step that is a multiple of it; None only on request.
        keep_last: How many committed checkpoints stay; None for all.
        exchange: A function that gathers one integer of every rank, `exchange(value) -> values`,
            called from a thread. None: `torch.distributed` where it is initialised, else small
            files beside the checkpoints.
        http: A port for `POST /checkpoint` on loopback, the next one on each rank; 0 for any
            free one; or `(host, port)`.
        timeout: How many seconds a rank that does not answer may cost.
        signals: Whether SIGUSR2 requests a checkpoint, and a crash (SIGTERM, an uncaught
            exception) saves one.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        store: Any,
        rank: int = 0,
        world_size: int = 1,
        *,
        interval: int | None = None,
        keep_last: int | None = None,
        exchange: Callable[[int], Any] | None = None,
        http: int | tuple[str, int] | None = None,
        timeout: float = TIMEOUT,
        signals: bool = True,
    ) -> None:
        self.path = Path(path)
        self.rank, self.world_size = check_rank(rank, world_size)
        self.interval = None if interval is None else whole("interval", interval, 1)
        self.keep_last = None if keep_last is None else whole("keep_last", keep_last, 1)
        self.timeout = time_span("timeout", timeout)
        signals = flag("signals", signals)
        address = None
        if http is not None:
            from recollect.ranks.http_requests import address_of

            address = address_of(http, self.rank)
        self._store = store
        members_of(store)  # raises where it is nothing that can be saved
        self._changed = threading.Condition()  # guards what follows
        self._step: int | None = None  # the last one that was completed
        self._bound: int | None = None  # while ranks agree: no step from here on may be completed
        self._agreed: list[int] = []
        self._requests: list[Future[Path]] = []
        self._commits: list[_Saved] = []
        self._crashing = 0  # crashes that are being saved
        self._parked = False  # the training waits in maybe_save
        self._known_crashes: set[int] = set()
        self._crash_step: int | None = None  # what the last crash saved
        self._closed = False
        self._saving = threading.RLock()
        self._wake = threading.Event()
        from recollect.ranks.exchange import agreement

        self._agreement = agreement(exchange, self.path, self.rank, self.world_size, self.timeout)
        self._thread = threading.Thread(
            target=self._watch, daemon=True, name="recollect-checkpoints"
        )
        self._thread.start()
        self._server: RequestServer | None = None
        if address is not None:
            from recollect.ranks.http_requests import RequestServer

            self._server = RequestServer(address, self.request, 2 * self.timeout)
        self._signals: Signals | None = None
        if signals:
            from recollect.ranks.process_signals import Signals

            self._signals = Signals(self._signalled, self._crash)
        atexit.register(self.close)

    @property
    def address(self) -> tuple[str, int] | None:
        """Where `POST /checkpoint` is heard, None where it is not."""
        return None if self._server is None else self._server.address

    # -- saving -----------------------------------------------------------------------------------
    def maybe_save(self, step: int) -> Path | None:
        """A step is completed: save this rank's shard if it is time, else do nothing.

        Returns the checkpoint's folder when this rank saved now. It is committed once every rank
        has saved.
        """
        step = whole("step", step, 0)
        with self._changed:
            self._step = step
            self._changed.notify_all()
            self._park()
            while self._bound is not None and step >= self._bound:
                self._changed.wait(self.timeout)  # the thread always ends this
            due = self.interval is not None and step % self.interval == 0
            reached = [agreed for agreed in self._agreed if agreed <= step]
            if not due and not reached:
                return None
            self._agreed = [agreed for agreed in self._agreed if agreed > step]
            waiting, self._requests = self._requests, []
        return self._save(step, waiting)

    def _park(self) -> None:
        """While a crash is saved, the training waits between two steps."""
        deadline = time.monotonic() + self.timeout
        while self._crashing and time.monotonic() < deadline:
            self._parked = True
            self._changed.notify_all()
            self._changed.wait(0.1)
        self._parked = False

    def _save(self, step: int, waiting: list[Future[Path]]) -> Path:
        try:
            with self._saving:
                folder = step_folder(self.path, step)
                self._write(folder, step)
        except BaseException as error:
            _fail(waiting, SnapshotError(f"rank {self.rank} could not save: {error}"))
            raise
        saved = _Saved(folder, step, time.monotonic() + self.timeout, waiting)
        if not self._settle(saved):
            with self._changed:
                self._commits.append(saved)
            self._wake.set()
        return folder

    def _write(self, folder: Path, step: int) -> None:
        write_shard(folder, self._store, self.rank, self.world_size, step, run=self._run())

    def _run(self, within: float | None = None) -> str | None:
        """What ranks call this run; at the very beginning they may have to find each other."""
        longest = self.timeout if within is None else min(within, self.timeout)
        deadline = time.monotonic() + longest
        while self._agreement.run is None and time.monotonic() < deadline:
            time.sleep(self._agreement.pause / 2)
        return self._agreement.run

    def _settle(self, saved: _Saved) -> bool:
        """Whether there is no more to wait for: the set is committed, or it is too late."""
        lacks = ""
        try:
            committed = try_commit(saved.folder, self.world_size)
        except (RecollectError, OSError) as error:  # a shard is damaged, or the disk is full
            committed, lacks = False, str(error)
        if committed:
            log.info("checkpoint of step %d is committed: %s", saved.step, saved.folder)
            if self.keep_last is not None and self.rank == 0:
                keep_latest(self.path, self.keep_last)
            for future in saved.waiting:
                if not future.done():
                    future.set_result(saved.folder)
            return True
        if time.monotonic() < saved.deadline:
            return False
        if not lacks:
            found = read_set(saved.folder)
            lacks = "it has gone" if found is None else found.lacks()
            mark_partial(saved.folder)
        message = f"{saved.folder} was not committed within {self.timeout:g} s: {lacks}"
        log.warning("%s", message)
        _fail(saved.waiting, WaitTimeout(message))
        return True

    # -- requests ---------------------------------------------------------------------------------
    def request(self) -> Future[Path]:
        """Ask every rank to save, at the first step that all can reach.

        May be called on any rank and from any thread. The result of the future is the checkpoint's
        folder, once it is committed; `result(timeout)` waits for it, which the thread that calls
        `maybe_save` must not.
        """
        future: Future[Path] = Future()
        with self._changed:
            if self._closed:
                raise SnapshotError("these checkpoints were closed; make new ones to go on")
            self._requests.append(future)
        self._wake.set()
        return future

    def _signalled(self) -> None:
        def told(future: Future[Path]) -> None:
            error = future.exception()
            if error is not None:
                log.error("the checkpoint that SIGUSR2 asked for failed: %s", error)

        log.info("SIGUSR2: a checkpoint is requested")
        self.request().add_done_callback(told)

    def _watch(self) -> None:
        """The thread: hears of others, agrees with them, and waits for commits."""
        while not self._closed:
            pause = 0.05 if self._commits else self._agreement.pause
            self._wake.wait(pause)
            self._wake.clear()
            try:
                self._turn()
            except Exception:  # such as a disk that is full: the next turn may do better
                log.exception("rank %d: checkpoints", self.rank)
                time.sleep(0.2)

    def _turn(self) -> None:
        if self._closed:
            return
        with self._changed:
            wants = bool(self._requests) and not self._agreed
        news = self._agreement.look(wants)
        for rank in news.crashed:
            if rank not in self._known_crashes:
                self._known_crashes.add(rank)
                name = f"rank {rank}" if rank >= 0 else "a rank"
                log.error("%s crashed or has gone; rank %d saves its shard", name, self.rank)
                self._start_crash(f"{name} crashed")
        if news.begun:
            self._agree()
        with self._changed:
            pending = list(self._commits)
        settled = [saved for saved in pending if self._settle(saved)]
        with self._changed:
            self._commits = [saved for saved in self._commits if saved not in settled]

    def _agree(self) -> None:
        with self._changed:
            # before its first step is completed, a rank does not know with which it begins
            self._changed.wait_for(lambda: self._step is not None or self._closed, self.timeout)
            bound = -1 if self._step is None else self._step + 1
            self._bound = bound if bound >= 0 else None
        step = None
        error: Exception | None = None
        try:
            step = self._agreement.agree(bound)
        except Exception as problem:  # whatever it is, the training must not wait for it
            error = problem
            log.warning("rank %d: no checkpoint: %s", self.rank, problem)
        with self._changed:
            self._bound = None
            failed: list[Future[Path]] = []
            if step is not None:
                self._agreed.append(step)
            else:
                failed, self._requests = self._requests, []
            self._changed.notify_all()
        if error is not None:
            _fail(failed, error)

    # -- crashes ----------------------------------------------------------------------------------
    def _crash(self, why: str) -> None:
        """This rank crashed: tell the others, save, and return when that is done or too late."""
        log.error("rank %d: %s; its shard is saved", self.rank, why)
        self._agreement.tell_crash()
        self._wake.set()
        self._start_crash(why).join(self.timeout + LAST_WORDS)

    def _start_crash(self, why: str) -> threading.Thread:
        with self._changed:
            self._crashing += 1
        # a thread of its own: the main thread may hang, and the other one has more to hear of
        thread = threading.Thread(target=self._save_crash, args=(why,), name="recollect-crash")
        thread.daemon = True
        thread.start()
        return thread

    def _save_crash(self, why: str) -> None:
        try:
            folder = self._write_crash()
        except Exception:
            log.exception(
                "rank %d: its shard could not be saved after a crash (%s)", self.rank, why
            )
            return
        finally:
            if why != "SIGTERM":  # there the process ends, and the training stays parked
                with self._changed:
                    self._crashing -= 1
                    self._changed.notify_all()
        deadline = time.monotonic() + min(LAST_WORDS, self.timeout)
        while not try_commit(folder, self.world_size):
            over = self._never_whole(folder)
            mark_partial(folder)  # after the look: the last word is of all shards
            if over or time.monotonic() >= deadline:
                return
            time.sleep(0.05)

    def _write_crash(self) -> Path:
        with self._changed:
            if threading.main_thread().is_alive() and not self._parked:
                self._changed.wait_for(lambda: self._parked, PARKING)
        self._run(FINDING)  # only ranks that know its name save into the same folder
        if not self._saving.acquire(timeout=self.timeout):
            raise SnapshotError(
                f"another save has not ended within {self.timeout:g} s, so the crash was not "
                "saved; a longer timeout= waits for it"
            )
        try:
            with self._changed:
                step = 0 if self._step is None else self._step
            run = self._agreement.run or f"{self.rank:05d}"
            folder = self.path / f"crash-{run}"
            if self._crash_step is not None and folder != uncommitted(folder):
                return folder  # whole, and somebody has ended: no later set could be whole
            folder = uncommitted(folder)
            if self._crash_step != step or read_set(folder) is None:
                write_shard(folder, self._store, self.rank, self.world_size, step, run=run)
                self._crash_step = step
        finally:
            self._saving.release()
        return folder

    def _never_whole(self, folder: Path) -> bool:
        """Every rank has saved, though not at one step: nothing more will come.

        A shard may have arrived since the last try to commit; then the next one succeeds.
        """
        found = read_set(folder)
        return found is not None and not found.missing and not found.whole

    # -- loading ----------------------------------------------------------------------------------
    def load(
        self, step: int | None = None, *, allow_partial: bool = False, **options: Any
    ) -> int | None:
        """Fill the store with this rank's part of the latest checkpoint, or of that of a step.

        Returns the step, or None where there is nothing to load. `options` are those of
        `rc.load_shards`. What was done is in `self.loaded`.
        """
        wanted = None if step is None else whole("step", step, 0)
        chosen = choose_set(self.path, wanted, allow_partial=allow_partial)
        if chosen is None:
            return None
        self.loaded: Redistributed = load_set(
            chosen, self._store, self.rank, self.world_size, **options
        )
        with self._changed:
            self._step = chosen.step
        return chosen.step

    # -- the end ----------------------------------------------------------------------------------
    def close(self) -> None:
        """Stop listening; what is requested and not saved yet fails. Saved files stay."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            failed, self._requests = self._requests, []
            commits, self._commits = self._commits, []
            self._agreed = []
            self._bound = None
            self._changed.notify_all()
        atexit.unregister(self.close)
        if self._signals is not None:
            self._signals.close()
        if self._server is not None:
            self._server.close()
        self._wake.set()
        self._thread.join(self.timeout)
        self._agreement.close()
        closed = SnapshotError("these checkpoints were closed before the requested one was saved")
        _fail(failed, closed)
        for saved in commits:
            if not self._settle(saved):
                _fail(saved.waiting, closed)

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is not None and self._signals is not None and not issubclass(kind, SystemExit):
            self._crash(kind.__name__)
        self.close()


def _fail(waiting: list[Future[Path]], error: Exception) -> None:
    for future in waiting:
        if not future.done():  # whoever asked may have cancelled it
            future.set_exception(error)
