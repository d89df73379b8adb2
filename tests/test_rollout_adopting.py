"""A rollout buffer in a database that was there before: after a restart it goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import recollect as rc

PATIENT = rc.Staleness(max_staleness=10_000)


def opened(folder: Path, **options: Any) -> Any:
    storage = rc.SqlStorage(f"sqlite:///{folder}/groups.db")
    return rc.RolloutBuffer(storage=storage, order=rc.Fifo(), staleness=PATIENT, **options).sync


def group(name: str, reward: float | None = 1.0, **options: Any) -> rc.Group:
    rollouts = [rc.Rollout([1], [2, 3], finish_reason="stop", reward=reward) for _ in range(2)]
    return rc.Group(rollouts, task="math", group_id=name, **options)


def names(groups: Any) -> list[str]:
    return [one.group_id for one in groups]


def test_after_a_restart_the_groups_are_there(tmp_path: Path) -> None:
    clock = rc.ManualClock(0.0)
    buffer = opened(tmp_path, clock=clock)
    keys = [buffer.put(group(name), version=3) for name in "abcd"]
    buffer.confirm(buffer.take_batch({"math": 1}, lease=True).lease)
    buffer.take_batch({"math": 1}, lease=60)
    buffer.close()

    again = opened(tmp_path, clock=clock)
    assert [again.find(name) for name in "abcd"] == [None, *keys[1:]]
    assert again.count("math") == 2
    assert again.accounts()["math"]["put"] == 3
    with pytest.raises(rc.InvalidValue, match="leased"):
        again.put(group("b"), version=4)
    clock.advance(61)
    taken = again.take(9)
    assert names(taken) == ["b", "c", "d"]
    assert taken[0].redelivered
    assert taken.info.version.tolist() == [3, 3, 3]
    assert len(again) == 0
    again.close()


def test_cells_that_groups_lack_can_still_be_claimed(tmp_path: Path) -> None:
    buffer = opened(tmp_path, needs=("reward",))
    buffer.put(group("a", None), version=0)
    buffer.put(group("b"), version=0)
    buffer.close()
    again = opened(tmp_path, needs=("reward",))
    assert again.is_ready({"math": 1})
    assert not again.is_ready({"math": 2})
    claimed = again.claim(8, lacks="reward")
    assert names(claimed) == ["a"]
    ids = [one.rollout_id for one in claimed[0]]
    assert again.annotate(ids, [0, 0], reward=np.array([1.0, 0.0])).all()
    assert names(again.take_batch({"math": 2}).groups["math"]) == ["a", "b"]
    again.close()


def test_groups_that_need_what_went_with_their_process_are_refused(tmp_path: Path) -> None:
    buffer = opened(tmp_path)
    buffer.put(group("a", blobs={"image": [b"..."]}), version=0)
    buffer.close()
    with pytest.raises(rc.InvalidValue, match="blobs, which are not kept in a storage"):
        opened(tmp_path)
