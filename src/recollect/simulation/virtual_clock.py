"""A virtual loop's time, for tables and buffers: leases and timers agree on what time it is."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable

from recollect.errors import InvalidValue, shown
from recollect.simulation.virtual_loop import VirtualLoop


class VirtualClock:
    """A `Clock` that shows the time of a virtual loop, the running one where none is given.

    >>> import asyncio
    >>> import recollect as rc
    >>> from recollect.simulation import VirtualClock, run
    >>> async def main():
    ...     buffer = rc.RolloutBuffer(clock=VirtualClock())
    ...     await buffer.put(rc.Group([rc.Rollout([1], [2], finish_reason="stop")]))
    ...     await buffer.take(1, lease=60)
    ...     await asyncio.sleep(61)
    ...     return buffer.count()
    >>> run(main())
    1

    Threads may wait on the same table: their deadlines become timers of the loop.
    """

    def __init__(self, loop: VirtualLoop | None = None) -> None:
        found = asyncio.get_running_loop() if loop is None else loop
        if not isinstance(found, VirtualLoop):
            raise InvalidValue(
                f"loop: expected a VirtualLoop, such as recollect.simulation.run uses, got "
                f"{shown(found)}"
            )
        self._loop = found
        self._thread = threading.get_ident()  # of the loop: a clock is made where it runs
        self._wake: list[weakref.WeakMethod[Callable[[], None]]] = []

    def time(self) -> float:
        return self._loop.time()

    def monotonic(self) -> float:
        return self._loop.time()

    def sleep_until(self, deadline: float) -> float | None:
        """The span for a coroutine, whose timer is virtual, too; a thread sleeps until woken."""
        sleep = max(0.0, deadline - self._loop.time())
        if sleep and threading.get_ident() != self._thread:
            self._loop.call_soon_threadsafe(self._loop.call_at, deadline, self._turn)
            return None
        return sleep

    def on_turn(self, wake: Callable[[], None]) -> None:
        self._wake.append(weakref.WeakMethod(wake))

    def _turn(self) -> None:
        for reference in self._wake:
            wake = reference()
            if wake is not None:
                wake()
