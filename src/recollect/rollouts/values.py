"""Checks of what rollouts and buffers are given: each returns a clean value, or raises an error."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recollect.base.arguments import time_span
from recollect.base.arrays import Array
from recollect.errors import InvalidValue, shown

Blobs = dict[str, list[bytes]]

LARGEST_COUNT = (1 << 31) - 1  # attempts and segments are int32


def named(what: str, value: Any) -> dict[str, Any]:
    """A mapping as a dict; a dict is not copied."""
    if type(value) is dict:
        return value
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidValue(f"{what}: expected a mapping of names, got {shown(value)}")
    return dict(value)


def blobs_of(value: Any) -> Blobs:
    blobs = named("blobs", value)
    for name, values in blobs.items():
        if not isinstance(name, str) or not name:
            raise InvalidValue(f"blobs: a name is text, got {shown(name)}")
        if not isinstance(values, Sequence) or isinstance(values, str | bytes):
            raise InvalidValue(f"blobs[{name!r}]: expected a list of bytes, got {shown(values)}")
        for blob in values:
            if not isinstance(blob, bytes):
                raise InvalidValue(f"blobs[{name!r}]: expected bytes, got {type(blob).__name__}")
    return blobs


def check_length(name: str, array: Array, tokens: int) -> None:
    if len(array) != tokens:
        raise InvalidValue(f"{name} has {len(array)} entries for {tokens} response tokens")


def numbers(name: str, value: Any, dtype: Any, kinds: str) -> Array:
    """A flat array of one dtype."""
    if type(value) is np.ndarray and value.dtype == dtype and value.ndim == 1:
        return value
    try:
        array = np.asarray(value)
    except (ValueError, TypeError):
        array = np.zeros((), object)
    if array.ndim != 1 or (array.size and array.dtype.kind not in kinds):
        what = "whole numbers" if kinds == "iu" else "numbers"
        raise InvalidValue(f"{name}: expected a flat list of {what}, got {shown(value)}")
    return array.astype(dtype)


def small_ints(name: str, value: Any, least: int) -> NDArray[np.int32]:
    """Whole numbers that fit int32."""
    small = type(value) is np.ndarray and value.dtype == np.int32 and value.ndim == 1
    if small and (not value.size or int(value.min()) >= least):
        return value  # type: ignore[no-any-return]
    array = numbers(name, value, np.int64, "iu")
    if array.size and not (int(array.min()) >= least and int(array.max()) < 1 << 31):
        bad = array[(array < least) | (array >= 1 << 31)][0]
        raise InvalidValue(f"{name}: expected numbers from {least} to 2**31 - 1, got {bad}")
    return array.astype(np.int32)


def tokens_of(name: str, value: Any) -> NDArray[np.int32]:
    return small_ints(name, value, 0)


def versions_of(value: Any) -> NDArray[np.int32]:
    return small_ints("versions", value, -1)


def mask_of(value: Any) -> NDArray[np.int8]:
    mask: NDArray[np.int8] = value
    if type(value) is not np.ndarray or value.dtype != np.int8 or value.ndim != 1:
        mask = numbers("loss_mask", value, np.int8, "biuf")
    if mask.size and not (only_flags(mask) and (mask is value or np.array_equal(mask, value))):
        raise InvalidValue(f"loss_mask: expected 0 or 1 per response token, got {shown(value)}")
    return mask


def only_flags(mask: NDArray[np.int8]) -> bool:
    """Whether every entry is 0 or 1: as unsigned numbers, those below 0 are large."""
    return bool(mask.view(np.uint8).max(initial=0) <= 1)


def any_array(name: Any, value: Any) -> Array:
    if not isinstance(name, str) or not name or "." in name:
        raise InvalidValue(f"arrays: a name is text without a dot, got {shown(name)}")
    try:
        array = np.asarray(value)
    except (ValueError, TypeError):
        array = np.zeros((), object)
    if array.ndim == 0 or array.dtype.kind not in "biufV":
        raise InvalidValue(
            f"arrays[{name!r}]: expected an array of numbers with at least one axis, got "
            f"{shown(value)}; scalars and text go in extras"
        )
    return array


def whole_or_none(name: str, value: Any, optional: bool, most: int) -> int | None:
    if value is None and optional:
        return None
    if isinstance(value, np.integer):
        value = int(value)
    if type(value) is not int or value < 0:
        raise InvalidValue(f"{name}: expected a whole number of 0 or more, got {shown(value)}")
    if value > most:
        raise InvalidValue(f"{name}: expected at most {most}, got {value}")
    return value


def reward_of(value: Any) -> float | None:
    if value is None or type(value) is float:
        return value
    if isinstance(value, np.generic | np.ndarray) and value.size == 1:
        value = value.item()
    if isinstance(value, int | float):
        return float(value)
    raise InvalidValue(f"reward: expected a number or None, got {shown(value)}")


def same_arrays(one: Array | None, other: Array | None) -> bool:
    if one is None or other is None:
        return one is other
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return bool(((one == other) | ((one != one) & (other != other))).all())


def lease_span(lease: Any) -> float | None:
    """Seconds of a lease: True has no deadline, None and False are no lease."""
    if lease is True:
        return math.inf
    return None if lease is None or lease is False else time_span("lease", lease)
