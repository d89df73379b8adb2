"""W4 memory: growth of resident memory after ten times the capacity went through the store."""

from __future__ import annotations

from dataclasses import replace

from bench.workloads import w4

MOST_SHARE, MOST_BESIDE = 1.25, 64 * 2**20  # of the payload, and bytes

WORKLOAD = replace(
    w4.WORKLOAD,
    name="W4 memory",
    title=f"rollouts, after {w4.CHURN} times the capacity went through",
    kind="rollout churn",
    only=("recollect", "torchrl", "reverb"),
    operations=(replace(w4.TAKE, must=None, against=()),),
    floors=(),
)
