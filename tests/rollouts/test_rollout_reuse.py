"""Reuse: groups stay until they wear out; priorities, half-life, importance weights."""

from __future__ import annotations

import numpy as np
import pytest

import recollect as rc

PATIENT = rc.Staleness(max_staleness=10_000)


def group(name=None, tokens=2, task="math", **options):
    made = [rc.Rollout([1], list(range(tokens)), finish_reason="stop")]
    return rc.Group(made, task=task, group_id=name, **options)


def made(count=0, **options):
    options = {"staleness": PATIENT, "order": rc.Fifo(), "max_uses": 0, "seed": 0, **options}
    buffer = rc.RolloutBuffer(**options).sync
    keys = [buffer.put(group(str(n)), version=n) for n in range(count)]
    return buffer, keys


def names(groups):
    return [int(g.group_id) for g in groups]


def test_groups_stay_until_max_uses():
    buffer, _ = made(2, max_uses=3)
    for use in (1, 2, 3):
        assert [g.times_used for g in buffer.sample(2)] == [use, use]
    assert len(buffer) == 0
    assert buffer.accounts()["math"]["left"] == {"trained": 2}


def test_with_one_use_the_buffer_is_a_queue():
    buffer, _ = made(5, max_uses=1)
    assert names(buffer.sample(2)) == [0, 1]
    assert names(buffer.take_batch({"math": 2}).groups["math"]) == [2, 3]
    assert len(buffer) == 1


def test_fifo_reuse_walks_through_the_buffer_instead_of_repeating_its_head():
    buffer, _ = made(5)
    assert [names(buffer.sample(2)) for _ in range(5)] == [[0, 1], [2, 3], [4, 0], [1, 2], [3, 4]]


def test_stalest_first_reuse_goes_by_times_used_and_order():
    buffer, _ = made(order=rc.StalestFirst())
    for n, version in enumerate([2, 0, 1]):
        buffer.put(group(str(n)), version=version)
    assert [names(buffer.sample(2)) for _ in range(3)] == [[1, 2], [0, 1], [2, 0]]
    buffer.put(group("3"), version=9)
    assert names(buffer.sample(1)) == [3]


@pytest.mark.parametrize(
    "order", [rc.Fifo(), rc.Uniform(), rc.Prioritized(), rc.Prioritized(half_life=1.0)]
)
def test_groups_in_a_batch_are_distinct(order):
    buffer, keys = made(6, order=order)
    buffer.update(keys, priority=[100.0, 1, 1, 1, 1, 1])
    for _ in range(50):
        assert len(set(names(buffer.sample(5)))) == 5


def test_sampling_more_than_is_there_waits():
    buffer, _ = made(2)
    with pytest.raises(TimeoutError, match=r"needs 3 groups, has 2"):
        buffer.sample(3, timeout=0)


def test_a_sample_of_nothing_is_empty():
    buffer, _ = made(2)
    assert buffer.sample(0) == []


def test_sampling_is_by_task_status_and_query():
    buffer, _ = made(3, tags={"score": float})
    buffer.put(group("7", task="code", extras={"score": 1.0}), version=0)
    buffer.put(group("8", task="code", extras={"score": 0.0}), version=0)
    failed = rc.Group([rc.Rollout([1], [2], finish_reason="error")], task="code", group_id="9")
    buffer.put(failed, version=0)
    assert sorted(names(buffer.sample(2, task="code", timeout=0))) == [7, 8]
    assert names(buffer.sample(1, where=rc.field("score") > 0.5, timeout=0)) == [7]
    with pytest.raises(TimeoutError):
        buffer.sample(3, task="code", timeout=0)


def test_priorities_decide_how_often_a_group_is_drawn():
    buffer, keys = made(3, order=rc.Prioritized(alpha=1.0, stratified=False))
    assert buffer.update(keys, priority=[1.0, 0.1, 0.0]).tolist() == [True, True, True]
    counts = np.zeros(3)
    for _ in range(2000):
        counts[names(buffer.sample(1))] += 1
    assert counts[2] == 0
    assert abs(counts[0] / 2000 - 1 / 1.1) < 0.03


def test_a_half_life_halves_the_weight_for_every_so_many_versions():
    buffer, _ = made(3, order=rc.Prioritized(alpha=1.0, half_life=1.0, stratified=False))
    counts = np.zeros(3)
    for _ in range(3000):
        counts[names(buffer.sample(1))] += 1
    np.testing.assert_allclose(counts / 3000, [1 / 7, 2 / 7, 4 / 7], atol=0.04)


def test_a_sample_carries_importance_weights():
    order = rc.Prioritized(alpha=1.0, beta=1.0, normalize=None, stratified=False)
    buffer, keys = made(4, order=order)
    buffer.update(keys, priority=[1.0, 2.0, 3.0, 4.0])
    info = buffer.sample(1).info
    share = info.priority[0] / 10
    assert info.probability[0] == pytest.approx(share)
    assert info.weights[0] == pytest.approx(1 / (4 * share))


def test_an_update_of_groups_that_went_changes_nothing_and_says_so():
    buffer, keys = made(3, max_uses=1)
    buffer.sample(1)
    mask = buffer.update(keys, priority=[5.0, 6.0, 7.0])
    assert mask.tolist() == [False, True, True]
    assert [g.priority for g in buffer.get(keys[1:])] == [6.0, 7.0]


def test_an_update_wakes_those_who_wait_for_a_query():
    buffer, keys = made(1, tags={"score": float})
    buffer.update(keys, score=[0.9])
    assert names(buffer.sample(1, where=rc.field("score") > 0.5, timeout=0)) == [0]


def test_the_train_step_of_a_sample_advances_first():
    buffer, _ = made(3, staleness=rc.Staleness())
    assert names(buffer.sample(1, train_step=3)) == [2]
    assert buffer.count("math", "EXPIRED") == 2


def test_the_mask_of_a_sample_is_that_of_its_step():
    buffer, _ = made(staleness=rc.Staleness(max_staleness=9, max_token_staleness=0))
    old = rc.Rollout([1], [2, 3], versions=[0, 4], finish_reason="stop")
    buffer.put(rc.Group([old], task="math"))
    assert buffer.sample(1).batch["loss_mask"].to_list()[0].tolist() == [1, 1]
    assert buffer.sample(1, train_step=3).batch["loss_mask"].to_list()[0].tolist() == [0, 1]


def test_same_seed_and_same_calls_give_the_same_draws():
    def draws(seed):
        buffer, keys = made(10, order=rc.Prioritized(), seed=seed)
        buffer.update(keys, priority=np.arange(1.0, 11.0))
        return [names(buffer.sample(3)) for _ in range(20)]

    assert draws(1) == draws(1)
    assert draws(1) != draws(2)


def test_leases_and_reuse_go_together():
    buffer, _ = made(3, max_uses=2)
    lease = buffer.take_batch({"math": 1}, lease=True).lease
    assert names(buffer.sample(2)) == [1, 2]
    buffer.give_back(lease)
    assert [g.times_used for g in buffer.sample(1)] == [1]
    assert len(buffer) == 3


def test_a_half_life_refuses_groups_without_a_version():
    buffer, _ = made(2, order=rc.Prioritized(half_life=2.0))
    with pytest.raises(rc.InvalidValue, match="version"):
        buffer.put(group("9"))
    assert len(buffer) == 2


def test_a_half_life_goes_together_with_retries():
    order = rc.Prioritized(alpha=1.0, half_life=2.0)
    buffer, _ = made(4, order=order, staleness=rc.Staleness(max_staleness=1))
    assert buffer.advance(4) == {"math": 2}
    assert sorted(names(buffer.sample(2, timeout=0))) == [2, 3]
    assert sorted(names(buffer.take(9, status="EXPIRED"))) == [0, 1]
    buffer.put(group("8"), version=3)
    assert sorted(names(buffer.sample(3, timeout=0))) == [2, 3, 8]
    buffer.advance(50)
    assert buffer.count(status="EXPIRED") == 3
