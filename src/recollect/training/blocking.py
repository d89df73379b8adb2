"""`preparation.sync`: the calls of a preparation for threads. They block where the others await."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from recollect.base.blocking_face import BlockingFace
from recollect.errors import InvalidValue
from recollect.rollouts.group import Group
from recollect.training.train_step import RankBatch

if TYPE_CHECKING:
    from recollect.training.preparation import DataPreparation


class BlockingPreparation(BlockingFace):
    """The same calls as `DataPreparation`, which says what they do, for any number of threads.

    Where nobody awaits the others, it runs an event loop in a thread of its own until `close`.
    """

    def __init__(self, preparation: DataPreparation) -> None:
        super().__init__("recollect-training", InvalidValue)
        self._preparation = preparation

    def _theirs(self) -> asyncio.AbstractEventLoop | None:
        return self._preparation._loop

    def put(self, group: Group, *, version: int | None = None) -> int | None:
        return self.run(self._preparation.put(group, version=version))

    def get(self, rank: int, step: int) -> RankBatch:
        return self.run(self._preparation.get(rank, step))

    def confirm(self, rank: int, step: int) -> bool:
        return self.run(self._preparation.confirm(rank, step))

    def report(self, rank: int, step: int, rollout_ids: Sequence[str], priority: Any) -> int:
        return self.run(self._preparation.report(rank, step, rollout_ids, priority))

    def state(self) -> dict[str, Any]:
        return self.run(self._preparation.state())

    def restore(self, saved: Mapping[str, Any]) -> int:
        return self.run(self._preparation.restore(saved))

    def close(self) -> None:
        self.run(self._preparation.close())
        self._end()
