"""Which starts are drawn: uniformly or by priority, with a share of the newest, or by a query."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recollect.base.arrays import Floats, Ints
from recollect.kernels import layout
from recollect.kernels import steps_layout as sl
from recollect.replay.episodes import Rings
from recollect.replay.starts import StartIndex, StartKind, Starts
from recollect.rules.query import FieldType, FieldValues, Query, mask
from recollect.rules.selectors import Linear, Prioritized, Selector
from recollect.storage.memory.indexes import IndexKind

FIELDS: dict[str, FieldType] = {
    "key": "int",
    "env_id": "int",
    "step": "int",
    "priority": "float",
    "terminated": "bool",
    "truncated": "bool",
}


@dataclass(slots=True)
class DrawnStarts:
    """Starts, with what was true of them at the moment of the draw."""

    slots: Ints
    probability: Floats
    weights: Floats
    priority: Floats | None


class StartDraws:
    """Draws starts for one buffer. Its caller holds the lock, and has asked `available` first."""

    def __init__(
        self, rings: Rings, sampler: Selector, seed: int | None, window: int, share: float
    ) -> None:
        self._rings = rings
        self._sampler = sampler
        self._share = share
        self.credit = 0.0  # draws that the newest steps are owed
        self.calls = 0
        self.random = np.random.SeedSequence(seed).generate_state(4, np.uint64)
        if isinstance(sampler, Prioritized):
            rings.weigh()
        self.starts = Starts(rings, IndexKind.of(sampler, staying=True), window)

    # -- what there is ----------------------------------------------------------------------------
    def available(self, kind: StartKind) -> int:
        """How many starts of a kind are legal now."""
        return self.starts.find(kind)[0].count

    def matching(self, kind: StartKind, where: Query) -> Ints:
        """The slots of legal starts that meet a query: a scan over fields, never over payload."""
        slots = self.starts.list(self.starts.find(kind)[0])
        envs, rows, flags = self._rings.rows_at(slots)
        priority = self._rings.priority

        def resolve(name: str) -> FieldValues:
            if name == "priority":
                return FieldValues(np.ones(slots.size) if priority is None else priority[slots])
            if name in ("terminated", "truncated"):
                flag = sl.TERMINATED if name == "terminated" else sl.TRUNCATED
                return FieldValues((flags & flag) != 0)
            keys = (envs << sl.ROW_BITS) | rows
            return FieldValues({"key": keys, "env_id": envs, "step": rows}[name])

        return slots[mask(where, resolve, slots.size)]

    # -- draws ------------------------------------------------------------------------------------
    def draw(
        self, kind: StartKind, n: int, replace: bool, matching: Ints | None = None
    ) -> DrawnStarts:
        """Draw n starts; where `matching` is given, from these slots alone."""
        whole, recent = self.starts.find(kind)
        if matching is not None:
            drawn = self._draw_among(whole, n, replace, matching)
        else:
            slots, probability = np.empty(n, np.int64), np.empty(n)
            newest = 0 if recent is None else self._newest(recent, n, replace)
            if recent is not None and newest:
                number = self.starts.number(recent)
                self._kernel(self.starts.table, number, 0, newest, replace, slots, probability)
            if n > newest:
                number = self.starts.number(whole)
                self._kernel(self.starts.table, number, newest, n, replace, slots, probability)
            if recent is not None:
                share = self._share if recent.count else 0.0
                mixed = (1.0 - share) * whole.probability(slots)
                mixed += share * recent.probability(slots)
                # a step of priority 0, drawn once no other was left, keeps that draw's chance
                probability = np.where(mixed > 0.0, mixed, probability)
            drawn = self._weighed(whole, slots, probability, whole.count, whole.smallest)
        self.calls += 1
        return drawn

    def resume(self, calls: int, credit: float, random: Sequence[int] | None) -> None:
        """Go on where other draws stood; with None the random state stays as it is."""
        self.calls, self.credit = calls, credit
        if random is not None:
            self.random[:] = np.array(random, np.uint64)

    def _newest(self, recent: StartIndex, n: int, replace: bool) -> int:
        """How many of n draws the newest steps get; a later batch makes up for rounding."""
        self.credit += n * self._share
        count = min(n, int(self.credit + 1e-9))
        self.credit -= count
        if not recent.count:
            return 0
        return count if replace else min(count, recent.count)

    def _kernel(
        self,
        table: NDArray[np.int64],
        number: int,
        done: int,
        n: int,
        replace: bool,
        slots: Ints,
        chances: Floats,
    ) -> None:
        """Draw places [done, n) of `slots` and `chances` from one index of a table."""
        stratified = isinstance(self._sampler, Prioritized) and self._sampler.stratified
        work, held = _NO_INTS, _NO_FLOATS
        if not replace:
            work, held = np.empty(2 * n + 1, np.int64), np.empty(2 * n + 1)
        self._rings.kernels.starts.draw(
            self._rings.block, table, number, done, n, replace, stratified, self.random,
            slots, chances, work, held,
        )  # fmt: skip

    def _draw_among(self, index: StartIndex, n: int, replace: bool, matching: Ints) -> DrawnStarts:
        places, probability = np.empty(n, np.int64), np.empty(n)
        table, one = self.starts.among(index, matching)
        self._kernel(table, 0, 0, n, replace, places, probability)
        smallest = np.inf
        if one.kind.kind == layout.WEIGHT and one.total > 0.0:
            weights = one.arrays[layout.A_TREE][: matching.size]
            smallest = float(weights[weights > 0.0].min()) / one.total
        return self._weighed(index, matching[places], probability, matching.size, smallest)

    def _weighed(
        self, index: StartIndex, slots: Ints, probability: Floats, size: int, smallest: float
    ) -> DrawnStarts:
        """Add the weights that make up for unequal probabilities: (size · P) ** -beta."""
        priority = self._rings.priority
        of_slots = None if priority is None else priority[slots]
        sampler = self._sampler
        if not isinstance(sampler, Prioritized) or index.index.kind.kind != layout.WEIGHT:
            return DrawnStarts(slots, probability, np.ones(slots.size), of_slots)
        beta = sampler.beta.at(self.calls) if isinstance(sampler.beta, Linear) else sampler.beta
        reference = 1.0 / size
        if sampler.normalize == "batch":
            reference = float(probability.min())
        elif sampler.normalize == "table" and smallest < np.inf:
            reference = smallest
        weights = (probability / reference) ** -beta
        return DrawnStarts(slots, probability, weights, of_slots)


_NO_INTS = np.zeros(0, np.int64)
_NO_FLOATS = np.zeros(0)
