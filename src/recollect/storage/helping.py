"""A second thread for copies of many bytes, and one for what snapshots compare.

Both mostly wait for memory, which serves two nearly as fast as one. A thread is made when it is
first needed, and whoever finds it busy works alone.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from recollect.kernels import layout
from recollect.storage.buffers import aligned_zeros

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

PARTS = 16  # of a copy that two threads share

_crew: _Crew | None = None
_making = threading.Lock()

_pool: ThreadPoolExecutor | None = None
_busy = threading.Lock()


class SharedCopy:
    """Cells that two threads copy: the other one from now on, this one in `finish`.

    `arguments` and `values` are what `kernels.rows.gather_cells` takes; they stay here until the
    other thread is done with them. Where it is not worth the while, or the other thread is busy,
    this one copies alone.
    """

    __slots__ = ("_arguments", "_crew", "_kernels", "_targets", "_values")

    def __init__(
        self, kernels: Any, arguments: tuple[Any, ...], values: list[Any], worth: bool
    ) -> None:
        self._kernels = kernels
        self._arguments = arguments
        self._values = values
        self._crew = _crew_at_leisure(kernels) if worth else None
        if self._crew is not None:
            self._targets = np.empty(len(values), np.int64)
            job = self._crew.job
            kernels.helping.begin(job, *arguments, id(values), self._targets, PARTS)

    def finish(self) -> None:
        """Copy what is left, and wait for what is not."""
        if self._crew is None:
            self._kernels.rows.gather_cells(*self._arguments, id(self._values))
        else:
            self._end(help_first=True)

    def _end(self, *, help_first: bool) -> None:
        crew, self._crew = self._crew, None
        assert crew is not None
        try:
            self._kernels.helping.end(crew.job, help_first)
        finally:
            crew.busy.release()

    def __del__(self) -> None:
        if self._crew is not None:  # nobody wants it any more
            self._end(help_first=False)


class _Crew:
    """A thread that helps with one copy at a time, and never needs the GIL."""

    def __init__(self, kernels: Any) -> None:
        self._serve = kernels.helping.serve
        self.job = aligned_zeros((layout.JOB_BLOCK,), np.int64)
        self.busy = threading.Lock()
        kernels.helping.prepare(self.job)
        threading.Thread(target=self._run, name="recollect-copy", daemon=True).start()

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        self._serve(self.job)


def _crew_at_leisure(kernels: Any) -> _Crew | None:
    """The thread, where nobody has it: it is the caller's until `busy` is released."""
    global _crew
    if _crew is None:
        if kernels.helping is None or cores() < 2:
            return None
        with _making:
            if _crew is None:
                _crew = _Crew(kernels)
    return _crew if _crew.busy.acquire(blocking=False) else None


def in_parts(copy: Callable[..., Any], bounds: Sequence[int], *arguments: Any) -> None:
    """Call `copy(*arguments, begin, end)` for every stretch between two bounds.

    Two threads take one stretch after another: so nobody waits long for a thread that has no core.
    """
    stretches = iter(list(pairwise(bounds)))

    def work() -> None:
        for begin, end in stretches:  # the GIL lets one thread at a time have the next
            copy(*arguments, begin, end)

    if not _busy.acquire(blocking=False):
        work()
        return
    try:
        helped = _submit(work)
        work()
        if helped is not None and not helped.cancel():
            helped.result()
    finally:
        _busy.release()


def _submit(work: Callable[[], None]) -> Future[None] | None:
    """Begin a call in the other thread; None where there is none."""
    global _pool
    if cores() < 2:
        return None
    if _pool is None:
        from concurrent.futures import ThreadPoolExecutor

        _pool = ThreadPoolExecutor(1, "recollect-copy")
    try:
        return _pool.submit(work)
    except RuntimeError:  # the interpreter is about to end
        return None


def cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # pragma: no cover - not Linux


def _begin_anew() -> None:
    """A forked process has no such thread, and nobody in it is copying."""
    global _pool, _busy, _crew, _making
    _pool, _busy = None, threading.Lock()
    _crew, _making = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)
