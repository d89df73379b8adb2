"""Life cycles of a rollout buffer: put, take, lease, reuse, expire, retry, annotate."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from recollect.base.clock import ManualClock
from recollect.errors import BufferFull, InvalidValue, LeaseExpired, SnapshotError, TableClosed
from recollect.rollouts.buffer import RolloutBuffer
from recollect.rollouts.group import Group
from recollect.rollouts.rollout import Rollout, Status
from recollect.rollouts.staleness import Staleness
from recollect.rules.query import field, parse
from recollect.rules.selectors import Fifo, Prioritized, StalestFirst
from recollect.testing.base import LONG, StorageTests
from recollect.testing.cases import HOSTILE, check_frequencies

PATIENT = Staleness(max_staleness=10_000)


def rollout(tokens: int = 2, reward: float | None = 1.0, **options: Any) -> Rollout:
    options = {"finish_reason": "stop", "logprobs": [-0.5] * tokens, **options}
    return Rollout([1], list(range(tokens)), reward=reward, **options)


def group(name: str, *rollouts: Rollout, task: str = "math", **options: Any) -> Group:
    return Group(list(rollouts) or [rollout(), rollout(3)], task=task, group_id=name, **options)


def names(groups: Any) -> list[str]:
    return [one.group_id for one in groups]


class RolloutTests(StorageTests):
    """Groups of responses on a storage."""

    def buffer(self, groups: str = "", **options: Any) -> Any:
        """A blocking buffer with a group for each letter, version 0."""
        options = {"staleness": PATIENT, "order": Fifo(), **options}
        buffer = RolloutBuffer(storage=self.new_storage(), **options).sync
        for name in groups:
            buffer.put(group(name), version=0)
        return buffer

    def test_a_group_comes_out_as_it_was_put(self) -> None:
        buffer = self.buffer()
        first = Rollout(
            response_ids=[7, 8, 9, 5],
            logprobs=[-0.1, -0.2, np.nan, -0.3],
            versions=[3, 3, -1, 4],
            loss_mask=[1, 1, 0, 1],
            finish_reason="stop",
            reward=1.0,
            rewards={"correct": 1.0, "format": 0.0},
            arrays={"ref_logprobs": np.array([-0.2, -0.2, 0, -0.4], np.float32)},
            extras={"temperature": 0.7},
            blobs={"image": [b"\x00'; --"]},
        )
        put = Group(
            [first, Rollout(response_ids=[7], finish_reason="length")],
            task=HOSTILE[0],
            prompt_ids=[1, 2, 3],
            prompt=[{"role": "user", "content": HOSTILE[1]}],
            ground_truth="42",
            group_id=HOSTILE[2],
            blobs={"sound": [b"..."]},
        )
        key = buffer.put(put, version=4)
        assert buffer.find(HOSTILE[2]) == key
        got = buffer.get([key])[0]
        assert (got.group_id, got.task, got.ground_truth) == (HOSTILE[2], HOSTILE[0], "42")
        assert got.prompt == put.prompt
        assert got.blobs == put.blobs
        assert got[0].response_ids.tolist() == [7, 8, 9, 5]
        logprobs = np.array([-0.1, -0.2, np.nan, -0.3], np.float32)
        assert np.array_equal(got[0].logprobs, logprobs, equal_nan=True)
        assert got[0].versions.tolist() == [3, 3, -1, 4]
        assert got[0].rewards == {"correct": 1.0, "format": 0.0}
        assert got[0].arrays["ref_logprobs"].tolist() == first.arrays["ref_logprobs"].tolist()
        assert got[0].extras == {"temperature": 0.7}
        assert got[0].blobs == {"image": [b"\x00'; --"]}
        assert got[1].versions.tolist() == [4]
        assert got[1].logprobs is None
        assert names(buffer.take(1, HOSTILE[0])) == [HOSTILE[2]]
        assert len(buffer) == 0

    def test_put_replaces_a_group_of_the_same_id(self) -> None:
        buffer = self.buffer("ab")
        buffer.put(group("a", rollout(5)), version=1)
        assert len(buffer) == 2
        taken = buffer.take(2)
        assert names(taken) == ["b", "a"]
        assert len(taken[1]) == 1

    def test_take_batch_is_all_or_none_over_tasks(self) -> None:
        buffer = self.buffer("abc")
        with pytest.raises(TimeoutError, match="code needs 1 group, has 0"):
            buffer.take_batch({"math": 2, "code": 1}, timeout=0)
        assert buffer.count("math") == 3
        got: list[Any] = []
        thread = threading.Thread(
            target=lambda: got.append(buffer.take_batch({"math": 2, "code": 1}, timeout=LONG))
        )
        thread.start()
        buffer.put(group("d", task="code"), version=0)
        thread.join(LONG)
        assert not thread.is_alive(), "the trainer was not woken"
        assert {task: names(groups) for task, groups in got[0].groups.items()} == {
            "math": ["a", "b"],
            "code": ["d"],
        }
        assert buffer.counts() == {("math", Status.COMPLETED): 1}

    def test_leases_are_confirmed_given_back_and_lapse(self) -> None:
        clock = ManualClock(0.0)
        buffer = self.buffer("abcd", clock=clock)
        first = buffer.take_batch({"math": 2}, lease=60, owner="one")
        second = buffer.take_batch({"math": 1}, lease=10, owner="two")
        assert (buffer.count("math"), len(buffer)) == (1, 4)
        clock.advance(11)
        with pytest.raises(LeaseExpired):
            buffer.confirm(second.lease)
        assert buffer.give_back(first.lease) == 2
        again = buffer.take_batch({"math": 3}, lease=True)
        assert names(again.groups["math"]) == ["a", "b", "c"]
        assert [one.redelivered for one in again.groups["math"]] == [True] * 3
        assert again.info.deliveries.tolist() == [2, 2, 2]
        assert buffer.confirm(again.lease) == 3
        assert names(buffer.take(9)) == ["d"]
        assert buffer.accounts()["math"]["left"] == {"trained": 3, "taken": 1}

    def test_the_stalest_group_comes_first(self) -> None:
        buffer = self.buffer(order=StalestFirst())
        for name, version in zip("abcd", (4, 2, 3, 2), strict=True):
            buffer.put(group(name), version=version)
        assert names(buffer.take(4)) == ["b", "d", "c", "a"]

    def test_reuse_counts_and_ends(self) -> None:
        buffer = self.buffer("abcd", max_uses=2)
        walked = []
        for _ in range(4):
            walked.append((names(buffer.sample(2)), len(buffer)))
        assert walked == [(["a", "b"], 4), (["c", "d"], 4), (["a", "b"], 2), (["c", "d"], 0)]

    def test_reuse_by_priority(self) -> None:
        buffer = self.buffer("abc", order=Prioritized(alpha=1.0), max_uses=0, seed=3)
        keys = [buffer.find(name) for name in "abc"]
        assert buffer.update(keys, priority=[1.0, 3.0, 0.0]).tolist() == [True] * 3
        drawn = [buffer.sample(1)[0].group_id for _ in range(self.draws // 40)]
        check_frequencies(["abc".index(name) for name in drawn], [1.0, 3.0, 0.0])

    def test_a_group_that_is_too_old_is_discarded(self) -> None:
        rule = Staleness(max_staleness=1, on_expire="discard")
        buffer = self.buffer(staleness=rule)
        for name, version in (("old", 0), ("new", 5)):
            buffer.put(group(name), version=version)
        buffer.advance(3)
        assert names(buffer.take(9)) == ["new"]
        assert len(buffer) == 0
        buffer.advance(9)
        assert buffer.put(group("late"), version=0) is None

    def test_a_group_that_is_too_old_is_tried_again(self) -> None:
        buffer = self.buffer(staleness=Staleness(max_staleness=1, max_retries=3))
        buffer.put(group("a", rollout(3), rollout(4)), version=0)
        lease = buffer.take_batch({"math": 1}, lease=True)
        buffer.advance(5)
        assert buffer.count("math", "EXPIRED") == 0, "what is leased does not expire"
        buffer.give_back(lease.lease)
        assert buffer.count("math", "COMPLETED") == 0
        assert buffer.count("math", "EXPIRED") == 1
        retry = buffer.take(1, "math", "EXPIRED")[0]
        assert [one.attempt for one in retry] == [1, 1]
        assert [one.num_tokens for one in retry] == [0, 0]
        buffer.put(group("a", rollout(2, attempt=1), rollout(2, attempt=1)), version=5)
        assert buffer.count("math", "COMPLETED") == 1

    def test_stages_claim_and_annotate(self) -> None:
        clock = ManualClock(0.0)
        buffer = self.buffer(needs=("reward", "ref"), clock=clock)
        for name in "ab":
            buffer.put(group(name, rollout(2, None), rollout(3, None)), version=0)
        assert buffer.count("math", "COMPLETED") == 2
        assert not buffer.is_ready({"math": 1})
        claimed = buffer.claim(8, lacks="reward", lease=60)
        assert names(claimed) == ["a", "b"]
        ids = [one.rollout_id for part in claimed for one in part]
        before = buffer.nbytes
        assert buffer.annotate(ids, [0] * 4, reward=[1.0, 0.0, 0.5, 0.25]).tolist() == [True] * 4
        assert buffer.nbytes > before
        assert not buffer.is_ready({"math": 1})
        cells = [np.full(one.num_tokens, -0.25, np.float32) for part in claimed for one in part]
        wrote = buffer.annotate(
            [*ids[:2], "gone"], [0, 0, 0], arrays={"ref": [*cells[:2], cells[0]]}
        )
        assert wrote.tolist() == [True, True, False]
        assert buffer.is_ready({"math": 1})
        taken = buffer.take_batch({"math": 1})
        assert names(taken.groups["math"]) == ["a"]
        assert taken.batch["reward"].tolist() == [1.0, 0.0]
        assert taken.batch["arrays.ref"].lengths.tolist() == [2, 3]

    def test_tags_with_predicates(self) -> None:
        buffer = self.buffer(tags={"score": float, "source": str})
        for place, score in enumerate([0.1, 0.9, 0.85, 0.5]):
            extras = {"score": score, "source": HOSTILE[place]}
            buffer.put(group("abcd"[place], extras=extras), version=0)
        good = field("score") > 0.8
        assert buffer.count("math", where=good) == 2
        assert buffer.is_ready({"math": 2}, where=good)
        assert names(buffer.take(9, where=field("source") == HOSTILE[3])) == ["d"]
        taken = buffer.take_batch({"math": 2}, where=good, lease=True)
        assert names(taken.groups["math"]) == ["b", "c"]
        buffer.give_back(taken.lease)
        buffer.update([buffer.find("b")], score=0.0)
        assert names(buffer.take(9, where=parse("score > 0.8"))) == ["c"]
        assert len(buffer) == 2

    def test_room_is_kept(self) -> None:
        buffer = self.buffer("ab", capacity=2, overflow="drop_stalest", order=StalestFirst())
        buffer.put(group("c"), version=3)
        assert sorted(names(buffer.get(sorted(buffer.find(n) for n in "bc")))) == ["b", "c"]
        assert buffer.find("a") is None
        newest = self.buffer("ab", capacity=2, overflow="drop_newest")
        assert newest.put(group("c"), version=1) is None
        refusing = self.buffer("ab", capacity=2, overflow="raise")
        with pytest.raises(BufferFull):
            refusing.put(group("c"), version=1)
        assert len(newest) == len(refusing) == 2

    def test_the_archive_keeps_what_was_trained(self) -> None:
        buffer = self.buffer("abc", archive=True)
        taken = buffer.take_batch({"math": 2}, train_step=4, lease=True)
        buffer.confirm(taken.lease)
        assert names(buffer.trained_at(4)) == ["a", "b"]
        assert buffer.count("math", "ARCHIVED") == 2
        assert names(buffer.take(9)) == ["c"]

    def test_events_tell_what_left_and_why(self) -> None:
        buffer = self.buffer(staleness=Staleness(max_staleness=1, on_expire="discard"))
        events = buffer.events("discarded", "confirmed", "expired")
        for name in "abc":
            buffer.put(group(name), version=0)
        buffer.confirm(buffer.take_batch({"math": 1}, lease=True).lease)
        buffer.discard([buffer.find("b")], "boring")
        buffer.advance(7)
        told: list[Any] = []
        while len(told) < 3:
            told += next(events)
        assert [(e.kind, e.reason, e.group_id, len(e.group)) for e in told] == [
            ("confirmed", "trained", "a", 2),
            ("discarded", "boring", "b", 2),
            ("expired", "expired", "c", 2),
        ]

    def test_closing_wakes_whoever_waits(self) -> None:
        buffer = self.buffer()
        errors: list[BaseException] = []

        def wait() -> None:
            try:
                buffer.take_batch({"math": 1}, timeout=LONG)
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        buffer.close()
        thread.join(LONG)
        assert [type(error) for error in errors] == [TableClosed]

    def test_a_buffer_saves_it_or_says_that_it_cannot(self) -> None:
        buffer = self.buffer("ab", name="groups")
        path = self.folder / "buffer"
        if not self.can_save:
            with pytest.raises((SnapshotError, InvalidValue), match="groups"):
                buffer.save(path)
            assert len(buffer) == 2
            return
        buffer.save(path)
        other = self.buffer(name="groups")
        other.load(path)
        assert names(other.take(9)) == ["a", "b"]
