"""TorchRL with rollouts: a list of references, collated when it is read."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict
from torchrl.data import ListStorage, ReplayBuffer
from torchrl.data.replay_buffers.samplers import RandomSampler, SamplerWithoutReplacement

from bench.adapter import Call
from bench.rollouts import TOKEN_COLUMNS, Columns, Group, Rollouts
from bench.torch_threads import TorchThreads
from bench.workloads import w4
from bench.workloads.base import Operation, Workload

SCALARS = ("reward", "version")


class TorchRLRollouts(TorchThreads, Rollouts):
    """`ListStorage` of groups: lists of TensorDicts, the container that TorchRL is made for.

    It stores references, so what is put is copied before, outside the clock: otherwise its groups
    would share the memory of the stream. It has no way to take in order and remove; an in-order
    `SamplerWithoutReplacement` walks through the list instead.
    """

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload)
        self.storage = ListStorage(self.capacity)
        self.buffer = self._buffer(self.storage, in_order=True)
        self.random = self._buffer(self.storage, in_order=False)
        self.plain: Any = None

    def note(self) -> str:
        """How it is used, and what it does not do."""
        return (
            "TorchRL: `ListStorage` of groups as lists of TensorDicts, by reference: a put copies "
            "nothing; `take` walks in order and removes nothing; samples may hold a group twice; "
            "one concatenate per column in `collate_fn`; the lines of plain dicts store a dict of "
            "lists of tensors for each group instead, collated the same way"
        )

    def convert(self, group: Group, number: int) -> Any:
        """TensorDicts of tensors of their own."""
        return [
            TensorDict(
                {
                    **{name: torch.from_numpy(getattr(one, name).copy()) for name in TOKEN_COLUMNS},
                    "reward": torch.tensor(one.reward),
                    "version": torch.tensor(number, dtype=torch.int32),
                },
                batch_size=[],
            )
            for one in group
        ]

    def put(self, group: Any) -> object:
        """`add` a list of eight."""
        return self.buffer.add(group)

    def put_back(self, n: int) -> None:
        """Nothing was removed: only filling puts anything."""
        if len(self.storage) < self.capacity:
            super().put_back(n)

    def take(self, n: int) -> Columns:
        """The next groups of the list."""
        columns: Columns = self.buffer.sample(n)
        return columns

    def sample(self, n: int) -> Columns:
        """Random groups."""
        columns: Columns = self.random.sample(n)
        return columns

    def other(self, operation: Operation) -> Call:
        """Groups as plain dicts."""
        if operation not in (w4.PLAIN_TAKE, w4.PLAIN_SAMPLE):
            return super().other(operation)
        if self.plain is None:
            self.plain = ListStorage(self.capacity)
            buffer = self._buffer(self.plain, in_order=True)
            for _ in range(self.capacity):
                buffer.add(_plain(self.make()))
        n = operation.size
        buffer = self._buffer(self.plain, operation == w4.PLAIN_TAKE)
        return Call(lambda: buffer.sample(n), n * w4.GROUP)

    def _buffer(self, storage: Any, in_order: bool) -> Any:
        sampler = SamplerWithoutReplacement(shuffle=False) if in_order else RandomSampler()
        return ReplayBuffer(storage=storage, sampler=sampler, collate_fn=_collate, batch_size=1)


class TorchRLChurn(TorchRLRollouts):
    """After ten times its capacity went through it."""

    def fill(self) -> None:
        """Put ten times the capacity: the list begins again at its start."""
        for _ in range(self.capacity * w4.CHURN):
            self.put(self.make())


def _plain(group: Any) -> Any:
    tokens = {name: [one[name] for one in group] for name in TOKEN_COLUMNS}
    return {**tokens, **{name: torch.stack([one[name] for one in group]) for name in SCALARS}}


def _collate(items: Any) -> Columns:
    if isinstance(items[0], dict):
        columns = {
            name: torch.cat([cells for one in items for cells in one[name]])
            for name in TOKEN_COLUMNS
        }
        lengths = [len(cells) for one in items for cells in one["response_ids"]]
        scalars = {name: torch.cat([one[name] for one in items]) for name in SCALARS}
    else:
        items = [one for group in items for one in group]
        columns = {name: torch.cat([one.get(name) for one in items]) for name in TOKEN_COLUMNS}
        lengths = [len(one.get("response_ids")) for one in items]
        scalars = {name: torch.stack([one.get(name) for one in items]) for name in SCALARS}
    return {**columns, **scalars, "lengths": torch.tensor(lengths)}
