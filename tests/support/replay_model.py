"""A slow, obvious oracle of `rc.ReplayBuffer`: a plain list of rows per environment.

Every question is answered by walking the lists: where episodes begin and end, which steps may be
drawn, what a drawn transition, sequence or episode contains. Nothing is kept between questions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from replay_starts import start_keys

import recollect as rc

ENV_SHIFT = 44  # a key is env_id << 44 | row number

Drawn = Callable[[], dict[str, Any]]  # what a start gives, made when it is asked for


@dataclass(eq=False)
class Row:
    """One stored row: a step, or the final observation of an episode."""

    env: int
    number: int
    cells: dict[str, Any]
    first: bool = False
    terminated: bool = False
    truncated: bool = False
    final: bool = False
    priority: float = 1.0

    @property
    def key(self) -> int:
        return self.env << ENV_SHIFT | self.number


@dataclass(eq=False)
class Step:
    """An observation, the action taken there, and what it led to."""

    row: Row
    after: Row | None  # the next row of its episode; None where it is missing
    reward: Any
    terminated: bool
    truncated: bool


@dataclass(eq=False)
class Episode:
    """The rows of one episode that are still there."""

    env: int
    rows: list[Row]
    over: bool
    steps: list[Step]

    @property
    def cut(self) -> bool:
        """Whether rows at its head were overwritten."""
        return not self.rows[0].first


@dataclass(frozen=True)
class Window:
    """What `sample_sequences` is asked for."""

    length: int
    burn_in: int = 0
    stride: int = 1
    mode: str = "stop"

    @property
    def options(self) -> dict[str, Any]:
        return {"burn_in": self.burn_in, "stride": self.stride, "across_episodes": self.mode}


@dataclass
class Model:
    capacity: int
    num_envs: int = 1
    sampler: rc.Selector = field(default_factory=rc.Uniform)
    next_from_row: tuple[str, ...] = ("obs",)
    n_step: int = 1
    gamma: float = 0.99
    frame_stack: int = 1
    recent: tuple[int, float] | None = None
    reward_at: str = "this"
    lanes: list[list[Row]] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)  # the next row's, by environment
    inserts: int = 0
    samples: int = 0
    removals: int = 0

    def __post_init__(self) -> None:
        self.lanes = [[] for _ in range(self.num_envs)]
        self.numbers = [0] * self.num_envs

    @property
    def ring(self) -> int:
        return self.capacity // self.num_envs

    # -- adding -----------------------------------------------------------------------------------
    def is_open(self, env: int) -> bool:
        """Whether the newest row of an environment belongs to an episode that goes on."""
        lane = self.lanes[env]
        return bool(lane) and not (lane[-1].final or lane[-1].terminated or lane[-1].truncated)

    def add(
        self,
        env: int,
        cells: dict[str, Any],
        *,
        first: bool | None = None,
        terminated: bool = False,
        truncated: bool = False,
        final: dict[str, Any] | None = None,
        priority: float | None = None,
    ) -> int:
        """One step, and the final observation after it; returns the step's key."""
        if priority is None:
            priority = self.highest_priority()
        begins = first if first is not None else not self.is_open(env)
        lane = self.lanes[env]
        assert begins or self.is_open(env) or not lane, "the caller must not say first=False here"
        if begins and self.is_open(env):
            lane[-1].truncated = True  # the episode was cut short
        row = Row(env, self.numbers[env], cells, begins, terminated, truncated, priority=priority)
        self._append(row)
        if final is not None:
            self._append(Row(env, self.numbers[env], final, final=True))
        self.inserts += 1
        return row.key

    def _append(self, row: Row) -> None:
        lane = self.lanes[row.env]
        lane.append(row)
        self.numbers[row.env] += 1
        if len(lane) > self.ring:
            self.removals += not lane.pop(0).final

    def highest_priority(self) -> float:
        return max((row.priority for row in self.stored()), default=1.0)

    def update_priorities(self, keys: Sequence[int], values: Sequence[float]) -> list[bool]:
        """Set priorities; returns which keys name a stored step. The last of several counts."""
        rows = {row.key: row for row in self.stored()}
        for key, value in zip(keys, values, strict=True):
            if key in rows:
                rows[key].priority = value
        return [key in rows for key in keys]

    def clear(self) -> None:
        self.removals += len(self.stored())
        for lane in self.lanes:
            lane.clear()

    # -- looking ----------------------------------------------------------------------------------
    def stored(self) -> list[Row]:
        """The steps, by environment and age; final observations are none."""
        return [row for lane in self.lanes for row in lane if not row.final]

    def episodes(self, env: int) -> list[Episode]:
        """The episodes of an environment, the oldest first."""
        groups: list[list[Row]] = []
        for row in self.lanes[env]:
            if row.first or not groups:
                groups.append([])
            groups[-1].append(row)
        return [
            Episode(env, rows, group < len(groups) - 1 or not self.is_open(env), self._steps(rows))
            for group, rows in enumerate(groups)
        ]

    def all_episodes(self) -> list[Episode]:
        """Of all environments; what is left of one must hold a complete step."""
        found = [episode for env in range(self.num_envs) for episode in self.episodes(env)]
        return [episode for episode in found if episode.steps]

    def _steps(self, rows: list[Row]) -> list[Step]:
        steps = []
        for row, after in zip(rows, [*rows[1:], None], strict=True):
            if row.final:
                continue
            outcome = row if self.reward_at == "this" else after
            if outcome is None:  # what the newest action led to comes with the next row
                continue
            reward = outcome.cells["reward"]
            steps.append(Step(row, after, reward, outcome.terminated, outcome.truncated))
        return steps

    def has_history(self, episode: Episode, row: Row) -> bool:
        """Whether every frame of a row's stack is there, or repeats the true first one."""
        return not episode.cut or row.number - episode.rows[0].number >= self.frame_stack - 1

    # -- transitions ------------------------------------------------------------------------------
    def transitions(self) -> dict[int, Drawn]:
        """What every legal start gives, by key."""
        found = {}
        for episode in self.all_episodes():
            for place, step in enumerate(episode.steps):
                steps = episode.steps[place : place + self.n_step]
                if self._may_start(episode, steps):
                    found[step.row.key] = partial(self._transition, episode, steps)
        return found

    def _may_start(self, episode: Episode, steps: list[Step]) -> bool:
        last = steps[-1]
        if len(steps) < self.n_step and not episode.over:
            return False  # more steps may still come
        if last.after is None and not last.terminated:
            return False  # nothing to bootstrap from
        return self.has_history(episode, steps[0].row)

    def _transition(self, episode: Episode, steps: list[Step]) -> dict[str, Any]:
        start, last = steps[0].row, steps[-1]
        cells = {
            name: self._cell(episode, start, name)
            for name in start.cells
            if name not in ("reward", "terminated", "truncated", "first")
        }
        for name in self.observations(start):
            cells[next_name(name)] = self._next(episode, last, name)
        cells["reward"] = sum(self.gamma**i * float(step.reward) for i, step in enumerate(steps))
        cells["discount"] = 0.0 if last.terminated else self.gamma ** len(steps)
        return cells

    def observations(self, row: Row) -> list[str]:
        """The columns whose next value is read from the next row."""
        return [
            name
            for name in row.cells
            if any(name == given or name.startswith(f"{given}.") for given in self.next_from_row)
        ]

    def _cell(self, episode: Episode, row: Row, name: str) -> Any:
        """One cell, or the stack of frames that ends with it, the oldest first."""
        if self.frame_stack == 1 or name not in self.observations(row):
            return row.cells[name]
        here = row.number - episode.rows[0].number
        places = range(here - self.frame_stack + 1, here + 1)
        return np.stack([episode.rows[max(0, place)].cells[name] for place in places])

    def _next(self, episode: Episode, step: Step, name: str) -> Any:
        if step.after is None:
            return np.zeros_like(self._cell(episode, step.row, name))
        return self._cell(episode, step.after, name)

    def recent_keys(self, keys: Sequence[int]) -> list[int]:
        """Those of the keys whose rows are among the newest of their rings."""
        assert self.recent is not None
        window = max(1, self.recent[0] // self.num_envs)
        mask = (1 << ENV_SHIFT) - 1
        return [k for k in keys if (k & mask) >= self.numbers[k >> ENV_SHIFT] - window]

    # -- sequences --------------------------------------------------------------------------------
    def sequences(self, window: Window) -> dict[int, Drawn]:
        """What every legal start of a sequence gives, by key."""
        found = {}
        for env in range(self.num_envs):
            episodes = self.episodes(env)
            if window.mode == "reset":
                lane = [(episode, step) for episode in episodes for step in episode.steps]
                runs = [lane]
            else:
                runs = [[(episode, step) for step in episode.steps] for episode in episodes]
            for run in runs:
                for place, (episode, step) in enumerate(run):
                    path = run[place : place + window.length * window.stride : window.stride]
                    if self._legal(window, path) and self.has_history(episode, step.row):
                        found[step.row.key] = partial(self._sequence, window, path)
        return found

    def _legal(self, window: Window, path: list[tuple[Episode, Step]]) -> bool:
        if len(path) == window.length:
            return True
        return window.mode == "pad" and path[0][0].over and len(path) > window.burn_in

    def _sequence(self, window: Window, path: list[tuple[Episode, Step]]) -> dict[str, Any]:
        positions = []
        for place, (episode, step) in enumerate(path):
            row = step.row
            entered = place > 0 and path[place - 1][0] is not episode
            cells = {
                name: self._cell(episode, row, name)
                for name in row.cells
                if name not in ("reward", "terminated", "truncated", "first")
            }
            for name in self.observations(row):
                cells[next_name(name)] = self._next(episode, step, name)
            cells["reward"] = step.reward
            cells["terminated"] = step.terminated
            cells["truncated"] = step.truncated
            cells["valid"] = True
            cells["is_first"] = row.first or entered
            cells["burn_in"] = place < window.burn_in
            cells["bootstrap"] = step.after is not None and not step.terminated
            positions.append(cells)
        zeros = {name: np.zeros_like(cell) for name, cell in positions[0].items()}
        positions += [zeros] * (window.length - len(positions))
        return {name: np.stack([cells[name] for cells in positions]) for name in zeros}

    # -- whole episodes ---------------------------------------------------------------------------
    def whole(self) -> dict[int, Episode]:
        """The complete episodes whose every row is there, by the key of their first row."""
        return {e.rows[0].key: e for e in self.all_episodes() if e.over and not e.cut and e.steps}

    def table(self) -> list[dict[str, Any]]:
        """What `episodes()` must say: a line for each, by environment and start."""
        return [
            {
                "env": episode.env,
                "start": episode.steps[0].row.number,
                "length": len(episode.steps),
                "return": sum(float(step.reward) for step in episode.steps),
                "complete": episode.over,
                "cut": episode.cut,
            }
            for episode in self.all_episodes()
        ]

    # -- chances ----------------------------------------------------------------------------------
    def chances(self, keys: Sequence[int]) -> dict[int, float]:
        """The probability of each of some starts in one draw among them."""
        rows = {row.key: row for row in self.stored()}
        weights = [1.0] * len(keys)
        if isinstance(self.sampler, rc.Prioritized):
            alpha = self.sampler.alpha
            weights = [rows[k].priority ** alpha if rows[k].priority > 0 else 0.0 for k in keys]
            if not any(weights):
                weights = [1.0] * len(keys)
        total = math.fsum(weights)
        return {key: weight / total for key, weight in zip(keys, weights, strict=True)}

    # -- comparing --------------------------------------------------------------------------------
    def check_info(self, info: rc.Info, legal: Sequence[int], replace: bool = True) -> None:
        """Keys are legal, and what a batch says of them is true."""
        keys = info.keys.tolist()
        assert set(keys) <= set(legal), sorted(set(keys) - set(legal))
        assert replace or len(set(keys)) == len(keys)
        mask = (1 << ENV_SHIFT) - 1
        assert info.env_ids.tolist() == [key >> ENV_SHIFT for key in keys]
        assert info.steps.tolist() == [key & mask for key in keys]
        rows = {row.key: row for row in self.stored()}
        priorities = [rows[key].priority for key in keys]
        np.testing.assert_allclose(info.priority, priorities, rtol=1e-12)
        assert ((info.probability > 0) & (info.probability <= 1 + 1e-9)).all(), info.probability
        assert ((info.weights > 0) & np.isfinite(info.weights)).all(), info.weights
        if self.recent is not None or not replace:
            return
        chances = self.chances(legal)
        np.testing.assert_allclose(info.probability, [chances[k] for k in keys], rtol=1e-6)
        assert all(chances[key] > 0 for key in keys)
        if not isinstance(self.sampler, rc.Prioritized):
            assert (info.weights == 1.0).all()
            return
        beta = self.sampler.beta
        if self.sampler.normalize == "batch" and not isinstance(beta, rc.Linear):
            weights = np.array([len(legal) * chances[key] for key in keys]) ** -beta
            np.testing.assert_allclose(info.weights, weights / weights.max(), rtol=1e-6)

    def check_batch(self, batch: rc.Batch, expected: dict[int, Drawn]) -> None:
        """Every cell of a batch is what the model says of the key in its place."""
        for place, key in enumerate(batch.info.keys.tolist()):
            cells = expected[key]()
            missing = set(cells) - set(batch.columns)
            assert not missing, f"columns {missing} are missing in {list(batch.columns)}"
            for name, cell in cells.items():
                check_cell(f"{name} of {describe(key)}", batch.columns[name][place], cell)


def legal_starts(
    buffer: rc.ReplayBuffer, window: Window | None = None, *, recent: bool = False
) -> list[int]:
    """The keys in the buffer's own index: of transitions, or of the sequences of a window.

    `recent` asks for the index of the newest steps.
    """
    if window is None:
        return start_keys(buffer, recent=recent).tolist()
    return start_keys(buffer, window.length, **window.options, recent=recent).tolist()


def check_cell(what: str, got: Any, expected: Any) -> None:
    """The same numbers; those that were computed may be rounded otherwise."""
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.shape == expected.shape, f"{what}: shape {got.shape}, expected {expected.shape}"
    if what.startswith(("reward", "discount")):
        assert np.allclose(got, expected, rtol=1e-5, atol=1e-6), f"{what}: {got} != {expected}"
    else:
        assert np.array_equal(got, expected), f"{what}: {got} != {expected}"


def next_name(name: str) -> str:
    """What the next value of a column is called: next_obs, or next_obs.image."""
    return f"next_{name}"


def describe(key: int) -> str:
    return f"env {key >> ENV_SHIFT} row {key & ((1 << ENV_SHIFT) - 1)}"
