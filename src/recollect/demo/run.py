"""The process that a person looks at: it starts the one that trains, kills it, and counts."""

from __future__ import annotations

import queue
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import ModuleType

from rich.console import Console

from recollect.demo.life import Kill, Life
from recollect.demo.page import write
from recollect.demo.terminal import View
from recollect.errors import RecollectError

LONGEST_START = 120.0  # seconds
GRACE = 20.0  # seconds in which the training process must have ended


class Child:
    """A training process, and the lines that it writes."""

    def __init__(self, kind: ModuleType, folder: Path, seed: int) -> None:
        self._folder = folder
        self._process = subprocess.Popen(
            [sys.executable, "-u", "-m", kind.__name__, str(folder), str(seed)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._complaints: list[str] = []
        self._readers = [
            threading.Thread(target=self._read, daemon=True),
            threading.Thread(target=self._complain, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        """Whatever happened, nobody trains on alone."""
        self._process.kill()
        for reader in self._readers:
            reader.join()
        with self._process:  # closes its pipes
            pass

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def _complain(self) -> None:
        assert self._process.stderr is not None
        self._complaints.extend(self._process.stderr)

    def hear(self, life: Life, until: float, view: View | None = None) -> bool:
        """Take in what it says until a time; whether it still runs."""
        while (left := until - time.monotonic()) > 0:
            try:
                line = self._lines.get(timeout=min(left, 0.1))
            except queue.Empty:
                line = ""
            if line is None:
                return False
            if line:
                life.hear(line)
            if view is not None:
                view.show(life)
        return True

    def train(self, life: Life, seconds: float, view: View) -> None:
        """Let it train for a while, from its first step on: until then kernels are loaded."""
        trained = life.trained
        end = time.monotonic() + LONGEST_START
        while life.trained == trained and time.monotonic() < end:
            if not self.hear(life, time.monotonic() + 0.1, view):
                self.fail()
        if not self.hear(life, time.monotonic() + seconds, view):
            self.fail()

    def kill(self, life: Life) -> None:
        """SIGKILL; what it had written to the pipe is still taken in."""
        self._process.kill()
        self._process.wait()
        self.hear(life, time.monotonic() + GRACE)

    def stop(self, life: Life) -> None:
        """Ask it to end, and wait for its last words."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        if self.hear(life, time.monotonic() + GRACE) or self._process.wait():
            self.fail()

    def fail(self) -> None:
        for reader in self._readers:
            reader.join(1.0)
        told = "".join(self._complaints).strip() or "it said nothing"
        whole = self._folder / "error.txt"
        whole.write_text(f"{told}\n", "utf-8")
        raise RecollectError(
            f"the training process of the demo ended by itself: {told.splitlines()[-1]}; all that "
            f"it said is in {whole}"
        )


def run(kind: ModuleType, folder: Path, *, seconds: float, console: Console, seed: int = 0) -> Life:
    """The whole demo; what is left of it is in the folder. `kind` is `rollouts` or `steps`."""
    _clear(folder)
    kind.warm()
    life = Life(time.time())
    with View(kind.TITLE, kind.NOUN, kind.HISTOGRAM, seconds, console) as view:
        view.say(f"journal, snapshots and report: {folder}")
        with Child(kind, folder, seed) as child:
            child.train(life, seconds / 2, view)
            child.kill(life)
        kill = Kill(time.time() - life.began, life.steps, life.puts)
        life.kills.append(kill)
        kill.found = kind.recovered(folder)
        view.say(told(kill, kind.NOUN))
        with Child(kind, folder, seed) as child:
            child.train(life, seconds / 2, view)
            child.stop(life)
        view.show(life)
    return life


def told(kill: Kill, noun: str) -> str:
    """What a kill cost, in a few sentences."""
    begun = f"{kill.at:.1f} s: kill -9 at step {kill.step}. {kill.acknowledged} {noun} had been "
    if kill.lost:
        return f"{begun}acknowledged, {kill.lost} ARE LOST."
    beyond = kill.put - kill.acknowledged
    also = f", and {beyond} more that were just being put" if beyond > 0 else ""
    left = ", ".join(f"{count} {reason}" for reason, count in kill.left.items())
    before = f", {left} before" if left else ""
    kept = f"{kill.kept} stored{before}. Lost: 0."
    return f"{begun}acknowledged; the journal has all of them{also}: {kept}"


def _clear(folder: Path) -> None:
    """Remove what an earlier demo left there, and nothing else."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("journal", "snapshots", "weights"):
        shutil.rmtree(folder / name, ignore_errors=True)
    (folder / "error.txt").unlink(missing_ok=True)


def summary(life: Life, noun: str) -> str:
    solved = ", ".join(f"{name} {share:.0%}" for name, share in life.ended["solved"].items())
    kill = life.kills[0]
    return (
        f"A policy of {life.size:,} numbers learned from {life.puts:,} {noun} in {life.steps:,} "
        f"train steps. Solved: {solved}. Its process was killed with SIGKILL after "
        f"{kill.at:.0f} s: {kill.acknowledged:,} {noun} had been acknowledged, "
        f"{kill.lost} were lost."
    )


ADVICE = [
    "recollect inspect FOLDER/snapshots: what the last checkpoint holds",
    "recollect demo, recollect demo --classic: rollouts of a language model, steps of environments",
    "docs/guides/getting-started.md: tables, replay buffers and rollout buffers in your own code",
    "examples/grpo_tiny.py and examples/dqn_cartpole.py: whole agents with torch",
]


def finish(kind: ModuleType, folder: Path, life: Life) -> tuple[str, list[str]]:
    """Write the report; returns the summary, and what to try next."""
    text = summary(life, kind.NOUN)
    advice = [line.replace("FOLDER", str(folder)) for line in ADVICE]
    write(folder / "report.html", kind.TITLE, kind.NOUN, kind.HISTOGRAM, life, text, advice)
    return text, advice
