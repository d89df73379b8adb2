"""Strategies: how one task's share of a batch gets produced.

A strategy is a value: what is under way is in the context, so one strategy may serve many tasks.
It looks at how much is missing, starts generations, and sleeps until something changed; results
store themselves (`generation.py`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import ClassVar

from recollect.base.arguments import flag, whole
from recollect.errors import InvalidValue, shown
from recollect.production.context import Context
from recollect.production.generation import fly, leave, resolved, store
from recollect.production.pending import Flight
from recollect.production.progress import TaskProgress
from recollect.rollouts.group import Group
from recollect.rollouts.rollout import Status
from recollect.rollouts.values import reward_of


class Outcome(Enum):
    """How `produce` ended."""

    PRODUCED = "produced"  # nothing is missing
    STOPPED = "stopped"
    OUTDATED = "outdated"  # the weights are too old for the step
    EXHAUSTED = "exhausted"  # something is missing, and there are no prompts left


class Strategy(ABC):
    """How a task's batch gets produced. Subclasses say what to start, and how generations end."""

    ages: ClassVar[bool] = True  # whether what it produces can be too old
    over_sample: float = 0.0
    keep_partial: bool = False

    async def produce(self, ctx: Context) -> Outcome:
        """Produce until nothing is missing, production stops, or the weights are too old."""
        round_ = Round()
        changed = ctx.conditions.changed
        while True:
            if ctx.stopping:
                return Outcome.STOPPED
            seen = changed.count
            counts = ctx.observe()
            if counts.shortage <= 0:
                return await self.finish(ctx)
            if ctx.outdated:  # before anything that is in flight is touched
                return Outcome.OUTDATED
            self.start(ctx, counts, round_)
            if ctx.exhausted and not len(ctx.pending):
                return Outcome.EXHAUSTED
            await changed.after(seen)

    @abstractmethod
    def start(self, ctx: Context, counts: TaskProgress, round_: Round) -> None:
        """Start what should be in flight now, and is not. Does not wait."""

    async def finish(self, ctx: Context) -> Outcome:
        """Nothing is missing."""
        return Outcome.PRODUCED

    async def pause(self, ctx: Context) -> None:
        """After a stop: wait until nothing is in flight."""
        await ctx.pending.drained()

    def in_flight(self, ctx: Context) -> int:
        """Generations that are under way, or being stored."""
        return len(ctx.pending)

    # -- how generations end ----------------------------------------------------------------------
    async def judge(self, ctx: Context, group: Group) -> bool:
        """Whether a whole group is worth training on. May take its time."""
        valid = ctx.task.valid
        return valid is None or bool(await resolved(valid(group)))

    async def completed(self, ctx: Context, flight: Flight, group: Group, seconds: float) -> None:
        """Store a whole group."""
        if await store(ctx, flight, group) is not None:
            ctx.progress.window.groups += 1
            ctx.remember(group.group_id, seconds)

    async def failed(self, ctx: Context, flight: Flight, group: Group, seconds: float) -> None:
        """A member could not be generated: the group leaves."""
        leave(ctx, group, "failed")

    async def aborted(self, ctx: Context, flight: Flight, group: Group) -> None:
        """A pause came first: the prompt comes again."""
        ctx.give_back(flight)


class Round:
    """What one call of `produce` remembers."""

    retries = False  # whether expired groups are generated again, so that nothing is over-sampled


@dataclass(frozen=True)
class SyncStrategy(Strategy):
    """Starts one batch, refills what fails or is filtered, and stops at exactly enough.

    Always from the prompt: what expired or was aborted goes back to its source, and comes from
    there. Nothing is left running when a batch is there.
    """

    def start(self, ctx: Context, counts: TaskProgress, round_: Round) -> None:
        for status in (Status.EXPIRED, Status.ABORTED):
            ctx.send_home(status)  # nobody here would go on with them, and they take room
        missing = counts.shortage
        ctx.start_new(missing - len(ctx.pending), partial(fly, ctx, self), missing)

    async def finish(self, ctx: Context) -> Outcome:
        await ctx.pending.drained()
        return Outcome.PRODUCED


@dataclass(frozen=True)
class AsyncStrategy(Strategy):
    """Keeps generations going beyond a batch, and continues what was aborted or expired.

    In flight is topped up to target + ceil(over_sample · task batch) - available. What is not
    needed for this step runs on, and counts for the next.

    Args:
        over_sample: More generations than the batch needs, as a share of it, so that the slowest
            do not hold it up.
        keep_partial: Whether an aborted response goes on from where it was; otherwise it begins
            again. Members that are finished are kept in any case.
        retry_trigger: 0 retries expired groups at once. N > 0 waits for N of them, and then
            generates EXPIRED first, then ABORTED, then new ones, without over-sampling.
    """

    over_sample: float = 0.0
    keep_partial: bool = False
    retry_trigger: int = 0

    def __post_init__(self) -> None:
        share = self.over_sample
        if not isinstance(share, int | float) or isinstance(share, bool) or not 0 <= share < 1e6:
            raise InvalidValue(f"over_sample: expected a share of 0 or more, got {shown(share)}")
        flag("keep_partial", self.keep_partial)
        whole("retry_trigger", self.retry_trigger, 0)

    def start(self, ctx: Context, counts: TaskProgress, round_: Round) -> None:
        expired = ctx.stored(Status.EXPIRED)
        if self.retry_trigger and expired >= self.retry_trigger:
            round_.retries = True
        extra = 0 if round_.retries else math.ceil(self.over_sample * ctx.batch)
        limit = counts.target + extra - counts.available
        run = partial(fly, ctx, self)
        if round_.retries:
            order: tuple[Status, ...] = (Status.EXPIRED, Status.ABORTED)
        elif self.retry_trigger:
            order = (Status.ABORTED,)
        else:
            order = (Status.ABORTED, Status.EXPIRED)
        for status in order:
            ctx.start_stored(limit - len(ctx.pending), status, run, limit)
        ctx.start_new(limit - len(ctx.pending), run, limit)
        if not len(ctx.pending) and expired:
            # No prompts left, or no room for new ones: waiting for more to expire would be forever.
            ctx.start_stored(limit, Status.EXPIRED, run, limit)

    async def aborted(self, ctx: Context, flight: Flight, group: Group) -> None:
        """A pause came first: the group waits in the buffer, with or without what it has."""
        if not self.keep_partial:
            for rollout in group:
                if rollout.status is Status.ABORTED and rollout.num_tokens:
                    rollout.reset(Status.ABORTED)
        ctx.progress.window.aborted += 1
        await store(ctx, flight, group)


@dataclass(frozen=True)
class EvalStrategy(Strategy):
    """Evaluates a fixed set of prompts: no refill, no filter, no staleness.

    Its groups carry the version of the weights as an extra, `version`, and none in their tokens:
    so they never expire, whatever the buffer's rule says.

    Args:
        failed_reward: What a rollout that could not be generated scores.
    """

    failed_reward: float = 0.0
    ages: ClassVar[bool] = False

    def __post_init__(self) -> None:
        reward_of(self.failed_reward)

    def start(self, ctx: Context, counts: TaskProgress, round_: Round) -> None:
        missing = counts.shortage
        ctx.start_new(missing - len(ctx.pending), partial(fly, ctx, self), missing)

    async def finish(self, ctx: Context) -> Outcome:
        await ctx.pending.drained()
        return Outcome.PRODUCED

    async def judge(self, ctx: Context, group: Group) -> bool:
        """Nothing is filtered."""
        return True

    async def completed(self, ctx: Context, flight: Flight, group: Group, seconds: float) -> None:
        """Store it, without a version that could expire."""
        for rollout in group:
            rollout.versions = rollout.dispatch_version = None
        group.extras["version"] = flight.version
        if await ctx.buffer.put(group) is not None:
            ctx.progress.window.groups += 1
            ctx.remember(group.group_id, seconds)

    async def failed(self, ctx: Context, flight: Flight, group: Group, seconds: float) -> None:
        """Failures are part of the score."""
        ctx.progress.window.failed += 1
        for rollout in group:
            if rollout.status is not Status.COMPLETED:
                rollout.reward = self.failed_reward
                rollout.status = Status.COMPLETED
        await self.completed(ctx, flight, group, seconds)
