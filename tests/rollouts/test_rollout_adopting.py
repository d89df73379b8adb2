"""A rollout buffer in a database that was there before: after a restart it goes on."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from postgres_server import PostgresServer

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


def stored_blobs(folder: Path) -> list[bytes]:
    with contextlib.closing(sqlite3.connect(folder / "groups.db")) as database:
        return [data for (data,) in database.execute("select data from recollect_blobs")]


def test_blobs_are_there_again_and_go_with_the_last_group(tmp_path: Path) -> None:
    buffer = opened(tmp_path)
    buffer.put(group("a", blobs={"image": [b"one", b"two"]}), version=0)
    buffer.put(group("b", blobs={"image": [b"two"]}), version=0)
    buffer.put(group("c"), version=0)
    assert sorted(stored_blobs(tmp_path)) == [b"one", b"two"]  # once by content
    buffer.close()

    again = opened(tmp_path)
    assert names(again.take(1)) == ["a"]
    assert stored_blobs(tmp_path) == [b"two"]
    again.put(group("d", blobs={"image": [b"three"]}), version=0)
    taken = again.take(3)
    assert [one.blobs for one in taken] == [{"image": [b"two"]}, {}, {"image": [b"three"]}]
    assert stored_blobs(tmp_path) == []
    assert again.nbytes == 0
    again.close()


def test_blobs_are_there_again_in_a_server(postgres: PostgresServer) -> None:
    url = postgres.schema()
    options: dict[str, Any] = {"order": rc.Fifo(), "staleness": PATIENT}
    buffer = rc.RolloutBuffer(storage=rc.SqlStorage(url), **options).sync
    buffer.put(group("a", blobs={"image": [bytes(range(256)), b""]}), version=0)
    buffer.close()
    again = rc.RolloutBuffer(storage=rc.SqlStorage(url), **options).sync
    again.put(group("b", blobs={"image": [bytes(range(256))]}), version=0)
    taken = again.take(2)
    assert [one.blobs["image"][0] for one in taken] == [bytes(range(256))] * 2
    assert len(again.core.blobs) == again.nbytes == 0
    again.close()


def test_a_database_from_before_there_were_blobs_in_it_is_opened(tmp_path: Path) -> None:
    buffer = opened(tmp_path)
    buffer.put(group("a"), version=0)
    buffer.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "groups.db")) as database:
        database.execute("drop table recollect_blobs")
    again = opened(tmp_path)
    again.put(group("b", blobs={"image": [b"one"]}), version=0)
    assert stored_blobs(tmp_path) == [b"one"]
    again.close()


def test_blobs_that_went_with_their_process_are_told_of(tmp_path: Path) -> None:
    buffer = opened(tmp_path)
    buffer.put(group("a", blobs={"image": [b"..."]}), version=0)
    buffer.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "groups.db")) as database, database:
        database.execute("delete from recollect_blobs")
    with pytest.raises(rc.InvalidValue, match="blobs that this storage does not have"):
        opened(tmp_path)
