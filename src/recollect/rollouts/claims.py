"""Claims: workers claim groups that lack a reward, or an array, and annotate them.

A claim hides nothing: a group that lacks a needed cell is not ready, so no trainer sees it, and
it may still expire or be replaced. It only keeps two workers from the same work.
"""

from __future__ import annotations

import math
from itertools import islice
from typing import Any

import numpy as np

from recollect.base.arguments import text, time_span, whole
from recollect.base.leases import Lease
from recollect.errors import InvalidValue, LeaseExpired, WaitTimeout
from recollect.rollouts.core import ChosenGroups, RolloutCore
from recollect.rollouts.group_columns import check_cell, column_of
from recollect.rollouts.groups import Groups
from recollect.rollouts.rollout import Status
from recollect.rollouts.values import lease_span
from recollect.table.lease_verbs import until
from recollect.table.runner import PlainVerb, Verb
from recollect.table.waiting import Blocked


# -- claiming: these take the lock ----------------------------------------------------------------
async def claim(
    core: RolloutCore, n: Any, lacks: Any, lease: Any, task: Any, timeout: Any
) -> Groups:
    """Claim for a coroutine."""
    span, deadline = _checked(core, n, lacks, lease, task, timeout)
    while True:
        try:
            claimed = await core.table.run_async(_try(core, n, lacks, span, task, deadline))
        except WaitTimeout:
            if core.table.clock.monotonic() >= deadline:
                raise
            continue
        if claimed is not None:
            return claimed


def claim_blocking(
    core: RolloutCore, n: Any, lacks: Any, lease: Any, task: Any, timeout: Any
) -> Groups:
    """Claim for a thread."""
    span, deadline = _checked(core, n, lacks, lease, task, timeout)
    while True:
        try:
            claimed = core.table.run(_try(core, n, lacks, span, task, deadline))
        except WaitTimeout:
            if core.table.clock.monotonic() >= deadline:
                raise
            continue
        if claimed is not None:
            return claimed


def _checked(
    core: RolloutCore, n: Any, lacks: Any, lease: Any, task: Any, timeout: Any
) -> tuple[float, float]:
    """The seconds of a claim, and until when to wait for it."""
    whole("n", n, -(1 << 62))
    check_cell("lacks", lacks)
    if task is not None:
        core.rules[text("task", task)]  # raises for a task that no put may bring
    span = lease_span(lease)
    if span is None:
        raise InvalidValue("lease: a claim has a lease: give seconds, or True for no deadline")
    waits = math.inf if timeout is None else time_span("timeout", timeout)
    return span, core.table.clock.monotonic() + waits


def _try(
    core: RolloutCore, n: int, cell: str, span: float, task: str | None, deadline: float
) -> Verb[Groups | None]:
    """Wait and claim until a deadline, or until another claim lapses.

    The verb returns None in the second case, and whoever asked tries again.
    """
    table = core.table
    with table.transaction():
        ends = min(deadline, core.queues.next_deadline())

    def attempt() -> ChosenGroups | Blocked | None:
        lapse(core)
        if not core.queues.follows(cell):
            _follow(core, cell)
        keys = _next(core, n, cell, task)
        if not keys and n > 0:
            if core.queues.next_deadline() < ends:
                return None
            return Blocked(f"no group lacks {cell!r} now" + (f" in {task}" if task else ""))
        chosen = core.choose(np.array(keys, np.uint64))
        if not keys:
            return chosen
        tasks = {key: core.entries[key].task for key in keys}
        lease = core.queues.claim(cell, tasks, until(table.clock, span))
        return chosen._replace(lease=_announced(core, lease))

    def finish(claimed: ChosenGroups | None) -> Groups | None:
        return None if claimed is None else core.collated(claimed)

    def undo(claimed: ChosenGroups | None) -> None:
        lease = None if claimed is None else claimed.lease
        if lease is not None and core.queues.has_claim(lease.id):
            give_back(core, lease)

    waits = None if math.isinf(ends) else max(0.0, ends - table.clock.monotonic())
    return PlainVerb(f"claim({n}, {cell!r})", attempt, timeout=waits, finish=finish, undo=undo)


def _next(core: RolloutCore, n: int, cell: str, task: str | None) -> list[int]:
    """The first n groups that lack a cell and are not claimed, by arrival."""
    waiting = core.queues.waiting(cell, task)
    keys: list[int] = []
    while len(keys) < n:
        some = list(islice(waiting, n - len(keys)))
        if not some:
            break
        # leased groups keep their place in the queue
        visible = core.storage.find(np.array(some, np.uint64), None, visible=True)
        keys += np.sort(visible).tolist()
    return keys


def _follow(core: RolloutCore, cell: str) -> None:
    """Somebody asks for a cell that no group needs: find out once which groups lack it."""
    completed = core.where(None, Status.COMPLETED, None)
    keys = np.sort(core.storage.find(None, completed, visible=False))
    name = column_of(cell)
    here = np.zeros(keys.size, np.bool_)
    if keys.size and name in core.columns:
        batch = core.storage.get(keys, [name]).read(np.empty)
        here = np.logical_and.reduceat(batch.present[name], batch.info.row_offsets[:-1])
    core.queues.follow(cell, {key: core.entries[key] for key in keys[~here].tolist()})


def _announced(core: RolloutCore, lease: Lease) -> Lease:
    """Wake those who wait for a claim: they must not sleep beyond the deadline of this one."""
    if lease.deadline is not None:
        core.table.gate.arrivals.wake_all()
    return lease


# -- held claims: these expect the lock -----------------------------------------------------------
def lapse(core: RolloutCore) -> None:
    """Claims whose deadline has passed end."""
    for number in core.queues.lapsed(core.table.clock.monotonic()):
        give_back(core, number)


def holds(core: RolloutCore, lease: Any) -> bool:
    """Whether this is a claim; one that has ended raises `LeaseExpired`."""
    number = _number(lease)
    if not isinstance(number, int) or isinstance(number, bool) or number >= 0:
        return False
    lapse(core)
    if not core.queues.has_claim(number):
        raise LeaseExpired(
            f"claim {number} is not held: its deadline has passed, its groups were annotated, "
            "have left or were retried"
        )
    return True


def give_back(core: RolloutCore, lease: Any) -> int:
    """A claim ends; what it claimed is claimed next."""
    count = core.queues.end(_number(lease))
    core.table.gate.arrivals.changed(count)
    return count


def renew(core: RolloutCore, lease: Any, span: float) -> Lease:
    """Hold a claim for so many seconds from now."""
    return _announced(core, core.queues.renew(_number(lease), until(core.table.clock, span)))


def _number(lease: Any) -> Any:
    return lease.id if isinstance(lease, Lease) else lease
