"""A reconstruction, not a peer: rollouts as XTuner keeps them, written by us from a description.

Groups in a dict, their tokens in Python lists. A count looks at every group, a take looks for the
groups it may take, and a refresh of staleness walks over the versions of all tokens.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from bench.adapter import Adapter, Call, Unsupported
from bench.rollouts import TOKEN_COLUMNS, Columns, make_groups
from bench.workloads import w4, w4_lists
from bench.workloads.base import Operation, Workload

DISTRIBUTIONS = ("numpy",)
TASK, COMPLETED, EXPIRED = "math", "completed", "expired"
NEVER = 10**9
make_groups()  # now, so that the stream does not count as memory of the store
DTYPES = {"response_ids": np.int32, "logprobs": np.float32, "loss_mask": np.int8}


class Store:
    """Groups by key."""

    def __init__(self) -> None:
        self.groups: dict[int, dict[str, Any]] = {}

    def put(self, number: int, group: dict[str, Any]) -> None:
        """By reference."""
        self.groups[number] = group

    def count(self, task: str, status: str) -> int:
        """One scan."""
        return sum(
            1
            for group in self.groups.values()
            if group["task"] == task and group["status"] == status
        )

    def take(self, n: int, task: str, status: str) -> list[dict[str, Any]]:
        """One scan, and the first n of what it finds."""
        found = [
            key
            for key, group in self.groups.items()
            if group["task"] == task and group["status"] == status
        ]
        return [self.groups.pop(key) for key in found[:n]]

    def refresh(self, train_step: int) -> None:
        """The lag of every rollout from the versions of its tokens."""
        for group in self.groups.values():
            lags = [train_step - min(one["versions"]) - 1 for one in group["rollouts"]]
            group["lag"] = max(lags)
            if group["lag"] >= NEVER:
                group["status"] = EXPIRED


class Lists(Adapter):
    """The operations over stores of two sizes."""

    rehearse = False

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload)
        self.stores: dict[int, Store] = {}
        self.numbers = itertools.count()

    def note(self) -> str:
        """What it is."""
        return (
            "XTuner's way is a reconstruction that we wrote from a description, not XTuner's code: "
            "a dict of groups by reference, tokens in Python lists"
        )

    def fill(self) -> None:
        """The store of all rollouts, whose memory is measured."""
        self._filled(self.workload.rows // w4.GROUP)

    def prepare(self, operation: Operation) -> Call:
        """One call over a store of `operation.size` groups."""
        n = operation.size
        store = self._filled(n)
        if operation.verb == w4_lists.COUNT:
            return Call(lambda: store.count(TASK, COMPLETED), 1)
        if operation.verb == w4_lists.REFRESH:
            steps = itertools.count(1)
            return Call(lambda: store.refresh(next(steps)), 1)
        if operation.verb == w4_lists.PUT:
            ready = self._ready()

            def make_room() -> None:
                store.groups.pop(next(iter(store.groups)))

            return Call(lambda: store.put(next(self.numbers), next(ready)), 1, before=make_room)
        if operation.verb == w4_lists.TAKE:
            before = self._putting_back(store, n)
            return Call(lambda: _arrays(store.take(w4.BATCH, TASK, COMPLETED)), 1, before)
        if operation.verb == w4_lists.TAKE_LISTS:
            before = self._putting_back(store, n)
            return Call(lambda: store.take(w4.BATCH, TASK, COMPLETED), 1, before)
        raise Unsupported(f"no operation {operation.name!r}")

    def _ready(self) -> Iterator[dict[str, Any]]:
        """A few groups over and over: to make lists takes much longer than to store them."""
        return itertools.cycle([self._group()[1] for _ in range(2 * w4.BATCH)])

    def _putting_back(self, store: Store, n: int) -> Callable[[], None]:
        ready = self._ready()

        def put_back() -> None:
            while len(store.groups) < n:
                store.put(next(self.numbers), next(ready))

        return put_back

    def _filled(self, groups: int) -> Store:
        if groups not in self.stores:
            self.stores[groups] = Store()
            for _ in range(groups):
                self.stores[groups].put(*self._group())
        return self.stores[groups]

    def _group(self) -> tuple[int, dict[str, Any]]:
        number = next(self.numbers)
        pool = make_groups()
        rollouts = [
            {
                **{name: getattr(one, name).tolist() for name in TOKEN_COLUMNS},
                "versions": [number] * len(one.response_ids),
                "reward": one.reward,
            }
            for one in pool[number % len(pool)]
        ]
        return number, {"task": TASK, "status": COMPLETED, "lag": 0, "rollouts": rollouts}


def _arrays(groups: list[dict[str, Any]]) -> Columns:
    """The ragged batch that the others return."""
    rollouts = [one for group in groups for one in group["rollouts"]]
    tokens = {
        name: np.concatenate([np.array(one[name], dtype) for one in rollouts])
        for name, dtype in DTYPES.items()
    }
    return {
        **tokens,
        "lengths": np.array([len(one["response_ids"]) for one in rollouts]),
        "reward": np.array([one["reward"] for one in rollouts], np.float32),
        "version": np.array([min(one["versions"]) for one in rollouts], np.int32),
    }


ADAPTERS = {"rollout lists": Lists}
