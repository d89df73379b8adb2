"""`recollect reshard`: a checkpoint of M shards written as one of N, without a training run.

Each new shard is loaded as a rank would load it, into a store made for the purpose, and saved. So
what is on disk then is what N ranks would have loaded.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from recollect.base.arguments import whole
from recollect.durability.snapshot.reader import Snapshot
from recollect.errors import SnapshotError
from recollect.kernels import steps_layout as sl
from recollect.ranks.shard_sets import ShardSet, choose_set, no_shards, step_folder, try_commit
from recollect.ranks.shards import Redistributed, load_set, write_shard
from recollect.replay.buffer import ReplayBuffer
from recollect.rollouts.buffer import RolloutBuffer
from recollect.storage.fields import BUILT_IN
from recollect.store import Store
from recollect.table.table import Table

OWN_TAGS = ("ready", "expires", "trained_at")  # a rollout buffer declares these by itself
TYPES: dict[str, type] = {"int": int, "float": float, "str": str, "bool": bool}


@dataclass(frozen=True)
class Resharded:
    """A new shard that was written."""

    written: Path  # the checkpoint's folder, which is committed with the last shard
    loaded: Redistributed


def resharded(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    shards: int,
    *,
    step: int | None = None,
    incomplete: str = "keep",
    allow_partial: bool = False,
    env_id_columns: Sequence[str] | None = None,
    num_envs: int | None = None,
) -> Iterator[Resharded]:
    """Write a checkpoint as one of another number of shards, shard by shard.

    `num_envs` is how many environments a rank of the new run has; as before where None.
    """
    shards = whole("shards", shards, 1, 99_999)
    chosen = choose_set(source, step, allow_partial=allow_partial)
    if chosen is None:
        raise SnapshotError(no_shards(source))
    folder = step_folder(Path(destination), chosen.step)
    run = secrets.token_hex(4)
    for rank in range(shards):
        target = _made_for(chosen, shards, num_envs)
        loaded = load_set(
            chosen, target, rank, shards, incomplete=incomplete, env_id_columns=env_id_columns
        )
        about = {"saved": loaded.saved, "dropped": loaded.dropped}
        write_shard(folder, target, rank, shards, chosen.step, run=run, about=about)
        if rank == shards - 1 and not try_commit(folder, shards):
            raise SnapshotError(f"{folder} could not be committed: somebody else writes there")
        yield Resharded(folder, loaded)


def _made_for(chosen: ShardSet, shards: int, num_envs: int | None) -> Any:
    """An empty store that a shard of the set fits into."""
    tables = [shard["tables"] for _, shard in sorted(chosen.shards.items())]
    names = sorted({name for one in tables for name in one})
    entries = {name: [one[name] for one in tables if name in one] for name in names}
    kinds = {entry["kind"] for some in entries.values() for entry in some}
    if kinds == {"items"}:
        return Store([_table(name, some) for name, some in entries.items()])
    if len(names) > 1:
        raise SnapshotError(
            f"{chosen.path} has several buffers in one shard ({', '.join(names)}), and this "
            "rewrites only one; rc.load_shards loads them on any number of ranks"
        )
    name, some = next(iter(entries.items()))
    if kinds == {"rollouts"}:
        tags = {n: kind for n, kind in _tags(some[0]).items() if n not in OWN_TAGS}
        return RolloutBuffer(name=name, tags=tags)
    return _buffer(name, chosen, some, shards, num_envs)


def _tags(entry: Mapping[str, Any]) -> dict[str, type]:
    return {name: TYPES[kind] for name, kind in entry["fields"].items() if name not in BUILT_IN}


def _table(name: str, entries: Sequence[Mapping[str, Any]]) -> Table:
    items = sum(entry["items"] for entry in entries)
    return Table(
        name,
        capacity=max(items, 1),
        tags=_tags(entries[0]),
        partition_by=entries[0]["partition_by"],
    )


def _buffer(
    name: str,
    chosen: ShardSet,
    entries: Sequence[Mapping[str, Any]],
    shards: int,
    num_envs: int | None,
) -> ReplayBuffer:
    """Rings that are large enough, however episodes are dealt out to them.

    A shard has at most one episode more than its share, and so has a ring of it.
    """
    envs = entries[0]["numbers"]["envs"] if num_envs is None else whole("num_envs", num_envs, 1)
    total = longest = 0
    for rank in chosen.shards:
        marks = Snapshot(chosen.folder(rank)).saved(name).items
        total += marks["key"].size
        if marks["key"].size:
            order = np.argsort(marks["key"])
            env = marks["key"][order] >> np.uint64(sl.ROW_BITS)
            begins = np.flatnonzero(
                np.append(True, env[1:] != env[:-1]) | (marks["offset"][order] == 0)
            )
            longest = max(longest, int(np.diff(np.append(begins, order.size)).max()))
    rows = np.concatenate(
        [np.subtract(e["numbers"]["newest"], e["numbers"]["oldest"]) for e in entries]
    )
    ring = max(total // (shards * envs) + 2 * longest + 1, int(rows.max(initial=0)))
    reward_at = entries[0]["numbers"]["reward_at"]
    return ReplayBuffer(ring * envs, num_envs=envs, reward_at=reward_at, next_from_row=())
