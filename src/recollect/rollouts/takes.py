"""Handing groups out: take, take a batch, sample, and the leases that a batch may be under."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from recollect.base.arguments import keys_of, many, text, time_span, whole
from recollect.data.info import Lease
from recollect.errors import InvalidValue, NeverPossible, shown
from recollect.rollouts.encoding import tally
from recollect.rollouts.expiry import advance_to, expire_due
from recollect.rollouts.groups import Groups, TakenBatch
from recollect.rollouts.rollout import Status, as_status
from recollect.rollouts.verbs import Verb
from recollect.storage.base import Chosen, Where
from recollect.storage.fields import ABSENT_INT, check_priority, check_weights
from recollect.storage.memory.chosen import MemoryChosen
from recollect.table.checks import checked_field
from recollect.table.effects import Archived, Updated
from recollect.table.table import WhereLike, _selected
from recollect.table.waiting import Blocked

if TYPE_CHECKING:
    from recollect.rollouts.core import Core

Keys = NDArray[np.uint64]


class Taking:
    """The verbs that hand groups out and take them back."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._table = core.table

    # -- taking -----------------------------------------------------------------------------------
    def take(
        self, n: Any, task: str | None, status: Any, where: WhereLike, lease: Any, owner: str
    ) -> Verb[Groups]:
        core = self._core
        n = whole("n", n, -(1 << 62))
        span = lease_span(lease)
        if task is not None:
            text("task", task)
        bound = core.where(task, as_status(status), None, where)

        def attempt() -> Any:
            expire_due(core)
            count = min(n, core.storage.available(bound, max(n, 0))[0])
            return self._hand_out({task or "": (max(count, 0), bound)}, span, owner, None)

        return self._verb(attempt, None, f"take({n})", self._collate)

    def take_batch(
        self,
        sizes: Any,
        train_step: int | None,
        where: WhereLike,
        timeout: float | None,
        lease: Any,
        owner: str,
    ) -> Verb[TakenBatch]:
        core = self._core
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
                core.rules[task]  # a task that no put may bring is not waited for
            shares[task] = (size, core.where(task, Status.COMPLETED, True, where))

        def attempt() -> Any:
            advance_to(core, train_step)
            blocked = self._missing(shares)
            if blocked is not None:
                return blocked
            return self._hand_out(shares, span, owner, train_step)

        def finish(taken: Any) -> TakenBatch:
            return TakenBatch(self._collate(taken), wanted)

        return self._verb(attempt, timeout, "take_batch", finish)

    def _missing(self, shares: Mapping[str, tuple[int, Where | None]]) -> Blocked | None:
        """Why a batch cannot be taken now; each missing group needs an arrival of its own."""
        core, missing, needs = self._core, 0, []
        for task, (size, where) in shares.items():
            here = core.storage.available(where, size)[0] if size else 0
            if here < size:
                missing += size - here
                lacking = core.stages.missing_in(task)
                failed = core.storage.available(core.where(task, Status.FAILED, None))[0]
                spoilt = f" and {failed} FAILED" if failed else ""
                needs.append(
                    f"{task} needs {many(size, 'group')}, has {here} ready{spoilt}{lacking}"
                )
        return Blocked("; ".join(needs), missing) if needs else None

    def _hand_out(
        self,
        shares: Mapping[str, tuple[int, Where | None]],
        span: float | None,
        owner: str,
        train_step: int | None,
    ) -> tuple[Chosen, int, dict[str, bytes], Lease | None]:
        """Choose all shares, and lease or remove them."""
        core, table = self._core, self._table
        told = bool(table._effects.followers) or core.events.wants("taken")
        hide = span is not None or told  # who is told holds only what it reads: see `remove`
        chosen = self._choose(shares, hide=hide)
        if isinstance(chosen, MemoryChosen):
            chosen.begin()  # tokens are copied while groups are counted
        keys = chosen.keys.tolist()
        entries = list(map(core.entries.__getitem__ if hide else core.entries.pop, keys))
        blobs = core.blobs_of(entries)
        table._counts.samples += len(keys)
        counts = tally(entries)
        for task, count in counts.items():
            core.accounts.took(task, count)
        step = core.train_step if train_step is None else train_step
        held = None
        if span is not None and keys:
            held = table._lease(chosen, owner, span)
            core.steps_of[held.id] = step
        elif keys and told:
            core.remove(chosen.keys, "taken", hidden=True)
        elif keys:
            core.forget(chosen, "taken", keys, entries, counts)
        return chosen, step, blobs, held

    def _choose(self, shares: Mapping[str, tuple[int, Where | None]], *, hide: bool) -> Chosen:
        """The groups of all shares, task after task, hidden or removed."""
        storage, sampler = self._core.storage, self._table._sampler
        wanted = [share for share in shares.values() if share[0]]
        if len(wanted) == 1:
            return storage.take(sampler, wanted[0][0], wanted[0][1], hide=hide)
        parts = [storage.take(sampler, n, where, hide=True).keys for n, where in wanted]
        keys = np.concatenate(parts) if parts else np.zeros(0, np.uint64)
        chosen = storage.get(keys, None)
        if not hide and keys.size:
            storage.remove(keys, keep=False)
        return chosen

    def _collate(self, taken: tuple[Chosen, int, dict[str, bytes], Lease | None]) -> Groups:
        chosen, step, blobs, held = taken
        return self._core.collated(chosen, step, blobs, held)

    def _verb(self, attempt: Any, timeout: float | None, what: str, finish: Any) -> Verb[Any]:
        return Verb(attempt, self._table._gate.arrivals, timeout, what, finish, self._undo)

    def _undo(self, taken: tuple[Chosen, int, dict[str, bytes], Lease | None]) -> None:
        self._table._return_lease(taken[3])

    # -- sampling ---------------------------------------------------------------------------------
    def sample(
        self,
        n: Any,
        task: str | None,
        where: WhereLike,
        train_step: int | None,
        timeout: float | None,
    ) -> Verb[Groups]:
        core, table = self._core, self._table
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
            core.rules[text("task", task)]  # what no put may bring is not waited for
        bound = core.where(task, Status.COMPLETED, True, where)

        def attempt() -> Any:
            advance_to(core, train_step)
            step = core.train_step if train_step is None else train_step
            if n <= 0:
                return core.storage.get(np.zeros(0, np.uint64), None), step, {}, None
            here = core.storage.available(bound, n)[0]
            if here < n:
                return Blocked(f"needs {many(n, 'group')}, has {here} ready", n - here)
            chosen = core.storage.sample(table._sampler, n, bound, False, table._sample_calls)
            if isinstance(chosen, MemoryChosen):
                chosen.begin()
            table._counts.samples += n
            table._sample_calls += 1
            if core.recorder is not None:
                core.recorder.sampled(chosen.keys)
            entries = [core.entries[key] for key in chosen.keys.tolist()]
            core.accounts.drew(entry.task for entry in entries)
            blobs = core.blobs_of(entries)
            if chosen.worn is not None:
                core.unkept = max(core.unkept, step)
                core.gone(chosen.worn, "trained")
            return chosen, step, blobs, None

        return self._verb(attempt, timeout, f"sample({n})", self._collate)

    def update(self, keys: Any, fields: dict[str, Any]) -> Verb[NDArray[np.bool_]]:
        core, table = self._core, self._table
        keys = keys_of(keys)
        allowed = ("priority", *core.tags)
        checked: dict[str, Any] = {}
        for name, value in fields.items():
            if name not in allowed:
                raise InvalidValue(f"update: {name!r} is not one of {', '.join(allowed)}")
            if name == "priority":
                checked[name] = check_priority(value, keys.size, table._alpha)
            else:
                checked[name] = checked_field(name, value, keys.size, table._tags)
        if not checked:
            raise InvalidValue(f"update: name a field to change: {', '.join(allowed)}")
        if table._weighed:
            check_weights(checked, table._weighed)

        def attempt() -> NDArray[np.bool_]:
            found = core.storage.update(keys, checked)
            if found.any():
                table._effects.emit(Updated, keys[found], _selected(checked, found))
            table._gate.arrivals.changed(keys.size)
            return found

        return Verb(attempt, table._gate.arrivals, None, "update")

    # -- leases -----------------------------------------------------------------------------------
    def confirm(self, lease: Any, train_step: int | None) -> Verb[int]:
        core, table = self._core, self._table
        if train_step is not None:
            train_step = whole("train_step", train_step, 1)

        def attempt() -> int:
            if core.stages.holds(lease):
                return core.stages.give_back(lease)
            held = table._leases.end(lease)
            step = core.steps_of.pop(held.lease.id, core.train_step)
            step = step if train_step is None else train_step
            if core.archive or core.keeping:
                archive(core, held.keys, step, held.lease)
            else:
                core.unkept = max(core.unkept, step)
                core.remove(held.keys, "trained", hidden=True)
            return int(held.keys.size)

        return Verb(attempt, table._gate.arrivals, None, "confirm")

    def give_back(self, lease: Any) -> Verb[int]:
        core, table = self._core, self._table

        def attempt() -> int:
            if core.stages.holds(lease):
                return core.stages.give_back(lease)
            before = core.storage.hidden
            table._bring_back(lease, "given back")
            returned = before - core.storage.hidden
            expire_due(core)
            return returned

        return Verb(attempt, table._gate.arrivals, None, "give_back")

    def renew(self, lease: Any, seconds: Any) -> Verb[Lease]:
        core, table = self._core, self._table
        span = time_span("seconds", seconds)

        def attempt() -> Lease:
            if core.stages.holds(lease):
                return core.stages.renew(lease, table._until(span))
            renewed = table._leases.renew(lease, table._until(span))
            table._gate.wake_all()
            return renewed

        return Verb(attempt, table._gate.arrivals, None, "renew")

    def release(self, owner: Any) -> Verb[int]:
        core, table = self._core, self._table
        if not isinstance(owner, str):
            raise InvalidValue(f"owner: expected text, got {shown(owner)}")

        def attempt() -> int:
            leases = table._leases.of_owner(owner)
            for lease in leases:
                table._bring_back(lease, "given back")
            expire_due(core)
            return len(leases)

        return Verb(attempt, table._gate.arrivals, None, "release")

    def trained_at(self, train_step: int) -> Verb[Groups]:
        core = self._core
        step = whole("train_step", train_step, 1)
        if not core.archive:
            raise InvalidValue("trained_at: groups stay after training only with archive=True")
        bound = core.where(None, Status.ARCHIVED, None, {"trained_at": step})

        def attempt() -> Any:
            keys = np.sort(core.storage.find(None, bound, visible=True))
            blobs = core.blobs_of([core.entries[key] for key in keys.tolist()])
            return core.storage.get(keys, None), core.train_step, blobs, None

        return self._verb(attempt, None, "trained_at", self._collate)

    def is_ready(self, sizes: Any, where: WhereLike) -> bool:
        core = self._core
        shares = {
            task: (size, core.where(task, Status.COMPLETED, True, where))
            for task, size in checked_sizes(sizes).items()
        }
        with self._table._transaction():
            core.enter()
            return self._missing(shares) is None


def archive(core: Core, keys: Keys, step: int, lease: Lease | None = None) -> None:
    """Hidden groups are trained and stay; nothing takes, expires or claims them any more.

    Those that were trained before, and that somebody looked at, stay as they are.
    """
    storage, table = core.storage, core.table
    core.archived = True
    if lease is not None:
        table._effects.emit(Archived, keys, lease)
    before = np.array([core.entries[key].trained for key in keys.tolist()], np.bool_)
    if before.any():
        storage.show(keys[before], returned=False)
        keys = keys[~before]
    if not keys.size:
        return
    core.leave_account(keys, "trained")
    fields = {
        "status": Status.ARCHIVED.value,
        "expires": np.full(keys.size, ABSENT_INT),
        "trained_at": np.full(keys.size, step, np.int64),
    }
    storage.update(keys, fields)
    storage.show(keys, returned=False)
    table._effects.emit(Updated, keys, fields)
    table._gate.departures.changed(keys.size)  # what is archived makes room when needed


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


def lease_span(lease: Any) -> float | None:
    """Seconds of a lease: True has no deadline, None and False are no lease."""
    if lease is True:
        return math.inf
    return None if lease is None or lease is False else time_span("lease", lease)
