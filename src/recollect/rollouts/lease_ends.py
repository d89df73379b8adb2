"""How leases end: what was leased is confirmed, given back or held for longer.

A claim is given back and renewed by the same calls as a lease.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from recollect.base.arguments import time_span, whole
from recollect.base.arrays import Keys
from recollect.base.leases import Lease
from recollect.rollouts import claims
from recollect.rollouts.core import RolloutCore
from recollect.rollouts.expiry import expire_due
from recollect.rollouts.rollout import Status
from recollect.storage.fields import ABSENT_INT
from recollect.table import lease_verbs
from recollect.table.checks import checked_owner
from recollect.table.effects import Archived
from recollect.table.runner import PlainVerb, Verb


def confirm(core: RolloutCore, lease: Any, train_step: int | None) -> Verb[int]:
    """Leased groups are trained: they leave, or are archived. A claim ends."""
    if train_step is not None:
        train_step = whole("train_step", train_step, 1)

    def attempt() -> int:
        if claims.holds(core, lease):
            return claims.give_back(core, lease)
        held = core.table.leases.end(lease)
        step = core.lease_steps.pop(held.lease.id, core.train_step)
        step = step if train_step is None else train_step
        if core.archive or core.keeps_trained:
            archive(core, held.keys, step, held.lease)
        else:
            core.unkept = max(core.unkept, step)
            core.remove(held.keys, "trained", hidden=True)
        return int(held.keys.size)

    return PlainVerb("confirm", attempt)


def give_back(core: RolloutCore, lease: Any) -> Verb[int]:
    """Bring leased groups back, or end a claim; some may be too old by now."""

    def attempt() -> int:
        if claims.holds(core, lease):
            return claims.give_back(core, lease)
        before = core.storage.hidden
        core.table.bring_back(lease, "given back")
        returned = before - core.storage.hidden
        expire_due(core)
        return returned

    return PlainVerb("give_back", attempt)


def renew(core: RolloutCore, lease: Any, seconds: Any) -> Verb[Lease]:
    """Hold a lease, or a claim, for so many seconds from now."""
    span = time_span("seconds", seconds)

    def attempt() -> Lease:
        if claims.holds(core, lease):
            return claims.renew(core, lease, span)
        return lease_verbs.renew(core.table, lease, span)

    return PlainVerb("renew", attempt)


def release(core: RolloutCore, owner: Any) -> Verb[int]:
    """Give back every lease of an owner."""
    whose = checked_owner(owner)

    def attempt() -> int:
        returned = lease_verbs.release(core.table, whose)
        expire_due(core)
        return returned

    return PlainVerb("release", attempt)


def archive(core: RolloutCore, keys: Keys, step: int, lease: Lease | None = None) -> None:
    """Under the lock: hidden groups are trained and stay; nobody takes, expires or claims them.

    Those that were trained before, and leased only to be looked at, stay as they are.
    """
    storage, table = core.storage, core.table
    core.ever_archived = True
    if lease is not None:
        table.effects.emit(Archived, keys, lease)
    before = np.array([entry.trained for entry in core.entries_of(keys)], np.bool_)
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
    core.set_fields(keys, fields)
    storage.show(keys, returned=False)
    table.gate.departures.changed(keys.size)  # what is archived makes room when needed
