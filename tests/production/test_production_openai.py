"""Generating with a server that speaks the completions protocol: a real one, over sockets.

The server's model says of each token which weights must have made it (`Model.check`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from openai_server import END, Fault, Model, OpenAIServer, response_text, text_of, tokens_of

import recollect as rc
from recollect.errors import GenerationError, InvalidValue
from recollect.production import (
    AsyncStrategy,
    DisaggregatedManager,
    ListPrompts,
    OpenAIGenerator,
    Retries,
    State,
    Task,
)
from recollect.simulation import VirtualClock, run

PROMPT = [11, 12, 13]


def seeded(group: rc.Group, rollout: rc.Rollout) -> dict[str, Any]:
    """A seed for each rollout, so that the responses of a group differ."""
    return {"seed": group.index(rollout), "temperature": 1.0}


def new_group(size: int = 1, **about: Any) -> rc.Group:
    return rc.Group([rc.Rollout() for _ in range(size)], **{"prompt_ids": PROMPT, **about})


@asynccontextmanager
async def serving(
    model: Model | None = None, *, server: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[tuple[OpenAIServer, OpenAIGenerator]]:
    """A server and a generator for it."""
    async with OpenAIServer(model, **(server or {})) as running:
        options = {"max_tokens": 40, "sampling": seeded, "retries": Retries(), **options}
        async with OpenAIGenerator(running.url, "tiny", **options) as generator:
            yield running, generator


def check(model: Model, group: rc.Group) -> None:
    for seed, rollout in enumerate(group):
        model.check(rollout, seed)


def first_only(fault: Fault) -> Callable[[int, dict[str, Any]], Fault | None]:
    return lambda number, body: fault if number == 0 else None


async def arrived(generator: OpenAIGenerator, tokens: int) -> None:
    """Wait until so many tokens of what runs have come."""
    while sum(request.tokens for request in generator.requests) < tokens:
        await asyncio.sleep(0)


# -- what comes back ------------------------------------------------------------------------------
def test_a_group_is_what_the_model_answers_token_by_token() -> None:
    async def main() -> None:
        async with serving() as (server, generator):
            await generator.continue_(3)
            server.version = 3
            group = new_group(8)
            assert await generator.generate(group, keep_partial=False) is group
            assert group.status is rc.Status.COMPLETED
            for seed, rollout in enumerate(group):
                expected = server.model.respond(PROMPT, seed, 3, 40)
                assert rollout.response_ids.tolist() == expected
                assert rollout.finish_reason == ("stop" if expected[-1] == END else "length")
                assert rollout.versions is not None
                assert set(rollout.versions.tolist()) == {3}
                assert rollout.dispatch_version == 3
                assert response_text(rollout) == "".join(map(text_of, expected))
            assert {r.finish_reason for r in group} == {"stop", "length"}
            check(server.model, group)
            body = server.received[0].body
            assert body["prompt"] == PROMPT
            assert body["max_tokens"] == 40
            assert body["return_token_ids"]

    run(main())


def test_chunks_of_many_tokens_and_long_prompts_arrive_whole() -> None:
    async def main() -> None:
        prompt = [random.Random(0).randrange(1000) for _ in range(40_000)]
        async with serving(server={"chunk": 7}, max_tokens=30) as (server, generator):
            group = new_group(2, prompt_ids=prompt)
            await generator.generate(group, keep_partial=False)
            check(server.model, group)
            assert group.status is rc.Status.COMPLETED

    run(main())


def test_a_prompt_of_text_learns_its_tokens_from_the_server() -> None:
    async def main() -> None:
        async with serving() as (server, generator):
            group = new_group(2, prompt_ids=None, prompt="w11 w12 w13")
            await generator.generate(group, keep_partial=False)
            assert group.prompt_ids.tolist() == PROMPT
            assert server.received[0].body["prompt"] == "w11 w12 w13"
            check(server.model, group)

    run(main())


def test_messages_are_tokenized_by_the_function_that_is_given() -> None:
    async def main() -> None:
        def tokenize(messages: Any) -> list[int]:
            return tokens_of(messages[0]["content"])

        async with serving(tokenize=tokenize) as (server, generator):
            messages = [{"role": "user", "content": "w11 w12 w13"}]
            group = new_group(2, prompt_ids=None, prompt=messages)
            await generator.generate(group, keep_partial=False)
            assert server.received[0].body["prompt"] == PROMPT
            check(server.model, group)

    run(main())


def test_a_prompt_without_tokens_or_text_says_what_to_give() -> None:
    async def main() -> None:
        async with serving() as (_, generator):
            with pytest.raises(GenerationError, match="give prompt_ids, or tokenize="):
                await generator.generate(
                    new_group(prompt_ids=None, prompt=[{"role": "user"}]), keep_partial=False
                )

    run(main())


def test_tokens_that_are_named_by_their_ids_are_read() -> None:
    async def main() -> None:
        async with serving(server={"form": "strings"}) as (server, generator):
            group = new_group(2)
            await generator.generate(group, keep_partial=False)
            check(server.model, group)

    run(main())


def test_the_plain_form_needs_a_function_from_a_token_to_its_id() -> None:
    async def main() -> None:
        def token_of(text: str) -> int:
            return tokens_of(text)[0] if text else END

        async with serving(server={"form": "plain"}, token_of=token_of) as (server, generator):
            group = new_group(2)
            await generator.generate(group, keep_partial=False)
            check(server.model, group)
            assert "return_token_ids" not in server.received[0].body

    run(main())


def test_tokens_that_cannot_be_known_are_an_error_and_not_a_guess() -> None:
    async def main() -> None:
        async with serving(server={"form": "plain"}) as (server, generator):
            with pytest.raises(GenerationError, match=r"no token ids.*return_token_ids"):
                await generator.generate(new_group(3), keep_partial=False)
            await server.idle()  # nothing is left running for its siblings

    run(main())


def test_a_prompt_of_text_whose_tokens_the_server_does_not_tell_is_an_error() -> None:
    async def main() -> None:
        async with serving(server={"form": "strings"}) as (_, generator):
            with pytest.raises(GenerationError, match="which tokens the prompt has"):
                await generator.generate(
                    new_group(prompt_ids=None, prompt="w11"), keep_partial=False
                )

    run(main())


def test_logprobs_may_be_left_out() -> None:
    async def main() -> None:
        sampling = {"logprobs": None}
        async with serving(sampling=sampling) as (server, generator):
            group = await generator.generate(new_group(), keep_partial=False)
            assert group[0].logprobs is None
            assert group.status is rc.Status.COMPLETED
            assert "logprobs" not in server.received[0].body

    run(main())


# -- pause and continue ---------------------------------------------------------------------------
def test_a_pause_keeps_partial_text_logprobs_and_versions_and_continuing_goes_on() -> None:
    async def main() -> None:
        async with serving(Model(mean_length=10_000), max_tokens=12) as (server, generator):
            await generator.continue_(1)
            server.version, server.hold_after = 1, 4
            group = new_group(2)
            call = asyncio.create_task(generator.generate(group, keep_partial=True))
            await server.held(2)
            await arrived(generator, 8)
            await generator.pause()
            await server.idle()  # the connections are closed, so the engine drops the requests
            assert (await call).status is rc.Status.ABORTED
            assert [r.num_tokens for r in group] == [4, 4]
            assert [r.finish_reason for r in group] == ["abort", "abort"]
            check(server.model, group)
            text = response_text(group[0])

            server.version = 3
            await server.release()
            await generator.continue_(3)
            await generator.generate(group, keep_partial=True)
            assert group.status is rc.Status.COMPLETED
            for rollout in group:
                assert rollout.versions is not None
                assert rollout.versions.tolist() == [1] * 4 + [3] * 8
                assert rollout.dispatch_version == 1
                assert rollout.attempt == 0
            check(server.model, group)
            assert response_text(group[0]).startswith(text)
            continued = server.received[2].body
            assert len(continued["prompt"]) == len(PROMPT) + 4
            assert continued["max_tokens"] == 8

    run(main())


def test_without_keep_partial_a_pause_takes_rollouts_back_to_their_prompt() -> None:
    async def main() -> None:
        async with serving(Model(mean_length=10_000)) as (server, generator):
            server.hold_after = 4
            group = new_group(2)
            call = asyncio.create_task(generator.generate(group, keep_partial=False))
            await arrived(generator, 8)
            await generator.pause()
            await call
            assert group.status is rc.Status.ABORTED
            for rollout in group:
                assert rollout.num_tokens == 0
                assert rollout.logprobs is None
                assert rollout.versions is None
                assert rollout.attempt == 1
                assert rollout.dispatch_version == 0  # so that it can expire

    run(main())


def test_finished_members_are_not_generated_again() -> None:
    async def main() -> None:
        async with serving(Model(mean_length=6), max_tokens=200) as (server, generator):
            lengths = [len(server.model.respond(PROMPT, seed, 0, 200)) for seed in range(6)]
            cut = sorted(lengths)[3]
            server.hold_after = cut
            group = new_group(6)
            call = asyncio.create_task(generator.generate(group, keep_partial=True))
            long = [length > cut for length in lengths]
            await server.held(sum(long))
            await arrived(generator, cut * sum(long))
            while len(generator.requests) > sum(long):
                await asyncio.sleep(0)
            await generator.pause()
            await call
            statuses = [r.status for r in group]
            assert statuses == [
                rc.Status.ABORTED if is_long else rc.Status.COMPLETED for is_long in long
            ]
            assert 0 < sum(long) < 6
            done = [r.response_ids.tolist() for r in group]

            await server.release()
            await generator.continue_(0)
            await generator.generate(group, keep_partial=True)
            assert len(server.received) == 6 + sum(long)
            assert group.status is rc.Status.COMPLETED
            for rollout, before in zip(group, done, strict=True):
                assert rollout.response_ids.tolist()[: len(before)] == before
            assert [r.num_tokens for r in group] == lengths

    run(main())


def test_while_paused_nothing_is_sent_and_the_group_is_aborted() -> None:
    async def main() -> None:
        async with serving() as (server, generator):
            await generator.pause()
            group = await generator.generate(new_group(2), keep_partial=True)
            assert group.status is rc.Status.ABORTED
            assert [r.dispatch_version for r in group] == [0, 0]
            assert not server.received
            await generator.continue_(1)
            await generator.generate(group, keep_partial=True)
            assert group.status is rc.Status.COMPLETED
            assert [r.dispatch_version for r in group] == [1, 1]

    run(main())


def test_a_pause_reaches_requests_that_wait_for_a_connection_or_for_another_try() -> None:
    async def main() -> None:
        async with serving(connections=1, retries=Retries(first=30)) as (server, generator):
            server.hold_after = 2
            group = new_group(3)
            call = asyncio.create_task(generator.generate(group, keep_partial=True))
            await arrived(generator, 2)
            await generator.pause()
            await call
            assert sorted(r.num_tokens for r in group) == [0, 0, 2]

            await server.release()
            server.fault = lambda number, body: Fault("refuse", status=503)
            await generator.continue_(0)
            begun = len(server.received)
            call = asyncio.create_task(generator.generate(group, keep_partial=True))
            await server.begun(begun + 1)
            await server.idle()
            await generator.pause()
            await call
            assert group.status is rc.Status.ABORTED
            assert asyncio.get_running_loop().time() < 30

    run(main())


def test_a_response_that_has_ended_stays_ended_when_the_pause_finds_its_stream_open() -> None:
    async def main() -> None:
        async with serving(max_tokens=5) as (server, generator):
            server.linger = True
            group = new_group(1)
            call = asyncio.create_task(generator.generate(group, keep_partial=True))
            await arrived(generator, 5)
            await generator.pause()
            await call
            assert group[0].finish_reason == "length"
            assert group.status is rc.Status.COMPLETED
            check(server.model, group)

    run(main())


def test_an_engine_that_aborts_by_itself_gives_an_aborted_rollout_with_its_tokens() -> None:
    async def main() -> None:
        async with serving(Model(mean_length=10_000)) as (server, generator):
            server.fault = first_only(Fault("abort", after=3))
            group = await generator.generate(new_group(), keep_partial=True)
            assert group.status is rc.Status.ABORTED
            assert group[0].num_tokens == 3
            await generator.generate(group, keep_partial=True)
            assert group.status is rc.Status.COMPLETED
            assert group[0].num_tokens == 40
            check(server.model, group)

    run(main())


def test_a_used_up_budget_ends_without_another_request() -> None:
    async def main() -> None:
        async with serving(max_tokens=4) as (server, generator):
            rollout = rc.Rollout(
                response_ids=[1, 2, 3, 4], logprobs=[0.0] * 4, versions=[0] * 4,
                finish_reason="abort", dispatch_version=0,
            )  # fmt: skip
            group = rc.Group([rollout], prompt_ids=PROMPT)
            await generator.generate(group, keep_partial=True)
            assert rollout.finish_reason == "length"
            assert rollout.response_ids.tolist() == [1, 2, 3, 4]
            assert not server.received

    run(main())


def test_the_least_number_of_tokens_counts_those_that_are_there() -> None:
    async def main() -> None:
        async with serving(sampling={"min_tokens": 6, "max_tokens": 9}) as (server, generator):
            rollout = rc.Rollout(response_ids=[1, 2, 3, 4], finish_reason="abort")
            await generator.generate(rc.Group([rollout], prompt_ids=PROMPT), keep_partial=True)
            assert server.received[0].body["min_tokens"] == 2
            assert server.received[0].body["max_tokens"] == 5

    run(main())


@pytest.mark.parametrize("seed", range(20))
def test_however_often_it_is_aborted_every_token_has_the_version_that_made_it(seed: int) -> None:
    """Pauses at random moments, new weights at each; faults in between."""

    async def main() -> None:
        rng = random.Random(seed)
        model = Model(mean_length=60)

        def fault(number: int, body: dict[str, Any]) -> Fault | None:
            kind = rng.choice(["drop", "refuse", "error", "nonsense", None, None, None, None])
            return None if kind is None else Fault(kind, after=rng.randrange(5), status=503)

        options = {"server": {"chunk": rng.choice([1, 3])}, "max_tokens": 60}
        async with serving(model, **options) as (server, generator):
            server.fault = fault
            groups = [new_group(3, prompt_ids=[7, place]) for place in range(3)]
            version = 0
            for _ in range(200):
                server.hold_after = rng.randrange(1, 9)
                calls = [
                    asyncio.create_task(generator.generate(group, keep_partial=True))
                    for group in groups
                ]
                for _ in range(rng.randrange(80)):
                    await asyncio.sleep(0)
                if all(call.done() for call in calls):
                    await asyncio.sleep(0)
                await generator.pause()
                await asyncio.gather(*calls)
                version += rng.randrange(3)
                server.version = version
                await generator.continue_(version)
                groups_left = [g for g in groups if g.status is rc.Status.ABORTED]
                if not groups_left:
                    break
            server.fault = lambda number, body: None
            await server.release()
            for group in groups:
                await generator.generate(group, keep_partial=True)
                assert group.status is rc.Status.COMPLETED
                check(model, group)
                for rollout in group:
                    assert rollout.num_tokens <= 60
                    whole = rollout.response_ids[-1] == END
                    assert whole == (rollout.finish_reason == "stop")
                    assert END not in rollout.response_ids[:-1]
                    assert rollout.versions is not None
                    assert rollout.dispatch_version == rollout.versions[0]
                    assert (np.diff(rollout.versions) >= 0).all()
            mixed = [len(np.unique(r.versions)) for g in groups for r in g]
            assert max(mixed) >= 3

    run(main())


# -- new weights while it runs --------------------------------------------------------------------
async def _version_changes(server: OpenAIServer, generator: OpenAIGenerator) -> rc.Group:
    server.hold_after = 3
    group = new_group(1)
    call = asyncio.create_task(generator.generate(group, keep_partial=False))
    await server.held(1)
    server.version = 1
    await generator.set_version(1)
    await server.release()
    return await call


def test_without_a_report_tokens_take_the_version_at_dispatch_and_the_rollout_says_so() -> None:
    async def main() -> None:
        async with serving(Model(mean_length=10_000), max_tokens=8) as (server, generator):
            group = await _version_changes(server, generator)
            assert group.status is rc.Status.COMPLETED
            assert group[0].versions is not None
            assert group[0].versions.tolist() == [0] * 8
            assert group[0].extras["versions"] == "dispatch"
            later = await generator.generate(new_group(1), keep_partial=False)
            assert later[0].versions is not None
            assert later[0].versions.tolist() == [1] * 8
            assert "versions" not in later[0].extras

    run(main())


def test_a_server_that_reports_versions_is_believed() -> None:
    async def main() -> None:
        options = {"server": {"reports_versions": True}, "max_tokens": 8}
        async with serving(Model(mean_length=10_000), **options) as (server, generator):
            group = await _version_changes(server, generator)
            assert group[0].versions is not None
            assert group[0].versions.tolist() == [0] * 3 + [1] * 5
            assert "versions" not in group[0].extras
            check(server.model, group)

    run(main())


@pytest.mark.parametrize("keep_partial", [True, False])
def test_a_retry_after_new_weights_goes_on_only_where_versions_may_mix(keep_partial: bool) -> None:
    async def main() -> None:
        async with serving(Model(mean_length=10_000), max_tokens=8) as (server, generator):
            server.fault = first_only(Fault("drop", after=3))
            group = new_group(1)
            call = asyncio.create_task(generator.generate(group, keep_partial=keep_partial))
            await server.begun(1)
            await server.idle()
            server.version = 1
            await generator.set_version(1)  # while it waits to try again
            await call
            expected = [0] * 3 + [1] * 5 if keep_partial else [1] * 8
            assert group[0].versions is not None
            assert group[0].versions.tolist() == expected
            assert group[0].dispatch_version == expected[0]
            check(server.model, group)

    run(main())


# -- what goes wrong ------------------------------------------------------------------------------
def test_refusals_are_tried_again_after_pauses_that_double() -> None:
    async def main() -> None:
        times: list[float] = []

        def fault(number: int, body: dict[str, Any]) -> Fault | None:
            times.append(asyncio.get_running_loop().time())
            return Fault("refuse", status=[429, 500, 503][number]) if number < 3 else None

        async with serving(retries=Retries(first=1.0)) as (server, generator):
            server.fault = fault
            group = await generator.generate(new_group(), keep_partial=False)
            assert group.status is rc.Status.COMPLETED
            assert np.diff(times).round(3).tolist() == [1.0, 2.0, 4.0]
            check(server.model, group)

    run(main())


def test_a_server_that_asks_for_patience_gets_it_within_limits() -> None:
    async def main() -> None:
        times: list[float] = []

        def fault(number: int, body: dict[str, Any]) -> Fault | None:
            times.append(asyncio.get_running_loop().time())
            asked = {0: "7", 1: "Wed, 21 Oct 2099 07:28:00 GMT", 2: "9999"}.get(number)
            return asked and Fault("refuse", status=429, headers={"Retry-After": asked})  # type: ignore[return-value]

        async with serving(retries=Retries(first=1.0, most=20.0)) as (server, generator):
            server.fault = fault
            await generator.generate(new_group(), keep_partial=False)
            assert np.diff(times).round(3).tolist() == [7.0, 2.0, 20.0]

    run(main())


def test_a_rollout_fails_with_its_error_when_all_tries_were_in_vain() -> None:
    async def main() -> None:
        async with serving(retries=Retries(attempts=3)) as (server, generator):
            server.fault = lambda number, body: (
                Fault("refuse", status=500) if body["seed"] == 1 else None
            )
            group = await generator.generate(new_group(3), keep_partial=False)
            assert group.status is rc.Status.FAILED
            assert [r.status for r in group] == [
                rc.Status.COMPLETED, rc.Status.FAILED, rc.Status.COMPLETED,
            ]  # fmt: skip
            assert group[1].error is not None
            assert "status 500, on purpose (tried 3 times)" in group[1].error
            assert len(server.received) == 5

    run(main())


def test_a_server_that_is_not_there_fails_the_rollout_and_not_the_program() -> None:
    async def main() -> None:
        async with OpenAIServer() as server:
            url = server.url
        options = {"max_tokens": 4, "retries": Retries(attempts=2)}
        async with OpenAIGenerator(url, "tiny", **options) as generator:
            group = await generator.generate(new_group(), keep_partial=False)
            assert group.status is rc.Status.FAILED
            assert group[0].error is not None
            assert "tried 2 times" in group[0].error
            assert url.removesuffix("/v1") in group[0].error

    run(main())


@pytest.mark.parametrize("kind", ["drop", "error", "nonsense"])
def test_a_stream_that_breaks_goes_on_from_the_tokens_that_came(kind: str) -> None:
    async def main() -> None:
        async with serving(Model(mean_length=10_000), max_tokens=9) as (server, generator):
            server.fault = lambda number, body: Fault(kind, after=4) if number < 2 else None
            group = await generator.generate(new_group(), keep_partial=False)
            assert group.status is rc.Status.COMPLETED
            assert group[0].num_tokens == 9
            check(server.model, group)
            prompts = [len(request.body["prompt"]) - len(PROMPT) for request in server.received]
            assert prompts == [0, 4, 8]
            assert server.tokens_sent == 9  # none was made twice
            assert group[0].attempt == 0

    run(main())


def test_streams_that_break_at_every_token_still_come_to_their_end() -> None:
    async def main() -> None:
        options = {"max_tokens": 9, "retries": Retries(attempts=2)}
        async with serving(Model(mean_length=10_000), **options) as (server, generator):
            server.fault = lambda number, body: Fault("drop", after=1)
            group = await generator.generate(new_group(), keep_partial=False)
            assert group.status is rc.Status.COMPLETED
            assert len(server.received) == 9
            check(server.model, group)

    run(main())


def test_a_prompt_that_the_server_refuses_fails_without_another_try() -> None:
    async def main() -> None:
        async with serving(server={"prompt_limit": 3}) as (server, generator):
            group = new_group(2, prompt_ids=[1, 2, 3, 4])
            await generator.generate(group, keep_partial=False)
            assert group.status is rc.Status.FAILED
            assert group[0].error is not None
            assert "status 400, maximum context is 3" in group[0].error
            assert len(server.received) == 2
            good = await generator.generate(new_group(2), keep_partial=False)
            assert good.status is rc.Status.COMPLETED

    run(main())


@pytest.mark.parametrize("status", [401, 403, 404])
def test_what_no_prompt_could_change_is_raised_and_its_siblings_end(status: int) -> None:
    async def main() -> None:
        async with serving() as (server, generator):
            server.hold_after = 1
            server.fault = lambda number, body: (
                Fault("refuse", status=status) if number == 2 else None
            )
            with pytest.raises(GenerationError, match=f"status {status}.*check url"):
                await generator.generate(new_group(3), keep_partial=False)
            await server.idle()
            assert not generator.requests

    run(main())


def test_the_key_is_sent() -> None:
    async def main() -> None:
        async with serving(server={"api_key": "secret"}, api_key="secret") as (_, generator):
            group = await generator.generate(new_group(), keep_partial=False)
            assert group.status is rc.Status.COMPLETED
        async with serving(server={"api_key": "secret"}, api_key="wrong") as (_, generator):
            with pytest.raises(GenerationError, match="invalid api key"):
                await generator.generate(new_group(), keep_partial=False)

    run(main())


def test_a_request_that_hangs_is_visible_and_at_the_head() -> None:
    async def main() -> None:
        async with serving(Model(mean_length=10_000)) as (server, generator):
            server.fault = first_only(Fault("hang", after=2))
            server.delay = 1.0
            group = new_group(2, task="math")
            call = asyncio.create_task(generator.generate(group, keep_partial=True))
            await asyncio.sleep(20)
            hanging, running = generator.requests
            assert hanging.rollout_id == group[0].rollout_id
            assert (hanging.task, hanging.group_id) == ("math", group.group_id)
            assert hanging.tokens == 2
            assert hanging.silent == pytest.approx(18, abs=1)
            assert hanging.seconds == pytest.approx(20, abs=1)
            assert running.silent <= 1.0
            await generator.pause()
            await call
            assert not generator.requests

    run(main())


@pytest.mark.parametrize("after", [None, 2])
def test_a_request_that_hangs_too_long_is_tried_again(after: int | None) -> None:
    async def main() -> None:
        async with serving(Model(mean_length=10_000), silence=60.0) as (server, generator):
            server.fault = first_only(Fault("hang", after=after))
            group = await generator.generate(new_group(), keep_partial=False)
            assert group.status is rc.Status.COMPLETED
            assert 60 <= asyncio.get_running_loop().time() < 70
            check(server.model, group)
            assert server.tokens_sent == 40

    run(main())


def test_a_rollout_that_takes_longer_than_its_timeout_fails_and_says_so() -> None:
    async def main() -> None:
        async with serving(Model(mean_length=10_000), timeout=25.0) as (server, generator):
            server.delay = 1.0
            group = await generator.generate(new_group(), keep_partial=True)
            assert group.status is rc.Status.FAILED
            assert group[0].error == "not finished after 25 s"
            await server.idle()

    run(main())


def test_cancelling_a_call_closes_its_connections_and_leaves_the_rollouts() -> None:
    async def main() -> None:
        async with serving() as (server, generator):
            server.hold_after = 3
            group = new_group(3)
            call = asyncio.create_task(generator.generate(group, keep_partial=True))
            await server.held(3)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await server.idle()
            assert group.status is rc.Status.INIT
            assert [r.num_tokens for r in group] == [0, 0, 0]
            assert not generator.requests
            await generator.pause()  # waits for nobody

    run(main())


# -- connections ----------------------------------------------------------------------------------
def test_requests_are_limited_and_connections_used_again() -> None:
    async def main() -> None:
        async with serving(connections=8, max_tokens=5) as (server, generator):
            groups = [new_group(4, prompt_ids=[place]) for place in range(25)]
            await asyncio.gather(*(generator.generate(g, keep_partial=False) for g in groups))
            assert len(server.received) == 100
            assert server.most_running <= 8
            assert server.connections <= 8
            for group in groups:
                check(server.model, group)

    run(main())


def test_other_paths_of_the_server_can_be_called() -> None:
    async def main() -> None:
        async with serving() as (server, generator):
            assert await generator.post("/sleep?level=1", {"tags": ["weights"]}) == {"ok": True}
            assert server.posted == [("/sleep?level=1", {"tags": ["weights"]})]

    run(main())


def test_a_generator_belongs_to_one_event_loop_at_a_time() -> None:
    generator = OpenAIGenerator("http://127.0.0.1:1", "tiny", max_tokens=4)

    async def use() -> None:
        with pytest.raises(GenerationError, match=r"127\.0\.0\.1:1"):
            await generator.post("/health")

    async def close() -> None:
        with pytest.raises(GenerationError, match=r"127\.0\.0\.1:1"):
            await generator.post("/health")
        await generator.close()

    async def elsewhere() -> None:
        with pytest.raises(GenerationError, match="another event loop"):
            await generator.post("/health")

    with asyncio.Runner() as first:
        first.run(use())
        asyncio.run(elsewhere())
        first.run(close())
    asyncio.run(close())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tokens": 0}, "max_tokens: expected a whole number from 1, got 0"),
        ({"max_tokens": 2.5}, "max_tokens"),
        ({"connections": 0}, "connections"),
        ({"sampling": {"n": 4}}, "sampling: 'n' is set by the generator"),
        ({"sampling": {"seed": 4}}, "would make the responses of a group equal"),
        ({"sampling": 3}, "sampling: expected a mapping or a function"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        OpenAIGenerator("http://localhost:1", "tiny", **{"max_tokens": 4, **options})


@pytest.mark.parametrize("url", ["localhost:8000", "nonsense", "", None])
def test_an_address_that_no_request_could_go_to_is_refused_when_it_is_made(url: Any) -> None:
    with pytest.raises(InvalidValue, match=r"url: expected one such as http://localhost:8000/v1"):
        OpenAIGenerator(url, "tiny", max_tokens=4)
    with pytest.raises(InvalidValue, match="model: expected the name that the server knows it by"):
        OpenAIGenerator("http://localhost:8000/v1", "", max_tokens=4)


def test_a_generator_shows_where_it_sends_to() -> None:
    generator = OpenAIGenerator("http://localhost:8000/v1", "tiny", max_tokens=4)
    assert repr(generator) == "OpenAIGenerator('http://localhost:8000', 'tiny', 0 rollouts running)"


@pytest.mark.parametrize("options", [{"attempts": 0}, {"first": -1}, {"most": float("nan")}])
def test_wrong_retries_are_named(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue, match=next(iter(options))):
        Retries(**options)


def test_pauses_differ_so_that_requests_do_not_come_again_together() -> None:
    pauses = {Retries(first=1, jitter=0.5).pause(1) for _ in range(20)}
    assert len(pauses) > 10
    assert all(1 <= pause <= 1.5 for pause in pauses)


# -- with a manager -------------------------------------------------------------------------------
@pytest.mark.parametrize("seed", range(2))
def test_partial_rollouts_go_through_a_manager_with_the_right_versions(seed: int) -> None:
    """Weights change at every step, with a pause or without; the server fails now and then."""

    async def main() -> None:
        rng = random.Random(seed)
        model = Model(mean_length=25)

        def fault(number: int, body: dict[str, Any]) -> Fault | None:
            kind = rng.choice(["drop", "refuse", "abort", None, None, None, None, None])
            return None if kind is None else Fault(kind, after=rng.randrange(4), status=503)

        options = {"server": {"reports_versions": True}, "max_tokens": 80, "connections": 24}
        async with serving(model, **options) as (server, generator):
            server.fault = fault
            server.delay = 0.05
            buffer = rc.RolloutBuffer(staleness=rc.Staleness(max_staleness=3), clock=VirtualClock())
            prompts = ListPrompts([[7, place] for place in range(200)], n=3)
            strategy = AsyncStrategy(over_sample=1.0, keep_partial=True)
            task = Task("math", prompts, generator, strategy=strategy)
            manager = DisaggregatedManager(task, buffer)
            manager.start(4)
            mixed = trained = 0
            for step in range(1, 16):
                result = await manager.get_batch(4, step)
                while not result:
                    assert result.status is State.OUTDATED
                    await manager.set_version(step - 1)
                    result = await manager.get_batch(4, step)
                for group in result.groups["math"]:
                    trained += 1
                    check(model, group)
                    for rollout in group:
                        assert rollout.versions is not None
                        assert rollout.versions.min() >= step - 4  # lag below 4
                        assert rollout.versions.max() <= step - 1
                        mixed += len(np.unique(rollout.versions)) > 1
                await manager.confirm(result)
                if rng.random() < 0.5:
                    await manager.pause()
                    assert not manager.in_flight
                    await server.idle()
                    server.version = step
                    await manager.continue_(step)
                else:
                    server.version = step
                    await manager.set_version(step)
            assert trained == 60
            assert mixed > 10
            await manager.shutdown()

    run(main())
