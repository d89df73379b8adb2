"""Which item comes next. A selector is a description; a storage executes it.

The same selectors sample and remove. Every one is a frozen dataclass of one of four natures:
an order by a field (`Ordered`), `Uniform`, weights by a field (`Proportional`), or a mixture
(`Mixed`). A storage executes natures: another order or weight needs nothing there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real

from recollect.errors import InvalidValue, shown

__all__ = [
    "Fifo",
    "FreshestFirst",
    "Largest",
    "Lifo",
    "Linear",
    "Mixed",
    "Ordered",
    "Prioritized",
    "Proportional",
    "Selector",
    "Smallest",
    "StalestFirst",
    "Uniform",
    "Weighted",
]


class Selector:
    """Base of all selectors.

    A selector of one's own is an `Ordered` or a `Proportional` and says by which field: storages
    execute nothing else.
    """


class Ordered(Selector):
    """Base of the orders: items by the value of one field, the earlier arrival first on ties.

    Items without a value come last. Where items stay, those sampled less often come first.
    """

    @property
    def by(self) -> str:
        """The field whose value decides."""
        raise TypeError(f"{type(self).__name__} names no field")

    @property
    def descending(self) -> bool:
        """Whether the largest value comes first."""
        return False


@dataclass(frozen=True)
class Fifo(Ordered):
    """The item that arrived first.

    >>> import recollect as rc
    >>> table = rc.Table("t", capacity=3, sampler=rc.Fifo())
    >>> _ = table.insert({"x": [10, 20, 30]})
    >>> table.take(2)["x"]
    array([10, 20])
    """

    @property
    def by(self) -> str:
        return "seq"


@dataclass(frozen=True)
class Lifo(Ordered):
    """The item that arrived last."""

    @property
    def by(self) -> str:
        return "seq"

    @property
    def descending(self) -> bool:
        return True


@dataclass(frozen=True)
class Smallest(Ordered):
    """The item with the smallest value of a field, such as `Smallest("priority")`."""

    field: str

    def __post_init__(self) -> None:
        _check_name(self.field)

    @property
    def by(self) -> str:
        return self.field


@dataclass(frozen=True)
class Largest(Ordered):
    """The item with the largest value of a field."""

    field: str

    def __post_init__(self) -> None:
        _check_name(self.field)

    @property
    def by(self) -> str:
        return self.field

    @property
    def descending(self) -> bool:
        return True


@dataclass(frozen=True)
class StalestFirst(Ordered):
    """The item with the lowest version: the order by lag, at whatever step the trainer is."""

    @property
    def by(self) -> str:
        return "version"


@dataclass(frozen=True)
class FreshestFirst(Ordered):
    """The item with the highest version."""

    @property
    def by(self) -> str:
        return "version"

    @property
    def descending(self) -> bool:
        return True


@dataclass(frozen=True)
class Uniform(Selector):
    """Every item with the same probability."""


@dataclass(frozen=True)
class Linear:
    """A number that goes from `start` to `end` over `steps` sample calls, then stays.

    >>> import recollect as rc
    >>> beta = rc.Linear(0.4, 1.0, steps=100)
    >>> beta.at(0), beta.at(50), beta.at(1000)
    (0.4, 0.7, 1.0)
    """

    start: float
    end: float
    steps: int

    def __post_init__(self) -> None:
        _check_number("start", self.start, -1e300)
        _check_number("end", self.end, -1e300)
        if not isinstance(self.steps, int) or isinstance(self.steps, bool) or self.steps < 1:
            raise InvalidValue(f"steps: expected a whole number above 0, got {shown(self.steps)}")

    def at(self, step: int) -> float:
        """The value after `step` steps."""
        done = min(step / self.steps, 1.0)
        return self.start * (1.0 - done) + self.end * done


class Proportional(Selector):
    """Base of the weights: an item with a probability in proportion to field ** alpha.

    Items without a value weigh nothing, as if it were 0. An item that weighs nothing is never drawn
    while another weighs something. A derived class is a dataclass with the attributes below.
    """

    alpha: float
    beta: float | Linear
    half_life: float | None
    stratified: bool
    normalize: str | None

    @property
    def by(self) -> str:
        """The field whose value decides."""
        raise TypeError(f"{type(self).__name__} names no field")

    def beta_at(self, calls: int) -> float:
        """The beta of a sample call, after so many of them."""
        return self.beta.at(calls) if isinstance(self.beta, Linear) else self.beta

    def __post_init__(self) -> None:
        _check_number("alpha", self.alpha, 0.0)
        if isinstance(self.beta, Linear):
            _check_number("beta.start", self.beta.start, 0.0)
            _check_number("beta.end", self.beta.end, 0.0)
        else:
            _check_number("beta", self.beta, 0.0)
        if self.half_life is not None:
            _check_number("half_life", self.half_life, 0.0)
            if self.half_life == 0.0:
                raise InvalidValue("half_life: expected a number above 0, got 0")
        if not isinstance(self.stratified, bool):
            raise InvalidValue(f"stratified: expected True or False, got {shown(self.stratified)}")
        if self.normalize not in ("batch", "table", None):
            raise InvalidValue(
                f"normalize: expected 'batch', 'table' or None, got {shown(self.normalize)}"
            )


@dataclass(frozen=True)
class Prioritized(Proportional):
    """An item with a probability in proportion to priority ** alpha.

    An item of priority 0 is never drawn while another is positive. `weights` of a batch are
    (N · P) ** -beta, divided by the largest of the batch (`normalize="batch"`), of the whole
    table (`"table"`), or not (None). With `half_life=h` an item weighs half as much for every
    h versions that it is older. `stratified` draws one item from each of n equal shares.

    >>> import recollect as rc
    >>> table = rc.Table("t", capacity=9, sampler=rc.Prioritized(alpha=1.0), seed=0)
    >>> keys = table.insert({"x": [0, 1, 2]}, priority=[0.0, 1.0, 3.0])
    >>> batch = table.sample(4)
    >>> batch["x"]
    array([1, 2, 2, 2])
    """

    alpha: float = 0.6
    beta: float | Linear = 0.4
    half_life: float | None = None
    stratified: bool = True
    normalize: str | None = "batch"

    @property
    def by(self) -> str:
        return "priority"


@dataclass(frozen=True)
class Weighted(Proportional):
    """An item with a probability in proportion to field ** alpha, of a numeric field or tag.

    The fields are `priority`, `times_sampled`, `version`, `rows`, `nbytes` and tags of numbers. An
    item without a value weighs nothing, as if it were 0: it is never drawn while another weighs
    something. Negative and infinite values are refused where they are inserted or updated. The
    other arguments are those of `Prioritized`.

    >>> import recollect as rc
    >>> sampler = rc.Weighted("score")
    >>> table = rc.Table("t", capacity=9, sampler=sampler, tags={"score": float}, seed=0)
    >>> keys = table.insert({"x": [0, 1, 2, 3]}, score=[None, 0.0, 1.0, 3.0])
    >>> table.sample(4)["x"]
    array([2, 3, 3, 3])
    """

    field: str
    alpha: float = 1.0
    beta: float | Linear = 0.4
    half_life: float | None = None
    stratified: bool = True
    normalize: str | None = "batch"

    def __post_init__(self) -> None:
        _check_name(self.field)
        super().__post_init__()

    @property
    def by(self) -> str:
        return self.field


@dataclass(frozen=True)
class Mixed(Selector):
    """Several selectors, each for its share of the items.

    Shares hold over time, not by chance: what a small batch rounds away is made up later.

    >>> import recollect as rc
    >>> half_new = rc.Mixed([(rc.Lifo(), 0.5), (rc.Uniform(), 0.5)])
    """

    selectors: tuple[tuple[Selector, float], ...]

    def __post_init__(self) -> None:
        try:
            parts = tuple((part[0], part[1]) for part in self.selectors)
        except (TypeError, IndexError, KeyError) as error:
            raise InvalidValue(
                f"selectors: expected a list of (selector, share), got {shown(self.selectors)}"
            ) from error
        for place, (selector, share) in enumerate(parts):
            if not isinstance(selector, Selector) or isinstance(selector, Mixed):
                raise InvalidValue(
                    f"selectors[{place}]: expected a selector that is not Mixed, got "
                    f"{shown(selector)}"
                )
            if isinstance(selector, Proportional) and selector.normalize == "table":
                raise InvalidValue(
                    f"selectors[{place}]: normalize='table' has no meaning in a mixture; use "
                    "'batch' or None"
                )
            _check_number(f"selectors[{place}][1]", share, 0.0)
        total = math.fsum(float(share) for _, share in parts)
        if total <= 0.0:
            raise InvalidValue("selectors: expected at least one share above 0")
        if abs(total - 1.0) > 1e-9:
            parts = tuple((selector, share / total) for selector, share in parts)
        object.__setattr__(self, "selectors", parts)


def parts_of(*selectors: Selector) -> list[Selector]:
    """Selectors with mixtures taken apart."""
    parts: list[Selector] = []
    for selector in selectors:
        if isinstance(selector, Mixed):
            parts += [part for part, _ in selector.selectors]
        else:
            parts.append(selector)
    return parts


def fields_used(selector: Selector) -> list[str]:
    """The fields that a selector orders or weighs by."""
    return [p.by for p in parts_of(selector) if isinstance(p, Ordered | Proportional)]


def ages(*selectors: Selector) -> bool:
    """Whether one of them weighs items by the age of their version."""
    return any(
        isinstance(part, Proportional) and part.half_life is not None
        for part in parts_of(*selectors)
    )


def largest_alpha(*selectors: Selector) -> float:
    """The highest power that a priority is raised to, at least 1."""
    return _largest_alphas(*selectors).get("priority", 1.0)


def weighed_fields(*selectors: Selector) -> dict[str, float]:
    """The other fields that they weigh by, and the highest power of each."""
    alphas = _largest_alphas(*selectors)
    return {name: alpha for name, alpha in alphas.items() if name != "priority"}


def _largest_alphas(*selectors: Selector) -> dict[str, float]:
    alphas: dict[str, float] = {}
    for part in parts_of(*selectors):
        if isinstance(part, Proportional):
            alphas[part.by] = max(alphas.get(part.by, 1.0), float(part.alpha))
    return alphas


def different_items(deal: Sequence[tuple[Selector, int]], often: int, sampled: int) -> int:
    """How many different items a mixture needs, where `deal` says how many draws each part has.

    An order draws an item once, so it needs as many items as it has draws. Where an item leaves
    after `often` draws (0: never), the parts before the order may use some up, and it needs these
    on top. Each takes one of their draws at least; and all draws count, these and the `sampled`
    ones of earlier calls, of which an item that leaves has had `often`.
    """
    needed, before = 1, 0
    for part, count in deal:
        if count and isinstance(part, Ordered):
            used_up = min(before, (before + sampled) // often) if often else 0
            needed = max(needed, count + used_up)
        before += count
    return needed


def _check_number(name: str, value: object, least: float) -> None:
    if isinstance(value, bool) or not isinstance(value, Real) or not _finite(value):
        raise InvalidValue(f"{name}: expected a finite number, got {shown(value)}")
    if float(value) < least:  # in NumPy's own types the bound may overflow
        raise InvalidValue(f"{name}: expected a number of at least {least:g}, got {shown(value)}")


def _finite(value: Real) -> bool:
    try:
        return -1e300 < float(value) < 1e300
    except OverflowError:
        return False


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name:
        raise InvalidValue(f"field: expected a field's name, got {shown(name)}")
