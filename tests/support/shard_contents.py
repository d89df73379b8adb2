"""What tests compare of shards: everything that is known of an item, of a step, of an episode."""

from __future__ import annotations

from typing import Any

import numpy as np

import recollect as rc


def items_of(table: rc.Table) -> dict[int, tuple[Any, ...]]:
    """Everything that a table knows of each item, by key."""
    storage = table.core.storage
    keys = storage.find(None, None, visible=False)
    if not keys.size:
        return {}
    batch = table.get(keys)
    info, found = batch.info, {}
    slots = storage.items.slots_of(keys)
    inserted = storage.items.values("inserted_at", slots).values
    tags = [name for name in table.fields if name not in ("key", "seq") and hasattr(info, name)]
    for item, key in enumerate(keys.tolist()):
        begin, end = info.row_offsets[item], info.row_offsets[item + 1]
        rows = tuple(
            (name, tuple(_plain(column[row]) for row in range(begin, end)))
            for name, column in batch.columns.items()
        )
        shared = tuple(
            (name, _plain(column[item])) for name, column in batch.shared.columns.items()
        )
        fields = tuple((name, _plain(getattr(info, name)[item])) for name in tags)
        found[key] = (rows, shared, fields, float(inserted[item]), int(info.deliveries[item]))
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return (value.dtype.str, value.shape, value.tobytes())
    value = value.item() if isinstance(value, np.generic) else value
    return "nan" if value != value else value


def arrival(table: rc.Table) -> list[int]:
    """Keys in order of arrival."""
    items = table.core.storage.items
    slots = items.stored()
    return items.key[slots[np.argsort(items.seq(slots))]].tolist()


Episode = tuple[Any, ...]


def episodes_of(buffer: rc.ReplayBuffer) -> list[tuple[int, Episode, bool, bool]]:
    """Of each episode: its environment, its rows with priorities, whether it is cut, and over."""
    rings, lanes = buffer.core.rings, buffer.core.lanes
    found = []
    if lanes is None:
        return found
    table = buffer.to_arrow()
    data = {name: table.column(name).to_pylist() for name in table.column_names}
    place = {key: at for at, key in enumerate(zip(data["env_id"], data["step"], strict=True))}
    priority = rings.priority
    for env, first, stop, cut, _, over, _ in rings.episodes().tolist():
        rows = []
        for row in range(first, stop):
            at = place[env, row]
            slot = env * rings.ring + row % rings.ring
            cells = tuple(
                (name, repr(column[at]))
                for name, column in data.items()
                if name not in ("env_id", "step", "truncated", "where.env_id")
            )
            weight = None if priority is None else float(priority[slot])
            rows.append((cells, bool(data["truncated"][at]), weight))
        found.append((env, tuple(rows), bool(cut), bool(over)))
    return found
