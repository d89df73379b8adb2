"""A buffer's state as data, and as a snapshot; and back. Exact: order, keys, counters, draws.

A snapshot is that of the table (`durability`), with the rest of the buffer in the table's entry:
train step, accounts, and blobs by name. Leases, claims and promised room are over: whoever had
them does not live in the buffer that is restored, so nobody would give them back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from os import PathLike
from typing import Any

import numpy as np
import pyarrow as pa

from recollect.data.arrow import ArrowBatch
from recollect.data.batch import Batch
from recollect.durability.format import stream_of
from recollect.durability.snapshot.ledger import parts
from recollect.durability.snapshot.loader import Loaded, load_snapshot
from recollect.durability.snapshot.members import Captured
from recollect.durability.snapshot.saver import SavedSnapshot, save_snapshot
from recollect.errors import SnapshotError
from recollect.rollouts.blobs import digest
from recollect.rollouts.core import RolloutCore
from recollect.rollouts.own_state import own_state, restore_own
from recollect.storage.memory.capture import saved_of
from recollect.storage.memory.saved_items import Saved
from recollect.table.member import TableMember

FORMAT = 2  # of `state`, which lives as long as a process
CHUNK = 32 << 20  # bytes of payload that are encoded together


class RolloutMember(TableMember):
    """A buffer of rollouts, as snapshots see it."""

    kind = "rollouts"

    def __init__(self, core: RolloutCore) -> None:
        super().__init__(core.table)
        self._rollouts = core

    def capture(self) -> Captured:
        captured = super().capture()
        captured.entry["own"] = own_state(self._rollouts)
        captured.blobs = self._rollouts.blobs.all()
        return captured

    def restore(
        self,
        entry: Mapping[str, Any],
        saved: Saved,
        batches: Iterable[Batch],
        blobs: Mapping[str, bytes],
    ) -> int:
        _check_blobs(blobs, self.core.name)
        self.reset()
        gone = super().restore(entry, saved, batches, blobs)
        restore_own(self._rollouts, entry["own"], blobs)
        return gone

    def reset(self) -> None:
        super().reset()
        self._rollouts.reset()


def _check_blobs(blobs: Mapping[str, bytes], where: str) -> None:
    """A blob's name is made of its content, so it tells whether that is whole."""
    if any(digest(blob) != name for name, blob in blobs.items()):
        raise SnapshotError(f"{where}: a blob is not what was written")


def state(core: RolloutCore) -> dict[str, Any]:
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


def restore(core: RolloutCore, saved: Mapping[str, Any]) -> None:
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
    core: RolloutCore, path: str | PathLike[str], files: Mapping[str, Any] | None, **options: Any
) -> SavedSnapshot:
    """Write a snapshot, all of it or nothing; replaces one that is there."""
    return save_snapshot(
        path, {core.table.name: RolloutMember(core)}, kind="rollouts", others=files, **options
    )


def load(core: RolloutCore, path: str | PathLike[str], **options: Any) -> Loaded:
    """Put a snapshot into an empty buffer."""
    return load_snapshot(path, {core.table.name: RolloutMember(core)}, **options)


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
