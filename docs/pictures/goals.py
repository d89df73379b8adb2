"""Which goals hindsight may give to a step, by strategy: what an actual view draws."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib import pyplot as plt

import recollect as rc
from pictures.rings import DIM, INK, save

STRATEGIES = ("future", "final", "episode", "random")
STEP = 3  # whose goals are shown
GOAL = np.float32([6.0, 5.0])


def walk(seed: int, begin: tuple[float, float]) -> np.ndarray:
    """Where an agent was: eight steps, so nine places."""
    rng = np.random.default_rng(seed)
    moves = rng.normal((0.55, 0.1), (0.15, 0.35), (8, 2))
    return np.float32(np.concatenate([[begin], begin + np.cumsum(moves, 0)]))


def fill(paths: list[np.ndarray]) -> rc.ReplayBuffer:
    buffer = rc.ReplayBuffer(100, seed=0)
    for path in paths:
        for t, place in enumerate(path[:-1]):
            end = {"truncated": True, "final_obs": seen(path[-1])} if t == len(path) - 2 else {}
            buffer.add(obs=seen(place), reward=np.float32(-1), **end)
    return buffer


def seen(place: np.ndarray) -> dict[str, np.ndarray]:
    return {"achieved_goal": place, "desired_goal": GOAL}


def draw_goals(path: Path) -> None:
    paths = [walk(3, (0.0, 0.0)), walk(5, (0.0, 3.0))]
    buffer = fill(paths)
    figure, panels = plt.subplots(1, 4, figsize=(8.4, 2.9), layout="constrained", sharey=True)
    for axes, strategy in zip(panels, STRATEGIES, strict=True):
        rule = rc.Hindsight(
            strategy=strategy, share=1.0, reward=lambda achieved, goal: np.zeros(len(goal))
        )
        batch = buffer.relabel(hindsight=rule).sample(1000, where={"step": STEP})
        goals = np.unique(batch["obs.desired_goal"], axis=0)
        for walked in paths:
            axes.plot(*walked.T, color=DIM, lw=1, marker="o", ms=2.5)
        axes.scatter(*paths[0][STEP], s=50, color="#1f6feb", zorder=3)
        axes.scatter(*goals.T, s=55, facecolors="none", edgecolors="#cf222e", lw=1.5, zorder=4)
        axes.scatter(*GOAL, s=90, marker="*", color="#bf8700")
        axes.set_title(f"“{strategy}”", fontsize=9, color=INK)
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_color("#d0d7de")
    figure.supxlabel(
        "blue: a step · red rings: goals that it may be given · star: the goal that was pursued",
        fontsize=8, color=INK,
    )  # fmt: skip
    save(figure, path)
