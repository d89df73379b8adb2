"""`manager.sync`: the calls of a manager for threads. They block where the others await.

They run on the manager's event loop. Where nobody runs one, a thread of its own does, until
`shutdown`: so a trainer may be a plain program, and production goes on while it computes.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from recollect.errors import ProductionError
from recollect.production.results import BatchResult

if TYPE_CHECKING:
    from recollect.production.manager import BatchSize, Manager

T = TypeVar("T")


class BlockingManager:
    """The same calls as a manager's, which says what they do, for any number of threads."""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        self._lock = threading.Lock()
        self._own: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the manager's event loop, and wait for it."""
        loop = self._loop()
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is loop:
            call.close()
            raise ProductionError(
                "sync: this would block the event loop that production runs on; await instead"
            )
        future = asyncio.run_coroutine_threadsafe(call, loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # a trainer that is interrupted leaves no call waiting
            raise

    def _loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            theirs = self._manager.loop
            if theirs is not None and not theirs.is_closed():
                return theirs
            if self._own is None:
                self._own = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._own.run_forever, name="recollect-production", daemon=True
                )
                self._thread.start()
            return self._own

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

    def checkpoint(self, *args: Any, **options: Any) -> Any:
        from recollect.production.saving import BlockingCheckpoint

        return BlockingCheckpoint(self._manager.checkpoint(*args, **options), self.run)

    def restore(self, path: Any = None, **options: Any) -> int:
        return self.run(self._manager.restore(path, **options))

    def shutdown(self) -> None:
        """The end, also of the thread where this has one."""
        self.run(self._manager.shutdown())
        with self._lock:
            if self._own is not None and self._thread is not None:
                self._own.call_soon_threadsafe(self._own.stop)
                self._thread.join()
                self._own.close()
                self._own = self._thread = None
