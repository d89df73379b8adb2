"""`GroupSource`: groups for train steps, leased once or replayed, so that a crash gives them back.

What is drawn to train once is leased. What is replayed stays where it is, and a group that was
drawn for the last time is leased, so that it leaves when its step is confirmed. All shares of a
step are drawn at once, or none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np

from recollect.base.arguments import many
from recollect.base.arrays import Ints, Keys
from recollect.base.leases import Lease, LeaseLike
from recollect.rollouts.core import NO_KEYS, ChosenGroups, RolloutCore
from recollect.rollouts.expiry import advance_to
from recollect.rollouts.groups import Groups
from recollect.rollouts.rollout import Status
from recollect.rollouts.takes import take_shares
from recollect.rules.query import Query, field
from recollect.storage.base import Where
from recollect.table.lease_verbs import lease_out
from recollect.table.runner import PlainVerb, Verb
from recollect.table.waiting import Blocked

OWNER = "training"
ANY = ""  # the task of a share that takes groups of every task


@dataclass(frozen=True)
class ReplayRule:
    """How a step is drawn from groups that may train again.

    Attributes:
        max_uses: How often a group trains before it leaves; 0 for no limit.
        fresh_share: The least share that has never trained; None draws from all alike.
        without: Groups that are in the step already.
    """

    max_uses: int
    fresh_share: float | None
    without: Keys


class GroupSource:
    """What the preparation of train steps asks of a buffer."""

    def __init__(self, core: RolloutCore) -> None:
        self._core = core

    @property
    def capacity(self) -> int | None:
        """Groups that the buffer holds at most."""
        return self._core.capacity

    async def take(self, sizes: Mapping[str, int], step: int) -> Groups:
        """Wait for groups of each task, and lease them for a step without a deadline."""
        return await self._core.table.run_async(_take(self._core, sizes, step))

    async def sample(self, sizes: Mapping[str, int], step: int, rule: ReplayRule) -> list[Groups]:
        """Wait for groups of each task, and draw them for a step, some under a lease."""
        return await self._core.table.run_async(_sample(self._core, sizes, step, rule))

    async def sample_again(self, keys: Keys, leased: Keys, step: int) -> Groups:
        """Draw by key what was drawn for a step before; those that were leased, under a lease.

        What has gone since, or was sent back to be generated again, is left out.
        """
        return await self._core.table.run_async(_sample_again(self._core, keys, leased, step))

    async def discard(self, leases: Sequence[LeaseLike], keys: Keys) -> int:
        """Groups that were drawn leave as filtered, leased or not; returns how many."""
        return await self._core.table.run_async(_discard(self._core, leases, keys))

    # -- immediate ------------------------------------------------------------------------------
    def moment(self) -> AbstractContextManager[Any]:
        """Hold the buffer's lock: until the block ends, nobody else changes anything."""
        return self._core.table.transaction()

    def held(self, leases: Iterable[LeaseLike]) -> Keys:
        """The groups that leases hold now."""
        held = self._core.table.leases.held()
        return np.concatenate([NO_KEYS, *(held[one.id].keys for one in leases if one.id in held)])

    def group_ids(self) -> Iterable[str]:
        """The ids of the groups that are stored."""
        return self._core.by_id


# -- verbs ----------------------------------------------------------------------------------------
def _ready(core: RolloutCore, task: str, more: Query | None = None) -> Where | None:
    """The groups of a task that can train."""
    return core.where(task or None, Status.COMPLETED, True, more)


def _take(core: RolloutCore, sizes: Mapping[str, int], step: int) -> Verb[Groups]:
    shares = {task: (size, _ready(core, task)) for task, size in sizes.items()}

    def attempt() -> ChosenGroups | Blocked:
        advance_to(core, step)
        return take_shares(core, shares, math.inf, OWNER, step)

    return PlainVerb("get", attempt, finish=core.collated)


def _sample(
    core: RolloutCore, sizes: Mapping[str, int], step: int, rule: ReplayRule
) -> Verb[list[Groups]]:
    shares = _Shares(core, sizes, rule)

    def attempt() -> list[ChosenGroups] | Blocked:
        advance_to(core, step)
        parts = shares.parts()
        if isinstance(parts, Blocked):
            return parts
        return [_drawn(core, count, where, rule.max_uses, step) for count, where in parts if count]

    def finish(drawn: list[ChosenGroups]) -> list[Groups]:
        return list(map(core.collated, drawn))

    return PlainVerb("get", attempt, finish=finish)


class _Shares:
    """Which part of a step comes from which part of the buffer."""

    def __init__(self, core: RolloutCore, sizes: Mapping[str, int], rule: ReplayRule) -> None:
        self._core, self._sizes, self._rule = core, sizes, rule
        self._unused, self._used = field("times_sampled") == 0, field("times_sampled") > 0
        self._others = None
        if rule.without.size:  # a step that is filled up draws no group twice
            self._others = ~field("key").isin(rule.without.tolist())
            self._unused, self._used = self._unused & self._others, self._used & self._others

    def parts(self) -> list[tuple[int, Where | None]] | Blocked:
        """Under the lock: how many groups to draw by which query; or what is missing."""
        found, missing, needs = [], 0, []
        for task, size in self._sizes.items():
            for count, where in self._of_task(task, size):
                here = self._count(where) if count else 0
                if here < count:
                    missing += count - here
                    needs.append(f"{task or 'a step'} needs {many(count, 'group')}, has {here}")
                found.append((count, where))
        if self._rule.fresh_share is not None and self._core.capacity is not None:
            missing = 1  # any arrival may be the one that fills the buffer
        return Blocked("; ".join(needs), missing) if needs else found

    def _of_task(self, task: str, size: int) -> list[tuple[int, Where | None]]:
        core, share = self._core, self._rule.fresh_share
        if share is None:
            return [(size, _ready(core, task, self._others))]
        fresh, again = _ready(core, task, self._unused), _ready(core, task, self._used)
        here = self._count(again)
        replayed = min(size - math.ceil(share * size), here)
        if self._is_full():
            replayed = max(replayed, min(size - self._count(fresh), here))
        # Those to replay come first: what is drawn here is not fresh any more.
        return [(replayed, again), (size - replayed, fresh)]

    def _count(self, where: Where | None) -> int:
        return self._core.storage.available(where)[0]

    def _is_full(self) -> bool:
        """Whether no group can come, because nothing gives way to it."""
        core = self._core
        if core.capacity is None or core.overflow == "drop_stalest":
            return False
        return len(core.storage) >= core.capacity


def _drawn(
    core: RolloutCore, count: int, where: Where | None, max_uses: int, step: int
) -> ChosenGroups:
    """Draw groups. Those that are drawn for the last time are leased: nobody draws them again, and
    they are not lost."""
    table = core.table
    chosen = core.storage.sample(
        table.rules.sampler, count, where, False, table.counts.sample_calls
    )
    table.counts.samples += count
    table.counts.sample_calls += 1
    entries = core.entries_of(chosen.keys)
    core.accounts.drew(entry.task for entry in entries)
    last = np.zeros(count, np.bool_)
    if max_uses:
        last = _times_used(core, chosen.keys) >= max_uses
    if core.recorder is not None and not last.all():
        core.recorder.sampled(chosen.keys[~last])  # of the others, their lease tells
    lease = _leased(core, core.storage.hide(chosen.keys[last]), step) if last.any() else None
    return ChosenGroups(chosen, step, core.blobs_of(entries), lease)


def _leased(core: RolloutCore, hidden: Keys, step: int) -> Lease:
    lease = lease_out(core.table, core.storage.get(hidden, None), OWNER, math.inf)
    core.lease_steps[lease.id] = step
    return lease


def _times_used(core: RolloutCore, keys: Keys) -> Ints:
    batch = core.storage.get(keys, ["segment"]).read(np.empty)
    return np.asarray(batch.info.times_sampled, np.int64)


def _sample_again(core: RolloutCore, keys: Keys, leased: Keys, step: int) -> Verb[Groups]:
    def attempt() -> ChosenGroups:
        there = core.storage.find(keys, _ready(core, ANY), visible=True)
        lease = None
        again = leased[np.isin(leased, there)]
        if again.size:
            where = _ready(core, ANY, field("key").isin(again.tolist()))
            taken = core.storage.take(core.table.rules.sampler, again.size, where, hide=True)
            core.table.counts.samples += again.size
            lease = _leased(core, taken.keys, step)
        return core.choose(keys[np.isin(keys, there)], step, lease)

    return PlainVerb("restore", attempt, finish=core.collated)


def _discard(core: RolloutCore, leases: Sequence[LeaseLike], keys: Keys) -> Verb[int]:
    def attempt() -> int:
        gone = 0
        for lease in leases:
            held = core.table.leases.held().get(lease.id)
            if held is None:
                continue
            dropped = np.isin(held.keys, keys)
            if dropped.any():
                gone += int(dropped.sum())
                core.remove(held.keys[dropped], "filtered", hidden=True)
                core.table.leases.narrow(lease, held.keys[~dropped])
        visible = core.storage.find(keys, None, visible=True)
        if visible.size:
            core.remove(visible, "filtered")
        return gone + int(visible.size)

    return PlainVerb("discard", attempt)
