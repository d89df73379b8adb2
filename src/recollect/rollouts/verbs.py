"""A verb: something that a buffer tries under its table's lock until it goes ahead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from recollect.waiting import Room

T = TypeVar("T")


def as_it_is(result: Any) -> Any:
    """For verbs that have nothing left to do after the lock was released."""
    return result


class Verb(NamedTuple, Generic[T]):
    """What to try, what to wait for where that returns `Blocked`, and what to do afterwards.

    `attempt` runs under the lock, `finish` without it; it gets what `attempt` returned.
    """

    attempt: Callable[[], Any]
    room: Room
    timeout: float | None
    what: str
    finish: Callable[[Any], T] = as_it_is
