"""Leases: batches handed out and not yet confirmed or given back. Nobody watches the clock here.

The table asks for what is overdue at the beginning of every call, and lets its waiters sleep
no longer than until the next deadline.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recollect.errors import LeaseExpired
from recollect.info import Lease


@dataclass(slots=True)
class Held:
    """A lease, and what it hides."""

    lease: Lease
    keys: NDArray[np.uint64]
    nbytes: int


class Leases:
    """The leases of one table; guarded by the table's lock."""

    def __init__(self, first_id: int = 1) -> None:
        self._held: dict[int, Held] = {}
        self._deadlines: list[tuple[float, int]] = []
        self.next_id = first_id
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._held)

    def add(
        self, keys: NDArray[np.uint64], nbytes: int, owner: str, deadline: float | None
    ) -> Lease:
        lease = Lease(self.next_id, owner, deadline)
        self.next_id += 1
        self._held[lease.id] = Held(lease, keys, nbytes)
        self.nbytes += nbytes
        self._expect(lease)
        return lease

    def _expect(self, lease: Lease) -> None:
        if lease.deadline is not None:
            heapq.heappush(self._deadlines, (lease.deadline, lease.id))

    def end(self, lease: Any) -> Held:
        """Take a lease out, to settle it."""
        held = self._held.pop(self._id(lease))
        self.nbytes -= held.nbytes
        return held

    def renew(self, lease: Any, deadline: float | None) -> Lease:
        held = self._held[self._id(lease)]
        held.lease = held.lease._replace(deadline=deadline)
        self._expect(held.lease)
        return held.lease

    def _id(self, lease: Any) -> int:
        number = getattr(lease, "id", lease)
        if number not in self._held:
            raise LeaseExpired(
                f"lease {number!r} is not held: its deadline has passed, or it was confirmed or "
                "given back before; its items may be with somebody else now"
            )
        return int(number)

    def of_owner(self, owner: str) -> list[Lease]:
        return [held.lease for held in self._held.values() if held.lease.owner == owner]

    def overdue(self, now: float) -> list[Lease]:
        """The leases whose deadline has passed."""
        late: list[Lease] = []
        while self._deadlines and self._deadlines[0][0] <= now:
            _, number = heapq.heappop(self._deadlines)
            held = self._held.get(number)
            if held is not None and held.lease.deadline is not None:
                if held.lease.deadline <= now and held.lease not in late:
                    late.append(held.lease)
        return late

    @property
    def next_deadline(self) -> float:
        """When the next lease may lapse; infinity where none does."""
        return self._deadlines[0][0] if self._deadlines else math.inf
