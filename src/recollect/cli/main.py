"""Parsing the command line, and turning errors into one sentence and an exit code."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from recollect.errors import InvalidValue, RecollectError

COMMANDS = ("inspect", "verify", "export", "diff", "reshard", "simulate", "sql")  # files here
WRONG_USE, FAILED = 2, 1


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence, with a hint."""

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message}; see {self.prog} --help", file=sys.stderr)
        raise SystemExit(WRONG_USE)


def parser() -> Parser:
    made = Parser(prog="recollect", description="The experience store for reinforcement learning.")
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
