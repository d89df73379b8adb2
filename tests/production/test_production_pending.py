"""Generations in flight: scheduled, claimed once, cancelled; and the signal that all wait on."""

from __future__ import annotations

import asyncio

import pytest

import recollect as rc
from recollect.production import Flight, Pending, prompt_of
from recollect.production.signal import Signal
from recollect.simulation import run


def flight(name="g"):
    group = rc.Group([rc.Rollout(), rc.Rollout()], task="math", group_id=name, prompt_ids=[1])
    return Flight(group, None, 0, 0.0)


class Stop:
    on = False

    def __call__(self):
        return self.on


def pending_of(stop=None):
    return Pending(stop or Stop(), Signal())


async def forever(flight):
    await asyncio.Event().wait()


def test_a_stop_and_the_limit_are_looked_at_when_a_flight_is_added():
    async def main():
        stop = Stop()
        pending = pending_of(stop)
        assert pending.schedule(flight("a"), forever, limit=2)
        assert pending.schedule(flight("b"), forever, limit=2)
        assert not pending.schedule(flight("c"), forever, limit=2)
        stop.on = True
        assert not pending.schedule(flight("d"), forever)
        assert [each.group_id for each in pending.in_flight] == ["a", "b"]
        pending.cancel_all()

    run(main())


def test_a_result_is_claimed_once():
    async def main():
        pending, one = pending_of(), flight()
        pending.schedule(one, forever)
        assert pending.claim(one)
        assert not pending.claim(one)

    run(main())


def test_a_claimed_result_is_in_flight_until_it_is_stored():
    async def main():
        pending, one = pending_of(), flight()
        pending.schedule(one, forever)
        pending.claim(one)
        drained = asyncio.ensure_future(pending.drained())
        await asyncio.sleep(1)
        assert not drained.done()
        assert len(pending) == 1
        pending.done(one)
        await drained
        assert len(pending) == 0

    run(main())


def test_after_cancel_all_nobody_can_claim():
    async def main():
        pending, one, two = pending_of(), flight("a"), flight("b")
        pending.schedule(one, forever)
        pending.schedule(two, forever)
        pending.claim(one)
        assert pending.cancel_all() == [two]  # what is claimed will be stored
        assert not pending.claim(two)
        assert pending.cancel_all() == []
        assert pending.in_flight == (one,)
        await asyncio.sleep(0)
        assert two._task.cancelled()
        assert not one._task.done()
        pending.done(one)

    run(main())


def test_a_wait_that_is_cancelled_leaves_no_trace():
    async def main():
        signal = Signal()
        waiting = asyncio.ensure_future(signal.until(lambda: False))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert not signal._waiting
        signal.notify()

    run(main())


@pytest.mark.parametrize("seed", range(20))
def test_news_between_looking_and_sleeping_is_not_missed(seed):
    async def main():
        signal, seen = Signal(), []

        async def reader():
            while len(seen) < 100:
                count = signal.count
                await asyncio.sleep(0)  # whatever comes here counts
                await signal.after(count)
                seen.append(signal.count)

        async def writer():
            while len(seen) < 100:
                signal.notify()
                await asyncio.sleep(0)

        await asyncio.gather(reader(), writer(), writer())

    run(main(), seed=seed)


def test_a_prompt_is_given_back_as_it_came_whatever_the_generator_did_to_it():
    one = flight()
    first = one.group[0]
    first.response_ids, first.finish_reason, first.reward = [4, 5], "stop", 1.0
    first.check()
    one.group.extras["note"] = "mine"
    prompt = one.prompt()
    assert prompt.group_id == "g"
    assert prompt.status is rc.Status.INIT
    assert [rollout.num_tokens for rollout in prompt] == [0, 0]
    assert [rollout.attempt for rollout in prompt] == [1, 0]  # one was tried
    assert [r.rollout_id for r in prompt] == [r.rollout_id for r in one.group]
    assert first.response_ids.tolist() == [4, 5]  # what the generator has is its own


def test_a_trajectory_of_several_segments_is_one_prompt():
    rollouts = [
        rc.Rollout(response_ids=[2], finish_reason="stop", rollout_id="r", segment=segment)
        for segment in (0, 1)
    ]
    prompt = prompt_of(rc.Group([*rollouts, rc.Rollout(rollout_id="s")], prompt_ids=[1]))
    assert [rollout.rollout_id for rollout in prompt] == ["r", "s"]
    assert [rollout.segment for rollout in prompt] == [0, 0]


def test_the_oldest_tokens_of_a_continued_group_count():
    old = rc.Rollout([1], [2, 3], versions=[-1, 4], dispatch_version=5, finish_reason="abort")
    group = rc.Group([old, rc.Rollout([1])], task="math")
    assert Flight(group, group, 6, 0.0).oldest == 4
    assert Flight(group, None, 6, 0.0).oldest == 6
    assert Flight(group, group, 6, 0.0).tokens == 2
