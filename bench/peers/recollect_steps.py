"""Recollect's `ReplayBuffer`, through its public names only."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

import recollect as rc
from bench.adapter import Adapter, Call
from bench.data import Rows
from bench.episodes import make_frames, stretches
from bench.steps import Environments, Sequences
from bench.workloads.base import Operation, Workload
from bench.workloads.w5 import LENGTH, STORED_NEXT, STRETCH
from bench.workloads.w5_environments import ENVIRONMENTS
from bench.workloads.w5_frames import STACK


class RecollectSequences(Sequences):
    """A ring of one environment; `next_obs` is read from the next row, as it is by default."""

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload)
        self.buffer = rc.ReplayBuffer(workload.rows, seed=0)
        self.whole: WholeTransitions | None = None

    def note(self) -> str:
        """What a sequence of it is."""
        return (
            "Recollect: a sequence is inside one episode, every start has the same chance; "
            "`next_obs` is read from the next row but in the line that says it is stored; masks "
            "and keys come with a batch"
        )

    def convert(self, steps: Rows) -> Any:
        """Columns; the observations after a step matter where an episode ends."""
        return _columns(steps)

    def insert(self, stretch: Any) -> object:
        """`extend` by a stretch of the one environment."""
        return self.buffer.extend(**stretch)

    def draw(self, n: int) -> object:
        """Every column, mask and key, each of them asked for."""
        batch = self.buffer.sample_sequences(n, LENGTH)
        return [batch[name] for name in batch], batch.info.keys

    def other(self, operation: Operation) -> Call:
        """The same from rows that hold `next_obs`."""
        if operation.verb != STORED_NEXT:
            return super().other(operation)
        if self.whole is None:
            self.whole = WholeTransitions(self.workload)
            self.whole.fill()
        whole, n = self.whole, operation.size
        return Call(lambda: whole.draw(n), n * LENGTH)

    def close(self) -> None:
        """Close the buffers."""
        self.buffer.close()
        if self.whole is not None:
            self.whole.close()


class WholeTransitions(RecollectSequences):
    """Rows of 165 bytes: `next_obs` is a column like others."""

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload)
        self.buffer.close()
        self.buffer = rc.ReplayBuffer(workload.rows, seed=0, next_from_row=())

    def convert(self, steps: Rows) -> Any:
        """All columns."""
        given = {name: cells for name, cells in steps.items() if name != "done"}
        return {**given, "terminated": steps["done"]}


class RecollectGrowth(Adapter):
    """Sequences from buffers of two sizes; a call counts as one."""

    rehearse = False

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload)
        self.buffers: dict[int, RecollectSequences] = {}

    def fill(self) -> None:
        """Nothing yet: a buffer is made when its size is first asked for."""

    def prepare(self, operation: Operation) -> Call:
        """One call over a buffer of `operation.size` steps."""
        steps = operation.size
        if steps not in self.buffers:
            self.buffers[steps] = RecollectSequences(self.workload.sized(steps))
            self.buffers[steps].fill()
        verb, size, _ = operation.verb.rsplit(maxsplit=2)
        call = self.buffers[steps].prepare(Operation(verb, int(size)))
        return Call(call.run, 1, before=call.before)

    def close(self) -> None:
        """Close the buffers."""
        for buffer in self.buffers.values():
            buffer.close()


class RecollectEnvironments(Environments):
    """A ring for each environment."""

    def __init__(self, workload: Workload) -> None:
        self.env_ids = np.arange(ENVIRONMENTS)
        super().__init__(workload)
        self.buffer = rc.ReplayBuffer(workload.rows, num_envs=ENVIRONMENTS, seed=0)

    def convert(self, steps: Rows) -> Any:
        """Columns, and which environments they are of."""
        return {**_columns(steps), "env_ids": self.env_ids}

    def insert(self, steps: Any) -> object:
        """`extend` by one step of every environment."""
        return self.buffer.extend(**steps)

    def close(self) -> None:
        """Close the buffer."""
        self.buffer.close()


class RecollectFrames(Adapter):
    """Frames are stored singly; a stack is put together when it is drawn."""

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload)
        self.buffer = rc.ReplayBuffer(workload.rows, frame_stack=STACK, seed=0)

    def fill(self) -> None:
        """Add single frames until it is full."""
        steps = dict(make_frames())
        final = steps.pop("final")
        for stretch in itertools.islice(
            itertools.cycle(stretches(steps, STRETCH)), -(-self.workload.rows // STRETCH)
        ):
            following = np.broadcast_to(final, stretch["obs"].shape)
            self.buffer.extend(**_columns({**stretch, "next_obs": following}))

    def prepare(self, operation: Operation) -> Call:
        """Transitions, every column of them asked for."""
        return Call(lambda: self._draw(operation.size), operation.size)

    def close(self) -> None:
        """Close the buffer."""
        self.buffer.close()

    def _draw(self, n: int) -> object:
        batch = self.buffer.sample(n)
        return [batch[name] for name in batch], batch.info.keys


def _columns(steps: Rows) -> dict[str, Any]:
    given: dict[str, Any] = {name: steps[name] for name in ("obs", "action", "reward")}
    given["terminated"] = steps["done"]
    if steps["done"].any():
        given["final_obs"] = steps["next_obs"]
    return given
