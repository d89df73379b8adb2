"""Running a coroutine on virtual time, in one line."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from recollect.simulation.shuffled_loop import ShufflingLoop
from recollect.simulation.virtual_loop import VirtualLoop, do

Result = TypeVar("Result")

WEEK = 7 * 86400.0


def run(
    main: Coroutine[Any, Any, Result],
    *,
    seed: int | None = None,
    start: float = 0.0,
    limit: float = WEEK,
) -> Result:
    """Run a coroutine on a virtual loop, as `asyncio.run` does on a real one.

    >>> import asyncio
    >>> from recollect.simulation import run
    >>> run(asyncio.sleep(86400, "a day later"))
    'a day later'

    Args:
        main: What to run; tasks that it leaves behind are cancelled.
        seed: Where given, tasks take their turns in a random order (`ShufflingLoop`).
        start: The time at which it begins.
        limit: The time at which it raises `Standstill`.
    """

    def new_loop() -> VirtualLoop:
        if seed is None:
            return VirtualLoop(start=start, limit=limit)
        return ShufflingLoop(seed, start=start, limit=limit)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(main)


async def in_thread(call: Callable[..., Result], *arguments: Any) -> Result:
    """Run a call in a thread of its own, while virtual time goes on: for one that waits for it.

    `asyncio.to_thread` is for calls that only work: time stands still for them.

    >>> import asyncio
    >>> from recollect.simulation import VirtualClock, in_thread, run
    >>> import recollect as rc
    >>> async def main():
    ...     buffer = rc.RolloutBuffer(clock=VirtualClock())
    ...     waits = asyncio.create_task(in_thread(buffer.sync.take_batch, {"math": 1}))
    ...     await asyncio.sleep(3600)
    ...     await buffer.put(rc.Group([rc.Rollout([1], [2], finish_reason="stop")], task="math"))
    ...     return len(await waits)
    >>> run(main())
    1
    """
    job: Future[Result] = Future()
    threading.Thread(target=do, args=(job, call, arguments), daemon=True).start()
    return await asyncio.wrap_future(job)
