"""Handing groups out: take, take a batch, sample.

Calls that return a `Verb` check what they are given and take no lock; the others expect it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np

from recollect.base.arguments import many, text, time_span, whole
from recollect.errors import InvalidValue, NeverPossible, shown
from recollect.rollouts.core import NO_KEYS, ChosenGroups, RolloutCore
from recollect.rollouts.entries import tally
from recollect.rollouts.expiry import advance_to, enter, expire_due
from recollect.rollouts.groups import Groups, TakenBatch
from recollect.rollouts.rollout import Status, as_status
from recollect.rollouts.values import lease_span
from recollect.storage.base import Chosen, Where
from recollect.storage.memory.chosen import MemoryChosen
from recollect.table.lease_verbs import lease_out, return_lease
from recollect.table.runner import PlainVerb, Verb
from recollect.table.table import WhereLike
from recollect.table.waiting import Blocked

Result = TypeVar("Result")
Shares = Mapping[str, tuple[int, Where | None]]  # by task, how many groups of which


# -- taking ---------------------------------------------------------------------------------------
def take(
    core: RolloutCore,
    n: Any,
    task: str | None,
    status: Any,
    where: WhereLike,
    lease: Any,
    owner: str,
) -> Verb[Groups]:
    """Hand out up to n groups of a status, without waiting."""
    n = whole("n", n, -(1 << 62))
    span = lease_span(lease)
    if task is not None:
        text("task", task)
    bound = core.where(task, as_status(status), None, where)

    def attempt() -> ChosenGroups:
        expire_due(core)
        count = min(n, core.storage.available(bound, max(n, 0))[0])
        return _hand_out(core, {task or "": (max(count, 0), bound)}, span, owner, None)

    return _verb(core, f"take({n})", attempt, core.collated)


def take_batch(
    core: RolloutCore,
    sizes: Any,
    train_step: int | None,
    where: WhereLike,
    timeout: float | None,
    lease: Any,
    owner: str,
) -> Verb[TakenBatch]:
    """Hand out as many groups of each task as are wanted, all of them at once."""
    wanted = checked_sizes(sizes)
    span = lease_span(lease)
    if timeout is not None:
        timeout = time_span("timeout", timeout)
    if train_step is not None:
        train_step = whole("train_step", train_step, 1)
    total = sum(wanted.values())
    if core.capacity is not None and total > core.capacity:
        raise NeverPossible(
            f"take_batch: {many(total, 'group')} are never there: the capacity is "
            f"{core.capacity}; ask for fewer, or make the buffer larger"
        )
    shares = {}
    for task, size in wanted.items():
        if size:
            core.rules[task]  # raises for a task that no put may bring
        shares[task] = (size, core.where(task, Status.COMPLETED, True, where))

    def attempt() -> ChosenGroups | Blocked:
        advance_to(core, train_step)
        return take_shares(core, shares, span, owner, train_step)

    def finish(groups: ChosenGroups) -> TakenBatch:
        return TakenBatch(core.collated(groups), wanted)

    return _verb(core, "take_batch", attempt, finish, timeout)


def take_shares(
    core: RolloutCore, shares: Shares, span: float | None, owner: str, train_step: int | None
) -> ChosenGroups | Blocked:
    """Hand out all shares, or none, and say what is missing."""
    blocked = _missing(core, shares)
    return _hand_out(core, shares, span, owner, train_step) if blocked is None else blocked


def _missing(core: RolloutCore, shares: Shares) -> Blocked | None:
    """Why a batch cannot be taken now; each missing group needs an arrival of its own."""
    absent, needs = 0, []
    for task, (size, where) in shares.items():
        here = core.storage.available(where, size)[0] if size else 0
        if here < size:
            absent += size - here
            lacking = core.queues.missing_in(task)
            failed = core.storage.available(core.where(task, Status.FAILED, None))[0]
            failures = f" and {failed} FAILED" if failed else ""
            needs.append(f"{task} needs {many(size, 'group')}, has {here} ready{failures}{lacking}")
    return Blocked("; ".join(needs), absent) if needs else None


def _hand_out(
    core: RolloutCore, shares: Shares, span: float | None, owner: str, train_step: int | None
) -> ChosenGroups:
    """Choose all shares, and lease or remove them."""
    table = core.table
    followed = bool(table.effects.followers) or core.events.wants("taken")
    hide = span is not None or followed  # `remove` then keeps only what is read
    chosen = _choose(core, shares, hide=hide)
    if isinstance(chosen, MemoryChosen):
        chosen.begin()  # tokens are copied while groups are counted
    keys = chosen.keys.tolist()
    entries = list(map(core.entries.__getitem__ if hide else core.entries.pop, keys))
    blobs = core.blobs_of(entries)
    table.counts.samples += len(keys)
    counts = tally(entries)
    for task, count in counts.items():
        core.accounts.took(task, count)
    step = core.train_step if train_step is None else train_step
    lease = None
    if span is not None and keys:
        lease = lease_out(table, chosen, owner, span)
        core.lease_steps[lease.id] = step
    elif keys and followed:
        core.remove(chosen.keys, "taken", hidden=True)
    elif keys:
        core.forget(chosen, "taken", keys, entries, counts)
    return ChosenGroups(chosen, step, blobs, lease)


def _choose(core: RolloutCore, shares: Shares, *, hide: bool) -> Chosen:
    """The groups of all shares, task after task, hidden or removed."""
    storage, sampler = core.storage, core.table.rules.sampler
    wanted = [share for share in shares.values() if share[0]]
    if len(wanted) == 1:
        return storage.take(sampler, wanted[0][0], wanted[0][1], hide=hide)
    parts = [storage.take(sampler, n, where, hide=True).keys for n, where in wanted]
    keys = np.concatenate(parts) if parts else NO_KEYS
    chosen = storage.get(keys, None)
    if not hide and keys.size:
        storage.remove(keys, keep=False)
    return chosen


def _verb(
    core: RolloutCore,
    what: str,
    attempt: Callable[[], ChosenGroups | Blocked],
    finish: Callable[[ChosenGroups], Result],
    timeout: float | None = None,
) -> Verb[Result]:
    """A verb that hands groups out; those that nobody got are given back."""

    def undo(groups: ChosenGroups) -> None:
        return_lease(core.table, groups.lease)

    return PlainVerb(what, attempt, timeout=timeout, finish=finish, undo=undo)


# -- sampling -------------------------------------------------------------------------------------
def sample(
    core: RolloutCore,
    n: Any,
    task: str | None,
    where: WhereLike,
    train_step: int | None,
    timeout: float | None,
) -> Verb[Groups]:
    """Draw n different groups, which stay until they were drawn often enough."""
    table = core.table
    n = whole("n", n, -(1 << 62))
    if timeout is not None:
        timeout = time_span("timeout", timeout)
    if train_step is not None:
        train_step = whole("train_step", train_step, 1)
    if core.capacity is not None and n > core.capacity:
        raise NeverPossible(
            f"sample: {n} different groups are never there: the capacity is {core.capacity}; "
            "ask for fewer, or make the buffer larger"
        )
    if task is not None:
        core.rules[text("task", task)]  # raises for a task that no put may bring
    bound = core.where(task, Status.COMPLETED, True, where)

    def attempt() -> ChosenGroups | Blocked:
        advance_to(core, train_step)
        step = core.train_step if train_step is None else train_step
        if n <= 0:
            return core.choose(NO_KEYS, step)
        here = core.storage.available(bound, n)[0]
        if here < n:
            return Blocked(f"needs {many(n, 'group')}, has {here} ready", n - here)
        chosen = core.storage.sample(
            table.rules.sampler, n, bound, False, table.counts.sample_calls
        )
        if isinstance(chosen, MemoryChosen):
            chosen.begin()
        table.counts.samples += n
        table.counts.sample_calls += 1
        if core.recorder is not None:
            core.recorder.sampled(chosen.keys)
        entries = core.entries_of(chosen.keys)
        core.accounts.drew(entry.task for entry in entries)
        blobs = core.blobs_of(entries)
        if chosen.worn is not None:
            core.unkept = max(core.unkept, step)
            core.gone(chosen.worn, "trained")
        return ChosenGroups(chosen, step, blobs)

    return _verb(core, f"sample({n})", attempt, core.collated, timeout)


def trained_at(core: RolloutCore, train_step: int) -> Verb[Groups]:
    """The archived groups that a train step trained on."""
    step = whole("train_step", train_step, 1)
    if not core.archive:
        raise InvalidValue("trained_at: groups stay after training only with archive=True")
    bound = core.where(None, Status.ARCHIVED, None, {"trained_at": step})

    def attempt() -> ChosenGroups:
        return core.choose(np.sort(core.storage.find(None, bound, visible=True)))

    return _verb(core, "trained_at", attempt, core.collated)


def is_ready(core: RolloutCore, sizes: Any, where: WhereLike) -> bool:
    """Whether `take_batch` of these sizes would go ahead now. Takes the lock."""
    shares = {
        task: (size, core.where(task, Status.COMPLETED, True, where))
        for task, size in checked_sizes(sizes).items()
    }
    with core.table.transaction():
        enter(core)
        return _missing(core, shares) is None


def checked_sizes(sizes: Any) -> dict[str, int]:
    """How many groups of each task; 0 or fewer is none."""
    if not isinstance(sizes, Mapping):
        raise InvalidValue(
            f'sizes: expected tasks and numbers, such as {{"math": 8}}, got {shown(sizes)}'
        )
    for task in sizes:
        if not isinstance(task, str) or not task:
            raise InvalidValue(f"sizes: a task is text, got {shown(task)}")
    return {task: max(0, whole(f"sizes[{task!r}]", n, -(1 << 62))) for task, n in sizes.items()}
