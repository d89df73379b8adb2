"""A snapshot on disk: opened by its manifest, looked at, and verified."""

from __future__ import annotations

import os
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from recollect.base.arrays import Ints
from recollect.data.batch import Batch
from recollect.durability.files import LOCAL, Files, digest, digests
from recollect.durability.progress_bar import bar
from recollect.durability.snapshot.manifest import (
    MANIFEST,
    find_snapshots,
    no_snapshot,
    put_aside,
    read_manifest,
)
from recollect.durability.snapshot.saved_table import SavedTable
from recollect.durability.snapshot.segments import Segments
from recollect.errors import SnapshotError
from recollect.storage.memory.saved_items import Saved


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

    def table(self, name: str) -> SavedTable:
        """A table of it, to be read."""
        return SavedTable(self.entry(name), self.segments)

    def saved(self, table: str) -> Saved:
        """The state of a table, without rows; its items segment by segment."""
        return self.table(table).saved()

    def blobs(self, table: str) -> dict[str, bytes]:
        """The blobs of a table, by name."""
        return self.table(table).blobs()

    def rows(self, table: str, places: Ints | None = None) -> Iterator[Batch]:
        """The rows and shared cells of items, some at a time.

        In the order of `saved(table).items`, or, given places in it, in the order of the places.
        """
        return self.table(table).rows(places)

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
            table = self.table(name)
            keys = table.saved().items["key"]
            self._expect(name, "items", table.entry["items"], keys.size)
            self._expect(name, "different keys", keys.size, np.unique(keys).size)
            for number, segment in enumerate(table.entry["segments"]):
                alive = table.alive[number]
                live = segment["count"] if alive is None else int(alive.sum())
                self._expect(segment["rows"], "live items", segment["live"], live)
                stored = sum(b.num_rows for b in self.segments.batches(segment["rows"]))
                self._expect(segment["rows"], "rows", segment["row_count"], stored)
                if alive is None:
                    counted = int(table.row_counts(number).sum())
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
