"""Which versions generated the tokens of rollouts, and when each rollout is too old for it.

Works on columns in the order of `ROWS`, for one group as for many. No loop goes over tokens: the
kernels do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from recollect.base.arrays import Array, Ints
from recollect.data.ragged import Ragged
from recollect.data.schema import Stored
from recollect.kernels import load as kernels
from recollect.rollouts.cell_columns import INT8, INT32
from recollect.rollouts.group_columns import ROWS
from recollect.rollouts.staleness import NEVER, NONE, Staleness, StalenessRules


def oldest_versions(versions: Ragged) -> Ints:
    """The lowest version of each row's tokens, -1 where it has none; tool output has none."""
    oldest = np.empty(len(versions), np.int64)
    kernels.load_tokens().tokens.oldest(versions.values, versions.offsets, oldest)
    return oldest


def newest_trainable(columns: Sequence[Stored], offsets: Ints) -> Ints:
    """The highest version of each row's trainable tokens, -1 where the rule for tokens exempts it.

    `offsets` are those of the responses.
    """
    mask, versions, stamp = columns[2], columns[3], columns[4]
    rows = offsets.size - 1
    newest = np.empty(rows, np.int64)
    kernels.load_tokens().tokens.newest_trainable(
        offsets, *_parts(mask, rows, INT8), *_parts(versions, rows, INT32), stamp, newest
    )
    return newest


def _parts(column: Stored, rows: int, dtype: np.dtype[Any]) -> tuple[Array, Ints]:
    """The values and offsets of an optional column, all rows empty where it has no cell."""
    if isinstance(column, Ragged):
        return column.values, column.offsets
    return np.zeros(0, dtype), np.zeros(rows + 1, np.int64)


def row_expiry(columns: Sequence[Stored], rule: Staleness) -> tuple[Ints, Ints]:
    """The version that counts for each row, and the train step at which the row expires."""
    response, versions, stamp, dispatch = columns[0], columns[3], columns[4], columns[5]
    assert isinstance(response, Ragged)
    assert isinstance(stamp, np.ndarray)
    assert isinstance(dispatch, np.ndarray)
    oldest = stamp
    if isinstance(versions, Ragged):
        oldest = np.where(stamp >= 0, stamp, oldest_versions(versions))
    newest = None
    if rule.max_token_staleness is not None:
        newest = newest_trainable(columns, response.offsets)
    return rule.versions_of(oldest, dispatch), rule.expiry(oldest, dispatch, newest)


def stale_rows(columns: Sequence[Stored], rule: Staleness, train_step: int) -> list[bool]:
    """Which rollouts of one group are too old at a train step."""
    stale: list[bool] = (row_expiry(columns, rule)[1] <= train_step).tolist()
    return stale


def group_expiry(
    columns: Sequence[Stored], starts: Ints, tasks: Sequence[str], rules: StalenessRules
) -> tuple[Ints, Ints]:
    """The same for groups: the lowest version and the first step of their rows.

    -1 where a group has no version, `NEVER` where it does not expire. `starts` says where the rows
    of each group begin.
    """
    version, expires = np.empty(starts.size, np.int64), np.empty(starts.size, np.int64)
    for task in dict.fromkeys(tasks):
        versions, steps = row_expiry(columns, rules[task])
        here = np.array([each == task for each in tasks])
        counted = np.minimum.reduceat(np.where(versions >= 0, versions, NEVER), starts)
        version[here] = np.where(counted < NEVER, counted, NONE)[here]
        expires[here] = np.minimum.reduceat(steps, starts)[here]
    return version, expires


assert list(ROWS)[:6] == [
    "response_ids", "logprobs", "loss_mask", "versions", "stamp", "dispatch_version",
]  # fmt: skip
