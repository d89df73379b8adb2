"""Annotations: cells that come after their rollout was stored, and the rows that they complete."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from recollect.arguments import text
from recollect.errors import InvalidValue, shown
from recollect.ragged import Ragged
from recollect.rollouts.cells import other_array, to_json
from recollect.rollouts.encoding import ARRAYS, fitted
from recollect.schema import Rows, Stored

if TYPE_CHECKING:
    from recollect.rollouts.core import Core

PER_TOKEN = ("logprobs", "loss_mask")  # columns that `arrays=` may name, beside other arrays


class Filling:
    """Cells that an annotation brings, one per rollout id."""

    def __init__(
        self, rollout_ids: Any, attempt: Any, reward: Any, rewards: Any, arrays: Any
    ) -> None:
        if isinstance(rollout_ids, str) or not all(isinstance(each, str) for each in rollout_ids):
            raise InvalidValue(f"rollout_ids: expected a list of ids, got {shown(rollout_ids)}")
        self.ids: list[str] = list(rollout_ids)
        self.attempts = self._numbers("attempt", attempt, np.int64)
        if self.attempts.size and self.attempts.min() < 0:
            raise InvalidValue(
                f"attempt: expected whole numbers of 0 or more, got {self.attempts.min()}"
            )
        self.reward = None if reward is None else self._numbers("reward", reward, np.float64)
        self.texts: dict[str, list[str]] = {}
        if rewards is not None:
            parts = [rewards] * len(self.ids) if isinstance(rewards, Mapping) else list(rewards)
            self._check_count("rewards", parts)
            self.texts["rewards"] = [to_json(part) for part in parts]
        self.arrays: dict[str, Ragged] = {}
        for name, cells in (arrays or {}).items():
            self.arrays[name if name in PER_TOKEN else ARRAYS + name] = self._array(name, cells)
        if self.reward is None and not self.texts and not self.arrays:
            raise InvalidValue("annotate: give reward, rewards or arrays")

    def _check_count(self, name: str, cells: Any) -> None:
        if len(cells) != len(self.ids):
            raise InvalidValue(f"{name} has {len(cells)} entries for {len(self.ids)} rollouts")

    def _numbers(self, name: str, value: Any, dtype: Any) -> NDArray[Any]:
        try:
            array = np.asarray(value, dtype)
        except (TypeError, ValueError):
            raise InvalidValue(f"{name}: expected numbers, got {shown(value)}") from None
        if array.ndim == 0:
            return np.full(len(self.ids), array)
        self._check_count(name, array)
        return array

    def _array(self, name: str, cells: Any) -> Ragged:
        text("arrays", name)
        if "." in name:
            raise InvalidValue(f"arrays: a name is text without a dot, got {name!r}")
        if isinstance(cells, Ragged):
            self._check_count(name, cells)
            return cells
        parts = [np.asarray(cell) for cell in cells]
        self._check_count(name, parts)
        if not parts:
            return Ragged._make(np.zeros(0, np.float32), np.zeros(1, np.int64))
        column = other_array(name, parts)[0]
        assert isinstance(column, Ragged)
        return column

    def also(
        self, core: Core, places: Mapping[int, tuple[int, int]], sources: Sequence[int]
    ) -> list[tuple[int, int, int]]:
        """Segments of a rollout that was named once: a reward is for all of them."""
        if self.arrays:
            return []
        others = []
        named = set(places.values())
        for place in sources:
            key, row = places[place]
            ids = core.entries[key].rollout_ids
            for other, rollout_id in enumerate(ids):
                if other != row and rollout_id == ids[row] and (key, other) not in named:
                    others.append((key, other, place))
        return others

    def add_columns(self, core: Core) -> None:
        """Have a column for each array, and the arrays in its dtype."""
        for name, cells in self.arrays.items():
            column = core.table.columns.get(name)
            if column is None:
                core.table._add_column(name, cells.dtype, cells.inner_shape, True)
            else:
                self.arrays[name] = fitted(name, cells, column)

    def filled(self, rows: Rows, names: list[str], where: Any, sources: Sequence[int]) -> Rows:
        """Stored rows with these cells in the place of what was there."""
        columns, present = list(rows.columns), list(rows.present or [None] * len(names))
        picked = np.array(sources)
        new: dict[str, Any] = {name: cells[picked] for name, cells in self.arrays.items()}
        if self.reward is not None:
            new["reward"] = self.reward[picked]
        for name, texts in self.texts.items():
            new[name] = Ragged._from_cells(name, [texts[place] for place in sources], str)
        response = columns[0]
        assert isinstance(response, Ragged)
        for name, cells in new.items():
            if name in PER_TOKEN and (cells.lengths != response.lengths[where]).any():
                wrong = int(np.argmax(cells.lengths != response.lengths[where]))
                raise InvalidValue(
                    f"{name} has {cells.lengths[wrong]} entries for "
                    f"{response.lengths[where[wrong]]} response tokens"
                )
            place = names.index(name)
            columns[place] = _with_cells(columns[place], where, cells)
            flags = present[place]
            flags = np.ones(rows.count, np.bool_) if flags is None else flags.copy()
            flags[where] = True
            present[place] = flags
        return Rows(rows.count, columns, present)


def _with_cells(column: Stored, where: Any, cells: Any) -> Stored:
    """A column with other cells in some rows."""
    if isinstance(column, Ragged):
        both = Ragged._make(
            np.concatenate([column.values, cells.values]),
            np.concatenate([column.offsets, cells.offsets[1:] + column.offsets[-1]]),
            column.kind,
        )
        picked = np.arange(len(column))
        picked[where] = len(column) + np.arange(len(cells))
        return both[picked]
    assert isinstance(column, np.ndarray)
    column = column.copy()
    column[where] = cells
    return column
