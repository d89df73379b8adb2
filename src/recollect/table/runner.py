"""Verbs, and the one place where they run: tried under the lock, waited for, settled, undone.

A verb is a value. Faces check arguments, make a verb of them and hand it to a runner: a table's
core is one, and so is the store of a replay buffer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Generic, Self, TypeVar

from recollect.table.waiting import Blocked, Gate, Room

Result = TypeVar("Result")


class Verb(Generic[Result]):
    """What to try under the lock, what to wait for, what to do afterwards, and how to undo it.

    `attempt` changes everything and returns what `finish` makes the result of, or it changes
    nothing and returns `Blocked`. `finish` runs without the lock. Where something fails or is
    cancelled after a successful attempt, `undo` gets what that returned, under the lock, because
    nobody else will get it.
    """

    __slots__ = ()

    timeout: float | None = None  # seconds to wait; None waits without end, 0 tries once
    beside_others = False  # whether other processes may do the same at the same moment
    undoes = False  # whether `undo` has something to do

    def what(self) -> str:
        """The call, as messages name it."""
        return type(self).__name__.lower()

    def attempt(self) -> Any:
        raise TypeError(f"{type(self).__name__} does not say what to try")

    def room(self, gate: Gate) -> Room:
        """Which changes may let it go ahead."""
        return gate.arrivals

    def changed(self, tried: Any) -> bool:
        """Whether an attempt changed what a journal must have before the call returns."""
        return True

    def finish(self, tried: Any) -> Result:
        return tried  # type: ignore[no-any-return]

    def undo(self, tried: Any) -> None:
        return


class PlainVerb(Verb[Result]):
    """A verb made of functions."""

    __slots__ = ("_attempt", "_finish", "_room", "_undo", "_what", "timeout", "undoes")

    def __init__(
        self,
        what: str,
        attempt: Callable[[], Any],
        room: Room | None = None,
        timeout: float | None = None,
        finish: Callable[[Any], Result] | None = None,
        undo: Callable[[Any], object] | None = None,
    ) -> None:
        self._what, self.timeout = what, timeout
        self._attempt, self._room = attempt, room
        self._finish, self._undo = finish, undo
        self.undoes = undo is not None

    def within(self, seconds: float | None) -> Self:
        """The same verb, which waits so long at most."""
        self.timeout = seconds
        return self

    def what(self) -> str:
        return self._what

    def attempt(self) -> Any:
        return self._attempt()

    def room(self, gate: Gate) -> Room:
        return gate.arrivals if self._room is None else self._room

    def finish(self, tried: Any) -> Result:
        return tried if self._finish is None else self._finish(tried)

    def undo(self, tried: Any) -> None:
        if self._undo is not None:
            self._undo(tried)


class Runner(ABC):
    """Runs verbs over state that one lock guards."""

    gate: Gate

    @abstractmethod
    def transaction(self) -> AbstractContextManager[Any]:
        """The lock, or what else makes several changes one."""

    @abstractmethod
    def enter(self) -> None:
        """What every call does first under the lock."""

    @abstractmethod
    def _attempt(self, verb: Verb[Any]) -> tuple[Any, int]:
        """Under the lock: try a verb, and tell those who follow what it changed.

        Returns what the verb returned, and the number up to which `_settle` must make changes
        safe, 0 where nobody follows. Where telling fails, the verb is undone.
        """

    def run(self, verb: Verb[Result]) -> Result:
        """Run a verb in this thread, to its end."""
        tried, number = self._try(verb)
        if isinstance(tried, Blocked):
            tried, number = self.gate.wait(
                lambda: self._again(verb),
                tried, verb.room(self.gate), verb.timeout, verb.what(),
            )  # fmt: skip
        try:
            if number:
                self._settle(number, verb.changed(tried))
            return verb.finish(tried)
        except BaseException:
            self._undo(verb, tried)
            raise

    async def run_async(self, verb: Verb[Result]) -> Result:
        """The same for a coroutine, which takes no thread."""
        tried, number = self._try(verb)
        if isinstance(tried, Blocked):
            tried, number = await self.gate.wait_async(
                lambda: self._again(verb),
                tried, verb.room(self.gate), verb.timeout, verb.what(),
            )  # fmt: skip
        try:
            if number:
                await self._settle_async(number, verb.changed(tried))
            return verb.finish(tried)
        except BaseException:
            self._undo(verb, tried)
            raise

    def _try(self, verb: Verb[Any]) -> tuple[Any, int]:
        """The first attempt."""
        with self.transaction():
            self.enter()
            return self._attempt(verb)

    def _again(self, verb: Verb[Any]) -> tuple[Any, int] | Blocked:
        """A later attempt, which the gate makes under the lock."""
        tried, number = self._attempt(verb)
        return tried if isinstance(tried, Blocked) else (tried, number)

    def _undo(self, verb: Verb[Any], tried: Any) -> None:
        """What followed a change failed or was cancelled: undo of it what can be undone."""
        if verb.undoes:
            with self.transaction():
                verb.undo(tried)
                self._tell()

    # -- what is told to others, and when it is safe ----------------------------------------------
    @abstractmethod
    def _tell(self) -> None:
        """Under the lock: tell those who follow of what has changed."""

    @abstractmethod
    def _settle(self, number: int, changed: bool) -> None:
        """Without the lock: return when changes up to a number are as safe as promised."""

    @abstractmethod
    async def _settle_async(self, number: int, changed: bool) -> None:
        """The same for a coroutine."""
