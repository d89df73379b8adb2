"""Checks of what a table's calls are given: each returns a clean value or says what is wrong."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from recollect.base.arrays import Keys
from recollect.errors import InvalidValue, shown

LOWEST = -(1 << 61)  # a bound below it only keeps numbers in range: messages leave it out


def whole(name: str, value: object, least: int, most: int = (1 << 62)) -> int:
    """A whole number within bounds."""
    if isinstance(value, np.integer):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        bound = f" of at least {least}" if least > LOWEST else ""
        raise InvalidValue(f"{name}: expected a whole number{bound}, got {shown(value)}")
    if value > most:
        raise InvalidValue(f"{name}: expected at most {most}, got {value}")
    return value


def time_span(name: str, value: object) -> float:
    """A time span of 0 or more; infinity is one."""
    if isinstance(value, np.generic):
        value = value.item()
    if not isinstance(value, int | float) or isinstance(value, bool) or not value >= 0:
        raise InvalidValue(f"{name}: expected seconds of 0 or more, or None, got {shown(value)}")
    return min(float(value), math.inf)


def flag(name: str, value: object) -> bool:
    """True or False, and nothing else."""
    if not isinstance(value, bool | np.bool_):
        raise InvalidValue(f"{name}: expected True or False, got {shown(value)}")
    return bool(value)


def one_of(name: str, value: object, known: Sequence[str]) -> None:
    """Raise `InvalidValue` unless an option has one of the values that are known."""
    if value not in known:
        expected = " or ".join(map(repr, known))
        raise InvalidValue(f"{name}: expected {expected}, got {shown(value)}")


def text(name: str, value: object) -> str:
    """Text that is not empty."""
    if not isinstance(value, str) or not value:
        raise InvalidValue(f"{name}: expected text that is not empty, got {shown(value)}")
    return value


def keys_of(keys: object) -> Keys:
    """Keys as a flat array of uint64."""
    if type(keys) is np.ndarray and keys.dtype == np.uint64 and keys.ndim == 1:
        return np.ascontiguousarray(keys)
    wrong = InvalidValue(
        f"keys: expected a flat array of keys, such as batch.info.keys, got {shown(keys)}"
    )
    if isinstance(keys, list | tuple) and all(_is_whole(k) for k in keys):
        try:  # one by one: NumPy would make floats of a list with large and small numbers
            return np.array([int(key) for key in keys], dtype=np.uint64)
        except OverflowError:
            raise wrong from None
    try:
        array = np.asarray(keys)
    except ValueError:
        raise wrong from None
    if array.size == 0:
        return np.zeros(0, np.uint64)
    if array.dtype.kind not in "iu" or array.ndim > 1 or int(array.min()) < 0:
        raise wrong
    return np.atleast_1d(array).astype(np.uint64)


def _is_whole(key: object) -> bool:
    return isinstance(key, int | np.integer) and not isinstance(key, bool)


def names(name: str, values: object) -> tuple[str, ...]:
    """Names: one, or several."""
    if isinstance(values, str):
        return (values,)
    if not isinstance(values, Sequence) or not all(isinstance(value, str) for value in values):
        raise InvalidValue(f"{name}: expected a name or a list of names, got {shown(values)}")
    return tuple(values)


def many(count: int, one: str, several: str | None = None) -> str:
    """A count with its noun."""
    return f"{count} {one}" if count == 1 else f"{count} {several or one + 's'}"
