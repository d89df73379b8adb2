"""Replay beside a journal, on every storage, and after restarts: each use is known for good."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from journal_state import flushed_copy, table_state

import recollect as rc
from recollect import training
from recollect.training import DataPreparation, Queue, RankBatch, Replay

FRESH = rc.Staleness(max_staleness=1000)


def group(number: int, rewards: tuple[float, ...] = (0.0, 1.0), **options: Any) -> rc.Group:
    rollouts = [
        rc.Rollout(
            [1, 2],
            [number + 1] * (3 + n),
            logprobs=[-1.0] * (3 + n),
            reward=reward,
            finish_reason="stop",
            rollout_id=f"{number}-{n}",
        )
        for n, reward in enumerate(rewards)
    ]
    return rc.Group(rollouts, task="math", group_id=f"g{number}", **options)


def buffer(**options: Any) -> rc.RolloutBuffer:
    given = {"order": rc.Fifo(), "staleness": FRESH, "max_uses": 0, "seed": 0, **options}
    return rc.RolloutBuffer(**given)


def groups_of(batch: RankBatch) -> list[str]:
    return sorted({name.split("-")[0] for name in batch.rollout_ids})


async def train(preparation: DataPreparation, step: int) -> RankBatch:
    batch = await preparation.get(0, step)
    await preparation.report(0, step, batch.rollout_ids, [1.0 + step % 3] * len(batch.rollout_ids))
    await preparation.confirm(0, step)
    return batch


MODES = {
    "queue": Queue(),
    "uniform": Replay(max_uses=3, sampler=rc.Uniform()),
    "half-life": Replay(max_uses=3, sampler=rc.Prioritized(half_life=4), fresh_share=0.5),
    "no limit": Replay(max_uses=0, sampler=rc.Fifo(), fresh_share=0.25),
}


@pytest.mark.parametrize("name", MODES)
def test_a_journal_knows_every_use(name: str, tmp_path: Path) -> None:
    """After a crash at any moment the buffer is as it was, and unconfirmed leases are back."""

    async def main() -> None:
        store = buffer(journal=rc.Journal(tmp_path / "j", sync="off", interval=1e9))
        preparation = DataPreparation(
            store, batch=4, ranks=1, mode=MODES[name], prefetch=0, filters=[training.NoSpread()]
        )
        put = 0
        for step in range(1, 13):
            for _ in range(8 if step == 1 else 5):
                await preparation.put(group(put, (1, 1) if put % 7 == 3 else (0, 1)), version=step)
                put += 1
            await preparation.get(0, step)
            if step % 4 == 0:  # a crash between the draw and the confirmation
                again = buffer(journal=rc.Journal(flushed_copy(store.core, tmp_path / f"{step}")))
                found = table_state(again.table, after_restart=False)
                assert found == table_state(store.table, after_restart=True)
                accounts = [made.accounts()["math"] for made in (again, store)]
                for count in ("put", "taken", "sampled", "left"):
                    assert accounts[0][count] == accounts[1][count]
                again.close()
            await train(preparation, step)
        uses = "taken" if name == "queue" else "sampled"
        trained = preparation.totals["train/groups"]
        filtered = store.accounts()["math"]["left"]["filtered"]
        assert store.accounts()["math"][uses] == trained + filtered == 48 + filtered
        await preparation.close()
        store.close()

    asyncio.run(main())


@pytest.mark.parametrize("storage", ["memory", "frame", "sqlite"])
@pytest.mark.parametrize("name", MODES)
def test_every_mode_works_on_every_storage(name: str, storage: str, tmp_path: Path) -> None:
    async def main() -> None:
        made: Any = {
            "memory": rc.MemoryStorage,
            "frame": rc.FrameStorage,
            "sqlite": lambda: rc.SqlStorage(f"sqlite:///{tmp_path}/groups.db"),
        }[storage]()
        store = buffer(storage=made)
        preparation = DataPreparation(store, batch=4, ranks=1, mode=MODES[name], prefetch=0)
        uses: Counter[str] = Counter()
        put = 0
        for step in range(1, 9):
            for _ in range(6 if step == 1 else 4):
                await preparation.put(group(put), version=step - 1)
                put += 1
            batch = await train(preparation, step)
            assert len(groups_of(batch)) == 4
            uses.update(groups_of(batch))
        most = {"queue": 1, "no limit": 8}.get(name, 3)
        assert sum(uses.values()) == 32
        assert 1 <= max(uses.values()) <= most
        worn = sum(count == most for count in uses.values()) if name != "no limit" else 0
        assert store.accounts()["math"]["left"] == ({"trained": worn} if worn else {})
        assert len(store) == put - worn
        await preparation.close()
        store.close()

    asyncio.run(main())


def test_counts_are_the_same_after_a_restart() -> None:
    async def main() -> None:
        def made() -> DataPreparation:
            mode = Replay(max_uses=2, sampler=rc.Fifo())
            return DataPreparation(buffer(), batch=2, ranks=1, mode=mode, prefetch=0)

        first = made()
        for number in range(2):
            await first.put(group(number), version=0)
        await train(first, 1)
        await first.get(0, 2)  # their last use: leased
        assert first.buffer.table.stats()["samples"] == 4
        after = made()
        await after.restore(await first.state())
        assert after.buffer.table.stats()["samples"] == 4
        assert groups_of(await after.get(0, 2)) == ["0", "1"]
        await after.close()
        assert after.buffer.table.stats()["samples"] == 2, "the last use is given back"
        assert after.buffer.count(where=rc.field("times_sampled") == 1) == 2
        await first.close()

    asyncio.run(main())


@pytest.mark.parametrize("gone", [1, 3])
def test_groups_of_a_saved_step_that_have_gone_are_counted(gone: int) -> None:
    """The rest trains; a step that lost all of its groups has no packs, and can be confirmed."""

    async def main() -> None:
        def made(store: rc.RolloutBuffer) -> DataPreparation:
            mode = Replay(max_uses=0, sampler=rc.Fifo())
            return DataPreparation(store, batch=3, ranks=2, mode=mode, prefetch=0)

        store = buffer()
        first = made(store)
        keys = [await first.put(group(number), version=0) for number in range(4)]
        await first.get(0, 1)
        state = await first.state()
        await first.close()
        await store.discard(np.array(keys[:gone], np.uint64))
        after = made(store)  # of a buffer that outlived the trainer
        assert await after.restore(state) == gone
        batches = [await after.get(rank, 1) for rank in range(2)]
        names = [name for batch in batches for name in batch.rollout_ids]
        assert sorted({name.split("-")[0] for name in names}) == ["0", "1", "2"][gone:]
        assert batches[0].keys.tolist() == keys[gone:3]
        assert len(batches[0].packs) == len(batches[1].packs)
        assert [await after.confirm(rank, 1) for rank in range(2)] == [False, True]
        await after.close()

    asyncio.run(main())


@pytest.mark.parametrize("place", range(4))
def test_a_truncated_rollout_at_any_place_is_masked_in_its_pack(place: int) -> None:
    async def main() -> None:
        preparation = DataPreparation(
            buffer(), batch=2, ranks=2, pack=16, filters=[training.Truncated("mask")]
        )
        given = group(0, (0.0, 1.0, 0.0, 1.0))
        given[place].finish_reason = "length"
        await preparation.put(given, version=0)
        await preparation.put(group(1), version=0)
        batches = [await preparation.get(rank, 1) for rank in range(2)]
        seen: dict[str, tuple[list[int], float]] = {}
        for one in (one for batch in batches for one in batch.packs if not one.is_filler):
            for n, name in enumerate(one.rollout_ids):
                here = slice(one.cu_seqlens[n], one.cu_seqlens[n + 1])
                assert one.loss_mask[here].shape == one.logprobs[here].shape
                assert np.flatnonzero(one.advantages[here]).tolist() == list(
                    range(2, 2 + 3 + int(name[2:]))
                ), "the whole response, masked or not, and nothing of the prompt"
                seen[name] = (one.loss_mask[here].tolist(), float(one.weights[n]))
        names = [f"0-{n}" for n in range(4)] + ["1-0", "1-1"]
        assert sorted(seen) == names
        for name in names:
            tokens, masked = 3 + int(name[2:]), name == f"0-{place}"
            assert seen[name] == ([0, 0] + [0 if masked else 1] * tokens, 0.0 if masked else 1.0)
        total = sum(3 + n for n in range(4) if n != place) + 3 + 4
        assert batches[0].trainable_tokens == batches[1].trainable_tokens == total
        assert batches[0].metrics["train/masked_share"] == 1 / 6
        assert batches[0].metrics["train/rollouts"] == 6
        await preparation.close()

    asyncio.run(main())
