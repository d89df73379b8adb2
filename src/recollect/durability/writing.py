"""Writing one table of a snapshot: the rows that are new, the fields that changed, and the entry.

What is on disk already is named again and linked by `snapshot`. Rows are read, hashed and written
by a few threads, a segment each; the disk begins with a file as soon as it is finished.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future, wait
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from recollect.durability.arrays import BLOCK, OnDisk, differences, plan_array
from recollect.durability.files import Files, Syncing
from recollect.durability.ledger import (
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
        threads: Executor,
    ) -> None:
        self._folder, self._name, self._run = folder, name, run
        self._syncing, self._files = syncing, files
        self._compression = compression
        self._told = told
        self._pool = BufferPool(2 * BATCH)
        self.written: dict[str, dict[str, Any]] = {}
        self._items = SegmentWriter(*self._at("items"), SMALL)
        self._changes = ChangesWriter(*self._at("changes"), SMALL)
        self._arrays = ChangesWriter(*self._at("arrays"), SMALL)
        self._blobs = SegmentWriter(*self._at("blobs"), compression)
        self._threads = threads
        self._rows: list[Future[None]] = []
        self._of_items: list[Segment] = []
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
            arrays, on_disk = self._write_arrays(captured, old, waste)
            kept_blobs = self._write_blobs(blobs, old)
            for writer in (self._items, self._changes, self._arrays, self._blobs):
                self._finish(writer)
            for rows in self._rows:
                rows.result()
        except BaseException:
            for rows in self._rows:
                rows.cancel()
            wait(self._rows)
            for writer in (self._items, self._changes, self._arrays, self._blobs):
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
        return entry, _ledger(captured, segments, files, on_disk, kept_blobs, patches(entry))

    def _finish(self, writer: SegmentWriter) -> None:
        entry = writer.close()
        if entry is not None:
            self.written[writer.name] = entry

    # -- rows -------------------------------------------------------------------------------------
    def _add(self, captured: Capture, planned: Plan) -> list[Segment]:
        """Begin to write the rows that no kept segment has, in segments of about one size."""
        added: list[Segment] = []
        for number, run in enumerate(parts(captured, planned.fresh, planned.target)):
            slots = captured.arranged(run)
            entry: dict[str, Any] = {
                "rows": file_name(self._name, "rows", self._run, number),
                "shared": None,
                "items": None,
                "count": slots.size,
                "row_count": 0,
                "row_bytes": captured.row_bytes,
                "nbytes": int(captured.nbytes(slots).sum()),
                "live": slots.size,
                "alive": None,
                "changed": {},
            }
            known = Known(entry, slots, captured.rows(slots))
            self._of_items.append((known, None))
            added.append((known, None))
            self._rows.append(self._threads.submit(self._write_rows, captured, known, number))
        return added

    def _write_rows(self, captured: Capture, known: Known, number: int) -> None:
        """Write the rows of a segment, in one of the threads."""
        rows = SegmentWriter(*self._at("rows", number), self._compression)
        shared = SegmentWriter(*self._at("shared", number), self._compression)
        try:
            for some in parts(captured, known.slots, BATCH):
                arrow = captured.read(some, self._pool.array).to_arrow()
                rows.write(arrow.rows)
                known.entry["row_count"] += arrow.rows.num_rows
                if arrow.shared is not None:
                    shared.write(arrow.shared)
                self._told(int(captured.nbytes(some).sum()))
            if shared.batches:
                known.entry["shared"] = shared.name
            for writer in (rows, shared):
                self._finish(writer)
        except BaseException:
            rows.abandon()
            shared.abandon()
            raise

    def _write_items(self, captured: Capture) -> None:
        """Write the fields of all segments that asked for it, one after another in one batch."""
        if not self._of_items:
            return
        slots = np.concatenate([known.slots for known, _ in self._of_items])
        here = None
        if any(alive is not None for _, alive in self._of_items):
            every = [(np.ones(known.slots.size, np.bool_), a) for known, a in self._of_items]
            here = np.concatenate([ones if a is None else a for ones, a in every])
        columns: dict[str, Array] = {"key": _of(captured.key, slots, here)}
        columns["slot"] = slots.astype(np.int32)
        for name, array in (*captured.fixed.items(), *captured.changing.items()):
            columns[name] = _of(array, slots, here)
        if "rows" in columns:  # of those that have gone too: their rows are still in the file
            columns["rows"] = np.concatenate(
                [
                    np.ones(known.slots.size, np.int32) if known.rows is None else known.rows
                    for known, _ in self._of_items
                ]
            )
        arrays = [pa.array(np.ascontiguousarray(column)) for column in columns.values()]
        ref = self._items.write(pa.record_batch(arrays, list(columns)), slots.size)
        first = 0
        for known, _ in self._of_items:
            known.entry["items"] = [*ref, first]
            first += known.slots.size

    def _write_pieces(self) -> None:
        """Write columns of several segments, those of a name one after another in one batch."""
        for name, pieces in self._pieces.items():
            refs = _add_pieces(self._changes, name, [values for values, _, _ in pieces])
            for (_, entry, key), ref in zip(pieces, refs, strict=True):
                entry[key] = ref[:3]

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
                self._of_items.append((Known(entry, slots, segment.rows), here))
                entry["changed"] = {}
            else:
                columns = dict(entry["changed"])
                for name, where in changed.items():
                    if number in where or (name in columns and columns[name][0] in waste):
                        values = _of(captured.changing[name], slots, here)
                        self._pieces.setdefault(name, []).append((values, columns, name))
                entry["changed"] = columns
            kept.append((Known(entry, slots, segment.rows), here))
        return kept

    # -- arrays and blobs -------------------------------------------------------------------------
    def _write_arrays(
        self, captured: Capture, ledger: Ledger, waste: set[str]
    ) -> tuple[dict[str, Any], dict[str, OnDisk]]:
        """Write blocks and patches of arrays, where they are not on disk as they are."""
        entries: dict[str, Any] = {}
        on_disk: dict[str, OnDisk] = {}
        for name, given in captured.arrays.items():
            array = np.ascontiguousarray(given)
            before = ledger.arrays.get(name)
            planned = plan_array(array, before, waste)
            blocks = [] if before is None else list(before.blocks)
            blocks = blocks[: -(-array.size // BLOCK)]
            pieces = [differences(array[n * BLOCK : (n + 1) * BLOCK]) for n in planned.rewritten]
            refs = _add_pieces(self._arrays, name, pieces)
            for number, ref in zip(planned.rewritten, refs, strict=True):
                blocks[number : number + 1] = [ref]
            patch = None
            if planned.places.size:
                here = planned.places.astype(np.int32)
                places = _add_pieces(self._arrays, f"{name} places", [here])[0]
                values = _add_pieces(self._arrays, f"{name} values", [array[here]])[0]
                patch = {"places": places, "values": values}
            entries[name] = {
                "size": array.size, "dtype": array.dtype.name, "blocks": blocks, "patch": patch,
            }  # fmt: skip
            on_disk[name] = OnDisk(planned.base, blocks)
        return entries, on_disk

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


def _add_pieces(writer: ChangesWriter, name: str, pieces: list[Array]) -> list[list[Any]]:
    """Write arrays one after another in one batch; returns where each is."""
    if not pieces:
        return []
    ref = writer.add(name, np.concatenate(pieces))
    ends = np.cumsum([piece.size for piece in pieces]).tolist()
    return [[*ref, end - piece.size, piece.size] for piece, end in zip(pieces, ends, strict=True)]


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
    arrays: dict[str, OnDisk],
    blobs: dict[str, Ref],
    patched: list[Ref],
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
        captured.fixed.get("revision"), place, captured.changing, arrays, patched, blobs,
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
    for array in ledger.arrays.values():
        for ref in array.blocks:
            count(ref, ref[3])
    for ref in ledger.patches:
        count(ref, ref[3])
    return counts


def patches(entry: Mapping[str, Any]) -> list[Ref]:
    """Where the patches of a table's arrays are."""
    return [ref for array in entry["arrays"].values() for ref in (array["patch"] or {}).values()]


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
    for array in entry["arrays"].values():
        for ref in array["blocks"]:
            names[ref[0]] = None
    for ref in (*patches(entry), *entry["blobs"]):
        names[ref[0]] = None
    return list(names)
