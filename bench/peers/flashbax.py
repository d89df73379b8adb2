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
from bench.workloads.base import Workload

DISTRIBUTIONS = ("flashbax", "jax", "jaxlib", "numpy")


class Flashbax(Transitions):
    """An item buffer, prioritised or not. Every call blocks until its results are there."""

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload)
        self.key = jax.random.key(0)
        buffer = self._buffer(256)
        one = {name: jnp.asarray(cells[0]) for name, cells in make_rows(workload, 1).items()}
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


ADAPTERS = {"transitions": Flashbax}
