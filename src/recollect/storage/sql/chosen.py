"""Items that a call got from a database: their rows are here, and are decoded outside the lock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from recollect.base.arrays import Array, Keys
from recollect.data.batch import Batch
from recollect.data.info import Info
from recollect.storage.buffers import Allocate
from recollect.storage.sql.escapes import from_text
from recollect.storage.sql.item_bytes import Codec


class SqlChosen:
    """Some items, as of the moment they were chosen. `rows` are those of the items table."""

    def __init__(
        self,
        rows: Sequence[Any],
        table_size: int,
        tags: Mapping[str, list[str]],
        codecs: tuple[Codec, Codec | None],
        *,
        probability: Array | None = None,
        weights: Array | None = None,
        sampled: int | Array = 0,
    ) -> None:
        self._rows = rows
        self._tags = tags
        self._codecs = codecs
        self._probability = probability
        self._weights = weights
        self._sampled = sampled  # what this call added to times_sampled
        self.table_size = table_size
        self.worn: SqlChosen | None = None
        self.columns: Sequence[str] | None = None

    @property
    def count(self) -> int:
        return len(self._rows)

    @property
    def keys(self) -> Keys:
        return np.array([row.key for row in self._rows], np.uint64)

    def read(self, allocate: Allocate | None = None, lease: Any = None) -> Batch:
        """Decode the payload; needs no lock."""
        codec, shared_codec = self._codecs
        rows = self._rows
        columns, present = codec.decode(
            [(row.payload, row.width) for row in rows], self.columns, allocate
        )
        shared = shared_present = None
        if shared_codec is not None:
            shared, shared_present = shared_codec.decode(
                [(row.shared, shared_codec.width) for row in rows], None, allocate
            )
        info = Info(self._info(), self.table_size, lease)
        return Batch._make(columns, info, shared, present, shared_present)

    def _info(self) -> dict[str, Array]:
        rows, count = self._rows, len(self._rows)
        chance = np.full(count, 1.0 / max(1, self.table_size))
        arrays: dict[str, Array] = {
            "keys": self.keys,
            "priority": np.array([row.priority for row in rows], np.float64),
            "probability": chance if self._probability is None else self._probability,
            "weights": np.ones(count) if self._weights is None else self._weights,
            "times_sampled": np.array([row.times_sampled for row in rows], np.int64)
            + self._sampled,
            "deliveries": np.array([row.deliveries for row in rows], np.int64) + 1,
            "version": np.array(
                [-1 if row.version is None else row.version for row in rows], np.int64
            ),
            "task": _texts([row.task for row in rows]),
            "status": _texts([row.status for row in rows]),
            "row_offsets": np.concatenate(
                [[0], np.cumsum([row.rows for row in rows], dtype=np.int64)]
            ).astype(np.int64),
        }
        for name, (kind, column) in self._tags.items():
            place = rows[0]._fields.index(column) if rows else 0
            arrays[name] = _values(kind, [row[place] for row in rows])
        return arrays


class Gone:
    """Items of which only the keys are known any more: nobody wanted to read them."""

    worn = None

    def __init__(self, keys: Keys) -> None:
        self.keys = keys

    @property
    def count(self) -> int:
        return self.keys.size

    def read(self, allocate: Any = None, lease: Any = None) -> Batch:
        raise TypeError("these items were removed without keeping their payload")


def _texts(values: list[str | None]) -> Array:
    array = np.empty(len(values), object)
    array[:] = [from_text(value) for value in values]
    return array


def _values(kind: str, values: list[Any]) -> Array:
    """A tag as users see it: None or NaN where absent."""
    if kind == "str":
        return _texts(values)
    if kind == "float":
        return np.array([np.nan if value is None else value for value in values], np.float64)
    dtype: Any = np.bool_ if kind == "bool" else np.int64
    if not any(value is None for value in values):
        return np.array(values, dtype)
    array = np.empty(len(values), object)
    array[:] = values
    return array
