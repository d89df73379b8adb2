"""What replay gained: rewards of runs on one GPU, as `bench/replay_curves.sh` wrote them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import reward_curves  # of examples/, which conf.py puts on the path

RATES = ("1e-4", "3e-4")


def compared(folder: Path, rate: str) -> list[reward_curves.Run]:
    """The runs of a learning rate: three modes, and the first of them with steps half as large."""
    small = reward_curves.read(folder / f"small-{rate}.csv")
    named = [replace(run, mode="on-policy, small steps") for run in small]
    return [*reward_curves.read(folder / f"rate-{rate}.csv"), *named]


def draw_replay_curves(curves: Path, by_tokens: Path, by_time: Path) -> None:
    """Against generated tokens for two learning rates; and against time, each run by itself."""
    panels = [(compared(curves, rate), "tokens", f"learning rate {rate}") for rate in RATES]
    reward_curves.draw_panels(panels, by_tokens, "")
    reward_curves.draw(reward_curves.read(curves / "alone.csv"), by_time, "")
