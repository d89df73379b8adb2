"""Snapshots and journals that version 0.1.0 wrote before its modules moved are read and continued.

Contents, counts and the next draws are compared with what that version found in the same files.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

import recollect as rc
from recollect.durability.snapshot.reader import open_snapshot

FOLDER = Path(__file__).parent / "saved" / "before_folders"
EXPECTED: dict[str, Any] = json.loads((FOLDER / "expected.json").read_text())
KINDS = ["table", "steps", "rollouts"]


def made() -> Any:
    spec = importlib.util.spec_from_file_location("before_folders_make", FOLDER / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("source", ["snapshot", "journal"])
@pytest.mark.parametrize("kind", KINDS)
def test_contents_counts_and_next_draws_are_what_they_were(
    kind: str, source: str, tmp_path: Path
) -> None:
    make = made()
    owner = make.opened(kind, source, tmp_path)
    found, expected = make.gone_on(kind, owner), EXPECTED[f"{kind}-{source}"]
    assert found["contents"] == expected["contents"]
    assert found["draws"] == expected["draws"]
    assert found["after"] == expected["after"]
    owner.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_journal_is_continued(kind: str, tmp_path: Path) -> None:
    make = made()
    owner = make.opened(kind, "journal", tmp_path)
    of = make.KINDS[kind]
    of.proceed(owner)
    contents = make.plain(of.contents(owner))
    owner.close()
    again = of.make(rc.Journal(tmp_path / f"{kind}-journal"))
    assert make.plain(of.contents(again)) == contents
    again.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_save_goes_on_from_a_snapshot(kind: str, tmp_path: Path) -> None:
    make = made()
    owner = make.opened(kind, "snapshot", tmp_path)
    of = make.KINDS[kind]
    of.proceed(owner)
    contents = make.plain(of.contents(owner))
    path = tmp_path / f"{kind}-snapshot"
    of.save(owner, path, 3)
    assert open_snapshot(path).verify()["items"] > 0
    again = of.make()
    of.load(again, path)
    assert make.plain(of.contents(again)) == contents


@pytest.mark.parametrize("kind", KINDS)
def test_every_checksum_and_count_is_right(kind: str) -> None:
    snapshot = open_snapshot(FOLDER / kind / "snapshot")
    assert snapshot.step == 2
    assert snapshot.verify()["items"] > 0
