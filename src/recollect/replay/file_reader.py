"""Steps from files: Arrow and Parquet, into a new buffer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from recollect.base.arrays import Array, Ints
from recollect.base.optional import optional
from recollect.data.batch import Batch
from recollect.data.dotted_names import nest
from recollect.errors import InvalidValue, SchemaError
from recollect.replay import step_files
from recollect.replay.change_verbs import InsertSteps
from recollect.replay.core import ReplayCore, ReplayFace
from recollect.replay.incoming import MARKS
from recollect.replay.step_files import ABOUT, KNOWN, is_next, path_of, progress_bar, taken_rows

Columns = dict[str, Array]
Buffer = TypeVar("Buffer", bound=ReplayFace)
Make = Callable[..., Buffer]


def from_arrow(
    make: Make[Buffer], source: Any, progress: bool | None, options: dict[str, Any]
) -> Buffer:
    """`ReplayBuffer.from_arrow`."""
    if isinstance(source, pa.RecordBatch):
        source = pa.Table.from_batches([source])
    if isinstance(source, pa.RecordBatchReader):
        source = source.read_all()  # its environments must be counted before its rows are read
    if isinstance(source, pa.Table):
        batches = source.to_batches(step_files.PIECE_ROWS)
        counted = source.select(_counted(source.schema)).to_batches()
        return _load(make, source.schema, source.num_rows, counted, batches, progress, options)
    path = path_of("source", source)
    with _opened(path, pa.memory_map) as file:
        try:
            reader = pa.ipc.open_file(file)
        except pa.ArrowInvalid:
            file.seek(0)
            return _from_stream(make, path, file, progress, options)
        schema = reader.schema
        names = _counted(schema)
        places = [schema.get_field_index(name) for name in names] or [0]
        narrow = pa.ipc.open_file(file, options=pa.ipc.IpcReadOptions(included_fields=places))
        numbers = range(reader.num_record_batches)
        counted = [narrow.get_batch(number) for number in numbers]
        rows = sum(batch.num_rows for batch in counted)
        counted = counted if names else []
        batches = (reader.get_batch(number) for number in numbers)
        return _load(make, schema, rows, counted, batches, progress, options)


def _counted(schema: Any) -> list[str]:
    """The columns that say how many rows each environment has."""
    return [name for name in ("env_id", "terminated", "truncated") if name in schema.names]


def _from_stream(
    make: Make[Buffer], path: str, file: Any, progress: bool | None, options: dict[str, Any]
) -> Buffer:
    try:
        table = pa.ipc.open_stream(file).read_all()
    except pa.ArrowInvalid as error:
        raise InvalidValue(
            f"source: {path!r} is neither an Arrow file nor an Arrow stream ({error}); "
            "from_parquet reads Parquet files"
        ) from error
    return from_arrow(make, table, progress, options)


def from_parquet(
    make: Make[Buffer], path: Any, progress: bool | None, options: dict[str, Any]
) -> Buffer:
    """`ReplayBuffer.from_parquet`."""
    path = path_of("path", path)
    with _opened(path, pa.OSFile) as opened:
        try:
            file = optional("pyarrow.parquet").ParquetFile(opened)
        except pa.ArrowInvalid as error:
            raise InvalidValue(f"path: {path!r} is no Parquet file ({error})") from error
        schema, rows = file.schema_arrow, file.metadata.num_rows
        names = _counted(schema)
        counted = list(file.iter_batches(columns=names)) if names else []
        return _load(
            make, schema, rows, counted, file.iter_batches(step_files.PIECE_ROWS), progress, options
        )


@contextmanager
def _opened(path: str, how: Any) -> Iterator[Any]:
    try:
        file = how(path)
    except FileNotFoundError as error:
        raise InvalidValue(f"path: {path!r} does not exist") from error
    except OSError as error:
        raise InvalidValue(f"path: {path!r} cannot be read: {error}") from error
    with file:
        yield file


def _load(
    make: Make[Buffer],
    schema: Any,
    rows: int,
    counted: list[Any],
    batches: Iterable[Any],
    progress: bool | None,
    options: dict[str, Any],
) -> Buffer:
    """Make a buffer for a file and fill it, piece by piece."""
    buffer = make(**_options(schema, rows, counted, options))
    loader = StepLoader(buffer.core)
    with progress_bar(rows, "steps read", progress) as bar:
        for batch in batches:
            for begin in range(0, batch.num_rows, step_files.PIECE_ROWS):
                piece = batch.slice(begin, step_files.PIECE_ROWS)
                loader.add(_columns_of(piece))
                bar.update(piece.num_rows)
    loader.finish()
    return buffer


def _options(schema: Any, rows: int, counted: list[Any], given: dict[str, Any]) -> dict[str, Any]:
    """How the buffer is made: what the caller says, else what the file says, else what fits."""
    about = json.loads((schema.metadata or {}).get(ABOUT, b"{}"))
    options = {name: about[name] for name in KNOWN if name in about}
    options.update(given)
    following = [f"next_{name}" for name in options.get("next_from_row", ("obs",))]
    finals = any(name.startswith(outer) for name in schema.names for outer in following)
    counts = _rows_by_environment(rows, counted, finals)
    options.setdefault("num_envs", counts.size)
    options.setdefault("capacity", max(1, int(counts.max())) * options["num_envs"])
    return options


def _rows_by_environment(rows: int, counted: list[Any], finals: bool) -> Ints:
    """How many rows each environment takes, with those of final observations from next_ columns."""
    counts = np.zeros(1, np.int64)
    if not counted:
        counts[0] = rows
    for batch in counted:
        columns = _columns_of(batch)
        envs = columns.get("env_id", np.zeros(batch.num_rows, np.int64))
        if envs.dtype.kind not in "iu" or envs.ndim != 1:
            raise SchemaError(f"column 'env_id': expected whole numbers, got {envs.dtype}")
        if envs.size and int(envs.min()) < 0:
            raise SchemaError("column 'env_id': environments are numbered from 0")
        if finals:
            marks = {n: _bools(n, columns[n]) for n in MARKS if n in columns}
            envs = np.concatenate([envs, envs[_ended(marks)]]) if marks else envs
        found = np.bincount(envs.astype(np.int64), minlength=counts.size)
        found[: counts.size] += counts
        counts = found
    return counts


def _columns_of(data: Any) -> Columns:
    batch = Batch.from_arrow(data)
    for name, mask in batch.present.items():
        if not mask.all():
            raise SchemaError(
                f"column {name!r} has nulls, and a step has a cell in each column; fill them, or "
                "leave the column out"
            )
    for name, column in batch.columns.items():
        if not isinstance(column, np.ndarray):
            raise SchemaError(
                f"column {name!r} has cells of different lengths, and those of steps have one "
                "shape; pad it, or leave it out"
            )
    return dict(batch.columns)  # type: ignore[arg-type]


class StepLoader:
    """Puts the rows of a file into a buffer, piece by piece.

    A final observation belongs to the step before it, and may be the first row of the next piece.
    So the last step of a piece is kept back until then where it ends an episode.
    """

    def __init__(self, core: ReplayCore) -> None:
        self._core = core
        self._next = core.options.next_from_row
        self._kept: Columns | None = None
        num_envs = core.options.num_envs
        self._last = np.full(num_envs, -1, np.int64)  # the step of each environment's last
        self._open = np.zeros(num_envs, np.bool_)  # whether its episode goes on

    def add(self, columns: Columns) -> None:
        """The next rows."""
        count = len(next(iter(columns.values())))
        if "env_id" not in columns:
            columns["env_id"] = np.zeros(count, np.int64)
        for name in (*MARKS, "final"):
            if name in columns:
                columns[name] = _bools(name, columns[name])
        if self._kept is not None:
            columns = {name: np.concatenate([self._kept[name], c]) for name, c in columns.items()}
            self._kept = None
        order = np.argsort(columns["env_id"], kind="stable")
        columns = {name: column[order] for name, column in columns.items()}
        if "final" in columns:
            columns = self._keep_back(columns)
        self._insert(columns)

    def finish(self) -> None:
        """There are no more rows."""
        if self._kept is not None:
            kept, self._kept = self._kept, None
            self._insert(kept)

    def _keep_back(self, columns: Columns) -> Columns:
        """Keep the last row of an environment for the next piece where it ends an episode."""
        envs = columns["env_id"]
        last = np.append(envs[1:] != envs[:-1], [True] * min(1, envs.size))
        keep = last & _ended(columns) & ~columns["final"]
        if keep.any():
            self._kept = {name: column[keep] for name, column in columns.items()}
            columns = {name: column[~keep] for name, column in columns.items()}
        return columns

    def _insert(self, columns: Columns) -> None:
        envs = columns.pop("env_id").astype(np.int64)
        if not envs.size:
            return
        core = self._core
        if int(envs.max()) >= core.options.num_envs:
            raise InvalidValue(
                f"num_envs: the file has steps of environment {int(envs.max())}, and the buffer "
                f"has {core.options.num_envs}; leave num_envs out, or give more"
            )
        finals = columns.pop("final", np.zeros(envs.size, np.bool_))
        steps = columns.pop("step", None)
        begins = np.append(True, envs[1:] != envs[:-1])  # the first row of an environment here
        if steps is not None:
            self._check_steps(envs, steps.astype(np.int64), begins, columns, finals)
        if "first" in columns:
            self._begin(envs, steps, begins, columns["first"])
        ended = _ended(columns)
        has_final, final_obs = self._finals(columns, finals, envs, ended)
        for place in np.flatnonzero(np.append(envs[1:] != envs[:-1], True)):
            self._open[envs[place]] = not (ended[place] or finals[place])
        taken = ~finals
        given = {name: column[taken] for name, column in columns.items()}
        if taken.any():
            after = None if final_obs is None else taken_rows(final_obs, taken)
            has_after = None if final_obs is None else has_final[taken]
            new = core.incoming.many(envs[taken], after, has_after, nest(given))
            core.run(InsertSteps(core, new, None))

    def _check_steps(
        self, envs: Ints, steps: Ints, begins: Array, columns: Columns, finals: Array
    ) -> None:
        """Refuse a gap within an episode: rows that are apart would seem to follow each other."""
        before = np.append(-1, steps[:-1])
        before[begins] = self._last[envs[begins]]
        ended = _ended(columns) | finals
        over = np.append(False, ended[:-1])
        over[begins] = ~self._open[envs[begins]]
        fresh = over | columns["first"] if "first" in columns else over
        wrong = np.flatnonzero((steps != before + 1) & ~(fresh & ~finals))
        wrong = wrong[before[wrong] >= 0]
        if wrong.size:
            at = int(wrong[0])
            raise InvalidValue(
                f"column 'step': environment {envs[at]} goes from step {before[at]} to {steps[at]} "
                "within an episode; sort the file by env_id and step, keep all rows of an episode, "
                "or mark the row as first"
            )
        last = np.append(begins[1:], True)
        self._last[envs[last]] = steps[last]

    def _begin(self, envs: Ints, steps: Array | None, begins: Array, first: Array) -> None:
        """Let each ring begin with the number of its first row, whose episode's head may be cut."""
        rings = self._core.rings
        for place in np.flatnonzero(begins).tolist():
            env = int(envs[place])
            if rings.newest[env]:
                continue
            row = 0 if steps is None else int(steps[place])
            if not first[place]:
                row = max(row, 1)  # something came before it
            if row:
                with self._core.lock:
                    self._core.begin_at(env, row)

    def _finals(
        self, columns: Columns, finals: Array, envs: Ints, ended: Array
    ) -> tuple[Array, Any]:
        """Which rows have an observation after them, and these observations."""
        names = [name for name in columns if is_next(name, self._next)]
        following = [f"next_{name}" for name in names if f"next_{name}" in columns]
        if following and len(following) == len(names):
            values = {name: columns.pop(f"next_{name}") for name in names}
            return ended, self._as_final(values) if ended.any() else None
        if not finals.any():
            return ended, None
        places = np.flatnonzero(finals)
        fine = (places > 0) & ended[places - 1] & (envs[places] == envs[places - 1])
        fine &= ~finals[places - 1]
        if not fine.all():
            env = int(envs[places[~fine][0]])
            raise InvalidValue(
                f"column 'final': environment {env} has a row that is marked so and does not "
                "follow an episode's last step, marked terminated or truncated"
            )
        has_final = np.zeros(envs.size, np.bool_)
        has_final[places - 1] = True
        values = {}
        for name in names:
            values[name] = np.zeros_like(columns[name])
            values[name][places - 1] = columns[name][places]
        return has_final, self._as_final(values)

    def _as_final(self, values: Columns) -> Any:
        nested = nest(values)
        return nested[self._next[0]] if len(self._next) == 1 else nested


def _ended(columns: Columns) -> Array:
    count = len(next(iter(columns.values())))
    none = np.zeros(count, np.bool_)
    ended: Array = columns.get("terminated", none) | columns.get("truncated", none)
    return ended


def _bools(name: str, column: Array) -> Array:
    if column.dtype != np.bool_:
        if column.dtype.kind not in "iu" or (column > 1).any() or (column < 0).any():
            raise SchemaError(f"column {name!r}: expected booleans, got {column.dtype}")
        column = column.astype(np.bool_)
    return column
