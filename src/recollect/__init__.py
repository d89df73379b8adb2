"""Recollect: the experience store for reinforcement learning.

>>> import recollect as rc
>>> table = rc.Table("replay", capacity=100_000, sampler=rc.Prioritized())
"""

from importlib import import_module as _import_module
from importlib.metadata import PackageNotFoundError as _NotInstalled
from importlib.metadata import version as _version
from typing import TYPE_CHECKING as _TYPE_CHECKING

from recollect import errors
from recollect.arrow import ArrowBatch
from recollect.batch import Batch
from recollect.clock import Clock, ManualClock, SystemClock
from recollect.conversions import RaggedTensor
from recollect.effects import (
    Amended,
    Effect,
    Follower,
    Inserted,
    Leased,
    Removed,
    Returned,
    Updated,
)
from recollect.errors import (
    BufferFull,
    ConfigError,
    InvalidValue,
    LeaseExpired,
    NeverPossible,
    QueryError,
    RecollectError,
    SchemaError,
    SnapshotError,
    TableClosed,
    UnknownKey,
    WaitTimeout,
)
from recollect.info import Info, Lease
from recollect.limiters import Limiter, MinSize, Queue, SampleToInsertRatio, Stack
from recollect.query import Query, field, parse
from recollect.ragged import Ragged
from recollect.replay.buffer import ReplayBuffer
from recollect.replay.hindsight import Hindsight
from recollect.replay.minari import load_minari
from recollect.replay.mixing import mix
from recollect.replay.recorder import Recorder
from recollect.rollouts.buffer import RolloutBuffer
from recollect.rollouts.events import Event
from recollect.rollouts.group import Group
from recollect.rollouts.groups import Groups, TakenBatch
from recollect.rollouts.rollout import Rollout, Status
from recollect.rollouts.staleness import Staleness
from recollect.schema import Column
from recollect.selectors import (
    Fifo,
    FreshestFirst,
    Largest,
    Lifo,
    Linear,
    Mixed,
    Prioritized,
    Selector,
    Smallest,
    StalestFirst,
    Uniform,
)
from recollect.storage.memory import MemoryStorage
from recollect.store import Store
from recollect.table import Table

if _TYPE_CHECKING:
    from recollect import training


def __getattr__(name: str) -> object:
    """`rc.training` is imported when it is first used: a buffer of steps needs none of it."""
    if name == "training":
        return _import_module("recollect.training")
    raise AttributeError(f"module 'recollect' has no attribute {name!r}")


try:
    __version__ = _version("recollect")
except _NotInstalled:  # pragma: no cover - imported from a folder that was never installed
    __version__ = "0+unknown"

__all__ = [
    "Amended",
    "ArrowBatch",
    "Batch",
    "BufferFull",
    "Clock",
    "Column",
    "ConfigError",
    "Effect",
    "Event",
    "Fifo",
    "Follower",
    "FreshestFirst",
    "Group",
    "Groups",
    "Hindsight",
    "Info",
    "Inserted",
    "InvalidValue",
    "Largest",
    "Lease",
    "LeaseExpired",
    "Leased",
    "Lifo",
    "Limiter",
    "Linear",
    "ManualClock",
    "MemoryStorage",
    "MinSize",
    "Mixed",
    "NeverPossible",
    "Prioritized",
    "Query",
    "QueryError",
    "Queue",
    "Ragged",
    "RaggedTensor",
    "RecollectError",
    "Recorder",
    "Removed",
    "ReplayBuffer",
    "Returned",
    "Rollout",
    "RolloutBuffer",
    "SampleToInsertRatio",
    "SchemaError",
    "Selector",
    "Smallest",
    "SnapshotError",
    "Stack",
    "Staleness",
    "StalestFirst",
    "Status",
    "Store",
    "SystemClock",
    "Table",
    "TableClosed",
    "TakenBatch",
    "Uniform",
    "UnknownKey",
    "Updated",
    "WaitTimeout",
    "errors",
    "field",
    "load_minari",
    "mix",
    "parse",
    "training",
]
