"""What the agents here share: options, a learning curve with its numbers, and its plot."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import torch

matplotlib.use("Agg")  # a file, not a window
from matplotlib import pyplot as plt

Points = list[tuple[int, float]]  # steps, score


def run(
    train: Callable[[int, int, int], Points],
    about: str,
    *,
    name: str,
    short: tuple[int, int],
    full: tuple[int, int],
    score: str,
    levels: dict[str, float],
) -> None:
    """Call train(seed, amount, points) as the command line says; print and draw what it reached."""
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("--short", action="store_true", help="a few seconds instead of a minute")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plot", type=Path, default=Path(f"{name}.svg"))
    parser.add_argument("--numbers", type=Path, help="a JSON file for the points of the curve")
    options = parser.parse_args()

    torch.set_num_threads(1)  # so small a network gains nothing from more
    begin = time.monotonic()
    points = train(options.seed, *(short if options.short else full))
    quarter = [value for _, value in points[-(len(points) // 4) :]]
    print(
        f"reached {sum(quarter) / len(quarter):.4g} (mean of the last quarter; before training "
        f"{points[0][1]:.4g}) in {time.monotonic() - begin:.0f} s"
    )
    title = f"{about.splitlines()[0].split(':')[0].rstrip('.')}, seed {options.seed}"
    curve = {"title": title, "y": score, "levels": levels, "points": points}
    draw(curve, options.plot)
    print(f"the learning curve is in {options.plot}")
    if options.numbers is not None:
        options.numbers.write_text(json.dumps(curve) + "\n", "utf-8")


def draw(curve: dict[str, Any], path: Path) -> None:
    """`curve` has a title, the name of its score, levels to compare it with, and points."""
    figure, axes = plt.subplots(figsize=(6.4, 3.2), layout="constrained")
    steps, scores = zip(*curve["points"], strict=True)
    axes.plot(steps, scores, marker="o", markersize=3, color="#1f6feb")
    for name, level in curve["levels"].items():
        axes.axhline(level, color="#8b949e", linestyle="--", linewidth=1)
        place = {"xytext": (4, 3), "textcoords": "offset points"}
        axes.annotate(name, (0, level), color="#57606a", fontsize=8, **place)
    axes.set_title(curve["title"], fontsize=10)
    axes.set(xlabel="steps", ylabel=curve["y"])
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, facecolor="white")
    plt.close(figure)
