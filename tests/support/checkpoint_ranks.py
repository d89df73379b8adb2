"""Ranks as processes, for tests of checkpoints: they train a little, and do what they are told.

    python tests/checkpoint_ranks.py FOLDER RANKS OPTIONS

A process loads everything once and forks a rank each. A rank reads commands from FOLDER/do-RANK and
writes what happens to FOLDER/rank-RANK.jsonl; `Ranks` is the side of the test.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import recollect as rc


class Ranks:
    """A group of ranks that a test has started."""

    def __init__(self, folder: Path, count: int, program: str = __file__, **options: Any) -> None:
        self.folder, self.count = folder, count
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, program, str(folder), str(count), json.dumps(options)]
        with open(folder / "stderr", "wb") as errors:
            self.process = subprocess.Popen(command, stderr=errors)
        self.wait_for(lambda: all(self.told(rank, "pid") for rank in range(count)), 60)

    def wait_for(self, condition: Any, seconds: float = 30) -> Any:
        """What a condition gives as soon as it is true."""
        deadline = time.monotonic() + seconds
        while not (found := condition()):
            if time.monotonic() > deadline:
                raise AssertionError("it did not happen:\n" + self.everything())
            time.sleep(0.02)
        return found

    def everything(self) -> str:
        files = [*sorted(self.folder.glob("*.jsonl")), self.folder / "stderr"]
        return "\n".join(f"{file.name}:\n{file.read_text()[-3000:]}" for file in files)

    def lines(self, rank: int) -> list[dict[str, Any]]:
        try:
            text = (self.folder / f"rank-{rank}.jsonl").read_text()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in text.splitlines() if line.endswith("}")]

    def told(self, rank: int, what: str) -> list[Any]:
        """What a rank has written under a name so far."""
        return [line[what] for line in self.lines(rank) if what in line]

    def tell(self, rank: int, **command: Any) -> None:
        target = self.folder / f"do-{rank}"
        temporary = self.folder / f".do-{rank}"
        temporary.write_text(json.dumps(command))
        temporary.rename(target)

    def signal(self, rank: int, number: int) -> None:
        os.kill(self.told(rank, "pid")[0], number)

    def stop(self, rank: int) -> None:
        """Send SIGSTOP, and return when each of its threads has stopped: that takes a moment."""
        self.signal(rank, signal.SIGSTOP)
        tasks = Path(f"/proc/{self.told(rank, 'pid')[0]}/task")
        self.wait_for(lambda: all(state == "T" for state in map(_state, tasks.iterdir())))

    def step(self, rank: int) -> int:
        return max(self.told(rank, "step"), default=0)

    def ended(self, rank: int) -> bool:
        return (self.folder / f"ended-{rank}").exists()

    def status(self, rank: int) -> int:
        """How a rank ended: an exit code, or minus a signal."""
        return int(self.wait_for(lambda: self._ended_text(rank)))

    def _ended_text(self, rank: int) -> str:
        file = self.folder / f"ended-{rank}"
        return file.read_text() if file.exists() else ""

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *error: object) -> None:
        for rank in range(self.count):
            for pid in self.told(rank, "pid"):
                if not self.ended(rank):
                    try:
                        os.kill(pid, signal.SIGKILL)
                    except ProcessLookupError:
                        continue
        self.process.wait(30)


def _state(task: Path) -> str:
    """What a thread does: R, S, T; one that has ended since counts as stopped."""
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "T"


# What a rank does


class Rank:
    """One rank: it inserts an item per step, and looks for commands."""

    def __init__(self, folder: Path, rank: int, count: int, options: dict[str, Any]) -> None:
        self.folder, self.rank, self.count = folder, rank, count
        self._file = open(folder / f"rank-{rank}.jsonl", "a", buffering=1)  # noqa: SIM115
        self.table = rc.Table("t", capacity=100_000, sampler=rc.Fifo())
        self.lead = options.pop("lead", 0)  # how far ahead of the others a rank begins
        self.pace = options.pop("pace", 0.003)
        self.exchange = options.pop("exchange", None)
        self.options = options
        logging.basicConfig(level=logging.INFO)

    def say(self, **what: Any) -> None:
        self._file.write(json.dumps(what) + "\n")

    def run(self) -> None:
        self.say(pid=os.getpid())
        if self.exchange == "torch":
            import torch.distributed as dist

            dist.init_process_group(
                "gloo",
                init_method=f"file://{self.folder}/rendezvous",
                rank=self.rank,
                world_size=self.count,
            )
        options = {"timeout": 5.0, **self.options}
        self.checkpoints = rc.Checkpoints(
            self.folder / "saved", self.table, self.rank, self.count, **options
        )
        self.say(address=self.checkpoints.address, kind=type(self.checkpoints._agreement).__name__)
        step = self.lead * self.rank
        while True:
            step += 1
            self.table.insert({"x": [step], "rank": [self.rank]})
            time.sleep(self.pace)
            self.obey(step)
            path = self.checkpoints.maybe_save(step)
            if path is not None:
                self.say(saved=step, path=path.name)
            if step % 10 == 0:
                self.say(step=step)

    def obey(self, step: int) -> None:
        command = self.folder / f"do-{self.rank}"
        if not command.exists():
            return
        what = json.loads(command.read_text())
        command.unlink()
        if what["do"] == "request":
            future = self.checkpoints.request()
            future.add_done_callback(
                lambda f: self.say(answer=str(f.exception() or f.result().name))
            )
        elif what["do"] == "raise":
            raise ValueError(f"told to fail at step {step}")
        elif what["do"] == "hang":
            self.say(hangs=step)
            hang()
        elif what["do"] == "fork":
            self.fork_and_terminate()
        elif what["do"] == "stop":
            self.checkpoints.close()
            self.say(closed=step)
            sys.exit(0)

    def fork_and_terminate(self) -> None:
        """As a data loader does with its workers: the child ends, and nobody else is concerned."""
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(writing, b"ready")
            while True:
                time.sleep(1)
        os.read(reading, 5)
        os.kill(child, signal.SIGTERM)
        self.say(child=os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def hang() -> None:
    """Wait in C for what never comes, as in a collective: no signal wakes it."""
    mutex = ctypes.create_string_buffer(64)
    library = ctypes.CDLL(None)
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_lock(mutex)


def main() -> None:
    folder, count, options = Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
    warm = rc.Table("warm", capacity=2)  # kernels are loaded once, before the forks
    warm.insert({"x": np.arange(2)})
    if options.get("exchange") == "torch":
        import torch.distributed  # noqa: F401
    ranks = {}
    for rank in range(count):
        pid = os.fork()
        if pid == 0:
            try:
                Rank(folder, rank, count, options).run()
            except SystemExit:
                os._exit(0)
            except BaseException:
                sys.excepthook(*sys.exc_info())  # as the interpreter does at the top
                os._exit(1)
        ranks[pid] = rank
    while ranks:
        pid, status = os.wait()
        done = folder / f"ended-{ranks.pop(pid)}"
        done.write_text(str(os.waitstatus_to_exitcode(status)))


if __name__ == "__main__":
    main()
