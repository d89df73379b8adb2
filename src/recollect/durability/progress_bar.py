"""A bar for saves and loads that take a while: on a terminal, or where the caller asks for one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tqdm import tqdm

LONG = 64 << 20  # bytes below which a save or a load is over in a moment


@contextmanager
def bar(what: str, total: int, progress: bool | None) -> Iterator[Callable[[int], None]]:
    """Show how many bytes are done; yields a call that counts more of them."""
    disable = not progress if progress is not None else (None if total > LONG else True)
    with tqdm(
        total=total, desc=what, unit="B", unit_scale=True, disable=disable, leave=False
    ) as shown:

        def told(more: int) -> None:
            shown.update(more)

        yield told
