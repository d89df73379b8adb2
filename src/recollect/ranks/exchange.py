"""How ranks agree on a step: an all-gather of one integer, through files or through a collective.

`Agreement` is what a checkpoint's thread asks: what is new, which step it shall be, and how to
tell the others that this rank crashed or is done. Through files nothing happens until a rank
wants something; through a collective (`torch.distributed`, or a function of the user's) the
threads of all ranks gather one integer a few times a second, in step with each other.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from recollect.base.arguments import many
from recollect.errors import InvalidValue, RecollectError, WaitTimeout
from recollect.ranks.shard_sets import make_folders

Gather = Callable[[int], Sequence[int]]

FOLDER = ".exchange"
LOOK = 0.05  # seconds between two looks at the files of others
PULSE = 0.2  # seconds between two collectives
PROCESSES = 1.0  # seconds between two looks whether processes are still there
REMEMBERED = 8  # rounds whose values stay readable for those that are slow

GIVEN_UP = -1  # the value of a round that came to nothing
RUNNING, WANTS, LEFT, CRASHED = 0, 1, 2, 3  # what a rank says of itself


class RanksGone(RecollectError):
    """Ranks have crashed or ended, so that no step can be agreed on."""


@dataclass
class News:
    """What a look found: whether a step must be agreed on now, and who is no longer there."""

    begun: bool = False
    crashed: list[int] = field(default_factory=list)
    left: list[int] = field(default_factory=list)


class Agreement(Protocol):
    """What ranks have in common. One thread calls it; any thread may call `tell_crash`."""

    pause: float  # seconds between two looks

    @property
    def run(self) -> str | None:
        """What all ranks of this run call it, None until they know each other."""
        ...

    def look(self, wants: bool) -> News:
        """See what is new; `wants`: this rank wishes to begin."""
        ...

    def agree(self, value: int) -> int:
        """The highest value that any rank gives; every rank must come here. -1 gives none."""
        ...

    def tell_crash(self) -> None:
        """Let the others know that this rank crashed."""
        ...

    def close(self) -> None:
        """Let the others know that this rank is done."""
        ...


class Alone:
    """A single rank agrees with itself."""

    pause = 3600.0

    def __init__(self) -> None:
        self.run: str | None = secrets.token_hex(4)

    def look(self, wants: bool) -> News:
        return News(begun=wants)

    def agree(self, value: int) -> int:
        return value

    def tell_crash(self) -> None:
        pass

    def close(self) -> None:
        pass


class ThroughFiles:
    """Each rank has one small file, which it alone writes and all others read.

    A file of an earlier run may still be there. So each process has an id, and a file says which
    ids its writer has seen: a file that has not seen this process is not of this run.
    """

    pause = LOOK

    def __init__(self, path: Path, rank: int, world_size: int, timeout: float) -> None:
        self._folder = path / FOLDER
        self._rank, self._size = rank, world_size
        self._timeout = timeout
        self._id = secrets.token_hex(8)
        self._sees: dict[int, str] = {}
        self._round = 0
        self._values: dict[int, int] = {}
        self._state = RUNNING
        self._peers: dict[int, dict[str, Any]] = {}
        self._changed: dict[int, tuple[int, int]] = {}
        self._host = socket.gethostname()
        self._looked_at_processes = 0.0
        self._gone: set[int] = set()
        self._lock = threading.Lock()  # `tell_crash` writes too
        self.run: str | None = None
        make_folders(self._folder)
        self._write()

    def _file(self, rank: int) -> Path:
        return self._folder / f"rank-{rank:05d}-of-{self._size:05d}.json"

    def _write(self) -> None:
        path = self._file(self._rank)
        temporary = path.with_name(f".{path.name}.{self._id}")
        with self._lock:
            about = {
                "id": self._id, "host": self._host, "pid": os.getpid(), "sees": self._sees,
                "round": self._round, "values": self._values, "state": self._state,
            }  # fmt: skip
            temporary.write_text(json.dumps(about))
            os.replace(temporary, path)

    def _read(self) -> None:
        """Read what changed; say whom this rank has seen."""
        seen = dict(self._sees)
        for rank in range(self._size):
            if rank == self._rank:
                continue
            path = self._file(rank)
            try:
                found = path.stat()
                stamp = (found.st_ino, found.st_mtime_ns)
                if self._changed.get(rank) == stamp:
                    continue
                self._peers[rank] = json.loads(path.read_text())
            except (OSError, ValueError):
                continue  # not there yet, or going just now
            self._changed[rank] = stamp
            seen[rank] = self._peers[rank]["id"]
        if seen != self._sees:
            for rank in seen:
                if seen[rank] != self._sees.get(rank):
                    self._gone.discard(rank)
            self._sees = seen
            self._write()
        fresh = self._fresh()
        if len(fresh) == self._size - 1:
            ids = [self._id, *(peer["id"] for peer in fresh.values())]
            self.run = min(ids)[:8]  # all ranks find the same one

    def _fresh(self) -> dict[int, dict[str, Any]]:
        """The files of this run: those that have seen this process."""
        mine = str(self._rank)
        return {r: p for r, p in self._peers.items() if p["sees"].get(mine) == self._id}

    def _look_at_processes(self) -> None:
        """A process of this machine that has gone without a word was killed."""
        now = time.monotonic()
        if now < self._looked_at_processes + PROCESSES:
            return
        self._looked_at_processes = now
        for rank, peer in self._fresh().items():
            if peer["host"] == self._host and peer["state"] == RUNNING and not _alive(peer["pid"]):
                self._gone.add(rank)

    def look(self, wants: bool) -> News:
        self._read()
        self._look_at_processes()
        fresh = self._fresh()
        crashed = {rank for rank, peer in fresh.items() if peer["state"] == CRASHED}
        return News(
            begun=wants or self._begun(fresh) > self._round,
            crashed=sorted(crashed | self._gone),
            left=sorted(rank for rank, peer in fresh.items() if peer["state"] == LEFT),
        )

    def agree(self, value: int) -> int:
        self._read()
        fresh = self._fresh()
        begun = self._begun(fresh)
        passed = max((peer["round"] for peer in fresh.values()), default=0)
        self._round = begun if begun > self._round else max(self._round, passed) + 1
        self._answer(value)
        deadline = time.monotonic() + self._timeout
        try:
            while True:
                if value == GIVEN_UP:
                    raise WaitTimeout("this rank completed no step in time, so none was agreed on")
                answers = self._answers(deadline)
                if answers is not None:
                    return max(value, *answers)
                time.sleep(LOOK / 2)
        except RecollectError:
            self._answer(GIVEN_UP)  # so that one that comes late does not take it for agreed
            raise

    def _begun(self, fresh: Mapping[int, Mapping[str, Any]]) -> int:
        """The latest round that a rank has begun and that nobody has given up, 0 without any."""
        given_up = {
            int(number)
            for peer in fresh.values()
            for number, value in peer["values"].items()
            if value == GIVEN_UP
        }
        rounds = {peer["round"] for peer in fresh.values()} - given_up
        return max(rounds, default=0)

    def _answer(self, value: int) -> None:
        """Write this rank's value of the round."""
        kept = {n: v for n, v in self._values.items() if n > self._round - REMEMBERED}
        self._values = {**kept, self._round: value}
        self._write()

    def _answers(self, deadline: float) -> list[int] | None:
        """The values of all others, None while some are missing; raises where they won't come."""
        self._read()
        self._look_at_processes()
        fresh, number = self._fresh(), str(self._round)
        answers = {
            r: peer["values"][number] for r, peer in fresh.items() if number in peer["values"]
        }
        gave_up = [rank for rank, answer in answers.items() if answer == GIVEN_UP]
        silent = [r for r in range(self._size) if r != self._rank and r not in answers]
        if gave_up and not silent:
            raise WaitTimeout(f"{_ranks(gave_up)} waited too long for the others and gave up")
        if not silent:
            return list(answers.values())
        ended = [r for r in silent if r in self._gone or _over(fresh.get(r))]
        if ended:
            raise RanksGone(f"{_ranks(ended)} crashed or ended, so no step can be agreed on")
        if gave_up or time.monotonic() >= deadline:  # who gave up waited for the same ranks
            raise WaitTimeout(
                f"{_ranks(silent)} did not answer within {self._timeout:g} s, so no step could be "
                "agreed on; is every rank running, and calling with the same path?"
            )
        return None

    def tell_crash(self) -> None:
        self._state = CRASHED
        self._write()

    def close(self) -> None:
        self._state = max(self._state, LEFT)
        self._write()


class ThroughGathers:
    """Ranks gather one integer a few times a second: what each says of itself, then a step."""

    pause = PULSE

    def __init__(self, gather: Gather, rank: int, world_size: int) -> None:
        self._gather = gather
        self._rank, self._size = rank, world_size
        self._state = RUNNING
        self._broken: str | None = None
        self.run: str | None = None

    def _gathered(self, value: int) -> list[int]:
        if self._broken is not None:
            raise RanksGone(self._broken)
        try:
            found = [int(one) for one in self._gather(value)]
        except Exception as error:  # of whatever library: a rank has gone
            self._broken = f"the exchange between ranks failed ({error}), so a rank has gone"
            raise RanksGone(self._broken) from error
        if len(found) != self._size:
            self._broken = f"exchange: expected {many(self._size, 'number')}, got {len(found)}"
            raise InvalidValue(self._broken)
        return found

    def look(self, wants: bool) -> News:
        if self._broken is not None:
            return News(begun=wants)
        try:
            if self.run is None:
                self.run = f"{max(self._gathered(secrets.randbits(31))):08x}"
            state = max(self._state, WANTS) if wants and self._state == RUNNING else self._state
            states = self._gathered(state)
        except RanksGone:
            return News(crashed=[-1])  # nobody can tell which
        left = [rank for rank, one in enumerate(states) if one == LEFT]
        if left:
            self._broken = f"{_ranks(left)} ended"
        return News(
            begun=WANTS in states and not left,
            crashed=[r for r, one in enumerate(states) if one == CRASHED and r != self._rank],
            left=left,
        )

    def agree(self, value: int) -> int:
        values = self._gathered(value)
        silent = [rank for rank, one in enumerate(values) if one == GIVEN_UP]
        if silent:
            raise WaitTimeout(f"{_ranks(silent)} completed no step in time, so none was agreed on")
        return max(values)

    def tell_crash(self) -> None:
        self._state = CRASHED

    def close(self) -> None:
        self._state = max(self._state, LEFT)
        if self._broken is None:
            self.look(False)  # the last one: the others hear of it, and gather no more


def agreement(exchange: Any, path: Path, rank: int, world_size: int, timeout: float) -> Agreement:
    """How these ranks agree: as they are told, by `torch.distributed` if it runs, or by files."""
    if exchange is not None and not callable(exchange):
        raise InvalidValue(
            "exchange: expected a function that gathers one integer of every rank, and returns "
            f"them in order, got {exchange!r}"
        )
    if world_size == 1:
        return Alone()
    if exchange is None:
        exchange = torch_gather(world_size, timeout)
    if exchange is None:
        return ThroughFiles(path, rank, world_size, timeout)
    return ThroughGathers(exchange, rank, world_size)


def torch_gather(world_size: int, timeout: float) -> Gather | None:
    """An all-gather in a group of its own, where `torch.distributed` runs with as many ranks."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available():
        return None
    distributed = torch.distributed
    if not distributed.is_initialized() or distributed.get_world_size() != world_size:
        return None
    from datetime import timedelta

    # Its own group, on the processor: a collective of the training may hang while this one runs.
    group = distributed.new_group(backend="gloo", timeout=timedelta(seconds=timeout))

    def gather(value: int) -> list[int]:
        mine = torch.tensor([value], dtype=torch.int64)
        found = [torch.zeros_like(mine) for _ in range(world_size)]
        distributed.all_gather(found, mine, group=group)
        return [int(one) for one in found]

    return gather


def _over(peer: dict[str, Any] | None) -> bool:
    return peer is not None and peer["state"] in (CRASHED, LEFT)


def _ranks(ranks: list[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:  # one that ended and was not waited for still has its number
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (OSError, IndexError):
        return True
