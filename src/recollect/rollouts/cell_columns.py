"""Cells of rollouts as columns: numbers, text, JSON and arrays, one cell per rollout.

A column in which every cell is absent is None, and takes no memory.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recollect.base.arrays import Array, Mask
from recollect.data.ragged import Ragged
from recollect.data.schema import Stored
from recollect.errors import InvalidValue, SchemaError, shown
from recollect.rollouts.rollout import CODES, Status
from recollect.rollouts.values import only_flags

Cells = tuple[Stored, Mask | None]  # a column, and which of its cells are present

INT32, INT8, FLOAT32 = np.dtype(np.int32), np.dtype(np.int8), np.dtype(np.float32)
BOOL, OFFSETS = np.dtype(np.bool_), np.dtype(np.int64)

ONLY_INT, ONLY_FLOAT, ONLY_NONE = {int}, {float}, {type(None)}
FLOAT_OR_NONE = ONLY_FLOAT | ONLY_NONE

_repeated: dict[tuple[int, int, Any], Array] = {}
_reasons: dict[tuple[Any, ...], Cells] = {}


class Unfit(Exception):
    """Something is not an array of the right kind, so each rollout must be checked by itself."""


def offsets_of(lengths: list[int]) -> NDArray[np.int64]:
    return np.array([0, *accumulate(lengths)], OFFSETS)


def per_token(
    name: str,
    cells: list[Any],
    lengths: list[int],
    offsets: NDArray[np.int64],
    dtype: np.dtype[Any],
) -> Cells:
    """An optional array with one entry per response token."""
    absent = [cell is None for cell in cells]
    present = None
    if True in absent:
        if False not in absent:
            return None, None
        present = ~np.array(absent)
        cells = [np.zeros(0, dtype) if cell is None else cell for cell in cells]
        lengths = [0 if gone else length for gone, length in zip(absent, lengths, strict=True)]
        offsets = offsets_of(lengths)
    values = np.concatenate(cells)
    if values.dtype != dtype:
        if dtype != INT8 or values.dtype != BOOL:
            raise Unfit(f"{name} has dtype {values.dtype}")
        values = values.view(np.int8)
    if values.ndim != 1 or list(map(len, cells)) != lengths:
        raise Unfit(f"{name} has another length than the response")
    if dtype == INT8 and not only_flags(values):
        raise Unfit(f"{name} has other numbers than 0 and 1")
    return Ragged._make(values, offsets), present


def integers(values: list[int], dtype: Any, least: int) -> Array:
    """Whole numbers as an array; one that repeats a single number is made once and shared."""
    if set(map(type, values)) != ONLY_INT:  # 1.5 would become 1, and 1.0 and True are equal to 1
        raise Unfit("whole numbers were expected")
    first, count = values[0], len(values)
    repeated = values.count(first) == count
    key = (first, count, dtype)
    array = _repeated.get(key) if repeated and first >= least else None
    if array is None:
        if min(values) < least:
            raise Unfit(f"numbers of at least {least} were expected")
        if not repeated:
            return np.array(values, dtype)
        if len(_repeated) >= 1024:
            _repeated.clear()
        array = _repeated[key] = np.full(count, first, dtype)
    return array


def status_codes(statuses: list[Status]) -> Array:
    if statuses.count(statuses[0]) == len(statuses):
        return integers([CODES[statuses[0]]] * len(statuses), np.int8, 0)
    return np.array([CODES[status] for status in statuses], np.int8)


def rewards_of(values: list[Any]) -> Cells:
    kinds = set(map(type, values))
    if kinds == ONLY_FLOAT:
        return np.array(values, np.float64), None
    if kinds == ONLY_NONE:
        return None, None
    if (
        kinds != FLOAT_OR_NONE
    ):  # other numbers, which `Rollout.check` makes floats, or something wrong
        raise Unfit("rewards are not floats")
    absent = [value is None for value in values]
    return np.array([0.0 if v is None else v for v in values]), ~np.array(absent)


def text_of(cells: list[str]) -> Ragged:
    joined = "".join(cells).encode()
    lengths = list(map(len, cells))
    offsets = offsets_of(lengths)
    if offsets[-1] != len(joined):
        offsets = offsets_of([len(cell.encode()) for cell in cells])
    return Ragged._make(np.frombuffer(joined, np.uint8), offsets, "str")


def texts_of(cells: list[Any]) -> Cells:
    absent = [cell is None for cell in cells]
    if False not in absent:
        return None, None
    present = None if True not in absent else ~np.array(absent)
    return text_of(["" if cell is None else cell for cell in cells]), present


def finish_reasons(cells: list[Any]) -> Cells:
    """Finish reasons as a column; there are few combinations, so each is made once."""
    key = tuple(cells)
    known = _reasons.get(key)
    if known is None:
        if len(_reasons) >= 256:
            _reasons.clear()
        known = _reasons[key] = texts_of(cells)
    return known


def json_of(cells: list[Any]) -> Cells:
    for cell in cells:
        if cell is not None:
            return texts_of([None if cell is None else to_json(cell) for cell in cells])
    return None, None


def to_json(value: Any) -> str:
    """A value as JSON; numbers and arrays of NumPy become plain ones."""
    try:
        return json.dumps(value, default=_plain, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise InvalidValue(f"{shown(value)} cannot be JSON: {error}") from None


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not a number, text, list or dict")


def ragged_of(cells: Sequence[Array | None], dtype: np.dtype[Any]) -> Cells:
    """A ragged column of arrays that have one dtype and one inner shape."""
    here = [cell for cell in cells if cell is not None]
    if not here:
        return None, None
    present = None
    if len(here) < len(cells):
        present = np.array([cell is not None for cell in cells])
    lengths = [0 if cell is None else len(cell) for cell in cells]
    values = np.concatenate(here)
    if values.dtype != dtype:
        raise Unfit(f"arrays of {values.dtype} where {dtype} was expected")
    return Ragged._make(np.ascontiguousarray(values), offsets_of(lengths)), present


def other_array(name: str, cells: Sequence[Array | None]) -> Cells:
    """One of the arrays that users name, as a column."""
    here = [np.asarray(cell) for cell in cells if cell is not None]
    first = here[0]
    for array in here:
        if array.dtype != first.dtype or array.shape[1:] != first.shape[1:] or array.ndim == 0:
            raise SchemaError(
                f"arrays[{name!r}]: the rollouts of a group need one dtype and one shape beyond "
                f"the first axis, got {first.dtype} {list(first.shape)} and {array.dtype} "
                f"{list(array.shape)}"
            )
    return ragged_of([None if c is None else np.asarray(c) for c in cells], first.dtype)
