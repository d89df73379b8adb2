"""What a replay buffer keeps in its indexes, and how much it looks at."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import recollect as rc
from recollect.kernels import steps_layout as sl
from recollect.replay.sequences import sequence_kind


def start_keys(
    buffer: rc.ReplayBuffer,
    length: int | None = None,
    *,
    burn_in: int = 0,
    stride: int = 1,
    across_episodes: str = "stop",
    recent: bool = False,
) -> NDArray[np.uint64]:
    """The keys of all legal starts of transitions, or of sequences; sorted."""
    core = buffer.core
    kind = core.transition_kind
    if length is not None:
        kind, _ = sequence_kind(length, burn_in, across_episodes, stride, core.rings.ring)
    with core.lock:
        index, newest = core.draws.starts.find(kind)
        slots = core.draws.starts.list(newest if recent and newest is not None else index)
        envs, rows, _ = core.rings.rows_at(slots)
    return np.sort(((envs << sl.ROW_BITS) | rows).view(np.uint64))


def looked_at(buffer: rc.ReplayBuffer) -> int:
    """How many rows and tree nodes a buffer has looked at so far: what tests count for seconds."""
    return int(buffer.core.rings.now[sl.VISITS])
