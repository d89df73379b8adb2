"""W1: transitions with priorities, a million rows of 165 bytes."""

from __future__ import annotations

from bench.workloads.base import Column, Operation, Workload

TRANSITION = (
    Column("obs", "float32", (17,)),
    Column("next_obs", "float32", (17,)),
    Column("action", "float32", (6,)),
    Column("reward", "float32"),
    Column("done", "bool"),
)

WORKLOAD = Workload(
    name="W1",
    title="transitions with priorities (alpha 0.6, beta 0.4)",
    kind="transitions",
    columns=TRANSITION,
    rows=1_000_000,
    prioritized=True,
    most_bytes=64,
    operations=(
        Operation("insert", 1, must=2.5, aim=3),
        Operation("insert", 64, must=1.5, aim=2),
        Operation("insert", 1024, must=1.3, aim=2),
        Operation("sample", 256, must=2.2, aim=3),
        Operation("sample", 4096, must=1.2, aim=1.5),
        Operation("update", 256),
        Operation("update", 4096, must=2, aim=3),
        Operation("sample+update", 256, must=2.5, aim=4),
    ),
)
