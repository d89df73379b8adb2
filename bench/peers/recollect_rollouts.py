"""Recollect's `RolloutBuffer`, through its public names only."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

import recollect as rc
from bench.adapter import Adapter, Call, Unsupported
from bench.rollouts import TOKEN_COLUMNS, Columns, Group, Rollouts, make_groups
from bench.workloads import w4, w4_growth, w4_lists
from bench.workloads.base import Operation, Workload

TASK = "math"


class RecollectRollouts(Rollouts):
    """A queue, and a second buffer for reuse: how often a group is used is fixed when it is made.

    A full buffer drops its stalest group. The version of a rollout is that at its dispatch, one
    number, as the peers have it; one line stamps every token with it.
    """

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload)
        self.queue = self._buffer()
        self.reused = self._buffer(order=rc.Uniform(), max_uses=0)
        self.stamped: Any = None

    def note(self) -> str:
        """What is timed and what is not."""
        return (
            "Recollect: `buffer.sync`, order `StalestFirst` for the queue and `Uniform` for reuse; "
            "making `Group` and `Rollout` objects is timed in the line that says so; batches have "
            "statuses, ids, keys and finish reasons too"
        )

    def convert(self, group: Group, number: int) -> Any:
        """A `Group` with ids of its own."""
        return _group(group, number)

    def put(self, group: Any) -> object:
        """Into the queue."""
        return self.queue.put(group)

    def take(self, n: int) -> Columns:
        """`take_batch`, which removes the groups."""
        return _columns(self.queue.take_batch({TASK: n}).batch)

    def sample(self, n: int) -> Columns:
        """`sample` from the buffer for reuse, which is filled when it is first asked for."""
        while len(self.reused) < self.capacity:
            self.reused.put(self.make())
        return _columns(self.reused.sample(n).batch)

    def other(self, operation: Operation) -> Call:
        """Puts that evict nothing; objects made inside the clock; versions for every token."""
        if operation == w4.PUT_WITH_ROOM:
            return Call(lambda: self.put(self._next), operation.size, before=self._make_room)
        if operation == w4.MAKE_AND_PUT:
            return Call(lambda: self.put(self.make()), operation.size)
        if operation != w4.TAKE_STAMPED:
            return super().other(operation)
        if self.stamped is None:
            self.stamped = self._buffer()
            self._put_stamped(self.capacity)
        buffer, n = self.stamped, operation.size

        def take() -> Columns:
            batch = buffer.take_batch({TASK: n}).batch
            return {**_columns(batch), "versions": batch["versions"].values}

        return Call(take, n * w4.GROUP, before=lambda: self._put_stamped(n))

    def close(self) -> None:
        """Close the buffers."""
        for buffer in (self.queue, self.reused, self.stamped):
            if buffer is not None:
                buffer.close()

    def _make_room(self) -> None:
        if len(self.queue) >= self.capacity:
            self.queue.take(w4.BATCH)
        self._make_next()

    def _buffer(self, **options: Any) -> Any:
        options = {"capacity": self.capacity, "overflow": "drop_stalest", "seed": 0, **options}
        return rc.RolloutBuffer(**options).sync

    def _put_stamped(self, n: int) -> None:
        pool = make_groups()
        for number in itertools.islice(self._numbers, n):
            group = _group(pool[number % len(pool)], None)
            self.stamped.put(group, version=number)


class RecollectChurn(RecollectRollouts):
    """The queue alone, after ten times its capacity went through it."""

    def fill(self) -> None:
        """What overflows is the stalest."""
        self.churn()


class RecollectRolloutGrowth(Adapter):
    """The same call over buffers of few and of many groups, of a few tokens each."""

    rehearse = False
    TASKS = ("math", "code", "games", "chat")

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload)
        self.buffers: dict[int, Any] = {}
        self.versions = itertools.count()

    def fill(self) -> None:
        """Nothing yet: a buffer is made when its size is first asked for."""

    def prepare(self, operation: Operation) -> Call:
        """One call over a buffer of `operation.size` groups."""
        buffer = self._filled(operation.size)
        if operation.verb == w4_growth.COUNT:
            return Call(lambda: buffer.count(self.TASKS[0], rc.Status.COMPLETED), 1)
        if operation.verb == w4_growth.ADVANCE:
            steps = itertools.count(buffer.train_step + 1)
            return Call(lambda: buffer.advance(next(steps)), 1)
        sizes = {self.TASKS[0]: w4.BATCH}
        return Call(
            lambda: _columns(buffer.take_batch(sizes).batch),
            1,
            before=lambda: self._put(buffer, self.TASKS[0], w4.BATCH),
        )

    def close(self) -> None:
        """Close the buffers."""
        for buffer in self.buffers.values():
            buffer.close()

    def _filled(self, groups: int) -> Any:
        if groups not in self.buffers:
            never = rc.Staleness(max_staleness=10**9)
            self.buffers[groups] = rc.RolloutBuffer(staleness=never, seed=0).sync
            for task in self.TASKS:
                self._put(self.buffers[groups], task, groups // len(self.TASKS))
        return self.buffers[groups]

    def _put(self, buffer: Any, task: str, n: int) -> None:
        for version in itertools.islice(self.versions, n):
            rollouts = [
                rc.Rollout(
                    response_ids=_FEW_TOKENS,
                    logprobs=_FEW_LOGPROBS,
                    loss_mask=_FEW_MASKS,
                    dispatch_version=version,
                    reward=0.5,
                    finish_reason="stop",
                )
                for _ in range(w4.GROUP)
            ]
            buffer.put(rc.Group(rollouts, task=task))


class RecollectBesideLists(Adapter):
    """The operations of W4 lists; every token is stamped with a version, as they are there."""

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload)
        self.buffers: dict[int, Any] = {}
        self.numbers = itertools.count()

    def fill(self) -> None:
        """The buffer of all rollouts, whose memory is measured."""
        self._filled(self.workload.rows // w4.GROUP)

    def prepare(self, operation: Operation) -> Call:
        """One call over a buffer of `operation.size` groups."""
        n = operation.size
        buffer = self._filled(n)
        if operation.verb == w4_lists.COUNT:
            return Call(lambda: buffer.count(TASK, rc.Status.COMPLETED), 1)
        if operation.verb == w4_lists.REFRESH:
            steps = itertools.count(buffer.train_step + 1)
            return Call(lambda: buffer.advance(next(steps)), 1)
        if operation.verb == w4_lists.PUT:
            made: list[tuple[Any, int]] = []

            def make() -> None:
                made[:] = [self._group()]

            return Call(lambda: buffer.put(made[0][0], version=made[0][1]), 1, before=make)
        if operation.verb != w4_lists.TAKE:
            raise Unsupported(f"no operation {operation.name!r}")
        sizes = {TASK: w4.BATCH}
        return Call(
            lambda: _columns(buffer.take_batch(sizes).batch),
            1,
            before=lambda: self._put(buffer, w4.BATCH),
        )

    def close(self) -> None:
        """Close the buffers."""
        for buffer in self.buffers.values():
            buffer.close()

    def _filled(self, groups: int) -> Any:
        if groups not in self.buffers:
            self.buffers[groups] = rc.RolloutBuffer(
                staleness=rc.Staleness(max_staleness=10**9),
                capacity=groups,
                overflow="drop_stalest",
                seed=0,
            ).sync
        self._put(self.buffers[groups], groups - len(self.buffers[groups]))
        return self.buffers[groups]

    def _put(self, buffer: Any, n: int) -> None:
        for _ in range(n):
            group, version = self._group()
            buffer.put(group, version=version)

    def _group(self) -> tuple[Any, int]:
        number = next(self.numbers)
        pool = make_groups()
        return _group(pool[number % len(pool)], None), number


_FEW_TOKENS = np.arange(4, dtype=np.int32)
_FEW_LOGPROBS = np.zeros(4, np.float32)
_FEW_MASKS = np.ones(4, np.int8)


def _group(group: Group, version: int | None) -> Any:
    rollouts = [
        rc.Rollout(
            response_ids=rollout.response_ids,
            logprobs=rollout.logprobs,
            loss_mask=rollout.loss_mask,
            dispatch_version=version,
            reward=rollout.reward,
            finish_reason="stop",
        )
        for rollout in group
    ]
    return rc.Group(rollouts, task=TASK)


def _columns(batch: Any) -> Columns:
    tokens = {name: batch[name].values for name in TOKEN_COLUMNS}
    return {
        **tokens,
        "lengths": batch["response_ids"].lengths,
        "reward": batch["reward"],
        "version": batch["dispatch_version"],
        "keys": batch.info.keys,
    }
