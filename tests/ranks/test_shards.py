"""Shards of tables: M ranks save, N ranks load."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faulty_files import Faulty
from shard_contents import arrival, items_of

import recollect as rc
from recollect.ranks.shard_sets import find_sets, try_commit
from recollect.ranks.shards import write_shard

RANKS = range(1, 10)


def make_table(capacity: int = 200, **options: Any) -> rc.Table:
    rules: dict[str, Any] = {
        "sampler": rc.Prioritized(alpha=0.7, beta=rc.Linear(0.4, 1.0, 1000)),
        "tags": {"score": float, "source": str, "good": bool},
        "partition_by": ("task",),
        "seed": 0,
    }
    return rc.Table("train", capacity=capacity, **{**rules, **options})


def fill(table: rc.Table, rank: int, random: np.random.Generator) -> None:
    """Items of several rows with everything that there is; some are changed, some have gone."""
    for _ in range(int(random.integers(0, 6))):
        count = int(random.integers(1, 6))
        per_item = random.integers(1, 4, count)
        rows = int(per_item.sum())
        table.insert(
            {
                "x": random.normal(size=(rows, 2)).astype(np.float32),
                "tokens": rc.Ragged.from_list(
                    [random.integers(0, 99, random.integers(0, 5)) for _ in range(rows)]
                ),
                "env_id": random.integers(0, 3, rows),
                "where": {"env_id": random.integers(0, 2, rows).astype(np.int8)},
            },
            shared={"prompt": [f"prompt {rank} {random.integers(100)}" for _ in range(count)]},
            rows_per_item=per_item,
            priority=random.random(count) + 0.01,
            task=[f"task {random.integers(3)}" for _ in range(count)],
            version=random.integers(0, 50, count),
            score=random.random(count),
            source=[None if random.random() < 0.3 else f"rank {rank}" for _ in range(count)],
        )
    if len(table):
        batch = table.sample(int(random.integers(1, 9)))
        table.update(batch.info.keys, priority=random.random(batch.info.keys.size))
        table.delete(batch.info.keys[:1])


def without_environments(items: dict[int, Any]) -> dict[int, Any]:
    return {
        key: (tuple(c for c in rows if "env_id" not in c[0]), *rest)
        for key, (rows, *rest) in items.items()
    }


@pytest.mark.parametrize("saved", RANKS)
def test_every_item_is_in_one_shard_with_every_field(saved: int, tmp_path: Path) -> None:
    random = np.random.default_rng(saved)
    tables = []
    for rank in range(saved):
        tables.append(make_table())
        fill(tables[-1], rank, random)
        rc.save_shard(tmp_path, tables[-1], rank, saved, step=7)
    before = [items_of(table) for table in tables]
    whole = {key: item for items in before for key, item in items.items()}
    counts = [table.stats() for table in tables]
    for loaded in RANKS:
        parts = [make_table() for _ in range(loaded)]
        done = [rc.load_shards(tmp_path, p, rank, loaded) for rank, p in enumerate(parts)]
        found = [items_of(part) for part in parts]
        assert sum(map(len, found)) == len(whole)
        together = {key: item for items in found for key, item in items.items()}
        assert without_environments(together) == without_environments(whole)
        assert {one.step for one in done} == {7}
        assert [one.items["train"] for one in done] == [len(part) for part in parts]
        if loaded == saved:
            assert found == before
            assert [part.stats() for part in parts] == counts
            continue
        sizes = [len(part) for part in parts]
        assert max(sizes) - min(sizes) <= 1
        for part in parts:
            order = arrival(part)
            for table in tables:  # arrival order is kept
                mine = [key for key in arrival(table) if key in order]
                assert mine == [key for key in order if key in mine]
        stats = [part.stats() for part in parts]
        for name in ("inserts", "samples"):
            assert sum(one[name] for one in stats) == sum(one[name] for one in counts)
        assert all(one["inserts"] - one["removals"] == one["size"] for one in stats)
        assert {one["sample_calls"] for one in stats} == {max(c["sample_calls"] for c in counts)}
        for part, items in zip(parts, found, strict=True):
            check_draws(part, items)


def check_draws(part: rc.Table, items: dict[int, Any]) -> None:
    """Probabilities, weights and the start of new items are those of the priorities."""
    if not items:
        assert part.core.storage.highest_priority() == 1.0
        return
    keys = np.array(sorted(items), np.uint64)
    priority = part.get(keys).info.priority
    weights = priority**0.7
    beta = rc.Linear(0.4, 1.0, 1000).at(part.stats()["sample_calls"])
    batch = part.sample(5)
    places = np.searchsorted(keys, batch.info.keys)
    expected = weights[places] / weights.sum()
    np.testing.assert_allclose(batch.info.probability, expected, rtol=1e-9)
    importance = (expected / expected.min()) ** -beta
    np.testing.assert_allclose(batch.info.weights, importance, rtol=1e-9)
    assert part.core.storage.highest_priority() == priority.max()


def test_sources_are_merged_by_relative_age_then_shard(tmp_path: Path) -> None:
    for rank, count in enumerate((4, 2, 8)):
        table = rc.Table("t", capacity=10)
        table.insert({"x": 100 * rank + np.arange(count)})
        rc.save_shard(tmp_path, table, rank, 3, step=0)
    merged = rc.Table("t", capacity=14, sampler=rc.Fifo())
    rc.load_shards(tmp_path, merged, 0, 1)
    assert merged.sample(14)["x"].tolist() == [
        200, 0, 201, 100, 202, 1, 203, 204, 2, 205, 101, 206, 3, 207,
    ]  # fmt: skip
    merged.insert({"x": np.arange(5)})  # Fifo takes the oldest of each, not all of one rank
    left = merged.get(np.array(arrival(merged), np.uint64))["x"]
    assert [int((left // 100 == rank).sum()) for rank in range(3)] == [8, 1, 5]


def test_new_keys_are_of_no_other_shard_and_arrive_last(tmp_path: Path) -> None:
    known: set[int] = set()
    for rank in range(2):
        table = rc.Table("t", capacity=100, sampler=rc.Fifo())
        table.insert({"x": np.arange(50)})
        table.insert({"x": np.arange(90)})  # counters are far beyond the size
        known.update(arrival(table))
        rc.save_shard(tmp_path, table, rank, 2, step=0)
    parts = [rc.Table("t", capacity=500, sampler=rc.Fifo()) for _ in range(3)]
    for rank, part in enumerate(parts):
        rc.load_shards(tmp_path, part, rank, 3)
        fresh = part.insert({"x": [1000, 1001]})
        assert arrival(part)[-2:] == fresh.tolist()
        assert not known & set(fresh.tolist())
        known.update(fresh.tolist())
        rc.save_shard(tmp_path, part, rank, 3, step=1)
    again = [rc.Table("t", capacity=500) for _ in range(4)]
    for rank, part in enumerate(again):
        rc.load_shards(tmp_path, part, rank, 4)
        fresh = part.insert({"x": [7]})
        assert not known & set(fresh.tolist())
        known.update(fresh.tolist())


def test_environments_are_numbered_anew_in_the_data(tmp_path: Path) -> None:
    for rank in range(4):
        table = rc.Table("t", capacity=10, tags={"env_id": int})
        table.insert(
            {
                "env_id": [0, 1, 0, 5],
                "obs": {"env_id": np.int8([1, 0, 1, 5])},
                "robot": [0, 1, 0, -1],
                "was": [10 * rank, 10 * rank + 1, 10 * rank, 10 * rank + 5],
            },
            env_id=[0, 1, 0, 5],
        )
        rc.save_shard(tmp_path, table, rank, 4, step=0)
    for rank in range(2):
        part = rc.Table("t", capacity=10, tags={"env_id": int})
        done = rc.load_shards(tmp_path, part, rank, 2)
        batch = part.get(arrival(part))
        assert sorted(set(batch["env_id"].tolist())) == [0, 1, 2, 3, 4, 5]
        assert batch.info.env_id.tolist() == batch["env_id"].tolist()
        pairs = set(zip(batch["was"].tolist(), batch["env_id"].tolist(), strict=True))
        assert len(pairs) == 6  # one number for each environment of each source
        assert set(batch["obs.env_id"].tolist()) <= set(range(6))
        assert sorted(set(batch["robot"].tolist())) == [-1, 0, 1]
        assert done.environments == {"t": 6}
        other = rc.Table("t", capacity=10, tags={"env_id": int})
        rc.load_shards(tmp_path, other, rank, 2, env_id_columns=["robot"])
        batch = other.get(arrival(other))
        assert sorted(set(batch["env_id"].tolist())) == [0, 1, 5]
        assert -1 in batch["robot"]
        assert len(set(zip(batch["was"] // 10, batch["robot"], strict=True))) == 6
    table = rc.Table("f", capacity=10)
    table.insert({"obs": {"x": [0.5]}})
    rc.save_shard(tmp_path / "f", table, 0, 1, step=0)
    with pytest.raises(rc.SchemaError, match="is float64, no whole"):
        rc.load_shards(tmp_path / "f", rc.Table("f", capacity=10), 0, 2, env_id_columns=["obs.x"])


def test_too_little_capacity_raises_or_evicts_and_says_how_many(tmp_path: Path) -> None:
    for rank in range(2):
        table = rc.Table("t", capacity=10)
        table.insert({"x": np.arange(10) + 10 * rank}, priority=np.arange(10) + 1.0)
        rc.save_shard(tmp_path, table, rank, 2, step=0)
    small = rc.Table("t", capacity=12, remover=rc.Smallest("priority"))
    with pytest.raises(rc.SnapshotError, match="20 items and its capacity is 12"):
        rc.load_shards(tmp_path, small, 0, 1)
    assert len(small) == 0
    done = rc.load_shards(tmp_path, small, 0, 1, overflow="evict")
    assert done.evicted == {"t": 8}
    assert sorted(small.get(arrival(small)).info.priority) == sorted([*range(5, 11)] * 2)
    tiny = rc.Table("t", capacity=100, capacity_bytes=80)
    with pytest.raises(rc.SnapshotError, match="160 bytes and its capacity is 80"):
        rc.load_shards(tmp_path, tiny, 0, 1)
    same = rc.Table("t", capacity=4)
    with pytest.raises(rc.SnapshotError, match="10 items and its capacity is 4"):
        rc.load_shards(tmp_path, same, 1, 2)
    assert rc.load_shards(tmp_path, same, 1, 2, overflow="evict").evicted == {"t": 6}


def test_a_store_is_dealt_out_table_by_table(tmp_path: Path) -> None:
    def make() -> rc.Store:
        return rc.Store([rc.Table("a", capacity=50), rc.Table("b", capacity=50)])

    for rank in range(3):
        store = make()
        store["a"].insert({"x": np.arange(10)})
        if rank == 1:
            store["b"].insert({"y": np.arange(7.0)})
        rc.save_shard(tmp_path, store, rank, 3, step=3)
    parts = [make() for _ in range(4)]
    for rank, part in enumerate(parts):
        rc.load_shards(tmp_path, part, rank, 4)
    assert sorted(len(part["a"]) for part in parts) == [7, 7, 8, 8]
    assert sorted(len(part["b"]) for part in parts) == [1, 2, 2, 2]
    with pytest.raises(rc.SnapshotError, match="'b' that this store has not"):
        rc.load_shards(tmp_path, rc.Store([rc.Table("a", capacity=50)]), 0, 2)


def test_requests_and_leases_survive(tmp_path: Path) -> None:
    keys = []
    for rank in range(2):
        table = rc.Table("t", capacity=10, sampler=rc.Fifo())
        keys.append(table.insert({"x": [1, 2]}, request=(f"actor {rank}", 3)))
        table.take(1, lease=60)
        rc.save_shard(tmp_path, table, rank, 2, step=0)
    part = rc.Table("t", capacity=10, sampler=rc.Fifo())
    rc.load_shards(tmp_path, part, 0, 1)
    assert part.stats()["samples"] == 0  # a lease is over, and counts as given back
    assert part.sample(4).info.deliveries.tolist() == [2, 2, 1, 1]
    for rank in range(2):
        again = part.insert({"x": [1, 2]}, request=(f"actor {rank}", 3))
        assert again.tolist() == keys[rank].tolist()
    assert len(part) == 4


def test_a_journaled_table_is_rewound_to_its_part_and_keeps_it(tmp_path: Path) -> None:
    for rank in range(3):
        table = rc.Table("t", capacity=100)
        table.insert({"x": np.arange(10) + 10 * rank})
        rc.save_shard(tmp_path / "saved", table, rank, 3, step=1)

    def make() -> rc.Table:
        return rc.Table("t", capacity=100, sampler=rc.Fifo(), journal=tmp_path / "journal")

    with make() as table:
        table.insert({"x": [-1]})  # goes: the journal holds the checkpoint from here on
        rc.load_shards(tmp_path / "saved", table, 0, 2)
        table.insert({"x": [99]})
        keys = arrival(table)
    with make() as table:
        assert arrival(table) == keys
        assert table.get(keys)["x"].tolist() == [
            0,
            10,
            1,
            2,
            12,
            3,
            4,
            14,
            5,
            6,
            16,
            7,
            8,
            18,
            9,
            99,
        ]


def test_commit_waits_for_every_rank_and_names_who_is_missing(tmp_path: Path) -> None:
    table = rc.Table("t", capacity=10)
    table.insert({"x": [1]})
    folder = rc.save_shard(tmp_path, table, 1, 3, step=5)
    with pytest.raises(TimeoutError, match="of 3 ranks, 2 are missing"):
        rc.save_shard(tmp_path, table, 0, 3, step=5, wait=0.1)
    assert not (folder / "manifest.json").exists()
    with pytest.raises(rc.SnapshotError, match=r"2 are missing.*allow_partial"):
        rc.load_shards(tmp_path, rc.Table("t", capacity=10), 0, 1)
    assert rc.save_shard(tmp_path, table, 2, 3, step=5, wait=10) == folder
    manifest = json.loads((folder / "manifest.json").read_bytes())
    assert manifest["kind"] == "shards"
    assert manifest["state"]["world_size"] == 3
    assert rc.load_shards(tmp_path, rc.Table("t", capacity=10), 0, 1).items == {"t": 3}


def test_a_committed_step_that_is_saved_again_stays_until_the_new_one_is_whole(
    tmp_path: Path,
) -> None:
    def save(rank: int, value: int) -> None:
        table = rc.Table("t", capacity=10)
        table.insert({"x": [value]})
        rc.save_shard(tmp_path, table, rank, 2, step=5)

    def load() -> list[int]:
        table = rc.Table("t", capacity=10)
        rc.load_shards(tmp_path, table, 0, 1)
        return table.get(arrival(table))["x"].tolist()

    save(0, 1)
    save(1, 2)
    save(0, 3)
    assert load() == [1, 2]
    save(1, 4)
    assert load() == [3, 4]
    assert [one.path.name for one in find_sets(tmp_path)] == [
        "step-000000000005", "step-000000000005.1",
    ]  # fmt: skip


def test_a_step_can_be_chosen_and_a_partial_set_only_when_allowed(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        for rank in range(2):
            if (step, rank) != (30, 1):
                table = rc.Table("t", capacity=10)
                table.insert({"x": [step + rank]})
                rc.save_shard(tmp_path, table, rank, 2, step)

    def load(**options: Any) -> tuple[int, list[int]]:
        table = rc.Table("t", capacity=10)
        done = rc.load_shards(tmp_path, table, 0, 1, **options)
        return done.step, table.get(arrival(table))["x"].tolist()

    assert load() == (20, [20, 21])
    assert load(step=10) == (10, [10, 11])
    assert load(allow_partial=True) == (30, [30])
    with pytest.raises(rc.SnapshotError, match="no checkpoint of step 30; there are 10, 20"):
        load(step=30)


def test_a_damaged_shard_is_named_and_other_steps_load(tmp_path: Path) -> None:
    for step in (1, 2):
        for rank in range(2):
            table = rc.Table("t", capacity=100)
            table.insert({"x": np.arange(50)})
            rc.save_shard(tmp_path, table, rank, 2, step)
    damaged = next((tmp_path / "step-000000000002" / "shard-00001-of-00002").glob("*.rows*"))
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    os.unlink(damaged)
    damaged.write_bytes(content)
    table = rc.Table("t", capacity=100)
    with pytest.raises(rc.SnapshotError, match=damaged.name):
        rc.load_shards(tmp_path, table, 0, 1)
    assert len(table) == 0
    assert rc.load_shards(tmp_path, table, 0, 1, step=1).items == {"t": 100}


def test_a_rank_reads_only_the_shards_that_it_needs(tmp_path: Path) -> None:
    for rank in range(4):
        table = rc.Table("t", capacity=10)
        table.insert({"x": np.arange(10) + 10 * rank})
        rc.save_shard(tmp_path, table, rank, 4, step=0)
    for rank in (2, 3):  # nothing of these is left but what they are
        for file in (tmp_path / "step-000000000000" / f"shard-{rank:05d}-of-00004").glob("*.arrow"):
            file.unlink()
    part = rc.Table("t", capacity=20)
    rc.load_shards(tmp_path, part, 0, 2)
    assert sorted(part.get(arrival(part))["x"].tolist()) == list(range(20))


def test_a_disk_that_fails_at_any_call_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    def table(step: int, rank: int) -> rc.Table:
        made = rc.Table("t", capacity=100)
        made.insert({"x": np.full(3, 10 * step + rank)})
        return made

    for rank in range(2):
        write_shard(tmp_path / "step-1", table(1, rank), rank, 2, 1)
    assert try_commit(tmp_path / "step-1", 2)
    failures = 0
    for call in range(1, 200):
        files = Faulty(call, ("fail", "truncate", "full")[call % 3])
        folder = tmp_path / "step-2"
        try:
            for rank in range(2):
                write_shard(folder, table(2, rank), rank, 2, 2, files=files)
            try_commit(folder, 2, files)
        except (rc.SnapshotError, OSError):
            failures += 1
        part = rc.Table("t", capacity=100)
        done = rc.load_shards(tmp_path, part, 0, 1)
        found = sorted(set(part.get(arrival(part))["x"].tolist()))
        assert (done.step, found) in [(1, [10, 11]), (2, [20, 21])]
        shutil.rmtree(folder, ignore_errors=True)
        if len(files.log) < call:
            break
    assert failures > 20
    assert done.step == 2


def loaded_text(path: Any) -> str:
    """All that five ranks load, and what they do next."""
    lines = []
    for rank in range(5):
        part = make_table()
        rc.load_shards(path, part, rank, 5)
        lines += [str(arrival(part)), repr(sorted(items_of(part).items()))]
        new = {"x": np.ones((1, 2), np.float32), "env_id": [0], "where": {"env_id": np.int8([1])}}
        new["tokens"] = rc.Ragged.from_list([np.array([1])])
        lines.append(str(part.insert(new, shared={"prompt": ["p"]}).tolist()))
        lines.append(str(part.sample(9).info.keys.tolist()))
    return "\n".join(lines)


def test_loading_is_the_same_in_every_process_and_with_every_hash_seed(tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    for rank in range(3):
        table = make_table()
        fill(table, rank, random)
        rc.save_shard(tmp_path, table, rank, 3, step=1)
    here = Path(__file__).parent
    folders = [str(here), str(here.parent / "support")]
    program = (
        f"import sys; sys.path[:0] = {folders!r}\n"
        f"from test_shards import loaded_text; print(loaded_text({str(tmp_path)!r}))"
    )
    run = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONHASHSEED": "7"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert run.stdout.strip() == loaded_text(tmp_path)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"rank": 2}, "rank: there are 2 ranks"),
        ({"rank": -1}, "rank"),
        ({"world_size": 0}, "world_size"),
        ({"overflow": "drop"}, "overflow: expected 'raise' or 'evict'"),
        ({"incomplete": "maybe"}, "incomplete: expected 'keep' or 'drop'"),
        ({"env_id_columns": "env"}, "env_id_columns: expected a list"),
        ({"store": 3}, "store: expected an rc.Store"),
        (
            {"path": "nowhere"},
            "nowhere does not exist; give the folder that rc.save_shard wrote to",
        ),
    ],
)
def test_wrong_arguments_are_named(call: dict[str, Any], message: str, tmp_path: Path) -> None:
    table = rc.Table("t", capacity=10)
    table.insert({"x": [1]})
    rc.save_shard(tmp_path, table, 0, 1, step=0)
    given = {"path": tmp_path, "store": rc.Table("t", capacity=9), "rank": 0, "world_size": 2}
    with pytest.raises(rc.RecollectError, match=message):
        rc.load_shards(**{**given, **call})
