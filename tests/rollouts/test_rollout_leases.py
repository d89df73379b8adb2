"""Leases, the archive, and events: what a trainer that crashes needs, and what leaves and why."""

from __future__ import annotations

import asyncio
import threading
import time

import numpy as np
import pytest

import recollect as rc
from recollect import Status
from recollect.rollouts.rewind import keep_trained

PATIENT = rc.Staleness(max_staleness=10_000)


@pytest.fixture
def clock():
    return rc.ManualClock()


def rollout(tokens=2, **options):
    options.setdefault("finish_reason", "stop")
    return rc.Rollout([1], list(range(tokens)), **options)


def group(name=None, *rollouts, task="math", **options):
    return rc.Group(rollouts or [rollout()], task=task, group_id=name, **options)


def made(names="", **options):
    buffer = rc.RolloutBuffer(**{"staleness": PATIENT, "order": rc.Fifo(), **options}).sync
    for name in names:
        buffer.put(group(name), version=0)
    return buffer


def names(groups):
    return [g.group_id for g in groups]


def read(events, count):
    """The next events, which must be there already."""
    found = []
    while len(found) < count:
        found += next(events)
    return found


# -- leases


def test_a_lease_hides_groups_until_it_is_confirmed():
    buffer = made("abc")
    taken = buffer.take_batch({"math": 2}, lease=60)
    assert taken.lease is not None
    assert buffer.count("math") == 1
    assert names(buffer.take(9)) == ["c"]
    assert buffer.confirm(taken.lease) == 2
    assert len(buffer) == 0
    assert buffer.accounts()["math"]["left"] == {"taken": 1, "trained": 2}


def test_in_process_a_lease_has_no_deadline_unless_given(clock):
    buffer = made("ab", clock=clock)
    endless = buffer.take_batch({"math": 1}, lease=True).lease
    assert endless.deadline is None
    clock.advance(1e9)
    assert buffer.confirm(endless) == 1


def test_given_back_groups_come_first_and_are_marked_redelivered():
    buffer = made("abcd")
    taken = buffer.take_batch({"math": 2}, lease=60)
    assert [g.redelivered for g in taken.groups["math"]] == [False, False]
    assert buffer.give_back(taken.lease) == 2
    groups = buffer.take(3)
    assert names(groups) == ["a", "b", "c"]
    assert [g.redelivered for g in groups] == [True, True, False]
    assert groups.info.deliveries.tolist() == [2, 2, 1]


def test_a_missed_deadline_gives_the_groups_back(clock):
    buffer = made("abc", clock=clock)
    lease = buffer.take_batch({"math": 2}, lease=60).lease
    clock.advance(61)
    assert buffer.count("math") == 3
    with pytest.raises(rc.LeaseExpired, match="deadline"):
        buffer.confirm(lease)
    groups = buffer.take(3)
    assert names(groups) == ["a", "b", "c"]
    assert [g.redelivered for g in groups] == [True, True, False]


def test_renewing_keeps_a_batch_longer(clock):
    buffer = made("a", clock=clock)
    lease = buffer.take_batch({"math": 1}, lease=10).lease
    clock.advance(8)
    assert buffer.renew(lease, 10).deadline == 18
    clock.advance(8)
    assert buffer.confirm(lease) == 1


def test_a_lease_is_settled_once():
    buffer = made("ab")
    lease = buffer.take_batch({"math": 1}, lease=60).lease
    buffer.confirm(lease)
    for settle in (buffer.confirm, buffer.give_back, lambda held: buffer.renew(held, 5)):
        with pytest.raises(rc.LeaseExpired):
            settle(lease)
    assert len(buffer) == 1


def test_release_gives_back_what_a_dead_owner_held():
    buffer = made("abcd")
    buffer.take_batch({"math": 1}, lease=True, owner="dead")
    alive = buffer.take_batch({"math": 1}, lease=True, owner="alive")
    buffer.take_batch({"math": 1}, lease=True, owner="dead")
    assert buffer.release("dead") == 2
    assert buffer.confirm(alive.lease) == 1
    assert names(buffer.take(9)) == ["a", "c", "d"]


def test_a_leased_group_does_not_expire_and_does_when_it_comes_back_too_old():
    buffer = made(staleness=rc.Staleness(on_expire="discard"))
    buffer.put(group("a"), version=0)
    events = buffer.events()
    lease = buffer.take_batch({"math": 1}, lease=True).lease
    assert buffer.advance(9) == {}
    assert len(buffer) == 1
    buffer.give_back(lease)
    assert len(buffer) == 0
    (event,) = read(events, 1)
    assert (event.kind, event.group_id) == ("expired", "a")
    assert buffer.accounts()["math"]["expired"] == 1


def test_a_leased_group_that_comes_back_too_old_is_retried():
    buffer = made(staleness=rc.Staleness())
    buffer.put(group("a"), version=0)
    lease = buffer.take_batch({"math": 1}, lease=True).lease
    buffer.advance(9)
    buffer.give_back(lease)
    assert buffer.counts() == {("math", rc.Status.EXPIRED): 1}
    (again,) = buffer.take(1, status="EXPIRED")
    assert (again.redelivered, again.attempt) == (True, 1)


def test_a_trained_group_does_not_expire():
    buffer = made(staleness=rc.Staleness())
    buffer.put(group("a"), version=0)
    lease = buffer.take_batch({"math": 1}, lease=True).lease
    buffer.advance(9)
    assert buffer.confirm(lease) == 1
    assert buffer.accounts()["math"]["left"] == {"trained": 1}


def test_a_lapse_that_brings_back_what_is_too_old_shows_in_every_count(clock):
    buffer = made(staleness=rc.Staleness(on_expire="discard"), clock=clock)
    buffer.put(group("a"), version=0)
    buffer.take_batch({"math": 1}, lease=5)
    buffer.advance(9)
    clock.advance(6)
    assert len(buffer) == 0
    assert buffer.counts() == {}


# -- the archive


def test_with_an_archive_confirmed_groups_stay_and_say_which_step_they_trained():
    buffer = made("abcd", archive=True)
    first = buffer.take_batch({"math": 2}, train_step=411, lease=True)
    second = buffer.take_batch({"math": 1}, train_step=412, lease=True)
    buffer.confirm(first.lease)
    buffer.confirm(second.lease)
    assert names(buffer.trained_at(411)) == ["a", "b"]
    assert names(buffer.trained_at(412)) == ["c"]
    assert buffer.trained_at(413) == []
    assert [g.status for g in buffer.trained_at(412)] == ["ARCHIVED"]
    assert [r.status for r in buffer.trained_at(412)[0]] == ["ARCHIVED"]
    assert buffer.count("math", "ARCHIVED") == 3
    assert names(buffer.take_batch({"math": 1}).groups["math"]) == ["d"]


def test_the_step_of_the_confirmation_counts():
    buffer = made("a", archive=True)
    taken = buffer.take_batch({"math": 1}, train_step=5, lease=True)
    buffer.confirm(taken.lease, train_step=7)
    assert names(buffer.trained_at(7)) == ["a"]
    assert buffer.trained_at(5) == []


def test_archived_groups_are_not_handed_out_and_do_not_expire():
    buffer = made("a", archive=True, staleness=rc.Staleness(), max_uses=3)
    buffer.confirm(buffer.take_batch({"math": 1}, lease=True).lease)
    assert buffer.advance(50) == {}
    assert not buffer.is_ready({"math": 1})
    assert buffer.take(9) == []
    with pytest.raises(TimeoutError):
        buffer.sample(1, timeout=0)
    assert names(buffer.trained_at(1)) == ["a"]


def test_archived_groups_make_room_first():
    buffer = made("ab", archive=True, capacity=2, overflow="raise")
    buffer.confirm(buffer.take_batch({"math": 1}, lease=True).lease)
    assert buffer.put(group("c"), version=0) is not None
    assert buffer.trained_at(1) == []
    assert names(buffer.take(9)) == ["b", "c"]


def test_accounts_of_archived_groups_are_exact():
    buffer = made("abc", archive=True)
    buffer.confirm(buffer.take_batch({"math": 2}, lease=True).lease)
    account = buffer.accounts()["math"]
    assert (account["put"], account["stored"], account["left"]) == (3, 1, {"trained": 2})


def test_an_archived_group_id_that_comes_again_is_counted_once():
    buffer = made("a", archive=True)
    buffer.confirm(buffer.take_batch({"math": 1}, lease=True).lease)
    buffer.put(group("a"), version=0)
    account = buffer.accounts()["math"]
    assert (account["put"], account["stored"], account["left"]) == (2, 1, {"trained": 1})


# -- events


def test_each_group_that_leaves_appears_once_with_its_reason():
    rules = {
        "math": rc.Staleness(max_staleness=1, on_expire="discard"),
        "code": rc.Staleness(max_retries=0),
        "chat": PATIENT,
    }
    buffer = made(staleness=rules, capacity=4, overflow="drop_stalest")
    events = buffer.events()
    buffer.put(group("expired"), version=0)
    buffer.put(group("retries", task="code"), version=0)
    trained = buffer.put(group("trained", task="chat"), version=2)
    filtered = buffer.put(group("filtered", task="chat"), version=3)
    taken = buffer.take_batch({"chat": 1}, lease=True)
    assert taken.keys.tolist() == [trained]
    buffer.discard([filtered], "filtered")
    buffer.advance(3)
    buffer.confirm(taken.lease)
    for n in range(5):
        buffer.put(group(f"o{n}", task="chat"), version=n)
    buffer.put(group("o4", task="chat"), version=9)
    buffer.take(1, "chat")
    found = [(e.kind, e.reason, e.group_id) for e in read(events, 7)]
    assert sorted(found) == sorted(
        [
            ("discarded", "filtered", "filtered"),
            ("expired", "expired", "expired"),
            ("discarded", "retries", "retries"),
            ("confirmed", "trained", "trained"),
            ("discarded", "overflow", "o0"),
            ("discarded", "replaced", "o4"),
            ("taken", "taken", "o1"),
        ]
    )
    events.close()
    assert list(events) == []


def test_a_group_that_leaves_is_still_readable_in_its_event():
    buffer = made(staleness=rc.Staleness(on_expire="discard"))
    events = buffer.events("expired")
    for n in range(20):
        given = rollout(n + 1, logprobs=[-1.0] * (n + 1), reward=n, blobs={"image": [bytes([n])]})
        buffer.put(group(str(n), given, extras={"n": n}), version=0)
    buffer.advance(2)
    for _ in range(100):  # whatever memory was freed is written again
        buffer.put(group(None, rollout(30)), version=1)
    for n, event in enumerate(read(events, 20)):
        gone = event.group
        assert (gone.group_id, gone.extras) == (str(n), {"n": n})
        assert gone[0].response_ids.tolist() == list(range(n + 1))
        assert (gone[0].reward, gone[0].blobs) == (n, {"image": [bytes([n])]})
        assert gone.status == "COMPLETED"


def test_the_buffer_may_be_called_from_the_handler():
    async def main():
        buffer = rc.RolloutBuffer(staleness=rc.Staleness(on_expire="discard"))
        again = []

        async def handle():
            async for batch in buffer.events("expired"):
                for event in batch:
                    again.append(event.group_id)
                    gone = event.group
                    gone[0].reset()
                    gone[0].response_ids = np.array([1, 2], np.int32)
                    gone[0].finish_reason = "stop"
                    await buffer.put(gone, version=buffer.train_step - 1)
                    assert buffer.count("math") == len(again)
                if len(again) >= 3:
                    return

        handler = asyncio.create_task(handle())
        await asyncio.sleep(0)
        for name in "abc":
            await buffer.put(group(name), version=0)
        await buffer.advance(5)
        await asyncio.wait_for(handler, 5)
        return again, buffer.count("math", "COMPLETED")

    again, stored = asyncio.run(main())
    assert sorted(again) == ["a", "b", "c"]
    assert stored == 3


def test_nothing_is_told_of_a_group_while_it_is_leased():
    buffer = made("a")
    events = buffer.events()
    lease = buffer.take_batch({"math": 1}, lease=True).lease
    seen = []
    thread = threading.Thread(target=lambda: seen.extend(next(events)), daemon=True)
    thread.start()
    thread.join(0.1)
    assert seen == []
    buffer.confirm(lease)
    thread.join(5)
    assert [(e.kind, e.reason) for e in seen] == [("confirmed", "trained")]


def test_events_come_in_batches():
    buffer = made(staleness=rc.Staleness(on_expire="discard"))
    events = buffer.events("expired")
    for _ in range(10):
        buffer.put(group(), version=0)
    buffer.advance(2)
    assert len(next(events)) == 10


def test_retries_are_told_to_those_who_ask_for_them():
    buffer = made(staleness=rc.Staleness())
    leaving, retried = buffer.events(), buffer.events("retried")
    buffer.put(group("a", rollout(3)), version=0)
    buffer.advance(2)
    (event,) = next(retried)
    assert (event.kind, event.group_id, event.group[0].num_tokens) == ("retried", "a", 3)
    leaving.close()
    assert list(leaving) == []


def test_an_unknown_kind_of_event_is_refused():
    with pytest.raises(rc.InvalidValue, match=r"'died'.*taken, confirmed, expired, discarded"):
        made().events("died")


def test_leaving_the_loop_of_events_ends_it():
    async def main():
        buffer = rc.RolloutBuffer(staleness=rc.Staleness(on_expire="discard"))
        events = buffer.events("expired")
        await buffer.put(group(), version=0)
        await buffer.advance(2)
        assert len(await anext(events)) == 1
        await events.aclose()
        await buffer.put(group(), version=0)
        with pytest.raises(StopAsyncIteration):
            await anext(events)

    asyncio.run(main())


def test_groups_that_wear_out_leave_as_trained():
    buffer = made("a", max_uses=2)
    events = buffer.events()
    buffer.sample(1)
    buffer.sample(1)
    (event,) = read(events, 1)
    assert (event.kind, event.reason, event.group_id) == ("confirmed", "trained", "a")
    assert event.group[0].num_tokens == 2


def test_a_reader_that_waits_for_events_stops_when_the_buffer_closes():
    buffer = made()
    events = buffer.events()
    seen = []
    thread = threading.Thread(target=lambda: seen.append(list(events)), daemon=True)
    thread.start()
    time.sleep(0.05)
    buffer.close()
    thread.join(5)
    assert seen == [[]]


# -- the status of what was trained


@pytest.mark.parametrize("how", ["archive", "kept", "loaded"])
def test_what_was_trained_is_archived_wherever_one_looks(how, tmp_path):
    buffer = made("ab", archive=how != "kept")
    if how == "kept":
        keep_trained(buffer.core)
    buffer.confirm(buffer.take_batch({"math": 1}, train_step=1, lease=True).lease)
    if how == "loaded":  # by a buffer that archives nothing itself
        buffer.save(tmp_path / "saved")
        buffer = made()
        buffer.load(tmp_path / "saved")
    assert buffer.counts() == {("math", Status.ARCHIVED): 1, ("math", Status.COMPLETED): 1}
    looked = [buffer.get([buffer.find("a")])]
    if how == "archive":
        looked.append(buffer.trained_at(1))
    looked.append(buffer.take(9, status="ARCHIVED"))
    for groups in looked:
        assert names(groups) == ["a"]
        assert groups[0].status is Status.ARCHIVED
        assert [rollout.status for rollout in groups[0]] == [Status.ARCHIVED]
        assert groups.batch["status"].tolist() == [list(Status).index(Status.ARCHIVED)]
        assert groups.info.status.tolist() == ["ARCHIVED"]
    assert buffer.get([buffer.find("b")])[0].status is Status.COMPLETED


# -- where what is given back comes


@pytest.mark.parametrize(
    ("order", "first", "newcomer", "expected"),
    [
        (rc.Fifo(), 0, 0, ["a", "b", "new"]),
        (rc.StalestFirst(), 1, 2, ["a", "b", "new"]),
        (rc.StalestFirst(), 1, 0, ["new", "a", "b"]),
        (rc.FreshestFirst(), 1, 2, ["new", "a", "b"]),
        (rc.Lifo(), 0, 0, ["new", "b", "a"]),
    ],
)
def test_groups_come_back_to_their_place_in_the_order(order, first, newcomer, expected):
    buffer = made(order=order)
    for name in "ab":
        buffer.put(group(name), version=first)
    lease = buffer.take_batch({"math": 1}, lease=True).lease
    buffer.put(group("new"), version=newcomer)
    buffer.give_back(lease)
    assert names(buffer.take(3)) == expected


def test_a_take_that_finds_nothing_has_no_lease():
    buffer = rc.RolloutBuffer().sync
    for _ in range(5):
        assert buffer.take(4, lease=True).lease is None
        assert buffer.take_batch({}, lease=5).lease is None
    assert buffer.stats()["leases"] == 0
    assert buffer.core.lease_steps == {}


def test_leases_that_lapse_leave_nothing():
    clock = rc.ManualClock()
    buffer = rc.RolloutBuffer(clock=clock).sync
    buffer.put(rc.Group([rc.Rollout([1], [2], finish_reason="stop")], task="m"), version=0)
    for _ in range(3):
        assert len(buffer.take(1, lease=5)) == 1
        clock.advance(6)
    assert len(buffer) == 1
    assert buffer.core.lease_steps == {}


def test_who_looks_at_a_trained_group_under_a_lease_leaves_it_as_it_was():
    buffer = rc.RolloutBuffer(archive=True).sync
    buffer.put(rc.Group([rc.Rollout([1], [2], finish_reason="stop")], task="m"), version=0)
    buffer.confirm(buffer.take(1, lease=True).lease, train_step=3)
    before = buffer.accounts()
    assert buffer.confirm(buffer.take(1, status="ARCHIVED", lease=True).lease) == 1
    assert (len(buffer.trained_at(3)), len(buffer.trained_at(1))) == (1, 0)
    after = buffer.accounts()
    assert after["m"]["left"] == before["m"]["left"]
    assert after["m"]["archived"] == 1
