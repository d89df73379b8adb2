"""Changes that users make to stored groups: other priorities and tags, or that they leave."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from recollect.base.arguments import keys_of, text
from recollect.errors import InvalidValue
from recollect.rollouts.core import RolloutCore
from recollect.storage.fields import check_priority, check_weights
from recollect.table.changes import of_those
from recollect.table.checks import checked_field
from recollect.table.effects import Updated
from recollect.table.runner import PlainVerb, Verb


def update(core: RolloutCore, keys: Any, fields: dict[str, Any]) -> Verb[NDArray[np.bool_]]:
    """Change priorities or tags; says which keys were there."""
    table = core.table
    keys = keys_of(keys)
    allowed = ("priority", *core.tags)
    checked: dict[str, Any] = {}
    for name, value in fields.items():
        if name not in allowed:
            raise InvalidValue(f"update: {name!r} is not one of {', '.join(allowed)}")
        if name == "priority":
            checked[name] = check_priority(value, keys.size, table.rules.alpha)
        else:
            checked[name] = checked_field(name, value, keys.size, table.fields.tags)
    if not checked:
        raise InvalidValue(f"update: name a field to change: {', '.join(allowed)}")
    if table.rules.weighed:
        check_weights(checked, table.rules.weighed)

    def attempt() -> NDArray[np.bool_]:
        found = core.storage.update(keys, checked)
        if found.any():
            table.effects.emit(Updated, keys[found], of_those(checked, found))
        table.gate.arrivals.changed(keys.size)
        return found

    return PlainVerb("update", attempt)


def discard(core: RolloutCore, keys: Any, reason: Any) -> Verb[int]:
    """Groups that nobody has leased leave for a reason; returns how many."""
    keys, reason = keys_of(keys), text("reason", reason)

    def attempt() -> int:
        found = core.storage.find(keys, None, visible=True)
        if found.size:
            core.remove(found, reason)
        return int(found.size)

    return PlainVerb("discard", attempt)
