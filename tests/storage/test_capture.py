"""What a capture is made with, beside slow and obvious ways to the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import recollect as rc
from recollect.kernels import layout
from recollect.storage.memory import capture, slot_runs
from recollect.storage.memory.storage import MemoryStorage


def words(storage: MemoryStorage) -> Any:
    """The records as they count: what is leased was given back, and not sampled that once."""
    slots = storage.items.now[layout.SLOTS]
    records = storage.items.records[:slots].copy()
    leased = records.view(np.int8)[:, layout.STATE] == layout.LEASED
    records.view(np.int32)[leased, layout.TIMES] -= 1
    records.view(np.int8)[leased, layout.STATE] = layout.VISIBLE
    return records


@pytest.mark.parametrize("seed", range(4))
def test_comparing_finds_every_record_that_is_another(seed: int) -> None:
    rng = np.random.default_rng(seed)
    table = rc.Table("t", capacity=300, sampler=rc.Prioritized(), seed=seed)
    storage = table.core.storage
    assert isinstance(storage, MemoryStorage)
    before = np.zeros((0, 4), np.int64)
    for _ in range(12):
        for verb in rng.choice(["insert", "update", "delete", "sample", "lease"], 3):
            keys = np.array(list(table.counts("key")), np.uint64)
            if verb == "insert" or keys.size < 20:
                table.insert({"x": rng.random(int(rng.integers(1, 90)))})
            elif verb == "update":
                some = rng.choice(keys, 3)
                table.update(some, priority=rng.random(3) + 0.1)
            elif verb == "delete":
                table.delete(rng.choice(keys, 2))
            elif verb == "sample":
                table.sample(5)
            else:
                table.take(2, lease=60)
        pages = capture.Pages()
        pages.touch(storage, before)
        captured = capture.capture(storage, pages)
        now = words(storage)
        old = np.concatenate([before, np.zeros((len(now) - len(before), 4), np.int64)])
        assert captured.changed is not None
        assert captured.changed.tolist() == np.flatnonzero((now != old).any(axis=1)).tolist()
        capture.finish(captured)
        assert captured.records is not None
        assert (captured.records == now).all()
        assert captured.slots.size == captured.count == len(table)
        captured.undo()
        assert (captured.records == old).all()
        before = now


@pytest.mark.parametrize("chunk", [1, 4, 32])
def test_runs_and_rises_say_what_numpy_says(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_runs, "CHUNK", chunk)
    monkeypatch.setattr(slot_runs, "FEW_RUNS", 0)
    rng = np.random.default_rng(chunk)
    for _ in range(300):
        n = int(rng.integers(0, 40))
        numbers = np.cumsum(rng.integers(-1 if rng.random() < 0.3 else 0, 3, n))
        assert slot_runs.rises(numbers) == bool((np.diff(numbers) >= 0).all())
        places = rng.permutation(60)[:n] if rng.random() < 0.5 else np.arange(n) + 7
        values, found = rng.integers(1, 9, n), np.zeros(80, np.int64)
        runs = slot_runs.SlotRuns(places.astype(np.int64))
        runs.put(found, values)
        expected = np.zeros(80, np.int64)
        expected[places] = values
        assert (found == expected).all()
        assert (runs.take(found) == values).all()
