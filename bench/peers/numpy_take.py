"""Not a peer but a floor: `numpy.take` of the same rows on one core, with nothing around it."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from bench.adapter import Adapter, Call, Unsupported
from bench.data import make_rows
from bench.peers.copy_rollouts import CopyRollouts
from bench.workloads.base import Operation, Workload

DISTRIBUTIONS = ("numpy",)


class NumpyTake(Adapter):
    """Columns as plain arrays; positions are drawn ahead."""

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload)
        self.columns: dict[str, np.ndarray[Any, Any]] = {}

    def fill(self) -> None:
        """Repeat a few rows until the arrays are full."""
        some = make_rows(self.workload.columns, 256)
        for name, cells in some.items():
            full = np.empty((self.workload.rows, *cells.shape[1:]), cells.dtype)
            for start in range(0, self.workload.rows, 256):
                end = min(start + 256, self.workload.rows)
                full[start:end] = cells[: end - start]
            self.columns[name] = full

    def prepare(self, operation: Operation) -> Call:
        """Take n random rows of every column."""
        n = operation.size
        random = np.random.default_rng(1)
        positions = [random.integers(0, self.workload.rows, n) for _ in range(64)]
        outputs = {
            name: np.empty((n, *cells.shape[1:]), cells.dtype)
            for name, cells in self.columns.items()
        }
        turn = itertools.cycle(positions)

        def take() -> dict[str, np.ndarray[Any, Any]]:
            at = next(turn)
            return {name: np.take(cells, at, axis=0) for name, cells in self.columns.items()}

        def take_into() -> None:
            at = next(turn)
            for name, cells in self.columns.items():
                # With mode="raise" NumPy would copy the output once more.
                np.take(cells, at, axis=0, out=outputs[name], mode="clip")

        if operation.verb == "take":
            return Call(take, n)
        if operation.verb == "take into":
            return Call(take_into, n)
        raise Unsupported("not a buffer")


ADAPTERS = {"transitions": NumpyTake, "rollouts": CopyRollouts}
