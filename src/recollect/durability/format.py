"""How things look on disk: version, checksummed frames, records, schemas; see `docs/format.md`.

A journal is frames one after another, each a payload with its length and checksum. The payload is a
record: a JSON header, and sections that are Arrow streams.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import xxhash

from recollect.data.schema import Column, Schema
from recollect.durability.direct_io import WORTH_IT
from recollect.errors import SnapshotError

Piece = bytes | memoryview

FORMAT = 2
FRAME = struct.Struct("<QQ")  # length and checksum of a payload
HEADER = struct.Struct("<I")  # length of a record's JSON header
MOST = 1 << 40  # bytes of a frame: a greater length was never written


class Frame(NamedTuple):
    """A payload that was read whole, and where the next frame begins."""

    payload: memoryview
    next: int


def frame(payload: Sequence[Piece], offset: int) -> list[Piece]:
    """A frame, in pieces, around a payload in pieces; it will stand at an offset of its file."""
    checksum = xxhash.xxh3_64(seed=offset)
    length = 0
    for piece in payload:
        checksum.update(piece)
        length += memoryview(piece).nbytes
    return [FRAME.pack(length, checksum.intdigest()), *payload, bytes(-length % 8)]


def frames(data: memoryview, offset: int = 0) -> Iterator[Frame]:
    """The frames in some bytes, up to the end or to the first that is not whole.

    The last `Frame.next` that was yielded says how much of the bytes is good.
    """
    while offset + FRAME.size <= len(data):
        length, checksum = FRAME.unpack_from(data, offset)
        begin = offset + FRAME.size
        end = begin + length + -length % 8
        if length > MOST or end > len(data):
            return
        payload = data[begin : begin + length]
        if xxhash.xxh3_64_intdigest(payload, seed=offset) != checksum:
            return
        yield Frame(payload, end)
        offset = end


def read_record(payload: memoryview) -> tuple[dict[str, Any], dict[str, Any]]:
    """The header and the record batches of a record; their numbers are views of the payload."""
    try:
        (length,) = HEADER.unpack_from(payload, 0)
        offset = HEADER.size + length
        header: dict[str, Any] = json.loads(bytes(payload[HEADER.size : offset]))
        offset += -offset % 8
        sections = {}
        for name, size in header.pop("sections"):
            buffer = pa.py_buffer(payload[offset : offset + size])
            sections[name] = pa.ipc.open_stream(buffer).read_next_batch()
            offset += size + -size % 8
    except (struct.error, ValueError, TypeError, KeyError, pa.ArrowException) as error:
        raise SnapshotError(f"a record cannot be read: {error}") from None
    return header, sections


def stream_of(batch: Any) -> Any:
    """A record batch as an Arrow IPC stream, in a buffer."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


class _Pieces:
    """A file, to Arrow, that keeps the buffers which are written to it and copies none."""

    closed = False

    def __init__(self) -> None:
        self.written: list[memoryview] = []

    def write(self, data: Any) -> int:
        self.written.append(memoryview(data))
        return len(data)

    def flush(self) -> None:
        """What Arrow calls at the end."""


def stream_pieces(batch: Any) -> list[memoryview]:
    """The same in pieces. The buffers of a large batch are not copied.

    Arrow takes the GIL for each piece that it hands over, and others may hold it: so a small batch
    is copied.
    """
    if batch.nbytes < WORTH_IT:
        return [memoryview(stream_of(batch))]
    pieces = _Pieces()
    with pa.ipc.new_stream(pieces, batch.schema) as writer:
        writer.write_batch(batch)
    return pieces.written


def schema_to_json(schema: Schema | None) -> list[dict[str, Any]] | None:
    """The columns of a schema, as a manifest has them."""
    if schema is None:
        return None
    return [
        {
            "name": name,
            "dtype": str(column.dtype),
            "shape": list(column.shape),
            "ragged": column.ragged,
            "optional": column.optional,
        }
        for name, column in schema.columns.items()
    ]


def schema_from_json(data: Sequence[Mapping[str, Any]] | None, what: str) -> Schema | None:
    """The schema that a manifest describes."""
    if data is None:
        return None
    return Schema({entry["name"]: _column(entry) for entry in data}, what)


def _column(entry: Mapping[str, Any]) -> Column:
    shape = tuple(entry["shape"])
    return Column(entry["dtype"], shape, ragged=entry["ragged"], optional=entry["optional"])


def plain(value: Any) -> Any:
    """NumPy numbers as JSON has them."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not JSON")
