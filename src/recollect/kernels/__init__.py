"""Numba kernels. They see arrays and addresses only, and are loaded when a table is made."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import numpy as np

_lock = threading.Lock()
_loaded: Any = None
_steps: Any = None


def load() -> Any:
    """Compile the kernels, or read them from the cache, once per process.

    Returns the entry points. Never called under a table's lock.
    """
    global _loaded
    if _loaded is not None:
        return _loaded
    with _lock:
        if _loaded is None:
            from recollect.kernels.compile import compiling

            with compiling():
                from recollect.kernels import items, rows

            _check_array_layout(rows.data_address)
            _loaded = SimpleNamespace(items=items, rows=rows)
    return _loaded


def load_steps() -> Any:
    """The same for the kernels of steps and episodes, which tables do not need."""
    global _steps
    if _steps is not None:
        return _steps
    with _lock:
        if _steps is None:
            from recollect.kernels.compile import compiling

            with compiling():
                from recollect.kernels import (
                    rows,
                    steps,
                    steps_episodes,
                    steps_reading,
                    steps_starts,
                )

            _check_array_layout(rows.data_address)
            _steps = SimpleNamespace(
                steps=steps, episodes=steps_episodes, reading=steps_reading, starts=steps_starts
            )
    return _steps


def _check_array_layout(data_address: Any) -> None:
    """Kernels find an array's data through its object; make sure that they do."""
    for array in (np.zeros(3), np.zeros((2, 5), np.uint8)[:, 1:]):
        if data_address(id(array)) != array.ctypes.data:
            raise RuntimeError(
                "this interpreter keeps NumPy arrays in another layout than CPython does: "
                "Recollect needs CPython with the GIL"
            )
