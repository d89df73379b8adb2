"""Leases: handed out, confirmed, given back, lapsed, renewed, released."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import recollect as rc


@pytest.fixture
def clock():
    return rc.ManualClock()


def table(clock=None, rows=4, **options):
    made = rc.Table("t", **{"capacity": 8, "sampler": rc.Fifo(), "seed": 0, **options}, clock=clock)
    if rows:
        made.insert({"x": np.arange(rows)})
    return made


def test_a_leased_batch_carries_its_lease(clock):
    clock.advance(100)
    lease = table(clock).take(2, lease=60, owner="learner").info.lease
    assert lease.owner == "learner"
    assert lease.deadline == 160
    assert isinstance(lease.id, int)


def test_a_batch_without_a_lease_has_none():
    assert table().take(2).info.lease is None


def test_leased_items_are_hidden_and_still_there():
    t = table()
    t.take(2, lease=60)
    assert t.sample(2)["x"].tolist() == [2, 3]
    assert len(t) == 4
    assert t.stats()["leased"] == 2
    assert t.stats()["leases"] == 1


def test_leased_items_are_never_drawn():
    for sampler in (rc.Uniform(), rc.Prioritized(), rc.Mixed([(rc.Uniform(), 1)])):
        t = table(sampler=sampler)
        hidden = set(t.take(2, lease=60)["x"].tolist())
        assert not hidden & set(t.sample(100)["x"].tolist())


def test_leased_items_are_never_evicted():
    t = table(capacity=4)
    t.take(3, lease=60)
    t.insert({"x": [10]})
    assert sorted(t.get(t.core.storage.find(None, None, visible=False))["x"].tolist()) == [
        0,
        1,
        2,
        10,
    ]


def test_leased_items_are_never_deleted():
    t = table()
    keys = t.take(2, lease=60).info.keys
    assert t.delete(keys) == 0
    assert t.delete(where=rc.field("key") >= 0) == 2
    assert len(t) == 2


def test_confirm_removes():
    t = table()
    batch = t.take(2, lease=60)
    t.confirm(batch.info.lease)
    assert len(t) == 2
    assert t.stats()["leases"] == t.stats()["leased"] == 0
    assert t.update(batch.info.keys, priority=1.0).tolist() == [False, False]


def test_a_lease_is_confirmed_once():
    t = table()
    lease = t.take(2, lease=60).info.lease
    t.confirm(lease)
    for settle in (t.confirm, t.give_back, lambda le: t.renew(le, 5)):
        with pytest.raises(rc.LeaseExpired, match="not held"):
            settle(lease)


def test_a_lease_may_be_named_by_its_id():
    t = table()
    t.confirm(t.take(2, lease=60).info.lease.id)
    assert len(t) == 2


def test_give_back_brings_items_back_in_their_old_order():
    t = table()
    lease = t.take(2, lease=60).info.lease
    t.insert({"x": [4]})
    t.give_back(lease)
    assert t.take(5)["x"].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("sampler", "expected"),
    [
        (rc.Lifo(), [3, 2, 1, 0]),
        (rc.Smallest("priority"), [3, 2, 1, 0]),
        (rc.Largest("priority"), [0, 1, 2, 3]),
        (rc.StalestFirst(), [2, 3, 0, 1]),
        (rc.FreshestFirst(), [0, 1, 2, 3]),
    ],
)
def test_items_come_back_to_their_place_in_every_order(sampler, expected):
    t = table(rows=0, sampler=sampler)
    t.insert({"x": np.arange(4)}, priority=[4.0, 3.0, 2.0, 1.0], version=[5, 5, 3, 3])
    for size in (3, 1, 4):
        t.give_back(t.take(size, lease=60).info.lease)
    assert t.take(4)["x"].tolist() == expected


def test_leases_given_back_in_any_order_restore_the_order():
    for order in itertools.permutations(range(3)):
        t = table(rows=6)
        leases = [t.take(2, lease=60).info.lease for _ in range(3)]
        for place in order:
            t.give_back(leases[place])
        assert t.take(6)["x"].tolist() == list(range(6))


def test_deliveries_count_how_often_an_item_was_handed_out():
    t = table(rows=2)
    first = t.take(1, lease=60)
    assert first.info.deliveries.tolist() == [1]
    t.give_back(first.info.lease)
    second = t.take(2, lease=60)
    assert second.info.deliveries.tolist() == [2, 1]
    t.give_back(second.info.lease)
    assert t.take(2).info.deliveries.tolist() == [3, 2]


def test_deliveries_of_new_items_begin_at_one_in_slots_that_were_used_before():
    t = table(rows=2, capacity=2)
    t.give_back(t.take(2, lease=60).info.lease)
    t.insert({"x": [7, 8]})
    assert t.take(2).info.deliveries.tolist() == [1, 1]


def test_the_deadline_brings_items_back(clock):
    t = table(clock)
    t.take(2, lease=60)
    clock.advance(59.9)
    assert t.sample(2)["x"].tolist() == [2, 3]
    clock.advance(0.2)
    batch = t.take(2)
    assert batch["x"].tolist() == [0, 1]
    assert batch.info.deliveries.tolist() == [2, 2]
    assert t.stats()["leases"] == 0


def test_confirming_a_lapsed_lease_raises(clock):
    t = table(clock)
    lease = t.take(2, lease=60).info.lease
    clock.advance(61)
    with pytest.raises(rc.LeaseExpired, match="deadline has passed"):
        t.confirm(lease)
    assert len(t) == 4


def test_an_item_whose_lease_lapsed_belongs_to_the_next_holder(clock):
    t = table(clock, rows=1)
    slow = t.take(1, lease=10)
    clock.advance(11)
    quick = t.take(1, lease=10)
    assert quick.info.keys.tolist() == slow.info.keys.tolist()
    with pytest.raises(rc.LeaseExpired):
        t.confirm(slow.info.lease)
    t.confirm(quick.info.lease)
    assert len(t) == 0


def test_every_call_first_brings_back_what_is_overdue(clock):
    calls = {
        "sample": lambda t: t.sample(4, timeout=0),
        "take": lambda t: t.take(4, timeout=0),
        "insert": lambda t: t.insert({"x": [9]}, timeout=0),
        "delete": lambda t: t.delete(where=rc.field("key") >= 0),
        "update": lambda t: t.update([1], priority=1.0),
        "count": lambda t: t.count(),
        "stats": lambda t: t.stats(),
        "get": lambda t: t.get([]),
    }
    for name, call in calls.items():
        t = table(clock, capacity=4)
        t.take(4, lease=5)
        clock.advance(6)
        call(t)
        assert t.stats()["leased"] == 0, name


def test_renew_moves_the_deadline(clock):
    t = table(clock)
    lease = t.take(2, lease=10).info.lease
    clock.advance(8)
    renewed = t.renew(lease, 10)
    assert (renewed.id, renewed.deadline) == (lease.id, 18)
    clock.advance(8)
    t.confirm(lease)
    assert len(t) == 2


def test_renew_can_shorten(clock):
    t = table(clock)
    lease = t.take(2, lease=100).info.lease
    t.renew(lease, 5)
    clock.advance(6)
    with pytest.raises(rc.LeaseExpired):
        t.confirm(lease)


def test_renew_takes_seconds_by_name(clock):
    t = table(clock)
    assert t.renew(t.take(1, lease=1).info.lease, seconds=7).deadline == 7


def test_an_endless_lease_never_lapses(clock):
    t = table(clock)
    lease = t.take(2, lease=float("inf")).info.lease
    assert lease.deadline is None
    clock.advance(1e12)
    t.confirm(lease)
    assert len(t) == 2


def test_release_gives_all_of_an_owner_back():
    t = table(rows=6)
    t.take(2, lease=60, owner="dead")
    other = t.take(2, lease=60, owner="alive")
    t.take(1, lease=60, owner="dead")
    assert t.release("dead") == 2
    assert t.release("dead") == 0
    assert t.stats()["leased"] == 2
    t.confirm(other.info.lease)
    assert t.take(4)["x"].tolist() == [0, 1, 4, 5]


def test_ids_are_never_reused():
    t = table()
    seen = set()
    for _ in range(10):
        lease = t.take(1, lease=60).info.lease
        assert lease.id not in seen
        seen.add(lease.id)
        t.give_back(lease)
    t.clear()
    t.insert({"x": [0]})
    assert t.take(1, lease=60).info.lease.id not in seen


def test_a_lease_of_another_table_is_not_taken_for_one_of_this():
    one, two = table(), table()
    foreign = one.take(1, lease=60).info.lease
    two.take(1, lease=60)
    with pytest.raises(rc.LeaseExpired):
        two.confirm(foreign)
    assert len(two) == 4


# -- what limiters count


def test_a_leased_item_counts_as_sampled_when_handed_out_and_as_removed_when_confirmed():
    t = table()
    lease = t.take(3, lease=60).info.lease
    assert (t.stats()["samples"], t.stats()["removals"]) == (3, 0)
    t.confirm(lease)
    assert (t.stats()["samples"], t.stats()["removals"]) == (3, 3)


def test_giving_back_undoes_what_was_counted(clock):
    t = table(clock)
    before = t.stats()
    t.give_back(t.take(3, lease=60).info.lease)
    t.take(2, lease=5)
    clock.advance(6)
    after = t.stats()
    for name in ("samples", "removals", "inserts", "size", "nbytes", "leased"):
        assert after[name] == before[name], name


def test_giving_back_undoes_times_sampled():
    t = table(max_times_sampled=2)
    t.sample(4)
    t.give_back(t.take(4, lease=60).info.lease)
    assert t.sample(4).info.times_sampled.tolist() == [2, 2, 2, 2]
    assert len(t) == 0


def test_capacity_in_bytes_never_evicts_leased_items_even_after_they_were_amended():
    columns = {"x": rc.Column("int64"), "y": rc.Column("float64", (100,), optional=True)}
    t = table(rows=0, capacity_bytes=2000, signature=columns)
    keys = t.insert({"x": np.arange(3)})
    lease = t.take(3, lease=60).info.lease
    t.amend(keys[:2], {"y": np.zeros((2, 100))})
    with pytest.raises(TimeoutError, match="leased"):
        t.insert({"x": [9], "y": np.zeros((1, 100))}, timeout=0)
    t.give_back(lease)
    t.insert({"x": [9], "y": np.zeros((1, 100))}, timeout=0)
    assert t.nbytes <= 2000


def test_a_leased_group_comes_back_whole():
    t = table(rows=0)
    t.insert({"x": np.arange(6)}, rows_per_item=[1, 2, 3], shared={"p": ["a", "b", "c"]})
    lease = t.take(2, lease=60).info.lease
    t.insert({"x": [9]}, shared={"p": ["d"]})
    t.give_back(lease)
    batch = t.take(4)
    assert batch["x"].tolist() == [0, 1, 2, 3, 4, 5, 9]
    assert batch.shared["p"].to_list() == ["a", "b", "c", "d"]


def test_a_thousand_short_leases_leave_nothing_behind(clock):
    t = table(clock, rows=8)
    for _ in range(1000):
        t.give_back(t.take(3, lease=1000).info.lease)
    clock.advance(2000)
    t.count()
    assert len(t.core.leases) == 0
    assert not t.core.leases._deadlines
