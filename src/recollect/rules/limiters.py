"""Whether an insert or a sample may go ahead now: pure decisions over three counts.

With I items inserted, S sampled and D removed so far,

    sample k may go if  I - D >= min_size  and  I * spi - S - k >= min_diff
    insert k may go if  I + k - D <= min_size  or  (I + k) * spi - S <= max_diff

where spi is the number of samples per insert. Limiters never wait; the table waits. Where a
call may not go, they say how many inserts, or departures, it needs at the least.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from numbers import Real
from typing import TypeGuard

from recollect.errors import InvalidValue, NeverPossible, shown

LARGEST_SIZE = 1 << 40


@dataclass(slots=True)
class Counts:
    """Items inserted, sampled and removed since the table was made."""

    inserts: int = 0
    samples: int = 0
    removals: int = 0


class Limiter:
    """Base of all limiters."""

    def inserts_needed(self, counts: Counts, k: int) -> int:
        """How many inserts a sample of k waits for; 0 means that it may go."""
        raise TypeError(f"{type(self).__name__} is no limiter")

    def departures_needed(self, counts: Counts, k: int) -> int:
        """How many samples or removals an insert of k waits for, at least; 0: it may go."""
        raise TypeError(f"{type(self).__name__} is no limiter")

    def samples_allowed(self, counts: Counts) -> float:
        """How many items could be sampled at once now; infinity for any number."""
        raise TypeError(f"{type(self).__name__} is no limiter")

    def items_suffice(self) -> bool:
        """Whether k items that are there may always be sampled, whatever was counted."""
        return False

    def check_capacity(self, capacity: int) -> None:
        """Raise where this limiter and a table of this capacity do not go together."""

    def check_bytes(self, items: int, nbytes: int) -> None:
        """Raise where sampling could never begin, because `nbytes` hold at most `items` items."""

    def check_sample(self, k: int) -> None:
        """Raise where a sample of k could never go."""

    def check_insert(self, k: int) -> None:
        """Raise where an insert of k could never go."""

    def check_waiting_sample(self, counts: Counts, k: int, leased: int) -> None:
        """Raise where a sample of k, which must wait now, keeps every insert waiting too."""

    def check_waiting_insert(self, counts: Counts, k: int, leased: int) -> None:
        """Raise where an insert of k, which must wait now, keeps every sample waiting too."""


@dataclass(frozen=True)
class MinSize(Limiter):
    """Sampling waits until the table holds `min_size` items.

    >>> import recollect as rc
    >>> table = rc.Table("t", capacity=10, limiter=rc.MinSize(3))
    >>> _ = table.insert({"x": [1, 2]})
    >>> table.sample(1, timeout=0)
    Traceback (most recent call last):
        ...
    recollect.errors.WaitTimeout: sample(1) on table 't' timed out after 0 s: needs 1 item, has 2; \
limiter MinSize(3) needs 1 more insert
    """

    min_size: int = 1

    def __post_init__(self) -> None:
        _check_size("min_size", self.min_size, 0)

    def __str__(self) -> str:
        return f"MinSize({self.min_size})"

    def inserts_needed(self, counts: Counts, k: int) -> int:
        return max(0, self.min_size - (counts.inserts - counts.removals))

    def departures_needed(self, counts: Counts, k: int) -> int:
        return 0

    def samples_allowed(self, counts: Counts) -> float:
        return 0 if self.inserts_needed(counts, 1) else math.inf

    def items_suffice(self) -> bool:
        return self.min_size <= 1

    def check_capacity(self, capacity: int) -> None:
        _check_min_size(self.min_size, capacity)

    def check_bytes(self, items: int, nbytes: int) -> None:
        _check_min_bytes(self.min_size, items, nbytes)


@dataclass(frozen=True)
class SampleToInsertRatio(Limiter):
    """Keep `ratio` samples per insert: whoever is ahead waits for the other.

    `error_buffer` is how far the two may drift apart: a number e allows samples to be e ahead
    of or behind ratio · min_size; a pair is (min_diff, max_diff) itself. Where inserts come k at a
    time and samples n, an error_buffer of k · ratio + n never stops both.

    >>> import recollect as rc
    >>> rc.SampleToInsertRatio(ratio=4, min_size=100, error_buffer=40).bounds
    (360.0, 440.0)
    """

    ratio: float
    min_size: int = 1
    error_buffer: float | tuple[float, float] = math.inf

    def __post_init__(self) -> None:
        if not _is_number(self.ratio) or not 0.0 < self.ratio < math.inf:
            raise InvalidValue(f"ratio: expected a number above 0, got {shown(self.ratio)}")
        _check_size("min_size", self.min_size, 1)
        low, high = self._parse_bounds()
        object.__setattr__(self, "_bounds", (low, high))
        if not _is_number(self.error_buffer):
            object.__setattr__(self, "error_buffer", (low, high))
        self._check_range(low, high)

    def _check_range(self, low: float, high: float) -> None:
        """Raise where the two sides would stop each other, even one item at a time.

        With ratio = p / q, the difference I * ratio - S moves over multiples of 1 / q: an insert
        by p of them, a sample by q. Where the range holds fewer than p + q, some have room for
        neither, and no way around the others avoids them, since a cycle visits p + q.
        """
        if high - low == math.inf:
            return
        ratio = _as_written(self.ratio)
        p, q = ratio.numerator, ratio.denominator
        if math.isfinite(low) and math.isfinite(high):
            least, most = self._exact_bounds(ratio)
            if math.floor(most * q) - math.ceil(least * q) + 1 >= p + q:
                return
        raise NeverPossible(
            f"error_buffer: the range {high - low:g} between min_diff {low:g} and max_diff "
            f"{high:g} stops inserts and samples at once; use a wider one "
            f"(error_buffer={-(-(p + q - 1) // 2) / q:.12g})"
        )

    def _exact_bounds(self, ratio: Fraction) -> tuple[Fraction, Fraction]:
        if isinstance(self.error_buffer, tuple):
            return _as_written(self.error_buffer[0]), _as_written(self.error_buffer[1])
        center, buffer = ratio * self.min_size, _as_written(self.error_buffer)
        return center - buffer, center + buffer

    def _parse_bounds(self) -> tuple[float, float]:
        buffer = self.error_buffer
        center = self.ratio * self.min_size
        if _is_number(buffer) and buffer >= 0:
            return float(center - buffer), float(center + buffer)
        if isinstance(buffer, tuple | list) and len(buffer) == 2 and all(map(_is_number, buffer)):
            return float(buffer[0]), float(buffer[1])
        raise InvalidValue(
            "error_buffer: expected a number of 0 or more, or (min_diff, max_diff), got "
            f"{shown(buffer)}"
        )

    @property
    def bounds(self) -> tuple[float, float]:
        """min_diff and max_diff."""
        bounds: tuple[float, float] = self._bounds  # type: ignore[attr-defined]
        return bounds

    def inserts_needed(self, counts: Counts, k: int) -> int:
        low, _ = self.bounds
        missing = self.min_size - (counts.inserts - counts.removals)
        behind = low + counts.samples + k - counts.inserts * self.ratio
        return max(0, missing, math.ceil(behind / self.ratio) if behind > 0 else 0)

    def departures_needed(self, counts: Counts, k: int) -> int:
        _, high = self.bounds
        over_size = counts.inserts + k - counts.removals - self.min_size
        ahead = (counts.inserts + k) * self.ratio - counts.samples - high
        if over_size <= 0 or ahead <= 0:
            return 0
        return min(over_size, math.ceil(ahead))

    def samples_allowed(self, counts: Counts) -> float:
        if counts.inserts - counts.removals < self.min_size:
            return 0
        ahead = counts.inserts * self.ratio - counts.samples - self.bounds[0]
        return ahead if math.isinf(ahead) else max(0, math.floor(ahead))

    def check_capacity(self, capacity: int) -> None:
        _check_min_size(self.min_size, capacity)

    def check_bytes(self, items: int, nbytes: int) -> None:
        _check_min_bytes(self.min_size, items, nbytes)

    def check_sample(self, k: int) -> None:
        low, high = self.bounds
        if k > high - low:
            self._refuse(f"a sample of {k}", k)

    def check_insert(self, k: int) -> None:
        low, high = self.bounds
        if k * self.ratio > high - low:
            self._refuse(f"an insert of {k}", k * self.ratio)

    def check_waiting_sample(self, counts: Counts, k: int, leased: int) -> None:
        if self.departures_needed(counts, 1) == 0:
            return  # an insert of one may go, and brings it nearer
        settled = counts.inserts + 1 - counts.removals - leased <= self.min_size
        given_back = Counts(counts.inserts, counts.samples - leased, counts.removals)
        if settled or self.inserts_needed(given_back, k) == 0:
            return  # leases that end let one of the two go
        low, high = self.bounds
        needed = (k + self.ratio) / 2
        raise NeverPossible(
            f"a sample of {k} waits for inserts, and every insert for samples: of {high - low:g} "
            f"between min_diff {low:g} and max_diff {high:g} neither has room; use error_buffer="
            f"{needed:g} or more, or sample at most {self.samples_allowed(counts):g} now"
        )

    def check_waiting_insert(self, counts: Counts, k: int, leased: int) -> None:
        size = counts.inserts - counts.removals
        if self.inserts_needed(counts, 1) == 0 or size + k - leased <= self.min_size:
            return  # a sample of one may go, or leases that are confirmed make room
        _, high = self.bounds
        room = math.floor((high + counts.samples) / self.ratio) - counts.inserts
        needed = max(k * self.ratio, (k * self.ratio + 1.0) / 2)
        raise NeverPossible(
            f"an insert of {k} waits for samples, and every sample for inserts: there are {size} "
            f"items, min_size is {self.min_size} and max_diff {high:g}; use error_buffer="
            f"{needed:g} or more, or insert at most {max(room, self.min_size - size)} now"
        )

    def _refuse(self, what: str, needed: float) -> None:
        low, high = self.bounds
        raise NeverPossible(
            f"{what} can never go: min_diff {low:g} and max_diff {high:g} are {high - low:g} apart "
            f"and it needs {needed:g}; use error_buffer={needed / 2:g} or more, or smaller batches"
        )


@dataclass(frozen=True)
class Queue(Limiter):
    """At most n items: inserts wait for room, samples for items."""

    size: int

    def __post_init__(self) -> None:
        _check_size("size", self.size, 1)

    def __str__(self) -> str:
        return f"{type(self).__name__}({self.size})"

    def inserts_needed(self, counts: Counts, k: int) -> int:
        return max(0, k - (counts.inserts - counts.removals))

    def departures_needed(self, counts: Counts, k: int) -> int:
        return max(0, counts.inserts + k - counts.removals - self.size)

    def samples_allowed(self, counts: Counts) -> float:
        return counts.inserts - counts.removals

    def items_suffice(self) -> bool:
        return True

    def check_capacity(self, capacity: int) -> None:
        if self.size > capacity:
            raise NeverPossible(
                f"{self} never blocks an insert, because the capacity is {capacity}: "
                f"use a size of at most {capacity}"
            )

    def check_sample(self, k: int) -> None:
        if k > self.size:
            raise NeverPossible(f"{k} items are never there: {self} holds at most {self.size}")

    def check_insert(self, k: int) -> None:
        if k > self.size:
            raise NeverPossible(f"an insert of {k} never fits: {self} holds at most {self.size}")


@dataclass(frozen=True)
class Stack(Queue):
    """The same bound as `Queue`, for a table that samples the newest first."""


def _is_number(value: object) -> TypeGuard[float]:
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    return value in (math.inf, -math.inf) or -1e300 < float(value) < 1e300


def _as_written(number: float) -> Fraction:
    """The fraction that somebody means who writes 0.1."""
    return Fraction(float(number)).limit_denominator(10**6)


def _check_size(name: str, value: object, least: int) -> None:
    if isinstance(value, int) and value > LARGEST_SIZE:
        raise InvalidValue(f"{name}: expected at most {LARGEST_SIZE}, got {value}")
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InvalidValue(
            f"{name}: expected a whole number of at least {least}, got {shown(value)}"
        )


def _check_min_size(min_size: int, capacity: int) -> None:
    if min_size > capacity:
        raise NeverPossible(
            f"min_size {min_size} is above the capacity {capacity}, so sampling could never start; "
            "make it smaller, or the capacity larger"
        )


def _check_min_bytes(min_size: int, items: int, nbytes: int) -> None:
    if min_size > items:
        raise NeverPossible(
            f"min_size {min_size} is never reached: {nbytes} bytes hold at most {items} items of "
            "these columns; make it smaller, or capacity_bytes larger"
        )
