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
from recollect.training.selection import Selection, select

__all__ = [
    "Advantage",
    "Advantages",
    "Centered",
    "Correction",
    "Filter",
    "Filtered",
    "Grpo",
    "Importance",
    "Length",
    "MaskedRatio",
    "NoSpread",
    "Opo",
    "PassAtK",
    "RewardRange",
    "Rloo",
    "Selection",
    "Truncated",
    "TruncatedRatio",
    "advantages",
    "apply_filters",
    "importance",
    "select",
]
