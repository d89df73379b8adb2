"""Indexes of legal starts: one for each kind of draw in use.

`StartKind` says what makes a start legal. `Starts` owns the indexes; kernels update them with every
row that comes and goes. An index is made by one scan when its kind is first drawn. At most four
kinds of sequences have one: a fifth takes the place of the least recently used, which costs a scan
when it is drawn again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recollect.base.arrays import Floats, Ints
from recollect.kernels import layout
from recollect.kernels import steps_layout as sl
from recollect.replay.episodes import Rings
from recollect.storage.memory.indexes import Index, IndexKind

SEQUENCE_KINDS = 4
MODES = {"stop": sl.STOP, "pad": sl.PAD, "reset": sl.RESET}


@dataclass(frozen=True)
class StartKind:
    """What makes a start legal: its mode, how many rows it spans, and more for padded sequences."""

    mode: int
    span: int
    gap: int = 1
    burn_in: int = 0

    @property
    def of_sequences(self) -> bool:
        return self.mode in MODES.values()


class StartIndex:
    """The legal starts of one kind, and up to which row of each ring that is decided."""

    def __init__(self, kind: StartKind, choice: IndexKind, window: int, row: Ints) -> None:
        self.kind = kind
        self.window = window
        self.index = Index(choice, row, 0, False)
        self._cursors: dict[int, Ints] = {}

    def fill(self, rings: Rings, zeros: bool) -> None:
        """Find all legal starts of what is stored now."""
        index, row = self.index, self.index.row
        index.resize_slots(rings.slots)
        index.reserve(rings.slots)
        if zeros:
            index.count_zeros()
        row[sl.MODE], row[sl.SPAN] = self.kind.mode, self.kind.span
        row[sl.GAP], row[sl.BURN_IN] = self.kind.gap, self.kind.burn_in
        row[sl.WINDOW] = self.window
        for place in (sl.A_CURSOR, sl.A_SEEN, sl.A_AHEAD):
            self._cursors[place] = np.zeros(rings.envs, np.int64)
            row[place] = self._cursors[place].ctypes.data
        rings.kernels.starts.build(rings.block, row)

    def reorder(self, slots: Ints) -> None:
        """Put the members of a dense set into this order; those that it does not name come last."""
        arrays, count = self.index.arrays, self.count
        members = arrays[layout.A_MEMBERS][:count]
        named = slots[np.isin(slots, members)]
        rest = members[~np.isin(members, named)]
        members[:] = np.concatenate([named, rest])
        arrays[layout.A_PLACE][members] = np.arange(count)

    @property
    def count(self) -> int:
        return self.index.count

    def probability(self, slots: Ints) -> Floats:
        """With which probability one draw gives each of these slots."""
        index = self.index
        if index.kind.kind == layout.UNIFORM:
            place = index.arrays[layout.A_PLACE][slots]
            inside = (place < index.count) & (index.arrays[layout.A_MEMBERS][place] == slots)
            chances: Floats = inside / max(index.count, 1)
            return chances
        position = layout.A_TREE if index.total > 0.0 else layout.A_ZEROS
        tree = index.arrays.get(position)
        top = 0.0 if tree is None else float(tree[-1])
        if tree is None or top <= 0.0:
            return np.zeros(slots.size)
        found: Floats = tree[slots] / top
        return found

    @property
    def smallest(self) -> float:
        """The smallest probability of any start, infinity where that is not kept."""
        tree = self.index.arrays.get(layout.A_SMALLEST)
        if tree is None or self.index.total <= 0.0:
            return np.inf
        return float(tree[-1]) / self.index.total

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.index.arrays.values())


class Starts:
    """All indexes of a buffer, and the table that describes them to kernels."""

    def __init__(self, rings: Rings, choice: IndexKind, window: int) -> None:
        self._rings = rings
        self._choice = choice
        self._window = window  # how many newest rows of a ring have a share; 0: they have none
        self._kinds: list[StartKind] = []  # the least recently drawn first
        self._indexes: dict[tuple[StartKind, bool], StartIndex] = {}
        self._zeros = False
        self.table = np.zeros((0, sl.STARTS_BLOCK), np.int64)

    def find(self, kind: StartKind) -> tuple[StartIndex, StartIndex | None]:
        """The index of a kind, made now if there is none; and that of the newest rows."""
        if self._kinds and self._kinds[-1] == kind:
            pass
        elif kind in self._kinds:
            self._kinds.remove(kind)
            self._kinds.append(kind)
        else:
            self._make(kind)
        return self._indexes[kind, False], self._indexes.get((kind, True))

    def _make(self, kind: StartKind) -> None:
        sequences = [known for known in self._kinds if known.of_sequences]
        if kind.of_sequences and len(sequences) >= SEQUENCE_KINDS:
            self._kinds.remove(sequences[0])
            self._indexes.pop((sequences[0], False))
            self._indexes.pop((sequences[0], True), None)
        self._kinds.append(kind)
        choice = IndexKind(layout.UNIFORM) if kind.mode == sl.EPISODE else self._choice
        made = [(False, self._rings.ring)]
        if self._window and kind.mode != sl.EPISODE:
            made.append((True, self._window))
        for recent, window in made:
            row = np.zeros(sl.STARTS_BLOCK, np.int64)
            self._indexes[kind, recent] = StartIndex(kind, choice, window, row)
        self._lay_out()
        for recent, _ in made:
            self._indexes[kind, recent].fill(self._rings, self._zeros)

    def _lay_out(self) -> None:
        """Give every index its row in a new table."""
        table = np.zeros((len(self._indexes), sl.STARTS_BLOCK), np.int64)
        for place, index in enumerate(self._indexes.values()):
            index.index.moved_to(table[place])
        self.table = table

    def number(self, index: StartIndex) -> int:
        """The row of an index in the table."""
        return next(place for place, known in enumerate(self._indexes.values()) if known is index)

    def expect_zeros(self) -> None:
        """A priority of zero is about to come: begin to count the starts that weigh nothing."""
        if not self._zeros:
            self._zeros = True
            for index in self._indexes.values():
                index.index.count_zeros()

    def clear(self) -> None:
        """All rows have gone: forget the indexes, which are made again when they are needed."""
        self._kinds.clear()
        self._indexes.clear()
        self._lay_out()

    def reset(self) -> None:
        """Back to what was just made."""
        self.clear()
        self._zeros = False

    # -- snapshots --------------------------------------------------------------------------------
    def capture(self) -> tuple[dict[str, Any], dict[str, Ints]]:
        """Which indexes there are, as plain data; and the members of dense sets, in their order."""
        numbers = {
            "counts_zeros": self._zeros,
            "kinds": [asdict(kind) for kind in self._kinds],
            "starts": [[asdict(kind), recent] for kind, recent in self._indexes],
        }
        arrays = {}
        for place, index in enumerate(self._indexes.values()):
            if index.index.kind.kind == layout.UNIFORM:
                members = index.index.arrays[layout.A_MEMBERS]
                arrays[f"starts.{place}"] = members[: index.count].copy()
        return numbers, arrays

    def restore(
        self,
        numbers: Mapping[str, Any],
        arrays: Mapping[str, NDArray[Any]],
        own: StartKind,
        moved: Callable[[Ints], Ints],
    ) -> None:
        """Make the indexes that were captured, over rows that are back already.

        `own` is the kind of the buffer's transitions, and `moved` says where slots are now.
        """
        if numbers["counts_zeros"]:
            self.expect_zeros()
        for described in numbers["kinds"]:
            kind = StartKind(**described)
            if kind.mode != sl.TRANSITION or kind == own:
                self.find(kind)
        for place, (described, recent) in enumerate(numbers["starts"]):
            index = self._indexes.get((StartKind(**described), recent))
            members = arrays.get(f"starts.{place}")
            if index is not None and members is not None:
                index.reorder(moved(members.astype(np.int64)))

    # -- draws from some starts -------------------------------------------------------------------
    def among(self, index: StartIndex, slots: Ints) -> tuple[NDArray[Any], Index]:
        """A table of one index over some starts, for a single draw: it draws places in `slots`."""
        table = np.zeros((1, sl.STARTS_BLOCK), np.int64)
        one = Index(index.index.kind, table[0], 0, False)
        one.resize_slots(slots.size)
        one.reserve(slots.size)
        table[0, layout.COUNT] = slots.size
        if one.kind.kind == layout.UNIFORM:
            one.arrays[layout.A_MEMBERS][: slots.size] = np.arange(slots.size)
            one.arrays[layout.A_PLACE][: slots.size] = np.arange(slots.size)
            return table, one
        weights = index.index.arrays[layout.A_TREE][slots]
        if not weights.all():
            one.count_zeros()
            one.arrays[layout.A_ZEROS][: slots.size] = weights == 0.0
            _add_up(one, layout.A_ZEROS)
        one.arrays[layout.A_TREE][: slots.size] = weights
        _add_up(one, layout.A_TREE)
        return table, one

    def list(self, index: StartIndex) -> Ints:
        """The slots of all starts, by environment and row."""
        slots = np.empty(index.count, np.int64)
        self._rings.kernels.starts.list_starts(self._rings.block, index.index.row, slots)
        return slots

    @property
    def nbytes(self) -> int:
        return sum(index.nbytes for index in self._indexes.values())


def _add_up(index: Index, position: int) -> None:
    """Compute the parents of a tree from its leaves."""
    tree = index.arrays[position]
    offsets = index.row[layout.OFFSETS : layout.OFFSETS + index.row[layout.LEVELS]]
    for level in range(1, offsets.size):
        below = tree[offsets[level - 1] : offsets[level]]
        sums = below.reshape(-1, 16).sum(axis=1)
        tree[offsets[level] : offsets[level] + sums.size] = sums
