"""Reading snapshots: opening, verifying, and putting them into tables and buffers."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from recollect.data.arrow import ArrowBatch, numbers_array, numbers_of
from recollect.data.batch import Batch
from recollect.durability.files import LOCAL, Files, digest, digests
from recollect.durability.progress_bar import bar
from recollect.durability.snapshot.ledger import Known, Ledger
from recollect.durability.snapshot.manifest import (
    MANIFEST,
    find_snapshots,
    no_snapshot,
    put_aside,
    read_manifest,
)
from recollect.durability.snapshot.members import Member, member_of
from recollect.durability.snapshot.plain_arrays import OnDisk, put_together, summed
from recollect.durability.snapshot.segments import Ref, Segments
from recollect.durability.snapshot.table_writer import named_files, patches
from recollect.errors import SnapshotError
from recollect.kernels.layout import COUNTER_MASK
from recollect.storage.memory.restoration import Pieces
from recollect.storage.memory.saved_items import FIXED, Saved, absent_value, records_of
from recollect.storage.memory.slot_runs import SlotRuns

log = logging.getLogger("recollect")

Ints = NDArray[np.int64]
Array = NDArray[Any]

_NEVER_CHANGE = set(FIXED) - {"revision"}  # while an item's rows stay as they are
CHUNK = 1 << 16  # rows that are read together where places are given


@dataclass(frozen=True)
class Loaded:
    """What a load did."""

    path: Path
    step: int | None
    state: Mapping[str, Any]
    evicted: Mapping[str, int] = field(default_factory=dict)  # by table: items that did not fit
    others: Mapping[str, Path] = field(default_factory=dict)  # files of others, by name


class Snapshot:
    """A snapshot on disk. Opening it reads the manifest and nothing else."""

    def __init__(self, path: str | os.PathLike[str], files: Files = LOCAL) -> None:
        self.path = Path(path)
        self.files = files
        self.manifest = read_manifest(self.path, files)
        self.segments = Segments(self.path, files)

    @property
    def kind(self) -> str:
        kind: str = self.manifest["kind"]
        return kind

    @property
    def step(self) -> int | None:
        return self.manifest.get("step")

    @property
    def state(self) -> dict[str, Any]:
        """What was saved beside the tables."""
        state: dict[str, Any] = self.manifest["state"]
        return state

    @property
    def tables(self) -> list[str]:
        return list(self.manifest["tables"])

    @property
    def others(self) -> dict[str, Path]:
        """Files of others, by name."""
        return {name: self.path / name for name in self.manifest["others"]}

    def entry(self, table: str) -> dict[str, Any]:
        """What the manifest says of a table."""
        try:
            entry: dict[str, Any] = self.manifest["tables"][table]
        except KeyError:
            there = ", ".join(self.tables) or "none"
            raise SnapshotError(f"{self.path} has no table {table!r}; it has {there}") from None
        return entry

    # -- items ------------------------------------------------------------------------------------
    def saved(self, table: str) -> Saved:
        """The state of a table, without rows; its items segment by segment."""
        entry = self.entry(table)
        columns = [self._columns(segment) for segment in entry["segments"]]
        return self._saved(entry, columns, self._alives(entry), self._bases(entry))

    def _saved(
        self,
        entry: Mapping[str, Any],
        columns: list[dict[str, Array]],
        alive: list[Array | None],
        bases: Mapping[str, Array],
    ) -> Saved:
        patches = {
            name: (self._piece(patch["places"]), self._piece(patch["values"]))
            for name, patch in entry.get("patches", {}).items()  # format 1 has none
        }
        items = _joined(entry["segments"], columns, alive, patches)
        arrays = {name: self._array(array, bases[name]) for name, array in entry["arrays"].items()}
        return Saved(entry["numbers"], items, arrays)

    def _alives(self, entry: Mapping[str, Any]) -> list[Array | None]:
        return [self._alive(segment) for segment in entry["segments"]]

    def _bases(self, entry: Mapping[str, Any]) -> dict[str, Array]:
        """What the blocks of arrays hold."""
        return {name: self._base(array) for name, array in entry["arrays"].items()}

    def _columns(self, segment: Mapping[str, Any]) -> dict[str, Array]:
        """The fields of a segment's items, those that have gone included."""
        count = segment["count"]
        columns = self.segments.columns(segment["items"], count)
        for name, ref in segment["changed"].items():
            columns[name] = self.segments.array(ref, count)
        return columns

    def _alive(self, segment: Mapping[str, Any]) -> NDArray[np.bool_] | None:
        if segment["alive"] is None:
            return None
        bits = self.segments.array(segment["alive"], (segment["count"] + 7) // 8)
        return np.unpackbits(bits, count=segment["count"], bitorder="little").view(np.bool_)

    def _array(self, array: Mapping[str, Any], base: Array) -> Array:
        places = values = None
        if array["patch"]:
            places, values = (self._piece(array["patch"][name]) for name in ("places", "values"))
        return put_together(array["size"], array["dtype"], base, places, values)

    def _base(self, array: Mapping[str, Any]) -> Array:
        """What the blocks of an array hold."""
        pieces = [summed(self._piece(ref)) for ref in array["blocks"]]
        return np.concatenate(pieces) if pieces else np.zeros(0, array["dtype"])

    def _piece(self, ref: list[Any]) -> Array:
        return self.segments.array(ref[:3], ref[3])

    def blobs(self, table: str) -> dict[str, bytes]:
        """Blobs by name."""
        blobs: dict[str, bytes] = {}
        for ref in self.entry(table).get("blobs", []):
            batch = self.segments.batch(ref)
            names, values = batch.column("name").to_pylist(), batch.column("blob").to_pylist()
            blobs.update(zip(names, values, strict=True))
        return blobs

    # -- rows -------------------------------------------------------------------------------------
    def rows(self, table: str, places: Ints | None = None) -> Iterator[Batch]:
        """The rows and shared cells of items, some at a time.

        In the order of `saved(table).items`, or, given places in it, in the order of the places.
        """
        segments = self.entry(table)["segments"]
        if places is None:
            for segment in segments:
                yield from self._rows_of(segment)
            return
        firsts = np.cumsum([0] + [segment["live"] for segment in segments])
        for begin in range(0, places.size, CHUNK):
            yield self._rows_at(segments, firsts, places[begin : begin + CHUNK])

    def pieces(self, table: str, told: Callable[[int], None], *, check: bool) -> Pieces:
        """The same for threads, a segment each; with `check`, its checksum is compared first."""
        segments = self.entry(table)["segments"]
        counts = [self._row_count(segment) for segment in segments]

        def read(number: int) -> Iterator[Batch]:
            segment = segments[number]
            for file in (segment["rows"], segment["shared"]):
                if check and file:
                    self.check_file(file)
            yield from self._rows_of(segment)
            told(segment["nbytes"])

        return Pieces(counts, read)

    def _row_count(self, segment: Mapping[str, Any]) -> int:
        """How many rows the live items of a segment have."""
        if segment["alive"] is None:
            count: int = segment["row_count"]
            return count
        return int(self._row_counts(segment)[self._alive(segment)].sum())

    def _rows_of(self, segment: Mapping[str, Any]) -> Iterator[Batch]:
        """The rows of a segment's live items, a record batch at a time."""
        alive = self._alive(segment)
        counts = None if alive is None else self._row_counts(segment)
        shared = self.segments.batches(segment["shared"]) if segment["shared"] else None
        done = 0
        for number, rows in enumerate(self.segments.batches(segment["rows"])):
            cells = None if shared is None else shared[number]
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

    def _row_counts(self, segment: Mapping[str, Any]) -> Array:
        columns = self.segments.columns(segment["items"], segment["count"])
        if "rows" not in columns:
            return np.ones(segment["count"], np.int64)
        counts: Array = columns["rows"].astype(np.int64)
        return counts

    def _rows_at(self, segments: list[Any], firsts: Ints, places: Ints) -> Batch:
        """The rows of items at some places: taken segment by segment, then put in order."""
        of = np.searchsorted(firsts, places, side="right") - 1
        rows, shared, lengths, order = [], [], [], []
        for number in np.unique(of).tolist():
            segment = segments[number]
            wanted = np.flatnonzero(of == number)
            items = places[wanted] - firsts[number]
            alive = self._alive(segment)
            if alive is not None:
                items = np.flatnonzero(alive)[items]
            counts = self._row_counts(segment)
            ends = np.cumsum(counts)
            table = pa.Table.from_batches(self.segments.batches(segment["rows"]))
            rows.append(
                table.take(numbers_array(_ranges(ends[items] - counts[items], counts[items])))
            )
            if segment["shared"]:
                cells = pa.Table.from_batches(self.segments.batches(segment["shared"]))
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

    def row_files(self) -> set[str]:
        """The names of all files of rows and shared cells."""
        segments = [segment for name in self.tables for segment in self.entry(name)["segments"]]
        names = {segment[kind] for segment in segments for kind in ("rows", "shared")}
        return names - {None}

    # -- checks -----------------------------------------------------------------------------------
    def check_files(
        self, progress: bool | None = None, *, others: bool = False, later: Container[str] = ()
    ) -> None:
        """Compare every segment with its length and checksum; raises and names what is wrong.

        Checksums of files that are named in `later` are left to `check_file`.
        """
        named = dict(self.manifest["files"])
        if others:
            named.update(self.manifest["others"])
        for name, entry in {**named, **self.manifest["others"]}.items():
            path = self.path / name
            try:
                size = self.files.size(path)
            except FileNotFoundError:
                raise SnapshotError(f"{path} is missing; the snapshot cannot be used") from None
            if size != entry["bytes"]:
                raise SnapshotError(
                    f"{path} is damaged: it has {size} bytes and {entry['bytes']} were written"
                )
        named = {name: entry for name, entry in named.items() if name not in later}
        with bar("check", sum(e["bytes"] for e in named.values()), progress) as told:
            found = digests([self.segments.data(name) for name in named], told)
        for name, checksum in zip(named, found, strict=True):
            self._expect_checksum(name, checksum, named[name])

    def check_file(self, name: str) -> None:
        """Compare one segment with its checksum."""
        self._expect_checksum(name, digest(self.segments.data(name)), self.manifest["files"][name])

    def _expect_checksum(self, name: str, found: str, entry: Mapping[str, Any]) -> None:
        if found != entry["xxh3"]:
            raise SnapshotError(
                f"{self.path / name} is damaged: its checksum is not what was written"
            )

    def verify(self, progress: bool | None = None) -> dict[str, int]:
        """Check every checksum and every count; returns how many files, items and rows."""
        self.check_files(progress, others=True)
        items = rows = 0
        for name in self.tables:
            entry, saved = self.entry(name), self.saved(name)
            keys = saved.items["key"]
            self._expect(name, "items", entry["items"], keys.size)
            self._expect(name, "different keys", keys.size, np.unique(keys).size)
            for segment in entry["segments"]:
                alive = self._alive(segment)
                live = segment["count"] if alive is None else int(alive.sum())
                self._expect(segment["rows"], "live items", segment["live"], live)
                stored = sum(b.num_rows for b in self.segments.batches(segment["rows"]))
                self._expect(segment["rows"], "rows", segment["row_count"], stored)
                if alive is None:
                    counted = int(self._row_counts(segment).sum())
                    self._expect(segment["rows"], "rows of its items", counted, stored)
                rows += stored
            items += keys.size
        files = len(self.manifest["files"]) + len(self.manifest["others"])
        return {"files": files, "items": items, "rows": rows}

    def _expect(self, where: str, what: str, expected: int, found: int) -> None:
        if expected != found:
            raise SnapshotError(
                f"{self.path / MANIFEST}: {where} has {found} {what} and should have {expected}"
            )


def _joined(
    segments: list[Any],
    columns: list[dict[str, Array]],
    alive: list[Array | None],
    patches: Mapping[str, tuple[Array, Array]],
) -> dict[str, Array]:
    """The live items of all segments; columns that one of them has not are filled in."""
    here = None
    if any(some is not None for some in alive):
        ones = [np.ones(segment["count"], np.bool_) for segment in segments]
        here = np.concatenate([o if a is None else a for o, a in zip(ones, alive, strict=True)])
    names: dict[str, Any] = {}
    for some in columns:
        for name, array in some.items():
            names.setdefault(name, array.dtype)
    items: dict[str, Array] = {}
    for name, dtype in names.items():
        pieces = []
        for segment, some in zip(segments, columns, strict=True):
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
    """A column that came after a segment was written."""
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


# Loading


def open_snapshot(
    path: str | os.PathLike[str], *, step: int | None = None, files: Files = LOCAL
) -> Snapshot:
    """Open a snapshot, or the latest in a folder of them, or the one of a step."""
    folder = Path(os.path.abspath(path))
    if files.exists(folder / MANIFEST):
        snapshot = Snapshot(folder, files)
        if step is None or snapshot.step == step:
            return snapshot
        raise SnapshotError(f"{folder} is of step {snapshot.step}, and step {step} is asked for")
    old = put_aside(folder, files)
    if old is not None and not files.exists(folder):
        return Snapshot(old, files)
    found = find_snapshots(folder, files) if files.is_folder(folder) else []
    if not found:
        raise SnapshotError(no_snapshot(folder, files))
    if step is None:
        return Snapshot(found[-1].path, files)
    for one in reversed(found):
        if one.step == step:
            return Snapshot(one.path, files)
    steps = ", ".join(str(one.step) for one in found)
    raise SnapshotError(f"{folder} has no snapshot of step {step}; there are {steps}")


def load_snapshot(
    path: str | os.PathLike[str],
    members: Mapping[str, Any],
    *,
    step: int | None = None,
    progress: bool | None = None,
    files: Files = LOCAL,
) -> Loaded:
    """Put a snapshot into the tables and buffers of the same names, exactly as they were.

    They must be empty, or journaled: those are rewound. All of it is checked before anything
    changes. Where a table is smaller now, its remover evicts what does not fit.
    """
    snapshot = open_snapshot(path, step=step, files=files)
    if snapshot.kind == "shards":
        raise SnapshotError(
            f"{snapshot.path} is a checkpoint of {snapshot.state['world_size']} shards; load it "
            "with rc.load_shards, on any number of ranks"
        )
    targets = {name: members[name] for name in snapshot.tables if name in members}
    missing = sorted(set(snapshot.tables) - set(members))
    if missing:
        raise SnapshotError(
            f"{snapshot.path}: it has a table {missing[0]!r} that this store has not; the store "
            f"has {', '.join(members)}"
        )
    wanted = {name: member_of(target) for name, target in sorted(targets.items())}
    for name, member in wanted.items():
        member.check(snapshot.entry(name), str(snapshot.path))
    untouched = all(member.untouched() for member in wanted.values())
    later = snapshot.row_files() if untouched else set()
    snapshot.check_files(progress, later=later)
    evicted = {}
    total = sum(snapshot.entry(name)["nbytes"] for name in wanted)
    with ExitStack() as stack:
        rewound = None
        if any(member.journaled for member in wanted.values()):
            from recollect.durability.journal.journal import rewinding

            rewound = stack.enter_context(rewinding(list(targets.values())))
        for member in wanted.values():
            stack.enter_context(member.saving)
        told = stack.enter_context(bar("load", total, progress))
        for member in wanted.values():
            stack.enter_context(member.transaction())
        for name, member in wanted.items():
            member.check(snapshot.entry(name), str(snapshot.path))  # nobody was in between
        back = [member.untouched() for member in wanted.values()] if later else []
        if not all(back):
            snapshot.check_files(False)
            back = []
        try:
            for name, member in wanted.items():
                gone = _restore(snapshot, name, member, told, check=bool(back))
                if gone:
                    evicted[name] = gone
                    log.warning(
                        "%s: table %r holds less now, and %d of its %d items were evicted",
                        snapshot.path, name, gone, snapshot.entry(name)["items"],
                    )  # fmt: skip
        except BaseException:
            for bring_back in back:
                if bring_back is not None:
                    bring_back()
            raise
        if rewound is not None:
            rewound()
    snapshot.segments.close()
    return Loaded(snapshot.path, snapshot.step, snapshot.state, evicted, snapshot.others)


def _restore(
    snapshot: Snapshot, name: str, member: Member, told: Callable[[int], None], *, check: bool
) -> int:
    entry = snapshot.entry(name)
    columns = [snapshot._columns(segment) for segment in entry["segments"]]
    alive, bases = snapshot._alives(entry), snapshot._bases(entry)
    saved = snapshot._saved(entry, columns, alive, bases)
    pieces = snapshot.pieces(name, told, check=check)
    gone = member.restore(entry, saved, pieces, snapshot.blobs(name))
    blobs = {}
    for ref in entry["blobs"]:
        names = snapshot.segments.batch(ref).column("name").to_pylist()
        blobs.update(dict.fromkeys(names, ref))
    manifest, folder = snapshot.manifest, str(snapshot.path)
    member.ledger_later(lambda: ledger_of(manifest, folder, entry, columns, alive, bases, blobs))
    return gone


def ledger_of(
    manifest: Mapping[str, Any],
    folder: str,
    entry: Mapping[str, Any],
    columns: list[dict[str, Array]],
    alive: list[Array | None],
    bases: Mapping[str, Array],
    blobs: dict[str, Ref],
) -> Ledger:
    """What is on disk, so that the save after a load writes only what changed since."""
    slots = entry["numbers"]["slots"]
    place = np.full(slots, -1, np.int64)
    segments = {}
    described = zip(entry["segments"], columns, alive, strict=True)
    for number, (segment, some, here) in enumerate(described):
        own = some["slot"].astype(np.int64)
        segments[number] = Known(segment, own, some.get("rows"), here)
        places = (np.int64(number) << 32) | np.arange(own.size)
        place[segments[number].living()] = places if here is None else places[here]
    items = _joined(entry["segments"], columns, alive, {})
    by_slot = {}
    runs = SlotRuns(items["slot"])
    for name, values in items.items():
        if name not in ("slot", "inserted_at", *_NEVER_CHANGE):
            by_slot[name] = np.zeros(slots, values.dtype)
            runs.put(by_slot[name], values)
    key, records = by_slot.pop("key"), None
    if entry["kind"] != "steps":
        records = records_of(key, by_slot.pop("priority"), by_slot.pop("times_sampled"), place >= 0)
    arrays = {
        name: OnDisk(bases[name], list(array["blocks"])) for name, array in entry["arrays"].items()
    }
    files = {name: manifest["files"][name] for name in named_files(entry)}
    return Ledger(
        folder, manifest["sequence"], files, segments, place, records,
        key if records is None else None, by_slot.pop("revision", None), by_slot, arrays,
        patches(entry), blobs,
    )  # fmt: skip
