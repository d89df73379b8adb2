"""`RolloutBuffer`: groups of rollouts that wait to be trained on. The face for asyncio.

Every call checks what it is given and makes a verb of it, which the core of the buffer's table
tries under its lock; where it cannot go ahead, the call sleeps until a change may let it.
`buffer.sync` makes the same verbs and waits in a thread; `immediate.py` has the calls that never
wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recollect.base.clock import Clock
from recollect.base.leases import Lease, LeaseLike
from recollect.rollouts import claims, group_changes, lease_ends, space, takes
from recollect.rollouts.annotations import annotate
from recollect.rollouts.blocking import BlockingBuffer
from recollect.rollouts.construction import new_core
from recollect.rollouts.events import KEPT, AsyncEvents
from recollect.rollouts.expiry import advance
from recollect.rollouts.group import Group
from recollect.rollouts.groups import Groups, TakenBatch
from recollect.rollouts.immediate import ImmediateCalls
from recollect.rollouts.puts import put, put_directly
from recollect.rollouts.rollout import Status
from recollect.rollouts.staleness import Staleness
from recollect.rules.selectors import Selector, StalestFirst
from recollect.storage.base import Storage
from recollect.table.table import WhereLike


class RolloutBuffer(ImmediateCalls):
    """Groups of rollouts by task and status, from the generators to the trainer.

    Calls are coroutines; `buffer.sync` has the same ones, blocking, for threads. Those that say
    'immediate' are plain calls in both.

    >>> import asyncio
    >>> import recollect as rc
    >>> async def main():
    ...     buffer = rc.RolloutBuffer()
    ...     rollouts = [rc.Rollout([1, 2], [3, 4], finish_reason="stop") for _ in range(8)]
    ...     await buffer.put(rc.Group(rollouts, task="math"), version=0)
    ...     taken = await buffer.take_batch({"math": 1}, lease=60)
    ...     await buffer.confirm(taken.lease)
    ...     return taken.batch["response_ids"].lengths
    >>> asyncio.run(main())
    array([2, 2, 2, 2, 2, 2, 2, 2])

    Args:
        order: Which group `take`, `take_batch` and `sample` choose.
        staleness: When rollouts are too old; one rule for all tasks, or one per task.
        capacity: How many groups it holds at most, None for no bound.
        capacity_bytes: How many bytes of payload it holds at most, blobs included.
        max_uses: How often `sample` may draw a group before it leaves; 1 makes a queue, 0 sets no
            limit.
        overflow: What a put into a full buffer does: "block" waits, "drop_stalest" evicts,
            "drop_newest" discards what comes, "raise" raises `BufferFull`.
        needs: Cells that every rollout must have before its group is ready: "reward", "logprobs",
            "rewards", or the name of an array.
        tags: Extras that become fields for queries: names and types. A group's own extra counts;
            where it has none, that of its rollouts: the mean of a float, and of other types the
            one value that they must agree on.
        archive: Whether confirmed groups stay, as ARCHIVED.
        storage: Where groups live; `rc.MemoryStorage()` where None.
        seed: Makes draws repeatable.
        journal: An `rc.Journal`, or its path: what the buffer holds survives a crash.
        name: What messages and stores call the buffer's table.
        clock: Where time comes from, for tests.
    """

    def __init__(
        self,
        *,
        order: Selector | None = None,
        staleness: Staleness | Mapping[str, Staleness] | None = None,
        capacity: int | None = None,
        capacity_bytes: int | None = None,
        max_uses: int = 1,
        overflow: str = "block",
        needs: Sequence[str] = (),
        tags: Mapping[str, Any] | None = None,
        archive: bool = False,
        storage: Storage | None = None,
        seed: int | None = None,
        journal: Any = None,
        name: str = "rollouts",
        clock: Clock | None = None,
    ) -> None:
        self._core = new_core(
            order=StalestFirst() if order is None else order,
            staleness=Staleness() if staleness is None else staleness,
            capacity=capacity,
            capacity_bytes=capacity_bytes,
            max_uses=max_uses,
            overflow=overflow,
            needs=needs,
            tags=tags,
            archive=archive,
            storage=storage,
            seed=seed,
            journal=journal,
            name=name,
            clock=clock,
        )
        self.sync = BlockingBuffer(self._core)
        self._run = self._core.table.run_async

    # -- putting --------------------------------------------------------------------------------
    async def put(self, group: Group, *, version: int | None = None) -> int | None:
        """Store a group; returns its key, or None where it was discarded.

        `version` stamps the tokens that have no version yet, and the dispatch version of rollouts
        that have none. A group that is too old already is retried or discarded as its staleness
        says. A `group_id` that is stored is replaced; one that is leased raises `InvalidValue`.
        """
        key = put_directly(self._core, group, version)
        if key is not None:
            return key
        return await self._run(put(self._core, group, version))

    async def reserve_all(self, n: int, task: str, *, timeout: float | None = None) -> int:
        """Wait until there is room for n groups of a task, then promise all of it; returns n.

        A producer that awaits this before each generation never polls, and never begins what it
        could not store. A wait that times out or is cancelled has promised nothing.
        """
        return await self._run(space.reserve_all(self._core, n, task, timeout))

    # -- taking and changing --------------------------------------------------------------------
    async def take(
        self,
        n: int,
        task: str | None = None,
        status: Status | str = Status.COMPLETED,
        where: WhereLike = None,
        lease: float | bool | None = None,
        owner: str = "",
    ) -> Groups:
        """Hand out up to n groups in order, and remove or lease them. Never waits.

        `lease` is a number of seconds, or True for a lease without a deadline.
        """
        return await self._run(takes.take(self._core, n, task, status, where, lease, owner))

    async def take_batch(
        self,
        sizes: Mapping[str, int],
        *,
        train_step: int | None = None,
        where: WhereLike = None,
        timeout: float | None = None,
        lease: float | bool | None = None,
        owner: str = "",
    ) -> TakenBatch:
        """Wait until every task has its share of ready groups, then take all of them, or none.

        `train_step` advances to that step first. `lease` is a number of seconds, or True for a
        lease without a deadline; None removes the groups at once.
        """
        verb = takes.take_batch(self._core, sizes, train_step, where, timeout, lease, owner)
        return await self._run(verb)

    async def sample(
        self,
        n: int,
        *,
        task: str | None = None,
        where: WhereLike = None,
        train_step: int | None = None,
        timeout: float | None = None,
    ) -> Groups:
        """Wait for n ready groups and draw them by the order; they stay until `max_uses`.

        The groups of a batch are distinct. `.info` has their probabilities and importance weights.
        """
        return await self._run(takes.sample(self._core, n, task, where, train_step, timeout))

    async def update(self, keys: Any, **fields: Any) -> NDArray[np.bool_]:
        """Change the priority, or tags, of groups; returns a mask: which keys were there."""
        return await self._run(group_changes.update(self._core, keys, fields))

    async def discard(self, keys: Any, reason: str = "filtered") -> int:
        """Remove groups by key, with a reason for `events`; returns how many went.

        Leased groups stay: they belong to whoever holds the lease.
        """
        return await self._run(group_changes.discard(self._core, keys, reason))

    # -- time -----------------------------------------------------------------------------------
    async def advance(self, train_step: int) -> dict[str, int]:
        """The trainer is at this step now: expire what is too old for it.

        Returns how many groups newly expired, by task. Costs what expires, not what is stored. A
        step that is not ahead of the buffer's changes nothing.
        """
        return await self._run(advance(self._core, train_step))

    # -- leases ---------------------------------------------------------------------------------
    async def confirm(self, lease: LeaseLike | int | None, train_step: int | None = None) -> int:
        """The leased groups are trained: they leave, or are archived; returns how many."""
        return await self._run(lease_ends.confirm(self._core, lease, train_step))

    async def give_back(self, lease: LeaseLike | int | None) -> int:
        """Bring the leased groups back, in their old order and marked redelivered."""
        return await self._run(lease_ends.give_back(self._core, lease))

    async def renew(self, lease: LeaseLike | int | None, seconds: float) -> Lease:
        """Hold a lease for so many seconds from now."""
        return await self._run(lease_ends.renew(self._core, lease, seconds))

    async def release(self, owner: str) -> int:
        """Give back every lease of an owner, such as a trainer that died; returns how many."""
        return await self._run(lease_ends.release(self._core, owner))

    async def trained_at(self, train_step: int) -> Groups:
        """The archived groups that a train step trained on (`archive=True`)."""
        return await self._run(takes.trained_at(self._core, train_step))

    # -- stages ---------------------------------------------------------------------------------
    async def claim(
        self,
        n: int,
        lacks: str,
        *,
        lease: float | bool = 600,
        task: str | None = None,
        timeout: float | None = None,
    ) -> Groups:
        """Wait for COMPLETED groups that lack a cell, and claim up to n of them.

        They stay where they are; until the lease ends nobody else claims them for that cell.
        `.lease` is the claim: annotating the groups ends it, `give_back` and `renew` work too.
        """
        return await claims.claim(self._core, n, lacks, lease, task, timeout)

    async def annotate(
        self,
        rollout_ids: Sequence[str],
        attempt: int | Sequence[int],
        *,
        reward: Any = None,
        rewards: Any = None,
        arrays: Mapping[str, Any] | None = None,
    ) -> NDArray[np.bool_]:
        """Fill cells of rollouts: rewards, or arrays, one per rollout id.

        Returns a mask that is false where the group has gone, or the rollout was retried since
        `attempt`. A group whose cells are complete becomes ready.
        """
        verb = annotate(self._core, rollout_ids, attempt, reward, rewards, arrays)
        return await self._run(verb)

    # -- what leaves ----------------------------------------------------------------------------
    def events(self, *kinds: str, keep: int | None = KEPT) -> AsyncEvents:
        """Batches of what happens from now on: each group that leaves appears once.

        Kinds are `"taken"`, `"confirmed"`, `"expired"` and `"discarded"`, for groups that leave,
        and `"retried"`, for those that stay and are generated again. None given: all that leave.
        The iterator is registered by this call; leaving its loop, or `aclose()`, ends it.

        A reader that falls behind stops nobody. The newest `keep` unread events can be read with
        their group; older ones let go of it (`event.has_group`), and say still what happened to
        which group and why. None keeps them all, 0 none.
        """
        return self._core.events.subscribe(kinds, keep)

    def __repr__(self) -> str:
        return repr(self.sync).removesuffix(".sync")
