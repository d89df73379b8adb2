"""An inference engine, simulated: slots that each write tokens at a steady pace.

A request waits for a free slot, then takes its time, and ends by being finished, failed, aborted or
cancelled. Its tokens have the version of the weights that were loaded when they were written, as
of an engine that loads new weights while it runs. Nothing here knows of groups or buffers.

A *cell* stands for a number of tokens, all alike, so that long responses cost a simulation little.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

Pieces = list[tuple[int, int]]  # a version, and how many cells were written with it


@dataclass(eq=False)
class EngineRequest:
    """A response to write, or what is left of one.

    `cells` is how many it takes; `ends` is how it ends by itself: "stop", "length", "error", or
    "abort" for what the engine drops. `slowness` stretches its time.
    """

    cells: int
    ends: str
    slowness: float
    ended: Callable[[EngineRequest], None]
    started: float | None = None
    finished: float | None = None
    pieces: Pieces = field(default_factory=list)
    reason: str | None = None
    timer: asyncio.TimerHandle | None = None

    @property
    def written(self) -> int:
        return sum(cells for _, cells in self.pieces)


class Engine:
    """Slots that write a response each, a queue in front of them, and the weights in them."""

    def __init__(self, slots: int, cell_seconds: float, version: int = 0) -> None:
        self._loop = asyncio.get_running_loop()
        self._cell_seconds = cell_seconds
        self._free = slots
        self._waiting: deque[EngineRequest] = deque()
        self._running: dict[EngineRequest, None] = {}  # in the order of their start
        self._paused = False
        self._times = [self._loop.time()]  # when weights were loaded, and which
        self._versions = [version]
        self.cells = 0  # written in all
        self._busy = 0.0  # slot seconds, of requests that have ended

    @property
    def version(self) -> int:
        return self._versions[-1]

    def load(self, version: int) -> None:
        """Load weights; what runs goes on with them."""
        self._times.append(self._loop.time())
        self._versions.append(version)

    def submit(self, request: EngineRequest) -> None:
        """Queue a request; while the engine is paused it is aborted at once."""
        if self._paused:
            request.reason = "abort"
            request.finished = self._loop.time()
            self._loop.call_soon(request.ended, request)
            return
        self._waiting.append(request)
        self._start()

    def pause(self) -> None:
        """Abort what runs and what waits, and take nothing until `go_on`."""
        self._paused = True
        for request in [*self._running, *self._waiting]:
            self._end(request, "abort")
        self._waiting.clear()

    def go_on(self) -> None:
        self._paused = False

    def cancel(self, request: EngineRequest) -> None:
        """Drop a request; nobody is told."""
        if request.finished is None:
            request.ended = lambda _: None
            if request in self._running:
                self._end(request, "cancel")
                self._start()
            else:
                self._waiting.remove(request)
                request.finished = self._loop.time()

    def busy(self) -> float:
        """The slot seconds that were spent writing so far."""
        now = self._loop.time()
        running = sum(now - r.started for r in self._running if r.started is not None)
        return self._busy + running

    def _start(self) -> None:
        while self._free and self._waiting:
            request = self._waiting.popleft()
            self._free -= 1
            self._running[request] = None
            request.started = now = self._loop.time()
            takes = request.cells * self._cell_seconds * request.slowness
            request.timer = self._loop.call_at(now + takes, self._finish, request)

    def _finish(self, request: EngineRequest) -> None:
        self._end(request, request.ends)
        self._start()

    def _end(self, request: EngineRequest, reason: str) -> None:
        request.finished = self._loop.time()
        request.reason = reason
        if request.timer is not None:
            request.timer.cancel()
        if request in self._running:
            del self._running[request]
            self._free += 1
            assert request.started is not None
            self._busy += request.finished - request.started
            whole = reason == request.ends
            request.pieces = self._written(request, request.cells if whole else None)
            self.cells += request.written
        request.ended(request)

    def _written(self, request: EngineRequest, cells: int | None) -> Pieces:
        """What was written by now, by version; `cells` where it is known, and not the time."""
        started, finished = request.started, request.finished
        assert started is not None
        assert finished is not None
        pace = self._cell_seconds * request.slowness

        def by(moment: float) -> int:
            done = int((moment - started) / pace + 1e-9) if pace else request.cells
            return min(done, request.cells)

        first = bisect_right(self._times, started) - 1
        last = bisect_left(self._times, finished)
        ends = [by(time) for time in self._times[first + 1 : last]]
        ends.append(by(finished) if cells is None else cells)
        begins = [0, *ends[:-1]]
        versions = self._versions[first:last] if last > first else [self._versions[first]]
        return [
            (version, end - begin)
            for version, begin, end in zip(versions, begins, ends, strict=True)
            if end > begin
        ]
