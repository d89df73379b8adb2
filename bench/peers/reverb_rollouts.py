"""Reverb with rollouts: a group is one step of the older `Writer`.

`TrajectoryWriter` refuses columns whose shape varies, and so does an item of several steps. The
columns of a group's rollouts are joined inside the clock: a step for each rollout took three
times as long.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import reverb

from bench.rollouts import TOKEN_COLUMNS, Columns, Group, Rollouts
from bench.workloads import w4
from bench.workloads.base import Workload

QUEUE, REUSED = "queue", "reused"
NAMES = (*TOKEN_COLUMNS, "lengths", "reward", "version")


class ReverbRollouts(Rollouts):
    """A table that is a queue and one for reuse, in the process of its client.

    `Client.sample` was as fast as `TimestepDataset` with `ragged_batch`, which prefetches: here
    it would read the next batch while groups are put back, outside the clock.
    """

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload)
        self.server = reverb.Server(
            [
                self._table(QUEUE, reverb.selectors.Fifo(), times=1),
                self._table(REUSED, reverb.selectors.Uniform(), times=0),
            ]
        )
        self.client = reverb.Client(f"localhost:{self.server.port}")
        self.writer = self.client.writer(1, chunk_length=1)
        self.reused = 0

    def note(self) -> str:
        """How it is used."""
        return (
            "Reverb: server in the client's process, the older writer, an item is a group whose "
            "columns are joined when it is put; `Client.sample` returns arrays for each group, "
            "one concatenate per column joins them; its samples may hold a group twice; it "
            "compresses what it stores"
        )

    def convert(self, group: Group, number: int) -> Any:
        """The group as it is; `put` joins its columns."""
        return group, number

    def put(self, group: Any) -> object:
        """A step and an item of it, and wait until it has arrived."""
        return self._write(QUEUE, *group)

    def take(self, n: int) -> Columns:
        """The queue gives each item once."""
        return self._read(QUEUE, n)

    def sample(self, n: int) -> Columns:
        """From the table for reuse, which is filled when it is first asked for."""
        while self.reused < self.capacity:
            self._write(REUSED, *self.make())
            self.reused += 1
        return self._read(REUSED, n)

    def close(self) -> None:
        """Stop the writer, then the server."""
        self.writer.close()
        self.server.stop()

    def _table(self, name: str, sampler: Any, times: int) -> Any:
        return reverb.Table(
            name=name,
            sampler=sampler,
            remover=reverb.selectors.Fifo(),
            max_size=self.capacity,
            rate_limiter=reverb.rate_limiters.MinSize(1),
            max_times_sampled=times,
        )

    def _write(self, table: str, group: Group, version: int) -> None:
        step = [np.concatenate([getattr(one, name) for one in group]) for name in TOKEN_COLUMNS]
        step.append(np.array([len(one.response_ids) for one in group], np.int32))
        step.append(np.array([one.reward for one in group], np.float32))
        step.append(np.full(w4.GROUP, version, np.int32))
        self.writer.append(step)
        self.writer.create_item(table, 1, 1.0)
        self.writer.flush()

    def _read(self, table: str, n: int) -> Columns:
        items = [item.data for item in self.client.sample(table, n, emit_timesteps=False)]
        return {
            name: np.concatenate([columns[place][0] for columns in items])
            for place, name in enumerate(NAMES)
        }


class ReverbChurn(ReverbRollouts):
    """The queue alone, after ten times its capacity went through it."""

    def fill(self) -> None:
        """What overflows is the oldest."""
        self.churn()
