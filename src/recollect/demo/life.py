"""What the parent knows of a run: the lines that the training process wrote, put together."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

RECENT = 200  # groups over which a reward is averaged


@dataclass
class Kill:
    """A process that was killed, and what its journal still had: groups, or steps."""

    at: float
    step: int
    acknowledged: int
    found: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def put(self) -> int:
        """How many were put, as the journal has it."""
        return sum(account["put"] for account in self.found.values())

    @property
    def kept(self) -> int:
        """How many are stored."""
        return sum(account["stored"] + account["leased"] for account in self.found.values())

    @property
    def left(self) -> dict[str, int]:
        """How many had left, by reason."""
        reasons: dict[str, int] = {}
        for account in self.found.values():
            for reason, count in account["left"].items():
                reasons[reason] = reasons.get(reason, 0) + count
        return reasons

    @property
    def lost(self) -> int:
        """How many a producer was told are safe, and of which nothing is known."""
        accounted = min(self.put, self.kept + sum(self.left.values()))
        return max(0, self.acknowledged - accounted)


class Life:
    """A run as it is seen from outside. Times are seconds since it began."""

    def __init__(self, began: float) -> None:
        self.began = began
        self.puts = 0
        self.tokens = 0
        self.steps = 0
        self.trained = 0  # steps, those that were trained again included
        self.snapshots = 0
        self.size = 0
        self.looks: list[dict[str, Any]] = []
        self.rewards: dict[str, list[tuple[float, float]]] = {}
        self.replayed: deque[float] = deque(maxlen=50)
        self.kills: list[Kill] = []
        self.ended: dict[str, Any] = {}
        self._recent: dict[str, deque[float]] = {}
        self._times: deque[tuple[float, int]] = deque(maxlen=400)

    def hear(self, line: str) -> None:
        """Take in a line; a process that is killed may leave half of one."""
        try:
            told = json.loads(line)
        except ValueError:
            return
        at = told["at"] - self.began
        getattr(self, f"_{told['kind']}")(at, told)

    def _began(self, at: float, told: Mapping[str, Any]) -> None:
        self.size = told["size"]

    def _put(self, at: float, told: Mapping[str, Any]) -> None:
        self.puts += told["count"]
        self.tokens += told["tokens"]
        if told["count"]:
            self._times.append((at, told["count"]))
        if told["task"] is None:
            return
        recent = self._recent.setdefault(told["task"], deque(maxlen=RECENT))
        recent.append(told["reward"])
        curve = self.rewards.setdefault(told["task"], [])
        if not curve or at - curve[-1][0] > 0.2:
            curve.append((at, sum(recent) / len(recent)))

    def _step(self, at: float, told: Mapping[str, Any]) -> None:
        self.steps = told["step"]
        self.trained += 1
        self.replayed.append(told["replayed"])

    def _saved(self, at: float, told: Mapping[str, Any]) -> None:
        self.snapshots += 1

    def _look(self, at: float, told: Mapping[str, Any]) -> None:
        self.looks.append({**told, "at": at})

    def _ended(self, at: float, told: Mapping[str, Any]) -> None:
        self.ended = {**told, "at": at}

    @property
    def rate(self) -> float:
        """What was put, per second, lately."""
        if len(self._times) < 2 or self._times[-1][0] == self._times[0][0]:
            return 0.0
        return sum(count for _, count in self._times) / (self._times[-1][0] - self._times[0][0])

    @property
    def now(self) -> dict[str, Any]:
        """The last look at the buffer."""
        return self.looks[-1] if self.looks else {}
