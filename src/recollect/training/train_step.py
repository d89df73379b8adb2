"""A prepared train step: what each rank gets, who has confirmed it, and what was reported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from recollect.base.arrays import Keys
from recollect.errors import InvalidValue, shown
from recollect.training.packing import Pack, Packed
from recollect.training.selection import Selection
from recollect.training.sources import DrawnGroups

JOINS = ("mean", "max")


@dataclass(frozen=True)
class RankBatch:
    """What one data-parallel rank trains on at a step.

    Attributes:
        step: The train step.
        rank: The rank.
        packs: Its micro-batches; every rank has as many.
        trainable_tokens: Tokens that train over all ranks, to divide a summed loss by.
        keys: The keys of the step's groups.
        rollout_ids: The rollouts in its packs, in their order, to report on.
        metrics: Those of the step, the same for every rank.
    """

    step: int
    rank: int
    packs: tuple[Pack, ...]
    trainable_tokens: int
    keys: Keys
    rollout_ids: tuple[str, ...]
    metrics: dict[str, float]


class Step:
    """A step between its preparation and the last confirmation. Belongs to one event loop."""

    def __init__(self, step: int, drawn: DrawnGroups, kept: Selection, packed: Packed) -> None:
        self.step = step
        self.keys, self.uses, self.weights = drawn.keys, drawn.uses, drawn.weights
        self.leases = drawn.leases  # and not the rollouts: they are in the packs
        self.packed = packed
        self.metrics: dict[str, float] = {}
        self.confirmed: set[int] = set()
        groups = dict(zip(kept.rollout_ids, kept.group.tolist(), strict=True))
        self.reports = Reports(groups, drawn.keys, len(packed.ranks))
        self.served = False

    def batch(self, rank: int) -> RankBatch:
        packs = self.packed.ranks[rank]
        ids = tuple(rollout for one in packs for rollout in one.rollout_ids)
        tokens = self.packed.trainable_tokens
        return RankBatch(self.step, rank, packs, tokens, self.keys, ids, dict(self.metrics))

    def state(self, leased: Keys) -> dict[str, Any]:
        """As JSON: groups by key, and who has confirmed."""
        return {
            "step": self.step,
            "keys": self.keys.tolist(),
            "uses": self.uses.tolist(),
            "weights": self.weights.tolist(),
            "leased": leased.tolist(),
            "ranks": len(self.packed.ranks),
            "confirmed": sorted(self.confirmed),
            "metrics": self.metrics,
        }


@dataclass
class Reports:
    """Priorities of rollouts, as ranks report them, until all have.

    `groups` says in which group each rollout is, `keys` has their keys.
    """

    groups: dict[str, int]
    keys: Keys
    ranks: int
    reported: set[int] = field(default_factory=set)
    priorities: dict[str, float] = field(default_factory=dict)

    def add(self, rank: int, rollout_ids: Sequence[str], priority: Any) -> bool:
        """Take down what a rank reports; whether it was the last. A second report changes nothing.

        A rollout in segments may be on several ranks: its highest priority counts.
        """
        values = np.asarray(priority, np.float64)
        if values.ndim == 0:
            values = np.full(len(rollout_ids), float(values))
        if values.shape != (len(rollout_ids),):
            raise InvalidValue(
                f"priority: expected one number for each of {len(rollout_ids)} rollouts, got an "
                f"array of shape {list(values.shape)}"
            )
        if not (np.isfinite(values) & (values >= 0)).all():
            raise InvalidValue("priority: expected finite numbers of 0 or more")
        for name in rollout_ids:
            if name not in self.groups:
                raise InvalidValue(f"report: rollout {shown(name)} is not in this step")
        if rank in self.reported:
            return False
        self.reported.add(rank)
        for name, value in zip(rollout_ids, values.tolist(), strict=True):
            self.priorities[name] = max(value, self.priorities.get(name, 0.0))
        return len(self.reported) == self.ranks

    def joined(self, how: str) -> tuple[Keys, Any]:
        """The groups that have a reported rollout, and the mean or maximum of theirs."""
        groups: dict[int, list[float]] = {}
        for name, value in self.priorities.items():
            groups.setdefault(self.groups[name], []).append(value)
        places = sorted(groups)
        join = max if how == "max" else (lambda values: sum(values) / len(values))
        return self.keys[places], np.array([join(groups[place]) for place in places])
