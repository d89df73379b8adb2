"""`save_shard` and `load_shards`: M ranks save, N ranks load.

Every rank saves its own shard and never waits for another to do so. Every rank loads by itself,
too: it works out the same plan as all others (`redistribution.py`) and reads its part of it.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from recollect.base.arguments import flag, many, one_of, time_span, whole
from recollect.durability.files import LOCAL, Files
from recollect.errors import InvalidValue, SnapshotError, WaitTimeout, shown
from recollect.ranks.shard_sets import (
    ShardSet,
    choose_set,
    make_folders,
    no_shards,
    read_set,
    shard_name,
    step_folder,
    try_commit,
)
from recollect.replay.buffer import ReplayBuffer
from recollect.rollouts.buffer import RolloutBuffer
from recollect.storage.memory.storage import MemoryStorage
from recollect.store import Store
from recollect.table.table import Table

if TYPE_CHECKING:
    from recollect.durability.snapshot.members import Member
    from recollect.ranks.merged_tables import Merged

log = logging.getLogger("recollect.shards")

LOOK = 0.05  # seconds between two looks whether the others are done
OVERFLOW = ("raise", "evict")
INCOMPLETE = ("keep", "drop")


@dataclass(frozen=True)
class Redistributed:
    """What a load did, by table where it says so."""

    path: Path
    step: int
    saved: int  # how many shards there were
    items: Mapping[str, int]  # that this rank has now: of a replay buffer, steps
    evicted: Mapping[str, int] = field(default_factory=dict)  # for want of room
    incomplete: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # of all shards
    dropped: bool = False  # whether those were left out
    environments: Mapping[str, int] = field(default_factory=dict)  # numbered anew


def save_shard(
    path: str | os.PathLike[str],
    store: Any,
    rank: int,
    world_size: int,
    step: int,
    wait: float | None = None,
    *,
    progress: bool | None = False,
) -> Path:
    """Save this rank's shard of a step; call it on every rank. Returns the checkpoint's folder.

    It returns when the shard is on the disk. The checkpoint is there when all ranks have saved:
    whichever finds that so writes its manifest.

    Args:
        path: The folder of all checkpoints, the same for every rank.
        store: An `rc.Store`, `rc.Table`, `rc.ReplayBuffer` or `rc.RolloutBuffer`.
        rank: Which rank this is, from 0.
        world_size: How many there are.
        step: The training step that is completed.
        wait: Seconds to wait until the others have saved; `TimeoutError` names those that have not.
        progress: Whether to show a bar; None does so for long work on a terminal.

    >>> import tempfile
    >>> import recollect as rc
    >>> folder = tempfile.mkdtemp()
    >>> for rank in range(3):
    ...     table = rc.Table("train", capacity=10)
    ...     _ = table.insert({"x": [10 * rank, 10 * rank + 1]})
    ...     _ = rc.save_shard(folder, table, rank, world_size=3, step=100)
    >>> parts = [rc.Table("train", capacity=10, sampler=rc.Fifo()) for _ in range(2)]
    >>> for rank, part in enumerate(parts):
    ...     _ = rc.load_shards(folder, part, rank, world_size=2)
    >>> [part.sample(3)["x"].tolist() for part in parts]
    [[0, 10, 1], [20, 11, 21]]
    """
    rank, world_size = check_rank(rank, world_size)
    step = whole("step", step, 0)
    timeout = None if wait is None else time_span("wait", wait)
    folder = step_folder(Path(path), step)
    write_shard(folder, store, rank, world_size, step, progress=progress)
    committed = try_commit(folder, world_size)
    deadline = time.monotonic() + (timeout or 0.0)
    while timeout is not None and not committed:
        if time.monotonic() >= deadline:
            found = read_set(folder)
            lacks = "it has gone" if found is None else found.lacks()
            raise WaitTimeout(f"{folder} was not committed within {timeout:g} s: {lacks}")
        time.sleep(LOOK)
        committed = try_commit(folder, world_size)
    return folder


def write_shard(
    folder: Path,
    store: Any,
    rank: int,
    world_size: int,
    step: int,
    *,
    run: str | None = None,
    about: Mapping[str, Any] | None = None,
    progress: bool | None = False,
    files: Files = LOCAL,
) -> None:
    """Write a rank's snapshot into the folder of a set; `about` is more for its manifest."""
    from recollect.durability.snapshot.saver import save_snapshot
    from recollect.ranks.merged_steps import incomplete_episodes

    members = members_of(store)

    def state() -> dict[str, Any]:
        """Under the locks of all members."""
        cut = [incomplete_episodes(m.core) for m in members.values() if isinstance(m, ReplayBuffer)]
        return {
            **(about or {}),
            "rank": rank,
            "world_size": world_size,
            "run": run,
            "origins": {name: _origins(member) for name, member in members.items()},
            "incomplete": {
                "episodes": sum(episodes for episodes, _ in cut),
                "steps": sum(steps for _, steps in cut),
            },
        }

    target = folder / shard_name(rank, world_size)
    try:
        make_folders(folder, files)
    except OSError as error:
        raise SnapshotError(f"{folder} could not be made: {error}") from error
    saved = {name: member_of(member) for name, member in members.items()}
    save_snapshot(
        target, saved, kind="shard", step=step, state=state, progress=progress, files=files
    )


def members_of(store: Any) -> dict[str, Any]:
    """What is saved of a store, by name."""
    if isinstance(store, Store):
        return dict(store)
    if isinstance(store, Table):
        return {store.name: store}
    if isinstance(store, RolloutBuffer):
        return {store.core.table.name: store}
    if isinstance(store, ReplayBuffer):
        return {"steps": store}
    raise InvalidValue(
        "store: expected an rc.Store, rc.Table, rc.ReplayBuffer or rc.RolloutBuffer, got "
        f"{shown(store)}"
    )


def member_of(target: Any) -> Member:
    """What a snapshot saves of a table or a buffer."""
    from recollect.replay.persistence import StepsMember
    from recollect.table.member import member_of as table_member

    if isinstance(target, RolloutBuffer):
        return table_member(target.core.table)
    if isinstance(target, ReplayBuffer):
        return StepsMember(target.core)
    return table_member(target.core)


def _origins(member: Any) -> list[int]:
    """The origins of a table's keys: no new shard may use one of them for its own."""
    if isinstance(member, ReplayBuffer):
        return []
    storage = (member.table if isinstance(member, RolloutBuffer) else member).core.storage
    if not isinstance(storage, MemoryStorage):
        return []
    return storage.items.origins()


def check_rank(rank: Any, world_size: Any) -> tuple[int, int]:
    world_size = whole("world_size", world_size, 1, 99_999)
    rank = whole("rank", rank, 0)
    if rank >= world_size:
        raise InvalidValue(f"rank: there are {world_size} ranks, numbered from 0, got {rank}")
    return rank, world_size


# Loading


def load_shards(
    path: str | os.PathLike[str],
    store: Any,
    rank: int,
    world_size: int,
    *,
    step: int | None = None,
    overflow: str = "raise",
    incomplete: str = "keep",
    allow_partial: bool = False,
    env_id_columns: Sequence[str] | None = None,
    progress: bool | None = False,
) -> Redistributed:
    """Fill this rank's empty store with its part of a checkpoint, of however many shards.

    On as many ranks as have saved, each gets back exactly what it saved. On another number, shards
    of nearly equal size are made: whole episodes and whole groups, in the order of their
    arrival, with everything that belongs to them.

    Args:
        path: The folder of all checkpoints, or that of one.
        store: What was saved, made anew: empty, and with the same names, tags and columns.
        rank: Which rank this is, from 0.
        world_size: How many there are now.
        step: Which checkpoint; the latest where None.
        overflow: Where this rank has too little capacity: `"raise"`, or `"evict"` what is too much.
        incomplete: Episodes without their first or last step: `"keep"` them, marked as cut, or
            `"drop"` them.
        allow_partial: Whether a checkpoint may be loaded that some ranks did not finish.
        env_id_columns: Columns that name a row's environment, which are numbered anew; None for
            those that are called `env_id`.
        progress: Whether to show a bar; None does so for long work on a terminal.
    """
    rank, world_size = check_rank(rank, world_size)
    wanted = None if step is None else whole("step", step, 0)
    partial = flag("allow_partial", allow_partial)
    chosen = choose_set(path, wanted, allow_partial=partial)
    if chosen is None:
        raise SnapshotError(no_shards(path))
    return load_set(
        chosen, store, rank, world_size,
        overflow=overflow, incomplete=incomplete, env_id_columns=env_id_columns, progress=progress,
    )  # fmt: skip


def load_set(
    chosen: ShardSet,
    store: Any,
    rank: int,
    world_size: int,
    *,
    overflow: str = "raise",
    incomplete: str = "keep",
    env_id_columns: Sequence[str] | None = None,
    progress: bool | None = False,
) -> Redistributed:
    """Fill a store with a rank's part of a set."""
    one_of("overflow", overflow, OVERFLOW)
    one_of("incomplete", incomplete, INCOMPLETE)
    members = members_of(store)
    same = chosen.world_size == world_size and not chosen.missing
    if same and _can_be_exact(chosen.shards[rank], members, incomplete):
        done = _load_own(chosen, members, rank, overflow, progress)
    else:
        done = _load_part(chosen, members, rank, world_size, overflow, incomplete, env_id_columns)
    _log(done, rank, world_size)
    return done


def _can_be_exact(shard: Mapping[str, Any], members: Mapping[str, Any], incomplete: str) -> bool:
    """Whether a rank may get back what it saved as it is; steps may have to go to other rings."""
    for name, entry in shard["tables"].items():
        if entry["kind"] == "steps":
            target = members.get(name)
            envs = target.num_envs if isinstance(target, ReplayBuffer) else None
            if incomplete == "drop" or envs != entry["numbers"]["envs"]:
                return False
    return True


def _load_own(
    chosen: ShardSet,
    members: Mapping[str, Any],
    rank: int,
    overflow: str,
    progress: bool | None,
) -> Redistributed:
    """As many ranks as before: exactly what this one saved."""
    from recollect.durability.snapshot.loader import load_snapshot

    folder = chosen.folder(rank)
    shard = chosen.shards[rank]
    if overflow == "raise":
        for name, entry in shard["tables"].items():
            if name in members:
                check_room(members[name], entry, folder)
    targets = {name: member_of(target) for name, target in members.items()}
    loaded = load_snapshot(folder, targets, progress=progress)
    counted = {
        what: sum(one["state"]["incomplete"][what] for one in chosen.shards.values())
        for what in ("episodes", "steps")
    }
    steps = [name for name, entry in shard["tables"].items() if entry["kind"] == "steps"]
    return Redistributed(
        chosen.path,
        chosen.step,
        len(chosen.shards),
        {name: len(members[name]) for name in shard["tables"]},
        loaded.evicted,
        dict.fromkeys(steps, counted),
    )


def _load_part(
    chosen: ShardSet,
    members: Mapping[str, Any],
    rank: int,
    world_size: int,
    overflow: str,
    incomplete: str,
    env_id_columns: Sequence[str] | None,
) -> Redistributed:
    """This rank's part of all shards, put together anew."""
    from recollect.durability.snapshot.reader import Snapshot
    from recollect.ranks.environments import checked_names
    from recollect.ranks.merged_steps import StepParts
    from recollect.ranks.merged_tables import RolloutParts, TableParts

    listed = checked_names(env_id_columns)
    kinds = {"items": TableParts, "rollouts": RolloutParts, "steps": StepParts}
    sources = [Snapshot(chosen.folder(number)) for number in sorted(chosen.shards)]
    merged: dict[str, Merged] = {}
    for name in sorted({name for source in sources for name in source.tables}):
        if name not in members:
            raise SnapshotError(
                f"{chosen.path}: it has a table {name!r} that this store has not; the store has "
                f"{', '.join(members)}"
            )
        parts = kinds[sources[0].entry(name)["kind"]](name, sources)
        origins = {o for s in sources for o in s.state["origins"].get(name, [])}
        if isinstance(parts, StepParts):
            target = members[name]
            if not isinstance(target, ReplayBuffer):
                raise SnapshotError(
                    f"{chosen.path}: {name!r} was saved as a replay buffer; load it into an "
                    "rc.ReplayBuffer"
                )
            parts.prepare(target.core, incomplete)
        plan = parts.plan(world_size)
        merged[name] = parts.merged(plan, rank, origins, listed)
    targets = {name: member_of(members[name]) for name in merged}
    where = str(chosen.path)
    for name, member in targets.items():
        member.check(merged[name].entry, where)
        if overflow == "raise":
            check_room(members[name], merged[name].entry, chosen.path)
    evicted = _put(targets, merged, where)
    for source in sources:
        source.segments.close()
    return Redistributed(
        chosen.path,
        chosen.step,
        len(sources),
        {name: len(members[name]) for name in merged},
        evicted,
        {name: one.incomplete for name, one in merged.items() if one.entry["kind"] == "steps"},
        incomplete == "drop",
        {name: len(one.environments) for name, one in merged.items() if len(one.environments)},
    )


def _put(
    targets: Mapping[str, Member],
    merged: Mapping[str, Merged],
    where: str,
) -> dict[str, int]:
    """Put everything into its place, under all locks."""
    from recollect.durability.snapshot.loader import replacing

    evicted = {}
    with replacing(targets.values()):
        for name, member in targets.items():
            one = merged[name]
            member.check(one.entry, where)  # nobody was in between
            gone = member.restore(one.entry, one.saved, one.batches, one.blobs)
            if gone:
                evicted[name] = gone
    return evicted


def check_room(target: Any, entry: Mapping[str, Any], where: Path) -> None:
    """Raise where a target is too small for what is to be put into it."""
    table = target.table if isinstance(target, RolloutBuffer) else target
    if isinstance(table, ReplayBuffer):
        numbers = entry["numbers"]
        rows = np.subtract(numbers["newest"], numbers["oldest"]).max(initial=0)
        ring = table.core.options.ring
        if rows > ring:
            raise SnapshotError(
                f"{where}: a ring of this rank's part has {rows} rows, and there is room for "
                f"{ring}; make the capacity {rows * table.num_envs} or more, or say "
                "overflow='evict'"
            )
        return
    if entry["items"] > table.capacity:
        raise SnapshotError(
            f"{where}: this rank's part of {table.name!r} has {many(entry['items'], 'item')} and "
            f"its capacity is {table.capacity}; make it larger, or say overflow='evict'"
        )
    most = table.capacity_bytes
    if most is not None and entry["nbytes"] > most:
        raise SnapshotError(
            f"{where}: this rank's part of {table.name!r} has {entry['nbytes']} bytes and its "
            f"capacity is {most} bytes; make it larger, or say overflow='evict'"
        )


def _log(done: Redistributed, rank: int, world_size: int) -> None:
    log.info(
        "%s: rank %d of %d has its part of %d shards of step %d: %s",
        done.path, rank, world_size, done.saved, done.step,
        ", ".join(f"{count} in {name!r}" for name, count in done.items.items()),
    )  # fmt: skip
    for name, counted in done.incomplete.items():
        if counted["episodes"]:
            log.warning(
                "%s: %d incomplete episodes of %r, %d steps, were %s",
                done.path, counted["episodes"], name, counted["steps"],
                "dropped" if done.dropped else "kept and marked as cut",
            )  # fmt: skip
    for name, gone in done.evicted.items():
        log.warning("%s: %d of %r did not fit and were evicted", done.path, gone, name)
