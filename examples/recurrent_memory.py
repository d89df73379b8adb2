"""A recurrent Q-learner in T-mazes: stored states, burn-in and priorities, as in R2D2.

    python examples/recurrent_memory.py [--short] [--seed 0] [--plot recurrent_memory.svg]

The first observation of an episode shows a side, left or right. Then comes a corridor, and at its
end a junction where the agent must turn to that side. The score is the share of greedy episodes
that turn the right way; without memory it is a half. Needs matplotlib and recollect[torch].
"""

from __future__ import annotations

import copy

import learning_curve
import numpy as np
import torch
from torch import Tensor, nn

import recollect as rc

ENVS = 16
CORRIDOR = (5, 10)  # how far the junction is, at least and at most
TIME_LIMIT = 30
FORWARD, LEFT, RIGHT = range(3)
HIDDEN = 32
LENGTH, BURN_IN = 20, 4  # of sequences; the length includes the burn-in
BATCH = 32
GAMMA = 0.97
LEARNING_RATE = 2e-3
FOLLOW = 0.02  # how much of the network its target takes over at every update
EPSILON = (1.0, 0.05)
WARM_UP = 80  # steps of each maze before the first update


class Mazes:
    """T-mazes side by side. Observations: a sign (left, right), corridor, junction."""

    def __init__(self, count: int, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.side, self.ahead, self.time = (np.zeros(count, np.int64) for _ in range(3))
        self.begin(np.ones(count, bool))

    def begin(self, which: np.ndarray) -> None:
        count = int(which.sum())
        self.side[which] = self.rng.choice([LEFT, RIGHT], count)
        self.ahead[which] = self.rng.integers(*CORRIDOR, count, endpoint=True)
        self.time[which] = 0

    def observe(self) -> np.ndarray:
        shown = self.time == 0
        parts = [shown & (self.side == LEFT), shown & (self.side == RIGHT)]
        return np.stack([*parts, self.ahead > 0, self.ahead == 0], 1).astype(np.float32)

    def step(self, action: np.ndarray) -> tuple[np.ndarray, ...]:
        """Returns what follows, reward, terminated, truncated; call `begin` for what ended."""
        junction = self.ahead == 0
        forward = action == FORWARD
        terminated = junction & ~forward
        reward = np.where(terminated, np.where(action == self.side, 1.0, -1.0), 0.0)
        reward[junction == forward] -= 0.05  # into a wall
        self.ahead -= ~junction & forward
        self.time += 1
        truncated = ~terminated & (self.time >= TIME_LIMIT)
        return self.observe(), reward.astype(np.float32), terminated, truncated


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(4, HIDDEN)
        self.values = nn.Linear(HIDDEN, 3)

    def forward(self, obs: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        state = self.cell(obs, state)
        return self.values(state), state

    def unroll(self, obs: Tensor, state: Tensor, is_first: Tensor) -> tuple[Tensor, Tensor]:
        """Values and states at every position of sequences."""
        values, states = [], []
        for position in range(obs.shape[1]):
            state = state * ~is_first[:, position, None]  # another episode: nothing to remember
            value, state = self(obs[:, position], state)
            values.append(value)
            states.append(state)
        return torch.stack(values, 1), torch.stack(states, 1)


class Agent:
    def __init__(self) -> None:
        self.network = Network()
        self.target = copy.deepcopy(self.network).requires_grad_(False)
        self.optimizer = torch.optim.Adam(self.network.parameters(), LEARNING_RATE, fused=True)

    @torch.no_grad()
    def greedy(self, obs: np.ndarray, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        values, after = self.network(torch.as_tensor(obs), torch.as_tensor(state))
        return values.argmax(1).numpy(), after.numpy()

    def learn(self, batch: rc.Batch) -> np.ndarray:
        """Returns the priority of each sequence."""
        data = batch.to_torch()
        begin = data["state"][:, 0]  # what the agent remembered when it was there
        values, states = self.network.unroll(data["obs"], begin, data["is_first"])
        value = values.gather(2, data["action"][..., None]).squeeze(2)
        with torch.no_grad():
            best = self.network(data["next_obs"].flatten(0, 1), states.flatten(0, 1))[0].argmax(1)
            _, slow = self.target.unroll(data["obs"], begin, data["is_first"])
            following = self.target(data["next_obs"].flatten(0, 1), slow.flatten(0, 1))[0]
            following = following.gather(1, best[:, None]).view_as(value)
            goal = data["reward"] + GAMMA * data["bootstrap"] * following
        # Burn-in positions only warm the state up. Where an episode goes on and the next
        # observation is not stored yet, there is nothing to learn from.
        counts = data["valid"] & ~data["burn_in"] & (data["bootstrap"] | data["terminated"])
        error = (goal - value).abs() * counts
        weights = torch.as_tensor(batch.info.weights, dtype=torch.float32)
        loss = (weights * (error**2).sum(1)).sum() / counts.sum()
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.network.parameters(), 10.0)
        self.optimizer.step()
        with torch.no_grad():
            for slow_part, fast_part in zip(
                self.target.parameters(), self.network.parameters(), strict=True
            ):
                slow_part.lerp_(fast_part, FOLLOW)
        error = error.detach()
        return (0.9 * error.amax(1) + 0.1 * error.sum(1) / counts.sum(1).clamp(min=1)).numpy()


def evaluate(agent: Agent, episodes: int, seed: int) -> float:
    """The share of greedy episodes that turn the right way."""
    mazes, state = Mazes(episodes, seed), np.zeros((episodes, HIDDEN), np.float32)
    right, running = 0, np.ones(episodes, bool)
    while running.any():
        action, state = agent.greedy(mazes.observe(), state)
        _, reward, terminated, truncated = mazes.step(action)
        right += int((running & terminated & (reward > 0)).sum())
        running &= ~(terminated | truncated)
    return right / episodes


def train(seed: int, updates: int, points: int) -> list[tuple[int, float]]:
    """Act in all mazes, store, and learn from sequences; returns the learning curve."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    agent, mazes = Agent(), Mazes(ENVS, seed)
    buffer = rc.ReplayBuffer(
        40_000, num_envs=ENVS, sampler=rc.Prioritized(alpha=0.6, beta=0.4), seed=seed
    )
    state = np.zeros((ENVS, HIDDEN), np.float32)
    curve = [(0, evaluate(agent, 200, seed))]
    for step in range(1, WARM_UP + updates + 1):
        obs = mazes.observe()
        action, after = agent.greedy(obs, state)
        epsilon = np.interp(step, [0, updates // 2], EPSILON)
        action = np.where(rng.random(ENVS) < epsilon, rng.integers(3, size=ENVS), action)
        following, reward, terminated, truncated = mazes.step(action)
        buffer.extend(
            obs=obs, state=state, action=action, reward=reward,
            terminated=terminated, truncated=truncated,
            final_obs=following,  # read only where an episode ends
        )  # fmt: skip
        ended = terminated | truncated
        mazes.begin(ended)
        state = after * ~ended[:, None]

        if step <= WARM_UP:
            continue
        batch = buffer.sample_sequences(BATCH, LENGTH, burn_in=BURN_IN, across_episodes="reset")
        buffer.update_priorities(batch.info.keys, agent.learn(batch) + 1e-3)
        if (step - WARM_UP) % (updates // points) == 0:
            curve.append((step * ENVS, evaluate(agent, 200, seed + step)))
            print(f"{step * ENVS:>7,} steps  score {curve[-1][1]:5.3f}  {len(buffer):,} stored")
    return curve


if __name__ == "__main__":
    learning_curve.run(
        train,
        __doc__,
        name="recurrent_memory",
        short=(800, 8),  # updates, points of the curve
        full=(1_600, 32),
        score="share that turns the right way",
        levels={"without memory": 0.5},
    )
