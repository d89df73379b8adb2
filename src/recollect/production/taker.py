"""Taking a batch for a trainer, who may be cancelled, or learn that it will not come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TypeVar

from recollect.production.signal import Signal
from recollect.rollouts.buffer import RolloutBuffer
from recollect.rollouts.groups import TakenBatch
from recollect.rollouts.rollout import new_id

V = TypeVar("V")


async def leased(
    buffer: RolloutBuffer, sizes: Mapping[str, int], step: int, lease: float | bool, owner: str
) -> TakenBatch:
    """Take a batch; whoever is cancelled here, or while a journal is written, holds none.

    So there is a lease in any case. Who wanted none gets rid of it by `unleased`.
    """
    lease = True if lease is False else lease
    try:
        return await buffer.take_batch(sizes, train_step=step, lease=lease, owner=owner)
    except BaseException:
        buffer.sync.release(owner)
        raise


def unleased(buffer: RolloutBuffer, taken: TakenBatch, step: int) -> None:
    """A batch is for good who took it: it counts as trained. Immediate."""
    buffer.sync.confirm(taken.lease, step)
    taken.all.forget_lease()


async def take_unless(
    buffer: RolloutBuffer,
    sizes: Mapping[str, int],
    step: int,
    lease: float | bool,
    changed: Signal,
    verdict: Callable[[], V | None],
) -> TakenBatch | V:
    """Wait for a batch in the buffer, or for a reason not to, which may be an error.

    Both are looked at in turn, the batch first: a reason that comes together with the batch that
    it is about does not win over it. Nor does one that comes while a journal writes that the batch
    was taken: what is missing from the buffer then is the batch itself.
    """
    owner = new_id()
    taking = asyncio.ensure_future(leased(buffer, sizes, step, lease, owner))
    taking.add_done_callback(lambda _: changed.notify())
    found = None
    try:
        while not taking.done():
            found = None if _holds(buffer, owner) else verdict()
            if found is not None:
                break
            await changed.after(changed.count)
        if await _ended(taking):
            return taking.result()
    except BaseException:
        if await _ended(taking) and taking.exception() is None:
            buffer.sync.give_back(taking.result().lease)
        raise
    assert found is not None
    return found


def _holds(buffer: RolloutBuffer, owner: str) -> bool:
    table = buffer.core.table
    with table.transaction():
        return bool(table.leases.of_owner(owner))


async def _ended(taking: asyncio.Future[TakenBatch]) -> bool:
    """End a call that may still wait; says whether it came to a result, or an error, before."""
    if not taking.done():
        taking.cancel()
        await asyncio.wait([taking])
    return not taking.cancelled()
