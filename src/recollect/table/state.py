"""The state of one table, as a manifest has it, and back.

Called under the table's lock. Rules are not part of it: a table is made with its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from recollect.data.batch import Batch
from recollect.data.schema import Schema
from recollect.durability.format import schema_from_json, schema_to_json
from recollect.errors import SnapshotError
from recollect.rules.limiters import Counts
from recollect.storage.memory.capture import Capture, Pages, capture
from recollect.storage.memory.restoration import restore
from recollect.storage.memory.saved_items import Saved
from recollect.storage.memory.storage import MemoryStorage
from recollect.table.table import Table

Entry = dict[str, Any]


def capture_table(table: Table, pages: Pages | None = None) -> tuple[Entry, Capture]:
    """Everything that decides what later calls return. Leases count as given back."""
    table._enter()
    storage, counts = in_memory(table), table._counts
    entry = {
        "columns": schema_to_json(table._schema),
        "shared_columns": schema_to_json(table._shared_schema),
        "fields": table.fields,
        "partition_by": list(table.partition_by),
        "rules": {
            "sampler": repr(table.sampler),
            "remover": repr(table.remover),
            "limiter": repr(table.limiter),
            "capacity": table.capacity,
            "capacity_bytes": table.capacity_bytes,
            "max_times_sampled": table.max_times_sampled,
        },
        "counts": {
            "inserts": counts.inserts,
            "samples": counts.samples - storage.hidden,
            "removals": counts.removals,
            "removed": table._removed,
            "sample_calls": table._sample_calls,
            "effects": table._effects.number,
        },
        "requests": table._requests.state(),
        "items": len(storage),
        "nbytes": storage.nbytes,
    }
    return json.loads(json.dumps(entry)), capture(storage, pages)


def check_fits(table: Table, entry: Mapping[str, Any], where: str) -> None:
    """Raise unless a saved state can be put into this table, which must be empty."""
    if len(in_memory(table)):
        raise SnapshotError(f"table {table.name!r} is not empty; load {where} into a new store")
    check_alike(table, entry, where)


def check_alike(table: Table, entry: Mapping[str, Any], where: str) -> None:
    """Raise unless a saved state belongs to a table of this kind."""
    in_memory(table)
    for name, mine in (("fields", table.fields), ("partition_by", list(table.partition_by))):
        if entry[name] != mine:
            raise SnapshotError(
                f"{where}: table {table.name!r} was saved with {name} {entry[name]} and has "
                f"{mine}; make it with the same tags and partition_by"
            )
    for key, mine_, what in (
        ("columns", table._schema, "column"),
        ("shared_columns", table._shared_schema, "shared column"),
    ):
        saved = schema_from_json(entry[key], what)
        if saved is not None and table._schema is not None:
            _merged(saved, mine_ or Schema({}, what), f"{where}: table {table.name!r}")


def _merged(saved: Schema, mine: Schema, where: str) -> Schema:
    """The saved columns, and those that a signature has beyond them."""
    for name, column in saved.columns.items():
        other = mine.columns.get(name)
        if other is None:
            if not column.optional:
                raise SnapshotError(
                    f"{where}: {saved.what} {name!r} ({column}) was saved and is not in its "
                    "signature; add it there"
                )
        elif (other.dtype, other.shape, other.ragged) != (
            column.dtype,
            column.shape,
            column.ragged,
        ):
            raise SnapshotError(
                f"{where}: {saved.what} {name!r} was saved as {column} and the signature says "
                f"{other}; make the table as it was"
            )
    more = {n: column for n, column in mine.columns.items() if n not in saved.columns}
    for name, column in more.items():
        if not column.optional:
            raise SnapshotError(
                f"{where}: {saved.what} {name!r} ({column}) is in its signature and was not saved; "
                "declare it optional"
            )
    return Schema({**saved.columns, **more}, saved.what) if more else saved


def restore_table(
    table: Table, entry: Mapping[str, Any], saved: Saved, batches: Iterable[Batch]
) -> int:
    """Put a saved state in the place of what a table has; returns how many items did not fit.

    Those are evicted by the table's remover.
    """
    storage = in_memory(table)
    schemas = []
    for key, mine, what in (
        ("columns", table._schema, "column"),
        ("shared_columns", table._shared_schema, "shared column"),
    ):
        schema = schema_from_json(entry[key], what)
        if schema is not None and mine is not None:
            schema = _merged(schema, mine, table.name)
        schemas.append(mine if schema is None else schema)
    reset_table(table)
    if schemas[0] is not None:
        table._set_schema(schemas[0], schemas[1])
    mixtures = {repr(selector): selector for selector in (table.sampler, table.remover)}
    restore(storage, saved, batches, mixtures)
    counts = entry["counts"]
    table._counts = Counts(counts["inserts"], counts["samples"], counts["removals"])
    table._removed = dict(counts["removed"])
    table._sample_calls = counts["sample_calls"]
    table._effects.number = counts["effects"]
    table._requests.restore(entry["requests"])
    before = len(storage)
    excess_bytes = 0
    if table.capacity_bytes is not None:
        excess_bytes = max(0, storage.nbytes - table.capacity_bytes)
    excess = max(0, before - table.capacity)
    if excess or excess_bytes:
        table._evict(excess, excess_bytes)
        table._effects.deliver()
    table._gate.wake_all()
    return before - len(storage)


def reset_table(table: Table) -> None:
    """Back to a table that was just made; leases are over, and followers go on following."""
    in_memory(table).reset()
    table._leases.end_all()
    table._counts = Counts()
    table._removed = {}
    table._sample_calls = 0
    table._effects.number = 0
    table._requests.restore([])
    if table._schema is not None:
        table._storage.set_schema(table._schema, table._shared_schema)
    table._gate.wake_all()


def in_memory(table: Table) -> MemoryStorage:
    if not isinstance(table._storage, MemoryStorage):
        raise SnapshotError(f"table {table.name!r}: only tables in memory can be saved and loaded")
    return table._storage
