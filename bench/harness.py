"""Runs the implementations of a workload side by side, in interleaved rounds.

Where their buffers fit into memory together, all workers stay alive and every operation is timed
on one after the other before the next operation, so that a slow moment of the machine hits all
alike. Where they do not fit, each round starts, fills and ends one worker after the other.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from bench.workloads.base import Operation, Workload

REPOSITORY = Path(__file__).resolve().parent.parent
OURS = "recollect"
FLOOR = "numpy_take"
START_LIMIT = 1800.0  # Reverb takes minutes to hold a million rows
ANSWER_LIMIT = 300.0
Say = Callable[[str], None]


@dataclass(frozen=True)
class Implementation:
    """Something to time: an adapter and the interpreter it runs in, or why it cannot."""

    name: str
    title: str
    python: Path | None
    error: str = ""
    kinds: tuple[str, ...] = ()


@dataclass
class Outcome:
    """All that one implementation showed under one workload."""

    rates: dict[str, list[float]] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    failure: str = ""
    unsupported: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    bytes_per_row: list[float] = field(default_factory=list)
    fill_seconds: list[float] = field(default_factory=list)
    note: str = ""


Outcomes = dict[str, Outcome]


class WorkerFailed(Exception):
    """The worker ended or answered with an error."""


class Worker:
    """A process that holds one filled buffer (`bench/worker.py`)."""

    def __init__(
        self, implementation: Implementation, workload: Workload, log: IO[str], scratch: str
    ) -> None:
        self._log = log
        environment = {
            **os.environ,
            "PYTHONPATH": str(REPOSITORY / "src") if implementation.name == OURS else "",
            "JAX_PLATFORMS": "cpu",
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "PYTHONWARNINGS": "ignore",
            "TMPDIR": scratch,
        }
        arguments = (implementation.name, workload.name, str(workload.rows))
        self._process = subprocess.Popen(
            [str(implementation.python), "-m", "bench.worker", *arguments],
            cwd=REPOSITORY,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    def ready(self) -> dict[str, Any]:
        """Wait until the buffer is full; what the worker says about itself."""
        return self._answer(START_LIMIT)

    def time(self, operation: Operation, seconds: float) -> dict[str, Any]:
        """One timing of an operation."""
        request = json.dumps({"operation": operation.name, "seconds": seconds})
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(request + "\n")
            self._process.stdin.flush()
        except OSError:
            raise WorkerFailed(self._last_line()) from None
        return self._answer(ANSWER_LIMIT)

    def stop(self) -> None:
        """Let it finish; end it where it does not."""
        try:
            self._process.communicate(timeout=20)
        except (subprocess.TimeoutExpired, OSError):
            self._process.kill()
            self._process.wait()

    def _answer(self, limit: float) -> dict[str, Any]:
        watchdog = threading.Timer(limit, self._process.kill)
        watchdog.start()
        try:
            assert self._process.stdout is not None
            line = self._process.stdout.readline()
        finally:
            watchdog.cancel()
        if not line:
            raise WorkerFailed(self._last_line())
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _last_line(self) -> str:
        code = self._process.wait()
        self._log.seek(0)
        lines = [line.strip() for line in self._log if line.strip()]
        return f"worker ended with status {code}: {(lines or ['no message'])[-1][:200]}"


@dataclass(frozen=True)
class Settings:
    """How often and how long."""

    rounds: int
    seconds: float


def run(
    workload: Workload, implementations: Sequence[Implementation], settings: Settings, say: Say
) -> Outcomes:
    """All rounds of one workload over all implementations."""
    chosen = [one for one in implementations if _takes_part(one, workload)]
    outcomes = {one.name: Outcome(failure=one.error) for one in chosen}
    chosen = [one for one in chosen if one.python is not None]
    if workload.together:
        _run_together(workload, chosen, settings, outcomes, say)
    else:
        _run_in_turn(workload, chosen, settings, outcomes, say)
    return outcomes


def _takes_part(implementation: Implementation, workload: Workload) -> bool:
    if implementation.name == FLOOR:
        return bool(workload.floors)
    if implementation.kinds and workload.kind not in implementation.kinds:
        return False
    return not workload.only or implementation.name in workload.only


def _operations(implementation: Implementation, workload: Workload) -> tuple[Operation, ...]:
    if implementation.name == FLOOR:
        return tuple(floor.operation for floor in workload.floors)
    name = implementation.name
    return tuple(one for one in workload.operations if not one.only or name in one.only)


def _run_together(
    workload: Workload,
    chosen: list[Implementation],
    settings: Settings,
    outcomes: Outcomes,
    say: Say,
) -> None:
    with _workers(workload, chosen) as workers:
        for one in chosen:
            _await(workers[one.name], one, workload, outcomes[one.name], say)
        for number in range(settings.rounds):
            say(f"{workload.name}: round {number + 1} of {settings.rounds}")
            order = chosen[number % len(chosen) :] + chosen[: number % len(chosen)]
            for operation in workload.operations:
                for one in order:
                    if operation not in _operations(one, workload):
                        continue
                    _time(workers[one.name], operation, settings, outcomes[one.name])


def _run_in_turn(
    workload: Workload,
    chosen: list[Implementation],
    settings: Settings,
    outcomes: Outcomes,
    say: Say,
) -> None:
    for number in range(settings.rounds):
        say(f"{workload.name}: round {number + 1} of {settings.rounds}")
        for one in chosen:
            outcome = outcomes[one.name]
            if outcome.failure or outcome.unsupported:
                continue
            with _workers(workload, [one]) as workers:
                _await(workers[one.name], one, workload, outcome, say)
                for operation in _operations(one, workload):
                    _time(workers[one.name], operation, settings, outcome)


@contextmanager
def _workers(workload: Workload, chosen: list[Implementation]) -> Iterator[dict[str, Worker]]:
    workers: dict[str, Worker] = {}
    with ExitStack() as stack:
        for one in chosen:
            scratch = stack.enter_context(tempfile.TemporaryDirectory())  # Reverb leaves folders
            log = stack.enter_context(tempfile.TemporaryFile("w+"))
            worker = workers[one.name] = Worker(one, workload, log, scratch)
            stack.callback(worker.stop)
        yield workers


def _await(
    worker: Worker, one: Implementation, workload: Workload, outcome: Outcome, say: Say
) -> None:
    try:
        answer = worker.ready()
    except WorkerFailed as failed:
        answer = {"error": str(failed)}
    outcome.failure = answer.get("error", "")
    outcome.unsupported = answer.get("unsupported", "")
    if not answer.get("ready"):
        say(f"{workload.name}: {one.title}: {outcome.failure or outcome.unsupported}")
        return
    outcome.versions = answer["versions"]
    outcome.note = answer["note"]
    outcome.bytes_per_row.append(answer["bytes_per_row"])
    outcome.fill_seconds.append(answer["fill_seconds"])
    say(f"{workload.name}: {one.title} filled in {answer['fill_seconds']:.1f} s")


def _time(worker: Worker, operation: Operation, settings: Settings, outcome: Outcome) -> None:
    if outcome.failure or outcome.unsupported or operation.name in outcome.problems:
        return
    try:
        answer = worker.time(operation, settings.seconds)
    except WorkerFailed as failed:
        outcome.failure = str(failed)
        return
    if "rate" in answer:
        outcome.rates.setdefault(operation.name, []).append(answer["rate"])
    else:
        outcome.problems[operation.name] = answer.get("error") or answer["unsupported"]
