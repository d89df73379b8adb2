"""The columns of a rollout buffer: which there are, and which cells may come after a put.

The rollouts of a group are rows, and what they share is one cell per group. Users may name more
arrays; the column of the array `x` is called `arrays.x`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from recollect.base.arguments import text
from recollect.data.columns import Columns
from recollect.data.ragged import Ragged
from recollect.data.schema import Column, Rows, Stored
from recollect.errors import InvalidValue, SchemaError

ARRAYS = "arrays."  # how the columns of other arrays begin

ROWS: dict[str, Column] = {
    "response_ids": Column("int32", ragged=True),
    "logprobs": Column("float32", ragged=True, optional=True),
    "loss_mask": Column("int8", ragged=True, optional=True),
    "versions": Column("int32", ragged=True, optional=True),
    "stamp": Column("int64"),  # the version of every token, -1 where `versions` says it, or none
    "dispatch_version": Column("int64"),  # -1: none
    "reward": Column("float64", optional=True),
    "status": Column("int8"),
    "segment": Column("int32"),
    "attempt": Column("int32"),
    "rollout_id": Column("str"),
    "finish_reason": Column("str", optional=True),
    "error": Column("str", optional=True),
    "rewards": Column("str", optional=True),  # JSON, as are the following
    "turns": Column("str", optional=True),
    "extras": Column("str", optional=True),
    "blobs": Column("str", optional=True),
    "own_prompt_ids": Column("int32", ragged=True, optional=True),  # where it is not the group's
}
SHARED: dict[str, Column] = {
    "prompt_ids": Column("int32", ragged=True, shared=True),
    "group_id": Column("str", shared=True),
    "about": Column("str", optional=True, shared=True),  # JSON: prompt, ground truth, extras
    "shared_blobs": Column("str", optional=True, shared=True),
}

PER_TOKEN = ("logprobs", "loss_mask")  # columns that `annotate(arrays=)` may name as well
# What a rollout and its group have, or have not, when it is put; `stamp` is a name of ours.
NEVER_LATER = {*ROWS, "prompt_ids", "group_id", "task", "prompt", "ground_truth"}
NEVER_LATER -= {"stamp", "reward", "rewards", *PER_TOKEN}
# Where the others are among the columns; a cell with another name is that of an array.
LATE_PLACES = {name: place for place, name in enumerate(ROWS) if ROWS[name].optional}


def check_cell(what: str, cell: Any) -> None:
    """Raise `InvalidValue` unless the cell of this name may come after its rollout was put."""
    text(what, cell)
    if cell in NEVER_LATER or "." in cell:
        raise InvalidValue(
            f"{what}: annotate never fills {cell!r}; expected reward, rewards, logprobs, "
            "loss_mask, or the name of an array"
        )


def column_of(cell: str) -> str:
    """The column of a cell that somebody lacks: one of `ROWS`, or that of an array."""
    return cell if cell in LATE_PLACES else ARRAYS + cell


def as_rows(columns: Columns) -> Rows:
    """What was read, as rows to store again."""
    present = columns.present
    arrays: list[Stored] = list(columns.columns.values())
    return Rows(columns.rows, arrays, [present.get(name) for name in columns.columns])


def fitted(name: str, cells: Ragged, column: Column) -> Ragged:
    """An array as its column wants it; another kind of number, or another shape, is refused."""
    name = name.removeprefix(ARRAYS)
    if cells.inner_shape != column.shape or not np.can_cast(cells.dtype, column.dtype, "same_kind"):
        raise SchemaError(
            f"arrays[{name!r}]: expected {column.dtype} {list(column.shape)} per entry, as the "
            f"buffer has it, got {cells.dtype} {list(cells.inner_shape)}"
        )
    if cells.dtype == column.dtype:
        return cells
    return Ragged._make(cells.values.astype(column.dtype), cells.offsets, cells.kind)


def array_column(cells: Ragged) -> Column:
    """The column that an array of a new name gets."""
    return Column(cells.dtype, cells.inner_shape, ragged=True, optional=True)
