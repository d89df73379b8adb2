"""Generators that are functions, several generators as one, and what they do to rollouts."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from openai_server import Model, OpenAIServer, response_text

import recollect as rc
from recollect.errors import GenerationError, InvalidValue
from recollect.production import (
    FunctionGenerator,
    Generator,
    OpenAIGenerator,
    RayGenerator,
    SpreadGenerator,
)
from recollect.production.generators.life_cycle import abort, begin, grow
from recollect.simulation import run


def new_group(size: int = 1, **about: Any) -> rc.Group:
    return rc.Group([rc.Rollout() for _ in range(size)], **{"prompt_ids": [5, 6], **about})


def answer(rollout: rc.Rollout, tokens: list[int]) -> None:
    rollout.response_ids, rollout.finish_reason = np.int32(tokens), "stop"


def test_all_are_generators() -> None:
    async def nothing(group: rc.Group) -> None: ...

    function = FunctionGenerator(nothing)
    for generator in (
        function,
        SpreadGenerator([function]),
        RayGenerator(function),
        OpenAIGenerator("http://localhost:1", "tiny", max_tokens=1),
    ):
        assert isinstance(generator, Generator)


# -- what becomes of a rollout --------------------------------------------------------------------
def test_a_response_in_parts_has_a_version_a_logprob_and_a_mask_for_each_token() -> None:
    rollout = rc.Rollout([1], [7], versions=[1], dispatch_version=1, finish_reason="abort")
    begin(rollout, 3, keep_partial=True)
    assert rollout.status is rc.Status.INIT
    grow(rollout, [8, 9], [-0.5, -0.25], [3, 3], " b")
    rollout.finish_reason = "stop"
    rollout.check()
    assert rollout.versions is not None
    assert rollout.versions.tolist() == [1, 3, 3]
    assert rollout.dispatch_version == 1
    assert rollout.logprobs is not None
    assert np.array_equal(rollout.logprobs, [np.nan, -0.5, -0.25], equal_nan=True)
    assert rollout.response_ids.tolist() == [7, 8, 9]
    rollout.loss_mask = np.int8([0, 1, 1])
    grow(rollout, [10], None, [4], " c")
    rollout.check()
    assert rollout.loss_mask.tolist() == [0, 1, 1, 1]
    assert np.isnan(rollout.logprobs[-1])
    assert response_text(rollout) == " b c"


def test_text_goes_on_in_the_last_turn_of_the_assistant() -> None:
    rollout = rc.Rollout([1], turns=[{"role": "tool", "content": "4"}])
    assert response_text(rollout) == ""
    grow(rollout, [7], None, [0], "So")
    before = rollout.turns
    grow(rollout, [8], None, [0], " it is 4.")
    assert rollout.turns == [
        {"role": "tool", "content": "4"},
        {"role": "assistant", "content": "So it is 4."},
    ]
    assert before[-1]["content"] == "So"  # what somebody else may hold is not changed


def test_an_aborted_rollout_that_keeps_nothing_is_another_attempt_that_can_expire() -> None:
    rollout = rc.Rollout([1])
    begin(rollout, 4, keep_partial=False)
    grow(rollout, [7], [-1.0], [4])
    abort(rollout, keep_partial=False)
    assert (rollout.num_tokens, rollout.attempt, rollout.dispatch_version) == (0, 1, 4)
    assert rollout.status is rc.Status.ABORTED
    begin(rollout, 6, keep_partial=False)
    assert (rollout.attempt, rollout.dispatch_version) == (1, 6)


# -- functions ------------------------------------------------------------------------------------
def test_a_function_answers_what_is_not_finished_and_tokens_take_the_version_at_dispatch() -> None:
    async def respond(group: rc.Group) -> None:
        for rollout in group:
            if rollout.status is rc.Status.INIT:
                answer(rollout, [1, 2])

    async def main() -> None:
        generator = FunctionGenerator(respond, version=2)
        finished = rc.Rollout(response_ids=[9], versions=[0], finish_reason="stop")
        group = rc.Group([finished, rc.Rollout()], prompt_ids=[5])
        assert await generator.generate(group, keep_partial=False) is group
        assert [r.response_ids.tolist() for r in group] == [[9], [1, 2]]
        assert [r.versions.tolist() for r in group if r.versions is not None] == [[0], [2, 2]]
        assert group[1].dispatch_version == 2

    run(main())


def test_versions_that_a_function_knows_are_believed_and_others_say_so_if_in_doubt() -> None:
    async def respond(group: rc.Group) -> None:
        answer(group[0], [1, 2])
        answer(group[1], [1, 2])
        group[1].versions = np.int32([0, 1])
        await asyncio.sleep(10)

    async def main() -> None:
        generator = FunctionGenerator(respond)
        group = new_group(2)
        call = asyncio.create_task(generator.generate(group, keep_partial=False))
        await asyncio.sleep(5)
        await generator.set_version(1)
        await call
        assert [r.versions.tolist() for r in group if r.versions is not None] == [[0, 0], [0, 1]]
        assert [r.extras.get("versions") for r in group] == ["dispatch", None]

    run(main())


def test_a_continued_response_of_a_function_keeps_the_versions_of_its_first_tokens() -> None:
    async def respond(group: rc.Group) -> None:
        rollout = group[0]
        rollout.response_ids = np.int32([*rollout.response_ids, 8, 9])
        rollout.finish_reason = "stop"

    async def main() -> None:
        generator = FunctionGenerator(respond, version=3)
        for versions in ([1], None):
            rollout = rc.Rollout(
                [5], [7], versions=versions, dispatch_version=1, finish_reason="abort"
            )
            await generator.generate(rc.Group([rollout]), keep_partial=True)
            assert rollout.versions is not None
            assert rollout.versions.tolist() == [1, 3, 3]
            assert rollout.dispatch_version == 1

    run(main())


def test_a_pause_lets_a_function_finish_and_starts_no_other() -> None:
    started = 0

    async def respond(group: rc.Group) -> None:
        nonlocal started
        started += 1
        await asyncio.sleep(60)
        answer(group[0], [1])

    async def main() -> None:
        generator = FunctionGenerator(respond)
        group = new_group()
        call = asyncio.create_task(generator.generate(group, keep_partial=False))
        await asyncio.sleep(1)
        await generator.pause()
        late = await generator.generate(new_group(), keep_partial=False)
        assert late.status is rc.Status.ABORTED
        assert (await call).status is rc.Status.COMPLETED
        assert asyncio.get_running_loop().time() == 60
        assert started == 1
        await generator.continue_(1)
        assert (await generator.generate(late, keep_partial=False)).status is rc.Status.COMPLETED
        assert late[0].dispatch_version == 1

    run(main())


@pytest.mark.parametrize("keep_partial", [True, False])
def test_a_pause_aborts_a_function_that_may_be_aborted(keep_partial: bool) -> None:
    ended: list[str] = []

    async def respond(group: rc.Group) -> None:
        answer(group[0], [1])
        group[1].response_ids = np.int32([2, 3])
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(group.group_id)

    async def main() -> None:
        generator = FunctionGenerator(respond, on_pause="abort")
        group = new_group(3)
        call = asyncio.create_task(generator.generate(group, keep_partial=keep_partial))
        await asyncio.sleep(1)
        await generator.pause()
        await generator.pause()  # may be repeated
        assert await call is group
        assert asyncio.get_running_loop().time() == 1
        assert ended == [group.group_id]
        assert [r.status for r in group] == [
            rc.Status.COMPLETED, rc.Status.ABORTED, rc.Status.ABORTED,
        ]  # fmt: skip
        assert group[1].response_ids.tolist() == ([2, 3] if keep_partial else [])
        assert group[2].num_tokens == 0

    run(main())


def test_a_cancelled_call_is_cancelled_and_not_aborted() -> None:
    async def respond(group: rc.Group) -> None:
        await asyncio.sleep(60)

    async def main() -> None:
        generator = FunctionGenerator(respond, on_pause="abort")
        call = asyncio.create_task(generator.generate(new_group(), keep_partial=False))
        await asyncio.sleep(1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await generator.pause()

    run(main())


def test_what_a_function_raises_is_raised_also_a_timeout_of_its_own() -> None:
    async def fails(group: rc.Group) -> None:
        raise RuntimeError("no engine")

    async def is_late(group: rc.Group) -> None:
        async with asyncio.timeout(5):
            await asyncio.sleep(60)

    async def main() -> None:
        with pytest.raises(RuntimeError, match="no engine"):
            await FunctionGenerator(fails).generate(new_group(), keep_partial=False)
        with pytest.raises(TimeoutError):
            await FunctionGenerator(is_late, on_pause="abort").generate(
                new_group(), keep_partial=False
            )

    run(main())


def test_a_function_may_be_plain_and_return_another_object() -> None:
    def respond(group: rc.Group) -> rc.Group:
        rollouts = [rc.Rollout(rollout_id=r.rollout_id, group_id=r.group_id) for r in group]
        for rollout in rollouts:
            answer(rollout, [4])
        return rc.Group(rollouts, prompt_ids=group.prompt_ids)

    async def main() -> None:
        group = new_group(2)
        result = await FunctionGenerator(respond, version=1).generate(group, keep_partial=False)
        assert result is not group
        assert result.group_id == group.group_id
        assert [r.versions.tolist() for r in result if r.versions is not None] == [[1], [1]]

    run(main())


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (3, "returned 3; it returns a group"),
        (new_group(), "a group keeps its id"),
        (None, "without a finish_reason"),
    ],
)
def test_what_a_function_must_return_is_said(returned: Any, message: str) -> None:
    async def respond(group: rc.Group) -> Any:
        return returned

    with pytest.raises(GenerationError, match=message):
        run(FunctionGenerator(respond).generate(new_group(), keep_partial=False))


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(InvalidValue, match="function: expected a function"):
        FunctionGenerator(3)  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="on_pause: expected 'finish' or 'abort'"):
        FunctionGenerator(answer, on_pause="stop")  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="generators: expected at least one"):
        SpreadGenerator([])
    with pytest.raises(GenerationError, match="has no generate"):
        RayGenerator(object())


# -- several as one -------------------------------------------------------------------------------
def test_groups_go_to_the_least_busy_generator_and_pauses_to_all() -> None:
    async def main() -> None:
        async with OpenAIServer(Model(mean_length=10_000)) as one, OpenAIServer() as two:
            options: dict[str, Any] = {"max_tokens": 6}
            async with (
                OpenAIGenerator(one.url, "tiny", **options) as first,
                OpenAIGenerator(two.url, "tiny", **options) as second,
            ):
                generator = SpreadGenerator([first, second])
                one.hold_after = 2
                groups = [new_group() for _ in range(6)]
                calls = [
                    asyncio.create_task(generator.generate(group, keep_partial=True))
                    for group in groups
                ]
                await one.held(3)
                await two.idle()
                await asyncio.gather(*calls[1::2])
                assert generator.in_flight == [3, 0]
                await generator.pause()
                await asyncio.gather(*calls)
                assert generator.in_flight == [0, 0]
                assert [g.status for g in groups] == [
                    rc.Status.ABORTED, rc.Status.COMPLETED,
                ] * 3  # fmt: skip
                await generator.continue_(4)
                assert (first.version, second.version) == (4, 4)
                await generator.set_version(5)
                assert (first.version, second.version) == (5, 5)

    run(main())


def test_a_generator_that_cannot_be_paused_does_not_keep_others_from_it() -> None:
    class Broken(FunctionGenerator):
        async def pause(self) -> None:
            raise RuntimeError("gone")

    async def main() -> None:
        well = FunctionGenerator(lambda group: None)
        with pytest.raises(RuntimeError, match="gone"):
            await SpreadGenerator([Broken(lambda group: None), well]).pause()
        assert (await well.generate(new_group(), keep_partial=False)).status is rc.Status.ABORTED

    run(main())
