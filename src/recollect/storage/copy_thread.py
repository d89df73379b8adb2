"""A second thread for copies of many bytes, and one for what snapshots compare.

Both mostly wait for memory, which serves two nearly as fast as one. A thread is made when it is
first needed, and whoever finds it busy works alone.
"""

from __future__ import annotations

import os
import signal
import threading
import weakref
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from recollect.kernels import layout
from recollect.kernels.families import CopyKernels, TableKernels
from recollect.storage.buffers import aligned_zeros

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

PARTS = 16  # of a copy that two threads share
FAULTS = {"SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT"}  # a thread's own, never held back

_crew: _Crew | None = None
_making = threading.Lock()
_comparing: ThreadPoolExecutor | None = None
_busy_comparing = threading.Lock()


# -- copies ---------------------------------------------------------------------------------------
class SharedCopy:
    """Rows that two threads copy: the other one from now on, this one in `finish`.

    `arguments` and `values` are what a kernel takes, `gather_cells` or `gather`, and `held` is what
    they point into. Where it is not worth the while, or the other thread is busy, this one copies
    alone.
    """

    __slots__ = ("__weakref__", "_alone", "_arguments", "_crew", "_turn", "_values")

    def __init__(
        self,
        kernels: TableKernels,
        arguments: tuple[Any, ...],
        values: list[Any],
        held: object,
        *,
        worth: bool,
        cells: bool = True,
    ) -> None:
        self._crew: _Crew | None = None
        self._alone = kernels.rows.gather_cells if cells else kernels.rows.gather
        self._arguments = arguments
        self._values = values
        if worth:
            crew = _the_crew(kernels)
            turn = 0 if crew is None else crew.claim(self)
            if crew is not None and turn:
                self._crew, self._turn = crew, turn
                targets = np.empty(len(values), np.int64)
                crew.held = arguments, values, held, targets
                begin = crew.kernels.begin_cells if cells else crew.kernels.begin_rows
                begin(crew.job, *arguments, id(values), targets, PARTS)

    @property
    def shared(self) -> bool:
        """Whether the other thread has it too."""
        return self._crew is not None

    def finish(self) -> None:
        """Copy what is left, and wait for what is not."""
        crew, self._crew = self._crew, None
        if crew is None or crew is not _crew:  # the other thread did not come along into a fork
            self._alone(*self._arguments, id(self._values))
        else:
            crew.end()

    def __del__(self) -> None:
        if self._crew is not None and self._crew is _crew:  # nobody wants it any more
            self._crew.give_up(self._turn)


class _Crew:
    """A thread that helps with one copy at a time, and never needs the GIL.

    A signal's handler may raise between any two steps of a copy, and when it is given up too. So
    what the thread works on is held here, and who has the thread is known by a reference that dies
    with the copy: the next one then ends what was left open.
    """

    def __init__(self, kernels: CopyKernels) -> None:
        self.kernels = kernels
        self._lock = threading.Lock()
        self._owner: weakref.ref[SharedCopy] | None = None
        self._turn = 0  # counts those who had the thread
        self.held: object = None  # whatever the job has addresses of
        self.job = aligned_zeros((layout.JOB_BLOCK,), np.int64)
        self.kernels.prepare(self.job)
        threading.Thread(target=self._run, name="recollect-copy", daemon=True).start()

    def _run(self) -> None:
        faults = {getattr(signal, name) for name in FAULTS if hasattr(signal, name)}
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - faults)
        self.kernels.serve(self.job)

    def claim(self, copy: SharedCopy) -> int:
        """Have the thread for a copy; returns whose turn it is, 0 where another has it."""
        with self._lock:
            owner = self._owner
            if owner is not None:
                if owner() is not None:
                    return 0
                self.kernels.end(self.job, False)
            self._owner = weakref.ref(copy)
            self._turn += 1
            return self._turn

    def end(self) -> None:
        """Do what is left of the copy that has the thread, and wait for the rest."""
        self.kernels.end(self.job, True)
        self.held = self._owner = None

    def give_up(self, turn: int) -> None:
        """Nobody wants a copy any more, unless the thread was claimed since: of a copy that is
        collected, the reference dies first. Where it is being claimed now, that ends it.
        """
        if self._lock.acquire(blocking=False):
            try:
                if self._turn == turn:
                    self.kernels.end(self.job, False)
                    self.held = self._owner = None
            finally:
                self._lock.release()


def _the_crew(kernels: TableKernels) -> _Crew | None:
    """The thread, None where there is none."""
    global _crew
    if _crew is None:
        if kernels.shared_copy is None or cores() < 2:
            return None
        with _making:
            if _crew is None:
                try:
                    _crew = _Crew(kernels.shared_copy)
                except RuntimeError:  # no more threads, or the interpreter is about to end
                    return None
    return _crew


# -- comparisons ----------------------------------------------------------------------------------
def in_parts(compare: Callable[[int, int], None], bounds: Sequence[int]) -> None:
    """Call `compare(begin, end)` for every stretch between two bounds.

    Two threads take one stretch after another: so nobody waits long for a thread that has no core.
    """
    stretches = iter(list(pairwise(bounds)))

    def work() -> None:
        for begin, end in stretches:  # the GIL lets one thread at a time have the next
            compare(begin, end)

    if not _busy_comparing.acquire(blocking=False):
        work()
        return
    try:
        helped = _submit(work)
        work()
        if helped is not None and not helped.cancel():
            helped.result()
    finally:
        _busy_comparing.release()


def _submit(work: Callable[[], None]) -> Future[None] | None:
    """Begin a call in the other thread; None where there is none."""
    global _comparing
    if cores() < 2:
        return None
    if _comparing is None:
        from concurrent.futures import ThreadPoolExecutor

        _comparing = ThreadPoolExecutor(1, "recollect-compare")
    try:
        return _comparing.submit(work)
    except RuntimeError:  # the interpreter is about to end
        return None


def cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # pragma: no cover - not Linux


def _begin_anew() -> None:
    """A forked process has none of these threads, and nobody in it waits for one."""
    global _comparing, _busy_comparing, _crew, _making
    _comparing, _busy_comparing = None, threading.Lock()
    _crew, _making = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)
