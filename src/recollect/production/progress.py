"""`Progress`: the counts of both sides, producing and consuming. Plain numbers; nothing waits here.

A step's groups are planned before they are produced, and whoever trains takes them from the
buffer. So what is missing is a difference of sums that only grow, target - (consumed + stored),
and taking a batch, which moves groups from stored to consumed, is never mistaken for a shortage.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from recollect.base.arguments import whole
from recollect.errors import InvalidValue
from recollect.production.window import Window

FORMAT = 1
SHOWN = ("target", "consumed", "leased", "completed")  # in messages and logs


class Handed(NamedTuple):
    """What a buffer says of one task's groups, all of it at the same moment.

    `confirmed` is how many were trained (or taken for good) since the buffer was made, `leased`
    how many are out now, `completed` how many are stored, complete and not leased.
    """

    confirmed: int
    leased: int
    completed: int


@dataclass(slots=True)
class TaskProgress:
    """The counts of one task, in groups."""

    target: int = 0  # the sum of the allocations of steps 1 to target_step; never decreases
    confirmed: int = 0
    leased: int = 0
    completed: int = 0  # as of the last `observe`
    window: Window = field(default_factory=Window)
    seen: int = 0  # what the buffer had confirmed when we last looked

    @property
    def consumed(self) -> int:
        """Groups that a trainer has, or has trained."""
        return self.confirmed + self.leased

    @property
    def available(self) -> int:
        """Groups that exist: consumed, or stored complete."""
        return self.consumed + self.completed

    @property
    def shortage(self) -> int:
        """How many groups are missing; 0 or less where none is."""
        return self.target - self.available


class Progress(Mapping[str, TaskProgress]):
    """How far production and training are, by task: `progress["math"].target`.

    >>> from recollect.production import Progress
    >>> progress = Progress(["math"])
    >>> progress.plan({"math": 4})
    1
    >>> progress["math"].shortage, progress.future_step
    (4, 1)

    Attributes:
        future_step: The step that is produced next; it advances when that was produced normally.
        consumer_step: The step that is trained next.
        target_step: The last step that is planned.
    """

    def __init__(self, tasks: Iterable[str]) -> None:
        self.future_step = 1
        self.consumer_step = 1
        self.target_step = 0
        self._tasks = {task: TaskProgress() for task in tasks}
        self._allocations: dict[int, dict[str, int]] = {}

    def __getitem__(self, task: str) -> TaskProgress:
        return self._tasks[task]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tasks)

    def __len__(self) -> int:
        return len(self._tasks)

    # -- producing ------------------------------------------------------------------------------
    def plan(self, sizes: Mapping[str, int]) -> int:
        """Plan the step after the last planned one; returns it."""
        for task in sizes:
            if task not in self._tasks:
                known = ", ".join(self._tasks)
                raise InvalidValue(f"sizes: there is no task {task!r}; there are {known}")
        self.target_step += 1
        allocation = {task: whole(task, sizes.get(task, 0), 0) for task in self._tasks}
        self._allocations[self.target_step] = allocation
        for task, size in allocation.items():
            self._tasks[task].target += size
        return self.target_step

    def plan_only(self, step: int, sizes: Mapping[str, int]) -> None:
        """Plan one step where steps are produced when they are asked for, one at a time."""
        self.target_step = max(self.target_step, step)
        for task, size in sizes.items():
            counts = self._tasks[task]
            counts.target = max(counts.target, counts.consumed + size)

    def allocation(self, step: int) -> dict[str, int] | None:
        """What was planned for a step, None where it is not planned or was consumed."""
        return self._allocations.get(step)

    def produced(self) -> None:
        """The last planned step was produced normally."""
        self.future_step = self.target_step + 1

    def begin_with(self, handed: Mapping[str, Handed]) -> None:
        """What a buffer has confirmed before is none of ours."""
        for task, each in handed.items():
            self._tasks[task].seen = each.confirmed
            self.observe(task, each)

    def observe(self, task: str, handed: Handed) -> TaskProgress:
        """Take over what the buffer says. It counts from its beginning, so differences count."""
        counts = self._tasks[task]
        counts.confirmed += handed.confirmed - counts.seen
        counts.seen = handed.confirmed
        counts.leased = handed.leased
        counts.completed = handed.completed
        return counts

    # -- consuming ------------------------------------------------------------------------------
    def covers(self, sizes: Mapping[str, int]) -> bool:
        """Whether so many groups beyond the consumed are planned."""
        return all(
            self._tasks[task].consumed + size <= self._tasks[task].target
            for task, size in sizes.items()
        )

    def ask(self, sizes: Mapping[str, int]) -> bool:
        """A trainer waits for these groups: that many must become available beyond the consumed.

        Where that is more than was planned (a larger batch than production was started with) the
        last planned step grows; returns whether one did.
        """
        raised = False
        for task, size in sizes.items():
            counts = self._tasks[task]
            if counts.consumed + size > counts.target:
                counts.target, raised = counts.consumed + size, True
        return raised

    def forgo(self, tasks: Iterable[str]) -> None:
        """An evaluation had fewer prompts than were asked for: nobody waits for the rest."""
        for task in tasks:
            counts = self._tasks[task]
            counts.target = min(counts.target, counts.available)

    def consume(self, step: int) -> None:
        """The trainer is at a step: plans of earlier ones are over, and none is made for them."""
        self.consumer_step = step
        self.target_step = max(self.target_step, step - 1)
        self.future_step = max(self.future_step, step)
        for planned in [each for each in self._allocations if each < step]:
            del self._allocations[planned]

    # -- windows --------------------------------------------------------------------------------
    def begin(self, now: float) -> None:
        """Windows begin, without being read."""
        for counts in self._tasks.values():
            counts.window = Window(began=now)

    def read(self, now: float, tasks: Iterable[str] | None = None) -> dict[str, Window]:
        """What tasks, or all of them, produced since the last time; new windows begin."""
        windows = {}
        for task in self._tasks if tasks is None else tasks:
            windows[task] = window = self._tasks[task].window
            window.seconds = now - window.began
            self._tasks[task].window = Window(began=now)
        return windows

    # -- saving ---------------------------------------------------------------------------------
    def state(
        self, *, include_buffer: bool = True, consumed_less: Mapping[str, int] | None = None
    ) -> dict[str, Any]:
        """The counts as JSON. The live ones are not changed.

        Leases do not survive a restart, so what is leased is not counted as consumed, and nor are
        the confirmed groups of `consumed_less`, those of a later step than the checkpoint's.

        Without the buffer nothing that is stored survives, either. The plan is cut back to what was
        consumed: future_step = consumer_step, target = consumed. So the shortage is 0 and nothing
        is produced until the trainer continues. That is on purpose: the prompts of what was stored
        are given back with the same commit, and exactly those are generated then.
        """
        tasks = {}
        for task, counts in self._tasks.items():
            consumed = counts.confirmed - (consumed_less or {}).get(task, 0)
            target = counts.target if include_buffer else consumed
            tasks[task] = {"target": target, "consumed": consumed}
        planned = self._allocations if include_buffer else {}
        return {
            "format": FORMAT,
            "future_step": self.future_step if include_buffer else self.consumer_step,
            "consumer_step": self.consumer_step,
            "target_step": self.target_step if include_buffer else max(0, self.consumer_step - 1),
            "tasks": tasks,
            "allocations": {str(step): sizes for step, sizes in planned.items()},
        }

    def restore(self, state: Mapping[str, Any], handed: Mapping[str, Handed]) -> None:
        """Go on from what `state` returned, with what the buffer says now of each task.

        Tasks that the state does not know begin at 0, those that are not here any more are left
        out; whoever restores decides whether that is allowed.
        """
        if state.get("format") != FORMAT:
            raise InvalidValue("restore: expected what Progress.state() returned")
        self.future_step = state["future_step"]
        self.consumer_step = state["consumer_step"]
        self.target_step = state["target_step"]
        self._allocations = {
            int(step): {task: sizes.get(task, 0) for task in self._tasks}
            for step, sizes in state["allocations"].items()
        }
        for task in self._tasks:
            saved = state["tasks"].get(task, {"target": 0, "consumed": 0})
            counts = TaskProgress(target=saved["target"], confirmed=saved["consumed"])
            counts.window.began = self._tasks[task].window.began
            counts.seen = handed[task].confirmed
            self._tasks[task] = counts
            self.observe(task, handed[task])

    def summary(self) -> dict[str, Any]:
        """All of it for messages and logs."""
        return {
            "future_step": self.future_step,
            "consumer_step": self.consumer_step,
            "target_step": self.target_step,
            **{
                task: {name: getattr(counts, name) for name in SHOWN}
                for task, counts in self._tasks.items()
            },
        }
