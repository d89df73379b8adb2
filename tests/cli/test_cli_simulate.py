"""`recollect simulate`: a report, two side by side, JSON, and errors in one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from recollect.cli import main

SMALL = """
batch_size: 4
group_size: 2
slots: 16
train_seconds: 20
steps: 10
tasks:
  math: {median_tokens: 1000, sigma: 0.5}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return path


def test_a_report_is_printed(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", str(config)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["small.yaml"]
    assert any(line.split() == ["train", "steps", "10"] for line in lines)
    assert any(line.startswith("trainer waits for a batch") for line in lines)


def test_json_has_every_number(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", str(config), "--json", "--steps", "5"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["config"] == str(config)
    assert told["steps"] == 5
    assert told["trained"] + sum(told["waste"].values()) == told["generated"]
    assert sum(told["group_lags"].values()) == 20
    assert told["tasks"]["math"]["groups"] == 20
    assert told["training"] + told["waiting"] + told["syncing"] == pytest.approx(1)


def test_two_configurations_stand_side_by_side(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "stale.yaml"
    other.write_text(f"{SMALL}\nsync: running\nstaleness: {{max_staleness: 1}}\n")
    assert main(["simulate", str(config), str(other)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["small.yaml", "stale.yaml", "change"]
    assert main(["simulate", str(config), str(other), "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert second["waiting"] < first["waiting"]


def test_two_files_of_one_name_are_told_apart(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    other = folder / config.name
    other.write_text(SMALL)
    assert main(["simulate", str(config), str(other)]) == 0
    assert capsys.readouterr().out.splitlines()[0].split() == [str(config), str(other), "change"]


def test_a_seed_repeats_a_run(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = []
    for seed in ("1", "1", "2"):
        assert main(["simulate", str(config), "--json", "--seed", seed]) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1] != printed[2]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("slot: 4", "slot: unknown; did you mean 'slots'?"),
        ("tasks: {math: {sigma: high}}", "tasks.math.sigma: expected a number, got 'high'"),
        ("steps: ten", "steps: expected a whole number, got 'ten' (in the file "),
        ("- 1", "expected a mapping, as 'name: value' in lines, got [1]"),
        ("", "expected a mapping, as 'name: value' in lines, got an empty file"),
    ],
)
def test_a_wrong_file_is_one_sentence_and_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(text)
    assert main(["simulate", str(path)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_file_that_is_not_there_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", str(tmp_path / "none.yaml")]) == 2
    assert "none.yaml: cannot be read: No such file or directory\n" in capsys.readouterr().err
