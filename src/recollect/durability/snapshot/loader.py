"""Loading: a snapshot is put into members, which are then exactly as they were when it was saved.

Everything is checked before anything changes, or while it can be undone. A member then knows what
is on disk, so the save after a load writes only what changed since.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from recollect.durability.files import LOCAL, Files
from recollect.durability.progress_bar import bar
from recollect.durability.snapshot.ledger import Known, Ledger
from recollect.durability.snapshot.members import Member
from recollect.durability.snapshot.plain_arrays import OnDisk
from recollect.durability.snapshot.reader import Snapshot, open_snapshot
from recollect.durability.snapshot.saved_table import SavedTable
from recollect.durability.snapshot.segments import Ref
from recollect.durability.snapshot.table_writer import named_files, patches
from recollect.errors import SnapshotError
from recollect.storage.memory.saved_items import FIXED, records_of
from recollect.storage.memory.slot_runs import SlotRuns

log = logging.getLogger("recollect")

NEVER_CHANGE = set(FIXED) - {"revision"}  # while an item's rows stay as they are


@dataclass(frozen=True)
class Loaded:
    """What a load did."""

    path: Path
    step: int | None
    state: Mapping[str, Any]
    evicted: Mapping[str, int] = field(default_factory=dict)  # by table: items that did not fit
    others: Mapping[str, Path] = field(default_factory=dict)  # files of others, by name


def load_snapshot(
    path: str | os.PathLike[str],
    members: Mapping[str, Member],
    *,
    step: int | None = None,
    progress: bool | None = None,
    files: Files = LOCAL,
) -> Loaded:
    """Put a snapshot into the tables and buffers of the same names, exactly as they were.

    They must be empty, or journaled: those are rewound. All of it is checked before anything
    changes. Where a table is smaller now, its remover evicts what does not fit.
    """
    snapshot = open_snapshot(path, step=step, files=files)
    wanted = _wanted(snapshot, members)
    untouched = all(member.untouched() for member in wanted.values())
    later = snapshot.row_files() if untouched else set()
    snapshot.check_files(progress, later=later)
    total = sum(snapshot.entry(name)["nbytes"] for name in wanted)
    with replacing(wanted.values()), bar("load", total, progress) as told:
        _check(snapshot, wanted)  # a call may have come in between
        back: list[Callable[[], None]] = []
        if later:
            back = [call for member in wanted.values() if (call := member.untouched())]
            if len(back) < len(wanted):
                snapshot.check_files(False)
                back = []
        try:
            evicted = _restore(snapshot, wanted, told, check=bool(back))
        except BaseException:
            for bring_back in back:
                bring_back()
            raise
    snapshot.segments.close()
    return Loaded(snapshot.path, snapshot.step, snapshot.state, evicted, snapshot.others)


def _wanted(snapshot: Snapshot, members: Mapping[str, Member]) -> dict[str, Member]:
    """The members that a snapshot is for, by name and in order; raises unless all fit."""
    if snapshot.kind == "shards":
        raise SnapshotError(
            f"{snapshot.path} is a checkpoint of {snapshot.state['world_size']} shards; load it "
            "with rc.load_shards, on any number of ranks"
        )
    missing = sorted(set(snapshot.tables) - set(members))
    if missing:
        raise SnapshotError(
            f"{snapshot.path}: it has a table {missing[0]!r} that this store has not; the store "
            f"has {', '.join(members)}"
        )
    wanted = {name: members[name] for name in sorted(snapshot.tables)}
    _check(snapshot, wanted)
    return wanted


def _check(snapshot: Snapshot, members: Mapping[str, Member]) -> None:
    for name, member in members.items():
        member.check(snapshot.entry(name), str(snapshot.path))


@contextmanager
def replacing(members: Collection[Member]) -> Iterator[None]:
    """Hold members while their contents are replaced: no save runs, and nobody else calls them.

    Where some have a journal, it is rewound: it goes on from what they hold at the end.
    """
    journals = {id(j): j for member in members if (j := member.journal) is not None}
    with ExitStack() as stack:
        loaded = [stack.enter_context(journal.rewinding()) for journal in journals.values()]
        for member in members:
            stack.enter_context(member.saving)
        for member in members:
            stack.enter_context(member.transaction())
        yield
        for tell in loaded:
            tell()


def _restore(
    snapshot: Snapshot,
    members: Mapping[str, Member],
    told: Callable[[int], None],
    *,
    check: bool,
) -> dict[str, int]:
    """Put what was saved into members; returns by name how many items did not fit."""
    evicted = {}
    for name, member in members.items():
        table = snapshot.table(name)
        pieces = table.pieces(told, snapshot.check_file if check else lambda _: None)
        gone = member.restore(table.entry, table.saved(), pieces, table.blobs())
        _keep_ledger(member, snapshot, table)
        if gone:
            evicted[name] = gone
            log.warning(
                "%s: table %r holds less now, and %d of its %d items were evicted",
                snapshot.path, name, gone, table.entry["items"],
            )  # fmt: skip
    return evicted


def _keep_ledger(member: Member, snapshot: Snapshot, table: SavedTable) -> None:
    """Have a member know what is on disk. Making the ledger can wait until the next save."""
    manifest, folder, blobs = snapshot.manifest, str(snapshot.path), table.blob_refs()
    member.ledger_later(lambda: _ledger_of(manifest, folder, table, blobs))


def _ledger_of(
    manifest: Mapping[str, Any], folder: str, table: SavedTable, blobs: dict[str, Ref]
) -> Ledger:
    """What is on disk, so that the save after a load writes only what changed since."""
    entry = table.entry
    slots = entry["numbers"]["slots"]
    place = np.full(slots, -1, np.int64)
    segments = {}
    described = zip(entry["segments"], table.columns, table.alive, strict=True)
    for number, (segment, some, here) in enumerate(described):
        own = some["slot"].astype(np.int64)
        segments[number] = Known(segment, own, some.get("rows"), here)
        places = (np.int64(number) << 32) | np.arange(own.size)
        place[segments[number].living()] = places if here is None else places[here]
    items = table.items({})
    by_slot = {}
    runs = SlotRuns(items["slot"])
    for name, values in items.items():
        if name not in ("slot", "inserted_at", *NEVER_CHANGE):
            by_slot[name] = np.zeros(slots, values.dtype)
            runs.put(by_slot[name], values)
    key, records = by_slot.pop("key"), None
    if entry["kind"] != "steps":
        records = records_of(key, by_slot.pop("priority"), by_slot.pop("times_sampled"), place >= 0)
    refs = {name: list(array["blocks"]) for name, array in entry["arrays"].items()}
    arrays = {name: OnDisk(base, refs[name]) for name, base in table.bases.items()}
    files = {name: manifest["files"][name] for name in named_files(entry)}
    return Ledger(
        folder, manifest["sequence"], files, segments, place, records,
        key if records is None else None, by_slot.pop("revision", None), by_slot, arrays,
        patches(entry), blobs,
    )  # fmt: skip
