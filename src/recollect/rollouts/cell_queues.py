"""Which groups lack which cells, and which of them somebody has claimed to fill.

Knows keys, tasks and names of cells, and reads no group. `claims.py` has the verbs.
"""

from __future__ import annotations

import heapq
import math
import secrets
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from recollect.base.arrays import Mask
from recollect.base.leases import Lease
from recollect.data.schema import Stored
from recollect.rollouts.cell_columns import Cells
from recollect.rollouts.entries import GroupEntry
from recollect.rollouts.group_columns import LATE_PLACES

Queue = OrderedDict[int, None]  # keys of groups, in the order in which they are claimed


@dataclass(slots=True)
class Claim:
    """Groups that a worker has claimed for a cell, and not annotated yet."""

    lease: Lease
    cell: str
    tasks: dict[int, str]  # the groups' keys, and their tasks


class CellQueues:
    """A queue of groups for each cell and task. Guarded by the table's lock."""

    def __init__(self, needs: Sequence[str]) -> None:
        self._needs = needs
        self._queues: dict[str, dict[str, Queue]] = {cell: {} for cell in needs}  # by task
        self._claims: dict[int, Claim] = {}
        self._claimed: dict[tuple[str, int], int] = {}  # (cell, key) -> claim
        self._claims_in: Counter[tuple[str, str]] = Counter()  # (cell, task) -> groups claimed
        self._deadlines: list[tuple[float, int]] = []
        # Below 0, so that no claim is taken for a lease of the table; and from a random number on,
        # so that a worker that outlives its buffer does not end a claim of somebody else on the
        # next one.
        self._next_id = -(secrets.randbits(20) << 32) - 1

    @property
    def in_use(self) -> bool:
        """Whether anybody ever asked for a cell: else no group is in any queue."""
        return bool(self._queues)

    @property
    def claimed(self) -> int:
        """Groups that are claimed now, once for each cell."""
        return len(self._claimed)

    # -- following the groups ---------------------------------------------------------------------
    def lacking(
        self,
        columns: Sequence[Stored],
        present: Sequence[Mask | None],
        arrays: Mapping[str, Cells],
    ) -> tuple[str, ...]:
        """The cells that somebody asks for and that a new group has not in every row."""
        if not self._queues:
            return ()
        lacks = []
        for cell in self._queues:
            place = LATE_PLACES.get(cell)
            cells, here = arrays.get(cell, (None, None))
            if place is not None:
                cells, here = columns[place], present[place]
            if cells is None or here is not None:
                lacks.append(cell)
        return tuple(lacks)

    def came(self, key: int, entry: GroupEntry, lacks: tuple[str, ...]) -> None:
        """A completed group was stored that lacks these cells."""
        entry.lacks = lacks
        for cell in lacks:
            self._queue(cell, entry.task)[key] = None

    def went(self, key: int, entry: GroupEntry) -> None:
        """A group has left, or is not completed any more: nobody works on it."""
        for cell in entry.lacks:
            self.filled(cell, key, entry.task)
        entry.lacks = ()

    def filled(self, cell: str, key: int, task: str) -> None:
        """A group does not wait for a cell any more."""
        self._queue(cell, task).pop(key, None)
        number = self._claimed.pop((cell, key), None)
        if number is not None:
            self._claims_in[cell, task] -= 1
            claim = self._claims[number]
            claim.tasks.pop(key, None)
            if not claim.tasks:
                del self._claims[number]

    def follows(self, cell: str) -> bool:
        """Whether it is known which groups lack a cell."""
        return cell in self._queues

    def follow(self, cell: str, lacking: Mapping[int, GroupEntry]) -> None:
        """Somebody asks for a cell that no group needs; these groups lack it, by arrival."""
        self._queues[cell] = {}
        for key, entry in lacking.items():
            entry.lacks = (*entry.lacks, cell)
            self._queue(cell, entry.task)[key] = None

    def missing_in(self, task: str) -> str:
        """What a message says of the completed groups of a task that are not ready; "" if none."""
        parts = []
        for cell in self._needs:
            # each is in the queue of every cell that it lacks, or is claimed for it
            count = len(self._queues[cell].get(task, ())) + self._claims_in.get((cell, task), 0)
            if count:
                parts.append(f"{count} that {'lacks' if count == 1 else 'lack'} {cell}")
        return f", and {', '.join(parts)}" if parts else ""

    def waiting(self, cell: str, task: str | None) -> Iterator[int]:
        """The groups that lack a cell and are not claimed, by arrival."""
        tasks = self._queues[cell]
        return heapq.merge(*(tasks.values() if task is None else [self._queue(cell, task)]))

    def _queue(self, cell: str, task: str) -> Queue:
        tasks = self._queues[cell]
        if task not in tasks:
            tasks[task] = OrderedDict()
        return tasks[task]

    # -- claims -----------------------------------------------------------------------------------
    def claim(self, cell: str, tasks: dict[int, str], deadline: float | None) -> Lease:
        """Groups, by key and with their tasks, leave the queue of a cell until the claim ends."""
        lease = Lease(self._next_id, "", deadline)
        self._next_id -= 1
        self._claims[lease.id] = Claim(lease, cell, tasks)
        for key, task in tasks.items():
            del self._queue(cell, task)[key]
            self._claimed[cell, key] = lease.id
            self._claims_in[cell, task] += 1
        self._expect(lease)
        return lease

    def has_claim(self, number: int) -> bool:
        """Whether a claim is there and has not ended."""
        return number in self._claims

    def renew(self, number: int, deadline: float | None) -> Lease:
        """A claim ends at another time."""
        claim = self._claims[number]
        claim.lease = claim.lease._replace(deadline=deadline)
        self._expect(claim.lease)
        return claim.lease

    def end(self, number: int) -> int:
        """A claim ends, and what it claimed is claimed next; returns how many groups."""
        claim = self._claims.pop(number)
        for key, task in sorted(claim.tasks.items(), reverse=True):
            del self._claimed[claim.cell, key]
            self._claims_in[claim.cell, task] -= 1
            queue = self._queue(claim.cell, task)
            queue[key] = None
            queue.move_to_end(key, last=False)
        return len(claim.tasks)

    def next_deadline(self) -> float:
        """When the next claim lapses at the earliest."""
        return self._deadlines[0][0] if self._deadlines else math.inf

    def lapsed(self, now: float) -> Iterator[int]:
        """The claims whose deadline has passed, each once; whoever asks ends them."""
        while self._deadlines and self._deadlines[0][0] <= now:
            _, number = heapq.heappop(self._deadlines)
            claim = self._claims.get(number)
            ends = math.inf if claim is None else claim.lease.deadline
            if ends is not None and ends <= now:
                yield number

    def _expect(self, lease: Lease) -> None:
        if lease.deadline is not None:
            heapq.heappush(self._deadlines, (lease.deadline, lease.id))
