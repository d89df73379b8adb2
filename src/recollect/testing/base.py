"""What the tests of a storage have in common: how they get one, and how they get rid of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recollect.storage.base import Storage
from recollect.table.table import Table
from recollect.testing.cases import PLAIN, PRIORITIES, RICH, STATUSES, TAG_VALUES, TASKS
from recollect.testing.model import Item
from recollect.testing.pair import Pair

LONG = 30.0  # seconds after which a call that must come back is taken to hang


class StorageTests:
    """Base of the tests: makes storages, and tables on them."""

    folder: Path  # an empty folder for each test, for storages that keep files
    lives = 20  # random lives of a table
    steps = 50  # calls in each
    draws = 4000  # in tests of frequencies
    every = 1  # every pair of a sampler and a query or remover, or every second, ...
    can_save = False  # whether `Store.save` takes tables of this storage

    _made: list[Storage]

    def make_storage(self) -> Storage:
        """A new storage without items, that no table has had; a test may ask for several."""
        raise NotImplementedError(f"{type(self).__name__}: say how to make_storage()")

    def dispose(self, storage: Storage) -> None:
        """A test is done with a storage."""

    @pytest.fixture(autouse=True)
    def _storages(self, tmp_path: Path) -> Iterator[None]:
        self.folder = tmp_path
        self._made = []
        yield
        for storage in self._made:
            self.dispose(storage)

    def new_storage(self) -> Storage:
        """A storage that is disposed of after the test."""
        storage = self.make_storage()
        self._made.append(storage)
        return storage

    def table(self, name: str = "t", **options: Any) -> Table:
        """A table on a new storage."""
        return Table(name, **{"capacity": 100, "storage": self.new_storage(), **options})

    def pair(self, *, rich: bool = True, **rules: Any) -> Pair:
        """A table on a new storage, and its model."""
        return Pair(self.new_storage(), RICH if rich else PLAIN, {}, **rules)

    def fill(self, pair: Pair, count: int, *, start: int = 0) -> None:
        """Insert items that differ in every field, versions always set, in one call."""
        numbers = range(start, start + count)
        items = [_item(pair, number) for number in numbers]
        fields = {"task": TASKS, "status": STATUSES, **TAG_VALUES}
        steps = dict(zip(fields, (1, 3, 5, 2, 7, 3, 2, 3), strict=True))
        given: dict[str, Any] = {
            name: [values[number * steps[name] % len(values)] for number in numbers]
            for name, values in fields.items()
        }
        given["priority"] = [PRIORITIES[number % len(PRIORITIES)] for number in numbers]
        given["version"] = [number * 7 % 5 for number in numbers]
        pair.insert(items, **given)


def _item(pair: Pair, number: int) -> Item:
    rows = []
    for row in range(1 + number % 2 if len(pair.model.columns) > 1 else 1):
        cells = {
            "x": 10 * number + row,
            "obs": np.full(3, number, np.float32),
            "tokens": np.arange(number % 4, dtype=np.int32),
            "text": None if number % 3 else f"text {number}",
            "image": None if number % 2 else np.full(2, number, np.uint8),
        }
        rows.append({name: cells[name] for name in pair.model.columns})
    return pair.item(rows, {})
