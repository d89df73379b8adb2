"""Saving and loading a replay buffer: what follows is what would have followed without it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from replay_starts import start_keys

import recollect as rc

SAMPLERS: dict[str, Callable[[], rc.Selector]] = {
    "uniform": rc.Uniform,
    "prioritized": lambda: rc.Prioritized(beta=rc.Linear(0.4, 1.0, 40)),
    "table-normalized": lambda: rc.Prioritized(normalize="table", stratified=False),
}


def made(sampler: str = "uniform", **options: Any) -> rc.ReplayBuffer:
    options = {"num_envs": 3, "seed": 5, "n_step": 2, "frame_stack": 2, **options}
    return rc.ReplayBuffer(options.pop("capacity", 90), sampler=SAMPLERS[sampler](), **options)


def use(buffer: rc.ReplayBuffer, seed: int, calls: int) -> list[Any]:
    """Random calls of every kind; returns what they gave."""
    rng = np.random.default_rng(seed)
    seen: list[Any] = []
    for _ in range(calls):
        ends = rng.random(3) < 0.15
        terminated = ends & (rng.random(3) < 0.5)
        keys = buffer.extend(
            obs=rng.random((3, 4)).astype(np.float32),
            action=rng.integers(0, 3, 3),
            reward=rng.random(3),
            terminated=terminated,
            truncated=ends & ~terminated,
            final_obs=rng.random((3, 4)).astype(np.float32),
            has_final=ends & (rng.random(3) < 0.7),
        )
        seen.append(keys.tolist())
        if buffer.stats()["inserts"] < 12:
            continue
        batch = buffer.sample(5)
        seen += [batch.info.keys.tolist(), batch["next_obs"].tolist(), batch.info.weights.tolist()]
        buffer.update_priorities(batch.info.keys, np.where(rng.random(5) < 0.2, 0, rng.random(5)))
        if start_keys(buffer, 3).size:
            seen.append(buffer.sample_sequences(2, 3)["obs"].tolist())
        if len(buffer.episodes()["length"]) > 6:
            seen.append(buffer.sample_episodes(1)["reward"].tolist())
    return seen


def state(buffer: rc.ReplayBuffer) -> Any:
    episodes = {name: column.tolist() for name, column in buffer.episodes().items()}
    rows = buffer.to_arrow().to_pylist() if buffer.columns else None
    return buffer.stats(), episodes, rows


@pytest.mark.parametrize("recent", [None, (12, 0.5)])
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("calls", [0, 2, 20, 80])
def test_calls_after_a_load_return_what_they_would_have_returned(
    sampler: str, recent: Any, calls: int, tmp_path: Path
) -> None:
    if recent and sampler != "uniform":
        recent = None
    buffer, resumed = made(sampler, recent=recent), made(sampler, recent=recent, seed=99)
    use(buffer, 1, calls)
    buffer.save(tmp_path / "s")
    resumed.load(tmp_path / "s")
    assert state(buffer) == state(resumed)
    assert use(buffer, 2, 40) == use(resumed, 2, 40)


def test_later_saves_load_the_same(tmp_path: Path) -> None:
    """Each shares segments with those before, after wrap-around too."""
    buffer = made("prioritized", capacity=300)
    for number in range(12):
        use(buffer, number, 15)
        buffer.save(tmp_path / f"step-{number}", step=number)
        resumed = made("prioritized", capacity=300)
        assert resumed.load(tmp_path).step == number
        assert state(buffer) == state(resumed)
        buffer = resumed if number % 3 == 0 else buffer  # a load goes on with the same segments


def fed(capacity: int) -> rc.ReplayBuffer:
    """A buffer that was given steps and nothing else."""
    buffer, rng = made("prioritized", capacity=capacity), np.random.default_rng(3)
    for _ in range(60):
        ends = rng.random(3) < 0.15
        terminated = ends & (rng.random(3) < 0.5)
        buffer.extend(
            obs=rng.random((3, 4)).astype(np.float32),
            reward=rng.random(3),
            terminated=terminated,
            truncated=ends & ~terminated,
            final_obs=rng.random((3, 4)).astype(np.float32),
            has_final=ends & (rng.random(3) < 0.7),
        )
    return buffer


@pytest.mark.parametrize("capacity", [3, 30, 33, 60, 89])
def test_a_smaller_buffer_holds_what_it_would_have_held(capacity: int, tmp_path: Path) -> None:
    buffer, oracle = fed(90), fed(capacity)
    buffer.save(tmp_path / "s")
    other = made("prioritized", capacity=capacity)
    loaded = other.load(tmp_path / "s")
    assert loaded.evicted.get("steps", 0) == len(buffer) - len(oracle)
    assert state(other)[1:] == state(oracle)[1:]
    assert start_keys(other).tolist() == start_keys(oracle).tolist()
    assert other.stats()["rows"] == oracle.stats()["rows"]
    stats = other.stats()
    assert stats["inserts"] - stats["removals"] == len(other)


def test_a_larger_buffer_has_room_for_more(tmp_path: Path) -> None:
    buffer, other = made(), made(capacity=200)
    use(buffer, 1, 60)
    buffer.save(tmp_path / "s")
    assert other.load(tmp_path / "s").evicted == {}
    assert state(other)[1:] == state(buffer)[1:]
    assert start_keys(other).tolist() == start_keys(buffer).tolist()
    use(other, 4, 60)
    assert len(other) > 90


def test_prefetched_batches_are_drained_and_the_stream_goes_on(tmp_path: Path) -> None:
    buffer = made()
    use(buffer, 1, 30)
    buffer.save(tmp_path / "start")
    plain = made()
    plain.load(tmp_path / "start")
    expected = [plain.sample(4).info.keys.tolist() for _ in range(12)]
    got = []
    with buffer.batches(4, prefetch=3) as batches:
        got += [next(batches).info.keys.tolist() for _ in range(5)]
        got += [batch.info.keys.tolist() for batch in batches.drain()]
        buffer.save(tmp_path / "middle")
    resumed = made()
    resumed.load(tmp_path / "middle")
    with resumed.batches(4, prefetch=2) as batches:
        got += [next(batches).info.keys.tolist() for _ in range(12 - len(got))]
    assert got == expected


def test_only_new_rows_are_written_again(tmp_path: Path) -> None:
    buffer = rc.ReplayBuffer(40_000, num_envs=8)
    rng = np.random.default_rng(0)
    obs = rng.random((8, 500, 32))  # 10 MB

    def extend(chunk: int) -> None:
        for env in range(8):
            buffer.extend(env_ids=env, obs=obs[env, :chunk], reward=np.zeros(chunk))

    for _ in range(12):  # rings go round
        extend(500)
    first = buffer.save(tmp_path / "a")
    extend(50)  # one in a hundred
    second = buffer.save(tmp_path / "b")
    assert first.bytes_written > 10_000_000
    assert second.bytes_written < 0.03 * first.bytes_written
    resumed = rc.ReplayBuffer(40_000, num_envs=8)
    resumed.load(tmp_path / "b")
    assert resumed.to_arrow().equals(buffer.to_arrow())


def test_a_buffer_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    buffer = made()
    use(buffer, 1, 5)
    buffer.save(tmp_path / "s")
    with pytest.raises(rc.SnapshotError, match="not empty"):
        buffer.load(tmp_path / "s")
    with pytest.raises(rc.SnapshotError, match="num_envs"):
        made(num_envs=2).load(tmp_path / "s")
    with pytest.raises(rc.SnapshotError, match="reward_at"):
        made(reward_at="next").load(tmp_path / "s")
    signature = {"obs": rc.Column("float64", (4,)), "reward": rc.Column("float64")}
    with pytest.raises(rc.SnapshotError, match="columns"):
        made(signature=signature).load(tmp_path / "s")
    with pytest.raises(rc.SnapshotError, match="saved as a replay buffer and this is a table"):
        rc.Store([rc.Table("steps", capacity=9)]).load(tmp_path / "s")
