"""How numbers read in the tables: rates, ratios, spreads and verdicts."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

NOTHING = "-"


def rate(values: Sequence[float]) -> str:
    """Median and range of items per second: `1.73 M (1.60-1.80)`."""
    middle = statistics.median(values)
    unit, letter = next(
        (pair for pair in ((1e9, " G"), (1e6, " M"), (1e3, " k")) if middle >= pair[0]), (1, "")
    )
    scaled = f"{_short(middle / unit)}{letter}"
    if len(values) == 1:
        return scaled
    return f"{scaled} ({_short(min(values) / unit)}-{_short(max(values) / unit)})"


def seconds(values: Sequence[float]) -> str:
    """Median and range of a duration, in a unit that suits it."""
    middle = statistics.median(values)
    unit, name = next(
        (pair for pair in ((1.0, "s"), (1e-3, "ms")) if middle >= pair[0]), (1e-6, "us")
    )
    scaled = f"{_short(middle / unit)} {name}"
    if len(values) == 1:
        return scaled
    return f"{scaled} ({_short(min(values) / unit)}-{_short(max(values) / unit)})"


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """Ratio of the medians, and the range of the ratios round by round."""
    middle = statistics.median(ours) / statistics.median(theirs)
    rounds = [mine / other for mine, other in zip(ours, theirs, strict=False)]
    if len(rounds) == 1:
        return f"{middle:.2f}"
    return f"{middle:.2f} ({min(rounds):.2f}-{max(rounds):.2f})"


def bound(value: float | None) -> str:
    """A bound of the issue, or nothing."""
    return NOTHING if value is None else f"{value:g}"


def verdict(reached: float, must: float | None, aim: float | None = None) -> str:
    """Whether a ratio reached what it must, or even what it aims for."""
    if must is None:
        return NOTHING
    if reached < must:
        return "FAIL"
    return "aim" if aim is not None and reached >= aim else "pass"


def limit(value: float, most: float) -> str:
    """Whether a cost stays within its bound."""
    return "pass" if value <= most else "FAIL"


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
