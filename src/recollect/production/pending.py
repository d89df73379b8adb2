"""`Pending`: generations in flight, from the moment they are scheduled until they are stored.

A flight goes one of two ways, and the first step on either is taken by whoever comes first:

    GENERATING ── claim ──→ CLAIMED ── done ──→ gone      its result is stored, or was counted out
         └─────── cancel ──→ gone                         its prompt is given back by who cancelled

`claim` and `cancel` do not await, and everything here runs on one event loop, so exactly one of
them succeeds. A claimed flight can't be cancelled any more and counts as in flight until `done`:
when `in_flight` is empty, every result is in the buffer or back with the prompts. `schedule`
looks at stop and limit in the same section in which it adds, so nothing is scheduled after a stop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from enum import Enum
from typing import Any

from recollect.production.prompts.base import prompt_of
from recollect.production.signal import Signal
from recollect.rollouts.group import Group


class Stage(Enum):
    """Where a flight is."""

    GENERATING = "generating"
    CLAIMED = "claimed"
    CANCELLED = "cancelled"
    DONE = "done"


class Flight:
    """One generation that is under way.

    Attributes:
        group: What the generator works on. It may be changing: others use `prompt()`.
        original: A copy of the group as the buffer had it, where it was continued or retried;
            None for a new prompt.
        version: The weights at dispatch.
        oldest: The lowest version that counts for it, those of tokens it came with included.
        tokens: Response tokens it came with.
        started_at: The event loop's time at dispatch.
    """

    __slots__ = ("_task", "group", "oldest", "original", "stage", "started_at", "tokens", "version")

    def __init__(
        self, group: Group, original: Group | None, version: int, started_at: float
    ) -> None:
        self.group = group
        self.original = original
        self.tokens = sum(rollout.num_tokens for rollout in original or ())
        self.stage = Stage.GENERATING
        self._task: asyncio.Task[None] | None = None
        self.send(version, started_at)

    def send(self, version: int, now: float) -> None:
        """It goes to the generator now. New weights may have come since it was scheduled."""
        self.version = self.oldest = version
        self.started_at = now
        for rollout in self.original or ():
            if rollout.versions is not None and len(rollout.versions):
                generated = rollout.versions[rollout.versions >= 0]
                self.oldest = min([self.oldest, *generated.tolist()])

    @property
    def task(self) -> str:
        """The task that the group is for."""
        return self.group.task

    @property
    def group_id(self) -> str:
        """The group's identity."""
        return self.group.group_id

    def prompt(self) -> Group:
        """The prompt as it can be given back, whatever the generator is doing to the group."""
        return prompt_of(self.group if self.original is None else self.original)

    def __repr__(self) -> str:
        return f"Flight({self.group_id!r}, task={self.task!r}, {self.stage.value})"


class Pending:
    """The flights of one task. On the manager's event loop only."""

    def __init__(self, stopping: Callable[[], bool], changed: Signal) -> None:
        self._stopping = stopping
        self._changed = changed
        self._flights: dict[Flight, None] = {}

    @property
    def in_flight(self) -> tuple[Flight, ...]:
        """What is generated or being stored now, the oldest first."""
        return tuple(self._flights)

    def __len__(self) -> int:
        return len(self._flights)

    def schedule(
        self,
        flight: Flight,
        run: Callable[[Flight], Coroutine[Any, Any, None]],
        limit: int | None = None,
    ) -> bool:
        """Start a flight, unless production stops or `limit` are in flight; says whether it did."""
        if self._stopping() or (limit is not None and len(self._flights) >= limit):
            return False
        self._flights[flight] = None
        flight._task = asyncio.get_running_loop().create_task(run(flight))
        return True

    async def drained(self) -> None:
        """Sleep until nothing is in flight."""
        await self._changed.until(lambda: not self._flights)

    def claim(self, flight: Flight) -> bool:
        """The result of a flight is mine to store: true once, and never after a cancel."""
        if flight.stage is not Stage.GENERATING:
            return False
        flight.stage = Stage.CLAIMED
        return True

    def done(self, flight: Flight) -> None:
        """What was claimed is stored, or has left: it is not in flight any more."""
        assert flight.stage is Stage.CLAIMED
        flight.stage = Stage.DONE
        self._leave(flight)

    def cancel(self, flights: Iterable[Flight]) -> list[Flight]:
        """End some flights; returns those whose prompts the caller must give back now.

        The others are claimed, and will be stored.
        """
        cancelled = []
        for flight in list(flights):
            if flight.stage is Stage.GENERATING and flight in self._flights:
                flight.stage = Stage.CANCELLED
                if flight._task is not None:
                    flight._task.cancel()
                self._leave(flight)
                cancelled.append(flight)
        return cancelled

    def cancel_all(self) -> list[Flight]:
        """End all flights: from now on nobody can claim one of them."""
        return self.cancel(self._flights)

    def _leave(self, flight: Flight) -> None:
        del self._flights[flight]
        self._changed.notify()
