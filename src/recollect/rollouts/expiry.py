"""Expiry: what happens to groups at a train step for which they are too old.

Each group has one number, the step at which its first rollout expires. `expire_due` asks the
storage for the groups that have reached theirs, through an order by that number, and then
works on the columns of just those: it clears the rows of stale rollouts, or lets groups leave.
Everything here expects the lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from itertools import pairwise
from typing import Any

import numpy as np

from recollect.base.arguments import whole
from recollect.base.arrays import Ints, Keys, Mask
from recollect.data.batch import Batch
from recollect.data.ragged import Ragged, offsets_of
from recollect.data.schema import Rows, Stored, row_payload
from recollect.rollouts.core import RolloutCore
from recollect.rollouts.encoding import encode, rows_in
from recollect.rollouts.events import PastGroups, events_of
from recollect.rollouts.group import Group
from recollect.rollouts.group_columns import ARRAYS, as_rows
from recollect.rollouts.groups import finished
from recollect.rollouts.rollout import CODES, STATUSES, Status, group_status
from recollect.rollouts.staleness import NEVER, NONE, Staleness
from recollect.rollouts.token_versions import group_expiry, row_expiry, stale_rows
from recollect.storage.fields import ABSENT_INT
from recollect.table.runner import PlainVerb, Verb

EXPIRED = CODES[Status.EXPIRED]
CLEARED = (
    "logprobs", "loss_mask", "versions", "reward", "finish_reason", "error", "rewards", "turns",
)  # fmt: skip


def advance(core: RolloutCore, train_step: Any) -> Verb[dict[str, int]]:
    """The trainer goes on: what is too old for the step expires."""
    step = whole("train_step", train_step, 1)

    def attempt() -> dict[str, int]:
        return advance_to(core, step)

    return PlainVerb("advance", attempt)


def advance_to(core: RolloutCore, step: int | None) -> dict[str, int]:
    """Expire what is due at a step. One that is ahead is the new train step, and may show that a
    task starves."""
    if step is None or step <= core.train_step:
        return expire_due(core)
    core.train_step = step
    expired = expire_due(core)
    core.accounts.judge(core.accounts.tasks())
    return expired


def expire_due(core: RolloutCore) -> dict[str, int]:
    """Expire what is due; returns how many groups newly expired, by task."""
    keys = core.storage.hide_up_to("expires", core.train_step)
    return _expire(core, keys) if keys.size else {}


def expire_overdue(core: RolloutCore) -> None:
    """The same, where something may have come due: a lease ended, or the step is another one."""
    if not core.nothing_due:
        expire_due(core)
        core.nothing_due = True


def enter(core: RolloutCore) -> None:
    """What every call that counts or takes does first: what came back too old expires."""
    core.table.enter()
    expire_due(core)


def verdict(rule: Staleness, attempt: int) -> str | None:
    """Why a group with a stale rollout leaves, None where it is retried."""
    if rule.on_expire == "discard":
        return "expired"
    if rule.max_retries is not None and attempt >= rule.max_retries:
        return "retries"
    return None


def judge_again(
    core: RolloutCore, keys: Keys, tasks: Sequence[str], columns: Sequence[Stored], starts: Ints
) -> None:
    """The loss masks of stored groups changed, and so may the steps at which they expire."""
    expires = group_expiry(columns, starts, tasks, core.rules)[1]
    fields = {"expires": np.where(expires < NEVER, expires, ABSENT_INT)}
    core.set_fields(keys, fields)
    expire_due(core)


class _Due:
    """The groups that are due, as columns: what is stale in them, and what becomes of the rest."""

    def __init__(self, core: RolloutCore, batch: Batch) -> None:
        info = batch.info
        self.names = list(batch.columns)
        self.columns: list[Stored] = list(batch.columns.values())
        self.present: list[Mask | None] = [batch.present.get(name) for name in self.names]
        self.starts = info.row_offsets
        self.tasks: list[str] = info.task.tolist()
        versions, steps = np.empty(batch.rows, np.int64), np.empty(batch.rows, np.int64)
        of_row = np.repeat(np.arange(info.keys.size), np.diff(self.starts))
        for task in dict.fromkeys(self.tasks):
            rule = core.rules[task]
            here = np.array([each == task for each in self.tasks])[of_row]
            counted, expiry = row_expiry(self.columns, rule)
            versions[here], steps[here] = counted[here], expiry[here]
        self.stale = steps <= core.train_step
        tried: Any = batch.columns["attempt"]
        attempts = np.where(self.stale, tried, -1)
        self.attempt = np.maximum.reduceat(attempts, self.starts[:-1])
        versions = np.where(self.stale | (versions < 0), NEVER, versions)
        left = np.minimum.reduceat(versions, self.starts[:-1])
        self.version = np.where(left < NEVER, left, NONE)
        steps = np.where(self.stale, NEVER, steps)
        self.expires = np.minimum.reduceat(steps, self.starts[:-1])
        codes: Any = batch.columns["status"]
        self.counted = np.logical_or.reduceat(codes == EXPIRED, self.starts[:-1])
        segments: Any = batch.columns["segment"]
        self.cut = np.maximum.reduceat(segments, self.starts[:-1]) > 0

    def statuses(self, codes: Any) -> list[Status]:
        """The status of each group, from the codes of its rows."""
        of_rows = [STATUSES[code] for code in codes.tolist()]
        return [group_status(of_rows[a:b]) for a, b in pairwise(self.starts.tolist())]


def _expire(core: RolloutCore, keys: Keys) -> dict[str, int]:
    """Hidden groups are due: each is retried, or leaves."""
    batch = core.storage.get(keys, None).read(np.empty)
    due = _Due(core, batch)
    expired: dict[str, int] = {}
    reasons: list[str | None] = []
    for place, task in enumerate(due.tasks):
        reasons.append(verdict(core.rules[task], int(due.attempt[place])))
        if not due.counted[place]:
            expired[task] = expired.get(task, 0) + 1
    for task, count in expired.items():
        core.accounts.expired(task, count)
    for reason in ("expired", "retries"):
        leaving = np.array([why == reason for why in reasons])
        if leaving.any():
            core.remove(keys[leaving], reason, hidden=True)
    staying = np.array([why is None for why in reasons])
    if staying.any():
        _tell_retried(core, keys[staying])
        for key in keys[staying].tolist():
            core.accounts[core.entries[key].task].retried += 1
        for place in np.flatnonzero(staying & due.cut).tolist():
            _start_again(core, int(keys[place]))
        _clear(core, batch, due, keys, staying & ~due.cut)
        core.table.gate.departures.changed(int(staying.sum()))  # their payload has left
    return expired


def _tell_retried(core: RolloutCore, keys: Keys) -> None:
    if core.events.wants("retried"):
        entries = core.entries_of(keys)
        groups = PastGroups(core.storage.get(keys, None), core.blobs_of(entries))
        core.events.tell("retried", events_of("retried", "expired", keys, entries, groups))


# -- clearing rows ------------------------------------------------------------------------------
def _clear(core: RolloutCore, batch: Batch, due: _Due, keys: Keys, which: Mask) -> None:
    """Store groups again, the rows of stale rollouts back at their prompt, under the same keys."""
    if not which.any():
        return
    schema = core.table.schemas.rows
    assert schema is not None
    per_item = np.diff(due.starts).astype(np.int32)
    rows = np.repeat(which, per_item)
    before = Rows(batch.rows, due.columns, due.present)
    after = _cleared(before, due.names, due.stale)
    gained = row_payload(schema, after) - row_payload(schema, before)
    payload = np.add.reduceat(gained, due.starts[:-1])[which]
    core.amend(keys[which], due.names, _some(after, rows), per_item[which], payload)
    codes: Any = after.columns[due.names.index("status")]
    _settle(
        core,
        keys[which],
        [status for status, here in zip(due.statuses(codes), which, strict=True) if here],
        due.version[which],
        due.expires[which],
    )


def _settle(
    core: RolloutCore, keys: Keys, statuses: list[Status], versions: Ints, expires: Ints
) -> None:
    """Retried groups wait to be generated again; the work that is left in them may still expire."""
    texts = np.empty(len(statuses), object)
    texts[:] = [status.value for status in statuses]
    fields = {
        "status": texts,
        "version": versions,
        "expires": np.where(expires < NEVER, expires, ABSENT_INT),
        "ready": not core.needs,
    }
    core.set_fields(keys, fields)
    core.storage.show(keys, returned=False)
    for key, version in zip(keys.tolist(), versions.tolist(), strict=True):
        entry = core.entries[key]
        entry.version = version
        core.queues.went(key, entry)


def _cleared(rows: Rows, names: Sequence[str], stale: Mask) -> Rows:
    """Rows whose stale rollouts are back at their prompt."""
    columns: list[Stored] = []
    present: list[Mask | None] = []
    fresh = ~stale
    for name, column, here in zip(names, rows.columns, rows.present or (), strict=True):
        if name in CLEARED or name.startswith(ARRAYS):
            flags = fresh if here is None else here & fresh
            columns.append(_emptied(column, fresh) if isinstance(column, Ragged) else column)
            present.append(np.ascontiguousarray(flags))
            continue
        if name == "response_ids":
            assert isinstance(column, Ragged)
            column = _emptied(column, fresh)
        elif name in ("stamp", "dispatch_version", "status"):
            assert isinstance(column, np.ndarray)
            column = np.where(
                stale, column.dtype.type(EXPIRED if name == "status" else NONE), column
            )
        elif name == "attempt":
            assert isinstance(column, np.ndarray)
            column = column + stale.astype(np.int32)
        columns.append(column)
        present.append(here)
    return Rows(rows.count, columns, present)


def _emptied(column: Ragged, kept: Mask) -> Ragged:
    """A column in which all cells but the kept ones are empty."""
    lengths = column.lengths
    values = column.values[np.repeat(kept, lengths)]
    return Ragged._make(values, offsets_of(np.where(kept, lengths, 0)), column.kind)


def _some(rows: Rows, which: Mask) -> Rows:
    """Some of the rows."""
    if which.all():
        return rows
    columns: list[Stored] = [None if c is None else _contiguous(c[which]) for c in rows.columns]
    flags = rows.present or [None] * len(columns)
    present = [None if f is None else np.ascontiguousarray(f[which]) for f in flags]
    return Rows(int(which.sum()), columns, present)


def _contiguous(column: Any) -> Any:
    if isinstance(column, Ragged):
        return Ragged._make(np.ascontiguousarray(column.values), column.offsets, column.kind)
    return np.ascontiguousarray(column)


# -- trajectories in several segments -------------------------------------------------------------
def _start_again(core: RolloutCore, key: int) -> None:
    """A trajectory that was cut into segments starts again as a whole: the group has fewer rows."""
    keys = np.array([key], np.uint64)
    schema, entry = core.table.schemas.rows, core.entries[key]
    assert schema is not None
    chosen = core.storage.get(keys, None)
    before = row_payload(schema, as_rows(chosen.read(np.empty))).sum()
    group = finished(chosen.read(np.empty), 0, core.blobs_of([entry]))[0]
    rule = core.rules[group.task]
    stored = encode(group, None, rule, {})
    stale = stale_rows(stored.columns, rule, core.train_step)
    fresh = encode(without_stale(group, stale), None, rule, {})
    rows = rows_in(fresh, core.column_names())
    gained = np.array([row_payload(schema, rows).sum() - before], np.int64)
    core.amend(keys, core.column_names(), rows, np.array([fresh.count], np.int32), gained)
    core.index.forget(key)
    core.blobs.remove(set(entry.blobs) - set(fresh.entry.blobs))  # those of later segments
    entry.blobs = fresh.entry.blobs
    core.index.stored(key, entry, fresh.ids)
    _settle(core, keys, [fresh.status], np.array([fresh.version]), np.array([fresh.expires]))


def without_stale(group: Group, stale: Sequence[bool]) -> Group:
    """A group whose stale rollouts are back at their prompt; each of them is one segment again."""
    late = {rollout.rollout_id for rollout, old in zip(group, stale, strict=True) if old}
    fresh = copy(group)
    fresh.rollouts = []
    for rollout in group:
        if rollout.rollout_id in late:
            if rollout.segment:
                continue
            rollout = copy(rollout)
            rollout.reset()
        fresh.rollouts.append(rollout)
    return fresh
