"""Choosing items in SQL: orders, draws and mixtures, and counting what was sampled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace as but
from typing import Any

import numpy as np
import sqlalchemy as sa

from recollect.base.arrays import Floats, Ints
from recollect.rules.query import fields_of
from recollect.rules.selectors import Mixed, Ordered, Selector
from recollect.storage.shares import Credits, dealt, importance_in, in_mixture, next_deal
from recollect.storage.sql.orders import order_by
from recollect.storage.sql.random_draws import RandomDraws, SqlDraw, Weights, numbers
from recollect.storage.sql.statements import KEYED, Statements, Wanted

Rows = dict[int, Any]

REMOVING = -1  # in the place of a limit: items leave, so how often they were sampled is no order
WHOLE = ()  # all columns
NAMED = ("key",)
NOTHING: Mapping[str, Any] = {}


class SqlExecutor:
    """Finds the items that a selector means. What becomes of them is the storage's."""

    def __init__(self, statements: Statements, base: int, seed: int | None) -> None:
        self._statements = statements
        self._items = statements.items
        self._draws = RandomDraws(statements, base, np.random.default_rng(seed))
        self._credits: Credits = {}

    def fetch(self, keys: Sequence[int]) -> Rows:
        """Whole rows, by key."""
        numbers = self._statements.numbers(sorted(set(keys)))
        rows = self._statements.run("fetch", self._fetching, keys=numbers)
        return {row.key: row for row in rows}

    def _fetching(self) -> Any:
        keyed = self._statements.condition(KEYED)
        return sa.select(self._items).where(keyed)

    def ordered(
        self,
        selector: Ordered,
        n: int,
        wanted: Wanted,
        *,
        staying: bool,
        columns: tuple[str, ...] = WHOLE,
        parameters: Mapping[str, Any] = NOTHING,
    ) -> list[Any]:
        """The first n rows of an order; beside other processes, of those that they leave."""
        alone = self._statements.transactions.alone

        def make() -> Any:
            terms = order_by(selector, self._statements.columns, staying=staying)
            query = sa.select(*(self._items.c[name] for name in columns or self._items.c.keys()))
            query = query.where(self._statements.condition(wanted)).order_by(*terms)
            query = query.limit(sa.bindparam("n", type_=sa.BigInteger()))
            return query if alone else query.with_for_update(skip_locked=True)

        key = ("order", selector, staying, columns, alone, wanted)
        rows = self._statements.run(key, make, n=n, **parameters)
        return list(rows.all())

    def draw(
        self,
        selector: Selector,
        n: int,
        wanted: Wanted,
        replace: bool,
        calls: int,
        limit: int,
        without: Sequence[int] = (),
        parameters: Mapping[str, Any] = NOTHING,
    ) -> SqlDraw:
        """n items of a selector that is no mixture, in order; nothing is done to them yet."""
        if without:
            wanted = but(wanted, apart=True)
            parameters = {**parameters, "without": self._statements.numbers(list(without))}
        if isinstance(selector, Ordered):
            staying = limit != REMOVING
            rows = self.ordered(
                selector, n, wanted, staying=staying, columns=NAMED, parameters=parameters
            )
            return SqlDraw([row.key for row in rows], np.ones(len(rows)), np.ones(len(rows)))
        limit = max(limit, 0)
        return self._draws.draw(selector, n, wanted, parameters, replace, calls, limit)

    def count_samples(
        self, keys: list[int], rows: Mapping[int, Any], limit: int
    ) -> tuple[Ints, list[int]]:
        """Count the samples of items; returns how many each place's item got, and who is worn."""
        numbers, places, counts = np.unique(
            np.array(keys, np.int64), return_inverse=True, return_counts=True
        )
        for often in np.unique(counts).tolist():
            named = self._statements.numbers(numbers[counts == often].tolist())
            self._statements.run("sampled", self._counting, keys=named, often=often)
        worn = [
            key
            for key, often in zip(numbers.tolist(), counts.tolist(), strict=True)
            if limit and rows[key].times_sampled + often >= limit
        ]
        order = {key: place for place, key in reversed(list(enumerate(keys)))}
        return counts[places], sorted(worn, key=order.__getitem__)

    def _counting(self) -> Any:
        times = self._items.c.times_sampled + sa.bindparam("often", type_=sa.BigInteger())
        keyed = self._statements.condition(KEYED)
        return sa.update(self._items).where(keyed).values(times_sampled=times)

    def draw_apart(
        self, selector: Selector, n: int, wanted: Wanted, *, evicting: bool = False
    ) -> SqlDraw:
        """Different items that will leave, those of a mixture one part after another."""
        if not isinstance(selector, Mixed):
            return self.draw(selector, n, wanted, False, 0, REMOVING)
        parts: list[SqlDraw] = []
        gone: list[int] = []
        for part, count in dealt(self._credits, selector, n, evicting=evicting):
            if count:
                parts.append(self.draw(part, count, wanted, False, 0, REMOVING, gone))
                gone += parts[-1].keys
        return _joined(parts)

    # -- mixtures ---------------------------------------------------------------------------------
    def next_deal(self, mixture: Mixed, n: int) -> list[tuple[Selector, int]]:
        """How many of the next n draws each part of a mixture gets."""
        return next_deal(self._credits, mixture, n)

    def sample_mixed(
        self, selector: Mixed, n: int, wanted: Wanted, replace: bool, calls: int, limit: int
    ) -> tuple[SqlDraw, list[int], Rows]:
        """Each selector for its share; what one draws counts before the next one draws.

        Returns what was drawn, the keys of items that were sampled often enough, and all rows.
        """
        wanted, parameters = self._settled(wanted)
        parts: list[SqlDraw] = []
        worn: list[int] = []
        drawn: list[int] = []
        for part, count in dealt(self._credits, selector, n, evicting=False):
            if not count:
                parts.append(_joined([]))
                continue
            without = worn if replace else drawn
            parts.append(self.draw(part, count, wanted, replace, calls, limit, without, parameters))
            keys = parts[-1].keys
            drawn += keys
            worn += self.count_samples(keys, self.fetch(keys), limit)[1]
        joined, rows = _joined(parts), self.fetch(drawn)
        weights = {
            part: self._draws.weigh(part, wanted, parameters)
            for part, _ in selector.selectors
            if not isinstance(part, Ordered)
        }
        counts = [len(part.keys) for part in parts]
        here = [rows[key] for key in drawn]
        joined.probability = in_mixture(
            selector, counts, joined.probability, lambda part: self._chances(weights[part], here)
        )
        size = max((each.count for each in weights.values()), default=0)
        importance = importance_in(selector, joined.probability, size, calls)
        joined.weights = joined.weights if importance is None else importance
        return joined, worn, rows

    def _chances(self, weights: Weights, rows: Sequence[Any]) -> Floats:
        """The probability of each item in one draw, 0 without weight while others have some."""
        column = self._statements.columns[weights.by].name
        values = numbers([getattr(row, column) for row in rows])
        chances = weights.chances(values, numbers([row.version for row in rows]))
        return chances if weights.uniform else np.where(values > 0.0, chances, 0.0)

    def _settled(self, wanted: Wanted) -> tuple[Wanted, dict[str, Any]]:
        """The same items, whatever is counted of them: a query may ask for that."""
        if wanted.query is None or "times_sampled" not in fields_of(wanted.query):
            return wanted, {}

        def make() -> Any:
            return sa.select(self._items.c.key).where(self._statements.condition(wanted))

        found = self._statements.run(("settle", wanted), make).scalars().all()
        return Wanted(keyed=True), {"keys": self._statements.numbers(list(found))}


def _joined(parts: Sequence[SqlDraw]) -> SqlDraw:
    """Several draws as one."""
    keys = [key for part in parts for key in part.keys]
    empty = np.zeros(0)
    return SqlDraw(
        keys,
        np.concatenate([empty, *(part.probability for part in parts)]),
        np.concatenate([empty, *(part.weights for part in parts)]),
    )
