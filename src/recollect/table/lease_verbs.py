"""Leases of a table: items are handed out for a time, confirmed, or brought back."""

from __future__ import annotations

import math
from contextlib import suppress

from recollect.base.clock import Clock
from recollect.base.leases import Lease, LeaseLike
from recollect.errors import LeaseExpired
from recollect.storage.base import Chosen
from recollect.table.core import TableCore
from recollect.table.effects import Leased


def until(clock: Clock, span: float) -> float | None:
    """The deadline of a lease of so many seconds, None for one without end."""
    return None if math.isinf(span) else clock.monotonic() + span


def lease_out(core: TableCore, chosen: Chosen, owner: str, span: float) -> Lease:
    """Under the lock: hidden items are leased from now on."""
    before = core.leases.next_deadline()
    lease = core.leases.add(chosen.keys, owner, until(core.clock, span))
    core.effects.emit(Leased, chosen.keys, lease)
    core.gate.departures.changed(chosen.count)
    if lease.deadline is not None:
        core.gate.due_at(lease.deadline, before)
    return lease


def renew(core: TableCore, lease: LeaseLike | int | None, span: float) -> Lease:
    """Under the lock: hold a lease for so many seconds from now."""
    before = core.leases.next_deadline()
    renewed = core.leases.renew(lease, until(core.clock, span))
    if renewed.deadline is not None:
        core.gate.due_at(renewed.deadline, before)
    return renewed


def confirm(core: TableCore, lease: LeaseLike | int | None) -> None:
    """Under the lock: leased items are done with, and leave."""
    held = core.leases.end(lease)
    done = core.storage.remove(held.keys, core.effects.readers)
    core.left(done.count, "confirmed", done)


def return_lease(core: TableCore, lease: Lease | None) -> None:
    """Under the lock: a call failed or was cancelled after it leased items: nobody has got them."""
    if lease is not None:
        with suppress(LeaseExpired):  # its deadline may have passed
            core.bring_back(lease, "given back")


def release(core: TableCore, owner: str) -> int:
    """Under the lock: give back every lease of an owner; returns how many."""
    leases = core.leases.of_owner(owner)
    for lease in leases:
        core.bring_back(lease, "given back")
    return len(leases)
