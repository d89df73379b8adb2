"""`Judge`: `valid` for groups whose rewards, or other needed cells, come later as annotations.

Where the buffer has `needs`, a group is judged when it is whole. The annotation that makes it so
does not make it ready: it hands the group over to the judge, which then lets it through, or lets
it go. So no trainer can take a group between its reward and its verdict. Groups of a task without
`valid` are ready at once; where their rewards came late they are counted here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping

import numpy as np

from recollect.errors import UnknownKey
from recollect.production.context import Context
from recollect.production.generation import cancelled_by_itself, is_asked_to_end
from recollect.rollouts.buffer import RolloutBuffer
from recollect.rollouts.group import Group
from recollect.rollouts.rollout import Status
from recollect.table.effects import Updated


class Judge:
    """The verdicts of one manager."""

    def __init__(self, buffer: RolloutBuffer, contexts: Mapping[str, Context]) -> None:
        self._core = buffer.core
        self._buffer = buffer
        self._all = contexts
        self._contexts = {
            name: context for name, context in contexts.items() if context.task.valid is not None
        }
        self._conditions = next(iter(contexts.values())).conditions
        self._waiting: deque[int] = deque()
        self._late: dict[str, tuple[float, int]] = {}  # rewards that came late: sum and count
        self._wake: Callable[[], object] = lambda: None  # set by `begin`
        if self.needed:
            with self._core.table.transaction():
                self._core.judge = self.hold

    @property
    def needed(self) -> bool:
        """Whether there are cells that come late."""
        return bool(self._core.needs)

    def begin(self, wake: Callable[[], object]) -> None:
        """Judge from now on; `wake` lets `run` look again, and any thread may call it."""
        self._wake = wake
        self.look_again()

    def look_again(self) -> None:
        """Judge first what became whole before, in another life too."""
        core = self._core
        with core.table.transaction():
            self._waiting.clear()
            for name in self._contexts:
                unready = core.where(name, Status.COMPLETED, False)
                for key in core.storage.find(None, unready, visible=True).tolist():
                    if not any(cell in core.needs for cell in core.entries[key].lacks):
                        self._waiting.append(key)

    def end(self) -> None:
        """Let groups through as they come."""
        with self._core.table.transaction():
            if self._core.judge == self.hold:  # and not that of a manager that came after
                self._core.judge = None

    def hold(self, keys: list[int]) -> list[int]:
        """Some groups are whole: returns those that are ready. Under the lock, by any thread."""
        core = self._core
        unready = core.where(None, Status.COMPLETED, False)
        found = core.storage.find(np.array(keys, np.uint64), unready, visible=True).tolist()
        held = [key for key in found if core.entries[key].task in self._contexts]
        if held:
            self._waiting.extend(held)
            self._wake()
        if len(held) < len(found):
            self._score([key for key in found if key not in set(held)])
        return [key for key in keys if key not in set(held)]

    def _score(self, keys: list[int]) -> None:
        """Count the rewards of groups that nobody judges, when they are ready."""
        batch = self._core.storage.get(np.array(keys, np.uint64), ["reward"]).read(np.empty)
        starts, present = batch.info.row_offsets.tolist(), batch.present["reward"]
        for place, task in enumerate(batch.info.task.tolist()):
            rows = slice(starts[place], starts[place + 1])
            rewards = np.asarray(batch["reward"])[rows][present[rows]]
            total, count = self._late.get(task, (0.0, 0))
            self._late[task] = (total + float(rewards.sum()), count + rewards.size)

    def collect(self) -> None:
        """What was counted since is in the windows now."""
        with self._core.table.transaction():
            late, self._late = self._late, {}
        for task, (total, count) in late.items():
            if task in self._all:
                window = self._all[task].progress.window
                window.reward_sum += total
                window.reward_count += count

    async def run(self) -> None:
        """Judge what waits. After an error it goes on when production does."""
        conditions = self._conditions
        while True:
            await conditions.changed.until(lambda: self._waiting and conditions.error is None)
            key = self._waiting[0]
            try:
                await self._judge(key)
            except Exception as error:  # it is judged again then
                conditions.fail(error)
                continue
            if self._waiting and self._waiting[0] == key:  # unless all was looked at anew
                self._waiting.popleft()

    async def _judge(self, key: int) -> None:
        try:
            group = self._buffer.get(np.array([key], np.uint64))[0]
        except UnknownKey:  # it left, or expired and was generated again
            return
        context = self._contexts[group.task]
        try:
            valid = await context.task.strategy.judge(context, group)
        except asyncio.CancelledError as error:
            if is_asked_to_end():
                raise
            raise cancelled_by_itself(group.task, error) from error
        self._settle(key, group, valid)

    def _settle(self, key: int, group: Group, valid: bool) -> None:
        """Let a group through, or let it go; unless it has expired in the meantime."""
        core, window = self._core, self._contexts[group.task].progress.window
        with core.table.transaction():
            unready = core.where(group.task, Status.COMPLETED, False)
            found = core.storage.find(np.array([key], np.uint64), unready, visible=True)
            if not found.size:
                return
            window.score(group)
            if valid:
                core.storage.update(found, {"ready": True})
                core.table.effects.emit(Updated, found, {"ready": True})
                core.table.gate.arrivals.changed(1)
            else:
                window.filtered += 1
                core.remove(found, "filtered")
        self._conditions.changed.notify()
