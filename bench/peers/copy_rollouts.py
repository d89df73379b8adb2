"""Not a peer but a floor: a copy of as many bytes as a batch of rollouts has, on one core."""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.adapter import Adapter, Call
from bench.workloads import w4
from bench.workloads.base import Operation, Workload


class CopyRollouts(Adapter):
    """The payload of all rollouts in one piece, of which batches are copied one after the other."""

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload)
        self.whole = np.empty(0, np.uint8)

    def fill(self) -> None:
        """Touch every page."""
        self.whole = np.ones(self.workload.rows * self.workload.payload, np.uint8)

    def prepare(self, operation: Operation) -> Call:
        """A copy of the bytes of n groups, from memory that is not in a cache."""
        rollouts = operation.size * w4.GROUP
        size = rollouts * self.workload.payload
        pieces = [self.whole[at : at + size] for at in range(0, len(self.whole) - size + 1, size)]
        output = np.empty(size, np.uint8)
        place = 0

        def copy() -> None:
            nonlocal place
            place = (place + 1) % len(pieces)
            np.copyto(output, pieces[place])

        def copy_fresh() -> np.ndarray[Any, Any]:
            nonlocal place
            place = (place + 1) % len(pieces)
            return pieces[place].copy()

        return Call(copy_fresh if operation.verb == w4.COPY_FRESH.verb else copy, rollouts)
