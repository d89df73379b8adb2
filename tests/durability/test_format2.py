"""Snapshots that were written when the format was version 2 are read by every later version."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_format1 import made

from recollect.durability.snapshot.reader import open_snapshot

FOLDER = Path(__file__).parent / "saved" / "format2"
SAVES = ["first", "second", "third"]


def filled(make: Any, which: str) -> tuple[Any, Any]:
    """A store and a buffer of steps with what was saved, but for what the third save changed."""
    store, steps = make.store(), make.steps()
    for first, count in [(0, 9), (20, 2)][: 1 + (which != "first")]:
        make.fill(store, first, count)
        make.add_steps(steps, first, 2 * count)
    return store, steps


@pytest.mark.parametrize("which", SAVES)
def test_stores_of_format_2_are_read(which: str) -> None:
    make = made()
    expected, loaded = filled(make, which)[0], make.store()
    done = loaded.load(FOLDER / which / "store")
    assert done.step == SAVES.index(which)
    assert done.others["model.bin"].read_bytes() == b"weights"
    for name in ("groups", "queue"):
        one, other = (
            t.get(sorted(t.counts("key"), key=lambda k: k & (1 << 44) - 1))
            for t in (expected[name], loaded[name])
        )
        assert one.equals(other)
        assert one.shared.equals(other.shared)
        priorities = one.info.priority.tolist()
        if name == "groups" and which == "third":
            priorities[0] = 9.0
        assert other.info.priority.tolist() == priorities
        assert one.info.times_sampled.tolist() == other.info.times_sampled.tolist()
        assert one.info.task.tolist() == other.info.task.tolist()
    assert loaded["groups"].sample(20).num_items == 20


@pytest.mark.parametrize("which", SAVES)
def test_steps_and_rollouts_of_format_2_are_read(which: str) -> None:
    make = made()
    steps, groups = make.steps(), make.rollouts()
    steps.load(FOLDER / which / "steps")
    assert steps.to_arrow().equals(filled(make, which)[1].to_arrow())
    groups.load(FOLDER / which / "rollouts")
    assert len(groups) == (9 if which == "first" else 11)
    found = groups.get([groups.find("g1")])
    assert found[0].blobs["image"] == [bytes([1]) * 20]
    assert found[0][2].response_ids.tolist() == [0, 1, 2]


@pytest.mark.parametrize("kind", ["store", "steps"])
def test_single_values_that_changed_are_patched(kind: str) -> None:
    snapshot = open_snapshot(FOLDER / "third" / kind)
    name = snapshot.tables[0]
    assert "priority" in snapshot.entry(name)["patches"]
    assert (snapshot.saved(name).items["priority"] == 9.0).sum() == 1


@pytest.mark.parametrize(
    "path",
    sorted(FOLDER.glob("*/*/manifest.json")),
    ids=lambda path: f"{path.parent.parent.name}-{path.parent.name}",
)
def test_every_checksum_and_count_is_right(path: Path) -> None:
    snapshot = open_snapshot(path.parent)
    assert snapshot.manifest["format"] == 2
    assert snapshot.verify()["items"] > 0
