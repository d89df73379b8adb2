"""Snapshots that were written when the format was version 1 are read by every later version."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recollect.durability.snapshot.reader import open_snapshot

FOLDER = Path(__file__).parent / "saved" / "format1"


def made() -> Any:
    spec = importlib.util.spec_from_file_location("format1_make", FOLDER / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("which", ["first", "second"])
def test_stores_of_format_1_are_read(which: str) -> None:
    make = made()
    expected, loaded = make.store(), make.store()
    for first, count in [(0, 9), (20, 2)][: 1 + (which == "second")]:
        make.fill(expected, first, count)
    done = loaded.load(FOLDER / which / "store")
    assert done.step == (which == "second")
    assert done.others["model.bin"].read_bytes() == b"weights"
    for name in ("groups", "queue"):
        one, other = expected[name], loaded[name]
        # keys are random in their origin: items are compared in order of arrival
        batches = [
            t.get(sorted(t.counts("key"), key=lambda k: k & (1 << 44) - 1)) for t in (one, other)
        ]
        assert batches[0].equals(batches[1])
        assert batches[0].shared.equals(batches[1].shared)
        fields = ("priority", "version", "task", "status")
        for field in (*fields, *(["score", "level", "hard", "source"] if name == "groups" else [])):
            np.testing.assert_array_equal(
                getattr(batches[0].info, field), getattr(batches[1].info, field)
            )
        for count in ("size", "nbytes", "inserts", "samples", "removals", "sample_calls"):
            assert one.stats()[count] == other.stats()[count]
    assert loaded["groups"].sample(20).num_items == 20


@pytest.mark.parametrize("which", ["first", "second"])
def test_steps_and_rollouts_of_format_1_are_read(which: str) -> None:
    make = made()
    steps, groups = make.steps(), make.rollouts()
    expected = make.steps()
    for first, count in [(0, 9), (20, 2)][: 1 + (which == "second")]:
        make.add_steps(expected, first, 2 * count)
    steps.load(FOLDER / which / "steps")
    assert steps.to_arrow().equals(expected.to_arrow())
    assert steps.stats()["inserts"] == expected.stats()["inserts"]
    assert steps.sample(30)["obs"].shape == (30, 3)
    groups.load(FOLDER / which / "rollouts")
    count = 9 if which == "first" else 11
    assert len(groups) == count
    assert groups.train_step == (21 if which == "second" else 1)
    found = groups.get([groups.find("g1")])
    assert found[0].blobs["image"] == [bytes([1]) * 20]
    assert found[0][2].response_ids.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "path", sorted(FOLDER.glob("*/*/manifest.json")), ids=lambda p: p.parent.name
)
def test_every_checksum_and_count_is_right(path: Path) -> None:
    snapshot = open_snapshot(path.parent)
    assert snapshot.manifest["format"] == 1
    assert snapshot.verify()["items"] > 0
