"""Groups from and to what others use: a list of dicts, a pandas frame, a Hugging Face dataset.

Each form has a row per rollout and the same names; what a group shares is repeated in its rows.
Rows with the same `group_id` make a group again. Arrays stay arrays: no loop goes over tokens.
In frames and datasets, what may be any JSON (`turns`, `extras`, ...) is JSON text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from recollect.errors import InvalidValue, shown
from recollect.optional import optional
from recollect.rollouts.cells import to_json
from recollect.rollouts.checks import named
from recollect.rollouts.group import Group
from recollect.rollouts.rollout import Rollout

if TYPE_CHECKING:
    import pandas as pd

OWN = (
    "response_ids", "logprobs", "loss_mask", "versions", "dispatch_version", "reward", "rewards",
    "finish_reason", "error", "rollout_id", "segment", "attempt", "turns", "extras", "blobs",
)  # fmt: skip
SHARED = ("group_id", "task", "prompt", "ground_truth")
WHOLE = ("dispatch_version", "segment", "attempt")
JSON = ("rewards", "turns", "extras", "group_extras", "prompt", "ground_truth")
ARRAYS = "arrays."


def to_dicts(groups: Iterable[Group]) -> list[dict[str, Any]]:
    """A dict per rollout; other arrays are under `arrays.NAME`, and what is absent is None."""
    return [_to_dict(group, rollout) for group in groups for rollout in group]


def _to_dict(group: Group, rollout: Rollout) -> dict[str, Any]:
    row: dict[str, Any] = {name: getattr(group, name) for name in SHARED}
    row["group_extras"] = group.extras
    row["group_blobs"] = group.blobs
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
        for name in (*SHARED, "prompt_ids", "group_extras", "group_blobs"):
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
    known = {*OWN, *SHARED, "prompt_ids", "status", "group_extras", "group_blobs"}
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
        prompt_ids=row.get("prompt_ids"),
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
        if name in JSON:
            cells = [None if cell is None or cell == {} else to_json(cell) for cell in cells]
        elif name in ("blobs", "group_blobs"):
            cells = [cell or None for cell in cells]
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
    first = next(cell for cell in cells if cell is not None)
    if isinstance(first, np.ndarray) and first.ndim > 1:
        here = [cell for cell in cells if cell is not None]
        values = pa.array(np.concatenate([cell.reshape(-1) for cell in here]))
        for size in reversed(first.shape[1:]):
            values = pa.FixedSizeListArray.from_arrays(values, size)
        lengths = [0 if cell is None else len(cell) for cell in cells]
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        absent = pa.array([cell is None for cell in cells])
        return pa.LargeListArray.from_arrays(pa.array(offsets), values, mask=absent)
    return pa.array(cells)


def from_arrow(table: pa.Table) -> list[Group]:
    """The groups of such a table."""
    return from_columns({name: _cells(table.column(name)) for name in table.column_names})


def _cells(column: pa.ChunkedArray) -> list[Any]:
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks)
    kind = array.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        plain: list[Any] = array.to_pylist()
        return plain
    inner, shape = kind.value_type, []
    while pa.types.is_fixed_size_list(inner):
        shape.append(inner.list_size)
        inner = inner.value_type
    if not (pa.types.is_integer(inner) or pa.types.is_floating(inner)):
        nested: list[Any] = array.to_pylist()
        return nested
    offsets = array.offsets.to_numpy()
    values = array.values
    while pa.types.is_fixed_size_list(values.type):
        values = values.values
    numbers = values.to_numpy().reshape(-1, *shape)
    absent = array.is_null().to_pylist()
    return [
        None if absent[row] else numbers[offsets[row] : offsets[row + 1]]
        for row in range(len(array))
    ]


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
