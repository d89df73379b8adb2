"""Generation and training take turns."""

from __future__ import annotations

import asyncio
import logging

import pytest
from production_parts import Numbers, Timed, buffer_of, names

import recollect as rc
from recollect.production import (
    AsyncStrategy,
    ColocatedManager,
    EvalStrategy,
    State,
    SyncStrategy,
    Task,
)
from recollect.simulation import in_thread, run

STRATEGIES = [SyncStrategy(), AsyncStrategy(), AsyncStrategy(over_sample=0.5, keep_partial=True)]


def manager_of(generator=None, prompts=None, strategy=None, buffer=None, **options):
    task = Task(
        "math",
        Numbers() if prompts is None else prompts,
        Timed() if generator is None else generator,
        strategy=AsyncStrategy() if strategy is None else strategy,
        **options,
    )
    return ColocatedManager([task], buffer_of() if buffer is None else buffer)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_step_after_step_nothing_is_in_flight_while_the_trainer_has_the_devices(strategy):
    async def main():
        manager = manager_of(
            Timed(lambda g: 1 + int(g.group_id[5:]) % 3, aborts=True), None, strategy
        )
        trained = []
        for step in range(1, 6):
            result = await manager.produce_batch(4, step)
            assert result
            assert (result.asked, result.taken) == ({"math": 4}, {"math": 4})
            assert manager.in_flight == {}
            assert manager.state is State.PAUSED
            assert await manager.confirm(result) == 4
            trained += names(result)
        assert len(set(trained)) == 20
        drawn = set(manager.tasks["math"].prompts.handed)
        waiting = {group.group_id for group in manager.tasks["math"].prompts.back}
        stored = {e.group_id for e in manager.buffer.core.entries.values()}
        assert drawn == set(trained) | waiting | stored  # nothing is lost

    run(main())


def test_what_was_over_sampled_counts_for_the_next_step():
    async def main():
        manager = manager_of(strategy=AsyncStrategy(over_sample=0.5), buffer=stale_allowed())
        first = await manager.produce_batch(4, 1)
        assert manager.tasks["math"].prompts.count == 6
        left = {f"math-{n}" for n in range(6)} - set(names(first))
        result = await manager.produce_batch(4, 2)
        assert manager.tasks["math"].prompts.count == 10
        assert set(names(result)[:2]) == left

    run(main())


def stale_allowed(**options):
    return buffer_of(staleness=rc.Staleness(max_staleness=3), **options)


def test_several_tasks_share_a_batch_by_weight_in_declared_order():
    async def main():
        generator = Timed()
        tasks = [
            Task(name, Numbers(name), generator, weight=weight)
            for name, weight in (("math", 2), ("code", 1), ("chat", 0))
        ]
        manager = ColocatedManager(tasks, buffer_of())
        result = await manager.produce_batch(7, 1)
        assert list(result.groups) == ["math", "code", "chat"]
        assert result.taken == {"math": 5, "code": 2, "chat": 0}
        assert [what for _, what in generator.calls] == ["continue 0", "pause"]  # shared: once
        manager.tasks["chat"].weight = 7.0  # weights may change between steps
        result = await manager.produce_batch(10, 2)
        assert result.taken == {"math": 2, "code": 1, "chat": 7}
        result = await manager.produce_batch({"code": 2}, 3)
        assert result.taken == {"math": 0, "code": 2, "chat": 0}

    run(main())


def test_a_batch_that_was_given_back_is_taken_again():
    async def main():
        manager = manager_of(buffer=stale_allowed())
        first = await manager.produce_batch(4, 1)
        assert await manager.give_back(first) == 4
        again = await manager.produce_batch(4, 1)
        assert names(again) == names(first)
        assert all(group.redelivered for group in again.groups["math"])
        assert manager.tasks["math"].prompts.count == 4

    run(main())


def test_a_failure_is_raised_and_after_it_production_goes_on():
    class Fails(Timed):
        fails = True

        async def generate(self, group, *, keep_partial):
            if self.fails and group.group_id == "math-2":
                raise RuntimeError("out of memory")
            return await super().generate(group, keep_partial=keep_partial)

    async def main():
        generator = Fails(5.0)
        manager = manager_of(generator)
        with pytest.raises(RuntimeError, match="out of memory"):
            await manager.produce_batch(4, 1)
        assert asyncio.get_running_loop().time() == 0.0  # at once
        assert manager.error is not None
        await manager.pause()
        assert manager.in_flight == {}
        generator.fails = False
        result = await manager.produce_batch(4, 1)
        assert sorted(names(result)) == [f"math-{n}" for n in range(4)]
        assert manager.error is None

    run(main())


def test_the_last_prompts_make_a_smaller_batch_and_then_none():
    class Few(Numbers):
        def next(self):
            if self.count == 6:
                raise rc.errors.OutOfPrompts("over")
            return super().next()

    async def main():
        manager = manager_of(prompts=Few())
        assert (await manager.produce_batch(4, 1)).status is State.RUNNING
        last = await manager.produce_batch(4, 2)
        assert (last.status, last.taken, bool(last)) == (State.FINISHED, {"math": 2}, True)
        none = await manager.produce_batch(4, 3)
        assert (none.status, none.taken, bool(none)) == (State.FINISHED, {}, False)
        assert await manager.confirm(none) == 0

    run(main())


def test_weights_that_are_too_old_give_an_empty_batch():
    async def main():
        manager = manager_of(buffer=buffer_of(staleness=rc.Staleness()))
        result = await manager.produce_batch(4, 3, version=0)
        assert (result.status, bool(result)) == (State.OUTDATED, False)
        assert manager.tasks["math"].prompts.count == 0

    run(main())


# -- rewards that come late -----------------------------------------------------------------------
def test_groups_are_judged_when_their_reward_comes_and_no_trainer_sees_them_before():
    async def main():
        buffer = buffer_of(needs=("reward",))
        manager = manager_of(Unscored(), buffer=buffer, valid=lambda group: group[0].reward > 0)
        making = asyncio.ensure_future(manager.produce_batch(4, 1))
        scored = 0
        while not making.done():
            claimed = asyncio.ensure_future(buffer.claim(9, "reward"))
            await asyncio.wait([claimed, making], return_when="FIRST_COMPLETED")
            if not claimed.done():
                claimed.cancel()
                break
            for group in claimed.result():
                reward = float(scored not in (1, 2))  # two of them are solved by nobody
                scored += 1
                await buffer.annotate([group[0].rollout_id], group[0].attempt, reward=reward)
                await asyncio.sleep(0)
        result = await making
        assert scored == 6
        assert [group[0].reward for group in result.groups["math"]] == [1.0] * 4
        assert result.filtered == 2
        assert (result.window.reward_count, result.raw_reward) == (6, 4 / 6)
        await manager.shutdown()
        assert buffer.core.judge is None

    run(main())


class Unscored(Timed):
    async def generate(self, group, *, keep_partial):
        group = await super().generate(group, keep_partial=keep_partial)
        group[0].reward = None
        return group


def test_what_was_annotated_while_nobody_judged_is_judged_at_the_beginning():
    async def main():
        buffer = buffer_of(needs=("reward",))
        rollout = rc.Rollout(response_ids=[1], finish_reason="stop", versions=[0])
        key = await buffer.put(rc.Group([rollout], task="math", group_id="early"))
        buffer.core.judge = lambda keys: []  # a manager that was here before, and kept it back
        await buffer.annotate([rollout.rollout_id], 0, reward=1.0)
        assert not buffer.is_ready({"math": 1})
        manager = manager_of(buffer=buffer, valid=lambda group: True)
        result = await manager.produce_batch(1, 1)
        assert result.groups["math"].keys.tolist() == [key]
        await manager.shutdown()

    run(main())


def test_an_async_reward_of_one_group_does_not_hold_up_the_others():
    async def main():
        async def reward(group):
            await asyncio.sleep(2.0)
            group[0].reward = 0.5
            return group

        manager = manager_of(reward=reward)
        result = await manager.produce_batch(8, 1)
        assert asyncio.get_running_loop().time() == 3.0
        assert [group[0].reward for group in result.groups["math"]] == [0.5] * 8

    run(main())


# -- evaluation, threads, words -------------------------------------------------------------------
def test_evaluation_shares_generator_and_buffer_and_never_the_training_groups():
    async def main():
        generator = Timed()
        tasks = [
            Task("math", Numbers("math"), generator),
            Task("exam", Numbers("exam"), generator, strategy=EvalStrategy(), weight=0),
        ]
        manager = ColocatedManager(tasks, buffer_of())
        for step in (1, 2):
            trained = await manager.produce_batch(4, step)
            assert trained.taken == {"math": 4, "exam": 0}
            await manager.confirm(trained)
        exam = await manager.produce_batch({"exam": 3}, 3)
        assert exam.taken == {"math": 0, "exam": 3}
        assert {group.task for group in exam.groups["exam"]} == {"exam"}

    run(main())


def test_a_plain_program_uses_the_blocking_face():
    manager = ColocatedManager([Task("math", Numbers(), Timed(0.0))], rc.RolloutBuffer())
    for step in (1, 2):
        result = manager.sync.produce_batch(3, step)
        assert len(result) == 3
        manager.sync.confirm(result)
    assert manager.sync.stats()["progress"]["math"]["consumed"] == 6
    manager.sync.shutdown()
    assert manager.sync._thread is None


def test_the_blocking_face_refuses_to_block_its_own_loop():
    async def main():
        manager = manager_of()
        await manager.produce_batch(1, 1)
        with pytest.raises(rc.errors.ProductionError, match="would block the event loop"):
            manager.sync.pause()
        assert await in_thread(manager.sync.pause) == 0.0

    run(main())


def test_a_manager_lives_on_one_loop():
    manager = manager_of(Timed(0.0), buffer=rc.RolloutBuffer())
    first = asyncio.new_event_loop()
    first.run_until_complete(manager.produce_batch(1, 1))

    async def other():
        with pytest.raises(rc.errors.ProductionError, match="lives on one event loop"):
            await manager.pause()

    asyncio.run(other())
    first.run_until_complete(manager.shutdown())
    first.close()


def test_one_line_is_logged_of_each_batch(caplog):
    async def main():
        with caplog.at_level(logging.INFO, "recollect.production"):
            await manager_of(Timed(2.0)).produce_batch(4, 1)
        (line,) = [record.getMessage() for record in caplog.records]
        assert line == (
            "step 1 RUNNING: taken math=4/4; left nothing; failed 0 filtered 0; raw reward 1; "
            "4 rollouts 8 tokens in 2 s; waited 2 s, pause 0 s; 0 in flight, the oldest 0 s; "
            "generated 4 mean 2 s p50 2 p99 2 p99/p50 1; taken 4 mean 2 s p50 2 p99 2 p99/p50 1"
        )

    run(main())


def test_a_manager_shows_what_it_does():
    task = Task("math", Numbers(), Timed())
    manager = ColocatedManager([task], rc.RolloutBuffer())
    assert repr(manager) == "ColocatedManager(math: PAUSED, version 0, 0 in flight)"


def test_wrong_tasks_and_sizes_are_told():
    task = Task("math", Numbers(), Timed())
    with pytest.raises(rc.InvalidValue, match="two of the name 'math'"):
        ColocatedManager([task, task], rc.RolloutBuffer())
    with pytest.raises(rc.InvalidValue, match="tasks: expected at least one"):
        ColocatedManager([], rc.RolloutBuffer())
    with pytest.raises(rc.InvalidValue, match=r"buffer: expected an rc\.RolloutBuffer"):
        ColocatedManager([task], [])
    with pytest.raises(rc.InvalidValue, match=r"tasks: .*they come first, then the buffer"):
        ColocatedManager(rc.RolloutBuffer(), [task])
    with pytest.raises(rc.InvalidValue, match="tasks: expected Task objects, got 3"):
        ColocatedManager(3, rc.RolloutBuffer())
    with pytest.raises(rc.InvalidValue, match="staleness: there is none for task 'math'"):
        ColocatedManager([task], rc.RolloutBuffer(staleness={"code": rc.Staleness()}))

    async def main():
        with pytest.raises(rc.InvalidValue, match="no task 'code'; there are math"):
            await manager_of().produce_batch({"code": 1}, 1)

    run(main())
