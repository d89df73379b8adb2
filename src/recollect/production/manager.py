"""What both managers share: tasks, states, and the flow of pausing and continuing.

A manager contains only the flow. What is missing, Progress knows; what is in flight, Pending; how a
batch gets produced, the strategies; what is stored, the buffer.

Everything runs on one event loop, the one on which the manager is first awaited. Trainers in other
threads use `manager.sync`, which runs the same calls there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from functools import partial
from os import PathLike
from typing import Any

from recollect.base.arguments import time_span, whole
from recollect.base.leases import LeaseLike
from recollect.errors import InvalidValue, ProductionError, shown
from recollect.production import restore, save
from recollect.production.bars import Bars
from recollect.production.blocking import BlockingManager
from recollect.production.context import Conditions, Consumption, Context
from recollect.production.drain import ask_to_pause, cancel_rest, drain, each_generator
from recollect.production.judge import Judge
from recollect.production.pending import Flight
from recollect.production.progress import Handed, Progress
from recollect.production.results import BatchResult, State, durations_of, log
from recollect.production.save import CheckpointSaving
from recollect.production.signal import Signal
from recollect.production.strategies import Outcome
from recollect.production.taker import take_unless, unleased
from recollect.production.task import BatchSize, Task, allocate
from recollect.production.window import Times
from recollect.rollouts.buffer import RolloutBuffer
from recollect.rollouts.groups import TakenBatch
from recollect.rollouts.takes import checked_sizes

BARS_EVERY = 0.1  # seconds between two looks at the bars


class Manager:
    """The base of `ColocatedManager` and `DisaggregatedManager`.

    Args:
        tasks: What is produced; the order is that of batches.
        buffer: Where it goes.
        drain_timeout: Seconds that a pause waits for generations before it cancels them and gives
            their prompts back.
        checkpoints: A folder for checkpoints, so that they need no path of their own.
        bars: Whether to show a progress bar for each task; None shows them on a terminal.
    """

    def __init__(
        self,
        tasks: Iterable[Task] | Task,
        buffer: RolloutBuffer,
        *,
        drain_timeout: float = 300.0,
        checkpoints: str | PathLike[str] | None = None,
        bars: bool | None = None,
    ) -> None:
        self.tasks = _by_name(tasks)
        if not isinstance(buffer, RolloutBuffer):
            raise InvalidValue(f"buffer: expected an rc.RolloutBuffer, got {shown(buffer)}")
        self.buffer = buffer
        self.drain_timeout = time_span("drain_timeout", drain_timeout)
        self.checkpoints = checkpoints
        save.begin(buffer, checkpoints)
        self.progress = Progress(self.tasks)
        self._conditions = Conditions()
        self._consumption = Consumption(buffer)
        self.contexts = {
            name: Context(task, buffer, self.progress, self._consumption, self._conditions)
            for name, task in self.tasks.items()
        }
        for name in self.tasks:
            buffer.staleness(name)  # a task without a rule is told now
        self.progress.begin_with({name: self._consumption.look(name) for name in self.tasks})
        self._changed = self._conditions.changed
        self._state = State.PAUSED
        self._closed = self._restored = False
        self._begins_with: int | None = None  # the version that `start` continues with
        self._turn = asyncio.Lock()  # pausing and continuing take turns
        self._pause_seconds = 0.0
        self.loop: asyncio.AbstractEventLoop | None = None
        self.sync = BlockingManager(self)
        self.bars = Bars(self.tasks, shown=bars)
        self._judge = Judge(buffer, self.contexts)
        self._beside: list[asyncio.Task[None]] = []

    def __repr__(self) -> str:
        flying = sum(len(context.pending) for context in self.contexts.values())
        names = ", ".join(self.tasks)
        kind = type(self).__name__
        return f"{kind}({names}: {self.state.value}, version {self.version}, {flying} in flight)"

    # -- looking ----------------------------------------------------------------------------------
    @property
    def state(self) -> State:
        """What the manager is doing."""
        return self._state

    @property
    def version(self) -> int:
        """That of the weights that generate."""
        return self._conditions.version

    @property
    def error(self) -> BaseException | None:
        """What a producer failed with; `continue_` forgets it."""
        return self._conditions.error

    @property
    def in_flight(self) -> dict[str, list[Flight]]:
        """What is generated, or being stored, by task; tasks that have nothing are not in it."""
        return {
            name: list(context.pending.in_flight)
            for name, context in self.contexts.items()
            if len(context.pending)
        }

    def look(self) -> dict[str, Handed]:
        """What the buffer says of each task, which `progress` then knows too. Immediate."""
        found = {name: self._consumption.look(name) for name in self.tasks}
        for name, handed in found.items():
            self.progress.observe(name, handed)
        return found

    def stats(self) -> dict[str, Any]:
        """Everything that says how production is doing; a generation that hangs shows in ages."""
        self.look()
        now = 0.0 if self.loop is None else self.loop.time()
        return {
            "state": self.state,
            "version": self.version,
            "error": None if self.error is None else repr(self.error),
            "progress": self.progress.summary(),
            "stored": {f"{task}:{status}": n for (task, status), n in self.buffer.counts().items()},
            "in_flight": {
                name: {
                    "count": len(flights),
                    "oldest_seconds": now - min(flight.started_at for flight in flights),
                    "oldest_group": min(flights, key=lambda each: each.started_at).group_id,
                }
                for name, flights in self.in_flight.items()
            },
        }

    # -- pausing and continuing -------------------------------------------------------------------
    async def pause(self) -> float:
        """Stop, store what finishes, and give back the prompts of the rest; returns the seconds.

        Generators are asked to hurry. After `drain_timeout` what still runs is cancelled. When this
        returns nothing is in flight: every result is in the buffer, or its prompt is back.
        """
        self._bind()
        self._begins_with = None
        self._stop()  # at once, also where another call has the turn
        async with self._turn:
            self._stop()  # it may have continued
            seconds = await drain(self.contexts, self.drain_timeout)
            self._pause_seconds += seconds
            if not self._closed:
                self._state = State.PAUSED
            self._changed.notify()
            return seconds

    async def continue_(self, version: int) -> None:
        """Produce with the weights of a version; after a failure, try again."""
        version = whole("version", version, 0)
        self._bind()
        async with self._turn:
            if self._closed:
                raise ProductionError("continue_: production was shut down; make a new manager")
            await each_generator(self.contexts, lambda each: each.continue_(version))
            if not self._go(version):  # the end came meanwhile, and stays
                await each_generator(self.contexts, ask_to_pause)

    async def set_version(self, version: int, *, abort_hopeless: bool = True) -> int:
        """New weights while generations run: nothing is drained; returns how many were aborted.

        Generations that can't finish in time any more, because what they began with is too old for
        the step that is trained next, are aborted and their prompts given back.
        """
        version = whole("version", version, 0)
        self._bind()
        async with self._turn:
            await each_generator(self.contexts, lambda each: each.set_version(version))
            # What is dispatched while the generator changes counts as the old version: it may be
            # called older than it is, and never newer.
            self._conditions.version = version
            aborted = self._abort_hopeless() if abort_hopeless else 0
            self._changed.notify()
            return aborted

    def _abort_hopeless(self) -> int:
        step = self.buffer.train_step  # nothing that comes now is trained before it
        aborted = 0
        for context in self.contexts.values():
            if not context.ages:
                continue
            rule = context.staleness
            hopeless = [f for f in context.pending.in_flight if rule.is_expired(step, f.oldest)]
            for flight in context.pending.cancel(hopeless):
                context.give_back(flight)
                aborted += 1
        return aborted

    def _stop(self) -> None:
        """From here on nothing is started."""
        self._conditions.stopping = True
        for context in self.contexts.values():
            context.room.stop()
        self._changed.notify()

    def _go(self, version: int) -> bool:
        """Producers may go on; says whether they do."""
        if self._closed:
            return False
        self._conditions.version = version
        self._conditions.error = None
        self._conditions.stopping = False
        self._state = State.RUNNING
        self._changed.notify()
        return True

    # -- producing --------------------------------------------------------------------------------
    async def _produce(self, sizes: Mapping[str, int], step: int) -> list[Outcome]:
        """All tasks produce; returns when the slowest is done, and raises what one fails with."""
        self._conditions.step = step
        working = []
        for name, context in self.contexts.items():
            context.batch = sizes.get(name, 0)
            working.append(asyncio.ensure_future(self.tasks[name].strategy.produce(context)))
        try:
            outcomes = await asyncio.gather(*working)
        except BaseException as error:
            # A strategy or a source of prompts failed: the others must not go on by themselves.
            if isinstance(error, Exception):
                self._conditions.fail(error)
            for each in working:
                each.cancel()
            await asyncio.gather(*working, return_exceptions=True)
            raise
        return outcomes

    def sizes_of(self, batch_size: BatchSize) -> dict[str, int]:
        """How many groups of each task a batch has: shared by weight, or as it is told."""
        if isinstance(batch_size, Mapping):
            given = checked_sizes(batch_size)
            for name in given:
                if name not in self.tasks:
                    known = ", ".join(self.tasks)
                    raise InvalidValue(f"batch_size: there is no task {name!r}; there are {known}")
            return {name: given.get(name, 0) for name in self.tasks}
        weights = {name: task.weight for name, task in self.tasks.items()}
        return allocate(batch_size, weights)

    # -- results ----------------------------------------------------------------------------------
    async def confirm(self, result: BatchResult) -> int:
        """After the optimizer step: the groups of a result are trained; returns how many."""
        self._bind()
        if result.lease is None:
            return 0
        return await self.buffer.confirm(result.lease, result.train_step)

    async def renew(self, result: BatchResult, seconds: float) -> None:
        """Hold the groups of a result for so many seconds from now; for leases with a deadline."""
        self._bind()
        if result.lease is not None:
            await self.buffer.renew(result.lease, seconds)

    async def give_back(self, result: BatchResult) -> int:
        """The groups of a result were not trained: they come again first; returns how many."""
        self._bind()
        return 0 if result.lease is None else await self.give_lease_back(result.lease)

    async def give_lease_back(self, lease: LeaseLike) -> int:
        """The same for a lease, whose result may be in another process."""
        returned = await self.buffer.give_back(lease)
        self._changed.notify()
        return returned

    async def _rest(
        self, sizes: Mapping[str, int], step: int, lease: float | bool
    ) -> TakenBatch | None:
        """The last groups, fewer than were asked for; late rewards may make them fewer still."""
        while not self._closed:
            self.look()
            rest = {task: min(n, self.progress[task].completed) for task, n in sizes.items()}
            if not any(rest.values()):
                return None
            found = await take_unless(
                self.buffer, rest, step, lease, self._changed, partial(self._fewer_than, rest)
            )
            if isinstance(found, TakenBatch):
                return found
        return None

    def _begin_evaluation(self, tasks: Iterable[str]) -> None:
        """What one that was broken off left behind may be of other weights."""
        for name in tasks:
            if not self.contexts[name].ages:
                self.contexts[name].send_home_old()

    def _forgo(self, status: State, tasks: Iterable[str]) -> None:
        """After an evaluation: what its prompts did not suffice for must not hold up training."""
        if status is State.FINISHED:
            self.look()
            self.progress.forgo(tasks)
            self._changed.notify()

    def _fewer_than(self, rest: Mapping[str, int]) -> State | None:
        """Why waiting for what is left is in vain; raises what went wrong."""
        if self.error is not None:
            raise self.error
        self.look()
        fewer = any(self.progress[task].completed < n for task, n in rest.items())
        return State.FINISHED if self._closed or fewer else None

    def _result(
        self,
        status: State,
        step: int,
        asked: Mapping[str, int],
        taken: TakenBatch | None,
        lease: float | bool,
        began: float,
    ) -> BatchResult:
        """Make a result, read the windows, and log it."""
        if taken is not None and lease is False:
            unleased(self.buffer, taken, step)
        now = asyncio.get_running_loop().time()
        self._judge.collect()
        windows = self.progress.read(now, asked)
        times = [seconds for window in windows.values() for seconds in window.times]
        flying = self.in_flight
        result = BatchResult(
            status,
            step,
            dict(asked),
            {} if taken is None else taken.groups,
            taken,
            self.buffer.counts(),
            windows,
            Times.of(times),
            Times() if taken is None else Times.of(durations_of(taken, self.contexts)),
            max((window.seconds for window in windows.values()), default=0.0),
            now - began,
            self._pause_seconds,
            {name: len(flights) for name, flights in flying.items()},
            max((now - one.started_at for each in flying.values() for one in each), default=0.0),
        )
        self._pause_seconds = 0.0
        if log.isEnabledFor(logging.INFO):
            log.info("%s", result.line())
        return result

    # -- saving -----------------------------------------------------------------------------------
    def checkpoint(
        self,
        path: Any = None,
        step: int | None = None,
        include_buffer: bool = True,
        in_flight: str = "refuse",
        **options: Any,
    ) -> CheckpointSaving:
        """One commit of prompts, buffer, progress and the trainer's own files.

        `async with manager.checkpoint(path, step) as c:` gives `c.dir` for those files; it is
        committed when the block ends, and not at all when it raises. Without a path its folder is
        one by the step in the manager's `checkpoints`; without the buffer only the prompts of its
        groups are in it. `in_flight="refuse"` raises while generations run; `"give_back"` saves
        them as prompts to give back, and they run on. Other options are those of `Store.save`.
        """
        return CheckpointSaving(self, path, step, include_buffer, in_flight, **options)

    async def restore(self, path: Any = None, **options: Any) -> int:
        """Go back to a checkpoint; returns the version of its weights. The manager is paused then,
        and nothing is produced until `continue_`."""
        self._bind()
        async with self._turn:
            return await restore.restore(self, path, **options)

    def stop_for_restore(self) -> None:
        """Prompts and buffer are about to change: nobody produces from them meanwhile."""
        self._begins_with = None
        self._stop()
        self._state = State.PAUSED

    def restored(self, version: int) -> None:
        """Prompts, buffer and progress are those of a checkpoint now."""
        self._conditions.version = version
        self._conditions.error = None
        self._conditions.stopping = True
        self._state = State.PAUSED
        self._restored = True
        self.progress.begin(0.0 if self.loop is None else self.loop.time())
        for context in self.contexts.values():
            context.exhausted = False
            context.durations.clear()
        self._judge.look_again()
        self._changed.notify()

    async def shutdown(self) -> None:
        """The end: nothing more is produced, and who waits gets an empty batch.

        What runs is cancelled, and its prompts are given back.
        """
        self._bind()
        self._begins_with = None
        self._closed = True
        self._state = State.FINISHED
        self._stop()
        await each_generator(self.contexts, ask_to_pause)
        await cancel_rest(self.contexts)
        await self._end_beside()

    # -- what runs beside -------------------------------------------------------------------------
    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Judge what is annotated late, and show bars, where there is anything of it."""
        self._beside, self._turn = [], asyncio.Lock()  # those of an event loop that ended are over
        if self._judge.needed:
            self._judge.begin(partial(wake, loop, self._changed))
            self._beside.append(loop.create_task(self._judge.run()))
        if self.bars.shown:
            self._beside.append(loop.create_task(self._show_bars()))

    async def _show_bars(self) -> None:
        while True:
            seen = self._changed.count
            flying = {name: len(context.pending) for name, context in self.contexts.items()}
            self.bars.show(self._conditions.step, self.progress, flying)
            await asyncio.sleep(BARS_EVERY)  # what changes in between is seen together
            await self._changed.after(seen)

    async def _end_beside(self) -> None:
        for task in self._beside:
            task.cancel()
        await asyncio.gather(*self._beside, return_exceptions=True)
        self._beside = []
        self._judge.end()
        self.bars.close()

    # -- threads ----------------------------------------------------------------------------------
    def _bind(self) -> asyncio.AbstractEventLoop:
        """All of production lives on the loop that comes first."""
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            raise ProductionError(
                "a manager runs on an event loop, and there is none here; use manager.sync"
            ) from None
        if self.loop is None or self.loop.is_closed():
            self.loop = running
            self.progress.begin(running.time())
            self._begin(running)
        elif self.loop is not running:
            raise ProductionError(
                "a manager lives on one event loop; from other threads, use manager.sync"
            )
        return running


def wake(loop: asyncio.AbstractEventLoop, changed: Signal) -> None:
    """Let those who wait on a loop look again, from any thread; nobody waits on one that ended."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(changed.notify)


def _by_name(tasks: Any) -> dict[str, Task]:
    if not isinstance(tasks, Iterable | Task):
        hint = "; they come first, then the buffer" if isinstance(tasks, RolloutBuffer) else ""
        raise InvalidValue(f"tasks: expected Task objects, got {shown(tasks)}{hint}")
    found: dict[str, Task] = {}
    for task in [tasks] if isinstance(tasks, Task) else tasks:
        if not isinstance(task, Task):
            raise InvalidValue(f"tasks: expected Task objects, got {shown(task)}")
        if task.name in found:
            raise InvalidValue(f"tasks: there are two of the name {task.name!r}; rename one")
        found[task.name] = task
    if not found:
        raise InvalidValue("tasks: expected at least one")
    return found
