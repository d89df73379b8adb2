"""Changes to stored items: other fields, removal, and columns that come later."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recollect.base.arrays import Keys
from recollect.data.schema import Column, Schema
from recollect.errors import InvalidValue, SchemaError
from recollect.rules.selectors import Selector
from recollect.storage.base import Where
from recollect.storage.fields import (
    check_priority,
    check_weight,
    check_weights,
    unfit_weights,
)
from recollect.table.checks import check_versions, checked_field, settable
from recollect.table.core import TableCore
from recollect.table.effects import Updated
from recollect.table.rule_set import RuleSet


def checked_fields(core: TableCore, fields: Mapping[str, Any], count: int) -> dict[str, Any]:
    """The fields that an update sets, one value for all keys or one for each."""
    if not fields:
        allowed = ", ".join(settable(core.fields.tags))
        raise InvalidValue(f"update: name a field to change: {allowed}")
    checked: dict[str, Any] = {}
    for name, value in fields.items():
        if name == "priority":
            checked[name] = check_priority(value, count, core.rules.alpha)
        else:
            checked[name] = checked_field(name, value, count, core.fields.tags)
    if core.rules.ages and "version" in checked:
        check_versions(checked, count)
    if core.rules.weighed:
        check_weights(checked, core.rules.weighed)
    return checked


def update(core: TableCore, keys: Keys, fields: Mapping[str, Any]) -> NDArray[np.bool_]:
    """Under the lock: change checked fields; returns which keys were there."""
    effects = core.effects
    found = core.storage.update(keys, fields)
    if not effects.followers:
        effects.number += 1
    elif found.any():
        effects.emit(Updated, keys[found], of_those(fields, found))
    core.gate.arrivals.changed(keys.size)
    return found


def of_those(fields: Mapping[str, Any], found: NDArray[np.bool_]) -> dict[str, Any]:
    """The fields for the keys that were found."""
    return {
        name: value[found] if isinstance(value, np.ndarray) and value.size == found.size else value
        for name, value in fields.items()
    }


def delete(core: TableCore, keys: Keys | None, where: Where | None) -> int:
    """Under the lock: remove visible items by key, by query or by both; returns how many."""
    found = np.zeros(0, np.uint64)
    if core.schemas.rows is not None:
        found = core.storage.find(keys, where, visible=True)
    if found.size:
        gone = core.storage.delete(found, core.effects.readers)
        core.left(gone.count, "deleted", gone)
    return int(found.size)


def clear(core: TableCore) -> None:
    """Under the lock: remove everything, and end every lease."""
    core.leases.end_all()
    if len(core.storage):
        everything = core.storage.find(None, None, visible=False)
        core.storage.hide(everything)
        gone = core.storage.remove(everything, core.effects.readers)
        core.left(gone.count, "cleared", gone)


def declare(core: TableCore, rows: Schema, shared: Schema | None) -> None:
    """Fix the columns, or see that those which others have fixed are the same."""
    with core.transaction():
        if core.schemas.rows is None:
            core.set_schema(rows, shared)
            return
        for wanted, stored in ((rows, core.schemas.rows), (shared, core.schemas.shared)):
            there = {} if stored is None else stored.columns
            columns = {} if wanted is None else wanted.columns
            added = [c for name, c in there.items() if name not in columns]
            same = {name: c for name, c in there.items() if name in columns} == columns
            if not same or not all(column.optional for column in added):
                raise SchemaError(
                    f"table {core.name!r} is stored with the columns "
                    f"{core.schemas.rows.listed()}, and signature= says otherwise; leave it out, "
                    "or choose another name for the table"
                )


def add_column(core: TableCore, name: str, column: Column) -> None:
    """Under the lock: an optional column from now on."""
    rows, shared = core.schemas
    if rows is None:
        raise SchemaError(
            f"table {core.name!r} has no columns yet; name this one in signature= or in the first "
            "insert"
        )
    core.set_schema(rows.with_column(name, column), shared)


def set_selectors(core: TableCore, sampler: Selector, remover: Selector) -> None:
    """Under the lock: choose by other selectors from now on; all weights are computed anew."""
    rules = RuleSet(sampler, remover, core.rules.limiter)
    without_version = core.fields.where({"version": {"absent": True}})
    if rules.ages and core.schemas.rows is not None and core.storage.count(without_version):
        raise InvalidValue(
            "half_life: it ages items by their version, and some stored items have none"
        )
    check_weight(core.storage.highest_priority(), rules.alpha)
    unfit = unfit_weights(rules.weighed, core.fields.kinds)
    for query in unfit if core.schemas.rows is not None else ():
        if core.storage.count(core.fields.where(query)):
            raise InvalidValue(
                f"{next(iter(query))}: to weigh items by it takes finite numbers of 0 or more, and "
                "some stored items have others; update them, or delete them"
            )
    core.rules = rules
    core.storage.keep_indexes([sampler, remover])
    core.gate.wake_all()
