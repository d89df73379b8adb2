"""TransferQueue: samples in storage units behind a controller, all of them actors of Ray."""

from __future__ import annotations

import os
import random
from collections import deque
from typing import Any

import numpy as np

# Its default of 8 makes it log a warning at every call on a machine with fewer cores.
os.environ["TQ_NUM_THREADS"] = str(min(8, os.cpu_count() or 1))

import ray
import torch
import transfer_queue
from tensordict import TensorDict
from transfer_queue import BatchMeta

from bench.adapter import Call
from bench.rollouts import TOKEN_COLUMNS, Columns, Group, Rollouts
from bench.workloads import w4
from bench.workloads.base import Operation, Workload

DISTRIBUTIONS = ("TransferQueue", "ray", "torch", "tensordict", "numpy")
FIELDS = [*TOKEN_COLUMNS, "reward", "version"]
QUEUE, REUSED = "queue", "reused"


class TransferQueueRollouts(Rollouts):
    """The client's own calls, its default `SimpleStorage` and its default order.

    A sample is a rollout, columns of tokens are jagged tensors, which is how it collates.
    """

    rehearse = False  # nothing compiles, and starting Ray takes seconds

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload)
        ray.init(num_cpus=4, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
        transfer_queue.init()
        self.client = transfer_queue.get_client()
        self.stored: deque[Any] = deque()  # what `put` returned for each call, oldest first
        self.reused: list[Any] = []
        self.many: Any = None

    def note(self) -> str:
        """How it is used."""
        return (
            "TransferQueue: client, controller and 2 storage units on this machine; jagged tensors "
            "are made before the clock starts; nothing leaves a full store by itself, so the "
            "oldest is cleared outside the clock; `take` is `get_meta`, `get_data` and "
            "`clear_samples`; reuse is `get_data` of groups drawn by the client"
        )

    def convert(self, group: Group, number: int) -> Any:
        """A TensorDict of eight samples."""
        return _tensors([(group, number)])

    def put(self, group: Any) -> object:
        """One call; what it returns names the samples."""
        self.stored.append(self.client.put(data=group, partition_id=QUEUE))
        return self.stored[-1]

    def put_back(self, n: int) -> None:
        """As few calls as can be: filling group by group would take minutes."""
        while n > 0:
            some = min(n, w4.BATCH)
            self.put(self._make_many(some))
            n -= some

    def take(self, n: int) -> Columns:
        """Ask for the next samples, read them, clear them."""
        taken = self.client.get_meta(
            data_fields=FIELDS,
            batch_size=n * w4.GROUP,
            partition_id=QUEUE,
            mode="fetch",
            task_name="train",
        )
        columns = _columns(self.client.get_data(taken))
        self.client.clear_samples(taken)
        return columns

    def sample(self, n: int) -> Columns:
        """Read random groups, from a partition that is filled when it is first asked for."""
        while len(self.reused) < self.capacity:
            many = self.client.put(data=self._make_many(w4.BATCH), partition_id=REUSED)
            self.reused.extend(
                many.select_samples(list(range(at, at + w4.GROUP)))
                for at in range(0, w4.BATCH * w4.GROUP, w4.GROUP)
            )
        wanted = BatchMeta.concat(random.sample(self.reused, n))
        return _columns(self.client.get_data(wanted))

    def prepare(self, operation: Operation) -> Call:
        """Make room before a put, as it does not do that itself."""
        call = super().prepare(operation)
        if operation.verb not in (w4.PUT.verb, w4.PUT_MANY.verb):
            return call

        def before() -> None:
            self._clear_oldest()
            assert call.before is not None
            call.before()

        return Call(call.run, call.items, before)

    def other(self, operation: Operation) -> Call:
        """64 groups in one call."""
        if operation.verb != w4.PUT_MANY.verb:
            return super().other(operation)
        n = operation.size

        def make() -> None:
            self.many = self._make_many(n)

        return Call(lambda: self.put(self.many), n * w4.GROUP, before=make)

    def close(self) -> None:
        """End its actors and Ray's processes."""
        transfer_queue.close()
        ray.shutdown()

    def _clear_oldest(self) -> None:
        held = sum(len(each.global_indexes) for each in self.stored)
        while held >= self.capacity * w4.GROUP:
            oldest = self.stored.popleft()
            self.client.clear_samples(oldest)
            held -= len(oldest.global_indexes)

    def _make_many(self, n: int) -> Any:
        numbers = [next(self._numbers) for _ in range(n)]
        return _tensors([(self.pool(number), number) for number in numbers])


def _tensors(groups: list[tuple[Group, int]]) -> Any:
    rollouts = [one for group, _ in groups for one in group]
    lengths = [0, *(len(one.response_ids) for one in rollouts)]
    offsets = torch.from_numpy(np.cumsum(lengths))
    tokens = {
        name: torch.nested.nested_tensor_from_jagged(
            torch.from_numpy(np.concatenate([getattr(one, name) for one in rollouts])), offsets
        )
        for name in TOKEN_COLUMNS
    }
    versions = np.repeat(np.array([number for _, number in groups], np.int32), w4.GROUP)
    scalars = {
        "reward": torch.tensor([one.reward for one in rollouts]),
        "version": torch.from_numpy(versions),
    }
    return TensorDict({**tokens, **scalars}, batch_size=[len(rollouts)])


def _columns(batch: Any) -> Columns:
    tokens = {name: batch[name].values() for name in TOKEN_COLUMNS}
    lengths = batch["response_ids"].offsets().diff()
    return {**tokens, "lengths": lengths, "reward": batch["reward"], "version": batch["version"]}


ADAPTERS = {"rollouts": TransferQueueRollouts}
