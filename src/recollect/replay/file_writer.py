"""Steps into files: Arrow and Parquet, with their episodes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa

from recollect.base.arrays import Ints
from recollect.base.optional import optional
from recollect.data.batch import Batch
from recollect.errors import InvalidValue, shown
from recollect.kernels import steps_layout as sl
from recollect.replay import step_files
from recollect.replay.core import ReplayCore
from recollect.replay.step_files import ABOUT, ADDED, is_next, path_of, progress_bar
from recollect.storage.lanes import Copies, Copy

PIECE = 32 << 20  # bytes that are written at a time
COMPRESSIONS = ("zstd", "lz4", None)


class Exported:
    """All episodes of one moment, to be read in pieces without the lock."""

    def __init__(self, core: ReplayCore) -> None:
        taken = [name for name in ADDED if name in core.columns]
        if taken:
            raise InvalidValue(
                f"column {taken[0]!r}: a file has a column of this name of its own; rename it"
            )
        with core.lock:
            core.enter()
            lanes = core.lanes
            if lanes is None:
                raise InvalidValue("this buffer has no columns yet, so there is nothing to write")
            self._lanes = lanes
            self._episodes = _all_episodes(core)
            self._held = lanes.hold()
            self._bases = lanes.frozen()
        options = core.options
        self._at_end = options.reward_next
        self._next = options.next_from_row
        self._about = {
            "capacity": options.capacity,
            "num_envs": options.num_envs,
            "next_from_row": list(options.next_from_row),
            "reward_at": options.reward_at,
        }
        self.rows = int((self._episodes[:, 2] - self._episodes[:, 1]).sum())
        self._piece = max(1, min(step_files.PIECE_ROWS, PIECE // lanes.row_bytes))
        self.schema = self._record_batch(self._episodes[:0], 0, 0).schema

    def pieces(self) -> Iterator[Any]:
        """Record batches of a bounded number of rows, in order of environment and row."""
        episodes = self._episodes
        ends = np.cumsum(episodes[:, 2] - episodes[:, 1])
        for begin in range(0, self.rows, self._piece):
            end = min(begin + self._piece, self.rows)
            first = int(np.searchsorted(ends, begin, side="right"))
            last = int(np.searchsorted(ends, end, side="left"))
            skipped = begin - (int(ends[first - 1]) if first else 0)
            yield self._record_batch(episodes[first : last + 1], skipped, end - begin)

    def _record_batch(self, episodes: Ints, skipped: int, count: int) -> Any:
        """`count` rows of these episodes, after those that are skipped."""
        env, first, stop, cut, end, over, terminated = episodes.T
        lengths = stop - first
        begins = np.cumsum(lengths) - lengths

        def spread(numbers: Ints) -> Ints:
            return np.repeat(numbers, lengths)[skipped : skipped + count]

        places = np.arange(skipped, skipped + count)
        envs, rows = spread(env), places - spread(begins) + spread(first)
        last = stop - 1 if self._at_end else end - 1  # the row that says that it is over
        ends = (rows == spread(last)) & (spread(over) != 0)
        marks = {
            "env_id": envs,
            "step": rows,
            "first": (rows == spread(first)) & (spread(cut) == 0),
            "terminated": ends & (spread(terminated) != 0),
            "truncated": ends & (spread(terminated) == 0),
            "final": (rows >= spread(end)) & (not self._at_end),
        }
        lanes = self._lanes
        addresses = lanes.addresses(self._bases, envs, rows)
        copies = Copies(
            lanes, [Copy(name, number, 0, (count,)) for number, name in enumerate(lanes.names)]
        )
        columns = lanes.gather(addresses, copies, np.empty)
        for name in lanes.names:  # a final row has cells of next_from_row columns only
            if not is_next(name, self._next):
                columns[name][marks["final"]] = 0
        batch: Any = Batch._make({name: columns[name] for name in lanes.names}, None)
        data = batch.to_arrow().rows
        for name, values in marks.items():
            data = data.append_column(pa.field(name, pa.array(values).type), pa.array(values))
        return data.replace_schema_metadata({ABOUT: json.dumps(self._about)})


def _all_episodes(core: ReplayCore) -> Ints:
    """The episodes of all rings, as `Rings.episodes` has them.

    With reward_at="next" the first row of an episode is no complete step yet, and may be the only
    one; it is part of the record all the same.
    """
    rings = core.rings
    episodes = rings.episodes()
    if not core.options.reward_next:
        return episodes
    alone = [episodes]
    for env in range(rings.envs):
        oldest, newest = int(rings.oldest[env]), int(rings.newest[env])
        mine = episodes[episodes[:, 0] == env]
        edges = np.zeros(newest - oldest + 1, np.int64)
        np.add.at(edges, mine[:, 1] - oldest, 1)
        np.add.at(edges, mine[:, 2] - oldest, -1)
        rows = oldest + np.flatnonzero(np.cumsum(edges[:-1]) == 0)
        rows = rows[rings.flags[env * rings.ring + rows % rings.ring] & sl.FIRST != 0]
        zeros = np.zeros_like(rows)
        alone.append(np.stack([zeros + env, rows, rows + 1, zeros, rows, zeros, zeros], axis=1))
    found = np.concatenate(alone)
    return found[np.lexsort((found[:, 1], found[:, 0]))]


def to_arrow(core: ReplayCore, path: Any, compression: str | None, progress: bool | None) -> Any:
    """`ReplayBuffer.to_arrow`."""
    exported = Exported(core)
    if path is None:
        return pa.Table.from_batches(list(exported.pieces()), exported.schema)
    options = pa.ipc.IpcWriteOptions(compression=_checked(compression))
    with (
        _replaced(path) as partial,
        pa.OSFile(partial, "wb") as file,
        pa.ipc.new_file(file, exported.schema, options=options) as writer,
    ):
        _write(writer.write_batch, exported, progress)
    return None


def to_parquet(core: ReplayCore, path: Any, compression: str | None, progress: bool | None) -> None:
    """`ReplayBuffer.to_parquet`."""
    exported = Exported(core)
    writing = optional("pyarrow.parquet").ParquetWriter
    method = "none" if _checked(compression) is None else compression
    with (
        _replaced(path) as partial,
        writing(partial, exported.schema, compression=method) as writer,
    ):
        _write(writer.write_batch, exported, progress)


def _write(write: Any, exported: Exported, progress: bool | None) -> None:
    with progress_bar(exported.rows, "steps written", progress) as bar:
        for piece in exported.pieces():
            write(piece)
            bar.update(piece.num_rows)


def _checked(compression: Any) -> str | None:
    if compression not in COMPRESSIONS:
        raise InvalidValue(f"compression: expected 'zstd', 'lz4' or None, got {shown(compression)}")
    return compression if compression is None else str(compression)


@contextmanager
def _replaced(path: Any) -> Iterator[str]:
    """A file beside the path that takes its place when all went well."""
    target = path_of("path", path)
    partial = f"{target}.partial"
    try:
        yield partial
        os.replace(partial, target)
    finally:
        if os.path.exists(partial):
            os.remove(partial)
