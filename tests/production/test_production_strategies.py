"""How a task's batch gets produced: what is started, and how generations end."""

from __future__ import annotations

import asyncio

import pytest
from production_parts import Numbers, Timed, buffer_of, completed, settle

import recollect as rc
from recollect.production import (
    AsyncStrategy,
    Context,
    EvalStrategy,
    Outcome,
    Progress,
    SyncStrategy,
    Task,
)
from recollect.production.context import Conditions, Consumption
from recollect.simulation import run


def context_of(strategy, *, buffer=None, prompts=None, generator=None, batch=4, plan=None, **task):
    """A task whose step 1 is planned and may be produced."""
    buffer = buffer_of() if buffer is None else buffer
    prompts = Numbers() if prompts is None else prompts
    generator = Timed() if generator is None else generator
    progress = Progress(["math"])
    progress.plan({"math": batch if plan is None else plan})
    made = Task("math", prompts, generator, strategy=strategy, **task)
    ctx = Context(made, buffer, progress, Consumption(buffer), Conditions(stopping=False))
    ctx.batch = batch
    return ctx


async def produced(ctx):
    return await ctx.task.strategy.produce(ctx)


def aborted(name, tokens=(7,), version=0):
    rollout = rc.Rollout(
        response_ids=list(tokens), versions=[version] * len(tokens), dispatch_version=version,
        finish_reason="abort",
    )  # fmt: skip
    return rc.Group([rollout], task="math", group_id=name, prompt_ids=[1])


class Failing(Timed):
    """Answers like `Timed`; some groups fail."""

    def __init__(self, failing, **options):
        super().__init__(**options)
        self.failing = failing

    async def generate(self, group, *, keep_partial):
        group = await super().generate(group, keep_partial=keep_partial)
        if group.group_id in self.failing:
            group[0].finish_reason, group[0].error = "error", "no answer"
        return group


# -- one batch ------------------------------------------------------------------------------------
@pytest.mark.parametrize("strategy", [SyncStrategy(), AsyncStrategy()])
def test_what_fails_or_is_filtered_is_counted_and_replaced(strategy):
    async def main():
        buffer = buffer_of()
        events = buffer.events("discarded")
        ctx = context_of(
            strategy,
            buffer=buffer,
            generator=Failing({"math-1"}),
            valid=lambda group: group.group_id != "math-2",
        )
        assert await produced(ctx) is Outcome.PRODUCED
        assert ctx.prompts.handed == [f"math-{n}" for n in range(6)]
        assert buffer.count("math", "COMPLETED") == 4
        window = ctx.progress.window
        assert (window.failed, window.filtered, window.groups) == (1, 1, 4)
        assert window.rollouts == 6
        assert (window.reward_sum, window.reward_count) == (5.0, 5)  # also the filtered one's
        told = {event.group_id: event.reason for event in await anext(events)}
        assert told == {"math-1": "failed", "math-2": "filtered"}

    run(main())


def test_sync_begins_every_response_at_its_prompt():
    async def main():
        ctx = context_of(SyncStrategy(), buffer=buffer_of(staleness=rc.Staleness(), capacity=5))
        await ctx.buffer.put(completed("stale"))
        await ctx.buffer.advance(2)
        ctx.conditions.version = ctx.generator.version = 1
        ctx.conditions.step = 2
        await ctx.buffer.put(aborted("partial", version=1))
        assert await produced(ctx) is Outcome.PRODUCED
        assert ctx.prompts.handed == ["stale", "partial", "math-0", "math-1"]
        assert ctx.buffer.count("math", "COMPLETED") == len(ctx.buffer) == 4

    run(main())


def test_sync_returns_when_nothing_runs_any_more():
    async def main():
        ctx = context_of(SyncStrategy(), generator=Timed(lambda g: 1 + int(g.group_id[5:])))
        making = asyncio.ensure_future(produced(ctx))
        await asyncio.sleep(0.5)
        for n in range(2):  # somebody else brings some of them
            await ctx.buffer.put(completed(f"other-{n}"))
        assert await making is Outcome.PRODUCED
        assert len(ctx.pending) == 0
        assert asyncio.get_running_loop().time() == 4.0

    run(main())


def test_async_leaves_the_slowest_running_and_counts_them_for_the_next_step():
    async def main():
        ctx = context_of(
            AsyncStrategy(over_sample=0.5), generator=Timed(lambda g: int(g.group_id[5:]))
        )
        assert await produced(ctx) is Outcome.PRODUCED
        assert ctx.prompts.count == 6
        assert len(ctx.pending) == 2
        ctx._progress.plan({"math": 4})
        making = asyncio.ensure_future(produced(ctx))
        await settle()
        assert ctx.prompts.count == 10  # 4 missing, 2 beyond; 2 run already... and so 4 are new
        ctx.conditions.stopping = True
        ctx.conditions.changed.notify()
        assert await making is Outcome.STOPPED

    run(main())


def test_aborted_groups_come_first_then_expired_then_new():
    async def main():
        buffer = buffer_of(staleness=rc.Staleness())
        ctx = context_of(AsyncStrategy(), buffer=buffer, batch=4)
        await buffer.put(completed("stale", version=0))
        await buffer.advance(2)
        ctx.conditions.version = ctx.generator.version = 1
        ctx.conditions.step = 2
        await buffer.put(aborted("partial", version=1))
        assert await produced(ctx) is Outcome.PRODUCED
        assert ctx.generator.started == ["partial", "stale", "math-0", "math-1"]

    run(main())


def test_a_retry_trigger_waits_for_so_many_and_then_expired_come_first():
    async def main():
        buffer = buffer_of(staleness=rc.Staleness())
        ctx = context_of(AsyncStrategy(over_sample=1.0, retry_trigger=2), buffer=buffer, batch=2)
        await buffer.put(completed("stale-0"))
        await buffer.advance(2)
        ctx.conditions.version = ctx.generator.version = 1
        ctx.conditions.step = 2
        await buffer.put(aborted("partial", version=1))
        assert await produced(ctx) is Outcome.PRODUCED
        assert ctx.generator.started == ["partial", "math-0", "math-1", "math-2"]
        await ctx.pending.drained()
        assert ctx.stored(rc.Status.EXPIRED) == 1

        await buffer.put(completed("stale-1"))  # too old when it comes: the second
        await buffer.put(aborted("partial-2", version=1))
        ctx.generator.started.clear()
        ctx._progress.plan({"math": 5})
        assert await produced(ctx) is Outcome.PRODUCED
        assert ctx.generator.started == ["stale-0", "stale-1", "partial-2"]  # and none beyond
        assert len(ctx.pending) == 0

    run(main())


def test_expired_groups_below_the_trigger_are_retried_when_there_are_no_prompts_left():
    async def main():
        class Few(Numbers):
            def next(self):
                if self.count == 1 and not self.back:
                    raise rc.errors.OutOfPrompts("over")
                return super().next()

        buffer = buffer_of(staleness=rc.Staleness())
        ctx = context_of(AsyncStrategy(retry_trigger=9), buffer=buffer, prompts=Few(), batch=2)
        await buffer.put(completed("stale"))
        await buffer.advance(2)
        ctx.conditions.version = ctx.generator.version = 1
        ctx.conditions.step = 2
        assert await produced(ctx) is Outcome.PRODUCED
        assert ctx.generator.started == ["math-0", "stale"]

    run(main())


def test_without_prompts_it_says_so():
    async def main():
        class Few(Numbers):
            def next(self):
                if self.count == 3:
                    raise rc.errors.OutOfPrompts("over")
                return super().next()

        ctx = context_of(SyncStrategy(), prompts=Few())
        assert await produced(ctx) is Outcome.EXHAUSTED
        assert ctx.buffer.count("math", "COMPLETED") == 3

    run(main())


# -- what is aborted ------------------------------------------------------------------------------
class Partial(Timed):
    """Aborted by a pause after a token; continues what it is given."""

    async def generate(self, group, *, keep_partial):
        group = await super().generate(group, keep_partial=keep_partial)
        for rollout in group:
            if rollout.finish_reason == "abort":
                rollout.response_ids, rollout.versions = [5], [self.version]
                rollout.check()
        return group


@pytest.mark.parametrize("keep", [False, True])
def test_an_aborted_group_waits_in_the_buffer_with_its_tokens_or_without(keep):
    async def main():
        ctx = context_of(AsyncStrategy(keep_partial=keep), generator=Partial(10.0, aborts=True))
        making = asyncio.ensure_future(produced(ctx))
        await asyncio.sleep(1)
        ctx.conditions.stopping = True
        ctx.conditions.changed.notify()
        await ctx.generator.pause()
        await ctx.pending.drained()
        assert await making is Outcome.STOPPED
        groups = await ctx.buffer.take(9, "math", "ABORTED")
        assert [group[0].num_tokens for group in groups] == [int(keep)] * 4
        assert [group[0].attempt for group in groups] == [int(not keep)] * 4
        assert ctx.prompts.given_back == []
        assert ctx.progress.window.aborted == 4
        assert ctx.progress.window.tokens == 4  # they were generated, whoever drops them

    run(main())


def test_new_tokens_of_a_continued_response_are_counted_once():
    class Continues(Timed):
        async def generate(self, group, *, keep_partial):
            assert keep_partial
            rollout = group[0]
            rollout.response_ids = [*rollout.response_ids.tolist(), 8, 9]
            rollout.versions = [*rollout.versions.tolist(), 1, 1]
            rollout.check()
            rollout.finish_reason = "stop"
            return group

    async def main():
        buffer = buffer_of(staleness=rc.Staleness(max_staleness=3))
        ctx = context_of(
            AsyncStrategy(keep_partial=True), buffer=buffer, batch=1, generator=Continues()
        )
        await buffer.put(aborted("partial", (5, 6, 7)))
        ctx.conditions.version = 1
        assert await produced(ctx) is Outcome.PRODUCED
        assert ctx.progress.window.tokens == 2
        group = (await buffer.take(1, "math"))[0]
        assert group[0].versions.tolist() == [0, 0, 0, 1, 1]
        assert group[0].dispatch_version == 0  # when it was sent first

    run(main())


def test_tokens_without_versions_take_that_of_dispatch_and_say_so_if_it_changed():
    class Silent(Timed):
        async def generate(self, group, *, keep_partial):
            group = await super().generate(group, keep_partial=keep_partial)
            group[0].versions = None
            return group

    async def main():
        buffer = buffer_of(staleness=rc.Staleness(max_staleness=3))
        generator = Silent(lambda group: 1.0 if group.group_id == "math-0" else 3.0)
        ctx = context_of(AsyncStrategy(), buffer=buffer, batch=2, generator=generator)
        making = asyncio.ensure_future(produced(ctx))
        await asyncio.sleep(2)
        ctx.conditions.version = 1
        await making
        one, two = await buffer.take(2, "math")
        assert one[0].versions.tolist() == two[0].versions.tolist() == [0, 0]
        assert one[0].extras == {}
        assert two[0].extras == {"versions": "dispatch"}

    run(main())


# -- what goes wrong ------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda group: None, "expected the group it was given, got None"),
        (lambda group: completed("other"), "expected group 'math-0' back, got 'other'"),
        (lambda group: group, "came back INIT; every member that was generated needs a finish_"),
    ],
)
def test_a_generator_that_returns_something_else_is_told(change, told):
    class Wrong(Timed):
        async def generate(self, group, *, keep_partial):
            return change(group)

    async def main():
        ctx = context_of(AsyncStrategy(), generator=Wrong(), batch=1)
        assert await produced(ctx) is Outcome.STOPPED
        assert isinstance(ctx.conditions.error, rc.errors.ProductionError)
        assert told in str(ctx.conditions.error)
        assert "generator of task 'math'" in str(ctx.conditions.error)
        assert ctx.prompts.given_back == ["math-0"]

    run(main())


def test_a_prompt_whose_group_failed_by_an_error_is_given_back_and_its_room_too():
    class Broken(Timed):
        async def generate(self, group, *, keep_partial):
            raise RuntimeError("broken")

    async def main():
        buffer = buffer_of(capacity=8)
        ctx = context_of(AsyncStrategy(), buffer=buffer, generator=Broken())
        assert await produced(ctx) is Outcome.STOPPED
        await ctx.pending.drained()
        assert str(ctx.conditions.error) == "broken"
        assert ctx.prompts.given_back == [f"math-{n}" for n in range(4)]
        assert buffer.stats()["promised"] == {}

    run(main())


def test_a_source_that_gives_no_group_is_told():
    async def main():
        prompts = Numbers()
        prompts.next = lambda: "a prompt"
        ctx = context_of(AsyncStrategy(), prompts=prompts)
        with pytest.raises(rc.InvalidValue, match="prompts of task 'math': expected a group"):
            await produced(ctx)

    run(main())


# -- bounded buffers ------------------------------------------------------------------------------
def test_every_start_reserves_its_place_and_waits_for_room_without_polling():
    async def main():
        buffer = buffer_of(capacity=3)
        ctx = context_of(AsyncStrategy(), buffer=buffer, batch=5)
        making = asyncio.ensure_future(produced(ctx))
        await asyncio.sleep(0.5)
        assert buffer.stats()["promised"] == {"math": 3}
        assert len(ctx.pending) == 3
        await asyncio.sleep(100)
        assert ctx.prompts.count == 3
        taken = await buffer.take(2, "math", lease=True)
        await buffer.confirm(taken.lease)  # room for two
        assert await making is Outcome.PRODUCED
        assert ctx.prompts.count == 5
        assert buffer.stats()["promised"] == {}

    run(main())


# -- evaluation -----------------------------------------------------------------------------------
def test_evaluation_scores_failures_filters_nothing_and_never_expires():
    async def main():
        buffer = buffer_of(staleness=rc.Staleness())
        ctx = context_of(
            EvalStrategy(failed_reward=-1.0),
            buffer=buffer,
            generator=Failing({"math-1"}),
            valid=lambda group: False,
        )
        ctx.conditions.version = 1
        assert await produced(ctx) is Outcome.PRODUCED
        assert ctx.prompts.count == 4  # no refill
        await buffer.advance(100)
        groups = await buffer.take(9, "math")
        assert sorted(group[0].reward for group in groups) == [-1.0, 1.0, 1.0, 1.0]
        assert {group.extras["version"] for group in groups} == {1}

    run(main())


# -- values ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"over_sample": -0.1}, "over_sample: expected a share of 0 or more, got -0.1"),
        ({"over_sample": "1"}, "over_sample: expected a share"),
        ({"keep_partial": 1}, "keep_partial: expected True or False, got 1"),
        ({"retry_trigger": -1}, "retry_trigger: expected a whole number of at least 0"),
    ],
)
def test_wrong_options_are_told(options, told):
    with pytest.raises(rc.InvalidValue, match=told):
        AsyncStrategy(**options)


def test_a_task_needs_prompts_and_a_generator():
    made = r"exclude, give_back, .* got \[1, 2\]; ListPrompts makes one of a list"
    with pytest.raises(rc.InvalidValue, match=f"prompts: expected an object with {made}"):
        Task("math", [1, 2], Timed())
    made = r"continue_, generate, .*; FunctionGenerator makes one of a function"
    with pytest.raises(rc.InvalidValue, match=f"generator: expected an object with {made}"):
        Task("math", Numbers(), print)
    with pytest.raises(rc.InvalidValue, match="reward: expected a function of a group, got 3"):
        Task("math", Numbers(), Timed(), reward=3)
    with pytest.raises(rc.InvalidValue, match="weight of task 'math'"):
        Task("math", Numbers(), Timed(), weight=-1)


def test_what_is_aborted_though_nobody_asked_is_not_sent_again_at_once():
    class Away(Timed):
        async def generate(self, group, *, keep_partial):
            self.started.append(group.group_id)
            group[0].finish_reason = "abort"
            return group

    async def main():
        ctx = context_of(AsyncStrategy(), generator=Away(), batch=2)
        making = asyncio.ensure_future(produced(ctx))
        await asyncio.sleep(10.5)
        assert len(ctx.generator.started) == 2 * 11
        ctx.conditions.stopping = True
        ctx.conditions.changed.notify()
        await making
        await ctx.pending.drained()  # a pause does not wait for it
        assert asyncio.get_running_loop().time() == 10.5

    run(main(), limit=100)


def test_a_bounded_buffer_without_prompts_does_not_turn_in_circles():
    async def main():
        class Few(Numbers):
            def next(self):
                if self.count == 2:
                    raise rc.errors.OutOfPrompts("over")
                return super().next()

        ctx = context_of(
            AsyncStrategy(), buffer=buffer_of(capacity=4), prompts=Few(), generator=Timed(50.0)
        )
        ctx._progress.plan({"math": 4})
        making = asyncio.ensure_future(produced(ctx))
        await asyncio.sleep(1.0)
        before = ctx.conditions.changed.count
        await asyncio.sleep(10.0)
        assert ctx.conditions.changed.count == before
        assert await making is Outcome.EXHAUSTED
        assert ctx.buffer.stats()["promised"] == {}

    run(main(), limit=1000)
