"""`preparation.sync`: the calls of a preparation for threads. They block where the others await."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from recollect.errors import InvalidValue
from recollect.rollouts.group import Group
from recollect.training.steps import RankBatch

if TYPE_CHECKING:
    from recollect.training.preparation import DataPreparation

T = TypeVar("T")


class BlockingPreparation:
    """The same calls as `DataPreparation`, which says what they do, for any number of threads.

    Where nobody awaits the others, it runs an event loop in a thread of its own until `close`.
    """

    def __init__(self, preparation: DataPreparation) -> None:
        self._preparation = preparation
        self._lock = threading.Lock()
        self._own: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        loop = self._loop_of_all()
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is loop:
            call.close()
            raise InvalidValue("sync: this would block the event loop it waits for; await instead")
        future = asyncio.run_coroutine_threadsafe(call, loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _loop_of_all(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            theirs = self._preparation._loop
            if theirs is not None and not theirs.is_closed():
                return theirs
            if self._own is None:
                self._own = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._own.run_forever, name="recollect-training", daemon=True
                )
                self._thread.start()
            return self._own

    def put(self, group: Group, *, version: int | None = None) -> int | None:
        return self._run(self._preparation.put(group, version=version))

    def get(self, rank: int, step: int) -> RankBatch:
        return self._run(self._preparation.get(rank, step))

    def confirm(self, rank: int, step: int) -> bool:
        return self._run(self._preparation.confirm(rank, step))

    def report(self, rank: int, step: int, rollout_ids: Sequence[str], priority: Any) -> int:
        return self._run(self._preparation.report(rank, step, rollout_ids, priority))

    def state(self) -> dict[str, Any]:
        return self._run(self._preparation.state())

    def restore(self, saved: Mapping[str, Any]) -> int:
        return self._run(self._preparation.restore(saved))

    def close(self) -> None:
        self._run(self._preparation.close())
        with self._lock:
            if self._own is not None and self._thread is not None:
                self._own.call_soon_threadsafe(self._own.stop)
                self._thread.join()
                self._own.close()
                self._own = self._thread = None
