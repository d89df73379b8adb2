"""`Table`: a named set of items with a sampler, a remover, a limiter and a capacity.

The table checks what it is given, decides with its limiter whether a call may go ahead, lets
its storage do it, and keeps everything that is not storage: counters, leases, requests, those
who wait, and those who follow its effects. One lock guards it all; payload is copied outside.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from recollect.base.arguments import flag, keys_of, names, text, time_span, whole
from recollect.base.clock import Clock, SystemClock
from recollect.base.leases import LeaseBook, Leases
from recollect.base.readable import size
from recollect.base.requests import Requests
from recollect.data.batch import Batch
from recollect.data.info import Lease, LeaseLike
from recollect.data.schema import Column, Schema
from recollect.errors import InvalidValue, LeaseExpired, QueryError, SchemaError, TableClosed, shown
from recollect.rules.limiters import Counts, Limiter, MinSize, Queue, Stack
from recollect.rules.query import Query, as_query, bind, split
from recollect.rules.selectors import (
    Fifo,
    Lifo,
    Ordered,
    Selector,
    Uniform,
    largest_alpha,
    weighed_fields,
)
from recollect.rules.selectors import ages as selectors_age
from recollect.storage.base import Chosen, Contended, Layout, Shared, Storage, Where
from recollect.storage.fields import (
    BUILT_IN,
    check_priority,
    check_weight,
    check_weights,
    parse_tags,
    unfit_weights,
)
from recollect.table.amendments import check_amended, fill
from recollect.table.checks import (
    check_versions,
    checked_clock,
    checked_field,
    checked_limiter,
    checked_partition,
    checked_selector,
    checked_storage,
    declared,
    settable,
)
from recollect.table.draws import check_sample, taking, try_sample
from recollect.table.effects import Amended, Effects, Follower, Leased, Removed, Returned, Updated
from recollect.table.inserts import checked_insert, try_insert
from recollect.table.sharing import TableSharing
from recollect.table.waiting import Blocked, Gate, Room

if TYPE_CHECKING:
    from os import PathLike

    from recollect.durability.journal.open_journal import OpenJournal

Keys = NDArray[np.uint64]
WhereLike = Query | Mapping[str, Any] | None
Result = TypeVar("Result")

LARGEST_CAPACITY = 1 << 40  # keys count to 2 ** 44, and slots are numbered in 32 bits or more
REMEMBERED_QUERIES = 256
VERBS = [name for name in vars(Storage) if not name.startswith("_")]


class Owner(Protocol):
    """What is built on a table and keeps state beside it: snapshots hold both."""

    def _member(self) -> Any:
        """What a snapshot of the table's store saves and loads (`durability.members`)."""
        ...

    def _journaled(self) -> Any:
        """What a journal of the table's store follows (`durability.journal_table`)."""
        ...

    def _returned(self, lease: Lease) -> None:
        """A lease ended, and its items are back."""
        ...


class Table:
    """A set of items that is sampled by one rule and evicted by another.

    >>> import recollect as rc
    >>> table = rc.Table("replay", capacity=1000, sampler=rc.Prioritized(), seed=0)
    >>> keys = table.insert({"obs": [[0.1], [0.2]], "reward": [1.0, 0.0]})
    >>> batch = table.sample(2)
    >>> batch["obs"].shape
    (2, 1)
    >>> table.update(batch.info.keys, priority=[0.5, 0.25])
    array([ True,  True])

    Args:
        name: What messages and stores call the table.
        capacity: How many items it holds at most.
        capacity_bytes: How many bytes of payload it holds at most, None for no bound.
        sampler: Which item `sample` and `take` choose.
        remover: Which item leaves when the table is full.
        limiter: Whether an insert or a sample may go ahead now.
        max_times_sampled: After so many samples an item leaves; 0 for no limit.
        signature: The columns, an `rc.Column` for each name; None lets the first insert fix them.
        tags: More fields that rules and queries may use: names and types.
        partition_by: Fields whose equality in a `where` is answered without a scan.
        storage: Where items live; `rc.MemoryStorage()` where None.
        seed: Makes draws repeatable; None for a random one.
        journal: An `rc.Journal`, or its path: what the table holds survives a crash.
        checkpoint: Whether a store's snapshot includes this table.
        clock: Where time comes from, for tests.
    """

    def __init__(
        self,
        name: str,
        *,
        capacity: int,
        capacity_bytes: int | None = None,
        sampler: Selector | None = None,
        remover: Selector | None = None,
        limiter: Limiter | None = None,
        max_times_sampled: int = 0,
        signature: Mapping[str, Any] | None = None,
        tags: Mapping[str, Any] | None = None,
        partition_by: Sequence[str] = (),
        storage: Storage | None = None,
        seed: int | None = None,
        journal: Any = None,
        checkpoint: bool = True,
        clock: Clock | None = None,
    ) -> None:
        self.name = text("name", name)
        self.capacity = whole("capacity", capacity, 1, LARGEST_CAPACITY)
        self.capacity_bytes = None
        if capacity_bytes is not None:
            self.capacity_bytes = whole("capacity_bytes", capacity_bytes, 1)
        self.max_times_sampled = whole("max_times_sampled", max_times_sampled, 0, 1 << 30)
        seed = None if seed is None else whole("seed", seed, 0)
        self.checkpoint = flag("checkpoint", checkpoint)
        self._owner: Owner | None = None
        self._tags = parse_tags(tags)
        self._fields = {**BUILT_IN, **self._tags}
        self.partition_by = checked_partition(partition_by, self._tags)
        self._sampler = checked_selector(
            "sampler", Uniform() if sampler is None else sampler, self._fields, storage
        )
        self._remover = checked_selector(
            "remover", Fifo() if remover is None else remover, self._fields, storage
        )
        self._ages = selectors_age(self._sampler, self._remover)
        self._alpha = largest_alpha(self._sampler, self._remover)
        self._weighed = weighed_fields(self._sampler, self._remover)
        self._limiter = checked_limiter(MinSize(1) if limiter is None else limiter, self.capacity)
        self._clock: Clock = SystemClock() if clock is None else checked_clock(clock)
        self._storage = checked_storage(storage)
        rows, shared = (None, None) if signature is None else declared(signature)
        self._schema: Schema | None = None
        self._shared_schema: Schema | None = None
        self._counts = Counts()
        self._sample_calls = 0
        self._removed: dict[str, int] = {}
        self._effects = Effects()
        self._leases: LeaseBook = Leases()
        self._requests = Requests()
        self._wheres: dict[Query, Where] = {}
        self._closed = False
        self._transaction = self._lock = self._storage.transaction
        self._shared: Shared | None = self._storage.open(
            Layout(
                name=self.name,
                capacity=self.capacity,
                fields=self._fields,
                partition_by=self.partition_by,
                max_times_sampled=self.max_times_sampled,
                seed=seed,
                selectors=(self._sampler, self._remover),
                journaled=journal is not None,
            )
        )
        listen = None
        if self._shared is not None:
            self._leases, listen = self._shared.leases, self._shared.listen
            self._requests = self._shared.requests  # type: ignore[assignment]
            self._lock = lambda: self._shared.lock  # type: ignore[union-attr]
            self._effects.hold()
        self._gate = Gate(
            f"table {self.name!r}",
            self._clock,
            self._transaction,
            self._enter,
            self._leases.next_deadline,
            self._lock,
            listen,
        )
        if self._shared is not None:
            self._shared.attach(TableSharing(self))
        if rows is not None:
            self._check_bytes(self._limiter, rows, shared)
            self._declare(rows, shared)
        self._journal: OpenJournal | None = None
        if journal is not None:
            from recollect.table.journaled import open_journal

            self._journal = open_journal(self, journal)

    @classmethod
    def queue(cls, name: str, size: int, **options: Any) -> Table:
        """A queue: first in, first out, each item once; inserts wait while it is full.

        >>> import recollect as rc
        >>> queue = rc.Table.queue("jobs", 10)
        >>> _ = queue.insert({"x": [1, 2, 3]})
        >>> queue.sample(2)["x"]
        array([1, 2])
        """
        rules: dict[str, Any] = {"sampler": Fifo(), "remover": Fifo(), "max_times_sampled": 1}
        return cls(name, capacity=size, limiter=Queue(size), **{**rules, **options})

    @classmethod
    def stack(cls, name: str, size: int, **options: Any) -> Table:
        """A stack: last in, first out, each item once; inserts wait while it is full."""
        rules: dict[str, Any] = {"sampler": Lifo(), "remover": Lifo(), "max_times_sampled": 1}
        return cls(name, capacity=size, limiter=Stack(size), **{**rules, **options})

    @classmethod
    def from_config(cls, config: Mapping[str, Any] | str | PathLike[str]) -> Table:
        """Make a table of a mapping, or of the YAML file at a path.

        >>> import recollect as rc
        >>> rc.Table.from_config({"name": "t", "capacity": 10, "sampler": "Fifo"}).sampler
        Fifo()
        """
        from recollect.config import table_from_config

        return table_from_config(config)

    # -- columns --------------------------------------------------------------------------------
    def _check_bytes(self, limiter: Limiter, rows: Schema, shared: Schema | None) -> None:
        """Raise where `capacity_bytes` never holds the items that a limiter waits for."""
        columns = [*rows.columns.values(), *(shared.columns.values() if shared else ())]
        least = sum(c.size for c in columns if not c.ragged and not c.optional)
        if self.capacity_bytes is not None and least:
            limiter.check_bytes(self.capacity_bytes // least, self.capacity_bytes)

    def _declare(self, rows: Schema, shared: Schema | None) -> None:
        """Fix the columns, or see that those which others have fixed are the same."""
        with self._transaction():
            if self._schema is None:
                self._set_schema(rows, shared)
                return
            for wanted, stored in ((rows, self._schema), (shared, self._shared_schema)):
                there = {} if stored is None else stored.columns
                columns = {} if wanted is None else wanted.columns
                added = [c for name, c in there.items() if name not in columns]
                same = {name: c for name, c in there.items() if name in columns} == columns
                if not same or not all(column.optional for column in added):
                    raise SchemaError(
                        f"table {self.name!r} is stored with the columns "
                        f"{self._schema._names()}, and signature= says otherwise; leave it out, or "
                        "choose another name for the table"
                    )

    def _set_schema(self, rows: Schema, shared: Schema | None) -> None:
        with self._transaction():
            self._schema, self._shared_schema = rows, shared
            self._storage.set_schema(rows, shared)
            if self._effects.journal is not None:
                self._effects.journal.columns(rows, shared)

    # -- inserting ------------------------------------------------------------------------------
    def insert(
        self,
        columns: Mapping[str, Any],
        *,
        shared: Mapping[str, Any] | None = None,
        rows_per_item: int | Sequence[int] | NDArray[Any] = 1,
        priority: Any = None,
        timeout: float | None = None,
        request: tuple[Any, int] | None = None,
        **fields: Any,
    ) -> Keys:
        """Insert the items that the rows form, all or none; returns their keys.

        Args:
            columns: Names and columns: arrays `[rows, ...]`, `rc.Ragged`, or lists.
            shared: Columns with one cell per item, such as a group's prompt.
            rows_per_item: How many consecutive rows an item has: a number, or one per item.
            priority: One for all or one per item; None is the highest in the table now.
            timeout: Seconds to wait for the limiter; None waits, 0 tries once.
            request: `(producer, n)`: the same pair again returns the same keys again.
            fields: task, status, version and tags: one value, or one per item.

        >>> import recollect as rc
        >>> table = rc.Table("groups", capacity=8)
        >>> keys = table.insert({"x": [1, 2, 3]}, rows_per_item=[2, 1], task="math")
        >>> len(table), table.get(keys[:1])["x"]
        (2, array([1, 2]))
        """
        if timeout is not None:
            timeout = time_span("timeout", timeout)
        insert = checked_insert(self, columns, shared, rows_per_item, priority, request, fields)
        with self._transaction():
            self._enter()
            result = try_insert(self, insert)
        if isinstance(result, Blocked):
            result = self._gate.wait(
                lambda: try_insert(self, insert), result, self._gate.departures, timeout, "insert"
            )
        if self._effects.followers:
            self._effects.settle(result[1])
        return result[0]

    async def insert_async(
        self,
        columns: Mapping[str, Any],
        *,
        shared: Mapping[str, Any] | None = None,
        rows_per_item: int | Sequence[int] | NDArray[Any] = 1,
        priority: Any = None,
        timeout: float | None = None,
        request: tuple[Any, int] | None = None,
        **fields: Any,
    ) -> Keys:
        """The same as `insert`, for asyncio."""
        if timeout is not None:
            timeout = time_span("timeout", timeout)
        insert = checked_insert(self, columns, shared, rows_per_item, priority, request, fields)
        keys, number = await self._gate.run_async(
            lambda: try_insert(self, insert), self._gate.departures, timeout, "insert"
        )
        await self._effects.settle_async(number)
        return keys

    def _evict(self, items: int, nbytes: int) -> None:
        effects = self._effects
        gone, evicted = self._storage.evict(self._remover, items, nbytes, effects.readers)
        if not effects.followers:
            self._left(gone, "evicted", None)
            return
        for part in evicted:
            self._left(part.count, "evicted", part)

    def _came(self, count: int) -> None:
        """Items have come by way of what is built on the table, and nobody follows."""
        self._counts.inserts += count
        self._effects.number += 1
        self._gate.arrivals.changed(count)

    def _left(self, gone: int, reason: str, items: Chosen | Keys | None) -> None:
        """Items have left: count them, and tell those who follow."""
        self._counts.removals += gone
        self._removed[reason] = self._removed.get(reason, 0) + gone
        if items is None:
            self._effects.number += 1
        elif isinstance(items, np.ndarray):
            self._effects.emit(Removed, items, reason, None)
        else:
            self._effects.emit(Removed, items.keys, reason, items)
        self._gate.departures.changed(gone)

    # -- sampling -------------------------------------------------------------------------------
    def sample(
        self,
        n: int,
        *,
        where: WhereLike = None,
        replace: bool = True,
        timeout: float | None = None,
    ) -> Batch:
        """Draw n items by the sampler; they stay.

        Args:
            n: How many.
            where: Only items that meet this query.
            replace: Whether an item may be drawn twice; orders never draw one twice.
            timeout: Seconds to wait until enough is there; None waits, 0 tries once.

        >>> import recollect as rc
        >>> table = rc.Table("t", capacity=9, tags={"score": float})
        >>> _ = table.insert({"x": [1, 2, 3]}, score=[0.1, 0.5, 0.9])
        >>> table.sample(2, where=rc.field("score") > 0.8)["x"]
        array([3, 3])
        """
        if timeout is not None:
            timeout = time_span("timeout", timeout)
        n, bound, replace = check_sample(self, n, where, replace)
        with self._transaction():
            self._enter()
            result = try_sample(self, n, bound, replace)
        if isinstance(result, Blocked):
            result = self._gate.wait(
                lambda: try_sample(self, n, bound, replace),
                result,
                self._gate.arrivals,
                timeout,
                f"sample({n})",
            )
        if self._effects.followers:
            self._effects.settle(result[1], changed=result[0].worn is not None)
        return result[0].read()

    async def sample_async(
        self,
        n: int,
        *,
        where: WhereLike = None,
        replace: bool = True,
        timeout: float | None = None,
    ) -> Batch:
        """The same as `sample`, for asyncio."""
        if timeout is not None:
            timeout = time_span("timeout", timeout)
        n, bound, replace = check_sample(self, n, where, replace)
        chosen, number = await self._gate.run_async(
            lambda: try_sample(self, n, bound, replace),
            self._gate.arrivals,
            timeout,
            f"sample({n})",
        )
        await self._effects.settle_async(number, changed=chosen.worn is not None)
        return chosen.read()

    # -- taking, and leases ---------------------------------------------------------------------
    def take(
        self,
        n: int,
        *,
        where: WhereLike = None,
        timeout: float | None = None,
        lease: float | None = None,
        partial: bool = False,
        owner: str = "",
    ) -> Batch:
        """Hand out n items in the sampler's order and remove them, or lease them.

        Args:
            n: How many.
            where: Only items that meet this query.
            timeout: Seconds to wait until enough is there; None waits, 0 tries once.
            lease: Hide the items for so many seconds instead of removing them, until
                `confirm` removes them or `give_back` or the deadline brings them back.
            partial: Be content with fewer than n, but at least one.
            owner: Whom the lease belongs to; `release(owner)` gives all of it back.

        >>> import recollect as rc
        >>> table = rc.Table("t", capacity=4, sampler=rc.Fifo())
        >>> _ = table.insert({"x": [1, 2]})
        >>> batch = table.take(1, lease=60)
        >>> table.confirm(batch.info.lease)
        >>> len(table)
        1
        """
        if timeout is not None:
            timeout = time_span("timeout", timeout)
        attempt = taking(self, n, where, lease, partial, owner)
        result = self._try_take(attempt)
        if isinstance(result, Blocked):
            result = self._gate.wait(attempt, result, self._gate.arrivals, timeout, f"take({n})")
        chosen, held, number = result
        try:
            self._effects.settle(number)
            return chosen.read(lease=held)
        except BaseException:
            self._undo(self._return_lease, held)
            raise

    def _return_lease(self, lease: Lease | None) -> None:
        """A call failed or was cancelled after it leased items: nobody has got them."""
        if lease is not None:
            with suppress(LeaseExpired):  # its deadline may have passed
                self._bring_back(lease, "given back")

    def _undo(self, undo: Callable[[Result], object] | None, result: Result) -> None:
        """What followed a change failed or was cancelled: undo of it what can be undone."""
        if undo is not None:
            with self._transaction():
                undo(result)
                self._effects.deliver()

    def _try_take(self, attempt: Callable[[], Result | Blocked]) -> Result | Blocked:
        """Try a take for the first time, beside other processes where rules allow it."""
        shared = self._shared
        if (
            shared is not None
            and isinstance(self._sampler, Ordered)
            and self._limiter.items_suffice()
        ):
            try:
                with shared.taking():
                    self._enter()
                    return attempt()
            except Contended:  # others hold some of them: see what they leave
                pass
        with self._transaction():
            self._enter()
            return attempt()

    async def take_async(
        self,
        n: int,
        *,
        where: WhereLike = None,
        timeout: float | None = None,
        lease: float | None = None,
        partial: bool = False,
        owner: str = "",
    ) -> Batch:
        """The same as `take`, for asyncio."""
        if timeout is not None:
            timeout = time_span("timeout", timeout)
        attempt = taking(self, n, where, lease, partial, owner)
        waited = self._gate.run_async(attempt, self._gate.arrivals, timeout, f"take({n})")
        chosen, held, number = await waited
        try:
            await self._effects.settle_async(number)
            return chosen.read(lease=held)
        except BaseException:
            self._undo(self._return_lease, held)
            raise

    def _lease(self, chosen: Chosen, owner: str, span: float) -> Lease:
        lease = self._leases.add(chosen.keys, owner, self._until(span))
        self._effects.emit(Leased, chosen.keys, lease)
        self._gate.departures.changed(chosen.count)
        if lease.deadline is not None:  # those who wait must wake up when it passes
            self._gate.wake_all()
        return lease

    def _until(self, span: float) -> float | None:
        return None if math.isinf(span) else self._clock.monotonic() + span

    def confirm(self, lease: LeaseLike | int | None) -> None:
        """The leased items are done with: remove them. A lapsed lease raises `LeaseExpired`."""
        with self._transaction():
            self._enter()
            held = self._leases.end(lease)
            done = self._storage.remove(held.keys, self._effects.readers)
            self._left(done.count, "confirmed", done)
            number = self._done()
        self._effects.settle(number)

    def give_back(self, lease: LeaseLike | int | None) -> None:
        """Bring the leased items back, in their old order and one delivery higher."""
        with self._transaction():
            self._enter()
            self._bring_back(lease, "given back")
            number = self._done()
        self._effects.settle(number)

    def renew(self, lease: LeaseLike | int | None, seconds: float) -> Lease:
        """Hold a lease for so many seconds from now."""
        span = time_span("seconds", seconds)
        with self._transaction():
            self._enter()
            renewed = self._leases.renew(lease, self._until(span))
            self._gate.wake_all()
        return renewed

    def release(self, owner: str) -> int:
        """Give back every lease of an owner, such as a process that died; returns how many."""
        if not isinstance(owner, str):
            raise InvalidValue(f"owner: expected text, got {shown(owner)}")
        with self._transaction():
            self._enter()
            leases = self._leases.of_owner(owner)
            for lease in leases:
                self._bring_back(lease, "given back")
            number = self._done()
        self._effects.settle(number)
        return len(leases)

    def _bring_back(self, lease: LeaseLike | int | None, reason: str) -> None:
        held = self._leases.end(lease)
        self._counts.samples -= self._storage.show(held.keys, returned=True)
        if self._owner is not None:
            self._owner._returned(held.lease)
        self._effects.emit(Returned, held.keys, held.lease, reason)
        self._gate.arrivals.changed(held.keys.size)
        self._gate.wake_all()

    # -- changing -------------------------------------------------------------------------------
    def update(self, keys: Any, **fields: Any) -> NDArray[np.bool_]:
        """Change priority, task, status, version or tags; returns which keys were there.

        Values are one for all or one per key. Keys whose items have gone change nothing; where
        a key is named twice, its last value counts.
        """
        keys = keys_of(keys)
        if not fields:
            raise InvalidValue(f"update: name a field to change: {', '.join(settable(self._tags))}")
        checked: dict[str, Any] = {}
        for name, value in fields.items():
            if name == "priority":
                checked[name] = check_priority(value, keys.size, self._alpha)
            else:
                checked[name] = checked_field(name, value, keys.size, self._tags)
        if self._ages and "version" in checked:
            check_versions(checked, keys.size)
        if self._weighed:
            check_weights(checked, self._weighed)
        with self._transaction():
            self._enter()
            found = self._storage.update(keys, checked)
            if not self._effects.followers:
                self._effects.number += 1
            elif found.any():
                self._effects.emit(Updated, keys[found], _selected(checked, found))
            self._gate.arrivals.changed(keys.size)
            number = self._done()
        if self._effects.followers:
            self._effects.settle(number)
        return found

    def amend(
        self, keys: Any, columns: Mapping[str, Any], *, rows_per_item: Any = None
    ) -> NDArray[np.bool_]:
        """Fill absent cells of stored items; returns which keys were there.

        `columns` holds optional columns with a cell for each row of each item, None (or absent)
        where nothing is to be filled. A cell that is present already is refused; shared columns
        are complete when their item is inserted.
        `rows_per_item` is needed only where keys may have gone and items have several rows.
        """
        keys = keys_of(keys)
        if np.unique(keys).size != keys.size:
            raise InvalidValue("keys: a key is named twice; name each once")
        with self._transaction():
            self._enter()
            if self._schema is None:
                raise SchemaError(f"table {self.name!r} is empty: there is nothing to amend")
            check_amended(self, columns)
            filling = self._schema.only(columns).check(columns)
            found = np.isin(keys, self._storage.find(keys, None, visible=False))
            if found.any():
                fill(self, keys, found, filling, rows_per_item)
                self._effects.emit(Amended, keys[found], columns)
                self._gate.arrivals.changed(keys.size)
            number = self._done()
        self._effects.settle(number)
        return found

    def add_column(
        self, name: str, dtype: Any, shape: Sequence[int] = (), *, ragged: bool = False
    ) -> None:
        """Add an optional column while the table runs; stored items have no cell in it yet.

        >>> import recollect as rc
        >>> table = rc.Table("t", capacity=4)
        >>> keys = table.insert({"x": [1, 2]})
        >>> table.add_column("ref", "float32")
        >>> table.amend(keys[:1], {"ref": [0.5]})
        array([ True])
        >>> table.get(keys).present["ref"]
        array([ True, False])
        """
        self._add_column(name, dtype, shape, ragged)
        self._effects.settle(self._effects.number)

    def _add_column(self, name: str, dtype: Any, shape: Sequence[int], ragged: bool) -> None:
        column = Column(dtype, shape, ragged=ragged, optional=True)  # type: ignore[arg-type]
        with self._transaction():
            self._enter()
            if self._schema is None:
                raise SchemaError(
                    f"table {self.name!r} has no columns yet; name this one in signature= or in "
                    "the first insert"
                )
            self._set_schema(self._schema.with_column(name, column), self._shared_schema)

    def delete(self, keys: Any = None, where: WhereLike = None) -> int:
        """Remove items by key, by query, or by both; returns how many went.

        Leased items stay: they belong to whoever holds the lease.
        """
        if keys is None and where is None:
            raise InvalidValue("delete: give keys or a query; clear() removes everything")
        bound = None if where is None else self._where(where)
        given = None if keys is None else keys_of(keys)
        with self._transaction():
            self._enter()
            found = np.zeros(0, np.uint64)
            if self._schema is not None:
                found = self._storage.find(given, bound, visible=True)
            if found.size:
                gone = self._storage.delete(found, self._effects.readers)
                self._left(gone.count, "deleted", gone)
            number = self._done()
        self._effects.settle(number)
        return int(found.size)

    def clear(self) -> None:
        """Remove everything, and end every lease."""
        with self._transaction():
            self._enter()
            self._leases.end_all()
            if len(self._storage):
                everything = self._storage.find(None, None, visible=False)
                self._storage.hide(everything)
                gone = self._storage.remove(everything, self._effects.readers)
                self._left(gone.count, "cleared", gone)
            number = self._done()
        self._effects.settle(number)

    # -- looking --------------------------------------------------------------------------------
    def get(self, keys: Any, columns: Sequence[str] | None = None) -> Batch:
        """Read items by key, without touching any counter; raises `UnknownKey` for one that went.

        `columns` names those to read, all of them where None.
        """
        keys = keys_of(keys)
        wanted = None if columns is None else names("columns", columns)
        with self._transaction():
            self._enter()
            if self._schema is None:
                raise SchemaError(f"table {self.name!r} is empty: it has no columns yet")
            chosen = self._storage.get(keys, wanted and self._schema.expand(wanted))
        return chosen.read()

    def count(self, where: WhereLike = None) -> int:
        """How many items are stored, leased ones included; or how many meet a query."""
        bound = None if where is None else self._where(where)
        with self._transaction():
            self._enter()
            return self._storage.count(bound)

    def counts(self, *fields: str) -> dict[Any, int]:
        """How many items have each value of a field, or each combination of several.

        >>> import recollect as rc
        >>> table = rc.Table("t", capacity=9, partition_by=("task",))
        >>> _ = table.insert({"x": [1, 2, 3]}, task=["math", "code", "math"])
        >>> table.counts("task")
        {'math': 2, 'code': 1}
        """
        known = ", ".join(self._fields)
        if not fields or not all(isinstance(name, str) for name in fields):
            raise InvalidValue(f'counts: name fields, as counts("task", "status"), of {known}')
        for name in fields:
            if name not in self._fields:
                raise QueryError(f"unknown field {name!r}; this table has {known}")
        with self._transaction():
            self._enter()
            return self._storage.counts(fields)

    def __len__(self) -> int:
        with self._transaction():
            return len(self._storage)

    @property
    def nbytes(self) -> int:
        """Bytes of payload that the stored items have."""
        with self._transaction():
            return self._storage.nbytes

    def stats(self) -> dict[str, Any]:
        """Numbers about the table: sizes, counts since it was made, who waits, leases."""
        with self._transaction():
            self._enter()
            storage = self._storage
            return {
                "name": self.name,
                "size": len(storage),
                "capacity": self.capacity,
                "nbytes": storage.nbytes,
                "capacity_bytes": self.capacity_bytes,
                "inserts": self._counts.inserts,
                "samples": self._counts.samples,
                "removals": self._counts.removals,
                "removed": dict(self._removed),
                "sample_calls": self._sample_calls,
                "leases": len(self._leases),
                "leased": storage.hidden,
                "waiting_to_insert": len(self._gate.departures.waiters),
                "waiting_to_sample": len(self._gate.arrivals.waiters),
                "effects": self._effects.number,
            }

    @property
    def columns(self) -> dict[str, Column]:
        """The row columns, by dotted name; empty until the first insert or signature."""
        return {} if self._schema is None else dict(self._schema.columns)

    @property
    def fields(self) -> dict[str, str]:
        """The fields that rules and queries may use, with their types."""
        return dict(self._fields)

    def __repr__(self) -> str:
        return (
            f"Table({self.name!r}, {'closed, ' if self._closed else ''}{len(self)}/{self.capacity} "
            f"items, {size(self.nbytes)}, sampler={self._sampler}, remover={self._remover}, "
            f"limiter={self._limiter})"
        )

    def _repr_html_(self) -> str:
        from recollect.base.html import of_table

        return of_table(self)

    # -- rules that may change while the table runs -----------------------------------------------
    @property
    def limiter(self) -> Limiter:
        """Whether an insert or a sample may go ahead now; assigning wakes those who wait."""
        return self._limiter

    @limiter.setter
    def limiter(self, limiter: Limiter) -> None:
        limiter = checked_limiter(limiter, self.capacity)
        with self._transaction():
            if self._schema is not None:
                self._check_bytes(limiter, self._schema, self._shared_schema)
            self._limiter = limiter
            self._gate.wake_all()

    @property
    def sampler(self) -> Selector:
        """Which item `sample` and `take` choose; another alpha computes all weights anew."""
        return self._sampler

    @sampler.setter
    def sampler(self, sampler: Selector) -> None:
        checked = checked_selector("sampler", sampler, self._fields, self._storage)
        self._set_selectors(checked, self._remover)

    @property
    def remover(self) -> Selector:
        """Which item leaves when the table is full."""
        return self._remover

    @remover.setter
    def remover(self, remover: Selector) -> None:
        checked = checked_selector("remover", remover, self._fields, self._storage)
        self._set_selectors(self._sampler, checked)

    def _set_selectors(self, sampler: Selector, remover: Selector) -> None:
        with self._transaction():
            ages, alpha = selectors_age(sampler, remover), largest_alpha(sampler, remover)
            if ages and self._schema is not None and self._storage.count(self._without_version()):
                raise InvalidValue(
                    "half_life: it ages items by their version, and some stored items have none"
                )
            check_weight(self._storage.highest_priority(), alpha)
            weighed = weighed_fields(sampler, remover)
            self._check_stored_weights(weighed)
            self._sampler, self._remover = sampler, remover
            self._ages, self._alpha, self._weighed = ages, alpha, weighed
            self._storage.keep_indexes([sampler, remover])
            self._gate.wake_all()

    def _check_stored_weights(self, weighed: Mapping[str, float]) -> None:
        """Raise where stored items have values that they cannot be weighed by."""
        for unfit in unfit_weights(weighed, self._fields) if self._schema is not None else ():
            if self._storage.count(self._where(unfit)):
                raise InvalidValue(
                    f"{next(iter(unfit))}: to weigh items by it takes finite numbers of 0 or more, "
                    "and some stored items have others; update them, or delete them"
                )

    def _without_version(self) -> Where:
        return self._where({"version": {"absent": True}})

    # -- effects --------------------------------------------------------------------------------
    def follow(self, follower: Follower) -> Callable[[], None]:
        """Tell somebody of every effect from now on; returns a call that ends it."""
        with self._transaction():
            self._effects.add(follower)

        def unfollow() -> None:
            with self._transaction():
                self._effects.remove(follower)

        return unfollow

    def _done(self) -> int:
        """At the end of a call that changed something: tell the followers; its last number."""
        self._effects.deliver()
        return self._effects.number

    # -- for what is built on a table -------------------------------------------------------------
    def _attempt(
        self,
        verb: Callable[[], Result | Blocked],
        room: Room,
        timeout: float | None,
        what: str,
        undo: Callable[[Result], object] | None = None,
    ) -> Result:
        """Try a verb under the lock, or sleep until a change in the room may let it go ahead.

        A verb is a function that changes the table and returns a result, or changes nothing and
        returns `Blocked`. What it changed is told to the followers before the lock is released.
        `undo` gets the result where nobody else does, because it could not be made safe.
        """
        tried = self._told(verb, undo)
        with self._transaction():
            self._enter()
            result = tried()
        if isinstance(result, Blocked):
            result = self._gate.wait(tried, result, room, timeout, what)
        if self._effects.followers:
            try:
                self._effects.settle(self._effects.number)
            except BaseException:
                self._undo(undo, result)
                raise
        return result

    async def _attempt_async(
        self,
        verb: Callable[[], Result | Blocked],
        room: Room,
        timeout: float | None,
        what: str,
        undo: Callable[[Result], object] | None = None,
    ) -> Result:
        """The same as `_attempt`, for asyncio."""
        tried = self._told(verb, undo)
        with self._transaction():
            self._enter()
            result = tried()
        if isinstance(result, Blocked):
            result = await self._gate.run_async(tried, room, timeout, what)
        if self._effects.followers:
            try:
                await self._effects.settle_async(self._effects.number)
            except BaseException:
                self._undo(undo, result)
                raise
        return result

    def _told(
        self, verb: Callable[[], Result | Blocked], undo: Callable[[Result], object] | None
    ) -> Callable[[], Result | Blocked]:
        """A verb that also tells the followers; one may come while it waits."""

        def tried() -> Result | Blocked:
            result = verb()
            try:
                self._effects.deliver()
            except BaseException:  # a follower's: the caller gets that, and no result
                if undo is not None and not isinstance(result, Blocked):
                    undo(result)
                raise
            return result

        return tried

    # -- coming and going -------------------------------------------------------------------------
    def close(self) -> None:
        """End the table: every waiter, and every later call, raises `TableClosed`.

        A journal is written to its end, and may then be opened again.
        """
        with self._lock():
            self._closed = True
            self._gate.wake_all()
        if self._journal is not None and not self._journal.of_store:
            self._journal.close()
        if self._shared is not None:
            self._shared.close()

    def __enter__(self) -> Table:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _enter(self) -> None:
        """What every call does first under the lock."""
        if self._closed:
            raise TableClosed(f"table {self.name!r} was closed; make a new one to go on")
        if self._leases.timed:
            for lease in self._leases.overdue(self._clock.monotonic()):
                self._bring_back(lease, "lapsed")
            self._effects.deliver()

    # -- queries ----------------------------------------------------------------------------------
    def _where(self, given: Any) -> Where:
        """Check a query against the fields, and find out what partitions can answer of it."""
        query = as_query(given)
        assert query is not None
        known = self._wheres.get(query)
        if known is None:
            bound = bind(query, self._fields)
            partitions, rest = split(bound, self.partition_by)
            known = Where(bound, partitions, rest)
            if len(self._wheres) >= REMEMBERED_QUERIES:
                self._wheres.clear()
            self._wheres[query] = known
        return known


def _selected(fields: Mapping[str, Any], found: NDArray[np.bool_]) -> dict[str, Any]:
    return {
        name: value[found] if isinstance(value, np.ndarray) and value.size == found.size else value
        for name, value in fields.items()
    }
