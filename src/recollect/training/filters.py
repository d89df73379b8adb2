"""Filters: which rollouts do not train, and why.

A filter is a rule that names trajectories. What it drops leaves the group, as if it had never been
generated; what it masks stays in the group, where its reward counts, with weight 0, and every
array stays as long as it was. Filters go one after another, each sees what those before it left,
and a rollout is counted once, under the first that named it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from recollect.base.arguments import one_of
from recollect.errors import InvalidValue, shown
from recollect.training.advantages import Grouped
from recollect.training.selection import Flags, Rollouts, Selection, select

ACTIONS = ("drop", "mask")
UNITS = ("group", "rollout")


class Filter(ABC):
    """A rule that names rollouts; subclasses are frozen dataclasses with an `action`."""

    reason: str  # what its counts are called
    action: str

    @abstractmethod
    def names(self, selection: Selection) -> Flags:
        """Which trajectories it is about; those that were dropped do not matter."""


@dataclass(frozen=True)
class NoSpread(Filter):
    """Groups whose rewards are all the same."""

    action: str = "drop"
    reason = "no_spread"

    def __post_init__(self) -> None:
        one_of("action", self.action, ACTIONS)

    def names(self, selection: Selection) -> Flags:
        rewards, kept = selection.needed_rewards("NoSpread"), selection.kept
        groups = Grouped(selection.trajectory_group[kept])
        named = np.zeros(kept.size, np.bool_)
        named[kept] = ~groups.spreads(rewards[kept])[groups.of]
        return named


@dataclass(frozen=True)
class Truncated(Filter):
    """Rollouts that ended because they were too long (finish reason `length`)."""

    action: str = "mask"
    reason = "truncated"

    def __post_init__(self) -> None:
        one_of("action", self.action, ACTIONS)

    def names(self, selection: Selection) -> Flags:
        return selection.truncated


@dataclass(frozen=True)
class RewardRange(Filter):
    """Groups whose mean reward is not within [low, high], or, `per="rollout"`, single rollouts."""

    low: float = -np.inf
    high: float = np.inf
    per: str = "group"
    action: str = "drop"
    reason = "reward_range"

    def __post_init__(self) -> None:
        one_of("action", self.action, ACTIONS)
        one_of("per", self.per, UNITS)
        if not self.low <= self.high:
            raise InvalidValue(f"low: expected at most high, {self.high}, got {shown(self.low)}")

    def names(self, selection: Selection) -> Flags:
        values, kept = selection.needed_rewards("RewardRange").copy(), selection.kept
        if self.per == "group":
            groups = Grouped(selection.trajectory_group[kept])
            values[kept] = groups.mean(values[kept])[groups.of]
        named: Flags = ~((values >= self.low) & (values <= self.high))
        return named


@dataclass(frozen=True)
class Length(Filter):
    """Rollouts whose response has fewer than `least` or more than `most` tokens."""

    least: int = 0
    most: int | None = None
    action: str = "drop"
    reason = "length"

    def __post_init__(self) -> None:
        one_of("action", self.action, ACTIONS)
        if self.most is not None and self.most < self.least:
            raise InvalidValue(f"most: expected at least {self.least}, got {shown(self.most)}")

    def names(self, selection: Selection) -> Flags:
        lengths = selection.trajectory_lengths
        return (lengths < self.least) | (lengths > (np.inf if self.most is None else self.most))


@dataclass(frozen=True)
class Filtered:
    """What filters left of a selection.

    Attributes:
        selection: The same rows, some of them dropped or of weight 0.
        dropped: Rollouts that were dropped, by reason.
        masked: Rollouts that were masked, by reason.
        groups: Groups that lost their last rollout, by reason.
    """

    selection: Selection
    dropped: dict[str, int] = field(default_factory=dict)
    masked: dict[str, int] = field(default_factory=dict)
    groups: dict[str, int] = field(default_factory=dict)


def apply_filters(rollouts: Rollouts, filters: Sequence[Filter]) -> Filtered:
    """Drop or mask the rollouts that filters name, in order.

    >>> import recollect as rc
    >>> from recollect import training
    >>> rollouts = [rc.Rollout([1], [2], reward=1, finish_reason=f) for f in ("stop", "length")]
    >>> filtered = training.apply_filters([rc.Group(rollouts)], [training.Truncated("mask")])
    >>> filtered.masked, filtered.selection.weights
    ({'truncated': 1}, array([1., 0.]))
    """
    selection = select(rollouts)
    result = Filtered(selection)
    for rule in checked_filters(filters):
        selection = _apply(selection, rule, result)
    return Filtered(selection, result.dropped, result.masked, result.groups)


def checked_filters(filters: Sequence[Filter]) -> tuple[Filter, ...]:
    """Raise `InvalidValue` unless all are filters."""
    rules = tuple(filters)
    for rule in rules:
        if not isinstance(rule, Filter):
            raise InvalidValue(f"filters: expected rules such as NoSpread(), got {shown(rule)}")
    return rules


def _apply(selection: Selection, rule: Filter, result: Filtered) -> Selection:
    fresh = selection.kept & selection.any_segment(selection.weights != 0)
    masked = selection.kept & ~fresh
    named = rule.names(selection) & (fresh | (masked if rule.action == "drop" else False))
    if not named.any():
        return selection
    rows, reason = named[selection.trajectory], rule.reason
    if rule.action == "mask":
        result.masked[reason] = result.masked.get(reason, 0) + int(named.sum())
        return selection.changed(weights=np.where(rows, 0.0, selection.weights))
    counted = int((named & fresh).sum())  # those that were masked have been counted
    if counted:
        result.dropped[reason] = result.dropped.get(reason, 0) + counted
    left = selection.changed(keep=selection.keep & ~rows)
    gone = int(selection.group_kept.sum() - left.group_kept.sum())
    if gone:
        result.groups[reason] = result.groups.get(reason, 0) + gone
    return left
