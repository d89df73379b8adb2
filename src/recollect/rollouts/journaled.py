"""A rollout buffer as a member of a journal: its table, and what it keeps beside that.

The effects of the table say what happened to groups; train step, accounts and promises are
written with each record, and blobs with the group that brought them. After a replay the dicts of
the buffer are made again from the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recollect.durability.journal.journal import as_journal
from recollect.durability.journal.open_journal import OpenJournal
from recollect.durability.journal.records import BLOBS, Section
from recollect.rollouts.core import RolloutCore
from recollect.rollouts.own_state import own_state, restore_own
from recollect.table.core import TableCore
from recollect.table.journaled import JournaledTable


class JournaledRollouts(JournaledTable):
    """Follows a rollout buffer, and makes it again."""

    def __init__(self, core: RolloutCore) -> None:
        super().__init__(core.table, core)
        self._blobs: dict[str, bytes] = {}  # while replaying
        self._own: dict[str, Any] | None = None

    @property
    def rollouts(self) -> RolloutCore:
        """What the buffer keeps; only while it is there."""
        core = self.owner
        assert isinstance(core, RolloutCore)
        return core

    @property
    def core(self) -> TableCore:
        return self.rollouts.table

    def begin(self) -> None:
        super().begin()
        self.rollouts.recorder = self

    def blobs(self, new: Mapping[str, bytes]) -> None:
        """A group brought blobs that were not there."""
        self.tell(BLOBS, blobs=new, nbytes=sum(map(len, new.values())))

    def state(self) -> dict[str, Any]:
        return {**super().state(), "own": own_state(self.rollouts)}

    def restore_state(self, state: dict[str, Any]) -> None:
        super().restore_state(state)
        self._own = state["own"]

    def replay(self, section: Section) -> None:
        self._blobs.update(section.blobs)
        super().replay(section)

    def recovered(self) -> bool:
        ended = super().recovered()
        core = self.rollouts
        own = self._own or own_state(core)  # without a record, the snapshot's
        blobs = {**core.blobs.all(), **self._blobs}
        self._blobs.clear()
        core.reset()
        restore_own(core, own, blobs)
        return ended


def open_journal(core: RolloutCore, journal: Any) -> None:
    """Open the journal of a buffer, which is just made."""
    core.table.journal = OpenJournal(as_journal(journal), [JournaledRollouts(core)])
