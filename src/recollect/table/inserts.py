"""Inserts: what one is checked for, and what it does under the lock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from recollect.base.arguments import many, time_span
from recollect.base.arrays import Keys
from recollect.base.requests import Request, check_request
from recollect.data.rows_per_item import items_of
from recollect.data.schema import Rows, Schema
from recollect.errors import NeverPossible, SchemaError, shown
from recollect.storage.base import NewItems
from recollect.storage.fields import check_priority, check_weights
from recollect.table.checks import check_bytes, check_versions, checked_field
from recollect.table.core import TableCore
from recollect.table.effects import Inserted
from recollect.table.runner import Verb
from recollect.table.waiting import Blocked, Gate, Room


@dataclass(slots=True)
class Insert(NewItems, Verb[Keys]):
    """Puts checked items into a table; returns their keys.

    It has what is needed to check them again, where the columns are others by then.
    """

    core: TableCore = field(kw_only=True)
    given: Mapping[str, Any] = field(default_factory=dict)
    given_shared: Mapping[str, Any] | None = None
    schema: Schema | None = None
    shared_schema: Schema | None = None
    request: Request | None = None
    timeout: float | None = None

    def room(self, gate: Gate) -> Room:
        return gate.departures

    def attempt(self) -> Keys | Blocked:
        """Insert now and return the keys, or change nothing."""
        core, columns, limiter = self.core, self.core.schemas.rows, self.core.rules.limiter
        storage, effects = core.storage, core.effects
        if self.schema is not columns and columns is not None:
            _check_again(core, self)
        if self.request is not None:
            known = core.requests.keys(self.request)
            if known is not None:
                return known
        count = self.count
        if count == 0:
            return np.zeros(0, np.uint64)
        limiter.check_insert(count)
        excess = 0  # whoever owns the table has made room, or has promised it
        if core.owner is None:
            excess = len(storage) + count - core.capacity
        excess_bytes = 0
        if core.capacity_bytes is not None:
            excess_bytes = storage.nbytes + _payload(core, self) - core.capacity_bytes
        departures = limiter.departures_needed(core.counts, count)
        if departures:
            limiter.check_waiting_insert(core.counts, count, storage.hidden)
            needs = many(departures, "more sample or removal", "more samples or removals")
            return Blocked(f"limiter {limiter} needs {needs}", departures)
        self.inserted_at = core.clock.time()
        keys = None
        if excess == count and excess_bytes <= 0 and not effects.readers:
            keys = storage.recycle(core.rules.remover, self, tell=effects.journal is not None)
        if keys is not None:
            left = None
            if keys.size > count:
                keys, left = keys[:count], keys[count:]
            core.left(count, "evicted", left)
        elif excess > 0 or excess_bytes > 0:
            blocked = _make_place(core, max(excess, 0), max(excess_bytes, 0), self)
            if blocked is not None:
                return blocked
        if columns is None and self.schema is not None:
            check_bytes(core.capacity_bytes, limiter, self.schema, self.shared_schema)
            core.set_schema(self.schema, self.shared_schema)
        if keys is None:
            keys = storage.insert(self)
        core.counts.inserts += count
        if self.request is not None:
            core.requests.remember(self.request, keys)
        if effects.followers:
            effects.emit(Inserted, keys, self, self.request)
        else:
            effects.number += 1
        core.gate.arrivals.changed(count)
        return keys


def checked_insert(
    core: TableCore,
    columns: Mapping[str, Any],
    shared: Mapping[str, Any] | None,
    rows_per_item: Any,
    priority: Any,
    request: Any,
    fields: dict[str, Any],
    timeout: float | None,
) -> Insert:
    """Check everything that an insert was given; what remains is tried under the lock."""
    if timeout is not None:
        timeout = time_span("timeout", timeout)
    schema = core.schemas.rows or Schema.infer(columns)
    try:
        rows = schema.check(columns)
    except SchemaError:
        if not _columns_changed(core):
            raise
        assert core.schemas.rows is not None
        schema = core.schemas.rows
        rows = schema.check(columns)
    per_item, count = items_of(rows.count, rows_per_item)
    shared_schema = shared_rows = None
    if shared is not None or core.schemas.shared is not None:
        shared_schema, shared_rows = _check_shared(core, shared, count)
    if fields:
        fields = {
            name: checked_field(name, value, count, core.fields.tags)
            for name, value in fields.items()
        }
    if priority is not None:
        priority = check_priority(priority, count, core.rules.alpha)
    if request is not None:
        request = check_request(request)
    if core.rules.ages:
        check_versions(fields, count)
    if core.rules.weighed:
        check_weights(fields, core.rules.weighed)
    if count > core.capacity:
        raise NeverPossible(
            f"an insert of {count} items never fits table {core.name!r} of capacity "
            f"{core.capacity}; insert fewer at a time"
        )
    return Insert(
        rows, shared_rows, per_item, count, priority, fields, 0.0, -1.0,
        columns, shared, schema, shared_schema, request, timeout, core=core,
    )  # fmt: skip


def _columns_changed(core: TableCore) -> bool:
    """Whether another process has fixed columns, or added one, since we last looked."""
    before = core.schemas.rows
    if core.shared is not None:
        with core.transaction():
            pass
    return core.schemas.rows is not before


def _check_shared(
    core: TableCore, shared: Mapping[str, Any] | None, count: int
) -> tuple[Schema | None, Rows | None]:
    schema = core.schemas.shared
    if shared is not None and not isinstance(shared, Mapping):
        raise SchemaError(
            "shared: expected a mapping of names to columns with one cell per item, got "
            f"{type(shared).__name__} {shown(shared)}"
        )
    if schema is None:
        if not shared:
            return None, None
        if core.schemas.rows is not None:
            raise SchemaError(
                f"table {core.name!r} has no shared columns; its first insert, or signature= "
                "with rc.Column(..., shared=True), must name them"
            )
        schema = Schema.infer(shared, "shared column")
    rows = schema.check(shared or {})
    if not shared:
        rows.count = count
    if rows.count != count:
        raise SchemaError(
            f"shared columns need one cell per item: there are {count} items, and they have "
            f"{rows.count} cells"
        )
    return schema, rows


def _check_again(core: TableCore, new: Insert) -> None:
    """Columns were fixed, or added, since an insert was checked."""
    assert core.schemas.rows is not None
    new.rows = core.schemas.rows.check(new.given)
    if new.given_shared is not None or core.schemas.shared is not None:
        new.shared = _check_shared(core, new.given_shared, new.count)[1]
    new.schema = core.schemas.rows


def _payload(core: TableCore, new: Insert) -> int:
    assert new.schema is not None
    payload = new.schema.payload(new.rows)
    if new.shared is not None:
        shared = core.schemas.shared or new.shared_schema
        assert shared is not None
        payload += shared.payload(new.shared)
    assert core.capacity_bytes is not None
    if payload > core.capacity_bytes:
        raise NeverPossible(
            f"an insert of {payload} bytes never fits table {core.name!r} of "
            f"{core.capacity_bytes} bytes; insert fewer at a time"
        )
    return payload


def _make_place(core: TableCore, items: int, nbytes: int, new: NewItems) -> Blocked | None:
    """Evict what must leave; what is leased cannot, and then the insert waits."""
    storage = core.storage
    if items > len(storage) - storage.hidden or nbytes > storage.nbytes - storage.hidden_nbytes:
        return Blocked(
            f"the table is full and {storage.hidden} of its {many(len(storage), 'item')} are "
            "leased; a lease must be confirmed or given back"
        )
    if new.priority is None:
        new.default_priority = storage.highest_priority()
    core.evict(items, nbytes)
    return None
