"""What a buffer holds: counts, groups by key, accounts. Changes nothing but what is due to expire.

These calls are immediate, and take the lock themselves.
"""

from __future__ import annotations

from typing import Any

from recollect.base.arguments import keys_of, text
from recollect.rollouts.core import RolloutCore
from recollect.rollouts.entries import tally
from recollect.rollouts.expiry import enter
from recollect.rollouts.groups import Groups
from recollect.rollouts.rollout import Status, as_status
from recollect.table.table import WhereLike


def get(core: RolloutCore, keys: Any) -> Groups:
    """Groups by key, as they are."""
    keys = keys_of(keys)
    with core.table.transaction():
        core.table.enter()
        chosen = core.choose(keys)
    return core.collated(chosen)


def find(core: RolloutCore, group_id: str) -> int | None:
    """The key of a stored group, None where it is not there."""
    text("group_id", group_id)
    with core.table.transaction():
        return core.by_id.get(group_id)


def count(
    core: RolloutCore, task: str | None, status: Status | str | None, where: WhereLike
) -> int:
    """How many groups are stored and not leased, by task, status and query."""
    wanted = None if status is None else as_status(status)
    if task is not None:
        text("task", task)
    bound = core.where(task, wanted, None, where)
    with core.table.transaction():
        enter(core)
        return core.storage.available(bound)[0]


def counts(core: RolloutCore) -> dict[tuple[str, Status], int]:
    """The same for every task and status that has any."""
    with core.table.transaction():
        enter(core)
        found = {}
        for task, status in core.storage.counts(("task", "status")):
            here = core.storage.available(core.where(task, Status(status), None))[0]
            if here:
                found[task, Status(status)] = here
        return found


def length(core: RolloutCore) -> int:
    """Groups stored, leased ones included."""
    with core.table.transaction():
        if not core.table.closed:
            enter(core)
        return len(core.storage)


def accounts(core: RolloutCore) -> dict[str, dict[str, Any]]:
    """What happened to the groups of each task, and what is here of them."""
    with core.table.transaction():
        enter(core)
        entries = list(core.entries.values())
        here = {}
        kept = tally(entry for entry in entries if entry.trained)  # leased ones, too
        for task, stored in core.storage.counts(("task",)).items():
            visible = core.storage.available(core.where(task, None, None))[0]
            seen = core.storage.available(core.where(task, Status.ARCHIVED, None))[0]
            archived = kept.get(task, 0)
            held = stored - visible - (archived - seen)
            here[task] = (visible - seen, held, archived)
        return core.accounts.report(entries, here, core.table.clock.time(), core.train_step)


def stats(core: RolloutCore) -> dict[str, Any]:
    """Numbers about the whole buffer."""
    with core.table.transaction():
        return {
            **core.face.stats(),
            "nbytes": core.nbytes,
            "blobs": len(core.blobs),
            "capacity": core.capacity,
            "capacity_bytes": core.capacity_bytes,
            "train_step": core.train_step,
            "promised": dict(core.promised),
            "claimed": core.queues.claimed,
        }
