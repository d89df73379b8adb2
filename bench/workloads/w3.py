"""W3: pixels, uniform. What counts is how close a sample comes to copying the same bytes."""

from __future__ import annotations

from bench.workloads.base import Column, Floor, Operation, Workload

SAMPLE = Operation("sample", 256, must=0.95, aim=1.1)

WORKLOAD = Workload(
    name="W3",
    title="pixels, uniform: obs and next_obs of 84 x 84 x 4 bytes each",
    kind="transitions",
    columns=(
        Column("obs", "uint8", (84, 84, 4)),
        Column("next_obs", "uint8", (84, 84, 4)),
        Column("action", "int32"),
        Column("reward", "float32"),
        Column("done", "bool"),
    ),
    rows=50_000,
    together=False,
    operations=(Operation("insert", 32), SAMPLE),
    floors=(
        Floor(Operation("take into", 256), "numpy.take, output reused", SAMPLE.name, must=0.85),
        Floor(Operation("take", 256), "numpy.take, fresh output", SAMPLE.name),
    ),
)
