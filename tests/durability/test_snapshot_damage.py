"""Damaged snapshots: the error names the file, nothing is loaded, the one before still loads."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

import recollect as rc
from recollect.durability.files import digest
from recollect.durability.snapshot.manifest import MANIFEST, from_bytes, read_manifest, to_bytes

KINDS = ("rows", "shared", "items", "changes", "arrays", "blobs")


def made() -> rc.RolloutBuffer:
    return rc.RolloutBuffer(staleness=rc.Staleness(max_staleness=1000), seed=0, max_uses=0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two snapshots of a buffer, with files of every kind."""
    path = tmp_path_factory.mktemp("damage")
    buffer = made()
    for number, name in enumerate(("before", "latest")):
        for n in range(30 if number == 0 else 8):
            rollouts = [rc.Rollout([1, n], list(range(5)), finish_reason="stop") for _ in range(3)]
            blobs = {"image": [bytes([number, n]) * 100]}
            buffer.sync.put(rc.Group(rollouts, task="math", blobs=blobs), version=n)
        buffer.sync.sample(9)
        buffer.sync.take(3)
        buffer.save(path / name, step=number, files={"model.pt": b"weights"})
    return path


def copied(folder: Path, target: Path) -> Path:
    """A copy whose files are its own: segments are shared, and damage would be too."""
    import shutil

    shutil.copytree(folder, target)
    return target / "latest"


def refused(path: Path, file: str) -> None:
    """The snapshot is refused, by the name of the file; the one before it loads."""
    buffer = made()
    with pytest.raises(rc.SnapshotError, match=file.replace(".", r"\.")):
        buffer.load(path)
    assert len(buffer) == 0
    buffer.load(path.parent / "before")
    assert len(buffer) == 27


def places(size: int) -> list[int]:
    """A byte of the magic, of the schema, of the body, of the footer and of its length."""
    return [0, min(40, size - 1), size // 3, size // 2, size - 40, size - 9, size - 1]


@pytest.mark.parametrize("kind", KINDS)
def test_each_class_of_bytes_flipped_is_noticed(kind: str, folder: Path, tmp_path: Path) -> None:
    latest = copied(folder, tmp_path / "c")
    file = next(latest.glob(f"*.{kind}-*.arrow"))
    whole = file.read_bytes()
    for place in places(len(whole)):
        data = bytearray(whole)
        data[place] ^= 1
        file.write_bytes(data)
        refused(latest, file.name)
    file.write_bytes(whole)
    made().load(latest)


@pytest.mark.parametrize("kind", [*KINDS, "manifest", "model"])
@pytest.mark.parametrize("damage", ["missing", "truncated", "empty", "longer"])
def test_missing_and_truncated_files_are_named(
    kind: str, damage: str, folder: Path, tmp_path: Path
) -> None:
    latest = copied(folder, tmp_path / "c")
    names = {"manifest": MANIFEST, "model": "model.pt"}
    file = latest / names[kind] if kind in names else next(latest.glob(f"*.{kind}-*.arrow"))
    data = file.read_bytes()
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(
            {"truncated": data[: len(data) // 2], "empty": b"", "longer": data + b"x"}[damage]
        )
    refused(latest, file.name)


def test_every_byte_of_a_manifest_is_guarded(folder: Path, tmp_path: Path) -> None:
    whole = (folder / "latest" / MANIFEST).read_bytes()
    rng = np.random.default_rng(0)
    positions = [
        *range(200),
        *rng.integers(0, len(whole), 300),
        *range(len(whole) - 60, len(whole)),
    ]
    for place in positions:
        data = bytearray(whole)
        data[place] ^= 1 << int(rng.integers(0, 7))
        try:
            same = json.loads(bytes(data)) == json.loads(whole)
        except ValueError:
            same = False
        if same:  # white space at its end
            continue
        with pytest.raises(rc.SnapshotError, match=r"manifest\.json"):
            from_bytes(bytes(data), "manifest.json")


def test_a_manifest_from_the_future_says_what_to_do(folder: Path, tmp_path: Path) -> None:
    latest = copied(folder, tmp_path / "c")
    manifest = read_manifest(latest)
    manifest.pop("xxh3")
    (latest / MANIFEST).write_bytes(to_bytes({**manifest, "format": 3, "new": {"things": 1}}))
    with pytest.raises(rc.SnapshotError, match=r"format 3 .* update Recollect"):
        made().load(latest)
    refused(latest, MANIFEST)


@pytest.mark.parametrize("missing", ["tables", "files", "kind", "id", "sequence", "state"])
def test_a_manifest_without_a_field_is_refused(missing: str, folder: Path, tmp_path: Path) -> None:
    latest = copied(folder, tmp_path / "c")
    manifest = read_manifest(latest)
    manifest.pop("xxh3")
    del manifest[missing]
    (latest / MANIFEST).write_bytes(to_bytes(manifest))
    refused(latest, MANIFEST)


def test_verify_counts_too(folder: Path, tmp_path: Path) -> None:
    """A manifest whose checksums are right and whose counts are not."""
    from recollect.durability.snapshot.reader import open_snapshot

    latest = copied(folder, tmp_path / "c")
    assert open_snapshot(latest).verify()["items"] == 32
    manifest = read_manifest(latest)
    manifest.pop("xxh3")
    (table,) = manifest["tables"].values()
    table["items"] += 1
    (latest / MANIFEST).write_bytes(to_bytes(manifest))
    with pytest.raises(rc.SnapshotError, match="should have 33"):
        open_snapshot(latest).verify()


def test_a_manifest_is_json_that_any_program_can_check(folder: Path) -> None:
    data = (folder / "latest" / MANIFEST).read_bytes()
    manifest = json.loads(data)
    body, _, last = data.rpartition(b",\n")
    assert json.loads(b"{" + last) == {"xxh3": manifest["xxh3"]}
    assert digest(body) == manifest["xxh3"]
    for name, entry in manifest["files"].items():
        content = (folder / "latest" / name).read_bytes()
        assert (len(content), digest(content)) == (entry["bytes"], entry["xxh3"])
    named = {*manifest["files"], *manifest["others"], MANIFEST}
    assert {path.name for path in (folder / "latest").iterdir()} == named


def test_a_snapshot_that_nobody_may_write_is_read(folder: Path, tmp_path: Path) -> None:
    latest = copied(folder, tmp_path / "c")
    for path in latest.iterdir():
        os.chmod(path, 0o444)
    os.chmod(latest, 0o555)
    try:
        made().load(latest)
    finally:
        os.chmod(latest, 0o755)
