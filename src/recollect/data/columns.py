"""Columns by name: the mapping that users read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from recollect.data.column_data import ColumnData, Mask, row_count
from recollect.data.dotted_names import nest
from recollect.data.ragged import Ragged, arrays_equal, describe_ragged

if TYPE_CHECKING:
    import pandas as pd


class Columns(Mapping[str, Any]):
    """A read-only mapping of named columns of one length; `batch.shared` is one.

    Nested names come back nested: `columns["obs"]` is a dict where there is an `obs.image`, and
    `columns["obs.image"]` is that column. `columns.columns` is the flat dict, by dotted name.

    >>> import recollect as rc
    >>> batch = rc.Batch({"reward": [1.0]}, shared={"prompt": {"text": ["2+2?"], "id": [7]}})
    >>> list(batch.shared), list(batch.shared.columns)
    (['prompt'], ['prompt.text', 'prompt.id'])
    >>> batch.shared["prompt"]["id"]
    array([7])
    """

    __slots__ = ("_present", "columns")

    columns: dict[str, ColumnData]
    _present: dict[str, Mask] | None

    def __init__(
        self, columns: dict[str, ColumnData], present: dict[str, Mask] | None = None
    ) -> None:
        """For the engine: columns and masks by dotted name, of which nothing is checked."""
        self.columns = columns
        self._present = present

    @property
    def present(self) -> dict[str, Mask]:
        """By dotted name, which cells are there: only for columns whose cells may be absent.

        An absent cell is zeros in an array and empty in a Ragged.
        """
        return self._present or {}

    def __getitem__(self, name: str) -> Any:
        column = self.columns.get(name)
        return self._nested(name) if column is None else column

    def _nested(self, name: str) -> dict[str, Any]:
        prefix = f"{name}."
        inside = [key for key in self.columns if key.startswith(prefix)]
        if not inside:
            raise KeyError(f"no column {name!r}; there are {', '.join(self.columns) or 'none'}")
        return nest({key[len(prefix) :]: self.columns[key] for key in inside})

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(name.partition(".")[0] for name in self.columns))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @property
    def rows(self) -> int:
        """The number of rows (`len(columns)` counts names, as in any mapping)."""
        return row_count(self.columns)

    def equals(self, other: object) -> bool:
        """Whether the other has the same columns and absent cells (NaN equals NaN).

        >>> import recollect as rc
        >>> rc.Batch({"a": [1, 2]}).equals(rc.Batch({"a": [1.0, 2.0]}))
        False
        """
        return (
            isinstance(other, Columns)
            and _same_columns(self.columns, other.columns)
            and _same_columns(self.present, other.present)
        )

    def __eq__(self, other: object) -> bool:
        return self.equals(other)

    __hash__ = None  # type: ignore[assignment]

    def to_pandas(self) -> pd.DataFrame:
        """Return a DataFrame of one row per row, with dotted names.

        Shaped and ragged cells are arrays in an object column, an absent cell is None, and the
        small floats of `ml_dtypes` become float32.

        >>> import recollect as rc
        >>> rc.Batch({"reward": [0.5, 1.0], "tokens": [[1, 2], [3]]}).to_pandas()
           reward  tokens
        0     0.5  [1, 2]
        1     1.0     [3]
        """
        from recollect.data.conversions import to_pandas

        return to_pandas(self.columns, self.present)

    def to_torch(self, device: Any = None, pin_memory: bool = False) -> dict[str, Any]:
        """Return the columns as a nested dict of tensors.

        A ragged column becomes a `RaggedTensor`, text and bytes stay lists, datetimes become their
        int64 counts. On the CPU a tensor shares the column's memory where that is writable.

        >>> import recollect as rc
        >>> rc.Batch({"obs": {"speed": [0.5, 1.0]}}).to_torch()["obs"]["speed"]
        tensor([0.5000, 1.0000], dtype=torch.float64)
        """
        from recollect.data.conversions import to_torch

        return to_torch(self.columns, device, pin_memory)

    def __repr__(self) -> str:
        return "\n".join([f"Columns({self.rows} rows)", *described(self.columns)])


def described(columns: Mapping[str, ColumnData], indent: str = "  ") -> list[str]:
    """Return a line per column, for a repr."""
    width = max(map(len, columns), default=0)
    return [f"{indent}{name:{width}}  {_describe(column)}" for name, column in columns.items()]


def _describe(column: ColumnData) -> str:
    if isinstance(column, Ragged):
        return describe_ragged(column)
    return f"{column.dtype} {list(column.shape)}"


def _same_columns(one: Mapping[str, ColumnData], other: Mapping[str, ColumnData]) -> bool:
    return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)


def _same(one: ColumnData, other: ColumnData) -> bool:
    if isinstance(one, Ragged):
        return one.equals(other)
    return isinstance(other, np.ndarray) and arrays_equal(one, other)
