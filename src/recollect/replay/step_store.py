"""What a buffer does under its lock: steps come and go, starts are chosen. Nothing here waits.

A verb that cannot go ahead now returns `Blocked`, which says what it needs. Choosing fixes which
rows are to be read; what it returns is read without the lock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from recollect.base.arguments import many
from recollect.data.schema import Schema
from recollect.errors import InvalidValue, NeverPossible
from recollect.kernels import steps_layout as sl
from recollect.replay.choice import Drawing
from recollect.replay.episodes import Rings
from recollect.replay.incoming import Incoming, Steps
from recollect.replay.returns import ChosenTransitions, Transitions
from recollect.replay.sequences import ChosenRuns, Runs
from recollect.replay.starts import StartKind
from recollect.rules.limiters import Counts, Limiter
from recollect.rules.query import Query
from recollect.storage.buffers import BufferPool
from recollect.storage.lanes import Lanes
from recollect.table.waiting import Blocked

if TYPE_CHECKING:
    from recollect.replay.journaled import JournaledSteps

Keys = NDArray[np.uint64]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

OUTPUTS = 32 << 20  # bytes of large outputs that are kept for reuse
EPISODES = StartKind(sl.EPISODE, 1)


class StepStore:
    """Rings, their payload and the indexes of starts, kept in step. Its caller holds the lock."""

    def __init__(
        self,
        rings: Rings,
        drawing: Drawing,
        incoming: Incoming,
        limiter: Limiter,
        n_step: int,
        gamma: float,
    ) -> None:
        self.rings = rings
        self.drawing = drawing
        self.incoming = incoming
        self.limiter = limiter
        self.counts = Counts()
        self.lanes: Lanes | None = None
        self.recorder: JournaledSteps | None = None
        self.transitions = StartKind(sl.TRANSITION, n_step)
        self._gamma = gamma
        self._kernels = rings.kernels
        self._outputs = BufferPool(OUTPUTS)

    def set_schema(self, schema: Schema) -> None:
        """These are the columns from now on."""
        self.incoming.fix(schema)
        if self.recorder is not None:
            self.recorder.columns(schema)
        self.lanes = lanes = Lanes(self.rings.block, schema, self._kernels)
        for env in np.flatnonzero(self.rings.newest).tolist():  # rings that begin later
            lanes.begin_at(env, int(self.rings.newest[env]))
        names = self.incoming.next_columns(schema)
        self._returns = Transitions(self.rings, lanes, names, self.transitions.span, self._gamma)
        self._runs = Runs(self.rings, lanes, names)

    def __len__(self) -> int:
        return int(self.rings.now[sl.STEPS])

    @property
    def rows(self) -> int:
        """Steps and final observations."""
        return int(self.rings.now[sl.ROWS])

    @property
    def nbytes(self) -> int:
        return 0 if self.lanes is None else self.rows * self.lanes.row_bytes

    @property
    def allocated(self) -> int:
        payload = 0 if self.lanes is None else self.lanes.allocated
        return payload + self.rings.nbytes + self.drawing.starts.nbytes

    # -- steps come and go ------------------------------------------------------------------------
    def insert(self, steps: Steps) -> Keys | Blocked:
        """Store steps, all or none; raises where they contradict what is stored."""
        incoming, rings = self.incoming, self.rings
        if incoming.schema is not None and steps.schema is not incoming.schema:
            steps = incoming.again(steps)
        count = steps.count
        keys = np.empty(count, np.uint64)
        if count == 0:
            return keys
        self.limiter.check_insert(count)
        code, place = self._kernels.steps.check(rings.block, steps.inputs, steps.envs, count)
        if code:
            env = int(steps.envs[place if steps.envs.size > 1 else 0])
            raise incoming.contradiction(code, env, place, count)
        departures = self.limiter.departures_needed(self.counts, count)
        if departures:
            self.limiter.check_waiting_insert(self.counts, count, 0)
            needs = many(departures, "more sample", "more samples")
            return Blocked(f"limiter {self.limiter} needs {needs}", departures)
        if self.lanes is None:
            self.set_schema(steps.schema)
        before = rings.now[sl.OVERWRITTEN]
        self._append(steps, keys)
        self.counts.inserts += count
        self.counts.removals += rings.now[sl.OVERWRITTEN] - before
        if self.recorder is not None:
            self.recorder.steps(steps)
        return keys

    def _append(self, steps: Steps, keys: Keys) -> None:
        """Let the kernel store steps, and give it a segment whenever a lane has none left."""
        rings, lanes = self.rings, self.lanes
        assert lanes is not None
        priority = rings.highest_priority()
        done = 0
        while True:
            done = self._kernels.steps.append(
                rings.block, self.drawing.starts.table, lanes.table, steps.inputs, steps.envs,
                done, steps.count, priority, keys,
            )  # fmt: skip
            if done == steps.count:
                return
            env = int(steps.envs[done if steps.envs.size > 1 else 0])
            lanes.open_segment(env, int(rings.oldest[env]))

    def clear(self) -> int:
        """Forget every step; returns how many there were."""
        gone = len(self)
        self.rings.clear()
        self.drawing.starts.clear()
        if self.lanes is not None:
            for env in range(self.rings.envs):
                self.lanes.drop_before(env, int(self.rings.oldest[env]))
        self.counts.removals += gone
        if self.recorder is not None:
            self.recorder.cleared()
        return gone

    def write_priorities(self, keys: Keys, values: Floats) -> NDArray[np.bool_]:
        """Set the priorities of steps; returns which are stored."""
        found = np.zeros(keys.size, np.int8)
        if keys.size:
            self.rings.weigh()
            if not values.all():
                self.drawing.starts.expect_zeros()
            self._kernels.starts.write_priorities(
                self.rings.block, self.drawing.starts.table, keys, values, found
            )
        if self.recorder is not None:
            self.recorder.weighed(keys, values, found.view(np.bool_))
        return found.view(np.bool_)

    # -- starts are chosen ------------------------------------------------------------------------
    def choose_transitions(
        self, n: int, replace: bool, where: Query | None
    ) -> ChosenTransitions | Blocked:
        """Choose n transitions."""
        kind = self.transitions
        matching = None if where is None else self.drawing.matching(kind, where)
        found = self.drawing.available(kind) if matching is None else matching.size
        noun = "transition" if where is None else "transition that meets the query"
        blocked = self._blocked(n, replace, found, noun)
        if blocked is not None:
            return blocked
        drawn = self.drawing.draw(kind, n, replace, matching)
        self.counts.samples += n
        return self._returns.choose(drawn, len(self), self._outputs.array)

    def choose_sequences(
        self, kind: StartKind, n: int, length: int, stride: int, replace: bool, strict: bool
    ) -> ChosenRuns | Blocked:
        """Choose n sequences; a strict call raises where too few can begin anywhere."""
        found = self.drawing.available(kind)
        blocked = self._blocked(n, replace, found, "sequence")
        if blocked is not None:
            if strict and found < (1 if replace else n):
                raise self._no_sequence(n, found, length, kind)
            return blocked
        drawn = self.drawing.draw(kind, n, replace)
        self.counts.samples += n
        bounds = self._runs.bounds(n, length)
        across = kind.mode == sl.RESET
        return self._runs.choose(drawn, bounds, stride, across, len(self), self._outputs.array)

    def choose_episodes(
        self, n: int, replace: bool, strict: bool
    ) -> tuple[ChosenRuns, Ints] | Blocked:
        """Choose n whole episodes, and say how their rows are bounded."""
        found = self.drawing.available(EPISODES)
        blocked = self._blocked(n, replace, found, "complete episode")
        if blocked is not None:
            if strict and found < (1 if replace else n):
                raise InvalidValue(
                    f"sample_episodes: {blocked.needs}; episodes that are not over, or whose head "
                    "was overwritten, are not drawn (timeout= waits for more)"
                )
            return blocked
        drawn = self.drawing.draw(EPISODES, n, replace)
        self.counts.samples += n
        bounds = self._runs.episode_bounds(drawn.slots)
        size = len(self)
        return self._runs.choose(drawn, bounds, 1, False, size, self._outputs.array), bounds

    def _blocked(self, n: int, replace: bool, found: int, noun: str) -> Blocked | None:
        """Why n starts cannot be drawn now, None where they can."""
        self.limiter.check_sample(n)
        distinct = 1 if replace else n
        if distinct > self.rings.slots:
            raise NeverPossible(
                f"{distinct} different starts are never there: the capacity is {self.rings.slots}"
            )
        inserts = self.limiter.inserts_needed(self.counts, n)
        if inserts <= 0 and found >= distinct:
            return None
        if inserts:
            self.limiter.check_waiting_sample(self.counts, n, 0)
        needs = f"needs {many(distinct, noun)}, has {found}"
        if noun == "transition" and len(self):
            needs += (
                f" among {many(len(self), 'step')}: one can be drawn once the observation after it "
                "is there, from the next step or as final_obs"
            )
        if inserts:
            needs += f"; limiter {self.limiter} needs {many(inserts, 'more insert')}"
        return Blocked(needs, max(inserts, 1))

    def _no_sequence(self, n: int, found: int, length: int, kind: StartKind) -> InvalidValue:
        if found:
            return InvalidValue(
                f"n: {n} different sequences are asked for, and there are {found}; use replace=True"
            )
        listed = self.rings.episodes()
        longest = int((listed[:, 4] - listed[:, 1]).max()) if len(listed) else 0
        return InvalidValue(
            f"length: no sequence of {length} (a span of {many(kind.span, 'row')}) can begin "
            f"anywhere; the longest episode that is stored has {many(longest, 'step')}. Use a "
            "shorter length, across_episodes='pad' or 'reset', or timeout= to wait"
        )

    def starts(self, kind: StartKind, recent: bool) -> Keys:
        """The keys of all legal starts of a kind, sorted: what tests compare."""
        index, newest = self.drawing.starts.find(kind)
        slots = self.drawing.starts.list(newest if recent and newest is not None else index)
        envs, rows, _ = self.rings.rows_at(slots)
        return np.sort(((envs << sl.ROW_BITS) | rows).view(np.uint64))
