"""A progress bar for each task."""

from __future__ import annotations

import io
import re

from production_parts import Numbers, Timed, buffer_of

import recollect as rc
from recollect.production import Bars, DisaggregatedManager, Progress, Task
from recollect.production.progress import Handed
from recollect.simulation import run


class Terminal(io.StringIO):
    """A stream that says it is a terminal; `screen` plays what was written to it."""

    def isatty(self):
        return True

    def screen(self):
        lines, row, column = [""], 0, 0
        for part in re.findall(r"\x1b\[A|\n|\r|[^\x1b\n\r]+", self.getvalue()):
            if part == "\x1b[A":
                row -= 1
            elif part == "\n":
                row, column = row + 1, 0
                while len(lines) <= row:
                    lines.append("")
            elif part == "\r":
                column = 0
            else:
                lines[row] = (
                    lines[row][:column].ljust(column) + part + lines[row][column + len(part) :]
                )
                column += len(part)
        return [line.rstrip() for line in lines]


def counts():
    progress = Progress(["math", "code", "chat"])
    progress.plan({"math": 8, "code": 4, "chat": 2})
    return progress


def test_each_task_keeps_its_own_line_whoever_is_first():
    stream, progress = Terminal(), counts()
    bars = Bars(progress, stream=stream)
    assert bars.shown
    for done in range(1, 9):
        for task in ("chat", "math", "code", "math"):
            size = progress[task].target
            progress.observe(task, Handed(0, 0, min(done, size)))
            bars.show(1, progress, {task: 3})
    shown = stream.screen()
    assert [line.split()[:2] for line in shown[:3]] == [
        ["math", "8/8"],
        ["code", "4/4"],
        ["chat", "2/2"],
    ]
    assert "step 1" in shown[0]
    bars.close()
    after = stream.screen()
    assert [line.split()[0] for line in after if line] == ["math", "code", "chat"]


def test_a_new_step_begins_at_nothing_again():
    stream, progress = Terminal(), counts()
    bars = Bars(progress, stream=stream)
    progress.observe("math", Handed(8, 0, 0))
    progress.plan({"math": 5})
    progress["math"].window.reward_sum, progress["math"].window.reward_count = 1.0, 4
    bars.show(2, progress, {"math": 2})
    assert stream.screen()[0].split()[:2] == ["math", "0/5"]
    assert "step 2, 2 in flight, reward 0.25" in stream.screen()[0]
    bars.close()


def test_nothing_is_written_where_nobody_looks():
    stream, progress = io.StringIO(), counts()
    bars = Bars(progress, stream=stream)
    bars.show(1, progress, {})
    bars.close()
    assert not bars.shown
    assert stream.getvalue() == ""


def test_a_manager_shows_its_tasks_and_stops_at_the_end():
    async def main():
        generator = Timed(1.0)
        tasks = [Task(name, Numbers(name), generator) for name in ("math", "code")]
        buffer = buffer_of(staleness=rc.Staleness(max_staleness=1))
        manager = DisaggregatedManager(tasks, buffer, bars=False)
        manager.bars = Bars(manager.tasks, stream=stream)
        manager.start(6)
        for step in range(1, 4):
            await manager.confirm(await manager.get_batch(6, step))
            await manager.set_version(step)
        await manager.shutdown()

    stream = Terminal()
    run(main())
    shown = [line for line in stream.screen() if line]
    assert [line.split()[0] for line in shown] == ["math", "code"]
    assert all("step" in line for line in shown)
