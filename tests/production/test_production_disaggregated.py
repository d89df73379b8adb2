"""Generation runs in the background all the time."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from production_parts import Numbers, Timed, buffer_of, names, settle

import recollect as rc
from recollect.production import AsyncStrategy, DisaggregatedManager, EvalStrategy, State, Task
from recollect.simulation import run


def manager_of(generator=None, prompts=None, strategy=None, buffer=None, *, ahead=1, **options):
    task = Task(
        "math",
        Numbers() if prompts is None else prompts,
        Timed() if generator is None else generator,
        strategy=AsyncStrategy() if strategy is None else strategy,
        **options,
    )
    if buffer is None:
        buffer = buffer_of(staleness=rc.Staleness(max_staleness=ahead))
    return DisaggregatedManager([task], buffer)


async def train(manager, steps, size=4, first=1):
    """Train some steps with new weights after each, and return what each was trained on."""
    trained = []
    for step in range(first, first + steps):
        result = await manager.get_batch(size, step)
        trained.append(names(result))
        await manager.confirm(result)
        await manager.set_version(step)
    return trained


def test_steps_follow_each_other_and_every_prompt_trains_once():
    async def main():
        manager = manager_of(Timed(lambda g: 1 + int(g.group_id[5:]) % 3), ahead=2)
        manager.start(4)
        trained = await train(manager, 30)
        flat = [name for batch in trained for name in batch]
        assert len(set(flat)) == len(flat) == 120
        assert manager.progress["math"].consumed == 120
        await manager.shutdown()
        assert manager.state is State.FINISHED

    run(main())


def test_the_next_batch_is_produced_while_a_step_trains():
    async def main():
        manager = manager_of(Timed(2.0))
        manager.start(4)
        loop = asyncio.get_running_loop()
        waits = []
        for step in range(1, 6):
            asked = loop.time()
            result = await manager.get_batch(4, step)
            waits.append(loop.time() - asked)
            assert result.wait_seconds == waits[-1]
            await asyncio.sleep(3.0)  # it trains
            await manager.confirm(result)
            await manager.set_version(step)
        assert waits == [2.0, 0.0, 0.0, 0.0, 0.0]
        await manager.shutdown()

    run(main())


def test_future_step_advances_only_when_its_step_was_produced():
    async def main():
        manager = manager_of(Timed(2.0))
        manager.start(4)
        await asyncio.sleep(1)
        assert (manager.progress.future_step, manager.progress.target_step) == (1, 1)
        await manager.pause()  # they finish, and step 1 is whole
        assert (manager.progress.future_step, manager.progress.target_step) == (1, 1)
        await manager.continue_(0)
        await asyncio.sleep(1)
        assert (manager.progress.future_step, manager.progress.target_step) == (2, 2)
        await manager.shutdown()

    run(main())


def test_expired_groups_are_retried_while_the_step_trains():
    async def main():
        manager = manager_of(Timed(1.0), ahead=0)
        manager.start(2)
        first = await manager.get_batch(2, 1)
        await manager.buffer.put(stale("stale"))
        await manager.set_version(1)
        await settle()
        assert "stale" in manager.tasks["math"].generator.started
        await manager.confirm(first)
        assert "stale" in names(await manager.get_batch(2, 2))
        await manager.shutdown()

    def stale(name):
        rollout = rc.Rollout(response_ids=[1], versions=[0], finish_reason="stop")
        return rc.Group([rollout], task="math", group_id=name, prompt_ids=[1])

    run(main())


def test_what_a_user_discards_is_produced_again_without_anybody_asking():
    async def main():
        manager = manager_of(Timed(1.0))
        manager.start(4)
        await asyncio.sleep(10)
        assert manager.buffer.count("math", "COMPLETED") == 8  # two steps ahead
        keys = [manager.buffer.find("math-1"), manager.buffer.find("math-5")]
        assert await manager.buffer.discard(keys, "bad") == 2
        await asyncio.sleep(10)
        assert manager.buffer.count("math", "COMPLETED") == 8
        await manager.shutdown()

    run(main())


def test_a_larger_batch_than_was_started_with_is_produced_for():
    async def main():
        manager = manager_of(Timed(1.0), ahead=3)
        manager.start(4)
        assert len(await manager.get_batch(50, 1)) == 50
        assert len(await manager.get_batch({"math": 7}, 2)) == 7
        await manager.shutdown()

    run(main())


def test_a_training_that_begins_at_a_later_step_is_not_produced_for_from_the_first():
    async def main():
        manager = manager_of(Timed(1.0))
        manager.start(4, version=99)
        trained = await train(manager, 3, first=100)
        assert len(trained) == 3
        await asyncio.sleep(10)
        assert manager.tasks["math"].prompts.count == 20  # three steps, and two ahead
        await manager.shutdown()

    run(main())


def test_weights_may_change_between_steps_and_a_step_gets_what_was_planned_for_it():
    async def main():
        generator = Timed(1.0)
        tasks = [Task("math", Numbers("math"), generator), Task("code", Numbers("code"), generator)]
        buffer = buffer_of(staleness=rc.Staleness(max_staleness=1))
        manager = DisaggregatedManager(tasks, buffer)
        manager.start(8)
        await asyncio.sleep(10)  # steps 1 and 2 are there
        manager.tasks["code"].weight = 3.0
        taken = []
        for step in range(1, 5):
            result = await manager.get_batch(8, step)
            taken.append(result.taken)
            await manager.confirm(result)
            await manager.set_version(step)
        assert taken == [{"math": 4, "code": 4}] * 2 + [{"math": 2, "code": 6}] * 2
        await manager.shutdown()

    run(main())


def test_with_reuse_a_step_adds_its_fresh_groups():
    async def main():
        buffer = buffer_of(max_uses=2, staleness=rc.Staleness(max_staleness=9))
        manager = manager_of(Timed(1.0), buffer=buffer)
        manager.start(2)  # of 4 that train in a step, 2 are fresh
        await asyncio.sleep(100)
        for step in range(1, 11):
            drawn = await buffer.sample(4, task="math", train_step=step)
            assert len(drawn) == 4
            await manager.set_version(step)
            await asyncio.sleep(100)
        manager.look()
        counts = manager.progress["math"]
        assert counts.target == counts.available == 2 * 20  # 10 steps, and 10 ahead
        assert manager.tasks["math"].prompts.count == 40
        assert counts.confirmed > 0  # those that were used twice
        await manager.shutdown()

    run(main())


def test_a_trainer_may_take_from_the_buffer_itself():
    async def main():
        manager = manager_of(Timed(1.0))
        manager.start(4)
        for step in range(1, 10):
            taken = await manager.buffer.take_batch({"math": 4}, train_step=step, lease=True)
            await manager.buffer.confirm(taken.lease, step)
            await manager.set_version(step)
        manager.look()
        assert manager.progress["math"].consumed == 36
        assert manager.tasks["math"].prompts.count <= 44
        await manager.shutdown()

    run(main())


def test_waiting_for_a_batch_can_be_cancelled_without_a_trace():
    async def main():
        manager = manager_of(Timed(1.0))
        manager.start(4)
        waiting = asyncio.ensure_future(manager.get_batch(4, 1))
        await asyncio.sleep(0.5)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()
        assert len(await manager.get_batch(4, 1)) == 4
        assert manager.look()["math"].leased == 4
        await manager.shutdown()

    run(main())


def test_while_it_is_paused_a_trainer_waits_and_gets_its_batch_when_it_goes_on():
    async def main():
        manager = manager_of(Timed(1.0))
        manager.start(4)
        await manager.pause()
        waiting = asyncio.ensure_future(manager.get_batch(4, 1))
        await asyncio.sleep(100)
        assert not waiting.done()
        assert manager.tasks["math"].prompts.count == 0
        await manager.continue_(0)
        assert len(await waiting) == 4
        await manager.shutdown()

    run(main())


def test_pause_and_continue_take_turns():
    async def main():
        manager = manager_of(Timed(3.0))
        manager.start(4)
        await asyncio.sleep(1)
        calls = [manager.pause(), manager.continue_(0), manager.pause(), manager.pause()]
        await asyncio.gather(*calls)
        assert manager.state is State.PAUSED
        assert manager.in_flight == {}
        await manager.continue_(0)
        assert len(await manager.get_batch(4, 1)) == 4
        await manager.shutdown()

    run(main())


def test_a_source_of_prompts_that_fails_is_raised_at_the_trainer():
    async def main():
        prompts = Numbers()

        def broken():
            if prompts.count == 2:
                raise OSError("the file is gone")

        prompts.on_next = broken
        manager = manager_of(prompts=prompts)
        manager.start(4)
        with pytest.raises(OSError, match="the file is gone"):
            await manager.get_batch(4, 1)
        prompts.on_next = lambda: None
        await manager.continue_(0)
        assert len(await manager.get_batch(4, 1)) == 4
        await manager.shutdown()

    run(main())


def test_a_generator_that_cannot_begin_is_raised_at_the_trainer():
    class Away(Timed):
        async def continue_(self, version):
            raise ConnectionError("no engine")

    async def main():
        manager = manager_of(Away())
        manager.start(4)
        with pytest.raises(ConnectionError, match="no engine"):
            await manager.get_batch(4, 1)
        await manager.shutdown()

    run(main())


def test_a_batch_is_asked_of_a_manager_that_was_started():
    async def main():
        manager = manager_of()
        with pytest.raises(rc.errors.ProductionError, match=r"not started; call start\(batch_size"):
            await manager.get_batch(4, 1)
        manager.start(4)
        with pytest.raises(rc.errors.ProductionError, match="started before"):
            manager.start(4)
        await manager.shutdown()
        with pytest.raises(rc.errors.ProductionError, match="shut down; make a new manager"):
            await manager.continue_(0)
        assert not await manager.get_batch(4, 1)

    run(main())


def test_the_last_prompts_make_a_smaller_batch_and_given_back_ones_go_on():
    class Few(Numbers):
        def next(self):
            if self.count == 6 and not self.back:
                raise rc.errors.OutOfPrompts("over")
            return super().next()

    async def main():
        prompts = Few()
        manager = manager_of(prompts=prompts)
        manager.start(4)
        assert len(await manager.get_batch(4, 1)) == 4
        await manager.set_version(1)
        last = await manager.get_batch(4, 2)
        assert (last.status, last.taken) == (State.FINISHED, {"math": 2})
        await manager.confirm(last)
        await manager.set_version(2)
        assert not await manager.get_batch(4, 3)
        for group in last.groups["math"]:
            prompts.give_back(group)
        await manager.set_version(3)
        again = await manager.get_batch(2, 4)
        assert len(again) == 2
        await manager.shutdown()

    run(main())


def test_a_plain_program_trains_while_production_has_a_thread_of_its_own():
    """The trainer is the program; production has a thread of its own, and goes on meanwhile."""
    generator = Timed(0.001)
    task = Task("math", Numbers(), generator)
    manager = DisaggregatedManager(
        [task], rc.RolloutBuffer(staleness=rc.Staleness(max_staleness=2))
    )
    manager.sync.start(4)
    trained = []
    for step in range(1, 6):
        result = manager.sync.get_batch(4, step)
        trained += names(result)
        if step == 1:
            before = len(result)  # what goes beyond it may have finished already
            deadline = time.monotonic() + 10
            while len(generator.finished) == before and time.monotonic() < deadline:
                time.sleep(0.001)  # it computes, and blocks its thread
            assert len(generator.finished) > before
        manager.sync.confirm(result)
        manager.sync.set_version(step)
    manager.sync.pause()
    assert manager.in_flight == {}
    manager.sync.shutdown()
    assert len(set(trained)) == 20
    assert "recollect-production" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize("overflow", ["drop_stalest", "drop_newest"])
def test_a_buffer_that_drops_is_not_planned_beyond_its_capacity(overflow):
    async def main():
        rule = rc.Staleness(max_staleness=9)
        buffer = buffer_of(staleness=rule, capacity=10, overflow=overflow)
        manager = manager_of(Timed(1.0), buffer=buffer, strategy=AsyncStrategy(over_sample=0.5))
        manager.start(4)
        await asyncio.sleep(1000)
        assert manager.tasks["math"].prompts.count == 10  # two steps, and 2 beyond
        trained = await train(manager, 5)
        assert len({name for batch in trained for name in batch}) == 20
        assert manager.buffer.accounts()["math"]["left"] == {"trained": 20}
        await manager.shutdown()

    run(main(), limit=5000)


def test_a_generator_that_reports_versions_too_old_is_told_instead_of_asked_for_ever():
    class Ignores(Timed):
        async def set_version(self, version):
            pass

    async def main():
        manager = manager_of(Ignores(1.0), ahead=0)
        manager.start(4)
        await manager.confirm(await manager.get_batch(4, 1))
        await manager.set_version(1)
        told = r"sent with the weights of version 1 and came back with tokens of version 0, too old"
        with pytest.raises(rc.errors.ProductionError, match=told):
            await manager.get_batch(4, 2)
        await manager.shutdown()

    run(main(), limit=5000)


def test_evaluation_runs_beside_training_and_moves_no_step():
    async def main():
        generator = Timed(1.0)
        tasks = [
            Task("math", Numbers("math"), generator),
            Task("exam", Numbers("exam"), generator, strategy=EvalStrategy(), weight=0),
        ]
        manager = DisaggregatedManager(tasks, buffer_of(staleness=rc.Staleness()))
        manager.start(4)
        for step in (1, 2, 3):
            await asyncio.sleep(5)  # the batch of the step is there, and would expire at the next
            exam = await manager.evaluate({"exam": 3})
            assert exam.taken == {"exam": 3}
            assert {group.extras["version"] for group in exam.groups["exam"]} == {step - 1}
            await manager.confirm(exam)
            result = await manager.get_batch(4, step)
            assert result.taken == {"math": 4, "exam": 0}
            assert result.wait_seconds == 0.0
            await manager.confirm(result)
            await manager.set_version(step)
        assert manager.buffer.accounts()["math"]["expired"] == 0
        await manager.shutdown()

    run(main(), limit=1000)


def test_a_manager_without_a_loop_names_its_blocking_face():
    with pytest.raises(rc.errors.ProductionError, match=r"use manager\.sync"):
        manager_of(buffer=rc.RolloutBuffer()).start(4)
