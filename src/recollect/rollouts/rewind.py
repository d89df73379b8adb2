"""Rewinding: a buffer goes back to the weights that survived.

What a checkpoint's weights have not been trained on must come again, and what they have been
trained on must not. So trained groups are kept, as ARCHIVED, until a checkpoint of their step or
a later one has committed (`forget_trained`), and `rewind` brings those of later steps back.
Everything here happens under the table's lock, in one go.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from recollect.data.batch import Batch
from recollect.data.ragged import Ragged
from recollect.data.schema import Rows
from recollect.rollouts.encoding import tally
from recollect.rollouts.expiry import as_rows, expire_due, row_expiry
from recollect.rollouts.rollout import Status
from recollect.rollouts.staleness import NEVER, NONE
from recollect.rules.query import field
from recollect.storage.fields import ABSENT_INT
from recollect.table.effects import Amended, Updated

if TYPE_CHECKING:
    from recollect.rollouts.core import Core

Keys = NDArray[np.uint64]
Ints = NDArray[np.int64]

NO_KEYS = np.zeros(0, np.uint64)


@dataclass(frozen=True)
class Line:
    """Which history a buffer's content belongs to, so that it is not taken for that of another.

    `run` is drawn when a buffer is made, and again whenever it goes back; `base` is the checkpoint
    that it went back to. Of steps up to `floor`, trained groups have been let go.
    """

    run: str
    base: str | None = None
    floor: int = 0

    @classmethod
    def new(cls) -> Line:
        return cls(secrets.token_hex(8))

    @classmethod
    def from_json(cls, saved: Mapping[str, Any] | None) -> Line:
        return cls.new() if saved is None else cls(**saved)

    def to_json(self) -> dict[str, Any]:
        return {"run": self.run, "base": self.base, "floor": self.floor}

    def continues(self, run: str, checkpoint: str, step: int) -> bool:
        """Whether what a buffer holds is what came of a checkpoint, and can go back to it."""
        return (self.run == run or self.base == checkpoint) and self.floor <= step


@dataclass(frozen=True)
class Holding:
    """What a buffer holds at one moment, as seen from the weights of a step."""

    held: list[tuple[int, str, str]]  # key, task and group id of what those have not trained on
    trained: list[int]  # keys of what they have trained on, and nobody has confirmed yet
    ahead: dict[str, int]  # by task, how many more groups are confirmed than those have


def look(core: Core, step: int) -> Holding:
    """Under the lock: divide the groups of a buffer by whether weights of a step have them."""
    trained: list[int] = []
    leases = core.table.leases.held()
    for lapsed in [number for number in core.steps_of if number not in leases]:
        del core.steps_of[lapsed]
    for number, held in leases.items():
        if core.steps_of.get(number, core.train_step) <= step:
            trained += held.keys.tolist()
    ahead = tally(
        [core.entries[key] for key in _archived(core, field("trained_at") > step).tolist()]
    )
    for key in trained:
        task = core.entries[key].task
        ahead[task] = ahead.get(task, 0) - 1
    done = {*trained, *_archived(core, field("trained_at") <= step).tolist()}
    held_now = [
        (key, entry.task, entry.group_id)
        for key, entry in sorted(core.entries.items())
        if key not in done
    ]
    return Holding(held_now, trained, ahead)


def _archived(core: Core, condition: Any) -> Keys:
    return core.storage.find(None, core.where(None, Status.ARCHIVED, None, condition), visible=True)


# -- keeping ------------------------------------------------------------------------------------
def keep_trained(core: Core) -> None:
    """From now on, groups that are confirmed stay until `forget_trained`."""
    with core.table.transaction():
        core.keeping = True


def forget_trained(core: Core, step: int) -> int:
    """Weights of a step are safe: let go of what was kept for its sake; returns how many."""
    with core.table.transaction():
        core.table.enter()
        core.line = replace(core.line, floor=max(core.line.floor, step))
        core.changed()
        if core.archive:  # they stay for those who look back
            return 0
        keys = _archived(core, field("trained_at") <= step)
        if keys.size:
            core.remove(keys, "archived")
        return int(keys.size)


# -- going back -----------------------------------------------------------------------------------
@contextmanager
def alone(core: Core) -> Iterator[None]:
    """The buffer's lock; where it has a journal, all that happens is there in one commit."""
    with ExitStack() as stack:
        done = None
        if core.table.journal is not None:
            done = stack.enter_context(core.table.journal.rewinding())
        stack.enter_context(core.table.transaction())
        yield
        if done is not None:
            done()


def rewind(core: Core, step: int, trained: Keys, checkpoint: str, *, keep_future: bool) -> None:
    """Under `alone`: go back to the weights of a step, which a checkpoint has.

    `trained` are the groups that were leased when it was made and that its weights have. Leases,
    claims and promised room end. Groups that weights of a later version had a part in leave, or
    count as generated by those of the step.
    """
    table = core.table
    table.enter()
    for held in list(table.leases.held().values()):
        table.bring_back(held.lease, "given back")
    _settle_trained(core, core.storage.find(trained, None, visible=True), step)
    core.train_step = step + 1
    _bring_back(core, _archived(core, field("trained_at") > step))
    _leave_future(core, step, keep_future=keep_future)
    core.line = Line(secrets.token_hex(8), checkpoint, step)
    core.unkept = 0
    _know_again(core)
    expire_due(core)
    table.gate.arrivals.changed(len(core.entries))
    table.gate.wake_all()


def _settle_trained(core: Core, keys: Keys, step: int) -> None:
    """The weights have these, though nobody had confirmed it; nor are earlier ones needed."""
    from recollect.rollouts.takes import archive

    unconfirmed = [key for key in keys.tolist() if not core.entries[key].trained]
    if core.archive and unconfirmed:
        archive(core, core.storage.hide(np.array(unconfirmed, np.uint64)), step)
    elif unconfirmed:
        core.remove(np.array(unconfirmed, np.uint64), "trained")
    if not core.archive:
        earlier = {key for key in keys.tolist() if key not in set(unconfirmed)}
        earlier.update(_archived(core, field("trained_at") <= step).tolist())
        if earlier:
            core.remove(np.array(sorted(earlier), np.uint64), "archived")


def _bring_back(core: Core, keys: Keys) -> None:
    """Groups that were trained for nothing are available again, at their old place in the order."""
    if not keys.size:
        return
    storage = core.storage
    entries = [core.entries[key] for key in keys.tolist()]
    for task, count in tally(entries).items():
        core.accounts[task].left["trained"] -= count
    for entry in entries:
        entry.trained = False
    fields = {"status": Status.COMPLETED.value, "trained_at": np.full(keys.size, ABSENT_INT)}
    storage.hide(keys)
    storage.update(keys, fields)
    core.table.counts.samples -= storage.show(keys, returned=True)
    core.table.effects.emit(Updated, keys, fields)
    batch = storage.get(keys, None).read(np.empty)
    _judge(core, keys, batch, as_rows(batch))


def _judge(core: Core, keys: Keys, batch: Batch, rows: Rows) -> None:
    """Set the version that counts for groups, and the step at which each expires."""
    assert rows.present is not None
    tasks, starts = batch.info.task.tolist(), batch.info.row_offsets[:-1]
    version, expires = np.empty(keys.size, np.int64), np.empty(keys.size, np.int64)
    for task in dict.fromkeys(tasks):
        versions, steps = row_expiry(rows.columns, rows.present, core.rules[task])
        here = np.array([each == task for each in tasks])
        counted = np.minimum.reduceat(np.where(versions >= 0, versions, NEVER), starts)
        version[here] = np.where(counted < NEVER, counted, NONE)[here]
        expires[here] = np.minimum.reduceat(steps, starts)[here]
    fields = {
        "version": np.where(version >= 0, version, ABSENT_INT),
        "expires": np.where(expires < NEVER, expires, ABSENT_INT),
    }
    core.storage.update(keys, fields)
    core.table.effects.emit(Updated, keys, fields)


# -- weights that do not exist any more -----------------------------------------------------------
def _leave_future(core: Core, step: int, *, keep_future: bool) -> None:
    keys = np.array([k for k, e in core.entries.items() if not e.trained], np.uint64)
    if not keys.size:
        return
    batch = core.storage.get(keys, ["versions", "stamp", "dispatch_version"]).read(np.empty)
    late = np.maximum.reduceat(_newest(batch), batch.info.row_offsets[:-1]) > step
    if not late.any():
        return
    if keep_future:
        _date_back(core, keys[late], step)
    else:
        core.remove(keys[late], "rewound")


def _newest(batch: Batch) -> Ints:
    """The highest version that had a part in each row."""
    columns: Any = batch.columns
    newest: Ints = np.maximum(columns["stamp"], columns["dispatch_version"]).astype(np.int64)
    versions = columns["versions"]
    assert isinstance(versions, Ragged)
    filled = np.flatnonzero(versions.lengths > 0)
    if filled.size:
        highest = np.maximum.reduceat(versions.values, versions.offsets[:-1][filled])
        newest[filled] = np.maximum(newest[filled], highest)
    return newest


def _date_back(core: Core, keys: Keys, step: int) -> None:
    """What later weights generated counts as generated by those of the step: its lag is 0."""
    batch = core.storage.get(keys, None).read(np.empty)
    rows, names = as_rows(batch), list(batch.columns)
    columns = list(rows.columns)
    for name in ("stamp", "dispatch_version", "versions"):
        place = names.index(name)
        column: Any = columns[place]
        if isinstance(column, Ragged):
            values = np.minimum(column.values, column.values.dtype.type(step))
            columns[place] = Ragged._make(values, column.offsets, column.kind)
        else:
            columns[place] = np.minimum(column, column.dtype.type(step))
    after = Rows(rows.count, columns, rows.present)
    per_item = np.diff(batch.info.row_offsets).astype(np.int32)
    core.storage.amend(keys, after, per_item, np.zeros(keys.size, np.int64))
    core.table.effects.emit(Amended, keys, dict(zip(names, columns, strict=True)))
    _judge(core, keys, batch, after)


def _know_again(core: Core) -> None:
    """What the buffer keeps beside its table is made again; claims and promises are over."""
    from recollect.rollouts import persistence

    own, blobs = persistence.own_state(core), core.blobs.all()
    persistence.forget(core)
    persistence.restore_own(core, own, blobs)
