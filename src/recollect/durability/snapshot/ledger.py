"""The ledger of a table: which of its items and values are in which files.

So a save writes only what has changed. A `Ledger` belongs to a table in memory and describes its
last snapshot, by slot: the item that stood there, where its rows are, and the fields that may
change, with the values that their columns on disk have. It is replaced when a snapshot has been
committed or loaded and not before, so it is still right after a save that failed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from recollect.base.arrays import Array, Ints
from recollect.durability.snapshot.plain_arrays import OnDisk
from recollect.durability.snapshot.segments import Ref
from recollect.kernels import layout
from recollect.storage.memory.capture import Capture
from recollect.storage.memory.saved_items import absent_value
from recollect.storage.memory.slot_runs import rises

Bools = NDArray[np.bool_]

SHARE = 64  # a segment has about one in so many bytes of the payload
SMALLEST = 256 << 10  # bytes of a segment at least
LARGEST = 256 << 20  # and at most
LOW = 0xFFFFFFFF


class Known(NamedTuple):
    """A segment that is on disk, with the slots and the rows of its items when it was written."""

    entry: dict[str, Any]  # as a manifest has it
    slots: Ints
    rows: Array | None  # None where each has one
    alive: Bools | None  # which of its items are alive; None where all are

    def living(self) -> Ints:
        """The slots of its live items."""
        return self.slots if self.alive is None else self.slots[self.alive]


@dataclass
class Ledger:
    """What a table's last snapshot holds, and where."""

    folder: str
    sequence: int
    files: dict[str, dict[str, Any]]
    segments: dict[int, Known]  # in the order of the manifest, by numbers that are used again
    place: Ints  # by slot: number of the segment << 32 | item in it, -1 for none
    records: Ints | None  # by slot, of a table; its priorities and times are those of the columns
    key: NDArray[np.uint64] | None  # by slot, of what has no records
    revision: NDArray[np.int32] | None
    before: dict[str, Array]  # by slot: other fields that may change, as in the columns
    arrays: dict[str, OnDisk] = field(default_factory=dict)
    patches: list[list[Any]] = field(default_factory=list)  # where those of its arrays are
    blobs: dict[str, Ref] = field(default_factory=dict)
    torn: bool = False  # whether a save is changing `records`; if it dies, the ledger is useless


class Differences(NamedTuple):
    """What is no longer as the ledger says."""

    gone: Ints  # slots whose item has left, or has its rows elsewhere now
    new: Ints  # slots of items whose rows are nowhere
    columns: dict[str, Ints]  # by field: slots of items that stayed, with another value


@dataclass
class SavePlan:
    """What a save writes, and what it names again."""

    kept: dict[int, Known]  # segments of the ledger, with those alive that are so now
    gone: Ints  # slots that the ledger has and that a kept segment no longer has
    columns: dict[str, Ints]  # by field: slots in kept segments whose value changed
    fresh: Ints  # the slots whose rows are written, in order of arrival
    target: int  # bytes of a segment


def empty_ledger() -> Ledger:
    """The ledger of a table that was never saved."""
    return Ledger("", -1, {}, {}, np.zeros(0, np.int64), None, None, None, {})


def plan(captured: Capture, ledger: Ledger) -> SavePlan:
    """Decide what to write: rows that came, and rows of segments that are not worth keeping."""
    differ = differences(captured, ledger)
    living = _living(ledger, differ.gone)
    sizes = {number: _live_bytes(captured, known) for number, known in living.items()}
    total = captured.count * captured.row_bytes
    if captured.sizes_differ:
        total = int(captured.nbytes(captured.slots).sum())
    target = int(min(max(total // SHARE, SMALLEST), LARGEST))
    kept = [
        number
        for number, known in living.items()
        if _count(known)
        and 2 * sizes[number] >= known.entry["nbytes"]
        and 2 * _count(known) >= known.entry["count"]
    ]
    fresh = total - sum(sizes[number] for number in kept)
    kept = _without_small(ledger, kept, fresh, target)
    again = [known.living() for number, known in living.items() if number not in set(kept)]
    written = np.concatenate([differ.new, *again])
    columns = differ.columns
    if again:
        stays = np.zeros(max(ledger.segments, default=0) + 1, np.bool_)
        stays[kept] = True
        columns = {name: slots[stays[ledger.place[slots] >> 32]] for name, slots in columns.items()}
    gone = np.concatenate([differ.gone, *again])
    return SavePlan(
        {number: living[number] for number in kept}, gone, columns, in_order(captured, written),
        target,
    )  # fmt: skip


def in_order(captured: Capture, slots: Ints) -> Ints:
    """Slots in the order in which their items came."""
    arrival = captured.seq(slots)
    if not rises(arrival):
        slots = slots[np.argsort(arrival, kind="stable")]
    return slots


def _count(known: Known) -> int:
    count: int = known.entry["live"]
    return count


def _living(ledger: Ledger, gone: Ints) -> dict[int, Known]:
    """The segments, without those of their items that have gone."""
    living = dict(ledger.segments)
    places = ledger.place[gone]
    of = places >> 32
    for number in np.flatnonzero(np.bincount(of)).tolist():
        known = living[number]
        alive = np.ones(known.slots.size, np.bool_) if known.alive is None else known.alive.copy()
        alive[places[of == number] & LOW] = False
        entry = {**known.entry, "live": int(alive.sum())}
        living[number] = known._replace(entry=entry, alive=alive)
    return living


def _live_bytes(captured: Capture, known: Known) -> int:
    if not captured.sizes_differ:
        return _count(known) * captured.row_bytes
    return int(captured.nbytes(known.living()).sum())


def differences(captured: Capture, ledger: Ledger) -> Differences:
    """Compare what was captured with what is on disk."""
    if not ledger.segments:
        return Differences(np.zeros(0, np.int64), captured.slots, {})
    size = captured.key.size
    if captured.changed is not None:
        gone, new, columns = _in_records(captured, ledger)
    else:
        assert ledger.key is not None
        known = _sized(ledger.place, size, -1) >= 0
        here = np.zeros(size, np.bool_)
        here[captured.slots] = True
        same = known & here & (_sized(ledger.key, size, 0) == captured.key)
        gone, new, columns = np.flatnonzero(known & ~same), np.flatnonzero(here & ~same), {}
    others = [name for name in captured.changing if name not in columns]
    revision = captured.fixed.get("revision")
    if others or revision is not None:
        stayed = _sized(ledger.place, size, -1) >= 0
        stayed[gone] = False
        if revision is not None:
            before = 0 if ledger.revision is None else _sized(ledger.revision, size, 0)
            again = np.flatnonzero((revision != before) & stayed)
            gone, new = np.concatenate([gone, again]), np.concatenate([new, again])
            stayed[again] = False
            columns = {name: slots[stayed[slots]] for name, slots in columns.items()}
        for name in others:
            now = captured.changing[name]
            before = np.array(absent_value(name, now.dtype), now.dtype)
            if name in ledger.before:
                before = _sized(ledger.before[name], size, 0)
            differs = np.flatnonzero(bits(now) != bits(before))
            columns[name] = differs[stayed[differs]]
    left = np.flatnonzero(ledger.place[size:] >= 0) + size  # there are fewer slots now
    return Differences(np.concatenate([gone, left]), new, columns)


def _in_records(captured: Capture, ledger: Ledger) -> tuple[Ints, Ints, dict[str, Ints]]:
    """The same for a table, whose capture says which records may have changed."""
    slots, old = captured.changed, captured.old
    assert slots is not None
    assert old is not None
    assert captured.records is not None
    new = captured.records[slots]
    was = _sized(ledger.place, captured.key.size, -1)[slots] >= 0
    now = _states(new) != layout.FREE
    same = was & now & (old[:, layout.KEY] == new[:, layout.KEY])
    return (
        slots[was & ~same],
        slots[now & ~same],
        {
            "priority": slots[same & (old[:, layout.PRIORITY] != new[:, layout.PRIORITY])],
            "times_sampled": slots[same & (_times(old) != _times(new))],
        },
    )


def _states(records: Ints) -> Array:
    return records.view(np.int8)[:, layout.STATE]


def _times(records: Ints) -> Array:
    return records.view(np.int32)[:, layout.TIMES]


def _without_small(ledger: Ledger, kept: list[int], fresh: int, target: int) -> list[int]:
    """Take small segments into what is written now, where they are no larger than it.

    So the number of segments stays low, and no row is written again more often than the
    logarithm of how much smaller than a segment a save is.
    """
    dropped = set()
    sizes = sorted((ledger.segments[number].entry["nbytes"], number) for number in kept)
    for size, number in sizes:
        if not fresh or fresh >= target or size > fresh or 2 * size > target:
            break
        dropped.add(number)
        fresh += size
    return [number for number in kept if number not in dropped]


def parts(captured: Capture, slots: Ints, size: int) -> list[Ints]:
    """Cut slots into runs of about so many bytes of payload each."""
    if not slots.size:
        return []
    if captured.sizes_differ or not captured.row_bytes:
        ends = np.cumsum(captured.nbytes(slots))
        cuts = np.flatnonzero(np.diff(np.maximum(ends - 1, 0) // size)) + 1
    else:
        width = captured.row_bytes
        whole = np.arange(1, (slots.size * width - 1) // size + 1) * size
        cuts = np.unique((whole + width) // width - 1)
        cuts = cuts[cuts > 0]
    return np.split(slots, cuts)


def bits(array: Array) -> Array:
    """Values as integers, so that NaN equals NaN."""
    return array.view(np.int64) if array.dtype == np.float64 else array


def _sized(array: Array, size: int, fill: int) -> Array:
    """As many entries as there are slots now."""
    if array.size >= size:
        return array[:size]
    return np.concatenate([array, np.full(size - array.size, fill, array.dtype)])


def wasted(ledger: Ledger, refs: Mapping[str, int]) -> set[str]:
    """Files of items and changes less than half of which is still named."""
    return {
        name
        for name, entry in ledger.files.items()
        if "values" in entry and 0 < 2 * refs.get(name, 0) < entry["values"]
    }
