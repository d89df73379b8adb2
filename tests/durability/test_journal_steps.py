"""A replay buffer that is filled again from its journal is the buffer that wrote it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from journal_state import flushed_copy
from replay_starts import start_keys

import recollect as rc
from recollect.kernels import steps_layout as sl

SHAPES: dict[str, dict[str, Any]] = {
    "one environment": {"capacity": 9},
    "several": {"capacity": 21, "num_envs": 3, "sampler": rc.Prioritized()},
    "stacked": {"capacity": 40, "num_envs": 2, "frame_stack": 3, "recent": (8, 0.5)},
    "reward at next": {"capacity": 16, "num_envs": 2, "reward_at": "next", "n_step": 3},
    "large": {"capacity": 400, "num_envs": 4, "sampler": rc.Prioritized(alpha=1.0)},
}


def step(rng: random.Random, nested: bool) -> dict[str, Any]:
    state = np.array([rng.random(), rng.random()], np.float32)
    obs: Any = {"state": state, "image": np.full((2, 2), rng.randrange(256), np.uint8)}
    return {
        "obs": obs if nested else state,
        "action": rng.randrange(4),
        "reward": rng.random(),
    }


class Caller:
    def __init__(self, buffer: rc.ReplayBuffer, seed: int, nested: bool) -> None:
        self.buffer, self.nested = buffer, nested
        self.rng = random.Random(seed)
        self.keys: list[int] = []
        self.begun = [False] * buffer.num_envs

    def call(self) -> None:
        rng, buffer = self.rng, self.buffer
        choice = rng.random()
        if choice < 0.5:
            self.add()
        elif choice < 0.7:
            self.extend()
        elif choice < 0.8 and len(buffer) and self.keys:
            try:
                buffer.sample(3, timeout=0)
            except rc.WaitTimeout:
                return
        elif choice < 0.97 and self.keys:
            keys = np.array(rng.choices(self.keys, k=3), np.uint64)
            values: Any = rng.random() if rng.random() < 0.3 else [rng.random(), 0.0, 1.5]
            buffer.update_priorities(keys, values)
        elif choice > 0.99:
            buffer.clear()

    def add(self) -> None:
        rng, buffer = self.rng, self.buffer
        env = rng.randrange(buffer.num_envs)
        marks: dict[str, Any] = {}
        may_end = buffer.reward_at == "this" or self.begun[env]
        if rng.random() < 0.3 and may_end:
            marks["terminated" if rng.random() < 0.5 else "truncated"] = True
            if rng.random() < 0.5 and buffer.reward_at == "this":
                marks["final_obs"] = step(rng, self.nested)["obs"]
        elif rng.random() < 0.1:
            marks["first"] = True
        self.begun[env] = not marks or "first" in marks
        self.keys.append(buffer.add(env_id=env, **step(rng, self.nested), **marks))

    def extend(self) -> None:
        rng, buffer = self.rng, self.buffer
        steps = [step(rng, self.nested) for _ in range(buffer.num_envs)]
        columns: dict[str, Any] = {n: np.stack([s[n] for s in steps]) for n in ("action", "reward")}
        columns["obs"] = self.stacked([s["obs"] for s in steps])
        if buffer.reward_at == "this":
            columns["terminated"] = np.array([rng.random() < 0.2 for _ in steps])
            if rng.random() < 0.5:
                finals = [step(rng, self.nested)["obs"] for _ in steps]
                columns["final_obs"] = self.stacked(finals)
                columns["has_final"] = columns["terminated"].copy()
            self.begun = [not ended for ended in columns["terminated"].tolist()]
        else:
            self.begun = [True] * buffer.num_envs
        ids = None if buffer.num_envs > 1 else 0
        self.keys += buffer.extend(env_ids=ids, **columns).tolist()
        columns["reward"][:] = -1  # what a caller does to its arrays later is not journaled

    def stacked(self, cells: list[Any]) -> Any:
        if not self.nested:
            return np.stack(cells)
        return {name: np.stack([cell[name] for cell in cells]) for name in cells[0]}


def buffer_state(buffer: rc.ReplayBuffer) -> dict[str, Any]:
    rings, draws = buffer.core.rings, buffer.core.draws
    state: dict[str, Any] = {
        name: value for name, value in buffer.stats().items() if not name.startswith("waiting")
    }
    state["steps"] = buffer.to_arrow().to_pylist() if len(buffer) else []
    state["episodes"] = buffer.episodes().to_pandas().to_dict() if len(buffer) else {}
    state["newest"], state["oldest"] = rings.newest.tolist(), rings.oldest.tolist()
    state["random"] = draws.random.tolist()
    state["calls"], state["credit"] = draws.calls, draws.credit
    state["overwritten"] = int(rings.now[sl.OVERWRITTEN])
    stored = [
        (env * rings.ring + row % rings.ring)
        for env in range(rings.envs)
        for row in range(rings.oldest[env], rings.newest[env])
    ]
    state["priority"] = None if rings.priority is None else rings.priority[stored].tolist()
    state["flags"] = rings.flags[stored].tolist()
    state["starts"] = start_keys(buffer).tolist() if len(buffer) else []
    return state


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_replay_equals_the_live_buffer_for_random_calls(
    shape: str, nested: bool, tmp_path: Path
) -> None:
    options = {**SHAPES[shape], "seed": 1}
    buffer = rc.ReplayBuffer(
        journal=rc.Journal(tmp_path / "j", sync="off", interval=1e9), **options
    )
    caller = Caller(buffer, len(shape), nested)
    for part in range(3):
        for _ in range(60):
            caller.call()
        copy = flushed_copy(buffer, tmp_path / f"copy-{part}")
        again = rc.ReplayBuffer(journal=rc.Journal(copy, sync="off"), **options)
        assert buffer_state(again) == buffer_state(buffer)
        again.close()
    buffer.close()
