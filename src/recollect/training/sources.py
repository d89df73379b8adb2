"""The two ways in which train steps get their groups: `Queue` and `Replay`.

What they draw from a buffer (`rollouts/train_groups.py`) becomes one `DrawnGroups` for each step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from recollect.base.arguments import whole
from recollect.base.arrays import Keys
from recollect.base.leases import LeaseLike
from recollect.errors import InvalidValue, shown
from recollect.rollouts.buffer import RolloutBuffer
from recollect.rollouts.groups import Groups
from recollect.rollouts.train_groups import GroupSource, ReplayRule
from recollect.rules.selectors import Selector
from recollect.training.selection import Floats, Ints, Selection, join, select


@dataclass(frozen=True)
class DrawnGroups:
    """Groups for a train step."""

    selection: Selection  # their rollouts
    keys: Keys
    uses: Ints  # how often each has been used, this time included
    weights: Floats  # the importance weight of each, as the sampler says
    leases: tuple[LeaseLike, ...]  # what they are under; some may be under none


def drawn_of(groups: Groups, uses: Ints, weights: Floats) -> DrawnGroups:
    """Groups as a draw; each rollout has the weight of its group."""
    selection = select(groups)
    of_rows = np.repeat(weights, np.diff(selection.row_offsets))
    leases = () if groups.lease is None else (groups.lease,)
    return DrawnGroups(selection.changed(weights=of_rows), groups.keys, uses, weights, leases)


def joined(parts: Sequence[DrawnGroups]) -> DrawnGroups:
    """Several draws as one, in order."""
    if len(parts) == 1:
        return parts[0]
    return DrawnGroups(
        join([part.selection for part in parts]),
        np.concatenate([part.keys for part in parts]),
        np.concatenate([part.uses for part in parts]),
        np.concatenate([part.weights for part in parts]),
        tuple(lease for part in parts for lease in part.leases),
    )


class Mode(ABC):
    """How a train step gets its groups: `Queue` or `Replay`."""

    def check(self, buffer: RolloutBuffer) -> None:
        """Whether it can work on a buffer; may set it up."""
        return

    @abstractmethod
    async def draw(
        self, source: GroupSource, sizes: Mapping[str, int], step: int, without: Keys
    ) -> DrawnGroups:
        """Wait for groups of each task, other than some, and draw them for a train step."""


@dataclass(frozen=True)
class Queue(Mode):
    """Each group trains once, in the order of the buffer."""

    async def draw(
        self, source: GroupSource, sizes: Mapping[str, int], step: int, without: Keys
    ) -> DrawnGroups:
        groups = await source.take(sizes, step)
        return drawn_of(groups, groups.info.times_sampled, np.ones(len(groups)))


@dataclass(frozen=True)
class Replay(Mode):
    """Groups train several times; the buffer is made with `max_uses=0`, since this counts them.

    Args:
        max_uses: How often a group trains before it leaves; 0 for no limit.
        sampler: Which groups are drawn: `Uniform()`, `Prioritized(half_life=...)`, an order; that
            of the buffer where None.
        fresh_share: The least share of a batch that has never trained. Where there are fewer to
            replay than the rest, more fresh groups are waited for; where the buffer is full, so
            that none can come, fewer will do. None draws from all alike.
    """

    max_uses: int = 4
    sampler: Selector | None = None
    fresh_share: float | None = None

    def __post_init__(self) -> None:
        whole("max_uses", self.max_uses, 0)
        share = self.fresh_share
        if share is not None and not 0 <= share <= 1:
            raise InvalidValue(f"fresh_share: expected a share from 0 to 1, got {shown(share)}")

    def check(self, buffer: RolloutBuffer) -> None:
        if buffer.table.max_times_sampled:
            raise InvalidValue(
                f"mode: Replay counts uses itself; make the buffer with max_uses=0, not "
                f"{buffer.table.max_times_sampled}"
            )
        if self.sampler is not None:
            buffer.table.sampler = self.sampler

    async def draw(
        self, source: GroupSource, sizes: Mapping[str, int], step: int, without: Keys
    ) -> DrawnGroups:
        rule = ReplayRule(self.max_uses, self.fresh_share, without)
        parts = await source.sample(sizes, step, rule)
        return joined(
            [drawn_of(part, part.info.times_sampled, part.info.weights) for part in parts]
        )
