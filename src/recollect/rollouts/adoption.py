"""A buffer on a storage that has groups already, such as a database after a restart.

What a buffer knows of groups beside its storage is made again from them. Accounts begin anew, as
if the groups had just been put, and so does the train step: the next `advance` sets it.
"""

from __future__ import annotations

from recollect.errors import InvalidValue
from recollect.rollouts.blobs import Blobs
from recollect.rollouts.core import RolloutCore
from recollect.rollouts.own_state import restore_own


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


def adopt(core: RolloutCore) -> None:
    """Know the groups that are in the storage from before."""
    with core.table.transaction():
        if not len(core.storage):
            return
        own = {"train_step": core.train_step, "accounts": core.accounts.state()}
        restore_own(core, own, _KeptBlobs(core.blobs))
        for entry in core.entries.values():
            if not entry.trained:
                core.accounts[entry.task].put += 1
