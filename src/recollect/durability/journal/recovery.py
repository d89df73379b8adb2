"""Recovery: the members of a journal as they were when it was written last.

The latest snapshot is loaded, and every record that follows is replayed, in order. A record that is
torn at the end was never promised to be safe: it is cut off, and a warning says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recollect.durability.files import LOCAL, Files
from recollect.durability.journal.journaled import Journaled
from recollect.durability.journal.log import Torn, bases, cut, records
from recollect.durability.journal.records import decode
from recollect.errors import JournalError, RecollectError


@dataclass
class Recovery:
    """What a journal held."""

    number: int = 0  # of the next record
    records: int = 0  # that were replayed
    closed: bool = True  # whether it was closed in order, so that nothing can be missing
    torn: list[Torn] = field(default_factory=list)
    ended: list[Journaled] = field(default_factory=list)  # members whose leases ended
    evicted: int = 0  # items for which a table has no room any more


def recover(folder: Path, members: Sequence[Journaled], files: Files = LOCAL) -> Recovery:
    """Bring members, which were just made, to the state that a journal holds; under their locks."""
    found = Recovery()
    by_name = {member.name: member for member in members}
    _load_base(folder, by_name, found, files)
    for record in records(folder, found.number, found.torn, files):
        number, sections = decode(record.payload)
        for place, section in sections.items():
            described = record.members[place]
            member = _named(by_name, described["name"], record.path)
            member.check(described, str(record.path))
            try:
                member.replay(section)
            except RecollectError as error:
                raise JournalError(f"{record.path}: record {number}: {error}") from error
        found.number = number + 1
        found.records += 1
        found.closed = not sections
    for member in members:
        if member.recovered():
            found.ended.append(member)
        if not found.closed or found.torn:
            member.after_loss()
    for torn in found.torn:
        cut(torn, files)
    return found


def _load_base(folder: Path, members: dict[str, Journaled], found: Recovery, files: Files) -> None:
    """Load the latest snapshot, where there is one."""
    known = bases(folder, files)
    if not known:
        return
    from recollect.durability.snapshot.loader import load_snapshot
    from recollect.durability.snapshot.reader import open_snapshot

    found.number, path = known[-1]
    found.closed = False
    state: dict[str, Any] = open_snapshot(path, files=files).state["journal"]
    saved = {name: _named(members, name, path).saved_as() for name in state["members"]}
    loaded = load_snapshot(path, saved, progress=False, files=files)
    found.evicted = sum(loaded.evicted.values())
    for name, covered in state["members"].items():
        member = members[name]
        member.position = member.covered = covered["position"]
        member.lease_again(covered["leased"])


def _named(members: dict[str, Journaled], name: str, path: Path) -> Journaled:
    if name not in members:
        raise JournalError(
            f"{path}: the journal has a table {name!r} that is not here; there are "
            f"{', '.join(members)}; make all that it was written for"
        )
    return members[name]
