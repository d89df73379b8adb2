"""Stages and late cells: needs, claims and annotations by attempt."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from callers import Caller

import recollect as rc

PATIENT = rc.Staleness(max_staleness=99)


def rollout(tokens=2, name=None, **options):
    options.setdefault("finish_reason", "stop")
    return rc.Rollout([1], list(range(tokens)), rollout_id=name, **options)


def group(name, *rollouts, task="math", **options):
    rollouts = rollouts or [rollout(2, f"{name}0"), rollout(3, f"{name}1")]
    return rc.Group(rollouts, task=task, group_id=name, **options)


def made(names="", **options):
    options = {"needs": ("reward",), "staleness": PATIENT, "order": rc.Fifo(), **options}
    buffer = rc.RolloutBuffer(**options).sync
    for name in names:
        buffer.put(group(name), version=0)
    return buffer


def names(groups):
    return [g.group_id for g in groups]


def ids(groups):
    return [r.rollout_id for g in groups for r in g]


# -- readiness


def test_a_group_is_completed_when_generated_and_ready_when_every_needed_cell_is_there():
    buffer = made("a", needs=("reward", "ref_logprobs"))
    assert buffer.count("math", "COMPLETED") == 1
    assert not buffer.is_ready({"math": 1})
    assert buffer.annotate(["a0", "a1"], 0, reward=[1.0, 0.0]).tolist() == [True, True]
    assert not buffer.is_ready({"math": 1})
    arrays = {"ref_logprobs": [np.zeros(2, np.float32), np.ones(3, np.float32)]}
    assert buffer.annotate(["a0", "a1"], 0, arrays=arrays).tolist() == [True, True]
    assert buffer.is_ready({"math": 1})
    (taken,) = buffer.take_batch({"math": 1}, timeout=0).groups["math"]
    assert taken.rewards == [1.0, 0.0]
    assert taken[1].arrays["ref_logprobs"].tolist() == [1, 1, 1]


def test_take_batch_sample_and_is_ready_see_ready_groups_only():
    buffer = made("ab", max_uses=3)
    with pytest.raises(TimeoutError):
        buffer.take_batch({"math": 1}, timeout=0)
    with pytest.raises(TimeoutError):
        buffer.sample(1, timeout=0)
    buffer.annotate(["b0", "b1"], 0, reward=[1, 2])
    assert names(buffer.sample(1, timeout=0)) == ["b"]
    assert names(buffer.take_batch({"math": 1}, timeout=0).groups["math"]) == ["b"]


def test_every_rollout_of_a_group_must_have_the_cell():
    buffer = made("a")
    buffer.annotate(["a0"], 0, reward=[1.0])
    assert not buffer.is_ready({"math": 1})
    buffer.annotate(["a1"], 0, reward=[1.0])
    assert buffer.is_ready({"math": 1})


def test_a_group_that_comes_with_its_cells_is_ready_at_once():
    buffer = made()
    buffer.put(group("a", rollout(reward=1.0), rollout(reward=0.0)), version=0)
    assert buffer.is_ready({"math": 1})


def test_take_hands_out_completed_groups_that_are_not_ready():
    assert names(made("a").take(1)) == ["a"]


def test_needs_may_name_logprobs_and_named_rewards():
    buffer = made(needs=("logprobs", "rewards"))
    buffer.put(group("a", rollout(2, "r")), version=0)
    arrays = {"logprobs": [np.array([-1, -2], np.float32)]}
    assert buffer.annotate(["r"], 0, arrays=arrays).tolist() == [True]
    assert not buffer.is_ready({"math": 1})
    buffer.annotate(["r"], 0, rewards=[{"format": 1.0}])
    (taken,) = buffer.take_batch({"math": 1}, timeout=0).groups["math"]
    assert taken[0].logprobs.tolist() == [-1, -2]
    assert taken[0].rewards == {"format": 1.0}


# -- claims


def test_two_workers_never_claim_the_same():
    buffer = made("abc")
    first = buffer.claim(2, lacks="reward")
    second = buffer.claim(2, lacks="reward")
    assert names(first) == ["a", "b"]
    assert names(second) == ["c"]
    with pytest.raises(TimeoutError, match="reward"):
        buffer.claim(1, lacks="reward", timeout=0)


def test_a_claim_removes_nothing():
    buffer = made("ab")
    buffer.claim(2, lacks="reward")
    assert buffer.count("math", "COMPLETED") == 2
    assert len(buffer) == 2
    assert names(buffer.take(1)) == ["a"]


def test_stages_claim_the_same_group_for_different_cells():
    buffer = made("a", needs=("reward", "ref"))
    assert names(buffer.claim(1, lacks="reward")) == ["a"]
    assert names(buffer.claim(1, lacks="ref")) == ["a"]


def test_a_cell_that_nobody_needs_can_be_claimed_too():
    buffer = made("ab", needs=())
    buffer.annotate(["a0", "a1"], 0, arrays={"teacher": [np.zeros(2), np.zeros(3)]})
    assert names(buffer.claim(5, lacks="teacher")) == ["b"]


def test_claims_are_by_task():
    buffer = made("a")
    buffer.put(group("c", task="code"), version=0)
    assert names(buffer.claim(5, lacks="reward", task="code")) == ["c"]
    assert names(buffer.claim(5, lacks="reward", task="math")) == ["a"]


def test_only_completed_groups_are_claimed():
    buffer = made()
    buffer.put(group("a", rollout(finish_reason="abort")), version=0)
    with pytest.raises(TimeoutError):
        buffer.claim(1, lacks="reward", timeout=0)


def test_an_annotated_group_is_not_claimed_again():
    buffer = made("ab")
    buffer.claim(1, lacks="reward")
    buffer.annotate(["a0", "a1"], 0, reward=[1, 1])
    assert names(buffer.claim(5, lacks="reward")) == ["b"]


def test_a_claim_that_is_given_back_or_misses_its_deadline_can_be_claimed_again():
    clock = rc.ManualClock()
    buffer = made("ab", clock=clock)
    claim = buffer.claim(1, lacks="reward")
    buffer.give_back(claim.lease)
    assert names(buffer.claim(1, lacks="reward", lease=10)) == ["a"]
    clock.advance(11)
    assert names(buffer.claim(5, lacks="reward")) == ["a", "b"]


def test_renewing_a_claim_keeps_others_off():
    clock = rc.ManualClock()
    buffer = made("a", clock=clock)
    claim = buffer.claim(1, lacks="reward", lease=10)
    clock.advance(8)
    buffer.renew(claim.lease, 10)
    clock.advance(8)
    with pytest.raises(TimeoutError):
        buffer.claim(1, lacks="reward", timeout=0)


def test_a_claim_of_groups_that_all_went_is_over():
    buffer = made("a")
    claim = buffer.claim(1, lacks="reward")
    buffer.take(1)
    with pytest.raises(rc.LeaseExpired):
        buffer.renew(claim.lease, 10)


def test_a_claim_of_groups_that_were_trained_and_archived_is_over():
    buffer = made("ab", archive=True)
    claim = buffer.claim(2, lacks="reward", lease=True).lease
    buffer.confirm(buffer.take(1, lease=True).lease)  # take hands out what is not ready, too
    assert buffer.renew(claim, 30).id == claim.id  # b is still to be done
    buffer.confirm(buffer.take(1, lease=True).lease)
    with pytest.raises(rc.LeaseExpired, match="have left"):
        buffer.renew(claim, 30)
    with pytest.raises(TimeoutError):
        buffer.claim(1, lacks="reward", timeout=0)


def test_a_retried_group_is_claimed_by_nobody():
    buffer = made("a", staleness=rc.Staleness())
    buffer.claim(1, lacks="reward")
    buffer.advance(2)
    with pytest.raises(TimeoutError):
        buffer.claim(1, lacks="reward", timeout=0)


def test_a_leased_group_is_claimed_when_it_is_back():
    buffer = made("a", needs=())
    lease = buffer.take_batch({"math": 1}, lease=True).lease
    with pytest.raises(TimeoutError):
        buffer.claim(1, lacks="reward", timeout=0)
    buffer.give_back(lease)
    assert names(buffer.claim(1, lacks="reward", timeout=0)) == ["a"]


def test_a_queued_group_is_not_claimed_while_it_is_leased():
    buffer = made("ab", needs=())
    buffer.claim(1, lacks="reward")
    lease = buffer.take(2, lease=True).lease
    with pytest.raises(TimeoutError):
        buffer.claim(1, lacks="reward", timeout=0)
    buffer.give_back(lease)
    assert names(buffer.claim(1, lacks="reward", timeout=0)) == ["b"]


# -- annotations


def test_an_annotation_names_the_attempt_and_never_lands_on_another_response():
    buffer = made("a", staleness=rc.Staleness())
    buffer.advance(2)
    (again,) = buffer.take(1, status="EXPIRED")
    for place, member in enumerate(again):
        member.response_ids = np.array([7] * (place + 2), np.int32)
        member.finish_reason = "stop"
    buffer.put(again, version=1)
    assert buffer.annotate(["a0", "a1"], 0, reward=[9.0, 9.0]).tolist() == [False, False]
    assert buffer.annotate(["a0", "a1"], [0, 1], reward=[9.0, 0.5]).tolist() == [False, True]
    assert buffer.annotate(["a0"], 1, reward=[0.25]).tolist() == [True]
    (taken,) = buffer.take_batch({"math": 1}, timeout=0).groups["math"]
    assert taken.rewards == [0.25, 0.5]


def test_the_mask_is_false_where_the_group_has_gone():
    buffer = made("ab")
    buffer.take(1)
    mask = buffer.annotate(["a0", "b0", "never"], 0, reward=[1.0, 2.0, 3.0])
    assert mask.tolist() == [False, True, False]
    assert buffer.take(1)[0].rewards == [2.0, None]


def test_the_mask_is_false_where_the_group_was_trained_and_archived():
    buffer = made("a", needs=(), archive=True)
    buffer.confirm(buffer.take_batch({"math": 1}, lease=True).lease)
    assert buffer.annotate(["a0", "a1"], 0, reward=1.0).tolist() == [False, False]
    assert buffer.trained_at(1)[0].rewards == [None, None]
    buffer.put(group("b", rollout(2, "b0", status="ARCHIVED")))
    assert buffer.annotate(["b0"], 0, reward=1.0).tolist() == [False]


def test_the_mask_is_false_where_the_rollout_waits_for_its_retry():
    buffer = made("a", staleness=rc.Staleness())
    buffer.advance(2)
    assert buffer.annotate(["a0", "a1"], 0, reward=[1.0, 1.0]).tolist() == [False, False]
    assert buffer.take(1, status="EXPIRED")[0].rewards == [None, None]


def test_a_late_annotation_changes_what_a_lease_gives_back():
    buffer = made("a", needs=())
    lease = buffer.take_batch({"math": 1}, lease=True).lease
    assert buffer.annotate(["a0", "a1"], 0, reward=[1.0, 2.0]).tolist() == [True, True]
    buffer.give_back(lease)
    assert buffer.take(1)[0].rewards == [1.0, 2.0]


def test_every_segment_of_a_rollout_gets_its_reward():
    buffer = made()
    parts = [rollout(2, "t", segment=0), rollout(3, "t", segment=1)]
    buffer.put(group("a", *parts, rollout(2, "w")), version=0)
    assert buffer.annotate(["t", "w"], 0, reward=[1.0, 2.0]).tolist() == [True, True]
    assert buffer.is_ready({"math": 1})
    assert buffer.take(1)[0].rewards == [1.0, 1.0, 2.0]


def test_annotations_add_columns_that_no_group_had():
    buffer = made("ab", needs=("values",))
    buffer.annotate(["b0", "b1"], 0, arrays={"values": [np.ones((2, 4)), np.ones((3, 4))]})
    (taken,) = buffer.take_batch({"math": 1}, timeout=0).groups["math"]
    assert taken.group_id == "b"
    assert taken[1].arrays["values"].shape == (3, 4)


def test_a_mask_that_comes_late_decides_when_the_rollout_expires():
    rule = rc.Staleness(max_staleness=9, max_token_staleness=1)
    buffer = made(needs=("loss_mask",), staleness=rule)
    given = rollout(3, "a", versions=[1, 2, 4], finish_reason="stop")
    key = buffer.put(group("a", given))
    buffer.put(group("b", rollout(1, "b", versions=[4])))
    buffer.advance(5)
    flags = {"loss_mask": [np.array([1, 1, 0], np.int8)]}
    assert buffer.annotate(["a"], 0, arrays=flags).tolist() == [True]
    # without the last token nothing trains from step 5 on: 2 is as old as may be at step 4
    assert buffer.count(status="EXPIRED") == 1
    assert (buffer.get([key])[0][0].attempt, buffer.accounts()["math"]["expired"]) == (1, 1)
    with pytest.raises(rc.InvalidValue, match="loss_mask: expected 0 or 1"):
        buffer.annotate(["b"], 0, arrays={"loss_mask": [np.array([2])]})
    buffer.annotate(["b"], 0, arrays={"loss_mask": [np.array([1])]})
    assert buffer.is_ready({"math": 1})
    assert buffer.advance(6) == {}
    assert buffer.advance(7) == {"math": 1}


def test_annotating_keeps_the_key_the_place_and_the_other_cells():
    buffer = made()
    given = [group(name, rollout(2, f"{name}0", logprobs=[-1, -2])) for name in "abc"]
    keys = [buffer.put(one, version=0) for one in given]
    buffer.annotate(["b0"], 0, reward=[1.0])
    buffer.annotate(["a0", "c0"], 0, reward=[1.0, 1.0])
    taken = buffer.take_batch({"math": 3}, timeout=0)
    assert taken.keys.tolist() == keys
    assert [g[0].logprobs.tolist() for g in taken.groups["math"]] == [[-1, -2]] * 3
    assert taken.batch["versions"].to_list()[0].tolist() == [0, 0]


def test_one_number_may_be_given_for_all_attempts_or_one_for_each():
    buffer = made("a")
    assert buffer.annotate(["a0", "a1"], [0, 0], reward=[1, 2]).tolist() == [True, True]
    assert buffer.annotate(["a0", "a1"], [0, 5], reward=[3, 4]).tolist() == [True, False]
    assert buffer.take(1)[0].rewards == [3.0, 2.0]


def test_one_need_may_be_named_alone():
    buffer = made("a", needs="reward")
    assert not buffer.is_ready({"math": 1})
    buffer.annotate(["a0", "a1"], 0, reward=[1, 1])
    assert buffer.is_ready({"math": 1})


# -- annotations and room


def in_bytes(overflow):
    """A buffer of four groups with room for 100 bytes more."""
    size = made("a").nbytes
    buffer = made("", capacity_bytes=4 * size + 100, overflow=overflow, needs=())
    for n, name in enumerate("abcd"):
        buffer.put(group(name), version=n)
    return buffer


ROOM = {"ref": [np.zeros(30)]}  # 240 bytes


def test_an_annotation_never_exceeds_the_capacity_and_waits_for_room():
    buffer = in_bytes("block")
    before = buffer.nbytes
    caller = Caller(lambda: buffer.annotate(["b0"], 0, arrays=ROOM))
    assert caller.waits()
    assert buffer.nbytes == before
    assert names(buffer.take(2)) == ["a", "b"]
    assert caller.done().tolist() == [False], "b has gone in the meantime"
    assert Caller(lambda: buffer.annotate(["c0"], 0, arrays=ROOM)).done().tolist() == [True]


def test_an_annotation_drops_the_stalest_others():
    buffer = in_bytes("drop_stalest")
    assert buffer.annotate(["a0"], 0, arrays=ROOM).tolist() == [True]
    assert buffer.nbytes <= buffer.stats()["capacity_bytes"]
    dropped = buffer.accounts()["math"]["left"]["overflow"]
    assert dropped >= 1
    assert names(buffer.take(9)) == ["a", *"bcd"[dropped:]]


@pytest.mark.parametrize("overflow", ["raise", "drop_newest"])
def test_an_annotation_that_does_not_fit_raises(overflow):
    buffer = in_bytes(overflow)
    before = buffer.nbytes
    with pytest.raises(rc.BufferFull, match="bytes"):
        buffer.annotate(["a0"], 0, arrays=ROOM)
    assert buffer.nbytes == before
    assert buffer.take(1)[0][0].arrays == {}


@pytest.mark.parametrize("overflow", ["block", "drop_stalest"])
@pytest.mark.parametrize("numbers", [50, 10_000])
def test_an_annotation_that_never_fits_says_so_and_drops_nothing(overflow, numbers):
    """50 numbers fit the buffer, and not together with the group that they are for."""
    buffer = in_bytes(overflow)
    arrays = {"ref": [np.zeros(numbers)]}
    caller = Caller(lambda: buffer.annotate(["a0"], 0, arrays=arrays))
    with pytest.raises(rc.NeverPossible, match="never fit"):
        caller.done()
    assert names(buffer.take(9)) == ["a", "b", "c", "d"]


# -- what does not land leaves no trace


def new_column(lengths, **others):
    return {"new": [np.zeros(length, np.float32) for length in lengths], **others}


def test_an_annotation_of_another_attempt_adds_no_columns():
    buffer = made("a")
    before = list(buffer.table.columns)
    assert buffer.annotate(["a0", "a1"], 1, arrays=new_column([2, 3])).tolist() == [False, False]
    assert list(buffer.table.columns) == before
    assert buffer.annotate(["a0", "a1"], [1, 0], arrays=new_column([2, 3])).tolist() == [
        False,
        True,
    ]
    assert list(buffer.table.columns) == [*before, "arrays.new"]
    (stored,) = buffer.take(1)
    assert stored[0].arrays == {}
    assert stored[1].arrays["new"].tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("error", "arrays", "options"),
    [
        (rc.InvalidValue, {"logprobs": [np.zeros(9, np.float32)] * 2}, {}),
        (rc.InvalidValue, {"loss_mask": [np.full(2, 7, np.int8), np.full(3, 7, np.int8)]}, {}),
        (rc.SchemaError, {"logprobs": [np.zeros((2, 2)), np.zeros((3, 2))]}, {}),
        (rc.NeverPossible, {"large": [np.zeros(2000)] * 2}, {"capacity_bytes": 1000}),
        (rc.BufferFull, {}, {"capacity_bytes": 300, "overflow": "raise"}),
    ],
)
def test_an_annotation_that_is_refused_adds_no_columns(error, arrays, options):
    buffer = made("ab", **options)
    before, nbytes = list(buffer.table.columns), buffer.nbytes
    lengths = [20, 30] if error is rc.BufferFull else [2, 3]
    with pytest.raises(error):
        buffer.annotate(["a0", "a1"], 0, arrays=new_column(lengths, **arrays))
    assert list(buffer.table.columns) == before
    assert buffer.nbytes == nbytes
    with pytest.raises(TimeoutError):
        buffer.sample(1, timeout=0)


def test_an_annotation_that_waits_adds_its_columns_when_it_lands():
    async def main():
        buffer = rc.RolloutBuffer(staleness=PATIENT, order=rc.Fifo(), capacity_bytes=300)
        for name in "ab":
            await buffer.put(group(name), version=0)
        before = list(buffer.table.columns)
        calls = [buffer.annotate(["b0", "b1"], 0, arrays=new_column([20, 30])) for _ in range(2)]
        first, second = map(asyncio.create_task, calls)
        await asyncio.sleep(0.05)
        assert not first.done()
        assert not second.done()
        assert list(buffer.table.columns) == before
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert list(buffer.table.columns) == before
        await buffer.take(1)
        assert (await asyncio.wait_for(second, 5)).tolist() == [True, True]
        assert list(buffer.table.columns) == [*before, "arrays.new"]

    asyncio.run(main())
