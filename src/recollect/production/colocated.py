"""`ColocatedManager`: generation and training take turns on the same devices."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from recollect.base.arguments import whole
from recollect.production.manager import Manager
from recollect.production.results import BatchResult, State
from recollect.production.strategies import Outcome
from recollect.production.taker import take_unless
from recollect.production.task import BatchSize
from recollect.rollouts.groups import TakenBatch


class ColocatedManager(Manager):
    """Produces a batch when it is asked for one, and has nothing in flight when it returns it.

    >>> import asyncio
    >>> import recollect as rc
    >>> from recollect import production
    >>> async def answer(group, rollout):
    ...     return rc.Rollout(response_ids=[7], reward=1.0, finish_reason="stop")
    >>> async def main():
    ...     prompts = production.ListPrompts([[1, 2], [3, 4]], n=4)
    ...     generator = production.FunctionGenerator.each(answer)
    ...     task = production.Task("math", prompts, generator)
    ...     manager = production.ColocatedManager([task], rc.RolloutBuffer())
    ...     result = await manager.produce_batch(2, train_step=1)
    ...     await manager.confirm(result)
    ...     return result.taken, manager.state
    >>> asyncio.run(main())
    ({'math': 2}, <State.PAUSED: 'PAUSED'>)
    """

    async def produce_batch(
        self,
        batch_size: BatchSize,
        train_step: int,
        *,
        version: int | None = None,
        lease: float | bool = True,
    ) -> BatchResult:
        """Produce the batch of a train step: continue, produce all tasks, pause, drain, take.

        `batch_size` is shared among the tasks by their weights, or says how many groups each has.
        `version` is that of the weights that generate; None means that they are sent every
        `sync_interval` steps, so with an interval of 2 steps 1, 2, 3 use versions 0, 0, 2.
        """
        step = whole("train_step", train_step, 1)
        began = self._bind().time()
        sizes = self.sizes_of(batch_size)
        if version is None:
            interval = min(context.staleness.sync_interval for context in self.contexts.values())
            version = (step - 1) // interval * interval
        while True:
            await self.continue_(version)
            await self.buffer.advance(step)
            self.look()
            self.progress.plan_only(step, sizes)
            self.progress.consume(step)
            status = await self._turn_of_generation(sizes, step)
            taken = None
            if status is State.RUNNING:
                self.progress.produced()
                falls_short = partial(self._falls_short, sizes)
                found = await take_unless(
                    self.buffer, sizes, step, lease, self._changed, falls_short
                )
                if found is State.RUNNING:  # late rewards were judged, and some are missing now
                    continue
                if isinstance(found, TakenBatch):
                    taken = found
                else:
                    status = found
            elif status is State.FINISHED:  # the last of the last prompts
                taken = await self._rest(sizes, step, lease)
            if taken is not None:
                self.progress.consume(step + 1)
                self.look()
            return self._result(status, step, sizes, taken, lease, began)

    async def evaluate(
        self, sizes: Mapping[str, int], *, lease: float | bool = True
    ) -> BatchResult:
        """Produce so many groups of tasks that evaluate, with the weights of now, and take them.

        The groups carry their version: `group.extras["version"]`.
        """
        self._bind()
        step = self.buffer.train_step
        self._begin_evaluation(name for name, size in self.sizes_of(sizes).items() if size)
        result = await self.produce_batch(sizes, step, version=self.version, lease=lease)
        self._forgo(result.status, sizes)
        return result

    async def _turn_of_generation(self, sizes: Mapping[str, int], step: int) -> State:
        """All tasks produce, and pause when the slowest is done; RUNNING where all went well."""
        outcomes = await self._produce(sizes, step)
        if self.error is not None:
            raise self.error  # at once: whoever catches it may pause, and then save
        await self.pause()
        if self.error is not None:  # of one that was still running
            raise self.error
        self.look()
        # What a task without a share lacks from before does not matter now.
        shares = [outcome for size, outcome in zip(sizes.values(), outcomes, strict=True) if size]
        if self._closed or Outcome.EXHAUSTED in shares:
            return State.FINISHED
        if Outcome.OUTDATED in shares:
            return State.OUTDATED
        return State.PAUSED if Outcome.STOPPED in outcomes else State.RUNNING

    def _falls_short(self, sizes: Mapping[str, int]) -> State | None:
        """Whether what was produced is not enough any more."""
        if self._closed:
            return State.FINISHED
        if self.error is not None:
            raise self.error
        self.look()
        short = any(self.progress[task].shortage > 0 for task, size in sizes.items() if size)
        return State.RUNNING if short else None
