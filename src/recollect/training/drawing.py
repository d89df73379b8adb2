"""Drawing the groups of a train step from a buffer, so that a crash gives them back.

`Queue` leases every group. `Replay` samples: a group that may be used again stays where it is, and
one that was drawn for the last time is leased, so that it leaves when its step is confirmed. These
are verbs as the buffer's own (`rollouts/taking.py`): tried under its lock, they never wait there.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recollect.arguments import many, whole
from recollect.errors import InvalidValue, shown
from recollect.info import LeaseLike
from recollect.query import field
from recollect.rollouts.buffer import RolloutBuffer
from recollect.rollouts.core import Core
from recollect.rollouts.expiring import advance_to
from recollect.rollouts.groups import Groups
from recollect.rollouts.rollout import Status
from recollect.rollouts.verbs import Verb
from recollect.selectors import Selector
from recollect.storage.base import Chosen, Where
from recollect.training.selection import Floats, Ints, Selection, join, select
from recollect.waiting import Blocked

Keys = NDArray[np.uint64]

OWNER = "training"
ANY = ""  # the task of a batch that takes groups of every task


@dataclass(frozen=True)
class Drawn:
    """Groups for a train step.

    Attributes:
        selection: Their rollouts.
        keys: The key of each group.
        uses: How often each has been used, this time included.
        weights: The importance weight of each, as the sampler says.
        leases: What they are under; some may be under none.
    """

    selection: Selection
    keys: Keys
    uses: Ints
    weights: Floats
    leases: tuple[LeaseLike, ...]


def joined(parts: list[Drawn]) -> Drawn:
    """Several draws as one, in order."""
    if len(parts) == 1:
        return parts[0]
    return Drawn(
        join([part.selection for part in parts]),
        np.concatenate([part.keys for part in parts]),
        np.concatenate([part.uses for part in parts]),
        np.concatenate([part.weights for part in parts]),
        tuple(lease for part in parts for lease in part.leases),
    )


class Mode(ABC):
    """How a train step gets its groups: `Queue` or `Replay`."""

    def check(self, buffer: RolloutBuffer) -> None:
        """Whether it can work on a buffer; may set it up."""
        return

    @abstractmethod
    async def draw(
        self, buffer: RolloutBuffer, sizes: Mapping[str, int], step: int, without: Keys
    ) -> Drawn:
        """Wait for groups of each task, other than some, and draw them for a train step."""


@dataclass(frozen=True)
class Queue(Mode):
    """Each group trains once, in the order of the buffer."""

    async def draw(
        self, buffer: RolloutBuffer, sizes: Mapping[str, int], step: int, without: Keys
    ) -> Drawn:
        groups = await buffer._run(_take(buffer._core, sizes, step))
        leases = () if groups.lease is None else (groups.lease,)
        uses = groups.info.times_sampled
        return Drawn(select(groups), groups.keys, uses, np.ones(len(groups)), leases)


@dataclass(frozen=True)
class Replay(Mode):
    """Groups train several times; the buffer is made with `max_uses=0`, since this counts them.

    Args:
        max_uses: How often a group trains before it leaves; 0 for no limit.
        sampler: Which groups are drawn: `Uniform()`, `Prioritized(half_life=...)`, an order; that
            of the buffer where None.
        fresh_share: The least share of a batch that has never trained. Where there are fewer to
            replay than the rest, more fresh groups are waited for; where the buffer is full, so
            that none can come, fewer will do. None draws from all alike.
    """

    max_uses: int = 4
    sampler: Selector | None = None
    fresh_share: float | None = None

    def __post_init__(self) -> None:
        whole("max_uses", self.max_uses, 0)
        share = self.fresh_share
        if share is not None and not 0 <= share <= 1:
            raise InvalidValue(f"fresh_share: expected a share from 0 to 1, got {shown(share)}")

    def check(self, buffer: RolloutBuffer) -> None:
        if buffer.table.max_times_sampled:
            raise InvalidValue(
                f"mode: Replay counts uses itself; make the buffer with max_uses=0, not "
                f"{buffer.table.max_times_sampled}"
            )
        if self.sampler is not None:
            buffer.table.sampler = self.sampler

    async def draw(
        self, buffer: RolloutBuffer, sizes: Mapping[str, int], step: int, without: Keys
    ) -> Drawn:
        found: Drawn = await buffer._run(_sample(buffer._core, self, sizes, step, without))
        return found


# -- verbs ----------------------------------------------------------------------------------------
def _bound(core: Core, task: str, more: Any = None) -> Where | None:
    return core.where(task or None, Status.COMPLETED, True, more)


def _take(core: Core, sizes: Mapping[str, int], step: int) -> Verb[Groups]:
    """As `take_batch`, and of any task where none is named."""
    shares = {task: (size, _bound(core, task)) for task, size in sizes.items()}

    def attempt() -> Any:
        advance_to(core, step)
        blocked = core.taking._missing(shares)
        if blocked is not None:
            return blocked
        return core.taking._hand_out(shares, math.inf, OWNER, step)

    return Verb(attempt, core.table._gate.arrivals, None, "get", core.taking._collate)


def _sample(
    core: Core, mode: Replay, sizes: Mapping[str, int], step: int, without: Keys
) -> Verb[Drawn]:
    unused, used = field("times_sampled") == 0, field("times_sampled") > 0
    others = None
    if without.size:  # a step that is filled up draws no group twice
        others = ~field("key").isin(without.tolist())
        unused, used = unused & others, used & others

    def shares() -> list[tuple[int, Where | None]] | Blocked:
        """What to draw, from which part of the buffer; all parts of all tasks, or nothing."""
        found, missing, needs = [], 0, []
        full = _is_full(core)
        for task, size in sizes.items():
            parts = [(size, _bound(core, task, others))]
            if mode.fresh_share is not None:
                fresh, again = _bound(core, task, unused), _bound(core, task, used)
                here = core.storage.available(again)[0]
                replayed = min(size - math.ceil(mode.fresh_share * size), here)
                if full:
                    replayed = max(replayed, min(size - core.storage.available(fresh)[0], here))
                # Those to replay come first: what is drawn here is not fresh any more.
                parts = [(replayed, again), (size - replayed, fresh)]
            for count, where in parts:
                here = core.storage.available(where)[0] if count else 0
                if here < count:
                    missing += count - here
                    needs.append(f"{task or 'a step'} needs {many(count, 'group')}, has {here}")
            found.extend(parts)
        if mode.fresh_share is not None and core.capacity is not None:
            missing = 1  # any arrival may be the one that fills the buffer
        return Blocked("; ".join(needs), missing) if needs else found

    def attempt() -> Any:
        advance_to(core, step)
        wanted = shares()
        if isinstance(wanted, Blocked):
            return wanted
        table, drawn = core.table, []
        for count, where in wanted:
            if count:
                calls = table._sample_calls
                drawn.append(core.storage.sample(table._sampler, count, where, False, calls))
                table._counts.samples += count
                table._sample_calls += 1
        return [_held(core, chosen, mode.max_uses, step) for chosen in drawn]

    def finish(drawn: list[tuple[Chosen, dict[str, bytes], LeaseLike | None]]) -> Drawn:
        parts = []
        for chosen, blobs, lease in drawn:
            groups = core.collated(chosen, step, blobs)
            leases = () if lease is None else (lease,)
            info = groups.info
            selection = _weighted(select(groups), info.weights)
            parts.append(Drawn(selection, groups.keys, info.times_sampled, info.weights, leases))
        return joined(parts)

    return Verb(attempt, core.table._gate.arrivals, None, "get", finish)


def _is_full(core: Core) -> bool:
    """Whether no group can come, because nothing gives way to it."""
    if core.capacity is None or core.overflow == "drop_stalest":
        return False
    return len(core.storage) >= core.capacity


def _weighted(selection: Selection, weights: Floats) -> Selection:
    """Each rollout has the weight of its group."""
    return selection.changed(weights=np.repeat(weights, np.diff(selection.row_offsets)))


def _held(
    core: Core, chosen: Chosen, max_uses: int, step: int
) -> tuple[Chosen, dict[str, bytes], LeaseLike | None]:
    """Lease those that were drawn for the last time: nobody draws them, and they are not lost."""
    blobs = core.blobs_of([core.entries[key] for key in chosen.keys.tolist()])
    lease = None
    if max_uses:
        batch_uses = times_used(core, chosen.keys)
        worn = chosen.keys[batch_uses >= max_uses]
        if worn.size:
            lease = core.table._lease(
                core.storage.get(core.storage.hide(worn), None), OWNER, math.inf
            )
            core.steps_of[lease.id] = step
    return chosen, blobs, lease


def times_used(core: Core, keys: Keys) -> Ints:
    """How often stored groups were drawn."""
    batch = core.storage.get(keys, ["segment"]).read(np.empty)
    return np.asarray(batch.info.times_sampled, np.int64)


# -- what happens to drawn groups -------------------------------------------------------------
def discard(core: Core, leases: tuple[LeaseLike, ...], keys: Keys) -> Verb[int]:
    """Groups that filters dropped leave as filtered, whether they are leased or not."""

    def attempt() -> int:
        gone = 0
        for lease in leases:
            held = core.table._leases.held().get(lease.id)
            if held is None:
                continue
            dropped = np.isin(held.keys, keys)
            if dropped.any():
                gone += int(dropped.sum())
                core.remove(held.keys[dropped], "filtered", hidden=True)
                core.table._leases.narrow(lease, held.keys[~dropped])
        visible = core.storage.find(keys, None, visible=True)
        if visible.size:
            core.remove(visible, "filtered")
        return gone + int(visible.size)

    return Verb(attempt, core.table._gate.arrivals, None, "discard")


def draw_again(core: Core, saved: Mapping[str, Any], step: int) -> Verb[Drawn]:
    """The groups of a saved step, by key and in their old order; leased again where they were.

    What has gone since, or was sent back to be generated again, is left out.
    """
    keys = np.array(saved["keys"], np.uint64)
    leased = np.array(saved["leased"], np.uint64)

    def attempt() -> Any:
        there = core.storage.find(keys, _bound(core, ANY), visible=True)
        kept = np.isin(keys, there)
        lease = None
        again = leased[np.isin(leased, there)]
        if again.size:
            where = _bound(core, ANY, field("key").isin(again.tolist()))
            hidden = core.storage.take(core.table._sampler, again.size, where, hide=True)
            lease = core.table._lease(hidden, OWNER, math.inf)
            core.steps_of[lease.id] = step
        chosen = core.storage.get(keys[kept], None)
        blobs = core.blobs_of([core.entries[key] for key in chosen.keys.tolist()])
        return chosen, blobs, lease, kept

    def finish(found: Any) -> Drawn:
        chosen, blobs, lease, kept = found
        weights = np.array(saved["weights"], np.float64)[kept]
        selection = _weighted(select(core.collated(chosen, step, blobs)), weights)
        uses = np.array(saved["uses"], np.int64)[kept]
        return Drawn(selection, keys[kept], uses, weights, () if lease is None else (lease,))

    return Verb(attempt, core.table._gate.arrivals, None, "restore", finish)
