"""The rules of a table that a storage must bear: capacity, limiters, leases, waiting, effects."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from recollect.base.clock import ManualClock
from recollect.data.schema import Column
from recollect.errors import (
    InvalidValue,
    LeaseExpired,
    NeverPossible,
    TableClosed,
    UnknownKey,
    WaitTimeout,
)
from recollect.rules.limiters import MinSize, SampleToInsertRatio
from recollect.rules.query import field
from recollect.rules.selectors import Fifo, Largest, Mixed, Prioritized, Smallest, Uniform
from recollect.table.effects import Effect, Removed
from recollect.table.table import Table
from recollect.testing.base import LONG, StorageTests
from recollect.testing.lives import live

BLOCKS = 4  # of random lives


class TableTests(StorageTests):
    """Life cycles of tables."""

    @pytest.mark.parametrize("block", range(BLOCKS))
    def test_a_table_does_what_a_plain_list_does(self, block: int) -> None:
        for seed in range(block, self.lives, BLOCKS):
            live(seed, self.steps, self.new_storage())

    def test_a_small_table_that_is_always_full_does_too(self) -> None:
        for seed in range(500, 500 + self.lives // BLOCKS):
            live(seed, self.steps, self.new_storage(), (1, 2, 3))

    # -- capacity ---------------------------------------------------------------------------------
    def test_a_full_table_evicts_before_it_adds(self) -> None:
        table = self.table(capacity=10)
        for number in range(15):
            table.insert({"x": [number]})
            assert len(table) <= 10
        assert sorted(table.sample(10, replace=False)["x"].tolist()) == list(range(5, 15))
        assert table.stats()["removed"] == {"evicted": 5}

    def test_what_comes_is_never_evicted_by_itself(self) -> None:
        table = self.table(capacity=5, remover=Smallest("priority"))
        table.insert({"x": np.arange(5)}, priority=9.0)
        table.insert({"x": np.arange(10, 13)}, priority=0.0)
        assert table.count(field("priority") == 0) == 3

    def test_bytes_are_bounded_too(self) -> None:
        signature = {"x": Column("uint8", ragged=True)}
        table = self.table(capacity_bytes=1000, signature=signature)
        for number in range(20):
            table.insert({"x": [np.zeros(number * 10, np.uint8)]})
            assert table.nbytes <= 1000
        sizes = list(range(0, 200, 10))[::-1]
        kept = next(n for n in range(21) if sum(sizes[: n + 1]) > 1000)
        assert table.nbytes == sum(sizes[:kept])
        with pytest.raises(NeverPossible):
            table.insert({"x": [np.zeros(1001, np.uint8)]})
        assert len(table) == kept

    def test_an_insert_above_the_capacity_is_refused_whole(self) -> None:
        table = self.table(capacity=4)
        table.insert({"x": [1]})
        with pytest.raises(NeverPossible):
            table.insert({"x": np.arange(5)})
        assert len(table) == 1

    def test_keys_are_never_used_again(self) -> None:
        table = self.table(capacity=3)
        seen: set[int] = set()
        for _ in range(10):
            keys = set(table.insert({"x": [1, 2]}).tolist())
            assert not keys & seen
            seen |= keys
        table.clear()
        assert not set(table.insert({"x": [1, 2]}).tolist()) & seen

    def test_a_new_item_gets_the_highest_priority(self) -> None:
        table = self.table(capacity=3)
        keys = table.insert({"x": [1, 2]}, priority=[0.5, 4.0])
        assert table.get(table.insert({"x": [3]})).info.priority.tolist() == [4.0]
        table.update(keys, priority=[9.0, 1.0])
        assert table.get(table.insert({"x": [4]})).info.priority.tolist() == [9.0]
        table.clear()
        assert table.get(table.insert({"x": [5]})).info.priority.tolist() == [1.0]

    def test_a_repeated_request_gets_the_same_keys(self) -> None:
        table = self.table()
        keys = table.insert({"x": [1, 2]}, request=("actor", 1))
        assert table.insert({"x": [1, 2]}, request=("actor", 1)).tolist() == keys.tolist()
        assert len(table) == 2
        other = table.insert({"x": [1, 2]}, request=("actor'; --", 1))
        assert not set(other.tolist()) & set(keys.tolist())

    # -- leases -----------------------------------------------------------------------------------
    def test_a_lease_hides_counts_and_comes_back(self) -> None:
        clock = ManualClock(0.0)
        table = self.table(sampler=Fifo(), capacity=4, clock=clock)
        table.insert({"x": [0, 1, 2, 3]})
        batch = table.take(2, lease=10.0, owner="trainer")
        lease = batch.info.lease
        assert lease is not None
        assert batch.info.deliveries.tolist() == [1, 1]
        assert (len(table), table.stats()["leased"], table.count()) == (4, 2, 4)
        assert table.sample(2, replace=False)["x"].tolist() == [2, 3]
        with pytest.raises(WaitTimeout, match="has 2"):
            table.sample(3, timeout=0)
        with pytest.raises(WaitTimeout):
            table.insert({"x": [9, 9, 9]}, timeout=0)
        assert table.delete(keys=batch.info.keys) == 0
        clock.advance(11.0)
        with pytest.raises(LeaseExpired):
            table.confirm(lease)
        again = table.take(4)
        assert again["x"].tolist() == [0, 1, 2, 3]
        assert again.info.deliveries.tolist() == [2, 2, 1, 1]

    def test_confirm_give_back_renew_and_release(self) -> None:
        clock = ManualClock(0.0)
        table = self.table(sampler=Fifo(), clock=clock)
        table.insert({"x": np.arange(8)})
        leases = [table.take(2, lease=10.0, owner=owner).info.lease for owner in "aabc"]
        table.confirm(leases[0])
        table.give_back(leases[1])
        assert table.renew(leases[2], 100.0).deadline == 100.0
        clock.advance(50.0)  # the fourth lapses
        assert table.sample(4, replace=False)["x"].tolist() == [2, 3, 6, 7]
        assert table.release("b") == 1
        assert table.release("nobody") == 0
        assert table.take(6)["x"].tolist() == [2, 3, 4, 5, 6, 7]
        for lease in leases:
            with pytest.raises(LeaseExpired):
                table.give_back(lease)

    def test_a_queue_works_on_after_leases_and_deletes(self) -> None:
        queue = Table.queue("q", 4, storage=self.new_storage())
        queue.insert({"x": [0, 1, 2, 3]})
        with pytest.raises(WaitTimeout):
            queue.insert({"x": [4]}, timeout=0)
        queue.give_back(queue.take(2, lease=60.0).info.lease)
        with pytest.raises(WaitTimeout):
            queue.insert({"x": [4]}, timeout=0)
        assert queue.sample(2)["x"].tolist() == [0, 1]
        queue.insert({"x": [4, 5]})
        assert queue.delete(where=field("seq") >= 0) == 4
        queue.insert({"x": [6, 7, 8, 9]})
        assert queue.take(4)["x"].tolist() == [6, 7, 8, 9]

    # -- limiters, timeouts, waiting --------------------------------------------------------------
    def test_limiters_open_and_close(self) -> None:
        table = self.table(limiter=MinSize(3), sampler=Fifo())
        table.insert({"x": [1, 2]})
        with pytest.raises(WaitTimeout, match="needs 1 more insert"):
            table.sample(1, timeout=0)
        table.insert({"x": [3]})
        table.sample(1, timeout=0)
        table.delete(where=field("seq") >= 0)
        with pytest.raises(WaitTimeout):
            table.sample(1, timeout=0)

    def test_a_ratio_of_samples_to_inserts_is_kept(self) -> None:
        table = self.table(limiter=SampleToInsertRatio(2.0, 1, 4.0))  # between -2 and 6
        table.insert({"x": [1]})
        table.sample(4)
        with pytest.raises(WaitTimeout, match="needs 1 more insert"):
            table.sample(1, timeout=0)
        table.insert({"x": [1, 2, 3]})
        with pytest.raises(WaitTimeout, match="needs 2 more samples"):
            table.insert({"x": [1, 2]}, timeout=0)
        table.limiter = MinSize(1)
        table.insert({"x": [1, 2]}, timeout=0)
        with pytest.raises(NeverPossible):
            table.limiter = MinSize(101)

    def test_a_mixture_needs_what_its_orders_draw_and_no_more(self) -> None:
        half = Mixed(((Fifo(), 0.5), (Uniform(), 0.5)))
        table = self.table(capacity=3, sampler=half)
        table.insert({"x": [0, 1]})
        assert table.sample(4, timeout=0)["x"][:2].tolist() == [0, 1]  # 2 of each
        with pytest.raises(WaitTimeout, match="needs 3 items, has 2"):
            table.sample(5, timeout=0)  # 3 and 2
        table.insert({"x": [2]})
        assert sorted(table.sample(5, timeout=0)["x"][:3].tolist()) == [0, 1, 2]
        table.delete(where=field("seq") >= 2)
        assert table.sample(5, timeout=0).num_items == 5  # now 2 and 3
        with pytest.raises(NeverPossible, match="4 different items"):
            table.sample(7)

    def test_a_mixture_allows_for_what_its_first_parts_wear_out(self) -> None:
        half = Mixed(((Uniform(), 0.5), (Fifo(), 0.5)))
        for often, items in ((1, 4), (2, 3), (3, 2)):
            table = self.table(capacity=9, sampler=half, max_times_sampled=often)
            table.insert({"x": np.arange(items - 1)})
            with pytest.raises(WaitTimeout):
                table.sample(4, timeout=0)  # 2 by chance, and then 2 different ones
            table.insert({"x": [9]})
            batch = table.sample(4, timeout=0)
            assert len(set(batch.info.keys[2:].tolist())) == 2

    def test_the_insert_that_opens_the_limiter_wakes_the_sampler(self) -> None:
        table = self.table(limiter=MinSize(5))
        table.insert({"x": [0]})
        got: list[Any] = []
        thread = threading.Thread(target=lambda: got.append(table.sample(4, timeout=LONG)))
        thread.start()
        for _ in range(4):
            table.insert({"x": [0]})
        thread.join(LONG)
        assert not thread.is_alive(), "the sampler was not woken"
        assert got[0].num_items == 4

    def test_a_full_queue_lets_the_next_insert_in_when_one_was_taken(self) -> None:
        queue = Table.queue("q", 2, storage=self.new_storage())
        queue.insert({"x": [0, 1]})
        keys: list[Any] = []
        thread = threading.Thread(
            target=lambda: keys.append(queue.insert({"x": [2]}, timeout=LONG))
        )
        thread.start()
        assert queue.take(1)["x"].tolist() == [0]
        thread.join(LONG)
        assert not thread.is_alive(), "the producer was not woken"
        assert queue.take(2)["x"].tolist() == [1, 2]

    def test_waiting_has_an_end_and_says_for_what(self) -> None:
        table = self.table(capacity=4)
        table.insert({"x": [1]})
        with pytest.raises(WaitTimeout, match="needs 3 items, has 1"):
            table.take(3, timeout=0.01)
        with pytest.raises(NeverPossible):
            table.take(5)
        with pytest.raises(NeverPossible):
            table.sample(5, replace=False)
        assert table.take(3, partial=True).num_items == 1

    def test_closing_wakes_every_waiter(self) -> None:
        table = self.table()
        errors: list[BaseException] = []

        def wait() -> None:
            try:
                table.sample(1, timeout=LONG)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=wait) for _ in range(3)]
        for thread in threads:
            thread.start()
        table.close()
        for thread in threads:
            thread.join(LONG)
        assert [type(error) for error in errors] == [TableClosed] * 3
        with pytest.raises(TableClosed):
            table.insert({"x": [1]})

    def test_coroutines_wait_beside_each_other(self) -> None:
        queue = Table.queue("q", 4, storage=self.new_storage())

        async def produce() -> None:
            for number in range(20):
                await queue.insert_async({"x": [number]}, timeout=LONG)

        async def consume() -> list[int]:
            found: list[int] = []
            while len(found) < 20:
                found += (await queue.take_async(2, timeout=LONG))["x"].tolist()
            return found

        async def both() -> list[int]:
            found, _ = await asyncio.gather(consume(), produce())
            return found

        assert asyncio.run(both()) == list(range(20))

    # -- changing ---------------------------------------------------------------------------------
    def test_an_update_says_which_keys_were_there(self) -> None:
        table = self.table(tags={"score": float})
        keys = table.insert({"x": [1, 2, 3]}, score=0.5)
        table.delete(keys[1:2])
        found = table.update([*keys.tolist(), 12345], score=[1.0, 2.0, 3.0, 4.0], task="new")
        assert found.tolist() == [True, False, True, False]
        assert table.get(keys[[0, 2]]).info.score.tolist() == [1.0, 3.0]
        assert table.get(keys[[2, 0]]).info.task.tolist() == ["new", "new"]
        twice = table.update([keys[0], keys[0]], score=[7.0, 8.0])
        assert twice.tolist() == [True, True]
        assert table.get(keys[:1]).info.score.tolist() == [8.0]

    def test_leased_items_can_be_updated_and_amended(self) -> None:
        signature = {"x": Column("int64"), "note": Column("str", optional=True)}
        table = self.table(sampler=Largest("priority"), signature=signature)
        keys = table.insert({"x": [0, 1, 2]}, priority=[3.0, 2.0, 1.0])
        held = table.take(1, lease=60.0)
        assert table.update(held.info.keys, priority=0.5, task="late").tolist() == [True]
        assert table.amend(held.info.keys, {"note": ["hello"]}).tolist() == [True]
        table.give_back(held.info.lease)
        batch = table.take(3)
        assert batch["x"].tolist() == [1, 2, 0]
        assert batch.info.task.tolist() == [None, None, "late"]
        assert batch.present["note"].tolist() == [False, False, True]
        assert held.info.priority.tolist() == [3.0]
        assert held.info.keys.tolist() == keys[:1].tolist()

    def test_a_column_is_added_and_filled(self) -> None:
        table = self.table()
        keys = table.insert({"x": [1, 2, 3]})
        table.add_column("ref", "float32", (2,))
        table.add_column("words", "str")
        before = table.nbytes
        table.amend(keys[1:], {"ref": [[1, 2], None], "words": [None, "née"]})
        assert table.nbytes == before + 8 + 4
        batch = table.get(keys)
        assert batch.present["ref"].tolist() == [False, True, False]
        assert batch["ref"][1].tolist() == [1.0, 2.0]
        assert batch.present["words"].tolist() == [False, False, True]
        assert batch["words"][2] == "née"
        with pytest.raises(InvalidValue, match="already"):
            table.amend(keys[1:2], {"ref": [[3, 4]]})
        more = table.insert({"x": [4], "words": ["w"]})
        assert table.get(more).present["ref"].tolist() == [False]

    def test_delete_takes_keys_queries_and_both(self) -> None:
        table = self.table()
        keys = table.insert({"x": np.arange(6)}, task=["a", "b", "a", "b", "a", "b"])
        assert table.delete(keys[:2], where=field("task") == "a") == 1
        assert table.delete(where=field("task") == "b") == 3
        assert table.delete(keys) == 2
        assert table.delete(keys) == 0
        with pytest.raises(UnknownKey):
            table.get(keys[:1])

    def test_effects_tell_everything_in_order(self) -> None:
        table = self.table(capacity=3, sampler=Fifo())
        told: list[Any] = []

        class NotingFollower:
            def follow(self, effect: Effect) -> None:
                payload = None
                if isinstance(effect, Removed):
                    payload = effect.items.read()["x"].tolist()
                reason = getattr(effect, "reason", None)
                told.append((type(effect).__name__, effect.keys.size, reason, payload))

            def settle(self, number: int) -> None:
                assert number == table.stats()["effects"]

        table.follow(NotingFollower())
        keys = table.insert({"x": [0, 1]})
        table.update(keys, task="a")
        held = table.take(1, lease=60.0)
        table.give_back(held.info.lease)
        table.insert({"x": [2, 3]})
        table.confirm(table.take(1, lease=60.0).info.lease)
        table.take(1)
        table.delete(where=field("seq") >= 0)
        table.insert({"x": [4]})
        table.clear()
        assert told == [
            ("Inserted", 2, None, None),
            ("Updated", 2, None, None),
            ("Leased", 1, None, None),
            ("Returned", 1, "given back", None),
            ("Removed", 1, "evicted", [0]),
            ("Inserted", 2, None, None),
            ("Leased", 1, None, None),
            ("Removed", 1, "confirmed", [1]),
            ("Removed", 1, "taken", [2]),
            ("Removed", 1, "deleted", [3]),
            ("Inserted", 1, None, None),
            ("Removed", 1, "cleared", [4]),
        ]

    # -- threads ----------------------------------------------------------------------------------
    def test_threads_lose_nothing(self) -> None:
        table = self.table(
            capacity=64, sampler=Prioritized(), partition_by=("task",), limiter=MinSize(1)
        )
        table.insert({"x": np.full((8, 16), 0), "y": np.zeros(8)}, task="even")
        errors: list[BaseException] = []
        done = {"inserted": 8, "deleted": 0, "taken": 0, "sampled": 0}
        lock = threading.Lock()

        def work(worker: int) -> None:
            rng = np.random.default_rng(worker)
            own = dict.fromkeys(done, 0)
            for turn in range(12):
                number = worker * 1000 + turn
                keys = table.insert(
                    {"x": np.full((2, 16), number), "y": np.full(2, float(number))},
                    task="even" if turn % 2 else "odd",
                )
                own["inserted"] += 2
                batch = table.sample(4)
                own["sampled"] += 4
                # a row is of one insert, never torn between two
                assert (batch["x"] == batch["x"][:, :1]).all()
                assert (batch["x"][:, 0] == batch["y"]).all()
                table.update(batch.info.keys, priority=rng.random(4))
                if turn % 3 == 0:
                    own["deleted"] += table.delete(keys[:1])
                if turn % 4 == 0:
                    held = table.take(1, lease=60.0)
                    if turn % 8:
                        table.confirm(held.info.lease)
                        own["taken"] += 1
                    else:
                        table.give_back(held.info.lease)
            with lock:
                for name, count in own.items():
                    done[name] += count

        def guarded(worker: int) -> None:
            try:
                work(worker)
            except BaseException as error:
                errors.append(error)

        run_to_the_end([threading.Thread(target=guarded, args=(w,), daemon=True) for w in range(8)])
        if errors:
            raise errors[0]
        stats = table.stats()
        assert stats["inserts"] == done["inserted"]
        assert stats["samples"] == done["sampled"] + done["taken"]
        removed = stats["removed"]
        assert removed.get("deleted", 0) == done["deleted"]
        assert removed.get("confirmed", 0) == done["taken"]
        assert stats["size"] == stats["inserts"] - sum(removed.values())
        assert stats["leased"] == 0
        assert sum(table.counts("task").values()) == len(table) == table.count()


def run_to_the_end(threads: Sequence[threading.Thread]) -> None:
    """Start all of them, and wait until each has ended."""
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * LONG)
        assert not thread.is_alive(), "a thread hangs"
