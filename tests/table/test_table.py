"""The sentences of spec/tables.md about `Table`, each as a test."""

from __future__ import annotations

import inspect
from collections import Counter

import numpy as np
import pytest

import recollect as rc

COUNTER_BITS = 44


def table(n=10, rows=0, **options):
    made = rc.Table("t", capacity=n, **{"seed": 0, **options})
    if rows:
        made.insert({"x": np.arange(rows)})
    return made


def everything(table):
    """The values of x of all items, in order of arrival."""
    keys = np.sort(table.core.storage.find(None, None, visible=False))
    return table.get(keys)["x"].tolist()


# -- signatures: a contract


@pytest.mark.parametrize(
    ("call", "parameters"),
    [
        (
            rc.Table,
            "name capacity capacity_bytes sampler remover limiter max_times_sampled signature tags "
            "partition_by storage seed journal checkpoint clock",
        ),
        (rc.Table.insert, "self columns shared rows_per_item priority timeout request fields"),
        (rc.Table.sample, "self n where replace timeout"),
        (rc.Table.take, "self n where timeout lease partial"),
        (rc.Table.update, "self keys fields"),
        (rc.Table.amend, "self keys columns"),
        (rc.Table.add_column, "self name dtype shape"),
        (rc.Table.delete, "self keys where"),
        (rc.Table.get, "self keys columns"),
        (rc.Table.count, "self where"),
        (rc.Table.counts, "self fields"),
        (rc.Table.confirm, "self lease"),
        (rc.Table.give_back, "self lease"),
        (rc.Table.renew, "self lease seconds"),
        (rc.Table.release, "self owner"),
        (rc.Table.insert_async, "self columns shared rows_per_item priority timeout request"),
        (rc.Table.sample_async, "self n where replace timeout"),
        (rc.Table.take_async, "self n where timeout lease partial"),
    ],
)
def test_signatures_are_those_of_the_spec(call, parameters):
    names = list(inspect.signature(call).parameters)
    assert names[: len(parameters.split())] == parameters.split()


@pytest.mark.parametrize(
    ("call", "defaults"),
    [
        (rc.Table.insert, {"shared": None, "rows_per_item": 1, "priority": None, "timeout": None}),
        (rc.Table.sample, {"where": None, "replace": True, "timeout": None}),
        (rc.Table.take, {"where": None, "timeout": None, "lease": None, "partial": False}),
        (rc.Table.delete, {"keys": None, "where": None}),
        (rc.Table.get, {"columns": None}),
        (rc.Table, {"max_times_sampled": 0, "partition_by": (), "checkpoint": True}),
    ],
)
def test_defaults_are_those_of_the_spec(call, defaults):
    parameters = inspect.signature(call).parameters
    assert {name: parameters[name].default for name in defaults} == defaults


def test_rules_of_a_new_table_are_uniform_fifo_and_one_item():
    assert table().sampler == rc.Uniform()
    assert table().remover == rc.Fifo()
    assert table().limiter == rc.MinSize(1)


# -- insert


def test_insert_returns_a_key_for_each_item():
    keys = table().insert({"x": np.arange(3)})
    assert keys.dtype == np.uint64
    assert len(set(keys.tolist())) == 3


def test_items_of_several_rows_are_read_whole_and_in_order():
    t = table()
    keys = t.insert({"x": np.arange(6)}, rows_per_item=[3, 1, 2])
    batch = t.get(keys[[2, 0]])
    assert batch["x"].tolist() == [4, 5, 0, 1, 2]
    assert batch.info.row_offsets.tolist() == [0, 2, 5]
    assert len(t) == 3


def test_rows_per_item_may_be_one_number_for_all():
    t = table()
    keys = t.insert({"x": np.arange(6)}, rows_per_item=3)
    assert t.get(keys[1:])["x"].tolist() == [3, 4, 5]


def test_a_field_is_one_scalar_or_one_value_per_item():
    t = table(tags={"score": float})
    keys = t.insert({"x": np.arange(2)}, task="math", score=[0.5, 0.25])
    info = t.get(keys).info
    assert info.task.tolist() == ["math", "math"]
    assert info.score.tolist() == [0.5, 0.25]


def test_priority_none_means_the_highest_in_the_table():
    t = table()
    first = t.insert({"x": [0]})
    t.insert({"x": [1]}, priority=7.0)
    third = t.insert({"x": [2]})
    assert t.get(first).info.priority.tolist() == [1.0]
    assert t.get(third).info.priority.tolist() == [7.0]


def test_priority_none_counts_what_an_insert_evicts_as_still_there():
    t = table(n=1)
    t.insert({"x": [0]}, priority=5.0)
    assert t.get(t.insert({"x": [1]})).info.priority.tolist() == [5.0]


def test_the_highest_priority_forgets_what_has_gone():
    t = table()
    high = t.insert({"x": [0]}, priority=9.0)
    t.insert({"x": [1]}, priority=2.0)
    t.delete(high)
    assert t.get(t.insert({"x": [2]})).info.priority.tolist() == [2.0]


def test_priority_none_is_one_again_after_everything_left():
    t = table()
    t.insert({"x": [0]}, priority=9.0)
    t.clear()
    assert t.get(t.insert({"x": [1]})).info.priority.tolist() == [1.0]


def test_a_repeated_request_returns_the_same_keys_and_inserts_nothing():
    t = table()
    keys = t.insert({"x": [1, 2]}, request=("actor", 1))
    again = t.insert({"x": [1, 2]}, request=("actor", 1))
    assert again.tolist() == keys.tolist()
    assert len(t) == 2


def test_another_producer_or_number_is_another_request():
    t = table()
    t.insert({"x": [1]}, request=("actor", 1))
    t.insert({"x": [1]}, request=("actor", 2))
    t.insert({"x": [1]}, request=("other", 1))
    assert len(t) == 3


def test_a_repeated_request_returns_its_keys_even_when_the_queue_is_full_or_its_items_have_gone():
    q = rc.Table.queue("q", 2)
    keys = q.insert({"x": [1, 2]}, request=("actor", 1))
    assert q.insert({"x": [1, 2]}, request=("actor", 1), timeout=0).tolist() == keys.tolist()
    q.take(2)
    assert q.insert({"x": [1, 2]}, request=("actor", 1)).tolist() == keys.tolist()
    assert len(q) == 0


def test_a_request_that_failed_may_be_repeated():
    q = rc.Table.queue("q", 1)
    q.insert({"x": [0]})
    with pytest.raises(TimeoutError):
        q.insert({"x": [1]}, request=("actor", 1), timeout=0)
    q.take(1)
    q.insert({"x": [1]}, request=("actor", 1))
    assert everything(q) == [1]


def test_requests_too_old_to_be_remembered_are_refused_rather_than_inserted_again():
    t = table(n=2)
    for number in range(1100):
        t.insert({"x": [number]}, request=("actor", number))
    with pytest.raises(rc.InvalidValue, match="too old"):
        t.insert({"x": [0]}, request=("actor", 0))


def test_an_insert_of_no_rows_inserts_nothing():
    t = table(rows=2)
    assert t.insert({"x": np.zeros(0, np.int64)}).tolist() == []
    assert len(t) == 2


def test_shared_columns_have_one_cell_per_item():
    t = table()
    keys = t.insert({"x": np.arange(5)}, rows_per_item=[2, 3], shared={"prompt": ["a", "bc"]})
    batch = t.get(keys[::-1])
    assert batch.shared["prompt"].to_list() == ["bc", "a"]
    assert batch["x"].tolist() == [2, 3, 4, 0, 1]


def test_inserted_arrays_may_be_changed_afterwards():
    t = table()
    x = np.arange(3)
    t.insert({"x": x})
    x[:] = 9
    assert everything(t) == [0, 1, 2]


def test_inserts_over_several_segments_come_back_whole():
    t = table(n=1000)
    x = np.repeat(np.arange(500)[:, None], 1000, axis=1)
    keys = t.insert({"x": x})
    t.insert({"x": -x})
    assert (t.get(keys)["x"] == x).all()


def test_shared_cells_over_several_segments_come_back_whole():
    t = table(n=100)
    shared = np.repeat(np.arange(50)[:, None], 4000, axis=1)
    keys = t.insert({"x": np.arange(50)}, shared={"p": shared})
    assert (t.get(keys).shared["p"] == shared).all()


def test_items_of_different_sizes_come_back_whole_beyond_the_first_segment():
    t = table(n=400)
    rng = np.random.default_rng(0)
    cells = [np.full(rng.integers(0, 20_000), i) for i in range(200)]
    keys = np.concatenate([t.insert({"r": cells[i : i + 20]}) for i in range(0, 200, 20)])
    for got, given in zip(t.get(keys)["r"].to_list(), cells, strict=True):
        assert np.array_equal(got, given)


# -- batch.info


def test_info_has_one_entry_per_item():
    t = table(sampler=rc.Prioritized(), tags={"score": float})
    t.insert({"x": np.arange(6)}, rows_per_item=2, priority=[1, 2, 3], version=5, task="m")
    info = t.sample(4).info
    for name in (
        "keys", "priority", "probability", "weights", "times_sampled", "version", "task", "status",
        "score", "deliveries",
    ):  # fmt: skip
        assert len(getattr(info, name)) == 4, name
    assert info.row_offsets.tolist() == [0, 2, 4, 6, 8]
    assert info.table_size == 3
    assert info.lease is None


def test_a_tag_that_nobody_set_is_absent_in_info():
    t = table(rows=2, tags={"score": float, "level": int, "hard": bool, "genre": str})
    info = t.sample(2).info
    assert np.isnan(info.score).tolist() == [True, True]
    for name in ("level", "hard", "genre"):
        assert getattr(info, name).tolist() == [None, None]


def test_times_sampled_counts_this_call_too():
    t = table(rows=1)
    assert t.sample(1).info.times_sampled.tolist() == [1]
    assert t.sample(1).info.times_sampled.tolist() == [2]


def test_times_sampled_of_an_item_that_is_drawn_thrice_is_that_after_the_call():
    t = table(rows=1)
    assert t.sample(3).info.times_sampled.tolist() == [3, 3, 3]


def test_info_is_as_of_the_draw():
    t = table(rows=1, sampler=rc.Prioritized())
    batch = t.sample(1)
    t.update(batch.info.keys, priority=9.0, task="new", version=4)
    t.sample(1)
    t.clear()
    assert batch.info.priority.tolist() == [1.0]
    assert batch.info.times_sampled.tolist() == [1]
    assert batch.info.task.tolist() == [None]
    assert batch.info.version.tolist() == [-1]
    assert batch.info.table_size == 1


def test_the_step_of_a_learner():
    t = table(rows=8, sampler=rc.Prioritized())
    batch = t.sample(4)
    errors = np.abs(batch["x"]).astype(float)
    assert t.update(batch.info.keys, priority=errors).all()


def test_what_a_call_returned_is_never_written_again():
    t = table(n=64, seed=1)
    t.insert({"x": np.arange(64), "big": np.repeat(np.arange(64.0)[:, None], 40_000, axis=1)})
    batches = []
    for _ in range(6):
        batches.append(t.sample(8))
        x = np.arange(64)
        t.insert({"x": x, "big": np.repeat(-x[:, None].astype(float), 40_000, axis=1)})
    for i, batch in enumerate(batches):
        sign = 1.0 if i == 0 else -1.0
        assert (batch["big"] == sign * batch["x"][:, None]).all()


def test_a_view_of_a_batch_keeps_its_memory():
    t = table(n=8)
    t.insert({"big": np.ones((8, 200_000))})
    view = t.sample(8)["big"][3, 10:20]
    t.clear()
    t.insert({"big": np.zeros((8, 200_000))})
    for _ in range(4):
        t.sample(8)
    assert (view == 1.0).all()


# -- capacity


def test_fifteen_inserts_into_ten_keep_the_last_ten():
    t = table(n=10)
    for i in range(15):
        t.insert({"x": [i]})
    assert everything(t) == list(range(5, 15))


def test_full_table_evicts_before_it_adds_and_never_what_it_adds():
    t = table(n=4, remover=rc.Lifo())
    t.insert({"x": [0, 1, 2]})
    t.insert({"x": [3, 4, 5]})
    assert everything(t) == [0, 3, 4, 5]


def test_remover_smallest_priority_never_evicts_what_comes_with_a_smaller_one():
    t = table(n=2, remover=rc.Smallest("priority"))
    t.insert({"x": [0, 1]}, priority=[5.0, 6.0])
    t.insert({"x": [2]}, priority=0.0)
    assert everything(t) == [1, 2]


def test_capacity_in_bytes_counts_payload_and_holds_after_every_insert():
    t = table(n=100, capacity_bytes=800)
    rng = np.random.default_rng(0)
    for _ in range(60):
        t.insert({"r": [np.zeros(rng.integers(0, 60)) for _ in range(rng.integers(1, 3))]})
        assert t.nbytes <= 800
        keys = t.core.storage.find(None, None, visible=True)
        assert t.nbytes == t.get(keys)["r"].values.nbytes


def test_one_insert_larger_than_the_capacity_is_refused_whole():
    t = table(n=3, rows=2)
    with pytest.raises(rc.NeverPossible):
        t.insert({"x": np.arange(4)})
    assert everything(t) == [0, 1]


def test_shared_cells_count_in_bytes():
    t = table()
    t.insert({"x": np.arange(4)}, rows_per_item=2, shared={"p": [b"abc", b"defgh"]})
    assert t.nbytes == 4 * 8 + 8


def test_leased_items_count_in_len_and_in_capacity():
    t = table(n=3, rows=3, sampler=rc.Fifo())
    t.take(2, lease=60)
    assert len(t) == 3
    t.insert({"x": [3]})
    assert everything(t) == [0, 1, 3]


def test_capacity_is_never_exceeded_even_for_a_moment():
    t = table(n=5)
    sizes = []

    class Watch:
        def follow(self, effect):
            sizes.append((len(t), t.nbytes))

        def settle(self, number):
            pass

    t.follow(Watch())
    for i in range(20):
        t.insert({"x": [i, i]})
    assert max(size for size, _ in sizes) == 5
    assert max(nbytes for _, nbytes in sizes) == 40


def test_amending_evicts_others_where_the_capacity_in_bytes_is_reached():
    columns = {"x": rc.Column("int64"), "y": rc.Column("float64", (10,), optional=True)}
    t = table(capacity_bytes=120, signature=columns)
    keys = t.insert({"x": np.arange(6)})
    assert t.amend(keys[3:4], {"y": np.ones((1, 10))}).tolist() == [True]
    assert t.nbytes <= 120
    assert 3 in everything(t)
    assert len(t) == 5


def test_amending_more_than_the_capacity_in_bytes_changes_nothing():
    columns = {"x": rc.Column("int64"), "y": rc.Column("float64", (10,), optional=True)}
    t = table(capacity_bytes=120, signature=columns)
    keys = t.insert({"x": np.arange(6)})
    before = t.stats()
    with pytest.raises(rc.NeverPossible, match="amend"):
        t.amend(keys, {"y": np.ones((6, 10))})
    assert t.stats() == before
    assert t.delete(keys) == 6


# -- keys


def test_keys_are_an_origin_of_20_bits_and_a_counter_of_44():
    t = table(n=4)
    keys = np.concatenate([t.insert({"x": [i, i]}) for i in range(4)])
    assert len(set((keys >> np.uint64(COUNTER_BITS)).tolist())) == 1
    counters = keys & np.uint64((1 << COUNTER_BITS) - 1)
    assert np.diff(counters.astype(np.int64)).tolist() == [1] * 7


def test_origins_differ_between_tables():
    origins = {int(table().insert({"x": [1]})[0]) >> COUNTER_BITS for _ in range(20)}
    assert len(origins) > 15


def test_a_key_is_never_reused():
    t = table(n=3)
    seen = Counter()
    for i in range(30):
        seen.update(t.insert({"x": [i]}).tolist())
        if i % 7 == 0:
            t.clear()
    assert max(seen.values()) == 1


def test_keys_of_items_that_have_gone_change_nothing_and_say_so():
    t = table(n=2)
    old = t.insert({"x": [0, 1]})
    new = t.insert({"x": [2, 3]})
    assert t.update(old, priority=9.0).tolist() == [False, False]
    assert t.delete(old) == 0
    assert t.get(new).info.priority.tolist() == [1.0, 1.0]
    with pytest.raises(rc.UnknownKey):
        t.get(old)


def test_a_batch_of_updates_with_unknown_keys_applies_the_known_ones():
    t = table()
    keys = t.insert({"x": [0, 1]})
    mixed = np.array([keys[1], 12345, keys[0]], np.uint64)
    assert t.update(mixed, priority=[5.0, 6.0, 7.0]).tolist() == [True, False, True]
    assert t.get(keys).info.priority.tolist() == [7.0, 5.0]


def test_keys_survive_a_trip_through_python_ints():
    t = table()
    keys = t.insert({"x": [0, 1]})
    assert t.get(keys.tolist())["x"].tolist() == [0, 1]
    assert t.get([int(keys[0]), keys[1]])["x"].tolist() == [0, 1]
    assert t.update([keys[0], 5, 2**64 - 1], priority=1.0).tolist() == [True, False, False]
    assert t.get(int(keys[1]))["x"].tolist() == [1]


# -- sample


def test_sampled_items_stay():
    t = table(rows=3)
    t.sample(5)
    assert len(t) == 3


def test_a_batch_is_all_or_nothing():
    t = table(rows=3, sampler=rc.Fifo())
    with pytest.raises(TimeoutError):
        t.sample(4, timeout=0)
    with pytest.raises(TimeoutError):
        t.take(4, timeout=0)
    assert t.stats()["samples"] == 0
    assert t.take(3)["x"].tolist() == [0, 1, 2]


def test_an_item_that_reaches_max_times_sampled_leaves_before_the_next_draw():
    t = table(rows=4, max_times_sampled=2)
    drawn = Counter(t.sample(8)["x"].tolist())
    assert drawn == {0: 2, 1: 2, 2: 2, 3: 2}
    assert len(t) == 0


def test_max_times_sampled_zero_means_no_limit():
    t = table(rows=1)
    t.sample(1000)
    assert len(t) == 1


def test_prioritized_items_leave_when_worn_and_the_others_are_drawn():
    t = table(sampler=rc.Prioritized(alpha=1.0), max_times_sampled=1)
    t.insert({"x": np.arange(3)}, priority=[1e6, 1.0, 0.0])
    assert sorted(t.sample(3)["x"].tolist()) == [0, 1, 2]


def test_orders_give_n_different_items_and_walk_through_the_table():
    t = table(rows=5, sampler=rc.Fifo())
    drawn = [t.sample(2)["x"].tolist() for _ in range(5)]
    assert drawn == [[0, 1], [2, 3], [4, 0], [1, 2], [3, 4]]


def test_orders_ignore_replace():
    t = table(rows=3, sampler=rc.Lifo())
    assert t.sample(3, replace=True)["x"].tolist() == [2, 1, 0]
    assert t.sample(3, replace=False)["x"].tolist() == [2, 1, 0]


def test_replace_false_gives_different_items():
    for sampler in (rc.Uniform(), rc.Prioritized(alpha=1.0)):
        t = table(n=50, rows=50, sampler=sampler)
        for _ in range(20):
            assert len(set(t.sample(40, replace=False)["x"].tolist())) == 40


def test_without_replacement_zero_priorities_come_once_no_positive_is_left():
    t = table(sampler=rc.Prioritized(alpha=1.0))
    t.insert({"x": np.arange(4)}, priority=[0.0, 3.0, 0.0, 1.0])
    for _ in range(20):
        drawn = t.sample(4, replace=False)["x"].tolist()
        assert set(drawn[:2]) == {1, 3}
        assert set(drawn[2:]) == {0, 2}


def test_same_seed_and_same_calls_give_the_same_draws():
    def run(seed):
        t = table(n=100, sampler=rc.Prioritized(), seed=seed)
        t.insert({"x": np.arange(100)}, priority=np.arange(100.0))
        draws = [t.sample(10)["x"].tolist(), t.sample(5, replace=False)["x"].tolist()]
        t.update(t.core.storage.find(None, None, visible=True)[:50], priority=7.0)
        return [*draws, t.sample(10)["x"].tolist(), t.take(3)["x"].tolist()]

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_tables_without_a_seed_draw_differently():
    draws = set()
    for _ in range(4):
        t = table(n=1000, seed=None)
        t.insert({"x": np.arange(1000)})
        draws.add(tuple(t.sample(8)["x"].tolist()))
    assert len(draws) > 1


# -- take


def test_take_hands_out_in_the_samplers_order_and_removes():
    t = table(rows=4, sampler=rc.Lifo())
    assert t.take(3)["x"].tolist() == [3, 2, 1]
    assert everything(t) == [0]


def test_take_with_a_random_sampler_gives_different_items():
    for sampler in (rc.Uniform(), rc.Prioritized(), rc.Mixed([(rc.Fifo(), 1), (rc.Uniform(), 1)])):
        t = table(rows=10, sampler=sampler)
        assert sorted(t.take(10)["x"].tolist()) == list(range(10))
        assert len(t) == 0


def test_partial_take_gives_what_is_there():
    t = table(rows=3, sampler=rc.Fifo())
    assert t.take(8, partial=True)["x"].tolist() == [0, 1, 2]


def test_partial_take_may_ask_for_more_than_the_capacity():
    t = table(n=3, rows=3, sampler=rc.Fifo())
    assert len(t.take(8, partial=True)["x"]) == 3


def test_partial_take_takes_no_more_than_the_limiter_allows():
    limiter = rc.SampleToInsertRatio(1.0, min_size=2, error_buffer=(2.0, 100.0))
    t = table(rows=5, limiter=limiter, sampler=rc.Fifo())
    assert t.take(5, partial=True)["x"].tolist() == [0, 1, 2]


def test_partial_take_goes_with_an_endless_error_buffer():
    t = table(rows=3, limiter=rc.SampleToInsertRatio(1.0, 1), sampler=rc.Fifo())
    assert len(t.take(2, partial=True)["x"]) == 2


def test_take_where():
    t = table(sampler=rc.Fifo(), partition_by=("task",))
    t.insert({"x": np.arange(4)}, task=["a", "b", "a", "b"])
    assert t.take(2, where=rc.field("task") == "b")["x"].tolist() == [1, 3]
    assert everything(t) == [0, 2]


# -- a table as a queue, and as a stack


def test_queue_is_first_in_first_out_each_item_once():
    q = rc.Table.queue("q", 5)
    q.insert({"x": [0, 1, 2]})
    assert q.sample(2)["x"].tolist() == [0, 1]
    q.insert({"x": [3]})
    assert q.sample(2)["x"].tolist() == [2, 3]
    assert len(q) == 0


def test_stack_is_last_in_first_out():
    s = rc.Table.stack("s", 5)
    s.insert({"x": [0, 1, 2]})
    assert s.sample(1)["x"].tolist() == [2]
    s.insert({"x": [3]})
    assert s.take(3)["x"].tolist() == [3, 1, 0]


@pytest.mark.parametrize("undo", ["give back", "lapse", "delete", "clear", "confirm"])
def test_queue_works_as_before_after_items_were_leased_or_deleted(undo):
    clock = rc.ManualClock()
    q = rc.Table.queue("q", 3, clock=clock)
    keys = q.insert({"x": [0, 1, 2]})
    left = []
    if undo in ("give back", "lapse", "confirm"):
        lease = q.take(2, lease=10).info.lease
        if undo == "give back":
            q.give_back(lease)
            left = [0, 1, 2]
        elif undo == "lapse":
            clock.advance(11)
            left = [0, 1, 2]
        else:
            q.confirm(lease)
            left = [2]
    elif undo == "delete":
        q.delete(keys[1:2])
        left = [0, 2]
    else:
        q.clear()
    more = 3 - len(left)
    if more:
        q.insert({"x": np.arange(10, 10 + more)}, timeout=0)
    with pytest.raises(TimeoutError):
        q.insert({"x": [99]}, timeout=0)
    assert q.sample(3)["x"].tolist() == [*left, *range(10, 10 + more)]
    q.insert({"x": [7, 8, 9]}, timeout=0)
    assert q.take(3)["x"].tolist() == [7, 8, 9]


# -- where


@pytest.mark.parametrize(
    "sampler",
    [
        rc.Fifo(),
        rc.Lifo(),
        rc.Uniform(),
        rc.Prioritized(),
        rc.Smallest("score"),
        rc.Largest("score"),
        rc.StalestFirst(),
        rc.FreshestFirst(),
        rc.Mixed([(rc.Fifo(), 1), (rc.Prioritized(), 1)]),
    ],
)
@pytest.mark.parametrize("partition_by", [(), ("task",)])
def test_where_combines_with_any_sampler(sampler, partition_by):
    t = table(n=100, sampler=sampler, partition_by=partition_by, tags={"score": float})
    x = np.arange(60)
    t.insert({"x": x}, task=["a", "b", "c"] * 20, version=x, score=x / 60, priority=x + 1.0)
    is_b = rc.field("task") == "b"
    for where in (is_b, is_b & (rc.field("score") > 0.5), {"task": ["a", "b"]}):
        allowed = {int(v) for v in x if where_holds(where, v)}
        got = t.sample(4, where=where)["x"].tolist()
        got += t.sample(4, where=where, replace=False)["x"].tolist()
        got += t.take(3, where=where)["x"].tolist()
        assert set(got) <= allowed


def where_holds(where, x):
    if isinstance(where, dict):
        return x % 3 in (0, 1)
    return x % 3 == 1 and (" and " not in str(where) or x / 60 > 0.5)


def test_equality_on_a_partition_does_not_look_at_the_other_items():
    visits = {}
    for size in (1_000, 64_000):
        t = table(n=size, sampler=rc.Fifo(), partition_by=("task",))
        t.insert({"x": np.arange(size)}, task=["rare" if i < 50 else "often" for i in range(size)])
        where = rc.field("task") == "rare"
        t.take(5, where=where)
        before = t.core.storage.visits
        t.take(10, where=where)
        assert t.count(where) == 35
        visits[size] = t.core.storage.visits - before
    assert visits[64_000] <= 2 * visits[1_000] + 16


def test_items_change_partition_when_their_field_is_updated():
    t = table(rows=0, sampler=rc.Fifo(), partition_by=("status",))
    keys = t.insert({"x": np.arange(4)}, status="new")
    t.update(keys[1:3], status="done")
    assert t.count(rc.field("status") == "done") == 2
    assert t.take(2, where=rc.field("status") == "done")["x"].tolist() == [1, 2]
    assert t.counts("status") == {"new": 2}


# -- update, amend, add_column, delete


def test_update_changes_priority_task_status_version_and_tags():
    t = table(tags={"score": float, "level": int, "hard": bool, "genre": str})
    keys = t.insert({"x": [0, 1]})
    t.update(
        keys, priority=[2.0, 3.0], task="t", status=["a", "b"], version=4, score=0.5, level=[1, 2],
        hard=True, genre="g",
    )  # fmt: skip
    info = t.get(keys).info
    assert info.priority.tolist() == [2.0, 3.0]
    assert info.task.tolist() == ["t", "t"]
    assert info.status.tolist() == ["a", "b"]
    assert info.version.tolist() == [4, 4]
    assert info.score.tolist() == [0.5, 0.5]
    assert info.level.tolist() == [1, 2]
    assert info.hard.tolist() == [True, True]
    assert info.genre.tolist() == ["g", "g"]


def test_update_to_none_makes_a_field_absent():
    t = table()
    keys = t.insert({"x": [0]}, task="a", version=3)
    t.update(keys, task=None, version=None)
    assert t.get(keys).info.task.tolist() == [None]
    assert t.count(rc.field("version") == None) == 1  # noqa: E711


def test_update_of_a_key_that_is_named_twice_keeps_the_last_value():
    for sampler in (rc.Prioritized(), rc.Largest("priority")):
        t = table(sampler=sampler)
        keys = t.insert({"x": [0]})
        assert t.update(keys.repeat(2), priority=[5.0, 2.0]).tolist() == [True, True]
        assert t.get(keys).info.priority.tolist() == [2.0]


def test_update_of_leased_items_holds_when_they_come_back():
    t = table(rows=2, sampler=rc.Largest("priority"))
    batch = t.take(2, lease=60)
    t.update(batch.info.keys, priority=[1.0, 8.0])
    t.give_back(batch.info.lease)
    assert t.take(1).info.keys.tolist() == batch.info.keys[1:].tolist()


def test_amend_fills_absent_cells():
    columns = {"x": rc.Column("int64"), "text": rc.Column("str", optional=True)}
    t = table(signature=columns)
    keys = t.insert({"x": [0, 1, 2]})
    assert t.amend(keys[[2, 0]], {"text": ["c", None]}).tolist() == [True, True]
    batch = t.get(keys)
    assert batch.present["text"].tolist() == [False, False, True]
    assert batch["text"].to_list()[2] == "c"
    assert batch["x"].tolist() == [0, 1, 2]


def test_amend_refuses_a_cell_that_is_there():
    t = table(signature={"x": rc.Column("int64"), "y": rc.Column("int8", optional=True)})
    keys = t.insert({"x": [0, 1], "y": [5, None]})
    with pytest.raises(rc.InvalidValue, match=r"'y'.*already"):
        t.amend(keys, {"y": [6, 7]})
    assert t.get(keys)["y"].tolist() == [5, 0]


def test_amend_says_which_keys_were_there_and_fills_those():
    t = table(signature={"x": rc.Column("int64"), "y": rc.Column("int8", optional=True)})
    keys = t.insert({"x": [0, 1]})
    mixed = np.array([keys[0], 777, keys[1]], np.uint64)
    assert t.amend(mixed, {"y": [1, 2, 3]}).tolist() == [True, False, True]
    assert t.get(keys)["y"].tolist() == [1, 3]


def test_amend_of_groups_with_keys_that_have_gone_needs_rows_per_item():
    t = table(signature={"x": rc.Column("int64"), "y": rc.Column("int8", optional=True)})
    keys = t.insert({"x": np.arange(6)}, rows_per_item=[1, 2, 3])
    t.delete(keys[:1])
    with pytest.raises(rc.SchemaError, match="rows_per_item"):
        t.amend(keys, {"y": np.arange(6, dtype=np.int8)})
    t.amend(keys, {"y": np.arange(6, dtype=np.int8)}, rows_per_item=[1, 2, 3])
    assert t.get(keys[1:])["y"].tolist() == [1, 2, 3, 4, 5]


def test_amend_goes_by_rows_per_item_where_it_is_given():
    table = rc.Table(
        "t",
        capacity=9,
        signature={"x": rc.Column("int64"), "y": rc.Column("float32", optional=True)},
    )
    keys = table.insert({"x": [1, 2, 3]}, rows_per_item=[2, 1])
    with pytest.raises(rc.SchemaError, match="rows_per_item"):
        table.amend(keys, {"y": [1.0, 2.0, 3.0]}, rows_per_item=[1, 2])
    assert not table.get(keys).present["y"].any()
    table.amend(keys, {"y": [1.0, 2.0, 3.0]}, rows_per_item=[2, 1])
    assert table.get(keys)["y"].tolist() == [1.0, 2.0, 3.0]


def test_amend_refuses_shared_columns_and_says_why():
    table = rc.Table(
        "t",
        capacity=9,
        signature={
            "x": rc.Column("int64"),
            "s": rc.Column("int64", shared=True, optional=True),
        },
    )
    keys = table.insert({"x": [1]})
    with pytest.raises(rc.SchemaError, match="'s' is a shared column, which cannot be filled"):
        table.amend(keys, {"s": [1]})


def test_amending_disturbs_nobody_who_reads():
    t = table(signature={"x": rc.Column("int64"), "y": rc.Column("int8", optional=True)})
    keys = t.insert({"x": [0, 1]})
    batch = t.get(keys)
    t.amend(keys, {"y": [1, 2]})
    assert batch.present["y"].tolist() == [False, False]


def test_a_new_column_is_absent_in_stored_items_and_costs_them_nothing():
    t = table()
    keys = t.insert({"x": [0, 1]})
    t.add_column("ref", "float32", (3,))
    assert t.nbytes == 16
    assert t.get(keys).present["ref"].tolist() == [False, False]
    new = t.insert({"x": [2], "ref": np.ones((1, 3), np.float32)})
    assert t.nbytes == 16 + 8 + 12
    both = t.get(np.concatenate([keys, new]))
    assert both.present["ref"].tolist() == [False, False, True]
    assert both["ref"][2].tolist() == [1.0, 1.0, 1.0]


def test_inserts_without_the_new_column_still_fit():
    t = table(rows=1)
    t.add_column("text", "str")
    t.insert({"x": np.arange(2)})
    assert len(t) == 3


def test_delete_by_key_by_query_and_by_both():
    t = table(tags={"score": float})
    keys = t.insert({"x": np.arange(6)}, score=np.arange(6) / 10)
    assert t.delete(keys[:2]) == 2
    assert t.delete(where=rc.field("score") > 0.4) == 1
    assert t.delete(keys, where=rc.field("score") < 0.3) == 1
    assert everything(t) == [3, 4]


def test_delete_counts_a_key_once():
    t = table()
    keys = t.insert({"x": [0, 1]})
    assert t.delete(keys.repeat(2)) == 2
    assert t.delete(keys) == 0


def test_clear_removes_everything_and_ends_leases():
    t = table(rows=3, sampler=rc.Fifo())
    lease = t.take(1, lease=60).info.lease
    t.clear()
    assert len(t) == t.nbytes == t.stats()["leased"] == t.stats()["leases"] == 0
    with pytest.raises(rc.LeaseExpired):
        t.confirm(lease)
    t.insert({"x": [5]})
    assert everything(t) == [5]


# -- looking


def test_looking_touches_no_counter():
    t = table(rows=3, tags={"score": float})
    keys = t.core.storage.find(None, None, visible=True)
    before = t.stats()
    t.get(keys)
    t.count()
    t.count(rc.field("score") > 0.5)
    t.counts("task")
    len(t)
    repr(t)
    assert t.stats() == before
    assert t.get(keys).info.times_sampled.tolist() == [0, 0, 0]


def test_get_reads_the_named_columns_only():
    t = table()
    keys = t.insert({"x": [0], "obs": {"a": [1], "b": [2]}})
    assert list(t.get(keys, ["x"]).columns) == ["x"]
    assert list(t.get(keys, "obs").columns) == ["obs.a", "obs.b"]
    assert list(t.get(keys, ["obs.b"]).columns) == ["obs.b"]


def test_get_keeps_order_and_repetition_of_keys():
    t = table()
    keys = t.insert({"x": [0, 1, 2]})
    assert t.get(keys[[2, 0, 2]])["x"].tolist() == [2, 0, 2]


def test_get_reads_leased_items_too():
    t = table(rows=2)
    keys = t.take(2, lease=60).info.keys
    assert sorted(t.get(keys)["x"].tolist()) == [0, 1]


def test_counts_are_grouped():
    for partition_by in ((), ("task",), ("task", "status")):
        t = table(partition_by=partition_by)
        t.insert({"x": np.arange(4)}, task=["a", "b", "a", None], status=["n", "n", "d", "n"])
        assert t.counts("task") == {"a": 2, "b": 1, None: 1}
        assert t.counts("task", "status") == {
            ("a", "n"): 1, ("b", "n"): 1, ("a", "d"): 1, (None, "n"): 1,
        }  # fmt: skip


def test_count_and_len_include_leased_items():
    t = table(rows=3, partition_by=("task",))
    t.take(1, lease=60)
    assert t.count() == len(t) == 3
    assert t.count(rc.field("task") == None) == 3  # noqa: E711


def test_stats_count_inserts_samples_and_removals():
    t = table(n=4, sampler=rc.Fifo())
    t.insert({"x": np.arange(4)})
    t.insert({"x": np.arange(2)})
    t.sample(3)
    t.take(1)
    t.delete(where=rc.field("times_sampled") > 0)
    stats = t.stats()
    assert (stats["inserts"], stats["samples"]) == (6, 4)
    assert stats["removals"] == sum(stats["removed"].values()) == 6 - len(t)
    assert stats["removed"]["evicted"] == 2
    assert stats["removed"]["taken"] == 1
    assert stats["size"] == len(t)
    assert stats["capacity"] == 4


def test_a_table_closes_at_the_end_of_its_block():
    with table(rows=1) as t:
        assert t.count() == 1
    with pytest.raises(rc.TableClosed):
        t.sample(1)


# -- validation


def test_the_first_insert_fixes_columns_dtypes_and_row_shapes():
    t = table()
    t.insert({"x": np.zeros((2, 2), np.float32), "s": ["a", "b"], "r": [[1, 2], [3]]})
    assert t.columns == {
        "x": rc.Column("float32", (2,)),
        "s": rc.Column("str"),
        "r": rc.Column("int64", ragged=True),
    }


def test_a_timed_out_first_insert_fixes_nothing():
    t = table(capacity_bytes=100)
    with pytest.raises(rc.NeverPossible):
        t.insert({"x": np.zeros((2, 100))})
    assert t.columns == {}
    t.insert({"other": ["a"]})
    assert list(t.columns) == ["other"]


def test_an_absent_cell_costs_no_payload_and_comes_back_marked():
    columns = {"x": rc.Column("int64"), "image": rc.Column("uint8", (100,), optional=True)}
    t = table(signature=columns)
    keys = t.insert({"x": [0, 1], "image": [None, np.ones(100, np.uint8)]})
    assert t.nbytes == 16 + 100
    assert t.get(keys).present["image"].tolist() == [False, True]


def test_nested_columns_come_back_nested():
    t = table()
    keys = t.insert({"obs": {"image": [[1, 2]], "text": ["a"]}, "reward": [1.0]})
    batch = t.get(keys)
    assert sorted(batch["obs"]) == ["image", "text"]
    assert sorted(batch) == ["obs", "reward"]


def test_a_batch_can_be_inserted_into_another_table():
    t, other = table(rows=4, sampler=rc.Fifo()), table()
    other.insert(t.sample(4))
    assert everything(other) == [0, 1, 2, 3]


def test_an_error_in_one_caller_leaves_the_table_usable_for_the_others():
    t = table(rows=3, sampler=rc.Fifo())
    for call in (
        lambda: t.insert({"x": np.zeros(1)}),
        lambda: t.update([1], priority=-1.0),
        lambda: t.get([1]),
        lambda: t.sample(99),
    ):
        with pytest.raises(rc.RecollectError):
            call()
    assert t.sample(3)["x"].tolist() == [0, 1, 2]


# -- storages and stores


def test_a_storage_serves_one_table():
    storage = rc.MemoryStorage()
    table(storage=storage)
    with pytest.raises(rc.InvalidValue, match="one per table"):
        table(storage=storage)


def test_a_store_has_its_tables_by_name():
    one, two = rc.Table("one", capacity=1), rc.Table("two", capacity=1)
    store = rc.Store([one, two])
    assert store["two"] is two
    assert list(store) == ["one", "two"]
    assert len(store) == 2
    assert "three" not in store
    store.close()
    with pytest.raises(rc.TableClosed):
        one.count()


def test_setting_alpha_rebuilds_exactly():
    t = table(n=100, sampler=rc.Prioritized(alpha=0.3))
    t.insert({"x": np.arange(50)}, priority=np.arange(50.0))
    t.sample(3)
    t.sampler = rc.Prioritized(alpha=1.0)
    batch = t.sample(20)
    assert np.allclose(batch.info.probability, batch["x"] / np.arange(50.0).sum(), rtol=1e-12)


def test_rules_change_while_running():
    t = table(rows=4, sampler=rc.Fifo())
    t.sampler = rc.Lifo()
    t.remover = rc.Lifo()
    assert t.sample(1)["x"].tolist() == [3]
    t.insert({"x": np.arange(10, 17)})
    assert everything(t) == [0, 1, 2, *range(10, 17)]


def test_bytes_that_hold_min_size_items_exactly_are_enough():
    limiter = rc.MinSize(10)
    t = rc.Table("t", capacity=100, capacity_bytes=80, limiter=limiter, sampler=rc.Fifo())
    t.insert({"x": np.arange(12)[:10]}, timeout=0)
    assert t.sample(10, timeout=0)["x"].tolist() == list(range(10))
    ragged = {"x": rc.Column("int64", ragged=True), "y": rc.Column("int64", optional=True)}
    rc.Table("t", capacity=100, capacity_bytes=8, signature=ragged, limiter=limiter)


@pytest.mark.parametrize(
    "seen_as",
    [
        lambda array: np.repeat(array, 2)[::2],
        lambda array: np.frombuffer(array.tobytes(), array.dtype),  # nobody may write into it
        lambda array: array[::-1].copy()[::-1],
        lambda array: array.astype(array.dtype.newbyteorder(">")),
    ],
    ids=["strided", "read-only", "backwards", "foreign order"],
)
@pytest.mark.parametrize("storage", [rc.MemoryStorage, rc.FrameStorage])
def test_keys_and_values_may_be_arrays_of_any_layout(storage, seen_as):
    """Kernels take them as they are, where they can."""
    x, priority = np.arange(20), np.arange(20) + 0.5
    table = rc.Table("t", capacity=30, sampler=rc.Prioritized(), storage=storage())
    for _ in range(3):
        keys = table.insert({"x": x}, priority=seen_as(priority), version=seen_as(x))
    assert table.get(seen_as(keys))["x"].tolist() == x.tolist()
    assert table.get(keys).info.priority.tolist() == priority.tolist()
    assert table.get(keys).info.version.tolist() == x.tolist()
    assert table.update(seen_as(keys), priority=seen_as(priority * 2), version=seen_as(x + 1)).all()
    assert table.update(seen_as(keys), priority=seen_as(priority * 3)).all()
    assert table.get(keys).info.priority.tolist() == (priority * 3).tolist()
    assert table.get(keys).info.version.tolist() == (x + 1).tolist()
    assert table.delete(seen_as(keys[:7])) == 7
