"""`Judge`: `valid` for groups whose rewards, or other needed cells, come later as annotations.

Where the buffer has `needs`, a group is judged when it is whole. The annotation that makes it so
does not make it ready: it hands the group over to the judge, which then lets it through, or lets
it go. So no trainer can take a group between its reward and its verdict.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

import numpy as np

from recollect.effects import Updated
from recollect.errors import UnknownKey
from recollect.production.context import Context
from recollect.rollouts.buffer import RolloutBuffer
from recollect.rollouts.group import Group
from recollect.rollouts.rollout import Status


class Judge:
    """The verdicts of one manager."""

    def __init__(self, buffer: RolloutBuffer, contexts: Mapping[str, Context]) -> None:
        self._core = buffer._core
        self._buffer = buffer
        self._contexts = {
            name: context for name, context in contexts.items() if context.task.valid is not None
        }
        self._conditions = next(iter(contexts.values())).conditions
        self._waiting: deque[int] = deque()
        self._wake: Callable[[], object] = lambda: None  # set by `begin`
        if self.needed:
            with self._core.table._transaction():
                self._core.judge = self.hold

    @property
    def needed(self) -> bool:
        """Whether there are such tasks, and cells that come late."""
        return bool(self._contexts and self._core.needs)

    def begin(self, wake: Callable[[], object]) -> None:
        """Judge from now on, and first what became whole before, in another life too.

        `wake` lets `run` look again; any thread may call it.
        """
        self._wake = wake
        core = self._core
        with core.table._transaction():
            self._waiting.clear()
            for name in self._contexts:
                unready = core.where(name, Status.COMPLETED, False)
                for key in core.storage.find(None, unready, visible=True).tolist():
                    if not any(cell in core.needs for cell in core.entries[key].lacks):
                        self._waiting.append(key)

    def end(self) -> None:
        """Let groups through as they come."""
        if self.needed:
            with self._core.table._transaction():
                self._core.judge = None

    def hold(self, keys: list[int]) -> list[int]:
        """Some groups are whole: returns those that are ready. Under the lock, by any thread."""
        ready = []
        for key in keys:
            if self._core.entries[key].task in self._contexts:
                self._waiting.append(key)
            else:
                ready.append(key)
        if len(ready) < len(keys):
            self._wake()
        return ready

    async def run(self) -> None:
        """Judge what waits. After an error it goes on when production does."""
        conditions = self._conditions
        while True:
            await conditions.changed.until(lambda: self._waiting and conditions.error is None)
            key = self._waiting[0]
            try:
                group = self._buffer.get(np.array([key], np.uint64))[0]
            except UnknownKey:  # it left, or expired and was generated again
                self._waiting.popleft()
                continue
            context = self._contexts[group.task]
            try:
                valid = await context.task.strategy.judge(context, group)
            except Exception as error:
                conditions.fail(error)
                continue
            self._waiting.popleft()
            self._settle(key, group, valid)

    def _settle(self, key: int, group: Group, valid: bool) -> None:
        """Let a group through, or let it go; unless it has expired in the meantime."""
        core, window = self._core, self._contexts[group.task].progress.window
        with core.table._transaction():
            unready = core.where(group.task, Status.COMPLETED, False)
            found = core.storage.find(np.array([key], np.uint64), unready, visible=True)
            if not found.size:
                return
            window.score(group)
            if valid:
                core.storage.update(found, {"ready": True})
                core.table._effects.emit(Updated, found, {"ready": True})
                core.table._gate.arrivals.changed(1)
            else:
                window.filtered += 1
                core.remove(found, "filtered")
        self._conditions.changed.notify()
