"""`DisaggregatedManager`: generation runs in the background all the time.

One asyncio task plans and produces step after step, as far ahead as staleness allows; trainers take
from the buffer. The two meet in `progress` and wake each other through one signal.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Mapping, Sequence
from functools import partial

from recollect.base.arguments import whole
from recollect.errors import ProductionError
from recollect.production.manager import Manager
from recollect.production.results import BatchResult, State
from recollect.production.strategies import Outcome
from recollect.production.taker import take_unless
from recollect.production.task import BatchSize
from recollect.rollouts.events import AsyncEvents
from recollect.rollouts.groups import TakenBatch

DROPPING = ("drop_stalest", "drop_newest")


class DisaggregatedManager(Manager):
    """Produces ahead of the trainer, which gets batches as soon as they are there.

    >>> import asyncio
    >>> import recollect as rc
    >>> from recollect import production
    >>> async def answer(group, rollout):
    ...     return rc.Rollout(response_ids=[7], reward=1.0, finish_reason="stop")
    >>> async def main():
    ...     prompts = production.ListPrompts([[1, 2], [3, 4]], n=4)
    ...     generator = production.FunctionGenerator.each(answer)
    ...     task = production.Task("math", prompts, generator)
    ...     buffer = rc.RolloutBuffer(staleness=rc.Staleness(max_staleness=1))
    ...     manager = production.DisaggregatedManager([task], buffer)
    ...     manager.start(2)
    ...     for step in (1, 2, 3):
    ...         result = await manager.get_batch(2, train_step=step)
    ...         await manager.confirm(result)
    ...         await manager.set_version(step)
    ...     await manager.shutdown()
    ...     return result.taken
    >>> asyncio.run(main())
    {'math': 2}
    """

    _batch_size: BatchSize = 0
    _background: Sequence[asyncio.Task[None]] = ()
    # The signal's count when a target last grew, and when the look began that last found all
    # prompts used up: it says something about targets that were there by then.
    _asked_at = _exhausted_at = 0

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self._background = ()  # that of an event loop that ended is over
        super()._begin(loop)

    # -- producing --------------------------------------------------------------------------------
    def start(self, batch_size: BatchSize, *, version: int | None = None) -> None:
        """Begin to produce batches of this size. On an event loop; elsewhere use `sync.start`.

        `version` is that of the weights that generate, 0 where nothing else is known: the first
        step is the one after it. With reuse, where a trainer samples groups several times, the
        size is the number of fresh groups that each step adds. A manager that was restored waits
        for `continue_`.
        """
        loop = self._bind()
        if self._background or self._closed:
            raise ProductionError("start: production was started before; pause and continue it")
        self.sizes_of(batch_size)
        self._batch_size = batch_size
        if version is not None:
            self.progress.consume(whole("version", version, 0) + 1)
        waits = version is None and self._restored
        if self._conditions.stopping and not waits:  # else `continue_` came first, or will come
            self._begins_with = self.version if version is None else version
        kinds = ["expired", "discarded", "retried"]
        if self._drops():  # there may be room for a step when a trainer has taken from the buffer
            kinds += ["taken", "confirmed"]
        events = self.buffer.events(*kinds, keep=0)
        self._background = [loop.create_task(self._follow(events)), loop.create_task(self._run())]

    async def _run(self) -> None:
        """Produce step after step. What goes wrong is the trainer's to see; then this waits."""
        if self._begins_with is not None:  # and no pause came before the beginning
            try:
                await self.continue_(self._begins_with)
            except Exception as error:
                self._conditions.fail(error)
        while True:
            await self._changed.until(lambda: not self._conditions.stopping)
            try:
                await self._advance()
            except Exception as error:
                self._conditions.fail(error)

    async def _advance(self) -> None:
        """Produce what is missing, or else the next step, or wait until either is possible."""
        progress = self.progress
        looked = self._changed.count
        self.look()
        if self.buffer.train_step > progress.consumer_step:  # of a trainer who asks the buffer
            progress.consume(self.buffer.train_step)
        missing = [name for name, counts in progress.items() if counts.shortage > 0]
        if not missing:
            progress.produced()  # also where the last ones came while production was paused
        # A trainer that is ahead of the plan trains what is missing at its own step.
        step = max(progress.target_step + (not missing), progress.consumer_step)
        if self._outdated_for(step, missing):
            self._become(State.OUTDATED)
            await self._changed.after(self._changed.count)
            return
        if self._state is not State.FINISHED:
            self._become(State.RUNNING)
        if not missing:
            if not self._has_room():
                await self._changed.after(self._changed.count)
                return
            progress.plan(self.sizes_of(self._batch_size))
        sizes = progress.allocation(progress.target_step) or self.sizes_of(self._batch_size)
        outcomes = await self._produce(sizes, step)
        if all(outcome is Outcome.PRODUCED for outcome in outcomes):
            progress.produced()
            self._become(State.RUNNING)
        elif Outcome.EXHAUSTED in outcomes and not self._conditions.stopping:
            news = self._changed.count != looked  # such as a trainer who wants more: look again
            self._state, self._exhausted_at = State.FINISHED, looked
            self._changed.notify()
            if not news:
                await self._changed.after(self._changed.count)  # prompts may be given back

    def _has_room(self) -> bool:
        """Whether one more step fits into a buffer that drops what does not.

        Else what is dropped would be missing, and be generated again, for ever.
        """
        capacity = self.buffer.core.capacity
        if capacity is None or not self._drops():
            return True
        ahead = sum(counts.target - counts.consumed for counts in self.progress.values())
        more = sum(
            size + math.ceil(self.tasks[name].strategy.over_sample * size)
            for name, size in self.sizes_of(self._batch_size).items()
        )
        return ahead <= 0 or ahead + more <= capacity

    def _drops(self) -> bool:
        core = self.buffer.core
        return core.capacity is not None and core.overflow in DROPPING

    def _outdated_for(self, step: int, missing: Collection[str]) -> bool:
        """Whether the weights are too old for a step, for some task of which groups are missing;
        where none is, for some that has a share in the next step."""
        if missing:
            return any(self.contexts[name].outdated_for(step) for name in missing)
        sizes = self.sizes_of(self._batch_size)
        ages = [each for name, each in self.contexts.items() if sizes[name] and each.ages]
        # Where nothing ages nobody would ever stop to plan.
        return any(context.is_beyond(step) for context in ages or self.contexts.values())

    def _become(self, state: State) -> None:
        """Change the state, unless a pause or the end came first: those decide."""
        if self._conditions.stopping or self._closed or self._state is state:
            return
        self._state = state
        self._changed.notify()

    async def _follow(self, events: AsyncEvents) -> None:
        """What expired or was discarded may be missing now."""
        async for batch in events:
            for event in batch:
                if event.task in self.contexts and event.kind != "taken":  # the result reads those
                    self.contexts[event.task].durations.pop(event.group_id, None)
            self._changed.notify()

    # -- consuming --------------------------------------------------------------------------------
    async def get_batch(
        self, batch_size: BatchSize, train_step: int, *, lease: float | bool = True
    ) -> BatchResult:
        """Wait for the batch of a train step, and take it.

        Advances to the step first, so that what is too old for it expires, and to the next one
        afterwards, so that retries start while this one trains. The result is empty where the
        weights must be synced first (status OUTDATED: do so and ask again) or where production was
        shut down (FINISHED). When the prompts are used up it has what is left.

        Raises what a generator, a reward, a filter or a source of prompts failed with, and
        `ProductionError` where the batch cannot come: the weights are the newest there are, they
        are too old for what is missing, and nothing is in flight.
        """
        step = whole("train_step", train_step, 1)
        began = self._bind().time()
        sizes = self.progress.allocation(step)
        if sizes is None or isinstance(batch_size, Mapping) or sum(sizes.values()) != batch_size:
            sizes = self.sizes_of(batch_size)
        await self._move_to(step)
        if self.progress.target_step < step and not self.progress.covers(sizes):
            self.progress.plan(sizes)  # this call comes before production has planned the step
        taken, status = await self._take(sizes, step, lease)
        if taken is not None:
            try:
                await self._move_to(step + 1)
            except BaseException:  # who gets no batch must hold none
                self.buffer.sync.give_back(taken.lease)
                raise
        return self._result(status, step, sizes, taken, lease, began)

    async def evaluate(
        self, sizes: Mapping[str, int], *, lease: float | bool = True
    ) -> BatchResult:
        """Produce so many groups of tasks that evaluate, now, and take them.

        Training goes on beside it, and its step stays where it is. The groups carry the version of
        the weights that generated them: `group.extras["version"]`.
        """
        began = self._bind().time()
        step = self.buffer.train_step
        asked = {name: size for name, size in self.sizes_of(sizes).items() if name in sizes}
        self._begin_evaluation(asked)
        taken, status = await self._take(asked, step, lease)
        self._forgo(status, asked)
        return self._result(status, step, asked, taken, lease, began)

    async def _move_to(self, step: int) -> None:
        """The trainer is at a step: what is too old for it expires, and may be produced again."""
        await self.buffer.advance(step)
        self.progress.consume(step)
        self.look()
        self._changed.notify()

    async def _take(
        self, sizes: Mapping[str, int], step: int, lease: float | bool
    ) -> tuple[TakenBatch | None, State]:
        """Wait for a batch in the buffer, or for a reason not to."""
        self._asked_at = self._changed.count  # prompts may have been given back before this call
        verdict = partial(self._verdict, sizes, step)
        found = await take_unless(self.buffer, sizes, step, lease, self._changed, verdict)
        if isinstance(found, TakenBatch):
            return found, self._state if self._state is State.OUTDATED else State.RUNNING
        if found is State.FINISHED and not self._closed:
            return await self._rest(sizes, step, lease), found
        return None, found

    def _verdict(self, sizes: Mapping[str, int], step: int) -> State | None:
        """Why waiting for a batch is in vain, None where it is not; raises what went wrong."""
        if self._closed:
            return State.FINISHED
        if self._conditions.error is not None:
            raise self._conditions.error
        if self.buffer.is_ready(sizes):
            return None
        if not self._background:
            raise ProductionError("get_batch: production was not started; call start(batch_size)")
        self.look()
        if self.progress.ask(sizes):
            self._changed.notify()
            self._asked_at = self._changed.count
        missing = [n for n, counts in self.progress.items() if counts.shortage > 0]
        if not missing:  # generated, and only rewards or other cells are awaited
            return None
        if self._state is State.FINISHED and not self._conditions.stopping:
            over = self._exhausted_at >= self._asked_at and not self.in_flight
            return State.FINISHED if over else None
        needed = max(self.progress.target_step, step)
        if self._conditions.stopping or not self._outdated_for(needed, missing):
            return None
        if step - 1 > self.version:
            return State.OUTDATED
        if self.in_flight:
            return None
        raise ProductionError(
            f"get_batch: step {step} lacks groups of {', '.join(missing)}, the weights of version "
            f"{self.version} are the newest there are and too old for step {needed}; allow more "
            f"staleness, or ask for less: {self.stats()}"
        )

    async def shutdown(self) -> None:
        """The end: nothing more is produced, and who waits gets an empty batch.

        What runs is cancelled, and its prompts are given back.
        """
        await super().shutdown()
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
