"""A Batch as frames for the wire: a JSON header, and one frame of bytes per Arrow buffer.

Numbers are copied in neither direction, and there is no pickle. Frames come from anywhere, so all
that they say is checked: they are a batch, or a `SchemaError`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, cast, get_args

import numpy as np

from recollect.data.arrow import checked_shape, from_json, restored, taken_apart, to_json
from recollect.data.batch import Batch, assembled, info_of
from recollect.data.cells import Array, Kind
from recollect.data.column_data import ColumnData, Mask, cleared
from recollect.data.columns import Columns
from recollect.data.dotted_names import check_flat_names
from recollect.data.dtypes import DType, dtype_named, stored_type
from recollect.data.info import info_from_columns, info_to_columns
from recollect.data.ragged import Ragged, check_ragged
from recollect.errors import SchemaError

_FORMAT = 1
_KINDS = ("fixed", *get_args(Kind))
_ENTRY = [str, str, str, list, int, bool]  # name, kind, dtype, shape, rows, optional


def to_frames(batch: Batch) -> list[bytes | memoryview]:
    """Return the batch as a header and one frame per Arrow buffer, without copying numbers.

    >>> import recollect as rc
    >>> from recollect.data.wire import to_frames
    >>> [len(frame) for frame in to_frames(rc.Batch({"reward": [0.5, 1.0]}))][1:]
    [16]
    """
    frames: list[bytes | memoryview] = [b""]
    header: dict[str, Any] = {"recollect": _FORMAT}
    header["rows"] = _add_frames(frames, batch)
    if batch.shared.columns:
        header["shared"] = _add_frames(frames, batch.shared)
    info = info_of(batch)
    if info is not None:
        columns, header["meta"] = info_to_columns(info)
        header["info"] = _add_frames(frames, columns)
    frames[0] = to_json(header)
    return frames


def _add_frames(frames: list[bytes | memoryview], columns: Columns) -> list[Any]:
    described = []
    for name, column in columns.columns.items():
        parts = taken_apart(name, column, columns.present.get(name))
        optional = parts.validity is not None
        described.append([name, parts.kind, parts.stored.name, parts.shape, parts.rows, optional])
        for buffer in (parts.validity, parts.offsets, parts.values):
            if buffer is not None:
                frames.append(buffer.view(np.uint8).data)
    return described


def from_frames(frames: Sequence[Any]) -> Batch:
    """Return the Batch of these frames, over their memory; `SchemaError` if they are not one.

    >>> import recollect as rc
    >>> from recollect.data.wire import from_frames, to_frames
    >>> from_frames(to_frames(rc.Batch({"text": ["left", "right"]})))["text"].to_list()
    ['left', 'right']
    """
    if not frames:
        raise SchemaError("a batch has a header frame, and there is no frame")
    header = from_json(_bytes_of(frames[0]).tobytes())
    if not isinstance(header, dict) or header.get("recollect") != _FORMAT:
        raise SchemaError(f"the first frame is not the header of a batch of format {_FORMAT}")
    rest = iter(frames[1:])
    rows = _read_columns(rest, header.get("rows"))
    shared = _read_columns(rest, header.get("shared", []))
    info = None
    if "info" in header:
        info = info_from_columns(_read_columns(rest, header["info"]), header.get("meta"))
    if any(True for _ in rest):
        raise SchemaError("there are more frames than the header describes")
    return assembled(rows, shared, info)


def _read_columns(frames: Iterator[Any], described: Any) -> Columns:
    columns: dict[str, ColumnData] = {}
    present: dict[str, Mask] = {}
    if not isinstance(described, list):
        raise SchemaError("the header does not describe the columns")
    for entry in described:
        if not isinstance(entry, list) or [type(part) for part in entry] != _ENTRY:
            raise SchemaError(f"the header does not describe a column: {str(entry)[:80]}")
        name, kind, dtype, shape, count, optional = entry
        if kind not in _KINDS or not 0 <= count < 2**48 or name in columns:
            raise SchemaError(f"the header does not describe a column: {str(entry)[:80]}")
        mask = _read_mask(name, frames, count) if optional else None
        shape = checked_shape(name, shape)
        column = _read_column(name, frames, kind, dtype_named(dtype), shape, count)
        columns[name] = column if mask is None else cleared(column, mask)
        if mask is not None:
            present[name] = mask
    check_flat_names(columns)
    return Columns(columns, present or None)


def _read_mask(name: str, frames: Iterator[Any], count: int) -> Mask:
    bits = _read(name, frames, np.dtype(np.uint8), -(-count // 8))
    return np.unpackbits(bits, count=count, bitorder="little").view(np.bool_)


def _read_column(
    name: str, frames: Iterator[Any], kind: str, dtype: DType, shape: tuple[int, ...], count: int
) -> ColumnData:
    offsets = None if kind == "fixed" else _read(name, frames, np.dtype(np.int64), count + 1)
    length = count if offsets is None else int(offsets[-1])
    stored = stored_type(name, dtype).numpy
    flat = restored(name, _read(name, frames, stored, length * prod(shape)), dtype)
    try:
        values = flat.reshape(length, *shape)
    except ValueError as error:  # more dimensions, or larger ones, than an array can have
        raise SchemaError(f"column {name!r} cannot have shape {list(shape)}: {error}") from None
    if offsets is None:
        return values
    column = Ragged._make(values, offsets, cast(Kind, kind))
    check_ragged(name, column)
    return column


def _read(name: str, frames: Iterator[Any], dtype: DType, count: int) -> Array:
    """The next frame as `count` entries; a frame that lies askew in memory is copied."""
    data = _bytes_of(next(frames, None))
    if len(data) != count * dtype.itemsize:
        raise SchemaError(
            f"a frame of column {name!r} has {len(data)} bytes, expected {count * dtype.itemsize}"
        )
    array = data.view(dtype)
    return array if array.flags.aligned else array.copy()


def _bytes_of(frame: Any) -> Array:
    try:
        return np.frombuffer(frame, np.uint8)
    except (TypeError, ValueError, BufferError, AttributeError):
        raise SchemaError(f"expected a frame of bytes, got {type(frame).__name__}") from None
