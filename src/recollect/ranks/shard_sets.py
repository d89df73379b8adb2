"""Sets of shards: one folder per checkpoint, with a snapshot of every rank in it.

    PATH/step-000000000412/shard-00000-of-00003/    a rank's snapshot, which commits by itself
    PATH/step-000000000412/manifest.json            written when all of them are there
    PATH/crash-5d0c1a2b/partial.json                who is missing, or at another step

A set is committed by its manifest, which whichever rank finds all shards present writes. Ranks
write only their own shards and never wait for each other here.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recollect.base.arguments import many
from recollect.durability.files import LOCAL, Files
from recollect.durability.format import FORMAT
from recollect.durability.snapshot.manifest import MANIFEST, read_manifest, to_bytes
from recollect.errors import SnapshotError

PARTIAL = "partial.json"
KIND = "shards"
_SHARD = re.compile(r"shard-(\d{5,})-of-(\d{5,})")


@dataclass(frozen=True)
class ShardSet:
    """A set that was found. `shards` are the manifests of those that are there, by rank."""

    path: Path
    world_size: int
    shards: Mapping[int, Mapping[str, Any]]
    manifest: Mapping[str, Any] | None  # None where it is not committed

    @property
    def committed(self) -> bool:
        return self.manifest is not None

    @property
    def missing(self) -> list[int]:
        return [rank for rank in range(self.world_size) if rank not in self.shards]

    @property
    def whole(self) -> bool:
        """Every shard is there, of one step and of one run: what may be committed."""
        return not self.missing and len(set(self.steps.values())) == 1 and len(self._runs) == 1

    @property
    def _runs(self) -> set[str | None]:
        return {shard["state"].get("run") for shard in self.shards.values()}

    @property
    def steps(self) -> dict[int, int]:
        """The step of each shard."""
        return {rank: int(shard["step"]) for rank, shard in sorted(self.shards.items())}

    @property
    def step(self) -> int:
        """The step that it belongs to; of a partial one, what every shard has reached."""
        return min(self.steps.values())

    @property
    def order(self) -> tuple[int, int, str]:
        """What makes one set later than another: never a time stamp."""
        sequence = int(self.manifest["sequence"]) if self.manifest is not None else 0
        return self.step, sequence, self.path.name

    def folder(self, rank: int) -> Path:
        """Where a rank's shard is."""
        return self.path / shard_name(rank, self.world_size)

    def __str__(self) -> str:
        if self.committed:
            return f"{self.path} (step {self.step}, {many(self.world_size, 'shard')})"
        return f"{self.path} ({self.lacks()})"

    def lacks(self) -> str:
        """Why it is not committed, in words."""
        parts = []
        if self.missing:
            ranks = ", ".join(map(str, self.missing))
            parts.append(f"of {many(self.world_size, 'rank')}, {ranks} are missing")
        if len(set(self.steps.values())) > 1:
            told = ", ".join(f"rank {rank} at {step}" for rank, step in self.steps.items())
            parts.append(f"steps differ: {told}")
        if len(self._runs) > 1:
            parts.append("its shards are of different runs")
        return "; ".join(parts) or "all shards are there"


def shard_name(rank: int, world_size: int) -> str:
    return f"shard-{rank:05d}-of-{world_size:05d}"


def step_folder(path: Path, step: int, files: Files = LOCAL) -> Path:
    """Where the shards of a step go: a committed set is not touched, another attempt is made."""
    return uncommitted(path / f"step-{step:012d}", files)


def uncommitted(folder: Path, files: Files = LOCAL) -> Path:
    """This folder, or the next of its name whose set is not committed."""
    attempt, found = 0, folder
    while files.exists(found / MANIFEST):
        attempt += 1
        found = folder.with_name(f"{folder.name}.{attempt}")
    return found


def make_folders(path: Path, files: Files = LOCAL) -> None:
    """Make a folder and those above it, as several ranks may do at once."""
    missing = []
    while not files.is_folder(path):
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        try:
            files.make_folder(folder)
        except FileExistsError:
            continue
        files.sync_folder(folder.parent)


def read_set(folder: Path, files: Files = LOCAL) -> ShardSet | None:
    """The set in a folder: the committed one, else the one with most shards; None without any."""
    manifest = None
    if files.exists(folder / MANIFEST):
        manifest = read_manifest(folder, files)
        if manifest["kind"] != KIND:
            return None
    by_size: dict[int, dict[int, Mapping[str, Any]]] = {}
    for name in files.list(folder):
        match = _SHARD.fullmatch(name)
        if match is None:
            continue
        rank, size = int(match[1]), int(match[2])
        try:
            by_size.setdefault(size, {})[rank] = read_manifest(folder / name, files)
        except SnapshotError:
            if manifest is not None:
                raise
    if manifest is not None:
        size = int(manifest["state"]["world_size"])
        found = ShardSet(folder, size, by_size.get(size, {}), manifest)
        if found.missing:
            raise SnapshotError(f"{folder} is damaged: {found.lacks()}; load another step")
        return found
    if not by_size:
        return None
    size = max(by_size, key=lambda size: (len(by_size[size]), size))
    return ShardSet(folder, size, by_size[size], None)


def find_sets(path: Path, files: Files = LOCAL) -> list[ShardSet]:
    """The sets in a folder, the latest last, partial ones included; damaged ones are left out."""
    found = []
    for name in files.list(path):
        if name.startswith(".") or not files.is_folder(path / name):
            continue
        try:
            one = read_set(path / name, files)
        except SnapshotError:
            continue
        if one is not None:
            found.append(one)
    return sorted(found, key=lambda one: one.order)


def choose_set(
    path: str | os.PathLike[str],
    step: int | None = None,
    *,
    allow_partial: bool = False,
    files: Files = LOCAL,
) -> ShardSet | None:
    """The latest set, or that of a step; None where there is nothing at all.

    `path` may be the folder of all sets, or of one. A partial set is chosen only where that is
    allowed, and over a committed one only where it is of a later step.
    """
    folder = Path(path)
    one = read_set(folder, files)
    sets = find_sets(folder, files) if one is None else [one]
    whole = [one for one in sets if one.committed]
    usable = sets if allow_partial else whole
    if step is not None:
        usable = [one for one in usable if one.step == step]
        if not usable:
            there = ", ".join(str(one.step) for one in whole) or "none"
            raise SnapshotError(f"{folder} has no checkpoint of step {step}; there are {there}")
    if not usable:
        if sets:
            raise SnapshotError(
                f"{sets[-1]}: this set is not whole; allow_partial=True loads what is there"
            )
        return None
    return max(usable, key=lambda one: (one.step, one.committed, one.order))


def no_shards(path: str | os.PathLike[str]) -> str:
    """Why nothing can be loaded from a path that has no set."""
    if not os.path.exists(path):
        return f"{path} does not exist; give the folder that rc.save_shard wrote to"
    return f"{path} has no checkpoint of shards; rc.save_shard writes one"


def try_commit(folder: Path, world_size: int, files: Files = LOCAL) -> bool:
    """Write the manifest if every shard is there, of one step and of one run."""
    if files.exists(folder / MANIFEST):
        return True
    found = read_set(folder, files)
    if found is None or found.world_size != world_size or not found.whole:
        return False
    write_whole(folder / MANIFEST, to_bytes(_manifest_of(found)), files)
    files.remove(folder / PARTIAL)
    return True


def _manifest_of(found: ShardSet) -> dict[str, Any]:
    shards = [
        {
            "name": shard_name(rank, found.world_size),
            "id": shard["id"],
            "incomplete": shard["state"].get("incomplete"),
        }
        for rank, shard in sorted(found.shards.items())
    ]
    last = re.search(r"\.(\d+)$", found.path.name)
    return {
        "format": FORMAT,
        "kind": KIND,
        "id": secrets.token_hex(16),
        "sequence": int(last[1]) if last else 0,
        "step": found.step,
        "saved_at": time.time(),
        "tables": {},
        "left_out": [],
        "files": {},
        "others": {},
        "state": {
            "world_size": found.world_size,
            "run": found.shards[0]["state"].get("run"),
            "shards": shards,
            "incomplete": _added_up([shard["incomplete"] for shard in shards]),
        },
    }


def _added_up(counts: list[Any]) -> dict[str, int]:
    """Incomplete episodes of all shards: how many, and how many steps they have."""
    known = [count for count in counts if count]
    return {
        "episodes": sum(count["episodes"] for count in known),
        "steps": sum(count["steps"] for count in known),
    }


def mark_partial(folder: Path, files: Files = LOCAL) -> None:
    """Say beside the shards that they are no whole set, and why."""
    found = read_set(folder, files)
    if found is None or found.committed:
        return
    about = {"missing": found.missing, "steps": found.steps, "why": found.lacks()}
    write_whole(folder / PARTIAL, json.dumps(about, indent=1).encode(), files)
    if files.exists(folder / MANIFEST):  # another rank committed it in between
        files.remove(folder / PARTIAL)


def keep_latest(path: Path, keep: int, files: Files = LOCAL) -> None:
    """Remove committed sets beyond the latest, and what is not whole and older than these."""
    sets = find_sets(path, files)
    kept = [one for one in sets if one.committed][-keep:]
    if not kept:
        return
    for one in sets:
        if one.order < kept[0].order and one not in kept:
            # its manifest goes first: a set that is half removed must not look whole
            files.remove(one.path / MANIFEST)
            files.remove_folder(one.path)


def write_whole(path: Path, data: bytes, files: Files = LOCAL) -> None:
    """Write a small file under another name, sync it, and rename it."""
    temporary = path.with_name(f".{path.name}.tmp-{secrets.token_hex(4)}")
    try:
        with files.create(temporary) as file:
            file.write(data)
            file.sync()
        files.rename(temporary, path)
        files.sync_folder(path.parent)
    except BaseException:
        files.remove(temporary)
        raise
