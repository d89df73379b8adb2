"""The command line: commands do what they say, and errors are one sentence with an exit code."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from postgres_server import PostgresServer

import recollect as rc
from recollect.cli import main
from recollect.cli.completion import _commands, script
from recollect.cli.main import COMMANDS, parser


def test_sql_init_makes_the_tables_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path}/replay.db"
    assert main(["sql", "init", url]) == 0
    assert capsys.readouterr().out == f"{url}: the tables of version 1 were made\n"
    assert main(["sql", "init", url]) == 0
    assert "were there" in capsys.readouterr().out
    assert main(["sql", "init", url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"url": url, "version": 1, "made": False}
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
        (
            ["inspect", "--tables", "x"],
            "recollect inspect: unrecognized arguments: --tables; see recollect inspect --help",
        ),
        (["completion", "fish"], "argument SHELL: invalid choice: 'fish'"),
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


def test_a_reader_that_leaves_is_no_error(tmp_path: Path) -> None:
    rc.Store([rc.Table(f"t{n}", capacity=1) for n in range(400)]).save(tmp_path / "s")
    run = subprocess.run(
        ["bash", "-c", '"$@" | head -1; exit ${PIPESTATUS[0]}', "-", sys.executable, "-m",
         "recollect", "inspect", str(tmp_path / "s")],
        capture_output=True, text=True,
    )  # fmt: skip
    assert run.stdout.count("\n") == 1
    assert (run.returncode, run.stderr) == (141, "")


def test_a_description_is_filled_and_examples_keep_their_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["demo", "--help"]) == 0
    help = capsys.readouterr().out
    assert max(map(len, help.splitlines())) < 80
    assert "\n  recollect demo --classic --seconds 20 --out demo\n" in help


def helps() -> list[list[str]]:
    """Every command, as it is called."""
    return [path.split()[1:] for path, _ in _commands(parser(), "recollect")]


@pytest.mark.parametrize("command", helps(), ids=" ".join)
def test_every_command_has_an_example_in_its_help_that_parses(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--help"]) == 0
    help = capsys.readouterr().out
    examples = help.split("\nexamples:\n")[1].splitlines()
    assert examples
    for line in examples:
        typed = re.search(r"recollect [^#)]*?(?=   |$|\)|\s+#)", line)
        assert typed is not None, line
        arguments = shlex.split(typed.group())[1:]
        if "COMMAND" not in arguments:
            parser().parse_args(arguments)


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"recollect {rc.__version__}\n"


def completed(*words: str) -> list[str]:
    """What bash offers for the last word, asked of a real one."""
    listed = " ".join(map(shlex.quote, words))
    asked = f"COMP_WORDS=({listed}); COMP_CWORD={len(words) - 1}; _recollect"
    typed = f'{script(parser())}\n{asked}; printf "%s\\n" "${{COMPREPLY[@]}}"'
    run = subprocess.run(
        ["bash", "--norc", "-c", typed], capture_output=True, text=True, check=True
    )
    return run.stdout.split()


def test_a_shell_completes_commands_and_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert completed("recollect", "ver") == ["verify"]
    assert set(COMMANDS) <= set(completed("recollect", ""))
    assert completed("recollect", "sql", "i") == ["init"]
    assert completed("recollect", "export", "a", "--t") == ["--table"]
    assert completed("recollect", "completion", "") == ["--help", "bash", "zsh"]
    assert main(["completion", "bash"]) == 0
    bash = capsys.readouterr().out
    assert main(["completion", "zsh"]) == 0
    first, second, *rest = capsys.readouterr().out.splitlines(keepends=True)
    assert first == "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit; }\n"
    assert second == "autoload -U +X bashcompinit && bashcompinit\n"
    assert "".join(rest) == bash
