"""A virtual loop on which tasks take their turns in a random order, for tests of races.

asyncio runs what is ready in the order in which it became ready, so a program is tried in one
order out of very many. Here, whenever several tasks could go on, a seeded choice says which one
does, one step at a time; a task that is ready may be passed over by any number of others. Plain
callbacks (those of transports, of futures, of timers) keep what asyncio promises them: they run in
their order, and before every task that became ready after them. Sockets rely on that.
"""

from __future__ import annotations

import asyncio
import random
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from contextvars import Context
from operator import itemgetter
from typing import Any

from recollect.simulation.virtual_loop import LONGEST, VirtualLoop


class ShufflingLoop(VirtualLoop):
    """A `VirtualLoop` that chooses at random which ready task goes on.

    >>> import asyncio
    >>> from recollect.simulation import ShufflingLoop
    >>> async def main():
    ...     order = []
    ...     async def step(name):
    ...         order.append(name)
    ...     await asyncio.gather(*(step(name) for name in "abcd"))
    ...     return "".join(order)
    >>> def order(seed):
    ...     with asyncio.Runner(loop_factory=lambda: ShufflingLoop(seed)) as runner:
    ...         return runner.run(main())
    >>> order(1) == order(1), len({order(seed) for seed in range(200)})
    (True, 24)
    """

    _ready: deque[asyncio.Handle]  # of asyncio: what runs next

    def __init__(self, seed: int, *, start: float = 0.0, limit: float = LONGEST) -> None:
        self._random = random.Random(seed)
        self._count = 0  # what became ready so far: its numbers say what came before what
        self._steps: list[tuple[int, asyncio.Handle]] = []  # tasks that could go on
        self._of_tasks: set[asyncio.Handle] = set()  # those of them that are in asyncio's queue
        self._plain: deque[tuple[int, asyncio.Handle]] = deque()  # callbacks
        super().__init__(start=start, limit=limit)

    def call_soon(  # type: ignore[override]  # typeshed wants TypeVarTuple, which is as vague
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """Note what lets a task go on: a task calls this for each of its steps."""
        handle = super().call_soon(callback, *args, context=context)
        if isinstance(getattr(callback, "__self__", None), asyncio.Task):
            self._of_tasks.add(handle)
        return handle

    def _run_once(self) -> None:
        """What asyncio does once per turn, with one callback instead of all that are ready."""
        while self._ready:  # other threads may append meanwhile
            handle = self._ready.popleft()
            self._count += 1
            is_step = handle in self._of_tasks
            self._of_tasks.discard(handle)
            (self._steps if is_step else self._plain).append((self._count, handle))
        steps = len(self._steps)
        if self._plain:
            steps = bisect_left(self._steps, self._plain[0][0], key=itemgetter(0))
        if steps or self._plain:
            at = self._random.randrange(steps + bool(self._plain))
            _, chosen = self._steps.pop(at) if at < steps else self._plain.popleft()
            self._ready.append(chosen)
        super()._run_once()  # type: ignore[misc]  # asyncio's own, which typeshed does not show

    def close(self) -> None:
        self._of_tasks.clear()
        self._steps.clear()
        self._plain.clear()
        super().close()
