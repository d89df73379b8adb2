"""A manager in a Ray actor: production in one process, the trainer in another, or in several.

A batch travels as Arrow record batches, out of Ray's shared memory without a copy. The actor is
asynchronous: a trainer that waits holds nobody up. A trainer that may die takes its batches with
`lease=seconds`, and what it had comes back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

from recollect.base.optional import optional
from recollect.production.blocking import ManagerCalls
from recollect.production.generation import resolved
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
        self._manager = make(*given, **named)
        self._savings: dict[str, CheckpointSaving] = {}

    async def call(self, name: str, *given: Any, **named: Any) -> Any:
        """A call of the manager by its name."""
        found = await resolved(getattr(self._manager, name)(*given, **named))
        return to_send(found) if isinstance(found, BatchResult) else found

    async def call_buffer(self, name: str, *given: Any) -> Any:
        """The same of its buffer."""
        return await getattr(self._manager.buffer, name)(*given)

    async def begin_checkpoint(self, *given: Any, **named: Any) -> Checkpoint:
        saving = self._manager.checkpoint(*given, **named)
        checkpoint = await saving.__aenter__()
        self._savings[str(checkpoint.dir)] = saving
        return checkpoint

    async def end_checkpoint(self, folder: str, failed: bool) -> None:
        await self._savings.pop(folder).__aexit__(RuntimeError if failed else None, None, None)


class RemoteManager(ManagerCalls):
    """The calls of a manager on an actor, blocking: a trainer is a plain program.

    It may be sent to other tasks and actors. `handle` is the actor itself, for coroutines and for
    whatever else Ray can do.
    """

    def __init__(self, handle: Any) -> None:
        self.handle = handle

    def _call(self, name: str, *given: Any, **named: Any) -> Any:
        found = optional("ray").get(self.handle.call.remote(name, *given, **named))
        return received(found) if isinstance(found, Sent) else found

    def confirm(self, result: BatchResult) -> int:
        return self._of_lease(result, self.handle.call_buffer, "confirm", result.train_step)

    def renew(self, result: BatchResult, seconds: float) -> None:
        self._of_lease(result, self.handle.call_buffer, "renew", seconds)

    def give_back(self, result: BatchResult) -> int:
        return self._of_lease(result, self.handle.call, "give_lease_back")

    def _of_lease(self, result: BatchResult, method: Any, name: str, *given: Any) -> int:
        """A call about a result, of which only the lease travels."""
        if result.lease is None:
            return 0
        count: int = optional("ray").get(method.remote(name, result.lease, *given))
        return count

    @contextmanager
    def checkpoint(self, *given: Any, **named: Any) -> Iterator[Checkpoint]:
        """`with remote.checkpoint(path, step) as c:`; `c.dir` must be on a disk that both see."""
        get, failed = optional("ray").get, True
        checkpoint: Checkpoint = get(self.handle.begin_checkpoint.remote(*given, **named))
        try:
            yield checkpoint
            failed = False
        finally:
            get(self.handle.end_checkpoint.remote(str(checkpoint.dir), failed))


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
