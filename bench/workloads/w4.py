"""W4: rollouts of LLM responses in groups of 8, 20,000 of them, 18 kB each.

Rates count rollouts: a batch of 64 groups is 512. Lengths of responses are the quantiles of a
lognormal distribution, shuffled, so that payload is known exactly and is the same in every run.
"""

from __future__ import annotations

import math
from random import Random
from statistics import NormalDist

from bench.workloads.base import Against, Column, Floor, Operation, Workload

GROUP = 8  # rollouts
BATCH = 64  # groups
ROLLOUTS = 20_000
MEDIAN, SPREAD, LONGEST = 1500, 0.8, 8192  # tokens of a response
POOL = 4096  # different rollouts, 75 MB: more than caches hold
CHURN = 10  # times the capacity that goes through, before memory is measured


def lengths() -> list[int]:
    """Tokens of each rollout of the pool."""
    normal = NormalDist(math.log(MEDIAN), SPREAD)
    found = [
        min(LONGEST, max(1, round(math.exp(normal.inv_cdf((i + 0.5) / POOL))))) for i in range(POOL)
    ]
    Random(0).shuffle(found)
    return found


TOKENS = round(sum(lengths()) / POOL)
COLUMNS = (
    Column("response_ids", "int32", (TOKENS,)),  # on average
    Column("logprobs", "float32", (TOKENS,)),
    Column("loss_mask", "int8", (TOKENS,)),
    Column("reward", "float32"),
    Column("version", "int32"),
)

PUT = Operation("put a group of", GROUP, against=(Against("reverb", must=8),))
PUT_WITH_ROOM = Operation(
    "put where there is room, a group of",
    GROUP,
    only=("recollect",),
    against=(Against("reverb", of=PUT.name),),
)
MAKE_AND_PUT = Operation("make the objects, put a group of", GROUP, only=("recollect",))
PUT_MANY = Operation("put groups in one call:", BATCH, only=("transferqueue",))
PLAIN_TAKE = Operation("take groups as plain dicts:", BATCH, only=("torchrl",))
PLAIN_SAMPLE = Operation("sample groups as plain dicts:", BATCH, only=("torchrl",))
TAKE = Operation(
    "take groups in order:", BATCH, must=5, against=(Against("torchrl", of=PLAIN_TAKE.name),)
)
TAKE_STAMPED = Operation("take, a version for each token:", BATCH, only=("recollect",))
SAMPLE = Operation(
    "sample groups with reuse:", BATCH, must=5, against=(Against("torchrl", of=PLAIN_SAMPLE.name),)
)
COPY = Operation("copy the bytes of groups:", BATCH)
COPY_FRESH = Operation("copy into fresh memory, groups:", BATCH)

WORKLOAD = Workload(
    name="W4",
    title=f"rollouts in groups of {GROUP}, responses of {MEDIAN:,} tokens in the median",
    kind="rollouts",
    columns=COLUMNS,
    rows=ROLLOUTS,
    only=("recollect", "torchrl", "reverb", "ray", "transferqueue"),
    unit="rollouts",
    together=False,
    operations=(
        PUT,
        PUT_WITH_ROOM,
        MAKE_AND_PUT,
        PUT_MANY,
        TAKE,
        TAKE_STAMPED,
        PLAIN_TAKE,
        SAMPLE,
        PLAIN_SAMPLE,
    ),
    floors=(
        Floor(COPY, "memory copy", TAKE.name, must=0.4),
        Floor(COPY, "memory copy", SAMPLE.name, must=0.4),
        Floor(COPY_FRESH, "memory copy into fresh memory", TAKE.name),
    ),
)
