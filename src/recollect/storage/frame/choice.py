"""Which items of a frame a call gets: selectors executed on columns, all items at once.

Everything here is given the positions that may be chosen, in the order of arrival, and answers
with some of them. Nothing waits, and the caller has checked that enough is there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recollect.base.arrays import Floats, Ints
from recollect.base.optional import optional
from recollect.rules.natures import unexecutable
from recollect.rules.selectors import Mixed, Ordered, Proportional, Selector, Uniform
from recollect.storage.frame.items import ItemFrame
from recollect.storage.shares import Credits, dealt, importance_in, in_mixture, next_deal

FAINTEST = -690.0  # the logarithm of the least weight beside the largest: above 0 in a float64
NONE: Ints = np.zeros(0, np.int64)


@dataclass
class FrameDraw:
    """Positions that were chosen, with what probability, and those that leave by it."""

    positions: Ints
    probability: Floats
    weights: Floats
    worn: Ints


class FrameExecutor:
    """Executes selectors on a frame. Its caller holds the lock."""

    def __init__(self, items: ItemFrame, seed: int | None, max_times_sampled: int) -> None:
        self._items = items
        self._pandas = optional("pandas")
        self._random = np.random.default_rng(seed)
        self._limit = max_times_sampled
        self._credits: Credits = {}

    # -- what a storage asks ----------------------------------------------------------------------
    def next_deal(self, mixture: Mixed, n: int) -> list[tuple[Selector, int]]:
        """How many of the next n draws each part of a mixture gets."""
        return next_deal(self._credits, mixture, n)

    def sample(
        self, selector: Selector, n: int, candidates: Ints, replace: bool, calls: int
    ) -> FrameDraw:
        """Draw n items that stay, and count it."""
        if isinstance(selector, Mixed):
            return self._sample_mixed(selector, n, candidates, replace, calls)
        if isinstance(selector, Ordered):
            drawn = self.first(selector, n, candidates, staying=True)
            probability = np.ones(n)
        elif replace:
            drawn, probability = self._draw(selector, n, candidates)
        else:
            drawn, probability = self._draw_different(selector, n, candidates)
        weights = self._importance(selector, probability, candidates, calls)
        return FrameDraw(drawn, probability, weights, self._count(drawn))

    def withdraw(
        self, selector: Selector, n: int, candidates: Ints, *, evicting: bool
    ) -> FrameDraw:
        """Choose n different items that are to be hidden or removed."""
        if not isinstance(selector, Mixed):
            if isinstance(selector, Ordered):
                chosen, probability = self.first(selector, n, candidates, staying=False), np.ones(n)
            else:
                chosen, probability = self._draw_different(selector, n, candidates)
            weights = self._importance(selector, probability, candidates, 0)
            return FrameDraw(chosen, probability, weights, NONE)
        parts = []
        for part, count in dealt(self._credits, selector, n, evicting=evicting):
            if count:
                parts.append(self.withdraw(part, count, candidates, evicting=evicting))
                candidates = _without(candidates, parts[-1].positions)
        return _joined(parts)

    def _count(self, drawn: Ints) -> Ints:
        """Count a sampling of each drawn item; returns those that have been sampled enough."""
        positions, counts = np.unique(drawn, return_counts=True)
        times = self._items["times_sampled"][positions] + counts
        self._items.write("times_sampled", positions, times)
        return positions[times >= self._limit] if self._limit else NONE

    # -- orders -----------------------------------------------------------------------------------
    def first(self, selector: Ordered, n: int, candidates: Ints, *, staying: bool) -> Ints:
        """The first n of an order. Where items stay, those sampled less often come before others.

        The candidates are in the order of arrival and sorting is stable, so that ties go to the
        earlier arrival.
        """
        keys: dict[str, Any] = {}
        if staying:
            keys["times_sampled"] = self._items["times_sampled"][candidates]
        values = self._items.column(selector.by, candidates)
        absent = self._items.absent(selector.by, values)
        if absent.any():
            keys["absent"] = absent  # they come last, in either direction
            values = np.where(absent, values.dtype.type(0), values)
        keys["value"] = values
        ascending = [not (name == "value" and selector.descending) for name in keys]
        place = self._may_come(next(iter(keys.values())), n, ascending[0])
        frame = self._pandas.DataFrame({name: key[place] for name, key in keys.items()})
        order = frame.sort_values(list(keys), ascending=ascending, kind="stable").index[:n]
        chosen: Ints = candidates[place[order.to_numpy()]]
        return chosen

    def _may_come(self, key: NDArray[Any], n: int, ascending: bool) -> Ints:
        """The places that the first key alone lets be among the first n: sorting few is quick."""
        if not 0 < n < key.size:
            return np.arange(key.size)
        if ascending:
            return np.flatnonzero(key <= np.partition(key, n - 1)[n - 1])
        return np.flatnonzero(key >= np.partition(key, key.size - n)[key.size - n])

    # -- chance -----------------------------------------------------------------------------------
    def _logarithms(self, selector: Selector, candidates: Ints) -> Floats:
        """The logarithm of each item's weight; minus infinity for a weight of zero."""
        if isinstance(selector, Uniform):
            return np.zeros(candidates.size)
        if not isinstance(selector, Proportional):
            raise unexecutable(selector)
        values = self._items.column(selector.by, candidates)
        positive = values > 0  # no marker of an absent value is
        weights = np.full(candidates.size, -np.inf)
        weights[positive] = selector.alpha * np.log(values[positive].astype(np.float64))
        if selector.half_life is not None and positive.any():
            version = self._items["version"][candidates][positive]
            # Only ratios count, so that ages may be taken from any version.
            age = (version.max() - version) / selector.half_life
            weights[positive] -= age * np.log(2.0)
        return weights

    def _weights(self, selector: Selector, candidates: Ints) -> Floats:
        """Weights with the largest at 1; all 1 where every weight is zero."""
        logarithms = self._logarithms(selector, candidates)
        largest = logarithms.max(initial=-np.inf)
        if largest == -np.inf:
            return np.ones(candidates.size)
        weights: Floats = np.exp(np.maximum(logarithms - largest, FAINTEST))
        weights[logarithms == -np.inf] = 0.0
        return weights

    def chances(self, selector: Selector, candidates: Ints) -> Floats:
        """The probability of each item in one draw."""
        weights = self._weights(selector, candidates)
        chances: Floats = weights / max(weights.sum(), 1.0)
        return chances

    def _draw(self, selector: Selector, n: int, candidates: Ints) -> tuple[Ints, Floats]:
        """n draws with replacement, as if one after another.

        Each draw has a random number of its own. Where one takes an item as often as it may be
        sampled, the item leaves, and the draws after it are made again among the others.
        """
        units = self._random.random(n)
        if isinstance(selector, Proportional) and selector.stratified:
            units = (np.arange(n) + units) / n
        drawn, probability = np.empty(n, np.int64), np.empty(n)
        left = np.full(candidates.size, np.iinfo(np.int64).max)
        if self._limit:
            left = self._limit - self._items["times_sampled"][candidates]
        done = 0
        while True:
            weights = self._weights(selector, candidates)
            sums = np.cumsum(weights)
            places = np.searchsorted(sums, units[done:] * sums[-1], side="right")
            places = np.minimum(places, np.flatnonzero(weights)[-1])  # where rounding leads past it
            stays = _until_worn(places, left)
            places = places[:stays]
            drawn[done : done + stays] = candidates[places]
            probability[done : done + stays] = weights[places] / sums[-1]
            done += stays
            if done == n:
                return drawn, probability
            np.subtract.at(left, places, 1)
            candidates, left = candidates[left > 0], left[left > 0]

    def _draw_different(self, selector: Selector, n: int, candidates: Ints) -> tuple[Ints, Floats]:
        """n different items, with the probabilities of draws one after another.

        Every item waits a random time, exponential with its weight as the rate. In the order in
        which these times end, each item is the next with a probability in proportion to its
        weight among those left: memoryless times do not care who went before. Weights of zero
        come after all others, each with the same chance.
        """
        logarithms = self._logarithms(selector, candidates)
        zero = logarithms == -np.inf
        waits = np.log(self._random.exponential(size=candidates.size))
        waits[~zero] -= logarithms[~zero]
        places = np.lexsort((waits, zero))[:n]
        probability = self.chances(selector, candidates)
        if zero.any():
            probability[zero] = 1.0 / zero.sum()
        return candidates[places], probability[places]

    def _importance(
        self, selector: Selector, probability: Floats, candidates: Ints, calls: int
    ) -> Floats:
        """(N · P) ** -beta, divided by the largest of the batch, of the table, or not."""
        if not isinstance(selector, Proportional) or not probability.size:
            return np.ones(probability.size)
        reference = 1.0 / candidates.size
        if selector.normalize == "batch":
            reference = probability.min()
        elif selector.normalize == "table":
            chances = self.chances(selector, candidates)
            reference = chances[chances > 0.0].min()
        weights: Floats = (probability / reference) ** -selector.beta_at(calls)
        return weights

    # -- mixtures ---------------------------------------------------------------------------------
    def _sample_mixed(
        self, selector: Mixed, n: int, candidates: Ints, replace: bool, calls: int
    ) -> FrameDraw:
        left = candidates
        parts: list[FrameDraw] = []
        for part, count in dealt(self._credits, selector, n, evicting=False):
            draw = FrameDraw(NONE, np.zeros(0), np.zeros(0), NONE)
            if count:
                draw = self.sample(part, count, left, replace, calls)
                left = _without(left, draw.worn if replace else draw.positions)
            parts.append(draw)
        drawn = _joined(parts)
        candidates = _without(candidates, drawn.worn)
        here = np.isin(drawn.positions, candidates)
        places = np.searchsorted(candidates, drawn.positions[here])

        def chances(part: Selector) -> Floats:
            under = np.zeros(drawn.positions.size)
            under[here] = self.chances(part, candidates)[places]
            return under

        counts = [part.positions.size for part in parts]
        drawn.probability = in_mixture(selector, counts, drawn.probability, chances)
        weights = importance_in(selector, drawn.probability, candidates.size, calls)
        drawn.weights = drawn.weights if weights is None else weights
        return drawn


def _until_worn(places: Ints, left: Ints) -> int:
    """How many of the draws count, until one of them takes the last that an item has left."""
    order = np.argsort(places, kind="stable")
    _, starts, counts = np.unique(places[order], return_index=True, return_counts=True)
    nth = np.empty(places.size, np.int64)  # the how-many-eth draw of its item each one is
    nth[order] = np.arange(places.size) - np.repeat(starts, counts) + 1
    last = np.flatnonzero(nth == left[places])
    return int(last[0]) + 1 if last.size else places.size


def _without(positions: Ints, others: Ints) -> Ints:
    return positions[~np.isin(positions, others)] if others.size else positions


def _joined(parts: list[FrameDraw]) -> FrameDraw:
    return FrameDraw(
        np.concatenate([part.positions for part in parts]),
        np.concatenate([part.probability for part in parts]),
        np.concatenate([part.weights for part in parts]),
        np.concatenate([part.worn for part in parts]),
    )
