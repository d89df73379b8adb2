"""The cases that production must hold, one by one, on virtual time.

Each test is named after a sentence of the specification of the loop that fills the buffer.
"""

from __future__ import annotations

import asyncio
import io
import random
import re
import threading

import pytest
from production_parts import Numbers, Timed, buffer_of, completed, names, settle

import recollect as rc
from recollect.production import (
    AsyncStrategy,
    Bars,
    ColocatedManager,
    DisaggregatedManager,
    Handed,
    Progress,
    State,
    SyncStrategy,
    Task,
)
from recollect.production.context import Conditions, Consumption, Context
from recollect.production.strategies import Outcome
from recollect.simulation import in_thread, run

HOUR = 3600.0


def alone(task, buffer, sizes, *, version=0, step=1):
    """A task with its context, as a manager makes it, that may start generations."""
    progress = Progress([task.name])
    for size in sizes:
        progress.plan({task.name: size})
    conditions = Conditions(stopping=False, version=version, step=step)
    ctx = Context(task, buffer, progress, Consumption(buffer), conditions)
    ctx.batch = sizes[-1]
    return ctx


# -- how much is started


def test_9_of_10_available_batch_4_over_sample_1_starts_5_more():
    async def main():
        buffer, prompts, generator = buffer_of(), Numbers(), Timed()
        task = Task("math", prompts, generator, strategy=AsyncStrategy(over_sample=1))
        ctx = alone(task, buffer, sizes=[6, 4])
        for n in range(9):
            await buffer.put(completed(f"old-{n}"))
        producing = asyncio.create_task(task.strategy.produce(ctx))
        await settle()
        assert ctx.progress.target == 10
        assert len(generator.started) == len(ctx.pending) == 5
        assert await producing is Outcome.PRODUCED
        assert len(prompts.handed) == 5
        await ctx.pending.drained()

    run(main())


def test_what_is_taken_counts_as_available_too():
    async def main():
        buffer, prompts, generator = buffer_of(), Numbers(), Timed()
        task = Task("math", prompts, generator, strategy=AsyncStrategy(over_sample=1))
        ctx = alone(task, buffer, sizes=[6, 4])
        for n in range(9):
            await buffer.put(completed(f"old-{n}"))
        await buffer.take(3)
        await buffer.take(2, lease=True)
        producing = asyncio.create_task(task.strategy.produce(ctx))
        await settle()
        assert len(generator.started) == 5
        await producing
        await ctx.pending.drained()

    run(main())


def test_consumed_growing_while_producing_prevents_overproduction():
    async def main():
        buffer, prompts = buffer_of(), Numbers()
        generator = Timed(lambda group: 1.0 + int(group.group_id.split("-")[1]))
        manager = DisaggregatedManager([Task("math", prompts, generator)], buffer)
        manager.start(6)
        for _ in range(3):  # one after another finishes, and is taken while the rest is produced
            await buffer.take_batch({"math": 2})
        await asyncio.sleep(HOUR)
        assert len(prompts.handed) == 6
        assert manager.state is State.OUTDATED  # version 0 may produce no more than step 1
        await manager.shutdown()

    run(main())


def test_expiring_is_a_shortage():
    async def main():
        buffer, prompts, generator = buffer_of(), Numbers(), Timed()
        task = Task("math", prompts, generator)
        generator.version = 1
        ctx = alone(task, buffer, sizes=[4], version=1, step=2)
        for n in range(4):
            await buffer.put(completed(f"old-{n}", version=0))
        await buffer.advance(2)
        assert await task.strategy.produce(ctx) is Outcome.PRODUCED
        assert sorted(generator.started) == [f"old-{n}" for n in range(4)]
        assert not prompts.handed
        await ctx.pending.drained()

    run(main())


@pytest.mark.parametrize("seed", range(30))
def test_run_ahead_does_not_depend_on_who_comes_first(seed):
    async def main():
        prompts = Numbers()
        buffer = buffer_of(staleness=rc.Staleness(max_staleness=1))
        manager = DisaggregatedManager([Task("math", prompts, Timed())], buffer)
        manager.start(4)  # the trainer may ask for step 1 before production has planned it
        for step in (1, 2, 3):
            await manager.confirm(await manager.get_batch(4, step))
            await manager.set_version(step)
            await asyncio.sleep(HOUR)
            assert len(prompts.handed) == 4 * (step + 2)  # what version `step` may produce
            assert manager.progress["math"].target == 4 * manager.progress.target_step
        await manager.shutdown()

    run(main(), seed=seed)


# -- a batch that is given back


def test_a_batch_given_back_is_not_counted_twice_and_the_next_step_still_gets_its_batch():
    async def main():
        rule = rc.Staleness(max_staleness=1)
        buffer, prompts = buffer_of(staleness=rule), Numbers()
        manager = DisaggregatedManager([Task("math", prompts, Timed())], buffer)
        manager.start(4)
        first = await manager.get_batch(4, 1)
        await manager.give_back(first)
        again = await manager.get_batch(4, 1)
        assert names(again) == names(first)
        assert {g.deliveries for g in again.groups["math"]} == {2}
        assert len(prompts.handed) <= 8  # those of step 2 may have been started
        await manager.confirm(again)
        await manager.set_version(1)
        second = await manager.get_batch(4, 2)
        assert len(names(second)) == 4
        assert not set(names(second)) & set(names(first))
        await manager.confirm(second)
        assert manager.progress["math"].consumed == 8
        await asyncio.sleep(HOUR)
        assert len(prompts.handed) == 12  # steps 1 to 3, which version 1 may produce
        await manager.shutdown()

    run(main())


def test_a_batch_given_back_without_staleness_is_too_old_and_comes_with_new_weights():
    async def main():
        prompts = Numbers()
        manager = DisaggregatedManager([Task("math", prompts, Timed())], buffer_of())
        manager.start(4)
        first = await manager.get_batch(4, 1)
        await manager.give_back(first)
        with pytest.raises(rc.errors.ProductionError, match="too old"):
            await manager.get_batch(4, 1)
        await manager.set_version(1)
        second = await manager.get_batch(4, 2)
        assert sorted(names(second)) == sorted(names(first))
        assert len(prompts.handed) <= 8  # those of step 2
        await manager.shutdown()

    run(main(), limit=HOUR)


def test_a_lease_that_lapses_is_not_counted_twice_either():
    async def main():
        buffer, prompts = buffer_of(), Numbers()
        manager = DisaggregatedManager([Task("math", prompts, Timed())], buffer)
        manager.start(4)
        await buffer.take_batch({"math": 4}, lease=60)  # by somebody who dies
        manager.look()
        assert manager.progress["math"].consumed == 4
        await asyncio.sleep(61)
        manager.look()
        assert manager.progress["math"].consumed == 0
        result = await manager.get_batch(4, 1)
        assert len(names(result)) == len(prompts.handed) == 4
        await manager.shutdown()

    run(main())


# -- pausing


@pytest.mark.parametrize("aborts", [False, True])
@pytest.mark.parametrize("overflow", ["block", "drop_stalest", "drop_newest"])
def test_a_full_buffer_never_stalls_a_pause(overflow, aborts):
    async def main():
        rule = rc.Staleness(max_staleness=1000)
        buffer = buffer_of(capacity=5, overflow=overflow, staleness=rule)
        generator = Timed(lambda group: 5.0 + int(group.group_id.split("-")[1]) % 3, aborts)
        prompts = Numbers()
        strategy = AsyncStrategy(over_sample=2)
        manager = DisaggregatedManager(
            [Task("math", prompts, generator, strategy=strategy)], buffer
        )
        manager.start(3)
        loop = asyncio.get_running_loop()
        for until in (3, 6, 9, 12, 40):  # also when it is full, and nobody takes
            await asyncio.sleep(until - loop.time())
            begin = loop.time()
            await manager.pause()
            assert loop.time() - begin <= 7.0
            assert not any(manager.in_flight.values())
            assert len(buffer) <= 5
            await manager.continue_(0)
        result = await manager.get_batch(3, 1)
        assert len(names(result)) == 3
        await manager.confirm(result)
        await manager.shutdown()

    run(main())


def test_stop_set_nothing_is_sampled():
    async def main():
        for strategy in (AsyncStrategy(over_sample=1), SyncStrategy()):
            buffer, prompts, generator = buffer_of(), Numbers(), Timed()
            task = Task("math", prompts, generator, strategy=strategy)
            ctx = alone(task, buffer, sizes=[4])
            ctx.conditions.stopping = True
            assert await strategy.produce(ctx) is Outcome.STOPPED
            assert not prompts.handed
            assert not generator.started

    run(main())


def test_stop_during_scheduling_stops_there():
    async def main():
        for strategy in (AsyncStrategy(over_sample=1), SyncStrategy()):
            buffer, prompts, generator = buffer_of(), Numbers(), Timed()
            task = Task("math", prompts, generator, strategy=strategy)
            ctx = alone(task, buffer, sizes=[8])

            def third(prompts=prompts, ctx=ctx):
                if len(prompts.handed) == 2:  # the stop comes while the third is asked for
                    ctx.conditions.stopping = True

            prompts.on_next = third
            assert await strategy.produce(ctx) is Outcome.STOPPED
            await ctx.pending.drained()
            assert sorted(generator.started) == ["math-0", "math-1"]
            assert prompts.given_back == ["math-2"]
            assert buffer.count("math") == 2

    run(main())


# -- versions


def test_an_outdated_model_returns_before_touching_what_is_in_flight():
    async def main():
        buffer, prompts, generator = buffer_of(), Numbers(), Timed(seconds=100)
        task = Task("math", prompts, generator, strategy=AsyncStrategy(over_sample=1))
        ctx = alone(task, buffer, sizes=[4])
        producing = asyncio.create_task(task.strategy.produce(ctx))
        await settle()
        before = ctx.pending.in_flight
        assert len(before) == 8
        ctx.conditions.step = 2  # version 0 is too old for it
        ctx.conditions.changed.notify()
        assert await producing is Outcome.OUTDATED
        assert await task.strategy.produce(ctx) is Outcome.OUTDATED
        assert ctx.pending.in_flight == before
        assert len(prompts.handed) == 8
        assert asyncio.get_running_loop().time() == 0.0
        await ctx.pending.drained()

    run(main())


def test_with_version_interval_2_the_versions_used_at_steps_1_2_3_are_0_0_2():
    async def main():
        buffer = buffer_of(staleness=rc.Staleness(sync_interval=2))
        manager = ColocatedManager([Task("math", Numbers(), Timed())], buffer)
        used = []
        for step in (1, 2, 3):
            result = await manager.produce_batch(4, step)
            used.append({int(v) for g in result.groups["math"] for r in g for v in r.versions})
            await manager.confirm(result)
        await manager.shutdown()
        return used

    assert run(main()) == [{0}, {0}, {2}]


def test_two_tasks_are_not_paused_before_the_slower_is_done():
    async def main():
        quick, slow = Timed(seconds=1), Timed(seconds=50)
        tasks = [Task("quick", Numbers("quick"), quick), Task("slow", Numbers("slow"), slow)]
        manager = ColocatedManager(tasks, buffer_of())
        result = await manager.produce_batch({"quick": 2, "slow": 2}, 1)
        for generator in (quick, slow):
            assert all(time >= 50 for time, what in generator.calls if what == "pause")
        assert list(result.groups) == ["quick", "slow"]
        assert sorted(names(result)) == ["quick-0", "quick-1", "slow-0", "slow-1"]
        await manager.shutdown()

    run(main())


# -- threads


def test_producing_goes_on_while_the_trainer_blocks_in_a_thread():
    async def main():
        buffer = buffer_of(staleness=rc.Staleness(max_staleness=2))
        manager = DisaggregatedManager([Task("math", Numbers(), Timed(seconds=10))], buffer)
        manager.start(4)
        free, trains = threading.Event(), threading.Event()

        def trainer():
            result = manager.sync.get_batch(4, 1)
            trains.set()
            assert free.wait(20)
            manager.sync.confirm(result)
            return names(result)

        training = asyncio.create_task(in_thread(trainer))
        while not trains.is_set():
            await asyncio.sleep(1)
        while buffer.count("math", "COMPLETED") < 8:  # steps 2 and 3 are made meanwhile
            await asyncio.sleep(1)
        assert not training.done()
        free.set()
        assert len(await training) == 4
        await manager.shutdown()

    run(main(), limit=HOUR)


# -- restoring


@pytest.mark.parametrize("include_buffer", [True, False])
def test_restoring_generates_nothing_until_told(tmp_path, include_buffer):
    async def first():
        buffer = buffer_of(staleness=rc.Staleness(max_staleness=1))
        manager = DisaggregatedManager([Task("math", Numbers(), Timed())], buffer)
        manager.start(4)
        result = await manager.get_batch(4, 1)
        await manager.confirm(result)
        await manager.pause()
        async with manager.checkpoint(tmp_path / "c", 1, include_buffer=include_buffer):
            pass
        await manager.shutdown()

    async def second():
        buffer, prompts, generator = buffer_of(staleness=rc.Staleness(1)), Numbers(), Timed()
        manager = DisaggregatedManager([Task("math", prompts, generator)], buffer)
        version = await manager.restore(tmp_path / "c")
        assert manager.state is State.PAUSED
        manager.start(4)
        await asyncio.sleep(HOUR)
        assert not generator.started
        assert not prompts.handed
        await manager.continue_(version)
        result = await manager.get_batch(4, 2)
        assert len(names(result)) == 4
        await manager.confirm(result)
        await asyncio.sleep(HOUR)
        assert generator.started
        await manager.shutdown()

    run(first())
    run(second())


# -- bars


class Screen(io.StringIO):
    """A terminal that understands what progress bars send: text, new lines, and moves."""

    def __init__(self):
        super().__init__()
        self.lines = [""]
        self.row = self.column = 0

    def isatty(self):
        return True

    def write(self, text):
        for part in re.split(r"(\x1b\[A|\r|\n)", text):
            if part == "\x1b[A":
                self.row -= 1
            elif part == "\r":
                self.column = 0
            elif part == "\n":
                self.row += 1
                self.column = 0
                if self.row == len(self.lines):
                    self.lines.append("")
            else:
                line = self.lines[self.row].ljust(self.column)
                end = self.column + len(part)
                self.lines[self.row] = line[: self.column] + part + line[end:]
                self.column = end
        return len(text)


def test_progress_bars_of_several_tasks_do_not_overwrite_each_other():
    screen, tasks = Screen(), ["math", "code", "chat"]
    progress = Progress(tasks)
    progress.plan({"math": 4, "code": 10, "chat": 7})
    bars = Bars(tasks, stream=screen)
    assert bars.shown
    rng = random.Random(0)
    made = dict.fromkeys(tasks, 0)
    for _ in range(50):
        task = rng.choice(tasks)  # they finish in any order
        made[task] = min(made[task] + 1, progress[task].target)
        progress.observe(task, Handed(0, 0, made[task]))
        bars.show(1, progress, {task: 3})
        assert [line.split()[0] for line in screen.lines if line.strip()] == tasks
        for name, line in zip(tasks, screen.lines, strict=False):
            assert f"{made[name]}/{progress[name].target} " in line
    bars.close()
    assert [line.split()[:2] for line in screen.lines if line.strip()] == [
        ["math", "4/4"], ["code", "10/10"], ["chat", "7/7"],
    ]  # fmt: skip


def test_there_are_no_bars_where_nobody_looks():
    stream = io.StringIO()
    bars = Bars(["math"], stream=stream)
    bars.show(1, Progress(["math"]), {})
    bars.close()
    assert not bars.shown
    assert stream.getvalue() == ""
