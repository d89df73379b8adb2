"""Draws of transitions, sequences and episodes: when one may go ahead, and what it fixes then.

Under the lock a draw fixes which rows are to be read; they are copied without it. A draw that
cannot go ahead now returns `Blocked`, which says what it needs.
"""

from __future__ import annotations

from typing import Any

from recollect.base.arguments import flag, many, time_span, whole
from recollect.base.arrays import Ints
from recollect.data.batch import Batch
from recollect.errors import InvalidValue, NeverPossible
from recollect.kernels import steps_layout as sl
from recollect.replay.core import ReplayCore
from recollect.replay.returns import ChosenTransitions
from recollect.replay.sequences import ChosenRuns, sequence_kind
from recollect.replay.start_draws import FIELDS
from recollect.replay.starts import StartKind
from recollect.rules.query import as_query, bind
from recollect.table.runner import Verb
from recollect.table.waiting import Blocked

EPISODES = StartKind(sl.EPISODE, 1)


class StepDraw(Verb[Batch]):
    """A draw of n starts of some kind; `finish` copies what `attempt` has chosen."""

    __slots__ = ("_core", "_n", "_replace", "timeout")

    def __init__(self, core: ReplayCore, n: Any, replace: Any, timeout: float | None) -> None:
        self._core, self._n = core, whole("n", n, 1)
        self._replace = replace if replace is True else flag("replace", replace)
        self.timeout = None if timeout is None else time_span("timeout", timeout)

    def changed(self, tried: Any) -> bool:
        return False  # of counts and the random state a journal need not be sure

    def _blocked(self, found: int, noun: str) -> Blocked | None:
        """Why n of the starts that were found cannot be drawn now, None where they can."""
        core, n, limiter = self._core, self._n, self._core.limiter
        limiter.check_sample(n)
        distinct = 1 if self._replace else n
        if distinct > core.rings.slots:
            raise NeverPossible(
                f"{distinct} different starts are never there: the capacity is {core.rings.slots}"
            )
        inserts = limiter.inserts_needed(core.counts, n)
        if inserts <= 0 and found >= distinct:
            return None
        if inserts:
            limiter.check_waiting_sample(core.counts, n, 0)
        needs = f"needs {many(distinct, noun)}, has {found}"
        if noun == "transition" and len(core):
            needs += (
                f" among {many(len(core), 'step')}: one can be drawn once the observation after it "
                "is there, from the next step or as final_obs"
            )
        if inserts:
            needs += f"; limiter {limiter} needs {many(inserts, 'more insert')}"
        return Blocked(needs, max(inserts, 1))

    def _hopeless(self, found: int) -> bool:
        """Whether to raise instead of waiting: too few are there, and nobody gave a timeout."""
        return self.timeout is None and found < (1 if self._replace else self._n)

    def _count(self) -> None:
        """The draw has taken place."""
        core = self._core
        core.counts.samples += self._n
        core.gate.departures.changed(self._n)
        if core.recorder is not None:
            core.recorder.sampled()


class SampleTransitions(StepDraw):
    """Draws n transitions, of all steps or of those that meet a query."""

    __slots__ = ("_where",)

    def __init__(
        self, core: ReplayCore, n: Any, where: Any, replace: Any, timeout: float | None = None
    ) -> None:
        super().__init__(core, n, replace, timeout)
        query = None if where is None else as_query(where)
        self._where = None if query is None else bind(query, FIELDS)

    def what(self) -> str:
        return f"sample({self._n})"

    def attempt(self) -> Any:
        core, kind, where = self._core, self._core.transition_kind, self._where
        matching = None if where is None else core.draws.matching(kind, where)
        found = core.draws.available(kind) if matching is None else matching.size
        noun = "transition" if where is None else "transition that meets the query"
        blocked = self._blocked(found, noun)
        if blocked is not None:
            return blocked
        drawn = core.draws.draw(kind, self._n, self._replace, matching)
        self._count()
        return core.transitions.choose(drawn, len(core), core.outputs.array)

    def finish(self, tried: ChosenTransitions) -> Batch:
        return tried.read()


class SampleSequences(StepDraw):
    """Draws n sequences of one length; without a timeout it raises where too few can begin."""

    __slots__ = ("_burn_in", "_kind", "_length", "_stride")

    def __init__(
        self,
        core: ReplayCore,
        n: Any,
        length: Any,
        burn_in: Any,
        across: Any,
        stride: Any,
        replace: Any,
        timeout: float | None = None,
    ) -> None:
        super().__init__(core, n, replace, timeout)
        self._kind, self._length = sequence_kind(length, burn_in, across, stride, core.rings.ring)
        self._burn_in, self._stride = burn_in, stride

    def what(self) -> str:
        return f"sample_sequences({self._n}, {self._length})"

    def attempt(self) -> ChosenRuns | Blocked:
        core, kind = self._core, self._kind
        found = core.draws.available(kind)
        blocked = self._blocked(found, "sequence")
        if blocked is not None:
            if self._hopeless(found):
                raise self._no_sequence(found)
            return blocked
        drawn = core.draws.draw(kind, self._n, self._replace)
        self._count()
        bounds = core.runs.bounds(self._n, self._length)
        across = kind.mode == sl.RESET
        return core.runs.choose(drawn, bounds, self._stride, across, len(core), core.outputs.array)

    def finish(self, tried: ChosenRuns) -> Batch:
        return tried.sequences(self._length, self._burn_in)

    def _no_sequence(self, found: int) -> InvalidValue:
        if found:
            return InvalidValue(
                f"n: {self._n} different sequences are asked for, and there are {found}; use "
                "replace=True"
            )
        listed = self._core.rings.episodes()
        longest = int((listed[:, 4] - listed[:, 1]).max()) if len(listed) else 0
        return InvalidValue(
            f"length: no sequence of {self._length} (a span of {many(self._kind.span, 'row')}) can "
            f"begin anywhere; the longest episode that is stored has {many(longest, 'step')}. Use "
            "a shorter length, across_episodes='pad' or 'reset', or timeout= to wait"
        )


class SampleEpisodes(StepDraw):
    """Draws n whole episodes; without a timeout it raises where too few are complete."""

    __slots__ = ()

    def what(self) -> str:
        return f"sample_episodes({self._n})"

    def attempt(self) -> tuple[ChosenRuns, Ints] | Blocked:
        core = self._core
        found = core.draws.available(EPISODES)
        blocked = self._blocked(found, "complete episode")
        if blocked is not None:
            if self._hopeless(found):
                raise InvalidValue(
                    f"sample_episodes: {blocked.needs}; episodes that are not over, or whose head "
                    "was overwritten, are not drawn (timeout= waits for more)"
                )
            return blocked
        drawn = core.draws.draw(EPISODES, self._n, self._replace)
        self._count()
        bounds = core.runs.episode_bounds(drawn.slots)
        return core.runs.choose(drawn, bounds, 1, False, len(core), core.outputs.array), bounds

    def finish(self, tried: tuple[ChosenRuns, Ints]) -> Batch:
        chosen, bounds = tried
        return chosen.episodes(bounds)


class Choice(Verb[Any]):
    """A draw that is read later: running it ends with what was chosen."""

    __slots__ = ("_draw", "timeout")

    def __init__(self, draw: StepDraw, timeout: float | None) -> None:
        self._draw = draw
        draw.timeout = self.timeout = timeout

    def what(self) -> str:
        return self._draw.what()

    def attempt(self) -> Any:
        return self._draw.attempt()

    def changed(self, tried: Any) -> bool:
        return self._draw.changed(tried)
