"""A second thread for copies of many bytes.

They run without the GIL and mostly wait for memory, which serves two as fast as one. The thread is
made when it is first needed, and whoever finds it busy copies alone.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

_pool: ThreadPoolExecutor | None = None
_busy = threading.Lock()


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
    global _pool, _busy
    _pool, _busy = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)
