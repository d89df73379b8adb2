"""From groups to batches: advantages, filters, importance weights, packs, ranks and metrics."""

from recollect.training.advantages import (
    Advantage,
    Advantages,
    Centered,
    Grpo,
    Opo,
    PassAtK,
    Rloo,
    advantages,
)
from recollect.training.filters import (
    Filter,
    Filtered,
    Length,
    NoSpread,
    RewardRange,
    Truncated,
    apply_filters,
)
from recollect.training.importance import (
    Correction,
    Importance,
    MaskedRatio,
    TruncatedRatio,
    importance,
)
from recollect.training.metrics import Window, stored, trained
from recollect.training.packing import Pack, Packed, Packing, pack
from recollect.training.preparation import DataPreparation
from recollect.training.selection import Selection, select
from recollect.training.sinks import DictSink, PrometheusSink, Sink, TensorBoardSink
from recollect.training.sources import Mode, Queue, Replay
from recollect.training.train_step import RankBatch

__all__ = [
    "Advantage",
    "Advantages",
    "Centered",
    "Correction",
    "DataPreparation",
    "DictSink",
    "Filter",
    "Filtered",
    "Grpo",
    "Importance",
    "Length",
    "MaskedRatio",
    "Mode",
    "NoSpread",
    "Opo",
    "Pack",
    "Packed",
    "Packing",
    "PassAtK",
    "PrometheusSink",
    "Queue",
    "RankBatch",
    "Replay",
    "RewardRange",
    "Rloo",
    "Selection",
    "Sink",
    "TensorBoardSink",
    "Truncated",
    "TruncatedRatio",
    "Window",
    "advantages",
    "apply_filters",
    "importance",
    "pack",
    "select",
    "stored",
    "trained",
]
