"""`Journal`: where a journal is kept, and how safe a call is when it returns.

`open_journal.py` opens and writes it; who needs that imports it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from recollect.base.arguments import time_span, whole
from recollect.errors import InvalidValue, shown

SYNC = ("always", "interval", "off")


@dataclass(frozen=True)
class Journal:
    """Where to keep a journal, and how safe a call is when it returns.

    >>> import tempfile
    >>> import recollect as rc
    >>> folder = tempfile.mkdtemp()
    >>> with rc.Table("t", capacity=10, journal=rc.Journal(folder, sync="always")) as table:
    ...     keys = table.insert({"x": [1, 2]})
    >>> with rc.Table("t", capacity=10, journal=folder) as table:
    ...     table.get(keys)["x"]
    array([1, 2])

    Args:
        path: A folder of its own; it is made where there is none.
        sync: `"always"`: a call returns when what it changed is on the disk; callers that wait at
            the same time share a sync. `"interval"`: it returns at once, and the disk follows.
            `"off"`: nothing is synced; what was written survives the process, not the machine.
        interval: Seconds between two writes: what a crash can cost at most.
        compact_at: Bytes of records that a snapshot replaces, or as many as are stored.
    """

    path: str | os.PathLike[str]
    sync: str = "interval"
    interval: float = 0.1
    compact_at: int = 64 << 20

    def __post_init__(self) -> None:
        if not isinstance(self.path, str | os.PathLike) or not os.fspath(self.path):
            raise InvalidValue(f"journal: expected a path or an rc.Journal, got {shown(self.path)}")
        if self.sync not in SYNC:
            raise InvalidValue(
                f"sync: expected one of {', '.join(map(repr, SYNC))}, got {shown(self.sync)}"
            )
        time_span("interval", self.interval)
        whole("compact_at", self.compact_at, 1)


def as_journal(given: Journal | str | os.PathLike[str]) -> Journal:
    """A journal, or a path that means one with the defaults."""
    return given if isinstance(given, Journal) else Journal(given)
