"""Processes that put and take on one table, for tests that kill them.

Run as a program it reads lines `kind number` and forks a worker for each, whose process id it
prints: so a new worker is there at once, and shares nothing with the others but the database.
A worker writes down what it did in a file of its own, a line at a time.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

import recollect as rc

PUT, TAKEN = 4, 3  # items in one call
LEASE = 0.4


def table(url: str, name: str = "jobs", clock: Any = None) -> rc.Table:
    storage = rc.SqlStorage(url)
    return rc.Table(name, capacity=100_000, sampler=rc.Fifo(), storage=storage, clock=clock)


class Log:
    """What a worker did. One that was killed in the middle of a line never said it."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)
        self._file.truncate(path.read_bytes().rfind(b"\n") + 1)

    def say(self, *words: Any) -> None:
        self._file.write((" ".join(map(str, words)) + "\n").encode())


def read_log(path: Path) -> list[list[str]]:
    whole = path.read_bytes().rpartition(b"\n")[0] if path.exists() else b""
    return [line.split() for line in whole.decode().splitlines()]


def work(url: str, folder: Path, number: int) -> None:
    """Put numbered items, and take, confirm or give back whatever comes, until the test ends."""
    path = folder / f"worker-{number}.log"
    put = [int(line[1]) for line in read_log(path) if line[0] == "put"]
    serial = max(put, default=-1) + 1
    log, jobs = Log(path), table(url)
    random = np.random.default_rng(os.getpid())
    nurse = os.getppid()
    while os.getppid() == nurse:
        x = np.arange(PUT) + 1_000_000 * number + PUT * serial
        log.say("trying", serial)
        jobs.insert({"x": x}, request=(f"worker {number}", serial))
        log.say("put", serial)
        serial += 1
        try:
            batch = jobs.take(TAKEN, lease=LEASE, partial=True, timeout=0.5)
        except rc.WaitTimeout:
            continue
        lease = batch.info.lease
        pairs = zip(batch["x"].tolist(), batch.info.deliveries.tolist(), strict=True)
        log.say("got", lease.id, *(f"{x}:{often}" for x, often in pairs))
        try:
            if random.random() < 0.2:
                jobs.give_back(lease)
            else:
                log.say("confirming", lease.id)
                jobs.confirm(lease)
                log.say("confirmed", lease.id)
        except rc.LeaseExpired:
            log.say("late", lease.id)


class Crew:
    """Workers, as a test has them."""

    def __init__(self, url: str, folder: Path) -> None:
        self.folder = folder
        self._nursery = subprocess.Popen(
            [sys.executable, __file__, url, str(folder)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.workers: dict[int, int] = {}

    def start(self, number: int) -> None:
        assert self._nursery.stdin is not None
        assert self._nursery.stdout is not None
        print(number, file=self._nursery.stdin, flush=True)
        self.workers[number] = int(self._nursery.stdout.readline())

    def kill(self, number: int) -> None:
        """Kill a worker, and return when it has gone: its successor writes the same log."""
        process = self.workers.pop(number)
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            log = read_log(self.folder / f"worker-{number}.log")
            raise AssertionError(f"worker {number} ended by itself: {' '.join(log[-1])}") from None
        with suppress(ProcessLookupError):
            while True:
                os.kill(process, 0)
                time.sleep(0.001)

    def close(self) -> None:
        for number in list(self.workers):
            self.kill(number)
        assert self._nursery.stdin is not None
        assert self._nursery.stdout is not None
        self._nursery.stdin.close()
        self._nursery.stdout.close()
        self._nursery.wait(30)

    def written(self) -> int:
        """How much they have done so far, in bytes of their logs."""
        return sum(path.stat().st_size for path in self.folder.glob("worker-*.log"))

    def logs(self) -> list[list[list[str]]]:
        return [read_log(path) for path in sorted(self.folder.glob("worker-*.log"))]

    def story(self, x: int) -> str:
        """All that was written down about an item, for the message of a test that failed."""
        worker, place = divmod(x, 1_000_000)
        told = [f"worker {worker} put {x} as its {place // PUT}"]
        for number, log in enumerate(self.logs()):
            mentioned = {line[1] for line in log if any(w.startswith(f"{x}:") for w in line)}
            told += [f"worker {number}: {' '.join(line)}" for line in log if line[1] in mentioned]
        return "\n".join(told)


def nurse(url: str, folder: Path, run: Callable[[str, Path, int], None]) -> None:
    with table(url, "before") as before:  # so that what a worker needs is loaded
        before.insert({"x": np.arange(2)}, request=("nurse", 0))
        before.confirm(before.take(1, lease=1).info.lease)
        before.give_back(before.take(1, lease=1).info.lease)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        process = os.fork()
        if process == 0:
            try:
                run(url, folder, int(line))
            except BaseException as error:
                Log(folder / f"worker-{int(line)}.log").say("failed", type(error), error)
            finally:
                os._exit(1)
        print(process, flush=True)


if __name__ == "__main__":
    nurse(sys.argv[1], Path(sys.argv[2]), work)
