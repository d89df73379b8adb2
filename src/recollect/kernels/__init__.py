"""Numba kernels. They see arrays and addresses only, and are loaded when a table is made."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import numpy as np

_lock = threading.Lock()
_loaded: Any = None
_tokens: Any = None


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

            _check_objects(rows)
            _loaded = SimpleNamespace(items=items, rows=rows)
    return _loaded


def load_tokens() -> Any:
    """The kernels of rollouts, loaded when a rollout buffer is made: tables do not pay for them."""
    global _tokens
    if _tokens is not None:
        return _tokens
    with _lock:
        if _tokens is None:
            from recollect.kernels.compile import compiling

            with compiling():
                from recollect.kernels import tokens

            _tokens = tokens
    return _tokens


def rows_that_fit() -> Any:
    """The kernel of this name, None until kernels are loaded."""
    return None if _loaded is None else _loaded.rows.rows_that_fit


def expected_array(dtype: np.dtype[Any], shape: tuple[int, ...]) -> list[int]:
    """What `rows_that_fit` expects of an array with rows of this dtype and shape."""
    return [id(np.ndarray), id(dtype), 1 + len(shape), *shape]


def _check_objects(rows: Any) -> None:
    """Kernels find an array's data and shape in its object; make sure that they do."""
    ok = True
    for array in (np.zeros(3), np.zeros((2, 5), np.uint8), np.zeros((4, 3, 2), np.int16)):
        exact = expected_array(array.dtype, array.shape[1:])
        wrong = [*exact[:-1], exact[-1] + 1]
        ok = ok and rows.data_address(id(array)) == array.ctypes.data
        for given, expected, count in (
            (array, exact, len(array)),
            (array, wrong, -1),
            (array.astype(np.float32), exact, -1),
            (np.stack([array, array], -1)[..., 0], exact, -1),
            (list(array), exact, -1),
        ):
            arrays = [given]
            ok = ok and rows.rows_that_fit(id(arrays), np.array([expected], np.int64)) == count
    if not ok:
        raise RuntimeError(
            "this interpreter keeps lists or NumPy arrays in another layout than CPython does: "
            "Recollect needs CPython with the GIL"
        )
