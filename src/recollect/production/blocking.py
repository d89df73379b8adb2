"""`manager.sync`: the calls of a manager for threads. They block where the others await.

They run on the manager's event loop. Where nobody runs one, a thread of its own does, until
`shutdown`: so a trainer may be a plain program, and production goes on while it computes.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from recollect.base.blocking_face import BlockingFace
from recollect.errors import ProductionError
from recollect.production.generation import resolved
from recollect.production.results import BatchResult
from recollect.production.save import Checkpoint, CheckpointSaving
from recollect.production.task import BatchSize


class ManagerCalls(ABC):
    """The calls of a manager, which says what they do, blocking, wherever it runs."""

    @abstractmethod
    def _call(self, name: str, *given: Any, **named: Any) -> Any:
        """Make a call by its name, and wait for what it returns."""

    def start(self, batch_size: BatchSize, *, version: int | None = None) -> None:
        self._call("start", batch_size, version=version)

    def get_batch(
        self, batch_size: BatchSize, train_step: int, *, lease: float | bool = True
    ) -> BatchResult:
        result: BatchResult = self._call("get_batch", batch_size, train_step, lease=lease)
        return result

    def produce_batch(
        self,
        batch_size: BatchSize,
        train_step: int,
        *,
        version: int | None = None,
        lease: float | bool = True,
    ) -> BatchResult:
        options = {"version": version, "lease": lease}
        result: BatchResult = self._call("produce_batch", batch_size, train_step, **options)
        return result

    def evaluate(self, sizes: Mapping[str, int], *, lease: float | bool = True) -> BatchResult:
        result: BatchResult = self._call("evaluate", sizes, lease=lease)
        return result

    def confirm(self, result: BatchResult) -> int:
        count: int = self._call("confirm", result)
        return count

    def renew(self, result: BatchResult, seconds: float) -> None:
        self._call("renew", result, seconds)

    def give_back(self, result: BatchResult) -> int:
        count: int = self._call("give_back", result)
        return count

    def pause(self) -> float:
        seconds: float = self._call("pause")
        return seconds

    def continue_(self, version: int) -> None:
        self._call("continue_", version)

    def set_version(self, version: int, *, abort_hopeless: bool = True) -> int:
        aborted: int = self._call("set_version", version, abort_hopeless=abort_hopeless)
        return aborted

    def stats(self) -> dict[str, Any]:
        stats: dict[str, Any] = self._call("stats")
        return stats

    @abstractmethod
    def checkpoint(self, *given: Any, **named: Any) -> AbstractContextManager[Checkpoint]:
        """`with manager.sync.checkpoint(path, step) as c:`, as `Manager.checkpoint` says."""

    def restore(self, path: Any = None, **options: Any) -> int:
        version: int = self._call("restore", path, **options)
        return version

    def shutdown(self) -> None:
        self._call("shutdown")


class HasLoop(Protocol):
    """What the blocking calls need to know of a manager beside its calls."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None: ...
    def checkpoint(self, *given: Any, **named: Any) -> CheckpointSaving: ...


class BlockingManager(ManagerCalls, BlockingFace):
    """The same calls as a manager's, which says what they do, for any number of threads."""

    def __init__(self, manager: HasLoop) -> None:
        super().__init__("recollect-production", ProductionError)
        self._manager = manager

    def _theirs(self) -> asyncio.AbstractEventLoop | None:
        return self._manager.loop

    def _call(self, name: str, *given: Any, **named: Any) -> Any:
        call = getattr(self._manager, name)

        async def on_loop() -> Any:
            return await resolved(call(*given, **named))

        return self.run(on_loop())

    @contextmanager
    def checkpoint(self, *given: Any, **named: Any) -> Iterator[Checkpoint]:
        saving = self._manager.checkpoint(*given, **named)
        checkpoint = self.run(saving.__aenter__())
        try:
            yield checkpoint
        except BaseException as error:
            self.run(saving.__aexit__(type(error)))
            raise
        self.run(saving.__aexit__(None))

    def shutdown(self) -> None:
        """The end, also of the thread where this has one."""
        super().shutdown()
        self._end()
