"""`BatchResult`: what a trainer gets for a step, and what production knows about it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import reduce
from operator import add

from recollect.base.leases import LeaseLike
from recollect.data.batch import Batch
from recollect.production.context import Context
from recollect.production.window import Times, Window
from recollect.rollouts.groups import Groups, TakenBatch
from recollect.rollouts.rollout import Status

log = logging.getLogger("recollect.production")


class State(StrEnum):
    """What a manager is doing. The later ones are worse, and the worst of several tasks wins."""

    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    OUTDATED = "OUTDATED"  # the weights are too old for the step that comes next
    FINISHED = "FINISHED"  # shut down, or out of prompts


@dataclass(frozen=True)
class BatchResult:
    """The groups of a train step; false where there are none.

    Attributes:
        groups: By task, in the order in which tasks were declared.
        status: RUNNING; OUTDATED: new weights are needed (where there are no groups, sync weights
            and ask again); FINISHED: shut down, or the last groups of the last prompts.
        train_step: The step that they are for.
        asked: How many groups of each task.
        batch_of: All groups as the buffer gave them.
        left: What the buffer has after that, by task and status.
        windows: What each task produced since the last result.
        generated, waited: How long generations took: of what was generated in the window, and of
            what was taken.
        seconds: How long the window was.
        wait_seconds: How long the trainer waited.
        pause_seconds: How long draining took since the last result.
        in_flight: Generations that run now, by task.
        oldest_seconds: How long the oldest of them has run: one that hangs shows here.
    """

    status: State
    train_step: int
    asked: Mapping[str, int]
    groups: Mapping[str, Groups] = field(default_factory=dict)
    batch_of: TakenBatch | None = None
    left: Mapping[tuple[str, Status], int] = field(default_factory=dict)
    windows: Mapping[str, Window] = field(default_factory=dict)
    generated: Times = field(default_factory=Times)
    waited: Times = field(default_factory=Times)
    seconds: float = 0.0
    wait_seconds: float = 0.0
    pause_seconds: float = 0.0
    in_flight: Mapping[str, int] = field(default_factory=dict)
    oldest_seconds: float = 0.0

    def __bool__(self) -> bool:
        return any(self.taken.values())

    def __len__(self) -> int:
        return sum(self.taken.values())

    @property
    def lease(self) -> LeaseLike | None:
        """What the groups are under: `confirm` or `give_back` the result."""
        return None if self.batch_of is None else self.batch_of.lease

    @property
    def batch(self) -> Batch:
        """All groups as columns, task after task; raises `ValueError` where there are none."""
        if self.batch_of is None:
            raise ValueError(f"the batch of step {self.train_step} is empty: {self.status}")
        return self.batch_of.batch

    @property
    def taken(self) -> dict[str, int]:
        """How many groups of each task there are."""
        return {task: len(groups) for task, groups in self.groups.items()}

    @property
    def window(self) -> Window:
        """What all tasks produced, as one."""
        return reduce(add, self.windows.values()) if self.windows else Window()

    @property
    def failed(self) -> int:
        """Groups that could not be generated."""
        return self.window.failed

    @property
    def filtered(self) -> int:
        """Groups that were not worth training on."""
        return self.window.filtered

    @property
    def rollouts(self) -> int:
        """Rollouts that were produced in the window."""
        return self.window.rollouts

    @property
    def tokens(self) -> int:
        """Tokens that were produced in the window."""
        return self.window.tokens

    @property
    def raw_reward(self) -> float | None:
        """The mean reward before `valid` had its say, None where nothing was scored."""
        return self.window.reward_mean

    def line(self) -> str:
        """All of it on one line."""
        window = self.window
        taken = " ".join(f"{t}={self.taken.get(t, 0)}/{n}" for t, n in self.asked.items())
        left = " ".join(f"{task}:{status}={n}" for (task, status), n in self.left.items())
        reward = "none" if window.reward_mean is None else f"{window.reward_mean:.4g}"
        return (
            f"step {self.train_step} {self.status}: taken {taken}; left {left or 'nothing'}; "
            f"failed {window.failed} filtered {window.filtered}; raw reward {reward}; "
            f"{window.rollouts} rollouts {window.tokens} tokens in {self.seconds:.3g} s; "
            f"waited {self.wait_seconds:.3g} s, pause {self.pause_seconds:.3g} s; "
            f"{sum(self.in_flight.values())} in flight, the oldest {self.oldest_seconds:.3g} s; "
            f"generated {shown_times(self.generated)}; taken {shown_times(self.waited)}"
        )


def shown_times(times: Times) -> str:
    """Times as a log line has them."""
    if not times.count:
        return "0"
    return (
        f"{times.count} mean {times.mean:.3g} s p50 {times.p50:.3g} p99 {times.p99:.3g} "
        f"p99/p50 {times.p99_to_p50:.2g}"
    )


def durations_of(taken: TakenBatch, contexts: Mapping[str, Context]) -> list[float]:
    """How long the groups of a batch took, of those that this process generated."""
    groups = zip(taken.info.task.tolist(), taken.all.group_ids, strict=True)
    found = (contexts[task].durations.pop(group_id, None) for task, group_id in groups)
    return [seconds for seconds in found if seconds is not None]
