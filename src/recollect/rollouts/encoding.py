"""A group as columns: its rollouts are rows, and what they share is one cell per group.

`groups.py` goes the other way. No loop here goes over tokens: the arrays of a group's rollouts
become one ragged column by one concatenation. Only where that does not fit is each rollout looked
at, to convert it or to say what is wrong with it. Where `put` stamps all tokens of a rollout with
one version, that number is stored and not a copy of it per token; `groups.py` spreads it when a
batch is made.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recollect.base.arrays import Array, Mask
from recollect.data.ragged import Ragged
from recollect.data.schema import Rows, Stored
from recollect.errors import InvalidValue, shown
from recollect.rollouts.blobs import digest
from recollect.rollouts.cell_columns import (
    FLOAT32,
    INT8,
    INT32,
    Cells,
    Unfit,
    finish_reasons,
    integers,
    json_of,
    offsets_of,
    other_array,
    per_token,
    ragged_of,
    rewards_of,
    status_codes,
    text_of,
    texts_of,
)
from recollect.rollouts.entries import GroupEntry
from recollect.rollouts.group import Group, check_rollouts, check_shared
from recollect.rollouts.group_columns import ARRAYS, LATE_PLACES, ROWS
from recollect.rollouts.rollout import (
    Rollout,
    Status,
    check_named,
    finish_reasons_of,
    group_status,
    statuses_of,
)
from recollect.rollouts.staleness import NEVER, NONE, Staleness
from recollect.rollouts.token_versions import newest_trainable, oldest_versions
from recollect.rules.query import FieldType
from recollect.storage.fields import check_value

UNFIT = (Unfit, TypeError, ValueError, AttributeError, OverflowError)  # then each is checked
BLOBS = LATE_PLACES["blobs"]
EMPTY: dict[str, Any] = {}
NOTHING = (None,) * 6  # the columns of `_encode_rare`, where no rollout has any


@dataclass(slots=True, init=False, eq=False)
class Encoded:
    """A group as it will be stored."""

    columns: list[Stored]
    present: list[Mask | None]
    arrays: dict[str, Cells]
    shared: Rows
    count: int
    status: Status
    version: int  # -1: none
    expires: int
    fields: dict[str, Any]
    ids: list[str]  # of the rollouts
    blobs: dict[str, bytes]
    entry: GroupEntry


def encode(
    group: Group, version: int | None, rule: Staleness, tags: Mapping[str, FieldType]
) -> Encoded:
    """Check a group and make its columns."""
    check_shared(group)
    if not group.rollouts:
        group_status(())
    try:
        return _encode(group, version, rule, tags)
    except InvalidValue:
        raise
    except UNFIT:
        check_rollouts(group)
    try:
        return _encode(group, version, rule, tags)
    except InvalidValue:
        raise
    except UNFIT as error:
        raise InvalidValue(f"group {group.group_id!r}: {error}") from None


def _encode(
    group: Group, version: int | None, rule: Staleness, tags: Mapping[str, FieldType]
) -> Encoded:
    rollouts = group.rollouts
    encoded = Encoded()
    encoded.count = len(rollouts)
    statuses = statuses_of(rollouts)
    encoded.status = group_status(statuses)
    cells = [rollout.response_ids for rollout in rollouts]
    lengths = list(map(len, cells))
    offsets = offsets_of(lengths)
    tokens = np.concatenate(cells)
    if tokens.dtype != INT32 or tokens.ndim != 1:
        raise Unfit("response_ids are not tokens")
    logprobs = per_token("logprobs", [r.logprobs for r in rollouts], lengths, offsets, FLOAT32)
    mask = per_token("loss_mask", [r.loss_mask for r in rollouts], lengths, offsets, INT8)
    encoded.ids = _checked_ids(rollouts)
    dispatch = _dispatch(rollouts, statuses, version)
    stamp, versions, oldest = _stamped(rollouts, lengths, logprobs, version)
    reward = rewards_of([rollout.reward for rollout in rollouts])
    reasons = finish_reasons(finish_reasons_of(rollouts))
    encoded.columns = [
        Ragged._make(tokens, offsets),
        logprobs[0],
        mask[0],
        versions[0],
        integers(stamp, np.int64, NONE),
        integers(dispatch, np.int64, NONE),
        reward[0],
        status_codes(statuses),
        integers([rollout.segment for rollout in rollouts], np.int32, 0),
        integers([rollout.attempt for rollout in rollouts], np.int32, 0),
        text_of(encoded.ids),
        reasons[0],
    ]
    encoded.present = [
        None, logprobs[1], mask[1], versions[1], None, None, reward[1], None, None, None, None,
        reasons[1],
    ]  # fmt: skip
    encoded.arrays = {}
    if _is_plain(group):
        encoded.columns += NOTHING
        encoded.present += NOTHING
    else:
        _encode_rare(encoded, group)
    _encode_shared(encoded, group)
    _date(encoded, oldest, dispatch, rule, offsets)
    encoded.entry = GroupEntry(group.group_id, group.task, encoded.version, 0.0)
    encoded.entry.blobs = tuple(encoded.blobs)
    encoded.fields = {
        "task": group.task,
        "status": encoded.status.value,
        "version": encoded.version if encoded.version >= 0 else None,
        "expires": encoded.expires if encoded.expires < NEVER else None,
        **{name: tag_of(name, kind, group) for name, kind in tags.items()},
    }
    return encoded


def _date(
    encoded: Encoded,
    oldest: list[int],
    dispatch: list[int],
    rule: Staleness,
    offsets: NDArray[np.int64],
) -> None:
    """Set the version that counts for a group, and the train step at which it expires."""
    first, other = (oldest, dispatch) if rule.measure == "oldest_token" else (dispatch, oldest)
    if min(first) < 0:
        first = [f if f >= 0 else o for f, o in zip(first, other, strict=True)]
        first = [version for version in first if version >= 0] or [NONE]
    encoded.version = min(first)
    encoded.expires = rule.expires_at(encoded.version) if encoded.version >= 0 else NEVER
    if rule.max_token_staleness is not None:
        newest = newest_trainable(encoded.columns, offsets)
        assert rule.token_threshold is not None
        for step in newest[newest >= 0].tolist():
            encoded.expires = min(encoded.expires, step + rule.token_threshold + 1)
    if encoded.status is Status.ARCHIVED:
        encoded.expires = NEVER


def _checked_ids(rollouts: list[Rollout]) -> list[str]:
    """The rollout id of each row."""
    ids = [rollout.rollout_id for rollout in rollouts]
    unique = set(ids)
    if "" in unique:
        raise Unfit("a rollout_id is empty")
    if len(unique) != len(ids):
        _check_segments(rollouts)
    return ids


def _check_segments(rollouts: list[Rollout]) -> None:
    """Rows with one id are segments of one rollout, and each segment comes once."""
    seen = set()
    for place, rollout in enumerate(rollouts):
        row = (rollout.rollout_id, rollout.segment)
        if row in seen:
            raise InvalidValue(
                f"rollout {place}: rollout_id {row[0]!r} is there before with segment {row[1]}; "
                "number the segments of one rollout, or give each rollout its own id"
            )
        seen.add(row)


def _is_plain(group: Group) -> bool:
    """Whether no rollout has any of the cells that few have; one loop looks for all of them."""
    prompt = group.prompt_ids
    for r in group.rollouts:
        if (
            r.prompt_ids is not prompt
            or r.error is not None
            or r.rewards is not None
            or r.turns is not None
            or r.extras != EMPTY  # an empty list is wrong, and does not pass
            or r.blobs != EMPTY
            or r.arrays != EMPTY
        ):
            return False
    return True


def _encode_rare(encoded: Encoded, group: Group) -> None:
    """The cells that few rollouts have."""
    rollouts = group.rollouts
    for place, rollout in enumerate(rollouts):
        try:
            check_named(rollout)
        except InvalidValue as wrong:
            raise InvalidValue(f"rollout {place}: {wrong}") from None
    columns = [
        texts_of([rollout.error for rollout in rollouts]),
        json_of([rollout.rewards for rollout in rollouts]),
        json_of([rollout.turns for rollout in rollouts]),
        json_of([rollout.extras or None for rollout in rollouts]),
        json_of([_blob_names(rollout.blobs) for rollout in rollouts]),
        _own_prompts(group),
    ]
    encoded.columns += [column for column, _ in columns]
    encoded.present += [present for _, present in columns]
    encoded.arrays = _other_arrays(rollouts)


# -- tokens -------------------------------------------------------------------------------------
def _dispatch(rollouts: list[Rollout], statuses: list[Status], version: int | None) -> list[int]:
    """Dispatch versions; a stale rollout that waits for its retry has none and gets none."""
    default = NONE if version is None else version
    given = [rollout.dispatch_version for rollout in rollouts]
    for one in given:
        if one is not None and one < 0:
            raise Unfit("a dispatch_version is negative")
    return [
        (NONE if status is Status.EXPIRED else default) if one is None else one
        for one, status in zip(given, statuses, strict=True)
    ]


def _stamped(
    rollouts: list[Rollout], lengths: list[int], logprobs: Cells, version: int | None
) -> tuple[list[int], Cells, list[int]]:
    """The stamp of each row, versions per token where they differ, and the lowest of each row."""
    given = [rollout.versions is not None for rollout in rollouts]
    if True not in given:
        if version is None:
            nothing = [NONE] * len(rollouts)
            return nothing, (None, None), nothing
        if not _has_nan(logprobs):
            stamp = [version if length else NONE for length in lengths]
            return stamp, (None, None), stamp
    stamp = [NONE] * len(rollouts)
    cells: list[Array | None] = []
    for place, rollout in enumerate(rollouts):
        cell, length = rollout.versions, lengths[place]
        known = 0 if cell is None else len(cell)
        if known > length or (known < length and cell is not None and version is None):
            raise InvalidValue(
                f"rollout {place}: versions has {known} entries for {length} response tokens"
                + ("; put(version=...) stamps the rest" if known < length else "")
            )
        if known < length and version is not None:
            rest = np.full(length - known, version, np.int32)
            if rollout.logprobs is not None:
                rest[np.isnan(rollout.logprobs[known:])] = NONE
            cell = rest if cell is None else np.concatenate([cell, rest])
        if cell is not None and (cell.dtype != INT32 or cell.ndim != 1):
            raise Unfit("versions are not a flat array of int32")
        cells.append(cell if length else None)
    column = ragged_of(cells, INT32)
    oldest = stamp
    if column[0] is not None:
        assert isinstance(column[0], Ragged)
        if column[0].values.min(initial=0) < NONE:
            raise Unfit("versions below -1")
        oldest = oldest_versions(column[0]).tolist()
    return stamp, column, oldest


def _has_nan(column: Cells) -> bool:
    """Whether there may be a NaN: a sum has one if a term does, and is quicker to look at."""
    values = column[0]
    return isinstance(values, Ragged) and math.isnan(np.add.reduce(values.values))


def _other_arrays(rollouts: list[Rollout]) -> dict[str, Cells]:
    if not any(rollout.arrays for rollout in rollouts):
        return {}
    names = dict.fromkeys(name for rollout in rollouts for name in rollout.arrays)
    return {name: other_array(name, [r.arrays.get(name) for r in rollouts]) for name in names}


def _own_prompts(group: Group) -> Cells:
    """The prompts of rollouts that do not have their group's, such as later segments."""
    shared = group.prompt_ids
    cells = [
        None
        if (own := rollout.prompt_ids) is shared or own is None or np.array_equal(own, shared)
        else own
        for rollout in group.rollouts
    ]
    column = ragged_of(cells, INT32)
    if isinstance(column[0], Ragged) and column[0].values.ndim != 1:
        raise Unfit("prompt_ids have several axes")
    return column


# -- what a group shares ------------------------------------------------------------------------
def _encode_shared(encoded: Encoded, group: Group) -> None:
    prompt = group.prompt_ids
    if type(prompt) is not np.ndarray or prompt.dtype != INT32 or prompt.ndim != 1:
        raise InvalidValue(f"prompt_ids: expected a flat array of int32, got {shown(prompt)}")
    about = described(group)
    columns = [
        (Ragged._make(np.ascontiguousarray(prompt), offsets_of([len(prompt)])), None),
        (text_of([group.group_id]), None),
        json_of([about or None]),
        json_of([_blob_names(group.blobs)]),
    ]
    encoded.shared = Rows(1, [column for column, _ in columns], [here for _, here in columns])
    encoded.blobs = {}
    if not group.blobs and encoded.columns[BLOBS] is None:
        return
    for all_blobs in (group.blobs, *(rollout.blobs for rollout in group.rollouts)):
        for blobs in all_blobs.values():
            for blob in blobs:
                encoded.blobs[digest(blob)] = blob


def described(group: Group) -> dict[str, Any]:
    """What a group shares and stores as JSON."""
    about: dict[str, Any] = {}
    if group.prompt is not None:
        about["prompt"] = group.prompt
    if group.ground_truth is not None:
        about["ground_truth"] = group.ground_truth
    if group.extras:
        about["extras"] = group.extras
    return about


def _blob_names(blobs: Mapping[str, list[bytes]]) -> dict[str, list[str]] | None:
    """Blobs by their digests, None where there are none."""
    if not blobs:
        return None
    return {name: [digest(blob) for blob in values] for name, values in blobs.items()}


def tag_of(name: str, kind: FieldType, group: Group) -> Any:
    """The value of a tag: the group's extra, or else that of its rollouts.

    Floats are averaged; whole numbers, texts and flags must agree.
    """
    whose = f"extras[{name!r}]"
    if name in group.extras:
        return _scalar(whose, kind, group.extras[name])
    values: list[Any] = [
        value
        for rollout in group.rollouts
        if (value := _scalar(whose, kind, rollout.extras.get(name))) is not None
    ]
    if not values:
        return None
    if kind == "float":
        return float(np.mean(values))
    if any(value != values[0] for value in values):
        raise InvalidValue(
            f"extras[{name!r}]: it is a tag, and the rollouts of the group differ in it "
            f"({shown(values)}); set it in the extras of the group"
        )
    return values[0]


def _scalar(whose: str, kind: FieldType, value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.size != 1:
        raise InvalidValue(f"{whose}: it is a tag, which is one value, got {shown(value)}")
    return check_value(whose, kind, value, -1)


def rows_in(encoded: Encoded, names: Sequence[str]) -> Rows:
    """A group's columns in the order of the table's, which may have more arrays."""
    columns, present = encoded.columns, encoded.present
    if len(names) > len(columns):
        columns, present = list(columns), list(present)
        for name in names[len(ROWS) :]:
            cells = encoded.arrays.get(name[len(ARRAYS) :], (None, None))
            columns.append(cells[0])
            present.append(cells[1])
    return Rows(encoded.count, columns, present, names)
