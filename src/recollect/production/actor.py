"""A manager in a Ray actor: production in one process, the trainer in another, or in several.

A batch travels as Arrow record batches, out of Ray's shared memory without a copy. The actor is
asynchronous: a trainer that waits holds nobody up. A trainer that may die takes its batches with
`lease=seconds`, and what it had comes back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from recollect.base.leases import LeaseLike
from recollect.base.optional import optional
from recollect.production.allocation import BatchSize
from recollect.production.manager import Manager
from recollect.production.results import BatchResult
from recollect.production.save import Checkpoint, CheckpointSaving
from recollect.rollouts.groups import GroupParts, Groups, TakenBatch

AT_ONCE = 1000  # calls that may wait in the actor at the same time


class Sent(NamedTuple):
    """A result on its way: its numbers, and its groups as Arrow."""

    result: BatchResult
    sizes: dict[str, int]
    groups: GroupParts | None = None


def to_send(result: BatchResult) -> Sent:
    """A result as it travels."""
    taken, bare = result.batch_of, replace(result, groups={}, batch_of=None)
    if taken is None:
        return Sent(bare, {})
    return Sent(bare, result.taken, taken.all.to_parts())


def received(sent: Sent) -> BatchResult:
    """And back."""
    if sent.groups is None:
        return sent.result
    taken = TakenBatch(Groups.from_parts(sent.groups), sent.sizes)
    return replace(sent.result, groups=taken.groups, batch_of=taken)


class ManagerActor:
    """What runs in the actor's process. `start_manager` starts it."""

    def __init__(self, make: Callable[..., Manager], *given: Any, **named: Any) -> None:
        self._manager: Any = make(*given, **named)
        self._savings: dict[str, CheckpointSaving] = {}

    async def start(self, batch_size: BatchSize, version: int | None) -> None:
        self._manager.start(batch_size, version=version)

    async def get_batch(self, *given: Any, **named: Any) -> Sent:
        return to_send(await self._manager.get_batch(*given, **named))

    async def produce_batch(self, *given: Any, **named: Any) -> Sent:
        return to_send(await self._manager.produce_batch(*given, **named))

    async def evaluate(self, *given: Any, **named: Any) -> Sent:
        return to_send(await self._manager.evaluate(*given, **named))

    async def confirm(self, lease: LeaseLike, train_step: int) -> int:
        count: int = await self._manager.buffer.confirm(lease, train_step)
        return count

    async def renew(self, lease: LeaseLike, seconds: float) -> None:
        await self._manager.buffer.renew(lease, seconds)

    async def give_back(self, lease: LeaseLike) -> int:
        count: int = await self._manager.give_lease_back(lease)
        return count

    async def call(self, name: str, *given: Any, **named: Any) -> Any:
        """The calls whose arguments and results travel as they are."""
        return await getattr(self._manager, name)(*given, **named)

    async def stats(self) -> dict[str, Any]:
        stats: dict[str, Any] = self._manager.stats()
        return stats

    async def begin_checkpoint(self, *given: Any, **named: Any) -> Checkpoint:
        saving = self._manager.checkpoint(*given, **named)
        checkpoint: Checkpoint = await saving.__aenter__()
        self._savings[str(checkpoint.dir)] = saving
        return checkpoint

    async def end_checkpoint(self, folder: str, failed: bool) -> None:
        await self._savings.pop(folder).__aexit__(RuntimeError if failed else None, None, None)


class RemoteManager:
    """The calls of a manager on an actor, blocking: a trainer is a plain program.

    It may be sent to other tasks and actors. `handle` is the actor itself, for coroutines and for
    whatever else Ray can do.
    """

    def __init__(self, handle: Any) -> None:
        self.handle = handle

    def start(self, batch_size: BatchSize, *, version: int | None = None) -> None:
        self._get(self.handle.start.remote(batch_size, version))

    def get_batch(
        self, batch_size: BatchSize, train_step: int, *, lease: float | bool = True
    ) -> BatchResult:
        return received(
            self._get(self.handle.get_batch.remote(batch_size, train_step, lease=lease))
        )

    def produce_batch(
        self,
        batch_size: BatchSize,
        train_step: int,
        *,
        version: int | None = None,
        lease: float | bool = True,
    ) -> BatchResult:
        call = self.handle.produce_batch.remote
        return received(self._get(call(batch_size, train_step, version=version, lease=lease)))

    def evaluate(self, sizes: Mapping[str, int], *, lease: float | bool = True) -> BatchResult:
        return received(self._get(self.handle.evaluate.remote(sizes, lease=lease)))

    def confirm(self, result: BatchResult) -> int:
        if result.lease is None:
            return 0
        count: int = self._get(self.handle.confirm.remote(result.lease, result.train_step))
        return count

    def renew(self, result: BatchResult, seconds: float) -> None:
        if result.lease is not None:
            self._get(self.handle.renew.remote(result.lease, seconds))

    def give_back(self, result: BatchResult) -> int:
        if result.lease is None:
            return 0
        count: int = self._get(self.handle.give_back.remote(result.lease))
        return count

    def pause(self) -> float:
        seconds: float = self._get(self.handle.call.remote("pause"))
        return seconds

    def continue_(self, version: int) -> None:
        self._get(self.handle.call.remote("continue_", version))

    def set_version(self, version: int, *, abort_hopeless: bool = True) -> int:
        call = self.handle.call.remote("set_version", version, abort_hopeless=abort_hopeless)
        aborted: int = self._get(call)
        return aborted

    def stats(self) -> dict[str, Any]:
        stats: dict[str, Any] = self._get(self.handle.stats.remote())
        return stats

    def checkpoint(self, *given: Any, **named: Any) -> RemoteCheckpoint:
        """`with remote.checkpoint(path, step) as c:`; `c.dir` must be on a disk that both see."""
        return RemoteCheckpoint(self.handle, given, named)

    def restore(self, path: Any = None, **options: Any) -> int:
        version: int = self._get(self.handle.call.remote("restore", path, **options))
        return version

    def shutdown(self) -> None:
        self._get(self.handle.call.remote("shutdown"))

    def _get(self, reference: Any) -> Any:
        return optional("ray").get(reference)


class RemoteCheckpoint:
    """A checkpoint whose block runs in the trainer's process."""

    def __init__(self, handle: Any, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        self._handle, self._given, self._named = handle, given, named
        self._folder: Path | None = None

    def __enter__(self) -> Checkpoint:
        call = self._handle.begin_checkpoint.remote(*self._given, **self._named)
        checkpoint: Checkpoint = optional("ray").get(call)
        self._folder = checkpoint.dir
        return checkpoint

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        call = self._handle.end_checkpoint.remote(str(self._folder), kind is not None)
        optional("ray").get(call)


def start_manager(
    make: Callable[..., Manager],
    *given: Any,
    options: Mapping[str, Any] | None = None,
    **named: Any,
) -> RemoteManager:
    """Start a manager in a Ray actor of its own.

    Args:
        make: A function that makes the manager with its tasks and buffer; it is called there.
        given: Its arguments.
        options: Of Ray's `actor.options`, such as `name`, `num_cpus` or `lifetime`.
        named: Its arguments by name.
    """
    actor = optional("ray").remote(ManagerActor)
    settings = {"max_concurrency": AT_ONCE, **(options or {})}
    return RemoteManager(actor.options(**settings).remote(make, *given, **named))
