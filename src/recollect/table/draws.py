"""Samples and takes: when one may go ahead, and what it does under the lock."""

from __future__ import annotations

import math
from typing import Any

from recollect.base.arguments import flag, many, time_span, whole
from recollect.base.leases import Lease
from recollect.data.batch import Batch
from recollect.errors import NeverPossible
from recollect.rules.selectors import Mixed, Ordered, Selector, Uniform, different_items
from recollect.storage.base import Chosen, Dealer, Storage, Where
from recollect.table.checks import checked_owner
from recollect.table.core import TableCore
from recollect.table.lease_verbs import lease_out, return_lease
from recollect.table.runner import Verb
from recollect.table.waiting import Blocked


class Sample(Verb[Batch]):
    """Draws n items, which stay."""

    __slots__ = ("_core", "_n", "_replace", "_where", "timeout")

    def __init__(
        self, core: TableCore, n: Any, where: Any, replace: Any, timeout: float | None
    ) -> None:
        self._core, self._n = core, whole("n", n, 1)
        self._where = None if where is None else core.fields.where(where)
        self._replace = replace if replace is True else flag("replace", replace)
        self.timeout = None if timeout is None else time_span("timeout", timeout)

    def what(self) -> str:
        return f"sample({self._n})"

    def attempt(self) -> Chosen | Blocked:
        core, n, counts = self._core, self._n, self._core.counts
        blocked = _cannot_sample(core, n, self._where, self._replace)
        if blocked is not None:
            return blocked
        chosen = core.storage.sample(
            core.rules.sampler, n, self._where, self._replace, counts.sample_calls
        )
        counts.samples += n
        counts.sample_calls += 1
        if core.effects.journal is not None:
            core.effects.journal.sampled(chosen.keys)
        gone = chosen.worn
        if gone is not None:
            core.left(gone.count, "sampled", gone)
        core.gate.departures.changed(n)
        return chosen

    def changed(self, tried: Chosen) -> bool:
        return tried.worn is not None

    def finish(self, tried: Chosen) -> Batch:
        return tried.read()


def _cannot_sample(core: TableCore, n: int, where: Where | None, replace: bool) -> Blocked | None:
    """Why n items cannot be sampled now, None where they can; raises where they never can."""
    core.rules.limiter.check_sample(n)
    often = core.max_times_sampled
    sampler = core.rules.sampler
    distinct, deal = 1, None
    if not replace or isinstance(sampler, Ordered):
        distinct = n
    elif isinstance(sampler, Mixed):
        deal = _next_deal(core.storage, sampler, n)
        distinct = different_items(deal, often, 0)
    _check_size(core, distinct)
    if often and n > core.capacity * often:
        raise NeverPossible(
            f"{n} samples are never there: {many(core.capacity, 'item')} at most, each "
            f"sampled {many(often, 'time')} at most"
        )
    visible, sampled = core.storage.available(where, n)
    if deal is not None:
        distinct = different_items(deal, often, sampled)
    missing = distinct - visible
    if often:
        missing = max(missing, math.ceil((n - (visible * often - sampled)) / often))
    return _blocked(core, n, distinct, visible, missing, where)


class Take(Verb[Batch]):
    """Hands n items out in the sampler's order: removed, or leased for a time."""

    __slots__ = ("_core", "_n", "_owner", "_partial", "_span", "_where", "beside_others", "timeout")

    undoes = True

    def __init__(
        self,
        core: TableCore,
        n: Any,
        where: Any,
        timeout: float | None,
        lease: Any,
        partial: Any,
        owner: Any,
    ) -> None:
        self.timeout = None if timeout is None else time_span("timeout", timeout)
        self._core, self._n = core, whole("n", n, 1)
        self._where = None if where is None else core.fields.where(where)
        self._span = None if lease is None else time_span("lease", lease)
        self._partial, self._owner = flag("partial", partial), checked_owner(owner)
        rules = core.rules
        self.beside_others = isinstance(rules.sampler, Ordered) and rules.limiter.items_suffice()

    def what(self) -> str:
        return f"take({self._n})"

    def attempt(self) -> tuple[Chosen, Lease | None] | Blocked:
        core, where, count = self._core, self._where, self._n
        visible, _ = core.storage.available(where, count)
        if self._partial:
            allowed = core.rules.limiter.samples_allowed(core.counts)
            count = max(1, int(min(count, visible, allowed)))
        else:
            core.rules.limiter.check_sample(count)
            _check_size(core, count)
        blocked = _blocked(core, count, count, visible, count - visible, where)
        if blocked is not None:
            return blocked
        hide = self._span is not None
        chosen = core.storage.take(core.rules.sampler, count, where, hide=hide)
        core.counts.samples += count
        if self._span is None:
            core.left(count, "taken", chosen)
            return chosen, None
        return chosen, lease_out(core, chosen, self._owner, self._span)

    def finish(self, tried: tuple[Chosen, Lease | None]) -> Batch:
        chosen, lease = tried
        return chosen.read(lease=lease)

    def undo(self, tried: tuple[Chosen, Lease | None]) -> None:
        return_lease(self._core, tried[1])


def _check_size(core: TableCore, distinct: int) -> None:
    if distinct > core.capacity:
        raise NeverPossible(
            f"{distinct} different items are never there: the capacity of table "
            f"{core.name!r} is {core.capacity}"
        )


def _blocked(
    core: TableCore, n: int, distinct: int, visible: int, missing: int, where: Where | None
) -> Blocked | None:
    inserts = core.rules.limiter.inserts_needed(core.counts, n)
    if inserts <= 0 and missing <= 0:
        return None
    if inserts:
        core.rules.limiter.check_waiting_sample(core.counts, n, core.storage.hidden)
    meeting = "" if where is None else " that meet the query"
    needs = f"needs {many(distinct, 'item')}, has {visible}{meeting}"
    if missing > 0 and distinct <= visible:
        needs += f", of which {many(missing, 'more')} must be sampled less often"
    if inserts:
        needs += f"; limiter {core.rules.limiter} needs {many(inserts, 'more insert')}"
    return Blocked(needs, max(inserts, missing, 1))


def _next_deal(storage: Storage, mixture: Mixed, n: int) -> list[tuple[Selector, int]]:
    """How a storage will deal its next n draws; where it does not show it, the worst there is."""
    if isinstance(storage, Dealer):
        return storage.next_deal(mixture, n)
    orders = [part for part, share in mixture.selectors if share and isinstance(part, Ordered)]
    return [(orders[0] if orders else Uniform(), n)]
