"""Parsing the command line, and turning errors into one sentence and an exit code."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

from recollect.base.version import installed_version
from recollect.cli.command_parser import WRONG_USE, CommandParser
from recollect.cli.display import add_examples
from recollect.errors import InvalidValue, RecollectError

COMMANDS = (  # files in this folder, in the order of the help
    "inspect", "verify", "export", "diff", "reshard", "simulate", "sql", "demo", "completion",
)  # fmt: skip
FAILED = 1
UNREAD = 128 + 13  # as if SIGPIPE had ended it


class Version(argparse.Action):
    """Looks the version up only when somebody asks for it."""

    def __init__(self, option_strings: Sequence[str], dest: str, **options: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, **options)

    def __call__(self, *_: Any) -> NoReturn:
        print(f"recollect {installed_version()}")
        raise SystemExit(0)


def parser() -> CommandParser:
    made = CommandParser(
        prog="recollect",
        description="The experience store for reinforcement learning: look into what a run saved, "
        "check it, move it to another number of ranks.",
    )
    made.add_argument("--version", action=Version, help="show the version and exit")
    add_examples(
        made,
        "recollect demo                         see it work, in a minute",
        "recollect inspect runs/checkpoints     what the last checkpoint holds",
        "recollect verify runs/checkpoints      whether every byte is as it was written",
        "recollect COMMAND --help               arguments and examples of a command",
    )
    made.set_defaults(parser=made)  # for a command that is about all of them
    commands = made.add_subparsers(metavar="COMMAND", required=True, parser_class=CommandParser)
    for name in COMMANDS:
        import_module(f"recollect.cli.{name}").add(commands)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    try:
        given = parser().parse_args(arguments)
        code: int = given.run(given)
        sys.stdout.flush()  # so that a reader who left is noticed here
        return code
    except SystemExit as stopped:
        return stopped.code if isinstance(stopped.code, int) else FAILED
    except (InvalidValue, ImportError) as error:
        return _failed(error, WRONG_USE)
    except BrokenPipeError:  # whoever read this has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return UNREAD
    except (RecollectError, OSError) as error:
        return _failed(error, FAILED)
    except KeyboardInterrupt:
        return 130


def _failed(error: Exception, code: int) -> int:
    """One sentence; a note, such as the file that a configuration is in, stands behind it."""
    said = str(error)
    if isinstance(error, OSError) and error.strerror and error.filename:
        said = f"{error.filename}: {error.strerror}"
    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
    print(f"recollect: {said}{notes}", file=sys.stderr)
    return code
