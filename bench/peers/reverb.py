"""Reverb: a server with tables in C++, in the process of its client, which is its fastest way."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import reverb
import tensorflow as tf
from reverb import structured_writer

from bench.adapter import POOL, Transitions
from bench.data import Rows, make_priorities, make_rows
from bench.episodes import make_steps
from bench.peers.reverb_rollouts import ReverbChurn, ReverbRollouts
from bench.steps import Sequences
from bench.workloads.base import Workload
from bench.workloads.w5 import LENGTH, STRETCH

DISTRIBUTIONS = ("dm-reverb", "tensorflow", "numpy")
TABLE = "rows"
IN_FLIGHT = 128
PERIOD = 32  # steps between the starts of sequences


class Reverb(Transitions):
    """A table behind a `StructuredWriter` and a batched `TrajectoryDataset`.

    The structured writer was ahead of the others at 64 rows; at 1024 it and the older `Writer`
    traded places between runs, and for one row `Writer` was a little faster. Reverb gives
    probabilities, not weights, so weights are computed from them as a learner would.
    """

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload)
        if workload.prioritized:
            sampler = reverb.selectors.Prioritized(workload.alpha)
        else:
            sampler = reverb.selectors.Uniform()
        table = reverb.Table(
            name=TABLE,
            sampler=sampler,
            remover=reverb.selectors.Fifo(),
            max_size=workload.rows,
            rate_limiter=reverb.rate_limiters.MinSize(1),
            signature={
                column.name: tf.TensorSpec([1, *column.shape], column.dtype)
                for column in workload.columns
            },
        )
        self.server = reverb.Server([table])
        self.address = f"localhost:{self.server.port}"
        self.client = reverb.Client(self.address)
        self.writer = self._writer()
        self.datasets: dict[int, Iterator[Any]] = {}
        self.priorities_differ = False

    def close(self) -> None:
        """Stop readers, then the writer, then the server."""
        self.datasets.clear()
        self.writer.flush()
        del self.writer
        self.server.stop()

    def note(self) -> str:
        """Where its server runs."""
        return "Reverb: server in the client's process; samples are prefetched by its dataset"

    def insert(self, rows: Rows, n: int) -> Callable[[], object]:
        """Append each row, which makes an item of it, and wait until all have arrived."""
        steps = [{name: cells[i] for name, cells in rows.items()} for i in range(n)]

        def run() -> None:
            append = self.writer.append
            for step in steps:
                append(step)
            self.writer.flush()

        return run

    def sample(self, n: int) -> Callable[[], object]:
        """The next batch of the dataset as NumPy arrays, with keys and weights."""
        return lambda: self._draw(n)

    def update(self, n: int, priorities: Iterator[np.ndarray[Any, Any]]) -> Callable[[], object]:
        """`mutate_priorities` with a dict that is ready, at keys drawn before."""
        updates = itertools.cycle(
            [
                dict(zip(self._draw(n)[1].tolist(), next(priorities).tolist(), strict=True))
                for _ in range(max(1, min(POOL, 2**14 // n)))
            ]
        )
        return lambda: self.client.mutate_priorities(TABLE, next(updates))

    def sample_and_update(
        self, n: int, priorities: Iterator[np.ndarray[Any, Any]]
    ) -> Callable[[], object]:
        """Draw, and set the priorities of what was drawn."""

        def run() -> None:
            keys = self._draw(n)[1]
            updates = dict(zip(keys.tolist(), next(priorities).tolist(), strict=True))
            self.client.mutate_priorities(TABLE, updates)

        return run

    def spread(self) -> None:
        """Once, at half as many draws as there are rows: later inserts replace few of them."""
        if self.priorities_differ:
            return
        self.priorities_differ = True
        n = 256
        for seed in range(max(1, self.workload.rows // (2 * n))):
            keys = self._draw(n)[1]
            updates = dict(zip(keys.tolist(), make_priorities(n, seed).tolist(), strict=True))
            self.client.mutate_priorities(TABLE, updates)

    def _draw(self, n: int) -> tuple[dict[str, Any], np.ndarray[Any, Any], Any]:
        batch = next(self._dataset(n))
        columns = {name: cells.numpy() for name, cells in batch.data.items()}
        keys = batch.info.key.numpy()
        if not self.workload.prioritized:
            return columns, keys, None
        chances = batch.info.probability.numpy() * batch.info.table_size.numpy()
        weights = chances**-self.workload.beta
        return columns, keys, weights / weights.max()

    def _dataset(self, n: int) -> Iterator[Any]:
        if n not in self.datasets:
            dataset = reverb.TrajectoryDataset.from_table_signature(
                self.address, TABLE, max_in_flight_samples_per_worker=IN_FLIGHT
            )
            self.datasets[n] = iter(dataset.batch(n))
        return self.datasets[n]

    def _writer(self) -> Any:
        step = {name: cells[0] for name, cells in make_rows(self.workload.columns, 1).items()}
        pattern = structured_writer.pattern_from_transform(
            structured_writer.create_reference_step(step),
            lambda steps: {name: cells[-1:] for name, cells in steps.items()},
        )
        config = structured_writer.create_config(pattern=pattern, table=TABLE, conditions=[])
        return self.client.structured_writer([config])


class ReverbSequences(Sequences):
    """An item of 64 steps every 32 steps of an episode, as agents with memory use Reverb.

    An item for every start would multiply the items by 32; it draws from those that were made.
    """

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload)
        table = reverb.Table(
            name=TABLE,
            sampler=reverb.selectors.Uniform(),
            remover=reverb.selectors.Fifo(),
            max_size=max(1, int(workload.rows * _items_per_step(workload))),
            rate_limiter=reverb.rate_limiters.MinSize(1),
            signature={
                column.name: tf.TensorSpec([LENGTH, *column.shape], column.dtype)
                for column in workload.columns
            },
        )
        self.server = reverb.Server([table])
        self.address = f"localhost:{self.server.port}"
        self.writer = reverb.Client(self.address).trajectory_writer(LENGTH)
        self.datasets: dict[int, Iterator[Any]] = {}
        self.in_episode = 0

    def close(self) -> None:
        """Stop readers, then the writer, then the server."""
        self.datasets.clear()
        self.writer.close()
        self.server.stop()

    def note(self) -> str:
        """Where its server runs and what its items are."""
        return (
            "Reverb: server in the client's process; samples are prefetched by its dataset; an "
            f"item every {PERIOD} steps, so that it draws from 1/{PERIOD} of the starts"
        )

    def convert(self, steps: Rows) -> Any:
        """A dict for each step."""
        return [{name: cells[i] for name, cells in steps.items()} for i in range(STRETCH)]

    def insert(self, stretch: Any) -> object:
        """Append each step, make items on the way, and wait until they have arrived."""
        writer = self.writer
        for step in stretch:
            writer.append(step)
            self.in_episode += 1
            if self.in_episode >= LENGTH and self.in_episode % PERIOD == 0:
                history = writer.history
                trajectory = {name: history[name][-LENGTH:] for name in step}
                writer.create_item(TABLE, 1.0, trajectory)
            if step["done"]:
                writer.end_episode()
                self.in_episode = 0
        writer.flush()
        return None

    def draw(self, n: int) -> object:
        """The next batch of the dataset as NumPy arrays, with keys."""
        if n not in self.datasets:
            dataset = reverb.TrajectoryDataset.from_table_signature(
                self.address, TABLE, max_in_flight_samples_per_worker=IN_FLIGHT
            )
            self.datasets[n] = iter(dataset.batch(n))
        batch = next(self.datasets[n])
        return {name: cells.numpy() for name, cells in batch.data.items()}, batch.info.key.numpy()


def _items_per_step(workload: Workload) -> float:
    done = make_steps(workload.columns)["done"]
    lengths = np.diff(np.flatnonzero(done), prepend=-1)
    return float(((lengths - LENGTH) // PERIOD + 1).sum() / len(done))


ADAPTERS = {
    "transitions": Reverb,
    "sequences": ReverbSequences,
    "rollouts": ReverbRollouts,
    "rollout churn": ReverbChurn,
}
