"""Corners of production where several things come together: each was wrong once."""

from __future__ import annotations

import asyncio
import threading
import tracemalloc

import pytest
from production_parts import Numbers, Timed, buffer_of, completed, names, settle

import recollect as rc
from recollect.errors import JournalError, OutOfPrompts, ProductionError, SnapshotError
from recollect.production import (
    AsyncStrategy,
    ColocatedManager,
    DisaggregatedManager,
    EvalStrategy,
    JsonlPrompts,
    ListPrompts,
    RemoteManager,
    State,
    SyncStrategy,
    Task,
)
from recollect.production.blocking import BlockingManager
from recollect.production.context import Consumption
from recollect.production.prompts import jsonl
from recollect.simulation import run


class Few(Numbers):
    """So many prompts, and those given back."""

    def __init__(self, limit, **options):
        super().__init__(**options)
        self.limit = limit

    def next(self):
        if not self.back and self.count >= self.limit:
            raise OutOfPrompts("no more")
        return super().next()


class Unscored(Timed):
    async def generate(self, group, *, keep_partial):
        group = await super().generate(group, keep_partial=keep_partial)
        for rollout in group:
            rollout.reward = None
        return group


def managed(kind, buffer, *, prompts=None, generator=None, strategy=None, task="math", **options):
    task = Task(
        task,
        Numbers(task) if prompts is None else prompts,
        Timed() if generator is None else generator,
        strategy=AsyncStrategy() if strategy is None else strategy,
        **options,
    )
    return kind([task], buffer)


async def batch_of(manager, size):
    """The first batch, of either kind of manager."""
    if isinstance(manager, ColocatedManager):
        return await manager.produce_batch(size, 1)
    manager.start(size)
    return await manager.get_batch(size, 1)


def promised(buffer):
    return buffer.stats()["promised"]


# -- weights --------------------------------------------------------------------------------------
def test_what_evaluates_is_not_aborted_because_training_went_on():
    async def main():
        buffer = buffer_of()
        generator = Timed(lambda group: 100.0 if group.task == "eval" else 1.0)
        tasks = [
            Task("math", Numbers(), generator),
            Task("eval", Numbers("eval"), generator, strategy=EvalStrategy(), weight=0),
        ]
        manager = DisaggregatedManager(tasks, buffer)
        manager.start(2)
        evaluating = asyncio.create_task(manager.evaluate({"eval": 2}))
        for step in range(1, 6):
            result = await manager.get_batch(2, step)
            await manager.confirm(result)
            assert await manager.set_version(step) == 0
        result = await evaluating
        assert [group.extras["version"] for group in result.groups["eval"]] == [0, 0]
        assert tasks[1].prompts.given_back == []
        await manager.shutdown()

    run(main())


def test_a_task_without_a_share_does_not_make_a_batch_outdated():
    async def main():
        rules = {"math": rc.Staleness(max_staleness=4), "code": rc.Staleness()}
        buffer = buffer_of(staleness=rules)
        tasks = [Task("math", Numbers(), Timed()), Task("code", Numbers("code"), Timed(), weight=0)]
        manager = ColocatedManager(tasks, buffer)
        result = await manager.produce_batch(3, 3, version=0)
        assert (result.status, result.taken) == (State.RUNNING, {"math": 3, "code": 0})
        assert tasks[1].prompts.handed == []

    run(main())


def test_a_generator_that_cannot_continue_does_not_leave_another_continuing():
    """What a call began has ended when it raises, so that a later pause is the last word."""

    class Slow(Timed):
        async def continue_(self, version):
            await asyncio.sleep(5)
            await super().continue_(version)

    class Refuses(Timed):
        async def continue_(self, version):
            raise RuntimeError("no memory")

    async def main():
        slow = Slow()
        tasks = [Task("math", Numbers(), slow), Task("code", Numbers("code"), Refuses())]
        manager = ColocatedManager(tasks, buffer_of())
        with pytest.raises(RuntimeError, match="no memory"):
            await manager.continue_(1)
        await manager.pause()
        await asyncio.sleep(10)
        assert [what for _, what in slow.calls] == ["continue 1", "pause"]

    run(main())


def test_a_generator_that_is_cancelled_as_it_begins_is_told_to_the_trainer():
    class Cancels(Timed):
        async def continue_(self, version):
            raise asyncio.CancelledError

    async def main():
        manager = managed(DisaggregatedManager, buffer_of(), generator=Cancels())
        manager.start(1)
        with pytest.raises(ProductionError, match="a generator was cancelled"):
            await manager.get_batch(1, 1)
        await manager.shutdown()

    run(main())


# -- the end --------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", [ColocatedManager, DisaggregatedManager])
def test_nothing_is_produced_after_a_shutdown_that_met_continue(kind):
    class Slow(Timed):
        async def continue_(self, version):
            await asyncio.sleep(5)
            await super().continue_(version)

    async def main():
        generator = Slow()
        manager = managed(kind, buffer_of(), generator=generator)
        if kind is ColocatedManager:
            going = asyncio.create_task(manager.produce_batch(2, 1))
        else:
            going = asyncio.create_task(manager.continue_(0))
        await asyncio.sleep(1)
        await manager.shutdown()
        result = await going
        assert not result
        await asyncio.sleep(10)
        assert manager.state is State.FINISHED
        assert generator.started == []
        assert generator.calls[-1][1] == "pause"

    run(main())


@pytest.mark.parametrize("kind", [ColocatedManager, DisaggregatedManager])
def test_a_shutdown_ends_the_wait_for_the_last_rewards(kind):
    async def main():
        buffer = buffer_of(needs=("reward",))
        manager = managed(kind, buffer, prompts=Few(3), generator=Unscored())
        waiting = asyncio.create_task(batch_of(manager, 4))
        await asyncio.sleep(5)
        assert not waiting.done()
        await manager.shutdown()
        result = await waiting
        assert (bool(result), result.status) == (False, State.FINISHED)

    run(main())


def test_a_shutdown_while_rewards_are_awaited_is_the_end_of_a_colocated_step():
    async def main():
        manager = managed(ColocatedManager, buffer_of(needs=("reward",)), generator=Unscored())
        waiting = asyncio.create_task(manager.produce_batch(2, 1))
        await asyncio.sleep(5)
        await manager.shutdown()
        result = await waiting
        assert (bool(result), result.status) == (False, State.FINISHED)

    run(main())


@pytest.mark.parametrize("kind", [ColocatedManager, DisaggregatedManager])
def test_the_last_groups_are_waited_for_though_some_are_filtered_late(kind):
    async def main():
        buffer = buffer_of(needs=("reward",))
        valid = lambda group: group[0].reward > 0  # noqa: E731
        manager = managed(kind, buffer, prompts=Few(3), generator=Unscored(), valid=valid)
        waiting = asyncio.create_task(batch_of(manager, 4))
        await asyncio.sleep(5)
        for place, group in enumerate(await buffer.claim(3, "reward")):
            reward = float(place != 1)
            await buffer.annotate([group[0].rollout_id], group[0].attempt, reward=reward)
            await asyncio.sleep(1)
        result = await waiting
        assert (len(names(result)), result.status) == (2, State.FINISHED)
        assert (result.filtered, result.window.reward_count) == (1, 3)
        await manager.shutdown()

    run(main())


@pytest.mark.parametrize("kind", [ColocatedManager, DisaggregatedManager])
def test_the_last_groups_are_taken_once_though_a_journal_is_slow_and_much_happens(
    kind, monkeypatch
):
    taken = []

    async def main():
        buffer = buffer_of()
        manager = managed(kind, buffer, prompts=Few(2))

        class Follower:
            def follow(self, effect):
                pass

            def settle(self, number):
                pass

        async def slow(effects, number, *, changed=True):
            taken.extend(buffer.table.core.leases.held())
            assert len(taken) < 20, "taken again and again"
            await asyncio.sleep(1.0)

        async def happens():
            while True:
                await asyncio.sleep(0.1)
                manager._changed.notify()

        buffer.table.follow(Follower())
        monkeypatch.setattr(type(buffer.table.core.effects), "settle_async", slow)
        noise = asyncio.create_task(happens())
        result = await batch_of(manager, 4)
        assert (len(names(result)), result.status) == (2, State.FINISHED)
        noise.cancel()
        await manager.shutdown()

    run(main())
    assert len(set(taken)) == 1


# -- rewards and filters --------------------------------------------------------------------------
def test_a_group_whose_reward_failed_is_failed_and_not_judged():
    async def main():
        judged = []

        def reward(group):
            if group.group_id == "math-0":
                group[0].finish_reason, group[0].error = "error", "no answer"
            return group

        manager = managed(
            ColocatedManager, buffer_of(), reward=reward, strategy=SyncStrategy(),
            valid=lambda group: judged.append(group.group_id) or group.group_id != "math-0",
        )  # fmt: skip
        result = await manager.produce_batch(2, 1)
        assert (result.failed, result.filtered) == (1, 0)
        assert sorted(judged) == sorted(names(result)) == ["math-1", "math-2"]
        assert result.window.reward_count == 2

    run(main())


def test_late_rewards_are_in_the_raw_statistics_of_a_task_without_a_filter():
    async def main():
        buffer = buffer_of(needs=("reward",))
        prompts = Numbers(size=2)
        manager = managed(ColocatedManager, buffer, prompts=prompts, generator=Unscored())
        making = asyncio.create_task(manager.produce_batch(3, 1))
        await asyncio.sleep(5)
        for place, group in enumerate(await buffer.claim(3, "reward")):
            ids = [rollout.rollout_id for rollout in group]
            await buffer.annotate(ids[:1], 0, reward=float(place))
            await buffer.annotate(ids[1:], 0, reward=float(place))
        result = await making
        assert (result.window.reward_count, result.raw_reward) == (6, 1.0)
        await manager.shutdown()

    run(main())


def test_rewards_that_are_there_are_counted_once_where_other_cells_come_late():
    async def main():
        buffer = buffer_of(needs=("reward", "values"))
        manager = managed(ColocatedManager, buffer)
        making = asyncio.create_task(manager.produce_batch(2, 1))
        await asyncio.sleep(5)
        for group in await buffer.claim(2, "values"):
            await buffer.annotate([group[0].rollout_id], 0, arrays={"values": [[0.5, 0.5]]})
        result = await making
        assert (result.window.reward_count, result.raw_reward) == (2, 1.0)
        await manager.shutdown()

    run(main())


def test_what_was_whole_and_not_judged_yet_is_judged_after_a_restore(tmp_path):
    async def life(judge):
        buffer = buffer_of(needs=("reward",))
        return managed(
            ColocatedManager, buffer, generator=Unscored(), valid=judge, prompts=Numbers()
        )

    async def main():
        busy = asyncio.Event()

        async def slow(group):
            await busy.wait()
            return True

        first = await life(slow)
        making = asyncio.create_task(first.produce_batch(2, 1))
        await asyncio.sleep(5)
        for group in await first.buffer.claim(2, "reward"):
            await first.buffer.annotate([group[0].rollout_id], 0, reward=1.0)
        await settle()
        async with first.checkpoint(tmp_path / "one", 0):
            pass
        making.cancel()
        await asyncio.wait([making])
        await first.shutdown()

        second = await life(lambda group: True)
        assert await second.restore(tmp_path / "one") == 0
        async with asyncio.timeout(100):
            result = await second.produce_batch(2, 1)
        assert names(result) == ["math-0", "math-1"]
        assert second.tasks["math"].prompts.handed == []
        await second.shutdown()

    run(main())


def test_a_judge_that_cannot_read_a_group_is_told_to_the_trainer():
    async def main():
        buffer = buffer_of(needs=("reward",))
        manager = managed(
            DisaggregatedManager, buffer, generator=Unscored(), valid=lambda group: True
        )
        manager.start(1)
        waiting = asyncio.create_task(manager.get_batch(1, 1))
        await asyncio.sleep(5)
        (group,) = await buffer.claim(1, "reward")
        read = buffer.get

        def broken(keys):
            buffer.get = read
            raise OSError("the database has gone")

        buffer.get = broken
        await buffer.annotate([group[0].rollout_id], 0, reward=1.0)
        with pytest.raises(OSError, match="has gone"):
            await waiting
        await manager.continue_(0)  # try again
        assert len(names(await manager.get_batch(1, 1))) == 1
        await manager.shutdown()

    run(main())


def test_the_end_of_one_manager_does_not_end_the_judging_of_the_next():
    async def main():
        buffer = buffer_of(needs=("reward",))
        old = managed(ColocatedManager, buffer, generator=Unscored(), valid=lambda group: True)
        await old.pause()
        new = managed(ColocatedManager, buffer, generator=Unscored(), valid=lambda group: True)
        await old.shutdown()
        assert buffer.core.judge == new._judge.hold
        await new.shutdown()
        assert buffer.core.judge is None

    run(main())


def test_an_annotation_between_two_event_loops_is_judged_in_the_second():
    buffer = rc.RolloutBuffer(needs=("reward",))
    rollout = rc.Rollout(response_ids=[1], finish_reason="stop", versions=[0])
    buffer.sync.put(rc.Group([rollout], task="math", group_id="early"))
    manager = managed(ColocatedManager, buffer, valid=lambda group: True)
    asyncio.run(manager.pause())
    buffer.sync.annotate([rollout.rollout_id], 0, reward=1.0)

    async def main():
        result = await manager.produce_batch(1, 1)
        await manager.shutdown()
        return names(result)

    assert asyncio.run(main()) == ["early"]


def test_a_manager_goes_on_in_another_event_loop_when_the_first_has_ended():
    buffer = rc.RolloutBuffer(staleness=rc.Staleness(max_staleness=100))
    manager = managed(DisaggregatedManager, buffer, generator=Timed(0.0))

    async def life(step, end):
        manager.start(2)
        result = await manager.get_batch(2, step)
        await manager.confirm(result)
        if end:
            await manager.shutdown()
        return names(result)

    first, second = asyncio.run(life(1, False)), asyncio.run(life(2, True))
    assert len({*first, *second}) == 4


@pytest.mark.parametrize("strategy", [SyncStrategy(), AsyncStrategy()])
def test_a_source_that_takes_nothing_back_loses_only_what_it_was_given(strategy):
    async def main():
        prompts = Numbers()
        buffer = buffer_of(capacity=8, staleness=rc.Staleness(max_staleness=9))
        manager = managed(DisaggregatedManager, buffer, prompts=prompts, strategy=strategy)
        for name in "abcd":
            rollout = rc.Rollout(response_ids=[1], versions=[0], finish_reason="abort")
            await buffer.put(rc.Group([rollout], task="math", group_id=name, prompt_ids=[1]))

        def refuse(group):
            raise RuntimeError("read only")

        prompts.give_back = refuse
        if isinstance(strategy, AsyncStrategy):
            manager.contexts["math"].room.reserve = lambda n: 0  # others were quicker
        manager.start(8)
        with pytest.raises(RuntimeError, match="read only"):
            await manager.get_batch(8, 1)
        assert [name for name in "abcd" if buffer.find(name) is None] == ["a"]
        await manager.shutdown()

    run(main())


@pytest.mark.parametrize("who", ["generator", "reward", "valid", "late"])
def test_who_is_cancelled_by_nobody_has_failed(who):
    """A client whose connection was closed under it may raise this: it must not pass unseen."""

    class Cancels(Unscored if who == "late" else Timed):
        async def generate(self, group, *, keep_partial):
            group = await super().generate(group, keep_partial=keep_partial)
            if who == "generator":
                raise asyncio.CancelledError("connection closed")
            return group

    async def cancel(group):
        raise asyncio.CancelledError("connection closed")

    async def main():
        options = {}
        if who in ("reward", "valid"):
            options[who] = cancel
        elif who == "late":
            options["valid"] = cancel
        buffer = buffer_of(needs=("reward",) if who == "late" else ())
        manager = managed(DisaggregatedManager, buffer, generator=Cancels(), **options)
        manager.start(1)
        waiting = asyncio.create_task(manager.get_batch(1, 1))
        await asyncio.sleep(5)
        if who == "late":
            for group in await buffer.claim(1, "reward"):
                await buffer.annotate([group[0].rollout_id], 0, reward=1.0)
        with pytest.raises(ProductionError, match="task 'math' was cancelled") as told:
            await waiting
        assert isinstance(told.value.__cause__, asyncio.CancelledError)
        assert len(manager.tasks["math"].prompts.handed) == 1
        await manager.shutdown()

    run(main(), limit=1000)


# -- room -----------------------------------------------------------------------------------------
def test_a_source_that_fails_keeps_no_room():
    async def main():
        buffer, prompts = buffer_of(capacity=4), Numbers()

        def fail():
            if len(prompts.handed) == 1:
                prompts.on_next = lambda: None
                raise RuntimeError("the file has gone")

        prompts.on_next = fail
        manager = managed(DisaggregatedManager, buffer, prompts=prompts)
        manager.start(4)
        with pytest.raises(RuntimeError, match="has gone"):
            await manager.get_batch(4, 1)
        await manager.pause()
        assert promised(buffer) == {}
        await manager.continue_(0)
        assert len(names(await manager.get_batch(4, 1))) == 4
        await manager.shutdown()

    run(main())


def test_room_is_waited_for_again_after_an_event_loop_ended():
    rule = rc.Staleness(max_staleness=100)
    buffer = rc.RolloutBuffer(capacity=2, staleness=rule)
    manager = managed(ColocatedManager, buffer, generator=Timed(0.0), strategy=SyncStrategy())

    async def interrupted():
        for name in ("a", "b"):
            await buffer.put(completed(name, task="other"))
        going = asyncio.create_task(manager.produce_batch(1, 1))
        await settle()
        assert not going.done()  # the buffer is full
        going.cancel()

    async def again():
        going = asyncio.create_task(manager.produce_batch(1, 1))
        await settle()
        await buffer.take(1, "other")
        async with asyncio.timeout(10):
            result = await going
        await manager.shutdown()
        return len(result)

    asyncio.run(interrupted())
    assert asyncio.run(again()) == 1


def test_a_wait_for_room_that_ends_while_a_journal_is_written_keeps_none(tmp_path):
    async def main():
        buffer = buffer_of(capacity=1, journal=tmp_path / "journal")
        manager = managed(ColocatedManager, buffer)
        room = manager.contexts["math"].room
        manager._bind()
        await buffer.put(completed("a", task="other"))
        assert room.reserve(1) == 0
        await settle()
        buffer.table.core.effects.settle_async = lambda *_, **__: asyncio.sleep(5)  # a slow disk
        buffer.sync.take(1, "other")
        await asyncio.sleep(1)
        assert promised(buffer) == {"math": 1}
        room.stop()
        await asyncio.sleep(10)
        assert promised(buffer) == {}
        buffer.close()

    run(main())


def test_a_group_that_comes_while_a_lease_holds_the_bytes_is_stored_and_no_other_is_begun():
    class Long(Timed):
        async def generate(self, group, *, keep_partial):
            group = await super().generate(group, keep_partial=keep_partial)
            group[0].response_ids, group[0].versions = [7] * 2000, [0] * 2000
            group[0].check()
            return group

    async def main():
        rule = rc.Staleness(max_staleness=100)
        buffer = buffer_of(capacity_bytes=30_000, staleness=rule)
        manager = managed(DisaggregatedManager, buffer, generator=Long())
        manager.start(1)
        result = await manager.get_batch(1, 1)  # it holds more than half of the bytes
        assert 15_000 < buffer.nbytes < 30_000
        await asyncio.sleep(5)
        assert not manager.in_flight  # a promise is kept, and then there is no room
        assert buffer.nbytes > 30_000
        handed = list(manager.tasks["math"].prompts.handed)
        await asyncio.sleep(100)
        assert manager.tasks["math"].prompts.handed == handed
        assert await manager.pause() <= 300
        assert promised(buffer) == {}
        await manager.confirm(result)
        assert buffer.nbytes < 30_000
        await manager.continue_(0)
        assert names(await manager.get_batch(1, 2)) == handed[1:2]
        await manager.shutdown()

    run(main())


def test_what_finishes_in_a_pause_is_stored_where_bytes_are_bounded():
    async def main():
        buffer = buffer_of(capacity_bytes=30_000)
        manager = managed(DisaggregatedManager, buffer)
        manager.start(3)
        await settle()
        assert await manager.pause() == 1.0
        assert buffer.count("math") == 3
        await manager.shutdown()

    run(main())


# -- counting -------------------------------------------------------------------------------------
def test_a_new_manager_does_not_count_what_was_trained_before_it():
    async def main():
        buffer = buffer_of(staleness=rc.Staleness(max_staleness=1))
        for name in range(40):
            await buffer.put(completed(f"old-{name}"))
        taken = await buffer.take(40, "math", lease=True)
        await buffer.confirm(taken.lease, 1)
        manager = managed(DisaggregatedManager, buffer)
        manager.start(4)
        await asyncio.sleep(10)
        assert manager.progress["math"].consumed == 0
        assert buffer.count("math") == 8  # two steps, without anybody asking
        await manager.shutdown()

    run(main())


def test_a_trainer_that_takes_from_the_buffer_leaves_nothing_to_pile_up():
    async def main():
        buffer = buffer_of(staleness=rc.Staleness(max_staleness=1))
        manager = managed(DisaggregatedManager, buffer)
        manager.start(4)
        for step in range(1, 50):
            taken = await buffer.take_batch({"math": 4}, train_step=step, lease=True)
            await buffer.confirm(taken.lease, step)
            await manager.set_version(step)
        assert manager.progress.consumer_step >= 49
        assert len(manager.progress._allocations) <= 4
        await manager.shutdown()

    run(main())


def test_times_that_nobody_reads_are_bounded(monkeypatch):
    from recollect.production import context, window

    monkeypatch.setattr(window, "REMEMBERED", 16)
    monkeypatch.setattr(context, "REMEMBERED", 16)

    async def main():
        manager = managed(DisaggregatedManager, buffer_of())
        manager.start(4)
        for step in range(1, 21):
            taken = await manager.buffer.take_batch({"math": 4}, train_step=step, lease=True)
            await manager.buffer.confirm(taken.lease, step)
            await manager.set_version(step)
        found = manager.progress["math"].window
        assert 16 <= len(found.times) < 32
        assert found.groups >= 80
        assert len(manager.contexts["math"].durations) <= 16
        await manager.shutdown()

    run(main())


def test_a_trainer_that_takes_from_a_buffer_that_drops_is_produced_for_between_syncs():
    async def main():
        rule = rc.Staleness(sync_interval=100)
        buffer = buffer_of(staleness=rule, capacity=8, overflow="drop_stalest")
        manager = managed(DisaggregatedManager, buffer)
        manager.start(4)
        for step in range(1, 12):
            if step in (1, 7):
                await asyncio.sleep(10)  # so that it is full, and production waits
            async with asyncio.timeout(60):
                taken = await buffer.take_batch({"math": 4}, train_step=step, lease=True)
            await buffer.confirm(taken.lease, step)
        await manager.shutdown()

    run(main())


def test_what_is_too_old_when_it_comes_is_not_counted_as_stored_complete():
    async def main():
        buffer = buffer_of()
        manager = managed(DisaggregatedManager, buffer, generator=Timed(10.0))
        manager.start(2)
        await asyncio.sleep(5)
        await buffer.advance(2)
        await asyncio.sleep(7)
        assert buffer.count("math", rc.Status.EXPIRED) == 2
        window = manager.progress["math"].window
        assert (window.rollouts, window.groups) == (2, 0)
        await manager.shutdown()

    run(main())


def test_what_is_generated_again_does_not_count_as_taken_when_a_task_starves():
    async def main():
        buffer = buffer_of()
        for name in "abcdefghij":
            await buffer.put(completed(name))
        assert len(await buffer.take(6, "math")) == 6
        await buffer.advance(2)
        assert not buffer.accounts()["math"]["starves"]
        assert len(Consumption(buffer).retake(4, "math", rc.Status.EXPIRED)) == 4
        for name in "abcd":
            await buffer.put(completed(name, version=1))
        await buffer.advance(3)
        assert buffer.accounts()["math"]["starves"]

    run(main())


def test_an_evaluation_that_asks_for_more_than_there_is_does_not_hold_up_training():
    async def main():
        buffer = buffer_of(staleness=rc.Staleness(max_staleness=3))
        tasks = [
            Task("math", Numbers(), Timed()),
            Task("exam", Few(3, task="exam"), Timed(), strategy=EvalStrategy(), weight=0),
        ]
        manager = DisaggregatedManager(tasks, buffer)
        manager.start(2)
        result = await manager.evaluate({"exam": 5})
        assert (result.status, result.taken) == (State.FINISHED, {"exam": 3})
        await manager.confirm(result)
        await asyncio.sleep(20)
        assert buffer.count("math") == 8  # as far ahead as staleness allows
        assert manager.state is State.OUTDATED
        assert not await manager.evaluate({"exam": 1})
        await manager.shutdown()

    run(main())


def test_training_is_not_over_where_an_evaluation_had_too_few_prompts():
    async def main():
        tasks = [
            Task("math", Numbers(), Timed()),
            Task("exam", Few(3, task="exam"), Timed(), strategy=EvalStrategy(), weight=0),
        ]
        manager = ColocatedManager(tasks, buffer_of())
        result = await manager.evaluate({"exam": 5})
        assert (result.status, result.taken) == (State.FINISHED, {"math": 0, "exam": 3})
        result = await manager.produce_batch(2, 1)
        assert (result.status, len(result)) == (State.RUNNING, 2)

    run(main())


@pytest.mark.parametrize("size", [0, 2])
def test_a_manager_that_only_evaluates_does_not_plan_for_ever(size):
    async def main():
        exam = Task("exam", Numbers("exam"), Timed(), strategy=EvalStrategy())
        manager = DisaggregatedManager([exam], buffer_of(staleness=rc.Staleness(max_staleness=2)))
        manager.start(size)
        async with asyncio.timeout(100):
            await asyncio.sleep(20)
        assert manager.progress.target_step == 3
        assert len(exam.prompts.handed) == 3 * size
        result = await manager.evaluate({"exam": 8})
        assert len(result) == 8
        await manager.shutdown()

    run(main(), limit=1000)


def test_training_goes_on_without_a_task_that_ran_out_of_prompts_and_lost_its_weight():
    async def main():
        tasks = [Task("math", Numbers(), Timed()), Task("code", Few(3, task="code"), Timed())]
        manager = ColocatedManager(tasks, buffer_of())
        result = await manager.produce_batch(8, 1)
        assert (result.status, result.taken) == (State.FINISHED, {"math": 4, "code": 3})
        await manager.confirm(result)
        tasks[1].weight = 0
        result = await manager.produce_batch(8, 2)
        assert (result.status, result.taken) == (State.RUNNING, {"math": 8, "code": 0})

    run(main(), limit=1000)


@pytest.mark.parametrize("kind", [ColocatedManager, DisaggregatedManager])
def test_an_evaluation_that_was_broken_off_leaves_no_answers_of_old_weights(kind):
    async def main():
        generator = Timed(lambda group: 1.0 + int(group.group_id.split("-")[1]))
        exam = Task("exam", Numbers("exam"), generator, strategy=EvalStrategy(), weight=0)
        tasks = [Task("math", Numbers(), Timed()), exam]
        manager = kind(tasks, buffer_of())
        if kind is DisaggregatedManager:
            manager.start(2)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2.5):
                await manager.evaluate({"exam": 4})
        await manager.pause()
        await manager.continue_(1)
        stored = manager.buffer.count("exam")
        assert stored >= 2
        result = await manager.evaluate({"exam": 4})
        assert {group.extras["version"] for group in result.groups["exam"]} == {1}
        assert sorted(names(result)) == ["exam-0", "exam-1", "exam-2", "exam-3"]
        await manager.confirm(result)

        asked = len(generator.started)
        result = await manager.evaluate({"exam": 2})
        await manager.give_back(result)
        assert names(await manager.evaluate({"exam": 2})) == names(result)
        assert len(generator.started) == asked + 2  # what is of these weights is good
        await manager.shutdown()

    run(main())


def test_prompts_that_come_back_while_there_is_no_room_are_not_forgotten():
    async def main():
        rule = rc.Staleness(max_staleness=100)
        buffer, prompts = buffer_of(capacity=2, staleness=rule), Few(2)
        manager = managed(DisaggregatedManager, buffer, prompts=prompts)
        manager.start(2)
        first = await manager.get_batch(2, 1)
        await manager.confirm(first)
        await asyncio.sleep(5)
        assert not await manager.get_batch(2, 2)  # there are no more prompts
        assert manager.state is State.FINISHED
        for name in ("a", "b"):
            await buffer.put(completed(name, task="other"))
        for group in first.groups["math"]:
            prompts.give_back(group)
        waiting = asyncio.create_task(manager.get_batch(2, 2))
        await asyncio.sleep(5)
        assert not waiting.done()  # they are there, and wait for room
        await buffer.take(2, "other")
        assert sorted(names(await waiting)) == sorted(names(first))
        await manager.shutdown()

    run(main())


# -- taking ---------------------------------------------------------------------------------------
def test_who_stops_waiting_without_a_lease_takes_nothing_along_either():
    async def main(seed):
        buffer = buffer_of(staleness=rc.Staleness(max_staleness=3))
        manager = managed(DisaggregatedManager, buffer)
        manager.start(2)
        waiting = asyncio.create_task(manager.get_batch(2, 1, lease=False))

        async def interrupt():  # about as the groups are there
            await asyncio.sleep(1.0)
            for _ in range(seed % 10):
                await asyncio.sleep(0)
            waiting.cancel()

        interrupting = asyncio.create_task(interrupt())
        try:
            got = names(await waiting)
        except asyncio.CancelledError:
            got = []
        await interrupting
        await settle()
        manager.look()
        assert manager.progress["math"].consumed == len(got)
        assert buffer.accounts()["math"]["leased"] == 0
        rest = got or names(await manager.get_batch(2, 1, lease=False))
        assert len(set(rest)) == 2
        await manager.pause()
        left = {entry.group_id for entry in buffer.core.entries.values()}
        prompts = manager.tasks["math"].prompts
        assert left | set(rest) | set(prompts.given_back) == set(prompts.handed)
        await manager.shutdown()
        return bool(got)

    found = [run(main(seed), seed=seed) for seed in range(60)]
    assert any(found)
    assert not all(found)


def test_a_manager_in_another_process_has_all_calls_of_one_in_another_thread():
    def calls(face):
        return {name for name in dir(face) if not name.startswith("_")}

    assert calls(BlockingManager) - {"run"} <= calls(RemoteManager)


def test_a_lease_is_renewed_by_who_needs_longer():
    async def main():
        manager = managed(ColocatedManager, buffer_of())
        result = await manager.produce_batch(2, 1, lease=10)
        await asyncio.sleep(9)
        await manager.renew(result, 10)
        await asyncio.sleep(9)
        assert await manager.confirm(result) == 2

    run(main())


# -- saving and restoring -------------------------------------------------------------------------
def test_a_restore_stops_a_manager_that_only_waits_for_weights(tmp_path):
    async def main():
        manager = managed(DisaggregatedManager, buffer_of(), prompts=Numbers())
        async with manager.checkpoint(tmp_path / "zero", 0, include_buffer=False):
            pass
        manager.start(4)
        result = await manager.get_batch(4, 1)
        await manager.confirm(result)
        await settle()
        assert (manager.state, manager.in_flight) == (State.OUTDATED, {})
        changed = manager._changed

        def restored(state, restore=manager.tasks["math"].prompts.restore):
            restore(state)
            changed.notify()  # anybody

        manager.tasks["math"].prompts.restore = restored
        manager._conditions.version = 5  # the loop would go on if it looked
        assert await manager.restore(tmp_path / "zero") == 0
        await asyncio.sleep(5)
        assert manager.state is State.PAUSED
        assert manager.tasks["math"].prompts.handed == ["math-0", "math-1", "math-2", "math-3"]
        await manager.shutdown()

    run(main())


def worn_out(folder):
    """A manager whose buffer lets groups go by itself, after two uses."""
    rule = rc.Staleness(max_staleness=100)
    buffer = buffer_of(staleness=rule, max_uses=2, journal=folder / "journal")
    prompts = ListPrompts([[n] for n in range(20)], seed=None)
    return managed(DisaggregatedManager, buffer, prompts=prompts)


def test_groups_that_wore_out_after_a_checkpoint_are_generated_again(tmp_path):
    async def main():
        first = worn_out(tmp_path)
        first.start(4)
        drawn = list(await first.buffer.sample(4, train_step=1))
        await first.pause()
        async with first.checkpoint(tmp_path / "one", 1, include_buffer=False):
            pass
        await first.buffer.sample(4, train_step=2)  # for the last time
        first.buffer.close()

        second = worn_out(tmp_path)
        assert await second.restore(tmp_path / "one") == 1
        second.start(4)
        await second.continue_(1)
        ids = {group.group_id for group in drawn}
        assert not ids & {entry.group_id for entry in second.buffer.core.entries.values()}
        got = []
        while not ids <= {*got}:
            got += names(await second.get_batch(4, 2 + len(got) // 4))
        assert len(set(got)) == len(got)
        await second.shutdown()
        second.buffer.close()

    run(main())


def test_a_step_before_the_one_that_wore_groups_out_cannot_be_saved(tmp_path):
    async def main():
        manager = worn_out(tmp_path)
        manager.start(4)
        for step in (1, 2):
            await manager.buffer.sample(4, train_step=step)
        await manager.pause()
        with pytest.raises(ProductionError, match="step 1 cannot be saved: groups of step 2"):
            async with manager.checkpoint(tmp_path / "one", 1):
                pass
        async with manager.checkpoint(tmp_path / "two", 2):
            pass
        manager.buffer.close()

    run(main())


def test_leases_that_lapsed_leave_no_trace_behind_a_checkpoint(tmp_path):
    async def main():
        buffer = buffer_of(staleness=rc.Staleness(max_staleness=100))
        manager = managed(ColocatedManager, buffer)
        for _ in range(5):
            result = await manager.produce_batch(2, 1, lease=10)
            await asyncio.sleep(11)
        result = await manager.produce_batch(2, 1)
        async with manager.checkpoint(tmp_path / "zero", 0):
            pass
        assert list(buffer.core.lease_steps) == [result.lease.id]

    run(main())


def test_a_storage_that_cannot_be_saved_is_told_before_the_trainer_writes(tmp_path):
    async def main():
        manager = managed(ColocatedManager, buffer_of(storage=rc.FrameStorage()))
        wrote = []
        with pytest.raises(SnapshotError, match="in FrameStorage; save with include_buffer=False"):
            async with manager.checkpoint(tmp_path / "one", 1):
                wrote.append("weights")
        assert wrote == []

    run(main())


@pytest.mark.parametrize("turns", range(6))
def test_a_restore_that_is_cancelled_is_complete_or_did_not_begin(turns, tmp_path):
    def life():
        buffer = buffer_of(staleness=rc.Staleness(max_staleness=100))
        prompts = ListPrompts([[n] for n in range(8)], seed=None, epochs=1)
        return managed(
            ColocatedManager, buffer, prompts=prompts, strategy=AsyncStrategy(over_sample=1)
        )

    async def main():
        first = life()
        result = await first.produce_batch(2, 1)
        done = {int(group.prompt_ids[0]) for group in result.groups["math"]}
        await first.confirm(result)
        assert first.buffer.count() == 2  # for the next step
        async with first.checkpoint(tmp_path / "one", 1):
            pass
        second = life()
        going = asyncio.create_task(second.restore(tmp_path / "one"))
        for _ in range(turns):
            await asyncio.sleep(0)
        going.cancel()
        await asyncio.wait([going])
        trained = []
        async with asyncio.timeout(100):
            while result := await second.produce_batch(2, 2):
                trained += [int(group.prompt_ids[0]) for group in result.groups["math"]]
                await second.confirm(result)
        begun = second.progress["math"].consumed - len(trained)
        assert sorted(trained) == sorted({*range(8)} - (done if begun else set()))
        await second.shutdown()

    run(main())


def test_a_save_that_is_cancelled_early_does_not_keep_others_from_saving(tmp_path):
    async def main():
        manager = managed(ColocatedManager, rc.RolloutBuffer())
        core = manager.buffer.core
        member = core.table.owner.member()
        held = threading.Event()

        def hold():
            with member.saving:
                held.set()
                release.wait(10)

        release = threading.Event()
        other = threading.Thread(target=hold)
        other.start()
        held.wait(10)

        async def save(name):
            async with manager.checkpoint(tmp_path / name, 0):
                pass

        saving = asyncio.create_task(save("one"))
        for _ in range(50):
            await asyncio.sleep(0)
        saving.cancel()
        release.set()
        with pytest.raises(asyncio.CancelledError):
            await saving
        other.join()
        async with asyncio.timeout(10):
            await save("two")
        assert (tmp_path / "two").is_dir()
        assert not (tmp_path / "one").is_dir()
        await manager.shutdown()

    asyncio.run(main())


def test_a_group_that_the_journal_may_have_lost_is_not_given_back_beside_the_stored_one():
    async def main():
        buffer, prompts = buffer_of(staleness=rc.Staleness(max_staleness=9)), Numbers()

        class Half(Timed):
            async def generate(self, group, *, keep_partial):
                if group[0].num_tokens:
                    await asyncio.sleep(1000)
                group[0].response_ids, group[0].versions = [7], [0]
                group[0].check()
                group[0].finish_reason = "abort"
                return group

        manager = managed(
            DisaggregatedManager, buffer, prompts=prompts, generator=Half(),
            strategy=AsyncStrategy(keep_partial=True),
        )  # fmt: skip
        manager.drain_timeout = 1.0
        manager.start(1)
        await asyncio.sleep(30)
        assert len(manager.in_flight["math"]) == 1  # what came from the buffer with a token
        context = manager.contexts["math"]
        put = context.put_at_once

        def lost(group):
            put(group)
            raise JournalError("the disk is full")

        context.put_at_once = lost
        await manager.pause()
        assert buffer.find("math-0") is not None
        assert prompts.given_back == []
        assert isinstance(manager.error, JournalError)
        await manager.shutdown()

    run(main())


# -- prompts --------------------------------------------------------------------------------------
def test_finding_the_lines_of_a_file_takes_no_memory_for_each_byte(tmp_path, monkeypatch):
    monkeypatch.setattr(jsonl, "CHUNK", 1 << 16)
    path = tmp_path / "long.jsonl"
    path.write_text(("{" + '"prompt": "' + "x" * 4000 + '"}\n') * 2000)
    tracemalloc.start()
    prompts = JsonlPrompts(path, seed=None)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(prompts) == 2000
    assert peak < path.stat().st_size / 4
    prompts.close()


# -- the virtual loop -----------------------------------------------------------------------------
def test_a_thread_that_ends_as_the_loop_looks_for_it_has_had_its_say(monkeypatch):
    async def main():
        running = asyncio.get_running_loop()
        said = running.create_future()
        alive = threading.enumerate

        def ends():  # it wakes the loop after that found nothing, and is not there any more
            monkeypatch.setattr(threading, "enumerate", alive)
            running.call_soon_threadsafe(said.set_result, "news")
            return list(running._jumps._before)

        monkeypatch.setattr(threading, "enumerate", ends)
        return await said

    assert run(main()) == "news"


# -- bars -----------------------------------------------------------------------------------------
def test_bars_show_what_changed_while_they_slept():
    async def main():
        manager = managed(ColocatedManager, buffer_of(), generator=Timed(0.05))
        manager.bars.shown = True
        shown = []
        manager.bars.show = lambda step, counts, flying: shown.append(counts["math"].consumed)
        result = await manager.produce_batch(2, 1)  # over before bars look again
        await manager.confirm(result)
        await asyncio.sleep(10)
        assert shown[-1] == 2
        await manager.shutdown()

    run(main())


def test_a_manager_that_was_shut_down_says_so():
    async def main():
        manager = managed(ColocatedManager, buffer_of())
        await manager.shutdown()
        with pytest.raises(ProductionError, match="shut down"):
            await manager.continue_(0)

    run(main())
