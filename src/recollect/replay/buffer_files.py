"""How the steps of a buffer get into files and back: snapshots, Arrow and Parquet."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any, Self

from recollect.replay import file_reader, file_writer
from recollect.replay.replay_core import ReplayCore

if TYPE_CHECKING:
    from recollect.durability.snapshot.loader import Loaded
    from recollect.durability.snapshot.saver import SavedSnapshot


class BufferFiles:
    """The calls of `ReplayBuffer` that write files and read them."""

    core: ReplayCore

    def save(
        self,
        path: str | PathLike[str],
        *,
        step: int | None = None,
        files: Mapping[str, Any] | None = None,
        keep_last: int | None = None,
        compression: str | None = None,
        progress: bool | None = None,
    ) -> SavedSnapshot:
        """Write a snapshot to a folder, all of it or nothing; only what changed since the last one.

        Batches that `batches(prefetch=...)` has chosen ahead are not part of it: `drain()` hands
        them out first. Arguments are those of `Store.save`.

        >>> import tempfile
        >>> import numpy as np
        >>> import recollect as rc
        >>> buffer = rc.ReplayBuffer(100, seed=0)
        >>> _ = buffer.extend(obs=np.zeros((9, 2)), reward=np.arange(9.0))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = buffer.save(f"{folder}/step-1")
        ...     resumed = rc.ReplayBuffer(100)
        ...     _ = resumed.load(f"{folder}/step-1")
        >>> (resumed.sample(4)["reward"] == buffer.sample(4)["reward"]).all()
        np.True_
        """
        from recollect.durability.snapshot.saver import save_snapshot
        from recollect.replay.persistence import StepsMember

        return save_snapshot(
            path, {"steps": StepsMember(self.core)}, kind="replay", step=step, others=files,
            keep_last=keep_last, compression=compression, progress=progress,
        )  # fmt: skip

    def load(
        self,
        path: str | PathLike[str],
        *,
        step: int | None = None,
        progress: bool | None = None,
    ) -> Loaded:
        """Put a snapshot into this buffer, which must be empty: keys, episodes, counters, draws.

        A smaller buffer takes the newest steps of each environment. Arguments are those of
        `Store.load`.
        """
        from recollect.durability.snapshot.loader import load_snapshot
        from recollect.replay.persistence import StepsMember

        return load_snapshot(path, {"steps": StepsMember(self.core)}, step=step, progress=progress)

    def to_arrow(
        self, path: Any = None, *, compression: str | None = "zstd", progress: bool | None = None
    ) -> Any:
        """Write every step to an Arrow file (Feather 2), or return a `pyarrow.Table` without path.

        A row per step, by environment: the columns, `env_id`, `step`, and the marks `first`,
        `terminated`, `truncated`. An episode's last observation is a row of its own, marked
        `final`: only its `next_from_row` columns count. The steps are those of the moment of the
        call; inserts may go on. Priorities, the limiter's counts and the random state stay behind.

        Args:
            path: The file, which is replaced when all is written; None for a table in memory.
            compression: `"zstd"`, `"lz4"` or None.
            progress: Whether to show a progress bar; None does so on a terminal.

        >>> import recollect as rc
        >>> buffer = rc.ReplayBuffer(100)
        >>> _ = buffer.extend(obs=[[0.0], [1.0]], reward=[1.0, 2.0], terminated=[False, True])
        >>> buffer.to_arrow().select(["step", "reward", "terminated"]).to_pylist()[1]
        {'step': 1, 'reward': 2.0, 'terminated': True}
        """
        return file_writer.to_arrow(self.core, path, compression, progress)

    def to_parquet(
        self, path: Any, *, compression: str | None = "zstd", progress: bool | None = None
    ) -> None:
        """Write every step to a Parquet file; rows are those of `to_arrow`."""
        file_writer.to_parquet(self.core, path, compression, progress)

    @classmethod
    def from_arrow(cls, source: Any, *, progress: bool | None = None, **options: Any) -> Self:
        """Make a buffer of an Arrow file or stream (Feather 2), or of a `pyarrow.Table`.

        A file of `to_arrow` gives the same steps and episodes with the same keys. Other files need
        the columns of steps, of one shape each, in order of time; `env_id` says which environment a
        row is of (0 without), `first`, `terminated` and `truncated` mark episodes (without `first`
        one begins after each end), and rows marked `final`, or columns `next_obs`, give the
        observation after an episode's last step. `step` must go up by one within an episode.

        Args:
            source: A path, a table, or a reader of record batches.
            progress: Whether to show a progress bar; None does so on a terminal.
            options: Those of `ReplayBuffer`. What the file knows (capacity, num_envs,
                next_from_row, reward_at) need not be said; else all rows have room.

        >>> import pyarrow as pa
        >>> import recollect as rc
        >>> table = pa.table({"obs": [0.0, 1.0, 2.0], "reward": [1.0, 1.0, 1.0]})
        >>> rc.ReplayBuffer.from_arrow(table, seed=0).episodes()["length"]
        array([3])
        """
        return file_reader.from_arrow(cls, source, progress, options)

    @classmethod
    def from_parquet(cls, path: Any, *, progress: bool | None = None, **options: Any) -> Self:
        """Make a buffer of a Parquet file; rows are as `from_arrow` wants them."""
        return file_reader.from_parquet(cls, path, progress, options)
