"""`Context`: what a strategy needs for one task, and how it asks for it.

`Conditions` is what all tasks of a manager share: whether to stop, the version of the weights, the
step that is produced. Strategies read them; the manager sets them.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol

from recollect.errors import InvalidValue, JournalError, OutOfPrompts, RecollectError, shown
from recollect.production.generators.base import Generator
from recollect.production.pending import Flight, Pending
from recollect.production.progress import Handed, Progress, TaskProgress
from recollect.production.prompts.base import Prompts, prompt_of
from recollect.production.room import ReservedRoom
from recollect.production.signal import Signal
from recollect.rollouts.buffer import RolloutBuffer
from recollect.rollouts.expiry import enter
from recollect.rollouts.group import Group
from recollect.rollouts.puts import put
from recollect.rollouts.rollout import Status
from recollect.rollouts.staleness import Staleness

Reward = Callable[[Group], Group | Awaitable[Group]]
Valid = Callable[[Group], bool | Awaitable[bool]]
Run = Callable[[Flight], Coroutine[Any, Any, None]]
CELLS = ("reward", "rewards", "logprobs", "loss_mask")  # those that are no arrays of a name
REMEMBERED = 1 << 16  # durations that are remembered for groups that wait in the buffer


@dataclass(eq=False)
class Conditions:
    """What the tasks of a manager share; whoever changes it notifies."""

    changed: Signal = field(default_factory=Signal)
    stopping: bool = True  # a manager begins, and comes back from a restore, paused
    version: int = 0
    step: int = 1  # the one that is produced
    error: BaseException | None = None

    def fail(self, error: BaseException) -> None:
        """A producer failed: nothing more is started, and the trainer is told. The first counts."""
        if self.error is None:
            self.error = error
        self.stopping = True
        self.changed.notify()


class Consumption:
    """What a buffer says of one task's groups: how many were trained, are leased, are stored.

    The buffer is asked, and nothing is counted beside it. So the numbers are right however a
    trainer takes its groups (through a manager, a `DataPreparation`, another thread), and also
    when a lease lapses or groups are given back, of which no manager would hear.
    """

    def __init__(self, buffer: RolloutBuffer) -> None:
        self._buffer = buffer
        self._retaken: Counter[str] = Counter()

    def look(self, task: str) -> Handed:
        """The counts of a task, all under one lock; what moves between them is in one of them."""
        core = self._buffer.core
        storage = core.storage
        with core.table.transaction():
            enter(core)
            left = core.accounts[task].left
            gone = left["trained"] + left["taken"] - self._retaken[task]
            where = core.where(task, None, None)
            leased = storage.count(where) - storage.available(where)[0]
            completed = storage.available(core.where(task, Status.COMPLETED, None))[0]
        return Handed(gone, leased, completed)

    def retake(self, n: int, task: str, status: Status) -> list[tuple[Group, Group]]:
        """Take up to n unfinished groups out, to generate them again; each twice: to change and to
        keep. That is no consumption, although the buffer counts it as taken.

        Immediate: the caller has them in flight before anybody else runs.
        """
        if n <= 0 or not self._buffer.count(task, status):
            return []
        groups = self._buffer.sync.take(n, task, status)
        self._retaken[task] += len(groups)
        with self._buffer.core.table.transaction():  # nor does it keep a task from starving
            self._buffer.core.accounts[task].recently_taken -= len(groups)
        return list(zip(groups, groups, strict=True))  # made anew by each iteration


class StrategyLike(Protocol):
    """What generations, pauses and verdicts ask of a strategy; `Strategy` says what each is."""

    @property
    def ages(self) -> bool: ...
    @property
    def keep_partial(self) -> bool: ...
    async def pause(self, ctx: Context) -> None: ...
    async def judge(self, ctx: Context, group: Group) -> bool: ...
    async def completed(
        self, ctx: Context, flight: Flight, group: Group, seconds: float
    ) -> None: ...
    async def failed(self, ctx: Context, flight: Flight, group: Group, seconds: float) -> None: ...
    async def aborted(self, ctx: Context, flight: Flight, group: Group) -> None: ...


class TaskLike(Protocol):
    """A `Task` as its context knows it."""

    name: str
    prompts: Prompts
    generator: Generator
    reward: Reward | None
    valid: Valid | None

    @property
    def strategy(self) -> StrategyLike: ...


class Context:
    """One task as its strategy sees it. On the manager's event loop only.

    Attributes:
        task, buffer, pending, room, conditions: What it works with.
        batch: How many groups of the task the step that is produced has.
        exhausted: Whether the prompts said that there are none left.
        durations: Seconds that stored groups took, by group id, until they are taken.
    """

    def __init__(
        self,
        task: TaskLike,
        buffer: RolloutBuffer,
        progress: Progress,
        consumption: Consumption,
        conditions: Conditions,
    ) -> None:
        self.task = task
        self.buffer = buffer
        self.conditions = conditions
        self.pending = Pending(lambda: conditions.stopping, conditions.changed)
        self.room = ReservedRoom(buffer, task.name, conditions.changed, conditions.fail)
        self.batch = 0
        self.exhausted = False
        self.durations: OrderedDict[str, float] = OrderedDict()  # the first is found at once
        self._progress = progress
        self._consumption = consumption

    # -- what holds now ---------------------------------------------------------------------------
    @property
    def name(self) -> str:
        """The task's name."""
        return self.task.name

    @property
    def prompts(self) -> Prompts:
        """Where its prompts come from."""
        return self.task.prompts

    @property
    def generator(self) -> Generator:
        """What generates them."""
        return self.task.generator

    @property
    def stopping(self) -> bool:
        """Whether nothing may be started now."""
        return self.conditions.stopping

    @property
    def version(self) -> int:
        """That of the weights that generate now."""
        return self.conditions.version

    @property
    def staleness(self) -> Staleness:
        """The task's rule, which the buffer owns."""
        return self.buffer.staleness(self.name)

    @property
    def ages(self) -> bool:
        """Whether what its strategy produces can be too old."""
        return self.task.strategy.ages

    @property
    def outdated(self) -> bool:
        """Whether what these weights generate is too old for the step that is produced."""
        return self.outdated_for(self.conditions.step)

    def outdated_for(self, step: int) -> bool:
        """The same for any step."""
        return self.ages and self.is_beyond(step)

    def is_beyond(self, step: int) -> bool:
        """Whether a step is further ahead than staleness allows, for what ages and what does not.

        A trainer that is ahead of it decides: what these weights generate would expire when it is
        put, and be generated again and again.
        """
        return max(step, self.buffer.train_step) > self.staleness.last_step(self.version)

    @property
    def progress(self) -> TaskProgress:
        """The task's counts, as of the last `observe`."""
        return self._progress[self.name]

    def observe(self) -> TaskProgress:
        """The task's counts as they are now."""
        return self._progress.observe(self.name, self._consumption.look(self.name))

    def stored(self, status: Status) -> int:
        """How many groups of a status the buffer has."""
        return self.buffer.count(self.name, status)

    def is_whole(self, group: Group) -> bool:
        """Whether every member has every cell that the buffer needs."""
        return all(
            getattr(rollout, cell) is not None if cell in CELLS else cell in rollout.arrays
            for cell in self.buffer.core.needs
            for rollout in group.rollouts
        )

    # -- starting generations ---------------------------------------------------------------------
    # No line of these awaits: a group leaves the prompts, or the buffer, and is in flight before
    # anybody else runs. Whoever saves finds it in one of the three.
    def start_new(self, n: int, run: Run, limit: int) -> int:
        """Start up to n new prompts, while there are prompts and room; returns how many."""
        reserved = self.room.reserve(n)
        started = 0
        if n > 0:
            self.exhausted = False  # some may have been given back: who knows, until there is room
        try:
            while started < reserved and not self.stopping:
                try:
                    group = self.prompts.next()
                except OutOfPrompts:
                    self.exhausted = True
                    break
                self._adopt(group)
                if not self._start(group, None, run, limit):
                    self.prompts.give_back(group)
                    break
                started += 1
        finally:
            self.room.give_back(reserved - started)
            if started < reserved:
                self.room.stop()  # room is not what is lacking: who waited would wake us at once
        return started

    def start_stored(self, n: int, status: Status, run: Run, limit: int) -> int:
        """Start up to n unfinished groups that the buffer has; returns how many."""
        started = 0

        def start(group: Group, original: Group) -> None:
            nonlocal started
            if not self.room.reserve(1):
                # Taking it made room, and another producer was quicker: no place for it now.
                self.prompts.give_back(original)
            elif self._start(group, original, run, limit):
                started += 1
            else:
                self._return(original)

        self._take_out(n, status, start)
        return started

    def send_home(self, status: Status) -> None:
        """Unfinished groups that the buffer has go back to their source, as prompts."""
        send = self.prompts.give_back
        self._take_out(self.stored(status), status, lambda _, group: send(prompt_of(group)))

    def send_home_old(self) -> None:
        """What an evaluation left behind, and other weights than those of now generated, too."""

        def send(group: Group, _: Group) -> None:
            if group.extras.get("version") == self.version and self.room.reserve(1):
                self._return(group)
            else:
                self.prompts.give_back(prompt_of(group))

        self._take_out(self.stored(Status.COMPLETED), Status.COMPLETED, send)

    def _take_out(self, n: int, status: Status, use: Callable[[Group, Group], None]) -> None:
        """Take up to n groups out of the buffer, each for a use; the rest go back if that fails."""
        left = deque(self._consumption.retake(n, self.name, status))
        try:
            while left:
                use(*left.popleft())
        finally:
            for _, original in left:
                self.put_at_once(original)

    def put_at_once(self, group: Group) -> None:
        """Store a group where there is room for it; raises where there is none."""
        core = self.buffer.core
        core.table.run(put(core, group, None).within(0))

    def _adopt(self, group: Group) -> None:
        if not isinstance(group, Group) or not len(group):
            raise InvalidValue(
                f"prompts of task {self.name!r}: expected a group of INIT rollouts, got "
                f"{shown(group)}"
            )
        group.task = self.name
        for rollout in group:
            rollout.task = self.name

    def _start(self, group: Group, original: Group | None, run: Run, limit: int) -> bool:
        now = asyncio.get_running_loop().time()
        return self.pending.schedule(Flight(group, original, self.version, now), run, limit)

    # -- ending them ------------------------------------------------------------------------------
    def give_back(self, flight: Flight) -> None:
        """What a flight was to generate waits to be generated again. Immediate.

        A new prompt goes back to its source. A group that came from the buffer with work in it
        goes back there as it was: what is still good is not generated twice.
        """
        self.progress.window.aborted += 1
        self._return(flight.prompt() if flight.original is None else flight.original)

    def _return(self, group: Group) -> None:
        if any(rollout.num_tokens for rollout in group):
            try:
                self.put_at_once(group)
                return
            except JournalError as error:  # it is stored, and nobody knows whether it would survive
                self.conditions.fail(error)
                return
            except RecollectError:  # closed, or larger than all bytes: the source takes the prompt
                pass
        self.room.give_back()
        self.prompts.give_back(prompt_of(group))

    def remember(self, group_id: str, seconds: float) -> None:
        """How long a stored group took; the oldest are forgotten where nobody takes them."""
        if len(self.durations) >= REMEMBERED:
            self.durations.popitem(last=False)
        self.durations[group_id] = seconds
