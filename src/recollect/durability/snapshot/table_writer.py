"""The writer of one table of a snapshot: new rows, fields that changed, and the manifest's entry.

What is on disk already is named again, and `saver.py` links its files. A few threads read, hash and
write rows, a segment each; the disk begins with a file as soon as it is finished.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor, Future, wait
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from recollect.base.arrays import Array, Ints
from recollect.data.arrow import bytes_array
from recollect.durability.files import Files, Syncing
from recollect.durability.snapshot.ledger import (
    LOW,
    Known,
    Ledger,
    SavePlan,
    empty_ledger,
    parts,
    plan,
    wasted,
)
from recollect.durability.snapshot.plain_arrays import BLOCK, OnDisk, differences, plan_array
from recollect.durability.snapshot.segments import (
    ChangesWriter,
    Ref,
    SegmentWriter,
    file_name,
    items_batch,
)
from recollect.storage.buffers import BufferPool
from recollect.storage.memory.capture import Capture
from recollect.storage.memory.saved_items import RECORDED, absent_value
from recollect.storage.memory.slot_runs import SlotRuns

Settle = Callable[[str, int], Ledger]

SPARSE = 8  # a column with one in so many of its values changed is written again
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
        self._of_items: list[Known] = []
        self._pieces: dict[str, list[tuple[Array, dict[str, Any], str]]] = {}

    def _at(self, kind: str, number: int | None = None) -> tuple[Path, str, Syncing, Files]:
        name = file_name(self._name, kind, self._run, number)
        return self._folder, name, self._syncing, self._files

    def write(
        self, captured: Capture, ledger: Ledger | None, blobs: Mapping[str, bytes]
    ) -> tuple[dict[str, Any], dict[str, Any], Settle]:
        """Write what has changed; returns what the manifest says of it, the files that it names,
        and what makes the next ledger once this save is committed.
        """
        old = empty_ledger() if ledger is None else ledger
        planned = plan(captured, old)
        try:
            waste = wasted(old, _counted(old, planned.kept))
            added = self._add(captured, planned)
            segments, sparse = self._keep(captured, old, planned, waste)
            segments.update(added)
            patched = self._write_patches(captured, old, segments, sparse)
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
            "segments": [known.entry for known in segments.values()],
            "patches": patched,
            "arrays": arrays,
            "blobs": sorted(
                [file, number] for file, number in {tuple(r) for r in kept_blobs.values()}
            ),
        }
        named = named_files(entry)
        files = {name: self.written.get(name) or old.files[name] for name in named}

        def settle(folder: str, sequence: int) -> Ledger:
            return Ledger(
                folder, sequence, files, segments, _places(captured, old, planned, added),
                captured.records, captured.key if captured.records is None else None,
                captured.fixed.get("revision"), _in_columns(captured, old, sparse), on_disk,
                patches(entry), kept_blobs,
            )  # fmt: skip

        return entry, files, settle

    def _finish(self, writer: SegmentWriter) -> None:
        entry = writer.close()
        if entry is not None:
            self.written[writer.name] = entry

    # -- rows -------------------------------------------------------------------------------------
    def _add(self, captured: Capture, planned: SavePlan) -> dict[int, Known]:
        """Begin to write the rows that no kept segment has, in segments of about one size."""
        added: dict[int, Known] = {}
        free = (number for number in count() if number not in planned.kept)
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
            known = Known(entry, slots, captured.rows(slots), None)
            self._of_items.append(known)
            added[next(free)] = known
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
        """Write the fields of the segments in `_of_items`, one after another in one batch."""
        if not self._of_items:
            return
        slots = np.concatenate([known.slots for known in self._of_items])
        runs, here = SlotRuns(slots), None
        if any(known.alive is not None for known in self._of_items):
            here = np.concatenate([_alive(known) for known in self._of_items])

        def taken(array: Array) -> Array:
            """Zero where an item has gone: its slot may be another's now."""
            return runs.take(array) if here is None else _of(array, slots, here)

        columns: dict[str, Array] = {"key": taken(captured.key), "slot": slots.astype(np.int32)}
        for name, array in (*captured.fixed.items(), *captured.changing.items()):
            columns[name] = taken(array)
        if "rows" in columns:  # items that have gone have some, too: their rows are in the file
            columns["rows"] = np.concatenate(
                [
                    np.ones(known.slots.size, np.int32) if known.rows is None else known.rows
                    for known in self._of_items
                ]
            )
        ref = self._items.write(items_batch(columns), slots.size)
        first = 0
        for known in self._of_items:
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
        self, captured: Capture, ledger: Ledger, planned: SavePlan, waste: set[str]
    ) -> tuple[dict[int, Known], dict[str, Ints]]:
        """Name segments again, with the items that have gone and columns of which much changed.

        Also returns, by field, the slots whose values changed in the other columns.
        """
        many = 1 + max(planned.kept, default=0)
        counts = {
            name: np.bincount(ledger.place[slots] >> 32, minlength=many)
            for name, slots in planned.columns.items()
        }
        whole = {name: np.zeros(many, np.bool_) for name in planned.columns}
        kept: dict[int, Known] = {}
        for number, known in planned.kept.items():
            entry = {**known.entry, "changed": dict(known.entry["changed"])}
            again = known._replace(entry=entry)
            died = entry["live"] != ledger.segments[number].entry["live"]
            if died or (entry["alive"] and entry["alive"][0] in waste):
                bits = np.packbits(_alive(known), bitorder="little")
                self._pieces.setdefault("alive", []).append((bits, entry, "alive"))
            columns: dict[str, Any] = entry["changed"]
            if entry["items"][0] in waste:
                self._of_items.append(again)
                columns.clear()
                for chosen in whole.values():
                    chosen[number] = True
                kept[number] = again
                continue
            for name, of in counts.items():
                much = of[number] * SPARSE > entry["count"]
                if much or (name in columns and columns[name][0] in waste):
                    whole[name][number] = True
                    values = _of(captured.changing[name], known.slots, _alive(known))
                    self._pieces.setdefault(name, []).append((values, columns, name))
            kept[number] = again
        sparse = {
            name: slots[~whole[name][ledger.place[slots] >> 32]]
            for name, slots in planned.columns.items()
        }
        return kept, {name: slots for name, slots in sparse.items() if slots.size}

    def _write_patches(
        self,
        captured: Capture,
        ledger: Ledger,
        segments: Mapping[int, Known],
        sparse: Mapping[str, Ints],
    ) -> dict[str, Any]:
        """Write single values of columns, and where they stand in all segments taken together."""
        firsts = np.zeros(1 + max(segments, default=0), np.int64)
        done = 0
        for number, known in segments.items():
            firsts[number] = done
            done += known.slots.size
        patched = {}
        for name, slots in sparse.items():
            place = ledger.place[slots]
            where = (firsts[place >> 32] + (place & LOW)).astype(np.int32)
            places = _add_pieces(self._changes, f"{name} places", [where])[0]
            values = _add_pieces(self._changes, f"{name} values", [captured.changing[name][slots]])
            patched[name] = {"places": places, "values": values[0]}
        return patched

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
            values = bytes_array([blobs[name] for name in new], pa.large_binary())
            names = bytes_array([name.encode() for name in new], pa.large_utf8())
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


def _of(array: Array, slots: Ints, here: Array) -> Array:
    """The values of slots, zero where an item has gone: its slot may be another's now."""
    values = np.zeros(slots.size, array.dtype)
    values[here] = array[slots[here]]
    return values


def _alive(known: Known) -> Array:
    return np.ones(known.slots.size, np.bool_) if known.alive is None else known.alive


def _places(
    captured: Capture, ledger: Ledger, planned: SavePlan, added: Mapping[int, Known]
) -> Ints:
    """Where each slot's rows are now."""
    place = ledger.place
    if place.size != captured.key.size:
        place = np.full(captured.key.size, -1, np.int64)
        common = min(place.size, ledger.place.size)
        place[:common] = ledger.place[:common]
    place[planned.gone[planned.gone < place.size]] = -1
    for number, known in added.items():
        items = np.arange(known.slots.size, dtype=np.int64)
        SlotRuns(known.slots).put(place, (np.int64(number) << 32) | items)
    return place


def _in_columns(captured: Capture, ledger: Ledger, sparse: Mapping[str, Ints]) -> dict[str, Array]:
    """Fields as their columns have them: single values that were patched are not in there."""
    before = {}
    for name, now in captured.changing.items():
        if captured.records is not None and name in RECORDED:
            if name in sparse:
                now[sparse[name]] = captured.before(name, sparse[name])
            continue
        before[name] = now
        if name in sparse:
            known = ledger.before.get(name)
            absent = absent_value(name, now.dtype)
            now[sparse[name]] = absent if known is None else known[sparse[name]]
    return before


def _counted(ledger: Ledger, kept: Iterable[int]) -> dict[str, int]:
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
    """Where the patches of a table's arrays and columns are."""
    all_ = [*(array["patch"] or {} for array in entry["arrays"].values())]
    all_ += entry.get("patches", {}).values()  # format 1 has none of columns
    return [ref for patch in all_ for ref in patch.values()]


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
