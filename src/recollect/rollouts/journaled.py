"""A rollout buffer as a member of a journal: its table, and what it keeps beside that.

The effects of the table say what happened to groups; train step, accounts and promises are
written with each record, and blobs with the group that brought them. After a replay the dicts of
the buffer are made again from the table.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from recollect.durability.journal.journal import as_journal
from recollect.durability.journal.open_journal import OpenJournal
from recollect.durability.journal.records import BLOBS, Section
from recollect.rollouts import persistence
from recollect.table.journaled import JournaledTable

if TYPE_CHECKING:
    from recollect.rollouts.core import Core


class JournaledRollouts(JournaledTable):
    """Follows a rollout buffer, and makes it again."""

    def __init__(self, core: Core) -> None:
        super().__init__(core.table, core)
        self._rollouts = weakref.ref(core)
        self._blobs: dict[str, bytes] = {}  # while replaying
        self._own: dict[str, Any] | None = None

    @property
    def rollouts(self) -> Core:
        """What the buffer keeps; only while it is there."""
        core = self._rollouts()
        assert core is not None
        return core

    def begin(self) -> None:
        super().begin()
        self.rollouts.recorder = self

    def blobs(self, new: Mapping[str, bytes]) -> None:
        """A group brought blobs that were not there."""
        self.tell(BLOBS, blobs=new, nbytes=sum(map(len, new.values())))

    def state(self) -> dict[str, Any]:
        return {**super().state(), "own": persistence.own_state(self.rollouts)}

    def restore_state(self, state: dict[str, Any]) -> None:
        super().restore_state(state)
        self._own = state["own"]

    def replay(self, section: Section) -> None:
        self._blobs.update(section.blobs)
        super().replay(section)

    def recovered(self) -> bool:
        ended = super().recovered()
        core = self.rollouts
        own = self._own or persistence.own_state(core)  # no record: that of the snapshot
        blobs = {**core.blobs.all(), **self._blobs}
        self._blobs.clear()
        persistence.forget(core)
        persistence.restore_own(core, own, blobs)
        return ended


def open_journal(core: Core, journal: Any) -> None:
    """Open the journal of a buffer, which is just made."""
    core.table.journal = OpenJournal(as_journal(journal), [JournaledRollouts(core)])
