"""DataPreparation: ranks, confirmations, replay, priorities, restarts; counts that add up."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import recollect as rc
from recollect import training
from recollect.training import DataPreparation, Queue, RankBatch, Replay

FRESH = rc.Staleness(max_staleness=1000)


def group(
    number: int, rewards: Sequence[float] = (0.0, 1.0), task: str = "math", tokens: int = 3
) -> rc.Group:
    rollouts = [
        rc.Rollout(
            [1, 2],
            [number + 1] * (tokens + n),
            logprobs=[-1.0] * (tokens + n),
            reward=reward,
            finish_reason="stop",
            rollout_id=f"{number}-{n}",
        )
        for n, reward in enumerate(rewards)
    ]
    return rc.Group(rollouts, task=task, group_id=f"g{number}")


def buffer(**options: Any) -> rc.RolloutBuffer:
    given = {"order": rc.Fifo(), "staleness": FRESH, "max_uses": 0, "seed": 0, **options}
    return rc.RolloutBuffer(**given)


def groups_of(batch: RankBatch) -> set[str]:
    return {name.split("-")[0] for name in batch.rollout_ids}


def same(one: RankBatch, other: RankBatch) -> bool:
    pairs = zip(one.packs, other.packs, strict=True)
    names = ("input_ids", "cu_seqlens", "loss_mask", "advantages", "weights")
    return one.rollout_ids == other.rollout_ids and all(
        np.array_equal(getattr(a, name), getattr(b, name)) for a, b in pairs for name in names
    )


async def train(preparation: DataPreparation, step: int) -> list[RankBatch]:
    batches = [await preparation.get(rank, step) for rank in range(preparation.ranks)]
    for rank in range(preparation.ranks):
        await preparation.confirm(rank, step)
    return batches


def test_ranks_share_a_step_and_all_of_them_confirm_it() -> None:
    async def main() -> None:
        store = buffer()
        preparation = DataPreparation(store, batch=4, ranks=2, prefetch=0)
        for number in range(6):
            await preparation.put(group(number), version=0)
        zero, one = await preparation.get(0, 1), await preparation.get(1, 1)
        assert len(zero.packs) == len(one.packs)
        assert len(zero.rollout_ids) + len(one.rollout_ids) == 8
        assert not set(zero.rollout_ids) & set(one.rollout_ids)
        assert zero.trainable_tokens == one.trainable_tokens == 4 * (3 + 4)
        assert zero.keys.tolist() == one.keys.tolist()
        assert store.count(status="COMPLETED") == 2
        assert not await preparation.confirm(0, 1)
        assert not await preparation.confirm(0, 1)  # again changes nothing
        assert len(store) == 6, "what one rank trained is not trained"
        assert await preparation.confirm(1, 1)
        assert len(store) == 2
        assert await preparation.confirm(1, 1)
        assert store.accounts()["math"]["left"] == {"trained": 4}
        await preparation.close()

    asyncio.run(main())


def test_a_rank_that_dies_and_asks_again_gets_the_same() -> None:
    async def main() -> None:
        preparation = DataPreparation(buffer(), batch=3, ranks=2, filters=[training.NoSpread()])
        for number in range(12):
            await preparation.put(group(number, (0, 1) if number % 3 else (1, 1)), version=0)
        first = await preparation.get(1, 1)
        await preparation.get(0, 1)
        ahead = await preparation.get(0, 2)
        await preparation.confirm(0, 1)
        assert same(await preparation.get(1, 1), first)
        assert same(await preparation.get(0, 2), ahead)
        await preparation.confirm(1, 1)
        with pytest.raises(rc.InvalidValue, match=r"step 1 was confirmed by all ranks.*step 2"):
            await preparation.get(1, 1)
        assert same(await preparation.get(0, 2), ahead)
        await preparation.close()

    asyncio.run(main())


def test_unconfirmed_steps_are_given_back_when_it_closes() -> None:
    async def main() -> None:
        store = buffer()
        preparation = DataPreparation(store, batch=2, ranks=1, prefetch=1)
        for number in range(5):
            await preparation.put(group(number), version=0)
        await train(preparation, 1)
        await preparation.get(0, 2)
        waits = asyncio.create_task(preparation.get(0, 3))
        await asyncio.sleep(0)
        await preparation.close()
        with pytest.raises(rc.TableClosed):
            await waits
        with pytest.raises(rc.TableClosed):
            await preparation.get(0, 2)
        taken = await store.take(9)
        assert [g.group_id for g in taken] == ["g2", "g3", "g4"]
        assert [g.redelivered for g in taken] == [True, True, False]

    asyncio.run(main())


def test_waiting_is_woken_by_the_put_that_completes_a_step() -> None:
    async def main() -> None:
        preparation = DataPreparation(buffer(), batch={"math": 1, "code": 1}, ranks=2, prefetch=0)
        waits = [asyncio.create_task(preparation.get(rank, 1)) for rank in range(2)]
        await preparation.put(group(0), version=0)
        await preparation.put(group(1), version=0)
        for _ in range(5):
            await asyncio.sleep(0)
        assert not any(task.done() for task in waits)
        await preparation.put(group(2, task="code"), version=0)
        batches = await asyncio.gather(*waits)
        assert groups_of(batches[0]) | groups_of(batches[1]) == {"0", "2"}
        await preparation.close()

    asyncio.run(main())


def test_prefetch_prepares_ahead_and_no_further() -> None:
    async def main() -> None:
        store = buffer()
        preparation = DataPreparation(store, batch=2, ranks=1, prefetch=2)
        for number in range(10):
            await preparation.put(group(number), version=0)
        await preparation.get(0, 1)
        for _ in range(10):
            await asyncio.sleep(0)
        assert store.count(status="COMPLETED") == 10 - 3 * 2
        await preparation.close()

    asyncio.run(main())


def test_a_step_that_leaps_ahead_is_refused_and_training_may_begin_anywhere() -> None:
    async def main() -> None:
        preparation = DataPreparation(buffer(), batch=1, ranks=2, first_step=412)
        for number in range(3):
            await preparation.put(group(number), version=411)
        with pytest.raises(rc.InvalidValue, match="step 414 is asked for, and step 412 comes next"):
            await preparation.get(0, 414)
        assert (await train(preparation, 412))[0].metrics["train/lag_mean"] == 0.0
        assert (await preparation.get(1, 413)).step == 413
        with pytest.raises(rc.InvalidValue, match="step 3 was confirmed"):
            await preparation.get(0, 3)
        await preparation.close()

    asyncio.run(main())


def test_filters_refill_a_batch_or_leave_it_short() -> None:
    async def main(short: str) -> tuple[RankBatch, dict[str, int]]:
        store = buffer()
        preparation = DataPreparation(
            store, batch=3, ranks=1, prefetch=0, filters=[training.NoSpread()], short_batch=short
        )
        for number in range(9):
            await preparation.put(group(number, (0, 1) if number % 3 == 2 else (1, 1)), version=0)
        batch = (await train(preparation, 1))[0]
        left: dict[str, int] = store.accounts()["math"]["left"]
        await preparation.close()
        return batch, left

    batch, left = asyncio.run(main("refill"))
    assert groups_of(batch) == {"2", "5", "8"}
    assert left == {"filtered": 6, "trained": 3}
    assert batch.metrics["train/dropped/no_spread"] == 12
    assert batch.metrics["train/groups"] == 3
    batch, left = asyncio.run(main("allow"))
    assert groups_of(batch) == {"2"}
    assert left == {"filtered": 2, "trained": 1}


def test_a_short_batch_has_at_least_one_group() -> None:
    async def main() -> None:
        preparation = DataPreparation(
            buffer(), batch=2, ranks=1, filters=[training.NoSpread()], short_batch="allow"
        )
        for number in range(6):
            await preparation.put(group(number, (1, 1) if number < 4 else (0, 1)), version=0)
        batch = (await train(preparation, 1))[0]
        assert groups_of(batch) == {"4", "5"}
        await preparation.close()

    asyncio.run(main())


def test_a_masked_rollout_stays_in_its_group_with_weight_0() -> None:
    async def main() -> None:
        preparation = DataPreparation(buffer(), batch=1, ranks=1, filters=[training.Truncated()])
        given = group(0, (0.0, 1.0, 0.0))
        given[2].finish_reason = "length"
        await preparation.put(given, version=0)
        batch = await preparation.get(0, 1)
        assert sorted(batch.rollout_ids) == ["0-0", "0-1", "0-2"]
        (one,) = batch.packs
        place = one.rollout_ids.index("0-2")
        here = slice(one.cu_seqlens[place], one.cu_seqlens[place + 1])
        assert one.weights[place] == 0.0
        assert not one.loss_mask[here].any()
        assert batch.trainable_tokens == 3 + 4
        assert batch.metrics["train/masked/truncated"] == 1
        await preparation.close()

    asyncio.run(main())


# -- replay -----------------------------------------------------------------------------------
@pytest.mark.parametrize("sampler", [rc.Uniform(), rc.Prioritized(half_life=8), rc.Fifo()])
def test_counts_add_up_over_a_run_with_replay(sampler: rc.Selector) -> None:
    async def main() -> None:
        store, sink = buffer(), training.DictSink()
        mode = Replay(max_uses=3, sampler=sampler)
        preparation = DataPreparation(
            store, batch=4, ranks=2, mode=mode, filters=[training.NoSpread()], sinks=[sink]
        )
        random = np.random.default_rng(0)
        uses: Counter[str] = Counter()
        put = filtered = 0
        for step in range(1, 31):
            for _ in range(2 if step > 1 else 8):
                flat = random.random() < 0.2
                await preparation.put(group(put, (1, 1) if flat else (0, 1, 1)), version=step - 1)
                filtered += flat
                put += 1
            for batch in await train(preparation, step):
                uses.update(batch.rollout_ids)
        trained = preparation.totals["train/rollouts"]
        assert sum(uses.values()) == trained == 30 * 4 * 3
        assert max(uses.values()) == 3
        metrics = list(sink.steps.values())
        assert sum(m["train/rollouts"] for m in metrics) == trained
        generated = sum(m["gen/responses"] for m in metrics)
        assert generated + preparation.window.close()["gen/responses"] == 3 * put - filtered
        assert preparation.window.responses_total == 3 * put - filtered
        replayed = sum(m["train/groups_replayed"] for m in metrics)
        fresh = sum(m["train/groups"] for m in metrics) - replayed
        assert fresh == len({name.split("-")[0] for name in uses})
        assert replayed + fresh == 30 * 4
        await preparation.close()
        left = store.accounts()["math"]["left"]
        worn = sum(1 for name, n in uses.items() if n == 3 and name.endswith("-0"))
        assert left.get("trained", 0) == worn
        assert left["filtered"] <= filtered
        assert put == len(store) + sum(left.values())

    asyncio.run(main())


def test_only_fresh_and_only_replayed_steps_are_told_apart() -> None:
    async def main() -> None:
        preparation = DataPreparation(
            buffer(), batch=2, ranks=1, mode=Replay(max_uses=2, sampler=rc.Fifo()), prefetch=0
        )
        for number in range(2):
            await preparation.put(group(number), version=0)
        fresh = (await train(preparation, 1))[0].metrics
        again = (await train(preparation, 2))[0].metrics
        assert (fresh["train/replayed_share"], fresh["train/uses_mean"]) == (0.0, 1.0)
        assert (again["train/replayed_share"], again["train/uses_mean"]) == (1.0, 2.0)
        assert (fresh["gen/responses"], again["gen/responses"]) == (4, 0)
        assert "gen/reward_mean" not in again
        assert again["train/reward_mean"] == 0.5
        assert (fresh["train/lag_mean"], again["train/lag_mean"]) == (0.0, 1.0)
        await preparation.close()

    asyncio.run(main())


def test_a_share_of_a_batch_is_fresh() -> None:
    async def main() -> None:
        store = buffer()
        mode = Replay(max_uses=0, sampler=rc.Uniform(), fresh_share=0.5)
        preparation = DataPreparation(store, batch=4, ranks=1, mode=mode, prefetch=0)
        for number in range(4):
            await preparation.put(group(number), version=0)
        assert (await train(preparation, 1))[0].metrics["train/groups_replayed"] == 0
        waits = asyncio.create_task(preparation.get(0, 2))
        await preparation.put(group(4), version=1)
        for _ in range(5):
            await asyncio.sleep(0)
        assert not waits.done(), "two groups that never trained are needed"
        await preparation.put(group(5), version=1)
        batch = await waits
        assert batch.metrics["train/groups_replayed"] == 2
        assert {"4", "5"} < groups_of(batch)
        for step in range(3, 20):
            for number in (2 * step, 2 * step + 1):
                await preparation.put(group(number), version=step - 1)
            batch = (await train(preparation, step))[0]
            assert len(groups_of(batch)) == 4, "no group is there twice"
            assert batch.metrics["train/groups_replayed"] == 2
        await preparation.close()

    asyncio.run(main())


def test_a_full_buffer_does_not_wait_for_what_cannot_come() -> None:
    async def main() -> None:
        mode = Replay(max_uses=3, sampler=rc.Fifo(), fresh_share=0.5)
        preparation = DataPreparation(buffer(capacity=4), batch=2, ranks=1, mode=mode)
        uses: Counter[str] = Counter()

        async def produce() -> None:
            for number in range(20):  # waits for room most of the time
                await preparation.put(group(number), version=0)

        producer = asyncio.create_task(produce())
        async with asyncio.timeout(60):
            for step in range(1, 25):
                batch = (await train(preparation, step))[0]
                uses.update(groups_of(batch))
        assert sum(uses.values()) == 48
        assert max(uses.values()) == 3
        producer.cancel()
        await asyncio.gather(producer, return_exceptions=True)
        await preparation.close()

    asyncio.run(main())


def test_tokens_that_are_too_old_at_a_step_do_not_train_at_it() -> None:
    async def main() -> None:
        rule = rc.Staleness(max_staleness=100, max_token_staleness=1)
        store = buffer(staleness=rule)
        mode = Replay(max_uses=0, sampler=rc.Fifo())
        preparation = DataPreparation(store, batch=1, ranks=1, mode=mode, prefetch=0)
        given = group(0, tokens=4)
        for rollout in given:
            rollout.versions = [0, 0, 1, 1, 1][: rollout.num_tokens]
        await preparation.put(given)
        found = [(await train(preparation, step))[0].trainable_tokens for step in (1, 2, 3)]
        assert found == [9, 9, 5], "version 0 has lag 2 at step 3"
        await preparation.close()

    asyncio.run(main())


def test_a_refilled_batch_of_replay_has_no_group_twice() -> None:
    async def main() -> None:
        mode = Replay(max_uses=0, sampler=rc.Uniform())
        preparation = DataPreparation(
            buffer(), batch=4, ranks=1, mode=mode, prefetch=0, filters=[training.NoSpread()]
        )
        for number in range(8):
            await preparation.put(group(number, (0, 1) if number % 2 else (0, 0)), version=0)
        batch = (await train(preparation, 1))[0]
        assert groups_of(batch) == {"1", "3", "5", "7"}
        assert len(batch.rollout_ids) == 8
        await preparation.close()

    asyncio.run(main())


def test_the_last_use_is_given_back_where_it_was_not_confirmed() -> None:
    async def main() -> None:
        store = buffer()
        mode = Replay(max_uses=1, sampler=rc.Uniform())
        preparation = DataPreparation(store, batch=2, ranks=1, mode=mode, prefetch=0)
        for number in range(2):
            await preparation.put(group(number), version=0)
        await preparation.get(0, 1)
        assert store.count() == 0
        await preparation.close()
        assert store.count(where=rc.field("times_sampled") == 0) == 2

    asyncio.run(main())


def test_weights_of_a_prioritized_draw_come_along() -> None:
    async def main() -> None:
        store = buffer()
        mode = Replay(max_uses=0, sampler=rc.Prioritized(alpha=1.0, beta=1.0, normalize=None))
        preparation = DataPreparation(store, batch=2, ranks=1, mode=mode, prefetch=0)
        for number, priority in enumerate((1.0, 3.0)):
            key = await preparation.put(group(number), version=0)
            await store.update([key], priority=priority)
        (one,) = (await preparation.get(0, 1)).packs
        weights = {
            name.split("-")[0]: w for name, w in zip(one.rollout_ids, one.weights, strict=True)
        }
        assert weights["0"] == pytest.approx(1 / (2 * 0.25))
        assert weights["1"] == pytest.approx(1 / (2 * 0.75))
        await preparation.close()

    asyncio.run(main())


@pytest.mark.parametrize(("join", "expected"), [("mean", 2.0), ("max", 3.0)])
def test_priorities_of_ranks_are_joined_per_group_when_all_reported(
    join: str, expected: float
) -> None:
    async def main() -> None:
        store = buffer()
        mode = Replay(max_uses=0, sampler=rc.Prioritized())
        preparation = DataPreparation(store, batch=2, ranks=2, mode=mode, prefetch=0, priority=join)
        for number in range(2):
            await preparation.put(group(number), version=0)
        batches = [await preparation.get(rank, 1) for rank in range(2)]
        given = {"0-0": 1.0, "0-1": 3.0, "1-0": 1.0, "1-1": 3.0}

        async def report(rank: int) -> int:
            ids = batches[rank].rollout_ids
            return await preparation.report(rank, 1, ids, [given[name] for name in ids])

        assert await report(0) == 0
        assert await report(0) == 0, "the same rank again"
        assert {g.priority for g in store.get(batches[0].keys)} == {1.0}
        await preparation.confirm(0, 1)
        await preparation.confirm(1, 1)
        assert await report(1) == 2, "a report may come after the confirmation"
        assert {g.priority for g in store.get(batches[0].keys)} == {expected}
        with pytest.raises(rc.InvalidValue, match="step 5 is not prepared yet"):
            await preparation.report(0, 5, [], [])
        await preparation.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("ids", "priority", "message"),
    [
        (["nobody"], [1.0], "rollout 'nobody' is not in this step"),
        (["0-0"], [-1.0], "finite numbers of 0 or more"),
        (["0-0"], [1.0, 2.0], "one number for each of 1 rollouts"),
    ],
)
def test_reports_that_cannot_be_meant_are_refused(ids: list, priority: list, message: str) -> None:
    async def main() -> None:
        preparation = DataPreparation(buffer(), batch=1, ranks=1, prefetch=0)
        await preparation.put(group(0), version=0)
        await preparation.get(0, 1)
        with pytest.raises(rc.InvalidValue, match=message):
            await preparation.report(0, 1, ids, priority)
        await preparation.close()

    asyncio.run(main())


# -- saving -----------------------------------------------------------------------------------
@pytest.mark.parametrize("mode", [Queue(), Replay(max_uses=2, sampler=rc.Prioritized(alpha=0.5))])
def test_the_same_ranks_get_the_same_steps_after_a_restart(mode: training.Mode) -> None:
    def made(ranks: int = 2) -> DataPreparation:
        rules = [training.Truncated(), training.NoSpread()]
        return DataPreparation(buffer(), batch=3, ranks=ranks, mode=mode, filters=rules, pack=16)

    async def main() -> None:
        first = made()
        for number in range(12):
            given = group(number, (1, 1) if number == 1 else (0, 1, 1))
            given[0].finish_reason = "length" if number % 2 else "stop"
            await first.put(given, version=0)
        await train(first, 1)
        before = {(rank, step): await first.get(rank, step) for step in (2, 3) for rank in (0, 1)}
        await first.confirm(0, 2)
        state = await first.state()
        after = made()
        assert await after.restore(state) == 0
        for (rank, step), batch in before.items():
            again = await after.get(rank, step)
            assert same(again, batch)
            assert again.metrics["train/rollouts"] == batch.metrics["train/rollouts"]
            assert again.trainable_tokens == batch.trainable_tokens
        assert after.totals == first.totals
        assert await after.confirm(1, 2), "rank 0 had confirmed before"
        with pytest.raises(rc.InvalidValue, match="was confirmed by all ranks"):
            await after.get(0, 1)
        other = made(3)
        await other.restore(state)
        shares = [await other.get(rank, 2) for rank in range(3)]
        names = sorted(name for share in shares for name in share.rollout_ids)
        assert names == sorted(before[0, 2].rollout_ids + before[1, 2].rollout_ids)
        assert [await other.confirm(rank, 2) for rank in range(3)] == [False, False, True]
        with pytest.raises(rc.InvalidValue, match="has begun"):
            await other.restore(state)
        with pytest.raises(rc.InvalidValue, match="expected what state"):
            await made().restore({})
        for one in (first, after, other):
            await one.close()
        assert sum(after.buffer.accounts()["math"]["left"].values()) + len(after.buffer) == 12

    asyncio.run(main())


def test_a_cancelled_get_leaves_no_trace() -> None:
    async def main() -> None:
        store = buffer()
        preparation = DataPreparation(store, batch=2, ranks=1, prefetch=0)
        await preparation.put(group(0), version=0)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(preparation.get(0, 1), 0.01)
        assert store.count(status="COMPLETED") == 1
        await preparation.put(group(1), version=0)
        assert groups_of(await preparation.get(0, 1)) == {"0", "1"}
        await preparation.close()
        assert store.count(status="COMPLETED") == 2

    asyncio.run(main())


def test_a_step_ahead_that_fails_does_not_harm_the_one_before_it() -> None:
    async def main() -> None:
        store = buffer()
        preparation = DataPreparation(store, batch=1, ranks=1, pack=8, prefetch=1)
        await preparation.put(group(0), version=0)
        await preparation.put(group(1, tokens=9), version=0)
        first = await preparation.get(0, 1)
        for _ in range(5):
            await asyncio.sleep(0)
        assert same(await preparation.get(0, 1), first)
        assert await preparation.confirm(0, 1)
        with pytest.raises(rc.InvalidValue, match="more than max_tokens, 8"):
            await preparation.get(0, 2)
        key = store.find("g1")
        assert key is not None
        await store.discard([key])
        await preparation.put(group(2), version=0)
        assert groups_of(await preparation.get(0, 2)) == {"2"}
        await preparation.close()

    asyncio.run(main())


# -- errors -----------------------------------------------------------------------------------
def test_a_step_that_cannot_be_packed_says_so_and_loses_nothing() -> None:
    async def main() -> None:
        store = buffer()
        preparation = DataPreparation(store, batch=1, ranks=1, pack=4)
        await preparation.put(group(0), version=0)
        for _ in range(2):
            with pytest.raises(rc.InvalidValue, match="more than max_tokens, 4"):
                await preparation.get(0, 1)
        assert store.count(status="COMPLETED") == 1
        await preparation.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch": 0}, "batch: expected at least one group"),
        ({"batch": {"math": 0}}, "batch: expected at least one group"),
        ({"batch": 9}, "batch: 9 groups are never there: the capacity is 8"),
        ({"ranks": 0}, "ranks"),
        ({"mode": "replay"}, r"mode: expected Queue\(\) or Replay"),
        ({"advantages": "ppo"}, "advantages: expected one of"),
        ({"filters": ["NoSpread"]}, "filters: expected rules"),
        ({"pack": 0}, "max_tokens"),
        ({"short_batch": "drop"}, "short_batch: expected 'refill' or 'allow', got 'drop'"),
        ({"priority": "sum"}, "priority: expected 'mean' or 'max'"),
    ],
)
def test_impossible_options_are_refused(options: dict, message: str) -> None:
    with pytest.raises(rc.InvalidValue, match=message):
        DataPreparation(buffer(capacity=8), **{"batch": 1, "ranks": 1, **options})


def test_a_source_is_a_buffer_or_has_one() -> None:
    class Manager:
        buffer = buffer()

    assert DataPreparation(Manager(), batch=1, ranks=1).buffer is Manager.buffer
    for wrong in (7, rc.RolloutBuffer().sync):
        with pytest.raises(rc.InvalidValue, match="source: expected a RolloutBuffer, or what has"):
            DataPreparation(wrong, batch=1, ranks=1)  # type: ignore[arg-type]


def test_replay_needs_a_buffer_that_does_not_count_uses_itself() -> None:
    with pytest.raises(rc.InvalidValue, match="make the buffer with max_uses=0, not 1"):
        DataPreparation(rc.RolloutBuffer(), batch=1, ranks=1, mode=Replay())
    with pytest.raises(rc.InvalidValue, match="fresh_share"):
        Replay(fresh_share=1.5)


# -- threads ----------------------------------------------------------------------------------
def test_threads_use_the_blocking_face() -> None:
    preparation = DataPreparation(buffer(), batch=2, ranks=2).sync
    seen: dict[int, list[RankBatch]] = {0: [], 1: []}

    def rank_of(rank: int) -> None:
        for step in range(1, 6):
            seen[rank].append(preparation.get(rank, step))
            preparation.report(rank, step, seen[rank][-1].rollout_ids, 1.0)
            preparation.confirm(rank, step)

    ranks = [threading.Thread(target=rank_of, args=(rank,)) for rank in range(2)]
    for thread in ranks:
        thread.start()
    for number in range(12):
        preparation.put(group(number), version=0)
    for thread in ranks:
        thread.join(60)
    assert [batch.step for batch in seen[0]] == [1, 2, 3, 4, 5]
    names = [name for rank in range(2) for batch in seen[rank] for name in batch.rollout_ids]
    assert sorted(names) == sorted(f"{n}-{m}" for n in range(10) for m in range(2))
    assert preparation.state()["next"] >= 6
    preparation.close()
    assert not [t for t in threading.enumerate() if t.name == "recollect-training"]


def test_another_event_loop_is_refused() -> None:
    preparation = DataPreparation(buffer(), batch=1, ranks=1)
    preparation.sync.put(group(0), version=0)

    async def main() -> None:
        with pytest.raises(
            rc.InvalidValue, match=r"another event loop; call it there, or use .sync"
        ):
            await preparation.get(0, 1)

    asyncio.run(main())
    preparation.sync.close()


# -- configuration ----------------------------------------------------------------------------
COMMON = """
source: {capacity: 100, order: Fifo, seed: 0, staleness: {max_staleness: 8}}
batch: {math: 2}
ranks: 2
advantages: {type: Grpo, ddof: 1}
filters: [NoSpread, {type: Truncated, action: mask}]
pack: {max_tokens: 64, balance: flops}
prefetch: 0
"""
MODES = {
    "queue": "mode: Queue",
    "uniform": "mode: {type: Replay, max_uses: 2, sampler: Uniform}",
    "half-life": "mode: {type: Replay, max_uses: 2, sampler: {type: Prioritized, half_life: 4}}",
    "mixed": "mode: {type: Replay, max_uses: 2, sampler: Uniform, fresh_share: 0.5}",
}


@pytest.mark.parametrize("mode", MODES)
def test_one_line_of_yaml_switches_between_queue_and_replay(mode: str, tmp_path) -> None:
    path = tmp_path / "training.yaml"
    path.write_text(COMMON + MODES[mode] + "\n")
    preparation = DataPreparation.from_config(path).sync
    uses: Counter[str] = Counter()
    for step in range(1, 7):
        for number in range(2) if mode in ("queue", "mixed") or step < 4 else ():
            preparation.put(group(2 * step + number), version=step - 1)
        for rank in range(2):
            uses.update(preparation.get(rank, step).rollout_ids)
            preparation.confirm(rank, step)
    preparation.close()
    assert sum(uses.values()) == 6 * 2 * 2
    assert max(uses.values()) == (1 if mode == "queue" else 2)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("mode: Stack", "mode: unknown 'Stack'; .*expected one of Queue, Replay"),
        ("mode: {type: Replay, max_uses: many}", "mode.max_uses: expected a whole number"),
        ("mode: {type: Replay, sampler: {type: Prioritized, alpha: high}}", "mode.sampler.alpha"),
        ("mode: {type: Replay, fresh_share: 2}", "mode.fresh_share: expected a share"),
        ("short_batch: drop", "short_batch: expected 'refill' or 'allow'"),
    ],
)
def test_errors_in_yaml_name_their_path(line: str, message: str, tmp_path) -> None:
    path = tmp_path / "training.yaml"
    path.write_text(COMMON + line + "\n")
    with pytest.raises(rc.ConfigError, match=message):
        DataPreparation.from_config(path)


def test_a_staleness_per_task_and_a_wrong_one_in_configuration() -> None:
    config = {"batch": 1, "ranks": 1, "source": {"staleness": {"math": {"max_staleness": 3}}}}
    made = DataPreparation.from_config(config)
    assert made.buffer.staleness("math") == rc.Staleness(max_staleness=3)
    config["source"] = {"staleness": {"max_staleness": -1}}
    with pytest.raises(rc.ConfigError, match=r"source.staleness.max_staleness"):
        DataPreparation.from_config(config)
