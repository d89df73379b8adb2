"""Amendments: items are stored again, with cells that were absent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recollect.base.arrays import Keys
from recollect.data.rows_per_item import items_of
from recollect.data.schema import Rows
from recollect.errors import NeverPossible, SchemaError
from recollect.table.core import TableCore
from recollect.table.effects import Amended


def amend(
    core: TableCore, keys: Keys, columns: Mapping[str, Any], rows_per_item: Any
) -> NDArray[np.bool_]:
    """Under the lock: fill absent cells of the items that are there; returns which were."""
    if core.schemas.rows is None:
        raise SchemaError(f"table {core.name!r} is empty: there is nothing to amend")
    _check_no_shared(core, columns)
    filling = core.schemas.rows.only(columns).check(columns)
    found = np.isin(keys, core.storage.find(keys, None, visible=False))
    if found.any():
        fill(core, keys, found, filling, rows_per_item)
        core.effects.emit(Amended, keys[found], columns)
        core.gate.arrivals.changed(keys.size)
    return found


def _check_no_shared(core: TableCore, columns: Any) -> None:
    """Refuse shared columns: those are of items, and what is filled is cells of rows."""
    shared = {} if core.schemas.shared is None else core.schemas.shared.columns
    for name in columns if isinstance(columns, Mapping) else ():
        if name in shared:
            raise SchemaError(
                f"amend: {name!r} is a shared column, which cannot be filled later; give it with "
                "the insert, or make it a column of the rows"
            )


def fill(
    core: TableCore, keys: Keys, found: NDArray[np.bool_], filling: Rows, rows_per_item: Any
) -> None:
    """Store the found items again, with cells filled in."""
    assert core.schemas.rows is not None
    here = keys[found]
    stored = core.storage.get(here, None).read()
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
    filled, sizes = core.schemas.rows.filled(stored, filling, given)
    payload = np.add.reduceat(sizes, starts[:-1])
    _make_place(core, here, int(payload.sum()))
    core.storage.amend(here, filled, per_item, payload)


def _make_place(core: TableCore, keys: Keys, payload: int) -> None:
    """Evict others where filled cells would exceed the capacity."""
    storage = core.storage
    if core.capacity_bytes is None or storage.nbytes + payload <= core.capacity_bytes:
        return
    kept = storage.hide(keys)
    excess = storage.nbytes + payload - core.capacity_bytes
    fits = excess <= storage.nbytes - storage.hidden_nbytes
    if fits:
        core.evict(0, excess)
    storage.show(kept, returned=False)
    if not fits:
        raise NeverPossible(
            f"amend: {payload} more bytes do not fit table {core.name!r} of "
            f"{core.capacity_bytes} bytes beside the amended and the leased items"
        )
