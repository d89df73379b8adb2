"""Inserting: what an insert is checked for, and what it does under the table's lock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from recollect.base.arguments import items_of, many
from recollect.base.requests import Request, check_request
from recollect.data.schema import Rows, Schema
from recollect.errors import NeverPossible, SchemaError, shown
from recollect.storage.base import NewItems
from recollect.storage.fields import check_priority, check_weights
from recollect.table.checks import check_versions, checked_field
from recollect.table.effects import Inserted
from recollect.table.waiting import Blocked

if TYPE_CHECKING:
    from recollect.table.table import Table

Keys = NDArray[np.uint64]


@dataclass(slots=True)
class NewInsert(NewItems):
    """Checked items, and what is needed to check them again against other columns."""

    given: Mapping[str, Any] = field(default_factory=dict)
    given_shared: Mapping[str, Any] | None = None
    schema: Schema | None = None
    shared_schema: Schema | None = None
    request: Request | None = None


def checked_insert(
    table: Table,
    columns: Mapping[str, Any],
    shared: Mapping[str, Any] | None,
    rows_per_item: Any,
    priority: Any,
    request: Any,
    fields: dict[str, Any],
) -> NewInsert:
    """Check everything that an insert was given; what remains is tried under the lock."""
    schema = table._schema or Schema.infer(columns)
    try:
        rows = schema.check(columns)
    except SchemaError:
        if not _columns_changed(table):
            raise
        assert table._schema is not None
        schema = table._schema
        rows = schema.check(columns)
    per_item, count = items_of(rows.count, rows_per_item)
    shared_schema = shared_rows = None
    if shared is not None or table._shared_schema is not None:
        shared_schema, shared_rows = _check_shared(table, shared, count)
    if fields:
        fields = {
            name: checked_field(name, value, count, table._tags) for name, value in fields.items()
        }
    if priority is not None:
        priority = check_priority(priority, count, table._alpha)
    if request is not None:
        request = check_request(request)
    if table._ages:
        check_versions(fields, count)
    if table._weighed:
        check_weights(fields, table._weighed)
    if count > table.capacity:
        raise NeverPossible(
            f"an insert of {count} items never fits table {table.name!r} of capacity "
            f"{table.capacity}; insert fewer at a time"
        )
    return NewInsert(
        rows, shared_rows, per_item, count, priority, fields, 0.0, -1.0,
        columns, shared, schema, shared_schema, request,
    )  # fmt: skip


def _columns_changed(table: Table) -> bool:
    """Whether another process has fixed columns, or added one, since we last looked."""
    before = table._schema
    if table._shared is not None:
        with table._transaction():
            pass
    return table._schema is not before


def _check_shared(
    table: Table, shared: Mapping[str, Any] | None, count: int
) -> tuple[Schema | None, Rows | None]:
    schema = table._shared_schema
    if shared is not None and not isinstance(shared, Mapping):
        raise SchemaError(
            "shared: expected a mapping of names to columns with one cell per item, got "
            f"{type(shared).__name__} {shown(shared)}"
        )
    if schema is None:
        if not shared:
            return None, None
        if table._schema is not None:
            raise SchemaError(
                f"table {table.name!r} has no shared columns; its first insert, or signature= "
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


def try_insert(table: Table, new: NewInsert) -> tuple[Keys, int] | Blocked:
    """Insert now, or change nothing; returns the keys and the number of the last effect."""
    storage, effects = table._storage, table._effects
    if new.schema is not table._schema and table._schema is not None:
        _check_again(table, new)
    if new.request is not None:
        known = table._requests.keys(new.request)
        if known is not None:
            return known, effects.number
    count = new.count
    if count == 0:
        return np.zeros(0, np.uint64), effects.number
    table._limiter.check_insert(count)
    excess = 0  # whoever owns the table has made room, or has promised it
    if table._owner is None:
        excess = len(storage) + count - table.capacity
    excess_bytes = 0
    if table.capacity_bytes is not None:
        excess_bytes = storage.nbytes + _payload(table, new) - table.capacity_bytes
    departures = table._limiter.departures_needed(table._counts, count)
    if departures:
        table._limiter.check_waiting_insert(table._counts, count, storage.hidden)
        needs = many(departures, "more sample or removal", "more samples or removals")
        return Blocked(f"limiter {table._limiter} needs {needs}", departures)
    new.inserted_at = table._clock.time()
    keys = None
    if excess == count and excess_bytes <= 0 and not effects.readers:
        keys = storage.recycle(table._remover, new, tell=effects.journal is not None)
    if keys is not None:
        left = None
        if keys.size > count:
            keys, left = keys[:count], keys[count:]
        table._left(count, "evicted", left)
    elif excess > 0 or excess_bytes > 0:
        blocked = _make_place(table, max(excess, 0), max(excess_bytes, 0), new)
        if blocked is not None:
            return blocked
    if table._schema is None and new.schema is not None:
        table._check_bytes(table._limiter, new.schema, new.shared_schema)
        table._set_schema(new.schema, new.shared_schema)
    if keys is None:
        keys = storage.insert(new)
    table._counts.inserts += count
    if new.request is not None:
        table._requests.remember(new.request, keys)
    if effects.followers:
        effects.emit(Inserted, keys, new, new.request)
    else:
        effects.number += 1
    table._gate.arrivals.changed(count)
    if effects.readers and table._owner is None:  # else it delivers, when it knows the items too
        effects.deliver()
    return keys, effects.number


def _check_again(table: Table, new: NewInsert) -> None:
    """Columns were fixed, or added, since an insert was checked."""
    assert table._schema is not None
    new.rows = table._schema.check(new.given)
    if new.given_shared is not None or table._shared_schema is not None:
        new.shared = _check_shared(table, new.given_shared, new.count)[1]
    new.schema = table._schema


def _payload(table: Table, new: NewInsert) -> int:
    assert new.schema is not None
    payload = new.schema.payload(new.rows)
    if new.shared is not None:
        shared = table._shared_schema or new.shared_schema
        assert shared is not None
        payload += shared.payload(new.shared)
    assert table.capacity_bytes is not None
    if payload > table.capacity_bytes:
        raise NeverPossible(
            f"an insert of {payload} bytes never fits table {table.name!r} of "
            f"{table.capacity_bytes} bytes; insert fewer at a time"
        )
    return payload


def _make_place(table: Table, items: int, nbytes: int, new: NewItems) -> Blocked | None:
    """Evict what must leave; what is leased cannot, and then the insert waits."""
    storage = table._storage
    if items > len(storage) - storage.hidden or nbytes > storage.nbytes - storage.hidden_nbytes:
        return Blocked(
            f"the table is full and {storage.hidden} of its {many(len(storage), 'item')} are "
            "leased; a lease must be confirmed or given back"
        )
    if new.priority is None:
        new.default_priority = storage.highest_priority()
    table._evict(items, nbytes)
    return None
