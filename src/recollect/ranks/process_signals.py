"""Signals and uncaught exceptions that a checkpoint must hear of, also when the main thread hangs.

A Python handler runs in the main thread, between two of its instructions; where that thread hangs
in C code it never runs. But the interpreter also writes each signal's number to a file descriptor,
at once. A thread of our own reads it there.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable
from multiprocessing import util
from types import FrameType, TracebackType
from typing import Any

REQUEST = signal.SIGUSR2
TERMINATE = signal.SIGTERM
HEARD: tuple[int, ...] = (REQUEST, TERMINATE)
STOP = b"\0"
LATER = 0.05  # seconds after which a signal should have come through the pipe
PATIENCE = 2.0  # seconds for the main thread to end the process, before it is ended for it

Handler = Any  # what signal.getsignal returns


class Signals:
    """Calls `requested` at SIGUSR2, and `crashed(why)` at SIGTERM or an uncaught exception.

    After a SIGTERM the process ends as it would have, once `crashed` has returned. It is made
    in the main thread; elsewhere only exceptions are heard of.
    """

    def __init__(self, requested: Callable[[], object], crashed: Callable[[str], object]) -> None:
        self._requested, self._crashed = requested, crashed
        self._before: dict[int, Handler] = {}
        self._pipe: tuple[int, int] | None = None
        self._wakeup = -1  # whom the interpreter wrote to before
        self._saved = False  # a SIGTERM came, and what it asks for is done
        # A signal comes by the pipe and to the handler. Each way counts those of its number, and
        # who is the first to come to a count hears it.
        self._read_so_far = {number: itertools.count(1) for number in HEARD}
        self._handled = {number: itertools.count(1) for number in HEARD}
        self._heard = dict.fromkeys(HEARD, 0)
        self._hearing = threading.Lock()  # guards `_heard`
        self._paused = False  # a fork is under way
        self._hook = sys.excepthook
        self._mine = self._excepthook
        sys.excepthook = self._mine
        self._finalizer: Any = None
        if multiprocessing.parent_process() is not None:
            # there an exception reaches no hook, but what runs at the end sees it
            self._finalizer = util.Finalize(None, self._at_end, exitpriority=100)
        if threading.current_thread() is threading.main_thread():
            self._listen()

    # -- signals ----------------------------------------------------------------------------------
    def _listen(self) -> None:
        self._pipe = os.pipe()
        os.set_blocking(self._pipe[1], False)
        for number in HEARD:
            before = signal.getsignal(number)
            if before is not signal.SIG_IGN and before is not None:
                self._before[number] = before
                signal.signal(number, self._handler)
        self._wakeup = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        threading.Thread(target=self._read, daemon=True, name="recollect-signals").start()
        _live.add(self)

    def _read(self) -> None:
        assert self._pipe is not None
        descriptor = self._pipe[0]
        while True:
            numbers = os.read(descriptor, 64)
            if not numbers or STOP in numbers:
                os.close(descriptor)
                return
            if self._wakeup >= 0:
                os.write(self._wakeup, numbers)
            for number in numbers:
                if number in HEARD:
                    self._hear(number, next(self._read_so_far[number]))

    def _hear(self, number: int, count: int) -> None:
        """Do what a signal asks for, unless it was heard of the other way."""
        with self._hearing:
            if count <= self._heard[number]:
                return
            self._heard[number] = count
        if number == REQUEST and number in self._before:
            self._requested()
        elif number == TERMINATE and number in self._before and not self._saved:
            self._crashed("SIGTERM")
            self._saved = True
            main = threading.main_thread()
            if main.ident is not None:
                signal.pthread_kill(main.ident, TERMINATE)  # now it may end the process
            if self._before[TERMINATE] is signal.SIG_DFL:
                main.join(PATIENCE)
                os._exit(128 + TERMINATE)  # it hangs

    def _handler(self, number: int, frame: FrameType | None) -> None:
        """In the main thread. It must not wait: that thread may hold a lock that a save needs."""
        if self._saved and number == TERMINATE:
            self._as_before(number, frame)
            return
        count = next(self._handled[number])
        threading.Thread(target=self._look_again, args=(number, count), daemon=True).start()

    def _look_again(self, number: int, count: int) -> None:
        """A signal may not come through the pipe: an event loop listens now, or a fork ran.

        One that only comes late is not heard again; after one that never came, all are heard here.
        """
        time.sleep(LATER)
        self._hear(number, count)

    def _as_before(self, number: int, frame: FrameType | None) -> None:
        before = self._before[number]
        if callable(before):
            before(number, frame)
        else:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    # -- exceptions -------------------------------------------------------------------------------
    def _excepthook(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        try:
            self._crashed(kind.__name__)
        finally:
            self._hook(kind, error, trace)

    def _at_end(self) -> None:
        error = sys.exc_info()[1]
        if error is not None and not isinstance(error, SystemExit):
            self._crashed(type(error).__name__)

    # -- the end ----------------------------------------------------------------------------------
    def before_fork(self) -> None:
        """A child has the same pipe: what it is told must not come out of it here."""
        if self._pipe is not None and threading.current_thread() is threading.main_thread():
            current = signal.set_wakeup_fd(-1)
            self._paused = current == self._pipe[1]
            if not self._paused:
                signal.set_wakeup_fd(current, warn_on_full_buffer=False)

    def after_fork(self) -> None:
        if self._paused and self._pipe is not None:
            signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        self._paused = False

    def forget(self) -> None:
        """In a child that was forked: signals are none of its business."""
        if self._pipe is not None:
            signal.set_wakeup_fd(-1)
            for number, before in self._before.items():
                if signal.getsignal(number) == self._handler:
                    signal.signal(number, before)
            self._before.clear()
        if sys.excepthook is self._mine:
            sys.excepthook = self._hook

    def close(self) -> None:
        """Everything as it was before."""
        if sys.excepthook is self._mine:
            sys.excepthook = self._hook
        if self._finalizer is not None:
            self._finalizer.cancel()
        if self._pipe is None:
            return
        _live.discard(self)
        if threading.current_thread() is threading.main_thread():
            current = signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)
            if current != self._pipe[1]:
                signal.set_wakeup_fd(current, warn_on_full_buffer=False)
            for number, before in self._before.items():
                if signal.getsignal(number) == self._handler:
                    signal.signal(number, before)
        writing, self._pipe = self._pipe[1], None
        os.write(writing, STOP)
        os.close(writing)


_live: weakref.WeakSet[Signals] = weakref.WeakSet()


def _before_fork() -> None:
    for signals in list(_live):
        signals.before_fork()


def _after_fork() -> None:
    for signals in list(_live):
        signals.after_fork()


def _in_child() -> None:
    for signals in list(_live):
        signals.forget()
    _live.clear()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)
