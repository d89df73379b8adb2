"""Steps of episodes, the same for every implementation: streams that repeat without a seam."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from bench.data import Rows, make_rows
from bench.workloads.base import Column
from bench.workloads.w5 import LONGEST, SHORTEST
from bench.workloads.w5_frames import FRAME, STACK

STREAM = 2**15
VECTOR_STREAM = 2**10  # per environment
FRAME_STREAM = 2**10


@cache
def make_steps(columns: tuple[Column, ...], steps: int = STREAM, seed: int = 0) -> Rows:
    """Whole episodes one after the other; `next_obs` is the next row's `obs` but at an end.

    Made once in a process, in the rehearsal, so that no buffer's memory is charged with it.
    """
    rows = make_rows(columns, steps, seed)
    rows["done"] = _ends(np.random.default_rng(seed), steps)
    inside = np.flatnonzero(~rows["done"])
    rows["next_obs"][inside] = rows["obs"][inside + 1]
    return rows


def stretches(steps: Rows, size: int) -> list[Rows]:
    """The stream cut into inserts of that many steps."""
    count = len(steps["done"]) // size
    return [
        {name: cells[i * size : (i + 1) * size] for name, cells in steps.items()}
        for i in range(count)
    ]


@cache
def make_vector_steps(columns: tuple[Column, ...], environments: int) -> list[Rows]:
    """One step of every environment at a time; each environment has episodes of its own."""
    each = [make_steps(columns, VECTOR_STREAM, seed) for seed in range(environments)]
    stacked = {name: np.stack([one[name] for one in each], axis=1) for name in each[0]}
    return [
        {name: np.ascontiguousarray(cells[i]) for name, cells in stacked.items()}
        for i in range(VECTOR_STREAM)
    ]


@cache
def make_frames() -> Rows:
    """Single frames of episodes as `obs`, and one frame that ends them all."""
    random = np.random.default_rng(0)
    return {
        "obs": random.integers(0, 256, (FRAME_STREAM, *FRAME), dtype=np.uint8),
        "final": random.integers(0, 256, FRAME, dtype=np.uint8),
        "action": random.integers(0, 6, FRAME_STREAM).astype(np.int32),
        "reward": random.standard_normal(FRAME_STREAM, dtype=np.float32),
        "done": _ends(random, FRAME_STREAM),
    }


def make_stacks() -> Rows:
    """The same steps as a wrapper that stacks frames gives them, with `next_obs`."""
    steps = make_frames()
    obs = np.empty((FRAME_STREAM, STACK, *FRAME), np.uint8)
    following = np.empty_like(obs)
    first = 0
    for i, done in enumerate(steps["done"]):
        seen = [max(first, i - back) for back in reversed(range(STACK))]
        obs[i] = steps["obs"][seen]
        following[i, :-1] = obs[i, 1:]
        following[i, -1] = steps["final"] if done else steps["obs"][i + 1]
        if done:
            first = i + 1
    return {
        "obs": obs,
        "next_obs": following,
        "action": steps["action"],
        "reward": steps["reward"],
        "done": steps["done"],
    }


def _ends(random: np.random.Generator, steps: int) -> np.ndarray[Any, Any]:
    """Marks of episodes of the workload's lengths; the last one ends with the stream."""
    ends = np.zeros(steps, bool)
    left = steps
    while left > LONGEST:
        left -= int(random.integers(SHORTEST, min(LONGEST, left - SHORTEST) + 1))
        ends[steps - left - 1] = True
    ends[-1] = True
    return ends
