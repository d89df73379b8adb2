"""How many of n items each selector of a mixture gets."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from recollect.rules.selectors import Mixed, Selector

# What each selector of a mixture is still owed. Removers have their own account.
Credits = dict[tuple[Mixed, bool], NDArray[np.float64]]


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
