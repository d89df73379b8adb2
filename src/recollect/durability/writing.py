"""Writing one table of a snapshot: the rows that are new, the fields that changed, and the entry.

What is on disk already is named again and linked by `snapshot`. The order of the work follows
the disk: each file is handed over to be synced as soon as it is finished.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from recollect.durability.files import Files, Syncing, digest
from recollect.durability.ledger import (
    BLOCK,
    Known,
    Ledger,
    Plan,
    alive,
    changed_segments,
    empty_ledger,
    parts,
    plan,
    wasted,
)
from recollect.durability.segments import ChangesWriter, Ref, SegmentWriter, file_name
from recollect.storage.buffers import BufferPool
from recollect.storage.capture import Capture

Ints = NDArray[np.int64]
Array = NDArray[Any]

Segment = tuple[Known, Array | None]  # and which of its items are alive, None for all

BATCH = 32 << 20  # bytes of payload in a record batch
SMALL = "lz4"  # how fields are compressed


class TableWriter:
    """Writes the files of one table in one save."""

    def __init__(
        self,
        folder: Path,
        name: str,
        run: str,
        syncing: Syncing,
        files: Files,
        compression: str | None,
        told: Callable[[int], None],
    ) -> None:
        self._folder, self._name, self._run = folder, name, run
        self._syncing, self._files = syncing, files
        self._compression = compression
        self._told = told
        self._pool = BufferPool(2 * BATCH)
        self.written: dict[str, dict[str, Any]] = {}
        self._items = SegmentWriter(*self._at("items"), SMALL)
        self._changes = ChangesWriter(*self._at("changes"), SMALL)
        self._blobs = SegmentWriter(*self._at("blobs"), compression)
        self._of_items: list[tuple[Ints, Array | None, dict[str, Any]]] = []
        self._pieces: dict[str, list[tuple[Array, dict[str, Any], str]]] = {}

    def _at(self, kind: str, number: int | None = None) -> tuple[Path, str, Syncing, Files]:
        name = file_name(self._name, kind, self._run, number)
        return self._folder, name, self._syncing, self._files

    def write(
        self, captured: Capture, ledger: Ledger | None, blobs: Mapping[str, bytes]
    ) -> tuple[dict[str, Any], Ledger]:
        """Write what has changed; returns what the manifest says of it, and the next ledger."""
        old = empty_ledger(captured.key.size) if ledger is None else ledger
        planned = plan(captured, old)
        try:
            waste = wasted(old, _counted(old, planned.kept))
            segments = self._keep(captured, old, planned, waste)
            segments += self._add(captured, planned)
            self._write_items(captured)
            self._write_pieces()
            arrays, blocks = self._write_arrays(captured, old, waste)
            kept_blobs = self._write_blobs(blobs, old)
            for writer in (self._items, self._changes, self._blobs):
                self._finish(writer)
        except BaseException:
            for writer in (self._items, self._changes, self._blobs):
                writer.abandon()
            raise
        entry = {
            "segments": [known.entry for known, _ in segments],
            "arrays": arrays,
            "blobs": sorted(
                [file, number] for file, number in {tuple(r) for r in kept_blobs.values()}
            ),
        }
        named = named_files(entry)
        files = {name: self.written.get(name) or old.files[name] for name in named}
        return entry, _ledger(captured, segments, files, blocks, kept_blobs)

    def _finish(self, writer: SegmentWriter) -> None:
        entry = writer.close()
        if entry is not None:
            self.written[writer.name] = entry

    # -- rows -------------------------------------------------------------------------------------
    def _add(self, captured: Capture, planned: Plan) -> list[Segment]:
        """Write the rows that no kept segment has, in segments of about one size."""
        added: list[Segment] = []
        for number, run in enumerate(parts(captured, planned.fresh, planned.target)):
            slots = captured.arranged(run)
            rows = SegmentWriter(*self._at("rows", number), self._compression)
            shared = SegmentWriter(*self._at("shared", number), self._compression)
            count = 0
            try:
                for some in parts(captured, slots, BATCH):
                    arrow = captured.read(some, self._pool.array).to_arrow()
                    rows.write(arrow.rows)
                    count += arrow.rows.num_rows
                    if arrow.shared is not None:
                        shared.write(arrow.shared)
                    self._told(int(captured.nbytes(some).sum()))
                for writer in (rows, shared):
                    self._finish(writer)
            except BaseException:
                rows.abandon()
                shared.abandon()
                raise
            entry: dict[str, Any] = {
                "rows": rows.name,
                "shared": shared.name if shared.batches else None,
                "items": None,
                "count": slots.size,
                "row_count": count,
                "row_bytes": captured.row_bytes,
                "nbytes": int(captured.nbytes(slots).sum()),
                "live": slots.size,
                "alive": None,
                "changed": {},
            }
            self._of_items.append((slots, None, entry))
            added.append((Known(entry, slots), None))
        return added

    def _write_items(self, captured: Capture) -> None:
        """Write the fields of all segments that asked for it, one after another in one batch."""
        if not self._of_items:
            return
        slots = np.concatenate([slots for slots, _, _ in self._of_items])
        here = None
        if any(alive is not None for _, alive, _ in self._of_items):
            here = np.concatenate(
                [np.ones(of.size, np.bool_) if a is None else a for of, a, _ in self._of_items]
            )
        columns: dict[str, Array] = {"key": _of(captured.key, slots, here)}
        columns["slot"] = slots.astype(np.int32)
        for name, array in (*captured.fixed.items(), *captured.changing.items()):
            columns[name] = _of(array, slots, here)
        arrays = [pa.array(np.ascontiguousarray(column)) for column in columns.values()]
        ref = self._items.write(pa.record_batch(arrays, list(columns)), slots.size)
        first = 0
        for of, _, entry in self._of_items:
            entry["items"] = [*ref, first]
            first += of.size

    def _write_pieces(self) -> None:
        """Write columns of several segments, those of a name one after another in one batch."""
        for name, pieces in self._pieces.items():
            ref = self._changes.add(name, np.concatenate([values for values, _, _ in pieces]))
            first = 0
            for values, entry, key in pieces:
                entry[key] = [*ref, first]
                first += values.size

    # -- what is on disk already ------------------------------------------------------------------
    def _keep(
        self, captured: Capture, ledger: Ledger, planned: Plan, waste: set[str]
    ) -> list[Segment]:
        """Name segments again, with the fields that changed and the items that have gone."""
        if not planned.kept:
            return []
        changed = {
            name: changed_segments(captured, ledger, planned, name) for name in captured.changing
        }
        kept: list[Segment] = []
        for number in planned.kept:
            segment = ledger.segments[number]
            slots, entry = segment.slots, dict(segment.entry)
            here = alive(captured, ledger, planned, number)
            live = int(here.sum())
            if live != entry["live"] or (entry["alive"] and entry["alive"][0] in waste):
                bits = np.packbits(here, bitorder="little")
                self._pieces.setdefault("alive", []).append((bits, entry, "alive"))
            entry["live"] = live
            if entry["items"][0] in waste:
                self._of_items.append((slots, here, entry))
                entry["changed"] = {}
            else:
                columns = dict(entry["changed"])
                for name, where in changed.items():
                    if number in where or (name in columns and columns[name][0] in waste):
                        values = _of(captured.changing[name], slots, here)
                        self._pieces.setdefault(name, []).append((values, columns, name))
                entry["changed"] = columns
            kept.append((Known(entry, slots), here))
        return kept

    # -- arrays and blobs -------------------------------------------------------------------------
    def _write_arrays(
        self, captured: Capture, ledger: Ledger, waste: set[str]
    ) -> tuple[dict[str, list[Ref]], dict[str, list[tuple[str, Ref]]]]:
        """Write the blocks of arrays that are not on disk as they are."""
        arrays: dict[str, list[Ref]] = {}
        blocks: dict[str, list[tuple[str, Ref]]] = {}
        for name, array in captured.arrays.items():
            before = ledger.blocks.get(name, [])
            here: list[tuple[str, Ref]] = []
            for place, begin in enumerate(range(0, max(array.size, 1), BLOCK)):
                block = np.ascontiguousarray(array[begin : begin + BLOCK])
                checksum = f"{block.dtype.name} {block.size} {digest(block)}"
                same = place < len(before) and before[place][0] == checksum
                if same and before[place][1][0] not in waste:
                    here.append(before[place])
                else:
                    here.append((checksum, self._changes.add(name, block)))
            blocks[name] = here
            arrays[name] = [ref for _, ref in here]
        return arrays, blocks

    def _write_blobs(self, blobs: Mapping[str, bytes], ledger: Ledger) -> dict[str, Ref]:
        """Write blobs that are not on disk; where most of a file's have gone, all of them."""
        kept = {name: ref for name, ref in ledger.blobs.items() if name in blobs}
        if 2 * len(kept) < len(ledger.blobs):
            kept = {}
        new = [name for name in blobs if name not in kept]
        if new:
            values = pa.array([blobs[name] for name in new], pa.large_binary())
            names = pa.array(new, pa.large_utf8())
            ref = self._blobs.write(pa.record_batch([names, values], ["name", "blob"]))
            kept.update(dict.fromkeys(new, ref))
        return kept


def _of(array: Array, slots: Ints, here: Array | None) -> Array:
    """The values of slots, zero where an item has gone: its slot may be another's now."""
    if here is None:
        return array[slots]
    values = np.zeros(slots.size, array.dtype)
    values[here] = array[slots[here]]
    return values


def _ledger(
    captured: Capture,
    segments: list[Segment],
    files: dict[str, dict[str, Any]],
    blocks: dict[str, list[tuple[str, Ref]]],
    blobs: dict[str, Ref],
) -> Ledger:
    """What is on disk once this save is committed; its folder is filled in then."""
    place = np.full(captured.key.size, -1, np.int64)
    for number, (known, here) in enumerate(segments):
        places = (np.int64(number) << 32) | np.arange(known.slots.size)
        if here is None:
            place[known.slots] = places
        else:
            place[known.slots[here]] = places[here]
    return Ledger(
        "", files, [known for known, _ in segments], captured.key,
        captured.fixed.get("revision"), place, captured.changing, blocks, blobs,
    )  # fmt: skip


def _counted(ledger: Ledger, kept: list[int]) -> dict[str, int]:
    """How many values of each file are still named."""
    counts: dict[str, int] = {}

    def count(ref: Ref | None, size: int) -> None:
        if ref:
            counts[ref[0]] = counts.get(ref[0], 0) + size

    for number in kept:
        entry = ledger.segments[number].entry
        size = entry["count"]
        count(entry["items"], size)
        count(entry["alive"], (size + 7) // 8)
        for ref in entry["changed"].values():
            count(ref, size)
    for blocks in ledger.blocks.values():
        for checksum, ref in blocks:
            count(ref, int(checksum.split()[1]))
    return counts


def named_files(entry: Mapping[str, Any]) -> list[str]:
    """Every file that a table's entry names."""
    names: dict[str, None] = {}
    for segment in entry["segments"]:
        names[segment["rows"]] = None
        if segment["shared"]:
            names[segment["shared"]] = None
        for ref in (segment["items"], segment["alive"], *segment["changed"].values()):
            if ref:
                names[ref[0]] = None
    for refs in (*entry["arrays"].values(), entry["blobs"]):
        for ref in refs:
            names[ref[0]] = None
    return list(names)
