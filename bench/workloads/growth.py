"""Growth: what must cost the same over few items and over many. Recollect alone.

The size of an operation is the number of items in the table; a call counts as one.
"""

from __future__ import annotations

from bench.workloads.base import Column, Operation, Workload

SMALL, LARGE = 1_000, 1_000_000
EXPIRING = "count() that expires none of many leases"
VERBS = (
    "count(partition)",
    "take(64) Fifo",
    "take(64) StalestFirst",
    "take(64) StalestFirst, versions in any order",
    EXPIRING,
)
LIMIT = 2.0
TITLES = {  # by workload: those that are shown as growth
    "growth": "Cost does not grow with the table",
    "W4 growth": "W4 growth: cost of rollouts does not grow with the buffer",
    "W5 growth": "W5 growth: cost of sequences does not grow with the buffer",
}

WORKLOAD = Workload(
    name="growth",
    title="cost does not grow with the table",
    kind="growth",
    columns=(Column("obs", "float32", (4,)),),
    rows=LARGE,
    only=("recollect",),
    operations=tuple(Operation(verb, size) for verb in VERBS for size in (SMALL, LARGE)),
)
