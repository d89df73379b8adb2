"""The kernels as compiled code, by family; loaded when a table is made, never under its lock."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from recollect.kernels.families import (
    DealingKernels,
    Ints,
    PackingKernels,
    ReplayKernels,
    RolloutKernels,
    RowKernels,
    TableKernels,
)

_lock = threading.Lock()
_loaded: dict[str, Any] = {}  # by family


def _nobody_knows(list_id: int, expected: Ints) -> int:
    return -1


rows_that_fit: Callable[[int, Ints], int] = _nobody_knows  # until kernels are loaded


def load() -> TableKernels:
    """Compile the kernels of tables, or read them from the cache, once per process.

    Returns their entry points. Never called under a table's lock.
    """
    made: TableKernels = _loaded.get("tables") or _load("tables")
    return made


def load_steps() -> ReplayKernels:
    """The same for the kernels of steps and episodes, which tables do not need."""
    made: ReplayKernels = _loaded.get("steps") or _load("steps")
    return made


def load_tokens() -> RolloutKernels:
    """The same for the kernels of rollouts."""
    made: RolloutKernels = _loaded.get("tokens") or _load("tokens")
    return made


def load_packing() -> PackingKernels:
    """The same for the kernels that pack rollouts for ranks."""
    made: PackingKernels = _loaded.get("packing") or _load("packing")
    return made


def load_dealing() -> DealingKernels:
    """The same for the kernel that deals saved shards out to new ones."""
    made: DealingKernels = _loaded.get("dealing") or _load("dealing")
    return made


# What each family consists of: modules, whose kernels become its entry points.
def _tables() -> SimpleNamespace:
    from recollect.kernels import captures, items, rows

    found = SimpleNamespace(items=items, rows=rows, captures=captures, shared_copy=None)
    if sys.platform == "linux":  # elsewhere there are no such semaphores
        from recollect.kernels import shared_copy

        found.shared_copy = shared_copy
    return found


def _steps() -> SimpleNamespace:
    from recollect.kernels import rows, steps, steps_episodes, steps_reading, steps_starts

    return SimpleNamespace(
        rows=rows,
        steps=steps,
        episodes=steps_episodes,
        reading=steps_reading,
        starts=steps_starts,
    )


def _tokens() -> SimpleNamespace:
    from recollect.kernels import group_rows, rows, single, tokens

    return SimpleNamespace(rows=rows, tokens=tokens, groups=group_rows, single=single)


def _packing() -> SimpleNamespace:
    from recollect.kernels import packs, rows

    return SimpleNamespace(rows=rows, packing=packs)


def _dealing() -> SimpleNamespace:
    from recollect.kernels import deal, rows

    return SimpleNamespace(rows=rows, deal=deal.deal)


FAMILIES: dict[str, Callable[[], SimpleNamespace]] = {
    "tables": _tables,
    "steps": _steps,
    "tokens": _tokens,
    "packing": _packing,
    "dealing": _dealing,
}


def help_with(family: str, folder: str, claims: str) -> None:
    """What a second process does while the first compiles a family."""
    from recollect.kernels.machine.compile import compile_as_helper

    compile_as_helper(FAMILIES[family], folder, claims)


def _load(family: str) -> Any:
    global rows_that_fit
    with _lock:
        if family not in _loaded:
            from recollect.kernels.machine.compile import compiled, entry_point

            modules = compiled(family, FAMILIES[family])
            made = SimpleNamespace(
                **{name: entry_point(one) for name, one in vars(modules).items()}
            )
            _check_objects(made.rows)
            rows_that_fit = made.rows.rows_that_fit
            _loaded[family] = made
    return _loaded[family]


def expected_array(dtype: np.dtype[Any], shape: tuple[int, ...]) -> list[int]:
    """What `rows_that_fit` expects of an array with rows of this dtype and shape."""
    return [id(np.ndarray), id(dtype), 1 + len(shape), *shape]


def _check_objects(rows: RowKernels) -> None:
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
