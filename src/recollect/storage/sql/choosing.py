"""Choosing items in SQL: orders, draws and mixtures, and counting what was sampled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from recollect.selectors import Mixed, Ordered, Prioritized, Selector
from recollect.storage.sql.drawing import Drawing, Drawn, importance
from recollect.storage.sql.orders import order_by
from recollect.storage.sql.transactions import Transactions

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

REMOVING = -1  # in the place of a limit: items leave, so how often they were sampled is no order


class Choosing:
    """Finds the items that a selector means. What becomes of them is the storage's."""

    def __init__(
        self,
        transactions: Transactions,
        items: sa.Table,
        columns: Mapping[str, Any],
        base: int,
        seed: int | None,
    ) -> None:
        self._transactions = transactions
        self._dialect = transactions.database.dialect
        self._items = items
        self._columns = columns
        self._base = base
        self._random = np.random.default_rng(seed)
        self._credits: dict[tuple[Mixed, bool], Floats] = {}

    def fetch(self, keys: Sequence[int]) -> dict[int, Any]:
        """Whole rows, by key."""
        among = self._dialect.among(self._items.c.key, sorted(set(keys)))
        return {
            row.key: row
            for row in self._transactions.connection.execute(sa.select(self._items).where(among))
        }

    def ordered(
        self, selector: Ordered, n: int, wanted: Any, *, staying: bool, columns: Sequence[Any] = ()
    ) -> list[Any]:
        """The first n rows of an order; beside other processes, of those that they leave."""
        query = sa.select(*columns) if columns else sa.select(self._items)
        terms = order_by(selector, self._columns, staying=staying)
        query = query.where(wanted).order_by(*terms).limit(n)
        if not self._transactions.alone:
            query = query.with_for_update(skip_locked=True)
        return list(self._transactions.connection.execute(query).all())

    def draw(
        self, selector: Selector, n: int, wanted: Any, replace: bool, calls: int, limit: int
    ) -> Drawn:
        """n items of a selector that is no mixture, in order; nothing is done to them yet."""
        if isinstance(selector, Ordered):
            key = (self._items.c.key,)
            rows = self.ordered(selector, n, wanted, staying=limit != REMOVING, columns=key)
            return Drawn([row.key for row in rows], np.ones(len(rows)), np.ones(len(rows)))
        return self._drawing().draw(selector, n, wanted, replace, calls, max(limit, 0))

    def _drawing(self) -> Drawing:
        connection = self._transactions.connection
        return Drawing(connection, self._dialect, self._columns, self._base, self._random)

    def count_samples(
        self, keys: list[int], rows: Mapping[int, Any], limit: int
    ) -> tuple[Ints, list[int]]:
        """Count the samples of items; returns how many each place's item got, and who is worn."""
        numbers, places, counts = np.unique(
            np.array(keys, np.int64), return_inverse=True, return_counts=True
        )
        times = self._items.c.times_sampled
        for often in np.unique(counts).tolist():
            among = self._dialect.among(self._items.c.key, numbers[counts == often].tolist())
            self._transactions.connection.execute(
                sa.update(self._items).where(among).values(times_sampled=times + often)
            )
        worn = [
            key
            for key, often in zip(numbers.tolist(), counts.tolist(), strict=True)
            if limit and rows[key].times_sampled + often >= limit
        ]
        order = {key: place for place, key in reversed(list(enumerate(keys)))}
        return counts[places], sorted(worn, key=order.__getitem__)

    def draw_apart(
        self, selector: Selector, n: int, wanted: Any, *, evicting: bool = False
    ) -> Drawn:
        """Different items that will leave, those of a mixture one part after another."""
        if not isinstance(selector, Mixed):
            return self.draw(selector, n, wanted, False, 0, REMOVING)
        parts: list[Drawn] = []
        gone: list[int] = []
        for part, count in self._shares(selector, n, evicting=evicting):
            if count:
                parts.append(
                    self.draw(part, count, self._without(wanted, gone), False, 0, REMOVING)
                )
                gone += parts[-1].keys
        return _joined(parts)

    def _without(self, wanted: Any, keys: list[int]) -> Any:
        if not keys:
            return wanted
        return sa.and_(wanted, sa.not_(self._dialect.among(self._items.c.key, keys)))

    # -- mixtures ----------------------------------------------------------------------------------
    def _shares(self, selector: Mixed, n: int, *, evicting: bool) -> list[tuple[Selector, int]]:
        """How many of n items each selector of a mixture gets; removers have their own account."""
        shares = np.array([share for _, share in selector.selectors])
        credits = self._credits.setdefault((selector, evicting), np.zeros(shares.size))
        credits += shares * n
        counts = np.maximum(np.floor(credits), 0).astype(np.int64)
        while counts.sum() > n:
            owed = np.where(counts > 0, credits - counts, np.inf)
            counts[np.argmin(owed)] -= 1
        while counts.sum() < n:
            owed = np.where(shares > 0, credits - counts, -np.inf)
            counts[np.argmax(owed)] += 1
        credits -= counts
        parts = [part for part, _ in selector.selectors]
        return list(zip(parts, counts.tolist(), strict=True))

    def sample_mixed(
        self, selector: Mixed, n: int, wanted: Any, replace: bool, calls: int, limit: int
    ) -> tuple[Drawn, list[int]]:
        """Each selector for its share; what one draws counts before the next one draws."""
        parts: list[Drawn] = []
        worn: list[int] = []
        drawn: list[int] = []
        for part, count in self._shares(selector, n, evicting=False):
            if not count:
                parts.append(_joined([]))
                continue
            without = self._without(wanted, worn if replace else drawn)
            parts.append(self.draw(part, count, without, replace, calls, limit))
            keys = parts[-1].keys
            drawn += keys
            worn += self.count_samples(keys, self.fetch(keys), limit)[1]
        joined = _joined(parts)
        self._weigh_mixture(selector, parts, joined, self._without(wanted, worn), set(worn), calls)
        return joined, worn

    def _weigh_mixture(
        self,
        selector: Mixed,
        parts: list[Drawn],
        joined: Drawn,
        wanted: Any,
        worn: set[int],
        calls: int,
    ) -> None:
        """The probability of each item under the whole mixture, and its weight.

        An order chooses and does not draw: to what it chose, it adds its whole share. An item
        that left with this draw keeps the probability under the part that drew it.
        """
        rows = self.fetch(joined.keys)
        here = np.array([key not in worn for key in joined.keys], np.bool_)
        priority = np.array([rows[key].priority for key in joined.keys])
        version = np.array([rows[key].version or 0 for key in joined.keys], np.float64)
        mixture = np.zeros(here.size)
        start, size = 0, 1
        for (part, share), drawn in zip(selector.selectors, parts, strict=True):
            own = np.zeros(here.size, np.bool_)
            own[start : start + len(drawn.keys)] = True
            start += len(drawn.keys)
            if isinstance(part, Ordered):
                mixture[own] += share
                continue
            weights = self._drawing().weigh(part, wanted)
            size = max(size, weights.count)
            chances = weights.chances(priority, version)
            if not weights.uniform:
                chances = np.where(priority > 0.0, chances, 0.0)
            under = np.where(here, chances, 0.0)
            alone = own & (under == 0.0)
            under[alone] = joined.probability[alone]
            mixture += share * under
        joined.probability = mixture
        weighing = [part for part, _ in selector.selectors if isinstance(part, Prioritized)]
        if weighing:
            among = self._drawing().weigh(weighing[0], wanted)
            among.count = max(1, among.count)
            joined.weights = importance(weighing[0], among, mixture, calls)


def _joined(parts: Sequence[Drawn]) -> Drawn:
    """Several draws as one."""
    keys = [key for part in parts for key in part.keys]
    empty = np.zeros(0)
    return Drawn(
        keys,
        np.concatenate([empty, *(part.probability for part in parts)]),
        np.concatenate([empty, *(part.weights for part in parts)]),
    )
