"""`Rollout`, `Group` and `Status`: what they are made of, and what a status follows from."""

from __future__ import annotations

import itertools
import subprocess
import sys

import numpy as np
import pytest

import recollect as rc
from recollect import Status

WORST_FIRST = ["FAILED", "EXPIRED", "ABORTED", "FILTERED", "INIT"]


def rollout(tokens=2, **options):
    options.setdefault("finish_reason", "stop")
    return rc.Rollout([1], list(range(tokens)), **options)


# -- arrays and lengths


def test_lists_are_converted_to_arrays():
    made = rc.Rollout([1, 2], [3, 4], logprobs=[-1, -2.5], loss_mask=[True, False], versions=[3, 4])
    assert made.prompt_ids.dtype == made.response_ids.dtype == np.int32
    assert made.logprobs.dtype == np.float32
    assert made.loss_mask.tolist() == [1, 0]
    assert made.versions.tolist() == [3, 4]


def test_other_integer_and_float_types_are_converted():
    made = rc.Rollout(
        np.array([1], np.int64),
        np.array([2, 3], np.uint16),
        logprobs=np.array([-0.5, -1.0]),
        loss_mask=np.array([1, 0], np.int64),
    )
    assert made.response_ids.tolist() == [2, 3]
    assert made.logprobs.dtype == np.float32


def test_a_length_that_does_not_fit_is_named():
    with pytest.raises(rc.InvalidValue, match="logprobs has 41 entries for 42 response tokens"):
        rc.Rollout([1], list(range(42)), logprobs=[0.0] * 41)
    with pytest.raises(rc.InvalidValue, match="loss_mask has 3 entries for 2 response tokens"):
        rc.Rollout([1], [1, 2], loss_mask=[1, 1, 1])
    with pytest.raises(rc.InvalidValue, match="versions has 3 entries for 2 response tokens"):
        rc.Rollout([1], [1, 2], versions=[1, 1, 1])


def test_a_length_that_was_made_wrong_later_is_found_by_the_put():
    buffer = rc.RolloutBuffer().sync
    wrong = rollout(42, logprobs=[0.0] * 42)
    wrong.logprobs = np.zeros(41, np.float32)
    with pytest.raises(rc.InvalidValue, match="logprobs has 41 entries for 42 response tokens"):
        buffer.put(rc.Group([rollout(3), wrong]))
    assert len(buffer) == 0


def test_tool_output_has_no_version_no_logprob_and_does_not_train():
    made = rc.Rollout(
        [1], [2, 3], logprobs=[-1, np.nan], versions=[4, -1], loss_mask=[1, 0], finish_reason="stop"
    )
    buffer = rc.RolloutBuffer(staleness=rc.Staleness(max_staleness=9)).sync
    buffer.put(rc.Group([made]))
    assert buffer.accounts()["default"]["lag"]["p100"] == 1 - 4 - 1
    back = buffer.take(1)[0][0]
    assert back.versions.tolist() == [4, -1]
    assert np.isnan(back.logprobs[1])
    assert back.loss_mask.tolist() == [1, 0]


def test_a_rollout_has_everything_that_the_specification_names():
    made = rc.Rollout(
        [1],
        [2, 3],
        logprobs=[-1, -2],
        loss_mask=[1, 0],
        versions=[5, 6],
        dispatch_version=4,
        reward=0.5,
        rewards={"format": 1.0},
        status="COMPLETED",
        finish_reason="length",
        error=None,
        group_id="g",
        rollout_id="r",
        segment=1,
        attempt=2,
        task="math",
        turns=[{"role": "tool", "content": "4"}],
        arrays={"ref_logprobs": [0.5, 0.25]},
        blobs={"image": [b"png"]},
        extras={"source": "web"},
    )
    buffer = rc.RolloutBuffer(staleness=rc.Staleness(max_staleness=9)).sync
    group = rc.Group([made], prompt="2 + 2?", ground_truth={"answer": 4}, blobs={"audio": [b"wav"]})
    buffer.put(group)
    back = buffer.take(1)[0]
    assert back.equals(group)
    assert back[0].equals(made)
    assert (back.group_id, back.task, back[0].rollout_id) == ("g", "math", "r")
    assert back[0].arrays["ref_logprobs"].tolist() == [0.5, 0.25]
    assert back[0].blobs == {"image": [b"png"]}
    assert (back.prompt, back.ground_truth) == ("2 + 2?", {"answer": 4})


def test_arrays_of_any_shape_and_type_come_back_as_they_were():
    arrays = {
        "routed": np.arange(12, dtype=np.int16).reshape(3, 2, 2),
        "flags": np.array([True, False]),
        "half": np.array([0.5], np.float16),
        "empty": np.zeros((0, 4), np.float64),
    }
    buffer = rc.RolloutBuffer().sync
    buffer.put(rc.Group([rollout(3, arrays=arrays)]))
    back = buffer.take(1)[0][0].arrays
    assert back.keys() == arrays.keys()
    for name, array in arrays.items():
        assert back[name].dtype == array.dtype, name
        np.testing.assert_array_equal(back[name], array)


def test_a_missing_array_is_an_absent_cell_and_costs_no_payload():
    def stored(*rollouts):
        buffer = rc.RolloutBuffer().sync
        buffer.put(rc.Group(rollouts, group_id="g"))
        return buffer.nbytes

    plain = stored(rollout(8, rollout_id="a"), rollout(8, rollout_id="b"))
    one = stored(
        rollout(8, rollout_id="a", arrays={"ref": np.zeros(8)}), rollout(8, rollout_id="b")
    )
    assert one - plain == 8 * 8
    with_logprobs = stored(
        rollout(8, rollout_id="a", logprobs=np.zeros(8)), rollout(8, rollout_id="b")
    )
    assert with_logprobs - plain == 8 * 4


def test_a_new_array_name_adds_a_column_and_old_groups_lack_it():
    buffer = rc.RolloutBuffer(order=rc.Fifo()).sync
    buffer.put(rc.Group([rollout()], group_id="text"))
    buffer.put(rc.Group([rollout(arrays={"pixels": np.ones((2, 3))})], group_id="image"))
    groups = buffer.take(2)
    assert "pixels" not in groups[0][0].arrays
    assert groups[1][0].arrays["pixels"].shape == (2, 3)
    assert groups.batch.present["arrays.pixels"].tolist() == [False, True]


# -- statuses


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        ("stop", "COMPLETED"),
        ("length", "COMPLETED"),
        ("tool_calls", "COMPLETED"),
        ("abort", "ABORTED"),
        ("error", "FAILED"),
        (None, "FAILED"),
        ("content_filter", "FAILED"),
    ],
)
def test_a_finish_reason_gives_a_status(reason, status):
    assert rollout(finish_reason=reason).status == status
    assert Status.from_finish_reason(reason) == status


def test_the_statuses_are_those_of_the_specification():
    names = ["INIT", "COMPLETED", "ABORTED", "EXPIRED", "FAILED", "FILTERED", "ARCHIVED"]
    assert [status.name for status in Status] == names


def test_a_group_of_one_status_has_that_status():
    for status in Status:
        assert rc.Group([rollout(status=status), rollout(status=status)]).status == status


def test_the_worst_rollout_gives_the_group_its_status():
    for statuses in itertools.product([*WORST_FIRST, "COMPLETED"], repeat=3):
        group = rc.Group([rollout(status=status) for status in statuses])
        expected = next((s for s in WORST_FIRST if s in statuses), "COMPLETED")
        assert group.status == expected, statuses


def test_what_was_trained_mixes_with_nothing_that_is_completed():
    group = rc.Group([rollout(), rollout(status="ARCHIVED")])
    with pytest.raises(rc.InvalidValue, match=r"COMPLETED.*ARCHIVED"):
        _ = group.status
    with pytest.raises(rc.InvalidValue, match=r"COMPLETED.*ARCHIVED"):
        rc.RolloutBuffer().sync.put(group)


def test_an_empty_group_is_an_error():
    with pytest.raises(rc.InvalidValue, match="no rollouts"):
        _ = rc.Group([]).status
    with pytest.raises(rc.InvalidValue, match="no rollouts"):
        rc.RolloutBuffer().sync.put(rc.Group([]))


def test_a_group_is_never_told_its_status():
    group = rc.Group([rollout()])
    with pytest.raises(AttributeError):
        group.status = "FAILED"
    with pytest.raises(TypeError):
        rc.Group([rollout()], status="FAILED")


def test_the_status_follows_when_a_rollout_changes():
    group = rc.Group([rollout(), rollout()])
    group[0].finish_reason = "abort"
    assert group.status == "ABORTED"
    group[0].status = "FILTERED"
    assert group.status == "FILTERED"
    group[0].finish_reason = "stop"
    assert group.status == "COMPLETED"


# -- groups


def test_a_group_is_a_sequence_of_rollouts_that_may_be_changed():
    group = rc.Group([rollout(), rollout()], task="math")
    extra = rollout()
    group.append(extra)
    assert len(group) == 3
    assert group[2] is extra
    assert (extra.task, extra.group_id) == ("math", group.group_id)
    del group[0]
    group[0] = rollout(5)
    assert [r.num_tokens for r in group] == [5, 2]
    assert next(reversed(group)) is extra


def test_group_sizes_may_vary():
    buffer = rc.RolloutBuffer(order=rc.Fifo()).sync
    for size in (1, 5, 2):
        buffer.put(rc.Group([rollout() for _ in range(size)]))
    assert [len(group) for group in buffer.take(3)] == [1, 5, 2]


def test_ids_are_made_and_never_twice():
    groups = [rc.Group([rollout(), rollout()]) for _ in range(100)]
    assert len({g.group_id for g in groups}) == 100
    assert len({r.rollout_id for g in groups for r in g}) == 200


def test_ids_of_another_process_are_different():
    script = "import recollect as rc; print(rc.Rollout().rollout_id, rc.Group().group_id)"
    runs = [
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    ids = [identity for run in runs for identity in run.stdout.split()]
    assert len(set(ids)) == 4


def test_ids_stay_through_the_buffer():
    buffer = rc.RolloutBuffer().sync
    group = rc.Group([rollout(), rollout()])
    ids = [group.group_id, *(r.rollout_id for r in group)]
    buffer.put(group, version=0)
    back = buffer.take(1)[0]
    assert [back.group_id, *(r.rollout_id for r in back)] == ids


def test_segments_of_a_trajectory_share_one_rollout_id():
    buffer = rc.RolloutBuffer().sync
    parts = [rc.Rollout([1, 2][: n + 1], [3], segment=n, rollout_id="t", finish_reason="stop")
             for n in range(2)]  # fmt: skip
    buffer.put(rc.Group([*parts, rollout(rollout_id="other")]))
    back = buffer.take(1)[0]
    assert [(r.rollout_id, r.segment) for r in back] == [("t", 0), ("t", 1), ("other", 0)]
    assert [r.prompt_ids.tolist() for r in back] == [[1], [1, 2], [1]]


def test_what_was_put_is_copied():
    buffer = rc.RolloutBuffer().sync
    tokens = np.array([1, 2, 3], np.int32)
    made = rc.Rollout([9], tokens, finish_reason="stop")
    key = buffer.put(rc.Group([made]), version=0)
    tokens[:] = 7
    made.extras["late"] = True
    back = buffer.get([key])[0][0]
    assert back.response_ids.tolist() == [1, 2, 3]
    assert back.extras == {}


# -- what comes out


def test_groups_are_a_sequence_over_one_batch():
    buffer = rc.RolloutBuffer(order=rc.Fifo()).sync
    for n in range(4):
        buffer.put(rc.Group([rollout(n + 1), rollout(1)], group_id=f"g{n}"), version=0)
    groups = buffer.take(4)
    assert len(groups) == 4
    assert [g.group_id for g in groups] == ["g0", "g1", "g2", "g3"]
    assert groups[-1].group_id == "g3"
    assert [g.group_id for g in groups[1:3]] == ["g1", "g2"]
    assert groups[1:3].batch["response_ids"].lengths.tolist() == [2, 1, 3, 1]
    assert groups.batch["response_ids"].lengths.tolist() == [1, 1, 2, 1, 3, 1, 4, 1]
    assert groups.info.row_offsets.tolist() == [0, 2, 4, 6, 8]
    assert groups.info.keys.tolist() == groups.keys.tolist()
    with pytest.raises(IndexError):
        groups[4]


def test_a_taken_group_may_be_changed_and_put_again():
    buffer = rc.RolloutBuffer(staleness=rc.Staleness(max_staleness=9)).sync
    buffer.put(rc.Group([rollout(finish_reason="abort", loss_mask=[1, 1])], task="math"), version=1)
    group = buffer.take(1, status="ABORTED")[0]
    group[0].response_ids = np.append(group[0].response_ids, [8, 9])
    group[0].loss_mask = np.ones(4, np.int8)
    group[0].finish_reason = "stop"
    buffer.put(group, version=3)
    assert buffer.take(1)[0][0].versions.tolist() == [1, 1, 3, 3]


def test_what_a_call_returned_is_never_written_again():
    buffer = rc.RolloutBuffer(max_uses=0, order=rc.Fifo()).sync
    buffer.put(rc.Group([rollout(3)]), version=0)
    groups = buffer.sample(1)
    before = groups.batch["response_ids"].values.copy()
    mask = groups.batch["loss_mask"].values.copy()
    for n in range(50):
        buffer.put(rc.Group([rollout(n + 1, loss_mask=[0] * (n + 1))]), version=0)
        buffer.sample(1)
    np.testing.assert_array_equal(groups.batch["response_ids"].values, before)
    np.testing.assert_array_equal(groups.batch["loss_mask"].values, mask)


def test_the_batch_has_the_prompt_of_each_rollout():
    buffer = rc.RolloutBuffer(order=rc.Fifo()).sync
    rng = np.random.default_rng(0)
    for n in range(12):
        rollouts = [rollout(2) for _ in range(n % 4 + 1)]
        for place in range(n % 3):  # some have another prompt than their group, one is empty
            rollouts[place % len(rollouts)].prompt_ids = np.arange(5 * place, dtype=np.int32)
        prompt = rng.integers(0, 99, n % 5)
        buffer.put(rc.Group(rollouts, group_id=f"g{n}", prompt_ids=prompt), version=0)
    groups = buffer.take(12)
    for part in (groups, groups[3:7], groups[5:5]):
        expected = [r.prompt_ids.tolist() for group in part for r in group]
        prompts = part.batch["prompt_ids"]
        assert [prompt.tolist() for prompt in prompts.to_list()] == expected
        assert (prompts.dtype, len(prompts)) == (np.int32, part.batch.rows)
    assert groups.batch is groups.batch  # made once


def test_a_batch_without_any_prompt_has_empty_ones():
    buffer = rc.RolloutBuffer().sync
    buffer.put(rc.Group([rc.Rollout(None, [1], finish_reason="stop") for _ in range(3)]))
    assert buffer.take(1).batch["prompt_ids"].lengths.tolist() == [0, 0, 0]
    assert buffer.take(1).batch["prompt_ids"].lengths.tolist() == []


def test_the_names_of_a_batch_are_those_that_the_guide_lists():
    buffer = rc.RolloutBuffer().sync
    made = rc.Rollout([1], [2], finish_reason="stop", arrays={"ref": [0.5]}, blobs={"x": [b"y"]})
    group = rc.Group([made], prompt="1?", ground_truth="2", blobs={"image": [b"z"]})
    buffer.put(group, version=0)
    taken = buffer.take_batch({"default": 1})
    names = (
        "prompt_ids response_ids logprobs loss_mask versions dispatch_version reward status segment"
        " attempt rollout_id finish_reason error rewards turns extras arrays"
    )
    assert list(taken.batch) == names.split()
    assert list(taken.batch.shared) == ["prompt_ids", "group_id"]
    assert set(taken.batch.present) < set(taken.batch.columns)
    back = taken.all[0]  # objects still have everything
    assert (back.prompt, back.ground_truth, back.blobs) == ("1?", "2", {"image": [b"z"]})
    assert back[0].blobs == {"x": [b"y"]}
    assert list(taken.batch.to_torch()) == names.split()
    assert taken.batch.to_arrow().rows.column_names == list(taken.batch.columns)


# -- blobs and shared content


def test_equal_blobs_are_stored_once_and_counted_once():
    buffer = rc.RolloutBuffer(order=rc.Fifo()).sync
    image = bytes(range(256)) * 400
    buffer.put(rc.Group([rollout()], blobs={"image": [image]}, group_id="a"))
    first = buffer.nbytes
    assert first > len(image)
    buffer.put(rc.Group([rollout(blobs={"image": [image]})], blobs={"x": [image]}, group_id="b"))
    assert buffer.nbytes < 2 * len(image)
    buffer.take(1)
    assert buffer.nbytes > len(image)
    group = buffer.take(1)[0]
    assert (group.blobs, group[0].blobs) == ({"x": [image]}, {"image": [image]})
    assert buffer.nbytes == 0
    assert buffer.stats()["blobs"] == 0


def test_buffers_of_one_process_share_equal_blobs():
    """As those of one store do; each counts what it holds, and frees it with its last reference."""
    one, other = (rc.RolloutBuffer(name=name).sync for name in ("training", "evaluation"))
    one.put(rc.Group([rollout()], blobs={"image": [bytes(2000)]}))
    other.put(rc.Group([rollout()], blobs={"image": [bytes(1000) * 2]}))
    assert one.nbytes == other.nbytes > 2000
    [mine], [theirs] = one.take(1), other.take(1)
    assert mine.blobs["image"][0] is theirs.blobs["image"][0]
    assert one.nbytes == other.nbytes == 0
    assert one.stats()["blobs"] == other.stats()["blobs"] == 0


def test_a_blob_outlives_its_store_for_whoever_took_the_group():
    buffer = rc.RolloutBuffer().sync
    buffer.put(rc.Group([rollout()], blobs={"image": [b"cat", b"dog"]}))
    groups = buffer.take(1)
    assert groups[0].blobs == {"image": [b"cat", b"dog"]}


def test_shared_content_is_stored_once_per_group():
    prompt = np.arange(1000, dtype=np.int32)

    def stored(size):
        buffer = rc.RolloutBuffer().sync
        made = [
            rc.Rollout(prompt, [1], finish_reason="stop", rollout_id=f"r{n}") for n in range(size)
        ]
        buffer.put(rc.Group(made, group_id="g"))
        return buffer.nbytes

    assert stored(2) - stored(1) < 200
    assert stored(1) > prompt.nbytes


def test_an_aborted_rollout_with_tool_output_can_be_continued():
    """It was put without a mask, so it has none that could have the wrong length."""
    buffer = rc.RolloutBuffer(staleness=rc.Staleness(max_staleness=9)).sync
    partial = rollout(3, logprobs=[-1, np.nan, -2], finish_reason="abort")
    buffer.put(rc.Group([partial], task="math"), version=1)
    group = buffer.take(1, status="ABORTED")[0]
    group[0].response_ids = np.append(group[0].response_ids, [8]).astype(np.int32)
    group[0].logprobs = np.append(group[0].logprobs, [-3]).astype(np.float32)
    group[0].finish_reason = "stop"
    buffer.put(group, version=2)
    groups = buffer.take(1)
    assert groups[0][0].versions.tolist() == [1, -1, 1, 2]
    assert groups.batch["loss_mask"].to_list()[0].tolist() == [1, 0, 1, 1]
