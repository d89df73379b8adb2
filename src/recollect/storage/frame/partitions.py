"""Partitions of a frame: where the items with equal values of a few fields are.

A query that fixes those fields is answered from the positions that its partitions hold, and the
rest of the frame is not looked at. A position is added when an item comes or moves in. Those
that left are passed over, and forgotten when they are the greater part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from recollect.base.arrays import Ints
from recollect.storage.frame.items import GONE, ItemFrame
from recollect.storage.partition_counts import Values, admitted


class Members:
    """The positions that one partition was given, and how many items it has."""

    def __init__(self) -> None:
        self.positions: Ints = np.zeros(16, np.int64)
        self.count = 0  # of positions
        self.live = 0  # items

    def add(self, positions: Ints) -> None:
        needed = self.count + positions.size
        if needed > self.positions.size:
            grown = np.zeros(max(2 * self.positions.size, needed), np.int64)
            grown[: self.count] = self.positions[: self.count]
            self.positions = grown
        self.positions[self.count : needed] = positions
        self.count = needed
        self.live += positions.size

    def keep(self, positions: Ints) -> None:
        self.positions = np.zeros(max(16, 2 * positions.size), np.int64)
        self.positions[: positions.size] = positions
        self.count = positions.size


class FramePartitions:
    """The partitions of a frame. Its caller holds the lock."""

    def __init__(self, by: tuple[str, ...], items: ItemFrame) -> None:
        self.by = by
        self._items = items
        self._numbers: dict[Values, int] = {}
        self._members: list[Members] = []

    # -- following the items ----------------------------------------------------------------------
    def place(self, positions: Ints) -> None:
        """Items came, or have other values now: enter them where they belong."""
        numbers = np.array(
            [self._number(key) for key in self._items.partition_keys(self.by, positions)], np.int32
        )
        self._items.write("partition", positions, numbers)
        for number in np.unique(numbers).tolist():
            self._members[number].add(positions[numbers == number])

    def leave(self, positions: Ints) -> None:
        """Items have left, or are about to be placed anew."""
        numbers, counts = np.unique(self._items["partition"][positions], return_counts=True)
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            self._members[number].live -= count

    def rebuild(self) -> None:
        """Positions have changed: place every stored item again."""
        self._numbers, self._members = {}, []
        self.place(self._items.stored())

    def _number(self, values: Values) -> int:
        number = self._numbers.get(values)
        if number is None:
            number = self._numbers[values] = len(self._members)
            self._members.append(Members())
        return number

    # -- answering --------------------------------------------------------------------------------
    def positions(self, wanted: Mapping[str, frozenset[Any]]) -> Ints:
        """The stored items of the partitions that a query admits, in the order of arrival."""
        found = [self._positions_of(number) for number in self._admitted(wanted)]
        return np.sort(np.concatenate(found)) if found else np.zeros(0, np.int64)

    def count(self, wanted: Mapping[str, frozenset[Any]]) -> int:
        """How many items those are."""
        return sum(self._members[number].live for number in self._admitted(wanted))

    def groups(self, fields: Sequence[str]) -> list[tuple[Values, int]]:
        """The values of some of the fields, and how many items each partition has."""
        places = [self.by.index(name) for name in fields]
        return [
            (tuple(values[place] for place in places), self._members[number].live)
            for values, number in self._numbers.items()
        ]

    def _positions_of(self, number: int) -> Ints:
        members = self._members[number]
        given = members.positions[: members.count]
        here = self._items["partition"][given] == number
        here &= self._items["state"][given] != GONE
        positions = np.unique(given[here])  # an item that left and came back is there twice
        if members.count > 2 * positions.size + 16:
            members.keep(positions)
        return positions

    def _admitted(self, wanted: Mapping[str, frozenset[Any]]) -> list[int]:
        return admitted(self.by, self._numbers, wanted)
