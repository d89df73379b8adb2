"""`Signal`: the one way in which production waits. Coroutines sleep until a condition holds.

All of production lives on one event loop. What stands between two `await`s is therefore a critical
section: a condition that was checked still holds in the lines that follow. `until` checks and
enlists in one such section, so a change that comes in between cannot be missed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Signal:
    """Something may have changed; those who wait look again.

    >>> import asyncio
    >>> from recollect.production.signal import Signal
    >>> async def main():
    ...     signal, seen = Signal(), []
    ...     waiting = asyncio.create_task(signal.until(lambda: seen))
    ...     await asyncio.sleep(0)
    ...     seen.append("news")
    ...     signal.notify()
    ...     await waiting
    >>> asyncio.run(main())
    """

    def __init__(self) -> None:
        self.count = 0  # how often there was news
        self._waiting: dict[asyncio.Future[None], None] = {}  # a set, in order

    def notify(self) -> None:
        """Let everybody who waits look again. On the loop only."""
        self.count += 1
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    async def until(self, condition: Callable[[], object]) -> None:
        """Return when a condition holds, at once where it does."""
        while not condition():
            future = asyncio.get_running_loop().create_future()
            self._waiting[future] = None
            try:
                await future
            finally:
                del self._waiting[future]

    async def after(self, count: int) -> None:
        """Return when there was news since `count`; who read that first misses nothing."""
        await self.until(lambda: self.count != count)
