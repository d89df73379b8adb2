"""Advantages beside slow references that go through groups one trajectory at a time."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable

import numpy as np
import pytest
from training_data import Trajectory, random_groups, random_rollout, stored, trajectories_of

import recollect as rc
from recollect import training


def slow_grpo(group: list[Trajectory]) -> list[float]:
    rewards = [one.reward for one in group]
    mean, deviation = statistics.fmean(rewards), statistics.pstdev(rewards)
    return [(reward - mean) / (deviation + 1e-6) for reward in rewards]


def slow_centered(group: list[Trajectory]) -> list[float]:
    return [one.reward - statistics.fmean(other.reward for other in group) for one in group]


def slow_rloo(group: list[Trajectory]) -> list[float]:
    found = []
    for place, one in enumerate(group):
        others = [other.reward for n, other in enumerate(group) if n != place]
        found.append(one.reward - statistics.fmean(others) if others else 0.0)
    return found


def slow_opo(group: list[Trajectory]) -> list[float]:
    tokens = [one.reward for one in group for _ in range(one.length)]
    return [one.reward - statistics.fmean(tokens) for one in group]


def slow_pass_at_k(group: list[Trajectory], k: int = 3) -> list[float]:
    """Every subset of k is a try; a rollout's advantage is the mean over the tries it is in."""
    k = min(k, len(group))
    tries = list(itertools.combinations(range(len(group)), k))
    worth = [float(any(group[n].reward > 0 for n in one)) for one in tries]
    mean, deviation = statistics.fmean(worth), statistics.pstdev(worth)
    if deviation == 0:
        return [0.0] * len(group)
    scaled = [((w - mean) / deviation, one) for w, one in zip(worth, tries, strict=True)]
    return [statistics.fmean(w for w, one in scaled if n in one) for n in range(len(group))]


SLOW: dict[str, Callable[[list[Trajectory]], list[float]]] = {
    "grpo": slow_grpo,
    "centered": slow_centered,
    "rloo": slow_rloo,
    "opo": slow_opo,
    "pass_at_k": slow_pass_at_k,
}


@pytest.mark.parametrize("segments", [False, True])
@pytest.mark.parametrize("kind", SLOW)
def test_every_kind_is_what_the_slow_way_gives(kind: str, segments: bool) -> None:
    random = np.random.default_rng(7)
    groups = random_groups(random, 40, segments=segments, most=7)
    expected = np.zeros(sum(map(len, groups)))
    flat = 0
    for group in trajectories_of(groups):
        values = SLOW[kind](group)
        if len({one.reward for one in group}) == 1:
            values = [0.0] * len(group)
        flat += not any(values)
        for one, value in zip(group, values, strict=True):
            expected[one.rows] = value
    options = {"k": 3} if kind == "pass_at_k" else {}
    for given in (groups, stored(groups), stored(groups).batch):
        found = training.advantages(given, kind, **options)
        np.testing.assert_allclose(found.values, expected, atol=1e-9)
        assert found.groups == 40
        assert found.without_spread == flat
    assert 0 < flat < 40


def test_a_group_without_spread_gives_exact_zeros() -> None:
    rollouts = [rc.Rollout([1], [2], reward=0.1, finish_reason="stop") for _ in range(3)]
    for kind in SLOW:
        found = training.advantages([rc.Group(rollouts)], kind)
        assert found.values.tolist() == [0.0, 0.0, 0.0]
        assert found.without_spread == found.groups == 1


def test_segments_share_the_advantage_of_their_trajectory() -> None:
    def part(name: str, segment: int, reward: float | None) -> rc.Rollout:
        return rc.Rollout(
            [1], [2], rollout_id=name, segment=segment, reward=reward, finish_reason="stop"
        )

    group = rc.Group([part("a", 0, None), part("a", 1, 1.0), part("b", 0, 0.0), part("a", 2, None)])
    # counted by rows the mean would be 3/4
    assert training.advantages([group], "centered").values.tolist() == [0.5, 0.5, -0.5, 0.5]


def test_what_was_dropped_counts_in_no_mean_and_what_was_masked_does() -> None:
    rewards = [("stop", 1.0), ("stop", 0.0), ("length", 1.0)]
    rollouts = [rc.Rollout([1], [2], reward=r, finish_reason=f) for f, r in rewards]
    dropped = training.apply_filters([rc.Group(rollouts)], [training.Truncated("drop")]).selection
    assert training.advantages(dropped, "centered").values.tolist() == [0.5, -0.5, 0.0]
    masked = training.apply_filters([rc.Group(rollouts)], [training.Truncated("mask")]).selection
    np.testing.assert_allclose(
        training.advantages(masked, "centered").values, [1 / 3, -2 / 3, 1 / 3]
    )


def test_the_deviation_may_be_that_of_a_sample() -> None:
    groups = random_groups(np.random.default_rng(1), 20)
    found = training.advantages(groups, "grpo", ddof=1, epsilon=0.0)
    for group in trajectories_of(groups):
        rewards = [one.reward for one in group]
        if len(set(rewards)) > 1:
            mean, deviation = statistics.fmean(rewards), statistics.stdev(rewards)
            expected = [(reward - mean) / deviation for reward in rewards]
            np.testing.assert_allclose([found.values[one.rows[0]] for one in group], expected)


def test_nothing_gives_nothing() -> None:
    found = training.advantages([])
    assert found.values.size == found.groups == found.without_spread == 0
    assert training.advantages(stored([])).values.size == 0


def test_a_rollout_without_a_reward_is_named() -> None:
    lacking = rc.Rollout([1], [2], rollout_id="r7", finish_reason="stop")
    with pytest.raises(rc.InvalidValue, match=r"advantages: rollout 'r7' has no reward; .*needs="):
        training.advantages([rc.Group([random_rollout(np.random.default_rng(0)), lacking])])


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("ppo", {}, "expected one of 'grpo', 'centered', 'rloo', 'opo', 'pass_at_k', got 'ppo'"),
        ("grpo", {"k": 3}, "grpo has no such option"),
        (training.Grpo(), {"ddof": 1}, "has its options already"),
    ],
)
def test_an_unknown_kind_or_option_is_refused(kind: str, options: dict, message: str) -> None:
    with pytest.raises(rc.InvalidValue, match=message):
        training.advantages([], kind, **options)


@pytest.mark.parametrize(
    "make",
    [
        lambda: training.Grpo(epsilon=-1.0),
        lambda: training.Grpo(ddof=2),
        lambda: training.PassAtK(k=0),
    ],
)
def test_impossible_rules_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(rc.InvalidValue):
        make()
