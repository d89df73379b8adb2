"""Arrays that belong to no item, such as the members of a dense set in their order.

Between two saves a few values change, anywhere in an array. So on disk an array is blocks, as they
were when last written, and one patch with every value that is different now. Each save writes some
of the blocks again that differ most: the patch stays small, and no save writes all blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from recollect.base.arrays import Array, Ints

BLOCK = 1 << 13  # values
TURN = 16  # one in so many blocks is written again at each save, once the patch is large
WORTH = 64  # a patch is large when it has one in so many of the values
FULL = 4  # a block with one in so many of its values in the patch is written again in any case


@dataclass
class OnDisk:
    """What the blocks of an array hold, one after another, and where each is.

    All but the last have `BLOCK` values. The last may have more than the array needs, or fewer.
    """

    values: Array
    blocks: list[list[Any]]  # [file, record batch, first value, count]


@dataclass
class ArrayPlan:
    """What a save does with an array."""

    rewritten: list[int]  # blocks
    places: Ints  # of the values in the patch
    base: Array  # what the blocks will hold once those are written


def plan_array(array: Array, before: OnDisk | None, waste: set[str]) -> ArrayPlan:
    """Decide which blocks are written again and which values are patched."""
    count = -(-array.size // BLOCK)
    if before is None or before.values.dtype != array.dtype:
        return ArrayPlan(list(range(count)), np.zeros(0, np.int64), array)
    chosen = set()
    for number in range(count):
        if number >= len(before.blocks):
            chosen.add(number)
            continue
        file, _, _, size = before.blocks[number]
        if file in waste or (size < BLOCK and number < count - 1):
            chosen.add(number)
    places = _different(array, before.values)
    counts = np.bincount(places // BLOCK, minlength=count)
    chosen.update(np.flatnonzero(counts * FULL > BLOCK).tolist())
    if places.size * WORTH > array.size:
        worst = np.argsort(-counts, kind="stable")[: -(-count // TURN)]
        chosen.update(worst[counts[worst] > 0].tolist())
    rewritten = sorted(chosen)
    if not rewritten:
        base = before.values[: count * BLOCK]
        return ArrayPlan([], _different(array, base), base)
    last = array.size
    if count - 1 not in chosen:
        last = (count - 1) * BLOCK + before.blocks[count - 1][3]
    base = np.zeros(last, array.dtype)
    common = min(last, before.values.size)
    base[:common] = before.values[:common]
    for number in rewritten:
        block = array[number * BLOCK : (number + 1) * BLOCK]
        base[number * BLOCK : number * BLOCK + block.size] = block
    return ArrayPlan(rewritten, _different(array, base), base)


def _different(array: Array, base: Array) -> Ints:
    """Where an array is not what the blocks hold, or they hold nothing."""
    common = min(array.size, base.size)
    differs = np.ones(array.size, np.bool_)
    np.not_equal(array[:common], base[:common], out=differs[:common])
    return np.flatnonzero(differs)


def differences(block: Array) -> Array:
    """A block as it is written: runs of slots, as most orders have, then compress well."""
    return np.diff(block, prepend=block.dtype.type(0))


def summed(block: Array) -> Array:
    """Undo `differences`."""
    values: Array = np.cumsum(block, dtype=block.dtype)
    return values


def put_together(
    size: int, dtype: str, base: Array, places: Array | None, values: Array | None
) -> Array:
    """The array, of what its blocks hold and its patch."""
    array: Array = np.zeros(size, dtype)
    common = min(size, base.size)
    array[:common] = base[:common]
    if places is not None and values is not None:
        array[places] = values
    return array
