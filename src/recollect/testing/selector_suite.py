"""Selectors: what each one chooses, with every query and every remover, and how often."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from recollect.errors import InvalidValue
from recollect.rules.query import field
from recollect.rules.selectors import (
    Fifo,
    Largest,
    Mixed,
    Prioritized,
    Proportional,
    Selector,
    Smallest,
    StalestFirst,
    Uniform,
    Weighted,
)
from recollect.table.table import Table
from recollect.testing.base import StorageTests
from recollect.testing.cases import CHANCES, MIXTURES, ORDERS, QUERIES, REMOVERS, check_frequencies
from recollect.testing.pair import Pair

KINDS = {"orders": ORDERS, "chances": CHANCES, "mixtures": MIXTURES}

WEIGHTS = [0.5, 3.0, 0.0, 1.0, 2.0, 0.0, 0.1, 7.0, 1.5, 0.3, 4.0]
EVEN = field("task") == "even"
LATE = field("version") >= 4
WHERES = {"all": None, "partition": EVEN, "scan": LATE, "both": EVEN & LATE}
MATH = field("task") == "math"


def by_name(rule: object) -> str:
    """What tests of a rule are called."""
    return type(rule).__name__


def admitted(where: str) -> Any:
    """Which of the weighted items a query admits."""
    places = np.arange(len(WEIGHTS))
    even, late = places % 2 == 0, places >= 4
    return {"all": places >= 0, "partition": even, "scan": late, "both": even & late}[where]


class SelectorTests(StorageTests):
    """Which item comes next."""

    # -- exactly, against the model ---------------------------------------------------------------
    def each(self, pair: Pair, selectors: list[Selector], items: int) -> Iterator[int]:
        """Go through samplers, on the same table with new items; yields the place of each."""
        for place, selector in enumerate(selectors):
            with pair.explaining(f"sampler {selector}"):
                pair.clear()
                pair.set_rule("sampler", selector)
                self.fill(pair, items)
                yield place
                pair.compare()
                pair.check_held()

    def thinned(self, selectors: list[Selector]) -> list[Selector]:
        return selectors[:: max(1, self.every // 2)]

    @pytest.mark.parametrize("kind", KINDS)
    def test_samplers_work_with_every_query(self, kind: str) -> None:
        pair = self.pair(partition_by=("task", "status"))
        for place in self.each(pair, KINDS[kind], 30):
            for turn, case in enumerate(QUERIES[place % self.every :: self.every]):
                pair.say(f"  where {case}")
                pair.count(case.query, case.holds)
                pair.sample(3, case.query, case.holds, replace=bool(turn % 2))
                lease = pair.take(2, case.query, case.holds, lease=60.0, partial=bool(turn % 3))
                if lease is not None:
                    pair.give_back(lease.id)

    @pytest.mark.parametrize("kind", KINDS)
    def test_samplers_work_beside_every_remover(self, kind: str) -> None:
        pair = self.pair(capacity=12)
        for place in self.each(pair, KINDS[kind], 12):
            for turn, remover in enumerate(REMOVERS[place % self.every :: self.every]):
                pair.set_rule("remover", remover)
                pair.sample(5, replace=bool(turn % 2))
                self.fill(pair, 3, start=12 + 3 * turn)
                pair.compare()
                pair.take(2)
                self.fill(pair, 4, start=60 + 4 * turn)
                pair.compare()

    @pytest.mark.parametrize("kind", KINDS)
    def test_items_leave_when_they_were_sampled_often_enough(self, kind: str) -> None:
        pair = self.pair(rich=False, capacity=8, max_times_sampled=2)
        for _ in self.each(pair, self.thinned(KINDS[kind]), 6):
            for turn in (1, 2):
                pair.sample(5)
                pair.sample(2, replace=False)
                pair.compare()
                self.fill(pair, 6, start=6 * turn)

    def test_what_comes_back_returns_to_its_place(self) -> None:
        pair = self.pair(partition_by=("task",))
        for _ in self.each(pair, self.thinned(ORDERS), 20):
            first = pair.take(4, lease=60.0, owner="a")
            second = pair.take(4, lease=60.0, owner="b")
            pair.give_back(second.id)
            self.fill(pair, 3, start=20)
            pair.give_back(first.id)
            pair.take(6)
            some = [i.key for i in pair.model.items][1:6:2]
            pair.update(
                some, task="math", version=[9, 0, 9], priority=0.25, score=[0.5, None, -9.0]
            )
            pair.take(2, MATH, lambda i: i.value("task") == "math")
            pair.take(5)

    def test_a_selector_that_it_does_not_know_is_refused(self) -> None:
        """Whoever says nothing of what comes next is not drawn uniformly in silence."""

        class Unknown(Selector):
            pass

        storage = self.new_storage()
        table = Table("t", capacity=3, storage=storage)
        table.insert({"x": [1, 2, 3]})
        with storage.transaction():
            for call in (
                lambda: storage.sample(Unknown(), 1, None, True, 0),
                lambda: storage.sample(Unknown(), 1, None, False, 0),
                lambda: storage.take(Unknown(), 1, None, hide=True),
                lambda: storage.evict(Unknown(), 1, 0, False),
            ):
                with pytest.raises(InvalidValue, match="Unknown is no order and no weight"):
                    call()
        assert len(table) == 3

    def test_sampling_in_order_walks_through_the_table(self) -> None:
        table = self.table(sampler=Fifo(), capacity=5)
        table.insert({"x": [0, 1, 2, 3, 4]})
        walked = [table.sample(2)["x"].tolist() for _ in range(5)]
        assert walked == [[0, 1], [2, 3], [4, 0], [1, 2], [3, 4]]

    def test_ties_go_to_the_earlier_arrival(self) -> None:
        for selector in (Largest("priority"), Smallest("priority"), StalestFirst()):
            table = self.table(sampler=selector, capacity=20)
            table.insert({"x": np.arange(8)}, priority=1.0, version=3)
            table.insert({"x": np.arange(8, 16)}, priority=1.0, version=3)
            assert table.take(16)["x"].tolist() == list(range(16)), selector

    # -- by frequency ---------------------------------------------------------------------------
    def weighted(self, sampler: Selector, **options: Any) -> Table:
        """One item per weight; x is its place, which is its version too."""
        table = self.table(
            sampler=sampler, capacity=len(WEIGHTS), partition_by=("task",), seed=11, **options
        )
        places = np.arange(len(WEIGHTS))
        tasks = [("even", "odd")[place % 2] for place in places]
        table.insert({"x": places}, priority=WEIGHTS, task=tasks, version=places.tolist())
        return table

    def drawn(self, table: Table, where: Any = None) -> Any:
        batches = [table.sample(500, where=where)["x"] for _ in range(self.draws // 500)]
        return np.concatenate(batches)

    def test_uniform_draws_every_item_equally(self) -> None:
        table = self.weighted(Uniform())
        for where, query in WHERES.items():
            check_frequencies(self.drawn(table, query), admitted(where))

    @pytest.mark.parametrize("stratified", [False, True], ids=["free", "stratified"])
    @pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
    def test_prioritized_draws_in_proportion(self, stratified: bool, alpha: float) -> None:
        table = self.weighted(Prioritized(alpha=alpha, stratified=stratified))
        priorities = np.array(WEIGHTS)
        for where, query in WHERES.items():
            weights = np.where(priorities > 0, priorities**alpha, 0.0) * admitted(where)
            check_frequencies(self.drawn(table, query), weights)

    @pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
    def test_any_number_may_be_the_weight(self, alpha: float) -> None:
        places = np.arange(len(WEIGHTS))
        table = self.weighted(Uniform(), tags={"worth": float, "level": int, "hard": bool})
        keys = sorted(table.counts("key"))
        table.update(
            keys,
            worth=[None if weight == 0.1 else weight for weight in WEIGHTS],
            level=[None if place == 2 else int(place) for place in places],
            hard=[(True, False, None)[place % 3] for place in places],
        )
        weights: dict[str, Any] = {
            "worth": np.where(np.array(WEIGHTS) == 0.1, 0.0, WEIGHTS),
            "level": np.where(places == 2, 0, places),
            "hard": np.where(places % 3 == 0, 1, 0),
            "version": places,
            "rows": np.ones(len(WEIGHTS)),
        }
        for name, values in weights.items():
            table.sampler = Weighted(name, alpha=alpha, stratified=False)
            chances = np.where(values > 0, values.astype(float) ** alpha, 0.0)
            for where, query in WHERES.items():
                admits = chances * admitted(where)
                check_frequencies(self.drawn(table, query), admits)
                batch = table.sample(5, where=query)
                expected = admits[batch["x"]] / admits.sum()
                assert batch.info.probability.tolist() == pytest.approx(expected.tolist())
                assert batch.info.weights.tolist() == pytest.approx(
                    ((expected / expected.min()) ** -0.4).tolist()
                )

    def test_weights_by_how_often_items_were_sampled(self) -> None:
        """All draws of a call go by the counts that it began with."""
        table = self.weighted(Fifo())
        table.sample(3)
        table.sampler = Weighted("times_sampled", stratified=False)
        times = np.array([1, 1, 1, *[0] * (len(WEIGHTS) - 3)])
        for where in (None, EVEN | (field("task") == "odd"), LATE | (field("version") < 4)):
            batch = table.sample(200, where=where)
            assert batch.info.probability.tolist() == pytest.approx(
                (times[batch["x"]] / times.sum()).tolist()
            )
            check_frequencies(batch["x"], times)
            times += np.bincount(batch["x"], minlength=times.size)

    def test_what_cannot_be_a_weight_is_refused(self) -> None:
        tags = {"worth": float, "level": int}
        table = self.table(sampler=Weighted("worth"), tags=tags, capacity=3)
        keys = table.insert({"x": [0, 1, 2]}, worth=[0.5, None, np.nan], level=[-1, 0, 1])
        for bad in (-0.5, np.inf, [1.0, -1.0, 2.0], np.array([np.inf, 0.0, 0.0])):
            with pytest.raises(InvalidValue, match="worth: items are weighed by it"):
                table.insert({"x": [3, 4, 5]}, worth=bad)
            with pytest.raises(InvalidValue, match="worth: items are weighed by it"):
                table.update(keys, worth=bad)
        with pytest.raises(InvalidValue, match="too large for alpha"):
            table.update(keys, worth=1e200)
        with pytest.raises(InvalidValue, match="level: to weigh items by it"):
            table.sampler = Weighted("level")
        with pytest.raises(InvalidValue, match="remover: 'key' is no weight"):
            table.remover = Weighted("key")
        assert sorted(table.counts("key")) == keys.tolist(), "nothing has left for them"
        assert table.sample(4)["x"].tolist() == [0] * 4
        table.update(keys[:1], level=0)
        table.sampler = Weighted("level")
        assert table.sample(4)["x"].tolist() == [2] * 4

    def test_a_half_life_halves_weights_by_version(self) -> None:
        table = self.weighted(Prioritized(alpha=1.0, half_life=2.0))
        weights = np.array(WEIGHTS) * 2.0 ** (np.arange(len(WEIGHTS)) / 2.0)
        check_frequencies(self.drawn(table), weights)

    def test_updates_and_removals_change_the_weights(self) -> None:
        for by in ("priority", "worth"):
            table = self.weighted(Weighted(by), tags={"worth": float})
            keys = sorted(table.counts("key"))
            table.update(keys, worth=WEIGHTS)
            table.update(keys[:3], **{by: [0.0, 1.0, 5.0]})
            table.delete(keys[7:8])
            weights = np.array(WEIGHTS)
            weights[:3], weights[7] = [0.0, 1.0, 5.0], 0.0
            check_frequencies(self.drawn(table), weights)

    def test_one_a_tenth_and_zero(self) -> None:
        table = self.table(sampler=Prioritized(alpha=1.0, stratified=False), seed=3)
        table.insert({"x": [0, 1, 2]}, priority=[1.0, 0.1, 0.0])
        check_frequencies(self.drawn(table), [1.0, 0.1, 0.0])

    def test_only_zeros_are_drawn_uniformly(self) -> None:
        table = self.table(sampler=Prioritized(alpha=1.0), seed=4)
        table.insert({"x": np.arange(7)}, priority=0.0)
        check_frequencies(self.drawn(table), np.ones(7))
        assert table.sample(5).info.probability.tolist() == pytest.approx([1 / 7] * 5)

    def test_stratified_draws_take_one_from_each_share(self) -> None:
        table = self.table(sampler=Prioritized(alpha=1.0), seed=5)
        table.insert({"x": [0, 1]}, priority=[0.5, 1.5])
        for _ in range(3):
            assert np.bincount(table.sample(100)["x"]).tolist() == [25, 75]

    @pytest.mark.parametrize("rule", [Prioritized(alpha=1.0), Weighted("worth")], ids=by_name)
    @pytest.mark.parametrize("verb", ["sample", "take", "evict"])
    def test_different_items_have_the_chances_of_draws_one_after_another(
        self, verb: str, rule: Proportional
    ) -> None:
        """All orders in which items can come, and how often each does; a zero comes last."""
        priorities, n, count = [1.0, 2.0, 5.0, 0.0], 4 if verb == "sample" else 2, 4
        rules: dict[str, Any] = {"remover": rule} if verb == "evict" else {"sampler": rule}
        table = self.table(capacity=count, tags={"worth": float}, seed=7, **rules)
        seen: Counter[tuple[int, ...]] = Counter()
        given: dict[str, Any] = {rule.by: priorities}
        table.insert({"x": np.arange(count)}, **given)
        for _ in range(self.draws // 20):
            if verb == "sample":
                order = table.sample(n, replace=False)["x"].tolist()
            elif verb == "take":
                order = table.take(n)["x"].tolist()
            else:  # whoever is not there any more has left
                table.insert({"x": np.full(n, -1)}, **(given | {rule.by: 0.0}))
                left = table.get(sorted(table.counts("key")))["x"].tolist()
                order = [place for place in range(count) if place not in left]
            seen[tuple(order)] += 1
            if verb != "sample":
                table.clear()
                table.insert({"x": np.arange(count)}, **given)
        chances: defaultdict[tuple[int, ...], float] = defaultdict(float)
        for order in itertools.permutations(range(count), n):
            chance, left_over = 1.0, list(range(count))
            for place in order:
                mass = sum(priorities[p] for p in left_over)
                chance *= priorities[place] / mass if mass else 1 / len(left_over)
                left_over.remove(place)
            chances[tuple(sorted(order)) if verb == "evict" else order] += chance
        orders = sorted(chances)
        assert set(seen) <= set(orders)
        drawn = np.repeat(np.arange(len(orders)), [seen[order] for order in orders])
        check_frequencies(drawn, [chances[order] for order in orders])

    def test_uniform_takes_every_item_equally(self) -> None:
        table = self.table(sampler=Uniform(), capacity=6, seed=8)
        taken = []
        for _ in range(self.draws // 20):
            table.insert({"x": np.arange(6)})
            taken += table.take(2)["x"].tolist()
        check_frequencies(taken, np.ones(6))

    def test_mixtures_keep_their_shares_over_time(self) -> None:
        sampler = Mixed(((Largest("priority"), 0.25), (Uniform(), 0.75)))
        table = self.weighted(sampler)
        for calls in range(1, 9):
            table.sample(1)
            times = table.get(sorted(table.counts("key"))).info.times_sampled
            assert times.sum() == calls
        first = [table.sample(2).info.probability for _ in range(4)]
        chances = np.concatenate(first)
        assert sorted(set(chances.round(6).tolist())) == pytest.approx(
            sorted({round(0.75 / 11, 6), round(0.25 + 0.75 / 11, 6)})
        )

    @pytest.mark.parametrize("sampler", [CHANCES[-1], MIXTURES[3]], ids=str)
    def test_the_same_seed_makes_the_same_draws(self, sampler: Selector) -> None:
        results = []
        for seed in (5, 5, 6):
            table = self.table(sampler=sampler, seed=seed, capacity=60)
            table.insert({"x": np.arange(60)}, priority=np.arange(60) / 10, version=1)
            drawn = [table.sample(8)["x"].tolist() for _ in range(3)]
            drawn.append(table.sample(8, replace=False)["x"].tolist())
            drawn.append(table.take(4)["x"].tolist())
            results.append(drawn)
        assert results[0] == results[1]
        assert results[0] != results[2], "another seed makes other draws"
