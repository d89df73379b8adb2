"""`buffer.sync`: the calls of a rollout buffer for threads. They block where the others await."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recollect.base.arguments import many
from recollect.base.leases import Lease, LeaseLike
from recollect.base.readable import size
from recollect.rollouts import claims, group_changes, lease_ends, space, takes
from recollect.rollouts.annotations import annotate
from recollect.rollouts.core import RolloutCore
from recollect.rollouts.events import KEPT, BlockingEvents
from recollect.rollouts.expiry import advance
from recollect.rollouts.group import Group
from recollect.rollouts.groups import Groups, TakenBatch
from recollect.rollouts.immediate import ImmediateCalls
from recollect.rollouts.puts import put, put_directly
from recollect.rollouts.rollout import Status
from recollect.table.table import WhereLike


class BlockingBuffer(ImmediateCalls):
    """The same calls as `rc.RolloutBuffer`, which says what they do, for threads.

    >>> import recollect as rc
    >>> buffer = rc.RolloutBuffer().sync
    >>> key = buffer.put(rc.Group([rc.Rollout([1], [2], finish_reason="stop")], task="math"))
    >>> len(buffer.take_batch({"math": 1}).groups["math"])
    1
    """

    def __init__(self, core: RolloutCore) -> None:
        self._core = core
        self._run = core.table.run

    def put(self, group: Group, *, version: int | None = None) -> int | None:
        key = put_directly(self._core, group, version)
        return self._run(put(self._core, group, version)) if key is None else key

    def reserve_all(self, n: int, task: str, *, timeout: float | None = None) -> int:
        return self._run(space.reserve_all(self._core, n, task, timeout))

    def take(
        self,
        n: int,
        task: str | None = None,
        status: Status | str = Status.COMPLETED,
        where: WhereLike = None,
        lease: float | bool | None = None,
        owner: str = "",
    ) -> Groups:
        return self._run(takes.take(self._core, n, task, status, where, lease, owner))

    def take_batch(
        self,
        sizes: Mapping[str, int],
        *,
        train_step: int | None = None,
        where: WhereLike = None,
        timeout: float | None = None,
        lease: float | bool | None = None,
        owner: str = "",
    ) -> TakenBatch:
        verb = takes.take_batch(self._core, sizes, train_step, where, timeout, lease, owner)
        return self._run(verb)

    def sample(
        self,
        n: int,
        *,
        task: str | None = None,
        where: WhereLike = None,
        train_step: int | None = None,
        timeout: float | None = None,
    ) -> Groups:
        return self._run(takes.sample(self._core, n, task, where, train_step, timeout))

    def update(self, keys: Any, **fields: Any) -> NDArray[np.bool_]:
        return self._run(group_changes.update(self._core, keys, fields))

    def discard(self, keys: Any, reason: str = "filtered") -> int:
        return self._run(group_changes.discard(self._core, keys, reason))

    def advance(self, train_step: int) -> dict[str, int]:
        return self._run(advance(self._core, train_step))

    def confirm(self, lease: LeaseLike | int | None, train_step: int | None = None) -> int:
        return self._run(lease_ends.confirm(self._core, lease, train_step))

    def give_back(self, lease: LeaseLike | int | None) -> int:
        return self._run(lease_ends.give_back(self._core, lease))

    def renew(self, lease: LeaseLike | int | None, seconds: float) -> Lease:
        return self._run(lease_ends.renew(self._core, lease, seconds))

    def release(self, owner: str) -> int:
        return self._run(lease_ends.release(self._core, owner))

    def trained_at(self, train_step: int) -> Groups:
        return self._run(takes.trained_at(self._core, train_step))

    def claim(
        self,
        n: int,
        lacks: str,
        *,
        lease: float | bool = 600,
        task: str | None = None,
        timeout: float | None = None,
    ) -> Groups:
        return claims.claim_blocking(self._core, n, lacks, lease, task, timeout)

    def annotate(
        self,
        rollout_ids: Sequence[str],
        attempt: int | Sequence[int],
        *,
        reward: Any = None,
        rewards: Any = None,
        arrays: Mapping[str, Any] | None = None,
    ) -> NDArray[np.bool_]:
        return self._run(annotate(self._core, rollout_ids, attempt, reward, rewards, arrays))

    def events(self, *kinds: str, keep: int | None = KEPT) -> BlockingEvents:
        return self._core.events.subscribe_blocking(kinds, keep)

    def __repr__(self) -> str:
        if self._core.table.closed:
            return "RolloutBuffer(closed).sync"
        here = ", ".join(
            f"{count} {task} {status.value}" for (task, status), count in self.counts().items()
        )
        return (
            f"RolloutBuffer({many(len(self), 'group')}{here and ': ' + here}; "
            f"{size(self.nbytes)}, train step {self.train_step}).sync"
        )
