"""Packing beside a loop over rollouts: the same ranks, the same packs, the same tokens."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from training_data import random_groups, stored

import recollect as rc
from recollect import training


def slow_pack(selection: training.Selection, most: int, ranks: int, pivot: float) -> list[list]:
    """Rows per rank and pack: the largest first to the least loaded rank, then first fit."""
    sizes = {
        row: min(len(selection.prompts[row]) + len(selection.responses[row]), most)
        for row in range(selection.rows)
        if selection.keep[row]
    }
    loads = [0.0] * ranks
    shares: list[list[int]] = [[] for _ in range(ranks)]
    for row in sorted(sizes, key=lambda row: -sizes[row]):
        rank = loads.index(min(loads))
        loads[rank] += sizes[row] + sizes[row] ** 2 / pivot
        shares[rank].append(row)
    packs: list[list[list[int]]] = []
    for share in shares:
        bins: list[list[int]] = []
        for row in share:
            for one in bins:
                if sum(sizes[other] for other in one) + sizes[row] <= most:
                    one.append(row)
                    break
            else:
                bins.append([row])
        packs.append(bins)
    return packs


def check_tokens(packed: training.Packed, selection: training.Selection, values) -> None:
    """Every pack holds what its rows say, token by token."""
    for packs in packed.ranks:
        for one in packs:
            if one.is_filler:
                assert one.input_ids.size == one.cu_seqlens[-1] == one.max_seqlen == 1
                assert not one.loss_mask.any()
                assert one.spread(one.weights).tolist() == [0.0]
                continue
            assert one.tokens <= packed.max_tokens
            for place, row in enumerate(one.rows.tolist()):
                here = slice(one.cu_seqlens[place], one.cu_seqlens[place + 1])
                prompt, response = selection.prompts[row], selection.responses[row]
                whole = [*prompt, *response][: packed.max_tokens]
                empty = [0] * len(prompt)
                trains = selection.masks[row] if selection.weights[row] else [0] * len(response)
                assert one.rollout_ids[place] == selection.rollout_ids[row]
                assert one.input_ids[here].tolist() == whole
                assert one.position_ids[here].tolist() == list(range(len(whole)))
                assert one.loss_mask[here].tolist() == [*empty, *trains][: len(whole)]
                logs = np.nan_to_num(selection.batch["logprobs"][row]) if row >= 0 else []
                assert one.logprobs[here].tolist() == [*empty, *logs][: len(whole)]
                worth = [*empty, *[np.float32(values[row])] * len(response)][: len(whole)]
                assert one.advantages[here].tolist() == worth


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(0, 12),
    ranks=st.integers(1, 5),
    most=st.integers(4, 40),
    balance=st.sampled_from(["tokens", "flops"]),
)
def test_packs_are_what_the_slow_way_gives(
    seed: int, count: int, ranks: int, most: int, balance: str
) -> None:
    random = np.random.default_rng(seed)
    groups = random_groups(random, count, segments=True)
    filters = [training.Truncated("mask"), training.NoSpread()]
    selection = training.apply_filters(stored(groups), filters).selection
    values = random.normal(size=selection.rows)
    packed = training.pack(
        selection,
        most,
        ranks=ranks,
        balance=balance,
        too_long="cut",
        advantages=values,
        quadratic_at=20,
    )
    expected = slow_pack(selection, most, ranks, 20 if balance == "flops" else math.inf)
    found = [[one.rows.tolist() for one in p if not one.is_filler] for p in packed.ranks]
    assert found == expected
    check_tokens(packed, selection, values)
    sizes = {len(packs) for packs in packed.ranks}
    assert len(sizes) == 1
    assert packed.packs + packed.fillers == sizes.pop() * ranks
    assert packed.rollouts == int(selection.keep.sum())
    assert packed.tokens == sum(one.tokens for packs in packed.ranks for one in packs)
    trained = sum(int(one.loss_mask.sum()) for packs in packed.ranks for one in packs)
    assert packed.trainable_tokens == trained
    full = (selection.prompts.lengths + selection.lengths)[selection.keep]
    assert packed.cut == int((full > most).sum())
    assert packed.cut_tokens == int(np.maximum(full - most, 0).sum())


def lognormal(count: int, seed: int) -> list[rc.Group]:
    random = np.random.default_rng(seed)
    lengths = np.minimum(np.exp(random.normal(math.log(1500), 0.7, count)), 8000).astype(int)
    return [
        rc.Group([rc.Rollout([1, 2, 3], np.zeros(n, np.int32), finish_reason="stop") for n in part])
        for part in lengths.reshape(-1, 8)
    ]


@pytest.mark.parametrize("balance", ["tokens", "flops"])
@pytest.mark.parametrize("seed", range(3))
def test_loads_of_8_ranks_are_within_2_percent(balance: str, seed: int) -> None:
    packed = training.pack(lognormal(512, seed), 8192, ranks=8, balance=balance)
    assert packed.loads.max() / packed.loads.min() < 1.02
    assert packed.imbalance < 0.02
    if balance == "tokens":
        tokens = [sum(one.tokens for one in packs) for packs in packed.ranks]
        assert tokens == packed.loads.tolist()
    assert packed.fillers <= 8
    assert packed.metrics()["train/packing_efficiency"] > 0.9


def test_more_ranks_than_rollouts_are_filled_up() -> None:
    rollout = rc.Rollout([1], [2], finish_reason="stop")
    packed = training.pack([rc.Group([rollout])], 8, ranks=3)
    assert [len(packs) for packs in packed.ranks] == [1, 1, 1]
    assert [packs[0].is_filler for packs in packed.ranks] == [False, True, True]
    assert (packed.packs, packed.fillers, packed.trainable_tokens) == (1, 2, 1)
    metrics = packed.metrics()
    assert metrics["train/packing_efficiency"] == 2 / 8
    assert metrics["train/rollouts_per_pack"] == 1


def test_nothing_to_pack_gives_no_packs_and_no_rate() -> None:
    packed = training.pack([], 8, ranks=2)
    assert packed.ranks == ((), ())
    assert "train/packing_efficiency" not in packed.metrics()
    assert packed.metrics()["train/packs"] == 0


def test_other_arrays_go_along() -> None:
    random = np.random.default_rng(2)
    groups = random_groups(random, 6)
    for group in groups:
        for rollout in group:
            tokens, prompt = rollout.num_tokens, len(rollout.prompt_ids)
            rollout.arrays["ref"] = random.normal(size=tokens)
            rollout.arrays["experts"] = random.integers(0, 9, (prompt + tokens, 2, 3)).astype("u1")
            if random.random() < 0.5:
                rollout.arrays["teacher"] = random.normal(size=tokens).astype("f4")
    taken = stored(groups)
    rollouts = [rollout for group in taken for rollout in group]
    packed = training.pack(taken, 16, ranks=2, arrays=("ref", "experts", "teacher"))
    for packs in packed.ranks:
        for one in packs:
            for place, row in enumerate(one.rows.tolist()):
                here = slice(one.cu_seqlens[place], one.cu_seqlens[place + 1])
                rollout = rollouts[row]
                n, prompt = rollout.num_tokens, len(rollout.prompt_ids)
                assert one.arrays["ref"][here].tolist() == [0.0] * prompt + list(
                    rollout.arrays["ref"]
                )
                np.testing.assert_array_equal(
                    one.arrays["experts"][here], rollout.arrays["experts"]
                )
                teacher = rollout.arrays.get("teacher", np.zeros(n, "f4"))
                assert one.arrays["teacher"][here].tolist() == [0.0] * prompt + teacher.tolist()
            assert {name: array.dtype.str for name, array in one.arrays.items()} == {
                "ref": "<f8",
                "experts": "|u1",
                "teacher": "<f4",
            }


def test_weights_of_importance_can_be_packed() -> None:
    rollout = rc.Rollout([7], [2, 3], logprobs=[-1.0, -1.0], finish_reason="stop")
    found = training.importance([rc.Group([rollout])], [[-1.0, 9.0]])
    packed = training.pack([rc.Group([rollout])], 8, arrays={"importance": found.weights})
    assert packed.ranks[0][0].arrays["importance"].tolist() == [0.0, 1.0, 2.0]


def test_the_packs_of_a_step_are_not_written_again() -> None:
    groups = lognormal(64, 0)
    first = training.pack(groups, 8192)
    before = [one.position_ids.copy() for one in first.ranks[0]]
    for _ in range(3):
        training.pack(groups, 100_000)
    for one, positions in zip(first.ranks[0], before, strict=True):
        np.testing.assert_array_equal(one.position_ids, positions)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tokens": 3}, "rollout 'r' has 4 tokens, more than max_tokens, 3"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"ranks": 0}, "ranks"),
        ({"balance": "rows"}, "balance: expected 'tokens' or 'flops', got 'rows'"),
        ({"too_long": "drop"}, "too_long: expected 'error' or 'cut', got 'drop'"),
        ({"advantages": np.zeros(2)}, "expected one number for each of 1 rollouts"),
        ({"arrays": ("ref",)}, "arrays: no rollout has 'ref'; there are odd"),
        ({"arrays": ("odd",)}, "odd has 2 entries for 3 response tokens of rollout 'r'"),
    ],
)
def test_what_cannot_be_packed_is_refused(options: dict, message: str) -> None:
    rollout = rc.Rollout(
        [1], [2, 3, 4], rollout_id="r", finish_reason="stop", arrays={"odd": [1, 2]}
    )
    given = {"max_tokens": 8, **options}
    with pytest.raises(rc.InvalidValue, match=message):
        training.pack([rc.Group([rollout])], **given)
