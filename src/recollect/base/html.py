"""Pieces of HTML for notebooks: panels, grids, bars that fill, small histograms.

They know numbers and text alone. What a table or a buffer shows of itself is composed beside it,
in a module called `..._html`, of values that were read without changing anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

LOOKED_AT = 2048  # items at most, for a histogram
BINS, WIDTH, HEIGHT = 24, 144, 28  # of a histogram; the last two in pixels

Pairs = Iterable[tuple[str, str]]


def sparkline(values: ArrayLike, what: str) -> str:
    """A histogram as a small picture, with the lowest and the highest value beside it.

    >>> "<svg" in sparkline([0, 0, 1, 5], "lag")
    True
    """
    numbers = np.asarray(values, np.float64)
    numbers = numbers[np.isfinite(numbers)]
    if not numbers.size:
        return "none"
    low, high = numbers.min(), numbers.max()
    whole = bool((numbers == np.floor(numbers)).all()) and high - low < BINS
    bins = int(high - low) + 1 if whole else BINS
    bounds = (low - 0.5, high + 0.5) if whole else (low, high if high > low else low + 1.0)
    counts, _ = np.histogram(numbers, bins, bounds)
    width = WIDTH / bins
    bars = "".join(
        f'<rect x="{place * width:.1f}" y="{HEIGHT * (1 - share):.1f}" '
        f'width="{max(width - 1, 0.5):.1f}" height="{HEIGHT * share:.1f}"/>'
        for place, share in enumerate((counts / counts.max()).tolist())
        if share
    )
    said = f"{what} from {low:g} to {high:g}"
    return (
        f"{low:g}&nbsp;<svg width='{WIDTH}' height='{HEIGHT}' fill='currentColor' role='img' "
        f"aria-label='{escape(said, quote=True)}' style='vertical-align:middle'>"
        f"<title>{escape(said)}</title>{bars}</svg>&nbsp;{high:g}"
    )


def panel(title: str, rows: Pairs, below: str = "") -> str:
    """A title, and names with what they stand for; values are HTML already."""
    listed = "".join(
        f"<tr><th style='text-align:left;font-weight:normal;opacity:.7'>{escape(name)}</th>"
        f"<td style='text-align:left'>{value}</td></tr>"
        for name, value in rows
    )
    return f"<div><strong>{escape(title)}</strong><table>{listed}</table>{below}</div>"


def closed(title: str) -> str:
    """The panel of something that was closed."""
    return panel(title, [("closed", "make a new one to go on")])


def grid(corner: str, columns: Sequence[str], rows: Mapping[str, Sequence[str]]) -> str:
    """A table with names on two sides."""
    head = "".join(f"<th>{escape(name)}</th>" for name in (corner, *columns))
    body = "".join(
        f"<tr><th style='text-align:left'>{escape(name)}</th>"
        + "".join(f"<td style='text-align:right'>{escape(cell)}</td>" for cell in cells)
        + "</tr>"
        for name, cells in rows.items()
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def filled(held: int, capacity: int | None, what: str) -> str:
    """How much of a capacity is used, with a bar; without a capacity the number alone."""
    if capacity is None:
        return f"{held:,} {what}"
    return (
        f"{held:,} of {capacity:,} {what} "
        f"<progress value='{held}' max='{capacity}' style='vertical-align:middle'></progress>"
    )


def thinned(values: NDArray[Any]) -> NDArray[Any]:
    """At most `LOOKED_AT` of the values, spread evenly over their order."""
    step = -(-values.size // LOOKED_AT)
    return np.sort(values)[::step].copy()
