"""Random draws in SQL: uniform by rank, weighted by running sums, or by exponential times.

Nothing here reads a table into Python. Random numbers are made here, from the seed, and the
database finds the items they fall on; so the same seed and calls give the same draws.

- Uniform draws are ranks in the order of arrival.
- Weighted draws with replacement are points on the line of running sums of weights.
- Draws without replacement follow this picture: every item rings after an exponential time of a
  rate equal to its weight, and items come in the order in which they ring. That is exactly the
  order of draws one after another, each among those that are left. If items ring again and
  again, until they reach max_times_sampled, it is that of draws with replacement under which
  worn items leave: and the first n rings are those of the n that rang first.

Weights are powers and decay with age, so they are compared by their logarithms, relative to the
largest: no weight overflows, and none vanishes that matters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from recollect.selectors import Linear, Prioritized, Selector
from recollect.storage.sql.dialects import Dialect

Floats = NDArray[np.float64]

FAINTEST = -700.0  # the logarithm of the smallest weight, where the largest is 1


@dataclass
class Weights:
    """How much items weigh together, by a selector; uniform where there is no weight at all."""

    count: int  # items
    positive: int  # those with a weight
    alpha: float = 0.0
    decay: float = 0.0  # of the logarithm, for each version of age
    newest: int = 0
    highest: float = 0.0  # the largest logarithm
    total: float = 0.0
    smallest: float = 0.0

    @property
    def uniform(self) -> bool:
        return self.positive == 0

    def of(self, priority: Floats, version: Floats) -> Floats:
        """The weights of some items; 0 for a priority of 0."""
        here = priority > 0.0
        logs = np.full(priority.size, FAINTEST)
        with np.errstate(divide="ignore", invalid="ignore"):
            logs[here] = self.alpha * np.log(priority[here]) - self.highest
            if self.decay:
                logs[here] += self.decay * (version[here] - self.newest)
        return np.where(here, np.exp(np.maximum(logs, FAINTEST)), 0.0)

    def chances(self, priority: Floats, version: Floats) -> Floats:
        """The probability of each item in a first draw; of those without weight among themselves
        where nothing has any."""
        if self.uniform:
            return np.full(priority.size, 1.0 / max(1, self.count))
        chances = self.of(priority, version) / self.total
        zeros = self.count - self.positive
        return np.where(priority > 0.0, chances, 1.0 / zeros if zeros else 0.0)


@dataclass
class Drawn:
    """Items in the order in which they were drawn."""

    keys: list[int]
    probability: Floats
    weights: Floats


class Drawing:
    """Draws from the items that meet a condition. `base` is the key of the arrival 0."""

    def __init__(
        self,
        connection: sa.Connection,
        dialect: Dialect,
        columns: Mapping[str, Any],
        base: int,
        random: np.random.Generator,
    ) -> None:
        self._connection = connection
        self._dialect = dialect
        self._columns = columns
        self._base = base
        self._random = random

    # -- weights ---------------------------------------------------------------------------------
    def weigh(self, selector: Selector, condition: Any) -> Weights:
        """Look at the weights of all that meet a condition."""
        count = sa.func.count()
        if not isinstance(selector, Prioritized):
            return Weights(self._one(sa.select(count).where(condition))[0], 0)
        priority, version = self._columns["priority"], self._columns["version"]
        positive = priority > 0.0
        some = sa.func.count(sa.case((positive, 1)))
        row = self._one(
            sa.select(
                count,
                some,
                sa.func.max(sa.case((positive, priority))),
                sa.func.max(sa.case((positive, version))),
            ).where(condition)
        )
        weights = Weights(row[0], row[1], alpha=float(selector.alpha))
        if weights.uniform:
            return weights
        weights.highest = weights.alpha * math.log(row[2])
        if selector.half_life is not None:
            weights.decay, weights.newest = math.log(2.0) / selector.half_life, row[3]
            largest = sa.select(sa.func.max(self._log(weights))).where(condition, positive)
            weights.highest = self._one(largest)[0]
        weight = self._weight(weights)
        sums = sa.select(sa.func.sum(weight), sa.func.min(weight)).where(condition, positive)
        weights.total, weights.smallest = self._one(sums)
        return weights

    def _one(self, query: Any) -> Any:
        return self._connection.execute(query).one()

    def _log(self, weights: Weights) -> Any:
        log: Any = sa.func.ln(self._columns["priority"], type_=sa.Double()) * weights.alpha
        if weights.decay:
            age: Any = sa.cast(self._columns["version"] - weights.newest, sa.Double())
            log = log + age * weights.decay
        return log

    def _weight(self, weights: Weights) -> Any:
        relative = self._log(weights) - weights.highest
        return sa.func.exp(self._dialect.largest(relative, FAINTEST), type_=sa.Double())

    # -- draws -----------------------------------------------------------------------------------
    def draw(
        self, selector: Selector, n: int, condition: Any, replace: bool, calls: int, limit: int
    ) -> Drawn:
        """Draw n items. With a limit, those that reach it leave before the next draw."""
        weights = self.weigh(selector, condition)
        if replace and not limit:
            keys, probability = self._with_replacement(selector, weights, n, condition)
        else:
            keys, probability = self._ringing(weights, n, condition, limit if replace else 0)
        return Drawn(keys, probability, importance(selector, weights, probability, calls))

    def _with_replacement(
        self, selector: Selector, weights: Weights, n: int, condition: Any
    ) -> tuple[list[int], Floats]:
        key, priority = self._columns["key"], self._columns["priority"]
        if weights.uniform:
            ranks = self._random.integers(weights.count, size=n)
            return self._at_ranks(ranks, condition), np.full(n, 1.0 / weights.count)
        units = self._random.random(n)
        if isinstance(selector, Prioritized) and selector.stratified:
            units = (np.arange(n) + units) / n
        before = (
            sa.func.sum(self._weight(weights)).over(order_by=key, rows=(None, -1)).label("before")
        )
        lows = sa.select(key.label("key"), before).where(condition, priority > 0.0).subquery()
        points = self._dialect.listed((units * weights.total).tolist(), sa.Double())
        null = sa.null()
        line = sa.union_all(
            sa.select(
                sa.func.coalesce(lows.c.before, 0.0).label("at"),
                lows.c.key.label("key"),
                sa.cast(null, sa.BigInteger).label("place"),
            ),
            sa.select(points.c.value, sa.cast(null, sa.BigInteger), points.c.place),
        ).subquery()
        # A point belongs to the last item that begins before it; keys rise along the line.
        latest = sa.func.max(line.c.key).over(
            order_by=[line.c.at, line.c.place.is_not(None)], rows=(None, 0)
        )
        found = sa.select(line.c.place, latest.label("key")).subquery()
        query = (
            sa.select(found.c.key, priority, self._columns["version"])
            .join(key.table, key == found.c.key)
            .where(found.c.place.is_not(None))
            .order_by(found.c.place)
        )
        rows = self._connection.execute(query).all()
        return [row[0] for row in rows], weights.chances(*_numbers(rows))

    def _at_ranks(self, ranks: NDArray[np.int64], condition: Any) -> list[int]:
        """The items at places in the order of arrival, counted from 0."""
        key = self._columns["key"]
        number = sa.func.row_number().over(order_by=key).label("number")
        ranked = sa.select(key.label("key"), number).where(condition).subquery()
        wanted = self._dialect.listed((ranks + 1).tolist(), sa.BigInteger())
        query = (
            sa.select(ranked.c.key)
            .join(wanted, wanted.c.value == ranked.c.number)
            .order_by(wanted.c.place)
        )
        return list(self._connection.execute(query).scalars())

    def _ringing(
        self, weights: Weights, n: int, condition: Any, limit: int
    ) -> tuple[list[int], Floats]:
        """The n that ring first, each once, or with a limit as often as it may."""
        first = min(n, weights.count)
        if weights.uniform:
            keys = self._at_ranks(
                self._random.choice(weights.count, first, replace=False), condition
            )
            gaps = self._random.exponential(size=first) / (weights.count - np.arange(first))
            times, version, priority = np.cumsum(gaps), np.zeros(first), np.zeros(first)
        else:
            keys, times, priority, version = self._by_ring(weights, first, condition)
        if not limit:
            return keys, weights.chances(priority, version)
        rates = np.ones(first) if weights.uniform else weights.of(priority, version)
        others = float(weights.count - first)
        if not weights.uniform:
            others = 0.0
            if (rates > 0.0).sum() < weights.positive:
                unseen = sa.not_(self._dialect.among(self._columns["key"], keys))
                mass = sa.func.sum(self._weight(weights))
                left = sa.select(mass).where(condition, self._columns["priority"] > 0.0, unseen)
                others = self._one(left)[0]
        return self._again(weights, n, keys, times, rates, others, limit)

    def _by_ring(
        self, weights: Weights, n: int, condition: Any
    ) -> tuple[list[int], Floats, Floats, Floats]:
        key, priority = self._columns["key"], self._columns["priority"]
        salt = int(self._random.integers(1 << 62))
        unit = self._dialect.unit(key - self._base, salt)
        ring: Any = sa.func.ln(-sa.func.ln(unit, type_=sa.Double()), type_=sa.Double())
        early = sa.case(
            (priority > 0.0, ring - self._log(weights) + weights.highest), else_=unit
        ).label("early")
        query = (
            sa.select(key, priority, self._columns["version"], early)
            .where(condition)
            .order_by(sa.case((priority > 0.0, 0), else_=1), early, key)
            .limit(n)
        )
        rows = self._connection.execute(query).all()
        logs = np.array([row[3] for row in rows], np.float64)
        numbers = _numbers(rows)
        rung = np.exp(np.clip(logs, FAINTEST, -FAINTEST))
        times = np.where(numbers[0] > 0.0, rung, -np.log1p(-np.minimum(logs, 0.999)))
        return [row[0] for row in rows], times, *numbers

    def _again(
        self,
        weights: Weights,
        n: int,
        keys: list[int],
        times: Floats,
        rates: Floats,
        others: float,
        limit: int,
    ) -> tuple[list[int], Floats]:
        """Let items ring again until n have rung; those without weight begin when others end.

        `others` is the weight of all that were not among the first.
        """
        query = sa.select(self._columns["key"], self._columns["times_sampled"])
        found = query.where(self._dialect.among(self._columns["key"], keys))
        sampled = {row[0]: row[1] for row in self._connection.execute(found)}
        rings: list[tuple[bool, float, int]] = []
        for place, key in enumerate(keys):
            at = float(times[place])
            silent = rates[place] <= 0.0
            for _ in range(min(n, limit - sampled[key])):
                rings.append((silent, at, place))
                at += self._random.exponential() / (1.0 if silent else rates[place])
        rings.sort()
        drawn, probability = [], np.empty(n)
        left = {place: limit - sampled[key] for place, key in enumerate(keys)}
        zeros = 0 if weights.uniform else weights.count - weights.positive
        heavy = rates.copy()
        for number, (silent, _, place) in enumerate(rings[:n]):
            probability[number] = 1.0 / zeros if silent else rates[place] / (others + heavy.sum())
            drawn.append(keys[place])
            left[place] -= 1
            if left[place] == 0:
                heavy[place] = 0.0
                zeros -= silent
        return drawn, np.minimum(probability, 1.0)


def importance(selector: Selector, weights: Weights, probability: Floats, calls: int) -> Floats:
    """(N · P) ** -beta, divided by the largest of the batch, of the table, or not."""
    if not isinstance(selector, Prioritized):
        return np.ones(probability.size)
    beta = selector.beta.at(calls) if isinstance(selector.beta, Linear) else selector.beta
    reference = 1.0 / max(1, weights.count)
    if selector.normalize == "batch":
        reference = float(probability.min())
    elif selector.normalize == "table" and not weights.uniform:
        reference = weights.smallest / weights.total
    scaled: Floats = (probability / reference) ** -beta
    return scaled


def _numbers(rows: Any) -> tuple[Floats, Floats]:
    """The priorities and the versions of rows (key, priority, version, ...)."""
    priority = np.array([row[1] for row in rows], np.float64)
    version = np.array([0 if row[2] is None else row[2] for row in rows], np.float64)
    return priority, version
