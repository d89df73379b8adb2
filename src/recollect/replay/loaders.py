"""Steps from files and into them: Arrow and Parquet, with their episodes, and Minari datasets.

A file is read and written in pieces, so it may be larger than memory is. Its rows are those of
the rings: steps by environment and row, the marks of episodes as columns, and an episode's last
observation as a row of its own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from recollect.arguments import flag
from recollect.batch import Batch
from recollect.columns import nest
from recollect.errors import InvalidValue, SchemaError, shown
from recollect.kernels import steps_layout as sl
from recollect.optional import optional
from recollect.replay.incoming import MARKS
from recollect.storage.lanes import Copies, Copy

if TYPE_CHECKING:
    from recollect.replay.buffer import ReplayBuffer

Array = NDArray[Any]
Ints = NDArray[np.int64]
Columns = dict[str, Array]
Buffer = TypeVar("Buffer", bound="ReplayBuffer")

ADDED = ("env_id", "step", *MARKS, "final")  # columns of a file beside those of steps
ABOUT = b"recollect.replay"
KNOWN = ("capacity", "num_envs", "next_from_row", "reward_at")  # what a file says of its buffer
PIECE = 32 << 20  # bytes that are written at a time
PIECE_ROWS = 1 << 16
COMPRESSIONS = ("zstd", "lz4", None)


# -- writing --------------------------------------------------------------------------------------


class Exported:
    """All episodes as of one moment; its pieces are read without the lock."""

    def __init__(self, buffer: ReplayBuffer) -> None:
        taken = [name for name in ADDED if name in buffer.columns]
        if taken:
            raise InvalidValue(
                f"column {taken[0]!r}: a file has a column of this name of its own; rename it"
            )
        with buffer._lock:
            buffer._enter()
            lanes = buffer._store.lanes
            if lanes is None:
                raise InvalidValue("this buffer has no columns yet, so there is nothing to write")
            self._lanes = lanes
            self._episodes = _all_episodes(buffer)
            self._held = lanes.hold()
            self._bases = lanes.frozen()
        self._at_end = buffer.reward_at == "next"
        self._about = {
            "capacity": buffer.capacity,
            "num_envs": buffer.num_envs,
            "next_from_row": list(buffer.next_from_row),
            "reward_at": buffer.reward_at,
        }
        self.rows = int((self._episodes[:, 2] - self._episodes[:, 1]).sum())
        self._piece = max(1, min(PIECE_ROWS, PIECE // lanes.row_bytes))
        self.schema = self._record_batch(self._episodes[:0], 0, 0).schema

    def pieces(self) -> Iterator[Any]:
        """Record batches of a bounded number of rows, in order of environment and row."""
        episodes = self._episodes
        ends = np.cumsum(episodes[:, 2] - episodes[:, 1])
        for begin in range(0, self.rows, self._piece):
            end = min(begin + self._piece, self.rows)
            first = int(np.searchsorted(ends, begin, side="right"))
            last = int(np.searchsorted(ends, end, side="left"))
            skipped = begin - (int(ends[first - 1]) if first else 0)
            yield self._record_batch(episodes[first : last + 1], skipped, end - begin)

    def _record_batch(self, episodes: Ints, skipped: int, count: int) -> Any:
        """`count` rows of these episodes, after those that are skipped."""
        env, first, stop, cut, end, over, terminated = episodes.T
        lengths = stop - first
        begins = np.cumsum(lengths) - lengths

        def spread(numbers: Ints) -> Ints:
            return np.repeat(numbers, lengths)[skipped : skipped + count]

        places = np.arange(skipped, skipped + count)
        envs, rows = spread(env), places - spread(begins) + spread(first)
        last = stop - 1 if self._at_end else end - 1  # the row that says that it is over
        ends = (rows == spread(last)) & (spread(over) != 0)
        marks = {
            "env_id": envs,
            "step": rows,
            "first": (rows == spread(first)) & (spread(cut) == 0),
            "terminated": ends & (spread(terminated) != 0),
            "truncated": ends & (spread(terminated) == 0),
            "final": (rows >= spread(end)) & (not self._at_end),
        }
        lanes = self._lanes
        addresses = lanes.addresses(self._bases, envs, rows)
        copies = Copies(
            lanes, [Copy(name, number, 0, (count,)) for number, name in enumerate(lanes.names)]
        )
        columns = lanes.gather(addresses, copies, np.empty)
        for name in lanes.names:  # a final row has cells of next_from_row columns only
            if not self._is_next(name):
                columns[name][marks["final"]] = 0
        batch: Any = Batch._make({name: columns[name] for name in lanes.names}, None)
        data = batch.to_arrow().rows
        for name, values in marks.items():
            data = data.append_column(pa.field(name, pa.array(values).type), pa.array(values))
        return data.replace_schema_metadata({ABOUT: json.dumps(self._about)})

    def _is_next(self, name: str) -> bool:
        names: list[str] = self._about["next_from_row"]  # type: ignore[assignment]
        return any(name == outer or name.startswith(f"{outer}.") for outer in names)


def _all_episodes(buffer: ReplayBuffer) -> Ints:
    """The episodes of all rings, as `Rings.episodes` has them.

    With reward_at="next" the first row of an episode is no complete step yet, and may be the only
    one; it is part of the record all the same.
    """
    rings = buffer._rings
    episodes = rings.episodes()
    if buffer.reward_at == "this":
        return episodes
    alone = [episodes]
    for env in range(rings.envs):
        oldest, newest = int(rings.oldest[env]), int(rings.newest[env])
        mine = episodes[episodes[:, 0] == env]
        edges = np.zeros(newest - oldest + 1, np.int64)
        np.add.at(edges, mine[:, 1] - oldest, 1)
        np.add.at(edges, mine[:, 2] - oldest, -1)
        rows = oldest + np.flatnonzero(np.cumsum(edges[:-1]) == 0)
        rows = rows[rings.flags[env * rings.ring + rows % rings.ring] & sl.FIRST != 0]
        zeros = np.zeros_like(rows)
        alone.append(np.stack([zeros + env, rows, rows + 1, zeros, rows, zeros, zeros], axis=1))
    found = np.concatenate(alone)
    return found[np.lexsort((found[:, 1], found[:, 0]))]


def to_arrow(
    buffer: ReplayBuffer, path: Any, compression: str | None, progress: bool | None
) -> Any:
    """`ReplayBuffer.to_arrow`."""
    exported = Exported(buffer)
    if path is None:
        return pa.Table.from_batches(list(exported.pieces()), exported.schema)
    options = pa.ipc.IpcWriteOptions(compression=_checked(compression))
    with (
        _replaced(path) as partial,
        pa.OSFile(partial, "wb") as file,
        pa.ipc.new_file(file, exported.schema, options=options) as writer,
    ):
        _write(writer.write_batch, exported, progress)
    return None


def to_parquet(
    buffer: ReplayBuffer, path: Any, compression: str | None, progress: bool | None
) -> None:
    """`ReplayBuffer.to_parquet`."""
    exported = Exported(buffer)
    writing = optional("pyarrow.parquet").ParquetWriter
    method = "none" if _checked(compression) is None else compression
    with (
        _replaced(path) as partial,
        writing(partial, exported.schema, compression=method) as writer,
    ):
        _write(writer.write_batch, exported, progress)


def _write(write: Any, exported: Exported, progress: bool | None) -> None:
    with _bar(exported.rows, "steps written", progress) as bar:
        for piece in exported.pieces():
            write(piece)
            bar.update(piece.num_rows)


def _checked(compression: Any) -> str | None:
    if compression not in COMPRESSIONS:
        raise InvalidValue(f"compression: expected 'zstd', 'lz4' or None, got {shown(compression)}")
    return compression if compression is None else str(compression)


@contextmanager
def _replaced(path: Any) -> Iterator[str]:
    """A file beside the path that takes its place when all went well."""
    target = _path("path", path)
    partial = f"{target}.partial"
    try:
        yield partial
        os.replace(partial, target)
    finally:
        if os.path.exists(partial):
            os.remove(partial)


def _path(name: str, path: Any) -> str:
    if not isinstance(path, str | os.PathLike):
        raise InvalidValue(f"{name}: expected the path of a file, got {shown(path)}")
    return str(os.fspath(path))


def _bar(total: int | None, unit: str, progress: bool | None) -> Any:
    """A progress bar; without being asked for, only on a terminal."""
    from tqdm import tqdm

    hidden = None if progress is None else not flag("progress", progress)
    return tqdm(total=total, unit=f" {unit}", unit_scale=True, disable=hidden, leave=False)


# -- reading --------------------------------------------------------------------------------------


def from_arrow(
    make: type[Buffer], source: Any, progress: bool | None, options: dict[str, Any]
) -> Buffer:
    """`ReplayBuffer.from_arrow`."""
    if isinstance(source, pa.RecordBatch):
        source = pa.Table.from_batches([source])
    if isinstance(source, pa.RecordBatchReader):
        source = source.read_all()  # its environments must be counted before its rows are read
    if isinstance(source, pa.Table):
        batches = source.to_batches(PIECE_ROWS)
        counted = source.select(_counted(source.schema)).to_batches()
        return _load(make, source.schema, source.num_rows, counted, batches, progress, options)
    path = _path("source", source)
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
    make: type[Buffer], path: str, file: Any, progress: bool | None, options: dict[str, Any]
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
    make: type[Buffer], path: Any, progress: bool | None, options: dict[str, Any]
) -> Buffer:
    """`ReplayBuffer.from_parquet`."""
    path = _path("path", path)
    with _opened(path, pa.OSFile) as opened:
        try:
            file = optional("pyarrow.parquet").ParquetFile(opened)
        except pa.ArrowInvalid as error:
            raise InvalidValue(f"path: {path!r} is no Parquet file ({error})") from error
        schema, rows = file.schema_arrow, file.metadata.num_rows
        names = _counted(schema)
        counted = list(file.iter_batches(columns=names)) if names else []
        return _load(make, schema, rows, counted, file.iter_batches(PIECE_ROWS), progress, options)


@contextmanager
def _opened(path: str, how: Any) -> Iterator[Any]:
    try:
        file = how(path)
    except (FileNotFoundError, IsADirectoryError, OSError) as error:
        raise InvalidValue(f"path: {path!r} cannot be read: {error}") from error
    with file:
        yield file


def _load(
    make: type[Buffer],
    schema: Any,
    rows: int,
    counted: list[Any],
    batches: Iterable[Any],
    progress: bool | None,
    options: dict[str, Any],
) -> Buffer:
    """Make a buffer for a file and fill it, piece by piece."""
    buffer = make(**_options(schema, rows, counted, options))
    loading = Loading(buffer)
    with _bar(rows, "steps read", progress) as bar:
        for batch in batches:
            for begin in range(0, batch.num_rows, PIECE_ROWS):
                piece = batch.slice(begin, PIECE_ROWS)
                loading.add(_columns_of(piece))
                bar.update(piece.num_rows)
    loading.finish()
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


class Loading:
    """Puts the rows of a file into a buffer, piece by piece.

    A final observation belongs to the step before it, which may be the last of the piece before;
    so a piece keeps the ends of episodes back that the next one may add to.
    """

    def __init__(self, buffer: ReplayBuffer) -> None:
        self._buffer = buffer
        self._kept: Columns | None = None
        self._last = np.full(buffer.num_envs, -1, np.int64)  # the step of each environment's last
        self._open = np.zeros(buffer.num_envs, np.bool_)  # whether its episode goes on

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
        buffer = self._buffer
        if int(envs.max()) >= buffer.num_envs:
            raise InvalidValue(
                f"num_envs: the file has steps of environment {int(envs.max())}, and the buffer "
                f"has {buffer.num_envs}; leave num_envs out, or give more"
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
            buffer.extend(
                env_ids=envs[taken],
                final_obs=None if final_obs is None else _rows(final_obs, taken),
                has_final=None if final_obs is None else has_final[taken],
                **nest(given),
            )

    def _check_steps(
        self, envs: Ints, steps: Ints, begins: Array, columns: Columns, finals: Array
    ) -> None:
        """Rows of an episode follow each other: one that is missing would join what is apart."""
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
        """Let rings begin with the number of their first row; a head may be cut there."""
        rings = self._buffer._rings
        for place in np.flatnonzero(begins).tolist():
            env = int(envs[place])
            if rings.newest[env]:
                continue
            row = 0 if steps is None else int(steps[place])
            if not first[place]:
                row = max(row, 1)  # something came before it
            if row:
                with self._buffer._lock:
                    rings.begin_at(env, row)
                    lanes = self._buffer._store.lanes
                    if lanes is not None:
                        lanes.begin_at(env, row)

    def _finals(
        self, columns: Columns, finals: Array, envs: Ints, ended: Array
    ) -> tuple[Array, Any]:
        """Which rows have an observation after them, and these as `extend` wants them."""
        names = [name for name in columns if self._is_next(name)]
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

    def _is_next(self, name: str) -> bool:
        outers = self._buffer.next_from_row
        return any(name == outer or name.startswith(f"{outer}.") for outer in outers)

    def _as_final(self, values: Columns) -> Any:
        nested = nest(values)
        names = self._buffer.next_from_row
        return nested[names[0]] if len(names) == 1 else nested


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


def _rows(value: Any, taken: Array) -> Any:
    if isinstance(value, Mapping):
        return {name: _rows(inner, taken) for name, inner in value.items()}
    return value[taken]


# -- Minari ---------------------------------------------------------------------------------------


def load_minari(
    dataset: Any, *, download: bool = False, progress: bool | None = None, **options: Any
) -> ReplayBuffer:
    """Make a buffer of a Minari dataset: all its episodes, each with its final observation.

    The columns are `obs`, `action` and `reward` (as float32, as `rc.Recorder` has it); dicts and
    tuples become nested columns. An episode that is marked neither terminated nor truncated counts
    as truncated at its last step.

    Args:
        dataset: A `minari.MinariDataset`, the id of one, or the path of its folder.
        download: Whether a dataset that is not on this machine is fetched.
        progress: Whether to show a progress bar; None does so on a terminal.
        options: Those of `ReplayBuffer`; capacity is what the dataset needs, unless it is said.

    >>> import recollect as rc
    >>> buffer = rc.load_minari("D4RL/door/human-v2", seed=0)  # doctest: +SKIP
    """
    from recollect.replay.buffer import ReplayBuffer

    found = _dataset(dataset, flag("download", download))
    episodes, steps = int(found.total_episodes), int(found.total_steps)
    num_envs = options.get("num_envs", 1)
    if options.get("reward_at", "this") != "this":
        raise InvalidValue("reward_at: a Minari dataset has a step's reward with it, so 'this'")
    if num_envs != 1:
        raise InvalidValue(
            "num_envs: the episodes of a dataset follow each other in one environment; leave it out"
        )
    options.setdefault("capacity", max(1, steps + episodes))
    buffer = ReplayBuffer(**options)
    with _bar(episodes, "episodes read", progress) as bar:
        for episode in found.iterate_episodes():
            _add_episode(buffer, episode)
            bar.update()
    return buffer


def _dataset(dataset: Any, download: bool) -> Any:
    minari = optional("minari")
    if isinstance(dataset, minari.MinariDataset):
        return dataset
    if not isinstance(dataset, str | os.PathLike):
        raise InvalidValue(
            f"dataset: expected a MinariDataset, its id or its folder, got {shown(dataset)}"
        )
    path = os.fspath(dataset)
    if os.path.isdir(path):
        inner = os.path.join(path, "data")
        try:
            return minari.MinariDataset(inner if os.path.isdir(inner) else path)
        except (OSError, ValueError, KeyError) as error:
            raise InvalidValue(f"dataset: {path!r} is no Minari dataset ({error})") from error
    if isinstance(dataset, os.PathLike):
        raise InvalidValue(f"dataset: there is no folder {path!r}")
    try:
        return minari.load_dataset(dataset, download=download)
    except (FileNotFoundError, ValueError) as error:
        raise InvalidValue(
            f"dataset: there is no dataset {dataset!r} on this machine; check the id, or use "
            f"download=True ({error})"
        ) from error


def _add_episode(buffer: ReplayBuffer, episode: Any) -> None:
    rewards = np.asarray(episode.rewards)
    count = len(rewards)
    if not count:
        return
    obs = _arrays("observations", episode.observations, count + 1)
    terminated = np.asarray(episode.terminations, np.bool_)
    truncated = np.array(episode.truncations, np.bool_)
    ends = np.flatnonzero(terminated | truncated)
    if ends.size and ends[0] != count - 1:
        raise InvalidValue(
            f"dataset: episode {episode.id} has {count} steps and is marked as over at step "
            f"{ends[0]}; repair or filter it"
        )
    truncated[-1] |= not ends.size
    known = buffer.columns.get("reward")
    buffer.extend(
        env_ids=0,
        obs=_rows(obs, np.arange(count)),
        action=_arrays("actions", episode.actions, count),
        reward=rewards.astype(np.float32 if known is None else known.element),
        first=np.arange(count) == 0,
        terminated=terminated,
        truncated=truncated,
        final_obs=_rows(obs, np.arange(1, count + 1)),
    )


def _arrays(name: str, value: Any, count: int) -> Any:
    """Nested dicts of arrays `[count, ...]`; tuples become dicts by place."""
    if isinstance(value, Mapping):
        return {key: _arrays(name, inner, count) for key, inner in value.items()}
    if isinstance(value, tuple):
        return {str(place): _arrays(name, inner, count) for place, inner in enumerate(value)}
    array = np.asarray(value)
    if array.dtype.kind not in "biuf" or len(array) != count:
        raise SchemaError(
            f"dataset: its {name} are {array.dtype} of shape {list(array.shape)}, and a buffer "
            f"needs numbers of one shape, {count} here"
        )
    return array
