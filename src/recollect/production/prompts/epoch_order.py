"""The order of prompts within an epoch: a permutation that only seed, epoch and count decide.

It has to be the same when a run is resumed years later, so it is made of integer arithmetic and a
stable sort: the streams of NumPy's generators may change between versions.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from recollect.base.arrays import Ints


def order_of(count: int, seed: int | None, epoch: int) -> Ints:
    """The indices of an epoch in the order in which they come; without a seed as they are.

    >>> from recollect.production.prompts.epoch_order import order_of
    >>> order_of(5, 7, 0).tolist(), order_of(5, 7, 1).tolist(), order_of(5, None, 1).tolist()
    ([3, 2, 0, 1, 4], [4, 2, 3, 1, 0], [0, 1, 2, 3, 4])
    """
    if seed is None:
        return np.arange(count, dtype=np.int64)
    key = _mixed(np.array([seed & 0xFFFFFFFFFFFFFFFF], np.uint64))
    key = _mixed(key + np.uint64(epoch & 0xFFFFFFFFFFFFFFFF))
    return np.argsort(_mixed(np.arange(count, dtype=np.uint64) ^ key), kind="stable")


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finalizer of SplitMix64: one-to-one, and every bit depends on every bit."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
