"""Parts of saved tables become one table: its entry, its items and its rows, in a new order.

Everything that belongs to an item goes with it: key, priority, times sampled, fields. What
belongs to a table is divided: its counts in proportion to items, its schedule goes on, and new
keys get an origin that nobody had.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from recollect.base.arrays import Array, Ints
from recollect.base.requests import PER_PRODUCER
from recollect.data.batch import Batch
from recollect.data.schema import Column, Schema
from recollect.durability.format import schema_from_json, schema_to_json
from recollect.durability.snapshot.reader import Snapshot
from recollect.errors import SnapshotError
from recollect.kernels.layout import COUNTER_MASK
from recollect.ranks.environments import ENV_ID, Environments, columns_of, rewritten
from recollect.ranks.redistribution import ShardPlan, Stream, apportion, fresh_origins, seed_words
from recollect.storage.memory.saved_items import Saved, absent_value

PIECE = 4096  # items of a shard that are stored together: rows lie about in order of arrival


@dataclass
class Merged:
    """A member of a new shard, ready to be put into its target."""

    entry: dict[str, Any]
    saved: Saved
    batches: Iterator[Batch]
    blobs: dict[str, bytes]
    environments: Environments = field(default_factory=Environments)
    incomplete: dict[str, int] = field(default_factory=lambda: {"episodes": 0, "steps": 0})


class TableParts:
    """One table of all saved shards."""

    def __init__(self, name: str, sources: Sequence[Snapshot]) -> None:
        self.name = name
        self.sources = sources
        self.entries = [source.entry(name) for source in sources]
        kinds = {entry["kind"] for entry in self.entries}
        if len(kinds) > 1:
            raise SnapshotError(
                f"{name!r} was saved as {' and as '.join(sorted(kinds))} by different ranks; load "
                "shards that hold the same"
            )
        first = self.entries[0]
        for entry, source in zip(self.entries, sources, strict=True):
            for what in ("fields", "partition_by"):
                if entry[what] != first[what]:
                    raise SnapshotError(
                        f"{source.path}: table {name!r} has {what} {entry[what]}, and another "
                        f"shard has {first[what]}"
                    )
        self.columns = self._schema("columns", "column")
        self.shared = self._schema("shared_columns", "shared column")

    def _schema(self, key: str, what: str) -> Schema | None:
        """The columns of all shards together; those that not all have must be optional."""
        schemas = [
            (source, schema)
            for source, entry in zip(self.sources, self.entries, strict=True)
            if (schema := schema_from_json(entry[key], what)) is not None
        ]
        if not schemas:
            return None
        columns: dict[str, Column] = {}
        for source, schema in schemas:
            for name, column in schema.columns.items():
                if columns.setdefault(name, column) != column:
                    raise SnapshotError(
                        f"{source.path}: {what} {name!r} is {column}, and {columns[name]} in "
                        "another shard"
                    )
        for name, column in columns.items():
            for source, schema in schemas:
                if name not in schema.columns and not column.optional:
                    raise SnapshotError(f"{source.path} has no {what} {name!r}, and others have")
        return Schema(columns, what)

    def plan(self, shards: int) -> ShardPlan:
        """Items are units, and all count the same: a table's capacity counts them."""
        streams = [
            Stream(source, np.ones(entry["items"], np.int64))
            for source, entry in enumerate(self.entries)
        ]
        return ShardPlan(streams, len(self.sources), shards)

    def merged(
        self, plan: ShardPlan, shard: int, origins: set[int], listed: Sequence[str] | None
    ) -> Merged:
        """What a new shard gets."""
        mine = plan.shard(shard)
        entries, totals = self.entries, plan.totals()
        parts = _parts(self.name, self.sources, mine.streams, mine.places)
        order = _stored_order(mine.streams)
        texts = _texts(entries, parts)
        items = _joined(parts, mine.streams, texts, self.columns)
        count = mine.streams.size
        items["slot"] = items["seq"] = np.arange(count)
        environments = Environments()
        tag = f"field.{ENV_ID}"
        if tag in items and self.entries[0]["fields"].get(ENV_ID) == "int":
            for source in np.unique(mine.streams).tolist():
                here = mine.streams == source
                items[tag][here] = environments.renumbered(source, items[tag][here])
        numbers = {
            "slots": count,
            "counter": count,  # new items arrive after all that are there
            "origin": fresh_origins(origins, plan.shards)[shard],
            "leased": 0,
            "texts": texts,
            "follows_priorities": any(e["numbers"]["follows_priorities"] for e in entries),
            "counts_zeros": any(e["numbers"]["counts_zeros"] for e in entries),
            "random": [
                int(word)
                for word in seed_words(
                    [e["numbers"]["random"] for e in entries], plan.shards, shard
                )
            ],
            "credits": entries[0]["numbers"]["credits"],
            "partitions": [], "whole": [], "families": [], "in_partitions": [],
        }  # fmt: skip
        saved = Saved(
            numbers,
            {name: array[order] for name, array in items.items()},
            {"free": np.zeros(0, np.int32)},
        )
        entry = self._entry(shard, totals, count, self._bytes(items))
        batches = self._batches(parts, mine.streams, order, listed, environments)
        return Merged(entry, saved, batches, {}, environments)

    def _bytes(self, items: Mapping[str, Array]) -> int:
        """The payload of some items."""
        if "nbytes" in items:
            return int(items["nbytes"].sum())
        columns = {} if self.columns is None else self.columns.columns
        row = sum(column.size for column in columns.values())
        return row * int(items["rows"].sum() if "rows" in items else items["key"].size)

    def _entry(self, shard: int, totals: list[int], count: int, nbytes: int) -> dict[str, Any]:
        counts = [entry["counts"] for entry in self.entries]
        inserts = apportion(sum(c["inserts"] for c in counts), totals)[shard]
        removed: dict[str, int] = {}
        for reason in sorted({reason for c in counts for reason in c["removed"]}):
            total = sum(c["removed"].get(reason, 0) for c in counts)
            removed[reason] = apportion(total, totals)[shard]
        return {
            **self.entries[0],
            "columns": schema_to_json(self.columns),
            "shared_columns": schema_to_json(self.shared),
            "counts": {
                "inserts": inserts,
                "samples": apportion(sum(c["samples"] for c in counts), totals)[shard],
                "removals": inserts - count,
                "removed": removed,
                "sample_calls": max(c["sample_calls"] for c in counts),
                "effects": max(c["effects"] for c in counts),
            },
            "requests": _requests([entry["requests"] for entry in self.entries]),
            "items": count,
            "nbytes": nbytes,
        }

    def _batches(
        self,
        parts: Mapping[int, _Part],
        streams: Ints,
        order: Ints,
        listed: Sequence[str] | None,
        environments: Environments,
    ) -> Iterator[Batch]:
        """Rows in the stored order: a piece of each source after the other."""
        if self.columns is None:
            return
        columns = dict(self.columns.columns)
        if self.shared is not None:
            columns.update(self.shared.columns)
        names = columns_of(columns, listed)
        runs = np.flatnonzero(np.diff(streams[order])) + 1
        done = dict.fromkeys(parts, 0)
        for run in np.split(streams[order], runs):
            if not run.size:
                continue
            source = int(run[0])
            begin, end = done[source], done[source] + run.size
            done[source] = end
            for batch in self.sources[source].rows(self.name, parts[source].places[begin:end]):
                yield rewritten(
                    batch, names, lambda old, of=source: environments.renumbered(of, old)
                )


@dataclass
class _Part:
    """The items of one source that go to the new shard: places as the snapshot counts them."""

    places: Ints
    items: dict[str, Array]


def _parts(name: str, sources: Sequence[Snapshot], streams: Ints, places: Ints) -> dict[int, _Part]:
    """Read the fields of what is needed, and check the files that it lies in."""
    parts = {}
    for source in np.unique(streams).tolist():
        snapshot = sources[source]
        snapshot.check_files(False)
        items = snapshot.saved(name).items
        arrived = np.argsort(seq_of(items), kind="stable")
        chosen = arrived[places[streams == source]]
        parts[source] = _Part(chosen, {n: array[chosen] for n, array in items.items()})
    return parts


def seq_of(items: Mapping[str, Array]) -> Ints:
    """Arrival order."""
    if "seq" in items:
        return items["seq"]
    return (items["key"] & np.uint64(COUNTER_MASK)).astype(np.int64)


def _stored_order(streams: Ints) -> Ints:
    """In which order rows are stored: piece by piece by arrival, in a piece source by source."""
    pieces = np.arange(streams.size) // PIECE
    return np.lexsort([streams, pieces])


def _texts(entries: Sequence[Mapping[str, Any]], parts: Mapping[int, _Part]) -> dict[str, Any]:
    """The texts of each text field, of all sources together."""
    texts: dict[str, dict[str, int]] = {}
    for source in parts:
        for name, known in entries[source]["numbers"]["texts"].items():
            codes = texts.setdefault(name, {})
            for text in known:
                codes.setdefault(text, len(codes))
    for source, part in parts.items():
        for name, known in entries[source]["numbers"]["texts"].items():
            column = f"field.{name}"
            if column in part.items:
                new = np.array([*(texts[name][text] for text in known), -1], np.int32)
                part.items[column] = new[part.items[column]]  # absent is -1, the last
    return {name: list(codes) for name, codes in texts.items()}


def _joined(
    parts: Mapping[int, _Part], streams: Ints, texts: Mapping[str, Any], schema: Schema | None
) -> dict[str, Array]:
    """The fields of all items, in order of arrival; what a source has not is filled in."""
    dtypes: dict[str, Any] = {
        "key": np.uint64, "times_sampled": np.int32, "priority": np.float64,
        "inserted_at": np.float64,
    }  # fmt: skip
    for part in parts.values():
        for name, array in part.items.items():
            dtypes.setdefault(name, array.dtype)
    items = {}
    for name, dtype in dtypes.items():
        if name in ("slot", "seq"):
            continue
        joined = np.empty(streams.size, dtype)
        for source, part in parts.items():
            joined[streams == source] = (
                part.items[name] if name in part.items else _filled(name, dtype, part, schema)
            )
        items[name] = joined
    return items


def _filled(name: str, dtype: Any, part: _Part, schema: Schema | None) -> Any:
    if name != "nbytes":
        return absent_value(name, dtype)
    columns = {} if schema is None else schema.columns
    row = sum(c.size for c in columns.values() if not c.ragged and not c.optional)
    return part.items.get("rows", np.ones(1, np.int64)).astype(np.int64) * row


def _requests(states: Sequence[list[Any]]) -> list[Any]:
    """What any shard remembers: a producer may ask whichever rank it finds."""
    known: dict[Any, dict[int, Any]] = {}
    for state in states:
        for producer, requests in state:
            mine = known.setdefault(producer, {})
            for number, *keys in requests:
                mine.setdefault(number, [number, *keys])
    return [
        [producer, [mine[number] for number in sorted(mine)][-PER_PRODUCER:]]
        for producer, mine in known.items()
    ]


class RolloutParts(TableParts):
    """The groups of all saved shards: a table, and what a rollout buffer keeps beside it."""

    def merged(
        self, plan: ShardPlan, shard: int, origins: set[int], listed: Sequence[str] | None
    ) -> Merged:
        merged = super().merged(plan, shard, origins, listed)
        totals = plan.totals()
        own = [entry["own"] for entry in self.entries]
        tasks = sorted({task for one in own for task in one["accounts"]})
        stored = _stored_by_task(merged)
        merged.entry["own"] = {
            **own[0],
            "train_step": max(one["train_step"] for one in own),
            "accounts": {
                task: _account(
                    [one["accounts"][task] for one in own if task in one["accounts"]],
                    totals,
                    shard,
                    stored.get(task, 0),
                )
                for task in tasks
            },
        }
        for source in sorted(set(plan.shard(shard).streams.tolist())):
            merged.blobs.update(self.sources[source].blobs(self.name))
        return merged


def _stored_by_task(merged: Merged) -> dict[str, int]:
    """How many groups of each task are stored and not yet counted as having left."""
    items, texts = merged.saved.items, merged.saved.numbers["texts"]
    if "field.task" not in items:
        return {}
    waiting = np.ones(items["key"].size, np.bool_)
    if "field.status" in items and "ARCHIVED" in texts["status"]:
        waiting = items["field.status"] != texts["status"].index("ARCHIVED")
    codes = items["field.task"][waiting]
    counts = np.bincount(codes[codes >= 0], minlength=len(texts["task"]))
    return dict(zip(texts["task"], counts.tolist(), strict=True))


def _account(
    accounts: Sequence[Mapping[str, Any]], totals: list[int], shard: int, stored: int
) -> dict[str, Any]:
    """A shard's part of what happened to the groups of a task: put = stored + left, as ever."""
    left = {
        reason: apportion(sum(a["left"].get(reason, 0) for a in accounts), totals)[shard]
        for reason in sorted({reason for a in accounts for reason in a["left"]})
    }
    part = {
        name: apportion(sum(a[name] for a in accounts), totals)[shard]
        for name in ("taken", "expired", "retried")
    }
    recent = {
        name: sum(a[name] for a in accounts) / len(totals)
        for name in ("recently_expired", "recently_taken")
    }
    return {
        **part,
        **recent,
        "left": left,
        "put": stored + sum(left.values()),
        "starves": any(a["starves"] for a in accounts),
    }
