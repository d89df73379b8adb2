"""A ring of 12 rows with three episodes: one whose head is cut, one whole, one that goes on.

The guide 'Sequences and episodes' fills the same ring.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.patches import Wedge

import recollect as rc

RING = 12
COLORS = {"A": "#9ecbff", "B": "#ffd58a", "C": "#b4e3b0"}
INK, DIM = "#24292f", "#8b949e"


def fill() -> rc.ReplayBuffer:
    """A: six steps, terminated; B: four, truncated; C: three, and it goes on."""
    buffer = rc.ReplayBuffer(RING, seed=0)
    for steps, end in ((6, "terminated"), (4, "truncated"), (3, None)):
        for t in range(steps):
            row = buffer.stats()["inserts"]
            mark = {end: True, "final_obs": np.float32([-1])} if end and t == steps - 1 else {}
            buffer.add(obs=np.float32([row]), reward=1.0, **mark)
    return buffer


def rows(buffer: rc.ReplayBuffer) -> dict[int, tuple[str, bool]]:
    """For each row that is stored: its episode, and whether it holds a final observation."""
    found: dict[int, tuple[str, bool]] = {}
    listed = buffer.episodes()
    for name, start, length, complete in zip(
        "ABC", listed["start"], listed["length"], listed["complete"], strict=True
    ):
        for row in range(start, start + length):
            found[row] = (name, False)
        if complete:  # each of these episodes was given a final_obs
            found[start + length] = (name, True)
    return found


def draw_ring(path: Path) -> None:
    buffer = fill()
    stored = rows(buffer)
    figure, axes = plt.subplots(figsize=(7.2, 3.7), layout="constrained")
    axes.set_aspect("equal")
    axes.axis("off")
    turn = 360 / RING
    for row, (episode, final) in stored.items():
        begin = 90 - (row % RING) * turn
        axes.add_patch(
            Wedge(
                (0, 0), 1, begin - turn, begin, width=0.42, ec="white", lw=2,
                fc=COLORS[episode], hatch="///" if final else None,
            )
        )  # fmt: skip
        x, y = on_circle(begin - turn / 2, 0.79)
        text = f"{episode}\nrow {row}" + ("\nfinal" if final else "")
        axes.text(x, y, text, ha="center", va="center", fontsize=8, color=INK)
        x, y = on_circle(begin - turn / 2, 0.5)
        axes.text(x, y, str(row % RING), ha="center", va="center", fontsize=7, color=DIM)
    newest = max(stored)
    where = 90 - ((newest + 1) % RING) * turn
    note(axes, where, "the write position:\nrow 15 takes the place of row 3", 1.0)
    head = 90 - (min(stored) % RING) * turn - turn / 2
    note(axes, head, "a cut head: rows 0 to 2 of A\nwere overwritten by C", 1.0, down=0.35)
    middle = 90 - (7 % RING) * turn - turn / 2
    note(axes, middle, "B is whole: four steps\nand its final observation", -1.0)
    last = 90 - (newest % RING) * turn - turn / 2
    note(axes, last, "C goes on: its newest row\nhas no next observation yet", 1.0, down=-0.35)
    axes.text(
        0, 0, "12 rows,\nposition =\nrow mod 12", ha="center", va="center", fontsize=8, color=DIM
    )
    axes.set(xlim=(-2.7, 2.9), ylim=(-1.05, 1.25))
    save(figure, path)


def on_circle(degrees: float, radius: float) -> tuple[float, float]:
    angle = math.radians(degrees)
    return radius * math.cos(angle), radius * math.sin(angle)


def note(axes: plt.Axes, degrees: float, text: str, side: float, down: float = 0.0) -> None:
    """A remark at the side, and a line to the ring."""
    x, y = on_circle(degrees, 1.0)
    axes.annotate(
        text, (x, y), (side * 1.3, y - down), fontsize=8, color=INK, va="center",
        ha="left" if side > 0 else "right",
        arrowprops={"arrowstyle": "-|>", "color": INK, "lw": 0.8},
    )  # fmt: skip


def save(figure: plt.Figure, path: Path) -> None:
    figure.savefig(path, facecolor="white")  # legible on a dark page too
    plt.close(figure)
