"""Effects as records of the journal, and back. `docs/format.md` says how they look.

A record holds what happened since the last one, up to one moment for each member (a table or a
buffer): per member a row for each effect, in order, and the rows of payload that came with them.
It is read as a whole or not at all.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from recollect.base.arrays import Array, Keys
from recollect.data.arrow import ArrowBatch, bytes_array, numbers_array, record_batch
from recollect.data.batch import Batch
from recollect.data.columns import Columns
from recollect.data.ragged import Ragged
from recollect.data.schema import Rows, Schema
from recollect.durability.format import read_record, stream_pieces
from recollect.durability.journal.log import Sections
from recollect.durability.journal.payload import Payload, read_all
from recollect.errors import JournalError, SnapshotError

NO_KEYS = np.zeros(0, np.uint64)
NO_VALUES = np.zeros(0, np.float64)
NO_ROWS = np.zeros(0, np.int32)
EFFECTS = pa.schema(
    [
        ("kind", pa.string()),
        ("position", pa.int64()),
        ("number", pa.int64()),
        ("at", pa.float64()),
        ("keys", pa.large_list(pa.uint64())),
        ("values", pa.large_list(pa.float64())),
        ("per_item", pa.large_list(pa.int32())),
        ("about", pa.large_string()),
    ]
)

# What happened. Those of tables are effects; the last four are no effects and have no number.
INSERTED, REMOVED, UPDATED, AMENDED = "inserted", "removed", "updated", "amended"
LEASED, RETURNED, ARCHIVED, COLUMNS = "leased", "returned", "archived", "columns"
STEPS, WEIGHED, CLEARED = "steps", "weighed", "cleared"
SAMPLED, BLOBS, STATE, RESTARTED = "sampled", "blobs", "state", "restarted"
MARK = "mark"  # a snapshot was captured here: samples are not added up across it; not written


class Entry:
    """One thing that happened to a member.

    `position` counts what a member has told its journal; `number` is the effect's own.
    """

    __slots__ = (
        "about", "at", "blobs", "keys", "kind", "late", "member", "nbytes", "number", "payload",
        "per_item", "position", "values",
    )  # fmt: skip

    def __init__(
        self,
        kind: str,
        member: int,
        position: int,
        *,
        number: int = 0,
        keys: Keys = NO_KEYS,
        values: Array = NO_VALUES,  # priorities; how often each key was sampled
        per_item: NDArray[np.int32] = NO_ROWS,
        at: float = 0.0,
        about: Mapping[str, Any] | bytes | None = None,  # bytes are JSON already
        payload: Payload | None = None,
        late: Payload | None = None,  # rows of items stored again; final observations of steps
        blobs: Mapping[str, bytes] | None = None,
        nbytes: int = 0,
    ) -> None:
        self.kind, self.member, self.position, self.number = kind, member, position, number
        self.keys, self.values, self.per_item, self.at = keys, values, per_item, at
        self.about, self.payload, self.late, self.blobs = about, payload, late, blobs
        self.nbytes = nbytes


# -- writing --------------------------------------------------------------------------------------
def encode(entries: Sequence[Entry]) -> Sections:
    """The sections of a record of these entries."""
    members: dict[int, list[Entry]] = {}
    for entry in entries:
        members.setdefault(entry.member, []).append(entry)
    sections = Sections()
    for member, told in members.items():
        merged = _merged(told)
        if not merged:
            continue
        sections.add(f"{member}.effects", stream_pieces(_effects(merged)))
        payloads = [(e.payload, e.nbytes) for e in merged if e.payload is not None]
        for place, batch in enumerate(read_all(payloads)):
            sections.add(f"{member}.rows.{place}", stream_pieces(record_batch(batch)))
            if batch.shared.columns:
                shared = stream_pieces(record_batch(batch.shared))
                sections.add(f"{member}.shared.{place}", shared)
        late = [(e.late, e.nbytes) for e in merged if e.late is not None]
        for place, batch in enumerate(read_all(late)):
            sections.add(f"{member}.late.{place}", stream_pieces(record_batch(batch)))
        blobs = {name: blob for e in merged if e.blobs for name, blob in e.blobs.items()}
        if blobs:
            sections.add(f"{member}.blobs", stream_pieces(_blobs(blobs)))
    return sections


def _merged(entries: Sequence[Entry]) -> list[Entry]:
    """The entries to write: samples are added up to one entry, at the end or before a mark."""
    kept: list[Entry] = []
    drawn: list[Entry] = []
    for entry in entries:
        if entry.kind == SAMPLED:
            drawn.append(entry)
            continue
        if entry.kind in (MARK, STATE) and drawn:
            kept.append(_added_up(drawn))
            drawn = []
        if entry.kind != MARK:
            kept.append(entry)
    if drawn:
        kept.append(_added_up(drawn))
    return kept


def _added_up(drawn: Sequence[Entry]) -> Entry:
    keys, times = np.unique(np.concatenate([entry.keys for entry in drawn]), return_counts=True)
    last = drawn[-1]
    return Entry(
        SAMPLED, last.member, last.position, number=last.number, keys=keys,
        values=times.astype(np.float64),
    )  # fmt: skip


def _effects(entries: Sequence[Entry]) -> Any:
    """A record batch with a row per entry."""
    texts = [None if entry.about is None else _text(entry.about) for entry in entries]
    told = np.packbits([text is not None for text in texts], bitorder="little")
    arrays = [
        _texts(pa.string(), np.int32, [entry.kind.encode() for entry in entries]),
        numbers_array(np.array([entry.position for entry in entries], np.int64)),
        numbers_array(np.array([entry.number for entry in entries], np.int64)),
        numbers_array(np.array([entry.at for entry in entries], np.float64)),
        _lists(np.uint64, [entry.keys for entry in entries]),
        _lists(np.float64, [entry.values for entry in entries]),
        _lists(np.int32, [entry.per_item for entry in entries]),
        _texts(pa.large_string(), np.int64, [text or b"" for text in texts], told),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=EFFECTS)


def _text(about: Mapping[str, Any] | bytes) -> bytes:
    return about if isinstance(about, bytes) else json.dumps(about, default=plain).encode()


def plain(value: Any) -> Any:
    """Arrays of fields for JSON, which does not know them. NaN is null, as an absent value is."""
    if isinstance(value, np.ndarray):
        if value.dtype.kind == "f":
            return [None if v != v else v for v in value.tolist()]
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} is not JSON")


def _texts(kind: Any, ends: Any, texts: Sequence[bytes], told: Array | None = None) -> Any:
    """Texts as Arrow has them; `told` has a bit for each that is there."""
    validity = None if told is None else pa.py_buffer(told)
    buffers = [validity, pa.py_buffer(_ends(ends, texts)), pa.py_buffer(b"".join(texts))]
    return pa.Array.from_buffers(kind, len(texts), buffers)


def _lists(dtype: Any, arrays: Sequence[Array]) -> Any:
    """The numbers of each entry, as Arrow has lists."""
    values = numbers_array(np.concatenate(arrays).astype(dtype, copy=False))
    ends = pa.py_buffer(_ends(np.int64, arrays))
    kind = pa.large_list(values.type)
    return pa.Array.from_buffers(kind, len(arrays), [None, ends], children=[values])


def _ends(dtype: Any, parts: Sequence[Any]) -> Array:
    ends = np.zeros(len(parts) + 1, dtype)
    np.cumsum(list(map(len, parts)), out=ends[1:])
    return ends


def _blobs(blobs: Mapping[str, bytes]) -> Any:
    names = bytes_array([name.encode() for name in blobs], pa.large_utf8())
    values = bytes_array(list(blobs.values()), pa.large_binary())
    return pa.record_batch([names, values], ["name", "blob"])


# -- reading --------------------------------------------------------------------------------------
@dataclass(slots=True)
class Told:
    """One thing that happened to a member, as it was read."""

    kind: str
    position: int
    number: int
    keys: Keys
    values: NDArray[np.float64]
    per_item: NDArray[np.int32]
    at: float
    about: dict[str, Any]


@dataclass(slots=True)
class Section:
    """What a record tells of one member."""

    effects: list[Told]
    rows: Cursor
    shared: Cursor
    late: Cursor
    blobs: dict[str, bytes]


class Cursor:
    """Rows of payload, handed out in the order in which they were written."""

    def __init__(self, batches: Sequence[Columns]) -> None:
        self._batches = deque(batches)
        self._at = 0

    @property
    def left(self) -> int:
        """How many rows may be taken at once."""
        while self._batches and self._at >= self._batches[0].rows:
            self._batches.popleft()
            self._at = 0
        return self._batches[0].rows - self._at if self._batches else 0

    def take(self, count: int) -> Columns:
        """The next rows; those of one effect are in one batch."""
        if count > self.left:
            raise JournalError("a record of the journal lacks rows that it tells of")
        begin, self._at = self._at, self._at + count
        return between(self._batches[0], begin, self._at)


def between(columns: Columns, begin: int, end: int) -> Columns:
    """Some rows, copied: kernels read arrays that are aligned and contiguous."""
    if begin == 0 and end == columns.rows and columns.__class__ is Columns:
        return columns  # `between` made them before
    found: dict[str, Any] = {}
    for name, column in columns.columns.items():
        part = column[begin:end]
        if isinstance(part, Ragged):
            values = np.array(part.values)
            found[name] = Ragged._make(values, np.ascontiguousarray(part.offsets), part.kind)
        else:
            found[name] = np.array(part)
    present = {n: np.array(flags[begin:end]) for n, flags in columns.present.items()}
    return Columns(found, present or None)


def rows_of(columns: Columns, schema: Schema) -> Rows:
    """Columns as a storage wants them; a column that was added later is absent."""
    arrays = [columns.columns.get(name) for name in schema.columns]
    present = columns.present
    flags = [present.get(name) for name in schema.columns]
    return Rows(columns.rows, arrays, flags, list(schema.columns))


def decode(payload: memoryview) -> tuple[int, dict[int, Section]]:
    """The number of a record, and what it tells of each member."""
    try:
        header, sections = read_record(payload)
        members = sorted({int(name.partition(".")[0]) for name in sections})
        return header["number"], {member: _section(member, sections) for member in members}
    except (SnapshotError, KeyError, ValueError, pa.ArrowException) as error:
        raise JournalError(f"a record of the journal cannot be read: {error}") from None


def _section(member: int, sections: Mapping[str, Any]) -> Section:
    blobs = {}
    if f"{member}.blobs" in sections:
        batch = sections[f"{member}.blobs"]
        names = batch.column("name").to_pylist()
        blobs = dict(zip(names, batch.column("blob").to_pylist(), strict=True))
    return Section(
        list(_told(sections[f"{member}.effects"])),
        Cursor(_batches(sections, f"{member}.rows")),
        Cursor(_batches(sections, f"{member}.shared")),
        Cursor(_batches(sections, f"{member}.late")),
        blobs,
    )


def _batches(sections: Mapping[str, Any], name: str) -> list[Columns]:
    found: list[Columns] = []
    while f"{name}.{len(found)}" in sections:
        found.append(Batch.from_arrow(ArrowBatch(sections[f"{name}.{len(found)}"])))
    return found


def _told(batch: Any) -> Iterator[Told]:
    plain_columns = {n: batch.column(n).to_pylist() for n in ("kind", "position", "number", "at")}
    about = batch.column("about").to_pylist()
    keys, values, rows = (_arrays(batch.column(n)) for n in ("keys", "values", "per_item"))
    for place, text in enumerate(about):
        yield Told(
            plain_columns["kind"][place],
            plain_columns["position"][place],
            plain_columns["number"][place],
            keys[place],
            values[place],
            rows[place],
            plain_columns["at"][place],
            {} if text is None else json.loads(text),
        )


def _arrays(column: Any) -> list[Array]:
    offsets = column.offsets.to_numpy()
    values = np.array(column.values.to_numpy())
    return [values[offsets[i] : offsets[i + 1]] for i in range(len(column))]
