"""The batch that users read: each rollout's prompt is a column, and what is kept for groups is not.

A prompt is stored once per group, and once more only for a rollout that has another one, such as
a later segment. A trainer wants it beside the response, so it is spread over the rollouts here,
by one concatenation.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from recollect.data.batch import Batch
from recollect.data.column_data import ColumnData
from recollect.data.ragged import Ragged, offsets_of

# Columns from which `Group` and `Rollout` objects are made, and nothing else.
HIDDEN = ("own_prompt_ids", "blobs")
HIDDEN_SHARED = ("about", "shared_blobs")


def visible(batch: Batch) -> Batch:
    """A finished batch with `prompt_ids` for each rollout, and without what only objects need."""
    columns: dict[str, ColumnData] = {"prompt_ids": prompts_of(batch), **batch.columns}
    shared, present = dict(batch.shared.columns), dict(batch.present)
    shared_present = dict(batch.shared.present)
    for name in HIDDEN:
        del columns[name]
        present.pop(name, None)
    for name in HIDDEN_SHARED:
        del shared[name]
        shared_present.pop(name, None)
    return Batch._make(columns, batch.info, shared, present, shared_present)


def prompts_of(batch: Batch) -> Ragged:
    """The prompt of each rollout: its own where it has one, else its group's."""
    shared, own = batch.shared.columns["prompt_ids"], batch.columns["own_prompt_ids"]
    assert isinstance(shared, Ragged)
    assert isinstance(own, Ragged)
    if not shared.values.size and not own.values.size:
        return Ragged._make(np.zeros(0, shared.dtype), np.zeros(len(own) + 1, np.int64))
    rows = np.diff(batch.info.row_offsets)
    has_own = batch.present["own_prompt_ids"]
    lengths = np.repeat(shared.lengths, rows)
    if has_own.any():
        lengths = np.where(has_own, own.lengths, lengths)
    cells = [shared.values[a:b] for a, b in pairwise(shared.offsets.tolist())]
    parts = [cell for cell, n in zip(cells, rows.tolist(), strict=True) for _ in range(n)]
    for row in np.flatnonzero(has_own).tolist():
        parts[row] = own[row]
    return Ragged._make(np.concatenate(parts), offsets_of(lengths))
