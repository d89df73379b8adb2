"""What a table has counted since it was made, and how that is written down and read back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from recollect.rules.limiters import Counts


@dataclass(slots=True)
class TableCounts(Counts):
    """The counts that limiters decide by, how often `sample` was called, and why items left."""

    sample_calls: int = 0
    removed: dict[str, int] = field(default_factory=dict)  # by reason

    def left(self, count: int, reason: str) -> None:
        """Items left."""
        self.removals += count
        self.removed[reason] = self.removed.get(reason, 0) + count

    def capture(self) -> dict[str, Any]:
        """All of it as plain data, for snapshots, journals and databases."""
        return {
            "inserts": self.inserts,
            "samples": self.samples,
            "removals": self.removals,
            "removed": dict(self.removed),
            "sample_calls": self.sample_calls,
        }

    def restore(self, captured: Mapping[str, Any]) -> None:
        """Go back to what `capture` returned; what else is in the mapping is left alone."""
        self.inserts, self.samples = captured["inserts"], captured["samples"]
        self.removals, self.sample_calls = captured["removals"], captured["sample_calls"]
        self.removed = dict(captured["removed"])

    def reset(self) -> None:
        """Back to zero."""
        self.restore(TableCounts().capture())
