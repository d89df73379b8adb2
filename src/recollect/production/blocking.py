"""`manager.sync`: the calls of a manager for threads. They block where the others await.

They run on the manager's event loop. Where nobody runs one, a thread of its own does, until
`shutdown`: so a trainer may be a plain program, and production goes on while it computes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol

from recollect.base.blocking_face import BlockingFace
from recollect.errors import ProductionError
from recollect.production.allocation import BatchSize
from recollect.production.results import BatchResult
from recollect.production.save import BlockingCheckpoint, CheckpointSaving


class ManagerCalls(Protocol):
    """The calls that both managers have."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None: ...
    async def confirm(self, result: BatchResult) -> int: ...
    async def renew(self, result: BatchResult, seconds: float) -> None: ...
    async def give_back(self, result: BatchResult) -> int: ...
    async def pause(self) -> float: ...
    async def continue_(self, version: int) -> None: ...
    async def set_version(self, version: int, *, abort_hopeless: bool = True) -> int: ...
    def stats(self) -> dict[str, Any]: ...
    def checkpoint(self, *args: Any, **options: Any) -> CheckpointSaving: ...
    async def restore(self, path: Any = None, **options: Any) -> int: ...
    async def shutdown(self) -> None: ...


class BlockingManager(BlockingFace):
    """The same calls as a manager's, which says what they do, for any number of threads."""

    def __init__(self, manager: ManagerCalls) -> None:
        super().__init__("recollect-production", ProductionError)
        self._manager = manager

    def _theirs(self) -> asyncio.AbstractEventLoop | None:
        return self._manager.loop

    def start(self, batch_size: BatchSize, *, version: int | None = None) -> None:
        async def start() -> None:
            self._manager.start(batch_size, version=version)  # type: ignore[attr-defined]

        self.run(start())

    def get_batch(
        self, batch_size: BatchSize, train_step: int, *, lease: float | bool = True
    ) -> BatchResult:
        manager: Any = self._manager
        result: BatchResult = self.run(manager.get_batch(batch_size, train_step, lease=lease))
        return result

    def produce_batch(
        self,
        batch_size: BatchSize,
        train_step: int,
        *,
        version: int | None = None,
        lease: float | bool = True,
    ) -> BatchResult:
        manager: Any = self._manager
        call = manager.produce_batch(batch_size, train_step, version=version, lease=lease)
        result: BatchResult = self.run(call)
        return result

    def evaluate(self, sizes: Mapping[str, int], *, lease: float | bool = True) -> BatchResult:
        manager: Any = self._manager
        result: BatchResult = self.run(manager.evaluate(sizes, lease=lease))
        return result

    def confirm(self, result: BatchResult) -> int:
        return self.run(self._manager.confirm(result))

    def renew(self, result: BatchResult, seconds: float) -> None:
        self.run(self._manager.renew(result, seconds))

    def give_back(self, result: BatchResult) -> int:
        return self.run(self._manager.give_back(result))

    def pause(self) -> float:
        return self.run(self._manager.pause())

    def continue_(self, version: int) -> None:
        self.run(self._manager.continue_(version))

    def set_version(self, version: int, *, abort_hopeless: bool = True) -> int:
        return self.run(self._manager.set_version(version, abort_hopeless=abort_hopeless))

    def stats(self) -> dict[str, Any]:
        async def stats() -> dict[str, Any]:
            return self._manager.stats()

        return self.run(stats())

    def checkpoint(self, *args: Any, **options: Any) -> BlockingCheckpoint:
        return BlockingCheckpoint(self._manager.checkpoint(*args, **options), self.run)

    def restore(self, path: Any = None, **options: Any) -> int:
        return self.run(self._manager.restore(path, **options))

    def shutdown(self) -> None:
        """The end, also of the thread where this has one."""
        self.run(self._manager.shutdown())
        self._end()
