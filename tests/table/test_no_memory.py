"""Where memory ends: a refused call changes nothing, and what is stored stays as it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import recollect as rc
from recollect.kernels import layout
from recollect.storage import buffers


class Scarce:
    """Large buffers, up to so many."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._fresh = buffers._fresh
        self.left = 1 << 30
        monkeypatch.setattr(buffers, "_fresh", self.fresh)

    def fresh(self, size: int) -> Any:
        if self.left <= 0:
            raise MemoryError(f"no {size} bytes")
        self.left -= 1
        return self._fresh(size)


class FewSegments:
    """Segments, up to so many."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._bytes = buffers.BufferPool.bytes
        self.left = 1 << 30
        monkeypatch.setattr(buffers.BufferPool, "bytes", lambda pool, size: self.take(pool, size))

    def take(self, pool: buffers.BufferPool, size: int) -> Any:
        if self.left <= 0:
            raise MemoryError(f"no {size} bytes")
        self.left -= 1
        return self._bytes(pool, size)


@pytest.fixture
def segments(monkeypatch: pytest.MonkeyPatch) -> FewSegments:
    return FewSegments(monkeypatch)


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Scarce:
    return Scarce(monkeypatch)


def columns(ragged: bool, first: int, count: int) -> dict[str, Any]:
    """Rows that say which they are."""
    numbers = np.arange(first, first + count)
    cells = np.repeat((numbers % 251).astype(np.uint8)[:, None], 2048, 1)
    if ragged:
        return {"n": numbers, "x": rc.Ragged.from_list(list(cells))}
    return {"n": numbers, "x": cells}


def check(table: rc.Table, keys: np.ndarray) -> None:
    """Each item is whole, and the counts of segments are those of what is stored."""
    batch = table.get(keys)
    for number, cell in zip(batch["n"], batch["x"], strict=True):
        assert (np.asarray(cell) == number % 251).all()
    storage: Any = table.core.storage
    rows, now = storage.stores.rows, storage.items.now
    assert now[layout.A_SEGMENT_ROWS] == rows.live_rows.ctypes.data
    assert now[layout.A_SEGMENT_SEALED] == rows.sealed.ctypes.data
    assert rows.live_rows.sum() == keys.size


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("allowed", [0, 1, 2])
def test_an_insert_without_memory_changes_nothing(
    segments: FewSegments, ragged: bool, allowed: int
) -> None:
    """However many segments the batch had filled by then, and though their counts have moved."""
    table = rc.Table("t", capacity=100_000)
    keys = np.zeros(0, np.uint64)
    storage: Any = table.core.storage
    while storage.stores.rows is None or len(storage.stores.rows._segments) % 16 != 15:
        keys = np.append(keys, table.insert(columns(ragged, keys.size, 100)))
    before = storage.stores.rows.live_rows.size
    segments.left = allowed
    with pytest.raises(MemoryError):
        table.insert(columns(ragged, keys.size, 14_000))
    segments.left = 1 << 30
    assert (storage.stores.rows.live_rows.size > before) == (allowed == 2)
    assert len(table) == keys.size
    check(table, keys)
    assert table.delete(keys[:500]) == 500
    check(table, keys[500:])
    more = table.insert(columns(ragged, 5, 3000))
    check(table, np.append(keys[500:], more))


def test_slots_that_could_not_be_made_are_made_by_the_next_insert(memory: Scarce) -> None:
    """Whichever of the arrays by slot was the first that there was no memory for."""
    for allowed in range(40):
        memory.left = 1 << 30
        table = rc.Table("t", capacity=10**6, sampler=rc.Prioritized(), tags={"tag": float})
        keys = table.insert({"n": np.arange(300_000)}, tag=1.0, task="a")
        memory.left = allowed
        try:
            more = table.insert({"n": np.arange(300_000, 700_000)}, tag=2.0)
        except MemoryError:
            memory.left = 1 << 30
            assert len(table) == keys.size
            assert table.sample(100)["n"].max() < 300_000
            table.update(keys[:1000], priority=0.5)
            more = table.insert({"n": np.arange(300_000, 700_000)}, tag=2.0)
            failed = True
        else:
            failed = False
            memory.left = 1 << 30
        assert table.get(np.append(keys, more))["n"].tolist() == list(range(700_000))
        assert table.count({"tag": 2.0}) == 400_000
        assert table.sample(1000).info.priority.min() >= 0.5
        if not failed:
            break
    assert not failed
    assert allowed > 3


def test_a_full_table_without_memory_keeps_what_it_has(memory: Scarce) -> None:
    table = rc.Table("t", capacity=3000)
    keys = table.insert(columns(False, 0, 3000))
    memory.left = 0
    refused = False
    for first in range(3000, 40_000, 700):
        try:
            new = table.insert(columns(False, first, 700))
        except MemoryError:
            refused = True
            break
        keys = np.append(keys[700:], new)
    memory.left = 1 << 30
    assert refused
    assert len(table) == 3000
    check(table, keys)


def group(name: str, size: int = 300_000) -> rc.Group:
    rollout = rc.Rollout([1], np.zeros(size, np.int32), finish_reason="stop", rollout_id=name)
    return rc.Group([rollout], task="m", group_id=name)


def test_a_lease_whose_batch_could_not_be_copied_is_given_back(memory: Scarce) -> None:
    buffer = rc.RolloutBuffer(capacity=8).sync
    buffer.put(group("g"), version=0)
    memory.left = 0
    with pytest.raises(MemoryError):
        buffer.take_batch({"m": 1}, timeout=0, lease=True)
    memory.left = 1 << 30
    assert buffer.stats()["leases"] == buffer.stats()["leased"] == 0
    assert buffer.annotate(["r"], 0, reward=[2.0]).tolist() == [False]
    assert buffer.annotate(["g"], 0, reward=[2.0]).tolist() == [True]
    assert len(buffer.take_batch({"m": 1}, timeout=0)) == 1
    assert buffer.accounts()["m"]["stored"] == 0


def test_a_batch_that_could_not_be_copied_is_taken_and_leaves_no_ghost(memory: Scarce) -> None:
    buffer = rc.RolloutBuffer(capacity=8).sync
    buffer.put(group("g"), version=0)
    memory.left = 0
    with pytest.raises(MemoryError):
        buffer.take_batch({"m": 1}, timeout=0)
    memory.left = 1 << 30
    assert len(buffer) == 0
    buffer.put(group("g"), version=0)  # its id is free again
    assert buffer.annotate(["g"], 0, reward=[2.0]).tolist() == [True]
    assert len(buffer.take_batch({"m": 1}, timeout=0)) == 1


def test_a_table_gives_a_lease_back_whose_items_could_not_be_copied(memory: Scarce) -> None:
    table = rc.Table("t", capacity=10, sampler=rc.Fifo())
    table.insert({"x": np.zeros((2, 2 << 20), np.uint8)})
    memory.left = 0
    with pytest.raises(MemoryError):
        table.take(2, lease=60)
    memory.left = 1 << 30
    assert table.stats()["leases"] == 0
    assert table.take(2, timeout=0).info.deliveries.tolist() == [2, 2]


def test_annotations_find_their_rollouts_after_an_interrupt(monkeypatch: Any) -> None:
    buffer = rc.RolloutBuffer(capacity=16, needs=["reward"]).sync
    buffer.put(group("r", 3), version=0)
    storage: Any = buffer.core.storage
    real = storage.get

    def interrupted(*_: Any) -> Any:
        monkeypatch.setattr(storage, "get", real)
        raise KeyboardInterrupt

    monkeypatch.setattr(storage, "get", interrupted)
    with pytest.raises(KeyboardInterrupt):
        buffer.annotate(["r"], 0, reward=[1.0])
    assert buffer.annotate(["r"], 0, reward=[1.0]).tolist() == [True]
