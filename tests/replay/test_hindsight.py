"""Hindsight beside a slow model of rows: goals, n-step rewards, stacks, both conventions, seeds."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

import recollect as rc

CELL = 10_000  # a goal is env * CELL + row number in that environment


def reached(achieved: np.ndarray, goal: np.ndarray) -> np.ndarray:
    """Some function of both that zeros or mixed-up rows would change."""
    assert achieved.shape == goal.shape
    return (goal - achieved)[:, 0].astype(np.float32)


def rule(strategy: str = "future", share: float = 1.0, **options: Any) -> rc.Hindsight:
    return rc.Hindsight(strategy=strategy, share=share, reward=reached, **options)


def obs_at(env: int, row: int) -> dict[str, Any]:
    return {
        "achieved_goal": np.array([env * CELL + row], np.int64),
        "desired_goal": np.array([-1], np.int64),
    }


class Rows:
    """Which rows of each environment are stored, and to which episode each belongs."""

    def __init__(self, buffer: rc.ReplayBuffer, ring: int) -> None:
        self.buffer, self.ring = buffer, ring
        self.episode: list[list[int]] = [[] for _ in range(buffer.num_envs)]
        self.count = 0

    def play(self, env: int, steps: int) -> None:
        """One whole episode, with its final observation."""
        row = len(self.episode[env])
        after = self.buffer.reward_at == "next"
        for step in range(steps + after):
            over = step == steps - 1 + after
            ends: dict[str, Any] = {}
            if over and not after:
                ends["final_obs"] = obs_at(env, row + steps)
            self.buffer.add(
                env_id=env,
                obs=obs_at(env, row + step),
                reward=np.float32(-77),
                truncated=over and step > 0 if after else over,
                **ends,
            )
        self.episode[env] += [self.count] * (steps + 1)
        self.count += 1

    def of_episode(self, env: int, row: int) -> list[int]:
        """The stored rows of the episode of a row, by looking at all of them."""
        rows = range(max(0, len(self.episode[env]) - self.ring), len(self.episode[env]))
        return [r for r in rows if self.episode[env][r] == self.episode[env][row]]


@pytest.mark.parametrize("reward_at", ["this", "next"])
@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("strategy", ["future", "final", "episode", "random"])
def test_goals_and_rewards_agree_with_the_model(strategy: str, n_step: int, reward_at: str) -> None:
    buffer = rc.ReplayBuffer(120, num_envs=3, n_step=n_step, gamma=0.5, reward_at=reward_at, seed=0)
    model = Rows(buffer, 40)
    view = buffer.relabel(hindsight=rule(strategy))
    rng = np.random.default_rng(1)
    for played in range(40):
        model.play(int(rng.integers(0, 3)), int(rng.integers(1, 60 if played % 9 == 8 else 12)))
        batch = view.sample(64)
        assert batch.info.relabelled.all()
        for place in range(64):
            env, row = int(batch.info.env_ids[place]), int(batch.info.steps[place])
            goal = int(batch["obs.desired_goal"][place, 0])
            assert int(batch["next_obs.desired_goal"][place, 0]) == goal
            rows = model.of_episode(env, row)
            allowed = {
                "future": [r for r in rows if r > row],
                "final": rows[-1:],
                "episode": rows,
                "random": [],
            }[strategy]
            if strategy != "random":
                assert goal in [env * CELL + r for r in allowed]
            else:
                of_env, of_row = divmod(goal, CELL)
                newest = len(model.episode[of_env])
                assert max(0, newest - 40) <= of_row < newest
            taken = min(n_step, rows[-1] - row)
            expected = sum(
                0.5**k * np.float32(goal - (env * CELL + row + k + 1)) for k in range(taken)
            )
            assert batch["reward"][place] == pytest.approx(expected)


def test_random_goals_come_from_every_row_with_the_same_probability() -> None:
    buffer = rc.ReplayBuffer(40, num_envs=2, seed=0)
    model = Rows(buffer, 20)
    for env, steps in ((0, 30), (1, 3)):
        model.play(env, steps)
    goals = buffer.relabel(hindsight=rule("random")).sample(24_000)["obs.desired_goal"].ravel()
    found, counts = np.unique(goals, return_counts=True)
    assert found.tolist() == [*range(11, 31), *range(CELL, CELL + 4)]
    assert abs(counts / 1000 - 1).max() < 0.15


def test_every_frame_of_a_stack_has_the_goal() -> None:
    buffer = rc.ReplayBuffer(100, frame_stack=3, seed=0)
    Rows(buffer, 100).play(0, 20)
    batch = buffer.relabel(hindsight=rule("final")).sample(16)
    assert batch["obs.desired_goal"].shape == (16, 3, 1)
    assert (batch["obs.desired_goal"] == 20).all()
    assert (batch["next_obs.desired_goal"] == 20).all()
    assert (batch["reward"] == 20 - batch["next_obs.achieved_goal"][:, -1, 0]).all()


def test_same_seed_and_same_calls_give_the_same_goals() -> None:
    def goals(seed: int, view_seed: int | None) -> list[int]:
        buffer = rc.ReplayBuffer(100, seed=seed)
        Rows(buffer, 100).play(0, 30)
        view = buffer.relabel(hindsight=rule(share=0.5), seed=view_seed)
        return [g for _ in range(5) for g in view.sample(9)["obs.desired_goal"].ravel().tolist()]

    assert goals(3, None) == goals(3, None)
    assert goals(3, None) != goals(4, None)
    assert goals(3, 1) == goals(3, 1)
    assert goals(3, 1) != goals(3, 2)


def test_a_share_is_exact_over_time_and_spread_over_the_batch() -> None:
    buffer = rc.ReplayBuffer(100, sampler=rc.Prioritized(), seed=0)
    Rows(buffer, 100).play(0, 30)
    view = buffer.relabel(hindsight=rule(share=0.3))
    masks = np.array([view.sample(7).info.relabelled for _ in range(1000)])
    assert masks.sum() == 2100
    assert set(masks.sum(axis=1).tolist()) == {2, 3}
    assert masks.sum(axis=0).min() > 200, "stratified draws are in order: no place is left out"


def test_the_rest_of_the_batch_is_that_of_the_buffer() -> None:
    buffers = [rc.ReplayBuffer(100, sampler=rc.Prioritized(), seed=5) for _ in range(2)]
    for buffer in buffers:
        Rows(buffer, 100).play(0, 30)
    plain = buffers[0].sample(50)
    other = buffers[1].relabel(hindsight=rule()).sample(50)
    for name in ("obs.achieved_goal", "next_obs.achieved_goal", "discount"):
        assert (plain[name] == other[name]).all()
    assert (plain.info.keys == other.info.keys).all()
    assert (plain.info.weights == other.info.weights).all()
    assert (buffers[1].sample(50)["obs.desired_goal"] == -1).all()


def test_the_view_has_the_faces_of_the_buffer() -> None:
    buffer = rc.ReplayBuffer(100, sampler=rc.Prioritized(alpha=1.0), seed=0)
    Rows(buffer, 100).play(0, 30)
    view = buffer.relabel(hindsight=rule())
    assert len(view) == 30
    assert "relabelled by 'future'" in repr(view)
    batch = view.sample(4, where=rc.field("step") < 2)
    assert set(batch.info.steps.tolist()) <= {0, 1}
    assert view.update_priorities(batch.info.keys, np.ones(4)).all()
    assert asyncio.run(view.sample_async(3)).info.relabelled.all()
    with pytest.raises(rc.WaitTimeout):
        view.sample(31, replace=False, timeout=0)
    seen = [b["reward"].shape for b in view.batches(5, prefetch=2, count=3)]
    assert seen == [(5,)] * 3
    with pytest.raises(rc.InvalidValue, match="hindsight relabels transitions"):
        view.batches(5, sequences=3)


def test_a_goal_that_is_no_observation_is_replaced_once() -> None:
    buffer = rc.ReplayBuffer(100, next_from_row=("obs", "achieved_goal"), seed=0)
    for t in range(5):
        final = {"obs": 5.0, "achieved_goal": 5} if t == 4 else None
        buffer.add(
            obs=float(t), achieved_goal=t, desired_goal=99, reward=0.0, terminated=t == 4,
            final_obs=final,
        )  # fmt: skip
    view = buffer.relabel(
        hindsight=rc.Hindsight(strategy="final", share=1, reward=lambda a, g: a == g)
    )
    batch = view.sample(20)
    assert (batch["desired_goal"] == 5).all()
    assert "next_desired_goal" not in batch
    assert (batch["reward"] == (batch.info.steps == 4)).all()
    assert (batch["discount"] == np.where(batch.info.steps == 4, 0, 0.99)).all()


def add_one(buffer: rc.ReplayBuffer, **obs: Any) -> rc.ReplayBuffer:
    buffer.add(obs=obs, reward=0.0)
    buffer.add(obs=obs, reward=0.0)
    return buffer


@pytest.mark.parametrize(
    ("obs", "options", "message"),
    [
        ({"achieved_goal": 1, "desired_goal": [1, 2]}, {}, "goal: 'obs.desired_goal' is"),
        ({"achieved_goal": 1, "desired_goal": 1.5}, {}, "goal: 'obs.desired_goal' is"),
        ({"achieved_goal": 1}, {}, "goal: no column has the name 'desired_goal'"),
        ({"desired_goal": 1}, {}, "achieved: no column has the name"),
        ({"a": {"g": 1}, "b": {"g": 1}}, {"goal": "g"}, r"goal: both obs\.a\.g and obs\.b\.g have"),
        ({"desired_goal": 1, "x": 1}, {"achieved": "reward"}, "not among the columns of next"),
    ],
)
def test_columns_that_do_not_fit_say_so_before_anything_is_drawn(
    obs: Any, options: Any, message: str
) -> None:
    buffer = add_one(rc.ReplayBuffer(9), **obs)
    with pytest.raises(rc.SchemaError, match=message):
        buffer.relabel(hindsight=rule(**options)).sample(1)
    assert buffer.stats()["samples"] == 0


@pytest.mark.parametrize(
    "returned", [np.zeros((3, 1)), np.zeros(2), 0.0, np.array(["a"] * 3), None]
)
def test_a_reward_function_that_returns_something_else_is_named(returned: Any) -> None:
    buffer = rc.ReplayBuffer(90, seed=0)
    Rows(buffer, 90).play(0, 9)
    view = buffer.relabel(hindsight=rc.Hindsight(share=1, reward=lambda a, g: returned))
    with pytest.raises(rc.InvalidValue, match="reward: the function got 3 outcomes"):
        view.sample(3)


def test_what_the_reward_function_raises_is_raised() -> None:
    buffer = rc.ReplayBuffer(90, seed=0)
    Rows(buffer, 90).play(0, 9)

    def fails(achieved: Any, goal: Any) -> Any:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        buffer.relabel(hindsight=rc.Hindsight(reward=fails)).sample(3)


def test_something_else_than_a_rule_is_refused() -> None:
    with pytest.raises(rc.InvalidValue, match=r"hindsight: expected an rc\.Hindsight"):
        rc.ReplayBuffer(9).relabel(hindsight="future")  # type: ignore[arg-type]
    with pytest.raises(rc.InvalidValue, match="seed"):
        rc.ReplayBuffer(9).relabel(hindsight=rule(), seed=-1)


def test_goals_stay_while_their_rows_are_overwritten() -> None:
    """What was chosen is read later, when the ring has gone round twice."""
    buffer = rc.ReplayBuffer(64, seed=0)
    model = Rows(buffer, 64)
    model.play(0, 40)
    batches = buffer.relabel(hindsight=rule("final")).batches(8, prefetch=3, count=4)
    first = next(batches)
    for _ in range(10):
        model.play(0, 30)
    rest = list(batches)
    assert (first["obs.desired_goal"] == 40).all()
    for batch in rest:
        assert (batch["obs.desired_goal"] == 40).all()
        assert (batch["reward"] == 40 - batch["next_obs.achieved_goal"][:, 0]).all()
