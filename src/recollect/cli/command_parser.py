"""A parser of commands that says what is wrong in one sentence, and knows what it was told."""

from __future__ import annotations

import argparse
import sys
from typing import Any, NoReturn

WRONG_USE = 2  # the exit code for what was asked wrongly


class CommandParser(argparse.ArgumentParser):
    """Says what is wrong in one sentence, with a hint.

    Attributes:
        arguments: What was added to it, and `commands` the parsers of its commands by name.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.arguments: list[argparse.Action] = []  # first: argparse adds --help itself
        self.commands: dict[str, CommandParser] = {}
        super().__init__(*arguments, **options)

    def add_argument(self, *names: Any, **options: Any) -> argparse.Action:
        added = super().add_argument(*names, **options)
        self.arguments.append(added)
        return added

    def add_subparsers(self, **options: Any) -> Any:
        added: Any = super().add_subparsers(**options)
        self.commands = added.choices
        return added

    def parse_known_args(self, *arguments: Any, **options: Any) -> Any:
        """Nobody takes what is left over, and only this command's own help says what it knows."""
        given, left = super().parse_known_args(*arguments, **options)
        if left:
            self.error(f"unrecognized arguments: {' '.join(left)}")
        return given, left

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message}; see {self.prog} --help", file=sys.stderr)
        raise SystemExit(WRONG_USE)
