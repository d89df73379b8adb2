"""`ReplayCore`: the state of a replay buffer under one lock, and the runner of its verbs.

`ReplayBuffer` is its face: it checks what it is given, makes verbs and hands them to the core.
Verbs, journals, snapshots, files and views take a core as well. One lock guards everything here;
payload is copied outside.
"""

from __future__ import annotations

import math
import threading
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from recollect.base.arrays import Keys
from recollect.base.clock import Clock
from recollect.data.schema import Column, Schema
from recollect.errors import TableClosed
from recollect.kernels import steps_layout as sl
from recollect.replay.episodes import Rings
from recollect.replay.incoming import Incoming, Steps
from recollect.replay.options import ReplayOptions
from recollect.replay.returns import Transitions
from recollect.replay.sequences import StepRuns
from recollect.replay.start_draws import StartDraws
from recollect.replay.starts import StartKind
from recollect.rules.limiters import Counts, Limiter
from recollect.storage.buffers import BufferPool
from recollect.storage.lanes import Lanes
from recollect.table.runner import Runner, Verb
from recollect.table.waiting import Gate

if TYPE_CHECKING:
    from recollect.durability.journal.open_journal import OpenJournal
    from recollect.durability.snapshot.ledger import Ledger


OUTPUTS = 32 << 20  # bytes of large outputs that are kept for reuse


class StepRecorder(Protocol):
    """What is told of every change while the lock is held: the journal of a buffer."""

    number: int  # of the last change that it was told of

    def columns(self, schema: Schema) -> None:
        """These are the columns from now on."""

    def steps(self, steps: Steps) -> None:
        """Steps were added."""

    def weighed(self, keys: Keys, values: NDArray[np.float64], found: NDArray[np.bool_]) -> None:
        """Priorities were set."""

    def cleared(self) -> None:
        """Every step was removed."""

    def sampled(self) -> None:
        """Counts and the random state have changed."""

    def settle(self, number: int) -> None:
        """Without the lock: return when changes up to a number are as safe as promised."""

    async def settle_async(self, number: int) -> None:
        """The same for a coroutine."""


class ReplayCore(Runner):
    """Rings, their payload and the indexes of starts, kept in step; and who waits for them.

    Its methods expect the lock, `run` and `close` excepted.
    """

    transitions: Transitions  # how transitions and runs are read: known with the columns
    runs: StepRuns

    def __init__(
        self, options: ReplayOptions, limiter: Limiter, seed: int | None, clock: Clock
    ) -> None:
        self.options = options
        self.limiter = limiter
        self.incoming = Incoming(options.num_envs, options.next_from_row, options.reward_next)
        self.rings = Rings(
            options.num_envs,
            options.ring,
            reward_next=options.reward_next,
            stack=options.frame_stack,
        )
        self.draws = StartDraws(self.rings, options.sampler, seed, *options.window)
        self.transition_kind = StartKind(sl.TRANSITION, options.n_step)
        self.counts = Counts()
        self.lanes: Lanes | None = None  # the payload, once the columns are known
        self.outputs = BufferPool(OUTPUTS)
        self.lock = threading.RLock()
        self.closed = False
        self.gate = Gate("this buffer", clock, self.transaction, self.enter, lambda: math.inf)
        self.recorder: StepRecorder | None = None
        self.journal: OpenJournal | None = None
        self.saving = threading.Lock()  # held by whoever writes a snapshot
        self.ledger: Ledger | None = None  # what of this buffer is in which files

    # -- the lock ---------------------------------------------------------------------------------
    def transaction(self) -> AbstractContextManager[Any]:
        return self.lock

    def enter(self) -> None:
        if self.closed:
            raise TableClosed("this replay buffer was closed; make a new one to go on")

    def close(self) -> None:
        """End everything: waiters and later calls raise, the journal is written to its end."""
        with self.lock:
            self.closed = True
            self.gate.wake_all()
        if self.journal is not None:
            self.journal.close()

    # -- columns and rows -------------------------------------------------------------------------
    def set_schema(self, schema: Schema) -> None:
        """These are the columns from now on; the journal is told."""
        self.incoming.fix(schema)
        if self.recorder is not None:
            self.recorder.columns(schema)
        rings, options = self.rings, self.options
        self.lanes = lanes = Lanes(rings.block, schema, rings.kernels)
        for env in np.flatnonzero(rings.newest).tolist():  # rings that begin later
            lanes.begin_at(env, int(rings.newest[env]))
        names = self.incoming.next_columns(schema)
        self.transitions = Transitions(rings, lanes, names, options.n_step, options.gamma)
        self.runs = StepRuns(rings, lanes, names)

    def begin_at(self, env: int, row: int) -> None:
        """Let a ring that never had a row begin with this number."""
        self.rings.begin_at(env, row)
        if self.lanes is not None:
            self.lanes.begin_at(env, row)

    def reset(self) -> None:
        """Back to what was just made; the columns and the random state stay."""
        self.rings.reset()
        self.lanes = None
        self.counts = Counts()
        self.draws.starts.reset()
        self.draws.resume(0, 0.0, None)
        if self.incoming.schema is not None:
            self.set_schema(self.incoming.schema)
        self.ledger = None
        self.gate.wake_all()

    @property
    def columns(self) -> dict[str, Column]:
        """The columns, by dotted name; empty until they are known."""
        schema = self.incoming.schema
        return {} if schema is None else dict(schema.columns)

    def __len__(self) -> int:
        return int(self.rings.now[sl.STEPS])

    @property
    def rows(self) -> int:
        """Steps and final observations."""
        return int(self.rings.now[sl.ROWS])

    @property
    def nbytes(self) -> int:
        """Bytes of payload that the stored rows have."""
        return 0 if self.lanes is None else self.rows * self.lanes.row_bytes

    @property
    def allocated(self) -> int:
        """Bytes of memory that payload, marks and indexes take."""
        payload = 0 if self.lanes is None else self.lanes.allocated
        return payload + self.rings.nbytes + self.draws.starts.nbytes

    # -- running verbs ----------------------------------------------------------------------------
    def _try(self, verb: Verb[Any]) -> tuple[Any, int]:
        with self.lock:  # as `Runner` does it, in fewer calls
            if self.closed:
                self.enter()
            return self._attempt(verb)

    def _attempt(self, verb: Verb[Any]) -> tuple[Any, int]:
        tried = verb.attempt()
        return tried, 0 if self.recorder is None else self.recorder.number

    def _tell(self) -> None:
        """Only the recorder follows, and it is told at the moment of each change."""

    def _settle(self, number: int, changed: bool) -> None:
        if changed and self.recorder is not None:
            self.recorder.settle(number)

    async def _settle_async(self, number: int, changed: bool) -> None:
        if changed and self.recorder is not None:
            await self.recorder.settle_async(number)


class ReplayFace(Protocol):
    """What stands on a core: a replay buffer, whatever else that can do."""

    @property
    def core(self) -> ReplayCore: ...
