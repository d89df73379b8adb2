"""Arrow IPC streams of batches whose columns stay the same, written without asking Arrow each time.

Arrow's writer lets go of the GIL a dozen times per batch, and each time the thread that inserts is
next. But two batches with the same columns differ in a few numbers only: how many rows there are,
and where each buffer begins. So Arrow writes what stands before the first body, and for all others
the numbers in it are replaced.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from recollect.data.arrow import Parts, record_batch, taken_apart
from recollect.data.columns import Columns
from recollect.durability.direct_io import BLOCK, WORTH_IT

Array = NDArray[Any]

END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
ZEROS = tuple(bytes(n) for n in range(8))
PREFIX = 8  # bytes before the metadata of a message
MOST_FORMS = 256  # that are kept: a table has few

# Places in the tables of Arrow's Message.fbs, from 0.
HEADER, BODY_LENGTH = 2, 3
LENGTH, NODES, BUFFERS = 0, 1, 2


class Form:
    """What Arrow writes before the body of such a batch, and where its numbers stand."""

    def __init__(self, batch: Any) -> None:
        self._schema = bytes(batch.schema.serialize())
        message = bytes(batch.serialize())
        (size,) = struct.unpack_from("<i", message, 4)
        self._message = message[: PREFIX + size]
        outer = _table(self._message, PREFIX)
        inner = _table(self._message, outer[HEADER])
        self._body_length, self._length = outer[BODY_LENGTH], inner[LENGTH]
        self._nodes, nodes = _structs(self._message, inner[NODES])
        self._buffers, buffers = _structs(self._message, inner[BUFFERS])
        self._pack_nodes = struct.Struct(f"<{2 * nodes}q").pack_into
        self._pack_buffers = struct.Struct(f"<{2 * buffers}q").pack_into

    def stream(
        self, rows: int, nodes: Sequence[int], buffers: Sequence[Array | None], at: int = 0
    ) -> list[Any]:
        """A stream of one batch, in pieces.

        `nodes` are length and number of nulls of each array, `buffers` what each consists of, both
        in Arrow's order; None is a validity that nobody asks for. `at` says where the stream will
        stand: large buffers then begin with a block.
        """
        head = bytearray(self._message)
        pieces: list[Any] = [self._schema, head]
        at += len(self._schema) + len(head)
        offset = 0
        spans: list[int] = []
        for buffer in buffers:
            size = 0 if buffer is None else buffer.nbytes
            if size >= WORTH_IT:
                pieces.append(bytes(-(at + offset) % BLOCK))
                offset += len(pieces[-1])
            spans += (offset, size)
            if size:
                pieces.append(memoryview(buffer).cast("B"))  # type: ignore[arg-type]
                if size % 8:
                    pieces.append(ZEROS[-size % 8])
                offset += size + -size % 8
        struct.pack_into("<q", head, self._length, rows)
        struct.pack_into("<q", head, self._body_length, offset)
        self._pack_nodes(head, self._nodes, *nodes)
        self._pack_buffers(head, self._buffers, *spans)
        pieces.append(END_OF_STREAM)
        return pieces


def _table(data: bytes, offset: int) -> list[int]:
    """Where the fields of a flatbuffer's table stand, found through an offset; 0 if left out."""
    at = offset + struct.unpack_from("<I", data, offset)[0]
    fields = at - struct.unpack_from("<i", data, at)[0]
    size = struct.unpack_from("<H", data, fields)[0]
    found = struct.unpack_from(f"<{size // 2 - 2}H", data, fields + 4)
    return [at + each if each else 0 for each in found]


def _structs(data: bytes, offset: int) -> tuple[int, int]:
    """Where a vector begins, found through an offset, and how many structs it has."""
    at = offset + struct.unpack_from("<I", data, offset)[0]
    return at + 4, struct.unpack_from("<I", data, at)[0]


_forms: dict[Any, Form] = {}


def form_of(schema: Any) -> Form:
    """The form of batches with these columns, made with a row of nulls: Arrow leaves out zeros."""
    nulls = [pa.nulls(1, field.type) for field in schema]
    return Form(pa.RecordBatch.from_arrays(nulls, schema=schema))


def stream_of(columns: Columns, at: int = 0) -> list[Any]:
    """The rows of a batch, or its shared cells, as a stream; its arrays are pieces, not copied."""
    parts = [
        taken_apart(name, column, columns.present.get(name))
        for name, column in columns.columns.items()
    ]
    key = tuple(map(_kind_of, columns.columns, parts))
    form = _forms.get(key)
    if form is None:
        if len(_forms) >= MOST_FORMS:
            _forms.clear()
        form = _forms[key] = form_of(record_batch(columns).schema)
    nodes: list[int] = []
    buffers: list[Array | None] = []
    for each in parts:
        _add(each, nodes, buffers)
    return form.stream(columns.rows, nodes, buffers, at)


def _kind_of(name: str, parts: Parts) -> Any:
    return name, parts.kind, parts.stored.name, parts.shape, parts.validity is not None


def _add(parts: Parts, nodes: list[int], buffers: list[Array | None]) -> None:
    """The arrays that Arrow makes of a column, the outermost first."""
    offsets, values = parts.offsets, parts.values
    validity, absent = parts.validity, 0
    if validity is not None:
        absent = parts.rows - int(np.bitwise_count(validity).sum())
    nodes += (parts.rows, absent)
    buffers.append(validity)
    if offsets is not None:
        begin, end = int(offsets[0]), int(offsets[-1])
        cell = prod(parts.shape)
        if begin or end * cell < values.size:  # some rows of a larger array
            offsets, values = offsets - begin, values[begin * cell : end * cell]
        buffers.append(offsets)
        if parts.kind not in ("str", "bytes"):
            nodes += (end - begin, 0)
            buffers.append(None)
    if parts.shape:
        nodes += (values.size, 0)
        buffers.append(None)
    buffers.append(values)
