"""`buffer.sync`: the calls of a rollout buffer for threads. They block where the others await."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from recollect.base.arguments import many
from recollect.base.leases import Lease, LeaseLike
from recollect.base.readable import size
from recollect.rollouts.core import Core
from recollect.rollouts.events import KEPT, BlockingEvents
from recollect.rollouts.expiry import advance
from recollect.rollouts.group import Group
from recollect.rollouts.groups import Groups, TakenBatch
from recollect.rollouts.rollout import Status
from recollect.rollouts.staleness import Staleness
from recollect.table.table import Table, WhereLike

if TYPE_CHECKING:
    from recollect.durability.snapshot.loader import Loaded
    from recollect.durability.snapshot.saver import SavedSnapshot


class BlockingBuffer:
    """The same calls as `rc.RolloutBuffer`, which says what they do, for threads.

    >>> import recollect as rc
    >>> buffer = rc.RolloutBuffer().sync
    >>> key = buffer.put(rc.Group([rc.Rollout([1], [2], finish_reason="stop")], task="math"))
    >>> len(buffer.take_batch({"math": 1}).groups["math"])
    1
    """

    def __init__(self, core: Core) -> None:
        self.core = core
        self._run = core.table.run

    def put(self, group: Group, *, version: int | None = None) -> int | None:
        key = self.core.put_directly(group, version)
        return self._run(self.core.put(group, version)) if key is None else key

    def reserve(self, n: int, task: str) -> int:
        return self.core.space.reserve(n, task)

    def reserve_all(self, n: int, task: str, *, timeout: float | None = None) -> int:
        return self._run(self.core.space.reserve_all(n, task, timeout))

    def unreserve(self, n: int, task: str) -> int:
        return self.core.space.unreserve(n, task)

    def take(
        self,
        n: int,
        task: str | None = None,
        status: Status | str = Status.COMPLETED,
        where: WhereLike = None,
        lease: float | bool | None = None,
        owner: str = "",
    ) -> Groups:
        return self._run(self.core.taking.take(n, task, status, where, lease, owner))

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
        taking = self.core.taking
        return self._run(taking.take_batch(sizes, train_step, where, timeout, lease, owner))

    def sample(
        self,
        n: int,
        *,
        task: str | None = None,
        where: WhereLike = None,
        train_step: int | None = None,
        timeout: float | None = None,
    ) -> Groups:
        return self._run(self.core.taking.sample(n, task, where, train_step, timeout))

    def update(self, keys: Any, **fields: Any) -> NDArray[np.bool_]:
        return self._run(self.core.taking.update(keys, fields))

    def discard(self, keys: Any, reason: str = "filtered") -> int:
        return self._run(self.core.discard(keys, reason))

    @property
    def train_step(self) -> int:
        return self.core.train_step

    def advance(self, train_step: int) -> dict[str, int]:
        return self._run(advance(self.core, train_step))

    def staleness(self, task: str) -> Staleness:
        return self.core.rules[task]

    def confirm(self, lease: LeaseLike | int | None, train_step: int | None = None) -> int:
        return self._run(self.core.taking.confirm(lease, train_step))

    def give_back(self, lease: LeaseLike | int | None) -> int:
        return self._run(self.core.taking.give_back(lease))

    def renew(self, lease: LeaseLike | int | None, seconds: float) -> Lease:
        return self._run(self.core.taking.renew(lease, seconds))

    def release(self, owner: str) -> int:
        return self._run(self.core.taking.release(owner))

    def trained_at(self, train_step: int) -> Groups:
        return self._run(self.core.taking.trained_at(train_step))

    def claim(
        self,
        n: int,
        lacks: str,
        *,
        lease: float | bool = 600,
        task: str | None = None,
        timeout: float | None = None,
    ) -> Groups:
        return self.core.stages.claim_blocking(n, lacks, lease, task, timeout)

    def annotate(
        self,
        rollout_ids: Sequence[str],
        attempt: int | Sequence[int],
        *,
        reward: Any = None,
        rewards: Any = None,
        arrays: Mapping[str, Any] | None = None,
    ) -> NDArray[np.bool_]:
        stages = self.core.stages
        return self._run(stages.annotate(rollout_ids, attempt, reward, rewards, arrays))

    def is_ready(self, sizes: Mapping[str, int], where: WhereLike = None) -> bool:
        return self.core.taking.is_ready(sizes, where)

    def count(
        self,
        task: str | None = None,
        status: Status | str | None = None,
        where: WhereLike = None,
    ) -> int:
        return self.core.count(task, status, where)

    def counts(self) -> dict[tuple[str, Status], int]:
        return self.core.counts()

    def get(self, keys: Any) -> Groups:
        return self.core.get(keys)

    def find(self, group_id: str) -> int | None:
        return self.core.find(group_id)

    def __len__(self) -> int:
        return len(self.core)

    @property
    def nbytes(self) -> int:
        return self.core.nbytes

    def accounts(self) -> dict[str, dict[str, Any]]:
        return self.core.account()

    def stats(self) -> dict[str, Any]:
        return self.core.stats()

    @property
    def table(self) -> Table:
        return self.core.face

    def events(self, *kinds: str, keep: int | None = KEPT) -> BlockingEvents:
        return self.core.events.subscribe_blocking(kinds, keep)

    def state(self) -> dict[str, Any]:
        from recollect.rollouts import persistence

        return persistence.state(self.core)

    def restore(self, saved: Mapping[str, Any]) -> None:
        from recollect.rollouts import persistence

        persistence.restore(self.core, saved)

    def save(
        self, path: str | PathLike[str], *, files: Mapping[str, Any] | None = None, **options: Any
    ) -> SavedSnapshot:
        from recollect.rollouts import persistence

        return persistence.save(self.core, path, files, **options)

    def load(self, path: str | PathLike[str], **options: Any) -> Loaded:
        from recollect.rollouts import persistence

        return persistence.load(self.core, path, **options)

    def __repr__(self) -> str:
        if self.core.table.closed:
            return "RolloutBuffer(closed).sync"
        here = ", ".join(
            f"{count} {task} {status.value}" for (task, status), count in self.counts().items()
        )
        return (
            f"RolloutBuffer({many(len(self), 'group')}{here and ': ' + here}; "
            f"{size(self.nbytes)}, train step {self.train_step}).sync"
        )

    def _repr_html_(self) -> str:
        from recollect.base.html import closed
        from recollect.rollouts.buffer_html import of_rollouts
        from recollect.table.table_html import some_items

        core, table = self.core, self.core.table
        if table.closed:
            return closed("RolloutBuffer")
        stats, counts, accounts = self.stats(), self.counts(), self.accounts()
        with table.transaction():
            step = core.train_step
            versions = [entry.version for entry in core.entries.values() if not entry.trained]
            info = some_items(table.storage)
        return of_rollouts(stats, counts, accounts, step, versions, info)

    def close(self) -> None:
        self.core.close()
