"""Frames: a header and a frame per buffer, and damaged ones are read or refused, never worse."""

from __future__ import annotations

import contextlib
import json

import ml_dtypes
import numpy as np
import pytest
from arbitrary_batches import all_bits
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recollect.base.leases import Lease
from recollect.data.batch import Batch
from recollect.data.info import Info
from recollect.data.ragged import Ragged
from recollect.data.wire import from_frames, to_frames
from recollect.errors import SchemaError

EXAMPLE = Batch(
    {
        "obs": {"image": np.ones((3, 2, 2), np.uint8), "flag": [True, False, True]},
        "half": np.ones(3, ml_dtypes.bfloat16),
        "tokens": Ragged(np.arange(4, dtype=np.int32), [0, 1, 3, 4]),
        "text": ["ä", "", "bc"],
        "nothing": np.zeros((3, 0)),
    },
    shared={"prompt": ["one", "two"]},
    info=Info(
        {
            "keys": np.array([4, 9], np.uint64),
            "task": np.array(["math", None], object),
            "row_offsets": np.array([0, 2, 3]),
        },
        10,
        Lease(3, "learner", 5.5),
    ),
    present={"obs.image": [True, True, False], "tokens": [True, True, True]},
)  # fmt: skip


def use(batch):
    """Touch every byte, as a reader would."""
    all_bits(batch)
    repr(batch)
    for column in (*batch.columns.values(), *batch.shared.columns.values()):
        if isinstance(column, Ragged):
            column.to_list()


def read_or_refuse(frames):
    with contextlib.suppress(SchemaError):
        use(from_frames(frames))


def test_frames_are_a_header_and_one_frame_per_buffer():
    frames = to_frames(EXAMPLE)
    header = json.loads(frames[0])
    assert [entry[0] for entry in header["rows"]] == list(EXAMPLE.columns)
    sections = [*header["rows"], *header["shared"], *header["info"]]
    assert len(frames) == 1 + sum(1 + (kind != "fixed") + optional
                                  for _, kind, _, _, _, optional in sections)  # fmt: skip


def test_frames_that_lie_askew_are_read():
    frames = [memoryview(b"x" + bytes(frame))[1:] for frame in to_frames(EXAMPLE)]
    again = from_frames(frames)
    assert all_bits(again) == all_bits(EXAMPLE)
    assert again["tokens"].values.flags.aligned


@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_damaged_frames_are_read_or_refused_and_never_worse(data):
    frames = [bytearray(frame) for frame in to_frames(EXAMPLE)]
    for _ in range(data.draw(st.integers(1, 3))):
        which = data.draw(st.integers(0, len(frames) - 1))
        damage = data.draw(st.sampled_from(["flip", "cut", "grow", "drop", "swap"]))
        if damage == "flip" and frames[which]:
            where = data.draw(st.integers(0, len(frames[which]) - 1))
            frames[which][where] ^= data.draw(st.integers(1, 255))
        elif damage == "cut":
            frames[which] = frames[which][: data.draw(st.integers(0, len(frames[which])))]
        elif damage == "grow":
            frames[which] += data.draw(st.binary(min_size=1, max_size=8))
        elif damage == "drop" and len(frames) > 1:
            del frames[which]
        elif damage == "swap":
            other = data.draw(st.integers(0, len(frames) - 1))
            frames[which], frames[other] = frames[other], frames[which]
    read_or_refuse(frames)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_a_header_that_lies_is_read_or_refused(data):
    frames = to_frames(EXAMPLE)
    header = json.loads(frames[0])
    section = data.draw(st.sampled_from(["rows", "shared", "info", "meta"]))
    if section == "meta" or data.draw(st.integers(0, 5)) == 0:
        header[section] = data.draw(json_values)
    else:
        entry = data.draw(st.sampled_from(header[section]))
        sizes = st.integers(-1, 5) | st.sampled_from([2**31, 2**40, 2**63, 2**64, 10**30])
        plausible = st.sampled_from(["fixed", "array", "str", "bytes", "bool", "uint8", "float64"])
        lie = json_values | sizes | st.lists(sizes, max_size=70) | plausible
        entry[data.draw(st.integers(0, len(entry) - 1))] = data.draw(lie)
    frames[0] = json.dumps(header).encode()
    read_or_refuse(frames)


@given(st.lists(st.binary(max_size=40), max_size=4))
def test_random_frames_are_refused(frames):
    with pytest.raises(SchemaError):
        from_frames(frames)


def changed(change):
    frames = [bytes(frame) for frame in to_frames(Batch({"t": Ragged([1, 2], [0, 2]), "s": ["ä"]}))]
    change(frames)
    return frames


def with_header(**entries):
    return [json.dumps({"recollect": 1, "rows": [], **entries}).encode()]


def offsets(*numbers):
    return np.array(numbers).tobytes()


BAD_FRAMES = {
    "no frames": (lambda: [], "there is no frame"),
    "not bytes": (lambda: [object()], "expected a frame of bytes"),
    "not JSON": (lambda: [b"\x80\x04."], "expected JSON"),
    "deep JSON": (lambda: [b"[" * 100_000], "expected JSON"),
    "other format": (lambda: [b'{"recollect": 2}'], "of format 1"),
    "no rows": (lambda: [b'{"recollect": 1}'], "does not describe the columns"),
    "entry too short": (lambda: with_header(rows=[["a"]]), "does not describe a column"),
    "column twice": (
        lambda: [*with_header(rows=[["a", "fixed", "int8", [], 0, False]] * 2), b"", b""],
        "does not describe a column",
    ),
    "dtype object": (
        lambda: with_header(rows=[["a", "fixed", "object", [], 1, False]]),
        "not the name of a dtype",
    ),
    "count below 0": (
        lambda: with_header(rows=[["a", "fixed", "int8", [], -1, False]]),
        "does not describe a column",
    ),
    "shape that is too large": (
        lambda: [*with_header(rows=[["a", "fixed", "int8", [2**30] * 4, 2, False]]), b""],
        "has 0 bytes",
    ),
    "shape with too many sizes": (
        lambda: [*with_header(rows=[["a", "fixed", "int8", [1] * 70, 1, False]]), b"x"],
        "cannot have shape",
    ),
    "missing frame": (lambda: changed(lambda f: f.pop()), "expected a frame of bytes"),
    "extra frame": (lambda: changed(lambda f: f.append(b"")), "more frames"),
    "offsets beyond the values": (
        lambda: changed(lambda f: f.__setitem__(1, offsets(0, 9))),
        "has 16 bytes, expected 72",
    ),
    "offsets below 0": (lambda: changed(lambda f: f.__setitem__(1, offsets(-1, 2))), "start at 0"),
    "offsets end below 0": (lambda: changed(lambda f: f.__setitem__(1, offsets(0, -2))), "bytes"),
    "text not UTF-8": (lambda: changed(lambda f: f.__setitem__(4, b"\xa4\xc3")), "not UTF-8"),
    "rows of different count": (
        lambda: [
            *with_header(
                rows=[["a", "fixed", "int8", [], 1, False], ["b", "fixed", "int8", [], 2, False]]
            ),
            b"x",
            b"xy",
        ],
        "'a' has 1, 'b' has 2",
    ),
    "info of different counts": (
        lambda: [
            *with_header(
                info=[["a", "fixed", "int8", [], 1, False], ["b", "fixed", "int8", [], 2, False]],
                meta={"table_size": 1, "lease": None},
            ),
            b"x",
            b"xy",
        ],
        "needs arrays of one length, got a, b",
    ),
    "lease that is a list": (
        lambda: with_header(info=[], meta={"table_size": 1, "lease": []}),
        "needs a table_size",
    ),
    "info without arrays": (
        lambda: with_header(info=[], meta={"table_size": 1, "lease": None}),
        "needs arrays of one length, got none",
    ),
    "row_offsets in place of row_starts": (
        lambda: [
            *with_header(
                info=[["row_offsets", "fixed", "int64", [], 0, False]],
                meta={"table_size": 1, "lease": None},
            ),
            b"",
        ],
        "got row_offsets",
    ),
    "row_starts that fall": (
        lambda: [
            *with_header(
                info=[["row_starts", "fixed", "int64", [], 2, False]],
                meta={"table_size": 1, "lease": None, "rows": 3},
            ),
            offsets(0, 9),
        ],
        "row_starts must rise",
    ),
}


@pytest.mark.parametrize("case", BAD_FRAMES)
def test_frames_that_are_not_a_batch_are_refused(case):
    build, message = BAD_FRAMES[case]
    with pytest.raises(SchemaError, match=message):
        from_frames(build())


def test_a_lease_that_json_cannot_express_is_refused():
    info = Info({"keys": np.zeros(1, np.uint64)}, 1, Lease(object(), None, None))
    with pytest.raises(SchemaError, match="cannot be encoded"):
        to_frames(Batch({}, info=info))
    counted = Info({"keys": np.zeros(1, np.uint64)}, np.int64(1), Lease(np.uint64(5), None, None))
    assert from_frames(to_frames(Batch({}, info=counted))).info.lease == (5, None, None)
