"""Sections of a record: Arrow writes their streams, and large buffers are not copied."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import recollect as rc
from recollect.data.arrow import record_batch
from recollect.durability.direct_io import BLOCK, WORTH_IT
from recollect.durability.format import read_record, stream_pieces
from recollect.durability.journal.log import Sections, _record
from recollect.durability.journal.records import INSERTED, REMOVED, Entry, _effects


def read(pieces: list[memoryview]) -> pa.RecordBatch:
    (batch,) = list(pa.ipc.open_stream(b"".join(pieces)))
    batch.validate(full=True)
    return batch


def test_effects_have_a_row_each() -> None:
    entries = [
        Entry(INSERTED, 0, 4, number=2, keys=np.arange(3, dtype=np.uint64),
              values=np.array([0.5]), per_item=np.array([1], np.int32), at=1.5,
              about={"fields": {"task": "ä"}}),
        Entry(REMOVED, 0, 5, number=3, keys=np.array([7], np.uint64)),
    ]  # fmt: skip
    assert read(stream_pieces(_effects(entries))).to_pylist() == [
        {
            "kind": "inserted", "position": 4, "number": 2, "at": 1.5, "keys": [0, 1, 2],
            "values": [0.5], "per_item": [1], "about": '{"fields": {"task": "\\u00e4"}}',
        },
        {
            "kind": "removed", "position": 5, "number": 3, "at": 0.0, "keys": [7],
            "values": [], "per_item": [], "about": None,
        },
    ]  # fmt: skip


def test_rows_in_the_middle_of_a_larger_array_are_written_alone() -> None:
    whole = rc.Batch({"x": np.arange(20.0), "tokens": [np.arange(k % 4) for k in range(20)]})
    some = rc.Batch._make({name: column[5:11] for name, column in whole.columns.items()}, None)
    found = read(stream_pieces(record_batch(some)))
    assert found.equals(whole.to_arrow().rows.slice(5, 6))
    assert found.nbytes < whole.to_arrow().rows.nbytes / 2


def test_large_buffers_are_not_copied() -> None:
    large = np.ones((400, 1024), np.float32)
    pieces = stream_pieces(record_batch(rc.Batch({"a": np.arange(400), "x": large})))
    addresses = [np.frombuffer(piece, np.uint8).ctypes.data for piece in pieces if len(piece)]
    assert large.ctypes.data in addresses
    assert read(pieces).column("a").to_pylist() == list(range(400))


@pytest.mark.parametrize("at", [0, 8, 4096 + 16])
def test_the_first_large_buffer_of_a_section_begins_with_a_block(at: int) -> None:
    rows = rc.Batch({"a": np.arange(400, dtype=np.int8), "x": np.ones((400, 1024), np.float32)})
    sections = Sections()
    sections.add("0.effects", stream_pieces(_effects([Entry(REMOVED, 0, 1)])))
    for place in range(2):
        sections.add(f"0.rows.{place}", stream_pieces(record_batch(rows)))
    record = _record(7, 5, sections, at)
    position, large = at, 0
    for piece in record:
        if len(piece) >= WORTH_IT:
            assert position % BLOCK == 0
            large += 1
        position += len(piece)
    assert large == 2
    header, read_back = read_record(memoryview(b"".join(record)))
    assert header == {"number": 7, "safe": 5}
    assert list(read_back) == ["0.effects", "0.rows.0", "0.rows.1"]
    for place in range(2):
        assert read_back[f"0.rows.{place}"].equals(rows.to_arrow().rows)
