"""Calls of coroutines from threads, which block: the base of the faces called `sync`."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import Any, TypeVar

from recollect.errors import RecollectError

T = TypeVar("T")


class BlockingFace(ABC):
    """Runs coroutines on the event loop of what it is the face of, for any number of threads.

    Where nobody runs an event loop, it runs one in a thread of its own, until `_end`.
    """

    def __init__(self, name: str, error: type[RecollectError]) -> None:
        self._name, self._error = name, error
        self._lock = threading.Lock()
        self._own: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @abstractmethod
    def _theirs(self) -> asyncio.AbstractEventLoop | None:
        """The event loop that others run, where there is one."""

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the event loop, and wait for it."""
        loop = self._loop()
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is loop:
            call.close()
            raise self._error("sync: this would block the event loop it waits for; await instead")
        future = asyncio.run_coroutine_threadsafe(call, loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # a thread that is interrupted leaves no call waiting
            raise

    def _loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            theirs = self._theirs()
            if theirs is not None and not theirs.is_closed():
                return theirs
            if self._own is None:
                self._own = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._own.run_forever, name=self._name, daemon=True
                )
                self._thread.start()
            return self._own

    def _end(self) -> None:
        """Stop the event loop and the thread, where this face has its own."""
        with self._lock:
            if self._own is not None and self._thread is not None:
                self._own.call_soon_threadsafe(self._own.stop)
                self._thread.join()
                self._own.close()
                self._own = self._thread = None
