"""`TableCore`: the state of a table under one lock, and the runner of its verbs.

`Table`, rollout buffers and servers are faces: they check what they are given, make verbs and
hand them to the core. Inserts, draws, amendments, journals and snapshots take a core as well.
One lock guards everything here; payload is copied outside.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from recollect.base.arrays import Keys
from recollect.base.clock import Clock
from recollect.base.leases import Lease, LeaseBook, LeaseLike, Leases
from recollect.base.requests import RequestBook, Requests
from recollect.data.schema import Schema
from recollect.errors import TableClosed
from recollect.storage.base import Chosen, Contended, Layout, Shared, Storage
from recollect.table.counts import TableCounts
from recollect.table.effects import Effects, Removed, Returned
from recollect.table.field_set import FieldSet
from recollect.table.rule_set import RuleSet
from recollect.table.runner import Runner, Verb
from recollect.table.sharing import TableSharing
from recollect.table.waiting import Blocked, Gate

if TYPE_CHECKING:
    from recollect.durability.journal.journaled import Journaled
    from recollect.durability.journal.open_journal import OpenJournal
    from recollect.durability.snapshot.members import Member


class Schemas(NamedTuple):
    """What rows look like, and what the cells look like that an item's rows share."""

    rows: Schema | None = None
    shared: Schema | None = None


class Owner(Protocol):
    """What is built on a table and keeps state beside it: snapshots and journals hold both."""

    def member(self) -> Member:
        """What a snapshot of the table's store saves and loads."""
        ...

    def journaled(self) -> Journaled:
        """What a journal of the table's store follows."""
        ...

    def returned(self, lease: Lease) -> None:
        """Under the lock: a lease ended, and its items are back."""
        ...


class TableCore(Runner):
    """What a table is made of. Its methods expect the lock, `run` and `close` excepted."""

    def __init__(
        self,
        name: str,
        capacity: int,
        capacity_bytes: int | None,
        max_times_sampled: int,
        fields: FieldSet,
        rules: RuleSet,
        storage: Storage,
        clock: Clock,
        checkpoint: bool,
        seed: int | None,
        *,
        journaled: bool,
    ) -> None:
        self.name = name
        self.capacity = capacity
        self.capacity_bytes = capacity_bytes
        self.max_times_sampled = max_times_sampled
        self.fields = fields
        self.rules = rules
        self.storage = storage
        self.clock = clock
        self.checkpoint = checkpoint  # whether a snapshot of its store includes it
        self.schemas = Schemas()
        self.counts = TableCounts()
        self.effects = Effects()
        self.leases: LeaseBook = Leases()
        self.requests: RequestBook = Requests()
        self.owner: Owner | None = None
        self.journal: OpenJournal | None = None
        self.closed = False
        self.transaction = storage.transaction  # type: ignore[method-assign] # a call less
        self.shared: Shared | None = self.storage.open(
            Layout(
                name=self.name,
                capacity=self.capacity,
                fields=self.fields.kinds,
                partition_by=self.fields.partition_by,
                max_times_sampled=self.max_times_sampled,
                seed=seed,
                selectors=(self.rules.sampler, self.rules.remover),
                journaled=journaled,
            )
        )
        listen = None
        if self.shared is not None:
            self.leases, self.requests = self.shared.leases, self.shared.requests
            listen = self.shared.listen
            self.effects.hold()
        self.gate = Gate(
            f"table {self.name!r}",
            self.clock,
            self.transaction,
            self.enter,
            self.leases.next_deadline,
            self.lock,
            listen,
        )
        if self.shared is not None:
            self.shared.attach(
                TableSharing(
                    self.clock, self.counts, self.gate, self.effects, self.lock, self._adopt
                )
            )

    # -- the lock ---------------------------------------------------------------------------------
    def transaction(self) -> AbstractContextManager[Any]:
        return self.storage.transaction()

    def lock(self) -> AbstractContextManager[Any]:
        """The lock of this process's threads, without a transaction of a database."""
        return self.transaction() if self.shared is None else self.shared.lock

    def enter(self) -> None:
        if self.closed:
            raise TableClosed(f"table {self.name!r} was closed; make a new one to go on")
        if self.leases.timed:
            for lease in self.leases.overdue(self.clock.monotonic()):
                self.bring_back(lease, "lapsed")
            self.effects.deliver()

    def close(self) -> None:
        """End everything: waiters and later calls raise, the journal is written to its end."""
        with self.lock():
            self.closed = True
            self.gate.wake_all()
        if self.journal is not None and not self.journal.of_store:
            self.journal.close()
        if self.shared is not None:
            self.shared.close()

    # -- coming and going -------------------------------------------------------------------------
    def came(self, count: int) -> None:
        """Items have come by way of what is built on the table, and nobody follows."""
        self.counts.inserts += count
        self.effects.number += 1
        self.gate.arrivals.changed(count)

    def left(self, gone: int, reason: str, items: Chosen | Keys | None) -> None:
        """Items have left: count them, and tell those who follow."""
        counts = self.counts
        counts.removals += gone
        counts.removed[reason] = counts.removed.get(reason, 0) + gone
        if items is None:
            self.effects.number += 1
        elif isinstance(items, np.ndarray):
            self.effects.emit(Removed, items, reason, None)
        else:
            self.effects.emit(Removed, items.keys, reason, items)
        self.gate.departures.changed(gone)

    def evict(self, items: int, nbytes: int) -> None:
        """Let the remover choose who leaves: so many items, and more until enough bytes went."""
        effects = self.effects
        gone, evicted = self.storage.evict(self.rules.remover, items, nbytes, effects.readers)
        if not effects.followers:
            self.left(gone, "evicted", None)
            return
        for part in evicted:
            self.left(part.count, "evicted", part)

    def bring_back(self, lease: LeaseLike | int | None, reason: str) -> None:
        """End a lease: its items are visible again, in their old order."""
        held = self.leases.end(lease)
        self.counts.samples -= self.storage.show(held.keys, returned=True)
        if self.owner is not None:
            self.owner.returned(held.lease)
        self.effects.emit(Returned, held.keys, held.lease, reason)
        if self.rules.limiter.items_suffice():
            self.gate.arrivals.changed(held.keys.size)
            self.gate.departures.changed(held.keys.size)
        else:  # a sample that is undone may be worth any number of inserts
            self.gate.arrivals.changed(held.keys.size)
            self.gate.wake_all()

    # -- columns ----------------------------------------------------------------------------------
    def set_schema(self, rows: Schema, shared: Schema | None) -> None:
        """Fix the columns, or add optional ones; the journal is told."""
        with self.transaction():
            self.schemas = Schemas(rows, shared)
            self.storage.set_schema(rows, shared)
            if self.effects.journal is not None:
                self.effects.journal.columns(rows, shared)

    def _adopt(self, rows: Schema, shared: Schema | None) -> None:
        """Another process fixed the columns, or added to them; the storage knows already."""
        self.schemas = Schemas(rows, shared)

    # -- running verbs ----------------------------------------------------------------------------
    def _try(self, verb: Verb[Any]) -> tuple[Any, int]:
        """Where the rules allow it, first beside other processes that do the same."""
        if verb.beside_others and self.shared is not None:
            try:
                with self.shared.taking():
                    self.enter()
                    return self._attempt(verb)
            except Contended:  # others hold some of the items: see what they leave
                pass
        with self.transaction():
            self.enter()
            return self._attempt(verb)

    def _attempt(self, verb: Verb[Any]) -> tuple[Any, int]:
        tried = verb.attempt()
        effects = self.effects
        if effects.queue:
            try:
                effects.deliver()
            except BaseException:  # a follower's: the caller gets that, and no result
                if not isinstance(tried, Blocked):
                    verb.undo(tried)
                raise
        return tried, effects.number if effects.followers else 0

    def _tell(self) -> None:
        self.effects.deliver()

    def _settle(self, number: int, changed: bool) -> None:
        self.effects.settle(number, changed=changed)

    async def _settle_async(self, number: int, changed: bool) -> None:
        await self.effects.settle_async(number, changed=changed)
