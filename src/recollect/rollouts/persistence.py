"""A buffer's state as data, and as a snapshot; and back. Exact: order, keys, counters, draws.

A snapshot is that of the table (`durability`), with the rest of the buffer in the table's entry:
train step, accounts, and blobs by name. Leases, claims and promised room are over: whoever had
them does not live in the buffer that is restored, so nobody would give them back. What the buffer
keeps in dicts is made again from the table.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from recollect.data.arrow import ArrowBatch
from recollect.data.batch import Batch
from recollect.durability.format import stream_of
from recollect.durability.snapshot.ledger import parts
from recollect.durability.snapshot.members import Captured, TableMember
from recollect.durability.snapshot.reader import Loaded, load_snapshot
from recollect.durability.snapshot.saver import SavedSnapshot, save_snapshot
from recollect.errors import SnapshotError
from recollect.rollouts.accounts import Accounts
from recollect.rollouts.annotations import PLACES
from recollect.rollouts.blobs import digest
from recollect.rollouts.encoding import ARRAYS, Entry, tally
from recollect.rollouts.rewind import Line
from recollect.rollouts.rollout import Status
from recollect.rollouts.space import Space
from recollect.rollouts.stages import Stages
from recollect.rollouts.staleness import FIRST_STEP
from recollect.storage.memory.capture import saved_of
from recollect.storage.memory.saved_items import Saved

if TYPE_CHECKING:
    from recollect.rollouts.core import Core

FORMAT = 2  # of `state`, which lives as long as a process
CHUNK = 32 << 20  # bytes of payload that are encoded together


class RolloutMember(TableMember):
    """A buffer of rollouts, as snapshots see it."""

    kind = "rollouts"

    def __init__(self, core: Core) -> None:
        super().__init__(core.table)
        self._core = core

    def capture(self) -> Captured:
        captured = super().capture()
        captured.entry["own"] = own_state(self._core)
        captured.blobs = self._core.blobs.all()
        return captured

    def restore(
        self,
        entry: Mapping[str, Any],
        saved: Saved,
        batches: Iterable[Batch],
        blobs: Mapping[str, bytes],
    ) -> int:
        _check_blobs(blobs, self.table.name)
        self.reset()
        gone = super().restore(entry, saved, batches, blobs)
        restore_own(self._core, entry["own"], blobs)
        return gone

    def reset(self) -> None:
        super().reset()
        forget(self._core)


def forget(core: Core) -> None:
    """Empty everything that a buffer keeps beside its table."""
    core.train_step = FIRST_STEP
    core.entries.clear()
    core.by_id.clear()
    core.steps_of.clear()
    core.line = Line.new()
    core.blobs.clear()
    core.accounts = Accounts()
    core.space, core.stages = Space(core), Stages(core)


def _check_blobs(blobs: Mapping[str, bytes], where: str) -> None:
    """A blob's name is made of its content, so it tells whether that is whole."""
    if any(digest(blob) != name for name, blob in blobs.items()):
        raise SnapshotError(f"{where}: a blob is not what was written")


def state(core: Core) -> dict[str, Any]:
    """Everything, as plain data, arrays and bytes."""
    member = RolloutMember(core)
    with member.transaction():
        captured = member.capture()
    member.finish(captured)
    saved = saved_of(captured.items)
    payload = []
    for slots in parts(captured.items, saved.items["slot"], CHUNK):
        arrow = captured.items.read(slots).to_arrow()
        payload.append([_to_bytes(arrow.rows), _to_bytes(arrow.shared)])
    return {
        "format": FORMAT,
        "entry": captured.entry,
        "numbers": saved.numbers,
        "items": saved.items,
        "arrays": saved.arrays,
        "payload": payload,
        "blobs": captured.blobs,
    }


def restore(core: Core, saved: Mapping[str, Any]) -> None:
    """Put back what `state` returned."""
    if not isinstance(saved, Mapping) or saved.get("format") != FORMAT:
        raise SnapshotError("restore: expected what state() returned")
    member = RolloutMember(core)
    with member.transaction():
        member.check(saved["entry"], "the state")
        batches = (
            Batch.from_arrow(ArrowBatch(_from_bytes(rows), _from_bytes(shared), None))
            for rows, shared in saved["payload"]
        )
        items = Saved(saved["numbers"], _writable(saved["items"]), _writable(saved["arrays"]))
        member.restore(saved["entry"], items, batches, saved["blobs"])


def _writable(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """What came from another process may be read-only, which kernels do not take."""
    return {name: np.require(array, requirements=["C", "W"]) for name, array in arrays.items()}


def save(
    core: Core, path: str | PathLike[str], files: Mapping[str, Any] | None, **options: Any
) -> SavedSnapshot:
    """Write a snapshot, all of it or nothing; replaces one that is there."""
    return save_snapshot(path, {core.table.name: core}, kind="rollouts", others=files, **options)


def load(core: Core, path: str | PathLike[str], **options: Any) -> Loaded:
    """Put a snapshot into an empty buffer."""
    return load_snapshot(path, {core.table.name: core}, **options)


def own_state(core: Core) -> dict[str, Any]:
    """What a buffer keeps beside its table and cannot make again from it, as JSON."""
    return {
        "train_step": core.train_step,
        "accounts": core.accounts.state(),
        "line": core.line.to_json(),
    }


def restore_own(core: Core, own: Mapping[str, Any], blobs: Mapping[str, bytes]) -> None:
    """Put that back, and make the rest again from the table."""
    core.train_step = own["train_step"]
    core.accounts.restore(own["accounts"])
    core.line = Line.from_json(own.get("line"))
    keys = np.sort(core.storage.find(None, None, visible=False))
    if not keys.size:
        return
    names = ["blobs", *_cells_of(core)]
    batch = core.storage.get(keys, list(dict.fromkeys(names))).read(np.empty)
    shared, starts = batch.shared, batch.info.row_offsets.tolist()
    group_ids: list[str] = shared.columns["group_id"].to_list()  # type: ignore[union-attr]
    versions = batch.info.version.tolist()
    put_at = _inserted_at(core, keys)
    for item, key in enumerate(keys.tolist()):
        first, last = starts[item], starts[item + 1]
        entry = Entry(group_ids[item], batch.info.task[item], versions[item], put_at[item])
        entry.trained = batch.info.status[item] == Status.ARCHIVED.value
        entry.blobs = tuple(_digests(batch, item, first, last))
        core.blobs.add({name: blobs[name] for name in entry.blobs})
        core.entries[key] = entry
        core.by_id[entry.group_id] = key
        if batch.info.status[item] == Status.COMPLETED.value:
            lacks = [
                cell
                for cell, name in _names_of(core).items()
                if name not in batch.present or not batch.present[name][first:last].all()
            ]
            core.stages.came(key, entry, tuple(lacks))
    core.archived = core.archived or any(entry.trained for entry in core.entries.values())
    _count_gone(core)


def _count_gone(core: Core) -> None:
    """What found no room when the groups were put back has left, as everywhere."""
    here = tally([entry for entry in core.entries.values() if not entry.trained])
    for task in core.accounts.tasks():
        account = core.accounts[task]
        gone = account.put - account.left.total() - here.get(task, 0)
        if gone > 0:
            account.left["overflow"] += gone


def _names_of(core: Core) -> dict[str, str]:
    """The columns of the cells that groups need."""
    return {cell: cell if cell in PLACES else ARRAYS + cell for cell in core.needs}


def _cells_of(core: Core) -> list[str]:
    return [name for name in _names_of(core).values() if name in core.table.columns]


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


def _inserted_at(core: Core, keys: Any) -> list[float]:
    """When groups were put; a storage that does not tell says now."""
    from recollect.storage.memory.storage import MemoryStorage

    storage = core.storage
    if not isinstance(storage, MemoryStorage):
        return [core.table._clock.time()] * keys.size
    times: list[float] = storage.items.inserted_at(keys).tolist()
    return times


def _to_bytes(batch: pa.RecordBatch | None) -> bytes | None:
    if batch is None:
        return None
    data: bytes = stream_of(batch).to_pybytes()
    return data


def _from_bytes(data: bytes | None) -> pa.RecordBatch | None:
    if data is None:
        return None
    with pa.ipc.open_stream(pa.BufferReader(data)) as reader:
        return reader.read_next_batch()
