"""`ReplayBuffer`: steps of environments, a ring for each, and the draws from them.

The buffer checks what it is given, decides with its limiter whether a call may go ahead, and
keeps rings, payload and indexes in step under one lock. What was chosen is copied outside.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from os import PathLike
from typing import TYPE_CHECKING, Any, Never, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from recollect.base.arguments import flag, keys_of, many, time_span, whole
from recollect.base.clock import Clock, SystemClock
from recollect.base.readable import size
from recollect.data.batch import Batch
from recollect.data.schema import Column, Schema
from recollect.errors import InvalidValue, TableClosed, shown
from recollect.kernels import steps_layout as sl
from recollect.replay import file_reader, file_writer
from recollect.replay.batches import Batched, BufferDraw, draw_of
from recollect.replay.choice import FIELDS, Drawing
from recollect.replay.episodes import Rings
from recollect.replay.hindsight import Hindsight, Relabelled
from recollect.replay.incoming import Incoming, Steps, refuse_groups, refuse_positional
from recollect.replay.options import (
    checked_gamma,
    checked_limiter,
    checked_next,
    checked_priorities,
    checked_recent,
    checked_sampler,
)
from recollect.replay.returns import ChosenTransitions
from recollect.replay.sequences import ChosenRuns, EpisodeTable, sequence_kind
from recollect.replay.step_store import StepStore
from recollect.rules.limiters import Limiter, MinSize
from recollect.rules.query import Query, as_query, bind
from recollect.rules.selectors import Selector, Uniform
from recollect.table.waiting import Blocked, Gate

if TYPE_CHECKING:
    from recollect.durability.journal.open_journal import OpenJournal
    from recollect.durability.snapshot.loader import Loaded
    from recollect.durability.snapshot.saver import SavedSnapshot
    from recollect.replay.persistence import StepsMember

Keys = NDArray[np.uint64]
Ints = NDArray[np.int64]
WhereLike = Query | Mapping[str, Any] | None
Result = TypeVar("Result")

LARGEST_CAPACITY = (1 << 31) - 1  # slots are numbered in 32 bits
MOST_ENVIRONMENTS = 1 << 19


class ReplayBuffer(Batched):
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
        self.capacity = whole("capacity", capacity, 1, LARGEST_CAPACITY)
        self.num_envs = whole("num_envs", num_envs, 1, MOST_ENVIRONMENTS)
        self.n_step = whole("n_step", n_step, 1, LARGEST_CAPACITY)
        self.frame_stack = whole("frame_stack", frame_stack, 1, 1 << 20)
        self.gamma = checked_gamma(gamma)
        self.next_from_row = checked_next(next_from_row)
        if self.capacity < self.num_envs:
            raise InvalidValue(
                f"capacity: {self.num_envs} environments need a row each, got {self.capacity}"
            )
        if reward_at not in ("this", "next"):
            raise InvalidValue(f"reward_at: expected 'this' or 'next', got {shown(reward_at)}")
        self.reward_at = reward_at
        seed = None if seed is None else whole("seed", seed, 0)
        self._sampler = checked_sampler(Uniform() if sampler is None else sampler)
        limiter = checked_limiter(MinSize(1) if limiter is None else limiter, self.capacity)
        ring = self.capacity // self.num_envs
        self.recent = checked_recent(recent, self._sampler, self.num_envs)
        window, share = 0, 0.0
        if self.recent is not None:
            window = min(ring, self.recent[0] // self.num_envs)
            share = self.recent[1]
        self._incoming = Incoming(self.num_envs, self.next_from_row, reward_at == "next")
        schema = None
        if signature is not None:
            schema = self._incoming.checked(Schema.from_signature(signature))
        self._rings = Rings(
            self.num_envs, ring, reward_next=reward_at == "next", stack=self.frame_stack
        )
        self._store = StepStore(
            self._rings,
            Drawing(self._rings, self._sampler, seed, window, share),
            self._incoming, limiter, self.n_step, self.gamma,
        )  # fmt: skip
        self._lock = threading.RLock()
        self._saving = threading.Lock()  # held by whoever writes a snapshot
        self._ledger: Any = None  # what of this buffer is in which files
        self._closed = False
        self._clock: Clock = SystemClock() if clock is None else clock
        self._gate = Gate(
            "this buffer", self._clock, self._transaction, self._enter, lambda: math.inf
        )
        if schema is not None:
            self._store.set_schema(schema)
        self._journal: OpenJournal | None = None
        if journal is not None:
            from recollect.replay.journaled import open_journal

            self._journal = open_journal(self, journal)

    def _transaction(self) -> AbstractContextManager[Any]:
        return self._lock

    def _enter(self) -> None:
        """What every call does first under the lock."""
        if self._closed:
            raise TableClosed("this replay buffer was closed; make a new one to go on")

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
        steps = self._incoming.one(env_id, final_obs, columns)
        return int(self._insert(steps, timeout)[0])

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
        return self._insert(self._incoming.many(env_ids, final_obs, has_final, columns), timeout)

    def _insert(self, steps: Steps, timeout: float | None) -> Keys:
        if timeout is not None:
            timeout = time_span("timeout", timeout)
        with self._lock:
            self._enter()
            result = self._try_insert(steps)
        if isinstance(result, Blocked):
            result = self._gate.wait(
                lambda: self._try_insert(steps), result, self._gate.departures, timeout, "insert"
            )
        if self._journal is not None:
            self._settle()
        return result

    def _settle(self) -> None:
        """Without the lock: wait until what was told to the journal is as safe as promised."""
        recorder = self._store.recorder
        if recorder is not None:
            recorder.settle(recorder.number)

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
        steps = self._incoming.one(env_id, final_obs, columns)
        return int((await self._insert_async(steps, timeout))[0])

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
        steps = self._incoming.many(env_ids, final_obs, has_final, columns)
        return await self._insert_async(steps, timeout)

    async def _insert_async(self, steps: Steps, timeout: float | None) -> Keys:
        if timeout is not None:
            timeout = time_span("timeout", timeout)
        with self._lock:
            self._enter()
            keys = self._try_insert(steps)
        if isinstance(keys, Blocked):
            keys = await self._gate.wait_async(
                lambda: self._try_insert(steps), keys, self._gate.departures, timeout, "insert"
            )
        recorder = self._store.recorder
        if recorder is not None:
            await recorder.settle_async(recorder.number)
        return keys

    def _try_insert(self, steps: Steps) -> Keys | Blocked:
        removals = self._store.counts.removals
        result = self._store.insert(steps)
        if not isinstance(result, Blocked):
            self._gate.arrivals.changed(result.size)
            gone = self._store.counts.removals - removals
            if gone:
                self._gate.departures.changed(gone)
        return result

    # -- sampling ---------------------------------------------------------------------------------
    def sample(
        self,
        n: int,
        *,
        where: WhereLike = None,
        replace: bool = True,
        timeout: float | None = None,
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
        attempt = self._sampling(n, where, replace)
        return self._run(attempt, False, timeout, f"sample({n})").read()

    async def sample_async(
        self,
        n: int,
        *,
        where: WhereLike = None,
        replace: bool = True,
        timeout: float | None = None,
    ) -> Batch:
        """The same as `sample`, for asyncio."""
        attempt = self._sampling(n, where, replace)
        return (await self._run_async(attempt, False, timeout, f"sample({n})")).read()

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
        attempt = self._sampling_sequences(n, length, burn_in, across_episodes, stride, replace)
        chosen = self._run(attempt, True, timeout, f"sample_sequences({n}, {length})")
        return chosen.sequences(length, burn_in)

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
        attempt = self._sampling_sequences(n, length, burn_in, across_episodes, stride, replace)
        what = f"sample_sequences({n}, {length})"
        chosen = await self._run_async(attempt, True, timeout, what)
        return chosen.sequences(length, burn_in)

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
        attempt = self._sampling_episodes(n, replace)
        chosen, bounds = self._run(attempt, True, timeout, f"sample_episodes({n})")
        return chosen.episodes(bounds)

    async def sample_episodes_async(
        self, n: int, *, replace: bool = True, timeout: float | None = None
    ) -> Batch:
        """The same as `sample_episodes`, for asyncio."""
        attempt = self._sampling_episodes(n, replace)
        chosen, bounds = await self._run_async(attempt, True, timeout, f"sample_episodes({n})")
        return chosen.episodes(bounds)

    # -- what the calls above try under the lock --------------------------------------------------
    def _sampling(
        self, n: Any, where: Any, replace: Any
    ) -> Callable[[bool], ChosenTransitions | Blocked]:
        n, replace = whole("n", n, 1), flag("replace", replace)
        query = None if where is None else as_query(where)
        bound = None if query is None else bind(query, FIELDS)
        return lambda strict: self._store.choose_transitions(n, replace, bound)

    def _sampling_sequences(
        self, n: Any, length: Any, burn_in: Any, across: Any, stride: Any, replace: Any
    ) -> Callable[[bool], ChosenRuns | Blocked]:
        n, replace = whole("n", n, 1), flag("replace", replace)
        kind, size = sequence_kind(length, burn_in, across, stride, self._rings.ring)
        return lambda strict: self._store.choose_sequences(kind, n, size, stride, replace, strict)

    def _sampling_episodes(
        self, n: Any, replace: Any
    ) -> Callable[[bool], tuple[ChosenRuns, Ints] | Blocked]:
        n, replace = whole("n", n, 1), flag("replace", replace)
        return lambda strict: self._store.choose_episodes(n, replace, strict)

    def _choose(
        self, attempt: Callable[[bool], Result | Blocked], strict: bool
    ) -> Result | Blocked:
        samples = self._store.counts.samples
        result = attempt(strict)
        if not isinstance(result, Blocked):
            self._gate.departures.changed(self._store.counts.samples - samples)
            if self._store.recorder is not None:
                self._store.recorder.sampled()
        return result

    def _run(
        self,
        attempt: Callable[[bool], Result | Blocked],
        strict: bool,
        timeout: float | None,
        what: str,
    ) -> Result:
        """Let an attempt go, or wait; a strict one without a timeout raises at once instead."""
        if timeout is not None:
            timeout = time_span("timeout", timeout)
        strict = strict and timeout is None
        with self._lock:
            self._enter()
            result = self._choose(attempt, strict)
        if isinstance(result, Blocked):
            result = self._gate.wait(
                lambda: self._choose(attempt, strict), result, self._gate.arrivals, timeout, what
            )
        return result

    async def _run_async(
        self,
        attempt: Callable[[bool], Result | Blocked],
        strict: bool,
        timeout: float | None,
        what: str,
    ) -> Result:
        if timeout is not None:
            timeout = time_span("timeout", timeout)
        strict = strict and timeout is None
        with self._lock:
            self._enter()
            result = self._choose(attempt, strict)
        if isinstance(result, Blocked):
            result = await self._gate.wait_async(
                lambda: self._choose(attempt, strict), result, self._gate.arrivals, timeout, what
            )
        return result

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
        keys = keys_of(keys)
        values = checked_priorities(values, keys.size, self._sampler)
        with self._lock:
            self._enter()
            found = self._store.write_priorities(keys, values)
        if self._journal is not None:
            self._settle()
        return found

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
        with self._lock:
            self._enter()
            table = EpisodeTable(self._rings, self._store.lanes)
        return table.read()

    def __len__(self) -> int:
        return len(self._store)

    @property
    def nbytes(self) -> int:
        """Bytes of payload that the stored rows have, final observations included."""
        return self._store.nbytes

    @property
    def allocated_bytes(self) -> int:
        """Bytes of memory that the buffer takes: segments of payload, marks and indexes."""
        with self._lock:
            return self._store.allocated

    @property
    def columns(self) -> dict[str, Column]:
        """The columns, by dotted name; empty until the first step or a signature."""
        schema = self._incoming.schema
        return {} if schema is None else dict(schema.columns)

    @property
    def fields(self) -> dict[str, str]:
        """The fields that queries may use, with their types."""
        return dict(FIELDS)

    @property
    def sampler(self) -> Selector:
        """How starts are drawn."""
        return self._sampler

    @property
    def limiter(self) -> Limiter:
        """Whether an insert or a sample may go ahead now; assigning wakes those who wait."""
        return self._store.limiter

    @limiter.setter
    def limiter(self, limiter: Limiter) -> None:
        limiter = checked_limiter(limiter, self.capacity)
        with self._lock:
            self._store.limiter = limiter
            self._gate.wake_all()

    def stats(self) -> dict[str, Any]:
        """Numbers about the buffer: sizes, counts since it was made, memory, who waits."""
        with self._lock:
            self._enter()
            counts = self._store.counts
            return {
                "size": len(self),
                "capacity": self.capacity,
                "num_envs": self.num_envs,
                "rows": self._store.rows,
                "nbytes": self.nbytes,
                "inserts": counts.inserts,
                "samples": counts.samples,
                "removals": counts.removals,
                "sample_calls": self._store.drawing.calls,
                "overlong_episodes": int(self._rings.now[sl.CUT]),
                "waiting_to_insert": len(self._gate.departures.waiters),
                "waiting_to_sample": len(self._gate.arrivals.waiters),
            }

    def __repr__(self) -> str:
        environments = many(self.num_envs, "environment")
        return (
            f"ReplayBuffer({'closed, ' if self._closed else ''}{len(self)}/{self.capacity} steps "
            f"of {environments}, {size(self.nbytes)}, sampler={self._sampler}, "
            f"limiter={self.limiter})"
        )

    def _repr_html_(self) -> str:
        from recollect.base.html import closed
        from recollect.replay.replay_html import of_replay

        if self._closed:
            return closed("ReplayBuffer")
        stats = self.stats()
        episodes = self.episodes() if stats["size"] else None
        return of_replay(stats, self.sampler, self.limiter, episodes)

    def _legal_starts(
        self,
        length: int | None = None,
        *,
        burn_in: int = 0,
        stride: int = 1,
        across_episodes: str = "stop",
        recent: bool = False,
    ) -> Keys:
        """The keys of all legal starts of transitions, or of sequences; sorted, for tests."""
        kind = self._store.transitions
        if length is not None:
            kind, _ = sequence_kind(length, burn_in, across_episodes, stride, self._rings.ring)
        with self._lock:
            return self._store.starts(kind, recent)

    @property
    def _visits(self) -> int:
        """How many rows and tree nodes were looked at so far: what tests count for seconds."""
        return int(self._rings.now[sl.VISITS])

    # -- coming and going -------------------------------------------------------------------------
    def clear(self) -> None:
        """Remove every step; keys are not used again.

        The next step of each environment begins an episode, unless it says first=False: then it
        goes on with one whose head is cut.
        """
        with self._lock:
            self._enter()
            self._gate.departures.changed(self._store.clear())
        if self._journal is not None:
            self._settle()

    # -- saving -----------------------------------------------------------------------------------
    def save(
        self,
        path: str | PathLike[str],
        *,
        step: int | None = None,
        files: Mapping[str, Any] | None = None,
        keep_last: int | None = None,
        compression: str | None = None,
        progress: bool | None = None,
    ) -> SavedSnapshot:
        """Write a snapshot to a folder, all of it or nothing; only what changed since the last one.

        Batches that `batches(prefetch=...)` has chosen ahead are not part of it: `drain()` hands
        them out first. Arguments are those of `Store.save`.

        >>> import tempfile
        >>> import recollect as rc
        >>> buffer = rc.ReplayBuffer(100, seed=0)
        >>> _ = buffer.extend(obs=np.zeros((9, 2)), reward=np.arange(9.0))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = buffer.save(f"{folder}/step-1")
        ...     resumed = rc.ReplayBuffer(100)
        ...     _ = resumed.load(f"{folder}/step-1")
        >>> (resumed.sample(4)["reward"] == buffer.sample(4)["reward"]).all()
        np.True_
        """
        from recollect.durability.snapshot.saver import save_snapshot

        return save_snapshot(
            path, {"steps": self._member()}, kind="replay", step=step, others=files,
            keep_last=keep_last, compression=compression, progress=progress,
        )  # fmt: skip

    def load(
        self,
        path: str | PathLike[str],
        *,
        step: int | None = None,
        progress: bool | None = None,
    ) -> Loaded:
        """Put a snapshot into this buffer, which must be empty: keys, episodes, counters, draws.

        A smaller buffer takes the newest steps of each environment. Arguments are those of
        `Store.load`.
        """
        from recollect.durability.snapshot.loader import load_snapshot

        return load_snapshot(path, {"steps": self._member()}, step=step, progress=progress)

    def _member(self) -> StepsMember:
        """What snapshots ask for."""
        from recollect.replay.persistence import StepsMember

        return StepsMember(self)

    def close(self) -> None:
        """End the buffer: every waiter, and every later call, raises `TableClosed`."""
        with self._lock:
            self._closed = True
            self._gate.wake_all()
        if self._journal is not None:
            self._journal.close()

    def __enter__(self) -> ReplayBuffer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # -- further faces, each in a module of its own -----------------------------------------------
    def _draw(
        self, n: int, sequences: Mapping[str, Any] | None, where: Any, replace: bool
    ) -> BufferDraw:
        return draw_of(self, n, sequences, where, replace)

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

    def to_arrow(
        self, path: Any = None, *, compression: str | None = "zstd", progress: bool | None = None
    ) -> Any:
        """Write every step to an Arrow file (Feather 2), or return a `pyarrow.Table` without path.

        A row per step, by environment: the columns, `env_id`, `step`, and the marks `first`,
        `terminated`, `truncated`. An episode's last observation is a row of its own, marked
        `final`: only its `next_from_row` columns count. The steps are those of the moment of the
        call; inserts may go on. Priorities, the limiter's counts and the random state stay behind.

        Args:
            path: The file, which is replaced when all is written; None for a table in memory.
            compression: `"zstd"`, `"lz4"` or None.
            progress: Whether to show a progress bar; None does so on a terminal.

        >>> import recollect as rc
        >>> buffer = rc.ReplayBuffer(100)
        >>> _ = buffer.extend(obs=[[0.0], [1.0]], reward=[1.0, 2.0], terminated=[False, True])
        >>> buffer.to_arrow().select(["step", "reward", "terminated"]).to_pylist()[1]
        {'step': 1, 'reward': 2.0, 'terminated': True}
        """
        return file_writer.to_arrow(self, path, compression, progress)

    def to_parquet(
        self, path: Any, *, compression: str | None = "zstd", progress: bool | None = None
    ) -> None:
        """Write every step to a Parquet file; rows are those of `to_arrow`."""
        file_writer.to_parquet(self, path, compression, progress)

    @classmethod
    def from_arrow(cls, source: Any, *, progress: bool | None = None, **options: Any) -> Self:
        """Make a buffer of an Arrow file or stream (Feather 2), or of a `pyarrow.Table`.

        A file of `to_arrow` gives the same steps and episodes with the same keys. Other files need
        the columns of steps, of one shape each, in order of time; `env_id` says which environment a
        row is of (0 without), `first`, `terminated` and `truncated` mark episodes (without `first`
        one begins after each end), and rows marked `final`, or columns `next_obs`, give the
        observation after an episode's last step. `step` must go up by one within an episode.

        Args:
            source: A path, a table, or a reader of record batches.
            progress: Whether to show a progress bar; None does so on a terminal.
            options: Those of `ReplayBuffer`. What the file knows (capacity, num_envs,
                next_from_row, reward_at) need not be said; else all rows have room.

        >>> import pyarrow as pa
        >>> import recollect as rc
        >>> table = pa.table({"obs": [0.0, 1.0, 2.0], "reward": [1.0, 1.0, 1.0]})
        >>> rc.ReplayBuffer.from_arrow(table, seed=0).episodes()["length"]
        array([3])
        """
        return file_reader.from_arrow(cls, source, progress, options)

    @classmethod
    def from_parquet(cls, path: Any, *, progress: bool | None = None, **options: Any) -> Self:
        """Make a buffer of a Parquet file; rows are as `from_arrow` wants them."""
        return file_reader.from_parquet(cls, path, progress, options)
