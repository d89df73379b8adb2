"""Batch: row columns, the columns that an item's rows share, and what the table knows of each item.

The conversions to Arrow, pandas and torch are imported only by the calls that name them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from recollect.data.column_data import (
    ColumnData,
    Mask,
    as_columns,
    check_lengths,
    checked_present,
    row_count,
)
from recollect.data.columns import Columns, described
from recollect.data.info import Info, info_arrays, item_count
from recollect.errors import SchemaError

if TYPE_CHECKING:
    import pandas as pd

    from recollect.data.arrow import ArrowBatch

_new = object.__new__


class Batch(Columns):
    """Rows as columns, what the rows of an item share, and what the table knows of each item.

    A column is an array `[rows, ...]` or a `Ragged`. Lists of numbers, str, bytes or arrays are
    converted, and nested dicts flatten to dotted names. `present` and `shared_present` name, by
    dotted name, the cells that are there, for columns with absent cells.

    >>> import recollect as rc
    >>> batch = rc.Batch({"obs": {"speed": [0.5, 1.0]}, "text": ["left", "right"]})
    >>> batch
    Batch(2 rows, 2 items)
      obs.speed  float64 [2]
      text       str, 2 rows, 9 bytes
    >>> batch["obs"]["speed"] is batch["obs.speed"]
    True
    """

    __slots__ = ("_info", "_shared", "_shared_present")

    _info: Info | None
    _shared: Columns | dict[str, ColumnData] | None
    _shared_present: dict[str, Mask] | None

    def __init__(
        self,
        columns: Mapping[str, Any],
        *,
        shared: Mapping[str, Any] | None = None,
        info: Info | None = None,
        present: Mapping[str, Any] | None = None,
        shared_present: Mapping[str, Any] | None = None,
    ) -> None:
        self.columns = as_columns(columns)
        self._present = checked_present(self.columns, present)
        self._shared = as_columns(shared or {})
        self._shared_present = checked_present(self._shared, shared_present)
        self._info = info
        self._check_counts()

    @classmethod
    def _make(
        cls,
        columns: dict[str, ColumnData],
        info: Info | None,
        shared: dict[str, ColumnData] | None = None,
        present: dict[str, Mask] | None = None,
        shared_present: dict[str, Mask] | None = None,
    ) -> Batch:
        """For the engine: flat columns, and nothing is checked."""
        self = _new(cls)
        self.columns = columns
        self._info = info
        self._shared = shared
        self._present = present
        self._shared_present = shared_present
        return self

    def _check_counts(self) -> None:
        """What must agree between rows, shared columns and info."""
        check_lengths(self.columns, "rows")
        check_lengths(self.shared.columns, "items")
        if self._info is None:
            return
        items, rows = item_count(self._info), int(self._info.row_offsets[-1])
        if self.shared.columns and self.shared.rows != items:
            raise SchemaError(
                f"shared columns need one cell per item: there are {items} items, "
                f"and {next(iter(self.shared.columns))!r} has {self.shared.rows} cells"
            )
        if self.columns and row_count(self.columns) != rows:
            raise SchemaError(
                f"info is about {rows} rows, and the columns have {row_count(self.columns)}"
            )

    @property
    def rows(self) -> int:
        """The number of rows (`len(batch)` counts names, as in any mapping)."""
        if not self.columns and self._info is not None:
            return int(self._info.row_offsets[-1])
        return row_count(self.columns)

    @property
    def num_items(self) -> int:
        """The number of items; where nothing else says so, each row is one."""
        if self._info is not None:
            return item_count(self._info)
        return self.shared.rows if self._shared else self.rows

    @property
    def shared(self) -> Columns:
        """The columns with one cell per item, such as a group's prompt."""
        shared = self._shared
        if not isinstance(shared, Columns):
            shared = self._shared = Columns(shared or {}, self._shared_present)
        return shared

    @property
    def info(self) -> Info:
        """What the table knows of each item, as of the draw. See `Info`."""
        return Info({}, 0) if self._info is None else self._info

    def equals(self, other: object) -> bool:
        """Whether the other has the same rows, shared columns and absent cells; not the same info.

        >>> import recollect as rc
        >>> rc.Batch({"a": [1]}, shared={"b": [2]}).equals(rc.Batch({"a": [1]}))
        False
        """
        return (
            isinstance(other, Batch) and super().equals(other) and self.shared.equals(other.shared)
        )

    def to_arrow(self) -> ArrowBatch:
        """Return up to three Arrow record batches: rows, shared and info. Numbers are not copied.

        >>> import recollect as rc
        >>> rc.Batch({"reward": [0.5, 1.0]}).to_arrow().rows.to_pydict()
        {'reward': [0.5, 1.0]}
        """
        from recollect.data.arrow import to_arrow

        return to_arrow(self, self.shared, self._info)

    @classmethod
    def from_arrow(cls, data: Any) -> Batch:
        """Make a Batch of what `to_arrow` returned, or of any RecordBatch or Table as its rows.

        >>> import pyarrow as pa
        >>> import recollect as rc
        >>> rc.Batch.from_arrow(pa.table({"text": ["yes", None]})).present["text"]
        array([ True, False])
        """
        from recollect.data.arrow import from_arrow

        return assembled(*from_arrow(data))

    def to_pandas(self) -> pd.DataFrame:
        """Return a DataFrame of one row per row; the index is the item's key, where there is one.

        Shared columns have a row per item: `batch.shared.to_pandas()`.

        >>> import recollect as rc
        >>> rc.Batch({"reward": [0.5]}, info=rc.Info({"keys": np.array([9])}, 1)).to_pandas()
             reward
        key
        9       0.5
        """
        frame = super().to_pandas()
        if self._info is None or "keys" not in info_arrays(self._info):
            return frame
        keys = np.repeat(self._info.keys, np.diff(self._info.row_offsets))
        return frame.set_axis(keys, axis="index").rename_axis("key")

    @classmethod
    def from_pandas(cls, frame: pd.DataFrame) -> Batch:
        """Make a Batch of a DataFrame's columns. Missing cells of object columns are absent.

        >>> import pandas as pd
        >>> import recollect as rc
        >>> rc.Batch.from_pandas(pd.DataFrame({"obs.speed": [0.5], "text": ["left"]}))
        Batch(1 rows, 1 items)
          obs.speed  float64 [1]
          text       str, 1 rows, 4 bytes
        """
        from recollect.data.conversions import from_pandas

        columns, present = from_pandas(frame)
        return cls._make(columns, None, None, present)

    def __repr__(self) -> str:
        lines = [f"Batch({self.rows} rows, {self.num_items} items)", *described(self.columns)]
        if self.shared.columns:
            lines += ["  shared:", *described(self.shared.columns, "    ")]
        if self._info is not None:
            lines.append(f"  info: {', '.join(info_arrays(self._info))}")
        return "\n".join(lines)


def assembled(rows: Columns, shared: Columns, info: Info | None) -> Batch:
    """Return the Batch of its decoded parts, or raise `SchemaError` where they disagree."""
    present, shared_present = rows.present or None, shared.present or None
    batch = Batch._make(rows.columns, info, shared.columns or None, present, shared_present)
    batch._check_counts()
    return batch


def info_of(batch: Batch) -> Info | None:
    """Return the info of a batch, None where it has none; `batch.info` is then an empty one."""
    return batch._info
