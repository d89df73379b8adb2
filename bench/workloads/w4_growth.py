"""W4 growth: calls over a thousand groups and over a hundred thousand. Recollect alone."""

from __future__ import annotations

from bench.workloads.base import Column, Operation, Workload
from bench.workloads.w4 import BATCH, GROUP

SMALL, LARGE = 1_000, 100_000  # groups
COUNT = "count(task, status)"
TAKE = f"take_batch of {BATCH}"
ADVANCE = "advance, nothing expires"

WORKLOAD = Workload(
    name="W4 growth",
    title="cost of rollouts does not grow with the buffer",
    kind="rollout growth",
    columns=(
        Column("response_ids", "int32", (4,)),
        Column("logprobs", "float32", (4,)),
        Column("loss_mask", "int8", (4,)),
    ),
    rows=LARGE * GROUP,
    only=("recollect",),
    unit="groups",
    operations=tuple(
        Operation(verb, size) for verb in (COUNT, TAKE, ADVANCE) for size in (SMALL, LARGE)
    ),
)
