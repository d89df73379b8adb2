"""Prompts: lists, JSONL files and datasets, in an order by seed, epoch after epoch."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import recollect as rc
from recollect.errors import InvalidValue, OutOfPrompts, SnapshotError
from recollect.production.prompts.base import Indexed, Prompts, prompt_of
from recollect.production.prompts.indexed import (
    HuggingFacePrompts,
    IndexedPrompts,
    ListPrompts,
    order_of,
)
from recollect.production.prompts.jsonl import JsonlPrompts
from recollect.production.prompts.saved import from_saved, to_saved


def drawn(prompts: Prompts, count: int) -> list[str]:
    return [prompts.next().prompt for _ in range(count)]


def rows(count: int) -> list[str]:
    return [f"prompt {index}" for index in range(count)]


def through_json(state: Any) -> Any:
    return json.loads(json.dumps(state))


# -- the order ------------------------------------------------------------------------------------
@pytest.mark.parametrize("count", [1, 2, 3, 10, 1000])
def test_an_epoch_draws_every_prompt_once_and_the_next_one_in_another_order(count: int) -> None:
    prompts = ListPrompts(rows(count), seed=3)
    first, second = drawn(prompts, count), drawn(prompts, count)
    assert sorted(first) == sorted(second) == sorted(rows(count))
    if count >= 10:
        assert first != second
        assert first != rows(count)


def test_the_order_is_the_same_for_the_same_seed_and_as_written_without_one() -> None:
    assert drawn(ListPrompts(rows(50), seed=1), 100) == drawn(ListPrompts(rows(50), seed=1), 100)
    assert drawn(ListPrompts(rows(50), seed=1), 50) != drawn(ListPrompts(rows(50), seed=2), 50)
    assert drawn(ListPrompts(rows(5), seed=None), 10) == rows(5) * 2


def test_the_order_never_changes_between_versions() -> None:
    # These numbers are part of the format: a resumed run goes on in this order.
    assert order_of(8, 0, 0).tolist() == [0, 1, 6, 3, 5, 4, 2, 7]
    assert order_of(8, 12345, 6).tolist() == [1, 4, 2, 0, 6, 5, 7, 3]
    assert order_of(4, -1, 2).tolist() == [3, 2, 0, 1]


def test_every_order_of_three_is_equally_likely() -> None:
    seen = Counter(
        tuple(order_of(3, seed, epoch).tolist()) for seed in range(60) for epoch in range(100)
    )
    expected = 6000 / 6
    assert len(seen) == 6
    assert sum((count - expected) ** 2 / expected for count in seen.values()) < 20.5  # p = 0.001


# -- groups ---------------------------------------------------------------------------------------
def test_a_prompt_is_a_group_of_n_rollouts_that_are_init() -> None:
    group = ListPrompts(rows(3), n=4).next()
    assert len(group) == 4
    assert group.status is rc.Status.INIT
    assert len({rollout.rollout_id for rollout in group}) == 4
    assert all(rollout.attempt == 0 for rollout in group)


def test_group_ids_are_never_used_twice_across_epochs_and_sources() -> None:
    sources = [ListPrompts(rows(5)), ListPrompts(rows(5))]
    ids = [source.next().group_id for source in sources for _ in range(20)]
    assert len(set(ids)) == 40


def test_rows_may_be_text_tokens_messages_or_columns() -> None:
    messages = [{"role": "user", "content": "hi"}]
    given: list[Any] = [
        "text",
        [5, 6, 7],
        np.array([1, 2]),
        messages,
        {"question": "q", "answer": 4, "level": 2, "unused": 1},
    ]
    prompts = ListPrompts(
        given, seed=None, prompt="question", ground_truth="answer", extras=(), tokenize=None
    )
    text, tokens, array, chat, columns = (prompts.next() for _ in given)
    assert text.prompt == "text"
    assert tokens.prompt_ids.tolist() == [5, 6, 7]
    assert tokens.prompt is None
    assert array.prompt_ids.tolist() == [1, 2]
    assert chat.prompt == messages
    assert (columns.prompt, columns.ground_truth, columns.extras) == ("q", 4, {})


def test_a_tokenizer_makes_the_tokens_where_a_row_has_none() -> None:
    given = ["ab", {"prompt": "c", "prompt_ids": [9], "level": 3}]
    prompts = ListPrompts(
        [given[0], given[1]], seed=None, tokenize=lambda text: [ord(each) for each in text]
    )
    first, second = prompts.next(), prompts.next()
    assert first.prompt_ids.tolist() == [97, 98]
    assert first[0].prompt_ids is not None
    assert first[0].prompt_ids.tolist() == [97, 98]
    assert second.prompt_ids.tolist() == [9]


def test_extras_and_blobs_go_along() -> None:
    row = {"prompt": "look", "level": 3, "blobs": {"image": [b"png"]}}
    group = ListPrompts([row], extras=("level",)).next()
    assert group.extras == {"level": 3}
    assert group.blobs == {"image": [b"png"]}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": "x"}, "prompt 0: it has neither 'prompt' nor 'prompt_ids'; its columns are text"),
        ({"prompt": "x"}, "no column 'level', which extras= names"),
        (17, "prompt 0: expected text, tokens, messages or a mapping, got 17"),
        ([], "prompt 0: expected text, tokens"),
    ],
)
def test_a_wrong_row_is_named(row: Any, message: str) -> None:
    prompts = ListPrompts([row], extras=("level",))
    with pytest.raises(InvalidValue, match=message):
        prompts.next()


def test_what_is_no_source_is_refused() -> None:
    with pytest.raises(InvalidValue, match="rows: expected a list of prompts, got 'text'"):
        ListPrompts("text")
    with pytest.raises(InvalidValue, match="there is no prompt in it"):
        ListPrompts([])
    with pytest.raises(InvalidValue, match="n: expected a whole number of at least 1"):
        ListPrompts(rows(1), n=0)
    with pytest.raises(InvalidValue, match="epochs: expected a whole number of at least 1"):
        ListPrompts(rows(1), epochs=0)
    with pytest.raises(InvalidValue, match="tokenize: expected a function"):
        ListPrompts(rows(1), tokenize=3)


# -- the end --------------------------------------------------------------------------------------
def test_after_its_epochs_a_source_is_out_of_prompts_until_one_is_given_back() -> None:
    prompts = ListPrompts(rows(3), epochs=2)
    groups = [prompts.next() for _ in range(6)]
    for _ in range(2):
        with pytest.raises(OutOfPrompts, match="its 2 epochs of 3 prompts are over"):
            prompts.next()
    prompts.give_back(groups[4])
    assert prompts.next().group_id == groups[4].group_id
    with pytest.raises(OutOfPrompts):
        prompts.next()


def test_a_source_whose_prompts_are_all_excluded_is_out_of_prompts() -> None:
    prompts = ListPrompts(rows(2))
    for _ in range(2):
        prompts.exclude(prompts.next())
    with pytest.raises(OutOfPrompts, match="all of its 2 prompts are excluded"):
        prompts.next()


# -- given back, excluded, withdrawn --------------------------------------------------------------
def test_what_was_given_back_comes_first_and_in_order_and_as_a_prompt() -> None:
    prompts = ListPrompts(rows(10), n=2)
    groups = [prompts.next() for _ in range(4)]
    groups[2][0].response_ids = np.array([1, 2], np.int32)
    groups[2][0].finish_reason = "abort"
    for place in (2, 0):
        prompts.give_back(groups[place])
    again = [prompts.next() for _ in range(3)]
    assert [group.group_id for group in again[:2]] == [groups[2].group_id, groups[0].group_id]
    assert again[0].status is rc.Status.INIT
    assert [rollout.num_tokens for rollout in again[0]] == [0, 0]
    assert [rollout.attempt for rollout in again[0]] == [1, 0]
    assert [rollout.attempt for rollout in again[1]] == [0, 0]
    assert again[2].group_id not in {group.group_id for group in groups}
    assert groups[2][0].num_tokens == 2  # what was given is not changed


def test_an_excluded_prompt_comes_in_no_epoch() -> None:
    prompts = ListPrompts(rows(5))
    solved = prompts.next()
    prompts.exclude(solved)
    later = drawn(prompts, 4 + 4 + 4)
    assert solved.prompt not in later
    assert set(Counter(later).values()) == {3}


def test_excluding_takes_a_prompt_out_of_those_given_back() -> None:
    prompts = ListPrompts(rows(2), seed=None)
    first = prompts.next()
    prompts.next()
    again = prompts.next()  # the same row, one epoch later
    prompts.give_back(first)
    prompts.give_back(again)
    prompts.exclude(first)
    assert drawn(prompts, 3) == ["prompt 1"] * 3


def test_a_withdrawn_prompt_is_passed_over_once() -> None:
    prompts, other = ListPrompts(rows(4), seed=None), ListPrompts(rows(4), seed=None)
    state = prompts.state()
    ids = [prompts.next().group_id for _ in range(6)]
    prompts.restore(state)
    assert prompts.withdraw(ids[1])
    assert prompts.withdraw(ids[5])
    assert not prompts.withdraw(other.next().group_id)
    assert not prompts.withdraw("something else")
    prompts.restore(through_json(prompts.state()))
    assert drawn(prompts, 4) == ["prompt 0", "prompt 2", "prompt 3", "prompt 0"]
    assert drawn(prompts, 4) == ["prompt 2", "prompt 3", "prompt 0", "prompt 1"]


def test_withdrawing_takes_a_prompt_out_of_those_given_back() -> None:
    prompts = ListPrompts(rows(4), seed=None)
    group = prompts.next()
    prompts.give_back(group)
    assert prompts.withdraw(group.group_id)
    assert drawn(prompts, 3) == ["prompt 1", "prompt 2", "prompt 3"]


def test_a_prompt_is_found_by_its_id() -> None:
    prompts = ListPrompts(rows(4), n=3)
    groups = [prompts.next() for _ in range(9)]
    for group in groups:
        found = prompts.find(group.group_id)
        assert found is not None
        assert (found.prompt, found.group_id, len(found)) == (group.prompt, group.group_id, 3)
        assert found.status is rc.Status.INIT
    assert prompts.find("x") is None
    assert prompts.find(groups[0].group_id + "0000") is None


# -- saving ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("stop", range(0, 23, 2))
def test_a_restored_source_goes_on_as_if_nothing_had_happened(stop: int) -> None:
    def live(prompts: IndexedPrompts, begin: int, end: int) -> list[tuple[str, str]]:
        told = []
        for turn in range(begin, end):
            group = prompts.next()
            told.append((group.group_id, group.prompt))
            if turn % 3 == 0:
                prompts.give_back(group)
            if turn % 7 == 5:
                prompts.exclude(group)
        return told

    whole = ListPrompts(rows(7), seed=5)
    before = live(whole, 0, stop)
    resumed = ListPrompts(rows(7), seed=5)
    resumed.restore(through_json(whole.state()))
    assert live(resumed, stop, 30) == live(whole, stop, 30)
    assert len(before) == stop


def test_saving_changes_nothing() -> None:
    prompts = ListPrompts(rows(5))
    prompts.give_back(prompts.next())
    state = through_json(prompts.state())
    assert through_json(prompts.state()) == state


def test_those_given_back_are_saved_by_reference_with_their_ids() -> None:
    prompts = ListPrompts(["x" * 10000, "y" * 10000], n=2)
    group = prompts.next()
    group[0].finish_reason = "abort"
    prompts.give_back(group)
    state = through_json(prompts.state())
    assert len(json.dumps(state)) < 1000
    resumed = ListPrompts(["x" * 10000, "y" * 10000], n=2)
    resumed.restore(state)
    again = resumed.next()
    assert (again.group_id, again.prompt) == (group.group_id, group.prompt)
    assert again.attempt == 1


def test_a_prompt_that_its_source_does_not_know_is_saved_whole() -> None:
    prompts = ListPrompts(rows(2))
    foreign = rc.Group(
        [rc.Rollout(extras={"k": 1}), rc.Rollout([7, 8], blobs={"image": [b"\x00\xff"]})],
        task="math", prompt_ids=[1, 2], prompt="why?", ground_truth={"a": [1]},
        extras={"level": 2}, blobs={"audio": [b"\x01", b""]},
    )  # fmt: skip
    prompts.give_back(foreign)
    resumed = ListPrompts(rows(2))
    resumed.restore(through_json(prompts.state()))
    again = resumed.next()
    again.task = "math"
    for rollout in again:
        rollout.task = "math"
    assert again.equals(foreign)


def test_a_whole_prompt_keeps_everything_but_what_was_generated() -> None:
    group = rc.Group(
        [rc.Rollout(response_ids=[3], logprobs=[-1.0], reward=1.0, finish_reason="stop")],
        task="math", prompt_ids=[1], prompt="p",
    )  # fmt: skip
    saved = through_json(to_saved(group))
    again = from_saved(saved, ListPrompts(rows(1)), "math")
    assert again is not None
    assert again.equals(prompt_of(group))
    assert again[0].attempt == 1


def test_a_source_that_is_not_the_saved_one_is_refused_and_says_why() -> None:
    state = ListPrompts(rows(5), seed=1).state()
    for other, message in (
        (ListPrompts(rows(6), seed=1), "it had 5 prompts and has 6"),
        (ListPrompts(rows(5), seed=2), "it had 1 as seed and has 2"),
        (ListPrompts(["other", *rows(4)], seed=1), "is not what was saved"),
    ):
        before = through_json(other.state())
        with pytest.raises(SnapshotError, match=message):
            other.restore(state)
        assert through_json(other.state()) == before
    with pytest.raises(SnapshotError, match=r"expected what state\(\) returned"):
        ListPrompts(rows(5)).restore({"position": 3})


# -- files and datasets ---------------------------------------------------------------------------
def test_a_jsonl_file_is_read_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "math.jsonl"
    lines = [{"question": f"{n} + {n} = ü", "answer": 2 * n} for n in range(200)]
    text = "\n".join(json.dumps(line, ensure_ascii=False) for line in lines)
    path.write_text("\n  \n" + text.replace("\n", "\r\n\n", 20) + "\n\n", encoding="utf-8")
    prompts = JsonlPrompts(path, n=2, seed=None, prompt="question", ground_truth="answer")
    assert len(prompts) == 200
    groups = [prompts.next() for _ in range(200)]
    assert [(group.prompt, group.ground_truth) for group in groups] == [
        (line["question"], line["answer"]) for line in lines
    ]


def test_a_jsonl_file_without_a_last_newline_or_with_one_line(tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl"
    path.write_text('"only"')
    assert drawn(JsonlPrompts(path), 2) == ["only", "only"]
    path.write_text("\n\n")
    with pytest.raises(InvalidValue, match="there is no prompt in it"):
        JsonlPrompts(path)
    with pytest.raises(InvalidValue, match="cannot be read"):
        JsonlPrompts(tmp_path / "missing.jsonl")


def test_lines_of_a_large_file_are_found_across_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from recollect.production.prompts import jsonl

    path = tmp_path / "many.jsonl"
    texts = ["x" * (n % 13) for n in range(300)]
    path.write_text("\n".join(json.dumps(text) for text in texts))
    for chunk in (1, 7, 64, 1 << 20):
        monkeypatch.setattr(jsonl, "CHUNK", chunk)
        assert drawn(JsonlPrompts(path, seed=None), 300) == texts


def test_a_line_that_is_no_json_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('"good"\n{"question": \n')
    prompts = JsonlPrompts(path, seed=None)
    prompts.next()
    with pytest.raises(InvalidValue, match=r"bad\.jsonl: the line at byte 7 is no JSON"):
        prompts.next()


def test_a_hugging_face_dataset_is_drawn_from(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    dataset = datasets.Dataset.from_dict({"question": rows(20), "answer": list(range(20))})
    prompts = HuggingFacePrompts(dataset, n=2, prompt="question", ground_truth="answer", epochs=1)
    groups = [prompts.next() for _ in range(20)]
    assert sorted(group.ground_truth for group in groups) == list(range(20))
    assert all(group.prompt == f"prompt {group.ground_truth}" for group in groups)
    resumed = HuggingFacePrompts(dataset, n=2, prompt="question", epochs=1)
    prompts.give_back(groups[3])
    resumed.restore(through_json(prompts.state()))
    assert resumed.next().prompt == groups[3].prompt
    with pytest.raises(InvalidValue, match="expected one split, got several"):
        HuggingFacePrompts(datasets.DatasetDict({"train": dataset}))
    with pytest.raises(InvalidValue, match="a stream can be drawn from only once"):
        HuggingFacePrompts(dataset.to_iterable_dataset())


def test_included_sources_are_prompts_that_find_theirs(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('"a"\n')
    for source in (ListPrompts(["a"]), JsonlPrompts(path), HuggingFacePrompts([{"prompt": "a"}])):
        assert isinstance(source, Prompts)
        assert isinstance(source, Indexed)
