"""Threads inside torch, for the adapters that draw tensors."""

from __future__ import annotations

import torch

from bench.adapter import Adapter

DEFAULT_THREADS = torch.get_num_threads()


class TorchThreads(Adapter):
    """torch's default and one: waiting for its second thread can cost more than it saves."""

    def thread_counts(self) -> tuple[int, ...]:
        """Both, where they differ."""
        return tuple(sorted({1, DEFAULT_THREADS}))

    def set_threads(self, count: int) -> None:
        """For the operations inside torch."""
        torch.set_num_threads(count)
