"""`RayGenerator`: a generator that lives in a Ray actor.

What travels are groups, by Ray's own encoding. Arrays of a group that comes back lie in Ray's
shared memory and are read-only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from recollect.base.optional import optional
from recollect.errors import GenerationError, shown
from recollect.production.generators.base import Generator
from recollect.rollouts.group import Group

AT_ONCE = 10_000  # groups that may be generated in an actor at the same time


class GeneratorActor:
    """What runs in the actor's process. `start_generator` starts it."""

    def __init__(self, make: Callable[..., Generator], *given: Any, **named: Any) -> None:
        self._generator = make(*given, **named)

    async def generate(self, group: Group, keep_partial: bool) -> Group:
        return await self._generator.generate(group, keep_partial=keep_partial)

    async def pause(self) -> None:
        await self._generator.pause()

    async def continue_(self, version: int) -> None:
        await self._generator.continue_(version)

    async def set_version(self, version: int) -> None:
        await self._generator.set_version(version)


class RayGenerator:
    """The calls of a generator on an actor that has them as coroutines.

    A call that is cancelled here is cancelled there. An actor that dies is an error at the trainer.

    Args:
        actor: A handle, as `start_generator` makes it, or of any asynchronous actor with the
            methods of a generator.
    """

    def __init__(self, actor: Any) -> None:
        for name in ("generate", "pause", "continue_", "set_version"):
            if not hasattr(actor, name):
                raise GenerationError(
                    f"actor: expected one with the methods of a generator, and {shown(actor)} has "
                    f"no {name}"
                )
        self.actor = actor

    async def generate(self, group: Group, *, keep_partial: bool) -> Group:
        """Generate in the actor; what comes back is another object with the same id."""
        call = self.actor.generate.remote(group, keep_partial=keep_partial)
        try:
            result: Group = await call
        except asyncio.CancelledError:
            optional("ray").cancel(call)
            raise
        return result

    async def pause(self) -> None:
        """Pause the actor's generator."""
        await self.actor.pause.remote()

    async def continue_(self, version: int) -> None:
        """Continue it, with weights of a version."""
        await self.actor.continue_.remote(version)

    async def set_version(self, version: int) -> None:
        """Tell it that it has other weights."""
        await self.actor.set_version.remote(version)


def start_generator(
    make: Callable[..., Generator],
    *given: Any,
    options: Mapping[str, Any] | None = None,
    **named: Any,
) -> RayGenerator:
    """Start a generator in a Ray actor of its own.

    Args:
        make: A class or a function that makes the generator; it is called in the actor.
        given: Its arguments.
        options: Of Ray's `actor.options`, such as `num_gpus` or `name`.
        named: Its arguments by name.
    """
    actor = optional("ray").remote(GeneratorActor)
    settings = {"max_concurrency": AT_ONCE, **(options or {})}
    return RayGenerator(actor.options(**settings).remote(make, *given, **named))
