"""Snapshots described for people, without loading them: what is inside, and how two differ."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recollect.base.arrays import Array, Ints
from recollect.durability.snapshot.manifest import MANIFEST, find_snapshots
from recollect.durability.snapshot.reader import Snapshot, open_snapshot
from recollect.errors import SnapshotError
from recollect.kernels import steps_layout as sl
from recollect.kernels.layout import COUNTER_MASK
from recollect.rules.query import FieldValues, Query, as_query, bind, mask
from recollect.storage.fields import ABSENT_INT
from recollect.storage.memory.saved_items import Saved

DEPTH = 2  # folders below a path in which snapshots are looked for: steps, and their shards
CHUNK = 4096  # items whose rows are compared together


def snapshots_in(path: str | os.PathLike[str], step: int | None = None) -> list[Snapshot]:
    """The snapshot at a path, or those in a folder; of a set of shards, the shards."""
    folder = Path(path)
    try:
        opened = open_snapshot(folder, step=step)
        if opened.kind == "shards":  # it only names them
            return [Snapshot(opened.path / shard["name"]) for shard in opened.state["shards"]]
        return [opened]
    except SnapshotError:
        if (folder / MANIFEST).is_file() and not _folders(folder):
            raise
    there = [Snapshot(one) for one in _below(folder, DEPTH)]
    found = [one for one in there if step is None or one.step == step]
    if not found:
        if there:
            steps = ", ".join(str(one.step) for one in there if one.step is not None) or "none"
            raise SnapshotError(f"{folder} holds no snapshot of step {step}; there are {steps}")
        raise SnapshotError(f"{folder} holds no snapshot: there is no {MANIFEST} in it")
    return found


def _folders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    inner = [one for one in folder.iterdir() if one.is_dir() and not one.name.startswith(".")]
    return sorted(inner)


def _below(folder: Path, depth: int) -> Iterator[Path]:
    found = find_snapshots(folder)
    yield from (one.path for one in found)
    if not found and depth > 1:
        for inner in _folders(folder):
            yield from _below(inner, depth - 1)


# The fields of saved items, as users see them


def fields_of(saved: Saved, entry: Mapping[str, Any]) -> dict[str, Array]:
    """Every field by name: text and absent values as objects, numbers as they are."""
    items = saved.items
    found: dict[str, Array] = {"key": items["key"]}
    found["seq"] = items.get("seq", (items["key"] & np.uint64(COUNTER_MASK)).astype(np.int64))
    for name, array in items.items():
        plain = name.removeprefix("field.")
        if name in ("slot", "seq", "key"):
            continue
        if plain in saved.numbers.get("texts", {}):
            texts = np.array([*saved.numbers["texts"][plain], None], object)
            found[plain] = texts[array]
        elif name != plain and array.dtype.kind == "i":
            absent = array < 0 if plain == "version" or array.dtype == np.int8 else None
            absent = array == ABSENT_INT if absent is None else absent
            values = array.astype(bool) if array.dtype == np.int8 else array
            found[plain] = values
            if absent.any():
                found[plain] = values.astype(object)
                found[plain][absent] = None
        else:
            found[plain] = array
    return found


def matching(saved: Saved, entry: Mapping[str, Any], where: Any) -> Ints:
    """The places of saved items that meet a query."""
    count = saved.items["key"].size
    query: Query | None = as_query(where)
    if query is None:
        return np.arange(count)
    fields = dict(entry["fields"])
    bound = bind(query, fields)
    known = fields_of(saved, entry)

    def resolve(name: str) -> FieldValues:
        values = known.get(name)
        if values is None and name in ("rows", "nbytes"):  # stored only where items differ in it
            each = 1 if name == "rows" else entry["nbytes"] // max(count, 1)
            return FieldValues(np.full(count, each, np.int64))
        if values is None:  # it was never set
            return _unset(fields[name], count)
        if fields[name] == "str":
            texts = sorted({text for text in values.tolist() if text is not None})
            codes = {text: code for code, text in enumerate(texts)}
            return FieldValues(
                np.array([codes.get(text, -1) for text in values.tolist()], np.int32), None, codes
            )
        if values.dtype == object:
            absent = np.array([value is None for value in values.tolist()])
            plain = np.array([0 if value is None else value for value in values.tolist()])
            return FieldValues(plain, absent)
        return FieldValues(values)

    return np.flatnonzero(mask(bound, resolve, count))


def _unset(kind: str, count: int) -> FieldValues:
    """A field that is absent in every item."""
    if kind == "str":
        return FieldValues(np.full(count, -1, np.int32), None, {})
    dtype = {"int": np.int64, "float": np.float64, "bool": np.bool_}[kind]
    return FieldValues(np.zeros(count, dtype), np.ones(count, np.bool_))


# What is inside


def described(snapshot: Snapshot) -> dict[str, Any]:
    """A snapshot in numbers, as JSON."""
    manifest = snapshot.manifest
    files = {**manifest["files"], **manifest["others"]}
    return {
        "path": str(snapshot.path),
        "kind": snapshot.kind,
        "format": manifest["format"],
        "step": snapshot.step,
        "saved_at": manifest.get("saved_at"),
        "written_by": manifest.get("written_by"),
        "files": len(files),
        "bytes": sum(entry["bytes"] for entry in files.values()),
        "left_out": manifest["left_out"],
        "others": sorted(manifest["others"]),
        "state": snapshot.state,
        "tables": {name: _table(snapshot, name) for name in snapshot.tables},
    }


def _table(snapshot: Snapshot, name: str) -> dict[str, Any]:
    entry, saved = snapshot.entry(name), snapshot.saved(name)
    fields = fields_of(saved, entry)
    told: dict[str, Any] = {
        "kind": entry["kind"],
        "items": entry["items"],
        "rows": int(fields["rows"].sum()) if "rows" in fields else entry["items"],
        "nbytes": entry["nbytes"],
        "segments": len(entry["segments"]),
        "columns": {column["name"]: _column(column) for column in entry["columns"] or []},
        "shared_columns": {c["name"]: _column(c) for c in entry["shared_columns"] or []},
        "rules": entry["rules"],
        "counts": {k: v for k, v in entry["counts"].items() if k != "effects"},
    }
    if entry["kind"] == "steps":
        flags = fields.get("flags", np.zeros(0, np.int8))
        told["environments"] = saved.numbers["envs"]
        told["steps"] = saved.numbers["steps"]
        told["episodes_begun"] = int((flags & sl.FIRST != 0).sum())
        told["episodes_ended"] = int((flags & (sl.TERMINATED | sl.TRUNCATED) != 0).sum())
    for text in ("task", "status"):
        if text in fields:
            values, counts = np.unique(fields[text].astype(str), return_counts=True)
            told[text] = dict(zip(values.tolist(), counts.tolist(), strict=True))
    for number in ("version", "priority", "times_sampled"):
        if number in fields and fields[number].size:
            present = [v for v in fields[number].tolist() if v is not None and v >= 0]
            if present:
                told[number] = {"lowest": min(present), "highest": max(present)}
    if "inserted_at" in fields and fields["inserted_at"].size:
        ages = snapshot.manifest.get("saved_at", 0.0) - fields["inserted_at"]
        told["age"] = {"youngest": float(ages.min()), "oldest": float(ages.max())}
    return told


def _column(column: Mapping[str, Any]) -> str:
    shape = "".join(f"[{size}]" for size in column["shape"])
    ragged = "ragged " if column["ragged"] and column["dtype"] not in ("str", "bytes") else ""
    return f"{ragged}{column['dtype']}{shape}{'?' if column['optional'] else ''}"


# How two differ


@dataclass
class Difference:
    """How a table of one snapshot differs from the one of the same name in another."""

    only_in_first: int = 0
    only_in_second: int = 0
    same: int = 0
    rows_differ: int = 0
    fields_differ: dict[str, int] = field(default_factory=dict)
    counts: dict[str, list[int]] = field(default_factory=dict)
    columns: dict[str, list[str | None]] = field(default_factory=dict)

    @property
    def any(self) -> bool:
        return bool(
            self.only_in_first or self.only_in_second or self.rows_differ or self.fields_differ
            or self.counts or self.columns
        )  # fmt: skip


def difference(first: Snapshot, second: Snapshot) -> dict[str, Any]:
    """How two snapshots differ, as JSON; empty where they do not."""
    told: dict[str, Any] = {}
    for which, one, other in (("only_in_first", first, second), ("only_in_second", second, first)):
        missing = [name for name in one.tables if name not in other.tables]
        if missing:
            told[which] = missing
    tables = {}
    for name in first.tables:
        if name in second.tables:
            found = _table_difference(first, second, name)
            if found.any:
                tables[name] = asdict(found)
    if tables:
        told["tables"] = tables
    return told


def _table_difference(first: Snapshot, second: Snapshot, name: str) -> Difference:
    entries = [one.entry(name) for one in (first, second)]
    saved = [one.saved(name) for one in (first, second)]
    keys = [one.items["key"] for one in saved]
    common, *found = np.intersect1d(keys[0], keys[1], assume_unique=True, return_indices=True)
    places = [place.astype(np.int64) for place in found]
    told = Difference(keys[0].size - common.size, keys[1].size - common.size)
    fields = [fields_of(one, entry) for one, entry in zip(saved, entries, strict=True)]
    differs = np.zeros(common.size, np.bool_)
    for field_ in sorted(fields[0].keys() | fields[1].keys()):
        here = [f[field_][p] if field_ in f else None for f, p in zip(fields, places, strict=True)]
        changed = _unequal(here[0], here[1], common.size)
        if changed.any():
            told.fields_differ[field_] = int(changed.sum())
            differs |= changed
    rows = _rows_differ(first, second, name, places)
    told.rows_differ = int(rows.sum())
    told.same = int((~(differs | rows)).sum())
    for count, value in entries[0]["counts"].items():
        if isinstance(value, int) and value != entries[1]["counts"].get(count):
            told.counts[count] = [value, entries[1]["counts"].get(count)]
    columns = [{c["name"]: _column(c) for c in entry["columns"] or []} for entry in entries]
    for column in sorted(columns[0].keys() | columns[1].keys()):
        if columns[0].get(column) != columns[1].get(column):
            told.columns[column] = [columns[0].get(column), columns[1].get(column)]
    return told


def _unequal(one: Array | None, other: Array | None, count: int) -> NDArray[np.bool_]:
    """Where values differ; a field that was never set is absent everywhere."""
    if one is None or other is None:
        there = one if one is not None else other
        assert there is not None
        if there.dtype == object:
            return np.array([value is not None for value in there.tolist()], np.bool_)
        if there.dtype.kind == "f":
            return ~np.isnan(there)
        return np.asarray(there != there.dtype.type(0))
    if one.dtype == object or other.dtype == object:
        pairs = zip(one.tolist(), other.tolist(), strict=True)
        return np.array([a != b for a, b in pairs], np.bool_)
    differs: NDArray[np.bool_] = one != other
    if one.dtype.kind == "f" and other.dtype.kind == "f":
        differs &= ~(np.isnan(one) & np.isnan(other))
    return differs


def _rows_differ(
    first: Snapshot, second: Snapshot, name: str, places: list[Ints]
) -> NDArray[np.bool_]:
    """Which common items have other rows. Rows at the same place of the same file are equal."""
    stands = [_stands(one, name)[p] for one, p in zip((first, second), places, strict=True)]
    differs = np.zeros(places[0].size, np.bool_)
    unsure = np.flatnonzero((stands[0] != stands[1]).any(axis=1))
    for begin in range(0, unsure.size, CHUNK):
        differs[_apart(first, second, name, places, unsure[begin : begin + CHUNK])] = True
    return differs


def _stands(snapshot: Snapshot, name: str) -> NDArray[np.uint64]:
    """The checksum of the file that each item's rows are in, and its place there."""
    found = [np.zeros((0, 2), np.uint64)]
    table = snapshot.table(name)
    for segment, alive in zip(table.entry["segments"], table.alive, strict=True):
        here = np.arange(segment["count"]) if alive is None else np.flatnonzero(alive)
        checksum = int(snapshot.manifest["files"][segment["rows"]]["xxh3"], 16)
        stand = np.empty((here.size, 2), np.uint64)
        stand[:, 0], stand[:, 1] = checksum, here
        found.append(stand)
    return np.concatenate(found)


def _apart(
    first: Snapshot, second: Snapshot, name: str, places: list[Ints], which: Ints
) -> list[int]:
    """Which of some items have other rows, found by comparing halves."""
    batches = [
        next(one.rows(name, p[which])) for one, p in zip((first, second), places, strict=True)
    ]
    same = batches[0].equals(batches[1]) and batches[0].shared.equals(batches[1].shared)
    if same:
        return []
    if which.size == 1:
        return [int(which[0])]
    half = which.size // 2
    return [
        *_apart(first, second, name, places, which[:half]),
        *_apart(first, second, name, places, which[half:]),
    ]
