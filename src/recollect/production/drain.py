"""Draining: from a stop until nothing is in flight. Generators are asked, and then cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from recollect.errors import ProductionError
from recollect.production.context import Context
from recollect.production.generators.base import Generator
from recollect.production.results import log

Contexts = Mapping[str, Context]

ASK_LIMIT = 30.0  # seconds that one call of a generator's pause may take
ASK_AGAIN = 5.0  # seconds after which it is asked again


async def drain(contexts: Contexts, timeout: float) -> float:
    """Wait until nothing is in flight; returns the seconds it took.

    What still generates after `timeout` is cancelled, and its prompts are given back.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    first = [loop.create_task(ask_to_pause(each)) for each in generators_of(contexts)]
    again = loop.create_task(_ask_again(contexts, first))
    try:
        try:
            async with asyncio.timeout(timeout):
                for context in contexts.values():
                    await context.task.strategy.pause(context)
        except TimeoutError:
            for name, context in contexts.items():
                if len(context.pending):
                    log.warning(
                        "task %r: %d generations did not end within %g s; they are cancelled, and "
                        "their prompts given back",
                        name,
                        len(context.pending),
                        timeout,
                    )
            await cancel_rest(contexts)
        # Each was asked once to its end, also where nothing is in flight: a pause may do more than
        # abort, such as free the memory that the trainer needs.
        await asyncio.wait(first)
    finally:
        for each in (*first, again):
            each.cancel()
    return loop.time() - began


async def cancel_rest(contexts: Contexts) -> None:
    """What still generates is cancelled; what is claimed is stored, which waits for nobody."""
    for context in contexts.values():
        for flight in context.pending.cancel_all():  # no await until all are given back
            context.give_back(flight)
    for context in contexts.values():
        await context.pending.drained()


async def ask_to_pause(generator: Generator) -> None:
    """Ask once. A generator that does not answer, or fails, is not waited for."""
    try:
        async with asyncio.timeout(ASK_LIMIT):
            await generator.pause()
    except TimeoutError:
        log.warning("a generator did not answer to pause within %g s", ASK_LIMIT)
    except Exception:
        log.exception("a generator failed to pause")


async def _ask_again(contexts: Contexts, first: list[asyncio.Task[None]]) -> None:
    """Ask again and again, until generations are over: one may have begun in between."""
    await asyncio.wait(first)
    while True:
        await asyncio.sleep(ASK_AGAIN)
        await each_generator(contexts, ask_to_pause)


def generators_of(contexts: Contexts) -> list[Generator]:
    """Each generator once, though tasks may share it."""
    return list({id(each.generator): each.generator for each in contexts.values()}.values())


async def each_generator(contexts: Contexts, call: Callable[[Generator], Awaitable[None]]) -> None:
    """Call all of them at once, and wait for all; then the first failure is raised."""
    calls = (call(generator) for generator in generators_of(contexts))
    for result in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(result, asyncio.CancelledError):  # its own: nobody would see it end us
            raise ProductionError("a generator was cancelled, and not by production") from result
        if isinstance(result, BaseException):
            raise result
