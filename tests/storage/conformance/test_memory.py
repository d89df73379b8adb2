"""The storage in memory meets every rule."""

from __future__ import annotations

import recollect as rc
from recollect.testing import StorageConformance


class TestMemoryStorage(StorageConformance):
    can_save = True

    def make_storage(self) -> rc.MemoryStorage:
        return rc.MemoryStorage()
