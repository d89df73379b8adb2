"""The short way of `put` stores what the general one stores, and declines what it cannot."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
from callers import Caller
from hypothesis import given, settings
from hypothesis import strategies as st

import recollect as rc
from recollect.rollouts.rollout import Status
from recollect.rollouts.short_put import object_layout

PATIENT = rc.Staleness(max_staleness=1000)


def rollout(n: int = 3, **given: Any) -> rc.Rollout:
    arrays = {
        "logprobs": np.linspace(-2, -1, n, dtype=np.float32),
        "loss_mask": np.arange(n, dtype=np.int8) % 2,
        "reward": n / 8,
        "finish_reason": "stop",
        "rollout_id": f"r{n}",
    }
    return rc.Rollout(None, np.arange(n, dtype=np.int32), **(arrays | given))


def group(*rollouts: rc.Rollout, **given: Any) -> rc.Group:
    shared = {"task": "math", "group_id": "g", "prompt_ids": np.arange(5, dtype=np.int32)}
    return rc.Group(rollouts or [rollout(3), rollout(1), rollout(700)], **(shared | given))


def prompted(*prompts: list[int]) -> rc.Group:
    """A group of rollouts that each have a prompt of their own."""
    rollouts = [
        rc.Rollout(prompt, [1, 2], finish_reason="stop", rollout_id=f"r{n}")
        for n, prompt in enumerate(prompts)
    ]
    return rc.Group(rollouts, task="math", group_id="g")


def general(**options: Any) -> rc.RolloutBuffer:
    """A buffer whose puts all take the general way."""
    buffer = rc.RolloutBuffer(**options)
    buffer.core.short_put.objects = None
    return buffer


def looked(one: rc.Group, version: int | None = None, rule: rc.Staleness = PATIENT) -> bool:
    return rc.RolloutBuffer().core.short_put.recognize(one, version, rule, {}) is not None


def everything(buffer: rc.RolloutBuffer) -> Any:
    """All that can be told apart, without keys, which are random."""
    keys = np.sort(np.array(list(buffer.table.counts("key")), np.uint64))
    groups = buffer.get(keys)
    batch = groups.batch
    plain = {
        name: (column.values.tolist(), column.offsets.tolist())
        if isinstance(column, rc.Ragged)
        else column.tolist()
        for name, column in batch.columns.items()
    }
    present = {name: flags.tolist() for name, flags in batch.present.items()}
    info = {
        name: getattr(batch.info, name).tolist()
        for name in ("task", "status", "version", "expires", "ready", "priority", "row_offsets")
    }
    stats = {name: value for name, value in buffer.stats().items() if name != "effects"}
    accounts = buffer.accounts()
    for account in accounts.values():
        del account["age"]
    shared = [(one.group_id, one.prompt, one.ground_truth, one.extras) for one in groups]
    prompts = [one.prompt_ids.tolist() for one in groups]
    return repr((plain, present, info, stats, accounts, shared, prompts, buffer.counts()))


def test_this_interpreter_lays_objects_out_as_the_kernels_read_them() -> None:
    assert object_layout() is not None


COMMON: dict[str, Callable[[], rc.Group]] = {
    "all there is": group,
    "one rollout": lambda: group(rollout(1)),
    "no logprobs": lambda: group(rollout(2, logprobs=None), rollout(3, logprobs=None)),
    "no mask": lambda: group(rollout(2, loss_mask=None), rollout(3, loss_mask=None)),
    "no reward": lambda: group(rollout(2, reward=None), rollout(3, reward=None)),
    "another reason": lambda: group(rollout(2, finish_reason="length")),
    "a status and no reason": lambda: group(rollout(2, finish_reason=None, status="COMPLETED")),
    "dispatch versions": lambda: group(rollout(2, dispatch_version=7)),
    "some": lambda: group(rollout(2, dispatch_version=7), rollout(3), rollout(4)),
    "no prompt": lambda: group(rollout(2), prompt_ids=None),
    "what a group shares": lambda: group(prompt="2+2, größer?", ground_truth=4, extras={"a": 1}),
    "a strange reward": lambda: group(rollout(2, reward=float("inf")), rollout(3, reward=-0.0)),
    "versions": lambda: group(rollout(2, versions=[3, 4]), rollout(3, versions=[9, 2, 5])),
    "versions and dispatch": lambda: group(rollout(2, versions=[3, 4], dispatch_version=1)),
    "the same prompt in each": lambda: prompted([7, 8], [7, 8], [7, 8]),
    "a reason in two objects": lambda: group(rollout(2), rollout(3, finish_reason=f"sto{'p'}")),
    "tool output": lambda: group(rollout(2, logprobs=np.array([np.nan, -1], np.float32))),
}  # fmt: skip

OTHERS: dict[str, Callable[[], rc.Group]] = {
    "an id that is not ASCII": lambda: group(rollout(2, rollout_id="größe")),
    "a group's id that is not ASCII": lambda: group(group_id="大"),
    "a reason not of ASCII": lambda: group(rollout(2, status="COMPLETED", finish_reason="größe")),
    "different reasons": lambda: group(rollout(2), rollout(3, finish_reason="length")),
    "failed": lambda: group(rollout(2, finish_reason="error")),
    "an empty response": lambda: group(rollout(2), rollout(0)),
    "some logprobs": lambda: group(rollout(2), rollout(3, logprobs=None)),
    "some masks": lambda: group(rollout(2, loss_mask=None), rollout(3)),
    "some rewards": lambda: group(rollout(2), rollout(3, reward=None)),
    "some versions": lambda: group(rollout(2, versions=[3, 4]), rollout(3)),
    "versions of tool output": lambda: group(rollout(2, versions=[3, -1])),
    "another prompt": lambda: prompted([7, 8], [7, 9]),
    "a longer prompt": lambda: prompted([7, 8], [7, 8, 8]),
    "extras": lambda: group(rollout(2, extras={"a": 1})),
    "an error": lambda: group(rollout(2, error="late")),
    "turns": lambda: group(rollout(2, turns=[{"role": "user"}])),
    "named rewards": lambda: group(rollout(2, rewards={"style": 1.0})),
    "blobs": lambda: group(rollout(2, blobs={"image": [b"cat"]})),
    "shared blobs": lambda: group(blobs={"image": [b"cat"]}),
    "arrays": lambda: group(rollout(2, arrays={"ref": np.zeros(2)})),
    "an attempt": lambda: group(rollout(2, attempt=1)),
    "segments": lambda: group(rollout(2, rollout_id="r"), rollout(3, rollout_id="r", segment=1)),
    "its own prompt": lambda: group(rc.Rollout([9], [1], finish_reason="stop", rollout_id="r")),
}  # fmt: skip


@pytest.mark.parametrize("version", [None, 0, 12])
@pytest.mark.parametrize("name", [*COMMON, *OTHERS])
@pytest.mark.parametrize("measure", ["oldest_token", "dispatch"])
def test_both_ways_store_the_same(name: str, version: int | None, measure: str) -> None:
    make = (COMMON | OTHERS)[name]
    rule = rc.Staleness(max_staleness=1000, measure=measure)
    options: dict[str, Any] = {
        "staleness": rule, "needs": ("reward",), "tags": {"a": int}, "clock": rc.ManualClock(),
    }  # fmt: skip
    short, long = rc.RolloutBuffer(**options), general(**options)
    for buffer in (short, long):
        buffer.sync.put(make(), version=version)
    assert everything(short) == everything(long)
    taken, others = (buffer.sync.take(1, status=make().status) for buffer in (short, long))
    assert taken == others
    assert len(taken) == 1


@pytest.mark.parametrize("name", COMMON)
def test_the_common_layout_is_recognized(name: str) -> None:
    assert looked(COMMON[name]())


@pytest.mark.parametrize("name", OTHERS)
def test_any_other_is_declined(name: str) -> None:
    assert not looked(OTHERS[name]())


def test_tool_output_among_tokens_to_be_stamped_is_declined() -> None:
    assert not looked(COMMON["tool output"](), version=3)
    assert not looked(group(), rule=rc.Staleness(max_token_staleness=3))


BROKEN: dict[str, Callable[[rc.Rollout], None]] = {
    "another dtype": lambda r: setattr(r, "response_ids", r.response_ids.astype(np.int64)),
    "a list": lambda r: setattr(r, "response_ids", [1, 2, 3]),
    "two axes": lambda r: setattr(r, "response_ids", np.zeros((3, 1), np.int32)),
    "not contiguous": lambda r: setattr(r, "response_ids", np.arange(6, dtype=np.int32)[::2]),
    "a matrix's dtype": lambda r: setattr(r, "logprobs", r.logprobs.astype(np.float64)),
    "too long": lambda r: setattr(r, "logprobs", np.zeros(4, np.float32)),
    "no flags": lambda r: setattr(r, "loss_mask", np.array([0, 1, 2], np.int8)),
    "negative flags": lambda r: setattr(r, "loss_mask", np.array([0, 1, -1], np.int8)),
    "a mask of bools": lambda r: setattr(r, "loss_mask", np.ones(3, np.bool_)),
    "a reward of another kind": lambda r: setattr(r, "reward", 1),
    "a reward of text": lambda r: setattr(r, "reward", "good"),
    "a dispatch version of text": lambda r: setattr(r, "dispatch_version", "7"),
    "a large dispatch version": lambda r: setattr(r, "dispatch_version", 1 << 40),
    "True": lambda r: setattr(r, "dispatch_version", True),
    "no id": lambda r: setattr(r, "rollout_id", None),
    "extras that are a list": lambda r: setattr(r, "extras", []),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_what_was_set_later_goes_the_general_way(name: str) -> None:
    """It is stored, or refused with the same words, as if there were no other way."""
    results = []
    for buffer in (rc.RolloutBuffer(staleness=PATIENT), general(staleness=PATIENT)):
        one = group(rollout(3), rollout(3, rollout_id="other"))
        BROKEN[name](one[1])
        assert not looked(one)
        try:
            buffer.sync.put(one)
        except Exception as error:
            results.append(repr(error))
        else:
            results.append(everything(buffer))
    assert results[0] == results[1]


CHANGES: dict[str, Callable[[rc.Group], None]] = {
    "more tokens": lambda g: setattr(g[0], "response_ids", np.zeros(100_000, np.int32)),
    "fewer tokens": lambda g: g[0].__init__(None, [1], logprobs=[0.0], loss_mask=[1], reward=0.5),  # type: ignore[misc]
    "no logprobs": lambda g: [setattr(r, "logprobs", None) for r in g],  # type: ignore[func-returns-value, misc, list-item]
    "fewer rollouts": lambda g: g.pop(),  # type: ignore[dict-item, return-value]
    "another object": lambda g: setattr(g[0], "response_ids", "text"),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_a_group_that_changes_between_look_and_copy_is_not_stored(name: str) -> None:
    buffer = rc.RolloutBuffer(staleness=PATIENT)
    core, one = buffer.core, group()
    known = core.short_put.recognize(one, None, PATIENT, {})
    assert known is not None
    CHANGES[name](one)
    known.fields["ready"] = True
    assert core.short_put.store(known, 0.0) is None
    assert (len(buffer), buffer.nbytes) == (0, 0)
    assert buffer.sync.put(group()) is not None
    assert buffer.sync.take(1)[0].equals(group_as_taken())


def group_as_taken() -> rc.Group:
    one = group()
    for each in one:
        each.status = Status.COMPLETED
    return one


@given(
    lengths=st.lists(st.integers(1, 5000), min_size=1, max_size=9),
    versions=st.lists(st.one_of(st.none(), st.integers(0, 9)), min_size=1, max_size=40),
    capacity=st.integers(1, 6),
)
@settings(max_examples=25, deadline=None)
def test_a_full_buffer_lets_the_same_groups_go(
    lengths: list[int], versions: list[int | None], capacity: int
) -> None:
    options: dict[str, Any] = {
        "capacity": capacity, "overflow": "drop_stalest", "staleness": PATIENT,
        "clock": rc.ManualClock(),
    }  # fmt: skip
    short, long = rc.RolloutBuffer(**options), general(**options)
    for n, version in enumerate(versions):
        rollouts = [rollout(k, rollout_id=f"{n}-{i}") for i, k in enumerate(lengths)]
        one = group(*rollouts, group_id=f"g{n % 7}")
        for buffer in (short, long):
            buffer.sync.put(deepcopy(one), version=version)
    assert everything(short) == everything(long)
    assert short.nbytes == long.nbytes
    if len(versions) % 2:
        assert short.sync.take(99) == long.sync.take(99)


def test_mixed_dispatch_versions_beside_versions_of_tokens_are_declined() -> None:
    """By dispatch, some rollouts count from there and others from their tokens."""
    mixed = group(rollout(2, versions=[3, 4], dispatch_version=1), rollout(3, versions=[5, 5, 5]))
    assert looked(mixed)
    assert not looked(mixed, rule=rc.Staleness(max_staleness=1000, measure="dispatch"))


@pytest.mark.parametrize("overflow", ["block", "drop_stalest", "drop_newest", "raise"])
def test_room_that_is_promised_is_kept_and_used(overflow: str) -> None:
    """Three places, two of them promised to another task: one is left, whichever way is taken."""
    outcomes = []
    for make in (rc.RolloutBuffer, general):
        buffer = make(capacity=3, overflow=overflow, staleness=PATIENT, clock=rc.ManualClock())
        calls = buffer.sync
        assert calls.reserve(2, "code") == 2
        first = calls.put(group(rollout(2), group_id="a")) is not None
        second = Caller(lambda calls=calls: calls.put(group(rollout(2), group_id="b")))
        waited = second.waits()
        third = calls.put(group(rollout(2), group_id="c", task="code")) is not None
        promised = buffer.stats()["promised"]
        assert calls.unreserve(9, "code") == 1
        stored = None if overflow == "raise" else second.done() is not None
        outcomes.append((first, waited, third, promised, stored, everything(buffer)))
        assert isinstance(second.error, rc.BufferFull) == (overflow == "raise")
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][1] == (overflow == "block")
    assert outcomes[0][3] == {"code": 1}


# -- any part changed to anything

ODD: list[Any] = [
    None, True, 0, -1, 2**40, 2**80, 1.0, 1.5, float("nan"), "", "a", "\ud800", b"ab", [],
    [1, 2, 3], [1.5, 2, 3], [[1], [2], [3]], (), {}, {"a": 1}, {"a": [1]}, {"a": [b"x"]},
    {"a": np.zeros(2)}, {1: 2}, {"a": object()}, {1}, object(), Status.FAILED, np.int64(1),
    np.float32(1), np.array(1), np.array([]), np.zeros(3, np.int32), np.zeros(3, np.float32),
    np.zeros((3, 1), np.int32), np.ones(3, np.bool_), np.array([None]), np.zeros(3, "f4,i4"),
    rc.Rollout([1], [1]),
]  # fmt: skip
OF_ROLLOUTS = [name.strip("_") for name in rc.Rollout.__slots__]
OF_GROUPS = list(rc.Group.__slots__)


def public(buffer: rc.RolloutBuffer) -> str:
    return repr((buffer.counts(), buffer.accounts(), buffer.nbytes, list(buffer.table.columns)))


@pytest.mark.parametrize("part", [*OF_ROLLOUTS, *(f"group.{name}" for name in OF_GROUPS)])
def test_a_part_that_was_changed_to_anything_is_stored_or_refused(part: str) -> None:
    """Both ways store the same, or say the same; and who comes next can put."""
    for odd in ODD:
        results = []
        options: dict[str, Any] = {
            "staleness": PATIENT, "tags": {"a": int}, "clock": rc.ManualClock(),
        }  # fmt: skip
        for buffer in (rc.RolloutBuffer(**options), general(**options)):
            one = group(rollout(3), rollout(3, rollout_id="other"))
            before = public(buffer)
            try:
                setattr(one if "." in part else one[1], part.removeprefix("group."), odd)
                buffer.sync.put(one, version=3)
            except rc.InvalidValue as wrong:
                results.append(str(wrong))
                assert public(buffer) == before
            else:
                results.append(everything(buffer))
            key = buffer.sync.put(group(group_id="next"), version=3)
            assert buffer.get([key])[0].group_id == "next"
        assert results[0] == results[1], odd
