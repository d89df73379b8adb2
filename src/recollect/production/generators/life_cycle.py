"""What becomes of a rollout while a generator works on it: begun, grown, ended, aborted.

Every included generator does these steps through here, so that versions, logprobs and masks of a
response that was made in several parts always belong to its tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

import numpy as np

from recollect.rollouts.rollout import Rollout, Status

UNSURE = "versions"  # the name in `extras` under which a rollout says "dispatch"


def begin(rollout: Rollout, version: int, keep_partial: bool) -> None:
    """Make a rollout ready to be generated with the weights of a version.

    What was generated before is kept, to go on from, if that is wanted; else the rollout goes back
    to its prompt, as another attempt. The dispatch version is that of the first part.
    """
    partial = rollout.num_tokens > 0
    if (partial and not keep_partial) or rollout.status is Status.FAILED:
        rollout.reset(Status.INIT)
        partial = False
    if not partial or rollout.dispatch_version is None:
        rollout.dispatch_version = version
    if not partial:
        rollout.extras.pop(UNSURE, None)
    rollout.finish_reason = None
    rollout.status = Status.INIT  # until it ends


def abort(rollout: Rollout, keep_partial: bool) -> None:
    """Mark a rollout whose generation was broken off."""
    if not keep_partial and rollout.num_tokens:
        dispatched = rollout.dispatch_version
        rollout.reset(Status.ABORTED)
        rollout.dispatch_version = dispatched  # so that it expires like any other
    rollout.finish_reason = "abort"


def fail(rollout: Rollout, error: str) -> None:
    """Mark a rollout that could not be generated."""
    rollout.finish_reason = "error"
    rollout.error = error


def grow(
    rollout: Rollout,
    tokens: Sequence[int],
    logprobs: Sequence[float] | None,
    versions: Sequence[int],
    text: str | None = None,
) -> None:
    """Append what was generated: tokens, a logprob and a version for each, and their text."""
    before = rollout.num_tokens
    old = rollout.versions
    first = rollout.dispatch_version
    if first is None:
        first = versions[0] if len(versions) else 0
    known = np.full(before, first, np.int32)
    if old is not None:
        known[: len(old)] = old
    rollout.versions = np.concatenate([known, np.asarray(versions, np.int32)])
    if logprobs is not None or rollout.logprobs is not None:
        nothing = np.full(before, np.nan, np.float32)
        new = np.full(len(tokens), np.nan) if logprobs is None else logprobs
        rollout.logprobs = np.concatenate(
            [nothing if rollout.logprobs is None else rollout.logprobs, np.asarray(new, np.float32)]
        )
    if rollout.loss_mask is not None:
        rollout.loss_mask = np.concatenate([rollout.loss_mask, np.ones(len(tokens), np.int8)])
    rollout.response_ids = np.concatenate([rollout.response_ids, np.asarray(tokens, np.int32)])
    if text is not None:
        _say(rollout, text)


def stamp(rollout: Rollout, begun: int, version: int, now: int) -> None:
    """Give tokens without a version the one they were dispatched with, and say so if in doubt.

    The first `begun` tokens were there before, and keep what they have. Where the weights of `now`
    are others than those of the dispatch, later tokens may be of either.
    """
    tokens = rollout.num_tokens
    known = 0 if rollout.versions is None else len(rollout.versions)
    if known >= tokens:
        return
    versions = np.full(tokens, version, np.int32)
    if rollout.dispatch_version is not None:
        versions[:begun] = rollout.dispatch_version
    if rollout.versions is not None:
        versions[:known] = rollout.versions
    rollout.versions = versions
    if now != version:
        doubt(rollout)


def doubt(rollout: Rollout) -> None:
    """Let a rollout say that its tokens have the version at dispatch, for want of a better one."""
    rollout.extras[UNSURE] = "dispatch"


def _say(rollout: Rollout, text: str) -> None:
    turns = list(rollout.turns or [])
    if turns and turns[-1].get("role") == "assistant":
        turns[-1] = {**turns[-1], "content": turns[-1]["content"] + text}
    else:
        turns.append({"role": "assistant", "content": text})
    rollout.turns = turns


async def together(members: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run the members of a group side by side; one that raises ends the others, and is raised."""
    if len(members) == 1:
        await members[0]
        return
    tasks = [asyncio.ensure_future(member) for member in members]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
