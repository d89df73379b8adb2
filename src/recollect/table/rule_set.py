"""The rules of a table: what it samples and removes by, and when calls may go ahead."""

from __future__ import annotations

from dataclasses import dataclass, field

from recollect.rules.limiters import Limiter
from recollect.rules.selectors import Selector, largest_alpha, weighed_fields
from recollect.rules.selectors import ages as selectors_age


@dataclass(frozen=True, slots=True)
class RuleSet:
    """The three rules, and what follows from the selectors."""

    sampler: Selector
    remover: Selector
    limiter: Limiter
    ages: bool = field(init=False)  # whether weights age by version, so that every item needs one
    alpha: float = field(init=False)  # the largest exponent that a priority is raised to
    weighed: dict[str, float] = field(init=False)  # that of each other field that is a weight

    def __post_init__(self) -> None:
        object.__setattr__(self, "ages", selectors_age(self.sampler, self.remover))
        object.__setattr__(self, "alpha", largest_alpha(self.sampler, self.remover))
        object.__setattr__(self, "weighed", weighed_fields(self.sampler, self.remover))
