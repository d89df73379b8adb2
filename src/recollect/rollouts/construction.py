"""How a buffer is made: its options are checked, its table is opened, its journal is replayed.

This is where the parts come together: nothing below knows snapshots, journals and verbs at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from recollect.base.arguments import flag, names, whole
from recollect.base.clock import Clock
from recollect.base.leases import Lease
from recollect.errors import InvalidValue, shown
from recollect.rollouts.adoption import adopt
from recollect.rollouts.core import RolloutCore
from recollect.rollouts.group_columns import ROWS, SHARED, check_cell
from recollect.rollouts.puts import STALEST_FIRST
from recollect.rollouts.staleness import StalenessRules
from recollect.rules.selectors import Selector
from recollect.storage.base import Storage
from recollect.storage.fields import parse_tags
from recollect.table.table import LARGEST_CAPACITY, Table

if TYPE_CHECKING:
    from recollect.rollouts.journaled import JournaledRollouts
    from recollect.rollouts.persistence import RolloutMember

OVERFLOW = ("block", "drop_stalest", "drop_newest", "raise")
OWN_TAGS = {"ready": bool, "expires": int, "trained_at": int}


class BufferOwner:
    """What a buffer is to its table: snapshots and journals of a store save the rest with it."""

    def __init__(self, core: RolloutCore) -> None:
        self._core = core

    def member(self) -> RolloutMember:
        """What snapshots save and load."""
        from recollect.rollouts.persistence import RolloutMember

        return RolloutMember(self._core)

    def journaled(self) -> JournaledRollouts:
        """What a journal follows."""
        from recollect.rollouts.journaled import JournaledRollouts

        return JournaledRollouts(self._core)

    def returned(self, lease: Lease) -> None:
        """Under the lock: a lease ended, and its groups are back."""
        self._core.returned(lease)


def new_core(
    *,
    order: Selector,
    staleness: Any,
    capacity: int | None,
    capacity_bytes: int | None,
    max_uses: int,
    overflow: str,
    needs: Any,
    tags: Mapping[str, Any] | None,
    archive: bool,
    storage: Storage | None,
    seed: int | None,
    journal: Any,
    name: str,
    clock: Clock | None,
) -> RolloutCore:
    """Make the core of a buffer, with what its storage or its journal has from before."""
    rules = StalenessRules(staleness)
    capacity = None if capacity is None else whole("capacity", capacity, 1)
    if capacity_bytes is not None:
        capacity_bytes = whole("capacity_bytes", capacity_bytes, 1)
    if overflow not in OVERFLOW:
        raise InvalidValue(
            f"overflow: expected one of {', '.join(map(repr, OVERFLOW))}, got {shown(overflow)}"
        )
    needed = names("needs", needs)
    for need in needed:
        check_cell("needs", need)
    archive = flag("archive", archive)
    kinds = parse_tags(tags)
    for tag in OWN_TAGS:
        if tag in kinds:
            raise InvalidValue(f"tags: the name {tag!r} is taken; choose another")
    table = Table(
        name,
        capacity=LARGEST_CAPACITY if capacity is None else capacity,
        sampler=order,
        remover=STALEST_FIRST,
        max_times_sampled=whole("max_uses", max_uses, 0),
        signature={**ROWS, **SHARED},
        tags={**kinds, **OWN_TAGS},
        partition_by=("task", "status", "ready"),
        storage=storage,
        seed=seed,
        clock=clock,
    )
    core = RolloutCore(
        table,
        rules,
        capacity=capacity,
        capacity_bytes=capacity_bytes,
        overflow=overflow,
        needs=needed,
        tags=kinds,
        archive=archive,
    )
    table.core.owner = BufferOwner(core)
    adopt(core)
    if journal is not None:
        from recollect.rollouts.journaled import open_journal

        open_journal(core, journal)
    return core
