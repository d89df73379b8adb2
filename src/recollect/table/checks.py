"""Checks of what tables are made with, and of the fields that calls set.

Each raises before anything changed, and says what would do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from recollect.base.arguments import names
from recollect.base.clock import Clock
from recollect.data.schema import Schema
from recollect.errors import InvalidValue, shown
from recollect.rules.limiters import Limiter
from recollect.rules.natures import check_executable
from recollect.rules.query import FieldType
from recollect.rules.selectors import Selector, fields_used, weighed_fields
from recollect.storage.base import OwnSelectors, Storage
from recollect.storage.fields import BUILT_IN, SETTABLE, FieldValue, check_value, check_weighed

VERBS = [name for name in vars(Storage) if not name.startswith("_")]


def settable(tags: Mapping[str, FieldType]) -> list[str]:
    """The fields that calls may set."""
    return [*SETTABLE, *tags]


def checked_partition(given: Any, tags: Mapping[str, FieldType]) -> tuple[str, ...]:
    """The fields to partition by: those that are set by calls, except priorities."""
    fields = names("partition_by", given)
    allowed = [name for name in settable(tags) if name != "priority"]
    for name in fields:
        if name not in allowed:
            raise InvalidValue(f"partition_by: {name!r} is not one of {', '.join(allowed)}")
    if len(set(fields)) < len(fields):
        raise InvalidValue(f"partition_by: a field is named twice in {fields}")
    return fields


def checked_selector(
    role: str, selector: Any, kinds: Mapping[str, str], storage: Storage | None = None
) -> Selector:
    """A selector that orders and weighs by fields that a table has, as storages can execute it.

    A storage may say that it executes more than others do.
    """
    if not isinstance(selector, Selector):
        raise InvalidValue(f"{role}: expected a selector such as rc.Fifo(), got {shown(selector)}")
    check_executable(
        role, selector, storage.executes if isinstance(storage, OwnSelectors) else None
    )
    numbers = [name for name, kind in kinds.items() if kind != "str"]
    weighed = weighed_fields(selector)
    for name in fields_used(selector):
        if name not in kinds:
            raise InvalidValue(
                f"{role}: {selector} names no field of this table; use one of "
                f"{', '.join(numbers)}, or declare a tag"
            )
        if name not in numbers:
            raise InvalidValue(
                f"{role}: {name!r} is text, which has no {'weight' if name in weighed else 'order'}"
                f"; use one of {', '.join(numbers)}"
            )
        if name in weighed:
            check_weighed(role, name, weighed[name])
    return selector


def checked_limiter(limiter: Any, capacity: int) -> Limiter:
    """A limiter that a table of this capacity can satisfy."""
    if not isinstance(limiter, Limiter):
        raise InvalidValue(
            f"limiter: expected a limiter such as rc.MinSize(1), got {shown(limiter)}"
        )
    limiter.check_capacity(capacity)
    return limiter


def checked_storage(storage: Any) -> Storage:
    if storage is None:
        from recollect.storage.memory.storage import MemoryStorage

        return MemoryStorage()
    has = {*dir(storage), *dir(type(storage))}
    missing = [verb for verb in VERBS if verb not in has]
    if isinstance(storage, type) or has.isdisjoint(("open", "transaction", "insert")):
        raise InvalidValue(
            f"storage: expected one such as rc.MemoryStorage(), got {shown(storage)}"
        )
    if missing:
        raise InvalidValue(
            f"storage: {type(storage).__name__} lacks {', '.join(missing)}; "
            "recollect.storage.base.Storage says what one must have"
        )
    made: Storage = storage
    return made


def checked_clock(clock: Any) -> Clock:
    verbs = ("time", "monotonic", "sleep_until", "on_turn")
    if not all(callable(getattr(clock, verb, None)) for verb in verbs):
        raise InvalidValue(f"clock: expected one such as rc.ManualClock(), got {shown(clock)}")
    checked: Clock = clock
    return checked


def declared(signature: Any) -> tuple[Schema, Schema | None]:
    """The schemas of rows and of shared cells that a signature declares."""
    columns = Schema.from_signature(signature).columns
    rows = {name: column for name, column in columns.items() if not column.shared}
    shared = {name: column for name, column in columns.items() if column.shared}
    return Schema(rows), Schema(shared, "shared column") if shared else None


def checked_field(name: str, value: Any, count: int, tags: Mapping[str, FieldType]) -> FieldValue:
    """The value of a field that a call sets, or one value for each item."""
    if name not in tags and name not in SETTABLE:
        allowed = ", ".join(settable(tags))
        if name in BUILT_IN:
            raise InvalidValue(f"{name}: the table makes this field; set one of {allowed}")
        raise InvalidValue(
            f"unknown field {name!r}; set one of {allowed}, or declare it with "
            f"tags={{{name!r}: float}}"
        )
    return check_value(name, tags.get(name) or BUILT_IN[name], value, count)


def check_versions(fields: Mapping[str, Any], count: int) -> None:
    """Weights that age need a version of every item."""
    version = fields.get("version")
    missing = isinstance(version, np.ndarray) and (version < 0).any()
    if count and (version is None or missing):
        raise InvalidValue(
            "version: half_life ages items by their version, and an item has none; give version=..."
        )


def check_bytes(
    capacity_bytes: int | None, limiter: Limiter, rows: Schema, shared: Schema | None
) -> None:
    """Raise where so many bytes never hold the items that a limiter waits for."""
    columns = [*rows.columns.values(), *(shared.columns.values() if shared else ())]
    least = sum(c.size for c in columns if not c.ragged and not c.optional)
    if capacity_bytes is not None and least:
        limiter.check_bytes(capacity_bytes // least, capacity_bytes)


def checked_owner(owner: Any) -> str:
    """Whom a lease belongs to."""
    if not isinstance(owner, str):
        raise InvalidValue(f"owner: expected text, got {shown(owner)}")
    return owner
