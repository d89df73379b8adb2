"""Every wrong call of a replay buffer: the error, the words it says, and that nothing changed.

Each call is made on a buffer that has a twin: same seed, same calls before. Afterwards the two must
agree in everything one can see, also in what they draw next.
"""

# ruff: noqa: E501 - one line per case makes the table readable

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from replay_model import legal_starts

import recollect as rc

INVALID, SCHEMA, NEVER, QUERY = rc.InvalidValue, rc.SchemaError, rc.NeverPossible, rc.QueryError
TIMEOUT, CLOSED_ERROR = rc.WaitTimeout, rc.TableClosed
F = np.float32


def step(**other: Any) -> dict[str, Any]:
    """Columns of one step that fit, or that do not where `other` says so; None leaves one out."""
    columns = {"obs": np.zeros(2, F), "action": 1, "reward": F(0.5), **other}
    return {name: column for name, column in columns.items() if column is not None}


def steps(n: int, **other: Any) -> dict[str, Any]:
    columns = {
        "obs": np.zeros((n, 2), F),
        "action": np.ones(n, np.int64),
        "reward": np.zeros(n, F),
        **other,
    }
    return {name: column for name, column in columns.items() if column is not None}


def plain() -> rc.ReplayBuffer:
    """Environment 0 has an open episode, 1 has just ended one, 2 is empty."""
    buffer = rc.ReplayBuffer(30, num_envs=3, sampler=rc.Prioritized(), seed=7)
    for i in range(13):
        buffer.add(**step(obs=np.full(2, i, F), terminated=i == 4))
    for i in range(4):
        ends = {"truncated": True, "final_obs": np.full(2, 50, F)} if i == 3 else {}
        buffer.add(env_id=1, **step(obs=np.full(2, 20 + i, F)), **ends)
    buffer.sample(2)
    buffer.sample_sequences(2, 3)
    return buffer


def single() -> rc.ReplayBuffer:
    buffer = rc.ReplayBuffer(10, seed=7)
    for i in range(3):
        buffer.add(**step(obs=np.full(2, i, F), truncated=i == 2))
    return buffer


def empty() -> rc.ReplayBuffer:
    return rc.ReplayBuffer(10, num_envs=2, seed=7)


def signed() -> rc.ReplayBuffer:
    columns = {
        "obs": rc.Column("float32", (2,)),
        "action": rc.Column("int64"),
        "reward": rc.Column("float32"),
    }
    return rc.ReplayBuffer(10, seed=7, signature=columns)


def nested() -> rc.ReplayBuffer:
    buffer = rc.ReplayBuffer(10, seed=7)
    buffer.add(obs={"image": np.zeros((2, 2), np.uint8), "state": F(0)}, action=1, reward=F(0))
    return buffer


def following() -> rc.ReplayBuffer:
    """Rewards belong to the action before."""
    buffer = rc.ReplayBuffer(10, seed=7, reward_at="next")
    for i in range(3):
        buffer.add(**step(obs=np.full(2, i, F)))
    return buffer


def ratio() -> rc.ReplayBuffer:
    limiter = rc.SampleToInsertRatio(ratio=2.0, min_size=2, error_buffer=6)
    buffer = rc.ReplayBuffer(100, limiter=limiter, seed=7)
    buffer.extend(**steps(3))
    return buffer


def spent() -> rc.ReplayBuffer:
    """Drawn from as often as its limiter admits."""
    buffer = ratio()
    buffer.sample(6)
    return buffer


def closed() -> rc.ReplayBuffer:
    buffer = single()
    buffer.close()
    return buffer


@dataclass(frozen=True)
class Wrong:
    """A wrong call, on which buffer, and what it must say."""

    name: str
    call: Callable[[rc.ReplayBuffer], Any]
    error: type[Exception]
    words: tuple[str, ...]
    on: Callable[[], rc.ReplayBuffer] = plain


def wrong(
    name: str,
    call: Callable[[rc.ReplayBuffer], Any],
    error: type[Exception],
    *words: str,
    on: Callable[[], rc.ReplayBuffer] = plain,
) -> Any:
    return pytest.param(Wrong(name, call, error, words, on), id=name)


def new(capacity: Any = 10, **options: Any) -> rc.ReplayBuffer:
    return rc.ReplayBuffer(capacity, **options)


def later(coroutine: Any) -> Any:
    return asyncio.run(coroutine)


def group() -> rc.Group:
    return rc.Group([rc.Rollout([1], [2], finish_reason="stop")], task="math")


field = rc.field
ADDING: dict[str, Callable[..., Any]] = {
    "add": rc.ReplayBuffer.add,
    "extend": rc.ReplayBuffer.extend,
    "add_async": lambda b, *given: later(b.add_async(*given)),
    "extend_async": lambda b, *given: later(b.extend_async(*given)),
}

# fmt: off
CONSTRUCTION = [
    wrong("capacity is zero", lambda _: new(0), INVALID, "capacity", "at least", "0"),
    wrong("capacity is negative", lambda _: new(-3), INVALID, "capacity", "-3"),
    wrong("capacity is a float", lambda _: new(1e3), INVALID, "capacity", "whole", "1000.0"),
    wrong("capacity is a bool", lambda _: new(True), INVALID, "capacity", "True"),
    wrong("capacity is text", lambda _: new("10"), INVALID, "capacity", "'10'"),
    wrong("capacity beyond all rows", lambda _: new(10**30), INVALID, "capacity", "at most"),
    wrong("capacity is a group", lambda _: new(group()), INVALID, "capacity", "got a Group", "rc.RolloutBuffer"),
    wrong("capacity is a list of groups", lambda _: new([group()]), INVALID, "capacity", "got a Group", "rc.RolloutBuffer"),
    wrong("num_envs is zero", lambda _: new(num_envs=0), INVALID, "num_envs", "at least 1", "0"),
    wrong("num_envs is a float", lambda _: new(num_envs=2.0), INVALID, "num_envs", "2.0"),
    wrong("fewer rows than environments", lambda _: new(3, num_envs=4), INVALID, "capacity", "4"),
    wrong("sampler is text", lambda _: new(sampler="Uniform"), INVALID, "sampler", "'Uniform'"),
    wrong("sampler is a class", lambda _: new(sampler=rc.Uniform), INVALID, "sampler"),
    wrong("sampler is an order", lambda _: new(sampler=rc.Fifo()), INVALID, "sampler", "Fifo", "Uniform", "Prioritized"),
    wrong("sampler is the newest first", lambda _: new(sampler=rc.Lifo()), INVALID, "sampler", "Lifo"),
    wrong("sampler is a mixture", lambda _: new(sampler=rc.Mixed([(rc.Uniform(), 1)])), INVALID, "sampler", "recent"),
    wrong("sampler ages", lambda _: new(sampler=rc.Prioritized(half_life=3.0)), INVALID, "half_life"),
    wrong("limiter is a number", lambda _: new(limiter=3), INVALID, "limiter", "rc.MinSize(1)", "3"),
    wrong("limiter is a queue", lambda _: new(limiter=rc.Queue(5)), INVALID, "Queue"),
    wrong("limiter is a stack", lambda _: new(limiter=rc.Stack(5)), INVALID, "Stack"),
    wrong("min_size above the capacity", lambda _: new(limiter=rc.MinSize(11)), NEVER, "min_size 11", "capacity 10"),
    wrong("seed is negative", lambda _: new(seed=-1), INVALID, "seed", "-1"),
    wrong("seed is a float", lambda _: new(seed=1.5), INVALID, "seed", "1.5"),
    wrong("signature is a number", lambda _: new(signature=5), SCHEMA, "signature", "5"),
    wrong("signature with a ragged column", lambda _: new(signature={"obs": rc.Column("int32", ragged=True)}), SCHEMA, "obs", "ragged"),
    wrong("signature with text", lambda _: new(signature={"obs": rc.Column("float32"), "note": rc.Column("str")}), SCHEMA, "note"),
    wrong("signature with an optional column", lambda _: new(signature={"obs": rc.Column("int32", optional=True)}), SCHEMA, "obs", "optional"),
    wrong("signature with a shared column", lambda _: new(signature={"obs": rc.Column("int32", shared=True)}), SCHEMA, "obs", "shared"),
    wrong("signature without what is read from the next row", lambda _: new(signature={"state": rc.Column("int32")}), SCHEMA, "obs", "next_from_row"),
    wrong("signature with a name that batches use", lambda _: new(signature={"obs": rc.Column("int32"), "next_obs": rc.Column("int32")}), SCHEMA, "next_obs"),
    wrong("next_from_row is a number", lambda _: new(next_from_row=5), INVALID, "next_from_row", "5"),
    wrong("next_from_row of numbers", lambda _: new(next_from_row=(5,)), INVALID, "next_from_row", "5"),
    wrong("next_from_row names one twice", lambda _: new(next_from_row=("obs", "obs")), INVALID, "next_from_row", "obs"),
    wrong("n_step is zero", lambda _: new(n_step=0), INVALID, "n_step", "at least 1", "0"),
    wrong("n_step is a float", lambda _: new(n_step=1.5), INVALID, "n_step", "1.5"),
    wrong("gamma above one", lambda _: new(gamma=1.5), INVALID, "gamma", "1.5"),
    wrong("gamma below zero", lambda _: new(gamma=-0.1), INVALID, "gamma", "-0.1"),
    wrong("gamma is not a number", lambda _: new(gamma=math.nan), INVALID, "gamma", "nan"),
    wrong("gamma is text", lambda _: new(gamma="high"), INVALID, "gamma", "'high'"),
    wrong("frame_stack is zero", lambda _: new(frame_stack=0), INVALID, "frame_stack", "at least 1", "0"),
    wrong("frame_stack is a float", lambda _: new(frame_stack=4.0), INVALID, "frame_stack", "4.0"),
    wrong("recent is a number", lambda _: new(recent=5), INVALID, "recent", "5"),
    wrong("recent of no steps", lambda _: new(recent=(0, 0.5)), INVALID, "recent", "0"),
    wrong("recent share above one", lambda _: new(recent=(5, 1.5)), INVALID, "recent", "1.5"),
    wrong("recent share below zero", lambda _: new(recent=(5, -0.5)), INVALID, "recent", "-0.5"),
    wrong("recent share is not a number", lambda _: new(recent=(5, math.nan)), INVALID, "recent", "nan"),
    wrong("recent of fewer steps than environments", lambda _: new(num_envs=4, recent=(3, 0.5)), INVALID, "recent", "4"),
    wrong("reward_at is unknown", lambda _: new(reward_at="before"), INVALID, "reward_at", "'this'", "'next'", "'before'"),
    wrong("reward_at is a bool", lambda _: new(reward_at=True), INVALID, "reward_at", "True"),
    wrong("journal", lambda _: new(journal=5), INVALID, "journal", "rc.Journal", "5"),
]
MARKS = [
    wrong("a step after a terminal one that says it is not first", lambda b: b.add(env_id=1, **step(), first=False), INVALID, "first", "environment 1"),
    wrong("the very first step says it is not first", lambda b: b.add(env_id=2, **step(), first=False), INVALID, "first", "environment 2"),
    wrong("first is a number", lambda b: b.add(**step(), first=1), INVALID, "first"),
    wrong("terminated is text", lambda b: b.add(**step(), terminated="yes"), INVALID, "terminated", "'yes'"),
    wrong("truncated is None", lambda b: b.add(**step(), truncated=None), INVALID, "truncated"),
    wrong("terminated is a number in a batch", lambda b: b.extend(**steps(3), terminated=np.zeros(3)), INVALID, "terminated", "bool"),
    wrong("terminated of another length", lambda b: b.extend(**steps(3), terminated=np.zeros(2, np.bool_)), INVALID, "terminated", "3", "2"),
    wrong("first of another shape", lambda b: b.extend(**steps(3), first=np.zeros((3, 1), np.bool_)), INVALID, "first"),
    wrong("a stretch goes on after an end without a first", lambda b: b.extend(env_ids=0, **steps(3), terminated=np.array([False, True, False]), first=np.array([False, False, False])), INVALID, "first"),
    wrong("final_obs in the middle of an episode", lambda b: b.add(**step(), final_obs=np.zeros(2, F)), INVALID, "final_obs"),
    wrong("final_obs of another shape", lambda b: b.add(**step(), terminated=True, final_obs=np.zeros(3, F)), SCHEMA, "final_obs"),
    wrong("final_obs of another dtype", lambda b: b.add(**step(), terminated=True, final_obs=np.zeros(2)), SCHEMA, "final_obs", "float32"),
    wrong("final_obs is text", lambda b: b.add(**step(), terminated=True, final_obs="last"), SCHEMA, "final_obs"),
    wrong("final_obs where rewards come with the next row", lambda b: b.add(**step(), terminated=True, final_obs=np.zeros(2, F)), INVALID, "final_obs", "reward_at", on=following),
    wrong("final_obs lacks a part", lambda b: b.add(obs={"image": np.zeros((2, 2), np.uint8), "state": F(0)}, action=1, reward=F(0), terminated=True, final_obs={"state": F(0)}), SCHEMA, "image", on=nested),
    wrong("final_obs with an unknown part", lambda b: b.add(obs={"image": np.zeros((2, 2), np.uint8), "state": F(0)}, action=1, reward=F(0), terminated=True, final_obs={"image": np.zeros((2, 2), np.uint8), "state": F(0), "sound": F(0)}), SCHEMA, "sound", on=nested),
    wrong("final_obs of another length in a batch", lambda b: b.extend(**steps(3), terminated=np.ones(3, np.bool_), final_obs=np.zeros((2, 2), F)), SCHEMA, "final_obs", "2", "3"),
    wrong("has_final without final_obs", lambda b: b.extend(**steps(3), terminated=np.ones(3, np.bool_), has_final=np.ones(3, np.bool_)), INVALID, "has_final", "final_obs"),
    wrong("has_final where nothing ends", lambda b: b.extend(**steps(3), final_obs=np.zeros((3, 2), F), has_final=np.array([False, True, False])), INVALID, "final"),
    wrong("has_final of another length", lambda b: b.extend(**steps(3), terminated=np.ones(3, np.bool_), final_obs=np.zeros((3, 2), F), has_final=np.ones(2, np.bool_)), INVALID, "has_final"),
]
COLUMNS = [
    wrong("no columns", lambda b: b.add(), SCHEMA, "obs"),
    *[wrong(f"{name} a group", lambda b, call=call: call(b, group()), INVALID, f"{name}: got a Group", "rc.RolloutBuffer") for name, call in ADDING.items()],
    *[wrong(f"{name} groups", lambda b, call=call: call(b, [group()]), INVALID, f"{name}: got a Group", "rc.RolloutBuffer", on=empty) for name, call in ADDING.items()],
    *[wrong(f"{name} columns without names", lambda b, call=call: call(b, np.zeros(2, F), 1), INVALID, f"{name}: columns go by name, as {name}(obs=..., reward=...)", "array([0., 0.]") for name, call in ADDING.items()],
    *[wrong(f"{name} a dict", lambda b, call=call: call(b, step()), INVALID, f"{name}: columns go by name", f"; write {name}(**columns)") for name, call in ADDING.items()],
    wrong("no columns to an empty buffer", lambda b: b.add(), SCHEMA, "column", on=empty),
    wrong("an unknown column", lambda b: b.add(**step(goal=F(1))), SCHEMA, "'goal'"),
    wrong("a column is missing", lambda b: b.add(**step(action=None)), SCHEMA, "'action'", "missing"),
    wrong("the reward is missing", lambda b: b.add(**step(reward=None)), SCHEMA, "'reward'"),
    wrong("the first step has no observation", lambda b: b.add(action=1, reward=F(0)), SCHEMA, "obs", on=empty),
    wrong("the first step has no reward", lambda b: b.add(obs=F(1), action=1), SCHEMA, "reward", on=empty),
    wrong("the reward has a shape", lambda b: b.add(obs=F(1), action=1, reward=np.zeros(2, F)), SCHEMA, "reward", on=empty),
    wrong("the reward is text", lambda b: b.add(obs=F(1), action=1, reward="high"), SCHEMA, "reward", on=empty),
    wrong("an observation of another shape", lambda b: b.add(**step(obs=np.zeros(3, F))), SCHEMA, "'obs'", "float32[2]", "float32[3]"),
    wrong("an observation of another dtype", lambda b: b.add(**step(obs=np.zeros(2))), SCHEMA, "'obs'", "float32", "float64"),
    wrong("an action with a shape", lambda b: b.add(**step(action=np.zeros(2, np.int64))), SCHEMA, "'action'"),
    wrong("a text column", lambda b: b.add(obs=F(1), action=1, reward=F(0), note="hello"), SCHEMA, "note", on=empty),
    wrong("a ragged column", lambda b: b.extend(env_ids=0, obs=rc.Ragged.from_list([[1], [1, 2]]), reward=np.zeros(2, F)), SCHEMA, "obs", "ragged", on=empty),
    wrong("an absent cell", lambda b: b.extend(env_ids=0, obs=np.zeros(2, F), reward=np.zeros(2, F), note=[1.0, None]), SCHEMA, "note", on=empty),
    wrong("a column named as batches name theirs", lambda b: b.add(obs=F(1), action=1, reward=F(0), discount=F(1)), SCHEMA, "discount", on=empty),
    wrong("a column named next_obs", lambda b: b.add(obs=F(1), action=1, reward=F(0), next_obs=F(1)), SCHEMA, "next_obs", on=empty),
    wrong("mixed lengths", lambda b: b.extend(**steps(3, action=np.ones(2, np.int64))), SCHEMA, "action", "2", "3"),
    wrong("a plain number for a batch", lambda b: b.extend(**steps(3, action=5)), SCHEMA, "action"),
    wrong("a wrong batch against a signature", lambda b: b.extend(**steps(3, obs=np.zeros((3, 3), F))), SCHEMA, "'obs'", "float32[2]", on=signed),
    wrong("a wrong part of nested columns", lambda b: b.add(obs={"image": np.zeros((3, 2), np.uint8), "state": F(0)}, action=1, reward=F(0)), SCHEMA, "obs.image", on=nested),
]
ENVIRONMENTS = [
    wrong("an unknown environment", lambda b: b.add(env_id=3, **step()), INVALID, "env_id", "3"),
    wrong("a negative environment", lambda b: b.add(env_id=-1, **step()), INVALID, "env_id", "-1"),
    wrong("an environment of text", lambda b: b.add(env_id="a", **step()), INVALID, "env_id", "'a'"),
    wrong("an environment that is a float", lambda b: b.add(env_id=1.0, **step()), INVALID, "env_id", "1.0"),
    wrong("an environment that is a bool", lambda b: b.add(env_id=True, **step()), INVALID, "env_id", "True"),
    wrong("a stretch of an unknown environment", lambda b: b.extend(env_ids=3, **steps(2)), INVALID, "env_ids", "3"),
    wrong("one of the environments is unknown", lambda b: b.extend(env_ids=[0, 1, 7], **steps(3)), INVALID, "env_ids", "7"),
    wrong("one of the environments is negative", lambda b: b.extend(env_ids=[0, -1], **steps(2)), INVALID, "env_ids", "-1"),
    wrong("environments of another number than rows", lambda b: b.extend(env_ids=[0, 1], **steps(3)), INVALID, "env_ids", "2", "3"),
    wrong("environments that are floats", lambda b: b.extend(env_ids=[0.0, 1.0], **steps(2)), INVALID, "env_ids"),
    wrong("environments of two axes", lambda b: b.extend(env_ids=[[0], [1]], **steps(2)), INVALID, "env_ids"),
    wrong("environments of text", lambda b: b.extend(env_ids="01", **steps(2)), INVALID, "env_ids"),
    wrong("all environments, and another number of rows", lambda b: b.extend(**steps(4)), INVALID, "env_ids", "3", "4"),
]
SAMPLE = [
    wrong("no draws", lambda b: b.sample(0), INVALID, "n", "at least 1", "0"),
    wrong("draws are negative", lambda b: b.sample(-2), INVALID, "n", "-2"),
    wrong("draws are a float", lambda b: b.sample(2.0), INVALID, "n", "2.0"),
    wrong("replace is a number", lambda b: b.sample(2, replace=1), INVALID, "replace", "1"),
    wrong("timeout is negative", lambda b: b.sample(2, timeout=-1), INVALID, "timeout", "-1"),
    wrong("timeout is text", lambda b: b.sample(2, timeout="1"), INVALID, "timeout", "'1'"),
    wrong("more different ones than there are", lambda b: b.sample(29, replace=False, timeout=0), TIMEOUT, "29"),
    wrong("more different ones than rows", lambda b: b.sample(31, replace=False), NEVER, "31", "30"),
    wrong("an empty buffer", lambda b: b.sample(1, timeout=0), TIMEOUT, "sample", on=empty),
    wrong("where nothing meets", lambda b: b.sample(1, where=field("step") > 1000, timeout=0), TIMEOUT, "query"),
    wrong("where names an unknown field", lambda b: b.sample(1, where=field("score") > 1), QUERY, "score", "env_id"),
    wrong("where compares text", lambda b: b.sample(1, where=field("step") == "a"), QUERY, "step"),
    wrong("where is a number", lambda b: b.sample(1, where=5), INVALID, "5"),
    wrong("a sample that the limiter never admits", lambda b: b.sample(13), NEVER, "13", on=ratio),
    wrong("a sample that the limiter does not admit now", lambda b: b.sample(6, timeout=0), TIMEOUT, "limiter", on=spent),
    wrong("the other face says the same", lambda b: later(b.sample_async(0)), INVALID, "n", "0"),
    wrong("the other face waits no longer", lambda b: later(b.sample_async(1, timeout=0)), TIMEOUT, "sample", on=empty),
]
SEQUENCES = [
    wrong("no sequences", lambda b: b.sample_sequences(0, 3), INVALID, "n", "0"),
    wrong("sequences of no rows", lambda b: b.sample_sequences(2, 0), INVALID, "length", "0"),
    wrong("length is a float", lambda b: b.sample_sequences(2, 3.0), INVALID, "length", "3.0"),
    wrong("burn_in is negative", lambda b: b.sample_sequences(2, 3, burn_in=-1), INVALID, "burn_in", "-1"),
    wrong("burn_in is all of it", lambda b: b.sample_sequences(2, 3, burn_in=3), INVALID, "burn_in", "3"),
    wrong("burn_in is a bool", lambda b: b.sample_sequences(2, 3, burn_in=True), INVALID, "burn_in", "True"),
    wrong("stride is zero", lambda b: b.sample_sequences(2, 3, stride=0), INVALID, "stride", "0"),
    wrong("stride is a float", lambda b: b.sample_sequences(2, 3, stride=1.5), INVALID, "stride", "1.5"),
    wrong("mode is unknown", lambda b: b.sample_sequences(2, 3, across_episodes="wrap"), INVALID, "across_episodes", "'wrap'", "stop", "pad", "reset"),
    wrong("mode is a bool", lambda b: b.sample_sequences(2, 3, across_episodes=True), INVALID, "across_episodes", "True"),
    wrong("longer than any episode", lambda b: b.sample_sequences(2, 9), INVALID, "9"),
    wrong("longer than any episode, with a timeout", lambda b: b.sample_sequences(2, 9, timeout=0), TIMEOUT, "9"),
    wrong("longer than a ring", lambda b: b.sample_sequences(2, 11), NEVER, "11", "10"),
    wrong("wider than a ring", lambda b: b.sample_sequences(2, 4, stride=4), NEVER, "13", "10"),
    wrong("sequences of an empty buffer", lambda b: b.sample_sequences(1, 2, timeout=0), TIMEOUT, "sequence", on=empty),
    wrong("more different sequences than there are", lambda b: b.sample_sequences(28, 3, replace=False, timeout=0), TIMEOUT, "28"),
    wrong("no episodes", lambda b: b.sample_episodes(0), INVALID, "n", "0"),
    wrong("episodes are a float", lambda b: b.sample_episodes(1.0), INVALID, "n", "1.0"),
    wrong("no whole episode", lambda b: b.sample_episodes(1, timeout=0), TIMEOUT, "episode", on=following),
    wrong("no whole episode and no timeout", lambda b: b.sample_episodes(1), INVALID, "episode", on=following),
]
PRIORITIES = [
    wrong("a priority is not a number", lambda b: b.update_priorities([5], [math.nan]), INVALID, "priorit", "nan"),
    wrong("a priority is negative", lambda b: b.update_priorities([5], [-1.0]), INVALID, "priorit", "-1"),
    wrong("a priority is infinite", lambda b: b.update_priorities([5, 6], [1.0, math.inf]), INVALID, "priorit", "inf"),
    wrong("one of several priorities is wrong", lambda b: b.update_priorities([5, 6, 7], [9.0, 9.0, -2.0]), INVALID, "priorit", "-2"),
    wrong("fewer priorities than keys", lambda b: b.update_priorities([5, 6], [1.0]), INVALID, "2", "1"),
    wrong("more priorities than keys", lambda b: b.update_priorities([5, 6], [1.0] * 3), INVALID, "2", "3"),
    wrong("priorities are text", lambda b: b.update_priorities([5], ["high"]), INVALID, "priorit"),
    wrong("keys are negative", lambda b: b.update_priorities([-5], [1.0]), INVALID, "keys"),
    wrong("keys are floats", lambda b: b.update_priorities([5.0], [1.0]), INVALID, "keys"),
    wrong("keys have two axes", lambda b: b.update_priorities(np.zeros((1, 1), np.uint64), [1.0]), INVALID, "keys"),
]
ENDS_OF_OTHERS = [
    wrong(f"an end named {name}", lambda b, name=name: b.add(obs=F(1), action=1, reward=F(0), **{name: True}), SCHEMA, name, "terminated", "truncated", on=empty)
    for name in ("done", "dones", "terminal", "terminals", "termination", "terminations", "truncation", "truncations", "last", "is_last", "is_terminal")
]
CLOSED = [
    wrong(f"{name} on a closed buffer", call, CLOSED_ERROR, "closed", on=closed)
    for name, call in {
        "add": lambda b: b.add(**step()),
        "extend": lambda b: b.extend(**steps(2)),
        "sample": lambda b: b.sample(1),
        "sample_sequences": lambda b: b.sample_sequences(1, 2),
        "sample_episodes": lambda b: b.sample_episodes(1),
        "update_priorities": lambda b: b.update_priorities([0], [1.0]),
        "episodes": lambda b: b.episodes(),
        "stats": lambda b: b.stats(),
        "clear": lambda b: b.clear(),
        "sample_async": lambda b: later(b.sample_async(1)),
    }.items()
]
# fmt: on

WRONG_CALLS = [
    *CONSTRUCTION,
    *MARKS,
    *COLUMNS,
    *ENDS_OF_OTHERS,
    *ENVIRONMENTS,
    *SAMPLE,
    *SEQUENCES,
    *PRIORITIES,
    *CLOSED,
]


def listed(batch: rc.Batch) -> dict[str, Any]:
    """The cells of a batch, in the order of its keys."""
    order = np.argsort(batch.info.keys)
    return {name: column[order].tolist() for name, column in batch.columns.items()}


def seen(buffer: rc.ReplayBuffer) -> dict[str, Any]:
    """Everything that one can see of a buffer, without changing it."""
    facts: dict[str, Any] = {
        "len": len(buffer),
        "nbytes": buffer.nbytes,
        "repr": repr(buffer),
    }
    if buffer.core.closed:
        return facts
    facts["stats"] = buffer.stats()
    facts["starts"] = legal_starts(buffer)
    facts["episodes"] = {name: c.tolist() for name, c in buffer.episodes().columns.items()}
    return facts


def what_follows(buffer: rc.ReplayBuffer) -> list[Any]:
    """What a buffer does next: draws with all their cells, and the keys of new steps."""
    if buffer.core.closed:
        return []
    found: list[Any] = []
    count = len(legal_starts(buffer))
    if count:
        draws = min(3, count)
        found += [listed(buffer.sample(draws, timeout=0)) for _ in range(2 if count > 3 else 1)]
    if count > 3:
        found.append(listed(buffer.sample(count, replace=False, timeout=0)))
        found.append(listed(buffer.sample_sequences(3, 2, timeout=0)))
    columns = step()
    if buffer.stats()["size"] and isinstance(_observation(buffer), dict):
        columns["obs"] = {"image": np.zeros((2, 2), np.uint8), "state": F(0)}
    found.append(int(buffer.add(**columns)))
    found.append(seen(buffer))
    return found


def _observation(buffer: rc.ReplayBuffer) -> Any:
    """A nested observation as a dict; None where it is a plain column."""
    return {} if any(name.startswith("obs.") for name in buffer.columns) else None


@pytest.mark.parametrize("wrong", WRONG_CALLS)
def test_wrong_call_says_what_is_wrong_and_changes_nothing(wrong: Wrong) -> None:
    buffer, twin = wrong.on(), wrong.on()
    before = seen(buffer)

    with pytest.raises(wrong.error) as raised:
        wrong.call(buffer)

    message = str(raised.value)
    missing = [word for word in wrong.words if word not in message]
    assert not missing, f"{missing} not in: {message}"
    assert "\n" not in message
    assert len(message) < 400
    assert seen(buffer) == before == seen(twin)
    assert what_follows(buffer) == what_follows(twin)


def test_names_of_cases_are_unique() -> None:
    names = [case.id for case in WRONG_CALLS]
    assert len(set(names)) == len(names)


def test_a_failed_batch_leaves_no_environment_half_written() -> None:
    """The last of many rows is wrong: none of them is there afterwards."""
    buffer = plain()
    before = seen(buffer)
    first = np.array([False, True, False])  # environment 2 has no episode that could go on
    with pytest.raises(rc.InvalidValue):
        buffer.extend(env_ids=[0, 1, 2], **steps(3), first=first)
    assert seen(buffer) == before
    keys = buffer.extend(env_ids=[0, 1, 2], **steps(3))
    assert [key & 0xFFFF for key in keys.tolist()] == [13, 5, 0]


def test_priorities_are_all_set_or_none() -> None:
    buffer = single()
    keys = legal_starts(buffer)
    with pytest.raises(rc.InvalidValue):
        buffer.update_priorities(keys, [5.0] * (len(keys) - 1) + [math.nan])
    assert set(buffer.sample(20).info.priority.tolist()) == {1.0}


def test_no_keys_change_nothing() -> None:
    buffer = plain()
    before = seen(buffer)
    assert buffer.update_priorities([], []).tolist() == []
    assert buffer.update_priorities(np.array([1 << 60], np.uint64), [3.0]).tolist() == [False]
    assert seen(buffer) == before


def test_an_empty_batch_adds_nothing() -> None:
    buffer = plain()
    before = seen(buffer)
    assert buffer.extend(env_ids=[], **steps(0)).tolist() == []
    assert buffer.extend(env_ids=1, **steps(0)).tolist() == []
    assert seen(buffer) == before


def test_a_refused_first_step_fixes_no_columns() -> None:
    buffer = empty()
    with pytest.raises(rc.InvalidValue):
        buffer.add(obs=F(1), action=1, reward=F(0), first=False)
    buffer.add(obs=np.zeros((4, 4), np.uint8), action=np.zeros(3), reward=F(0))
    assert len(buffer) == 1
