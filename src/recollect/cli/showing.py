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


def print_json(data: Any) -> None:
    print(json.dumps(data, indent=2))


def size(count: float) -> str:
    """Bytes as a person reads them."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def span(seconds: float) -> str:
    """A time span as a person reads it."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"


def lines(pairs: Iterable[Sequence[str]], indent: str = "  ") -> list[str]:
    """Names and values in two columns."""
    listed = [(name, value) for name, value in pairs]
    width = max((len(name) for name, _ in listed), default=0)
    return [f"{indent}{name:{width}}  {value}" for name, value in listed]
