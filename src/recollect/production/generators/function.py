"""`FunctionGenerator`: an async function of a group as a generator."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Self

from recollect.base.arguments import one_of
from recollect.errors import GenerationError, InvalidValue, shown
from recollect.production.generators.base import to_generate
from recollect.production.generators.life_cycle import abort, begin, stamp, together
from recollect.rollouts.group import Group
from recollect.rollouts.rollout import Rollout

Function = Callable[[Group], Awaitable[Group | None] | Group | None]
GENERATED = (
    "response_ids",
    "logprobs",
    "loss_mask",
    "versions",
    "reward",
    "rewards",
    "error",
    "turns",
)

Each = Callable[[Group, Rollout], Awaitable[Rollout | None] | Rollout | None]
ON_PAUSE = ("finish", "abort")


class FunctionGenerator:
    """Generates with a function that answers the unfinished rollouts of a group.

    The function sets `response_ids` and `finish_reason` of each rollout whose status is INIT, and
    logprobs and versions where it knows them; tokens without a version take that at dispatch. It
    may return the group, another one with the same id, or nothing. What it raises is raised at the
    trainer; a rollout that failed says so with `finish_reason="error"`.

    >>> import asyncio
    >>> import recollect as rc
    >>> from recollect.production import FunctionGenerator
    >>> async def echo(group):
    ...     for rollout in group:
    ...         rollout.response_ids, rollout.finish_reason = group.prompt_ids, "stop"
    >>> generator = FunctionGenerator(echo, version=3)
    >>> group = rc.Group([rc.Rollout()], prompt_ids=[5, 6])
    >>> asyncio.run(generator.generate(group, keep_partial=False))[0].versions
    array([3, 3], dtype=int32)

    Args:
        function: Of a group; a coroutine function, as a rule.
        on_pause: `finish` lets running calls come to their end; `abort` cancels them, and rollouts
            that are not finished are ABORTED, with what the function had written into them.
        version: Of the weights that the function uses now.
    """

    def __init__(self, function: Function, *, on_pause: str = "finish", version: int = 0) -> None:
        if not callable(function):
            raise InvalidValue(f"function: expected a function of a group, got {shown(function)}")
        one_of("on_pause", on_pause, ON_PAUSE)
        self._function = function
        self._aborts = on_pause == "abort"
        self._scopes: set[asyncio.Timeout] = set()
        self._paused = False
        self.version = version

    @classmethod
    def each(cls, function: Each, *, on_pause: str = "finish", version: int = 0) -> Self:
        """Of a function of group and rollout, called for each unfinished rollout, side by side.

        It changes the rollout, or returns another one, whose response and what belongs to it are
        taken over.

        >>> import asyncio
        >>> import recollect as rc
        >>> from recollect.production import FunctionGenerator
        >>> async def echo(group, rollout):
        ...     return rc.Rollout(response_ids=group.prompt_ids, reward=1.0, finish_reason="stop")
        >>> group = rc.Group([rc.Rollout(), rc.Rollout()], prompt_ids=[5, 6])
        >>> asyncio.run(FunctionGenerator.each(echo).generate(group, keep_partial=False)).rewards
        [1.0, 1.0]
        """
        if not callable(function):
            raise InvalidValue(
                f"function: expected a function of group and rollout, got {shown(function)}"
            )

        async def one(group: Group, rollout: Rollout) -> None:
            given = function(group, rollout)
            result = await given if isawaitable(given) else given
            if result is not None and result is not rollout:
                _take_over(rollout, result)

        async def all_members(group: Group) -> None:
            await together([one(group, rollout) for rollout in to_generate(group)])

        return cls(all_members, on_pause=on_pause, version=version)

    async def pause(self) -> None:
        """Let running calls finish, or cancel them; `generate` returns at once from now on."""
        self._paused = True
        now = asyncio.get_running_loop().time()
        for scope in self._scopes:
            if self._aborts and not scope.expired():
                scope.reschedule(now)

    async def continue_(self, version: int) -> None:
        """Generate again, with weights of a version."""
        self.version = version
        self._paused = False

    async def set_version(self, version: int) -> None:
        """The function uses other weights from now on. Nothing is broken off."""
        self.version = version

    async def generate(self, group: Group, *, keep_partial: bool) -> Group:
        """Generate the rollouts that are not finished."""
        members = to_generate(group)
        version = self.version
        before = {}
        for rollout in members:
            begin(rollout, version, keep_partial)
            before[rollout.rollout_id] = rollout.num_tokens
        if self._paused:
            for rollout in members:
                abort(rollout, keep_partial)
            return group
        call = self._breakable if self._aborts else self._called
        result = await call(group)
        if result is None:
            for rollout in members:
                if rollout.finish_reason is None:
                    abort(rollout, keep_partial)
            result = group
        _check(group, result)
        for rollout in result:
            if rollout.rollout_id in before:
                _check_end(rollout)
                stamp(rollout, before[rollout.rollout_id], version, self.version)
        return result

    async def _called(self, group: Group) -> Group:
        given = self._function(group)
        result = await given if isawaitable(given) else given
        return group if result is None else result

    async def _breakable(self, group: Group) -> Group | None:
        """The same; None where a pause broke it off."""
        scope = asyncio.timeout(None)
        try:
            async with scope:
                self._scopes.add(scope)
                try:
                    return await self._called(group)
                finally:
                    self._scopes.discard(scope)
        except TimeoutError:
            if not scope.expired():
                raise  # the function's own
            return None


def _check(given: Group, result: object) -> None:
    if not isinstance(result, Group):
        raise GenerationError(
            f"the function returned {shown(result)}; it returns a group, or nothing"
        )
    if result.group_id != given.group_id:
        raise GenerationError(
            f"the function returned group {result.group_id!r} for {given.group_id!r}; a group "
            "keeps its id"
        )


def _check_end(rollout: Rollout) -> None:
    if rollout.finish_reason is None:
        raise GenerationError(
            f"the function left rollout {rollout.rollout_id!r} without a finish_reason; it sets "
            "'stop', 'length', 'tool_calls', 'abort' or 'error'"
        )
    rollout.check()  # lists become arrays


def _take_over(rollout: Rollout, made: object) -> None:
    if not isinstance(made, Rollout):
        raise GenerationError(
            f"the function returned {shown(made)}; it returns an rc.Rollout, or nothing"
        )
    for name in GENERATED:
        setattr(rollout, name, getattr(made, name))
    rollout.arrays, rollout.extras = made.arrays, {**rollout.extras, **made.extras}
    rollout.finish_reason = made.finish_reason
