"""Makes the snapshots of format 1 in this folder; run once, when the format was version 1.

    python tests/durability/saved/format1/make.py

Later versions of Recollect must read these files as they are, so they are never made again.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

import recollect as rc

HERE = Path(__file__).parent


def store() -> rc.Store:
    table = rc.Table(
        "groups",
        capacity=12,
        sampler=rc.Prioritized(),
        tags={"score": float, "level": int, "hard": bool, "source": str},
        partition_by=("task",),
        seed=7,
    )
    queue = rc.Table.queue("queue", 8, seed=7)
    return rc.Store([table, queue, rc.Table("scratch", capacity=3, checkpoint=False)])


def steps() -> rc.ReplayBuffer:
    return rc.ReplayBuffer(40, num_envs=2, sampler=rc.Prioritized(), n_step=2, seed=7)


def rollouts() -> rc.RolloutBuffer:
    return rc.RolloutBuffer(staleness=rc.Staleness(max_staleness=100), seed=7, max_uses=2)


def fill(tables: rc.Store, first: int, count: int) -> None:
    rows = np.arange(first, first + 2 * count)
    keys = tables["groups"].insert(
        {
            "x": np.stack([rows, rows / 2], axis=1).astype(np.float32),
            "tokens": [np.arange(k % 4) for k in rows],
            "text": [f"row {k}" for k in rows],
            "ref": [None if k % 3 else float(k) for k in rows],
        },
        shared={"prompt": [f"prompt {k}" for k in range(first, first + count)]},
        rows_per_item=2,
        priority=np.arange(count) % 5,
        task=["math" if k % 2 else "code" for k in range(count)],
        version=np.arange(first, first + count),
        score=np.linspace(0, 1, count),
        level=[None if k % 2 else k for k in range(count)],
        hard=[k % 3 == 0 for k in range(count)],
    )
    tables["groups"].sample(3)
    tables["groups"].update(keys[:1], status="seen", source="test")
    tables["queue"].insert({"n": [first]})


def add_steps(buffer: rc.ReplayBuffer, first: int, count: int) -> None:
    for t in range(first, first + count):
        buffer.extend(
            obs=np.full((2, 3), t, np.float32),
            reward=[t, -t],
            terminated=[t % 7 == 6, False],
            truncated=[False, t % 9 == 8],
            final_obs=np.full((2, 3), -1, np.float32),
        )
    batch = buffer.sample(4)
    buffer.update_priorities(batch.info.keys, np.arange(1.0, 5.0))


def put(buffer: rc.RolloutBuffer, first: int, count: int) -> None:
    for n in range(first, first + count):
        made = [
            rc.Rollout([1, 2, n], list(range(k + 1)), finish_reason="stop", reward=float(k))
            for k in range(3)
        ]
        group = rc.Group(made, task="math" if n % 2 else "code", group_id=f"g{n}",
                         blobs={"image": [bytes([n]) * 20]})  # fmt: skip
        buffer.sync.put(group, version=n)
    buffer.sync.advance(first + 1)


def main() -> None:
    tables, buffer, groups = store(), steps(), rollouts()
    for number, (first, count) in enumerate([(0, 9), (20, 2)]):
        fill(tables, first, count)
        add_steps(buffer, first, 2 * count)
        put(groups, first, count)
        folder = HERE / ("first" if number == 0 else "second")
        tables.save(folder / "store", step=number, files={"model.bin": b"weights"})
        buffer.save(folder / "steps", step=number)
        groups.save(folder / "rollouts", step=number)


if __name__ == "__main__":
    main()
