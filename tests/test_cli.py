"""The command line: commands do what they say, and errors are one sentence with an exit code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from postgres_server import PostgresServer

import recollect as rc
from recollect.cli import main


def test_sql_init_makes_the_tables_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path}/replay.db"
    assert main(["sql", "init", url]) == 0
    assert capsys.readouterr().out == f"{url}: the tables of version 1 made\n"
    assert main(["sql", "init", url]) == 0
    assert "were there" in capsys.readouterr().out
    rc.Table("t", capacity=4, storage=rc.SqlStorage(url)).close()


def test_sql_init_of_a_server(postgres: PostgresServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sql", "init", postgres.schema()]) == 0
    assert "made" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "recollect: the following arguments are required: COMMAND; see recollect --help"),
        (["sql"], "recollect sql: the following arguments are required: VERB"),
        (["sql", "init"], "recollect sql init: the following arguments are required: URL"),
        (["nonsense"], "recollect: argument COMMAND: invalid choice: 'nonsense'"),
        (["sql", "init", "mysql://here"], "url: expected 'sqlite:///replay.db'"),
        (["sql", "init", "not an address"], "url: expected 'sqlite:///replay.db'"),
    ],
)
def test_wrong_use_is_one_sentence_and_code_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_database_that_is_not_there_is_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sql", "init", f"sqlite:///{tmp_path}/no/folder/t.db"]) == 1
    assert "cannot be reached" in capsys.readouterr().err
    assert main(["sql", "init", f"postgresql://nobody:secret@/x?host={tmp_path}"]) == 1
    error = capsys.readouterr().err
    assert "cannot be reached" in error
    assert "secret" not in error


def test_it_is_a_module(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/t.db"
    run = subprocess.run(
        [sys.executable, "-m", "recollect", "sql", "init", url],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert run.stdout.startswith(url)
