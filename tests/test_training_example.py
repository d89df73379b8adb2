"""The tiny transformer learns to add, in every mode that its configuration can name."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[1] / "examples" / "grpo_tiny.py"


@pytest.mark.parametrize(
    "mode",
    [
        "half-life",
        pytest.param("queue", marks=pytest.mark.soak),
        pytest.param("uniform", marks=pytest.mark.soak),
    ],
)
def test_a_tiny_transformer_learns_to_add(mode: str, tmp_path: Path) -> None:
    plot, numbers = tmp_path / "curve.svg", tmp_path / "curve.json"
    done = subprocess.run(
        [
            *(sys.executable, "-W", "error", str(EXAMPLE), "--short", "--seed", "1"),
            *("--mode", mode, "--plot", str(plot), "--numbers", str(numbers)),
        ],
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr
    points = json.loads(numbers.read_text("utf-8"))
    assert points[0]["right"] < 0.3, "it could add before it learned anything"
    last = [point["right"] for point in points[-2:]]
    assert sum(last) / len(last) > 0.6, [point["right"] for point in points]
    replayed = {point["replayed_share"] for point in points[1:]}
    assert replayed == ({0.0} if mode == "queue" else {0.5})
    assert max(point["lag_mean"] for point in points) >= 1, "the generator was never behind"
    assert "solves" in done.stdout
    assert "<svg" in plot.read_text("utf-8")
