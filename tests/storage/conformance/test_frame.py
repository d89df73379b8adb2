"""The storage in a DataFrame meets every rule."""

from __future__ import annotations

import recollect as rc
from recollect.testing import StorageConformance


class TestFrameStorage(StorageConformance):
    def make_storage(self) -> rc.FrameStorage:
        return rc.FrameStorage()
