"""How a batch is shared among tasks: by their weights, with the largest remainder."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from recollect.base.arguments import whole
from recollect.errors import InvalidValue, shown

BatchSize = int | Mapping[str, int]  # groups of a batch, shared by weight, or those of each task


def allocate(batch_size: int, weights: Mapping[str, float]) -> dict[str, int]:
    """How many groups each task has in a batch; the numbers add up to the batch.

    Each gets the whole part of its share, and the largest remainders get one more; ties go to the
    task that was declared first.

    >>> from recollect.production import allocate
    >>> allocate(7, {"math": 2, "code": 1, "chat": 0})
    {'math': 5, 'code': 2, 'chat': 0}
    """
    size = whole("batch_size", batch_size, 0)
    for task, weight in weights.items():
        check_weight(task, weight)
    # Fractions, because the order of remainders must not hang on rounding: 1/3 three times is 1.
    exact = {task: Fraction(weight) for task, weight in weights.items()}
    total = sum(exact.values())
    if not total:
        if not size:
            return dict.fromkeys(weights, 0)
        raise InvalidValue(
            f"weights: {size} groups cannot be shared where no task has a weight above 0, got "
            f"{shown(dict(weights))}"
        )
    shares = {task: size * weight / total for task, weight in exact.items()}
    sizes = {task: math.floor(share) for task, share in shares.items()}
    left = size - sum(sizes.values())
    by_remainder = sorted(shares, key=lambda task: sizes[task] - shares[task])  # stable
    for task in by_remainder[:left]:
        sizes[task] += 1
    return sizes


def check_weight(task: str, weight: Any) -> None:
    """Raise `InvalidValue` unless a weight is a finite number of 0 or more."""
    number = isinstance(weight, int | float) and not isinstance(weight, bool)
    if not number or not math.isfinite(weight) or weight < 0:
        raise InvalidValue(
            f"weight of task {task!r}: expected a number of 0 or more, got {shown(weight)}"
        )
