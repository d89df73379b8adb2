"""Rows to insert, and priorities to set: the same for every implementation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from bench.workloads.base import Column

Rows = dict[str, "np.ndarray[Any, Any]"]


def make_rows(columns: Iterable[Column], n: int, seed: int = 0) -> Rows:
    """n random rows, one array per column."""
    random = np.random.default_rng(seed)
    return {column.name: _cells(random, column, n) for column in columns}


def make_priorities(n: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """n positive priorities, as a learner's errors would be."""
    return np.random.default_rng(seed).exponential(1.0, n).astype(np.float32) + 1e-3


def _cells(random: np.random.Generator, column: Column, n: int) -> np.ndarray[Any, Any]:
    shape = (n, *column.shape)
    if column.dtype == "float32":
        return random.standard_normal(shape, dtype=np.float32)
    if column.dtype == "bool":
        return random.random(shape) < 0.01
    if column.dtype == "uint8":
        return random.integers(0, 256, shape, dtype=np.uint8)
    return random.integers(0, 6, shape).astype(column.dtype)
