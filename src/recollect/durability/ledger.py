"""What of a table is in which files: so that a snapshot writes only what has changed.

A `Ledger` belongs to a table in memory and describes its last snapshot, by slot: the key that
stood there, where its rows are, and the fields that may change. It is replaced when a snapshot has
been committed or loaded, and never before, so a save that fails leaves it true.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from recollect.durability.arrays import OnDisk
from recollect.durability.segments import Ref
from recollect.storage.capture import Capture, absent_value

Ints = NDArray[np.int64]
Array = NDArray[Any]
Entry = dict[str, Any]  # of a segment, as a manifest has it

SHARE = 64  # a segment is about one in so many of the payload,
SMALLEST = 256 << 10  # but no smaller
LARGEST = 256 << 20  # and no larger


class Known(NamedTuple):
    """A segment that is on disk, with the slots and the rows of its items when it was written."""

    entry: Entry
    slots: Ints
    rows: Array | None  # None where each has one


@dataclass
class Ledger:
    """A table's last snapshot."""

    folder: str
    files: dict[str, dict[str, Any]]
    segments: list[Known]
    key: NDArray[np.uint64]  # by slot
    revision: NDArray[np.int32] | None
    place: Ints  # by slot: segment << 32 | item in it, -1 for none
    before: dict[str, Array]  # by slot: fields that may change
    arrays: dict[str, OnDisk] = field(default_factory=dict)
    patches: list[list[Any]] = field(default_factory=list)  # where those of its arrays are
    blobs: dict[str, Ref] = field(default_factory=dict)


@dataclass
class Plan:
    """What a save writes, and what it names again."""

    kept: list[int]  # segments of the ledger
    known: NDArray[np.bool_]  # by slot: whether a kept segment has its rows
    fresh: Ints  # the slots whose rows are written, in order of arrival
    target: int  # bytes of a segment


def empty_ledger(slots: int) -> Ledger:
    """That of a table which was never saved."""
    none = np.full(slots, -1, np.int64)
    return Ledger("", {}, [], np.zeros(slots, np.uint64), None, none, {})


def plan(captured: Capture, ledger: Ledger) -> Plan:
    """Decide what must be written: rows that came, and those of segments not worth keeping."""
    slots, many = captured.slots, len(ledger.segments)
    known = _known(captured, ledger)
    here = np.flatnonzero(known)
    of = ledger.place[here] >> 32
    items = np.bincount(of, minlength=many)
    if captured.sizes_differ:
        total = int(captured.nbytes(slots).sum())
        live = np.bincount(of, captured.nbytes(here), many)
    else:
        total, live = slots.size * captured.row_bytes, items * captured.row_bytes
    target = int(min(max(total // SHARE, SMALLEST), LARGEST))
    kept = [
        number
        for number, segment in enumerate(ledger.segments)
        if items[number]
        and 2 * live[number] >= segment.entry["nbytes"]
        and 2 * items[number] >= segment.entry["count"]
    ]
    kept = _without_small(ledger, kept, int(total - live[kept].sum()), target)
    if len(kept) < many:
        stays = np.zeros(many, np.bool_)
        stays[kept] = True
        known[here[~stays[of]]] = False
    fresh = slots[~known[slots]]
    if fresh.size:
        fresh = fresh[np.argsort(captured.seq(fresh), kind="stable")]
    return Plan(kept, known, fresh, target)


def _known(captured: Capture, ledger: Ledger) -> NDArray[np.bool_]:
    """By slot: whether the ledger has the rows of the item that stands there."""
    size = captured.key.size
    common = min(size, ledger.key.size)
    known = np.zeros(size, np.bool_)
    known[captured.slots] = True
    known[common:] = False
    known[:common] &= (ledger.key[:common] == captured.key[:common]) & (ledger.place[:common] >= 0)
    revision = captured.fixed.get("revision")
    if revision is not None:
        before = 0 if ledger.revision is None else _sized(ledger.revision, size)
        known &= revision == before
    return known


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
    ends = np.cumsum(captured.nbytes(slots))
    cuts = np.flatnonzero(np.diff(np.maximum(ends - 1, 0) // size)) + 1
    return np.split(slots, cuts)


def changed_segments(captured: Capture, ledger: Ledger, planned: Plan, name: str) -> set[int]:
    """The kept segments in which a field of a live item has another value than on disk."""
    now = captured.changing[name]
    if name in ledger.before:
        differs = bits(now) != bits(_sized(ledger.before[name], now.size))
    else:
        absent = np.array(absent_value(name, now.dtype), now.dtype)
        differs = bits(now) != bits(absent)
    places = ledger.place[np.flatnonzero(differs & planned.known)]
    return set(np.flatnonzero(np.bincount(places >> 32)).tolist())


def alive(captured: Capture, ledger: Ledger, planned: Plan, number: int) -> NDArray[np.bool_]:
    """Which items of a kept segment are alive."""
    slots = ledger.segments[number].slots
    places = (np.int64(number) << 32) | np.arange(slots.size)
    inside = slots < captured.key.size
    found = np.zeros(slots.size, np.bool_)
    here = slots[inside]
    found[inside] = planned.known[here] & (ledger.place[here] == places[inside])
    return found


def bits(array: Array) -> Array:
    """Values as integers, so that NaN equals NaN."""
    return array.view(np.int64) if array.dtype == np.float64 else array


def _sized(array: Array, size: int) -> Array:
    """As many entries as there are slots now."""
    if array.size >= size:
        return array[:size]
    return np.concatenate([array, np.zeros(size - array.size, array.dtype)])


def wasted(ledger: Ledger, refs: Mapping[str, int]) -> set[str]:
    """Files of items and changes less than half of which is still named."""
    return {
        name
        for name, entry in ledger.files.items()
        if "values" in entry and 0 < 2 * refs.get(name, 0) < entry["values"]
    }
