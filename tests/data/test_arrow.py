"""The Arrow encoding: exact both ways, without copies, and closed to garbage."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pyarrow as pa
import pytest
from arbitrary_batches import DTYPES, SHAPES, all_bits, batches, bits
from hypothesis import given, settings
from hypothesis import strategies as st

from recollect.data.arrow import ArrowBatch
from recollect.data.batch import Batch
from recollect.data.info import Info
from recollect.data.ragged import Ragged
from recollect.errors import SchemaError


def through_ipc(table):
    if table is None:
        return None
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_batch(table)
    return pa.ipc.open_file(sink.getvalue()).read_all()


def through_bytes(batch):
    """As files and streams have it: written as bytes, and read from them."""
    return Batch.from_arrow(ArrowBatch(*map(through_ipc, batch.to_arrow())))


@settings(deadline=None)
@given(batches())
def test_every_batch_round_trips_to_the_bit(batch):
    arrow = batch.to_arrow()
    for table in arrow:
        if table is not None:
            table.validate(full=True)
    assert all_bits(Batch.from_arrow(arrow)) == all_bits(batch)
    assert all_bits(through_bytes(batch)) == all_bits(batch)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_and_shape_round_trips_fixed_and_ragged(dtype, shape):
    fixed = np.ones((4, *shape), np.uint8).astype(dtype)
    mask = np.array([True, False, True, True])
    batch = Batch(
        {"fixed": fixed, "optional": fixed, "ragged": Ragged(fixed, [0, 0, 3, 3, 4])},
        present={"optional": mask, "ragged": ~mask},
    )
    for again in (Batch.from_arrow(batch.to_arrow()), through_bytes(batch)):
        assert all_bits(again) == all_bits(batch)


@settings(deadline=None)
@given(batches(), st.integers(0, 5), st.integers(0, 5))
def test_a_slice_of_the_arrow_rows_is_the_slice_of_the_batch(batch, start, length):
    sliced = Batch.from_arrow(batch.to_arrow().rows.slice(start, length))
    rows = slice(start, start + length)
    for name, column in batch.columns.items():
        assert bits(sliced[name]) == bits(column[rows])
        assert sliced.present.get(name, np.ones(0)).tolist() == (
            batch.present[name][rows].tolist() if name in batch.present else []
        )


def address(array):
    return array.__array_interface__["data"][0]


def test_numbers_are_copied_in_neither_direction():
    batch = Batch(
        {
            "scalar": np.arange(3.0),
            "image": np.zeros((3, 2, 2), np.uint8),
            "flag": np.array([True, False, True]),
            "half": np.ones(3, ml_dtypes.bfloat16),
            "when": np.zeros(3, "M8[h]"),
            "tokens": Ragged(np.arange(4, dtype=np.int32), [0, 1, 3, 4]),
            "hidden": Ragged(np.ones((4, 5), np.float16), [0, 1, 3, 4]),
            "text": ["a", "bc", "d"],
        },
        present={"scalar": [True, False, True], "tokens": [True] * 3},
    )
    arrow = batch.to_arrow().rows
    # The last two buffers of a column are its offsets, where it has any, and its values.
    for name, column in batch.columns.items():
        buffers = arrow.column(name).buffers()
        values = column.values if isinstance(column, Ragged) else column
        assert buffers[-1].address == address(values), name
        if isinstance(column, Ragged):
            assert buffers[1].address == address(column.offsets), name
    again = Batch.from_arrow(arrow)
    for name, column in batch.columns.items():
        other = again[name]
        if isinstance(column, Ragged):
            assert address(other.offsets) == address(column.offsets), name
            column, other = column.values, other.values
        assert address(other) == address(column), name


def test_columns_with_odd_strides_are_made_contiguous():
    image = np.arange(24).reshape(4, 3, 2)
    batch = Batch({"f": image.transpose(0, 2, 1), "back": image[::-1], "every": image[:, ::2, 0]})
    assert all_bits(Batch.from_arrow(batch.to_arrow())) == all_bits(batch)
    assert all_bits(through_bytes(batch)) == all_bits(batch)


def test_nan_payloads_and_negative_zero_survive():
    raw = np.array([0x7FF8000000000001, 0xFFF0000000000123, 1 << 63], np.uint64)
    batch = Batch({"a": raw.view(np.float64)})
    for again in (Batch.from_arrow(batch.to_arrow()), through_bytes(batch)):
        assert again["a"].view(np.uint64).tolist() == raw.tolist()


def test_what_other_readers_see_is_plain_arrow():
    rows = Batch(
        {"flag": [True, False], "x": np.ones((2, 2, 3), "f4"), "t": [[1], [2, 3]], "s": ["a", "b"]},
        present={"s": [True, False]},
    ).to_arrow()
    schema = rows.rows.schema
    assert schema.field("flag").type == pa.int8()
    assert schema.field("flag").metadata == {b"recollect.dtype": b"bool"}
    assert schema.field("x").type == pa.list_(pa.float32(), 6)
    assert json.loads(schema.field("x").metadata[b"recollect.shape"]) == [2, 3]
    assert schema.field("t").type == pa.large_list(pa.int64())
    assert schema.field("s").type == pa.large_utf8()
    assert schema.field("s").metadata == {b"recollect.optional": b"true"}
    assert rows.rows.column("s").to_pylist() == ["a", None]
    assert (rows.shared, rows.info) == (None, None)


def test_info_is_a_record_batch_and_json():
    info = Info({"keys": np.array([4, 5], np.uint64), "task": np.array(["math", None], object)}, 9)
    arrow = Batch({"a": [1, 2]}, info=info).to_arrow()
    assert arrow.info.to_pydict() == {"keys": [4, 5], "task": ["math", None]}
    assert json.loads(arrow.info.schema.metadata[b"recollect.info"]) == {
        "table_size": 9,
        "lease": None,
    }


# Foreign Arrow data

FOREIGN = {
    "list with small offsets": (pa.array([[1, 2], [], [3]]), [[1, 2], [], [3]]),
    "list view": (pa.array([[1, 2], [], [3]], pa.list_view(pa.int8())), [[1, 2], [], [3]]),
    "utf8": (pa.array(["a", "", "c"], pa.utf8()), ["a", "", "c"]),
    "utf8 view": (pa.array(["a", "", "c"], pa.string_view()), ["a", "", "c"]),
    "binary": (pa.array([b"a", b"", b"c"]), [b"a", b"", b"c"]),
    "fixed size binary": (pa.array([b"ab", b"cd", b"ef"], pa.binary(2)), [b"ab", b"cd", b"ef"]),
    "bool": (pa.array([True, False, True]), [True, False, True]),
    "dictionary": (pa.array(["a", "b", "a"]).dictionary_encode(), ["a", "b", "a"]),
    "half": (pa.array(np.array([1, 2, 3], np.float16)), [1, 2, 3]),
    "fixed size list": (pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int16(), 2)),
                        [[1, 2], [3, 4], [5, 6]]),
    "nested fixed size list": (
        pa.array([[[1], [2]]] * 3, pa.list_(pa.list_(pa.int16(), 1), 2)),
        [[[1], [2]]] * 3,
    ),
    "list of bools": (pa.array([[True], [], [False, True]]), [[True], [], [False, True]]),
    "list with null floats": (pa.array([[1.0, None], [], [2.0]]), [[1.0, float("nan")], [], [2.0]]),
}  # fmt: skip


@pytest.mark.parametrize("wrap", ["batch", "sliced", "chunked", "combined", "empty"])
@pytest.mark.parametrize("kind", FOREIGN)
def test_foreign_types_are_accepted(kind, wrap):
    array, cells = FOREIGN[kind]
    table = pa.table({"a": array})
    if wrap == "batch":
        table = pa.RecordBatch.from_arrays([array], ["a"])
    elif wrap == "sliced":
        table, cells = table.slice(1), cells[1:]
    elif wrap == "chunked":
        table, cells = (
            pa.concat_tables([table.slice(2), table, table.slice(1)]),
            (cells[2:] + cells + cells[1:]),
        )
    elif wrap == "empty":
        table, cells = table.slice(3), []
    elif wrap == "combined":
        table = table.combine_chunks()
    column = Batch.from_arrow(table)["a"]
    found = column.to_list() if isinstance(column, Ragged) else list(column)
    assert len(found) == len(cells)
    for one, other in zip(found, cells, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("array", "empty"),
    [
        (pa.array([5, None, 7]), 0),
        (pa.array([1.5, None, 2.5]), 0.0),
        (pa.array([True, None, True]), False),
        (pa.array(["a", None, "c"]), ""),
        (pa.array([b"a", None, b"c"]), b""),
        (pa.array([[1], None, [2]]), []),
        (pa.array([[1], None, [2]], pa.list_view(pa.int64())), []),
        (pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int8(), 2)), [0, 0]),
    ],
    ids=lambda value: str(getattr(value, "type", "")),
)
def test_nulls_are_absent_cells(array, empty):
    for table in (pa.table({"a": array}), pa.table({"a": pa.concat_arrays([array, array])})[1:]):
        batch = Batch.from_arrow(table)
        rows = table.num_rows
        valid = table["a"].combine_chunks().is_valid().to_pylist()
        assert batch.present["a"].tolist() == valid
        for row in range(rows):
            expected = empty if not valid[row] else table["a"][row].as_py()
            np.testing.assert_array_equal(batch["a"][row], expected)


def test_what_lies_under_a_null_is_cleared():
    validity = pa.py_buffer(np.array([0b101], np.uint8))
    numbers = pa.Array.from_buffers(pa.int64(), 3, [validity, pa.py_buffer(np.array([1, 99, 3]))])
    text = pa.Array.from_buffers(
        pa.large_utf8(), 3, [validity, pa.py_buffer(np.array([0, 1, 2, 3])), pa.py_buffer(b"abc")]
    )
    batch = Batch.from_arrow(pa.table({"n": numbers, "t": text}))
    assert batch["n"].tolist() == [1, 0, 3]
    assert batch["t"].to_list() == ["a", "", "c"]


def test_structs_are_nested_columns():
    table = pa.table({"obs": [{"x": 1, "in": {"y": "a"}}, None, {"x": 3, "in": None}]})
    batch = Batch.from_arrow(table)
    assert list(batch.columns) == ["obs.x", "obs.in.y"]
    assert batch["obs"]["x"].tolist() == [1, 0, 3]
    assert batch.present["obs.in.y"].tolist() == [True, False, False]


def test_times_and_tensors_of_arrow_are_accepted():
    day = np.datetime64("2024-02-03")
    stamp = pa.array([day.astype("M8[ms]").astype(object)], pa.timestamp("ms", "Europe/Berlin"))
    tensor = pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(6.0).reshape(1, 2, 3))
    dates = pa.array([day.astype(object)])
    batch = Batch.from_arrow(
        pa.table({"d32": dates, "d64": dates.cast(pa.date64()), "tz": stamp, "t": tensor})
    )
    assert batch["d32"].dtype == "M8[D]"
    assert (batch["d32"] == day).all()
    assert (batch["d64"] == day).all()
    assert (batch["tz"] == day).all()
    assert batch["t"].shape == (1, 2, 3)


def test_tables_that_pandas_made_are_accepted():
    pd = pytest.importorskip("pandas", reason="needs recollect[pandas]")
    cells = [np.array([1.0, np.nan]), np.array([2.0])]
    frame = pd.DataFrame({"t": cells, "s": ["x", None], "c": pd.Categorical(["u", "v"])})
    for data in (pa.Table.from_pandas(frame), frame):
        batch = Batch.from_arrow(data)
        np.testing.assert_array_equal(batch["t"][0], cells[0])
        assert batch["s"].to_list() == ["x", ""]
        assert batch["c"].to_list() == ["u", "v"]


def field(kind, **metadata):
    said = {f"recollect.{name}": value for name, value in metadata.items()}
    return pa.table([pa.array([], kind)], pa.schema([pa.field("a", kind, metadata=said)]))


def raw_text(offsets, data):
    buffers = [None, pa.py_buffer(np.array(offsets)), pa.py_buffer(data)]
    return pa.table({"a": pa.Array.from_buffers(pa.large_utf8(), len(offsets) - 1, buffers)})


two_bytes = pa.array([0, 7], pa.int8())
info_schema = pa.schema([pa.field("keys", pa.int32())], metadata={
    "recollect.info": '{"table_size":1,"lease":null}'})  # fmt: skip

BAD_ARROW = {
    "not Arrow": ([1, 2], "got list"),
    "decimal": (pa.table({"a": pa.array([1], pa.decimal128(5))}), "'a' holds Arrow's decimal"),
    "null type": (pa.table({"a": pa.nulls(2)}), "'a' holds Arrow's null"),
    "lists of text": (pa.table({"a": [["x"]]}), "only numbers fit in lists"),
    "lists of lists": (pa.table({"a": [[[1]]]}), "only numbers fit in lists"),
    "null inside a cell": (pa.table({"a": [[1, None]]}), "null inside"),
    "two columns of one name": (pa.table([[1], [2]], ["a", "a"]), "two columns 'a'"),
    "column and its own parent": (pa.table({"a": [1], "a.b": [2]}), "'a' cannot be a column"),
    "empty part of a name": (pa.table({"a..b": [2]}), "cannot name a column"),
    "marker of another size": (field(pa.int16(), dtype="bool"), "marked as bool"),
    "unknown marker": (field(pa.int16(), dtype="__doc__"), "not the name of a dtype"),
    "marker that imports": (field(pa.int16(), dtype="finfo"), "not the name of a dtype"),
    "shape of another size": (field(pa.list_(pa.int8(), 2), shape="[3]"), "not .3."),
    "shape of a scalar": (field(pa.int8(), shape="[1]"), "not .1."),
    "shape of words": (field(pa.list_(pa.int8(), 2), shape='["x"]'), "says that its shape"),
    "shape not JSON": (field(pa.list_(pa.int8(), 2), shape="["), "expected JSON"),
    "bool of 7": (
        pa.table([two_bytes], field(pa.int8(), dtype="bool").schema),
        "other than 0 and 1",
    ),
    "offsets out of bounds": (raw_text([0, 9, 2], b"ab"), "cannot be read"),
    "offsets that fall": (raw_text([0, 2, 1, 2], b"ab"), "cannot be read"),
    "text not UTF-8": (raw_text([0, 2], b"\xff\xff"), "cannot be read"),
    "info of another dtype": (
        ArrowBatch(pa.table({}), None, pa.table([pa.array([1], pa.int32())], info_schema)),
        "must be uint64",
    ),
    "info without table_size": (
        ArrowBatch(pa.table({}), None, pa.table({"score": [1]})),
        "needs a table_size",
    ),
    "info of lists": (
        ArrowBatch(pa.table({}), None, pa.table({"score": [[1]]})),
        "one number or str per item",
    ),
    "shared against info": (
        ArrowBatch(pa.table({}), pa.table({"p": [1, 2]}), Batch({}, info=Info(
            {"keys": np.zeros(1, np.uint64)}, 1)).to_arrow().info),
        "1 items, and 'p' has 2",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_ARROW)
def test_arrow_data_that_is_not_a_batch_is_refused(case):
    data, message = BAD_ARROW[case]
    with pytest.raises(SchemaError, match=message):
        Batch.from_arrow(data)
