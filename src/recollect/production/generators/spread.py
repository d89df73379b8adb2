"""`SpreadGenerator`: several generators as one; a group goes to the one with the least to do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable

from recollect.errors import InvalidValue
from recollect.production.generators.base import Generator
from recollect.rollouts.group import Group


class SpreadGenerator:
    """Spreads groups over generators: several servers, or several actors.

    A group goes whole to the generator with the fewest groups in flight, because its rollouts share
    a prompt and so a server's cache. Pauses and versions go to all.

    >>> import asyncio
    >>> import recollect as rc
    >>> from recollect.production import FunctionGenerator, SpreadGenerator
    >>> def answering(token):
    ...     async def answer(group):
    ...         for rollout in group:
    ...             rollout.response_ids, rollout.finish_reason = [token], "stop"
    ...         await asyncio.sleep(0)
    ...     return FunctionGenerator(answer)
    >>> generator = SpreadGenerator([answering(1), answering(2)])
    >>> async def main():
    ...     groups = [rc.Group([rc.Rollout()], prompt_ids=[5]) for _ in range(4)]
    ...     calls = [generator.generate(group, keep_partial=False) for group in groups]
    ...     return [int(group[0].response_ids[0]) for group in await asyncio.gather(*calls)]
    >>> asyncio.run(main())
    [1, 2, 1, 2]
    """

    def __init__(self, generators: Iterable[Generator]) -> None:
        self._generators = list(generators)
        if not self._generators:
            raise InvalidValue("generators: expected at least one")
        self._busy = [0] * len(self._generators)

    @property
    def in_flight(self) -> list[int]:
        """Groups that each generator works on."""
        return list(self._busy)

    async def generate(self, group: Group, *, keep_partial: bool) -> Group:
        """Generate with the least busy one."""
        place = self._busy.index(min(self._busy))
        self._busy[place] += 1
        try:
            return await self._generators[place].generate(group, keep_partial=keep_partial)
        finally:
            self._busy[place] -= 1

    async def pause(self) -> None:
        """Pause all."""
        await _each(generator.pause() for generator in self._generators)

    async def continue_(self, version: int) -> None:
        """Continue all, with weights of a version."""
        await _each(generator.continue_(version) for generator in self._generators)

    async def set_version(self, version: int) -> None:
        """Tell all that they have other weights."""
        await _each(generator.set_version(version) for generator in self._generators)


async def _each(calls: Iterable[Awaitable[None]]) -> None:
    """All of them, also where one fails; then the first failure is raised."""
    for result in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
