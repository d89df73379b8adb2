"""`RolloutCore`: what a rollout buffer keeps beside its table, and how groups leave it.

Groups are the items of one table. Beside it there are only small things: which key a group id
has, promised room, blobs, accounts, who lacks a cell, and who wants to know of events. The
table's lock guards all of it.

Verbs take a core: `puts.py`, `takes.py`, `claims.py`, `annotations.py`, `space.py`, `expiry.py`,
`rewind.py` and `train_groups.py`. `construction.py` makes a core, and `buffer.py` and
`blocking.py` are the two faces that run the verbs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from recollect.base.arrays import Ints, Keys
from recollect.base.leases import Lease
from recollect.data.schema import Column, Rows
from recollect.rollouts.accounts import Accounts
from recollect.rollouts.blobs import Blobs
from recollect.rollouts.cell_queues import CellQueues
from recollect.rollouts.entries import GroupEntry, RolloutIndex, tally
from recollect.rollouts.events import KIND_OF, Event, Events, PastGroups, events_of
from recollect.rollouts.group import Group
from recollect.rollouts.group_columns import ROWS
from recollect.rollouts.groups import Groups, finished
from recollect.rollouts.history import History
from recollect.rollouts.rollout import Status
from recollect.rollouts.short_put import ShortPut
from recollect.rollouts.staleness import FIRST_STEP, StalenessRules
from recollect.rules.query import FieldType, as_query, field
from recollect.storage.base import Chosen, Storage, Where
from recollect.storage.memory.chosen import MemoryChosen
from recollect.table.effects import Amended, Updated
from recollect.table.table import Table, WhereLike

NO_KEYS = np.zeros(0, np.uint64)


class BufferRecorder(Protocol):
    """The journal of a buffer, as the verbs know it. Called under the lock."""

    def note(self) -> None:
        """Something changed that no effect tells of: the state is to be written again."""
        ...

    def blobs(self, new: Mapping[str, bytes]) -> None:
        """A group brought blobs that were not there."""
        ...

    def sampled(self, keys: Keys) -> None:
        """Groups were drawn, and stay."""
        ...


class ChosenGroups(NamedTuple):
    """Groups that a verb chose under the lock, to be read without it."""

    chosen: Chosen
    step: int  # the train step that they are for
    blobs: Mapping[str, bytes]
    lease: Lease | None = None


class RolloutCore:
    """The state of a buffer. Its methods expect the lock, those that say so excepted."""

    def __init__(
        self,
        face: Table,
        rules: StalenessRules,
        *,
        capacity: int | None,
        capacity_bytes: int | None,
        overflow: str,
        needs: Sequence[str],
        tags: Mapping[str, FieldType],
        archive: bool,
    ) -> None:
        self.face = face  # the public table
        self.table = face.core
        self.rules = rules
        self.capacity = capacity
        self.capacity_bytes = capacity_bytes
        self.overflow = overflow  # what a put into a full buffer does
        self.needs = needs  # cells that a group must have before it is ready
        self.tags = tags
        self.archive = archive  # whether trained groups stay for good
        self.short_put = ShortPut(self.table.storage)
        self.events = Events(self.table.transaction)
        self.blobs = Blobs(None if self.table.shared is None else self.table.shared.blobs)
        self.recorder: BufferRecorder | None = None
        self.judge: Callable[[list[int]], list[int]] | None = None  # see production/judge.py
        self.keeps_trained = False  # whether trained groups stay until `rewind.forget_trained`
        self.ever_archived = archive  # whether a trained group was ever kept
        self.unkept = 0  # the last step whose trained groups did not stay
        self._names = (self.table.schemas.rows, list(ROWS))
        self._wheres: dict[tuple[Any, Any, Any], Where | None] = {}
        self._train_step = FIRST_STEP
        self.nothing_due = False  # whether expiry has looked since something may have come due
        self.entries: dict[int, GroupEntry] = {}  # by key
        self.by_id: dict[str, int] = {}  # the key of each group id
        self.lease_steps: dict[int, int] = {}  # the train step that a leased batch is for
        self.promised: dict[str, int] = {}  # groups that producers have reserved room for, by task
        self.lease_sizes: dict[int, tuple[int, set[str]]] = {}  # payload and blobs, once asked
        self.history = History.new()
        self.accounts = Accounts()
        self.queues = CellQueues(needs)
        self.index = RolloutIndex()

    def reset(self) -> None:
        """Empty everything that the buffer keeps beside its table."""
        self.train_step = FIRST_STEP
        self.entries.clear()
        self.by_id.clear()
        self.lease_steps.clear()
        self.promised.clear()
        self.lease_sizes.clear()
        self.blobs.clear()
        self.history = History.new()
        self.accounts = Accounts()
        self.queues = CellQueues(self.needs)
        self.index = RolloutIndex()

    @property
    def train_step(self) -> int:
        """The train step that staleness is judged at."""
        return self._train_step

    @train_step.setter
    def train_step(self, step: int) -> None:
        self._train_step = step
        self.nothing_due = False
        self.changed()

    def changed(self) -> None:
        """Something changed that no effect tells of: a journal is to write the state again."""
        if self.recorder is not None:
            self.recorder.note()

    @property
    def storage(self) -> Storage:
        """Where the groups are."""
        return self.table.storage

    @property
    def columns(self) -> dict[str, Column]:
        """The columns of rollouts, arrays of users included."""
        schema = self.table.schemas.rows
        assert schema is not None
        return schema.columns

    def column_names(self) -> list[str]:
        """Their names, in order."""
        schema = self.table.schemas.rows
        if self._names[0] is not schema:
            assert schema is not None
            self._names = (schema, list(schema.columns))
        return self._names[1]

    @property
    def nbytes(self) -> int:
        """Bytes of payload, each blob counted once. Takes the lock."""
        with self.table.transaction():
            return self.storage.nbytes + self.blobs.nbytes

    def close(self) -> None:
        """End the buffer. Takes the lock."""
        with self.table.transaction():
            self.events.close()
        self.table.close()  # without the lock: it may be that of a connection, which ends now

    # -- changing ---------------------------------------------------------------------------------
    def set_fields(self, keys: Keys, fields: Mapping[str, Any]) -> None:
        """Stored groups have other fields from now on."""
        self.storage.update(keys, fields)
        self.table.effects.emit(Updated, keys, fields)

    def amend(
        self,
        keys: Keys,
        names: Sequence[str],
        rows: Rows,
        per_item: NDArray[np.int32],
        gained: Ints,
    ) -> None:
        """Stored groups have other rows from now on, and each so much more payload."""
        self.storage.amend(keys, rows, per_item, gained)
        self.table.effects.emit(Amended, keys, dict(zip(names, rows.columns, strict=True)))

    # -- leaving ----------------------------------------------------------------------------------
    def remove(self, keys: Keys, reason: str, *, hidden: bool = False) -> None:
        """Groups leave the storage and the buffer."""
        kind = KIND_OF.get(reason, "discarded")
        keep = self.table.effects.readers or self.events.wants(kind)
        remove = self.storage.remove if hidden else self.storage.delete
        self.gone(remove(keys, keep), reason)

    def gone(self, chosen: Chosen, reason: str) -> None:
        """Groups have left the storage: forget them, count them, and tell who wants to know."""
        keys = chosen.keys.tolist()
        entries = list(map(self.entries.pop, keys))
        self.forget(chosen, reason, keys, entries, tally(entries))

    def forget(
        self,
        chosen: Chosen,
        reason: str,
        keys: list[int],
        entries: list[GroupEntry],
        counts: Mapping[str, int],
    ) -> None:
        """The same, for groups whose entries were taken out and counted by task before."""
        names = [entry.group_id for entry in entries]
        known = list(map(self.by_id.pop, names, keys))
        if known != keys:  # a group was put again since: that one stays
            stay = zip(names, known, keys, strict=True)
            self.by_id.update((name, now) for name, now, key in stay if now != key)
        self.unfollow(keys, entries)
        self._count_and_tell(chosen, entries, counts, reason)
        if self.blobs:
            for entry in entries:
                self.blobs.remove(entry.blobs)
        self.table.left(chosen.count, reason, chosen)

    def overflowed(self, key: int) -> None:
        """The same as `gone`, for one group that made room and of which nobody wants to know."""
        entry = self.entries.pop(key)
        known = self.by_id.pop(entry.group_id, key)
        if known != key:
            self.by_id[entry.group_id] = known  # put again since: that one stays
        self.unfollow((key,), (entry,))
        if entry.blobs:
            self.blobs.remove(entry.blobs)
        self.accounts[entry.task].left["overflow"] += 1
        self.table.left(1, "overflow", None)

    def unfollow(self, keys: Sequence[int], entries: Sequence[GroupEntry]) -> None:
        """Nobody fills the cells of these groups any more."""
        if self.queues.in_use or self.index.keys is not None:
            for key, entry in zip(keys, entries, strict=True):
                self.queues.went(key, entry)
                self.index.forget(key)

    def leave_account(self, keys: Keys, reason: str) -> None:
        """Groups are done with: they count as left, and stay for those who look back."""
        entries = self.entries_of(keys)
        self.unfollow(keys.tolist(), entries)
        self._count_and_tell(self.storage.get(keys, None), entries, tally(entries), reason)
        for entry in entries:
            entry.trained = True

    def refuse(self, group: Group, reason: str) -> None:
        """A group is discarded before it is stored."""
        account = self.accounts[group.task]
        account.put += 1
        account.left[reason] += 1
        self.changed()
        kind = KIND_OF.get(reason, "discarded")
        if self.events.wants(kind):
            self.events.tell(
                kind, [Event(kind, reason, None, group.task, group.group_id, [group], 0)]
            )

    def _count_and_tell(
        self, chosen: Chosen, entries: list[GroupEntry], counts: Mapping[str, int], reason: str
    ) -> None:
        """Count groups and tell of them; those in the archive were counted when confirmed."""
        kind = KIND_OF.get(reason, "discarded")
        if self.ever_archived:
            counts = tally(entry for entry in entries if not entry.trained)
        for task, count in counts.items():
            self.accounts[task].left[reason] += count
        if self.events.wants(kind):
            groups = PastGroups(chosen, self.blobs_of(entries))
            events = events_of(kind, reason, chosen.keys, entries, groups)
            news = [event for event, e in zip(events, entries, strict=True) if not e.trained]
            if news:
                self.events.tell(kind, news)

    def returned(self, lease: Lease) -> None:
        """A lease ended, and its groups are back: they may be too old by now."""
        self.lease_steps.pop(lease.id, None)
        self.nothing_due = False

    # -- reading ----------------------------------------------------------------------------------
    def where(
        self, task: Any, status: Any, ready: bool | None, more: WhereLike = None
    ) -> Where | None:
        """The query for groups of a task and a status, None for all. Needs no lock."""
        key = (task, status, ready)
        if more is None and key in self._wheres:
            return self._wheres[key]
        query = None if more is None else as_query(more)
        for name, value in (("task", task), ("status", status), ("ready", ready)):
            if value is not None:
                condition = field(name) == (value.value if isinstance(value, Status) else value)
                query = condition if query is None else condition & query
        bound = None if query is None else self.table.fields.where(query)
        if more is None:
            if len(self._wheres) >= 1024:
                self._wheres.clear()
            self._wheres[key] = bound
        return bound

    def blobs_of(self, entries: Sequence[GroupEntry]) -> dict[str, bytes]:
        """The blobs that some groups refer to, for those who read them later."""
        blobs: dict[str, bytes] = {}
        if self.blobs:
            for entry in entries:
                blobs.update(self.blobs.get(entry.blobs))
        return blobs

    def entries_of(self, keys: Keys) -> list[GroupEntry]:
        """What is known of groups that are stored."""
        return list(map(self.entries.__getitem__, keys.tolist()))

    def choose(
        self, keys: Keys, step: int | None = None, lease: Lease | None = None
    ) -> ChosenGroups:
        """Groups by key, to be read for a train step; None is the present one."""
        chosen = self.storage.get(keys, None)
        blobs = self.blobs_of(self.entries_of(keys))
        return ChosenGroups(chosen, self.train_step if step is None else step, blobs, lease)

    def collated(self, groups: ChosenGroups) -> Groups:
        """Chosen groups as one batch, with the mask of a train step. Needs no lock."""
        chosen, step, blobs, lease = groups
        copied = None
        if isinstance(chosen, MemoryChosen):
            batch, copied = chosen.open(lease=lease)
        else:
            batch = chosen.read(lease=lease)
        limits: Ints | int = 0
        if self.rules.by_token:
            limits = np.array(
                [max(0, self.rules[task].oldest_fresh(step)) for task in batch.info.task.tolist()],
                np.int64,
            )
        return finished(batch, limits, blobs, copied, archive=self.ever_archived)
