"""Leases: batches handed out and not yet confirmed or given back. Nobody watches the clock here.

The table asks for what is overdue at the beginning of every call, and lets its waiters sleep
no longer than until the next deadline.
"""

from __future__ import annotations

import heapq
import math
import secrets
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from recollect.errors import InvalidValue, LeaseExpired, shown


class LeaseLike(Protocol):
    """What a batch's lease tells: its id, who holds it, and until when (None: without end)."""

    @property
    def id(self) -> Any: ...
    @property
    def owner(self) -> Any: ...
    @property
    def deadline(self) -> float | None: ...


class Lease(NamedTuple):
    """A batch that was handed out: its number, who holds it, and until when (None: without end).

    The id is an int. One that arrived with an encoded batch may have text as its id.
    """

    id: Any
    owner: Any
    deadline: float | None


@dataclass(slots=True)
class Held:
    """A lease, and the keys of the items that it hides."""

    lease: Lease
    keys: NDArray[np.uint64]


class LeaseBook(Protocol):
    """What a table asks of its leases; a storage that processes share has its own."""

    def __len__(self) -> int: ...
    def add(self, keys: NDArray[np.uint64], owner: str, deadline: float | None) -> Lease: ...
    def end(self, lease: object) -> Held: ...
    def narrow(self, lease: object, keys: NDArray[np.uint64]) -> None: ...
    def end_all(self) -> None: ...
    def renew(self, lease: object, deadline: float | None) -> Lease: ...
    def of_owner(self, owner: str) -> list[Lease]: ...
    def overdue(self, now: float) -> list[Lease]: ...
    def held(self) -> dict[int, Held]: ...
    @property
    def timed(self) -> bool: ...
    def next_deadline(self) -> float: ...


class Leases:
    """The leases of one table; guarded by the table's lock.

    Ids begin at a random number, so that a lease of another table is not taken for one of this.
    """

    def __init__(self) -> None:
        self._held: dict[int, Held] = {}
        self._deadlines: list[tuple[float, int]] = []
        self._next_id = (secrets.randbits(20) << 32) + 1

    def __len__(self) -> int:
        return len(self._held)

    def add(self, keys: NDArray[np.uint64], owner: str, deadline: float | None) -> Lease:
        lease = Lease(self._next_id, owner, deadline)
        self._next_id += 1
        self._held[lease.id] = Held(lease, keys)
        self._expect(lease)
        return lease

    def _expect(self, lease: Lease) -> None:
        if lease.deadline is not None:
            heapq.heappush(self._deadlines, (lease.deadline, lease.id))

    def end(self, lease: object) -> Held:
        """Take a lease out, to settle it."""
        return self._held.pop(self._id(lease))

    def narrow(self, lease: object, keys: NDArray[np.uint64]) -> None:
        """Some of what a lease hides has been removed; these keys are left."""
        self._held[self._id(lease)].keys = keys

    def end_all(self) -> None:
        """Forget every lease."""
        self._held.clear()
        self._deadlines.clear()

    def renew(self, lease: object, deadline: float | None) -> Lease:
        held = self._held[self._id(lease)]
        held.lease = held.lease._replace(deadline=deadline)
        self._expect(held.lease)
        return held.lease

    def _id(self, lease: object) -> int:
        number = number_of(lease)
        if number not in self._held:
            raise not_held(number)
        return number

    def held(self) -> dict[int, Held]:
        """Every lease, by its id."""
        return self._held

    def of_owner(self, owner: str) -> list[Lease]:
        return [held.lease for held in self._held.values() if held.lease.owner == owner]

    def overdue(self, now: float) -> list[Lease]:
        """The leases whose deadline has passed."""
        late: dict[int, Lease] = {}  # one that was renewed has several entries in the heap
        while self._deadlines and self._deadlines[0][0] <= now:
            _, number = heapq.heappop(self._deadlines)
            held = self._held.get(number)
            deadline = None if held is None else held.lease.deadline
            if held is not None and deadline is not None and deadline <= now:
                late[number] = held.lease
        return list(late.values())

    @property
    def timed(self) -> bool:
        """Whether any lease has a deadline."""
        return bool(self._deadlines)

    def next_deadline(self) -> float:
        """When the next lease may lapse; infinity where none does."""
        return self._deadlines[0][0] if self._deadlines else math.inf


def number_of(lease: object) -> int:
    """The id of what a caller gives as a lease."""
    number = lease.id if isinstance(lease, Lease) else lease
    if not isinstance(number, int) or isinstance(number, bool):
        hint = "; take with lease= to have one" if lease is None else ""
        raise InvalidValue(
            "lease: expected that of a batch (batch.info.lease, or batch.lease of rollouts), got "
            f"{shown(lease)}{hint}"
        )
    return number


def not_held(number: int) -> LeaseExpired:
    return LeaseExpired(
        f"lease {number} is not held: its deadline has passed, or it was confirmed or "
        "given back before; its items may be with somebody else now"
    )
