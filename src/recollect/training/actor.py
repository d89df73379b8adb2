"""A preparation as a Ray actor: producers put from anywhere, and each rank gets its share.

What travels are groups and shares, by Ray's own encoding; arrays come out of its shared memory
without a copy, and read-only. The actor is asynchronous: a rank that waits holds nobody up.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, cast

from recollect.base.optional import optional
from recollect.config import Source, load_mapping
from recollect.errors import InvalidValue, shown
from recollect.rollouts.group import Group
from recollect.training.metrics import stored
from recollect.training.preparation import BlockingPreparation, DataPreparation
from recollect.training.train_step import RankBatch

AT_ONCE = 10_000  # calls that may wait in the actor at the same time


class PreparationCalls(ABC):
    """The calls of a preparation, passed on to it."""

    @property
    @abstractmethod
    def _calls(self) -> DataPreparation:
        """What has the calls as coroutines."""

    async def put(self, group: Group, version: int | None = None) -> int | None:
        return await self._calls.put(group, version=version)

    async def get(self, rank: int, step: int) -> RankBatch:
        return await self._calls.get(rank, step)

    async def confirm(self, rank: int, step: int) -> bool:
        return await self._calls.confirm(rank, step)

    async def report(self, rank: int, step: int, rollout_ids: Sequence[str], priority: Any) -> int:
        return await self._calls.report(rank, step, rollout_ids, priority)

    async def state(self) -> dict[str, Any]:
        return await self._calls.state()

    async def restore(self, saved: Mapping[str, Any]) -> int:
        return await self._calls.restore(saved)

    async def close(self) -> None:
        await self._calls.close()


class PreparationActor(PreparationCalls):
    """What runs in the actor's process. `start_actor` starts it."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._preparation = DataPreparation.from_config(config)

    @property
    def _calls(self) -> DataPreparation:
        return self._preparation

    async def metrics(self) -> dict[str, float]:
        return stored(self._preparation.buffer)


class RemotePreparation(PreparationCalls):
    """The calls of `DataPreparation` on an actor. It may be sent to other tasks and actors.

    Calls are coroutines; `sync` has them blocking. `handle` is the actor itself.
    """

    def __init__(self, handle: Any) -> None:
        self.handle = handle

    @property
    def _calls(self) -> DataPreparation:
        return cast(DataPreparation, _References(self.handle))

    async def metrics(self) -> dict[str, float]:
        """What the actor's buffer holds now (`buffer/...`)."""
        found: dict[str, float] = await self.handle.metrics.remote()
        return found

    @property
    def sync(self) -> BlockingRemotePreparation:
        """The same calls, blocking."""
        return BlockingRemotePreparation(self.handle)


class BlockingRemotePreparation(BlockingPreparation):
    """The calls of `RemotePreparation` for programs without an event loop."""

    def __init__(self, handle: Any) -> None:
        super().__init__(cast(DataPreparation, _References(handle)))
        self.handle = handle

    def __reduce__(self) -> tuple[Any, ...]:  # it may be sent, too, and its lock may not
        return BlockingRemotePreparation, (self.handle,)

    def run(self, call: Any) -> Any:
        """Wait for what an actor was asked for."""
        return optional("ray").get(call)

    def metrics(self) -> dict[str, float]:
        found: dict[str, float] = self.run(self.handle.metrics.remote())
        return found


class _References:
    """The calls of an actor. Each returns a reference at once, which can be awaited."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handle, name).remote


def start_actor(config: Source, **options: Any) -> RemotePreparation:
    """Start a preparation as a Ray actor, of a mapping or of the YAML file at a path.

    Args:
        config: As `DataPreparation.from_config` takes it. A file is read here.
        options: Of Ray's `actor.options`, such as `name`, `num_cpus` or `lifetime`.
    """
    ray = optional("ray")
    data = load_mapping(config) if isinstance(config, str | os.PathLike) else config
    if not isinstance(data, Mapping):
        raise InvalidValue(f"config: expected a mapping or a path, got {shown(config)}")
    DataPreparation.from_config(data)  # so that an error is raised here, and not in the actor
    actor = ray.remote(PreparationActor)
    return RemotePreparation(
        actor.options(**{"max_concurrency": AT_ONCE, **options}).remote(dict(data))
    )
