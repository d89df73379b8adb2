"""What `rc.ReplayBuffer` must do in cases that one can check by hand."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import numpy as np
import pytest
from raw_ring import find_episodes

import recollect as rc


def buffer_of(capacity: int = 100, **options: Any) -> rc.ReplayBuffer:
    return rc.ReplayBuffer(capacity, **{"seed": 0, "gamma": 0.5, **options})


def play(
    buffer: rc.ReplayBuffer,
    steps: int,
    *,
    start: int = 0,
    env_id: int = 0,
    end: str | None = "terminated",
    final: bool = False,
) -> list[int]:
    """An episode whose step i observes start + i and earns 1; returns the keys."""
    keys = []
    for i in range(steps):
        options: dict[str, Any] = {}
        if i == steps - 1 and end is not None:
            options[end] = True
            if final:
                options["final_obs"] = np.float32(start + steps)
        keys.append(
            buffer.add(
                env_id=env_id, obs=np.float32(start + i), action=i, reward=np.float32(1), **options
            )
        )
    return keys


def drawn(buffer: rc.ReplayBuffer, count: int) -> dict[float, dict[str, float]]:
    """All transitions, by what they observed; there must be exactly `count`."""
    batch = buffer.sample(count, replace=False, timeout=0)
    with pytest.raises((rc.WaitTimeout, rc.NeverPossible)):
        buffer.sample(count + 1, replace=False, timeout=0)
    names = ("next_obs", "reward", "discount")
    return {
        float(batch["obs"][i]): {name: float(batch[name][i]) for name in names}
        for i in range(count)
    }


# -- where episodes begin and end ------------------------------------------------------------------
def test_a_ring_of_ten_is_read_across_its_write_position() -> None:
    ends = np.zeros(10, np.bool_)
    ends[[2, 7]] = True
    starts, lengths = find_episodes(ends, newest=4, full=True)
    assert list(starts) == [8, 3, 5]
    assert list(lengths) == [5, 2, 3]


def test_a_ring_that_is_not_full_ends_at_its_newest_row() -> None:
    ends = np.zeros(10, np.bool_)
    ends[2] = True
    starts, lengths = find_episodes(ends, newest=4, full=False)
    assert list(starts) == [0, 3]
    assert list(lengths) == [3, 2]


def test_an_end_at_the_newest_row_leaves_no_empty_episode() -> None:
    ends = np.zeros(6, np.bool_)
    ends[3] = True
    starts, lengths = find_episodes(ends, newest=3, full=True)
    assert list(starts) == [4]
    assert list(lengths) == [6]


def test_a_buffer_reads_the_same_ring_of_ten() -> None:
    """15 steps in a ring of 10: the newest stands at 4, episodes end at 7 and at 12."""
    buffer = buffer_of(10)
    play(buffer, 8)
    play(buffer, 5, start=8)
    play(buffer, 2, start=13, end=None)
    table = buffer.episodes()
    assert table["start"].tolist() == [5, 8, 13]
    assert (table["start"] % 10).tolist() == [5, 8, 3]
    assert table["length"].tolist() == [3, 5, 2]
    assert table["complete"].tolist() == [True, True, False]
    assert table["cut"].tolist() == [True, False, False]


def test_an_episode_longer_than_its_ring_is_cut_at_its_head() -> None:
    buffer = buffer_of(6)
    play(buffer, 20, end=None)
    table = buffer.episodes()
    assert table["start"].tolist() == [14]
    assert table["length"].tolist() == [6]
    assert table["cut"].tolist() == [True]
    assert table["complete"].tolist() == [False]
    assert sorted(drawn(buffer, 5)) == [14, 15, 16, 17, 18]


def test_returns_are_the_sums_of_rewards() -> None:
    buffer = buffer_of(20)
    for reward, end in ((1.5, False), (2.0, False), (-1.0, True), (4.0, False)):
        buffer.add(obs=np.float32(0), action=0, reward=np.float32(reward), terminated=end)
    assert buffer.episodes()["return"].tolist() == [2.5, 4.0]


def test_the_table_of_episodes_prints_and_converts() -> None:
    buffer = buffer_of()
    play(buffer, 3)
    table = buffer.episodes()
    assert "length" in repr(table)
    frame = table.to_pandas()
    assert {"env", "start", "length", "return", "complete", "cut"} <= set(frame.columns)
    assert frame["length"].tolist() == [3]


def test_a_first_step_cuts_an_open_episode_short() -> None:
    buffer = buffer_of()
    play(buffer, 3, end=None)
    buffer.add(obs=np.float32(50), action=0, reward=np.float32(1), first=True)
    table = buffer.episodes()
    assert table["length"].tolist() == [3, 1]
    assert table["complete"].tolist() == [True, False]
    assert sorted(drawn(buffer, 2)) == [0, 1], "step 2 has nothing to bootstrap from"


# -- transitions -----------------------------------------------------------------------------------
def test_the_next_observation_is_that_of_the_next_row() -> None:
    buffer = buffer_of()
    play(buffer, 4, end=None)
    for obs, cells in drawn(buffer, 3).items():
        assert cells == {"next_obs": obs + 1, "reward": 1.0, "discount": 0.5}


def test_the_last_step_of_an_episode_is_reachable() -> None:
    buffer = buffer_of(20)
    play(buffer, 5)
    play(buffer, 3, start=10, end="truncated", final=True)
    transitions = drawn(buffer, 8)
    assert transitions[4.0] == {"next_obs": 0.0, "reward": 1.0, "discount": 0.0}
    assert transitions[12.0] == {"next_obs": 13.0, "reward": 1.0, "discount": 0.5}


def test_the_step_at_the_write_position_has_no_next_yet() -> None:
    buffer = buffer_of(8)
    play(buffer, 1, end=None)
    with pytest.raises(rc.WaitTimeout):
        buffer.sample(1, timeout=0)
    play(buffer, 1, start=1, end=None)
    assert list(drawn(buffer, 1)) == [0.0]


def test_a_full_ring_never_joins_its_newest_to_its_oldest_row() -> None:
    buffer = buffer_of(8)
    play(buffer, 21, end=None)
    transitions = drawn(buffer, 7)
    assert sorted(transitions) == [13, 14, 15, 16, 17, 18, 19]
    assert all(cells["next_obs"] == obs + 1 for obs, cells in transitions.items())


def test_a_final_observation_is_kept_and_is_no_step() -> None:
    buffer = buffer_of(20)
    keys = play(buffer, 3, final=True)
    more = play(buffer, 2, start=10, end=None)
    assert [key & 0xFFFF for key in keys + more] == [0, 1, 2, 4, 5]
    assert len(buffer) == 5
    transitions = drawn(buffer, 4)
    assert transitions[2.0] == {"next_obs": 3.0, "reward": 1.0, "discount": 0.0}
    assert 3.0 not in transitions


def test_truncation_without_a_final_observation_is_not_drawn() -> None:
    buffer = buffer_of()
    play(buffer, 4, end="truncated")
    assert sorted(drawn(buffer, 3)) == [0, 1, 2]


def test_n_step_returns_stop_at_termination() -> None:
    buffer = buffer_of(n_step=3)
    play(buffer, 5)
    play(buffer, 2, start=10, end=None)
    transitions = drawn(buffer, 5)
    assert transitions[0.0] == {"next_obs": 3.0, "reward": 1.75, "discount": 0.125}
    assert transitions[1.0] == {"next_obs": 4.0, "reward": 1.75, "discount": 0.125}
    assert transitions[2.0] == {"next_obs": 0.0, "reward": 1.75, "discount": 0.0}
    assert transitions[3.0] == {"next_obs": 0.0, "reward": 1.5, "discount": 0.0}
    assert transitions[4.0] == {"next_obs": 0.0, "reward": 1.0, "discount": 0.0}


def test_n_step_returns_bootstrap_at_truncation() -> None:
    buffer = buffer_of(n_step=3)
    play(buffer, 5, end="truncated", final=True)
    play(buffer, 2, start=10, end=None)
    transitions = drawn(buffer, 5)
    assert transitions[2.0] == {"next_obs": 5.0, "reward": 1.75, "discount": 0.125}
    assert transitions[3.0] == {"next_obs": 5.0, "reward": 1.5, "discount": 0.25}
    assert transitions[4.0] == {"next_obs": 5.0, "reward": 1.0, "discount": 0.5}


def test_n_step_returns_without_a_final_observation_stay_inside() -> None:
    buffer = buffer_of(n_step=3)
    play(buffer, 5, end="truncated")
    assert sorted(drawn(buffer, 2)) == [0, 1]


def test_n_step_returns_wait_for_what_an_open_episode_brings() -> None:
    buffer = buffer_of(n_step=3)
    for i in range(6):
        play(buffer, 1, start=i, end=None)
        if i >= 3:
            assert sorted(drawn(buffer, i - 2)) == list(range(i - 2))


def test_a_reward_may_belong_to_the_action_before_its_row() -> None:
    """dm_env: an episode of 4 rows is 3 steps; the marked row is the last observation."""
    buffer = buffer_of(reward_at="next", n_step=2)
    for i in range(4):
        buffer.add(obs=np.float32(i), action=i, reward=np.float32(10**i), terminated=i == 3)
    buffer.add(obs=np.float32(100), action=0, reward=np.float32(7))
    transitions = drawn(buffer, 3)
    assert transitions[0.0] == {"next_obs": 2.0, "reward": 10 + 50, "discount": 0.25}
    assert transitions[1.0] == {"next_obs": 3.0, "reward": 100 + 500, "discount": 0.0}
    assert transitions[2.0] == {"next_obs": 3.0, "reward": 1000, "discount": 0.0}


def test_a_truncated_episode_bootstraps_from_its_marked_row() -> None:
    buffer = buffer_of(reward_at="next")
    for i in range(3):
        buffer.add(obs=np.float32(i), action=i, reward=np.float32(i), truncated=i == 2)
    transitions = drawn(buffer, 2)
    assert transitions[1.0] == {"next_obs": 2.0, "reward": 2.0, "discount": 0.5}


def test_both_conventions_tell_of_one_episode_the_same() -> None:
    this, other = buffer_of(n_step=2), buffer_of(n_step=2, reward_at="next")
    rewards = [3.0, 1.0, 4.0, 1.0]
    for i, reward in enumerate(rewards):
        ends = {"truncated": True, "final_obs": np.float32(4)} if i == 3 else {}
        this.add(obs=np.float32(i), action=i, reward=np.float32(reward), **ends)
    for i, reward in enumerate([0.0, *rewards]):
        other.add(obs=np.float32(i), action=i, reward=np.float32(reward), truncated=i == 4)
    assert drawn(this, 4) == drawn(other, 4)


def test_further_columns_and_nested_observations_come_with_a_transition() -> None:
    buffer = buffer_of()
    for i in range(3):
        buffer.add(
            obs={"image": np.full((2, 2), i, np.uint8), "state": np.float32(i)},
            action=np.array([i, -i]),
            reward=np.float32(1),
            log_prob=np.float64(-i),
        )
    batch = buffer.sample(2, replace=False)
    assert batch["obs"]["image"].shape == (2, 2, 2)
    assert (batch["next_obs.image"] == batch["obs.image"] + 1).all()
    assert (batch["next_obs"]["state"] == batch["obs"]["state"] + 1).all()
    assert (batch["log_prob"] == -batch["obs.state"]).all()
    assert (batch["action"][:, 1] == -batch["obs.state"]).all()


def test_several_columns_may_be_read_from_the_next_row() -> None:
    buffer = buffer_of(next_from_row=("obs", "goal"))
    for i in range(3):
        buffer.add(obs=np.float32(i), goal=np.float32(10 * i), action=i, reward=np.float32(1))
    batch = buffer.sample(2, replace=False)
    assert (batch["next_goal"] == batch["goal"] + 10).all()
    assert (batch["next_obs"] == batch["obs"] + 1).all()


# -- frame stacks ----------------------------------------------------------------------------------
def stacks(buffer: rc.ReplayBuffer, count: int) -> dict[int, tuple[list[int], list[int]]]:
    """Stacks of all transitions, by their newest frame."""
    batch = buffer.sample(count, replace=False, timeout=0)
    with pytest.raises((rc.WaitTimeout, rc.NeverPossible)):
        buffer.sample(count + 1, replace=False, timeout=0)
    return {
        int(batch["obs"][i][-1]): (batch["obs"][i].tolist(), batch["next_obs"][i].tolist())
        for i in range(count)
    }


def test_a_stack_repeats_the_first_frame_at_a_true_beginning() -> None:
    buffer = buffer_of(frame_stack=3)
    play(buffer, 3, start=10)
    play(buffer, 3, start=20, end="truncated", final=True)
    assert stacks(buffer, 6) == {
        10: ([10, 10, 10], [10, 10, 11]),
        11: ([10, 10, 11], [10, 11, 12]),
        12: ([10, 11, 12], [0, 0, 0]),
        20: ([20, 20, 20], [20, 20, 21]),
        21: ([20, 20, 21], [20, 21, 22]),
        22: ([20, 21, 22], [21, 22, 23]),
    }


def test_at_a_cut_the_rows_without_their_history_are_no_starts() -> None:
    buffer = buffer_of(6, frame_stack=3)
    play(buffer, 10, start=10, end=None)
    assert stacks(buffer, 3) == {
        16: ([14, 15, 16], [15, 16, 17]),
        17: ([15, 16, 17], [16, 17, 18]),
        18: ([16, 17, 18], [17, 18, 19]),
    }


def test_frames_of_images_are_stacked_before_their_axes() -> None:
    buffer = buffer_of(frame_stack=4)
    for i in range(6):
        buffer.add(obs=np.full((5, 7), i, np.uint8), action=i, reward=np.float32(0))
    batch = buffer.sample(3)
    assert batch["obs"].shape == batch["next_obs"].shape == (3, 4, 5, 7)
    assert (batch["next_obs"][:, :-1] == batch["obs"][:, 1:]).all()
    assert batch["action"].shape == (3,)


def test_sequences_of_stacks_never_cross_an_episode() -> None:
    buffer = buffer_of(20, frame_stack=3)
    play(buffer, 4, start=10)
    play(buffer, 4, start=20)
    batch = buffer.sample_sequences(50, 6, across_episodes="reset")
    assert batch["obs"].shape == (50, 6, 3)
    same = batch["obs"] // 10 == batch["obs"][:, :, -1:] // 10
    assert same.all()


# -- sequences -------------------------------------------------------------------------------------
def starts_of(buffer: rc.ReplayBuffer, length: int, **options: Any) -> list[int]:
    """The first rows of all sequences that may be drawn."""
    batch = buffer.sample_sequences(400, length, **options)
    return sorted(set(batch["obs"][:, 0].astype(int).tolist()))


def by_start(batch: rc.Batch) -> dict[int, int]:
    return {int(batch["obs"][i, 0]): i for i in range(len(batch["obs"]))}


def test_sequences_stop_within_one_episode() -> None:
    buffer = buffer_of(30)
    play(buffer, 5, start=10)
    play(buffer, 4, start=20)
    play(buffer, 3, start=30, end=None)
    assert starts_of(buffer, 3) == [10, 11, 12, 20, 21, 30]
    batch = buffer.sample_sequences(20, 3)
    assert (np.diff(batch["obs"], axis=1) == 1).all()
    assert batch["valid"].all()
    assert not batch["burn_in"].any()


def test_sequences_are_padded_after_the_end() -> None:
    buffer = buffer_of(30)
    play(buffer, 5, start=10)
    play(buffer, 3, start=20, end=None)
    assert starts_of(buffer, 3, across_episodes="pad") == [10, 11, 12, 13, 14, 20]
    batch = buffer.sample_sequences(200, 3, across_episodes="pad")
    i = by_start(batch)[14]
    assert batch["obs"][i].tolist() == [14, 0, 0]
    assert batch["reward"][i].tolist() == [1, 0, 0]
    assert batch["valid"][i].tolist() == [True, False, False]
    assert batch["terminated"][i].tolist() == [True, False, False]
    assert batch["bootstrap"][i].tolist() == [False, False, False]


def test_sequences_run_into_the_next_episode() -> None:
    buffer = buffer_of(30)
    play(buffer, 3, start=10, end="truncated", final=True)
    play(buffer, 3, start=20, end=None)
    assert starts_of(buffer, 3, across_episodes="reset") == [10, 11, 12, 20]
    batch = buffer.sample_sequences(200, 3, across_episodes="reset")
    i = by_start(batch)[11]
    assert batch["obs"][i].tolist() == [11, 12, 20]
    assert batch["next_obs"][i].tolist() == [12, 13, 21]
    assert batch["is_first"][i].tolist() == [False, False, True]
    assert batch["truncated"][i].tolist() == [False, True, False]
    assert batch["bootstrap"][i].tolist() == [True, True, True]


def test_the_newest_step_ends_a_sequence_without_a_next() -> None:
    buffer = buffer_of(30)
    play(buffer, 3, start=10, end=None)
    batch = buffer.sample_sequences(1, 3)
    assert batch["next_obs"][0].tolist() == [11, 12, 0]
    assert batch["bootstrap"][0].tolist() == [True, True, False]
    assert batch["is_first"][0].tolist() == [True, False, False]


def test_a_terminated_step_does_not_bootstrap_from_its_final_observation() -> None:
    buffer = buffer_of(30)
    play(buffer, 3, start=10, final=True)
    batch = buffer.sample_sequences(1, 3)
    assert batch["next_obs"][0].tolist() == [11, 12, 13]
    assert batch["terminated"][0].tolist() == [False, False, True]
    assert batch["bootstrap"][0].tolist() == [True, True, False]


def test_a_stride_over_a_beginning_still_says_that_an_episode_began() -> None:
    buffer = buffer_of(30)
    play(buffer, 3, start=10)
    play(buffer, 4, start=20, end=None)
    batch = buffer.sample_sequences(100, 3, stride=2, across_episodes="reset")
    i = by_start(batch)[10]
    assert batch["obs"][i].tolist() == [10, 12, 21], "row 20, which began it, is stepped over"
    assert batch["is_first"][i].tolist() == [True, False, True]


def test_length_includes_the_burn_in() -> None:
    buffer = buffer_of(30)
    play(buffer, 6, start=10)
    batch = buffer.sample_sequences(50, 4, burn_in=2, across_episodes="pad")
    assert batch["obs"].shape == (50, 4)
    assert (batch["burn_in"] == [True, True, False, False]).all()
    starts = set(batch["obs"][:, 0].astype(int).tolist())
    assert starts == {10, 11, 12, 13}, "a start needs a row after its burn-in"


def test_stride_is_the_distance_between_rows() -> None:
    buffer = buffer_of(30)
    play(buffer, 7, start=10, end=None)
    assert starts_of(buffer, 3, stride=3) == [10]
    batch = buffer.sample_sequences(1, 3, stride=3)
    assert batch["obs"][0].tolist() == [10, 13, 16]
    assert batch["next_obs"][0].tolist() == [11, 14, 0]


def test_a_cut_is_no_beginning() -> None:
    buffer = buffer_of(6)
    play(buffer, 9, end=None)
    batch = buffer.sample_sequences(100, 4)
    assert sorted(by_start(batch)) == [3, 4, 5]
    assert not batch["is_first"].any()


def test_sequences_never_cross_the_write_position() -> None:
    buffer = buffer_of(10)
    for turn in range(7):
        play(buffer, 3, start=3 * turn, end=None)
        if len(buffer) >= 4:
            batch = buffer.sample_sequences(100, 4)
            assert (np.diff(batch["obs"], axis=1) == 1).all()


def test_one_environment_too_short_for_a_sequence_is_skipped() -> None:
    buffer = buffer_of(60, num_envs=3)
    play(buffer, 8, start=100, env_id=0)
    play(buffer, 2, start=200, env_id=1)
    play(buffer, 6, start=300, env_id=2, end=None)
    batch = buffer.sample_sequences(300, 5)
    assert set(batch.info.env_ids.tolist()) == {0, 2}
    assert set(batch["obs"][:, 0].astype(int).tolist()) == {100, 101, 102, 103, 300, 301}


@pytest.mark.parametrize("mode", ["stop", "pad", "reset"])
def test_all_environments_too_short_is_a_clear_error(mode: str) -> None:
    buffer = buffer_of(60, num_envs=3)
    for env_id in range(3):
        play(buffer, 3, env_id=env_id, end=None)
    with pytest.raises(rc.RecollectError, match="5"):
        buffer.sample_sequences(2, 5, across_episodes=mode)
    assert len(buffer) == 9
    play(buffer, 2, env_id=1, end=None)
    assert buffer.sample_sequences(2, 5, across_episodes=mode).info.env_ids.tolist() == [1, 1]


def test_a_sequence_longer_than_a_ring_is_never_possible() -> None:
    buffer = buffer_of(20, num_envs=2)
    play(buffer, 10, env_id=0)
    with pytest.raises(rc.NeverPossible, match="11"):
        buffer.sample_sequences(1, 11)
    with pytest.raises(rc.NeverPossible, match="13"):
        buffer.sample_sequences(1, 4, stride=4)


def test_a_fifth_kind_of_sequence_is_still_right() -> None:
    """At most four indexes are kept; one that went is made again."""
    buffer = buffer_of(12)
    for turn in range(30):
        play(buffer, 1, start=turn, end="terminated" if turn % 5 == 4 else None)
        for length in (1, 2, 3, 4, 5):
            here = range(max(0, turn - 11), turn + 1)
            legal = [row for row in here if row + length - 1 <= turn and row % 5 + length <= 5]
            if legal:
                found = buffer.sample_sequences(120, length)["obs"][:, 0].astype(int)
                assert set(found.tolist()) == set(legal), (turn, length)


# -- whole episodes --------------------------------------------------------------------------------
def test_only_whole_episodes_are_drawn() -> None:
    buffer = buffer_of(12)
    play(buffer, 6, start=10)
    play(buffer, 3, start=20, end="truncated", final=True)
    play(buffer, 2, start=30)
    play(buffer, 4, start=40, end=None)
    batch = buffer.sample_episodes(40)
    offsets = batch.info.row_offsets
    found = {
        tuple(batch["obs"][offsets[i] : offsets[i + 1]].astype(int).tolist()) for i in range(40)
    }
    assert found == {(20, 21, 22), (30, 31)}


def test_no_whole_episode_is_a_clear_error() -> None:
    buffer = buffer_of(12)
    play(buffer, 3, end=None)
    with pytest.raises(rc.RecollectError, match="episode"):
        buffer.sample_episodes(1)


# -- priorities ------------------------------------------------------------------------------------
def test_stratified_draws_are_exact_where_shares_are_whole() -> None:
    buffer = buffer_of(10, sampler=rc.Prioritized(alpha=1.0))
    keys = play(buffer, 2)
    assert buffer.update_priorities(keys, [0.5, 1.5]).tolist() == [True, True]
    for _ in range(20):
        batch = buffer.sample(1000)
        assert np.bincount(batch["obs"].astype(int)).tolist() == [250, 750]


def test_new_steps_get_the_highest_priority_there_is() -> None:
    buffer = buffer_of(10, sampler=rc.Prioritized(alpha=1.0))
    keys = play(buffer, 3)
    assert set(buffer.sample(9).info.priority.tolist()) == {1.0}
    buffer.update_priorities(keys, [0.5, 4.0, 0.25])
    play(buffer, 1, start=10)
    batch = buffer.sample(4, replace=False)
    found = dict(zip(batch["obs"].tolist(), batch.info.priority.tolist(), strict=True))
    assert found == {0: 0.5, 1: 4.0, 2: 0.25, 10: 4.0}


def test_priorities_of_keys_that_went_are_ignored() -> None:
    buffer = buffer_of(4, sampler=rc.Prioritized(alpha=1.0))
    old = play(buffer, 4)
    new = play(buffer, 3, start=10)
    found = buffer.update_priorities([*old, *new, 12345], [5.0] * 8)
    assert found.tolist() == [False] * 3 + [True] * 4 + [False]


def test_a_key_of_a_final_row_names_no_step() -> None:
    buffer = buffer_of(10, sampler=rc.Prioritized(alpha=1.0))
    keys = play(buffer, 2, final=True)
    assert buffer.update_priorities([keys[-1] + 1], [5.0]).tolist() == [False]


def test_a_priority_of_an_undecided_step_counts_once_it_is_legal() -> None:
    buffer = buffer_of(10, sampler=rc.Prioritized(alpha=1.0))
    keys = play(buffer, 3, end=None)
    buffer.update_priorities(keys[2:], [6.0])
    buffer.update_priorities(keys[:2], [1.0, 1.0])
    buffer.add(obs=np.float32(3), action=3, reward=np.float32(1))
    batch = buffer.sample(800)
    assert np.bincount(batch["obs"].astype(int)).tolist() == [100, 100, 600]


def test_priorities_of_starts_choose_sequences() -> None:
    buffer = buffer_of(10, sampler=rc.Prioritized(alpha=1.0))
    keys = play(buffer, 4)
    batch = buffer.sample_sequences(6, 3)
    assert set(batch.info.keys.tolist()) <= set(keys[:2])
    assert buffer.update_priorities(keys, [1.0, 3.0, 100.0, 100.0]).all()
    counts = np.bincount(buffer.sample_sequences(400, 3)["obs"][:, 0].astype(int))
    assert counts.tolist() == [100, 300]


def test_only_zero_priorities_are_drawn_uniformly() -> None:
    buffer = buffer_of(10, sampler=rc.Prioritized(alpha=1.0))
    keys = play(buffer, 3)
    buffer.update_priorities(keys, [0.0] * 3)
    assert set(buffer.sample(100)["obs"].tolist()) == {0, 1, 2}
    assert set(buffer.sample(3, replace=False)["obs"].tolist()) == {0, 1, 2}


def test_weights_are_numbers_where_a_zero_priority_must_be_drawn() -> None:
    """Three different steps of three, beside a recent share: the one of priority 0 comes too."""
    buffer = buffer_of(10, sampler=rc.Prioritized(alpha=1.0), recent=(2, 0.5))
    keys = play(buffer, 3)
    buffer.update_priorities(keys, [1.0, 0.0, 1.0])
    info = buffer.sample(3, replace=False).info
    assert (info.probability > 0).all()
    assert (info.weights > 0).all()
    assert np.isfinite(info.weights).all()


# -- adding ----------------------------------------------------------------------------------------
def test_extending_all_environments_is_adding_one_step_to_each() -> None:
    one, other = buffer_of(40, num_envs=4), buffer_of(40, num_envs=4)
    for turn in range(25):
        obs = np.arange(4, dtype=np.float32) + 10 * turn
        terminated = (np.arange(4) + turn) % 7 == 0
        keys = one.extend(
            obs=obs, action=np.zeros(4, np.int64), reward=np.ones(4, np.float32),
            terminated=terminated,
        )  # fmt: skip
        added = [
            other.add(
                env_id=e, obs=obs[e], action=0, reward=np.float32(1), terminated=terminated[e]
            )
            for e in range(4)
        ]
        assert keys.tolist() == added
    assert one.episodes()["length"].tolist() == other.episodes()["length"].tolist()
    assert one.sample(50)["obs"].tolist() == other.sample(50)["obs"].tolist()


def test_extending_one_environment_is_a_stretch_of_steps() -> None:
    buffer = buffer_of(40, num_envs=2)
    keys = buffer.extend(
        env_ids=1,
        obs=np.arange(6, dtype=np.float32),
        action=np.zeros(6, np.int64),
        reward=np.ones(6, np.float32),
        terminated=np.array([0, 0, 1, 0, 0, 0], np.bool_),
    )
    assert [key >> 44 for key in keys.tolist()] == [1] * 6
    assert [key & 0xFFFF for key in keys.tolist()] == list(range(6))
    assert buffer.episodes()["length"].tolist() == [3, 3]
    assert buffer.episodes()["env"].tolist() == [1, 1]


def test_a_stretch_longer_than_a_ring_leaves_its_end() -> None:
    buffer = buffer_of(5)
    buffer.extend(
        obs=np.arange(12, dtype=np.float32),
        action=np.zeros(12, np.int64),
        reward=np.ones(12, np.float32),
    )
    assert len(buffer) == 5
    assert sorted(drawn(buffer, 4)) == [7, 8, 9, 10]


def test_a_step_after_an_end_begins_an_episode_by_itself() -> None:
    buffer = buffer_of()
    play(buffer, 2)
    buffer.add(obs=np.float32(9), action=0, reward=np.float32(0))
    assert buffer.episodes()["length"].tolist() == [2, 1]
    assert not buffer.episodes()["cut"].any()


def test_clearing_leaves_an_empty_buffer_and_never_reuses_a_key() -> None:
    buffer = buffer_of(10)
    old = play(buffer, 5, end=None)
    buffer.clear()
    assert len(buffer) == 0
    assert len(buffer.episodes()["length"]) == 0
    with pytest.raises(rc.WaitTimeout):
        buffer.sample(1, timeout=0)
    new = play(buffer, 3, start=50)
    assert not set(old) & set(new)
    assert sorted(drawn(buffer, 3)) == [50, 51, 52]
    assert buffer.episodes()["cut"].tolist() == [False]


def test_after_clearing_an_episode_may_go_on_without_its_head() -> None:
    buffer = buffer_of(10)
    play(buffer, 3, end=None)
    buffer.clear()
    buffer.add(obs=np.float32(3), action=0, reward=np.float32(1), first=False)
    play(buffer, 2, start=4)
    table = buffer.episodes()
    assert table["cut"].tolist() == [True]
    assert table["length"].tolist() == [3]
    with pytest.raises(rc.RecollectError):
        buffer.sample_episodes(1)


def test_an_environment_that_is_named_twice_takes_two_steps() -> None:
    buffer = buffer_of(40, num_envs=2)
    keys = buffer.extend(
        env_ids=[1, 0, 1],
        obs=np.array([10, 20, 11], np.float32),
        action=np.zeros(3, np.int64),
        reward=np.ones(3, np.float32),
        terminated=np.array([False, False, True]),
    )
    assert keys.tolist() == [1 << 44, 0, (1 << 44) + 1]
    assert buffer.episodes()["length"].tolist() == [1, 2]
    assert drawn(buffer, 2)[10.0]["next_obs"] == 11


def test_a_final_observation_of_several_columns_is_a_dict() -> None:
    buffer = buffer_of(next_from_row=("obs", "goal"))
    columns = {"action": 0, "reward": np.float32(1)}
    buffer.add(
        obs=np.float32(1),
        goal=np.float32(2),
        truncated=True,
        final_obs={"obs": np.float32(3), "goal": np.float32(4)},
        **columns,
    )
    batch = buffer.sample(1)
    assert (batch["next_obs"].tolist(), batch["next_goal"].tolist()) == ([3], [4])


def test_a_step_that_both_terminated_and_was_truncated_terminated() -> None:
    buffer = buffer_of()
    columns = {"obs": np.float32(1), "action": 0, "reward": np.float32(1)}
    buffer.add(**columns, terminated=True, truncated=True, final_obs=np.float32(2))
    assert drawn(buffer, 1) == {1.0: {"next_obs": 2.0, "reward": 1.0, "discount": 0.0}}


# -- rules -----------------------------------------------------------------------------------------
def test_sampling_waits_for_the_first_legal_start() -> None:
    buffer = buffer_of()
    got: list[rc.Batch] = []
    thread = threading.Thread(target=lambda: got.append(buffer.sample(1, timeout=30)), daemon=True)
    thread.start()
    play(buffer, 1, end=None)
    time.sleep(0.05)
    assert not got
    play(buffer, 1, start=1, end=None)
    thread.join(30)
    assert got[0]["obs"].tolist() == [0]


def test_sampling_async_waits_as_well() -> None:
    buffer = buffer_of()

    async def run() -> rc.Batch:
        waiting = asyncio.create_task(buffer.sample_async(2, timeout=30))
        await asyncio.sleep(0.01)
        play(buffer, 3)
        return await waiting

    assert len(asyncio.run(run())["obs"]) == 2


def test_sequences_and_episodes_are_waited_for_in_asyncio_too() -> None:
    buffer = buffer_of()

    async def run() -> tuple[rc.Batch, rc.Batch]:
        sequences = asyncio.create_task(buffer.sample_sequences_async(2, 3, timeout=30))
        episodes = asyncio.create_task(buffer.sample_episodes_async(1, timeout=30))
        await asyncio.sleep(0.01)
        assert not sequences.done()
        assert not episodes.done()
        play(buffer, 3)
        return await sequences, await episodes

    sequences, episodes = asyncio.run(run())
    assert sequences["obs"].tolist() == [[0, 1, 2], [0, 1, 2]]
    assert episodes["obs"].tolist() == [0, 1, 2]


def test_steps_wait_for_the_limiter_in_asyncio_too() -> None:
    limiter = rc.SampleToInsertRatio(ratio=1.0, min_size=1, error_buffer=2)
    buffer = buffer_of(limiter=limiter)
    play(buffer, 3)  # as many as go ahead of the samples

    def step(number: float) -> dict[str, Any]:
        return {"obs": np.float32(number), "action": 0, "reward": np.float32(0)}

    async def run() -> tuple[int, np.ndarray]:
        one = asyncio.create_task(buffer.add_async(**step(3)))
        await asyncio.sleep(0.01)
        assert not one.done()
        await buffer.sample_async(1)
        key = await one
        columns = {name: np.array([cell]) for name, cell in step(4).items()}
        more = asyncio.create_task(buffer.extend_async(env_ids=0, **columns))
        await asyncio.sleep(0.01)
        assert not more.done()
        await buffer.sample_async(1)
        return key, await more

    key, keys = asyncio.run(run())
    assert keys.tolist() == [key + 1]
    assert len(buffer) == 5


def test_the_limiter_counts_steps_and_draws() -> None:
    limiter = rc.SampleToInsertRatio(ratio=2.0, min_size=2, error_buffer=4)
    buffer = buffer_of(limiter=limiter)
    play(buffer, 2)
    for _ in range(2):
        buffer.sample(2, timeout=0)
    with pytest.raises(rc.WaitTimeout):
        buffer.sample(2, timeout=0)
    play(buffer, 1)
    buffer.sample(2, timeout=0)
    stats = buffer.stats()
    assert (stats["inserts"], stats["samples"], stats["removals"]) == (3, 6, 0)


def test_a_minimal_size_counts_steps() -> None:
    buffer = buffer_of(limiter=rc.MinSize(5))
    play(buffer, 4)
    with pytest.raises(rc.WaitTimeout):
        buffer.sample(1, timeout=0)
    play(buffer, 1)
    buffer.sample(1, timeout=0)


def test_overwritten_steps_are_counted_as_removed() -> None:
    buffer = buffer_of(6)
    play(buffer, 3, final=True)
    play(buffer, 9, start=10, end=None)
    stats = buffer.stats()
    assert (stats["inserts"], stats["removals"]) == (12, 6)
    assert len(buffer) == 6


@pytest.mark.parametrize("sampler", [rc.Uniform(), rc.Prioritized()], ids=["uniform", "prio"])
def test_the_same_seed_and_calls_draw_the_same(sampler: rc.Selector) -> None:
    def run(seed: int) -> list[Any]:
        buffer = buffer_of(30, num_envs=2, sampler=sampler, seed=seed, recent=(8, 0.25))
        log: list[Any] = []
        for turn in range(12):
            play(buffer, 4, start=10 * turn, env_id=turn % 2, end=("terminated", None)[turn % 2])
            batch = buffer.sample(6)
            buffer.update_priorities(batch.info.keys, batch["obs"] % 7 + 0.5)
            log.append(batch["obs"].tolist())
            log.append(buffer.sample_sequences(3, 2)["obs"].tolist())
            log.append(buffer.sample_episodes(2)["obs"].tolist())
            log.append(buffer.sample(2, replace=False)["obs"].tolist())
        return log

    assert run(3) == run(3)
    assert run(3) != run(4)


def test_a_share_of_every_batch_is_recent() -> None:
    buffer = buffer_of(1000, recent=(10, 0.5))
    play(buffer, 501, end=None)
    total = 0
    for turn in range(60):
        batch = buffer.sample(3)
        total += int((batch["obs"] >= 491).sum())
        assert total >= (3 * (turn + 1)) // 2
    assert total <= 90 + 15, "about half come from all"


def test_recent_follows_the_newest_steps_of_every_environment() -> None:
    buffer = buffer_of(200, num_envs=2, recent=(10, 1.0))
    play(buffer, 50, start=100, env_id=0, end=None)
    play(buffer, 90, start=200, env_id=1, end=None)
    found = set(buffer.sample(300)["obs"].astype(int).tolist())
    assert found == {*range(145, 149), *range(285, 289)}


def test_an_empty_recent_window_leaves_the_rest() -> None:
    """The newest steps may all be undecided: the share then comes from all."""
    buffer = buffer_of(50, recent=(2, 0.5), n_step=5)
    play(buffer, 10, end=None)
    assert set(buffer.sample(100)["obs"].astype(int).tolist()) == set(range(5))


def test_where_draws_only_what_meets_a_query() -> None:
    buffer = buffer_of(60, num_envs=2)
    play(buffer, 5, env_id=0)
    play(buffer, 5, start=10, env_id=1)
    batch = buffer.sample(50, where=rc.field("env_id") == 1)
    assert set(batch["obs"].astype(int).tolist()) == set(range(10, 15))
    assert np.allclose(batch.info.probability, 1 / 5)
    batch = buffer.sample(20, where=rc.field("terminated") == True)  # noqa: E712
    assert set(batch["obs"].astype(int).tolist()) == {4, 14}
    batch = buffer.sample(20, where={"env_id": 0, "step": {"ge": 3}})
    assert set(batch["obs"].astype(int).tolist()) == {3, 4}


def test_a_batch_outlives_everything_it_was_drawn_from() -> None:
    buffer = buffer_of(64)
    play(buffer, 64, end=None)
    batch = buffer.sample(32)
    before = {name: column.copy() for name, column in batch.columns.items()}
    for turn in range(40):
        play(buffer, 64, start=1000 * turn, end=None)
    for name, column in batch.columns.items():
        assert (column == before[name]).all()
    assert (batch["next_obs"] == batch["obs"] + 1).all()


def test_a_buffer_says_what_it_is() -> None:
    buffer = buffer_of(100, num_envs=4)
    play(buffer, 3)
    assert "ReplayBuffer" in repr(buffer)
    assert "100" in repr(buffer)
    assert buffer.nbytes > 0


def test_a_closed_buffer_says_so_and_wakes_who_waits() -> None:
    buffer = buffer_of()
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            buffer.sample(1)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    time.sleep(0.05)
    buffer.close()
    thread.join(30)
    assert isinstance(errors[0], rc.TableClosed)
    with pytest.raises(rc.TableClosed):
        buffer.add(obs=np.float32(0), action=0, reward=np.float32(0))


@pytest.mark.parametrize("given", ["group", "list", "rollout"])
def test_groups_of_responses_are_sent_to_the_rollout_buffer(given: str) -> None:
    rollout = rc.Rollout([1], [2, 3], finish_reason="stop")
    group = rc.Group([rollout], task="math")
    value = {"group": group, "list": [group, group], "rollout": rollout}[given]
    buffer = rc.ReplayBuffer(10)
    with pytest.raises(rc.SchemaError, match=r"rc\.RolloutBuffer"):
        buffer.add(groups=value)
    assert len(buffer) == 0
