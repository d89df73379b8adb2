"""Virtual time: an event loop on which it jumps to the next timer, its clock, and how to run on it.

Everything that sleeps by the loop (`asyncio.sleep`, `asyncio.timeout`, `call_later`) takes no time
at all, and the order of events is the same on every machine. Only time is virtual: sockets,
threads and subprocesses are those of any loop.
"""

from __future__ import annotations

import asyncio
import random
import selectors
import threading
import weakref
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from contextvars import Context
from operator import itemgetter
from typing import Any, TypeVar

from recollect.errors import InvalidValue, RecollectError, shown

Result = TypeVar("Result")

LONGEST = 4e6  # seconds; beyond it a float is coarser than the resolution of asyncio's timers
PATIENCE = 20.0  # real seconds that the loop waits for threads and sockets when nothing else runs
WEEK = 7 * 86400.0


class Standstill(RecollectError):
    """Nothing on a virtual loop can ever go on, or its time is over; says where each task waits."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is a number that jumps.

    >>> import asyncio
    >>> from recollect.simulation import VirtualLoop
    >>> async def main():
    ...     await asyncio.sleep(3600)
    ...     return asyncio.get_running_loop().time()
    >>> with asyncio.Runner(loop_factory=VirtualLoop) as runner:
    ...     runner.run(main())
    3600.0

    Args:
        start: The time at which it begins.
        limit: The time at which it raises `Standstill`, so that a program that waits for something
            again and again comes to an end.
    """

    _closed = True  # until asyncio has made it: one that is refused has nothing to close

    def __init__(self, *, start: float = 0.0, limit: float = LONGEST) -> None:
        if not 0 <= start <= limit <= LONGEST:
            raise InvalidValue(
                f"start, limit: expected 0 <= start <= limit <= {LONGEST:g} seconds, got "
                f"{shown(start)} and {shown(limit)}"
            )
        self._jumps = JumpingSelector(self, float(start), limit)
        super().__init__(self._jumps)

    def time(self) -> float:
        """Virtual seconds."""
        return self._jumps.now

    def run_in_executor(  # type: ignore[override]  # typeshed wants TypeVarTuple, which is as vague
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run a call in a thread and wait for it at once: it takes no virtual time.

        So files are written, and orders of events stay the same. A call that waits for this loop
        could never end: it belongs into `in_thread`.
        """
        job = begun(func, *args)
        if not wait([job], PATIENCE).done:
            raise Standstill(
                f"{shown(func)} did not end within {PATIENCE:g} s in a thread, while time stood "
                "still for it; run a call that waits for the loop with simulation.in_thread"
            )
        return asyncio.wrap_future(job, loop=self)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Time stands still meanwhile: for waiting on other threads and processes."""
        self._jumps.holds += 1
        try:
            yield
        finally:
            self._jumps.holds -= 1


class JumpingSelector(selectors.DefaultSelector):
    """Tells the loop that it has slept as long as it wanted to, and lets that time pass."""

    def __init__(self, loop: VirtualLoop, start: float, limit: float) -> None:
        super().__init__()
        self.now = start
        self.holds = 0
        self._loop = loop
        self._limit = limit
        self._before = set(threading.enumerate())  # threads that know nothing of this loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        if found or (timeout is not None and timeout <= 0):
            return found
        if self.holds or timeout is None:
            return self._wait_for_others()
        if self.now + timeout > self._limit:
            raise self._standstill(f"its time is over at {self._limit:g} s")
        self.now += timeout
        return []

    def _wait_for_others(self) -> list[tuple[selectors.SelectorKey, int]]:
        """No timer to jump to: only a thread or a socket can go on from here."""
        sockets = len(self.get_map()) > 1  # one is the loop's own, for waking it from threads
        others = self.holds or sockets or set(threading.enumerate()) - self._before
        found = super().select(PATIENCE if others else 0)  # one may have ended just now
        if found:
            return found
        raise self._standstill("nothing is ready and there is no timer to wait for")

    def _standstill(self, why: str) -> Standstill:
        tasks = sorted(asyncio.all_tasks(self._loop), key=lambda task: task.get_name())
        waits = "".join(f"\n  {task.get_name()}: {place(task)}" for task in tasks)
        return Standstill(
            f"the virtual loop stands still at {self.now:g} s: {why}; its tasks wait at:{waits}"
        )


def begun(call: Callable[..., Result], *arguments: Any) -> Future[Result]:
    """Begin a call in a thread of its own; its future knows what becomes of it."""
    job: Future[Result] = Future()

    def do() -> None:
        try:
            job.set_result(call(*arguments))
        except BaseException as error:
            job.set_exception(error)

    threading.Thread(target=do, daemon=True).start()
    return job


def place(task: asyncio.Task[Any]) -> str:
    """Where a task waits: its coroutines from the outermost to the innermost."""
    places = []
    awaited: Any = task.get_coro()
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is None:
            break
        file = frame.f_code.co_filename.rpartition("/")[2]
        places.append(f"{frame.f_code.co_name} ({file}:{frame.f_lineno})")
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
    return " > ".join(places) or "done"


class ShufflingLoop(VirtualLoop):
    """A `VirtualLoop` that chooses at random which ready task goes on, for tests of races.

    asyncio runs what is ready in the order in which it became ready, so a program is tried in one
    order out of very many. Here, whenever several tasks could go on, a seeded choice says which
    one does, one step at a time; a task that is ready may be passed over by any number of others.
    Plain callbacks (of transports, of futures, of timers) keep what asyncio promises them: they run
    in their order, and before every task that became ready after them. Sockets rely on that.

    >>> import asyncio
    >>> from recollect.simulation import ShufflingLoop
    >>> async def main():
    ...     order = []
    ...     async def step(name):
    ...         order.append(name)
    ...     await asyncio.gather(*(step(name) for name in "abcd"))
    ...     return "".join(order)
    >>> def order(seed):
    ...     with asyncio.Runner(loop_factory=lambda: ShufflingLoop(seed)) as runner:
    ...         return runner.run(main())
    >>> order(1) == order(1), len({order(seed) for seed in range(200)})
    (True, 24)
    """

    _ready: deque[asyncio.Handle]  # of asyncio: what runs next

    def __init__(self, seed: int, *, start: float = 0.0, limit: float = LONGEST) -> None:
        self._random = random.Random(seed)
        self._count = 0  # what became ready so far: its numbers say what came before what
        self._steps: list[tuple[int, asyncio.Handle]] = []  # tasks that could go on
        self._of_tasks: set[asyncio.Handle] = set()  # those of them that are in asyncio's queue
        self._plain: deque[tuple[int, asyncio.Handle]] = deque()  # callbacks
        super().__init__(start=start, limit=limit)

    def call_soon(  # type: ignore[override]  # typeshed wants TypeVarTuple, which is as vague
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """Note what lets a task go on: a task calls this for each of its steps."""
        handle = super().call_soon(callback, *args, context=context)
        if isinstance(getattr(callback, "__self__", None), asyncio.Task):
            self._of_tasks.add(handle)
        return handle

    def _run_once(self) -> None:
        """What asyncio does once per turn, with one callback instead of all that are ready."""
        while self._ready:  # other threads may append meanwhile
            handle = self._ready.popleft()
            self._count += 1
            is_step = handle in self._of_tasks
            self._of_tasks.discard(handle)
            (self._steps if is_step else self._plain).append((self._count, handle))
        steps = len(self._steps)
        if self._plain:
            steps = bisect_left(self._steps, self._plain[0][0], key=itemgetter(0))
        if steps or self._plain:
            at = self._random.randrange(steps + bool(self._plain))
            _, chosen = self._steps.pop(at) if at < steps else self._plain.popleft()
            self._ready.append(chosen)
        super()._run_once()  # type: ignore[misc]  # asyncio's own, which typeshed does not show

    def close(self) -> None:
        self._of_tasks.clear()
        self._steps.clear()
        self._plain.clear()
        super().close()


class VirtualClock:
    """A `Clock` that shows the time of a virtual loop, the running one where none is given.

    >>> import asyncio
    >>> import recollect as rc
    >>> from recollect.simulation import VirtualClock, run
    >>> async def main():
    ...     buffer = rc.RolloutBuffer(clock=VirtualClock())
    ...     await buffer.put(rc.Group([rc.Rollout([1], [2], finish_reason="stop")]))
    ...     await buffer.take(1, lease=60)
    ...     await asyncio.sleep(61)
    ...     return buffer.count()
    >>> run(main())
    1

    Threads may wait on the same table: their deadlines become timers of the loop.
    """

    def __init__(self, loop: VirtualLoop | None = None) -> None:
        found = asyncio.get_running_loop() if loop is None else loop
        if not isinstance(found, VirtualLoop):
            raise InvalidValue(
                f"loop: expected a VirtualLoop, such as recollect.simulation.run uses, got "
                f"{shown(found)}"
            )
        self._loop = found
        self._thread = threading.get_ident()  # of the loop: a clock is made where it runs
        self._wake: list[weakref.WeakMethod[Callable[[], None]]] = []

    def time(self) -> float:
        return self._loop.time()

    def monotonic(self) -> float:
        return self._loop.time()

    def sleep_until(self, deadline: float) -> float | None:
        """The span for a coroutine, whose timer is virtual, too; a thread sleeps until woken."""
        sleep = max(0.0, deadline - self._loop.time())
        if sleep and threading.get_ident() != self._thread:
            self._loop.call_soon_threadsafe(self._loop.call_at, deadline, self._turn)
            return None
        return sleep

    def on_turn(self, wake: Callable[[], None]) -> None:
        self._wake.append(weakref.WeakMethod(wake))

    def _turn(self) -> None:
        for reference in self._wake:
            wake = reference()
            if wake is not None:
                wake()


def run(
    main: Coroutine[Any, Any, Result],
    *,
    seed: int | None = None,
    start: float = 0.0,
    limit: float = WEEK,
) -> Result:
    """Run a coroutine on a virtual loop, as `asyncio.run` does on a real one.

    >>> import asyncio
    >>> from recollect.simulation import run
    >>> run(asyncio.sleep(86400, "a day later"))
    'a day later'

    Args:
        main: What to run; tasks that it leaves behind are cancelled.
        seed: Where given, tasks take their turns in a random order (`ShufflingLoop`).
        start: The time at which it begins.
        limit: The time at which it raises `Standstill`.
    """

    def new_loop() -> VirtualLoop:
        if seed is None:
            return VirtualLoop(start=start, limit=limit)
        return ShufflingLoop(seed, start=start, limit=limit)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(main)


async def in_thread(call: Callable[..., Result], *arguments: Any) -> Result:
    """Run a call in a thread of its own, while virtual time goes on: for one that waits for it.

    `asyncio.to_thread` is for calls that only work: time stands still for them.

    >>> import asyncio
    >>> from recollect.simulation import VirtualClock, in_thread, run
    >>> import recollect as rc
    >>> async def main():
    ...     buffer = rc.RolloutBuffer(clock=VirtualClock())
    ...     waits = asyncio.create_task(in_thread(buffer.sync.take_batch, {"math": 1}))
    ...     await asyncio.sleep(3600)
    ...     await buffer.put(rc.Group([rc.Rollout([1], [2], finish_reason="stop")], task="math"))
    ...     return len(await waits)
    >>> run(main())
    1
    """
    return await asyncio.wrap_future(begun(call, *arguments))
