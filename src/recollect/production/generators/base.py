"""`Generator`: what turns prompts into responses. The interface, and nothing else.

Everything here is called on the manager's event loop, `generate` many times at once.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from recollect.rollouts.group import Group
from recollect.rollouts.rollout import Rollout, Status

UNFINISHED = (Status.INIT, Status.ABORTED, Status.EXPIRED)


@runtime_checkable
class Generator(Protocol):
    """Generates groups, can be paused, and knows which weights it generates with.

    One generator may serve several tasks; a manager then pauses and continues it once.
    """

    async def generate(self, group: Group, *, keep_partial: bool) -> Group:
        """Generate the unfinished members of a group (`to_generate`), and return the group.

        It may be the same object, changed, or another one with the same `group_id`. Each member
        that was generated says how it ended by its `finish_reason`: `stop`, `length`,
        `tool_calls`, `abort` (paused before its end) or `error`, with what went wrong in `error`.
        A group with such an error is counted as failed and leaves. An exception, in contrast, is
        the failure of the generator itself: it stops production and is raised at the trainer.

        With `keep_partial` an aborted member keeps what it has, and one that comes with a response
        goes on from prompt + response with what is left of its tokens. Without it, what an aborted
        member has is dropped.

        A generator that knows the version of each token sets `rollout.versions`; where it does
        not, tokens take the version at which the group was sent (`rollout.dispatch_version`).

        It may be cancelled: whatever runs elsewhere on its behalf is to be ended then.
        """

    async def pause(self) -> None:
        """Ask every running `generate` to return soon, aborted where it must. May be repeated.

        Returns when that was asked for, not when they have returned.
        """

    async def continue_(self, version: int) -> None:
        """After a pause, or at first: `generate` works again, with the weights of this version."""

    async def set_version(self, version: int) -> None:
        """New weights while generations run: nothing is aborted."""


def to_generate(group: Group) -> list[Rollout]:
    """The members of a group that are not finished: the others keep what they have."""
    return [rollout for rollout in group if rollout.status in UNFINISHED]
