"""Selectors: what each chooses, for sampling, taking and removing."""

from __future__ import annotations

import gc
from collections import Counter
from dataclasses import FrozenInstanceError, dataclass
from types import SimpleNamespace

import numpy as np
import pytest

import recollect as rc
from recollect.rules.selectors import Ordered


def table(sampler, n=100, **options):
    return rc.Table("t", **{"capacity": n, "sampler": sampler, "seed": 0, **options})


def left(t):
    keys = np.sort(t.core.storage.find(None, None, visible=True))
    return t.get(keys)["x"].tolist()


SCORES = [0.5, 0.1, 0.9, 0.5, None]
VERSIONS = [3, 1, 3, 2, None]
ORDERS = {
    rc.Fifo(): [0, 1, 2, 3, 4],
    rc.Lifo(): [4, 3, 2, 1, 0],
    rc.Smallest("score"): [1, 0, 3, 2, 4],
    rc.Largest("score"): [2, 0, 3, 1, 4],
    rc.StalestFirst(): [1, 3, 0, 2, 4],
    rc.FreshestFirst(): [0, 2, 3, 1, 4],
    rc.Smallest("priority"): [4, 3, 2, 1, 0],
    rc.Largest("priority"): [0, 1, 2, 3, 4],
    rc.Largest("rows"): [4, 3, 2, 1, 0],
    rc.Smallest("nbytes"): [0, 1, 2, 3, 4],
    rc.Largest("inserted_at"): [0, 1, 2, 3, 4],
    rc.Smallest("key"): [0, 1, 2, 3, 4],
    rc.Largest("seq"): [4, 3, 2, 1, 0],
    rc.Largest("level"): [1, 3, 0, 2, 4],
    rc.Smallest("hard"): [0, 2, 4, 1, 3],
}


def five(sampler, **options):
    """Items of 1, 2, ... 5 rows; x is the number of the item."""
    t = table(sampler, tags={"score": float, "level": int, "hard": bool}, **options)
    t.insert(
        {"x": np.repeat(np.arange(5), np.arange(1, 6))},
        rows_per_item=np.arange(1, 6),
        priority=[5.0, 4.0, 3.0, 2.0, 1.0],
        score=SCORES,
        version=VERSIONS,
        level=[0, 7, -3, 7, None],
        hard=[False, True, False, True, False],
    )
    return t


def items(batch):
    return batch["x"][batch.info.row_offsets[:-1]].tolist()


@pytest.mark.parametrize("sampler", ORDERS, ids=str)
def test_orders_go_by_their_field_ties_to_the_earlier_and_absent_last(sampler):
    assert items(five(sampler).take(5)) == ORDERS[sampler]


@pytest.mark.parametrize("sampler", ORDERS, ids=str)
def test_orders_sample_as_they_take(sampler):
    t = five(sampler)
    assert items(t.sample(5)) == ORDERS[sampler]
    assert items(t.sample(3)) == ORDERS[sampler][:3]
    assert items(t.sample(2)) == ORDERS[sampler][3:]


@pytest.mark.parametrize("remover", ORDERS, ids=str)
def test_removers_are_the_same_classes(remover):
    t = five(rc.Fifo(), remover=remover, n=5)
    t.insert({"x": [10, 11]}, rows_per_item=1, version=9, score=0.7)
    went = set(range(5)) - set(left(t))
    assert went == set(ORDERS[remover][:2])


@pytest.mark.parametrize("sampler", ORDERS, ids=str)
def test_orders_follow_updates(sampler):
    t = five(sampler, seed=None)
    keys = np.sort(t.core.storage.find(None, None, visible=True))
    t.sample(2)  # the index exists before the update
    t.update(keys, score=[0.1, 0.2, 0.3, 0.4, 0.5], version=[5, 4, 3, 2, 1], level=[1, 2, 3, 4, 5])
    expected = {"score": [0, 1, 2, 3, 4], "version": [4, 3, 2, 1, 0], "level": [0, 1, 2, 3, 4]}
    if sampler.by in expected:
        order = expected[sampler.by]
        assert items(t.take(5)) == (order[::-1] if sampler.descending else order)


def test_uniform_draws_every_item_alike():
    t = table(rc.Uniform())
    t.insert({"x": np.arange(10)}, priority=np.arange(10.0))
    batch = t.sample(20_000)
    counts = np.bincount(batch["x"], minlength=10)
    assert (abs(counts - 2000) < 250).all()
    assert (batch.info.probability == 0.1).all()
    assert (batch.info.weights == 1.0).all()


def test_priorities_draw_91_9_and_never():
    t = table(rc.Prioritized(alpha=1.0))
    t.insert({"x": [0, 1, 2]}, priority=[1.0, 0.1, 0.0])
    counts = Counter(t.sample(20_000)["x"].tolist())
    assert counts[0] / 20_000 == pytest.approx(1 / 1.1, abs=0.01)
    assert counts[1] / 20_000 == pytest.approx(0.1 / 1.1, abs=0.01)
    assert counts[2] == 0


@pytest.mark.parametrize("stratified", [True, False])
@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0, 2.0])
def test_probability_is_priority_to_the_alpha(alpha, stratified):
    t = table(rc.Prioritized(alpha=alpha, stratified=stratified))
    priorities = np.array([0.5, 1.0, 2.0, 4.0])
    t.insert({"x": np.arange(4)}, priority=priorities)
    expected = priorities**alpha / (priorities**alpha).sum()
    batch = t.sample(40_000)
    assert np.allclose(batch.info.probability, expected[batch["x"]], rtol=1e-12)
    assert np.allclose(np.bincount(batch["x"]) / 40_000, expected, atol=0.012)


def test_all_zero_falls_back_to_uniform():
    t = table(rc.Prioritized(alpha=1.0))
    t.insert({"x": np.arange(4)}, priority=0.0)
    batch = t.sample(8000)
    assert (np.bincount(batch["x"], minlength=4) > 1700).all()
    assert np.allclose(batch.info.probability, 0.25)
    assert (t.update(batch.info.keys[:1], priority=1.0)).all()
    assert set(t.sample(50)["x"].tolist()) == {int(batch["x"][0])}


@pytest.mark.parametrize("normalize", ["batch", "table", None])
def test_weights_are_n_p_to_the_minus_beta(normalize):
    t = table(rc.Prioritized(alpha=1.0, beta=0.7, normalize=normalize))
    priorities = np.array([1.0, 2.0, 3.0, 10.0])
    t.insert({"x": np.arange(4)}, priority=priorities)
    batch = t.sample(6)
    raw = (4 * priorities / priorities.sum()) ** -0.7
    largest = {"batch": raw[batch["x"]].max(), "table": raw.max(), None: 1.0}[normalize]
    assert np.allclose(batch.info.weights, raw[batch["x"]] / largest, rtol=1e-9)


def test_weights_of_the_table_do_not_count_zero_priorities():
    t = table(rc.Prioritized(alpha=1.0, beta=1.0, normalize="table"))
    t.insert({"x": np.arange(3)}, priority=[0.0, 1.0, 3.0])
    batch = t.sample(40)
    assert np.allclose(batch.info.weights, np.array([np.nan, 1.0, 1 / 3])[batch["x"]])


def test_beta_may_be_a_schedule_over_sample_calls():
    t = table(rc.Prioritized(alpha=1.0, beta=rc.Linear(0.0, 1.0, 4), normalize=None))
    priorities = np.array([1.0, 3.0])
    t.insert({"x": np.arange(2)}, priority=priorities)
    for call in range(7):
        batch = t.sample(3)
        beta = min(call / 4, 1.0)
        expected = (2 * priorities / 4.0) ** -beta
        assert np.allclose(batch.info.weights, expected[batch["x"]]), call


def test_a_schedule_goes_from_start_to_end_and_stays():
    schedule = rc.Linear(0.4, 1.0, 10)
    assert schedule.at(0) == pytest.approx(0.4)
    assert schedule.at(5) == pytest.approx(0.7)
    assert schedule.at(10) == schedule.at(10**9) == pytest.approx(1.0)


def test_half_life_halves_an_items_weight_for_every_h_versions_of_age():
    t = table(rc.Prioritized(alpha=1.0, half_life=2.0))
    t.insert({"x": np.arange(3)}, version=[0, 2, 6], priority=1.0)
    weights = 0.5 ** (np.array([6.0, 4.0, 0.0]) / 2.0)
    expected = weights / weights.sum()
    batch = t.sample(2000)
    assert np.allclose(batch.info.probability, expected[batch["x"]], rtol=1e-9)


def test_half_life_costs_nothing_when_the_version_advances():
    t = table(rc.Prioritized(alpha=1.0, half_life=2.0), n=10_000)
    t.insert({"x": np.arange(9000)}, version=0)
    t.sample(1)
    before = t.core.storage.visits
    t.insert({"x": [1]}, version=1)
    assert t.core.storage.visits - before < 200


def test_half_life_keeps_ratios_over_very_many_versions():
    t = table(rc.Prioritized(alpha=1.0, half_life=1.0), n=4)
    for version in range(0, 100_000, 1000):
        t.insert({"x": [version, version + 1]}, version=[version, version + 1])
        batch = t.sample(64)
        newest = batch["x"] == version + 1
        assert np.allclose(batch.info.probability[newest], 2 / 3, rtol=1e-6)


def test_stratified_draws_come_one_from_each_share():
    t = table(rc.Prioritized(alpha=1.0, stratified=True))
    t.insert({"x": np.arange(10)}, priority=1.0)
    for _ in range(20):
        assert t.sample(10)["x"].tolist() == list(range(10))


def test_replace_false_ignores_stratified():
    draws = set()
    t = table(rc.Prioritized(alpha=1.0, stratified=True))
    t.insert({"x": np.arange(10)}, priority=1.0)
    for _ in range(50):
        draws.add(tuple(t.sample(3, replace=False)["x"].tolist()))
    assert len(draws) > 40


def test_sequential_draws_without_replacement_have_exact_probabilities():
    t = table(rc.Prioritized(alpha=1.0))
    priorities = np.array([1.0, 2.0, 5.0])
    t.insert({"x": np.arange(3)}, priority=priorities)
    pairs = Counter(tuple(t.sample(2, replace=False)["x"].tolist()) for _ in range(12_000))
    p = priorities / 8.0
    for i in range(3):
        for j in range(3):
            if i != j:
                expected = p[i] * p[j] / (1 - p[i])
                assert pairs[i, j] / 12_000 == pytest.approx(expected, abs=0.02)


def test_mixed_gives_each_selector_its_share():
    t = table(rc.Mixed([(rc.Lifo(), 0.25), (rc.Fifo(), 0.75)]))
    t.insert({"x": np.arange(100)})
    first = t.take(8)["x"].tolist()
    assert sorted(first) == [0, 1, 2, 3, 4, 5, 98, 99]


def test_mixed_makes_up_later_what_a_small_batch_rounds_away():
    t = table(rc.Mixed([(rc.Lifo(), 0.25), (rc.Fifo(), 0.75)]))
    t.insert({"x": np.arange(100)})
    taken = [int(t.take(1)["x"][0]) for _ in range(40)]
    assert sum(x >= 50 for x in taken) == 10


def test_mixed_evicts_by_share_too():
    t = table(rc.Fifo(), n=10, remover=rc.Mixed([(rc.Lifo(), 0.5), (rc.Fifo(), 0.5)]))
    t.insert({"x": np.arange(10)})
    t.insert({"x": np.arange(10, 14)})
    assert left(t) == [2, 3, 4, 5, 6, 7, *range(10, 14)]


def test_mixed_without_replacement_gives_different_items():
    t = table(rc.Mixed([(rc.Uniform(), 0.5), (rc.Prioritized(), 0.5)]))
    t.insert({"x": np.arange(20)}, priority=np.arange(20.0))
    for _ in range(30):
        assert len(set(t.sample(16, replace=False)["x"].tolist())) == 16


def test_mixed_without_replacement_knows_the_probability_of_items_that_aged_far():
    ageing = rc.Prioritized(half_life=2.0)
    t = table(rc.Mixed([(rc.Prioritized(alpha=1.0), 1), (ageing, 1)]))
    versions = [1874, 375, 901, 4339, 10, 1065]
    t.insert({"x": np.arange(6)}, version=versions, priority=[1.0, 5.0, 5.0, 5.0, 1.0, 5.0])
    for _ in range(20):
        batch = t.sample(6, replace=False)
        assert sorted(batch["x"].tolist()) == list(range(6))
        assert np.isfinite(batch.info.probability).all()
        assert np.isfinite(batch.info.weights).all()


def test_shares_are_normalized():
    assert rc.Mixed([(rc.Fifo(), 1), (rc.Lifo(), 3)]).selectors == (
        (rc.Fifo(), 0.25),
        (rc.Lifo(), 0.75),
    )


@pytest.mark.parametrize(
    "remover", [rc.Uniform(), rc.Prioritized(alpha=1.0), rc.Mixed([(rc.Uniform(), 1)])], ids=str
)
def test_random_removers_keep_the_capacity(remover):
    t = table(rc.Uniform(), n=10, remover=remover)
    for i in range(60):
        t.insert({"x": [i, i]}, priority=i + 1.0)
        assert len(t) <= 10
    assert left(t)[-2:] == [59, 59]


def test_selectors_are_frozen_values():
    assert rc.Fifo() == rc.Fifo()
    assert rc.Smallest("a") != rc.Largest("a")
    assert len({rc.Prioritized(), rc.Prioritized(alpha=0.6), rc.Prioritized(alpha=0.7)}) == 2
    with pytest.raises(FrozenInstanceError):
        rc.Prioritized().alpha = 2.0


def test_large_and_tiny_priorities_together():
    t = table(rc.Prioritized(alpha=1.0))
    t.insert({"x": np.arange(3)}, priority=[1e-15, 1e6, 0.0])
    assert set(t.sample(1000)["x"].tolist()) == {1}
    t.delete(where=rc.field("priority") > 1.0)
    assert set(t.sample(1000)["x"].tolist()) == {0}


# -- rules from users -----------------------------------------------------------------------------
def rules_of_users() -> SimpleNamespace:
    """Classes that users may write; made for each test, since others list all that there are."""

    class Curriculum(rc.Selector):
        """Says nothing that a storage could execute."""

    class Hardest(rc.Uniform):
        """Adds what nobody would ever ask for."""

        def weight(self, item):
            return 1.0

    class Called(rc.Largest):
        def __call__(self, items):
            return items

    class Blended(rc.Mixed):
        @property
        def temperature(self):
            return 2.0

    @dataclass(frozen=True)
    class Longest(Ordered):
        """An order of one's own: by a field, which is all that a storage must know."""

        margin: int = 0

        @property
        def by(self):
            return "rows"

        @property
        def descending(self):
            return not self._reversed()

        def _reversed(self):
            return self.margin > 9

    class Best(rc.Largest):
        def __init__(self):
            super().__init__("score")

        @classmethod
        def of_today(cls):
            return cls()

    class Heavier(rc.Weighted):
        @property
        def by(self):
            return "rows"

    return SimpleNamespace(**locals())


@pytest.fixture
def users():
    yield rules_of_users()
    gc.collect()  # a class is part of a cycle


REFUSED = {
    "rc.Selector itself": (lambda u: rc.Selector(), "Selector is no order and no weight"),
    "a class of its own": (lambda u: u.Curriculum(), "Curriculum is no order and no weight"),
    "a method that is not known": (lambda u: u.Hardest(), "Hardest adds weight to Uniform"),
    "a call": (lambda u: u.Called("rows"), "Called adds __call__ to Largest"),
    "a mixture": (lambda u: u.Blended([(rc.Fifo(), 1)]), "Blended adds temperature to Mixed"),
    "a part": (lambda u: rc.Mixed([(rc.Fifo(), 1), (u.Hardest(), 1)]), "Hardest adds weight"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_no_storage_can_execute_is_refused(case, users):
    make, message = REFUSED[case]
    for role in ("sampler", "remover"):
        expected = rf"^{role}: {message}.*; order by a field .* rc\.Weighted.* rc\.Mixed"
        with pytest.raises(rc.InvalidValue, match=expected):
            rc.Table("t", capacity=3, **{role: make(users)})
        t = rc.Table("t", capacity=3)
        with pytest.raises(rc.InvalidValue, match=expected):
            setattr(t, role, make(users))
    with pytest.raises(rc.InvalidValue, match=message):
        rc.RolloutBuffer(order=make(users))
    with pytest.raises(rc.InvalidValue):
        rc.ReplayBuffer(9, sampler=make(users))


def test_an_order_or_a_weight_of_ones_own_is_executed(users):
    t = table(users.Longest(), tags={"score": float})
    t.insert({"x": np.arange(6)}, rows_per_item=[1, 3, 2], score=[0.1, 0.9, 0.5])
    assert t.take(1, lease=60)["x"].tolist() == [1, 2, 3]
    t.release("")
    t.sampler = users.Best.of_today()
    assert t.take(1, lease=60)["x"].tolist() == [1, 2, 3]
    t.release("")
    t.sampler = users.Heavier("score")
    batch = t.sample(8)
    assert np.allclose(batch.info.probability, np.diff(batch.info.row_offsets) / 6)


def test_a_schedule_of_ones_own_is_asked():
    class Steps(rc.Linear):
        def at(self, step):
            return 1.0 if step else 0.0

    for storage in (rc.MemoryStorage(), rc.FrameStorage()):
        t = table(rc.Weighted("rows", beta=Steps(0, 1, 9), normalize=None), storage=storage)
        t.insert({"x": np.arange(6)}, rows_per_item=[1, 3, 2])
        assert (t.sample(8).info.weights == 1.0).all()
        again = t.sample(8)
        assert np.allclose(again.info.weights, 1.0 / (3 * again.info.probability))


def test_a_storage_may_say_that_it_executes_more(users):
    class Knowing(rc.MemoryStorage):
        def executes(self, selector):
            return isinstance(selector, users.Curriculum)

        def sample(self, selector, n, *more):
            known = rc.Largest("rows") if self.executes(selector) else selector
            return super().sample(known, n, *more)

    t = table(users.Curriculum(), storage=Knowing())
    t.insert({"x": np.arange(6)}, rows_per_item=[1, 3, 2])
    assert t.sample(1)["x"].tolist() == [1, 2, 3]
    t.remover = rc.Lifo()
    t.sampler = users.Curriculum()
    assert t.sample(1)["x"].tolist() == [4, 5]
    with pytest.raises(rc.InvalidValue, match="Hardest adds weight"):
        t.sampler = users.Hardest()
