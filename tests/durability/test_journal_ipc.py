"""Streams that are put together from a form: a reader finds in them what Arrow would write."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pyarrow as pa
import pytest

import recollect as rc
from recollect.data.ragged import Ragged
from recollect.durability.direct_io import BLOCK, WORTH_IT
from recollect.durability.journal import ipc as journal_ipc
from recollect.durability.journal.ipc import stream_of
from recollect.durability.journal.records import INSERTED, REMOVED, Entry, _effects

WORDS = ["", "a", "two words", "ä"]


def batches(count: int) -> list[rc.Batch]:
    """Columns of every kind, alone and together."""
    rng = np.random.default_rng(count)
    lengths = np.arange(count) % 4
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    total = int(offsets[-1])
    words = [WORDS[k % 4].encode() for k in range(count)]
    text = np.frombuffer(b"".join(words), np.uint8)
    ends = np.concatenate([[0], np.cumsum([len(word) for word in words])]).astype(np.int64)
    columns = {
        "scalar": np.arange(count, dtype=np.int16),
        "image": rng.integers(0, 9, (count, 3, 5)).astype(np.uint8),
        "bool": rng.random(count) < 0.5,
        "half": rng.random((count, 3)).astype(ml_dtypes.bfloat16),
        "time": np.arange(count).astype("datetime64[s]"),
        "ragged": rc.Ragged(rng.random(total).astype(np.float32), offsets),
        "vectors": rc.Ragged(rng.integers(0, 9, (total, 2)).astype(np.int8), offsets),
        "text": Ragged._make(text, ends, "str"),
        "bytes": Ragged._make(text, ends, "bytes"),
    }
    alone = [rc.Batch({name: column}) for name, column in columns.items()]
    return [*alone, rc.Batch(columns)]


def read(pieces: list[object]) -> pa.RecordBatch:
    reader = pa.ipc.open_stream(b"".join(pieces))  # type: ignore[arg-type]
    (batch,) = list(reader)
    batch.validate(full=True)
    return batch


def written_by_arrow(batch: rc.Batch) -> pa.RecordBatch:
    return batch.to_arrow().rows


@pytest.mark.parametrize("count", [0, 1, 2, 7, 8, 9, 100])
def test_a_stream_holds_what_arrow_would_write(count: int) -> None:
    for batch in batches(count):
        for _ in range(2):  # the first one makes the form
            found = read(stream_of(batch))
            assert found.schema.equals(written_by_arrow(batch).schema, check_metadata=True)
            assert found.equals(written_by_arrow(batch))


def test_a_form_serves_batches_of_any_length() -> None:
    journal_ipc._forms.clear()
    for count in (3, 1, 50, 4):
        batch = batches(count)[-1]
        assert read(stream_of(batch)).equals(written_by_arrow(batch))
    assert len(journal_ipc._forms) == 1
    batch = batches(5)[0]
    assert read(stream_of(batch)).equals(written_by_arrow(batch))
    assert len(journal_ipc._forms) == 2


@pytest.mark.parametrize("present", [[], [0], [3], [0, 1, 2, 3, 4, 5, 6, 7, 8]])
def test_absent_cells_are_nulls(present: list[int]) -> None:
    flags = np.isin(np.arange(9), present)
    whole = batches(9)[-1]
    batch = rc.Batch._make(dict(whole.columns), None, None, dict.fromkeys(whole.columns, flags))
    found, expected = read(stream_of(batch)), written_by_arrow(batch)
    assert [found.column(n).null_count for n in range(found.num_columns)] == [
        9 - len(present)
    ] * found.num_columns
    assert found.equals(expected)


def test_rows_in_the_middle_of_a_larger_array_begin_at_zero() -> None:
    whole = batches(20)[-1]
    some = rc.Batch._make({name: column[5:11] for name, column in whole.columns.items()}, None)
    found = read(stream_of(some))
    assert found.equals(written_by_arrow(whole).slice(5, 6))
    assert found.nbytes < written_by_arrow(whole).nbytes / 2


def test_effects_have_a_row_each() -> None:
    entries = [
        Entry(INSERTED, 0, 4, number=2, keys=np.arange(3, dtype=np.uint64),
              values=np.array([0.5]), per_item=np.array([1], np.int32), at=1.5,
              about={"fields": {"task": "ä"}}),
        Entry(REMOVED, 0, 5, number=3, keys=np.array([7], np.uint64)),
    ]  # fmt: skip
    assert read(_effects(entries)).to_pylist() == [
        {
            "kind": "inserted", "position": 4, "number": 2, "at": 1.5, "keys": [0, 1, 2],
            "values": [0.5], "per_item": [1], "about": '{"fields": {"task": "\\u00e4"}}',
        },
        {
            "kind": "removed", "position": 5, "number": 3, "at": 0.0, "keys": [7],
            "values": [], "per_item": [], "about": None,
        },
    ]  # fmt: skip


@pytest.mark.parametrize("at", [0, 8, 4096 + 16])
def test_large_buffers_begin_with_a_block(at: int) -> None:
    columns = {"a": np.arange(400, dtype=np.int8), "x": np.ones((400, 1024), np.float32)}
    batch = rc.Batch({**columns, "y": np.zeros((400, 1000)), "z": np.arange(400)})
    pieces = stream_of(batch, at)
    large = 0
    for piece in pieces:
        if len(piece) >= WORTH_IT:
            assert at % BLOCK == 0
            large += 1
        at += len(piece)
    assert large == 2
    assert read(pieces).equals(written_by_arrow(batch))
