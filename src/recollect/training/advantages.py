"""Advantages: how much better a rollout is than the others of its group.

A rule sees the rewards and lengths of all trajectories at once, sorted by group; sums per group
are `np.bincount`, so nothing loops over groups. A group without spread teaches nothing: its
advantages are zero, and it is counted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from recollect.base.arguments import whole
from recollect.errors import InvalidValue, shown
from recollect.training.selection import Flags, Floats, Ints, Rollouts, select, sums


class Grouped:
    """Trajectories by group: the number of each one's group, and sums over groups."""

    def __init__(self, group: Ints) -> None:
        self.present, self.of = np.unique(group, return_inverse=True)
        self.sizes = np.bincount(self.of, minlength=self.present.size)

    def total(self, values: Floats) -> Floats:
        """The sum of each group."""
        return sums(self.of, values, self.present.size)

    def mean(self, values: Floats) -> Floats:
        """The mean of each group."""
        return self.total(values) / self.sizes

    def spreads(self, values: Floats) -> Flags:
        """Which groups have two different values."""
        lowest = np.full(self.present.size, np.inf)
        highest = np.full(self.present.size, -np.inf)
        np.minimum.at(lowest, self.of, values)
        np.maximum.at(highest, self.of, values)
        return highest > lowest


class Advantage(ABC):
    """A rule that makes advantages of rewards."""

    @abstractmethod
    def values(self, rewards: Floats, lengths: Ints, groups: Grouped) -> tuple[Floats, Flags]:
        """The advantage of each trajectory, and which groups have a spread.

        Those of groups without one may be anything: they are set to zero.
        """


@dataclass(frozen=True)
class Grpo(Advantage):
    """(reward - mean) / (std + epsilon); `ddof=1` divides by n - 1 in the variance."""

    epsilon: float = 1e-6
    ddof: int = 0

    def __post_init__(self) -> None:
        if not self.epsilon >= 0:
            raise InvalidValue(f"epsilon: expected 0 or more, got {shown(self.epsilon)}")
        if self.ddof not in (0, 1):
            raise InvalidValue(f"ddof: expected 0 or 1, got {shown(self.ddof)}")

    def values(self, rewards: Floats, lengths: Ints, groups: Grouped) -> tuple[Floats, Flags]:
        centered = rewards - groups.mean(rewards)[groups.of]
        variance = groups.total(centered**2) / np.maximum(groups.sizes - self.ddof, 1)
        with np.errstate(invalid="ignore", divide="ignore"):  # no spread: zero over zero
            found = centered / (np.sqrt(variance) + self.epsilon)[groups.of]
        return found, groups.spreads(rewards)


@dataclass(frozen=True)
class Centered(Advantage):
    """reward - mean."""

    def values(self, rewards: Floats, lengths: Ints, groups: Grouped) -> tuple[Floats, Flags]:
        return rewards - groups.mean(rewards)[groups.of], groups.spreads(rewards)


@dataclass(frozen=True)
class Rloo(Advantage):
    """reward - the mean of the others of the group."""

    def values(self, rewards: Floats, lengths: Ints, groups: Grouped) -> tuple[Floats, Flags]:
        others = groups.total(rewards)[groups.of] - rewards
        count = np.maximum(groups.sizes - 1, 1)[groups.of]
        return rewards - others / count, groups.spreads(rewards)


@dataclass(frozen=True)
class Opo(Advantage):
    """reward - the mean weighted by response length, the baseline of least variance."""

    def values(self, rewards: Floats, lengths: Ints, groups: Grouped) -> tuple[Floats, Flags]:
        weights = lengths.astype(np.float64)
        weights[groups.total(weights)[groups.of] == 0] = 1.0  # nobody said a word
        baseline = groups.total(weights * rewards) / groups.total(weights)
        return rewards - baseline[groups.of], groups.spreads(rewards)


@dataclass(frozen=True)
class PassAtK(Advantage):
    """The advantage of a rollout for pass@k: that of the k-subsets it is in, on average.

    A subset is worth 1 if one of its rollouts is solved (reward above `solved_above`). Mean and
    standard deviation are those of all subsets of the group, in closed form. A group of k or
    fewer has one subset, so no spread.
    """

    k: int = 4
    solved_above: float = 0.0

    def __post_init__(self) -> None:
        whole("k", self.k, 1)

    def values(self, rewards: Floats, lengths: Ints, groups: Grouped) -> tuple[Floats, Flags]:
        solved = rewards > self.solved_above
        failed = groups.sizes - groups.total(solved.astype(np.float64))
        k = np.minimum(self.k, groups.sizes)
        none = _share_of_subsets(failed, groups.sizes, k)  # of subsets in which all failed
        spread = (none > 0) & (none < 1)
        deviation = np.sqrt(np.where(spread, none * (1 - none), 1.0))
        others = _share_of_subsets(np.maximum(failed - 1, 0), groups.sizes - 1, k - 1)
        of_failed = (none - others) / deviation
        return np.where(solved, (none / deviation)[groups.of], of_failed[groups.of]), spread


def _share_of_subsets(chosen: Floats | Ints, whole_: Ints, k: Ints) -> Floats:
    """C(chosen, k) / C(whole, k), as a product of k factors."""
    share = np.ones(chosen.shape, np.float64)
    for taken in range(int(k.max(initial=0))):
        factor = np.maximum(chosen - taken, 0) / np.maximum(whole_ - taken, 1)
        share *= np.where(taken < k, factor, 1.0)
    return share


KINDS: dict[str, type[Advantage]] = {
    "grpo": Grpo,
    "centered": Centered,
    "rloo": Rloo,
    "opo": Opo,
    "pass_at_k": PassAtK,
}


@dataclass(frozen=True)
class Advantages:
    """What `advantages` found.

    Attributes:
        values: One per row of the selection; 0 where a rollout was dropped.
        groups: Groups that have a rollout left.
        without_spread: Those of them whose advantages are zero because nothing differs.
    """

    values: Floats
    groups: int
    without_spread: int


def advantages(rollouts: Rollouts, kind: str | Advantage = "grpo", **options: Any) -> Advantages:
    """The advantage of each rollout within its group.

    `kind` is `"grpo"`, `"centered"`, `"rloo"`, `"opo"` or `"pass_at_k"`, with the options of its
    class, or a rule itself. Segments of one trajectory share its advantage, and it counts once.
    What was dropped counts in no mean; what was masked does.

    >>> import recollect as rc
    >>> from recollect import training
    >>> group = rc.Group([rc.Rollout([1], [2], reward=r, finish_reason="stop") for r in (0, 1)])
    >>> training.advantages([group], "rloo").values
    array([-1.,  1.])
    """
    rule, selection = rule_of(kind, options), select(rollouts)
    rewards = selection.needed_rewards("advantages")
    kept = np.flatnonzero(selection.kept)
    groups = Grouped(selection.trajectory_group[kept])
    found = np.zeros(selection.trajectories)
    lengths = selection.trajectory_lengths[kept]
    values, spread = rule.values(rewards[kept], lengths, groups)
    found[kept] = np.where(spread[groups.of], values, 0.0)
    return Advantages(
        found[selection.trajectory], groups.present.size, int(np.count_nonzero(~spread))
    )


def rule_of(kind: str | Advantage, options: dict[str, Any] | None = None) -> Advantage:
    """The rule of a name."""
    options = options or {}
    if isinstance(kind, Advantage):
        if options:
            raise InvalidValue(f"advantages: {kind} has its options already, got {shown(options)}")
        return kind
    if kind not in KINDS:
        known = ", ".join(map(repr, KINDS))
        raise InvalidValue(f"advantages: expected one of {known}, got {shown(kind)}")
    try:
        return KINDS[kind](**options)
    except TypeError as error:
        raise InvalidValue(f"advantages: {kind} has no such option: {error}") from None
