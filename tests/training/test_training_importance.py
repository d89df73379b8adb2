"""Importance weights beside a loop over tokens."""

from __future__ import annotations

import math

import numpy as np
import pytest
from training_data import random_groups, stored, trajectories_of

import recollect as rc
from recollect import training


def slow(groups: list[rc.Group], ours: list[np.ndarray], rule: training.Correction) -> list[list]:
    """Weights of the tokens of each row, token after token."""
    weights: list[list[float]] = [[] for _ in ours]
    for members in trajectories_of(groups):
        for one in members:
            logs = [
                float(ours[row][n]) - float(part.logprobs[n])
                for part, row in zip(one.segments, one.rows, strict=True)
                for n in range(part.num_tokens)
                if part.loss_mask is None or part.loss_mask[n]
            ]
            for part, row in zip(one.segments, one.rows, strict=True):
                for n in range(part.num_tokens):
                    if part.loss_mask is not None and not part.loss_mask[n]:
                        weights[row].append(0.0)
                        continue
                    log = float(ours[row][n]) - float(part.logprobs[n])
                    if rule.level == "sequence":
                        log = sum(logs)
                    elif rule.level == "geometric":
                        log = sum(logs) / len(logs)
                    ratio = math.exp(log)
                    if isinstance(rule, training.TruncatedRatio):
                        weights[row].append(min(ratio, rule.cap))
                    else:
                        weights[row].append(ratio if rule.low <= ratio <= rule.high else 0.0)
    return weights


def with_tool_output(random: np.random.Generator, segments: bool) -> list[rc.Group]:
    groups = random_groups(random, 20, segments=segments)
    for group in groups:
        for rollout in group:
            rollout.loss_mask = (random.random(rollout.num_tokens) < 0.8).astype(np.int8)
            rollout.logprobs[rollout.loss_mask == 0] = np.nan
    return groups


RULES = [
    training.TruncatedRatio(),
    training.TruncatedRatio(1.1),
    training.MaskedRatio(0.8, 1.2),
    training.TruncatedRatio(level="sequence"),
    training.MaskedRatio(level="sequence"),
    training.MaskedRatio(0.9, 1.1, level="geometric"),
]


@pytest.mark.parametrize("segments", [False, True])
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_weights_are_what_the_slow_way_gives(rule: training.Correction, segments: bool) -> None:
    random = np.random.default_rng(5)
    groups = with_tool_output(random, segments)
    rollouts = [rollout for group in groups for rollout in group]
    ours = [
        np.where(np.isnan(r.logprobs), 0.0, r.logprobs) + random.normal(0, 0.4, r.num_tokens)
        for r in rollouts
    ]
    expected = slow(groups, ours, rule)
    flat = np.concatenate(ours)
    for given in (ours, rc.Ragged.from_list(ours), flat):
        found = training.importance(stored(groups), given, rule)
        for cell, wanted in zip(found.weights.to_list(), expected, strict=True):
            np.testing.assert_allclose(cell, wanted, rtol=1e-6)
    trained = np.concatenate([r.loss_mask for r in rollouts]) != 0
    weights = np.concatenate(expected)[trained]
    metrics = found.metrics
    assert metrics["importance/weight_mean"] == pytest.approx(weights.mean())
    share = weights.sum() ** 2 / (weights**2).sum() / weights.size
    assert metrics["importance/effective_share"] == pytest.approx(share)
    logs = (flat - np.concatenate([r.logprobs for r in rollouts]))[trained]
    kl = np.mean(np.exp(logs) - 1 - logs)
    assert metrics["importance/kl"] == pytest.approx(kl, rel=1e-5)
    assert 0 <= metrics["importance/changed_share"] < 1


def test_names_stand_for_rules() -> None:
    groups = with_tool_output(np.random.default_rng(5), False)
    ours = np.zeros(sum(rollout.num_tokens for group in groups for rollout in group))
    for name, rule in [("truncated", RULES[0]), ("sequence", RULES[3])]:
        by_name = training.importance(groups, ours, name)
        assert by_name.weights == training.importance(groups, ours, rule).weights


def test_equal_logprobs_give_weight_one() -> None:
    rollout = rc.Rollout([1], [2, 3, 4], logprobs=[-1, -2, -3], finish_reason="stop")
    for kind in ("truncated", "masked", "sequence"):
        found = training.importance([rc.Group([rollout])], [[-1.0, -2.0, -3.0]], kind)
        assert found.weights.to_list()[0].tolist() == [1.0, 1.0, 1.0]
        assert found.metrics["importance/kl"] == 0.0
        assert found.metrics["importance/effective_share"] == 1.0


def test_what_does_not_train_has_weight_zero_and_no_metric() -> None:
    rollout = rc.Rollout([1], [2], logprobs=[-1.0], reward=1, finish_reason="length")
    masked = training.apply_filters([rc.Group([rollout])], [training.Truncated()]).selection
    found = training.importance(masked, [[-2.0]])
    assert found.weights.to_list()[0].tolist() == [0.0]
    assert found.metrics == {}


def test_a_huge_difference_does_not_overflow() -> None:
    rollout = rc.Rollout([1], [2, 3], logprobs=[-900, -900], finish_reason="stop")
    found = training.importance([rc.Group([rollout])], [[0.0, 0.0]], "sequence")
    assert found.weights.to_list()[0].tolist() == [2.0, 2.0]


@pytest.mark.parametrize(
    ("logprobs", "ours", "message"),
    [
        (None, [[0.0, 0.0]], "rollout 'r' trains tokens without a logprob"),
        ([-1.0, math.nan], [[0.0, 0.0]], "rollout 'r' trains tokens without a logprob"),
        ([-1, -1], [[0.0]], "has 1 entries for 2 response tokens of rollout 'r'"),
        ([-1, -1], [[0.0, 0.0], [0.0]], "has 2 rows for 1 rollouts"),
        ([-1, -1], np.zeros(3), "has 3 entries for 2 response tokens"),
    ],
)
def test_what_does_not_fit_is_refused(logprobs, ours, message: str) -> None:
    rollout = rc.Rollout([1], [2, 3], rollout_id="r", logprobs=logprobs, finish_reason="stop")
    with pytest.raises(rc.InvalidValue, match=message):
        training.importance([rc.Group([rollout])], ours)


@pytest.mark.parametrize(
    "make",
    [
        lambda: training.TruncatedRatio(0.0),
        lambda: training.TruncatedRatio(level="word"),
        lambda: training.MaskedRatio(2.0, 1.0),
        lambda: training.importance([], [], "clipped"),
    ],
)
def test_impossible_rules_are_refused(make) -> None:
    with pytest.raises(rc.InvalidValue):
        make()
