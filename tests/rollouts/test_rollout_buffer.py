"""`RolloutBuffer`: putting, replacing, room, taking in order, counting; tasks never mix."""

from __future__ import annotations

import numpy as np
import pytest
from callers import Caller

import recollect as rc
from recollect import Status

PATIENT = rc.Staleness(max_staleness=99)


def rollout(tokens=2, **options):
    options.setdefault("finish_reason", "stop")
    return rc.Rollout([1], list(range(tokens)), **options)


def group(name=None, *rollouts, task="math", **options):
    return rc.Group(rollouts or [rollout()], task=task, group_id=name, **options)


def made(**options):
    return rc.RolloutBuffer(**{"staleness": PATIENT, "order": rc.Fifo(), **options}).sync


def names(groups):
    return [g.group_id for g in groups]


def left(buffer, task="math"):
    return buffer.accounts()[task]["left"]


# -- order


def test_fifo_order():
    buffer = made()
    for name, version in [("a", 3), ("b", 1), ("c", 2)]:
        buffer.put(group(name), version=version)
    assert names(buffer.take(3)) == ["a", "b", "c"]


def test_stalest_first_arrival_order_on_ties():
    buffer = rc.RolloutBuffer(staleness=PATIENT).sync  # the order where none is given
    for name, version in [("a", 3), ("b", 1), ("c", 3), ("d", 1), ("e", None)]:
        buffer.put(group(name), version=version)
    assert names(buffer.take(5)) == ["b", "d", "a", "c", "e"]


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (rc.Lifo(), ["c", "b", "a"]),
        (rc.FreshestFirst(), ["a", "c", "b"]),
        (rc.Largest("score"), ["b", "c", "a"]),
        (rc.Smallest("score"), ["a", "c", "b"]),
        (rc.Largest("priority"), ["a", "b", "c"]),
    ],
)
def test_every_order_works(order, expected):
    buffer = made(order=order, tags={"score": float})
    for name, version, score in [("a", 3, 0.1), ("b", 1, 0.9), ("c", 2, 0.5)]:
        buffer.put(group(name, extras={"score": score}), version=version)
    assert names(buffer.take(3)) == expected


def test_random_orders_hand_out_each_group_once():
    for order in (rc.Uniform(), rc.Prioritized(), rc.Prioritized(half_life=2.0)):
        buffer = made(order=order, seed=0)
        for n in range(20):
            buffer.put(group(str(n)), version=n)
        assert sorted(map(int, names(buffer.take(20)))) == list(range(20))


# -- putting


def test_put_returns_a_key_that_reads_the_group():
    buffer = made()
    given = group("a", rollout(3))
    key = buffer.put(given, version=0)
    assert isinstance(key, int)
    (back,) = buffer.get([key])
    assert back.key == key == buffer.find("a")
    assert back.group_id == "a"
    with pytest.raises(rc.UnknownKey):
        buffer.get([key + 1])


def test_a_stored_group_id_is_replaced():
    buffer = made(max_uses=3)
    old = buffer.put(group("a", rollout(2)), version=0)
    buffer.put(group("b"), version=0)
    buffer.sample(2)
    events = buffer.events("discarded")
    new = buffer.put(group("a", rollout(5)), version=0)
    assert new != old
    assert len(buffer) == 2
    assert [(e.reason, e.key) for e in next(events)] == [("replaced", old)]
    groups = buffer.get([new])
    assert groups[0].times_used == 0
    assert groups[0][0].num_tokens == 5
    assert names(buffer.take(2)) == ["b", "a"]


def test_replacing_needs_no_room():
    for overflow in ("block", "drop_stalest", "drop_newest", "raise"):
        buffer = made(capacity=2, overflow=overflow)
        buffer.put(group("a"), version=0)
        buffer.put(group("b"), version=0)
        assert buffer.put(group("a"), version=0) is not None, overflow
        assert names(buffer.take(2)) == ["b", "a"]


def test_a_leased_group_id_refuses_to_be_replaced():
    buffer = made()
    buffer.put(group("a"), version=0)
    lease = buffer.take(1, lease=True).lease
    with pytest.raises(rc.InvalidValue, match=r"'a' is leased"):
        buffer.put(group("a"), version=0)
    buffer.give_back(lease)
    assert buffer.put(group("a"), version=0) is not None
    assert len(buffer) == 1


def test_a_leased_group_id_refuses_also_what_is_too_old():
    buffer = made(staleness=rc.Staleness(on_expire="discard"))
    buffer.put(group("a"), version=0)
    buffer.take(1, lease=True)
    buffer.advance(9)
    with pytest.raises(rc.InvalidValue, match="leased"):
        buffer.put(group("a"), version=0)


def test_a_group_id_may_come_again_after_it_left():
    buffer = made()
    first = buffer.put(group("a"), version=0)
    buffer.take(1)
    second = buffer.put(group("a"), version=0)
    assert second not in (None, first)


def test_keys_are_never_reused():
    buffer = made()
    keys = []
    for _ in range(50):
        keys.append(buffer.put(group("same"), version=0))
        if len(keys) % 3 == 0:
            buffer.take(1)
    assert len(set(keys)) == 50


# -- room


def filled(overflow, **options):
    buffer = made(capacity=3, overflow=overflow, **options)
    for name, version in [("a", 2), ("b", 0), ("c", 1)]:
        buffer.put(group(name), version=version)
    return buffer


def test_a_full_buffer_blocks():
    buffer = filled("block")
    caller = Caller(lambda: buffer.put(group("d"), version=3))
    assert caller.waits()
    assert len(buffer) == 3
    buffer.take(1)
    assert caller.done() is not None
    assert names(buffer.take(3)) == ["b", "c", "d"]


def test_a_full_buffer_drops_the_stalest():
    buffer = filled("drop_stalest")
    events = buffer.events("discarded")
    assert buffer.put(group("d"), version=3) is not None
    assert [(e.reason, e.group_id) for e in next(events)] == [("overflow", "b")]
    assert len(buffer) == 3
    assert left(buffer) == {"overflow": 1}


def test_a_full_buffer_drops_the_newcomer():
    buffer = filled("drop_newest")
    events = buffer.events("discarded")
    newcomer = group("d")
    assert buffer.put(newcomer, version=3) is None
    (event,) = next(events)
    assert (event.reason, event.group_id, event.key) == ("overflow", "d", None)
    assert event.group.group_id == "d"
    assert names(buffer.take(3)) == ["a", "b", "c"]


def test_a_full_buffer_raises():
    buffer = filled("raise")
    with pytest.raises(rc.BufferFull, match="3 of 3 groups"):
        buffer.put(group("d"), version=3)
    assert names(buffer.take(3)) == ["a", "b", "c"]
    assert "d" not in names(buffer.take(9))
    assert issubclass(rc.BufferFull, rc.RecollectError)


def test_leased_groups_take_room_and_are_never_dropped():
    buffer = filled("drop_stalest")
    lease = buffer.take(2, lease=True).lease
    buffer.put(group("d"), version=9)
    assert buffer.count("math") == 1
    rest = buffer.take(1, lease=True)
    assert names(rest) == ["d"]
    caller = Caller(lambda: buffer.put(group("e"), version=9))
    assert caller.waits()
    assert len(buffer) == 3
    buffer.confirm(lease)
    assert caller.done() is not None


def test_capacity_in_bytes_holds_and_counts_blobs():
    image = b"x" * 4000
    buffer = made(capacity_bytes=10_000, overflow="drop_stalest")
    for n in range(20):
        buffer.put(group(str(n), rollout(100), blobs={"image": [image]}), version=n)
        assert buffer.nbytes <= 10_000
    assert 4 <= len(buffer) < 20
    buffer.put(group("other", rollout(100), blobs={"image": [b"y" * 4000]}), version=30)
    assert buffer.nbytes <= 10_000
    with pytest.raises(rc.NeverPossible, match="never fits"):
        buffer.put(group("huge", blobs={"image": [b"z" * 20_000]}), version=30)


@pytest.mark.parametrize("overflow", ["block", "drop_newest", "raise"])
def test_capacity_in_bytes_follows_the_overflow(overflow):
    buffer = made(capacity_bytes=3000, overflow=overflow)
    while True:
        before = buffer.nbytes
        buffer.put(group(None, rollout(100)), version=0)
        if buffer.nbytes + (buffer.nbytes - before) > 3000:
            break
    stored = len(buffer)
    if overflow == "block":
        caller = Caller(lambda: buffer.put(group("late", rollout(100)), version=0))
        assert caller.waits()
        buffer.take(1)
        assert caller.done() is not None
    elif overflow == "drop_newest":
        assert buffer.put(group("late", rollout(100)), version=0) is None
    else:
        with pytest.raises(rc.BufferFull, match="bytes"):
            buffer.put(group("late", rollout(100)), version=0)
    assert len(buffer) == stored
    assert buffer.nbytes <= 3000


def test_a_group_that_replaces_another_may_use_the_bytes_of_its_blobs():
    buffer = made(capacity_bytes=1200, overflow="raise")
    buffer.put(group("a", blobs={"image": [b"x" * 700]}), version=0)
    buffer.put(group("a", blobs={"image": [b"y" * 700]}), version=0)
    assert buffer.nbytes <= 1200
    buffer.put(group("a", blobs={"image": [b"y" * 700, b"z" * 100]}), version=0)  # y stays
    assert (buffer.nbytes > 800, buffer.stats()["blobs"]) == (True, 2)
    buffer.put(group("b", blobs={"image": [b"y" * 700]}), version=0)
    with pytest.raises(rc.BufferFull):  # b refers to y, too, so it does not leave with a
        buffer.put(group("a", blobs={"image": [b"w" * 300]}), version=0)
    assert buffer.count() == 2


def test_a_put_that_waits_for_leased_bytes_drops_nothing():
    buffer = made(capacity_bytes=3000, overflow="drop_stalest")
    for name in "abcd":
        buffer.put(group(name, rollout(100)), version=0)
    lease = buffer.take(2, lease=True).lease
    caller = Caller(lambda: buffer.put(group("large", rollout(600)), version=0))
    assert caller.waits()
    assert names(buffer.take(9, lease=True)) == ["c", "d"], "they left for nothing"
    buffer.confirm(lease)
    buffer.release("")
    assert caller.done() is not None
    assert buffer.nbytes <= 3000


# -- reserving


def test_the_put_of_a_reserved_group_never_blocks():
    buffer = made(capacity=3)
    assert buffer.reserve(2, "math") == 2
    buffer.put(group("a", task="code"), version=0)
    other = Caller(lambda: buffer.put(group("b", task="code"), version=0))
    assert other.waits()
    assert buffer.put(group("c"), version=0) is not None
    assert buffer.put(group("d"), version=0) is not None
    assert len(buffer) == 3
    assert other.waits()
    buffer.take(1)
    other.done()


def test_reserve_promises_no_more_than_there_is():
    buffer = made(capacity=3)
    buffer.put(group(), version=0)
    assert buffer.reserve(5, "math") == 2
    assert buffer.reserve(1, "code") == 0
    assert buffer.unreserve(1, "math") == 1
    assert buffer.reserve(1, "code") == 1


def test_without_a_capacity_everything_can_be_reserved():
    buffer = made()
    assert buffer.reserve(1000, "math") == 1000


def test_giving_room_back_wakes_those_who_wait_for_it():
    buffer = made(capacity=1)
    buffer.reserve(1, "math")
    caller = Caller(lambda: buffer.put(group(task="code"), version=0))
    assert caller.waits()
    assert buffer.unreserve(5, "math") == 1
    assert caller.done() is not None


@pytest.mark.parametrize("overflow", ["drop_newest", "raise"])
def test_reserved_room_is_kept_under_every_overflow(overflow):
    buffer = made(capacity=2, overflow=overflow)
    buffer.reserve(1, "math")
    buffer.put(group(task="code"), version=0)
    if overflow == "raise":
        with pytest.raises(rc.BufferFull, match="promised"):
            buffer.put(group(task="code"), version=0)
    else:
        assert buffer.put(group(task="code"), version=0) is None
    assert buffer.put(group(), version=0) is not None


def test_a_reserved_put_that_is_discarded_gives_its_room_back():
    buffer = made(capacity=1, staleness=rc.Staleness(on_expire="discard"))
    buffer.advance(5)
    buffer.reserve(1, "math")
    assert buffer.put(group(), version=0) is None
    assert buffer.reserve(1, "math") == 1


# -- taking


def test_take_removes_up_to_n():
    buffer = made()
    for name in "abc":
        buffer.put(group(name), version=0)
    assert names(buffer.take(2)) == ["a", "b"]
    assert names(buffer.take(9)) == ["c"]
    assert len(buffer) == 0


@pytest.mark.parametrize("n", [0, -1, -100])
def test_taking_nothing_gives_an_empty_list(n):
    buffer = made()
    buffer.put(group(), version=0)
    assert buffer.take(n) == []
    assert buffer.take(n, lease=5) == []
    assert len(buffer) == 1


def test_take_from_an_empty_buffer_gives_an_empty_list():
    assert made().take(3) == []
    assert made().take(3, "math", "EXPIRED") == []


def test_take_by_task_and_status():
    buffer = made()
    buffer.put(group("a"), version=0)
    buffer.put(group("b", task="code"), version=0)
    buffer.put(group("c", rollout(finish_reason="abort")), version=0)
    assert names(buffer.take(9, "code")) == ["b"]
    assert names(buffer.take(9, status=Status.ABORTED)) == ["c"]
    assert names(buffer.take(9)) == ["a"]


def test_take_batch_takes_every_share_in_one_step():
    buffer = made()
    for n in range(3):
        buffer.put(group(f"m{n}"), version=0)
        buffer.put(group(f"c{n}", task="code"), version=0)
    taken = buffer.take_batch({"code": 2, "math": 1})
    assert list(taken.groups) == ["code", "math"]
    assert names(taken.groups["code"]) == ["c0", "c1"]
    assert names(taken.groups["math"]) == ["m0"]
    assert taken.batch.info.task.tolist() == ["code", "code", "math"]
    assert taken.lease is None
    assert len(taken) == 3
    assert len(buffer) == 3


def test_take_batch_takes_all_or_none():
    buffer = made()
    for _ in range(5):
        buffer.put(group(), version=0)
    with pytest.raises(TimeoutError, match=r"code needs 1 group, has 0"):
        buffer.take_batch({"math": 2, "code": 1}, timeout=0)
    assert buffer.count("math") == 5


def test_zero_sizes_give_empty_lists():
    buffer = made()
    buffer.put(group(), version=0)
    taken = buffer.take_batch({"math": 0, "code": 0}, timeout=0)
    assert taken.groups["math"] == []
    assert taken.groups["code"] == []
    assert buffer.take_batch({}, timeout=0).groups == {}
    taken = buffer.take_batch({"math": 1, "code": 0}, timeout=0)
    assert len(taken.groups["math"]) == 1
    assert taken.groups["code"] == []


def test_take_batch_advances_to_its_train_step_first():
    buffer = made(staleness=rc.Staleness())
    buffer.put(group("old"), version=0)
    buffer.put(group("new"), version=1)
    assert names(buffer.take_batch({"math": 1}, train_step=2).groups["math"]) == ["new"]
    assert buffer.count("math", "EXPIRED") == 1


def test_more_than_the_capacity_is_refused_at_once():
    buffer = made(capacity=4)
    with pytest.raises(rc.NeverPossible, match="capacity is 4"):
        buffer.take_batch({"math": 3, "code": 2})
    with pytest.raises(rc.NeverPossible, match="capacity is 4"):
        buffer.sample(5)


def test_where_chooses_among_the_ready():
    buffer = made(tags={"score": float, "std": float})
    for n in range(5):
        buffer.put(group(str(n), extras={"score": n / 4, "std": n % 2}), version=0)
    assert buffer.count("math", where=rc.field("score") > 0.4) == 3
    assert buffer.is_ready({"math": 2}, where=rc.field("std") > 0)
    assert not buffer.is_ready({"math": 3}, where=rc.field("std") > 0)
    taken = buffer.take_batch({"math": 2}, where=rc.field("std") > 0)
    assert names(taken.groups["math"]) == ["1", "3"]
    assert names(buffer.take(9, where=rc.parse("score >= 0.5"))) == ["2", "4"]


def test_tags_come_from_the_extras_of_the_group_or_of_its_rollouts():
    buffer = made(tags={"score": float, "kind": str, "level": int, "hard": bool})
    rollouts = [rollout(extras={"score": s, "kind": "x"}) for s in (0.0, 1.0)]
    buffer.put(group("a", *rollouts, extras={"level": 3, "hard": True}), version=0)
    info = buffer.take(1).info
    assert (info.score[0], info.kind[0], info.level[0], info.hard[0]) == (0.5, "x", 3, True)


# -- isolation and counting


def test_tasks_and_statuses_never_mix():
    buffer = made()
    for task in ("math", "code"):
        for reason in ("stop", "abort", "error"):
            buffer.put(group(None, rollout(finish_reason=reason), task=task), version=0)
    assert buffer.counts() == {
        (task, status): 1
        for task in ("math", "code")
        for status in (Status.COMPLETED, Status.ABORTED, Status.FAILED)
    }
    assert not buffer.is_ready({"math": 2})
    assert [g.status for g in buffer.take(9, "math")] == ["COMPLETED"]
    assert buffer.count("code", "COMPLETED") == 1
    assert buffer.count("math") == 2
    assert buffer.count(status="FAILED") == 2
    assert buffer.count() == len(buffer) == 5
    assert buffer.count("chat") == 0


def test_leased_groups_are_not_counted_and_are_in_len():
    buffer = made()
    for _ in range(3):
        buffer.put(group(), version=0)
    buffer.take(2, lease=True)
    assert (buffer.count("math"), len(buffer)) == (1, 3)
    account = buffer.accounts()["math"]
    assert (account["stored"], account["leased"], account["taken"]) == (1, 2, 2)


def two_buffers():
    buffers = [
        rc.RolloutBuffer(name=name, staleness=PATIENT, order=rc.Fifo(), needs=needs)
        for name, needs in (("training", ("reward",)), ("evaluation", ()))
    ]
    return buffers, rc.Store([buffer.table for buffer in buffers])


def test_several_buffers_share_one_store():
    (training, evaluation), store = two_buffers()
    training.sync.put(group("a"), version=0)
    evaluation.sync.put(group("b"), version=0)
    evaluation.sync.put(group("c"), version=0)
    assert (len(store["training"]), len(store["evaluation"])) == (1, 2)
    assert names(training.sync.take(9)) == ["a"]
    assert names(evaluation.sync.take(9)) == ["b", "c"]


def test_a_store_saves_its_buffers_whole(tmp_path):
    (training, evaluation), store = two_buffers()
    blobs = {"image": [b"cat"]}
    for name in "abc":
        training.sync.put(group(name, rollout(2, rollout_id=name), blobs=blobs), version=1)
    evaluation.sync.put(group("d", blobs=blobs), version=0)
    training.sync.annotate(["b"], 0, reward=[1.0])
    training.sync.confirm(training.sync.take(1, lease=True).lease)
    training.sync.take(1, lease=True)
    training.sync.advance(3)
    training.reserve(2, "math")
    store.save(tmp_path / "step-3")
    (restored, other), again = two_buffers()
    again.load(tmp_path / "step-3")
    assert restored.train_step == 3
    assert [restored.stats()[name] for name in ("blobs", "promised")] == [1, {}]
    account = restored.accounts()["math"]
    assert (account["put"], account["stored"], account["left"]) == (3, 2, {"trained": 1})
    assert names(restored.sync.claim(9, lacks="reward")) == ["c"]
    assert names(restored.sync.take_batch({"math": 1}).groups["math"]) == ["b"]
    assert restored.sync.annotate(["c"], 0, reward=[1.0]).tolist() == [True]
    [last] = restored.sync.take_batch({"math": 1}).groups["math"]
    assert (last.group_id, last.blobs) == ("c", blobs)
    assert restored.nbytes == 0
    assert names(other.sync.take(9)) == ["d"]


def test_a_buffer_and_a_table_are_not_taken_for_each_other(tmp_path):
    (training, _), store = two_buffers()
    training.sync.put(group("a"), version=0)
    store.save(tmp_path / "buffers")
    table = training.table
    options = {
        "tags": table.core.fields.tags,
        "partition_by": table.partition_by,
        "capacity": 1 << 40,
    }
    plain = rc.Store([rc.Table(name, **options) for name in store])
    with pytest.raises(rc.SnapshotError, match="saved as a rollout buffer and this is a table"):
        plain.load(tmp_path / "buffers")
    plain.save(tmp_path / "tables")
    with pytest.raises(rc.SnapshotError, match="saved as a table and this is a rollout buffer"):
        two_buffers()[1].load(tmp_path / "tables")


def test_discard_removes_by_key_with_a_reason():
    buffer = made()
    events = buffer.events("discarded")
    keys = [buffer.put(group(name), version=0) for name in "abc"]
    leased = buffer.take(1, lease=True)
    assert buffer.discard(keys, "filtered") == 2
    assert {(e.reason, e.group_id) for e in next(events)} == {("filtered", "b"), ("filtered", "c")}
    assert left(buffer) == {"filtered": 2}
    buffer.confirm(leased.lease)
    assert len(buffer) == 0


def test_a_closed_buffer_says_so():
    buffer = made()
    caller = Caller(lambda: buffer.take_batch({"math": 1}))
    assert caller.waits()
    buffer.close()
    with pytest.raises(rc.TableClosed):
        caller.done()
    with pytest.raises(rc.TableClosed):
        buffer.put(group(), version=0)


# -- the batch


def test_the_whole_result_is_one_ragged_batch():
    buffer = made()
    rng = np.random.default_rng(0)
    expected = []
    for n in range(40):
        lengths = rng.integers(0, 30, 8)
        rollouts = []
        for length in lengths:
            tokens = rng.integers(0, 1000, length).astype(np.int32)
            logprobs = rng.random(length).astype(np.float32)
            rollouts.append(
                rc.Rollout([1], tokens, logprobs=logprobs, reward=n, finish_reason="stop")
            )
            expected.append((tokens, logprobs, n))
        buffer.put(group(None, *rollouts), version=n)
    batch = buffer.take_batch({"math": 40}).batch
    assert batch.rows == 320
    for row, (tokens, logprobs, reward) in enumerate(expected):
        np.testing.assert_array_equal(batch["response_ids"][row], tokens)
        np.testing.assert_array_equal(batch["logprobs"][row], logprobs)
        assert batch["reward"][row] == reward
        assert batch["versions"][row].tolist() == [row // 8] * len(tokens)
    assert batch["loss_mask"].lengths.tolist() == [len(e[0]) for e in expected]


# -- what is archived when it comes


def assert_every_group_is_accounted_for(buffer, task="math"):
    account = buffer.accounts()[task]
    assert account["put"] == account["stored"] + account["leased"] + sum(account["left"].values())


@pytest.mark.parametrize("archive", [False, True])
def test_a_group_that_comes_archived_has_left_its_account(archive):
    buffer = made(archive=archive)
    buffer.put(group("a"), version=0)
    buffer.confirm(buffer.take(1, lease=True).lease)
    buffer.put(group("b", rollout(status="ARCHIVED")), version=0)
    assert buffer.counts()["math", Status.ARCHIVED] == 1 + archive
    account = buffer.accounts()["math"]
    assert (account["put"], account["left"]) == (2, {"trained": 1, "archived": 1})
    assert account["archived"] == 1 + archive
    assert_every_group_is_accounted_for(buffer)
    lease = buffer.take(9, status="ARCHIVED", lease=True).lease
    assert_every_group_is_accounted_for(buffer)
    buffer.give_back(lease)
    buffer.put(group("b"), version=0)  # it is replaced, and stored from now on
    assert_every_group_is_accounted_for(buffer)
    assert buffer.accounts()["math"]["stored"] == 1
    buffer.discard([buffer.find("b")])
    assert_every_group_is_accounted_for(buffer)


# -- one id in several groups


@pytest.mark.parametrize("asked", [False, True])
def test_a_rollout_id_of_two_groups_is_found_as_long_as_one_of_them_is_there(asked):
    buffer = made(archive=True)
    if asked:  # from when on ids are followed
        buffer.annotate(["nobody"], 0, reward=1.0)
    keys = {name: buffer.put(group(name, rollout(rollout_id="r")), version=0) for name in "abc"}
    assert buffer.annotate(["r"], 0, reward=3.0).tolist() == [True]
    assert buffer.get([keys["c"]])[0][0].reward == 3.0, "the newest has it"
    buffer.discard([keys["b"]])  # not the one that is found
    buffer.discard([keys["c"]])
    assert buffer.annotate(["r"], 0, reward=1.0).tolist() == [True]
    assert buffer.get([keys["a"]])[0][0].reward == 1.0
    buffer.put(group("d", rollout(rollout_id="r")), version=0)
    buffer.confirm(buffer.take(1, where=rc.field("key") == buffer.find("d"), lease=True).lease)
    assert buffer.annotate(["r"], 0, reward=2.0).tolist() == [True], "d is in the archive"
    assert buffer.get([keys["a"]])[0][0].reward == 2.0
    buffer.discard([keys["a"]])
    assert buffer.annotate(["r"], 0, reward=1.0).tolist() == [False]


# -- what can never be


def test_a_task_without_a_rule_is_refused_by_every_call_that_would_wait_for_it():
    buffer = made(staleness={"math": PATIENT}, capacity=4)
    calls = [
        lambda: buffer.put(group(task="cod"), version=0),
        lambda: buffer.take_batch({"math": 0, "cod": 1}, timeout=0),
        lambda: buffer.sample(1, task="cod", timeout=0),
        lambda: buffer.claim(1, lacks="reward", task="cod", timeout=0),
        lambda: buffer.reserve(1, "cod"),
        lambda: buffer.reserve_all(1, "cod", timeout=0),
    ]
    for call in calls:
        with pytest.raises(rc.InvalidValue, match="there is none for task 'cod'; the mapping has"):
            call()
    assert buffer.stats()["promised"] == {}
    assert len(buffer.take_batch({"cod": 0})) == 0  # nothing is there at once


@pytest.mark.parametrize("wrong", [[], {}, 3, ""])
def test_what_is_no_task_and_no_id_is_refused(wrong):
    buffer = made()
    for call in (
        lambda: buffer.take(1, task=wrong),
        lambda: buffer.count(wrong),
        lambda: buffer.sample(1, task=wrong, timeout=0),
        lambda: buffer.claim(1, lacks="reward", task=wrong, timeout=0),
    ):
        with pytest.raises(rc.InvalidValue, match="task: expected text"):
            call()
    with pytest.raises(rc.InvalidValue, match="group_id: expected text"):
        buffer.find(wrong)
