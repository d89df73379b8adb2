"""When generation and training are at work, colocated and disaggregated: drawn by running both.

Both managers work on the same prompts with the same lengths of responses, on virtual time.
"""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import pyplot as plt

import recollect as rc
from pictures.rings import COLORS, DIM, INK, save
from recollect import production
from recollect.simulation import VirtualClock, run

BATCH, STEPS, TRAIN, SYNC = 8, 4, 6.0, 0.5
WAITS = "#d1495b"


class Engine:
    """Writes responses of lognormal length, at most some at once, and remembers when."""

    def __init__(self) -> None:
        self.spans: list[tuple[float, float]] = []
        self._random = np.random.default_rng(4)
        self._slots = asyncio.Semaphore(BATCH)

    async def generate(self, group: Any, *, keep_partial: bool) -> Any:
        seconds = math.exp(self._random.normal(1.2, 0.6))
        async with self._slots:
            loop = asyncio.get_running_loop()
            began = loop.time()
            await asyncio.sleep(seconds)
            self.spans.append((began, loop.time()))
        group[0].response_ids, group[0].finish_reason = [1], "stop"
        group[0].check()
        return group

    async def pause(self) -> None: ...
    async def continue_(self, version: int) -> None: ...
    async def set_version(self, version: int) -> None: ...


def draw_turns(path: Path) -> None:
    figure, rows = plt.subplots(2, 1, figsize=(8.2, 4.4), sharex=True, layout="constrained")
    for axes, (title, worked) in zip(rows, walk().items(), strict=True):
        spans, trained, waited = worked
        for line, (began, ended) in enumerate(sorted(spans)):
            axes.hlines(line, began, ended, color=DIM, lw=2)
        bottom, top = axes.get_ylim()
        for began, ended in trained:
            axes.axvspan(began, ended, color=COLORS["A"], alpha=0.6, lw=0)
        for began, ended in waited:
            axes.axvspan(began, ended, ymax=0.04, color=WAITS, lw=0)
        axes.set_ylim(bottom, top)
        ended = max(end for _, end in trained)
        idle = sum(end - begin for begin, end in waited) / ended
        axes.set_title(f"{title}: {STEPS} steps in {ended:.0f} s, the trainer waits {idle:.0%}")
        axes.title.set(fontsize=9, color=INK)
        axes.set_yticks([])
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(labelsize=8, colors=INK)
    rows[1].set_xlabel("seconds", fontsize=8.5, color=INK)
    save(figure, path)


def walk() -> dict[str, Any]:
    """When generations ran, and the trainer trained and waited, for both arrangements."""
    return {"colocated": run(_colocated()), "disaggregated": run(_disaggregated())}


def _parts(rule: rc.Staleness) -> tuple[Engine, production.Task, rc.RolloutBuffer]:
    engine = Engine()
    prompts = production.ListPrompts([[n] for n in range(1000)], n=1)
    buffer = rc.RolloutBuffer(staleness=rule, clock=VirtualClock())
    return engine, production.Task("math", prompts, engine), buffer


async def _colocated() -> Any:
    engine, task, buffer = _parts(rc.Staleness())
    manager = production.ColocatedManager([task], buffer, bars=False)
    return await _train(engine, manager, lambda step: manager.produce_batch(BATCH, step))


async def _disaggregated() -> Any:
    engine, task, buffer = _parts(rc.Staleness(max_staleness=1))
    manager = production.DisaggregatedManager([task], buffer, bars=False)
    manager.start(BATCH)
    return await _train(engine, manager, lambda step: manager.get_batch(BATCH, step))


async def _train(engine: Engine, manager: production.Manager, batch: Any) -> Any:
    loop = asyncio.get_running_loop()
    trained, waited = [], []
    for step in range(1, STEPS + 1):
        asked = loop.time()
        result = await batch(step)
        waited.append((asked, loop.time()))
        await asyncio.sleep(TRAIN)
        trained.append((waited[-1][1], loop.time()))
        await manager.confirm(result)
        await asyncio.sleep(SYNC)
        await manager.set_version(step)
    await manager.shutdown()
    return engine.spans, trained, waited
