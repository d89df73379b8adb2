"""Batches of every kind of column, as hypothesis strategies, and their bytes to compare."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from hypothesis import strategies as st

from recollect.base.leases import Lease
from recollect.data.batch import Batch, info_of
from recollect.data.dotted_names import flatten
from recollect.data.info import Info, info_arrays
from recollect.data.ragged import Ragged, offsets_of

SMALL = [
    getattr(ml_dtypes, name)
    for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "int4", "uint2")
]
DTYPES = [
    np.dtype(dtype)
    for dtype in (
        *("bool", "float16", "float32", "float64"),
        *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
        *("M8[s]", "M8[ns]", "M8[D]", "M8[25s]", "m8[us]", "m8[h]"),
        *SMALL,
    )
]
SHAPES = [(), (1,), (3,), (2, 3), (0,), (3, 0)]


# Batches of every kind of column. Bytes are random: NaN payloads and -0.0 come by themselves.


@st.composite
def arrays(draw, count, dtypes=DTYPES):
    dtype, shape = draw(st.sampled_from(dtypes)), draw(st.sampled_from(SHAPES))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    size = count * int(np.prod(shape))
    if dtype.kind == "b":
        return rng.integers(0, 2, (count, *shape)).astype(bool)
    raw = rng.integers(0, 256, size * dtype.itemsize).astype(np.uint8)
    return raw.view(dtype).reshape(count, *shape)


@st.composite
def columns(draw, rows):
    kind = draw(st.sampled_from(["fixed", "array", "str", "bytes"]))
    if kind == "fixed":
        return draw(arrays(rows))
    if kind == "array":
        lengths = draw(st.lists(st.integers(0, 4), min_size=rows, max_size=rows))
        return Ragged(draw(arrays(sum(lengths))), offsets_of(lengths))
    cell = st.text(max_size=4) if kind == "str" else st.binary(max_size=4)
    cells = draw(st.lists(cell, min_size=rows, max_size=rows))
    return Ragged.from_list(cells, dtype=str if kind == "str" else bytes)


names = st.text(min_size=1, max_size=4).filter(lambda name: "." not in name)


@st.composite
def trees(draw, rows):
    return draw(
        st.dictionaries(
            names, columns(rows) | st.dictionaries(names, columns(rows), min_size=1), max_size=3
        )
    )


def masks(draw, tree, rows):
    mask = st.lists(st.booleans(), min_size=rows, max_size=rows).map(
        lambda bits: np.array(bits, bool)
    )
    return {name: draw(mask) for name in flatten(tree) if draw(st.booleans())}


@st.composite
def infos(draw, items, rows):
    present = {
        "keys": np.arange(items, dtype=np.uint64) + 2**63,
        "priority": np.linspace(0, 1, items),
        "version": np.full(items, -1),
        "task": np.array(["math", None, "köd"] * items, object)[:items],
        "score": np.linspace(0, 1, items, dtype=np.float32),
    }
    chosen = {name: array for name, array in present.items() if draw(st.booleans())}
    cuts = draw(st.lists(st.integers(0, rows), min_size=items, max_size=items).map(sorted))
    chosen["row_offsets"] = np.array([0, *cuts[1:], rows] if items else [0])
    lease = draw(st.none() | st.just(Lease(7, "learner", 12.5)) | st.just(Lease("a", None, None)))
    return Info(chosen, draw(st.integers(0, 2**40)), lease)


@st.composite
def batches(draw):
    rows, items = draw(st.integers(0, 5)), draw(st.integers(0, 3))
    tree, shared = draw(trees(rows)), draw(trees(items))
    info = draw(infos(items, rows)) if draw(st.booleans()) and (items or not rows) else None
    return Batch(
        tree,
        shared=shared,
        info=info,
        present=masks(draw, tree, rows),
        shared_present=masks(draw, shared, items),
    )


# Oracle: two batches are the same if every byte is.


def bits(column):
    if isinstance(column, Ragged):
        return column.kind, column.offsets.tolist(), *bits(column.values)
    if column.dtype.kind == "O":
        return column.tolist()
    return column.dtype, column.shape, column.tobytes()


def all_bits(batch):
    sections = [batch.columns, batch.present, batch.shared.columns, batch.shared.present]
    result = [{name: bits(column) for name, column in section.items()} for section in sections]
    if info_of(batch) is not None:
        lease = batch.info.lease
        result.append({name: bits(array) for name, array in info_arrays(batch.info).items()})
        result.append((batch.info.table_size, None if lease is None else tuple(lease)))
    return result
