"""A slow, obvious oracle of `rc.Table`: a plain list of items, and every rule by brute force.

Where the rules leave no choice the model says exactly what must happen; where chance decides,
it checks that what the table chose is allowed, and recomputes probability and weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from recollect.data.batch import Batch
from recollect.data.info import Info
from recollect.data.schema import Column
from recollect.errors import NeverPossible, WaitTimeout
from recollect.rules.selectors import Linear, Mixed, Ordered, Proportional, Selector
from recollect.testing.limiter_model import LimiterModel

Predicate = Callable[["Item"], bool]
NEVER, BLOCKED, GO = NeverPossible, WaitTimeout, None


@dataclass(eq=False)
class Item:
    """One item: its rows, what its rows share, and its fields; None stands for absent."""

    key: int
    seq: int
    rows: list[dict[str, Any]]
    shared: dict[str, Any]
    fields: dict[str, Any]
    inserted_at: float
    nbytes: int = 0
    times_sampled: int = 0
    returned: int = 0
    lease: int | None = None

    def value(self, name: str) -> Any:
        if name == "rows":
            return len(self.rows)
        if name in ("key", "seq", "times_sampled", "inserted_at", "nbytes"):
            return getattr(self, name)
        return self.fields[name]


@dataclass
class HeldLease:
    items: list[Item]
    owner: str
    deadline: float


def size_of(column: Column, cell: Any) -> int:
    """Bytes of payload in a cell."""
    if cell is None:
        return 0
    if column.kind == "str":
        return len(cell.encode())
    return column.size * (len(cell) if column.ragged else 1)


@dataclass(kw_only=True)
class Model(LimiterModel):
    """A table as a list of items."""

    capacity: int
    capacity_bytes: int | None
    sampler: Selector
    remover: Selector
    max_times_sampled: int
    columns: dict[str, Column]
    shared_columns: dict[str, Column]
    tags: Sequence[str] = ()
    items: list[Item] = field(default_factory=list)
    leases: dict[int, HeldLease] = field(default_factory=dict)
    requests: dict[Any, list[int]] = field(default_factory=dict)
    sample_calls: int = 0
    arrivals: int = 0
    now: float = 0.0
    credits: dict[Any, list[float]] = field(default_factory=dict)

    # -- looking --------------------------------------------------------------------------------
    @property
    def nbytes(self) -> int:
        return sum(item.nbytes for item in self.items)

    @property
    def bound(self) -> float:
        return math.inf if self.capacity_bytes is None else self.capacity_bytes

    @property
    def leased(self) -> int:
        return sum(len(held.items) for held in self.leases.values())

    def find(self, key: int) -> Item | None:
        return next((item for item in self.items if item.key == key), None)

    def visible(self, where: Predicate | None = None) -> list[Item]:
        return [i for i in self.items if i.lease is None and (where is None or where(i))]

    def measure(self, item: Item) -> None:
        item.nbytes = sum(
            size_of(column, row[name]) for row in item.rows for name, column in self.columns.items()
        ) + sum(size_of(c, item.shared[name]) for name, c in self.shared_columns.items())

    # -- what would happen ----------------------------------------------------------------------
    def insert_outcome(self, new: list[Item]) -> Any:
        payload = sum(item.nbytes for item in new)
        if len(new) > self.capacity or payload > self.bound or self.never_inserted(len(new)):
            return NEVER
        if not self.may_insert(len(new)):
            return NEVER if self.stuck_insert(len(new)) else BLOCKED
        leased = [item for item in self.items if item.lease is not None]
        too_many = len(leased) + len(new) > self.capacity
        too_large = sum(item.nbytes for item in leased) + payload > self.bound
        return BLOCKED if too_many or too_large else GO

    def amend_fits(self, items: list[Item], payload: int) -> bool:
        staying = [i for i in self.items if i.lease is not None or i in items]
        return sum(item.nbytes for item in staying) + payload <= self.bound

    def sample_outcome(self, n: int, where: Predicate | None, replace: bool) -> Any:
        limit = self.max_times_sampled
        found = self.visible(where)
        times = sum(item.times_sampled for item in found)
        distinct = self.distinct(n, replace, times)
        if self.distinct(n, replace, 0) > self.capacity or self.never_sampled(n):
            return NEVER
        if (limit and n > self.capacity * limit) or self.stuck_sample(n):
            return NEVER
        worn_out = limit and sum(limit - item.times_sampled for item in found) < n
        return BLOCKED if len(found) < distinct or worn_out or not self.may_sample(n) else GO

    def distinct(self, n: int, replace: bool, times: int) -> int:
        """How many different items always suffice for a sample, and fewer may not.

        `times` is how often all candidates were sampled. Of their draws before an order, the parts
        of a mixture may spend the cheapest way on items that leave.
        """
        if not replace or isinstance(self.sampler, Ordered):
            return n
        owed = {account: list(credit) for account, credit in self.credits.items()}
        needs, drawn, limit = [1], 0, self.max_times_sampled
        for selector, count in self.shares("sampler", self.sampler, n):
            if isinstance(selector, Ordered) and count:
                gone = [k for k in range(drawn + 1) if max(k, k * limit - times) <= drawn]
                needs.append(count + (max(gone) if limit else 0))
            drawn += count
        self.credits = owed  # a question changes nothing
        return max(needs)

    def take_count(self, n: int, where: Predicate | None, partial: bool) -> Any:
        """How many items a take gets, or the error that it raises."""
        if not partial and (n > self.capacity or self.never_sampled(n)):
            return NEVER
        found = len(self.visible(where))
        for count in range(n, 0, -1) if partial else (n,):
            if count <= found and self.may_sample(count):
                return count
        return NEVER if self.stuck_sample(1 if partial else n) else BLOCKED

    # -- selectors ------------------------------------------------------------------------------
    def ordered(self, selector: Ordered, items: list[Item], *, staying: bool) -> list[Item]:
        """Items in a selector's order; absent values last, ties by arrival."""
        sign = -1 if selector.descending else 1

        def place(item: Item) -> tuple[Any, ...]:
            value = item.value(selector.by)
            by_value = (1, 0) if value is None else (0, sign * value)
            return (item.times_sampled if staying else 0, by_value, item.seq)

        return sorted(items, key=place)

    def weigh(self, selector: Selector, items: list[Item]) -> dict[int, float]:
        """The weight of each item, by key; absent values weigh nothing."""
        if not isinstance(selector, Proportional):
            return {i.key: 1.0 for i in items}
        values = {i.key: float(i.value(selector.by) or 0) for i in items}
        weights = {key: v**selector.alpha if v > 0 else 0.0 for key, v in values.items()}
        if selector.half_life is not None:
            newest = max((i.fields["version"] for i in items if weights[i.key] > 0), default=0)
            for i in items:
                age = (i.fields["version"] - newest) / selector.half_life
                weights[i.key] *= 2.0 ** max(age, -900.0)
        return weights

    def chances(self, weights: dict[int, float], items: list[Item]) -> dict[int, float]:
        """The probability of each item in one draw, by key."""
        own = [weights[item.key] for item in items]
        if not any(own):
            own = [1.0] * len(items)
        total = math.fsum(own)
        return {item.key: w / total for item, w in zip(items, own, strict=True)}

    def shares(self, role: str, selector: Selector, n: int) -> list[tuple[Selector, int]]:
        """How many of n items each selector of a mixture gets; what rounding owes is kept."""
        if not isinstance(selector, Mixed):
            return [(selector, n)]
        parts = selector.selectors
        owed = self.credits.setdefault((role, selector), [0.0] * len(parts))
        owed[:] = [due + share * n for due, (_, share) in zip(owed, parts, strict=True)]
        counts = [max(0, math.floor(due)) for due in owed]
        while sum(counts) < n:
            best = max(range(len(parts)), key=lambda p: owed[p] - counts[p])
            counts[best] += 1
        while sum(counts) > n:
            worst = min(range(len(parts)), key=lambda p: owed[p] - counts[p])
            counts[worst] -= 1
        owed[:] = [due - count for due, count in zip(owed, counts, strict=True)]
        return [(part, count) for (part, _), count in zip(parts, counts, strict=True)]

    # -- inserting ------------------------------------------------------------------------------
    def insert(self, new: list[Item], present: set[int]) -> None:
        """Evict what must leave and add; `present` are the keys in the table afterwards."""
        over = max(0, len(self.items) + len(new) - self.capacity)
        self.evict(over, sum(item.nbytes for item in new), present, ())
        for item in new:
            self.arrivals += 1
            item.seq = self.arrivals
        self.items += new
        self.inserts += len(new)

    def evict(self, over: int, payload: int, present: set[int], kept: Sequence[Item]) -> None:
        """Items leave until `over` have gone and `payload` more bytes fit; `kept` may not."""
        gone = [item for item in self.items if item.key not in present]
        expected = self.leaving(over, payload, gone, kept)
        if expected is None:
            self.check_evicted(gone, over, payload, kept)
        else:
            assert {item.key for item in gone} == {item.key for item in expected}
        self.remove(gone)

    def leaving(
        self, over: int, payload: int, gone: list[Item], kept: Sequence[Item]
    ) -> list[Item] | None:
        """The items that must leave; None where chance decides."""
        left = [item for item in self.visible() if item not in kept]
        leaving: list[Item] = []
        chance = False
        parts = self.shares("remover", self.remover, over) if over else []
        while True:
            for selector, count in parts:
                chance |= count > 0 and not isinstance(selector, Ordered)
                if count and not chance and isinstance(selector, Ordered):
                    leaving += self.ordered(selector, left, staying=False)[:count]
                    left = [item for item in left if item not in leaving]
            if chance or self.nbytes - sum(i.nbytes for i in leaving) + payload <= self.bound:
                break
            parts = self.shares("remover", self.remover, 1)
        if not chance:
            return leaving
        evicted = max(over, len(leaving) + 1)
        for _ in range(len(gone) - evicted):  # each was chosen by itself, for its bytes
            self.shares("remover", self.remover, 1)
        return None

    def check_evicted(
        self, gone: list[Item], over: int, payload: int, kept: Sequence[Item]
    ) -> None:
        assert all(item.lease is None and item not in kept for item in gone)
        assert len(gone) >= over
        after = self.nbytes - sum(item.nbytes for item in gone) + payload
        assert after <= self.bound
        if len(gone) > over:  # the last one to go was needed
            assert any(after + item.nbytes > self.bound for item in gone)
        weights = self.weigh(self.remover, self.items)
        stayed = [i for i in self.visible() if i not in gone and i not in kept]
        if any(weights[i.key] == 0 for i in gone):
            assert not any(weights[i.key] > 0 for i in stayed)

    def remove(self, items: list[Item]) -> None:
        self.removals += len(items)
        self.items = [item for item in self.items if item not in items]

    # -- sampling -------------------------------------------------------------------------------
    def sample(self, n: int, where: Predicate | None, replace: bool, info: Info) -> list[Item]:
        """Check what a sample drew, and count it; returns the items in the batch's order."""
        size = len(self.items)
        pool = self.visible(where)
        start = list(pool)
        before = self.chances(self.weigh(self.sampler, start), start)
        drawn: list[Item] = []
        sequential: list[float] = []
        owners: list[Selector] = []
        for selector, count in self.shares("sampler", self.sampler, n):
            keys = [int(key) for key in info.keys[len(drawn) : len(drawn) + count]]
            candidates = [i for i in pool if replace or i not in drawn]
            if isinstance(selector, Ordered):
                chosen = self.ordered(selector, candidates, staying=True)[:count]
                assert [i.key for i in chosen] == keys
                sequential += [1.0] * count
                for item in chosen:
                    self._count(item, pool)
            else:
                chosen = self._drawn(selector, keys, candidates, pool, replace, sequential)
            drawn += chosen
            owners += [selector] * count
        self.samples += n
        assert info.times_sampled.tolist() == [item.times_sampled for item in drawn]
        assert info.table_size == size
        self._check_chances(drawn, start, before, replace, sequential, owners, info)
        self.sample_calls += 1
        return drawn

    def _count(self, item: Item, pool: list[Item]) -> None:
        item.times_sampled += 1
        if self.max_times_sampled and item.times_sampled >= self.max_times_sampled:
            self.remove([item])
            pool.remove(item)

    def _drawn(
        self,
        selector: Selector,
        keys: list[int],
        candidates: list[Item],
        pool: list[Item],
        replace: bool,
        sequential: list[float],
    ) -> list[Item]:
        """Follow random draws one after another."""
        chosen = []
        weights = self.weigh(selector, candidates)  # when the call begins, whatever it counts
        zeros = [weight for weight in weights.values() if weight == 0]
        first = now = self.chances(weights, candidates)
        for key in keys:
            item = next((i for i in candidates if i.key == key), None)
            assert item is not None, f"{key} was drawn, and it is not among the candidates"
            if self.max_times_sampled or not replace:
                now = self.chances(weights, candidates)
            assert now[key] > 0, "an item without weight was drawn while another has some"
            chance = now[key]
            if not replace:
                chance = first[key] if first[key] > 0 else 1 / len(zeros)
            sequential.append(chance)
            chosen.append(item)
            self._count(item, pool)
            if not replace or item not in pool:
                candidates.remove(item)
        return chosen

    def _check_chances(
        self,
        drawn: list[Item],
        start: list[Item],
        before: dict[int, float],
        replace: bool,
        sequential: list[float],
        owners: list[Selector],
        info: Info,
    ) -> None:
        selector = self.sampler
        assert np.isfinite(info.probability).all()
        assert np.isfinite(info.weights).all()
        if isinstance(selector, Mixed):
            if replace and not self.max_times_sampled:
                self._check_mixture(selector, drawn, start, owners, info)
            return
        np.testing.assert_allclose(info.probability, sequential, rtol=1e-9, atol=1e-250)
        if not isinstance(selector, Proportional):
            assert (info.weights == 1.0).all()
            return
        if selector.normalize == "table" and (self.max_times_sampled or not replace):
            return
        beta = selector.beta
        beta = beta.at(self.sample_calls) if isinstance(beta, Linear) else beta
        weights = (len(start) * np.array(sequential)) ** -beta
        if selector.normalize == "batch":
            weights /= weights.max()
        elif selector.normalize == "table":
            weights /= (len(start) * min(c for c in before.values() if c > 0)) ** -beta
        np.testing.assert_allclose(info.weights, weights, rtol=1e-9)

    def _check_mixture(
        self,
        mixture: Mixed,
        drawn: list[Item],
        start: list[Item],
        owners: list[Selector],
        info: Info,
    ) -> None:
        """A chance adds its share of the probability, an order its whole share to its own."""
        expected = np.zeros(len(drawn))
        for part, share in mixture.selectors:
            if isinstance(part, Ordered):
                expected += [share * (owner is part) for owner in owners]
            else:
                chances = self.chances(self.weigh(part, start), start)
                expected += [share * chances[item.key] for item in drawn]
        np.testing.assert_allclose(info.probability, expected, rtol=1e-9)

    # -- taking and leases ----------------------------------------------------------------------
    def take(self, n: int, where: Predicate | None, info: Info) -> list[Item]:
        """Check what a take chose; returns the items, which are still there."""
        assert info.table_size == len(self.items)
        candidates = self.visible(where)
        chosen: list[Item] = []
        for selector, count in self.shares("sampler", self.sampler, n):
            keys = [int(key) for key in info.keys[len(chosen) : len(chosen) + count]]
            if isinstance(selector, Ordered):
                part = self.ordered(selector, candidates, staying=False)[:count]
                assert [i.key for i in part] == keys
                candidates = [i for i in candidates if i not in part]
            else:
                part = []
                weights = self.weigh(selector, candidates)
                for key in keys:
                    now = self.chances(weights, candidates)
                    assert now.get(key, 0) > 0, f"{key} may not be taken"
                    part.append(next(i for i in candidates if i.key == key))
                    candidates.remove(part[-1])
            chosen += part
        assert len(chosen) == n
        for item in chosen:
            item.times_sampled += 1
        self.samples += n
        assert info.times_sampled.tolist() == [item.times_sampled for item in chosen]
        return chosen

    def lease(self, lease: Any, items: list[Item], owner: str, deadline: float) -> None:
        self.leases[lease.id] = HeldLease(items, owner, deadline)
        for item in items:
            item.lease = lease.id

    def confirm(self, lease: int) -> None:
        self.remove(self.leases.pop(lease).items)

    def give_back(self, lease: int) -> None:
        for item in self.leases.pop(lease).items:
            item.lease = None
            item.times_sampled -= 1
            item.returned += 1
            self.samples -= 1

    def pass_time(self, now: float) -> None:
        self.now = now
        for lease in [number for number, held in self.leases.items() if held.deadline <= now]:
            self.give_back(lease)

    def clear(self) -> None:
        self.leases.clear()
        self.remove(list(self.items))

    # -- comparing ------------------------------------------------------------------------------
    def check_batch(self, batch: Batch, items: list[Item]) -> None:
        """Every cell and field of a batch is that of the items."""
        info = batch.info
        assert info.keys.tolist() == [item.key for item in items]
        assert info.row_offsets.tolist() == [0, *np.cumsum([len(i.rows) for i in items])]
        assert info.priority.tolist() == [item.fields["priority"] for item in items]
        assert info.version.tolist() == [
            -1 if i.fields["version"] is None else i.fields["version"] for i in items
        ]
        assert info.task.tolist() == [item.fields["task"] for item in items]
        assert info.status.tolist() == [item.fields["status"] for item in items]
        assert info.deliveries.tolist() == [item.returned + 1 for item in items]
        for tag in self.tags:
            if hasattr(info, tag):
                got = [None if v is None or v != v else v for v in getattr(info, tag).tolist()]
                assert got == [item.fields[tag] for item in items], tag
            else:
                assert all(item.fields[tag] is None for item in items), tag
        rows = [row for item in items for row in item.rows]
        assert list(batch.columns) == list(self.columns)
        for name, column in self.columns.items():
            check_column(name, column, batch, [row[name] for row in rows])
        for name, column in self.shared_columns.items():
            check_column(name, column, batch.shared, [item.shared[name] for item in items])


def check_column(name: str, column: Column, batch: Any, cells: list[Any]) -> None:
    """A column of a batch has these cells, None where absent."""
    data = batch.columns[name]
    present = [cell is not None for cell in cells]
    if column.optional:
        assert batch.present[name].tolist() == present, name
    if column.ragged:
        empty: Any = "" if column.kind == "str" else np.zeros((0, *column.shape))
        got = data.to_list()
        assert len(got) == len(cells)
        for one, other in zip(got, cells, strict=True):
            assert np.array_equal(one, empty if other is None else other), (name, one, other)
    else:
        assert data.dtype == column.dtype
        zero = np.zeros(column.shape, column.dtype)
        wanted = np.array([zero if cell is None else cell for cell in cells], column.dtype)
        assert np.array_equal(data, wanted.reshape(data.shape)), name
