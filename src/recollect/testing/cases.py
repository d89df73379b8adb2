"""What the tests try: selectors, columns, values of fields, and queries with their meaning."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from recollect.data.schema import Column
from recollect.rules.query import field, parse
from recollect.rules.selectors import (
    Fifo,
    FreshestFirst,
    Largest,
    Lifo,
    Linear,
    Mixed,
    Prioritized,
    Selector,
    Smallest,
    StalestFirst,
    Uniform,
    Weighted,
)
from recollect.testing.model import Item, Predicate

TASKS = ("math", "code", "chat", None)
STATUSES = ("done", "failed", None)
TAGS = {"score": float, "level": int, "hard": bool, "kind": str, "worth": float, "size": int}
TAG_VALUES: dict[str, tuple[Any, ...]] = {
    "score": (0.0, -0.5, 0.25, 3.5, None),
    "level": (-2, 0, 1, 7, None),
    "hard": (True, False, None),
    "kind": ("a", "b", "", None),
    "worth": (0.0, 0.5, 2.0, 7.0, None),  # never negative: items may be weighed by it
    "size": (3, 0, 1, None),
}
PRIORITIES = (0.0, 0.1, 0.5, 1.0, 1.0, 2.0, 7.5)

PLAIN = {"x": Column("int64")}
RICH = {
    "x": Column("int64"),
    "obs": Column("float32", (3,)),
    "tokens": Column("int32", ragged=True),
    "text": Column("str", optional=True),
    "image": Column("uint8", (2,), optional=True),
}
SHARED = {"prompt": Column("str", shared=True)}
OPTIONAL_SHARED = {"prompt": Column("str", shared=True, optional=True)}

ORDERS: list[Selector] = [
    Fifo(),
    Lifo(),
    StalestFirst(),
    FreshestFirst(),
    *(Smallest(name) for name in ("priority", "version", "times_sampled", "score", "nbytes")),
    *(Largest(name) for name in ("priority", "version", "level", "hard", "rows", "key")),
    Smallest("inserted_at"),
    Largest("inserted_at"),
    Largest("times_sampled"),
    Largest("seq"),
]
CHANCES: list[Selector] = [
    Uniform(),
    Prioritized(),
    Prioritized(alpha=1.0, beta=1.0, stratified=False, normalize=None),
    Prioritized(alpha=0.0, beta=Linear(0.4, 1.0, 10), normalize="table"),
    Prioritized(alpha=2.0, normalize="table"),
    Prioritized(alpha=1.0, half_life=2.0),
    Weighted("worth"),
    Weighted("size", alpha=0.5, beta=1.0, stratified=False, normalize=None),
    Weighted("worth", alpha=2.0, half_life=1.0, normalize="table"),
    Weighted("times_sampled", normalize="table"),
    Weighted("hard"),
    Weighted("nbytes", alpha=2.0),
    Prioritized(half_life=0.5, normalize="table", stratified=False),
]
MIXTURES: list[Selector] = [
    Mixed(((Lifo(), 0.5), (Uniform(), 0.5))),
    Mixed(((Prioritized(), 0.7), (Fifo(), 0.3))),
    Mixed(((Smallest("priority"), 0.6), (Largest("version"), 0.4))),
    Mixed(((Uniform(), 1), (Prioritized(alpha=1.0), 1), (StalestFirst(), 1))),
    Mixed(((Weighted("worth"), 0.5), (Prioritized(), 0.25), (Fifo(), 0.25))),
    Mixed(((Weighted("times_sampled"), 0.5), (Weighted("rows"), 0.5))),
]
REMOVERS: list[Selector] = [
    Fifo(),
    Lifo(),
    Smallest("priority"),
    Largest("times_sampled"),
    StalestFirst(),
    Uniform(),
    Prioritized(alpha=1.0),
    Weighted("times_sampled"),
    Weighted("worth", alpha=0.5),
    Mixed(((Smallest("score"), 0.5), (Fifo(), 0.5))),
]
# Text that would do harm in a language that a storage might write its queries in.
HOSTILE = (
    "'; DROP TABLE items; --",
    'x" OR "1"="1',
    "math' OR 'a'='a",
    "%",
    "_____",
    "back\\slash\\'",
    "${name} :task %(task)s ? $1 {0}",
    "NULL",
    "",
    " ",
    "tab\tand\nline",
    "zero\x00inside",
    "日本語 ñ 🎲",
    "a" * 5000,
)


@dataclass(frozen=True)
class Case:
    """A query in one of its forms, and what it says of an item of the model."""

    query: Any
    holds: Predicate

    def __str__(self) -> str:
        return str(self.query)


def _number(name: str, holds: Callable[[Any], bool]) -> Predicate:
    def meets(item: Item) -> bool:
        value = item.value(name)
        return value is not None and holds(value)

    return meets


QUERIES = [
    Case(field("task") == "math", lambda i: i.value("task") == "math"),
    Case(field("task") != "math", lambda i: i.value("task") != "math"),
    Case(field("task") == None, lambda i: i.value("task") is None),  # noqa: E711
    Case(field("status") != None, lambda i: i.value("status") is not None),  # noqa: E711
    Case(field("task").isin(["math", "code"]), lambda i: i.value("task") in ("math", "code")),
    Case(field("kind") == "", lambda i: i.value("kind") == ""),
    Case(field("hard") == True, lambda i: i.value("hard") is True),  # noqa: E712
    Case(field("hard") != False, lambda i: i.value("hard") is not False),  # noqa: E712
    Case(field("score") > 0.2, _number("score", lambda v: v > 0.2)),
    Case(~(field("score") > 0.2), lambda i: not _number("score", lambda v: v > 0.2)(i)),
    Case(field("score").between(-0.5, 0.25), _number("score", lambda v: -0.5 <= v <= 0.25)),
    Case(field("level") >= 0.5, _number("level", lambda v: v >= 1)),
    Case(field("level").isin([-2, 7, 10**30]), _number("level", lambda v: v in (-2, 7))),
    Case(field("version") < 2, _number("version", lambda v: v < 2)),
    Case(field("version") <= 2**63, _number("version", lambda v: True)),
    Case(field("priority") >= 1, lambda i: i.value("priority") >= 1),
    Case(field("times_sampled") == 0, lambda i: i.times_sampled == 0),
    Case(field("rows") > 1, lambda i: len(i.rows) > 1),
    Case(field("nbytes") < 40, lambda i: i.nbytes < 40),
    Case(
        (field("task") == "math") & (field("status") == "done"),
        lambda i: i.value("task") == "math" and i.value("status") == "done",
    ),
    Case(
        (field("task") == "math") & ((field("score") < 0) | (field("level") == 7)),
        lambda i: (
            i.value("task") == "math"
            and (_number("score", lambda v: v < 0)(i) or i.value("level") == 7)
        ),
    ),
    Case(
        parse("task = 'math' and not (score > 0.2 or hard = true)"),
        lambda i: (
            i.value("task") == "math"
            and not (_number("score", lambda v: v > 0.2)(i) or i.value("hard") is True)
        ),
    ),
    Case({"task": "code", "score": {"gt": 0}}, lambda i: (
        i.value("task") == "code" and _number("score", lambda v: v > 0)(i)
    )),
    Case({"level": {"absent": True}}, lambda i: i.value("level") is None),
    Case(field("task").isin([]), lambda i: False),
]  # fmt: skip


def critical(freedom: int) -> float:
    """What chi-square exceeds with a probability of 1e-4 (Wilson and Hilferty's formula)."""
    part = 2.0 / (9.0 * freedom)
    return float(freedom * (1.0 - part + 3.719 * part**0.5) ** 3)


def check_frequencies(drawn: Any, weights: Any) -> None:
    """Draws of 0 to n-1 have frequencies in proportion to weights, none where that is 0."""
    weights = np.asarray(weights, float)
    counts = np.bincount(drawn, minlength=weights.size)
    assert counts.size == weights.size, f"something else was drawn: {counts}"
    assert not counts[weights == 0].any(), f"an item of weight 0 was drawn: {counts}"
    here = weights > 0
    if here.sum() == 1:
        return
    expected = len(drawn) * weights[here] / weights.sum()
    statistic = float(((counts[here] - expected) ** 2 / expected).sum())
    limit = critical(int(here.sum()) - 1)
    assert statistic < limit, (
        f"chi-square {statistic:.1f} is above {limit:.1f}: drawn {counts[here].tolist()}, "
        f"expected about {expected.round().tolist()}"
    )
