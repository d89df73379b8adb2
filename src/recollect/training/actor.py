"""A preparation as a Ray actor: producers put from anywhere, and each rank gets its share.

What travels are groups and shares, by Ray's own encoding; arrays come out of its shared memory
without a copy, and read-only. The actor is asynchronous: a rank that waits holds nobody up.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, Concatenate, ParamSpec, TypeVar

from recollect.base.optional import optional
from recollect.config import Source, load_mapping
from recollect.errors import InvalidValue, shown
from recollect.rollouts.group import Group
from recollect.training.metrics import stored
from recollect.training.preparation import BlockingPreparation, DataPreparation
from recollect.training.train_step import RankBatch

Given = ParamSpec("Given")
Result = TypeVar("Result")

AT_ONCE = 10_000  # calls that may wait in the actor at the same time


class PreparationActor:
    """What runs in the actor's process. `start_actor` starts it."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._preparation = DataPreparation.from_config(config)

    async def call(self, name: str, *given: Any, **named: Any) -> Any:
        """A call of the preparation by its name."""
        return await getattr(self._preparation, name)(*given, **named)

    async def metrics(self) -> dict[str, float]:
        return stored(self._preparation.buffer)


class RemotePreparation:
    """The calls of `DataPreparation` on an actor. It may be sent to other tasks and actors.

    Calls are coroutines; `sync` has them blocking. `handle` is the actor itself.
    """

    def __init__(self, handle: Any) -> None:
        self.handle = handle

    async def put(self, group: Group, *, version: int | None = None) -> int | None:
        return await self._call(DataPreparation.put, group, version=version)

    async def get(self, rank: int, step: int) -> RankBatch:
        return await self._call(DataPreparation.get, rank, step)

    async def confirm(self, rank: int, step: int) -> bool:
        return await self._call(DataPreparation.confirm, rank, step)

    async def report(self, rank: int, step: int, rollout_ids: Sequence[str], priority: Any) -> int:
        return await self._call(DataPreparation.report, rank, step, rollout_ids, priority)

    async def state(self) -> dict[str, Any]:
        return await self._call(DataPreparation.state)

    async def restore(self, saved: Mapping[str, Any]) -> int:
        return await self._call(DataPreparation.restore, saved)

    async def metrics(self) -> dict[str, float]:
        """What the actor's buffer holds now (`buffer/...`)."""
        found: dict[str, float] = await self.handle.metrics.remote()
        return found

    async def close(self) -> None:
        await self._call(DataPreparation.close)

    async def _call(
        self,
        method: Callable[Concatenate[DataPreparation, Given], Coroutine[Any, Any, Result]],
        *given: Given.args,
        **named: Given.kwargs,
    ) -> Result:
        found: Result = await self.handle.call.remote(method.__name__, *given, **named)
        return found

    @property
    def sync(self) -> BlockingRemotePreparation:
        """The same calls, blocking."""
        return BlockingRemotePreparation(self.handle)


class BlockingRemotePreparation(BlockingPreparation):
    """The calls of `RemotePreparation` for programs without an event loop."""

    def __init__(self, handle: Any) -> None:
        names = ("put", "get", "confirm", "report", "state", "restore", "close")
        calls: Any = SimpleNamespace(**{name: partial(handle.call.remote, name) for name in names})
        super().__init__(calls)  # each returns a reference at once
        self.handle = handle

    def run(self, call: Any) -> Any:
        """Wait for what an actor was asked for."""
        return optional("ray").get(call)

    def metrics(self) -> dict[str, float]:
        found: dict[str, float] = self.run(self.handle.metrics.remote())
        return found


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
