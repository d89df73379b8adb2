"""What a buffer keeps beside its table, as plain data; and how the rest is made again.

Train step, accounts and history are written down. Entries, ids and queues are made again from the
groups that the table has.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from recollect.base.arrays import Keys
from recollect.data.batch import Batch
from recollect.rollouts.core import RolloutCore
from recollect.rollouts.entries import GroupEntry, tally
from recollect.rollouts.group_columns import column_of
from recollect.rollouts.history import History
from recollect.rollouts.rollout import Status
from recollect.storage.memory.storage import MemoryStorage


def own_state(core: RolloutCore) -> dict[str, Any]:
    """What a buffer keeps beside its table and cannot make again from it, as JSON."""
    return {
        "train_step": core.train_step,
        "accounts": core.accounts.state(),
        "line": core.history.to_json(),
    }


def restore_own(core: RolloutCore, own: Mapping[str, Any], blobs: Mapping[str, bytes]) -> None:
    """Put that back, and make the rest again from the table."""
    core.train_step = own["train_step"]
    core.accounts.restore(own["accounts"])
    core.history = History.from_json(own.get("line"))
    keys = np.sort(core.storage.find(None, None, visible=False))
    if not keys.size:
        return
    needed = {cell: column_of(cell) for cell in core.needs}
    names = dict.fromkeys(["blobs", *(name for name in needed.values() if name in core.columns)])
    batch = core.storage.get(keys, list(names)).read(np.empty)
    shared, starts = batch.shared, batch.info.row_offsets.tolist()
    group_ids: list[str] = shared.columns["group_id"].to_list()  # type: ignore[union-attr]
    versions = batch.info.version.tolist()
    put_at = _inserted_at(core, keys)
    for item, key in enumerate(keys.tolist()):
        first, last = starts[item], starts[item + 1]
        entry = GroupEntry(group_ids[item], batch.info.task[item], versions[item], put_at[item])
        entry.trained = batch.info.status[item] == Status.ARCHIVED.value
        entry.blobs = tuple(_digests(batch, item, first, last))
        core.blobs.add({name: blobs[name] for name in entry.blobs})
        core.entries[key] = entry
        core.by_id[entry.group_id] = key
        if batch.info.status[item] == Status.COMPLETED.value:
            lacks = [
                cell
                for cell, name in needed.items()
                if name not in batch.present or not batch.present[name][first:last].all()
            ]
            core.queues.came(key, entry, tuple(lacks))
    core.ever_archived = core.ever_archived or any(e.trained for e in core.entries.values())
    _count_gone(core)


def _count_gone(core: RolloutCore) -> None:
    """Count the groups that found no room when a snapshot was loaded: they have left."""
    here = tally(entry for entry in core.entries.values() if not entry.trained)
    for task in core.accounts.tasks():
        account = core.accounts[task]
        gone = account.put - account.left.total() - here.get(task, 0)
        if gone > 0:
            account.left["overflow"] += gone


def _digests(batch: Batch, item: int, first: int, last: int) -> dict[str, None]:
    """The blobs that a group refers to."""
    texts = []
    if batch.shared.present["shared_blobs"][item]:
        texts.append(batch.shared["shared_blobs"][item])
    for row in range(first, last):
        if batch.present["blobs"][row]:
            texts.append(batch.columns["blobs"][row])
    found: dict[str, None] = {}
    for text in texts:
        for names in json.loads(text).values():
            found.update(dict.fromkeys(names))
    return found


def _inserted_at(core: RolloutCore, keys: Keys) -> list[float]:
    """When groups were put; a storage that does not know that says now."""
    storage = core.storage
    if not isinstance(storage, MemoryStorage):
        return [core.table.clock.time()] * keys.size
    times: list[float] = storage.items.inserted_at(keys).tolist()
    return times
