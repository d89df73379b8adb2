"""What a buffer knows of stored groups without reading them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class GroupEntry:
    """What a buffer keeps of a stored group beside its table."""

    group_id: str
    task: str
    version: int
    put_at: float
    blobs: Sequence[str] = ()
    lacks: Sequence[str] = ()
    trained: bool = False  # whether it has left its account and stays in the archive


def tally(entries: Iterable[GroupEntry]) -> dict[str, int]:
    """How many groups of each task there are."""
    tasks: dict[str, int] = {}
    for entry in entries:
        tasks[entry.task] = tasks.get(entry.task, 0) + 1
    return tasks


class RolloutIndex:
    """The group of each rollout, by rollout id. Guarded by the table's lock.

    `keys` is None until a cell is first filled: most buffers never need it.
    """

    def __init__(self) -> None:
        self.keys: dict[str, int] | None = None
        self._ids: dict[int, list[str]] = {}  # the rollout in each row of a group
        self._older: dict[str, list[int]] = {}  # other groups that have it, the newest last

    def make(self, groups: Iterable[tuple[int, GroupEntry, list[str]]]) -> dict[str, int]:
        """Begin with the groups that are stored: key, entry, and the rollout in each row."""
        self.keys = {}
        for key, entry, ids in groups:
            self.stored(key, entry, ids)
        return self.keys

    def stored(self, key: int, entry: GroupEntry, ids: list[str]) -> None:
        """A group was stored, with a rollout in each row."""
        if self.keys is not None and not entry.trained:
            self._ids[key] = ids
            for rollout_id in ids:
                other = self.keys.get(rollout_id, key)
                if other != key:
                    self._older.setdefault(rollout_id, []).append(other)
                self.keys[rollout_id] = key

    def forget(self, key: int) -> None:
        """The rollouts of a group are not there any more, or nobody fills their cells."""
        if self.keys is not None:
            for rollout_id in self._ids.pop(key, ()):
                if self._older and rollout_id in self._older:
                    self._uncover(self.keys, rollout_id, key)
                elif self.keys.get(rollout_id) == key:
                    del self.keys[rollout_id]

    def _uncover(self, keys: dict[str, int], rollout_id: str, key: int) -> None:
        """A group leaves, and others have the same rollout: the newest of them is found now."""
        older = self._older[rollout_id]
        if keys[rollout_id] == key:
            keys[rollout_id] = older.pop()
        elif key in older:
            older.remove(key)
        if not older:
            del self._older[rollout_id]

    def ids_of(self, key: int) -> list[str]:
        """The rollout in each row of a group that `keys` has."""
        return self._ids[key]
