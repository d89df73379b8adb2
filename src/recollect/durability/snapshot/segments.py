"""Segments: Arrow IPC files that are written once, hashed meanwhile, and never changed.

`SegmentWriter` writes rows, shared cells or items; `ChangesWriter` writes single columns and
arrays, one to a record batch. `Segments` reads them, each file mapped once.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa

from recollect.base.arrays import Array
from recollect.data.arrow import array_numbers, bytes_array, numbers_array
from recollect.durability.files import LOCAL, Files, Syncing, Written
from recollect.durability.snapshot.plain_arrays import differences, summed
from recollect.errors import SnapshotError

Ref = list[Any]  # [file, record batch], or [file, record batch, first value]

VALUES = ("uint8", "int8", "int32", "int64", "uint64", "float64")
CHANGES = pa.schema(
    [("name", pa.large_utf8())]
    + [(kind, pa.large_list(pa.type_for_alias(kind))) for kind in VALUES]
)
_NOTHING = {kind: pa.nulls(1, CHANGES.field(kind).type) for kind in VALUES}
COMPRESSIONS = (None, "lz4", "zstd")
DIFFERENCES = ("key", "slot")  # columns of items that are written as differences
_DIFFERENCES = b"recollect.differences"  # what the metadata of such a column has


def file_name(table: str, kind: str, run: str, number: int | None = None) -> str:
    """What a segment is called."""
    end = "" if number is None else f"-{number}"
    return f"{quote(table, safe='-_')}.{kind}-{run}{end}.arrow"


class SegmentWriter:
    """Writes record batches of one schema to one file, which is made with the first of them."""

    def __init__(
        self, folder: Path, name: str, syncing: Syncing, files: Files, compression: str | None
    ) -> None:
        self.name = name
        self.batches = 0
        self.values = 0
        self._path = folder / name
        self._syncing, self._files = syncing, files
        self._options = pa.ipc.IpcWriteOptions(compression=compression)
        self._file: Written | None = None
        self._writer: Any = None

    def write(self, batch: Any, values: int = 0) -> Ref:
        """Write one record batch; returns how a manifest names it."""
        if self._file is None:
            self._file = self._files.create(self._path, hold=True)
            self._writer = pa.ipc.new_file(self._file, batch.schema, options=self._options)
        if self._options.compression is None:
            self._file.expect(batch.nbytes)
        self._writer.write_batch(batch)
        self.batches += 1
        self.values += values
        return [self.name, self.batches - 1]

    def close(self) -> dict[str, Any] | None:
        """Finish the file and let it be synced; returns its entry, None where nothing came."""
        if self._file is None:
            return None
        self._writer.close()
        self._writer = None
        entry: dict[str, Any] = {"bytes": self._file.bytes, "xxh3": self._file.xxh3}
        if self.values:
            entry["values"] = self.values
        self._syncing.add(self._file)
        self._file = None
        return entry

    def abandon(self) -> None:
        """Give up what was begun: the folder is about to be removed."""
        if self._file is not None:
            self._file.close()
            self._file = self._writer = None


def items_batch(columns: Mapping[str, Array]) -> Any:
    """Fields of items as a record batch; keys and slots are runs, and written as differences."""
    fields, arrays = [], []
    for name, column in columns.items():
        metadata = None
        if name in DIFFERENCES:
            column, metadata = differences(column), {_DIFFERENCES: b"1"}
        arrays.append(numbers_array(column))
        fields.append(pa.field(name, arrays[-1].type, metadata=metadata))
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


class ChangesWriter(SegmentWriter):
    """Writes arrays, each as a record batch of one row."""

    def add(self, name: str, array: Array) -> Ref:
        """Write one array; returns how a manifest names it."""
        flat = np.ascontiguousarray(array)
        return self.write(_one_list(name, flat), flat.size)


def _one_list(name: str, array: Array) -> Any:
    columns = [bytes_array([name.encode()], pa.large_utf8())]
    for kind in VALUES:
        type_ = pa.large_list(pa.type_for_alias(kind))
        if array.dtype.name != kind:
            columns.append(_NOTHING[kind])
            continue
        offsets = pa.py_buffer(np.array([0, array.size], np.int64))
        values = pa.Array.from_buffers(type_.value_type, array.size, [None, pa.py_buffer(array)])
        columns.append(pa.Array.from_buffers(type_, 1, [None, offsets], children=[values]))
    return pa.RecordBatch.from_arrays(columns, schema=CHANGES)


def _undone(field: Any, column: Array) -> Array:
    return summed(column) if _DIFFERENCES in (field.metadata or {}) else column


class Segments:
    """The files of a snapshot, as they are read; an error names the file that is damaged."""

    def __init__(self, folder: str | os.PathLike[str], files: Files = LOCAL) -> None:
        self._folder = Path(folder)
        self._files = files
        self._data: dict[str, memoryview] = {}
        self._open: dict[str, Any] = {}
        self._arrays: dict[tuple[str, int], dict[str, Array]] = {}

    def data(self, name: str) -> memoryview:
        """The content of a file, mapped once."""
        if name not in self._data:
            path = self._folder / name
            try:
                self._data[name] = self._files.read(path)
            except FileNotFoundError:
                raise SnapshotError(f"{path} is missing; the snapshot cannot be used") from None
            except OSError as error:
                raise SnapshotError(f"{path} cannot be read: {error}") from error
        return self._data[name]

    def reader(self, name: str) -> Any:
        """The Arrow reader of a file."""
        if name not in self._open:
            try:
                buffer = pa.py_buffer(self.data(name))
                self._open[name] = pa.ipc.open_file(pa.BufferReader(buffer))
            except pa.ArrowException as error:
                raise SnapshotError(f"{self._folder / name} is damaged: {error}") from None
        return self._open[name]

    def batch(self, ref: Ref) -> Any:
        """A record batch, as a manifest names it."""
        name, number, *_ = ref
        reader = self.reader(name)
        try:
            return reader.get_batch(number)
        except (pa.ArrowException, IndexError, ValueError, OSError) as error:
            path = self._folder / name
            raise SnapshotError(f"{path} is damaged: record batch {number}: {error}") from None

    def batches(self, name: str) -> list[Any]:
        """All record batches of a file."""
        return [self.batch([name, place]) for place in range(self.reader(name).num_record_batches)]

    def array(self, ref: Ref, count: int = 0) -> Array:
        """An array that `ChangesWriter` wrote, or so many of its values."""
        file, number, *first = ref
        if (file, number) not in self._arrays:
            batch = self.batch(ref)
            present = [kind for kind in VALUES if batch.column(kind)[0].is_valid]
            if not present:
                raise SnapshotError(f"{self._folder / file} is damaged: batch {number} is empty")
            values = array_numbers(batch.column(present[0]).flatten())
            self._arrays[file, number] = {"": values}
        values = self._arrays[file, number][""]
        return values[first[0] : first[0] + count] if first else values

    def columns(self, ref: Ref, count: int) -> dict[str, Array]:
        """The columns of so many items."""
        file, number, first = ref
        if (file, number) not in self._arrays:
            batch = self.batch(ref)
            self._arrays[file, number] = {
                field.name: _undone(field, array_numbers(column))
                for field, column in zip(batch.schema, batch.columns, strict=True)
            }
        whole = self._arrays[file, number]
        if any(column.size < first + count for column in whole.values()):
            raise SnapshotError(f"{self._folder / file} is damaged: batch {number} is too short")
        return {name: column[first : first + count] for name, column in whole.items()}

    def close(self) -> None:
        """Forget the files; arrays that were read may still be used."""
        self._data.clear()
        self._open.clear()
        self._arrays.clear()
