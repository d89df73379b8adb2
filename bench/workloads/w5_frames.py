"""W5 frames: transitions whose observations are stacks of four frames. What counts is memory."""

from __future__ import annotations

from bench.workloads.base import Column, Operation, Workload

STACK = 4
FRAME = (84, 84)

WORKLOAD = Workload(
    name="W5 frames",
    title=f"transitions of pixels, {STACK} frames of 84 x 84 bytes in a stack",
    kind="frames",
    columns=(
        Column("obs", "uint8", (STACK, *FRAME)),
        Column("next_obs", "uint8", (STACK, *FRAME)),
        Column("action", "int32"),
        Column("reward", "float32"),
        Column("done", "bool"),
    ),
    rows=50_000,
    only=("recollect", "sb3"),
    unit="steps",
    operations=(Operation("sample", 32),),
)
