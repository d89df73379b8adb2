"""The loop that fills a buffer: prompts, generators, strategies, and managers of the flow."""

from recollect.production.actor import RemoteManager, start_manager
from recollect.production.bars import Bars
from recollect.production.colocated import ColocatedManager
from recollect.production.context import Context
from recollect.production.disaggregated import DisaggregatedManager
from recollect.production.generators.base import Generator
from recollect.production.generators.completions import Retries
from recollect.production.generators.function import FunctionGenerator
from recollect.production.generators.openai import OpenAIGenerator, Request
from recollect.production.generators.ray import RayGenerator, start_generator
from recollect.production.generators.spread import SpreadGenerator
from recollect.production.manager import Manager
from recollect.production.pending import Flight, Pending
from recollect.production.progress import Handed, Progress, TaskProgress
from recollect.production.prompts.base import Indexed, Prompts, prompt_of
from recollect.production.prompts.indexed import HuggingFacePrompts, IndexedPrompts, ListPrompts
from recollect.production.prompts.jsonl import JsonlPrompts
from recollect.production.restore import latest_checkpoint
from recollect.production.results import BatchResult, State
from recollect.production.save import Checkpoint
from recollect.production.strategies import (
    AsyncStrategy,
    EvalStrategy,
    Outcome,
    Strategy,
    SyncStrategy,
)
from recollect.production.task import Task, allocate
from recollect.production.window import Times, Window

__all__ = [
    "AsyncStrategy",
    "Bars",
    "BatchResult",
    "Checkpoint",
    "ColocatedManager",
    "Context",
    "DisaggregatedManager",
    "EvalStrategy",
    "Flight",
    "FunctionGenerator",
    "Generator",
    "Handed",
    "HuggingFacePrompts",
    "Indexed",
    "IndexedPrompts",
    "JsonlPrompts",
    "ListPrompts",
    "Manager",
    "OpenAIGenerator",
    "Outcome",
    "Pending",
    "Progress",
    "Prompts",
    "RayGenerator",
    "RemoteManager",
    "Request",
    "Retries",
    "SpreadGenerator",
    "State",
    "Strategy",
    "SyncStrategy",
    "Task",
    "TaskProgress",
    "Times",
    "Window",
    "allocate",
    "latest_checkpoint",
    "prompt_of",
    "start_generator",
    "start_manager",
]
