"""`Rollout`: a response to a prompt, and what the statuses of responses mean. Nothing is stored.

Arrays are NumPy. Lists are accepted and converted, lengths are checked, and an error says which
array of which rollout is wrong.
"""

from __future__ import annotations

import itertools
import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recollect.base.arrays import Array
from recollect.errors import InvalidValue, shown
from recollect.rollouts.values import (
    LARGEST_COUNT,
    Blobs,
    any_array,
    blobs_of,
    check_length,
    mask_of,
    named,
    numbers,
    reward_of,
    same_arrays,
    tokens_of,
    versions_of,
    whole_or_none,
)

LARGEST_VERSION = 1 << 61  # of a dispatch: a version and a staleness add up to an int64
NO_TOKENS = np.zeros(0, np.int32)
NO_TOKENS.setflags(write=False)


class Status(StrEnum):
    """Where a rollout, or a group, is in its life.

    >>> import recollect as rc
    >>> rc.Status.from_finish_reason("length")
    <Status.COMPLETED: 'COMPLETED'>
    """

    INIT = "INIT"
    COMPLETED = "COMPLETED"
    ABORTED = "ABORTED"
    EXPIRED = "EXPIRED"
    FAILED = "FAILED"
    FILTERED = "FILTERED"
    ARCHIVED = "ARCHIVED"

    @classmethod
    def from_finish_reason(cls, reason: str | None) -> Status:
        """The status that a finish reason gives: none and unknown ones give FAILED."""
        return FINISH_REASONS.get(reason, cls.FAILED)

    @property
    def code(self) -> int:
        """The number that stands for it in a batch's column `status`."""
        return CODES[self]


FINISH_REASONS: dict[str | None, Status] = {
    "stop": Status.COMPLETED,
    "length": Status.COMPLETED,
    "tool_calls": Status.COMPLETED,
    "abort": Status.ABORTED,
    "error": Status.FAILED,
}
STATUSES = tuple(Status)  # by code
CODES = {status: code for code, status in enumerate(STATUSES)}
WORST_FIRST = (Status.FAILED, Status.EXPIRED, Status.ABORTED, Status.FILTERED, Status.INIT)


def group_status(statuses: Iterable[Status]) -> Status:
    """The status of a group, from those of its rollouts.

    >>> from recollect.rollouts.rollout import Status, group_status
    >>> group_status([Status.COMPLETED, Status.ABORTED, Status.EXPIRED])
    <Status.EXPIRED: 'EXPIRED'>
    """
    present = list(statuses)
    if present and present.count(present[0]) == len(present):
        return present[0]
    if not present:
        raise InvalidValue("group: it has no rollouts, so it has no status; give at least one")
    for status in WORST_FIRST:
        if status in present:
            return status
    raise InvalidValue(
        "group: some rollouts are COMPLETED and others ARCHIVED; what was trained cannot be mixed "
        "with what was not"
    )


class Ids:
    """Ids that no process uses twice: random letters for the process, and a count."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self._prefix = secrets.token_hex(8)
        self._count = itertools.count()

    def __call__(self) -> str:
        return f"{self._prefix}-{next(self._count):x}"


new_id = Ids()
os.register_at_fork(after_in_child=new_id.begin)  # a fork must not go on with its parent's ids


class Rollout:
    """One response to a prompt, or one training segment of it.

    The status follows from the finish reason, unless one is given; a rollout that has neither a
    response nor a finish reason is INIT. Tokens that no weights generated (tool output) have
    version -1, logprob NaN and loss_mask 0.

    >>> import recollect as rc
    >>> rollout = rc.Rollout([5, 6], [7, 8], logprobs=[-0.1, -0.2], finish_reason="stop")
    >>> rollout.status
    <Status.COMPLETED: 'COMPLETED'>
    >>> rollout.response_ids
    array([7, 8], dtype=int32)

    Args:
        prompt_ids: Tokens of the prompt; None where the group has them.
        response_ids: Tokens of the response so far.
        logprobs: One per response token.
        loss_mask: Which response tokens train, one 0 or 1 each; None means all.
        versions: The weights that generated each response token. May end early: `put(version=...)`
            stamps the rest.
        dispatch_version: The newest weights when the prompt was sent.
        reward: A number.
        rewards: Its named parts.
        status: Where None, it follows from the finish reason.
        finish_reason: `stop`, `length`, `tool_calls`, `abort`, `error`, or what an engine says.
        error: What went wrong.
        group_id: The group it belongs to; the group sets it.
        rollout_id: Its identity; made where None.
        segment: The number of this training segment of the trajectory.
        attempt: How often it was retried.
        task: What it is for; the group sets it.
        turns: Messages and tool calls, as JSON.
        arrays: Any other arrays by name, such as reference logprobs.
        blobs: Lists of bytes by name, such as images.
        extras: Scalars and text by name.
    """

    __slots__ = (
        "_finish_reason", "_status", "arrays", "attempt", "blobs", "dispatch_version", "error",
        "extras", "group_id", "logprobs", "loss_mask", "prompt_ids", "response_ids", "reward",
        "rewards", "rollout_id", "segment", "task", "turns", "versions",
    )  # fmt: skip

    def __init__(
        self,
        prompt_ids: Any = None,
        response_ids: Any = None,
        *,
        logprobs: Any = None,
        loss_mask: Any = None,
        versions: Any = None,
        dispatch_version: int | None = None,
        reward: float | None = None,
        rewards: Mapping[str, float] | None = None,
        status: Status | str | None = None,
        finish_reason: str | None = None,
        error: str | None = None,
        group_id: str | None = None,
        rollout_id: str | None = None,
        segment: int = 0,
        attempt: int = 0,
        task: str | None = None,
        turns: Any = None,
        arrays: Mapping[str, Any] | None = None,
        blobs: Mapping[str, Sequence[bytes]] | None = None,
        extras: Mapping[str, Any] | None = None,
    ) -> None:
        self.prompt_ids: NDArray[np.int32] | None = prompt_ids
        self.response_ids: NDArray[np.int32] = NO_TOKENS if response_ids is None else response_ids
        self.logprobs: NDArray[np.float32] | None = logprobs
        self.loss_mask: NDArray[np.int8] | None = loss_mask
        self.versions: NDArray[np.int32] | None = versions
        self.dispatch_version = dispatch_version
        self.reward = reward
        self.rewards: dict[str, float] | None = None
        if rewards is not None:
            self.rewards = {**named("rewards", rewards)}
        self._status = None if status is None else as_status(status)
        self._finish_reason = finish_reason
        self.error = error
        self.group_id = group_id
        self.rollout_id: str = new_id() if rollout_id is None else rollout_id
        self.segment = segment
        self.attempt = attempt
        self.task = task
        self.turns: Any = turns
        self.arrays: dict[str, Array] = {**named("arrays", arrays)}
        self.blobs: Blobs = {name: list(cells) for name, cells in blobs_of(blobs).items()}
        self.extras: dict[str, Any] = {**named("extras", extras)}
        self.check()

    @property
    def status(self) -> Status:
        """Where it is in its life; setting `finish_reason` lets it follow from that again."""
        status = self._status
        if status is not None:
            return status
        if self._finish_reason is None and not len(self.response_ids):
            return Status.INIT
        return Status.from_finish_reason(self._finish_reason)

    @status.setter
    def status(self, status: Status | str | None) -> None:
        self._status = None if status is None else as_status(status)

    @property
    def finish_reason(self) -> str | None:
        """Why the generation ended, None while it has not."""
        return self._finish_reason

    @finish_reason.setter
    def finish_reason(self, reason: str | None) -> None:
        self._finish_reason = reason
        self._status = None

    def check(self) -> None:
        """Convert lists to arrays, and raise `InvalidValue` where something does not fit."""
        if self.prompt_ids is not None:
            self.prompt_ids = tokens_of("prompt_ids", self.prompt_ids)
        self.response_ids = tokens_of("response_ids", self.response_ids)
        tokens = len(self.response_ids)
        if self.logprobs is not None:
            self.logprobs = numbers("logprobs", self.logprobs, np.float32, "iuf")
            check_length("logprobs", self.logprobs, tokens)
        if self.loss_mask is not None:
            self.loss_mask = mask_of(self.loss_mask)
            check_length("loss_mask", self.loss_mask, tokens)
        if self.versions is not None:
            self.versions = versions_of(self.versions)
            if len(self.versions) > tokens:
                check_length("versions", self.versions, tokens)
        self.dispatch_version = whole_or_none(
            "dispatch_version", self.dispatch_version, True, LARGEST_VERSION
        )
        self.segment = whole_or_none("segment", self.segment, False, LARGEST_COUNT) or 0
        self.attempt = whole_or_none("attempt", self.attempt, False, LARGEST_COUNT) or 0
        self.reward = reward_of(self.reward)
        for name in ("error", "_finish_reason", "group_id", "rollout_id", "task"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise InvalidValue(f"{name.strip('_')}: expected text, got {shown(value)}")
        if not self.rollout_id:
            raise InvalidValue("rollout_id: expected text that is not empty; None makes one")
        check_named(self)

    def reset(self, status: Status = Status.EXPIRED) -> None:
        """Go back to the prompt for another attempt: what was generated is cleared."""
        self.response_ids = NO_TOKENS
        self.logprobs = self.loss_mask = self.versions = self.dispatch_version = None
        self.reward = self.rewards = self.error = self._finish_reason = self.turns = None
        self.arrays = {}
        self.attempt += 1
        self._status = status

    @property
    def num_tokens(self) -> int:
        """Tokens of the response."""
        return len(self.response_ids)

    def equals(self, other: object) -> bool:
        """Whether the other has the same content, array by array."""
        if not isinstance(other, Rollout) or self.status != other.status:
            return False
        plain = (
            "dispatch_version", "reward", "rewards", "_finish_reason", "error", "group_id",
            "rollout_id", "segment", "attempt", "task", "turns", "blobs", "extras",
        )  # fmt: skip
        arrays = ("prompt_ids", "response_ids", "logprobs", "loss_mask", "versions")
        return (
            all(getattr(self, name) == getattr(other, name) for name in plain)
            and all(same_arrays(getattr(self, name), getattr(other, name)) for name in arrays)
            and self.arrays.keys() == other.arrays.keys()
            and all(same_arrays(array, other.arrays[name]) for name, array in self.arrays.items())
        )

    def __repr__(self) -> str:
        reward = "" if self.reward is None else f", reward={self.reward:g}"
        return f"Rollout({self.rollout_id!r}, {self.num_tokens} tokens, {self.status}{reward})"


def check_named(rollout: Rollout) -> None:
    """Raise `InvalidValue` where what a rollout has by name is not what it must be."""
    if rollout.rewards is not None:
        rollout.rewards = named("rewards", rollout.rewards)
    rollout.extras = named("extras", rollout.extras)
    rollout.blobs = blobs_of(rollout.blobs)
    rollout.arrays = named("arrays", rollout.arrays)
    for name, array in rollout.arrays.items():
        rollout.arrays[name] = any_array(name, array)


def statuses_of(rollouts: Iterable[Rollout]) -> list[Status]:
    """The status of each rollout, with fewer calls than asking each for it."""
    return [r._status or FINISH_REASONS.get(r._finish_reason) or r.status for r in rollouts]


def finish_reasons_of(rollouts: Iterable[Rollout]) -> list[str | None]:
    """The finish reason of each rollout, with fewer calls than asking each for it."""
    return [rollout._finish_reason for rollout in rollouts]


def as_status(status: Any) -> Status:
    """A status, given as one or by its name."""
    if isinstance(status, Status):
        return status
    try:
        return Status(status)
    except (ValueError, TypeError):
        known = ", ".join(Status)
        raise InvalidValue(f"status: expected one of {known}, got {shown(status)}") from None
