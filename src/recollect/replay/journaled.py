"""A replay buffer as a member of a journal: steps as they came, and how they are added again.

A ring overwrites its oldest rows by itself. So the journal holds only what came: steps with their
marks, priorities, and that everything was cleared. Row numbers, which keys are made of, follow from
that.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recollect.base.arrays import Array, Keys
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
from recollect.replay.change_verbs import clear, insert_steps, write_priorities
from recollect.replay.core import ReplayCore
from recollect.replay.incoming import MARKS, Steps
from recollect.replay.persistence import StepsMember
from recollect.rules.limiters import Counts, MinSize
from recollect.table.waiting import Blocked

ENV = "#env"  # no column has such a name
NAMES = tuple(f"#{name}" for name in (*MARKS, "final"))
UNSAID = -1  # a mark that was not given: the steps before decide it


class JournaledSteps(Journaled):
    """Follows the core of a replay buffer, and fills it again."""

    def __init__(self, core: ReplayCore) -> None:
        super().__init__("steps", core)
        self._lock = core.lock

    @property
    def core(self) -> ReplayCore:
        """The core of the buffer; only while that is there."""
        core = self.owner
        assert isinstance(core, ReplayCore)
        return core

    def saved_as(self) -> Member:
        return StepsMember(self.core)

    def transaction(self) -> threading.RLock:
        return self._lock

    def describe(self) -> dict[str, Any]:
        options = self.core.options
        return {
            **super().describe(),
            "num_envs": options.num_envs,
            "next_from_row": list(options.next_from_row),
            "reward_at": options.reward_at,
        }

    # -- while it runs --------------------------------------------------------------------------
    def begin(self) -> None:
        core = self.core
        core.recorder = self
        schema = core.incoming.schema
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
        counts, draws = self.core.counts, self.core.draws
        return {
            "inserts": counts.inserts,
            "samples": counts.samples,
            "removals": counts.removals,
            "calls": draws.calls,
            "credit": draws.credit,
            "random": draws.random.tolist(),
        }

    def used(self) -> bool:
        return self.core.counts.inserts > 0

    def nbytes(self) -> int:
        return self.core.nbytes

    # -- doing it again ---------------------------------------------------------------------------
    def replay(self, section: Section) -> None:
        for told in section.effects:
            self._again(told, section, told.position > self.covered)
            self.position = max(self.position, told.position)

    def _again(self, told: Told, section: Section, fresh: bool) -> None:
        self.number = max(self.number, told.number)
        if told.kind == STEPS:
            self._add(int(told.per_item[0]), section, fresh)
        elif not fresh:
            return
        elif told.kind == WEIGHED:
            write_priorities(self.core, told.keys, told.values)
        elif told.kind == CLEARED:
            clear(self.core)
        elif told.kind == COLUMNS:
            self._set_columns(told.about)
        elif told.kind == STATE:
            self._restore_state(told.about)

    def _set_columns(self, about: dict[str, Any]) -> None:
        schema = schema_from_json(about["columns"], "column")
        assert schema is not None
        known = self.core.incoming.schema
        if known is None:
            self.core.set_schema(schema)
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
            for name, column in self.core.incoming.final_columns.items():
                finals[name] = np.zeros((count, *column.shape), column.dtype)
                if late is not None:
                    finals[name][marks[3]] = late.columns[name]
        if not fresh:
            return
        core = self.core
        steps = core.incoming.check_steps(columns, finals, marks, envs, count)
        keys = insert_steps(core, steps, MinSize(1))  # what was allowed once is not asked again
        assert not isinstance(keys, Blocked)

    def _restore_state(self, state: dict[str, Any]) -> None:
        core = self.core
        core.counts = Counts(state["inserts"], state["samples"], state["removals"])
        core.draws.resume(state["calls"], state["credit"], state["random"])

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


def open_journal(core: ReplayCore, journal: Any) -> None:
    """Open the journal of a buffer, which is just made."""
    core.journal = OpenJournal(as_journal(journal), [JournaledSteps(core)])
