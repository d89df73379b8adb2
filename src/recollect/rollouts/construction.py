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
from recollect.rollouts.blobs import Blobs
from recollect.rollouts.core import RolloutCore
from recollect.rollouts.group_columns import ROWS, SHARED, check_cell
from recollect.rollouts.own_state import restore_own
from recollect.rollouts.puts import STALEST_FIRST
from recollect.rollouts.staleness import StalenessRules
from recollect.rules.query import FieldType
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
    """A buffer as its table knows it: what snapshots and journals of the table save and follow."""

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
    cells = _checked_needs(needs)
    archive = flag("archive", archive)
    kinds = _checked_tags(tags)
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
        needs=cells,
        tags=kinds,
        archive=archive,
    )
    table.core.owner = BufferOwner(core)
    _adopt(core)
    if journal is not None:
        from recollect.rollouts.journaled import open_journal

        open_journal(core, journal)
    return core


def _checked_needs(needs: Any) -> tuple[str, ...]:
    cells = names("needs", needs)
    for cell in cells:
        check_cell("needs", cell)
    return cells


def _checked_tags(tags: Mapping[str, Any] | None) -> dict[str, FieldType]:
    kinds = parse_tags(tags)
    for tag in OWN_TAGS:
        if tag in kinds:
            raise InvalidValue(f"tags: the name {tag!r} is taken; choose another")
    return kinds


# -- groups that are in the storage from before, such as a database after a restart ---------------
class _KeptBlobs(dict[str, bytes]):
    """The blobs that a storage has kept; they are read when a group asks for them."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs

    def __missing__(self, name: str) -> bytes:
        found = self._blobs.kept([name]).get(name)
        if found is None:
            raise InvalidValue(
                "storage: a stored group refers to blobs that this storage does not have: those "
                "went with the process that put them; put groups with blobs anew, into an empty "
                "table"
            )
        self[name] = found
        return found


def _adopt(core: RolloutCore) -> None:
    """Know the groups that are in the storage.

    Accounts begin anew, as if the groups had just been put, and so does the train step: the next
    `advance` sets it.
    """
    with core.table.transaction():
        if not len(core.storage):
            return
        own = {"train_step": core.train_step, "accounts": core.accounts.state()}
        restore_own(core, own, _KeptBlobs(core.blobs))
        for entry in core.entries.values():
            if not entry.trained:
                core.accounts[entry.task].put += 1
