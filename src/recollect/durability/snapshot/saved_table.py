"""One table of a snapshot as it is read: the fields of its items, its arrays, blobs and rows.

A segment's files hold all items that it was written with. Which of them are still alive, and
values that changed since, stand in other files; here they come together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from recollect.base.arrays import Array, Ints
from recollect.data.arrow import ArrowBatch, numbers_array, numbers_of
from recollect.data.batch import Batch
from recollect.durability.snapshot.plain_arrays import put_together, summed
from recollect.durability.snapshot.segments import Ref, Segments
from recollect.kernels.layout import COUNTER_MASK
from recollect.storage.memory.restoration import Pieces
from recollect.storage.memory.saved_items import Saved, absent_value

Bools = NDArray[np.bool_]

CHUNK = 1 << 16  # rows that are read together where places are given


class SavedTable:
    """Reads a table by its entry in the manifest; what was read of items is kept."""

    def __init__(self, entry: Mapping[str, Any], segments: Segments) -> None:
        self.entry = entry
        self._segments = segments

    # -- items ------------------------------------------------------------------------------------
    @cached_property
    def columns(self) -> list[dict[str, Array]]:
        """By segment: the fields of its items, those that have gone included."""
        return [self._columns(segment) for segment in self.entry["segments"]]

    @cached_property
    def alive(self) -> list[Bools | None]:
        """By segment: which of its items are alive; None where all are."""
        return [self._alive(segment) for segment in self.entry["segments"]]

    @cached_property
    def bases(self) -> dict[str, Array]:
        """What the blocks of each array hold."""
        return {name: self._base(array) for name, array in self.entry["arrays"].items()}

    def saved(self) -> Saved:
        """The state of the table, without rows; its items segment by segment."""
        patches = {
            name: (self._piece(patch["places"]), self._piece(patch["values"]))
            for name, patch in self.entry.get("patches", {}).items()  # format 1 has none
        }
        arrays = {name: self._array(name, array) for name, array in self.entry["arrays"].items()}
        return Saved(self.entry["numbers"], self.items(patches), arrays)

    def items(self, patches: Mapping[str, tuple[Array, Array]]) -> dict[str, Array]:
        """The fields of all live items; columns that a segment has not are filled in."""
        segments = self.entry["segments"]
        here = None
        if any(some is not None for some in self.alive):
            ones = [np.ones(segment["count"], np.bool_) for segment in segments]
            pairs = zip(ones, self.alive, strict=True)
            here = np.concatenate([all_ if some is None else some for all_, some in pairs])
        names: dict[str, Any] = {}
        for some in self.columns:
            for name, array in some.items():
                names.setdefault(name, array.dtype)
        items: dict[str, Array] = {}
        for name, dtype in names.items():
            pieces = []
            for segment, some in zip(segments, self.columns, strict=True):
                pieces.append(some[name] if name in some else _filled(name, dtype, segment, some))
            whole = _one_after_another(pieces)
            if name in patches:
                places, values = patches[name]
                whole = whole.copy()
                whole[places] = values
            items[name] = whole if here is None else whole[here]
        if "key" not in items:
            items = {"key": np.zeros(0, np.uint64), "slot": np.zeros(0, np.int64)}
            items.update(times_sampled=np.zeros(0, np.int32), priority=np.zeros(0))
            items["inserted_at"] = np.zeros(0)
        items["slot"] = items["slot"].astype(np.int64)
        return items

    def _columns(self, segment: Mapping[str, Any]) -> dict[str, Array]:
        count = segment["count"]
        columns = self._segments.columns(segment["items"], count)
        for name, ref in segment["changed"].items():
            columns[name] = self._segments.array(ref, count)
        return columns

    def _alive(self, segment: Mapping[str, Any]) -> Bools | None:
        if segment["alive"] is None:
            return None
        bits = self._segments.array(segment["alive"], (segment["count"] + 7) // 8)
        return np.unpackbits(bits, count=segment["count"], bitorder="little").view(np.bool_)

    def _array(self, name: str, array: Mapping[str, Any]) -> Array:
        places = values = None
        if array["patch"]:
            places, values = (self._piece(array["patch"][part]) for part in ("places", "values"))
        return put_together(array["size"], array["dtype"], self.bases[name], places, values)

    def _base(self, array: Mapping[str, Any]) -> Array:
        pieces = [summed(self._piece(ref)) for ref in array["blocks"]]
        return np.concatenate(pieces) if pieces else np.zeros(0, array["dtype"])

    def _piece(self, ref: Ref) -> Array:
        return self._segments.array(ref[:3], ref[3])

    def blobs(self) -> dict[str, bytes]:
        """Blobs by name."""
        blobs: dict[str, bytes] = {}
        for ref in self.entry.get("blobs", []):
            batch = self._segments.batch(ref)
            names, values = batch.column("name").to_pylist(), batch.column("blob").to_pylist()
            blobs.update(zip(names, values, strict=True))
        return blobs

    def blob_refs(self) -> dict[str, Ref]:
        """Where each blob is."""
        refs: dict[str, Ref] = {}
        for ref in self.entry["blobs"]:
            names = self._segments.batch(ref).column("name").to_pylist()
            refs.update(dict.fromkeys(names, ref))
        return refs

    # -- rows -------------------------------------------------------------------------------------
    def rows(self, places: Ints | None = None) -> Iterator[Batch]:
        """The rows and shared cells of items, some at a time.

        In the order of `saved().items`, or, given places in it, in the order of the places.
        """
        segments = self.entry["segments"]
        if places is None:
            for number in range(len(segments)):
                yield from self._rows_of(number)
            return
        firsts = np.cumsum([0] + [segment["live"] for segment in segments])
        for begin in range(0, places.size, CHUNK):
            yield self._rows_at(firsts, places[begin : begin + CHUNK])

    def pieces(self, told: Callable[[int], None], check: Callable[[str], None]) -> Pieces:
        """The same for threads, a segment each.

        `check` is called with the name of a file before it is read, and `told` with the bytes of
        payload that were read.
        """

        def read(number: int) -> Iterator[Batch]:
            segment = self.entry["segments"][number]
            for file in (segment["rows"], segment["shared"]):
                if file:
                    check(file)
            yield from self._rows_of(number)
            told(segment["nbytes"])

        return Pieces([self._live_rows(n) for n in range(len(self.entry["segments"]))], read)

    def row_counts(self, number: int) -> Ints:
        """How many rows each item of a segment has, those that have gone included."""
        segment = self.entry["segments"][number]
        columns = self._segments.columns(segment["items"], segment["count"])
        if "rows" not in columns:
            return np.ones(segment["count"], np.int64)
        counts: Ints = columns["rows"].astype(np.int64)
        return counts

    def _live_rows(self, number: int) -> int:
        alive = self.alive[number]
        if alive is None:
            count: int = self.entry["segments"][number]["row_count"]
            return count
        return int(self.row_counts(number)[alive].sum())

    def _rows_of(self, number: int) -> Iterator[Batch]:
        """The rows of a segment's live items, a record batch at a time."""
        segment, alive = self.entry["segments"][number], self.alive[number]
        counts = None if alive is None else self.row_counts(number)
        shared = self._segments.batches(segment["shared"]) if segment["shared"] else None
        done = 0
        for place, rows in enumerate(self._segments.batches(segment["rows"])):
            cells = None if shared is None else shared[place]
            if alive is None or counts is None:
                columns = numbers_of(rows) if cells is None else None
                if columns is None:
                    yield Batch.from_arrow(ArrowBatch(rows, cells, None))
                else:
                    yield Batch._make(columns, None, None, None, None)
                continue
            upto = done + _items_in(counts[done:], rows.num_rows)
            here = alive[done:upto]
            if here.any():
                kept = np.flatnonzero(np.repeat(here, counts[done:upto]))
                rows = rows if here.all() else rows.take(numbers_array(kept))
                if cells is not None and not here.all():
                    cells = cells.take(numbers_array(np.flatnonzero(here)))
                yield Batch.from_arrow(ArrowBatch(rows, cells, None))
            done = upto

    def _rows_at(self, firsts: Ints, places: Ints) -> Batch:
        """The rows of items at some places: taken segment by segment, then put in order."""
        of = np.searchsorted(firsts, places, side="right") - 1
        rows, shared, lengths, order = [], [], [], []
        for number in np.unique(of).tolist():
            segment, alive = self.entry["segments"][number], self.alive[number]
            wanted = np.flatnonzero(of == number)
            items = places[wanted] - firsts[number]
            if alive is not None:
                items = np.flatnonzero(alive)[items]
            counts = self.row_counts(number)
            ends = np.cumsum(counts)
            table = pa.Table.from_batches(self._segments.batches(segment["rows"]))
            rows.append(
                table.take(numbers_array(_ranges(ends[items] - counts[items], counts[items])))
            )
            if segment["shared"]:
                cells = pa.Table.from_batches(self._segments.batches(segment["shared"]))
                shared.append(cells.take(numbers_array(items)))
            lengths.append(counts[items])
            order.append(wanted)
        per_item, back = np.concatenate(lengths), np.argsort(np.concatenate(order))
        starts = np.cumsum(per_item) - per_item
        take = numbers_array(_ranges(starts[back], per_item[back]))
        joined = pa.concat_tables(rows, promote_options="default").take(take)
        cells = None
        if shared:
            cells = pa.concat_tables(shared, promote_options="default").take(numbers_array(back))
        return Batch.from_arrow(ArrowBatch(joined, cells, None))


def _one_after_another(pieces: list[Array]) -> Array:
    """Arrays joined to one; without a copy where they lie side by side, as they were written."""
    base = pieces[0].base
    if not isinstance(base, np.ndarray) or any(piece.base is not base for piece in pieces):
        return np.concatenate(pieces)
    ends = [piece.ctypes.data + piece.nbytes for piece in pieces]
    starts = [piece.ctypes.data for piece in pieces]
    if starts[1:] != ends[:-1] or base.dtype != pieces[0].dtype or not base.flags.c_contiguous:
        return np.concatenate(pieces)
    first = (starts[0] - base.ctypes.data) // base.itemsize
    joined: Array = base.reshape(-1)[first : first + sum(piece.size for piece in pieces)]
    return joined


def _filled(name: str, dtype: Any, segment: Mapping[str, Any], some: dict[str, Array]) -> Array:
    """A column for a segment that was written before the column came."""
    if name == "seq":
        return (some["key"] & np.uint64(COUNTER_MASK)).astype(np.int64)
    if name == "nbytes":
        rows = some.get("rows", np.ones(segment["count"], np.int64))
        sizes: Array = rows.astype(np.int64) * segment["row_bytes"]
        return sizes
    return np.full(segment["count"], absent_value(name, dtype), dtype)


def _items_in(counts: Array, rows: int) -> int:
    return int(np.searchsorted(np.cumsum(counts), rows, side="right"))


def _ranges(starts: Ints, counts: Ints) -> Ints:
    """start, start + 1, ... for each start, so many as its count."""
    ends = np.cumsum(counts)
    steps = np.repeat(starts - (ends - counts), counts)
    ranges: Ints = steps + np.arange(ends[-1] if ends.size else 0)
    return ranges
