"""`ReservedRoom`: a place in the buffer for every generation, so that no result has to wait.

Where a buffer is bounded, room is reserved at the start. When there is none, one coroutine waits
for some and then wakes the producer; a stop cancels it, so a full buffer never stalls a pause.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from recollect.production.signal import Signal
from recollect.rollouts.buffer import RolloutBuffer
from recollect.rollouts.space import reserve_all


@dataclass(eq=False)
class ReservedRoom:
    """The reservations of one task. On the manager's event loop only."""

    buffer: RolloutBuffer
    task: str
    changed: Signal
    fail: Callable[[BaseException], None]

    def __post_init__(self) -> None:
        core = self.buffer.core
        self._bounded = core.capacity is not None or core.capacity_bytes is not None
        self._kept = 0  # reserved by the coroutine that waited, and not used yet
        self._waiting: asyncio.Task[None] | None = None

    def reserve(self, n: int) -> int:
        """Reserve room for up to n groups; returns for how many there is.

        Where there is less, the producer is woken when there may be more.
        """
        if not self._bounded or n <= 0:
            return max(n, 0)
        kept = min(self._kept, n)
        self._kept -= kept
        got = kept + self.buffer.reserve(n - kept, self.task)
        if got < n and (self._waiting is None or self._waiting.done()):
            self._waiting = asyncio.get_running_loop().create_task(self._wait())
        return got

    def give_back(self, n: int = 1) -> None:
        """Room that was reserved and is not needed: the group left, or was not started."""
        if self._bounded and n:
            self.buffer.unreserve(n, self.task)

    def stop(self) -> None:
        """Nothing more is started: nobody waits for room, and none is kept."""
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        self.give_back(self._kept)
        self._kept = 0

    async def _wait(self) -> None:
        me = asyncio.current_task()
        core = self.buffer.core
        try:
            await core.table.run_async(reserve_all(core, 1, self.task, None))
        except Exception as error:
            self.fail(error)
            return
        if self._waiting is not me:  # stopped
            self.give_back()
            return
        self._waiting = None
        self._kept += 1
        self.changed.notify()
