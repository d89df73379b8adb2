"""Weights by a field in memory: what is saved of them, and what a file may bring."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import recollect as rc
from recollect.kernels import layout
from recollect.storage.memory.indexes import IndexKind

PATIENT = rc.Staleness(max_staleness=100)


def test_a_weight_by_priority_is_saved_as_it_always_was() -> None:
    """Files from before other fields could weigh say `seq`, which no item is weighed by."""
    kind = IndexKind.of(rc.Prioritized(), staying=True)
    assert (kind.by, kind.saved()["by"]) == ("priority", "seq")
    assert IndexKind.of_saved(kind.saved()) == kind
    order = IndexKind.of(rc.Fifo(), staying=True)
    assert order.saved() == asdict(order)
    assert IndexKind.of_saved(order.saved()) == order
    other = IndexKind.of(rc.Weighted("score"), staying=True)
    assert IndexKind.of_saved(other.saved()) == other != kind


def test_selectors_that_weigh_alike_share_one_index() -> None:
    table = rc.Table("t", capacity=9, sampler=rc.Prioritized(alpha=1.0), seed=0)
    table.remover = rc.Weighted("priority")
    table.insert({"x": np.arange(9)}, priority=np.arange(9.0))
    table.sample(2)
    table.insert({"x": [9]})
    kinds = [index.kind for index in table.core.storage.index_set.indexes]  # type: ignore[attr-defined]
    assert [kind.kind for kind in kinds] == [layout.WEIGHT]


def test_values_that_a_file_brings_weigh_something_or_nothing(tmp_path: Path) -> None:
    """A table that weighs by nothing takes any value, and another one may load what it saved."""
    scores = [-1.0, np.inf, 2.0, None, -np.inf, 0.0, 1e300]
    tags = {"score": float}
    plain = rc.Table("t", capacity=9, tags=tags)
    plain.insert({"x": np.arange(7)}, score=scores)
    rc.Store([plain]).save(tmp_path / "s")
    table = rc.Table("t", capacity=9, tags=tags, sampler=rc.Weighted("score", beta=0.0), seed=0)
    rc.Store([table]).load(tmp_path / "s")
    assert set(table.sample(200)["x"].tolist()) <= {1, 2, 6}
    assert np.isfinite(table.sample(20).info.probability).all()
    different = table.sample(7, replace=False)["x"].tolist()
    assert set(different[:3]) == {1, 2, 6}


def test_values_that_a_database_has_do_too(tmp_path: Path) -> None:
    """A table that is opened again may weigh by what it took when it weighed by nothing."""
    url = f"sqlite:///{tmp_path / 'a.db'}"
    options: dict[str, Any] = {"capacity": 9, "tags": {"score": float}}
    with rc.Table("t", storage=rc.SqlStorage(url), **options) as plain:
        plain.insert({"x": np.arange(5)}, score=[-1.0, np.inf, 2.0, None, 0.0])
    for part in (rc.Weighted("score"), rc.Mixed([(rc.Weighted("score"), 1), (rc.Lifo(), 0)])):
        storage = rc.SqlStorage(url)
        with rc.Table("t", storage=storage, sampler=part, seed=0, **options) as table:
            batch = table.sample(50)
            assert set(batch["x"].tolist()) <= {1, 2}
            assert np.isfinite(batch.info.probability).all()
            assert set(table.sample(5, replace=False)["x"][:2].tolist()) == {1, 2}


@pytest.mark.parametrize("capacity_bytes", [None, 1 << 20], ids=["direct", "encoded"])
def test_groups_are_drawn_by_a_tag(capacity_bytes: int | None) -> None:
    """By the short way of a put, and by the long one."""
    buffer = rc.RolloutBuffer(
        order=rc.Weighted("score"), tags={"score": float}, staleness=PATIENT, max_uses=0, seed=0,
        capacity_bytes=capacity_bytes,
    ).sync  # fmt: skip

    def group(name: str, score: Any) -> rc.Group:
        rollout = rc.Rollout(response_ids=[1, 2], finish_reason="stop", rollout_id=name)
        return rc.Group([rollout], task="t", group_id=name, extras={"score": score})

    keys = {name: buffer.put(group(name, s)) for name, s in (("a", 0.0), ("b", 3.0), ("c", None))}
    with pytest.raises(rc.InvalidValue, match="score: items are weighed by it"):
        buffer.put(group("d", -1.0))
    with pytest.raises(rc.InvalidValue, match="score: items are weighed by it"):
        buffer.update([keys["a"]], score=-1.0)
    assert buffer.sample(1)[0].group_id == "b"
    buffer.update([keys["a"], keys["b"]], score=[1.0, 0.0])
    assert buffer.sample(1)[0].group_id == "a"
