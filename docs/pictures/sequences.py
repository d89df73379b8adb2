"""What a sequence is where an episode ends or its head is cut, in each of the three modes.

Starts and masks are those that `sample_sequences` returns for the ring of rings.py.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.patches import Rectangle

import recollect as rc
from pictures.rings import COLORS, DIM, INK, fill, rows, save

LENGTH, BURN_IN = 4, 1
MODES = (("stop", 7), ("pad", 4), ("reset", 4))  # and the start that is shown
MASKS = ("valid", "is_first", "burn_in", "bootstrap")
TELLS = {
    "stop": "“stop”: all {n} steps are of one episode",
    "pad": "“pad”: after the end of the episode come zeros, and valid is False",
    "reset": "“reset”: the next episode follows; is_first says where to reset the state",
}


def draw_sequences(path: Path) -> None:
    buffer = fill()
    stored = rows(buffer)
    oldest, newest = min(stored), max(stored)
    figure, axes = plt.subplots(figsize=(7.4, 6.9), layout="constrained")
    axes.axis("off")
    top = 0.0
    axes.text(oldest, top + 1.1, "the ring, oldest row first", fontsize=9, color=INK)
    for row, (episode, final) in stored.items():
        box(
            axes,
            row,
            top,
            COLORS[episode],
            f"{episode}\n{row}" + ("\nfinal" if final else ""),
            final,
        )
    axes.plot([oldest] * 2, [top - 0.15, top + 0.95], color="#cf222e", lw=2)
    axes.text(
        oldest - 0.1, top + 0.4, "cut\nhere", ha="right", va="center", fontsize=8, color="#cf222e"
    )
    axes.plot([newest + 0.96] * 2, [top - 0.15, top + 0.95], color="#cf222e", lw=2)
    axes.text(newest + 1.06, top + 0.4, "write\nposition", va="center", fontsize=8, color="#cf222e")
    for mode, start in MODES:
        top = draw_mode(axes, buffer, stored, mode, start, top - 1.0)
    axes.set(xlim=(oldest - 2.3, newest + 2.2), ylim=(top - 0.3, 1.6))
    save(figure, path)


def draw_mode(
    axes: plt.Axes,
    buffer: rc.ReplayBuffer,
    stored: dict[int, tuple[str, bool]],
    mode: str,
    start: int,
    top: float,
) -> float:
    """The legal starts of a mode, and one sequence with its masks; returns where it ends."""
    batch = buffer.sample_sequences(500, LENGTH, burn_in=BURN_IN, across_episodes=mode)
    oldest = min(stored)
    axes.text(oldest, top + 0.25, TELLS[mode].format(n=LENGTH), fontsize=9, color=INK)
    top -= 0.25
    axes.text(
        oldest - 0.1, top + 0.15, "legal starts", ha="right", va="center", fontsize=8, color=DIM
    )
    legal = np.unique(batch.info.steps)
    axes.scatter(legal + 0.48, np.full(legal.size, top + 0.15), s=28, color=INK)
    top -= 0.85
    shown = int(np.flatnonzero(batch.info.steps == start)[0])
    axes.text(
        oldest - 0.1,
        top + 0.4,
        f"the one\nfrom row {start}",
        ha="right",
        va="center",
        fontsize=8,
        color=DIM,
    )
    left = oldest + 1
    for position in range(LENGTH):
        row = row_of(stored, batch["obs"][shown, position, 0])
        if batch["valid"][shown, position]:
            box(axes, left + position, top, COLORS[stored[row][0]], f"{stored[row][0]}\n{row}")
        else:
            box(axes, left + position, top, "#f0f0f0", "0")
    for mask in MASKS:
        top -= 0.36
        axes.text(left - 0.1, top + 0.15, mask, ha="right", va="center", fontsize=7.5, color=INK)
        for position in range(LENGTH):
            value = bool(batch[mask][shown, position])
            axes.text(
                left + position + 0.48, top + 0.15, "True" if value else "False",
                ha="center", va="center", fontsize=7.5, color=INK if value else "#c0c6cc",
            )  # fmt: skip
    return top + 0.15


def row_of(stored: dict[int, tuple[str, bool]], obs: float) -> int:
    """The row of a step: its obs is how many steps were added before it."""
    finals = [row for row, (_, final) in stored.items() if final]
    row = int(obs)
    for final in finals:
        row += final <= row
    return row


def box(axes: plt.Axes, x: float, y: float, color: str, text: str, final: bool = False) -> None:
    hatch = "///" if final else None
    axes.add_patch(Rectangle((x, y), 0.96, 0.8, fc=color, ec="white", hatch=hatch))
    axes.text(x + 0.48, y + 0.4, text, ha="center", va="center", fontsize=8, color=INK)
