"""Amending: items are stored again, with cells that were absent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from recollect.data.rows_per_item import items_of
from recollect.data.schema import Rows
from recollect.errors import NeverPossible, SchemaError

if TYPE_CHECKING:
    from recollect.table.table import Table

Keys = NDArray[np.uint64]


def check_amended(table: Table, columns: Any) -> None:
    """Refuse shared columns: those are of items, and what is filled is cells of rows."""
    shared = {} if table._shared_schema is None else table._shared_schema.columns
    for name in columns if isinstance(columns, Mapping) else ():
        if name in shared:
            raise SchemaError(
                f"amend: {name!r} is a shared column, which cannot be filled later; give it with "
                "the insert, or make it a column of the rows"
            )


def fill(
    table: Table, keys: Keys, found: NDArray[np.bool_], filling: Rows, rows_per_item: Any
) -> None:
    """Store the found items again, with cells filled in."""
    assert table._schema is not None
    here = keys[found]
    stored = table._storage.get(here, None).read()
    starts = stored.info.row_offsets
    per_item = np.diff(starts).astype(np.int32)
    if rows_per_item is None and filling.count == stored.rows:
        given = np.ones(stored.rows, np.bool_)
    else:
        rows, count = items_of(filling.count, 1 if rows_per_item is None else rows_per_item)
        per_key = np.broadcast_to(rows, count)
        if count != keys.size or not np.array_equal(per_key[found], per_item):
            raise SchemaError(
                f"amend: the columns have {filling.count} rows and the items {stored.rows}; "
                "give every row of every item, and rows_per_item where keys may have gone"
            )
        given = np.repeat(found, per_key)
    filled, sizes = table._schema.filled(stored, filling, given)
    payload = np.add.reduceat(sizes, starts[:-1])
    _make_place(table, here, int(payload.sum()))
    table._storage.amend(here, filled, per_item, payload)


def _make_place(table: Table, keys: Keys, payload: int) -> None:
    """Evict others where filled cells would exceed the capacity."""
    storage = table._storage
    if table.capacity_bytes is None or storage.nbytes + payload <= table.capacity_bytes:
        return
    kept = storage.hide(keys)
    excess = storage.nbytes + payload - table.capacity_bytes
    fits = excess <= storage.nbytes - storage.hidden_nbytes
    if fits:
        table._evict(0, excess)
    storage.show(kept, returned=False)
    if not fits:
        raise NeverPossible(
            f"amend: {payload} more bytes do not fit table {table.name!r} of "
            f"{table.capacity_bytes} bytes beside the amended and the leased items"
        )
