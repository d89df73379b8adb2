"""A buffer's state as data, and as a folder; and back. Exact: order, keys, counters, draws.

    PATH/manifest.json, PATH/table-0/...   the table, as `Store.save` writes it
    PATH/buffer.json                       the rest: train step, accounts, promises
    PATH/blobs.arrow                       blobs by name, where there are any

Leases and claims are over: what is leased or claimed is saved as given back. What the buffer
keeps in dicts is made again from the table.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from recollect.arrow import ArrowBatch
from recollect.batch import Batch
from recollect.durability import snapshot
from recollect.durability.state import capture_table, check_fits, restore_table
from recollect.errors import SnapshotError
from recollect.rollouts.blobs import digest
from recollect.rollouts.encoding import ARRAYS, Entry
from recollect.rollouts.rollout import Status
from recollect.storage.capture import Capture

if TYPE_CHECKING:
    from recollect.rollouts.core import Core

FORMAT = 1
BUFFER = "buffer.json"
BLOBS = "blobs.arrow"


def state(core: Core) -> dict[str, Any]:
    """Everything, as plain data, arrays and bytes."""
    with core.table._transaction():
        table, captured = capture_table(core.table)
        own, blobs = own_state(core), core.blobs.all()
    payload = []
    for batch in captured.read():
        arrow = batch.to_arrow()
        payload.append([_to_bytes(arrow.rows), _to_bytes(arrow.shared)])
    return {
        "format": FORMAT,
        "table": table,
        "storage": captured.numbers,
        "items": captured.items,
        "arrays": captured.arrays,
        "payload": payload,
        "buffer": own,
        "blobs": blobs,
    }


def restore(core: Core, saved: Mapping[str, Any]) -> None:
    """Put back what `state` returned."""
    if not isinstance(saved, Mapping) or saved.get("format") != FORMAT:
        raise SnapshotError("restore: expected what state() returned")
    with core.table._transaction():
        check_fits(core.table, saved["table"], "the state")
        captured = Capture(saved["storage"], dict(saved["items"]), dict(saved["arrays"]), [])
        batches = (
            Batch.from_arrow(ArrowBatch(_from_bytes(rows), _from_bytes(shared), None))
            for rows, shared in saved["payload"]
        )
        restore_table(core.table, saved["table"], captured, batches)
        restore_own(core, saved["buffer"], saved["blobs"])


def save(core: Core, path: str | PathLike[str]) -> None:
    """Write a snapshot, all of it or nothing; replaces one that is there."""
    target = Path(path)
    if target.exists() and not (target / BUFFER).is_file():
        raise SnapshotError(f"{target} exists and is no snapshot of a buffer; choose another path")
    target.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        with core.table._transaction():  # so that both parts are of one moment
            snapshot.save({core.table.name: core.table}, folder / "table", False)
            own, blobs = own_state(core), core.blobs.all()
        snapshot._write(folder / BUFFER, json.dumps(own).encode())
        if blobs:
            snapshot._write(folder / BLOBS, _to_bytes(_blobs_to_arrow(blobs)) or b"")
        snapshot._sync_folder(folder)
        snapshot._swap(folder, target)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def load(core: Core, path: str | PathLike[str]) -> None:
    """Put a snapshot into an empty buffer."""
    folder = Path(os.fspath(path))
    try:
        own = json.loads((folder / BUFFER).read_bytes())
    except FileNotFoundError:
        raise SnapshotError(f"{folder} is no snapshot of a buffer: it has no {BUFFER}") from None
    except ValueError as error:
        raise SnapshotError(f"{folder / BUFFER} is damaged: {error}") from None
    if own.get("format") != FORMAT:
        raise SnapshotError(
            f"{folder / BUFFER} has format {own.get('format')!r} and this version reads {FORMAT}"
        )
    blobs: dict[str, bytes] = {}
    if (folder / BLOBS).is_file():
        blobs = _read_blobs(folder / BLOBS)
    with core.table._transaction():
        snapshot.load({own["name"]: core.table}, folder / "table", False)
        restore_own(core, own, blobs)


def _read_blobs(path: Path) -> dict[str, bytes]:
    """Blobs by name; a name is made of the content, so it tells whether that is whole."""
    try:
        blobs = _blobs_from_arrow(_from_bytes(path.read_bytes()))
    except (OSError, pa.ArrowException) as error:
        raise SnapshotError(f"{path} is damaged: {error}") from None
    if any(digest(blob) != name for name, blob in blobs.items()):
        raise SnapshotError(f"{path} is damaged: a blob is not what was written")
    return blobs


def own_state(core: Core) -> dict[str, Any]:
    """What a buffer keeps beside its table and cannot make again from it, as JSON."""
    return {
        "format": FORMAT,
        "name": core.table.name,
        "train_step": core.train_step,
        "promised": dict(core.space.promised),
        "accounts": core.accounts.state(),
    }


def restore_own(core: Core, own: Mapping[str, Any], blobs: Mapping[str, bytes]) -> None:
    """Put that back, and make the rest again from the table."""
    core.train_step = own["train_step"]
    core.space.promised = dict(own["promised"])
    core.accounts.restore(own["accounts"])
    keys = np.sort(core.storage.find(None, None, visible=False))
    if not keys.size:
        return
    names = ["rollout_id", "blobs", *_cells_of(core)]
    batch = core.storage.get(keys, list(dict.fromkeys(names))).read(np.empty)
    shared, starts = batch.shared, batch.info.row_offsets.tolist()
    ids: list[str] = batch.columns["rollout_id"].to_list()  # type: ignore[union-attr]
    group_ids: list[str] = shared.columns["group_id"].to_list()  # type: ignore[union-attr]
    versions = batch.info.version.tolist()
    put_at = _inserted_at(core, keys)
    for item, key in enumerate(keys.tolist()):
        first, last = starts[item], starts[item + 1]
        entry = Entry(
            group_ids[item], batch.info.task[item], ids[first:last], versions[item], put_at[item]
        )
        entry.trained = batch.info.status[item] == Status.ARCHIVED.value
        entry.blobs = tuple(_digests(batch, item, first, last))
        core.blobs.add({name: blobs[name] for name in entry.blobs})
        core.entries[key] = entry
        core.by_id[entry.group_id] = key
        core.stages.stored(key, entry)
        if batch.info.status[item] == Status.COMPLETED.value:
            lacks = [
                cell
                for cell, name in _names_of(core).items()
                if name not in batch.present or not batch.present[name][first:last].all()
            ]
            core.stages.came(key, entry, tuple(lacks))


def _names_of(core: Core) -> dict[str, str]:
    """The columns of the cells that groups need."""
    from recollect.rollouts.stages import PLACES

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
    from recollect.storage.memory import MemoryStorage

    storage = core.storage
    if not isinstance(storage, MemoryStorage):
        return [core.table._clock.time()] * keys.size
    slots = storage._items.slots_of(keys)
    times: list[float] = storage._items.values("inserted_at", slots).values.tolist()
    return times


def _to_bytes(batch: pa.RecordBatch | None) -> bytes | None:
    if batch is None:
        return None
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _from_bytes(data: bytes | None) -> pa.RecordBatch | None:
    if data is None:
        return None
    with pa.ipc.open_stream(pa.BufferReader(data)) as reader:
        return reader.read_next_batch()


def _blobs_to_arrow(blobs: Mapping[str, bytes]) -> pa.RecordBatch:
    values = pa.array(list(blobs.values()), pa.large_binary())
    return pa.record_batch([pa.array(list(blobs)), values], ["name", "blob"])


def _blobs_from_arrow(batch: pa.RecordBatch | None) -> dict[str, bytes]:
    if batch is None:
        return {}
    names = batch.column("name").to_pylist()
    return dict(zip(names, batch.column("blob").to_pylist(), strict=True))
