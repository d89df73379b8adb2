"""Indexes: what the memory storage keeps so that a selector finds its item without a scan.

`IndexKind` says what an index orders or weighs; it is made from a selector. `Index` owns the
arrays of one index and one row of the index table, which kernels read and write. `IndexTable`
holds the rows of all: those over all items, and those kept once per partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from recollect.base.arrays import Array, Ints
from recollect.kernels import layout
from recollect.rules.natures import unexecutable
from recollect.rules.selectors import Ordered, Proportional, Selector, Uniform
from recollect.storage.buffers import aligned_zeros


@dataclass(frozen=True)
class IndexKind:
    """What an index is about: two selectors with equal kinds share one index."""

    kind: int
    by: str = "seq"
    descending: bool = False
    leveled: bool = False
    alpha: float = 1.0
    half_life: float | None = None
    smallest: bool = False

    @classmethod
    def of(cls, selector: Selector, *, staying: bool) -> IndexKind:
        """The index that executes a selector; `staying` where chosen items stay in the table."""
        if isinstance(selector, Ordered):
            by, descending = selector.by, selector.descending
            return cls(layout.ORDER, by=by, descending=descending, leveled=staying)
        if isinstance(selector, Proportional):
            return cls(
                layout.WEIGHT,
                by=selector.by,
                alpha=float(selector.alpha),
                half_life=selector.half_life,
                smallest=selector.normalize == "table",
            )
        if isinstance(selector, Uniform):
            return cls(layout.UNIFORM)
        raise unexecutable(selector)

    def saved(self) -> dict[str, Any]:
        """As plain data; a weight by priority as it was written when there was no other."""
        by_priority = self.kind == layout.WEIGHT and self.by == "priority"
        return asdict(self) | ({"by": "seq"} if by_priority else {})

    @classmethod
    def of_saved(cls, saved: Mapping[str, Any]) -> IndexKind:
        """What `saved` returned."""
        by_priority = saved["kind"] == layout.WEIGHT and saved["by"] == "seq"
        return cls(**{**saved, "by": "priority" if by_priority else saved["by"]})


@dataclass(frozen=True)
class IndexedValue:
    """Where an order or a weight finds its value: type in kernels, array, marker for absent."""

    type: int
    array: Array | None = None
    absent: int = -(1 << 63)


class Index:
    """The arrays of one index. `row` is its row of the index table.

    `dense` says that members stand in places of their own, and not in those of their slots.
    """

    def __init__(self, kind: IndexKind, row: Ints, depends: int, dense: bool) -> None:
        self.kind = kind
        self.dense = dense or kind.kind == layout.UNIFORM
        self.arrays: dict[int, Array] = {}
        self.row = row
        self.now = row.data  # the same numbers, quicker to read one by one
        self.room = 0  # members, or leaves, that fit
        row[:] = 0
        row[layout.KIND] = kind.kind
        row[layout.DEPENDS] = depends
        if kind.kind == layout.ORDER:
            row[layout.LEVELED] = kind.leveled
            row[layout.DESCENDING] = kind.descending
            row[layout.HEAD] = row[layout.TAIL] = -1
        elif kind.kind == layout.WEIGHT:
            parameters = np.zeros(layout.PARAMETERS)
            parameters[layout.ALPHA] = kind.alpha
            parameters[layout.RATE] = 0.0 if kind.half_life is None else 1.0 / kind.half_life
            self._set(layout.A_PARAMETERS, parameters)

    def _set(self, position: int, array: Array) -> None:
        """Own an array, and let kernels see it."""
        self.arrays[position] = array
        self.row[position] = array.ctypes.data

    def set_value(self, value: IndexedValue) -> None:
        """Say where an order or a weight finds its value."""
        self.row[layout.VALUE_TYPE] = value.type
        self.row[layout.ABSENT] = value.absent
        if value.array is not None:
            self._set(layout.A_VALUE, value.array)

    def moved_to(self, row: Ints) -> None:
        """The index table was laid out anew."""
        row[:] = self.row
        self.row, self.now = row, row.data

    def resize_slots(self, slots: int, family: dict[int, Array] | None = None) -> None:
        """Make the arrays by slot large enough; the partitions of a family share theirs."""
        for position, dtype in self._by_slot():
            if family is None:
                self._set(position, _resized(self.arrays.get(position), slots, dtype))
                continue
            if position not in family:
                family[position] = _resized(self.arrays.get(position), slots, dtype)
            self._set(position, family[position])

    def _by_slot(self) -> Iterator[tuple[int, Any]]:
        if self.kind.kind == layout.ORDER:
            yield layout.A_NEXT, np.int32
            yield layout.A_PREVIOUS, np.int32
            yield layout.A_HEAP_PLACE, np.int32
            if self.kind.by != "seq":
                yield layout.A_SORT, np.int64
        elif self.dense:
            yield layout.A_PLACE, np.int32

    def reserve(self, members: int) -> bool:
        """Make room for so many members; returns whether trees must be added up anew."""
        if members <= self.room:
            return False
        self.room = members
        kind = self.kind.kind
        if kind == layout.ORDER:
            words = (members + layout.FIRST_ENTRY + 1) * layout.ENTRY // 8
            self._set(layout.A_HEAP, _resized(self.arrays.get(layout.A_HEAP), words, np.int64))
        elif self.dense:
            array = _resized(self.arrays.get(layout.A_MEMBERS), members, np.int32)
            self._set(layout.A_MEMBERS, array)
        if kind == layout.WEIGHT:
            self._resize_trees(members)
        return kind == layout.WEIGHT

    def _resize_trees(self, leaves: int) -> None:
        old = int(self.row[layout.LEAVES])
        offsets = _level_offsets(leaves)
        self.row[layout.LEAVES] = leaves
        self.row[layout.LEVELS] = len(offsets)
        self.row[layout.OFFSETS : layout.OFFSETS + 9] = 0
        self.row[layout.OFFSETS : layout.OFFSETS + len(offsets)] = offsets
        kept = {layout.A_TREE, *(p for p in (layout.A_ZEROS,) if p in self.arrays)}
        for position in kept:
            tree = aligned_zeros((offsets[-1] + 1,), np.float64)
            if position in self.arrays:
                tree[:old] = self.arrays[position][:old]
            self._set(position, tree)
        if self.kind.smallest:
            self._set(layout.A_SMALLEST, aligned_zeros((offsets[-1] + 1,), np.float64))

    def count_zeros(self) -> None:
        """Begin to count items of weight zero."""
        if self.kind.kind == layout.WEIGHT and layout.A_ZEROS not in self.arrays:
            self._set(layout.A_ZEROS, aligned_zeros((self.arrays[layout.A_TREE].size,), np.float64))

    @property
    def count(self) -> int:
        count: int = self.now[layout.COUNT]
        return count

    @property
    def total(self) -> float:
        """The sum of weights."""
        top = self.row[layout.OFFSETS + self.row[layout.LEVELS] - 1]
        return float(self.arrays[layout.A_TREE][top])

    @property
    def reference(self) -> float:
        """The version at which an item weighs value ** alpha, 0 where weights do not age."""
        if self.kind.half_life is None:
            return 0.0
        return float(self.arrays[layout.A_PARAMETERS][layout.REFERENCE])

    @reference.setter
    def reference(self, version: float) -> None:
        self.arrays[layout.A_PARAMETERS][layout.REFERENCE] = version

    def reference_to(self, version: float) -> None:
        """Set the reference of an index whose weights age; others have none."""
        if self.kind.half_life is not None:
            self.reference = version


class IndexTable:
    """All indexes of a table, and the table of rows that kernels get.

    Rows: the indexes over all items, then for each partition one per family, then one row for
    an index that is made for a single call.
    """

    def __init__(self, block: Ints) -> None:
        self._block = block
        self.table = np.zeros((1, layout.INDEX_BLOCK), np.int64)
        self.whole: list[Index] = []
        self.families: list[IndexKind] = []
        self.partitions: list[list[Index]] = []
        self.layouts = 0  # how often rows were laid out: what was found out before may be wrong

    def __iter__(self) -> Iterator[Index]:
        yield from self.whole
        for partition in self.partitions:
            yield from partition

    def _lay_out(self) -> None:
        """Give every index its row in a new table."""
        families = len(self.families)
        rows = len(self.whole) + len(self.partitions) * families + 1
        table = np.zeros((rows, layout.INDEX_BLOCK), np.int64)
        for place, index in enumerate(self):
            index.moved_to(table[place])
        self.table = table
        self.layouts += 1
        self._block[layout.GLOBALS] = len(self.whole)
        self._block[layout.FAMILIES] = families

    def find(self, kind: IndexKind) -> int | None:
        """The row of an index over all items."""
        for row, index in enumerate(self.whole):
            if index.kind == kind:
                return row
        return None

    def add_whole(self, index: Index) -> int:
        self.whole.append(index)
        self._lay_out()
        return len(self.whole) - 1

    def add_family(self, kind: IndexKind, make: Callable[[IndexKind], Index]) -> int:
        """Keep an index of this kind in every partition, those to come included."""
        self.families.append(kind)
        for partition in self.partitions:
            partition.append(make(kind))
        self._lay_out()
        return len(self.families) - 1

    def add_partition(self, make: Callable[[IndexKind], Index]) -> int:
        self.partitions.append([make(kind) for kind in self.families])
        self._lay_out()
        return len(self.partitions) - 1

    def keep(self, kinds: set[IndexKind]) -> None:
        """Drop every index of another kind."""
        self.whole = [index for index in self.whole if index.kind in kinds]
        kept = [place for place, kind in enumerate(self.families) if kind in kinds]
        self.families = [self.families[place] for place in kept]
        self.partitions = [[partition[p] for p in kept] for partition in self.partitions]
        self._lay_out()

    def at(self, row: int) -> Index:
        """The index at a row of the table."""
        if row < len(self.whole):
            return self.whole[row]
        partition, family = divmod(row - len(self.whole), len(self.families))
        return self.partitions[partition][family]

    def row_of(self, partition: int, family: int) -> int:
        return len(self.whole) + partition * len(self.families) + family

    @property
    def scratch(self) -> int:
        """The row of the index that is made for a single call."""
        return len(self.table) - 1


def _resized(array: Array | None, size: int, dtype: Any) -> Array:
    """Zeros that keep what was there. Pages that nobody writes take no memory."""
    resized = aligned_zeros((size,), dtype)
    if array is not None:
        kept = min(size, array.size)
        resized[:kept] = array[:kept]
    return resized


def _level_offsets(leaves: int) -> list[int]:
    """Where each level of a tree with 16 children a node begins; the last has one node."""
    offsets = [0]
    width = leaves
    while True:
        padded = (width + 15) & ~15
        offsets.append(offsets[-1] + padded)
        width = padded >> 4
        if width == 1:
            return offsets
