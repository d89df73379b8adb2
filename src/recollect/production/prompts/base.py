"""`Prompts`: where groups to generate come from; and how a group becomes a prompt again.

A prompt is a `Group` of INIT rollouts. Sources know no task: who draws a prompt sets it.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any, Protocol, runtime_checkable

from recollect.rollouts.group import Group
from recollect.rollouts.rollout import Rollout, Status


@runtime_checkable
class Prompts(Protocol):
    """A source of prompts. All calls are immediate and come from the manager's event loop."""

    def next(self) -> Group:
        """The next prompt: a group of n INIT rollouts. Those given back come first, in order.

        Raises `OutOfPrompts` where there is none left (a source with a limited number of epochs);
        after `give_back` there may be one again.
        """

    def give_back(self, group: Group) -> None:
        """A prompt that was handed out and not trained: it comes again, with its `group_id`.

        What was generated is not kept: a source keeps `prompt_of(group)`.
        """

    def exclude(self, group: Group) -> None:
        """Never again, in any epoch: for instance because it is solved."""

    def state(self) -> Mapping[str, Any]:
        """All that decides what comes next, as JSON: position, epoch, given back, excluded."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""


@runtime_checkable
class Indexed(Prompts, Protocol):
    """A source that knows its prompts by the ids of their groups. All included ones do.

    Others work too: their prompts are saved whole, and what was drawn after a checkpoint comes
    again.
    """

    def find(self, group_id: str) -> Group | None:
        """The prompt of an id that this source made, INIT, None where it did not make it."""

    def withdraw(self, group_id: str) -> bool:
        """That group exists already: `next` does not hand it out again. False: not an id of it."""


def prompt_of(group: Group) -> Group:
    """A group as it was before anything was generated: the same ids, its rollouts INIT again.

    The group that is given is not changed. A trajectory that was cut into segments is one rollout
    again.
    """
    prompt = Group.__new__(Group)
    for name in ("task", "group_id", "prompt_ids", "prompt", "ground_truth", "blobs"):
        setattr(prompt, name, getattr(group, name))
    prompt.extras = dict(group.extras)
    prompt.key = prompt.priority = None
    prompt.times_used, prompt.deliveries = 0, 1
    first: dict[str, Rollout] = {}
    for rollout in group.rollouts:
        if rollout.segment == 0 or rollout.rollout_id not in first:
            first[rollout.rollout_id] = rollout
    prompt.rollouts = [_blank(rollout) for rollout in first.values()]
    return prompt


def _blank(rollout: Rollout) -> Rollout:
    blank = copy(rollout)
    blank.reset(Status.INIT)  # sets other arrays, and changes none that the original has
    if rollout.status is Status.INIT:
        blank.attempt = rollout.attempt  # nothing was tried
    blank.segment = 0
    blank.extras = dict(rollout.extras)
    return blank
