"""`Table`: a named set of items with a sampler, a remover, a limiter and a capacity.

The table checks what it is given, decides with its limiter whether a call may go ahead, lets
its storage do it, and keeps everything that is not storage: counters, leases, requests, those
who wait, and those who follow its effects. One lock guards it all; payload is copied outside.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from recollect.batch import Batch
from recollect.clock import Clock, SystemClock
from recollect.effects import Amended, Follower, Inserted, Leased, Removed, Returned, Updated
from recollect.errors import (
    InvalidValue,
    NeverPossible,
    QueryError,
    SchemaError,
    TableClosed,
    WaitTimeout,
)
from recollect.info import Lease
from recollect.leases import Leases
from recollect.limiters import Counts, Limiter, MinSize, Queue, Stack
from recollect.query import Query, as_query, bind, split
from recollect.schema import Column, Rows, Schema
from recollect.selectors import Fifo, Lifo, Mixed, Ordered, Prioritized, Selector, Uniform
from recollect.storage.base import Chosen, Layout, NewItems, Storage, Where
from recollect.storage.fields import (
    BUILT_IN,
    SETTABLE,
    FieldValue,
    check_priority,
    check_value,
    parse_tags,
)
from recollect.waiting import Blocked, Room, TaskWaiter, ThreadWaiter, Waiter

if TYPE_CHECKING:
    from os import PathLike

Keys = NDArray[np.uint64]
Result = TypeVar("Result")
Attempt = Callable[[], Result | Blocked]

REMEMBERED_REQUESTS = 1024  # per producer; what is older may not be repeated
REMEMBERED_PRODUCERS = 4096
ONE_ROW = np.ones(1, np.int32)


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
        signature: The columns, as `rc.Column`s by name; None lets the first insert fix them.
        tags: More fields that rules and queries may use: names and types.
        partition_by: Fields whose equality in a `where` is answered without a scan.
        storage: Where items live; `rc.MemoryStorage()` where None.
        seed: Makes draws repeatable; None for a random one.
        journal: Not available yet; must be None.
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
        if not isinstance(name, str) or not name:
            raise InvalidValue(f"name: expected text, got {name!r}")
        self.name = name
        self.capacity = _whole("capacity", capacity, 1)
        self.capacity_bytes = None
        if capacity_bytes is not None:
            self.capacity_bytes = _whole("capacity_bytes", capacity_bytes, 1)
        self.max_times_sampled = _whole("max_times_sampled", max_times_sampled, 0)
        if seed is not None:
            _whole("seed", seed, 0)
        if journal is not None:
            raise InvalidValue("journal: tables cannot be journaled yet; leave it None")
        self.checkpoint = checkpoint
        self._fields = {**BUILT_IN, **parse_tags(tags)}
        self._tags = tuple(parse_tags(tags))
        self.partition_by = self._check_partition(partition_by)
        self._sampler = self._check_selector("sampler", Uniform() if sampler is None else sampler)
        self._remover = self._check_selector("remover", Fifo() if remover is None else remover)
        self._limiter = self._check_limiter(MinSize(1) if limiter is None else limiter)
        self._schema: Schema | None = None
        self._shared_schema: Schema | None = None
        self._clock: Clock = SystemClock() if clock is None else clock
        self._inserts = self._samples = self._removals = 0
        self._sample_calls = 0
        self._removed: dict[str, int] = {}
        self._number = 0
        self._followers: tuple[Follower, ...] = ()
        self._leases = Leases()
        self._requests: OrderedDict[Any, OrderedDict[int, tuple[int, int]]] = OrderedDict()
        self._arrivals, self._departures = Room(), Room()
        self._wheres: dict[Query, Where] = {}
        self._closed = False
        if storage is None:
            from recollect.storage.memory import MemoryStorage

            storage = MemoryStorage()
        self._storage = storage
        self._transaction = storage.transaction
        layout = Layout(
            name, self.capacity, self._fields, self.partition_by, self.max_times_sampled, seed
        )
        storage.open(layout)
        if signature is not None:
            self._declare(signature)
        self._clock.on_turn(self._time_turned)

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

    # -- checks at construction -----------------------------------------------------------------
    def _check_partition(self, fields: Sequence[str]) -> tuple[str, ...]:
        fields = (fields,) if isinstance(fields, str) else tuple(fields)
        for name in fields:
            if name not in self._fields or name in BUILT_IN and name not in SETTABLE[1:]:
                allowed = [*SETTABLE[1:], *self._tags]
                raise InvalidValue(
                    f"partition_by: {name!r} is not one of {', '.join(allowed)}"
                )
        if len(set(fields)) < len(fields):
            raise InvalidValue(f"partition_by: a field is named twice in {fields}")
        return fields

    def _check_selector(self, role: str, selector: Any) -> Selector:
        if not isinstance(selector, Selector):
            raise InvalidValue(f"{role}: expected a selector such as rc.Fifo(), got {selector!r}")
        parts = selector.selectors if isinstance(selector, Mixed) else ((selector, 1.0),)
        for part, _ in parts:
            if isinstance(part, Ordered):
                kind = self._fields.get(part.by)
                if kind is None:
                    raise InvalidValue(
                        f"{role}: {part} names no field; there are {', '.join(self._fields)}"
                    )
                if kind == "str":
                    raise InvalidValue(f"{role}: {part.by!r} is text, which has no order")
        return selector

    def _check_limiter(self, limiter: Any) -> Limiter:
        if not isinstance(limiter, Limiter):
            raise InvalidValue(f"limiter: expected a limiter such as rc.MinSize(1), got {limiter!r}")
        limiter.check_capacity(self.capacity)
        return limiter

    def _declare(self, signature: Mapping[str, Any]) -> None:
        columns = Schema.from_signature(signature).columns
        rows = {name: column for name, column in columns.items() if not column.shared}
        shared = {name: column for name, column in columns.items() if column.shared}
        with self._transaction():
            self._set_schema(Schema(rows), Schema(shared, "shared column") if shared else None)

    def _set_schema(self, rows: Schema, shared: Schema | None) -> None:
        self._schema, self._shared_schema = rows, shared
        self._storage.set_schema(rows, shared)

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
        attempt = self._inserting(columns, shared, rows_per_item, priority, request, fields)
        keys, number = self._wait(attempt, self._departures, timeout, "insert")
        self._settle(number)
        return keys

    async def insert_async(self, columns: Mapping[str, Any], **options: Any) -> Keys:
        """The same as `insert`, for asyncio."""
        timeout = options.pop("timeout", None)
        attempt = self._inserting(
            columns,
            options.pop("shared", None),
            options.pop("rows_per_item", 1),
            options.pop("priority", None),
            options.pop("request", None),
            options,
        )
        keys, number = await self._wait_async(attempt, self._departures, timeout, "insert")
        self._settle(number)
        return keys

    def _inserting(
        self,
        columns: Mapping[str, Any],
        shared: Mapping[str, Any] | None,
        rows_per_item: Any,
        priority: Any,
        request: tuple[Any, int] | None,
        fields: dict[str, Any],
    ) -> Attempt[tuple[Keys, int]]:
        """Check everything; what remains may wait, and is tried under the lock."""
        schema = self._schema or Schema.infer(columns)
        rows = schema.check(columns)
        per_item, count = _items_of(rows.count, rows_per_item)
        shared_schema, shared_rows = self._check_shared(shared, count)
        if fields:
            fields = {
                name: self._check_field(name, value, count) for name, value in fields.items()
            }
        if priority is not None:
            priority = self._check_priority(priority, count)
        if request is not None:
            _check_request(request)
        self._check_ages(fields)
        if count > self.capacity:
            raise NeverPossible(
                f"an insert of {count} items never fits table {self.name!r} of capacity "
                f"{self.capacity}; insert fewer at a time"
            )
        self._limiter.check_insert(count)
        new = NewItems(rows, shared_rows, per_item, count, priority, fields, 0.0)

        def attempt() -> tuple[Keys, int] | Blocked:
            if self._schema is not schema:
                if self._schema is None:
                    self._set_schema(schema, shared_schema)
                else:
                    new.rows = self._schema.check(columns)
                    new.shared = self._check_shared(shared, count)[1]
            if request is not None:
                keys = self._repeated(request)
                if keys is not None:
                    return keys, self._number
            return self._try_insert(new, request)

        return attempt

    def _check_shared(
        self, shared: Mapping[str, Any] | None, count: int
    ) -> tuple[Schema | None, Rows | None]:
        if self._schema is None:
            if not shared:
                return None, None
            schema = Schema.infer(shared, "shared column")
        else:
            if self._shared_schema is None:
                if shared:
                    raise SchemaError(
                        f"table {self.name!r} has no shared columns; its first insert, or "
                        "signature= with rc.Column(..., shared=True), must name them"
                    )
                return None, None
            schema = self._shared_schema
        rows = schema.check(shared or {})
        if not shared:
            rows.count = count
        if rows.count != count:
            raise SchemaError(
                f"shared columns need one cell per item: there are {count} items, and they have "
                f"{rows.count} cells"
            )
        return schema, rows

    def _try_insert(
        self, new: NewItems, request: tuple[Any, int] | None
    ) -> tuple[Keys, int] | Blocked:
        storage = self._storage
        count = new.count
        if count == 0:
            return np.zeros(0, np.uint64), self._number
        counts = Counts(self._inserts, self._samples, self._removals)
        departures = self._limiter.departures_needed(counts, count)
        if departures:
            return Blocked(
                f"limiter {self._limiter} needs {_many(departures, 'more sample or removal')}",
                departures,
            )
        excess = len(storage) + count - self.capacity
        excess_bytes = 0
        if self.capacity_bytes is not None:
            payload = storage.payload_of(new)
            if payload > self.capacity_bytes:
                raise NeverPossible(
                    f"an insert of {payload} bytes never fits table {self.name!r} of "
                    f"{self.capacity_bytes} bytes; insert fewer at a time"
                )
            excess_bytes = storage.nbytes + payload - self.capacity_bytes
        if excess > 0 or excess_bytes > 0:
            short = self._make_place(max(excess, 0), max(excess_bytes, 0), new)
            if short is not None:
                return short
        new.inserted_at = self._clock.time()
        keys = storage.insert(new)
        self._inserts += count
        self._number += 1
        if request is not None:
            self._remember(request, keys)
        if self._followers:
            self._tell(Inserted(self._number, keys, new, request))
        self._arrivals.changed(count)
        return keys, self._number

    def _make_place(self, items: int, nbytes: int, new: NewItems) -> Blocked | None:
        """Evict what must leave; what is leased cannot, and then the insert waits."""
        storage = self._storage
        evictable = len(storage) - storage.hidden
        if items > evictable or nbytes > storage.nbytes - self._leases.nbytes:
            return Blocked(
                f"the table is full and {_many(storage.hidden, 'item')} of {len(storage)} are "
                "leased; a lease must be confirmed or given back"
            )
        if new.priority is None:
            new.priority = np.array([storage.highest_priority()])
        for evicted in storage.evict(self._remover, items, nbytes, bool(self._followers)):
            self._left(evicted, "evicted")
        return None

    def _left(self, items: Chosen, reason: str) -> None:
        """Items have left: count them, and tell those who follow."""
        gone = len(items.keys)
        self._removals += gone
        self._removed[reason] = self._removed.get(reason, 0) + gone
        self._number += 1
        if self._followers:
            self._tell(Removed(self._number, items.keys, reason, items))
        self._departures.changed(gone)

    def _repeated(self, request: tuple[Any, int]) -> Keys | None:
        producer, number = request
        known = self._requests.get(producer)
        if known is None:
            return None
        if number in known:
            first, count = known[number]
            return np.arange(count, dtype=np.uint64) + np.uint64(first)
        if len(known) >= REMEMBERED_REQUESTS and number < next(iter(known)):
            raise InvalidValue(
                f"request {number} of {producer!r} is too old to be repeated: the last "
                f"{REMEMBERED_REQUESTS} are remembered"
            )
        return None

    def _remember(self, request: tuple[Any, int], keys: Keys) -> None:
        producer, number = request
        known = self._requests.setdefault(producer, OrderedDict())
        known[number] = (int(keys[0]), len(keys))
        self._requests.move_to_end(producer)
        if len(known) > REMEMBERED_REQUESTS:
            known.popitem(last=False)
        if len(self._requests) > REMEMBERED_PRODUCERS:
            self._requests.popitem(last=False)

    # -- sampling -------------------------------------------------------------------------------
    def sample(
        self,
        n: int,
        *,
        where: Query | Mapping[str, Any] | None = None,
        replace: bool = True,
        timeout: float | None = None,
    ) -> Batch:
        """Draw n items by the sampler; they stay.

        Args:
            n: How many.
            where: Only items that meet this query.
            replace: Whether an item may be drawn twice; orders never draw one twice.
            timeout: Seconds to wait until enough is there; None waits, 0 tries once.
        """
        attempt = self._sampling(n, where, replace)
        chosen, number = self._wait(attempt, self._arrivals, timeout, f"sample({n})")
        if self._followers:
            self._settle(number)
        return chosen.read()

    async def sample_async(
        self,
        n: int,
        *,
        where: Query | Mapping[str, Any] | None = None,
        replace: bool = True,
        timeout: float | None = None,
    ) -> Batch:
        """The same as `sample`, for asyncio."""
        attempt = self._sampling(n, where, replace)
        chosen, number = await self._wait_async(attempt, self._arrivals, timeout, f"sample({n})")
        self._settle(number)
        return chosen.read()

    def _sampling(self, n: int, where: Any, replace: bool) -> Attempt[tuple[Chosen, int]]:
        n = _whole("n", n, 1)
        bound = None if where is None else self._where(where)
        self._limiter.check_sample(n)
        distinct = _different_items(self._sampler, n, replace, self.max_times_sampled > 0)
        if distinct > self.capacity:
            raise NeverPossible(
                f"{n} different items are never there: the capacity of table {self.name!r} is "
                f"{self.capacity}"
            )
        if self.max_times_sampled and n > self.capacity * self.max_times_sampled:
            raise NeverPossible(
                f"{n} samples are never there: {self.capacity} items at most, each sampled "
                f"{self.max_times_sampled} times at most"
            )

        def attempt() -> tuple[Chosen, int] | Blocked:
            blocked = self._cannot_sample(n, n, distinct, bound)
            if blocked is not None:
                return blocked
            chosen = self._storage.sample(self._sampler, n, bound, replace, self._sample_calls)
            self._samples += n
            self._sample_calls += 1
            if chosen.worn is not None:
                self._worn(chosen)
            self._departures.changed(n)
            return chosen, self._number

        return attempt

    def _worn(self, chosen: Chosen) -> None:
        """Items that reached max_times_sampled have left with this sample."""
        gone = len(chosen.worn)
        self._removals += gone
        self._removed["sampled"] = self._removed.get("sampled", 0) + gone
        self._number += 1
        if self._followers:
            self._tell(Removed(self._number, chosen.worn, "sampled", chosen))

    def _cannot_sample(
        self, n: int, draws: int, distinct: int, where: Where | None
    ) -> Blocked | None:
        """Why n items cannot be handed out now, None where they can."""
        counts = Counts(self._inserts, self._samples, self._removals)
        inserts = self._limiter.inserts_needed(counts, n)
        visible, sampled = self._storage.available(where)
        missing = distinct - visible
        if self.max_times_sampled:
            uses = visible * self.max_times_sampled - sampled
            missing = max(missing, math.ceil((draws - uses) / self.max_times_sampled))
        if inserts <= 0 and missing <= 0:
            return None
        needs = f"needs {_many(distinct, 'item')}, has {visible}"
        if inserts:
            needs += f"; limiter {self._limiter} needs {_many(inserts, 'more insert')}"
        return Blocked(needs, max(inserts, missing, 1))

    # -- taking, and leases ---------------------------------------------------------------------
    def take(
        self,
        n: int,
        *,
        where: Query | Mapping[str, Any] | None = None,
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
        attempt = self._taking(n, where, lease, partial, owner)
        chosen, held, number = self._wait(attempt, self._arrivals, timeout, f"take({n})")
        self._settle(number)
        return chosen.read(lease=held)

    async def take_async(
        self,
        n: int,
        *,
        where: Query | Mapping[str, Any] | None = None,
        timeout: float | None = None,
        lease: float | None = None,
        partial: bool = False,
        owner: str = "",
    ) -> Batch:
        """The same as `take`, for asyncio."""
        attempt = self._taking(n, where, lease, partial, owner)
        waited = self._wait_async(attempt, self._arrivals, timeout, f"take({n})")
        chosen, held, number = await waited
        self._settle(number)
        return chosen.read(lease=held)

    def _taking(
        self, n: int, where: Any, lease: float | None, partial: bool, owner: str
    ) -> Attempt[tuple[Chosen, Lease | None, int]]:
        n = _whole("n", n, 1)
        bound = None if where is None else self._where(where)
        seconds = None if lease is None else _seconds("lease", lease)
        if not isinstance(owner, str):
            raise InvalidValue(f"owner: expected text, got {owner!r}")
        if not partial:
            self._limiter.check_sample(n)
            if n > self.capacity:
                raise NeverPossible(
                    f"{n} different items are never there: the capacity of table {self.name!r} "
                    f"is {self.capacity}"
                )

        def attempt() -> tuple[Chosen, Lease | None, int] | Blocked:
            count = n
            if partial:
                counts = Counts(self._inserts, self._samples, self._removals)
                visible, _ = self._storage.available(bound)
                count = int(min(n, visible, self._limiter.samples_allowed(counts)))
                count = max(count, 1)
            blocked = self._cannot_sample(count, 0, count, bound)
            if blocked is not None:
                return blocked
            chosen = self._storage.take(self._sampler, count, bound, hide=seconds is not None)
            self._samples += count
            held = None
            if seconds is None:
                self._left(chosen, "taken")
            else:
                held = self._lease(chosen, owner, seconds)
            return chosen, held, self._number

        return attempt

    def _lease(self, chosen: Chosen, owner: str, seconds: float) -> Lease:
        deadline = None if math.isinf(seconds) else self._clock.monotonic() + seconds
        lease = self._leases.add(chosen.keys, chosen.nbytes, owner, deadline)
        self._number += 1
        if self._followers:
            self._tell(Leased(self._number, chosen.keys, lease))
        self._departures.changed(len(chosen.keys))
        if deadline is not None:  # those who wait must wake up when it passes
            self._arrivals.wake_all()
            self._departures.wake_all()
        return lease

    def confirm(self, lease: Lease | int) -> None:
        """The leased items are done with: remove them. A lapsed lease raises `LeaseExpired`."""
        with self._transaction():
            self._enter()
            held = self._leases.end(lease)
            self._left(self._storage.remove(held.keys, bool(self._followers)), "confirmed")
            number = self._number
        self._settle(number)

    def give_back(self, lease: Lease | int) -> None:
        """Bring the leased items back, in their old order and one delivery higher."""
        with self._transaction():
            self._enter()
            self._bring_back(lease, "given back")
            number = self._number
        self._settle(number)

    def renew(self, lease: Lease | int, seconds: float) -> Lease:
        """Hold a lease for so many seconds from now."""
        seconds = _seconds("seconds", seconds)
        with self._transaction():
            self._enter()
            deadline = None if math.isinf(seconds) else self._clock.monotonic() + seconds
            renewed = self._leases.renew(lease, deadline)
            self._arrivals.wake_all()
            self._departures.wake_all()
        return renewed

    def release(self, owner: str) -> int:
        """Give back every lease of an owner, such as a process that died; returns how many."""
        with self._transaction():
            self._enter()
            leases = self._leases.of_owner(owner)
            for lease in leases:
                self._bring_back(lease, "given back")
            number = self._number
        self._settle(number)
        return len(leases)

    def _bring_back(self, lease: Lease | int, reason: str) -> None:
        held = self._leases.end(lease)
        self._samples -= self._storage.show(held.keys, uncount=True)
        self._number += 1
        if self._followers:
            self._tell(Returned(self._number, held.keys, held.lease, reason))
        self._arrivals.changed(len(held.keys))
        self._arrivals.wake_all()
        self._departures.wake_all()

    # -- changing -------------------------------------------------------------------------------
    def update(self, keys: Any, **fields: Any) -> NDArray[np.bool_]:
        """Change priority, task, status, version or tags; returns which keys were there.

        Values are one for all or one per key. Keys whose items have gone change nothing.
        """
        keys = _keys(keys)
        if not fields:
            raise InvalidValue(f"update: name a field to change: {', '.join(self._settable())}")
        checked: dict[str, Any] = {}
        for name, value in fields.items():
            if name == "priority":
                checked[name] = self._check_priority(value, keys.size)
            else:
                checked[name] = self._check_field(name, value, keys.size)
        if "version" in checked:
            self._check_ages(checked)
        with self._transaction():
            self._enter()
            found = self._storage.update(keys, checked)
            self._number += 1
            number = self._number
            if self._followers:
                self._tell(Updated(number, keys[found], _only(checked, found)))
            self._arrivals.changed(keys.size)
        if self._followers:
            self._settle(number)
        return found

    def amend(
        self, keys: Any, columns: Mapping[str, Any], *, rows_per_item: Any = None
    ) -> NDArray[np.bool_]:
        """Fill absent cells of stored items; returns which keys were there.

        `columns` holds optional columns with a cell for each row of each item, None (or absent)
        where nothing is to be filled. A cell that is present already is refused.
        `rows_per_item` is needed only where keys may have gone and items have several rows.
        """
        keys = _keys(keys)
        if np.unique(keys).size != keys.size:
            raise InvalidValue("amend: a key is named twice")
        with self._transaction():
            self._enter()
            if self._schema is None:
                raise SchemaError(f"table {self.name!r} is empty: there is nothing to amend")
            found = np.isin(keys, self._storage.find(keys, None, visible=False))
            if found.any():
                self._fill_cells(keys, found, columns, rows_per_item)
            self._number += 1
            number = self._number
            if self._followers:
                self._tell(Amended(number, keys[found], columns))
            self._arrivals.changed(keys.size)
        self._settle(number)
        return found

    def _fill_cells(
        self, keys: Keys, found: NDArray[np.bool_], columns: Mapping[str, Any], rows_per_item: Any
    ) -> None:
        assert self._schema is not None
        stored = self._storage.get(keys[found], None).read()
        counts = np.diff(stored.info.row_offsets)
        filling = self._schema.only(columns).check(columns)
        if filling.count == stored.rows:
            given = np.ones(stored.rows, np.bool_)
        else:
            per_item, count = _items_of(filling.count, 1 if rows_per_item is None else rows_per_item)
            per_key = np.broadcast_to(per_item, count)
            if count != keys.size or not np.array_equal(per_key[found], counts):
                raise SchemaError(
                    f"amend: the columns have {filling.count} rows and the items {stored.rows}; "
                    "give every row of every item, and rows_per_item where keys may have gone"
                )
            given = np.repeat(found, per_key)
        rows = self._schema.filled(stored, filling, given)
        per_item = counts.astype(np.int32)
        self._storage.amend(keys[found], rows, per_item)

    def add_column(self, name: str, dtype: Any, shape: Sequence[int] = (), **options: Any) -> None:
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
        column = Column(dtype, tuple(shape), optional=True, **options)
        with self._transaction():
            self._enter()
            if self._schema is None:
                raise SchemaError(
                    f"table {self.name!r} has no columns yet; name this one in signature= or in "
                    "the first insert"
                )
            if not isinstance(name, str) or not name:
                raise SchemaError(f"a column's name is text, got {name!r}")
            clashes = [n for n in self._schema.columns if _clash(n, name)]
            if clashes:
                raise SchemaError(f"column {name!r}: there is a column {clashes[0]!r} already")
            self._set_schema(self._schema.with_column(name, column), self._shared_schema)

    def delete(
        self, keys: Any = None, where: Query | Mapping[str, Any] | None = None
    ) -> int:
        """Remove items by key, by query, or by both; returns how many went.

        Leased items stay: they belong to whoever holds the lease.
        """
        if keys is None and where is None:
            raise InvalidValue("delete: give keys or a query; clear() removes everything")
        bound = None if where is None else self._where(where)
        named = None if keys is None else _keys(keys)
        with self._transaction():
            self._enter()
            if self._schema is None:
                return 0
            found = self._storage.find(named, bound, visible=True)
            if found.size:
                self._left(self._storage.delete(found, bool(self._followers)), "deleted")
            number = self._number
        self._settle(number)
        return int(found.size)

    def clear(self) -> None:
        """Remove everything, and end every lease."""
        with self._transaction():
            self._enter()
            if self._schema is not None and len(self._storage):
                everything = self._storage.find(None, None, visible=False)
                visible = self._storage.find(None, None, visible=True)
                leased = np.setdiff1d(everything, visible)
                self._leases = Leases(first_id=self._leases.next_id)
                for gone in (
                    self._storage.delete(visible, bool(self._followers)),
                    self._storage.remove(leased, bool(self._followers)),
                ):
                    self._left(gone, "cleared")
            number = self._number
        self._settle(number)

    # -- looking --------------------------------------------------------------------------------
    def get(self, keys: Any, columns: Sequence[str] | None = None) -> Batch:
        """Read items by key, without touching any counter; raises `UnknownKey` for one that went.

        `columns` names those to read, all of them where None.
        """
        keys = _keys(keys)
        with self._transaction():
            self._enter()
            if self._schema is None:
                raise SchemaError(f"table {self.name!r} is empty: it has no columns yet")
            if columns is not None:
                columns = self._schema.expand(columns)
            chosen = self._storage.get(keys, columns)
        return chosen.read()

    def count(self, where: Query | Mapping[str, Any] | None = None) -> int:
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
        if not fields:
            raise InvalidValue(f"counts: name one or more of {', '.join(self._fields)}")
        for name in fields:
            if name not in self._fields:
                raise QueryError(
                    f"unknown field {name!r}; this table has {', '.join(self._fields)}"
                )
        with self._transaction():
            self._enter()
            return self._storage.counts(fields)

    def __len__(self) -> int:
        with self._transaction():
            self._bring_back_overdue()
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
                "inserts": self._inserts,
                "samples": self._samples,
                "removals": self._removals,
                "removed": dict(self._removed),
                "sample_calls": self._sample_calls,
                "leases": len(self._leases),
                "leased": storage.hidden,
                "waiting_to_insert": len(self._departures.waiters),
                "waiting_to_sample": len(self._arrivals.waiters),
                "effects": self._number,
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
            f"Table({self.name!r}, {len(self)}/{self.capacity} items, {self.nbytes} bytes, "
            f"sampler={self._sampler}, remover={self._remover}, limiter={self._limiter})"
        )

    # -- rules that may change while the table runs -----------------------------------------------
    @property
    def limiter(self) -> Limiter:
        """Whether an insert or a sample may go ahead now; assigning wakes those who wait."""
        return self._limiter

    @limiter.setter
    def limiter(self, limiter: Limiter) -> None:
        limiter = self._check_limiter(limiter)
        with self._transaction():
            self._limiter = limiter
            self._arrivals.wake_all()
            self._departures.wake_all()

    @property
    def sampler(self) -> Selector:
        """Which item `sample` and `take` choose; assigning one with another alpha rebuilds weights."""
        return self._sampler

    @sampler.setter
    def sampler(self, sampler: Selector) -> None:
        sampler = self._check_selector("sampler", sampler)
        with self._transaction():
            self._check_stored_ages(sampler)
            self._sampler = sampler
            self._storage.keep_indexes([self._sampler, self._remover])
            self._arrivals.wake_all()

    @property
    def remover(self) -> Selector:
        """Which item leaves when the table is full."""
        return self._remover

    @remover.setter
    def remover(self, remover: Selector) -> None:
        remover = self._check_selector("remover", remover)
        with self._transaction():
            self._check_stored_ages(remover)
            self._remover = remover
            self._storage.keep_indexes([self._sampler, self._remover])

    # -- effects --------------------------------------------------------------------------------
    def follow(self, follower: Follower) -> Callable[[], None]:
        """Tell somebody of every effect from now on; returns a call that ends it."""
        with self._transaction():
            self._followers = (*self._followers, follower)

        def unfollow() -> None:
            with self._transaction():
                self._followers = tuple(f for f in self._followers if f is not follower)

        return unfollow

    def _tell(self, effect: Any) -> None:
        for follower in self._followers:
            follower.follow(effect)

    def _settle(self, number: int) -> None:
        for follower in self._followers:
            follower.settle(number)

    # -- waiting --------------------------------------------------------------------------------
    def close(self) -> None:
        """End the table: every waiter, and every later call, raises `TableClosed`."""
        with self._transaction():
            self._closed = True
            self._arrivals.wake_all()
            self._departures.wake_all()

    def __enter__(self) -> Table:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _enter(self) -> None:
        """What every call does first under the lock."""
        if self._closed:
            raise TableClosed(f"table {self.name!r} is closed")
        if self._leases.next_deadline < math.inf:
            self._bring_back_overdue()

    def _bring_back_overdue(self) -> None:
        if self._leases.next_deadline < math.inf:
            for lease in self._leases.overdue(self._clock.monotonic()):
                self._bring_back(lease, "lapsed")

    def _time_turned(self) -> None:
        with self._transaction():
            self._arrivals.wake_all()
            self._departures.wake_all()

    def _wait(
        self, attempt: Attempt[Result], room: Room, timeout: float | None, what: str
    ) -> Result:
        """Try; where that is not possible now, sleep until a change may help and try again."""
        deadline = None if timeout is None else self._deadline(timeout)
        with self._transaction():
            self._enter()
            result = attempt()
            if not isinstance(result, Blocked):
                return result
            if timeout == 0:
                raise self._timed_out(what, timeout, result)
            waiter = ThreadWaiter()
            self._add_waiter(room, waiter, result)
        try:
            while True:
                waiter.sleep(self._sleep(deadline))
                with self._transaction():
                    retried = self._retry(attempt, room, waiter, deadline, timeout, what)
                if not isinstance(retried, Blocked):
                    return retried
        finally:
            with self._transaction():
                room.waiters.remove(waiter)

    async def _wait_async(
        self, attempt: Attempt[Result], room: Room, timeout: float | None, what: str
    ) -> Result:
        """The same for a coroutine, which sleeps without a thread."""
        deadline = None if timeout is None else self._deadline(timeout)
        with self._transaction():
            self._enter()
            result = attempt()
            if not isinstance(result, Blocked):
                return result
            if timeout == 0:
                raise self._timed_out(what, timeout, result)
            waiter = TaskWaiter()
            self._add_waiter(room, waiter, result)
        try:
            while True:
                await waiter.sleep(self._sleep(deadline))
                with self._transaction():
                    retried = self._retry(attempt, room, waiter, deadline, timeout, what)
                if not isinstance(retried, Blocked):
                    return retried
        finally:
            with self._transaction():
                room.waiters.remove(waiter)

    def _add_waiter(self, room: Room, waiter: Waiter, blocked: Blocked) -> None:
        waiter.at = room.count + blocked.least
        room.waiters.append(waiter)

    def _retry(
        self,
        attempt: Attempt[Result],
        room: Room,
        waiter: Waiter,
        deadline: float | None,
        timeout: float | None,
        what: str,
    ) -> Result | Blocked:
        self._enter()
        result = attempt()
        if isinstance(result, Blocked):
            if deadline is not None and self._clock.monotonic() >= deadline:
                raise self._timed_out(what, timeout, result)
            waiter.at = room.count + result.least
        return result

    def _sleep(self, deadline: float | None) -> float | None:
        """How long a waiter may sleep: until its own deadline, or until the next lease's."""
        until = min(math.inf if deadline is None else deadline, self._leases.next_deadline)
        return None if math.isinf(until) else self._clock.sleep_until(until)

    def _deadline(self, timeout: float) -> float:
        return self._clock.monotonic() + _seconds("timeout", timeout)

    def _timed_out(self, what: str, timeout: float | None, blocked: Blocked) -> WaitTimeout:
        return WaitTimeout(
            f"{what} on table {self.name!r} timed out after {timeout:g} s: {blocked.needs}"
        )

    # -- checks of what calls are given -----------------------------------------------------------
    def _settable(self) -> list[str]:
        return [*SETTABLE, *self._tags]

    def _check_field(self, name: str, value: Any, count: int) -> FieldValue:
        if name not in self._tags and name not in SETTABLE:
            raise InvalidValue(
                f"unknown field {name!r}; this table can set {', '.join(self._settable())}"
                + ("" if name in BUILT_IN else f"; declare a tag with tags={{{name!r}: ...}}")
            )
        return check_value(name, self._fields[name], value, count)

    def _check_priority(self, value: Any, count: int) -> NDArray[np.float64]:
        return check_priority(value, count, _largest_alpha(self._sampler, self._remover))

    def _check_ages(self, fields: Mapping[str, Any]) -> None:
        """Weights that age need a version of every item."""
        for selector in _parts(self._sampler, self._remover):
            if isinstance(selector, Prioritized) and selector.half_life is not None:
                version = fields.get("version")
                if version is None or (isinstance(version, np.ndarray) and (version < 0).any()):
                    raise InvalidValue(
                        f"version: {selector} ages items by their version, and an item has none; "
                        "give version=..."
                    )

    def _check_stored_ages(self, selector: Selector) -> None:
        for part in _parts(selector):
            if isinstance(part, Prioritized) and part.half_life is not None:
                query = bind(as_query({"version": {"absent": True}}), self._fields)
                if self._storage.count(Where(query, {}, query)):
                    raise InvalidValue(f"{part} ages items by version, and stored items have none")

    def _where(self, given: Any) -> Where:
        """Check a query against the fields, and find out what partitions can answer of it."""
        query = as_query(given)
        assert query is not None
        known = self._wheres.get(query)
        if known is None:
            bound = bind(query, self._fields)
            partitions, rest = split(bound, self.partition_by)
            known = Where(bound, partitions, rest)
            if len(self._wheres) >= 256:
                self._wheres.clear()
            self._wheres[query] = known
        return known


def _whole(name: str, value: Any, least: int) -> int:
    if isinstance(value, np.integer):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InvalidValue(f"{name}: expected a whole number of at least {least}, got {value!r}")
    return value


def _seconds(name: str, value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not value >= 0:
        raise InvalidValue(f"{name}: expected seconds of 0 or more, or None, got {value!r}")
    return float(value)


def _keys(keys: Any) -> Keys:
    if type(keys) is np.ndarray and keys.dtype == np.uint64 and keys.ndim == 1:
        return np.ascontiguousarray(keys)
    array = np.asarray(keys)
    if array.size == 0:
        return np.zeros(0, np.uint64)
    if array.dtype.kind not in "iu" or array.ndim > 1 or int(array.min()) < 0:
        raise InvalidValue(f"keys: expected an array of keys (uint64), got {keys!r}")
    return np.atleast_1d(array).astype(np.uint64)


def _items_of(rows: int, rows_per_item: Any) -> tuple[NDArray[np.int32], int]:
    """How many rows each item has (one number where all have the same), and how many items."""
    if type(rows_per_item) is int:
        if rows_per_item == 1:
            return ONE_ROW, rows
        if rows_per_item < 1 or rows % rows_per_item:
            raise InvalidValue(
                f"rows_per_item: {rows} rows do not make items of {rows_per_item} rows"
            )
        return np.array([rows_per_item], np.int32), rows // rows_per_item
    counts = np.asarray(rows_per_item)
    if counts.dtype.kind not in "iu" or counts.ndim > 1:
        raise InvalidValue(
            f"rows_per_item: expected a whole number, or one per item, got {rows_per_item!r}"
        )
    if counts.ndim == 0:
        return _items_of(rows, int(counts))
    if (counts < 1).any() or int(counts.sum()) != rows:
        raise InvalidValue(
            f"rows_per_item: expected numbers above 0 that add up to {rows} rows, got a sum of "
            f"{int(counts.sum())}"
        )
    if counts.size == 1:
        return counts.astype(np.int32), 1
    return np.ascontiguousarray(counts, dtype=np.int32), counts.size


def _check_request(request: Any) -> None:
    if (
        not isinstance(request, tuple)
        or len(request) != 2
        or not isinstance(request[0], str | int)
        or not isinstance(request[1], int)
        or isinstance(request[1], bool)
    ):
        raise InvalidValue(f"request: expected (producer, number), got {request!r}")


def _different_items(selector: Selector, n: int, replace: bool, wearing: bool) -> int:
    """How many different items a sample of n needs to find."""
    if isinstance(selector, Ordered) or not replace:
        return n
    if isinstance(selector, Mixed):
        ordered = [share for part, share in selector.selectors if isinstance(part, Ordered)]
        if ordered and wearing:
            return n
        return min(n, max([1, *(math.ceil(share * n) + 1 for share in ordered)]))
    return 1


def _parts(*selectors: Selector) -> list[Selector]:
    return [
        part
        for selector in selectors
        for part in (
            [p for p, _ in selector.selectors] if isinstance(selector, Mixed) else [selector]
        )
    ]


def _largest_alpha(*selectors: Selector) -> float:
    return max([1.0, *(p.alpha for p in _parts(*selectors) if isinstance(p, Prioritized))])


def _many(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _clash(one: str, other: str) -> bool:
    """Whether two dotted names cannot stand side by side."""
    return one == other or one.startswith(f"{other}.") or other.startswith(f"{one}.")


def _only(fields: Mapping[str, Any], found: NDArray[np.bool_]) -> dict[str, Any]:
    return {
        name: value[found] if isinstance(value, np.ndarray) and value.size == found.size else value
        for name, value in fields.items()
    }
