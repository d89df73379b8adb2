"""The tiny transformer learns to add from rewards alone, in every mode; curves are what runs wrote.

Runs here take turns between generating and training, so that they are the same every time.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "grpo_tiny.py"
NUMBERS = "mode,seed,step,tokens,seconds,reward,right,lag,uses,replayed"

Points = list[dict[str, str]]


def run(out: Path, *options: str) -> str:
    command = [sys.executable, "-W", "error", str(EXAMPLE), "--short", "--out", str(out), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    return done.stdout


def points_of(out: Path) -> Points:
    head, *lines = (out / "points.csv").read_text("utf-8").splitlines()
    assert head == NUMBERS
    return [dict(zip(head.split(","), line.split(","), strict=True)) for line in lines]


@pytest.mark.parametrize(
    ("mode", "tokens"),
    [
        ("prioritized", 24_000),
        pytest.param("on-policy", 72_000, marks=pytest.mark.soak),
        pytest.param("queue", 72_000, marks=pytest.mark.soak),
        pytest.param("uniform", 36_000, marks=pytest.mark.soak),
    ],
)
def test_a_tiny_transformer_learns_to_add(mode: str, tokens: int, tmp_path: Path) -> None:
    options = ("--in-turn", "--seed", "1", "--mode", mode, "--tokens", str(tokens))
    printed = run(tmp_path, *options)
    points = points_of(tmp_path)
    right = [float(point["right"]) for point in points]
    rewards = [float(point["reward"]) for point in points]
    assert right[0] < 0.3, "it could add before it learned anything"
    assert np.mean(right[-5:]) > 0.7, right  # who never carries solves 10 of the 16 sums
    assert np.mean(rewards[-5:]) > rewards[0] + 0.2, rewards
    replayed = {float(point["replayed"]) for point in points[1:]}
    assert replayed == ({0.5} if mode in ("uniform", "prioritized") else {0.0})
    lags = [float(point["lag"]) for point in points]
    assert (max(lags) == 0) if mode == "on-policy" else (max(lags) >= 1), lags
    assert int(points[-1]["tokens"]) >= tokens > int(points[-2]["tokens"])
    assert f"| {mode} |" in printed
    assert json.loads((tmp_path / "settings.json").read_text())["settings"]["mode"] == mode
    assert "<svg" in (tmp_path / "curves.svg").read_text("utf-8")


def test_modes_are_compared_at_equal_tokens_and_repeat(tmp_path: Path) -> None:
    options = ("--compare", "--tokens", "2000", "--in-turn")
    printed = run(tmp_path / "one", *options, "--seeds", "2")
    points = points_of(tmp_path / "one")
    runs: dict[tuple[str, str], Points] = {}
    for point in points:
        runs.setdefault((point["mode"], point["seed"]), []).append(point)
    modes = ("on-policy", "uniform", "prioritized")
    assert set(runs) == {(mode, seed) for mode in modes for seed in "01"}
    ends = {name: int(some[-1]["tokens"]) for name, some in runs.items()}
    assert min(ends.values()) >= 2000
    assert max(ends.values()) < 2000 + 16 * 8 * 2, "more than a step beyond the others"
    for (mode, _), some in runs.items():
        assert (float(some[-1]["lag"]) == 0) == (mode == "on-policy")
    steps = {mode: int(runs[mode, "0"][-1]["step"]) for mode in modes}
    assert steps["uniform"] > 1.7 * steps["on-policy"], "half of what it trains was generated"
    first = [runs[mode, "0"][0]["reward"] for mode in ("uniform", "prioritized")]
    assert first[0] == first[1], "both begin with the same weights and problems"
    for mode in modes:
        assert f"| {mode} |" in printed
    run(tmp_path / "two", *options)
    again = points_of(tmp_path / "two")
    before = [p for p in points if p["seed"] == "0"]
    for point in (*again, *before):
        del point["seconds"]
    assert again == before


def test_runs_side_by_side_write_one_file(tmp_path: Path) -> None:
    """With threads that generate while the trainer trains, as a user runs it."""
    run(tmp_path, "--compare", "--tokens", "1500", "--parallel", "2")
    ends: dict[str, int] = {}
    for point in points_of(tmp_path):
        ends[point["mode"]] = int(point["tokens"])
    assert sorted(ends) == ["on-policy", "prioritized", "uniform"]
    assert min(ends.values()) >= 1500


def test_the_page_on_replay_shows_what_the_runs_wrote(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "examples")
    monkeypatch.syspath_prepend(ROOT / "docs")
    import reward_curves
    from pictures.replay_curves import RATES, compared

    page = (ROOT / "docs" / "guides" / "replay-for-llms.md").read_text("utf-8")
    folder = ROOT / "docs" / "curves" / "grpo"
    for rate in RATES:
        runs = compared(folder, rate)
        assert {run.seed for run in runs} == {0, 1, 2}
        assert reward_curves.table(runs, also=()) in page
        spent = [run.last for run in runs]
        assert max(spent) / min(spent) < 1.01, "not the same number of generated tokens"
    assert reward_curves.table(reward_curves.read(folder / "alone.csv")) in page
