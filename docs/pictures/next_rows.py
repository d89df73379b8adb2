"""Where the next observation of a step comes from: the next row, a final row, or nowhere."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.patches import FancyArrowPatch, Rectangle

import recollect as rc
from pictures.rings import COLORS, DIM, INK, save

CASES = (
    ("final_obs is given: nothing is lost", "truncated", True),
    ("terminated, and no final_obs: zeros, which discount 0 makes harmless", "terminated", False),
    ("truncated, and no final_obs: the last step is not drawn", "truncated", False),
)


def draw_next_rows(path: Path) -> None:
    figure, stacked = plt.subplots(len(CASES), figsize=(6.8, 5.4), layout="constrained")
    for axes, (title, mark, final) in zip(stacked, CASES, strict=True):
        draw_case(axes, title, mark, final)
    save(figure, path)


def draw_case(axes: plt.Axes, title: str, mark: str, final: bool) -> None:
    """An episode of three steps, and the first of the next; arrows are what `sample` says."""
    buffer = rc.ReplayBuffer(100, gamma=0.9, seed=0)
    for t in range(1, 5):
        ended = {mark: True} | ({"final_obs": np.float32(9)} if final else {}) if t == 3 else {}
        buffer.add(obs=np.float32(t), reward=1.0, **ended)
    batch = buffer.sample(200)
    drawn = {
        int(step): (float(following), float(discount))
        for step, following, discount in zip(
            batch.info.steps, batch["next_obs"], batch["discount"], strict=True
        )
    }
    axes.axis("off")
    axes.set_title(title, fontsize=9, loc="left", color=INK)
    cells = [("o1", "A"), ("o2", "A"), ("o3", "A"), *([("o9", "final")] if final else [])]
    cells.append(("o4", "B"))
    for row, (obs, kind) in enumerate(cells):
        color = COLORS["A" if kind == "final" else kind]
        hatch = "///" if kind == "final" else None
        axes.add_patch(Rectangle((row, 0), 0.96, 0.8, fc=color, ec="white", hatch=hatch))
        lines = f"obs {obs}" if kind == "final" else f"obs {obs}\naction, reward"
        if obs == "o3":
            lines += f"\n{mark}"
        axes.text(row + 0.48, 0.4, lines, ha="center", va="center", fontsize=8, color=INK)
        name = "final row: no step" if kind == "final" else f"row {row}"
        axes.text(row + 0.48, -0.08, name, ha="center", va="top", fontsize=7, color=DIM)
    for row in range(3):
        told = f"row {row}\nis not drawn"
        if row in drawn:
            following, discount = drawn[row]
            name = f"o{following:g}" if following else "zeros"
            told = f"next_obs {name}\ndiscount {discount:.1f}"
            if following:
                axes.add_patch(
                    FancyArrowPatch(
                        (row + 0.48, 0.82), (row + 1.48, 0.82), arrowstyle="-|>",
                        connectionstyle="arc3,rad=-0.35", mutation_scale=9, color=INK, lw=0.9,
                    )
                )  # fmt: skip
        axes.text(row + 1.0, 1.1, told, ha="center", va="bottom", fontsize=7.5, color=INK)
    axes.set(xlim=(-0.05, 5.05), ylim=(-0.3, 1.7))
