"""Shards of rollout buffers: whole groups, with statuses, accounts and blobs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import recollect as rc

PATIENT = rc.Staleness(max_staleness=10_000, max_token_staleness=50)


def make(**options: Any) -> rc.RolloutBuffer:
    rules: dict[str, Any] = {
        "staleness": PATIENT, "order": rc.Fifo(), "seed": 0, "max_uses": 3, "archive": True,
        "tags": {"score": float}, "needs": ("reward",),
    }  # fmt: skip
    return rc.RolloutBuffer(**{**rules, **options})


def fill(buffer: rc.RolloutBuffer, rank: int, count: int) -> None:
    random = np.random.default_rng(rank)
    for n in range(count):
        rollouts = [
            rc.Rollout(
                [1],
                list(range(int(random.integers(0, 6)))),
                finish_reason="stop",
                reward=float(n) if n % 5 else None,
                rollout_id=f"{rank}.{n}.{k}",
                arrays={"ref": random.random(3)} if n % 4 == rank % 4 else {},
                blobs={"image": [b"cat" * 50]} if n % 3 == 0 else {},
                extras={"k": k},
            )
            for k in range(1 + n % 3)
        ]
        group = rc.Group(
            rollouts,
            task="code" if n % 4 == 1 else "math",
            group_id=f"{rank}.{n}",
            extras={"score": n / 20},
            blobs={"prompt": [bytes([rank, n]) * 10]},
        )
        buffer.sync.put(group, version=n)
    buffer.sync.advance(3 + rank)
    if count > 6:
        buffer.sync.sample(3)
        buffer.sync.update([buffer.find(f"{rank}.3")], priority=[9.0 + rank])
        buffer.sync.confirm(buffer.sync.take(2, lease=60).lease)


def groups_of(buffer: rc.RolloutBuffer) -> dict[int, Any]:
    keys = np.sort(np.array(list(buffer.table.counts("key")), np.uint64))
    if not keys.size:
        return {}
    found = buffer.get(keys)
    return {
        int(key): (repr(group), group.status, group.times_used, group.priority, group.deliveries)
        for key, group in zip(keys, found, strict=True)
    }


@pytest.mark.parametrize(("saved", "loaded"), [(1, 3), (3, 2), (2, 5), (4, 1), (3, 3)])
def test_groups_stay_whole_and_keep_everything(saved: int, loaded: int, tmp_path: Path) -> None:
    buffers = [make() for _ in range(saved)]
    for rank, buffer in enumerate(buffers):
        fill(buffer, rank, 12 - 4 * (rank % 3))
        rc.save_shard(tmp_path, buffer, rank, saved, step=4)
    parts = [make() for _ in range(loaded)]
    for rank, part in enumerate(parts):
        rc.load_shards(tmp_path, part, rank, loaded)
    before = {key: group for buffer in buffers for key, group in groups_of(buffer).items()}
    after = {key: group for part in parts for key, group in groups_of(part).items()}
    assert after == before
    assert sum(len(groups_of(part)) for part in parts) == len(before)
    sizes = [len(part) for part in parts]
    if saved != loaded:
        assert max(sizes) - min(sizes) <= 1
        assert {part.train_step for part in parts} == {max(b.train_step for b in buffers)}
    totals: list[Counter[Any]] = []
    for many in (buffers, parts):
        totals.append(Counter())
        for buffer in many:
            for task, account in buffer.accounts().items():
                for name in ("put", "stored", "taken", "expired", "retried", "archived"):
                    totals[-1][task, name] += account[name]
                totals[-1].update({(task, reason): n for reason, n in account["left"].items()})
                assert account["put"] == account["stored"] + sum(account["left"].values())
    assert +totals[0] == +totals[1]
    for part in parts:  # what the groups of a shard refer to is there, and nothing else
        needed = {name for entry in part.core.entries.values() for name in entry.blobs}
        assert set(part.core.blobs.all()) == needed
        for key, group in groups_of(part).items():
            assert part.find(part.get([key])[0].group_id) == key
            assert group


def test_work_goes_on_after_another_number_of_ranks(tmp_path: Path) -> None:
    for rank in range(3):
        buffer = make()
        fill(buffer, rank, 9)
        rc.save_shard(tmp_path, buffer, rank, 3, step=4)
    part = make()
    rc.load_shards(tmp_path, part, 1, 2)
    ready = part.count(status=rc.Status.COMPLETED)
    assert ready
    fill(part, 7, 8)  # annotations, takes and confirmations of new groups
    lacking = [g for g in part.get(list(part.core.entries)) if g[0].reward is None]
    assert lacking  # groups that wait for a reward still do
    part.sync.give_back(part.sync.take(3, lease=60).lease)
    assert len(part.sync.take(3)) == 3
