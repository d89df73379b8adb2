"""Events: what happened to groups, for those who hold something on their behalf.

A group that leaves appears once, with its reason, and can still be read: the event holds the
memory it lies in. Nothing is told of a group while it is leased. Events are queued under the
table's lock and read without it, so a reader may call the buffer.

A reader that falls behind never stops the buffer, and does not make it hold more and more groups:
beyond a limit the oldest unread events let go of their group. What happened, to which group and
why is never lost, so that whoever holds something for the group can release it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recollect.base.arguments import whole
from recollect.errors import InvalidValue, TableClosed, UnknownKey
from recollect.rollouts.entries import GroupEntry
from recollect.rollouts.group import Group
from recollect.rollouts.groups import Groups, finished
from recollect.storage.base import Chosen
from recollect.table.waiting import TaskWaiter, ThreadWaiter, Waiter

KEPT = 1024  # unread events that hold their group, unless a reader says otherwise
LEAVING = ("taken", "confirmed", "expired", "discarded")
KINDS = (*LEAVING, "retried")

# Which kind of event a reason for leaving makes; any other reason makes `discarded`.
KIND_OF = {"taken": "taken", "trained": "confirmed", "expired": "expired"}


log = logging.getLogger("recollect.rollouts")


class PastGroups:
    """Some groups as they were when something happened to them; read when first asked for."""

    def __init__(self, chosen: Chosen, blobs: Mapping[str, bytes]) -> None:
        self._chosen: Chosen | None = chosen
        self._blobs = blobs
        self._groups: Groups | None = None
        self._lock = threading.Lock()

    def __getitem__(self, place: int) -> Group:
        with self._lock:
            if self._groups is None:
                assert self._chosen is not None
                self._groups = finished(self._chosen.read(np.empty), 0, self._blobs)
                self._chosen = None
        return self._groups[place]


@dataclass(slots=True, eq=False, repr=False)
class Event:
    """One thing that happened to one group.

    `kind` is one of taken, confirmed, expired, discarded (the group has left) and retried (it
    stays, and what was stale in it was cleared); `reason` says more: taken, trained, expired,
    retries, overflow, filtered, replaced, rewound, or what `discard` was told. `has_group` is
    false where the reader was so far behind that the group was let go; the rest is still there.
    """

    kind: str
    reason: str
    key: int | None
    task: str
    group_id: str
    _groups: PastGroups | Sequence[Group] | None
    _place: int

    @property
    def group(self) -> Group:
        """The group as it was; for `retried`, before it was cleared.

        Raises `UnknownKey` where it was let go because its reader was too far behind.
        """
        if self._groups is None:
            raise UnknownKey(
                f"group {self.group_id!r} was let go because the reader of events was too far "
                "behind; read faster, or subscribe with events(..., keep=) for more"
            )
        return self._groups[self._place]

    @property
    def has_group(self) -> bool:
        """Whether the group can still be read."""
        return self._groups is not None

    def without_group(self) -> Event:
        """The same event without its group, for a reader that is behind."""
        return Event(self.kind, self.reason, self.key, self.task, self.group_id, None, 0)

    def __repr__(self) -> str:
        return f"Event({self.kind!r}, {self.reason!r}, task={self.task!r}, {self.group_id!r})"


class Subscription:
    """The events that one reader has not read yet. Guarded by the table's lock."""

    def __init__(self, events: Events, kinds: frozenset[str], keep: int | None) -> None:
        self.kinds = kinds
        self.let_go = 0  # events whose group was let go before they were read
        self._events = events
        self._keep = keep
        self._queue: list[Event] = []
        self._groupless = 0  # how many of these, the oldest, have no group any more
        self._waiter: Waiter | None = None
        self._over = False

    def push(self, new: list[Event]) -> None:
        self._queue += new
        if self._keep is not None and len(self._queue) - self._groupless > self._keep:
            self._let_groups_go(len(self._queue) - self._keep)
        if self._waiter is not None:
            self._waiter.wake()

    def _let_groups_go(self, end: int) -> None:
        """The reader is behind: the oldest events let go of their groups."""
        for place in range(self._groupless, end):
            self._queue[place] = self._queue[place].without_group()
        if not self.let_go and self._keep:
            log.warning(
                "a reader of events is more than %d events behind: the oldest keep their ids and "
                "reasons, and let go of their groups; read faster, or subscribe with "
                "events(..., keep=) for more",
                self._keep,
            )
        self.let_go += end - self._groupless
        self._groupless = end

    def end(self) -> None:
        """No more events come: the reader gets what is queued, and then it stops."""
        with self._events.transaction():
            self._over = True
            self._events.remove(self)
            if self._waiter is not None:
                self._waiter.wake()

    def pop(self, waiter: Waiter) -> list[Event] | None:
        """The events since the last call, None where the reader must wait."""
        with self._events.transaction():
            if self._queue:
                batch, self._queue, self._waiter = self._queue, [], None
                self._groupless = 0
                return batch
            if self._over:
                self._waiter = None
                return []
            self._waiter = waiter
            return None


class EventReader:
    """The batches of events that one reader gets, until it ends the subscription or is gone."""

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription

    @property
    def let_go(self) -> int:
        """How many events lost their group because they were not read in time."""
        return self._subscription.let_go

    def __del__(self) -> None:
        self._subscription.end()


class AsyncEvents(EventReader, AsyncIterator[list[Event]]):
    """Batches of events for a coroutine."""

    def __aiter__(self) -> AsyncEvents:
        return self

    async def __anext__(self) -> list[Event]:
        waiter = TaskWaiter()
        while True:
            batch = self._subscription.pop(waiter)
            if batch is not None:
                break
            await waiter.sleep(None)
        if not batch:
            raise StopAsyncIteration
        return batch

    async def aclose(self) -> None:
        """End the subscription."""
        self._subscription.end()


class BlockingEvents(EventReader, Iterator[list[Event]]):
    """The same for a thread."""

    def __iter__(self) -> BlockingEvents:
        return self

    def __next__(self) -> list[Event]:
        waiter = ThreadWaiter()
        while True:
            batch = self._subscription.pop(waiter)
            if batch is not None:
                break
            waiter.sleep(None)
        if not batch:
            raise StopIteration
        return batch

    def close(self) -> None:
        """End the subscription; a thread that waits in it stops, too."""
        self._subscription.end()


class Events:
    """Who wants to know what. Guarded by the table's lock."""

    def __init__(self, transaction: Callable[[], AbstractContextManager[Any]]) -> None:
        self.transaction = transaction
        self._subscriptions: tuple[Subscription, ...] = ()
        self._closed = False

    def subscribe(self, kinds: Iterable[str], keep: int | None) -> AsyncEvents:
        return AsyncEvents(self._add(kinds, keep))

    def subscribe_blocking(self, kinds: Iterable[str], keep: int | None) -> BlockingEvents:
        return BlockingEvents(self._add(kinds, keep))

    def _add(self, kinds: Iterable[str], keep: int | None) -> Subscription:
        wanted = frozenset(kinds) or frozenset(LEAVING)
        for kind in wanted:
            if kind not in KINDS:
                raise InvalidValue(f"events: {kind!r} is not one of {', '.join(KINDS)}")
        if keep is not None:
            keep = whole("keep", keep, 0)
        with self.transaction():
            if self._closed:
                raise TableClosed("the buffer was closed; make a new one to go on")
            subscription = Subscription(self, wanted, keep)
            self._subscriptions = (*self._subscriptions, subscription)
        return subscription

    def remove(self, subscription: Subscription) -> None:
        self._subscriptions = tuple(s for s in self._subscriptions if s is not subscription)

    def close(self) -> None:
        """Readers get what is queued, and then stop."""
        self._closed = True
        for subscription in self._subscriptions:
            subscription.end()

    def wants(self, kind: str) -> bool:
        """Whether somebody reads events of a kind: then their groups must be kept for a while."""
        return any(kind in subscription.kinds for subscription in self._subscriptions)

    def tell(self, kind: str, new: list[Event]) -> None:
        for subscription in self._subscriptions:
            if kind in subscription.kinds:
                subscription.push(new)


def events_of(
    kind: str,
    reason: str,
    keys: NDArray[np.uint64],
    entries: Sequence[GroupEntry],
    groups: PastGroups,
) -> list[Event]:
    """An event for each of some groups."""
    return [
        Event(kind, reason, key, entry.task, entry.group_id, groups, place)
        for place, (key, entry) in enumerate(zip(keys.tolist(), entries, strict=True))
    ]
