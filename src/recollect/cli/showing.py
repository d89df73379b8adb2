"""How commands show numbers and tables to a person."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from typing import Any


def add_path(parser: argparse.ArgumentParser) -> None:
    """The arguments of a command about one snapshot."""
    parser.add_argument("path", metavar="PATH", help="a snapshot, or a folder of snapshots")
    parser.add_argument("--step", type=int, help="the snapshot of this training step")


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def add_examples(parser: argparse.ArgumentParser, *lines: str) -> None:
    """What a person may type, shown at the end of the command's help."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = "\n".join(["examples:", *(f"  {line}" for line in lines)])


def print_json(data: Any) -> None:
    print(json.dumps(data, indent=2))


def lines(pairs: Iterable[Sequence[str]], indent: str = "  ") -> list[str]:
    """Names and values in two columns."""
    listed = [(name, value) for name, value in pairs]
    width = max((len(name) for name, _ in listed), default=0)
    return [f"{indent}{name:{width}}  {value}" for name, value in listed]
