"""Filters: what they name, what stays aligned, and counts that add up."""

from __future__ import annotations

import numpy as np
import pytest
from training_data import random_groups, stored, trajectories_of

import recollect as rc
from recollect import training


def group_of(*about: tuple[float, str, int]) -> rc.Group:
    """A group of rollouts: reward, finish reason, tokens."""
    return rc.Group(
        [
            rc.Rollout([1, 2], list(range(n)), reward=reward, finish_reason=reason)
            for reward, reason, n in about
        ]
    )


@pytest.mark.parametrize("place", range(5))
def test_masking_a_truncated_rollout_at_any_place_keeps_arrays_and_groups_whole(place: int) -> None:
    about = [(n / 4, "length" if n == place else "stop", n + 1) for n in range(5)]
    groups = stored([group_of(*about), group_of((0, "stop", 3), (1, "stop", 2))])
    before = training.select(groups)
    filtered = training.apply_filters(groups, [training.Truncated("mask")])
    after = filtered.selection
    assert after.batch is before.batch
    assert after.rows == 7
    assert after.keep.all()
    assert np.flatnonzero(after.weights == 0).tolist() == [place]
    assert filtered.masked == {"truncated": 1}
    assert filtered.dropped == filtered.groups == {}
    expected = training.advantages(before, "grpo").values
    np.testing.assert_array_equal(training.advantages(after, "grpo").values, expected)


def test_a_truncated_segment_masks_its_whole_trajectory() -> None:
    def part(name: str, segment: int, reason: str) -> rc.Rollout:
        return rc.Rollout(
            [1], [2], rollout_id=name, segment=segment, reward=1.0, finish_reason=reason
        )

    group = rc.Group([part("a", 0, "tool_calls"), part("b", 0, "stop"), part("a", 1, "length")])
    filtered = training.apply_filters([group], [training.Truncated("mask")])
    assert filtered.selection.weights.tolist() == [0.0, 1.0, 0.0]
    assert filtered.masked == {"truncated": 1}


def test_groups_without_spread_are_dropped_whole() -> None:
    flat, rich = group_of((1, "stop", 1), (1, "stop", 2)), group_of((1, "stop", 1), (0, "stop", 1))
    filtered = training.apply_filters([flat, rich, flat], [training.NoSpread()])
    assert filtered.selection.keep.tolist() == [False, False, True, True, False, False]
    assert filtered.dropped == {"no_spread": 4}
    assert filtered.groups == {"no_spread": 2}
    assert filtered.selection.group_kept.tolist() == [False, True, False]


def test_a_filter_sees_what_those_before_it_left() -> None:
    group = group_of((1, "stop", 1), (1, "stop", 2), (0, "length", 9))
    drop = training.apply_filters([group], [training.Truncated("drop"), training.NoSpread()])
    assert drop.dropped == {"truncated": 1, "no_spread": 2}
    assert drop.groups == {"no_spread": 1}
    mask = training.apply_filters([group], [training.Truncated("mask"), training.NoSpread()])
    assert mask.masked == {"truncated": 1}
    assert mask.dropped == {}


def test_what_was_masked_and_then_dropped_is_counted_once() -> None:
    group = group_of((1, "length", 9), (0, "stop", 1))
    filtered = training.apply_filters([group], [training.Truncated(), training.Length(most=5)])
    assert filtered.masked == {"truncated": 1}
    assert filtered.dropped == {}
    assert filtered.selection.keep.tolist() == [False, True]


@pytest.mark.parametrize("segments", [False, True])
def test_all_filters_together_are_what_the_slow_way_gives(segments: bool) -> None:
    groups = random_groups(np.random.default_rng(3), 60, segments=segments)
    rules = [
        training.Truncated("mask"),
        training.Length(least=2, most=20),
        training.RewardRange(0.1, 0.9),
        training.RewardRange(0.0, 0.5, per="rollout", action="mask"),
        training.NoSpread(),
    ]
    filtered = training.apply_filters(stored(groups), rules)
    keep, weights = np.ones(filtered.selection.rows, bool), np.ones(filtered.selection.rows)
    dropped: dict[str, int] = {}
    masked: dict[str, int] = {}
    for members in trajectories_of(groups):
        left, hidden = list(members), []
        for one in members:
            if any(part.finish_reason == "length" for part in one.segments):
                hidden.append(one)
                masked["truncated"] = masked.get("truncated", 0) + 1
        for rule in rules[1:]:
            mean = sum(one.reward for one in left) / len(left) if left else 0.0
            flat = len({one.reward for one in left}) == 1
            for one in list(left):
                named = {
                    "length": not 2 <= one.length <= 20,
                    "no_spread": flat,
                    "reward_range": not 0.1 <= mean <= 0.9
                    if rule.action == "drop"
                    else not 0.0 <= one.reward <= 0.5,
                }[rule.reason]
                if not named:
                    continue
                counts = dropped if rule.action == "drop" else masked
                if one not in hidden:
                    counts[rule.reason] = counts.get(rule.reason, 0) + 1
                if rule.action == "mask":
                    hidden.append(one)
                else:
                    left.remove(one)
        for one in members:
            keep[one.rows] = one in left
            weights[one.rows] = 0.0 if one in hidden else 1.0
    np.testing.assert_array_equal(filtered.selection.keep, keep)
    np.testing.assert_array_equal(filtered.selection.weights[keep], weights[keep])
    assert (filtered.dropped, filtered.masked) == (dropped, masked)
    assert len(dropped) == 3
    assert len(masked) == 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: training.Truncated("hide"), "action: expected 'drop' or 'mask', got 'hide'"),
        (lambda: training.RewardRange(1.0, 0.0), "low: expected at most high"),
        (lambda: training.RewardRange(per="token"), "per: expected 'group' or 'rollout'"),
        (lambda: training.Length(5, 4), "most: expected at least 5"),
        (lambda: training.apply_filters([], ["NoSpread"]), "filters: expected rules"),
        (lambda: training.select(7), "rollouts: expected groups"),
    ],
)
def test_impossible_rules_are_refused(make, message: str) -> None:
    with pytest.raises(rc.InvalidValue, match=message):
        make()
