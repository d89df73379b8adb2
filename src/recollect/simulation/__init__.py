"""Virtual time: programs of hours, run in moments, the same each time. And training runs on it.

`run` executes a coroutine on an event loop whose time jumps to the next timer; with a seed, tasks
take their turns in a random order. `simulate` runs a training on simulated engines.
"""

# virtual_loop.py is time, and knows nothing of production. engine.py, answers.py, scenario.py: what
# is simulated. simulator.py, report.py: a run of the real managers on it, and what it was like.

from recollect.simulation.report import Report, TaskReport, render
from recollect.simulation.scenario import Scenario, TaskModel
from recollect.simulation.simulator import simulate
from recollect.simulation.virtual_loop import (
    ShufflingLoop,
    Standstill,
    VirtualClock,
    VirtualLoop,
    in_thread,
    run,
)

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
