"""Time, as a value that can be replaced: tables ask a clock, and tests turn one by hand."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from time import monotonic, time
from typing import Protocol

from recollect.errors import InvalidValue


class Clock(Protocol):
    """What a table asks of time."""

    def time(self) -> float:
        """Seconds since 1970, for `inserted_at`."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back, for deadlines."""
        ...

    def sleep_until(self, deadline: float) -> float | None:
        """How long a waiter may sleep until a deadline; None: until somebody wakes it."""
        ...

    def on_turn(self, wake: Callable[[], None]) -> None:
        """Call `wake`, a bound method, whenever time was changed by hand."""
        ...


class SystemClock:
    """The computer's own time."""

    time = staticmethod(time)
    monotonic = staticmethod(monotonic)

    def sleep_until(self, deadline: float) -> float | None:
        return max(0.0, deadline - monotonic())

    def on_turn(self, wake: Callable[[], None]) -> None:
        pass


class ManualClock:
    """A clock that stands still until it is turned.

    >>> import recollect as rc
    >>> clock = rc.ManualClock()
    >>> table = rc.Table("t", capacity=4, clock=clock)
    >>> _ = table.insert({"x": [1.0]})
    >>> batch = table.take(1, lease=60)
    >>> clock.advance(61)
    >>> table.sample(1)["x"]
    array([1.])
    """

    def __init__(self, start: float = 0.0) -> None:
        self._now = float(start)
        self._wake: list[weakref.WeakMethod[Callable[[], None]]] = []

    def time(self) -> float:
        return self._now

    def monotonic(self) -> float:
        return self._now

    def sleep_until(self, deadline: float) -> float | None:
        return None if deadline > self._now else 0.0

    def on_turn(self, wake: Callable[[], None]) -> None:
        self._wake.append(weakref.WeakMethod(wake))

    def advance(self, seconds: float) -> None:
        """Let time pass, and let those who wait for it know."""
        if not seconds >= 0:
            raise InvalidValue(f"time goes on by seconds of 0 or more, got {seconds!r}")
        self._now += seconds
        for reference in self._wake:
            wake = reference()
            if wake is not None:
                wake()
