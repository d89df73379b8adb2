"""flashbax: pure functions under `jax.jit` on the CPU, the state donated from call to call."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import flashbax as fbx
import jax
import jax.numpy as jnp
import numpy as np

from bench.adapter import Transitions
from bench.data import Rows, make_priorities, make_rows
from bench.steps import Environments, Sequences
from bench.workloads.base import Workload
from bench.workloads.w5 import LENGTH
from bench.workloads.w5_environments import ENVIRONMENTS

DISTRIBUTIONS = ("flashbax", "jax", "jaxlib", "numpy")


class Flashbax(Transitions):
    """An item buffer, prioritised or not. Every call blocks until its results are there."""

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload)
        self.key = jax.random.key(0)
        buffer = self._buffer(256)
        rows = make_rows(workload.columns, 1)
        one = {name: jnp.asarray(cells[0]) for name, cells in rows.items()}
        self.state = jax.jit(buffer.init)(one)
        self._add = jax.jit(buffer.add, donate_argnums=0)
        self._samplers: dict[int, Any] = {}
        if workload.prioritized:
            self._set_priorities = jax.jit(buffer.set_priorities, donate_argnums=0)

    def insert(self, rows: Rows, n: int) -> Callable[[], object]:
        """`add` of a batch that is already a JAX array."""
        batch = {name: jnp.asarray(cells) for name, cells in rows.items()}

        def run() -> None:
            self.state = self._add(self.state, batch)
            jax.block_until_ready(self.state)

        return run

    def sample(self, n: int) -> Callable[[], object]:
        """The columns and, with priorities, indices and weights, in one compiled function."""
        return partial(self._draw, self._sampler(n))

    def update(self, n: int, priorities: Iterator[np.ndarray[Any, Any]]) -> Callable[[], object]:
        """`set_priorities` at random indices."""
        indices = itertools.cycle([jnp.asarray(some, jnp.int32) for some in self.random_indices(n)])

        def run() -> None:
            self._set(next(indices), next(priorities))

        return run

    def sample_and_update(
        self, n: int, priorities: Iterator[np.ndarray[Any, Any]]
    ) -> Callable[[], object]:
        """Two compiled calls, because the errors come from a learner in between."""
        sampler = self._sampler(n)

        def run() -> None:
            batch, _ = self._draw(sampler)
            self._set(batch.indices, next(priorities))

        return run

    def spread(self) -> None:
        """One update over all rows."""
        rows = self.workload.rows
        self._set(jnp.arange(rows, dtype=jnp.int32), make_priorities(rows))

    def _set(self, indices: Any, priorities: np.ndarray[Any, Any]) -> None:
        self.state = self._set_priorities(self.state, indices, priorities)
        jax.block_until_ready(self.state)

    def _draw(self, sampler: Any) -> Any:
        self.key, batch, weights = sampler(self.key, self.state)
        return jax.block_until_ready((batch, weights))

    def _sampler(self, n: int) -> Any:
        """Draw, weigh and advance the random key, all inside one jit."""
        if n not in self._samplers:
            draw = self._buffer(n).sample
            rows, beta, prioritized = (
                self.workload.rows,
                self.workload.beta,
                self.workload.prioritized,
            )

            def sampler(key: Any, state: Any) -> Any:
                key, now = jax.random.split(key)
                batch = draw(state, now)
                if not prioritized:
                    return key, batch, None
                weights = (rows * batch.probabilities) ** -beta
                return key, batch, weights / weights.max()

            self._samplers[n] = jax.jit(sampler)
        return self._samplers[n]

    def _buffer(self, sample_size: int) -> Any:
        size = min(sample_size, self.workload.rows)
        if self.workload.prioritized:
            return fbx.make_prioritised_item_buffer(
                self.workload.rows,
                1,
                size,
                add_batches=True,
                priority_exponent=self.workload.alpha,
                device="cpu",
            )
        return fbx.make_item_buffer(self.workload.rows, 1, size, add_batches=True)


class FlashbaxSequences(Sequences):
    """A trajectory buffer of one row of a million steps. It knows nothing of episodes."""

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload)
        self.key = jax.random.key(0)
        self.state, self._add = _trajectories(workload, 1)
        self._samplers: dict[int, Any] = {}

    def note(self) -> str:
        """What a sequence of it is."""
        return "flashbax: its sequences run across the ends of episodes"

    def convert(self, steps: Rows) -> Any:
        """JAX arrays of shape [1, steps, ...]."""
        return {name: jnp.asarray(cells[None]) for name, cells in steps.items()}

    def insert(self, stretch: Any) -> object:
        """`add`, until the new state is there."""
        self.state = self._add(self.state, stretch)
        return jax.block_until_ready(self.state)

    def draw(self, n: int) -> object:
        """Draw and advance the random key, all inside one jit."""
        if n not in self._samplers:
            draw = _trajectory_buffer(self.workload, 1, n).sample

            def sampler(key: Any, state: Any) -> Any:
                key, now = jax.random.split(key)
                return key, draw(state, now)

            self._samplers[n] = jax.jit(sampler)
        self.key, batch = self._samplers[n](self.key, self.state)
        return jax.block_until_ready(batch)


class FlashbaxEnvironments(Environments):
    """A trajectory buffer with a row for each environment."""

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload)
        self.state, self._add = _trajectories(workload, ENVIRONMENTS)

    def convert(self, steps: Rows) -> Any:
        """JAX arrays of shape [environments, 1, ...]."""
        return {name: jnp.asarray(cells[:, None]) for name, cells in steps.items()}

    def insert(self, steps: Any) -> object:
        """`add`, until the new state is there."""
        self.state = self._add(self.state, steps)
        return jax.block_until_ready(self.state)


def _trajectories(workload: Workload, environments: int) -> tuple[Any, Any]:
    """An empty state, and `add` compiled so that it reuses the state it is given."""
    buffer = _trajectory_buffer(workload, environments, 32)
    rows = make_rows(workload.columns, 1)
    one = {name: jnp.asarray(cells[0]) for name, cells in rows.items()}
    return jax.jit(buffer.init)(one), jax.jit(buffer.add, donate_argnums=0)


def _trajectory_buffer(workload: Workload, environments: int, sequences: int) -> Any:
    return fbx.make_trajectory_buffer(
        add_batch_size=environments,
        sample_batch_size=sequences,
        sample_sequence_length=LENGTH,
        period=1,
        min_length_time_axis=LENGTH,
        max_length_time_axis=workload.rows // environments,
    )


ADAPTERS = {
    "transitions": Flashbax,
    "sequences": FlashbaxSequences,
    "environments": FlashbaxEnvironments,
}
