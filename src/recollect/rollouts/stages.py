"""Stages and late cells: groups that lack a reward, or an array, are claimed and annotated.

A claim hides nothing: a group that lacks a needed cell is not ready, so no trainer sees it, and
it may still expire or be replaced. It only keeps two workers from the same work. An annotation
names the attempt, so what comes late never lands on another response.
"""

from __future__ import annotations

import heapq
import math
import secrets
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from recollect.base.arguments import text, time_span, whole
from recollect.base.leases import Lease
from recollect.data.schema import Stored
from recollect.errors import InvalidValue, LeaseExpired, WaitTimeout
from recollect.rollouts.annotations import NEVER_LATER, PLACES, Filling, fill
from recollect.rollouts.cell_columns import Cells
from recollect.rollouts.encoding import ARRAYS, Entry
from recollect.rollouts.groups import Groups
from recollect.rollouts.rollout import Status
from recollect.rollouts.takes import lease_span
from recollect.table.lease_verbs import until
from recollect.table.runner import PlainVerb, Verb
from recollect.table.waiting import Blocked

if TYPE_CHECKING:
    from recollect.rollouts.core import Core

Mask = NDArray[np.bool_]
Queue = OrderedDict[int, None]  # keys of groups, in the order in which they are claimed


def check_cell(what: str, cell: Any) -> None:
    """A cell that may come later."""
    text(what, cell)
    if cell in NEVER_LATER or "." in cell:
        raise InvalidValue(
            f"{what}: annotate never fills {cell!r}; expected reward, rewards, logprobs, "
            "loss_mask, or the name of an array"
        )


class Claim:
    """Groups that a worker has claimed for a cell, and not annotated yet."""

    __slots__ = ("cell", "keys", "lease")

    def __init__(self, lease: Lease, cell: str, keys: set[int]) -> None:
        self.lease = lease
        self.cell = cell
        self.keys = keys


class Stages:
    """Which groups lack which cells, and who works on them. Guarded by the table's lock."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._queues: dict[str, dict[str, Queue]] = {cell: {} for cell in core.needs}  # by task
        self._claims: dict[int, Claim] = {}
        self._claimed: dict[tuple[str, int], int] = {}  # (cell, key) -> claim
        self._claims_in: Counter[tuple[str, str]] = Counter()  # (cell, task) -> groups claimed
        self._deadlines: list[tuple[float, int]] = []
        # Below 0, so that none is taken for a lease, and from a random number on: a worker that
        # outlives the buffer does not settle a claim of somebody else on the next one.
        self._next_id = -(secrets.randbits(20) << 32) - 1
        # Rollout id -> key, made when a cell is first filled, and the ids of each group since then.
        self._rows_of: dict[str, int] | None = None
        self._ids: dict[int, list[str]] = {}
        self._older: dict[str, list[int]] = {}  # keys of others that have it, the newest last

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
            place = PLACES.get(cell)
            cells, here = arrays.get(cell, (None, None))
            if place is not None:
                cells, here = columns[place], present[place]
            if cells is None or here is not None:
                lacks.append(cell)
        return tuple(lacks)

    def came(self, key: int, entry: Entry, lacks: tuple[str, ...]) -> None:
        """A completed group was stored."""
        entry.lacks = lacks
        for cell in lacks:
            self._queue(cell, entry.task)[key] = None

    def stored(self, key: int, entry: Entry, ids: list[str]) -> None:
        """Any group was stored, with a rollout in each row."""
        if self._rows_of is not None and not entry.trained:
            self._ids[key] = ids
            for rollout_id in ids:
                other = self._rows_of.get(rollout_id, key)
                if other != key:
                    self._older.setdefault(rollout_id, []).append(other)
                self._rows_of[rollout_id] = key

    def went(self, key: int, entry: Entry) -> None:
        """A group has left, or is not completed any more: nobody works on it."""
        for cell in entry.lacks:
            self.settle(cell, key, entry.task)
        entry.lacks = ()

    def left(self, keys: Sequence[int], entries: Sequence[Entry]) -> None:
        """Groups have left; where nobody ever asked for a cell, nothing is known of them."""
        if self._queues or self._rows_of is not None:
            for key, entry in zip(keys, entries, strict=True):
                self.went(key, entry)
                self.forget(key)

    def forget(self, key: int) -> None:
        """The rollouts of a group are not there any more, or nobody fills their cells."""
        if self._rows_of is not None:
            for rollout_id in self._ids.pop(key, ()):
                if self._older and rollout_id in self._older:
                    self._uncover(rollout_id, key)
                elif self._rows_of.get(rollout_id) == key:
                    del self._rows_of[rollout_id]

    def _uncover(self, rollout_id: str, key: int) -> None:
        """One of several groups that have a rollout goes: the newest of the others is found."""
        assert self._rows_of is not None
        older = self._older[rollout_id]
        if self._rows_of[rollout_id] == key:
            self._rows_of[rollout_id] = older.pop()
        elif key in older:
            older.remove(key)
        if not older:
            del self._older[rollout_id]

    def rows_of(self) -> dict[str, int]:
        """The key of the group that has a rollout, by rollout id; made when first asked for."""
        if self._rows_of is None:
            core = self._core
            keys = [key for key, entry in core.entries.items() if not entry.trained]
            ids: list[str] = []
            starts = [0]
            if keys:  # read first: where that fails, the next call begins anew
                chosen = core.storage.get(np.array(keys, np.uint64), ["rollout_id"])
                batch = chosen.read(np.empty)
                ids = batch.columns["rollout_id"].to_list()  # type: ignore[union-attr]
                starts = batch.info.row_offsets.tolist()
            self._rows_of = {}
            for key, (first, last) in zip(keys, pairwise(starts), strict=True):
                self.stored(key, core.entries[key], ids[first:last])
        return self._rows_of

    def ids_of(self, key: int) -> list[str]:
        """The rollout in each row of a group that `rows_of` found."""
        return self._ids[key]

    def missing_in(self, task: str) -> str:
        """What a message says of the completed groups of a task that are not ready; "" if none."""
        parts = []
        for cell in self._core.needs:
            # each is in the queue of every cell that it lacks, or is claimed for it
            count = len(self._queues[cell].get(task, ())) + self._claims_in.get((cell, task), 0)
            if count:
                parts.append(f"{count} that {'lacks' if count == 1 else 'lack'} {cell}")
        return f", and {', '.join(parts)}" if parts else ""

    def _queue(self, cell: str, task: str) -> Queue:
        tasks = self._queues[cell]
        if task not in tasks:
            tasks[task] = OrderedDict()
        return tasks[task]

    def settle(self, cell: str, key: int, task: str) -> None:
        """A group does not wait for a cell any more."""
        self._queue(cell, task).pop(key, None)
        number = self._claimed.pop((cell, key), None)
        if number is not None:
            self._claims_in[cell, task] -= 1
            claim = self._claims[number]
            claim.keys.discard(key)
            if not claim.keys:
                del self._claims[number]

    # -- claims -----------------------------------------------------------------------------------
    async def claim(self, n: Any, lacks: Any, lease: Any, task: Any, timeout: Any) -> Groups:
        """Claim for a coroutine."""
        table = self._core.table
        span, deadline = self._checked(n, lacks, lease, task, timeout)
        while True:
            until = min(deadline, self._next_deadline())
            try:
                claimed = await table.run_async(self._claiming(n, lacks, span, task, until))
            except WaitTimeout:
                if table.clock.monotonic() >= deadline:
                    raise
                continue
            if claimed is not None:
                return claimed

    def claim_blocking(self, n: Any, lacks: Any, lease: Any, task: Any, timeout: Any) -> Groups:
        """Claim for a thread."""
        table = self._core.table
        span, deadline = self._checked(n, lacks, lease, task, timeout)
        while True:
            until = min(deadline, self._next_deadline())
            try:
                claimed = table.run(self._claiming(n, lacks, span, task, until))
            except WaitTimeout:
                if table.clock.monotonic() >= deadline:
                    raise
                continue
            if claimed is not None:
                return claimed

    def _checked(
        self, n: Any, lacks: Any, lease: Any, task: Any, timeout: Any
    ) -> tuple[float, float]:
        whole("n", n, -(1 << 62))
        check_cell("lacks", lacks)
        if task is not None:
            self._core.rules[text("task", task)]  # what no put may bring is not waited for
        span = lease_span(lease)
        if span is None:
            raise InvalidValue("lease: a claim has a lease: give seconds, or True for no deadline")
        waits = math.inf if timeout is None else time_span("timeout", timeout)
        return span, self._core.table.clock.monotonic() + waits

    def _left(self, until: float) -> float | None:
        if math.isinf(until):
            return None
        return max(0.0, until - self._core.table.clock.monotonic())

    def _next_deadline(self) -> float:
        with self._core.table.transaction():
            return self._deadlines[0][0] if self._deadlines else math.inf

    def _claiming(
        self, n: int, cell: str, span: float, task: str | None, until: float
    ) -> Verb[Groups | None]:
        """Claim until a time; None where another claim lapses before it."""
        core = self._core

        def attempt() -> Any:
            self._lapse()
            if cell not in self._queues:
                self._begin_to_follow(cell)
            keys = self._next(n, cell, task)
            if not keys and n > 0:
                if self._next_deadline() < until:
                    return None
                return Blocked(f"no group lacks {cell!r} now" + (f" in {task}" if task else ""))
            found = np.array(keys, np.uint64)
            blobs = core.blobs_of([core.entries[key] for key in keys])
            return (
                core.storage.get(found, None),
                core.train_step,
                blobs,
                self._add(cell, keys, span),
            )

        def finish(taken: Any) -> Groups | None:
            return None if taken is None else core.collated(*taken)

        def undo(taken: Any) -> None:
            if taken is not None and taken[3] is not None and taken[3].id in self._claims:
                self.give_back(taken[3])

        what = f"claim({n}, {cell!r})"
        return PlainVerb(what, attempt, timeout=self._left(until), finish=finish, undo=undo)

    def _next(self, n: int, cell: str, task: str | None) -> list[int]:
        """The first n groups that lack a cell and are not claimed, by arrival."""
        tasks = self._queues[cell]
        queues = list(tasks.values()) if task is None else [self._queue(cell, task)]
        waiting = heapq.merge(*queues)
        keys: list[int] = []
        while len(keys) < n:
            some = list(islice(waiting, n - len(keys)))
            if not some:
                break
            # what is leased waits for its turn until it is back
            visible = self._core.storage.find(np.array(some, np.uint64), None, visible=True)
            keys += np.sort(visible).tolist()
        for key in keys:
            del self._queue(cell, self._core.entries[key].task)[key]
        return keys

    def _add(self, cell: str, keys: list[int], span: float) -> Lease | None:
        if not keys:
            return None
        lease = Lease(self._next_id, "", until(self._core.table.clock, span))
        self._next_id -= 1
        self._claims[lease.id] = Claim(lease, cell, set(keys))
        for key in keys:
            self._claimed[cell, key] = lease.id
            self._claims_in[cell, self._core.entries[key].task] += 1
        self._expect(lease)
        return lease

    def _expect(self, lease: Lease) -> None:
        if lease.deadline is not None:
            heapq.heappush(self._deadlines, (lease.deadline, lease.id))
            self._core.table.gate.arrivals.wake_all()  # who waits must not sleep beyond it

    def _lapse(self) -> None:
        """Claims whose deadline has passed end."""
        now = self._core.table.clock.monotonic()
        while self._deadlines and self._deadlines[0][0] <= now:
            _, number = heapq.heappop(self._deadlines)
            claim = self._claims.get(number)
            ends = math.inf if claim is None else claim.lease.deadline
            if ends is not None and ends <= now:
                self.give_back(number)

    def holds(self, lease: Any) -> bool:
        """Whether this is a claim; one that has ended raises `LeaseExpired`."""
        number = lease.id if isinstance(lease, Lease) else lease
        if not isinstance(number, int) or isinstance(number, bool) or number >= 0:
            return False
        self._lapse()
        if number not in self._claims:
            raise LeaseExpired(
                f"claim {number} is not held: its deadline has passed, its groups were annotated, "
                "have left or were retried"
            )
        return True

    def give_back(self, lease: Any) -> int:
        """A claim ends; what it claimed is claimed next."""
        claim = self._claims.pop(lease.id if isinstance(lease, Lease) else lease)
        for key in sorted(claim.keys, reverse=True):
            task = self._core.entries[key].task
            del self._claimed[claim.cell, key]
            self._claims_in[claim.cell, task] -= 1
            queue = self._queue(claim.cell, task)
            queue[key] = None
            queue.move_to_end(key, last=False)
        self._core.table.gate.arrivals.changed(len(claim.keys))
        return len(claim.keys)

    def renew(self, lease: Any, deadline: float | None) -> Lease:
        claim = self._claims[lease.id if isinstance(lease, Lease) else lease]
        claim.lease = claim.lease._replace(deadline=deadline)
        self._expect(claim.lease)
        return claim.lease

    def _begin_to_follow(self, cell: str) -> None:
        """Somebody asks for a cell that no group needs: find out once which groups lack it."""
        core = self._core
        self._queues[cell] = {}
        completed = core.where(None, Status.COMPLETED, None)
        keys = np.sort(core.storage.find(None, completed, visible=False))
        name = cell if cell in PLACES else ARRAYS + cell
        here = np.zeros(keys.size, np.bool_)
        if keys.size and name in core.columns:
            batch = core.storage.get(keys, [name]).read(np.empty)
            here = np.logical_and.reduceat(batch.present[name], batch.info.row_offsets[:-1])
        for key in keys[~here].tolist():
            entry = core.entries[key]
            entry.lacks = (*entry.lacks, cell)
            self._queue(cell, entry.task)[key] = None

    # -- annotations ------------------------------------------------------------------------------
    def annotate(
        self, rollout_ids: Any, attempt: Any, reward: Any, rewards: Any, arrays: Any
    ) -> Verb[Mask]:
        core = self._core
        filling = Filling(rollout_ids, attempt, reward, rewards, arrays)

        def tried() -> Mask | Blocked:
            return fill(core, filling)

        return PlainVerb("annotate", tried, core.table.gate.departures)
