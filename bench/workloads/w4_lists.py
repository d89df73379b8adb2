"""W4 lists: beside W4, the way of a dict of Python lists, as a reconstruction. No bounds.

The size of an operation is the number of groups in the store; a call counts as one.
"""

from __future__ import annotations

from bench.workloads import w4
from bench.workloads.base import Operation, Workload

SMALL, LARGE = 250, w4.ROLLOUTS // w4.GROUP  # groups
PUT = "put a group of 8, groups stored:"
COUNT = "count(task, status), groups stored:"
TAKE = "take 64 as one batch of arrays, groups stored:"
TAKE_LISTS = "take 64 as they are stored, groups stored:"
REFRESH = "a train step that expires nothing, groups stored:"

WORKLOAD = Workload(
    name="W4 lists",
    title="beside W4: a dict of Python lists (XTuner's way, a reconstruction)",
    kind="rollout lists",
    columns=w4.COLUMNS,
    rows=w4.ROLLOUTS,
    only=("recollect", "lists"),
    unit="calls",
    together=False,
    operations=tuple(
        Operation(verb, size, only=("lists",) if verb == TAKE_LISTS else ())
        for verb in (PUT, COUNT, TAKE, TAKE_LISTS, REFRESH)
        for size in (SMALL, LARGE)
    ),
)
