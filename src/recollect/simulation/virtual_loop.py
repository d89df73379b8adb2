"""An asyncio event loop on virtual time: when nothing is ready, time jumps to the next timer.

Everything that sleeps by the loop (`asyncio.sleep`, `asyncio.timeout`, `call_later`) takes no time
at all, and the order of events is the same on every machine. Only time is virtual: sockets,
threads and subprocesses are those of any loop.
"""

from __future__ import annotations

import asyncio
import selectors
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import Any

from recollect.errors import InvalidValue, RecollectError, shown

LONGEST = 4e6  # seconds; beyond it a float is coarser than the resolution of asyncio's timers
PATIENCE = 20.0  # real seconds that the loop waits for threads and sockets when nothing else runs


class Standstill(RecollectError):
    """Nothing on a virtual loop can ever go on, or its time is over; says where each task waits."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is a number that jumps.

    >>> import asyncio
    >>> from recollect.simulation import VirtualLoop
    >>> async def main():
    ...     await asyncio.sleep(3600)
    ...     return asyncio.get_running_loop().time()
    >>> with asyncio.Runner(loop_factory=VirtualLoop) as runner:
    ...     runner.run(main())
    3600.0

    Args:
        start: The time at which it begins.
        limit: The time at which it raises `Standstill`, so that a program that waits for something
            again and again comes to an end.
    """

    _closed = True  # until asyncio has made it: one that is refused has nothing to close

    def __init__(self, *, start: float = 0.0, limit: float = LONGEST) -> None:
        if not 0 <= start <= limit <= LONGEST:
            raise InvalidValue(
                f"start, limit: expected 0 <= start <= limit <= {LONGEST:g} seconds, got "
                f"{shown(start)} and {shown(limit)}"
            )
        self._jumps = JumpingSelector(self, float(start), limit)
        super().__init__(self._jumps)

    def time(self) -> float:
        """Virtual seconds."""
        return self._jumps.now

    def run_in_executor(  # type: ignore[override]  # typeshed wants TypeVarTuple, which is as vague
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run a call in a thread and wait for it at once: it takes no virtual time.

        So files are written, and orders of events stay the same. A call that waits for this loop
        could never end: it belongs into `in_thread`.
        """
        job: Future[Any] = Future()
        threading.Thread(target=do, args=(job, func, args), daemon=True).start()
        if not wait([job], PATIENCE).done:
            raise Standstill(
                f"{shown(func)} did not end within {PATIENCE:g} s in a thread, while time stood "
                "still for it; run a call that waits for the loop with simulation.in_thread"
            )
        return asyncio.wrap_future(job, loop=self)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Time stands still meanwhile: for waiting on other threads and processes."""
        self._jumps.holds += 1
        try:
            yield
        finally:
            self._jumps.holds -= 1


class JumpingSelector(selectors.DefaultSelector):
    """Tells the loop that it has slept as long as it wanted to, and lets that time pass."""

    def __init__(self, loop: VirtualLoop, start: float, limit: float) -> None:
        super().__init__()
        self.now = start
        self.holds = 0
        self._loop = loop
        self._limit = limit
        self._before = set(threading.enumerate())  # threads that know nothing of this loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        if found or (timeout is not None and timeout <= 0):
            return found
        if self.holds or timeout is None:
            return self._wait_for_others()
        if self.now + timeout > self._limit:
            raise self._standstill(f"its time is over at {self._limit:g} s")
        self.now += timeout
        return []

    def _wait_for_others(self) -> list[tuple[selectors.SelectorKey, int]]:
        """No timer to jump to: only a thread or a socket can go on from here."""
        sockets = len(self.get_map()) > 1  # one is the loop's own, for waking it from threads
        others = self.holds or sockets or set(threading.enumerate()) - self._before
        found = super().select(PATIENCE if others else 0)  # one may have ended just now
        if found:
            return found
        raise self._standstill("nothing is ready and there is no timer to wait for")

    def _standstill(self, why: str) -> Standstill:
        tasks = sorted(asyncio.all_tasks(self._loop), key=lambda task: task.get_name())
        waits = "".join(f"\n  {task.get_name()}: {place(task)}" for task in tasks)
        return Standstill(
            f"the virtual loop stands still at {self.now:g} s: {why}; its tasks wait at:{waits}"
        )


def do(job: Future[Any], call: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """Make a call, and let its future know what became of it."""
    try:
        result = call(*arguments)
    except BaseException as error:
        job.set_exception(error)
    else:
        job.set_result(result)


def place(task: asyncio.Task[Any]) -> str:
    """Where a task waits: its coroutines from the outermost to the innermost."""
    places = []
    awaited: Any = task.get_coro()
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is None:
            break
        file = frame.f_code.co_filename.rpartition("/")[2]
        places.append(f"{frame.f_code.co_name} ({file}:{frame.f_lineno})")
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
    return " > ".join(places) or "done"
