"""How often starts are drawn: chi-square tests with fixed seeds, against the oracle's legal set."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
from replay_model import Model, Window
from scipy import stats

import recollect as rc

UNLIKELY = 1e-4  # seeds are fixed, so a right buffer never fails; a wrong one is far below
DRAWS = 20_000


class Filled:
    """A buffer and its model after the same random episodes, wrapped around several times."""

    def __init__(self, seed: int, steps: int, **rules: Any) -> None:
        rng = np.random.default_rng(seed)
        self.buffer = rc.ReplayBuffer(**rules, seed=seed)
        self.model = Model(**rules)
        left = [0] * self.model.num_envs
        for number in range(steps):
            env = int(rng.integers(self.model.num_envs))
            left[env] = int(rng.integers(1, 13)) if left[env] <= 0 else left[env]
            left[env] -= 1
            ends: dict[str, Any] = {}
            if left[env] == 0:
                ends[("terminated", "truncated")[number % 2]] = True
            cells = {"obs": np.float32(number), "action": 0, "reward": np.float32(1)}
            final = {"obs": np.float32(-number)} if ends and number % 3 else None
            priority = float(rng.choice([0.0, 0.2, 1.0, 1.0, 3.0]))
            options = {} if final is None else {"final_obs": final["obs"]}
            key = self.buffer.add(env_id=env, **cells, **ends, **options)
            assert self.model.add(env, cells, **ends, final=final) == key
            if isinstance(self.model.sampler, rc.Prioritized):
                self.model.update_priorities([key], [priority])
                self.buffer.update_priorities([key], [priority])

    def check(self, keys: np.ndarray, legal: list[int]) -> None:
        check_frequencies(keys, self.model.chances(legal))


def check_frequencies(keys: np.ndarray, chances: dict[int, float]) -> None:
    """Keys come in proportion to their chances, and none without a chance."""
    counts = Counter(keys.tolist())
    possible = [key for key, chance in chances.items() if chance > 0]
    assert set(counts) <= set(possible), "a start was drawn that may not be"
    assert len(possible) > 5
    expected = [len(keys) * chances[key] for key in possible]
    observed = [counts[key] for key in possible]
    assert stats.chisquare(observed, expected).pvalue > UNLIKELY, (observed, expected)


RULES: dict[str, dict[str, Any]] = {
    "one environment": {"capacity": 60},
    "several": {"capacity": 80, "num_envs": 3},
    "n_step": {"capacity": 70, "num_envs": 2, "n_step": 3},
    "stacked": {"capacity": 60, "num_envs": 2, "frame_stack": 3},
}
STEPS = {"filling": 45, "wrapped": 1000}


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("rules", RULES)
def test_every_legal_transition_has_the_same_probability(rules: str, steps: str) -> None:
    filled = Filled(1, STEPS[steps], **RULES[rules])
    keys = np.concatenate([filled.buffer.sample(200).info.keys for _ in range(DRAWS // 200)])
    filled.check(keys, list(filled.model.transitions()))


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("stratified", [False, True], ids=["free", "stratified"])
def test_every_legal_transition_has_the_probability_of_its_priority(
    rules: str, steps: str, stratified: bool
) -> None:
    sampler = rc.Prioritized(alpha=0.6, stratified=stratified)
    filled = Filled(2, STEPS[steps], sampler=sampler, **RULES[rules])
    keys = np.concatenate([filled.buffer.sample(200).info.keys for _ in range(DRAWS // 200)])
    filled.check(keys, list(filled.model.transitions()))


WINDOWS = [
    Window(4),
    Window(3, burn_in=1, mode="pad"),
    Window(9, burn_in=2, mode="pad"),
    Window(5, mode="reset"),
    Window(3, stride=2, mode="stop"),
    Window(3, burn_in=1, stride=3, mode="reset"),
]


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("prioritized", [False, True], ids=["uniform", "prioritized"])
@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_every_legal_sequence_has_its_probability(
    window: Window, prioritized: bool, steps: str
) -> None:
    sampler = rc.Prioritized(alpha=1.0) if prioritized else rc.Uniform()
    filled = Filled(3, STEPS[steps], capacity=90, num_envs=3, sampler=sampler)
    draw = filled.buffer.sample_sequences
    keys = [draw(100, window.length, **window.options).info.keys for _ in range(120)]
    filled.check(np.concatenate(keys), list(filled.model.sequences(window)))


def test_an_index_of_sequences_made_late_draws_as_one_that_grew() -> None:
    window = Window(3, mode="pad")
    late = Filled(4, 500, capacity=60, num_envs=2)
    grown = Filled(4, 0, capacity=60, num_envs=2)
    expected = list(late.model.sequences(window))
    draw = late.buffer.sample_sequences
    keys = [draw(100, window.length, **window.options).info.keys for _ in range(100)]
    late.check(np.concatenate(keys), expected)
    assert len(grown.buffer) == 0


def test_draws_one_at_a_time_are_as_fair() -> None:
    filled = Filled(5, 400, capacity=40)
    keys = np.concatenate([filled.buffer.sample(1).info.keys for _ in range(6000)])
    filled.check(keys, list(filled.model.transitions()))


@pytest.mark.parametrize("prioritized", [False, True], ids=["uniform", "prioritized"])
def test_a_query_leaves_the_chances_among_what_it_admits(prioritized: bool) -> None:
    sampler = rc.Prioritized(alpha=1.0) if prioritized else rc.Uniform()
    filled = Filled(6, 600, capacity=80, num_envs=2, sampler=sampler)
    where = rc.field("env_id") == 1
    draws = [filled.buffer.sample(200, where=where).info.keys for _ in range(60)]
    filled.check(np.concatenate(draws), [k for k in filled.model.transitions() if k >> 44 == 1])


def test_whole_episodes_have_the_same_probability() -> None:
    filled = Filled(7, 700, capacity=200, num_envs=2)
    whole = filled.model.whole()
    keys = np.concatenate([filled.buffer.sample_episodes(50).info.keys for _ in range(200)])
    check_frequencies(keys, dict.fromkeys(whole, 1 / len(whole)))


@pytest.mark.parametrize("prioritized", [False, True], ids=["uniform", "prioritized"])
def test_a_recent_share_adds_to_the_chances_of_the_newest(prioritized: bool) -> None:
    sampler = rc.Prioritized(alpha=1.0) if prioritized else rc.Uniform()
    filled = Filled(8, 600, capacity=80, num_envs=2, sampler=sampler, recent=(20, 0.25))
    model = filled.model
    legal = list(model.transitions())
    everywhere, newest = model.chances(legal), model.chances(model.recent_keys(legal))
    chances = {k: 0.75 * everywhere[k] + 0.25 * newest.get(k, 0.0) for k in legal}
    batches = [filled.buffer.sample(200).info for _ in range(100)]
    check_frequencies(np.concatenate([info.keys for info in batches]), chances)
    for info in batches[:5]:
        expected = [chances[key] for key in info.keys.tolist()]
        np.testing.assert_allclose(info.probability, expected, rtol=1e-6)


@pytest.mark.parametrize("n", [1, 2, 4])
@pytest.mark.parametrize("priorities", [None, [1.0, 2.0, 3.0, 4.0], [0.0, 2.0, 0.0, 1.0]])
def test_different_items_come_with_sequential_probabilities(
    priorities: list[float] | None, n: int
) -> None:
    sampler = rc.Uniform() if priorities is None else rc.Prioritized(alpha=1.0)
    buffer = rc.ReplayBuffer(10, sampler=sampler, seed=9)
    keys = buffer.extend(
        obs=np.arange(4, dtype=np.float32),
        action=np.zeros(4, np.int64),
        reward=np.zeros(4, np.float32),
        terminated=np.array([False] * 3 + [True]),
    )
    weights = [1.0] * 4
    if priorities is not None:
        weights = priorities
        buffer.update_priorities(keys, priorities)
    trials = 6000
    seen = Counter(
        tuple(buffer.sample(n, replace=False)["obs"].astype(int).tolist()) for _ in range(trials)
    )
    chances = {}
    for order in itertools.permutations(range(4), n):
        chance, left = 1.0, dict(enumerate(weights))
        for place in order:
            total = sum(left.values())
            chance *= left[place] / total if total > 0 else 1 / len(left)
            del left[place]
        chances[order] = chance
    possible = [order for order, chance in chances.items() if chance > 0]
    assert set(seen) <= set(possible)
    if len(possible) > 1:
        expected = [trials * chances[order] for order in possible]
        observed = [seen[order] for order in possible]
        assert stats.chisquare(observed, expected).pvalue > UNLIKELY


def test_stratified_draws_differ_by_less_than_one_stratum_from_their_share() -> None:
    rng = np.random.default_rng(3)
    buffer = rc.ReplayBuffer(400, sampler=rc.Prioritized(alpha=1.0), seed=0)
    keys = buffer.extend(
        obs=np.arange(300, dtype=np.float32),
        action=np.zeros(300, np.int64),
        reward=np.zeros(300, np.float32),
        terminated=np.arange(300) % 10 == 9,
    )
    priorities = rng.random(300)
    buffer.update_priorities(keys, priorities)
    counts = np.bincount(buffer.sample(5000)["obs"].astype(int), minlength=300)
    assert (np.abs(counts - 5000 * priorities / priorities.sum()) < 2.0).all()
