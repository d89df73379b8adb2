"""`Bars`: a progress bar for each task, each on its own line. None where nobody looks."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, TextIO

from recollect.production.progress import TaskProgress


class Bars:
    """Shows how much of each task's target is there: `math 48/64 [in flight 20, reward 0.31]`.

    Every task has a line of its own for as long as the bars are open, so that tasks which finish
    in any order never write over each other. Where the stream is not a terminal there are no bars.

    >>> import io
    >>> from recollect.production import Bars
    >>> bars = Bars(["math", "code"], stream=io.StringIO())
    >>> bars.shown
    False

    Args:
        tasks: Their names.
        stream: Where the bars go, the standard error stream where None.
        shown: Whether to show them; None shows them on a terminal.
    """

    def __init__(
        self, tasks: Any, *, stream: TextIO | None = None, shown: bool | None = None
    ) -> None:
        self._stream = sys.stderr if stream is None else stream
        self.shown = self._stream.isatty() if shown is None else shown
        self._bars: dict[str, Any] = {}
        if not self.shown:
            return
        from tqdm import tqdm

        names = list(tasks)
        width = max(map(len, names), default=0)
        for line, name in enumerate(names):
            self._bars[name] = tqdm(
                desc=name.ljust(width),
                total=0,
                position=line,
                unit="group",
                file=self._stream,
                leave=True,
                dynamic_ncols=True,
                bar_format="{desc} {n_fmt}/{total_fmt} |{bar}| {elapsed}{postfix}",
            )

    def show(
        self, step: int, counts: Mapping[str, TaskProgress], in_flight: Mapping[str, int]
    ) -> None:
        """Bring the lines up to date: what is there of each task's batch for a step."""
        for name, bar in self._bars.items():
            progress = counts[name]
            bar.total = max(progress.target - progress.consumed, 0)
            bar.n = min(progress.completed, bar.total)
            flying = f"step {step}, {in_flight.get(name, 0)} in flight"
            reward = progress.window.reward_mean
            if reward is not None:
                flying += f", reward {reward:.3g}"
            bar.set_postfix_str(flying, refresh=False)
            bar.refresh()

    def close(self) -> None:
        """Leave the last lines as they are, one below the other."""
        for bar in self._bars.values():
            bar.close()
        self._bars = {}
