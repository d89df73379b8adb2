"""What a replay buffer costs: work that does not grow with it, and memory beyond the payload."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from replay_starts import looked_at

import recollect as rc

SMALL, LARGE = 2_000, 1_000_000


def filled(capacity: int, episode: int, **options: Any) -> rc.ReplayBuffer:
    """A full buffer of tiny steps in episodes of about one length, wrapped around once."""
    buffer = rc.ReplayBuffer(capacity, seed=0, **options)
    rng = np.random.default_rng(0)
    left = capacity + capacity // 3
    while left > 0:
        count = min(left, 50_000)
        buffer.extend(
            env_ids=0,
            obs=rng.random((count, 2), np.float32),
            action=np.zeros(count, np.int64),
            reward=np.ones(count, np.float32),
            terminated=rng.random(count) < 1 / episode,
        )
        left -= count
    return buffer


def add_one(buffer: rc.ReplayBuffer) -> None:
    buffer.add(obs=np.zeros(2, np.float32), action=0, reward=np.float32(0))


def update(buffer: rc.ReplayBuffer) -> None:
    newest = buffer.stats()["inserts"]
    keys = np.arange(newest - 64, newest, dtype=np.uint64)
    buffer.update_priorities(keys, np.ones(64))


CALLS: dict[str, Callable[[rc.ReplayBuffer], Any]] = {
    "add": add_one,
    "sample": lambda buffer: buffer.sample(64),
    "different": lambda buffer: buffer.sample(64, replace=False),
    "stop": lambda buffer: buffer.sample_sequences(32, 8),
    "pad": lambda buffer: buffer.sample_sequences(32, 8, across_episodes="pad"),
    "reset": lambda buffer: buffer.sample_sequences(32, 8, across_episodes="reset"),
    "episodes": lambda buffer: buffer.sample_episodes(4),
    "update": update,
}
SAMPLERS = {"uniform": rc.Uniform(), "prioritized": rc.Prioritized()}


def visits(buffer: rc.ReplayBuffer, call: Callable[[rc.ReplayBuffer], Any]) -> float:
    """Rows and nodes looked at in one call, on average over many."""
    before = looked_at(buffer)
    for _ in range(50):
        call(buffer)
    return (looked_at(buffer) - before) / 50


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_work_does_not_grow_with_capacity_or_episodes(sampler: str) -> None:
    buffers = {
        (capacity, episode): filled(capacity, episode, sampler=SAMPLERS[sampler])
        for capacity in (SMALL, LARGE)
        for episode in (20, 400)
    }
    for buffer in buffers.values():
        for call in CALLS.values():  # from now on a step that comes is judged for every index
            call(buffer)
    for name, call in CALLS.items():
        work = {shape: visits(buffer, call) for shape, buffer in buffers.items()}
        if (sampler, name) != ("uniform", "update"):  # no index depends on a priority there
            assert min(work.values()) > 0, f"{name} counts nothing, so it proves nothing"
        # A sum tree has a level more for every sixteenfold; whole episodes are as long as they are.
        deeper = 3.0 if sampler == "prioritized" else 1.5
        for episode in (20, 400):
            small, large = work[SMALL, episode], work[LARGE, episode]
            assert large <= deeper * small + 8, (name, work)
        if name != "episodes":
            assert work[LARGE, 20] <= 2.0 * work[LARGE, 400] + 8, (name, work)
            assert work[LARGE, 400] <= 2.0 * work[LARGE, 20] + 8, (name, work)


@pytest.mark.alone
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_time_does_not_grow_with_capacity(sampler: str) -> None:
    """Five hundred times the rows; memory that no cache holds may cost a few times more."""
    small, large = (filled(c, 100, sampler=SAMPLERS[sampler]) for c in (SMALL, LARGE))
    for call in CALLS.values():
        call(small), call(large)
    for name, call in CALLS.items():
        slow, fast = best_time(large, call), best_time(small, call)
        assert slow < 6 * fast + 2e-4, f"{name}: {slow * 1e6:.0f} µs, {fast * 1e6:.0f} µs"


def best_time(buffer: rc.ReplayBuffer, call: Callable[[rc.ReplayBuffer], Any]) -> float:
    call(buffer)
    times = []
    for _ in range(30):
        start = time.perf_counter()
        call(buffer)
        times.append(time.perf_counter() - start)
    return sorted(times)[5]


# -- memory ----------------------------------------------------------------------------------------
PRELUDE = """
    import gc, os, sys
    import numpy as np, psutil
    import recollect as rc

    def resident():
        gc.collect()
        return psutil.Process().memory_info().rss

    warm = rc.ReplayBuffer(100, sampler=SAMPLER)
    for _ in range(3):
        warm.extend(obs=np.zeros((50, 3), np.float32), action=np.zeros(50), reward=np.zeros(50))
    warm.sample(4), warm.sample_sequences(2, 3)
    del warm
    before = resident()
"""


def measured(program: str, sampler: str = "rc.Uniform()") -> dict[str, float]:
    """What a program prints as name and number, run by itself so that only it is measured."""
    text = textwrap.dedent(PRELUDE).replace("SAMPLER", sampler) + textwrap.dedent(program)
    done = subprocess.run(
        [sys.executable, "-c", text.replace("SAMPLER", sampler)],
        capture_output=True,
        text=True,
        timeout=120,
        env=dict(os.environ),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = (line.split() for line in done.stdout.splitlines())
    return {name: float(number) for name, number in lines}


FILL = """
    num_envs, ring, width = 64, 6250, 148
    buffer = rc.ReplayBuffer(num_envs * ring, num_envs=num_envs, sampler=SAMPLER, seed=0)
    columns = {
        "obs": np.ones((num_envs, width), np.uint8),
        "action": np.zeros(num_envs, np.int64),
        "reward": np.zeros(num_envs, np.float32),
        "log_prob": np.zeros(num_envs, np.float32),
        "mask": np.zeros(num_envs, np.uint8),
    }
    for turn in range(int(2.5 * ring)):
        buffer.extend(**columns, terminated=np.full(num_envs, turn % 300 == 299))
    for _ in range(20):
        buffer.sample(256)
    print("rows", len(buffer))
    print("nbytes", buffer.nbytes)
    print("allocated", buffer.allocated_bytes)
    print("resident", resident() - before)
"""


@pytest.mark.parametrize(
    ("sampler", "per_row"),
    [("rc.Uniform()", 17), ("rc.Prioritized()", 26)],
    ids=["uniform", "prioritized"],
)
def test_memory_beyond_the_payload_is_small(sampler: str, per_row: int) -> None:
    """Marks take 9 bytes a row, an index 8 (a tree and priorities 17), open segments a ninth."""
    found = measured(FILL, sampler)
    assert found["rows"] == 400_000
    payload = 400_000 * 165
    assert found["nbytes"] == payload
    allowed = payload * (1 + 1 / 9) + 400_000 * per_row
    assert payload < found["allocated"] < allowed, found
    assert payload < found["resident"] < allowed + (4 << 20), found


def test_stacked_pixels_take_a_sixth_of_two_stacks_per_step() -> None:
    """A peer stores four frames of a stack and four of the next one, for every step."""
    found = measured(
        """
        steps = 12_000
        buffer = rc.ReplayBuffer(steps, frame_stack=4, seed=0)
        frame = np.ones((84, 84), np.uint8)
        for turn in range(int(1.3 * steps)):
            ends = {"truncated": True, "final_obs": frame} if turn % 500 == 499 else {}
            buffer.add(obs=frame, action=1, reward=np.float32(0), **ends)
        batch = buffer.sample(32)
        assert batch["obs"].shape == (32, 4, 84, 84)
        del batch
        print("rows", len(buffer))
        print("resident", resident() - before)
        """
    )
    theirs = found["rows"] * (2 * 4 * 84 * 84 + 8 + 4 + 2)
    assert found["resident"] - (8 << 20) < theirs / 6, found


def test_memory_stays_level_while_rings_are_overwritten() -> None:
    found = measured(
        """
        buffer = rc.ReplayBuffer(20_000, num_envs=4, seed=0)
        columns = {
            "obs": np.ones((4, 1000), np.uint8),
            "action": np.zeros(4, np.int64),
            "reward": np.zeros(4, np.float32),
        }
        def fill(rounds):
            for turn in range(rounds * 5000):
                buffer.extend(**columns, terminated=np.full(4, turn % 100 == 99))
                if turn % 50 == 0 and turn:
                    buffer.sample(64), buffer.sample_sequences(8, 10, across_episodes="pad")
        fill(3)
        first = resident()
        fill(4)
        print("grown", resident() - first)
        """
    )
    assert found["grown"] < 6 << 20, found
