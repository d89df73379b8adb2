"""Virtual time: programs of hours, run in moments, the same each time. And training runs on it.

`run` executes a coroutine on an event loop whose time jumps to the next timer; with a seed, tasks
take their turns in a random order. `simulate` runs a training on simulated engines.
"""

# virtual_loop.py, shuffled_loop.py, virtual_clock.py, virtual_run.py: time. They know nothing of
# production. engine.py, answers.py, scenario.py: what is simulated.
# simulator.py, report.py: a run of the real managers on it, and what it was like.

from typing import TYPE_CHECKING, Any

from recollect.simulation.report import Report, TaskReport, render
from recollect.simulation.scenario import Scenario, TaskModel
from recollect.simulation.shuffled_loop import ShufflingLoop
from recollect.simulation.virtual_clock import VirtualClock
from recollect.simulation.virtual_loop import Standstill, VirtualLoop
from recollect.simulation.virtual_run import in_thread, run

if TYPE_CHECKING:
    from recollect.simulation.simulator import simulate

__all__ = [
    "Report",
    "Scenario",
    "ShufflingLoop",
    "Standstill",
    "TaskModel",
    "TaskReport",
    "VirtualClock",
    "VirtualLoop",
    "in_thread",
    "render",
    "run",
    "simulate",
]


def __getattr__(name: str) -> Any:
    """Whoever only needs a clock does not load what is simulated on it."""
    if name == "simulate":
        from recollect.simulation.simulator import simulate

        return simulate
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
