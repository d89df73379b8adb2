"""Selectors executed on indexes: which items a call gets, and what each part of a mixture is owed.

A plan says how a selector is executed, the kernel `choose` executes it. All that decides later
draws beside the items themselves is here: random numbers, and the credits of mixtures.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from recollect.base.arrays import Floats, Ints
from recollect.kernels import layout
from recollect.rules.selectors import Linear, Mixed, Selector
from recollect.storage.base import Where
from recollect.storage.memory.chosen import (
    LEFT,
    PROBABILITY,
    TIMES,
    WEIGHTS,
    MemoryChosen,
    joined,
)
from recollect.storage.memory.index_set import HIDE, SHOW, IndexSet, SelectorPlan
from recollect.storage.memory.items import Items
from recollect.storage.memory.matcher import Matcher
from recollect.storage.shares import Credits, dealt, importance_in, in_mixture, next_deal

SAMPLE, TAKE, EVICT = 0, 1, 2  # verbs of the kernel `choose`


class MemoryExecutor:
    """Executes the selectors of one table in memory. Its caller holds the lock."""

    def __init__(
        self, items: Items, index_set: IndexSet, matcher: Matcher, kernels: Any, seed: int | None
    ) -> None:
        self._items = items
        self._index_set = index_set
        self._matcher = matcher
        self._choose = kernels.items.choose
        self._probabilities = kernels.items.probabilities
        self._random = np.random.SeedSequence(seed).generate_state(4, np.uint64)
        self._credits: Credits = {}

    # -- what later draws depend on ---------------------------------------------------------------
    def capture(self) -> dict[str, Any]:
        """Random numbers and credits as plain data, for snapshots and journals."""
        return {
            "random": self._random.tolist(),
            "credits": [
                [repr(mixed), evicting, credit.tolist()]
                for (mixed, evicting), credit in self._credits.items()
            ],
        }

    def restore(self, captured: Mapping[str, Any], mixtures: Mapping[str, Any]) -> None:
        """Go on as when `capture` was called; `mixtures` finds selectors by their repr."""
        self._random[:] = np.array(captured["random"], np.uint64)
        for name, evicting, credit in captured["credits"]:
            if name in mixtures:
                self._credits[mixtures[name], evicting] = np.array(credit)

    def next_deal(self, mixture: Mixed, n: int) -> list[tuple[Selector, int]]:
        """How many of the next n draws each part of a mixture gets."""
        return next_deal(self._credits, mixture, n)

    # -- choosing ---------------------------------------------------------------------------------
    def choose(
        self, selector: Selector, verb: int, n: int, where: Where | None, replace: bool, calls: int
    ) -> MemoryChosen:
        """Choose n items and do to them what the verb says: SAMPLE, TAKE or EVICT."""
        slots = self._matcher.scan(where) if where is not None else None
        if isinstance(selector, Mixed):
            return self._run_mixed(selector, verb, n, where, replace, calls, slots)
        plan = self._index_set.plan(selector, verb == SAMPLE)
        return self.run(plan, verb, n, replace, calls, self._candidates(plan, where, slots))

    def _candidates(self, plan: SelectorPlan, where: Where | None, slots: Ints | None) -> Ints:
        """The rows of the indexes that a selector draws from; `slots` are what a scan found."""
        if where is None:
            return plan.rows if plan.rows is not None else self._index_set.rows_over_all(plan)
        if slots is not None:
            return self._index_set.rows_of(plan, slots)
        admitted = self._index_set.partitions.admitted(where.partitions)
        return self._index_set.rows_in(plan, admitted)

    def run(
        self, plan: SelectorPlan, verb: int, n: int, replace: bool, calls: int, rows: Ints
    ) -> MemoryChosen:
        """The same from the indexes at some rows, which the kernel does."""
        index_set = self._index_set
        beta = plan.beta
        if isinstance(beta, Linear):
            beta = beta.at(calls)
        if plan.aging:
            index_set.scale_for_draw(rows)
        ints = np.empty((5, n), np.int64)
        floats = np.empty((3, n), np.float64)
        if 4 * n + 64 > index_set.work.size:
            index_set.make_work(n)
        left = self._choose(
            self._items.block, index_set.indexes.table, rows, verb, n, replace, plan.stratified,
            beta, plan.normalize, self._random, ints, floats, index_set.work,
        )  # fmt: skip
        return MemoryChosen(ints, floats, n, left if verb == SAMPLE else 0)

    # -- mixtures ---------------------------------------------------------------------------------
    def _run_mixed(
        self,
        selector: Mixed,
        verb: int,
        n: int,
        where: Where | None,
        replace: bool,
        calls: int,
        slots: Ints | None,
    ) -> MemoryChosen:
        """Each selector for its share; what rounding takes from one it gets at a later call."""
        parts: list[MemoryChosen | None] = []
        apart = verb == SAMPLE and not replace
        for part, count in dealt(self._credits, selector, n, evicting=verb == EVICT):
            drawn = None
            if count:
                plan = self._index_set.plan(part, verb == SAMPLE)
                visible = None if slots is None else self._items.still_visible(slots)
                rows = self._candidates(plan, where, visible)
                drawn = self.run(plan, verb, count, replace, calls, rows)
                if apart:
                    self._index_set.arrange(self._items.still_visible(np.unique(drawn.slots)), HIDE)
            parts.append(drawn)
        chosen = joined([part for part in parts if part is not None])
        chosen.ints[TIMES] = self._items.times[chosen.slots]  # several parts may have drawn an item
        if apart:
            worn = np.isin(chosen.slots, chosen.ints[LEFT, : chosen.left])
            self._index_set.arrange(chosen.slots[~worn], SHOW)
        if verb == SAMPLE:
            self._weigh(selector, parts, chosen, where, calls, slots)
        return chosen

    def _weigh(
        self,
        selector: Mixed,
        parts: list[MemoryChosen | None],
        chosen: MemoryChosen,
        where: Where | None,
        calls: int,
        scanned: Ints | None,
    ) -> None:
        """The probability of each item under the whole mixture, and its weight."""
        slots = chosen.slots
        here = self._items.state[slots] == layout.VISIBLE
        present = np.ascontiguousarray(slots[here])

        def chances(part: Selector) -> Floats:
            under = np.zeros(slots.size)
            if present.size:
                plan = self._index_set.plan(part, True)
                visible = None if scanned is None else self._items.still_visible(scanned)
                rows = self._candidates(plan, where, visible)
                among = np.empty(present.size)
                self._probabilities(
                    self._items.block, self._index_set.indexes.table, rows, present, among
                )
                under[here] = among
            return under

        counts = [0 if drawn is None else drawn.count for drawn in parts]
        mixture = in_mixture(selector, counts, chosen.floats[PROBABILITY], chances)
        chosen.floats[PROBABILITY] = mixture
        weights = importance_in(selector, mixture, self._matcher.available(where)[0], calls)
        if weights is not None:
            chosen.floats[WEIGHTS] = weights
