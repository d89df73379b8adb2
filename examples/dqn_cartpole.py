"""DQN with priorities on CartPole: one environment, 3-step returns, a double Q-target.

    python examples/dqn_cartpole.py [--short] [--seed 0] [--plot dqn_cartpole.svg]

The score is the mean return of greedy episodes; a random policy gets about 22, and 500 is the most
that there is. Needs gymnasium, matplotlib and recollect[torch].
"""

from __future__ import annotations

import copy

import gymnasium as gym
import learning_curve
import numpy as np
import torch
from torch import nn

import recollect as rc

GAMMA = 0.99
N_STEP = 3
BATCH = 128
WARM_UP = 500  # steps before the first update
EXPLORE = 3_000  # steps over which epsilon falls
EPSILON = (1.0, 0.05)
LEARNING_RATE = 1e-3  # falls to a twentieth: DQN forgets what it can where that stays high
FOLLOW = 0.01  # how much of the network its target takes over at every update


def make_buffer(seed: int, updates: int) -> rc.ReplayBuffer:
    return rc.ReplayBuffer(
        50_000,
        sampler=rc.Prioritized(alpha=0.6, beta=rc.Linear(0.4, 1.0, updates)),
        limiter=rc.MinSize(WARM_UP),
        n_step=N_STEP,
        gamma=GAMMA,
        seed=seed,
    )


def make_network() -> nn.Module:
    return nn.Sequential(
        nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2)
    )


class Agent:
    """A Q-network, its target, and one step of learning from a batch."""

    def __init__(self, updates: int) -> None:
        self.network = make_network()
        self.target = copy.deepcopy(self.network).requires_grad_(False)
        self.optimizer = torch.optim.Adam(self.network.parameters(), LEARNING_RATE, fused=True)
        self.rate = torch.optim.lr_scheduler.LinearLR(self.optimizer, 1.0, 0.05, updates)

    @torch.no_grad()
    def greedy(self, obs: np.ndarray) -> np.ndarray:
        return self.network(torch.as_tensor(obs)).argmax(-1).numpy()

    def learn(self, batch: rc.Batch) -> np.ndarray:
        """Returns how wrong the network was about each transition."""
        data = batch.to_torch()
        value = self.network(data["obs"]).gather(1, data["action"][:, None]).squeeze(1)
        with torch.no_grad():
            best = self.network(data["next_obs"]).argmax(1, keepdim=True)
            following = self.target(data["next_obs"]).gather(1, best).squeeze(1)
            # The return of N_STEP steps; discount is 0 after a terminated step, and not after a
            # truncated one: that pole would have stood on.
            goal = data["reward"] + data["discount"] * following
        weights = torch.as_tensor(batch.info.weights, dtype=torch.float32)
        loss = (weights * nn.functional.smooth_l1_loss(value, goal, reduction="none")).mean()
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.network.parameters(), 10.0)
        self.optimizer.step()
        self.rate.step()
        with torch.no_grad():
            for slow, fast in zip(self.target.parameters(), self.network.parameters(), strict=True):
                slow.lerp_(fast, FOLLOW)
        return (goal - value).abs().detach().numpy()


def evaluate(agent: Agent, episodes: int, seed: int) -> float:
    """The mean return of greedy episodes, all at once."""
    envs = gym.make_vec("CartPole-v1", num_envs=episodes, vectorization_mode="vector_entry_point")
    obs, _ = envs.reset(seed=seed)
    returns, running = np.zeros(episodes), np.ones(episodes, bool)
    while running.any():
        obs, _, terminated, truncated, _ = envs.step(agent.greedy(obs))
        returns += running  # CartPole gives 1 for every step
        running &= ~(terminated | truncated)
    envs.close()
    return float(returns.mean())


def train(seed: int, steps: int, points: int) -> list[tuple[int, float]]:
    """Act, store, sample, learn, update; returns the learning curve."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    env = gym.make("CartPole-v1")
    agent = Agent(steps)
    buffer = make_buffer(seed, steps)
    curve = [(0, evaluate(agent, 20, seed))]
    obs, _ = env.reset(seed=seed)
    for step in range(1, steps + 1):
        epsilon = np.interp(step, [WARM_UP, EXPLORE], EPSILON)
        action = int(rng.integers(2)) if rng.random() < epsilon else int(agent.greedy(obs))
        after, reward, terminated, truncated, _ = env.step(action)
        ended = terminated or truncated
        buffer.add(
            obs=obs,
            action=action,
            reward=np.float32(reward),
            terminated=terminated,
            truncated=truncated,
            final_obs=after if ended else None,  # no later row holds this one
        )
        obs = env.reset()[0] if ended else after

        if step >= WARM_UP:
            batch = buffer.sample(BATCH)
            buffer.update_priorities(batch.info.keys, agent.learn(batch) + 1e-3)
        if step % (steps // points) == 0:
            curve.append((step, evaluate(agent, 20, seed + step)))
            print(f"{step:>7,} steps  score {curve[-1][1]:6.1f}  {len(buffer):,} stored")
    env.close()
    return curve


if __name__ == "__main__":
    learning_curve.run(
        train,
        __doc__,
        name="dqn_cartpole",
        short=(3_000, 6),  # steps, points of the curve
        full=(20_000, 40),
        score="return of greedy episodes",
        levels={"the most there is": 500, "a random policy": 22},
    )
