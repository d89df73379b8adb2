"""Waiting, in one place: threads and coroutines that sleep until a change may let them go.

A table's verbs never wait; they say what they need. A waiter then sleeps until so many items
arrived (samples, takes) or left (inserts), or until everybody is woken. It is woken under the
table's lock and tries again by itself, so a waiter that gives up leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass


@dataclass(frozen=True)
class Blocked:
    """Why a verb cannot go ahead now, and how many arrivals or departures it needs at least."""

    needs: str
    least: int = 1


class Waiter:
    """Somebody who sleeps; `at` is the count of arrivals, or departures, that wakes it."""

    __slots__ = ("at",)

    def __init__(self) -> None:
        self.at = 0

    def wake(self) -> None:
        raise TypeError("a Waiter is a thread's or a coroutine's")


class ThreadWaiter(Waiter):
    """A thread that sleeps."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        super().__init__()
        self._event = threading.Event()

    def wake(self) -> None:
        self._event.set()

    def sleep(self, seconds: float | None) -> None:
        self._event.wait(seconds)
        self._event.clear()


class TaskWaiter(Waiter):
    """A coroutine that sleeps; any thread may wake it."""

    __slots__ = ("_event", "_loop")

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def wake(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._event.set)

    async def sleep(self, seconds: float | None) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._event.wait()
        except TimeoutError:
            pass
        self._event.clear()


class Room:
    """Those who wait for one kind of change, and how much of it there was."""

    def __init__(self) -> None:
        self.count = 0
        self.waiters: list[Waiter] = []

    def changed(self, by: int) -> None:
        """Count a change and wake those that it may let go."""
        self.count += by
        if self.waiters:
            for waiter in self.waiters:
                if waiter.at <= self.count:
                    waiter.wake()

    def wake_all(self) -> None:
        for waiter in self.waiters:
            waiter.wake()
