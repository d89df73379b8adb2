"""Samples and takes: when one may go ahead, and what it does under the table's lock."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from recollect.base.arguments import flag, many, time_span, whole
from recollect.data.info import Lease
from recollect.errors import InvalidValue, NeverPossible, shown
from recollect.rules.selectors import Mixed, Ordered, Selector, Uniform, different_items
from recollect.storage.base import Chosen, Dealer, Storage, Where
from recollect.table.waiting import Blocked

if TYPE_CHECKING:
    from recollect.table.table import Table


def check_sample(table: Table, n: Any, where: Any, replace: Any) -> tuple[int, Where | None, bool]:
    """What a sample was given, checked."""
    n = whole("n", n, 1)
    bound = None if where is None else table._where(where)
    return n, bound, replace if replace is True else flag("replace", replace)


def try_sample(
    table: Table, n: int, where: Where | None, replace: bool
) -> tuple[Chosen, int] | Blocked:
    """Sample now, or change nothing; returns the items and the number of the last effect."""
    blocked = _cannot_sample(table, n, where, replace)
    if blocked is not None:
        return blocked
    chosen = table._storage.sample(table._sampler, n, where, replace, table._sample_calls)
    table._counts.samples += n
    table._sample_calls += 1
    if table._effects.journal is not None:
        table._effects.journal.sampled(chosen.keys)
    gone = chosen.worn
    if gone is not None:
        table._left(gone.count, "sampled", gone)
    table._gate.departures.changed(n)
    table._effects.deliver()
    return chosen, table._effects.number


def _cannot_sample(table: Table, n: int, where: Where | None, replace: bool) -> Blocked | None:
    """Why n items cannot be sampled now, None where they can; raises where they never can."""
    table._limiter.check_sample(n)
    often = table.max_times_sampled
    sampler = table._sampler
    distinct, deal = 1, None
    if not replace or isinstance(sampler, Ordered):
        distinct = n
    elif isinstance(sampler, Mixed):
        deal = _next_deal(table._storage, sampler, n)
        distinct = different_items(deal, often, 0)
    _check_size(table, distinct)
    if often and n > table.capacity * often:
        raise NeverPossible(
            f"{n} samples are never there: {many(table.capacity, 'item')} at most, each "
            f"sampled {many(often, 'time')} at most"
        )
    visible, sampled = table._storage.available(where, n)
    if deal is not None:
        distinct = different_items(deal, often, sampled)
    missing = distinct - visible
    if often:
        missing = max(missing, math.ceil((n - (visible * often - sampled)) / often))
    return _blocked(table, n, distinct, visible, missing, where)


def taking(
    table: Table, n: Any, where: Any, lease: Any, partial: Any, owner: Any
) -> Callable[[], tuple[Chosen, Lease | None, int] | Blocked]:
    """Check what a take was given; returns what tries it, once or after every arrival."""
    n = whole("n", n, 1)
    bound = None if where is None else table._where(where)
    span = None if lease is None else time_span("lease", lease)
    partial = flag("partial", partial)
    if not isinstance(owner, str):
        raise InvalidValue(f"owner: expected text, got {shown(owner)}")

    def attempt() -> tuple[Chosen, Lease | None, int] | Blocked:
        visible, _ = table._storage.available(bound, n)
        count = n
        if partial:
            allowed = table._limiter.samples_allowed(table._counts)
            count = max(1, int(min(n, visible, allowed)))
        if not partial:
            table._limiter.check_sample(count)
            _check_size(table, count)
        blocked = _blocked(table, count, count, visible, count - visible, bound)
        if blocked is not None:
            return blocked
        chosen = table._storage.take(table._sampler, count, bound, hide=span is not None)
        table._counts.samples += count
        held = None
        if span is None:
            table._left(count, "taken", chosen)
        else:
            held = table._lease(chosen, owner, span)
        try:
            table._effects.deliver()
        except BaseException:  # a follower's: the caller gets that, and no lease
            table._return_lease(held)
            raise
        return chosen, held, table._effects.number

    return attempt


def _check_size(table: Table, distinct: int) -> None:
    if distinct > table.capacity:
        raise NeverPossible(
            f"{distinct} different items are never there: the capacity of table "
            f"{table.name!r} is {table.capacity}"
        )


def _blocked(
    table: Table, n: int, distinct: int, visible: int, missing: int, where: Where | None
) -> Blocked | None:
    inserts = table._limiter.inserts_needed(table._counts, n)
    if inserts <= 0 and missing <= 0:
        return None
    if inserts:
        table._limiter.check_waiting_sample(table._counts, n, table._storage.hidden)
    meeting = "" if where is None else " that meet the query"
    needs = f"needs {many(distinct, 'item')}, has {visible}{meeting}"
    if missing > 0 and distinct <= visible:
        needs += f", of which {many(missing, 'more')} must be sampled less often"
    if inserts:
        needs += f"; limiter {table._limiter} needs {many(inserts, 'more insert')}"
    return Blocked(needs, max(inserts, missing, 1))


def _next_deal(storage: Storage, mixture: Mixed, n: int) -> list[tuple[Selector, int]]:
    """How a storage will deal its next n draws; where it does not show it, the worst there is."""
    if isinstance(storage, Dealer):
        return storage.next_deal(mixture, n)
    orders = [part for part, share in mixture.selectors if share and isinstance(part, Ordered)]
    return [(orders[0] if orders else Uniform(), n)]
