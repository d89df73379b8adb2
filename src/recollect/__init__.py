"""Recollect: the experience store for reinforcement learning.

>>> import recollect as rc
>>> table = rc.Table("replay", capacity=100_000, sampler=rc.Prioritized())
"""

import typing as _typing

from recollect import errors
from recollect.base import registry as _registry
from recollect.base.clock import Clock, ManualClock, SystemClock
from recollect.base.leases import Lease
from recollect.data.arrow import ArrowBatch
from recollect.data.batch import Batch
from recollect.data.conversions import RaggedTensor
from recollect.data.info import Info
from recollect.data.ragged import Ragged
from recollect.data.schema import Column
from recollect.errors import (
    BufferFull,
    ConfigError,
    InvalidValue,
    JournalError,
    LeaseExpired,
    NeverPossible,
    QueryError,
    RecollectError,
    SchemaError,
    SnapshotError,
    StorageError,
    StorageUnavailable,
    TableClosed,
    UnknownKey,
    WaitTimeout,
)
from recollect.rules.limiters import Limiter, MinSize, Queue, SampleToInsertRatio, Stack
from recollect.rules.query import Query, field, parse
from recollect.rules.selectors import (
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
    Weighted,
)
from recollect.storage.memory.storage import MemoryStorage
from recollect.store import Store
from recollect.table.effects import (
    Amended,
    Archived,
    Effect,
    Follower,
    Inserted,
    Leased,
    Removed,
    Returned,
    Updated,
)
from recollect.table.table import Table

if _typing.TYPE_CHECKING:
    from recollect import training
    from recollect.durability.journal.journal import Journal
    from recollect.ranks.checkpoints import Checkpoints
    from recollect.ranks.shards import Redistributed, load_shards, save_shard
    from recollect.replay.buffer import ReplayBuffer
    from recollect.replay.hindsight import Hindsight
    from recollect.replay.minari import load_minari
    from recollect.replay.mixture import mix
    from recollect.replay.recorder import Recorder
    from recollect.rollouts.buffer import RolloutBuffer
    from recollect.rollouts.events import Event
    from recollect.rollouts.group import Group
    from recollect.rollouts.groups import Groups, TakenBatch
    from recollect.rollouts.rollout import Rollout, Status
    from recollect.rollouts.staleness import Staleness
    from recollect.storage.frame.storage import FrameStorage
    from recollect.storage.sql import SqlStorage

    __version__: str

__all__ = [
    "Amended",
    "Archived",
    "ArrowBatch",
    "Batch",
    "BufferFull",
    "Checkpoints",
    "Clock",
    "Column",
    "ConfigError",
    "Effect",
    "Event",
    "Fifo",
    "Follower",
    "FrameStorage",
    "FreshestFirst",
    "Group",
    "Groups",
    "Hindsight",
    "Info",
    "Inserted",
    "InvalidValue",
    "Journal",
    "JournalError",
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
    "Redistributed",
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
    "SqlStorage",
    "Stack",
    "Staleness",
    "StalestFirst",
    "Status",
    "StorageError",
    "StorageUnavailable",
    "Store",
    "SystemClock",
    "Table",
    "TableClosed",
    "TakenBatch",
    "Uniform",
    "UnknownKey",
    "Updated",
    "WaitTimeout",
    "Weighted",
    "errors",
    "field",
    "load_minari",
    "load_shards",
    "mix",
    "parse",
    "save_shard",
    "training",
]


_LATER = {  # what a table does not need is imported when it is first asked for
    "ranks.checkpoints": ("Checkpoints",),
    "durability.journal.journal": ("Journal",),
    "ranks.shards": ("Redistributed", "load_shards", "save_shard"),
    "replay.buffer": ("ReplayBuffer",),
    "replay.hindsight": ("Hindsight",),
    "replay.minari": ("load_minari",),
    "replay.mixture": ("mix",),
    "replay.recorder": ("Recorder",),
    "rollouts.buffer": ("RolloutBuffer",),
    "rollouts.events": ("Event",),
    "rollouts.group": ("Group",),
    "rollouts.groups": ("Groups", "TakenBatch"),
    "rollouts.rollout": ("Rollout", "Status"),
    "rollouts.staleness": ("Staleness",),
    "storage.frame.storage": ("FrameStorage",),
    "storage.sql": ("SqlStorage",),
}

# What a lower layer asks of a higher one by name; imported when it is first asked for.
_registry.register("table_from_config", "recollect.config")
_registry.register("store_from_config", "recollect.config")


def __getattr__(name: str) -> _typing.Any:
    """Import what is heavy, or needs an optional package, when it is first asked for."""
    import importlib

    for module, names in _LATER.items():
        if name in names:
            found = getattr(importlib.import_module(f"recollect.{module}"), name)
            globals()[name] = found
            return found
    if name == "training":
        return importlib.import_module("recollect.training")
    if name == "__version__":
        from recollect.base.version import installed_version

        return installed_version()
    import sys

    # name and obj let the interpreter say what may have been meant
    raise AttributeError(
        f"module 'recollect' has no attribute {name!r}", name=name, obj=sys.modules[__name__]
    )


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
