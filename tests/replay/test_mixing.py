"""Mixtures of buffers: shares that hold exactly, priorities that find their buffer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import recollect as rc


def filled(value: float, *, steps: int = 50, **options: Any) -> rc.ReplayBuffer:
    buffer = rc.ReplayBuffer(1000, **{"seed": 0, **options})
    buffer.extend(
        obs=np.full((steps, 2), value, np.float32),
        action=np.arange(steps),
        reward=np.full(steps, value, np.float32),
        terminated=np.arange(steps) == steps - 1,
    )
    return buffer


@pytest.mark.parametrize("shares", [(1, 1), (0.1, 0.9), (3, 2, 1), (1, 0), (1e-3, 1), (1, 1, 1)])
@pytest.mark.parametrize("n", [1, 7, 64])
def test_shares_hold_exactly_at_every_call(shares: tuple[float, ...], n: int) -> None:
    buffers = [filled(float(place)) for place in range(len(shares))]
    mixture = rc.mix(list(zip(buffers, shares, strict=True)))
    drawn = np.zeros(len(shares))
    for call in range(1, 200):
        batch = mixture.sample(n)
        assert batch.num_items == n
        drawn += np.bincount(batch.info.source, minlength=len(shares))
        expected = n * call * np.array(shares) / sum(shares)
        assert abs(drawn - expected).max() < 1 + 1e-6


def test_rows_are_those_of_their_source() -> None:
    mixture = rc.mix([(filled(0.0), 1), (filled(1.0), 2), (filled(2.0), 1)])
    batch = mixture.sample(40)
    assert (batch["obs"][:, 0] == batch.info.source).all()
    assert (batch["next_obs"].shape, batch["discount"].shape) == ((40, 2), (40,))
    for name in ("keys", "weights", "probability", "env_ids", "steps"):
        assert getattr(batch.info, name).shape == (40,)
    assert batch.info.table_size == 150
    assert len(mixture) == 150


def test_shares_follow_schedules_over_sample_calls() -> None:
    mixture = rc.mix([(filled(0.0), rc.Linear(1.0, 0.0, 100)), (filled(1.0), rc.Linear(0, 1, 100))])
    owed, drawn = 0.0, 0
    for call in range(150):
        owed += 10 * min(call / 100, 1.0)
        source = mixture.sample(10).info.source
        drawn += int(source.sum())
        assert abs(drawn - owed) < 1 + 1e-6
        if call == 0:
            assert not source.any()
        if call > 101:
            assert source.all()


def test_a_buffer_that_is_not_asked_may_be_empty() -> None:
    mixture = rc.mix([(filled(0.0), 1), (rc.ReplayBuffer(9), rc.Linear(0.0, 1.0, 4))])
    assert not mixture.sample(8, timeout=0).info.source.any()
    with pytest.raises(rc.WaitTimeout):
        mixture.sample(8, timeout=0)


def test_a_call_that_raises_leaves_the_shares_as_they_were() -> None:
    late = rc.ReplayBuffer(1000, seed=0)
    mixture = rc.mix([(filled(0.0), 1), (late, 2)])
    for _ in range(5):
        with pytest.raises(rc.WaitTimeout):
            mixture.sample(4, timeout=0)
    twin = rc.mix([(filled(0.0), 1), (filled(1.0), 2)])
    late.extend(
        obs=np.ones((50, 2), np.float32), action=np.arange(50), reward=np.ones(50, np.float32)
    )
    for _ in range(9):
        assert (mixture.sample(4).info.source == twin.sample(4).info.source).all()


def test_sequences_come_from_all_buffers() -> None:
    mixture = rc.mix([(filled(0.0), 1), (filled(1.0), 3)])
    batch = mixture.sample_sequences(8, 5, burn_in=2, across_episodes="pad")
    assert batch["obs"].shape == (8, 5, 2)
    assert batch["burn_in"][:, :2].all()
    assert np.bincount(batch.info.source).tolist() == [2, 6]
    assert ((batch["obs"][:, :, 0] == batch.info.source[:, None]) | ~batch["valid"]).all()
    with pytest.raises(rc.InvalidValue, match="burn_in"):
        mixture.sample_sequences(8, 5, burn_in=5)


def test_priorities_reach_the_buffer_of_their_key() -> None:
    prioritized = rc.Prioritized(alpha=1.0)
    first, second = filled(0.0, sampler=prioritized), filled(1.0, sampler=prioritized)
    mixture = rc.mix([(first, 1), (second, 1)])
    keys = np.array([3, 3, 5], np.uint64)
    found = mixture.update_priorities(keys, [10.0, 0.25, 7.0], source=[0, 1, 1])
    assert found.tolist() == [True, True, True]
    where = rc.field("step") == 3
    assert first.sample(1, where=where).info.priority == 10.0
    assert second.sample(1, where=where).info.priority == 0.25
    assert second.sample(1, where=rc.field("step") == 5).info.priority == 7.0
    assert first.sample(1, where=rc.field("step") == 5).info.priority == 1.0
    gone = mixture.update_priorities(np.array([3, 999], np.uint64), 2.0, source=[1, 0])
    assert gone.tolist() == [True, False]
    batch = mixture.sample(6)
    assert mixture.update_priorities(batch.info.keys, np.ones(6), source=batch.info.source).all()


@pytest.mark.parametrize(
    ("keys", "values", "source", "word"),
    [
        ([1, 2], [1.0, 1.0], [0], "source"),
        ([1, 2], [1.0, 1.0], [0, 2], "source"),
        ([1, 2], [1.0, 1.0], [0, -1], "source"),
        ([1, 2], [1.0, 1.0], [0.5, 1.0], "source"),
        ([1, 2], [1.0, 1.0, 1.0], [0, 1], "values"),
        ([1, 2], [1.0, -1.0], [0, 1], "values"),
        ([1, 2], [1.0, float("nan")], [0, 1], "values"),
        ([1, 2], ["a", "b"], [0, 1], "priorities"),
    ],
)
def test_wrong_priorities_change_nothing(keys: Any, values: Any, source: Any, word: str) -> None:
    first, second = filled(0.0, sampler=rc.Prioritized()), filled(1.0, sampler=rc.Prioritized())
    with pytest.raises(rc.InvalidValue, match=word):
        rc.mix([(first, 1), (second, 1)]).update_priorities(keys, values, source=source)
    for buffer in (first, second):
        assert (buffer.sample(50, replace=False, timeout=0).info.priority == 1.0).all()


def test_same_seeds_and_calls_give_the_same_batches() -> None:
    def keys() -> list[int]:
        mixture = rc.mix([(filled(0.0, seed=1), 0.3), (filled(1.0, seed=2), 0.7)])
        return [k for _ in range(9) for k in mixture.sample(5).info.keys.tolist()]

    assert keys() == keys()


def test_uniform_and_prioritized_buffers_mix() -> None:
    mixture = rc.mix([(filled(0.0), 1), (filled(1.0, sampler=rc.Prioritized()), 1)])
    info = mixture.sample(8).info
    assert (info.priority == 1.0).all()
    assert (info.weights == 1.0).all()


def test_a_relabelled_view_mixes_with_a_buffer() -> None:
    def with_goals(seed: int) -> rc.ReplayBuffer:
        buffer = rc.ReplayBuffer(99, seed=seed)
        for t in range(20):
            buffer.add(obs={"desired_goal": -1, "achieved_goal": t}, reward=np.float32(0))
        return buffer

    rule = rc.Hindsight(share=1, reward=lambda achieved, goal: achieved == goal)
    view = with_goals(0).relabel(hindsight=rule)
    batch = rc.mix([(view, 1), (with_goals(1), 1)]).sample(10)
    assert (batch.info.relabelled == (batch.info.source == 0)).all()
    assert ((batch["obs.desired_goal"] >= 0) == batch.info.relabelled).all()


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_batches_keep_the_shares(prefetch: int) -> None:
    mixture = rc.mix([(filled(0.0), 1), (filled(1.0), 2)])
    with mixture.batches(4, prefetch=prefetch, count=9) as batches:
        sources = [batch.info.source for batch in batches]
    assert np.bincount(np.concatenate(sources)).tolist() == [12, 24]


def test_a_batch_that_waits_for_one_buffer_keeps_what_it_has_of_the_other() -> None:
    """Looking ahead does not wait, and draws nothing twice."""
    limited = filled(1.0, limiter=rc.SampleToInsertRatio(1.0, 1, 60.0))
    plain = filled(0.0)
    mixture = rc.mix([(plain, 1), (limited, 1)])
    batches = mixture.batches(20, prefetch=4, timeout=0)
    while True:
        try:
            next(batches)
        except rc.WaitTimeout:
            break
    before = plain.stats()["samples"]
    for _ in range(3):
        with pytest.raises(rc.WaitTimeout):
            next(batches)
    assert plain.stats()["samples"] == before
    limited.extend(
        obs=np.ones((60, 2), np.float32), action=np.arange(60), reward=np.ones(60, np.float32)
    )
    assert np.bincount(next(batches).info.source).tolist() == [10, 10]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"obs": np.zeros((5, 3), np.float32)}, "'obs'"),
        ({"reward": np.zeros(5)}, "'reward'"),
        ({"extra": np.zeros(5)}, "'extra': none and"),
    ],
)
def test_buffers_with_other_columns_are_refused_before_anything_is_drawn(
    change: dict[str, Any], word: str
) -> None:
    other = rc.ReplayBuffer(100)
    columns = {
        "obs": np.zeros((5, 2), np.float32),
        "action": np.arange(5),
        "reward": np.zeros(5, np.float32),
    }
    other.extend(**{**columns, **change})
    plain = filled(0.0)
    with pytest.raises(rc.SchemaError, match=word):
        rc.mix([(plain, 1), (other, 1)]).sample(4)
    assert plain.stats()["samples"] == 0


def test_stacks_of_another_height_are_refused() -> None:
    with pytest.raises(rc.SchemaError, match="'frame_stack': 1 and 2"):
        rc.mix([(filled(0.0), 1), (filled(1.0, frame_stack=2), 1)]).sample(4)


@pytest.mark.parametrize(
    ("sources", "word"),
    [
        ([], "sources: expected a list"),
        (5, "sources: expected a list"),
        ([rc.ReplayBuffer(9)], "sources: expected a list"),
        ([(rc.ReplayBuffer(9), -1)], r"sources\[0\]\[1\]"),
        ([(rc.ReplayBuffer(9), float("nan"))], r"sources\[0\]\[1\]"),
        ([(rc.ReplayBuffer(9), float("inf"))], r"sources\[0\]\[1\]"),
        ([(rc.ReplayBuffer(9), True)], r"sources\[0\]\[1\]"),
        ([(rc.ReplayBuffer(9), "half")], r"sources\[0\]\[1\]"),
        ([(rc.ReplayBuffer(9), rc.Linear(-1.0, 1.0, 5))], r"sources\[0\]\[1\]"),
        ([(rc.ReplayBuffer(9), 0), (rc.ReplayBuffer(9), 0.0)], "at least one share above 0"),
        ([(rc.Table("t", capacity=5), 1)], r"sources\[0\]\[0\]"),
    ],
)
def test_wrong_sources_say_what_is_wrong(sources: Any, word: str) -> None:
    with pytest.raises(rc.InvalidValue, match=word):
        rc.mix(sources)


def test_shares_that_become_zero_together_say_when() -> None:
    mixture = rc.mix([(filled(0.0), rc.Linear(1.0, 0.0, 2))])
    for _ in range(2):
        mixture.sample(1)
    with pytest.raises(rc.InvalidValue, match="all shares are 0 at sample call 2"):
        mixture.sample(1)
