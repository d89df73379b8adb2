"""Effects: numbered without gaps, told in order under the lock, settled outside it."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest

import recollect as rc


class Follower:
    """Remembers what it was told, and where it was called."""

    def __init__(self):
        self.effects = []
        self.settled = []

    def follow(self, effect):
        self.effects.append(effect)

    def settle(self, number):
        self.settled.append(number)

    def kinds(self):
        return [type(effect).__name__ for effect in self.effects]

    def reasons(self):
        return [e.reason for e in self.effects if isinstance(e, rc.Removed | rc.Returned)]

    def numbers(self):
        return [effect.number for effect in self.effects]


def followed(rows=3, **options):
    table = rc.Table("t", **{"capacity": 10, "sampler": rc.Fifo(), "seed": 0, **options})
    follower = Follower()
    table.follow(follower)
    if rows:
        table.insert({"x": np.arange(rows)})
    return table, follower


def can_enter(table):
    """Whether another thread could call the table now."""
    done = threading.Event()
    threading.Thread(target=lambda: (table.count(), done.set()), daemon=True).start()
    return done.wait(5)


def test_every_kind_of_change_is_told():
    clock = rc.ManualClock()
    columns = {"x": rc.Column("int64"), "y": rc.Column("int8", optional=True)}
    table, follower = followed(rows=0, capacity=4, signature=columns, clock=clock)
    keys = table.insert({"x": np.arange(4)}, request=("actor", 1))
    table.insert({"x": [4]})
    table.update(keys[1:], priority=2.0)
    table.amend(keys[1:2], {"y": [5]})
    lease = table.take(1, lease=10).info.lease
    table.give_back(lease)
    table.take(1, lease=10)
    clock.advance(11)
    table.confirm(table.take(1, lease=10).info.lease)
    table.take(1)
    table.delete(keys[3:])
    table.clear()
    assert follower.kinds() == [
        "Inserted", "Removed", "Inserted", "Updated", "Amended", "Leased", "Returned", "Leased",
        "Returned", "Leased", "Removed", "Removed", "Removed", "Removed",
    ]  # fmt: skip
    assert follower.reasons() == [
        "evicted", "given back", "lapsed", "confirmed", "taken", "deleted", "cleared",
    ]  # fmt: skip
    assert follower.numbers() == list(range(1, 15))
    assert table.stats()["effects"] == 14


def test_numbers_have_no_gaps_under_threads():
    table = rc.Table("t", capacity=20, max_times_sampled=3)
    follower = Follower()
    table.follow(follower)

    def work(seed):
        rng = np.random.default_rng(seed)
        for _ in range(60):
            keys = table.insert({"x": rng.integers(0, 9, 2)})
            table.sample(2)
            table.update(keys, priority=2.0)
            table.delete(keys[:1])

    threads = [threading.Thread(target=work, args=[seed]) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert follower.numbers() == list(range(1, len(follower.effects) + 1))
    assert table.stats()["effects"] == len(follower.effects)


def test_effects_account_for_every_item():
    table, follower = followed(rows=0, capacity=6, max_times_sampled=2, sampler=rc.Uniform())
    for i in range(40):
        table.insert({"x": [i, i]})
        table.sample(2)
        if i % 5 == 0:
            table.take(1)
    came = [k for e in follower.effects if isinstance(e, rc.Inserted) for k in e.keys.tolist()]
    went = [k for e in follower.effects if isinstance(e, rc.Removed) for k in e.keys.tolist()]
    assert len(set(went)) == len(went)
    left = set(came) - set(went)
    assert left == set(table.core.storage.find(None, None, visible=False).tolist())


def test_an_inserted_effect_holds_what_was_given():
    table, follower = followed(rows=0)
    keys = table.insert({"x": [5, 6]}, priority=[1.0, 2.0], task="math", request=("actor", 3))
    (effect,) = follower.effects
    assert effect.keys.tolist() == keys.tolist()
    assert effect.request == ("actor", 3)
    assert effect.new.count == 2
    assert effect.new.priority.tolist() == [1.0, 2.0]
    assert effect.new.fields["task"] == "math"
    assert [column.tolist() for column in effect.new.rows.columns] == [[5, 6]]


def test_the_payload_of_removed_items_can_still_be_read():
    table, follower = followed(capacity=3)
    table.insert({"x": [3]})
    table.take(1)
    table.delete(where=rc.field("seq") >= 0)
    for i in range(50):
        table.insert({"x": [100 + i]})
    removed = [e for e in follower.effects if isinstance(e, rc.Removed)][:3]
    assert [sorted(e.items.read()["x"].tolist()) for e in removed] == [[0], [1], [2, 3]]
    for effect in removed:
        assert effect.items.read().info.keys.tolist() == effect.keys.tolist()


def test_the_payload_of_removed_items_outlives_its_segment():
    table, follower = followed(rows=0, capacity=4)
    for i in range(100):
        table.insert({"big": np.full((1, 50_000), i)})
    for i, effect in enumerate(e for e in follower.effects if isinstance(e, rc.Removed)):
        if i % 10 == 0:
            assert (effect.items.read()["big"] == i).all()


def test_items_that_were_sampled_often_enough_leave_with_a_reason():
    table, follower = followed(rows=3, max_times_sampled=2, sampler=rc.Uniform())
    table.sample(5)
    (effect,) = [e for e in follower.effects if isinstance(e, rc.Removed)]
    assert effect.reason == "sampled"
    assert len(effect.keys) == 2
    assert effect.items.read().info.keys.tolist() == effect.keys.tolist()


def test_a_sample_that_removes_nothing_has_no_effect():
    table, follower = followed(rows=3)
    table.sample(2)
    assert follower.kinds() == ["Inserted"]


def test_an_updated_effect_names_only_items_that_were_there():
    table, follower = followed(rows=0)
    keys = table.insert({"x": [0, 1]})
    mixed = np.array([keys[1], 12345, keys[0]], np.uint64)
    table.update(mixed, priority=[1.0, 2.0, 3.0], task="a")
    effect = follower.effects[-1]
    assert effect.keys.tolist() == [keys[1], keys[0]]
    assert effect.fields["priority"].tolist() == [1.0, 3.0]
    assert effect.fields["task"] == "a"


def test_leased_and_returned_effects_name_the_lease():
    table, follower = followed()
    batch = table.take(2, lease=60, owner="me")
    table.give_back(batch.info.lease)
    leased, returned = follower.effects[-2:]
    assert leased.lease == returned.lease == batch.info.lease
    assert leased.keys.tolist() == returned.keys.tolist() == batch.info.keys.tolist()


def test_a_lapsed_lease_is_told_by_the_call_that_notices_it():
    for look in (lambda t: t.count(), lambda t: t.stats(), lambda t: t.counts("task")):
        clock = rc.ManualClock()
        table, follower = followed(clock=clock)
        table.take(2, lease=5)
        clock.advance(6)
        look(table)
        assert follower.reasons() == ["lapsed"]


def test_a_refused_call_has_no_effect():
    table, follower = followed()
    for call in (
        lambda: table.insert({"x": np.zeros(1)}),
        lambda: table.update([1], priority=-1.0),
        lambda: table.take(99),
        lambda: table.take(9, timeout=0),
    ):
        with pytest.raises(rc.RecollectError):
            call()
    assert follower.numbers() == [1]


def test_a_repeated_request_has_no_effect():
    table, follower = followed(rows=0)
    for _ in range(2):
        table.insert({"x": [1]}, request=("actor", 1))
    assert follower.kinds() == ["Inserted"]


# -- settle


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.insert({"x": [9]}),
        lambda t: t.take(1),
        lambda t: t.confirm(t.take(1, lease=60).info.lease),
        lambda t: t.give_back(t.take(1, lease=60).info.lease),
        lambda t: t.update(t.core.storage.find(None, None, visible=True), priority=2.0),
        lambda t: t.delete(where=rc.field("key") >= 0),
        lambda t: t.clear(),
        lambda t: t.release("nobody"),
        lambda t: asyncio.run(t.insert_async({"x": [9]})),
        lambda t: asyncio.run(t.take_async(1)),
        lambda t: asyncio.run(t.sample_async(1)),
        lambda t: t.sample(1),
    ],
)
def test_settle_is_called_without_the_lock_and_after_the_effects(change):
    table, _ = followed(rows=3)

    class Settling(Follower):
        def settle(self, number):
            super().settle(number)
            assert can_enter(table)
            assert number >= max(self.numbers(), default=0)

    follower = Settling()
    table.follow(follower)
    change(table)
    assert follower.settled
    assert follower.settled[-1] == table.stats()["effects"]


def test_a_call_returns_only_after_settle():
    table, _ = followed(rows=0)
    safe = threading.Event()

    class Slow(Follower):
        def settle(self, number):
            assert safe.wait(5)

    table.follow(Slow())
    returned = threading.Event()
    threading.Thread(target=lambda: (table.insert({"x": [1]}), returned.set())).start()
    assert not returned.wait(0.1)
    assert len(table) == 1
    safe.set()
    assert returned.wait(5)


def test_a_settle_that_waits_does_not_stop_the_event_loop():
    table, _ = followed(rows=0)
    safe = threading.Event()

    class Slow(Follower):
        def settle(self, number):
            assert safe.wait(5)

    table.follow(Slow())

    async def main():
        task = asyncio.create_task(table.insert_async({"x": [1]}))
        await asyncio.sleep(0.05)  # with a stopped loop, `safe` would never be set
        assert not task.done()
        safe.set()
        return await task

    assert len(asyncio.run(main())) == 1


# -- followers that act


def test_a_follower_may_look_at_the_table():
    table = rc.Table("t", capacity=3)
    sizes = []

    class Looks(Follower):
        def follow(self, effect):
            sizes.append((len(table), table.count(), table.stats()["size"]))

    table.follow(Looks())
    table.insert({"x": [1, 2]})
    assert sizes == [(2, 2, 2)]


def test_a_follower_may_change_the_table_and_everybody_sees_effects_in_order():
    table = rc.Table("t", capacity=3)

    class Changes(Follower):
        def follow(self, effect):
            super().follow(effect)
            if isinstance(effect, rc.Inserted):
                table.update(effect.keys, priority=5.0)

    first, second = Changes(), Follower()
    table.follow(first)
    table.follow(second)
    keys = table.insert({"x": [1]})
    assert first.numbers() == second.numbers() == [1, 2]
    assert table.get(keys).info.priority.tolist() == [5.0]


def test_a_follower_may_call_the_table_from_settle():
    table = rc.Table("t", capacity=3)

    class Changes(Follower):
        def settle(self, number):
            if not self.settled:
                super().settle(number)
                table.insert({"x": [2]})

    table.follow(Changes())
    table.insert({"x": [1]})
    assert len(table) == 2


def test_an_error_in_a_follower_reaches_the_caller_and_nobody_else():
    table = rc.Table("t", capacity=3)

    class Fails(Follower):
        def follow(self, effect):
            raise RuntimeError("disk full")

    good = Follower()
    unfollow = table.follow(Fails())
    table.follow(good)
    waiter = threading.Thread(target=lambda: table.sample(1), daemon=True)
    waiter.start()
    with pytest.raises(RuntimeError, match="disk full"):
        table.insert({"x": [1]})
    waiter.join(5)
    assert not waiter.is_alive()
    assert good.numbers() == [1]
    unfollow()
    table.insert({"x": [2]})
    assert good.numbers() == [1, 2]
    assert len(table) == 2


def test_unfollow_ends_it():
    table = rc.Table("t", capacity=3)
    follower = Follower()
    unfollow = table.follow(follower)
    table.insert({"x": [1]})
    unfollow()
    unfollow()
    table.insert({"x": [2]})
    assert follower.numbers() == [1]
    assert table.stats()["effects"] == 2


def test_numbers_go_on_while_nobody_follows():
    table = rc.Table("t", capacity=3)
    table.insert({"x": [1, 2, 3]})
    follower = Follower()
    table.follow(follower)
    table.insert({"x": [4]})
    assert follower.numbers() == [2, 3]
