"""Effects: the numbered changes of a table, and those who follow them.

Every change has a number, and where somebody follows, it is told of it under the table's lock
and in order, at the end of the call that made the change. A follower must be quick there; what
takes long, such as waiting for a disk, it does in `settle`, which the table calls without the
lock before the call returns. An error in a follower reaches the caller after the change.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from recollect.base.arrays import Keys
from recollect.base.leases import Lease
from recollect.data.schema import Schema
from recollect.errors import InvalidValue, shown
from recollect.storage.base import Chosen, NewItems


@dataclass(frozen=True, slots=True)
class Effect:
    """One change. `keys` are the items that it is about."""

    number: int
    keys: Keys


@dataclass(frozen=True, slots=True)
class Inserted(Effect):
    """Items came. `new` holds what the caller gave; its arrays are the caller's."""

    new: NewItems
    request: tuple[Any, int] | None


@dataclass(frozen=True, slots=True)
class Removed(Effect):
    """Items left: `evicted`, `taken`, `sampled` (often enough), `deleted`, `confirmed`, `cleared`.

    `items.read()` still gives their payload.
    """

    reason: str
    items: Chosen


@dataclass(frozen=True, slots=True)
class Updated(Effect):
    """Fields of items changed."""

    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Amended(Effect):
    """Absent cells of items were filled."""

    columns: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Leased(Effect):
    """Items were handed out under a lease."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class Returned(Effect):
    """A lease ended and its items are back: `given back` or `lapsed`."""

    lease: Lease
    reason: str


@dataclass(frozen=True, slots=True)
class Archived(Effect):
    """A lease ended and its items stay, done with."""

    lease: Lease


class Follower(Protocol):
    """Somebody who is told of every effect."""

    def follow(self, effect: Effect) -> None:
        """Called under the table's lock, once per effect, in order."""
        ...

    def settle(self, number: int) -> None:
        """Called without the lock: return when effects up to `number` are as safe as promised."""
        ...


class EffectRecorder(Follower, Protocol):
    """A follower that is told while what an effect is about is still there: the journal."""

    def record(self, effect: Effect) -> None:
        """Called under the lock, at the moment of the change."""
        ...

    def sampled(self, keys: Keys) -> None:
        """Called under the lock: items were drawn, and stay."""
        ...

    def columns(self, rows: Schema, shared: Schema | None) -> None:
        """Called under the lock: these are the columns from now on."""
        ...

    async def settle_async(self, number: int) -> None:
        """`settle` for a coroutine, which takes no thread."""
        ...


class Effects:
    """The effects of one table; guarded by its lock, `settle` excepted."""

    def __init__(self) -> None:
        self.number = 0
        self.followers: tuple[Follower, ...] = ()
        self.journal: EffectRecorder | None = None  # one of the followers
        self.readers = False  # whether another one may read what left
        self.queue: deque[Effect] = deque()  # what followers are still to be told
        self._delivering = False
        self._held = False

    def emit(self, kind: type[Effect], keys: Keys, *about: Any) -> None:
        """Number a change; those who follow are told of it by `deliver`."""
        self.number += 1
        if self.followers:
            effect = kind(self.number, keys, *about)
            if self.journal is not None:
                self.journal.record(effect)
            if self.readers:
                self.queue.append(effect)

    def hold(self) -> None:
        """From now on keep what changed until `release`: when it is safe in a database."""
        self._held = self._delivering = True

    def release(self) -> None:
        """What was held has happened for good."""
        if self._held and self.queue:
            self._held = self._delivering = False
            try:
                self.deliver()
            finally:
                self._held = self._delivering = True

    def drop(self) -> None:
        """What was held has not happened."""
        if self._held:
            self.queue.clear()

    def deliver(self) -> None:
        """Tell the followers of what has changed; a change that one of them makes comes last."""
        if self._delivering or not self.queue:
            return
        self._delivering = True
        errors: list[Exception] = []
        try:
            while self.queue:
                effect = self.queue.popleft()
                for follower in self.followers:
                    try:
                        follower.follow(effect)
                    except Exception as error:  # the other followers must be told all the same
                        errors.append(error)
        finally:
            self._delivering = False
        if errors:
            raise errors[0]

    def settle(self, number: int, *, changed: bool = True) -> None:
        """Wait until effects are safe; a call that changed nothing does not wait for a disk."""
        for follower in self.followers:
            if changed or follower is not self.journal:
                follower.settle(number)

    async def settle_async(self, number: int, *, changed: bool = True) -> None:
        """The same for a coroutine; a follower may block, and gets a thread."""
        for follower in self.followers:
            if follower is not self.journal:
                await asyncio.to_thread(follower.settle, number)
            elif changed:
                await self.journal.settle_async(number)

    def add(self, follower: Follower) -> None:
        for verb in ("follow", "settle"):
            if not callable(getattr(follower, verb, None)):
                raise InvalidValue(
                    f"a follower has the methods follow and settle, got {shown(follower)}"
                )
        self._set((*self.followers, follower))

    def remove(self, follower: Follower) -> None:
        self._set(tuple(other for other in self.followers if other is not follower))

    def _set(self, followers: tuple[Follower, ...]) -> None:
        self.followers = followers
        self.readers = any(follower is not self.journal for follower in followers)
