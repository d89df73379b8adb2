"""Waiting, in one place: threads and coroutines that sleep until a change may let them go.

A table's verbs never wait; they say what they need. A waiter then sleeps until so many items
arrived (samples, takes) or left (inserts), or until everybody is woken. It is woken under the
table's lock and tries again by itself, so a waiter that gives up leaves nothing behind.

A lease's deadline is a change that comes without a call. One waiter of all threads, and one of
each event loop, sleeps no longer than until the next deadline and brings back what is overdue;
the others sleep on. So a new deadline wakes these few at most, however many wait.
"""

from __future__ import annotations

import asyncio
import math
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

from recollect.base.clock import Clock
from recollect.errors import WaitTimeout

Result = TypeVar("Result")

LONGEST_SLEEP = 3600.0  # a waiter that slept so long looks again; longer ones overflow a timer


@dataclass(frozen=True)
class Blocked:
    """Why a verb cannot go ahead now, and how many arrivals or departures it needs at least."""

    needs: str
    least: int = 1


class Waiter:
    """Somebody who sleeps; `at` is the count of arrivals, or departures, that wakes it.

    `until` is when it wakes by itself, and `sleeps_with` is an event loop, or None for threads:
    of those that sleep with each other one watches the next deadline.
    """

    __slots__ = ("at", "sleeps_with", "until")

    def __init__(self, sleeps_with: asyncio.AbstractEventLoop | None) -> None:
        # Until its first attempt has said how much it needs, no change wakes it, and none is lost:
        # that attempt still comes and sees them. `wake_all` and `wake` do not ask for `at`.
        self.at = sys.maxsize
        self.until = math.inf
        self.sleeps_with = sleeps_with

    def wake(self) -> None:
        raise TypeError("a Waiter is a thread's or a coroutine's")


class ThreadWaiter(Waiter):
    """A thread that sleeps."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        super().__init__(None)
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
        self._loop = asyncio.get_running_loop()
        super().__init__(self._loop)
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


class Gate:
    """Runs attempts under a table's lock until they succeed or time is over.

    `enter` is what every call does first under the lock; `next_deadline` is when something will
    change without a call, so that somebody wakes up for it. `lock` guards who waits: it is the
    transaction itself where that is a lock. `listen`, where there is one, makes sure that changes
    of other processes arrive; an attempt after it cannot miss one.
    """

    def __init__(
        self,
        whose: str,
        clock: Clock,
        transaction: Callable[[], AbstractContextManager[Any]],
        enter: Callable[[], None],
        next_deadline: Callable[[], float],
        lock: Callable[[], AbstractContextManager[Any]] | None = None,
        listen: Callable[[], None] | None = None,
    ) -> None:
        self._whose = whose
        self._clock = clock
        self._transaction = transaction
        self._enter = enter
        self._next_deadline = next_deadline
        self._lock = transaction if lock is None else lock
        self._listen = listen
        self._watchers: dict[asyncio.AbstractEventLoop | None, Waiter] = {}
        self.alarms = 0  # how often there was something that other processes must look at
        self.arrivals, self.departures = Room(), Room()
        clock.on_turn(self._time_turned)

    def wake_all(self) -> None:
        """Something changed that may concern everybody."""
        self.alarms += 1
        self.arrivals.wake_all()
        self.departures.wake_all()

    def due_at(self, deadline: float, before: float) -> None:
        """Something will change at a time, the first that will where `before` is later.

        Only a watcher that would sleep beyond it is woken, to sleep less.
        """
        if deadline < before:
            self.alarms += 1
        for watcher in self._watchers.values():
            if watcher.until > deadline:
                watcher.until = deadline  # it is told once
                watcher.wake()

    def _time_turned(self) -> None:
        with self._lock():
            self.wake_all()

    def wait(
        self,
        attempt: Callable[[], Result | Blocked],
        blocked: Blocked,
        room: Room,
        timeout: float | None,
        what: str,
    ) -> Result:
        """After a first attempt in vain: sleep until a change may help and try again."""
        deadline = self._deadline(timeout)
        self._check_time(blocked, deadline, timeout, what)
        waiter = ThreadWaiter()
        if self._listen is not None:
            self._listen()
        with self._lock():
            room.waiters.append(waiter)
        try:
            while True:  # first without sleep: much may have changed while the lock was free
                with self._transaction():
                    result = self._retry(attempt, room, waiter, deadline, timeout, what)
                if not isinstance(result, Blocked):
                    return result
                waiter.sleep(self._sleep(waiter))
        finally:
            with self._lock():
                self._leave(room, waiter)

    async def wait_async(
        self,
        attempt: Callable[[], Result | Blocked],
        blocked: Blocked,
        room: Room,
        timeout: float | None,
        what: str,
    ) -> Result:
        """The same for a coroutine, which takes no thread."""
        deadline = self._deadline(timeout)
        self._check_time(blocked, deadline, timeout, what)
        waiter = TaskWaiter()
        if self._listen is not None:
            self._listen()
        with self._lock():
            room.waiters.append(waiter)
        try:
            while True:
                with self._transaction():
                    result = self._retry(attempt, room, waiter, deadline, timeout, what)
                if not isinstance(result, Blocked):
                    return result
                await waiter.sleep(self._sleep(waiter))
        finally:
            with self._lock():
                self._leave(room, waiter)

    def _retry(
        self,
        attempt: Callable[[], Result | Blocked],
        room: Room,
        waiter: Waiter,
        deadline: float,
        timeout: float | None,
        what: str,
    ) -> Result | Blocked:
        self._enter()
        result = attempt()
        if isinstance(result, Blocked):
            self._check_time(result, deadline, timeout, what)
            waiter.at = room.count + result.least
            waiter.until = deadline
            if self._watchers.setdefault(waiter.sleeps_with, waiter) is waiter:
                waiter.until = min(deadline, self._next_deadline())
        return result

    def _leave(self, room: Room, waiter: Waiter) -> None:
        """Somebody waits no longer; where it was a watcher, another one takes its place."""
        room.waiters.remove(waiter)
        if self._watchers.get(waiter.sleeps_with) is not waiter:
            return
        del self._watchers[waiter.sleeps_with]
        for other in (*self.arrivals.waiters, *self.departures.waiters):
            if other.sleeps_with is waiter.sleeps_with:
                self._watchers[other.sleeps_with] = other
                if other.until > self._next_deadline():
                    other.wake()
                return

    def _deadline(self, timeout: float | None) -> float:
        return math.inf if timeout is None else self._clock.monotonic() + timeout

    def _check_time(
        self, blocked: Blocked, deadline: float, timeout: float | None, what: str
    ) -> None:
        if deadline < math.inf and self._clock.monotonic() >= deadline:
            raise WaitTimeout(
                f"{what} on {self._whose} timed out after {timeout:g} s: {blocked.needs}"
            )

    def _sleep(self, waiter: Waiter) -> float | None:
        """How long a waiter may sleep: until its own deadline, or until something will change."""
        if math.isinf(waiter.until):
            return None
        sleep = self._clock.sleep_until(waiter.until)
        return None if sleep is None else min(sleep, LONGEST_SLEEP)
