"""The classic half of the demo: prioritized transitions of a grid world, in a journaled buffer.

Sixteen environments walk through a grid with a wall to a goal; a table of values learns from what
was drawn by priority. The process is killed and goes on as the one with rollouts does.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from recollect.base.arrays import Floats
from recollect.demo.messages import stopping, tell
from recollect.durability.journal.journal import Journal
from recollect.replay.buffer import ReplayBuffer
from recollect.rules.selectors import Prioritized

TITLE = "Recollect: prioritized transitions"
NOUN = "steps"
HISTOGRAM = "priorities of what is stored"

SIDE, ENVS, BATCH = 9, 16, 256
GAMMA, RATE, EXPLORING = 0.97, 0.2, 0.3
LIMIT = 120  # steps of an episode
MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))
GOAL = (SIDE - 1, SIDE - 1)
WALL = {(row, SIDE // 2) for row in range(2, SIDE)}
CELLS = [(r, c) for r in range(SIDE) for c in range(SIDE) if (r, c) not in WALL]
SAVED, TOLD = 100, 0.2


def moved(cell: tuple[int, int], action: int) -> tuple[tuple[int, int], float, bool]:
    """The next cell, the reward, and whether the goal was reached."""
    row, column = cell[0] + MOVES[action][0], cell[1] + MOVES[action][1]
    inside = 0 <= row < SIDE and 0 <= column < SIDE and (row, column) not in WALL
    after = (row, column) if inside else cell
    return after, float(after == GOAL), after == GOAL


def made(folder: Path) -> ReplayBuffer:
    return ReplayBuffer(
        20_000,
        num_envs=ENVS,
        n_step=3,
        gamma=GAMMA,
        sampler=Prioritized(alpha=0.6, beta=0.4),
        journal=Journal(folder / "journal", sync="always"),
        seed=0,
    )


class GridWorldRun:
    """One life of the training process."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.values: Floats = np.zeros((SIDE, SIDE, 4))
        self.step = 0
        found = latest(folder)
        if found is not None:
            self.step, path = found
            self.values = np.load(path)
        self.rng = np.random.default_rng([seed, self.step])
        self.buffer = made(folder)
        self.cells = [self.start() for _ in range(ENVS)]
        self.ages = [0] * ENVS

    async def work(self) -> None:
        tell("began", step=self.step, stored=len(self.buffer), size=self.values.size)
        stop = stopping()
        looked = asyncio.get_running_loop().time()
        marks: dict[str, Any] = {"first": [True] * ENVS}  # nobody ends what a killed process began
        while not stop.is_set():
            self.walk(marks)
            marks = {}
            if len(self.buffer) >= BATCH:
                self.learn()
            if asyncio.get_running_loop().time() - looked > TOLD:
                looked = asyncio.get_running_loop().time()
                tell("look", **self.look())
            await asyncio.sleep(0.002)
        self.save()
        tell("ended", step=self.step, solved=self.solved(), accounts=accounts(self.buffer))
        self.buffer.close()

    def walk(self, marks: dict[str, Any]) -> None:
        """A step of each environment."""
        before, actions, rewards, ends, cuts = list(self.cells), [], [], [], []
        after = []
        for env, cell in enumerate(before):
            values = self.values[cell]
            best = np.flatnonzero(values == values.max())  # several, as long as nothing is known
            chosen = range(4) if self.rng.random() < EXPLORING else best
            action = int(self.rng.choice(chosen))
            moved_to, reward, ended = moved(cell, action)
            self.ages[env] += 1
            cut = not ended and self.ages[env] >= LIMIT
            actions.append(action)
            rewards.append(reward)
            ends.append(ended)
            cuts.append(cut)
            after.append(moved_to)
            over = ended or cut
            self.cells[env] = self.start() if over else moved_to
            if over:
                worth = ended * GAMMA ** self.ages[env]
                tell("put", task="return", reward=worth, tokens=0, count=0)
                self.ages[env] = 0
        self.buffer.extend(
            obs=before, action=actions, reward=rewards,
            terminated=ends, truncated=cuts, final_obs=after, **marks,
        )  # fmt: skip
        tell("put", task=None, reward=0.0, tokens=0, count=ENVS)

    def start(self) -> tuple[int, int]:
        return CELLS[self.rng.integers(len(CELLS))]

    def learn(self) -> None:
        batch = self.buffer.sample(BATCH)
        here, there = tuple(batch["obs"].T), tuple(batch["next_obs"].T)
        target = batch["reward"] + batch["discount"] * self.values[there].max(axis=1)
        errors = target - self.values[(*here, batch["action"])]
        np.add.at(self.values, (*here, batch["action"]), RATE * batch.info.weights * errors)
        self.buffer.update_priorities(batch.info.keys, np.abs(errors) + 1e-3)
        self.step += 1
        if self.step % SAVED == 0:
            self.save()
        tell("step", step=self.step, replayed=1.0, reward=0.0)

    def save(self) -> None:
        folder = self.folder / "weights"
        folder.mkdir(exist_ok=True)
        np.save(folder / "half.npy", self.values)
        (folder / "half.npy").replace(folder / f"{self.step}.npy")
        saved = self.buffer.save(self.folder / "snapshots", step=self.step, keep_last=2)
        tell("saved", step=self.step, written=saved.bytes_written)

    def solved(self) -> dict[str, float]:
        """From how many cells the likeliest moves lead to the goal."""
        return {"cells": sum(map(self._arrives, CELLS)) / len(CELLS)}

    def _arrives(self, cell: tuple[int, int]) -> bool:
        for _ in range(4 * SIDE):
            if cell == GOAL:
                return True
            cell = moved(cell, int(self.values[cell].argmax()))[0]
        return False

    def look(self) -> dict[str, Any]:
        stats = self.buffer.stats()
        drawn = self.buffer.sample(256) if stats["size"] else None
        priorities: Counter[str] = Counter()
        if drawn is not None:
            powers = np.floor(np.log10(np.maximum(drawn.info.priority, 1e-3))).astype(int)
            priorities.update(f"{10.0**power:g}" for power in powers)
        return {
            "stored": stats["size"],
            "capacity": self.buffer.capacity,
            "nbytes": stats["nbytes"],
            "histogram": {name: priorities[name] for name in sorted(priorities, key=float)},
            "counts": [["episodes", "stored", len(self.buffer.episodes()["env"])]],
            "solved": self.solved(),
        }


def warm() -> None:
    """Have the kernels compiled, which is done once per installation, before anybody watches."""
    buffer = ReplayBuffer(10, sampler=Prioritized())
    buffer.add(obs=[0], action=0, reward=0.0, terminated=True)
    buffer.sample(1)


def accounts(buffer: ReplayBuffer) -> dict[str, dict[str, Any]]:
    stats = buffer.stats()
    left = {"overwritten": stats["removals"]} if stats["removals"] else {}
    return {NOUN: {"put": stats["inserts"], "stored": stats["size"], "leased": 0, "left": left}}


def latest(folder: Path) -> tuple[int, Path] | None:
    """The step of the last values, and where they are."""
    found = [(int(path.stem), path) for path in folder.glob("weights/[0-9]*.npy")]
    return max(found) if found else None


def recovered(folder: Path) -> dict[str, dict[str, Any]]:
    """What a journal holds, asked by another process."""
    buffer = made(folder)
    try:
        return accounts(buffer)
    finally:
        buffer.close()


if __name__ == "__main__":
    asyncio.run(GridWorldRun(Path(sys.argv[1]), int(sys.argv[2])).work())
