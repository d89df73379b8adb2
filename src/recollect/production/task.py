"""`Task`: one kind of prompts, what generates them, and how. And a batch shared among tasks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from recollect.base.arguments import text, whole
from recollect.errors import InvalidValue, shown
from recollect.production.context import Reward, Valid
from recollect.production.generators.base import Generator
from recollect.production.prompts.base import Prompts
from recollect.production.strategies import AsyncStrategy, Strategy

BatchSize = int | Mapping[str, int]  # groups of a batch, shared by weight, or those of each task


@dataclass(eq=False)
class Task:
    """What one task brings to a manager.

    Args:
        name: The task of its groups.
        prompts: Where they come from.
        generator: What generates them; tasks may share one.
        strategy: How a batch gets produced: `AsyncStrategy()` where it is not given.
        reward: Scores a completed group and returns it, at once or as a coroutine; it runs
            concurrently with other generations. None where the generator scores, or where rewards
            come later as annotations.
        valid: Whether a completed group is worth training on; rejected ones are replaced.
        weight: Its share of a batch. May be changed between steps.
    """

    name: str
    prompts: Prompts
    generator: Generator
    strategy: Strategy = field(default_factory=AsyncStrategy, kw_only=True)
    reward: Reward | None = field(default=None, kw_only=True)
    valid: Valid | None = field(default=None, kw_only=True)
    weight: float = field(default=1.0, kw_only=True)

    def __post_init__(self) -> None:
        text("name", self.name)
        _has("prompts", self.prompts, Prompts, "ListPrompts makes one of a list")
        _has("generator", self.generator, Generator, "FunctionGenerator makes one of a function")
        for name in ("reward", "valid"):
            given = getattr(self, name)
            if given is not None and not callable(given):
                raise InvalidValue(f"{name}: expected a function of a group, got {shown(given)}")
        check_weight(self.name, self.weight)


def _has(name: str, given: Any, protocol: Any, hint: str) -> None:
    if not isinstance(given, protocol):
        calls = sorted(each for each in vars(protocol) if not each.startswith("_"))
        raise InvalidValue(
            f"{name}: expected an object with {', '.join(calls)}, got {shown(given)}; {hint}"
        )


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
