"""Parsing the command line, and turning errors into one sentence and an exit code."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

from recollect.cli.showing import add_examples
from recollect.errors import InvalidValue, RecollectError

COMMANDS = (  # files in this folder, in the order of the help
    "inspect", "verify", "export", "diff", "reshard", "simulate", "sql", "demo", "completion",
)  # fmt: skip
WRONG_USE, FAILED = 2, 1


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence, with a hint."""

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message}; see {self.prog} --help", file=sys.stderr)
        raise SystemExit(WRONG_USE)


class Version(argparse.Action):
    """Looks the version up only when somebody asks for it."""

    def __init__(self, option_strings: Sequence[str], dest: str, **options: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, **options)

    def __call__(self, *_: Any) -> NoReturn:
        import recollect

        print(f"recollect {recollect.__version__}")
        raise SystemExit(0)


def parser() -> Parser:
    made = Parser(
        prog="recollect",
        description="The experience store for reinforcement learning: look into what a run saved, "
        "check it, move it to another number of ranks.",
    )
    made.add_argument("--version", action=Version, help="show the version and exit")
    add_examples(
        made,
        "recollect inspect runs/checkpoints     what the last checkpoint holds",
        "recollect verify runs/checkpoints      whether every byte is as it was written",
        "recollect COMMAND --help               arguments and examples of a command",
    )
    commands = made.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)
    for name in COMMANDS:
        import_module(f"recollect.cli.{name}").add(commands)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    try:
        given = parser().parse_args(arguments)
        code: int = given.run(given)
        return code
    except SystemExit as stopped:
        return stopped.code if isinstance(stopped.code, int) else FAILED
    except (InvalidValue, ImportError) as error:
        print(f"recollect: {error}", file=sys.stderr)
        return WRONG_USE
    except (RecollectError, OSError) as error:
        print(f"recollect: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return 130
