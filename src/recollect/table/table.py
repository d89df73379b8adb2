"""`Table`: a named set of items with a sampler, a remover, a limiter and a capacity.

The face for threads and coroutines: it checks what it is given, makes a verb of it and hands that
to its core (`table/core.py`), which has the lock, the storage and everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from recollect.base.arguments import flag, keys_of, names, text, time_span, whole
from recollect.base.arrays import Keys
from recollect.base.clock import Clock, SystemClock
from recollect.base.leases import Lease, LeaseLike
from recollect.base.readable import size
from recollect.data.batch import Batch
from recollect.data.schema import Column
from recollect.errors import InvalidValue, QueryError, SchemaError
from recollect.rules.limiters import Limiter, MinSize, Queue, Stack
from recollect.rules.query import Query
from recollect.rules.selectors import Fifo, Lifo, Selector, Uniform
from recollect.storage.base import Storage
from recollect.storage.fields import BUILT_IN, parse_tags
from recollect.table import changes, lease_verbs
from recollect.table.amendments import amend
from recollect.table.checks import (
    check_bytes,
    checked_clock,
    checked_limiter,
    checked_owner,
    checked_partition,
    checked_selector,
    checked_storage,
    declared,
)
from recollect.table.core import TableCore
from recollect.table.draws import Sample, Take
from recollect.table.effects import Follower
from recollect.table.field_set import FieldSet
from recollect.table.inserts import checked_insert
from recollect.table.rule_set import RuleSet
from recollect.table.runner import PlainVerb

if TYPE_CHECKING:
    from os import PathLike

WhereLike = Query | Mapping[str, Any] | None

LARGEST_CAPACITY = 1 << 40  # keys count to 2 ** 44, and slots are numbered in 32 bits or more


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
        tag_kinds, storage = parse_tags(tags), checked_storage(storage)
        kinds = {**BUILT_IN, **tag_kinds}
        items = whole("capacity", capacity, 1, LARGEST_CAPACITY)
        nbytes = None if capacity_bytes is None else whole("capacity_bytes", capacity_bytes, 1)
        self.core = TableCore(
            text("name", name),
            items,
            nbytes,
            whole("max_times_sampled", max_times_sampled, 0, 1 << 30),
            FieldSet(tag_kinds, checked_partition(partition_by, tag_kinds)),
            RuleSet(
                checked_selector(
                    "sampler", Uniform() if sampler is None else sampler, kinds, storage
                ),
                checked_selector("remover", Fifo() if remover is None else remover, kinds, storage),
                checked_limiter(MinSize(1) if limiter is None else limiter, items),
            ),
            storage,
            SystemClock() if clock is None else checked_clock(clock),
            flag("checkpoint", checkpoint),
            None if seed is None else whole("seed", seed, 0),
            journaled=journal is not None,
        )
        if signature is not None:
            rows, shared = declared(signature)
            check_bytes(nbytes, self.limiter, rows, shared)
            changes.declare(self.core, rows, shared)
        if journal is not None:
            from recollect.table.journaled import open_journal

            open_journal(self.core, journal)

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
        from recollect.base import registry

        return registry.resolve("table_from_config", Table)(config)

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
        core = self.core
        return core.run(
            checked_insert(core, columns, shared, rows_per_item, priority, request, fields, timeout)
        )

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
        core = self.core
        return await core.run_async(
            checked_insert(core, columns, shared, rows_per_item, priority, request, fields, timeout)
        )

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
        return self.core.run(Sample(self.core, n, where, replace, timeout))

    async def sample_async(
        self,
        n: int,
        *,
        where: WhereLike = None,
        replace: bool = True,
        timeout: float | None = None,
    ) -> Batch:
        """The same as `sample`, for asyncio."""
        return await self.core.run_async(Sample(self.core, n, where, replace, timeout))

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
        return self.core.run(Take(self.core, n, where, timeout, lease, partial, owner))

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
        verb = Take(self.core, n, where, timeout, lease, partial, owner)
        return await self.core.run_async(verb)

    def confirm(self, lease: LeaseLike | int | None) -> None:
        """The leased items are done with: remove them. A lapsed lease raises `LeaseExpired`."""
        self.core.run(PlainVerb("confirm", lambda: lease_verbs.confirm(self.core, lease)))

    def give_back(self, lease: LeaseLike | int | None) -> None:
        """Bring the leased items back, in their old order and one delivery higher."""
        self.core.run(PlainVerb("give_back", lambda: self.core.bring_back(lease, "given back")))

    def renew(self, lease: LeaseLike | int | None, seconds: float) -> Lease:
        """Hold a lease for so many seconds from now."""
        span = time_span("seconds", seconds)
        return self.core.run(PlainVerb("renew", lambda: lease_verbs.renew(self.core, lease, span)))

    def release(self, owner: str) -> int:
        """Give back every lease of an owner, such as a process that died; returns how many."""
        whose = checked_owner(owner)
        return self.core.run(PlainVerb("release", lambda: lease_verbs.release(self.core, whose)))

    # -- changing -------------------------------------------------------------------------------
    def update(self, keys: Any, **fields: Any) -> NDArray[np.bool_]:
        """Change priority, task, status, version or tags; returns which keys were there.

        Values are one for all or one per key. Keys whose items have gone change nothing; where
        a key is named twice, its last value counts.
        """
        keys = keys_of(keys)
        checked = changes.checked_fields(self.core, fields, keys.size)
        return self.core.run(PlainVerb("update", lambda: changes.update(self.core, keys, checked)))

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
        return self.core.run(
            PlainVerb("amend", lambda: amend(self.core, keys, columns, rows_per_item))
        )

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
        column = Column(dtype, shape, ragged=ragged, optional=True)  # type: ignore[arg-type]
        self.core.run(PlainVerb("add_column", lambda: changes.add_column(self.core, name, column)))

    def delete(self, keys: Any = None, where: WhereLike = None) -> int:
        """Remove items by key, by query, or by both; returns how many went.

        Leased items stay: they belong to whoever holds the lease.
        """
        if keys is None and where is None:
            raise InvalidValue("delete: give keys or a query; clear() removes everything")
        bound = None if where is None else self.core.fields.where(where)
        given = None if keys is None else keys_of(keys)
        return self.core.run(PlainVerb("delete", lambda: changes.delete(self.core, given, bound)))

    def clear(self) -> None:
        """Remove everything, and end every lease."""
        self.core.run(PlainVerb("clear", lambda: changes.clear(self.core)))

    # -- looking --------------------------------------------------------------------------------
    def get(self, keys: Any, columns: Sequence[str] | None = None) -> Batch:
        """Read items by key, without touching any counter; raises `UnknownKey` for one that went.

        `columns` names those to read, all of them where None.
        """
        keys = keys_of(keys)
        wanted = None if columns is None else names("columns", columns)
        with self.core.transaction():
            self.core.enter()
            if self.core.schemas.rows is None:
                raise SchemaError(f"table {self.name!r} is empty: it has no columns yet")
            chosen = self.core.storage.get(keys, wanted and self.core.schemas.rows.expand(wanted))
        return chosen.read()

    def count(self, where: WhereLike = None) -> int:
        """How many items are stored, leased ones included; or how many meet a query."""
        bound = None if where is None else self.core.fields.where(where)
        with self.core.transaction():
            self.core.enter()
            return self.core.storage.count(bound)

    def counts(self, *fields: str) -> dict[Any, int]:
        """How many items have each value of a field, or each combination of several.

        >>> import recollect as rc
        >>> table = rc.Table("t", capacity=9, partition_by=("task",))
        >>> _ = table.insert({"x": [1, 2, 3]}, task=["math", "code", "math"])
        >>> table.counts("task")
        {'math': 2, 'code': 1}
        """
        known = ", ".join(self.core.fields.kinds)
        if not fields or not all(isinstance(name, str) for name in fields):
            raise InvalidValue(f'counts: name fields, as counts("task", "status"), of {known}')
        for name in fields:
            if name not in self.core.fields.kinds:
                raise QueryError(f"unknown field {name!r}; this table has {known}")
        with self.core.transaction():
            self.core.enter()
            return self.core.storage.counts(fields)

    def __len__(self) -> int:
        with self.core.transaction():
            return len(self.core.storage)

    @property
    def nbytes(self) -> int:
        """Bytes of payload that the stored items have."""
        with self.core.transaction():
            return self.core.storage.nbytes

    def stats(self) -> dict[str, Any]:
        """Numbers about the table: sizes, counts since it was made, who waits, leases."""
        with self.core.transaction():
            self.core.enter()
            storage = self.core.storage
            return {
                "name": self.name,
                "size": len(storage),
                "capacity": self.capacity,
                "nbytes": storage.nbytes,
                "capacity_bytes": self.capacity_bytes,
                "inserts": self.core.counts.inserts,
                "samples": self.core.counts.samples,
                "removals": self.core.counts.removals,
                "removed": dict(self.core.counts.removed),
                "sample_calls": self.core.counts.sample_calls,
                "leases": len(self.core.leases),
                "leased": storage.hidden,
                "waiting_to_insert": len(self.core.gate.departures.waiters),
                "waiting_to_sample": len(self.core.gate.arrivals.waiters),
                "effects": self.core.effects.number,
            }

    @property
    def columns(self) -> dict[str, Column]:
        """The row columns, by dotted name; empty until the first insert or signature."""
        return {} if self.core.schemas.rows is None else dict(self.core.schemas.rows.columns)

    @property
    def fields(self) -> dict[str, str]:
        """The fields that rules and queries may use, with their types."""
        return dict(self.core.fields.kinds)

    @property
    def name(self) -> str:
        """What messages and stores call the table."""
        return self.core.name

    @property
    def capacity(self) -> int:
        """How many items it holds at most."""
        return self.core.capacity

    @property
    def capacity_bytes(self) -> int | None:
        """How many bytes of payload it holds at most, None for no bound."""
        return self.core.capacity_bytes

    @property
    def max_times_sampled(self) -> int:
        """After so many samples an item leaves; 0 for no limit."""
        return self.core.max_times_sampled

    @property
    def checkpoint(self) -> bool:
        """Whether a store's snapshot includes this table."""
        return self.core.checkpoint

    @property
    def partition_by(self) -> tuple[str, ...]:
        """Fields whose equality in a `where` is answered without a scan."""
        return self.core.fields.partition_by

    def __repr__(self) -> str:
        closed = "closed, " if self.core.closed else ""
        return (
            f"Table({self.name!r}, {closed}{len(self)}/{self.capacity} items, {size(self.nbytes)}, "
            f"sampler={self.sampler}, remover={self.remover}, limiter={self.limiter})"
        )

    def _repr_html_(self) -> str:
        from recollect.base.html import closed
        from recollect.table.table_html import of_table, some_items

        core = self.core
        if core.closed:
            return closed(f"Table {self.name!r}")
        stats, columns = self.stats(), self.columns
        with core.transaction():
            info = None if core.schemas.rows is None else some_items(core.storage)
        return of_table(stats, self.sampler, self.remover, self.limiter, columns, info)

    # -- rules that may change while the table runs -----------------------------------------------
    @property
    def limiter(self) -> Limiter:
        """Whether an insert or a sample may go ahead now; assigning wakes those who wait."""
        return self.core.rules.limiter

    @limiter.setter
    def limiter(self, limiter: Limiter) -> None:
        core, limiter = self.core, checked_limiter(limiter, self.capacity)
        with core.transaction():
            rows, shared = core.schemas
            if rows is not None:
                check_bytes(core.capacity_bytes, limiter, rows, shared)
            core.rules = RuleSet(core.rules.sampler, core.rules.remover, limiter)
            core.gate.wake_all()

    @property
    def sampler(self) -> Selector:
        """Which item `sample` and `take` choose; another alpha computes all weights anew."""
        return self.core.rules.sampler

    @sampler.setter
    def sampler(self, sampler: Selector) -> None:
        self._set_selectors(self._checked("sampler", sampler), self.remover)

    @property
    def remover(self) -> Selector:
        """Which item leaves when the table is full."""
        return self.core.rules.remover

    @remover.setter
    def remover(self, remover: Selector) -> None:
        self._set_selectors(self.sampler, self._checked("remover", remover))

    def _checked(self, role: str, selector: Selector) -> Selector:
        return checked_selector(role, selector, self.core.fields.kinds, self.core.storage)

    def _set_selectors(self, sampler: Selector, remover: Selector) -> None:
        with self.core.transaction():
            changes.set_selectors(self.core, sampler, remover)

    # -- effects --------------------------------------------------------------------------------
    def follow(self, follower: Follower) -> Callable[[], None]:
        """Tell somebody of every effect from now on; returns a call that ends it."""
        with self.core.transaction():
            self.core.effects.add(follower)

        def unfollow() -> None:
            with self.core.transaction():
                self.core.effects.remove(follower)

        return unfollow

    # -- coming and going -------------------------------------------------------------------------
    def close(self) -> None:
        """End the table: every waiter, and every later call, raises `TableClosed`.

        A journal is written to its end, and may then be opened again.
        """
        self.core.close()

    def __enter__(self) -> Table:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
