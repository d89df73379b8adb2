"""Episodes of several saved replay buffers become the rings of one new shard.

Episodes are dealt out whole, and their rows are counted. In its new ring an episode follows others,
so its marks must say where it is not whole. One that lost its head counts its offsets from its
first surviving row, which is not marked as a first one. One that was not over ends as truncated,
without an observation after it. Then no sequence runs on into the next episode, and no value is
bootstrapped from that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recollect.base.arrays import Array, Ints
from recollect.data.batch import Batch
from recollect.durability.format import schema_to_json
from recollect.durability.snapshot.reader import Snapshot
from recollect.errors import SchemaError, SnapshotError
from recollect.kernels import steps_layout as sl
from recollect.ranks.environments import columns_of, rewritten
from recollect.ranks.merged_tables import Merged, TableParts
from recollect.ranks.redistribution import (
    ShardPlan,
    Stream,
    Units,
    apportion,
    into_lanes,
    seed_words,
)
from recollect.replay.core import ReplayCore
from recollect.storage.memory.saved_items import Saved

PIECE = 256  # episodes of a shard that are read together


@dataclass
class _Marks:
    """The rows of a saved buffer by environment and row, and the episodes that they form."""

    places: Ints  # of each row in the snapshot
    items: dict[str, Array]
    first: Ints  # of each episode: its first row here, how many it has, its environment
    length: Ints
    env: Ints
    cut: NDArray[np.bool_]
    open: NDArray[np.bool_]
    steps: Ints


class StepParts(TableParts):
    """A replay buffer of all saved shards."""

    def __init__(self, name: str, sources: Sequence[Snapshot]) -> None:
        super().__init__(name, sources)
        kinds = {entry["numbers"]["reward_at"] for entry in self.entries}
        if len(kinds) > 1:
            raise SnapshotError(
                f"{name!r}: some shards have reward_at='this' and some 'next'; load shards that "
                "have the same"
            )
        self._next = kinds == {"next"}
        self._marks = [self._read(source) for source in sources]
        self._streams: list[tuple[int, Ints]] = []  # source, and its episodes

    def prepare(self, target: ReplayCore, incomplete: str) -> None:
        """Where the episodes go, and what happens to those that are not whole."""
        self._target = target
        self._incomplete = incomplete

    def _read(self, source: Snapshot) -> _Marks:
        items = source.saved(self.name).items
        order = np.argsort(items["key"], kind="stable")
        items = {name: array[order] for name, array in items.items()}
        if not order.size:
            none = np.zeros(0, np.int64)
            never = np.zeros(0, np.bool_)
            return _Marks(none, items, none, none, none, never, never, none)
        envs = (items["key"] >> np.uint64(sl.ROW_BITS)).astype(np.int64)
        begins = np.append(True, envs[1:] != envs[:-1]) | (items["offset"] == 0)
        first = np.flatnonzero(begins)
        length = np.diff(np.append(first, order.size))
        flags = items["flags"]
        last = flags[first + length - 1]
        ended = (last & sl.ENDED) != 0
        no_step = np.ones(first.size, np.bool_) if self._next else (last & sl.FINAL) != 0
        return _Marks(
            order, items, first, length, envs[first],
            (flags[first] & sl.FIRST) == 0, ~ended, length - no_step,
        )  # fmt: skip

    # -- which episodes go where ------------------------------------------------------------------
    def plan(self, shards: int) -> ShardPlan:
        streams = []
        self._streams = []
        for source, marks in enumerate(self._marks):
            kept = np.ones(marks.first.size, np.bool_)
            if self._incomplete == "drop":
                kept = ~(marks.cut | marks.open)
            for env in range(self.entries[source]["numbers"]["envs"]):
                episodes = np.flatnonzero(kept & (marks.env == env))
                streams.append(Stream(source, marks.length[episodes]))
                self._streams.append((source, episodes))
        return ShardPlan(streams, len(self.sources), shards)

    def counted(self) -> dict[str, int]:
        """Incomplete episodes of the whole checkpoint, and their steps."""
        episodes = steps = 0
        for marks in self._marks:
            # a last observation may be all that the ring left of an episode: that is no step
            lacking = (marks.cut | marks.open) & (marks.steps > 0)
            episodes += int(lacking.sum())
            steps += int(marks.steps[lacking].sum())
        return {"episodes": episodes, "steps": steps}

    def _episodes(self, units: Units) -> tuple[Ints, Ints]:
        """The source of each unit, and which of its episodes it is."""
        sources = np.empty(units.streams.size, np.int64)
        episodes = np.empty(units.streams.size, np.int64)
        for stream in np.unique(units.streams).tolist():
            here = units.streams == stream
            source, listed = self._streams[stream]
            sources[here] = source
            episodes[here] = listed[units.places[here]]
        return sources, episodes

    # -- a new shard ------------------------------------------------------------------------------
    def merged(
        self, plan: ShardPlan, shard: int, origins: set[int], listed: Sequence[str] | None
    ) -> Merged:
        rings = self._target.rings
        mine = plan.shard(shard)
        sources, episodes = self._episodes(mine)
        lengths = self._of(sources, episodes, "length")
        lanes = into_lanes(lengths, mine.streams, rings.envs, rings.ring)
        newest = np.bincount(lanes, lengths, rings.envs).astype(np.int64)
        starts = _starts(lanes, lengths, rings.envs)
        order = np.lexsort([sources, np.arange(sources.size) // PIECE])  # as rows are read
        sources, episodes, lengths = sources[order], episodes[order], lengths[order]
        lanes, starts = lanes[order], starts[order]
        for source in np.unique(sources).tolist():
            self.sources[source].check_files(False)
        items = self._items(sources, episodes, lengths, lanes, starts)
        steps = self._steps_by_shard(plan)
        entry, numbers = self._numbers(plan, shard, steps, newest, items)
        batches = self._rows(sources, episodes, lengths, lanes, listed)
        merged = Merged(entry, Saved(numbers, items, {}), batches, {})
        merged.incomplete = self.counted()
        return merged

    def _of(self, sources: Ints, episodes: Ints, name: str) -> Ints:
        """A number of each episode."""
        found = np.empty(sources.size, np.int64)
        for source in np.unique(sources).tolist():
            here = sources == source
            found[here] = getattr(self._marks[source], name)[episodes[here]]
        return found

    def _steps_by_shard(self, plan: ShardPlan) -> list[int]:
        """How many steps each new shard has: what its limiter counts."""
        counts = []
        for shard in range(plan.shards):
            sources, episodes = self._episodes(plan.shard(shard))
            counts.append(int(self._of(sources, episodes, self._counted).sum()))
        return counts

    @property
    def _counted(self) -> str:
        """With reward_at="next" every row counts as a step, as the buffer counts them."""
        return "length" if self._next else "steps"

    def _items(
        self, sources: Ints, episodes: Ints, lengths: Ints, lanes: Ints, starts: Ints
    ) -> dict[str, Array]:
        """The marks of all rows, in the order in which they are read."""
        total = int(lengths.sum())
        begins = np.cumsum(lengths) - lengths
        within = np.arange(total) - np.repeat(begins, lengths)
        rows = np.repeat(starts, lengths) + within
        keys = (np.repeat(lanes, lengths) << sl.ROW_BITS) | rows
        flags = np.empty(total, np.int8)
        remaining = np.zeros(total, np.int32)
        remaining[begins] = lengths
        weighed = any("priority" in marks.items for marks in self._marks)
        priority = np.empty(total)
        for source in np.unique(sources).tolist():
            marks = self._marks[source]
            here = np.repeat(sources == source, lengths)
            mine = sources == source
            picked = _ranges(marks.first[episodes[mine]], lengths[mine])
            flags[here] = marks.items["flags"][picked]
            if weighed:
                default = np.where((flags[here] & sl.FINAL != 0) & (not self._next), -1.0, 1.0)
                own = marks.items.get("priority")
                priority[here] = default if own is None else own[picked]
        self._end(flags, begins, lengths, self._of(sources, episodes, "open") != 0)
        items: dict[str, Array] = {
            "key": keys.astype(np.uint64),
            "flags": flags,
            "offset": within.astype(np.int32),
            "remaining": remaining,
        }
        if weighed:
            items["priority"] = priority
        return items

    def _end(self, flags: Array, begins: Ints, lengths: Ints, unfinished: Array) -> None:
        """End the episodes that were not over: truncated, without an observation after them."""
        last = (begins + lengths - 1)[unfinished]
        if not self._next:
            flags[last] |= sl.TRUNCATED
            return
        flags[last] |= sl.FINAL  # what the action of the last row led to is not known
        flags[last[lengths[unfinished] > 1] - 1] |= sl.TRUNCATED

    def _numbers(
        self, plan: ShardPlan, shard: int, steps: list[int], newest: Ints, items: dict[str, Array]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        entries = self.entries
        counts = [entry["counts"] for entry in entries]
        saved = [entry["numbers"] for entry in entries]
        rings = self._target.rings
        inserts = apportion(sum(c["inserts"] for c in counts), steps)[shard]
        removals = inserts - steps[shard]
        overlong = apportion(sum(n["overlong_episodes"] for n in saved), steps)[shard]
        numbers = {
            "envs": rings.envs,
            "ring": rings.ring,
            "slots": rings.slots,
            "newest": newest.tolist(),
            "oldest": [0] * rings.envs,
            "steps": steps[shard],
            "row_count": int(newest.sum()),
            "overwritten": removals,
            "overlong_episodes": overlong,
            "reward_at": saved[0]["reward_at"],
            "credit": saved[0]["credit"],
            "random": [
                int(word) for word in seed_words([n["random"] for n in saved], plan.shards, shard)
            ],
            "counts_zeros": any(n["counts_zeros"] for n in saved),
            "kinds": [],
            "starts": [],
        }
        row_bytes = (
            0 if self.columns is None else sum(c.size for c in self.columns.columns.values())
        )
        entry = {
            **entries[0],
            "columns": schema_to_json(self.columns),
            "numbers": numbers,
            "counts": {
                "inserts": inserts,
                "samples": apportion(sum(c["samples"] for c in counts), steps)[shard],
                "removals": removals,
                "removed": {},
                "sample_calls": max(c["sample_calls"] for c in counts),
                "effects": max(c["effects"] for c in counts),
            },
            "items": int(newest.sum()),
            "nbytes": int(newest.sum()) * row_bytes,
        }
        return entry, numbers

    def _rows(
        self,
        sources: Ints,
        episodes: Ints,
        lengths: Ints,
        lanes: Ints,
        listed: Sequence[str] | None,
    ) -> Iterator[Batch]:
        """The rows, some episodes of one source after the other."""
        if self.columns is None:
            return
        names = columns_of(self.columns.columns, listed)
        for run in np.split(np.arange(sources.size), np.flatnonzero(np.diff(sources)) + 1):
            if not run.size:
                continue
            source = int(sources[run[0]])
            marks = self._marks[source]
            picked = _ranges(marks.first[episodes[run]], lengths[run])
            envs = np.repeat(lanes[run], lengths[run])
            done = 0
            for batch in self.sources[source].rows(self.name, marks.places[picked]):
                here = envs[done : done + batch.rows]
                done += batch.rows
                yield rewritten(batch, names, lambda old, here=here: _numbered(old, here))


def _numbered(old: Array, envs: Ints) -> Array:
    """A column that says of each row its environment."""
    if envs.size and int(envs.max()) > np.iinfo(old.dtype).max:
        raise SchemaError(
            f"an env_id of type {old.dtype} cannot hold {int(envs.max())}; store it in a wider "
            "type, or name other columns with env_id_columns="
        )
    shape = (envs.size, *(1,) * (old.ndim - 1))
    return np.ascontiguousarray(np.broadcast_to(envs.reshape(shape), old.shape), old.dtype)


def _starts(lanes: Ints, lengths: Ints, count: int) -> Ints:
    """The row at which each episode begins in its lane."""
    starts = np.empty(lanes.size, np.int64)
    for lane in range(count):
        here = lanes == lane
        starts[here] = np.cumsum(lengths[here]) - lengths[here]
    return starts


def _ranges(starts: Ints, counts: Ints) -> Ints:
    """start, start + 1, ... for each start, so many as its count."""
    ends = np.cumsum(counts)
    steps = np.repeat(starts - (ends - counts), counts)
    ranges: Ints = steps + np.arange(ends[-1] if ends.size else 0)
    return ranges


def incomplete_episodes(core: ReplayCore) -> tuple[int, int]:
    """How many episodes lack their first or last step, and how many steps those have."""
    found = core.rings.episodes()
    lacking = (found[:, 3] != 0) | (found[:, 5] == 0)
    return int(lacking.sum()), int((found[lacking, 4] - found[lacking, 1]).sum())
