"""Putting groups: the verb `put`, and the short way for groups of the common layout."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from recollect.base.arguments import whole
from recollect.data.ragged import Ragged
from recollect.data.schema import Rows
from recollect.errors import InvalidValue, shown
from recollect.rollouts.core import RolloutCore
from recollect.rollouts.encoding import Encoded, encode, rows_in
from recollect.rollouts.events import Event
from recollect.rollouts.expiry import expire_due, expire_overdue, verdict, without_stale
from recollect.rollouts.group import Group
from recollect.rollouts.group_columns import ARRAYS, ROWS, array_column, fitted
from recollect.rollouts.rollout import Status
from recollect.rollouts.short_put import CommonGroup
from recollect.rollouts.space import exceed, is_tight, make_room, unreserve
from recollect.rollouts.token_versions import stale_rows
from recollect.rules.selectors import StalestFirst
from recollect.storage.fields import check_weights
from recollect.table.changes import add_column
from recollect.table.checks import check_versions
from recollect.table.inserts import Insert
from recollect.table.runner import PlainVerb
from recollect.table.waiting import Blocked

STALEST_FIRST = StalestFirst()  # who leaves a full buffer
NO_FLAGS = (None,) * len(ROWS)
LARGEST_VERSION = (1 << 31) - 1


# -- the short way --------------------------------------------------------------------------------
def put_directly(core: RolloutCore, group: Group, version: int | None) -> int | None:
    """Put a group of the common layout where that is simple; None where `put` must do it.

    It is simple where nobody follows, nothing is stale or replaced, and there is room, or the
    stalest group leaves for it and nobody asks who left. Takes the lock.
    """
    table = core.table
    if core.capacity_bytes is not None or table.effects.followers or not isinstance(group, Group):
        return None
    if version is not None:
        version = whole("version", version, 0, LARGEST_VERSION)
    common = core.short_put.recognize(group, version, core.rules[group.task], core.tags)
    if common is None:
        return None
    if table.rules.ages:
        check_versions(common.fields, 1)
    if table.rules.weighed:
        check_weights(common.fields, table.rules.weighed)
    with table.transaction():
        table.enter()
        return _store_directly(core, common)


def _store_directly(core: RolloutCore, common: CommonGroup) -> int | None:
    table, entry, promised = core.table, common.entry, core.promised
    task = entry.task
    if (
        table.effects.followers
        or common.expires <= core.train_step
        or entry.group_id in core.by_id
        or (core.capacity is not None and not _make_room_directly(core, core.capacity, task))
    ):
        return None
    queues = core.queues
    lacks = queues.lacking(common.columns, NO_FLAGS, {}) if queues.in_use else ()
    common.fields["ready"] = not lacks or not any(need in lacks for need in core.needs)
    entry.put_at = table.clock.time()
    key = core.short_put.store(common, entry.put_at)
    if key is None:
        return None
    core.entries[key] = entry
    core.by_id[entry.group_id] = key
    core.index.stored(key, entry, common.ids)
    core.accounts[task].put += 1
    if lacks:
        queues.came(key, entry, lacks)
    table.came(1)
    if promised:
        unreserve(core, 1, task)
    return key


def _make_room_directly(core: RolloutCore, capacity: int, task: str) -> bool:
    """Whether there is room for a group, or the stalest one has just left for it."""
    storage, promised = core.table.storage, core.promised
    promises = sum(promised.values()) if promised else 0
    free = capacity - len(storage)
    if free <= promises:
        expire_overdue(core)
        free = capacity - len(storage)
    if free <= 0:
        if free < 0 or not _drops_simply(core):
            return False
        core.overflowed(core.short_put.evict(STALEST_FIRST))
        return True
    # unless all that is free is promised to others
    return promises - (task in promised) < free or core.overflow == "drop_stalest"


def _drops_simply(core: RolloutCore) -> bool:
    """Whether a full buffer makes room by letting its stalest group go, and no more."""
    storage = core.storage
    return (
        core.overflow == "drop_stalest"
        and core.table.rules.remover is STALEST_FIRST
        and not storage.hidden
        and not core.events.wants("discarded")
        and not (
            core.short_put.ever_archived()
            and storage.available(core.where(None, Status.ARCHIVED, None))[0]
        )
    )


# -- every other group ----------------------------------------------------------------------------
def put(core: RolloutCore, group: Group, version: int | None) -> PlainVerb[int | None]:
    """Store a group; the verb returns its key, or None where it was discarded."""
    if not isinstance(group, Group):
        raise InvalidValue(
            f"put: expected an rc.Group, got {shown(group)}; rc.Group([...], task=...) makes "
            "one of rollouts, rc.Groups.from_dicts some of dicts"
        )
    if version is not None:
        version = whole("version", version, 0, LARGEST_VERSION)
    rule = core.rules[group.task]
    encoded = encode(group, version, rule, core.tags)
    if core.table.rules.ages and encoded.status is Status.COMPLETED:
        check_versions(encoded.fields, 1)
    if core.table.rules.weighed:
        check_weights(encoded.fields, core.table.rules.weighed)

    def attempt() -> int | Blocked | None:
        key: int | Blocked | None
        _check_not_leased(core, group)
        if is_tight(core):
            expire_due(core)  # what came back too old when its lease lapsed makes room
        if encoded.expires > core.train_step:
            key = _store(core, group, encoded)
        else:
            key = _store_stale(core, group, version, encoded)
        if core.promised and not isinstance(key, Blocked):
            unreserve(core, 1, group.task)
        return key

    return PlainVerb("put", attempt, core.table.gate.departures)


def _check_not_leased(core: RolloutCore, group: Group) -> None:
    stored = core.by_id.get(group.group_id)
    if stored is None:
        return
    if not core.storage.find(np.array([stored], np.uint64), None, visible=True).size:
        raise InvalidValue(
            f"group {group.group_id!r} is leased and cannot be replaced; confirm the lease or "
            "give it back first"
        )


def _store_stale(
    core: RolloutCore, group: Group, version: int | None, encoded: Encoded
) -> int | Blocked | None:
    """A group is too old when it comes: store what its retry needs, or discard it."""
    rule, account = core.rules[group.task], core.accounts[group.task]
    stale = stale_rows(encoded.columns, rule, core.train_step)
    attempt = max(r.attempt for r, old in zip(group, stale, strict=True) if old)
    reason = verdict(rule, attempt)
    key: int | Blocked | None = None
    if reason is not None:
        core.refuse(group, reason)
    else:
        fresh = encode(without_stale(group, stale), version, rule, core.tags)
        key = _store(core, group, fresh)
        if key is None or isinstance(key, Blocked):  # there is no room, and nothing changed
            return key
        account.retried += 1
        if core.events.wants("retried"):
            event = Event("retried", "expired", key, group.task, group.group_id, [group], 0)
            core.events.tell("retried", [event])
    if not any(rollout.status is Status.EXPIRED for rollout in group):
        core.accounts.expired(group.task, 1)
    return key


def _store(core: RolloutCore, group: Group, encoded: Encoded) -> int | Blocked | None:
    table, task = core.table, group.task
    replaced = core.by_id.get(group.group_id)
    if encoded.arrays:
        _fit_arrays(core, encoded)
    rows = rows_in(encoded, core.column_names())
    if core.capacity is not None or core.capacity_bytes is not None:
        full = make_room(core, group, encoded, rows, replaced)
        if full is not None:
            return full if isinstance(full, Blocked) else None
    if _add_columns(core, encoded):  # only now: what waits or is refused leaves no column
        rows = rows_in(encoded, core.column_names())
    if replaced is not None:
        core.remove(np.array([replaced], np.uint64), "replaced")
    lacks = core.queues.lacking(encoded.columns, encoded.present, encoded.arrays)
    encoded.fields["ready"] = not any(need in lacks for need in core.needs)
    key = _insert(core, encoded, rows)
    entry = encoded.entry
    entry.put_at = table.clock.time()
    core.entries[key] = entry
    core.by_id[group.group_id] = key
    entry.trained = (
        encoded.status is Status.ARCHIVED
    )  # in another buffer: it is kept to be looked at
    core.ever_archived = core.ever_archived or entry.trained
    core.index.stored(key, entry, encoded.ids)
    if encoded.blobs:
        if core.recorder is not None:
            new = {n: blob for n, blob in encoded.blobs.items() if n not in core.blobs}
            core.recorder.blobs(new)
        core.blobs.add(encoded.blobs)
    core.accounts[task].put += 1
    if encoded.status is Status.COMPLETED:
        core.queues.came(key, entry, lacks)
    elif entry.trained:
        core.accounts[task].left["archived"] += 1
    return key


def _insert(core: RolloutCore, encoded: Encoded, rows: Rows) -> int:
    """Store what was encoded, for which there is room; returns its key."""
    table = core.table
    if core.capacity is not None and len(core.storage) >= core.capacity:
        exceed(core)
    inserted = Insert(
        rows, encoded.shared, _rows_per_item(encoded.count), 1, None, encoded.fields, 0.0, -1.0,
        {}, None, table.schemas.rows, table.schemas.shared, None, core=table,
    ).attempt()  # fmt: skip
    assert not isinstance(inserted, Blocked)
    return int(inserted[0])


@cache
def _rows_per_item(count: int) -> NDArray[np.int32]:
    """The array that says how many rows one group has; nobody changes it."""
    return np.array([count], np.int32)


def _fit_arrays(core: RolloutCore, encoded: Encoded) -> None:
    """What comes in another dtype of its column's kind is converted, or refused."""
    columns = core.columns
    for name, (cells, present) in encoded.arrays.items():
        assert isinstance(cells, Ragged)
        column = columns.get(ARRAYS + name) or array_column(cells)
        encoded.arrays[name] = (fitted(name, cells, column), present)


def _add_columns(core: RolloutCore, encoded: Encoded) -> bool:
    """Add the columns of arrays that have none yet; returns whether there were any."""
    columns = core.columns if encoded.arrays else {}
    new = [name for name in encoded.arrays if ARRAYS + name not in columns]
    for name in new:
        cells = encoded.arrays[name][0]
        assert isinstance(cells, Ragged)
        add_column(core.table, ARRAYS + name, array_column(cells))
    return bool(new)
