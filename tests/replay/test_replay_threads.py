"""Writers and samplers of a replay buffer at once: no row is torn, and every count ends right.

Every step carries its number in all its bytes, and the next step of its episode has the next
number, so a row that mixes two writes, a next observation of another step, or memory that was used
again too early shows in any single read.
"""

from __future__ import annotations

import itertools
import random
import threading
from typing import Any

import numpy as np
import pytest
from replay_model import legal_starts
from thread_crew import Crew

import recollect as rc

WIDTH = 600  # numbers in an observation
APART = 1_000_000  # between the numbers of two environments, and of two episodes


class Workers:
    """Verbs for threads, and a tally of what they did."""

    def __init__(self, buffer: rc.ReplayBuffer, num_envs: int) -> None:
        self.buffer = buffer
        self.lock = threading.Lock()
        self.locks = [threading.Lock() for _ in range(num_envs)]
        self.numbers = [1 + env * 1000 * APART for env in range(num_envs)]
        self.tally = dict.fromkeys(("added", "drawn", "updated", "walked"), 0)
        self.keys: set[int] = set()

    def count(self, what: str, by: int) -> None:
        with self.lock:
            self.tally[what] += by

    def steps(self, env: int, count: int, end: str | None, final: bool) -> dict[str, Any]:
        """The next steps of an environment; the last may end its episode."""
        numbers = self.numbers[env] + np.arange(count)
        self.numbers[env] += count
        columns: dict[str, Any] = {
            "obs": np.repeat(numbers, WIDTH).reshape(count, WIDTH),
            "action": numbers,
            "reward": (numbers % 97).astype(np.float32),
        }
        if end is not None:
            columns[end] = np.arange(count) == count - 1
            if final:
                columns["final_obs"] = np.repeat(numbers + 1, WIDTH).reshape(count, WIDTH)
                columns["has_final"] = columns[end]
            self.numbers[env] += APART
        return columns

    def add(self, rng: random.Random) -> None:
        """A stretch of one environment; its lock keeps its numbers in order."""
        env = rng.randrange(len(self.locks))
        count = rng.randint(1, 9)
        end = rng.choice([None, None, "terminated", "truncated"])
        with self.locks[env]:
            columns = self.steps(env, count, end, rng.random() < 0.5)
            if count == 1:
                options = {name: column[0] for name, column in columns.items()}
                options.pop("has_final", None)
                keys = [self.buffer.add(env_id=env, **options)]
            else:
                keys = self.buffer.extend(env_ids=env, **columns).tolist()
        with self.lock:
            assert not self.keys & set(keys), "a key was given twice"
            self.keys.update(keys)
            self.tally["added"] += len(keys)

    def sample(self, rng: random.Random) -> None:
        n = rng.randint(1, 12)
        try:
            batch = self.buffer.sample(n, timeout=0.05)
        except rc.WaitTimeout:
            return
        check_transitions(batch)
        self.count("drawn", n)

    def sequences(self, rng: random.Random) -> None:
        n, length = rng.randint(1, 5), rng.choice([2, 3, 5])
        mode = rng.choice(["stop", "pad"])
        try:
            batch = self.buffer.sample_sequences(n, length, across_episodes=mode, timeout=0.05)
        except rc.WaitTimeout:
            return
        check_sequences(batch)
        self.count("drawn", n)

    def update(self, rng: random.Random) -> None:
        try:
            batch = self.buffer.sample(8, timeout=0.05)
        except rc.WaitTimeout:
            return
        self.count("drawn", 8)
        self.buffer.update_priorities(batch.info.keys, [rng.choice([0.1, 1.0, 4.0])] * 8)
        self.count("updated", 8)

    def walk(self, rng: random.Random) -> None:
        table = self.buffer.episodes()
        lengths = table["length"]
        assert (lengths > 0).all()
        assert len(self.buffer) <= self.buffer.stats()["capacity"]
        try:
            batch = self.buffer.sample_episodes(2, timeout=0.05)
        except rc.WaitTimeout:
            return
        check_rows(batch["obs"], batch["action"])
        offsets = batch.info.row_offsets
        for start, stop in itertools.pairwise(offsets):
            assert (np.diff(batch["action"][start:stop]) == 1).all(), "episodes were mixed"
        self.count("drawn", 2)
        self.count("walked", 1)


def check_rows(obs: np.ndarray, numbers: np.ndarray) -> None:
    assert (obs == numbers[..., None]).all(), "a row is torn"


def check_transitions(batch: rc.Batch) -> None:
    numbers = batch["action"]
    check_rows(batch["obs"], numbers)
    assert (batch["reward"] == (numbers % 97).astype(np.float32)).all()
    following = batch["next_obs"]
    blank = (following == 0).all(axis=1)
    assert (batch["discount"][blank] == 0).all()
    check_rows(following[~blank], numbers[~blank] + 1)


def check_sequences(batch: rc.Batch) -> None:
    numbers, valid = batch["action"], batch["valid"]
    check_rows(batch["obs"], numbers)
    both = valid[:, 1:] & valid[:, :-1]
    assert (np.diff(numbers, axis=1)[both] == 1).all(), "a sequence crosses an episode"
    real = batch["bootstrap"]
    check_rows(batch["next_obs"][real], numbers[real] + 1)


@pytest.mark.parametrize(
    "sampler", [rc.Uniform(), rc.Prioritized()], ids=["uniform", "prioritized"]
)
def test_writers_and_samplers_at_once_tear_no_row(sampler: rc.Selector) -> None:
    num_envs, ring = 4, 150
    buffer = rc.ReplayBuffer(
        num_envs * ring, num_envs=num_envs, sampler=sampler, recent=(100, 0.25), seed=0
    )
    workers = Workers(buffer, num_envs)
    for seed in range(20):
        workers.add(random.Random(seed))
    crew = Crew()
    for verb, count in (
        (workers.add, 6),
        (workers.sample, 4),
        (workers.sequences, 4),
        (workers.update, 2),
        (workers.walk, 2),
    ):
        for _ in range(count):
            crew.add(verb)
    crew.run(3.0)

    stats, tally = buffer.stats(), workers.tally
    assert stats["inserts"] == tally["added"] == len(workers.keys)
    assert stats["samples"] == tally["drawn"]
    assert len(buffer) == stats["inserts"] - stats["removals"]
    assert len(buffer) == int(buffer.episodes()["length"].sum())
    assert all(count > 0 for count in tally.values()), tally
    assert tally["added"] > 3 * num_envs * ring, "there was too little churn to prove anything"
    starts = legal_starts(buffer)
    batch = buffer.sample(len(starts), replace=False, timeout=0)
    check_transitions(batch)
    assert sorted(batch.info.keys.tolist()) == starts
    assert set(starts) <= workers.keys


def test_held_batches_never_change_while_rings_are_overwritten() -> None:
    num_envs, ring = 2, 200
    buffer = rc.ReplayBuffer(num_envs * ring, num_envs=num_envs, seed=0)
    workers = Workers(buffer, num_envs)
    for seed in range(100):
        workers.add(random.Random(seed))
    crew = Crew()
    for _ in range(3):
        crew.add(workers.add)
    crew.add(workers.sample)

    def hold(rng: random.Random) -> None:
        batches = [buffer.sample(rng.randint(1, 40)) for _ in range(3)]
        batches += [buffer.sample_sequences(4, 3, across_episodes="pad")]
        copies = [{n: c.tobytes() for n, c in batch.columns.items()} for batch in batches]
        crew.stop.wait(0.1)
        for batch, copy in zip(batches, copies, strict=True):
            for name, column in batch.columns.items():
                assert column.tobytes() == copy[name], f"{name} of a held batch changed"

    for _ in range(3):
        crew.add(hold)
    crew.run(3.0)
    assert buffer.stats()["removals"] > 5 * num_envs * ring


def test_many_samplers_wait_for_one_writer() -> None:
    buffer = rc.ReplayBuffer(100, limiter=rc.MinSize(20), seed=0)
    got: list[int] = []
    lock = threading.Lock()

    def wait() -> None:
        batch = buffer.sample(4, timeout=30)
        with lock:
            got.append(len(batch["obs"]))

    threads = [threading.Thread(target=wait, daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    for number in range(20):
        assert not got
        buffer.add(obs=np.float32(number), action=0, reward=np.float32(0))
    for thread in threads:
        thread.join(30)
    assert got == [4] * 8
