"""Staleness: lags, thresholds, tokens, retries, and what a new train step costs."""

from __future__ import annotations

import logging

import numpy as np
import pytest

import recollect as rc

PATIENT = rc.Staleness(max_staleness=99)


def rollout(tokens=2, **options):
    options.setdefault("finish_reason", "stop")
    return rc.Rollout([1], list(range(tokens)), **options)


def group(*rollouts, task="math", **options):
    return rc.Group(rollouts or [rollout()], task=task, **options)


def made(**options):
    staleness = rc.Staleness(**options)
    return rc.RolloutBuffer(staleness=staleness, order=rc.Fifo()).sync


def lag_of(buffer, task="math"):
    return buffer.accounts()[task]["lag"]["p50"]


# -- lag and threshold


def test_put_at_version_3_has_lag_1_at_train_step_5_whatever_lag_the_caller_had_set():
    buffer = rc.RolloutBuffer(staleness=PATIENT).sync
    buffer.advance(5)
    key = buffer.put(group(rollout(extras={"lag": 77, "staleness": 4})), version=3)
    assert buffer.get([key])[0][0].versions.tolist() == [3, 3]
    assert lag_of(buffer) == 1


def test_a_continued_partial_response_keeps_the_old_versions_of_its_first_tokens():
    buffer = rc.RolloutBuffer(staleness=PATIENT).sync
    key = buffer.put(group(rollout(3, versions=[1])), version=3)
    assert buffer.get([key])[0][0].versions.tolist() == [1, 3, 3]
    assert buffer.get([key]).info.version.tolist() == [1]


def test_stamping_leaves_tool_output_without_a_version():
    buffer = rc.RolloutBuffer(staleness=PATIENT).sync
    key = buffer.put(group(rollout(3, logprobs=[-1, np.nan, -2])), version=2)
    back = buffer.get([key])
    assert back[0][0].versions.tolist() == [2, -1, 2]
    assert back.batch["loss_mask"].to_list()[0].tolist() == [1, 0, 1]


@pytest.mark.parametrize(("most", "threshold"), [(0, 4), (1, 8), (2, 12)])
def test_the_threshold_counts_sync_periods(most, threshold):
    assert rc.Staleness(max_staleness=most, sync_interval=4).threshold == threshold


def test_version_4_is_valid_at_step_8_and_expired_at_step_9():
    rule = rc.Staleness(max_staleness=0, sync_interval=4)
    assert not rule.is_expired(8, version=4)
    assert rule.is_expired(9, version=4)
    buffer = rc.RolloutBuffer(staleness=rule).sync
    buffer.advance(5)
    buffer.put(group(), version=4)
    assert buffer.advance(8) == {}
    assert buffer.advance(9) == {"math": 1}


@pytest.mark.parametrize("most", [0, 1, 3])
@pytest.mark.parametrize("interval", [1, 2, 5])
def test_a_group_lives_until_its_lag_reaches_the_threshold(most, interval):
    threshold = (most + 1) * interval
    for version in (0, 3):
        buffer = made(max_staleness=most, sync_interval=interval)
        buffer.put(group(), version=version)
        for step in range(1, version + threshold + 3):
            expired = buffer.advance(step) if step > 1 else {}
            lag = step - version - 1
            assert expired == ({"math": 1} if lag == threshold else {}), (version, step)


def test_before_the_first_advance_the_train_step_is_1():
    buffer = made()
    assert buffer.train_step == 1
    buffer.put(group(), version=0)
    assert buffer.count("math", "COMPLETED") == 1
    assert lag_of(buffer) == 0


def test_a_version_from_the_future_is_not_stale():
    buffer = made()
    assert buffer.put(group(), version=7) is not None
    assert buffer.advance(8) == {}
    assert buffer.advance(9) == {"math": 1}


def test_the_buffer_takes_one_staleness_for_each_task():
    rules = {"math": rc.Staleness(), "code": rc.Staleness(max_staleness=3)}
    buffer = rc.RolloutBuffer(staleness=rules).sync
    buffer.put(group(), version=0)
    buffer.put(group(task="code"), version=0)
    assert buffer.advance(2) == {"math": 1}
    assert buffer.advance(5) == {"code": 1}
    assert buffer.staleness("code") == rules["code"]
    with pytest.raises(rc.InvalidValue, match="chat"):
        buffer.put(group(task="chat"), version=0)


# -- what is measured


def test_the_oldest_token_counts():
    buffer = made(max_staleness=1)
    buffer.advance(4)
    assert buffer.put(group(rollout(3, versions=[3, 2, 3])), version=3) is not None
    assert buffer.counts() == {("math", rc.Status.COMPLETED): 1}
    assert buffer.advance(5) == {"math": 1}


def test_the_dispatch_version_counts_when_it_is_measured():
    buffer = made(max_staleness=1, measure="dispatch")
    buffer.put(group(rollout(3, versions=[0, 0, 3], dispatch_version=3)))
    assert buffer.advance(5) == {}
    assert buffer.advance(6) == {"math": 1}


def test_put_stamps_the_dispatch_version_where_there_is_none():
    buffer = made(max_staleness=9)
    key = buffer.put(group(rollout(), rollout(dispatch_version=1)), version=3)
    assert [r.dispatch_version for r in buffer.get([key])[0]] == [3, 1]


def test_a_group_is_as_stale_as_its_stalest_rollout():
    buffer = made(on_expire="discard")
    buffer.put(group(rollout(versions=[4, 4]), rollout(versions=[1, 5])))
    assert buffer.advance(2) == {}
    assert buffer.advance(3) == {"math": 1}


def test_an_aborted_empty_rollout_does_expire():
    buffer = made()
    buffer.put(group(rollout(0, finish_reason="abort", dispatch_version=0)))
    assert buffer.count("math", "ABORTED") == 1
    assert buffer.advance(2) == {"math": 1}


def test_what_has_no_version_at_all_never_expires():
    buffer = made()
    buffer.put(group())
    buffer.put(group(rollout(2, versions=[-1, -1])))
    assert buffer.advance(1000) == {}
    assert buffer.count("math", "COMPLETED") == 2


def test_tool_output_counts_in_no_lag():
    buffer = made()
    buffer.advance(5)
    buffer.put(group(rollout(3, versions=[-1, 4, -1])))
    assert buffer.count("math", "COMPLETED") == 1
    assert lag_of(buffer) == 0


# -- tokens


def test_the_mask_of_a_taken_batch_is_loss_mask_and_fresh_and_the_stored_one_is_not_changed():
    buffer = made(max_staleness=9, max_token_staleness=1)
    versions, mask = [0, 1, 2, -1, 3], [1, 0, 1, 0, 1]
    key = buffer.put(group(rollout(5, versions=versions, loss_mask=mask)))
    for step, expected in [(2, mask), (3, [0, 0, 1, 0, 1]), (5, [0, 0, 0, 0, 1])]:
        buffer.advance(step)
        assert buffer.get([key]).batch["loss_mask"].to_list()[0].tolist() == expected
    stored = buffer.table.get(np.array([key], np.uint64), ["loss_mask"])
    assert stored["loss_mask"].to_list()[0].tolist() == mask
    taken = buffer.take_batch({"math": 1}, timeout=0)
    assert taken.batch["loss_mask"].to_list()[0].tolist() == [0, 0, 0, 0, 1]


def test_the_mask_is_that_of_the_step_that_the_batch_is_for():
    buffer = made(max_staleness=9, max_token_staleness=0)
    buffer.put(group(rollout(2, versions=[0, 3])))
    taken = buffer.take_batch({"math": 1}, train_step=3)
    assert taken.batch["loss_mask"].to_list()[0].tolist() == [0, 1]
    assert buffer.train_step == 3


def test_rollouts_without_a_mask_have_their_fresh_tokens_masked_too():
    buffer = made(max_staleness=9, max_token_staleness=0)
    key = buffer.put(group(rollout(3, versions=[0, 1, -1])))
    buffer.advance(2)
    assert buffer.get([key]).batch["loss_mask"].to_list()[0].tolist() == [0, 1, 0]
    assert buffer.get([key])[0][0].loss_mask.tolist() == [0, 1, 0]


def test_token_expiry_resets_only_the_stale_rollout():
    buffer = made(max_staleness=9, max_token_staleness=0)
    stale = rollout(2, versions=[0, 1], loss_mask=[1, 0], reward=1.0)
    fresh = rollout(2, versions=[0, 1], loss_mask=[0, 1], reward=2.0)
    key = buffer.put(group(stale, fresh))
    assert buffer.advance(2) == {"math": 1}
    back = buffer.get([key])[0]
    assert [r.num_tokens for r in back] == [0, 2]
    assert [r.status for r in back] == ["EXPIRED", "COMPLETED"]
    assert [r.attempt for r in back] == [1, 0]
    assert [r.reward for r in back] == [None, 2.0]
    assert back.status == "EXPIRED"


def test_an_all_masked_rollout_never_expires_by_tokens():
    buffer = made(max_staleness=99, max_token_staleness=0)
    buffer.put(group(rollout(2, versions=[0, 0], loss_mask=[0, 0])))
    assert buffer.advance(50) == {}


def test_rollouts_without_token_versions_are_exempt_from_the_token_rule():
    buffer = made(max_staleness=99, max_token_staleness=0)
    key = buffer.put(group(rollout(2, dispatch_version=0)))
    assert buffer.advance(50) == {}
    assert buffer.get([key]).batch["loss_mask"].to_list()[0].tolist() == [1, 1]


def test_the_token_threshold_counts_sync_periods_too():
    buffer = made(max_staleness=9, sync_interval=3, max_token_staleness=1)
    buffer.put(group(rollout(1, versions=[0])))
    assert buffer.advance(6) == {}
    assert buffer.advance(7) == {"math": 1}


# -- retry


def test_retry_clears_what_was_generated_and_keeps_what_was_given():
    buffer = made()
    old = rollout(
        2,
        versions=[0, 0],
        logprobs=[-1, -2],
        loss_mask=[1, 0],
        reward=1.0,
        rewards={"a": 1.0},
        arrays={"ref": np.ones(2)},
        extras={"source": "web"},
        blobs={"image": [b"cat"]},
    )
    identity = old.rollout_id
    before = group(old, ground_truth="42", extras={"level": 2}, blobs={"image": [b"dog"]})
    key = buffer.put(before)
    buffer.advance(2)
    after = buffer.get([key])[0]
    (back,) = after
    assert (after.ground_truth, after.extras, after.blobs) == (
        "42",
        {"level": 2},
        {"image": [b"dog"]},
    )
    assert (after.group_id, back.rollout_id) == (before.group_id, identity)
    assert (back.extras, back.blobs) == ({"source": "web"}, {"image": [b"cat"]})
    assert back.prompt_ids.tolist() == [1]
    assert back.num_tokens == 0
    assert back.logprobs is back.reward is back.rewards is back.finish_reason is None
    assert back.arrays == {}
    assert (back.status, back.attempt) == ("EXPIRED", 1)


def test_fresh_rollouts_of_a_retried_group_keep_their_work():
    buffer = made()
    fresh = rollout(3, versions=[5, 5, 5], logprobs=[-1, -2, -3], reward=0.5)
    before = rc.Group([rollout(versions=[0, 0]), fresh], task="math")
    key = buffer.put(before)
    buffer.advance(2)
    back = buffer.get([key])[0]
    assert back[1].equals(before[1])
    assert back.status == "EXPIRED"


def test_a_retried_group_keeps_its_key_and_its_place():
    buffer = rc.RolloutBuffer(order=rc.Fifo()).sync
    keys = [buffer.put(group(), version=0) for _ in range(3)]
    buffer.advance(2)
    assert buffer.take(3, status="EXPIRED").keys.tolist() == keys


def test_a_retried_trajectory_in_segments_starts_again_as_one():
    buffer = made()
    parts = [rollout(2, versions=[n, n], segment=n, rollout_id="t") for n in (0, 1)]
    whole = rollout(2, versions=[3, 3], rollout_id="w")
    key = buffer.put(group(*parts, whole))
    buffer.advance(2)
    back = buffer.get([key])[0]
    assert [(r.rollout_id, r.segment, r.num_tokens) for r in back] == [("t", 0, 0), ("w", 0, 2)]
    assert back.status == "EXPIRED"


def test_a_retried_group_expires_again_when_its_fresh_rollouts_do_and_counts_once():
    buffer = made()
    key = buffer.put(group(rollout(versions=[0, 0]), rollout(versions=[3, 3])))
    assert buffer.advance(2) == {"math": 1}
    assert buffer.advance(5) == {}
    assert [r.attempt for r in buffer.get([key])[0]] == [1, 1]
    assert [r.num_tokens for r in buffer.get([key])[0]] == [0, 0]
    assert buffer.accounts()["math"]["expired"] == 1


def test_a_waiting_expired_group_is_not_counted_at_every_step():
    buffer = made()
    buffer.put(group(), version=0)
    assert [buffer.advance(step) for step in (2, 3, 9)] == [{"math": 1}, {}, {}]


def test_a_failed_rollout_still_decides_the_status_of_a_retried_group():
    buffer = made()
    key = buffer.put(group(rollout(versions=[0, 0]), rollout(0, finish_reason="error")))
    buffer.advance(2)
    assert buffer.get([key])[0].status == "FAILED"
    assert buffer.counts() == {("math", rc.Status.FAILED): 1}


@pytest.mark.parametrize("most", [0, 1, 3])
def test_after_max_retries_a_group_is_discarded_with_reason_retries(most):
    buffer = made(max_retries=most)
    version = 0
    buffer.put(group(), version=version)
    for attempt in range(most):
        version += 2
        assert buffer.advance(version) == {"math": 1}
        (again,) = buffer.take(1, status="EXPIRED")
        assert again.attempt == attempt + 1
        again[0].response_ids = np.array([1, 2], np.int32)
        again[0].finish_reason = "stop"
        buffer.put(again, version=version)
    assert buffer.advance(version + 2) == {"math": 1}
    assert len(buffer) == 0
    assert buffer.accounts()["math"]["left"]["retries"] == 1


def test_attempt_rises_at_every_retry():
    buffer = made()
    buffer.put(group(), version=0)
    for attempt in range(1, 4):
        buffer.advance(2 * attempt)
        (again,) = buffer.take(1, status="EXPIRED")
        assert [r.attempt for r in again] == [attempt]
        again[0].response_ids = np.array([1], np.int32)
        again[0].finish_reason = "stop"
        buffer.put(again, version=2 * attempt)


# -- discard


def test_with_discard_a_mixed_group_leaves_whole():
    buffer = made(on_expire="discard")
    buffer.put(group(rollout(versions=[0, 0]), rollout(versions=[9, 9])))
    assert buffer.advance(2) == {"math": 1}
    assert len(buffer) == 0
    assert buffer.accounts()["math"]["left"] == {"expired": 1}


def test_a_group_that_comes_too_late_is_discarded():
    buffer = made(on_expire="discard")
    buffer.advance(3)
    assert buffer.put(group(), version=0) is None
    account = buffer.accounts()["math"]
    assert (account["put"], account["expired"], account["left"]) == (1, 1, {"expired": 1})


def test_a_group_that_comes_too_late_is_retried():
    buffer = made()
    buffer.advance(3)
    given = group(rollout(versions=[0, 0]), rollout(versions=[2, 2]))
    key = buffer.put(given)
    back = buffer.get([key])[0]
    assert [r.num_tokens for r in back] == [0, 2]
    assert buffer.count("math", "EXPIRED") == 1
    assert [r.num_tokens for r in given] == [2, 2], "the caller's group was changed"


def test_a_group_that_comes_too_late_too_often_is_discarded():
    buffer = made(max_retries=2)
    buffer.advance(3)
    assert buffer.put(group(rollout(attempt=2)), version=0) is None
    assert buffer.accounts()["math"]["left"] == {"retries": 1}


# -- advance


def test_advance_to_a_step_that_is_not_ahead_changes_nothing():
    buffer = made()
    buffer.advance(5)
    assert buffer.advance(5) == {}
    assert buffer.advance(2) == {}
    assert buffer.train_step == 5


def test_advance_counts_by_task():
    buffer = made()
    for task in ("math", "math", "code"):
        buffer.put(group(task=task), version=0)
    buffer.put(group(task="chat"), version=1)
    assert buffer.advance(2) == {"math": 2, "code": 1}


def test_statuses_of_table_and_rollouts_agree_after_expiry():
    buffer = rc.RolloutBuffer(order=rc.Fifo()).sync
    for status in ("ABORTED", "FILTERED", "FAILED", "COMPLETED"):
        buffer.put(group(rollout(versions=[0, 0], status=status), rollout(versions=[5, 5])))
        buffer.put(group(rollout(versions=[5, 5], status=status), rollout(versions=[0, 0])))
    keys = [k for s in rc.Status for k in buffer.take(9, status=s, lease=True).keys.tolist()]
    buffer.release("")
    buffer.advance(2)
    groups = buffer.get(keys)
    assert [g.status for g in groups] == groups.info.status.tolist()


# -- fairness


def test_a_task_whose_groups_expire_faster_than_they_are_taken_starves(caplog):
    buffer = made(on_expire="discard")
    with caplog.at_level(logging.WARNING, "recollect.rollouts"):
        for step in range(1, 8):
            for _ in range(8):
                buffer.put(group(), version=step - 1)
                buffer.put(group(task="code"), version=step - 1)
            buffer.take_batch({"code": 8})
            buffer.advance(step + 1)
    accounts = buffer.accounts()
    assert accounts["math"]["starves"]
    assert not accounts["code"]["starves"]
    (record,) = caplog.records
    assert "math" in record.getMessage()


@pytest.mark.parametrize("call", ["take_batch", "sample"])
def test_a_trainer_that_names_its_step_when_it_takes_is_warned_too(call, caplog):
    buffer = made(on_expire="discard")
    with caplog.at_level(logging.WARNING, "recollect.rollouts"):
        for step in range(1, 5):
            for _ in range(4):
                buffer.put(group(), version=step - 1)
            buffer.put(group(task="code"), version=step - 1)
            if call == "sample":
                buffer.sample(1, task="code", train_step=step)
            else:
                buffer.take_batch({"code": 1}, train_step=step)
    assert [r.getMessage().partition(":")[0] for r in caplog.records] == ["task 'math' starves"]
    assert buffer.accounts()["math"]["starves"]


def test_a_task_that_is_sampled_does_not_starve(caplog):
    """Groups that are reused until they expire have done their work."""
    rule = rc.Staleness(on_expire="discard")
    buffer = rc.RolloutBuffer(staleness=rule, order=rc.Fifo(), max_uses=0).sync
    with caplog.at_level(logging.WARNING, "recollect.rollouts"):
        for step in range(1, 5):
            for _ in range(4):
                buffer.put(group(), version=step - 1)
            for _ in range(3):
                buffer.sample(2, train_step=step)
    account = buffer.accounts()["math"]
    assert (account["expired"], account["taken"], account["sampled"]) == (12, 0, 24)
    assert caplog.records == []
    assert not account["starves"]


def test_accounts_count_per_task_with_reasons():
    """Put, stored, leased, taken, expired, retried, and every way to leave, each in its task."""
    rules = {
        "math": rc.Staleness(max_retries=1),
        "code": rc.Staleness(on_expire="discard"),
        "chat": PATIENT,
    }
    buffer = rc.RolloutBuffer(staleness=rules, capacity=6, overflow="drop_newest").sync
    for _ in range(2):
        buffer.put(group(), version=0)
        buffer.put(group(task="code"), version=0)
    keys = [buffer.put(group(task="chat"), version=0) for _ in range(2)]
    assert buffer.put(group(task="chat"), version=0) is None
    lease = buffer.take_batch({"math": 1}, lease=True).lease
    buffer.advance(2)
    buffer.confirm(lease)
    buffer.discard(keys[:1], "too easy")
    buffer.take(1, "chat")
    names = ("put", "stored", "leased", "taken", "expired", "retried", "left")
    accounts = buffer.accounts()
    found = {task: tuple(accounts[task][name] for name in names) for task in rules}
    assert found == {
        "math": (2, 1, 0, 1, 1, 1, {"trained": 1}),
        "code": (2, 0, 0, 0, 2, 0, {"expired": 2}),
        "chat": (3, 0, 0, 1, 0, 0, {"overflow": 1, "too easy": 1, "taken": 1}),
    }


def test_quantiles_are_per_task_and_go_on_after_a_restore():
    clock = rc.ManualClock(1000)
    buffer = rc.RolloutBuffer(staleness=PATIENT, clock=clock)
    buffer.sync.put(group(), version=0)
    clock.advance(5)
    buffer.sync.put(group(task="code"), version=3)
    buffer.sync.put(group(task="chat"))  # without a version it has no lag
    buffer.sync.advance(6)
    other = rc.RolloutBuffer(staleness=PATIENT, clock=clock)
    other.restore(buffer.state())
    clock.advance(2)
    for each in (buffer, other):
        accounts = each.accounts()
        assert {task: account["lag"].get("p50") for task, account in accounts.items()} == {
            "math": 5,
            "code": 2,
            "chat": None,
        }
        assert [accounts[task]["age"]["p99"] for task in ("math", "code")] == [7, 2]


def test_accounts_have_quantiles_of_age_and_lag():
    clock = rc.ManualClock(1000)
    buffer = rc.RolloutBuffer(staleness=PATIENT, clock=clock).sync
    for version in range(11):
        buffer.put(group(), version=version)
        clock.advance(1)
    buffer.advance(12)
    account = buffer.accounts()["math"]
    assert (account["lag"]["p0"], account["lag"]["p50"], account["lag"]["p100"]) == (1, 6, 11)
    assert (account["age"]["p0"], account["age"]["p50"], account["age"]["p100"]) == (1, 6, 11)


def test_a_group_that_is_stale_when_it_comes_is_told_as_retried():
    """Whoever starts retries from these events must not miss it; a put that waits tells nothing."""
    buffer = rc.RolloutBuffer(capacity=2, staleness=rc.Staleness(max_retries=1)).sync
    events = buffer.events("retried", "discarded")
    buffer.advance(5)
    key = buffer.put(group(group_id="late"), version=0)
    assert buffer.counts() == {("math", "EXPIRED"): 1}
    (event,) = next(events)
    assert (event.kind, event.reason, event.key) == ("retried", "expired", key)
    assert (event.group_id, event.group[0].num_tokens) == ("late", 2)
    assert buffer.get([key])[0][0].num_tokens == 0
    assert buffer.put(group(rollout(attempt=1), group_id="last"), version=0) is None
    assert [(e.kind, e.reason, e.group_id) for e in next(events)] == [
        ("discarded", "retries", "last")
    ]
