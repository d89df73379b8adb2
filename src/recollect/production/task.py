"""`Task`: one kind of prompts, what generates them, and how."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from recollect.base.arguments import text
from recollect.errors import InvalidValue, shown
from recollect.production.allocation import check_weight
from recollect.production.context import Reward, Valid
from recollect.production.generators.base import Generator
from recollect.production.prompts.base import Prompts
from recollect.production.strategies import AsyncStrategy, Strategy


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
        _has("prompts", self.prompts, Prompts)
        _has("generator", self.generator, Generator)
        for name in ("reward", "valid"):
            given = getattr(self, name)
            if given is not None and not callable(given):
                raise InvalidValue(f"{name}: expected a function of a group, got {shown(given)}")
        check_weight(self.name, self.weight)


MADE = {
    "prompts": "ListPrompts makes one of a list",
    "generator": "FunctionGenerator makes one of a function",
}


def _has(name: str, given: Any, protocol: Any) -> None:
    if not isinstance(given, protocol):
        calls = sorted(each for each in vars(protocol) if not each.startswith("_"))
        raise InvalidValue(
            f"{name}: expected an object with {', '.join(calls)}, got {shown(given)}; {MADE[name]}"
        )
