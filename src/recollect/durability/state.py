"""The state of one table, as plain data and arrays, and back.

Called under the table's lock. Rules are not part of it: a table is made with its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from recollect.batch import Batch
from recollect.errors import SnapshotError
from recollect.limiters import Counts
from recollect.schema import Column, Schema
from recollect.storage.capture import Capture, capture, restore
from recollect.storage.memory import MemoryStorage
from recollect.table import Table


def capture_table(table: Table) -> tuple[dict[str, Any], Capture]:
    """Everything that decides what later calls return. Leases count as given back."""
    table._enter()
    storage, counts = _in_memory(table), table._counts
    state = {
        "columns": _schema_to_json(table._schema),
        "shared_columns": _schema_to_json(table._shared_schema),
        "fields": table.fields,
        "partition_by": list(table.partition_by),
        "inserts": counts.inserts,
        "samples": counts.samples - storage.hidden,
        "removals": counts.removals,
        "removed": table._removed,
        "sample_calls": table._sample_calls,
        "effects": table._effects.number,
        "requests": table._requests.state(),
        "items": len(storage),
    }
    return json.loads(json.dumps(state)), capture(storage)


def check_fits(table: Table, state: Mapping[str, Any], where: str) -> None:
    """Raise unless a captured state can be put into this table."""
    if len(_in_memory(table)):
        raise SnapshotError(f"table {table.name!r} is not empty; load {where} into a new store")
    for name, mine in (("fields", table.fields), ("partition_by", list(table.partition_by))):
        if state[name] != mine:
            raise SnapshotError(
                f"{where}: table {table.name!r} was saved with {name} {state[name]} and has "
                f"{mine}; make it with the same tags and partition_by"
            )
    if state["items"] > table.capacity:
        raise SnapshotError(
            f"{where}: table {table.name!r} was saved with {state['items']} items and has a "
            f"capacity of {table.capacity}; make it larger"
        )


def restore_table(
    table: Table, state: Mapping[str, Any], captured: Capture, batches: Iterable[Batch]
) -> None:
    """Put a captured state into an empty table."""
    rows = _schema_from_json(state["columns"], "column")
    if rows is not None:
        table._set_schema(rows, _schema_from_json(state["shared_columns"], "shared column"))
        mixtures = {repr(selector): selector for selector in (table.sampler, table.remover)}
        restore(_in_memory(table), captured, batches, mixtures)
    table._counts = Counts(state["inserts"], state["samples"], state["removals"])
    table._removed = dict(state["removed"])
    table._sample_calls = state["sample_calls"]
    table._effects.number = state["effects"]
    table._requests.restore(state["requests"])
    table._gate.wake_all()


def _in_memory(table: Table) -> MemoryStorage:
    if not isinstance(table._storage, MemoryStorage):
        raise SnapshotError(f"table {table.name!r}: only tables in memory can be saved and loaded")
    return table._storage


def _schema_to_json(schema: Schema | None) -> list[Any] | None:
    if schema is None:
        return None
    return [
        [name, str(column.dtype), list(column.shape), column.ragged, column.optional]
        for name, column in schema.columns.items()
    ]


def _schema_from_json(data: list[Any] | None, what: str) -> Schema | None:
    if data is None:
        return None
    columns = {
        name: Column(dtype, tuple(shape), ragged=ragged, optional=optional)
        for name, dtype, shape, ragged, optional in data
    }
    return Schema(columns, what)
