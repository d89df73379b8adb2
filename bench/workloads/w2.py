"""W2: the transitions of W1, drawn uniformly and without priorities."""

from __future__ import annotations

from bench.workloads.base import Operation, Workload
from bench.workloads.w1 import TRANSITION

WORKLOAD = Workload(
    name="W2",
    title="transitions, uniform",
    kind="transitions",
    columns=TRANSITION,
    rows=1_000_000,
    operations=(
        Operation("insert", 1),
        Operation("insert", 64),
        Operation("insert", 1024, must=0.75, aim=1.2),
        Operation("sample", 256, must=1.8, aim=3),
        Operation("sample", 4096, must=1.3, aim=2.5),
    ),
)
