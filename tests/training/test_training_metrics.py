"""Metrics: each once, from one selection of rollouts, and no rate of nothing."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from training_data import random_groups, stored, trajectories_of

import recollect as rc
from recollect import training


def rollout(
    reward: float | None = 1.0, tokens: int = 2, reason: str = "stop", **more
) -> rc.Rollout:
    return rc.Rollout([1], [5] * tokens, reward=reward, finish_reason=reason, **more)


def test_a_window_with_nothing_has_counts_and_no_rate() -> None:
    metrics = training.Window().close(seconds=2.0, expected=4)
    assert metrics == {
        "gen/groups": 0,
        "gen/responses": 0,
        "gen/failed": 0,
        "gen/tokens": 0,
        "gen/seconds_waiting_for_trainer": 0.0,
        "gen/seconds": 2.0,
    }


def test_a_window_describes_what_was_generated_in_it() -> None:
    window = training.Window()
    window.add(rc.Group([rollout(1.0, 2), rollout(0.0, 4, "length")]), waiting=0.5)
    window.add(rc.Group([rollout(0.0, 6), rollout(1.0, 4)]))
    metrics = window.close(seconds=4.0, expected=4)
    assert metrics["gen/groups"] == 2
    assert metrics["gen/responses"] == 4
    assert metrics["gen/tokens"] == 16
    assert metrics["gen/reward_mean"] == 0.5
    assert metrics["gen/solved_share"] == 0.5
    assert metrics["gen/length_mean"] == 4.0
    assert metrics["gen/length_solved_mean"] == 3.0
    assert metrics["gen/length_unsolved_mean"] == 5.0
    assert metrics["gen/stop_rate"] == 0.75
    assert metrics["gen/batch_share"] == 0.5
    assert metrics["gen/tokens_per_second"] == 4.0
    assert metrics["gen/seconds_waiting_for_trainer"] == 0.5
    assert window.close()["gen/responses"] == 0
    assert window.responses_total == 4
    window.add(rc.Group([rollout()]))
    assert "gen/tokens_per_second" not in window.close(seconds=0.0)


def test_a_response_counts_once_however_often_its_group_comes() -> None:
    window = training.Window()
    done = rollout(1.0, 3, rollout_id="done")
    partial = rc.Rollout([1], [5], rollout_id="cut", finish_reason="abort")
    window.add(rc.Group([done, partial], group_id="g"))
    assert window.close()["gen/responses"] == 1
    window.add(rc.Group([done, rollout(0.0, 4, rollout_id="cut")], group_id="g"))
    metrics = window.close()
    assert (metrics["gen/responses"], metrics["gen/tokens"]) == (1, 4)
    retried = rollout(1.0, 5, rollout_id="done", attempt=1)  # another response to the same prompt
    window.add(rc.Group([retried, rollout(0.0, 4, rollout_id="cut")], group_id="g"))
    assert window.close()["gen/tokens"] == 5
    assert window.tokens_total == 12


def test_segments_are_one_response() -> None:
    window = training.Window()
    parts = [
        rollout(None, 2, "tool_calls", rollout_id="a", segment=0),
        rollout(1.0, 3, "stop", rollout_id="a", segment=1),
    ]
    window.add(rc.Group(parts))
    metrics = window.close()
    assert metrics["gen/responses"] == 1
    assert metrics["gen/length_mean"] == 5.0
    assert metrics["gen/stop_rate"] == 1.0


def test_failures_are_counted_apart_and_missing_rewards_give_no_mean() -> None:
    window = training.Window()
    window.add(rc.Group([rc.Rollout([1], [2], finish_reason="error"), rollout(None)]))
    metrics = window.close()
    assert metrics["gen/failed"] == 1
    assert metrics["gen/responses"] == 1
    assert metrics["gen/length_mean"] == 2.0
    assert not [name for name in metrics if "reward" in name or "solved" in name]


def test_a_window_goes_on_after_a_restart() -> None:
    window = training.Window()
    group = rc.Group([rollout(1.0, 3)], group_id="g")
    window.add(group, waiting=1.0)
    again = training.Window()
    again.restore(window.state(["g"]))
    again.add(group)
    assert again.close() == window.close()
    assert again.responses_total == 1


@pytest.mark.parametrize("segments", [False, True])
def test_what_trains_is_what_the_slow_way_counts(segments: bool) -> None:
    random = np.random.default_rng(11)
    groups = random_groups(random, 30, segments=segments)
    for group in groups:
        for one in group:
            one.versions = random.integers(0, 4, one.num_tokens)
    taken = stored(groups)
    filtered = training.apply_filters(taken, [training.Truncated("mask"), training.NoSpread()])
    selection = filtered.selection
    found = training.advantages(selection)
    packed = training.pack(selection, 64, ranks=2, advantages=found)
    uses = random.integers(1, 4, 30)
    metrics = training.trained(
        selection, 7, advantages=found, filtered=filtered, packed=packed, uses=uses
    )
    members = trajectories_of(groups)
    kept = [m for m, there in zip(members, selection.group_kept, strict=True) if there]
    flat = [one for group in kept for one in group]
    assert 0 < len(kept) < 30
    assert metrics["train/groups"] == len(kept)
    assert metrics["train/rollouts"] == len(flat)
    assert metrics["train/tokens"] == sum(one.length for one in flat)
    assert metrics["train/reward_mean"] == pytest.approx(np.mean([one.reward for one in flat]))
    assert metrics["train/length_std"] == pytest.approx(np.std([one.length for one in flat]))
    solved = [one for one in flat if one.reward > 0]
    assert metrics["train/solved_share"] == pytest.approx(len(solved) / len(flat))
    cut = [one for one in flat if any(p.finish_reason == "length" for p in one.segments)]
    assert metrics["train/masked_share"] == pytest.approx(len(cut) / len(flat))
    lags = [7 - min(int(p.versions.min()) for p in one.segments) - 1 for one in flat]
    assert metrics["train/lag_mean"] == pytest.approx(np.mean(lags))
    assert metrics["train/lag_max"] == max(lags)
    histogram = {int(n.split("/")[2]): c for n, c in metrics.items() if n.startswith("train/lag/")}
    assert histogram == {value: lags.count(value) for value in set(lags)}
    used = uses[selection.group_kept]
    assert metrics["train/uses_mean"] == pytest.approx(used.mean())
    assert metrics["train/replayed_share"] == pytest.approx((used > 1).mean())
    values = [found.values[one.rows[0]] for one in flat]
    assert metrics["train/advantage_std"] == pytest.approx(np.std(values))
    assert metrics["train/dropped/no_spread"] == sum(map(len, members)) - len(flat) - (
        metrics["train/masked/truncated"] - len(cut)
    )
    assert metrics["train/trainable_tokens"] == packed.trainable_tokens
    packs = [one for rank in packed.ranks for one in rank if one.rows.size]
    tokens = sum(one.input_ids.size for one in packs)
    assert metrics["train/packing_efficiency"] == tokens / (len(packs) * 64)
    assert metrics["train/rollouts_per_pack"] == sum(len(one.rows) for one in packs) / len(packs)


def test_a_step_in_which_nothing_is_left_has_no_rate() -> None:
    filtered = training.apply_filters([rc.Group([rollout(), rollout()])], [training.NoSpread()])
    found = training.advantages(filtered.selection)
    packed = training.pack(filtered.selection, 8)
    metrics = training.trained(
        filtered.selection, 1, advantages=found, filtered=filtered, packed=packed
    )
    assert metrics == {
        "train/step": 1,
        "train/groups": 0,
        "train/rollouts": 0,
        "train/tokens": 0,
        "train/groups_without_spread": 0,
        "train/dropped/no_spread": 2,
        "train/trainable_tokens": 0,
        "train/packs": 0,
        "train/packs_of_weight_0": 0,
        "train/rollouts_cut": 0,
        "train/tokens_cut": 0,
    }
    assert not any(math.isnan(value) for value in metrics.values())


def test_what_is_stored_is_what_the_buffer_says() -> None:
    buffer = rc.RolloutBuffer(staleness=rc.Staleness(on_expire="discard"))
    assert training.stored(buffer) == {
        "buffer/groups": 0,
        "buffer/bytes": 0,
        "buffer/train_step": 1,
    }
    for version in (0, 0, 1):
        buffer.sync.put(rc.Group([rollout()], task="math"), version=version)
    buffer.sync.advance(2)
    metrics = training.stored(buffer)
    assert metrics["buffer/groups"] == metrics["buffer/groups/math/COMPLETED"] == 1
    assert metrics["buffer/bytes"] == buffer.nbytes > 0
    assert metrics["buffer/put/math"] == 3
    assert metrics["buffer/left/expired"] == 2
    assert metrics["buffer/lag_p50/math"] == 0.0


def test_prometheus_shows_the_last_step_and_nothing_older() -> None:
    registry = CollectorRegistry()
    sink = training.PrometheusSink(registry, labels={"run": "a"})
    sink.write(1, {"train/lag/0": 3, "train/lag/1": 2, "train/reward_mean": 0.5, "gen/groups": 4})
    assert registry.get_sample_value("recollect_train_lag", {"run": "a", "of": "1"}) == 2.0
    sink.write(2, {"train/lag/0": 5})
    text = generate_latest(registry).decode()
    assert 'recollect_train_lag{of="0",run="a"} 5.0' in text
    assert 'recollect_gen_groups{run="a"} 4.0' in text
    assert "reward_mean" not in text
    assert 'of="1"' not in text
    sink.close()
    assert generate_latest(registry).decode() == ""


def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    sink = training.TensorBoardSink(tmp_path)
    for step in (1, 2):
        sink.write(step, {"train/reward_mean": step / 2, "train/lag/0": step})
    sink.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    (name,) = [tag for tag in events.Tags()["tensors"] if tag == "train/reward_mean"]
    points = [(e.step, float(e.tensor_proto.float_val[0])) for e in events.Tensors(name)]
    assert points == [(1, 0.5), (2, 1.0)]


def test_a_dict_keeps_every_step() -> None:
    sink = training.DictSink()
    sink.write(1, {"train/groups": 1})
    sink.write(1, {"gen/groups": 2})
    sink.write(2, {"train/groups": 3})
    sink.close()
    assert sink.steps == {1: {"train/groups": 1, "gen/groups": 2}, 2: {"train/groups": 3}}
