"""Effects: the numbered changes of a table, and those who follow them.

Every change counts, and where somebody follows it is told under the table's lock, in order.
A follower must be quick there; what takes long, such as waiting for a disk, it does in
`settle`, which the table calls without the lock before the call that made the change returns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from recollect.storage.base import Chosen, NewItems

Keys = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Effect:
    """One change. `keys` are the items that it is about."""

    number: int
    keys: Keys


@dataclass(frozen=True, slots=True)
class Inserted(Effect):
    """Items came. `new` holds what the caller gave; its arrays are the caller's."""

    new: NewItems
    request: tuple[Any, int] | None


@dataclass(frozen=True, slots=True)
class Removed(Effect):
    """Items left: `evicted`, `taken`, `sampled` (often enough), `deleted`, `confirmed`, `cleared`.

    `items.read()` still gives their payload.
    """

    reason: str
    items: Chosen


@dataclass(frozen=True, slots=True)
class Updated(Effect):
    """Fields of items changed."""

    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Amended(Effect):
    """Absent cells of items were filled."""

    columns: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Leased(Effect):
    """Items were handed out under a lease."""

    lease: Any


@dataclass(frozen=True, slots=True)
class Returned(Effect):
    """A lease ended and its items are back: `given back` or `lapsed`."""

    lease: Any
    reason: str


class Follower(Protocol):
    """Somebody who is told of every effect."""

    def follow(self, effect: Effect) -> None:
        """Called under the table's lock, once per effect, in order."""
        ...

    def settle(self, number: int) -> None:
        """Called without the lock: return when the effects up to `number` are as safe as promised."""
        ...
