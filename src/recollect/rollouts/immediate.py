"""The calls of a rollout buffer that are immediate: they never wait, so both faces share them."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any

from recollect.base.arguments import keys_of, text
from recollect.rollouts import space
from recollect.rollouts.core import RolloutCore
from recollect.rollouts.entries import tally
from recollect.rollouts.expiry import enter
from recollect.rollouts.groups import Groups
from recollect.rollouts.rollout import Status, as_status
from recollect.rollouts.staleness import Staleness
from recollect.rollouts.takes import is_ready
from recollect.table.table import Table, WhereLike

if TYPE_CHECKING:
    from recollect.durability.snapshot.loader import Loaded
    from recollect.durability.snapshot.saver import SavedSnapshot


class ImmediateCalls:
    """The calls of `rc.RolloutBuffer`, and of its `sync`, that are plain calls in both."""

    _core: RolloutCore

    @property
    def core(self) -> RolloutCore:
        """What the buffer keeps under its lock, for those who make verbs of their own."""
        return self._core

    @property
    def table(self) -> Table:
        """The table that holds the groups, for stores and for those who follow its effects."""
        return self._core.face

    @property
    def train_step(self) -> int:
        """The train step that staleness is judged at; 1 before the first `advance`."""
        return self._core.train_step

    def staleness(self, task: str) -> Staleness:
        """Immediate: the rule of a task."""
        return self._core.rules[task]

    def reserve(self, n: int, task: str) -> int:
        """Immediate: promise room for up to n groups of a task; returns for how many there is.

        The next puts of that task use what is promised and never block. What is archived gives
        way to them; where only bytes are short (`capacity_bytes`), the stalest group does.
        """
        return space.reserve(self._core, n, task)

    def unreserve(self, n: int, task: str) -> int:
        """Immediate: give promised room back, as for generations that were cancelled."""
        return space.unreserve(self._core, n, task)

    # -- looking --------------------------------------------------------------------------------
    def is_ready(self, sizes: Mapping[str, int], where: WhereLike = None) -> bool:
        """Immediate: whether `take_batch` of these sizes would go ahead now."""
        return is_ready(self._core, sizes, where)

    def count(
        self,
        task: str | None = None,
        status: Status | str | None = None,
        where: WhereLike = None,
    ) -> int:
        """Immediate: how many groups are stored and not leased, by task, status and query."""
        core = self._core
        wanted = None if status is None else as_status(status)
        if task is not None:
            text("task", task)
        bound = core.where(task, wanted, None, where)
        with core.table.transaction():
            enter(core)
            return core.storage.available(bound)[0]

    def counts(self) -> dict[tuple[str, Status], int]:
        """Immediate: the same for every task and status that has any."""
        core, found = self._core, {}
        with core.table.transaction():
            enter(core)
            for task, status in core.storage.counts(("task", "status")):
                here = core.storage.available(core.where(task, Status(status), None))[0]
                if here:
                    found[task, Status(status)] = here
        return found

    def get(self, keys: Any) -> Groups:
        """Immediate: read groups by key without touching them; raises `UnknownKey`."""
        keys = keys_of(keys)
        with self._core.table.transaction():
            self._core.table.enter()
            chosen = self._core.choose(keys)
        return self._core.collated(chosen)

    def find(self, group_id: str) -> int | None:
        """Immediate: the key of a stored group, None where it is not there."""
        text("group_id", group_id)
        with self._core.table.transaction():
            return self._core.by_id.get(group_id)

    def __len__(self) -> int:
        """Groups stored, leased ones included."""
        with self._core.table.transaction():
            if not self._core.table.closed:
                enter(self._core)
            return len(self._core.storage)

    @property
    def nbytes(self) -> int:
        """Bytes of payload, each blob counted once."""
        return self._core.nbytes

    def accounts(self) -> dict[str, dict[str, Any]]:
        """Immediate: per task what was put, taken, expired, retried, dropped and why, what is
        stored and leased, quantiles of age and lag, and whether the task starves."""
        core, here = self._core, {}
        with core.table.transaction():
            enter(core)
            entries = list(core.entries.values())
            kept = tally(entry for entry in entries if entry.trained)  # leased ones, too
            for task, stored in core.storage.counts(("task",)).items():
                visible = core.storage.available(core.where(task, None, None))[0]
                seen = core.storage.available(core.where(task, Status.ARCHIVED, None))[0]
                archived = kept.get(task, 0)
                held = stored - visible - (archived - seen)
                here[task] = (visible - seen, held, archived)
            return core.accounts.report(entries, here, core.table.clock.time(), core.train_step)

    def stats(self) -> dict[str, Any]:
        """Immediate: numbers about the whole buffer."""
        core = self._core
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

    # -- saving and ending ----------------------------------------------------------------------
    def state(self) -> dict[str, Any]:
        """Immediate: everything that decides what later calls return, as plain data and arrays.

        Leases, claims and reserved room count as given back.
        """
        from recollect.rollouts import persistence

        return persistence.state(self._core)

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Immediate: put back what `state` returned; the buffer must be empty."""
        from recollect.rollouts import persistence

        persistence.restore(self._core, saved)

    def save(
        self, path: str | PathLike[str], *, files: Mapping[str, Any] | None = None, **options: Any
    ) -> SavedSnapshot:
        """Immediate: write a snapshot to a folder, all of it or nothing.

        Takes the options of `Store.save`, and like it writes only what changed since the last one.
        """
        from recollect.rollouts import persistence

        return persistence.save(self._core, path, files, **options)

    def load(self, path: str | PathLike[str], **options: Any) -> Loaded:
        """Immediate: put a snapshot into this buffer, which must be empty.

        Takes the options of `Store.load`.
        """
        from recollect.rollouts import persistence

        return persistence.load(self._core, path, **options)

    def close(self) -> None:
        """End the buffer: every waiter, and every later call, raises `TableClosed`."""
        self._core.close()

    def _repr_html_(self) -> str:
        from recollect.base.html import closed
        from recollect.rollouts.buffer_html import of_rollouts
        from recollect.table.table_html import some_items

        core, table = self._core, self._core.table
        if table.closed:
            return closed("RolloutBuffer")
        stats, counts, accounts = self.stats(), self.counts(), self.accounts()
        with table.transaction():
            step = core.train_step
            versions = [entry.version for entry in core.entries.values() if not entry.trained]
            info = some_items(table.storage)
        return of_rollouts(stats, counts, accounts, step, versions, info)
