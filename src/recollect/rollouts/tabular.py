"""Groups from and to what others use: a list of dicts, a pandas frame, a Hugging Face dataset.

Each form has a row per rollout and the same names; what a group shares is repeated in its rows.
Rows with the same `group_id` make a group again. Arrays stay arrays: no loop goes over tokens.
In frames and datasets, what may be any JSON (`turns`, `extras`, ...) is JSON text. A dataset has
no bfloat16 and the like, which become float32; a null among floats is a NaN.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from recollect.base.optional import optional
from recollect.data.conversions import widened
from recollect.errors import InvalidValue, shown
from recollect.rollouts.cell_columns import to_json
from recollect.rollouts.group import Group
from recollect.rollouts.group_columns import ARRAYS
from recollect.rollouts.rollout import Rollout
from recollect.rollouts.values import named

if TYPE_CHECKING:
    import pandas as pd

OWN = (
    "response_ids", "logprobs", "loss_mask", "versions", "dispatch_version", "reward", "rewards",
    "finish_reason", "error", "rollout_id", "segment", "attempt", "turns", "extras", "blobs",
)  # fmt: skip
SHARED = ("group_id", "task", "prompt", "ground_truth")
OF_GROUP = ("group_prompt_ids", "group_extras", "group_blobs")  # what rollouts have too
WHOLE = ("dispatch_version", "segment", "attempt")
JSON = ("rewards", "turns", "extras", "group_extras", "prompt", "ground_truth")


def to_dicts(groups: Iterable[Group]) -> list[dict[str, Any]]:
    """A dict per rollout; other arrays are under `arrays.NAME`, and what is absent is None."""
    return [row for group in groups for row in _to_dicts(group)]


def _to_dicts(group: Group) -> list[dict[str, Any]]:
    shared: dict[str, Any] = {name: getattr(group, name) for name in SHARED}
    shared["group_prompt_ids"] = None if _share_prompt(group) else group.prompt_ids
    shared["group_extras"] = group.extras
    shared["group_blobs"] = group.blobs
    return [{**shared, **_to_dict(group, rollout)} for rollout in group]


def _share_prompt(group: Group) -> bool:
    """Whether each rollout has the group's prompt, which then need not be named beside it."""
    shared = group.prompt_ids
    return all(
        (own := rollout.prompt_ids) is None or own is shared or np.array_equal(own, shared)
        for rollout in group
    )


def _to_dict(group: Group, rollout: Rollout) -> dict[str, Any]:
    row: dict[str, Any] = {}
    row["prompt_ids"] = group.prompt_ids if rollout.prompt_ids is None else rollout.prompt_ids
    row["status"] = rollout.status.value
    row.update({name: getattr(rollout, name) for name in OWN})
    row.update({ARRAYS + name: array for name, array in rollout.arrays.items()})
    return row


def from_dicts(rows: Iterable[Mapping[str, Any]]) -> list[Group]:
    """The groups of such dicts, in the order of their first rows. Unknown names are refused."""
    if isinstance(rows, Mapping | str) or not isinstance(rows, Iterable):
        raise InvalidValue(f"from_dicts: expected a list of a dict per rollout, got {shown(rows)}")
    members: dict[Any, list[Rollout]] = {}
    shared: dict[Any, dict[str, Any]] = {}
    for place, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise InvalidValue(f"row {place}: expected a dict per rollout, got {shown(row)}")
        key = row.get("group_id")
        if key is not None and not isinstance(key, str):
            raise InvalidValue(f"row {place}: group_id: expected text, got {shown(key)}")
        key = place if key is None else key  # a rollout without a group is one by itself
        about = shared.setdefault(key, {})
        for name in (*SHARED, *OF_GROUP):
            value = row.get(name)
            if value is None:
                continue
            known = about.setdefault(name, value)
            if name == "task" and known != value:
                raise InvalidValue(
                    f"row {place}: task {value!r} in a group that has {about[name]!r}; a group's "
                    "rollouts share it"
                )
        members.setdefault(key, []).append(_rollout(place, row))
    return [_group(shared[key], rollouts) for key, rollouts in members.items()]


def _rollout(place: int, row: Mapping[str, Any]) -> Rollout:
    known = {*OWN, *SHARED, *OF_GROUP, "prompt_ids", "status"}
    arrays = {}
    for name, value in row.items():
        if isinstance(name, str) and name.startswith(ARRAYS):
            if value is not None:
                arrays[name[len(ARRAYS) :]] = value
        elif name not in known:
            raise InvalidValue(
                f"row {place}: {name!r} is no part of a rollout; arrays are called arrays.NAME, "
                "and scalars go in extras"
            )
    given = {name: row[name] for name in OWN if row.get(name) is not None}
    try:
        return Rollout(row.get("prompt_ids"), status=row.get("status"), arrays=arrays, **given)
    except InvalidValue as wrong:
        raise InvalidValue(f"row {place}: {wrong}") from None


def _group(row: Mapping[str, Any], rollouts: list[Rollout]) -> Group:
    return Group(
        rollouts,
        prompt_ids=row.get("group_prompt_ids"),
        extras=row.get("group_extras"),
        blobs=row.get("group_blobs"),
        **{name: row.get(name) for name in SHARED},
    )


# -- frames and datasets --------------------------------------------------------------------------
def to_columns(groups: Iterable[Group]) -> dict[str, list[Any]]:
    """A list per name, those that are absent in every row left out."""
    rows = to_dicts(groups)
    names = dict.fromkeys(name for row in rows for name in row)
    columns: dict[str, list[Any]] = {}
    for name in names:
        cells = [row.get(name) for row in rows]
        if name in ("extras", "group_extras", "blobs", "group_blobs"):
            cells = [cell or None for cell in cells]
        if name in JSON:
            cells = [None if cell is None else to_json(cell) for cell in cells]
        if any(cell is not None for cell in cells):
            columns[name] = cells
    return columns


def from_columns(columns: Mapping[str, Sequence[Any]]) -> list[Group]:
    """The groups of such lists."""
    names = list(columns)
    rows = []
    for place, cells in enumerate(zip(*columns.values(), strict=True)):
        try:
            row = {name: _cell(name, cell) for name, cell in zip(names, cells, strict=True)}
        except InvalidValue as wrong:
            raise InvalidValue(f"row {place}: {wrong}") from None
        rows.append(row)
    return from_dicts(rows)


def _cell(name: str, cell: Any) -> Any:
    if cell is None or (isinstance(cell, float) and cell != cell and name != "reward"):
        return None
    if name in JSON:
        try:
            return json.loads(cell)
        except (TypeError, ValueError):
            raise InvalidValue(f"{name}: expected JSON text, got {shown(cell)}") from None
    if name in ("blobs", "group_blobs"):
        blobs = named(name, cell)
        return {key: list(values) for key, values in blobs.items() if values is not None}
    if name in WHOLE and isinstance(cell, float) and cell.is_integer():
        return int(cell)  # a frame makes floats of a column where some cells are absent
    return cell


def to_pandas(groups: Iterable[Group]) -> pd.DataFrame:
    """A DataFrame with a row per rollout."""
    import pandas as pd

    return pd.DataFrame({name: pd.Series(cells) for name, cells in to_columns(groups).items()})


def from_pandas(frame: pd.DataFrame) -> list[Group]:
    """The groups of a DataFrame."""
    import pandas as pd

    if not isinstance(frame, pd.DataFrame):
        raise InvalidValue(
            f"from_pandas: expected a pandas.DataFrame, got {shown(frame)}; rc.Groups.from_dicts "
            "takes a list of dicts"
        )
    columns: dict[str, list[Any]] = {}
    for name in frame.columns:
        cells = frame[name].tolist()
        absent = frame[name].isna().tolist()
        columns[str(name)] = [
            None if gone is True else cell for gone, cell in zip(absent, cells, strict=True)
        ]
    return from_columns(columns)


def to_arrow(groups: Iterable[Group]) -> pa.Table:
    """An Arrow table with a row per rollout, which a Hugging Face dataset holds as it is."""
    arrays = {name: _arrow(cells) for name, cells in to_columns(groups).items()}
    return pa.table(arrays)


def _arrow(cells: list[Any]) -> pa.Array:
    """Arrays with several axes become lists of lists."""
    cells = [widened(cell) if isinstance(cell, np.ndarray) else cell for cell in cells]
    here = [cell for cell in cells if cell is not None]
    if not isinstance(here[0], np.ndarray) or here[0].ndim == 1:
        return pa.array(cells)
    lengths = [0 if cell is None else len(cell) for cell in cells]
    values = pa.array(np.concatenate([cell.reshape(-1) for cell in here]))
    inner = here[0].shape[1:]
    for axis in reversed(range(len(inner))):
        if inner[axis]:
            values = pa.FixedSizeListArray.from_arrays(values, inner[axis])
        else:  # Parquet reads no lists of the fixed size 0
            count = sum(lengths) * math.prod(inner[:axis])
            values = pa.LargeListArray.from_arrays(np.zeros(count + 1, np.int64), values)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    absent = pa.array([cell is None for cell in cells])
    return pa.LargeListArray.from_arrays(pa.array(offsets), values, mask=absent)


def from_arrow(table: pa.Table) -> list[Group]:
    """The groups of such a table."""
    return from_columns({name: _cells(name, table.column(name)) for name in table.column_names})


def _cells(name: str, column: pa.ChunkedArray) -> list[Any]:
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks)
    if pa.types.is_fixed_size_list(array.type):
        array = array.cast(pa.large_list(array.type.value_type))
    if not _is_list(array.type):
        plain: list[Any] = array.to_pylist()
        return plain
    values, shape = array.values, []
    while not values.null_count:
        if pa.types.is_fixed_size_list(values.type):
            shape.append(values.type.list_size)
        elif _is_list(values.type) and not len(values.values):
            shape.append(0)
        else:
            break
        values = values.flatten()
    numbers = _numbers(name, array, values, math.prod(shape))
    if numbers is None:
        nested: list[Any] = array.to_pylist()
        return nested
    numbers = numbers.reshape(len(array.values), *shape)
    offsets = array.offsets.to_numpy()
    absent = array.is_null().to_pylist()
    return [
        None if absent[row] else numbers[offsets[row] : offsets[row + 1]]
        for row in range(len(array))
    ]


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _numbers(name: str, array: pa.Array, values: pa.Array, size: int) -> NDArray[Any] | None:
    """The numbers in lists, None where they hold others; an entry has `size` numbers."""
    if pa.types.is_null(values.type):  # nothing but nulls, as of tokens that no weights generated
        values = values.cast(pa.float32())
    if pa.types.is_floating(values.type):
        floats: NDArray[Any] = values.to_numpy(zero_copy_only=False)
        return floats
    if not (pa.types.is_integer(values.type) or pa.types.is_boolean(values.type)):
        return None
    if values.null_count:
        offsets = array.offsets.to_numpy() * size
        nulls = np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))
        nulls = nulls[(nulls >= offsets[0]) & (nulls < offsets[-1])]
        if nulls.size:
            row = int(np.searchsorted(offsets, nulls[0], "right")) - 1
            raise InvalidValue(
                f"row {row}: {name}: expected numbers, got a null, which only floats may have, as "
                "NaN; fill it, or leave the row out"
            )
        values = values.fill_null(0)  # those are in rows that were not selected
    numbers: NDArray[Any] = values.to_numpy(zero_copy_only=False)
    return numbers


def to_dataset(groups: Iterable[Group]) -> Any:
    """A Hugging Face dataset with a row per rollout."""
    return optional("datasets").Dataset(to_arrow(groups))


def from_dataset(dataset: Any) -> list[Group]:
    """The groups of a Hugging Face dataset."""
    if not isinstance(dataset, optional("datasets").Dataset):
        raise InvalidValue(
            f"from_dataset: expected a datasets.Dataset, got {shown(dataset)}; of several splits "
            "give one, such as dataset['train']"
        )
    return from_arrow(dataset.with_format("arrow")[:])
