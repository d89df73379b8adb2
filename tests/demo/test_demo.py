"""`recollect demo`: a real process learns, is killed, and another goes on with all it had."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser
from rich.console import Console

from recollect.demo import language_model as rollouts
from recollect.demo.life import Kill, Life
from recollect.demo.page import write
from recollect.demo.policy import (
    DIGITS,
    END,
    LONGEST,
    TASKS,
    Policy,
    answer_of,
    log_softmax,
    prompt,
    reward_of,
)
from recollect.demo.run import Child, told
from recollect.demo.terminal import View, curve_of
from recollect.errors import RecollectError


def command(out: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "recollect", "demo", "--out", str(out), *more]


@pytest.mark.parametrize("classic", [False, True], ids=["rollouts", "steps"])
def test_a_run_is_killed_and_nothing_is_lost(tmp_path: Path, classic: bool) -> None:
    more = ["--classic", "--json"] if classic else []
    done = subprocess.run(
        command(tmp_path / "demo", "--seconds", "5", *more),
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    text = " ".join((done.stderr if classic else done.stdout).split())
    found = re.search(r"kill -9 at step \d+\. (\d+) (groups|steps) had been acknowledged", text)
    assert found is not None, text
    assert int(found[1]) > 0
    assert "Lost: 0." in text
    if classic:
        counted = json.loads(done.stdout)
        assert (counted["acknowledged"], counted["lost"]) == (int(found[1]), 0)
    else:
        assert f"what to try next: recollect inspect {tmp_path / 'demo/snapshots'}: " in text
    assert "\x1b" not in done.stdout + done.stderr  # no terminal, no control characters
    report = (tmp_path / "demo/report.html").read_text("utf-8")
    assert report.count("<svg") == report.count("</svg>") == 4
    assert "kill -9" in report
    assert "http" not in report  # it needs nothing from anywhere
    inspected = subprocess.run(
        [sys.executable, "-m", "recollect", "inspect", str(tmp_path / "demo/snapshots"), "--json"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(inspected.stdout)["step"] > 0


def test_a_terminal_shows_it_live_and_ctrl_c_ends_both_processes(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (40, 120))
    with subprocess.Popen(
        command(tmp_path, "--seconds", "60"), stdout=theirs, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "TERM": "xterm-256color"},
    ) as demo:  # fmt: skip
        os.close(theirs)
        seen = ""
        end = time.monotonic() + 120
        while not re.search(r"[1-9]\d* groups, \d+/s", seen) and time.monotonic() < end:
            seen += os.read(ours, 1 << 16).decode(errors="replace")  # a letter may be cut in two
        assert "lag of what is stored" in seen
        children = subprocess.run(
            ["ps", "--ppid", str(demo.pid), "-o", "pid="], capture_output=True, text=True
        ).stdout.split()
        demo.send_signal(signal.SIGINT)
        read_to_end(ours)
        assert demo.stderr is not None
        assert "Traceback" not in demo.stderr.read()
    assert demo.returncode == 130
    assert children
    assert not any(Path(f"/proc/{child}").exists() for child in children)


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
            return b"".join(parts).decode(errors="replace")
        parts.append(part)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("--seconds", seconds) for seconds in ("-1", "0", "1.9", "nan", "inf")),
        ("--seed", "-1"),
        ("--out", __file__),
    ],
)
def test_wrong_use_is_one_sentence(tmp_path: Path, option: str, value: str) -> None:
    done = subprocess.run(command(tmp_path, option, value), capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith(f"recollect: {option}: ")


def test_a_training_process_that_fails_is_told_in_one_sentence(tmp_path: Path) -> None:
    said = r"ended by itself: ValueError: .*/error\.txt$"
    with (
        Child(rollouts, tmp_path, -1) as child,  # a seed that the command refuses
        pytest.raises(RecollectError, match=said),
    ):
        child.train(Life(0.0), 60.0, View("", "", "", 1.0, Console()))
    assert "Traceback" in (tmp_path / "error.txt").read_text("utf-8")


# -- what is counted ------------------------------------------------------------------------------
def killed(acknowledged: int, **account: Any) -> Kill:
    found = {"math": {"put": 0, "stored": 0, "leased": 0, "left": {}, **account}}
    return Kill(at=1.0, step=3, acknowledged=acknowledged, found=found)


def test_a_loss_would_be_seen() -> None:
    assert killed(10, put=10, stored=4, leased=1, left={"trained": 5}).lost == 0
    assert killed(10, put=12, stored=7, left={"trained": 5}).lost == 0
    assert killed(10, put=8, stored=3, left={"trained": 5}).lost == 2
    assert killed(10, put=10, stored=3, left={"trained": 5}).lost == 2
    assert "2 ARE LOST" in told(killed(10, put=8, stored=8), "groups")
    assert "2 more" in told(killed(10, put=12, stored=12), "groups")


def test_half_a_line_of_a_killed_process_is_passed_over() -> None:
    life = Life(began=0.0)
    line = json.dumps(
        {"kind": "put", "at": 1.0, "task": "math", "reward": 1.0, "tokens": 3, "count": 1}
    )
    life.hear(line)
    life.hear(line[:20])
    assert life.puts == 1


def test_a_curve_in_text_ends_with_the_last_value() -> None:
    assert curve_of([0.0] * 500 + [1.0], width=10)[-1] == "█"
    assert len(curve_of(np.linspace(0, 1, 777).tolist(), width=10)) == 10


# -- the policy -----------------------------------------------------------------------------------
def test_the_policy_learns_both_tasks_from_rewards() -> None:
    rng, policy = np.random.default_rng(0), Policy()
    assert policy.size < 5000
    for _ in range(300):
        rows, masks, olds, worths = [], [], [], []
        for _ in range(24):
            task, a, b = int(rng.integers(2)), *map(int, rng.integers(0, DIGITS, 2))
            answers = policy.answer(task, a, b, 8, rng)
            rewards = np.array([reward_of(task, a, b, tokens) for tokens, _ in answers])
            advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
            for (tokens, logs), worth in zip(answers, advantages, strict=True):
                pad = LONGEST - len(tokens)
                rows.append(prompt(task, a, b) + tokens + [0] * pad)
                masks.append([0] * 3 + [1] * len(tokens) + [0] * pad)
                olds.append([0.0] * 3 + logs + [0.0] * pad)
                worths.append([worth] * (3 + LONGEST))
        policy.learn(*map(np.array, (rows, masks, olds, worths)), 8.0, 0.01)
    solved = policy.solved()
    assert min(solved.values()) > 0.8, solved


def test_its_gradient_is_that_of_the_objective() -> None:
    """One token, compared with differences of the log-probability."""
    policy = Policy()
    ids = np.array([[*prompt(1, 2, 3), 4]])
    mask, old = np.array([[0, 0, 0, 1]]), np.array([[0, 0, 0, -np.log(11.0)]])
    policy.learn(ids, mask, old, np.array([[0, 0, 0, 1.0]]), 1.0, 0.0)
    moved = policy.tables["by_both"][1, 0, 2, 3]
    for word in range(11):
        nudged = np.zeros(11)
        nudged[word] = 1e-6
        slope = (log_softmax(nudged)[4] - log_softmax(np.zeros(11))[4]) / 1e-6
        assert moved[word] == pytest.approx(slope, abs=1e-5)


def test_answers_are_drawn_with_their_own_chances() -> None:
    policy, rng = Policy(), np.random.default_rng(1)
    policy.tables["by_a"][0, 0, 1] = np.log([0.5] + [0.05] * 10)
    answers = policy.answer(0, 1, 1, 20_000, rng)
    first = np.array([tokens[0] for tokens, _ in answers])
    assert abs((first == 0).mean() - 0.5) < 0.02
    assert answers[0][1][0] == pytest.approx(np.log(0.5 if first[0] == 0 else 0.05))
    assert all(len(tokens) == LONGEST or tokens[-1] == END for tokens, _ in answers)


@pytest.mark.parametrize("task", range(len(TASKS)))
def test_rewards(task: int) -> None:
    for a in range(DIGITS):
        for b in range(DIGITS):
            right = answer_of(task, a, b)
            assert len(right) <= LONGEST
            assert reward_of(task, a, b, right) == 1.0
            assert reward_of(task, a, b, [right[0]] * 3) == 0.5
            assert reward_of(task, a, b, [END]) == 0.0


# -- the report in a browser ----------------------------------------------------------------------
def test_the_report_opens_in_a_browser_with_its_plots(tmp_path: Path, browser: Browser) -> None:
    page, said = browser.new_page(viewport={"width": 1280, "height": 900}), []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("requestfailed", lambda request: said.append(request.url))
    path = tmp_path / "report.html"
    kind = rollouts
    write(path, kind.TITLE, kind.NOUN, kind.HISTOGRAM, lived(), "What <happened>.", ["Try it."])
    page.goto(path.as_uri())
    assert page.locator("figure svg").count() == 4
    for plot in page.locator("figure svg").all():
        box = plot.bounding_box()
        assert box is not None
        assert box["width"] > 200
        assert box["height"] > 80
        shot = np.asarray(Image.open(io.BytesIO(plot.screenshot())).convert("RGB"))
        blue = (np.abs(shot.astype(int) - [0x1F, 0x6F, 0xEB]).sum(axis=2) < 30).mean()
        assert blue > 0.001, "the first curve, or the bars, are blue"
    assert page.get_by_text("What <happened>.").is_visible()
    assert page.locator("tr").count() == 3  # a head and two tasks
    assert said == []


def lived() -> Life:
    """A run of which everything is known."""
    life = Life(began=0.0)
    for at in range(20):
        look = {
            "stored": 10 * at, "capacity": 256, "nbytes": 1, "counts": [],
            "histogram": {"0": 3, "2": at}, "solved": {"sum": at / 20, "larger": at / 40},
        }  # fmt: skip
        life.hear(json.dumps({"kind": "look", "at": at, **look}))
        for task, reward in (("sum", at / 20), ("larger", 0.2)):
            put = {"task": task, "reward": reward, "tokens": 3, "count": 1}
            life.hear(json.dumps({"kind": "put", "at": at, **put}))
    accounts = {
        task: {"put": 20, "stored": 5, "leased": 0, "left": {"trained": 15}}
        for task in ("sum", "larger")
    }
    life.hear(json.dumps({"kind": "ended", "at": 20, "solved": {}, "accounts": accounts}))
    life.kills.append(killed(10, put=10, stored=10))
    return life


def test_without_a_terminal_a_look_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing new comes while a process starts: then nothing is printed either."""
    life = lived()
    view = View(rollouts.TITLE, rollouts.NOUN, rollouts.HISTOGRAM, 10.0, Console())
    for _ in range(50):
        view.show(life)
    assert capsys.readouterr().out.count("solved") == 1
