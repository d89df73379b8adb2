"""A buffer of steps as a snapshot, and back. Exact: keys, episodes, priorities, counters, draws.

To a snapshot a row is an item: its key is environment and row number, its fields are the marks
that episodes are made of. A ring of another size takes the newest rows that fit, by their keys;
one of the same size continues draw by draw, because the order of legal starts is saved too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from recollect.data.batch import Batch
from recollect.durability.format import schema_from_json, schema_to_json
from recollect.durability.snapshot.ledger import Ledger
from recollect.durability.snapshot.members import Captured, check_kind
from recollect.errors import SnapshotError
from recollect.kernels import layout
from recollect.kernels import steps_layout as sl
from recollect.replay.starts import StartKind
from recollect.rules.limiters import Counts
from recollect.storage.buffers import Allocate
from recollect.storage.lanes import Copies, Copy, Lanes
from recollect.storage.memory.capture import Capture
from recollect.storage.memory.saved_items import Saved

if TYPE_CHECKING:
    from recollect.replay.buffer import ReplayBuffer

Ints = NDArray[np.int64]
Array = NDArray[Any]

MARKS = {"flags": sl.A_FLAGS, "offset": sl.A_OFFSET, "remaining": sl.A_REMAINING}
NUMBERS = {
    "steps": sl.STEPS,
    "row_count": sl.ROWS,
    "overwritten": sl.OVERWRITTEN,
    "overlong_episodes": sl.CUT,
}


@dataclass
class StepsCapture(Capture):
    """The rows of all rings at one moment. Slots are those of the rings."""

    lanes: Lanes | None = None
    held: Any = None  # the segments, so that they stay
    bases: Ints | None = None
    newest: Ints | None = None

    def seq(self, slots: Ints) -> Ints:
        """By age, whatever the environment: rows that leave together are written together."""
        assert self.newest is not None
        envs, rows = _apart(self.key[slots])
        ages: Ints = rows - self.newest[envs]
        return ages

    def arranged(self, slots: Ints) -> Ints:
        """By environment and row, so that each environment's rows are read and put in runs."""
        return slots[np.argsort(self.key[slots])]

    def read(self, slots: Ints, allocate: Allocate = np.empty) -> Batch:
        lanes, bases = self.lanes, self.bases
        assert lanes is not None
        assert bases is not None
        addresses = lanes.addresses(bases, *_apart(self.key[slots]))
        jobs = [Copy(name, place, 0, (slots.size,)) for place, name in enumerate(lanes.names)]
        columns: dict[str, Any] = lanes.gather(addresses, Copies(lanes, jobs), allocate)
        return Batch._make(columns, None, None, None, None)


def _apart(keys: NDArray[np.uint64]) -> tuple[Ints, Ints]:
    """The environments and row numbers of keys."""
    signed = keys.view(np.int64)
    return signed >> sl.ROW_BITS, signed & sl.ROW_MASK


class StepsMember:
    """A replay buffer, as snapshots see it."""

    kind = "steps"
    checkpoint = True

    def __init__(self, buffer: ReplayBuffer) -> None:
        self._buffer = buffer

    @property
    def saving(self) -> threading.Lock:
        return self._buffer._saving

    @property
    def ledger(self) -> Ledger | None:
        ledger: Ledger | None = self._buffer._ledger
        return ledger

    @ledger.setter
    def ledger(self, ledger: Ledger | None) -> None:
        self._buffer._ledger = ledger

    def ledger_later(self, make: Callable[[], Ledger]) -> None:
        self.ledger = make()

    @property
    def journaled(self) -> bool:
        return getattr(self._buffer, "_journal", None) is not None

    def untouched(self) -> None:
        """Files are checked before anything changes."""

    def transaction(self) -> AbstractContextManager[Any]:
        return self._buffer._transaction()

    def touch(self) -> None:
        """The marks of a row are 9 bytes, or 17: what they take to copy is over in a moment."""

    # -- capturing --------------------------------------------------------------------------------
    def capture(self) -> Captured:
        buffer = self._buffer
        buffer._enter()
        rings, store = buffer._rings, buffer._store
        drawing, counts = store.drawing, store.counts
        numbers = {
            "envs": rings.envs,
            "ring": rings.ring,
            "slots": rings.slots,
            "newest": rings.newest.tolist(),
            "oldest": rings.oldest.tolist(),
            **{name: int(rings.now[place]) for name, place in NUMBERS.items()},
            "reward_at": buffer.reward_at,
            "credit": drawing._credit,
            "random": [int(word) for word in drawing.random],
            "counts_zeros": drawing.starts._zeros,
            "kinds": [asdict(kind) for kind in drawing.starts._kinds],
            "starts": [[asdict(kind), recent] for kind, recent in drawing.starts._indexes],
        }
        arrays = {}
        for place, index in enumerate(drawing.starts._indexes.values()):
            if index.index.kind.kind == layout.UNIFORM:
                members = index.index.arrays[layout.A_MEMBERS]
                arrays[f"starts.{place}"] = members[: index.count].copy()
        changing = {name: rings.arrays[place].copy() for name, place in MARKS.items()}
        if rings.priority is not None:
            changing["priority"] = rings.priority[: rings.slots].copy()
        lanes = store.lanes
        items = StepsCapture(
            numbers, 0, np.zeros(rings.slots, np.uint64), {}, changing, arrays,
            0 if lanes is None else lanes.row_bytes,
        )  # fmt: skip
        items.newest = rings.newest.copy()
        if lanes is not None:
            items.lanes, items.held, items.bases = lanes, lanes.hold(), lanes.frozen()
        schema = buffer._incoming.schema
        entry = {
            "kind": self.kind,
            "columns": schema_to_json(schema),
            "shared_columns": None,
            "fields": {},
            "partition_by": [],
            "rules": {
                "sampler": repr(buffer._sampler),
                "limiter": repr(buffer.limiter),
                "capacity": buffer.capacity,
                "num_envs": buffer.num_envs,
                "n_step": buffer.n_step,
                "gamma": buffer.gamma,
                "frame_stack": buffer.frame_stack,
            },
            "counts": {
                "inserts": counts.inserts,
                "samples": counts.samples,
                "removals": counts.removals,
                "removed": {},
                "sample_calls": drawing.calls,
                "effects": 0,
            },
            "requests": [],
            "items": store.rows,
            "nbytes": store.nbytes,
        }
        return Captured(entry, items)

    def undo(self, captured: Captured) -> None:
        """Nothing was written over."""

    def finish(self, captured: Captured) -> None:
        items, numbers = captured.items, captured.items.numbers
        oldest, newest = np.array(numbers["oldest"]), np.array(numbers["newest"])
        counts = newest - oldest
        envs = np.repeat(np.arange(counts.size), counts)
        ends = np.cumsum(counts)
        rows = np.arange(envs.size) - np.repeat(ends - counts, counts) + np.repeat(oldest, counts)
        slots = envs * numbers["ring"] + rows % numbers["ring"]
        items.key[slots] = ((envs << sl.ROW_BITS) | rows).astype(np.uint64)
        items.slots = np.sort(slots)

    # -- putting back -----------------------------------------------------------------------------
    def check(self, entry: Mapping[str, Any], where: str) -> None:
        buffer = self._buffer
        check_kind(self.kind, entry, f"{where}: it")
        if buffer._store.rows and not self.journaled:
            raise SnapshotError(f"this buffer is not empty; load {where} into a new one")
        numbers = entry["numbers"]
        for name, saved, mine in (
            ("num_envs", numbers["envs"], buffer.num_envs),
            ("reward_at", numbers["reward_at"], buffer.reward_at),
        ):
            if saved != mine:
                raise SnapshotError(
                    f"{where}: the buffer was saved with {name}={saved!r} and has {mine!r}; make "
                    "it with the same (load_shards gives steps to other environments)"
                )
        schema, own = schema_from_json(entry["columns"], "column"), buffer._incoming.schema
        if schema is not None and own is not None and schema.columns != own.columns:
            raise SnapshotError(
                f"{where}: the buffer was saved with the columns {_listed(schema)} and has "
                f"{_listed(own)}; make it with the signature that it had"
            )

    def restore(
        self,
        entry: Mapping[str, Any],
        saved: Saved,
        batches: Iterable[Batch],
        blobs: Mapping[str, bytes],
    ) -> int:
        self.reset()
        buffer, numbers = self._buffer, saved.numbers
        rings, store = buffer._rings, buffer._store
        schema = schema_from_json(entry["columns"], "column")
        newest = np.array(numbers["newest"], np.int64)
        oldest = np.maximum(np.array(numbers["oldest"], np.int64), newest - rings.ring)
        rings.newest[:], rings.oldest[:], rings.head[:] = newest, oldest, newest % rings.ring
        for name, place in NUMBERS.items():
            rings.block[place] = numbers[name]
        gone = self._restore_marks(saved, oldest)
        if schema is not None:
            store.set_schema(buffer._incoming.schema or schema)
            self._restore_rows(saved.items["key"], oldest, batches)
        counts = entry["counts"]
        store.counts = Counts(counts["inserts"], counts["samples"], counts["removals"] + gone)
        store.drawing.calls = counts["sample_calls"]
        store.drawing._credit = numbers["credit"]
        store.drawing.random[:] = np.array(numbers["random"], np.uint64)
        self._restore_starts(saved)
        buffer._gate.wake_all()
        return gone

    def _restore_marks(self, saved: Saved, oldest: Ints) -> int:
        """Write the marks of the rows that fit; returns how many steps do not."""
        rings, items = self._buffer._rings, saved.items
        envs, rows = _apart(items["key"])
        fits = rows >= oldest[envs]
        slots = envs * rings.ring + rows % rings.ring
        here = slots[fits]
        if not here.size:
            return 0
        for name, place in MARKS.items():
            rings.arrays[place][here] = items[name][fits]
        steps = np.ones(rows.size, np.bool_)
        if not rings.block[sl.REWARD_NEXT]:
            steps = (items["flags"] & sl.FINAL) == 0
        if "priority" in items or rings.priority is not None:
            rings.weigh()
            priority = items.get("priority", np.where(steps, 1.0, -1.0))
            rings.write_priorities(here, priority[fits])
        gone = int(steps[~fits].sum())
        if not fits.all():
            self._hand_on(saved, oldest)
            rings.block[sl.STEPS] -= gone
            rings.block[sl.OVERWRITTEN] += gone
            rings.block[sl.ROWS] -= int((~fits).sum())
        return gone

    def _hand_on(self, saved: Saved, oldest: Ints) -> None:
        """The oldest row that fits learns how much is left of its episode, from those before it."""
        rings, items = self._buffer._rings, saved.items
        order = np.argsort(items["key"])
        keys = items["key"][order]
        before = np.array(saved.numbers["oldest"], np.int64)
        for env in np.flatnonzero((oldest > before) & (oldest < rings.newest)).tolist():
            row = int(oldest[env])

            def at(name: str, row: int, env: int = env) -> int:
                place = np.searchsorted(keys, np.uint64((env << sl.ROW_BITS) | row))
                return int(items[name][order[place]])

            first = max(int(before[env]), row - at("offset", row))
            left = at("remaining", first) - (row - first)
            rings.arrays[sl.A_REMAINING][env * rings.ring + row % rings.ring] = left

    def _restore_rows(
        self, keys: NDArray[np.uint64], oldest: Ints, batches: Iterable[Batch]
    ) -> None:
        """Copy rows into the lanes, a run of consecutive rows at a time."""
        rings, lanes = self._buffer._rings, self._buffer._store.lanes
        assert lanes is not None
        for env in np.flatnonzero(rings.newest > oldest).tolist():
            lanes.begin_at(env, int(oldest[env]))
            lanes.open_up_to(env, int(oldest[env]), int(rings.newest[env]))
        done = 0
        for batch in batches:
            here = keys[done : done + batch.rows].view(np.int64)
            columns = [np.ascontiguousarray(batch.columns[name]) for name in lanes.names]
            lanes.write_runs(here, oldest, columns)
            done += batch.rows

    def _restore_starts(self, saved: Saved) -> None:
        """Make the same indexes of starts, with their members in the same order."""
        rings, starts = self._buffer._rings, self._buffer._store.drawing.starts
        numbers = saved.numbers
        if numbers["counts_zeros"]:
            starts.expect_zeros()
        own = self._buffer._store.transitions
        for described in numbers["kinds"]:
            kind = StartKind(**described)
            if kind.mode != sl.TRANSITION or kind == own:
                starts.find(kind)
        for place, (described, recent) in enumerate(numbers["starts"]):
            index = starts._indexes.get((StartKind(**described), recent))
            name = f"starts.{place}"
            if index is None or name not in saved.arrays:
                continue
            old = saved.arrays[name].astype(np.int64)
            if numbers["ring"] != rings.ring:
                old = self._moved(old, numbers)
            index.reorder(old)

    def _moved(self, slots: Ints, numbers: Mapping[str, Any]) -> Ints:
        """Where slots of a ring of another size are now, those that do not fit left out."""
        rings = self._buffer._rings
        envs, places = slots // numbers["ring"], slots % numbers["ring"]
        newest = np.array(numbers["newest"], np.int64)[envs]
        rows = newest - 1 - (newest - 1 - places) % numbers["ring"]
        fits = rows >= rings.oldest[envs]
        moved: Ints = (envs * rings.ring + rows % rings.ring)[fits]
        return moved

    def reset(self) -> None:
        buffer = self._buffer
        rings, store = buffer._rings, buffer._store
        rings.reset()
        store.lanes = None
        store.counts = Counts()
        drawing = store.drawing
        drawing.starts.clear()
        drawing.starts._zeros = False
        drawing.calls, drawing._credit = 0, 0.0
        if buffer._incoming.schema is not None:
            store.set_schema(buffer._incoming.schema)
        buffer._ledger = None
        buffer._gate.wake_all()


def _listed(schema: Any) -> str:
    return ", ".join(f"{name} ({column})" for name, column in schema.columns.items())
