"""A buffer on a storage that has groups already, such as a database after a restart.

What a buffer knows of groups beside its storage is made again from them. Accounts begin anew, as
if the groups had just been put, and so does the train step: the next `advance` sets it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from recollect.errors import InvalidValue

if TYPE_CHECKING:
    from recollect.rollouts.core import Core


class _NoBlobs(dict[str, bytes]):
    """Blobs lie in the memory of the process that put them."""

    def __missing__(self, name: str) -> bytes:
        raise InvalidValue(
            "storage: a stored group refers to blobs, which are not kept in a storage and went "
            "with the process that put them; put groups with blobs anew, into an empty table"
        )


def adopt(core: Core) -> None:
    """Know the groups that are in the storage from before."""
    from recollect.rollouts.persistence import restore_own

    with core.table._transaction():
        if not len(core.storage):
            return
        own = {"train_step": core.train_step, "accounts": core.accounts.state()}
        restore_own(core, own, _NoBlobs())
        for entry in core.entries.values():
            if not entry.trained:
                core.accounts[entry.task].put += 1
