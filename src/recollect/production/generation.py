"""One generation, from dispatch to its end: generated, scored, claimed, counted, stored.

Each is an asyncio task of its own, so nobody has to collect results: what is finished stores
itself, also while its strategy sleeps or a pause waits. How the ends differ between strategies is
theirs to say (`completed`, `aborted`, `failed`).
"""

from __future__ import annotations

import asyncio
import inspect
from contextlib import suppress
from typing import Any

from recollect.errors import JournalError, ProductionError, shown
from recollect.production.context import Context, StrategyLike
from recollect.production.generators.life_cycle import doubt
from recollect.production.pending import Flight
from recollect.rollouts.group import Group
from recollect.rollouts.rollout import Status

ENDS = (Status.COMPLETED, Status.ABORTED, Status.FAILED, Status.FILTERED)
UNASKED = 1.0  # seconds until what was aborted without a pause is stored, and sent again


async def fly(ctx: Context, strategy: StrategyLike, flight: Flight) -> None:
    """Generate a group and bring it to its end; never raises what a generator raises."""
    pending = ctx.pending
    try:
        group, status = await _generated(ctx, strategy, flight)
    except asyncio.CancelledError as error:
        # Either `cancel` ended the flight, and who called it has given the prompt back: then
        # claiming fails. Or the event loop itself ends: then nobody has.
        if pending.claim(flight):
            _end(ctx, flight)
        if is_asked_to_end():
            raise
        ctx.conditions.fail(cancelled_by_itself(ctx.name, error))
        return
    except Exception as error:
        if pending.claim(flight):
            _end(ctx, flight)
            ctx.conditions.fail(error)
        return
    if not pending.claim(flight):
        return
    # Claimed: nothing can cancel it any more, so only what never waits for others may follow. That
    # is putting it into the room that was reserved.
    try:
        await _settle(ctx, strategy, flight, group, status)
    except JournalError as error:  # it is stored, and nobody knows whether it would survive
        pending.done(flight)
        ctx.conditions.fail(error)
    except Exception as error:  # it is not: storing is the last thing in there that can raise
        _end(ctx, flight)
        ctx.conditions.fail(error)
    except BaseException:  # the event loop ends, perhaps while the journal's disk is awaited
        if ctx.buffer.find(flight.group_id) is None:
            _end(ctx, flight)
        else:
            pending.done(flight)
        raise
    else:
        pending.done(flight)


def is_asked_to_end() -> bool:
    """Whether somebody cancelled what runs here, so that it was not other people's code."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def cancelled_by_itself(task: str, error: asyncio.CancelledError) -> ProductionError:
    """What a cancellation is that nobody asked for: the failure of who raised it."""
    told = ProductionError(
        f"a generation of task {task!r} was cancelled, and not by production: its generator, "
        "reward or filter raised CancelledError, as clients do whose connection was closed"
    )
    told.__cause__ = error
    return told


def _end(ctx: Context, flight: Flight) -> None:
    """A claimed flight ends without a result. Nothing awaits, so the prompt is never nowhere."""
    try:
        ctx.give_back(flight)
    except Exception as error:  # the source's own
        ctx.conditions.fail(error)
    ctx.pending.done(flight)


async def _generated(ctx: Context, strategy: StrategyLike, flight: Flight) -> tuple[Group, Status]:
    """Generate, count what came, score and judge it: all that other people's code does.

    What is judged not worth training on is FILTERED from here on.
    """
    task, version = ctx.task, ctx.version
    if version != flight.version:
        flight.send(version, asyncio.get_running_loop().time())
    for rollout in flight.group.rollouts:
        if not len(rollout.response_ids):  # one that goes on keeps the version it began with
            rollout.dispatch_version = version
    group = await task.generator.generate(flight.group, keep_partial=strategy.keep_partial)
    status = _checked(group, flight, "generator")
    _count(ctx, flight, group, status)
    if status is Status.ABORTED and not ctx.stopping:
        await _rest(ctx)
    if status is not Status.COMPLETED:
        return group, status
    if task.reward is not None:
        group = await resolved(task.reward(group))
        status = _checked(group, flight, "reward")
        if status is not Status.COMPLETED:
            return group, status
    if ctx.is_whole(group):  # what lacks a cell is scored and judged later: see `judge.py`
        ctx.progress.window.score(group)
        if not await strategy.judge(ctx, group):
            status = Status.FILTERED
    return group, status


async def _rest(ctx: Context) -> None:
    """Aborted, and nobody asked for it: the engine is paused by somebody else, or overloaded.

    It would be sent again at once, and come back at once, with all speed.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(UNASKED):
            await ctx.conditions.changed.until(lambda: ctx.stopping)


async def resolved(value: Any) -> Any:
    """What a function returned, which may have been a coroutine."""
    return await value if inspect.isawaitable(value) else value


def _checked(group: Any, flight: Flight, who: str) -> Status:
    """The status of what came back; raises where it is not what was asked for."""
    where = f"{who} of task {flight.task!r}"
    if not isinstance(group, Group):
        raise ProductionError(f"{where}: expected the group it was given, got {shown(group)}")
    if group.group_id != flight.group_id or group.task != flight.task:
        raise ProductionError(
            f"{where}: expected group {flight.group_id!r} back, got {group.group_id!r} of task "
            f"{group.task!r}"
        )
    status = group.status
    if status not in ENDS:
        raise ProductionError(
            f"{where}: group {group.group_id!r} came back {status}; every member that was "
            "generated needs a finish_reason, such as 'stop', 'abort' or 'error'"
        )
    return status


def _count(ctx: Context, flight: Flight, group: Group, status: Status) -> None:
    """Count the tokens that are new, and the members that came to their end."""
    tokens, ended = -flight.tokens, len(group.rollouts)
    for rollout in group.rollouts:
        tokens += len(rollout.response_ids)
    if status is not Status.COMPLETED:
        ended -= sum(rollout.status is Status.ABORTED for rollout in group)
    if flight.original is not None:
        ended -= sum(rollout.status is Status.COMPLETED for rollout in flight.original)
    window = ctx.progress.window
    window.tokens += max(tokens, 0)
    window.rollouts += max(ended, 0)


async def _settle(
    ctx: Context, strategy: StrategyLike, flight: Flight, group: Group, status: Status
) -> None:
    """Store a claimed result, or let it go."""
    if status is Status.ABORTED:
        await strategy.aborted(ctx, flight, group)
        return
    seconds = asyncio.get_running_loop().time() - flight.started_at
    ctx.progress.window.took(seconds)
    if status is Status.COMPLETED:
        await strategy.completed(ctx, flight, group, seconds)
    elif status is Status.FAILED:
        await strategy.failed(ctx, flight, group, seconds)
    else:
        leave(ctx, group, "filtered")


async def store(ctx: Context, flight: Flight, group: Group) -> int | None:
    """Put a group; tokens whose version nobody reported take that of the dispatch, and say so.

    Returns its key, None where it was dropped or is too old.
    """
    if ctx.version != flight.version:
        for rollout in group.rollouts:
            reported = 0 if rollout.versions is None else len(rollout.versions)
            if reported < len(rollout.response_ids):
                doubt(rollout)
    account = ctx.buffer.core.accounts[ctx.name]
    expired = account.expired
    key = await ctx.buffer.put(group, version=flight.version)
    if account.expired == expired:
        return key
    _check_versions(ctx, flight, group)
    return None


def _check_versions(ctx: Context, flight: Flight, group: Group) -> None:
    """Something expired when it came. Where it should not have, it would do so again for ever."""
    reported = [r.versions[r.versions >= 0] for r in group if r.versions is not None]
    oldest = min((int(versions.min()) for versions in reported if len(versions)), default=None)
    step, rule = ctx.buffer.train_step, ctx.staleness
    if oldest is None or not rule.is_expired(step, oldest) or rule.is_expired(step, flight.oldest):
        return
    ctx.conditions.fail(
        ProductionError(
            f"generator of task {ctx.name!r}: group {group.group_id!r} was sent with the weights "
            f"of version {flight.version} and came back with tokens of version {oldest}, too old "
            f"for step {step}; report the versions that continue_ and set_version were called with"
        )
    )


def leave(ctx: Context, group: Group, reason: str) -> None:
    """A group is done with and is not stored: `failed` or `filtered`. Immediate.

    The buffer counts it, and tells those who follow its events.
    """
    ctx.room.give_back()
    window = ctx.progress.window
    if reason == "failed":
        window.failed += 1
    else:
        window.filtered += 1
    core = ctx.buffer.core
    with core.table.transaction():
        core.refuse(group, reason)
