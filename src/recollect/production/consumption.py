"""What a buffer says of one task's groups: how many were trained, are leased, are stored.

The buffer is asked, and nothing is counted beside it. So the numbers are right however a trainer
takes its groups (through a manager, a `DataPreparation`, another thread), and also when a lease
lapses or groups are given back, of which no manager would hear.
"""

from __future__ import annotations

from collections import Counter

from recollect.production.progress import Handed
from recollect.rollouts.buffer import RolloutBuffer
from recollect.rollouts.expiry import enter
from recollect.rollouts.group import Group
from recollect.rollouts.rollout import Status


class Consumption:
    """Looks at a buffer on behalf of those who fill it."""

    def __init__(self, buffer: RolloutBuffer) -> None:
        self._buffer = buffer
        self._retaken: Counter[str] = Counter()

    def look(self, task: str) -> Handed:
        """The counts of a task, all under one lock; what moves between them is in one of them."""
        core = self._buffer.core
        storage = core.storage
        with core.table.transaction():
            enter(core)
            left = core.accounts[task].left
            gone = left["trained"] + left["taken"] - self._retaken[task]
            where = core.where(task, None, None)
            leased = storage.count(where) - storage.available(where)[0]
            completed = storage.available(core.where(task, Status.COMPLETED, None))[0]
        return Handed(gone, leased, completed)

    def retake(self, n: int, task: str, status: Status) -> list[tuple[Group, Group]]:
        """Take up to n unfinished groups out, to generate them again; each twice: to change and to
        keep. That is no consumption, although the buffer counts it as taken.

        Immediate: the caller has them in flight before anybody else runs.
        """
        if n <= 0 or not self._buffer.count(task, status):
            return []
        groups = self._buffer.sync.take(n, task, status)
        self._retaken[task] += len(groups)
        with self._buffer.core.table.transaction():  # nor does it keep a task from starving
            self._buffer.core.accounts[task].recently_taken -= len(groups)
        return list(zip(groups, groups, strict=True))  # made anew by each iteration
