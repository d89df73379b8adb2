"""W5 growth: sequences from a million steps and from twenty million. Recollect alone."""

from __future__ import annotations

from bench.workloads.base import Operation, Workload
from bench.workloads.w1 import TRANSITION
from bench.workloads.w5 import AFTER_INSERT, ALONE

SMALL, LARGE = 1_000_000, 20_000_000

WORKLOAD = Workload(
    name="W5 growth",
    title="cost of sequences does not grow with the buffer",
    kind="steps growth",
    columns=TRANSITION,
    rows=LARGE,
    only=("recollect",),
    unit="steps",
    operations=tuple(
        Operation(f"{verb} 32 of", size)
        for verb in (ALONE, AFTER_INSERT)
        for size in (SMALL, LARGE)
    ),
)
