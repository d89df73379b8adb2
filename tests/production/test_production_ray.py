"""A generator in a Ray actor: real processes, calls that are cancelled, an actor that dies."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray_cluster import ray_cluster

import recollect as rc
from recollect.production import RayGenerator, start_generator


def new_group(size: int = 1, **about: Any) -> rc.Group:
    return rc.Group([rc.Rollout() for _ in range(size)], **{"prompt_ids": [5, 6], **about})


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    with ray_cluster(cpus=2):
        yield


class Engine:
    """What a user would run in an actor: answers after a while, and can be paused."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.version = 0
        self.paused = asyncio.Event()

    async def generate(self, group: rc.Group, *, keep_partial: bool) -> rc.Group:
        if group.prompt == "fail":
            raise ValueError("an engine of its own")
        if group.prompt == "die":
            os._exit(1)
        if group.prompt is not None:
            Path(group.prompt).touch()  # a sign that it has begun
        try:
            async with asyncio.timeout(self.seconds):
                await self.paused.wait()
        except TimeoutError:
            for rollout in group:
                rollout.response_ids, rollout.finish_reason = [1, 2], "stop"  # type: ignore[assignment]
        except asyncio.CancelledError:
            Path(f"{group.prompt}.cancelled").touch()
            raise
        else:
            for rollout in group:
                rollout.response_ids, rollout.finish_reason = [1], "abort"  # type: ignore[assignment]
        for rollout in group:
            rollout.versions = [self.version] * rollout.num_tokens  # type: ignore[assignment]
            rollout.check()
        return group

    async def pause(self) -> None:
        self.paused.set()

    async def continue_(self, version: int) -> None:
        self.version = version
        self.paused.clear()

    async def set_version(self, version: int) -> None:
        self.version = version


@pytest.fixture(scope="module")
def quick(cluster: None) -> RayGenerator:
    return start_generator(Engine, 0.0, options={"num_cpus": 0})


def test_a_generator_in_an_actor_generates_pauses_and_can_be_cancelled(
    quick: RayGenerator, tmp_path: Path
) -> None:
    slow = start_generator(Engine, seconds=60.0, options={"num_cpus": 0})

    async def main() -> None:
        group = new_group(2, prompt=str(tmp_path / "q"), ground_truth="4")
        done = await quick.generate(group, keep_partial=False)
        assert done.group_id == group.group_id
        assert done.status is rc.Status.COMPLETED
        assert (done.prompt, done.ground_truth) == (group.prompt, "4")
        assert [r.rollout_id for r in done] == [r.rollout_id for r in group]

        await slow.continue_(3)
        calls = [
            asyncio.create_task(slow.generate(new_group(), keep_partial=True)) for _ in range(4)
        ]
        await slow.pause()
        for aborted in await asyncio.gather(*calls):
            assert aborted.status is rc.Status.ABORTED
            assert aborted[0].versions is not None
            assert aborted[0].versions.tolist() == [3]

        await slow.continue_(4)
        begun = tmp_path / "begun"
        call = asyncio.create_task(slow.generate(new_group(prompt=str(begun)), keep_partial=True))
        while not begun.exists():
            await asyncio.sleep(0.05)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        async with asyncio.timeout(60):
            while not (tmp_path / "begun.cancelled").exists():  # there, too
                await asyncio.sleep(0.05)

    asyncio.run(main())


def test_what_fails_in_an_actor_is_raised_here_with_its_traceback(quick: RayGenerator) -> None:

    async def main() -> None:
        with pytest.raises(ValueError, match="an engine of its own") as failed:
            await quick.generate(new_group(prompt="fail"), keep_partial=False)
        assert "test_production_ray.py" in str(failed.value)  # where in the actor
        with pytest.raises(ray.exceptions.RayActorError):
            await quick.generate(new_group(prompt="die"), keep_partial=False)

    asyncio.run(main())
