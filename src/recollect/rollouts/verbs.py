"""A verb: something that a buffer tries under its table's lock until it goes ahead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from recollect.table.table import Table
from recollect.table.waiting import Room

T = TypeVar("T")


def as_it_is(result: Any) -> Any:
    """For verbs that have nothing left to do after the lock was released."""
    return result


class Verb(NamedTuple, Generic[T]):
    """What to try, what to wait for where that returns `Blocked`, and what to do afterwards.

    `attempt` runs under the lock, `finish` without it; it gets what `attempt` returned. Where that
    fails or is cancelled, `undo` gets it, under the lock: nobody has got a result.
    """

    attempt: Callable[[], Any]
    room: Room
    timeout: float | None
    what: str
    finish: Callable[[Any], T] = as_it_is
    undo: Callable[[Any], object] | None = None

    def finished(self, table: Table, result: Any) -> T:
        try:
            return self.finish(result)
        except BaseException:
            table._undo(self.undo, result)
            raise


def run(table: Table, verb: Verb[T]) -> T:
    """Run a verb in a thread, to its end."""
    result = table._attempt(verb.attempt, verb.room, verb.timeout, verb.what, verb.undo)
    return verb.finished(table, result)


async def run_async(table: Table, verb: Verb[T]) -> T:
    """The same for a coroutine."""
    result = await table._attempt_async(verb.attempt, verb.room, verb.timeout, verb.what, verb.undo)
    return verb.finished(table, result)
