"""Learning curves of several runs: a line per point in one file, joined at equal generated tokens.

Runs append to the same file, each a whole line at a time, so they may be processes that go on side
by side, and what was written is there when one of them is stopped.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from numpy.typing import NDArray

matplotlib.use("Agg")  # a file, not a window
from matplotlib import pyplot as plt

COLUMNS = (
    "mode", "seed", "step", "tokens", "seconds", "reward", "right", "lag", "uses", "replayed",
)  # fmt: skip
COLORS = {
    "on-policy": "#57606a", "queue": "#bf8700", "uniform": "#1f6feb", "prioritized": "#1a7f37",
    "on-policy, small steps": "#cf222e",
}  # fmt: skip
AXES = {"tokens": "generated tokens", "seconds": "seconds"}

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Run:
    """The points of one run, in order: an array for each number."""

    mode: str
    seed: int
    numbers: Mapping[str, Floats]

    def at(self, x: str, places: Floats, y: str) -> Floats:
        """What y was where x was so much, on the line between two points."""
        found: Floats = np.interp(places, self.numbers[x], self.numbers[y])
        return found

    @property
    def last(self) -> float:
        """Tokens that it generated."""
        return float(self.numbers["tokens"][-1])


def append(path: Path, point: Mapping[str, object]) -> None:
    """Add a point in one write, so that lines of several processes do not mix."""
    row = [point[name] for name in COLUMNS]
    text = ",".join(f"{cell:.6g}" if isinstance(cell, float) else str(cell) for cell in row)
    number = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(number, f"{text}\n".encode())
    finally:
        os.close(number)


def begin(path: Path) -> None:
    """An empty file of points."""
    path.write_text(",".join(COLUMNS) + "\n", "utf-8")


def read(path: Path) -> list[Run]:
    """The runs of a file, by mode in the order of `COLORS`, and by seed."""
    points: dict[tuple[str, int], list[dict[str, str]]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            points.setdefault((row["mode"], int(row["seed"])), []).append(row)
    order = list(COLORS)
    return [
        Run(mode, seed, {n: np.array([float(row[n]) for row in rows]) for n in COLUMNS[2:]})
        for (mode, seed), rows in sorted(points.items(), key=lambda p: (order.index(p[0][0]), p[0]))
    ]


def modes_of(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """The runs of each mode."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(run.mode, []).append(run)
    return found


def common_tokens(runs: Sequence[Run]) -> float:
    """The tokens that every run generated: what is compared is compared up to here."""
    return min(run.last for run in runs)


def table(runs: Sequence[Run], also: Sequence[str] = ("seconds",)) -> str:
    """As Markdown: what each mode reached at the same number of generated tokens."""
    end = common_tokens(runs)
    names = [f"reward at {end / 2:,.0f} tokens", f"at {end:,.0f}", "solved", "train steps", "lag"]
    lines = [_line("mode", *names, *also), _line(*["---"] * (6 + len(also)))]
    for mode, some in modes_of(runs).items():
        early, late = (
            [float(run.at("tokens", np.array([place]), "reward")[0]) for run in some]
            for place in (end / 2, end)
        )
        right, step, *more = (
            float(np.mean([run.at("tokens", np.array([end]), name) for run in some]))
            for name in ("right", "step", *also)
        )
        lag = np.mean([run.numbers["lag"].mean() for run in some])
        numbers = [f"{right:.0%}", f"{step:,.0f}", f"{lag:.1f}", *(f"{each:.0f}" for each in more)]
        lines.append(_line(mode, _shown(early), _shown(late), *numbers))
    return "\n".join(lines)


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _shown(values: Sequence[float]) -> str:
    """The mean, and from where to where seeds went."""
    if len(values) == 1:
        return f"{values[0]:.2f}"
    return f"{np.mean(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def draw(runs: Sequence[Run], path: Path, title: str) -> None:
    """Reward of what was generated, against tokens and against time."""
    draw_panels([(runs, "tokens", ""), (runs, "seconds", "")], path, title)


def draw_panels(panels: Sequence[tuple[Sequence[Run], str, str]], path: Path, title: str) -> None:
    """A panel for each: some runs, against what, and its title."""
    size = (4.2 * len(panels), 3.3)
    figure, found = plt.subplots(1, len(panels), figsize=size, layout="constrained", sharey=True)
    for axes, (runs, x, name) in zip(found, panels, strict=True):
        _plot(axes, runs, x)
        axes.set(xlabel=AXES[x], ylim=(0, 1.02), xlim=(0, None))
        axes.set_title(name, fontsize=9)
        axes.spines[["top", "right"]].set_visible(False)
    found[0].set_ylabel("reward")
    found[-1].legend(frameon=False, loc="lower right")
    figure.suptitle(title, fontsize=10)
    figure.savefig(path, facecolor="white", metadata={"Date": None})
    plt.close(figure)


def _plot(axes: Any, runs: Sequence[Run], x: str) -> None:
    """For each mode the mean of its seeds, and their range, as far as all runs generated."""
    end = np.array([common_tokens(runs)])
    for mode, some in modes_of(runs).items():
        first = max(run.numbers[x][0] for run in some)
        last = min(float(run.at("tokens", end, x)[0]) for run in some)
        places = np.linspace(first, last, 120)
        values = np.array([run.at(x, places, "reward") for run in some])
        axes.plot(places, values.mean(0), color=COLORS[mode], label=mode, linewidth=1.6)
        if len(some) > 1:
            low, high = values.min(0), values.max(0)
            axes.fill_between(places, low, high, color=COLORS[mode], alpha=0.15, linewidth=0)
