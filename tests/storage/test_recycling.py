"""New items that take the slots of those they evict, beside a plain list: every size of an insert,
runs of slots that are replaced together, and whatever breaks such a run."""

import numpy as np
import pytest

import recollect as rc
from recollect.kernels import layout


class Oracle:
    """A table as a list of items, the oldest first."""

    def __init__(self, capacity):
        self.capacity = capacity
        self.items = []  # [key, row, priority, times, inserted at]

    def insert(self, keys, rows, priority, now):
        self.items += [
            [int(k), int(x), p, 0, now] for k, x, p in zip(keys, rows, priority, strict=True)
        ]
        del self.items[: max(0, len(self.items) - self.capacity)]

    def of(self, keys):
        wanted = set(np.asarray(keys).tolist())
        return [item for item in self.items if item[0] in wanted]

    def sampled(self, keys):
        by_key = {item[0]: item for item in self.items}
        for key in np.asarray(keys).tolist():
            by_key[key][3] += 1

    @property
    def highest(self):
        return max((item[2] for item in self.items), default=1.0)


def compare(table, oracle):
    keys = np.array([item[0] for item in oracle.items], np.uint64)
    assert len(table) == len(oracle.items)
    batch = table.get(keys)
    assert batch["x"].tolist() == [item[1] for item in oracle.items]
    assert (batch["wide"] == batch["x"][:, None] % 251).all()
    assert batch.info.priority.tolist() == [item[2] for item in oracle.items]
    assert batch.info.times_sampled.tolist() == [item[3] for item in oracle.items]
    stored = table.core.storage.items
    slots = stored.slots_of(keys)
    assert stored.owned[layout.A_INSERTED][slots].tolist() == [item[4] for item in oracle.items]
    check_segments(table, keys)


def check_segments(table, keys):
    """Every segment counts the rows that are in it, and no others."""
    stored = table.core.storage.items
    counted = table.core.storage.stores.rows.live_rows
    found = np.bincount(stored.location[stored.slots_of(keys)] >> 32, minlength=counted.size)
    assert found.tolist() == counted.tolist()


@pytest.mark.parametrize("width", [3, 300, 600])  # of rows: put together by blocks, or one by one
@pytest.mark.parametrize("sampler", [rc.Uniform(), rc.Prioritized(alpha=1.0)], ids=["even", "by"])
def test_recycled_slots_hold_what_a_list_holds(sampler, width):
    random = np.random.default_rng(width)
    clock = rc.ManualClock()
    capacity = 1500
    table = rc.Table("t", capacity=capacity, sampler=sampler, seed=1, clock=clock)
    oracle = Oracle(capacity)
    number = 0
    for turn in range(220):
        clock.advance(1.0)
        n = int(random.choice([1, 2, 7, 8, 9, 16, 63, 64, 130, 700]))
        rows = np.arange(number, number + n)
        number += n
        columns = {"x": rows, "wide": np.repeat(rows[:, None] % 251, width, 1).astype(np.uint8)}
        priority = None
        if turn % 5 == 3:  # as many different ones, or one for all
            priority = random.choice([0.5, 1.0, 2.0], n if turn % 2 else 1)
        given = np.full(n, oracle.highest) if priority is None else np.broadcast_to(priority, n)
        if priority is not None and priority.size == 1:
            priority = float(priority[0])
        keys = table.insert(columns, priority=priority)
        oracle.insert(keys, rows, given.tolist(), clock.time())
        if turn % 3 == 0:
            oracle.sampled(table.sample(40).info.keys)
        if turn % 7 == 0:
            some = random.choice([item[0] for item in oracle.items], 30).astype(np.uint64)
            values = random.choice([0.25, 1.0, 3.0], 30)
            assert table.update(some, priority=values).all()
            last = dict(zip(some.tolist(), values.tolist(), strict=True))
            for item in oracle.of(some):
                item[2] = last[item[0]]
        if turn % 31 == 30:  # holes: then keys find slots that are not their own
            some = np.unique(random.choice([item[0] for item in oracle.items], 25))
            assert table.delete(some.astype(np.uint64)) == some.size
            gone = set(some.tolist())
            oracle.items = [item for item in oracle.items if item[0] not in gone]
        if turn % 10 == 9:
            compare(table, oracle)
    compare(table, oracle)


def test_a_run_of_slots_ends_where_a_segment_does():
    """The rows that leave are of two segments, and so are those that come."""
    table = rc.Table("t", capacity=4096, seed=0)
    oracle = Oracle(4096)
    for turn in range(300):
        rows = np.arange(100 * turn, 100 * turn + 100)
        columns = {"x": rows, "wide": np.repeat(rows[:, None] % 251, 90, 1).astype(np.uint8)}
        keys = table.insert(columns)
        oracle.insert(keys, rows, [1.0] * 100, 0.0)
    assert table.core.storage.stores.rows.opened > 10
    keys = np.array([item[0] for item in oracle.items], np.uint64)
    check_segments(table, keys)
    batch = table.get(keys)
    assert batch["x"].tolist() == [item[1] for item in oracle.items]
    assert (batch["wide"] == batch["x"][:, None] % 251).all()


@pytest.mark.parametrize("ragged", [False, True])
def test_an_insert_may_fill_several_segments(ragged):
    """More than one whole segment at a time, and pieces of those before and after."""
    table = rc.Table("t", capacity=9000, seed=0)
    oracle = Oracle(9000)
    random = np.random.default_rng(0)
    number = 0
    for n in (9000, 2500, 64, 1, 8999, 700, 3000, 3000, 5000, 17, 4096, 2500):
        rows = np.arange(number, number + n)
        number += n
        wide = np.repeat(rows[:, None] % 251, 90, 1).astype(np.uint8)
        if ragged:
            wide = rc.Ragged.from_list(
                [
                    cell[:length]
                    for cell, length in zip(wide, random.integers(0, 90, n), strict=True)
                ]
            )
        stores = table.core.storage.stores
        opened = 0 if stores.rows is None else stores.rows.opened
        keys = table.insert({"x": rows, "wide": wide})
        assert ragged or stores.rows.opened - opened >= n // 700
        oracle.insert(keys, rows, [1.0] * n, 0.0)
        stored = np.array([item[0] for item in oracle.items], np.uint64)
        check_segments(table, stored)
        batch = table.get(stored)
        assert batch["x"].tolist() == [item[1] for item in oracle.items]
        for value, cell in zip(batch["x"], batch["wide"], strict=True):
            assert (np.asarray(cell) == value % 251).all()


def test_a_slot_between_others_may_hold_a_later_item():
    """Every key is in its own slot, and the next one's is that of the oldest; and yet slots in a
    row are not in the order of arrival, because items were deleted between."""
    table = rc.Table("t", capacity=64, seed=0)
    keys = table.insert({"x": np.arange(64)})
    table.delete(keys[:21])
    table.delete(keys[30:31])
    for number in range(64, 128):
        key = table.insert({"x": [number]})
        if number != 94:  # 30 of the next round
            table.delete(key)
    table.insert({"x": np.arange(128, 149)})
    assert len(table) == 64
    assert table.core.storage.items.block[layout.DISPLACED] == 0
    table.insert({"x": np.arange(1000, 1016)})
    there = table.get(table.core.storage.find(None, None, visible=True))["x"]
    assert sorted(there.tolist()) == [*range(38, 64), 94, *range(128, 149), *range(1000, 1016)]
