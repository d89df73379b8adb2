"""What a buffer knows of each stored group without reading it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class GroupEntry:
    """What a buffer keeps of a stored group beside its table."""

    __slots__ = (
        "blobs",
        "group_id",
        "lacks",
        "put_at",
        "task",
        "trained",
        "version",
    )

    def __init__(self, group_id: str, task: str, version: int, put_at: float) -> None:
        self.group_id = group_id
        self.task = task
        self.version = version
        self.put_at = put_at
        self.blobs: Sequence[str] = ()
        self.lacks: Sequence[str] = ()
        self.trained = False  # whether it has left its account and stays in the archive


def tally(entries: Iterable[GroupEntry]) -> dict[str, int]:
    """How many groups of each task there are."""
    tasks: dict[str, int] = {}
    for entry in entries:
        tasks[entry.task] = tasks.get(entry.task, 0) + 1
    return tasks
