"""Room for groups: what is promised to producers, and what a put into a full buffer does.

Everything here expects the lock; `reserve` and `unreserve` take it themselves.
"""

from __future__ import annotations

import logging

import numpy as np

from recollect.base.arguments import many, text, time_span, whole
from recollect.base.arrays import Keys
from recollect.data.ragged import Ragged
from recollect.data.schema import Rows
from recollect.errors import BufferFull, NeverPossible
from recollect.rollouts.core import NO_KEYS, RolloutCore
from recollect.rollouts.encoding import Encoded
from recollect.rollouts.expiry import enter, expire_due
from recollect.rollouts.group import Group
from recollect.rollouts.group_columns import ARRAYS, as_rows
from recollect.rollouts.rollout import Status
from recollect.rules.selectors import Fifo
from recollect.storage.memory.storage import MemoryStorage
from recollect.table.runner import PlainVerb, Verb
from recollect.table.waiting import Blocked

log = logging.getLogger("recollect.rollouts")


OLDEST_FIRST = Fifo()  # one object, by which a storage finds its index


def make_room(
    core: RolloutCore, group: Group, encoded: Encoded, rows: Rows, replaced: int | None
) -> Blocked | str | None:
    """Returns None where there is room now; else why not, or that the group was discarded.

    What was trained makes room first, and no group leaves for one that does not come in. A group
    with reserved room always comes in: where all that could leave for it is leased, the buffer is
    above its capacity until something leaves.
    """
    promises = sum(core.promised.values())
    reserved = core.promised.get(group.task, 0) > 0
    items = nbytes = 0
    if core.capacity is not None:
        items = len(core.storage) + (replaced is None) - core.capacity
    if core.capacity_bytes is not None:
        nbytes = _missing_bytes(core, encoded, rows, replaced)
    spared = NO_KEYS if replaced is None else np.array([replaced], np.uint64)
    if reserved:
        if core.overflow != "drop_stalest":
            items, nbytes = drop_archived(core, items, nbytes, spared)
            items = 0  # promises count groups, so only bytes can make others leave
        drop_stalest(core, items, nbytes, spared)
        return None
    if core.overflow == "drop_stalest":
        return drop_stalest(core, items, nbytes, spared)
    if core.capacity is None or not _crowded(core, items + promises, spared):
        items, nbytes = drop_archived(core, items, nbytes, spared)
        if items <= 0 and nbytes <= 0:
            return None
    if core.overflow == "drop_newest":
        core.refuse(group, "overflow")
        return "overflow"
    full = f"the buffer is full: {_fullness(core, promises)}"
    if core.overflow == "raise":
        raise BufferFull(f"{full}; take groups, or choose another overflow")
    return Blocked(f"{full}, and a group must leave")


def exceed(core: RolloutCore) -> None:
    """Let the storage take one group more than the capacity: a promise is kept."""
    storage = core.storage
    if isinstance(storage, MemoryStorage):
        storage.items.capacity = max(storage.items.capacity, len(storage) + 1)


def _crowded(core: RolloutCore, items: int, replaced: Keys) -> bool:
    """Whether there would be too many groups even after the archive has made room."""
    if items + replaced.size <= 0:
        return False
    where = core.where(None, Status.ARCHIVED, None)
    again = core.storage.find(replaced, where, visible=True).size  # archived no more
    return items + again > _archived(core)


def _missing_bytes(core: RolloutCore, encoded: Encoded, rows: Rows, replaced: int | None) -> int:
    """Bytes that must leave before a group comes, 0 or less where it fits."""
    payload = _payload(core, rows, encoded.shared)
    if encoded.arrays:  # those of a new name have no column yet
        names = core.columns
        new = [c for name, (c, _) in encoded.arrays.items() if ARRAYS + name not in names]
        payload += sum(cells.values.nbytes for cells in new if isinstance(cells, Ragged))
    assert core.capacity_bytes is not None
    coming = payload + sum(map(len, encoded.blobs.values()))
    if coming > core.capacity_bytes:
        raise NeverPossible(
            f"a group of {coming} bytes never fits a buffer of {core.capacity_bytes} bytes; "
            "put smaller groups, or make it with a larger capacity_bytes"
        )
    leaving = 0
    if replaced is not None:
        freed = core.blobs.freed(core.entries[replaced].blobs, encoded.blobs)
        leaving = _bytes_of(core, replaced) + freed
    after = core.nbytes + payload + core.blobs.missing(encoded.blobs) - leaving
    return after - core.capacity_bytes


def is_tight(core: RolloutCore) -> bool:
    """Whether a put may find no room."""
    if core.capacity_bytes is not None:
        return True
    if core.capacity is None:
        return False
    return len(core.storage) + sum(core.promised.values()) >= core.capacity


def _fullness(core: RolloutCore, promises: int) -> str:
    parts = []
    if core.capacity is not None:
        parts.append(f"{len(core.storage)} of {many(core.capacity, 'group')}")
        if promises:
            parts.append(f"{promises} more promised")
    if core.capacity_bytes is not None:
        parts.append(f"{core.nbytes} of {core.capacity_bytes} bytes")
    return ", ".join(parts)


def _payload(core: RolloutCore, rows: Rows, shared: Rows) -> int:
    of_rows, of_shared = core.table.schemas
    assert of_rows is not None
    assert of_shared is not None
    return of_rows.payload(rows) + of_shared.payload(shared)


def _bytes_of(core: RolloutCore, key: int) -> int:
    """The payload of a group, without its blobs."""
    batch = core.storage.get(np.array([key], np.uint64), None).read(np.empty)
    return _payload(core, as_rows(batch), as_rows(batch.shared))


def drop_archived(core: RolloutCore, items: int, nbytes: int, spared: Keys) -> tuple[int, int]:
    """What was trained makes room first, the oldest first; returns what is still missing."""
    if items <= 0 and nbytes <= 0:
        return items, nbytes
    storage = core.storage
    where = core.where(None, Status.ARCHIVED, None)
    kept = storage.hide(spared)
    while (items > 0 or nbytes > 0) and storage.available(where)[0]:
        before = core.nbytes
        oldest = storage.take(OLDEST_FIRST, 1, where, hide=True)
        core.remove(oldest.keys, "archived", hidden=True)
        _let_go(core)
        items -= 1
        nbytes -= before - core.nbytes
    if kept.size:
        storage.show(kept, returned=False)
    return items, nbytes


def _let_go(core: RolloutCore) -> None:
    """A trained group gave way: where it was kept for a rewind, it will be generated again."""
    if core.keeps_trained and core.unkept < core.train_step:
        core.unkept = core.train_step
        log.warning(
            "the buffer is full, and trained groups that a checkpoint has not covered yet give "
            "way: a rewind would generate them again; save more often, or raise the capacity"
        )


def drop_stalest(core: RolloutCore, items: int, nbytes: int, spared: Keys) -> Blocked | None:
    """The stalest groups leave, those of the archive first; leased and spared ones stay."""
    if items <= 0 and nbytes <= 0:
        return None
    storage = core.storage
    if storage.hidden and _never_enough(core, items, nbytes, spared):
        return Blocked(
            f"the buffer is full, and of its {many(len(storage), 'group')} {storage.hidden} "
            "are leased; a lease must be confirmed or given back"
        )
    items, nbytes = drop_archived(core, items, nbytes, spared)
    kept = storage.hide(spared)
    blocked = None
    while items > 0 or nbytes > 0:
        if len(storage) == storage.hidden:
            blocked = Blocked(
                f"the buffer is full and all of its {many(len(storage), 'group')} are leased; "
                "a lease must be confirmed or given back"
            )
            break
        before = core.nbytes
        stalest = storage.take(core.table.rules.remover, 1, None, hide=True)
        core.remove(stalest.keys, "overflow", hidden=True)
        items -= 1
        nbytes -= before - core.nbytes
    if kept.size:
        storage.show(kept, returned=False)
    return blocked


def _never_enough(core: RolloutCore, items: int, nbytes: int, spared: Keys) -> bool:
    """Whether there is no room even when all leave that may: then none leaves in vain."""
    spared = core.storage.find(spared, None, visible=True)  # a leased one is held already
    if items > len(core.storage) - core.storage.hidden - spared.size:
        return True
    if nbytes <= 0:
        return False
    leases = core.table.leases.held()
    known = core.lease_sizes
    core.lease_sizes = {
        number: known[number] if number in known else _sizes(core, held.keys)
        for number, held in leases.items()
    }
    staying = [*core.lease_sizes.values(), _sizes(core, spared)]
    blobs: set[str] = set().union(*(names for _, names in staying))
    kept = sum(payload for payload, _ in staying)
    kept += sum(map(len, core.blobs.get(blobs).values()))
    return nbytes > core.nbytes - kept


def _sizes(core: RolloutCore, keys: Keys) -> tuple[int, set[str]]:
    """The payload of groups, and the names of their blobs."""
    stored = keys.tolist()
    names = {name for key in stored for name in core.entries[key].blobs}
    return sum(_bytes_of(core, key) for key in stored), names


def bytes_of(core: RolloutCore, keys: Keys) -> int:
    """The payload of groups, with their blobs."""
    payload, names = _sizes(core, keys)
    return payload + sum(map(len, core.blobs.get(names).values()))


# -- promises -------------------------------------------------------------------------------------
def reserve(core: RolloutCore, n: int, task: str) -> int:
    """Promise room for up to n groups; returns for how many there is."""
    n, task = whole("n", n, 0), text("task", task)
    core.rules[task]  # raises where a put of the task would
    with core.table.transaction():
        enter(core)
        return _promise(core, min(n, _free(core, n)), task)


def reserve_all(core: RolloutCore, n: int, task: str, timeout: float | None) -> Verb[int]:
    """Promise room for n groups, or wait until there is; never for some of them."""
    n, task = whole("n", n, 0), text("task", task)
    core.rules[task]  # raises where a put of the task would
    if timeout is not None:
        timeout = time_span("timeout", timeout)
    if core.capacity is not None and n > core.capacity:
        raise NeverPossible(
            f"reserve_all: room for {many(n, 'group')} is never there: the capacity is "
            f"{core.capacity}; reserve fewer"
        )

    def attempt() -> int | Blocked:
        expire_due(core)
        free = _free(core, n)
        if free < n:
            least = n - free if core.capacity_bytes is None else 1
            fullness = _fullness(core, sum(core.promised.values()))
            needs = f"needs room for {many(n, 'group')}, has it for {free}: {fullness}"
            return Blocked(needs, least)
        return _promise(core, n, task)

    return PlainVerb(
        f"reserve_all({n}, {task!r})",
        attempt,
        core.table.gate.departures,
        timeout,
        undo=lambda promised: unreserve(core, promised, task),
    )


def _free(core: RolloutCore, n: int) -> int:
    """For how many more groups, of n, room can be promised: those that may be dropped give way.

    Nobody knows how large a group will be. So where bytes are bounded, some must be free.
    """
    staying = len(core.storage) - _archived(core)
    if core.overflow == "drop_stalest":
        staying = core.storage.hidden  # what is leased cannot leave
        if core.capacity is not None and staying < core.capacity < len(core.storage):
            drop_stalest(core, len(core.storage) - core.capacity, 0, NO_KEYS)  # those above it
    full = core.capacity_bytes is not None and core.nbytes >= core.capacity_bytes
    if full and staying == len(core.storage):
        return 0
    if core.capacity is None:
        return n
    return max(0, min(n, core.capacity - staying - sum(core.promised.values())))


def _archived(core: RolloutCore) -> int:
    """Groups that were trained and stay, and that nobody has leased."""
    return core.storage.available(core.where(None, Status.ARCHIVED, None))[0]


def _promise(core: RolloutCore, n: int, task: str) -> int:
    if n:
        core.promised[task] = core.promised.get(task, 0) + n
        core.changed()
    return n


def unreserve(core: RolloutCore, n: int, task: str) -> int:
    """Give promised room back, or use it; returns for how many groups it was promised."""
    n, task = whole("n", n, 0), text("task", task)
    with core.table.transaction():
        given_back = min(n, core.promised.get(task, 0))
        if given_back:
            core.promised[task] -= given_back
            if not core.promised[task]:
                del core.promised[task]
            core.table.gate.departures.changed(given_back)
            core.changed()
    return given_back
