"""What a rollout buffer keeps, and its verbs: each is tried under the lock and never waits.

Groups are the items of one table. Beside it there are only small things: which key a group id
has, promised room, blobs, accounts, and who wants to know of events. The table's lock guards
all of it. `buffer.py` and `blocking.py` are the two faces that run the verbs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from recollect.base.arguments import flag, keys_of, names, text, whole
from recollect.base.clock import Clock
from recollect.data.info import Lease
from recollect.data.ragged import Ragged
from recollect.data.schema import Column, Rows
from recollect.errors import InvalidValue, shown
from recollect.kernels import load as kernels
from recollect.rollouts.accounts import Accounts
from recollect.rollouts.adoption import adopt
from recollect.rollouts.blobs import Blobs
from recollect.rollouts.encoding import (
    ARRAYS,
    ROWS,
    SHARED,
    Encoded,
    Entry,
    encode,
    fitted,
    rows_in,
    tally,
)
from recollect.rollouts.events import KIND_OF, Event, Events, Left, events_of
from recollect.rollouts.expiry import expire_due, stale_rows, verdict, without_stale
from recollect.rollouts.group import Group
from recollect.rollouts.groups import Groups, finished
from recollect.rollouts.rewind import Line
from recollect.rollouts.rollout import Status, as_status
from recollect.rollouts.short_put import Direct, Known
from recollect.rollouts.space import Space
from recollect.rollouts.stages import Stages, check_cell
from recollect.rollouts.staleness import FIRST_STEP, Rules
from recollect.rollouts.takes import Taking
from recollect.rollouts.verbs import Verb
from recollect.rules.query import as_query, field
from recollect.rules.selectors import Selector, StalestFirst
from recollect.storage.base import Chosen, Storage, Where
from recollect.storage.fields import check_weights, parse_tags
from recollect.storage.memory.chosen import MemoryChosen
from recollect.table.checks import check_versions
from recollect.table.inserts import NewInsert, try_insert
from recollect.table.table import LARGEST_CAPACITY, Table, WhereLike
from recollect.table.waiting import Blocked

if TYPE_CHECKING:
    from recollect.rollouts.persistence import RolloutMember

if TYPE_CHECKING:
    from recollect.durability.journal.open_journal import OpenJournal
    from recollect.rollouts.journaled import JournaledRollouts

Keys = NDArray[np.uint64]

OVERFLOW = ("block", "drop_stalest", "drop_newest", "raise")
OWN_TAGS = {"ready": bool, "expires": int, "trained_at": int}
STALEST_FIRST = StalestFirst()  # who leaves a full buffer
NO_KEYS = np.zeros(0, np.uint64)
NO_FLAGS = (None,) * len(ROWS)
LARGEST_VERSION = (1 << 31) - 1


class Core:
    """The state of a buffer. Calls without a verb are immediate and take the lock themselves."""

    def __init__(
        self,
        *,
        order: Selector,
        staleness: Any,
        capacity: int | None,
        capacity_bytes: int | None,
        max_uses: int,
        overflow: str,
        needs: Any,
        tags: Mapping[str, Any] | None,
        archive: bool,
        storage: Storage | None,
        seed: int | None,
        journal: Any,
        name: str,
        clock: Clock | None,
    ) -> None:
        self.rules = Rules(staleness)
        self.capacity = None if capacity is None else whole("capacity", capacity, 1)
        self.capacity_bytes = None
        if capacity_bytes is not None:
            self.capacity_bytes = whole("capacity_bytes", capacity_bytes, 1)
        if overflow not in OVERFLOW:
            raise InvalidValue(
                f"overflow: expected one of {', '.join(map(repr, OVERFLOW))}, got {shown(overflow)}"
            )
        self.overflow = overflow
        self.needs = names("needs", needs)
        for need in self.needs:
            check_cell("needs", need)
        self.archive = flag("archive", archive)
        self.tags = parse_tags(tags)
        for tag in OWN_TAGS:
            if tag in self.tags:
                raise InvalidValue(f"tags: the name {tag!r} is taken; choose another")
        self.table = Table(
            name,
            capacity=LARGEST_CAPACITY if self.capacity is None else self.capacity,
            sampler=order,
            remover=STALEST_FIRST,
            max_times_sampled=whole("max_uses", max_uses, 0),
            signature={**ROWS, **SHARED},
            tags={**self.tags, **OWN_TAGS},
            partition_by=("task", "status", "ready"),
            storage=storage,
            seed=seed,
            clock=clock,
        )
        self.table._owner = self  # a store that holds the table saves the rest with it
        kernels.load_tokens()
        self.recorder: JournaledRollouts | None = None
        self._train_step = FIRST_STEP
        self._none_due = -1  # the count of alarms since which nothing can have come due
        self.entries: dict[int, Entry] = {}
        self.by_id: dict[str, int] = {}
        self.blobs = Blobs(None if self.table._shared is None else self.table._shared.blobs)
        self.accounts = Accounts()
        self.judge: Callable[[list[int]], list[int]] | None = None  # see production/judge.py
        self.steps_of: dict[int, int] = {}  # the train step that a leased batch is for
        self.keeping = False  # whether trained groups stay until `rewinding.forget_trained`
        self.archived = self.archive  # whether there may be trained groups: rows do not say it
        self.unkept = 0  # the last step whose trained groups did not stay
        self.line = Line.new()
        self.events = Events(self.table._transaction)
        self.space = Space(self)
        self.stages = Stages(self)
        self.taking = Taking(self)
        self.direct = Direct(self.storage)
        self._names = (self.table._schema, list(ROWS))
        self._wheres: dict[tuple[Any, Any, Any], Where | None] = {}
        self._per_item: dict[int, NDArray[np.int32]] = {}
        adopt(self)
        if journal is not None:
            from recollect.rollouts.journaled import open_journal

            open_journal(self, journal)

    def _journaled(self) -> JournaledRollouts:
        from recollect.rollouts.journaled import JournaledRollouts

        return JournaledRollouts(self)

    @property
    def _journal(self) -> OpenJournal | None:
        return self.table._journal

    @property
    def train_step(self) -> int:
        """The train step that staleness is judged at."""
        return self._train_step

    @train_step.setter
    def train_step(self, step: int) -> None:
        self._train_step = step
        self._none_due = -1
        self.changed()

    def changed(self) -> None:
        """Something changed that no effect tells of: a journal is to write the state again."""
        if self.recorder is not None:
            self.recorder.note()

    @property
    def storage(self) -> Storage:
        return self.table._storage

    # -- putting ----------------------------------------------------------------------------------
    def put_directly(self, group: Group, version: int | None) -> int | None:
        """Put a group of the common layout where that is simple; None where `put` must do it.

        It is simple where nobody follows, nothing is stale or replaced, and there is room, or the
        stalest group leaves for it and nobody asks who left.
        """
        table = self.table
        if (
            self.capacity_bytes is not None
            or table._effects.followers
            or not isinstance(group, Group)
        ):
            return None
        if version is not None:
            version = whole("version", version, 0, LARGEST_VERSION)
        known = self.direct.look(group, version, self.rules[group.task], self.tags)
        if known is None:
            return None
        if table._ages:
            check_versions(known.fields, 1)
        if table._weighed:
            check_weights(known.fields, table._weighed)
        with table._transaction():
            table._enter()
            return self._store_direct(known)

    def put(self, group: Group, version: int | None) -> Verb[int | None]:
        if not isinstance(group, Group):
            raise InvalidValue(
                f"put: expected an rc.Group, got {shown(group)}; rc.Group([...], task=...) makes "
                "one of rollouts, rc.Groups.from_dicts some of dicts"
            )
        if version is not None:
            version = whole("version", version, 0, LARGEST_VERSION)
        rule = self.rules[group.task]
        encoded = encode(group, version, rule, self.tags)
        if self.table._ages and encoded.status is Status.COMPLETED:
            check_versions(encoded.fields, 1)
        if self.table._weighed:
            check_weights(encoded.fields, self.table._weighed)

        def attempt() -> int | Blocked | None:
            key: int | Blocked | None
            self._check_not_leased(group)
            if self.space.is_tight():
                expire_due(self)  # what came back too old when its lease lapsed makes room
            if encoded.expires > self.train_step:
                key = self._store(group, encoded)
            else:
                key = self._store_stale(group, version, encoded)
            if self.space.promised and not isinstance(key, Blocked):
                self.space.unreserve(1, group.task)
            return key

        return Verb(attempt, self.table._gate.departures, None, "put")

    def _store_direct(self, known: Known) -> int | None:
        table, entry, promised = self.table, known.entry, self.space.promised
        task = entry.task
        if (
            table._effects.followers
            or known.expires <= self._train_step
            or entry.group_id in self.by_id
        ):
            return None
        if self.capacity is not None:
            storage = table._storage
            promises = sum(promised.values()) if promised else 0
            free = self.capacity - len(storage)
            if free <= promises:
                self._expire_overdue()
                free = self.capacity - len(storage)
            if free <= 0:
                if free < 0 or not self._drops_simply(storage):
                    return None
                self._overflowed(self.direct.evict(STALEST_FIRST))
            elif promises - (task in promised) >= free and self.overflow != "drop_stalest":
                return None  # what is free is promised to others
        lacks = self.stages.lacking(known.columns, NO_FLAGS, {}) if self.stages._queues else ()
        known.fields["ready"] = not lacks or not any(need in lacks for need in self.needs)
        entry.put_at = table._clock.time()
        key = self.direct.store(known, entry.put_at)
        if key is None:
            return None
        self.entries[key] = entry
        self.by_id[entry.group_id] = key
        self.stages.stored(key, entry, known.ids)
        self.accounts[task].put += 1
        if lacks:
            self.stages.came(key, entry, lacks)
        table._came(1)
        if promised:
            self.space.unreserve(1, task)
        return key

    def _expire_overdue(self) -> None:
        """Expire what came back too old when its lease lapsed, if a lease ended since last time."""
        alarms = self.table._gate.alarms
        if self._none_due != alarms:
            expire_due(self)
            self._none_due = alarms

    def _overflowed(self, key: int) -> None:
        """The same as `gone`, for one group of which nobody wants to know."""
        entry = self.entries.pop(key)
        known = self.by_id.pop(entry.group_id, key)
        if known != key:
            self.by_id[entry.group_id] = known  # put again since: that one stays
        self.stages.left((key,), (entry,))
        if entry.blobs:
            self.blobs.remove(entry.blobs)
        self.accounts[entry.task].left["overflow"] += 1
        self.table._left(1, "overflow", None)

    def _drops_simply(self, storage: Storage) -> bool:
        """Whether a full buffer makes room by letting its stalest group go, and no more."""
        return (
            self.overflow == "drop_stalest"
            and self.table._remover is STALEST_FIRST
            and not storage.hidden
            and not self.events.wants("discarded")
            and not (
                self.direct.ever_archived()
                and storage.available(self.where(None, Status.ARCHIVED, None))[0]
            )
        )

    def _check_not_leased(self, group: Group) -> None:
        stored = self.by_id.get(group.group_id)
        if stored is not None and not self._visible(stored):
            raise InvalidValue(
                f"group {group.group_id!r} is leased and cannot be replaced; confirm the lease or "
                "give it back first"
            )

    def _store_stale(
        self, group: Group, version: int | None, encoded: Encoded
    ) -> int | Blocked | None:
        """A group is too old when it comes: store what its retry needs, or discard it."""
        rule, account = self.rules[group.task], self.accounts[group.task]
        stale = stale_rows(encoded.columns, encoded.present, rule, self.train_step)
        attempt = max(r.attempt for r, old in zip(group, stale, strict=True) if old)
        reason = verdict(rule, attempt)
        key: int | Blocked | None = None
        if reason is not None:
            self.refuse(group, reason)
        else:
            key = self._store(group, encode(without_stale(group, stale), version, rule, self.tags))
            if key is None or isinstance(key, Blocked):  # for want of room, and nothing else
                return key
            account.retried += 1
            if self.events.wants("retried"):
                told = Event("retried", "expired", key, group.task, group.group_id, [group], 0)
                self.events.tell("retried", [told])
        if not any(rollout.status is Status.EXPIRED for rollout in group):
            self.accounts.expired(group.task, 1)
        return key

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

    def _store(self, group: Group, encoded: Encoded) -> int | Blocked | None:
        table, task = self.table, group.task
        replaced = self.by_id.get(group.group_id)
        if encoded.arrays:
            self._fit_arrays(encoded)
        rows = rows_in(encoded, self.column_names())
        shared = Rows(1, encoded.shared, encoded.shared_present)
        if self.capacity is not None or self.capacity_bytes is not None:
            full = self.space.make(group, encoded, rows, shared, replaced)
            if full is not None:
                return full if isinstance(full, Blocked) else None
        if self._add_columns(encoded):  # now, because what waits or is refused leaves no trace
            rows = rows_in(encoded, self.column_names())
        if replaced is not None:
            self.remove(np.array([replaced], np.uint64), "replaced")
        lacks = self.stages.lacking(encoded.columns, encoded.present, encoded.arrays)
        key = self.insert(encoded, rows, not any(need in lacks for need in self.needs))
        entry = encoded.entry
        entry.put_at = table._clock.time()
        self.entries[key] = entry
        self.by_id[group.group_id] = key
        entry.trained = encoded.status is Status.ARCHIVED  # elsewhere, and for those who look back
        self.archived = self.archived or entry.trained
        self.stages.stored(key, entry, encoded.ids)
        if encoded.blobs:
            if self.recorder is not None:
                new = {n: blob for n, blob in encoded.blobs.items() if n not in self.blobs}
                self.recorder.blobs(new)
            self.blobs.add(encoded.blobs)
        self.accounts[task].put += 1
        if encoded.status is Status.COMPLETED:
            self.stages.came(key, entry, lacks)
        elif entry.trained:
            self.accounts[task].left["archived"] += 1
        return key

    def insert(self, encoded: Encoded, rows: Rows, ready: bool) -> int:
        """Store what was encoded, for which there is room; returns its key."""
        table = self.table
        if self.capacity is not None and len(self.storage) >= self.capacity:
            self.space.exceed()
        encoded.fields["ready"] = ready
        per_item = self._per_item.get(encoded.count)
        if per_item is None:
            per_item = self._per_item[encoded.count] = np.array([encoded.count], np.int32)
        shared = Rows(1, encoded.shared, encoded.shared_present)
        inserted = try_insert(
            table,
            NewInsert(
                rows,
                shared,
                per_item,
                1,
                None,
                encoded.fields,
                0.0,
                -1.0,
                {},
                None,
                table._schema,
                table._shared_schema,
                None,
            ),
        )
        assert not isinstance(inserted, Blocked)
        return int(inserted[0][0])

    def column_names(self) -> list[str]:
        schema = self.table._schema
        if self._names[0] is not schema:
            assert schema is not None
            self._names = (schema, list(schema.columns))
        return self._names[1]

    def _fit_arrays(self, encoded: Encoded) -> None:
        """What comes in another dtype of its column's kind is converted, or refused."""
        columns = self.table.columns
        for name, (cells, present) in encoded.arrays.items():
            assert isinstance(cells, Ragged)
            column = columns.get(ARRAYS + name)
            if column is None:
                column = Column(cells.dtype, cells.inner_shape, ragged=True, optional=True)
            encoded.arrays[name] = (fitted(name, cells, column), present)

    def _add_columns(self, encoded: Encoded) -> bool:
        """Have a column for each array; whether one was new."""
        columns = self.table.columns if encoded.arrays else {}
        new = [name for name in encoded.arrays if ARRAYS + name not in columns]
        for name in new:
            cells = encoded.arrays[name][0]
            assert isinstance(cells, Ragged)
            self.table._add_column(ARRAYS + name, cells.dtype, cells.inner_shape, True)
        return bool(new)

    # -- leaving ----------------------------------------------------------------------------------
    def remove(self, keys: Keys, reason: str, *, hidden: bool = False) -> None:
        """Groups leave the storage and the buffer."""
        kind = KIND_OF.get(reason, "discarded")
        keep = self.table._effects.readers or self.events.wants(kind)
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
        entries: list[Entry],
        counts: Mapping[str, int],
    ) -> None:
        """The same, for groups whose entries are out already, and counted by task."""
        names = [entry.group_id for entry in entries]
        known = list(map(self.by_id.pop, names, keys))
        if known != keys:  # a group was put again since: that one stays
            stay = zip(names, known, keys, strict=True)
            self.by_id.update((name, now) for name, now, key in stay if now != key)
        self.stages.left(keys, entries)
        self._count_and_tell(chosen, entries, counts, reason)
        if self.blobs:
            for entry in entries:
                self.blobs.remove(entry.blobs)
        self.table._left(chosen.count, reason, chosen)

    def _count_and_tell(
        self, chosen: Chosen, entries: list[Entry], counts: Mapping[str, int], reason: str
    ) -> None:
        """Once for each group: what is in the archive was told of when it was confirmed."""
        kind = KIND_OF.get(reason, "discarded")
        if self.archived:
            counts = tally([entry for entry in entries if not entry.trained])
        for task, count in counts.items():
            self.accounts[task].left[reason] += count
        if self.events.wants(kind):
            left = Left(chosen, self.blobs_of(entries))
            told = events_of(kind, reason, chosen.keys, entries, left)
            news = [event for event, e in zip(told, entries, strict=True) if not e.trained]
            if news:
                self.events.tell(kind, news)

    def leave_account(self, keys: Keys, reason: str) -> None:
        """Groups are done with, and stay for those who look back."""
        entries = [self.entries[key] for key in keys.tolist()]
        for key, entry in zip(keys.tolist(), entries, strict=True):
            self.stages.went(key, entry)
            self.stages.forget(key)
        self._count_and_tell(self.storage.get(keys, None), entries, tally(entries), reason)
        for entry in entries:
            entry.trained = True

    def blobs_of(self, entries: Sequence[Entry]) -> dict[str, bytes]:
        """The blobs that some groups refer to, for those who read them later."""
        blobs: dict[str, bytes] = {}
        if self.blobs:
            for entry in entries:
                blobs.update(self.blobs.get(entry.blobs))
        return blobs

    def discard(self, keys: Any, reason: str) -> Verb[int]:
        keys, reason = keys_of(keys), text("reason", reason)

        def attempt() -> int:
            found = self.storage.find(keys, None, visible=True)
            if found.size:
                self.remove(found, reason)
            return int(found.size)

        return Verb(attempt, self.table._gate.arrivals, None, "discard")

    # -- looking ----------------------------------------------------------------------------------
    def where(
        self, task: Any, status: Any, ready: bool | None, more: WhereLike = None
    ) -> Where | None:
        """The query for groups of a task and a status, None for all."""
        key = (task, status, ready)
        if more is None and key in self._wheres:
            return self._wheres[key]
        query = None if more is None else as_query(more)
        for name, value in (("task", task), ("status", status), ("ready", ready)):
            if value is not None:
                condition = field(name) == (value.value if isinstance(value, Status) else value)
                query = condition if query is None else condition & query
        bound = None if query is None else self.table._where(query)
        if more is None:
            if len(self._wheres) >= 1024:
                self._wheres.clear()
            self._wheres[key] = bound
        return bound

    def _visible(self, key: int) -> bool:
        return self.storage.find(np.array([key], np.uint64), None, visible=True).size > 0

    def collated(
        self, chosen: Chosen, step: int, blobs: Mapping[str, bytes], lease: Any = None
    ) -> Groups:
        """Chosen groups as one batch, with the mask of a train step. Needs no lock."""
        copied = None
        if isinstance(chosen, MemoryChosen):
            batch, copied = chosen.open(lease=lease)
        else:
            batch = chosen.read(lease=lease)
        limits: Any = 0
        if self.rules.by_token:
            limits = np.array(
                [max(0, self.rules[task].oldest_fresh(step)) for task in batch.info.task.tolist()],
                np.int64,
            )
        return finished(batch, limits, blobs, copied, archive=self.archived)

    def get(self, keys: Any) -> Groups:
        keys = keys_of(keys)
        with self.table._transaction():
            self.table._enter()
            chosen = self.storage.get(keys, None)
            blobs = self.blobs_of([self.entries[key] for key in keys.tolist()])
            step = self.train_step
        return self.collated(chosen, step, blobs)

    def find(self, group_id: str) -> int | None:
        text("group_id", group_id)
        with self.table._transaction():
            return self.by_id.get(group_id)

    def count(self, task: str | None, status: Status | str | None, where: WhereLike) -> int:
        wanted = None if status is None else as_status(status)
        if task is not None:
            text("task", task)
        bound = self.where(task, wanted, None, where)
        with self.table._transaction():
            self.enter()
            return self.storage.available(bound)[0]

    def counts(self) -> dict[tuple[str, Status], int]:
        with self.table._transaction():
            self.enter()
            found = {}
            for task, status in self.storage.counts(("task", "status")):
                count = self.storage.available(self.where(task, Status(status), None))[0]
                if count:
                    found[task, Status(status)] = count
            return found

    def enter(self) -> None:
        """What every call that counts or takes does first: what came back too old expires."""
        self.table._enter()
        expire_due(self)

    def __len__(self) -> int:
        with self.table._transaction():
            if not self.table._closed:
                self.enter()
            return len(self.storage)

    @property
    def nbytes(self) -> int:
        with self.table._transaction():
            return self.storage.nbytes + self.blobs.nbytes

    def account(self) -> dict[str, dict[str, Any]]:
        with self.table._transaction():
            self.enter()
            entries = list(self.entries.values())
            counts = {}
            kept = tally([entry for entry in entries if entry.trained])  # leased ones, too
            for task, stored in self.storage.counts(("task",)).items():
                visible = self.storage.available(self.where(task, None, None))[0]
                seen = self.storage.available(self.where(task, Status.ARCHIVED, None))[0]
                archived = kept.get(task, 0)
                held = stored - visible - (archived - seen)
                counts[task] = (visible - seen, held, archived)
            return self.accounts.report(entries, counts, self.table._clock.time(), self.train_step)

    def stats(self) -> dict[str, Any]:
        with self.table._transaction():
            return {
                **self.table.stats(),
                "nbytes": self.nbytes,
                "blobs": len(self.blobs),
                "capacity": self.capacity,
                "capacity_bytes": self.capacity_bytes,
                "train_step": self.train_step,
                "promised": dict(self.space.promised),
                "claimed": self.stages.claimed,
            }

    def _returned(self, lease: Lease) -> None:
        self.steps_of.pop(lease.id, None)

    def _member(self) -> RolloutMember:
        """What snapshots ask for."""
        from recollect.rollouts.persistence import RolloutMember

        return RolloutMember(self)

    def close(self) -> None:
        with self.table._transaction():
            self.events.close()
        self.table.close()  # without the lock: it may be that of a connection, which goes now
