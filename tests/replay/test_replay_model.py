"""Drives `rc.ReplayBuffer` and plain lists side by side, and compares at every insertion."""

from __future__ import annotations

import random
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from replay_model import Model, Window, check_cell, legal_starts

import recollect as rc

OBSERVATIONS: dict[str, dict[str, rc.Column]] = {
    "vector": {"obs": rc.Column("float32", (3,))},
    "number": {"obs": rc.Column("int32")},
    "image": {"obs": rc.Column("uint8", (2, 3))},
    "nested": {
        "obs.image": rc.Column("uint8", (2, 2)),
        "obs.state": rc.Column("float64", (2,)),
    },
}
OTHERS: list[dict[str, rc.Column]] = [
    {"action": rc.Column("int64"), "reward": rc.Column("float32")},
    {"action": rc.Column("float32", (2,)), "reward": rc.Column("float64")},
    {
        "action": rc.Column("int8"),
        "reward": rc.Column("float32"),
        "log_prob": rc.Column("float64"),
        "legal": rc.Column("bool", (3,)),
    },
]
PRIORITIES = (0.0, 0.1, 0.5, 1.0, 1.0, 2.0, 7.5)
SAMPLERS: list[rc.Selector] = [
    rc.Uniform(),
    rc.Uniform(),
    rc.Prioritized(),
    rc.Prioritized(alpha=1.0, beta=1.0, stratified=False),
    rc.Prioritized(alpha=1.0, stratified=True),
]
MODES = ("stop", "pad", "reset")


def random_shape(rng: random.Random) -> dict[str, Any]:
    """The rules of a buffer, small enough to wrap around soon."""
    num_envs = rng.choice([1, 1, 2, 3, 5])
    ring = rng.choice([2, 3, 4, 5, 7, 8, 12, 17, 24])
    return {
        "capacity": num_envs * ring + rng.randrange(num_envs),
        "num_envs": num_envs,
        "sampler": rng.choice(SAMPLERS),
        "n_step": rng.choice([1, 1, 2, 3, 5]),
        "gamma": rng.choice([0.99, 0.5, 1.0]),
        "frame_stack": rng.choice([1, 1, 1, 2, 4]),
        "reward_at": rng.choice(["this", "this", "next"]),
        "recent": (rng.randint(num_envs, 2 * num_envs * ring), 0.5) if rng.random() < 0.2 else None,
    }


def random_window(rng: random.Random, ring: int) -> Window:
    stride = rng.choice([1, 1, 1, 2, 3])
    longest = min(6, (ring - 1) // stride + 1)
    length = rng.randint(1, longest)
    return Window(length, rng.randrange(length), stride, rng.choice(MODES))


class Driver:
    """One buffer, its model, and the same calls on both."""

    def __init__(
        self, seed: int, rules: dict[str, Any] | None = None, windows: list[Window] | None = None
    ) -> None:
        rng = self.rng = random.Random(seed)
        self.calls: list[str] = []
        self.serial = 0
        self.held: list[tuple[rc.Batch, dict[str, bytes]]] = []
        self.past_keys: list[int] = []
        rules = random_shape(rng) if rules is None else rules
        self.columns = {**OBSERVATIONS[rng.choice(list(OBSERVATIONS))], **rng.choice(OTHERS)}
        self.ends = rng.choice([0.0, 0.03, 0.15, 0.5, 1.0])
        self.finals = rng.choice([0.0, 0.5, 1.0])
        self.breaks = rng.choice([0.0, 0.0, 0.1])  # a first step while an episode is open
        signature = nested(self.columns) if rng.random() < 0.5 else None
        self.say(f"ReplayBuffer({rules}, seed={seed}) ends={self.ends} finals={self.finals}")
        self.buffer = rc.ReplayBuffer(**rules, seed=seed, signature=signature)
        self.model = Model(**rules)
        ring = self.model.ring
        if windows is None:
            windows = [random_window(rng, ring) for _ in range(rng.choice([1, 2, 4, 6]))]
        self.windows = windows
        self.envs = range(self.model.num_envs)

    def say(self, text: str) -> None:
        self.calls.append(text)

    def run(self, calls: int) -> None:
        for _ in range(calls):
            verb = self.rng.choices(
                [self.add, self.extend_some, self.extend_stretch, self.update, self.clear],
                [40, 25, 12, 20, 1],
            )[0]
            verb()
            self.compare()
        self.check_held()

    # -- what calls are given ---------------------------------------------------------------------
    def cell(self, column: rc.Column) -> Any:
        values = self.serial + np.arange(int(np.prod(column.shape))).reshape(column.shape) * 7
        if column.dtype == np.bool_:
            return (values % 3 == 0).astype(np.bool_)
        return (values % 120 if column.dtype.itemsize == 1 else values).astype(column.dtype)

    def cells(self) -> dict[str, Any]:
        self.serial += 1
        cells = {name: self.cell(column) for name, column in self.columns.items()}
        reward = self.rng.choice([0.0, 0.0, 1.0, -2.0, 0.5])
        cells["reward"] = np.asarray(reward, self.columns["reward"].dtype)
        return cells

    def step(self, env: int, is_open: bool) -> dict[str, Any]:
        """A random step of an environment whose episode is open or not, as the model takes it."""
        rng = self.rng
        step: dict[str, Any] = {"env": env, "cells": self.cells()}
        step["first"] = not is_open or rng.random() < self.breaks
        # With reward_at="next" an episode of one row would be an end without a step.
        if rng.random() < self.ends and (self.model.reward_at == "this" or not step["first"]):
            step["terminated"] = rng.random() < 0.5
            step["truncated"] = not step["terminated"] or rng.random() < 0.1
            if self.model.reward_at == "this" and rng.random() < self.finals:
                self.serial += 1
                step["final"] = {
                    name: self.cell(column)
                    for name, column in self.columns.items()
                    if name.startswith("obs")
                }
        return step

    def marks(self, steps: list[dict[str, Any]], is_open: list[bool]) -> dict[str, Any]:
        """The columns first, terminated and truncated; those that say nothing may be left out."""
        rng = self.rng
        marks: dict[str, Any] = {}
        implied = [step["first"] != held for step, held in zip(steps, is_open, strict=True)]
        if not all(implied) or rng.random() < 0.2:
            marks["first"] = np.array([step["first"] for step in steps])
        for name in ("terminated", "truncated"):
            values = np.array([step.get(name, False) for step in steps])
            if values.any() or rng.random() < 0.3:
                marks[name] = values
        return marks

    def take_in(self, steps: list[dict[str, Any]], keys: Any) -> None:
        priority = self.model.highest_priority()
        expected = [
            self.model.add(
                step["env"],
                step["cells"],
                first=step["first"],
                terminated=step.get("terminated", False),
                truncated=step.get("truncated", False),
                final=step.get("final"),
                priority=priority,
            )
            for step in steps
        ]
        assert np.atleast_1d(keys).tolist() == expected
        self.past_keys = [*self.past_keys[-60:], *expected]

    # -- verbs ------------------------------------------------------------------------------------
    def add(self) -> None:
        env = self.rng.choice(self.envs)
        is_open = self.model.is_open(env)
        step = self.step(env, is_open)
        marks = {name: bool(mark[0]) for name, mark in self.marks([step], [is_open]).items()}
        self.say(f"add env={env} {marks} final={'final' in step}")
        options = {"final_obs": nested(step["final"])["obs"]} if "final" in step else {}
        if env or self.rng.random() < 0.5:
            options["env_id"] = env
        self.take_in([step], self.buffer.add(**nested(step["cells"]), **marks, **options))

    def extend_some(self) -> None:
        """One step for each of some environments; one that is named twice takes two."""
        rng = self.rng
        every = rng.random() < 0.5
        envs = list(self.envs)
        if not every:
            envs = rng.sample(envs, rng.randint(1, len(envs)))
            envs += rng.choices(envs, k=rng.choice([0, 0, 2]))
        given: dict[str, Any] = {}
        if not every or rng.random() < 0.5 or self.model.num_envs == 1:
            given["env_ids"] = rng.choice([list, np.array])(envs)
        self.extend(envs, given)

    def extend_stretch(self) -> None:
        """Several steps of one environment, now and then more than its ring holds."""
        rng = self.rng
        env = rng.choice(self.envs)
        count = rng.randint(1, rng.choice([3, self.model.ring, self.model.ring + 4]))
        given: dict[str, Any] = {}
        if self.model.num_envs > 1 or rng.random() < 0.5:
            given["env_ids"] = env
        self.extend([env] * count, given)

    def extend(self, envs: list[int], given: dict[str, Any]) -> None:
        steps, is_open = [], []
        held = {env: self.model.is_open(env) for env in self.envs}
        for env in envs:
            is_open.append(held[env])
            steps.append(self.step(env, held[env]))
            held[env] = not (steps[-1].get("terminated") or steps[-1].get("truncated"))
        marks = self.marks(steps, is_open)
        has_final = ["final" in step for step in steps]
        self.say(
            f"extend {given} of {len(steps)} "
            f"{ {name: mark.astype(int).tolist() for name, mark in marks.items()} } "
            f"final={[int(f) for f in has_final]}"
        )
        columns = {name: np.stack([s["cells"][name] for s in steps]) for name in self.columns}
        if any(has_final):
            blank = {n: np.zeros(c.shape, c.dtype) for n, c in self.columns.items() if "obs" in n}
            finals = [step.get("final", blank) for step in steps]
            column = {name: np.stack([final[name] for final in finals]) for name in blank}
            given["final_obs"] = nested(column)["obs"]
            given["has_final"] = np.array(has_final)
        self.take_in(steps, self.buffer.extend(**given, **nested(columns), **marks))

    def update(self) -> None:
        rng = self.rng
        if not self.past_keys:
            return
        keys = list(dict.fromkeys(rng.choices(self.past_keys, k=rng.randint(1, 8))))
        values = [rng.choice(PRIORITIES) for _ in keys]
        self.say(f"update {keys} {values}")
        found = self.buffer.update_priorities(np.array(keys, np.uint64), values)
        assert found.tolist() == self.model.update_priorities(keys, values)

    def clear(self) -> None:
        self.say("clear")
        self.buffer.clear()
        self.model.clear()

    # -- comparing --------------------------------------------------------------------------------
    def compare(self) -> None:
        model, buffer = self.model, self.buffer
        assert len(buffer) == len(model.stored())
        stats = buffer.stats()
        assert (stats["inserts"], stats["removals"]) == (model.inserts, model.removals)
        self.compare_episodes()
        self.compare_transitions()
        for window in self.windows:
            self.compare_sequences(window)
        if self.rng.random() < 0.3:
            self.compare_whole_episodes()

    def compare_episodes(self) -> None:
        table = self.buffer.episodes()
        expected = self.model.table()
        for name in ("env", "start", "length", "complete", "cut"):
            assert table[name].tolist() == [line[name] for line in expected], name
        returns = [line["return"] for line in expected]
        np.testing.assert_allclose(table["return"], returns, rtol=1e-5, atol=1e-6)

    def compare_transitions(self) -> None:
        model, buffer, rng = self.model, self.buffer, self.rng
        expected = model.transitions()
        legal = sorted(expected)
        assert legal_starts(buffer) == legal
        if model.recent is not None:
            window = sorted(model.recent_keys(legal))
            assert legal_starts(buffer, recent=True) == window
        if not legal:
            with pytest.raises(rc.WaitTimeout):
                buffer.sample(1, timeout=0)
            return
        n = rng.randint(1, 6)
        replace = n > len(legal) or rng.random() < 0.8
        if not replace and model.recent is None and rng.random() < 0.5:
            n = len(legal)
        batch = buffer.sample(n, replace=replace, timeout=0)
        model.samples += n
        model.check_info(batch.info, legal, replace)
        model.check_batch(batch, expected)
        if n == len(legal) and not replace:
            assert sorted(batch.info.keys.tolist()) == legal
            with pytest.raises((rc.WaitTimeout, rc.NeverPossible)):
                buffer.sample(n + 1, replace=False, timeout=0)
        self.hold(batch)
        if rng.random() < 0.2:
            self.compare_where(expected)

    def compare_where(self, expected: dict[int, Any]) -> None:
        model, rng = self.model, self.rng
        steps = {s.row.key: s for episode in model.all_episodes() for s in episode.steps}
        some = rng.choice(list(steps))
        env, number = steps[some].row.env, steps[some].row.number
        cases: list[tuple[Any, Any]] = [
            (rc.field("env_id") == env, lambda step: step.row.env == env),
            (rc.field("step") >= number, lambda step: step.row.number >= number),
            (rc.field("terminated") == True, lambda step: step.terminated),  # noqa: E712
            (rc.field("truncated") == False, lambda step: not step.truncated),  # noqa: E712
            (rc.field("priority") > 0.5, lambda step: step.row.priority > 0.5),
            (rc.field("key").isin([some]), lambda step: step.row.key == some),
        ]
        query, holds = rng.choice(cases)
        found = sorted(key for key in expected if holds(steps[key]))
        self.say(f"  where {query}")
        if not found:
            with pytest.raises(rc.WaitTimeout):
                self.buffer.sample(1, where=query, timeout=0)
            return
        batch = self.buffer.sample(len(found), where=query, replace=False, timeout=0)
        assert sorted(batch.info.keys.tolist()) == found
        model.check_batch(batch, expected)
        with pytest.raises((rc.WaitTimeout, rc.NeverPossible)):
            self.buffer.sample(len(found) + 1, where=query, replace=False, timeout=0)

    def compare_sequences(self, window: Window) -> None:
        model, buffer = self.model, self.buffer
        expected = model.sequences(window)
        legal = sorted(expected)
        assert legal_starts(buffer, window) == legal, window
        if model.recent is not None:
            newest = sorted(model.recent_keys(legal))
            assert legal_starts(buffer, window, recent=True) == newest, window
        if not legal:
            with pytest.raises(rc.RecollectError):
                buffer.sample_sequences(1, window.length, **window.options, timeout=0)
            return
        n = self.rng.randint(1, 4)
        batch = buffer.sample_sequences(n, window.length, **window.options, timeout=0)
        model.check_info(batch.info, legal)
        model.check_batch(batch, expected)
        self.hold(batch)

    def compare_whole_episodes(self) -> None:
        model = self.model
        whole = model.whole()
        if not whole:
            with pytest.raises(rc.RecollectError):
                self.buffer.sample_episodes(1, timeout=0)
            return
        batch = self.buffer.sample_episodes(2, timeout=0)
        info = batch.info
        for place, key in enumerate(info.keys.tolist()):
            episode = whole[key]
            rows = slice(*info.row_offsets[place : place + 2].tolist())
            steps = episode.steps
            assert rows.stop - rows.start == len(steps)
            for at, step in enumerate(steps):
                for name, cell in step.row.cells.items():
                    value = step.reward if name == "reward" else cell
                    if name.startswith("obs"):
                        value = model._cell(episode, step.row, name)
                    check_cell(name, batch.columns[name][rows][at], value)
                assert batch["terminated"][rows][at] == step.terminated
                assert batch["truncated"][rows][at] == step.truncated

    def hold(self, batch: rc.Batch) -> None:
        if self.rng.random() < 0.1 and len(self.held) < 6:
            self.held.append((batch, {n: c.tobytes() for n, c in batch.columns.items()}))

    def check_held(self) -> None:
        for batch, copy in self.held:
            for name, column in batch.columns.items():
                assert column.tobytes() == copy[name], "a batch changed after it was returned"


def nested(columns: dict[str, Any]) -> dict[str, Any]:
    """Columns as a caller gives them: dotted names as dicts in dicts."""
    found: dict[str, Any] = {}
    for name, value in columns.items():
        head, _, rest = name.partition(".")
        if rest:
            found.setdefault(head, {})[rest] = value
        else:
            found[name] = value
    return found


def drive(seed: int, calls: int, **options: Any) -> None:
    driver = Driver(seed, **options)
    try:
        driver.run(calls)
    except BaseException as error:
        error.add_note(
            f"seed {seed} columns {list(driver.columns)} windows {driver.windows}\n"
            + "\n".join(driver.calls[:1] + driver.calls[-40:])
        )
        raise


@pytest.mark.parametrize("block", range(10))
def test_a_buffer_does_what_plain_lists_do(block: int) -> None:
    for seed in range(6 * block, 6 * block + 6):
        drive(seed, 40)


@pytest.mark.parametrize("seed", range(4))
def test_rings_of_many_segments_are_no_different(seed: int) -> None:
    """Hundreds of rows in each ring: several segments, and a sum tree of several levels."""
    rng = random.Random(seed)
    num_envs = rng.choice([1, 3])
    rules = {
        **random_shape(rng),
        "capacity": num_envs * rng.choice([100, 257, 600]),
        "num_envs": num_envs,
        "recent": None,
    }
    windows = [Window(20, 4, 1, "pad"), Window(9, 0, 3, "stop"), Window(30, 0, 1, "reset")]
    drive(seed, 60, rules=rules, windows=windows)


@pytest.mark.soak
@pytest.mark.parametrize("block", range(20))
def test_a_long_life_is_no_different(block: int) -> None:
    for seed in range(10_000 + 20 * block, 10_000 + 20 * block + 20):
        drive(seed, 300)


# -- shapes that hypothesis looks for, and makes small when they fail ------------------------------
SHAPES = st.fixed_dictionaries(
    {
        "ring": st.integers(2, 9),
        "num_envs": st.integers(1, 3),
        "n_step": st.integers(1, 4),
        "frame_stack": st.integers(1, 3),
        "reward_at": st.sampled_from(["this", "next"]),
    }
)
WINDOWS = st.builds(
    lambda length, burn_in, stride, mode: Window(length, burn_in % length, stride, mode),
    st.integers(1, 4),
    st.integers(0, 3),
    st.integers(1, 2),
    st.sampled_from(MODES),
)
ENDS = st.sampled_from(["", "", "terminated", "truncated", "first"])
STEPS = st.lists(st.tuples(st.integers(0, 2), ENDS, st.booleans()), min_size=1, max_size=30)


@settings(
    max_examples=50,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(shape=SHAPES, window=WINDOWS, steps=STEPS)
def test_no_small_shape_disagrees(
    shape: dict[str, Any], window: Window, steps: list[tuple[int, str, bool]]
) -> None:
    rules = {**shape, "capacity": shape["ring"] * shape["num_envs"]}
    del rules["ring"]
    span = (window.length - 1) * window.stride + 1
    driver = Driver(0, rules=rules, windows=[window] if span <= shape["ring"] else [])
    for env, end, final in steps:
        env %= shape["num_envs"]
        step: dict[str, Any] = {"env": env, "cells": driver.cells()}
        is_open = driver.model.is_open(env)
        step["first"] = not is_open or end == "first"
        options: dict[str, Any] = {"first": True} if is_open and end == "first" else {}
        if end in ("terminated", "truncated") and (
            shape["reward_at"] == "this" or not step["first"]
        ):
            step[end] = options[end] = True
            if final and shape["reward_at"] == "this":
                step["final"] = driver.cells()
                step["final"] = {n: c for n, c in step["final"].items() if n.startswith("obs")}
                options["final_obs"] = nested(step["final"])["obs"]
        driver.take_in([step], driver.buffer.add(env_id=env, **nested(step["cells"]), **options))
        driver.compare()


# -- every combination of some shapes, with ends at every distance ---------------------------------
@pytest.mark.parametrize("reward_at", ["this", "next"])
@pytest.mark.parametrize("length", [1, 2, 3, 5, 9, 10, 11, 25])
def test_episodes_of_every_length_wrap_around(length: int, reward_at: str) -> None:
    """Episodes of one length in a ring of 10, so that they end at every place of it."""
    if reward_at == "next" and length == 1:
        length = 4
    for final in (False, True):
        for n_step in (1, 3):
            rules = {"capacity": 10, "n_step": n_step, "reward_at": reward_at}
            windows = [Window(3, 0, 1, mode) for mode in MODES] + [Window(3, 1, 2, "pad")]
            driver = Driver(5, rules=rules, windows=windows)
            for count in range(34):
                ends = count % length == length - 1
                step: dict[str, Any] = {
                    "env": 0,
                    "cells": driver.cells(),
                    "first": count % length == 0,
                    "truncated": ends,
                }
                options: dict[str, Any] = {"truncated": ends}
                if ends and final and reward_at == "this":
                    driver.serial += 1
                    cells = {n: driver.cell(c) for n, c in driver.columns.items() if "obs" in n}
                    step["final"] = cells
                    options["final_obs"] = nested(cells)["obs"]
                driver.take_in([step], driver.buffer.add(**nested(step["cells"]), **options))
                driver.compare()
