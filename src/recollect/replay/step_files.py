"""Files of steps: what they hold beside the columns of steps, and what reading and writing share.

A file is read and written in pieces, so it may be larger than memory is. Its rows are those of
the rings: steps by environment and row, the marks of episodes as columns, and an episode's last
observation as a row of its own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from recollect.base.arguments import flag
from recollect.errors import InvalidValue, shown
from recollect.replay.incoming import MARKS

ADDED = ("env_id", "step", *MARKS, "final")  # columns of a file beside those of steps
ABOUT = b"recollect.replay"
KNOWN = ("capacity", "num_envs", "next_from_row", "reward_at")  # what a file says of its buffer
PIECE_ROWS = 1 << 16


def path_of(name: str, path: Any) -> str:
    if not isinstance(path, str | os.PathLike):
        raise InvalidValue(f"{name}: expected the path of a file, got {shown(path)}")
    return str(os.fspath(path))


def progress_bar(total: int | None, unit: str, progress: bool | None) -> Any:
    """A progress bar; without being asked for, only on a terminal."""
    from tqdm import tqdm

    hidden = None if progress is None else not flag("progress", progress)
    return tqdm(total=total, unit=f" {unit}", unit_scale=True, disable=hidden, leave=False)


def is_next(name: str, next_from_row: tuple[str, ...]) -> bool:
    """Whether a column, by its dotted name, is one of those that are read from the next row too."""
    return any(name == outer or name.startswith(f"{outer}.") for outer in next_from_row)


def taken_rows(value: Any, taken: Any) -> Any:
    """Some rows of a column, or of every column of a nested one."""
    if isinstance(value, Mapping):
        return {name: taken_rows(inner, taken) for name, inner in value.items()}
    return value[taken]
