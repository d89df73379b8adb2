"""Annotations: cells that come after their rollout was stored, and the groups they complete.

An annotation names the attempt, so what comes late never lands on another response.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recollect.base.arguments import many
from recollect.base.arrays import Ints, Keys, Mask
from recollect.data.ragged import Ragged, ragged_from_cells
from recollect.data.schema import Rows, Schema, Stored, row_payload
from recollect.errors import BufferFull, InvalidValue, NeverPossible, shown
from recollect.rollouts.cell_columns import other_array, to_json
from recollect.rollouts.core import RolloutCore
from recollect.rollouts.expiry import judge_again
from recollect.rollouts.group_columns import (
    ARRAYS,
    NEVER_LATER,
    PER_TOKEN,
    array_column,
    as_rows,
    column_of,
    fitted,
)
from recollect.rollouts.rollout import CODES, Status
from recollect.rollouts.space import bytes_of, drop_archived, drop_stalest
from recollect.rollouts.values import any_array, named
from recollect.table.changes import add_column
from recollect.table.runner import PlainVerb, Verb
from recollect.table.waiting import Blocked

NO_VALUES, NO_ROWS = np.zeros(0, np.float32), np.zeros(1, np.int64)
OVER = (CODES[Status.EXPIRED], CODES[Status.ARCHIVED])  # rows whose cells nobody fills


def annotate(
    core: RolloutCore, rollout_ids: Any, attempt: Any, reward: Any, rewards: Any, arrays: Any
) -> Verb[Mask]:
    """Fill cells of rollouts; says which were still there, in their attempt."""
    annotation = Annotation(rollout_ids, attempt, reward, rewards, arrays)

    def fill_cells() -> Mask | Blocked:
        return fill(core, annotation)

    return PlainVerb("annotate", fill_cells, core.table.gate.departures)


class Annotation:
    """New cells for rollouts, one of each kind per rollout id."""

    def __init__(
        self, rollout_ids: Any, attempt: Any, reward: Any, rewards: Any, arrays: Any
    ) -> None:
        self.ids = _ids(rollout_ids)
        self.attempts = self._attempts(attempt)
        self.reward = None if reward is None else self._rewards(reward)
        self.texts: dict[str, list[str]] = {}
        if rewards is not None:
            self.texts["rewards"] = self._named_rewards(rewards)
        self.arrays: dict[str, Ragged] = {}
        for name, cells in named("arrays", arrays).items():
            if name in ("reward", "rewards"):
                raise InvalidValue(f"arrays[{name!r}]: it is no array; give it as {name}=")
            if name in NEVER_LATER:
                raise InvalidValue(
                    f"arrays[{name!r}]: a rollout has it, or has it not, when it is put; expected "
                    "logprobs, loss_mask, or another name for an array"
                )
            self.arrays[name if name in PER_TOKEN else ARRAYS + name] = self._array(name, cells)
        if self.reward is None and not self.texts and not self.arrays:
            raise InvalidValue("annotate: give reward, rewards or arrays")

    def _check_count(self, name: str, cells: Any) -> None:
        if len(cells) != len(self.ids):
            raise InvalidValue(f"{name} has {len(cells)} entries for {len(self.ids)} rollouts")

    def _attempts(self, attempt: Any) -> NDArray[np.int64]:
        array = _numbers(attempt, "iu", np.int64)
        if array is None or array.min(initial=0) < 0:
            raise InvalidValue(
                f"attempt: expected whole numbers of 0 or more, got {shown(attempt)}; give one for "
                "each rollout, or one for all"
            )
        return self._one_each("attempt", array)

    def _rewards(self, reward: Any) -> NDArray[np.float64]:
        array = _numbers(reward, "biufV", np.float64)  # V: dtypes that others added, as bfloat16
        if array is None:
            raise InvalidValue(
                "reward: expected numbers, one for each rollout or one for all, got "
                f"{shown(reward)}"
            )
        return self._one_each("reward", array)

    def _one_each(self, name: str, array: NDArray[Any]) -> NDArray[Any]:
        if array.ndim == 0:
            return np.full(len(self.ids), array)
        self._check_count(name, array)
        return array

    def _named_rewards(self, rewards: Any) -> list[str]:
        parts = [rewards] * len(self.ids) if isinstance(rewards, Mapping) else _cells(rewards)
        if parts is None or not all(isinstance(part, Mapping) for part in parts):
            raise InvalidValue(
                "rewards: expected a mapping of names, one for each rollout or one for all, got "
                f"{shown(rewards)}"
            )
        self._check_count("rewards", parts)
        return [to_json(part) for part in parts]

    def _array(self, name: Any, cells: Any) -> Ragged:
        if isinstance(cells, Ragged):
            any_array(name, cells.values if cells.kind == "array" else "text")
            column = cells
        else:
            given = _cells(cells)
            if given is None:
                raise InvalidValue(
                    f"arrays[{name!r}]: expected an array for each rollout, got {shown(cells)}"
                )
            parts = [any_array(name, cell) for cell in given]
            if not parts:
                any_array(name, NO_VALUES)  # raises where the name is not allowed
            made = other_array(name, parts)[0] if parts else Ragged._make(NO_VALUES, NO_ROWS)
            assert isinstance(made, Ragged)
            column = made
        self._check_count(name, column)
        if name == "loss_mask" and not np.isin(column.values, (0, 1)).all():
            raise InvalidValue("loss_mask: expected 0 or 1 per response token")
        return column

    def fit(self, schema: Schema) -> Schema:
        """Convert arrays to the dtype of their columns; returns the schema with new ones."""
        for name, cells in self.arrays.items():
            column = schema.columns.get(name)
            if column is None:
                schema = schema.with_column(name, array_column(cells))
            else:
                self.arrays[name] = fitted(name, cells, column)
        return schema

    def filled(self, rows: Rows, names: list[str], where: Any, sources: Sequence[int]) -> Rows:
        """Stored rows, with these cells written over what was there."""
        columns, present = list(rows.columns), list(rows.present or [None] * len(names))
        picked = np.array(sources)
        new: dict[str, Any] = {name: cells[picked] for name, cells in self.arrays.items()}
        if self.reward is not None:
            new["reward"] = self.reward[picked]
        for name, texts in self.texts.items():
            new[name] = ragged_from_cells(name, [texts[place] for place in sources], str)
        response = columns[0]
        assert isinstance(response, Ragged)
        for name, cells in new.items():
            if name in PER_TOKEN and (cells.lengths != response.lengths[where]).any():
                wrong = int(np.argmax(cells.lengths != response.lengths[where]))
                raise InvalidValue(
                    f"{name} has {cells.lengths[wrong]} entries for "
                    f"{response.lengths[where[wrong]]} response tokens"
                )
            place = names.index(name)
            columns[place] = _with_cells(columns[place], where, cells)
            flags = present[place]
            flags = np.ones(rows.count, np.bool_) if flags is None else flags.copy()
            flags[where] = True
            present[place] = flags
        return Rows(rows.count, columns, present)


def _ids(rollout_ids: Any) -> list[str]:
    ids = _cells(rollout_ids)
    if ids is None or not all(isinstance(each, str) for each in ids):
        raise InvalidValue(f"rollout_ids: expected a list of ids, got {shown(rollout_ids)}")
    return ids


def _cells(given: Any) -> list[Any] | None:
    """A list with a value for each rollout, None where one value was given."""
    if isinstance(given, str | bytes | Mapping):
        return None
    try:
        return list(given)
    except TypeError:
        return None


def _numbers(value: Any, kinds: str, dtype: Any) -> NDArray[Any] | None:
    """A number, or a flat array of numbers of some kinds; None for anything else."""
    try:
        array = np.asarray(value)
        if array.ndim > 1 or (array.size and array.dtype.kind not in kinds):
            return None
        return array.astype(dtype)
    except (TypeError, ValueError):
        return None


def _with_new(rows: Rows, schema: Schema) -> Rows:
    """Stored rows with all columns of a schema; in the new ones no row has a cell."""
    columns, present = list(rows.columns), list(rows.present or [None] * len(rows.columns))
    for column in list(schema.columns.values())[len(columns) :]:
        nothing = np.zeros((0, *column.shape), column.dtype)
        columns.append(Ragged._make(nothing, np.zeros(rows.count + 1, np.int64)))
        present.append(np.zeros(rows.count, np.bool_))
    return Rows(rows.count, columns, present)


def _with_cells(column: Stored, where: Any, cells: Any) -> Stored:
    """A copy of a column in which some rows have other cells."""
    if isinstance(column, Ragged):
        both = Ragged._make(
            np.concatenate([column.values, cells.values]),
            np.concatenate([column.offsets, cells.offsets[1:] + column.offsets[-1]]),
            column.kind,
        )
        picked = np.arange(len(column))
        picked[where] = len(column) + np.arange(len(cells))
        return both[picked]
    assert isinstance(column, np.ndarray)
    column = column.copy()
    column[where] = cells
    return column


# -- storing them: under the lock -----------------------------------------------------------------
def fill(core: RolloutCore, annotation: Annotation) -> Mask | Blocked:
    """Fill the cells of those rollouts that are still in their attempt; says which were."""
    table = core.table
    places = _places(core, annotation)
    keys = np.array(sorted({key for key, _ in places.values()}), np.uint64)
    found = np.zeros(len(annotation.ids), np.bool_)
    if not keys.size:
        return found
    assert table.schemas.rows is not None
    schema = annotation.fit(table.schemas.rows)
    batch = core.storage.get(keys, None).read(np.empty)
    starts = batch.info.row_offsets
    first_row = dict(zip(keys.tolist(), starts.tolist(), strict=False))
    attempts, statuses = batch.columns["attempt"], batch.columns["status"]
    rows, sources = [], []
    for place, (key, within) in places.items():
        row = first_row[key] + within
        if attempts[row] == annotation.attempts[place] and statuses[row] not in OVER:
            rows.append(row)
            sources.append(place)
    if not rows:
        return found
    found[sources] = True
    for key, within, place in _other_segments(core, annotation, places, sources):
        rows.append(first_row[key] + within)
        sources.append(place)
    names = list(schema.columns)
    before = _with_new(as_rows(batch), schema)
    after = annotation.filled(before, names, np.array(rows), sources)
    gained = row_payload(schema, after) - row_payload(schema, before)
    payload = np.add.reduceat(gained, starts[:-1])
    blocked = _make_room(core, keys, int(payload.sum()))
    if blocked is not None:
        return blocked
    for name in names[len(batch.columns) :]:  # only now: what fails leaves no column
        add_column(table, name, schema.columns[name])
    core.lease_sizes.clear()
    core.amend(keys, names, after, np.diff(starts).astype(np.int32), payload)
    _complete(core, keys, names, after, starts)
    if "loss_mask" in annotation.arrays:
        judge_again(core, keys, batch.info.task.tolist(), after.columns, starts[:-1])
    table.gate.arrivals.changed(keys.size)
    return found


def keys_by_rollout(core: RolloutCore) -> dict[str, int]:
    """The key of the group that has a rollout, by rollout id; made when first asked for."""
    if core.index.keys is not None:
        return core.index.keys
    keys = [key for key, entry in core.entries.items() if not entry.trained]
    ids: list[str] = []
    starts = [0]
    if keys:  # read first: where that fails, the next call begins anew
        batch = core.storage.get(np.array(keys, np.uint64), ["rollout_id"]).read(np.empty)
        ids = batch.columns["rollout_id"].to_list()  # type: ignore[union-attr]
        starts = batch.info.row_offsets.tolist()
    return core.index.make(
        (key, core.entries[key], ids[first:last])
        for key, (first, last) in zip(keys, pairwise(starts), strict=True)
    )


def _places(core: RolloutCore, annotation: Annotation) -> dict[int, tuple[int, int]]:
    """For ids, by place: the key of the group and the row in it. Those that left are missing."""
    keys = keys_by_rollout(core)
    places: dict[int, tuple[int, int]] = {}
    seen: dict[str, int] = {}
    for place, rollout_id in enumerate(annotation.ids):
        key = keys.get(rollout_id)
        if key is None or core.entries[key].trained:  # the archive keeps what was trained on
            continue
        ids = core.index.ids_of(key)
        start = seen.get(rollout_id, 0)  # an id that is named again means its next segment
        if rollout_id in ids[start:]:
            row = ids.index(rollout_id, start)
            seen[rollout_id] = row + 1
            places[place] = (key, row)
    return places


def _other_segments(
    core: RolloutCore,
    annotation: Annotation,
    places: Mapping[int, tuple[int, int]],
    sources: Sequence[int],
) -> list[tuple[int, int, int]]:
    """Segments of rollouts that were named once: a reward is for all of them.

    Returns the key, the row in the group, and the place of the rollout among the ids.
    """
    if annotation.arrays:
        return []
    others = []
    named = set(places.values())
    for place in sources:
        key, row = places[place]
        ids = core.index.ids_of(key)
        for other, rollout_id in enumerate(ids):
            if other != row and rollout_id == ids[row] and (key, other) not in named:
                others.append((key, other, place))
    return others


def _make_room(core: RolloutCore, keys: Keys, payload: int) -> Blocked | None:
    """Make room for so many more bytes in these groups, or say what must leave first."""
    if core.capacity_bytes is None or core.nbytes + payload <= core.capacity_bytes:
        return None
    whole_groups = bytes_of(core, keys) + payload
    if whole_groups > core.capacity_bytes:
        raise NeverPossible(
            f"annotate: {payload} bytes never fit a buffer of {core.capacity_bytes} bytes: "
            f"with them its {many(keys.size, 'group')} would have {whole_groups}"
        )
    missing = core.nbytes + payload - core.capacity_bytes
    if core.overflow == "drop_stalest":
        return drop_stalest(core, 0, missing, keys)
    _, missing = drop_archived(core, 0, missing, keys)
    if missing <= 0:
        return None
    needs = f"the buffer is full: {many(missing, 'byte')} must leave before cells are filled"
    if core.overflow == "block":
        return Blocked(needs)
    raise BufferFull(needs)


def _complete(core: RolloutCore, keys: Keys, names: list[str], rows: Rows, starts: Ints) -> None:
    """Groups that have all cells now are ready, and nobody works on those cells any more."""
    assert rows.present is not None
    here: dict[str, Mask] = {}
    ready = []
    for item, key in enumerate(keys.tolist()):
        entry = core.entries[key]
        for cell in entry.lacks:
            if cell not in here:
                name = column_of(cell)
                here[cell] = np.zeros(keys.size, np.bool_)
                if name in names:
                    flags = rows.present[names.index(name)]
                    if flags is None:
                        flags = np.ones(rows.count, np.bool_)
                    here[cell] = np.logical_and.reduceat(flags, starts[:-1])
            if here[cell][item]:
                core.queues.filled(cell, key, entry.task)
        entry.lacks = tuple(cell for cell in entry.lacks if not here[cell][item])
        if not any(cell in core.needs for cell in entry.lacks):
            ready.append(key)
    if ready and core.judge is not None:
        ready = core.judge(ready)  # whoever judges groups before they train keeps some back
    if ready and core.needs:
        core.set_fields(np.array(ready, np.uint64), {"ready": True})
