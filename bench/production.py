"""What production itself costs: generations that take no time, through produce, put, take, confirm.

Beside it stands the least that a program can do by hand: one asyncio task per generation that puts
its group into a queue, from which the trainer takes batches. That one keeps no counts, knows no
staleness, cannot be paused, and loses what it has when it ends.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

BATCH, TOKENS, FLYING = 256, 64, 512
SIZES = {1: 10_000, 8: 3_000}  # rollouts of a group -> groups per second that are promised
MOST_DRAIN = 0.050


@dataclass
class Production:
    """Groups per second, one entry per round, by rollouts of a group; and seconds of a pause."""

    ours: dict[int, list[float]] = field(default_factory=lambda: {size: [] for size in SIZES})
    queue: dict[int, list[float]] = field(default_factory=lambda: {size: [] for size in SIZES})
    pause: list[float] = field(default_factory=list)


class Instant:
    """Answers at once, with tokens that it has."""

    def __init__(self) -> None:
        self._answer = np.arange(TOKENS, dtype=np.int32)
        self._logprobs = np.zeros(TOKENS, np.float32)
        self._waiting: list[asyncio.Future[None]] = []
        self.holds = False

    async def generate(self, group: Any, *, keep_partial: bool) -> Any:
        if self.holds:
            future = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            await future
        for rollout in group.rollouts:
            rollout.response_ids = self._answer
            rollout.logprobs = self._logprobs
            rollout.reward = 1.0
            rollout.finish_reason = "stop"
        return group

    def finish(self) -> None:
        self.holds = False
        for future in self._waiting:
            future.set_result(None)

    async def pause(self) -> None: ...
    async def continue_(self, version: int) -> None: ...
    async def set_version(self, version: int) -> None: ...


def measure(rounds: int, say: Callable[[str], None]) -> Production:
    """Time both in turn."""
    say(f"production: batches of {BATCH} groups, {rounds} rounds; a pause of {FLYING} in flight")
    found = Production()
    for size in SIZES:
        groups = BATCH * (16 if size == 1 else 6)
        asyncio.run(_ours(size, BATCH * 2))  # kernels are loaded, and memory is there
        for _ in range(rounds):
            found.ours[size].append(asyncio.run(_ours(size, groups)))
            found.queue[size].append(asyncio.run(_queue(size, groups)))
    for _ in range(rounds):
        found.pause.append(asyncio.run(_pause()))
    return found


def _manager(size: int, generator: Instant) -> Any:
    import recollect as rc
    from recollect import production

    prompt = np.arange(16, dtype=np.int32)
    prompts = production.ListPrompts([prompt] * 1024, n=size)
    task = production.Task("math", prompts, generator)
    buffer = rc.RolloutBuffer(staleness=rc.Staleness(max_staleness=1))
    return production.DisaggregatedManager([task], buffer, bars=False)


async def _ours(size: int, groups: int) -> float:
    """Groups per second, from their prompts to the confirmed batch."""
    manager = _manager(size, Instant())
    began = time.perf_counter()
    manager.start(BATCH)
    for step in range(1, groups // BATCH + 1):
        result = await manager.get_batch(BATCH, step)
        assert len(result.batch["response_ids"]) == BATCH * size
        await manager.confirm(result)
        await manager.set_version(step)
    seconds = time.perf_counter() - began
    await manager.shutdown()
    return groups / seconds


async def _queue(size: int, groups: int) -> float:
    """The same by hand, with nothing but a queue."""
    import recollect as rc

    generator, prompt = Instant(), np.arange(16, dtype=np.int32)
    queue: asyncio.Queue[Any] = asyncio.Queue()

    async def one() -> None:
        group = rc.Group([rc.Rollout() for _ in range(size)], task="math", prompt_ids=prompt)
        queue.put_nowait(await generator.generate(group, keep_partial=False))

    began = time.perf_counter()
    for _ in range(groups // BATCH):
        await asyncio.gather(*(one() for _ in range(BATCH)))
        batch = [queue.get_nowait() for _ in range(BATCH)]
        tokens = np.concatenate([r.response_ids for group in batch for r in group.rollouts])
        assert tokens.size == BATCH * size * TOKENS
    return groups / (time.perf_counter() - began)


async def _pause() -> float:
    """Seconds from the end of the last of many generations until `pause` returns."""
    generator = Instant()
    generator.holds = True
    manager = _manager(1, generator)
    manager.start(FLYING)
    while len(generator._waiting) < FLYING:
        await asyncio.sleep(0)
    pausing = asyncio.ensure_future(manager.pause())
    await asyncio.sleep(0)
    generator.finish()
    began = time.perf_counter()
    await pausing
    seconds = time.perf_counter() - began
    assert manager.buffer.count("math", "COMPLETED") == FLYING
    await manager.shutdown()
    return seconds
