"""The suite itself: it finds what is wrong with a storage, and others can run it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import recollect as rc
from recollect.rules.selectors import Selector
from recollect.storage.base import Storage, Where
from recollect.testing import StorageConformance


class TakesTheLastFirst(rc.FrameStorage):
    def take(self, selector: Selector, n: int, where: Where | None, *, hide: bool) -> Any:
        return super().take(rc.Lifo(), n, where, hide=hide)


class EvictsAnything(rc.FrameStorage):
    def evict(self, selector: Selector, n: int, nbytes: int, keep: bool) -> Any:
        return super().evict(rc.Uniform(), n, nbytes, keep)


class IgnoresQueries(rc.FrameStorage):
    def sample(
        self, selector: Selector, n: int, where: Where | None, replace: bool, calls: int
    ) -> Any:
        return super().sample(selector, n, None, replace, calls)


class CountsTheHidden(rc.FrameStorage):
    def available(self, where: Where | None, most: int | None = None) -> tuple[int, int]:
        return (len(self), 0) if where is None else super().available(where, most)


class ForgetsDeliveries(rc.FrameStorage):
    def show(self, keys: Any, *, returned: bool) -> int:
        return super().show(keys, returned=False)


class DrawsUniformly(rc.FrameStorage):
    def sample(
        self, selector: Selector, n: int, where: Where | None, replace: bool, calls: int
    ) -> Any:
        return super().sample(rc.Uniform(), n, where, replace, calls)


class UpdatesTheFirstOnly(rc.FrameStorage):
    def update(self, keys: Any, fields: Mapping[str, Any]) -> Any:
        found = super().update(keys[:1], {n: _first(value) for n, value in fields.items()})
        return np.concatenate([found, np.ones(max(0, len(keys) - 1), np.bool_)])


def _first(value: Any) -> Any:
    return value[:1] if isinstance(value, np.ndarray) else value


MUTANTS = {
    TakesTheLastFirst: "test_a_lease_hides_counts_and_comes_back",
    EvictsAnything: "test_a_small_table_that_is_always_full_does_too",
    IgnoresQueries: "test_uniform_draws_every_item_equally",
    CountsTheHidden: "test_a_lease_hides_counts_and_comes_back",
    ForgetsDeliveries: "test_leases_are_confirmed_given_back_and_lapse",
    DrawsUniformly: "test_updates_and_removals_change_the_weights",
    UpdatesTheFirstOnly: "test_an_update_says_which_keys_were_there",
}


WRONG = (AssertionError, pytest.fail.Exception, rc.RecollectError, IndexError, ValueError)


@pytest.mark.parametrize("storage", MUTANTS, ids=lambda storage: storage.__name__)
def test_a_wrong_storage_is_found_out(storage: type[rc.FrameStorage], tmp_path: Path) -> None:
    class Suite(StorageConformance):
        def make_storage(self) -> rc.FrameStorage:
            return storage()

    suite = Suite()
    suite.folder, suite._made = tmp_path, []
    with pytest.raises(WRONG):
        getattr(suite, MUTANTS[storage])()


def test_a_failure_in_a_random_life_tells_its_seed_and_the_calls(tmp_path: Path) -> None:
    class Suite(StorageConformance):
        def make_storage(self) -> rc.FrameStorage:
            return EvictsAnything()

    suite = Suite()
    suite.folder, suite._made = tmp_path, []
    with pytest.raises(AssertionError) as caught:
        suite.test_a_small_table_that_is_always_full_does_too()
    notes = "\n".join(caught.value.__notes__)
    assert "seed 5" in notes
    assert "Table({" in notes
    assert "insert " in notes


def test_storages_and_rules_inherit_nothing_from_each_other() -> None:
    """Any rule works on any storage because neither is a kind of the other."""
    storages = {rc.MemoryStorage, rc.FrameStorage, rc.SqlStorage}
    for storage in storages:
        assert storage.__bases__ == (object,)
    for name in rc.__all__:
        public = getattr(rc, name)
        if isinstance(public, type) and public not in storages:
            assert not storages.intersection(public.__mro__), name


def test_a_storage_that_lacks_a_verb_is_told_which() -> None:
    class Half:
        def open(self, layout: Any) -> None: ...
        def insert(self, new: Any) -> Any: ...

    with pytest.raises(
        rc.InvalidValue, match=r"storage: Half lacks set_schema, transaction, .*take"
    ):
        rc.Table("t", capacity=1, storage=Half())  # type: ignore[arg-type]
    with pytest.raises(rc.InvalidValue, match=r"expected one such as rc\.MemoryStorage"):
        rc.Table("t", capacity=1, storage="sqlite://")  # type: ignore[arg-type]


def test_the_page_about_own_storages_names_every_verb() -> None:
    page = (Path(__file__).parents[3] / "docs/guides/own-storage.md").read_text()
    verbs = [name for name in vars(Storage) if not name.startswith("_")]
    assert len(verbs) > 20
    assert not [verb for verb in verbs if f"`{verb}" not in page]


THEIRS = """
import recollect as rc
from recollect.testing import StorageConformance

class Backwards(rc.MemoryStorage):
    def take(self, selector, n, where, *, hide):
        return super().take(rc.Lifo(), n, where, hide=hide)

class TestGood(StorageConformance):
    disposed = 0

    def make_storage(self):
        assert not list(self.folder.iterdir())
        return rc.MemoryStorage()

    def dispose(self, storage):
        assert isinstance(storage, rc.MemoryStorage)
        print("disposed")

class TestBad(StorageConformance):
    def make_storage(self):
        return Backwards()

class TestUnfinished(StorageConformance):
    pass
"""


def test_somebody_else_runs_it_against_a_storage_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "test_theirs.py").write_text(THEIRS)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "-s", "-k"]
    run = subprocess.run(
        [*command, "queue_works_on or hostile_text", "test_theirs.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    # one test of queues and two of hostile text each; only the order of takes is wrong in TestBad
    assert "4 failed, 5 passed" in run.stdout, run.stdout
    assert run.stdout.count("disposed") == 3
    assert "assert [9, 8, 7, 6] == [6, 7, 8, 9]" in run.stdout, "assertions show what was compared"
    assert "TestUnfinished: say how to make_storage()" in run.stdout
