"""W5 environments: one step of each of 64 environments at once, each with a ring of its own."""

from __future__ import annotations

from bench.workloads.base import Against, Operation, Workload
from bench.workloads.w1 import TRANSITION

ENVIRONMENTS = 64

WORKLOAD = Workload(
    name="W5 environments",
    title="a ring for each of 64 environments",
    kind="environments",
    columns=TRANSITION,
    rows=1_000_000,
    only=("recollect", "tianshou", "torchrl", "sb3", "flashbax"),
    unit="steps",
    operations=(Operation("insert", ENVIRONMENTS, against=(Against("tianshou", must=10),)),),
)
