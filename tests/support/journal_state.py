"""What a journal must bring back, as plain data that tests compare."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np

import recollect as rc
from recollect.kernels import layout

COUNTS = ("size", "nbytes", "inserts", "samples", "removals", "removed", "sample_calls", "effects")


def table_state(table: rc.Table, *, after_restart: bool) -> dict[str, Any]:
    """Everything of a table that a caller can see; `after_restart` as if all leases had ended."""
    storage: Any = table.core.storage
    with table.core.transaction():
        stats = table.stats()
        items = storage.items
        slots = items.stored()
        slots = slots[np.argsort(items.seq(slots), kind="stable")]
        leased = (items.state[slots] == layout.LEASED) & after_restart
        deliveries = np.zeros(slots.size, np.int64)
        if layout.A_DELIVERIES in items.owned:
            deliveries += items.owned[layout.A_DELIVERIES][slots]
        keys = items.key[slots]
        state: dict[str, Any] = {name: stats[name] for name in COUNTS}
        state["samples"] -= int(leased.sum())
        state["random"] = storage.executor.capture()["random"]
        state["keys"] = keys.tolist()
        state["times"] = (items.times[slots] - leased).tolist()
        state["deliveries"] = (deliveries + leased).tolist()
        state["visible"] = ((items.state[slots] == layout.VISIBLE) | leased).tolist()
        state["fields"] = {name: items.seen(name, slots) for name in table.fields}
        for changed in ("times_sampled", "seq"):
            state["fields"].pop(changed)
        state["requests"] = table.core.requests.state()
        state["columns"] = {name: str(column) for name, column in table.columns.items()}
        state["highest"] = storage.highest_priority()
        state["partitions"] = (
            sorted(table.counts(*table.partition_by).items(), key=repr)
            if (table.partition_by)
            else []
        )
        state["sampled"] = storage.available(None)[1] + int((items.times[slots] - 1)[leased].sum())
        batch = storage.get(keys, None).read(np.empty) if keys.size else None
    if batch is not None:
        state["rows"] = as_lists(batch.columns, batch.present)
        state["shared"] = as_lists(batch.shared.columns, batch.shared.present)
        state["offsets"] = batch.info.row_offsets.tolist()
    return state


def as_lists(columns: Any, present: Any) -> dict[str, Any]:
    return {
        name: (
            column.to_list() if isinstance(column, rc.Ragged) else column.tolist(),
            present[name].tolist() if name in present else None,
        )
        for name, column in plain(columns).items()
    }


def plain(columns: Any) -> Any:
    """Ragged numbers as lists, which compare."""
    found = {}
    for name, column in columns.items():
        if isinstance(column, rc.Ragged) and column.kind == "array":
            found[name] = np.array([cell.tolist() for cell in column.to_list()] or [], object)
        else:
            found[name] = column
    return found


def journal_of(owner: Any) -> Any:
    """The open journal of a table, a buffer, a store, or of the core of one."""
    if isinstance(owner, rc.Store):
        return owner._journal
    faces = rc.Table | rc.RolloutBuffer | rc.ReplayBuffer
    core = owner.core if isinstance(owner, faces) else owner
    return core.table.journal if hasattr(core, "table") else core.journal


def flushed_copy(owner: Any, target: Path) -> Path:
    """The journal of a table or buffer that goes on running, as a crash would leave it now."""
    writer = journal_of(owner).writer
    assert writer.flush()
    source = Path(writer.path)
    with writer.paused():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("lock"))
    return target


def folder_on_memory(name: str) -> Path:
    """A folder that is not on a disk: what a process loses when it is killed is the same there."""
    base = Path("/dev/shm") if os.path.isdir("/dev/shm") else Path("/tmp")
    return base / name
