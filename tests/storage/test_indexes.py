"""Cost does not grow with the table: counted in index entries touched, and measured in time."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import recollect as rc
from recollect.kernels import layout
from recollect.storage.memory.items import Items

# What the project promises of 1,000,000 items is counted there; all the rest at 100,000, since
# filling a table of a million for each case would take minutes.
SMALL, LARGE, PROMISED_AT = 1_000, 100_000, 1_000_000
TASKS = 10
Verb = Callable[[rc.Table], Any]


def filled(items: int, sampler: rc.Selector, **options: Any) -> rc.Table:
    """A table of `items` items over ten tasks, versions rising with arrival."""
    options = {"partition_by": ("task",), "tags": {"score": float}, **options}
    table = rc.Table("t", capacity=2 * items, sampler=sampler, **options)
    places = np.arange(items)
    for start in range(0, items, 10_000):
        part = places[start : start + 10_000]
        keys = table.insert(
            {"x": part},
            task=[f"task{place % TASKS}" for place in part],
            version=part // 100,
            priority=0.5 + (part % 97) / 97,
            score=0.5 + (part % 97) / 97 if isinstance(sampler, rc.Weighted) else None,
        )
        if start == 0:
            table.first_keys = keys[200:264]
    return table


MATH = rc.field("task") == "task3"


def count_partition(table: rc.Table) -> Any:
    return table.count(MATH)


def take_64(table: rc.Table) -> Any:
    return table.take(64)


def take_64_of_partition(table: rc.Table) -> Any:
    return table.take(8, where=MATH)


def lease_and_give_back(table: rc.Table) -> Any:
    table.give_back(table.take(64, lease=60).info.lease)


def sample(table: rc.Table) -> Any:
    return table.sample(64)


def sample_partition(table: rc.Table) -> Any:
    return table.sample(64, where=MATH)


def sample_different(table: rc.Table) -> Any:
    return table.sample(64, replace=False)


def update_priorities(table: rc.Table) -> Any:
    return table.update(table.first_keys, priority=np.linspace(0.1, 2.0, 64))


def update_scores(table: rc.Table) -> Any:
    return table.update(table.first_keys, score=np.linspace(0.1, 2.0, 64))


def update_version(table: rc.Table) -> Any:
    return table.update(table.first_keys, version=np.arange(64))


def update_partition(table: rc.Table) -> Any:
    table.update(table.first_keys, task="task4")
    return table.update(table.first_keys, task="task5")


def insert_64(table: rc.Table) -> Any:
    return table.insert({"x": np.arange(64)}, task="task3", version=10**6, priority=1.0)


def expire_nothing(table: rc.Table) -> Any:
    """Every call first looks for leases that are overdue; what is too old is found by an order."""
    count = table.count()
    assert table.core.storage.hide_up_to("version", -1).size == 0
    assert table.stats()["leased"] > 0
    return count


# What arrives in the order itself, or against it, needs no heap.
ORDERS = [rc.Fifo(), rc.Lifo(), rc.StalestFirst()]
FLAT: list[tuple[rc.Selector, Verb]] = [
    *((sampler, verb) for sampler in ORDERS for verb in (take_64, take_64_of_partition)),
    *((sampler, verb) for sampler in ORDERS for verb in (count_partition, expire_nothing)),
    *((sampler, insert_64) for sampler in ORDERS),
    (rc.Fifo(), lease_and_give_back),
    (rc.StalestFirst(), lease_and_give_back),
    (rc.Fifo(), sample),
    (rc.StalestFirst(), sample_partition),
    (rc.StalestFirst(), update_version),
    (rc.Fifo(), update_partition),
    (rc.Uniform(), sample),
    (rc.Uniform(), sample_partition),
    (rc.Uniform(), sample_different),
    (rc.Uniform(), take_64),
    (rc.Uniform(), take_64_of_partition),
    (rc.Uniform(), insert_64),
    (rc.Fifo(), update_priorities),
]
TREES: list[tuple[rc.Selector, Verb]] = (
    [
        (sampler, verb)
        for sampler in (rc.Prioritized(), rc.Prioritized(half_life=1000.0))
        for verb in (
            sample,
            sample_partition,
            sample_different,
            take_64,
            update_priorities,
            update_partition,
            insert_64,
            count_partition,
        )
    ]
    + [
        (rc.Weighted("score"), verb)
        for verb in (sample, sample_partition, sample_different, take_64, update_scores, insert_64)
    ]
    + [
        (sampler, verb)
        for sampler in (rc.Smallest("priority"), rc.FreshestFirst())
        for verb in (take_64, take_64_of_partition, sample, update_priorities, insert_64)
    ]
)


def named(case: tuple[rc.Selector, Verb]) -> str:
    return f"{type(case[0]).__name__}-{case[1].__name__}"


class Deadlines(list[tuple[float, int]]):
    """The heap of leases by deadline; counts how often an entry of it is looked at."""

    looks = 0

    def __getitem__(self, place: Any) -> Any:
        self.looks += 1
        return super().__getitem__(place)


def prepared(items: int, sampler: rc.Selector, verb: Verb) -> rc.Table:
    return made_ready(filled(items, sampler, seed=0), verb)


def made_ready(table: rc.Table, verb: Verb) -> rc.Table:
    """A table whose indexes are there: the first call that needs one makes it."""
    table.core.leases._deadlines = Deadlines(table.core.leases._deadlines)
    for where in (None, MATH):
        table.sample(1, where=where)
        table.give_back(table.take(1, where=where, lease=60).info.lease)
    if verb is expire_nothing:
        for _ in range(len(table) // 100):
            table.take(1, lease=3600)
    verb(table)
    verb(table)
    return table


def touched(table: rc.Table) -> int:
    """Entries of indexes and of the leases' heap that were looked at so far."""
    return table.core.storage.visits + table.core.leases._deadlines.looks


def visits_of(items: int, sampler: rc.Selector, verb: Verb) -> float:
    """Entries that one call touches, on average over a few."""
    return visits_in(prepared(items, sampler, verb), verb)


def visits_in(table: rc.Table, verb: Verb) -> float:
    before = touched(table)
    for _ in range(3):
        verb(table)
    return (touched(table) - before) / 3


@pytest.fixture(scope="module")
def million() -> Callable[[rc.Selector], rc.Table]:
    """A table of a million for each sampler, filled once."""
    return functools.cache(lambda sampler: filled(PROMISED_AT, sampler, seed=0))


PROMISED = [
    (rc.Fifo(), count_partition),
    (rc.Fifo(), take_64),
    (rc.StalestFirst(), take_64),
    (rc.Fifo(), expire_nothing),
]


@pytest.mark.parametrize("case", PROMISED, ids=named)
def test_visits_are_the_same_at_a_million_items(
    million: Callable[[rc.Selector], rc.Table], case: tuple[rc.Selector, Verb]
) -> None:
    sampler, verb = case
    few = visits_of(SMALL, sampler, verb)
    many = visits_in(made_ready(million(sampler), verb), verb)
    assert many <= 2 * few, f"{few:.0f} entries at {SMALL} items, {many:.0f} at {PROMISED_AT}"


@pytest.mark.parametrize("case", FLAT, ids=named)
def test_visits_do_not_grow(case: tuple[rc.Selector, Verb]) -> None:
    few, many = visits_of(SMALL, *case), visits_of(LARGE, *case)
    assert many <= 2 * few + 8, f"{few:.0f} entries at {SMALL} items, {many:.0f} at {LARGE}"


@pytest.mark.parametrize("case", TREES, ids=named)
def test_visits_grow_by_the_depth_of_a_tree_only(case: tuple[rc.Selector, Verb]) -> None:
    """A sum tree of 16 children a node has 3 levels at 1,000 items and 5 at 100,000; a heap 10
    and 17."""
    few, many = visits_of(SMALL, *case), visits_of(LARGE, *case)
    deeper = 5 / 3 if isinstance(case[0], rc.Prioritized | rc.Weighted) else 17 / 10
    # A batch of 64 over a small tree shares its upper nodes, so it may touch fewer there.
    assert many <= 2 * deeper * few + 64, f"{few:.0f} at {SMALL} items, {many:.0f} at {LARGE}"


def test_visits_are_counted_at_all() -> None:
    """The counts above mean something: every verb that uses an index shows in them."""
    for sampler, verb in [*FLAT, *TREES]:
        if verb not in (count_partition, expire_nothing) and verb is not update_priorities:
            assert visits_of(SMALL, sampler, verb) >= 8, named((sampler, verb))
    assert visits_of(SMALL, rc.Fifo(), expire_nothing) >= 1
    assert visits_of(SMALL, rc.Prioritized(), update_priorities) >= 64


@pytest.mark.parametrize("items", [SMALL, LARGE])
def test_expiring_touches_what_expires(items: int) -> None:
    """What lapses, or is too old, shows in the counts that find nothing above."""
    clock = rc.ManualClock()
    table = filled(items, rc.Fifo(), clock=clock, seed=0)
    for place in range(20):
        table.take(1, lease=100 if place < 5 else 1000)
    made_ready(table, count_partition)
    before = table.core.leases._deadlines.looks
    clock.advance(200)
    assert table.stats()["leases"] == 15
    assert (
        table.core.leases._deadlines.looks - before == 5 + 2 + 1
    )  # two were given back, one is not due
    assert table.core.storage.hide_up_to("version", -1).size == 0
    before = table.core.storage.visits
    assert table.core.storage.hide_up_to("version", 0).size == 100 - 15
    assert 100 - 15 <= table.core.storage.visits - before <= 20 * 100


@pytest.mark.parametrize("count", [1, 4, 64])
def test_eviction_touches_what_it_evicts(count: int) -> None:
    def visits(items: int) -> float:
        table = rc.Table("t", capacity=items, sampler=rc.Prioritized())
        table.insert({"x": np.arange(items)})
        table.sample(1)
        table.insert({"x": np.arange(count)})
        before = table.core.storage.visits
        for _ in range(5):
            table.insert({"x": np.arange(count)})
        return (table.core.storage.visits - before) / 5

    assert visits(LARGE) <= 4 * visits(SMALL) + 8


def test_an_order_walks_on_instead_of_starting_over() -> None:
    """Sampling in order visits as many entries in the thousandth call as in the first."""
    table = filled(LARGE, rc.Fifo())
    table.sample(64)
    visits = []
    for _ in range(200):
        before = table.core.storage.visits
        table.sample(64)
        visits.append(table.core.storage.visits - before)
    assert max(visits[-20:]) <= 2 * max(visits[:20])


# -- an order whose items come in any order, beside sorted() ---------------------------------------
SAMPLERS = [
    rc.StalestFirst(), rc.FreshestFirst(), rc.Smallest("priority"), rc.Largest("priority"),
    rc.Fifo(), rc.Lifo(),
]  # fmt: skip


class Sorted:
    """What a table should do: all items in a list that is sorted when it is asked for."""

    def __init__(self, sampler: rc.Selector) -> None:
        self.by = "version" if isinstance(sampler, rc.StalestFirst | rc.FreshestFirst) else "key"
        self.by = "priority" if isinstance(sampler, rc.Smallest | rc.Largest) else self.by
        self.sign = -1 if isinstance(sampler, rc.FreshestFirst | rc.Largest | rc.Lifo) else 1
        self.items: dict[int, tuple[int, float]] = {}  # by key: version, priority
        self.times: dict[int, int] = {}

    def first(self, n: int, leveled: bool) -> list[int]:
        def place(key: int) -> tuple[float, ...]:
            version, priority = self.items[key]
            value = {"version": version, "priority": priority, "key": key}[self.by]
            absent = self.by == "version" and version == -1
            times = self.times[key] if leveled else 0
            return (times, np.inf if absent else self.sign * value, key)

        return sorted(self.items, key=place)[:n]


def insert_some(table: rc.Table, model: Sorted, count: int, spread: int, random: Any) -> None:
    versions = random.integers(0, spread, count)
    versions[random.random(count) < 0.05] = -1
    priorities = random.integers(1, spread + 1, count) / 4
    given = [None if version < 0 else int(version) for version in versions]
    keys = table.insert({"x": np.arange(count)}, version=given, priority=priorities)
    for key, version, priority in zip(keys.tolist(), versions, priorities, strict=True):
        model.items[key] = (int(version), float(priority))
        model.times[key] = 0


@pytest.mark.parametrize("spread", [3, 100_000], ids=["ties", "apart"])
@pytest.mark.parametrize("leveled", [False, True], ids=["take", "sample"])
@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda sampler: type(sampler).__name__)
def test_an_order_of_items_that_come_in_any_order(
    sampler: rc.Selector, leveled: bool, spread: int
) -> None:
    """Adds, removals, updates and leases between calls for few, many and all items."""
    random = np.random.default_rng(spread + leveled)
    table = rc.Table("t", capacity=10_000, sampler=sampler, seed=0)
    model = Sorted(sampler)
    insert_some(table, model, 600, spread, random)
    for turn in range(60):
        keys = np.array(list(model.items), np.uint64)
        some = random.choice(keys, min(keys.size, 20), replace=False)
        verb = random.integers(5)
        if verb == 0:
            table.delete(some)
            for key in some.tolist():
                del model.items[key]
        elif verb == 1:
            versions = random.integers(0, spread, some.size)
            table.update(some, version=versions, priority=versions + 0.5)
            for key, version in zip(some.tolist(), versions.tolist(), strict=True):
                model.items[key] = (version, version + 0.5)
        elif verb == 2:  # what comes back goes to the heap, also where the order is the arrival
            leases = [table.take(min(count, len(table)), lease=60) for count in (30, 7)]
            for lease in random.permutation(2):
                table.give_back(leases[lease].info.lease)
        else:
            insert_some(table, model, int(random.integers(1, 100)), spread, random)
        n = len(model.items) if turn % 20 == 19 else int(random.choice([1, 2, 9, 64, 300]))
        n = min(n, len(model.items))
        expected = model.first(n, leveled)
        batch = table.sample(n) if leveled else table.take(n)
        assert batch.info.keys.tolist() == expected
        for key in expected:
            model.times[key] += 1
            if not leveled:
                del model.items[key]
        if len(model.items) < 200:
            insert_some(table, model, 500, spread, random)


def test_visits_of_items_in_any_order_grow_by_the_depth_of_the_heap() -> None:
    def visits(items: int) -> float:
        random = np.random.default_rng(0)
        table = rc.Table("t", capacity=2 * items, sampler=rc.StalestFirst())
        table.insert({"x": np.arange(items)}, version=random.permutation(items))
        table.take(64)
        before = table.core.storage.visits
        for _ in range(3):
            table.take(64)
        return (table.core.storage.visits - before) / 3

    few, many = visits(SMALL), visits(LARGE)
    assert 64 * 3 <= few < many <= 2 * few  # a heap of eight children: 4 levels and 6


# -- the same by the clock, with margins for a machine that does other things ----------------------
def seconds_of(table: rc.Table, verb: Verb, calls: int = 60) -> float:
    """The time of a fast call; the lower quartile, since others only add to it."""
    times = []
    for _ in range(calls):
        started = time.perf_counter()
        verb(table)
        times.append(time.perf_counter() - started)
    return float(np.quantile(times, 0.25))


@pytest.mark.alone
@pytest.mark.parametrize(
    "case",
    [
        *PROMISED,
        (rc.Uniform(), sample),
        (rc.Prioritized(), sample),
        (rc.Prioritized(), update_priorities),
    ],
    ids=named,
)
def test_seconds_do_not_grow(case: tuple[rc.Selector, Verb]) -> None:
    """1,000,000 items beside 10,000, which are enough for every take of the test."""
    sampler, verb = case
    few = seconds_of(prepared(10_000, sampler, verb), verb)
    many = seconds_of(prepared(1_000_000, sampler, verb), verb)
    assert many < 4 * few + 20e-6, f"{few * 1e6:.0f} us at 10,000 items, {many * 1e6:.0f} us"


@pytest.mark.alone
def test_a_lease_that_lapses_costs_what_it_brings_back() -> None:
    """With a lease open, a call that expires nothing costs the same in a large table."""
    seconds = []
    for items in (10_000, 1_000_000):
        clock = rc.ManualClock()
        table = filled(items, rc.Fifo(), clock=clock)
        for _ in range(20):
            table.take(8, lease=100)
        seconds.append(seconds_of(table, count_partition))
        clock.advance(200)
        assert table.stats()["leases"] == 0
    assert seconds[1] < 4 * seconds[0] + 20e-6


@pytest.mark.parametrize("values", ["any", "few"])
def test_new_items_get_the_highest_priority_whatever_changed_before(values):
    random = np.random.default_rng(8)

    def some(n):
        return random.random(n) if values == "any" else random.integers(0, 4, n).astype(float)

    table = rc.Table("t", capacity=700, sampler=rc.Prioritized(), seed=0)
    now = {}
    for _ in range(600):
        turn = random.integers(5)
        if turn == 0 or not now:
            highest = max(now.values(), default=1.0)
            (key,) = table.insert({"x": [0]})
            now[int(key)] = highest
        elif turn == 1:
            priorities = some(random.integers(1, 60))
            keys = table.insert({"x": [0] * priorities.size}, priority=priorities)
            now.update(zip(keys.tolist(), priorities.tolist(), strict=True))
        elif turn == 2:
            gone = random.choice(list(now), min(len(now), 30), replace=False)
            table.delete(gone.astype(np.uint64))
            for key in gone.tolist():
                del now[key]
        else:
            keys = random.choice(list(now), min(len(now), 40), replace=False).astype(np.uint64)
            if turn == 3:  # the highest go down, as what a learner has seen does
                keys = np.array(sorted(now, key=lambda key: -now[key])[:40], np.uint64)
            priorities = some(keys.size)
            table.update(keys, priority=priorities)
            now.update(zip(keys.tolist(), priorities.tolist(), strict=True))
        for key in list(now)[: max(len(now) - 700, 0)]:
            del now[key]
        assert table.core.storage.highest_priority() == max(now.values(), default=1.0)


def test_the_highest_priority_costs_what_changed():
    visits = {}
    for size in (4096, 65536):
        table = rc.Table("t", capacity=size, sampler=rc.Prioritized(), seed=0)
        table.insert({"x": np.zeros(size)}, priority=np.arange(1.0, size + 1))
        block = table.core.storage.items.block
        begin = 0
        for _ in range(64):
            keys = table.sample(32).info.keys
            table.update(keys, priority=0.5)
            before = int(block[layout.VISITS])
            table.core.storage.highest_priority()
            begin += int(block[layout.VISITS]) - before
        visits[size] = begin
    assert visits[65536] <= 2 * visits[4096] + 64 * 32


# -- what a query by partitions looks at


@pytest.mark.parametrize("sampler", [rc.Fifo(), rc.Uniform(), rc.Prioritized()])
def test_a_query_by_partitions_looks_at_their_items_only(sampler, monkeypatch):
    """After the first one: deletes, and queries that look further at what a partition has."""
    table = rc.Table(
        "t", capacity=20_000, sampler=sampler, partition_by=("task",), tags={"score": int}
    )
    names = ["rare" if n % 1000 == 0 else "often" for n in range(10_000)]
    keys = table.insert({"x": np.arange(10_000)}, task=names, score=np.arange(10_000))
    assert table.count({"task": "rare", "score": {"lt": 5000}}) == 5
    for scan in ("visible", "stored"):
        monkeypatch.setattr(Items, scan, lambda _: pytest.fail("it looked at every item"))
    assert table.count({"task": "rare", "score": {"lt": 2000}}) == 2
    assert table.sample(1, where={"task": "rare", "score": {"gt": 8500}})["x"].tolist() == [9000]
    assert table.delete(where={"task": "rare", "score": {"lt": 2000}}) == 2
    assert table.delete(where={"task": "none"}) == 0
    table.update(keys[:1], task="often")  # it has gone
    table.update(keys[2000:2001], task="often")
    more = table.insert({"x": [-1, -2]}, task="rare", score=0)
    assert table.count({"task": "rare", "score": {"lt": 5000}}) == 4
    assert table.delete(where={"task": "rare"}) == 9
    monkeypatch.undo()
    assert table.counts("task") == {"often": 9991}
    assert table.delete(keys=more) == 0


def test_a_query_by_partitions_counts_what_is_leased():
    table = rc.Table("t", capacity=20_000, sampler=rc.Fifo(), partition_by=("task",))
    names = ["rare" if n % 1000 == 0 else "often" for n in range(10_000)]
    table.insert({"x": np.arange(10_000)}, task=names)
    lease = table.take(3, where={"task": "rare"}, lease=60).info.lease
    assert table.count({"task": "rare", "times_sampled": {"ge": 0}}) == 10
    assert table.delete(where={"task": "rare"}) == 7  # leased ones stay
    table.give_back(lease)
    assert table.delete(where={"task": "rare"}) == 3
