"""The manifest of a snapshot: what it is and which files it has; and how snapshots are found.

The manifest is written last: a folder that has no readable one is no snapshot.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recollect.durability.files import LOCAL, Files, digest
from recollect.durability.format import FORMAT, plain
from recollect.errors import SnapshotError

MANIFEST = "manifest.json"
_LAST_LINE = re.compile(rb',\n"xxh3": "([0-9a-f]{16})"}\n?\Z')
_NEEDED: dict[str, type | tuple[type, ...]] = {
    "kind": str, "id": str, "sequence": int, "tables": dict, "files": dict, "others": dict,
    "left_out": list, "state": dict,
}  # fmt: skip


@dataclass(frozen=True)
class Found:
    """A snapshot that was found in a folder."""

    path: Path
    step: int | None
    sequence: int
    manifest: Mapping[str, Any]

    @property
    def order(self) -> tuple[int, int, str]:
        """What makes one snapshot later than another: never a time stamp."""
        return (-1 if self.step is None else self.step, self.sequence, self.path.name)


def to_bytes(manifest: Mapping[str, Any]) -> bytes:
    """A manifest as it is written: JSON whose last line is the checksum of what stands before."""
    fields = [
        f"{json.dumps(name)}: {json.dumps(manifest[name], default=plain)}" for name in manifest
    ]
    body = ("{" + ",\n".join(fields)).encode()
    return body + f',\n"xxh3": "{digest(body)}"}}\n'.encode()


def from_bytes(data: bytes, where: str) -> dict[str, Any]:
    """A manifest that was read; `where` names the file in messages."""
    try:
        manifest = json.loads(data)
    except ValueError as error:
        raise SnapshotError(f"{where} is damaged: {error}") from None
    if not isinstance(manifest, dict) or not isinstance(manifest.get("format"), int):
        raise SnapshotError(f"{where} is damaged: it names no format")
    if manifest["format"] > FORMAT:
        raise SnapshotError(
            f"{where} has format {manifest['format']} and this version of Recollect reads formats "
            f"up to {FORMAT}; update Recollect to load it"
        )
    last = _LAST_LINE.search(data)
    if last is None or digest(data[: last.start()]).encode() != last[1]:
        raise SnapshotError(f"{where} is damaged: its checksum is not that of its content")
    for name, kind in _NEEDED.items():
        if not isinstance(manifest.get(name), kind):
            raise SnapshotError(f"{where} is damaged: {name!r} is missing or of another type")
    return manifest


def read_manifest(folder: str | os.PathLike[str], files: Files = LOCAL) -> dict[str, Any]:
    """The manifest of a snapshot; `SnapshotError` where there is none that can be read."""
    path = Path(folder) / MANIFEST
    try:
        data = bytes(files.read(path))
    except (FileNotFoundError, NotADirectoryError):
        raise SnapshotError(no_snapshot(folder, files)) from None
    except OSError as error:
        raise SnapshotError(f"{path} cannot be read: {error}") from error
    return from_bytes(data, str(path))


def no_snapshot(folder: str | os.PathLike[str], files: Files = LOCAL) -> str:
    """Why a path that has no manifest is no snapshot."""
    if not files.exists(folder):
        return f"{folder} does not exist; give the path of a snapshot, or of a folder of them"
    if not files.is_folder(folder):
        return f"{folder} is a file, and a snapshot is a folder"
    return f"{folder} is no snapshot: it has no {MANIFEST}"


def find_snapshots(folder: str | os.PathLike[str], files: Files = LOCAL) -> list[Found]:
    """The snapshots in a folder, the latest last; half-written and damaged ones are left out."""
    found = []
    for name in files.list(folder):
        path = Path(folder) / name
        if name.startswith(".") or not files.is_folder(path):
            continue
        try:
            manifest = read_manifest(path, files)
        except SnapshotError:
            continue
        found.append(Found(path, manifest.get("step"), manifest["sequence"], manifest))
    return sorted(found, key=lambda one: one.order)


def new_run() -> str:
    """Eight hex digits that no other save has."""
    return secrets.token_hex(4)


# What stands beside a snapshot while it is written or replaced


def temporary(target: Path, run: str) -> Path:
    return target.with_name(f".{target.name}.tmp-{run}")


def aside(target: Path, run: str) -> Path:
    return target.with_name(f".{target.name}.old-{run}")


def put_aside(target: Path, files: Files = LOCAL) -> Path | None:
    """The snapshot that lost its name because a crash came between two renames."""
    for name in files.list(target.parent):
        if name.startswith(f".{target.name}.old-"):
            path = target.parent / name
            try:
                read_manifest(path, files)
            except SnapshotError:
                continue
            return path
    return None


def clean(target: Path, files: Files = LOCAL) -> None:
    """Clean up after saves that did not finish: bring back what they put aside, remove the rest."""
    if not files.exists(target):
        old = put_aside(target, files)
        if old is not None:
            files.rename(old, target)
    for name in files.list(target.parent):
        if name.startswith((f".{target.name}.tmp-", f".{target.name}.old-")):
            files.remove_folder(target.parent / name)
