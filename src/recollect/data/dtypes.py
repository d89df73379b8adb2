"""Which NumPy dtypes a column may have, and how each is stored in Arrow.

The one owner of that question. Stored are bool, integers and floats of 1 to 8 bytes, the 1- and
2-byte types of `ml_dtypes` (bfloat16, float8, int4, ...), and datetimes with a unit. A dtype that
Arrow has no equal of travels as integers of the same size, with its name as a marker, so that
bytes never change. `ml_dtypes` is imported only when a name asks for it.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from recollect.errors import SchemaError

DType: TypeAlias = np.dtype[Any]

_PLAIN = {
    np.dtype(name): getattr(pa, arrow)()
    for name, arrow in [
        *((f"{sign}int{bits}",) * 2 for sign in ("", "u") for bits in (8, 16, 32, 64)),
        *((f"float{bits}",) * 2 for bits in (16, 32, 64)),
    ]
}
_FROM_ARROW = {arrow: dtype for dtype, arrow in _PLAIN.items()}
_UNSIGNED: dict[int, DType] = {1: np.dtype(np.uint8), 2: np.dtype(np.uint16)}
_ARROW_UNITS = ("s", "ms", "us", "ns")
_TIME = re.compile(r"(datetime64|timedelta64)\[\d{0,9}(Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\]")

_ADVICE = {
    "c": "store the real and the imaginary part as two columns",
    "W": "store the real and the imaginary part as two columns",
    "f": "convert it with .astype(np.float64)",
    "O": "pass one array per column, or a list of str, bytes or arrays",
    "V": "pass a dict with one array per field",
    "S": "pass a list of bytes",
    "U": "pass a list of str",
    "T": "pass a list of str",
    "M": "give it a unit, such as .astype('datetime64[ns]')",
    "m": "give it a unit, such as .astype('timedelta64[ns]')",
}


class StoredType(NamedTuple):
    """How a dtype is stored: Arrow's type, the NumPy dtype of the same bytes, and its name.

    A field whose Arrow type does not say the dtype carries the name as a marker.
    """

    arrow: Any
    numpy: DType
    name: str
    marked: bool = False


def check_dtype(name: str, dtype: DType) -> None:
    """Raise `SchemaError` unless a column may have this dtype.

    >>> from recollect.data.dtypes import check_dtype
    >>> check_dtype("reward", np.dtype(np.float32))
    >>> check_dtype("wave", np.dtype(np.complex64))
    Traceback (most recent call last):
    ...
    recollect.errors.SchemaError: column 'wave' has dtype complex64, which cannot be stored: store
    the real and the imaginary part as two columns
    """
    if not dtype.isnative:
        native = dtype.newbyteorder("=").name
        raise SchemaError(
            f"column {name!r} has dtype {dtype.str}, whose bytes are in foreign order: "
            f"convert it with .astype(np.{native})"
        )
    if _stored(dtype) is None:
        advice = _ADVICE.get(dtype.kind, "convert it to a NumPy number type")
        raise SchemaError(
            f"column {name!r} has dtype {dtype.name}, which cannot be stored: {advice}"
        )


def stored_type(name: str, dtype: DType) -> StoredType:
    """Return how the column of this name and dtype is stored, or raise `SchemaError`.

    >>> from recollect.data.dtypes import stored_type
    >>> stored_type("done", np.dtype(bool))
    StoredType(arrow=DataType(int8), numpy=dtype('int8'), name='bool', marked=True)
    """
    check_dtype(name, dtype)
    stored = _stored(dtype)
    assert stored is not None
    return stored


@lru_cache(maxsize=256)
def _stored(dtype: DType) -> StoredType | None:
    if dtype in _PLAIN:
        return StoredType(_PLAIN[dtype], dtype, dtype.name)
    if dtype.kind == "b":
        return StoredType(pa.int8(), np.dtype(np.int8), "bool", marked=True)
    if dtype.kind in "Mm":
        return _stored_time(dtype)
    plain = _UNSIGNED.get(dtype.itemsize)
    if dtype.type.__module__ == "ml_dtypes" and plain is not None:
        return StoredType(_PLAIN[plain], plain, dtype.name, marked=True)
    return None


def _stored_time(dtype: DType) -> StoredType | None:
    unit, count = np.datetime_data(dtype)
    if unit == "generic":
        return None
    int64 = np.dtype(np.int64)
    if count == 1 and unit in _ARROW_UNITS:
        arrow = pa.timestamp(unit) if dtype.kind == "M" else pa.duration(unit)
        return StoredType(arrow, int64, dtype.name)
    return StoredType(pa.int64(), int64, dtype.name, marked=True)


def dtype_named(name: str) -> DType:
    """Return the dtype that has this name (`dtype.name`), if it is one that may be stored.

    >>> from recollect.data.dtypes import dtype_named
    >>> dtype_named("bfloat16").itemsize
    2
    """
    try:
        dtype = _named(name)
    except (ValueError, TypeError, OverflowError):
        dtype = None
    if dtype is None or _stored(dtype) is None:
        raise SchemaError(f"{name!r} is not the name of a dtype that can be stored")
    return dtype


@lru_cache(maxsize=256)
def _named(name: str) -> DType | None:
    if _TIME.fullmatch(name) or name == "bool":
        return np.dtype(name)
    for dtype in _PLAIN:
        if dtype.name == name:
            return dtype
    import ml_dtypes

    kind = getattr(ml_dtypes, name, None)
    if not (isinstance(kind, type) and issubclass(kind, np.generic)):
        return None
    return np.dtype(kind)


def restored_dtype(name: str, arrow: Any, marker: str | None) -> DType:
    """Return the dtype of a column from its Arrow type and its marker: `stored_type` undone.

    >>> import pyarrow as pa
    >>> from recollect.data.dtypes import restored_dtype
    >>> restored_dtype("done", pa.int8(), "bool")
    dtype('bool')
    """
    if marker is not None:
        dtype = dtype_named(marker)
        if stored_type(name, dtype).arrow != arrow:
            raise SchemaError(f"column {name!r} is marked as {marker}, but holds Arrow's {arrow}")
        return dtype
    if arrow in _FROM_ARROW:
        return _FROM_ARROW[arrow]
    if pa.types.is_timestamp(arrow):  # with a time zone Arrow counts UTC, as NumPy does
        return np.dtype(f"datetime64[{arrow.unit}]")
    if pa.types.is_duration(arrow):
        return np.dtype(f"timedelta64[{arrow.unit}]")
    raise SchemaError(
        f"column {name!r} holds Arrow's {arrow}, which cannot be stored: cast it to numbers, "
        "strings, binary, or lists of numbers"
    )
