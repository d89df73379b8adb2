"""Columns as pandas DataFrames and as torch tensors.

Neither package is imported before a call asks for it; without it the error names the extra.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from recollect.base.optional import optional
from recollect.data.cells import Array
from recollect.data.column_data import ColumnData, Mask, as_column, spread
from recollect.data.dotted_names import check_flat_names, nest
from recollect.data.ragged import Ragged
from recollect.errors import SchemaError, shown

if TYPE_CHECKING:
    import pandas as pd


# pandas


def to_pandas(columns: Mapping[str, ColumnData], present: Mapping[str, Mask]) -> pd.DataFrame:
    """`Columns.to_pandas`, of columns and masks by dotted name."""
    pandas = optional("pandas")
    frame: pd.DataFrame = pandas.DataFrame(
        {name: _series(pandas, c, present.get(name)) for name, c in columns.items()}
    )
    return frame


def _series(pandas: Any, column: ColumnData, present: Mask | None) -> Any:
    cells: Any
    dtype: Any
    if present is not None and not present.any():
        return pandas.Series([None] * len(present), dtype=_dtype_of_absent(column))
    if isinstance(column, Ragged) or column.ndim > 1:
        is_text = isinstance(column, Ragged) and column.kind == "str"
        cells, dtype = list(column), "str" if is_text else object
    else:
        cells, dtype = _for_pandas(column), None
    if present is not None:
        cells = [cell if there else None for cell, there in zip(cells, present, strict=True)]
        dtype = object
    return pandas.Series(cells, dtype=dtype)


def _dtype_of_absent(column: ColumnData) -> str:
    """The dtype that tells what a column without a single cell holds; object where none does."""
    if isinstance(column, Ragged):
        return "str" if column.kind == "str" else "object"
    kind, bits = column.dtype.kind, 8 * column.itemsize
    if column.ndim > 1 or kind not in "iufb" or (kind == "f" and bits not in (32, 64)):
        return "object"
    return {"i": f"Int{bits}", "u": f"UInt{bits}", "f": f"Float{bits}", "b": "boolean"}[kind]


def widened(array: Array) -> Array:
    """An array of numbers that others have: those of ml_dtypes become float32, or int8."""
    if array.dtype.type.__module__ == "ml_dtypes":
        return array.astype(np.int8 if "int" in array.dtype.name else np.float32)
    return array


def _for_pandas(array: Array) -> Array:
    array = widened(array)
    if array.dtype.kind in "Mm":  # pandas has no units such as 25 s
        return array.astype(f"{array.dtype.kind}8[{np.datetime_data(array.dtype)[0]}]", copy=False)
    return array


def from_pandas(frame: pd.DataFrame) -> tuple[dict[str, ColumnData], dict[str, Mask]]:
    """Return what `Batch.from_pandas` makes a Batch of: columns and masks by dotted name.

    A column without a cell, whose dtype does not tell what it holds either, is left out.
    """
    columns: dict[str, ColumnData] = {}
    present: dict[str, Mask] = {}
    if not isinstance(frame, optional("pandas").DataFrame):
        raise SchemaError(f"frame: expected a pandas DataFrame, got {shown(frame)}")
    if not frame.columns.is_unique:
        raise SchemaError("two columns of the DataFrame have one name: rename one")
    for name in frame.columns:
        column, mask = _from_series(str(name), frame[name])
        if column is None:
            continue
        columns[name] = column
        if mask is not None:
            present[name] = mask
    if not columns and len(frame.columns):
        raise SchemaError(
            "no column of the DataFrame has a cell, or a dtype, that tells what it holds; give one "
            f"with frame.astype({{{str(frame.columns[0])!r}: 'Float64'}})"
        )
    check_flat_names(columns)
    return columns, present


def _from_series(name: str, series: pd.Series[Any]) -> tuple[ColumnData | None, Mask | None]:
    if isinstance(series.dtype, np.dtype) and series.dtype.kind != "O":
        return as_column(name, series.to_numpy()), None
    missing = series.isna().to_numpy(dtype=bool)
    cells = series[~missing].to_numpy()
    if not len(cells) and series.dtype == "str":
        column: ColumnData = Ragged.from_list([], dtype=str)
    elif not len(cells) and cells.dtype.kind == "O":
        return None, None
    else:
        column = as_column(name, cells)
    return (spread(column, ~missing), ~missing) if missing.any() else (column, None)


# torch


class RaggedTensor(NamedTuple):
    """A ragged column as tensors: row i is `values[offsets[i]:offsets[i + 1]]`.

    >>> import recollect as rc
    >>> rc.Batch({"tokens": [[1, 2], [3]]}).to_torch()["tokens"].offsets
    tensor([0, 2, 3])
    """

    values: Any
    offsets: Any


def to_torch(columns: Mapping[str, ColumnData], device: Any, pin_memory: bool) -> dict[str, Any]:
    """`Columns.to_torch`, of columns by dotted name."""
    torch = optional("torch")

    def tensor(name: str, array: Array) -> Any:
        made = _tensor(torch, name, array)
        if pin_memory:
            made = made.pin_memory()
        return made if device is None else made.to(device, non_blocking=pin_memory)

    flat: dict[str, Any] = {}
    for name, column in columns.items():
        if not isinstance(column, Ragged):
            flat[name] = tensor(name, column)
        elif column.kind == "array":
            flat[name] = RaggedTensor(tensor(name, column.values), tensor(name, column.offsets))
        else:
            flat[name] = column.to_list()
    return nest(flat)


def _tensor(torch: Any, name: str, array: Array) -> Any:
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()  # torch has neither read-only tensors nor negative strides
    if array.dtype.type.__module__ != "ml_dtypes":
        return torch.from_numpy(array.view(np.int64) if array.dtype.kind in "Mm" else array)
    dtype = getattr(torch, array.dtype.name, None)
    if dtype is None or not dtype.is_floating_point:
        raise SchemaError(
            f"column {name!r} is {array.dtype.name}, which torch does not have; convert it, or "
            "leave it out"
        )
    return torch.from_numpy(array.view(f"uint{8 * array.itemsize}")).view(dtype)
