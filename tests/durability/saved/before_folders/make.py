"""Makes the snapshots and journals in this folder; run once, with version 0.1.0 as it was before
its modules moved into the folders of their layers.

    python tests/durability/saved/before_folders/make.py

`expected.json` is what that version found in them, and what it drew next. Later versions must read
the files as they are and go on in the same way, so they are never made again.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import recollect as rc

HERE = Path(__file__).parent
COUNTER = (1 << 44) - 1  # bits of a key that count arrivals


class Tables:
    """A table: priorities, tags, partitions, ragged and shared columns, leases, requests."""

    @staticmethod
    def make(journal: Any = None) -> rc.Table:
        return rc.Table(
            "groups",
            capacity=14,
            sampler=rc.Prioritized(),
            remover=rc.Fifo(),
            tags={"score": float, "level": int, "hard": bool, "source": str},
            partition_by=("task",),
            max_times_sampled=5,
            seed=7,
            clock=rc.ManualClock(100.0),
            journal=journal,
        )

    @staticmethod
    def insert(table: rc.Table, first: int, count: int, **options: Any) -> Any:
        rows = np.arange(first, first + 2 * count)
        return table.insert(
            {
                "x": np.stack([rows, rows / 2], axis=1).astype(np.float32),
                "tokens": [np.arange(k % 4) for k in rows],
                "text": [f"row {k}" for k in rows],
                "ref": [None if k % 3 else float(k) for k in rows],
            },
            shared={"prompt": [f"prompt {k}" for k in range(first, first + count)]},
            rows_per_item=[1, *[2] * (count - 2), 3],
            task=["math" if k % 2 else "code" for k in range(count)],
            version=np.arange(first, first + count),
            score=np.linspace(0, 1, count),
            level=[None if k % 2 else k for k in range(count)],
            hard=[k % 3 == 0 for k in range(count)],
            **options,
        )

    @classmethod
    def first(cls, table: rc.Table) -> None:
        keys = cls.insert(table, 0, 10, priority=np.arange(10) % 5, request=("actor", 1))
        table.sample(3)
        table.update(keys[6:8], status="seen", source="test")
        table.delete(keys[4:5])
        table.take(2, lease=600.0, owner="first")

    @classmethod
    def second(cls, table: rc.Table) -> None:
        keys = cls.insert(table, 20, 4, request=("actor", 2))
        taken = table.take(2, lease=60.0)
        table.confirm(taken.info.lease)
        returned = table.take(1, lease=60.0)
        table.give_back(returned.info.lease)
        table.update(keys, priority=[4.0, 0.0, 2.5, 1.0])
        table.amend(keys[:1], {"ref": [0.5]})
        table.add_column("late", "int16", (2,))
        cls.insert(table, 40, 4, priority=3.0)
        table.delete(where=rc.field("version") == 1)
        table.sample(4)
        table.take(2, lease=600.0, owner="trainer")  # nobody ends this lease

    @classmethod
    def proceed(cls, table: rc.Table) -> list[Any]:
        keys = sorted(table.counts("key"), key=lambda key: key & COUNTER)
        again = cls.insert(table, 20, 4, request=("actor", 2))
        return [
            told(table.sample(4)),
            again.tolist(),  # the keys of the insert before: the request is known
            table.update(keys[:3], priority=[9.0, 0.5, 0.25]).tolist(),
            told(table.sample(3, where=rc.field("task") == "math")),
            cls.insert(table, 60, 3, request=("actor", 3)).tolist(),
            told(table.take(2)),
            told(table.sample(5)),
        ]

    @staticmethod
    def contents(table: rc.Table) -> dict[str, Any]:
        keys = sorted(table.counts("key"), key=lambda key: key & COUNTER)
        return {
            "items": told(table.get(keys)),
            "stats": table.stats(),
            "columns": {name: str(column) for name, column in table.columns.items()},
            "partitions": sorted(table.counts("task").items()),
        }

    @staticmethod
    def journal(table: rc.Table) -> Any:
        """For `main` alone: what the version that wrote the files called it."""
        return table._journal

    @staticmethod
    def save(table: rc.Table, path: Path, step: int) -> None:
        rc.Store([table]).save(path, step=step, files={"model.bin": b"weights"})

    @staticmethod
    def load(table: rc.Table, path: Path) -> None:
        rc.Store([table]).load(path)


class Steps:
    """A replay buffer: several environments, priorities, n-step returns, a ring that came round."""

    @staticmethod
    def make(journal: Any = None) -> rc.ReplayBuffer:
        return rc.ReplayBuffer(
            48, num_envs=3, sampler=rc.Prioritized(), n_step=2, seed=7, journal=journal
        )

    @staticmethod
    def extend(buffer: rc.ReplayBuffer, first: int, count: int) -> None:
        for t in range(first, first + count):
            buffer.extend(
                obs=np.full((3, 2), t, np.float32),
                action=[t % 4, 1, 2],
                reward=[t, -t, 0.5],
                terminated=[t % 7 == 6, False, t % 5 == 4],
                truncated=[False, t % 9 == 8, False],
                final_obs=np.full((3, 2), -t, np.float32),
            )

    @classmethod
    def first(cls, buffer: rc.ReplayBuffer) -> None:
        cls.extend(buffer, 0, 12)
        buffer.update_priorities(buffer.sample(4).info.keys, np.arange(1.0, 5.0))

    @classmethod
    def second(cls, buffer: rc.ReplayBuffer) -> None:
        cls.extend(buffer, 12, 9)
        buffer.add(obs=np.zeros(2, np.float32), action=3, reward=1.0, env_id=1)
        buffer.update_priorities(buffer.sample(3).info.keys, 0.25)

    @classmethod
    def proceed(cls, buffer: rc.ReplayBuffer) -> list[Any]:
        drawn = buffer.sample(5)
        found = [told(drawn), buffer.update_priorities(drawn.info.keys, 2.0).tolist()]
        cls.extend(buffer, 30, 2)
        return [*found, told(buffer.sample(5)), told(buffer.sample_sequences(2, length=3))]

    @staticmethod
    def contents(buffer: rc.ReplayBuffer) -> dict[str, Any]:
        return {
            "steps": buffer.to_arrow().to_pylist(),
            "episodes": told(buffer.episodes()),
            "stats": buffer.stats(),
        }

    @staticmethod
    def journal(buffer: rc.ReplayBuffer) -> Any:
        """For `main` alone: what the version that wrote the files called it."""
        return buffer._journal

    @staticmethod
    def save(buffer: rc.ReplayBuffer, path: Path, step: int) -> None:
        buffer.save(path, step=step)

    @staticmethod
    def load(buffer: rc.ReplayBuffer, path: Path) -> None:
        buffer.load(path)


class Rollouts:
    """A rollout buffer: retries, annotations, leases, trained groups, tags and blobs."""

    @staticmethod
    def make(journal: Any = None) -> rc.RolloutBuffer:
        return rc.RolloutBuffer(
            order=rc.Prioritized(),
            staleness={
                "math": rc.Staleness(max_staleness=2, on_expire="retry", max_retries=2),
                "code": rc.Staleness(max_staleness=4, on_expire="discard"),
            },
            capacity=16,
            max_uses=3,
            needs=("reward",),
            tags={"score": float},
            archive=True,
            seed=7,
            clock=rc.ManualClock(100.0),
            journal=journal,
        )

    @staticmethod
    def put(buffer: rc.RolloutBuffer, number: int, version: int, *, reward: bool = True) -> int:
        rollouts = [
            rc.Rollout(
                [1, 2, number],
                list(range(k + 1)),
                logprobs=[-0.5] * (k + 1),
                finish_reason="stop",
                reward=float(k) if reward else None,
                rollout_id=f"r{number}.{k}",
                arrays={"ref": np.arange(k + 1) / 2} if number % 2 else {},
                blobs={"audio": [bytes([k]) * 10]} if number % 3 == 0 else {},
            )
            for k in range(3)
        ]
        group = rc.Group(
            rollouts,
            task="math" if number % 2 else "code",
            group_id=f"g{number}",
            ground_truth={"answer": number},
            blobs={"image": [bytes([number]) * 20]},
            extras={"score": number / 10},
        )
        key = buffer.sync.put(group, version=version)
        assert key is not None
        return key

    @classmethod
    def first(cls, buffer: rc.RolloutBuffer) -> None:
        for number in range(8):
            cls.put(buffer, number, version=number % 3, reward=number != 5)
        buffer.sync.sample(2, task="math")
        taken = buffer.sync.take_batch({"code": 1}, lease=True, owner="trainer")
        buffer.sync.confirm(taken.lease, train_step=1)
        buffer.sync.take_batch({"code": 1}, lease=True, owner="trainer")

    @classmethod
    def second(cls, buffer: rc.RolloutBuffer) -> None:
        calls = buffer.sync
        calls.advance(4)  # retries what is of version 0 and of math
        cls.put(buffer, 20, version=3)
        lacking = cls.put(buffer, 21, version=4, reward=False)
        claimed = calls.claim(1, "reward", lease=True)
        ids = [rollout.rollout_id for rollout in claimed[0]]
        calls.annotate(ids, [rollout.attempt for rollout in claimed[0]], reward=[0.25, 0.5, 0.75])
        calls.update([lacking], priority=[3.0], score=0.125)
        cls.put(buffer, 22, version=4)
        calls.discard([cls.put(buffer, 23, version=4)])
        taken = calls.take_batch({"math": 1}, train_step=5, lease=True, owner="trainer")
        calls.confirm(taken.lease)
        returned = calls.take(1, "code", lease=True)
        calls.give_back(returned.lease)
        calls.reserve(2, "math")
        calls.take(1, "code", lease=True, owner="trainer")  # nobody ends this lease

    @classmethod
    def proceed(cls, buffer: rc.RolloutBuffer) -> list[Any]:
        calls = buffer.sync
        found: list[Any] = [told(calls.sample(2).batch), cls.put(buffer, 30, version=5)]
        found.append(told(calls.sample(2, task="code").batch))
        found.append(sorted(calls.advance(7).items()))
        found.append(told(calls.take(2, status="EXPIRED").batch))
        return [*found, told(calls.take_batch({"code": 1}, train_step=7).batch)]

    @staticmethod
    def contents(buffer: rc.RolloutBuffer) -> dict[str, Any]:
        keys = sorted(buffer.table.counts("key"), key=lambda key: key & COUNTER)
        groups = buffer.get(np.array(keys, np.uint64))
        trained = {step: buffer.sync.trained_at(step) for step in (1, 5)}
        return {
            "groups": told(groups.batch),
            "blobs": [hexed(part.blobs) for group in groups for part in (group, *group.rollouts)],
            "truths": [group.ground_truth for group in groups],
            "trained": {str(step): told(found.batch) for step, found in trained.items()},
            "train_step": buffer.train_step,
            "counts": sorted([*key, count] for key, count in buffer.counts().items()),
            "accounts": buffer.accounts(),
            "stats": buffer.stats(),
        }

    @staticmethod
    def journal(buffer: rc.RolloutBuffer) -> Any:
        """For `main` alone: what the version that wrote the files called it."""
        return buffer._core.table._journal

    @staticmethod
    def save(buffer: rc.RolloutBuffer, path: Path, step: int) -> None:
        buffer.save(path, step=step)

    @staticmethod
    def load(buffer: rc.RolloutBuffer, path: Path) -> None:
        buffer.load(path)


KINDS: dict[str, Any] = {"table": Tables, "steps": Steps, "rollouts": Rollouts}


def told(batch: rc.Batch) -> dict[str, Any]:
    """A batch as plain data: rows, shared cells, and what the table knew of each item."""
    parts = batch.to_arrow()._asdict()
    return {name: part.to_pydict() for name, part in parts.items() if part is not None}


def hexed(blobs: dict[str, list[bytes]]) -> dict[str, list[str]]:
    return {name: [cell.hex() for cell in cells] for name, cells in blobs.items()}


def plain(value: Any) -> Any:
    """As JSON has it; NaN compares with itself only as text."""
    if isinstance(value, dict):
        return {str(name): plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and value != value:
        return "nan"
    return value.item() if isinstance(value, np.generic) else value


def opened(kind: str, source: str, folder: Path) -> Any:
    """What a copy of a snapshot or of a journal holds."""
    of = KINDS[kind]
    copy = folder / f"{kind}-{source}"
    shutil.copytree(HERE / kind / source, copy)
    if source == "journal":
        return of.make(rc.Journal(copy, sync="always"))
    owner = of.make()
    of.load(owner, copy)
    return owner


def expected_of(kind: str, source: str, folder: Path) -> dict[str, Any]:
    """What a version finds in the files, what it draws next, and what it counts then."""
    owner = opened(kind, source, folder)
    expected = gone_on(kind, owner)
    owner.close()
    return expected


def gone_on(kind: str, owner: Any) -> dict[str, Any]:
    """What is in a table or buffer, what it draws next, and what it counts then."""
    of = KINDS[kind]
    contents = {"contents": of.contents(owner), "draws": of.proceed(owner)}
    contents["after"] = owner.stats()
    as_json: dict[str, Any] = plain(contents)
    return as_json


def main() -> None:
    expected: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind, of in KINDS.items():
            half = Path(folder) / f"{kind}-half"
            owner = of.make()
            of.first(owner)
            of.save(owner, half, 1)
            of.save(owner, HERE / kind / "snapshot", 1)
            of.second(owner)
            of.save(owner, HERE / kind / "snapshot", 2)
            live = rc.Journal(Path(folder) / f"{kind}-live", interval=1e9)
            owner = of.make(live)
            of.load(owner, half)  # so the journal has a snapshot and records behind it
            owner.close()
            owner = of.make(live)
            of.second(owner)
            of.journal(owner).writer.flush()
            ignored = shutil.ignore_patterns("lock")
            copy = HERE / kind / "journal"
            shutil.copytree(live.path, copy, ignore=ignored)  # as a crash leaves it
            owner.close()
            for source in ("snapshot", "journal"):
                expected[f"{kind}-{source}"] = expected_of(kind, source, Path(folder))
    lines = (f'"{name}": {json.dumps(value)}' for name, value in expected.items())
    (HERE / "expected.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
