"""A replay buffer as a member of a journal: steps as they came, and how they are added again.

A ring overwrites its oldest rows by itself, so only what came is told: steps with their marks,
priorities, and that everything was cleared. Row numbers follow from that, and with them the keys.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from recollect.data.schema import Schema
from recollect.durability.format import schema_from_json, schema_to_json
from recollect.durability.journal.journal import as_journal
from recollect.durability.journal.journaled import Journaled
from recollect.durability.journal.open_journal import OpenJournal
from recollect.durability.journal.payload import Copied
from recollect.durability.journal.records import (
    CLEARED,
    COLUMNS,
    MARK,
    STATE,
    STEPS,
    WEIGHED,
    Section,
    Told,
)
from recollect.durability.snapshot.members import Member
from recollect.errors import JournalError
from recollect.replay.incoming import MARKS, Steps
from recollect.rules.limiters import Counts, MinSize
from recollect.table.waiting import Blocked

if TYPE_CHECKING:
    from recollect.replay.buffer import ReplayBuffer

Array = NDArray[Any]
Keys = NDArray[np.uint64]

ENV = "#env"  # no column is called so
NAMES = tuple(f"#{name}" for name in (*MARKS, "final"))
UNSAID = -1  # of a mark that was not given: what it is follows from the steps before


class JournaledSteps(Journaled):
    """Follows a replay buffer, and fills it again."""

    def __init__(self, buffer: ReplayBuffer) -> None:
        super().__init__("steps", buffer)
        self._buffer = weakref.ref(buffer)
        self._lock = buffer._lock

    @property
    def buffer(self) -> ReplayBuffer:
        buffer = self._buffer()
        assert buffer is not None
        return buffer

    def saved_as(self) -> Member:
        return self.buffer._member()

    def transaction(self) -> threading.RLock:
        return self._lock

    def describe(self) -> dict[str, Any]:
        buffer = self.buffer
        return {
            **super().describe(),
            "num_envs": buffer.num_envs,
            "next_from_row": list(buffer.next_from_row),
            "reward_at": buffer.reward_at,
        }

    # -- while it runs --------------------------------------------------------------------------
    def begin(self) -> None:
        store = self.buffer._store
        store.recorder = self
        schema = self.buffer._incoming.schema
        if schema is not None and not self.position:
            self.columns(schema)

    def columns(self, schema: Schema) -> None:
        """The columns are these from now on."""
        self.tell(COLUMNS, about={"columns": schema_to_json(schema)})

    def steps(self, steps: Steps) -> None:
        """Steps were added."""
        rows: dict[str, Array] = {
            name: np.array(column)
            for name, column in zip(steps.schema.columns, steps.kept[0], strict=True)
        }
        size = sum(array.nbytes for array in rows.values())
        rows[ENV] = np.array(np.broadcast_to(steps.envs, steps.count))
        first, terminated, truncated, final = steps.marks
        late = None
        if steps.final_obs is not None:
            if final is None:  # all that end an episode
                nothing = np.zeros(steps.count, np.bool_)
                final = (nothing if terminated is None else terminated) | (
                    nothing if truncated is None else truncated
                )
            late = Copied({name: array[final] for name, array in steps.kept[1].items()})
        else:
            final = None
        for name, mark in zip(NAMES, (first, terminated, truncated, final), strict=True):
            rows[name] = (
                np.full(steps.count, UNSAID, np.int8) if mark is None else (mark.astype(np.int8))
            )
        self.tell(
            STEPS, number=self.number + 1, per_item=np.array([steps.count], np.int32),
            payload=Copied(rows), late=late, nbytes=size + steps.count * 12,
        )  # fmt: skip

    def weighed(self, keys: Keys, values: NDArray[np.float64], found: NDArray[np.bool_]) -> None:
        """Priorities were set."""
        if found.any():
            values = np.broadcast_to(values, keys.size)
            self.tell(WEIGHED, number=self.number + 1, keys=keys[found], values=values[found])

    def cleared(self) -> None:
        """Every step was removed."""
        self.tell(CLEARED, number=self.number + 1)

    def sampled(self) -> None:
        """Counts and the random state have changed."""
        self.tell(MARK)

    def state(self) -> dict[str, Any]:
        store = self.buffer._store
        counts, drawing = store.counts, store.drawing
        return {
            "inserts": counts.inserts,
            "samples": counts.samples,
            "removals": counts.removals,
            "calls": drawing.calls,
            "credit": drawing._credit,
            "random": drawing.random.tolist(),
        }

    def used(self) -> bool:
        return self.buffer._store.counts.inserts > 0

    def nbytes(self) -> int:
        return self.buffer._store.nbytes

    # -- doing it again ---------------------------------------------------------------------------
    def replay(self, section: Section) -> None:
        for told in section.effects:
            self._again(told, section, told.position > self.covered)
            self.position = max(self.position, told.position)

    def _again(self, told: Told, section: Section, fresh: bool) -> None:
        buffer = self.buffer
        self.number = max(self.number, told.number)
        if told.kind == STEPS:
            self._add(int(told.per_item[0]), section, fresh)
        elif not fresh:
            return
        elif told.kind == WEIGHED:
            buffer._store.write_priorities(told.keys, told.values)
        elif told.kind == CLEARED:
            buffer._store.clear()
        elif told.kind == COLUMNS:
            self._set_columns(told.about)
        elif told.kind == STATE:
            self._restore_state(told.about)

    def _set_columns(self, about: dict[str, Any]) -> None:
        schema = schema_from_json(about["columns"], "column")
        assert schema is not None
        known = self.buffer._incoming.schema
        if known is None:
            self.buffer._store.set_schema(schema)
        elif known.columns != schema.columns:
            raise JournalError(
                f"the journal has the columns {', '.join(schema.columns)} and the buffer others; "
                "make it with the signature that it had, or give it a new journal"
            )

    def _add(self, count: int, section: Section, fresh: bool) -> None:
        columns = dict(section.rows.take(count).columns)
        envs: Any = columns.pop(ENV)
        said: list[Any] = [columns.pop(name) for name in NAMES]
        marks = [None if mark[0] == UNSAID else mark.astype(np.bool_) for mark in said]
        finals: dict[str, Any] | None = None
        if marks[3] is not None:
            finals = {}
            late = section.late.take(int(marks[3].sum())) if marks[3].any() else None
            for name, array in self._final_columns().items():
                finals[name] = np.zeros((count, *array.shape), array.dtype)
                if late is not None:
                    finals[name][marks[3]] = late.columns[name]
        if not fresh:
            return
        buffer = self.buffer
        steps = buffer._incoming._steps(columns, finals, marks, envs, count)
        limiter, buffer._store.limiter = buffer._store.limiter, MinSize(1)
        try:
            keys = buffer._store.insert(steps)
            assert not isinstance(keys, Blocked)
        finally:
            buffer._store.limiter = limiter

    def _final_columns(self) -> dict[str, Any]:
        schema = self.buffer._incoming.schema
        assert schema is not None
        names = self.buffer._incoming.next_columns(schema)
        return {name: schema.columns[name] for name in names}

    def _restore_state(self, state: dict[str, Any]) -> None:
        store = self.buffer._store
        store.counts = Counts(state["inserts"], state["samples"], state["removals"])
        store.drawing.calls = state["calls"]
        store.drawing._credit = state["credit"]
        store.drawing.random[:] = np.array(state["random"], np.uint64)

    def recovered(self) -> bool:
        return False

    def after_loss(self) -> None:
        """Keys are row numbers, and go on where the rows do."""

    def leased(self) -> list[int]:
        return []

    def lease_again(self, keys: list[int]) -> None:
        assert not keys

    def progress(self) -> tuple[int, ...]:
        return ()

    def rewound(self, progress: tuple[int, ...]) -> None:
        """Keys are row numbers: they go back with the rows."""


def open_journal(buffer: ReplayBuffer, journal: Any) -> OpenJournal:
    """Open the journal of a buffer, which is just made."""
    return OpenJournal(as_journal(journal), [JournaledSteps(buffer)])
