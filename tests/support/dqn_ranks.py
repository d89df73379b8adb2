"""Ranks that learn together, for a test: a DQN with priorities, gradients averaged at every step.

    python tests/dqn_ranks.py FOLDER RANKS OPTIONS

Each rank walks along a corridor of its own and has a replay buffer of its own. A barrier and
shared memory are the collective: if a rank dies, the others hang in it. Rank 0 keeps the network
beside the checkpoints, as a training program would.
"""

from __future__ import annotations

import json
import mmap
import multiprocessing
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

import recollect as rc

CELLS = 12
HIDDEN = 24
GAMMA = 0.9
SHAPES = ((CELLS, HIDDEN), (HIDDEN,), (HIDDEN, 2), (2,))
SIZE = sum(int(np.prod(shape)) for shape in SHAPES)


class Network:
    """Two layers, by hand; parameters are one array."""

    def __init__(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        scale = np.concatenate([np.full(int(np.prod(s)), len(s) - 1.0) for s in SHAPES])
        self.parameters = random.normal(0.0, 0.3, SIZE) * scale
        self._mean, self._square, self._count = np.zeros(SIZE), np.zeros(SIZE), 0

    def _parts(self, array: np.ndarray) -> list[np.ndarray]:
        ends = np.cumsum([int(np.prod(shape)) for shape in SHAPES])
        return [p.reshape(s) for p, s in zip(np.split(array, ends[:-1]), SHAPES, strict=True)]

    def values(self, obs: np.ndarray, parameters: np.ndarray | None = None) -> np.ndarray:
        w1, b1, w2, b2 = self._parts(self.parameters if parameters is None else parameters)
        return np.maximum(obs @ w1 + b1, 0.0) @ w2 + b2

    def gradient(self, obs: np.ndarray, action: np.ndarray, error: np.ndarray) -> np.ndarray:
        """Of the weighted squared error, `error` being weight times (value - goal)."""
        w1, b1, w2, _ = self._parts(self.parameters)
        hidden = np.maximum(obs @ w1 + b1, 0.0)
        out = np.zeros((len(obs), 2))
        out[np.arange(len(obs)), action] = error / len(obs)
        back = (out @ w2.T) * (hidden > 0)
        parts = [obs.T @ back, back.sum(0), hidden.T @ out, out.sum(0)]
        return np.concatenate([part.ravel() for part in parts])

    def step(self, gradient: np.ndarray, rate: float = 0.01) -> None:
        self._count += 1
        self._mean += 0.1 * (gradient - self._mean)
        self._square += 0.01 * (gradient**2 - self._square)
        mean = self._mean / (1 - 0.9**self._count)
        square = self._square / (1 - 0.99**self._count)
        self.parameters = self.parameters - rate * mean / (np.sqrt(square) + 1e-8)


def seen(place: int) -> np.ndarray:
    obs = np.zeros(CELLS, np.float32)
    obs[place] = 1.0
    return obs


def score(network: Network) -> float:
    """What greedy walks from each cell are worth, of what they could be."""
    best = worth = 0.0
    for start in range(CELLS - 1):
        place, steps = start, 0
        while place < CELLS - 1 and steps < 2 * CELLS:
            place = max(0, place + (1 if network.values(seen(place)).argmax() else -1))
            steps += 1
        worth += GAMMA**steps if place == CELLS - 1 else 0.0
        best += GAMMA ** (CELLS - 1 - start)
    return worth / best


class Learner:
    """One rank."""

    def __init__(
        self,
        folder: Path,
        rank: int,
        count: int,
        shared: Any,
        barrier: Any,
        options: dict[str, Any],
    ) -> None:
        self.folder, self.rank, self.count, self.options = folder, rank, count, options
        self._gradients = np.frombuffer(shared, np.float64).reshape(count, SIZE)
        self._barrier = barrier
        self._file = open(folder / f"rank-{rank}.jsonl", "a", buffering=1)  # noqa: SIM115
        self.random = np.random.default_rng(options["seed"] + rank)
        self.network = Network(options["seed"])
        self.target = self.network.parameters
        self.buffer = rc.ReplayBuffer(
            6000,
            sampler=rc.Prioritized(alpha=0.6, beta=rc.Linear(0.4, 1.0, 2000)),
            limiter=rc.MinSize(30),
            n_step=3,
            gamma=GAMMA,
            seed=options["seed"] + rank,
        )

    def say(self, **what: Any) -> None:
        self._file.write(json.dumps(what) + "\n")

    def average(self, gradient: np.ndarray) -> np.ndarray:
        self._gradients[self.rank] = gradient
        self._barrier.wait()
        mean = self._gradients.mean(axis=0)
        self._barrier.wait()
        return mean

    def run(self) -> None:
        self.say(pid=os.getpid())
        options = self.options
        with rc.Checkpoints(
            self.folder / "saved", self.buffer, self.rank, self.count, timeout=5.0
        ) as checkpoints:
            done = checkpoints.load(allow_partial=options.get("allow_partial", False))
            if done is not None:
                model = np.load(self.folder / "model.npz")
                self.network.parameters = self.target = model["parameters"]
            stats = self.buffer.stats()
            self.say(
                loaded=done, size=len(self.buffer), calls=stats["sample_calls"],
                score=score(self.network), samples=stats["samples"],
            )  # fmt: skip
            self.train(checkpoints, 0 if done is None else done)

    def train(self, checkpoints: rc.Checkpoints, step: int) -> None:
        place = steps = 0
        options = self.options
        while step < options["steps"]:
            step += 1
            for _ in range(3):
                place, steps = self.walk(place, steps)
            self.network.step(self.average(self.learn()))
            self.target = 0.9 * self.target + 0.1 * self.network.parameters
            if options.get("request") == [self.rank, step]:
                checkpoints.request().add_done_callback(lambda f: self.say(answer=f.result().name))
            if self.rank == 0:
                np.savez(self.folder / "new.npz", parameters=self.network.parameters)
                os.replace(self.folder / "new.npz", self.folder / "model.npz")
            path = checkpoints.maybe_save(step)
            if path is not None:
                self.say(
                    saved=step, path=path.name, size=len(self.buffer), score=score(self.network)
                )
                if options.get("stop_when_saved"):
                    self._barrier.wait()  # the answer comes when all have saved
                    return
            if options.get("fail") == [self.rank, step]:
                raise ArithmeticError("a rank fails")
            if step % 20 == 0:
                self.say(step=step)
        self.say(done=step, score=score(self.network))

    def walk(self, place: int, steps: int) -> tuple[int, int]:
        """One step of the environment."""
        greedy = self.network.values(seen(place)).argmax()
        action = int(self.random.integers(2) if self.random.random() < 0.3 else greedy)
        after = max(0, place + (1 if action else -1))
        goal, late = after == CELLS - 1, steps + 1 == 60
        self.buffer.add(
            obs=seen(place), action=action, reward=float(goal), terminated=goal,
            truncated=late and not goal, final_obs=seen(after) if goal or late else None,
        )  # fmt: skip
        if goal or late:
            return int(self.random.integers(CELLS - 1)), 0
        return after, steps + 1

    def learn(self) -> np.ndarray:
        if len(self.buffer) < 40:
            return np.zeros(SIZE)
        batch = self.buffer.sample(32)
        rows, action = np.arange(32), batch["action"]
        best = self.network.values(batch["next_obs"]).argmax(1)
        following = self.network.values(batch["next_obs"], self.target)[rows, best]
        goal = batch["reward"] + batch["discount"] * following
        error = self.network.values(batch["obs"])[rows, action] - goal
        self.buffer.update_priorities(batch.info.keys, np.abs(error) + 1e-3)
        return self.network.gradient(batch["obs"], action, batch.info.weights * error)


def main() -> None:
    folder, count, options = Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
    rc.ReplayBuffer(10)  # kernels are loaded once, before the forks
    shared = mmap.mmap(-1, 8 * SIZE * count)
    barrier = multiprocessing.get_context("fork").Barrier(count)
    ranks = {}
    for rank in range(count):
        pid = os.fork()
        if pid == 0:
            try:
                Learner(folder, rank, count, shared, barrier, options).run()
            except BaseException:
                sys.excepthook(*sys.exc_info())
                os._exit(1)
            os._exit(0)
        ranks[pid] = rank
    while ranks:
        pid, status = os.wait()
        done = folder / f"ended-{ranks.pop(pid)}"
        done.write_text(str(os.waitstatus_to_exitcode(status)))


if __name__ == "__main__":
    main()
