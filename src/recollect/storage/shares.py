"""What each selector of a mixture gets of n items, and what is said of those that it drew."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from recollect.base.arrays import Floats
from recollect.rules.selectors import Mixed, Ordered, Proportional, Selector

# What each selector of a mixture is still owed. Removers have their own account.
Credits = dict[tuple[Mixed, bool], Floats]


def dealt(
    credits: Credits, selector: Mixed, n: int, *, evicting: bool
) -> list[tuple[Selector, int]]:
    """Deals n by shares; what rounding takes from one it gets at a later call."""
    shares = np.array([share for _, share in selector.selectors])
    owed = credits.setdefault((selector, evicting), np.zeros(shares.size))
    owed += shares * n
    counts = np.maximum(np.floor(owed), 0).astype(np.int64)
    while counts.sum() > n:
        counts[np.argmin(np.where(counts > 0, owed - counts, np.inf))] -= 1
    while counts.sum() < n:
        counts[np.argmax(np.where(shares > 0, owed - counts, -np.inf))] += 1
    owed -= counts
    parts = [part for part, _ in selector.selectors]
    return list(zip(parts, counts.tolist(), strict=True))


def next_deal(credits: Credits, selector: Mixed, n: int) -> list[tuple[Selector, int]]:
    """How the next n draws will be dealt, which changes no account."""
    account = (selector, False)
    copied = {account: credits[account].copy()} if account in credits else {}
    return dealt(copied, selector, n, evicting=False)


def in_mixture(
    mixture: Mixed,
    counts: Sequence[int],
    alone: Floats,
    chances: Callable[[Selector], Floats],
) -> Floats:
    """The probability of each drawn item under a whole mixture.

    `counts` says how many items each selector drew, `alone` the probability that each had there,
    `chances` the probability that each has under a selector. An order chooses and does not draw: to
    what it chose, it adds its whole share. An item that left with this draw, or came when only
    items without weight were left, keeps the probability under the selector that drew it.
    """
    probability = np.zeros(alone.size)
    start = 0
    for (part, share), count in zip(mixture.selectors, counts, strict=True):
        own = slice(start, start + count)
        start += count
        if isinstance(part, Ordered):
            probability[own] += share
            continue
        under = chances(part)
        under[own] = np.where(under[own] == 0.0, alone[own], under[own])
        probability += share * under
    return probability


def importance_in(mixture: Mixed, probability: Floats, size: int, calls: int) -> Floats | None:
    """The weights of items drawn by a mixture, as its first weighing part says; None without one.

    `size` is how many items there were to draw from, `calls` how many sample calls came before.
    """
    for part, _ in mixture.selectors:
        if isinstance(part, Proportional):
            reference = 1.0 / max(1, size) if part.normalize is None else probability.min()
            weights: Floats = (probability / reference) ** -part.beta_at(calls)
            return weights
    return None
