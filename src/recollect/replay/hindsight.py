"""Hindsight goals: transitions as if the agent had wanted what it then achieved.

Which row a goal comes from is decided under the buffer's lock, when the transitions are drawn:
only then it is certain which rows their episodes have. Stored rows are never changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from recollect.base.arguments import text, whole
from recollect.base.arrays import Array, Ints
from recollect.data.batch import Batch
from recollect.errors import InvalidValue, SchemaError, shown
from recollect.kernels import steps_layout as sl
from recollect.replay.batches import Batched, BufferDraw
from recollect.replay.change_verbs import WritePriorities
from recollect.replay.core import ReplayFace
from recollect.replay.returns import ChosenTransitions, n_step_returns
from recollect.replay.sample_verbs import SampleTransitions
from recollect.storage.lanes import Copies, Copy, Lanes
from recollect.table.waiting import Blocked

RewardFunction = Callable[[Array, Array], Any]

STRATEGIES = ("future", "final", "episode", "random")


@dataclass(frozen=True, kw_only=True)
class Hindsight:
    """Which goals `ReplayBuffer.relabel` puts in place of those that were pursued.

    >>> import numpy as np
    >>> import recollect as rc
    >>> rule = rc.Hindsight(
    ...     strategy="future", share=0.8, goal="desired_goal", achieved="achieved_goal",
    ...     reward=lambda achieved, goal: -np.any(achieved != goal, axis=-1).astype(np.float32),
    ... )

    Args:
        strategy: Where a goal comes from: `"future"`, what was achieved in a later row of the same
            episode; `"final"`, in its last row that is stored; `"episode"`, in any of its rows;
            `"random"`, in any row of the buffer. The final observation of an episode counts.
        share: The share of transitions that get another goal, exact over time.
        goal: The column of the goal, in full (`"obs.desired_goal"`) or by its last name.
        achieved: The column of what was achieved, which `next_from_row` must include.
        reward: `reward(achieved, goal)` returns the rewards `[m]` of m steps that led to `achieved`
            `[m, ...]` while `goal` `[m, ...]` was pursued.
    """

    reward: RewardFunction
    strategy: str = "future"
    share: float = 0.8
    goal: str = "desired_goal"
    achieved: str = "achieved_goal"

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise InvalidValue(
                f"strategy: expected {', '.join(map(repr, STRATEGIES))}, got {shown(self.strategy)}"
            )
        share = self.share
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
            raise InvalidValue(f"share: expected a number from 0 to 1, got {shown(share)}")
        text("goal", self.goal)
        text("achieved", self.achieved)
        if not callable(self.reward):
            raise InvalidValue(
                f"reward: expected a function of achieved and goal, got {shown(self.reward)}"
            )


class Names(NamedTuple):
    """The columns of a rule in one buffer."""

    goal: str
    next_goal: str | None  # where the goal is read from the next row too
    achieved: str


class Relabelled(Batched):
    """A view of a buffer with hindsight goals; see `ReplayBuffer.relabel`."""

    def __init__(self, buffer: ReplayFace, hindsight: Hindsight, seed: int | None) -> None:
        if not isinstance(hindsight, Hindsight):
            raise InvalidValue(f"hindsight: expected an rc.Hindsight, got {shown(hindsight)}")
        self.buffer = buffer
        self.core = buffer.core
        self.hindsight = hindsight
        with self.core.lock:
            state = self.core.draws.random.tolist()
        # Used under the buffer's lock only.
        self._random = np.random.default_rng(state if seed is None else whole("seed", seed, 0))
        self._credit = 0.0
        self._names: Names | None = None

    def sample(
        self, n: int, *, where: Any = None, replace: bool = True, timeout: float | None = None
    ) -> Batch:
        """Draw n transitions as `ReplayBuffer.sample` does, and give a share of them other goals.

        `info.relabelled` says which. Their goal is replaced in `obs` and `next_obs`, and their
        reward is computed anew, for each step of an n-step return; `discount` stays. A step whose
        outcome is not stored (terminated without a `final_obs`) keeps its goal, because nothing
        tells what it achieved.
        """
        return self.core.run(SampleGoals(self, n, where, replace, timeout))

    async def sample_async(
        self, n: int, *, where: Any = None, replace: bool = True, timeout: float | None = None
    ) -> Batch:
        """The same as `sample`, for asyncio."""
        return await self.core.run_async(SampleGoals(self, n, where, replace, timeout))

    def update_priorities(self, keys: Any, values: Any) -> NDArray[np.bool_]:
        """Set the priorities of steps in the buffer."""
        return self.core.run(WritePriorities(self.core, keys, values))

    @property
    def columns(self) -> dict[str, Any]:
        """The columns of the buffer."""
        return self.core.columns

    def __len__(self) -> int:
        return len(self.core)

    def __repr__(self) -> str:
        return f"<{self.buffer!r} relabelled by {self.hindsight.strategy!r}>"

    def _draw(
        self, n: int, sequences: Mapping[str, Any] | None, where: Any, replace: bool
    ) -> BufferDraw:
        if sequences is not None:
            raise InvalidValue("sequences: hindsight relabels transitions; leave sequences out")
        return BufferDraw(self.core, SampleGoals(self, n, where, replace))

    # -- columns ----------------------------------------------------------------------------------
    def resolve(self) -> Names | None:
        """Under the lock: which columns the rule is about, None until there are columns."""
        if self._names is None and self.core.lanes is not None:
            next_names = self.core.transitions.plan.next_names
            goal = self._find("goal", self.hindsight.goal)
            achieved = self._find("achieved", self.hindsight.achieved)
            if achieved not in next_names:
                raise SchemaError(
                    f"achieved: what a step achieved stands in the next row, and {achieved!r} is "
                    f"not among the columns of next_from_row ({', '.join(next_names)})"
                )
            columns = self.core.columns
            if columns[goal] != columns[achieved]:
                raise SchemaError(
                    f"goal: {goal!r} is {columns[goal]} and {achieved!r} is {columns[achieved]}; "
                    "what was achieved must fit in as a goal"
                )
            following = f"next_{goal}" if goal in next_names else None
            self._names = Names(goal, following, achieved)
        return self._names

    def _find(self, argument: str, name: str) -> str:
        columns = self.core.columns
        found = [c for c in columns if c == name] or [c for c in columns if c.endswith(f".{name}")]
        if len(found) != 1:
            problem = f"both {' and '.join(found)} have" if found else "no column has"
            raise SchemaError(
                f"{argument}: {problem} the name {name!r}; the columns are {', '.join(columns)}"
            )
        return found[0]

    # -- goals, under the lock --------------------------------------------------------------------
    def choose(self, chosen: ChosenTransitions, lanes: Lanes, names: Names) -> ChosenGoals:
        """Under the lock: fix which of the chosen transitions get which goals."""
        rings = self.core.rings
        envs, rows = chosen.numbers[sl.T_ENV], chosen.numbers[sl.T_ROW]
        taken = chosen.numbers[sl.T_TAKEN]
        episodes = np.empty((rows.size, 6), np.int64)
        rings.kernels.episodes.episodes_of(rings.block, envs, rows, episodes)
        known = np.flatnonzero(rows + taken < episodes[:, 1])  # what they achieved is stored
        picked = self._picked(rows.size, known)
        envs, rows, taken = envs[picked], rows[picked], taken[picked]
        goal_envs, goal_rows = self._goal_rows(envs, rows, episodes[picked])
        bases = lanes.frozen()
        later = np.arange(1, self.core.options.n_step + 1)
        outcomes = lanes.addresses(bases, envs[:, None], rows[:, None] + later)
        outcomes[later > taken[:, None]] = 0
        goals = lanes.addresses(bases, goal_envs, goal_rows)
        addresses = np.concatenate([goals, outcomes.ravel()])
        return ChosenGoals(self, chosen, lanes, names, picked, taken, addresses)

    def _picked(self, n: int, known: Ints) -> Ints:
        """Which transitions get another goal; a later batch makes up for rounding."""
        self._credit += n * self.hindsight.share
        count = int(self._credit + 1e-9)
        self._credit -= count
        if count >= known.size:
            return known
        return np.sort(self._random.choice(known, count, replace=False))

    def _goal_rows(self, envs: Ints, rows: Ints, episodes: Ints) -> tuple[Ints, Ints]:
        first, stop = episodes[:, 0], episodes[:, 1]
        strategy = self.hindsight.strategy
        if strategy == "future":
            return envs, self._random.integers(rows + 1, stop)
        if strategy == "final":
            return envs, stop - 1
        if strategy == "episode":
            return envs, self._random.integers(first, stop)
        oldest = self.core.rings.oldest
        sizes = self.core.rings.newest - oldest
        ends = np.cumsum(sizes)
        places = self._random.integers(0, int(ends[-1]), rows.size)
        drawn = np.searchsorted(ends, places, side="right")
        return drawn, oldest[drawn] + places - (ends - sizes)[drawn]


class SampleGoals(SampleTransitions):
    """Draws transitions for a view, and the goals that some of them get."""

    __slots__ = ("_view",)

    def __init__(
        self, view: Relabelled, n: Any, where: Any, replace: Any, timeout: float | None = None
    ) -> None:
        super().__init__(view.core, n, where, replace, timeout)
        self._view = view

    def attempt(self) -> Any:
        names = self._view.resolve()  # before anything is drawn
        chosen, lanes = super().attempt(), self._core.lanes
        if isinstance(chosen, Blocked):
            return chosen
        assert lanes is not None
        assert names is not None
        return self._view.choose(chosen, lanes, names)


class ChosenGoals:
    """Transitions and their goals as of the moment they were chosen; `read` needs no lock."""

    def __init__(
        self,
        view: Relabelled,
        chosen: ChosenTransitions,
        lanes: Lanes,
        names: Names,
        picked: Ints,
        taken: Ints,
        addresses: Ints,
    ) -> None:
        self._view = view
        self._chosen = chosen  # which holds the segments of every address here
        self._lanes = lanes
        self._names = names
        self._picked = picked
        self._taken = taken
        self._addresses = addresses

    def read(self) -> Batch:
        """Copy the transitions and put the goals in."""
        batch = self._chosen.read()
        picked, columns = self._picked, batch.columns
        mask = np.zeros(batch.num_items, np.bool_)
        mask[picked] = True
        batch.info.__dict__["relabelled"] = mask
        if picked.size:
            goals, rewards = self._read_goals()
            for name in (self._names.goal, self._names.next_goal):
                if name is not None:
                    column: Any = columns[name]
                    stacked = column.ndim > goals.ndim  # every frame of a stack has the goal
                    column[picked] = goals[:, None] if stacked else goals
            columns["reward"][picked] = rewards  # type: ignore[index]
        return batch

    def _read_goals(self) -> tuple[Array, Array]:
        """The goals, and the returns of the steps that now pursue them."""
        lanes, count, steps = self._lanes, self._picked.size, self._view.core.options.n_step
        number = lanes.names.index(self._names.achieved)
        copies = Copies(
            lanes,
            [
                Copy("goal", number, 0, (count,)),
                Copy("achieved", number, count, (count * steps,)),
            ],
        )
        read = lanes.gather(self._addresses, copies, np.empty)
        there = (np.arange(steps) < self._taken[:, None]).ravel()
        pursued = np.repeat(read["goal"], steps, axis=0)
        rewards = np.zeros((count, steps))
        rewards.ravel()[there] = self._rewards(read["achieved"][there], pursued[there])
        return read["goal"], n_step_returns(rewards, self._view.core.options.gamma)

    def _rewards(self, achieved: Array, goals: Array) -> Array:
        given = self._view.hindsight.reward(achieved, goals)
        rewards = np.asarray(given)
        if rewards.shape != (len(goals),) or rewards.dtype.kind not in "biuf":
            raise InvalidValue(
                f"reward: the function got {len(goals)} outcomes and goals and must return as many "
                f"numbers, got {rewards.dtype} of shape {list(rewards.shape)}"
            )
        return rewards
