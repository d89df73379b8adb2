"""Runs the programs in examples/ as a user does, for a short time; agents must learn in it."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import termios
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
DEMO = EXAMPLES / "demo.py"
SECTIONS = [
    "Throughput",
    "Priorities and",
    "A query",
    "A lease that is given back",
    "table.stats()",
    "What to try next",
]


def command(seconds: float) -> list[str]:
    return [sys.executable, "-W", "error", str(DEMO), "--seconds", str(seconds)]


def sections_of(output: str) -> list[str]:
    """The titles that were printed, in order."""
    lines = [line.replace("\x1b[1m", "") for line in output.splitlines()]
    return [title for line in lines for title in SECTIONS if line.startswith(title)]


def test_demo_prints_every_section_in_a_log() -> None:
    done = subprocess.run(command(0.5), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert sections_of(done.stdout) == SECTIONS
    assert "\x1b" not in done.stdout
    assert "\r" not in done.stdout
    assert "0 leased" in done.stdout


def test_demo_shows_a_live_line_on_a_terminal() -> None:
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    with subprocess.Popen(command(0.5), stdout=theirs, stderr=subprocess.PIPE, text=True) as demo:
        os.close(theirs)
        output = read_to_end(ours)
        assert demo.stderr is not None
        errors = demo.stderr.read()
    assert demo.returncode == 0, errors
    live = output.split("Throughput")[0].split("\r")
    assert any("items," in line and "error" in line for line in live)
    assert sections_of(output) == SECTIONS


def read_to_end(terminal: int) -> str:
    """All that is printed to a terminal; Linux says EIO when its other end is closed."""
    parts: list[bytes] = []
    while True:
        try:
            part = os.read(terminal, 1 << 16)
        except OSError:
            part = b""
        if not part:
            os.close(terminal)
            return b"".join(parts).decode()
        parts.append(part)


def test_demo_ends_with_its_summary_when_interrupted() -> None:
    with subprocess.Popen(
        command(60), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as demo:
        assert demo.stdout is not None
        assert demo.stderr is not None
        begun = demo.stdout.readline() + demo.stdout.readline()  # the second when threads work
        demo.send_signal(signal.SIGINT)
        output, errors = begun + demo.stdout.read(), demo.stderr.read()
    assert demo.returncode == 0, errors
    assert "Traceback" not in errors
    assert "stopped early" in output
    assert sections_of(output)[0] == "Throughput"
    assert sections_of(output)[-1] == "What to try next"


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
