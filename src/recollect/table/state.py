"""The state of one core, as a manifest has it, and back.

Called under the table's lock. Rules are not part of it: a table is made with its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from recollect.base.requests import Requests
from recollect.data.batch import Batch
from recollect.data.schema import Schema
from recollect.durability.format import schema_from_json, schema_to_json
from recollect.errors import SnapshotError
from recollect.storage.memory.capture import Capture, Pages, capture
from recollect.storage.memory.restoration import restore
from recollect.storage.memory.saved_items import Saved
from recollect.storage.memory.storage import MemoryStorage
from recollect.table.core import TableCore

Entry = dict[str, Any]


def capture_table(core: TableCore, pages: Pages | None = None) -> tuple[Entry, Capture]:
    """Everything that decides what later calls return. Leases count as given back."""
    core.enter()
    storage, counts = in_memory(core), core.counts.capture()
    entry = {
        "columns": schema_to_json(core.schemas.rows),
        "shared_columns": schema_to_json(core.schemas.shared),
        "fields": core.fields.kinds,
        "partition_by": list(core.fields.partition_by),
        "rules": {
            "sampler": repr(core.rules.sampler),
            "remover": repr(core.rules.remover),
            "limiter": repr(core.rules.limiter),
            "capacity": core.capacity,
            "capacity_bytes": core.capacity_bytes,
            "max_times_sampled": core.max_times_sampled,
        },
        "counts": {
            **counts,
            "samples": counts["samples"] - storage.hidden,
            "effects": core.effects.number,
        },
        "requests": _requests(core).state(),
        "items": len(storage),
        "nbytes": storage.nbytes,
    }
    return json.loads(json.dumps(entry)), capture(storage, pages)


def check_alike(core: TableCore, entry: Mapping[str, Any], where: str) -> None:
    """Raise unless a saved state belongs to a table of this kind."""
    in_memory(core)
    for name, mine in (
        ("fields", core.fields.kinds),
        ("partition_by", list(core.fields.partition_by)),
    ):
        if entry[name] != mine:
            raise SnapshotError(
                f"{where}: table {core.name!r} was saved with {name} {entry[name]} and has "
                f"{mine}; make it with the same tags and partition_by"
            )
    for key, mine_, what in (
        ("columns", core.schemas.rows, "column"),
        ("shared_columns", core.schemas.shared, "shared column"),
    ):
        saved = schema_from_json(entry[key], what)
        if saved is not None and core.schemas.rows is not None:
            _merged(saved, mine_ or Schema({}, what), f"{where}: table {core.name!r}")


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
    core: TableCore, entry: Mapping[str, Any], saved: Saved, batches: Iterable[Batch]
) -> int:
    """Put a saved state in the place of what a table has; returns how many items did not fit.

    Those are evicted by the table's remover.
    """
    storage = in_memory(core)
    schemas = []
    for key, mine, what in (
        ("columns", core.schemas.rows, "column"),
        ("shared_columns", core.schemas.shared, "shared column"),
    ):
        schema = schema_from_json(entry[key], what)
        if schema is not None and mine is not None:
            schema = _merged(schema, mine, core.name)
        schemas.append(mine if schema is None else schema)
    reset_table(core)
    if schemas[0] is not None:
        core.set_schema(schemas[0], schemas[1])
    mixtures = {repr(selector): selector for selector in (core.rules.sampler, core.rules.remover)}
    restore(storage, saved, batches, mixtures)
    core.counts.restore(entry["counts"])
    core.effects.number = entry["counts"]["effects"]
    _requests(core).restore(entry["requests"])
    before = len(storage)
    excess_bytes = 0
    if core.capacity_bytes is not None:
        excess_bytes = max(0, storage.nbytes - core.capacity_bytes)
    excess = max(0, before - core.capacity)
    if excess or excess_bytes:
        core.evict(excess, excess_bytes)
        core.effects.deliver()
    core.gate.wake_all()
    return before - len(storage)


def reset_table(core: TableCore) -> None:
    """Back to a table that was just made; leases are over, and followers go on following."""
    in_memory(core).reset()
    core.leases.end_all()
    core.counts.reset()
    core.effects.number = 0
    _requests(core).restore([])
    if core.schemas.rows is not None:
        core.storage.set_schema(core.schemas.rows, core.schemas.shared)
    core.gate.wake_all()


def in_memory(core: TableCore) -> MemoryStorage:
    if not isinstance(core.storage, MemoryStorage):
        raise SnapshotError(f"table {core.name!r}: only tables in memory can be saved and loaded")
    return core.storage


def _requests(core: TableCore) -> Requests:
    assert isinstance(core.requests, Requests)  # a table in memory has no others
    return core.requests
