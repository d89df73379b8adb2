"""Numba kernels. They see arrays and addresses only, and are loaded when a table is made."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import numpy as np

_lock = threading.Lock()
_loaded: Any = None


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


def _check_array_layout(data_address: Any) -> None:
    """Kernels find an array's data through its object; make sure that they do."""
    for array in (np.zeros(3), np.zeros((2, 5), np.uint8)[:, 1:]):
        if data_address(id(array)) != array.ctypes.data:
            raise RuntimeError(
                "this interpreter keeps NumPy arrays in another layout than CPython does: "
                "Recollect needs CPython with the GIL"
            )
