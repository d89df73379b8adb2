"""`ReplayBuffer`: steps of environments, a ring for each, and the draws from them.

The buffer is a face: it checks what it is given, makes a verb of it and hands that to its core
(`replay/core.py`), which has the lock, the rings, their payload and everything else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Never

import numpy as np
from numpy.typing import NDArray

from recollect.base.arguments import many, whole
from recollect.base.arrays import Keys
from recollect.base.clock import Clock, SystemClock
from recollect.base.readable import size
from recollect.data.batch import Batch
from recollect.data.schema import Column, Schema
from recollect.kernels import steps_layout as sl
from recollect.replay.batches import Batched, BufferDraw, buffer_draw
from recollect.replay.buffer_files import BufferFiles
from recollect.replay.change_verbs import InsertSteps, WritePriorities, clear
from recollect.replay.core import ReplayCore
from recollect.replay.hindsight import Hindsight, Relabelled
from recollect.replay.incoming import refuse_groups, refuse_positional
from recollect.replay.options import checked_limiter, checked_options
from recollect.replay.sample_verbs import SampleEpisodes, SampleSequences, SampleTransitions
from recollect.replay.sequences import EpisodeTable
from recollect.replay.start_draws import FIELDS
from recollect.rules.limiters import Limiter, MinSize
from recollect.rules.query import Query
from recollect.rules.selectors import Selector
from recollect.table.runner import PlainVerb

WhereLike = Query | Mapping[str, Any] | None


class ReplayBuffer(Batched, BufferFiles):
    """Steps of environments, a ring for each; transitions, sequences and episodes are drawn.

    A row holds `obs`, the `action` taken there and what it led to: `reward`, `terminated`,
    `truncated`. Rows are stored once: the observation after a step is read from the next row, and
    the frames of a stack are stored singly. `final_obs` keeps the observation after an episode's
    last step.

    >>> import recollect as rc
    >>> buffer = rc.ReplayBuffer(1000, seed=0)
    >>> for t in range(5):
    ...     key = buffer.add(obs=np.float32([t]), action=t % 2, reward=1.0, terminated=t == 4)
    >>> batch = buffer.sample(3)
    >>> batch["next_obs"].shape, sorted(batch.info.steps.tolist())
    ((3, 1), [3, 4, 4])
    >>> buffer.sample_sequences(2, length=4)["obs"].shape
    (2, 4, 1)

    Args:
        capacity: Rows of all environments together; a ring has capacity // num_envs.
        num_envs: How many environments there are, numbered from 0.
        sampler: `rc.Uniform()` over legal starts, or `rc.Prioritized(...)`.
        limiter: Whether an insert or a sample may go ahead now, over counts of steps.
        seed: Makes draws repeatable; None for a random one.
        signature: The columns, an `rc.Column` for each name; None lets the first step fix them.
        next_from_row: Columns that a transition also has from the next row, as `next_...`.
        n_step: Over how many steps a transition's reward is added up.
        gamma: How much a reward counts a step later.
        frame_stack: How many frames of the `next_from_row` columns a result shows, oldest first.
        recent: `(steps, share)`: a share of each batch comes from the newest steps.
        reward_at: `"this"`: a row's reward and end are what its action led to; `"next"`: what the
            action of the row before led to, and the row that ends an episode has no action.
        journal: An `rc.Journal`, or its path: what the buffer holds survives a crash.
        clock: Where time comes from, for tests.
    """

    def __init__(
        self,
        capacity: int,
        *,
        num_envs: int = 1,
        sampler: Selector | None = None,
        limiter: Limiter | None = None,
        seed: int | None = None,
        signature: Mapping[str, Any] | None = None,
        next_from_row: Sequence[str] = ("obs",),
        n_step: int = 1,
        gamma: float = 0.99,
        frame_stack: int = 1,
        recent: tuple[int, float] | None = None,
        reward_at: str = "this",
        journal: Any = None,
        clock: Clock | None = None,
    ) -> None:
        refuse_groups("capacity", capacity)
        options = checked_options(
            capacity, num_envs, sampler, next_from_row,
            n_step, gamma, frame_stack, recent, reward_at,
        )  # fmt: skip
        self.capacity, self.num_envs = options.capacity, options.num_envs
        self.next_from_row, self.reward_at = options.next_from_row, options.reward_at
        self.n_step, self.gamma = options.n_step, options.gamma
        self.frame_stack, self.recent = options.frame_stack, options.recent
        seed = None if seed is None else whole("seed", seed, 0)
        limiter = checked_limiter(MinSize(1) if limiter is None else limiter, self.capacity)
        clock = SystemClock() if clock is None else clock
        #: The lock, the rings and all other state of the buffer, and what runs its calls.
        self.core = ReplayCore(options, limiter, seed, clock)
        if signature is not None:
            schema = Schema.from_signature(signature)
            self.core.set_schema(self.core.incoming.checked(schema))
        if journal is not None:
            from recollect.replay.journaled import open_journal

            open_journal(self.core, journal)

    # -- adding -----------------------------------------------------------------------------------
    def add(
        self,
        *positional: Never,
        env_id: int = 0,
        final_obs: Any = None,
        timeout: float | None = None,
        **columns: Any,
    ) -> int:
        """Add one step; returns its key.

        `first`, `terminated` and `truncated` mark the episode. A step after an end begins another
        episode by itself; `first=True` in the middle of one cuts that short, as a truncated episode
        without a final observation.

        Args:
            env_id: Which environment the step is of.
            final_obs: At an episode's end, the observation after it. Without it a terminated step
                is followed by zeros, and steps that need it to bootstrap are not drawn.
            timeout: Seconds to wait for the limiter; None waits, 0 tries once.
            columns: The step's cells, and its marks.

        >>> import recollect as rc
        >>> buffer = rc.ReplayBuffer(10)
        >>> _ = buffer.add(obs=[0.0], reward=1.0)
        >>> _ = buffer.add(obs=[1.0], reward=1.0, truncated=True, final_obs=[2.0])
        >>> buffer.sample(1, where={"step": 1})["next_obs"]
        array([[2.]])
        """
        if positional:
            refuse_positional("add", positional)
        core = self.core
        steps = core.incoming.one(env_id, final_obs, columns)
        return int(core.run(InsertSteps(core, steps, timeout))[0])

    def extend(
        self,
        *positional: Never,
        env_ids: Any = None,
        final_obs: Any = None,
        has_final: Any = None,
        timeout: float | None = None,
        **columns: Any,
    ) -> Keys:
        """Add steps, all or none: one per listed environment, or a stretch of one; returns keys.

        Args:
            env_ids: The environment of each step (one that is named twice takes its steps one after
                the other); or one environment, for a stretch of consecutive steps. None is a step
                of each environment, or a stretch where there is only one.
            final_obs: Observations after the steps that end an episode, one per step; those of
                other steps are not read.
            has_final: Which steps have a `final_obs`; all that end an episode where None.
            timeout: Seconds to wait for the limiter; None waits, 0 tries once.
            columns: Columns `[k, ...]`, and the marks `first`, `terminated`, `truncated`.

        >>> import recollect as rc
        >>> buffer = rc.ReplayBuffer(100, num_envs=2)
        >>> keys = buffer.extend(obs=[[0.0], [5.0]], reward=[1.0, 2.0], terminated=[False, True])
        >>> keys = buffer.extend(env_ids=0, obs=[[1.0], [2.0], [3.0]], reward=[1.0, 1.0, 1.0])
        >>> buffer.episodes()["length"]
        array([4, 1])
        """
        if positional:
            refuse_positional("extend", positional)
        core = self.core
        steps = core.incoming.many(env_ids, final_obs, has_final, columns)
        return core.run(InsertSteps(core, steps, timeout))

    async def add_async(
        self,
        *positional: Never,
        env_id: int = 0,
        final_obs: Any = None,
        timeout: float | None = None,
        **columns: Any,
    ) -> int:
        """The same as `add`, for asyncio."""
        if positional:
            refuse_positional("add_async", positional)
        core = self.core
        steps = core.incoming.one(env_id, final_obs, columns)
        return int((await core.run_async(InsertSteps(core, steps, timeout)))[0])

    async def extend_async(
        self,
        *positional: Never,
        env_ids: Any = None,
        final_obs: Any = None,
        has_final: Any = None,
        timeout: float | None = None,
        **columns: Any,
    ) -> Keys:
        """The same as `extend`, for asyncio."""
        if positional:
            refuse_positional("extend_async", positional)
        core = self.core
        steps = core.incoming.many(env_ids, final_obs, has_final, columns)
        return await core.run_async(InsertSteps(core, steps, timeout))

    # -- sampling ---------------------------------------------------------------------------------
    def sample(
        self, n: int, *, where: WhereLike = None, replace: bool = True, timeout: float | None = None
    ) -> Batch:
        """Draw n transitions: `obs`, `action`, `reward`, `next_obs`, `discount` and other columns.

        `reward` is the return of `n_step` steps, `discount` what the value of `next_obs` counts
        beside it: gamma ** steps, or 0 after a terminated step. `info` has `keys`, `weights`,
        `probability`, `priority`, `env_ids` and `steps`.

        Args:
            n: How many.
            where: Only steps that meet this query, over the fields key, env_id, step, priority,
                terminated and truncated. It scans the fields of all steps, and `recent` has no
                part in it.
            replace: Whether a step may be drawn twice.
            timeout: Seconds to wait until enough is there; None waits, 0 tries once.

        >>> import recollect as rc
        >>> buffer = rc.ReplayBuffer(100, n_step=2, gamma=0.5, seed=0)
        >>> for t in range(4):
        ...     _ = buffer.add(obs=[float(t)], reward=1.0, terminated=t == 3)
        >>> batch = buffer.sample(2, where=rc.field("step") >= 2, replace=False)
        >>> order = batch.info.steps.argsort()
        >>> batch["reward"][order], batch["discount"][order]
        (array([1.5, 1. ]), array([0., 0.]))
        """
        return self.core.run(SampleTransitions(self.core, n, where, replace, timeout))

    async def sample_async(
        self, n: int, *, where: WhereLike = None, replace: bool = True, timeout: float | None = None
    ) -> Batch:
        """The same as `sample`, for asyncio."""
        return await self.core.run_async(SampleTransitions(self.core, n, where, replace, timeout))

    def sample_sequences(
        self,
        n: int,
        length: int,
        *,
        burn_in: int = 0,
        across_episodes: str = "stop",
        stride: int = 1,
        replace: bool = True,
        timeout: float | None = None,
    ) -> Batch:
        """Draw n sequences of `length` steps: columns `[n, length, ...]`, and masks.

        `valid` says which positions are steps, `is_first` where an episode begins, `burn_in` which
        positions only warm a state up, and `bootstrap` after which step there is a real `next_obs`
        and the episode goes on. A sequence may begin in the middle of an episode, or where its head
        is cut: `is_first` is then False at position 0, and the learner begins with a state of its
        own there.

        Args:
            n: How many.
            length: Positions of a sequence, the burn-in included.
            burn_in: How many positions come first to warm up.
            across_episodes: At an episode's end: `"stop"`, the whole sequence is in one episode;
                `"pad"`, zeros follow, and at least one step after the burn-in is there;
                `"reset"`, the next episode follows.
            stride: The distance between rows. `reward`, `next_obs` and marks are those of each row.
            replace: Whether a start may be drawn twice.
            timeout: Seconds to wait until enough is there, infinity for ever. None waits for the
                limiter, and raises at once where no sequence of this length is there.

        >>> import recollect as rc
        >>> buffer = rc.ReplayBuffer(100, seed=0)
        >>> for t in range(6):
        ...     _ = buffer.add(obs=[float(t)], reward=1.0, terminated=t == 2)
        >>> buffer.sample_sequences(1, 5, across_episodes="reset")["is_first"]
        array([[False, False,  True, False, False]])
        """
        core, across = self.core, across_episodes
        verb = SampleSequences(core, n, length, burn_in, across, stride, replace, timeout)
        return core.run(verb)

    async def sample_sequences_async(
        self,
        n: int,
        length: int,
        *,
        burn_in: int = 0,
        across_episodes: str = "stop",
        stride: int = 1,
        replace: bool = True,
        timeout: float | None = None,
    ) -> Batch:
        """The same as `sample_sequences`, for asyncio."""
        core, across = self.core, across_episodes
        verb = SampleSequences(core, n, length, burn_in, across, stride, replace, timeout)
        return await core.run_async(verb)

    def sample_episodes(
        self, n: int, *, replace: bool = True, timeout: float | None = None
    ) -> Batch:
        """Draw n whole episodes, each complete one with the same probability.

        Rows follow each other; episode i has rows `info.row_offsets[i]` to `[i + 1]`. Episodes that
        are not over, or whose head is cut, are not drawn. Where there is none, it raises at once;
        with a timeout it waits so long for one.

        >>> import recollect as rc
        >>> buffer = rc.ReplayBuffer(100, seed=0)
        >>> for t in range(6):
        ...     _ = buffer.add(obs=[float(t)], reward=1.0, terminated=t in (1, 4))
        >>> batch = buffer.sample_episodes(2, replace=False)
        >>> sorted(np.diff(batch.info.row_offsets).tolist())
        [2, 3]
        """
        return self.core.run(SampleEpisodes(self.core, n, replace, timeout))

    async def sample_episodes_async(
        self, n: int, *, replace: bool = True, timeout: float | None = None
    ) -> Batch:
        """The same as `sample_episodes`, for asyncio."""
        return await self.core.run_async(SampleEpisodes(self.core, n, replace, timeout))

    # -- priorities -------------------------------------------------------------------------------
    def update_priorities(self, keys: Any, values: Any) -> NDArray[np.bool_]:
        """Set the priorities of steps, or of sequences by the keys of their first steps.

        Keys of steps that went are ignored; returns which were there. A step that is new gets the
        highest priority in the buffer, 1 where there is none.

        >>> import recollect as rc
        >>> buffer = rc.ReplayBuffer(9, sampler=rc.Prioritized(alpha=1.0), seed=0)
        >>> keys = buffer.extend(obs=[[0.0], [1.0]], reward=[0.0, 1.0], terminated=[True, True])
        >>> buffer.update_priorities(keys, [0.5, 1.5])
        array([ True,  True])
        >>> np.bincount(buffer.sample(1000).info.steps)
        array([250, 750])
        """
        return self.core.run(WritePriorities(self.core, keys, values))

    # -- looking ----------------------------------------------------------------------------------
    def episodes(self) -> Batch:
        """A row per episode: env, start, length, return, complete, cut.

        `start` is the first step that is stored; where `cut`, earlier ones were overwritten.

        >>> import recollect as rc
        >>> buffer = rc.ReplayBuffer(4)
        >>> for t in range(6):
        ...     _ = buffer.add(obs=[0.0], reward=float(t), terminated=t == 3)
        >>> buffer.episodes().to_pandas()
           env  start  length  return  complete    cut
        0    0      2       2     5.0      True   True
        1    0      4       2     9.0     False  False
        """
        with self.core.lock:
            self.core.enter()
            table = EpisodeTable(self.core.rings, self.core.lanes)
        return table.read()

    def __len__(self) -> int:
        return len(self.core)

    @property
    def nbytes(self) -> int:
        """Bytes of payload that the stored rows have, final observations included."""
        return self.core.nbytes

    @property
    def allocated_bytes(self) -> int:
        """Bytes of memory that the buffer takes: segments of payload, marks and indexes."""
        with self.core.lock:
            return self.core.allocated

    @property
    def columns(self) -> dict[str, Column]:
        """The columns, by dotted name; empty until the first step or a signature."""
        return self.core.columns

    @property
    def fields(self) -> dict[str, str]:
        """The fields that queries may use, with their types."""
        return dict(FIELDS)

    @property
    def sampler(self) -> Selector:
        """How starts are drawn."""
        return self.core.options.sampler

    @property
    def limiter(self) -> Limiter:
        """Whether an insert or a sample may go ahead now; assigning wakes those who wait."""
        return self.core.limiter

    @limiter.setter
    def limiter(self, limiter: Limiter) -> None:
        limiter = checked_limiter(limiter, self.capacity)
        with self.core.lock:
            self.core.limiter = limiter
            self.core.gate.wake_all()

    def stats(self) -> dict[str, Any]:
        """Numbers about the buffer: sizes, counts since it was made, memory, who waits."""
        core = self.core
        with core.lock:
            core.enter()
            return {
                "size": len(self),
                "capacity": self.capacity,
                "num_envs": self.num_envs,
                "rows": core.rows,
                "nbytes": self.nbytes,
                "inserts": core.counts.inserts,
                "samples": core.counts.samples,
                "removals": core.counts.removals,
                "sample_calls": core.draws.calls,
                "overlong_episodes": int(core.rings.now[sl.CUT]),
                "waiting_to_insert": len(core.gate.departures.waiters),
                "waiting_to_sample": len(core.gate.arrivals.waiters),
            }

    def __repr__(self) -> str:
        closed = "closed, " if self.core.closed else ""
        environments = many(self.num_envs, "environment")
        return (
            f"ReplayBuffer({closed}{len(self)}/{self.capacity} steps of {environments}, "
            f"{size(self.nbytes)}, sampler={self.sampler}, limiter={self.limiter})"
        )

    def _repr_html_(self) -> str:
        from recollect.base.html import closed
        from recollect.replay.replay_html import of_replay

        if self.core.closed:
            return closed("ReplayBuffer")
        stats = self.stats()
        episodes = self.episodes() if stats["size"] else None
        return of_replay(stats, self.sampler, self.limiter, episodes)

    # -- coming and going -------------------------------------------------------------------------
    def clear(self) -> None:
        """Remove every step; keys are not used again.

        The next step of each environment begins an episode, unless it says first=False: then it
        goes on with one whose head is cut.
        """
        self.core.run(PlainVerb("clear", lambda: clear(self.core)))

    def close(self) -> None:
        """End the buffer: every waiter, and every later call, raises `TableClosed`."""
        self.core.close()

    def __enter__(self) -> ReplayBuffer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # -- further faces, each in a module of its own -----------------------------------------------
    def _draw(
        self, n: int, sequences: Mapping[str, Any] | None, where: Any, replace: bool
    ) -> BufferDraw:
        return buffer_draw(self.core, n, sequences, where, replace)

    def relabel(self, *, hindsight: Hindsight, seed: int | None = None) -> Relabelled:
        """A view whose `sample` gives transitions other goals; what is stored stays as it is.

        Args:
            hindsight: Which goals, for what share of transitions, and the reward function.
            seed: Makes the choice of goals repeatable; None goes by the buffer's own.

        >>> import recollect as rc
        >>> buffer = rc.ReplayBuffer(100, seed=0)
        >>> for t in range(4):
        ...     obs = {"achieved_goal": [t], "desired_goal": [9]}
        ...     final = {"achieved_goal": [4], "desired_goal": [9]} if t == 3 else None
        ...     _ = buffer.add(obs=obs, reward=0.0, truncated=t == 3, final_obs=final)
        >>> def reward(achieved, goal):
        ...     return (achieved == goal).all(axis=1)
        >>> view = buffer.relabel(hindsight=rc.Hindsight(strategy="final", share=1, reward=reward))
        >>> batch = view.sample(4, replace=False)
        >>> batch["obs.desired_goal"].ravel(), batch["reward"][batch.info.steps.argsort()]
        (array([4, 4, 4, 4]), array([0., 0., 0., 1.]))
        """
        return Relabelled(self, hindsight, seed)
