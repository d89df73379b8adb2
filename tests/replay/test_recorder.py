"""The recorder against what single environments saw: every mode, nothing lost, nothing invented.

Each environment writes down what really happened in it. That is the truth, whatever a vector
environment does about resets; the buffer must hold the same transitions.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

import recollect as rc

gym = pytest.importorskip("gymnasium", reason="needs the extra gym")
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv  # noqa: E402

MODES = list(AutoresetMode)


class Seen(NamedTuple):
    obs: Any
    action: Any
    reward: float
    terminated: bool
    truncated: bool
    next_obs: Any
    first: bool


class Walk(gym.Env):
    """Episodes of random length; an observation says of which environment, episode and step it is.

    Every third episode is truncated. What happened is in `seen`, by episode.
    """

    action_space = gym.spaces.Discrete(5)

    def __init__(self, number: int, form: str = "array", shortest: int = 1) -> None:
        self.number, self.form, self.shortest = number, form, shortest
        box = gym.spaces.Box(-1, 1e6, (3,), np.float32)
        self.observation_space = {
            "array": box,
            "dict": gym.spaces.Dict({"where": box, "inner": gym.spaces.Dict({"t": box})}),
            "tuple": gym.spaces.Tuple((box, gym.spaces.Discrete(1000))),
        }[form]
        self.episode = -1
        self.seen: list[list[Seen]] = []

    def observe(self) -> Any:
        here = np.array([self.number, self.episode, self.t], np.float32)
        if self.form == "dict":
            return {"where": here, "inner": {"t": here + 1}}
        return (here, self.t) if self.form == "tuple" else here

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        self.length = self.shortest + int(self.np_random.integers(0, 6))
        self.seen.append([])
        self.obs = self.observe()
        return self.obs, {}

    def step(self, action: Any) -> Any:
        before = self.obs
        self.t += 1
        over = self.t >= self.length
        truncated = over and self.episode % 3 == 0
        self.obs = self.observe()
        reward = float(self.np_random.normal())
        step = Seen(
            before, int(action), reward, over and not truncated, truncated, self.obs, self.t == 1
        )
        self.seen[-1].append(step)
        return self.obs, reward, step.terminated, truncated, {"t": self.t}


def leaf(obs: Any) -> Any:
    return obs["where"] if isinstance(obs, dict) else obs[0] if isinstance(obs, tuple) else obs


def play(
    envs: Any, buffer: rc.ReplayBuffer, steps: int, mode: AutoresetMode, *, cut_at: int = -1
) -> None:
    """Random actions; in DISABLED what has ended is reset by a mask, as its user must."""
    rng = np.random.default_rng(3)
    envs.reset(seed=5)
    for t in range(steps):
        _, _, terminated, truncated, _ = envs.step(rng.integers(0, 5, envs.num_envs))
        over = terminated | truncated
        if mode is AutoresetMode.DISABLED and over.any():
            envs.reset(options={"reset_mask": over})
        if t == cut_at:
            envs.reset()


def many_steps(envs: Any) -> None:
    for _ in range(20):
        envs.step(np.zeros(envs.num_envs, int))


def truth(env: Walk) -> list[tuple[Seen, bool]]:
    """The steps of an environment, and whether each may be drawn: its outcome must be stored."""
    steps = []
    for episode in env.seen:
        for place, step in enumerate(episode):
            last = place == len(episode) - 1
            steps.append((step, not last or step.terminated or step.truncated))
    return steps


def check(buffer: rc.ReplayBuffer, walks: list[Walk], gamma: float = 0.99) -> None:
    """Draw every transition there is, and compare it with what was seen."""
    expected = [[step for step, known in truth(walk) if known] for walk in walks]
    batch = buffer.sample(sum(map(len, expected)), replace=False, timeout=0)
    with pytest.raises(rc.WaitTimeout):
        buffer.sample(sum(map(len, expected)) + 1, replace=False, timeout=0)
    name = next(n for n in ("obs", "obs.where", "obs.0") if n in batch.columns)
    for env, steps in enumerate(expected):
        mine = np.flatnonzero(batch.info.env_ids == env)
        mine = mine[np.argsort(batch.info.steps[mine])]
        assert len(mine) == len(steps)
        for place, step in zip(mine, steps, strict=True):
            assert (batch[name][place] == leaf(step.obs)).all()
            assert (batch[f"next_{name}"][place] == leaf(step.next_obs)).all()
            assert batch["action"][place] == step.action
            assert batch["reward"][place] == np.float32(step.reward)
            assert batch["discount"][place] == np.float32(0 if step.terminated else gamma)
    listed = buffer.episodes()
    lengths = [[len(episode) for episode in walk.seen if episode] for walk in walks]
    assert listed["length"].tolist() == [length for of_env in lengths for length in of_env]


@pytest.mark.parametrize("form", ["array", "dict", "tuple"])
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_what_environments_saw_is_what_the_buffer_holds(mode: AutoresetMode, form: str) -> None:
    walks = [Walk(number, form) for number in range(4)]
    inner = SyncVectorEnv([lambda w=walk: w for walk in walks], autoreset_mode=mode)
    buffer = rc.ReplayBuffer(4000, num_envs=4, seed=0)
    envs = rc.Recorder(inner, buffer)
    play(envs, buffer, 100, mode)
    check(buffer, walks)
    assert buffer.stats()["inserts"] == sum(len(e) for walk in walks for e in walk.seen)


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_observations_that_are_overwritten_in_place_are_recorded_as_they_were(
    mode: AutoresetMode,
) -> None:
    walks = [Walk(number) for number in range(3)]
    inner = SyncVectorEnv([lambda w=walk: w for walk in walks], autoreset_mode=mode, copy=False)
    buffer = rc.ReplayBuffer(3000, num_envs=3, seed=0)
    play(rc.Recorder(inner, buffer), buffer, 60, mode)
    check(buffer, walks)


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_a_reset_in_the_middle_ends_episodes_and_joins_nothing(mode: AutoresetMode) -> None:
    walks = [Walk(number, shortest=4) for number in range(3)]
    inner = SyncVectorEnv([lambda w=walk: w for walk in walks], autoreset_mode=mode)
    buffer = rc.ReplayBuffer(3000, num_envs=3, seed=0)
    play(rc.Recorder(inner, buffer), buffer, 40, mode, cut_at=20)
    check(buffer, walks)
    listed = buffer.episodes()
    assert listed["complete"].sum() >= listed.rows - 3


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_a_mask_resets_an_open_episode_and_leaves_the_others(mode: AutoresetMode) -> None:
    walks = [Walk(number, shortest=50) for number in range(3)]
    inner = SyncVectorEnv([lambda w=walk: w for walk in walks], autoreset_mode=mode)
    buffer = rc.ReplayBuffer(3000, num_envs=3, seed=0)
    envs = rc.Recorder(inner, buffer)
    envs.reset(seed=0)
    for _ in range(4):
        envs.step(np.zeros(3, int))
    envs.reset(options={"reset_mask": np.array([False, True, False])})
    for _ in range(3):
        envs.step(np.zeros(3, int))
    check(buffer, walks)
    assert buffer.episodes()["length"].tolist() == [7, 4, 3, 7]


class OnlyWhatWasReset(gym.vector.VectorWrapper):
    """Returns observations of what a mask resets, and zeros for the rest."""

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        mask = (options or {}).get("reset_mask", np.ones(self.num_envs, bool))
        obs, info = self.env.reset(seed=seed, options=options)
        return np.where(mask[:, None], obs, np.float32(0)), info


def test_a_mask_leaves_the_observations_of_others_as_they_were() -> None:
    walks = [Walk(number) for number in range(3)]
    mode = AutoresetMode.DISABLED
    inner = SyncVectorEnv([lambda w=walk: w for walk in walks], autoreset_mode=mode)
    buffer = rc.ReplayBuffer(3000, num_envs=3, seed=0)
    play(rc.Recorder(OnlyWhatWasReset(inner), buffer), buffer, 60, mode)
    check(buffer, walks)


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_small_rings_that_go_round_hold_the_newest_steps(mode: AutoresetMode) -> None:
    walks = [Walk(number) for number in range(2)]
    inner = SyncVectorEnv([lambda w=walk: w for walk in walks], autoreset_mode=mode)
    buffer = rc.ReplayBuffer(60, num_envs=2, seed=0)
    play(rc.Recorder(inner, buffer), buffer, 200, mode)
    batch = buffer.sample(200)
    same = (batch["obs"][:, :2] == batch["next_obs"][:, :2]).all(axis=1)
    assert same.all(), "environment and episode are those of the step"
    assert (batch["next_obs"][:, 2] == batch["obs"][:, 2] + 1).all()


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_gymnasiums_own_cartpole(mode: AutoresetMode) -> None:
    """The same seeds and actions, by hand in single environments and by the recorder."""
    count = 3
    envs = gym.make_vec(
        "CartPole-v1", count, vectorization_mode="sync", vector_kwargs={"autoreset_mode": mode}
    )
    buffer = rc.ReplayBuffer(6000, num_envs=count, seed=0)
    recorder = rc.Recorder(envs, buffer)
    recorder.reset(seed=11)
    singles = [gym.make("CartPole-v1") for _ in range(count)]
    obs = [single.reset(seed=11 + place)[0] for place, single in enumerate(singles)]
    over = [False] * count
    expected: list[list[Any]] = [[] for _ in range(count)]
    rng = np.random.default_rng(0)
    for _ in range(300):
        actions = rng.integers(0, 2, count)
        recorder.step(actions)
        for place, single in enumerate(singles):
            if over[place]:  # NEXT_STEP: this call only resets
                obs[place], over[place] = single.reset()[0], False
                continue
            after, reward, terminated, truncated, _ = single.step(int(actions[place]))
            expected[place].append((obs[place], actions[place], reward, terminated, after))
            obs[place], over[place] = after, terminated or truncated
            if over[place] and mode is AutoresetMode.SAME_STEP:
                obs[place], over[place] = single.reset()[0], False
    expected = [steps if steps[-1][3] else steps[:-1] for steps in expected]
    batch = buffer.sample(sum(map(len, expected)), replace=False, timeout=0)
    for env, steps in enumerate(expected):
        ordered = np.flatnonzero(batch.info.env_ids == env)
        ordered = ordered[np.argsort(batch.info.steps[ordered])]
        for place, (before, action, reward, terminated, after) in zip(ordered, steps, strict=True):
            assert (batch["obs"][place] == before).all()
            assert (batch["next_obs"][place] == after).all()
            assert batch["action"][place] == action
            assert batch["reward"][place] == reward
            assert (batch["discount"][place] == 0) == terminated
    recorder.close()


def test_processes_in_same_step_mode() -> None:
    def make() -> Any:
        return gym.make("CartPole-v1")

    envs = AsyncVectorEnv([make, make], autoreset_mode=AutoresetMode.SAME_STEP, context="fork")
    buffer = rc.ReplayBuffer(1000, num_envs=2, seed=0)
    recorder = rc.Recorder(envs, buffer)
    recorder.reset(seed=0)
    for _ in range(60):
        recorder.step(np.ones(2, int))
    listed = buffer.episodes()
    assert len(buffer) == 120
    assert listed["complete"].sum() == listed.rows - 2
    assert buffer.stats()["rows"] == 120 + listed["complete"].sum(), "final observations"
    recorder.close()


def test_it_is_a_wrapper_of_gymnasium_and_returns_what_the_environment_does() -> None:
    walks, twins = [Walk(0), Walk(1)], [Walk(0), Walk(1)]
    plain = SyncVectorEnv([lambda w=walk: w for walk in twins])
    buffer = rc.ReplayBuffer(100, num_envs=2)
    envs = rc.Recorder(SyncVectorEnv([lambda w=walk: w for walk in walks]), buffer)
    assert isinstance(envs, gym.vector.VectorWrapper)
    assert isinstance(envs, rc.Recorder)
    assert envs.num_envs == 2
    assert envs.single_action_space == plain.single_action_space
    outer = gym.wrappers.vector.RecordEpisodeStatistics(envs)
    assert (outer.reset(seed=1)[0] == plain.reset(seed=1)[0]).all()
    for _ in range(20):
        mine, other = outer.step(np.ones(2, int)), plain.step(np.ones(2, int))
        for left, right in zip(mine[:4], other[:4], strict=True):
            assert (left == right).all()
    assert len(buffer) == sum(len(e) for walk in walks for e in walk.seen)


def test_further_columns_and_other_environments_of_the_buffer() -> None:
    walks = [Walk(0), Walk(1)]
    buffer = rc.ReplayBuffer(400, num_envs=4, seed=0)
    envs = rc.Recorder(SyncVectorEnv([lambda w=w: w for w in walks]), buffer, env_ids=[3, 1])
    envs.reset(seed=0)
    for t in range(30):
        envs.step(np.ones(2, int), log_prob=np.array([t, -t], np.float32))
    batch = buffer.sample(100)
    assert set(batch.info.env_ids.tolist()) == {1, 3}
    assert ((batch["log_prob"] <= 0) == (batch.info.env_ids == 1))[batch["log_prob"] != 0].all()
    assert (batch["obs"][:, 0] == np.where(batch.info.env_ids == 3, 0, 1)).all()


def test_a_step_that_could_not_be_stored_is_no_bridge() -> None:
    walks = [Walk(0, shortest=60)]
    buffer = rc.ReplayBuffer(100, seed=0)
    envs = rc.Recorder(SyncVectorEnv([lambda: walks[0]]), buffer)
    envs.reset(seed=0)
    for _ in range(3):
        envs.step(np.ones(1, int), extra=np.zeros(1))
    with pytest.raises(rc.SchemaError, match="extra"):
        envs.step(np.ones(1, int))
    for _ in range(3):
        envs.step(np.ones(1, int), extra=np.zeros(1))
    batch = buffer.sample(4, replace=False, timeout=0)
    assert (batch["next_obs"][:, 2] == batch["obs"][:, 2] + 1).all()
    assert buffer.episodes()["length"].tolist() == [3, 3]


class NoFinal(gym.vector.VectorWrapper):
    """A vector environment that forgets to hand final observations over."""

    def step(self, actions: Any) -> Any:
        *rest, info = self.env.step(actions)
        return (*rest, {name: v for name, v in info.items() if "final" not in name})


def test_a_lost_final_observation_is_an_error() -> None:
    inner = SyncVectorEnv([lambda: Walk(0)], autoreset_mode=AutoresetMode.SAME_STEP)
    envs = rc.Recorder(NoFinal(inner), rc.ReplayBuffer(100))
    envs.reset(seed=0)
    with pytest.raises(rc.InvalidValue, match=r"info: environments \[0\] ended.*final_obs"):
        many_steps(envs)


class Batched(gym.vector.VectorWrapper):
    """Final observations as one array for all environments, as some vector environments have it."""

    def step(self, actions: Any) -> Any:
        *rest, info = self.env.step(actions)
        if "final_obs" in info:
            cells = [np.zeros(3, np.float32) if c is None else c for c in info["final_obs"]]
            info["final_obs"] = np.stack(cells)
        return (*rest, info)


def test_final_observations_as_one_array() -> None:
    walks = [Walk(number) for number in range(3)]
    mode = AutoresetMode.SAME_STEP
    inner = SyncVectorEnv([lambda w=walk: w for walk in walks], autoreset_mode=mode)
    buffer = rc.ReplayBuffer(3000, num_envs=3, seed=0)
    play(rc.Recorder(Batched(inner), buffer), buffer, 60, mode)
    check(buffer, walks)


def vector(*walks: Walk, **options: Any) -> Any:
    return SyncVectorEnv([lambda w=walk: w for walk in walks or (Walk(0),)], **options)


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: rc.Recorder(Walk(0), rc.ReplayBuffer(9)), "env: expected a gymnasium VectorEnv"),
        (lambda: rc.Recorder(vector(), 5), "buffer: expected an rc.ReplayBuffer"),
        (lambda: rc.Recorder(vector(), rc.ReplayBuffer(9, num_envs=2)), "num_envs=2"),
        (lambda: rc.Recorder(vector(), rc.ReplayBuffer(9), env_ids=[0, 0]), "env_ids"),
        (lambda: rc.Recorder(vector(), rc.ReplayBuffer(9), env_ids=[1]), "env_ids"),
        (lambda: rc.Recorder(vector(), rc.ReplayBuffer(9), env_ids=3), "env_ids"),
        (lambda: rc.Recorder(vector(), rc.ReplayBuffer(9, reward_at="next")), "reward_at"),
        (lambda: rc.Recorder(vector(), rc.ReplayBuffer(9, next_from_row=())), "next_from_row"),
        (lambda: rc.Recorder(vector(), rc.ReplayBuffer(9), autoreset_mode="No"), "autoreset_mode"),
    ],
)
def test_a_wrong_argument_says_what_is_wrong(make: Any, word: str) -> None:
    with pytest.raises(rc.InvalidValue, match=word):
        make()


def test_a_mode_that_nobody_says_is_asked_for() -> None:
    envs = vector()
    del envs.metadata["autoreset_mode"]
    with pytest.raises(rc.InvalidValue, match="pass autoreset_mode="):
        rc.Recorder(envs, rc.ReplayBuffer(9))
    rc.Recorder(envs, rc.ReplayBuffer(9), autoreset_mode="NextStep")
    rc.Recorder(envs, rc.ReplayBuffer(9), autoreset_mode=AutoresetMode.NEXT_STEP)


def test_a_space_without_a_fixed_shape_is_refused() -> None:
    walk = Walk(0)
    walk.observation_space = gym.spaces.Dict({"name": gym.spaces.Text(5)})
    with pytest.raises(rc.SchemaError, match=r"observation.name space: Text has no fixed shape"):
        rc.Recorder(vector(walk), rc.ReplayBuffer(9))


def test_steps_need_an_observation_first() -> None:
    envs = rc.Recorder(vector(), rc.ReplayBuffer(9))
    with pytest.raises(rc.InvalidValue, match="call reset"):
        envs.step(np.zeros(1, int))


def test_an_episode_that_is_over_must_be_reset_where_nothing_resets_it() -> None:
    envs = rc.Recorder(vector(Walk(0), autoreset_mode=AutoresetMode.DISABLED), rc.ReplayBuffer(90))
    envs.reset(seed=0)
    with pytest.raises(rc.InvalidValue, match=r"environments \[0\] are over"):
        many_steps(envs)
