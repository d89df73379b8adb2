"""How commands show numbers and tables to a person."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from recollect.errors import InvalidValue, RecollectError


def add_path(parser: argparse.ArgumentParser) -> None:
    """The arguments of a command about one snapshot."""
    parser.add_argument("path", metavar="PATH", help="a snapshot, or a folder of snapshots")
    parser.add_argument("--step", type=int, help="the snapshot of this training step")


@contextmanager
def opening(argument: str, path: str) -> Iterator[None]:
    """Says of a path where nothing could be opened that it is not there, or is a file.

    It looks afterwards, because a snapshot may be found that a crash left under another name.
    """
    if not path:
        raise InvalidValue(f"{argument}: expected a path, got an empty one")
    try:
        yield
    except (RecollectError, OSError):
        if os.path.isfile(path):
            raise InvalidValue(
                f"{argument}: {path} is a file, and a snapshot is a folder; name the folder"
            ) from None
        if not os.path.exists(path):
            raise InvalidValue(
                f"{argument}: {path} does not exist; name a snapshot, or a folder of snapshots"
            ) from None
        raise


class _Help(argparse.RawDescriptionHelpFormatter):
    """Keeps the lines of examples, and fills those of a description."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith(EXAMPLES):
            return super()._fill_text(text, width, indent)
        return argparse.HelpFormatter._fill_text(self, text, width, indent)


EXAMPLES = "examples:"


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def add_examples(parser: argparse.ArgumentParser, *lines: str) -> None:
    """What a person may type, shown at the end of the command's help."""
    parser.formatter_class = _Help
    parser.epilog = "\n".join([EXAMPLES, *(f"  {line}" for line in lines)])


def print_json(data: Any) -> None:
    print(json.dumps(data, indent=2))


def lines(pairs: Iterable[Sequence[str]], indent: str = "  ") -> list[str]:
    """Names and values in two columns."""
    listed = [(name, value) for name, value in pairs]
    width = max((len(name) for name, _ in listed), default=0)
    return [f"{indent}{name:{width}}  {value}" for name, value in listed]
