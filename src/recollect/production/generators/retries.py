"""`Retries`: how often a request that failed is sent again, and how long to wait before it."""

from __future__ import annotations

import random
from dataclasses import dataclass

from recollect.errors import InvalidValue


@dataclass(frozen=True)
class Retries:
    """Wait, twice as long each time, and try again.

    Tries are counted from the last token that came: a request that was cut off after some tokens
    goes on from them and may fail as often again.

    >>> from recollect.production import Retries
    >>> [Retries(first=1.0, most=5.0).pause(failures) for failures in (1, 2, 3, 4)]
    [1.0, 2.0, 4.0, 5.0]

    Args:
        attempts: How often a request is sent in all, before its rollout is FAILED.
        first: Seconds before the second attempt.
        most: The longest pause, in seconds. A server's `Retry-After` is followed up to here.
        jitter: A pause is lengthened by a random share of itself, up to this one, so that requests
            that failed together do not come again together.
    """

    attempts: int = 6
    first: float = 0.5
    most: float = 30.0
    jitter: float = 0.0

    def __post_init__(self) -> None:
        if isinstance(self.attempts, bool) or self.attempts != int(self.attempts):
            raise InvalidValue(f"attempts: expected a whole number, got {self.attempts!r}")
        if self.attempts < 1:
            raise InvalidValue(f"attempts: expected at least 1, got {self.attempts!r}")
        for name in ("first", "most", "jitter"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise InvalidValue(f"{name}: expected 0 or more, got {getattr(self, name)!r}")

    def pause(self, failures: int, asked: float | None = None) -> float:
        """Seconds to wait after so many failures, or as long as the server asked for."""
        pause = min(self.most, self.first * 2.0 ** (failures - 1))
        if asked is not None:
            pause = min(self.most, max(pause, asked))
        return pause * (1 + random.uniform(0, self.jitter)) if self.jitter else pause
