"""Hindsight goals: from the episode they belong to, also after wrap-around; stored data untouched.

A goal that was achieved says of which episode and step it is, so one of another episode shows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import recollect as rc

EPISODE = 1000  # achieved goals are episode * EPISODE + step
STRATEGIES = ("future", "final", "episode", "random")


def reward_of(achieved: np.ndarray, goal: np.ndarray) -> np.ndarray:
    return (achieved == goal).astype(np.float32)


def hindsight(strategy: str, share: float = 1.0) -> Any:
    return rc.Hindsight(
        strategy=strategy,
        share=share,
        goal="desired_goal",
        achieved="achieved_goal",
        reward=reward_of,
    )


def observed(episode: int, step: int) -> dict[str, Any]:
    return {
        "observation": np.float32(step),
        "achieved_goal": np.int64(episode * EPISODE + step),
        "desired_goal": np.int64(-episode - 1),
    }


def play(buffer: rc.ReplayBuffer, episode: int, steps: int, env_id: int = 0) -> None:
    """One episode; the last observation of every second one is kept."""
    for step in range(steps):
        ends: dict[str, Any] = {}
        if step == steps - 1:
            ends["terminated"] = True
            if episode % 2:
                ends["final_obs"] = observed(episode, steps)
        buffer.add(
            env_id=env_id, obs=observed(episode, step), action=step, reward=np.float32(-1), **ends
        )


def check(batch: rc.Batch, strategy: str) -> None:
    """Every goal is one that its strategy allows; one whose outcome is not stored stays."""
    after = batch["next_obs.achieved_goal"]
    known = after != 0
    assert (batch.info.relabelled == known).all()
    assert (batch["obs.desired_goal"][~known] < 0).all()
    assert (batch["reward"][~known] == -1).all()
    goals, here, after = batch["obs.desired_goal"][known], batch["obs.achieved_goal"], after[known]
    here = here[known]
    assert (batch["next_obs.desired_goal"][known] == goals).all()
    if strategy != "random":
        assert (goals // EPISODE == here // EPISODE).all(), "a goal of another episode"
    if strategy in ("future", "final"):
        assert (goals > here).all(), "a goal of the past"
    assert (batch["reward"][known] == reward_of(after, goals)).all()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_hindsight_never_relabels_across_episodes(strategy: str) -> None:
    """Episodes of many lengths in two small rings, checked after every one."""
    buffer = rc.ReplayBuffer(80, num_envs=2, seed=0)
    view = buffer.relabel(hindsight=hindsight(strategy))
    rng = np.random.default_rng(0)
    for episode in range(1, 60):
        play(buffer, episode, int(rng.integers(2, 50 if episode % 7 == 0 else 9)), episode % 2)
        check(view.sample(100), strategy)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_stored_data_is_untouched(strategy: str) -> None:
    buffer = rc.ReplayBuffer(80, seed=0)
    for episode in range(1, 6):
        play(buffer, episode, 6)
    buffer.relabel(hindsight=hindsight(strategy)).sample(200)
    batch = buffer.sample(200)
    assert (batch["obs.desired_goal"] == -(batch["obs.achieved_goal"] // EPISODE) - 1).all()
    assert (batch["reward"] == -1).all()


def test_the_final_goal_is_the_last_one_of_the_episode() -> None:
    buffer = rc.ReplayBuffer(80, seed=0)
    play(buffer, 1, 5)  # with a final observation, of step 5
    play(buffer, 2, 4)  # without: its last is that of step 3
    batch = buffer.relabel(hindsight=hindsight("final")).sample(100)
    goals = {int(goal) for goal in batch["obs.desired_goal"][batch.info.relabelled]}
    assert goals == {1005, 2003}


def test_future_goals_are_all_that_come_after() -> None:
    buffer = rc.ReplayBuffer(80, seed=0)
    play(buffer, 1, 5)
    batch = buffer.relabel(hindsight=hindsight("future")).sample(3000)
    found: dict[int, set[int]] = {}
    for here, goal in zip(
        batch["obs.achieved_goal"].tolist(), batch["obs.desired_goal"].tolist(), strict=True
    ):
        found.setdefault(here, set()).add(goal)
    assert found == {1000 + step: set(range(1001 + step, 1006)) for step in range(5)}


@pytest.mark.parametrize("share", [0.0, 0.25, 0.8, 1.0])
def test_a_share_of_the_goals_is_replaced(share: float) -> None:
    buffer = rc.ReplayBuffer(80, seed=0)
    for episode in range(1, 10, 2):
        play(buffer, episode, 6)
    view = buffer.relabel(hindsight=hindsight("future", share))
    replaced = sum(int((view.sample(19)["obs.desired_goal"] > 0).sum()) for _ in range(40))
    assert replaced == 19 * 40 * share


def test_goals_that_were_not_replaced_keep_their_reward() -> None:
    buffer = rc.ReplayBuffer(80, seed=0)
    for episode in range(1, 6):
        play(buffer, episode, 6)
    batch = buffer.relabel(hindsight=hindsight("future", 0.5)).sample(400)
    kept = batch["obs.desired_goal"] < 0
    assert kept.any()
    assert (batch["reward"][kept] == -1).all()
    assert (batch["reward"][~kept] >= 0).all()


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"strategy": "past"}, "strategy"),
        ({"share": 1.5}, "share"),
        ({"share": -0.1}, "share"),
        ({"share": float("nan")}, "share"),
        ({"goal": 5}, "goal"),
        ({"achieved": ""}, "achieved"),
        ({"reward": 5}, "reward"),
    ],
)
def test_a_wrong_rule_says_what_is_wrong(options: dict[str, Any], word: str) -> None:
    rule = {
        "strategy": "future",
        "share": 0.8,
        "goal": "desired_goal",
        "achieved": "achieved_goal",
        "reward": reward_of,
    }
    with pytest.raises(rc.InvalidValue, match=word):
        rc.Hindsight(**{**rule, **options})


def test_a_goal_that_no_column_holds_is_a_clear_error() -> None:
    buffer = rc.ReplayBuffer(80, seed=0)
    buffer.add(obs=np.float32(0), action=0, reward=np.float32(0), terminated=True)
    with pytest.raises(rc.RecollectError, match="desired_goal"):
        buffer.relabel(hindsight=hindsight("future")).sample(1)
