"""`Window`: what one task produced since somebody last looked, as one small value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields

import numpy as np

from recollect.rollouts.group import Group

REMEMBERED = 1 << 16  # times that are kept where nobody reads them


@dataclass(frozen=True)
class Times:
    """How long generations took: how many there were, and where they lie.

    >>> from recollect.production import Times
    >>> Times.of([1.0, 1.0, 4.0]).p50
    1.0
    """

    count: int = 0
    mean: float = 0.0
    p50: float = 0.0
    p99: float = 0.0

    @property
    def p99_to_p50(self) -> float:
        """How much longer the long ones take: what waiting for all of a batch costs."""
        return self.p99 / self.p50 if self.p50 else 0.0

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Times:
        """Of a list of seconds."""
        if not seconds:
            return cls()
        found = np.array(seconds, np.float64)
        p50, p99 = np.quantile(found, (0.5, 0.99)).tolist()
        return cls(found.size, float(found.mean()), p50, p99)


@dataclass(slots=True)
class Window:
    """What was produced from `began` on; it is read once, and then a new one begins.

    Attributes:
        groups: Groups that were stored complete.
        rollouts: Members that were generated to their end, whatever became of them.
        tokens: Tokens that were generated, those of a continued response counted once.
        reward_sum, reward_count: Rewards before `valid` had its say.
        failed, filtered: Groups that left.
        aborted: Groups that were stored, or given back, unfinished.
        times: Seconds of each generation that came to its end, of the latest ones.
        began: The event loop's time at which it began.
        seconds: How long it lasted; set when it is read.
    """

    groups: int = 0
    rollouts: int = 0
    tokens: int = 0
    reward_sum: float = 0.0
    reward_count: int = 0
    failed: int = 0
    filtered: int = 0
    aborted: int = 0
    times: list[float] = field(default_factory=list)
    began: float = 0.0
    seconds: float = 0.0

    @property
    def reward_mean(self) -> float | None:
        """The mean of the raw rewards, None where there were none."""
        return self.reward_sum / self.reward_count if self.reward_count else None

    def took(self, seconds: float) -> None:
        """A generation came to its end. Where nobody reads the window the oldest are forgotten."""
        self.times.append(seconds)
        if len(self.times) >= 2 * REMEMBERED:
            del self.times[:REMEMBERED]

    def score(self, group: Group) -> None:
        """Count the rewards of a completed group, before anybody filters."""
        for rollout in group.rollouts:
            if rollout.reward is not None:
                self.reward_sum += rollout.reward
                self.reward_count += 1

    def __add__(self, other: Window) -> Window:
        """Two tasks in one: counts add up, seconds are those of the longer."""
        both = Window(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(self)))
        both.began = min(self.began, other.began)
        both.seconds = max(self.seconds, other.seconds)
        return both
