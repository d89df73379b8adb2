"""A Ray actor that holds a deque of groups: how training loops on Ray often keep their rollouts."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import numpy as np
import ray

from bench.rollouts import TOKEN_COLUMNS, Columns, Group, Rollouts
from bench.workloads import w4
from bench.workloads.base import Workload

DISTRIBUTIONS = ("ray", "numpy")
NAMES = (*TOKEN_COLUMNS, "lengths", "reward", "version")


@ray.remote
class Holder:
    """A deque; batches are collated in the actor, so that one array per column is sent."""

    def __init__(self, capacity: int) -> None:
        self.groups: deque[Columns] = deque(maxlen=capacity)

    def put(self, group: Columns) -> None:
        """Append; a full deque lets its oldest group go."""
        self.groups.append(group)

    def take(self, n: int) -> Columns:
        """The first n."""
        return _joined([self.groups.popleft() for _ in range(n)])

    def sample(self, n: int) -> Columns:
        """Some n."""
        return _joined(random.sample(self.groups, n))


class RayRollouts(Rollouts):
    """One driver, one actor, one call at a time."""

    rehearse = False  # nothing compiles, and starting Ray takes seconds

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload)
        ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
        self.actor = Holder.remote(self.capacity)  # type: ignore[attr-defined]

    def note(self) -> str:
        """How it is used."""
        return (
            "Ray actor: a deque in an actor on this machine; the columns of a group are joined "
            "when it is put, those of a batch in the actor (sending lists of arrays was slower)"
        )

    def convert(self, group: Group, number: int) -> Any:
        """The group as it is; `put` joins its columns."""
        return group, number

    def put(self, group: Any) -> object:
        """Send the joined columns and wait."""
        rollouts, version = group
        columns = {
            name: np.concatenate([getattr(one, name) for one in rollouts]) for name in TOKEN_COLUMNS
        }
        columns["lengths"] = np.array([len(one.response_ids) for one in rollouts], np.int32)
        columns["reward"] = np.array([one.reward for one in rollouts], np.float32)
        columns["version"] = np.full(w4.GROUP, version, np.int32)
        return ray.get(self.actor.put.remote(columns))

    def take(self, n: int) -> Columns:
        """A batch that the actor collated."""
        columns: Columns = ray.get(self.actor.take.remote(n))
        return columns

    def sample(self, n: int) -> Columns:
        """A batch that the actor collated."""
        columns: Columns = ray.get(self.actor.sample.remote(n))
        return columns

    def close(self) -> None:
        """End Ray's processes."""
        ray.shutdown()


def _joined(groups: list[Columns]) -> Columns:
    return {name: np.concatenate([group[name] for group in groups]) for name in NAMES}


ADAPTERS = {"rollouts": RayRollouts}
