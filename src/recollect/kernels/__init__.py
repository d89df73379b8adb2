"""Numba kernels. They see arrays and addresses only, and are loaded when a table is made."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

_lock = threading.Lock()
_loaded: Any = None


def load() -> Any:
    """Compile the kernels, or read them from the cache, once per process.

    Returns the entry points. Never called under a table's lock.
    """
    global _loaded
    with _lock:
        if _loaded is None:
            from recollect.kernels.compile import compiling

            with compiling():
                from recollect.kernels import items, rows

                _loaded = SimpleNamespace(items=items, rows=rows)
    return _loaded
