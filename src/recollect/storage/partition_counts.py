"""Partitions: items grouped by the values of a few fields, and counted per group.

A query that fixes those fields is answered from its partitions, without a look at any item.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recollect.kernels import layout

Values = tuple[Any, ...]

COUNTS = (layout.A_PARTITION_LIVE, layout.A_PARTITION_SAMPLED, layout.A_PARTITION_VISIBLE)


def admitted(
    by: tuple[str, ...], numbers: Mapping[Values, int], wanted: Mapping[str, frozenset[Any]]
) -> list[int]:
    """The numbers of the partitions that a query admits."""
    if len(wanted) == len(by) and all(len(values) == 1 for values in wanted.values()):
        number = numbers.get(tuple(next(iter(wanted[name])) for name in by))
        return [] if number is None else [number]
    return [
        number
        for values, number in numbers.items()
        if all(
            value in wanted[name] for name, value in zip(by, values, strict=True) if name in wanted
        )
    ]


class Partitions:
    """The numbers of the partitions of a table, and their counts."""

    def __init__(self, by: tuple[str, ...], block: NDArray[np.int64]) -> None:
        self.by = by
        self._block = block
        self._numbers: dict[Values, int] = {}
        self._counts: dict[int, NDArray[np.int64]] = {}
        self._admitted: dict[int, tuple[Mapping[str, frozenset[Any]], int, list[int]]] = {}
        if by:
            self._resize(16)

    def _resize(self, size: int) -> None:
        for position in COUNTS:
            counts = np.zeros(size, np.int64)
            if position in self._counts:
                counts[: self._counts[position].size] = self._counts[position]
            self._counts[position] = counts
            self._block[position] = counts.ctypes.data

    def find(self, values: Values) -> int | None:
        return self._numbers.get(values)

    def add(self, values: Values, number: int) -> None:
        self._numbers[values] = number
        if number >= self.live.size:
            self._resize(2 * self.live.size)

    def all(self) -> list[Values]:
        """The values of every partition, in the order of their numbers."""
        return list(self._numbers)

    @property
    def live(self) -> NDArray[np.int64]:
        """Items by partition, hidden ones included."""
        return self._counts[layout.A_PARTITION_LIVE]

    def admitted(self, wanted: Mapping[str, frozenset[Any]]) -> list[int]:
        """The partitions that a query admits; worked out once for each query and new partition."""
        known = self._admitted.get(id(wanted))
        if known is not None and known[0] is wanted and known[1] == len(self._numbers):
            return known[2]
        numbers = admitted(self.by, self._numbers, wanted)
        if len(self._admitted) >= 256:
            self._admitted.clear()
        self._admitted[id(wanted)] = (wanted, len(self._numbers), numbers)
        return numbers

    def stored(self, numbers: list[int]) -> int:
        """Items in some partitions, hidden ones included."""
        return int(self.live[numbers].sum()) if numbers else 0

    def available(self, numbers: list[int]) -> tuple[int, int]:
        """Visible items in some partitions, and how often they were sampled."""
        if not numbers:
            return 0, 0
        visible = self._counts[layout.A_PARTITION_VISIBLE]
        sampled = self._counts[layout.A_PARTITION_SAMPLED]
        if len(numbers) == 1:
            return int(visible[numbers[0]]), int(sampled[numbers[0]])
        return int(visible[numbers].sum()), int(sampled[numbers].sum())

    def groups(self, fields: tuple[str, ...]) -> list[tuple[Values, int]]:
        """The values of some of the fields, and how many items each partition has."""
        places = [self.by.index(name) for name in fields]
        return [
            (tuple(values[place] for place in places), int(self.live[number]))
            for values, number in self._numbers.items()
        ]
