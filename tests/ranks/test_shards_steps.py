"""Shards of replay buffers: whole episodes, in other rings."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from replay_starts import start_keys
from shard_contents import episodes_of

import recollect as rc
from recollect.replay.persistence import StepsMember

RANKS = range(1, 10)


def make(capacity: int = 1000, envs: int = 2, **options: Any) -> rc.ReplayBuffer:
    rules = {"sampler": rc.Prioritized(alpha=0.7), "seed": 0, **options}
    return rc.ReplayBuffer(capacity, num_envs=envs, **rules)


def fill(buffer: rc.ReplayBuffer, rank: int, random: np.random.Generator, **extra: Any) -> None:
    """Episodes of all kinds: with and without a last observation, open, cut by the ring."""
    at_next = buffer.reward_at == "next"
    for env in range(buffer.num_envs):
        begun = True
        for step in range(int(random.integers(0, 45))):
            ends = random.random() < 0.2 and not (at_next and begun)
            obs = np.array([rank, env, step], np.float32)
            final = obs + 1 if ends and not at_next and random.random() < 0.5 else None
            buffer.add(
                env_id=env, obs=obs, action=int(random.integers(4)), reward=float(random.random()),
                where={"env_id": np.int16(env)}, final_obs=final,
                terminated=bool(ends and step % 2), truncated=bool(ends and not step % 2), **extra,
            )  # fmt: skip
            begun = ends
    keys = start_keys(buffer)
    if keys.size:
        buffer.update_priorities(keys, random.random(keys.size) + 0.01)
        buffer.sample(7)


def contents(buffers: list[rc.ReplayBuffer]) -> Counter[Any]:
    """All episodes; that one is open shows in no row."""
    found: Counter[Any] = Counter()
    for buffer in buffers:
        for _, rows, cut, _ in episodes_of(buffer):
            cells = tuple((cells, weight) for cells, _, weight in rows)
            found[cells, cut] += 1
    return found


def starts(buffers: list[rc.ReplayBuffer], **kind: Any) -> Counter[Any]:
    """The steps that may begin a transition or a sequence, by what is stored there."""
    found: Counter[Any] = Counter()
    for buffer in buffers:
        keys = start_keys(buffer, **kind)
        table = buffer.to_arrow().to_pydict() if len(buffer) else {"env_id": []}
        place = {
            (env << 44) | step: at
            for at, (env, step) in enumerate(
                zip(table["env_id"], table.get("step", []), strict=True)
            )
        }
        found.update(tuple(table["obs"][place[key]]) for key in keys.tolist())
    return found


@pytest.mark.parametrize("saved", RANKS)
def test_every_episode_is_in_one_shard_with_every_row(saved: int, tmp_path: Path) -> None:
    random = np.random.default_rng(saved)
    at = "next" if saved % 3 == 0 else "this"
    buffers = [make(48, reward_at=at) for _ in range(saved)]
    for rank, buffer in enumerate(buffers):
        fill(buffer, rank, random)
        rc.save_shard(tmp_path, buffer, rank, saved, step=3)
    before = contents(buffers)
    legal = starts(buffers)
    runs = {mode: starts(buffers, length=3, across_episodes=mode) for mode in ("stop", "pad")}
    largest = max(
        (len(rows) for buffer in buffers for _, rows, _, _ in episodes_of(buffer)), default=0
    )
    lacking = [
        len(rows) for b in buffers for _, rows, cut, over in episodes_of(b) if cut or not over
    ]
    for loaded in RANKS:
        parts = [make(reward_at=at) for _ in range(loaded)]
        done = [rc.load_shards(tmp_path, p, rank, loaded) for rank, p in enumerate(parts)]
        assert contents(parts) == before
        assert starts(parts) == legal
        assert starts(parts, length=3) == runs["stop"]
        assert {one.incomplete["steps"]["episodes"] for one in done} == {len(lacking)}
        stats = [part.stats() for part in parts]
        counts = [buffer.stats() for buffer in buffers]
        for name in ("inserts", "samples", "size", "rows"):
            assert sum(one[name] for one in stats) == sum(one[name] for one in counts)
        assert all(one["inserts"] - one["removals"] == one["size"] for one in stats)
        for part in parts:
            if loaded != saved and len(part):  # the data says what the ring says
                rows = part.to_arrow().to_pandas()
                rows = rows[~rows["final"]]
                assert (rows["where.env_id"] == rows["env_id"]).all()
            check_priorities(part)
        if loaded == saved:
            assert [episodes_of(part) for part in parts] == [episodes_of(b) for b in buffers]
            continue
        sizes = [one["rows"] for one in stats]
        assert max(sizes) - min(sizes) <= largest


def check_priorities(part: rc.ReplayBuffer) -> None:
    """Trees, probabilities and the start of new steps are those of the priorities."""
    keys = start_keys(part)
    if not keys.size:
        return
    weights = {}
    rings = part.core.rings
    for key in keys.tolist():
        env, row = key >> 44, key & ((1 << 44) - 1)
        weights[key] = rings.priority[env * rings.ring + row % rings.ring] ** 0.7
    batch = part.sample(5)
    expected = np.array([weights[key] for key in batch.info.keys.tolist()])
    expected /= sum(weights.values())
    np.testing.assert_allclose(batch.info.probability, expected, rtol=1e-9)
    np.testing.assert_allclose(batch.info.weights, (expected / expected.min()) ** -0.4, rtol=1e-9)
    assert rings.highest_priority() == rings.priority.max()


def four_ranks(path: Path) -> list[rc.ReplayBuffer]:
    """Each has an episode without head, a whole one, and one that is not over."""
    buffers = []
    for rank in range(4):
        buffer = rc.ReplayBuffer(8, seed=0)
        for step in range(12):
            buffer.add(
                obs=[100.0 * rank + step],
                reward=1.0,
                terminated=step in (5, 8),
                first=step in (0, 6, 9),
            )
        rc.save_shard(path, buffer, rank, 4, step=1)
        buffers.append(buffer)
    return buffers


def test_what_was_cut_stays_cut_between_other_episodes(tmp_path: Path) -> None:
    four_ranks(tmp_path)
    part = rc.ReplayBuffer(100, seed=0)
    done = rc.load_shards(tmp_path, part, 0, 1)
    assert done.incomplete == {"steps": {"episodes": 8, "steps": 20}}
    episodes = part.episodes()
    assert episodes["length"].tolist() == [2] * 4 + [3] * 8
    assert episodes["cut"].tolist() == [True] * 4 + [False] * 8
    for _ in range(20):  # nothing runs from one episode into another
        batch = part.sample_sequences(8, length=2)
        assert (np.diff(batch["obs"][..., 0], axis=1) == 1).all()
        batch = part.sample(8)
        steps, following = batch["obs"][:, 0] % 100, batch["next_obs"][:, 0]
        assert not (steps == 11).any()  # what came after it is not known
        ended = batch["discount"] == 0
        assert (following[~ended] == batch["obs"][~ended, 0] + 1).all()
        assert set(steps[ended].tolist()) <= {5.0, 8.0}
    key = part.add(obs=[7.0], reward=1.0)  # the next step begins an episode
    assert part.episodes()["start"][-1] == key
    drawn = part.sample_episodes(50)["obs"][:, 0] % 100
    assert not set(drawn.tolist()) & {4.0, 5.0}  # an episode without its head is not whole


def test_incomplete_episodes_can_be_dropped(tmp_path: Path) -> None:
    four_ranks(tmp_path)
    for loaded in (1, 2, 4):
        parts = [rc.ReplayBuffer(100) for _ in range(loaded)]
        for rank, part in enumerate(parts):
            done = rc.load_shards(tmp_path, part, rank, loaded, incomplete="drop")
            assert done.dropped
            assert done.incomplete == {"steps": {"episodes": 8, "steps": 20}}
            episodes = part.episodes()
            assert not episodes["cut"].any()
            assert episodes["complete"].all()
        assert sum(len(part) for part in parts) == 4 * 3


def test_frames_before_a_cut_are_not_made_up(tmp_path: Path) -> None:
    for rank in range(3):
        buffer = rc.ReplayBuffer(8, frame_stack=3, seed=0)
        for step in range(12):
            buffer.add(
                obs=[100.0 * rank + step], reward=1.0, terminated=step == 11, first=step == 0
            )
        rc.save_shard(tmp_path, buffer, rank, 3, step=1)
    part = rc.ReplayBuffer(100, frame_stack=3, seed=0)
    rc.load_shards(tmp_path, part, 0, 1)
    for _ in range(10):
        frames = part.sample(8)["obs"][..., 0]
        assert (np.diff(frames, axis=1) == 1).all()
        assert (frames[:, 0] % 100 >= 4).all()
    part.extend(obs=np.zeros((95, 1)), reward=np.ones(95))  # until a head is overwritten again
    legal = start_keys(part)
    fresh = rc.ReplayBuffer(100, frame_stack=3)
    StepsMember(fresh.core).restore(*_captured(part))
    assert start_keys(fresh).tolist() == legal.tolist()  # the index is what a scan finds


def _captured(buffer: rc.ReplayBuffer) -> tuple[Any, ...]:
    from recollect.storage.memory.capture import saved_of

    member = StepsMember(buffer.core)
    captured = member.capture()
    member.finish(captured)
    saved = saved_of(captured.items)
    numbers = {**saved.numbers, "kinds": [], "starts": []}
    rows = captured.items.read(saved.items["slot"])
    return captured.entry, type(saved)(numbers, saved.items, {}), iter([rows]), {}


def test_rings_that_are_too_small_raise_or_evict(tmp_path: Path) -> None:
    four_ranks(tmp_path)
    small = rc.ReplayBuffer(20)
    with pytest.raises(
        rc.SnapshotError, match=r"has 32 rows, and there is room for 20.*capacity 32"
    ):
        rc.load_shards(tmp_path, small, 0, 1)
    assert len(small) == 0
    done = rc.load_shards(tmp_path, small, 0, 1, overflow="evict")
    assert done.evicted == {"steps": 12}
    assert len(small) == 20
    assert small.stats()["inserts"] - small.stats()["removals"] == 20


def test_other_numbers_of_environments(tmp_path: Path) -> None:
    four_ranks(tmp_path)
    same = rc.ReplayBuffer(16, num_envs=2)  # as many ranks, other rings
    rc.load_shards(tmp_path, same, 3, 4)
    assert same.episodes()["env"].tolist() == [0, 0, 1]
    assert set(same.to_arrow()["obs"].to_pylist()[0]) == {304.0}
    whole = rc.ReplayBuffer(32, num_envs=4)  # each ring keeps one environment: nothing is moved
    rc.load_shards(tmp_path, whole, 0, 1)
    first = [rows for _, rows, _, _ in episodes_of(whole)]
    assert len(first) == 12
    assert [int(env) for env in whole.episodes()["env"]] == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3


def test_as_many_ranks_go_on_exactly_where_they_were(tmp_path: Path) -> None:
    buffer = make(48)
    fill(buffer, 0, np.random.default_rng(1))
    rc.save_shard(tmp_path, buffer, 0, 2, step=1)
    rc.save_shard(tmp_path, make(48), 1, 2, step=1)
    again = make(48)
    rc.load_shards(tmp_path, again, 0, 2)
    for _ in range(5):
        assert again.sample(9).info.keys.tolist() == buffer.sample(9).info.keys.tolist()
    other = make(48)
    rc.load_shards(tmp_path, other, 1, 2)
    assert len(other) == 0
