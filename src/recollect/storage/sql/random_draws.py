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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from recollect.base.arrays import Floats
from recollect.rules.natures import unexecutable
from recollect.rules.selectors import Proportional, Selector, Uniform
from recollect.storage.sql.statements import Statements, Wanted

Parameters = Mapping[str, Any]

FAINTEST = -700.0  # the logarithm of the smallest weight, where the largest is 1
LARGEST = 1e150  # a table refuses to weigh by more, but one that is opened again may have it


@dataclass
class Weights:
    """How much items weigh together, by a selector; uniform where there is no weight at all."""

    count: int  # items
    positive: int  # those with a weight
    by: str = "priority"  # the field that they are weighed by
    alpha: float = 0.0
    decay: float = 0.0  # of the logarithm, for each version of age
    newest: int = 0
    highest: float = 0.0  # the largest logarithm
    total: float = 0.0
    smallest: float = 0.0

    @property
    def uniform(self) -> bool:
        return self.positive == 0

    @property
    def aging(self) -> bool:
        return self.decay != 0.0

    @property
    def shape(self) -> tuple[str, bool]:
        """What makes statements about weights differ from each other."""
        return self.by, self.aging

    def parameters(self) -> dict[str, Any]:
        """What statements need to weigh items."""
        given: dict[str, Any] = {"alpha": self.alpha, "highest": self.highest}
        return {**given, "decay": self.decay, "newest": self.newest} if self.decay else given

    def of(self, values: Floats, version: Floats) -> Floats:
        """The weights of items with these values of the field; 0 for a value of 0."""
        here = values > 0.0
        logs = np.full(values.size, FAINTEST)
        with np.errstate(divide="ignore", invalid="ignore"):
            logs[here] = self.alpha * np.log(values[here]) - self.highest
            if self.decay:
                logs[here] += self.decay * (version[here] - self.newest)
        return np.where(here, np.exp(np.maximum(logs, FAINTEST)), 0.0)

    def chances(self, values: Floats, version: Floats) -> Floats:
        """The probability of each item in a first draw; of those without weight among themselves
        where nothing has any."""
        if self.uniform:
            return np.full(values.size, 1.0 / max(1, self.count))
        chances = self.of(values, version) / self.total
        zeros = self.count - self.positive
        return np.where(values > 0.0, chances, 1.0 / zeros if zeros else 0.0)


@dataclass
class SqlDraw:
    """Items in the order in which they were drawn."""

    keys: list[int]
    probability: Floats
    weights: Floats


class RandomDraws:
    """Draws from the items that are wanted. `base` is the key of the arrival 0.

    `parameters` are those that what is wanted needs.
    """

    def __init__(self, statements: Statements, base: int, random: np.random.Generator) -> None:
        self._statements = statements
        self._dialect = statements.dialect
        self._columns = statements.columns
        self._base = base
        self._random = random

    # -- weights ----------------------------------------------------------------------------------
    def weigh(self, selector: Selector, wanted: Wanted, parameters: Parameters) -> Weights:
        """Look at the weights of all that are wanted."""
        if isinstance(selector, Uniform):
            counted = self._one(
                ("count", wanted), lambda: self._select(wanted, sa.func.count()), parameters
            )
            return Weights(counted[0], 0)
        if not isinstance(selector, Proportional):
            raise unexecutable(selector)
        by = selector.by
        row = self._one(("highest", by, wanted), lambda: self._highest(by, wanted), parameters)
        weights = Weights(row[0], row[1], by, alpha=float(selector.alpha))
        if weights.uniform:
            return weights
        weights.highest = weights.alpha * math.log(row[2])
        if selector.half_life is not None:
            weights.decay, weights.newest = math.log(2.0) / selector.half_life, row[3]
            weights.highest = self._one(
                ("log", by, wanted),
                lambda: self._select(wanted, sa.func.max(self._log(weights)), self._positive(by)),
                {**parameters, **weights.parameters()},
            )[0]
        weights.total, weights.smallest = self._one(
            ("total", weights.shape, wanted),
            lambda: self._select(
                wanted,
                sa.func.sum(self._weight(weights)),
                self._positive(by),
                also=sa.func.min(self._weight(weights)),
            ),
            {**parameters, **weights.parameters()},
        )
        return weights

    def _highest(self, by: str, wanted: Wanted) -> Any:
        positive, version = self._positive(by), self._columns["version"]
        return sa.select(
            sa.func.count(),
            sa.func.count(sa.case((positive, 1))),
            sa.func.max(sa.case((positive, self._value(by)))),
            sa.func.max(sa.case((positive, version))),
        ).where(self._statements.condition(wanted))

    def _value(self, by: str) -> Any:
        """The value of a field that items are weighed by: 0 where it is absent."""
        column = self._columns[by]
        if by == "priority":
            return column
        if isinstance(column.type, sa.Boolean):
            column = sa.cast(column, sa.Integer)
        elif isinstance(column.type, sa.Double):
            column = sa.case((column > LARGEST, LARGEST), else_=column)
        return sa.cast(sa.func.coalesce(column, 0), sa.Double())

    def _positive(self, by: str) -> Any:
        return self._value(by) > 0.0

    def _select(self, wanted: Wanted, what: Any, *conditions: Any, also: Any = None) -> Any:
        query = sa.select(what).select_from(self._statements.items)
        query = query if also is None else query.add_columns(also)
        return query.where(self._statements.condition(wanted), *conditions)

    def _one(self, key: Any, make: Any, parameters: Parameters) -> Any:
        return self._statements.run(key, make, **parameters).one()

    def _log(self, weights: Weights) -> Any:
        """The logarithm of an item's weight."""
        log: Any = sa.func.ln(self._value(weights.by), type_=sa.Double()) * _number("alpha")
        if weights.aging:
            newest = sa.bindparam("newest", type_=sa.BigInteger())
            age: Any = sa.cast(self._columns["version"] - newest, sa.Double())
            log = log + age * _number("decay")
        return log

    def _weight(self, weights: Weights) -> Any:
        """An item's weight, where the largest is 1."""
        relative = self._log(weights) - _number("highest")
        return sa.func.exp(self._dialect.largest(relative, FAINTEST), type_=sa.Double())

    # -- draws ------------------------------------------------------------------------------------
    def draw(
        self,
        selector: Selector,
        n: int,
        wanted: Wanted,
        parameters: Parameters,
        replace: bool,
        calls: int,
        limit: int,
    ) -> SqlDraw:
        """Draw n items. With a limit, those that reach it leave before the next draw."""
        weights = self.weigh(selector, wanted, parameters)
        if replace and not limit:
            keys, probability = self._with_replacement(selector, weights, n, wanted, parameters)
        else:
            often = limit if replace else 0
            keys, probability = self._ringing(weights, n, wanted, parameters, often)
        return SqlDraw(keys, probability, importance(selector, weights, probability, calls))

    def _with_replacement(
        self, selector: Selector, weights: Weights, n: int, wanted: Wanted, parameters: Parameters
    ) -> tuple[list[int], Floats]:
        if weights.uniform:
            ranks = self._random.integers(weights.count, size=n)
            return self._at_ranks(ranks, wanted, parameters), np.full(n, 1.0 / weights.count)
        units = self._random.random(n)
        if isinstance(selector, Proportional) and selector.stratified:
            units = (np.arange(n) + units) / n
        rows = self._statements.run(
            ("points", weights.shape, wanted),
            lambda: self._at_points(wanted, weights),
            points=self._dialect.numbers((units * weights.total).tolist()),
            **weights.parameters(),
            **parameters,
        ).all()
        return [row[0] for row in rows], weights.chances(*_numbers(rows))

    def _at_points(self, wanted: Wanted, weights: Weights) -> Any:
        """The items on which points on the line of running sums fall."""
        key = self._columns["key"]
        before = sa.func.sum(self._weight(weights)).over(order_by=key, rows=(None, -1))
        lows = sa.select(key.label("key"), before.label("before")).where(
            self._statements.condition(wanted), self._positive(weights.by)
        )
        low = lows.subquery()
        points = self._dialect.listed("points", sa.Double())
        nothing = sa.cast(sa.null(), sa.BigInteger)
        line = sa.union_all(
            sa.select(
                sa.func.coalesce(low.c.before, 0.0).label("at"),
                low.c.key.label("key"),
                nothing.label("place"),
            ),
            sa.select(points.c.value, nothing, points.c.place),
        ).subquery()
        # A point belongs to the last item that begins before it; keys rise along the line.
        latest = sa.func.max(line.c.key).over(
            order_by=[line.c.at, line.c.place.is_not(None)], rows=(None, 0)
        )
        found = sa.select(line.c.place, latest.label("key")).subquery()
        return (
            sa.select(found.c.key, self._value(weights.by), self._columns["version"])
            .join(self._statements.items, key == found.c.key)
            .where(found.c.place.is_not(None))
            .order_by(found.c.place)
        )

    def _at_ranks(
        self, ranks: NDArray[np.int64], wanted: Wanted, parameters: Parameters
    ) -> list[int]:
        """The items at places in the order of arrival, counted from 0."""
        found = self._statements.run(
            ("ranks", wanted),
            lambda: self._ranked(wanted),
            ranks=self._dialect.numbers((ranks + 1).tolist()),
            **parameters,
        )
        return list(found.scalars())

    def _ranked(self, wanted: Wanted) -> Any:
        key = self._columns["key"]
        number = sa.func.row_number().over(order_by=key).label("number")
        items = sa.select(key.label("key"), number).where(self._statements.condition(wanted))
        ranked = items.subquery()
        given = self._dialect.listed("ranks", sa.BigInteger())
        return (
            sa.select(ranked.c.key)
            .join(given, given.c.value == ranked.c.number)
            .order_by(given.c.place)
        )

    def _ringing(
        self, weights: Weights, n: int, wanted: Wanted, parameters: Parameters, limit: int
    ) -> tuple[list[int], Floats]:
        """The n that ring first, each once, or with a limit as often as it may."""
        first = min(n, weights.count)
        if weights.uniform:
            ranks = self._random.choice(weights.count, first, replace=False)
            keys = self._at_ranks(ranks, wanted, parameters)
            gaps = self._random.exponential(size=first) / (weights.count - np.arange(first))
            times, version, values = np.cumsum(gaps), np.zeros(first), np.zeros(first)
        else:
            keys, times, values, version = self._by_ring(weights, first, wanted, parameters)
        if not limit:
            return keys, weights.chances(values, version)
        rates = np.ones(first) if weights.uniform else weights.of(values, version)
        others = float(weights.count - first)
        if not weights.uniform:
            others = 0.0
            if (rates > 0.0).sum() < weights.positive:
                others = self._unseen(weights, keys, wanted, parameters)
        return self._again(weights, n, keys, times, rates, others, limit)

    def _unseen(
        self, weights: Weights, keys: list[int], wanted: Wanted, parameters: Parameters
    ) -> float:
        """The weight of all but some items."""
        seen = self._dialect.keyed(self._columns["key"], "seen")
        mass = self._one(
            ("unseen", weights.shape, wanted),
            lambda: self._select(
                wanted,
                sa.func.sum(self._weight(weights)),
                self._positive(weights.by),
                sa.not_(seen),
            ),
            {"seen": self._dialect.numbers(keys), **weights.parameters(), **parameters},
        )
        return float(mass[0])

    def _by_ring(
        self, weights: Weights, n: int, wanted: Wanted, parameters: Parameters
    ) -> tuple[list[int], Floats, Floats, Floats]:
        rows = self._statements.run(
            ("ring", weights.shape, wanted),
            lambda: self._rung(wanted, weights),
            n=n,
            salt=int(self._random.integers(1 << 62)),
            **weights.parameters(),
            **parameters,
        ).all()
        logs = np.array([row[3] for row in rows], np.float64)
        numbers = _numbers(rows)
        rung = np.exp(np.clip(logs, FAINTEST, -FAINTEST))
        times = np.where(numbers[0] > 0.0, rung, -np.log1p(-np.minimum(logs, 0.999)))
        return [row[0] for row in rows], times, *numbers

    def _rung(self, wanted: Wanted, weights: Weights) -> Any:
        """Items by the logarithm of the time at which they ring; those without weight last."""
        key, salt = self._columns["key"], sa.bindparam("salt", type_=sa.BigInteger())
        unit = self._dialect.unit(key - self._base, salt)
        ring: Any = sa.func.ln(-sa.func.ln(unit, type_=sa.Double()), type_=sa.Double())
        time = ring - self._log(weights) + _number("highest")
        positive = self._positive(weights.by)
        early = sa.case((positive, time), else_=unit).label("early")
        return (
            sa.select(key, self._value(weights.by), self._columns["version"], early)
            .where(self._statements.condition(wanted))
            .order_by(sa.case((positive, 0), else_=1), early, key)
            .limit(sa.bindparam("n", type_=sa.BigInteger()))
        )

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
        key = self._columns["key"]
        found = self._statements.run(
            "times",
            lambda: sa.select(key, self._columns["times_sampled"]).where(
                self._dialect.keyed(key, "keys")
            ),
            keys=self._dialect.numbers(keys),
        )
        sampled = {row[0]: row[1] for row in found}
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
    if not isinstance(selector, Proportional):
        return np.ones(probability.size)
    reference = 1.0 / max(1, weights.count)
    if selector.normalize == "batch":
        reference = float(probability.min())
    elif selector.normalize == "table" and not weights.uniform:
        reference = weights.smallest / weights.total
    scaled: Floats = (probability / reference) ** -selector.beta_at(calls)
    return scaled


def _numbers(rows: Any) -> tuple[Floats, Floats]:
    """The values and the versions of rows (key, value, version, ...)."""
    return numbers([row[1] for row in rows]), numbers([row[2] for row in rows])


def numbers(values: Sequence[Any]) -> Floats:
    """Numbers from a database, 0 for those that are absent."""
    found = np.array([0 if value is None else value for value in values], np.float64)
    return np.minimum(found, LARGEST)


def _number(name: str) -> Any:
    return sa.bindparam(name, type_=sa.Double())
