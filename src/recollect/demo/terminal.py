"""The terminal: a live view where there is a person, a line now and then where there is not."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from recollect.base.readable import size
from recollect.demo.life import Life

LEVELS = " ▁▂▃▄▅▆▇█"
WIDTH = 38
LINES_EVERY = 2.0  # seconds, without a terminal


class View:
    """Shows a run while it goes on; `say` adds a line that stays."""

    def __init__(
        self, title: str, noun: str, histogram: str, seconds: float, console: Console
    ) -> None:
        self._console = console
        self._title, self._noun, self._histogram = title, noun, histogram
        self._seconds = seconds
        self._said: list[str] = []
        self._live: Live | None = None
        self._printed = 0.0  # when the look was that the last line told of
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._live = Live(console=self._console, refresh_per_second=8)

    def __enter__(self) -> View:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, line: str) -> None:
        self._said.append(line)
        if self._live is None:
            self._console.print(line, highlight=False)

    def show(self, life: Life) -> None:
        if self._live is not None:
            self._live.update(self._picture(life))
        elif life.now and life.now["at"] - self._printed > LINES_EVERY:
            self._printed = life.now["at"]
            solved = ", ".join(f"{name} {share:.0%}" for name, share in life.now["solved"].items())
            self._console.print(
                f"{life.now['at']:5.1f} s  step {life.steps:4}  {life.puts:5} {self._noun} put, "
                f"{life.now['stored']:3} stored  solved: {solved}",
                highlight=False,
            )

    def _picture(self, life: Life) -> RenderableType:
        at = time.time() - life.began
        head = Table.grid(padding=(0, 2))
        head.add_row(
            ProgressBar(total=self._seconds, completed=min(at, self._seconds), width=24),
            f"{at:.0f} s",
            f"step {life.steps}",
            f"{life.puts:,} {self._noun}, {life.rate:.0f}/s",
            f"{life.snapshots} snapshots",
        )
        panels = [self._learning(life), self._buffer(life.now), self._bars(life.now)]
        said = Text("\n".join(self._said), style="bold")
        return Group(Panel(head, title=self._title), Columns(panels), said)

    def _learning(self, life: Life) -> RenderableType:
        grid = Table.grid(padding=(0, 1))
        for name, share in life.now.get("solved", {}).items():
            curve = [look["solved"][name] for look in life.looks]
            grid.add_row(name, Text(curve_of(curve), style="green"), f"{share:.0%}")
        for name, points in life.rewards.items():
            curve = [value for _, value in points]
            line = Text(curve_of(curve), style="yellow")
            grid.add_row(f"reward, {name}", line, f"{curve[-1]:.2f}")
        return Panel(grid, title="solved", width=WIDTH + 18)

    def _buffer(self, now: Mapping[str, Any]) -> RenderableType:
        grid = Table.grid(padding=(0, 1))
        if now:
            full = ProgressBar(total=now["capacity"], completed=now["stored"], width=16)
            grid.add_row("stored", full, f"{now['stored']}/{now['capacity']}")
            grid.add_row("payload", "", size(now["nbytes"]))
            for task, status, count in now["counts"]:
                grid.add_row(task, status.lower(), str(count))
        return Panel(grid, title="buffer", width=WIDTH)

    def _bars(self, now: Mapping[str, Any]) -> RenderableType:
        grid = Table.grid(padding=(0, 1))
        counts = now.get("histogram", {})
        most = max(counts.values(), default=1)
        for name, count in counts.items():
            bar = "█" * max(1, round(20 * count / most))
            grid.add_row(name, Text(bar, style="cyan"), str(count))
        return Panel(grid, title=self._histogram, width=WIDTH)


def curve_of(values: Sequence[float], width: int = 28) -> str:
    """Numbers from 0 to 1 as a line of text, the last at its end.

    >>> curve_of([0.0, 0.5, 1.0])
    ' ▄█'
    """
    if len(values) > width:
        step = len(values) / width
        values = [values[int((place + 1) * step) - 1] for place in range(width)]
    return "".join(LEVELS[round(min(max(value, 0.0), 1.0) * 8)] for value in values)
