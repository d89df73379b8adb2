"""Items that a call got from a frame: what the table knew of them, and readers of their payload."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from recollect.base.arrays import Array, Keys
from recollect.data.batch import Batch
from recollect.data.info import Info
from recollect.storage.buffers import Allocate
from recollect.storage.row_reader import Reader


class FrameChosen:
    """Some items as of the moment they were chosen, and readers of their payload."""

    def __init__(
        self, arrays: dict[str, Array], table_size: int, rows: Reader, shared: Reader | None
    ) -> None:
        self._arrays = arrays
        self._table_size = table_size
        self._rows = rows
        self._shared = shared
        self.columns: Sequence[str] | None = None
        self.worn: FrameChosen | None = None

    @property
    def count(self) -> int:
        return self.keys.size

    @property
    def keys(self) -> Keys:
        return self._arrays["keys"]

    def read(self, allocate: Allocate | None = None, lease: Any = None) -> Batch:
        """Copy the payload; needs no lock."""
        allocate = np.empty if allocate is None else allocate
        columns, present = self._rows.gather(allocate, self.columns)
        shared = shared_present = None
        if self._shared is not None:
            shared, shared_present = self._shared.gather(allocate)
        info = Info(self._arrays, self._table_size, lease)
        return Batch._make(columns, info, shared, present, shared_present)
