"""W5: sequences of 64 steps from a million steps in episodes of 200 to 1,000.

Rates count the steps that were drawn. 'after an insert' has a stretch of 64 steps inserted before
every draw, outside the clock; 'insert + sequences' has the same with the insert inside it.
"""

from __future__ import annotations

from bench.workloads.base import Against, Operation, Workload
from bench.workloads.w1 import TRANSITION

LENGTH = 64
STRETCH = 64  # steps that one insert brings, all of one environment
SHORTEST, LONGEST = 200, 1000

ALONE = "sequences"
AFTER_INSERT = "after an insert: sequences"
WITH_INSERT = "insert + sequences"
CACHED = "bounds of episodes cached: sequences"
PRECUT = "cut when inserted: sequences"
STORED_NEXT = "next_obs stored: sequences"
INSERT = "insert a stretch of"

BEYOND_TORCHRL = (Against("torchrl", must=8),)

WORKLOAD = Workload(
    name="W5",
    title=f"sequences of {LENGTH} steps, episodes of {SHORTEST} to {LONGEST:,}",
    kind="sequences",
    columns=TRANSITION,
    rows=1_000_000,
    only=("recollect", "torchrl", "flashbax", "reverb", "rllib"),
    unit="steps",
    operations=(
        Operation(ALONE, 32, must=1.1, aim=1.5),
        Operation(AFTER_INSERT, 32, must=1.1, aim=1.5, against=BEYOND_TORCHRL),
        Operation(WITH_INSERT, 32, must=1.1, aim=1.5, against=BEYOND_TORCHRL),
        Operation(INSERT, STRETCH),
        Operation(CACHED, 32, only=("torchrl",)),
        Operation(PRECUT, 32, only=("rllib",)),
        Operation(
            STORED_NEXT,
            32,
            only=("recollect",),
            against=(Against("flashbax", of=f"{ALONE} 32"),),
        ),
    ),
)
