"""Which environment a row is of, after shards were dealt out again.

Ranks number their environments independently, so two saved shards may use one number for
two environments. In a new shard they are numbered anew, from 0, in the data itself: the columns
`env_id`, also nested ones, or those that are listed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from recollect.base.arrays import Array
from recollect.data.batch import Batch
from recollect.data.ragged import Ragged
from recollect.data.schema import Column
from recollect.errors import InvalidValue, SchemaError, shown

ENV_ID = "env_id"


class Environments:
    """The numbers of one new shard: the next free one for each (source, number) that comes."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], int] = {}

    def __len__(self) -> int:
        return len(self._known)

    def renumbered(self, source: int, numbers: Array) -> Array:
        """The new numbers; a negative one names no environment and stays."""
        different, back = np.unique(numbers, return_inverse=True)
        firsts = np.full(different.size, numbers.size, np.int64)
        np.minimum.at(firsts, back.reshape(-1), np.arange(numbers.size))
        fresh = different.copy()
        for place in np.argsort(firsts).tolist():  # in the order in which they come
            number = int(different[place])
            if number < 0:
                continue
            new = self._known.setdefault((source, number), len(self._known))
            if new > np.iinfo(different.dtype).max:
                raise SchemaError(
                    f"an env_id of type {different.dtype} cannot hold {new}: more environments "
                    "come together here than it can number; store it in a wider type, or name "
                    "other columns with env_id_columns="
                )
            fresh[place] = new
        renumbered: Array = fresh[back.reshape(numbers.shape)]
        return renumbered


def checked_names(env_id_columns: Any) -> tuple[str, ...] | None:
    """The listed columns; None for those that are called env_id."""
    if env_id_columns is None:
        return None
    if isinstance(env_id_columns, str) or not isinstance(env_id_columns, Iterable):
        raise InvalidValue(
            f"env_id_columns: expected a list of columns, got {shown(env_id_columns)}"
        )
    names = tuple(env_id_columns)
    if not all(isinstance(name, str) for name in names):
        raise InvalidValue(f"env_id_columns: expected names of columns, got {shown(names)}")
    return names


def columns_of(columns: Mapping[str, Column], listed: Sequence[str] | None) -> list[str]:
    """The columns that name an environment; raises where a listed one cannot."""
    found = []
    for name, column in columns.items():
        whole = column.kind == "array" and column.element.kind in "iu"
        if listed is None:
            if name.rpartition(".")[2] == ENV_ID and whole:
                found.append(name)
        elif name in listed:
            if not whole:
                raise SchemaError(f"env_id_columns: column {name!r} is {column}, no whole numbers")
            found.append(name)
    return found


def rewritten(batch: Batch, names: Sequence[str], new: Any) -> Batch:
    """A batch whose named columns hold `new(old)`; `new` takes and returns arrays."""
    if not names:
        return batch
    columns, shared = dict(batch.columns), dict(batch.shared.columns)
    for held, present in ((columns, batch.present), (shared, batch.shared.present)):
        for name in names:
            column = held.get(name)
            if column is None:
                continue
            if isinstance(column, Ragged):
                held[name] = Ragged(new(column.values), column.offsets)
            elif name in present:
                filled = column.copy()
                filled[present[name]] = new(column[present[name]])
                held[name] = filled
            else:
                held[name] = new(column)
    return Batch._make(
        columns, None, shared or None, batch.present or None, batch.shared.present or None
    )
