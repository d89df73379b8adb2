"""What staleness buys and costs, by simulation. The guide 'The simulator' prints the same runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from matplotlib import pyplot as plt

import recollect as rc
from pictures.rings import COLORS, DIM, INK, save
from recollect.simulation import Report, Scenario, TaskModel, simulate

BASE = Scenario(
    batch_size=16,
    group_size=4,
    slots=96,
    train_seconds=60,
    sync_seconds=5,
    sync="running",
    over_sample=0.5,
    steps=40,
    tasks={"math": TaskModel(median_tokens=1500, sigma=0.7, max_tokens=8192, filtered=0.1)},
)
ALLOWED = (0, 1, 2, 3, 4)
PARTS = {"training": ("trains", "C"), "waiting": ("waits", "B"), "syncing": ("syncs", "A")}
REASONS = {
    "expired": "#e5806b",
    "aborted": "#ffd58a",
    "cancelled": "#f2b8c6",
    "filtered": "#c9d1d9",
    "left_over": "#9ecbff",
}


def draw_staleness(path: Path) -> None:
    """The trainer's time and the lags of its tokens, for several `max_staleness`."""
    reports = [simulate(replace(BASE, staleness=rc.Staleness(allowed))) for allowed in ALLOWED]
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.2, 3.4), layout="constrained")
    bottom = [0.0] * len(reports)
    for name, (label, color) in PARTS.items():
        seconds = [getattr(report, name) * report.step_seconds for report in reports]
        left.bar(ALLOWED, seconds, bottom=bottom, color=COLORS[color], label=label, width=0.7)
        bottom = [below + more for below, more in zip(bottom, seconds, strict=True)]
    left.set(xlabel="max_staleness", ylabel="seconds per train step")
    left.set_ylim(0, max(bottom) * 1.35)
    left.legend(frameon=False, fontsize=8, ncols=3, loc="upper center")
    lags = sorted({lag for report in reports for lag in report.lags})
    bottom = [0.0] * len(reports)
    for place, lag in enumerate(lags):
        shares = [report.lags.get(lag, 0) / report.trained for report in reports]
        shade = plt.get_cmap("Blues")(0.25 + 0.6 * place / max(len(lags) - 1, 1))
        right.bar(ALLOWED, shares, bottom=bottom, color=shade, label=f"lag {lag}", width=0.7)
        bottom = [below + more for below, more in zip(bottom, shares, strict=True)]
    right.set(xlabel="max_staleness", ylabel="share of the tokens that train", ylim=(0, 1.28))
    right.set_yticks([0, 0.25, 0.5, 0.75, 1])
    right.legend(frameon=False, fontsize=8, ncols=3, loc="upper center")
    finish(figure, path)


def draw_waste(path: Path) -> None:
    """Where tokens go that do not train, for four ways of sending weights."""
    stale = replace(BASE, staleness=rc.Staleness(2))
    ways: dict[str, Report] = {
        "pause,\ndrop": simulate(replace(stale, sync="pause")),
        "pause,\nkeep partial": simulate(replace(stale, sync="pause", keep_partial=True)),
        "running": simulate(stale),
        "running,\nmore over-sampled": simulate(replace(stale, over_sample=1.0)),
    }
    figure, axes = plt.subplots(figsize=(7.2, 3.2), layout="constrained")
    bottom = [0.0] * len(ways)
    for reason, color in REASONS.items():
        shares = [report.waste.get(reason, 0) / report.generated for report in ways.values()]
        if any(shares):
            label = reason.replace("_", " ")
            axes.bar(list(ways), shares, bottom=bottom, color=color, label=label, width=0.6)
            bottom = [below + more for below, more in zip(bottom, shares, strict=True)]
    for place, report in enumerate(ways.values()):
        text = f"{report.step_seconds:.0f} s per step"
        axes.text(place, bottom[place] + 0.01, text, ha="center", fontsize=8, color=INK)
    axes.set(ylabel="share of generated tokens", ylim=(0, max(bottom) * 1.4))
    axes.legend(frameon=False, fontsize=8, ncols=5, loc="upper center")
    finish(figure, path)


def finish(figure: plt.Figure, path: Path) -> None:
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(colors=DIM)
    save(figure, path)
