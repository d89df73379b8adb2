"""Snapshots: the tables of a store, captured at one moment and written as Arrow files.

    PATH/manifest.json           format, and per table: columns, counters, files with checksums
    PATH/table-N/rows.arrow      the rows, as record batches
    PATH/table-N/shared.arrow    the shared cells, where there are any
    PATH/table-N/items.arrow     an entry per item: slot, key, fields
    PATH/table-N/arrays.arrow    free slots, members of indexes: named lists of int64
    PATH/table-N/blobs.arrow     blobs by name, of a rollout buffer that is built on the table

All is written and synced under another name and then renamed, so a snapshot is there as a
whole or not at all. Loading checks every file and puts the state back exactly: the draws that
follow are those that would have followed.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import xxhash
from tqdm import tqdm

from recollect.arrow import ArrowBatch
from recollect.batch import Batch
from recollect.durability.state import capture_table, check_fits, restore_table
from recollect.errors import SnapshotError
from recollect.storage.capture import Capture

if TYPE_CHECKING:
    from recollect.table import Owner, Table

NOBODY: Mapping[str, Any] = {}
FORMAT = 1
MANIFEST = "manifest.json"


def save(
    tables: Mapping[str, Table],
    path: str | os.PathLike[str],
    progress: bool | None,
    owners: Mapping[str, Owner] = NOBODY,
) -> None:
    """Write a snapshot of all tables, captured together; replaces a snapshot that is there.

    `owners` have state of their own beside the tables of these names.
    """
    target = Path(path)
    if target.exists() and not (target / MANIFEST).is_file():
        raise SnapshotError(f"{target} exists and is no snapshot; choose another path")
    wanted = {name: table for name, table in sorted(tables.items()) if table.checkpoint}
    with ExitStack() as locks:
        for table in wanted.values():
            locks.enter_context(table._transaction())
        captures = {name: capture_table(table) for name, table in wanted.items()}
        owned = {name: owner.own_state() for name, owner in owners.items() if name in wanted}
    target.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        left_out = sorted(set(tables) - set(wanted))
        manifest: dict[str, Any] = {"format": FORMAT, "left_out": left_out, "tables": {}}
        pieces = sum(len(captured.payload) for _, captured in captures.values())
        with _bar("save", pieces, progress) as bar:
            for place, (name, (state, captured)) in enumerate(captures.items()):
                files = _write_table(folder, f"table-{place}", captured, bar)
                manifest["tables"][name] = {**state, "storage": captured.numbers, "files": files}
                if name in owned:
                    own, blobs = owned[name]
                    manifest["tables"][name]["own"] = own
                    cells = iter([_named_blobs(blobs)])
                    files["blobs"] = _write_batches(folder, f"table-{place}/blobs.arrow", cells)
        _write(folder / MANIFEST, json.dumps(manifest, indent=1).encode())
        _sync_folder(folder)
        _swap(folder, target)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _write_table(folder: Path, name: str, captured: Capture, bar: Any) -> dict[str, Any]:
    (folder / name).mkdir()
    files = {
        "items": _write_batches(folder, f"{name}/items.arrow", iter([_table_of(captured.items)])),
        "arrays": _write_batches(folder, f"{name}/arrays.arrow", iter([_lists(captured.arrays)])),
    }
    rows, shared = _Writer(folder, f"{name}/rows.arrow"), _Writer(folder, f"{name}/shared.arrow")
    for batch in captured.read():
        arrow = batch.to_arrow()
        rows.write(arrow.rows)
        shared.write(arrow.shared)
        bar.update()
    for kind, writer in (("rows", rows), ("shared", shared)):
        entry = writer.close()
        if entry is not None:
            files[kind] = entry
    _sync_folder(folder / name)
    return files


class _Writer:
    """Writes record batches to one Arrow file, which is made with the first of them."""

    def __init__(self, folder: Path, name: str) -> None:
        self._path, self._name = folder / name, name
        self._file: Any = None
        self._writer: Any = None

    def write(self, batch: pa.RecordBatch | None) -> None:
        if batch is None:
            return
        if self._writer is None:
            self._file = open(self._path, "wb")  # noqa: SIM115 - closed by close()
            self._writer = pa.ipc.new_file(self._file, batch.schema)
        self._writer.write_batch(batch)

    def close(self) -> dict[str, Any] | None:
        if self._writer is None:
            return None
        self._writer.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return {"path": self._name, "bytes": self._path.stat().st_size, "xxh64": _hash(self._path)}


def _write_batches(folder: Path, name: str, batches: Iterator[pa.RecordBatch]) -> dict[str, Any]:
    writer = _Writer(folder, name)
    for batch in batches:
        writer.write(batch)
    entry = writer.close()
    assert entry is not None
    return entry


def _table_of(columns: Mapping[str, Any]) -> pa.RecordBatch:
    return pa.record_batch(
        [pa.array(np.ascontiguousarray(c)) for c in columns.values()], [*columns]
    )


def _lists(arrays: Mapping[str, Any]) -> pa.RecordBatch:
    kind = pa.large_list(pa.int64())
    values = pa.array([np.asarray(a, np.int64) for a in arrays.values()], kind)
    return pa.record_batch([pa.array(list(arrays)), values], ["name", "values"])


def _named_blobs(blobs: Mapping[str, bytes]) -> pa.RecordBatch:
    values = pa.array(list(blobs.values()), pa.large_binary())
    return pa.record_batch([pa.array(list(blobs), pa.string()), values], ["name", "blob"])


def _write(path: Path, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _swap(folder: Path, target: Path) -> None:
    """Give the new snapshot its name; one that had it is put aside first, then removed."""
    aside = None
    if target.exists():
        aside = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent)) / "old"
        os.rename(target, aside)
    os.rename(folder, target)
    _sync_folder(target.parent)
    if aside is not None:
        shutil.rmtree(aside.parent)


def _hash(path: Path) -> str:
    digest = xxhash.xxh64()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 22):
            digest.update(chunk)
    return digest.hexdigest()


def load(
    tables: Mapping[str, Table],
    path: str | os.PathLike[str],
    progress: bool | None,
    owners: Mapping[str, Owner] = NOBODY,
) -> None:
    """Put a snapshot's tables into the tables of the same names, which must be empty."""
    folder = Path(path)
    manifest = _read_manifest(folder)
    saved = manifest["tables"]
    missing = sorted(set(saved) - set(tables))
    if missing:
        raise SnapshotError(
            f"{folder}: it has a table {missing[0]!r} that this store has not; the store has "
            f"{', '.join(tables)}"
        )
    for name, state in saved.items():
        check_fits(tables[name], state, str(folder))
        if ("own" in state) != (name in owners):
            kinds = ("a table", "a rollout buffer")
            raise SnapshotError(
                f"{folder}: {name!r} was saved as {kinds['own' in state]} and this is "
                f"{kinds[name in owners]}; load it into what it was saved from"
            )
        for entry in state["files"].values():
            _check_file(folder, entry)
    pieces = sum(len(_batches(folder, s["files"].get("rows"))) for s in saved.values())
    with _bar("load", pieces, progress) as bar, ExitStack() as locks:
        for name in sorted(saved):
            locks.enter_context(tables[name]._transaction())
        for name, state in saved.items():
            captured = Capture(
                state["storage"],
                _columns(_batches(folder, state["files"]["items"])[0]),
                _named_arrays(_batches(folder, state["files"]["arrays"])[0]),
                [],
            )
            restore_table(tables[name], state, captured, _read_rows(folder, state["files"], bar))
            if name in owners:
                blobs = _batches(folder, state["files"]["blobs"])[0]
                names, cells = (blobs.column(n).to_pylist() for n in ("name", "blob"))
                owners[name].restore_own(state["own"], dict(zip(names, cells, strict=True)))


def _read_rows(folder: Path, files: Mapping[str, Any], bar: Any) -> Iterator[Batch]:
    rows, shared = _batches(folder, files.get("rows")), _batches(folder, files.get("shared"))
    for place, batch in enumerate(rows):
        cells = shared[place] if shared else None
        yield Batch.from_arrow(ArrowBatch(batch, cells, None))
        bar.update()


def _read_manifest(folder: Path) -> dict[str, Any]:
    file = folder / MANIFEST
    try:
        manifest = json.loads(file.read_bytes())
    except FileNotFoundError:
        raise SnapshotError(f"{folder} is no snapshot: it has no {MANIFEST}") from None
    except ValueError as error:
        raise SnapshotError(f"{file} is damaged: {error}") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        found = manifest.get("format") if isinstance(manifest, dict) else None
        raise SnapshotError(
            f"{file} has format {found!r} and this version reads {FORMAT}; use a newer Recollect"
        )
    return manifest


def _check_file(folder: Path, entry: Mapping[str, Any]) -> None:
    path = folder / entry["path"]
    if not path.is_file():
        raise SnapshotError(f"{path} is missing; the snapshot cannot be used")
    if path.stat().st_size != entry["bytes"] or _hash(path) != entry["xxh64"]:
        raise SnapshotError(f"{path} is damaged: its length or checksum is not what was written")


def _batches(folder: Path, entry: Mapping[str, Any] | None) -> list[pa.RecordBatch]:
    if entry is None:
        return []
    reader = pa.ipc.open_file(pa.memory_map(str(folder / entry["path"])))
    return [reader.get_batch(place) for place in range(reader.num_record_batches)]


def _columns(batch: pa.RecordBatch) -> dict[str, Any]:
    return {n: batch.column(n).to_numpy(zero_copy_only=False) for n in batch.schema.names}


def _named_arrays(batch: pa.RecordBatch) -> dict[str, Any]:
    names = batch.column("name").to_pylist()
    values = batch.column("values")
    return {name: values[place].values.to_numpy() for place, name in enumerate(names)}


def _bar(what: str, pieces: int, progress: bool | None) -> Any:
    """A bar on a terminal, or as told; none for what is over in a moment."""
    hidden = None if progress is None and pieces > 4 else not progress
    return tqdm(total=pieces, desc=what, unit="piece", disable=hidden, leave=False)
