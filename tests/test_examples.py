"""Runs the programs in examples/ as a user does, for a short time; agents must learn in it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.parametrize("seed", ["0", "1"])
def test_rollouts_are_trained_once_although_the_trainer_crashes(seed: str) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-W", "error", str(EXAMPLES / "rollouts.py")),
            *("--steps", "10", "--seed", seed),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "the trainer crashed and held 1 lease" in done.stdout
    steps = [line for line in done.stdout.splitlines() if line.startswith("step")]
    assert len(steps) == 10
    assert [line for line in steps if "0 groups redelivered" not in line] == [steps[4]]
    assert "8 groups redelivered" in steps[4]
    accounts = dict(re.findall(r"^(\w+): (.*)$", done.stdout, re.MULTILINE))
    for task, trained in (("math", 60), ("code", 20)):
        put, stored, left = map(int, re.findall(r"(\d+) (?:groups|stored|left)", accounts[task]))
        assert put == stored + left
        assert f"'trained': {trained}" in accounts[task]


@pytest.mark.parametrize(
    ("program", "start", "learned"),
    [
        ("dqn_cartpole", 60, 120),  # a random policy gets 22, and seeds 0 to 9 reach 203 or more
        ("recurrent_memory", 0.6, 0.9),  # without memory it is 0.5, and seeds 0 to 9 reach 1
    ],
)
def test_an_agent_learns_in_its_short_version(
    program: str, start: float, learned: float, tmp_path: Path
) -> None:
    plot, numbers = tmp_path / "curve.svg", tmp_path / "curve.json"
    done = subprocess.run(
        [
            *(sys.executable, "-W", "error", str(EXAMPLES / f"{program}.py"), "--short"),
            *("--seed", "1", "--plot", str(plot), "--numbers", str(numbers)),
        ],
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr
    scores = [score for _, score in json.loads(numbers.read_text("utf-8"))["points"]]
    assert scores[0] < start, "it was good before it learned anything"
    last = scores[-2:]
    assert sum(last) / len(last) > learned, scores
    assert "reached" in done.stdout
    assert "<svg" in plot.read_text("utf-8")


@pytest.mark.parametrize("program", ["dqn_cartpole", "recurrent_memory"])
def test_an_agent_fits_on_some_pages(program: str) -> None:
    lines = (EXAMPLES / f"{program}.py").read_text("utf-8").splitlines()
    assert len(lines) < 200
