"""What a notebook shows of a table: its size, its rules, its counts, how priorities spread."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

import numpy as np

from recollect.base.html import filled, grid, panel, sparkline, thinned
from recollect.base.readable import size
from recollect.data.info import Info
from recollect.data.schema import Column
from recollect.rules.limiters import Limiter
from recollect.rules.selectors import Selector
from recollect.storage.base import Storage


def of_table(
    stats: Mapping[str, Any],
    sampler: Selector,
    remover: Selector,
    limiter: Limiter,
    columns: Mapping[str, Column],
    info: Info | None,
) -> str:
    """The panel of a table; `info` is of some of its items, None where it has none."""
    moved = f"{stats['inserts']:,} inserted, {stats['samples']:,} sampled"
    waiting = f"{stats['waiting_to_insert']} to insert, {stats['waiting_to_sample']} to sample"
    rows = [
        ("items", filled(stats["size"], stats["capacity"], "items")),
        ("payload", size(stats["nbytes"])),
        ("sampler", escape(str(sampler))),
        ("remover", escape(str(remover))),
        ("limiter", escape(str(limiter))),
        ("so far", f"{moved}, {stats['removals']:,} removed"),
        ("leased", f"{stats['leased']:,} items in {stats['leases']:,} leases"),
        ("waiting", waiting),
    ]
    if info is not None:
        rows.append(("priority", sparkline(info.priority, "priority")))
        rows.append(("times sampled", sparkline(info.times_sampled, "times sampled")))
    shapes = {name: [str(column.dtype), _shape(column)] for name, column in columns.items()}
    below = grid("column", ("dtype", "shape of a row"), shapes) if shapes else ""
    return panel(f"Table {stats['name']!r}", rows, below)


def _shape(column: Column) -> str:
    ragged = ("ragged",) if column.ragged else ()
    return " × ".join(map(str, (*ragged, *column.shape))) or "one number"


def some_items(storage: Storage) -> Info | None:
    """The fields of some items, without their payload; None where there are none.

    It is called in a transaction, after the first insert. It counts nothing and draws nothing.
    """
    keys = storage.find(None, None, visible=True)
    if not keys.size:
        return None
    return storage.get(thinned(keys), []).read(np.empty).info
