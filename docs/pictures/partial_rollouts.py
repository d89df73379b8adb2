"""Responses that pauses break off, with `keep_partial` and without: what a generator did."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib import pyplot as plt

import recollect as rc
from pictures.rings import COLORS, DIM, INK, save
from recollect.production import FunctionGenerator
from recollect.simulation import run

LENGTHS = (3, 5, 6, 8, 13, 17, 22, 31)  # seconds that each response takes
EVERY = 10  # seconds between two pauses
UNTIL = 40
LOST = "#d0d7de"


@dataclass
class Part:
    """A stretch of a response that was written with one version of the weights."""

    row: int
    begin: float
    end: float
    version: int
    lost: bool = False


async def written(keep_partial: bool) -> tuple[list[Part], dict[int, float]]:
    """The parts of all responses, and when each was finished."""
    parts: list[Part] = []
    finished: dict[int, float] = {}
    now = asyncio.get_running_loop().time

    async def write(group: rc.Group) -> None:
        row, rollout = int(group.group_id), group[0]
        part = Part(row, now(), now(), generator.version)
        parts.append(part)
        while rollout.num_tokens < LENGTHS[row]:
            await asyncio.sleep(1)
            rollout.response_ids = np.append(rollout.response_ids, row)
            part.end = now()
        rollout.finish_reason = "stop"
        finished[row] = now()

    generator = FunctionGenerator(write, on_pause="abort")
    groups = [
        rc.Group([rc.Rollout()], group_id=str(row), prompt_ids=[1]) for row in range(len(LENGTHS))
    ]
    for version in range(UNTIL // EVERY):
        await generator.continue_(version)
        unfinished = [group for group in groups if group.status is not rc.Status.COMPLETED]
        calls = [generator.generate(group, keep_partial=keep_partial) for group in unfinished]
        running = asyncio.gather(*calls)
        await asyncio.sleep(EVERY + 0.5 * (version == 0))  # between two tokens
        await generator.pause()
        await running
        for part in parts:
            rollout = groups[part.row][0]
            part.lost = part.lost or (part.version == version and not rollout.num_tokens)
    return parts, finished


def draw_partial_rollouts(path: Path) -> None:
    figure, panels = plt.subplots(
        2, 1, figsize=(8.2, 4.6), layout="constrained", sharex=True, sharey=True
    )
    shades = [*COLORS.values(), "#e2c5f2", "#f7b7a3", "#a8e0e0"]
    for axes, keep_partial in zip(panels, (False, True), strict=True):
        parts, finished = run(written(keep_partial))
        for part in parts:
            axes.barh(
                part.row, part.end - part.begin, left=part.begin, height=0.7, ec="white",
                color=LOST if part.lost else shades[part.version],
            )  # fmt: skip
        for row, moment in finished.items():
            axes.plot(moment, row, marker="|", ms=9, mew=2, color=INK)
        for version in range(1, UNTIL // EVERY):
            axes.axvline(version * EVERY + 0.5, color=DIM, lw=0.8, ls="--", zorder=0)
        lost = sum(part.end - part.begin for part in parts if part.lost)
        done = f"{len(finished)} of {len(LENGTHS)} finished, {lost:.0f} tokens thrown away"
        axes.set_title(f"keep_partial={keep_partial}: {done}", fontsize=9, color=INK, loc="left")
        axes.set(yticks=[], xlim=(0, UNTIL))
        axes.spines[:].set_color(LOST)
        axes.tick_params(colors=DIM, labelsize=8)
    panels[1].set_xlabel("seconds; colours: version of the weights", fontsize=8, color=INK)
    save(figure, path)
