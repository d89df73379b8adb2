"""A replay buffer in a snapshot: keys, episodes, priorities, counters and draws come back exactly.

To a snapshot a row is an item: its key is environment and row number, and its fields are the marks
that episodes are made of. A smaller ring takes the newest rows that fit. One of the same size draws
as the saved one would have, because the order of legal starts is saved too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recollect.base.arrays import Ints
from recollect.data.batch import Batch
from recollect.durability.format import schema_from_json, schema_to_json
from recollect.durability.journal.open_journal import OpenJournal
from recollect.durability.snapshot.ledger import Ledger
from recollect.durability.snapshot.members import Captured, check_kind
from recollect.errors import SnapshotError
from recollect.kernels import steps_layout as sl
from recollect.replay.core import ReplayCore
from recollect.rules.limiters import Counts
from recollect.storage.buffers import Allocate
from recollect.storage.lanes import Copies, Copy, Lanes
from recollect.storage.memory.capture import Capture
from recollect.storage.memory.saved_items import Saved

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
        """The order of writing, by age: rows that will be overwritten together share a file."""
        assert self.newest is not None
        envs, rows = _apart(self.key[slots])
        ages: Ints = rows - self.newest[envs]
        return ages

    def arranged(self, slots: Ints) -> Ints:
        """The order of reading, by environment and row, so that rows come back in long runs."""
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

    def __init__(self, core: ReplayCore) -> None:
        self.core = core

    @property
    def saving(self) -> threading.Lock:
        return self.core.saving

    @property
    def ledger(self) -> Ledger | None:
        return self.core.ledger

    @ledger.setter
    def ledger(self, ledger: Ledger | None) -> None:
        self.core.ledger = ledger

    def ledger_later(self, make: Callable[[], Ledger]) -> None:
        self.ledger = make()

    @property
    def journal(self) -> OpenJournal | None:
        return self.core.journal

    def untouched(self) -> None:
        """Nothing to bring back: files are checked before anything changes."""

    def transaction(self) -> AbstractContextManager[Any]:
        return self.core.transaction()

    def touch(self) -> None:
        """Nothing to prepare: marks take 9 bytes a row, 17 with priorities, and are soon copied."""

    # -- capturing --------------------------------------------------------------------------------
    def capture(self) -> Captured:
        core = self.core
        core.enter()
        rings, draws, counts, options = core.rings, core.draws, core.counts, core.options
        kinds, arrays = draws.starts.capture()
        numbers = {
            "envs": rings.envs,
            "ring": rings.ring,
            "slots": rings.slots,
            "newest": rings.newest.tolist(),
            "oldest": rings.oldest.tolist(),
            **{name: int(rings.now[place]) for name, place in NUMBERS.items()},
            "reward_at": options.reward_at,
            "credit": draws.credit,
            "random": [int(word) for word in draws.random],
            **kinds,
        }
        changing = {name: rings.arrays[place].copy() for name, place in MARKS.items()}
        if rings.priority is not None:
            changing["priority"] = rings.priority[: rings.slots].copy()
        lanes = core.lanes
        items = StepsCapture(
            numbers, 0, np.zeros(rings.slots, np.uint64), {}, changing, arrays,
            0 if lanes is None else lanes.row_bytes,
        )  # fmt: skip
        items.newest = rings.newest.copy()
        if lanes is not None:
            items.lanes, items.held, items.bases = lanes, lanes.hold(), lanes.frozen()
        entry = {
            "kind": self.kind,
            "columns": schema_to_json(core.incoming.schema),
            "shared_columns": None,
            "fields": {},
            "partition_by": [],
            "rules": {
                "sampler": repr(options.sampler),
                "limiter": repr(core.limiter),
                "capacity": options.capacity,
                "num_envs": options.num_envs,
                "n_step": options.n_step,
                "gamma": options.gamma,
                "frame_stack": options.frame_stack,
            },
            "counts": {
                "inserts": counts.inserts,
                "samples": counts.samples,
                "removals": counts.removals,
                "removed": {},
                "sample_calls": draws.calls,
                "effects": 0,
            },
            "requests": [],
            "items": core.rows,
            "nbytes": core.nbytes,
        }
        return Captured(entry, items)

    def undo(self, captured: Captured) -> None:
        """Nothing to undo: a capture leaves the buffer as it is."""

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
        core = self.core
        check_kind(self.kind, entry, f"{where}: it")
        if core.rows and self.journal is None:
            raise SnapshotError(f"this buffer is not empty; load {where} into a new one")
        numbers = entry["numbers"]
        for name, saved, mine in (
            ("num_envs", numbers["envs"], core.options.num_envs),
            ("reward_at", numbers["reward_at"], core.options.reward_at),
        ):
            if saved != mine:
                raise SnapshotError(
                    f"{where}: the buffer was saved with {name}={saved!r} and has {mine!r}; make "
                    "it with the same (load_shards gives steps to other environments)"
                )
        schema, own = schema_from_json(entry["columns"], "column"), core.incoming.schema
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
        core, numbers = self.core, saved.numbers
        rings = core.rings
        schema = schema_from_json(entry["columns"], "column")
        newest = np.array(numbers["newest"], np.int64)
        oldest = np.maximum(np.array(numbers["oldest"], np.int64), newest - rings.ring)
        rings.newest[:], rings.oldest[:], rings.head[:] = newest, oldest, newest % rings.ring
        for name, place in NUMBERS.items():
            rings.block[place] = numbers[name]
        gone = self._restore_marks(saved, oldest)
        if schema is not None:
            core.set_schema(core.incoming.schema or schema)
            self._restore_rows(saved.items["key"], oldest, batches)
        counts = entry["counts"]
        core.counts = Counts(counts["inserts"], counts["samples"], counts["removals"] + gone)
        core.draws.resume(counts["sample_calls"], numbers["credit"], numbers["random"])
        core.draws.starts.restore(
            numbers, saved.arrays, core.transition_kind, lambda slots: self._moved(slots, numbers)
        )
        core.gate.wake_all()
        return gone

    def _restore_marks(self, saved: Saved, oldest: Ints) -> int:
        """Write the marks of the rows that fit; returns how many steps do not."""
        rings, items = self.core.rings, saved.items
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
        """Tell the oldest row that fits how much of its episode is left, as the first row knew."""
        rings, items = self.core.rings, saved.items
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
        rings, lanes = self.core.rings, self.core.lanes
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

    def _moved(self, slots: Ints, numbers: Mapping[str, Any]) -> Ints:
        """Where slots of a ring of another size are now, those that do not fit left out."""
        rings = self.core.rings
        if numbers["ring"] == rings.ring:
            return slots
        envs, places = slots // numbers["ring"], slots % numbers["ring"]
        newest = np.array(numbers["newest"], np.int64)[envs]
        rows = newest - 1 - (newest - 1 - places) % numbers["ring"]
        fits = rows >= rings.oldest[envs]
        moved: Ints = (envs * rings.ring + rows % rings.ring)[fits]
        return moved

    def reset(self) -> None:
        self.core.reset()


def _listed(schema: Any) -> str:
    return ", ".join(f"{name} ({column})" for name, column in schema.columns.items())
