"""The rules of managers, on virtual time: states, pauses, versions, failures."""

from __future__ import annotations

import asyncio
import traceback

import pytest
from production_parts import Numbers, Timed, buffer_of, names, settle

import recollect as rc
from recollect.production import (
    AsyncStrategy,
    ColocatedManager,
    DisaggregatedManager,
    State,
    SyncStrategy,
    Task,
)
from recollect.simulation import run


def now():
    return asyncio.get_running_loop().time()


def number(group):
    return int(group.group_id.rpartition("-")[2])


def disaggregated(generator=None, prompts=None, rule=None, strategy=None, **options):
    rule = rc.Staleness() if rule is None else rule
    about = {} if strategy is None else {"strategy": strategy}
    task = Task("math", prompts or Numbers(), generator or Timed(), **about)
    return DisaggregatedManager([task], buffer_of(staleness=rule), **options)


# -- outdated


def test_outdated_and_a_newer_version_exists_gives_an_empty_batch():
    async def main():
        manager = disaggregated()
        manager.start(4)
        await manager.confirm(await manager.get_batch(4, 1))
        result = await manager.get_batch(4, 2)  # version 1 exists, the generators have version 0
        assert not result
        assert result.status is State.OUTDATED
        await manager.set_version(1)
        result = await manager.get_batch(4, 2)
        assert len(names(result)) == 4
        assert result.status is State.RUNNING or result.status is State.OUTDATED
        await manager.shutdown()

    run(main())


def test_outdated_with_nothing_newer_and_no_full_batch_is_an_error_with_the_whole_state():
    async def main():
        manager = disaggregated()
        manager.start(4)
        await asyncio.sleep(100)
        assert manager.state is State.OUTDATED
        await manager.buffer.advance(3)  # somebody else: what version 0 made is too old now
        with pytest.raises(rc.errors.ProductionError, match="lacks groups of math") as told:
            await manager.get_batch(4, 1)
        for part in ("version", "OUTDATED", "target", "consumed", "in_flight"):
            assert part in str(told.value)
        await manager.shutdown()

    run(main(), limit=1000)


def test_outdated_with_a_full_batch_returns_it_and_marks_it():
    async def main():
        manager = disaggregated()
        manager.start(4)
        await asyncio.sleep(100)  # step 1 is there, and version 0 is too old for step 2
        result = await manager.get_batch(4, 1)
        assert len(names(result)) == 4
        assert result.status is State.OUTDATED
        await manager.shutdown()

    run(main())


def test_shut_down_while_waiting_gives_an_empty_batch():
    async def main():
        manager = disaggregated(Timed(seconds=1000))
        manager.start(4)
        waiting = asyncio.create_task(manager.get_batch(4, 1))
        await asyncio.sleep(5)
        await manager.shutdown()
        result = await waiting
        assert not result
        assert result.status is State.FINISHED
        assert now() <= 5 + 300  # shutting down may drain

    run(main())


# -- running ahead


@pytest.mark.parametrize(("allowed", "interval"), [(0, 1), (0, 3), (1, 1), (1, 2), (3, 1)])
def test_run_ahead_is_bounded_by_staleness(allowed, interval):
    async def main():
        prompts = Numbers()
        rule = rc.Staleness(allowed, interval)
        manager = disaggregated(prompts=prompts, rule=rule)
        manager.start(4)
        await asyncio.sleep(1000)
        assert manager.state is State.OUTDATED
        assert manager.progress.target_step == rule.threshold  # version 0
        assert len(prompts.handed) == 4 * rule.threshold
        await manager.set_version(2)
        await asyncio.sleep(1000)
        assert manager.progress.target_step == 2 + rule.threshold
        assert len(prompts.handed) == 4 * (2 + rule.threshold)
        await manager.shutdown()

    run(main())


# -- pausing


def test_pause_stores_what_finishes():
    async def main():
        generator = Timed(lambda group: 10 + number(group))
        manager = disaggregated(generator)
        manager.start(4)
        await asyncio.sleep(5)
        await manager.pause()
        assert now() == 13.0
        assert manager.state is State.PAUSED
        assert manager.buffer.count("math", "COMPLETED") == 4
        assert not manager.in_flight
        await manager.shutdown()

    run(main())


def test_after_drain_timeout_the_rest_is_cancelled_and_its_prompts_given_back():
    async def main():
        prompts = Numbers()
        generator = Timed(lambda group: 10.0 if number(group) < 2 else 1e5)
        manager = disaggregated(generator, prompts, drain_timeout=60.0)
        manager.start(4)
        await asyncio.sleep(5)
        await manager.pause()
        assert now() == 65.0
        assert manager.buffer.count("math", "COMPLETED") == 2
        assert sorted(prompts.given_back) == ["math-2", "math-3"]
        assert not manager.in_flight
        generator.seconds = lambda group: 1.0
        await manager.continue_(0)
        result = await manager.get_batch(4, 1)
        assert sorted(names(result)) == ["math-0", "math-1", "math-2", "math-3"]
        await manager.shutdown()

    run(main())


def test_a_generator_is_asked_again_every_5_seconds():
    async def main():
        generator = Timed(seconds=21)
        manager = disaggregated(generator)
        manager.start(1)
        await settle()
        await manager.pause()
        asked = [time for time, what in generator.calls if what == "pause"]
        assert asked == [0.0, 5.0, 10.0, 15.0, 20.0]
        await manager.shutdown()

    run(main())


def test_a_generator_that_does_not_answer_to_pause_is_not_waited_for_beyond_30_seconds():
    class Deaf(Timed):
        async def pause(self):
            await super().pause()
            await asyncio.sleep(1e5)

    async def main():
        generator = Deaf(seconds=100)
        manager = disaggregated(generator)
        manager.start(1)
        await settle()
        await manager.pause()
        assert now() == 100.0
        asked = [time for time, what in generator.calls if what == "pause"]
        assert asked == [0.0, 35.0, 70.0]
        assert manager.buffer.count("math", "COMPLETED") == 1
        await manager.shutdown()

    run(main())


def test_a_colocated_manager_takes_only_when_everything_is_stored():
    async def main():
        generator = Timed(lambda group: 10.0 + number(group))
        task = Task("math", Numbers(), generator, strategy=AsyncStrategy(over_sample=1))
        manager = ColocatedManager([task], buffer_of())
        result = await manager.produce_batch(4, 1)
        assert len(names(result)) == 4
        assert not manager.in_flight
        assert manager.buffer.count("math", "COMPLETED") == 4  # those that were over-sampled
        assert manager.state is State.PAUSED
        await manager.shutdown()

    run(main())


def test_the_sync_strategy_stops_at_exactly_enough():
    async def main():
        prompts, calls = Numbers(), []

        def valid(group):
            calls.append(group.group_id)
            return number(group) % 3 != 0

        task = Task("math", prompts, Timed(), strategy=SyncStrategy(), valid=valid)
        manager = ColocatedManager([task], buffer_of())
        for step in (1, 2, 3):
            result = await manager.produce_batch(4, step)
            assert len(names(result)) == 4
            assert len(manager.buffer) == 4  # the leased ones
            assert not manager.in_flight
            await manager.confirm(result)
        assert sorted(calls, key=prompts.handed.index) == prompts.handed
        kept = [n for n in range(len(calls)) if n % 3]
        assert len(kept) == 12
        await manager.shutdown()

    run(main())


# -- versions


def test_new_weights_without_draining_abort_nothing_that_can_be_in_time():
    async def main():
        generator, prompts = Timed(seconds=50), Numbers()
        manager = disaggregated(generator, prompts, rc.Staleness(max_staleness=1))
        manager.start(4)
        await asyncio.sleep(10)
        assert await manager.set_version(1) == 0
        result = await manager.get_batch(4, 2)
        assert now() == 50.0
        assert sorted(names(result)) == [f"math-{n}" for n in range(4)]
        assert not prompts.given_back
        await manager.shutdown()

    run(main())


def test_hopeless_generations_are_aborted_and_their_prompts_given_back():
    async def main():
        generator, prompts = Timed(seconds=50), Numbers()
        manager = disaggregated(generator, prompts, rc.Staleness())
        manager.start(4)
        await asyncio.sleep(10)
        await manager.buffer.advance(2)  # what version 0 generates is too old for step 2
        assert await manager.set_version(1) == 4
        assert prompts.given_back == [f"math-{n}" for n in range(4)]
        result = await manager.get_batch(4, 2)
        assert now() == 60.0
        assert sorted(names(result)) == [f"math-{n}" for n in range(4)]
        assert {int(v) for g in result.groups["math"] for r in g for v in r.versions} == {1}
        await manager.shutdown()

    run(main())


# -- failures


class Breaks(Timed):
    async def generate(self, group, *, keep_partial):
        group = await super().generate(group, keep_partial=keep_partial)
        if number(group) == 2:
            raise ConnectionError("the engine is gone")
        return group


def test_a_failing_producer_is_raised_at_the_consumer_at_once_with_its_own_traceback():
    async def main():
        prompts = Numbers()
        manager = disaggregated(Breaks(lambda group: 10.0 + number(group)), prompts)
        manager.start(4)
        with pytest.raises(ConnectionError, match="the engine is gone") as told:
            await manager.get_batch(4, 1)
        assert now() == 12.0
        frames = [frame.name for frame in traceback.extract_tb(told.value.__traceback__)]
        assert "generate" in frames
        await manager.pause()
        assert "math-2" in prompts.given_back
        await manager.shutdown()

    run(main())


@pytest.mark.parametrize("what", ["reward", "valid"])
def test_a_failing_reward_or_filter_is_raised_at_the_consumer(what):
    def broken(group):
        raise ZeroDivisionError(f"{what} of {group.group_id}")

    async def main():
        task = Task("math", Numbers(), Timed(), **{what: broken})
        manager = DisaggregatedManager([task], buffer_of())
        manager.start(1)
        with pytest.raises(ZeroDivisionError, match=f"{what} of math-0") as told:
            await manager.get_batch(1, 1)
        assert "broken" in [f.name for f in traceback.extract_tb(told.value.__traceback__)]
        await manager.shutdown()

    run(main())


def test_a_generation_that_hangs_shows_up_in_the_statistics():
    async def main():
        generator = Timed(lambda group: 1e6 if number(group) == 1 else 10.0)
        manager = disaggregated(generator)
        manager.start(4)
        await asyncio.sleep(5000)
        told = manager.stats()["in_flight"]["math"]
        assert told == {"count": 1, "oldest_seconds": 5000.0, "oldest_group": "math-1"}
        manager.drain_timeout = 10.0
        await manager.shutdown()

    run(main())


# -- results


def test_a_result_says_what_was_produced():
    async def main():
        prompts = Numbers(size=2)
        generator = Timed(lambda group: 10.0 + number(group))
        task = Task("math", prompts, generator, valid=lambda group: number(group) != 1)
        manager = DisaggregatedManager([task], buffer_of())
        manager.start(4)
        result = await manager.get_batch(4, 1)
        window = result.windows["math"]
        assert result.asked == result.taken == {"math": 4}
        assert (result.failed, result.filtered) == (0, 1)
        assert window.rollouts == 10  # two of each of five groups
        assert window.tokens == 20
        assert (window.reward_sum, window.reward_count) == (10.0, 10)  # before the filter
        assert result.generated.count == 5
        assert result.line().startswith("step 1 ")
        assert "math=4/4" in result.line()
        await manager.confirm(result)
        await manager.set_version(1)
        again = await manager.get_batch(4, 2)
        assert again.windows["math"].rollouts == 8  # of the new window alone
        await manager.shutdown()

    run(main())
