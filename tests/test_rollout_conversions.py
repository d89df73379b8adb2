"""Groups from and to what others use: a list of dicts, a pandas frame, a Hugging Face dataset."""

from __future__ import annotations

import copy
import random

import datasets
import numpy as np
import pandas as pd
import pytest

import recollect as rc

PATIENT = rc.Staleness(max_staleness=10_000)
FORMS = {
    "dicts": (rc.Groups.to_dicts, rc.Groups.from_dicts),
    "pandas": (rc.Groups.to_pandas, rc.Groups.from_pandas),
    "dataset": (rc.Groups.to_dataset, rc.Groups.from_dataset),
}


@pytest.fixture(autouse=True)
def no_progress_bars():
    datasets.disable_progress_bars()


def rich_groups():
    full = rc.Rollout(
        [1, 2],
        [3, 4, 5],
        logprobs=[-0.5, np.nan, -0.25],
        loss_mask=[1, 0, 1],
        versions=[2, -1, 3],
        dispatch_version=1,
        reward=0.75,
        rewards={"format": 1.0, "answer": 0.5},
        finish_reason="length",
        segment=0,
        attempt=2,
        turns=[{"role": "tool", "content": "→ 4", "calls": [1, {"x": None}]}],
        arrays={
            "ref_logprobs": np.array([0.5, 0.25, 0.125], np.float32),
            "routed": np.arange(12, dtype=np.int16).reshape(3, 2, 2),
            "half": np.array([0.5], np.float16),
        },
        blobs={"image": [b"\x00png", b""], "audio": [b"wav"]},
        extras={"source": "web", "n": 3, "x": 0.5, "flag": True, "none": None},
    )
    bare = rc.Rollout([1, 2], [7], finish_reason="stop")
    failed = rc.Rollout([1, 2], [], finish_reason="error", error="no memory")
    segment = rc.Rollout(
        [1, 2, 3], [8, 9], rollout_id=full.rollout_id, segment=1, attempt=2, finish_reason="stop"
    )
    waiting = rc.Rollout([9], [], status="EXPIRED", attempt=1)
    return [
        rc.Group(
            [full, bare, failed, segment],
            task="math",
            prompt=[{"role": "user", "content": "2 + 2?"}],
            ground_truth={"answer": 4},
            blobs={"image": [b"\xff\xd8"]},
            extras={"level": 3},
        ),
        rc.Group([waiting], task="code", ground_truth="x = 1", prompt="write x"),
        rc.Group([rc.Rollout([], [1, 2], finish_reason="abort", reward=-1)], task="chat"),
    ]


def stored(groups):
    buffer = rc.RolloutBuffer(staleness=PATIENT, order=rc.Fifo()).sync
    keys = [buffer.put(group) for group in groups]
    return buffer.get(keys)


def assert_same(back, groups):
    assert len(back) == len(groups)
    for one, other in zip(back, groups, strict=True):
        assert one.equals(other), (one, other)


# -- round trips


@pytest.mark.parametrize("form", FORMS)
def test_groups_come_back_as_they_were(form):
    to, back = FORMS[form]
    groups = rich_groups()
    assert_same(back(to(stored(groups))), groups)


@pytest.mark.parametrize("form", FORMS)
def test_what_came_back_can_be_put_and_is_the_same_again(form):
    to, back = FORMS[form]
    groups = rich_groups()
    assert_same(stored(back(to(stored(groups)))), groups)


@pytest.mark.parametrize("form", FORMS)
def test_any_mixture_of_cells_comes_back(form):
    to, back = FORMS[form]
    for seed in range(20):
        rng = random.Random(seed)
        groups = []
        for n in range(rng.randint(1, 4)):
            rollouts = []
            for _ in range(rng.randint(1, 3)):
                tokens = rng.randint(0, 3)
                options = {
                    "logprobs": [rng.random() for _ in range(tokens)],
                    "loss_mask": [rng.randint(0, 1) for _ in range(tokens)],
                    "versions": [rng.randint(-1, 3) for _ in range(tokens)],
                    "dispatch_version": rng.randint(0, 3),
                    "reward": rng.random(),
                    "error": "é",
                    "turns": [],
                    "extras": {"a": [1, "b"]},
                    "arrays": {"ref": np.arange(tokens, dtype=np.float32)},
                    "blobs": {"x": [b"1", b"2"]},
                }
                chosen = {k: v for k, v in options.items() if rng.random() < 0.4}
                if not tokens:
                    for name in ("logprobs", "loss_mask", "versions"):
                        chosen.pop(name, None)
                reason = rng.choice(["stop", "abort", "weird"])
                ids = list(range(tokens))
                rollouts.append(rc.Rollout([5], ids, finish_reason=reason, **chosen))
            groups.append(rc.Group(rollouts, task=rng.choice(["math", "code"]), group_id=str(n)))
        assert_same(back(to(stored(groups))), groups)


def test_an_empty_selection_comes_back_empty():
    nothing = rc.RolloutBuffer().sync.take(3)
    for to, back in FORMS.values():
        assert back(to(nothing)) == []


def test_a_dataset_survives_its_files(tmp_path):
    groups = rich_groups()
    stored(groups).to_dataset().save_to_disk(str(tmp_path / "data"))
    loaded = datasets.load_from_disk(str(tmp_path / "data"))
    assert_same(rc.Groups.from_dataset(loaded), groups)


def test_a_dataset_that_was_selected_and_shuffled_still_makes_groups():
    groups = rich_groups()
    dataset = stored(groups).to_dataset()
    part = dataset.select(range(4))
    assert_same(rc.Groups.from_dataset(part), groups[:1])
    shuffled = rc.Groups.from_dataset(dataset.shuffle(seed=1))
    assert {g.group_id for g in shuffled} == {g.group_id for g in groups}


def test_a_frame_that_was_filtered_still_makes_groups():
    groups = rich_groups()
    frame = stored(groups).to_pandas()
    back = rc.Groups.from_pandas(frame[frame["task"] != "code"])
    assert_same(back, [groups[0], groups[2]])
    best = rc.Groups.from_pandas(frame[frame["reward"] > 0.5])
    assert [[r.reward for r in g] for g in best] == [[0.75]]


# -- the forms


def test_there_is_a_row_per_rollout_with_the_names_of_the_specification():
    groups = stored(rich_groups())
    rows = groups.to_dicts()
    assert len(rows) == 6
    assert rows[0]["response_ids"].tolist() == [3, 4, 5]
    assert rows[0]["reward"] == 0.75
    assert rows[0]["task"] == "math"
    assert rows[0]["extras"]["source"] == "web"
    assert rows[1]["logprobs"] is None
    assert rows[0]["group_id"] == rows[3]["group_id"]
    frame, dataset = groups.to_pandas(), groups.to_dataset()
    assert len(frame) == len(dataset) == 6
    assert frame["reward"][0] == 0.75
    assert dataset["reward"][0] == 0.75
    assert {"response_ids", "task", "status", "group_id", "rollout_id"} <= set(frame.columns)
    assert isinstance(frame, pd.DataFrame)
    assert isinstance(dataset, datasets.Dataset)


def test_plain_dicts_of_lists_make_groups():
    rows = [
        {"group_id": "g", "prompt_ids": [1], "response_ids": [2, 3], "finish_reason": "stop"},
        {"group_id": "h", "prompt_ids": [1], "response_ids": [4], "finish_reason": "stop"},
        {"group_id": "g", "prompt_ids": [1], "response_ids": [], "reward": 1, "task": "math"},
    ]
    one, other = rc.Groups.from_dicts(rows)
    assert [r.response_ids.tolist() for r in one] == [[2, 3], []]
    assert (one.task, other.task) == ("math", "default")
    assert one.rewards == [None, 1.0]


def test_rows_without_a_group_are_groups_of_one():
    groups = rc.Groups.from_dicts([{"response_ids": [1]}, {"response_ids": [2]}])
    assert [len(g) for g in groups] == [1, 1]
    assert groups[0].group_id != groups[1].group_id


def test_names_that_no_rollout_has_are_refused():
    with pytest.raises(rc.InvalidValue, match=r"row 1.*'rewrad'"):
        rc.Groups.from_dicts([{"response_ids": [1]}, {"rewrad": 1.0}])


def test_a_wrong_row_is_named():
    with pytest.raises(rc.InvalidValue, match=r"row 1.*logprobs has 1 entries for 2"):
        rc.Groups.from_dicts([{}, {"response_ids": [1, 2], "logprobs": [0.5]}])
    with pytest.raises(rc.InvalidValue, match="row 0"):
        rc.Groups.from_dicts(["text"])


def test_converting_changes_nothing():
    groups = stored(rich_groups())
    before = copy.deepcopy([g.extras for g in groups])
    for to, _ in FORMS.values():
        to(groups)
    assert [g.extras for g in groups] == before
    assert_same(groups, stored(list(groups)))


def test_a_batch_of_ragged_columns_goes_to_torch_and_arrow():
    batch = stored(rich_groups()).batch
    again = rc.Batch.from_arrow(batch.to_arrow())
    np.testing.assert_array_equal(again["response_ids"].values, batch["response_ids"].values)
    np.testing.assert_array_equal(again["response_ids"].offsets, batch["response_ids"].offsets)
    assert batch.to_torch() is not None
