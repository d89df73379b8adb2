"""`History`: whether what a buffer holds came of a checkpoint, and can go back to it."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class History:
    """Where the content of a buffer comes from, so that it is not taken for that of another run.

    `run` is drawn when a buffer is made, and again whenever it goes back; `base` is the checkpoint
    that it went back to. Of steps up to `floor`, trained groups have been let go.
    """

    run: str
    base: str | None = None
    floor: int = 0

    @classmethod
    def new(cls, base: str | None = None, floor: int = 0) -> History:
        """One that begins now."""
        return cls(secrets.token_hex(8), base, floor)

    @classmethod
    def from_json(cls, saved: Mapping[str, Any] | None) -> History:
        """What `to_json` made; a new one where nothing was saved."""
        return cls.new() if saved is None else cls(**saved)

    def to_json(self) -> dict[str, Any]:
        """As snapshots and journals have it."""
        return {"run": self.run, "base": self.base, "floor": self.floor}

    def continues(self, run: str, checkpoint: str, step: int) -> bool:
        """Whether what a buffer holds came of a checkpoint of a run, and can go back to it."""
        return (self.run == run or self.base == checkpoint) and self.floor <= step
