"""What changes the steps of a buffer: they are added, weighed and removed. Nothing here waits.

An insert that cannot go ahead now returns `Blocked`, which says what it needs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from recollect.base.arguments import keys_of, many, time_span
from recollect.base.arrays import Keys
from recollect.kernels import steps_layout as sl
from recollect.replay.core import ReplayCore
from recollect.replay.incoming import Steps
from recollect.replay.options import checked_priorities
from recollect.rules.limiters import Limiter
from recollect.storage.lanes import Lanes
from recollect.table.runner import Verb
from recollect.table.waiting import Blocked, Gate, Room


class InsertSteps(Verb[Keys]):
    """Adds checked steps, all or none."""

    __slots__ = ("_core", "_steps", "timeout")

    def __init__(self, core: ReplayCore, steps: Steps, timeout: float | None) -> None:
        self._core, self._steps = core, steps
        self.timeout = None if timeout is None else time_span("timeout", timeout)

    def what(self) -> str:
        return "insert"

    def attempt(self) -> Keys | Blocked:
        return insert_steps(self._core, self._steps, self._core.limiter)

    def room(self, gate: Gate) -> Room:
        return gate.departures


def insert_steps(core: ReplayCore, steps: Steps, limiter: Limiter) -> Keys | Blocked:
    """Under the lock: store steps, all or none; raises where they contradict what is stored."""
    incoming, rings, counts = core.incoming, core.rings, core.counts
    if incoming.schema is not None and steps.schema is not incoming.schema:
        steps = incoming.again(steps)
    count = steps.count
    keys = np.empty(count, np.uint64)
    if count == 0:
        return keys
    limiter.check_insert(count)
    code, place = rings.kernels.steps.check(rings.block, steps.inputs, steps.envs, count)
    if code:
        env = int(steps.envs[place if steps.envs.size > 1 else 0])
        raise incoming.contradiction(code, env, place, count)
    departures = limiter.departures_needed(counts, count)
    if departures:
        limiter.check_waiting_insert(counts, count, 0)
        needs = many(departures, "more sample", "more samples")
        return Blocked(f"limiter {limiter} needs {needs}", departures)
    if core.lanes is None:
        core.set_schema(steps.schema)
    assert core.lanes is not None
    before = rings.now[sl.OVERWRITTEN]
    _append(core, core.lanes, steps, keys)
    gone = rings.now[sl.OVERWRITTEN] - before
    counts.inserts += count
    counts.removals += gone
    if core.recorder is not None:
        core.recorder.steps(steps)
    core.gate.arrivals.changed(count)
    if gone:
        core.gate.departures.changed(gone)
    return keys


def _append(core: ReplayCore, lanes: Lanes, steps: Steps, keys: Keys) -> None:
    """Let the kernel store steps, and give it a segment whenever a lane has none left."""
    rings = core.rings
    priority = rings.highest_priority()
    done = 0
    while True:
        done = rings.kernels.steps.append(
            rings.block, core.draws.starts.table, lanes.table, steps.inputs, steps.envs,
            done, steps.count, priority, keys,
        )  # fmt: skip
        if done == steps.count:
            return
        env = int(steps.envs[done if steps.envs.size > 1 else 0])
        lanes.open_segment(env, int(rings.oldest[env]))


class WritePriorities(Verb[NDArray[np.bool_]]):
    """Sets the priorities of steps, and says which are stored."""

    __slots__ = ("_core", "_keys", "_values")

    def __init__(self, core: ReplayCore, keys: Any, values: Any) -> None:
        self._core, self._keys = core, keys_of(keys)
        self._values = checked_priorities(values, self._keys.size, core.options.sampler)

    def attempt(self) -> NDArray[np.bool_]:
        return write_priorities(self._core, self._keys, self._values)


def write_priorities(
    core: ReplayCore, keys: Keys, values: NDArray[np.float64]
) -> NDArray[np.bool_]:
    """Under the lock: set the priorities of steps; returns which are stored."""
    found = np.zeros(keys.size, np.int8)
    if keys.size:
        core.rings.weigh()
        if not values.all():
            core.draws.starts.expect_zeros()
        core.rings.kernels.starts.write_priorities(
            core.rings.block, core.draws.starts.table, keys, values, found
        )
    if core.recorder is not None:
        core.recorder.weighed(keys, values, found.view(np.bool_))
    return found.view(np.bool_)


def clear(core: ReplayCore) -> None:
    """Under the lock: forget every step."""
    gone = len(core)
    core.rings.clear()
    core.draws.starts.clear()
    if core.lanes is not None:
        for env in range(core.rings.envs):
            core.lanes.drop_before(env, int(core.rings.oldest[env]))
    core.counts.removals += gone
    if core.recorder is not None:
        core.recorder.cleared()
    core.gate.departures.changed(gone)
