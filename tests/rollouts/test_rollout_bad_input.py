"""Every wrong call on groups, in one table: the error, its words, and that nothing changed."""

# ruff: noqa: E501 - one line per case makes the table readable

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pytest

import recollect as rc

PATIENT = rc.Staleness(max_staleness=10_000)
NAN, INF = float("nan"), float("inf")


def R(tokens: Any = (5, 6), **options: Any) -> rc.Rollout:
    return rc.Rollout(
        [1],
        list(tokens) if isinstance(tokens, tuple) else tokens,
        **{"finish_reason": "stop", **options},
    )


def G(*rollouts: rc.Rollout, **options: Any) -> rc.Group:
    return rc.Group(rollouts or [R()], **{"task": "math", **options})


def changed(**attributes: Any) -> rc.Rollout:
    """A rollout that was right when it was made."""
    rollout = R()
    for name, value in attributes.items():
        setattr(rollout, name, value)
    return rollout


# -- making things: call, error, words

MAKING: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "logprobs too short": (lambda: R((1,) * 42, logprobs=[0.0] * 41), rc.InvalidValue, r"logprobs has 41 entries for 42 response tokens"),
    "loss_mask too long": (lambda: R(loss_mask=[1, 1, 1]), rc.InvalidValue, r"loss_mask has 3 entries for 2 response tokens"),
    "versions too long": (lambda: R(versions=[1, 1, 1]), rc.InvalidValue, r"versions has 3 entries for 2 response tokens"),
    "versions below -1": (lambda: R(versions=[0, -2]), rc.InvalidValue, r"versions.*-1.*got -2"),
    "versions that are not whole": (lambda: R(versions=[0.5, 1]), rc.InvalidValue, r"versions"),
    "tokens of text": (lambda: R("abc"), rc.InvalidValue, r"response_ids: expected a flat list of whole numbers, got 'abc'"),
    "negative tokens": (lambda: R((1, -2)), rc.InvalidValue, r"response_ids.*got -2"),
    "negative tokens in an array": (lambda: R(np.array([1, -2], np.int32)), rc.InvalidValue, r"response_ids.*got -2"),
    "tokens in two axes": (lambda: R(np.zeros((2, 2), np.int32)), rc.InvalidValue, r"response_ids: expected a flat list of whole numbers"),
    "tokens that do not fit": (lambda: R((1, 2**31)), rc.InvalidValue, r"response_ids.*2\*\*31"),
    "tokens with fractions": (lambda: R((1.5, 2.0)), rc.InvalidValue, r"response_ids"),
    "ragged tokens": (lambda: R([[1], [1, 2]]), rc.InvalidValue, r"response_ids"),
    "logprobs of text": (lambda: R(logprobs=["a", "b"]), rc.InvalidValue, r"logprobs: expected a flat list of numbers"),
    "a mask of 2": (lambda: R(loss_mask=[1, 2]), rc.InvalidValue, r"loss_mask: expected 0 or 1"),
    "a mask of 2 in an array": (lambda: R(loss_mask=np.array([1, 2], np.int8)), rc.InvalidValue, r"loss_mask: expected 0 or 1"),
    "a mask of a half": (lambda: R(loss_mask=[0.5, 1]), rc.InvalidValue, r"loss_mask: expected 0 or 1"),
    "a reward of text": (lambda: R(reward="good"), rc.InvalidValue, r"reward: expected a number or None, got 'good'"),
    "several rewards": (lambda: R(reward=[1, 2]), rc.InvalidValue, r"reward: expected a number"),
    "a negative attempt": (lambda: R(attempt=-1), rc.InvalidValue, r"attempt: expected a whole number of 0 or more, got -1"),
    "half a segment": (lambda: R(segment=0.5), rc.InvalidValue, r"segment: expected a whole number"),
    "a negative dispatch": (lambda: R(dispatch_version=-1), rc.InvalidValue, r"dispatch_version"),
    "an unknown status": (lambda: R(status="DONE"), rc.InvalidValue, r"status: expected one of INIT, COMPLETED, .*got 'DONE'"),
    "a finish reason of numbers": (lambda: R(finish_reason=3), rc.InvalidValue, r"finish_reason: expected text, got 3"),
    "an id of numbers": (lambda: R(rollout_id=3), rc.InvalidValue, r"rollout_id: expected text, got 3"),
    "an empty id": (lambda: R(rollout_id=""), rc.InvalidValue, r"rollout_id: expected text that is not empty"),
    "an array without axes": (lambda: R(arrays={"score": 0.5}), rc.InvalidValue, r"arrays\['score'\].*extras"),
    "an array of text": (lambda: R(arrays={"note": ["a"]}), rc.InvalidValue, r"arrays\['note'\]: expected an array of numbers"),
    "an array with a dot": (lambda: R(arrays={"a.b": [1]}), rc.InvalidValue, r"arrays: a name is text without a dot, got 'a.b'"),
    "blobs of text": (lambda: R(blobs={"image": ["cat"]}), rc.InvalidValue, r"blobs\['image'\]: expected bytes, got str"),
    "blobs that are no list": (lambda: R(blobs={"image": b"cat"}), rc.InvalidValue, r"blobs\['image'\]: expected"),
    "blobs of a number": (lambda: R(blobs=5), rc.InvalidValue, r"blobs: expected a mapping of names, got 5"),
    "blobs in a list": (lambda: R(blobs=[b"cat"]), rc.InvalidValue, r"blobs: expected a mapping of names"),
    "blobs of a number by name": (lambda: R(blobs={"image": 5}), rc.InvalidValue, r"blobs\['image'\]: expected a list of bytes, got 5"),
    "arrays of a number": (lambda: R(arrays=5), rc.InvalidValue, r"arrays: expected a mapping of names, got 5"),
    "extras of a number": (lambda: R(extras=5), rc.InvalidValue, r"extras: expected a mapping of names, got 5"),
    "extras of text": (lambda: R(extras="ab"), rc.InvalidValue, r"extras: expected a mapping of names, got 'ab'"),
    "named rewards of a number": (lambda: R(rewards=5), rc.InvalidValue, r"rewards: expected a mapping of names, got 5"),
    "named rewards in a list": (lambda: R(rewards=[1.0]), rc.InvalidValue, r"rewards: expected a mapping of names, got \[1.0\]"),
    "a huge attempt": (lambda: R(attempt=2**40), rc.InvalidValue, r"attempt: expected at most 2147483647"),
    "a group of a number": (lambda: rc.Group(5), rc.InvalidValue, r"rollouts: expected a list of them, got 5"),
    "a group of nothing": (lambda: rc.Group(None), rc.InvalidValue, r"rollouts: expected a list of them, got None"),
    "a group's extras of a number": (lambda: G(extras=5), rc.InvalidValue, r"extras: expected a mapping of names, got 5"),
    "a group's blobs of a number": (lambda: G(blobs=5), rc.InvalidValue, r"blobs: expected a mapping of names, got 5"),
    "a group that gets a number": (lambda: G().__setitem__(0, 5), rc.InvalidValue, r"a group holds rc.Rollout objects, got 5"),
    "a group that gets a number for several": (lambda: G().__setitem__(slice(0, 1), 5), rc.InvalidValue, r"a group holds rc.Rollout objects, got 5"),
    "groups of a number": (lambda: rc.Groups.from_dicts(5), rc.InvalidValue, r"from_dicts: expected a list of a dict per rollout, got 5"),
    "groups of one dict": (lambda: rc.Groups.from_dicts({"response_ids": [1]}), rc.InvalidValue, r"from_dicts: expected a list of a dict per rollout, got \{"),
    "groups of text": (lambda: rc.Groups.from_dicts("ab"), rc.InvalidValue, r"from_dicts: expected a list of a dict per rollout, got 'ab'"),
    "groups of numbers": (lambda: rc.Groups.from_dicts([5]), rc.InvalidValue, r"row 0: expected a dict per rollout, got 5"),
    "groups of numbered parts": (lambda: rc.Groups.from_dicts([{5: 1}]), rc.InvalidValue, r"row 0: 5 is no part of a rollout"),
    "groups whose id is a list": (lambda: rc.Groups.from_dicts([{"group_id": ["a"]}]), rc.InvalidValue, r"row 0: group_id: expected text, got \['a'\]"),
    "a frame of a number": (lambda: rc.Groups.from_pandas(5), rc.InvalidValue, r"from_pandas: expected a pandas.DataFrame, got 5"),
    "a frame of dicts": (lambda: rc.Groups.from_pandas([{"response_ids": [1]}]), rc.InvalidValue, r"from_pandas: expected a pandas.DataFrame.*from_dicts"),
    "a frame of half an attempt": (lambda: rc.Groups.from_pandas(pd.DataFrame({"attempt": [0.5]})), rc.InvalidValue, r"row 0: attempt: expected a whole number"),
    "a frame of extras that are no JSON": (lambda: rc.Groups.from_pandas(pd.DataFrame({"extras": ["{}", "{bad"]})), rc.InvalidValue, r"row 1: extras: expected JSON text, got '\{bad'"),
    "a frame of extras of numbers": (lambda: rc.Groups.from_pandas(pd.DataFrame({"extras": [5]})), rc.InvalidValue, r"row 0: extras: expected JSON text, got 5"),
    "a frame of blobs of numbers": (lambda: rc.Groups.from_pandas(pd.DataFrame({"blobs": [5]})), rc.InvalidValue, r"row 0: blobs: expected a mapping of names, got 5"),
    "a dataset of a number": (lambda: rc.Groups.from_dataset(5), rc.InvalidValue, r"from_dataset: expected a datasets.Dataset, got 5"),
    "a dataset of a frame": (lambda: rc.Groups.from_dataset(pd.DataFrame({"reward": [1.0]})), rc.InvalidValue, r"from_dataset: expected a datasets.Dataset"),
    "a dataset of splits": (lambda: rc.Groups.from_dataset(datasets.DatasetDict()), rc.InvalidValue, r"from_dataset: expected a datasets.Dataset.*dataset\['train'\]"),
    "a ragged column of a number": (lambda: rc.Ragged.from_list(5), rc.SchemaError, r"'cells': expected a list with a cell per row, got 5"),
    "a ragged column of nothing": (lambda: rc.Ragged.from_list(None), rc.SchemaError, r"'cells': expected a list with a cell per row, got None"),
    "a group of text": (lambda: rc.Group(["a"]), rc.InvalidValue, r"rollouts: expected rc.Rollout objects, got 'a'"),
    "a rollout that is no list of them": (lambda: rc.Group(R()), rc.InvalidValue, r"rollouts: expected a list of them, got Rollout"),
    "a task of numbers": (lambda: G(task=3), rc.InvalidValue, r"task: expected text, got 3"),
    "two tasks in a group": (lambda: G(R(task="code")), rc.InvalidValue, r"task: a rollout has 'code' in a group that has 'math'"),
    "two ids in a group": (lambda: G(R(group_id="a"), R(group_id="b")), rc.InvalidValue, r"group_id: a rollout has 'b' in a group that has 'a'"),
    "a group that gets text": (lambda: G().append("a"), rc.InvalidValue, r"a group holds rc.Rollout objects, got 'a'"),
    "negative staleness": (lambda: rc.Staleness(max_staleness=-1), rc.InvalidValue, r"max_staleness: expected a whole number of at least 0, got -1"),
    "no sync interval": (lambda: rc.Staleness(sync_interval=0), rc.InvalidValue, r"sync_interval: expected a whole number of at least 1, got 0"),
    "half a staleness": (lambda: rc.Staleness(max_staleness=0.5), rc.InvalidValue, r"max_staleness"),
    "a staleness of True": (lambda: rc.Staleness(max_staleness=True), rc.InvalidValue, r"max_staleness"),
    "negative token staleness": (lambda: rc.Staleness(max_token_staleness=-1), rc.InvalidValue, r"max_token_staleness"),
    "negative retries": (lambda: rc.Staleness(max_retries=-1), rc.InvalidValue, r"max_retries"),
    "an unknown measure": (lambda: rc.Staleness(measure="newest"), rc.InvalidValue, r"measure: expected 'oldest_token' or 'dispatch', got 'newest'"),
    "an unknown end": (lambda: rc.Staleness(on_expire="drop"), rc.InvalidValue, r"on_expire: expected 'retry' or 'discard', got 'drop'"),
    "a staleness of numbers": (lambda: rc.RolloutBuffer(staleness=3), rc.InvalidValue, r"staleness: expected an rc.Staleness.*got 3"),
    "a mapping of numbers": (lambda: rc.RolloutBuffer(staleness={"math": 3}), rc.InvalidValue, r"staleness: expected an rc.Staleness for each task, got 3 for 'math'"),
    "no capacity": (lambda: rc.RolloutBuffer(capacity=0), rc.InvalidValue, r"capacity.*at least 1.*0"),
    "negative bytes": (lambda: rc.RolloutBuffer(capacity_bytes=-5), rc.InvalidValue, r"capacity_bytes.*-5"),
    "negative uses": (lambda: rc.RolloutBuffer(max_uses=-1), rc.InvalidValue, r"max_uses.*-1"),
    "an unknown overflow": (lambda: rc.RolloutBuffer(overflow="wait"), rc.InvalidValue, r"overflow: expected one of 'block', 'drop_stalest', 'drop_newest', 'raise', got 'wait'"),
    "needs of numbers": (lambda: rc.RolloutBuffer(needs=(1,)), rc.InvalidValue, r"needs"),
    "needs that no annotation fills": (lambda: rc.RolloutBuffer(needs=("reward", "error")), rc.InvalidValue, r"needs: annotate never fills 'error'; expected reward, rewards, logprobs, loss_mask, or the name of an array"),
    "needs of turns": (lambda: rc.RolloutBuffer(needs="turns"), rc.InvalidValue, r"needs: annotate never fills 'turns'"),
    "needs of extras": (lambda: rc.RolloutBuffer(needs="extras"), rc.InvalidValue, r"needs: annotate never fills 'extras'"),
    "needs of versions": (lambda: rc.RolloutBuffer(needs="versions"), rc.InvalidValue, r"needs: annotate never fills 'versions'"),
    "needs of a prompt": (lambda: rc.RolloutBuffer(needs="prompt"), rc.InvalidValue, r"needs: annotate never fills 'prompt'"),
    "needs of a finish reason": (lambda: rc.RolloutBuffer(needs="finish_reason"), rc.InvalidValue, r"needs: annotate never fills 'finish_reason'"),
    "needs of blobs": (lambda: rc.RolloutBuffer(needs="blobs"), rc.InvalidValue, r"needs: annotate never fills 'blobs'"),
    "needs by the name of a batch's column": (lambda: rc.RolloutBuffer(needs="arrays.ref"), rc.InvalidValue, r"needs: annotate never fills 'arrays.ref'.*the name of an array"),
    "a tag that a query reads as a keyword": (lambda: rc.RolloutBuffer(tags={"in": int}), rc.InvalidValue, r"tags: the name 'in' is taken"),
    "tags of an unknown type": (lambda: rc.RolloutBuffer(tags={"score": list}), rc.InvalidValue, r"score"),
    "a tag that is taken": (lambda: rc.RolloutBuffer(tags={"ready": bool}), rc.InvalidValue, r"'ready' is taken"),
    "a tag that is a field": (lambda: rc.RolloutBuffer(tags={"version": int}), rc.InvalidValue, r"version"),
    "an archive of text": (lambda: rc.RolloutBuffer(archive="yes"), rc.InvalidValue, r"archive"),
    "an order of text": (lambda: rc.RolloutBuffer(order="fifo"), rc.InvalidValue, r"'fifo'"),
    "an order by an unknown field": (lambda: rc.RolloutBuffer(order=rc.Largest("score")), rc.InvalidValue, r"score"),
    "an unknown argument": (lambda: rc.RolloutBuffer(size=3), TypeError, r"size"),
}  # fmt: skip


@pytest.mark.parametrize("name", MAKING)
def test_what_cannot_be_made_says_why(name: str) -> None:
    call, error, words = MAKING[name]
    with pytest.raises(error, match=words):
        call()


# -- calling a buffer: call, error, words

CALLS: dict[str, tuple[Callable[[Any], Any], type[Exception], str]] = {
    "put no group": (lambda b: b.put("group"), rc.InvalidValue, r"put: expected an rc.Group, got 'group'; rc.Group\(\[\.\.\.\], task=\.\.\.\) makes one of rollouts"),
    "put a rollout": (lambda b: b.put(R()), rc.InvalidValue, r"put: expected an rc.Group"),
    "put a list": (lambda b: b.put([R()]), rc.InvalidValue, r"put: expected an rc.Group"),
    "put an empty group": (lambda b: b.put(rc.Group([], task="math")), rc.InvalidValue, r"no rollouts"),
    "put trained with untrained": (lambda b: b.put(G(R(), R(status="ARCHIVED"))), rc.InvalidValue, r"COMPLETED.*ARCHIVED"),
    "put a negative version": (lambda b: b.put(G(), version=-1), rc.InvalidValue, r"version.*-1"),
    "put half a version": (lambda b: b.put(G(), version=0.5), rc.InvalidValue, r"version.*0\.5"),
    "put a huge version": (lambda b: b.put(G(), version=2**31), rc.InvalidValue, r"version"),
    "put versions that end early": (lambda b: b.put(G(R(), R(versions=[1]))), rc.InvalidValue, r"rollout 1: versions has 1 entries for 2 response tokens; put\(version=...\) stamps the rest"),
    "put changed logprobs": (lambda b: b.put(G(R(), changed(logprobs=[1.0] * 3))), rc.InvalidValue, r"rollout 1: logprobs has 3 entries for 2 response tokens"),
    "put a changed mask": (lambda b: b.put(G(changed(loss_mask=np.ones(5, np.int8)))), rc.InvalidValue, r"rollout 0: loss_mask has 5 entries"),
    "put a changed mask of 7": (lambda b: b.put(G(changed(loss_mask=np.full(2, 7, np.int8)))), rc.InvalidValue, r"rollout 0: loss_mask: expected 0 or 1"),
    "put changed tokens": (lambda b: b.put(G(changed(response_ids="ab"))), rc.InvalidValue, r"rollout 0: response_ids"),
    "put a changed reward": (lambda b: b.put(G(changed(reward="good"))), rc.InvalidValue, r"rollout 0: reward"),
    "put changed versions": (lambda b: b.put(G(changed(versions=np.array([-5, 0], np.int32)))), rc.InvalidValue, r"rollout 0: versions.*-5"),
    "put extras that are no JSON": (lambda b: b.put(G(R(extras={"x": object()}))), rc.InvalidValue, r"JSON"),
    "put turns that are no JSON": (lambda b: b.put(G(R(turns={1, 2}))), rc.InvalidValue, r"JSON"),
    "put a truth that is no JSON": (lambda b: b.put(G(ground_truth=b"bytes")), rc.InvalidValue, r"JSON"),
    "put arrays of two types": (lambda b: b.put(G(R(arrays={"a": np.zeros(2)}), R(arrays={"a": np.zeros(2, np.int8)}))), rc.SchemaError, r"arrays\['a'\].*one dtype.*float64.*int8"),
    "put arrays of two shapes": (lambda b: b.put(G(R(arrays={"a": np.zeros((2, 3))}), R(arrays={"a": np.zeros((2, 4))}))), rc.SchemaError, r"arrays\['a'\].*one shape"),
    "put an array of another shape than before": (lambda b: b.put(G(R(arrays={"ref": np.zeros((2, 4))}))), rc.SchemaError, r"ref"),
    "put an array of another kind than before": (lambda b: b.put(G(R(arrays={"routed": np.zeros(2)}))), rc.SchemaError, r"routed"),
    "put a tag of another type": (lambda b: b.put(G(extras={"score": "high"})), rc.InvalidValue, r"score.*'high'"),
    "put a tag that differs": (lambda b: b.put(G(R(extras={"level": 1}), R(extras={"level": 2}))), rc.InvalidValue, r"level.*differ"),
    "put what is leased": (lambda b: b.put(G(group_id="leased"), version=0), rc.InvalidValue, r"group 'leased' is leased and cannot be replaced"),
    "put what never fits": (lambda b: b.put(G(blobs={"x": [b"x" * 10**6]})), rc.NeverPossible, r"never fits a buffer of 100000 bytes"),
    "put the same rollout id twice": (lambda b: b.put(G(R(rollout_id="x"), R(rollout_id="x"))), rc.InvalidValue, r"rollout_id.*'x'"),
    "reserve less than nothing": (lambda b: b.reserve(-1, "math"), rc.InvalidValue, r"n.*-1"),
    "reserve for no task": (lambda b: b.reserve(1, None), rc.InvalidValue, r"task.*None"),
    "take text": (lambda b: b.take("all"), rc.InvalidValue, r"n.*'all'"),
    "take a fraction": (lambda b: b.take(1.5), rc.InvalidValue, r"n.*1\.5"),
    "take of an unknown status": (lambda b: b.take(1, status="DONE"), rc.InvalidValue, r"status: expected one of"),
    "take of a numbered task": (lambda b: b.take(1, 3), rc.InvalidValue, r"task.*3"),
    "take by an unknown field": (lambda b: b.take(1, where=rc.field("colour") == "red"), rc.QueryError, r"colour"),
    "take by a wrong type": (lambda b: b.take(1, where=rc.field("score") == "red"), rc.QueryError, r"score"),
    "take for a negative time": (lambda b: b.take(1, lease=-1), rc.InvalidValue, r"lease.*-1"),
    "take for no time": (lambda b: b.take(1, lease=NAN), rc.InvalidValue, r"lease.*nan"),
    "take for text": (lambda b: b.take(1, lease="long"), rc.InvalidValue, r"lease.*'long'"),
    "take a batch of a number": (lambda b: b.take_batch(64), rc.InvalidValue, r"sizes: expected tasks and numbers, such as \{\"math\": 8\}, got 64"),
    "take a batch of text": (lambda b: b.take_batch({"math": "many"}, timeout=0), rc.InvalidValue, r"sizes\['math'\].*'many'"),
    "take a batch of a numbered task": (lambda b: b.take_batch({3: 1}, timeout=0), rc.InvalidValue, r"sizes: a task is text, got 3"),
    "take a batch of a fraction": (lambda b: b.take_batch({"math": 1.5}, timeout=0), rc.InvalidValue, r"sizes\['math'\]: expected a whole number, got 1\.5$"),
    "take more than the capacity": (lambda b: b.take_batch({"math": 99}), rc.NeverPossible, r"99 groups.*capacity is 9"),
    "take a batch at step 0": (lambda b: b.take_batch({"math": 1}, train_step=0), rc.InvalidValue, r"train_step.*0"),
    "take a batch in a negative time": (lambda b: b.take_batch({"math": 1}, timeout=-1), rc.InvalidValue, r"timeout.*-1"),
    "take a batch too early": (lambda b: b.take_batch({"math": 5}, timeout=0), rc.WaitTimeout, r"math needs 5 groups, has 2 ready"),
    "sample more than the capacity": (lambda b: b.sample(99), rc.NeverPossible, r"99.*capacity is 9"),
    "sample text": (lambda b: b.sample("all"), rc.InvalidValue, r"n.*'all'"),
    "update nothing": (lambda b: b.update([1]), rc.InvalidValue, r"name a field"),
    "update the status": (lambda b: b.update([1], status="FAILED"), rc.InvalidValue, r"'status' is not one of priority, score, level"),
    "update the expiry": (lambda b: b.update([1], expires=3), rc.InvalidValue, r"'expires' is not one of"),
    "update with a negative priority": (lambda b: b.update([1], priority=-1.0), rc.InvalidValue, r"priority.*-1"),
    "update with no number": (lambda b: b.update([1], priority=NAN), rc.InvalidValue, r"priority.*nan"),
    "update with too many": (lambda b: b.update([1], priority=[1.0, 2.0]), rc.InvalidValue, r"priority"),
    "advance to 0": (lambda b: b.advance(0), rc.InvalidValue, r"train_step.*at least 1.*0"),
    "advance to a half": (lambda b: b.advance(1.5), rc.InvalidValue, r"train_step.*1\.5"),
    "advance to text": (lambda b: b.advance("next"), rc.InvalidValue, r"train_step.*'next'"),
    "confirm nothing": (lambda b: b.confirm(None), rc.RecollectError, r"lease"),
    "confirm an unknown lease": (lambda b: b.confirm(12345), rc.LeaseExpired, r"not held"),
    "confirm at step 0": (lambda b: b.confirm(12345, train_step=0), rc.InvalidValue, r"train_step.*0"),
    "give back an unknown lease": (lambda b: b.give_back(12345), rc.LeaseExpired, r"not held"),
    "give back an unknown claim": (lambda b: b.give_back(-99), rc.LeaseExpired, r"not held"),
    "renew for less than nothing": (lambda b: b.renew(12345, -1), rc.InvalidValue, r"seconds.*-1"),
    "release a number": (lambda b: b.release(3), rc.InvalidValue, r"owner: expected text, got 3"),
    "look into an archive that is not": (lambda b: b.trained_at(1), rc.InvalidValue, r"archive=True"),
    "claim text": (lambda b: b.claim("all", "reward"), rc.InvalidValue, r"n.*'all'"),
    "claim a number": (lambda b: b.claim(1, 3), rc.InvalidValue, r"lacks.*3"),
    "claim without a lease": (lambda b: b.claim(1, "reward", lease=None), rc.InvalidValue, r"lease"),
    "claim for a negative time": (lambda b: b.claim(1, "reward", lease=-1), rc.InvalidValue, r"lease.*-1"),
    "claim what every group has": (lambda b: b.claim(1, "response_ids", timeout=0), rc.InvalidValue, r"response_ids"),
    "claim what no annotation fills": (lambda b: b.claim(1, "error", timeout=0), rc.InvalidValue, r"lacks: annotate never fills 'error'"),
    "claim the ground truth": (lambda b: b.claim(1, "ground_truth", timeout=0), rc.InvalidValue, r"lacks: annotate never fills 'ground_truth'"),
    "annotate a reward as an array": (lambda b: b.annotate(["r0"], 0, arrays={"reward": [[1.0]]}), rc.InvalidValue, r"arrays\['reward'\]: it is no array; give it as reward="),
    "annotate rewards as an array": (lambda b: b.annotate(["r0"], 0, arrays={"rewards": [[1.0]]}), rc.InvalidValue, r"arrays\['rewards'\]: it is no array; give it as rewards="),
    "annotate versions": (lambda b: b.annotate(["r0"], 0, arrays={"versions": [[1, 1]]}), rc.InvalidValue, r"arrays\['versions'\]: a rollout has it, or has it not, when it is put"),
    "annotate tokens": (lambda b: b.annotate(["r0"], 0, arrays={"response_ids": [[1, 1]]}), rc.InvalidValue, r"arrays\['response_ids'\]: a rollout has it"),
    "annotate nothing": (lambda b: b.annotate(["r0"], 0), rc.InvalidValue, r"reward.*arrays"),
    "annotate one text": (lambda b: b.annotate("r0", 0, reward=[1.0]), rc.InvalidValue, r"rollout_ids.*'r0'"),
    "annotate numbers": (lambda b: b.annotate([1], 0, reward=[1.0]), rc.InvalidValue, r"rollout_ids"),
    "annotate too few": (lambda b: b.annotate(["r0", "r1"], 0, reward=[1.0]), rc.InvalidValue, r"reward.*2.*1|reward.*1.*2"),
    "annotate too few arrays": (lambda b: b.annotate(["r0", "r1"], 0, arrays={"ref": [np.zeros(2)]}), rc.InvalidValue, r"ref.*2.*1|ref.*1.*2"),
    "annotate too few attempts": (lambda b: b.annotate(["r0", "r1"], [0], reward=[1.0, 2.0]), rc.InvalidValue, r"attempt"),
    "annotate a negative attempt": (lambda b: b.annotate(["r0"], -1, reward=[1.0]), rc.InvalidValue, r"attempt.*-1"),
    "annotate a reward of text": (lambda b: b.annotate(["r0"], 0, reward=["good"]), rc.InvalidValue, r"reward.*'good'"),
    "annotate an array of text": (lambda b: b.annotate(["r0"], 0, arrays={"ref": ["good"]}), rc.InvalidValue, r"ref"),
    "annotate an array of another shape": (lambda b: b.annotate(["r0"], 0, arrays={"ref": [np.zeros((2, 2))]}), rc.SchemaError, r"ref"),
    "annotate logprobs of another length": (lambda b: b.annotate(["r0"], 0, arrays={"logprobs": [np.zeros(7, np.float32)]}), rc.InvalidValue, r"logprobs has 7 entries for 2 response tokens"),
    "annotate half an attempt": (lambda b: b.annotate(["r0"], 0.5, reward=[1.0]), rc.InvalidValue, r"attempt: expected whole numbers of 0 or more, got 0\.5"),
    "annotate an attempt of 0.9": (lambda b: b.annotate(["r0"], [0.9], reward=[1.0]), rc.InvalidValue, r"attempt: expected whole numbers.*0\.9"),
    "annotate an attempt of text": (lambda b: b.annotate(["r0"], "0", reward=[1.0]), rc.InvalidValue, r"attempt: expected whole numbers.*'0'"),
    "annotate an attempt of False": (lambda b: b.annotate(["r0"], False, reward=[1.0]), rc.InvalidValue, r"attempt: expected whole numbers.*False"),
    "annotate no attempt": (lambda b: b.annotate(["r0"], None, reward=[1.0]), rc.InvalidValue, r"attempt: expected whole numbers.*None"),
    "annotate an attempt that is no number": (lambda b: b.annotate(["r0"], NAN, reward=[1.0]), rc.InvalidValue, r"attempt: expected whole numbers.*nan"),
    "annotate attempts in two axes": (lambda b: b.annotate(["r0"], [[0]], reward=[1.0]), rc.InvalidValue, r"attempt: expected whole numbers"),
    "annotate a huge attempt": (lambda b: b.annotate(["r0"], 2**70, reward=[1.0]), rc.InvalidValue, r"attempt: expected whole numbers"),
    "annotate a number in text": (lambda b: b.annotate(["r0"], 0, reward=["1.5"]), rc.InvalidValue, r"reward: expected numbers, one for each rollout or one for all, got \['1.5'\]"),
    "annotate rewards in two axes": (lambda b: b.annotate(["r0"], 0, reward=[[1.0]]), rc.InvalidValue, r"reward: expected numbers"),
    "annotate a reward of nothing": (lambda b: b.annotate(["r0"], 0, reward=[None]), rc.InvalidValue, r"reward: expected numbers"),
    "annotate no rollouts": (lambda b: b.annotate(None, 0, reward=[1.0]), rc.InvalidValue, r"rollout_ids: expected a list of ids, got None"),
    "annotate a number of rollouts": (lambda b: b.annotate(3, 0, reward=[1.0]), rc.InvalidValue, r"rollout_ids: expected a list of ids, got 3"),
    "annotate named rewards of a number": (lambda b: b.annotate(["r0"], 0, rewards=3), rc.InvalidValue, r"rewards: expected a mapping of names.*got 3"),
    "annotate a list of named rewards of numbers": (lambda b: b.annotate(["r0"], 0, rewards=[3]), rc.InvalidValue, r"rewards: expected a mapping of names.*got \[3\]"),
    "annotate arrays of a number": (lambda b: b.annotate(["r0"], 0, arrays={"r": 5}), rc.InvalidValue, r"arrays\['r'\]: expected an array for each rollout, got 5"),
    "annotate arrays of nothing": (lambda b: b.annotate(["r0"], 0, arrays={"r": None}), rc.InvalidValue, r"arrays\['r'\]: expected an array for each rollout, got None"),
    "annotate arrays without axes": (lambda b: b.annotate(["r0"], 0, arrays={"r": [5]}), rc.InvalidValue, r"arrays\['r'\]: expected an array of numbers"),
    "annotate arrays in a list": (lambda b: b.annotate(["r0"], 0, arrays=[1]), rc.InvalidValue, r"arrays: expected a mapping of names, got \[1\]"),
    "annotate arrays in an empty list": (lambda b: b.annotate(["r0"], 0, reward=[1.0], arrays=[]), rc.InvalidValue, r"arrays: expected a mapping of names, got \[\]"),
    "annotate a column of text": (lambda b: b.annotate(["r0"], 0, arrays={"r": rc.Ragged.from_list(["text"])}), rc.InvalidValue, r"arrays\['r'\]: expected an array of numbers"),
    "annotate an array with a dot": (lambda b: b.annotate(["r0"], 0, arrays={"a.b": [np.zeros(2)]}), rc.InvalidValue, r"arrays: a name is text without a dot, got 'a.b'"),
    "annotate a mask of 257": (lambda b: b.annotate(["r0"], 0, arrays={"loss_mask": [np.array([1, 257])]}), rc.InvalidValue, r"loss_mask: expected 0 or 1"),
    "annotate a new array with logprobs of another length": (lambda b: b.annotate(["r0"], 0, arrays={"new": [np.zeros(2)], "logprobs": [np.zeros(7, np.float32)]}), rc.InvalidValue, r"logprobs has 7 entries"),
    "annotate an array that never fits": (lambda b: b.annotate(["r0"], 0, arrays={"new": [np.zeros(10**5)]}), rc.NeverPossible, r"never fit"),
    "get what is not there": (lambda b: b.get([12345]), rc.UnknownKey, r"12345"),
    "get text": (lambda b: b.get("all"), rc.InvalidValue, r"keys"),
    "count an unknown status": (lambda b: b.count("math", "DONE"), rc.InvalidValue, r"status: expected one of"),
    "count by an unknown field": (lambda b: b.count(where=rc.field("colour") == 1), rc.QueryError, r"colour"),
    "ask readiness of a number": (lambda b: b.is_ready(3), rc.InvalidValue, r"sizes"),
    "events of an unknown kind": (lambda b: b.events("died"), rc.InvalidValue, r"'died' is not one of"),
    "restore something else": (lambda b: b.restore({"a": 1}), rc.SnapshotError, r"state\(\)"),
}  # fmt: skip


def made() -> rc.RolloutBuffer:
    buffer = rc.RolloutBuffer(
        staleness=PATIENT,
        order=rc.Prioritized(),
        capacity=9,
        capacity_bytes=100_000,
        overflow="raise",
        needs=("reward",),
        tags={"score": float, "level": int},
        clock=rc.ManualClock(),
        seed=3,
    )
    put = buffer.sync.put
    put(G(group_id="leased"), version=0)
    buffer.sync.take(1, lease=60)
    put(
        G(
            R(rollout_id="r0", arrays={"ref": np.zeros(2), "routed": np.zeros(2, np.int16)}),
            group_id="a",
        ),
        version=0,
    )
    put(G(R(reward=1.0), group_id="b", extras={"score": 0.5, "level": 1}), version=0)
    put(G(R(reward=2.0), group_id="c", blobs={"image": [b"cat"]}), version=1)
    put(G(R(finish_reason="abort"), group_id="d", task="code"), version=1)
    buffer.sync.reserve(1, "code")
    return buffer


def everything(buffer: rc.RolloutBuffer) -> Any:
    stats = buffer.stats()
    stats.pop("effects")
    groups = buffer.get(np.sort(np.array(list(buffer.table.counts("key")), np.uint64)))
    content = [
        (g.group_id, g.task, g.status, g.times_used, g.priority, g.deliveries, repr(g.rollouts),
         [r.arrays.keys() for r in g], g.rewards)
        for g in groups
    ]  # fmt: skip
    return stats | {"name": None}, buffer.accounts(), buffer.counts(), content, buffer.train_step


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_call_says_why_and_changes_nothing(name: str) -> None:
    call, error, words = CALLS[name]
    buffer, twin = made(), made()
    before = everything(buffer)
    columns = list(buffer.table.columns)
    with pytest.raises(error, match=words):
        call(buffer.sync)
    assert everything(buffer) == before
    assert list(buffer.table.columns) == columns
    ids = [[g.group_id for g in b.sync.sample(1, timeout=0)] for b in (buffer, twin)]
    assert ids[0] == ids[1], "it changed the draws"


async def called(call: Callable[[Any], Any], buffer: rc.RolloutBuffer) -> None:
    result = call(buffer)
    if asyncio.iscoroutine(result):
        await asyncio.wait_for(result, 5)


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_call_of_asyncio_says_the_same(name: str) -> None:
    call, error, words = CALLS[name]

    async def main() -> None:
        buffer = made()
        before = everything(buffer)
        with pytest.raises(error, match=words):
            await called(call, buffer)
        assert everything(buffer) == before

    asyncio.run(main())


# -- groups that were changed after they were made: what was changed, words


def member(**attributes: Any) -> Callable[[rc.Group], None]:
    """Change the second rollout."""

    def change(group: rc.Group) -> None:
        for name, value in attributes.items():
            setattr(group[1], name, value)

    return change


def members(**attributes: Any) -> Callable[[rc.Group], None]:
    """Change all rollouts."""

    def change(group: rc.Group) -> None:
        for rollout in group:
            for name, value in attributes.items():
                setattr(rollout, name, value)

    return change


def shared(**attributes: Any) -> Callable[[rc.Group], None]:
    """Change the group itself."""

    def change(group: rc.Group) -> None:
        for name, value in attributes.items():
            setattr(group, name, value)

    return change


CHANGED: dict[str, tuple[Callable[[rc.Group], None], str]] = {
    "no reward in a list": (member(reward=[]), r"rollout 1: reward: expected a number or None, got \[\]"),
    "no reward in lists": (members(reward=[]), r"rollout 0: reward: expected a number or None, got \[\]"),
    "rewards in lists": (members(reward=[1.0, 2.0]), r"rollout 0: reward: expected a number"),
    "matrices of rewards": (members(reward=[[1, 2], [3, 4]]), r"rollout 0: reward: expected a number"),
    "half a dispatch version in each": (members(dispatch_version=1.5), r"rollout 0: dispatch_version: expected a whole number"),
    "a negative dispatch version in each": (members(dispatch_version=-1), r"rollout 0: dispatch_version: expected a whole number"),
    "half an attempt in each": (members(attempt=0.5), r"rollout 0: attempt: expected a whole number"),
    "named rewards of numbers": (members(rewards=5), r"rollout 0: rewards: expected a mapping"),
    "empty named rewards that are no mapping": (members(rewards=()), r"rollout 0: rewards: expected a mapping"),
    "a reward in a list": (member(reward=[1.0]), r"rollout 1: reward: expected a number"),
    "a matrix of rewards": (member(reward=[[1, 2], [3, 4]]), r"rollout 1: reward: expected a number"),
    "an array of rewards": (member(reward=np.zeros(2)), r"rollout 1: reward: expected a number"),
    "a reward of text": (member(reward="1.5"), r"rollout 1: reward: expected a number or None, got '1.5'"),
    "half an attempt": (member(attempt=1.5), r"rollout 1: attempt: expected a whole number"),
    "an attempt of 1.0": (member(attempt=1.0), r"rollout 1: attempt: expected a whole number"),
    "an attempt of 0.0": (member(attempt=0.0), r"rollout 1: attempt: expected a whole number"),
    "an attempt of False": (member(attempt=False), r"rollout 1: attempt: expected a whole number"),
    "a negative attempt": (member(attempt=-1), r"rollout 1: attempt: expected a whole number of 0 or more, got -1"),
    "an attempt that is no number": (member(attempt=NAN), r"rollout 1: attempt: expected a whole number"),
    "an attempt of text": (member(attempt="0"), r"rollout 1: attempt: expected a whole number"),
    "no attempt": (member(attempt=None), r"rollout 1: attempt: expected a whole number"),
    "a huge attempt": (member(attempt=2**40), r"rollout 1: attempt: expected at most 2147483647, got 1099511627776"),
    "half a segment": (member(segment=1.5), r"rollout 1: segment: expected a whole number"),
    "a negative segment": (member(segment=-1), r"rollout 1: segment: expected a whole number"),
    "a segment that is no number": (member(segment=NAN), r"rollout 1: segment: expected a whole number"),
    "a huge segment": (member(segment=2**31), r"rollout 1: segment: expected at most"),
    "half a dispatch version": (member(dispatch_version=1.5), r"rollout 1: dispatch_version: expected a whole number"),
    "a negative dispatch version": (member(dispatch_version=-1), r"rollout 1: dispatch_version: expected a whole number"),
    "a huge dispatch version": (member(dispatch_version=2**80), r"rollout 1: dispatch_version: expected at most"),
    "named rewards of a number": (member(rewards=5), r"rollout 1: rewards: expected a mapping of names, got 5"),
    "named rewards in a list": (member(rewards=[1.0]), r"rollout 1: rewards: expected a mapping"),
    "extras of a number": (member(extras=5), r"rollout 1: extras: expected a mapping of names, got 5"),
    "extras of 0": (member(extras=0), r"rollout 1: extras: expected a mapping"),
    "extras in a list": (member(extras=[]), r"rollout 1: extras: expected a mapping"),
    "arrays of a number": (member(arrays=5), r"rollout 1: arrays: expected a mapping of names, got 5"),
    "arrays in a list": (member(arrays=[1]), r"rollout 1: arrays: expected a mapping"),
    "an array of text": (member(arrays={"note": ["a"]}), r"rollout 1: arrays\['note'\]: expected an array of numbers"),
    "an array without axes": (member(arrays={"score": 0.5}), r"rollout 1: arrays\['score'\]"),
    "an array with a dot": (member(arrays={"a.b": np.zeros(2)}), r"rollout 1: arrays: a name is text without a dot"),
    "blobs of a number": (member(blobs=5), r"rollout 1: blobs: expected a mapping of names, got 5"),
    "blobs of numbers": (member(blobs={"a": [5]}), r"rollout 1: blobs\['a'\]: expected bytes, got int"),
    "blobs that are no list": (member(blobs={"a": 5}), r"rollout 1: blobs\['a'\]: expected a list of bytes, got 5"),
    "an error of a number": (member(error=5), r"rollout 1: error: expected text, got 5"),
    "a finish reason of a number": (member(finish_reason=5), r"rollout 1: finish_reason: expected text, got 5"),
    "a finish reason in a list": (member(finish_reason=["stop"]), r"rollout 1: finish_reason: expected text"),
    "an id of a number": (member(rollout_id=5), r"rollout 1: rollout_id: expected text, got 5"),
    "no id": (member(rollout_id=None), r"rollout 1: rollout_id: expected text"),
    "an empty id": (member(rollout_id=""), r"rollout 1: rollout_id: expected text that is not empty"),
    "text that is no UTF-8": (member(rollout_id="\ud800"), r"group 'new': .*surrogates"),
    "no tokens": (member(response_ids=None), r"rollout 1: response_ids: expected a flat list"),
    "versions in two axes": (member(versions=np.zeros((2, 2), np.int32)), r"rollout 1: versions: expected a flat list"),
    "a prompt in two axes": (member(prompt_ids=np.zeros((2, 2), np.int32)), r"rollout 1: prompt_ids: expected a flat list"),
    "a task of a number": (shared(task=5), r"task: expected text, got 5"),
    "a task in a list": (shared(task=["math"]), r"task: expected text"),
    "no task": (shared(task=None), r"task: expected text, got None"),
    "an empty task": (shared(task=""), r"task: expected text, got ''"),
    "a group's id of a number": (shared(group_id=5), r"group_id: expected text, got 5"),
    "a group's id in a list": (shared(group_id=["a"]), r"group_id: expected text"),
    "an empty group's id": (shared(group_id=""), r"group_id: expected text, got ''"),
    "a group's extras in a list": (shared(extras=[1]), r"extras: expected a mapping of names, got \[1\]"),
    "a group's extras of 0": (shared(extras=0), r"extras: expected a mapping of names, got 0"),
    "a group's blobs of numbers": (shared(blobs={"a": [5]}), r"blobs\['a'\]: expected bytes, got int"),
    "a group's blobs of a number": (shared(blobs=5), r"blobs: expected a mapping of names, got 5"),
    "a group's blobs of 0": (shared(blobs=0), r"blobs: expected a mapping of names, got 0"),
    "a group's blobs that are no list": (shared(blobs={"a": 5}), r"blobs\['a'\]: expected a list of bytes, got 5"),
    "no prompt": (shared(prompt_ids=None), r"prompt_ids: expected a flat array of int32, got None"),
    "numbers for rollouts": (shared(rollouts=[1]), r"rollouts: expected rc.Rollout objects, got 1"),
    "a number for rollouts": (shared(rollouts=5), r"rollouts: expected a list of them, got 5"),
    "text for rollouts": (shared(rollouts="abc"), r"rollouts: expected a list of them, got 'abc'"),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGED)
@pytest.mark.parametrize("make", [lambda: rc.RolloutBuffer(staleness=PATIENT, tags={"score": float}), made], ids=["direct", "general"])  # fmt: skip
def test_a_group_that_was_changed_for_the_worse_is_refused(
    name: str, make: Callable[[], rc.RolloutBuffer]
) -> None:
    change, words = CHANGED[name]
    buffer = make()
    before, columns = everything(buffer), list(buffer.table.columns)
    group = G(R(reward=1.0), R(reward=2.0), group_id="new")
    change(group)
    with pytest.raises(rc.InvalidValue, match=words):
        buffer.sync.put(group, version=1)
    assert everything(buffer) == before
    assert list(buffer.table.columns) == columns
    key = buffer.sync.put(G(R(reward=1.0), R(reward=2.0), group_id="new"), version=1)
    assert buffer.get([key])[0].rewards == [1.0, 2.0]


def test_what_was_changed_to_something_of_the_same_meaning_is_converted() -> None:
    for make in (lambda: rc.RolloutBuffer(staleness=PATIENT), made):
        group = G(R(), R())
        group[0].reward, group[1].reward = np.float32(0.5), 2  # type: ignore[assignment]
        group[1].attempt, group[1].dispatch_version = np.int64(3), np.int32(7)  # type: ignore[assignment]
        group[0].extras = group[0].blobs = group[0].arrays = None  # type: ignore[assignment]
        group.extras = group.blobs = None  # type: ignore[assignment]
        group.rollouts = tuple(group.rollouts)  # type: ignore[assignment]
        buffer = make()
        (stored,) = buffer.get([buffer.sync.put(group, version=9)])
        assert stored.rewards == [0.5, 2.0]
        assert [r.attempt for r in stored] == [0, 3]
        assert [r.dispatch_version for r in stored] == [9, 7]
        assert stored.extras == stored[0].extras == stored[0].arrays == {}


def test_a_task_that_is_none_has_no_staleness_either() -> None:
    buffer = rc.RolloutBuffer(staleness={"math": PATIENT})
    group = G()
    group.task = ["math"]  # type: ignore[assignment]
    with pytest.raises(rc.InvalidValue, match=r"none for task \['math'\]; the mapping has math"):
        buffer.sync.put(group)
    assert len(buffer) == 0
