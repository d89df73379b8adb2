"""Groups from and to what others use: a list of dicts, a pandas frame, a Hugging Face dataset."""

from __future__ import annotations

import copy
import random

import datasets
import ml_dtypes
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


@pytest.mark.parametrize("form", FORMS)
def test_a_prompt_that_only_the_group_has_comes_back(form):
    to, back = FORMS[form]
    groups = [
        rc.Group([rc.Rollout([1], [2], finish_reason="stop") for _ in range(2)], prompt_ids=[9]),
        rc.Group([rc.Rollout([1], [2], finish_reason="stop")], prompt_ids=[]),
        rc.Group([rc.Rollout(None, [2], finish_reason="stop")], prompt_ids=[7]),
    ]
    assert_same(back(to(stored(groups))), groups)
    assert [g.prompt_ids.tolist() for g in back(to(stored(groups)))] == [[9], [], [7]]


def test_a_prompt_that_only_the_group_has_is_told_by_each_row():
    rollouts = [rc.Rollout([9], [2], finish_reason="stop"), rc.Rollout([1], [2])]
    frame = stored([rc.Group(rollouts, prompt_ids=[9])]).to_pandas()
    (group,) = rc.Groups.from_pandas(frame[1:])
    assert (group.prompt_ids.tolist(), group[0].prompt_ids.tolist()) == ([9], [1])


@pytest.mark.parametrize("form", FORMS)
def test_what_is_empty_comes_back_as_empty_and_not_as_absent(form):
    to, back = FORMS[form]
    some = rc.Rollout([1], [2], finish_reason="stop", rewards={}, turns={})
    groups = [
        rc.Group([some, rc.Rollout([1], [2])], prompt={}, ground_truth={}),
        rc.Group([rc.Rollout([1], [2])], prompt="", ground_truth=[]),
    ]
    one, other = back(to(stored(groups)))
    assert (one.prompt, one.ground_truth, one[0].rewards, one[0].turns) == ({}, {}, {}, {})
    assert (other.prompt, other.ground_truth, one[1].rewards, one[1].turns) == ("", [], None, None)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.int4])
def test_a_dataset_widens_numbers_that_arrow_has_not(dtype):
    arrays = {"flat": np.array([1, 2], dtype), "deep": np.ones((2, 2, 3), dtype)}
    rollouts = [rc.Rollout([1], [2, 3], arrays=arrays), rc.Rollout([1], [2])]
    (group,) = rc.Groups.from_dataset(stored([rc.Group(rollouts)]).to_dataset())
    wide = np.int8 if dtype is ml_dtypes.int4 else np.float32
    for name, array in arrays.items():
        assert group[0].arrays[name].dtype == wide
        np.testing.assert_array_equal(group[0].arrays[name], array.astype(wide))
    assert group[1].arrays == {}


@pytest.mark.parametrize("shape", [(2, 0), (2, 0, 3), (2, 3, 0), (2, 0, 0), (0, 0), (0, 3)])
def test_a_dataset_keeps_arrays_without_entries(shape, tmp_path):
    array = np.zeros(shape, np.int16)
    rollouts = [
        rc.Rollout([1], [2], arrays={"x": array}),
        rc.Rollout([1], [2]),
        rc.Rollout([1], [], arrays={"x": array[:0]}),
    ]
    groups = [rc.Group(rollouts)]
    dataset = stored(groups).to_dataset()
    assert_same(rc.Groups.from_dataset(dataset), groups)
    assert_same(rc.Groups.from_dataset(dataset.select([0, 1, 2])), groups)
    dataset.to_parquet(tmp_path / "file")
    again = datasets.Dataset.from_parquet(str(tmp_path / "file"), cache_dir=str(tmp_path))
    assert_same(rc.Groups.from_dataset(again), groups)


def test_a_dataset_keeps_the_type_of_flags():
    flags = np.array([True, False])
    rollouts = [rc.Rollout([1], [2], arrays={"x": flags[:n]}) for n in (0, 2)]
    groups = [rc.Group(rollouts)]
    assert_same(rc.Groups.from_dataset(stored(groups).to_dataset()), groups)


# -- nulls, which JSON has for NaN


def rows_of(**columns):
    count = len(next(iter(columns.values())))
    tokens = {"response_ids": [[1, 2]] * count}
    return datasets.Dataset.from_dict({**tokens, **columns})


def test_a_null_among_floats_of_a_dataset_is_no_number():
    rows = rows_of(**{"logprobs": [[-0.5, None], None], "arrays.ref": [None, [None, 1.5]]})
    one, other = rc.Groups.from_dataset(rows)
    np.testing.assert_array_equal(one[0].logprobs, np.float32([-0.5, np.nan]))
    assert other[0].logprobs is None
    np.testing.assert_array_equal(other[0].arrays["ref"], [np.nan, 1.5])


@pytest.mark.parametrize("features", [datasets.List(datasets.Value("float32"), length=2), None])
def test_nothing_but_nulls_for_floats_is_no_number(features):
    rows = rows_of(logprobs=[[None, None]])
    if features is not None:
        rows = rows.cast_column("logprobs", features)
    (group,) = rc.Groups.from_dataset(rows)
    assert np.isnan(group[0].logprobs).tolist() == [True, True]


@pytest.mark.parametrize(
    ("name", "kind"),
    [("versions", int), ("loss_mask", int), ("loss_mask", bool), ("arrays.x", int)],
)
def test_a_null_among_whole_numbers_of_a_dataset_is_refused(name, kind):
    rows = rows_of(**{name: [[kind(0), kind(1)], None, [kind(1), None], [None, kind(1)]]})
    with pytest.raises(rc.InvalidValue, match=rf"row 2: {name}: expected numbers, got a null"):
        rc.Groups.from_dataset(rows)
    assert len(rc.Groups.from_dataset(rows.select(range(2)))) == 2
    with pytest.raises(rc.InvalidValue, match=rf"row 0: {name}"):
        rc.Groups.from_dataset(rows.select(range(2, 4)))


def test_a_null_in_an_array_of_several_axes_names_its_row():
    deep = datasets.List(datasets.List(datasets.Value("int32"), length=3))
    cells = [[[1, 2, 3]], [[1, 2, 3], [4, None, 6]]]
    rows = rows_of(**{"arrays.x": cells}).cast_column("arrays.x", deep)
    with pytest.raises(rc.InvalidValue, match=r"row 1: arrays\.x: expected numbers, got a null"):
        rc.Groups.from_dataset(rows)
    floats = datasets.List(datasets.List(datasets.Value("float32"), length=3))
    one, other = rc.Groups.from_dataset(rows.cast_column("arrays.x", floats))
    assert one[0].arrays["x"].tolist() == [[1, 2, 3]]
    np.testing.assert_array_equal(other[0].arrays["x"], [[1, 2, 3], [4, np.nan, 6]])


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
